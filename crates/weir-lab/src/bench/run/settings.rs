//! How each program is configured, as its own experts would do it, and how many processes it needs
//! for this many clients.
//!
//! Called by `stage.rs`, which starts them. The settings are repeated in the report's last section.
//! Bound: four processes a core.

pub(super) mod http2;
pub(super) mod tls;

use std::fmt::Display;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use crate::bench::experiment::contenders::{TcpPipes, WeirSettings};
use crate::bench::experiment::tuning::Tuning;

/// Descriptors that a process needs besides those of clients and servers.
const DESCRIPTORS_OTHER: u64 = 1000;
/// Maximum number of processes of a contender for each core.
const PROCESSES_PER_CORE: u64 = 4;
/// Connections that an nginx keeps to its upstream, a worker.
const KEPT: u32 = 4096;
/// A connection that is never closed for its age.
const KEEP_ALIVE: &str = "keepalive_requests 1000000000;";

/// Processes of a contender, and threads of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// From 1.
    pub(super) processes: u64,
    /// From 1.
    pub(super) threads: usize,
}

/// Spreads `needed` descriptors over processes that may have `limit` each; one process with a
/// thread a core where that is enough.
///
/// # Errors
/// The reason, when it would take too many.
pub(super) fn shape(needed: u64, limit: u64, cores: usize) -> Result<Shape, String> {
    let room = limit.saturating_sub(DESCRIPTORS_OTHER).max(1);
    let processes = needed.div_ceil(room).max(1);
    if processes > PROCESSES_PER_CORE * cores as u64 {
        return Err(format!(
            "{needed} descriptors would take {processes} processes of {limit} on {cores} cores; \
                raise the limit (ulimit -n)"
        ));
    }
    Ok(Shape { processes, threads: cores.div_ceil(processes as usize) })
}

/// Returns a configuration with the changes of a tuning.
///
/// # Panics
/// A text that it changes does not occur exactly once, which would be a bug: the report would show
/// a setting that is not in use.
pub(super) fn tuned(text: String, tuning: Tuning) -> String {
    tuning.changes.iter().fold(text, |text, (from, to)| {
        assert_eq!(text.matches(from).count(), 1, "{}: {from:?} in {text}", tuning.name);
        text.replacen(from, to, 1)
    })
}

/// What both uses of nginx share: a worker a core, nothing logged, connections that are never
/// closed.
fn nginx_frame(directory: &Path, name: &str, workers: u64, descriptors: u64, http: &str) -> String {
    let directory = directory.display();
    let connections = descriptors.saturating_sub(DESCRIPTORS_OTHER).max(512);
    format!(
        "daemon off;
master_process on;
worker_processes {workers};
worker_cpu_affinity auto;
worker_rlimit_nofile {descriptors};
pid {directory}/{name}.pid;
error_log stderr crit;
events {{ use epoll; worker_connections {connections}; multi_accept on; accept_mutex off; }}
http {{
    access_log off;
    default_type text/plain;
    client_body_temp_path {directory}/{name}-body;
    proxy_temp_path {directory}/{name}-proxy;
    fastcgi_temp_path {directory}/{name}-fastcgi;
    uwsgi_temp_path {directory}/{name}-uwsgi;
    scgi_temp_path {directory}/{name}-scgi;
    keepalive_timeout 1h;
    {KEEP_ALIVE}
    tcp_nodelay on;
{http}}}
"
    )
}

/// Files below this length cost nginx less when it reads them than when the kernel sends them
/// (sendfile), bytes.
const SENDFILE_FROM: u64 = 16 << 10;

/// A location for each small file, in which nginx reads it.
fn small_files(bodies: &[u64]) -> String {
    let names = bodies.iter().filter(|bytes| **bytes < SENDFILE_FROM).map(u64::to_string);
    let mut names: Vec<String> = names.chain(["index.html".to_owned()]).collect();
    names.sort();
    names.dedup();
    names.iter().map(|name| format!("        location = /{name} {{ sendfile off; }}\n")).collect()
}

/// Returns the configuration of an nginx that serves files of these lengths, besides `/`; `often`
/// closes each connection after 100 responses.
pub(super) fn nginx_origin(
    (directory, name): (&Path, &str),
    listen: &[SocketAddr],
    (workers, descriptors): (u64, u64),
    bodies: &[u64],
    often: bool,
) -> String {
    let small = small_files(bodies);
    let listen: String = listen
        .iter()
        .map(|address| format!("        listen {address} reuseport backlog=65535;\n"))
        .collect();
    let http = format!(
        "    sendfile on;
    open_file_cache max=100 inactive=1h;
    open_file_cache_valid 1h;
    server {{
{listen}        root {}/www;
{small}        location = /__stats {{ stub_status; }}
    }}
",
        directory.display()
    );
    let text = nginx_frame(directory, name, workers, descriptors, &http);
    if often { text.replace(KEEP_ALIVE, "keepalive_requests 100;") } else { text }
}

/// nginx as a reverse proxy.
pub(super) fn nginx_proxy(
    directory: &Path,
    listen: SocketAddr,
    to: &[impl Display],
    (workers, descriptors): (u64, u64),
) -> String {
    let servers: String = to.iter().map(|address| format!("        server {address};\n")).collect();
    let http = format!(
        "    upstream app {{
{servers}        keepalive {KEPT};
        keepalive_requests 1000000000;
        keepalive_timeout 1h;
    }}
    proxy_buffers 16 32k;
    proxy_max_temp_file_size 0;
    server {{
        listen {listen} reuseport backlog=65535;
        location / {{
            proxy_pass http://app;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
        }}
    }}
"
    );
    nginx_frame(directory, "nginx", workers, descriptors, &http)
}

/// HAProxy, a process of it.
pub(super) fn haproxy(
    listen: SocketAddr,
    to: &[impl Display],
    shape: Shape,
    descriptors: u64,
) -> String {
    let threads = shape.threads;
    // Several processes would all be pinned to the same first cores.
    let pinned = if shape.processes > 1 {
        String::new()
    } else {
        format!("    cpu-map auto:1/1-{threads} 0-{}\n", threads - 1)
    };
    // It wants two descriptors for each of its connections.
    let most = descriptors.saturating_sub(DESCRIPTORS_OTHER) * 3 / 4;
    let servers: String = to
        .iter()
        .enumerate()
        .map(|(at, to)| format!("    server s{at} {to} pool-purge-delay 1h\n"))
        .collect();
    format!(
        "global
    nbthread {threads}
{pinned}    maxconn {most}
    no strict-limits
    tune.maxaccept 500
defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    timeout http-request 1h
    timeout http-keep-alive 1h
    option http-keep-alive
    http-reuse always
    maxconn {most}
frontend in
    bind {listen} backlog 65535 shards by-thread
    default_backend app
backend app
{servers}"
    )
}

/// Returns HAProxy's configuration as a forwarder of bytes, by splice(2) where it has pipes, which
/// have the system's default size unless set otherwise.
pub(super) fn haproxy_tcp(
    listen: SocketAddr,
    to: SocketAddr,
    cores: usize,
    descriptors: u64,
    pipes: TcpPipes,
) -> String {
    let most = descriptors.saturating_sub(DESCRIPTORS_OTHER) * 3 / 4;
    let size = if pipes == TcpPipes::Large { "    tune.pipesize 1048576\n" } else { "" };
    let splice = if pipes == TcpPipes::None {
        ""
    } else {
        "    option splice-request\n    option splice-response\n"
    };
    format!(
        "global
    nbthread {cores}
    cpu-map auto:1/1-{cores} 0-{}
    maxconn {most}
    no strict-limits
    tune.maxaccept 500
{size}defaults
    mode tcp
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    maxconn {most}
{splice}frontend in
    bind {listen} backlog 65535 shards by-thread
    default_backend app
backend app
    server s0 {to}
",
        cores - 1
    )
}

/// Envoy, as JSON: no access log, no statistics by request, circuit breakers that never open.
pub(super) fn envoy(listen: SocketAddr, to: &[SocketAddr]) -> String {
    let address = |at: &SocketAddr| {
        serde_json::json!({
            "socket_address": {"address": at.ip().to_string(), "port_value": at.port()}
        })
    };
    let endpoints: Vec<_> =
        to.iter().map(|at| serde_json::json!({"endpoint": {"address": address(at)}})).collect();
    let manager = "type.googleapis.com/envoy.extensions.filters.network.\
        http_connection_manager.v3.HttpConnectionManager";
    let router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
    let many = 1_000_000_000;
    serde_json::json!({"static_resources": {
        "listeners": [{
            "address": address(&listen),
            "enable_reuse_port": true,
            "tcp_backlog_size": 65535,
            "filter_chains": [{"filters": [{
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": {
                    "@type": manager,
                    "stat_prefix": "in",
                    "generate_request_id": false,
                    "stream_idle_timeout": "0s",
                    "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
                        {"match": {"prefix": "/"},
                        "route": {"cluster": "app", "timeout": "0s"}}]}]},
                    "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {
                        "@type": router,
                        "dynamic_stats": false, "suppress_envoy_headers": true}}],
                },
            }]}],
        }],
        "clusters": [{
            "name": "app",
            "type": "STATIC",
            "connect_timeout": "5s",
            "circuit_breakers": {"thresholds": [{"max_connections": many,
                "max_pending_requests": many, "max_requests": many}]},
            "load_assignment": {"cluster_name": "app", "endpoints": [{"lb_endpoints": endpoints}]},
        }],
    }})
    .to_string()
}

/// Limits that no client exceeds.
const LIMITS: &str = "shield {
    limit \"rate\" count=\"requests\" rate=\"1000000/s\" burst=1000000
    limit \"open\" count=\"open\" max=1000000
}
";

/// weir's configuration file, for a process of it.
pub(super) fn weir(
    listen: SocketAddr,
    to: impl Display,
    workers: usize,
    settings: WeirSettings,
) -> String {
    let WeirSettings { io, connections, queue, pipeline, pool, limits, lines, .. } = settings;
    let limits = if limits { LIMITS } else { "" };
    let (mode, number) = match pool {
        "pipelined" => (
            format!("queue-size {queue}\n    pipeline {pipeline}"),
            format!(" connections={connections}"),
        ),
        "shared" => {
            (format!("queue-size {queue}\n    pool shared"), format!(" connections={connections}"))
        }
        _ => (format!("pool {pool}"), String::new()),
    };
    format!(
        "{lines}workers {workers}
io \"{io}\"
listen \"{listen}\"
client {{
    idle-timeout \"1h\"
}}
{limits}upstream \"app\" {{
    {mode}
    server \"{to}\"{number}
}}
route host=\"*\" path=\"/\" {{
    proxy \"app\"
}}
"
    )
}

/// Returns weir's configuration as a forward proxy that may reach the origin.
pub(super) fn weir_forward(
    listen: SocketAddr,
    to: SocketAddr,
    workers: usize,
    (pool, io): (&str, &str),
) -> String {
    let (address, port) = (to.ip(), to.port());
    format!(
        "workers {workers}
io \"{io}\"
client {{
    idle-timeout \"1h\"
}}
forward {{
    listen \"{listen}\"
    pool {pool}
    allow address=\"{address}/32\" port={port}
}}
"
    )
}

/// Returns weir's configuration in TCP mode, with these congestion controls towards clients and
/// towards the server, or those of the system. It does not wait for connections at its end, since
/// the link is gone before it.
pub(super) fn weir_tcp(
    (listen, to): (SocketAddr, SocketAddr),
    workers: usize,
    [clients, server]: [Option<&str>; 2],
) -> String {
    let clients = clients.map_or_else(String::new, |name| format!(" congestion=\"{name}\""));
    let server = server.map_or_else(String::new, |name| format!("    congestion \"{name}\"\n"));
    format!(
        "workers {workers}
shutdown {{
    drain \"0s\"
}}
tcp {{
    listen \"{listen}\"{clients}
    proxy \"app\"
}}
upstream \"app\" {{
    server \"{to}\"
{server}}}
"
    )
}

/// Returns HAProxy's configuration between clients and their original destinations, from the
/// addresses of the clients. It is in TCP mode, or where it reads requests in HTTP mode, in which
/// no client uses the connection of another.
pub(super) fn haproxy_through(
    any: SocketAddr,
    cores: usize,
    descriptors: u64,
    (pipes, reads): (TcpPipes, bool),
) -> String {
    let source = if any.is_ipv4() { any.ip().to_string() } else { format!("[{}]", any.ip()) };
    let mode = if reads {
        "    mode http\n    timeout http-request 1h\n    http-reuse never\n"
    } else {
        "    mode tcp\n"
    };
    haproxy_tcp(any, any, cores, descriptors, pipes)
        .replace("    mode tcp\n", mode)
        .replace(&format!("bind {any}"), &format!("bind {any} transparent"))
        .replace(
            &format!("    server s0 {any}"),
            &format!("    source {source} usesrc clientip\n    server s *"),
        )
}

/// Returns weir's configuration in TCP mode between clients and their original destinations, from
/// the addresses and ports of the clients.
pub(super) fn weir_through(any: SocketAddr, workers: usize, io: &str) -> String {
    format!(
        "workers {workers}
io \"{io}\"
tcp {{
    listen \"{any}\" transparent=#true
    proxy \"through\"
}}
upstream \"through\" {{
    server \"original-destination\"
    source \"client\"
}}
"
    )
}

/// Returns weir's configuration where it reads requests, in the same place.
pub(super) fn weir_through_http(any: SocketAddr, workers: usize) -> String {
    format!(
        "workers {workers}
listen \"{any}\" transparent=#true
route {{ proxy \"through\"; }}
upstream \"through\" {{
    server \"original-destination\"
    source \"client\"
}}
"
    )
}

/// nginx as a forward proxy: its upstream is what Host says, to which it can't keep connections.
pub(super) fn nginx_forward(
    directory: &Path,
    listen: SocketAddr,
    (workers, descriptors): (u64, u64),
) -> String {
    let http = format!(
        "    proxy_buffers 16 32k;
    proxy_max_temp_file_size 0;
    server {{
        listen {listen} reuseport backlog=65535;
        location / {{
            proxy_pass http://$http_host$request_uri;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
        }}
    }}
"
    );
    nginx_frame(directory, "nginx-forward", workers, descriptors, &http)
}

/// Writes files of these lengths for nginx to serve, and that of `/`.
///
/// # Errors
/// One can't be written.
pub(super) fn write_files(www: &Path, bodies: &[u64]) -> io::Result<()> {
    fs::write(www.join("index.html"), "ok\n")?;
    for length in bodies {
        // A file without blocks: its zeros come from the page cache and take no disk.
        fs::File::create(www.join(length.to_string()))?.set_len(*length)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::experiment::cells::{Closed, RequestKind};
    use crate::bench::experiment::contenders::{WEIR, contender};
    use crate::bench::experiment::tuning::candidates;

    #[test]
    fn a_process_is_enough_until_its_descriptors_are_not() {
        assert_eq!(shape(4000, 20_000, 2), Ok(Shape { processes: 1, threads: 2 }));
        assert_eq!(shape(32_768, 20_000, 2), Ok(Shape { processes: 2, threads: 1 }));
        assert_eq!(shape(65_536, 20_000, 8), Ok(Shape { processes: 4, threads: 2 }));
        let stopped = shape(65_536, 1024, 2).unwrap_err();
        assert!(stopped.contains("1024") && stopped.contains("ulimit -n"), "{stopped}");
    }

    #[test]
    fn each_candidate_changes_the_configuration_of_its_rival() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let shape = Shape { processes: 1, threads: 2 };
        let load = Closed { connections: 4000, body: 1 << 20, kind: RequestKind::Minimal };
        let of = |name: &str| candidates(contender(name).unwrap(), load);
        let haproxy = haproxy(at(1), &[at(2)], shape, 20_000);
        let nginx = nginx_proxy(Path::new("/d"), at(1), &[at(2)], (2, 20_000));
        for (text, name, expected) in [
            (haproxy, "haproxy", "    tune.pool-low-fd-ratio 90\n    tune.pool-high-fd-ratio 95\n"),
            (nginx, "nginx", "    proxy_buffer_size 32k;\n"),
        ] {
            let [usual, other] = of(name) else { panic!("{name}: {:?}", of(name)) };
            assert_eq!(tuned(text.clone(), *usual), text);
            assert!(!text.contains(expected) && tuned(text, *other).contains(expected), "{name}");
        }
    }

    #[test]
    fn the_origin_reads_small_files_and_has_the_kernel_send_large_ones() {
        let at = [SocketAddr::from(([127, 0, 0, 1], 1))];
        let text = nginx_origin(
            (Path::new("/d"), "origin"),
            &at,
            (2, 20_000),
            &[4096, 1 << 20, 4096],
            false,
        );
        assert_eq!(text.matches("location = /4096 { sendfile off; }").count(), 1, "{text}");
        assert!(
            text.contains("location = /index.html { sendfile off; }")
                && text.contains("    sendfile on;"),
            "{text}"
        );
        assert!(!text.contains("1048576"), "{text}");
    }

    #[test]
    fn who_stands_in_the_middle_has_no_address_of_his_own() {
        let any = SocketAddr::from(([0, 0, 0, 0], 8080));
        let text = haproxy_through(any, 2, 20_000, (TcpPipes::None, false));
        let http = haproxy_through(any, 2, 20_000, (TcpPipes::Large, true));
        let six = haproxy_through("[::]:8080".parse().unwrap(), 2, 20_000, (TcpPipes::None, false));
        assert!(
            six.contains("bind [::]:8080 transparent") && six.contains("source [::] usesrc"),
            "{six}"
        );
        assert!(
            text.contains("mode tcp") && http.contains("mode http") && !http.contains("mode tcp"),
            "{http}"
        );
        assert!(
            http.contains("option splice-response")
                && http.contains("usesrc clientip\n    server s *"),
            "{http}"
        );
        let lines = [
            "    bind 0.0.0.0:8080 transparent backlog",
            "\n    source 0.0.0.0 usesrc clientip\n    server s *\n",
        ];
        lines.iter().for_each(|line| assert!(text.contains(line), "{text}"));
        assert!(!text.contains("s0"), "{text}");
    }

    #[test]
    fn an_address_of_each_server_stands_in_each_configuration() {
        let (listen, to) =
            (SocketAddr::from(([127, 0, 0, 1], 1)), SocketAddr::from(([127, 0, 0, 1], 65_000)));
        let shape = Shape { processes: 1, threads: 2 };
        let all = [
            nginx_proxy(Path::new("/d"), listen, &[to], (2, 20_000)),
            haproxy(listen, &[to], shape, 20_000),
            haproxy_tcp(listen, to, 2, 20_000, TcpPipes::Large),
            envoy(listen, &[to]),
            weir(listen, to, 2, WEIR),
            weir_forward(listen, to, 2, ("pinned", "epoll")),
        ];
        for text in all {
            assert!(text.contains("65000"), "{text}");
        }
    }
}
