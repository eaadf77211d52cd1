//! Proves: weir pipelines a server only after it has answered several of weir's own requests that
//! were sent at once; rehearsals use no personal target; a server that fails harms no client and is
//! not rehearsed again after two failures. docs/pipelining-trust.md#rehearsal

use weir_check::upstreams::check_honest;
use weir_proxy::cross::doubt::Doubt;
use weir_proxy::plan::{PipelineMode, Plan, Share};
use weir_proxy::upstream::trust::TrustState;

use crate::world::{Do, Seen, World, answer, honest, plan};

pub(crate) const SECOND_US: u64 = 1_000_000;

pub(crate) fn adaptive() -> Plan {
    let mut adaptive = plan(1, 4);
    adaptive.upstreams[0].pipeline = PipelineMode::Adaptive;
    adaptive
}

pub(crate) fn is_rehearsal(seen: &Seen<'_>) -> bool {
    seen.request.fields.first("user-agent") == Some("weir-rehearsal")
}

/// Four clients request one target this often; each response is as expected.
pub(crate) fn ask_often(world: &mut World, times: usize, fields: &str) {
    let clients: Vec<usize> = (0..4).map(|_| world.client()).collect();
    for n in 0..times {
        clients.iter().for_each(|client| world.ask(*client, "GET", "/page?n=often000", fields));
        world.run_for(2_000);
        for client in &clients {
            assert_eq!(world.clients[*client].replies.len(), n + 1);
            check_honest("often000", &world.clients[*client].replies[n]).unwrap();
        }
    }
    clients.into_iter().for_each(|client| world.half_close(client));
    world.run_for(2_000);
}

fn trust(world: &World) -> TrustState {
    world.nodes[0].engine.report().servers[0].trust
}

pub(crate) fn rehearsals(world: &World) -> u64 {
    world.count_of(0, |stats| stats.rehearsals.get())
}

#[test]
fn a_server_is_pipelined_when_it_was_rehearsed() {
    let mut world = World::started(adaptive(), 1, 1);
    ask_often(&mut world, 15, "");
    assert!(matches!(trust(&world), TrustState::Earning { .. }));
    ask_often(&mut world, 10, "");
    assert_eq!((trust(&world), rehearsals(&world)), (TrustState::Trusted, 1));
    let asked: Vec<_> = world.conns.iter().flat_map(|conn| &conn.requests).collect();
    let of_weir =
        asked.iter().filter(|request| request.fields.first("user-agent") == Some("weir-rehearsal"));
    let methods: Vec<_> =
        of_weir.map(|request| (request.method.as_str(), request.target.as_str())).collect();
    assert_eq!(
        methods,
        [("GET", "/page?n=often000"), ("HEAD", "/page?n=often000"), ("GET", "/page?n=often000")]
    );
    world.finish();
}

/// If all requests carry credentials, or each has another target, weir has nothing to request; a
/// target of the configuration works.
#[test]
fn what_is_one_clients_is_not_asked_again() {
    for (fields, expected) in [("Cookie: a=b\r\n", 1), ("Authorization: Basic eDp5\r\n", 0)] {
        let mut world = World::started(adaptive(), 1, 1);
        ask_often(&mut world, 40, fields);
        assert_eq!(rehearsals(&world), expected, "{fields}");
        assert_eq!(
            trust(&world),
            if expected == 1 { TrustState::Trusted } else { TrustState::Clean },
            "{fields}"
        );
        let copies = world
            .requests()
            .filter(|request| request.fields.first("user-agent") == Some("weir-rehearsal"));
        assert!(copies.into_iter().all(|request| !request.fields.has("cookie")), "{fields}");
        world.finish();
        let mut named = adaptive();
        named.upstreams[0].sharing.rehearse = Some("/v?n=named000".to_owned());
        let mut world = World::started(named, 1, 1);
        ask_often(&mut world, 40, fields);
        assert_eq!((trust(&world), rehearsals(&world)), (TrustState::Trusted, 1), "{fields}");
        assert_eq!(world.times_served("named000"), 3);
        world.finish();
    }
    let mut world = World::started(adaptive(), 1, 1);
    let client = world.client();
    for n in 0..100 {
        world.get(client, &format!("{n:08}"));
        let other = world.client();
        world.get(other, &format!("x{n:07}"));
        world.settle();
    }
    assert_eq!((trust(&world), rehearsals(&world)), (TrustState::Clean, 0));
    world.finish();
}

/// Servers that execute the first or the last of the requests that they read at once, or crash: no
/// client is affected.
#[test]
fn who_fails_harms_nobody_and_is_left_alone() {
    type Fails = fn(&Seen<'_>) -> Vec<Do>;
    let kinds: [(&str, Fails); 4] = [
        ("the first", |seen| {
            if seen.behind { vec![Do::Silence] } else { vec![Do::Answer(answer(seen.request))] }
        }),
        ("the last", |_| vec![Do::Silence]),
        ("dies", |_| vec![Do::Rst]),
        ("closes", |seen| {
            if seen.behind { vec![Do::Fin] } else { vec![Do::Answer(answer(seen.request))] }
        }),
    ];
    for (name, fails) in kinds {
        let mut world = World::started(adaptive(), 1, 1);
        world.serve(move |seen| if is_rehearsal(seen) { Some(fails(seen)) } else { honest(seen) });
        ask_often(&mut world, 25, "");
        world.run_for(21 * SECOND_US);
        assert!(matches!(trust(&world), TrustState::Penalty { .. }), "{name}: {:?}", trust(&world));
        world.run_for(60 * SECOND_US);
        ask_often(&mut world, 25, "");
        world.run_for(21 * SECOND_US);
        assert_eq!((trust(&world), rehearsals(&world)), (TrustState::Unfit, 2), "{name}");
        assert_eq!(
            world.count(|counters| counters.doubts[Doubt::FailsRehearsal as usize].get()),
            2,
            "{name}"
        );
        world.run_for(3600 * SECOND_US);
        ask_often(&mut world, 50, "");
        assert_eq!((trust(&world), rehearsals(&world)), (TrustState::Unfit, 2), "{name}");
        assert_eq!(
            world.count(|counters| counters.pipelined.get()),
            4,
            "{name}: only what weir asked itself"
        );
        world.finish();
    }
}

/// With `share="client"` the connection of a rehearsal closes afterwards, which is not a failure.
#[test]
fn clients_that_are_kept_apart_have_their_servers_rehearsed_once() {
    let mut apart = adaptive();
    apart.upstreams[0].share = Share::Client;
    let mut world = World::started(apart, 1, 1);
    ask_often(&mut world, 60, "");
    assert_eq!((trust(&world), rehearsals(&world)), (TrustState::Trusted, 1));
    world.finish();
}

/// When all connections have ended, another program may be behind the address.
#[test]
fn it_is_rehearsed_again_when_all_connections_have_ended() {
    let mut world = World::started(adaptive(), 1, 1);
    ask_often(&mut world, 25, "");
    assert_eq!((trust(&world), rehearsals(&world)), (TrustState::Trusted, 1));
    // A server may end idle connections.
    for conn in world.open_conns() {
        world.cut(conn, Do::Fin);
    }
    world.run_for(2 * SECOND_US);
    ask_often(&mut world, 5, "");
    assert_eq!((trust(&world), rehearsals(&world)), (TrustState::Trusted, 1));
    for conn in world.open_conns() {
        world.cut(conn, Do::Rst);
    }
    world.run_for(2 * SECOND_US);
    ask_often(&mut world, 5, "");
    assert_eq!((trust(&world), rehearsals(&world)), (TrustState::Trusted, 2));
    world.finish();
}
