//! Proves: a server that is not to get requests gets none, and nobody notices: what it has is finished, what waits for it
//! goes elsewhere, and it comes back by order or by showing that it works. How: the orders and every way into and out of
//! a suspension, with requests in flight, on one worker and on two. semantics.md §6.

use std::cell::Cell;
use std::rc::Rc;

use weir_proxy::health::Codes;
use weir_proxy::plan::{AllDown, FailoverRule, Plan};
use weir_proxy::standing::{Order, State};

use crate::world::{Do, Door, World, answer, honest, plan};

/// Servers that answer after a delay.
fn slow(world: &mut World, delay_us: u64) {
    for server in &mut world.servers {
        server.serve =
            Box::new(move |seen| seen.complete.then(|| vec![Do::Delay(delay_us), Do::Answer(answer(seen.request))]));
    }
}

/// Requests that a server has seen complete.
fn seen(world: &World, server: usize) -> usize {
    world.conns.iter().filter(|conn| conn.server == server).map(|conn| conn.requests.len()).sum()
}

fn open(world: &World, server: usize) -> usize {
    world.open_conns().into_iter().filter(|conn| world.conns[*conn].server == server).count()
}

/// Requests of a server that are not answered, over all workers.
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

/// Draining: what the server has is finished on open connections, and nothing new comes until it is enabled.
#[test]
fn a_draining_server_finishes_what_it_has() {
    for workers in [1, 2] {
        let mut world = World::started(plan(2, 4), workers, 1);
        slow(&mut world, 50_000);
        let clients: Vec<usize> = (0..8).map(|n| world.client_of(n % usize::from(workers))).collect();
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

/// Disabled: in flight is finished, what waits goes elsewhere, then the connections are closed and not made anew.
#[test]
fn a_disabled_server_is_left_alone() {
    for workers in [1, 2] {
        let mut world = World::started(plan(2, 4), workers, 1);
        slow(&mut world, 50_000);
        let clients: Vec<usize> = (0..16).map(|n| world.client_of(n % usize::from(workers))).collect();
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

/// The only server: what it has is answered before it is left, and what comes then is told to come again.
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

/// A connection that breaks while its server is disabled is not replaced, and what was on it is answered elsewhere.
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

/// A worker that begins anew finds the order.
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

/// The plan of two servers with a rule: three answers 5xx within a second.
fn plan_with_rule(servers: usize, connections: u32) -> Plan {
    let mut plan = plan(servers, connections);
    let codes = Codes::parse("5xx").unwrap();
    plan.upstreams[0].failover = vec![FailoverRule { codes, limit: 3, window_us: 1_000_000 }];
    plan
}

/// A server that answers as the switch says; its answers carry the nonce either way.
fn switched(world: &mut World, server: usize, status: &Rc<Cell<u16>>) {
    let status = Rc::clone(status);
    world.servers[server].serve = Box::new(move |seen| match status.get() {
        200 => honest(seen),
        status => seen.complete.then(|| {
            vec![Do::Answer(format!("HTTP/1.1 {status} Broken\r\nContent-Length: 6\r\n\r\nbroken").into_bytes())]
        }),
    });
}

fn suspended(world: &World, server: u32) -> Vec<bool> {
    let state = |node: &crate::world::Node| node.engine.standing(server).unwrap().state();
    world.nodes.iter().map(|node| matches!(state(node), State::Suspended(_))).collect()
}

/// One request of each client and its status.
fn round(world: &mut World, clients: &[usize]) -> Vec<u16> {
    clients.iter().for_each(|client| world.get(*client, "00000000"));
    world.settle();
    clients.iter().map(|client| *world.clients[*client].statuses().last().unwrap()).collect()
}

/// Bad answers are counted over all workers together; the server gets nothing more; all workers agree.
#[test]
fn a_server_that_answers_badly_is_suspended() {
    for workers in [1, 2, 3] {
        let mut world = World::started(plan_with_rule(2, 6), workers, 1);
        let status = Rc::new(Cell::new(503));
        switched(&mut world, 0, &status);
        let clients: Vec<usize> = (0..6).map(|n| world.client_of(n % usize::from(workers))).collect();
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

/// Fewer than the limit within the window suspend nobody, however long it goes on.
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

/// The trial: one request after the pause, answered elsewhere while it fails, longer pauses, and back when it succeeds.
#[test]
fn one_request_at_a_time_tries_a_suspended_server() {
    for workers in [1, 2] {
        let mut world = World::started(plan_with_rule(2, 4), workers, 1);
        let status = Rc::new(Cell::new(500));
        switched(&mut world, 0, &status);
        let clients: Vec<usize> = (0..8).map(|n| world.client_of(n % usize::from(workers))).collect();
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

/// A trial that is lost with its connection is asked elsewhere too.
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

/// Where only requests come that must not be repeated, one of them is the trial after a while, and gets its answer.
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
    for (workers, all_down) in [(1, AllDown::TryAll), (2, AllDown::TryAll), (1, AllDown::Refuse), (2, AllDown::Refuse)]
    {
        let mut plan = plan_with_rule(2, 4);
        plan.upstreams[0].all_down = all_down;
        let mut world = World::started(plan, workers, 1);
        let status = Rc::new(Cell::new(500));
        (0..2).for_each(|server| switched(&mut world, server, &status));
        let clients: Vec<usize> = (0..8).map(|n| world.client_of(n % usize::from(workers))).collect();
        for _ in 0..10 {
            round(&mut world, &clients);
        }
        assert_eq!((suspended(&world, 0)[0], suspended(&world, 1)[0]), (true, true));
        let expected = if all_down == AllDown::TryAll { 500 } else { 503 };
        assert_eq!(round(&mut world, &clients), [expected; 8]);
        assert_eq!(world.count(|counters| counters.refusals.get("no-healthy-server")) > 0, expected == 503);
        // By order out of use, they are not tried either.
        (0..2).for_each(|server| world.order(server, Order::Drain));
        assert_eq!(round(&mut world, &clients), [503; 8]);
        (0..2).for_each(|server| world.order(server, Order::Enable));
        status.set(200);
        for _ in 0..200 {
            round(&mut world, &clients);
            world.run_for(10_000);
        }
        assert_eq!((suspended(&world, 0)[0], suspended(&world, 1)[0]), (false, false), "both are back");
        assert_eq!(round(&mut world, &clients), [200; 8]);
        world.finish();
    }
}

/// With one server dead and the other suspended, the suspended one is tried; a suspended one is not when another lives.
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

/// A worker that begins anew learns from the others what is suspended; also the judge itself.
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
