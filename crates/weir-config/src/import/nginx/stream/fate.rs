//! The handling of each directive of a `stream` that no other file reads.

use super::super::super::fate::{Fate, Fates};
use super::super::super::missing::Missing;
use super::super::super::tree::Node;
use super::Stream;

/// Directives by name.
const FATES: Fates = &[
    (
        &["server", "listen", "upstream", "proxy_pass", "proxy_connect_timeout", "proxy_timeout"],
        Fate::Done,
    ),
    (
        &[
            "proxy_protocol",
            "ssl_preread",
            "preread_timeout",
            "allow",
            "deny",
            "log_format",
            "proxy_half_close",
        ],
        Fate::Done,
    ),
    (&["limit_conn", "limit_conn_zone", "limit_conn_dry_run", "set_real_ip_from"], Fate::Done),
    (&["js_access", "js_preread", "access_by_lua*", "preread_by_lua*"], Fate::Done),
    (
        &[
            "proxy_buffer_size",
            "preread_buffer_size",
            "proxy_socket_keepalive",
            "tcp_nodelay",
            "error_log",
            "zone",
        ],
        Fate::Unneeded,
    ),
    (
        &["variables_hash_*", "map_hash_*", "limit_conn_log_level", "resolver_timeout"],
        Fate::Unneeded,
    ),
    (&["resolver"], Fate::Missing(Missing::Discovery)),
    (
        &["proxy_bind"],
        Fate::Lost(
            "`source` of the upstream sets the address from which weir connects to its servers",
        ),
    ),
    (&["proxy_responses", "proxy_requests"], Fate::Lost("weir does not forward UDP")),
    (
        &["proxy_upload_rate", "proxy_download_rate"],
        Fate::Lost("`tcp` forwards bytes as fast as both sides accept them"),
    ),
    (
        &["proxy_next_upstream_timeout", "proxy_next_upstream_tries"],
        Fate::Lost("weir tries each server once for a connection, for `connect-timeout` each"),
    ),
    (
        &["proxy_session_drop"],
        Fate::Lost(
            "connections to a server that was removed from an upstream continue until they end",
        ),
    ),
    (
        &["server_name"],
        Fate::Lost(
            "weir has one `tcp` for an address, with an `sni` for names; write the names of this \
                server there",
        ),
    ),
    (
        &["ssl_*", "proxy_ssl*"],
        Fate::Lost("`tcp` forwards bytes unchanged: clients speak TLS with the server"),
    ),
    (
        &["map", "geo", "split_clients", "set", "js_*", "keyval*"],
        Fate::Lost(
            "weir has no custom variables; `sni` chooses by the name that a TLS client requests",
        ),
    ),
    (&["return", "pass"], Fate::Lost("`tcp` only forwards connections")),
    (
        &["status_zone"],
        Fate::Lost("`metrics \"127.0.0.1:9100\"` at the top serves a page and OpenMetrics"),
    ),
    (&["include"], Fate::Lost("it takes one file or pattern")),
];

/// Blocks whose contents are handled with them.
const CLOSED: [&str; 5] = ["map", "geo", "split_clients", "upstream", "match"];

impl Stream<'_, '_, '_, '_> {
    /// Notes the handling of all directives.
    pub(super) fn tell(&mut self) {
        let tree = self.nginx.tree;
        for top in self.tops.clone() {
            for at in tree.below(top) {
                let node = &tree.nodes[at];
                let is_inside = node.parent != top && tree.nodes[node.parent].name() != "server";
                let is_inside = is_inside || CLOSED.contains(&tree.nodes[node.parent].name());
                if !is_inside && !self.maps.contains(&at) {
                    self.tell_of(node);
                }
            }
        }
    }

    fn tell_of(&mut self, node: &Node) {
        match (node.name(), node.argument(1)) {
            ("access_log", _) => self.nginx.access_log(node),
            ("proxy_next_upstream", "off") => {
                self.nginx
                    .draft
                    .different(node, "weir tries another server if it cannot connect to one");
            }
            ("proxy_ssl", "off") | ("proxy_next_upstream", _) | ("proxy_bind", "off") => {}
            _ => self.nginx.draft.tell_by(FATES, node, 1),
        }
    }
}
