//! Proves: clients get compressed responses that they can decode to the same bytes, by each coding
//! and by every version of HTTP; an encoder does not delay a server's data; a truncated response is
//! recognizable as such; clients that read slowly or leave do not affect others. How: curl, which
//! decodes with independent libraries, and clients that check single bytes. docs/compression.md.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::kit::{
    Behaviour, Client, Gone, Io, Link, Scratch, Server, Weir, bounded, free_port, on_both_drivers,
    run,
};
use weir_check::Request;

on_both_drivers!(
    programs_decode_it,
    what_stays_as_it_is,
    events_leave_as_they_come,
    others_are_served_while_a_large_one_is_encoded,
    memory_is_bounded,
    a_server_that_dies_is_seen,
    who_is_slow_or_leaves_harms_nobody,
);

/// Returns text that can be compressed, but not to nothing.
fn text(bytes: usize) -> Vec<u8> {
    let words = (0_u32..).flat_map(|n| {
        format!("line {n}: {:08x} and the rest\n", n.wrapping_mul(2_654_435_761)).into_bytes()
    });
    words.take(bytes).collect()
}

const LARGE: usize = 2_000_000;

/// Texts of all kinds, by the first letters of the path.
struct Texts;

impl Behaviour for Texts {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        let (head, body) = match &request.target {
            path if path.starts_with("/small") => ("text/plain", text(100)),
            path if path.starts_with("/image") => ("image/png", text(5000)),
            _ => ("text/html; charset=utf-8\r\nETag: \"a\"\r\nAccept-Ranges: bytes", text(LARGE)),
        };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {head}\r\n");
        if request.target.starts_with("/chunks") {
            link.write(format!("{head}Transfer-Encoding: chunked\r\n\r\n").as_bytes())?;
            for chunk in body.chunks(7_001) {
                link.write(
                    &[format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat(),
                )?;
            }
            return link.answer(b"0\r\n\r\n");
        }
        if request.target.starts_with("/dies") {
            link.write(format!("{head}Content-Length: {LARGE}\r\n\r\n").as_bytes())?;
            link.write(&body[..LARGE / 2])?;
            link.fin();
            return Err(Gone);
        }
        let body = if request.method == "HEAD" { &b""[..] } else { &body };
        let length = if request.method == "HEAD" { LARGE } else { body.len() };
        link.answer(&[format!("{head}Content-Length: {length}\r\n\r\n").as_bytes(), body].concat())
    }
}

/// Starts weir in front of it, with compression. Returns it with an address that also has HTTP/2.
fn start(io: Io, server: &Server) -> (Weir, SocketAddr) {
    let both = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let text = format!(
        "listen \"{both}\" {{ protocols \"h2c\" \"http/1.1\" }}\n\
            upstream \"app\" {{ server \"{}\"; }}\nroute {{ compress; proxy \"app\"; }}\n",
        server.address
    );
    (Weir::start(io, 2, &text), both)
}

/// Returns a count of the status.
fn total(weir: &Weir, name: &str) -> u64 {
    let status: serde_json::Value =
        serde_json::from_str(&weir.answer(&["status", "--json"])).expect("JSON");
    status["totals"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {}", status["totals"]))
}

const VERSIONS: [&str; 3] = ["--http2-prior-knowledge", "--http1.1", "--http1.0"];

/// Returns curl's report on a response that it has decoded into `got`, and whether it succeeded.
fn curl(version: &str, coding: &str, got: &str, url: &str) -> (String, bool) {
    let accept = format!("Accept-Encoding: {coding}");
    let told = "%{http_code} %header{content-encoding} %header{etag} %header{vary} \
        %header{content-length} %header{accept-ranges} %{size_download}";
    let fixed = [
        "-sS",
        "--noproxy",
        "*",
        "--compressed",
        version,
        "-H",
        &accept,
        "-o",
        got,
        "-w",
        told,
        url,
    ];
    let output = run("curl", &fixed);
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success())
}

fn programs_decode_it(io: Io) {
    let (server, scratch) = (Server::start(Texts), Scratch::new());
    let (weir, both) = start(io, &server);
    let got = scratch.path("got");
    let mut asked = 0;
    for version in VERSIONS {
        for coding in ["zstd", "br", "gzip"] {
            for path in ["large", "chunks"] {
                let (told, fine) = curl(
                    version,
                    coding,
                    got.to_str().expect("text"),
                    &format!("http://{both}/{path}"),
                );
                assert!(
                    fine && told.starts_with(&format!("200 {coding} W/\"a\" Accept-Encoding   ")),
                    "{version}: {told}"
                );
                assert!(
                    std::fs::read(&got).expect("a file") == text(LARGE),
                    "{version} {coding} {path}"
                );
                asked += LARGE as u64;
            }
        }
    }
    assert_eq!(total(&weir, "compression_bytes_in"), asked);
    assert!(total(&weir, "compressions_elsewhere") > 0 && total(&weir, "compressions_away") == 0);
    assert!((asked / 20..asked / 2).contains(&total(&weir, "compression_bytes_out")));
    weir.stop();
    server.finish();
}

fn what_stays_as_it_is(io: Io) {
    let (server, scratch) = (Server::start(Texts), Scratch::new());
    let (weir, both) = start(io, &server);
    let got = scratch.path("got");
    for version in VERSIONS {
        for (path, coding, expected) in [
            ("small", "gzip", "200    100  100"),
            ("image", "gzip", "200    5000  5000"),
            ("large", "identity", "200  \"a\" Accept-Encoding 2000000 bytes 2000000"),
            (
                "large",
                "gzip;q=0, br;q=nonsense",
                "200  \"a\" Accept-Encoding 2000000 bytes 2000000",
            ),
        ] {
            let (told, fine) = curl(
                version,
                coding,
                got.to_str().expect("text"),
                &format!("http://{both}/{path}"),
            );
            assert!(fine, "{version} {path}");
            assert_eq!(told, expected, "{version} {path}");
        }
    }
    let mut client = Client::connect(weir.address);
    client.request("HEAD", "/large", "Accept-Encoding: gzip\r\n", b"");
    let reply = client.reply();
    assert_eq!(
        (reply.status, reply.fields.all("content-encoding"), reply.fields.all("etag")),
        (200, vec!["gzip"], vec!["W/\"a\""])
    );
    assert!(!reply.fields.has("content-length") && !reply.fields.has("accept-ranges"));
    assert_eq!(total(&weir, "compression_bytes_in"), 0);
    weir.stop();
    server.finish();
}

/// Two events, the second one on a signal.
struct Events;

impl Behaviour for Events {
    fn on_request(&self, link: &mut Link, _: &Request) -> Result<(), Gone> {
        link.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
            Transfer-Encoding: chunked\r\n\r\n",
        )?;
        link.write(b"9\r\ndata: 1\n\n\r\n")?;
        link.await_event("go")?;
        link.answer(b"9\r\ndata: 2\n\n\r\n0\r\n\r\n")
    }
}

fn events_leave_as_they_come(io: Io) {
    let server = Server::start(Events);
    let (weir, _) = start(io, &server);
    let mut stream = TcpStream::connect(weir.address).expect("a connection");
    bounded(&stream);
    // With HTTP/1.0 the body has no framing, so it goes into a decoder as it comes.
    stream.write_all(b"GET / HTTP/1.0\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n").expect("sent");
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head).expect("a line");
    }
    assert!(head.contains("\r\nContent-Encoding: gzip\r\n"), "{head}");
    let mut decoder = flate2::bufread::GzDecoder::new(reader);
    let mut event = [0; 9];
    decoder.read_exact(&mut event).expect("the first, before the second is there");
    assert_eq!(&event, b"data: 1\n\n");
    server.tell("go");
    decoder.read_exact(&mut event).expect("the second");
    assert_eq!((&event, decoder.read(&mut [0]).expect("an end")), (b"data: 2\n\n", 0));
    weir.stop();
    server.finish();
}

/// A large response, which ends on a signal, and small ones.
struct Held;

impl Behaviour for Held {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n";
        let body = text(if request.target == "/huge" { HUGE } else { 5000 });
        link.write(format!("{head}Content-Length: {}\r\n\r\n", body.len()).as_bytes())?;
        let (first, rest) = body.split_at(body.len() - 1000);
        link.write(first)?;
        if request.target == "/huge" {
            link.await_event("go")?;
        }
        link.answer(rest)
    }
}

const HUGE: usize = 6_000_000;

/// The small response is complete before the large one can be, which a separate thread encodes.
fn others_are_served_while_a_large_one_is_encoded(io: Io) {
    for coding in ["zstd", "br", "gzip"] {
        let (server, scratch) = (Server::start(Held), Scratch::new());
        let (weir, both) = start(io, &server);
        let got = scratch.path("got");
        let path = got.to_str().expect("text");
        let (told, fine) = std::thread::scope(|scope| {
            let large =
                scope.spawn(|| curl("--http1.1", coding, path, &format!("http://{both}/huge")));
            server.wait("the large one", |log| !log.requests.is_empty());
            let mut small = Client::connect(both);
            small.request("GET", "/small", &format!("Accept-Encoding: {coding}\r\n"), b"");
            assert_eq!(small.reply().fields.all("content-encoding"), [coding]);
            server.tell("go");
            large.join().expect("curl")
        });
        assert!(fine && told.starts_with(&format!("200 {coding} ")), "{told}");
        assert!(std::fs::read(&got).expect("a file") == text(HUGE), "{coding}");
        assert!(total(&weir, "compressions_elsewhere") > 0);
        weir.stop();
        server.finish();
    }
}

fn memory_is_bounded(io: Io) {
    let server = Server::start(Events);
    let text = format!(
        "client {{ compress-memory \"500KiB\"; }}\nupstream \"app\" {{ server \"{}\"; }}\n\
            route {{ compress; proxy \"app\"; }}\n",
        server.address
    );
    // An encoder of gzip has four fifths of that.
    let weir = Weir::start(io, 1, &text);
    let ask = || {
        let mut client = Client::connect(weir.address);
        client.request("GET", "/", "Accept-Encoding: gzip\r\n", b"");
        client
    };
    let mut first = ask();
    first.beginning(1);
    let mut second = ask();
    second.beginning(1);
    server.tell("go");
    assert_eq!(first.reply().fields.all("content-encoding"), ["gzip"]);
    let plain = second.reply();
    assert_eq!((plain.fields.has("content-encoding"), plain.body.length), (false, 18), "{plain:?}");
    assert_eq!(ask().reply().fields.all("content-encoding"), ["gzip"], "the first has made room");
    let passed: serde_json::Value =
        serde_json::from_str(&weir.answer(&["status", "--json"])).expect("JSON");
    assert_eq!(passed["totals"]["compression_passed"]["busy"], 1, "{passed}");
    weir.stop();
    server.finish();
}

fn a_server_that_dies_is_seen(io: Io) {
    let (server, scratch) = (Server::start(Texts), Scratch::new());
    let (weir, both) = start(io, &server);
    for version in VERSIONS {
        for coding in ["zstd", "br", "gzip"] {
            let got = scratch.path("got");
            // Another target each time: one that a server dies of again and again is rejected.
            let url = format!("http://{both}/dies{version}-{coding}");
            let (told, fine) = curl(version, coding, got.to_str().expect("text"), &url);
            assert!(!fine && told.starts_with("200 "), "{version} {coding}: {told}");
        }
    }
    weir.stop();
    server.finish();
}

fn who_is_slow_or_leaves_harms_nobody(io: Io) {
    let (server, scratch) = (Server::start(Texts), Scratch::new());
    let (weir, both) = start(io, &server);
    let ask = || {
        let mut client = Client::connect(weir.address);
        client.shrink_window(4096);
        client.request("GET", "/large", "Accept-Encoding: gzip\r\n", b"");
        client.beginning(1);
        client
    };
    let (slow, gone) = (ask(), ask());
    gone.reset();
    let got = scratch.path("got");
    for version in VERSIONS {
        let (told, fine) =
            curl(version, "br", got.to_str().expect("text"), &format!("http://{both}/large"));
        assert!(fine && told.starts_with("200 br "), "{version}: {told}");
        assert!(std::fs::read(&got).expect("a file") == text(LARGE), "{version}");
    }
    // The slow client also gets all of its response.
    let mut rest = slow;
    assert_eq!(rest.reply().fields.all("content-encoding"), ["gzip"]);
    weir.stop();
    server.finish();
}
