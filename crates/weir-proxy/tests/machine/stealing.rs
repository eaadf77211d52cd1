//! Proves: bytes of a lying server reach only their own client. A request that may bring one
//! response too many is the last of its batch, a connection that ran empty is checked, interim
//! responses reach only their certain client, a reset within a response ends pipelining. How:
//! servers that do one of these things over and over after they have earned trust, with victims
//! beside. docs/connections.md#trust-in-a-server; docs/hostile.md E1, E4, E6, E7, E21.

use weir_check::upstreams::{check_honest, honest_answer};
use weir_proxy::cross::doubt::Doubt;
use weir_proxy::plan::{PipelineMode, Plan, Pool, Share};

use crate::world::{Do, World, answer, honest, plan};

/// How often each is played.
const PLAYS: usize = 200;

/// A whole response for no request.
pub const FORGED: &[u8] =
    b"HTTP/1.1 200 OK\r\nX-Nonce: SURPLUS\r\nContent-Length: 7\r\n\r\nSURPLUS";
const HINTS: &[u8] = b"HTTP/1.1 103 Early Hints\r\nLink: </forged>\r\n\r\n";

fn deep(connections: u32) -> Plan {
    let mut deep = plan(1, connections);
    deep.upstreams[0].pipeline = PipelineMode::Depth(16);
    deep
}

/// All doubts about the server are cleared, and it earns its trust.
pub fn trusted(world: &mut World) {
    world.serve(honest);
    for node in &mut world.nodes {
        node.engine.clear_surplus(0);
    }
    for n in 0..70 {
        let client = world.client();
        world.get(client, &format!("{n:08}"));
        world.get(client, &format!("{n:08}"));
        world.settle();
        world.reset(client);
    }
    world.settle();
}

/// This many victims send requests at once.
pub fn victims(world: &mut World, count: usize) -> Vec<usize> {
    let clients: Vec<usize> = (0..count).map(|_| world.client()).collect();
    clients.iter().enumerate().for_each(|(n, client)| world.get(*client, &format!("v{n:07}")));
    clients
}

/// Each has its own response, and nothing else.
pub fn are_unharmed(world: &mut World, victims: &[usize]) {
    for (n, victim) in victims.iter().enumerate() {
        let client = &world.clients[*victim];
        assert_eq!(client.replies.len(), 1, "victim {n}");
        assert!(client.interim().is_empty() && client.current().is_none(), "victim {n} has more");
        check_honest(&format!("v{n:07}"), &client.replies[0])
            .unwrap_or_else(|fault| panic!("victim {n}: {fault}"));
        world.reset(*victim);
    }
    world.settle();
}

/// Requests that are last: method, target and fields.
const LASTS: [(&str, &str, &str); 6] = [
    ("HEAD", "/t?n=trigger0", ""),
    ("GET", "/t?n=trigger0", "If-None-Match: \"x\"\r\n"),
    ("GET", "/t?n=trigger0", "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n"),
    ("GET", "/t?n=trigger0&to=%0d%0aX:%20y", ""),
    ("GET", "/t?n=trigger0&to=%25250A", ""),
    ("GET", "/t?n=trigger0&to=%e5%98%8a", ""),
];

/// They wait behind others; nothing is behind them until they are answered; and then the next one
/// is sent at once.
#[test]
fn the_last_of_a_batch() {
    for (method, target, fields) in LASTS {
        let mut world = World::started(deep(1), 1, 1);
        trusted(&mut world);
        world.serve(|seen| match seen.request.nonce() {
            "v0000000" => Some(vec![Do::Delay(50_000), Do::Answer(answer(seen.request))]),
            "trigger0" => Some(vec![Do::Delay(20_000), Do::Answer(answer(seen.request))]),
            _ => honest(seen),
        });
        let before = victims(&mut world, 3);
        let asker = world.client();
        world.ask(asker, method, target, fields);
        world.settle();
        let conn = world.open_conns()[0];
        let count = world.conns[conn].requests.len();
        assert_eq!(world.conns[conn].requests[count - 1].nonce(), "trigger0", "it follows others");
        let behind = world.client();
        world.get(behind, "behind00");
        world.run_for(69_000);
        assert_eq!(
            (world.conns[conn].requests.len(), world.clients[asker].replies.len()),
            (count, 0),
            "{target}"
        );
        world.run_for(1_001);
        assert_eq!(world.clients[asker].replies.len(), 1);
        check_honest("behind00", &world.clients[behind].replies[0]).unwrap();
        are_unharmed(&mut world, &before);
        world.finish();
    }
}

/// Two responses in one segment to such a last request: no client gets the second.
#[test]
fn split_answers_reach_nobody() {
    for play in 0..PLAYS / 4 {
        let mut world = World::started(deep(1 + play as u32 % 3), 1, play as u64);
        for (method, target, fields) in LASTS {
            trusted(&mut world);
            world.serve(|seen| match seen.request.nonce() {
                "trigger0" => {
                    Some(vec![Do::Answer([answer(seen.request), FORGED.to_vec()].concat())])
                }
                _ => Some(vec![Do::Delay(100), Do::Answer(answer(seen.request))]),
            });
            let before = victims(&mut world, play % 5);
            let asker = world.client();
            world.ask(asker, method, target, fields);
            let behind = victims(&mut world, 8);
            world.run_for(1_000_000);
            are_unharmed(&mut world, &before);
            are_unharmed(&mut world, &behind);
            check_honest("trigger0", &world.clients[asker].replies[0])
                .map_or_else(|_| assert_eq!(method, "HEAD"), |()| ());
        }
        assert_eq!(world.count(|counters| counters.surplus.get()), LASTS.len() as u64);
        world.finish();
    }
}

/// An interim response behind a response is for no one; one to a request that was alone passes.
#[test]
fn forged_hints_reach_nobody() {
    let mut world = World::started(deep(2), 1, 1);
    for play in 0..PLAYS {
        trusted(&mut world);
        world.serve(|seen| match seen.request.nonce() {
            "trigger0" => Some(vec![Do::Answer([answer(seen.request), HINTS.to_vec()].concat())]),
            _ => Some(vec![Do::Delay(100), Do::Answer(answer(seen.request))]),
        });
        let dropped = world.count(|counters| counters.interim_dropped.get());
        let asker = world.client();
        world.get(asker, "trigger0");
        let behind = victims(&mut world, 1 + play % 5);
        world.settle();
        let client = &world.clients[behind[0]];
        assert!(client.interim().is_empty(), "hints of somebody");
        world.run_for(1_000_000);
        assert!(world.clients[behind[0]].replies[0].interim.is_empty(), "hints of somebody");
        assert_eq!(world.count(|counters| counters.interim_dropped.get()), dropped + 1);
        are_unharmed(&mut world, &behind);
    }
    world.serve(|seen| Some(vec![Do::Bytes(HINTS.to_vec()), Do::Answer(answer(seen.request))]));
    let alone = world.client();
    world.get(alone, "alone000");
    world.settle();
    assert_eq!(world.clients[alone].replies[0].interim, [103]);
    world.finish();
}

/// A late interim response is mistaken for that of the next request, on a connection that was in
/// use a moment ago.
#[test]
fn late_hints_reach_nobody() {
    for (pause_us, passes) in [(0, false), (99_000, false), (100_000, true)] {
        let mut off = plan(1, 1);
        off.upstreams[0].pipeline = PipelineMode::Off;
        let mut world = World::started(off, 1, 1);
        world.serve(|seen| match seen.request.nonce() {
            "behind00" => Some(vec![
                Do::Delay(100),
                Do::Bytes(HINTS.to_vec()),
                Do::Answer(answer(seen.request)),
            ]),
            _ => honest(seen),
        });
        let (first, next) = (world.client(), world.client());
        world.get(first, "first000");
        world.settle();
        world.run_for(pause_us);
        world.get(next, "behind00");
        world.settle();
        world.run_for(1_000);
        check_honest("behind00", &world.clients[next].replies[0]).unwrap();
        assert_eq!(world.clients[next].replies[0].interim.len(), usize::from(passes), "{pause_us}");
        world.finish();
    }
}

/// A client gets hints for requests that it sends one after the other, however fast: earlier bytes
/// were for itself. Among other clients it does not.
#[test]
fn own_hints_pass_at_once() {
    for mode in [PipelineMode::Off, PipelineMode::Depth(16)] {
        let mut plan = plan(1, 1);
        plan.upstreams[0].pipeline = mode;
        let mut world = World::started(plan, 1, 1);
        world.serve(|seen| {
            Some(vec![Do::Delay(100), Do::Bytes(HINTS.to_vec()), Do::Answer(answer(seen.request))])
        });
        let (client, other) = (world.client(), world.client());
        let mut ask = |asker: usize, passes: bool| {
            world.get(asker, "own00000");
            world.run_for(1_000);
            let reply = world.clients[asker].replies.pop().unwrap();
            check_honest("own00000", &reply).unwrap();
            assert_eq!(reply.interim.len(), usize::from(passes), "{mode:?}");
            world.clients[asker].replies.clear();
        };
        (0..3).for_each(|_| ask(client, true));
        // A moment is waited for only if clients are kept apart.
        let kept_apart = mode == PipelineMode::Off;
        ask(other, !kept_apart);
        ask(other, !kept_apart);
        ask(client, !kept_apart);
        world.run_for(100_000);
        let mut ask = |asker: usize| {
            world.get(asker, "own00000");
            world.run_for(1_000);
            world.clients[asker].replies.pop().unwrap().interim.len()
        };
        assert_eq!((ask(client), ask(client)), (1, 1));
        world.finish();
    }
    // One behind the other on a connection.
    let mut world = World::started(deep(1), 1, 1);
    trusted(&mut world);
    world.serve(|seen| {
        Some(vec![Do::Delay(100), Do::Bytes(HINTS.to_vec()), Do::Answer(answer(seen.request))])
    });
    let client = world.client();
    ["own00000", "own00001", "own00002"].iter().for_each(|nonce| world.get(client, nonce));
    world.run_for(10_000);
    assert!(world.clients[client].replies.iter().all(|reply| reply.interim == [103]));
    assert_eq!(world.clients[client].replies.len(), 3);
    world.finish();
}

/// With `echo` even one that was alone needs its identifier.
#[test]
fn with_echo_hints_need_the_identifier() {
    let mut echoing = deep(1);
    echoing.upstreams[0].echo = Some("x-request-id".to_owned());
    let mut world = World::started(echoing, 1, 1);
    for (own, expected) in [(false, vec![]), (true, vec![103])] {
        world.serve(move |seen| {
            let id = seen.request.fields.first("x-request-id").expect("an identifier").to_owned();
            let with_id = |bytes: &[u8]| {
                let text = String::from_utf8(bytes.to_vec()).expect("text");
                text.replacen("\r\n", &format!("\r\nX-Request-Id: {id}\r\n"), 1).into_bytes()
            };
            let hints = if own { with_id(HINTS) } else { HINTS.to_vec() };
            Some(vec![Do::Bytes(hints), Do::Answer(with_id(&answer(seen.request)))])
        });
        let client = world.client();
        world.get(client, "alone000");
        world.settle();
        assert_eq!(world.clients[client].statuses(), [200]);
        assert_eq!(world.clients[client].replies[0].interim, expected);
    }
    world.finish();
}

/// A server that resets within a response while others wait behind it is put to depth 1; one that
/// does so to a single request is not.
#[test]
fn a_reset_within_an_answer_ends_depth() {
    for count in [1, 3] {
        let mut world = World::started(deep(1), 1, 1);
        trusted(&mut world);
        let mut broken = false;
        world.serve(move |seen| {
            if std::mem::replace(&mut broken, true) {
                return honest(seen);
            }
            let part =
                b"HTTP/1.1 200 OK\r\nX-Nonce: v0000000\r\nContent-Length: 15\r\n\r\nansw".to_vec();
            Some(vec![Do::Bytes(part), Do::Delay(1000), Do::Rst])
        });
        let clients = victims(&mut world, count);
        world.run_for(1_000_000);
        let demoted = world.count(|counters| counters.doubts[Doubt::ResetWithin as usize].get());
        assert_eq!(demoted, u64::from(count > 1));
        assert!(world.clients[clients[0]].closed, "an answer that was begun is cut");
        clients[1..].iter().for_each(|client| assert_eq!(world.clients[*client].statuses(), [200]));
        world.measure_depth();
        let clients = victims(&mut world, 6);
        world.settle();
        are_unharmed(&mut world, &clients);
        assert_eq!(world.depth() == 1, count > 1);
        world.finish();
    }
}

/// Returns how many of the responses that this many clients got belonged to others; each client
/// sends again when it is answered. The bytes after the response to each `one_in`th request come
/// `late_us` later.
fn wrong_answers(
    plan: Plan,
    clients: usize,
    post: bool,
    late_us: u64,
    more: &'static [u8],
) -> usize {
    let mut world = World::started(plan, 1, 7);
    world.serve(move |seen| {
        if !seen.complete {
            return None;
        }
        let mut script = vec![Do::Delay(300), Do::Answer(answer(seen.request))];
        if seen.request.nonce().starts_with('t') {
            script.extend(
                [Do::Delay(late_us), Do::Bytes(more.to_vec())]
                    .into_iter()
                    .skip(usize::from(late_us == 0)),
            );
        }
        Some(script)
    });
    let clients: Vec<usize> = (0..clients).map(|_| world.client()).collect();
    let mut asked: Vec<Option<String>> = vec![None; clients.len()];
    let (mut sent, mut wrong) = (0, 0);
    while sent < 4_000 {
        for (at, client) in clients.iter().enumerate() {
            if let Some(nonce) = &asked[at] {
                let Some(reply) = world.clients[*client].replies.first() else { continue };
                wrong += usize::from(reply.status == 200 && check_honest(nonce, reply).is_err());
                world.clients[*client].replies.clear();
            }
            sent += 1;
            // One event while others are in progress.
            let attack = sent == 1_000;
            let nonce = format!("{}{sent:07}", if attack { 't' } else { 'v' });
            match attack && post {
                true => world.post(*client, &nonce, b"GET / HTTP/1.1\r\n\r\n"),
                false => world.get(*client, &nonce),
            }
            asked[at] = Some(nonce);
        }
        world.run_for(50);
    }
    world.run_for(100_000);
    wrong
}

/// If clients are kept apart, one response too many harms hardly any, whenever it comes: a
/// connection that ran empty rests as long as others that have rested are available, and otherwise
/// a sync point is made every 32 requests.
#[test]
fn one_at_a_time_finds_what_is_too_many() {
    let off = |connections: u32| {
        let mut off = plan(1, connections);
        off.upstreams[0].pipeline = PipelineMode::Off;
        off
    };
    let shared = |connections: u32| {
        let mut shared = plan(1, connections);
        shared.upstreams[0].pool = Pool::Shared;
        shared
    };
    let share = |connections: u32| {
        let mut share = deep(connections);
        share.upstreams[0].share = Share::Client;
        share
    };
    let second: &'static [u8] = honest_answer("SURPLUS0").leak();
    for post in [false, true] {
        for (late_us, most) in [(0, 0), (100, 32), (500, 32)] {
            for (name, make) in
                [("off", &off as &dyn Fn(u32) -> Plan), ("shared", &shared), ("share", &share)]
            {
                let spare = wrong_answers(make(8), 3, post, late_us, second);
                assert_eq!(spare, 0, "{name}, post {post}, {late_us} us, connections to spare");
                let mut more = make(32);
                more.upstreams[0].servers[0].connections_min = 1;
                let on_demand = wrong_answers(more, 6, post, late_us, second);
                assert_eq!(
                    on_demand, 0,
                    "{name}, post {post}, {late_us} us, connections on demand"
                );
                let busy = wrong_answers(make(2), 6, post, late_us, second);
                assert!(busy <= most, "{name}, post {post}, {late_us} us, all busy: {busy}");
            }
        }
    }
}
