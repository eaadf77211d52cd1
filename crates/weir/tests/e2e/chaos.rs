//! Proves: while servers are killed, restarted, paused and replaced one after another, and one is
//! always available, no client gets an error, and a request that must not be repeated reaches an
//! application at most once. How: real processes under load from wrk, which counts each reply that
//! is missing or an error; and servers whose records survive their own deaths.
//! docs/retries.md.
//!
//! `WEIR_CHAOS_SECONDS` makes it longer than a test may be: `make chaos`.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::kit::{
    Client, Io, Link, Nginx, Random, Server, Stopping, Weir, eventually, free_port, nonce,
    on_both_drivers, run,
};
use weir_check::upstreams::check_honest;
use weir_check::{Request, Rules};

on_both_drivers!(
    ;
    alone:
    killed_restarted_and_paused_servers_lose_nothing,
    servers_that_close_every_hundred_requests_lose_nothing,
    posts_among_dying_servers_arrive_at_most_once,
);

/// Returns how long each of these runs.
fn seconds() -> u64 {
    std::env::var("WEIR_CHAOS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5)
}

/// Returns the configuration in front of servers at these addresses.
fn upstream(addresses: &[SocketAddr]) -> String {
    let servers: String =
        addresses.iter().map(|address| format!(" server \"{address}\"\n")).collect();
    format!("upstream \"app\" {{\n{servers}}}\nroute {{ proxy \"app\" }}\n")
}

/// A test origin in a separate process.
struct Origin {
    address: SocketAddr,
    child: Child,
}

impl Origin {
    fn start_at(address: SocketAddr) -> Origin {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["origin", "--listen", &address.to_string(), "--threads", "1"]);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("weir starts");
        let origin = Origin { address, child };
        eventually("the origin answers", || origin.requests().is_some());
        origin
    }

    fn start() -> Origin {
        Origin::start_at(SocketAddr::from(([127, 0, 0, 1], free_port())))
    }

    /// Returns the number of requests that it has answered, without this query; None: it does not
    /// respond.
    fn requests(&self) -> Option<u64> {
        let output = run("curl", &["-s", "-m", "1", &format!("http://{}/__stats", self.address)]);
        let stats: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        stats["requests"].as_u64()
    }

    /// Waits until it has answered this many more, or the load is over.
    fn serves(&self, more: u64, load: &mut Wrk) {
        let before = self.requests().unwrap_or_default();
        // Each query counts as well.
        let mut asked = 0;
        eventually("the server gets requests", || {
            asked += 1;
            load.is_over() || self.requests().is_some_and(|now| now >= before + more + asked)
        });
    }

    fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    /// Ends it by SIGKILL, without an orderly close.
    fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it is a child");
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// wrk with 64 connections that send one request after another; returns its output.
struct Wrk(Child);

impl Wrk {
    fn start(address: SocketAddr, seconds: u64) -> Wrk {
        let url = format!("http://{address}/");
        let mut command = Command::new("wrk");
        command.args(["-t2", "-c64", &format!("-d{seconds}s"), "--timeout", "10s", &url]);
        Wrk(command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("wrk is installed (make setup)"))
    }

    fn is_over(&mut self) -> bool {
        self.0.try_wait().expect("wrk is a child").is_some()
    }

    /// Waits for its end. Returns the number of answered requests; none may have failed.
    fn finish(self) -> u64 {
        let output = self.0.wait_with_output().expect("wrk ends");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "{text}");
        let requests = text.lines().find_map(|line| line.trim().split_once(" requests in "));
        requests.and_then(|(count, _)| count.parse().ok()).unwrap_or_else(|| panic!("wrk: {text}"))
    }
}

fn killed_restarted_and_paused_servers_lose_nothing(io: Io) {
    let mut origins = [Origin::start(), Origin::start(), Origin::start()];
    let weir = Weir::start(io, 2, &upstream(&origins.each_ref().map(|origin| origin.address)));
    let mut wrk = Wrk::start(weir.address, seconds());
    let mut disasters = 0;
    while !wrk.is_over() {
        let victim = &mut origins[disasters % 3];
        victim.serves(100, &mut wrk);
        if disasters % 2 == 0 {
            victim.kill();
            *victim = Origin::start_at(victim.address);
        } else {
            victim.signal("STOP");
            // The disaster itself, not a wait for an event.
            std::thread::park_timeout(Duration::from_millis(200));
            victim.signal("CONT");
        }
        disasters += 1;
    }
    let answered = wrk.finish();
    assert!(disasters >= 3 && answered > 1000, "{disasters} disasters, {answered} answers");
    weir.stop();
}

fn servers_that_close_every_hundred_requests_lose_nothing(io: Io) {
    let nginx = Nginx::start(&[("index.html", b"ok\n")], "keepalive_requests 100;");
    let weir = Weir::start(io, 2, &upstream(&[nginx.address]));
    let answered = Wrk::start(weir.address, seconds().min(10)).finish();
    assert!(answered > 1000, "{answered}");
    weir.stop();
}

/// Three servers of which one at a time dies and returns at its address.
struct Mortals {
    addresses: Vec<SocketAddr>,
    living: Vec<Option<Server>>,
    /// Identifiers of POSTs that reached an application, of those that died.
    arrived: Vec<String>,
}

impl Mortals {
    fn start() -> Mortals {
        let living: Vec<Option<Server>> = (0..3).map(|_| Some(Server::start(honest))).collect();
        let addresses = living.iter().flatten().map(|server| server.address).collect();
        Mortals { addresses, living, arrived: Vec::new() }
    }

    fn kill(&mut self, victim: usize) {
        let Some(server) = self.living[victim].take() else { return };
        self.arrived.extend(posts(&server.kill().requests));
    }

    fn revive(&mut self, victim: usize) {
        let address = self.addresses[victim];
        self.living[victim] = Some(Server::start_at(address, honest, Rules::default()));
    }
}

fn honest(link: &mut Link, request: &Request) -> Result<(), crate::kit::Gone> {
    link.honest(request)
}

fn posts(requests: &[(usize, Request)]) -> Vec<String> {
    let posts =
        requests.iter().map(|(_, request)| request).filter(|request| request.method == "POST");
    posts.map(|request| request.nonce().to_owned()).collect()
}

/// Sends requests until stopped. Each reply is the response to its request, or for a POST perhaps a
/// 502.
fn ask_on(address: SocketAddr, mut random: Random, stop: &AtomicBool, answered: &AtomicUsize) {
    let mut client = Client::connect(address);
    while !stop.load(Ordering::Relaxed) {
        let methods: Vec<&str> =
            (0..=random.below(4)).map(|_| ["GET", "POST"][random.below(2)]).collect();
        let batch: Vec<(&str, String)> =
            methods.into_iter().map(|method| (method, nonce())).collect();
        for (method, nonce) in &batch {
            let body: &[u8] = if *method == "POST" { b"once" } else { b"" };
            client.request(method, &format!("/v?n={nonce}"), "", body);
        }
        for (method, nonce) in &batch {
            let reply = client.reply();
            if *method == "POST" && reply.status == 502 {
                continue;
            }
            check_honest(nonce, &reply).unwrap_or_else(|error| panic!("{method} {nonce}: {error}"));
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn posts_among_dying_servers_arrive_at_most_once(io: Io) {
    let mut random = Random::new();
    let mut mortals = Mortals::start();
    let weir = Weir::start(io, 2, &upstream(&mortals.addresses));
    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let end = Instant::now() + Duration::from_secs(seconds());
    let mut deaths = 0;
    std::thread::scope(|scope| {
        let stopping = Stopping(&stop);
        for _ in 0..16 {
            let (random, stop, answered) = (random.fork(), &stop, &answered);
            scope.spawn(move || ask_on(weir.address, random, stop, answered));
        }
        while Instant::now() < end {
            let victim = deaths % 3;
            if let Some(server) = &mortals.living[victim] {
                server.wait("the server gets requests", |log| log.requests.len() > 20);
            }
            mortals.kill(victim);
            let before = answered.load(Ordering::Relaxed);
            eventually("the others answer", || answered.load(Ordering::Relaxed) > before + 20);
            mortals.revive(victim);
            deaths += 1;
        }
        drop(stopping);
    });
    weir.stop();
    let mut arrived = mortals.arrived;
    for server in mortals.living.into_iter().flatten() {
        arrived.extend(posts(&server.finish().requests));
    }
    let total = arrived.len();
    arrived.sort_unstable();
    arrived.dedup();
    assert!(deaths >= 3 && total > 100, "{deaths} deaths, {total} POSTs");
    assert_eq!(arrived.len(), total, "a POST arrived twice");
}
