//! Servers that reject a request at once, before the responses to earlier requests that they still
//! work on, and close, as node, bun, cowboy, aiohttp and Undertow do: the earlier clients get their
//! own responses (docs/pipelining.md).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::kit::{Client, Gone, Io, Link, Server, Weir, app, nonce, on_both_drivers, status};
use weir_check::Request;
use weir_check::upstreams::check_honest;

on_both_drivers!(
    what_a_strict_server_refuses_goes_alone,
    an_error_that_overtakes_is_nobodys,
    a_long_cookie_is_its_own_fault,
);

/// How long the application works on each request.
const WORK: Duration = Duration::from_millis(2);

/// Whether node rejects a request by default, as far as these requests go.
fn is_refused_by_node(request: &Request) -> bool {
    let head: usize =
        request.fields.0.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
    head > 8192 || request.target.contains('|')
}

/// Whether the server rejects a request for an unforeseeable reason.
fn is_refused_by_whim(request: &Request) -> bool {
    request.fields.has("x-whim")
}

fn refuse(link: &mut Link) -> Result<(), Gone> {
    link.tell("refused");
    if link.unanswered() > 1 {
        link.tell("overtaken");
    }
    link.answer(b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n\r\n")?;
    Err(Gone)
}

/// Works on requests in order, and checks new ones meanwhile.
fn strict(refuses: fn(&Request) -> bool) -> impl Fn(&mut Link, &Request) -> Result<(), Gone> {
    move |link, request| {
        if refuses(request) {
            return refuse(link);
        }
        let mut line = VecDeque::from([request.clone()]);
        while let Some(request) = line.pop_front() {
            let until = Instant::now() + WORK;
            loop {
                link.drain()?;
                while let Some(next) = link.next_request() {
                    if refuses(&next) {
                        return refuse(link);
                    }
                    line.push_back(next);
                }
                if Instant::now() >= until {
                    break;
                }
                thread::sleep(WORK / 4);
            }
            link.honest(&request)?;
        }
        Ok(())
    }
}

/// Four clients pipeline while another one sends `bad` again and again, which has to get 431 each
/// time. Returns how often it was sent.
fn beside(weir: &Weir, bad: &[&str]) -> usize {
    let over = AtomicBool::new(false);
    let victim = || {
        let mut client = Client::connect(weir.address);
        while !over.load(Relaxed) {
            let nonces: Vec<String> = (0..6).map(|_| nonce()).collect();
            nonces.iter().for_each(|nonce| client.get(&format!("/victim?n={nonce}")));
            nonces
                .iter()
                .for_each(|nonce| check_honest(nonce, &client.reply()).expect("its own answer"));
        }
    };
    thread::scope(|scope| {
        let victims: Vec<_> = (0..4).map(|_| scope.spawn(victim)).collect();
        // Trust is earned, and the line is long.
        thread::sleep(Duration::from_millis(1_000));
        for round in 0..40 {
            let mut client = Client::connect(weir.address);
            client.ask("GET", false);
            client.send(bad[round % bad.len()].as_bytes());
            let reply = client.reply();
            assert_eq!(reply.status, 431, "{}", reply.body.text());
            thread::sleep(Duration::from_millis(20));
        }
        over.store(true, Relaxed);
        victims.into_iter().for_each(|victim| victim.join().expect("each got its own answers"));
    });
    40
}

fn what_a_strict_server_refuses_goes_alone(io: Io) {
    let server = Server::start(strict(is_refused_by_node));
    let weir = Weir::start(io, 1, &app(&server, 2, "pipeline depth=16"));
    let cookie =
        format!("GET /long?n=1 HTTP/1.1\r\nHost: a\r\nCookie: c={}\r\n\r\n", "z".repeat(20_000));
    let asked = beside(&weir, &[&cookie, "GET /a|b?n=1 HTTP/1.1\r\nHost: a\r\n\r\n"]);
    weir.stop();
    let log = server.finish();
    assert!(log.depths.iter().any(|depth| *depth > 3), "nothing was pipelined: {:?}", log.depths);
    let count = |what: &str| log.events.iter().filter(|event| *event == what).count();
    assert_eq!((count("refused"), count("overtaken")), (asked, 0));
}

fn an_error_that_overtakes_is_nobodys(io: Io) {
    let server = Server::start(strict(is_refused_by_whim));
    let weir = Weir::start(io, 1, &app(&server, 2, "pipeline depth=16"));
    beside(&weir, &["GET /whim?n=1 HTTP/1.1\r\nHost: a\r\nX-Whim: 1\r\n\r\n"]);
    let found = status(&weir)["upstreams"][0]["servers"][0]["totals"]["doubts"]["overtaking-error"]
        .as_u64();
    weir.stop();
    let log = server.finish();
    let overtaken = log.events.iter().filter(|event| *event == "overtaken").count();
    assert!(overtaken > 0, "no error overtook anything: {:?}", log.depths);
    assert!(
        found.is_some_and(|found| found > 0),
        "{found:?} of {overtaken} errors that overtook others were noticed"
    );
}

/// uWSGI, daphne, Twisted and others close without a response if a head is too long. Clients that
/// request the same page with a shorter head get it.
fn a_long_cookie_is_its_own_fault(io: Io) {
    let server = Server::start(|link: &mut Link, request: &Request| {
        if is_refused_by_node(request) {
            link.tell("closed");
            return Err(Gone);
        }
        link.honest(request)
    });
    let weir = Weir::start(io, 1, &app(&server, 4, ""));
    let cookie =
        format!("GET /page?n=1 HTTP/1.1\r\nHost: a\r\nCookie: c={}\r\n\r\n", "z".repeat(20_000));
    let until = Instant::now() + Duration::from_secs(4);
    let ask = |target: &str, pause_ms: u64| {
        let mut client = Client::connect(weir.address);
        while Instant::now() < until {
            client.get(target);
            check_honest("1", &client.reply()).expect("the page");
            thread::sleep(Duration::from_millis(pause_ms));
        }
    };
    thread::scope(|scope| {
        // Other responses show that the server lives, and the page is requested now and then.
        scope.spawn(|| ask("/other?n=1", 5));
        scope.spawn(|| ask("/page?n=1", 700));
        while Instant::now() < until {
            let mut client = Client::connect(weir.address);
            client.ask("GET", false);
            client.send(cookie.as_bytes());
            assert!(matches!(client.reply().status, 502 | 503));
            thread::sleep(Duration::from_millis(30));
        }
    });
    weir.stop();
    let log = server.finish();
    assert!(log.events.len() > 3, "the server closed {} times", log.events.len());
}
