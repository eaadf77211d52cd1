//! Proves: a server that ends connections as soon as they are pipelined, whatever the way, is used at depth 1 and tried again
//! later, with no request lost; one with a keep-alive limit is not taken for it. docs/semantics.md §3a, docs/hostile.md E18, E28.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use weir_check::upstreams::check_honest;
use weir_proxy::plan::PipelineMode;
use weir_proxy::upstream::trust::Doubt;

use crate::world::{Do, World, answer, plan};

/// How a server ends a connection on which requests wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Fin,
    Rst,
    UntilClose,
}

/// The end of an answer that says nothing of its length.
fn unframed(bytes: Vec<u8>) -> Vec<u8> {
    let text = String::from_utf8(bytes).unwrap();
    let lines: Vec<&str> =
        text.split("\r\n").filter(|line| !line.to_ascii_lowercase().starts_with("content-length")).collect();
    lines.join("\r\n").into_bytes()
}

/// 16 clients ask for so long; all are answered. The server ends each connection after `answers` with more than one request.
fn load(world: &mut World, us: u64, end: End, answers: usize) {
    let mut seen = std::collections::BTreeMap::new();
    world.serve(move |request| {
        let given: &mut usize = seen.entry(request.conn).or_default();
        *given += 1;
        let bytes = answer(request.request);
        let script = match given.is_multiple_of(answers) {
            false => vec![Do::Delay(200), Do::Answer(bytes)],
            // Long enough after the answer that the next requests are here.
            true if end == End::UntilClose => {
                vec![Do::Delay(200), Do::Answer(unframed(bytes)), Do::Delay(200), Do::Fin]
            }
            true => {
                vec![Do::Delay(200), Do::Answer(bytes), Do::Delay(200), if end == End::Rst { Do::Rst } else { Do::Fin }]
            }
        };
        Some(script)
    });
    let clients: Vec<usize> = (0..16).map(|_| world.client()).collect();
    let end_us = world.now_us + us;
    let (mut serial, mut asked) = (0, vec![String::new(); 16]);
    while world.now_us < end_us {
        for (client, asked) in clients.iter().zip(&mut asked) {
            if let Some(reply) = world.clients[*client].replies.pop() {
                check_honest(asked, &reply).unwrap_or_else(|fault| panic!("{end:?}: {fault}"));
                asked.clear();
            }
            if asked.is_empty() {
                serial += 1;
                *asked = format!("{serial:08}");
                world.get(*client, asked);
            }
        }
        world.run_for(500);
    }
    world.run_for(1_000_000);
}

fn world() -> World {
    world_of(2)
}

/// With so many connections.
fn world_of(connections: u32) -> World {
    let mut deep = plan(1, connections);
    deep.upstreams[0].pipeline = PipelineMode::Depth(16);
    World::started(deep, 1, 1)
}

/// Found within seconds, for a minute, then for two.
#[test]
fn e18_and_e28_a_server_that_cuts_pipelines_short_is_not_pipelined() {
    for end in [End::Fin, End::Rst, End::UntilClose] {
        let mut world = world();
        load(&mut world, 2_000_000, end, 5);
        assert_eq!(world.count(|counters| counters.demotions.get()), 1, "{end:?}");
        let report = world.nodes[0].engine.report();
        assert_eq!(report.servers[0].penalty_for, Some(Doubt::CutsShort));
        world.measure_depth();
        let open = world.open_conns();
        let since = world.conns.len();
        load(&mut world, 500_000, end, 5);
        // What was unanswered on connections that had ended before is not meant.
        let depth = open.into_iter().chain(since..world.conns.len()).map(|conn| world.conns[conn].depth).max();
        assert_eq!(depth, Some(1), "{end:?}");
        world.run_for(60_000_000);
        load(&mut world, 2_000_000, end, 5);
        assert_eq!(world.count(|counters| counters.demotions.get()), 2, "{end:?}: it was tried again");
        assert!(world.nodes[0].engine.report().servers[0].penalty_us > 100_000_000, "{end:?}");
        world.finish();
    }
}

/// Every client asks once a round, and is answered `within_us`.
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

/// A world with clients whose requests are pipelined.
fn pipelined() -> (World, Vec<usize>) {
    let mut world = world_of(8);
    let clients: Vec<usize> = (0..8).map(|_| world.client()).collect();
    all_ask(&mut world, &clients, 20, "aaaa", 1_000_000);
    assert!(world.depth() > 1);
    (world, clients)
}

/// gunicorn with threads reads requests that came together and answers the first; it closes the connection for idle later. Once is
/// enough, and nobody waits for that.
#[test]
fn a_server_that_overlooks_requests_is_not_pipelined() {
    let (mut world, clients) = pipelined();
    // What is there when the first is answered is overlooked, on the connections that there are now.
    let (mut busy, now) = (BTreeSet::new(), world.conns.len());
    world.serve(move |seen| match busy.insert(seen.conn) {
        _ if seen.conn >= now => Some(vec![Do::Delay(200), Do::Answer(answer(seen.request))]),
        true => Some(vec![Do::Delay(200), Do::Answer(answer(seen.request)), Do::Delay(2_000_000), Do::Fin]),
        false => Some(vec![Do::Silence]),
    });
    all_ask(&mut world, &clients, 1, "bbbb", 500_000);
    assert_eq!(world.count(|counters| counters.demotions.get()), 1);
    assert_eq!(world.nodes[0].engine.report().servers[0].penalty_for, Some(Doubt::CutsShort));
    world.measure_depth();
    all_ask(&mut world, &clients, 5, "cccc", 1_000_000);
    assert_eq!(world.depth(), 1);
    world.finish();
}

/// What is answered late behind another answer is asked twice only until the server has shown that it is slow and overlooks nothing.
#[test]
fn a_server_that_is_slow_behind_an_answer_is_asked_twice_a_few_times() {
    let (mut world, clients) = pipelined();
    let asked = Rc::new(RefCell::new(BTreeMap::new()));
    let counted = asked.clone();
    world.serve(move |seen| {
        // One of the last client's in three.
        let nonce = seen.request.nonce();
        let slow = nonce.ends_with("7") && nonce.as_bytes()[7].is_multiple_of(3);
        *counted.borrow_mut().entry(nonce.to_owned()).or_insert(0) += u32::from(slow);
        Some(vec![Do::Delay(if slow { 400_000 } else { 200 }), Do::Answer(answer(seen.request))])
    });
    all_ask(&mut world, &clients, 30, "bbbb", 1_000_000);
    let twice = asked.borrow().values().filter(|times| **times > 1).count();
    assert_eq!(twice, 3);
    assert_eq!(world.count(|counters| counters.demotions.get()), 0);
    world.finish();
}

/// nginx ends connections after 1,000 requests, Apache after 100, some without a word.
#[test]
fn e27_a_keep_alive_limit_does_not_demote() {
    for end in [End::Fin, End::Rst] {
        let mut world = world();
        load(&mut world, 3_000_000, end, 100);
        assert_eq!(world.count(|counters| counters.demotions.get()), 0, "{end:?}");
        assert!(world.depth() > 1);
        world.finish();
    }
}
