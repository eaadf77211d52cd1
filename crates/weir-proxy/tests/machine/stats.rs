//! Proves: the counters of each server, and the engine's report about its connections.
//! docs/semantics.md#what-you-can-observe. The end of every test of this binary checks that the
//! figures of servers add up to those of the worker.

use weir_proxy::cross::doubt::Doubt;
use weir_proxy::cross::standing::Order;
use weir_proxy::ending::UpstreamEnd;
use weir_proxy::observe::report::{ConnectionReport, ConnectionState, ServerReport};
use weir_proxy::plan::PipelineMode;
use weir_proxy::upstream::server_state::State;
use weir_proxy::upstream::trust::{CLEAN_ANSWERS_MIN, PENALTY_MIN_US, TrustState};

use crate::world::{Do, Door, World, answer, honest, plan};

fn report(world: &World, node: usize) -> ServerReport {
    world.nodes[node].engine.report().servers.remove(0)
}

fn states(report: &ServerReport) -> Vec<ConnectionState> {
    report.connections.iter().map(|connection| connection.state).collect()
}

/// The only connection of a world with one worker, one server and one connection.
fn only(world: &World) -> ConnectionReport {
    report(world, 0).connections.remove(0)
}

/// One connection to one server, trusted, that takes eight requests at a time.
fn trusted() -> World {
    let mut deep = plan(1, 1);
    deep.upstreams[0].pipeline = PipelineMode::Depth(8);
    let mut world = World::started(deep, 1, 1);
    let client = world.client();
    for n in 0..CLEAN_ANSWERS_MIN {
        world.get(client, &format!("{n:08}"));
        world.settle();
    }
    world
}

/// Responses by status, and requests are counted where they belong.
#[test]
fn answers_by_server_and_status() {
    let mut world = World::started(plan(2, 1), 1, 1);
    let reply =
        |status: &str| format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n").into_bytes();
    world.servers[0].serve =
        Box::new(move |_| Some(vec![Do::Bytes(reply("103")), Do::Answer(reply("404"))]));
    world.servers[1].serve = Box::new(move |_| Some(vec![Do::Answer(reply("200"))]));
    let client = world.client();
    for n in 0..10 {
        world.get(client, &format!("{n:08}"));
        world.settle();
    }
    let statuses = |server: usize| {
        let stats = &world.nodes[0].stats()[server];
        (
            stats.statuses.iter().collect::<Vec<_>>(),
            stats.requests.get(),
            stats.latency.snapshot().count(),
        )
    };
    assert_eq!(statuses(0), (vec![(404, 5)], 5, 5), "interim answers don't count");
    assert_eq!(statuses(1), (vec![(200, 5)], 5, 5));
    world.finish();
}

/// The response time is that of the connection, from the last try to the end of the response.
#[test]
fn response_time() {
    let mut world = World::simple(1);
    let mut tries = 0;
    world.serve(move |seen| {
        tries += 1;
        let wait =
            if tries == 1 { vec![Do::Delay(30_000), Do::Rst] } else { vec![Do::Delay(5_000)] };
        Some([wait, vec![Do::Answer(answer(seen.request))]].concat())
    });
    let client = world.client();
    world.get(client, "00000001");
    world.run_for(200_000);
    let latency = world.nodes[0].stats()[0].latency.snapshot();
    assert_eq!((latency.count(), latency.sum_us()), (1, 5_000));
    assert_eq!(world.count_of(0, |server| server.retries.get()), 1);
    world.finish();
}

/// Requests that wait on a connection and those that the server has, and their end.
#[test]
fn a_busy_connection() {
    let mut world = trusted();
    assert_eq!(states(&report(&world, 0)), [ConnectionState::Idle]);
    world.serve(|_| Some(vec![Do::Silence]));
    world.servers[0].deaf = true;
    let client = world.client();
    world.get(client, "aaaa0000");
    world.settle();
    // Behind a send that does not end.
    (1..5).for_each(|n| world.get(client, &format!("aaaa{n:04}")));
    world.settle();
    let busy = only(&world);
    assert_eq!((busy.state, busy.in_flight, busy.queued), (ConnectionState::Busy, 1, 4));
    assert_eq!(
        (busy.answers, busy.closes, busy.closed_why),
        (u64::from(CLEAN_ANSWERS_MIN), 0, None)
    );
    (5..12).for_each(|n| world.get(client, &format!("aaaa{n:04}")));
    world.settle();
    let server = report(&world, 0);
    assert_eq!(
        (states(&server), server.unanswered, server.waiting),
        (vec![ConnectionState::Full], 8, 4)
    );
    assert_eq!((server.depth, server.ready, server.capacity), (8, 1, 1000));
    world.finish();
}

/// A request that nothing may follow, a client that does not read, a large response: why a
/// connection takes nothing.
#[test]
fn why_nothing_is_put_on_a_connection() {
    let mut world = trusted();
    world.serve(|_| Some(vec![Do::Silence]));
    // Otherwise a POST would have a new connection: it is not known whether this one lasts for more
    // responses.
    world.run_for(100_000);
    let client = world.client();
    world.post(client, "aaaa0001", b"x");
    world.settle();
    assert_eq!(only(&world).state, ConnectionState::Held);
    world.finish();

    let mut world = trusted();
    world.serve(|_| {
        let begin = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n".to_vec();
        Some(vec![Do::Bytes(begin), Do::Delay(1_000), Do::Bytes(vec![b'x'; 400_000]), Do::Silence])
    });
    let client = world.client();
    world.stall(client, true);
    world.get(client, "aaaa0001");
    world.settle();
    assert_eq!(only(&world).state, ConnectionState::Exclusive);
    world.run_for(10_000);
    assert_eq!(only(&world).state, ConnectionState::Paused);
    world.stall(client, false);
    world.finish();
}

/// A loss is reported with its reason, the replacement connection proves itself first, and time
/// passes.
#[test]
fn after_a_loss() {
    let mut world = trusted();
    let conn = world.open_conns()[0];
    world.say(conn, Do::Rst);
    world.settle();
    world.servers[0].serve =
        Box::new(|seen| Some(vec![Do::Delay(50_000), Do::Answer(answer(seen.request))]));
    let client = world.client();
    world.run_for(10_000);
    let fresh = only(&world);
    assert_eq!((fresh.state, fresh.answers), (ConnectionState::Probation, 0));
    assert_eq!((fresh.closes, fresh.closed_why), (1, Some(UpstreamEnd::Reset)));
    world.get(client, "aaaa0001");
    world.run_for(100_000);
    let proven = only(&world);
    assert_eq!((proven.state, proven.answers), (ConnectionState::Idle, 1));
    assert_eq!(proven.since_us, fresh.since_us + 100_000);
    assert_eq!(world.count_of(0, |server| server.closes.get("reset")), 1);
    world.finish();
}

/// A server that refuses connections: how often, why, and when it is tried again.
#[test]
fn a_server_that_is_down() {
    let mut world = World::new(plan(1, 1), 1, 1);
    world.servers[0].door = Door::Refuses;
    world.run_for(60_000);
    let server = report(&world, 0);
    let down = &server.connections[0];
    assert_eq!(
        (down.state, down.closed_why, server.ready),
        (ConnectionState::Down, Some(UpstreamEnd::ConnectFailed), 0)
    );
    assert!(down.retry_us > 0 && !down.state.is_up());
    assert_eq!(down.closes, world.count_of(0, |server| server.connect_failures.get()));
    world.servers[0].door = Door::Mute;
    world.run_for(1_000_000);
    assert_eq!(states(&report(&world, 0)), [ConnectionState::Connecting]);
    world.servers[0].door = Door::Open;
    world.finish();
}

/// A doubt that one worker finds is known to both and counted once.
#[test]
fn a_doubt_counts_once() {
    let mut world = World::started(plan(1, 2), 2, 1);
    world
        .serve(|_| Some(vec![Do::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n".to_vec())]));
    let client = world.client();
    world.get(client, "00000001");
    world.settle();
    assert_eq!(world.count_of(0, |server| server.doubts[Doubt::InvalidLength as usize].get()), 1);
    assert_eq!(
        (
            world.count(|all| all.demotions.get()),
            world.count_of(0, |server| server.demotions.get())
        ),
        (1, 1)
    );
    for node in 0..2 {
        let server = report(&world, node);
        assert!(matches!(server.trust, TrustState::Penalty { .. }), "worker {node}");
        assert!(server.penalty_us > 0 && server.penalty_us <= PENALTY_MIN_US);
        assert_eq!(server.depth, 1);
    }
    world.finish();
}

/// Connections that left the pool are counted, and their successors know why they exist.
#[test]
fn tunnels_leave_the_pool() {
    let mut world = World::simple(1);
    let switch =
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n".to_vec();
    world.serve(move |_| Some(vec![Do::Switch(switch.clone())]));
    let client = world.client();
    world.ask(client, "GET", "/v?n=00000001", "Connection: upgrade\r\nUpgrade: x\r\n");
    world.run_for(100_000);
    let server = report(&world, 0);
    assert_eq!((server.tunnels, server.ready, server.unanswered), (1, 1, 0));
    let fresh = &server.connections[0];
    assert_eq!(
        (fresh.state, fresh.closes, fresh.closed_why),
        (ConnectionState::Idle, 1, Some(UpstreamEnd::Upgraded))
    );
    assert_eq!(
        world.count_of(0, |server| server
            .statuses
            .iter()
            .map(|(status, _)| u64::from(status))
            .sum()),
        101
    );
    world.finish();
}

/// An operator's order is reported, and unmade connections are no failure.
#[test]
fn orders_are_reported() {
    let mut world = World::simple(1);
    world.order(0, Order::Disable);
    world.settle();
    let server = report(&world, 0);
    assert_eq!((server.standing, server.ready), (State::Disabled, 0));
    let parked = &server.connections[0];
    assert_eq!(
        (parked.state, parked.closes, parked.closed_why),
        (ConnectionState::Parked, 1, Some(UpstreamEnd::Disabled))
    );
    assert_eq!(parked.retry_us, 0);
    world.order(0, Order::Enable);
    world.settle();
    assert_eq!(
        (report(&world, 0).standing, only(&world).state),
        (State::Active, ConnectionState::Probation)
    );
    world.finish();
}

/// Every connection of a server has its number, whichever worker has it.
#[test]
fn connections_are_numbered() {
    for workers in 1..=3 {
        let world = World::started(plan(3, 5), workers, 1);
        for server in 0..3 {
            let reports =
                world.nodes.iter().map(|node| node.engine.report().servers.remove(server));
            let mut numbers: Vec<u32> = reports
                .flat_map(|server| server.connections)
                .map(|connection| connection.number)
                .collect();
            numbers.sort_unstable();
            assert_eq!(numbers, [0, 1, 2, 3, 4], "server {server} of {workers} workers");
        }
        world.finish();
    }
}

/// A restarted worker keeps its counts, and reports the current state.
#[test]
fn totals_survive_a_worker() {
    let mut world = World::simple(1);
    let client = world.client();
    world.get(client, "00000001");
    world.settle();
    world.serve(honest);
    world.begin_anew(0);
    world.run_for(100_000);
    assert_eq!(world.count_of(0, |server| server.requests.get()), 1);
    assert_eq!((only(&world).answers, only(&world).closes), (0, 0));
    world.finish();
}
