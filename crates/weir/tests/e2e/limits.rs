//! Slow, silent, vanishing and too many clients: every limit fires, and memory and descriptors come
//! back (docs/hostile.md H1 to H3, H6; docs/http1.md). Limits are configured short; a slow
//! client is paced by waiting for an event that does not come (the reply), never by sleeping.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::kit::{
    Client, Gone, Honest, Io, Link, Server, Waiting, Weir, app, eventually, nonce, on_both_drivers,
    pattern, tcp_sockets,
};
use weir_check::upstreams::check_honest;
use weir_check::{Body, Request};

on_both_drivers!(
    h1_slow_heads_get_408,
    h1_silent_clients_are_closed,
    h2_slow_bodies_get_408,
    h3_slow_client_gets_everything,
    h3_slow_client_keeps_nobody_waiting,
    thousands_of_requests_are_cancelled_at_once,
    connections_limit_closes_at_once;
    alone:
    h3_clients_that_stop_reading,
    h6_descriptors_run_out,
    hundred_clients_of_every_bad_kind,
    deaf_servers_leave_the_receive_buffers_to_others,
);

/// Checks that a well-behaved client is served, whatever the others do.
fn victim(weir: &Weir) {
    let (mut client, nonce) = (Client::connect(weir.address), nonce());
    client.get(&format!("/victim?n={nonce}"));
    check_honest(&nonce, &client.reply()).unwrap();
}

/// Responds to `/large?size=N` with a pattern of that size, to everything else with its nonce.
fn large(link: &mut Link, request: &Request) -> Result<(), Gone> {
    let Some(size) = request.query("size") else { return link.honest(request) };
    let size: usize = size.parse().expect("a number");
    link.answer(format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").as_bytes())?;
    let part = pattern(1 << 20);
    let mut left = size;
    while left > 0 {
        let now = left.min(part.len());
        link.write(&part[..now])?;
        left -= now;
    }
    Ok(())
}

/// Sends a byte, then waits a little for the end of the connection; again and again. Returns what
/// came back.
fn drip(mut stream: TcpStream, bytes: &[u8], pause: Duration) -> Vec<u8> {
    stream.set_read_timeout(Some(pause)).expect("a socket option");
    let mut answer = Vec::new();
    let mut waiting = Waiting::begin();
    for byte in bytes.iter().cycle() {
        assert!(waiting.goes_on(), "a slow client was never ended; {}", waiting.story());
        if stream.write_all(&[*byte]).is_err() {
            break;
        }
        let mut buffer = [0; 1024];
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                answer.extend_from_slice(&buffer[..n]);
                break;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    answer
}

fn h1_slow_heads_get_408(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 2, &format!("client head-timeout=\"2s\"\n{}", app(&server, 2, "")));
    std::thread::scope(|scope| {
        let slow: Vec<_> = (0..30)
            .map(|_| {
                let stream = TcpStream::connect(weir.address).expect("weir accepts");
                scope.spawn(move || {
                    drip(stream, b"GET / HTTP/1.1\r\nX: ", Duration::from_millis(50))
                })
            })
            .collect();
        (0..5).for_each(|_| victim(&weir));
        for client in slow {
            let answer = client.join().expect("ended");
            assert!(answer.starts_with(b"HTTP/1.1 408 "), "{}", answer.escape_ascii());
        }
    });
    victim(&weir);
    weir.stop();
    assert_eq!(server.finish().requests.len(), 6, "nothing of a slow head left");
}

fn h1_silent_clients_are_closed(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 1, &format!("client idle-timeout=\"2s\"\n{}", app(&server, 1, "")));
    // Silent from the start, and silent behind a request.
    let mut silent: Vec<Client> = Vec::new();
    for at in 0..20 {
        let mut client = Client::connect(weir.address);
        if at % 2 == 0 {
            let nonce = nonce();
            client.get(&format!("/victim?n={nonce}"));
            check_honest(&nonce, &client.reply()).unwrap();
        }
        silent.push(client);
    }
    for client in &mut silent {
        let received = client.received;
        client.end();
        assert_eq!(client.received, received, "closed in silence");
    }
    victim(&weir);
    weir.stop();
    server.finish();
}

fn h2_slow_bodies_get_408(io: Io) {
    let server = Server::start(Honest);
    let weir =
        Weir::start(io, 1, &format!("client body-timeout=\"300ms\"\n{}", app(&server, 1, "")));
    let mut stalled: Vec<Client> = Vec::new();
    for _ in 0..20 {
        let mut client = Client::connect(weir.address);
        client.ask("POST", false);
        client.send(b"POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nx");
        stalled.push(client);
    }
    (0..3).for_each(|_| victim(&weir));
    for client in &mut stalled {
        let reply = client.reply();
        assert_eq!((reply.status, reply.closes), (408, true));
        client.end();
    }
    weir.stop();
    let log = server.finish();
    assert!(
        log.requests.iter().all(|(_, it)| it.method == "GET"),
        "a slow body never cost the server a request"
    );
}

fn h3_clients_that_stop_reading(io: Io) {
    let server = Server::start(large);
    let limits = "client send-timeout=\"700ms\"\n";
    let weir = Weir::start(io, 1, &format!("{limits}{}", app(&server, 12, "")));
    server.wait("the pool is there", |log| log.open == 12);
    victim(&weir);
    let (memory, descriptors) = (weir.memory(), weir.descriptors());
    let mut stopped: Vec<Client> = Vec::new();
    for _ in 0..8 {
        let mut client = Client::connect(weir.address);
        client.shrink_window(4096);
        client.get("/large?size=200000000");
        client.beginning(1);
        stopped.push(client);
    }
    (0..3).for_each(|_| victim(&weir));
    let grown = weir.memory().saturating_sub(memory);
    assert!(grown < 64 << 20, "{grown} bytes more for 8 clients that don't read 200 MB each");
    // Their connections end, and those to their servers are replaced.
    server.wait("the servers of stopped clients are relieved", |log| log.accepted >= 12 + 8);
    victim(&weir);
    drop(stopped);
    eventually("descriptors come back", || weir.descriptors() <= descriptors);
    weir.stop();
    server.finish();
}

fn h3_slow_client_gets_everything(io: Io) {
    let server = Server::start(large);
    let weir = Weir::start(io, 2, &app(&server, 4, ""));
    let mut client = Client::connect(weir.address);
    client.get("/large?size=20000000");
    client.beginning(1);
    // Others get through while it does not read.
    (0..20).for_each(|_| victim(&weir));
    assert_eq!(client.reply().body.length, 20_000_000);
    weir.stop();
    server.finish();
}

fn h3_slow_client_keeps_nobody_waiting(io: Io) {
    let server = Server::start(large);
    let weir = Weir::start(io, 1, &app(&server, 2, "pipeline depth=16"));
    // Trust is earned, so that others' requests may wait behind responses that are not read.
    let mut client = Client::connect(weir.address);
    for _ in 0..20 {
        let nonces: Vec<String> = (0..10).map(|_| nonce()).collect();
        nonces.iter().for_each(|nonce| client.get(&format!("/victim?n={nonce}")));
        nonces.iter().for_each(|nonce| check_honest(nonce, &client.reply()).unwrap());
    }
    let mut slow: Vec<Client> = (0..3).map(|_| Client::connect(weir.address)).collect();
    for client in &mut slow {
        (0..60).for_each(|_| client.get("/large?size=200000"));
    }
    slow.iter_mut().for_each(|client| drop(client.beginning(1)));
    // Their send timeout is a minute, the patience of these tests much less.
    (0..40).for_each(|_| victim(&weir));
    let expected = Body::of(&pattern(200_000));
    for client in &mut slow {
        (0..60).for_each(|_| assert_eq!(client.reply().body.sum, expected.sum));
    }
    victim(&weir);
    weir.stop();
    server.finish();
}

/// Silent clients have their share of descriptors, and no more: weir connects to servers and serves
/// new clients while they stay.
fn h6_descriptors_run_out(io: Io) {
    let (server, cold) = (Server::start(Honest), Server::start(Honest));
    let more = format!(
        "upstream \"cold\" {{ server \"{}\" connections-min=0; }}\n\
            route host=\"cold\" {{ proxy \"cold\"; }}\n{}",
        cold.address,
        app(&server, 4, "")
    );
    let mut weir = Weir::start_with_descriptors(io, 1, &more, 64);
    let mut early = Client::connect(weir.address);
    early.get("/v?n=00000000");
    assert_eq!(early.reply().status, 200);
    let crowd: Vec<TcpStream> = (0..150)
        .map(|_| TcpStream::connect(weir.address).expect("the accept queue takes it"))
        .collect();
    eventually("clients have as many as they may", || weir.said().contains("descriptors-scarce: "));
    // The kernel may accept more at once; those are closed first.
    eventually("what is reserved for servers is free", || weir.descriptors() < 60);
    // An early client still gets its server, which has no connection yet.
    early.ask("GET", false);
    early.send(b"GET /v?n=cold HTTP/1.1\r\nHost: cold\r\n\r\n");
    assert_eq!(early.reply().status, 200);
    // It does not spin while it cannot accept: of a wait that long, a spinning loop would take
    // nearly all.
    let (ticks, start) = (weir.cpu_ticks(), Instant::now());
    eventually("half a second passes", || start.elapsed() > Duration::from_millis(500));
    let used = weir.cpu_ticks() - ticks;
    assert!(used < 25, "{used} ticks of 50 while clients wait to be accepted");
    assert!(weir.is_running());
    // The crowd is idle, and makes room.
    (0..3).for_each(|_| victim(&weir));
    drop(crowd);
    (0..3).for_each(|_| victim(&weir));
    weir.stop();
    server.finish();
    cold.finish();
}

/// The receive buffers of a worker are shared: uploads to servers that stopped reading use only a
/// part of them.
fn deaf_servers_leave_the_receive_buffers_to_others(io: Io) {
    const UPLOADS: usize = 60;
    let server = Server::start(Honest);
    // The kernel makes its connections, which are never accepted or read.
    let deaf = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    deaf.set_nonblocking(true).expect("a socket option");
    socket2::SockRef::from(&deaf).set_recv_buffer_size(8192).expect("a socket option");
    let address = deaf.local_addr().expect("bound");
    let more = format!(
        "upstream \"deaf\" {{\n server \"{address}\" connections=64\n}}\n\
            route host=\"deaf\" path=\"/\" {{ proxy \"deaf\" }}\n{}",
        app(&server, 1, "")
    );
    for workers in [1, 2] {
        let weir = Weir::start(io, workers, &more);
        std::thread::scope(|scope| {
            let uploads: Vec<_> = (0..UPLOADS)
                .map(|_| {
                    let mut stream = TcpStream::connect(weir.address).expect("weir accepts");
                    stream
                        .set_write_timeout(Some(Duration::from_millis(500)))
                        .expect("a socket option");
                    scope.spawn(move || {
                        stream
                            .write_all(
                                b"POST / HTTP/1.1\r\nHost: deaf\r\n\
                                Content-Length: 1000000000\r\n\r\n",
                            )
                            .expect("there is room");
                        // Until no more bytes fit.
                        while stream.write_all(&[b'x'; 64 << 10]).is_ok() {}
                        stream
                    })
                })
                .collect();
            let uploads: Vec<TcpStream> =
                uploads.into_iter().map(|it| it.join().expect("stuck")).collect();
            (0..5).for_each(|_| victim(&weir));
            drop(uploads);
        });
        // Unread data becomes a reset, and the uploads fail.
        while deaf.accept().is_ok() {}
        victim(&weir);
        weir.stop();
    }
    server.finish();
}

/// 499 clients with full pipelines leave in the same turn: cancelling their requests must not
/// search for each of 31,936 requests among all of them, for which the watchdog would end weir.
fn thousands_of_requests_are_cancelled_at_once(io: Io) {
    const CLIENTS: usize = 499;
    const EACH: usize = 64;
    let server = Server::start(Honest);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("bound");
    let more = format!(
        "upstream \"silent\" {{\n server \"{address}\" connections=64\n}}\n\
            route host=\"silent\" path=\"/\" {{ proxy \"silent\" }}\n{}",
        app(&server, 1, "")
    );
    let request = "GET / HTTP/1.1\r\nHost: silent\r\n\r\n".repeat(EACH);
    for workers in [1, 2] {
        let mut weir = Weir::start(io, workers, &more);
        let clients: Vec<TcpStream> = (0..CLIENTS)
            .map(|_| {
                let mut stream = TcpStream::connect(weir.address).expect("weir accepts");
                stream.write_all(request.as_bytes()).expect("there is room");
                socket2::SockRef::from(&stream)
                    .set_linger(Some(Duration::ZERO))
                    .expect("a socket option");
                stream
            })
            .collect();
        let unanswered = |weir: &Weir| {
            let status: serde_json::Value =
                serde_json::from_str(&weir.answer(&["status", "--json"])).expect("JSON");
            let clients = &status["clients"];
            clients["waiting"].as_u64().expect("a number")
                + clients["in_flight"].as_u64().expect("a number")
        };
        eventually("all are asked", || unanswered(&weir) == (CLIENTS * EACH) as u64);
        // All of them in one turn, or a few; first those whose requests came last and are at the
        // end of every line.
        weir.signal("STOP");
        clients.into_iter().rev().for_each(drop);
        weir.signal("CONT");
        victim(&weir);
        // Requests that were sent remain with their connections. The same number of connections is
        // added if none of the first ones has responded for a second.
        eventually("what waited is forgotten", || unanswered(&weir) <= 2 * 64);
        assert!(weir.is_running());
        weir.stop();
    }
    server.finish();
}

fn hundred_clients_of_every_bad_kind(io: Io) {
    let server = Server::start(large);
    // Long enough for a victim that others keep from its processor.
    let limits =
        "client head-timeout=\"2s\" idle-timeout=\"2s\" body-timeout=\"2s\" send-timeout=\"2s\"\n";
    let weir = Weir::start(io, 2, &format!("{limits}{}", app(&server, 8, "")));
    (0..3).for_each(|_| victim(&weir));
    server.wait("the pool is there", |log| log.open == 8);
    let (memory, descriptors) = (weir.memory(), weir.descriptors());
    std::thread::scope(|scope| {
        for client in 0..100 {
            let weir = &weir;
            scope.spawn(move || bad_client(weir, client % 5));
        }
        (0..10).for_each(|_| victim(&weir));
    });
    eventually("descriptors come back", || weir.descriptors() <= descriptors);
    let grown = weir.memory().saturating_sub(memory);
    assert!(grown < 48 << 20, "{grown} bytes stay behind");
    (0..3).for_each(|_| victim(&weir));
    server.wait("the pool is whole", |log| log.open == 8);
    weir.stop();
    server.finish();
}

/// Acts as one of five kinds of bad clients; returns when weir has ended it, or it has left.
fn bad_client(weir: &Weir, kind: usize) {
    let mut client = Client::connect(weir.address);
    match kind {
        // Opens and sends nothing.
        0 => drop(client.end()),
        // A byte at a time.
        1 => drop(drip(client.stream(), b"GET /x HTTP/1.1\r\nX: ", Duration::from_millis(100))),
        // Stops reading.
        2 => {
            client.shrink_window(4096);
            client.get("/large?size=50000000");
            client.beginning(1);
            // The end comes when weir loses patience: then writing fails.
            let stream = client.stream();
            eventually("a client that doesn't read is ended", || {
                socket2::SockRef::from(&stream).take_error().is_ok_and(|error| error.is_some())
                    || is_hung_up(&stream)
            });
        }
        // Resets in the middle of a response.
        3 => {
            client.get("/large?size=5000000");
            client.beginning(1000);
            client.reset();
        }
        // Vanishes in the middle of a request.
        _ => {
            client.ask("POST", false);
            client.send(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nxx");
        }
    }
}

/// Whether the other side has closed or reset: seen without reading.
fn is_hung_up(stream: &TcpStream) -> bool {
    let port = format!(":{:04X}", stream.local_addr().expect("bound").port());
    // Any state but established means that the other side ended.
    !tcp_sockets().iter().any(|socket| socket.local.ends_with(&port) && socket.state == "01")
}

fn connections_limit_closes_at_once(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 1, &format!("client connections=4\n{}", app(&server, 1, "")));
    let mut kept: Vec<Client> = Vec::new();
    eventually("four are kept", || {
        // The connection that tested for readiness may still count.
        let (mut client, nonce) = (Client::connect(weir.address), nonce());
        client.ask("GET", false);
        let sent = client
            .try_send(format!("GET /victim?n={nonce} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        if sent && client.try_reply().is_some() {
            kept.push(client);
        }
        kept.len() == 4
    });
    let mut fifth = Client::connect(weir.address);
    fifth.end();
    assert_eq!(fifth.received, 0);
    kept.truncate(3);
    eventually("room again", || {
        let mut client = Client::connect(weir.address);
        client.ask("GET", false);
        client.try_send(b"GET /victim?n=00000000 HTTP/1.1\r\nHost: a\r\n\r\n")
            && client.try_reply().is_some()
    });
    drop(kept);
    weir.stop();
    server.finish();
}
