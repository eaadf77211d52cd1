//! The handling of each directive of nginx that no other file reads: a table, and the options of
//! `client` and `access-log`.

use weir_proxy::observe::access::{Escape, Template};

use super::super::fate::{Fate, Fates};
use super::super::missing::Missing;
use super::super::notes::Kind;
use super::super::tree::{Node, ROOT, Tree};
use super::{Nginx, size, time};
use crate::reverse::literal;
use crate::texts;

/// Directives by name.
const FATES: Fates = &[
    (
        &[
            "ssl",
            "break",
            "absolute_redirect",
            "port_in_redirect",
            "server_name_in_redirect",
            "valid_referers",
            "proxy_pass_request_headers",
            "root",
            "alias",
        ],
        Fate::Done,
    ),
    (&["fastcgi_pass", "uwsgi_pass", "scgi_pass", "memcached_pass", "grpc_pass"], Fate::Done),
    (
        &[
            "http",
            "server",
            "listen",
            "server_name",
            "location",
            "proxy_pass",
            "upstream",
            "ssl_certificate",
            "ssl_certificate_key",
        ],
        Fate::Done,
    ),
    (
        &[
            "ssl_protocols",
            "ssl_client_certificate",
            "ssl_verify_client",
            "ssl_crl",
            "ssl_session_tickets",
        ],
        Fate::Done,
    ),
    (
        &[
            "proxy_set_header",
            "proxy_hide_header",
            "add_header",
            "client_max_body_size",
            "log_format",
        ],
        Fate::Done,
    ),
    (
        &[
            "proxy_connect_timeout",
            "proxy_read_timeout",
            "proxy_request_buffering",
            "proxy_next_upstream",
            "proxy_next_upstream_tries",
            "limit_except",
        ],
        Fate::Done,
    ),
    (
        &[
            "proxy_ssl_verify",
            "proxy_ssl_trusted_certificate",
            "proxy_ssl_certificate",
            "proxy_ssl_certificate_key",
            "proxy_ssl_name",
        ],
        Fate::Done,
    ),
    (
        &[
            "auth_basic",
            "auth_basic_user_file",
            "auth_request",
            "auth_request_set",
            "auth_jwt",
            "auth_oidc",
            "auth_pam*",
            "auth_ldap*",
            "auth_digest*",
            "access_by_lua*",
            "secure_link*",
            "allow",
            "deny",
            "satisfy",
            "internal",
        ],
        Fate::Done,
    ),
    (
        &[
            "user",
            "pid",
            "daemon",
            "worker_processes",
            "worker_rlimit_nofile",
            "worker_cpu_affinity",
            "worker_connections",
            "events",
        ],
        Fate::Unneeded,
    ),
    (
        &[
            "multi_accept",
            "use",
            "sendfile",
            "tcp_nopush",
            "tcp_nodelay",
            "types",
            "default_type",
            "types_hash_max_size",
            "load_module",
        ],
        Fate::Unneeded,
    ),
    (
        &[
            "server_names_hash_bucket_size",
            "server_names_hash_max_size",
            "variables_hash_max_size",
            "keepalive_requests",
            "error_log",
        ],
        Fate::Unneeded,
    ),
    (
        &[
            "proxy_http_version",
            "proxy_buffering",
            "proxy_buffer_size",
            "proxy_buffers",
            "proxy_busy_buffers_size",
        ],
        Fate::Unneeded,
    ),
    (
        &[
            "proxy_ssl_server_name",
            "proxy_ssl_session_reuse",
            "proxy_socket_keepalive",
            "proxy_headers_hash_*",
            "proxy_max_temp_file_size",
        ],
        Fate::Unneeded,
    ),
    (
        &[
            "ssl_session_cache",
            "ssl_session_timeout",
            "ssl_prefer_server_ciphers",
            "ssl_buffer_size",
            "http2",
            "real_ip_recursive",
            "charset",
        ],
        Fate::Unneeded,
    ),
    (
        &[
            "server_tokens",
            "resolver_timeout",
            "reset_timedout_connection",
            "client_body_buffer_size",
            "client_header_buffer_size",
        ],
        Fate::Unneeded,
    ),
    (
        &["ssl_ciphers", "ssl_conf_command", "ssl_ecdh_curve", "ssl_dhparam"],
        Fate::Lost("weir's cipher suites and groups are fixed, and all are safe"),
    ),
    (
        &["ssl_stapling*", "ssl_trusted_certificate"],
        Fate::Lost("weir fetches no OCSP response; name its file in `ocsp` of a `certificate`"),
    ),
    (
        &["ssl_session_ticket_key"],
        Fate::Lost("weir uses a different file of keys; see `ticket-keys`"),
    ),
    (&["proxy_send_timeout"], Fate::Lost("weir has no separate timeout for sending to servers")),
    (
        &["proxy_redirect", "proxy_cookie_*"],
        Fate::Lost(
            "weir changes no addresses within responses; configure the application's own address",
        ),
    ),
    (
        &["proxy_intercept_errors", "error_page", "recursive_error_pages"],
        Fate::Missing(Missing::Pages),
    ),
    (&["resolver"], Fate::Missing(Missing::Discovery)),
    (
        &[
            "root",
            "alias",
            "index",
            "autoindex*",
            "try_files",
            "expires",
            "etag",
            "open_file_cache*",
            "directio",
            "dav_*",
        ],
        Fate::Missing(Missing::Files),
    ),
    (
        &["gzip_vary", "gzip_disable", "gzip_buffers", "gzip_http_version", "gzip_proxied"],
        Fate::Unneeded,
    ),
    (&["brotli_buffers", "brotli_window"], Fate::Unneeded),
    (
        &[
            "gzip",
            "gzip_types",
            "gzip_min_length",
            "gzip_comp_level",
            "brotli",
            "brotli_types",
            "brotli_min_length",
            "brotli_comp_level",
        ],
        Fate::Done,
    ),
    (&["gzip_static", "brotli_static", "zstd_static"], Fate::Missing(Missing::Files)),
    (&["gzip*", "brotli*", "gunzip*", "zstd*"], Fate::Missing(Missing::Compress)),
    (&["proxy_cache*", "proxy_store*", "slice"], Fate::Missing(Missing::Cache)),
    (&["fastcgi_*", "uwsgi_*", "scgi_*", "memcached_*"], Fate::Missing(Missing::Gateway)),
    (&["grpc_*"], Fate::Missing(Missing::Http2Servers)),
    (&["limit_req", "limit_req_zone", "limit_req_status", "limit_req_dry_run"], Fate::Done),
    (&["limit_conn", "limit_conn_zone", "limit_conn_status", "limit_conn_dry_run"], Fate::Done),
    (&["limit_req_log_level", "limit_conn_log_level"], Fate::Unneeded),
    (&["limit_rate*"], Fate::Missing(Missing::Nothing)),
    (&["stream"], Fate::Done),
    (
        &["mail"],
        Fate::Lost("weir speaks no mail protocol; `tcp` forwards connections to a mail server"),
    ),
    (
        &["stub_status", "status_zone", "api"],
        Fate::Lost("`metrics \"127.0.0.1:9100\"` at the top serves a page and OpenMetrics"),
    ),
    (
        &["map", "geo", "split_clients", "set", "perl_set", "js_set"],
        Fate::Lost("weir has no custom variables; use conditions of routes"),
    ),
    (&["include"], Fate::Lost("it takes one file or pattern")),
];

/// Blocks whose contents do not concern weir, or are handled with them.
const CLOSED: [&str; 12] = [
    "events",
    "types",
    "map",
    "geo",
    "split_clients",
    "stream",
    "mail",
    "if",
    "limit_except",
    "upstream",
    "match",
    "charset_map",
];

impl Nginx<'_, '_, '_> {
    /// Notes the handling of all directives.
    pub(super) fn tell(&mut self) {
        let tree = self.tree;
        let mut is_inside = vec![false; tree.nodes.len()];
        for at in tree.below(ROOT) {
            let node = &tree.nodes[at];
            let parent = &tree.nodes[node.parent];
            is_inside[at] =
                is_inside[node.parent] || node.parent != ROOT && CLOSED.contains(&parent.name());
            if !is_inside[at] {
                self.tell_of(at, node);
            }
        }
    }

    fn tell_of(&mut self, at: usize, node: &Node) {
        let name = node.name();
        let parent = &self.tree.nodes[node.parent];
        match name {
            "keepalive_timeout" => self.client_time(node, "idle-timeout"),
            "client_header_timeout" => self.client_time(node, "head-timeout"),
            "client_body_timeout" => self.client_time(node, "body-timeout"),
            "send_timeout" => self.client_time(node, "send-timeout"),
            "large_client_header_buffers" => self.header_buffers(node),
            "underscores_in_headers" if node.argument(1) == "on" => {
                self.draft
                    .client_lines
                    .insert("underscores", ("underscores #true".to_owned(), node.place));
            }
            "proxy_ignore_client_abort" if node.argument(1) == "on" => {
                self.draft
                    .client_lines
                    .insert("half-closed", ("half-closed \"serve\"".to_owned(), node.place));
                self.draft.different_once(
                    node,
                    "weir has this for all clients that only end their sending direction: a reset \
                        always cancels",
                );
            }
            "proxy_ignore_client_abort" => {}
            "set_real_ip_from" => self.trusted(node),
            "real_ip_header" if !node.argument(1).eq_ignore_ascii_case("x-forwarded-for") => {
                self.draft.lost(node, "weir trusts X-Forwarded-For of `trusted-proxies`");
            }
            "real_ip_header" | "underscores_in_headers" => {}
            "access_log" => self.access_log(node),
            "return" if parent.argument(1).starts_with('@') => {
                self.draft.missing(node, Missing::Respond)
            }
            // Handled with a server or a location.
            "return" => {}
            "rewrite" => {}
            // Where its variable has no single value, that is noted.
            "set" => {}
            "map" | "geo" if self.tests.contains(&at) => {}
            "try_files" if !node.words.last().is_some_and(|word| word.starts_with('@')) => {}
            "map" if node.argument(1) == "$http_upgrade" => self.draft.unneeded(name),
            "if" if self.tests.contains(&at) => {}
            "if" => self.lost_test(at),
            "proxy_redirect" if matches!(node.argument(1), "off" | "default") => {
                self.draft.unneeded(name)
            }
            "gzip" | "autoindex" | "proxy_intercept_errors" if node.argument(1) == "off" => {}
            _ if super::cache::tell_of_cache(self, node) => {}
            _ => self.draft.tell_by(FATES, node, 1),
        }
    }

    fn client_time(&mut self, node: &Node, name: &'static str) {
        match time(node.argument(1)) {
            Some(0) if name == "idle-timeout" => {
                self.draft
                    .different(node, "weir keeps connections of clients open for `idle-timeout`");
            }
            Some(us) => self.draft.amount(None, node, name, us),
            None => self.draft.lost(node, "this is not a time"),
        }
    }

    /// Converts a number and a size: a line fits into one buffer, a head into all.
    fn header_buffers(&mut self, node: &Node) {
        let (Ok(number), Some(bytes)) = (node.argument(1).parse::<u64>(), size(node.argument(2)))
        else {
            return self.draft.lost(node, "it takes a number and a size");
        };
        self.draft.amount(None, node, "line-limit", bytes);
        self.draft.amount(None, node, "head-limit", bytes.saturating_mul(number));
    }

    fn trusted(&mut self, node: &Node) {
        match texts::peers(node.argument(1)) {
            Ok(range) => {
                let (line, _) = self
                    .draft
                    .client_lines
                    .entry("trusted-proxies")
                    .or_insert_with(|| ("trusted-proxies".to_owned(), node.place));
                line.push_str(&format!(" {}", literal(&range)));
                if self
                    .one(node.parent, "real_ip_recursive")
                    .is_none_or(|node| node.argument(1) != "on")
                {
                    let why = "weir skips all addresses of `trusted-proxies` in X-Forwarded-For, \
                        as with `real_ip_recursive on`; here the last address is the client's";
                    self.draft.different_once(node, why);
                }
            }
            Err(why) => self.draft.lost(node, why),
        }
    }

    /// Weir has one log.
    pub(super) fn access_log(&mut self, node: &Node) {
        let path = node.argument(1);
        match path {
            "off" => {
                return self.draft.note(
                    node.place,
                    Kind::Different,
                    "access_log off",
                    "weir has one log, for all requests",
                );
            }
            _ if path.starts_with("syslog:") => return self.draft.missing(node, Missing::Syslog),
            _ if path.contains('$') => {
                return self.draft.lost(node, "weir has one log, in one file");
            }
            _ => {}
        }
        if node.arguments().any(|word| word.starts_with("if=")) {
            self.draft.different(node, "weir logs every request");
        }
        let format = self.log_format(node);
        self.draft.access_log(node, if path == "/dev/stdout" { "stdout" } else { path }, &format);
    }

    /// Returns the options for the format of lines; empty: `combined`.
    fn log_format(&mut self, node: &Node) -> String {
        let name = node.argument(2);
        if matches!(name, "" | "combined") || name.contains('=') {
            return String::new();
        }
        let block = top(self.tree, node);
        let is_tcp = self.tree.nodes[block].name() == "stream";
        let tops = [ROOT].into_iter().chain(self.tree.indices(ROOT, "http").iter().copied());
        let tops = tops.filter(|_| !is_tcp).chain(is_tcp.then_some(block));
        let mut formats = tops.flat_map(|top| self.tree.named(top, "log_format"));
        let Some(format) = formats.find(|format| format.argument(1) == name) else {
            self.draft.different(
                node,
                format!("unknown `log_format {name}`: weir writes `combined` lines"),
            );
            return String::new();
        };
        let (escape, parts): (Vec<&str>, Vec<&str>) =
            format.arguments().skip(1).partition(|word| word.starts_with("escape="));
        let text = parts.concat();
        let text = if is_tcp { of_connections(&text) } else { text };
        if let Err(error) = Template::compile(&text, Escape::Default) {
            self.draft.different(
                format,
                format!(
                    "{error}; weir writes `combined` lines, and docs/access-log.md lists the \
                    variables"
                ),
            );
            return String::new();
        }
        if is_tcp && text.contains("$status") {
            self.draft.different(format, "`$status` of a connection is `-` in weir");
        }
        let escape = if escape == ["escape=json"] { " escape=json" } else { "" };
        format!(" format={}{escape}", literal(&text))
    }

    /// Notes an `if` that no request reaches.
    pub(super) fn lost_test(&mut self, at: usize) {
        self.draft.lost(&self.tree.nodes[at], Missing::Criteria.why());
    }
}

/// Returns the block of the file that contains a directive.
fn top(tree: &Tree, node: &Node) -> usize {
    let mut block = node.parent;
    while tree.nodes[block].parent != ROOT {
        block = tree.nodes[block].parent;
    }
    block
}

/// Converts a format for connections that are passed on unchanged to weir's names.
fn of_connections(text: &str) -> String {
    const NAMES: [(&str, &str); 4] = [
        ("protocol", "server_protocol"),
        ("bytes_received", "request_length"),
        ("session_time", "request_time"),
        ("ssl_preread_server_name", "tls_name"),
    ];
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..=at]);
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix('{') {
            out.push('{');
            rest = behind;
        }
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (name, behind) = rest.split_at(end);
        out.push_str(
            NAMES.iter().find(|(theirs, _)| *theirs == name).map_or(name, |(_, ours)| ours),
        );
        rest = behind;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_connections() {
        let theirs = "$remote_addr ${protocol}x $bytes_received/$bytes_sent $session_time $";
        let ours = "$remote_addr ${server_protocol}x $request_length/$bytes_sent $request_time $";
        assert_eq!(of_connections(theirs), ours);
    }
}
