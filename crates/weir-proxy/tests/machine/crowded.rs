//! Proves: a server that serves a few connections at a time, each until it ends, answers all
//! clients. A connection that waits for a place gets one, and none is kept for long without a
//! request once that is known; a server that is only slow loses a few idle connections. How: a
//! server with places, step by step.

use weir_check::upstreams::check_honest;
use weir_proxy::plan::{HealthPlan, PipelineMode, Plan};

use crate::breathing::{SECOND, breathing};
use crate::world::{Do, Seen, World, answer, plan};

const MILLISECOND: u64 = 1_000;

/// One server with the default numbers of connections.
fn default_numbers() -> Plan {
    breathing(1, 32, 1024)
}

/// A millisecond for each request; longer for targets with this prefix.
fn working(slow: &'static str, us: u64) -> impl FnMut(&Seen<'_>) -> Option<Vec<Do>> {
    move |seen| {
        let delay_us = if seen.request.target.starts_with(slow) { us } else { MILLISECOND };
        seen.complete.then(|| vec![Do::Delay(delay_us), Do::Answer(answer(seen.request))])
    }
}

fn crowded(places: usize, workers: u16) -> World {
    let mut world = World::started(default_numbers(), workers, 1);
    world.servers[0].places = places;
    world.serve(working("/slow", SECOND));
    world
}

/// Connections that were closed to make room.
fn closes(world: &World) -> u64 {
    world.count(|counters| counters.upstream_closes.get("crowded"))
}

/// Each of these clients asks once; all are answered after this time.
fn all_ask(world: &mut World, clients: &[usize], label: &str, within_us: u64) {
    for (n, client) in clients.iter().enumerate() {
        world.get(*client, &format!("{label}{n:04}"));
    }
    world.run_for(within_us);
    for (n, client) in clients.iter().enumerate() {
        let last = world.clients[*client]
            .replies
            .last()
            .unwrap_or_else(|| panic!("{label}: {n} has nothing"));
        check_honest(&format!("{label}{n:04}"), last).unwrap();
    }
}

fn clients(world: &mut World, count: usize) -> Vec<usize> {
    (0..count).map(|n| world.client_of(n % world.nodes.len())).collect()
}

/// All clients are answered, at once if no other is waiting; and no connection is idle for long.
#[test]
fn everybody_is_answered_by_a_server_of_few_places() {
    for (places, workers) in [(1, 1), (1, 2), (2, 2), (3, 2), (1, 4), (5, 3)] {
        let mut world = crowded(places, workers);
        let all = clients(&mut world, 12);
        all_ask(&mut world, &all, "aaaa", SECOND);
        for round in 0..50 {
            // One may be on a connection that is tried although there is no place for it.
            all_ask(&mut world, &all, &format!("bb{round:02}"), SECOND / 2);
        }
        for round in 0..20 {
            let one = &all[round % all.len()..][..1];
            all_ask(&mut world, one, &format!("cc{round:02}"), SECOND / 4);
        }
        world.run_for(3 * SECOND);
        assert_eq!(
            world.open_conns().len(),
            0,
            "{places} {workers}: the server has them for others"
        );
        all_ask(&mut world, &all[..1], "dddd", 5 * MILLISECOND);
        world.finish();
    }
}

/// Once the number of places is known, requests wait for a connection here: weir does not make more
/// connections than there are places, and none is closed and made again in a loop.
#[test]
fn no_more_connections_are_made_than_there_are_places() {
    for (places, workers) in [(4, 1), (4, 2), (6, 3)] {
        let mut world = crowded(places, workers);
        let all = clients(&mut world, 3 * places);
        for round in 0..20 {
            all_ask(&mut world, &all, &format!("aa{round:02}"), 3 * SECOND);
        }
        let connects = |world: &World| world.count(|counters| counters.upstream_connects.get());
        let before = connects(&world);
        for round in 0..200 {
            all_ask(&mut world, &all, &format!("b{round:03}"), SECOND / 2);
        }
        let (made, asked) = (connects(&world) - before, 200 * all.len() as u64);
        assert!(made * 100 <= asked, "{places} {workers}: {made} connections for {asked} requests");
        world.finish();
    }
}

/// Connections that one worker keeps without a request do not make the other worker wait, before
/// anything is known.
#[test]
fn resting_connections_make_room() {
    let mut world = crowded(1, 2);
    let here = [world.client_of(0), world.client_of(1)];
    for round in 0..10 {
        // Each worker has its own after a few requests.
        all_ask(&mut world, &here[round % 2..][..1], &format!("aa{round:02}"), SECOND / 2);
    }
    world.finish();
}

/// A POST waits for its place, and is given to the server once.
#[test]
fn posts_wait_for_a_place() {
    let mut world = crowded(1, 2);
    let all = clients(&mut world, 12);
    for (n, client) in all.iter().enumerate() {
        world.post(*client, &format!("aaaa{n:04}"), b"x");
    }
    world.run_for(SECOND);
    for (n, client) in all.iter().enumerate() {
        let nonce = format!("aaaa{n:04}");
        check_honest(&nonce, &world.clients[*client].replies[0]).unwrap();
        assert_eq!(world.times_served(&nonce), 1);
    }
    world.finish();
}

/// First responses that are late for other reasons cost a few idle connections.
#[test]
fn a_slow_server_keeps_its_connections() {
    for slow_us in [110, 150, 190, 220, 250, 290, 400, 1_000, 30_000] {
        let mut world = World::started(default_numbers(), 2, 1);
        world.serve(working("/slow", slow_us * MILLISECOND));
        for n in 0..100 {
            let (poll, client) = (world.client_of(n % 2), world.client_of(n % 2));
            world.ask(poll, "GET", &format!("/slow?n=aaaa{n:04}"), "");
            all_ask(&mut world, &[client], &format!("bb{n:02}"), 150 * MILLISECOND);
            world.run_for(SECOND - 150 * MILLISECOND);
        }
        world.run_for(30 * SECOND);
        assert!(closes(&world) <= 16, "{slow_us} ms: {} closed", closes(&world));
        world.finish();
    }
}

/// Likewise if all are late, from the beginning, and several at a time.
#[test]
fn a_server_that_is_slow_from_the_beginning_keeps_its_connections() {
    for slow_us in [101, 110, 150, 199, 250] {
        let mut world = World::started(default_numbers(), 2, 1);
        world.serve(working("/", slow_us * MILLISECOND));
        let all = clients(&mut world, 8);
        for round in 0..30 {
            for (n, client) in all.iter().enumerate() {
                world.post(*client, &format!("a{round:03}{n:04}"), b"x");
            }
            world.run_for(slow_us * (3 + round % 4) * MILLISECOND / 2);
        }
        world.run_for(SECOND);
        assert!(all.iter().all(|client| world.clients[*client].replies.len() == 30), "{slow_us}");
        assert!(closes(&world) <= 8, "{slow_us} ms: {} closed", closes(&world));
        world.finish();
    }
}

/// A probe gets its place as well, when idle and beside requests.
#[test]
fn probes_are_answered_by_a_server_of_one_place() {
    for busy in [false, true] {
        let mut probed = default_numbers();
        let health =
            HealthPlan { interval_us: SECOND, timeout_us: SECOND, ..HealthPlan::default() };
        (probed.upstreams[0].health, probed.upstreams[0].pipeline) =
            (Some(health), PipelineMode::Depth(16));
        let mut world = World::started(probed, 2, 1);
        world.servers[0].places = 1;
        world.serve(working("/slow", SECOND));
        let all = clients(&mut world, 4);
        for round in 0..600 {
            if busy || round == 0 {
                all_ask(&mut world, &all, &format!("a{round:03}"), SECOND);
            } else {
                world.run_for(50 * MILLISECOND);
            }
        }
        let probes = world.count(|counters| counters.probes.get() + counters.probes_skipped.get());
        assert!(
            probes > 20 && world.count(|counters| counters.probe_failures.get()) == 0,
            "{busy}: {probes}"
        );
        world.finish();
    }
}

/// An exact number of connections does not change.
#[test]
fn exact_numbers_are_left_alone() {
    let mut world = World::started(plan(1, 4), 1, 1);
    world.serve(working("/slow", 10 * SECOND));
    let slow = clients(&mut world, 3);
    for (n, client) in slow.iter().enumerate() {
        world.ask(*client, "GET", &format!("/slow?n=aaaa{n:04}"), "");
    }
    world.run_for(11 * SECOND);
    assert_eq!((closes(&world), world.open_conns().len()), (0, 4));
    world.finish();
}
