//! `backend` of HAProxy: servers, load balancing, health checks.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use weir_proxy::plan::UNIX;

use super::super::draft::Server;
use super::super::missing::Missing;
use super::super::notes::Kind;
use super::super::tree::Node;
use super::server::{self, Settings};
use super::{DISABLED, Haproxy};
use crate::reverse::literal;
use crate::texts;
use crate::units::time_text;

/// The note on a group in which some servers have no `check`.
pub(super) const PROBES_ALL: &str =
    "weir probes all servers of a group, including those without `check`";

/// The common settings of the servers of a backend.
#[derive(Default)]
struct Said {
    tls: Option<BTreeMap<&'static str, String>>,
    /// `inter`, `rise`, `fall`, as weir writes them.
    probes: BTreeMap<&'static str, String>,
    checked: bool,
    unchecked: bool,
    slow_start_us: u64,
    plain: bool,
    /// Version of the PROXY protocol.
    header: Option<&'static str>,
    /// Some servers have none.
    bare: bool,
}

impl<'t> Haproxy<'t, '_, '_> {
    /// Returns the upstream of a section.
    pub(super) fn backend(&mut self, at: usize) -> Option<usize> {
        if let Some(known) = self.backends.get(&at) {
            return *known;
        }
        let tree = self.tree;
        let node = &tree.nodes[at];
        if self.is_disabled(at) {
            self.draft.lost(node, DISABLED);
            self.backends.insert(at, None);
            return None;
        }
        if self.mode(at) != "http" {
            self.draft.lost(node, "it takes requests, but does not have `mode http`");
            self.backends.insert(at, None);
            return None;
        }
        let upstream = self.draft.upstream(node.place, node.argument(1));
        let mut said = Said::default();
        for (line, settings) in server::servers(self, at) {
            self.server_line(upstream, line, &settings, &mut said);
        }
        for line in tree.named(at, "server-template") {
            self.draft.missing(line, Missing::Discovery);
        }
        let servers = &mut self.draft.upstreams[upstream].servers;
        if servers.iter().all(|server| server.backup) {
            servers.iter_mut().for_each(|server| server.backup = false);
        }
        let is_empty = servers.is_empty();
        if said.tls.is_some() && said.plain {
            self.draft.different(
                node,
                "an upstream of weir cannot mix servers with and without TLS: now all have it",
            );
        }
        self.draft.upstreams[upstream].tls = said.tls.clone();
        if let Some(version) = said.header {
            self.draft.announce(upstream, node, version);
            if said.bare {
                self.draft.different(
                    node,
                    "weir uses one `send-proxy` for all servers of a group: now all have it",
                );
            }
        }
        self.balance(at, upstream);
        self.sticky(at, upstream);
        self.health(at, upstream, &said);
        if said.slow_start_us > 0 {
            self.line(
                upstream,
                format!("slow-start \"{}\"", time_text(said.slow_start_us.min(3_600_000_000))),
            );
        }
        // HAProxy has one time-out for the wait for a response and for a pause within it.
        for (words, name) in [
            (["timeout", "connect"], "connect-timeout"),
            (["timeout", "server"], "forward-timeout"),
            (["timeout", "server"], "answer-timeout"),
        ] {
            if let Some(line) = self.one(at, &words) {
                match super::fate::time(line.argument(2)) {
                    Some(us) => self.draft.time_limit(Some(upstream), line, name, us),
                    None => self.draft.lost(line, "this is not a time"),
                }
            }
        }
        self.queue_timeout(at, upstream);
        let found = (!is_empty).then_some(upstream);
        self.backends.insert(at, found);
        found
    }

    /// Sets the longest wait for a server with `maxconn`: `timeout queue`, or without that `timeout
    /// connect`.
    fn queue_timeout(&mut self, at: usize, upstream: usize) {
        let ours = &self.draft.upstreams[upstream];
        let forward_us = ours.amounts.get("forward-timeout").unwrap_or(60_000_000);
        if ours.servers.iter().all(|server| server.connections.is_none()) {
            return;
        }
        let line =
            self.one(at, &["timeout", "queue"]).or_else(|| self.one(at, &["timeout", "connect"]));
        let us = line.and_then(|line| Some((line, super::fate::time(line.argument(2))?)));
        match us {
            Some((line, us)) if (1..forward_us).contains(&us) => {
                self.draft.amount(Some(upstream), line, "queue-timeout", us);
            }
            Some((line, _)) if line.argument(1) == "queue" => self.draft.different(
                line,
                "in weir the wait for a server counts in `forward-timeout`, which is no longer",
            ),
            _ => {}
        }
    }

    fn server_line(
        &mut self,
        upstream: usize,
        line: &'t Node,
        settings: &Settings<'t>,
        said: &mut Said,
    ) {
        let address = match address(line) {
            Ok(address) => address,
            Err(why) => return self.draft.lost(line, why),
        };
        if settings.is_unused() {
            return self.draft.lost(
                line,
                "it is disabled or has no weight; use `weir server disable` while weir runs",
            );
        }
        if settings.checks {
            said.checked = true;
            settings.add_probes(self, line, &mut said.probes);
            if settings.checks_by_tls && !settings.speaks_tls {
                self.draft.lost(line, "weir probes with TLS only where it sends requests with TLS");
            }
        } else {
            said.unchecked = true;
        }
        said.slow_start_us = said.slow_start_us.max(settings.slow_start_us);
        self.take_tls(line, settings, said);
        self.take_header(line, settings.header(), said);
        let (weight, backup, connections) =
            (settings.weight(), settings.backup, settings.connections);
        self.draft.server(
            upstream,
            line,
            Server { place: line.place, address, weight, backup, connections },
        );
    }

    /// The PROXY protocol is also common to the group.
    fn take_header(&mut self, line: &Node, header: Option<&'static str>, said: &mut Said) {
        match header {
            None => said.bare = true,
            Some(version) if *said.header.get_or_insert(version) != version => {
                let why = "weir uses one `send-proxy` for all servers of a group, the first one";
                self.draft.different(line, why);
            }
            Some(_) => {}
        }
    }

    /// In weir, TLS is common to the whole group.
    fn take_tls(&mut self, line: &Node, settings: &Settings<'t>, said: &mut Said) {
        if !settings.speaks_tls {
            said.plain = true;
            return;
        }
        let mut options = self.tls_options(settings);
        if let Some((says, "none")) = settings.tls.get("verify") {
            options.remove("ca");
            options.insert("verify", "#false".to_owned());
            self.draft.different(
                says,
                "`verify=#false` as here: an attacker between weir and the server can read \
                    everything",
            );
        }
        if said.tls.get_or_insert_with(|| options.clone()) != &options {
            self.draft.different(
                line,
                "weir uses one TLS setting for all servers of a group, the first one",
            );
        }
    }

    /// Returns options of `tls`, as weir writes them, without `verify`.
    fn tls_options(&mut self, settings: &Settings<'t>) -> BTreeMap<&'static str, String> {
        let mut options = BTreeMap::new();
        for (word, (line, value)) in &settings.tls {
            match *word {
                "ca-file" if *value == "@system-ca" => {
                    drop(options.insert("ca", "system".to_owned()))
                }
                "ca-file" | "crt" => {
                    let name = if *word == "crt" { "certificate" } else { "ca" };
                    options.extend(self.draft.file(line, value).map(|path| (name, literal(&path))));
                }
                "sni" | "verifyhost" => {
                    let name = value
                        .strip_prefix("str(")
                        .and_then(|name| name.strip_suffix(')'))
                        .unwrap_or(value);
                    match texts::peer_name(name).map(|name| literal(&name)) {
                        Ok(name)
                            if options
                                .insert("name", name.clone())
                                .is_some_and(|other| other != name) =>
                        {
                            self.draft.different(
                                line,
                                "weir sends the name that it verifies, that of `verifyhost`",
                            );
                        }
                        Ok(_) => {}
                        Err(why) => self.draft.note(
                            line.place,
                            Kind::Different,
                            &format!("{word} {name}"),
                            why,
                        ),
                    }
                }
                "verify" => {}
                _ => self.draft.lost(line, format!("weir has no equivalent of `{word}`")),
            }
        }
        options
    }

    fn line(&mut self, upstream: usize, line: String) {
        self.draft.upstreams[upstream].lines.push(line);
    }

    fn balance(&mut self, at: usize, upstream: usize) {
        let Some(node) = self.one(at, &["balance"]) else { return };
        let method = node.argument(1);
        let inside =
            |start: &str| method.strip_prefix(start).and_then(|rest| rest.strip_suffix(')'));
        let line = match method {
            "roundrobin" | "static-rr" => return,
            "leastconn" => "balance least".to_owned(),
            _ if method.starts_with("random") => "balance least".to_owned(),
            "source" => "balance hash key=\"client-ip\"".to_owned(),
            "uri" => "balance hash key=\"uri\"".to_owned(),
            "hdr" | "hash" => {
                return self
                    .draft
                    .lost(node, "weir hashes by `uri`, `client-ip`, a header or a cookie");
            }
            _ => match inside("hdr(").map(|name| texts::balance_key(&format!("header:{name}"))) {
                Some(Ok(key)) => format!("balance hash key={}", literal(&key)),
                _ => {
                    return self
                        .draft
                        .lost(node, "weir hashes by `uri`, `client-ip`, a header or a cookie");
                }
            },
        };
        self.line(upstream, line);
    }

    /// Converts `cookie NAME insert ...`.
    fn sticky(&mut self, at: usize, upstream: usize) {
        let tree = self.tree;
        let tables = tree.named(at, "stick-table").filter(|_| !self.tables.contains(&at));
        for line in tree.named(at, "stick").chain(tables) {
            self.draft.lost(
                line,
                "weir has no tables; use `balance \"hash\"` or `sticky` to return to \
                    the same server",
            );
        }
        let Some(node) = self.one(at, &["cookie"]) else { return };
        let has = |word: &str| node.arguments().any(|other| other == word);
        let name = node.argument(1);
        if !has("insert") || texts::cookie_name(name).is_err() {
            return self.draft.lost(node, "weir's `sticky` sets its own cookie");
        }
        let mut line = format!("sticky cookie={}", literal(name));
        if !has("httponly") {
            line.push_str(" http-only=#false");
        }
        if has("secure") {
            line.push_str(" secure=#true");
        }
        self.draft.different(
            node,
            "weir uses other values: each session is assigned to a server again, once",
        );
        self.line(upstream, line);
    }

    fn health(&mut self, at: usize, upstream: usize, said: &Said) {
        let httpchk = self.one(at, &["option", "httpchk"]);
        if !said.checked {
            return;
        }
        let Some(httpchk) = httpchk else {
            let node = &self.tree.nodes[at];
            return self.draft.different(
                node,
                "`check` alone only connects, and weir detects lost connections without it; \
                    `health { path \"/\"; }` sends requests",
            );
        };
        let (mut method, mut path, mut host) = match (httpchk.argument(2), httpchk.argument(3)) {
            ("", _) => ("OPTIONS", "/", None),
            (path, "") => ("OPTIONS", path, None),
            (method, path) => (method, path, None),
        };
        let mut expected = None;
        let tree = self.tree;
        for line in tree.named(at, "http-check") {
            let mut words = line.arguments().skip(1);
            match line.argument(1) {
                "send" => {
                    while let Some(word) = words.next() {
                        match word {
                            "meth" => method = words.next().unwrap_or_default(),
                            "uri" => path = words.next().unwrap_or_default(),
                            "hdr"
                                if words
                                    .next()
                                    .is_some_and(|name| name.eq_ignore_ascii_case("host")) =>
                            {
                                host = words.next()
                            }
                            _ => {}
                        }
                    }
                }
                "expect" => expected = self.expected(line),
                _ => self.draft.lost(line, "a probe of weir is one request; see `health`"),
            }
        }
        if texts::probe_path(path).is_err() || !matches!(method, "GET" | "HEAD" | "OPTIONS") {
            return self.draft.lost(httpchk, "weir probes with GET, HEAD or OPTIONS and a path");
        }
        let mut line = format!("health path={} method={method}", literal(path));
        if let Some(host) = host.and_then(|host| texts::probe_host(host).ok()) {
            let _ = write!(line, " host={}", literal(&host));
        }
        for (name, value) in expected.iter().map(|(name, value)| (name, value)).chain(&said.probes)
        {
            let _ = write!(line, " {name}={value}");
        }
        if said.unchecked {
            self.draft.different(&tree.nodes[at], PROBES_ALL);
        }
        self.line(upstream, line);
    }

    /// Returns the option for `http-check expect`.
    fn expected(&mut self, line: &'t Node) -> Option<(&'static str, String)> {
        let (kind, value) = (line.argument(2), line.words[3.min(line.words.len())..].join(" "));
        let found = match kind {
            "status" => texts::codes(&value).ok().map(|codes| ("expect-status", literal(&codes))),
            "string" => texts::probe_text(&value).ok().map(|text| ("expect-body", literal(&text))),
            _ => None,
        };
        if found.is_none() {
            self.draft.lost(line, "weir expects a status, one range of them, or a text");
        }
        found
    }
}

/// Returns the address of a server, as weir writes it. Err: why weir cannot connect to it.
pub(super) fn address(line: &Node) -> Result<String, String> {
    let address = line.argument(2);
    match address.split_once('@') {
        Some(("unix", path)) => Ok(format!("{UNIX}{path}")),
        Some(("ipv4" | "ipv6", address)) => Ok(address.to_owned()),
        Some((kind, _)) => Err(format!(
            "weir connects only to TCP ports and to paths of unix sockets, not to `{kind}@`"
        )),
        None if address.starts_with('/') => Ok(format!("{UNIX}{address}")),
        None => Ok(address.to_owned()),
    }
}
