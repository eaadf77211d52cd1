//! `stream` of nginx: each `server` becomes a `tcp` block. Called when everything for HTTP has been
//! converted.
//!
//! Names that TLS clients ask for are in `nginx/stream/names.rs`; the table of
//! `nginx/stream/fate.rs` has the handling of all other directives.

mod fate;
mod names;

use std::collections::{BTreeSet, HashMap};

use weir_proxy::plan::UNIX;

use super::super::draft::BLOCKS_MAX;
use super::super::keepalive;
use super::super::limits::{Limit, Measure, Requests};
use super::super::missing::Missing;
use super::super::notes::Kind;
use super::super::tcp::{CLOSES, LET_IN, Lead, Tcp};
use super::super::tree::{Node, ROOT};
use super::upstream::plain;
use super::{Nginx, time};
use crate::texts;

/// Ports of one range.
const PORTS_MAX: u16 = 100;

/// Puts all blocks into the draft.
pub(super) fn import(nginx: &mut Nginx<'_, '_, '_>) {
    let tops = nginx.tree.indices(ROOT, "stream").to_vec();
    let servers: Vec<usize> =
        tops.iter().flat_map(|top| nginx.tree.indices(*top, "server")).copied().collect();
    let upstreams = tops.iter().flat_map(|top| nginx.tree.indices(*top, "upstream"));
    let named = upstreams.rev().map(|at| (nginx.tree.nodes[*at].argument(1), *at)).collect();
    let mut stream =
        Stream { nginx, tops, named, upstreams: HashMap::new(), maps: BTreeSet::new() };
    let served: Vec<usize> = servers.into_iter().filter(|at| stream.server(*at)).collect();
    stream.limits(&served);
    stream.tell();
}

/// The state of all parts.
struct Stream<'n, 't, 'd, 'a> {
    nginx: &'n mut Nginx<'t, 'd, 'a>,
    /// `stream` blocks.
    tops: Vec<usize>,
    /// `upstream` blocks by name.
    named: HashMap<&'t str, usize>,
    /// Upstreams by their name in `proxy_pass`, and whether servers learn the client; None: no
    /// usable one.
    upstreams: HashMap<(String, bool), Option<usize>>,
    /// `map` blocks that became `sni`.
    maps: BTreeSet<usize>,
}

impl<'t> Stream<'_, 't, '_, '_> {
    /// Whether a switch is on in a block.
    fn is_on(&self, at: usize, name: &str) -> bool {
        self.nginx.one(at, name).is_some_and(|node| node.argument(1) == "on")
    }

    /// Converts a server; returns whether it became a block.
    fn server(&mut self, at: usize) -> bool {
        let tree = self.nginx.tree;
        let node = &tree.nodes[at];
        let Some(pass) = tree.last(at, "proxy_pass") else {
            self.nginx.draft.lost(node, "it forwards nothing, and `tcp` can only forward");
            return false;
        };
        if self.is_on(at, "proxy_ssl") {
            let why =
                "`tcp` forwards bytes unchanged, so it cannot use TLS to servers if clients do not";
            self.nginx.draft.lost(node, why);
            return false;
        }
        let mut tcp = Tcp::new(node.place, pass.shown());
        for listen in tree.named(at, "listen") {
            self.listen(&mut tcp, listen);
        }
        if tcp.is_unreachable() {
            self.nginx.draft.lost(node, "none of its `listen` could be carried over");
            return false;
        }
        let ranges =
            tree.effective(at, "set_real_ip_from").iter().map(|at| tree.nodes[*at].argument(1));
        tcp.trusted.extend(ranges.filter_map(|range| texts::peers(range).ok()));
        self.lead(&mut tcp, at, pass);
        if !tcp.leads_somewhere() {
            return false;
        }
        if self.keeps_some_out(at) {
            tcp.close();
        }
        self.times(&mut tcp, at);
        self.nginx.draft.tcps.push(tcp);
        true
    }

    fn listen(&mut self, tcp: &mut Tcp, node: &Node) {
        let has = |word: &str| node.arguments().skip(1).any(|other| other == word);
        let draft = &mut *self.nginx.draft;
        if has("udp") || has("quic") {
            return draft.lost(node, "weir does not forward UDP");
        }
        if has("ssl") {
            let why = "`tcp` forwards bytes unchanged: weir terminates TLS only for requests; \
                install the certificate on the server";
            return draft.lost(node, why);
        }
        let Some(addresses) = addresses(node.argument(1), has("ipv6only=off")) else {
            return draft.lost(
                node,
                format!(
                    "write a `listen` for each port: weir takes over up to {PORTS_MAX} of one range"
                ),
            );
        };
        for address in addresses {
            // All users may use sockets in nginx.
            let mode = address.starts_with(UNIX).then_some("0666");
            tcp.listen(
                draft,
                node,
                &address,
                has("proxy_protocol"),
                [("mode", mode), ("group", None)],
            );
        }
        if let Some(text) = keepalive::of_listen(draft, node, time) {
            tcp.ask(Some(node), &text);
        }
    }

    /// Sets the target of its connections.
    fn lead(&mut self, tcp: &mut Tcp, at: usize, pass: &'t Node) {
        let target = pass.argument(1);
        if let Some(variable) = target.strip_prefix('$') {
            return self.by_name(tcp, at, pass, variable);
        }
        match self.upstream(pass, target, at) {
            Some(upstream) => tcp.to = Some(Lead::Upstream(upstream)),
            None => self.nginx.draft.lost(pass, "none of its servers could be carried over"),
        }
    }

    /// Returns the upstream for a value of `proxy_pass` or of a `map`; `at`: the server.
    fn upstream(&mut self, node: &Node, target: &str, at: usize) -> Option<usize> {
        let tree = self.nginx.tree;
        let tells = self.is_on(at, "proxy_protocol");
        let key = (target.to_owned(), tells);
        let known = self.upstreams.get(&key).copied();
        if known.is_none() && self.nginx.draft.upstreams.len() >= BLOCKS_MAX {
            self.nginx.draft.lost(node, format!("weir takes at most {BLOCKS_MAX} upstreams"));
            return None;
        }
        let found = known.unwrap_or_else(|| {
            let block = self.named.get(target).copied();
            let place = block.map_or(node.place, |block| tree.nodes[block].place);
            let upstream = self.nginx.draft.upstream(place, target);
            self.nginx.draft.upstreams[upstream].is_tcp = true;
            match block {
                Some(block) => self.servers(upstream, block),
                None => self.nginx.draft.server(upstream, node, plain(node, target.to_owned())),
            }
            let ours = &mut self.nginx.draft.upstreams[upstream];
            if tells {
                ours.lines.push("proxy-protocol \"v1\"".to_owned());
            }
            (!ours.servers.is_empty()).then_some(upstream)
        });
        self.upstreams.insert(key, found);
        let upstream = found?;
        match self.nginx.one(at, "proxy_connect_timeout") {
            Some(node) => match time(node.argument(1)) {
                Some(us) => self.nginx.draft.amount(Some(upstream), node, "connect-timeout", us),
                None => self.nginx.draft.lost(node, "this is not a time"),
            },
            // The default of nginx.
            None => self.nginx.draft.amount(
                Some(upstream),
                &tree.nodes[at],
                "connect-timeout",
                60_000_000,
            ),
        }
        Some(upstream)
    }

    fn servers(&mut self, upstream: usize, block: usize) {
        let tree = self.nginx.tree;
        for (_, node) in tree.children(block) {
            if node.name() != "server" {
                self.method(upstream, node);
            } else if let Some(Some(_)) = self.nginx.server_line(upstream, node, 80) {
                let why = "weir suspends a server that refuses connections for 1 s, regardless of \
                    `max_fails` and `fail_timeout`; `health` in an `upstream` probes it";
                self.nginx.draft.different_once(node, why);
            }
        }
        let servers = &mut self.nginx.draft.upstreams[upstream].servers;
        if servers.iter().all(|server| server.backup) {
            servers.iter_mut().for_each(|server| server.backup = false);
        }
    }

    /// Converts load balancing, and the rest.
    fn method(&mut self, upstream: usize, node: &Node) {
        let draft = &mut *self.nginx.draft;
        let line = match (node.name(), node.argument(1)) {
            ("least_conn" | "random", _) => "balance least",
            ("least_time", _) => {
                draft.different(
                    node,
                    "weir balances by the number of connections here, not by response times",
                );
                "balance least"
            }
            ("hash", "$remote_addr" | "$binary_remote_addr") => "balance hash key=\"client-ip\"",
            ("hash", _) => {
                return draft.lost(node, "weir hashes only the client's address for connections");
            }
            ("zone", _) => return draft.unneeded("zone"),
            ("resolver" | "resolver_timeout", _) => return draft.missing(node, Missing::Discovery),
            _ => return draft.missing(node, Missing::Nothing),
        };
        draft.upstreams[upstream].lines.push(line.to_owned());
    }

    /// Whether only some clients may connect. Single clients that are kept out are noted.
    fn keeps_some_out(&mut self, at: usize) -> bool {
        let tree = self.nginx.tree;
        let scripts = [
            "js_access",
            "js_preread",
            "access_by_lua",
            "access_by_lua_block",
            "access_by_lua_file",
            "preread_by_lua",
            "preread_by_lua_block",
            "preread_by_lua_file",
        ];
        let script = scripts.iter().find_map(|name| self.nginx.one(at, name));
        let lines: Vec<&Node> =
            match tree.effective(at, "allow").first().or(tree.effective(at, "deny").first()) {
                // Those of a block replace those around it.
                Some(_) => {
                    let block = self.nginx.access_block(at);
                    let all = tree.children(block).map(|(_, node)| node);
                    all.filter(|node| matches!(node.name(), "allow" | "deny")).collect()
                }
                None => Vec::new(),
            };
        // `allow` for one whole family does not admit all clients.
        let is_all = |node: &&&Node| {
            node.argument(1) == "all" || node.name() == "deny" && node.argument(1).ends_with("/0")
        };
        // The first one that is about all clients decides about the rest.
        let rest = lines.iter().find(is_all).filter(|node| node.name() == "deny");
        let closes = script.or(rest.copied());
        if let Some(node) = closes {
            self.nginx.draft.note(node.place, Kind::Closed, &node.shown(), CLOSES);
            return true;
        }
        for node in
            lines.iter().take_while(|node| !is_all(node)).filter(|node| node.name() == "deny")
        {
            self.nginx.draft.lost(node, LET_IN);
        }
        false
    }

    fn times(&mut self, tcp: &mut Tcp, at: usize) {
        let node = &self.nginx.tree.nodes[at];
        // The defaults of nginx.
        for (theirs, ours, default) in [
            ("proxy_timeout", "idle-timeout", 600_000_000),
            ("preread_timeout", "hello-timeout", 30_000_000),
        ] {
            let said = self.nginx.one(at, theirs);
            match said.map_or(Some(default), |node| time(node.argument(1))) {
                Some(us) => tcp.time(self.nginx.draft, said.unwrap_or(node), ours, us),
                None => self.nginx.draft.lost(said.unwrap_or(node), "this is not a time"),
            }
        }
        if !self.is_on(at, "proxy_half_close") {
            let why = "when one side ends, nginx closes the other; weir keeps it open for \
                `half-close-timeout`, as with `proxy_half_close on`";
            self.nginx.draft.different_once(node, why);
        }
    }

    /// Converts `limit_conn`. weir has one limit of open connections, for all listeners together.
    fn limits(&mut self, served: &[usize]) {
        let tree = self.nginx.tree;
        let alone = self.nginx.draft.routes.is_empty();
        let of_server =
            |at: usize| tree.effective(at, "limit_conn").iter().map(|at| &tree.nodes[*at]);
        let mut seen = BTreeSet::new();
        for (at, node) in served.iter().flat_map(|at| of_server(*at).map(|node| (*at, node))) {
            if !seen.insert(node.place) {
                continue;
            }
            let (name, max) =
                (node.argument(1), node.argument(2).parse::<u64>().unwrap_or_default());
            let zone = self.tops.iter().flat_map(|top| tree.named(*top, "limit_conn_zone"));
            let is_named = |zone: &&Node| {
                zone.arguments().any(|word| word.starts_with(&format!("zone={name}:")))
            };
            let key =
                zone.filter(is_named).map(|zone| zone.argument(1)).next_back().unwrap_or_default();
            if !matches!(key, "$binary_remote_addr" | "$remote_addr")
                || !(1..=1_000_000).contains(&max)
            {
                let why = "weir limits open connections of each address of a client, to a number \
                    from 1 to 1000000";
                self.nginx.draft.lost(node, why);
                continue;
            }
            let same =
                |other: &Node| (other.argument(1), other.argument(2)) == (name, node.argument(2));
            let is_for_all = alone && served.iter().all(|at| of_server(*at).any(same));
            if !is_for_all {
                let why = "weir counts connections to every `listen`, but this applies to some: it \
                    only observes until you remove `observe`";
                self.nginx.draft.different(node, why);
            }
            self.nginx.draft.limit(Limit {
                place: node.place,
                what: node.shown(),
                name: name.to_owned(),
                measure: Measure::Number { count: "open", max },
                status: "",
                by: String::new(),
                over: Some("close".to_owned()),
                observe: !is_for_all || self.is_on(at, "limit_conn_dry_run"),
                hammer: false,
                requests: Requests::default(),
            });
        }
    }
}

/// Returns the value of `listen`, as weir writes it: one for each port, and of both families for a
/// dual-stack socket. None: too many ports, or no range.
fn addresses(text: &str, both: bool) -> Option<Vec<String>> {
    let range = text.rsplit_once(':').unwrap_or(("", text));
    let ports = range.1.split_once('-').filter(|_| !text.starts_with(UNIX));
    let mut all = match ports {
        Some((first, last)) => {
            let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
            if first > last || last - first >= PORTS_MAX {
                return None;
            }
            let host = if range.0.is_empty() { "*" } else { range.0 };
            (first..=last).map(|port| super::address(&format!("{host}:{port}"))).collect()
        }
        None => vec![super::address(text)],
    };
    let others: Vec<String> = all
        .iter()
        .filter_map(|one| Some(format!("0.0.0.0:{}", one.strip_prefix("[::]:")?)))
        .collect();
    all.extend(others.into_iter().filter(|_| both));
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_as_weir_writes_them() {
        for (text, both, ours) in [
            ("5432", false, &["0.0.0.0:5432"][..]),
            ("*:7000-7002", false, &["0.0.0.0:7000", "0.0.0.0:7001", "0.0.0.0:7002"]),
            ("8000-8001", false, &["0.0.0.0:8000", "0.0.0.0:8001"]),
            ("[::]:443", true, &["[::]:443", "0.0.0.0:443"]),
            ("[::]:443", false, &["[::]:443"]),
            ("unix:/run/a:1-2", false, &["unix:/run/a:1-2"]),
        ] {
            let ours: Vec<String> = ours.iter().map(ToString::to_string).collect();
            assert_eq!(addresses(text, both), Some(ours), "{text}");
        }
        for text in ["10.0.0.1:2-1", "1-101", "a-b", "1-65536"] {
            assert_eq!(addresses(text, false), None, "{text}");
        }
        assert_eq!(addresses("1-100", false).map(|all| all.len()), Some(100));
    }
}
