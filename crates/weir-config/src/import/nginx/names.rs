//! The hosts of each server at each of its addresses.
//!
//! The first server with a name at an address has it there. The default server of an address also
//! has all hosts that no other one names.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::super::order::covers_host;
use super::super::tree::Tree;
use super::listens;
use crate::texts;

/// A host of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: String,
    /// The addresses at which it has the host, as texts; empty: all of its own.
    pub(super) at: Vec<String>,
}

/// All names.
pub(super) struct Names {
    /// The default server of each address.
    pub(super) defaults: BTreeMap<String, usize>,
    /// The server that has a name at an address.
    owners: HashMap<(String, String), usize>,
    /// Names that begin with `*`, at each address.
    domains: HashMap<String, Vec<String>>,
    /// Addresses where some server has names that routes cannot express.
    unsaid: HashSet<String>,
}

impl Names {
    pub(super) fn new(tree: &Tree, servers: &[usize], defaults: BTreeMap<String, usize>) -> Names {
        let (owners, domains, unsaid) = (HashMap::new(), HashMap::new(), HashSet::new());
        let mut names = Names { defaults, owners, domains, unsaid };
        for at in servers {
            let (hosts, others) = hosts(tree, *at);
            for (place, _) in listens(tree, *at) {
                for host in &hosts {
                    names.owners.entry((place.clone(), host.clone())).or_insert(*at);
                    if host.starts_with('*') {
                        names.domains.entry(place.clone()).or_default().push(host.clone());
                    }
                }
                if !others.is_empty() && names.defaults.get(&place) != Some(at) {
                    names.unsaid.insert(place);
                }
            }
        }
        names
    }

    /// Returns the hosts of a server, and its names that other servers have at all its addresses.
    pub(super) fn of(&self, tree: &Tree, at: usize) -> (Vec<Host>, Vec<String>) {
        let places: Vec<String> = listens(tree, at).into_iter().map(|(place, _)| place).collect();
        let is_default = |place: &&String| self.defaults.get(*place) == Some(&at);
        let (mut found, mut gone) = (Vec::new(), Vec::new());
        for name in hosts(tree, at).0 {
            let owns =
                |place: &&String| self.owners.get(&((*place).clone(), name.clone())) == Some(&at);
            let own: Vec<String> = places.iter().filter(owns).cloned().collect();
            if own.is_empty() {
                gone.push(name);
                continue;
            }
            // A default server has the name anyway, unless the domain of another one has it.
            let is_needed = |place: &String| {
                let domains = self.domains.get(place).map_or(&[][..], Vec::as_slice);
                self.defaults.get(place) != Some(&at)
                    || self.around(place).is_some()
                    || domains.iter().any(|domain| *domain != name && covers_host(domain, &name))
            };
            let needed: Vec<String> = own.into_iter().filter(is_needed).collect();
            if !needed.is_empty() {
                found.push(Host { name, at: all_or(needed, &places) });
            }
        }
        let default: Vec<String> = places.iter().filter(is_default).cloned().collect();
        if !default.is_empty() {
            found.push(Host { name: "*".to_owned(), at: all_or(default, &places) });
        }
        (found, gone)
    }

    /// Returns the address for all of a port, where other servers listen, if this one is part of
    /// it. weir has one listener for both.
    pub(super) fn around(&self, place: &str) -> Option<String> {
        let (_, port) = place.rsplit_once(':').filter(|_| !place.starts_with("unix:"))?;
        let wide = if place.starts_with('[') { "[::]" } else { "0.0.0.0" };
        let wide = format!("{wide}:{port}");
        (wide != place && self.defaults.contains_key(&wide)).then_some(wide)
    }

    /// Returns the server that has a name at an address.
    pub(super) fn owner(&self, place: &str, name: &str) -> Option<usize> {
        self.owners.get(&(place.to_owned(), name.to_owned())).copied()
    }

    /// Whether some of the unknown hosts of a default server are those of another one.
    pub(super) fn has_unsaid(&self, tree: &Tree, at: usize) -> bool {
        listens(tree, at)
            .iter()
            .any(|(place, _)| self.unsaid.contains(place) && self.defaults.get(place) == Some(&at))
    }
}

fn all_or(some: Vec<String>, all: &[String]) -> Vec<String> {
    if some.len() == all.len() { Vec::new() } else { some }
}

/// Returns the names of a server as weir writes them, and those that weir cannot express.
pub(super) fn hosts(tree: &Tree, at: usize) -> (Vec<String>, Vec<(usize, String)>) {
    let (mut found, mut others) = (Vec::new(), Vec::new());
    for node in tree.indices(at, "server_name") {
        let names = tree.nodes[*node].arguments().filter(|name| !matches!(*name, "" | "_"));
        for name in names {
            let both = match name.strip_prefix('.') {
                Some(domain) => vec![domain.to_owned(), format!("*.{domain}")],
                None => vec![name.to_owned()],
            };
            for name in both {
                match texts::host_pattern(&name) {
                    Ok(host) if !name.starts_with('~') && !found.contains(&host) => {
                        found.push(host);
                    }
                    Ok(_) if !name.starts_with('~') => {}
                    _ => others.push((*node, name)),
                }
            }
        }
    }
    (found, others)
}
