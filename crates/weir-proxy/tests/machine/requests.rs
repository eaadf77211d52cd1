//! Rows A, B, C and K5 of docs/hostile.md: each alone, behind good requests and with victims on
//! other connections, whole and in pieces. Rows that need a sequence of events in time are separate
//! tests.

use weir_check::requests::{Expect, HostileRequest, Observed, SMUGGLED, catalogue};
use weir_check::upstreams::check_honest;

use weir_proxy::request::rules::buffering::Buffering;

use crate::uploads::buffered;
use crate::world::{Cut, Do, Rng, Seen, World, answer, plan};

/// Answers everything with 200 and the nonce, after a pause when the nonce begins with 5.
fn server(seen: &Seen<'_>) -> Option<Vec<Do>> {
    if !seen.complete {
        return None;
    }
    let reply = Do::Answer(answer(seen.request));
    Some(if seen.request.nonce().starts_with('5') {
        vec![Do::Delay(20_000), reply]
    } else {
        vec![reply]
    })
}

/// Plays a row: `good` requests before it on the same connection, victims on others.
fn play(row: &HostileRequest, good: usize, cut: Cut, seed: u64) {
    let mut world = World::started(plan(1, 1), 1, seed);
    world.serve(server);
    let mut rng = Rng(seed);
    let victims: Vec<usize> = (0..3).map(|_| world.client()).collect();
    let client = world.client();
    let mut asked = Vec::new();
    let mut victims_ask = |world: &mut World, count: u64| {
        for _ in 0..count {
            let victim = victims[rng.below(3) as usize];
            let nonce =
                format!("{:08}", if rng.one_in(2) { 50_000_000 } else { 10_000_000 } + asked.len());
            world.get(victim, &nonce);
            asked.push((victim, nonce));
        }
    };
    victims_ask(&mut world, 3);
    let mut bytes = Vec::new();
    for n in 0..good {
        world.expect(client, "GET", false, false);
        bytes.extend(format!("GET /v?n=59{n:06} HTTP/1.1\r\nHost: a\r\n\r\n").bytes());
    }
    for (method, old) in &row.asks {
        world.expect(client, method, *old, false);
    }
    bytes.extend_from_slice(&row.bytes);
    world.send_cut(client, &bytes, cut);
    victims_ask(&mut world, 3);
    world.run_for(100_000);
    victims_ask(&mut world, 3);
    world.run_for(3_000_000);
    for (n, reply) in world.clients[client].replies.iter().take(good).enumerate() {
        check_honest(&format!("59{n:06}"), reply)
            .unwrap_or_else(|fault| panic!("{}: {fault}", row.id));
    }
    let left: Vec<_> =
        world.requests().filter(|request| request.nonce().is_empty()).cloned().collect();
    let closed = world.clients[client].end.is_some();
    let replies = world.clients[client].replies.get(good..).unwrap_or_default();
    let seen = Observed { left: &left, replies, closed };
    row.expect
        .check(seen)
        .unwrap_or_else(|fault| panic!("{} behind {good}, seed {seed}, {cut:?}: {fault}", row.id));
    for (victim, nonce) in &asked {
        let own = world.clients[*victim]
            .replies
            .iter()
            .find(|reply| reply.fields.first("x-nonce") == Some(nonce));
        check_honest(
            nonce,
            own.unwrap_or_else(|| panic!("{}: victim {nonce} got nothing", row.id)),
        )
        .unwrap();
        assert_eq!(world.times_served(nonce), 1, "{}: {nonce}", row.id);
    }
    let answers: usize = victims.iter().map(|victim| world.clients[*victim].replies.len()).sum();
    assert_eq!(answers, asked.len(), "{}", row.id);
    // A client that is not told to close may send again.
    if !row.expect.closes() && world.clients[client].end.is_none() {
        let before = world.clients[client].replies.len();
        world.get(client, "99999999");
        world.run_for(1_000);
        let last = &world.clients[client].replies[before];
        check_honest("99999999", last).unwrap_or_else(|fault| panic!("{}: {fault}", row.id));
    }
    world.finish();
}

fn play_all(letter: char) {
    let rows: Vec<_> =
        catalogue().into_iter().filter(|row| row.letter.starts_with(letter)).collect();
    assert!(!rows.is_empty());
    for (number, row) in rows.iter().enumerate() {
        let seed = number as u64;
        play(row, 0, Cut::Whole, seed);
        play(row, 2, Cut::Whole, seed + 1);
        play(row, 1, Cut::Random, seed + 2);
        if row.bytes.len() < 2000 {
            play(row, 1, Cut::Each(1), seed + 3);
        }
    }
}

#[test]
fn a_rows_of_request_framing() {
    play_all('A');
}

#[test]
fn b_rows_of_lines_and_fields() {
    play_all('B');
}

#[test]
fn c_rows_of_targets_and_routing() {
    play_all('C');
}

#[test]
fn k_rows_of_integers() {
    play_all('K');
}

/// Every two-way split of short rows gives the same as the whole.
#[test]
fn every_split_of_short_rows() {
    let short =
        |row: &HostileRequest| row.bytes.len() < 160 && matches!(row.expect, Expect::Refused(_));
    for row in catalogue().into_iter().filter(short).step_by(7) {
        for at in 1..row.bytes.len() {
            let mut world = World::simple(1);
            let client = world.client();
            for (method, old) in &row.asks {
                world.expect(client, method, *old, false);
            }
            world.send(client, &row.bytes[..at]);
            world.settle();
            world.send(client, &row.bytes[at..]);
            world.run_for(3_000_000);
            let left: Vec<_> = world.requests().cloned().collect();
            let client = &world.clients[client];
            let seen =
                Observed { left: &left, replies: &client.replies, closed: client.end.is_some() };
            row.expect
                .check(seen)
                .unwrap_or_else(|fault| panic!("{} split at {at}: {fault}", row.id));
        }
    }
}

/// A13, A14: a body that never arrives is never completed, and costs no upstream connection while
/// it is gathered.
#[test]
fn a14_truncated_body() {
    let all = [(10, true), (10, false), (100_000, true), (100_000, false)];
    for (buffering, (body, leave)) in
        [Buffering::Auto, Buffering::On].into_iter().flat_map(|one| all.map(|it| (one, it)))
    {
        let mut world = World::started(buffered(buffering), 1, 1);
        let (client, victim) = (world.client(), world.client());
        world.expect(client, "POST", false, false);
        world.send(client, b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n");
        (0..body / 10).for_each(|_| world.send(client, &[b'x'; 10]));
        if leave {
            world.half_close(client);
        }
        world.run_for(45_000_000);
        world.get(victim, "00000001");
        world.run_for(1_000_000);
        assert_eq!(
            world.clients[client].statuses(),
            [if leave { 400 } else { 408 }],
            "{body} {leave}"
        );
        assert!(world.clients[client].end.is_some());
        check_honest("00000001", &world.clients[victim].replies[0]).unwrap();
        assert!(
            world.requests().all(|request| request.method == "GET"),
            "an incomplete body became complete"
        );
        let begun = world.conns.iter().position(|conn| conn.judge.current().is_some());
        // A client that leaves at once has not waited for long enough.
        assert_eq!(begun.is_some(), body > 65_536 || buffering == Buffering::Auto && !leave);
        assert!(
            begun.is_none_or(|conn| world.conns[conn].closed),
            "a connection with half a request was kept"
        );
        world.finish();
    }
}

/// A15, A4: a response that comes before the body ends the upstream connection, and the rest of the
/// body is no request.
#[test]
fn a15_body_behind_an_early_answer() {
    let mut world = World::simple(1);
    world.serve(|seen| Some(vec![Do::Answer(answer(seen.request))]));
    let (client, victim) = (world.client(), world.client());
    world.expect(client, "POST", false, false);
    world.send(client, b"POST /p?n=00000001 HTTP/1.1\r\nHost: a\r\nContent-Length: 100034\r\n\r\n");
    world.send(client, &[b'x'; 100_000]);
    world.run_for(1_000);
    world.send(client, SMUGGLED.as_bytes());
    world.get(victim, "00000002");
    world.run_for(5_000_000);
    check_honest("00000001", &world.clients[client].replies[0]).unwrap();
    assert_eq!(world.clients[client].replies.len(), 1);
    assert!(world.clients[client].replies[0].closes && world.clients[client].closed);
    check_honest("00000002", &world.clients[victim].replies[0]).unwrap();
    assert!(world.conns[0].closed);
    assert!(world.requests().all(|request| request.target != "/smuggled"));
    world.finish();
}

/// A16: an invited body, a client that does not wait, and a request that is refused instead of
/// invited.
#[test]
fn a16_expect() {
    let mut world = World::started(buffered(Buffering::On), 1, 1);
    let client = world.client();
    for n in 1..=2 {
        world.expect(client, "POST", false, false);
        let head = format!(
            "POST /p?n=0000000{n} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\
                Expect: 100-continue\r\n\r\n"
        );
        match n {
            1 => {
                world.send(client, head.as_bytes());
                world.settle();
                assert_eq!(world.clients[client].interim(), [100]);
                world.send(client, b"hello");
            }
            _ => world.send(client, &[head.as_bytes(), b"hello"].concat()),
        }
        world.settle();
        let reply = &world.clients[client].replies[n - 1];
        check_honest(&format!("0000000{n}"), reply).unwrap();
        assert_eq!(reply.interim.len(), 2 - n);
    }
    assert!(
        world
            .requests()
            .all(|request| !request.fields.has("expect") && request.body.text() == "hello")
    );
    let refused = world.client();
    world.expect(refused, "POST", false, false);
    let text = "POST /%00 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    world.send(refused, text.as_bytes());
    world.send(refused, SMUGGLED.as_bytes());
    world.run_for(3_000_000);
    assert_eq!(world.clients[refused].statuses(), [400]);
    assert!(world.clients[refused].replies[0].interim.is_empty() && world.clients[refused].closed);
    assert_eq!(world.requests().count(), 2);
    world.finish();
}

/// A17 behind an unanswered request: the body of a request with weir's own response is never parsed
/// as requests.
#[test]
fn a17_local_answer_behind_a_slow_one() {
    let mut world = World::simple(1);
    world.serve(server);
    let client = world.client();
    world.get(client, "50000001");
    world.expect(client, "POST", false, false);
    let head =
        format!("POST /%00 HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", SMUGGLED.len());
    world.send(client, &[head.as_bytes(), SMUGGLED.as_bytes()].concat());
    world.run_for(5_000_000);
    assert_eq!(world.clients[client].statuses(), [200, 400]);
    assert!(world.clients[client].closed);
    assert_eq!(world.requests().count(), 1);
    world.finish();
}

/// A18: 1000 requests in one segment, and byte by byte; a bad one at the end leaves the good ones
/// answered.
#[test]
fn a18_pipelined_client() {
    for cut in [Cut::Whole, Cut::Each(1), Cut::Random] {
        let mut world = World::simple(4);
        let client = world.client();
        let mut bytes = Vec::new();
        let count = if cut == Cut::Each(1) { 100 } else { 1000 };
        for n in 0..count {
            world.expect(client, "GET", false, false);
            bytes.extend(format!("GET /v?n={n:08} HTTP/1.1\r\nHost: a\r\n\r\n").bytes());
        }
        world.expect(client, "GET", false, false);
        bytes.extend_from_slice(b"GET / HTTP/1.1\r\nHost : a\r\n\r\n");
        world.send_cut(client, &bytes, cut);
        world.run_for(3_000_000);
        let replies = &world.clients[client].replies;
        assert_eq!(replies.len(), count + 1);
        for (n, reply) in replies[..count].iter().enumerate() {
            check_honest(&format!("{n:08}"), reply).unwrap();
        }
        assert_eq!(replies[count].status, 400);
        assert!(world.clients[client].closed);
        world.finish();
    }
}

/// C5: each request of a connection is routed separately.
#[test]
fn c5_routes_are_not_inherited() {
    use weir_proxy::request::route::{HostMatch, Route, RouteTable, Target};
    let mut both = plan(1, 1);
    let mut other = plan(2, 1).upstreams.remove(0);
    other.servers.remove(0);
    both.upstreams.push(other);
    let route = |host: &str, target| Route {
        host: HostMatch::Exact(host.to_owned()),
        target: Target::Upstream(target),
        ..Route::default()
    };
    both.routes = RouteTable::new(vec![route("a", 0), route("b", 1)]);
    let mut world = World::started(both, 1, 1);
    let client = world.client();
    for (n, host) in ["a", "b", "c", "b", "a"].into_iter().enumerate() {
        world.expect(client, "GET", false, false);
        world.send(client, format!("GET /v?n={n:08} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
    }
    world.settle();
    assert_eq!(world.clients[client].statuses(), [200, 200, 404, 200, 200]);
    let hosts = |server: usize| {
        let conns = world.conns.iter().filter(move |conn| conn.server == server);
        conns
            .flat_map(|conn| &conn.requests)
            .map(|request| request.fields.first("host").unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!((hosts(0), hosts(1)), (vec!["a".to_owned(); 2], vec!["b".to_owned(); 2]));
    world.finish();
}
