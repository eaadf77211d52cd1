//! A `server` of nginx: its rules, and the routes that do the same for each of its hosts.

use std::collections::HashMap;

use super::super::notes::Kind;
use super::super::order::{by_specificity, covers_host};
use super::super::route::{Route, To};
use super::names::{Host, Names, hosts};
use super::paths::how;
use super::phase::{Rule, apply, rule};
use super::slots::{Slot, Take, slots};
use super::{Nginx, Server, limits};

/// Rules of one server.
const RULES_MAX: usize = 1000;
/// Rules of all servers.
const ALL_RULES_MAX: usize = 30_000;

/// A server with all that its routes come from.
struct Whole {
    server: Server,
    /// The first match holds.
    rules: Vec<Rule>,
    /// Its listeners by address.
    listens: HashMap<String, Vec<usize>>,
    /// Addresses that share the listener of a different address, each with that address.
    within: HashMap<String, String>,
    /// Some of its unknown hosts are those of another server.
    is_unsaid: bool,
    /// Routes for hosts, by which rules are for them.
    ordered: HashMap<Vec<Option<bool>>, Vec<Route>>,
}

impl Nginx<'_, '_, '_> {
    /// Adds the addresses of a server that weir can listen on.
    pub(super) fn listens_of(&mut self, at: usize, names: &Names) {
        let tree = self.tree;
        let node = &tree.nodes[at];
        let known = hosts(tree, at).0;
        let shown = if known.is_empty() {
            "server".to_owned()
        } else {
            format!("server {}", known.join(" "))
        };
        let group = self.draft.group(node.place, &shown);
        let mut listens: HashMap<String, Vec<usize>> = HashMap::new();
        if tree.indices(at, "listen").is_empty() {
            self.draft.listen(group, node, "0.0.0.0:80", None);
            let all = self.draft.groups[group].listens.clone();
            listens.insert(super::address("80"), all);
        }
        for listen in tree.named(at, "listen") {
            let place = super::address(listen.argument(1));
            if names.around(&place).is_none() {
                let found = self.listen(at, group, listen);
                listens.entry(place).or_default().extend(found);
            }
        }
        self.groups.insert(at, (group, listens));
    }

    /// Adds the addresses at which others listen and this server cannot: because they are part of
    /// another one, or because of its TLS. Returns each with that other address.
    fn listens_within(&mut self, at: usize, names: &Names) -> HashMap<String, String> {
        let tree = self.tree;
        let mut found = HashMap::new();
        for listen in tree.named(at, "listen") {
            let place = super::address(listen.argument(1));
            let is_there = |(_, listens): &(usize, HashMap<String, Vec<usize>>)| {
                listens.get(&place).is_some_and(|all| !all.is_empty())
            };
            if self.groups.get(&at).is_none_or(is_there) {
                continue;
            }
            let wide = names.around(&place).unwrap_or_else(|| place.clone());
            let Some(listener) = self.listener(&wide) else { continue };
            let why = format!(
                "weir has the listener `{wide}` for other servers; it rejects the requests for \
                    names of this one there"
            );
            self.draft.note(listen.place, Kind::Closed, &listen.shown(), why);
            if let Some((group, listens)) = self.groups.get_mut(&at) {
                listens.insert(place.clone(), vec![listener]);
                let own = &mut self.draft.groups[*group].listens;
                if !own.contains(&listener) {
                    own.push(listener);
                }
            }
            found.insert(place, wide);
        }
        found
    }

    /// Converts a server.
    pub(super) fn server(&mut self, at: usize, names: &Names) {
        let tree = self.tree;
        let node = &tree.nodes[at];
        let (known, others) = hosts(tree, at);
        for (by, name) in others {
            let why = format!(
                "weir does not support the host `{name}`: it takes names and `*.` with a domain"
            );
            self.draft.lost(&tree.nodes[by], why);
        }
        if self.draft.is_full() {
            return self.draft.lost(node, "there are too many routes already");
        }
        let within = self.listens_within(at, names);
        let Some((group, listens)) = self.groups.get(&at).cloned() else { return };
        let (mut hosts, gone) = names.of(tree, at);
        for name in gone {
            let why = "an earlier server has this name, so no request reaches this one, as here";
            self.draft.note(node.place, Kind::Lost, &format!("server_name {name}"), why);
        }
        if hosts.is_empty() {
            return;
        }
        let server = Server { at, group, names: known.clone() };
        let served = hosts.iter().map(|host| host.name.clone()).collect();
        self.served.push(limits::Served { at, hosts: served, names: known });
        let mut rules = self.rules(&server);
        for rule in &mut rules {
            rule.route.group = group;
        }
        add_tested(&mut hosts, &rules);
        let is_unsaid = names.has_unsaid(tree, at);
        let mut whole =
            Whole { server, rules, listens, within, is_unsaid, ordered: HashMap::new() };
        for host in hosts {
            self.host(&mut whole, names, host);
        }
    }

    /// Adds the routes of a server for one of its hosts.
    fn host(&mut self, whole: &mut Whole, names: &Names, host: Host) {
        let at = whole.server.at;
        let key: Vec<Option<bool>> = whole
            .rules
            .iter()
            .map(|rule| rule.host.as_ref().map_or(Some(true), |test| test.fits(&host.name)))
            .collect();
        let routes = match whole.ordered.get(&key) {
            Some(routes) => routes.clone(),
            None => {
                let routes = self.ordered(&whole.server, &whole.rules, &key);
                whole.ordered.insert(key, routes.clone());
                routes
            }
        };
        let routes = if host.name == "*" && whole.is_unsaid {
            self.without_unsaid(&whole.server, routes)
        } else {
            routes
        };
        if whole.within.is_empty() {
            return self.add(&host, &whole.listens, routes);
        }
        let places: Vec<String> =
            if host.at.is_empty() { whole.listens.keys().cloned().collect() } else { host.at };
        let (inner, outer): (Vec<String>, Vec<String>) =
            places.into_iter().partition(|place| whole.within.contains_key(place));
        let name = host.name;
        if !outer.is_empty() {
            self.add(&Host { at: outer, name: name.clone() }, &whole.listens, routes);
        }
        // There the name may be that of another server.
        let is_free = |place: &String| {
            let wide = &whole.within[place];
            name != "*" && names.owner(wide, &name).is_none_or(|owner| owner == at)
        };
        let inner: Vec<String> = inner.into_iter().filter(is_free).collect();
        if !inner.is_empty() {
            let closed = rule(&self.tree.nodes[at], To::Closed).route;
            let closed = Route { group: whole.server.group, ..closed };
            self.add(&Host { at: inner, name }, &whole.listens, vec![closed]);
        }
    }

    /// Adds routes for a host.
    fn add(&mut self, host: &Host, listens: &HashMap<String, Vec<usize>>, routes: Vec<Route>) {
        let mut at: Vec<usize> =
            host.at.iter().filter_map(|place| listens.get(place)).flatten().copied().collect();
        at.sort_unstable();
        at.dedup();
        // None of its addresses could be carried over.
        if !host.at.is_empty() && at.is_empty() {
            return;
        }
        for route in routes {
            let mut route = Route { host: host.name.clone(), listens: at.clone(), ..route };
            if let Some(why) = route.refused() {
                // A neighbour must not take its requests.
                self.draft.note(route.place, Kind::Closed, &route.what, why);
                let to = if route.to.is_closed() { route.to } else { To::Closed };
                (route.to, route.strip, route.server_host) = (to, None, None);
                route.rewrites.clear();
            }
            self.draft.route(route);
        }
    }

    /// Returns all rules of a server; the first match holds.
    fn rules(&mut self, server: &Server) -> Vec<Rule> {
        let node = &self.tree.nodes[server.at];
        let phase = self.phase(server, server.at);
        if phase.ends {
            if let Some(first) = self.tree.indices(server.at, "location").first() {
                let why = "no request reaches this: its server answers all of them";
                self.draft.lost(&self.tree.nodes[*first], why);
            }
            return apply(phase.steps, Vec::new());
        }
        let (slots, is_complete) = slots(self.tree, server.at);
        let mut known: HashMap<usize, Vec<Rule>> = HashMap::new();
        let mut rest: Vec<Rule> = Vec::new();
        for slot in &slots {
            let rules = match slot.take {
                Take::Location(at) => match known.get(&at) {
                    Some(rules) => rules.clone(),
                    None => {
                        let rules = self.fates(server, at);
                        known.insert(at, rules.clone());
                        rules
                    }
                },
                Take::Slash(at) => self.slash(server, at),
                Take::Unsaid(at) => vec![self.unsaid(at)],
            };
            rest.extend(rules.into_iter().filter_map(|rule| joined(slot, rule)));
            if rest.len() > RULES_MAX {
                break;
            }
        }
        self.ruled += rest.len();
        if !is_complete || rest.len() > RULES_MAX || self.ruled > ALL_RULES_MAX {
            let why = "its locations are too many for an import: weir rejects all requests";
            return vec![self.unserved(node, why)];
        }
        apply(phase.steps, rest)
    }

    /// Returns the rule of a location whose expression weir does not support.
    fn unsaid(&mut self, at: usize) -> Rule {
        let node = &self.tree.nodes[at];
        let why =
            "weir does not support this expression; it rejects all requests that it may match";
        self.draft.note(node.place, Kind::Closed, &node.shown(), why);
        let to = if self.keeps_out(at) { To::Denied } else { To::Closed };
        rule(node, to)
    }

    /// Returns the redirect to a path with a slash at its end.
    fn slash(&mut self, server: &Server, at: usize) -> Vec<Rule> {
        let node = &self.tree.nodes[at];
        let to = format!("{}$is_args$args", how(node).1);
        let found = self.led(server, node, ("301", &to), None);
        let of = |own: super::answer::Own| {
            let mut led = rule(node, own.to);
            (led.route.scheme, led.route.rewrites) = (own.scheme, own.rewrites);
            led
        };
        found.into_iter().map(of).collect()
    }

    /// Returns the routes of the rules that are for a host: `key` says which are.
    fn ordered(&mut self, server: &Server, rules: &[Rule], key: &[Option<bool>]) -> Vec<Route> {
        let node = &self.tree.nodes[server.at];
        let mut own: Vec<Route> = Vec::new();
        for (rule, fits) in rules.iter().zip(key) {
            match fits {
                Some(true) => own.push(rule.route.clone()),
                Some(false) => {}
                None => {
                    let Route { place, what, .. } = &rule.route;
                    let why = "weir cannot test other names like this, and rejects their requests";
                    self.draft.note(*place, Kind::Closed, &what.clone(), why);
                    own.push(Route { to: To::Denied, ..rule.route.clone() });
                }
            }
        }
        let found = by_specificity(own);
        if found.complete {
            return found.routes;
        }
        let why = "its rules are too many for an import: weir rejects all requests";
        let closed = self.unserved(node, why);
        vec![Route { group: server.group, ..closed.route }]
    }

    /// Returns the routes for all hosts without a name, where some of them are another server's.
    fn without_unsaid(&mut self, server: &Server, routes: Vec<Route>) -> Vec<Route> {
        if !routes.iter().any(|route| matches!(route.to, To::Upstream(_))) {
            return routes;
        }
        let why = "some of the hosts without a name of their own are those of another server, \
            which weir cannot tell apart: it rejects them all";
        let node = &self.tree.nodes[server.at];
        self.draft.note(node.place, Kind::Closed, "all other hosts", why);
        vec![Route { group: server.group, ..rule(node, To::Closed).route }]
    }
}

/// Adds the hosts that an `if` asks for.
fn add_tested(hosts: &mut Vec<Host>, rules: &[Rule]) {
    for name in rules.iter().filter_map(|rule| rule.host.as_ref()?.name()) {
        if hosts.iter().any(|host| host.name == name) {
            continue;
        }
        // The narrowest that has it.
        let around = hosts.iter().filter(|host| covers_host(&host.name, name));
        if let Some(around) = around.max_by_key(|host| host.name.len()).cloned() {
            hosts.push(Host { name: name.to_owned(), ..around });
        }
    }
}

/// Returns a rule for the requests of a slot. None: it matches none of them.
fn joined(slot: &Slot, rule: Rule) -> Option<Rule> {
    let mut conditions = slot.route.conditions.clone();
    for condition in rule.route.conditions {
        let is_opposite = |other: &super::super::route::Condition| {
            other.not != condition.not
                && (other.subject, &other.name, &other.matches)
                    == (condition.subject, &condition.name, &condition.matches)
        };
        if conditions.iter().any(is_opposite) {
            return None;
        }
        if !conditions.contains(&condition) {
            conditions.push(condition);
        }
    }
    let Route { path, exact, .. } = slot.route.clone();
    let is_narrower = !exact && rule.route.path.len() > path.len();
    let path = if is_narrower { rule.route.path.clone() } else { path };
    Some(Rule { route: Route { path, exact, conditions, ..rule.route }, ..rule })
}
