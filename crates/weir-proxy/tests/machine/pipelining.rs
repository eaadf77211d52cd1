//! Proves: which requests may follow which on an upstream connection. Fill first, the hold behind a
//! request that must not be repeated, sync points, `share="client"`, `echo`, `nonidempotent`,
//! `pipeline off`, large responses. docs/connections.md, docs/connections.md#trust-in-a-server.

use weir_check::upstreams::check_honest;
use weir_proxy::cross::doubt::Doubt;
use weir_proxy::plan::{PipelineMode, Plan, Share};
use weir_proxy::request::nonidempotent::{Rule, Rules, TargetMatch};

use crate::tunnels::SWITCH;
use crate::world::{Do, Seen, World, answer, honest, plan};

fn deep(connections: u32) -> Plan {
    let mut deep = plan(1, connections);
    deep.upstreams[0].pipeline = PipelineMode::Depth(16);
    deep
}

/// Makes a server trusted, also behind HEAD and conditional requests.
fn earn(world: &mut World) {
    let clients: Vec<usize> = (0..4).map(|_| world.client()).collect();
    for n in 0..70 {
        for client in &clients {
            world.ask(*client, "HEAD", &format!("/v?n={n:08}"), "");
            world.get(*client, &format!("{n:08}"));
        }
        world.settle();
    }
    world.measure_depth();
}

/// Sends requests of this many clients in one turn.
fn burst(world: &mut World, method: &str, count: usize) -> Vec<usize> {
    let clients: Vec<usize> = (0..count).map(|_| world.client()).collect();
    for (n, client) in clients.iter().enumerate() {
        world.ask(*client, method, &format!("/v?n=b{n:07}"), "");
    }
    clients
}

fn check_burst(world: &World, clients: &[usize]) {
    for (n, client) in clients.iter().enumerate() {
        assert_eq!(world.clients[*client].replies.len(), 1, "client {n}");
        check_honest(&format!("b{n:07}"), &world.clients[*client].replies[0]).unwrap();
    }
}

/// The deepest connection takes the requests of one turn, up to its depth, before the next is used.
#[test]
fn connections_are_filled_in_order() {
    let mut world = World::started(deep(4), 1, 1);
    earn(&mut world);
    let before: Vec<usize> = world.conns.iter().map(|conn| conn.requests.len()).collect();
    let clients = burst(&mut world, "GET", 20);
    world.settle();
    check_burst(&world, &clients);
    let mut got: Vec<usize> =
        world.conns.iter().zip(before).map(|(conn, before)| conn.requests.len() - before).collect();
    got.sort_unstable();
    assert_eq!(got, [0, 0, 4, 16]);
    assert_eq!(world.depth(), 16);
    world.finish();
}

/// A full connection takes requests again once a quarter of them is answered, so that the waiting
/// ones are in one send.
#[test]
fn a_full_connection_is_refilled_in_batches() {
    let mut world = World::started(deep(1), 1, 1);
    earn(&mut world);
    let conn = world.open_conns()[0];
    let before = world.conns[conn].requests.len();
    let got = move |world: &World| world.conns[conn].requests.len() - before;
    let mut held = 0;
    world.serve(move |seen| {
        held += 1;
        // Four responses, one in a turn.
        Some(if held <= 4 {
            vec![Do::Delay(1000), Do::Answer(answer(seen.request))]
        } else {
            vec![Do::Silence]
        })
    });
    let clients = burst(&mut world, "GET", 24);
    world.settle_once();
    for (ms, requests) in [(1, 16), (2, 16), (3, 16), (4, 20)] {
        world.run_for(1001);
        assert_eq!(got(&world), requests, "after {ms} ms");
    }
    assert_eq!(
        clients.iter().filter(|client| !world.clients[**client].replies.is_empty()).count(),
        4
    );
}

/// The knowledge about a connection moves with it into its tunnel: its successor's packets may
/// arrive anywhere.
#[test]
fn the_successor_of_a_near_tunnel_is_not_near() {
    let mut world = World::new(deep(2), 1, 1);
    world.near = Some(|conn| conn < 2);
    world.run_for(100_000);
    earn(&mut world);
    let clients = burst(&mut world, "GET", 32);
    world.settle();
    check_burst(&world, &clients);
    let upgrading = world.client();
    world.expect(upgrading, "GET", false, true);
    world.serve(|seen| match seen.request.fields.has("upgrade") {
        true => Some(vec![Do::Switch(SWITCH.to_vec())]),
        false => honest(seen),
    });
    world.send(
        upgrading,
        b"GET /t?n=00000009 HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\n\
            Upgrade: websocket\r\n\r\n",
    );
    world.run_for(100_000);
    assert_eq!(world.clients[upgrading].statuses(), [101]);
    let [_, near, successor] = world.open_conns()[..] else {
        panic!("a tunnel and two connections")
    };
    let before = world.conns[near].requests.len();
    let clients = burst(&mut world, "GET", 3);
    world.settle();
    check_burst(&world, &clients);
    assert_eq!(
        (world.conns[near].requests.len() - before, world.conns[successor].requests.len()),
        (3, 0)
    );
    world.finish();
}

/// A busy worker whose connections are all far replaces one at a sync point, a few times, until one
/// is near.
#[test]
fn a_far_connection_is_made_anew_until_one_is_near() {
    for (near, connections) in
        [((|_| true) as fn(usize) -> bool, 1), (|conn| conn == 1, 2), (|_| false, 5)]
    {
        let mut world = World::new(deep(1), 1, 1);
        world.near = Some(near);
        world.run_for(100_000);
        earn(&mut world);
        world.serve(|seen| Some(vec![Do::Delay(20), Do::Answer(answer(seen.request))]));
        let clients: Vec<usize> = (0..8).map(|_| world.client()).collect();
        let sent = keep_busy(&mut world, &clients, 70_000);
        world.run_for(100_000);
        assert_eq!(world.conns.len(), connections);
        assert_eq!(world.open_conns().len(), 1);
        assert_eq!(world.requests().count(), 70 * 8 + sent, "nothing was sent twice");
        world.finish();
    }
}

/// A server that ends each connection after 100 requests: returns how many connections are used,
/// and the share of the requests over near ones, after the limit was learned.
fn short_lived(near: Option<fn(usize) -> bool>) -> (usize, usize) {
    let mut world = World::new(deep(4), 1, 1);
    world.near = near;
    world.run_for(100_000);
    let mut given = std::collections::BTreeMap::new();
    world.serve(move |seen| {
        let count: &mut usize = given.entry(seen.conn).or_default();
        *count += 1;
        let end = *count == 100;
        let field = if end { "Connection: close\r\n" } else { "" };
        let bytes = answer(seen.request);
        let at = bytes.windows(2).position(|pair| pair == b"\r\n").unwrap() + 2;
        let bytes = [&bytes[..at], field.as_bytes(), &bytes[at..]].concat();
        let mut script = vec![Do::Delay(20), Do::Answer(bytes)];
        script.extend(end.then_some(Do::Fin));
        Some(script)
    });
    let clients: Vec<usize> = (0..8).map(|_| world.client()).collect();
    keep_busy(&mut world, &clients, 2_000);
    let first = world.conns.len();
    keep_busy(&mut world, &clients, 20_000);
    world.run_for(1_000_000);
    let later = &world.conns[first..];
    let is_near = |conn: usize| near.is_some_and(|near| near(conn));
    let over_near: usize = later
        .iter()
        .enumerate()
        .filter(|(at, _)| is_near(first + at))
        .map(|(_, conn)| conn.requests.len())
        .sum();
    let all: usize = later.iter().map(|conn| conn.requests.len()).sum();
    assert!(all > 19_000, "{all}");
    assert!(
        later.iter().all(|conn| conn.requests.len() <= 100),
        "nothing is sent behind the last answer"
    );
    let connects = later.len();
    world.finish();
    (connects, over_near * 100 / all)
}

/// If connections are short-lived anyway, a far one is replaced after its first response, as long
/// as enough are near.
#[test]
fn short_lived_connections_are_scouted() {
    let (plain, _) = short_lived(None);
    assert!((190..=215).contains(&plain), "{plain}");
    let (connects, near) = short_lived(Some(|conn| conn % 2 == 0));
    assert!(
        near >= 90 && connects <= 2 * plain + 20,
        "{near} % of the requests over near ones, {connects} connects"
    );
    let (connects, near) = short_lived(Some(|conn| conn % 4 == 0));
    assert!(
        near >= 80 && connects <= 4 * plain + 20,
        "{near} % of the requests over near ones, {connects} connects"
    );
    let (connects, _) = short_lived(Some(|conn| conn % 40 == 0));
    assert!(connects <= plain + plain / 8, "hardly any is near: {connects} connects");
    let (connects, _) = short_lived(Some(|_| false));
    assert!(connects <= plain + 10, "none is near: {connects} connects");
}

/// Lets each client send again as soon as it is answered, this many times in all.
fn keep_busy(world: &mut World, clients: &[usize], requests: usize) -> usize {
    let mut sent = 0;
    while sent < requests {
        for client in clients {
            if sent < clients.len() || !world.clients[*client].replies.is_empty() {
                world.clients[*client].replies.clear();
                world.get(*client, &format!("{sent:08}"));
                sent += 1;
            }
        }
        world.run_for(100);
    }
    sent
}

/// A server that takes 40 ms between the responses of a pipeline may wait for an acknowledgement:
/// from then on it gets one at once, unless something is sent anyway, and only while responses are
/// outstanding.
#[test]
fn answers_that_are_held_back_are_acknowledged_at_once() {
    for delay_us in [25_000, 40_000] {
        let mut world = World::started(deep(1), 1, 1);
        earn(&mut world);
        let conn = world.open_conns()[0];
        world.serve(move |seen| {
            seen.complete.then(|| vec![Do::Delay(delay_us), Do::Answer(answer(seen.request))])
        });
        let clients = burst(&mut world, "GET", 3);
        world.run_for(4 * delay_us);
        check_burst(&world, &clients);
        // After the first and the second of three.
        assert_eq!(
            world.conns[conn].acknowledged,
            if delay_us >= 40_000 { 2 } else { 0 },
            "{delay_us}"
        );
        world.serve(honest);
        let clients = burst(&mut world, "GET", 1);
        world.settle();
        check_burst(&world, &clients);
        assert_eq!(
            world.conns[conn].acknowledged,
            if delay_us >= 40_000 { 2 } else { 0 },
            "nothing is outstanding"
        );
        world.finish();
    }
}

/// A quiet second is not a second without a sync point.
#[test]
fn a_burst_after_silence_is_pipelined() {
    let mut world = World::started(deep(1), 1, 1);
    earn(&mut world);
    world.run_for(3_000_000);
    world.measure_depth();
    let clients = burst(&mut world, "GET", 16);
    world.settle();
    check_burst(&world, &clients);
    assert_eq!(world.depth(), 16);
    world.finish();
}

/// Connections whose packets the worker's own core receives are filled first, those of other cores
/// last; a new connection is between them until its first response.
#[test]
fn near_connections_are_filled_first() {
    let mut world = World::new(deep(4), 1, 1);
    world.near = Some(|conn| conn == 2 || conn == 3);
    world.run_for(100_000);
    earn(&mut world);
    let got =
        |world: &World| world.conns.iter().map(|conn| conn.requests.len()).collect::<Vec<_>>();
    let gained = |world: &mut World, count: usize| {
        let before = got(world);
        let clients = burst(world, "GET", count);
        world.settle();
        check_burst(world, &clients);
        got(world)
            .iter()
            .zip(before.iter().chain(&[0; 9]))
            .map(|(now, before)| now - before)
            .collect::<Vec<_>>()
    };
    // All four are used once, so that each has its place.
    let _ = gained(&mut world, 64);
    assert_eq!(gained(&mut world, 40), [8, 0, 16, 16]);
    let [_, _, near, _] = world.open_conns()[..] else { panic!("four connections") };
    world.say(near, Do::Fin);
    world.run_for(1_000_000);
    assert_eq!(
        gained(&mut world, 17),
        [0, 0, 0, 16, 1],
        "what is not known yet goes before what is far"
    );
    assert_eq!(gained(&mut world, 17), [1, 0, 0, 16, 0], "now it is");
    world.finish();
}

#[test]
fn pipeline_off_and_queue_size_1_mean_one_at_a_time() {
    for (mode, queue_size) in [(PipelineMode::Off, 1000), (PipelineMode::Depth(16), 1)] {
        let mut limited = deep(2);
        limited.upstreams[0].pipeline = mode;
        limited.upstreams[0].queue_size = queue_size;
        let mut world = World::started(limited, 1, 1);
        for _ in 0..20 {
            let clients = burst(&mut world, "GET", 2);
            world.settle();
            check_burst(&world, &clients);
        }
        let clients = burst(&mut world, "GET", 2 * queue_size.min(8) as usize);
        world.settle();
        check_burst(&world, &clients);
        assert_eq!(world.depth(), 1);
        world.finish();
    }
}

/// Nothing follows a request that must not be repeated until it is answered; it uses an empty
/// connection if one exists; and `nonidempotent` makes a GET such a request.
#[test]
fn nothing_follows_what_must_not_be_repeated() {
    for (method, target) in [
        ("POST", "/v?n=p0000001"),
        ("PUT", "/v?n=p0000001"),
        ("DELETE", "/v?n=p0000001"),
        ("GET", "/pay?n=p0000001"),
    ] {
        for connections in [1, 2] {
            let mut limited = deep(connections);
            let rule =
                Rule { method: "GET".to_owned(), target: TargetMatch::Prefix("/pay".to_owned()) };
            limited.upstreams[0].nonidempotent = Rules::new(vec![rule]);
            let mut world = World::started(limited, 1, 1);
            earn(&mut world);
            world.serve(|seen| {
                let script = honest(seen)?;
                let slow = seen.request.nonce().starts_with('p');
                Some(if slow { [vec![Do::Delay(10_000)], script].concat() } else { script })
            });
            // The judge of the bytes objects to anything behind a POST; a GET by rule is checked
            // here.
            let first = world.client();
            world.ask(first, method, target, "");
            world.settle();
            let clients = burst(&mut world, "GET", 8);
            world.run_for(5_000);
            let conn = world
                .conns
                .iter()
                .find(|conn| conn.requests.iter().any(|it| it.nonce() == "p0000001"))
                .unwrap();
            assert_eq!(conn.requests.last().unwrap().nonce(), "p0000001", "{method} {target}");
            let answered =
                clients.iter().filter(|client| !world.clients[**client].replies.is_empty()).count();
            assert_eq!(answered, if connections == 2 { 8 } else { 0 });
            world.run_for(50_000);
            check_burst(&world, &clients);
            assert_eq!(world.times_served("p0000001"), 1);
            world.finish();
        }
    }
}

/// docs/hostile-requests.md A6: servers that overlook the body of a GET would take it for the next
/// request, so nothing is sent behind it.
#[test]
fn a6_nothing_follows_a_body_whatever_the_method() {
    let mut world = World::started(deep(1), 1, 1);
    earn(&mut world);
    for (n, framing) in [
        "Content-Length: 4\r\n\r\nbody",
        "Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
    ]
    .iter()
    .enumerate()
    {
        let client = world.client();
        world.expect(client, "GET", false, false);
        world.send(
            client,
            format!("GET /v?n=g000000{n} HTTP/1.1\r\nHost: a\r\n{framing}").as_bytes(),
        );
        let clients = burst(&mut world, "GET", 8);
        world.settle();
        check_honest(&format!("g000000{n}"), &world.clients[client].replies[0]).unwrap();
        check_burst(&world, &clients);
    }
    world.finish();
}

/// Nothing follows a request for another protocol: behind its 101 everything would belong to the
/// tunnel.
#[test]
fn nothing_follows_an_upgrade() {
    let mut world = World::started(deep(1), 1, 1);
    earn(&mut world);
    let client = world.client();
    world.ask(client, "GET", "/v?n=u0000001", "Connection: upgrade\r\nUpgrade: websocket\r\n");
    let clients = burst(&mut world, "GET", 8);
    world.settle();
    check_honest("u0000001", &world.clients[client].replies[0]).unwrap();
    check_burst(&world, &clients);
    world.finish();
}

/// A client's own order is kept whatever is held or fast.
#[test]
fn a_client_behind_its_own_post_is_answered_in_order() {
    let mut world = World::started(deep(4), 1, 1);
    earn(&mut world);
    world.serve(|seen| {
        let script = honest(seen)?;
        Some(if seen.request.method == "POST" {
            [vec![Do::Delay(10_000)], script].concat()
        } else {
            script
        })
    });
    let client = world.client();
    world.get(client, "00000001");
    world.post(client, "00000002", b"x");
    world.get(client, "00000003");
    world.post(client, "00000004", b"x");
    world.get(client, "00000005");
    world.run_for(5_000);
    assert_eq!(world.clients[client].replies.len(), 1);
    world.run_for(50_000);
    for n in 1..=5 {
        check_honest(&format!("0000000{n}"), &world.clients[client].replies[n - 1]).unwrap();
    }
    world.finish();
}

/// A pipelined connection runs empty at least every 1,000 requests and every second.
#[test]
fn sync_points() {
    let mut world = World::started(deep(1), 1, 1);
    earn(&mut world);
    world.serve(|seen| Some(vec![Do::Delay(100), Do::Answer(answer(seen.request))]));
    let clients: Vec<usize> = (0..8).map(|_| world.client()).collect();
    let before = world.count(|counters| counters.sync_points.get());
    let sent = keep_busy(&mut world, &clients, 4000);
    let by_count = world.count(|counters| counters.sync_points.get()) - before;
    assert!(
        sent > 3000 && by_count >= sent as u64 / 1100 && by_count <= 10,
        "{sent} requests, {by_count} sync points"
    );
    world.finish();

    // Slow requests: by time.
    let mut world = World::started(deep(1), 1, 1);
    earn(&mut world);
    world.serve(|seen| Some(vec![Do::Delay(50_000), Do::Answer(answer(seen.request))]));
    let clients = burst(&mut world, "GET", 60);
    let before = world.count(|counters| counters.sync_points.get());
    world.run_for(4_000_000);
    check_burst(&world, &clients);
    let points = world.count(|counters| counters.sync_points.get()) - before;
    assert!((1..=4).contains(&points), "{points} sync points in 3 s");
    world.finish();
}

/// One response too many within a pipeline looks like the next one's; it is found at the sync point
/// at the latest.
#[test]
fn a_surplus_in_a_pipeline_is_found_at_the_sync_point() {
    let mut world = World::started(deep(1), 1, 1);
    earn(&mut world);
    let mut twice = true;
    world.serve(move |seen| {
        let mut script = vec![Do::Delay(50_000), Do::Answer(answer(seen.request))];
        if seen.request.nonce() == "b0000003" && std::mem::take(&mut twice) {
            script.push(Do::Bytes(answer(seen.request)));
        }
        Some(script)
    });
    burst(&mut world, "GET", 60);
    world.run_for(2_500_000);
    assert_eq!(world.count(|counters| counters.surplus.get()), 1);
    assert!(world.conns[0].closed);
    world.measure_depth();
    world.serve(honest);
    world.run_for(7_200_000_000);
    for _ in 0..50 {
        let clients = burst(&mut world, "GET", 4);
        world.settle();
        check_burst(&world, &clients);
    }
    assert_eq!(world.depth(), 1, "pipelined again although an answer too many was found");
    world.finish();
}

/// `share="client"`: only requests of one client connection follow each other.
#[test]
fn share_client() {
    for workers in [1, 2] {
        let mut limited = deep(2);
        limited.upstreams[0].share = Share::Client;
        let mut world = World::started(limited, workers, 1);
        for node in 0..usize::from(workers) {
            let clients: Vec<usize> = (0..2).map(|_| world.client_of(node)).collect();
            for n in 0..80 {
                clients.iter().for_each(|client| world.get(*client, &format!("{n:08}")));
                world.settle();
            }
        }
        world.measure_depth();
        world.serve(|seen| Some(vec![Do::Delay(1000), Do::Answer(answer(seen.request))]));
        let clients: Vec<usize> =
            (0..3).map(|n| world.client_of(n % usize::from(workers))).collect();
        for (who, client) in clients.iter().enumerate() {
            let mut all = Vec::new();
            for n in 0..5 {
                all.extend(
                    format!("GET /v?n={who}000000{n} HTTP/1.1\r\nHost: a\r\nX-Who: {who}\r\n\r\n")
                        .bytes(),
                );
                world.expect(*client, "GET", false, false);
            }
            world.send(*client, &all);
        }
        for _ in 0..200 {
            world.run_for(200);
            for conn in &world.conns {
                let unanswered = conn.judge.unanswered();
                let last =
                    &conn.requests[conn.requests.len() - unanswered.min(conn.requests.len())..];
                let mut who: Vec<_> =
                    last.iter().filter_map(|request| request.fields.first("x-who")).collect();
                who.dedup();
                assert!(
                    who.len() <= 1,
                    "{workers}: requests of {who:?} follow each other: {last:?} {unanswered}"
                );
            }
        }
        assert!(world.depth() > 1, "one client's own requests follow each other");
        for (who, client) in clients.iter().enumerate() {
            for n in 0..5 {
                check_honest(&format!("{who}000000{n}"), &world.clients[*client].replies[n])
                    .unwrap();
            }
        }
        world.finish();
    }
}

/// `echo`: responses in the wrong order reach no client; their requests get 502 or are sent again.
#[test]
fn echo_finds_exchanged_answers() {
    for workers in [1, 2] {
        let mut limited = deep(1);
        limited.upstreams[0].echo = Some("x-request-id".to_owned());
        let mut world = World::started(limited, workers, 1);
        let echoing = |seen: &Seen<'_>| {
            let id = seen.request.fields.first("x-request-id").expect("an identifier").to_owned();
            let text = String::from_utf8(answer(seen.request)).unwrap();
            text.replacen("X-Nonce", &format!("X-Request-Id: {id}\r\nX-Nonce"), 1).into_bytes()
        };
        world.serve(move |seen| Some(vec![Do::Answer(echoing(seen))]));
        let node = usize::from(workers) - 1;
        let clients: Vec<usize> = (0..6).map(|_| world.client_of(node)).collect();
        for n in 0..80 {
            clients.iter().for_each(|client| world.get(*client, &format!("{n:08}")));
            world.settle();
        }
        assert!(world.depth() > 1);
        // Keeps one response back and gives it in place of the next.
        let mut kept: Option<Vec<u8>> = None;
        world.serve(move |seen| {
            let own = echoing(seen);
            Some(match (seen.request.nonce(), kept.take()) {
                ("e0000002", _) => {
                    kept = Some(own);
                    Vec::new()
                }
                ("e0000003", Some(other)) => vec![Do::Answer(own), Do::Answer(other)],
                _ => vec![Do::Answer(own)],
            })
        });
        // The client cannot choose its identifier.
        for (n, client) in clients.iter().enumerate() {
            world.ask(*client, "GET", &format!("/v?n=e000000{n}"), "X-Request-Id: mine\r\n");
        }
        world.run_for(1_000_000);
        for (n, client) in clients.iter().enumerate() {
            let reply = world.clients[*client].replies.last().unwrap();
            let own = check_honest(&format!("e000000{n}"), reply).is_ok();
            assert!(own || n == 2 && reply.status == 502, "client {n} got {reply:?}");
        }
        assert_eq!(world.count(|counters| counters.doubts[Doubt::EchoMismatch as usize].get()), 1);
        world.finish();
    }
}

/// A large response keeps its connection to itself, whether its length is declared or not; others
/// move elsewhere.
#[test]
fn large_answers_are_exclusive() {
    for framing in ["Content-Length: 2000000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n"] {
        let mut world = World::started(deep(2), 1, 1);
        earn(&mut world);
        world.serve(move |seen| {
            if seen.request.nonce() != "l0000001" {
                return honest(seen);
            }
            let mut script = vec![Do::Answer(format!("HTTP/1.1 200 OK\r\n{framing}").into_bytes())];
            let chunked = framing.starts_with('T');
            for _ in 0..100 {
                let data = vec![b'l'; 20_000];
                let piece = if chunked { [b"4e20\r\n", &data[..], b"\r\n"].concat() } else { data };
                script.extend([Do::Delay(1000), Do::Bytes(piece)]);
            }
            script.extend(chunked.then(|| Do::Bytes(b"0\r\n\r\n".to_vec())));
            Some(script)
        });
        let client = world.client();
        world.get(client, "l0000001");
        world.run_for(50_000);
        let conn = world
            .conns
            .iter()
            .position(|conn| conn.requests.last().is_some_and(|it| it.nonce() == "l0000001"));
        for _ in 0..10 {
            let clients = burst(&mut world, "GET", 8);
            world.run_for(1001);
            check_burst(&world, &clients);
        }
        assert!(world.clients[client].replies.is_empty());
        assert_eq!(world.conns[conn.unwrap()].requests.last().unwrap().nonce(), "l0000001");
        assert_eq!(world.count(|counters| counters.exclusive.get()), 1);
        world.run_for(1_000_000);
        assert_eq!(world.clients[client].replies[0].body.length, 2_000_000);
        world.finish();
    }
}

/// A large response that never progresses; all other requests are answered after a while.
fn hangs_for(nonce: &'static str, delay_us: u64) -> impl FnMut(&Seen<'_>) -> Option<Vec<Do>> {
    move |seen| match seen.request.nonce() == nonce {
        true => Some(vec![
            Do::Answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n".to_vec()),
            Do::Bytes(vec![b'l'; 20_000]),
            Do::Silence,
        ]),
        false => Some(vec![Do::Delay(delay_us), Do::Answer(answer(seen.request))]),
    }
}

/// All connections of a server are busy with large responses: a new request uses another server,
/// and does not wait for their end.
#[test]
fn large_answers_keep_nobody_from_other_servers() {
    let mut world = World::started(plan(2, 1), 1, 1);
    world
        .servers
        .iter_mut()
        .for_each(|server| server.serve = Box::new(hangs_for("l0000001", 1_000)));
    let client = world.client();
    world.get(client, "l0000001");
    world.run_for(10_000);
    for _ in 0..10 {
        let clients = burst(&mut world, "GET", 2);
        world.run_for(10_000);
        check_burst(&world, &clients);
    }
    assert!(world.clients[client].replies.is_empty());
    world.reset(client);
    world.run_for(1_000_000);
    world.finish();
}

/// A request that waited for that server already does not wait either, as soon as another has room.
#[test]
fn who_waits_behind_large_answers_goes_where_there_is_room() {
    let mut world = World::started(plan(2, 1), 1, 1);
    world
        .servers
        .iter_mut()
        .for_each(|server| server.serve = Box::new(hangs_for("l0000001", 50_000)));
    let (first, large) = (world.client(), world.client());
    world.get(first, "00000001");
    world.get(large, "l0000001");
    let clients = burst(&mut world, "GET", 8);
    world.run_for(1_000_000);
    check_burst(&world, &clients);
    assert!(world.clients[large].replies.is_empty());
    world.reset(large);
    world.run_for(1_000_000);
    world.finish();
}

/// But a server that is only busy is no reason for a backup.
#[test]
fn large_answers_are_no_reason_for_a_backup() {
    let mut plan = plan(2, 1);
    plan.upstreams[0].servers[1].backup = true;
    let mut world = World::started(plan, 1, 1);
    world.servers[0].serve = Box::new(hangs_for("l0000001", 1_000));
    let large = world.client();
    world.get(large, "l0000001");
    let clients = burst(&mut world, "GET", 8);
    world.run_for(1_000_000);
    assert!(
        world.conns.iter().filter(|conn| conn.server == 1).all(|conn| conn.requests.is_empty())
    );
    let conn = world.conns.iter().position(|conn| !conn.requests.is_empty()).unwrap();
    world.cut(conn, Do::Rst);
    world.run_for(1_000_000);
    check_burst(&world, &clients);
    world.finish();
}

/// Connection-bound authentication makes a connection private.
#[test]
fn e26_connection_bound_authentication() {
    let mut world = World::simple(1);
    world.serve(|seen| {
        let text = String::from_utf8(answer(seen.request)).unwrap();
        Some(vec![Do::Answer(
            text.replacen("X-Nonce", "WWW-Authenticate: NTLM\r\nX-Nonce", 1).into_bytes(),
        )])
    });
    let client = world.client();
    world.get(client, "00000001");
    world.settle();
    assert_eq!(world.clients[client].replies.len(), 1);
    assert!(world.conns[0].closed);
    world.finish();
}

/// After a loss the oldest request is first and alone, even if the connection ended in order.
#[test]
fn after_a_loss_nothing_is_pipelined_at_first() {
    for end in [Do::Rst, Do::Fin] {
        let mut world = World::started(deep(1), 1, 1);
        earn(&mut world);
        let (mut first, ending) = (true, end.clone());
        world.serve(move |seen| {
            if std::mem::take(&mut first) {
                return Some(vec![Do::Delay(1000), ending.clone(), Do::Silence]);
            }
            seen.complete.then(|| vec![Do::Delay(1000), Do::Answer(answer(seen.request))])
        });
        let clients = burst(&mut world, "GET", 8);
        world.run_for(500);
        let fresh = world.conns.len();
        world.run_for(1_000);
        assert_eq!(world.conns[fresh].requests[0].nonce(), "b0000000");
        assert_eq!(
            world.conns[fresh].depth, 1,
            "{end:?}: re-sent requests follow each other at once"
        );
        world.run_for(1_000_000);
        check_burst(&world, &clients);
        assert!(
            end == Do::Fin || world.conns[fresh].depth == 1,
            "what may have caused the loss goes alone"
        );
        world.finish();
    }
}

/// Retries are bounded, and the request that kills connections is the one that ends with 502.
#[test]
fn a_request_that_kills_is_given_up() {
    for (connections, retries) in [(1, 5), (3, 5), (1, 0)] {
        let mut limited = deep(connections);
        limited.upstreams[0].retry.per_request_max = retries;
        let mut world = World::started(limited, 1, 1);
        earn(&mut world);
        world.serve(|seen| {
            let killer = seen.request.nonce() == "k0000000";
            if killer { Some(vec![Do::Rst]) } else { honest(seen) }
        });
        let killer = world.client();
        world.get(killer, "k0000000");
        let clients = burst(&mut world, "GET", 8);
        world.run_for(30_000_000);
        assert_eq!(world.clients[killer].statuses(), [502]);
        assert_eq!(world.times_served("k0000000"), 1 + retries as usize);
        if retries > 0 {
            check_burst(&world, &clients);
        }
        world.finish();
    }
}

/// A server that ends connections in order whenever it gets one certain request: that request is
/// not carried from connection to connection for ever.
#[test]
fn a_request_that_makes_a_server_close_is_given_up() {
    let mut world = World::started(deep(8), 1, 1);
    earn(&mut world);
    for _ in 0..20 {
        let clients = burst(&mut world, "GET", 120);
        world.settle();
        check_burst(&world, &clients);
    }
    world.serve(|seen| {
        let killer = seen.request.nonce() == "k0000000";
        if killer { Some(vec![Do::Fin, Do::Silence]) } else { honest(seen) }
    });
    let killer = world.client();
    world.get(killer, "k0000000");
    for _ in 0..50 {
        let clients = burst(&mut world, "GET", 20);
        world.run_for(10_000);
        check_burst(&world, &clients);
    }
    assert_eq!(world.clients[killer].statuses(), [502]);
    let times = world.times_served("k0000000");
    assert!(times <= 10, "sent {times} times");
    world.finish();
}

/// A response that ends while the last part of its request's body is still here: the next request
/// must not overtake that.
#[test]
fn a_body_that_is_not_sent_is_not_overtaken() {
    let mut world = World::simple(1);
    world.serve(|seen| if seen.request.method == "GET" { honest(seen) } else { None });
    let (poster, reader) = (world.client(), world.client());
    world.servers[0].deaf = true;
    world.expect(poster, "POST", false, false);
    world.send(poster, b"POST /p?n=00000001 HTTP/1.1\r\nHost: a\r\nContent-Length: 120000\r\n\r\n");
    (0..12).for_each(|_| world.send(poster, &[b'x'; 10_000]));
    world.settle();
    // The first part is sent, the last still here; the server responds without having read it.
    world.say(0, Do::Bytes(weir_check::upstreams::honest_answer("00000001")));
    world.settle();
    world.get(reader, "00000002");
    world.servers[0].deaf = false;
    world.settle();
    world.swallow(0);
    world.run_for(100_000);
    check_honest("00000001", &world.clients[poster].replies[0]).unwrap();
    check_honest("00000002", &world.clients[reader].replies[0]).unwrap();
    assert!(
        world.conns[0].closed,
        "an answer that ends before the body was sent ends the connection"
    );
    world.finish();
}

/// A server that hangs on a request whose client has left: the next request on that connection is
/// not left waiting.
#[test]
fn a_connection_that_hangs_on_a_request_of_nobody_ends() {
    for workers in [1, 2] {
        let mut world = World::started(deep(1), workers, 1);
        for node in 0..usize::from(workers) {
            let client = world.client_of(node);
            for n in 0..80 {
                world.get(client, &format!("{n:08}"));
                world.settle();
            }
        }
        world.serve(|seen| {
            if seen.request.nonce() == "h0000000" { Some(vec![Do::Silence]) } else { honest(seen) }
        });
        let leaver = world.client_of(usize::from(workers) - 1);
        world.get(leaver, "h0000000");
        world.settle();
        world.reset(leaver);
        // Right behind it: that one waits as long as it must, but none after it.
        let first = world.client();
        world.get(first, "00000001");
        world.run_for(61_000_000);
        assert_eq!(world.clients[first].replies.len(), 1);
        assert!(world.conns[0].closed, "{workers} workers");
        let second = world.client();
        world.get(second, "00000002");
        world.run_for(1001);
        check_honest("00000002", &world.clients[second].replies[0]).unwrap();
        // Much later: no request waits at all.
        let leaver = world.client_of(usize::from(workers) - 1);
        world.get(leaver, "h0000000");
        world.settle();
        world.reset(leaver);
        world.run_for(70_000_000);
        let third = world.client();
        world.post(third, "00000003", b"x");
        world.run_for(1001);
        check_honest("00000003", &world.clients[third].replies[0]).unwrap();
        world.finish();
    }
}

/// Servers that respond in HTTP/1.0 keep their connections, but nothing is sent behind anything
/// there.
#[test]
fn http_10_servers_are_not_pipelined() {
    let mut world = World::started(deep(2), 1, 1);
    world.serve(|seen| {
        let text = String::from_utf8(answer(seen.request)).unwrap();
        let text = text.replacen("HTTP/1.1", "HTTP/1.0", 1).replacen(
            "X-Nonce",
            "Connection: keep-alive\r\nX-Nonce",
            1,
        );
        Some(vec![Do::Answer(text.into_bytes())])
    });
    for _ in 0..60 {
        let clients = burst(&mut world, "GET", 6);
        world.settle();
        check_burst(&world, &clients);
    }
    assert_eq!((world.depth(), world.conns.len()), (1, 2));
    world.finish();
    // A connection that was pipelined while it used HTTP/1.1.
    let mut world = World::started(deep(1), 1, 1);
    earn(&mut world);
    world.serve(|seen| {
        let text = String::from_utf8(answer(seen.request)).unwrap();
        let old = text.replacen("HTTP/1.1", "HTTP/1.0", 1).replacen(
            "X-Nonce",
            "Connection: keep-alive\r\nX-Nonce",
            1,
        );
        Some(vec![Do::Delay(100), Do::Answer(old.into_bytes())])
    });
    let clients = burst(&mut world, "GET", 8);
    world.run_for(100_000);
    check_burst(&world, &clients);
    assert!(world.conns[0].closed && world.count(|counters| counters.demotions.get()) == 0);
    world.finish();
}
