//! Balancing over real sockets: exact shares by weight, load that leaves a slow server, sessions
//! that stay with their server and move when it dies
//! (docs/failover.md#how-weir-chooses-a-server). Counts shares, never
//! times.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::kit::{
    Client, Gone, Honest, Io, Link, Server, Weir, eventually, nonce, on_both_drivers,
};
use weir_check::Request;
use weir_check::upstreams::check_honest;

on_both_drivers!(
    shares_follow_the_weights,
    sessions_stay_and_move;
    alone: load_leaves_a_slow_server,
);

/// Configures an upstream of these servers, each with its own options.
fn upstream(servers: &[(&Server, &str)], more: &str) -> String {
    let line =
        |(server, options): &(&Server, &str)| format!(" server \"{}\" {options}\n", server.address);
    let lines: String = servers.iter().map(line).collect();
    format!("upstream \"app\" {{\n{lines} {more}\n}}\nroute {{ proxy \"app\" }}\n")
}

fn counts(servers: &[&Server]) -> Vec<usize> {
    servers.iter().map(|server| server.log().requests.len()).collect()
}

/// Weights of 70, 20 and 10, 10,000 pipelined requests over three workers of which none has
/// connections to all servers: each share within a point.
fn shares_follow_the_weights(io: Io) {
    let servers = [Server::start(Honest), Server::start(Honest), Server::start(Honest)];
    let weights = [
        ("weight=70 connections-min=2 connections=2"),
        ("weight=20 connections-min=2 connections=2"),
        ("weight=10 connections-min=2 connections=2"),
    ];
    let lines: Vec<(&Server, &str)> = servers.iter().zip(weights).collect();
    // weir sends again a request whose response is late, and responses are late on a busy machine.
    let weir = Weir::start(io, 3, &upstream(&lines, "pipeline escape=#false"));
    servers.iter().for_each(|server| server.wait("all connections are made", |log| log.open == 2));
    let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(weir.address)).collect();
    for _ in 0..25 {
        let mut nonces: Vec<Vec<String>> = Vec::new();
        for client in &mut clients {
            let batch: Vec<String> = (0..50).map(|_| nonce()).collect();
            batch.iter().for_each(|_| client.ask("GET", false));
            let text: Vec<String> = batch
                .iter()
                .map(|nonce| format!("GET /v?n={nonce} HTTP/1.1\r\nHost: a\r\n\r\n"))
                .collect();
            client.send(text.concat().as_bytes());
            nonces.push(batch);
        }
        for (client, batch) in clients.iter_mut().zip(nonces) {
            batch.iter().for_each(|nonce| check_honest(nonce, &client.reply()).unwrap());
        }
    }
    let counts = counts(&servers.each_ref());
    assert_eq!(counts.iter().sum::<usize>(), 10_000);
    for (count, weight) in counts.iter().zip([70usize, 20, 10]) {
        assert!(count.abs_diff(weight * 100) <= 100, "{counts:?}");
    }
    weir.stop();
    servers.into_iter().for_each(|server| drop(server.finish()));
}

/// Responds late while told to.
struct Slow(Arc<AtomicBool>);

impl crate::kit::Behaviour for Slow {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        let ms = if self.0.load(Ordering::Relaxed) { 50 } else { 5 };
        std::thread::park_timeout(Duration::from_millis(ms));
        link.honest(request)
    }
}

/// Clients that each send this many requests, the next one as soon as the response has come.
fn ask_all(weir: &Weir, times: usize) {
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = Client::connect(weir.address);
                for _ in 0..times {
                    let nonce = nonce();
                    client.get(&format!("/v?n={nonce}"));
                    check_honest(&nonce, &client.reply()).unwrap();
                }
            });
        }
    });
}

/// `dynamic`: of the requests after the first hundreds, at least 80 % of the load has left a server
/// that is ten times slower.
fn load_leaves_a_slow_server(io: Io) {
    let slow = Arc::new(AtomicBool::new(false));
    let never = Arc::new(AtomicBool::new(false));
    let servers = [Server::start(Slow(Arc::clone(&slow))), Server::start(Slow(Arc::clone(&never)))];
    let lines: Vec<(&Server, &str)> =
        servers.iter().map(|server| (server, "connections-min=16 connections=16")).collect();
    let weir = Weir::start(io, 2, &upstream(&lines, "balance dynamic by=avg; pipeline off"));
    let share = |times: usize| {
        let before = counts(&servers.each_ref());
        ask_all(&weir, times);
        let after = counts(&servers.each_ref());
        let meanwhile = [after[0] - before[0], after[1] - before[1]];
        meanwhile[0] as f64 / (meanwhile[0] + meanwhile[1]) as f64
    };
    share(50);
    let before = share(50);
    assert!((0.3..0.7).contains(&before), "{before}");
    slow.store(true, Ordering::Relaxed);
    eventually("the load leaves", || share(100) <= 0.2 * before);
    slow.store(false, Ordering::Relaxed);
    eventually("it recovers", || share(50) > 0.3);
    weir.stop();
    servers.into_iter().for_each(|server| drop(server.finish()));
}

/// Returns the status of a new connection's request with this cookie, and the server to which the
/// response binds it.
fn visit(weir: &Weir, cookie: &str) -> (u16, Option<String>) {
    let mut client = Client::connect(weir.address);
    client.request(
        "GET",
        &format!("/v?n={}", nonce()),
        &format!("Cookie: theme=dark; srv={cookie}\r\n"),
        b"",
    );
    let reply = client.reply();
    let set = reply.fields.first("set-cookie").and_then(|set| set.strip_prefix("srv="));
    (reply.status, set.map(|set| set.split(';').next().unwrap_or_default().to_owned()))
}

/// A session stays with its server across connections and workers. When the server dies the session
/// moves, once, and no request fails.
fn sessions_stay_and_move(io: Io) {
    let mut servers = vec![Server::start(Honest), Server::start(Honest)];
    let lines: Vec<(&Server, &str)> =
        servers.iter().map(|server| (server, "connections-min=3 connections=3")).collect();
    let weir = Weir::start(io, 2, &upstream(&lines, "sticky cookie=\"srv\""));
    let (status, value) = visit(&weir, "none");
    let value = value.expect("a cookie with the first answer");
    assert_eq!((status, value.len()), (200, 16));
    let bound = counts(&[&servers[0], &servers[1]])
        .iter()
        .position(|count| *count == 1)
        .expect("somebody answered");
    for _ in 0..40 {
        assert_eq!(visit(&weir, &value), (200, None));
    }
    assert_eq!(servers[bound].log().requests.len(), 41);
    servers.remove(bound).kill();
    let (status, renewed) = visit(&weir, &value);
    let renewed = renewed.expect("the cookie is renewed");
    assert_eq!(status, 200);
    assert_ne!(renewed, value);
    for _ in 0..20 {
        assert_eq!(visit(&weir, &renewed), (200, None));
    }
    weir.stop();
    servers.remove(0).finish();
}
