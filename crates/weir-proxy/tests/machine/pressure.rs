//! Proves: a slow client stops only its own responses, memory is bounded, and large responses delay
//! no other client. docs/buffers-bounds.md#bounds, docs/hostile.md H3.

use std::cell::Cell;
use std::rc::Rc;

use weir_check::End;
use weir_check::upstreams::check_honest;
use weir_proxy::plan::PipelineMode;

use crate::world::{Do, Seen, World, answer, honest, plan};

/// Bytes that one client may make weir hold: the high mark and a receive for each connection that
/// brings responses.
const HELD_MAX: usize = 400_000;

/// Answers `/large` with 2 MB in pieces, all other requests honestly. The letter shows the client
/// of a piece.
fn large(seen: &Seen<'_>) -> Option<Vec<Do>> {
    if !seen.request.target.starts_with("/large") {
        return honest(seen);
    }
    let nonce = seen.request.nonce();
    let head = format!("HTTP/1.1 200 OK\r\nX-Nonce: {nonce}\r\nContent-Length: 2000000\r\n\r\n");
    let mut script = vec![Do::Answer(head.into_bytes())];
    let letter = nonce.as_bytes()[0];
    script.extend((0..100).map(|_| Do::Bytes(vec![letter; 20_000])));
    Some(script)
}

fn is_large(reply: &weir_check::Reply, nonce: &str) -> bool {
    let letter = nonce.as_bytes()[0];
    reply.fields.first("x-nonce") == Some(nonce)
        && reply.body.length == 2_000_000
        && reply.body.bytes.iter().all(|byte| *byte == letter)
}

/// A server that has earned its depth.
fn warm(connections: u32, workers: u16) -> World {
    let mut limited = plan(1, connections);
    limited.upstreams[0].pipeline = PipelineMode::Depth(16);
    let mut world = World::started(limited, workers, 1);
    for node in 0..usize::from(workers) {
        let clients: Vec<usize> = (0..4).map(|_| world.client_of(node)).collect();
        for n in 0..70 {
            clients.iter().for_each(|client| world.get(*client, &format!("{n:08}")));
            world.settle();
        }
    }
    world.serve(large);
    world
}

fn unread(world: &World) -> usize {
    world.conns.iter().filter(|conn| !conn.closed).map(|conn| conn.unread()).sum()
}

#[test]
fn a_slow_client_stops_its_server_and_goes_on() {
    for workers in [1, 2] {
        let mut world = warm(2, workers);
        let client = world.client_of(usize::from(workers) - 1);
        world.stall(client, true);
        world.ask(client, "GET", "/large?n=a0000001", "");
        world.settle();
        assert!(unread(&world) > 2_000_000 - HELD_MAX, "{} unread", unread(&world));
        world.stall(client, false);
        world.settle();
        assert!(is_large(&world.clients[client].replies[0], "a0000001"));
        world.finish();
    }
}

/// Many large responses for one client that does not read: later ones are held as well, and bounded
/// as well.
#[test]
fn a_slow_client_with_many_requests_is_bounded() {
    for (connections, workers) in [(1, 1), (4, 1), (4, 2), (1, 2)] {
        let mut world = warm(connections, workers);
        let client = world.client();
        world.stall(client, true);
        let mut all = Vec::new();
        for n in 0..20 {
            world.expect(client, "GET", false, false);
            all.extend(
                format!(
                    "GET /large?n={}000{n:04} HTTP/1.1\r\nHost: a\r\n\r\n",
                    char::from(b'a' + n)
                )
                .bytes(),
            );
        }
        world.send(client, &all);
        world.run_for(5_000_000);
        assert_eq!(
            world.count(|counters| counters.set_aside.get()),
            0,
            "it keeps up nobody but itself"
        );
        let sent: usize = world
            .conns
            .iter()
            .map(|conn| conn.requests.iter().filter(|it| it.target.starts_with("/large")).count())
            .sum();
        let taken = sent * 2_000_000 - unread(&world);
        assert!(
            taken < HELD_MAX + 150_000 * connections as usize,
            "{connections} {workers}: {taken} bytes were taken"
        );
        world.stall(client, false);
        world.run_for(10_000_000);
        assert_eq!(
            world.clients[client].replies.len(),
            20,
            "{connections} connections, {workers} workers"
        );
        for (n, reply) in world.clients[client].replies.iter().enumerate() {
            assert!(is_large(reply, &format!("{}000{n:04}", char::from(b'a' + n as u8))));
        }
        world.finish();
    }
}

/// Likewise with responses that each fit into one receive: the stop for one of them must not be
/// forgotten at its end.
#[test]
fn a_slow_client_with_many_middling_answers_is_bounded() {
    for (connections, workers) in [(1, 1), (2, 1), (1, 2)] {
        let mut world = warm(connections, workers);
        world.serve(|seen| {
            let head = format!(
                "HTTP/1.1 200 OK\r\nX-Nonce: {}\r\nContent-Length: 60000\r\n\r\n",
                seen.request.nonce()
            );
            Some(vec![Do::Answer([head.as_bytes(), &[b'm'; 60_000]].concat())])
        });
        let client = world.client_of(usize::from(workers) - 1);
        world.stall(client, true);
        let mut all = Vec::new();
        for n in 0..64 {
            world.expect(client, "GET", false, false);
            all.extend(format!("GET /v?n=m{n:07} HTTP/1.1\r\nHost: a\r\n\r\n").bytes());
        }
        world.send(client, &all);
        world.run_for(5_000_000);
        let sent = world.requests().filter(|request| request.nonce().starts_with('m')).count();
        let taken = sent * 60_000 - unread(&world);
        assert!(taken < HELD_MAX, "{connections} {workers}: {sent} sent, {taken} bytes taken");
        world.stall(client, false);
        world.run_for(10_000_000);
        let nonces = world.clients[client]
            .replies
            .iter()
            .map(|reply| reply.fields.first("x-nonce").unwrap());
        assert!(nonces.eq((0..64).map(|n| format!("m{n:07}")).collect::<Vec<_>>()));
        world.finish();
    }
}

/// A stop that crosses the end of its response in the mail does not stop the next response, which
/// is another client's.
#[test]
fn a_late_stop_is_for_nobody() {
    let mut world = warm(1, 2);
    let (slow, other) = (world.client_of(1), world.client_of(0));
    world.serve(|seen| match seen.request.nonce().as_bytes()[0] {
        b'a' => {
            let head = format!(
                "HTTP/1.1 200 OK\r\nX-Nonce: {}\r\nContent-Length: 200000\r\n\r\n",
                seen.request.nonce()
            );
            Some(vec![Do::Answer([head.as_bytes(), &[b'm'; 200_000]].concat())])
        }
        _ => large(seen),
    });
    world.stall(slow, true);
    world.get(slow, "a0000001");
    while world.times_served("a0000001") == 0 {
        world.settle_once();
    }
    // The worker of the connection gets no mail from here on until the next response is in
    // progress.
    world.nodes[0].mail_stopped = true;
    world.ask(other, "GET", "/large?n=b0000001", "");
    for _ in 0..20 {
        world.settle_once();
    }
    assert!(world.clients[other].current().is_some(), "the second answer is under way");
    world.nodes[0].mail_stopped = false;
    world.settle();
    assert!(is_large(&world.clients[other].replies[0], "b0000001"), "stopped for another client");
    world.stall(slow, false);
    world.settle();
    assert_eq!(world.clients[slow].replies[0].body.length, 200_000);
    world.finish();
}

/// A client that takes its time with a large response does not keep others from theirs.
#[test]
fn requests_behind_a_stalled_answer_are_answered_elsewhere() {
    for (connections, workers) in [(1, 1), (3, 1), (1, 2)] {
        let mut world = warm(connections, workers);
        let slow = world.client();
        let others: Vec<usize> = (0..6).map(|_| world.client()).collect();
        world.stall(slow, true);
        world.ask(slow, "GET", "/large?n=a0000001", "");
        // In the same turn, so that they are behind it.
        for (n, other) in others.iter().enumerate() {
            world.get(*other, &format!("b{n:07}"));
        }
        world.run_for(1_000_000);
        for (n, other) in others.iter().enumerate() {
            assert_eq!(
                world.clients[*other].replies.len(),
                1,
                "{connections} {workers}: {n} waits for a slow client"
            );
            check_honest(&format!("b{n:07}"), &world.clients[*other].replies[0]).unwrap();
        }
        world.stall(slow, false);
        world.run_for(1_000_000);
        assert!(is_large(&world.clients[slow].replies[0], "a0000001"));
        for (n, other) in others.iter().enumerate() {
            world.get(*other, &format!("c{n:07}"));
        }
        world.run_for(1_000_000);
        for (n, other) in others.iter().enumerate() {
            check_honest(&format!("c{n:07}"), &world.clients[*other].replies[1]).unwrap();
        }
        assert_eq!(world.open_conns().len(), connections as usize);
        assert_eq!(world.count(|counters| counters.in_flight.get()), 0);
        world.finish();
    }
}

/// Likewise with a POST at the end, which may not move: the responses of those that moved arrive
/// twice, and are used once.
#[test]
fn what_moved_away_from_a_stalled_answer_is_answered_once() {
    for workers in [1, 2] {
        let mut world = warm(1, workers);
        world.serve(|seen| {
            if seen.request.nonce().as_bytes()[0] != b'b' {
                return large(seen);
            }
            let nonce = seen.request.nonce();
            let head = format!("HTTP/1.1 200 OK\r\nX-Nonce: {nonce}\r\nContent-Length: 40\r\n\r\n");
            let half = vec![nonce.as_bytes()[7]; 20];
            let first = Do::Answer([head.as_bytes(), &half[..]].concat());
            Some(vec![first, Do::Delay(400_000), Do::Bytes(half)])
        });
        let slow = world.client();
        let others: Vec<usize> = (0..3).map(|_| world.client()).collect();
        let poster = world.client();
        world.stall(slow, true);
        world.ask(slow, "GET", "/large?n=a0000001", "");
        for (n, other) in others.iter().enumerate() {
            world.get(*other, &format!("b000000{n}"));
        }
        world.settle_once();
        world.post(poster, "c0000001", b"x");
        world.run_for(300_000);
        assert_eq!(world.count(|counters| counters.set_aside.get()), 1);
        world.stall(slow, false);
        world.run_for(5_000_000);
        assert!(is_large(&world.clients[slow].replies[0], "a0000001"));
        for (n, other) in others.iter().enumerate() {
            let replies = &world.clients[*other].replies;
            assert_eq!(
                (replies.len(), replies[0].fields.first("x-nonce")),
                (1, Some(&format!("b000000{n}")[..]))
            );
            assert_eq!(replies[0].body.bytes, [b'0' + n as u8; 40]);
        }
        check_honest("c0000001", &world.clients[poster].replies[0]).unwrap();
        assert_eq!(world.times_served("c0000001"), 1);
        assert_eq!(world.open_conns().len(), 1);
        world.finish();
    }
}

/// A response before its turn is held, and counts: large responses behind a slow one are not
/// gathered without a bound.
#[test]
fn held_answers_are_bounded() {
    for workers in [1, 2] {
        let mut world = warm(8, workers);
        world.serve(|seen| match seen.request.method.as_str() {
            "POST" => Some([vec![Do::Delay(1_000_000)], honest(seen)?].concat()),
            _ => large(seen),
        });
        let client = world.client();
        world.post(client, "p0000001", b"x");
        for n in 0..6u8 {
            world.ask(client, "GET", &format!("/large?n={}0000001", char::from(b'a' + n)), "");
        }
        world.run_for(900_000);
        let sent = world.requests().filter(|request| request.target.starts_with("/large")).count();
        let taken = sent * 2_000_000 - unread(&world);
        assert!(
            sent > 1 && taken < HELD_MAX + sent * 70_000,
            "{workers} workers: {sent} sent, {taken} bytes taken"
        );
        world.run_for(5_000_000);
        check_honest("p0000001", &world.clients[client].replies[0]).unwrap();
        for n in 0..6u8 {
            let reply = &world.clients[client].replies[1 + usize::from(n)];
            assert!(is_large(reply, &format!("{}0000001", char::from(b'a' + n))));
        }
        world.finish();
    }
}

/// E11: a client that leaves in the middle of a large response harms none behind it, not even
/// requests that cannot be repeated.
#[test]
fn e11_a_client_that_leaves_harms_nobody_behind_it() {
    for workers in [1, 2] {
        let mut world = warm(1, workers);
        world.serve(move |seen| {
            if !seen.request.target.starts_with("/large") {
                return honest(seen);
            }
            let mut script = large(seen).unwrap();
            // Slowly, so that the client can leave in the middle.
            let rest = script.split_off(2);
            script.push(Do::Delay(10_000));
            script.extend(rest);
            Some(script)
        });
        for round in 0..10 {
            let (leaver, reader, poster) = (world.client(), world.client(), world.client());
            world.ask(leaver, "GET", &format!("/large?n=a{round:07}"), "");
            world.get(reader, &format!("b{round:07}"));
            world.post(poster, &format!("c{round:07}"), b"x");
            world.run_for(1_000);
            assert!(world.clients[leaver].current().is_some());
            world.reset(leaver);
            world.run_for(1_000_000);
            check_honest(&format!("b{round:07}"), &world.clients[reader].replies[0]).unwrap();
            check_honest(&format!("c{round:07}"), &world.clients[poster].replies[0]).unwrap();
            assert_eq!(world.times_served(&format!("c{round:07}")), 1);
        }
        assert_eq!(
            world.count(|counters| counters.retries.get()),
            0,
            "those behind are not to blame"
        );
        world.finish();
    }
}

/// A chunked response of this many chunks, one each millisecond; all others honestly.
fn trickling(chunks: usize, bytes: usize) -> impl FnMut(&Seen<'_>) -> Option<Vec<Do>> {
    move |seen| {
        if !seen.request.target.starts_with("/trickle") {
            return honest(seen);
        }
        let chunk = format!("{bytes:x}\r\n{}\r\n", "x".repeat(bytes));
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        let more =
            (0..chunks).flat_map(|_| [Do::Delay(1_000), Do::Bytes(chunk.clone().into_bytes())]);
        Some(
            [Do::Answer(head)]
                .into_iter()
                .chain(more)
                .chain([Do::Bytes(b"0\r\n\r\n".to_vec())])
                .collect(),
        )
    }
}

/// Clients that leave in the middle of a chunked response cost the connection nothing, as those of
/// a declared length do not: requests behind it are sent once.
#[test]
fn leaving_a_chunked_answer_repeats_nothing() {
    for workers in [1, 2] {
        let mut world = warm(1, workers);
        world.serve(trickling(20, 100));
        let (conns, resends) = (world.conns.len(), world.count(|counters| counters.resends.get()));
        for round in 0..30 {
            let (leaver, reader) = (world.client(), world.client());
            world.ask(leaver, "GET", "/trickle", "");
            world.get(reader, &format!("b{round:07}"));
            world.run_for(5_000);
            assert!(world.clients[leaver].current().is_some());
            world.reset(leaver);
            world.run_for(1_000_000);
            check_honest(&format!("b{round:07}"), &world.clients[reader].replies[0]).unwrap();
            assert_eq!(world.seen_by(&format!("b{round:07}")).len(), 1, "round {round}");
        }
        assert_eq!(
            (world.conns.len(), world.count(|counters| counters.resends.get())),
            (conns, resends)
        );
        world.finish();
    }
}

/// A rest that is long, in bytes or in time, costs the connection.
#[test]
fn leaving_an_endless_answer_ends_it() {
    for (chunks, bytes) in [(3_000, 100), (200, 16_384)] {
        let mut world = warm(1, 1);
        world.serve(trickling(chunks, bytes));
        for round in 0..4 {
            let (leaver, reader) = (world.client(), world.client());
            let conns = world.conns.len();
            world.ask(leaver, "GET", "/trickle", "");
            world.get(reader, &format!("b{round:07}"));
            world.run_for(5_000);
            world.reset(leaver);
            world.run_for(1_300_000);
            check_honest(&format!("b{round:07}"), &world.clients[reader].replies[0]).unwrap();
            assert!(world.conns.len() > conns, "round {round}");
        }
        assert_eq!(world.count(|counters| counters.retries.get()), 0);
        world.finish();
    }
}

/// Clients that abort their uploads: their connections are replaced at once, as after a connect
/// that succeeded.
#[test]
fn given_up_uploads_are_no_failed_connects() {
    for workers in [1, 2] {
        let mut world = World::started(plan(1, 1), workers, 1);
        let begun = Rc::new(Cell::new(0));
        let seen_begun = Rc::clone(&begun);
        world.serve(move |seen| {
            seen_begun.set(seen_begun.get() + u32::from(!seen.complete));
            if seen.complete { honest(seen) } else { None }
        });
        for round in 0..12 {
            let before = begun.get();
            let uploader = world.client();
            world.expect(uploader, "POST", false, false);
            world.send(uploader, b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
            world.send(uploader, &vec![b'x'; 100_000]);
            world.run_for(20_000);
            assert!(begun.get() > before, "upload {round} has no connection yet");
            world.reset(uploader);
        }
        let client = world.client();
        world.get(client, "00000001");
        world.run_for(20_000);
        assert_eq!(world.clients[client].statuses(), [200]);
        world.finish();
    }
}

/// An HTTP/1.0 client gets no chunks, and a truncated response must not look complete to it.
#[test]
fn an_answer_without_a_length_for_an_old_client() {
    for cut in [false, true] {
        let mut world = World::simple(1);
        world.serve(move |_| {
            let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
            let last = if cut { Do::Fin } else { Do::Bytes(b"0\r\nX-Trailer: x\r\n\r\n".to_vec()) };
            Some(vec![Do::Answer(text.as_bytes().to_vec()), last, Do::Silence])
        });
        let client = world.client();
        world.expect(client, "GET", true, false);
        world.send(client, b"GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n");
        world.settle();
        let client = &world.clients[client];
        assert!(client.closed);
        assert_eq!(client.was_reset, cut, "the end of the connection is the end of the answer");
        assert_eq!(client.replies[0].body.text(), "hello");
        world.finish();
    }
}

/// A request behind one whose response ends by close is not taken: its response could reach no
/// client.
#[test]
fn nothing_is_taken_behind_an_answer_that_ends_by_close() {
    let mut world = World::simple(2);
    world.serve(|_| {
        let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
        Some(vec![
            Do::Answer(text.as_bytes().to_vec()),
            Do::Delay(1000),
            Do::Bytes(b"0\r\n\r\n".to_vec()),
        ])
    });
    let client = world.client();
    world.expect(client, "GET", true, false);
    world.send(client, b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    world.settle();
    world.send(client, b"POST / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    world.run_for(5_000_000);
    assert_eq!(world.clients[client].statuses(), [200]);
    assert!(world.clients[client].closed && world.requests().count() == 1);
    world.finish();
}

/// Trailers reach clients that accept them, and only those without framing, routing and
/// authentication.
#[test]
fn trailers_are_for_those_who_want_them() {
    let mut world = World::simple(1);
    world.serve(|_| {
        let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nok\r\n0\r\n\
            X-Sum: 1\r\nContent-Length: 5\r\n\r\n";
        Some(vec![Do::Answer(text.as_bytes().to_vec())])
    });
    let client = world.client();
    world.ask(client, "GET", "/", "TE: trailers\r\nConnection: TE\r\n");
    world.ask(client, "GET", "/", "");
    world.settle();
    let replies = &world.clients[client].replies;
    assert_eq!(
        (replies[0].trailers.first("x-sum"), replies[1].trailers.first("x-sum")),
        (Some("1"), None)
    );
    assert!(replies.iter().all(|reply| reply.body.text() == "ok" && reply.trailers.0.len() <= 1));
    assert_eq!(world.count(|counters| counters.demotions.get()), 0);
    world.finish();
}

/// HEAD, 204, 205 and 304 keep their framing right for the next response on the same connection, on
/// both sides.
#[test]
fn answers_without_a_body() {
    let heads = [
        ("HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 200),
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", 200),
        ("HEAD", "HTTP/1.1 404 No\r\n\r\n", 404),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n", 204),
        ("GET", "HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n", 205),
        ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 100\r\n\r\n", 304),
        ("GET", "HTTP/1.1 304 Not Modified\r\n\r\n", 304),
    ];
    for (method, head, status) in heads {
        let mut world = World::simple(1);
        world.serve(move |seen| {
            if seen.request.target == "/" {
                Some(vec![Do::Answer(head.as_bytes().to_vec())])
            } else {
                honest(seen)
            }
        });
        let client = world.client();
        world.ask(client, method, "/", "If-None-Match: \"x\"\r\n");
        world.get(client, "00000001");
        world.settle();
        assert_eq!(world.clients[client].statuses(), [status, 200], "{method} {head}");
        check_honest("00000001", &world.clients[client].replies[1]).unwrap();
        assert!(
            !world.conns[0].closed && world.count(|counters| counters.demotions.get()) == 0,
            "{method} {head}"
        );
        world.finish();
    }
}

/// Interim responses reach clients that can read them.
#[test]
fn interim_answers_are_not_for_old_clients() {
    let mut world = World::simple(1);
    world.serve(|seen| {
        let hint = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".to_vec();
        Some([vec![Do::Bytes(hint)], honest(seen).unwrap()].concat())
    });
    let (old, new) = (world.client(), world.client());
    world.expect(old, "GET", true, false);
    world.send(old, b"GET /v?n=00000001 HTTP/1.0\r\n\r\n");
    world.get(new, "00000002");
    world.settle();
    check_honest("00000001", &world.clients[old].replies[0]).unwrap();
    assert_eq!(world.clients[new].replies[0].interim, [103]);
    assert_eq!(world.clients[old].end, Some(End::Clean));
    world.finish();
}

/// weir's own error ends an HTTP/1.0 connection, whatever the client requested: it says nothing of
/// keep-alive.
#[test]
fn errors_for_old_clients_close() {
    let mut world = World::simple(2);
    let client = world.client();
    let looping = "Via: 1.1 weir\r\nConnection: keep-alive";
    world.expect(client, "GET", true, false);
    world.send(client, format!("GET / HTTP/1.0\r\n{looping}\r\n\r\n").as_bytes());
    world.send(client, b"GET /v?n=00000001 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    world.run_for(5_000_000);
    assert_eq!(world.clients[client].statuses(), [508]);
    assert!(world.clients[client].closed && world.requests().count() == 0);
    // Also when it is not its turn yet: the next request is not taken.
    world.serve(|seen| Some([vec![Do::Delay(1000)], honest(seen).unwrap()].concat()));
    let client = world.client();
    let fields = "Connection: keep-alive";
    for (method, target, fields) in
        [("GET", "/v?n=00000002", fields), ("GET", "/", looping), ("GET", "/v?n=00000003", fields)]
    {
        world.expect(client, method, true, false);
        world.send(client, format!("{method} {target} HTTP/1.0\r\n{fields}\r\n\r\n").as_bytes());
    }
    world.run_for(5_000_000);
    assert_eq!(world.clients[client].statuses(), [200, 508]);
    assert!(world.clients[client].closed && world.requests().count() == 1);
    world.finish();
}

/// A client that has ended its sending direction and reads slowly still gets all its responses.
#[test]
fn a_half_closed_slow_client_gets_everything() {
    let mut limited = plan(1, 1);
    limited.client.requests_queued_max = 1;
    let mut world = World::started(limited, 1, 1);
    world.serve(|seen| {
        let head = format!(
            "HTTP/1.1 200 OK\r\nX-Nonce: {}\r\nContent-Length: 200000\r\n\r\n",
            seen.request.nonce()
        );
        Some(vec![Do::Answer([head.as_bytes(), &[b'm'; 200_000]].concat())])
    });
    let client = world.client();
    world.stall(client, true);
    let mut all = Vec::new();
    for n in 0..5 {
        world.expect(client, "GET", false, false);
        all.extend(format!("GET /v?n={n:08} HTTP/1.1\r\nHost: a\r\n\r\n").bytes());
    }
    world.send(client, &all);
    world.half_close(client);
    for _ in 0..50 {
        world.run_for(1000);
        world.sip(client);
    }
    assert_eq!(world.clients[client].replies.len(), 5);
    world.settle();
    assert!(world.clients[client].closed);
    world.finish();
}

/// A response breaks off while its client uploads the next request and reads nothing: that request
/// ends with its connection, and no other request is mistaken for it later.
#[test]
fn a_cut_answer_in_front_of_an_upload() {
    for upload in [10, 100_000] {
        let mut world = warm(2, 1);
        world.serve(|seen| match seen.request.nonce().as_bytes().first() {
            Some(b'a') => {
                let head = b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n".to_vec();
                Some(vec![
                    Do::Answer(head),
                    Do::Bytes(vec![b'a'; 50_000]),
                    Do::Delay(1_000_000),
                    Do::Rst,
                ])
            }
            Some(b'b') => {
                Some(vec![Do::Delay(45_000_000), Do::Answer(crate::world::answer(seen.request))])
            }
            _ => honest(seen),
        });
        let client = world.client();
        world.stall(client, true);
        world.get(client, "a0000001");
        world.settle();
        world.expect(client, "POST", false, false);
        world.send(client, b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n");
        world.send(client, &vec![b'x'; upload]);
        world.run_for(2_000_000);
        // These take the vacant places.
        let others: Vec<usize> = (0..2).map(|_| world.client()).collect();
        for (n, other) in others.iter().enumerate() {
            world.ask(*other, "POST", &format!("/v?n=b{n:07}"), "");
        }
        world.run_for(70_000_000);
        let state = &world.clients[client];
        assert!(
            state.closed && state.replies.is_empty(),
            "{upload} {} {:?} {:?}",
            state.closed,
            state.statuses(),
            state.end
        );
        for (n, other) in others.iter().enumerate() {
            check_honest(&format!("b{n:07}"), &world.clients[*other].replies[0]).unwrap();
        }
        world.finish();
    }
}

/// A request that is not safe moves to another connection, where a later one of its own client has
/// a large response: it does not wait behind that, which waits for it.
#[test]
fn nobody_waits_behind_a_later_request_of_its_own() {
    let mut world = warm(2, 1);
    let last = |seen: &Seen<'_>| {
        let text = String::from_utf8(answer(seen.request)).unwrap();
        text.replacen("\r\n", "\r\nConnection: close\r\n", 1).into_bytes()
    };
    world.serve(move |seen| match seen.request.target.as_str() {
        "/first?n=00000001" => Some(vec![Do::Delay(20_000), Do::Answer(last(seen)), Do::Fin]),
        "/second?n=00000002" => Some(vec![Do::Delay(10_000), Do::Answer(answer(seen.request))]),
        target if target.starts_with("/large") => {
            let mut script = large(seen)?;
            script.insert(0, Do::Delay(50_000));
            Some(script)
        }
        _ => honest(seen),
    });
    let [first, second, third] = [(); 3].map(|()| world.client());
    world.ask(first, "GET", "/first?n=00000001", "");
    world.run_for(1_000);
    world.ask(second, "DELETE", "/second?n=00000002", "");
    world.run_for(1_000);
    // Behind the first, on a connection that ends with its response, then on the other one.
    world.ask(third, "DELETE", "/v?n=00000003", "");
    world.ask(third, "GET", "/large?n=00000004", "");
    world.run_for(1_000_000);
    let replies = &world.clients[third].replies;
    check_honest("00000003", &replies[0]).unwrap();
    assert!(is_large(&replies[1], "00000004"));
    world.finish();
}
