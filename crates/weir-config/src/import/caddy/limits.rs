//! `rate_limit` of Caddy, a separate module (mholt/caddy-ratelimit), as limits of `shield`: a zone
//! is a limit.
//!
//! weir applies all limits before routes. A limit that would also count requests that Caddy exempts
//! only observes.

use super::super::limits::{Limit, Measure, Requests, per_unit};
use super::super::missing::{CASE, Missing, SEGMENTS};
use super::super::order::{covers_host, covers_path};
use super::super::tree::{Node, ROOT};
use super::matcher::Test;
use super::order::{Role, role};
use super::pieces::{Piece, meet};
use super::{Caddy, Scope};
use crate::texts;
use crate::units::parse_time;

/// Zones that are converted; weir has no more limits.
const ZONES_MAX: usize = weir_proxy::plan::LIMITS_MAX;
/// Comparisons of names of sites, for one zone.
const COMPARED_MAX: usize = 1 << 16;

/// Keys in weir's words; those of several letters are followed by a name.
const KEYS: [(&str, &str); 4] =
    [("host", "host"), ("header.", "header:"), ("cookie.", "cookie:"), ("query.", "query:")];

/// Converts a `rate_limit`, which covers the requests of a scope.
pub(super) fn limit(caddy: &mut Caddy<'_, '_, '_>, at: usize, scope: &Scope) {
    let tree = caddy.tree;
    let node = &tree.nodes[at];
    if tree.indices(at, "zone").is_empty() {
        return caddy.draft.missing(node, Missing::Rates);
    }
    let test = caddy.matcher(at);
    let test = by_segment(caddy, node, test);
    let cases = meet(scope.pieces.clone(), &scope.seen.asked(test), false);
    for (inside, line) in tree.children(at) {
        match line.name() {
            "zone" if caddy.zones >= ZONES_MAX => {
                caddy.draft.lost(line, format!("weir takes at most {ZONES_MAX} limits"))
            }
            "zone" => {
                caddy.zones += 1;
                let zone = Zone { at: inside, node: line, directive: at };
                if let Err(why) = zone.carry_over(caddy, cases.clone().unwrap_or_default(), scope) {
                    caddy.draft.lost(line, format!("{why}; weir now accepts what this rejected"));
                }
            }
            "distributed" => caddy.draft.different(line, "each weir counts separately"),
            "jitter" => caddy.draft.different(
                line,
                "weir's `Retry-After` gives the time of the next request, without jitter",
            ),
            "sweep_interval" | "storage" | "log_key" => caddy.draft.unneeded(line.name()),
            _ => caddy.draft.missing(line, Missing::Nothing),
        }
    }
}

/// Returns a test whose paths end with whole segments, as those of `match` do.
fn by_segment(caddy: &mut Caddy<'_, '_, '_>, node: &Node, test: Test) -> Test {
    let mut all =
        |tests: Vec<Test>| tests.into_iter().map(|test| by_segment(caddy, node, test)).collect();
    match test {
        Test::All(tests) => Test::All(all(tests)),
        Test::Any(tests) => Test::Any(all(tests)),
        Test::Path(path) => {
            let start = path.strip_suffix('*').filter(|start| !start.ends_with(['/', '*']));
            let Some(start) = start.filter(|start| !start.is_empty()) else {
                return Test::Path(path);
            };
            caddy.draft.different_once(node, SEGMENTS);
            Test::Any(vec![Test::Path(start.to_owned()), Test::Path(format!("{start}/*"))])
        }
        other => other,
    }
}

/// A `zone`.
struct Zone<'t> {
    at: usize,
    node: &'t Node,
    /// The `rate_limit` that it belongs to.
    directive: usize,
}

impl<'t> Zone<'t> {
    /// Makes a limit of it. Err: why it is not carried over.
    fn carry_over(
        &self,
        caddy: &mut Caddy<'t, '_, '_>,
        cases: Vec<Piece>,
        scope: &Scope,
    ) -> Result<(), String> {
        let tree = caddy.tree;
        self.check_lines(caddy);
        let value = |name: &str| tree.last(self.at, name).map_or("", |line| line.argument(1));
        let window = parse_time(value("window"))?;
        let most =
            value("events").parse::<u64>().ok().filter(|most| (1..=1_000_000).contains(most));
        let most = most.ok_or("weir does not support its `events`")?;
        let (number, seconds) = per_unit(most, window).ok_or("weir does not support its rate")?;
        let by = self.by(caddy, value("key"))?;
        let blocks: Vec<Test> =
            tree.indices(self.at, "match").iter().map(|block| caddy.terms(*block)).collect();
        let test = by_segment(caddy, self.node, Test::All(blocks));
        let test = scope.seen.asked(test);
        let cases = meet(cases, &test, false).filter(|cases| !cases.is_empty());
        let cases = cases.ok_or("its matcher has no cases, or too many")?;
        let (mut all, mut exempt) = (Vec::new(), Vec::new());
        for Piece { case, except } in &cases {
            let found = Requests::of(case).filter(|_| except.is_empty()).ok_or(
                "`match` of a limit supports host, path and method, and `allow` supports addresses",
            );
            let (requests, whom) = found?;
            all.push(requests);
            exempt.extend(whom.iter().cloned());
        }
        let has_letters = |path: &String| path.contains(char::is_alphabetic);
        if all.iter().any(|one| one.exact.iter().chain(&one.prefixes).any(has_letters)) {
            caddy.draft.different_once(self.node, CASE);
        }
        if !exempt.is_empty() {
            caddy.draft.different(self.node, "no limit applies to clients in `allow` of `shield`");
            caddy.draft.exempt(exempt);
        }
        let why = "Caddy counts requests within `window`; weir accepts that many at once, and then \
            that many spread evenly over this time";
        caddy.draft.different_once(self.node, why);
        let wider = all.iter().find_map(|requests| self.wider(caddy, requests));
        if let Some(wider) = &wider {
            let why = format!(
                "weir also counts requests of {wider}, which this does not limit: it only observes \
                    until you remove `observe`"
            );
            caddy.draft.different(self.node, why);
        }
        let is_redirected = caddy.auto_https
            && caddy.redirects
            && caddy.draft.listens.iter().any(|listen| listen.tls.is_some());
        if is_redirected {
            caddy.draft.different_once(
                self.node,
                "weir also counts requests that it only redirects to https",
            );
        }
        let (place, what) = (self.node.place, self.node.shown());
        let name = self.node.argument(1).to_owned();
        let measure = Measure::Rate { count: "requests", number, seconds, burst: most };
        for requests in all {
            let (what, name, by) = (what.clone(), name.clone(), by.clone());
            let (observe, hammer) = (wider.is_some(), false);
            caddy.draft.limit(Limit {
                place,
                what,
                name,
                measure,
                status: "",
                by,
                over: None,
                observe,
                hammer,
                requests,
            });
        }
        Ok(())
    }

    /// Reports its lines that weir does not support.
    fn check_lines(&self, caddy: &mut Caddy<'t, '_, '_>) {
        let tree = caddy.tree;
        for (_, line) in tree.children(self.at) {
            match line.name() {
                "key" | "window" | "events" | "match" => {}
                "ipv4_prefix" | "ipv6_prefix" => caddy.draft.lost(
                    line,
                    "`prefix` in `shield` sets how much of an address is one client, \
                        for all limits",
                ),
                _ => caddy.draft.missing(line, Missing::Nothing),
            }
        }
    }

    /// Returns the key that it counts by, as weir writes it; empty: each client.
    fn by(&self, caddy: &mut Caddy<'_, '_, '_>, key: &str) -> Result<String, String> {
        let Some(inside) = key.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) else {
            let is_static = !key.is_empty() && !key.contains(['{', '}']);
            return if is_static {
                Ok("all".to_owned())
            } else {
                Err(format!("weir has no equivalent of the key `{key}`"))
            };
        };
        let (connections, believed) = (caddy.others.connections, caddy.others.believed);
        let elsewhere = "weir would limit a proxy: it reads addresses of clients in another way";
        match inside {
            "remote_host" | "http.request.remote.host" if connections => Err(elsewhere.to_owned()),
            "client_ip" | "http.vars.client_ip" | "http.request.client_ip"
                if connections || believed =>
            {
                Err(elsewhere.to_owned())
            }
            "remote_host" | "http.request.remote.host" => {
                if caddy.draft.client_lines.contains_key("trusted-proxies") {
                    let why = "weir counts the clients behind `trusted-proxies`, not the proxies";
                    caddy.draft.different(self.node, why);
                }
                Ok(String::new())
            }
            "client_ip" | "http.vars.client_ip" | "http.request.client_ip" => Ok(String::new()),
            _ => {
                let short = inside.strip_prefix("http.request.").unwrap_or(inside);
                let short = short.strip_prefix("uri.").unwrap_or(short);
                let ours = KEYS.iter().find_map(|(theirs, ours)| {
                    let name = short.strip_prefix(theirs)?;
                    (theirs.ends_with('.') != name.is_empty()).then(|| format!("{ours}{name}"))
                });
                let by = texts::shield::by(
                    &ours.ok_or_else(|| format!("weir has no equivalent of the key `{key}`"))?,
                )?;
                if by != "host" {
                    caddy.draft.different(
                        self.node,
                        "weir does not count requests without it; here all of them count as one",
                    );
                }
                Ok(by)
            }
        }
    }

    /// Returns a directive that takes some of these requests although the limit does not cover
    /// them.
    fn wider(&self, caddy: &Caddy<'_, '_, '_>, requests: &Requests) -> Option<String> {
        let tree = caddy.tree;
        let shown = |node: &Node| format!("`{}`", node.shown());
        // Of sibling blocks, one handles a request; in a `route` also the directives in front.
        let mut inner = self.directive;
        while tree.nodes[inner].parent != ROOT {
            let block = tree.nodes[inner].parent;
            let is_route = tree.nodes[block].name() == "route";
            let before = tree.children(block).take_while(|(at, _)| *at != inner);
            let first = before
                .filter(|(_, node)| is_route && matches!(role(node.name()), Role::Acts))
                .map(|(_, node)| node)
                .next();
            let is_block = matches!(tree.nodes[inner].name(), "handle" | "handle_path");
            let mut others = tree.children(block).filter(|(at, node)| {
                is_block && *at != inner && matches!(node.name(), "handle" | "handle_path")
            });
            let other = others.find(|(at, _)| {
                let path = caddy.only_path(*at).trim_end_matches('*');
                let is_apart = !path.is_empty() && !requests.takes(path);
                !is_apart && tree.nodes[*at].words.len() > 1
            });
            if let Some(node) = first.or(other.map(|(_, node)| node)) {
                return Some(shown(node));
            }
            inner = block;
        }
        let sites = tree.children(ROOT).filter(|(at, node)| {
            *at != inner && !node.name().is_empty() && !node.name().starts_with("&(")
        });
        let words: Vec<&str> = sites
            .flat_map(|(_, node)| node.words.iter())
            .flat_map(|word| word.split(','))
            .collect();
        if words.len().saturating_mul(requests.hosts.len().max(1)) > COMPARED_MAX {
            return Some("one of too many sites to compare".to_owned());
        }
        let takes = |word: &&str| {
            let Some(address) = caddy.address(word, false) else { return false };
            let meets = |host: &String| {
                address.host.is_empty()
                    || covers_host(host, &address.host)
                    || covers_host(&address.host, host)
            };
            requests.hosts.is_empty() || requests.hosts.iter().any(meets)
        };
        words.iter().copied().find(takes).map(|word| format!("`{word}`"))
    }
}

impl Requests {
    /// Whether some paths with this prefix are among these.
    fn takes(&self, path: &str) -> bool {
        let mut all = self.exact.iter().chain(&self.prefixes);
        self.has_all_paths() || all.any(|one| covers_path(one, path) || covers_path(path, one))
    }
}
