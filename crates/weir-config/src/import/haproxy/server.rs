//! The effective settings of a `server` of HAProxy, for requests and for connections that are
//! passed on unchanged. Called by `haproxy/backend.rs` and `haproxy/tcp/server.rs`.
//!
//! A server has the settings of `default-server` above it in its section, and before that those in
//! the `defaults` of its section, and of that section's in turn. Its own words are the last: they
//! override, or take back (`no-ssl`). Bound: lines of a `defaults` are read once for each mode.

use std::collections::BTreeMap;

use super::super::missing::Missing;
use super::super::notes::Kind;
use super::super::tree::Node;
use super::Haproxy;
use super::fate::time;
use crate::units::time_text;

/// Words that need no counterpart in weir, with a value and without.
const WITH_VALUE: [&str; 13] = [
    "id",
    "cookie",
    "pool-max-conn",
    "pool-low-conn",
    "pool-purge-delay",
    "minconn",
    "alpn",
    "check-alpn",
    "ciphers",
    "ciphersuites",
    "init-addr",
    "resolve-prefer",
    "resolve-opts",
];
const WITHOUT_VALUE: [&str; 15] = [
    "tfo",
    "no-tfo",
    "stick",
    "non-stick",
    "check-send-proxy",
    "no-check-send-proxy",
    "no-agent-check",
    "no-sslv3",
    "no-tlsv10",
    "no-tlsv11",
    "ssl-reuse",
    "no-ssl-reuse",
    "tls-tickets",
    "no-tls-tickets",
    "no-force-sslv3",
];
/// Words with a value that have no counterpart in weir.
const LOST_WITH_VALUE: [&str; 18] = [
    "observe",
    "on-error",
    "on-marked-up",
    "on-marked-down",
    "error-limit",
    "source",
    "usesrc",
    "interface",
    "track",
    "redir",
    "namespace",
    "maxqueue",
    "max-reuse",
    "socks4",
    "agent-port",
    "agent-inter",
    "agent-addr",
    "agent-send",
];
/// Words about the probe only, with a value.
const OF_PROBES: [&str; 4] = ["port", "addr", "fastinter", "downinter"];
/// Words about TLS, with a value; they have no effect without `ssl`.
const OF_TLS: [&str; 8] =
    ["verify", "ca-file", "crl-file", "crt", "sni", "verifyhost", "ssl-min-ver", "ssl-max-ver"];

/// The settings of a server, or of the following ones.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings<'t> {
    /// None: not set.
    weight: Option<u64>,
    disabled: bool,
    pub(super) backup: bool,
    pub(super) checks: bool,
    /// Probes use TLS whether requests do or not.
    pub(super) checks_by_tls: bool,
    /// Most connections; None: any number.
    pub(super) connections: Option<u64>,
    /// `interval`, `rise`, `fall`, as weir writes them.
    probes: BTreeMap<&'static str, String>,
    /// 0: not set.
    pub(super) slow_start_us: u64,
    pub(super) speaks_tls: bool,
    /// Words about TLS, each with its line and its value.
    pub(super) tls: BTreeMap<&'t str, (&'t Node, &'t str)>,
    /// Whether a PROXY protocol header of version 1 is sent, and of version 2.
    headers: [bool; 2],
}

/// Returns the servers of a section, each with its settings.
pub(super) fn servers<'t>(
    haproxy: &mut Haproxy<'t, '_, '_>,
    section: usize,
) -> Vec<(&'t Node, Settings<'t>)> {
    let tree = haproxy.tree;
    let is_tcp = haproxy.mode(section) == "tcp";
    let mut defaults = inherited(haproxy, section, is_tcp);
    let mut found = Vec::new();
    for (_, line) in tree.children(section) {
        match line.name() {
            "default-server" => defaults.take(haproxy, line, 0, is_tcp),
            "server" => {
                let mut own = defaults.clone();
                own.take(haproxy, line, 2, is_tcp);
                found.push((line, own));
            }
            _ => {}
        }
    }
    found
}

/// Returns the settings of the `defaults` of a section for its servers.
fn inherited<'t>(haproxy: &mut Haproxy<'t, '_, '_>, section: usize, is_tcp: bool) -> Settings<'t> {
    let tree = haproxy.tree;
    let (mut settings, mut unread) = (Settings::default(), Vec::new());
    for above in haproxy.above(section) {
        if let Some(known) = haproxy.inherited.get(&(above, is_tcp)) {
            settings = known.clone();
            break;
        }
        unread.push(above);
    }
    for above in unread.into_iter().rev() {
        for line in tree.named(above, "default-server") {
            settings.take(haproxy, line, 0, is_tcp);
        }
        haproxy.inherited.insert((above, is_tcp), settings.clone());
    }
    settings
}

impl<'t> Settings<'t> {
    /// Applies the words of a line behind the first ones.
    fn take(
        &mut self,
        haproxy: &mut Haproxy<'t, '_, '_>,
        line: &'t Node,
        first: usize,
        is_tcp: bool,
    ) {
        let draft = &mut *haproxy.draft;
        let mut words = line.arguments().skip(first);
        while let Some(word) = words.next() {
            if word.starts_with("send-proxy-v2-") {
                draft.different(line, "weir's header contains only addresses");
            }
            if self.flag(word) {
                continue;
            }
            let mut value = || words.next().unwrap_or_default();
            match word {
                "weight" => self.weight = Some(value().parse().unwrap_or(1)),
                "maxconn" => self.connections = value().parse().ok().filter(|most| *most > 0),
                "inter" | "rise" | "fall" => self.probe(word, value()),
                "slowstart" => self.slow_start_us = time(value()).unwrap_or_default(),
                _ if OF_TLS.contains(&word) => drop(self.tls.insert(word, (line, value()))),
                "proxy-v2-options" => {
                    value();
                    draft.different(line, "weir's header contains only addresses");
                }
                "proto" => {
                    if value() == "h2" && !is_tcp {
                        draft.missing(line, Missing::Http2Servers);
                    }
                }
                "resolvers" => {
                    value();
                    draft.note(
                        line.place,
                        Kind::Different,
                        &line.shown(),
                        Missing::Discovery.why(),
                    );
                }
                _ if OF_PROBES.contains(&word) => {
                    value();
                    draft.different(
                        line,
                        "weir probes the address of the server, and always at the same `interval`",
                    );
                }
                _ if WITH_VALUE.contains(&word) => drop(value()),
                _ => {
                    if LOST_WITH_VALUE.contains(&word) {
                        value();
                    }
                    draft.lost(line, format!("weir has no equivalent of `{word}`"));
                }
            }
        }
    }

    /// Applies a word without a value. False: it is no such word.
    fn flag(&mut self, word: &str) -> bool {
        let says = !word.starts_with("no-");
        match word {
            "check" | "no-check" => self.checks = says,
            "check-ssl" | "no-check-ssl" => self.checks_by_tls = says,
            "backup" | "no-backup" => self.backup = says,
            "disabled" | "enabled" => self.disabled = word == "disabled",
            "ssl" | "no-ssl" => self.speaks_tls = says,
            "no-verifyhost" => drop(self.tls.remove("verifyhost")),
            // One does not take the other back.
            "send-proxy" | "no-send-proxy" => self.headers[0] = says,
            _ if word.trim_start_matches("no-").starts_with("send-proxy-v2") => {
                self.headers[1] = says
            }
            _ => return WITHOUT_VALUE.contains(&word),
        }
        true
    }

    /// Applies `inter`, `rise`, `fall`.
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

    /// Returns the weight for weir; 0: not set.
    pub(super) fn weight(&self) -> u64 {
        self.weight.unwrap_or_default()
    }

    /// Whether it gets nothing.
    pub(super) fn is_unused(&self) -> bool {
        self.disabled || self.weight == Some(0)
    }

    /// Returns the version of the PROXY protocol. None: no header.
    pub(super) fn header(&self) -> Option<&'static str> {
        match self.headers {
            [_, true] => Some("v2"),
            [true, false] => Some("v1"),
            [false, false] => None,
        }
    }

    /// Adds its probe settings to those of earlier servers.
    pub(super) fn add_probes(
        &self,
        haproxy: &mut Haproxy<'t, '_, '_>,
        line: &Node,
        probes: &mut BTreeMap<&'static str, String>,
    ) {
        for (name, value) in &self.probes {
            if probes.insert(name, value.clone()).is_some_and(|other| other != *value) {
                haproxy.draft.different(
                    line,
                    "weir probes all servers of a group alike, and uses the last setting",
                );
            }
        }
    }
}
