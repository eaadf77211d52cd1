//! Everything a benchmark runs against: the origin, the rivals tuned as their own experts would, and weir.
//!
//! Called by `mod.rs`. Configurations are written to a directory of our own that is removed at the end; all traffic stays
//! on 127.0.0.1. The settings are those of measuring.md and are repeated in the report.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::process::Process;

/// Name of the file with a body of three bytes; also what `/` gives.
pub(super) const SMALL: &str = "/";
/// Files beside it: name and length.
const FILES: [(&str, u64); 6] = [
    ("3k", 3 * 1024),
    ("8k", 8 * 1024),
    ("16k", 16 * 1024),
    ("64k", 64 * 1024),
    ("1m", 1024 * 1024),
    ("100m", 100_000_000),
];

/// Something that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Contender {
    /// Its name in tables and on the command line.
    pub(super) name: &'static str,
    /// What it is and how it is set.
    pub(super) what: What,
}

/// The programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// No proxy.
    Direct,
    /// nginx as reverse proxy.
    Nginx,
    /// HAProxy.
    Haproxy,
    /// weir with default settings, in front of servers that close each connection after 100 requests.
    WeirClosing,
    /// weir, with the driver's name, connections to the server, queue size, and what stands behind `pipeline`.
    Weir(&'static str, u32, u32, &'static str),
}

/// All contenders. `weir` has default settings.
pub(super) const CONTENDERS: [Contender; 11] = [
    Contender { name: "direct", what: What::Direct },
    Contender { name: "nginx", what: What::Nginx },
    Contender { name: "haproxy", what: What::Haproxy },
    Contender { name: "weir", what: What::Weir("auto", 32, 1000, "adaptive") },
    Contender { name: "weir-epoll", what: What::Weir("epoll", 32, 1000, "adaptive") },
    Contender { name: "weir-128", what: What::Weir("auto", 128, 1000, "adaptive") },
    Contender { name: "weir-256", what: What::Weir("auto", 256, 1000, "adaptive") },
    // 4,000 clients wait for one connection: the queue has to hold them all.
    Contender { name: "weir-one", what: What::Weir("auto", 1, 10_000, "adaptive") },
    Contender { name: "weir-closing", what: What::WeirClosing },
    Contender { name: "weir-off", what: What::Weir("auto", 32, 1000, "off") },
    Contender { name: "weir-stay", what: What::Weir("auto", 32, 1000, "adaptive escape=off") },
];

/// A started contender.
#[derive(Debug)]
pub(super) struct Running {
    /// Where it listens.
    pub(super) address: SocketAddr,
    log: PathBuf,
    process: Option<Process>,
    /// The server behind it, where it has one of its own.
    _origin: Option<Process>,
}

impl Running {
    /// What weir wrote when it started: which driver runs and why. None for the others.
    pub(super) fn says(&self) -> Option<String> {
        let text = fs::read_to_string(&self.log).ok()?;
        text.lines().find(|line| line.starts_with("weir: ")).map(str::to_owned)
    }

    /// Its processes; none for direct.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.process.as_ref().map(Process::family).unwrap_or_default()
    }
}

/// The directory, the origin, and how to start the rest.
#[derive(Debug)]
pub(super) struct Stage {
    directory: PathBuf,
    cores: usize,
    weir: PathBuf,
    origin: Process,
    /// Where the origin listens.
    pub(super) origin_address: SocketAddr,
    origin_is_weir: bool,
}

impl Stage {
    /// Writes the files and starts the origin: nginx, or weir's own.
    ///
    /// # Errors
    /// A program is missing or doesn't start.
    pub(super) fn open(weir: &Path, origin_is_weir: bool) -> io::Result<Stage> {
        let directory = std::env::temp_dir().join(format!(
            "weir-bench-{}-{}",
            std::process::id(),
            if origin_is_weir { "weir" } else { "nginx" }
        ));
        fs::create_dir_all(directory.join("www"))?;
        write_files(&directory.join("www"))?;
        fs::write(directory.join("wrk.lua"), include_str!("wrk.lua"))?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let address = free_address()?;
        let log = directory.join("origin.log");
        let threads = cores.to_string();
        let mut origin = if origin_is_weir {
            let listen = address.to_string();
            Process::start(weir, &["origin", "--listen", &listen, "--threads", &threads], &log)?
        } else {
            let path = directory.join("origin.conf");
            fs::write(&path, nginx_origin(&directory, "origin", address, cores))?;
            start_nginx(&path, &directory, &log)?
        };
        origin.await_listening(address, &log)?;
        let weir = weir.to_owned();
        Ok(Stage { directory, cores, weir, origin, origin_address: address, origin_is_weir })
    }

    /// Starts a contender and waits until it listens.
    ///
    /// # Errors
    /// It is missing or doesn't start.
    pub(super) fn start(&self, contender: Contender) -> io::Result<Running> {
        if contender.what == What::Direct {
            return Ok(Running { address: self.origin_address, log: PathBuf::new(), process: None, _origin: None });
        }
        let address = free_address()?;
        let log = self.directory.join(format!("{}.log", contender.name));
        let file = self.directory.join(format!("{}.conf", contender.name));
        let mut origin = None;
        let mut process = match contender.what {
            What::Direct | What::Nginx => {
                fs::write(&file, nginx_proxy(&self.directory, address, self.origin_address, self.cores))?;
                start_nginx(&file, &self.directory, &log)?
            }
            What::Haproxy => {
                fs::write(&file, haproxy(address, self.origin_address, self.cores))?;
                Process::start(Path::new("haproxy"), &["-db", "-f", &file.to_string_lossy()], &log)?
            }
            What::WeirClosing => {
                let (closing, to) = self.start_closing()?;
                origin = Some(closing);
                let text = weir_config(address, to, self.cores, ("auto", 32, 1000, "adaptive"));
                fs::write(&file, text)?;
                Process::start(&self.weir, &["run", "-c", &file.to_string_lossy()], &log)?
            }
            What::Weir(io, connections, queue, pipeline) => {
                let text = weir_config(address, self.origin_address, self.cores, (io, connections, queue, pipeline));
                fs::write(&file, text)?;
                Process::start(&self.weir, &["run", "--admin", "off", "-c", &file.to_string_lossy()], &log)?
            }
        };
        process.await_listening(address, &log)?;
        Ok(Running { address, log, process: Some(process), _origin: origin })
    }

    /// Another origin, which closes each connection after 100 requests.
    fn start_closing(&self) -> io::Result<(Process, SocketAddr)> {
        let address = free_address()?;
        let (path, log) = (self.directory.join("closing.conf"), self.directory.join("closing.log"));
        let often = nginx_origin(&self.directory, "closing", address, self.cores);
        fs::write(&path, often.replace(KEEP_ALIVE, "keepalive_requests 100;"))?;
        let mut process = start_nginx(&path, &self.directory, &log)?;
        process.await_listening(address, &log)?;
        Ok((process, address))
    }

    /// The script that wrk runs.
    pub(super) fn script(&self) -> PathBuf {
        self.directory.join("wrk.lua")
    }

    /// The origin's processes.
    pub(super) fn origin_pids(&self) -> Vec<u32> {
        self.origin.family()
    }

    /// Connections that the origin has accepted so far, with the one that asks.
    ///
    /// # Errors
    /// The origin doesn't answer.
    pub(super) fn origin_accepts(&self) -> io::Result<u64> {
        let text = get(self.origin_address, "/__stats")?;
        let number = if self.origin_is_weir {
            text.split("\"connects\":").nth(1)
        } else {
            text.split("requests\n").nth(1).or_else(|| text.split("server accepts").nth(1))
        };
        number
            .and_then(|rest| rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok())
            .ok_or_else(|| io::Error::other(format!("the origin's counters can't be read: {text}")))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// One small request on a connection of its own; returns the reply.
pub(super) fn get(address: SocketAddr, target: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// A port that was free a moment ago.
fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

fn write_files(www: &Path) -> io::Result<()> {
    fs::write(www.join("index.html"), "ok\n")?;
    for (name, length) in FILES {
        // A file without blocks: its zeros come from the page cache and take no disk.
        fs::File::create(www.join(name))?.set_len(length)?;
    }
    Ok(())
}

fn start_nginx(file: &Path, directory: &Path, log: &Path) -> io::Result<Process> {
    let nginx = if Path::new("/usr/sbin/nginx").exists() { "/usr/sbin/nginx" } else { "nginx" };
    let (file, directory) = (file.to_string_lossy(), directory.to_string_lossy());
    Process::start(Path::new(nginx), &["-p", &directory, "-e", "stderr", "-c", &file], log)
}

/// A connection that is never closed for its age.
const KEEP_ALIVE: &str = "keepalive_requests 1000000000;";

/// What both uses of nginx share: one worker a core, nothing logged, connections that are never closed.
fn nginx_frame(directory: &Path, name: &str, cores: usize, http: &str) -> String {
    let directory = directory.display();
    format!(
        "daemon off;
master_process on;
worker_processes {cores};
worker_cpu_affinity auto;
worker_rlimit_nofile 20000;
pid {directory}/{name}.pid;
error_log stderr crit;
events {{ use epoll; worker_connections 19000; multi_accept on; accept_mutex off; }}
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

fn nginx_origin(directory: &Path, name: &str, listen: SocketAddr, cores: usize) -> String {
    let http = format!(
        "    sendfile on;
    open_file_cache max=100 inactive=1h;
    open_file_cache_valid 1h;
    server {{
        listen {listen} reuseport backlog=65535;
        root {}/www;
        location = /__stats {{ stub_status; }}
    }}
",
        directory.display()
    );
    nginx_frame(directory, name, cores, &http)
}

fn nginx_proxy(directory: &Path, listen: SocketAddr, to: SocketAddr, cores: usize) -> String {
    let http = format!(
        "    upstream app {{
        server {to};
        keepalive 4096;
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
    nginx_frame(directory, "nginx", cores, &http)
}

fn haproxy(listen: SocketAddr, to: SocketAddr, cores: usize) -> String {
    let last = cores - 1;
    format!(
        "global
    nbthread {cores}
    cpu-map auto:1/1-{cores} 0-{last}
    maxconn 15000
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
    maxconn 15000
frontend in
    bind {listen} backlog 65535 shards by-thread
    default_backend app
backend app
    server one {to} pool-purge-delay 1h
"
    )
}

fn weir_config(
    listen: SocketAddr,
    to: SocketAddr,
    cores: usize,
    (io, connections, queue_size, pipeline): (&str, u32, u32, &str),
) -> String {
    format!(
        "workers {cores}
io \"{io}\"
listen \"{listen}\"
client {{
    idle-timeout \"1h\"
}}
upstream \"app\" {{
    queue-size {queue_size}
    pipeline {pipeline}
    server \"{to}\" connections={connections}
}}
route host=\"*\" path=\"/\" {{
    proxy \"app\"
}}
"
    )
}
