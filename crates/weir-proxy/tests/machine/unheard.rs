//! Proves: a connection that was forgotten without notice costs a safe request 3 s at most, once,
//! and no other idle connection is tried as long; an unsafe request is not sent twice; a server
//! that merely takes its time keeps its connections. docs/connections.md, docs/retries.md.

use weir_check::upstreams::check_honest;
use weir_proxy::engine::Delivery;
use weir_proxy::plan::{PipelineMode, Plan};

use crate::world::{Do, World, answer, plan};

/// The most that a forgotten connection may cost.
const COST_US: u64 = 3_000_000;

/// All connections are made at the start and kept.
fn eager(connections: u32, pipeline: PipelineMode) -> Plan {
    let mut plan = plan(1, connections);
    plan.upstreams[0].servers[0].connections_min = connections;
    plan.upstreams[0].pipeline = pipeline;
    plan
}

/// A middlebox forgets all current connections.
fn forget(world: &mut World) -> usize {
    let open = world.open_conns();
    open.iter().for_each(|conn| world.conns[*conn].delivery = Delivery::Unheard);
    open.len()
}

/// Each client sends one request; all are answered in time, by new connections.
fn all_are_answered(world: &mut World, clients: usize, label: &str) {
    let workers = world.nodes.len();
    let clients: Vec<usize> = (0..clients).map(|n| world.client_of(n % workers)).collect();
    for (n, client) in clients.iter().enumerate() {
        world.get(*client, &format!("{label}{n:04}"));
    }
    world.run_for(COST_US);
    for (n, client) in clients.iter().enumerate() {
        let nonce = format!("{label}{n:04}");
        check_honest(&nonce, &world.clients[*client].replies[0]).unwrap();
        assert_eq!(world.times_served(&nonce), 1);
    }
}

#[test]
fn forgotten_connections_cost_three_seconds_once() {
    for pipeline in [PipelineMode::Adaptive, PipelineMode::Off] {
        for workers in [1, 2] {
            let mut world = World::started(eager(8, pipeline), workers, 1);
            all_are_answered(&mut world, 16, "warm");
            world.run_for(10_000_000);
            assert_eq!(forget(&mut world), 8);
            // The first request finds out for all of them: later ones use new connections at once.
            all_are_answered(&mut world, usize::from(workers), "lost");
            let again: Vec<usize> =
                (0..16).map(|n| world.client_of(n % usize::from(workers))).collect();
            for (n, client) in again.iter().enumerate() {
                world.get(*client, &format!("next{n:04}"));
            }
            world.run_for(1_000);
            for (n, client) in again.iter().enumerate() {
                check_honest(&format!("next{n:04}"), &world.clients[*client].replies[0]).unwrap();
            }
            assert!(
                world
                    .conns
                    .iter()
                    .filter(|conn| conn.delivery == Delivery::Unheard)
                    .all(|conn| conn.closed)
            );
            world.finish();
        }
    }
}

/// The other idle connection may have been heard of later than the one that finds out, but before
/// anything was lost on that.
#[test]
fn who_finds_out_may_have_rested_longest() {
    let mut found = 0;
    for (lost, later) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let mut world = World::started(eager(2, PipelineMode::Off), 1, 1);
        world.serve(move |seen| {
            let delay_us = if seen.conn == later { 100_000 } else { 0 };
            Some(vec![Do::Delay(delay_us), Do::Answer(answer(seen.request))])
        });
        let clients = [world.client(), world.client()];
        clients.iter().for_each(|client| world.get(*client, "warm0000"));
        world.run_for(1_000_000);
        world.conns[lost].delivery = Delivery::Unheard;
        world.get(clients[0], "lost0000");
        world.run_for(200_000);
        // Unless the request used the other one.
        if world.clients[clients[0]].replies.len() == 1 {
            found += 1;
            world.run_for(COST_US - 200_000);
            check_honest("lost0000", &world.clients[clients[0]].replies[1]).unwrap();
            assert!(
                (0..2).all(|conn| world.conns[conn].closed),
                "{lost} finds out, {later} was heard of later"
            );
        }
        world.finish();
    }
    assert_eq!(found, 2);
}

#[test]
fn many_requests_on_forgotten_connections_are_all_answered() {
    for workers in [1, 2] {
        let mut world = World::started(eager(4, PipelineMode::Adaptive), workers, 1);
        all_are_answered(&mut world, 100, "warm");
        forget(&mut world);
        all_are_answered(&mut world, 100, "lost");
        world.finish();
    }
}

/// The request may have arrived, although nothing came back.
#[test]
fn what_is_not_safe_is_not_sent_again() {
    let mut world = World::started(eager(2, PipelineMode::Adaptive), 1, 1);
    forget(&mut world);
    let (client, other) = (world.client(), world.client());
    world.post(client, "00000001", b"x");
    world.get(other, "00000002");
    world.run_for(COST_US);
    assert_eq!(world.clients[client].statuses(), [502]);
    assert_eq!(world.times_served("00000001"), 0);
    check_honest("00000002", &world.clients[other].replies[0]).unwrap();
    world.finish();
}

/// Requests that were on a forgotten connection did not kill the server.
#[test]
fn nobody_is_accused() {
    let mut world = World::started(eager(1, PipelineMode::Adaptive), 1, 1);
    let client = world.client();
    for n in 0..8 {
        forget(&mut world);
        world.get(client, &format!("{n:08}"));
        world.run_for(COST_US);
        check_honest(&format!("{n:08}"), &world.clients[client].replies[n]).unwrap();
    }
    assert_eq!(world.clients[client].statuses(), [200; 8]);
    world.finish();
}

/// A server that takes long, or stops reading, is probed and otherwise not touched.
#[test]
fn a_slow_server_keeps_its_connections() {
    for delivery in [Delivery::Acknowledged, Delivery::Underway] {
        let mut world = World::started(eager(2, PipelineMode::Adaptive), 1, 1);
        world.serve(|seen| Some(vec![Do::Delay(20_000_000), Do::Answer(answer(seen.request))]));
        world.open_conns().iter().for_each(|conn| world.conns[*conn].delivery = delivery);
        let before = world.conns.len();
        let clients = [world.client(), world.client()];
        world.get(clients[0], "00000001");
        world.post(clients[1], "00000002", b"x");
        world.run_for(19_000_000);
        let examined: usize = world.conns.iter().map(|conn| conn.examined).sum();
        if delivery == Delivery::Acknowledged {
            assert_eq!(examined, 2, "all was acknowledged, so there is nothing left to ask");
        } else {
            assert!(examined > 20, "{examined}");
        }
        world.run_for(2_000_000);
        clients.iter().for_each(|client| assert_eq!(world.clients[*client].statuses(), [200]));
        assert_eq!(world.conns.len(), before);
        world.finish();
    }
}

/// A connection in use is not probed, and an idle one is probed once.
#[test]
fn who_answers_is_not_asked_about() {
    let mut world = World::started(eager(1, PipelineMode::Adaptive), 1, 1);
    let client = world.client();
    for n in 0..100 {
        world.get(client, &format!("{n:08}"));
        world.run_for(100_000);
    }
    assert_eq!(world.conns[0].examined, 0);
    world.run_for(60_000_000);
    assert_eq!(world.conns[0].examined, 1);
    world.finish();
}
