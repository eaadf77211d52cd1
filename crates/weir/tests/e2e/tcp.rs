//! Proves: connections of `tcp` are passed on byte by byte, whichever side speaks first; each end
//! and each abort arrives as such; a server that refuses, is silent or resets affects no other
//! connection; a stalled reader costs no memory; reloads, upgrades and the end of weir do not
//! disturb connections under way; weir counts, limits and logs them. How: the real binary, raw
//! clients and servers on loopback. docs/tcp.md.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

use crate::kit::{
    CAP, Io, Scratch, Weir, bounded, eventually, free_port, on_both_drivers, pattern, received,
    status,
};

on_both_drivers!(
    the_server_may_speak_first,
    each_direction_ends_by_itself,
    an_abort_stays_an_abort,
    another_server_has_what_one_refuses,
    a_silent_server_costs_the_time_of_a_connect,
    nobody_gets_less_than_was_sent,
    what_is_half_closed_ends_and_what_is_idle,
    a_server_has_no_more_than_it_may,
    servers_are_told_whose_connection_it_is,
    what_comes_with_a_header_is_passed_on,
    reloads_leave_what_is_under_way,
    upgrades_leave_what_is_under_way,
    weir_ends_in_its_time,
    a_sudden_end_is_an_abort,
    descriptors_run_out,
    who_is_banned_is_cut_off,
    each_has_a_line_and_is_counted,
    a_name_decides_and_passes_through;
    alone:
    a_reader_that_stands_still_costs_no_memory,
);

/// A server that treats each connection like this.
struct Raw {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
}

impl Raw {
    /// `serve` runs in a separate thread for each connection.
    fn start(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Raw {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let (serve, accepted) = (Arc::new(serve), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&accepted);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::SeqCst);
                bounded(&stream);
                let serve = Arc::clone(&serve);
                std::thread::spawn(move || serve(stream));
            }
        });
        Raw { address, accepted }
    }

    /// Greets, then sends back what comes, and `!` at its end.
    fn echo() -> Raw {
        Raw::start(|mut stream| {
            if stream.write_all(b"220 hello\r\n").is_err() {
                return;
            }
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = stream.read(&mut buffer) {
                if stream.write_all(&buffer[..n]).is_err() {
                    return;
                }
            }
            let _ = stream.write_all(b"!");
        })
    }
}

/// Returns an address for `tcp`, and a configuration with these options and servers of its
/// upstream.
fn passing(options: &str, upstream: &str) -> (SocketAddr, String) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    (address, passing_at(address, options, upstream))
}

fn passing_at(address: SocketAddr, options: &str, upstream: &str) -> String {
    format!(
        "tcp {{ listen \"{address}\"; proxy \"raw\"; {options} }}\n\
            upstream \"raw\" {{ {upstream} }}\nroute {{ respond 204; }}\n"
    )
}

fn servers(all: &[SocketAddr]) -> String {
    all.iter().map(|address| format!("server \"{address}\"; ")).collect()
}

fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).expect("weir accepts");
    bounded(&stream);
    stream
}

/// Returns a client of [`Raw::echo`] that was greeted.
fn greeted(to: SocketAddr) -> TcpStream {
    let mut stream = connect(to);
    assert_eq!(read(&mut stream, 11), b"220 hello\r\n");
    stream
}

fn read(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).expect("so many bytes");
    bytes
}

fn echoes(stream: &mut TcpStream) {
    stream.write_all(b"ping").expect("open");
    assert_eq!(read(stream, 4), b"ping");
}

/// Returns how a connection ends without another byte.
fn end_of(stream: &mut TcpStream) -> Result<(), ErrorKind> {
    match stream.read(&mut [0; 16]) {
        Ok(0) => Ok(()),
        Ok(n) => panic!("{n} bytes more"),
        Err(error) => Err(error.kind()),
    }
}

fn reset(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("an option");
    drop(stream);
}

/// Returns a counter of the status.
fn total(weir: &Weir, name: &str) -> u64 {
    status(weir)["totals"][name].as_u64().unwrap_or(0)
}

fn the_server_may_speak_first(io: Io) {
    let server = Raw::echo();
    let (address, text) = passing("", &servers(&[server.address]));
    let weir = Weir::start(io, 2, &text);
    let mut all: Vec<_> = (0..10).map(|_| greeted(address)).collect();
    all.iter_mut().for_each(echoes);
    // A client that sends everything at once gets the greeting all the same.
    let mut hasty = connect(address);
    hasty.write_all(b"EHLO").expect("open");
    assert_eq!(read(&mut hasty, 15), b"220 hello\r\nEHLO");
    drop((all, hasty));
    weir.stop();
}

fn each_direction_ends_by_itself(io: Io) {
    let (told, tells) = mpsc::channel();
    let server = Raw::start(move |mut stream| {
        let mut word = [0; 5];
        if stream.read_exact(&mut word).is_err() {
            return;
        }
        if &word == b"first" {
            stream.write_all(b"bye").expect("open");
            stream.shutdown(Shutdown::Write).expect("open");
        }
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("an end in order");
        told.send(rest.len()).expect("the test waits");
        if &word != b"first" {
            stream.write_all(b"bye").expect("open");
        }
    });
    let (address, text) = passing("", &servers(&[server.address]));
    let weir = Weir::start(io, 1, &text);
    // The server ends first: the client continues.
    let mut client = connect(address);
    client.write_all(b"first").expect("open");
    let mut heard = Vec::new();
    client.read_to_end(&mut heard).expect("an end in order");
    assert_eq!(heard, b"bye");
    client.write_all(&[7; 100_000]).expect("the other direction is open");
    client.shutdown(Shutdown::Write).expect("open");
    assert_eq!(received(&tells), Ok(100_000));
    // The client ends first: the server continues.
    let mut client = connect(address);
    client.write_all(b"later").expect("open");
    client.write_all(&[7; 1000]).expect("open");
    client.shutdown(Shutdown::Write).expect("open");
    assert_eq!(received(&tells), Ok(1000));
    let mut heard = Vec::new();
    client.read_to_end(&mut heard).expect("an end in order");
    assert_eq!(heard, b"bye");
    eventually("both have ended in order", || total(&weir, "client_connections") == 0);
    weir.stop();
}

fn an_abort_stays_an_abort(io: Io) {
    let (told, tells) = mpsc::channel();
    let server = Raw::start(move |mut stream| {
        let mut word = [0; 5];
        if stream.read_exact(&mut word).is_err() {
            return;
        }
        stream.write_all(b"hello").expect("open");
        if &word == b"reset" {
            return reset(stream);
        }
        told.send(end_of(&mut stream)).expect("the test waits");
    });
    let (address, text) = passing("", &servers(&[server.address]));
    let weir = Weir::start(io, 1, &text);
    let mut client = connect(address);
    client.write_all(b"other").expect("open");
    assert_eq!(read(&mut client, 5), b"hello");
    reset(client);
    assert_eq!(received(&tells).expect("an end"), Err(ErrorKind::ConnectionReset));
    let mut client = connect(address);
    client.write_all(b"reset").expect("open");
    let mut heard = Vec::new();
    let end = client.read_to_end(&mut heard).expect_err("no end in order");
    assert_eq!(end.kind(), ErrorKind::ConnectionReset);
    weir.stop();
}

fn another_server_has_what_one_refuses(io: Io) {
    let server = Raw::echo();
    let dead = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (address, text) = passing("", &servers(&[dead, server.address]));
    let weir = Weir::start(io, 2, &text);
    (0..20).for_each(|_| echoes(&mut greeted(address)));
    weir.rewrite(&passing_at(address, "", &servers(&[dead])));
    weir.answer(&["reload"]);
    let mut client = connect(address);
    assert_eq!(end_of(&mut client), Err(ErrorKind::ConnectionReset), "refused is no end in order");
    weir.stop();
}

fn a_silent_server_costs_the_time_of_a_connect(io: Io) {
    // A socket with room for one waiting connection, which it has, does not reply to another.
    let silent = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a descriptor");
    silent.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    silent.listen(0).expect("bound");
    let dead = silent.local_addr().expect("bound").as_socket().expect("an address");
    let waits = TcpStream::connect(dead).expect("room for one");
    let server = Raw::echo();
    let upstream = format!("connect-timeout \"200ms\"; {}", servers(&[dead, server.address]));
    let (address, text) = passing("", &upstream);
    let weir = Weir::start(io, 1, &text);
    (0..10).for_each(|_| echoes(&mut greeted(address)));
    assert!(total(&weir, "upstream_connect_failures") > 0);
    drop(waits);
    weir.stop();
}

fn nobody_gets_less_than_was_sent(io: Io) {
    let server = Raw::echo();
    let (address, text) = passing("", &servers(&[server.address]));
    let weir = Weir::start(io, 2, &text);
    let sent = pattern(5_000_000);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = greeted(address);
                let mut writer = client.try_clone().expect("a descriptor");
                let sent = &sent;
                scope.spawn(move || {
                    writer.write_all(sent).expect("open");
                    writer.shutdown(Shutdown::Write).expect("open");
                });
                let mut back = Vec::new();
                client.read_to_end(&mut back).expect("an end in order");
                let (mark, back) = back.split_last().expect("bytes");
                assert!(back == &sent[..] && *mark == b'!');
            });
        }
    });
    weir.stop();
}

fn a_reader_that_stands_still_costs_no_memory(io: Io) {
    const BYTES: usize = 200 << 20;
    let (told, tells) = mpsc::channel();
    let server = Raw::start(move |mut stream| {
        let part = pattern(1 << 20);
        if stream.read_exact(&mut [0]).is_err() {
            return;
        }
        for _ in 0..BYTES >> 20 {
            stream.write_all(&part).expect("open");
            told.send(()).expect("the test waits");
        }
    });
    let (address, text) = passing("", &servers(&[server.address]));
    let weir = Weir::start(io, 1, &text);
    let before = weir.memory();
    let mut client = connect(address);
    client.write_all(b"x").expect("open");
    // Until it stalls: the kernel's buffers hold far less than all.
    let mut parts = 0;
    while tells.recv_timeout(Duration::from_millis(500)).is_ok() {
        parts += 1;
    }
    assert!(parts < (BYTES >> 20) / 2, "{parts} MiB went to somebody who reads nothing");
    let grown = weir.memory().saturating_sub(before);
    assert!(grown < 4 << 20, "{grown} bytes for one reader");
    let mut all = Vec::with_capacity(BYTES);
    client.read_to_end(&mut all).expect("an end in order");
    let part = pattern(1 << 20);
    assert!(all.len() == BYTES && all.chunks(1 << 20).all(|chunk| chunk == part));
    drop(client);
    weir.stop();
}

fn what_is_half_closed_ends_and_what_is_idle(io: Io) {
    // A server that never ends its direction, and ignores the other end.
    let server = Raw::start(|mut stream| while let Ok(1..) = stream.read(&mut [0; 16]) {});
    let keeps = Raw::start(|mut stream| {
        let mut end = [0; 16];
        while let Ok(1..) = stream.read(&mut end) {}
        std::thread::park_timeout(CAP);
    });
    let (address, text) = passing("idle-timeout \"400ms\"", &servers(&[server.address]));
    let weir = Weir::start(io, 1, &text);
    assert_eq!(end_of(&mut connect(address)), Err(ErrorKind::ConnectionReset), "it is idle");
    weir.stop();
    let (address, text) = passing("half-close-timeout \"300ms\"", &servers(&[keeps.address]));
    let weir = Weir::start(io, 1, &text);
    let mut client = connect(address);
    client.write_all(b"x").expect("open");
    client.shutdown(Shutdown::Write).expect("open");
    assert_eq!(end_of(&mut client), Err(ErrorKind::ConnectionReset), "it is half closed");
    weir.stop();
}

fn a_server_has_no_more_than_it_may(io: Io) {
    let server = Raw::echo();
    let (address, text) = passing("", &format!("server \"{}\" tcp-connections=3;", server.address));
    let weir = Weir::start(io, 2, &text);
    eventually("whoever looked whether it listens has left", || {
        total(&weir, "client_connections") == 0
    });
    let mut all: Vec<_> = (0..3).map(|_| greeted(address)).collect();
    assert_eq!(end_of(&mut connect(address)), Err(ErrorKind::ConnectionReset));
    let mut first = all.remove(0);
    first.shutdown(Shutdown::Write).expect("open");
    assert_eq!(read(&mut first, 1), b"!");
    drop(first);
    eventually("there is room again", || total(&weir, "client_connections") == 2);
    echoes(&mut greeted(address));
    drop(all);
    weir.stop();
}

fn servers_are_told_whose_connection_it_is(io: Io) {
    let (told, tells) = mpsc::channel();
    let server = Raw::start(move |mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("an end in order");
        if all.ends_with(b"x") {
            told.send(all).expect("the test waits");
        }
    });
    for version in ["v1", "v2"] {
        let upstream = format!("proxy-protocol \"{version}\"; {}", servers(&[server.address]));
        let (address, text) = passing("", &upstream);
        let weir = Weir::start(io, 1, &text);
        let mut client = connect(address);
        let port = client.local_addr().expect("connected").port();
        client.write_all(b"x").expect("open");
        client.shutdown(Shutdown::Write).expect("open");
        let all = received(&tells).expect("it came");
        match version {
            "v1" => assert_eq!(
                String::from_utf8_lossy(&all),
                format!("PROXY TCP4 127.0.0.1 127.0.0.1 {port} {}\r\nx", address.port())
            ),
            _ => {
                assert!(
                    all.starts_with(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\0\0\x01\x7f\0\0\x01"),
                    "{all:?}"
                );
                assert_eq!(
                    all[24..28],
                    [port.to_be_bytes(), address.port().to_be_bytes()].concat()[..]
                );
            }
        }
        weir.stop();
    }
}

fn what_comes_with_a_header_is_passed_on(io: Io) {
    let server = Raw::echo();
    let scratch = Scratch::new();
    let log = scratch.path("access.log");
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let text = format!(
        "access-log \"{}\" format=\"$remote_addr $request_length\"\n\
         client {{ trusted-proxies \"127.0.0.1\"; }}\n\
         tcp {{ listen \"{address}\" proxy-protocol=#true; proxy \"raw\"; }}\n\
         upstream \"raw\" {{ {} }}\nroute {{ respond 204; }}\n",
        log.display(),
        servers(&[server.address])
    );
    let weir = Weir::start(io, 1, &text);
    for cut in [44, 46, 50] {
        let mut client = connect(address);
        let all = b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\nearly bytes";
        client.write_all(&all[..cut]).expect("open");
        // Not before that was read.
        if cut > 44 {
            assert_eq!(read(&mut client, 11), b"220 hello\r\n");
        }
        client.write_all(&all[cut..]).expect("open");
        client.shutdown(Shutdown::Write).expect("open");
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).expect("an end in order");
        assert!(heard.ends_with(b"early bytes!"), "{}", heard.escape_ascii());
    }
    weir.stop();
    assert_eq!(std::fs::read_to_string(log).expect("a log"), "192.0.2.7 11\n".repeat(3));
}

fn reloads_leave_what_is_under_way(io: Io) {
    let (old, new) = (Raw::echo(), Raw::echo());
    let (address, text) = passing("", &servers(&[old.address]));
    let weir = Weir::start(io, 2, &text);
    let mut all: Vec<_> = (0..4).map(|_| greeted(address)).collect();
    weir.rewrite(&passing_at(address, "idle-timeout \"2h\"", &servers(&[new.address])));
    weir.answer(&["reload"]);
    all.iter_mut().for_each(echoes);
    let before = new.accepted.load(Ordering::SeqCst);
    all.extend((0..4).map(|_| greeted(address)));
    assert_eq!(new.accepted.load(Ordering::SeqCst), before + 4);
    // The listener is gone, but the connections that it had accepted are not.
    weir.rewrite("route { respond 204; }\n");
    weir.answer(&["reload"]);
    eventually("nobody listens any more", || TcpStream::connect(address).is_err());
    all.iter_mut().for_each(echoes);
    for mut client in all {
        client.shutdown(Shutdown::Write).expect("open");
        assert_eq!(read(&mut client, 1), b"!");
        assert_eq!(end_of(&mut client), Ok(()));
    }
    eventually("all are gone", || total(&weir, "client_connections") == 0);
    weir.stop();
}

fn upgrades_leave_what_is_under_way(io: Io) {
    let server = Raw::echo();
    let (address, text) = passing("", &servers(&[server.address]));
    let weir = Weir::start(
        io,
        2,
        &format!("shutdown {{ drain \"200ms\"; }}\nupgrade {{ tunnels \"1m\"; }}\n{text}"),
    );
    let mut old: Vec<_> = (0..4).map(|_| greeted(address)).collect();
    let before = weir.upgrade();
    (0..8).for_each(|_| echoes(&mut greeted(address)));
    // The time for requests is over soon, that for these is not.
    for _ in 0..20 {
        old.iter_mut().for_each(echoes);
        std::thread::park_timeout(Duration::from_millis(20));
    }
    assert!(weir.processes().contains(&before));
    drop(old);
    eventually("the old one has ended", || !weir.processes().contains(&before));
    weir.stop();
}

fn weir_ends_in_its_time(io: Io) {
    let (told, tells) = mpsc::channel();
    let server = Raw::start(move |mut stream| {
        let _ = stream.write_all(b"220 hello\r\n");
        let mut buffer = [0; 4];
        let end = loop {
            match stream.read(&mut buffer) {
                Ok(0) => break Ok(()),
                Ok(n) => drop(stream.write_all(&buffer[..n])),
                Err(error) => break Err(error.kind()),
            }
        };
        let _ = told.send(end);
    });
    let scratch = Scratch::new();
    let log = scratch.path("access.log");
    let (address, text) = passing("", &servers(&[server.address]));
    let format = "$server_protocol $request_length $bytes_sent $ended_by $reason";
    let log_text = format!("access-log \"{}\" format=\"{format}\"", log.display());
    let mut weir = Weir::start(io, 1, &format!("shutdown {{ drain \"4s\"; }}\n{log_text}\n{text}"));
    eventually("whoever looked whether it listens has left", || {
        total(&weir, "client_connections") == 0
    });
    while tells.try_recv().is_ok() {}
    let mut client = greeted(address);
    weir.signal("TERM");
    for _ in 0..10 {
        echoes(&mut client);
        std::thread::park_timeout(Duration::from_millis(20));
    }
    weir.wait();
    // A truncated stream does not look complete, to neither side.
    assert_eq!(end_of(&mut client), Err(ErrorKind::ConnectionReset));
    let is_reset = |end: &Result<(), ErrorKind>| *end == Err(ErrorKind::ConnectionReset);
    let ends = std::iter::from_fn(|| received(&tells).ok()).find(is_reset);
    assert!(ends.is_some(), "the server takes it for whole");
    let lines = std::fs::read_to_string(&log).expect("a log");
    assert!(lines.lines().last().is_some_and(|line| line.ends_with("weir stopped")), "{lines}");
}

fn a_sudden_end_is_an_abort(io: Io) {
    let (told, tells) = mpsc::channel();
    let server = Raw::start(move |mut stream| {
        stream.write_all(b"220 hello\r\n").expect("open");
        told.send(end_of(&mut stream)).expect("the test waits");
    });
    let (address, text) = passing("", &servers(&[server.address]));
    let weir = Weir::start(io, 1, &text);
    let mut client = greeted(address);
    weir.signal("KILL");
    assert_eq!(
        end_of(&mut client),
        Err(ErrorKind::ConnectionReset),
        "what is cut off does not look whole"
    );
    // Earlier ones may be from the check whether weir accepts.
    while received(&tells).expect("the server hears of it") != Err(ErrorKind::ConnectionReset) {}
}

fn descriptors_run_out(io: Io) {
    let server = Raw::echo();
    let (address, text) = passing("", &servers(&[server.address]));
    let mut weir = Weir::start_with_descriptors(io, 1, &text, 64);
    let mut all: Vec<_> = (0..100).map(|_| connect(address)).collect();
    // Each takes two, and a connection that has one must not keep it from all others.
    eventually("some are served", || server.accepted.load(Ordering::SeqCst) >= 5);
    assert!(weir.is_running());
    all.clear();
    // Some of those still wait to be accepted.
    eventually("who comes is served again", || {
        let mut stream = connect(address);
        stream.read_exact(&mut [0; 11]).is_ok()
    });
    weir.stop();
}

fn who_is_banned_is_cut_off(io: Io) {
    let server = Raw::echo();
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let text = format!(
        "client {{ trusted-proxies \"127.0.0.1\"; }}\n\
         tcp {{ listen \"{address}\" proxy-protocol=#true; proxy \"raw\"; }}\n\
         upstream \"raw\" {{ {} }}\nroute {{ respond 204; }}\n",
        servers(&[server.address])
    );
    let weir = Weir::start(io, 2, &text);
    let by = |who: &str| {
        let mut stream = connect(address);
        stream
            .write_all(format!("PROXY TCP4 {who} 198.51.100.1 4711 443\r\n").as_bytes())
            .expect("open");
        stream
    };
    let mut others: Vec<_> = (0..2).map(|_| by("240.0.0.8")).collect();
    let mut banned: Vec<_> = (0..4).map(|_| by("240.0.0.7")).collect();
    for client in others.iter_mut().chain(&mut banned) {
        assert_eq!(read(client, 11), b"220 hello\r\n");
    }
    weir.answer(&["ban", "add", "240.0.0.7", "--for", "1h"]);
    for mut client in banned {
        assert_eq!(end_of(&mut client), Err(ErrorKind::ConnectionReset));
    }
    assert_eq!(end_of(&mut by("240.0.0.7")), Err(ErrorKind::ConnectionReset));
    others.iter_mut().for_each(echoes);
    drop(others);
    weir.stop();
}

fn each_has_a_line_and_is_counted(io: Io) {
    let server = Raw::echo();
    let scratch = Scratch::new();
    let log = scratch.path("access.log");
    let (address, text) = passing("", &servers(&[server.address]));
    let format = "$server_protocol $remote_addr $request_length $bytes_sent $ended_by $reason \
        $upstream_name $upstream_addr $tries";
    let weir = Weir::start(
        io,
        1,
        &format!("access-log \"{}\" format=\"{format}\"\n{text}", log.display()),
    );
    let lines = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
    eventually("whoever looked whether it listens has left, and has a line", || {
        total(&weir, "client_connections") == 0 && lines() as u64 == total(&weir, "tcp_connections")
    });
    let looked = lines();
    let mut client = greeted(address);
    echoes(&mut client);
    let now = status(&weir);
    let tunnels = |value: &serde_json::Value| {
        value["upstreams"][0]["servers"][0]["connections"]["tunnels"].as_u64()
    };
    assert_eq!(
        (tunnels(&now), now["clients"]["connections"].as_u64()),
        (Some(1), Some(1)),
        "{now:#}"
    );
    client.shutdown(Shutdown::Write).expect("open");
    assert_eq!(read(&mut client, 1), b"!");
    let mut client = greeted(address);
    echoes(&mut client);
    reset(client);
    eventually("both have ended", || total(&weir, "client_connections") == 0);
    assert!(total(&weir, "tcp_connections") >= 2 && total(&weir, "client_bytes_in") == 8);
    weir.stop();
    let text = std::fs::read_to_string(&log).expect("a log");
    let lines: Vec<&str> = text.lines().skip(looked).collect();
    let to = server.address;
    let first = format!("TCP 127.0.0.1 4 16 none - raw {to} 1");
    let second = format!("TCP 127.0.0.1 4 15 client client-reset raw {to} 1");
    assert_eq!(lines, [first, second]);
}

/// Returns a first TLS message for this name, in records of this many bytes.
fn hello(name: &str, each: usize) -> Vec<u8> {
    fn vector(len_bytes: usize, bytes: &[u8]) -> Vec<u8> {
        let len = (bytes.len() as u32).to_be_bytes();
        [&len[4 - len_bytes..], bytes].concat()
    }
    let name = vector(2, &[&[0][..], &vector(2, name.as_bytes())].concat());
    let extensions = [&[0, 21][..], &vector(2, &[0; 700]), &[0, 0], &vector(2, &name)].concat();
    let body =
        [&[3, 3][..], &[7; 32], &[0], &vector(2, &[0x13, 1]), &[1, 0], &vector(2, &extensions)]
            .concat();
    let message = [&[1][..], &vector(3, &body)].concat();
    message.chunks(each).flat_map(|part| [&[22, 3, 1][..], &vector(2, part)].concat()).collect()
}

fn a_name_decides_and_passes_through(io: Io) {
    let told = |word: u8| {
        Raw::start(move |mut stream| {
            let mut all = Vec::new();
            if stream.read_to_end(&mut all).is_ok() {
                all.push(word);
                let _ = stream.write_all(&all);
            }
        })
    };
    let (first, second) = (told(b'1'), told(b'2'));
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let text = format!(
        "tcp {{ listen \"{address}\"; sni \"*.one.test\" proxy=\"one\"; proxy \"two\"; }}\n\
         upstream \"one\" {{ server \"{}\"; }}\nupstream \"two\" {{ server \"{}\"; }}\n\
         route {{ respond 204; }}\n",
        first.address, second.address
    );
    let weir = Weir::start(io, 2, &text);
    for (name, each, word) in
        [("a.one.test", 10_000, b'1'), ("A.One.test", 9, b'1'), ("one.test", 300, b'2')]
    {
        let all = [hello(name, each), pattern(100_000)].concat();
        for cut in [1, 5, 300, all.len()] {
            let mut client = connect(address);
            client.set_nodelay(true).expect("an option");
            client.write_all(&all[..cut]).expect("open");
            client.write_all(&all[cut..]).expect("open");
            client.shutdown(Shutdown::Write).expect("open");
            let mut back = Vec::new();
            client.read_to_end(&mut back).expect("an end in order");
            assert!(back == [&all[..], &[word]].concat(), "{name} {cut}: {} bytes", back.len());
        }
    }
    // Clients without TLS get the upstream of the others.
    let mut client = connect(address);
    client.write_all(b"SSH-2.0-client\r\n").expect("open");
    client.shutdown(Shutdown::Write).expect("open");
    let mut back = Vec::new();
    client.read_to_end(&mut back).expect("an end in order");
    assert_eq!(back, b"SSH-2.0-client\r\n2");
    weir.stop();
}
