//! The handling of each line in `mode tcp` of HAProxy that no other file reads.

use super::super::super::fate::{Fate, Fates};
use super::super::super::missing::Missing;
use super::super::super::tree::Node;
use super::super::Haproxy;

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
        ],
        Fate::Done,
    ),
    (
        &[
            "timeout connect",
            "timeout client",
            "timeout server",
            "timeout tunnel",
            "timeout client-fin",
            "timeout server-fin",
        ],
        Fate::Done,
    ),
    (&["tcp-request", "stick", "stick-table", "clitcpka-*", "srvtcpka-*"], Fate::Done),
    (&["timeout check", "timeout queue", "timeout http*", "timeout tarpit"], Fate::Unneeded),
    (
        &[
            "option tcplog",
            "option dontlognull",
            "option redispatch",
            "option tcp-smart*",
            "option tcpka",
            "option tcp-check",
        ],
        Fate::Unneeded,
    ),
    (
        &[
            "option clitcpka",
            "option srvtcpka",
            "option splice*",
            "option contstats",
            "option log-health-checks",
            "option httplog",
        ],
        Fate::Unneeded,
    ),
    (
        &[
            "option allbackups",
            "option forwardfor",
            "option http-server-close",
            "option logasap",
            "option log-separate-errors",
        ],
        Fate::Unneeded,
    ),
    (
        &["retries", "hash-type", "description", "id", "log-tag", "disabled", "enabled"],
        Fate::Unneeded,
    ),
    (&["log"], Fate::Missing(Missing::Syslog)),
    (
        &["log-format", "unique-id*"],
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
    (
        &[
            "tcp-check",
            "option httpchk",
            "http-check",
            "option ssl-hello-chk",
            "option smtpchk",
            "option external-check",
        ],
        Fate::Lost("weir probes servers for `tcp` by connecting"),
    ),
    (
        &[
            "option mysql-check",
            "option redis-check",
            "option pgsql-check",
            "option ldap-check",
            "option spop-check",
        ],
        Fate::Lost("weir probes servers for `tcp` by connecting"),
    ),
    (
        &["source"],
        Fate::Lost(
            "`source` of the upstream sets the address from which weir connects to its servers",
        ),
    ),
];

/// Notes the handling of a line.
pub(in super::super) fn tell_of(haproxy: &mut Haproxy<'_, '_, '_>, line: &Node) {
    if line.name() != "no" {
        haproxy.draft.tell_by(FATES, line, 2);
    }
}
