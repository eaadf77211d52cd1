//! Proves: only connections between two requests move to another worker, those with the most recent
//! request first. The state of their clients moves along, and their accounts are given back
//! whatever happens; they are served as if they had not moved, whatever else happens. How: clients
//! in each state that binds one to its worker, and idle ones that are moved at random times between
//! their requests.

use weir_check::upstreams::check_honest;
use weir_proxy::ending::Farewell;
use weir_proxy::engine::{MovedClient, arrive, part};
use weir_proxy::plan::{ClientPlan, LimitPlan, Plan, Pool, Serves, ShieldPlan, Terms};
use weir_proxy::shield::bans::{BanSet, Block};
use weir_proxy::shield::limit::Rate;

use crate::tunnels::SWITCH;
use crate::world::{Do, Rng, World, answer, plan};

const SECOND_US: u64 = 1_000_000;

fn limited(limit: LimitPlan, change: impl FnOnce(&mut ShieldPlan)) -> Plan {
    let mut shield = ShieldPlan::new(vec![limit], 1024);
    change(&mut shield);
    Plan { shield: Some(shield), ..plan(1, 1) }
}

fn open(world: &World) -> u64 {
    world.nodes[0].parts.plan.shield.as_ref().expect("limits").seed.table().open_sum()
}

#[test]
fn idle_clients_go_and_are_served_on() {
    let mut world = World::started(plan(1, 2), 2, 1);
    // One has sent nothing yet.
    let silent = world.client();
    world.run_for(1000);
    let clients: Vec<usize> = (0..3).map(|_| world.client()).collect();
    for (n, client) in clients.iter().enumerate() {
        world.get(*client, &format!("{n:08}"));
        world.run_for(1000);
    }
    assert_eq!(world.move_clients(0, 1, 2), [clients[2], clients[1]], "who asked last goes first");
    assert_eq!(world.move_clients(0, 1, 9), [clients[0], silent]);
    assert_eq!((world.nodes[0].engine.clients(), world.nodes[1].engine.clients()), (0, 4));
    for client in [silent, clients[0], clients[1], clients[2]] {
        let before = world.clients[client].replies.len();
        world.get(client, &format!("b{client:07}"));
        world.settle();
        check_honest(&format!("b{client:07}"), &world.clients[client].replies[before]).unwrap();
    }
    assert_eq!(world.count(|counters| counters.accepted.get()), 4, "each was accepted once");
    // And back.
    assert_eq!(world.move_clients(1, 0, 9).len(), 4);
    world.get(silent, "c0000000");
    world.settle();
    assert_eq!(world.clients[silent].replies.len(), 2);
    world.finish();
}

/// A client that is bound to its worker in any way does not move.
#[test]
fn who_is_busy_stays() {
    let mut world = World::started(plan(1, 8), 2, 1);
    world.serve(|seen| match seen.request.target.contains("held") {
        _ if seen.request.target.contains("upgrade") => Some(vec![Do::Switch(SWITCH.to_vec())]),
        true => Some(vec![Do::Silence]),
        false => Some(vec![Do::Answer(answer(seen.request))]),
    });
    let head = world.client();
    world.send(head, b"GET / HT");
    let body = world.client();
    world.expect(body, "POST", false, false);
    world.send(body, b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nfour");
    let waiting = world.client();
    world.ask(waiting, "GET", "/held", "");
    let unsent = world.client();
    world.stall(unsent, true);
    world.get(unsent, "00000001");
    let closing = world.client();
    world.stall(closing, true);
    world.ask(closing, "GET", "/?n=00000002", "Connection: close\r\n");
    let tunnel = world.client();
    world.ask(tunnel, "GET", "/upgrade", "Connection: upgrade\r\nUpgrade: websocket\r\n");
    world.client_of_http2(0);
    world.settle();
    assert_eq!(world.clients[tunnel].statuses(), [101]);
    assert_eq!(world.move_clients(0, 1, 99), []);
    // When it has its response, one of them may move.
    world.stall(unsent, false);
    world.settle();
    assert_eq!(world.move_clients(0, 1, 99), [unsent]);
    world.finish();
}

#[test]
fn who_has_connections_of_his_own_stays() {
    let mut plan = plan(1, 2);
    plan.upstreams[0].pool = Pool::Pinned;
    let mut world = World::started(plan, 2, 1);
    let client = world.client();
    world.get(client, "00000001");
    world.settle();
    assert_eq!(world.move_clients(0, 1, 9), []);
    world.finish();
}

#[test]
fn clients_of_the_forward_proxy_and_those_of_a_drain_stay() {
    let mut world = World::started(plan(1, 1), 2, 1);
    world.serves = Serves::Forward;
    world.client();
    assert_eq!(world.move_clients(0, 1, 9), []);
    world.serves = Serves::default();
    world.client();
    world.nodes[0].engine.drain(Farewell::All);
    assert_eq!(world.move_clients(0, 1, 9), []);
    world.finish();
}

/// A client that moves to a worker that is about to end is closed as its own clients are.
#[test]
fn a_drain_is_for_those_who_come_too() {
    let mut world = World::started(plan(1, 1), 2, 1);
    let (idle, asking) = (world.client(), world.client());
    world.settle();
    world.nodes[1].engine.drain(Farewell::All);
    world.run_for(SECOND_US);
    assert_eq!(world.move_clients(0, 1, 9).len(), 2);
    world.get(asking, "00000001");
    world.settle();
    assert!(world.clients[asking].replies[0].closes && !world.clients[idle].closed);
    world.run_for(SECOND_US);
    assert!(world.clients[idle].closed && world.clients[asking].closed);
    world.finish();
}

/// The time-out of an idle client continues where it was.
#[test]
fn idle_time_goes_along() {
    let client = ClientPlan { idle_timeout_us: 10 * SECOND_US, ..ClientPlan::default() };
    let mut world = World::started(Plan { client, ..plan(1, 1) }, 2, 1);
    let client = world.client();
    world.get(client, "00000001");
    world.run_for(6 * SECOND_US);
    assert_eq!(world.move_clients(0, 1, 9), [client]);
    world.run_for(3 * SECOND_US);
    assert!(!world.clients[client].closed);
    world.run_for(2 * SECOND_US);
    assert!(world.clients[client].closed, "idle for eleven seconds, on whichever worker");
    world.finish();
}

/// An open count in an account is counted once, wherever the client is, and is given back when it
/// ends or is lost on the way.
#[test]
fn accounts_stay_right() {
    let two = LimitPlan::new("two", Terms::Open(2));
    let mut world = World::started(limited(two, |_| ()), 2, 1);
    let clients = [world.client(), world.client()];
    assert_eq!(open(&world), 2);
    assert_eq!(world.move_clients(0, 1, 1).len(), 1);
    assert_eq!(open(&world), 2);
    world.reset(clients[0]);
    world.reset(clients[1]);
    world.settle();
    assert_eq!(open(&world), 0);
    let client = world.client();
    let lost: Vec<(u64, MovedClient)> = part(&mut world.nodes[0].engine, 9);
    assert_eq!((lost.len(), open(&world), world.nodes[0].engine.clients()), (1, 1, 0));
    drop(lost);
    assert_eq!(open(&world), 0, "nobody has taken it in");
    world.clients[client].closed = true;
    world.finish();
}

/// A connection does not escape the limit for glitches, nor the count of refusals, by a move to
/// another worker; one with bytes still to come does not move.
#[test]
fn what_was_wrong_goes_along() {
    let replies = [false, true].map(|moves| {
        let client = ClientPlan { glitches_max: Some(4), ..ClientPlan::default() };
        let mut world = World::started(Plan { client, ..plan(1, 1) }, 2, 1);
        let client = world.client();
        for round in 0..20 {
            if world.clients[client].replies.last().is_none_or(|reply| !reply.closes) {
                world.expect(client, "GET", false, false);
                world.send(
                    client,
                    format!("\r\nGET /v?n=000000{round:02} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes(),
                );
                world.settle();
            }
            let node = world.clients[client].node;
            assert!(
                !moves
                    || world.clients[client].closed
                    || world.move_clients(node, 1 - node, 9).len() == 1
            );
        }
        let replies = world.clients[client].replies.len();
        world.finish();
        replies
    });
    assert!(replies[0] == replies[1] && replies[0] < 20, "{replies:?}");

    let two = LimitPlan::new("two", Terms::Requests(Rate::new(1, 3600 * SECOND_US, 2, false)));
    let mut world = World::started(limited(two, |_| ()), 2, 1);
    let client = world.client();
    for _ in 0..6 {
        world.get(client, "a");
        world.settle();
    }
    assert_eq!(world.clients[client].statuses(), [200, 200, 429, 429, 429, 429]);
    assert!(world.clients[client].deferred);
    assert_eq!(world.move_clients(0, 1, 9), [], "one that has no haste");
    world.finish();
}

/// A client that was banned on the way is not admitted by the other worker.
#[test]
fn a_ban_on_the_way_holds() {
    let mut world = World::started(plan(1, 1), 2, 1);
    let client = world.client();
    let parted = part(&mut world.nodes[0].engine, 9);
    let block = Block::read(&world.peer.to_string(), 32, 64).expect("a block");
    world.ban(BanSet::new(vec![(block, u64::MAX)]));
    for (socket, moved) in parted {
        assert!(arrive(&mut world.nodes[1].engine, socket, moved, false).is_err());
    }
    world.clients[client].closed = true;
    assert_eq!(world.count(|counters| counters.client_closes.get("banned")), 1);
    world.finish();
}

/// Whenever connections move, responses are whole, in order, and one for each request.
#[test]
fn at_random_times() {
    let mut moved_in_all = 0;
    for seed in 0..60 {
        let rng = &mut Rng(seed);
        let workers = 2 + rng.below(2) as u16;
        let mut world =
            World::started(plan(1 + rng.below(2) as usize, 1 + rng.below(3) as u32), workers, seed);
        world.shuffled = true;
        let delay_us = rng.below(3000);
        world.serve(move |seen| {
            seen.complete.then(|| vec![Do::Delay(delay_us), Do::Answer(answer(seen.request))])
        });
        let clients: Vec<usize> =
            (0..8).map(|n| world.client_of(n % usize::from(workers))).collect();
        let (mut asked, mut moved) = (vec![0; clients.len()], 0);
        for _ in 0..120 {
            for (n, client) in clients.iter().enumerate() {
                let requests = if rng.one_in(4) { 1 + rng.below(3) } else { 0 };
                for _ in 0..requests {
                    world.get(*client, &format!("{n:04}{:04}", asked[n]));
                    asked[n] += 1;
                }
            }
            world.settle_once();
            let (from, to) =
                (rng.below(workers.into()) as usize, rng.below(workers.into()) as usize);
            moved += world.move_clients(from, to, 1 + rng.below(8) as usize).len();
            world.run_for(rng.below(2000));
        }
        world.run_for(10 * SECOND_US);
        for (n, client) in clients.iter().enumerate() {
            assert_eq!(world.clients[*client].replies.len(), asked[n], "seed {seed}");
            for (number, reply) in world.clients[*client].replies.iter().enumerate() {
                check_honest(&format!("{n:04}{number:04}"), reply).unwrap();
            }
        }
        moved_in_all += moved;
        world.finish();
    }
    assert!(moved_in_all > 1000, "{moved_in_all}");
}
