//! Proves: a server that dies of several requests on one connection is not pipelined any more, soon
//! for good; one that is restarted, or dies of a request that is alone, is.
//! docs/pipelining-trust.md#trust

use weir_proxy::cross::doubt::Doubt;
use weir_proxy::upstream::trust::TrustState;

use crate::placement::{adaptive, answered, burst, warm};
use crate::world::{Do, Door, Seen, World, answer, honest};

const SECOND_US: u64 = 1_000_000;

/// Answers at once; for what has an `x` in front of its number all its connections break, which the
/// test does.
fn serve(seen: &Seen<'_>) -> Option<Vec<Do>> {
    let is_last = seen.request.nonce().starts_with('x');
    Some(vec![if is_last { Do::Silence } else { Do::Answer(answer(seen.request)) }])
}

fn trust(world: &World) -> TrustState {
    world.nodes[0].engine.report().servers[0].trust
}

fn doubts(world: &World) -> u64 {
    world.count(|counters| counters.doubts[Doubt::DiesShared as usize].get())
}

/// All connections break, and for a moment there is no server.
fn go_down(world: &mut World) {
    world.servers[0].door = Door::Refuses;
    for conn in world.open_conns() {
        world.cut(conn, Do::Rst);
    }
    world.run_for(SECOND_US / 10);
    world.servers[0].door = Door::Open;
    world.serve(honest);
    world.run_for(2 * SECOND_US);
}

/// `count` requests in one turn, and then the server is gone for a moment. They are answered in the
/// end.
fn crash(world: &mut World, n: usize, count: usize) {
    let clients = burst(world, "/v", 'x', n, count);
    world.run_for(1_000);
    go_down(world);
    assert_eq!(answered(world, &clients), count);
    clients.into_iter().for_each(|client| world.half_close(client));
    world.serve(serve);
}

/// Traffic until the server is rehearsed again, if it ever is.
fn warm_again(world: &mut World, n: usize) {
    for at in 0..100 {
        let clients = burst(world, "/v", 'q', 1_000 * n + at, 8);
        world.run_for(1_000);
        assert_eq!(answered(world, &clients), 8);
        clients.into_iter().for_each(|client| world.half_close(client));
    }
}

#[test]
fn a_server_that_dies_of_company_is_not_pipelined() {
    let mut world = warm(adaptive(4, 64));
    world.serve(serve);
    assert_eq!(trust(&world), TrustState::Trusted);
    crash(&mut world, 1, 20);
    assert!(matches!(trust(&world), TrustState::Penalty { .. }), "{:?}", trust(&world));
    assert_eq!(
        (doubts(&world), world.nodes[0].engine.report().servers[0].penalty_for),
        (1, Some(Doubt::DiesShared))
    );
    world.run_for(61 * SECOND_US);
    warm_again(&mut world, 2);
    assert_eq!(trust(&world), TrustState::Trusted);
    crash(&mut world, 3, 20);
    assert_eq!((doubts(&world), trust(&world)), (2, TrustState::Unfit));
    world.run_for(1_000 * SECOND_US);
    warm_again(&mut world, 4);
    assert_eq!(trust(&world), TrustState::Unfit);
    world.finish();
}

/// It dies of these requests alone, or an operator restarts it.
#[test]
fn a_server_that_dies_without_company_is_pipelined_again() {
    let mut world = warm(adaptive(4, 64));
    world.serve(serve);
    for n in 0..3 {
        let polls = burst(&mut world, "/rare", 'x', 10 * n, 2);
        world.run_for(1_000);
        go_down(&mut world);
        assert_eq!(answered(&world, &polls), 2);
        polls.into_iter().for_each(|client| world.half_close(client));
        world.serve(serve);
        assert_eq!(doubts(&world), n as u64, "of those that shared a connection");
        warm_again(&mut world, 10 * n + 5);
        assert_eq!(trust(&world), TrustState::Trusted);
        crash(&mut world, 10 * n + 7, 20);
        assert!(matches!(trust(&world), TrustState::Penalty { .. }), "{:?}", trust(&world));
        world.run_for(PENALTIES_US);
        warm_again(&mut world, 10 * n + 8);
        assert_eq!(trust(&world), TrustState::Trusted);
    }
    world.finish();
}

/// Longer than the third penalty.
const PENALTIES_US: u64 = 300 * SECOND_US;
