//! `backend` of HAProxy in `mode tcp`: servers, how one is chosen, how they are watched.

use std::collections::BTreeMap;

use super::super::super::draft::{BLOCKS_MAX, Server};
use super::super::super::missing::Missing;
use super::super::super::notes::Kind;
use super::super::super::tree::Node;
use super::super::Haproxy;
use super::super::backend::{WITH_VALUE, WITHOUT_VALUE, address};
use super::super::fate::time;
use crate::units::time_text;

/// Words behind a server that weir has nothing of, with a value and without.
const LOST_WITH_VALUE: [&str; 6] = ["observe", "on-error", "on-marked-up", "on-marked-down", "error-limit", "source"];
/// Words about the probe alone, with a value.
const OF_PROBES: [&str; 4] = ["port", "addr", "fastinter", "downinter"];

/// Words about TLS to a server, with a value; without `ssl` they say nothing of connections.
const OF_TLS: [&str; 8] = ["verify", "ca-file", "crl-file", "crt", "sni", "verifyhost", "ssl-min-ver", "ssl-max-ver"];

/// What the servers of a backend say together.
#[derive(Default)]
struct Said {
    /// `interval`, `rise`, `fall`, as weir writes them.
    probes: BTreeMap<&'static str, String>,
    checked: usize,
    unchecked: usize,
    /// Versions of the PROXY protocol, one for each server.
    headers: Vec<Option<&'static str>>,
    slow_start_us: u64,
}

impl Said {
    /// `inter`, `rise`, `fall`.
    fn probe(&mut self, word: &str, value: &str) {
        let count = || value.parse::<u64>().ok().map(|count| count.clamp(1, 100).to_string());
        let (name, value) = match word {
            "inter" => {
                let us = time(value).map(|us| us.clamp(100_000, 86_400_000_000));
                ("interval", us.map(|us| format!("\"{}\"", time_text(us))))
            }
            "rise" => ("rise", count()),
            _ => ("fall", count()),
        };
        self.probes.extend(value.map(|value| (name, value)));
    }
}

/// The upstream of a section; None: there is none that works.
pub(super) fn backend(haproxy: &mut Haproxy<'_, '_, '_>, at: usize) -> Option<usize> {
    if let Some(known) = haproxy.passed.get(&at) {
        return *known;
    }
    let tree = haproxy.tree;
    let node = &tree.nodes[at];
    if haproxy.mode(at) != "tcp" {
        haproxy.draft.lost(node, "it has not `mode tcp`, and connections as they are lead to it");
        haproxy.passed.insert(at, None);
        return None;
    }
    if haproxy.draft.upstreams.len() >= BLOCKS_MAX {
        haproxy.draft.lost(node, format!("weir takes at most {BLOCKS_MAX} upstreams"));
        haproxy.passed.insert(at, None);
        return None;
    }
    let upstream = haproxy.draft.upstream(node.place, node.argument(1));
    haproxy.draft.upstreams[upstream].is_tcp = true;
    let mut said = Said::default();
    for line in tree.named(at, "server") {
        server_line(haproxy, (at, upstream), line, &mut said);
    }
    for line in tree.named(at, "server-template") {
        haproxy.draft.missing(line, Missing::Discovery);
    }
    let servers = &mut haproxy.draft.upstreams[upstream].servers;
    if servers.iter().all(|server| server.backup) {
        servers.iter_mut().for_each(|server| server.backup = false);
    }
    let is_empty = servers.is_empty();
    if let Some(version) = said.headers.iter().find_map(|header| *header) {
        line(haproxy, upstream, format!("proxy-protocol \"{version}\""));
        if said.headers.iter().any(|header| *header != Some(version)) {
            let why = "`send-proxy` to a group of servers is the same for all in weir; the first one is taken for all";
            haproxy.draft.different(node, why);
        }
    }
    balance(haproxy, at, upstream);
    sticky(haproxy, at);
    health(haproxy, at, upstream, &said);
    if said.slow_start_us > 0 {
        line(haproxy, upstream, format!("slow-start \"{}\"", time_text(said.slow_start_us.min(3_600_000_000))));
    }
    if let Some(line) = haproxy.one(at, &["timeout", "connect"]) {
        match time(line.argument(2)) {
            Some(us) => haproxy.draft.amount(Some(upstream), line, "connect-timeout", us),
            None => haproxy.draft.lost(line, "this is no time"),
        }
    }
    let found = (!is_empty).then_some(upstream);
    haproxy.passed.insert(at, found);
    found
}

fn line(haproxy: &mut Haproxy<'_, '_, '_>, upstream: usize, line: String) {
    haproxy.draft.upstreams[upstream].lines.push(line);
}

/// What stands behind a server: what `default-server` says for it first.
fn words<'t>(haproxy: &Haproxy<'t, '_, '_>, section: usize, line: &'t Node) -> Vec<&'t str> {
    let tree = haproxy.tree;
    let sections = haproxy.defaults.get(&section).copied().flatten().into_iter().chain([section]);
    let defaults = sections.flat_map(|section| tree.named(section, "default-server")).flat_map(Node::arguments);
    defaults.chain(line.arguments().skip(2)).collect()
}

fn server_line<'t>(
    haproxy: &mut Haproxy<'t, '_, '_>,
    (section, upstream): (usize, usize),
    line: &'t Node,
    said: &mut Said,
) {
    let address = match address(line) {
        Ok(address) => address,
        Err(why) => return haproxy.draft.lost(line, why),
    };
    let mut server = Server { place: line.place, address, weight: 0, backup: false, connections: None };
    let (mut unused, mut header, mut checks, mut speaks_tls) = (false, None, false, false);
    let mut words = words(haproxy, section, line).into_iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_default();
        match word {
            "check" | "no-check" => checks = word == "check",
            "backup" | "no-backup" => server.backup = word == "backup",
            "disabled" | "enabled" => unused = word == "disabled",
            "weight" => {
                server.weight = value().parse().unwrap_or(1);
                unused |= server.weight == 0;
            }
            "maxconn" => server.connections = value().parse().ok().filter(|most| *most > 0),
            "inter" | "rise" | "fall" => said.probe(word, value()),
            "slowstart" => said.slow_start_us = time(value()).unwrap_or_default().max(said.slow_start_us),
            "ssl" | "no-ssl" => speaks_tls = word == "ssl",
            "no-send-proxy" | "no-send-proxy-v2" => header = None,
            _ if word.starts_with("send-proxy") => header = Some(haproxy.version(line, word)),
            "proxy-v2-options" => drop((value(), haproxy.version(line, "send-proxy-v2-ssl"))),
            "resolvers" => {
                value();
                haproxy.draft.note(line.place, Kind::Different, &line.shown(), Missing::Discovery.why());
            }
            _ if OF_PROBES.contains(&word) => {
                value();
                haproxy.draft.different(line, "weir probes the address of the server, always at the same `interval`");
            }
            _ if LOST_WITH_VALUE.contains(&word) => {
                value();
                haproxy.draft.lost(line, format!("weir has nothing like `{word}`"));
            }
            "check-ssl" => haproxy.draft.lost(line, "a probe of servers for `tcp` is a connect"),
            "cookie" => drop(value()),
            _ if OF_TLS.contains(&word) => drop(value()),
            _ if WITH_VALUE.contains(&word) => drop(value()),
            _ if WITHOUT_VALUE.contains(&word) => {}
            _ => haproxy.draft.lost(line, format!("weir has nothing like `{word}`")),
        }
    }
    if speaks_tls {
        let why = "`tcp` passes bytes on as they are, and can't speak TLS to servers where clients don't";
        return haproxy.draft.lost(line, why);
    }
    if unused {
        let why = "it is disabled or has no weight; `weir server disable` does that while weir runs";
        return haproxy.draft.lost(line, why);
    }
    if server.connections.is_some() {
        let why =
            "HAProxy lets more than `maxconn` wait; weir gives them to other servers, and resets those that none takes";
        haproxy.draft.different_once(line, why);
    }
    *(if checks { &mut said.checked } else { &mut said.unchecked }) += 1;
    said.headers.push(header);
    haproxy.draft.server(upstream, line, server);
}

fn sticky(haproxy: &mut Haproxy<'_, '_, '_>, at: usize) {
    let tree = haproxy.tree;
    let is_limit = haproxy.tables.contains(&at);
    for line in tree.named(at, "stick").chain(tree.named(at, "stick-table").filter(|_| !is_limit)) {
        let why = "weir has no tables; `balance \"hash\" key=\"client-ip\"` finds the same server again";
        haproxy.draft.lost(line, why);
    }
}

fn balance(haproxy: &mut Haproxy<'_, '_, '_>, at: usize, upstream: usize) {
    let Some(node) = haproxy.one(at, &["balance"]) else { return };
    let ours = match node.argument(1) {
        "roundrobin" | "static-rr" => return,
        "leastconn" => "balance least",
        method if method.starts_with("random") => "balance least",
        "source" => "balance hash key=\"client-ip\"",
        _ => return haproxy.draft.lost(node, "of a connection weir hashes the client's address alone"),
    };
    line(haproxy, upstream, ours.to_owned());
}

fn health(haproxy: &mut Haproxy<'_, '_, '_>, at: usize, upstream: usize, said: &Said) {
    if said.checked == 0 {
        return;
    }
    if said.unchecked > 0 {
        haproxy
            .draft
            .different(&haproxy.tree.nodes[at], "weir probes all servers of a group, also those without `check`");
    }
    let options: String = said.probes.iter().map(|(name, value)| format!(" {name}={value}")).collect();
    line(haproxy, upstream, format!("health{options}"));
}
