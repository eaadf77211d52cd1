//! Proves: with `pool "fresh"` requests leave kept connections that are slow, and status and
//! metrics show that and why. A server that accepts no new connections still answers all requests,
//! and kept connections are used if they are not worse. How: the real binary, servers behind unix
//! sockets that take their time for all but the first request of a connection.
//! docs/pools.md#kept-or-fresh.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use weir_check::Request;
use weir_check::upstreams::check_honest;

use crate::kit::unix::UnixFront;
use crate::kit::{
    Client, Gone, Honest, Io, Link, Scratch, Server, Weir, eventually, nonce, on_both_drivers,
    server_status,
};

on_both_drivers!(good_kept_connections_are_used; alone: requests_leave_slow_kept_connections);

/// Delay of a request on a kept connection: far longer than a connect takes on a busy machine.
const SLOW: Duration = Duration::from_millis(200);

/// Behaves like a worker that is busy with the connections that it has accepted.
fn tied(link: &mut Link, request: &Request) -> Result<(), Gone> {
    if link.answers > 0 {
        sleep(SLOW);
    }
    link.honest(request)
}

fn app(front: &UnixFront) -> String {
    let server = &front.name;
    format!(
        "upstream \"app\" {{ pool \"fresh\"; pipeline mode=\"off\"; server \"{server}\"; }}\n\
            route {{ proxy \"app\"; }}\n"
    )
}

/// Each client sends one request, all at the same time.
fn ask_all(clients: &mut [Client]) {
    let nonces: Vec<String> = clients.iter().map(|_| nonce()).collect();
    clients
        .iter_mut()
        .zip(&nonces)
        .for_each(|(client, nonce)| client.get(&format!("/victim?n={nonce}")));
    for (client, nonce) in clients.iter_mut().zip(&nonces) {
        check_honest(nonce, &client.reply()).unwrap();
    }
}

fn requests_leave_slow_kept_connections(io: Io) {
    let (server, scratch) = (Server::start(tied), Scratch::new());
    let path = scratch.path("app.sock");
    let front = UnixFront::start(&path, server.address);
    let weir = Weir::start(io, 1, &app(&front));
    let mut clients: Vec<Client> = (0..16).map(|_| Client::connect(weir.address)).collect();
    assert_eq!(server_status(&weir)["fresh"]["in_force"], 0);
    eventually("requests have connections of their own", || {
        ask_all(&mut clients);
        server_status(&weir)["fresh"]["in_force"] == 1
    });
    let before = front.accepted();
    ask_all(&mut clients);
    assert!(front.accepted() >= before + 8, "{} and {before}", front.accepted());
    let told = server_status(&weir);
    let p99 = |kind: &str| told["fresh"][kind].as_u64().expect("it is known");
    assert!(p99("kept_p99_us") > 4 * p99("fresh_p99_us"), "{told}");
    assert!(
        told["totals"]["fresh_requests"].as_u64() > Some(16) && told["totals"]["fresh_turns"] == 1,
        "{told}"
    );
    assert!(
        weir.answer(&["status"])
            .contains("each request has its own connection: p99 to the first byte")
    );
    assert!(weir.answer(&["status", "server", "app", &front.name]).contains("fresh"));
    // New connections are impossible from now on. Kept ones remain.
    fs::remove_file(&path).expect("it is there");
    eventually("kept connections are used", || {
        ask_all(&mut clients);
        server_status(&weir)["fresh"]["in_force"] == 0
    });
    let told = server_status(&weir);
    assert!(told["totals"]["fresh_failures"].as_u64() >= Some(8), "{told}");
    assert_eq!(told["state"], "up");
    weir.stop();
    server.finish();
}

fn good_kept_connections_are_used(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let front = UnixFront::start(&scratch.path("app.sock"), server.address);
    let weir = Weir::start(io, 1, &app(&front));
    let mut clients: Vec<Client> = (0..4).map(|_| Client::connect(weir.address)).collect();
    eventually("both kinds are known", || {
        ask_all(&mut clients);
        let told = server_status(&weir);
        told["fresh"]["kept_p99_us"].is_u64() && told["fresh"]["fresh_p99_us"].is_u64()
    });
    let told = server_status(&weir);
    let (all, fresh) = (&told["totals"]["requests"], &told["totals"]["fresh_requests"]);
    assert!(
        fresh.as_u64() >= Some(8) && fresh.as_u64() < all.as_u64().map(|all| all / 2),
        "{told}"
    );
    weir.stop();
    server.finish();
}
