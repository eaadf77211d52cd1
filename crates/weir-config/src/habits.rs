//! What nginx, HAProxy, Caddy and Traefik call things that weir spells differently, so that a message can name weir's word. Called
//! for words that are wrong anyway: by `check` for options, by `schema` for values, by `foreign` for whole files.

/// Words that begin a line elsewhere, each group with weir's way to say it. Dashes count as underscores.
const OPTIONS: &[(&[&str], &str)] = &[
    (&["worker_processes", "nbthread", "nbproc", "worker_threads"], "`workers N` at the top"),
    (&["proxy_protocol", "accept_proxy", "accept_proxy_protocol"], "`proxy-protocol #true` in `listen`"),
    (&["bind_to_device", "bindtodevice", "so_bindtodevice"], "`device \"eth1\"` in `listen` or `upstream`"),
    (&["sndbuf", "so_sndbuf"], "`send-buffer \"1MiB\"` in `listen` or `upstream`"),
    (&["rcvbuf", "so_rcvbuf"], "`receive-buffer \"1MiB\"` in `listen` or `upstream`"),
    (&["tos", "set_tos", "ip_tos"], "`dscp \"af21\"` in `listen` or `upstream`"),
    (&["tcp_ut", "tcp_user_timeout"], "`user-timeout \"30s\"` in `listen` or `upstream`"),
    (&["send_proxy", "send_proxy_v2"], "`proxy-protocol \"v2\"` in `upstream`"),
    (&["worker_connections", "maxconn"], "`connections N` in `client`"),
    (
        &["limit_req", "limit_req_zone", "limit_conn", "limit_conn_zone", "rate_limit", "ratelimit"],
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
    (&["location", "handle_path", "path_prefix", "pathprefix"], "`route path=\"/PATH\" { proxy \"NAME\"; }`"),
    (
        &["return", "redir", "http_request", "static_response"],
        "`redirect \"https://HOST/PATH\"` or `respond 404 \"TEXT\"` in `route`",
    ),
    (&["server_name", "hosts", "domain"], "`route host=\"NAME\" { proxy \"NAME\"; }`"),
    (&["limit_except"], "`route methods=\"GET,HEAD\" { proxy \"NAME\"; }`"),
    (
        &["keepalive", "http_reuse", "pool_max_conn"],
        "`connections-min` and `connections` of a `server`; they are kept by default",
    ),
    (
        &["so_keepalive", "proxy_socket_keepalive", "tcpka", "clitcpka", "srvtcpka", "tcp_keepalives"],
        "`tcp-keepalive` of a `listen` or an `upstream`",
    ),
    (&["keepalive_timeout", "timeout_client", "timeout_http_keep_alive", "idle_timeout"], "`idle-timeout` in `client`"),
    (&["client_max_body_size", "request_body", "max_size"], "`body-limit` in `client`"),
    (
        &["large_client_header_buffers", "client_header_buffer_size", "tune.bufsize", "max_header_size"],
        "`head-limit` and `line-limit` in `client`",
    ),
    (&["client_header_timeout", "timeout_http_request", "read_header_timeout"], "`head-timeout` in `client`"),
    (&["client_body_timeout", "read_body_timeout"], "`body-timeout` in `client`"),
    (&["send_timeout", "write_timeout"], "`send-timeout` in `client`"),
    (
        &["set_real_ip_from", "real_ip_header", "forwardedheaders", "client_ip_headers"],
        "`trusted-proxies` and `client-address` in `client`",
    ),
    (&["proxy_connect_timeout", "timeout_connect", "dial_timeout"], "`connect-timeout` in `upstream`"),
    (
        &["proxy_read_timeout", "proxy_send_timeout", "timeout_server", "response_header_timeout"],
        "`forward-timeout` in `upstream`",
    ),
    (
        &["proxy_next_upstream", "proxy_next_upstream_tries", "retries", "redispatch", "lb_try_duration"],
        "`forward-retries` in `upstream`",
    ),
    (&["max_fails", "fail_timeout", "observe", "on_error"], "`failover \"5xx\" limit=10 window=\"10s\"` in `upstream`"),
    (
        &["health_check", "httpchk", "http_check", "check", "health_uri", "health_path"],
        "`health { path \"/\"; }` in `upstream`",
    ),
    (&["least_conn", "leastconn"], "`balance \"least\"` in `upstream`"),
    (&["ip_hash", "hash"], "`balance \"hash\" key=\"client-ip\"` in `upstream`"),
    (
        &["round_robin", "roundrobin", "lb_policy"],
        "`balance` in `upstream`; in turn by weight (`ratio`) is the default",
    ),
    (&["cookie", "stick_table", "stick"], "`sticky cookie=\"NAME\"` in `upstream`"),
    (
        &["ssl", "ssl_certificate", "ssl_certificate_key", "crt"],
        "`listen \"ADDRESS:PORT\" { tls { certificate \"FILE\" key=\"FILE\"; } }`",
    ),
    (&["ssl_protocols", "ssl_min_ver", "minversion"], "`min-version` of `tls`"),
    (&["ssl_client_certificate", "ssl_verify_client", "ca_file"], "`client-auth` and `client-ca` of `tls` in `listen`"),
    (
        &["proxy_ssl_verify", "proxy_ssl_trusted_certificate", "tls_insecure_skip_verify"],
        "`tls verify=#true ca=\"FILE\"` in `upstream`",
    ),
    (&["log_format", "option_httplog", "httplog"], "`access-log \"PATH\" format=\"...\"` at the top"),
    (&["error_log", "log_level"], "nothing: weir tells of itself on standard error, and of requests in `access-log`"),
    (
        &["stub_status", "stats", "status_page"],
        "`metrics \"127.0.0.1:9100\"` at the top, which has a page, too; or `weir status`",
    ),
    (&["pid", "pidfile", "daemon"], "nothing: weir stays in the foreground; the service manager knows its process"),
];

/// Values elsewhere, with weir's value and how it is written.
const VALUES: &[(&[&str], &str, &str)] = &[
    (
        &["round_robin", "roundrobin", "static_rr", "rr", "wrr", "weighted", "weighted_round_robin"],
        "ratio",
        "`ratio`, in turn by weight, which is the default",
    ),
    (
        &["least_conn", "leastconn", "least_connections", "least_requests", "least_request", "random_choose"],
        "least",
        "`least`",
    ),
    (&["least_time", "ewma", "peak_ewma", "p2c"], "dynamic", "`dynamic`, by weight and response time, or `least`"),
    (
        &["ip_hash", "iphash", "source", "client_ip_hash", "uri_hash", "ring_hash", "consistent", "maglev"],
        "hash",
        "`hash` with a key, such as `balance \"hash\" key=\"client-ip\"`",
    ),
];

/// How weir says what another program says by an option of this name.
pub(crate) fn option(word: &str) -> Option<&'static str> {
    let word = underscored(word);
    OPTIONS.iter().find(|(words, _)| words.contains(&word.as_str())).map(|(_, say)| *say)
}

/// How weir calls what another program calls so, where it is one of `words`.
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
    //! Proves: no word stands twice, and what is named is known. How: the tables themselves, against the option table.

    use super::*;
    use crate::options::DOCUMENT;
    use crate::schema::Block;

    fn words_of(block: &'static Block, into: &mut Vec<&'static str>) {
        into.extend(block.words());
        block.blocks.iter().for_each(|inner| words_of(inner, into));
    }

    #[test]
    fn each_word_has_one_answer() {
        let mut all: Vec<&str> = OPTIONS.iter().flat_map(|(words, _)| *words).copied().collect();
        assert!(all.iter().all(|word| underscored(word) == *word));
        all.sort_unstable();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    /// What stands in backticks begins with words that the option table has.
    #[test]
    fn what_is_named_is_known() {
        let mut known = Vec::new();
        words_of(&DOCUMENT, &mut known);
        for (_, say) in OPTIONS {
            for quoted in say.split('`').skip(1).step_by(2).filter(|quoted| !quoted.starts_with("weir ")) {
                let word = quoted.split(' ').next().unwrap_or_default();
                assert!(known.contains(&word) || word == "ratio", "{word} in {say}");
            }
        }
        assert_eq!(value("RoundRobin", &["ratio", "least"]), Some(VALUES[0].2));
        assert_eq!(value("roundrobin", &["off"]), None);
    }
}
