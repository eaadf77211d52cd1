//! Names in nginx, HAProxy, Caddy and Traefik that weir spells differently, so that a message can
//! give weir's word. Called for words that are wrong anyway: by `check` for options and for
//! misplaced values, by `schema` for values, by `foreign` for whole files.

use crate::units::parse_size;

/// Words that begin a line in other programs, each group with weir's equivalent. Dashes count as
/// underscores.
const OPTIONS: &[(&[&str], &str)] = &[
    (&["worker_processes", "nbthread", "nbproc", "worker_threads"], "`workers N` at the top"),
    (
        &["proxy_protocol", "accept_proxy", "accept_proxy_protocol"],
        "`proxy-protocol #true` in `listen`",
    ),
    (
        &["bind_to_device", "bindtodevice", "so_bindtodevice"],
        "`device \"eth1\"` in `listen` or `upstream`",
    ),
    (&["sndbuf", "so_sndbuf"], "`send-buffer \"1MiB\"` in `listen` or `upstream`"),
    (&["rcvbuf", "so_rcvbuf"], "`receive-buffer \"1MiB\"` in `listen` or `upstream`"),
    (&["tos", "set_tos", "ip_tos"], "`dscp \"af21\"` in `listen` or `upstream`"),
    (&["tcp_ut", "tcp_user_timeout"], "`user-timeout \"30s\"` in `listen` or `upstream`"),
    (&["send_proxy", "send_proxy_v2"], "`proxy-protocol \"v2\"` in `upstream`"),
    (&["worker_connections"], "`connections N` in `client`"),
    (&["maxconn"], "`connections N` in `client`, or `concurrency=N` in `server`"),
    (&["max_conns", "max_connections", "max_requests"], "`concurrency=N` in `server`"),
    (&["timeout_queue"], "`queue-timeout \"5s\"` in `upstream`"),
    (
        &[
            "limit_req",
            "limit_req_zone",
            "limit_conn",
            "limit_conn_zone",
            "rate_limit",
            "ratelimit",
        ],
        "`shield { limit \"rate\" count=\"requests\" rate=\"200/s\" burst=200; }` at the top",
    ),
    (&["frontend", "bind", "entrypoints", "entry_points"], "`listen \"ADDRESS:PORT\"` at the top"),
    (
        &["backend", "upstreams", "services", "load_balancer"],
        "`upstream \"NAME\" { server \"HOST:PORT\"; }` at the top",
    ),
    (
        &["proxy_pass", "reverse_proxy", "default_backend", "use_backend", "proxy_to", "handle"],
        "`route { proxy \"NAME\"; }`, and an `upstream \"NAME\"` with the servers",
    ),
    (
        &["location", "handle_path", "path_prefix", "pathprefix"],
        "`route path=\"/PATH\" { proxy \"NAME\"; }`",
    ),
    (
        &[
            "return",
            "redir",
            "http_request",
            "static_response",
            "redirectscheme",
            "redirectregex",
            "errorloc",
        ],
        "`redirect \"https://HOST/PATH\"` or `respond 404 \"TEXT\"` in `route`",
    ),
    (
        &[
            "proxy_set_header",
            "header_up",
            "request_header",
            "set_header",
            "set_headers",
            "req_set_header",
            "customrequestheaders",
            "proxy_pass_header",
            "reqadd",
        ],
        "`request { set \"NAME\" \"VALUE\"; }` in `route`, and for Host `request { host \
            \"NAME\"; }`",
    ),
    (
        &[
            "add_header",
            "more_set_headers",
            "header_down",
            "http_response",
            "response_header",
            "headers",
            "rspadd",
            "customresponseheaders",
        ],
        "`answer { set \"NAME\" \"VALUE\"; }` in `route`",
    ),
    (
        &["proxy_hide_header", "more_clear_headers", "del_header"],
        "`answer { remove \"NAME\"; }` in `route`",
    ),
    (
        &["cors", "access_control_allow_origin", "accesscontrolalloworiginlist"],
        "`answer { set \"Access-Control-Allow-Origin\" \"https://HOST\"; }` in `route`, and a \
         `route methods=\"OPTIONS\"` with \
         `respond 204` for preflight requests",
    ),
    (
        &["gzip", "gzip_types", "brotli", "zstd", "deflate", "encode", "compression"],
        "`compress` in `route`, with `compress { types \"text/*\"; }` for other types than the \
            default",
    ),
    (
        &["basic_auth", "basicauth", "auth_basic", "auth_basic_user_file", "userlist", "http_auth"],
        "`users \"FILE\"` in `route`; `weir passwd` writes the file",
    ),
    (
        &["ipwhitelist", "ipallowlist", "allowlist", "whitelist", "sourcerange", "remote_ip"],
        "`allow \"10.0.0.0/8\"` and `deny \"all\"` in `route`",
    ),
    (
        &[
            "stripprefix",
            "strip_path_prefix",
            "uri_strip_prefix",
            "replacepath",
            "replacepathregex",
            "addprefix",
            "uri",
        ],
        "`strip-prefix \"/PATH\"` or `rewrite \"REGEX\" \"PATH\"` in `route`",
    ),
    (
        &["error_pages", "errorfile", "handle_errors", "errors"],
        "`error-page 502 file=\"FILE\"` in `route`",
    ),
    (
        &[
            "proxy_cache",
            "proxy_cache_path",
            "proxy_cache_valid",
            "fastcgi_cache",
            "http_cache",
            "cache_use",
            "expires",
        ],
        "`cache { ttl \"1h\"; }` in `route`, and `cache { size \"1GiB\"; }` at the top",
    ),
    (
        &["split_clients", "weighted", "canary", "mirror_percent"],
        "`split \"UPSTREAM\" percent=5` in `route`",
    ),
    (
        &["server_template", "resolvers", "dynamic"],
        "`server \"NAME:PORT\"` in `upstream`: a name expands to all its addresses",
    ),
    (
        &["stream", "layer4", "tcprouters"],
        "`tcp { listen \"ADDRESS:PORT\"; proxy \"NAME\"; }` at the top",
    ),
    (&["ssl_preread", "req_ssl_sni", "hostsni"], "`sni \"NAME\" { proxy \"NAME\"; }` in `tcp`"),
    (
        &["default_server", "backend_default"],
        "`route { proxy \"NAME\"; }` without `host`, which takes requests that no other route \
            matches",
    ),
    (
        &["http2_max_concurrent_streams", "maxconcurrentstreams"],
        "`http2 { streams 100; }` in `client`",
    ),
    (&["accesslog", "access_logs"], "`access-log \"PATH\"` at the top"),
    (&["server_name", "hosts", "domain"], "`route host=\"NAME\" { proxy \"NAME\"; }`"),
    (&["limit_except"], "`route methods=\"GET,HEAD\" { proxy \"NAME\"; }`"),
    (
        &["keepalive", "http_reuse", "pool_max_conn"],
        "`connections-min` and `connections` of a `server`; weir keeps connections open by default",
    ),
    (
        &[
            "so_keepalive",
            "proxy_socket_keepalive",
            "tcpka",
            "clitcpka",
            "srvtcpka",
            "tcp_keepalives",
        ],
        "`tcp-keepalive` of a `listen` or an `upstream`",
    ),
    (
        &["keepalive_timeout", "timeout_client", "timeout_http_keep_alive", "idle_timeout"],
        "`idle-timeout` in `client`",
    ),
    (&["client_max_body_size", "request_body", "max_size"], "`body-limit` in `client`"),
    (
        &[
            "large_client_header_buffers",
            "client_header_buffer_size",
            "tune.bufsize",
            "max_header_size",
        ],
        "`head-limit` and `line-limit` in `client`",
    ),
    (
        &["client_header_timeout", "timeout_http_request", "read_header_timeout"],
        "`head-timeout` in `client`",
    ),
    (&["client_body_timeout", "read_body_timeout"], "`body-timeout` in `client`"),
    (&["send_timeout", "write_timeout"], "`send-timeout` in `client`"),
    (
        &["set_real_ip_from", "real_ip_header", "forwardedheaders", "client_ip_headers"],
        "`trusted-proxies` and `client-address` in `client`",
    ),
    (
        &["proxy_connect_timeout", "timeout_connect", "dial_timeout"],
        "`connect-timeout` in `upstream`",
    ),
    (
        &["proxy_read_timeout", "proxy_send_timeout", "timeout_server", "proxy_timeout"],
        "`forward-timeout` and `answer-timeout` in `upstream`",
    ),
    (
        &["response_header_timeout", "response_timeout", "request_timeout"],
        "`forward-timeout` in `upstream`",
    ),
    (&["read_timeout"], "`answer-timeout` in `upstream`"),
    (
        &["proxy_request_buffering", "http_buffer_request", "request_buffers"],
        "`request-buffering` in `route`",
    ),
    (
        &[
            "proxy_next_upstream",
            "proxy_next_upstream_tries",
            "retries",
            "redispatch",
            "lb_try_duration",
        ],
        "`forward-retries` in `upstream`",
    ),
    (
        &["max_fails", "fail_timeout", "observe", "on_error"],
        "`failover \"5xx\" limit=10 window=\"10s\"` in `upstream`",
    ),
    (
        &["health_check", "httpchk", "http_check", "check", "health_uri", "health_path"],
        "`health { path \"/\"; }` in `upstream`",
    ),
    (&["least_conn", "leastconn"], "`balance \"least\"` in `upstream`"),
    (&["ip_hash", "hash"], "`balance \"hash\" key=\"client-ip\"` in `upstream`"),
    (
        &["round_robin", "roundrobin", "lb_policy"],
        "`balance` in `upstream`; the default, `ratio`, takes turns by weight",
    ),
    (&["cookie", "stick_table", "stick"], "`sticky cookie=\"NAME\"` in `upstream`"),
    (
        &["ssl", "ssl_certificate", "ssl_certificate_key", "crt"],
        "`listen \"ADDRESS:PORT\" { tls { certificate \"FILE\" key=\"FILE\"; } }`",
    ),
    (&["ssl_protocols", "ssl_min_ver", "minversion"], "`min-version` of `tls`"),
    (
        &["ssl_client_certificate", "ssl_verify_client", "ca_file"],
        "`client-auth` and `client-ca` of `tls` in `listen`",
    ),
    (&["ssl_crl", "crl_file"], "`client-crl` of `tls` in `listen`"),
    (
        &["ssl_session_tickets", "tls_ticket_keys", "ssl_session_ticket_key"],
        "`tickets` and `ticket-keys` of `tls` in `listen`",
    ),
    (&["ssl_stapling", "ssl_stapling_file"], "`certificate \"FILE\" ocsp=\"FILE\"` in `tls`"),
    (&["strict_sni", "snistrict", "ssl_reject_handshake"], "`strict-sni` of `tls` in `listen`"),
    (
        &["proxy_ssl_name", "sni_name", "servername", "tls_server_name"],
        "`tls name=\"NAME\"` in `upstream`",
    ),
    (
        &["proxy_ssl_certificate", "proxy_ssl_certificate_key", "tls_client_auth"],
        "`tls certificate=\"FILE\" key=\"FILE\"` in `upstream`",
    ),
    (&["slowstart", "slow_start"], "`slow-start` in `upstream`"),
    (
        &["hard_stop_after", "worker_shutdown_timeout", "grace_period", "shutdown_delay"],
        "`shutdown { drain \"30s\"; }` at the top",
    ),
    (
        &["interval_check", "health_interval", "inter"],
        "`health { interval \"5s\"; }` in `upstream`",
    ),
    (
        &["health_status", "http_check_expect", "expect_status"],
        "`health { expect-status \"200\"; }` in `upstream`",
    ),
    (
        &["proxy_ssl_verify", "proxy_ssl_trusted_certificate", "tls_insecure_skip_verify"],
        "`tls verify=#true ca=\"FILE\"` in `upstream`",
    ),
    (
        &["log_format", "option_httplog", "httplog"],
        "`access-log \"PATH\" format=\"...\"` at the top",
    ),
    (
        &["stub_status", "stats", "status_page"],
        "`metrics \"127.0.0.1:9100\"` at the top, which also serves a page, or `weir status`",
    ),
];

/// Words with a different hint in one of these blocks than elsewhere; the empty name is the top.
/// Dashes count as underscores.
const PLACED: &[(&str, &[&str], &str)] = &[
    (
        "timeout",
        &["", "route", "upstream", "server", "listen"],
        "`forward-timeout` in `upstream`, for responses of servers",
    ),
    ("tls", &["server", "route"], "`tls` in `upstream`, which applies to all its servers"),
    ("tls", &[""], "`tls { certificate \"FILE\" key=\"FILE\"; }` in `listen`"),
    ("key", &["listen"], "`tls { certificate \"FILE\" key=\"FILE\"; }` in `listen`"),
    ("cert", &["listen", "", "route"], "`tls { certificate \"FILE\" key=\"FILE\"; }` in `listen`"),
    (
        "certificate",
        &["listen", "", "route"],
        "`tls { certificate \"FILE\" key=\"FILE\"; }` in `listen`",
    ),
    (
        "header",
        &["", "upstream", "server", "request"],
        "`request { set \"NAME\" \"VALUE\"; }` in `route`",
    ),
    ("header", &["answer"], "`answer { set \"NAME\" \"VALUE\"; }` in `route`"),
    ("weight", &["upstream"], "`server \"HOST:PORT\" weight=5` in `upstream`"),
    ("backup", &["upstream"], "`server \"HOST:PORT\" backup=#true` in `upstream`"),
    ("proxy", &["", "listen"], "`route { proxy \"NAME\"; }` at the top"),
    ("http2", &["listen"], "`protocols` in `listen`, where HTTP/2 is offered with `tls` anyway"),
    (
        "resolver",
        &["", "upstream", "server"],
        "`discovery { resolver \"ADDRESS:53\"; }` at the top",
    ),
    ("log", &["", "route", "listen", "client"], "`access-log \"PATH\"` at the top"),
];

/// Features that weir does not have, or that are automatic, with a sentence about it.
const ABSENT: &[(&[&str], &str)] = &[
    (
        &[
            "root",
            "alias",
            "file_server",
            "index",
            "autoindex",
            "try_files",
            "static",
            "browse",
            "fileserver",
        ],
        "weir serves no files yet, except those of `respond file=` and `error-page`: put a file \
            server behind it",
    ),
    (
        &[
            "fastcgi_pass",
            "php_fastcgi",
            "fastcgi",
            "fastcgi_param",
            "uwsgi_pass",
            "scgi_pass",
            "memcached_pass",
        ],
        "weir speaks only HTTP to servers, not FastCGI, uwsgi or SCGI yet: put a web server \
            between them",
    ),
    (
        &["grpc", "grpc_pass", "h2c", "grpc_set_header"],
        "weir speaks HTTP/1.1 to servers, so it does not forward gRPC yet",
    ),
    (
        &["forward_auth", "auth_request", "forwardauth", "ext_authz", "auth_request_set"],
        "weir cannot ask another server whether to accept a request yet; use `users` or \
            `client-ca`",
    ),
    (
        &[
            "acme",
            "acme_ca",
            "auto_https",
            "letsencrypt",
            "on_demand_tls",
            "certresolver",
            "certificatesresolvers",
            "certbot",
            "email",
        ],
        "weir requests no certificates yet: let an ACME client write the files, which weir rereads \
            when they change",
    ),
    (
        &["include", "import", "conf_d", "providers", "source_file"],
        "a configuration is one file; `servers-from` and `names-file` read lists from others, and \
            ${NAME} variables",
    ),
    (
        &["map", "geo", "if", "acl", "vars", "lua", "js_content", "perl"],
        "weir has no conditions of this kind: write one `route` for each case",
    ),
    (
        &["sub_filter", "replace_filter", "replace_response"],
        "weir does not change the content of responses",
    ),
    (&["mirror", "mirroring", "shadow"], "weir does not copy requests to a second server"),
    (&["http3", "quic", "alt_svc"], "weir does not speak HTTP/3 yet"),
    (
        &["error_log", "log_level", "syslog"],
        "weir writes its own messages to standard error; requests are in `access-log`",
    ),
    (
        &["pid", "pidfile", "daemon", "master_process"],
        "weir stays in the foreground, where the service manager tracks its process",
    ),
    (
        &[
            "sendfile",
            "tcp_nopush",
            "tcp_nodelay",
            "aio",
            "directio",
            "multi_accept",
            "reuseport",
            "epoll",
            "events",
            "use",
        ],
        "weir chooses this itself: leave it out",
    ),
    (
        &[
            "proxy_http_version",
            "proxy_redirect",
            "keepalive_requests",
            "server_tokens",
            "types",
            "default_type",
            "tune",
        ],
        "weir needs no such option: leave it out",
    ),
    (
        &[
            "proxy_buffering",
            "proxy_buffers",
            "proxy_buffer_size",
            "proxy_busy_buffers_size",
            "flush_interval",
            "buffering",
        ],
        "weir forwards a response as it arrives: leave it out",
    ),
    (
        &["mode_http", "option", "defaults", "global", "http", "middlewares", "routers"],
        "weir has no such section: write each option in the block that it applies to",
    ),
    (
        &[
            "ssl_ciphers",
            "ciphers",
            "ciphersuites",
            "ssl_ecdh_curve",
            "ssl_dhparam",
            "ssl_prefer_server_ciphers",
            "cipher_suites",
        ],
        "weir offers only safe cipher suites; use `min-version` of `tls` to choose the version",
    ),
];

/// The option that a value without a name belongs to, in a block that takes none.
const NAMED: &[(&str, &str)] =
    &[("health", "path"), ("sticky", "cookie"), ("user", "group"), ("shutdown", "drain")];

/// Values in other programs, with weir's value and how it is written.
const VALUES: &[(&[&str], &str, &str)] = &[
    (
        &[
            "round_robin",
            "roundrobin",
            "static_rr",
            "rr",
            "wrr",
            "weighted",
            "weighted_round_robin",
        ],
        "ratio",
        "`ratio`, which takes turns by weight and is the default",
    ),
    (
        &[
            "least_conn",
            "leastconn",
            "least_connections",
            "least_requests",
            "least_request",
            "random_choose",
        ],
        "least",
        "`least`",
    ),
    (
        &["least_time", "ewma", "peak_ewma", "p2c"],
        "dynamic",
        "`dynamic`, by weight and response time, or `least`",
    ),
    (
        &[
            "ip_hash",
            "iphash",
            "source",
            "client_ip_hash",
            "uri_hash",
            "ring_hash",
            "consistent",
            "maglev",
        ],
        "hash",
        "`hash` with a key, such as `balance \"hash\" key=\"client-ip\"`",
    ),
];

/// Returns weir's equivalent of another program's option with this name.
pub(crate) fn option(word: &str) -> Option<&'static str> {
    let word = underscored(word);
    OPTIONS.iter().find(|(words, _)| words.contains(&word.as_str())).map(|(_, say)| *say)
}

/// Returns what to write in place of an unknown word in this block, if another program gives it a
/// meaning. `is_known`: it is weir's own word elsewhere, which is the better hint unless the word
/// has one for this block.
pub(crate) fn help(word: &str, block: &str, is_known: bool) -> Option<String> {
    let plain = underscored(word);
    let placed =
        PLACED.iter().find(|(other, blocks, _)| *other == plain && blocks.contains(&block));
    if let Some((.., say)) = placed {
        return Some(format!("in weir this is {say}"));
    }
    if is_known {
        return None;
    }
    let absent = ABSENT.iter().find(|(words, _)| words.contains(&plain.as_str()));
    option(word)
        .map(|say| format!("in weir this is {say}"))
        .or_else(|| absent.map(|(_, say)| (*say).to_owned()))
}

/// Returns what to write in place of a value without a name in this block. `word`: the name of the
/// block in the text.
pub(crate) fn named(block: &str, word: &str, value: &str, name: Option<&str>) -> Option<String> {
    if block == "condition" {
        let name = name.unwrap_or("NAME");
        return Some(format!(
            "`{word} \"{name}\" eq=\"{value}\"` matches requests that have it; `request {{ set \
                \"{name}\" \"{value}\"; }}` sets a header for servers"
        ));
    }
    if block == "cache" {
        let option = if parse_size(value).is_ok() { "size" } else { "ttl" };
        return Some(format!("write `cache {{ {option} \"{value}\"; }}`"));
    }
    match NAMED.iter().find(|(other, _)| *other == block) {
        Some((_, option)) => Some(format!("write `{block} {option}=\"{value}\"`")),
        None => help(value, block, false),
    }
}

/// Returns what to do instead of setting an option to this value.
pub(crate) fn instead(option: &str, value: &str) -> Option<&'static str> {
    match (option, value) {
        ("weight", "0") => Some(
            "`weir server drain` stops new requests to a server; `backup=#true` uses it only when \
                the others fail",
        ),
        _ => None,
    }
}

/// Returns weir's name for another program's value, if it is one of `words`.
pub(crate) fn value(text: &str, words: &[&str]) -> Option<&'static str> {
    let text = underscored(text);
    VALUES
        .iter()
        .find(|(theirs, ours, _)| words.contains(ours) && theirs.contains(&text.as_str()))
        .map(|(.., say)| *say)
}

fn underscored(word: &str) -> String {
    word.to_ascii_lowercase().replace(['-', ' '], "_")
}

#[cfg(test)]
mod tests {
    //! Proves: no word occurs twice, and the named options exist. How: the tables themselves,
    //! against the option table.

    use super::*;
    use crate::options::DOCUMENT;
    use crate::schema::Block;

    fn words_of(block: &'static Block, into: &mut Vec<&'static str>) {
        into.extend(block.words());
        block.blocks.iter().for_each(|inner| words_of(inner, into));
    }

    #[test]
    fn each_word_has_one_answer() {
        let words = OPTIONS.iter().chain(ABSENT).flat_map(|(words, _)| *words);
        let mut all: Vec<&str> = words.copied().collect();
        assert!(all.iter().all(|word| underscored(word) == *word));
        all.sort_unstable();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    /// A word with a hint for a block is not known in that block.
    #[test]
    fn words_with_places_are_not_known_there() {
        fn known_in(block: &'static Block, name: &str, word: &str) -> bool {
            let here = block.name == name && block.words().any(|known| underscored(known) == word);
            here || block.blocks.iter().any(|inner| known_in(inner, name, word))
        }
        for (word, blocks, _) in PLACED {
            for block in *blocks {
                assert!(!known_in(&DOCUMENT, block, word), "{word} in {block}");
            }
        }
    }

    /// Text in backticks begins with words of the option table.
    #[test]
    fn what_is_named_is_known() {
        let mut known = Vec::new();
        words_of(&DOCUMENT, &mut known);
        let placed = PLACED.iter().map(|(.., say)| say);
        for say in OPTIONS.iter().chain(ABSENT).map(|(_, say)| say).chain(placed) {
            for quoted in
                say.split('`').skip(1).step_by(2).filter(|quoted| !quoted.starts_with("weir "))
            {
                let word = quoted.split([' ', '=']).next().unwrap_or_default();
                assert!(known.contains(&word) || word == "ratio", "{word} in {say}");
            }
        }
        for (block, option) in NAMED {
            let found =
                DOCUMENT.blocks.iter().flat_map(|block| std::iter::once(block).chain(block.blocks));
            assert!(
                found.filter(|found| found.name == *block).any(|found| found.row(option).is_some()),
                "{block}"
            );
        }
        assert_eq!(value("RoundRobin", &["ratio", "least"]), Some(VALUES[0].2));
        assert_eq!(value("roundrobin", &["off"]), None);
    }
}
