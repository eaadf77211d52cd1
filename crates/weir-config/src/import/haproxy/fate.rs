//! The handling of each line of HAProxy that no other file reads, by section.

use std::collections::BTreeSet;

use super::super::fate::{Fate, Fates};
use super::super::missing::Missing;
use super::super::tree::{Node, ROOT};
use super::Haproxy;

/// Lines by their first words.
const FATES: Fates = &[
    (
        &[
            "mode",
            "bind",
            "server",
            "server-template",
            "default-server",
            "acl",
            "use_backend",
            "default_backend",
            "balance",
            "cookie",
            "stick",
            "stick-table",
        ],
        Fate::Done,
    ),
    (
        &["timeout connect", "timeout server", "option httpchk", "http-check", "redirect", "block"],
        Fate::Done,
    ),
    (&["option http-buffer-request", "option forwardfor", "unique-id*"], Fate::Done),
    (
        &["http-request normalize-uri"],
        Fate::Lost(
            "weir compares paths in their plain form, and forwards them without dot segments",
        ),
    ),
    (
        &[
            "http-request set-header",
            "http-request add-header",
            "http-request del-header",
            "http-request replace-header",
            "http-request replace-value",
            "http-request deny",
            "http-request allow",
            "http-request auth",
            "http-request use-service",
        ],
        Fate::Done,
    ),
    (
        &[
            "http-request reject",
            "http-request silent-drop",
            "http-request tarpit",
            "http-request redirect",
        ],
        Fate::Done,
    ),
    (
        &[
            "http-request replace-path*",
            "http-request replace-uri",
            "http-request set-path*",
            "http-request set-uri",
            "http-request set-query",
            "http-request set-method",
        ],
        Fate::Done,
    ),
    (
        &[
            "http-response set-header",
            "http-response add-header",
            "http-response del-header",
            "http-response deny",
            "http-after-response set-header",
            "http-after-response add-header",
            "http-after-response del-header",
        ],
        Fate::Done,
    ),
    (
        &[
            "option httplog",
            "option dontlognull",
            "option http-server-close",
            "option http-keep-alive",
        ],
        Fate::Unneeded,
    ),
    (
        &[
            "option redispatch",
            "option tcp-smart*",
            "option tcpka",
            "option clitcpka",
            "option srvtcpka",
            "option http-use-htx",
        ],
        Fate::Unneeded,
    ),
    (
        &["clitcpka-*", "srvtcpka-*"],
        Fate::Lost("use `tcp-keepalive` of a `listen` or an `upstream`"),
    ),
    (
        &[
            "option abortonclose",
            "option prefer-last-server",
            "option log-health-checks",
            "option splice*",
            "option contstats",
            "option httpclose",
        ],
        Fate::Unneeded,
    ),
    (
        &[
            "http-reuse",
            "retries",
            "retry-on",
            "hash-type",
            "description",
            "id",
            "log-tag",
            "option allbackups",
        ],
        Fate::Unneeded,
    ),
    (&["timeout check", "timeout client-fin", "timeout server-fin"], Fate::Unneeded),
    (&["timeout queue", "timeout tarpit"], Fate::Done),
    (&["log"], Fate::Missing(Missing::Syslog)),
    (
        &["log-format", "capture", "option log-separate-errors"],
        Fate::Lost("`access-log` has its own variables: docs/access-log.md"),
    ),
    (
        &["stats"],
        Fate::Lost(
            "`metrics \"127.0.0.1:9100\"` at the top serves a page and OpenMetrics; use `weir \
                status` in the terminal",
        ),
    ),
    (
        &["maxconn", "fullconn", "rate-limit"],
        Fate::Lost("`connections` in `client` limits the connections of one worker"),
    ),
    (&["errorfile", "errorfiles", "errorloc*", "http-error"], Fate::Missing(Missing::Pages)),
    (
        &["compression", "filter compression", "http-request return", "monitor-uri", "monitor"],
        Fate::Done,
    ),
    (
        &["http-request cache-use", "http-response cache-store", "filter cache"],
        Fate::Missing(Missing::Cache),
    ),
    (&["http-request track-sc*", "http-request sc-*"], Fate::Missing(Missing::Rates)),
    (&["option tcplog"], Fate::Unneeded),
    (
        &[
            "tcp-request connection accept",
            "tcp-request session accept",
            "tcp-request content accept",
            "tcp-request inspect-delay",
        ],
        Fate::Done,
    ),
    (
        &["tcp-request", "tcp-response"],
        Fate::Lost(
            "weir checks connections for requests only by address and by `limit` of `shield`; \
                write the rest in a `route`",
        ),
    ),
    (
        &[
            "tcp-check",
            "option tcp-check",
            "option ssl-hello-chk",
            "option mysql-check",
            "option redis-check",
            "option pgsql-check",
            "option ldap-check",
            "option smtpchk",
        ],
        Fate::Lost("weir probes servers for requests with a request; see `health`"),
    ),
    (
        &[
            "http-request set-var",
            "http-request capture",
            "http-request lua",
            "http-request do-resolve",
        ],
        Fate::Missing(Missing::Criteria),
    ),
];

/// Sections without a counterpart in weir.
const SECTIONS: &[(&str, &str)] = &[
    ("peers", "weir shares no state with other instances"),
    ("mailers", "weir sends no mail"),
    ("userlist", "weir reads users from a file of `weir passwd`: see `users` in `route`"),
    ("cache", "weir has one store for all routes with `cache`; set its size in `cache` at the top"),
    ("program", "let the service manager start programs"),
];

impl Haproxy<'_, '_, '_> {
    /// Notes the handling of all lines.
    pub(super) fn tell(&mut self) {
        let tree = self.tree;
        let passing = self.passing();
        for (at, section) in tree.children(ROOT) {
            if let Some((_, why)) = SECTIONS.iter().find(|(name, _)| *name == section.name()) {
                self.draft.lost(section, *why);
                continue;
            }
            match section.name() {
                "global" => self.draft.unneeded("global"),
                "defaults" | "frontend" | "backend" | "listen" => {
                    let is_passed = passing.contains(&at);
                    for (_, line) in tree.children(at) {
                        if is_passed { super::tcp::tell_of(self, line) } else { self.tell_of(line) }
                    }
                    let known = [&self.backends, &self.passed];
                    let is_known = known.iter().any(|known| known.contains_key(&at))
                        || self.tables.contains(&at);
                    let is_idle = section.name() == "backend" && !is_known;
                    if is_idle {
                        self.draft.lost(section, "nothing that was carried over uses it");
                    }
                }
                "resolvers" => self.draft.missing(section, Missing::Discovery),
                _ => self.draft.missing(section, Missing::Nothing),
            }
        }
    }

    /// Returns sections for connections that are passed on unchanged, and `defaults` for such
    /// sections alone.
    fn passing(&self) -> BTreeSet<usize> {
        let (mut passing, mut others) = (BTreeSet::new(), BTreeSet::new());
        let sections = self.tree.children(ROOT);
        for (at, _) in
            sections.filter(|(_, node)| matches!(node.name(), "frontend" | "backend" | "listen"))
        {
            let set = if self.mode(at) == "tcp" { &mut passing } else { &mut others };
            set.insert(at);
            set.extend(self.above(at));
        }
        &passing - &others
    }

    fn tell_of(&mut self, line: &Node) {
        match (line.name(), line.argument(1)) {
            _ if super::is_refusal(line) || self.tracks.contains(&line.place) => {}
            ("timeout", "client") => {
                for name in ["body-timeout", "send-timeout"] {
                    self.client_time(line, name);
                }
            }
            ("timeout", "http-request") => self.client_time(line, "head-timeout"),
            ("timeout", "http-keep-alive") => self.client_time(line, "idle-timeout"),
            ("timeout", "tunnel") => self.client_time(line, "tunnel-timeout"),
            ("no" | "disabled" | "enabled", _) => {}
            _ => self.draft.tell_by(FATES, line, 2),
        }
    }

    fn client_time(&mut self, line: &Node, name: &'static str) {
        match time(line.argument(2)) {
            Some(us) => self.draft.time_limit(None, line, name, us),
            None => self.draft.lost(line, "this is not a time"),
        }
    }
}

/// Parses a time of HAProxy: a bare number is in milliseconds. Microseconds.
pub(super) fn time(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let scale = match &text[digits..] {
        "us" => 1,
        "ms" | "" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(scale)
}
