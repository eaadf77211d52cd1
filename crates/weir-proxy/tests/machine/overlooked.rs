//! Proves: a server that overlooks requests which arrived together is found, whether it closes such
//! connections or keeps them, and no client waits because of it; one that is slow, pauses for a
//! while, or ends connections instead of responding is not mistaken for it.
//! docs/pipelining-stalls.md#overlooked-requests

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use weir_check::upstreams::check_honest;
use weir_proxy::cross::doubt::Doubt;
use weir_proxy::cross::standing::Order;
use weir_proxy::placement::sticky::{Cookie, Sticky};
use weir_proxy::plan::{PipelineMode, Plan};

use crate::world::{Do, Rng, Seen, World, answer, plan};

/// The time of a response.
const QUICK_US: u64 = 200;

fn deep(connections: u32) -> Plan {
    let mut deep = plan(1, connections);
    deep.upstreams[0].pipeline = PipelineMode::Depth(16);
    deep
}

fn at_once(seen: &Seen<'_>) -> Option<Vec<Do>> {
    Some(vec![Do::Delay(QUICK_US), Do::Answer(answer(seen.request))])
}

/// Every client sends one request a round, and is answered `within_us`.
fn all_ask(world: &mut World, clients: &[usize], rounds: u32, label: &str, within_us: u64) {
    for round in 0..rounds {
        let nonce = |client: usize| format!("{label}{round:04}{client}");
        clients.iter().for_each(|client| world.get(*client, &nonce(*client)));
        world.run_for(within_us);
        for client in clients {
            let nonce = nonce(*client);
            let reply = world.clients[*client].replies.last().expect("an answer");
            check_honest(&nonce, reply).unwrap_or_else(|fault| panic!("{nonce}: {fault:?}"));
        }
        world.run_for(3_000_000 - within_us);
    }
}

/// Returns a world with this many clients whose requests are pipelined on eight connections.
fn pipelined(clients: usize) -> (World, Vec<usize>) {
    let mut world = World::started(deep(8), 1, 1);
    let clients: Vec<usize> = (0..clients).map(|_| world.client()).collect();
    all_ask(&mut world, &clients, 20, "aaaa", 1_000_000);
    assert!(world.depth() > 1);
    // Afterwards another program may be behind the address.
    for conn in world.open_conns() {
        world.cut(conn, Do::Rst);
    }
    world.run_for(1_000_000);
    (world, clients)
}

fn demotions(world: &World) -> u64 {
    world.count(|counters| counters.demotions.get())
}

/// gunicorn with threads reads requests that came together, answers the first, and waits until more
/// can be read.
fn overlooks(seen: &Seen<'_>) -> Option<Vec<Do>> {
    let awaits = seen.behind.then_some(Do::AwaitArrival(seen.arrival + 1));
    Some(awaits.into_iter().chain(at_once(seen)?).collect())
}

/// No client waits for long, and after some rounds the server has one request at a time.
#[test]
fn a_server_that_overlooks_requests_is_not_pipelined() {
    for count in [8, 400] {
        let (mut world, clients) = pipelined(count);
        world.serve(overlooks);
        all_ask(&mut world, &clients, 6, "bbbb", 1_000_000);
        assert_eq!(demotions(&world), 1);
        assert_eq!(world.nodes[0].engine.report().servers[0].penalty_for, Some(Doubt::CutsShort));
        world.measure_depth();
        all_ask(&mut world, &clients, 5, "cccc", 500_000);
        assert_eq!(world.depth(), 1);
        world.finish();
    }
}

/// The other server is as good as ever.
#[test]
fn one_of_two_servers_overlooks_requests() {
    let mut plan = plan(2, 4);
    plan.upstreams[0].pipeline = PipelineMode::Depth(16);
    let mut world = World::started(plan, 1, 1);
    let clients: Vec<usize> = (0..16).map(|_| world.client()).collect();
    all_ask(&mut world, &clients, 40, "aaaa", 1_000_000);
    // Another program takes the place of the second one.
    world.servers[1].serve = Box::new(overlooks);
    for conn in world.open_conns() {
        if world.conns[conn].server == 1 {
            world.cut(conn, Do::Rst);
        }
    }
    world.run_for(1_000_000);
    all_ask(&mut world, &clients, 20, "bbbb", 1_000_000);
    let report = world.nodes[0].engine.report();
    let penalties: Vec<_> = report.servers.iter().map(|server| server.penalty_for).collect();
    assert_eq!(penalties, [None, Some(Doubt::CutsShort)]);
    world.finish();
}

/// Nothing else may follow the last request of its batch: the response to a request that is sent
/// for the sake of others reaches no client.
#[test]
fn what_is_last_of_its_batch_is_overlooked_as_well() {
    let (mut world, clients) = pipelined(8);
    world.serve(overlooks);
    for round in 0..6 {
        for client in &clients {
            let method = if client == clients.last().unwrap() { "HEAD" } else { "GET" };
            world.ask(*client, method, &format!("/v?n=bbb{round:04}{client}"), "");
        }
        world.run_for(1_000_000);
        assert!(
            clients.iter().all(|client| world.clients[*client].statuses().len() == 21 + round),
            "round {round}"
        );
    }
    world.finish();
}

/// A request that is late behind another response is sent twice only until the server has shown
/// that it is slow and overlooks nothing.
#[test]
fn a_server_that_is_slow_behind_an_answer_is_asked_twice_a_few_times() {
    let (mut world, clients) = pipelined(8);
    let asked = Rc::new(RefCell::new(BTreeMap::new()));
    let counted = asked.clone();
    world.serve(move |seen| {
        // One in three of the last client's.
        let nonce = seen.request.nonce();
        let slow = nonce.ends_with("7") && nonce.as_bytes()[7].is_multiple_of(3);
        *counted.borrow_mut().entry(nonce.to_owned()).or_insert(0) += u32::from(slow);
        Some(vec![Do::Delay(if slow { 400_000 } else { 200 }), Do::Answer(answer(seen.request))])
    });
    all_ask(&mut world, &clients, 30, "bbbb", 1_000_000);
    let twice = asked.borrow().values().filter(|times| **times > 1).count();
    assert!((1..=3).contains(&twice), "{twice}");
    assert_eq!(demotions(&world), 0);
    world.finish();
}

/// Times of any kind, some long, and slow answers behind slow ones.
#[test]
fn a_server_of_many_times_overlooks_nothing() {
    let (mut world, clients) = pipelined(40);
    let mut rng = Rng(7);
    world.serve(move |seen| {
        let us = match rng.below(20) {
            0 => 20_000 + rng.below(300_000),
            1 => 1_000_000 + rng.below(1_000_000),
            _ => rng.below(5_000),
        };
        Some(vec![Do::Delay(us), Do::Answer(answer(seen.request))])
    });
    for round in 0..200 {
        for (n, client) in clients.iter().enumerate() {
            world.get(*client, &format!("b{n:03}{round:04}"));
        }
        world.run_for(3_000_000);
    }
    world.run_for(60_000_000);
    assert!(clients.iter().all(|client| world.clients[*client].statuses().len() == 220));
    assert_eq!(demotions(&world), 0);
    world.finish();
}

/// Whether the response to this request takes long, if it comes at all.
fn slow(seen: &Seen<'_>) -> bool {
    seen.request.target.starts_with("/slow")
}

/// One of eight requests that arrive together, and not the first, is slow; 20 times.
fn ask_slow_ones(world: &mut World, clients: &[usize]) {
    for round in 0..20 {
        for (n, client) in clients.iter().enumerate() {
            let path = if n == 7 { "/slow" } else { "/v" };
            world.ask(*client, "GET", &format!("{path}?n=bbb{round:04}{n}"), "");
        }
        world.run_for(3_000_000);
    }
}

/// It closes a connection instead of responding, a while after the last response. It also does so
/// if the request comes alone.
#[test]
fn a_server_that_ends_connections_over_slow_requests_overlooks_nothing() {
    let (mut world, clients) = pipelined(8);
    world.serve(
        |seen| if slow(seen) { Some(vec![Do::Delay(1_000_000), Do::Fin]) } else { at_once(seen) },
    );
    let client = clients[0];
    world.ask(client, "GET", "/v?n=bbbb0000", "");
    world.ask(clients[7], "GET", "/slow?n=bbbb0001", "");
    world.run_for(10_000_000);
    check_honest("bbbb0000", world.clients[client].replies.last().unwrap()).unwrap();
    assert!(world.clients[clients[7]].statuses().last().is_some_and(|status| *status >= 500));
    assert_eq!(demotions(&world), 0);
    world.finish();
}

/// A pause for a garbage collection, for example: nothing is answered elsewhere either.
#[test]
fn a_server_that_stops_for_a_while_overlooks_nothing() {
    let (mut world, clients) = pipelined(100);
    let stops_us = world.now_us + QUICK_US;
    // Requests that have arrived by then are answered after the pause, on each connection.
    let mut paused = BTreeSet::new();
    world.serve(move |seen| {
        let stopped = (seen.now_us >= stops_us || seen.behind) && paused.insert(seen.conn);
        // The newest connections are served first.
        let ends_us = stops_us + 3_000_000 + 5_000 * 20_u64.saturating_sub(seen.conn as u64);
        let pause = stopped.then(|| Do::Delay(ends_us.saturating_sub(seen.now_us)));
        Some(pause.into_iter().chain([Do::Answer(answer(seen.request))]).collect())
    });
    clients.iter().enumerate().for_each(|(n, client)| world.get(*client, &format!("bbbb{n:04}")));
    world.run_for(60_000_000);
    for (n, client) in clients.iter().enumerate() {
        check_honest(&format!("bbbb{n:04}"), world.clients[*client].replies.last().unwrap())
            .unwrap();
    }
    assert_eq!(demotions(&world), 0);
    world.finish();
}

/// An interim response shows that the request was read.
#[test]
fn what_has_an_interim_answer_is_not_overlooked() {
    let (mut world, clients) = pipelined(8);
    world.serve(|seen| {
        let hint = Do::Bytes(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".to_vec());
        let mut script = at_once(seen)?;
        if slow(seen) {
            script.splice(0..0, [hint, Do::Delay(1_000_000)]);
        }
        Some(script)
    });
    ask_slow_ones(&mut world, &clients);
    for round in 0..20 {
        assert_eq!(world.times_served(&format!("bbb{round:04}7")), 1);
    }
    assert_eq!(demotions(&world), 0);
    world.finish();
}

/// A request that is bound to a server which an operator has taken out of use gets its response
/// there.
#[test]
fn what_is_bound_stays_where_no_more_is_taken() {
    let mut plan = plan(2, 1);
    let upstream = &mut plan.upstreams[0];
    upstream.pipeline = PipelineMode::Depth(16);
    let names: Vec<&str> = upstream.servers.iter().map(|server| server.name.as_str()).collect();
    upstream.sticky = Some(Sticky::new(&Cookie::new("srv"), false, "", "app", &names));
    let mut world = World::started(plan, 1, 1);
    for server in &mut world.servers {
        server.serve = Box::new(|seen| match slow(seen) {
            true => Some(vec![Do::Delay(1_500_000), Do::Answer(answer(seen.request))]),
            false => at_once(seen),
        });
    }
    let clients: Vec<usize> = (0..2).map(|_| world.client()).collect();
    world.get(clients[0], "aaaa0000");
    world.run_for(1_000);
    let set = world.clients[clients[0]].replies[0].fields.first("set-cookie").unwrap().to_owned();
    let cookie = format!("Cookie: {}\r\n", set.split(';').next().unwrap());
    for n in 1..200 {
        world.ask(clients[0], "GET", &format!("/v?n=aaaa{n:04}"), &cookie);
        world.run_for(1_000);
    }
    world.ask(clients[0], "GET", "/v?n=bbbb0000", &cookie);
    world.ask(clients[1], "GET", "/slow?n=bbbb0001", &cookie);
    world.run_for(100);
    let [server] = world.seen_by("bbbb0001")[..] else { panic!("it is on its way") };
    assert_eq!(world.depth(), 2);
    world.order(server as u32, Order::Disable);
    world.run_for(5_000_000);
    check_honest("bbbb0000", world.clients[clients[0]].replies.last().unwrap()).unwrap();
    check_honest("bbbb0001", world.clients[clients[1]].replies.last().unwrap()).unwrap();
    assert!(world.seen_by("bbbb0001").iter().all(|seen| *seen == server));
    world.finish();
}

/// Each response takes hardly longer than weir waits: when weir then sends anything, the response
/// arrives at once.
#[test]
fn a_server_that_always_takes_as_long_overlooks_nothing() {
    for (us, rounds) in [(100_500, 300), (102_000, 300), (104_500, 1_000)] {
        let (mut world, clients) = pipelined(60);
        world.serve(move |seen| match slow(seen) {
            true => Some(vec![Do::Delay(us), Do::Answer(answer(seen.request))]),
            false => at_once(seen),
        });
        for round in 0..rounds {
            for (n, client) in clients.iter().enumerate() {
                let path = if n % 30 == 7 { "/slow" } else { "/v" };
                world.ask(*client, "GET", &format!("{path}?n=b{n:03}{round:04}"), "");
            }
            world.run_for(300_000);
        }
        assert_eq!(demotions(&world), 0);
        world.finish();
    }
}

/// A server that pauses for hardly longer than that, with unanswered requests on all connections.
#[test]
fn a_short_pause_overlooks_nothing() {
    let mut world = World::started(deep(64), 1, 1);
    let clients: Vec<usize> = (0..800).map(|_| world.client()).collect();
    all_ask(&mut world, &clients, 20, "aaaa", 1_000_000);
    for round in 0..10_u64 {
        let ends_us = world.now_us + 103_000;
        let mut paused = BTreeSet::new();
        world.serve(move |seen| {
            let stopped = seen.behind && paused.insert(seen.conn);
            let pause = stopped.then(|| Do::Delay(ends_us.saturating_sub(seen.now_us)));
            Some(pause.into_iter().chain(at_once(seen)?).collect())
        });
        clients
            .iter()
            .enumerate()
            .for_each(|(n, client)| world.get(*client, &format!("b{n:03}{round:04}")));
        world.run_for(3_000_000);
    }
    assert_eq!(demotions(&world), 0);
    world.finish();
}
