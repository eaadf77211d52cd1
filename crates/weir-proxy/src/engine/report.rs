//! The machines describe themselves for status and metrics. Called on demand, between two turns.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Engine;
use crate::base::keys::Key;
use crate::observe::accounting::{Place, Table};
use crate::observe::report::{Report, UsageReport, UsedReport, UsedRow};
use crate::plan::UpstreamPlan;

impl Engine {
    /// Reports the present state. Visits every client and every upstream connection.
    pub fn report(&self) -> Report {
        let mut relays = vec![0; self.upstreams.pool().server_count()];
        self.clients.conns().relays().for_each(|(_, relay)| relays[relay.server.index()] += 1);
        self.flows.count_by_server(&mut relays);
        Report {
            clients: self.clients(),
            exchanges: self.clients.conns().exchanges(),
            draining: self.clients.conns().is_draining(),
            servers: self.upstreams.report(relays, &self.cx),
            suspects: self.upstreams.isolation().suspects(&self.cx),
            usage: self.report_usage(),
            arms: self.flows.arms.report(),
        }
    }

    /// Reports the traffic of clients that choose their destinations; None: no clients do, because
    /// neither a forward proxy nor `original-destination` is configured.
    fn report_usage(&self) -> Option<UsageReport> {
        let plan = &self.cx.plan;
        if plan.forward.is_none() && !plan.upstreams.iter().any(UpstreamPlan::is_destination) {
            return None;
        }
        let mut destinations: BTreeMap<Place, u32> = BTreeMap::new();
        let mut users: BTreeMap<&str, u32> = BTreeMap::new();
        let relays = self.clients.conns().relays().map(|(_, relay)| relay.account);
        let accounts = self.upstreams.pool().accounts().chain(relays).chain(self.flows.accounts());
        for account in accounts.filter(|account| account.destination != Place::NOWHERE) {
            *destinations.entry(account.destination).or_default() += 1;
        }
        for user in self.clients.conns().users() {
            *users.entry(user).or_default() += 1;
        }
        Some(UsageReport {
            destinations: rows(&self.cx.usage.destinations, destinations, |place, _| place),
            users: rows(&self.cx.usage.users, users, |_, name| name),
        })
    }
}

/// All rows with their connections; connections without a row count for the others.
fn rows<'a, K: Ord>(
    table: &'a Table,
    mut connections: BTreeMap<K, u32>,
    key: impl Fn(Place, &'a str) -> K,
) -> UsedReport {
    let (rows, others) = table.told();
    let rows = rows.map(|(place, name, used)| UsedRow {
        name: Arc::clone(name),
        connections: connections.remove(&key(place, name)).unwrap_or_default(),
        used: used.clone(),
    });
    let rows = rows.collect();
    UsedReport { rows, others: others.clone(), others_connections: connections.into_values().sum() }
}
