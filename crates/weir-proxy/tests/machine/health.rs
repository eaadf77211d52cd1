//! Proves: a server that must not get requests gets none, and no client notices: its current
//! requests are finished, those that wait for it move elsewhere, and it returns by order or by
//! showing that it works. How: the orders and every way into and out of a suspension, with requests
//! in flight, on one worker and on two. docs/failover.md.

use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;

use weir_proxy::cross::standing::ProbeFault;
use weir_proxy::cross::standing::{Order, SuspensionCause};
use weir_proxy::observe::server_event::What;
use weir_proxy::plan::{AllDown, FailoverRule, HealthPlan, Plan};
use weir_proxy::upstream::health::{Codes, Symptom};
use weir_proxy::upstream::server_state::State;

use crate::world::{Do, Door, World, answer, honest, plan};

/// Servers that respond after a delay.
fn slow(world: &mut World, delay_us: u64) {
    for server in &mut world.servers {
        server.serve = Box::new(move |seen| {
            seen.complete.then(|| vec![Do::Delay(delay_us), Do::Answer(answer(seen.request))])
        });
    }
}

/// Requests that a server has seen complete.
fn seen(world: &World, server: usize) -> usize {
    world.conns.iter().filter(|conn| conn.server == server).map(|conn| conn.requests.len()).sum()
}

fn open(world: &World, server: usize) -> usize {
    world.open_conns().into_iter().filter(|conn| world.conns[*conn].server == server).count()
}

/// Returns the unanswered requests of a server, over all workers.
fn load(world: &World, server: u32) -> usize {
    world.nodes.iter().map(|node| node.engine.load(server)).sum()
}

fn ask_many(world: &mut World, clients: &[usize], count: usize, first: usize) {
    for n in first..first + count {
        world.get(clients[n % clients.len()], &format!("{n:08}"));
    }
}

fn answered(world: &World, clients: &[usize]) -> usize {
    let replies = clients.iter().flat_map(|client| &world.clients[*client].replies);
    replies.inspect(|reply| assert_eq!(reply.status, 200, "{reply:?}")).count()
}

/// Draining: the server's requests are finished on open connections, and nothing new comes until it
/// is enabled.
#[test]
fn a_draining_server_finishes_what_it_has() {
    for workers in [1, 2] {
        let mut world = World::started(plan(2, 4), workers, 1);
        slow(&mut world, 50_000);
        let clients: Vec<usize> =
            (0..8).map(|n| world.client_of(n % usize::from(workers))).collect();
        ask_many(&mut world, &clients, 40, 0);
        world.settle();
        assert!(load(&world, 0) > 0);
        world.order(0, Order::Drain);
        ask_many(&mut world, &clients, 40, 40);
        world.run_for(10_000_000);
        assert_eq!(answered(&world, &clients), 80);
        assert_eq!((load(&world, 0), open(&world, 0)), (0, 4), "empty, and still connected");
        let drained = seen(&world, 0);
        assert!(drained < 40, "{drained}: the later ones went to the other server");
        assert_eq!(world.nodes[0].engine.standing(0).unwrap().state(), State::Draining);
        world.order(0, Order::Enable);
        ask_many(&mut world, &clients, 40, 80);
        world.run_for(10_000_000);
        assert!(seen(&world, 0) > drained);
        assert_eq!(answered(&world, &clients), 120);
        world.finish();
    }
}

/// Disabled: requests in flight are finished, waiting ones move elsewhere, then the connections are
/// closed and not replaced.
#[test]
fn a_disabled_server_is_left_alone() {
    for workers in [1, 2] {
        let mut world = World::started(plan(2, 4), workers, 1);
        slow(&mut world, 50_000);
        let clients: Vec<usize> =
            (0..16).map(|n| world.client_of(n % usize::from(workers))).collect();
        ask_many(&mut world, &clients, 64, 0);
        world.settle();
        let (had, connections) = (seen(&world, 0), world.conns.len());
        assert!(had > 0 && load(&world, 0) > had, "some in flight, some waiting");
        world.order(0, Order::Disable);
        assert_eq!(load(&world, 0), had, "only what is in flight stays");
        assert_eq!(open(&world, 0), had, "whose connections live");
        ask_many(&mut world, &clients, 64, 64);
        world.run_for(10_000_000);
        assert_eq!(answered(&world, &clients), 128);
        assert_eq!((seen(&world, 0), open(&world, 0)), (had, 0));
        world.run_for(60_000_000);
        assert_eq!(world.conns.len(), connections, "nothing was connected again");
        world.order(0, Order::Enable);
        world.run_for(50_000);
        assert_eq!(open(&world, 0), 4, "at once");
        ask_many(&mut world, &clients, 64, 128);
        world.run_for(10_000_000);
        assert!(seen(&world, 0) > had);
        assert_eq!(answered(&world, &clients), 192);
        world.finish();
    }
}

/// The only server: its requests are answered first, and later ones get 503 with Retry-After.
#[test]
fn without_another_server_what_waits_is_served_first() {
    let mut world = World::started(plan(1, 1), 1, 1);
    slow(&mut world, 10_000);
    let clients: Vec<usize> = (0..5).map(|_| world.client()).collect();
    ask_many(&mut world, &clients, 5, 0);
    world.settle();
    world.order(0, Order::Disable);
    assert_eq!(open(&world, 0), 1);
    world.run_for(1_000_000);
    assert_eq!(answered(&world, &clients), 5);
    assert_eq!(open(&world, 0), 0);
    let late = world.client();
    world.get(late, "late0000");
    world.settle();
    assert_eq!(world.clients[late].statuses(), [503]);
    assert!(world.clients[late].replies[0].fields.has("retry-after"));
    assert_eq!(world.count(|counters| counters.refusals.get("no-healthy-server")), 1);
    world.order(0, Order::Enable);
    world.run_for(50_000);
    world.get(late, "late0001");
    world.run_for(1_000_000);
    assert_eq!(world.clients[late].statuses(), [503, 200]);
    world.finish();
}

/// A connection that breaks while its server is disabled is not replaced, and its requests are
/// answered elsewhere.
#[test]
fn a_disabled_server_that_dies_is_not_missed() {
    let mut world = World::started(plan(2, 1), 1, 1);
    let dies = Rc::new(Cell::new(true));
    let flag = Rc::clone(&dies);
    world.servers[0].serve = Box::new(move |seen| match flag.get() {
        true => Some(vec![Do::Delay(10_000), Do::Rst]),
        false => honest(seen),
    });
    let clients = [world.client(), world.client()];
    ask_many(&mut world, &clients, 2, 0);
    world.settle();
    assert_eq!(load(&world, 0), 1);
    world.order(0, Order::Disable);
    world.run_for(60_000_000);
    assert_eq!(answered(&world, &clients), 2);
    assert_eq!(open(&world, 0), 0);
    dies.set(false);
    world.order(0, Order::Drain);
    world.run_for(50_000);
    assert_eq!(open(&world, 0), 1, "draining serves those that are bound to it");
    world.finish();
}

/// A restarted worker finds the order.
#[test]
fn orders_outlive_a_worker() {
    for workers in [1, 2] {
        let mut world = World::started(plan(2, 4), workers, 1);
        world.order(0, Order::Disable);
        world.begin_anew(0);
        world.run_for(10_000_000);
        assert_eq!((open(&world, 0), open(&world, 1)), (0, 4));
        world.order(0, Order::Enable);
        world.run_for(1_000_000);
        assert_eq!((open(&world, 0), open(&world, 1)), (4, 4));
        world.finish();
    }
}

/// The plan of two servers with a rule: three 5xx responses within a second.
fn plan_with_rule(servers: usize, connections: u32) -> Plan {
    let mut plan = plan(servers, connections);
    let codes = Codes::parse("5xx").unwrap();
    plan.upstreams[0].failover =
        vec![FailoverRule { symptom: Symptom::Status(codes), limit: 3, window_us: 1_000_000 }];
    plan
}

/// A server that responds with the status in the switch; its responses carry the nonce either way.
fn switched(world: &mut World, server: usize, status: &Rc<Cell<u16>>) {
    let status = Rc::clone(status);
    world.servers[server].serve = Box::new(move |seen| match status.get() {
        200 => honest(seen),
        status => seen.complete.then(|| {
            vec![Do::Answer(
                format!("HTTP/1.1 {status} Broken\r\nContent-Length: 6\r\n\r\nbroken").into_bytes(),
            )]
        }),
    });
}

fn suspended(world: &World, server: u32) -> Vec<bool> {
    let state = |node: &crate::world::Node| node.engine.standing(server).unwrap().state();
    world.nodes.iter().map(|node| matches!(state(node), State::Suspended(_))).collect()
}

/// Sends one request of each client; returns the statuses.
fn round(world: &mut World, clients: &[usize]) -> Vec<u16> {
    clients.iter().for_each(|client| world.get(*client, "00000000"));
    world.settle();
    clients.iter().map(|client| *world.clients[*client].statuses().last().unwrap()).collect()
}

/// Bad responses are counted over all workers together; the server gets nothing more; all workers
/// agree.
#[test]
fn a_server_that_answers_badly_is_suspended() {
    for workers in [1, 2, 3] {
        let mut world = World::started(plan_with_rule(2, 6), workers, 1);
        let status = Rc::new(Cell::new(503));
        switched(&mut world, 0, &status);
        let clients: Vec<usize> =
            (0..6).map(|n| world.client_of(n % usize::from(workers))).collect();
        let mut bad = 0;
        for _ in 0..40 {
            bad += round(&mut world, &clients).iter().filter(|status| **status == 503).count();
        }
        assert!((3..=8).contains(&bad), "{bad}: three, and what was in flight");
        assert_eq!(suspended(&world, 0), vec![true; usize::from(workers)]);
        assert_eq!(suspended(&world, 1), vec![false; usize::from(workers)]);
        assert_eq!(world.count(|counters| counters.suspensions.get()), 1);
        world.finish();
    }
}

/// A server that resets connections with requests on them is suspended by a rule for that, counted
/// over all workers, and by no other rule; one that closes between two responses is not.
#[test]
fn a_server_that_loses_connections_is_suspended() {
    for workers in [1, 2, 3] {
        for (symptom, end, expected) in [
            (Symptom::Lost, Do::Rst, true),
            (Symptom::Lost, Do::Fin, false),
            (STATUS, Do::Rst, false),
        ] {
            let mut plan = plan(2, 6);
            plan.upstreams[0].failover =
                vec![FailoverRule { symptom, limit: 3, window_us: 60_000_000 }];
            let mut world = World::started(plan, workers, 1);
            let bad = Rc::new(Cell::new(true));
            let switch = Rc::clone(&bad);
            let mut answered = HashSet::new();
            // The first request of each connection is answered, the second one ends it.
            world.servers[0].serve = Box::new(move |seen| {
                let ends = seen.complete && switch.get() && !answered.insert(seen.conn);
                if ends { Some(vec![end.clone(), Do::Silence]) } else { honest(seen) }
            });
            let clients: Vec<usize> =
                (0..6).map(|n| world.client_of(n % usize::from(workers))).collect();
            for _ in 0..40 {
                assert_eq!(round(&mut world, &clients), [200; 6], "asked again elsewhere");
                world.run_for(10_000);
            }
            assert_eq!(
                suspended(&world, 0),
                vec![expected; usize::from(workers)],
                "{symptom:?} {workers}"
            );
            assert_eq!(suspended(&world, 1), vec![false; usize::from(workers)]);
            let told = events(&mut world);
            assert_eq!(
                told.contains(&(0, What::Suspended(SuspensionCause::Losses { rule: 0 }))),
                expected,
                "{told:?}"
            );
            bad.set(false);
            world.finish();
        }
    }
}

/// A rule that counts responses.
const STATUS: Symptom = Symptom::Status(Codes { first: 500, last: 599 });

/// Returns the workers' events for servers since the last call.
fn events(world: &mut World) -> Vec<(u32, What)> {
    let mut all = Vec::new();
    for node in &mut world.nodes {
        all.extend(
            std::iter::from_fn(|| node.engine.take_event()).map(|event| (event.server, event.what)),
        );
    }
    all
}

/// Each change is reported once, by one worker.
#[test]
fn changes_are_told_once() {
    for workers in [1, 3] {
        let mut world = World::started(plan_with_rule(2, 6), workers, 1);
        assert_eq!(events(&mut world), []);
        let status = Rc::new(Cell::new(503));
        switched(&mut world, 0, &status);
        let clients: Vec<usize> =
            (0..6).map(|n| world.client_of(n % usize::from(workers))).collect();
        (0..10).for_each(|_| drop(round(&mut world, &clients)));
        assert_eq!(
            events(&mut world),
            [(0, What::Suspended(SuspensionCause::Answers { rule: 0 }))]
        );
        status.set(200);
        for _ in 0..200 {
            round(&mut world, &clients);
            world.run_for(10_000);
        }
        assert_eq!(events(&mut world), [(0, What::Recovered)]);
        world.order(1, Order::Drain);
        world.order(1, Order::Drain);
        assert_eq!(events(&mut world), [(1, What::Ordered(Order::Drain))]);
        world.servers[0].door = Door::Refuses;
        let dead: Vec<usize> =
            world.open_conns().into_iter().filter(|conn| world.conns[*conn].server == 0).collect();
        dead.into_iter().for_each(|conn| world.say(conn, Do::Rst));
        world.run_for(5_000_000);
        assert_eq!(events(&mut world), [(0, What::Unreachable(None))]);
        world.servers[0].door = Door::Open;
        world.run_for(40_000_000);
        assert_eq!(events(&mut world), [(0, What::Reachable)]);
        world.finish();
    }
}

/// Fewer than the limit within the window suspend no server, however long it continues.
#[test]
fn a_bad_answer_now_and_then_is_forgiven() {
    let mut world = World::started(plan_with_rule(1, 1), 1, 1);
    let status = Rc::new(Cell::new(500));
    switched(&mut world, 0, &status);
    let client = [world.client()];
    for _ in 0..50 {
        round(&mut world, &client);
        world.run_for(500_000);
    }
    assert_eq!(suspended(&world, 0), [false]);
    (0..3).for_each(|_| drop(round(&mut world, &client)));
    assert_eq!(suspended(&world, 0), [true]);
    world.finish();
}

/// The trial: one request after the pause, answered elsewhere while it fails, longer pauses, and
/// recovery when it succeeds.
#[test]
fn one_request_at_a_time_tries_a_suspended_server() {
    for workers in [1, 2] {
        let mut world = World::started(plan_with_rule(2, 4), workers, 1);
        let status = Rc::new(Cell::new(500));
        switched(&mut world, 0, &status);
        let clients: Vec<usize> =
            (0..8).map(|n| world.client_of(n % usize::from(workers))).collect();
        while !suspended(&world, 0)[0] {
            round(&mut world, &clients);
        }
        let before = seen(&world, 0);
        for _ in 0..1000 {
            assert_eq!(round(&mut world, &clients), [200; 8], "no client notices");
            world.run_for(10_000);
        }
        let tried = seen(&world, 0) - before;
        assert!((3..=4).contains(&tried), "after 1, 2 and 4 s, less jitter: {tried}");
        assert_eq!(world.count(|counters| counters.trials.get()), tried as u64);
        status.set(200);
        for _ in 0..800 {
            assert_eq!(round(&mut world, &clients), [200; 8]);
            world.run_for(10_000);
        }
        assert_eq!(suspended(&world, 0), vec![false; usize::from(workers)]);
        assert!(seen(&world, 0) - before > 100, "in use again");
        assert_eq!(world.count(|counters| counters.recoveries.get()), 1);
        world.finish();
    }
}

/// Good whenever it is tried or probed, and bad to clients: it is not used for longer and longer,
/// until it has done well for long enough.
#[test]
fn a_server_that_relapses_is_left_alone_for_longer() {
    let with_probes = |mut plan: Plan| {
        plan.upstreams[0].health = plan_with_probes(1, 1).upstreams[0].health.clone();
        plan
    };
    for (workers, probed) in [(1, false), (2, false), (1, true), (2, true)] {
        let plan = plan_with_rule(2, 4);
        let mut world = World::started(if probed { with_probes(plan) } else { plan }, workers, 1);
        let status = Rc::new(Cell::new(503));
        switched(&mut world, 0, &status);
        let clients: Vec<usize> =
            (0..8).map(|n| world.client_of(n % usize::from(workers))).collect();
        let mut minutes = Vec::new();
        for _ in 0..4 {
            let before = world.count(|counters| counters.suspensions.get());
            for _ in 0..600 {
                let out = suspended(&world, 0)[0];
                status.set(if out { 200 } else { 503 });
                round(&mut world, &clients);
                world.run_for(100_000);
            }
            minutes.push(world.count(|counters| counters.suspensions.get()) - before);
        }
        assert!(
            (3..=7).contains(&minutes[0]) && minutes[3] <= 3,
            "workers {workers}, probed {probed}: {minutes:?}"
        );
        status.set(200);
        for _ in 0..4_000 {
            assert_eq!(round(&mut world, &clients), [200; 8]);
            world.run_for(100_000);
        }
        assert!(!suspended(&world, 0)[0]);
        status.set(503);
        while !suspended(&world, 0)[0] {
            round(&mut world, &clients);
        }
        status.set(200);
        let first_us = if probed { 15_000_000 } else { 1_500_000 };
        for _ in 0..first_us / 100_000 {
            round(&mut world, &clients);
            world.run_for(100_000);
        }
        assert!(
            !suspended(&world, 0)[0],
            "forgotten: the pause is that of the first time (probed {probed})"
        );
        world.finish();
    }
}

/// During a trial no worker makes another one.
#[test]
fn a_slow_trial_stays_the_only_one() {
    let mut world = World::started(plan_with_rule(2, 8), 2, 1);
    let slow = Rc::new(Cell::new(false));
    let flag = Rc::clone(&slow);
    world.servers[0].serve = Box::new(move |_| {
        let bad = Do::Answer(b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n".to_vec());
        Some(if flag.get() { vec![Do::Delay(5_000_000), bad] } else { vec![bad] })
    });
    let clients: Vec<usize> = (0..20).map(|n| world.client_of(n % 2)).collect();
    while !suspended(&world, 0)[0] {
        round(&mut world, &clients);
    }
    slow.set(true);
    for round in 0..40 {
        // Each sends once, so that none waits behind the trial.
        let fresh = [world.client_of(0), world.client_of(1)];
        fresh.iter().for_each(|client| world.get(*client, &format!("{round:08}")));
        world.run_for(100_000);
    }
    assert_eq!(world.count(|counters| counters.trials.get()), 1);
    assert_eq!(load(&world, 0), 1);
    world.run_for(10_000_000);
    assert!(world.clients.iter().skip(20).all(|client| client.statuses() == [200]));
    world.finish();
}

/// A trial that is lost with its connection is sent elsewhere as well.
#[test]
fn a_trial_on_a_server_that_dies_is_not_lost() {
    let mut world = World::started(plan_with_rule(2, 2), 1, 1);
    let dies = Rc::new(Cell::new(false));
    let flag = Rc::clone(&dies);
    world.servers[0].serve = Box::new(move |_| match flag.get() {
        false => Some(vec![Do::Answer(b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n".to_vec())]),
        true => Some(vec![Do::Rst]),
    });
    let clients: Vec<usize> = (0..4).map(|_| world.client()).collect();
    while !suspended(&world, 0)[0] {
        round(&mut world, &clients);
    }
    dies.set(true);
    for _ in 0..300 {
        assert_eq!(round(&mut world, &clients), [200; 4]);
        world.run_for(10_000);
    }
    assert!(world.count(|counters| counters.trials.get()) >= 1);
    assert_eq!(suspended(&world, 0), [true]);
    world.finish();
}

/// If only requests arrive that must not be repeated, one of them is the trial after a while, and
/// gets its response.
#[test]
fn any_request_tries_a_server_when_no_safe_one_comes() {
    let mut world = World::started(plan_with_rule(2, 2), 1, 1);
    let status = Rc::new(Cell::new(500));
    switched(&mut world, 0, &status);
    let client = [world.client()];
    while !suspended(&world, 0)[0] {
        round(&mut world, &client);
    }
    let mut bad = 0;
    for n in 0..300 {
        world.post(client[0], &format!("{n:08}"), b"x");
        world.settle();
        bad += usize::from(*world.clients[client[0]].statuses().last().unwrap() == 500);
        world.run_for(100_000);
    }
    assert!((1..=3).contains(&bad), "in 30 s: {bad}");
    status.set(200);
    for n in 300..700 {
        world.post(client[0], &format!("{n:08}"), b"x");
        world.run_for(100_000);
    }
    assert_eq!(suspended(&world, 0), [false]);
    world.finish();
}

/// When all are suspended: tried all the same, or refused, as configured.
#[test]
fn when_all_are_down() {
    for (workers, all_down) in
        [(1, AllDown::TryAll), (2, AllDown::TryAll), (1, AllDown::Refuse), (2, AllDown::Refuse)]
    {
        let mut plan = plan_with_rule(2, 4);
        plan.upstreams[0].all_down = all_down;
        let mut world = World::started(plan, workers, 1);
        let status = Rc::new(Cell::new(500));
        (0..2).for_each(|server| switched(&mut world, server, &status));
        let clients: Vec<usize> =
            (0..8).map(|n| world.client_of(n % usize::from(workers))).collect();
        for _ in 0..10 {
            round(&mut world, &clients);
        }
        assert_eq!((suspended(&world, 0)[0], suspended(&world, 1)[0]), (true, true));
        let expected = if all_down == AllDown::TryAll { 500 } else { 503 };
        assert_eq!(round(&mut world, &clients), [expected; 8]);
        assert_eq!(
            world.count(|counters| counters.refusals.get("no-healthy-server")) > 0,
            expected == 503
        );
        // Out of use by order, they are not tried either.
        (0..2).for_each(|server| world.order(server, Order::Drain));
        assert_eq!(round(&mut world, &clients), [503; 8]);
        (0..2).for_each(|server| world.order(server, Order::Enable));
        status.set(200);
        for _ in 0..200 {
            round(&mut world, &clients);
            world.run_for(10_000);
        }
        assert_eq!(
            (suspended(&world, 0)[0], suspended(&world, 1)[0]),
            (false, false),
            "both are back"
        );
        assert_eq!(round(&mut world, &clients), [200; 8]);
        world.finish();
    }
}

/// A worker without connections waits for those of another worker even if only a suspended
/// server is left.
#[test]
fn a_suspended_server_is_awaited_by_all_workers() {
    for servers in [1, 2] {
        let mut world = World::started(plan_with_rule(servers, 1), 2, 1);
        (1..servers as u32).for_each(|other| world.order(other, Order::Disable));
        let status = Rc::new(Cell::new(500));
        switched(&mut world, 0, &status);
        let clients = [world.client_of(0), world.client_of(1)];
        while !suspended(&world, 0)[1] {
            round(&mut world, &clients);
        }
        let conn = world.open_conns()[0];
        world.servers[0].door = Door::Refuses;
        world.cut(conn, Do::Fin);
        world.run_for(500);
        status.set(200);
        clients.iter().for_each(|client| world.get(*client, "00000001"));
        world.run_for(500);
        world.servers[0].door = Door::Open;
        world.run_for(1_000_000);
        for client in clients {
            assert_eq!(world.clients[client].statuses().last(), Some(&200), "{servers} servers");
        }
        world.finish();
    }
}

/// Requests in flight to the last server in use when it dies move to the suspended one, whichever
/// worker has its connections.
#[test]
fn a_suspended_server_gets_what_a_dying_one_had() {
    for workers in [1, 2] {
        let mut plan = plan_with_rule(2, 1);
        plan.upstreams[0].retry.connect_retries = 1;
        let mut world = World::started(plan, workers, 1);
        let status = Rc::new(Cell::new(500));
        switched(&mut world, 0, &status);
        let clients: Vec<usize> =
            (0..2).map(|n| world.client_of(n % usize::from(workers))).collect();
        while !suspended(&world, 0).iter().all(|suspended| *suspended) {
            round(&mut world, &clients);
        }
        status.set(200);
        world.servers[1].serve = Box::new(|_| Some(vec![Do::Silence]));
        clients.iter().for_each(|client| world.get(*client, "00000001"));
        world.run_for(500);
        assert!(world.count(|counters| counters.in_flight.get()) > 0, "nothing is in flight");
        world.servers[1].door = Door::Refuses;
        let dying = world
            .open_conns()
            .into_iter()
            .filter(|conn| world.conns[*conn].server == 1)
            .collect::<Vec<_>>();
        dying.into_iter().for_each(|conn| world.cut(conn, Do::Rst));
        world.run_for(200_000);
        for client in clients {
            assert_eq!(world.clients[client].statuses().last(), Some(&200), "{workers} workers");
        }
        world.finish();
    }
}

/// For a dead server and a suspended one that is not tried, the response says how that could be
/// changed.
#[test]
fn a_dead_server_beside_a_suspended_one_is_no_full_queue() {
    for workers in [1, 2] {
        let mut plan = plan_with_rule(2, 2);
        plan.upstreams[0].all_down = AllDown::Refuse;
        plan.upstreams[0].retry.connect_retries = 1;
        let mut world = World::started(plan, workers, 1);
        let status = Rc::new(Cell::new(500));
        switched(&mut world, 0, &status);
        let clients: Vec<usize> =
            (0..4).map(|n| world.client_of(n % usize::from(workers))).collect();
        while !suspended(&world, 0).iter().all(|suspended| *suspended) {
            round(&mut world, &clients);
        }
        world.servers[1].door = Door::Refuses;
        let dead = world
            .open_conns()
            .into_iter()
            .filter(|conn| world.conns[*conn].server == 1)
            .collect::<Vec<_>>();
        dead.into_iter().for_each(|conn| world.cut(conn, Do::Rst));
        world.run_for(100_000);
        let refusals =
            |world: &World, word: &'static str| world.count(|counters| counters.refusals.get(word));
        assert_eq!(round(&mut world, &clients), [503; 4], "{workers} workers");
        assert_eq!((refusals(&world, "no-healthy-server"), refusals(&world, "queue-full")), (4, 0));
        world.finish();
    }
}

/// With one server dead and the other suspended, the suspended one is tried; a suspended one is not
/// when another is up.
#[test]
fn a_suspended_server_is_better_than_a_dead_one() {
    let mut world = World::started(plan_with_rule(2, 2), 1, 1);
    let status = Rc::new(Cell::new(500));
    switched(&mut world, 0, &status);
    let clients: Vec<usize> = (0..4).map(|_| world.client()).collect();
    while !suspended(&world, 0)[0] {
        round(&mut world, &clients);
    }
    world.servers[1].door = Door::Refuses;
    world
        .open_conns()
        .into_iter()
        .filter(|conn| world.conns[*conn].server == 1)
        .collect::<Vec<_>>()
        .into_iter()
        .for_each(|conn| world.say(conn, Do::Rst));
    world.run_for(20_000);
    status.set(200);
    assert_eq!(round(&mut world, &clients), [200; 4]);
    world.finish();
}

/// A restarted worker learns from the others which servers are suspended; also the judging worker
/// itself.
#[test]
fn suspensions_outlive_a_worker() {
    for lost in [0, 1] {
        let mut world = World::started(plan_with_rule(2, 4), 2, 1);
        let status = Rc::new(Cell::new(500));
        switched(&mut world, 0, &status);
        let clients: Vec<usize> = (0..8).map(|n| world.client_of(n % 2)).collect();
        while !suspended(&world, 0)[0] {
            round(&mut world, &clients);
        }
        world.begin_anew(lost);
        world.run_for(100_000);
        assert_eq!(suspended(&world, 0), [true, true]);
        status.set(200);
        let clients: Vec<usize> = (0..8).map(|n| world.client_of(n % 2)).collect();
        for _ in 0..300 {
            round(&mut world, &clients);
            world.run_for(10_000);
        }
        assert_eq!(suspended(&world, 0), [false, false]);
        world.finish();
    }
}

/// A plan with probes every 10 s: two good ones bring a server back, three failed ones suspend it.
fn plan_with_probes(servers: usize, connections: u32) -> Plan {
    let mut plan = plan(servers, connections);
    plan.upstreams[0].health =
        Some(HealthPlan { path: "/health".to_owned(), ..HealthPlan::default() });
    plan
}

/// Servers that answer probes with a status, and all other requests honestly.
fn probed(world: &mut World, server: usize, status: &Rc<Cell<u16>>) {
    let status = Rc::clone(status);
    world.servers[server].serve = Box::new(move |seen| match seen.request.target == "/health" {
        true => {
            let text = format!(
                "HTTP/1.1 {} X\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
                status.get()
            );
            Some(vec![Do::Answer(text.into_bytes()), Do::Fin])
        }
        false => honest(seen),
    });
}

fn probes(world: &World, server: usize) -> usize {
    let conns = world.conns.iter().filter(|conn| conn.server == server);
    conns.flat_map(|conn| &conn.requests).filter(|request| request.target == "/health").count()
}

/// Each server is probed once an interval, whatever the number of workers; `fall` failures suspend
/// it, for all workers; `rise` successes bring it back.
#[test]
fn probes_suspend_a_server_and_bring_it_back() {
    for workers in [1, 2, 3] {
        let mut world = World::started(plan_with_probes(2, 4), workers, 1);
        let status = Rc::new(Cell::new(200));
        (0..2).for_each(|server| probed(&mut world, server, &status));
        world.run_for(100_000_000);
        for server in 0..2 {
            assert!(
                (9..=12).contains(&probes(&world, server)),
                "{} in 100 s",
                probes(&world, server)
            );
        }
        let failing = Rc::new(Cell::new(503));
        probed(&mut world, 0, &failing);
        world.run_for(14_000_000);
        assert_eq!(
            suspended(&world, 0),
            vec![true; usize::from(workers)],
            "the second and third come soon"
        );
        assert_eq!(suspended(&world, 1), vec![false; usize::from(workers)]);
        let State::Suspended(suspension) = world.nodes[0].engine.standing(0).unwrap().state()
        else {
            unreachable!()
        };
        assert_eq!(suspension.cause, SuspensionCause::Probe { fault: ProbeFault::Status(503) });
        let clients: Vec<usize> =
            (0..6).map(|n| world.client_of(n % usize::from(workers))).collect();
        let before = seen(&world, 0);
        assert_eq!(round(&mut world, &clients), [200; 6]);
        assert_eq!(seen(&world, 0), before, "nothing new");
        failing.set(200);
        world.run_for(13_000_000);
        assert_eq!(suspended(&world, 0), vec![false; usize::from(workers)]);
        (0..4).for_each(|_| drop(round(&mut world, &clients)));
        assert!(seen(&world, 0) > before + 2);
        world.finish();
    }
}

/// Servers that refuse, never respond, or close: each is a failed probe, and none leaves a
/// connection behind.
#[test]
fn probes_fail_in_many_ways() {
    for (what, fault) in [
        (vec![Do::Silence], ProbeFault::Timeout),
        (vec![Do::Fin], ProbeFault::Closed),
        (vec![Do::Rst], ProbeFault::Closed),
        (vec![Do::Bytes(b"SSH-2.0-x\r\n\r\n".to_vec())], ProbeFault::Garbage),
        (
            vec![Do::Answer(b"HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n".to_vec())],
            ProbeFault::Status(404),
        ),
    ] {
        let mut world = World::started(plan_with_probes(1, 1), 1, 1);
        world.serve(move |seen| {
            if seen.request.target == "/health" { Some(what.clone()) } else { honest(seen) }
        });
        world.run_for(60_000_000);
        let State::Suspended(suspension) = world.nodes[0].engine.standing(0).unwrap().state()
        else {
            panic!("{fault}: still in use");
        };
        assert_eq!(suspension.cause, SuspensionCause::Probe { fault });
        assert!(open(&world, 0) <= 2, "its own connection and at most one probe");
        world.finish();
    }
}

/// A server that is down is suspended by its probes. When it accepts connections again it is probed
/// at once, however long the interval is.
#[test]
fn a_revived_server_is_probed_at_once() {
    let mut plan = plan_with_probes(2, 2);
    plan.upstreams[0].health.as_mut().unwrap().interval_us = 3_600_000_000;
    let mut world = World::new(plan, 2, 1);
    let status = Rc::new(Cell::new(200));
    (0..2).for_each(|server| probed(&mut world, server, &status));
    world.servers[0].door = Door::Refuses;
    world.run_for(10_000_000);
    assert_eq!(suspended(&world, 0), [true, true]);
    world.servers[0].door = Door::Open;
    // The longest pause of a connect, and a second between the two good probes.
    world.run_for(32_000_000);
    assert_eq!(suspended(&world, 0), [false, false]);
    assert_eq!(open(&world, 0), 2, "its connections are made at once");
    world.finish();
}

/// While clients get good responses to the same request, no probes are sent; other requests, and
/// bad responses, prove nothing.
#[test]
fn probes_are_skipped_while_clients_prove_the_same() {
    for (target, fields, fewer) in
        [("/health", "", true), ("/health?n=1", "", false), ("/other", "", false)]
    {
        for workers in [1, 2] {
            let mut world = World::started(plan_with_probes(1, 2), workers, 1);
            let clients: Vec<usize> =
                (0..2).map(|n| world.client_of(n % usize::from(workers))).collect();
            let served = Rc::new(Cell::new(0));
            let count = Rc::clone(&served);
            world.serve(move |seen| {
                let probe = seen.request.fields.first("user-agent") == Some("weir-health");
                count.set(count.get() + usize::from(probe));
                Some(vec![Do::Answer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec())])
            });
            for _ in 0..100 {
                clients.iter().for_each(|client| world.ask(*client, "GET", target, fields));
                world.run_for(1_000_000);
            }
            let (made, skipped) =
                (served.get(), world.count(|counters| counters.probes_skipped.get()));
            assert_eq!(made <= 1, fewer, "{target}: {made} probes");
            assert_eq!(skipped >= 8, fewer, "{target}: {skipped} skipped");
            assert!(!suspended(&world, 0)[0]);
            world.finish();
        }
    }
}

/// With probes no trial is made: a server that was suspended for its responses returns through
/// them.
#[test]
fn with_probes_clients_are_not_used_for_trials() {
    let mut plan = plan_with_rule(2, 2);
    plan.upstreams[0].health =
        Some(HealthPlan { path: "/health".to_owned(), ..HealthPlan::default() });
    let mut world = World::started(plan, 1, 1);
    let healthy = Rc::new(Cell::new(false));
    let flag = Rc::clone(&healthy);
    world.servers[0].serve = Box::new(move |seen| match flag.get() {
        true => honest(seen),
        false => Some(vec![Do::Answer(b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n".to_vec())]),
    });
    let clients: Vec<usize> = (0..4).map(|_| world.client()).collect();
    while !suspended(&world, 0)[0] {
        round(&mut world, &clients);
    }
    for _ in 0..60 {
        assert_eq!(round(&mut world, &clients), [200; 4]);
        world.run_for(1_000_000);
    }
    healthy.set(true);
    for _ in 0..13 {
        assert_eq!(round(&mut world, &clients), [200; 4]);
        world.run_for(1_000_000);
    }
    assert_eq!(suspended(&world, 0), [false]);
    assert_eq!(world.count(|counters| counters.trials.get()), 0);
    world.finish();
}

/// A disabled server is not probed, a draining one is.
#[test]
fn orders_and_probes() {
    let mut world = World::started(plan_with_probes(2, 1), 1, 1);
    let status = Rc::new(Cell::new(200));
    (0..2).for_each(|server| probed(&mut world, server, &status));
    world.run_for(5_000_000);
    world.order(0, Order::Disable);
    world.order(1, Order::Drain);
    let before = [probes(&world, 0), probes(&world, 1)];
    world.run_for(100_000_000);
    assert_eq!(probes(&world, 0), before[0]);
    assert!(probes(&world, 1) > before[1] + 5);
    world.order(0, Order::Enable);
    world.run_for(20_000_000);
    assert!(probes(&world, 0) > before[0]);
    world.finish();
}
