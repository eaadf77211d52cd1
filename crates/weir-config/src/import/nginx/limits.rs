//! `limit_req` and `limit_conn` of nginx, as limits of `shield`.
//!
//! nginx applies those of the nearest block that has some, in the location of the request. weir
//! applies all of them before routes, and `match` selects the requests. So a limit may count
//! requests of another location. If that has no limit that is at least as strict, weir would refuse
//! clients that nginx serves: then the limit only observes. Bounds: [`DIRECTIVES_MAX`],
//! [`OF_BLOCK_MAX`].

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;

use super::super::limits::{Limit, Measure, Requests};
use super::super::missing::Missing;
use super::super::order::{covers_host, covers_path};
use super::super::tree::{Node, ROOT, Tree};
use super::paths::{begins_with, path};
use super::{Nginx, size};
use crate::texts;

/// Directives that are converted: each is compared with all locations.
const DIRECTIVES_MAX: usize = 256;
/// Directives of one block; weir has no more limits.
const OF_BLOCK_MAX: usize = weir_proxy::plan::LIMITS_MAX;
/// Bytes of state that nginx has for a client.
const STATE_BYTES: u64 = 128;
/// The highest number that weir accepts.
const AMOUNT_MAX: u64 = 1_000_000;

/// Names of the directives of one kind.
struct Words {
    limit: &'static str,
    zone: &'static str,
    status: &'static str,
    dry_run: &'static str,
}

const REQUESTS: Words = Words {
    limit: "limit_req",
    zone: "limit_req_zone",
    status: "limit_req_status",
    dry_run: "limit_req_dry_run",
};
const CONNECTIONS: Words = Words {
    limit: "limit_conn",
    zone: "limit_conn_zone",
    status: "limit_conn_status",
    dry_run: "limit_conn_dry_run",
};

/// A server that takes requests.
pub(super) struct Served {
    pub(super) at: usize,
    /// As weir writes them, at least one; `*`: all that no other server has.
    pub(super) hosts: Vec<String>,
    /// Its names.
    pub(super) names: Vec<String>,
}

/// A location that takes requests.
struct Spot<'t> {
    /// An index of the servers.
    server: usize,
    at: usize,
    kind: &'t str,
    path: &'t str,
    /// Its limits of a kind, as nodes.
    limits: &'t [usize],
    /// Whether those only observe, and the status of a refusal.
    acts: (bool, &'t str),
}

/// Comparisons of names at all addresses, for one limit.
const COMPARED_MAX: usize = 1 << 20;

/// The names of all servers at each address, and the default server there.
pub(super) struct Places<'s>(Vec<Place<'s>>);

struct Place<'s> {
    /// An index of the servers.
    default: usize,
    exact: HashSet<&'s str>,
    domains: Vec<&'s str>,
}

impl<'s> Places<'s> {
    pub(super) fn new(
        tree: &Tree,
        defaults: &BTreeMap<String, usize>,
        served: &'s [Served],
    ) -> Places<'s> {
        let number = |at: &usize| served.iter().position(|one| one.at == *at);
        let mut of: BTreeMap<&str, Place<'s>> = BTreeMap::new();
        for (address, default) in
            defaults.iter().filter_map(|(address, at)| Some((address, number(at)?)))
        {
            of.insert(address, Place { default, exact: HashSet::new(), domains: Vec::new() });
        }
        for one in served {
            for (address, _) in super::listens(tree, one.at) {
                let Some(place) = of.get_mut(address.as_str()) else { continue };
                let (domains, exact): (Vec<&str>, Vec<&str>) =
                    one.names.iter().map(String::as_str).partition(|name| name.starts_with('*'));
                place.domains.extend(domains);
                place.exact.extend(exact);
            }
        }
        Places(of.into_values().collect())
    }

    /// Returns the servers that serve one of these hosts at an address where no server has that
    /// name; with too many comparisons, all that serve unknown hosts.
    fn catching(&self, hosts: &BTreeSet<String>) -> HashSet<usize> {
        let known: usize = self.0.iter().map(|place| 1 + place.domains.len()).sum();
        let is_much = known.saturating_mul(hosts.len()) > COMPARED_MAX;
        let is_known = |place: &Place<'_>, host: &String| {
            place.exact.contains(host.as_str())
                || place.domains.iter().any(|domain| covers_host(domain, host))
        };
        let catches =
            |place: &&Place<'_>| is_much || hosts.iter().any(|host| !is_known(place, host));
        self.0.iter().filter(catches).map(|place| place.default).collect()
    }
}

/// All directives of one kind.
struct Known<'t, 's> {
    words: Words,
    places: &'s Places<'s>,
    zones: HashMap<&'t str, &'t Node>,
    spots: Vec<Spot<'t>>,
    /// The results of directives that could be carried over.
    measures: HashMap<usize, Measure>,
}

impl<'t> Nginx<'t, '_, '_> {
    /// Converts all limits of these servers.
    pub(super) fn limits(&mut self, served: &[Served], places: &Places<'_>) {
        for words in [REQUESTS, CONNECTIONS] {
            let mut of: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            let (zones, spots) = (zones(self.tree, &words), self.spots(served, &words));
            for (number, spot) in spots.iter().enumerate() {
                spot.limits.iter().for_each(|limit| of.entry(*limit).or_default().push(number));
            }
            let mut known = Known { words, places, zones, spots, measures: HashMap::new() };
            let measured = |at: &usize| {
                Some((
                    *at,
                    known.measure(&self.tree.nodes[*at]).ok().map(|(_, measure, _)| measure)?,
                ))
            };
            known.measures = of.keys().filter_map(measured).collect();
            for (number, (limit, own)) in of.into_iter().enumerate() {
                let node = &self.tree.nodes[limit];
                if number >= DIRECTIVES_MAX {
                    self.draft.lost(node, "there are too many limits already");
                } else if let Err(why) = self.limit_of(&known, limit, &own, served) {
                    self.draft.lost(node, why);
                }
            }
        }
    }

    /// Returns the locations that take requests, each with its limits of a kind. nginx applies none
    /// to responses of `return`.
    fn spots(&self, served: &[Served], words: &Words) -> Vec<Spot<'t>> {
        let tree = self.tree;
        let mut spots = Vec::new();
        for (server, Served { at, .. }) in served.iter().enumerate() {
            if let Some(answer) = tree.indices(*at, "return").first() {
                spots.push(Spot {
                    server,
                    at: *answer,
                    kind: "",
                    path: "/",
                    limits: &[],
                    acts: (false, ""),
                });
                continue;
            }
            let locations =
                tree.below(*at).into_iter().filter(|at| tree.nodes[*at].name() == "location");
            for location in locations {
                let (kind, path) = path(&tree.nodes[location]);
                if path.starts_with('@') {
                    continue;
                }
                let answers = |at: usize| !tree.indices(at, "return").is_empty();
                let limits_of =
                    |at: usize| if answers(at) { &[][..] } else { self.effective(at, words.limit) };
                let mut limits = limits_of(location);
                let named = ends_with(tree, *at, location)
                    .filter(|_| limits.is_empty() && !answers(location));
                if let Some(named) = named {
                    limits = limits_of(named);
                }
                spots.push(Spot {
                    server,
                    at: location,
                    kind,
                    path,
                    limits: &limits[..limits.len().min(OF_BLOCK_MAX)],
                    acts: acts(self, named.unwrap_or(location), words),
                });
            }
        }
        spots
    }

    /// Converts one directive, which is effective in `own`. Err: why it is not carried over.
    fn limit_of(
        &mut self,
        known: &Known<'_, '_>,
        at: usize,
        own: &[usize],
        served: &[Served],
    ) -> Result<(), String> {
        let (node, Known { words, spots, places, .. }) = (&self.tree.nodes[at], known);
        let (name, measure, clients) = known.measure(node)?;
        if !self.tells_clients {
            return Err(
                "weir would limit a proxy: it reads addresses of clients in another way".to_owned()
            );
        }
        let mut requests = requests_of(self.tree, node, own, spots, served)?;
        let mut others = covered(&requests, own, spots, (served, places));
        let mut bare = known.bare(&measure, &others);
        if let Some(hosts) =
            named(own, spots, served).filter(|_| bare.is_some() && requests.hosts.is_empty())
        {
            let of_names = Requests { hosts, ..requests.clone() };
            let among = covered(&of_names, own, spots, (served, places));
            if known.bare(&measure, &among).is_none() {
                self.draft.different(
                    node,
                    "weir counts only requests for names of its server, not for unknown hosts",
                );
                (requests, others, bare) = (of_names, among, None);
            }
        }
        let acts = acts(self, node.parent, words);
        let dry_run = acts.0;
        type Differs = fn((bool, &str), (bool, &str)) -> bool;
        let kinds: [(&str, Differs); 2] =
            [(words.dry_run, |a, b| a.0 != b.0), (words.status, |a, b| a.1 != b.1)];
        for (name, differs) in kinds {
            let mut inside = own.iter().map(|number| &spots[*number]);
            if let Some(inner) = inside.find(|spot| differs(spot.acts, acts)) {
                let why = format!(
                    "`{name}` differs for `{}`; weir has one value for the whole limit, that of \
                        its own block",
                    self.tree.nodes[inner.at].shown()
                );
                self.draft.different(node, why);
            }
        }
        if let Some(bare) = bare {
            let why = format!(
                "weir also counts requests of `{}`, which this does not limit: it only observes \
                    until you remove `observe`",
                self.tree.nodes[bare].shown()
            );
            self.draft.different(node, why);
        } else if !others.is_empty() {
            self.draft.different_once(
                node,
                "weir applies limits together with those of inner blocks, which replace them here",
            );
        }
        if delays(node) {
            let why = "nginx delays requests within `burst`, weir serves them at once; both reject \
                further requests";
            self.draft.different_once(node, why);
        }
        let over = self.over(words, node);
        let (place, what, observe) = (node.place, node.shown(), dry_run || bare.is_some());
        self.draft.remembers(clients);
        self.draft.limit(Limit {
            place,
            what,
            name,
            measure,
            status: "",
            by: String::new(),
            over,
            observe,
            hammer: false,
            requests,
        });
        Ok(())
    }

    /// Returns the consequence of exceeding the limit.
    fn over(&mut self, words: &Words, node: &Node) -> Option<String> {
        let status = self.one(node.parent, words.status);
        match status.map_or("503", |status| status.argument(1)) {
            "429" => None,
            "444" => {
                self.draft.different(status?, "weir resets the connection, where nginx closes it");
                Some("reset".to_owned())
            }
            text if texts::shield::over(text).is_ok() && text.len() == 3 => Some(text.to_owned()),
            _ => {
                self.draft.different(
                    status?,
                    "weir rejects with a status from 400 to 499, or 503; here it uses 429",
                );
                None
            }
        }
    }
}

impl Known<'_, '_> {
    /// Returns the first of these locations that has no limit that is at least as strict.
    fn bare(&self, measure: &Measure, spots: &[&Spot<'_>]) -> Option<usize> {
        let is_limited = |spot: &Spot<'_>| {
            let mut theirs = spot.limits.iter().filter_map(|at| self.measures.get(at));
            !spot.acts.0 && theirs.any(|theirs| theirs.shadows(measure))
        };
        spots.iter().find(|spot| !is_limited(spot)).map(|spot| spot.at)
    }

    /// Returns the name of its zone, the measure, and how many clients the zone has room for.
    fn measure(&self, node: &Node) -> Result<(String, Measure, u64), String> {
        let is_rate = self.words.limit == REQUESTS.limit;
        let option = |name: &str| node.arguments().find_map(|word| word.strip_prefix(name));
        let name = if is_rate { option("zone=").unwrap_or_default() } else { node.argument(1) };
        let zone = self
            .zones
            .get(name)
            .ok_or_else(|| format!("no `{}` has this name", self.words.zone))?;
        let key = zone.argument(1);
        if !matches!(key, "$binary_remote_addr" | "$remote_addr") {
            return Err(format!(
                "it limits each `{key}`, but weir's limits apply to each client address"
            ));
        }
        let amount = |text: &str| text.parse::<u64>().ok().filter(|amount| *amount < AMOUNT_MAX);
        let measure = if is_rate {
            let rate =
                zone.arguments().find_map(|word| word.strip_prefix("rate=")).unwrap_or_default();
            let (number, seconds) = match (rate.strip_suffix("r/s"), rate.strip_suffix("r/m")) {
                (Some(number), _) => (number, 1),
                (_, Some(number)) => (number, 60),
                _ => ("", 1),
            };
            let number = amount(number)
                .filter(|number| *number > 0)
                .ok_or("weir does not support the rate of its zone")?;
            let burst = option("burst=")
                .map_or(Some(0), amount)
                .ok_or("weir does not support its `burst`")?;
            // nginx does not count the first.
            Measure::Rate { count: "requests", number, seconds, burst: burst + 1 }
        } else {
            let max = amount(node.argument(2))
                .filter(|max| *max > 0)
                .ok_or("weir does not support its number")?;
            Measure::Number { count: "in-progress", max }
        };
        let bytes = zone_of(zone).and_then(|(_, bytes)| size(bytes)).unwrap_or_default();
        Ok((name.to_owned(), measure, bytes / STATE_BYTES))
    }
}

/// Returns whether limits of a kind only observe in a block, and the status of a refusal.
fn acts<'t>(nginx: &Nginx<'t, '_, '_>, at: usize, words: &Words) -> (bool, &'t str) {
    let one = |name: &str| nginx.one(at, name).map(|node| node.argument(1));
    (one(words.dry_run) == Some("on"), one(words.status).unwrap_or("503"))
}

/// Returns zones of a kind by name.
fn zones<'t>(tree: &'t Tree, words: &Words) -> HashMap<&'t str, &'t Node> {
    let tops = [ROOT].into_iter().chain(tree.indices(ROOT, "http").iter().copied());
    let zones = tops.flat_map(|top| tree.named(top, words.zone));
    zones.filter_map(|zone| Some((zone_of(zone)?.0, zone))).collect()
}

/// Returns the location that ends `try_files` of another.
fn ends_with(tree: &Tree, server: usize, at: usize) -> Option<usize> {
    let name = tree.last(at, "try_files")?.words.last().filter(|name| name.starts_with('@'))?;
    let others = tree.indices(server, "location");
    others.iter().find(|other| tree.nodes[**other].argument(1) == name).copied()
}

/// Returns the requests that it covers, as far as `match` can express them.
fn requests_of(
    tree: &Tree,
    node: &Node,
    own: &[usize],
    spots: &[Spot<'_>],
    served: &[Served],
) -> Result<Requests, String> {
    let mut requests = Requests::default();
    let servers: BTreeSet<usize> = own.iter().map(|number| spots[*number].server).collect();
    if servers.len() < served.len() {
        let hosts = servers.iter().flat_map(|server| &served[*server].hosts);
        requests.hosts = hosts.cloned().collect();
    }
    if requests.hosts.contains("*") {
        requests.hosts.clear();
    }
    if tree.nodes[node.parent].name() != "location" {
        return Ok(requests);
    }
    for spot in own.iter().map(|number| &spots[*number]) {
        let texts = match spot.kind {
            // Nested locations with expressions have paths of the outer one.
            "~" | "~*" => continue,
            "=" => &mut requests.exact,
            _ => &mut requests.prefixes,
        };
        texts.insert(texts::route_path(spot.path)?);
    }
    if requests.exact.is_empty() && requests.prefixes.is_empty() {
        return Err(Missing::PathMatch.why().to_owned());
    }
    if requests.prefixes.contains("/") {
        (requests.exact, requests.prefixes) = Default::default();
    }
    let prefixes = requests.prefixes.clone();
    requests.prefixes.retain(|prefix| !is_below(&prefixes, prefix));
    requests.exact.retain(|path| !prefixes.contains(path) && !is_below(&prefixes, path));
    Ok(requests)
}

/// Whether nginx delays some requests.
fn delays(node: &Node) -> bool {
    let has = |start: &str| node.arguments().any(|word| word.starts_with(start));
    has("burst=") && !has("nodelay")
}

/// Returns name and size of a zone.
fn zone_of(zone: &Node) -> Option<(&str, &str)> {
    zone.arguments().find_map(|word| word.strip_prefix("zone="))?.split_once(':')
}

/// Returns the names of the servers of these locations. None: one has no name.
fn named(own: &[usize], spots: &[Spot<'_>], served: &[Served]) -> Option<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for server in own.iter().map(|number| spots[*number].server).collect::<BTreeSet<_>>() {
        let theirs = &served[server].names;
        names.extend(theirs.iter().cloned());
        if theirs.is_empty() {
            return None;
        }
    }
    Some(names)
}

/// Whether one of these prefixes is above a path.
fn is_below(prefixes: &BTreeSet<String>, path: &str) -> bool {
    let mut above = path.match_indices('/').flat_map(|(at, _)| [&path[..at], &path[..=at]]);
    above.any(|wide| wide != path && prefixes.contains(wide))
}

/// Whether one of these paths is below a prefix.
fn has_below(paths: &BTreeSet<String>, prefix: &str) -> bool {
    let from = paths.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
    from.take_while(|path| path.starts_with(prefix)).any(|path| covers_path(prefix, path))
}

/// Returns locations of other blocks whose requests are among these.
fn covered<'s, 't>(
    requests: &Requests,
    own: &[usize],
    spots: &'s [Spot<'t>],
    (served, places): (&[Served], &Places<'_>),
) -> Vec<&'s Spot<'t>> {
    let catching = places.catching(&requests.hosts);
    let own_servers: BTreeSet<usize> = own.iter().map(|number| spots[*number].server).collect();
    let domains: Vec<&String> =
        requests.hosts.iter().filter(|host| host.starts_with('*')).collect();
    let has_host = |host: &String| {
        requests.hosts.contains(host) || domains.iter().any(|wide| covers_host(wide, host))
    };
    let has_server = |(number, served): (usize, &Served)| {
        let is_known = own_servers.contains(&number) || served.hosts.iter().any(has_host);
        requests.hosts.is_empty() || is_known || catching.contains(&number)
    };
    let servers: Vec<bool> = served.iter().enumerate().map(has_server).collect();
    let has_path = |spot: &Spot<'_>| {
        let begin = match spot.kind {
            "~" | "~*" => begins_with(spot.path).unwrap_or_default(),
            _ => spot.path,
        };
        let is_taken = requests.exact.contains(begin) || requests.prefixes.contains(begin);
        // Within a server, the location with the longest path takes a request, whatever those above
        // say.
        let is_above = || {
            let mut sets = [&requests.exact, &requests.prefixes].into_iter();
            !own_servers.contains(&spot.server)
                && spot.kind != "="
                && sets.any(|paths| has_below(paths, begin))
        };
        requests.has_all_paths() || is_taken || is_below(&requests.prefixes, begin) || is_above()
    };
    let own: BTreeSet<usize> = own.iter().copied().collect();
    let others = spots.iter().enumerate().filter(|(number, _)| !own.contains(number));
    others.map(|(_, spot)| spot).filter(|spot| servers[spot.server] && has_path(spot)).collect()
}
