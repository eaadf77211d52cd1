//! The configuration under construction: each dialect fills it, and `write` writes it.
//!
//! Every value is checked by the functions of the option table when it arrives; a refusal becomes a
//! note with the reason. So the written configuration is valid. weir's routes hold for each of its
//! listeners; [`Draft::finish`] settles the consequences.

use std::collections::{BTreeMap, BTreeSet};

use weir_proxy::plan::Location;
use weir_proxy::request::rules::edits::{Side, refusal};

use super::limits::Limits;
use super::missing::Missing;
use super::notes::{Draw, Kind, NOTES_MAX, Note, short};
use super::order::covers_host;
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

/// A set of addresses with the service there: a `server` of nginx, a frontend, a site.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) place: Place,
    pub(super) what: String,
    /// Indices of [`Draft::listens`].
    pub(super) listens: Vec<usize>,
    /// Clients without TLS are only redirected to TLS.
    pub(super) only_tls: bool,
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
            conflict =
                Some(format!("`{}` and `{address}` become one listener in weir", listen.address));
            if address.network().is_some_and(|address| address.ip().is_unspecified()) {
                listen.address = address.clone();
            }
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
        if base.is_empty() || write::RESERVED.contains(&base.as_str()) {
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

    /// Returns a change of a field, if rules may make it. `value` has `$names`; None removes the
    /// field.
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
            self.lost(node, why);
            return None;
        }
        Some(Edit { verb, name: name.to_owned(), value: value.to_owned() })
    }

    /// Whether the maximum of routes is reached.
    pub(super) fn is_full(&self) -> bool {
        self.routes.len() >= BLOCKS_MAX
    }

    /// Adds a route, unless the table refuses it or an earlier one takes all of its requests. If
    /// all clients of its group speak TLS, or none, the route is for those only.
    pub(super) fn route(&mut self, route: Route) {
        if self.is_full() {
            let why = format!("weir takes at most {BLOCKS_MAX} routes");
            return self.note(route.place, Kind::Lost, &route.what, why);
        }
        let route = Route { scheme: route.scheme.or_else(|| self.scheme_of(route.group)), ..route };
        let mut why = route.refused();
        if let Some(earlier) = self.routes.iter().find(|other| other.hides(&route)) {
            let place = self.sources.name(earlier.place);
            // A duplicate needs no note.
            if earlier.to == route.to
                && earlier.exact == route.exact
                && earlier.access == route.access
            {
                return;
            }
            if earlier.exact && !route.exact && !route.path.ends_with('/') {
                let path = format!("{}/", route.path);
                return self.route(Route { path, ..route });
            }
            why = Some(format!(
                "weir's routes apply to every `listen`, and {place} already takes the same \
                    requests; run a second weir for it"
            ));
        }
        match why {
            Some(why) => self.note(route.place, Kind::Lost, &route.what, why),
            None => self.routes.push(route),
        }
    }

    /// Keeps requests for names with their own routes from less specific routes: other programs
    /// look a name up once.
    pub(super) fn keep_names_apart(&mut self) {
        let mut seen = BTreeSet::new();
        let named = self.routes.iter().filter(|route| route.host != "*");
        let named = named.filter(|route| seen.insert((route.host.clone(), route.scheme)));
        let named: Vec<Route> = named.cloned().collect();
        for route in named {
            let is_open = |scheme: Scheme| {
                let mut of_scheme =
                    self.routes.iter().filter(|other| other.scheme.is_none_or(|one| one == scheme));
                let catches = |other: &Route| {
                    other.host != route.host && covers_host(&other.host, &route.host)
                };
                let takes_all = |other: &Route| other.host == route.host && other.takes_all();
                of_scheme.clone().any(catches) && !of_scheme.any(takes_all)
            };
            if Scheme::ALL
                .into_iter()
                .filter(|one| route.scheme.is_none_or(|scheme| scheme == *one))
                .any(is_open)
            {
                let Route { host, group, place, scheme, .. } = route;
                let what = format!("all other requests to {host}");
                self.route(Route {
                    host,
                    group,
                    place,
                    what,
                    scheme,
                    path: "/".to_owned(),
                    ..Route::default()
                });
            }
        }
    }

    /// Returns the text; empty: nothing could be carried over.
    pub(super) fn finish(&mut self, dialect: Dialect) -> String {
        for group in self.groups.iter_mut().filter(|group| group.only_tls) {
            group.listens.retain(|at| self.listens[*at].tls.is_some());
        }
        let below = super::order::below_exact(&self.routes);
        self.routes.extend(below);
        self.settle_schemes();
        let groups = &self.groups;
        self.routes.retain(|route| !groups[route.group].listens.is_empty());
        self.leave_out_local();
        self.leave_out_certified();
        self.tell_of_other_addresses();
        self.settle_limits();
        tcp::settle(self);
        let leads = self.routes.iter().any(|route| route.to != To::Closed) || !self.tcps.is_empty();
        if leads { write::write(self, dialect) } else { String::new() }
    }

    /// Returns the groups that have routes.
    pub(super) fn served(&self) -> BTreeSet<usize> {
        self.routes.iter().map(|route| route.group).collect()
    }

    /// Returns the listeners that are needed.
    pub(super) fn listened(&self) -> BTreeSet<usize> {
        self.served().iter().flat_map(|group| &self.groups[*group].listens).copied().collect()
    }

    /// Keeps services closed that only this machine could reach.
    fn leave_out_local(&mut self) {
        let is_local = |at: &usize| {
            self.listens[*at].address.network().is_none_or(|address| address.ip().is_loopback())
        };
        if self.listened().iter().all(is_local) {
            return;
        }
        let local = self
            .served()
            .into_iter()
            .filter(|group| self.groups[*group].listens.iter().all(is_local))
            .collect();
        self.leave_out(local, "this was only for this machine");
    }

    /// Keeps services closed that only clients with a certificate could reach.
    fn leave_out_certified(&mut self) {
        let asks = |at: &usize| {
            let auth =
                self.listens[*at].tls.as_ref().and_then(|tls| tls.options.get("client-auth"));
            auth.is_some_and(|auth| auth.contains("require"))
        };
        // Routes of such groups are for clients with TLS, unless proxies say which clients have it.
        let trusts = self.client_lines.contains_key("trusted-proxies");
        let counts = |at: &&usize| trusts || self.listens[**at].tls.is_some();
        if self.listened().iter().filter(counts).all(asks) {
            return;
        }
        let certified = self
            .served()
            .into_iter()
            .filter(|group| self.groups[*group].listens.iter().all(asks))
            .collect();
        self.leave_out(certified, "this was only for clients with a certificate");
    }

    fn leave_out(&mut self, groups: Vec<usize>, why: &str) {
        for group in groups {
            self.routes.retain(|route| route.group != group);
            let Group { place, what, .. } = &self.groups[group];
            let (place, what) = (*place, what.clone());
            let why = format!(
                "weir's routes apply to every `listen`, but {why}; run a second weir for it"
            );
            self.note(place, Kind::Lost, &what, why);
        }
    }

    /// Notes that routes can also be reached at addresses of other groups.
    fn tell_of_other_addresses(&mut self) {
        // Both wildcards of a port are the same place.
        let key = |at: usize| {
            let address = &self.listens[at].address;
            let wildcard = address.network().filter(|address| address.ip().is_unspecified());
            wildcard
                .map_or_else(|| address.to_string(), |address| format!("port {}", address.port()))
        };
        let listened = self.listened();
        let mut told = Vec::new();
        for group in self.served() {
            let schemes: BTreeSet<Scheme> = self.schemes_of(group).collect();
            let is_led_to =
                |at: &&usize| schemes.contains(&Scheme::of(self.listens[**at].tls.is_some()));
            let all: BTreeSet<String> =
                listened.iter().filter(is_led_to).map(|at| key(*at)).collect();
            let own: BTreeSet<String> =
                self.groups[group].listens.iter().map(|at| key(*at)).collect();
            let others: Vec<&str> = all.difference(&own).map(String::as_str).collect();
            if !others.is_empty() {
                told.push((
                    group,
                    format!(
                        "weir's routes apply to every `listen`: now also on {}",
                        others.join(", ")
                    ),
                ));
            }
        }
        for (group, why) in told {
            let Group { place, what, .. } = &self.groups[group];
            let (place, what) = (*place, what.clone());
            self.note(place, Kind::Different, &what, why);
        }
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
