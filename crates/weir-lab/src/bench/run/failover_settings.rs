//! How the proxies that have to survive the death of servers are configured, as their own experts
//! would do it.
//!
//! Called by `failover.rs`. All have the same patience: a connect may take 1 s, a response 2 s,
//! three tries or 6 s in all, and servers are probed every second where that is possible (nginx:
//! passively, through `max_fails`). None may send a POST twice.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

/// nginx: both workers leave a server that failed three times in a second out for a second.
pub(super) fn nginx(
    directory: &Path,
    listen: SocketAddr,
    to: &[SocketAddr],
    cores: usize,
) -> String {
    let servers = lines(to, |_, to| format!("        server {to} max_fails=3 fail_timeout=1s;"));
    let directory = directory.display();
    format!(
        "daemon off;
master_process on;
worker_processes {cores};
worker_rlimit_nofile 20000;
pid {directory}/failover.pid;
error_log stderr crit;
events {{ use epoll; worker_connections 9000; multi_accept on; accept_mutex off; }}
http {{
    access_log off;
    client_body_temp_path {directory}/failover-body;
    proxy_temp_path {directory}/failover-proxy;
    fastcgi_temp_path {directory}/failover-fastcgi;
    uwsgi_temp_path {directory}/failover-uwsgi;
    scgi_temp_path {directory}/failover-scgi;
    keepalive_timeout 1h;
    keepalive_requests 1000000000;
    tcp_nodelay on;
    upstream app {{
        zone app 256k;
{servers}        keepalive 512;
        keepalive_requests 1000000000;
    }}
    server {{
        listen {listen} reuseport backlog=65535;
        location / {{
            proxy_pass http://app;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_connect_timeout 1s;
            proxy_read_timeout 2s;
            proxy_send_timeout 2s;
            proxy_next_upstream error timeout http_502 http_503 http_504;
            proxy_next_upstream_tries 3;
        }}
    }}
}}
"
    )
}

/// HAProxy: probes, and every response observed; ten bad ones in a row mark a server down. Once it
/// was sent, only a request other than POST is retried.
pub(super) fn haproxy(listen: SocketAddr, to: &[SocketAddr], cores: usize) -> String {
    let servers = lines(to, |nth, to| format!("    server s{nth} {to} pool-purge-delay 1h"));
    format!(
        "global
    nbthread {cores}
    maxconn 15000
    no strict-limits
    tune.maxaccept 500
    spread-checks 10
defaults
    mode http
    timeout connect 1s
    timeout server 2s
    timeout queue 2s
    timeout check 1s
    timeout client 1h
    timeout http-request 1h
    timeout http-keep-alive 1h
    option http-keep-alive
    http-reuse always
    option redispatch 1
    retries 2
    retry-on conn-failure empty-response response-timeout 502 503 504
    maxconn 15000
frontend in
    bind {listen} backlog 65535 shards by-thread
    default_backend app
backend app
    balance roundrobin
    option httpchk GET /
    http-request disable-l7-retry if METH_POST
    default-server check inter 1s fall 2 rise 2 observe layer7 error-limit 10 on-error mark-down
{servers}"
    )
}

/// weir: its defaults, with probes and a rule for bad responses.
pub(super) fn weir(listen: SocketAddr, to: &[SocketAddr], cores: usize) -> String {
    let servers = lines(to, |_, to| format!("    server \"{to}\""));
    format!(
        "workers {cores}
listen \"{listen}\"
client {{
    idle-timeout \"1h\"
}}
upstream \"app\" {{
    connect-timeout \"1s\"
    forward-timeout \"6s\"
    health interval=\"1s\" timeout=\"1s\" fall=2 rise=2
    failover \"5xx\"
    failover \"lost\"
{servers}}}
route {{
    proxy \"app\"
}}
"
    )
}

fn lines(to: &[SocketAddr], line: impl Fn(usize, &SocketAddr) -> String) -> String {
    to.iter().enumerate().fold(String::new(), |mut text, (nth, to)| {
        let _ = writeln!(text, "{}", line(nth, to));
        text
    })
}
