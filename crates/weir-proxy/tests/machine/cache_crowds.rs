//! Proves: all clients that wait for one fetch, however many, get its response a few in each turn,
//! and once; and a fetch continues as long as any client waits for it, at whichever worker. How:
//! crowds of clients, servers that respond when the test says so, turns that are counted one by
//! one.

use std::sync::Arc;

use weir_proxy::plan::{CachePlan, CacheRules, Plan};
use weir_proxy::request::route::{Route, RouteTable};
use weir_proxy::request::rules::RouteRules;

use crate::world::{Do, World, plan};

/// Readers that get something in a turn: `TOLD_MAX` of `crowd.rs`.
const TOLD_MAX: usize = 256;

fn cached() -> Plan {
    let rules =
        RouteRules { cache: Some(Arc::new(CacheRules::default())), ..RouteRules::default() };
    let route = Route { rules: Some(Arc::new(rules)), ..Route::default() };
    Plan { cache: Some(CachePlan::default()), routes: RouteTable::new(vec![route]), ..plan(1, 1) }
}

fn reply(body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 X\r\nCache-Control: max-age=60\r\nETag: \"a\"\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn answered(world: &World) -> usize {
    world.clients.iter().filter(|client| !client.replies.is_empty()).count()
}

/// Returns this many clients, which all send the same request.
fn crowd(world: &mut World, clients: usize) {
    for _ in 0..clients {
        let client = world.client();
        world.ask(client, "GET", "/h", "");
    }
    world.run_for(10_000);
    assert_eq!((world.requests().count(), answered(world)), (1, 0));
}

/// Makes turns until everything is idle; returns the most readers that were answered in one of
/// them.
fn turns(world: &mut World) -> usize {
    let mut most = 0;
    for _ in 0..200 {
        let before = answered(world);
        world.settle_once();
        most = most.max(answered(world) - before);
    }
    most
}

#[test]
fn a_crowd_is_answered_in_parts() {
    for bytes in [10, 3_000, 40_000] {
        let mut world = World::started(cached(), 1, 1);
        world.serve(|seen| seen.complete.then(Vec::new));
        let clients = 3 * TOLD_MAX + 10;
        crowd(&mut world, clients);
        let conn = world.open_conns()[0];
        let body: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        world.say(conn, Do::Answer(reply(&body)));
        let most = turns(&mut world);
        assert!(most > 0 && most <= TOLD_MAX, "{bytes} bytes: {most} in one turn");
        world.run_for(1_000_000);
        assert_eq!((answered(&world), world.requests().count()), (clients, 1), "{bytes} bytes");
        let expected = weir_check::Body::of(&body);
        assert!(
            world
                .clients
                .iter()
                .all(|client| client.replies.len() == 1 && client.replies[0].body == expected)
        );
        world.finish();
    }
}

/// Also without a response: each client learns why, once, and none sends a request of its own.
#[test]
fn a_crowd_hears_of_a_failure_in_parts() {
    let mut world = World::started(cached(), 1, 1);
    world.serve(|seen| seen.complete.then(|| vec![Do::Silence]));
    let clients = 2 * TOLD_MAX + 10;
    crowd(&mut world, clients);
    world.run_for(200_000_000);
    assert_eq!((answered(&world), world.requests().count()), (clients, 1));
    assert!(world.clients.iter().all(|client| client.statuses() == [504]));
    world.finish();
}

/// Of clients that come and go during the fetch none is forgotten, and none is answered twice.
#[test]
fn who_comes_and_goes() {
    let mut world = World::started(cached(), 1, 1);
    world.serve(|seen| seen.complete.then(Vec::new));
    crowd(&mut world, 40);
    for round in 0..40 {
        world.reset(round);
        let client = world.client();
        world.ask(client, "GET", "/h", "");
        world.run_for(1_000);
    }
    let conn = world.open_conns()[0];
    world.say(conn, Do::Answer(reply(b"all")));
    world.run_for(1_000_000);
    assert_eq!((answered(&world), world.requests().count()), (40, 1));
    world.finish();
}

/// The client with the first request leaves, and no other waits there; but one does at another
/// worker.
#[test]
fn who_waits_elsewhere_keeps_a_fetch() {
    let mut world = World::started(cached(), 2, 1);
    world.serve(|seen| seen.complete.then(|| vec![Do::Delay(200_000), Do::Answer(reply(b"x"))]));
    let (first, second) = (world.client_of(0), world.client_of(1));
    world.ask(first, "GET", "/h", "");
    world.run_for(20_000);
    world.ask(second, "GET", "/h", "");
    world.run_for(20_000);
    world.reset(first);
    world.run_for(1_000_000);
    assert_eq!((world.clients[second].statuses(), world.requests().count()), (vec![200], 1));
    world.finish();
}
