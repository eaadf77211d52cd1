//! `backend` of HAProxy in `mode tcp`: servers, load balancing, health checks.

use std::collections::BTreeMap;

use weir_proxy::plan::UNIX;

use super::super::super::draft::{BLOCKS_MAX, Server};
use super::super::super::missing::Missing;
use super::super::super::tree::Node;
use super::super::backend::{PROBES_ALL, address};
use super::super::fate::time;
use super::super::server::{Settings, servers};
use super::super::{DISABLED, Haproxy};
use crate::reverse::literal;
use crate::units::time_text;

/// The common settings of the servers of a backend.
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

/// Returns the upstream of a section; None: no usable one.
pub(super) fn backend(haproxy: &mut Haproxy<'_, '_, '_>, at: usize) -> Option<usize> {
    if let Some(known) = haproxy.passed.get(&at) {
        return *known;
    }
    let tree = haproxy.tree;
    let node = &tree.nodes[at];
    if haproxy.is_disabled(at) {
        haproxy.draft.lost(node, DISABLED);
        haproxy.passed.insert(at, None);
        return None;
    }
    if haproxy.mode(at) != "tcp" {
        haproxy.draft.lost(node, "it takes unchanged connections, but does not have `mode tcp`");
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
    for (line, settings) in servers(haproxy, at) {
        server_line(haproxy, upstream, (line, &settings), &mut said);
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
            let why = "weir uses one `send-proxy` for all servers of a group, the first one";
            haproxy.draft.different(node, why);
        }
    }
    balance(haproxy, at, upstream);
    sticky(haproxy, at);
    health(haproxy, at, upstream, &said);
    if said.slow_start_us > 0 {
        line(
            haproxy,
            upstream,
            format!("slow-start \"{}\"", time_text(said.slow_start_us.min(3_600_000_000))),
        );
    }
    if let Some(line) = haproxy.one(at, &["timeout", "connect"]) {
        match time(line.argument(2)) {
            Some(us) => haproxy.draft.time_limit(Some(upstream), line, "connect-timeout", us),
            None => haproxy.draft.lost(line, "this is not a time"),
        }
    }
    // The kernel does not probe over a unix socket, and weir rejects the option.
    let is_unix = haproxy.draft.upstreams[upstream]
        .servers
        .iter()
        .any(|server| server.address.starts_with(UNIX));
    if let Some(text) = super::asked(haproxy, at, "srvtcpka").filter(|_| !is_unix) {
        line(haproxy, upstream, format!("tcp-keepalive {}", literal(&text)));
    }
    let found = (!is_empty).then_some(upstream);
    haproxy.passed.insert(at, found);
    found
}

fn line(haproxy: &mut Haproxy<'_, '_, '_>, upstream: usize, line: String) {
    haproxy.draft.upstreams[upstream].lines.push(line);
}

fn server_line<'t>(
    haproxy: &mut Haproxy<'t, '_, '_>,
    upstream: usize,
    (line, settings): (&'t Node, &Settings<'t>),
    said: &mut Said,
) {
    let address = match address(line) {
        Ok(address) => address,
        Err(why) => return haproxy.draft.lost(line, why),
    };
    if settings.speaks_tls {
        let why =
            "`tcp` forwards bytes unchanged, so it cannot use TLS to servers if clients do not";
        return haproxy.draft.lost(line, why);
    }
    if settings.is_unused() {
        let why = "it is disabled or has no weight; use `weir server disable` while weir runs";
        return haproxy.draft.lost(line, why);
    }
    if settings.connections.is_some() {
        let why = "HAProxy queues connections above `maxconn`; weir sends them to other servers, \
            and resets those that none takes";
        haproxy.draft.different_once(line, why);
    }
    if settings.checks {
        said.checked += 1;
        settings.add_probes(haproxy, line, &mut said.probes);
        if settings.checks_by_tls {
            haproxy.draft.lost(line, "weir probes servers for `tcp` by connecting");
        }
    } else {
        said.unchecked += 1;
    }
    said.slow_start_us = said.slow_start_us.max(settings.slow_start_us);
    said.headers.push(settings.header());
    let (weight, backup, connections) = (settings.weight(), settings.backup, settings.connections);
    haproxy.draft.server(
        upstream,
        line,
        Server { place: line.place, address, weight, backup, connections },
    );
}

fn sticky(haproxy: &mut Haproxy<'_, '_, '_>, at: usize) {
    let tree = haproxy.tree;
    let is_limit = haproxy.tables.contains(&at);
    for line in tree.named(at, "stick").chain(tree.named(at, "stick-table").filter(|_| !is_limit)) {
        let why = "weir has no tables; use `balance \"hash\" key=\"client-ip\"` to return to the \
            same server";
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
        _ => {
            return haproxy
                .draft
                .lost(node, "weir hashes only the client's address for connections");
        }
    };
    line(haproxy, upstream, ours.to_owned());
}

fn health(haproxy: &mut Haproxy<'_, '_, '_>, at: usize, upstream: usize, said: &Said) {
    if said.checked == 0 {
        return;
    }
    if said.unchecked > 0 {
        haproxy.draft.different(&haproxy.tree.nodes[at], PROBES_ALL);
    }
    let options: String =
        said.probes.iter().map(|(name, value)| format!(" {name}={value}")).collect();
    line(haproxy, upstream, format!("health{options}"));
}
