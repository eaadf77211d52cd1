//! Proves: when descriptors are scarce, idle clients are closed, first those that have never sent a
//! request, then those that are idle for longest, and none with anything in progress. How: failing
//! accepts, beside clients in each state.

use weir_proxy::plan::PipelineMode;

use crate::world::{World, plan};

const SECOND: u64 = 1_000_000;

fn scarce(world: &mut World) {
    world.nodes[0].engine.begin_turn(world.now_us);
    world.nodes[0].engine.accept_failed();
    // `settle` makes a turn only where something has arrived, and nothing has.
    world.run_for(0);
}

fn is_closed(world: &World, client: usize) -> bool {
    world.clients[client].closed
}

#[test]
fn who_has_asked_nothing_for_longest_goes_first() {
    let mut plan = plan(1, 4);
    plan.upstreams[0].pipeline = PipelineMode::Off;
    plan.client.head_timeout_us = 60 * SECOND;
    let mut world = World::started(plan, 1, 1);
    let (asks, waits, begun, silent) =
        (world.client(), world.client(), world.client(), world.client());
    world.send(begun, b"GET /v HTTP/1.1\r\nHo");
    world.serve(
        |seen| if seen.request.nonce() == "never" { None } else { crate::world::honest(seen) },
    );
    world.get(waits, "never");
    world.run_for(2 * SECOND);
    world.get(asks, "00000000");
    world.run_for(SECOND / 2);
    scarce(&mut world);
    assert_eq!(
        [asks, waits, begun, silent].map(|client| is_closed(&world, client)),
        [false, false, false, true]
    );
    // Less than a second ago one has sent a request: the next one may be in flight. A client that
    // has begun one waits behind it.
    world.run_for(SECOND / 4);
    scarce(&mut world);
    assert!(!is_closed(&world, begun) && !is_closed(&world, asks));
    world.run_for(SECOND);
    scarce(&mut world);
    assert!(is_closed(&world, asks) && !is_closed(&world, begun));
    world.run_for(SECOND / 50);
    scarce(&mut world);
    assert!(is_closed(&world, begun) && !is_closed(&world, waits));
    world.run_for(SECOND);
    scarce(&mut world);
    assert!(!is_closed(&world, waits), "who waits for an answer stays");
    assert_eq!(world.count(|counters| counters.client_closes.get("made-room")), 3);
    assert_eq!(world.count(|counters| counters.accept_failures.get()), 5);
}

/// A sixteenth at a time, and not more often than every 10 ms.
#[test]
fn few_go_at_a_time() {
    let mut world = World::started(plan(1, 1), 1, 1);
    let clients: Vec<usize> = (0..64).map(|_| world.client()).collect();
    let gone = |world: &World| clients.iter().filter(|client| is_closed(world, **client)).count();
    world.run_for(2 * SECOND);
    (0..10).for_each(|_| scarce(&mut world));
    assert_eq!(gone(&world), 4);
    world.run_for(SECOND / 50);
    scarce(&mut world);
    assert_eq!(gone(&world), 7);
    world.finish();
}

/// Clients of HTTP/2 hear it.
#[test]
fn idle_clients_of_http2_go_too() {
    let mut world = World::started(plan(1, 1), 1, 1);
    let (idle, busy) = (world.http2_client(0, 65_535), world.http2_client(0, 65_535));
    world.serve(|_| None);
    world.open(busy, 1, "/v?n=never");
    world.run_for(2 * SECOND);
    scarce(&mut world);
    let ended = [idle, busy].map(|client| world.clients[client].end.is_some());
    assert_eq!(ended, [true, false], "its direction ends at once, so that GOAWAY arrives");
    world.run_for(SECOND / 50);
    scarce(&mut world);
    // The other direction is read for two seconds.
    world.run_for(3 * SECOND);
    assert_eq!([idle, busy].map(|client| is_closed(&world, client)), [true, false]);
    assert_eq!(world.count(|counters| counters.client_closes.get("made-room")), 1);
}

/// A client that has been served is closed after those that have only connected, however long it is
/// idle.
#[test]
fn who_has_asked_goes_behind_who_never_did() {
    let mut world = World::started(plan(1, 1), 1, 1);
    let (asked, begun) = (world.client(), world.client());
    world.get(asked, "00000000");
    world.send(begun, b"GET /v HTTP/1.1\r\nHo");
    world.run_for(SECOND);
    let silent = world.client();
    world.run_for(2 * SECOND);
    let order = [silent, asked, begun];
    for gone in 1..=3 {
        scarce(&mut world);
        let closed = order.map(|client| is_closed(&world, client));
        assert_eq!(closed, [gone > 0, gone > 1, gone > 2]);
        world.run_for(SECOND / 50);
    }
}

/// A client that has been served is kept as long as silent ones exist, even if those are new.
#[test]
fn who_has_just_come_in_silence_goes_before_who_rests() {
    let mut world = World::started(plan(1, 1), 1, 1);
    let rests = world.client();
    world.get(rests, "00000000");
    world.run_for(3 * SECOND);
    let silent = world.client();
    scarce(&mut world);
    assert!(
        !is_closed(&world, rests) && !is_closed(&world, silent),
        "it is old enough in a moment"
    );
    world.run_for(2 * SECOND);
    scarce(&mut world);
    assert!(!is_closed(&world, rests) && is_closed(&world, silent));
    world.finish();
}
