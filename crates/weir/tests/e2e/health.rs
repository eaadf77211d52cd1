//! Proves with the real binary: a server that responds badly, or whose probes fail, gets no more
//! requests and comes back by itself. No client sees more than the responses that were counted, and
//! the log says which server and why.
//!
//! How: scripted servers with a switch, on both drivers, two workers. docs/failover.md.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::kit::{
    Client, Gone, Honest, Io, Link, Server, Weir, eventually, nonce, on_both_drivers,
};
use weir_check::Request;

on_both_drivers!(
    a_server_that_answers_500_is_suspended_and_comes_back,
    a_server_whose_probes_fail_is_suspended_and_comes_back,
    a_suspended_upstream_refuses_when_told_so,
);

/// A server that responds with the switch's status to the requests that `hits` selects, and
/// honestly to all others.
fn switched(status: &Arc<AtomicU16>, hits: fn(&Request) -> bool) -> Server {
    let status = Arc::clone(status);
    Server::start(move |link: &mut Link, request: &Request| -> Result<(), Gone> {
        match status.load(Ordering::SeqCst) {
            200 if request.target != "/health" => link.honest(request),
            status if hits(request) => {
                let text = format!("HTTP/1.1 {status} Said\r\nContent-Length: 4\r\n\r\nsaid");
                link.answer(text.as_bytes())
            }
            _ => link.honest(request),
        }
    })
}

fn configuration(servers: &[&Server], more: &str) -> String {
    let servers: String = servers
        .iter()
        .map(|server| format!(" server \"{}\" connections-min=4 connections=4\n", server.address))
        .collect();
    format!("upstream \"app\" {{\n{servers} {more}\n}}\nroute {{ proxy \"app\" }}\n")
}

/// Returns the status that a request gets now.
fn status(weir: &Weir) -> u16 {
    let (mut client, nonce) = (Client::connect(weir.address), nonce());
    client.get(&format!("/victim?n={nonce}"));
    client.reply().status
}

fn says(weir: &Weir, what: &str) {
    eventually(what, || weir.said().contains(what));
}

fn a_server_that_answers_500_is_suspended_and_comes_back(io: Io) {
    let switch = Arc::new(AtomicU16::new(500));
    let (bad, good) = (switched(&switch, |_| true), Server::start(Honest));
    let weir = Weir::start(
        io,
        2,
        &configuration(&[&bad, &good], "failover \"5xx\" limit=5 window=\"1m\""),
    );
    let mut failed = 0;
    eventually("it is suspended", || {
        failed += usize::from(status(&weir) == 500);
        weir.said().contains("server-suspended: 5 responses 5xx within 60 s upstream=app server=")
    });
    assert!(
        (5..10).contains(&failed),
        "{failed}: no more than were counted, and what was under way"
    );
    weir.says(&format!("upstream=app server={}\n", bad.address));
    (0..50).for_each(|_| assert_eq!(status(&weir), 200));
    switch.store(200, Ordering::SeqCst);
    eventually("it is tried and comes back", || {
        assert_eq!(status(&weir), 200);
        weir.said().contains("server-recovered: a good response to one request")
    });
    let before = bad.log().requests.len();
    (0..40).for_each(|_| assert_eq!(status(&weir), 200));
    assert!(bad.log().requests.len() > before + 10);
    weir.stop();
    bad.finish();
    good.finish();
}

fn a_server_whose_probes_fail_is_suspended_and_comes_back(io: Io) {
    let switch = Arc::new(AtomicU16::new(503));
    let (bad, good) =
        (switched(&switch, |request| request.target == "/health"), Server::start(Honest));
    let health =
        "health path=\"/health\" expect-status=200 interval=\"100ms\" timeout=\"5s\" fall=2 rise=3";
    let weir = Weir::start(io, 2, &configuration(&[&bad, &good], health));
    says(&weir, "server-suspended: 2 probes in a row failed, the last one with: status 503");
    let victims =
        || bad.log().requests.iter().filter(|(_, request)| request.target != "/health").count();
    let before = victims();
    (0..50).for_each(|_| assert_eq!(status(&weir), 200));
    assert_eq!(victims(), before, "nothing goes there");
    switch.store(200, Ordering::SeqCst);
    says(&weir, "server-recovered: 3 good probes");
    (0..40).for_each(|_| assert_eq!(status(&weir), 200));
    assert!(victims() > before + 10);
    weir.stop();
    bad.finish();
    good.finish();
}

fn a_suspended_upstream_refuses_when_told_so(io: Io) {
    let switch = Arc::new(AtomicU16::new(500));
    let server = switched(&switch, |_| true);
    let more = "failover 500 limit=3 window=\"1m\"; all-down refuse";
    let weir = Weir::start(io, 1, &configuration(&[&server], more));
    eventually("it is refused here", || status(&weir) == 503);
    assert_eq!(server.log().requests.len(), 3);
    switch.store(200, Ordering::SeqCst);
    eventually("it comes back", || status(&weir) == 200);
    weir.stop();
    server.finish();
}
