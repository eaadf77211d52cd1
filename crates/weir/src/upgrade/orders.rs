//! Operators' orders for servers (`weir server`), for the program that takes over: a server that an
//! operator took out must not return because of an upgrade. Read by the old program, carried out by
//! the new one before it accepts clients.
//!
//! Servers have their names in the configuration. A server that is not in the new configuration is
//! left out; an ordered weight is valid only while the configured weight is the same
//! (docs/upgrade.md).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_proxy::cross::standing::Order;
use weir_proxy::plan::{Plan, ServerPlan, written_name};
use weir_proxy::upstream::server_state::State;
use weir_worker::{Command, Handle};

use crate::reload::slot;

/// How long a worker may take to respond.
const PATIENCE: Duration = Duration::from_secs(10);

/// The orders for one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ordered {
    upstream: String,
    server: String,
    /// Whether it is drained or disabled; None: it serves.
    rest: Option<Rest>,
    /// The configured weight, and the ordered one.
    weight: Option<(u32, u32)>,
    /// The options with which an operator added it; None: it is in the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    temporary: Option<Temporary>,
}

/// The options of a temporary server, besides its address, which is its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Temporary {
    connections_min: u32,
    connections: u32,
    connections_max: u32,
    /// Missing from versions that did not know it.
    #[serde(default)]
    concurrency: Option<u32>,
    weight: u32,
    backup: bool,
}

impl Temporary {
    /// Returns a server with these options.
    fn applied_to(self, server: ServerPlan) -> ServerPlan {
        ServerPlan {
            connections_min: self.connections_min,
            connections: self.connections,
            connections_max: self.connections_max,
            concurrency: self.concurrency,
            weight: self.weight,
            backup: self.backup,
            ..server
        }
    }
}

/// Servers that were added, by the name of their upstream as written.
pub(super) type Added = BTreeMap<String, Vec<ServerPlan>>;

/// Why a server gets no new requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Rest {
    Drain,
    Disable,
}

/// Returns the present orders. None: no worker reports them in time.
pub(super) fn read(plan: &Plan, workers: &Handle) -> Option<Vec<Ordered>> {
    let report = workers.enquire(PATIENCE).into_iter().flatten().next()?;
    let of_slot = |at: usize| {
        let (upstream, server) = plan.server(at).filter(|(_, server)| !server.retired)?;
        let standing = report.machines.servers.get(at).map(|server| server.standing);
        let rest = match standing {
            Some(State::Draining) => Some(Rest::Drain),
            Some(State::Disabled) => Some(Rest::Disable),
            _ => None,
        };
        let weight = server.weight_ordered.map(|ordered| (server.weight, ordered));
        let temporary = server.temporary.then_some(Temporary {
            connections_min: server.connections_min,
            connections: server.connections,
            connections_max: server.connections_max,
            concurrency: server.concurrency,
            weight: server.weight,
            backup: server.backup,
        });
        let is_ordered = rest.is_some() || weight.is_some() || temporary.is_some();
        let (upstream, server) = (upstream.name.clone(), server.name.clone());
        is_ordered.then_some(Ordered { upstream, server, rest, weight, temporary })
    };
    Some((0..plan.servers()).filter_map(of_slot).collect())
}

/// Returns the added servers, by the name of their upstream as written in this plan, and for each
/// of the others the reason why it is not added again.
pub(super) fn temporary(written: &Plan, orders: &[Ordered]) -> (Added, BTreeSet<String>) {
    let (mut all, mut lost) = (Added::new(), BTreeSet::new());
    let forward = written.forward.as_ref().map(|forward| forward.upstream);
    for Ordered { upstream, server, temporary, .. } in orders {
        let Some(temporary) = *temporary else { continue };
        // For routes with another `pool` another upstream may have the same servers.
        let upstream = written_name(upstream);
        let plans = written.upstreams.iter().enumerate().filter(|(at, _)| Some(*at) != forward);
        let Some(plan) = plans.map(|(_, plan)| plan).find(|plan| plan.written_name() == upstream)
        else {
            lost.insert(format!(
                "weir does not add server {server} again: upstream `{upstream}` no longer exists"
            ));
            continue;
        };
        let Some(located) = ServerPlan::read(server) else {
            lost.insert(format!(
                "weir does not add server {server} to upstream `{upstream}` again: it has no \
                 address"
            ));
            continue;
        };
        let servers = all.entry(plan.written_name().to_owned()).or_default();
        if servers.iter().all(|other| other.name != *server) {
            servers.push(temporary.applied_to(located));
        }
    }
    (all, lost)
}

/// Returns the plan with the ordered weights.
pub(super) fn weigh(mut plan: Plan, orders: &[Ordered]) -> Plan {
    for Ordered { upstream, server, weight, .. } in orders {
        if let (Some((configured, ordered)), Ok(at)) = (weight, slot(&plan, upstream, server))
            && plan.server(at).is_some_and(|(_, server)| server.weight == *configured)
        {
            plan = plan.weighted(at, Some(*ordered));
        }
    }
    plan
}

/// Gives workers the other orders.
pub(super) fn carry_out(plan: &Plan, workers: &Handle, orders: &[Ordered]) {
    for Ordered { upstream, server, rest, .. } in orders {
        let order = match rest {
            Some(Rest::Drain) => Order::Drain,
            Some(Rest::Disable) => Order::Disable,
            None => continue,
        };
        let Ok(at) = slot(plan, upstream, server) else { continue };
        let command = Command::Order { server: at as u32, order };
        if workers.command(&command).is_err() {
            // The queue is full: it has room when the workers have replied.
            workers.enquire(PATIENCE);
            let _ = workers.command(&command);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: an added server is added again once, and a lost one is reported once, with the
    //! reason. How: an example.

    use super::*;

    #[test]
    fn what_was_added_is_added_again_or_told() {
        let text = r#"
listen "127.0.0.1:8080"
upstream "app" { server "10.0.0.1:80"; }
forward { listen "127.0.0.1:3128"; }
route { proxy "app"; }
"#;
        let plan = weir_config::parse(text, "weir.kdl").expect("valid").plan;
        let added = |upstream: &str, server: &str| Ordered {
            upstream: upstream.to_owned(),
            server: server.to_owned(),
            rest: None,
            weight: None,
            temporary: Some(Temporary {
                connections_min: 1,
                connections: 2,
                connections_max: 3,
                concurrency: Some(5),
                weight: 4,
                backup: true,
            }),
        };
        let places = ["app", "app (pinned)", "old", "old (pinned)", "forward"];
        let mut orders: Vec<_> = places.map(|upstream| added(upstream, "10.0.0.2:80")).into();
        orders.push(added("app", "app.test:80"));
        orders.push(Ordered { temporary: None, ..added("app", "10.0.0.1:80") });
        let (all, lost) = temporary(&plan, &orders);
        let server = &all["app"][0];
        assert_eq!(
            (all.len(), all["app"].len(), server.name.as_str(), server.weight, server.concurrency),
            (1, 1, "10.0.0.2:80", 4, Some(5))
        );
        assert_eq!(
            lost.into_iter().collect::<Vec<_>>(),
            [
                "weir does not add server 10.0.0.2:80 again: upstream `forward` no longer exists",
                "weir does not add server 10.0.0.2:80 again: upstream `old` no longer exists",
                "weir does not add server app.test:80 to upstream `app` again: it has no address",
            ]
        );
    }
}
