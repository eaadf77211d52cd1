//! Connections to servers that a machine in between has forgotten: packets on them are lost without
//! any notice. A safe request gets its response over a new connection all the same
//! (docs/connections.md). A server that only reads slowly is not mistaken for that. Proves that
//! the kernel notices in time, on both drivers. That it costs 3 s at most is tested where time is
//! independent of the machine, in weir-proxy (`machine/unheard.rs`).

use std::time::{Duration, Instant};

use crate::kit::{
    Behaviour, Client, Gone, Honest, Io, Link, Server, Weir, in_own_network, nonce,
    on_both_drivers, run, timed_get,
};
use weir_check::Request;
use weir_check::upstreams::check_honest;

on_both_drivers!(
    an_upload_to_a_server_that_pauses_survives;
    alone:
    forgotten_connections_cost_a_get_seconds,
);

/// Connections to the server, all made at the start.
const CONNECTIONS: usize = 4;

fn eager(server: &Server) -> String {
    let address = server.address;
    format!(
        "upstream \"app\" {{ server \"{address}\" connections-min={CONNECTIONS} \
            connections={CONNECTIONS} }}\nroute {{ proxy \"app\" }}\n"
    )
}

/// Sets the source ports of new connections, in this network namespace.
fn connect_from(ports: &str) {
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", ports)
        .expect("a namespace of its own");
}

/// Drops packets of connections from the first range to this port, in both directions.
fn forget(port: u16) {
    let rules = format!(
        "table inet weir {{ chain input {{ type filter hook input priority 0; \
         tcp sport 40000-40999 tcp dport {port} drop; tcp sport {port} tcp dport 40000-40999 drop; \
         }}; }}"
    );
    let done = run("nft", &[&rules]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    connect_from("50000 50999");
}

fn forgotten_connections_cost_a_get_seconds(io: Io) {
    in_own_network(
        &format!("forgotten::{}::alone::forgotten_connections_cost_a_get_seconds", io.word()),
        || {
            connect_from("40000 40999");
            let server = Server::start(Honest);
            let weir = Weir::start(io, 2, &eager(&server));
            for _ in 0..100 {
                timed_get(&weir);
            }
            server.wait("all connections", |log| log.accepted >= CONNECTIONS);
            assert_eq!(server.log().accepted, CONNECTIONS);
            forget(server.address.port());
            let first = timed_get(&weir);
            // The other idle connections were also forgotten, and cost no further request any time.
            let next = (0..20).map(|_| timed_get(&weir)).max().unwrap_or_default();
            eprintln!("{}: {first:?} on a forgotten connection, then at most {next:?}", io.word());
            // Without weir's own check it would be a quarter of an hour.
            assert!(first < Duration::from_secs(10), "{first:?}");
            assert!(next < Duration::from_secs(2), "{next:?}");
            weir.stop();
            server.kill();
        },
    );
}

/// Reads a body only on a signal.
struct Pausing;

impl Behaviour for Pausing {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        link.honest(request)
    }

    fn on_head(&self, link: &mut Link, _: &Request) -> Result<(), Gone> {
        link.tell("head");
        link.await_event("read on")
    }
}

fn an_upload_to_a_server_that_pauses_survives(io: Io) {
    let server = Server::start(Pausing);
    let weir = Weir::start(io, 1, &eager(&server));
    let (mut client, own) = (Client::connect(weir.address), nonce());
    let body = vec![b'x'; 16 << 20];
    client.ask("POST", false);
    let head =
        format!("POST /?n={own} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
    // More than weir gathers before it forwards a request.
    let (first, rest) = body.split_at(256 << 10);
    client.send(&[head.as_bytes(), first].concat());
    server.wait("the upload begins", |log| log.events.iter().any(|event| event == "head"));
    let (mut writer, rest) = (client.stream(), rest.to_vec());
    let upload = std::thread::spawn(move || std::io::Write::write_all(&mut writer, &rest));
    // Twice the tolerated silence. Others get responses meanwhile.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(6) {
        timed_get(&weir);
        std::thread::park_timeout(Duration::from_millis(20));
    }
    server.tell("read on");
    check_honest(&own, &client.reply()).unwrap();
    upload.join().expect("no panic").expect("weir reads");
    assert_eq!(
        server.log().requests.iter().filter(|(_, request)| request.nonce() == own).count(),
        1
    );
    weir.stop();
    server.finish();
}
