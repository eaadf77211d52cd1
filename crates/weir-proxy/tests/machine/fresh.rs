//! Proves: with `pool "fresh"` requests have connections of their own while kept ones are worse,
//! and only then; one that cannot be made costs no client a response; special requests use kept
//! ones; nothing is left behind. How: a server that responds late unless a request is the first on
//! its connection. docs/pools.md#kept-or-fresh.

use weir_check::upstreams::check_honest;
use weir_proxy::plan::{Plan, Pool};

use crate::world::{Do, Door, Rng, Seen, World, answer, plan};

const KEPT: usize = 4;
/// Requests after which connections are compared: every 16th of the first ones is a probe, and
/// eight are needed.
const ENOUGH: usize = 16 * 9;

fn fresh(servers: usize) -> Plan {
    let mut plan = plan(servers, KEPT as u32);
    plan.upstreams[0].pool = Pool::Fresh;
    plan.upstreams[0].servers.iter_mut().for_each(|server| server.connections_max = 32);
    plan
}

/// Behaves like a worker that is busy with others: a request on an existing connection waits.
fn tied(seen: &Seen<'_>) -> Option<Vec<Do>> {
    let is_first = seen.arrival == 1;
    seen.complete.then(|| {
        vec![Do::Delay(if is_first { 200 } else { 25_000 }), Do::Answer(answer(seen.request))]
    })
}

fn quick(seen: &Seen<'_>) -> Option<Vec<Do>> {
    seen.complete.then(|| vec![Do::Delay(200), Do::Answer(answer(seen.request))])
}

/// Sends this many requests, one after the other, each `step_us`; all are answered.
fn converse(world: &mut World, client: usize, requests: usize, step_us: u64) {
    let before = world.clients[client].replies.len();
    for n in before..before + requests {
        world.get(client, &format!("{client:02}{n:06}"));
        world.run_for(step_us);
        check_honest(&format!("{client:02}{n:06}"), &world.clients[client].replies[n]).unwrap();
    }
}

/// Returns a world in which connections for requests are in force, and a client that has sent
/// requests until then.
fn in_force(servers: usize) -> (World, usize) {
    let mut world = World::started(fresh(servers), 1, 1);
    world.servers.iter_mut().for_each(|server| server.serve = Box::new(tied));
    let client = world.client();
    converse(&mut world, client, ENOUGH * servers * 2, 30_000);
    let turns: Vec<u64> = (0..servers)
        .map(|server| world.count_of(server, |stats| stats.fresh_turns.get()))
        .collect();
    assert!(turns.iter().all(|turns| *turns == 1), "{turns:?}");
    (world, client)
}

fn asked_fresh(world: &World) -> u64 {
    world.count_of(0, |stats| stats.fresh_requests.get())
}

/// While kept connections are good, one request in a hundred has its own connection, which ends
/// with its response.
#[test]
fn few_while_both_are_alike() {
    let mut world = World::started(fresh(1), 1, 1);
    world.serve(quick);
    let client = world.client();
    converse(&mut world, client, 2_000, 1_000);
    let (asked, made) = (asked_fresh(&world), world.conns.len() - KEPT);
    assert!((25..40).contains(&asked), "{asked}");
    assert_eq!((made as u64, world.open_conns().len()), (asked, KEPT));
    assert_eq!(world.count_of(0, |stats| stats.fresh_turns.get()), 0);
    let mut requests = world.conns[KEPT..].iter().flat_map(|conn| &conn.requests);
    assert!(
        requests.all(|one| one.fields.first("connection").is_none()),
        "it may have to go on a kept one"
    );
    world.finish();
}

/// When kept ones are slow, each request has its own, except for probes; when they are good again,
/// none.
#[test]
fn there_and_back() {
    let (mut world, client) = in_force(1);
    let before = asked_fresh(&world);
    converse(&mut world, client, 200, 30_000);
    let asked = asked_fresh(&world) - before;
    assert!((197..=200).contains(&asked), "{asked} of 200");
    world.serve(quick);
    converse(&mut world, client, 1_600, 500_000);
    let before = asked_fresh(&world);
    converse(&mut world, client, 100, 5_000);
    let asked = asked_fresh(&world) - before;
    assert!(asked <= 2, "{asked} of 100");
    world.finish();
}

/// A server that accepts no new connections: all requests are answered on existing ones, and after
/// eight failures none is tried for a while.
#[test]
fn none_can_be_made() {
    for door in [Door::Refuses, Door::Slams, Door::Mute, Door::Absent] {
        let (mut world, client) = in_force(1);
        let asked = world.clients[client].replies.len();
        world.servers[0].door = door;
        converse(&mut world, client, 16, 1_100_000);
        let failures = world.count_of(0, |stats| stats.fresh_failures.get());
        assert!((8..=9).contains(&failures), "{door:?}: {failures}");
        assert_eq!(world.clients[client].statuses()[asked..], [200; 16]);
        assert_eq!(world.open_conns().len(), KEPT, "{door:?}: the others are not to blame");
        world.servers[0].door = Door::Open;
        converse(&mut world, client, ENOUGH * 12, 100_000);
        assert!(
            world.count_of(0, |stats| stats.fresh_turns.get()) >= 2,
            "{door:?}: it has another chance"
        );
        world.finish();
    }
}

/// Incomplete requests, and those for another protocol, use kept connections; a request that must
/// not be sent twice may have its own, and is sent once.
#[test]
fn what_is_special() {
    let (mut world, client) = in_force(1);
    let before = asked_fresh(&world);
    world.expect(client, "POST", false, false);
    world.send(client, b"POST /p?n=10000001 HTTP/1.1\r\nHost: a\r\nContent-Length: 400000\r\n\r\n");
    for _ in 0..2 {
        world.send(client, &vec![b'x'; 200_000]);
        world.run_for(50_000);
    }
    assert_eq!(asked_fresh(&world), before, "a body that streams");
    assert_eq!(world.clients[client].statuses().last(), Some(&200));
    world.post(client, "10000002", b"x");
    world.run_for(100_000);
    assert_eq!((asked_fresh(&world), world.times_served("10000002")), (before + 1, 1));
    world.serve(|seen| {
        let text =
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nhello";
        seen.complete.then(|| vec![Do::Switch(text.as_bytes().to_vec())])
    });
    world.ask(client, "GET", "/v?n=10000003", "Connection: upgrade\r\nUpgrade: x\r\n");
    world.run_for(1_000);
    assert_eq!(
        (asked_fresh(&world), &world.clients[client].tunnel[..]),
        (before + 1, &b"hello"[..])
    );
    world.finish();
}

/// Events on a request's own connection are treated as on any: GET is sent again, POST is not.
#[test]
fn lost_with_a_request() {
    for (method, status) in [("GET", 200), ("POST", 502)] {
        let (mut world, client) = in_force(1);
        let mut first = true;
        world.serve(
            move |seen| if std::mem::take(&mut first) { Some(vec![Do::Rst]) } else { quick(seen) },
        );
        match method {
            "GET" => world.get(client, "10000001"),
            _ => world.post(client, "10000001", b"x"),
        }
        world.run_for(100_000);
        assert_eq!(world.clients[client].statuses().last(), Some(&status), "{method}");
        assert_eq!(world.times_served("10000001"), if status == 200 { 2 } else { 1 });
        world.finish();
    }
}

/// A client with several requests in progress gets its responses in order, and one that leaves
/// takes its connections along, including those that are being made.
#[test]
fn clients_that_pipeline_and_leave() {
    let (mut world, client) = in_force(1);
    let before = world.clients[client].replies.len();
    (0..20).for_each(|n| world.get(client, &format!("1{n:07}")));
    world.run_for(1_000_000);
    for n in 0..20 {
        check_honest(&format!("1{n:07}"), &world.clients[client].replies[before + n]).unwrap();
    }
    // The next one may be a probe.
    converse(&mut world, client, 1, 30_000);
    world.serve(|_| None);
    let (leaves, stays) = (world.client(), world.client());
    world.get(leaves, "20000001");
    world.run_for(1_000);
    assert_eq!(world.open_conns().len(), KEPT + 1);
    world.servers[0].door = Door::Mute;
    world.get(stays, "20000002");
    world.run_for(1_000);
    assert_eq!(world.count(|counters| counters.queue_waiting.get()), 1);
    world.reset(leaves);
    world.reset(stays);
    world.run_for(1_000);
    assert_eq!(
        (world.open_conns().len(), world.count(|counters| counters.queue_waiting.get())),
        (KEPT, 0)
    );
    world.finish();
}

/// At most `connections-max` at a time; the others use kept ones.
#[test]
fn no_more_than_allowed() {
    let (mut world, _) = in_force(1);
    world.serve(|seen| {
        seen.complete.then(|| vec![Do::Delay(500_000), Do::Answer(answer(seen.request))])
    });
    let clients: Vec<usize> = (0..100).map(|_| world.client()).collect();
    clients.iter().enumerate().for_each(|(n, client)| world.get(*client, &format!("3{n:07}")));
    world.run_for(10_000);
    let open = world.open_conns().len();
    assert!((32..=64).contains(&open), "{open}");
    world.run_for(60_000_000);
    for (n, client) in clients.iter().enumerate() {
        check_honest(&format!("3{n:07}"), &world.clients[*client].replies[0]).unwrap();
    }
    world.finish();
}

/// Each of two servers is compared separately.
#[test]
fn each_server_by_itself() {
    let (mut world, client) = in_force(2);
    world.servers[1].door = Door::Refuses;
    converse(&mut world, client, 60, 30_000);
    assert_eq!(world.count_of(0, |stats| stats.fresh_failures.get()), 0);
    assert_eq!(world.count_of(1, |stats| stats.fresh_failures.get()), 8);
    world.finish();
}

/// Doors that open and close, servers that break off, clients that leave: a client that stays has
/// all of its responses, and only its own.
#[test]
fn whatever_happens() {
    for seed in 0..40 {
        let (mut world, _) = in_force(1);
        let mut failed = 0;
        let (mut rng, mut luck) = (Rng(seed), Rng(seed + 1_000));
        world.serve(move |seen| match luck.below(40) {
            0 => Some(vec![Do::Rst]),
            1 => Some(vec![Do::Fin]),
            _ => tied(seen),
        });
        let mut clients: Vec<(usize, usize)> = (0..6).map(|_| (world.client(), 0)).collect();
        for _ in 0..60 {
            let doors =
                [Door::Open, Door::Open, Door::Open, Door::Refuses, Door::Slams, Door::Mute];
            world.servers[0].door = doors[rng.below(6) as usize];
            for (client, asked) in &mut clients {
                match rng.below(12) {
                    0 => {
                        world.reset(*client);
                        (*client, *asked) = (world.client(), 0);
                    }
                    more => (0..more / 4).for_each(|_| {
                        world.get(*client, &format!("{client:03}{asked:05}"));
                        *asked += 1;
                    }),
                }
            }
            world.run_for(rng.below(60_000));
        }
        world.servers[0].door = Door::Open;
        world.serve(quick);
        world.run_for(30_000_000);
        for (client, asked) in clients {
            assert_eq!(world.clients[client].replies.len(), asked, "seed {seed}: client {client}");
            for n in 0..asked {
                // A response that a server broke off too often.
                let reply = &world.clients[client].replies[n];
                match reply.status {
                    502 => failed += 1,
                    _ => check_honest(&format!("{client:03}{n:05}"), reply).unwrap(),
                }
            }
        }
        assert!(failed < 10, "seed {seed}: {failed} failed");
        // Connections kept beyond the minimum are closed after an idle time.
        world.run_for(200_000_000);
        let left = world.count(|counters| counters.in_flight.get() + counters.queue_waiting.get());
        assert_eq!((left, world.open_conns().len()), (0, KEPT), "seed {seed}");
        world.finish();
    }
}
