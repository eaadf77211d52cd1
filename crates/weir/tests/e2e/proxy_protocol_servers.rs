//! Proves: connections to the servers of an upstream with `proxy-protocol` begin with the client's
//! addresses, in both versions, even in front of TLS and of tunnels, and carry no other client's
//! requests. Probes are weir's own; weir's listeners and nginx understand the headers; a reload
//! changes them. How: the real binary, and a program in front of servers that reads a header and
//! keeps it. docs/proxy-protocol.md#to-servers.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use crate::kit::http2::Http2Client;
use crate::kit::tls_servers::{Front, ca, serving, signed};
use crate::kit::unix::to_unix;
use crate::kit::{
    Client, Gone, Honest, Io, Link, Nginx, SWITCH, Scratch, Server, Weir, bounded, eventually,
    free_port, nonce, on_both_drivers, pattern,
};
use weir_check::Request;
use weir_check::upstreams::check_honest;

on_both_drivers!(
    servers_are_told_who_asks,
    a_proxy_speaks_for_several,
    who_has_no_address_is_unknown,
    in_front_of_tls,
    tunnels_begin_so_too,
    probes_are_weirs_own,
    a_weir_behind_it_agrees,
    nginx_behind_it_agrees,
    streams_come_with_http1,
    a_reload_changes_it,
);

/// Another client.
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Reads a header in front of a server, and passes on the bytes behind it.
struct Reader {
    address: SocketAddr,
    headers: Arc<Mutex<Vec<String>>>,
}

impl Reader {
    fn start(to: SocketAddr) -> Reader {
        let listener = TcpListener::bind(("127.0.0.1", free_port())).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let headers = Arc::<Mutex<Vec<String>>>::default();
        let reader = Reader { address, headers: Arc::clone(&headers) };
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let headers = Arc::clone(&headers);
                std::thread::spawn(move || pass_on(&near, to, &headers));
            }
        });
        reader
    }

    /// Returns the headers of connections so far.
    fn headers(&self) -> Vec<String> {
        self.headers.lock().expect("no panic").clone()
    }
}

fn pass_on(near: &TcpStream, to: SocketAddr, headers: &Mutex<Vec<String>>) {
    bounded(near);
    // A connection that ends at once has no header.
    let Some(header) = header_of(near) else { return };
    headers.lock().expect("no panic").push(header);
    let Ok(far) = TcpStream::connect(to) else { return };
    let (mut from, mut into) =
        (near.try_clone().expect("a descriptor"), far.try_clone().expect("a descriptor"));
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut into);
        let _ = into.shutdown(Shutdown::Write);
    });
    let _ = std::io::copy(&mut &far, &mut &*near);
    let _ = near.shutdown(Shutdown::Write);
}

/// Returns a header as text: a line of version 1 as it is, one of version 2 with its command in the
/// same words.
fn header_of(mut stream: &TcpStream) -> Option<String> {
    let mut bytes = vec![0; 12];
    stream.read_exact(&mut bytes).ok()?;
    if bytes != b"\r\n\r\n\0\r\nQUIT\n" {
        while !bytes.ends_with(b"\r\n") {
            let mut one = [0];
            stream.read_exact(&mut one).expect("a whole line");
            bytes.extend(one);
        }
        return Some(String::from_utf8(bytes).expect("text").trim_end().to_owned());
    }
    let mut fixed = [0; 4];
    stream.read_exact(&mut fixed).expect("a whole header");
    let mut rest = vec![0; usize::from(u16::from_be_bytes([fixed[2], fixed[3]]))];
    stream.read_exact(&mut rest).expect("a whole header");
    let port = |at: usize| u16::from_be_bytes([rest[at], rest[at + 1]]);
    let v4 =
        |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&rest[at..at + 4]).expect("four bytes"));
    let v6 = |at: usize| {
        Ipv6Addr::from(<[u8; 16]>::try_from(&rest[at..at + 16]).expect("sixteen bytes"))
    };
    Some(match (fixed[0], fixed[1], rest.len()) {
        (0x20, 0x00, 0) => "LOCAL".to_owned(),
        (0x21, 0x00, 0) => "PROXY UNKNOWN".to_owned(),
        (0x21, 0x11, 12) => format!("PROXY TCP4 {} {} {} {}", v4(0), v4(4), port(8), port(10)),
        (0x21, 0x21, 36) => format!("PROXY TCP6 {} {} {} {}", v6(0), v6(16), port(32), port(34)),
        other => panic!("no header: {other:?} {rest:?}"),
    })
}

/// Returns an upstream `app` of this server whose connections begin like this, and the route to it.
fn told(version: &str, server: SocketAddr, more: &str) -> String {
    let option = if version.is_empty() {
        "pool pinned".to_owned()
    } else {
        format!("proxy-protocol \"{version}\"")
    };
    format!(
        "upstream \"app\" {{ {option}; server \"{server}\"; {more} }}\nroute {{ proxy \"app\"; }}\n"
    )
}

fn is_served(client: &mut Client) {
    asks(client, "");
}

/// Checks that a request with these field lines gets a good response.
fn asks(client: &mut Client, fields: &str) {
    let nonce = nonce();
    client.request("GET", &format!("/?n={nonce}"), fields, b"");
    check_honest(&nonce, &client.reply()).unwrap();
}

/// Returns the header for a client that connects directly.
fn of(from: IpAddr, client: &Client, weir: SocketAddr) -> String {
    format!("PROXY TCP4 {from} {} {} {}", weir.ip(), client.port(), weir.port())
}

fn servers_are_told_who_asks(io: Io) {
    for version in ["v1", "v2"] {
        let server = Server::start(Honest);
        let reader = Reader::start(server.address);
        let weir = Weir::start(io, 2, &told(version, reader.address, ""));
        let mut expected = Vec::new();
        for from in [Ipv4Addr::LOCALHOST.into(), OTHER, OTHER] {
            let mut client = Client::connect_from(from, weir.address);
            for _ in 0..3 {
                is_served(&mut client);
            }
            expected.push(of(from, &client, weir.address));
        }
        assert_eq!(reader.headers(), expected, "one connection each");
        let weir_address = weir.address;
        weir.rewrite(&told(version, reader.address, "pool per-request"));
        weir.answer(&["reload"]);
        let mut client = Client::connect_from(OTHER, weir_address);
        for _ in 0..2 {
            is_served(&mut client);
            expected.push(of(OTHER, &client, weir_address));
        }
        assert_eq!(reader.headers(), expected, "one connection for each request");
        drop(client);
        weir.stop();
        assert_eq!(server.finish().requests.len(), 11);
    }
}

fn a_proxy_speaks_for_several(io: Io) {
    let server = Server::start(Honest);
    let reader = Reader::start(server.address);
    let client_block = "client { trusted-proxies \"127.0.0.1\"; }\n";
    let weir = Weir::start(io, 1, &format!("{client_block}{}", told("v1", reader.address, "")));
    let port = weir.address.port();
    let mut client = Client::connect(weir.address);
    for field in ["198.51.100.1", "198.51.100.1", "203.0.113.9, 198.51.100.2:4711", "2001:db8::7"] {
        asks(&mut client, &format!("X-Forwarded-For: {field}\r\n"));
    }
    is_served(&mut client);
    let expected = [
        format!("PROXY TCP4 198.51.100.1 127.0.0.1 0 {port}"),
        format!("PROXY TCP4 198.51.100.2 127.0.0.1 4711 {port}"),
        // Both in one family, in hexadecimal digits.
        format!("PROXY TCP6 2001:db8::7 ::ffff:7f00:1 0 {port}"),
        of(Ipv4Addr::LOCALHOST.into(), &client, weir.address),
    ];
    assert_eq!(reader.headers(), expected);
    drop(client);
    weir.stop();
    server.finish();
}

fn who_has_no_address_is_unknown(io: Io) {
    for (version, trusted) in [("v1", false), ("v2", false), ("v2", true)] {
        let (server, scratch) = (Server::start(Honest), Scratch::new());
        let reader = Reader::start(server.address);
        let path = scratch.path("socket");
        let trust = if trusted { "client { trusted-proxies \"unix:\"; }\n" } else { "" };
        let listen = format!("listen \"unix:{}\"\n{trust}", path.display());
        let weir = Weir::start(io, 1, &format!("{listen}{}", told(version, reader.address, "")));
        let mut client = Client::connect(to_unix(&path, b""));
        is_served(&mut client);
        asks(&mut client, "X-Forwarded-For: 198.51.100.1\r\n");
        let mut expected = vec!["PROXY UNKNOWN"];
        if trusted {
            expected.push("PROXY TCP4 198.51.100.1 0.0.0.0 0 0");
        }
        assert_eq!(reader.headers(), expected);
        drop(client);
        weir.stop();
        server.finish();
    }
}

fn in_front_of_tls(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let ca = ca(&scratch, "ca");
    let front = Front::start(
        server.address,
        serving(&signed(&scratch, &ca, "leaf", "IP:127.0.0.1", 9), None),
    );
    for version in ["v1", "v2"] {
        let reader = Reader::start(front.address);
        let tls = format!("tls ca=\"{}\"", ca.certificate.display());
        let health = "health path=\"/health\" interval=\"100ms\"";
        let weir = Weir::start(io, 2, &told(version, reader.address, &format!("{tls}; {health}")));
        let mut client = Client::connect_from(OTHER, weir.address);
        is_served(&mut client);
        is_served(&mut client);
        let own = if version == "v1" { "PROXY UNKNOWN" } else { "LOCAL" };
        let expected = of(OTHER, &client, weir.address);
        assert_eq!(reader.headers().iter().filter(|header| **header == expected).count(), 1);
        eventually("probes", || {
            reader.headers().iter().filter(|header| *header == own).count() > 1
        });
        drop(client);
        weir.stop();
        assert!(reader.headers().iter().all(|header| *header == expected || header == own));
    }
    server.kill();
}

fn tunnels_begin_so_too(io: Io) {
    let switch = |link: &mut Link, _: &Request| -> Result<(), Gone> {
        link.upgrade(SWITCH)?;
        link.echo()
    };
    let server = Server::start(switch);
    let reader = Reader::start(server.address);
    let weir = Weir::start(io, 2, &told("v2", reader.address, ""));
    let mut client = Client::connect_from(OTHER, weir.address);
    client.ask_upgrade();
    let fields = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n";
    client.send(format!("GET /ws HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes());
    assert_eq!(client.reply().status, 101);
    let sent = pattern(300_000);
    let (mut writer, bytes) = (client.stream(), sent.clone());
    let writing =
        std::thread::spawn(move || writer.write_all(&bytes).expect("the tunnel takes it"));
    assert!(client.tunnel(sent.len()) == sent, "what comes back is what was sent");
    writing.join().expect("no panic");
    assert_eq!(reader.headers(), [of(OTHER, &client, weir.address)]);
    drop(client);
    weir.stop();
    server.kill();
}

fn probes_are_weirs_own(io: Io) {
    for (version, own) in [("v1", "PROXY UNKNOWN"), ("v2", "LOCAL")] {
        let server = Server::start(Honest);
        let reader = Reader::start(server.address);
        let health = "health path=\"/health\" interval=\"100ms\"";
        let weir = Weir::start(io, 2, &told(version, reader.address, health));
        server.wait("probes", |log| log.requests.len() > 1);
        assert!(reader.headers().iter().all(|header| header == own), "{:?}", reader.headers());
        weir.stop();
        server.kill();
    }
}

/// Through a second weir, whose listener accepts headers, to a server that gets a header again: it
/// has the same client and destination.
fn a_weir_behind_it_agrees(io: Io) {
    let server = Server::start(Honest);
    let reader = Reader::start(server.address);
    let second = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let behind = format!(
        "listen \"{second}\" proxy-protocol=#true\nclient {{ trusted-proxies \"127.0.0.1\"; }}\n\
         upstream \"app\" {{ proxy-protocol v1; server \"{}\"; }}\n\
         route {{ request {{ set \"X-Who\" \"$remote_addr\"; }}; proxy \"app\"; }}\n",
        reader.address
    );
    let behind = Weir::start(io, 2, &behind);
    for version in ["v1", "v2"] {
        let weir = Weir::start(
            io,
            2,
            &format!(
                "via-name \"first\"\n{}",
                told(version, second, "health path=\"/health\" interval=\"100ms\"")
            ),
        );
        let mut client = Client::connect_from(OTHER, weir.address);
        is_served(&mut client);
        is_served(&mut client);
        let expected = of(OTHER, &client, weir.address);
        assert_eq!(
            reader.headers().iter().filter(|header| **header == expected).count(),
            1,
            "{:?}",
            reader.headers()
        );
        drop(client);
        weir.stop();
    }
    behind.stop();
    let log = server.finish();
    let asked = log.requests.iter().filter(|(_, request)| request.target != "/health");
    let who: Vec<_> =
        asked.map(|(_, request)| request.fields.first("x-who").unwrap_or_default()).collect();
    assert_eq!(who, ["127.0.0.2"; 4]);
}

fn nginx_behind_it_agrees(io: Io) {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let text = "$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_addr \
        $proxy_protocol_server_port";
    let _nginx = Nginx::start(
        &[],
        &format!("listen {address} proxy_protocol; location / {{ return 200 \"{text}\"; }}"),
    );
    for version in ["v1", "v2"] {
        let weir =
            Weir::start(io, 1, &told(version, address, "health path=\"/\" expect-body=\" \""));
        let client = Client::connect_from(OTHER, weir.address);
        let mut stream = client.stream();
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            .expect("weir reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("weir answers");
        let expected = format!("127.0.0.2 {} 127.0.0.1 {}", client.port(), weir.address.port());
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(&expected), "{answer}");
        eventually("a good probe", || {
            let status = crate::kit::status(&weir);
            let totals = &status["totals"];
            totals["probes"].as_u64() > totals["probe_failures"].as_u64()
        });
        weir.stop();
    }
}

/// Streams of one connection cannot share such connections: the client should return with HTTP/1.1.
fn streams_come_with_http1(io: Io) {
    let server = Server::start(Honest);
    let reader = Reader::start(server.address);
    let listener = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let listen = format!("listen \"{listener}\" protocols=\"h2c\"\n");
    let weir = Weir::start(io, 1, &format!("{listen}{}", told("v2", reader.address, "")));
    let mut client = Http2Client::connect(listener, &[]);
    let stream = client.get("/");
    assert_eq!(client.answer(stream).reset, Some(13), "HTTP_1_1_REQUIRED");
    assert_eq!(reader.headers(), [""; 0]);
    weir.stop();
    server.finish();
}

fn a_reload_changes_it(io: Io) {
    let server = Server::start(Honest);
    let reader = Reader::start(server.address);
    let weir = Weir::start(io, 2, &told("v1", reader.address, ""));
    let mut client = Client::connect(weir.address);
    is_served(&mut client);
    let expected = of(Ipv4Addr::LOCALHOST.into(), &client, weir.address);
    for version in ["v2", "v1"] {
        weir.rewrite(&told(version, reader.address, ""));
        weir.answer(&["reload"]);
        is_served(&mut client);
        is_served(&mut client);
    }
    // The earlier connection still exists, and would repeat its header.
    assert_eq!(reader.headers(), vec![expected; 2]);
    // Without it weir itself is the client of the server.
    weir.rewrite(&told("", server.address, ""));
    weir.answer(&["reload"]);
    is_served(&mut client);
    assert_eq!(reader.headers().len(), 2);
    drop(client);
    weir.stop();
    assert_eq!(server.finish().requests.len(), 6);
}
