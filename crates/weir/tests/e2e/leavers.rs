//! Clients that leave while their server is silent: the server hears of it, however client and
//! response look, and no other client waits (docs/retries.md). How: a server whose responses
//! never end, which reports when weir has ended its connection.

use std::time::{Duration, Instant};

use crate::kit::http2::{Http2Client, RST_STREAM};
use crate::kit::{
    Client, Gone, Io, Link, Server, Weir, app, eventually, free_port, on_both_drivers,
};
use weir_check::Request;
use weir_check::streams::{frame, kind};

on_both_drivers!(
    a_server_hears_that_a_client_has_left,
    a_server_hears_that_a_stream_or_its_connection_has_ended,
    a_client_that_is_not_read_is_seen_to_leave,
    many_that_leave_hold_up_nobody,
    a_half_closed_client_is_answered_if_it_is_to_be,
);

/// No timeout as long as this is the reason for anything here.
const PATIENT: &str = "forward-timeout \"1h\"";

/// Begins the responses that targets name and never ends them; responds to other requests at once.
fn serve(link: &mut Link, request: &Request) -> Result<(), Gone> {
    let target = request.target.clone();
    let beginning: &[u8] = match target.split('?').next().unwrap_or_default() {
        "/poll" => b"",
        "/events" => {
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\
                \r\n3\r\none\r\n"
        }
        "/large" => b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\nabc",
        _ => return link.honest(request),
    };
    link.write(beginning)?;
    link.tell(&format!("asked {target}"));
    let late = link.until_closed();
    late.iter().for_each(|late| link.tell(&format!("behind {}", late.target)));
    link.tell(&format!("told {target}"));
    Err(Gone)
}

fn await_event(server: &Server, event: &str) {
    server.wait(event, |log| log.events.iter().any(|it| it == event));
}

/// Configures an upstream with as many connections as there must be, and the route to it.
fn upstream(server: &Server, connections_max: u32) -> String {
    format!(
        "upstream \"app\" {{\n server \"{}\" connections-max={connections_max} connections=8\n \
            {PATIENT}\n}}\nroute {{ proxy \"app\" }}\n",
        server.address
    )
}

fn a_server_hears_that_a_client_has_left(io: Io) {
    let server = Server::start(serve);
    let weir = Weir::start(io, 2, &upstream(&server, 1024));
    let mut number = 0;
    for kind in ["poll", "events", "large"] {
        for fields in ["", "Connection: close\r\n"] {
            for resets in [false, true] {
                number += 1;
                let (mut client, target) =
                    (Client::connect(weir.address), format!("/{kind}?n={number:08}"));
                client.request("GET", &target, fields, b"");
                await_event(&server, &format!("asked {target}"));
                if kind != "poll" {
                    client.beginning(1);
                }
                if resets {
                    client.reset();
                } else {
                    drop(client);
                }
                await_event(&server, &format!("told {target}"));
            }
        }
    }
    weir.stop();
    server.finish();
}

fn a_server_hears_that_a_stream_or_its_connection_has_ended(io: Io) {
    let server = Server::start(serve);
    let text = upstream(&server, 1024).replace("route {", "listen_h2c\nroute {");
    let port = free_port();
    let text = text
        .replace("listen_h2c", &format!("listen \"127.0.0.1:{port}\" {{ protocols \"h2c\"; }}"));
    let weir = Weir::start(io, 2, &text);
    let mut number = 0;
    for kind in ["poll", "events", "large"] {
        for how in ["RST_STREAM", "error", "end"] {
            number += 1;
            let mut client = Http2Client::connect(([127, 0, 0, 1], port).into(), &[]);
            let target = format!("/{kind}?n={number:08}");
            let stream = client.get(&target);
            await_event(&server, &format!("asked {target}"));
            match how {
                "RST_STREAM" => client.send(&frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())),
                // INTERNAL_ERROR: its client is about to close.
                "error" => client.send(&frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 2])),
                _ => {}
            }
            if how == "end" {
                drop(client);
                await_event(&server, &format!("told {target}"));
            } else {
                await_event(&server, &format!("told {target}"));
                drop(client);
            }
        }
    }
    weir.stop();
    server.finish();
}

/// A client that has sent more requests than may wait is no longer read; weir still notices when it
/// leaves.
fn a_client_that_is_not_read_is_seen_to_leave(io: Io) {
    for resets in [false, true] {
        let server = Server::start(serve);
        let weir = Weir::start(io, 1, &format!("client queue=1\n{}", upstream(&server, 1024)));
        let mut client = Client::connect(weir.address);
        client.get("/poll?n=00000001");
        await_event(&server, "asked /poll?n=00000001");
        for n in 2..200 {
            client.get(&format!("/poll?n={n:08}"));
        }
        if resets {
            client.reset();
        } else {
            drop(client);
        }
        await_event(&server, "told /poll?n=00000001");
        weir.stop();
        let log = server.finish();
        assert_eq!(log.requests.len(), 1, "what nobody waits for is not asked");
    }
}

fn many_that_leave_hold_up_nobody(io: Io) {
    let server = Server::start(serve);
    let weir = Weir::start(io, 2, &upstream(&server, 64));
    for round in 0..2 {
        let kind = ["poll", "events"][round];
        let mut leavers: Vec<Client> = (0..1024).map(|_| Client::connect(weir.address)).collect();
        for (at, leaver) in leavers.iter_mut().enumerate() {
            leaver.get(&format!("/{kind}?n={round:02}{at:06}"));
        }
        server.wait("some of them have a connection", |log| log.open >= 8);
        drop(leavers);
        let mut newcomer = Client::connect(weir.address);
        newcomer.get(&format!("/v?n=9999999{round}"));
        assert_eq!(newcomer.reply().status, 200);
    }
    weir.stop();
    let log = server.finish();
    assert!(log.requests.len() < 1024, "{} requests of clients that had left", log.requests.len());
}

/// `half-closed "serve"` is for clients that end their direction behind a request. Without it they
/// get only what comes at once.
fn a_half_closed_client_is_answered_if_it_is_to_be(io: Io) {
    let slow = |link: &mut Link, request: &Request| {
        if request.target.starts_with("/slow") {
            link.tell("asked");
            link.await_event("go on")?;
        }
        link.honest(request)
    };
    let server = Server::start(slow);
    let weir =
        Weir::start(io, 1, &format!("client half-closed=\"serve\"\n{}", app(&server, 2, PATIENT)));
    let mut client = Client::connect(weir.address);
    client.get("/slow?n=00000001");
    client.finish();
    server.wait("it is asked", |log| log.events.iter().any(|event| event == "asked"));
    // Meanwhile another client gets responses, for longer than weir would wait for any other
    // client.
    let (mut other, begun) = (Client::connect(weir.address), Instant::now());
    eventually("half a second", || {
        other.get("/v?n=00000009");
        other.reply().status == 200 && begun.elapsed() > Duration::from_millis(500)
    });
    server.tell("go on");
    assert_eq!(client.reply().status, 200);
    weir.stop();
    server.finish();

    let server = Server::start(slow);
    let weir = Weir::start(io, 1, &app(&server, 1, PATIENT));
    let mut client = Client::connect(weir.address);
    client.get("/v?n=00000002");
    client.finish();
    assert_eq!(client.reply().status, 200);
    let mut client = Client::connect(weir.address);
    client.get("/slow?n=00000003");
    client.finish();
    assert!(client.try_reply().is_none(), "it is taken for one that has left");
    server.tell("go on");
    weir.stop();
    server.finish();
}
