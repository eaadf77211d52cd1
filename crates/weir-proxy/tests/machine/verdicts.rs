//! Proves: when one worker finds that a server cannot handle several requests at once, all know it,
//! including restarted ones; a kept verdict holds before anything is sent behind anything; an
//! operator ends it. docs/pipelining-trust.md#verdicts

use weir_proxy::cross::doubt::Doubt;
use weir_proxy::cross::verdict::Verdict;
use weir_proxy::engine::restore_verdicts;
use weir_proxy::observe::server_event::What;
use weir_proxy::plan::{ServerPlan, UpstreamPlan};
use weir_proxy::upstream::trust::TrustState;

use crate::rehearsal::{SECOND_US, adaptive, ask_often, is_rehearsal, rehearsals};
use crate::world::{Do, World, honest};

const UNFIT: Verdict = Verdict::Unfit(Doubt::FailsRehearsal);

fn trust(world: &World, node: usize) -> TrustState {
    world.nodes[node].engine.report().servers[0].trust
}

/// Returns the events of a worker since the last call.
fn told(world: &mut World, node: usize) -> Vec<What> {
    let engine = &mut world.nodes[node].engine;
    std::iter::from_fn(|| engine.take_event()).map(|event| event.what).collect()
}

fn clear(world: &mut World) {
    for node in 0..world.nodes.len() {
        world.nodes[node].engine.clear_surplus(0);
    }
    world.settle();
}

#[test]
fn what_one_worker_finds_all_know() {
    let mut world = World::started(adaptive(), 2, 1);
    world.serve(|seen| if is_rehearsal(seen) { Some(vec![Do::Rst]) } else { honest(seen) });
    ask_often(&mut world, 60, "");
    let seen = [told(&mut world, 0), told(&mut world, 1)].concat();
    assert_eq!(seen, [What::Demoted(Doubt::FailsRehearsal)], "one of them, and nobody keeps that");
    world.run_for(61 * SECOND_US);
    ask_often(&mut world, 60, "");
    assert_eq!((trust(&world, 0), trust(&world, 1)), (TrustState::Unfit, TrustState::Unfit));
    let seen = [told(&mut world, 0), told(&mut world, 1)].concat();
    let count = |what: What| seen.iter().filter(|seen| **seen == what).count();
    assert_eq!(
        (count(What::Judged(UNFIT)), count(What::Unfit(Doubt::FailsRehearsal)), seen.len()),
        (2, 1, 3)
    );
    // Also a worker that has seen nothing of it.
    world.begin_anew(1);
    world.settle();
    assert_eq!(trust(&world, 1), TrustState::Unfit);
    clear(&mut world);
    assert!(matches!(trust(&world, 1), TrustState::Earning { .. }));
    assert_eq!(
        (told(&mut world, 0), told(&mut world, 1)),
        (vec![What::Cleared], vec![What::Cleared])
    );
    world.begin_anew(1);
    world.settle();
    assert!(matches!(trust(&world, 1), TrustState::Earning { .. }));
    world.finish();
}

#[test]
fn one_that_was_kept_holds_from_the_first_request_until_it_is_cleared() {
    for (verdict, state) in
        [(UNFIT, TrustState::Unfit), (Verdict::Surplus(None), TrustState::Surplus)]
    {
        let mut world = World::started(adaptive(), 1, 1);
        restore_verdicts(&mut world.nodes[0].engine, &[(0, verdict)]);
        // A server that does not exist.
        restore_verdicts(&mut world.nodes[0].engine, &[(7, verdict)]);
        ask_often(&mut world, 60, "");
        assert_eq!((trust(&world, 0), rehearsals(&world)), (state, 0));
        assert_eq!(world.count(|counters| counters.pipelined.get()), 0);
        clear(&mut world);
        ask_often(&mut world, 25, "");
        assert_eq!((trust(&world, 0), rehearsals(&world)), (TrustState::Trusted, 1));
        world.finish();
    }
}

/// One that may have mixed responses up keeps that verdict.
#[test]
fn the_worse_verdict_holds() {
    let mut world = World::started(adaptive(), 1, 1);
    for (verdict, state) in [
        (UNFIT, TrustState::Unfit),
        (Verdict::Surplus(Some(Doubt::Misframing)), TrustState::Surplus),
        (UNFIT, TrustState::Surplus),
    ] {
        restore_verdicts(&mut world.nodes[0].engine, &[(0, verdict)]);
        assert_eq!(trust(&world, 0), state);
    }
    world.finish();
}

/// Other options make it another upstream with other machines; a server of the same name keeps its
/// verdict.
#[test]
fn a_reload_keeps_it() {
    let mut world = World::started(adaptive(), 1, 1);
    restore_verdicts(&mut world.nodes[0].engine, &[(0, UNFIT)]);
    let mut other = adaptive();
    let UpstreamPlan { servers, queue_size, .. } = &mut other.upstreams[0];
    *queue_size /= 2;
    servers.push(ServerPlan::new("other.test:9000", ([127, 0, 0, 1], 9001).into()));
    world.reload(other);
    let report = world.nodes[0].engine.report();
    let states: Vec<_> = report.servers.iter().map(|server| server.trust).collect();
    assert_eq!(
        states,
        [TrustState::Unfit, TrustState::Unfit, TrustState::Earning { clean: 0 }],
        "before, and now"
    );
    world.finish();
}
