//! Proves: idle connections are neither made without need nor closed without reason, and nothing
//! waits for one that will not come. How: servers whose connections end in one way and then in
//! another, requests that go alone, servers that refuse connects, step by step.

use std::cell::Cell;
use std::rc::Rc;

use weir_check::upstreams::check_honest;
use weir_proxy::plan::FailoverRule;
use weir_proxy::upstream::health::{Codes, Symptom};
use weir_proxy::upstream::server_state::State;

use crate::breathing::{SECOND, ask_slow, breathing, carrier, open, slow_after};
use crate::world::{Do, Door, Seen, World, answer, honest, plan};

/// Announces that the connection ends, and ends it.
fn closing(seen: &Seen<'_>, answer: Vec<u8>) -> Option<Vec<Do>> {
    let ends =
        String::from_utf8(answer).expect("text").replacen("\r\n", "\r\nConnection: close\r\n", 1);
    seen.complete.then(|| vec![Do::Answer(ends.into_bytes()), Do::Fin])
}

fn get(world: &mut World, client: usize, nonce: &str) {
    world.get(client, nonce);
    world.run_for(SECOND / 10);
    check_honest(nonce, world.clients[client].replies.last().expect("answered")).unwrap();
}

fn post(world: &mut World, client: usize, nonce: &str) {
    world.post(client, nonce, b"x");
    world.run_for(SECOND / 10);
    check_honest(nonce, world.clients[client].replies.last().expect("answered")).unwrap();
}

/// One response ends its connection (an error page), the others do not: the site is quiet, and no
/// connection is made and closed over and over.
#[test]
fn one_answer_that_ends_its_connection_is_no_rule() {
    for workers in [1, 2] {
        let mut world = World::started(breathing(1, 4, 8), workers, 1);
        world.serve(|seen| match seen.request.target.starts_with("/bad") {
            true => closing(seen, answer(seen.request)),
            false => honest(seen),
        });
        for worker in 0..usize::from(workers) {
            let client = world.client_of(worker);
            world.ask(client, "GET", &format!("/bad?n=0000000{worker}"), "");
            world.run_for(SECOND / 10);
            get(&mut world, client, &format!("0000001{worker}"));
        }
        let before = world.conns.len();
        world.run_for(30 * SECOND);
        assert!(
            world.conns.len() - before <= usize::from(workers),
            "{} made for nobody",
            world.conns.len() - before
        );
        world.finish();
    }
}

/// The request is authenticated for a client (NTLM): the connection ends with it, and that proves
/// nothing about the server.
#[test]
fn a_connection_that_is_bound_to_a_client_is_no_rule() {
    let mut world = World::started(breathing(1, 4, 8), 1, 1);
    world.serve(|seen| {
        let text =
            b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: NTLM\r\nContent-Length: 0\r\n\r\n"
                .to_vec();
        match seen.request.target.starts_with("/bad") {
            true => seen.complete.then(|| vec![Do::Answer(text)]),
            false => honest(seen),
        }
    });
    let client = world.client();
    world.ask(client, "GET", "/bad?n=00000000", "");
    world.run_for(SECOND / 10);
    let before = world.conns.len();
    world.run_for(30 * SECOND);
    assert!(world.conns.len() - before <= 1, "{} made for nobody", world.conns.len() - before);
    assert_eq!(open(&world), 1, "one is kept");
    world.finish();
}

/// Nothing but POSTs: no connection ever has a second request before it is known that the server
/// keeps them.
#[test]
fn a_server_that_only_gets_posts_keeps_its_connection() {
    let mut world = World::started(breathing(1, 4, 8), 1, 1);
    let client = world.client();
    for n in 0..50 {
        post(&mut world, client, &format!("{n:08}"));
        world.run_for(SECOND / 10);
    }
    assert!(world.conns.len() <= 3, "{} connections for 50 POSTs", world.conns.len());
    world.finish();
}

/// After a busy moment many connections are idle; a POST takes none of them with it.
#[test]
fn a_post_leaves_the_others_at_rest() {
    let mut world = World::started(breathing(1, 50, 100), 1, 1);
    world.serve(slow_after(SECOND / 10));
    let client = world.client();
    get(&mut world, client, "00000000");
    get(&mut world, client, "00000001");
    for n in 0..50 {
        ask_slow(&mut world, &format!("aaaa{n:04}"));
    }
    world.run_for(3 * SECOND);
    let rested = open(&world);
    assert!(rested >= 40, "{rested}");
    post(&mut world, client, "00000002");
    assert!(open(&world) >= rested, "{} of {rested} are left", open(&world));
    world.finish();
}

/// An exact pool, some of whose connections the server refuses: requests that go alone do not wait
/// for those.
#[test]
fn nothing_waits_for_connects_that_are_refused() {
    let mut world = World::started(breathing(4, 4, 4), 1, 1);
    let client = world.client();
    for n in 0..8 {
        get(&mut world, client, &format!("{n:08}"));
    }
    world.servers[0].door = Door::Refuses;
    let conns = world.open_conns();
    for conn in conns.into_iter().skip(2) {
        world.cut(conn, Do::Fin);
    }
    // The tries come less and less often.
    world.run_for(40 * SECOND);
    assert_eq!(open(&world), 2);
    world.servers[0].door = Door::Open;
    post(&mut world, client, "aaaa0000");
    world.finish();
}

/// Returns two servers with these numbers of connections, the first of which responds 503 while the
/// flag is set, and ends each connection behind its response if `ends`. It is suspended.
fn suspended(min: u32, connections: u32, ends: bool) -> (World, Rc<Cell<bool>>) {
    let mut plan = plan(2, connections);
    for server in &mut plan.upstreams[0].servers {
        (server.connections_min, server.connections_max) = (min, 8);
    }
    let codes = Codes { first: 500, last: 599 };
    plan.upstreams[0].failover =
        vec![FailoverRule { symptom: Symptom::Status(codes), limit: 3, window_us: SECOND }];
    let mut world = World::started(plan, 1, 1);
    let bad = Rc::new(Cell::new(true));
    let fails = bad.clone();
    world.servers[0].serve = Box::new(move |seen| {
        let text = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n".to_vec();
        let whole = if fails.get() { text } else { answer(seen.request) };
        if ends { closing(seen, whole) } else { seen.complete.then(|| vec![Do::Answer(whole)]) }
    });
    let client = world.client();
    for n in 0..40 {
        world.get(client, &format!("{n:08}"));
        world.run_for(SECOND / 100);
    }
    assert!(matches!(world.nodes[0].engine.standing(0).unwrap().state(), State::Suspended(_)));
    (world, bad)
}

/// A server that is suspended and ends each connection after one response is tried, and recovers.
#[test]
fn a_suspended_server_of_one_answer_a_connection_comes_back() {
    let (mut world, bad) = suspended(1, 4, true);
    bad.set(false);
    let client = world.client();
    for n in 0..60 {
        world.get(client, &format!("aaaa{n:04}"));
        world.run_for(3 * SECOND);
    }
    assert_eq!(world.nodes[0].engine.standing(0).unwrap().state(), State::Active);
    world.finish();
}

/// Kept connections to a server are kept while it is suspended.
#[test]
fn a_suspended_server_keeps_its_connections() {
    for min in [1, 4] {
        let (mut world, _) = suspended(min, 4, false);
        world.run_for(200 * SECOND);
        let before = world.conns.len();
        world.run_for(200 * SECOND);
        assert_eq!((open(&world), world.conns.len()), (2 * min as usize, before), "{min}");
        world.finish();
    }
}

/// If no more connections can be made, one is kept for a request that waits alone: the one that
/// will be free first.
#[test]
fn what_goes_alone_does_not_wait_for_a_long_one() {
    let mut world = World::started(breathing(4, 4, 4), 1, 1);
    world.serve(|seen| match seen.request.target.starts_with("/long") {
        true => Some(vec![Do::Silence]),
        false => seen.complete.then(|| vec![Do::Delay(10_000), Do::Answer(answer(seen.request))]),
    });
    let long = world.client();
    world.ask(long, "PUT", "/long?n=00000000", "Content-Length: 0\r\n");
    let clients: Vec<usize> = (0..40).map(|_| world.client()).collect();
    for round in 0..20 {
        for (at, client) in clients.iter().enumerate() {
            if world.clients[*client].replies.len() == round {
                world.get(*client, &format!("{at:04}{round:04}"));
            }
        }
        if round == 5 {
            world.post(long + 1, "bbbb0000", b"x");
        }
        world.run_for(50_000);
    }
    assert!(carrier(&world, "bbbb0000").is_some(), "it has a connection");
    assert!(world.seen_by("bbbb0000").len() == 1);
}

/// One response too many, right behind the one to a request that went alone: no client gets it,
/// even if requests wait for the connection.
#[test]
fn a_kept_connection_is_seen_empty_first() {
    let mut world = World::started(breathing(1, 1, 1), 1, 1);
    world.serve(|seen| {
        let twice = seen.request.nonce() == "aaaa0000";
        let forged = twice.then(|| Do::Answer(answer(seen.request)));
        seen.complete.then(|| {
            [Do::Delay(1_000), Do::Answer(answer(seen.request))].into_iter().chain(forged).collect()
        })
    });
    let clients: Vec<usize> = (0..6).map(|_| world.client()).collect();
    for (at, client) in clients.iter().enumerate() {
        world.post(*client, &format!("aaaa{at:04}"), b"x");
    }
    world.run_for(SECOND);
    for (at, client) in clients.iter().enumerate() {
        let reply = &world.clients[*client].replies[0];
        check_honest(&format!("aaaa{at:04}"), reply).unwrap();
    }
}
