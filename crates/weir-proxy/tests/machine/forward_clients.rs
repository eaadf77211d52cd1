//! Proves: requests of real clients of a forward proxy are understood, and bytes that were meant
//! for a tunnel never become a request: lengths of CONNECT, empty credentials, targets without a
//! path, connections that continue behind a 407. How: the world of [`crate::forward`].
//! docs/forward.md.

use std::sync::Arc;

use weir_proxy::forward::lookup::User;

use crate::forward::{ANN, forward, get, send, verify, with_users, world};
use crate::world::World;

/// Sends a CONNECT to the first destination with these fields, and bytes right behind it.
fn connect(world: &mut World, client: usize, fields: &str, behind: &str) {
    world.expect(client, "CONNECT", false, false);
    world.send(
        client,
        format!("CONNECT 127.0.0.1:9000 HTTP/1.1\r\nHost: x\r\n{fields}\r\n{behind}").as_bytes(),
    );
    world.run_for(1000);
}

/// CONNECT has no content (RFC 9110 §9.3.6): whatever its length says, the bytes behind it are for
/// the tunnel.
#[test]
fn a_length_of_connect_says_nothing() {
    for length in ["0", "4", "100000"] {
        let mut world = world(forward());
        world.raw = true;
        let client = world.client();
        connect(&mut world, client, &format!("Content-Length: {length}\r\n"), "early bytes");
        assert_eq!(world.clients[client].statuses(), [200], "{length}");
        assert_eq!(world.conns[0].tunnel, b"early bytes");
        world.reset(client);
        world.run_for(1000);
        world.finish();
    }
    // Framing that others could read differently is still an error.
    for fields in [
        "Content-Length: +4\r\n",
        "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\n",
    ] {
        let mut world = world(forward());
        let client = world.client();
        connect(&mut world, client, fields, "");
        assert_eq!(world.clients[client].statuses(), [400], "{fields}");
        assert!(world.connects.is_empty());
        world.finish();
    }
}

/// Behind a refused CONNECT nothing is a request, unless nothing can have been meant for the
/// tunnel.
#[test]
fn behind_a_refused_connect_nothing_is_a_request() {
    const REQUEST: &str = "GET http://127.0.0.1:9001/v?n=00000001 HTTP/1.1\r\nHost: x\r\n\r\n";
    let lengths = ["Content-Length: 66\r\n", "Content-Length: 1\r\n"];
    for (plan, fields, behind, status) in [
        (with_users(), "", REQUEST, 407),
        (with_users(), lengths[0], REQUEST, 407),
        (with_users(), lengths[1], "", 407),
        (forward(), "", "", 502),
    ] {
        let mut world = world(plan);
        world.servers[0].door = crate::world::Door::Refuses;
        let client = world.client();
        connect(&mut world, client, fields, behind);
        assert_eq!(world.clients[client].statuses(), [status], "{fields}{behind}");
        assert_eq!(world.clients[client].replies[0].fields.first("connection"), Some("close"));
        assert!(world.conns.iter().all(|conn| conn.requests.is_empty()));
        world.finish();
    }
}

/// A client whose authentication takes several turns has them on one connection, and its tunnel as
/// well.
#[test]
fn a_connection_goes_on_behind_a_challenge() {
    let mut world = world(with_users());
    world.raw = true;
    let client = world.client();
    for fields in ["", "Content-Length: 0\r\n", "Proxy-Authorization: NTLM TlRMTVNTUAABAAAA\r\n"] {
        connect(&mut world, client, fields, "");
        assert_eq!(world.clients[client].replies.pop().unwrap().status, 407, "{fields}");
        assert!(!world.clients[client].closed);
    }
    connect(&mut world, client, ANN, "");
    verify(&mut world, Some(&Arc::new(User::new("ann"))));
    assert_eq!(world.clients[client].statuses(), [200]);
    world.send(client, b"ping");
    world.run_for(1000);
    assert_eq!(world.conns[0].tunnel, b"ping");
    world.reset(client);
    world.run_for(1000);
    world.finish();
}

/// A small announced body is read, so that its client can send the request again on the same
/// connection.
#[test]
fn a_connection_goes_on_behind_a_small_body() {
    let mut world = world(with_users());
    let client = world.client();
    let body = "b".repeat(300);
    let post = |fields: &str, length: usize| {
        let target = "http://127.0.0.1:9000/v?n=00000001";
        format!("POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{fields}\r\n")
    };
    world.expect(client, "POST", false, false);
    world.send(client, (post("", 300) + &body).as_bytes());
    world.run_for(1000);
    assert_eq!(world.clients[client].statuses(), [407]);
    world.expect(client, "POST", false, false);
    world.send(client, (post(ANN, 300) + &body).as_bytes());
    world.run_for(1000);
    verify(&mut world, Some(&Arc::new(User::new("ann"))));
    assert_eq!(world.clients[client].statuses(), [407, 200]);
    assert_eq!(world.conns[0].requests.len(), 1, "what came without a name went nowhere");
    // A large one is not worth it.
    let other = world.client();
    world.expect(other, "POST", false, false);
    world.send(other, post("", 100_000).as_bytes());
    world.run_for(1000);
    assert_eq!(world.clients[other].statuses(), [407]);
    assert_eq!(world.clients[other].replies[0].fields.first("connection"), Some("close"));
    world.finish();
}

/// Malformed credentials are refused at once, even empty ones, and the next request is judged
/// separately.
#[test]
fn credentials_that_are_empty_are_refused_at_once() {
    let mut world = world(with_users());
    let client = world.client();
    for value in ["", " ", "Basic", "Basic ", "Basic  ", "Basic :", "Basic Og==", "Bearer", "Basic"]
    {
        send(
            &mut world,
            client,
            "GET",
            "http://127.0.0.1:9000/v?n=00000001",
            &format!("Proxy-Authorization: {value}\r\n"),
        );
        world.run_for(1000);
        assert_eq!(
            world.clients[client].replies.pop().map(|reply| reply.status),
            Some(407),
            "{value:?}"
        );
    }
    assert!(world.errands.is_empty(), "there was nothing to compare");
    send(&mut world, client, "GET", "http://127.0.0.1:9000/v?n=00000001", ANN);
    world.run_for(1000);
    verify(&mut world, Some(&Arc::new(User::new("ann"))));
    assert_eq!(world.clients[client].statuses(), [200]);
    world.finish();
}

/// An empty path in front of a query is `/` (RFC 3986 §6.2.3).
#[test]
fn a_query_needs_no_path() {
    let mut world = world(forward());
    let client = world.client();
    send(&mut world, client, "GET", "http://127.0.0.1:9000?n=00000001", "");
    world.run_for(1000);
    get(&mut world, client, "127.0.0.1:9000", "00000002");
    world.run_for(1000);
    assert_eq!(world.clients[client].statuses(), [200, 200]);
    let targets: Vec<_> =
        world.conns[0].requests.iter().map(|request| request.target.clone()).collect();
    assert_eq!(targets, ["/?n=00000001", "/v?n=00000002"]);
    assert_eq!(world.conns[0].requests[0].fields.first("host"), Some("127.0.0.1:9000"));
    world.finish();
}
