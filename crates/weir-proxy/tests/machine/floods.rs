//! Proves: however fast a client sends, and whatever receives bring after they were stopped, weir
//! keeps no more of its input than a bound, reads all of it in the end, and takes a bounded number
//! of requests in a turn. A client that passes the bound nevertheless is ended, and so is one that
//! takes too long (docs/hostile.md H10, docs/buffers-bounds.md#bounds). How: segments of requests
//! with weir's own responses, and receives that take available bytes at once, as those of io_uring
//! do.

use std::sync::Arc;

use weir_proxy::engine::end_costly;
use weir_proxy::plan::Plan;
use weir_proxy::request::own_answer::{Fixed, OwnAnswer};
use weir_proxy::request::route::{Route, RouteTable, Target};

use crate::world::{AT_ONCE, World, plan};

/// Bytes of a segment: what one receive brings.
const SEGMENT: usize = 4096;
const REQUEST: &str = "GET /gone HTTP/1.1\r\nHost: a\r\n\r\n";

fn world(workers: u16) -> World {
    world_of(workers, |_| ())
}

fn world_of(workers: u16, change: impl FnOnce(&mut Plan)) -> World {
    let gone = OwnAnswer::Fixed(Arc::new(Fixed {
        status: 410,
        media_type: None,
        content: b""[..].into(),
    }));
    let gone = Route {
        path: "/gone".to_owned(),
        target: Target::Here(Arc::new(gone)),
        ..Route::default()
    };
    let mut plan = Plan {
        routes: RouteTable::new(vec![gone, Route::default()]),
        access_log: None,
        ..plan(1, 1)
    };
    change(&mut plan);
    World::started(plan, workers, 1)
}

/// Queues this many requests in full segments.
fn flood(world: &mut World, client: usize, requests: usize) {
    (0..requests).for_each(|_| world.expect(client, "GET", false, false));
    let bytes = REQUEST.repeat(requests);
    bytes.as_bytes().chunks(SEGMENT).for_each(|segment| world.send(client, segment));
}

/// Returns the bytes of a client's requests that weir has and has not parsed, of the queued ones.
/// All parsed ones are this client's.
fn kept(world: &World, client: usize, requests: usize, before: u64) -> usize {
    let parsed = (world.count(|counters| counters.requests.get()) - before) as usize;
    (requests * REQUEST.len()) - world.clients[client].unread() - parsed * REQUEST.len()
}

#[test]
fn h10_input_is_bounded_while_answers_leave() {
    const REQUESTS: usize = 20_000;
    for takes_at_once in [false, true] {
        let mut world = world(1);
        world.takes_at_once = takes_at_once;
        let client = world.client();
        let before = world.count(|counters| counters.requests.get());
        flood(&mut world, client, REQUESTS);
        let (mut most, mut turns) = (0, 0);
        while world.clients[client].replies.len() < REQUESTS {
            world.settle_once();
            turns += 1;
            assert!(
                turns < 20_000,
                "{} answers in {turns} turns",
                world.clients[client].replies.len()
            );
            most = most.max(kept(&world, client, REQUESTS, before));
        }
        assert!(most <= 64 * 1024 + (AT_ONCE + 1) * SEGMENT, "{most} bytes unparsed");
        assert!(most > 0 && world.clients[client].statuses().iter().all(|status| *status == 410));
        world.settle();
        assert!(!world.clients[client].closed, "it goes on");
        world.finish();
    }
}

/// A client that reads nothing is not read either, and continues when it does.
#[test]
fn h10_input_is_bounded_while_nothing_is_read() {
    const REQUESTS: usize = 20_000;
    let mut world = world(1);
    world.takes_at_once = true;
    let client = world.client();
    world.stall(client, true);
    flood(&mut world, client, REQUESTS);
    world.settle();
    let kept = REQUESTS * REQUEST.len() - world.clients[client].unread();
    assert!(kept < 128 * 1024 + 64 * 1024 + (AT_ONCE + 1) * SEGMENT, "{kept} bytes taken");
    world.stall(client, false);
    world.settle();
    assert_eq!(world.clients[client].replies.len(), REQUESTS);
    world.finish();
}

/// Whatever goes wrong below: a client whose input arrives although it is not received is ended,
/// and its kept input is dropped.
#[test]
fn h10_a_client_that_passes_the_bound_ends() {
    let mut world = world(1);
    let client = world.client();
    world.stall(client, true);
    flood(&mut world, client, 4_000);
    world.settle();
    let segment = REQUEST.repeat(SEGMENT / REQUEST.len());
    let mut sent = 0;
    while !world.clients[client].closed {
        assert!(sent < 2 << 20, "{sent} bytes were kept");
        world.send_late(client, segment.as_bytes());
        world.settle();
        sent += segment.len();
    }
    assert!(sent > 1 << 20, "it ended after {sent} bytes already");
    assert!(world.clients[client].was_reset);
    assert_eq!(world.count(|counters| counters.client_closes.get("overrun")), 1);
    // The others go on.
    let other = world.client();
    world.get(other, "00000001");
    world.settle();
    assert_eq!(world.clients[other].statuses(), [200]);
    world.finish();
}

/// Many clients with full pipelines whose responses are sent in the same turn: their requests are
/// taken over some turns.
#[test]
fn h10_a_turn_takes_so_many_requests() {
    const CLIENTS: usize = 12;
    const REQUESTS: usize = 4_000;
    let mut world = world(1);
    let clients: Vec<usize> = (0..CLIENTS).map(|_| world.client()).collect();
    for &client in &clients {
        flood(&mut world, client, REQUESTS);
    }
    let requests = |world: &World| world.count(|counters| counters.requests.get());
    let mut before = requests(&world);
    while clients.iter().any(|client| world.clients[*client].replies.len() < REQUESTS) {
        world.settle_once();
        let taken = requests(&world) - before;
        before += taken;
        // Received bytes are parsed in any case, and from the last client with a turn everything
        // that it may send.
        assert!(
            taken < 4096 + 2_000 + (CLIENTS * SEGMENT / REQUEST.len()) as u64,
            "{taken} requests in one turn"
        );
    }
    world.finish();
}

/// A client that takes too long is ended, and no other.
#[test]
fn k3_a_client_that_takes_too_long_ends() {
    let mut world = world(1);
    let (client, other) = (world.client(), world.client());
    world.get(client, "00000001");
    world.settle();
    let token = world.clients[client].token();
    end_costly(&mut world.nodes[0].engine, token);
    world.settle_once();
    world.get(other, "00000002");
    world.run_for(1);
    assert!(world.clients[client].was_reset);
    assert_eq!(world.clients[other].statuses(), [200]);
    assert_eq!(world.count(|counters| counters.client_closes.get("too-costly")), 1);
    // A client that is gone has no effect.
    end_costly(&mut world.nodes[0].engine, token);
    world.finish();
}

/// Floods whose input arrives faster than a turn takes do not delay clients whose input waits.
#[test]
fn h10_what_waits_is_read_beside_floods() {
    const FLOODS: usize = 60;
    const ANSWERS: usize = 20;
    let mut world = world(1);
    let floods: Vec<usize> = (0..FLOODS).map(|_| world.client()).collect();
    let other = world.client();
    // Each turn brings more than 4,096 of them.
    for &client in &floods {
        flood(&mut world, client, 100 * SEGMENT / REQUEST.len());
    }
    (0..ANSWERS).for_each(|_| world.expect(other, "GET", false, false));
    let pipeline: String =
        (0..ANSWERS).map(|n| format!("GET /v?n={n:08} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    world.send(other, pipeline.as_bytes());
    for _ in 0..60 {
        world.settle_once();
    }
    assert!(floods.iter().all(|client| world.clients[*client].unread() > 0), "the floods go on");
    assert_eq!(world.clients[other].replies.len(), ANSWERS);
    floods.iter().for_each(|client| world.reset(*client));
    world.settle();
}

/// A head that is longer than other kept input arrives whole, if its length is allowed.
#[test]
fn h10_a_long_head_comes_in_pieces() {
    let mut world = world_of(1, |plan| {
        plan.client.head.head_bytes_max = 256 << 10;
        plan.client.head.line_bytes_max = 128 << 10;
    });
    let client = world.client();
    world.expect(client, "GET", false, false);
    world.send(client, b"GET /gone HTTP/1.1\r\nHost: a\r\nX-Long: ");
    (0..24).for_each(|_| world.send(client, &[b'a'; SEGMENT]));
    world.send(client, b"\r\n\r\n");
    world.settle();
    assert_eq!(world.clients[client].statuses(), [410]);
    world.finish();
}
