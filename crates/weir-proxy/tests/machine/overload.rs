//! Proves: a server that answers fewer requests a second with more at once gets fewer and answers
//! more; all clients get responses; operators see why. How: a server behind a lock, with half again
//! as many requests as it can answer. docs/balancing.md#overload

use weir_proxy::observe::report::LearnedLimit;
use weir_proxy::plan::{PipelineMode, Plan, ServerPlan};

use crate::world::{Do, World, answer, plan};

/// Requests that the server can work on at once without harm.
const BEARS: f64 = 8.0;
/// The time of one then.
const TOOK_US: f64 = 10_000.0;
/// Requests that arrive in a second.
const ARRIVE: u64 = 1_200;
const SECONDS: u64 = 5;

fn lock(workers: u16, shared: u32, all: u32) -> World {
    let mut lock: Plan = plan(1, shared);
    let upstream = &mut lock.upstreams[0];
    upstream.pipeline = PipelineMode::Off;
    let server = &mut upstream.servers[0];
    *server = ServerPlan { connections_min: 1, connections_max: all, ..server.clone() };
    let mut world = World::started(lock, workers, 1);
    let mut until_us: Vec<u64> = Vec::new();
    world.serve(move |seen| {
        until_us.retain(|until_us| *until_us > seen.now_us);
        let over = ((until_us.len() + 1) as f64 / BEARS).max(1.0);
        let took_us = (TOOK_US * over * over.sqrt()) as u64;
        until_us.push(seen.now_us + took_us);
        Some(vec![Do::Delay(took_us), Do::Answer(answer(seen.request))])
    });
    world
}

/// Returns the responses in the last second of the load, and the limit at its end. Then all clients
/// get their responses.
fn answers_under_load(world: &mut World) -> (u64, Option<LearnedLimit>) {
    let mut clients = Vec::new();
    let answers = |world: &World| {
        world.count_of(0, |stats| stats.statuses.iter().map(|(_, count)| count).sum())
    };
    let mut before = 0;
    for n in 0..SECONDS * ARRIVE {
        let client = world.client();
        world.ask(client, "GET", &format!("/page?n={n}"), "");
        clients.push(client);
        world.run_for(1_000_000 / ARRIVE);
        if n == (SECONDS - 1) * ARRIVE {
            before = answers(world);
        }
    }
    let counted = answers(world) - before;
    let report = world.nodes[0].engine.report().servers.remove(0);
    world.run_for(40_000_000);
    assert!(
        clients.iter().all(|client| !world.clients[*client].replies.is_empty()),
        "everybody is answered"
    );
    (counted, report.limit)
}

#[test]
fn a_server_behind_a_lock_answers_more_with_fewer_at_once() {
    let able = (BEARS * 1e6 / TOOK_US) as u64;
    // All connections may be shared: nothing is learned.
    let mut world = lock(1, 128, 128);
    let (without, limit) = answers_under_load(&mut world);
    assert_eq!((limit, world.count_of(0, |stats| stats.limit_waits.get())), (None, 0));
    assert!(world.count_of(0, |stats| stats.connection_waits.get()) > 100);
    assert!(world.count_of(0, |stats| stats.connections_wanted.get()) > 200);
    world.finish();
    for workers in [1, 2] {
        let mut world = lock(workers, 8, 128);
        let (with, limit) = answers_under_load(&mut world);
        assert!(
            with * 10 >= able * 7 && with >= 2 * without,
            "{workers}: {with} of {able}, {without} without"
        );
        let limit = limit.expect("it was learned");
        assert!(
            limit.limit < 32 && limit.before > limit.limit && limit.gain_percent >= 15,
            "{limit:?}"
        );
        assert!(world.count_of(0, |stats| stats.limit_waits.get()) > 500);
        world.finish();
    }
}

/// A connection that takes nothing for a while, to show whether more comes than was asked for, does
/// not count as one that is about to take a request: another one is made for what waits.
#[test]
fn nothing_waits_for_a_connection_at_a_sync_point() {
    const CLIENTS: usize = 16;
    let mut grows = plan(1, CLIENTS as u32 / 2);
    grows.upstreams[0].pipeline = PipelineMode::Adaptive;
    let server = &mut grows.upstreams[0].servers[0];
    *server = ServerPlan { connections_min: 1, connections_max: 128, ..server.clone() };
    let mut world = World::started(grows, 1, 1);
    let mut turn = 0_u64;
    world.serve(move |seen| {
        turn += 1;
        let took_us = 1_000 + turn * 7_919 % 20_000;
        Some(vec![Do::Delay(took_us), Do::Answer(answer(seen.request))])
    });
    let clients: Vec<usize> = (0..CLIENTS).map(|_| world.client()).collect();
    let (mut asked, mut looks, mut waiting) = ([0; CLIENTS], 0, 0);
    for step in 0..20_000 {
        for (at, client) in clients.iter().enumerate() {
            if world.clients[*client].replies.len() == asked[at] {
                asked[at] += 1;
                world.ask(*client, "GET", &format!("/page?n={at:02}{:06}", asked[at]), "");
            }
        }
        world.run_for(250);
        // Not while the first connections are made.
        if step > 4_000 {
            looks += 1;
            waiting += world.nodes[0].engine.report().servers[0].waiting;
        }
    }
    assert!(world.count(|counters| counters.sync_points.get()) > 100, "some settle");
    assert!(waiting * 50 < looks, "{waiting} waiting in {looks} looks");
    world.run_for(1_000_000);
    world.finish();
}
