//! Proves: the handling of requests when their connection is lost. docs/retries.md, RFC 9112
//! §9.3.1, §9.6.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use weir_check::upstreams::check_honest;
use weir_proxy::plan::PipelineMode;

use crate::world::{Do, Door, World, answer, honest, plan};

/// `retry-nonidempotent` makes a POST like any other request; without it, it gets 502 and is sent
/// once.
#[test]
fn retry_nonidempotent() {
    for on in [false, true] {
        let mut plan = plan(1, 2);
        plan.upstreams[0].retry.nonidempotent = on;
        let mut world = World::started(plan, 1, 1);
        let mut first = true;
        world.serve(
            move |seen| if std::mem::take(&mut first) { Some(vec![Do::Rst]) } else { honest(seen) },
        );
        let client = world.client();
        world.post(client, "00000001", b"x");
        world.run_for(100_000);
        assert_eq!(world.clients[client].statuses(), [if on { 200 } else { 502 }]);
        assert_eq!(world.times_served("00000001"), 1 + usize::from(on));
        world.finish();
    }
}

/// A retry uses another server if one exists.
#[test]
fn a_retry_goes_elsewhere() {
    let mut world = World::started(plan(2, 2), 1, 1);
    world.servers[0].serve = Box::new(|_| Some(vec![Do::Rst]));
    let client = world.client();
    for n in 0..20 {
        world.get(client, &format!("{n:08}"));
        world.run_for(1000);
        check_honest(&format!("{n:08}"), &world.clients[client].replies[n]).unwrap();
        assert!(world.times_served(&format!("{n:08}")) <= 2);
    }
    assert!(world.count(|counters| counters.retries.get()) > 0);
    world.finish();
}

/// A loss in the middle of a response is never completed silently, and the requests of others
/// continue.
#[test]
fn a_loss_within_an_answer() {
    for end in [Do::Fin, Do::Rst] {
        for framing in
            ["Content-Length: 100\r\n\r\nhalf", "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"]
        {
            let mut world = World::simple(1);
            let ending = end.clone();
            world.serve(move |seen| match seen.request.nonce() {
                "00000001" => {
                    let text = format!("HTTP/1.1 200 OK\r\n{framing}");
                    Some(vec![Do::Answer(text.into_bytes()), ending.clone(), Do::Silence])
                }
                _ => honest(seen),
            });
            let (client, other) = (world.client(), world.client());
            world.get(client, "00000001");
            world.get(client, "00000002");
            world.get(other, "00000003");
            world.run_for(100_000);
            assert!(world.clients[client].replies.is_empty() && world.clients[client].closed);
            let truncated =
                matches!(world.clients[client].end, Some(weir_check::End::Truncated(Some(_))));
            assert!(truncated, "{:?}", world.clients[client].end);
            check_honest("00000003", &world.clients[other].replies[0]).unwrap();
            assert_eq!(world.times_served("00000001"), 1);
            world.finish();
        }
    }
}

/// Likewise with a response of which its client has nothing yet, because an earlier one is
/// outstanding: the request is sent again, or gets 502 in its place if it may not be, and the
/// requests around it are answered.
#[test]
fn a_loss_within_an_answer_that_waits_for_its_turn() {
    for (workers, node, method, status) in [
        (1, 0, "GET", 200),
        (2, 0, "GET", 200),
        (2, 1, "GET", 200),
        (2, 0, "POST", 502),
        (2, 1, "POST", 502),
    ] {
        for framing in
            ["Content-Length: 100\r\n\r\nhalf", "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"]
        {
            // With two workers each has the connection to one of the servers.
            let mut world = World::started(plan(2, 1), workers, 1);
            let broken = Rc::new(Cell::new(false));
            for server in &mut world.servers {
                let broken = Rc::clone(&broken);
                server.serve = Box::new(move |seen| match seen.request.nonce() {
                    "00000001" => Some(vec![Do::Delay(100_000), Do::Answer(answer(seen.request))]),
                    "00000002" if !broken.replace(true) => {
                        let interim = "HTTP/1.1 103 Early Hints\r\n\r\n";
                        let text = format!("{interim}HTTP/1.1 200 OK\r\n{framing}");
                        Some(vec![Do::Answer(text.into_bytes()), Do::Delay(1_000), Do::Rst])
                    }
                    _ => honest(seen),
                });
            }
            let client = world.client_of(node);
            world.get(client, "00000001");
            world.ask(client, method, "/v?n=00000002", "");
            world.get(client, "00000003");
            world.run_for(1_000_000);
            assert_eq!(
                world.clients[client].statuses(),
                [200, status, 200],
                "{workers} workers, {method}"
            );
            check_honest("00000001", &world.clients[client].replies[0]).unwrap();
            if status == 200 {
                check_honest("00000002", &world.clients[client].replies[1]).unwrap();
            }
            check_honest("00000003", &world.clients[client].replies[2]).unwrap();
            let line = format!("/v?n=00000002 {status} ");
            assert!(world.lines.iter().any(|text| text.contains(&line)), "{:?}", world.lines);
            assert_eq!(world.times_served("00000002"), 1 + usize::from(status == 200));
            assert!(!world.clients[client].closed);
            world.finish();
        }
    }
}

/// A request that is sent again after its connection was lost is not pipelined before the first
/// response, even if the next connection could only be made at the second try (RFC 9112 §9.3.2).
#[test]
fn the_connection_after_a_failed_connect_begins_with_one_request() {
    let mut deep = plan(1, 1);
    deep.upstreams[0].pipeline = PipelineMode::Depth(16);
    let mut world = World::started(deep, 1, 1);
    let clients: Vec<usize> = (0..8).map(|_| world.client()).collect();
    for n in 0..80 {
        world.get(clients[0], &format!("{n:08}"));
        world.settle();
    }
    // A response that ends by close: the requests behind it are sent again, and none of them has to
    // go alone.
    world.serve(|seen| {
        let text = "HTTP/1.1 200 OK\r\n\r\n".to_owned();
        Some(if seen.conn == 0 {
            vec![Do::Delay(1_000), Do::Answer(text.into_bytes()), Do::Fin]
        } else {
            vec![Do::Silence]
        })
    });
    clients.iter().enumerate().for_each(|(n, client)| world.get(*client, &format!("a{n:07}")));
    world.settle();
    assert!(world.conns[0].depth > 1, "nothing is behind it");
    world.servers[0].door = Door::Refuses;
    world.run_for(5_000);
    world.servers[0].door = Door::Open;
    world.run_for(1_000_000);
    let last = world.open_conns()[0];
    assert!(last > 1, "no connect failed");
    assert_eq!(world.conns[last].depth, 1);
    world.finish();
}

/// Connections return at once, then at growing distances; nothing spins.
#[test]
fn reconnects_are_paced() {
    let mut world = World::started(plan(1, 32), 1, 1);
    world.serve(|_| Some(vec![Do::Rst]));
    for conn in world.open_conns() {
        world.say(conn, Do::Rst);
    }
    world.run_for(100_000);
    assert_eq!(world.open_conns().len(), 32, "all are replaced");
    world.servers[0].door = crate::world::Door::Refuses;
    for conn in world.open_conns() {
        world.say(conn, Do::Rst);
    }
    let before = world.conns.len();
    world.run_for(60_000_000);
    let tries = world.conns.len() - before;
    assert!((32 * 8..32 * 16).contains(&tries), "{tries} tries of 32 connections in a minute");
    world.finish();
}

/// A server that accepts and closes at once is not hammered either.
#[test]
fn connections_that_never_answer_are_paced() {
    let mut world = World::started(plan(1, 4), 1, 1);
    let mut seen = 0;
    for _ in 0..6000 {
        for conn in seen..world.conns.len() {
            world.say(conn, Do::Fin);
        }
        seen = world.conns.len();
        world.run_for(10_000);
    }
    // Back-off for each, and one more every 800 ms for the server.
    assert!(world.conns.len() < 4 * 15 + 80, "{} connects in a minute", world.conns.len());
    world.finish();
}

/// A server that ends each connection with its tenth response and announces it: once that is known,
/// nothing is sent that would have to be sent again; when the server stops doing so, connections
/// continue.
#[test]
fn the_limit_of_a_server_is_learned_and_forgotten() {
    let mut deep = plan(1, 2);
    deep.upstreams[0].pipeline = PipelineMode::Depth(16);
    let mut world = World::started(deep, 1, 1);
    let limited = Rc::new(Cell::new(false));
    let ends = Rc::clone(&limited);
    let mut answered: BTreeMap<usize, u32> = BTreeMap::new();
    world.serve(move |seen| {
        let count = answered.entry(seen.conn).or_default();
        *count += 1;
        let last = count.is_multiple_of(10) && ends.get();
        let text = String::from_utf8(answer(seen.request)).unwrap();
        Some(match last {
            false => vec![Do::Answer(text.into_bytes())],
            true => vec![
                Do::Answer(text.replacen("\r\n", "\r\nConnection: close\r\n", 1).into_bytes()),
                Do::Fin,
            ],
        })
    });
    let clients: Vec<usize> = (0..16).map(|_| world.client()).collect();
    let round = |world: &mut World, n: usize| {
        clients
            .iter()
            .enumerate()
            .for_each(|(at, client)| world.get(*client, &format!("{n:04}{at:04}")));
        world.run_for(50_000);
    };
    // Without a limit at first, so that there is a pipeline to lose.
    (0..20).for_each(|n| round(&mut world, n));
    limited.set(true);
    (20..40).for_each(|n| round(&mut world, n));
    let learned = world.count(|counters| counters.resends.get() + counters.moves.get());
    assert!(learned > 0, "before it is known, something is sent in vain");
    (40..60).for_each(|n| round(&mut world, n));
    assert_eq!(world.count(|counters| counters.resends.get() + counters.moves.get()), learned);
    limited.set(false);
    (60..90).for_each(|n| round(&mut world, n));
    let closes = world.count(|counters| counters.upstream_closes.sum());
    (90..120).for_each(|n| round(&mut world, n));
    assert_eq!(world.count(|counters| counters.upstream_closes.sum()), closes);
    assert!(clients.iter().all(|client| world.clients[*client].replies.len() == 120));
    world.finish();
}

/// Every server closes after each response without announcement. Safe requests are answered, others
/// are sent once; queues and buffers keep their bounds, which is checked after each turn; and once
/// it is known that pipelines are cut short, few requests are wasted beyond those that cross a
/// close.
#[test]
fn all_servers_close_after_each_answer() {
    for (servers, connections, workers, queue_size) in
        [(1, 1, 1, 1000), (3, 4, 1, 1000), (3, 4, 2, 40), (2, 1, 3, 200)]
    {
        let mut narrow = plan(servers, connections);
        narrow.upstreams[0].queue_size = queue_size;
        narrow.upstreams[0].pipeline = PipelineMode::Depth(16);
        let mut world = World::started(narrow, workers, 1);
        let closes = Rc::new(Cell::new(false));
        for server in &mut world.servers {
            let closes = Rc::clone(&closes);
            server.serve = Box::new(move |seen| {
                let end = if closes.get() { Do::Fin } else { Do::Delay(1) };
                seen.complete.then(|| vec![Do::Delay(200), Do::Answer(answer(seen.request)), end])
            });
        }
        let clients: Vec<usize> =
            (0..16).map(|n| world.client_of(n % usize::from(workers))).collect();
        let resends = |world: &World| world.count(|counters| counters.resends.get());
        let round = |world: &mut World, n: usize| {
            // With trust at first, so that there are pipelines to cut.
            closes.set(n >= 30);
            for (at, client) in clients.iter().enumerate() {
                (0..3)
                    .for_each(|request| world.get(*client, &format!("{at:02}{n:04}{request:02}")));
            }
            world.post(clients[n % 16], &format!("p{n:07}"), b"x");
            world.run_for(20_000);
            world.nodes.iter().for_each(|node| node.engine.audit_bytes().unwrap());
        };
        (0..150).for_each(|n| round(&mut world, n));
        let before = resends(&world);
        assert!(before > 0, "nothing was cut");
        (150..180).for_each(|n| round(&mut world, n));
        assert!(
            resends(&world) - before <= 30 * (16 * 3 + 1),
            "{} sent again",
            resends(&world) - before
        );
        world.run_for(10_000_000);
        assert!(clients.iter().all(|client| world.clients[*client].replies.len() >= 180 * 3));
        let lost = world.count(|counters| counters.refusals.get("upstream-lost"));
        assert!(
            lost <= 180 && lost == world.count(|counters| counters.refusals.sum()),
            "only what may not be repeated"
        );
        for request in world.requests().filter(|request| request.method == "POST") {
            assert_eq!(world.times_served(request.nonce()), 1);
        }
        world.finish();
    }
}

/// `connect-retries` counts failed connects in a row. weir waits for a server that was in use a
/// moment ago, even after as many useless connections as connects may fail.
#[test]
fn a_server_that_died_often_is_waited_for_as_long_as_any_other() {
    let mut impatient = plan(1, 1);
    impatient.upstreams[0].retry.connect_retries = 3;
    let mut world = World::started(impatient, 1, 1);
    let first = world.client();
    world.get(first, "00000000");
    world.settle();
    let used_us = world.now_us;
    // The one that was of use, and five that end at once.
    for _ in 0..6 {
        while world.open_conns().is_empty() {
            world.run_for(10_000);
        }
        world.say(world.open_conns()[0], Do::Fin);
        world.settle();
    }
    world.servers[0].door = Door::Refuses;
    while world.open_conns().is_empty()
        && world.count(|counters| counters.upstream_connect_failures.get()) == 0
    {
        world.run_for(10_000);
    }
    assert!(world.now_us < used_us + 1_500_000, "the server is waited for by now");
    let client = world.client();
    world.get(client, "00000001");
    world.run_for(1_000);
    assert!(world.clients[client].replies.is_empty(), "{:?}", world.clients[client].statuses());
    world.servers[0].door = Door::Open;
    world.run_for(2_000_000);
    check_honest("00000001", &world.clients[client].replies[0]).unwrap();
    world.finish();
}

/// A response that breaks off when its client has seen some of it is not repeated: it is no retry,
/// takes nothing from the budget, and neither do the same client's requests behind it.
#[test]
fn what_a_client_has_seen_some_of_costs_no_budget() {
    let mut few = plan(1, 2);
    few.upstreams[0].retry.budget_percent = 1;
    let mut world = World::started(few, 1, 1);
    world.serve(|seen| match seen.request.nonce().starts_with('a') {
        true => Some(vec![
            Do::Answer(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf".to_vec()),
            Do::Delay(200),
            Do::Rst,
        ]),
        false => honest(seen),
    });
    for n in 0..200 {
        let (client, other) = (world.client(), world.client());
        world.get(other, &format!("h{n:07}"));
        world.run_for(500);
        world.get(client, &format!("a{n:07}"));
        (0..3).for_each(|k| world.get(client, &format!("{k}{n:07}")));
        world.run_for(1_500);
    }
    assert_eq!(
        world.count(|counters| counters.retries.get()
            + counters.resends.get()
            + counters.moves.get()),
        0
    );
    let mut first = true;
    world.serve(
        move |seen| if std::mem::take(&mut first) { Some(vec![Do::Rst]) } else { honest(seen) },
    );
    let client = world.client();
    world.get(client, "h9999999");
    world.run_for(1_000_000);
    assert_eq!(world.clients[client].statuses(), [200], "the budget is there for others");
}

/// A client leaves in the turn in which the connection of its request breaks: the request is not
/// sent again.
#[test]
fn what_nobody_wants_does_not_go_again() {
    let mut world = World::started(plan(1, 2), 1, 1);
    world.serve(|seen| {
        let delay_us = match seen.request.nonce().as_bytes()[0] {
            b's' => 1_000,
            b't' => 2_000,
            _ => 100_000,
        };
        Some(vec![Do::Delay(delay_us), Do::Answer(answer(seen.request))])
    });
    let (first, second, client) = (world.client(), world.client(), world.client());
    world.get(first, "s0000001");
    world.get(second, "t0000001");
    world.settle();
    // It waits, so that its client does not know its connection.
    world.get(client, "u0000001");
    world.run_for(3_000);
    let carries = |conn: &usize| {
        world.conns[*conn].requests.iter().any(|request| request.nonce() == "u0000001")
    };
    let conn = (0..world.conns.len()).find(carries).expect("it was sent");
    world.reset(client);
    world.cut(conn, Do::Rst);
    world.run_for(50_000);
    assert_eq!(world.times_served("u0000001"), 1);
    assert_eq!(world.count(|counters| counters.retries.get() + counters.resends.get()), 0);
    world.finish();
}
