//! Which upstream serves a request, or that weir answers it itself: listener, scheme, host, path
//! and method against a compiled table.
//!
//! Built by weir-config, read by the engine for each request (never remembered between two requests
//! of a connection, docs/hostile-requests.md C5). Calls [`path`] for the normalised form of unusual
//! paths. Bound: one pass over the path, then one search in a sorted list for each segment of it,
//! and no more segments than the longest configured path has bytes. RFC 9110 §4.2.3 (equivalent
//! URIs), RFC 3986 §6.2.2.

pub mod path;

#[cfg(test)]
mod readings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use path::PathError;
use weir_http::Fields;

use crate::request::own_answer::OwnAnswer;
use crate::request::rules::RouteRules;
use crate::request::rules::matching::{Condition, Subject};
use crate::request::rules::split::Split;

/// Longest host name that can match; DNS allows 255 bytes (RFC 1035 §2.3.4).
pub(crate) const HOST_BYTES_MAX: usize = 255;

/// The hosts that a route is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HostMatch {
    /// All, including a request without a host (HTTP/1.0).
    Any,
    /// This name, without port.
    Exact(String),
    /// Every name below a domain, written `*.example.org`; not the domain itself.
    Suffix(String),
}

/// The scheme of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// HTTP without TLS.
    Http,
    /// HTTP over TLS.
    Https,
}

/// What answers a request.
#[derive(Debug, Clone)]
pub enum Target {
    /// The upstream of this index in the plan.
    Upstream(usize),
    /// One of several, by share.
    Split(Arc<Split>),
    /// Weir itself.
    Here(Arc<OwnAnswer>),
}

impl Target {
    /// The index of the upstream, if it is one.
    pub fn upstream(&self) -> Option<usize> {
        match self {
            Target::Upstream(upstream) => Some(*upstream),
            Target::Split(_) | Target::Here(_) => None,
        }
    }

    /// The indices of all upstreams that it may lead to.
    pub fn upstreams(&self) -> impl Iterator<Item = usize> {
        let split = match self {
            Target::Split(split) => Some(split.upstreams()),
            Target::Upstream(_) | Target::Here(_) => None,
        };
        self.upstream().into_iter().chain(split.into_iter().flatten())
    }
}

/// One line of the configuration.
#[derive(Debug, Clone)]
pub struct Route {
    /// The listeners of its clients, as indices in the plan; none: all.
    pub listeners: Vec<usize>,
    /// The scheme of clients towards weir; None: any.
    pub scheme: Option<Scheme>,
    /// The hosts. Compared without case and without a final dot.
    pub host: HostMatch,
    /// A prefix on a segment boundary: `/a` matches `/a`, `/a/x`, `/a?x`, not `/ab`; `/` matches
    /// all. Written decoded (`/café`, not `/caf%C3%A9`) and compared with case.
    pub path: String,
    /// The path alone, without what is below it.
    pub exact: bool,
    /// Methods, compared with case (RFC 9110 §9.1); None: all.
    pub methods: Option<Vec<String>>,
    /// Further conditions that a request has to meet: all of them.
    pub conditions: Vec<Condition>,
    /// What answers its requests.
    pub target: Target,
    /// Changes to its requests and their responses; None: none.
    pub rules: Option<Arc<RouteRules>>,
}

impl Default for Route {
    /// Routes everything to the first upstream.
    fn default() -> Route {
        let (host, path) = (HostMatch::Any, "/".to_owned());
        let target = Target::Upstream(0);
        Route {
            listeners: Vec::new(),
            scheme: None,
            host,
            path,
            exact: false,
            methods: None,
            conditions: Vec::new(),
            target,
            rules: None,
        }
    }
}

/// The properties of a request that decide its route.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The listener of its client, as an index in the plan; None: it has none that routes name.
    pub listener: Option<usize>,
    /// Its client speaks TLS.
    pub sealed: bool,
    /// The authority: any case, possibly with a port.
    pub host: &'a [u8],
    /// Path and query as received; an asterisk or nothing counts as `/`.
    pub path: &'a [u8],
    /// The method.
    pub method: &'a [u8],
    /// Its fields.
    pub fields: &'a Fields,
    /// The bytes that the spans of `fields` point into.
    pub bytes: &'a [u8],
}

/// The result of routing a request.
#[derive(Debug, Clone)]
pub struct Routed {
    /// What answers.
    pub target: Target,
    /// Changes to it and its response; None: none.
    pub rules: Option<Arc<RouteRules>>,
}

/// All routes, compiled for lookup.
///
/// The most specific route wins: one for the client's listener before those for any; then one for
/// the client's scheme; then exact host before longest suffix before any; then the longest path;
/// then this path alone before those below it as well; then one with methods before one without;
/// then the one with more conditions; then the first in order. A route of a more specific host that
/// doesn't match otherwise leaves the request to less specific hosts, one of its scheme to those of
/// any, and one of its listener to those of any.
#[derive(Debug, Clone, Default)]
pub struct RouteTable {
    /// For the clients of all listeners.
    all: Schemes,
    /// Only for the clients of one listener.
    of_listener: BTreeMap<usize, Schemes>,
    /// The result, when the table is a single route for everything.
    only: Option<Routed>,
    /// Whether any route has a path, or rules that change paths.
    reads_paths: bool,
}

/// The position of each host's group among those of its scheme; true: of a suffix.
type Places = BTreeMap<(bool, Vec<u8>), usize>;

/// The routes of one listener, or of all.
#[derive(Debug, Clone, Default)]
struct Schemes {
    /// For all clients.
    all: Hosts,
    /// Only for clients without TLS, and only for those with.
    of_scheme: [Hosts; 2],
}

/// The routes of one scheme.
#[derive(Debug, Clone, Default)]
struct Hosts {
    /// Sorted by name.
    exact: Vec<(Box<[u8]>, Group)>,
    /// With the leading dot, longest first.
    suffixes: Vec<(Box<[u8]>, Group)>,
    any: Group,
}

/// The routes of one host.
#[derive(Debug, Clone, Default)]
struct Group {
    /// Sorted by path, then those for it alone first, then those with methods, then by number of
    /// conditions, then as configured.
    entries: Vec<Entry>,
    /// Longest path in `entries`.
    path_bytes_max: usize,
}

#[derive(Debug, Clone)]
struct Entry {
    path: Box<[u8]>,
    exact: bool,
    methods: Option<Box<[Box<[u8]>]>>,
    conditions: Vec<Condition>,
    to: Routed,
}

impl RouteTable {
    /// Compiles routes; their order decides only between equally specific ones.
    pub fn new(routes: Vec<Route>) -> RouteTable {
        let mut table = RouteTable::default();
        let mut places: BTreeMap<(Option<usize>, usize), Places> = BTreeMap::new();
        for route in routes {
            let Route { listeners, scheme, host, path, exact, methods, conditions, target, rules } =
                route;
            let methods =
                methods.map(|all| all.into_iter().map(|one| one.into_bytes().into()).collect());
            let entry = Entry {
                path: path.into_bytes().into(),
                exact,
                methods,
                conditions,
                to: Routed { target, rules },
            };
            let at = scheme.map_or(0, |scheme| scheme as usize + 1);
            let any = listeners.is_empty().then_some(None);
            for listener in any.into_iter().chain(listeners.into_iter().map(Some)) {
                let places = places.entry((listener, at)).or_default();
                let hosts = table.schemes_mut(listener).hosts_mut(scheme);
                hosts.group_mut(&host, places).entries.push(entry.clone());
            }
        }
        let reads_paths = table.entries().any(Entry::reads_path);
        table.reads_paths = reads_paths;
        table.all_hosts_mut().for_each(Hosts::compile);
        table.only = table.only_entry().map(|entry| entry.to.clone());
        table
    }

    /// Whether no route exists.
    pub fn is_empty(&self) -> bool {
        self.entries().next().is_none()
    }

    /// The rules of each route, in no order.
    pub fn rules(&self) -> impl Iterator<Item = &RouteRules> {
        self.entries().filter_map(|entry| entry.to.rules.as_deref())
    }

    /// Whether the handling of a request depends on its path.
    #[inline]
    pub fn reads_paths(&self) -> bool {
        self.reads_paths
    }

    /// Whether it depends on the listener of its client.
    #[inline]
    pub fn reads_listeners(&self) -> bool {
        !self.of_listener.is_empty()
    }

    /// The entry of a table that is a single route for everything.
    fn only_entry(&self) -> Option<&Entry> {
        let is_alone = self.entries().nth(1).is_none();
        let only = self.all.all.any.entries.first().filter(|_| is_alone)?;
        only.takes_everything().then_some(only)
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        let schemes = std::iter::once(&self.all).chain(self.of_listener.values());
        let hosts = schemes.flat_map(|one| std::iter::once(&one.all).chain(&one.of_scheme));
        hosts.flat_map(Hosts::groups).flat_map(|group| &group.entries)
    }

    /// Replaces each upstream by the entry at its index in this list.
    pub fn retarget(&mut self, upstreams: &[usize]) {
        let renumber = |to: &mut Routed| match &mut to.target {
            Target::Upstream(upstream) => *upstream = upstreams[*upstream],
            Target::Split(split) => *split = Arc::new(split.retargeted(upstreams)),
            Target::Here(_) => {}
        };
        let entries =
            self.all_hosts_mut().flat_map(Hosts::groups_mut).flat_map(|group| &mut group.entries);
        entries.map(|entry| &mut entry.to).for_each(renumber);
        self.only.iter_mut().for_each(renumber);
    }

    fn schemes_mut(&mut self, listener: Option<usize>) -> &mut Schemes {
        match listener {
            None => &mut self.all,
            Some(listener) => self.of_listener.entry(listener).or_default(),
        }
    }

    fn all_hosts_mut(&mut self) -> impl Iterator<Item = &mut Hosts> {
        let schemes = std::iter::once(&mut self.all).chain(self.of_listener.values_mut());
        schemes.flat_map(|one| std::iter::once(&mut one.all).chain(&mut one.of_scheme))
    }

    /// Returns the target of the most specific route, or None. `scratch` is reused between calls
    /// for paths that need normalising.
    ///
    /// # Errors
    /// [`PathError`] (the client's fault, 400) when the path is ambiguous. It doesn't depend on the
    /// routes.
    pub fn find(
        &self,
        asked: &Asked<'_>,
        scratch: &mut Vec<u8>,
    ) -> Result<Option<&Routed>, PathError> {
        if self.only.is_some() {
            path::check(asked.path, scratch)?;
            return Ok(self.only.as_ref());
        }
        let path = path::normalised(asked.path, scratch)?;
        let own = asked.listener.and_then(|listener| self.of_listener.get(&listener));
        let own = own.and_then(|schemes| schemes.find(path, asked));
        Ok(own.or_else(|| self.all.find(path, asked)))
    }
}

impl Schemes {
    fn hosts_mut(&mut self, scheme: Option<Scheme>) -> &mut Hosts {
        match scheme {
            None => &mut self.all,
            Some(scheme) => &mut self.of_scheme[scheme as usize],
        }
    }

    /// Returns the target of the most specific route. The path is normalised.
    fn find(&self, path: &[u8], asked: &Asked<'_>) -> Option<&Routed> {
        let of_scheme = &self.of_scheme[usize::from(asked.sealed)];
        of_scheme.find(path, asked).or_else(|| self.all.find(path, asked))
    }
}

impl Hosts {
    fn compile(&mut self) {
        self.exact.sort_by(|a, b| a.0.cmp(&b.0));
        self.suffixes.sort_by_key(|(suffix, _)| std::cmp::Reverse(suffix.len()));
        self.groups_mut().for_each(Group::compile);
    }

    fn groups(&self) -> impl Iterator<Item = &Group> {
        self.exact.iter().chain(&self.suffixes).map(|(_, group)| group).chain([&self.any])
    }

    fn groups_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        self.exact
            .iter_mut()
            .chain(&mut self.suffixes)
            .map(|(_, group)| group)
            .chain([&mut self.any])
    }

    /// Returns the target of the most specific route. The path is normalised.
    fn find(&self, path: &[u8], asked: &Asked<'_>) -> Option<&Routed> {
        if self.has_hosts() {
            let mut buffer = [0; HOST_BYTES_MAX];
            if let Some(host) = bare_host(asked.host, &mut buffer)
                && let Some(to) = self.find_by_host(host, path, asked)
            {
                return Some(to);
            }
        }
        self.any.find(path, asked)
    }

    fn has_hosts(&self) -> bool {
        !self.exact.is_empty() || !self.suffixes.is_empty()
    }

    /// Looks among the routes that name hosts.
    fn find_by_host(&self, host: &[u8], path: &[u8], asked: &Asked<'_>) -> Option<&Routed> {
        if let Ok(at) = self.exact.binary_search_by(|(name, _)| (**name).cmp(host))
            && let Some(to) = self.exact[at].1.find(path, asked)
        {
            return Some(to);
        }
        let below = |suffix: &[u8]| host.len() > suffix.len() && host.ends_with(suffix);
        let mut groups = self.suffixes.iter().filter(|(suffix, _)| below(suffix));
        groups.find_map(|(_, group)| group.find(path, asked))
    }

    /// Returns the group of a host, created when missing. Only while compiling: `places` has the
    /// position of each group.
    fn group_mut(&mut self, host: &HostMatch, places: &mut Places) -> &mut Group {
        let (list, name) = match host {
            HostMatch::Any => return &mut self.any,
            HostMatch::Exact(name) => (&mut self.exact, name.as_str()),
            HostMatch::Suffix(name) => (&mut self.suffixes, name.trim_start_matches('*')),
        };
        let name = name.trim_end_matches('.').to_ascii_lowercase().into_bytes();
        let is_suffix = matches!(host, HostMatch::Suffix(_));
        let at = *places.entry((is_suffix, name)).or_insert_with_key(|(_, name)| {
            list.push((name.clone().into(), Group::default()));
            list.len() - 1
        });
        &mut list[at].1
    }
}

impl Group {
    fn compile(&mut self) {
        // A stable sort: equal ones remain as configured.
        let rank = |entry: &Entry| (entry.exact, entry.methods.is_some(), entry.conditions.len());
        self.entries.sort_by(|a, b| a.path.cmp(&b.path).then(rank(b).cmp(&rank(a))));
        self.path_bytes_max = self.entries.iter().map(|entry| entry.path.len()).max().unwrap_or(0);
    }

    /// Tries every prefix of the path that ends on a segment boundary, longest first.
    fn find(&self, path: &[u8], asked: &Asked<'_>) -> Option<&Routed> {
        if self.entries.is_empty() {
            return None;
        }
        if path.len() <= self.path_bytes_max
            && let Some(to) = self.at(path.len(), path, asked)
        {
            return Some(to);
        }
        for end in (0..path.len().min(self.path_bytes_max + 1)).rev().filter(|&at| path[at] == b'/')
        {
            let found = self.at(end + 1, path, asked).or_else(|| self.at(end, path, asked));
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// The first entry with these first bytes of the path that accepts the request.
    fn at(&self, bytes: usize, path: &[u8], asked: &Asked<'_>) -> Option<&Routed> {
        let prefix = &path[..bytes];
        let first = self.entries.partition_point(|entry| *entry.path < *prefix);
        let mut same = self.entries[first..].iter().take_while(|entry| *entry.path == *prefix);
        same.find(|entry| entry.takes(path, asked)).map(|entry| &entry.to)
    }
}

impl Entry {
    /// Whether it accepts a request whose normalised path begins with its own.
    fn takes(&self, path: &[u8], asked: &Asked<'_>) -> bool {
        let methods = self.methods.as_ref();
        (!self.exact || self.path.len() == path.len())
            && methods.is_none_or(|methods| methods.iter().any(|one| **one == *asked.method))
            && self.conditions.iter().all(|one| one.is_met(path, asked))
    }

    fn reads_path(&self) -> bool {
        let of_path = |one: &Condition| one.subject == Subject::Path;
        *self.path != *b"/"
            || self.exact
            || self.conditions.iter().any(of_path)
            || self.to.rules.as_ref().is_some_and(|rules| !rules.path.is_empty())
    }

    fn takes_everything(&self) -> bool {
        *self.path == *b"/" && !self.exact && self.methods.is_none() && self.conditions.is_empty()
    }
}

/// The host of an authority in lower case, without port and final dot. None when it is too long to
/// be any name.
pub(crate) fn bare_host<'a>(
    authority: &[u8],
    buffer: &'a mut [u8; HOST_BYTES_MAX],
) -> Option<&'a [u8]> {
    // In `[::1]:80` only what follows the bracket can be a port.
    let from = authority.iter().position(|&byte| byte == b']').unwrap_or(0);
    let end = authority[from..]
        .iter()
        .position(|&byte| byte == b':')
        .map_or(authority.len(), |at| from + at);
    let host = authority[..end].strip_suffix(b".").unwrap_or(&authority[..end]);
    let lower = buffer.get_mut(..host.len())?;
    lower.copy_from_slice(host);
    lower.make_ascii_lowercase();
    Some(lower)
}
