//! Proves: a server that stops responding on connections that have had several requests at once is
//! not pipelined for a while; one that is slow with some requests, or hangs, is not mistaken for
//! it. docs/pipelining-trust.md#trust

use weir_proxy::cross::doubt::Doubt;
use weir_proxy::plan::Plan;
use weir_proxy::upstream::trust::TrustState;

use crate::placement::{adaptive, answered, burst, warm};
use crate::world::{Do, Seen, World, answer};

const SECOND_US: u64 = 1_000_000;
/// The time of a slow response.
const SLOW_US: u64 = 200_000;

/// Never answers numbers behind a `d`, answers those behind an `s` after [`SLOW_US`], and all
/// others at once.
fn serve(seen: &Seen<'_>) -> Option<Vec<Do>> {
    match seen.request.nonce().chars().next() {
        Some('d') => Some(vec![Do::Silence]),
        Some('s') => Some(vec![Do::Delay(SLOW_US), Do::Answer(answer(seen.request))]),
        _ => Some(vec![Do::Answer(answer(seen.request))]),
    }
}

/// A server whose connections are shared, with a short time-out.
fn shared() -> World {
    let mut plan: Plan = adaptive(4, 64);
    plan.upstreams[0].forward_timeout_us = 10 * SECOND_US;
    let mut world = warm(plan);
    world.serve(serve);
    world
}

fn trust(world: &World) -> TrustState {
    world.nodes[0].engine.report().servers[0].trust
}

fn doubts(world: &World) -> u64 {
    world.count(|counters| counters.doubts[Doubt::FallsSilent as usize].get())
}

/// Twenty share connections; then ten send requests that are not answered, and wait until they time
/// out. `is_alone`: no other client sends requests at that time.
fn wait_in_vain(world: &mut World, n: usize, path: &str, is_alone: bool) {
    let quick = burst(world, "/v", 'q', 1_000 + n, 20);
    world.run_for(1_000);
    assert_eq!(answered(world, &quick), 20);
    let mut all = quick;
    let silent = burst(world, path, 'd', n, 10);
    // Requests of the same turn share with them.
    world.run_for(SECOND_US);
    for at in 0..110 {
        let others =
            if is_alone { Vec::new() } else { burst(world, "/v", 'q', 2_000 + 120 * n + at, 1) };
        world.run_for(SECOND_US / 10);
        assert_eq!(answered(world, &others), others.len(), "on another connection");
        all.extend(others);
    }
    assert!(silent.iter().all(|client| world.clients[*client].statuses() == [504]));
    silent.into_iter().chain(all).for_each(|client| world.half_close(client));
    world.run_for(1_000);
}

#[test]
fn a_server_whose_connections_fall_silent_is_not_pipelined() {
    let mut world = shared();
    for n in 0..3 {
        assert_eq!((doubts(&world), trust(&world)), (0, TrustState::Trusted), "{n}");
        wait_in_vain(&mut world, n, "/v", false);
    }
    assert_eq!(
        (doubts(&world), world.nodes[0].engine.report().servers[0].penalty_for),
        (1, Some(Doubt::FallsSilent))
    );
    assert!(matches!(trust(&world), TrustState::Penalty { .. }), "{:?}", trust(&world));
    world.finish();
}

/// Requests that usually take long may take longer still.
#[test]
fn a_long_poll_is_no_silence() {
    let mut world = shared();
    for n in 0..50 {
        let polls = burst(&mut world, "/poll", 's', n, 2);
        world.run_for(2 * SLOW_US);
        assert_eq!(answered(&world, &polls), 2);
        polls.into_iter().for_each(|client| world.half_close(client));
    }
    for n in 0..5 {
        wait_in_vain(&mut world, n, "/poll", false);
    }
    assert_eq!((doubts(&world), trust(&world)), (0, TrustState::Trusted));
    world.finish();
}

/// A server that answers nothing at all is not deaf either.
#[test]
fn a_server_that_hangs_is_not_deaf() {
    let mut world = shared();
    for n in 0..5 {
        wait_in_vain(&mut world, n, "/v", true);
    }
    assert_eq!((doubts(&world), trust(&world)), (0, TrustState::Trusted));
    world.finish();
}
