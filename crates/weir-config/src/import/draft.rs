//! The configuration under construction: each dialect fills it, and `write` writes it.
//!
//! Every value is checked by the functions of the option table when it arrives; a refusal becomes a
//! note with the reason. So the written configuration is valid. A route is for the listeners of its
//! group; [`Draft::finish`] settles how that is written.

use std::collections::{BTreeMap, BTreeSet};

use weir_proxy::plan::Location;
use weir_proxy::request::rules::edits::{Side, refusal};

use super::limits::Limits;
use super::missing::Missing;
use super::notes::{Draw, Kind, NOTES_MAX, Note, short};
use super::order::{covers_host, same};
use super::own_answer::Answer;
use super::route::{Edit, Route, Scheme, To};
use super::tcp::{self, Tcp};
use super::tree::{Node, Place, Sources};
use super::{Dialect, write};
use crate::compile::is_same_place;
use crate::reverse::literal;
use crate::texts;
use crate::units::{size_text, time_text};

/// Listeners, groups of servers, servers of one, routes: the compiler takes no more.
pub(super) const BLOCKS_MAX: usize = 10_000;

/// Neighbours of a route that are compared with it, where it may be one with them.
const MERGED_MAX: usize = 8;

/// A set of addresses with the service there: a `server` of nginx, a frontend, a site.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) place: Place,
    pub(super) what: String,
    /// Indices of [`Draft::listens`].
    pub(super) listens: Vec<usize>,
}

/// An address that clients connect to.
#[derive(Debug)]
pub(super) struct Listen {
    pub(super) place: Place,
    pub(super) address: Location,
    /// `mode` and `group` of a unix socket, as they are written.
    pub(super) rights: BTreeMap<&'static str, String>,
    pub(super) tls: Option<ListenTls>,
}

/// TLS with its clients.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ListenTls {
    /// Certificate and key.
    pub(super) certificates: Vec<(String, Option<String>)>,
    /// Other options, as they are written.
    pub(super) options: BTreeMap<&'static str, String>,
}

/// A group of servers.
#[derive(Debug, Default)]
pub(super) struct Upstream {
    pub(super) place: Place,
    pub(super) name: String,
    pub(super) amounts: Amounts,
    /// Other lines, as they are written.
    pub(super) lines: Vec<String>,
    /// Options of `tls`, as they are written; None: no TLS.
    pub(super) tls: Option<BTreeMap<&'static str, String>>,
    pub(super) servers: Vec<Server>,
    /// It serves connections without parsing, and no requests.
    pub(super) is_tcp: bool,
}

/// A server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) place: Place,
    pub(super) address: String,
    /// In the dialect's units; 0: not set.
    pub(super) weight: u64,
    pub(super) backup: bool,
    /// Most connections.
    pub(super) connections: Option<u64>,
}

/// Times (microseconds) and sizes (bytes) of `client` or an upstream. The largest of several holds,
/// because other programs have one for each place.
#[derive(Debug, Default)]
pub(super) struct Amounts(BTreeMap<&'static str, (u64, Place)>);

impl Amounts {
    /// Returns what was set.
    pub(super) fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).map(|(amount, _)| *amount)
    }

    /// Returns the lines as they are written, with their origins.
    pub(super) fn lines(&self) -> impl Iterator<Item = (String, Place)> {
        self.0.iter().map(|(name, (amount, place))| {
            let text = match (is_size(name), *amount) {
                (true, u64::MAX) => "unlimited".to_owned(),
                (true, bytes) => size_text(bytes),
                (false, us) => time_text(us),
            };
            (format!("{name} \"{text}\""), *place)
        })
    }
}

fn is_size(name: &str) -> bool {
    matches!(name, "body-limit" | "line-limit" | "head-limit")
}

/// Returns the range in the option table.
fn range(name: &str) -> (u64, u64) {
    match name {
        "body-limit" => (0, 1 << 40),
        "line-limit" => (64, 1 << 20),
        "head-limit" => (256, 1 << 20),
        "delay" => (0, 3_600_000_000),
        "drain" => (0, 86_400_000_000),
        _ => (1_000, 86_400_000_000),
    }
}

/// The whole draft.
pub(super) struct Draft<'a> {
    pub(super) sources: Sources<'a>,
    pub(super) groups: Vec<Group>,
    pub(super) listens: Vec<Listen>,
    pub(super) upstreams: Vec<Upstream>,
    pub(super) routes: Vec<Route>,
    /// Responses of weir itself, each once.
    pub(super) answers: Vec<Answer>,
    /// Connections that are passed on unchanged.
    pub(super) tcps: Vec<Tcp>,
    /// Names for them that were examined, for a bound.
    pub(super) tcp_names: usize,
    /// Limits for each client.
    pub(super) limits: Limits,
    /// `client`.
    pub(super) client: Amounts,
    /// `shutdown`.
    pub(super) shutdown: Amounts,
    /// Other lines of `client`, as they are written.
    pub(super) client_lines: BTreeMap<&'static str, (String, Place)>,
    /// `access-log`, as it is written.
    pub(super) log: Option<(String, Place)>,
    /// Names of upstreams, each with the last number of a similar one.
    upstream_names: BTreeMap<String, u64>,
    draws: Vec<Draw>,
    dropped: usize,
    unneeded: BTreeSet<String>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(sources: Sources<'a>) -> Draft<'a> {
        Draft {
            sources,
            groups: Vec::new(),
            listens: Vec::new(),
            upstreams: Vec::new(),
            routes: Vec::new(),
            answers: Vec::new(),
            tcps: Vec::new(),
            tcp_names: 0,
            limits: Limits::default(),
            client: Amounts::default(),
            shutdown: Amounts::default(),
            client_lines: BTreeMap::new(),
            log: None,
            upstream_names: BTreeMap::new(),
            draws: Vec::new(),
            dropped: 0,
            unneeded: BTreeSet::new(),
        }
    }

    /// Adds a note about a directive.
    pub(super) fn note(&mut self, place: Place, kind: Kind, what: &str, why: impl Into<String>) {
        let draw = Draw { place, kind, what: short(what), why: why.into() };
        if self.draws.contains(&draw) {
            return;
        }
        if self.draws.len() < NOTES_MAX { self.draws.push(draw) } else { self.dropped += 1 }
    }

    /// Notes a directive that was dropped.
    pub(super) fn lost(&mut self, node: &Node, why: impl Into<String>) {
        self.note(node.place, Kind::Lost, &node.shown(), why);
    }

    pub(super) fn missing(&mut self, node: &Node, what: Missing) {
        self.lost(node, what.why());
    }

    pub(super) fn different(&mut self, node: &Node, why: impl Into<String>) {
        self.note(node.place, Kind::Different, &node.shown(), why);
    }

    /// Notes a difference that may occur in many places, once.
    pub(super) fn different_once(&mut self, node: &Node, why: &str) {
        if !self.draws.iter().any(|draw| draw.why == why) {
            self.different(node, why);
        }
    }

    /// Notes a directive whose purpose weir fulfils by default.
    pub(super) fn unneeded(&mut self, name: &str) {
        if self.unneeded.len() < NOTES_MAX {
            self.unneeded.insert(short(name));
        }
    }

    /// Sets the destination of the access log; weir has one.
    pub(super) fn access_log(&mut self, node: &Node, path: &str, options: &str) {
        let path = match path {
            "stdout" => path.to_owned(),
            path => self.sources.beside(path),
        };
        let path = match texts::log_destination(&path) {
            Ok(path) => path,
            Err(why) => return self.lost(node, why),
        };
        let log = format!("access-log {}{options}", literal(&path));
        match &self.log {
            None => self.log = Some((log, node.place)),
            Some((other, _)) if *other == log => {}
            Some(_) => {
                self.lost(node, "weir has one log, for all requests, and uses the first one")
            }
        }
    }

    pub(super) fn group(&mut self, place: Place, what: &str) -> usize {
        self.groups.push(Group { place, what: what.to_owned(), ..Group::default() });
        self.groups.len() - 1
    }

    /// Adds an address of a group, joined with an existing one at the same place.
    pub(super) fn listen(
        &mut self,
        group: usize,
        node: &Node,
        address: &str,
        tls: Option<ListenTls>,
    ) {
        let address = match texts::listener(address).map(|text| Location::read(&text)) {
            Ok(Some(address)) => address,
            Ok(None) => return,
            Err(why) => return self.lost(node, why),
        };
        let other = self.listens.iter().position(|other| is_same_place(&other.address, &address));
        let Some(at) = other else {
            if self.listens.len() >= BLOCKS_MAX {
                return self.lost(node, format!("weir takes at most {BLOCKS_MAX} listeners"));
            }
            self.listens.push(Listen { place: node.place, address, rights: BTreeMap::new(), tls });
            self.groups[group].listens.push(self.listens.len() - 1);
            return;
        };
        let listen = &mut self.listens[at];
        let mut conflict = None;
        if listen.address != address {
            let is_wild =
                |one: &Location| one.network().is_some_and(|address| address.ip().is_unspecified());
            if is_wild(&listen.address) != is_wild(&address) {
                let why = format!(
                    "weir cannot listen on it beside `{}`: its clients are not served here",
                    listen.address
                );
                return self.note(node.place, Kind::Closed, &node.shown(), why);
            }
            conflict =
                Some(format!("`{}` and `{address}` become one listener in weir", listen.address));
        }
        match (&mut listen.tls, tls) {
            (Some(ours), Some(theirs)) => {
                ours.certificates.extend(theirs.certificates);
                let mut seen = BTreeSet::new();
                ours.certificates.retain(|pair| seen.insert(pair.clone()));
                // If one name requires a certificate, all must: the other way no client would have
                // to show one.
                if ours.options.get("client-auth") != theirs.options.get("client-auth") {
                    conflict = Some(
                        "weir asks all clients of an address for certificates, or none; now it \
                            asks all"
                            .to_owned(),
                    );
                    if theirs
                        .options
                        .get("client-auth")
                        .is_some_and(|auth| auth.contains("require"))
                    {
                        ours.options.extend(theirs.options.clone());
                    }
                }
                for (name, value) in theirs.options {
                    if ours.options.entry(name).or_insert_with(|| value.clone()) != &value {
                        conflict = Some(format!(
                            "weir's `{name}` applies to all names of an address; weir uses the \
                                first one"
                        ));
                    }
                }
            }
            (None, None) => {}
            (ours, theirs) => {
                conflict =
                    Some(format!("`{address}` occurs with and without TLS; weir uses it with TLS"));
                *ours = ours.take().or(theirs);
            }
        }
        if !self.groups[group].listens.contains(&at) {
            self.groups[group].listens.push(at);
        }
        if let Some(why) = conflict {
            self.different(node, why);
        }
    }

    /// Adds a group of servers, with a unique name that resembles this one.
    pub(super) fn upstream(&mut self, place: Place, name: &str) -> usize {
        let fine = |c: char| {
            if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' }
        };
        let mut base: String = name.chars().map(fine).take(48).collect();
        if base.is_empty() || base == write::CLOSED_TCP {
            base.push_str("app");
        }
        let mut name = base.clone();
        let mut number = self.upstream_names.get(&base).copied().unwrap_or(1);
        while self.upstream_names.contains_key(&name) {
            number += 1;
            name = format!("{base}-{number}");
        }
        self.upstream_names.insert(base, number);
        self.upstream_names.insert(name.clone(), 1);
        self.upstreams.push(Upstream { place, name, ..Upstream::default() });
        self.upstreams.len() - 1
    }

    /// Adds a server, unless its address is invalid.
    pub(super) fn server(&mut self, upstream: usize, node: &Node, mut server: Server) {
        match texts::server_address(&server.address) {
            Ok(address)
                if self.upstreams[upstream]
                    .servers
                    .iter()
                    .any(|other| other.address == address) =>
            {
                self.lost(node, "this server is already in the group");
            }
            Ok(_) if self.upstreams[upstream].servers.len() >= BLOCKS_MAX => {
                self.lost(node, format!("weir takes at most {BLOCKS_MAX} servers of one upstream"));
            }
            Ok(address) => {
                server.address = address;
                self.upstreams[upstream].servers.push(server);
            }
            Err(why) => self.lost(node, why),
        }
    }

    /// Makes connections to a group of servers begin with a PROXY protocol header.
    pub(super) fn announce(&mut self, upstream: usize, node: &Node, version: &str) {
        let ours = &mut self.upstreams[upstream];
        ours.lines.push(format!("proxy-protocol \"{version}\""));
        ours.servers.iter_mut().for_each(|server| server.connections = None);
        self.different(
            node,
            "weir opens separate connections for each client, without a limit, and with HTTP/1.1",
        );
    }

    /// Sets a time of a dialect in which 0 sets no limit; otherwise as [`Draft::amount`].
    pub(super) fn time_limit(
        &mut self,
        upstream: Option<usize>,
        node: &Node,
        name: &'static str,
        us: u64,
    ) {
        if us > 0 {
            return self.amount(upstream, node, name, us);
        }
        let (_, most) = range(name);
        // The note is the same for each option that the directive becomes, so that it occurs once.
        self.different(node, format!("0 means no limit there; weir uses {}", time_text(most)));
        self.amount(upstream, node, name, most);
    }

    /// Sets a time or size of an upstream, or of `client` if none is named.
    pub(super) fn amount(
        &mut self,
        upstream: Option<usize>,
        node: &Node,
        name: &'static str,
        amount: u64,
    ) {
        let (least, most) = range(name);
        let unlimited = amount == u64::MAX && name == "body-limit";
        let fit = if unlimited { amount } else { amount.clamp(least, most) };
        if fit != amount {
            self.different(node, format!("`{name}` has the nearest value that weir allows"));
        }
        let amounts = match (upstream, name) {
            (Some(upstream), _) => &mut self.upstreams[upstream].amounts,
            (None, "delay" | "drain") => &mut self.shutdown,
            (None, _) => &mut self.client,
        };
        let (old, place) = *amounts.0.entry(name).or_insert((fit, node.place));
        if old == fit {
            return;
        }
        amounts.0.insert(name, if fit > old { (fit, node.place) } else { (old, place) });
        let whose = if upstream.is_some() { "a group of servers" } else { "all clients" };
        self.different(node, format!("weir has one `{name}` for {whose}, and uses the largest"));
    }

    /// Returns a change of a field, if rules may make it. `value` has `$names`. A field of a
    /// request whose value weir cannot express is removed: the source replaced that of the client.
    pub(super) fn edit(
        &mut self,
        node: &Node,
        side: Side,
        verb: &'static str,
        (name, value): (&str, &str),
    ) -> Option<Edit> {
        let removes = verb == "remove";
        let why = texts::route::field(name).err();
        let why = why.or_else(|| refusal(name, side, !removes).map(str::to_owned));
        let why = why.or_else(|| if removes { None } else { texts::route::text(value).err() });
        if let Some(why) = why {
            let is_forgeable = matches!(side, Side::Request) && verb == "set";
            if is_forgeable
                && texts::route::field(name).is_ok()
                && refusal(name, side, false).is_none()
            {
                let why = format!("{why}; weir removes `{name}`, so that clients cannot set it");
                self.different(node, why);
                return Some(Edit { verb: "remove", name: name.to_owned(), value: String::new() });
            }
            self.lost(node, why);
            return None;
        }
        Some(Edit { verb, name: name.to_owned(), value: value.to_owned() })
    }

    /// Whether the maximum of routes is reached.
    pub(super) fn is_full(&self) -> bool {
        self.routes.len() >= BLOCKS_MAX
    }

    /// Returns the listeners of a route.
    pub(super) fn listens_of(&self, route: &Route) -> Vec<usize> {
        let all: BTreeSet<usize> = self.named_by(route).iter().copied().collect();
        all.into_iter().filter(|at| self.is_at(route, *at)).collect()
    }

    /// Whether a route is for the clients of a listener.
    fn is_at(&self, route: &Route, at: usize) -> bool {
        let scheme = Scheme::of(self.listens[at].tls.is_some());
        route.scheme.is_none_or(|one| one == scheme) && self.named_by(route).contains(&at)
    }

    fn named_by<'r>(&'r self, route: &'r Route) -> &'r [usize] {
        let own = &route.listens;
        if own.is_empty() { &self.groups[route.group].listens } else { own }
    }

    /// Adds a route, unless the table refuses it or an earlier one takes all of its requests.
    pub(super) fn route(&mut self, route: Route) {
        if self.is_full() {
            let why = format!("weir takes at most {BLOCKS_MAX} routes");
            return self.note(route.place, Kind::Lost, &route.what, why);
        }
        let mut why = route.refused();
        let listens = self.listens_of(&route);
        let is_wider = |other: &Route| listens.iter().all(|at| self.is_at(other, *at));
        let mut near = self.routes.iter().filter(|other| other.hides(&route));
        if let Some(earlier) = near.find(|other| is_wider(other)) {
            // A duplicate needs no note.
            if earlier.to == route.to && earlier.access == route.access {
                return;
            }
            let place = self.sources.name(earlier.place);
            why = Some(format!("{place} already takes the same requests"));
        }
        match why {
            Some(why) => self.note(route.place, Kind::Lost, &route.what, why),
            None => self.routes.push(route),
        }
    }

    /// Adds a route that rejects what the source served, and notes why.
    pub(super) fn closed(&mut self, route: Route, why: &str) {
        let to = if route.to.is_closed() { route.to } else { To::Closed };
        self.note(route.place, Kind::Closed, &route.what, why);
        self.route(Route { to, ..route });
    }

    /// Keeps requests for names with their own routes from less specific routes: other programs
    /// look a name up once.
    pub(super) fn keep_names_apart(&mut self) {
        let mut seen = BTreeSet::new();
        let mut apart = Vec::new();
        for route in self.routes.iter().filter(|route| route.host != "*") {
            for at in self.listens_of(route) {
                if !seen.insert((route.host.clone(), at)) {
                    continue;
                }
                let catches = |other: &Route| {
                    other.host != route.host
                        && covers_host(&other.host, &route.host)
                        && self.is_at(other, at)
                };
                let takes_all = |other: &Route| {
                    other.host == route.host && other.takes_all() && self.is_at(other, at)
                };
                if self.routes.iter().any(catches) && !self.routes.iter().any(takes_all) {
                    let Route { host, group, place, .. } = route.clone();
                    let what = format!("all other requests to {host}");
                    let path = "/".to_owned();
                    let (listens, to) = (vec![at], To::Nothing);
                    apart.push(Route {
                        host,
                        group,
                        place,
                        what,
                        path,
                        listens,
                        to,
                        ..Route::default()
                    });
                }
            }
        }
        apart.into_iter().for_each(|route| self.route(route));
    }

    /// Returns the text; empty: nothing could be carried over.
    pub(super) fn finish(&mut self, dialect: Dialect) -> String {
        self.settle_listens();
        self.settle_limits();
        tcp::settle(self);
        let is_empty = self.routes.is_empty() && self.tcps.is_empty();
        if is_empty { String::new() } else { write::write(self, dialect) }
    }

    /// When all listeners are known: says of each route which it is for.
    fn settle_listens(&mut self) {
        for mut route in std::mem::take(&mut self.routes) {
            route.listens = self.listens_of(&route);
            route.scheme = None;
            if !route.listens.is_empty() {
                self.routes.push(route);
            } else if !self.groups[route.group].listens.is_empty() {
                let why = "it has no `listen` that could be carried over";
                self.note(route.place, Kind::Lost, &route.what, why);
            }
        }
        let served = self.served();
        for at in (0..self.groups.len()).filter(|at| !served.contains(at)) {
            let Group { place, what, .. } = &self.groups[at];
            let (place, what) = (*place, what.clone());
            self.note(place, Kind::Lost, &what, "weir serves no part of it");
        }
        self.merge_listens();
    }

    /// Makes one route of routes that differ only in their listeners.
    fn merge_listens(&mut self) {
        let mut merged: Vec<Route> = Vec::new();
        for route in std::mem::take(&mut self.routes) {
            let is_apart = |other: &Route| {
                (&other.host, &other.path) != (&route.host, &route.path)
                    || other.listens.iter().all(|at| !route.listens.contains(at))
            };
            // Of equal routes the first holds: none may be passed that takes the same requests.
            let near = merged.iter_mut().rev().take(MERGED_MAX).take_while(|other| is_apart(other));
            let mut like = near.filter(|other| other.does_the_same(&route) && same(other, &route));
            match like.next() {
                Some(other) => {
                    other.listens.extend(&route.listens);
                    other.listens.sort_unstable();
                }
                None => merged.push(route),
            }
        }
        self.routes = merged;
    }

    /// Returns the number of routes and of `tcp` that lead somewhere.
    pub(super) fn carried(&self) -> usize {
        self.routes.iter().filter(|route| !route.to.is_closed()).count() + self.tcps.len()
    }

    /// Returns the groups that have routes.
    pub(super) fn served(&self) -> BTreeSet<usize> {
        self.routes.iter().map(|route| route.group).collect()
    }

    /// Returns the listeners that are needed, when those of routes are settled.
    pub(super) fn listened(&self) -> BTreeSet<usize> {
        self.routes.iter().flat_map(|route| &route.listens).copied().collect()
    }

    /// Returns the notes in order, how many more there were, and the unneeded directives.
    pub(super) fn into_notes(mut self) -> (Vec<Note>, usize, Vec<String>) {
        self.draws.sort_by_key(|draw| draw.place);
        let sources = &self.sources;
        let notes = self.draws.into_iter().map(|Draw { place, kind, what, why }| Note {
            place: sources.name(place),
            kind,
            what,
            why,
        });
        (notes.collect(), self.dropped, self.unneeded.into_iter().collect())
    }
}

/// Returns the address, with this port if it has none.
pub(super) fn with_port(address: &str, port: u16) -> String {
    let has_port = address.rsplit_once(':').is_some_and(|(host, port)| {
        !port.ends_with(']') && (host.ends_with(']') || !host.contains(':'))
    });
    if has_port { address.to_owned() } else { format!("{address}:{port}") }
}
