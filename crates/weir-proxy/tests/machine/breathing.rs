//! Proves: a server gets as many connections as its requests need and no more, a held connection
//! keeps no request from the others, and a connection that its server is about to close carries
//! nothing that cannot be repeated. How: servers of each kind, step by step.

use weir_check::upstreams::check_honest;
use weir_proxy::plan::{PipelineMode, Plan};

use crate::world::{Do, Rng, Seen, World, answer, honest, plan};

pub const SECOND: u64 = 1_000_000;
/// The beginning of a stream of events.
const BEGINNING: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";

/// One server with these numbers of connections.
pub fn breathing(min: u32, connections: u32, max: u32) -> Plan {
    let mut plan = plan(1, connections);
    let server = &mut plan.upstreams[0].servers[0];
    (server.connections_min, server.connections_max) = (min, max);
    plan
}

pub fn open(world: &World) -> usize {
    world.open_conns().len()
}

/// Returns a server that answers each request, `/slow` after this time.
pub fn slow_after(us: u64) -> impl FnMut(&Seen<'_>) -> Option<Vec<Do>> {
    move |seen| {
        let slow = seen.request.target.starts_with("/slow");
        let delay = slow.then_some(Do::Delay(us));
        seen.complete.then(|| delay.into_iter().chain([Do::Answer(answer(seen.request))]).collect())
    }
}

/// Returns the connection that carried the request with this nonce.
pub fn carrier(world: &World, nonce: &str) -> Option<usize> {
    world.conns.iter().position(|conn| conn.requests.iter().any(|request| request.nonce() == nonce))
}

/// The server has earned trust: its responses were clean on two connections.
fn trusted(plan: Plan) -> World {
    let mut world = World::started(plan, 1, 1);
    let clients = [world.client(), world.client()];
    for n in 0..70 {
        clients.iter().for_each(|client| world.get(*client, &format!("{n:08}")));
        world.settle();
    }
    world
}

/// Sends `GET /slow` from a new client; it has no response at once.
pub fn ask_slow(world: &mut World, nonce: &str) -> usize {
    let client = world.client();
    world.ask(client, "GET", &format!("/slow?n={nonce}"), "");
    client
}

#[test]
fn connections_come_with_requests_and_go_with_them() {
    let mut fixed = breathing(1, 4, 8);
    fixed.upstreams[0].pipeline = PipelineMode::Depth(16);
    let mut world = World::started(fixed, 1, 1);
    world.serve(slow_after(SECOND / 10));
    assert_eq!(open(&world), 1, "one is kept");
    let clients: Vec<usize> =
        (0..6).map(|n| ask_slow(&mut world, &format!("aaaa{n:04}"))).collect();
    world.run_for(SECOND / 20);
    assert_eq!(open(&world), 4, "as many as may share, while nothing is held");
    world.run_for(SECOND);
    for (n, client) in clients.iter().enumerate() {
        check_honest(&format!("aaaa{n:04}"), &world.clients[*client].replies[0]).unwrap();
    }
    world.run_for(58 * SECOND);
    assert_eq!(open(&world), 4, "they rest for a minute");
    world.run_for(4 * SECOND);
    assert_eq!(open(&world), 1);
    world.finish();
}

#[test]
fn an_exact_number_is_made_in_advance_and_again() {
    let mut world = World::started(breathing(4, 4, 4), 1, 1);
    assert_eq!(open(&world), 4);
    for conn in world.open_conns() {
        world.cut(conn, Do::Fin);
    }
    world.run_for(SECOND);
    assert_eq!(open(&world), 4);
    world.run_for(120 * SECOND);
    assert_eq!(open(&world), 4);
    world.finish();
}

/// A single-threaded server that ends each connection after its response never waits on an unused
/// one.
#[test]
fn a_server_of_one_answer_a_connection_has_no_idle_one() {
    for workers in [1, 2] {
        let mut world = World::started(breathing(1, 4, 8), workers, 1);
        world.serve(|seen| {
            let whole = String::from_utf8(answer(seen.request)).expect("text");
            let ends = whole.replacen("X-Nonce", "Connection: close\r\nX-Nonce", 1);
            seen.complete.then(|| vec![Do::Answer(ends.into_bytes()), Do::Fin])
        });
        let clients: Vec<usize> =
            (0..4).map(|n| world.client_of(n % usize::from(workers))).collect();
        for round in 0..20 {
            for (n, client) in clients.iter().enumerate() {
                world.get(*client, &format!("{round:04}{n:04}"));
            }
            world.run_for(SECOND / 10);
            assert_eq!(open(&world), 0, "after round {round}");
        }
        assert!(clients.iter().all(|client| world.clients[*client].replies.len() == 20));
        assert!(world.conns.iter().all(|conn| conn.requests.len() <= 1));
        world.finish();
    }
}

/// Long polls have all connections that may be shared, each of which ends with its response: no
/// connection is made that nothing can use.
#[test]
fn connections_that_can_not_be_used_are_not_made() {
    let mut world = World::started(breathing(1, 2, 64), 1, 1);
    let mut slow = slow_after(10 * SECOND);
    world.serve(move |seen| {
        let mut script = slow(seen)?;
        if let Some(Do::Answer(whole)) = script.pop() {
            let ends = String::from_utf8(whole).expect("text").replacen(
                "X-Nonce",
                "Connection: close\r\nX-Nonce",
                1,
            );
            script.extend([Do::Answer(ends.into_bytes()), Do::Fin]);
        }
        Some(script)
    });
    let client = world.client();
    for n in 0..20 {
        world.get(client, &format!("{n:08}"));
        world.run_for(1_000);
    }
    let before = world.conns.len();
    let polls: Vec<usize> = (0..6).map(|n| ask_slow(&mut world, &format!("aaaa{n:04}"))).collect();
    world.run_for(9 * SECOND);
    assert!(world.conns.len() - before < 20, "{} connections made", world.conns.len() - before);
    world.get(client, "00000020");
    world.run_for(SECOND / 5);
    check_honest("00000020", world.clients[client].replies.last().unwrap()).unwrap();
    world.run_for(20 * SECOND);
    assert!(polls.iter().all(|client| world.clients[*client].replies.len() == 1));
    world.finish();
}

/// POSTs that take long hold connections; requests that share always have some.
#[test]
fn what_goes_alone_holds_only_what_is_beyond_the_shared() {
    let mut world = World::started(breathing(1, 4, 8), 1, 1);
    world.serve(
        |seen| if seen.request.method == "POST" { Some(vec![Do::Silence]) } else { honest(seen) },
    );
    for n in 0..10 {
        let poster = world.client();
        world.post(poster, &format!("bbbb{n:04}"), b"x");
    }
    world.run_for(SECOND);
    let posts = world.requests().filter(|request| request.method == "POST").count();
    assert_eq!(posts, 4, "8 in all, 4 of them for others");
    for n in 0..8 {
        let client = world.client();
        world.get(client, &format!("cccc{n:04}"));
        world.settle();
        check_honest(&format!("cccc{n:04}"), &world.clients[client].replies[0]).unwrap();
    }
    assert!(
        world.conns.iter().all(|conn| conn
            .requests
            .iter()
            .skip(1)
            .all(|request| request.method != "POST"))
    );
}

/// Those beyond the shared ones are many or few: a higher number never leaves less room for
/// requests that go alone than a smaller one.
#[test]
fn one_connection_more_is_room_for_one_more() {
    for (max, alone) in [(4, 4), (5, 4), (6, 4), (8, 4), (9, 5)] {
        let mut world = World::started(breathing(1, 4, max), 1, 1);
        world.serve(|seen| {
            if seen.request.method == "POST" { Some(vec![Do::Silence]) } else { honest(seen) }
        });
        for n in 0..10 {
            let poster = world.client();
            world.post(poster, &format!("bbbb{n:04}"), b"x");
        }
        world.run_for(SECOND);
        assert_eq!(world.requests().count(), alone, "{max}");
    }
}

/// One worker of several has the only shared connection, and all of those that may be held.
#[test]
fn all_that_may_be_made_can_be_made() {
    let mut world = World::started(breathing(1, 1, 8), 4, 1);
    world.serve(
        |seen| if seen.request.method == "POST" { Some(vec![Do::Silence]) } else { honest(seen) },
    );
    for n in 0..12 {
        let poster = world.client_of(n % 4);
        world.post(poster, &format!("bbbb{n:04}"), b"x");
    }
    world.run_for(SECOND);
    assert_eq!(world.requests().count(), 7);
    let client = world.client_of(3);
    world.get(client, "cccc0000");
    world.run_for(1_000);
    check_honest("cccc0000", &world.clients[client].replies[0]).unwrap();
}

/// Held connections take no room from others, even if each connection may have only one request.
#[test]
fn what_is_held_does_not_fill_a_server() {
    let mut narrow = breathing(1, 4, 64);
    narrow.upstreams[0].queue_size = 1;
    let mut world = World::started(narrow, 1, 1);
    world.serve(
        |seen| if seen.request.method == "POST" { Some(vec![Do::Silence]) } else { honest(seen) },
    );
    for n in 0..20 {
        let poster = world.client();
        world.post(poster, &format!("bbbb{n:04}"), b"x");
    }
    world.run_for(SECOND);
    assert_eq!(world.requests().count(), 20);
    for n in 0..8 {
        let client = world.client();
        world.get(client, &format!("cccc{n:04}"));
        world.settle();
        check_honest(&format!("cccc{n:04}"), &world.clients[client].replies[0]).unwrap();
    }
}

/// Event streams opened together: each begins, and requests beside them are answered at once.
#[test]
fn endless_answers_are_set_apart() {
    let mut deep = breathing(1, 4, 64);
    deep.upstreams[0].pipeline = PipelineMode::Depth(16);
    let mut world = trusted(deep);
    world.serve(|seen| match seen.request.target.starts_with("/events") {
        true => Some(vec![Do::Bytes(BEGINNING.to_vec()), Do::Silence]),
        false => honest(seen),
    });
    let streams: Vec<usize> = (0..16)
        .map(|n| {
            let client = world.client();
            world.ask(client, "GET", &format!("/events?n=eeee{n:04}"), "");
            client
        })
        .collect();
    world.run_for(SECOND);
    let begun = streams.iter().filter(|client| world.clients[**client].current().is_some()).count();
    assert_eq!(begun, 16);
    for n in 0..20 {
        let client = world.client();
        world.get(client, &format!("dddd{n:04}"));
        world.run_for(1_000);
        check_honest(&format!("dddd{n:04}"), &world.clients[client].replies[0]).unwrap();
    }
}

/// A request is put behind one that was never seen before, but nothing is sent behind a long poll
/// that has been waiting.
#[test]
fn nothing_is_put_behind_what_is_late_already() {
    let mut deep = breathing(1, 2, 64);
    deep.upstreams[0].pipeline = PipelineMode::Depth(16);
    let mut world = trusted(deep);
    for n in 0..300 {
        let client = world.client();
        world.get(client, &format!("ffff{n:04}"));
        world.settle();
        world.reset(client);
    }
    world.serve(slow_after(30 * SECOND));
    let polls: Vec<usize> = (0..8).map(|n| ask_slow(&mut world, &format!("aaaa{n:04}"))).collect();
    world.run_for(SECOND);
    for n in 0..20 {
        let client = world.client();
        world.get(client, &format!("dddd{n:04}"));
        world.run_for(1_000);
        check_honest(&format!("dddd{n:04}"), &world.clients[client].replies[0]).unwrap();
    }
    world.run_for(60 * SECOND);
    assert!(polls.iter().all(|client| world.clients[*client].replies.len() == 1));
    world.finish();
}

/// Even if long polls are many of the responses, they are no reason to wait: neither behind one,
/// nor in the line.
#[test]
fn polls_that_are_usual_are_late_as_well() {
    for (mode, polls) in [(PipelineMode::Depth(16), 8), (PipelineMode::Off, 20)] {
        let mut deep = breathing(1, 4, 64);
        deep.upstreams[0].pipeline = mode;
        let mut world = trusted(deep);
        world.serve(slow_after(30 * SECOND));
        let client = world.client();
        for round in 0..40 {
            let poll = ask_slow(&mut world, &format!("cccc{round:04}"));
            world.run_for(31 * SECOND);
            world.reset(poll);
            for n in 0..5 {
                world.get(client, &format!("{round:04}{n:04}"));
                world.settle();
            }
        }
        let polls: Vec<usize> =
            (0..polls).map(|n| ask_slow(&mut world, &format!("aaaa{n:04}"))).collect();
        let waiting = world.client();
        world.get(waiting, "eeee0000");
        world.run_for(8 * SECOND);
        assert_eq!(world.clients[waiting].replies.len(), 1, "{mode:?}: waits for polls");
        for n in 0..20 {
            let client = world.client();
            world.get(client, &format!("dddd{n:04}"));
            world.run_for(1_000);
            assert_eq!(world.clients[client].replies.len(), 1, "{mode:?}: {n} is behind a poll");
            check_honest(&format!("dddd{n:04}"), &world.clients[client].replies[0]).unwrap();
        }
        world.run_for(60 * SECOND);
        assert!(polls.iter().all(|client| world.clients[*client].replies.len() == 1), "{mode:?}");
        world.finish();
    }
}

/// Three times the server closes a connection that was idle for two seconds.
fn end_after_rests(world: &mut World, client: usize) {
    for n in 0..3 {
        world.get(client, &format!("{n:08}"));
        world.run_for(2 * SECOND);
        let conn = *world.open_conns().last().expect("it is kept");
        world.cut(conn, Do::Fin);
        world.run_for(1_000);
    }
}

/// Three times the server closes after two seconds: from then on weir closes first, and requests
/// that cannot be repeated get a connection that was not idle for long.
#[test]
fn idle_limits_are_learned() {
    let mut world = World::started(breathing(1, 1, 1), 1, 1);
    let client = world.client();
    end_after_rests(&mut world, client);
    world.get(client, "00000009");
    world.settle();
    let conn = *world.open_conns().last().expect("it is kept");
    world.run_for(17 * SECOND / 10);
    assert!(world.conns[conn].is_open());
    world.run_for(SECOND / 5);
    assert!(world.conns[conn].closed, "weir is the first");
    world.finish();
}

/// A connection that weir closes before its server does, unused, is also not made again before a
/// request needs it, except with an exact number.
#[test]
fn idle_connections_are_not_made_for_ever() {
    for connections in [1, 4] {
        let mut world = World::started(breathing(1, connections, 8), 1, 1);
        let client = world.client();
        end_after_rests(&mut world, client);
        world.get(client, "00000009");
        world.run_for(5 * SECOND);
        let before = world.conns.len();
        world.run_for(60 * SECOND);
        assert_eq!(world.conns.len() > before, connections == 1);
        assert_eq!(open(&world), usize::from(connections == 1));
        world.get(client, "00000010");
        world.run_for(1_000);
        check_honest("00000010", &world.clients[client].replies[4]).unwrap();
        world.finish();
    }
}

#[test]
fn a_post_gets_no_connection_that_has_rested() {
    for (rest_us, same) in [(SECOND / 2, true), (3 * SECOND, false)] {
        let mut world = World::started(breathing(1, 1, 1), 1, 1);
        let client = world.client();
        // It is known to last for more than one response.
        for nonce in ["00000000", "00000001"] {
            world.get(client, nonce);
            world.settle();
        }
        world.run_for(rest_us);
        world.post(client, "00000002", b"x");
        world.run_for(SECOND / 10);
        check_honest("00000002", &world.clients[client].replies[2]).unwrap();
        assert_eq!(
            carrier(&world, "00000001") == carrier(&world, "00000002"),
            same,
            "after {rest_us} us"
        );
        world.run_for(rest_us);
        world.get(client, "00000003");
        world.settle();
        let (get, post) = (carrier(&world, "00000003"), carrier(&world, "00000002"));
        assert_eq!(get, post, "what can be repeated goes where there is room");
        world.finish();
    }
}

/// A server that ends each connection behind its response and does not announce it: no POST meets
/// the end.
#[test]
fn a_post_does_not_meet_an_end_without_a_word() {
    for (after, delay_us) in [(1, 0), (1, 200), (3, 0), (3, 200)] {
        let mut world = World::started(breathing(1, 4, 8), 1, 1);
        let mut served = std::collections::BTreeMap::new();
        world.serve(move |seen| {
            let count = served.entry(seen.conn).or_insert(0);
            *count += u32::from(seen.complete);
            let end = (*count == after).then_some([Do::Delay(delay_us), Do::Fin]);
            seen.complete.then(|| {
                [Do::Answer(answer(seen.request))]
                    .into_iter()
                    .chain(end.into_iter().flatten())
                    .collect()
            })
        });
        let clients: Vec<usize> = (0..4).map(|_| world.client()).collect();
        for n in 0..100 {
            for (at, client) in clients.iter().enumerate() {
                match (n + at) % 2 {
                    0 => world.post(*client, &format!("{at:04}{n:04}"), b"x"),
                    _ => world.get(*client, &format!("{at:04}{n:04}")),
                }
            }
            world.run_for(300);
        }
        world.run_for(SECOND);
        let statuses: Vec<u16> =
            clients.iter().flat_map(|client| world.clients[*client].statuses()).collect();
        let lost = statuses.iter().filter(|status| **status != 200).count();
        assert_eq!((statuses.len(), lost), (400, 0), "{after} {delay_us}: answered, lost");
        world.finish();
    }
}

/// A connection that its server ends unused is not made again before a request needs it.
#[test]
fn unused_connections_are_not_made_for_ever() {
    let mut world = World::started(breathing(1, 4, 8), 1, 1);
    world.run_for(30 * SECOND);
    let conn = world.open_conns()[0];
    world.cut(conn, Do::Fin);
    world.run_for(60 * SECOND);
    assert_eq!((open(&world), world.conns.len()), (0, 1));
    let client = world.client();
    world.get(client, "00000001");
    world.run_for(1_000);
    check_honest("00000001", &world.clients[client].replies[0]).unwrap();
    world.finish();
}

/// A worker without connections asks another worker, and has its own connections the next time.
#[test]
fn each_worker_has_its_own_soon() {
    let mut world = World::started(breathing(1, 4, 8), 2, 1);
    assert_eq!(open(&world), 1);
    let away = usize::from(world.conns[0].node == 0);
    let client = world.client_of(away);
    for n in 0..4 {
        world.get(client, &format!("{n:08}"));
        world.run_for(1_000);
    }
    assert_eq!(world.clients[client].replies.len(), 4);
    let own = world.open_conns().into_iter().filter(|conn| world.conns[*conn].node == away).count();
    assert_eq!((open(&world), own), (2, 1));
    world.finish();
}

/// A body that trickles is judged over each ten seconds, from the first on: also one that began
/// fast.
#[test]
fn a_body_that_dribbles_is_found_in_time() {
    // Bytes a second, bytes at first, and the time by which it must have been found.
    for (rate, first, by_us) in
        [(5, 0, Some(11)), (150, 0, None), (5, 5_000, Some(21)), (5, 100_000, Some(21))]
    {
        let mut world = World::started(breathing(1, 4, 8), 1, 1);
        world.serve(honest);
        let client = world.client();
        world.expect(client, "POST", false, false);
        world.send(
            client,
            b"POST /p?n=00000001 HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n",
        );
        world.send(client, &vec![b'x'; first]);
        for second in 0..40 {
            if !world.clients[client].replies.is_empty() {
                break;
            }
            assert!(by_us.is_none_or(|by_us| second <= by_us), "{rate} {first}: {second} s");
            world.send(client, &vec![b'x'; rate]);
            world.run_for(SECOND);
        }
        let found = world.clients[client].statuses();
        assert_eq!(found, if by_us.is_some() { vec![408] } else { vec![] }, "{rate} {first}");
    }
}

/// The way in which a server ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// It announces it with the last response.
    Announced,
    /// As HTTP/1.0, and without any other announcement.
    Old,
    /// Without an announcement, this many microseconds behind the last response.
    Fin(u64),
    /// Likewise with a reset.
    Rst(u64),
    /// As soon as further requests are behind the last one: they are not read.
    Unread,
}

/// Sends POSTs of clients without pause, with GETs of others beside them, to a server that ends
/// each connection in this way after about `answers` responses. Returns how many of `posts` got
/// none, and how many were executed twice.
fn posts_beside_gets(way: Way, answers: u64, spread: u64, posts: usize) -> (usize, usize) {
    let mut world = World::started(breathing(1, 8, 16), 1, 1);
    let mut rng = Rng(answers + spread);
    let mut left = std::collections::BTreeMap::new();
    world.serve(move |seen| {
        if !seen.complete {
            return None;
        }
        let left = left.entry(seen.conn).or_insert_with(|| answers + rng.below(spread + 1));
        *left = left.saturating_sub(1);
        let answer = answer(seen.request);
        if *left > 0 {
            return Some(vec![Do::Answer(answer)]);
        }
        let text = || String::from_utf8(answer.clone()).unwrap();
        let close = || text().replacen("\r\n", "\r\nConnection: close\r\n", 1).into_bytes();
        Some(match way {
            Way::Announced => vec![Do::Answer(close()), Do::Fin],
            Way::Old => {
                vec![Do::Answer(text().replacen("HTTP/1.1", "HTTP/1.0", 1).into_bytes()), Do::Fin]
            }
            Way::Fin(late_us) => vec![Do::Answer(answer), Do::Delay(late_us), Do::Fin],
            Way::Rst(late_us) => vec![Do::Answer(answer), Do::Delay(late_us), Do::Rst],
            Way::Unread => vec![Do::Answer(answer), Do::Rst],
        })
    });
    let clients: Vec<usize> = (0..8).map(|_| world.client()).collect();
    let mut asked: Vec<Option<(String, bool)>> = vec![None; clients.len()];
    let (mut sent, mut lost) = (0, 0);
    let mut count = 0;
    while sent < posts {
        for (at, client) in clients.iter().enumerate() {
            if let Some((nonce, post)) = &asked[at] {
                let Some(reply) = world.clients[*client].replies.pop() else { continue };
                assert!(
                    *post || check_honest(nonce, &reply).is_ok(),
                    "{way:?} {answers}: a GET got {}",
                    reply.status
                );
                lost += usize::from(*post && check_honest(nonce, &reply).is_err());
            }
            count += 1;
            let (nonce, post) = (format!("{count:08}"), at % 2 == 0);
            match post {
                true => world.post(*client, &nonce, b"x"),
                false => world.get(*client, &nonce),
            }
            sent += usize::from(post);
            asked[at] = Some((nonce, post));
        }
        world.run_for(100);
    }
    world.run_for(SECOND);
    let requests = world
        .conns
        .iter()
        .flat_map(|conn| &conn.requests)
        .filter(|request| request.method == "POST");
    let mut nonces: Vec<&str> = requests.map(|request| request.nonce()).collect();
    nonces.sort_unstable();
    let twice = nonces.windows(2).filter(|pair| pair[0] == pair[1]).count();
    (lost, twice)
}

/// 10,000 POSTs to servers that end connections in each way: none is executed twice, and none is
/// lost, except those of the four clients that are in flight when a server first ends a connection
/// without announcement and by chance.
#[test]
fn ten_thousand_posts_beside_gets() {
    let said = [Way::Announced, Way::Old];
    let unsaid =
        [Way::Fin(0), Way::Fin(200), Way::Fin(20_000), Way::Rst(0), Way::Rst(200), Way::Unread];
    for way in said.into_iter().chain(unsaid) {
        for (answers, spread) in [(1, 0), (2, 0), (3, 0), (7, 0), (50, 0), (1, 6), (20, 60)] {
            let (lost, twice) = posts_beside_gets(way, answers, spread, 180);
            let chance = spread > 0 && unsaid.contains(&way);
            assert!(
                lost <= if chance { 4 } else { 0 } && twice == 0,
                "{way:?} {answers} {spread}: lost {lost}, twice {twice}"
            );
        }
    }
}
