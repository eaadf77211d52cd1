//! Proves: a tunnel begins only with an accepted 101 and only for its own client, carries exactly
//! the bytes both ways whichever side ends first, and leaves the pool and the counters as they
//! should be. docs/hostile.md F1-F4; docs/http1.md.

use weir_check::upstreams::check_honest;

use crate::world::{Do, Seen, World, answer, plan};

pub const SWITCH: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
const ASKS: &str = "Connection: upgrade\r\nUpgrade: websocket\r\n";

/// Accepts upgrades, answers `/slow` after a second, all other requests honestly.
fn switching(seen: &Seen<'_>) -> Option<Vec<Do>> {
    if seen.request.fields.has("upgrade") {
        return Some(vec![Do::Switch(SWITCH.to_vec())]);
    }
    match seen.request.target.starts_with("/slow") {
        true => Some(vec![Do::Delay(1_000_000), Do::Answer(answer(seen.request))]),
        false => seen.complete.then(|| vec![Do::Answer(answer(seen.request))]),
    }
}

fn world(connections: u32, workers: u16) -> World {
    let mut world = World::started(plan(1, connections), workers, 1);
    world.serve(switching);
    world
}

/// The connection that became a tunnel.
fn tunnel_of(world: &World) -> usize {
    let has_upgrade = |conn: &usize| {
        world.conns[*conn].requests.iter().any(|request| request.fields.has("upgrade"))
    };
    (0..world.conns.len()).find(has_upgrade).expect("a tunnel")
}

#[test]
fn bytes_pass_both_ways() {
    for workers in [1, 2] {
        let mut world = world(1, workers);
        for node in 0..usize::from(workers) {
            let client = world.client_of(node);
            world.ask(client, "GET", "/ws", ASKS);
            world.settle();
            assert_eq!(world.clients[client].statuses(), [101]);
            world.send(client, b"ping");
            world.settle();
            let conn =
                world.conns.iter().rposition(|conn| conn.tunnel == b"ping").expect("ping arrived");
            world.say(conn, Do::Bytes(b"pong".to_vec()));
            world.settle();
            assert_eq!(world.clients[client].tunnel, b"pong");
            world.reset(client);
            world.settle();
            assert!(world.conns[conn].closed);
            // The pool has its connection again.
            world.run_for(100_000);
            assert_eq!(world.open_conns().len(), 1);
        }
        world.finish();
    }
}

/// With `echo` a 101 that does not carry the identifier back belongs to no client.
#[test]
fn a_101_without_the_echo_is_no_answer() {
    for workers in [1, 2] {
        for honest in [true, false] {
            let mut echoing = plan(1, 1);
            echoing.upstreams[0].echo = Some("x-request-id".to_owned());
            let mut world = World::started(echoing, workers, 1);
            world.serve(move |seen| {
                let id = seen.request.fields.first("x-request-id").expect("an identifier");
                let id = if honest { id } else { "0123456789abcdef" };
                let text = String::from_utf8(SWITCH.to_vec()).unwrap();
                let echo = format!("101 Switching Protocols\r\nX-Request-Id: {id}");
                Some(vec![Do::Switch(
                    text.replacen("101 Switching Protocols", &echo, 1).into_bytes(),
                )])
            });
            let client = world.client_of(0);
            world.ask(client, "GET", "/ws", ASKS);
            world.run_for(100_000);
            assert_eq!(world.clients[client].statuses(), [if honest { 101 } else { 502 }]);
            world.reset(client);
            world.run_for(100_000);
            world.finish();
        }
    }
}

/// Bytes behind the request for an upgrade belong to the tunnel, and earlier responses come first.
#[test]
fn an_upgrade_behind_a_slow_request_waits_for_it() {
    let mut world = world(2, 1);
    let client = world.client();
    world.ask(client, "GET", "/slow?n=00000001", "");
    world.ask(client, "GET", "/ws", ASKS);
    world.send(client, b"early");
    world.run_for(500_000);
    assert!(world.clients[client].replies.is_empty());
    world.run_for(1_000_000);
    assert_eq!(world.clients[client].statuses(), [200, 101]);
    let tunnel = tunnel_of(&world);
    assert_eq!(world.conns[tunnel].tunnel, b"early");
    world.say(tunnel, Do::Bytes(b"late".to_vec()));
    world.settle();
    assert_eq!(world.clients[client].tunnel, b"late");
    assert_eq!(world.count(|counters| counters.tunnels.get()), 1);
    world.finish();
}

/// Likewise if the request in front of it gets an error from weir.
#[test]
fn an_upgrade_behind_a_request_that_fails() {
    let mut world = world(2, 1);
    world.serve(|seen| match seen.request.method.as_str() {
        "POST" => Some(vec![Do::Delay(1000), Do::Rst]),
        _ => switching(seen),
    });
    let client = world.client();
    world.post(client, "00000001", b"x");
    world.ask(client, "GET", "/ws", ASKS);
    world.send(client, b"GET /not-a-request HTTP/1.1\r\nHost: a\r\n\r\n");
    world.run_for(1_000_000);
    assert_eq!(world.clients[client].statuses(), [502, 101]);
    assert!(world.requests().all(|request| request.target != "/not-a-request"));
    world.finish();
}

/// F1: the tunnel begins only after 101; bytes behind a refused upgrade are an ordinary request.
#[test]
fn f1_upgrade_refused() {
    let mut world = world(1, 1);
    world.serve(crate::world::honest);
    let client = world.client();
    world.ask(client, "GET", "/ws?n=00000001", ASKS);
    world.get(client, "00000002");
    world.settle();
    assert_eq!(world.clients[client].replies.len(), 2);
    check_honest("00000001", &world.clients[client].replies[0]).unwrap();
    check_honest("00000002", &world.clients[client].replies[1]).unwrap();
    world.finish();
}

/// An upgrade that no server can answer does not stop the connection.
#[test]
fn an_upgrade_without_a_server_is_answered_and_the_connection_goes_on() {
    let mut limited = plan(1, 1);
    limited.upstreams[0].retry.connect_retries = 1;
    let mut world = World::new(limited, 1, 1);
    world.servers[0].door = crate::world::Door::Refuses;
    world.run_for(1_000_000);
    let client = world.client();
    world.ask(client, "GET", "/ws", ASKS);
    world.get(client, "00000002");
    world.run_for(1_000_000);
    assert_eq!(world.clients[client].statuses(), [502, 502]);
    world.finish();
}

/// F2: an upgrade with a body is no upgrade.
#[test]
fn f2_upgrade_with_body() {
    let mut world = world(1, 1);
    let client = world.client();
    world.expect(client, "POST", false, false);
    let head = "POST /ws?n=00000001 HTTP/1.1\r\nHost: a\r\n";
    world.send(client, format!("{head}{ASKS}Content-Length: 5\r\n\r\nhello").as_bytes());
    world.settle();
    assert!(world.requests().all(|request| !request.fields.has("upgrade")));
    assert_eq!(world.clients[client].replies.len(), 1);
    world.finish();
}

/// F3: h2c is never passed on.
#[test]
fn f3_upgrade_to_h2c() {
    let mut world = world(1, 1);
    let client = world.client();
    world.expect(client, "GET", false, false);
    let fields = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
        HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n";
    world.send(client, format!("GET /v?n=00000001 HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes());
    world.settle();
    check_honest("00000001", &world.clients[client].replies[0]).unwrap();
    assert!(world.requests().all(|request| !request.fields.has("upgrade")));
    world.finish();
}

/// A client that leaves before the server accepts: the connection is not kept as a tunnel without
/// client.
#[test]
fn a_client_that_leaves_before_101() {
    for (workers, node) in [(1, 0), (2, 0), (2, 1)] {
        let mut world = world(1, workers);
        world.serve(|_| Some(vec![Do::Delay(10_000), Do::Switch(SWITCH.to_vec())]));
        let client = world.client_of(node);
        world.ask(client, "GET", "/ws", ASKS);
        world.settle();
        world.reset(client);
        world.run_for(100_000);
        let tunnel = tunnel_of(&world);
        assert!(world.conns[tunnel].closed, "{workers} workers, client of {node}");
        assert_eq!(world.open_conns().len(), 1);
        world.finish();
    }
}

/// F4: whichever side ends first, the other direction continues to its end, and all bytes arrive.
#[test]
fn f4_half_closes() {
    let large: Vec<u8> = (0..700_000u32).map(|n| n as u8).collect();
    for workers in [1, 2] {
        for server_first in [true, false] {
            let mut world = world(1, workers);
            let client = world.client_of(usize::from(workers) - 1);
            world.ask(client, "GET", "/ws", ASKS);
            world.settle();
            let conn = tunnel_of(&world);
            if server_first {
                world.say(conn, Do::Bytes(large.clone()));
                world.say(conn, Do::Fin);
                world.settle();
                assert!(world.clients[client].end.is_some() && !world.clients[client].closed);
                assert!(!world.conns[conn].closed);
            }
            for piece in large.chunks(10_000) {
                world.send(client, piece);
            }
            world.half_close(client);
            world.settle();
            assert!(world.conns[conn].fin && world.conns[conn].tunnel == large);
            if !server_first {
                assert!(!world.conns[conn].closed && !world.clients[client].closed);
                world.say(conn, Do::Bytes(large.clone()));
                world.say(conn, Do::Fin);
                world.settle();
            }
            assert!(
                world.clients[client].tunnel == large,
                "{} bytes",
                world.clients[client].tunnel.len()
            );
            assert!(world.conns[conn].closed && world.clients[client].closed);
            assert_eq!(world.count(|counters| counters.tunnels.get()), 0);
            world.finish();
        }
    }
}

/// Both have ended while the client has not read everything, or the server: nothing is cut off.
#[test]
fn f4_ends_do_not_overtake_bytes() {
    for workers in [1, 2] {
        let mut world = world(1, workers);
        let client = world.client_of(usize::from(workers) - 1);
        world.ask(client, "GET", "/ws", ASKS);
        world.settle();
        let conn = tunnel_of(&world);
        world.stall(client, true);
        world.servers[0].deaf = true;
        world.half_close(client);
        world.settle();
        world.say(conn, Do::Bytes(vec![b'y'; 50_000]));
        world.say(conn, Do::Fin);
        world.settle();
        world.stall(client, false);
        world.settle();
        assert_eq!(world.clients[client].tunnel.len(), 50_000);
        world.servers[0].deaf = false;
        world.swallow(conn);
        world.settle();
        assert!(world.clients[client].closed);
        world.run_for(120_000_000);
        assert!(world.conns[conn].closed);
        world.finish();
    }
}

/// The client has sent everything and ended; the server ends its side before it has read all of it.
#[test]
fn f4_a_server_that_ends_early_still_gets_everything() {
    let mut world = world(1, 1);
    let client = world.client();
    world.ask(client, "GET", "/ws", ASKS);
    world.settle();
    let conn = tunnel_of(&world);
    world.servers[0].deaf = true;
    world.send(client, b"first");
    world.settle();
    world.send(client, b"second");
    world.half_close(client);
    world.settle();
    world.say(conn, Do::Fin);
    world.settle();
    world.servers[0].deaf = false;
    world.swallow(conn);
    world.settle();
    // The operating system took the first send, which this server does not see; the second must
    // still come.
    assert_eq!(world.conns[conn].tunnel, b"second");
    assert!(world.conns[conn].fin);
    world.settle();
    assert!(world.conns[conn].closed && world.clients[client].closed);
    world.finish();
}

/// A send that fails in a tunnel proves nothing about the connection that took its place in the
/// pool.
#[test]
fn a_broken_tunnel_leaves_its_replacement_alone() {
    let mut world = world(1, 1);
    let client = world.client();
    world.ask(client, "GET", "/ws", ASKS);
    world.run_for(100_000);
    let conn = tunnel_of(&world);
    world.stall(client, true);
    world.say(conn, Do::Bytes(vec![b'x'; 300_000]));
    world.settle();
    world.say(conn, Do::Rst);
    world.settle();
    world.send(client, b"into the void");
    world.settle();
    let other = world.client();
    world.get(other, "00000001");
    world.settle();
    check_honest("00000001", &world.clients[other].replies[0]).unwrap();
    world.finish();
}

/// Both directions can be paused, so that memory is bounded.
#[test]
fn f4_back_pressure() {
    for workers in [1, 2] {
        let mut world = world(1, workers);
        let client = world.client_of(usize::from(workers) - 1);
        world.ask(client, "GET", "/ws", ASKS);
        world.settle();
        let conn = tunnel_of(&world);
        world.stall(client, true);
        (0..100).for_each(|_| world.say(conn, Do::Bytes(vec![b'y'; 50_000])));
        world.settle();
        assert!(
            world.conns[conn].unread() > 4_500_000,
            "the server was read although the client reads nothing"
        );
        world.servers[0].deaf = true;
        (0..100).for_each(|_| world.send(client, &[b'x'; 50_000]));
        world.settle();
        assert!(
            world.clients[client].unread() > 4_500_000,
            "the client was read although the server reads nothing"
        );
        world.servers[0].deaf = false;
        world.swallow(conn);
        world.stall(client, false);
        world.settle();
        assert_eq!(world.clients[client].tunnel.len(), 5_000_000);
        assert_eq!(world.conns[conn].tunnel.len() + 50_000, 5_000_000);
        world.finish();
    }
}

/// A tunnel without a byte for an hour ends.
#[test]
fn an_idle_tunnel_ends() {
    let mut world = world(1, 1);
    let client = world.client();
    world.ask(client, "GET", "/ws", ASKS);
    world.settle();
    let conn = tunnel_of(&world);
    world.run_for(3_500_000_000);
    world.say(conn, Do::Bytes(b"still here".to_vec()));
    world.run_for(3_500_000_000);
    assert!(!world.clients[client].closed);
    world.run_for(200_000_000);
    assert!(world.clients[client].closed && world.conns[conn].closed);
    world.finish();
}

/// Bytes that arrive with the request precede those of the turn in which the tunnel begins,
/// whichever the driver reports first.
#[test]
fn bytes_of_the_turn_in_which_it_begins_keep_their_order() {
    for seed in 0..20 {
        for workers in [1, 2] {
            let mut world = World::started(plan(1, 1), workers, seed);
            world.serve(|_| Some(vec![Do::Delay(1_000), Do::Switch(SWITCH.to_vec())]));
            world.shuffled = true;
            let client = world.client_of(usize::from(workers) - 1);
            world.ask(client, "GET", "/ws", ASKS);
            world.send(client, b"first");
            world.run_for(500);
            world.now_us += 500;
            world.send(client, b"second");
            if seed % 2 == 0 {
                world.half_close(client);
            }
            world.run_for(10_000);
            let conn = tunnel_of(&world);
            assert_eq!(
                String::from_utf8_lossy(&world.conns[conn].tunnel),
                "firstsecond",
                "seed {seed}"
            );
            assert_eq!(world.conns[conn].fin, seed % 2 == 0, "seed {seed}");
            world.finish();
        }
    }
}
