//! Proves: a load balancer in front names the client of a connection by the PROXY protocol, in both
//! versions, however its header is split, even in front of TLS. Other clients, and other first
//! bytes, get nothing; a reload changes that for later connections. How: the real binary, headers
//! byte by byte, and what the server and the access log see.
//! docs/proxy-protocol.md#from-load-balancers-in-front-of-weir.

use std::net::{IpAddr, SocketAddr, TcpStream};

use crate::kit::tls::{bridge_behind, certificate};
use crate::kit::{
    Client, Honest, Io, Scratch, Server, Weir, eventually, free_port, nonce, on_both_drivers,
};

on_both_drivers!(
    balancers_say_who_asks,
    c11_nobody_else_does,
    in_front_of_tls,
    a_reload_changes_it
);

/// A balancer that weir trusts.
const BALANCER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

const TEXT: &[u8] = b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n";

/// Returns the same in version 2, for 2001:db8::7 and port 4712, with more data behind the
/// addresses.
fn binary() -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x28".to_vec();
    header.extend([0x20, 1, 13, 184, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    header.extend([0; 16]);
    header.extend([18, 104, 1, 187]);
    header.extend([4, 0, 1, 0]);
    header
}

/// A health check by the balancer itself.
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

/// Returns the configuration of a listener on this address besides the usual one, to a server.
fn behind(listener: SocketAddr, options: &str, server: &Server, log: &str) -> String {
    format!(
        "listen \"{listener}\" {{ {options} }}\n{log}client {{ trusted-proxies \"127.0.0.1\"; }}\n\
         upstream \"app\" {{ server \"{}\"; }}\n\
         route {{ request {{ set \"X-Who\" \"$remote_addr\"; }}; proxy \"app\"; }}\n",
        server.address
    )
}

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

/// Returns what a server learned about its clients.
fn told(server: Server) -> Vec<(String, String)> {
    let requests = server.finish().requests.into_iter().map(|(_, request)| request);
    let first = |request: &weir_check::Request, name| {
        request.fields.first(name).unwrap_or_default().to_owned()
    };
    requests.map(|request| (first(&request, "x-who"), first(&request, "x-forwarded-for"))).collect()
}

fn get() -> Vec<u8> {
    format!("GET /?n={} HTTP/1.1\r\nHost: a\r\n\r\n", nonce()).into_bytes()
}

fn balancers_say_who_asks(io: Io) {
    let (server, listener, scratch) = (Server::start(Honest), address(), Scratch::new());
    let log = scratch.path("access.log");
    let format =
        format!("access-log \"{}\" format=\"$remote_addr $remote_port $status\"\n", log.display());
    let weir = Weir::start(io, 2, &behind(listener, "proxy-protocol #true", &server, &format));
    for header in [TEXT.to_vec(), binary(), LOCAL.to_vec()] {
        // With the request in one piece; split within the header; split at its end.
        for cut in [0, 5, header.len() - 1, header.len()] {
            let mut client = Client::connect_from(BALANCER, listener);
            client.ask("GET", false);
            client.send(&header[..cut]);
            client.send(&[&header[cut..], &get()].concat());
            assert_eq!(client.reply().status, 200);
            client.get(&format!("/?n={}", nonce()));
            assert_eq!(client.reply().status, 200);
        }
    }
    weir.stop();
    let lines = std::fs::read_to_string(&log).expect("a log");
    let seen = |start: &str| {
        lines.lines().filter(|line| line.starts_with(start) && line.ends_with(" 200")).count()
    };
    assert_eq!(
        [seen("192.0.2.7 4711 "), seen("2001:db8::7 4712 "), seen("127.0.0.1 ")],
        [8, 8, 8],
        "{lines}"
    );
    let told = told(server);
    for (who, count) in [("192.0.2.7", 8), ("2001:db8::7", 8), ("127.0.0.1", 8)] {
        let pair = (who.to_owned(), who.to_owned());
        assert_eq!(told.iter().filter(|other| **other == pair).count(), count, "{who}");
    }
}

fn c11_nobody_else_does(io: Io) {
    let (server, listener) = (Server::start(Honest), address());
    let weir = Weir::start(io, 1, &behind(listener, "proxy-protocol #true", &server, ""));
    let refused = [
        (BALANCER, get()),
        (BALANCER, b"PROXY TCP4 192.0.2.7 198.51.100.1 4711\r\n".to_vec()),
        (BALANCER, b"\x16\x03\x01\x02\x00\x01".to_vec()),
        ([127, 0, 0, 2].into(), [TEXT, &get()].concat()),
    ];
    let count = refused.len();
    for (from, bytes) in refused {
        let mut client = Client::connect_from(from, listener);
        client.ask("GET", false);
        client.try_send(&bytes);
        assert_eq!(client.try_reply(), None);
    }
    // A client that leaves in the middle of a header, and a silent one, do not block others.
    let silent = TcpStream::connect(listener).expect("weir accepts");
    let mut client = Client::connect_from(BALANCER, listener);
    client.send(&TEXT[..9]);
    drop(client);
    let mut client = Client::connect_from(BALANCER, listener);
    client.ask("GET", false);
    client.send(&[TEXT, &get()].concat());
    assert_eq!(client.reply().status, 200);
    // The second listener has no balancer: there a header is not a request.
    let mut client = Client::connect(weir.address);
    client.ask("GET", false);
    client.send(&[TEXT, &get()].concat());
    assert_eq!(client.reply().status, 400);
    eventually("refusals are counted", || {
        let status: serde_json::Value =
            serde_json::from_str(&weir.answer(&["status", "--json"])).expect("JSON");
        status["totals"]["clients_unannounced"] == count
    });
    drop(silent);
    weir.stop();
    assert_eq!(told(server).len(), 1);
}

fn in_front_of_tls(io: Io) {
    let (server, listener, scratch) = (Server::start(Honest), address(), Scratch::new());
    let files = certificate(&scratch, "ec", &["a"], 30);
    let options = format!("proxy-protocol #true; tls {{ {} }}", files.row().trim_end());
    let weir = Weir::start(io, 2, &behind(listener, &options, &server, ""));
    for header in [TEXT.to_vec(), binary()] {
        let mut client = Client::connect(bridge_behind(listener, header));
        client.get(&format!("/?n={}", nonce()));
        assert_eq!(client.reply().status, 200);
    }
    weir.stop();
    let told = told(server);
    let who: Vec<_> = told.iter().map(|(who, _)| who.as_str()).collect();
    assert_eq!(who, ["192.0.2.7", "2001:db8::7"]);
}

fn a_reload_changes_it(io: Io) {
    let (server, listener) = (Server::start(Honest), address());
    let weir = Weir::start(io, 2, &behind(listener, "", &server, ""));
    let mut before = Client::connect_from(BALANCER, listener);
    let ask = |client: &mut Client, header: &[u8]| {
        client.ask("GET", false);
        client.send(&[header, &get()].concat());
        client.reply().status
    };
    assert_eq!(ask(&mut before, b""), 200);
    for (options, header) in
        [("proxy-protocol #true", TEXT), ("", b""), ("proxy-protocol #true", TEXT)]
    {
        weir.rewrite(&behind(listener, options, &server, ""));
        weir.answer(&["reload"]);
        assert_eq!(ask(&mut Client::connect_from(BALANCER, listener), header), 200);
        assert_eq!(ask(&mut before, b""), 200);
    }
    weir.stop();
    let who: Vec<_> = told(server).into_iter().map(|(who, _)| who).collect();
    assert_eq!(who.iter().filter(|who| *who == "192.0.2.7").count(), 2, "{who:?}");
}
