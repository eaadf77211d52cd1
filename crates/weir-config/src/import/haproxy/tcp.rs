//! `mode tcp` of HAProxy: a frontend becomes a `tcp` block, its backends upstreams. Called for each
//! `frontend` and `listen`.
//!
//! Servers are in `haproxy/tcp/server.rs`, access rules and TLS server names in
//! `haproxy/tcp/rules.rs`, all other lines in `haproxy/tcp/fate.rs`.

mod fate;
mod rules;
mod server;

use weir_proxy::plan::UNIX;

use super::super::draft::BLOCKS_MAX;
use super::super::keepalive::Times;
use super::super::notes::Kind;
use super::super::tcp::{CLOSES, Lead, Tcp};
use super::super::tree::Node;
use super::Haproxy;
use super::bind::{ONE_INTERFACE, OWN_NAMESPACE, addresses};
use super::fate::time;

pub(super) use fate::tell_of;

/// The note on times that differ.
const ONE_IDLE: &str =
    "weir has one `idle-timeout` and one `half-close-timeout` for each `tcp`, and uses the largest";

/// Converts a frontend, or a `listen`.
pub(super) fn frontend(haproxy: &mut Haproxy<'_, '_, '_>, at: usize) {
    let tree = haproxy.tree;
    let node = &tree.nodes[at];
    let mut tcp = Tcp::new(node.place, node.shown());
    let expects = rules::expects_header(haproxy, at);
    for line in tree.named(at, "bind") {
        bind(haproxy, &mut tcp, line, expects);
    }
    if tcp.is_unreachable() {
        return haproxy.draft.lost(node, "it has no `bind` that could be carried over");
    }
    if let Some(text) = asked(haproxy, at, "clitcpka") {
        tcp.ask(None, &text);
    }
    let refuses = rules::requests(haproxy, at, &mut tcp);
    let mut leads = Leads { at, sections: Vec::new(), closes: false };
    let is_open = leads.by_name(haproxy, &mut tcp);
    if is_open {
        leads.others(haproxy, &mut tcp);
    }
    if !tcp.leads_somewhere() {
        return haproxy.draft.lost(node, "none of its servers could be carried over");
    }
    rules::tell_of_names(haproxy, &tcp, &refuses);
    times(haproxy, &mut tcp, at, &leads.sections);
    if refuses.closes || leads.closes {
        tcp.close();
    }
    haproxy.draft.tcps.push(tcp);
}

/// Adds the listeners of a `bind` line.
fn bind(haproxy: &mut Haproxy<'_, '_, '_>, tcp: &mut Tcp, node: &Node, expects: bool) {
    let has = |word: &str| node.arguments().any(|other| other == word);
    let words: Vec<&str> = node.arguments().collect();
    let value = |name: &str| {
        words.iter().position(|word| *word == name).and_then(|at| words.get(at + 1).copied())
    };
    let draft = &mut *haproxy.draft;
    if has("ssl") {
        let why = "`tcp` forwards bytes unchanged: weir terminates TLS only for requests; install \
            the certificate on the server";
        return draft.lost(node, why);
    }
    if has("accept-netscaler-cip") {
        return draft.lost(node, "weir supports only the PROXY protocol");
    }
    if has("interface") {
        draft.different(node, ONE_INTERFACE);
    }
    if has("namespace") {
        draft.different(node, OWN_NAMESPACE);
    }
    let announced = has("accept-proxy") || expects;
    for text in node.argument(1).split(',') {
        let path = text.strip_prefix("unix@").or(Some(text).filter(|text| text.starts_with('/')));
        let all = match path {
            Some(path) => Some(vec![format!("{UNIX}{path}")]),
            None if text.find('@').is_some_and(|at| !matches!(&text[..at], "ipv4" | "ipv6")) => {
                None
            }
            None => addresses(text, has("v4v6")),
        };
        let Some(all) = all else {
            draft.lost(
                node,
                "weir can listen only on an address with one port or a few, or on the path of a \
                    unix socket",
            );
            continue;
        };
        let rights = [("mode", value("mode")), ("group", value("group").or(value("gid")))];
        all.iter().for_each(|address| tcp.listen(draft, node, address, announced, rights));
        if path.is_some() && value("user").or(value("uid")).is_some() {
            draft.lost(
                node,
                "a socket belongs to weir's user; `mode` and `group` decide who can connect",
            );
        }
    }
}

/// The targets of the connections of a frontend.
struct Leads {
    at: usize,
    /// The sections of all servers.
    sections: Vec<usize>,
    /// Some connections lead nowhere by a condition that cannot be expressed.
    closes: bool,
}

impl Leads {
    /// Converts `use_backend`, in order; returns whether some connections remain behind them.
    fn by_name(&mut self, haproxy: &mut Haproxy<'_, '_, '_>, tcp: &mut Tcp) -> bool {
        let tree = haproxy.tree;
        let mut lines: Vec<&Node> = tree.named(self.at, "use_backend").collect();
        if let Some(line) = lines.get(BLOCKS_MAX) {
            haproxy.draft.lost(
                line,
                format!(
                    "at most {BLOCKS_MAX} of these are carried over; these connections go to \
                    the default"
                ),
            );
        }
        lines.truncate(BLOCKS_MAX);
        let mut rest = lines.into_iter();
        while let Some(line) = rest.next() {
            if line.words.len() == 2 {
                // A dynamic choice may match no backend.
                let Some(lead) = self.lead(haproxy, line) else { continue };
                tcp.to = Some(lead);
                for later in rest {
                    haproxy.draft.lost(
                        later,
                        "no connection reaches this rule: an earlier rule takes them all",
                    );
                }
                return false;
            }
            let Some(names) = rules::names(haproxy, self.at, line) else {
                let to = haproxy.named.get(line.argument(1));
                if to.is_some_and(|section| tree.indices(*section, "server").is_empty()) {
                    self.closes |= rules::keeps_out(haproxy, self.at, line);
                    continue;
                }
                let why = "weir chooses servers of connections only by the TLS name, \
                    `req.ssl_sni`; these go to the default";
                haproxy.draft.lost(line, why);
                continue;
            };
            let Some(lead) = self.lead(haproxy, line) else { continue };
            let taken: Vec<bool> = names.iter().map(|name| tcp.name(name, lead)).collect();
            if !taken.contains(&true) {
                haproxy
                    .draft
                    .lost(line, "no connection reaches this rule: earlier rules take them all");
            }
        }
        true
    }

    /// Converts `default_backend`, or its own servers.
    fn others(&mut self, haproxy: &mut Haproxy<'_, '_, '_>, tcp: &mut Tcp) {
        let tree = haproxy.tree;
        if let Some(line) = haproxy.one(self.at, &["default_backend"]) {
            tcp.to = self.lead(haproxy, line);
        } else if !tree.indices(self.at, "server").is_empty() {
            tcp.to = Some(self.to(haproxy, &tree.nodes[self.at], self.at));
        }
    }

    /// Returns the target that a line names. None: it does not exist, which has been noted.
    fn lead(&mut self, haproxy: &mut Haproxy<'_, '_, '_>, line: &Node) -> Option<Lead> {
        let Some(backend) = haproxy.named.get(line.argument(1)).copied() else {
            let why = "no backend has this name; weir cannot choose a backend by the content of a \
                connection";
            haproxy.draft.lost(line, why);
            return None;
        };
        Some(self.to(haproxy, line, backend))
    }

    fn to(&mut self, haproxy: &mut Haproxy<'_, '_, '_>, line: &Node, section: usize) -> Lead {
        if let Some(refuses) = rules::refusal(haproxy, self.at, section) {
            haproxy.draft.note(refuses.place, Kind::Closed, &refuses.shown(), CLOSES);
            return Lead::Closed;
        }
        let Some(upstream) = server::backend(haproxy, section) else {
            haproxy.draft.lost(
                line,
                "none of its servers could be carried over: weir resets these connections",
            );
            return Lead::Closed;
        };
        if !self.sections.contains(&section) {
            self.sections.push(section);
        }
        Lead::Upstream(upstream)
    }
}

/// Returns how long a connection from a frontend to the servers of a section may be idle, and how
/// long when one side has ended. None: for ever.
fn idle(haproxy: &Haproxy<'_, '_, '_>, frontend: usize, section: usize) -> [Option<u64>; 2] {
    let us = |section: usize, name: &str| {
        time(haproxy.one(section, &["timeout", name])?.argument(2)).filter(|us| *us > 0)
    };
    let least = |client: &str, server: &str| {
        let both = [us(frontend, client), us(section, server)];
        both.into_iter().flatten().min()
    };
    // A time-out for tunnels replaces the other two.
    let whole = us(section, "tunnel").or_else(|| least("client", "server"));
    [whole, least("client-fin", "server-fin").or(whole)]
}

/// Returns when the connections of a side are probed, if that is on and times are set: `clitcpka`
/// or `srvtcpka`.
fn asked(haproxy: &mut Haproxy<'_, '_, '_>, at: usize, side: &str) -> Option<String> {
    let is_off = |line: &Node| {
        line.argument(1) == "option" && (line.argument(2) == side || line.argument(2) == "tcpka")
    };
    if haproxy.tree.named(at, "no").any(is_off) {
        return None;
    }
    haproxy.one(at, &["option", side]).or_else(|| haproxy.one(at, &["option", "tcpka"]))?;
    let line = |what: &str| haproxy.one(at, &[&format!("{side}-{what}")]);
    let [idle, interval, probes] = ["idle", "intvl", "cnt"].map(line);
    let first = idle.or(interval).or(probes)?;
    // A bare number is in seconds here.
    let us = |line: &Node| match line.argument(1).parse::<u64>() {
        Ok(seconds) => seconds.checked_mul(1_000_000),
        Err(_) => time(line.argument(1)),
    };
    let times = Times {
        idle_us: idle.and_then(us),
        interval_us: interval.and_then(us),
        probes: probes.and_then(|line| line.argument(1).parse().ok()),
    };
    let said = [idle.is_some(), interval.is_some(), probes.is_some()];
    if times.said() != said {
        haproxy.draft.lost(first, "these are not times, or not a number");
        return None;
    }
    Some(times.text(haproxy.draft, first))
}

fn times(haproxy: &mut Haproxy<'_, '_, '_>, tcp: &mut Tcp, at: usize, sections: &[usize]) {
    let node = &haproxy.tree.nodes[at];
    let all: Vec<[Option<u64>; 2]> =
        sections.iter().map(|section| idle(haproxy, at, *section)).collect();
    if all.iter().any(|other| *other != all[0]) {
        haproxy.draft.different(node, ONE_IDLE);
    }
    for (which, name) in ["idle-timeout", "half-close-timeout"].into_iter().enumerate() {
        let largest = all
            .iter()
            .map(|times| times[which])
            .collect::<Option<Vec<u64>>>()
            .and_then(|all| all.into_iter().max());
        match largest {
            Some(us) => tcp.time(haproxy.draft, node, name, us),
            None if which == 0 => {
                let why = "nothing closes idle connections here; weir closes them after \
                    `idle-timeout`, by default 1h";
                haproxy.draft.different_once(node, why);
            }
            None => {}
        }
    }
}
