//! Proves: one client that pipelines small requests as fast as it can makes weir hold little,
//! whatever responds, and gets all its responses. The memory that it used is returned. While some
//! clients do so, a kept connection, a new one and a handshake are served. How: resident memory of
//! the process is read from /proc. The wait of others is measured by the responses that the floods
//! get meanwhile, not by time. docs/hostile.md H10.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::kit::tls::{bridge, certificate};
use crate::kit::{
    Client, DEADLINE, Gone, Io, Link, Scratch, Server, Stopping, Weir, app, eventually, free_port,
    on_both_drivers,
};
use weir_check::Request;

on_both_drivers!(; alone: floods_are_held_back, others_are_served_during_floods);

/// The smallest request.
const REQUEST: &str = "GET / HTTP/1.1\r\nHost:a\r\n\r\n";
/// The same to a forward proxy.
const REQUEST_TO_PROXY: &str = "GET http://a/ HTTP/1.1\r\nHost:a\r\n\r\n";
/// Requests of a flood: all of them together are several times what weir may hold.
const REQUESTS: usize = 400_000;
/// Largest memory that a flood may make weir hold at a time: some hundred KiB of input, as much of
/// responses, buffers, and what the allocator keeps of them. Without a bound it is about twice what
/// the flood sends.
const HELD_MAX: u64 = 8 << 20;
/// Bytes that a flood may get between another client's request and its response.
const OVERTAKEN_MAX: u64 = 32 << 20;

/// The responder to a flood.
struct Answering {
    what: &'static str,
    request: &'static str,
    status: &'static str,
    config: String,
    /// The address of the flood.
    to: SocketAddr,
    /// The flood uses TLS.
    by_tls: bool,
}

fn free() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

/// Returns a port that refuses: its listener exists and does not accept, so that no other program
/// takes it.
fn refusing() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = listener.local_addr().expect("bound");
    (listener, SocketAddr::from(([127, 0, 0, 2], taken.port())))
}

fn answering(server: &Server, scratch: &Scratch, down: SocketAddr) -> Vec<Answering> {
    let files = certificate(scratch, "ec", &["bridge.test"], 30);
    let plain = |what, status, config: &str| {
        let to = free();
        let config = format!("listen \"{to}\"\n{config}\n");
        Answering { what, request: REQUEST, status, config, to, by_tls: false }
    };
    let (tls, proxy) = (free(), free());
    let redirect = "route { redirect \"https://$host$request_uri\"; }";
    vec![
        plain("a redirect", "308", redirect),
        plain("no route", "404", "route path=\"/other\" { respond 200; }"),
        plain("a rule", "403", "route { deny \"all\"; respond 200; }"),
        plain(
            "a server that is down",
            "502",
            &format!("upstream \"down\" {{ server \"{down}\"; }}\nroute {{ proxy \"down\"; }}"),
        ),
        plain(
            "the store",
            "200",
            &format!(
                "upstream \"app\" {{ server \"{}\"; }}\nroute {{ proxy \"app\"; cache; }}",
                server.address
            ),
        ),
        Answering {
            what: "a redirect by TLS",
            request: REQUEST,
            status: "308",
            config: format!("listen \"{tls}\" {{\n tls {{\n{}}}\n}}\n{redirect}\n", files.row()),
            to: tls,
            by_tls: true,
        },
        Answering {
            what: "a forward proxy that knows nobody",
            request: REQUEST_TO_PROXY,
            status: "407",
            config: format!(
                "{}forward {{\n listen \"{proxy}\"\n users \"{}\"\n allow\n}}\n",
                app(server, 1, ""),
                scratch.write("users", b"").display()
            ),
            to: proxy,
            by_tls: false,
        },
    ]
}

/// Sends requests until all are sent or it is over, at most this many.
fn send_all(mut stream: &TcpStream, request: &str, requests: usize, over: &AtomicBool) -> usize {
    const AT_A_TIME: usize = 600;
    let bytes = request.repeat(AT_A_TIME).into_bytes();
    let mut sent = 0;
    while sent < requests && !over.load(Ordering::Relaxed) {
        let now = AT_A_TIME.min(requests - sent);
        if stream.write_all(&bytes[..now * request.len()]).is_err() {
            break;
        }
        sent += now;
    }
    sent
}

/// Reads responses up to this number, or the end; calls `each` with the bytes read. Returns their
/// number.
fn read_all(
    mut stream: &TcpStream,
    status: &str,
    requests: usize,
    mut each: impl FnMut(usize),
) -> usize {
    let begin = format!("HTTP/1.1 {status} ").into_bytes();
    let (mut buffer, mut kept, mut answers) = (vec![0; 256 << 10], Vec::new(), 0);
    while answers < requests
        && let Ok(read @ 1..) = stream.read(&mut buffer)
    {
        each(read);
        kept.extend_from_slice(&buffer[..read]);
        answers += kept.windows(begin.len()).filter(|text| *text == begin).count();
        kept.drain(..kept.len().saturating_sub(begin.len() - 1));
    }
    answers
}

/// Sends this many requests and reads their responses; calls `each` with the bytes read.
fn exchange(stream: &TcpStream, answering: &Answering, requests: usize, each: impl FnMut(usize)) {
    let (sent, answers) = std::thread::scope(|scope| {
        let writer =
            scope.spawn(|| send_all(stream, answering.request, requests, &AtomicBool::new(false)));
        let answers = read_all(stream, answering.status, requests, each);
        (writer.join().expect("stuck"), answers)
    });
    assert_eq!((sent, answers), (requests, requests), "{}", answering.what);
}

fn flood(weir: &Weir, answering: &Answering) {
    let to = if answering.by_tls { bridge(answering.to) } else { answering.to };
    let connect = || {
        let stream = TcpStream::connect(to).expect("it accepts");
        stream.set_read_timeout(Some(DEADLINE)).expect("a socket option");
        stream.set_write_timeout(Some(DEADLINE)).expect("a socket option");
        stream
    };
    // Memory that is needed only once is used before the measurement, including each of the buffers
    // that the kernel fills in turn.
    let first = connect();
    exchange(&first, answering, REQUESTS / 2, |_| ());
    let before = weir.memory();
    let stream = connect();
    let (mut most, mut reads) = (0, 0_u32);
    exchange(&stream, answering, REQUESTS, |_| {
        reads += 1;
        if reads.is_multiple_of(16) {
            most = most.max(weir.memory());
        }
    });
    let held = most.max(weir.memory()).saturating_sub(before);
    assert!(held <= HELD_MAX, "{}: {held} bytes were held of a flood", answering.what);
    drop(stream);
    drop(first);
    eventually("what the flood has cost comes back", || weir.memory() <= before + HELD_MAX / 2);
}

/// Gives every request a response that may be stored.
fn storable(link: &mut Link, _: &Request) -> Result<(), Gone> {
    link.answer(b"HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nContent-Length: 2\r\n\r\nok")
}

fn floods_are_held_back(io: Io) {
    let server = Server::start(storable);
    let scratch = Scratch::new();
    let (kept, down) = refusing();
    for answering in answering(&server, &scratch, down) {
        let weir = Weir::start(io, 1, &answering.config);
        flood(&weir, &answering);
        // A client that does not read is not read either.
        let deaf = TcpStream::connect(answering.to).expect("it accepts");
        if !answering.by_tls {
            let before = weir.memory();
            deaf.set_write_timeout(Some(Duration::from_millis(300))).expect("a socket option");
            let sent = send_all(&deaf, answering.request, REQUESTS * 100, &AtomicBool::new(false));
            assert!(sent < REQUESTS * 100, "weir reads what it can't answer");
            let held = weir.memory().saturating_sub(before);
            assert!(
                held <= HELD_MAX,
                "{}: {held} bytes are held of one that does not read",
                answering.what
            );
        }
        drop(deaf);
        weir.stop();
    }
    drop(kept);
    server.finish();
}

/// Ends connections, even when the test fails, so that threads that read them end.
struct Ending<'a>(&'a [TcpStream]);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }
}

/// Floods from this many connections until `during` is over, which gets the bytes received so far.
fn during_floods<T>(to: SocketAddr, floods: usize, during: impl FnOnce(&AtomicU64) -> T) -> T {
    let (over, got) = (AtomicBool::new(false), AtomicU64::new(0));
    let streams: Vec<TcpStream> =
        (0..floods).map(|_| TcpStream::connect(to).expect("it accepts")).collect();
    std::thread::scope(|scope| {
        for stream in &streams {
            scope.spawn(|| send_all(stream, REQUEST, usize::MAX, &over));
            scope.spawn(|| {
                read_all(stream, "308", usize::MAX, |bytes| {
                    got.fetch_add(bytes as u64, Ordering::Relaxed);
                })
            });
        }
        let _ending = (Stopping(&over), Ending(&streams));
        eventually("the floods are under way", || got.load(Ordering::Relaxed) > 1 << 20);
        during(&got)
    })
}

fn others_are_served_during_floods(io: Io) {
    let scratch = Scratch::new();
    let files = certificate(&scratch, "ec", &["bridge.test"], 30);
    let (tls, other) = (free(), free());
    let config = format!(
        "listen \"{tls}\" {{\n tls {{\n{}}}\n}}\nlisten \"{other}\"\n\
            route {{ redirect \"https://$host$request_uri\"; }}\n",
        files.row()
    );
    let weir = Weir::start(io, 1, &config);
    let ask = |client: &mut Client| {
        client.get("/");
        assert_eq!(client.reply().status, 308);
    };
    let by_tls = bridge(tls);
    let (mut kept, mut kept_by_tls) = (Client::connect(weir.address), Client::connect(by_tls));
    ask(&mut kept);
    ask(&mut kept_by_tls);
    for floods in [2, 24] {
        during_floods(weir.address, floods, |got| {
            let timed = |what: &str, ask: &mut dyn FnMut()| {
                let (before, start) = (got.load(Ordering::Relaxed), Instant::now());
                ask();
                let overtaken = got.load(Ordering::Relaxed) - before;
                let waited = start.elapsed();
                assert!(
                    overtaken <= OVERTAKEN_MAX,
                    "{floods} floods got {overtaken} bytes in {waited:?}, while {what} waited for \
                        one answer"
                );
            };
            for _ in 0..8 {
                timed("a kept connection", &mut || ask(&mut kept));
                timed("a kept connection with TLS", &mut || ask(&mut kept_by_tls));
                timed("a new connection", &mut || ask(&mut Client::connect(other)));
                timed("a handshake", &mut || ask(&mut Client::connect(by_tls)));
            }
        });
    }
    drop((kept, kept_by_tls));
    weir.stop();
}
