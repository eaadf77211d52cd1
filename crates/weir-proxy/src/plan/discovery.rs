//! Servers by their names: the configuration of lookups, and the plan with the addresses that were
//! found.
//!
//! A plan that was just compiled has servers as written. [`Plan::located`] replaces each server
//! that is written as a name by a server for each known address; the resolver of names calls it
//! again when addresses change. Pure. docs/discovery.md.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;

use super::{Place, Plan, SECOND_US, ServerPlan, UNLOCATED, UpstreamPlan};

/// The lookup of server names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryPlan {
    /// Name servers; none, the default: those of the system (resolv.conf, and /etc/hosts first).
    pub resolvers: Vec<SocketAddr>,
    /// The addresses that are used. Default [`Family::Any`].
    pub family: Family,
    /// Shortest lifetime of an answer. Default 1 s.
    pub ttl_min_us: u64,
    /// Longest lifetime of an answer. Default 5 min.
    pub ttl_max_us: u64,
    /// How long an address that is no longer in any answer remains in use. Default 30 s.
    pub hold_us: u64,
    /// By the name of an upstream as it is written: a file with further servers. Default none.
    pub files: BTreeMap<String, PathBuf>,
}

impl Default for DiscoveryPlan {
    fn default() -> DiscoveryPlan {
        DiscoveryPlan {
            resolvers: Vec::new(),
            family: Family::Any,
            ttl_min_us: SECOND_US,
            ttl_max_us: 300 * SECOND_US,
            hold_us: 30 * SECOND_US,
            files: BTreeMap::new(),
        }
    }
}

/// `family` of `discovery`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Family {
    /// Addresses of both kinds. The default.
    #[default]
    Any,
    /// Only IPv4.
    V4,
    /// Only IPv6.
    V6,
}

/// The known locations of servers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Known {
    /// Places by written name. A name that is missing has none.
    pub names: BTreeMap<String, Vec<Place>>,
    /// Servers as they are written in files. A file that is missing has none.
    pub files: BTreeMap<PathBuf, Vec<ServerPlan>>,
    /// By the name of an upstream as it is written: servers that operators have added. They are
    /// written as addresses.
    pub temporary: BTreeMap<String, Vec<ServerPlan>>,
}

impl Plan {
    /// Returns this plan, which was just compiled, with servers at the addresses of their names and
    /// files.
    pub fn located(&self, known: &Known) -> Plan {
        let listed =
            |plan: &UpstreamPlan| known.files.get(self.discovery.files.get(plan.written_name())?);
        let located = |plan: &UpstreamPlan| {
            let added = known.temporary.get(plan.written_name());
            plan.located(
                [listed(plan), added].map(|servers| servers.map_or(&[][..], Vec::as_slice)),
                known,
            )
        };
        let plan = Plan { upstreams: self.upstreams.iter().map(located).collect(), ..self.clone() };
        // Finds a server by its slot at once.
        Plan { slots: plan.places(), ..plan }
    }

    /// Returns the servers of a plan in force that operators have added and not removed, by the
    /// written name of their upstream.
    pub fn temporary(&self) -> BTreeMap<String, Vec<ServerPlan>> {
        let mut all: BTreeMap<String, Vec<ServerPlan>> = BTreeMap::new();
        for plan in self.upstreams.iter().filter(|plan| !plan.is_retired()) {
            for server in plan.present().filter(|server| server.temporary) {
                let servers = all.entry(plan.written_name().to_owned()).or_default();
                // Upstreams that are derived for another `pool` have the same.
                if servers.iter().all(|other| other.name != server.name) {
                    servers.push(ServerPlan { weight_ordered: None, ..server.clone() });
                }
            }
        }
        all
    }

    /// Returns the names of its servers, as written.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let servers = self.upstreams.iter().flat_map(|plan| &plan.servers);
        servers.filter(|server| server.is_name()).map(|server| server.written.as_str())
    }
}

/// Returns the configured name of an upstream: a derived upstream has its `pool` behind that.
pub fn written_name(name: &str) -> &str {
    name.split(' ').next().unwrap_or_default()
}

impl UpstreamPlan {
    /// Returns the name in the configuration.
    pub fn written_name(&self) -> &str {
        written_name(&self.name)
    }

    /// Adds the servers that a file lists, and those that operators have added.
    fn located(&self, [listed, added]: [&[ServerPlan]; 2], known: &Known) -> UpstreamPlan {
        let (mut servers, mut seen) = (Vec::new(), BTreeSet::new());
        let listed = listed.iter().map(|server| ServerPlan { found: true, ..server.clone() });
        let added = added.iter().map(|server| ServerPlan {
            found: true,
            temporary: true,
            ..server.clone()
        });
        for server in self.servers.iter().cloned().chain(listed).chain(added) {
            // A server of the configuration precedes the same server of a file, and both precede
            // one that was added.
            if seen.contains(&server.written) {
                continue;
            }
            let before = servers.len();
            let written = server.written.clone();
            if server.is_name() {
                let places = known.names.get(&written).into_iter().flatten();
                servers.extend(places.map(|place| server.at(place)));
            } else {
                servers.push(server);
            }
            // A server without any address does not exist yet.
            if servers.len() > before {
                seen.insert(written);
            }
        }
        if servers.is_empty() {
            // An upstream always has a server. This server gets nothing.
            let nobody = self
                .servers
                .first()
                .cloned()
                .unwrap_or_else(|| ServerPlan::new(&self.name, UNLOCATED));
            servers.push(ServerPlan { retired: true, ..nobody });
        }
        let names: Vec<&str> = servers.iter().map(|server| server.name.as_str()).collect();
        let sticky = self.sticky.as_ref().map(|sticky| sticky.of(&names));
        UpstreamPlan { servers, sticky, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: servers have the addresses of their names and files, each once, and an upstream
    //! without any has one that gets nothing. How: examples.

    use super::*;
    use crate::placement::sticky::{Cookie, Sticky};

    fn known(addresses: &[u8], listed: &[ServerPlan]) -> Known {
        let at = |last: &u8| SocketAddr::from(([10, 0, 0, *last], 80)).into();
        Known {
            names: [("a.test:80".to_owned(), addresses.iter().map(at).collect())].into(),
            files: [(PathBuf::from("list"), listed.to_vec())].into(),
            ..Known::default()
        }
    }

    /// Returns a plan with one upstream, which has a file.
    fn written(plan: UpstreamPlan) -> Plan {
        let files = [("app".to_owned(), PathBuf::from("list"))].into();
        let discovery = DiscoveryPlan { files, ..DiscoveryPlan::default() };
        Plan {
            upstreams: vec![UpstreamPlan { name: "app (pinned)".to_owned(), ..plan }],
            discovery,
            ..Plan::default()
        }
    }

    fn names(plan: &UpstreamPlan) -> Vec<&str> {
        plan.servers.iter().map(|server| server.name.as_str()).collect()
    }

    #[test]
    fn servers_are_where_names_and_files_say() {
        let fixed = ServerPlan::new("10.0.0.9:80", ([10, 0, 0, 9], 80).into());
        let named = ServerPlan::new("a.test:80", UNLOCATED);
        let sticky = Some(Sticky::new(&Cookie::new("c"), true, "", "app", &[]));
        let written = written(UpstreamPlan {
            servers: vec![fixed.clone(), named.clone()],
            sticky,
            ..UpstreamPlan::default()
        });
        let other = ServerPlan::new("10.0.0.8:80", ([10, 0, 0, 8], 80).into());
        let listed = [other, ServerPlan { weight: 1, ..fixed }, named];
        let plan = &written.located(&known(&[1, 2], &listed)).upstreams[0];
        assert_eq!(
            names(plan),
            ["10.0.0.9:80", "a.test@10.0.0.1:80", "a.test@10.0.0.2:80", "10.0.0.8:80"]
        );
        assert_eq!(
            plan.servers.iter().map(|server| server.found).collect::<Vec<_>>(),
            [false, true, true, true]
        );
        assert_eq!(plan.servers[0].weight, 50, "what is written comes first");
        let cookie = |at| plan.sticky.as_ref().and_then(|sticky| sticky.cookie(at));
        assert!(
            (0..4).all(|at| cookie(at).is_some()) && cookie(0) != cookie(1) && cookie(4).is_none()
        );
        // Once more, with other addresses.
        let again = |known| written.located(&known).upstreams.remove(0);
        assert_eq!(names(&again(known(&[2], &[]))), ["10.0.0.9:80", "a.test@10.0.0.2:80"]);
        assert_eq!(names(&again(Known::default())), ["10.0.0.9:80"]);
    }

    #[test]
    fn what_was_added_comes_last_and_each_server_once() {
        let at = |last: u8| SocketAddr::from(([10, 0, 0, last], 80));
        let server = |last| ServerPlan::new(&at(last).to_string(), at(last));
        let written = written(UpstreamPlan { servers: vec![server(1)], ..UpstreamPlan::default() });
        let temporary = [
            ("app".to_owned(), vec![server(1), server(2), server(3)]),
            ("other".to_owned(), vec![server(4)]),
        ];
        let known = Known { temporary: temporary.into(), ..known(&[], &[server(2)]) };
        let plan = &written.located(&known).upstreams[0];
        assert_eq!(names(plan), ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]);
        let told = |server: &ServerPlan| (server.found, server.temporary);
        assert_eq!(
            plan.servers.iter().map(told).collect::<Vec<_>>(),
            [(false, false), (true, false), (true, true)]
        );
    }

    #[test]
    fn an_upstream_without_servers_has_one_that_gets_nothing() {
        let named = UpstreamPlan {
            servers: vec![ServerPlan::new("a.test:80", UNLOCATED)],
            ..UpstreamPlan::default()
        };
        for plan in [named, UpstreamPlan::default()] {
            let plan = &written(plan).located(&Known::default()).upstreams[0];
            assert_eq!(
                (plan.servers.len(), plan.present().count(), plan.is_retired()),
                (1, 0, false)
            );
        }
    }
}
