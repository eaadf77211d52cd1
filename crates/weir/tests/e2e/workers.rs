//! Proves: each worker reports how long its turns last, how long clients wait for it, its pending
//! work and its binding to a core; in status, for people, and in metrics.
//!
//! How: the real binary with traffic on both workers, and a request that is held at its server.
//! docs/status.md

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;
use weir_check::Request;

use crate::kit::{
    Client, Gone, Honest, Io, Link, Server, Weir, app, bounded, eventually, free_port, nonce,
    on_both_drivers, request, status,
};

on_both_drivers!(workers_tell_how_late_they_are, they_are_bound_as_configured);

/// Requests on a connection, so that some of its receives are sampled.
const REQUESTS: usize = 130;

fn sum(status: &Value, name: &str) -> u64 {
    status["workers"]
        .as_array()
        .expect("workers")
        .iter()
        .map(|worker| worker[name].as_u64().expect(name))
        .sum()
}

/// Responds, but holds requests for `/held` until told to go on.
fn holding(told: Receiver<()>) -> impl Fn(&mut Link, &Request) -> Result<(), Gone> {
    let told = Mutex::new(told);
    move |link: &mut Link, request: &Request| {
        if request.target.starts_with("/held") {
            told.lock().expect("no panic").recv().expect("it is told");
        }
        link.honest(request)
    }
}

fn workers_tell_how_late_they_are(io: Io) {
    let (tell, told) = channel();
    let server = Server::start(holding(told));
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let weir = Weir::start(
        io,
        2,
        &format!("metrics \"{metrics}\"\n{}", app(&server, 8, "pipeline \"off\"")),
    );
    weir.answer(&["status", "--wait"]);
    // The kernel chooses the worker of each.
    let mut clients = Vec::new();
    eventually("both workers have a client", || {
        clients.push(Client::connect(weir.address));
        let status = status(&weir);
        status["workers"]
            .as_array()
            .expect("workers")
            .iter()
            .all(|worker| worker["clients"].as_u64() > Some(0))
    });
    for client in &mut clients {
        (0..REQUESTS).for_each(|_| request(client));
    }
    let seen = status(&weir);
    assert_eq!(sum(&seen, "clients"), clients.len() as u64);
    for worker in seen["workers"].as_array().expect("workers") {
        let (turn, wait) = (&worker["turn"], &worker["kernel_wait"]);
        assert!(
            turn["count"].as_u64() > Some(REQUESTS as u64 / 2) && turn["p99_us"].is_u64(),
            "{worker}"
        );
        assert!(
            wait["count"].as_u64() >= Some(REQUESTS as u64 / 64) && wait["p50_us"].is_u64(),
            "{worker}"
        );
        assert!(
            worker["starved_permille"].as_u64() <= Some(1000)
                && worker["starved_permille"].is_u64(),
            "{worker}"
        );
        // On a busy machine it may have had to leave its core.
        assert!(
            ["pinned", "let go"].contains(&worker["pinning"].as_str().expect("a word")),
            "{worker}"
        );
    }
    clients[0].get(&format!("/held?n={}", nonce()));
    eventually("it is open", || sum(&status(&weir), "open_requests") == 1);
    tell.send(()).expect("it is held");
    assert_eq!(clients[0].reply().status, 200);
    eventually("it is over", || sum(&status(&weir), "open_requests") == 0);
    let table = weir.answer(&["status"]);
    let rows = table.lines().skip_while(|line| !line.starts_with("  WORKER")).take(3);
    let first: Vec<&str> = rows.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(first.starts_with(&["WORKER", "0"]), "{table}");
    let mut scraped = TcpStream::connect(metrics).expect("it accepts");
    bounded(&scraped);
    write!(scraped, "GET /metrics HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n")
        .expect("it reads");
    let mut body = String::new();
    scraped.read_to_string(&mut body).expect("text");
    for name in [
        "weir_worker_client_connections",
        "weir_worker_open_requests",
        "weir_worker_starved_ratio",
        "weir_worker_pinned",
        "weir_worker_let_go_total",
        "weir_worker_turn_seconds_count",
        "weir_worker_kernel_wait_seconds_count",
    ] {
        let lines = body.lines().filter(|line| line.starts_with(&format!("{name}{{worker=")));
        assert_eq!(lines.count(), 2, "{name} in {body}");
    }
    drop(clients);
    weir.stop();
    server.finish();
}

fn they_are_bound_as_configured(io: Io) {
    let server = Server::start(Honest);
    for (pinning, word) in [("hard", "pinned"), ("none", "not pinned")] {
        let weir = Weir::start(io, 2, &format!("pinning \"{pinning}\"\n{}", app(&server, 2, "")));
        let status = status(&weir);
        let workers = status["workers"].as_array().expect("workers");
        assert!(
            workers.len() == 2 && workers.iter().all(|worker| worker["pinning"] == word),
            "{status}"
        );
        let task = format!("/proc/{}/task", weir.pid());
        let allowed = |task: std::io::Result<std::fs::DirEntry>| {
            let text =
                std::fs::read_to_string(task.expect("a thread").path().join("status")).ok()?;
            let field = |name: &str| {
                Some(text.lines().find_map(|line| line.strip_prefix(name))?.trim().to_owned())
            };
            let is_worker = ["weir-0", "weir-1"].contains(&field("Name:")?.as_str());
            if is_worker { field("Cpus_allowed_list:") } else { None }
        };
        let lists: Vec<String> =
            std::fs::read_dir(task).expect("a process").filter_map(allowed).collect();
        let is_one = |list: &&String| list.parse::<u32>().is_ok();
        let of_all = weir_io::available_cores().len();
        let pinned = if pinning == "hard" || of_all == 1 { 2 } else { 0 };
        assert_eq!(
            (lists.len(), lists.iter().filter(is_one).count()),
            (2, pinned),
            "{pinning}: {lists:?}"
        );
        weir.stop();
    }
    server.finish();
}
