//! Proves: a worker with too much to do gives idle client connections to one that has time, by
//! itself. All of them are served on, and none is accepted or closed for it.
//!
//! How: hundreds of clients whose workers are known from the access log. Those of one worker,
//! except for some that stay idle, send requests to which the server responds only when told to.

use std::collections::HashMap;
use std::net::TcpStream;

use weir_check::Request;

use crate::kit::{
    Client, Gone, Io, Link, Scratch, Server, Weir, app, eventually, on_both_drivers, status,
};

on_both_drivers!(idle_connections_leave_a_busy_worker);

const CLIENTS: usize = 200;
/// Requests in a row of one client to which the server does not respond for now.
const HELD: usize = 12;

fn hold(link: &mut Link, request: &Request) -> Result<(), Gone> {
    if request.target.starts_with("/held") {
        link.await_event("go")?;
    }
    link.honest(request)
}

fn total(weir: &Weir, name: &str) -> u64 {
    status(weir)["totals"][name].as_u64().expect("a counter")
}

fn ask(client: &mut Client, target: &str) {
    client.get(target);
    assert_eq!(client.reply().status, 200);
}

fn idle_connections_leave_a_busy_worker(io: Io) {
    let (server, scratch) = (Server::start(hold), Scratch::new());
    let log = scratch.path("a.log");
    let rest = format!(
        "access-log \"{}\" format=\"$remote_port $worker\"\n{}",
        log.display(),
        app(&server, 2, "")
    );
    let weir = Weir::start(io, 2, &rest);
    let mut clients: Vec<(u16, Client)> = (0..CLIENTS)
        .map(|_| {
            let stream = TcpStream::connect(weir.address).expect("weir accepts");
            (stream.local_addr().expect("it is connected").port(), Client::of(stream))
        })
        .collect();
    clients.iter_mut().for_each(|(_, client)| ask(client, "/?n=first"));
    let accepted = total(&weir, "accepted");
    let mut workers = HashMap::new();
    eventually("a line for each", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        workers = lines.map(|(port, worker)| (port.to_owned(), worker.to_owned())).collect();
        workers.len() == CLIENTS
    });
    let (mut busy, mut idle): (Vec<_>, Vec<_>) =
        clients.into_iter().partition(|(port, _)| workers[&port.to_string()] == "0");
    assert!(
        busy.len() > 20 && idle.len() > 20,
        "the kernel spreads clients: {} and {}",
        busy.len(),
        idle.len()
    );
    // Every second client of worker 0 sends requests, the others can go.
    let kept = busy.len() / 2;
    for (_, client) in &mut busy[..kept] {
        (0..HELD).for_each(|_| client.get("/held?n=held"));
    }
    eventually("connections that were given away", || total(&weir, "connections_taken") >= 5);
    server.tell("go");
    for (_, client) in &mut busy[..kept] {
        (0..HELD).for_each(|_| assert_eq!(client.reply().status, 200));
    }
    for (_, client) in busy.iter_mut().chain(&mut idle) {
        ask(client, "/?n=last");
    }
    eventually("nobody is on the way", || {
        total(&weir, "connections_given") == total(&weir, "connections_taken")
    });
    assert_eq!(total(&weir, "accepted"), accepted, "nobody had to connect anew");
    assert_eq!(total(&weir, "rebirths"), 0);
    drop((busy, idle));
    weir.stop();
    server.finish();
}
