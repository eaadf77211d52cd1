//! Proves: by default no request waits behind a slow one, a server gets as many requests at once as
//! clients send, no request is sent twice, and quick requests share connections once they are known
//! to be quick. docs/pipelining.md#when-requests-share-a-connection

use weir_check::upstreams::check_honest;
use weir_proxy::observe::report::Sharing;
use weir_proxy::plan::{PipelineMode, Plan, ServerPlan};

use crate::world::{Do, Seen, World, answer, plan};

/// The time of a slow response.
const SLOW_US: u64 = 200_000;

pub(crate) fn adaptive(shared: u32, all: u32) -> Plan {
    let mut adaptive = plan(1, shared);
    let upstream = &mut adaptive.upstreams[0];
    (upstream.pipeline, upstream.sharing.rehearse) =
        (PipelineMode::Adaptive, Some("/v?n=rehearse".to_owned()));
    let server = &mut upstream.servers[0];
    *server = ServerPlan { connections_min: 1, connections_max: all, ..server.clone() };
    adaptive
}

/// Answers numbers behind an `s` after [`SLOW_US`], all others at once.
fn serve(seen: &Seen<'_>) -> Option<Vec<Do>> {
    let delay = seen.request.nonce().starts_with('s').then_some(Do::Delay(SLOW_US));
    Some(delay.into_iter().chain([Do::Answer(answer(seen.request))]).collect())
}

/// `count` new clients send one request each in one turn. Returns the clients.
pub(crate) fn burst(
    world: &mut World,
    path: &str,
    letter: char,
    n: usize,
    count: usize,
) -> Vec<usize> {
    let clients: Vec<usize> = (0..count).map(|_| world.client()).collect();
    for (at, client) in clients.iter().enumerate() {
        world.ask(*client, "GET", &format!("{path}?n={letter}{n:04}{at:03}"), "");
    }
    clients
}

pub(crate) fn answered(world: &World, clients: &[usize]) -> usize {
    clients.iter().filter(|client| !world.clients[**client].replies.is_empty()).count()
}

/// Trusted, rehearsed, and known to be quick.
pub(crate) fn warm(plan: Plan) -> World {
    let mut world = World::started(plan, 1, 1);
    world.serve(serve);
    for n in 0..100 {
        let clients = burst(&mut world, "/v", 'q', n, 8);
        world.run_for(1_000);
        assert_eq!(answered(&world, &clients), 8);
        clients.into_iter().for_each(|client| world.half_close(client));
    }
    world.measure_depth();
    world
}

/// Whatever is known of a server, a hundred requests at once are worked on at once.
#[test]
fn a_server_gets_as_many_requests_as_clients_ask() {
    for pipeline in [PipelineMode::Adaptive, PipelineMode::Off] {
        let mut many = adaptive(4, 128);
        many.upstreams[0].pipeline = pipeline;
        let mut world = World::started(many, 1, 1);
        world.serve(serve);
        // The first time weir observes the server for a tenth of a second before it gets more than
        // 32.
        let clients = burst(&mut world, "/v", 's', 100, 100);
        world.run_for(SLOW_US + 100_000 + 20_000);
        assert_eq!(answered(&world, &clients), 100, "{pipeline:?}");
        clients.into_iter().for_each(|client| world.half_close(client));
        for n in 0..20 {
            let clients = burst(&mut world, "/v", 's', n, 100);
            world.run_for(SLOW_US + 20_000);
            assert_eq!(answered(&world, &clients), 100, "{pipeline:?}, round {n}");
            clients.into_iter().for_each(|client| world.half_close(client));
        }
        let behind = world.count(|counters| counters.pipelined.get());
        assert_eq!(
            behind,
            2 * world.count_of(0, |stats| stats.rehearsals.get()),
            "{pipeline:?}: only what weir asks itself"
        );
        world.finish();
    }
}

/// `connections-max` is the most, and a request that finds none waits for one.
#[test]
fn there_are_no_more_connections_than_configured() {
    let mut world = World::started(adaptive(4, 16), 1, 1);
    world.serve(serve);
    let clients = burst(&mut world, "/v", 's', 0, 24);
    world.run_for(SLOW_US + 20_000);
    assert_eq!((answered(&world, &clients), world.open_conns().len()), (16, 16));
    world.run_for(SLOW_US + 20_000);
    assert_eq!(answered(&world, &clients), 24);
    world.finish();
}

#[test]
fn what_is_quick_shares_and_what_is_slow_rides_apart() {
    let mut world = warm(adaptive(4, 64));
    let clients = burst(&mut world, "/v", 'q', 200, 20);
    world.settle_once();
    assert!(world.depth() > 1, "it shares");
    world.run_for(1_000);
    assert_eq!(answered(&world, &clients), 20);
    // Their duration is not known yet.
    for n in 0..40 {
        let slow = burst(&mut world, "/report", 's', n, 3);
        let quick = burst(&mut world, "/v", 'q', 300 + n, 20);
        world.run_for(2_000);
        assert_eq!((answered(&world, &quick), answered(&world, &slow)), (20, 0), "round {n}");
        world.run_for(SLOW_US);
        assert_eq!(answered(&world, &slow), 3);
        for (at, client) in slow.iter().enumerate() {
            let nonce = format!("s{n:04}{at:03}");
            check_honest(&nonce, &world.clients[*client].replies[0]).unwrap();
            assert_eq!(world.times_served(&nonce), 1);
        }
        slow.into_iter().chain(quick).for_each(|client| world.half_close(client));
    }
    assert_eq!(world.count(|counters| counters.escapes.get()), 0);
    assert!(world.count_of(0, |stats| stats.apart_unlike.get()) >= 120);
    let report = world.nodes[0].engine.report().servers.remove(0);
    let sharing = |shape: &str| {
        report.classes.iter().find(|class| class.shape == shape).map(|class| class.sharing)
    };
    assert_eq!(sharing("GET /v?"), Some(Sharing::Alike));
    assert!(matches!(sharing("GET /report?"), Some(Sharing::Slower | Sharing::Overtaken { .. })));
    world.finish();
}

/// Ten in a hundred of one kind take long, by their query: the few that were behind such a one pay
/// for all others.
#[test]
fn one_that_is_overtaken_ends_sharing_for_its_kind() {
    let mut world = warm(adaptive(4, 64));
    let mut late = 0;
    for n in 0..60 {
        let slow = burst(&mut world, "/v", 's', n, 1);
        let quick = burst(&mut world, "/v", 'q', 300 + n, 9);
        world.run_for(2_000);
        late += 9 - answered(&world, &quick);
        for more in 0..20 {
            let others = burst(&mut world, "/other", 'q', 1_000 + 20 * n + more, 2);
            world.run_for(10_000);
            others.into_iter().for_each(|client| world.half_close(client));
        }
        assert_eq!((answered(&world, &quick), answered(&world, &slow)), (9, 1), "round {n}");
        slow.into_iter().chain(quick).for_each(|client| world.half_close(client));
    }
    assert!(late <= 18, "{late} of {} waited behind a slow one", 60 * 9);
    assert_eq!(world.count(|counters| counters.escapes.get()), 0);
    world.finish();
}
