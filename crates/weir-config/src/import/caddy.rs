//! Caddy: sites become listeners and routes, each `reverse_proxy` an upstream. Called by `import`.
//!
//! `read` makes the tree. `walk` follows the directives of a site in Caddy's order (`order`), with
//! their matchers (`matcher`, `pieces`) as routes see them (`seen`). `fold` makes routes of this,
//! of which the first match holds, and `by_specificity` converts them to weir's order.

mod answer;
mod encode;
mod expression;
mod fate;
mod fields;
mod fold;
mod kept;
mod limits;
mod matcher;
mod order;
mod pieces;
mod proxy;
mod read;
mod seen;
mod site;
mod walk;

use std::collections::{BTreeSet, HashMap};

use self::matcher::Test;
use self::order::ORDER;
use self::pieces::{Piece, meet};
use self::seen::Seen;
use self::site::Address;
use super::cases::Effect;
use super::draft::Draft;
use super::notes::Kind;
use super::order::{RULES_MAX, by_specificity, covers_host};
use super::route::{Route, To};
use super::tree::{Node, ROOT, Tree};
use crate::problem::Errors;

/// Directives that keep some clients out.
const GUARDS: [&str; 6] =
    ["basic_auth", "basicauth", "forward_auth", "authorize", "authenticate", "jwtauth"];
/// Conditions of one route; the compiler takes no more.
const CONDITIONS_MAX: usize = 50;

/// Puts the whole configuration into the draft.
pub(super) fn import(draft: &mut Draft<'_>) -> Result<(), Errors> {
    let tree = read::read(draft)?;
    let mut caddy = Caddy::new(&tree, draft);
    for (at, node) in tree.children(ROOT) {
        match node.name() {
            "" => caddy.global(at),
            name if name.starts_with("&(") => caddy.draft.lost(node, "weir has no named routes"),
            _ => {}
        }
    }
    for (at, _) in tree.children(ROOT).filter(|(_, node)| is_site(node)) {
        caddy.site(at);
    }
    caddy.close_unheard();
    caddy.close_widened();
    caddy.draft.keep_names_apart();
    Ok(())
}

/// Whether a block at the top is a site.
fn is_site(node: &Node) -> bool {
    !node.name().is_empty() && !node.name().starts_with("&(")
}

/// The state of all parts.
struct Caddy<'t, 'd, 'a> {
    tree: &'t Tree,
    draft: &'d mut Draft<'a>,
    /// The ports of HTTP and of HTTPS.
    ports: (u16, u16),
    auto_https: bool,
    /// Clients without TLS are redirected to TLS.
    redirects: bool,
    /// Whether weir uses other addresses of clients than Caddy.
    others: Others,
    /// Upstreams by all of their settings; None: no usable one.
    upstreams: HashMap<String, Option<usize>>,
    /// The number of zones of `rate_limit` so far.
    zones: usize,
    /// Addresses of sites without `bind`.
    default_bind: Vec<String>,
    /// The order of directives.
    order: Vec<String>,
    /// Directives for whole blocks that are converted.
    told: BTreeSet<usize>,
    /// Directives of the site that were followed.
    steps: usize,
    /// Addresses on which weir cannot listen as Caddy does, with the site.
    unheard: Vec<(usize, Address)>,
    /// Groups with a listener that is for one address of this machine.
    bound: Vec<(usize, usize)>,
}

/// The addresses of clients that differ from weir's.
#[derive(Default)]
struct Others {
    /// Those of connections: a PROXY header names them.
    connections: bool,
    /// Those that proxies name: other proxies are trusted, or another field.
    believed: bool,
}

/// The requests that a block of directives matches, and changes to them.
#[derive(Clone, Default)]
struct Scope {
    pieces: Vec<Piece>,
    seen: Seen,
    changes: Route,
}

impl<'t, 'd, 'a> Caddy<'t, 'd, 'a> {
    fn new(tree: &'t Tree, draft: &'d mut Draft<'a>) -> Caddy<'t, 'd, 'a> {
        Caddy {
            tree,
            draft,
            ports: (80, 443),
            auto_https: true,
            redirects: true,
            others: Others::default(),
            upstreams: HashMap::new(),
            zones: 0,
            default_bind: Vec::new(),
            order: ORDER.map(str::to_owned).to_vec(),
            told: BTreeSet::new(),
            steps: 0,
            unheard: Vec::new(),
            bound: Vec::new(),
        }
    }

    fn site(&mut self, at: usize) {
        let tree = self.tree;
        let node = &tree.nodes[at];
        let group = self.draft.group(node.place, &node.shown());
        let mut addresses: Vec<Address> = Vec::new();
        for word in
            node.words.iter().flat_map(|word| word.split(',')).filter(|word| !word.is_empty())
        {
            match self.address(word, tree.last(at, "tls").is_some()) {
                Some(address) => addresses.push(address),
                None => self.draft.lost(node, format!("weir cannot listen on `{word}`")),
            }
        }
        if addresses.iter().any(|address| address.host.starts_with("*.")) {
            let why = "`*.a.test` is also for `c.b.a.test` in weir, here only for `b.a.test`";
            self.draft.different_once(node, why);
        }
        let listens: Vec<Vec<usize>> =
            addresses.iter().map(|address| self.listens(at, group, address)).collect();
        self.redirect_to_tls(at, &addresses);
        let any = addresses.iter().map(address_test).collect();
        let Some(pieces) = meet(vec![Piece::default()], &Test::Any(any), false) else {
            return self.close_site(at, group, "it has too many addresses", (&addresses, &listens));
        };
        let changes = Route { group, place: node.place, ..Route::default() };
        self.steps = 0;
        let rules = self.follow(at, Scope { pieces, changes, ..Scope::default() });
        let is_long = rules.len() > RULES_MAX;
        let ordered = by_specificity(rules);
        let is_odd = ordered.routes.iter().any(|route| route.conditions.len() > CONDITIONS_MAX);
        if is_long || !ordered.complete || is_odd {
            let why = "it has too many rules to convert to weir's order; weir rejects all of its \
                requests";
            return self.close_site(at, group, why, (&addresses, &listens));
        }
        let leads = |other: &Route| ordered.routes.iter().any(|route| route.place == other.place);
        for route in ordered.unreached.iter().filter(|other| !leads(other)) {
            if route.what != walk::REST {
                self.draft.note(
                    route.place,
                    Kind::Lost,
                    &route.what,
                    "no request reaches this: earlier rules take them all",
                );
            }
        }
        for route in ordered.routes {
            let route = heard(fields::settle(route), &addresses, &listens);
            self.draft.route(route);
        }
    }

    /// Adds the listeners of an address, and returns them.
    fn listens(&mut self, at: usize, group: usize, address: &Address) -> Vec<usize> {
        let before = std::mem::take(&mut self.draft.groups[group].listens);
        self.listen(at, group, address);
        let own = self.draft.groups[group].listens.clone();
        if own.is_empty() {
            self.unheard.push((at, address.clone()));
        }
        let ours = &mut self.draft.groups[group].listens;
        *ours = before;
        ours.extend(&own);
        ours.sort_unstable();
        ours.dedup();
        own
    }

    /// Closes what was for one address of this machine, where weir listens on all of them.
    fn close_widened(&mut self) {
        let is_wide = |at: usize| {
            let address = self.draft.listens[at].address.network();
            address.is_some_and(|address| address.ip().is_unspecified())
        };
        let bound = std::mem::take(&mut self.bound);
        let wide: BTreeSet<(usize, usize)> =
            bound.into_iter().filter(|(_, at)| is_wide(*at)).collect();
        for (group, at) in wide {
            let mut open = Vec::new();
            let of_group = self.draft.groups[group].listens.clone();
            let routes = &mut self.draft.routes;
            for route in routes.iter_mut().filter(|route| route.group == group) {
                let own = if route.listens.is_empty() { &of_group } else { &route.listens };
                if !own.contains(&at) || route.to.is_closed() {
                    continue;
                }
                let rest: Vec<usize> = own.iter().copied().filter(|other| *other != at).collect();
                if !rest.is_empty() {
                    open.push(Route { listens: rest, ..route.clone() });
                }
                (route.listens, route.to) = (vec![at], To::Closed);
            }
            self.draft.routes.extend(open);
            let (place, what) =
                (self.draft.groups[group].place, self.draft.groups[group].what.clone());
            let why = "this was for one address of this machine, and weir listens on all of them \
                at this port; run a second weir for it";
            self.draft.note(place, Kind::Closed, &what, why);
        }
    }

    fn close_site(
        &mut self,
        at: usize,
        group: usize,
        why: &str,
        (addresses, listens): (&[Address], &[Vec<usize>]),
    ) {
        let node = &self.tree.nodes[at];
        for address in addresses {
            let route = closed_site(node, group, address);
            self.draft.closed(heard(route, addresses, listens), why);
        }
    }

    /// Closes the names of addresses on which weir cannot listen as Caddy does, where other sites
    /// listen on the same port.
    fn close_unheard(&mut self) {
        for (at, address) in std::mem::take(&mut self.unheard) {
            let node = &self.tree.nodes[at];
            let group = self.draft.group(node.place, &node.shown());
            let is_there = |(at, listen): (usize, &super::draft::Listen)| {
                let port = listen.address.network().map(|address| address.port());
                (port == Some(address.port)).then_some(at)
            };
            let listens: Vec<usize> =
                self.draft.listens.iter().enumerate().filter_map(is_there).collect();
            self.draft.groups[group].listens = listens;
            let why = "weir cannot listen on this address as Caddy does; it rejects requests for \
                this name where other sites listen";
            if !self.draft.groups[group].listens.is_empty() {
                let route = closed_site(node, group, &address);
                self.draft.closed(route, why);
            }
        }
    }
}

fn closed_site(node: &Node, group: usize, address: &Address) -> Route {
    let host = if address.host.is_empty() { "*" } else { &address.host };
    Route {
        group,
        place: node.place,
        what: node.shown(),
        host: host.to_owned(),
        path: "/".to_owned(),
        to: To::Closed,
        ..Route::default()
    }
}

fn address_test(address: &Address) -> Test {
    let host = if address.host.is_empty() {
        Test::constant(true)
    } else {
        Test::Is(Effect::Host(address.host.clone()))
    };
    if address.path.is_empty() {
        host
    } else {
        Test::All(vec![host, Test::Path(address.path.clone())])
    }
}

/// Returns a route for the listeners of the addresses that it is for.
fn heard(route: Route, addresses: &[Address], listens: &[Vec<usize>]) -> Route {
    let takes =
        |address: &Address| address.host.is_empty() || covers_host(&address.host, &route.host);
    let own = addresses.iter().zip(listens).filter(|(address, _)| takes(address));
    let own: BTreeSet<usize> = own.flat_map(|(_, listens)| listens.iter().copied()).collect();
    Route { listens: own.into_iter().collect(), ..route }
}
