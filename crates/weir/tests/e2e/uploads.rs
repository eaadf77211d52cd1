//! Proves with sockets: bodies reach their servers before they end, while responses flow back. weir
//! waits for a server's reply to Expect: 100-continue. Responses outlast every timeout for idle
//! clients and for servers whose responses have not begun. docs/http1.md, docs/retries.md.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir_check::Request;
use weir_check::upstreams::check_honest;

use crate::kit::{Behaviour, Client, Gone, Io, Link, Server, Weir, app, nonce, on_both_drivers};

on_both_drivers!(
    both_directions_go_on_at_the_same_time,
    a_slow_stream_reaches_its_server_as_it_comes,
    a_route_can_gather_bodies,
    a16_a_server_declines_before_the_body_is_sent,
    a16_a_server_wants_the_body,
    an_answer_outlasts_the_patience_with_idle_clients,
    a_silence_within_an_answer_outlasts_the_patience_until_it_begins,
    a_silence_that_is_too_long_has_a_name,
);

/// Echoes each piece of a body, as it comes, with the same number of bytes.
struct Echo;

impl Behaviour for Echo {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        link.honest(request)
    }

    fn on_head(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        link.tell("head");
        link.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        let mut answered = 0;
        let mut echo = |link: &mut Link, length: u64| {
            let more = length - answered;
            answered = length;
            match more {
                0 => Ok(()),
                more => {
                    link.write(format!("{more:x}\r\n{}\r\n", "e".repeat(more as usize)).as_bytes())
                }
            }
        };
        echo(link, request.body.length)?;
        loop {
            link.receive()?;
            if let Some(request) = link.next_request() {
                echo(link, request.body.length)?;
                return link.answer(b"0\r\n\r\n");
            }
            let Some(length) = link.body_so_far() else { return Ok(()) };
            echo(link, length)?;
        }
    }
}

fn chunk(length: usize) -> Vec<u8> {
    format!("{length:x}\r\n{}\r\n", "x".repeat(length)).into_bytes()
}

/// A client sends no piece before the response to the previous one.
fn both_directions_go_on_at_the_same_time(io: Io) {
    let server = Server::start(Echo);
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    for first in [10, 100_000] {
        let mut client = Client::connect(weir.address);
        client.ask("POST", false);
        client.send(b"POST /d HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        let mut sent = 0;
        for length in [first, 10, 1, 70_000, 10] {
            client.send(&chunk(length));
            sent += length as u64;
            assert_eq!(client.beginning(sent).body.length, sent);
        }
        client.send(b"0\r\n\r\n");
        assert_eq!(client.reply().body.length, sent);
    }
    weir.stop();
    server.finish();
}

/// Sends pieces of a few bytes without a length, over a time in which a body with a length would be
/// too slow.
fn a_slow_stream_reaches_its_server_as_it_comes(io: Io) {
    let server = Server::start(Echo);
    let limits = "client body-timeout=\"20s\" body-rate=\"1MiB\"\n";
    let weir = Weir::start(io, 1, &format!("{limits}{}", app(&server, 1, "")));
    let mut client = Client::connect(weir.address);
    client.ask("PUT", false);
    client.send(b"PUT /log HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let begun = Instant::now();
    let mut sent = 0;
    // The rate of a body is judged over 10 s.
    while begun.elapsed() < Duration::from_secs(11) {
        client.send(&chunk(2));
        sent += 2;
        client.beginning(sent);
        std::thread::sleep(Duration::from_millis(200));
    }
    client.send(b"0\r\n\r\n");
    assert_eq!(client.reply().body.length, sent);
    weir.stop();
    server.finish();
}

fn a_route_can_gather_bodies(io: Io) {
    let server = Server::start(Echo);
    let address = server.address;
    let config = format!(
        "upstream \"app\" {{ server \"{address}\" connections=1; }}\n\
            route {{ proxy \"app\"; request-buffering \"on\"; }}\n"
    );
    let weir = Weir::start(io, 1, &config);
    let (mut client, id) = (Client::connect(weir.address), nonce());
    client.ask("POST", false);
    let head = format!(
        "POST /g?n={id} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\
            Transfer-Encoding: chunked\r\n\r\n"
    );
    client.send(head.as_bytes());
    assert_eq!(client.interim(), [100], "weir wants it");
    client.send(&chunk(10));
    // Requests of others go by, because the server knows nothing of this one yet.
    let (mut other, other_id) = (Client::connect(weir.address), nonce());
    other.get(&format!("/o?n={other_id}"));
    check_honest(&other_id, &other.reply()).unwrap();
    client.send(b"0\r\n\r\n");
    check_honest(&id, &client.reply()).unwrap();
    weir.stop();
    let log = server.finish();
    let request = log
        .requests
        .iter()
        .find(|(_, it)| it.method == "POST")
        .map(|(_, it)| it)
        .expect("a request");
    assert_eq!(request.fields.first("content-length"), Some("10"));
    assert!(!request.fields.has("expect") && log.events.is_empty());
}

/// Responds after the head alone.
struct Declines;

impl Behaviour for Declines {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        link.honest(request)
    }

    fn on_head(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        if request.fields.first("expect") != Some("100-continue") {
            link.fault("nobody is asked");
        }
        link.answer(b"HTTP/1.1 401 No\r\nContent-Length: 3\r\n\r\nno\n")?;
        if !link.until_closed().is_empty() {
            link.fault("the connection was used again");
        }
        Err(Gone)
    }
}

fn a16_a_server_declines_before_the_body_is_sent(io: Io) {
    let server = Server::start(Declines);
    let weir = Weir::start(io, 2, &app(&server, 1, ""));
    for length in [1_000, 5_000_000] {
        let mut client = Client::connect(weir.address);
        client.ask("PUT", false);
        let head = format!(
            "PUT /o HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        );
        client.send(head.as_bytes());
        let reply = client.reply();
        assert_eq!((reply.status, &reply.interim[..], reply.closes), (401, &[][..], true));
        client.end();
        // The next request uses another connection.
        let (mut victim, id) = (Client::connect(weir.address), nonce());
        victim.get(&format!("/v?n={id}"));
        check_honest(&id, &victim.reply()).unwrap();
    }
    weir.stop();
    server.finish();
}

/// Sends 100 for each request that expects it.
struct Wants;

impl Behaviour for Wants {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        link.honest(request)
    }

    fn on_head(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        match request.fields.has("expect") {
            true => link.write(b"HTTP/1.1 100 Continue\r\n\r\n"),
            false => Ok(()),
        }
    }
}

fn a16_a_server_wants_the_body(io: Io) {
    let server = Server::start(Wants);
    // Two workers and one connection: half of the clients reach it through the other worker.
    let weir = Weir::start(io, 2, &app(&server, 1, ""));
    for length in [5, 300_000, 5, 300_000] {
        let (mut client, id) = (Client::connect(weir.address), nonce());
        for _ in 0..2 {
            client.ask("PUT", false);
            let fields = format!("Expect: 100-continue\r\nContent-Length: {length}\r\n");
            client.send(format!("PUT /o?n={id} HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes());
            assert_eq!(client.interim(), [100]);
            client.send(&vec![b'x'; length]);
            let reply = client.reply();
            check_honest(&id, &reply).unwrap();
            assert_eq!(reply.interim, [100]);
        }
    }
    weir.stop();
    let log = server.finish();
    let lengths: Vec<u64> = log.requests.iter().map(|(_, it)| it.body.length).collect();
    assert_eq!(lengths, [5, 5, 300_000, 300_000, 5, 5, 300_000, 300_000]);
}

/// A client reads a response steadily, over far more than `idle-timeout`, on a worker that is short
/// of time. So timers fire in the turns in which completed sends are handled.
fn an_answer_outlasts_the_patience_with_idle_clients(io: Io) {
    const LENGTH: usize = 3_000_000;
    let server = Server::start(|link: &mut Link, _: &Request| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n");
        link.answer(head.as_bytes())?;
        // Longer than clients may be idle, measured from the request.
        std::thread::sleep(Duration::from_millis(450));
        link.write(&vec![b'z'; LENGTH])
    });
    let limits = "client idle-timeout=\"300ms\"\n";
    let weir = Weir::start(io, 1, &format!("{limits}{}", app(&server, 16, "")));
    let is_over = Arc::new(AtomicBool::new(false));
    let starving = {
        let (pid, is_over) = (weir.pid(), Arc::clone(&is_over));
        std::thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                stop_for_a_moment(pid);
            }
        })
    };
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let address = weir.address;
            std::thread::spawn(move || {
                let mut client = Client::connect(address);
                client.shrink_window(65_536);
                client.get("/x");
                client.try_reply().map(|reply| reply.body.length)
            })
        })
        .collect();
    let lengths: Vec<_> =
        readers.into_iter().map(|reader| reader.join().expect("a reader")).collect();
    is_over.store(true, Ordering::SeqCst);
    starving.join().expect("a thread");
    assert_eq!(lengths, [Some(LENGTH as u64); 8]);
    weir.stop();
    server.finish();
}

/// Stops a process for some milliseconds.
fn stop_for_a_moment(pid: u32) {
    let kill = |signal: &str| {
        let done = std::process::Command::new("kill").args([signal, &pid.to_string()]).status();
        assert!(done.is_ok_and(|status| status.success()), "{signal} {pid}");
    };
    kill("-STOP");
    std::thread::sleep(Duration::from_millis(12));
    kill("-CONT");
    std::thread::sleep(Duration::from_millis(2));
}

/// Begins a response of each kind, is silent for this long, and ends it.
struct Pauses(Duration);

impl Behaviour for Pauses {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        let (begin, end) = match request.target.as_str() {
            "/stream" => ("Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n", "1\r\nb\r\n0\r\n\r\n"),
            "/length" => ("Content-Length: 2\r\n\r\na", "b"),
            _ => ("Connection: close\r\n\r\na", "b"),
        };
        link.answer(format!("HTTP/1.1 200 OK\r\n{begin}").as_bytes())?;
        std::thread::sleep(self.0);
        link.write(end.as_bytes())?;
        if request.target == "/close" { Err(Gone) } else { Ok(()) }
    }
}

fn a_silence_within_an_answer_outlasts_the_patience_until_it_begins(io: Io) {
    let server = Server::start(Pauses(Duration::from_millis(900)));
    let weir = Weir::start(io, 1, &app(&server, 4, "forward-timeout \"300ms\""));
    for target in ["/stream", "/length", "/close"] {
        let mut client = Client::connect(weir.address);
        client.get(target);
        assert_eq!(client.reply().body.text(), "ab", "{target}");
    }
    weir.stop();
    server.finish();
}

fn a_silence_that_is_too_long_has_a_name(io: Io) {
    let server = Server::start(Pauses(Duration::from_secs(5)));
    let weir = Weir::start(io, 1, &app(&server, 4, "answer-timeout \"300ms\""));
    let mut client = Client::connect(weir.address);
    client.get("/length");
    assert!(client.try_reply().is_none(), "half an answer is none");
    let status = crate::kit::status(&weir);
    let text = status.to_string();
    assert!(text.contains("answer-timeout"), "{text}");
    weir.stop();
    server.finish();
}
