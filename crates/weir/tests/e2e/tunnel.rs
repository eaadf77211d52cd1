//! Upgrade: a tunnel only after 101, exact bytes both ways, half-close, and the pool afterwards
//! (docs/hostile.md F1 to F4).

use std::io::Write;
use std::net::Shutdown;

use crate::kit::{
    Behaviour, Client, Gone, Honest, Io, Link, SWITCH, Server, Weir, app, nonce, on_both_drivers,
    pattern,
};
use weir_check::requests::SMUGGLED;
use weir_check::upstreams::check_honest;
use weir_check::{Body, Request};

on_both_drivers!(
    f1_refused_upgrade_then_a_request,
    f2_upgrade_with_a_body,
    f3_h2c_never_passes,
    f4_bytes_both_ways_and_half_close,
    f4_client_ends_first,
    f4_reset_of_one_side_ends_the_other,
    f4_silent_tunnel_ends,
);

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n";
/// Accepts an Upgrade at `/ws` and echoes what comes, with `!` at its end; refuses it elsewhere.
struct Sockets;

impl Behaviour for Sockets {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        if !request.target.starts_with("/ws") || !request.fields.has("upgrade") {
            return link.honest(request);
        }
        link.upgrade(&[SWITCH, b"hello"].concat())?;
        if request.target.starts_with("/ws/rst") {
            link.tunnel();
            return Err(link.rst());
        }
        link.echo()?;
        link.write(b"!")?;
        link.tell("end seen");
        Err(Gone)
    }
}

fn opened(weir: &Weir, target: &str) -> Client {
    let mut client = Client::connect(weir.address);
    client.ask_upgrade();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n{UPGRADE}\r\n").as_bytes());
    let reply = client.reply();
    assert_eq!((reply.status, reply.fields.first("upgrade")), (101, Some("websocket")));
    assert_eq!(client.tunnel(5), b"hello", "bytes behind the 101 are the tunnel's");
    client
}

fn victim(weir: &Weir) {
    let (mut client, nonce) = (Client::connect(weir.address), nonce());
    client.get(&format!("/victim?n={nonce}"));
    check_honest(&nonce, &client.reply()).unwrap();
}

fn f1_refused_upgrade_then_a_request(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    let (mut client, first, second) = (Client::connect(weir.address), nonce(), nonce());
    client.ask_upgrade();
    client.ask("GET", false);
    let two = format!(
        "GET /ws?n={first} HTTP/1.1\r\nHost: a\r\n{UPGRADE}\r\nGET /victim?n={second} HTTP/1.1\r\n\
            Host: a\r\n\r\n"
    );
    client.send(two.as_bytes());
    check_honest(&first, &client.reply()).unwrap();
    check_honest(&second, &client.reply()).unwrap();
    drop(client);
    weir.stop();
    let log = server.finish();
    let targets: Vec<&str> = log.requests.iter().map(|(_, it)| it.nonce()).collect();
    assert_eq!(targets, [first.as_str(), second.as_str()], "both went through as requests");
}

fn f2_upgrade_with_a_body(io: Io) {
    let server = Server::start(Sockets);
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    let length = format!("Content-Length: {}\r\n\r\n{SMUGGLED}", SMUGGLED.len());
    let chunked = format!(
        "Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{SMUGGLED}\r\n0\r\n\r\n",
        SMUGGLED.len()
    );
    for rest in [length, chunked] {
        let (mut client, id) = (Client::connect(weir.address), nonce());
        client.ask("POST", false);
        client.send(format!("POST /ws?n={id} HTTP/1.1\r\nHost: a\r\n{UPGRADE}{rest}").as_bytes());
        let reply = client.reply();
        match reply.status {
            400 => assert!(reply.closes),
            _ => check_honest(&id, &reply).unwrap(),
        }
        victim(&weir);
    }
    weir.stop();
    let log = server.finish();
    assert!(
        log.requests
            .iter()
            .all(|(_, it)| !it.fields.has("upgrade") && !it.target.contains("smuggled"))
    );
}

fn f3_h2c_never_passes(io: Io) {
    // The judge upstream objects to `Upgrade: h2c` and to HTTP2-Settings.
    let server = Server::start(Honest);
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    let forms = [
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
            HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
        "Connection: Upgrade\r\nUpgrade: H2C, websocket\r\n",
        "Connection: upgrade\r\nUpgrade: websocket, h2c\r\n",
        "Upgrade: h2c\r\n",
        "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
    ];
    for fields in forms {
        let (mut client, id) = (Client::connect(weir.address), nonce());
        client.request("GET", &format!("/victim?n={id}"), fields, b"");
        check_honest(&id, &client.reply()).unwrap_or_else(|error| panic!("{fields:?}: {error}"));
    }
    weir.stop();
    server.finish();
}

fn f4_bytes_both_ways_and_half_close(io: Io) {
    let server = Server::start(Sockets);
    let weir = Weir::start(io, 2, &app(&server, 2, ""));
    server.wait("the pool is there", |log| log.accepted == 2);
    let mut client = opened(&weir, "/ws");
    // The pool is whole again while the tunnel lives.
    server.wait("the tunnel's connection is replaced", |log| log.accepted == 3);
    (0..3).for_each(|_| victim(&weir));
    let sent = pattern(20_000_000);
    let expected = Body::of(&sent);
    let mut writer = client.stream();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            writer.write_all(&sent).expect("the tunnel takes it");
            // Half-close: the response must still come back.
            writer.shutdown(Shutdown::Write).expect("open");
        });
        let back = client.tunnel(20_000_001);
        let (mark, echoed) = back.split_last().expect("bytes");
        assert_eq!((Body::of(echoed).sum, *mark), (expected.sum, b'!'));
    });
    client.end();
    victim(&weir);
    drop(client);
    weir.stop();
    server.finish();
}

fn f4_client_ends_first(io: Io) {
    let server = Server::start(Sockets);
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    let mut client = opened(&weir, "/ws");
    client.finish();
    assert_eq!(client.tunnel(1), b"!", "the server saw the end and could still speak");
    client.end();
    // The client leaves without a word; the server still sees an end.
    let client = opened(&weir, "/ws");
    drop(client);
    server.wait("both ends were seen", |log| {
        log.events.iter().filter(|it| *it == "end seen").count() == 2
    });
    victim(&weir);
    weir.stop();
    server.finish();
}

fn f4_reset_of_one_side_ends_the_other(io: Io) {
    let server = Server::start(Sockets);
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    let mut client = opened(&weir, "/ws/rst");
    client.send(b"x");
    client.end();
    let client = opened(&weir, "/ws");
    client.reset();
    server.wait("the server's side ended", |log| log.events.iter().any(|it| it == "end seen"));
    victim(&weir);
    weir.stop();
    server.finish();
}

fn f4_silent_tunnel_ends(io: Io) {
    let server = Server::start(Sockets);
    let weir =
        Weir::start(io, 1, &format!("client tunnel-timeout=\"300ms\"\n{}", app(&server, 1, "")));
    let mut client = opened(&weir, "/ws");
    client.end();
    victim(&weir);
    weir.stop();
    server.finish();
}
