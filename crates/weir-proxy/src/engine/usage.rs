//! Who is charged with what clients of the forward proxy do (stage account): see [`crate::observe::accounting`].

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Engine;
use crate::base::keys::{ClientKey, ConnKey, ExchangeKey};
use crate::cause::Cause;
use crate::observe::accounting::{Account, Place, Table};
use crate::observe::report::{UsageReport, UsedReport, UsedRow};

impl Engine {
    /// What the present request of a client is charged to.
    fn account_of(&self, session: ClientKey) -> Account {
        self.sessions.at(session).own.as_deref().map_or_else(Account::default, |own| own.proxied.account)
    }

    /// A request is new: nobody is charged yet. What its destination and user were stays known, for they are often the same.
    pub(super) fn begin_account(&mut self, session: ClientKey) {
        let proxied = self.proxied(session);
        proxied.near = Account {
            destination: known(proxied.account.destination, proxied.near.destination),
            user: known(proxied.account.user, proxied.near.user),
        };
        proxied.account = Account::default();
    }

    pub(super) fn charge_destination(&mut self, session: ClientKey, name: &str) {
        let near = self.proxied(session).near.destination;
        let place = self.usage.destinations.find(near, name);
        self.proxied(session).account.destination = place;
    }

    pub(super) fn charge_user(&mut self, session: ClientKey, name: &str) {
        let near = self.proxied(session).near.user;
        let place = self.usage.users.find(near, name);
        self.proxied(session).account.user = place;
    }

    /// The request of a client goes to its destination.
    pub(super) fn count_use(&mut self, session: ClientKey, is_tunnel: bool) {
        self.usage.requested(self.account_of(session), is_tunnel);
    }

    /// The request of an exchange got an answer of weir's own, or not all of its answer.
    pub(super) fn count_refusal(&mut self, slot: ExchangeKey, cause: Cause) {
        self.counters.refusals.count(cause);
        let session = self.exchanges.at(slot).session;
        if self.sessions.at(session).flags.proxied {
            self.usage.refused(self.account_of(session), cause.word());
        }
    }

    /// What a connection carries from now on is charged to whom its client's request is.
    pub(super) fn charge_link(&mut self, index: ConnKey) {
        let Some(owner) = self.links.at(index).owner else { return };
        if self.sessions.holds(owner.session, owner.generation) {
            self.links.at_mut(index).account = self.account_of(owner.session);
        }
    }

    /// What clients of the forward proxy do; None: there is no forward proxy. Visits each client and connection.
    pub(super) fn report_usage(&self) -> Option<UsageReport> {
        self.plan.forward.as_ref()?;
        let mut destinations: BTreeMap<Place, u32> = BTreeMap::new();
        let mut users: BTreeMap<&str, u32> = BTreeMap::new();
        let links = self.links.keys().map(|index| self.links.at(index).account);
        let clients = || self.sessions.keys().map(|index| self.sessions.at(index));
        let relays = clients().filter_map(|session| session.relay.as_ref()).map(|relay| relay.account);
        for account in links.chain(relays).filter(|account| account.destination != Place::NOWHERE) {
            *destinations.entry(account.destination).or_default() += 1;
        }
        for seat in clients().filter_map(|session| session.own.as_deref()?.proxied.seat.as_ref()) {
            *users.entry(&seat.user().name).or_default() += 1;
        }
        Some(UsageReport {
            destinations: rows(&self.usage.destinations, destinations, |place, _| place),
            users: rows(&self.usage.users, users, |_, name| name),
        })
    }
}

fn known(now: Place, before: Place) -> Place {
    if now == Place::NOWHERE { before } else { now }
}

/// All rows with their connections; those whose rows are gone are the others'.
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
