//! Proves: a server that is not to get requests gets none, and nobody notices: what it has is finished, what waits for it
//! goes elsewhere, and it comes back by order or by showing that it works. How: the orders and every way into and out of
//! a suspension, with requests in flight, on one worker and on two. semantics.md §6.

use std::cell::Cell;
use std::rc::Rc;

use weir_proxy::standing::{Order, State};

use crate::world::{Do, World, answer, honest, plan};

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
