//! Proves: a body that is complete soon is sent at once as a whole and can be sent again. Any other
//! is forwarded after 100 ms, at once, or not before its end, as `request-buffering` says; both
//! directions run at the same time; and with `Expect` the server decides whether it wants the body
//! (RFC 9110 §10.1.1). Clients of HTTP/1.1 and HTTP/2. docs/http1.md, docs/retries.md.

use std::sync::Arc;

use weir_check::streams::kind::DATA;
use weir_check::streams::{END_STREAM, frame};
use weir_check::upstreams::check_honest;
use weir_proxy::plan::Plan;
use weir_proxy::request::route::{Route, RouteTable};
use weir_proxy::request::rules::RouteRules;
use weir_proxy::request::rules::buffering::Buffering;

use crate::world::{Do, Seen, World, honest, plan};

const SECOND: u64 = 1_000_000;
/// Less than the limit for gathered bodies, and more.
const SOON: u64 = 90_000;
const LATER: u64 = 120_000;

/// One server with one connection, and one route with this setting.
pub fn buffered(buffering: Buffering) -> Plan {
    let rules = RouteRules { buffering, ..RouteRules::default() };
    let route = Route { rules: Some(Arc::new(rules)), ..Route::default() };
    Plan { routes: RouteTable::new(vec![route]), ..plan(1, 1) }
}

fn world_of(buffering: Buffering) -> World {
    World::started(buffered(buffering), 1, 1)
}

/// Begins a request whose body follows.
fn begin(world: &mut World, method: &str, fields: &str) -> usize {
    let client = world.client();
    world.expect(client, method, false, false);
    world.send(
        client,
        format!("{method} /p?n=00000001 HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes(),
    );
    world.settle();
    client
}

/// Returns the received body of an incomplete request, at the server; None: nothing of the request
/// has arrived.
fn arrived(world: &World) -> Option<String> {
    let mut requests =
        world.conns.iter().filter(|conn| conn.is_open()).filter_map(|conn| conn.judge.current());
    requests.next_back().map(|request| request.body.text())
}

/// Answers nothing.
fn silent(_: &Seen<'_>) -> Option<Vec<Do>> {
    None
}

/// Returns the connection with an incomplete request.
fn carrier(world: &World) -> usize {
    world
        .conns
        .iter()
        .position(|conn| conn.is_open() && conn.judge.current().is_some())
        .expect("a request")
}

#[test]
fn a_body_that_is_complete_soon_leaves_in_one_send() {
    for buffering in [Buffering::Auto, Buffering::On] {
        for (fields, pieces) in [
            ("Content-Length: 10\r\n", ["hello", "world"]),
            ("Transfer-Encoding: chunked\r\n", ["5\r\nhello\r\n", "5\r\nworld\r\n0\r\n\r\n"]),
        ] {
            let mut world = world_of(buffering);
            let client = begin(&mut world, "POST", fields);
            for piece in pieces {
                world.run_for(SOON / 2);
                assert_eq!(arrived(&world), None, "{buffering:?}");
                world.send(client, piece.as_bytes());
                world.settle();
            }
            check_honest("00000001", &world.clients[client].replies[0]).unwrap();
            let request = world.requests().next().expect("a request");
            assert_eq!(
                (&*request.body.text(), request.fields.first("content-length")),
                ("helloworld", Some("10"))
            );
            assert_eq!(world.count(|counters| counters.upstream_sends.get()), 1, "{buffering:?}");
            world.finish();
        }
    }
}

/// With all of it in one read, not even a connection of a route without buffering sees two sends.
#[test]
fn a_body_that_came_with_its_head_is_never_cut() {
    for buffering in [Buffering::Auto, Buffering::On, Buffering::Off] {
        let mut world = world_of(buffering);
        let client = world.client();
        world.post(client, "00000001", b"all of it");
        world.settle();
        check_honest("00000001", &world.clients[client].replies[0]).unwrap();
        assert_eq!(world.count(|counters| counters.upstream_sends.get()), 1, "{buffering:?}");
        world.finish();
    }
}

#[test]
fn a_body_that_waits_is_passed_on() {
    for (fields, first, second, last) in [
        ("Content-Length: 10\r\n", "hello", "wor", "ld"),
        (
            "Transfer-Encoding: chunked\r\n",
            "5\r\nhello\r\n",
            "3\r\nwor\r\n",
            "2\r\nld\r\n0\r\n\r\n",
        ),
    ] {
        let mut world = world_of(Buffering::Auto);
        let client = begin(&mut world, "POST", fields);
        world.send(client, first.as_bytes());
        world.run_for(SOON);
        assert_eq!(arrived(&world), None);
        world.run_for(LATER - SOON);
        assert_eq!(arrived(&world).as_deref(), Some("hello"), "{fields}");
        world.send(client, second.as_bytes());
        world.settle();
        assert_eq!(arrived(&world).as_deref(), Some("hellowor"), "as it comes");
        world.send(client, last.as_bytes());
        world.settle();
        check_honest("00000001", &world.clients[client].replies[0]).unwrap();
        assert_eq!(
            world.requests().next().map(|request| request.body.text()).as_deref(),
            Some("helloworld")
        );
        // The connection continues on both sides.
        world.get(client, "00000002");
        world.settle();
        check_honest("00000002", &world.clients[client].replies[1]).unwrap();
        assert_eq!(world.open_conns().len(), 1);
        world.finish();
    }
}

#[test]
fn a_route_can_have_bodies_passed_on_at_once_or_gathered() {
    let mut world = world_of(Buffering::Off);
    let client = begin(&mut world, "POST", "Content-Length: 10\r\n");
    assert_eq!(arrived(&world).as_deref(), Some(""), "its head alone");
    world.send(client, b"hello");
    world.settle();
    assert_eq!(arrived(&world).as_deref(), Some("hello"));
    world.send(client, b"world");
    world.settle();
    check_honest("00000001", &world.clients[client].replies[0]).unwrap();
    world.finish();

    let mut world = world_of(Buffering::On);
    let client = begin(&mut world, "POST", "Transfer-Encoding: chunked\r\n");
    for _ in 0..8 {
        world.send(client, b"400\r\n");
        world.send(client, &[b'x'; 1024]);
        world.send(client, b"\r\n");
        world.run_for(2 * SECOND);
        assert_eq!(arrived(&world), None);
    }
    world.send(client, b"0\r\n\r\n");
    world.settle();
    let request = world.requests().next().expect("a request");
    assert_eq!(request.fields.first("content-length"), Some("8192"));
    world.finish();
}

/// A client that waits for a response to each piece of its body gets them.
#[test]
fn both_directions_go_on_at_the_same_time() {
    for buffering in [Buffering::Auto, Buffering::Off] {
        let mut world = world_of(buffering);
        world.serve(|_| {
            Some(vec![Do::Bytes(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec())])
        });
        let client = begin(&mut world, "POST", "Transfer-Encoding: chunked\r\n");
        world.send(client, b"1\r\na\r\n");
        world.run_for(LATER);
        let conn = carrier(&world);
        for n in 0..20 {
            world.say(conn, Do::Bytes(b"1\r\nb\r\n".to_vec()));
            world.settle();
            let reply = world.clients[client].current().expect("an answer that has begun");
            assert_eq!(reply.body.length, n + 1, "{buffering:?}");
            // Longer than any time-out of clients and servers except that for a pause within a
            // response.
            world.run_for(80 * SECOND);
            world.send(client, b"1\r\na\r\n");
            world.settle();
            assert_eq!(arrived(&world).map(|body| body.len() as u64), Some(n + 2));
        }
        world.send(client, b"0\r\n\r\n");
        world.settle();
        world.say(conn, Do::Answer(b"0\r\n\r\n".to_vec()));
        world.run_for(SECOND);
        assert_eq!(world.clients[client].statuses(), [200]);
        assert_eq!(world.count(|counters| counters.timeouts.sum()), 0);
        world.finish();
    }
}

/// A stream of log lines without a length may be as slow as it likes, as long as it continues;
/// silence still ends it.
#[test]
fn a_slow_stream_is_no_slow_client() {
    let mut world = world_of(Buffering::Auto);
    let client = begin(&mut world, "PUT", "Transfer-Encoding: chunked\r\n");
    for n in 0..100 {
        world.send(client, b"2\r\nx\n\r\n");
        world.run_for(SECOND);
        assert_eq!(arrived(&world).map(|body| body.len()), Some(2 * (n + 1)));
    }
    assert!(world.clients[client].replies.is_empty());
    world.run_for(31 * SECOND);
    assert_eq!(world.clients[client].statuses(), [408]);
    assert!(world.conns[0].closed, "half a request ends its connection");
    world.finish();
}

/// The client's remaining bytes do not make its server late.
#[test]
fn a_server_is_not_waited_for_while_a_client_pauses() {
    let mut plan = buffered(Buffering::Auto);
    plan.upstreams[0].forward_timeout_us = 2 * SECOND;
    let mut world = World::started(plan, 1, 1);
    let client = begin(&mut world, "POST", "Content-Length: 10\r\n");
    world.send(client, b"hello");
    world.run_for(9 * SECOND);
    assert!(world.clients[client].replies.is_empty());
    world.send(client, b"world");
    world.settle();
    check_honest("00000001", &world.clients[client].replies[0]).unwrap();
    // From then on the server is late.
    world.serve(silent);
    let client = begin(&mut world, "POST", "Content-Length: 10\r\n");
    world.send(client, b"hello");
    world.run_for(9 * SECOND);
    world.send(client, b"world");
    world.run_for(3 * SECOND);
    assert_eq!(world.clients[client].statuses(), [504]);
    world.finish();
}

// ---- requests that were passed on in part, and sent again ----

/// Loses the connection of a request that was passed on in part, after `pieces`; returns the
/// statuses of its client when it has sent the rest.
fn lose(method: &str, first: usize, pieces: &[usize]) -> (Vec<u16>, usize) {
    let mut two = buffered(Buffering::Auto);
    two.upstreams = plan(1, 2).upstreams;
    let mut world = World::started(two, 1, 1);
    let total: usize = first + pieces.iter().sum::<usize>() + 5;
    let client = begin(&mut world, method, &format!("Content-Length: {total}\r\n"));
    world.send(client, &vec![b'x'; first]);
    world.run_for(LATER);
    for piece in pieces {
        world.send(client, &vec![b'x'; *piece]);
        world.settle();
    }
    let conn = carrier(&world);
    world.cut(conn, Do::Rst);
    world.run_for(SECOND);
    world.send(client, b"xxxxx");
    world.run_for(5 * SECOND);
    let whole = world.requests().filter(|request| request.body.length == total as u64).count();
    let statuses = world.clients[client].statuses();
    world.finish();
    (statuses, whole)
}

#[test]
fn what_is_kept_of_a_body_is_sent_again() {
    assert_eq!(lose("PUT", 5, &[]), (vec![200], 1));
    assert_eq!(lose("PUT", 5, &[10, 1000, 30_000]), (vec![200], 1), "pieces that are kept");
    assert_eq!(lose("PUT", 5, &[70_000, 70_000]), (vec![502], 0), "more than is kept");
    assert_eq!(lose("PUT", 150_000, &[10]), (vec![502], 0), "the same at once");
    assert_eq!(lose("POST", 5, &[]), (vec![502], 0), "it may have reached its server");
    assert_eq!(lose("POST", 5, &[10]), (vec![502], 0));
}

/// The part of a response that a client has received cannot be repeated, so neither can its
/// request.
#[test]
fn a_body_is_not_sent_again_behind_the_beginning_of_an_answer() {
    let mut world = world_of(Buffering::Auto);
    world.serve(|_| {
        Some(vec![Do::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc".to_vec())])
    });
    let client = begin(&mut world, "PUT", "Content-Length: 10\r\n");
    world.run_for(LATER);
    let conn = carrier(&world);
    world.cut(conn, Do::Rst);
    world.run_for(3 * SECOND);
    assert!(world.clients[client].closed);
    assert_eq!(world.conns.iter().map(|conn| conn.requests.len()).sum::<usize>(), 0);
    assert!(world.clients[client].replies.is_empty(), "half an answer is none");
}

// ---- Expect ----

const EXPECT: &str = "Content-Length: 5\r\nExpect: 100-continue\r\n";
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

#[test]
fn a16_the_server_says_whether_it_wants_the_body() {
    for buffering in [Buffering::Auto, Buffering::Off] {
        let mut world = world_of(buffering);
        let client = begin(&mut world, "PUT", EXPECT);
        assert_eq!(arrived(&world).as_deref(), Some(""), "its head, at once");
        let conn = carrier(&world);
        let head = world.conns[conn].judge.current().expect("a request");
        assert_eq!(head.fields.first("expect"), Some("100-continue"));
        assert!(world.clients[client].interim().is_empty(), "nobody has said so yet");
        // Twice, as careless servers do: the client gets one.
        world.say(conn, Do::Bytes([CONTINUE, CONTINUE].concat()));
        world.settle();
        assert_eq!(world.clients[client].interim(), [100]);
        world.send(client, b"hello");
        world.settle();
        check_honest("00000001", &world.clients[client].replies[0]).unwrap();
        assert_eq!(
            world.requests().next().map(|request| request.body.text()).as_deref(),
            Some("hello")
        );
        assert_eq!(
            world.count(|counters| counters.upstream_glitches.iter().map(|n| n.get()).sum()),
            0
        );
        world.get(client, "00000002");
        world.settle();
        check_honest("00000002", &world.clients[client].replies[1]).unwrap();
        assert_eq!(world.open_conns(), [conn], "both connections go on");
        world.finish();
    }
}

/// A final response in place of 100 reaches the client; nothing of the body is read, and the
/// connection that waits for it is not used again, without a doubt about its server.
#[test]
fn a16_a_server_that_declines_is_heard_first() {
    for (status, closes) in [(401, ""), (413, "Connection: close\r\n"), (417, ""), (200, "")] {
        let mut world = world_of(Buffering::Auto);
        let text = format!("HTTP/1.1 {status} No\r\n{closes}Content-Length: 3\r\n\r\nno\n");
        world.serve(move |_| Some(vec![Do::Answer(text.clone().into_bytes())]));
        let client = begin(&mut world, "PUT", EXPECT);
        world.settle();
        assert_eq!(world.clients[client].statuses(), [status]);
        let reply = &world.clients[client].replies[0];
        assert!(reply.closes && reply.interim.is_empty());
        assert!(world.conns[0].closed, "{status}");
        assert_eq!(world.count(|counters| counters.doubts.iter().map(|n| n.get()).sum()), 0);
        // Bytes that arrive all the same are no request.
        world.send(client, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        world.run_for(5 * SECOND);
        assert_eq!(world.clients[client].replies.len(), 1);
        assert!(world.clients[client].closed);
        world.finish();
    }
}

/// A server that ignores expectations gets the body after a second: weir invites it from the
/// client.
#[test]
fn a16_a_server_that_says_nothing_has_a_second() {
    let mut world = world_of(Buffering::Auto);
    let client = begin(&mut world, "POST", EXPECT);
    world.run_for(SECOND - 20_000);
    assert!(world.clients[client].interim().is_empty());
    world.run_for(40_000);
    assert_eq!(world.clients[client].interim(), [100]);
    // A late one is not passed on a second time.
    let conn = carrier(&world);
    world.say(conn, Do::Bytes(CONTINUE.to_vec()));
    world.settle();
    world.send(client, b"hello");
    world.settle();
    check_honest("00000001", &world.clients[client].replies[0]).unwrap();
    assert_eq!(world.clients[client].replies[0].interim, [100]);
    world.finish();
}

/// The second starts when the server has the request, and again when another one has it; behind a
/// response that has begun nothing is sent.
#[test]
fn a16_the_second_is_that_of_the_server_that_has_the_request() {
    let mut world = world_of(Buffering::Auto);
    let client = begin(&mut world, "PUT", EXPECT);
    world.run_for(SECOND / 2);
    let conn = carrier(&world);
    world.cut(conn, Do::Rst);
    world.run_for(SECOND * 6 / 10);
    assert!(world.clients[client].interim().is_empty(), "it has been asked of another connection");
    assert_ne!(carrier(&world), conn);
    world.run_for(SECOND);
    assert_eq!(world.clients[client].interim(), [100]);
    world.send(client, b"hello");
    world.settle();
    check_honest("00000001", &world.clients[client].replies[0]).unwrap();
    world.finish();

    let mut world = world_of(Buffering::Auto);
    world.serve(|_| {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n".to_vec();
        Some(vec![Do::Bytes(head), Do::Delay(3 * SECOND), Do::Answer(b"abc".to_vec())])
    });
    let client = begin(&mut world, "PUT", EXPECT);
    world.run_for(4 * SECOND);
    assert_eq!(world.clients[client].statuses(), [200]);
    assert!(world.clients[client].replies[0].interim.is_empty());
    world.finish();
}

/// Behind a response that is still being sent the server's decision waits for its turn.
#[test]
fn a16_the_word_of_the_server_keeps_the_order() {
    let mut two = buffered(Buffering::Auto);
    two.upstreams = plan(1, 2).upstreams;
    let mut world = World::started(two, 1, 1);
    world.serve(|seen| {
        if seen.request.method == "GET" {
            return Some([Do::Delay(SECOND / 2)].into_iter().chain(honest(seen)?).collect());
        }
        if seen.complete { honest(seen) } else { None }
    });
    let client = world.client();
    world.get(client, "00000009");
    world.expect(client, "PUT", false, false);
    world.send(client, format!("PUT /p?n=00000001 HTTP/1.1\r\nHost: a\r\n{EXPECT}\r\n").as_bytes());
    world.settle();
    let conn = carrier(&world);
    world.say(conn, Do::Bytes(CONTINUE.to_vec()));
    world.settle();
    assert!(world.clients[client].interim().is_empty());
    world.run_for(SECOND * 6 / 10);
    assert_eq!(world.clients[client].interim(), [100]);
    world.send(client, b"hello");
    world.settle();
    check_honest("00000009", &world.clients[client].replies[0]).unwrap();
    check_honest("00000001", &world.clients[client].replies[1]).unwrap();
    world.finish();
}

/// A client that does not wait: its bytes are held back until the server wants them, and not lost.
#[test]
fn a16_a_client_that_gives_up_waiting() {
    let mut world = world_of(Buffering::Auto);
    let client = begin(&mut world, "PUT", EXPECT);
    world.run_for(SECOND / 4);
    world.send_late(client, b"hello");
    world.run_for(SECOND / 4);
    assert_eq!(arrived(&world).as_deref(), Some(""));
    let conn = carrier(&world);
    world.say(conn, Do::Bytes(CONTINUE.to_vec()));
    world.settle();
    check_honest("00000001", &world.clients[client].replies[0]).unwrap();
    world.finish();
}

/// If weir gathers bodies, weir invites them.
#[test]
fn a16_weir_answers_where_it_gathers() {
    let mut world = world_of(Buffering::On);
    let client = begin(&mut world, "PUT", EXPECT);
    assert_eq!(world.clients[client].interim(), [100]);
    assert_eq!(arrived(&world), None);
    world.send(client, b"hello");
    world.settle();
    check_honest("00000001", &world.clients[client].replies[0]).unwrap();
    assert!(world.requests().all(|request| !request.fields.has("expect")));
    world.finish();
}

// ---- other workers, and HTTP/2 ----

/// Likewise for a client whose worker has no connection of its own: pieces, responses and decisions
/// travel.
#[test]
fn bodies_go_to_connections_of_other_workers() {
    for expects in [false, true] {
        let mut world = World::started(plan(1, 1), 2, 1);
        let other = (0..2)
            .find(|node| world.conns.iter().all(|conn| !conn.is_open() || conn.node != *node));
        let client = world.client_of(other.expect("a worker without a connection"));
        world.expect(client, "PUT", false, false);
        let fields = if expects { EXPECT } else { "Content-Length: 5\r\n" };
        world.send(
            client,
            format!("PUT /p?n=00000001 HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes(),
        );
        world.run_for(LATER);
        assert_eq!(arrived(&world).as_deref(), Some(""));
        if expects {
            let conn = carrier(&world);
            world.say(conn, Do::Bytes(CONTINUE.to_vec()));
            world.settle();
            assert_eq!(world.clients[client].interim(), [100]);
        }
        for piece in [&b"he"[..], b"llo"] {
            world.send(client, piece);
            world.run_for(SECOND);
        }
        check_honest("00000001", &world.clients[client].replies[0]).unwrap();
        assert_eq!(
            world.requests().next().map(|request| request.body.text()).as_deref(),
            Some("hello")
        );
        world.finish();
    }
}

/// Begins a request with a body on the first stream of a new client.
fn open(world: &mut World, fields: &[(&str, &str)]) -> usize {
    let client = world.http2_client(0, 1 << 20);
    world.open_head(client, 1, ("PUT", "/p?n=00000001"), fields, false);
    world.settle();
    client
}

#[test]
fn streams_of_http2_go_on_both_ways() {
    let mut world = world_of(Buffering::Auto);
    world.serve(|_| {
        Some(vec![Do::Bytes(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec())])
    });
    let client = open(&mut world, &[]);
    world.send(client, &frame(DATA, 0, 1, b"a"));
    world.run_for(SOON);
    assert_eq!(arrived(&world), None);
    world.run_for(LATER - SOON);
    assert_eq!(arrived(&world).as_deref(), Some("a"));
    let conn = carrier(&world);
    for n in 1..20 {
        world.say(conn, Do::Bytes(b"1\r\nb\r\n".to_vec()));
        world.settle();
        assert_eq!(world.stream_bytes(client, 1), Some(n));
        world.run_for(80 * SECOND);
        world.send(client, &frame(DATA, 0, 1, b"a"));
        world.settle();
        assert_eq!(arrived(&world).map(|body| body.len() as u64), Some(n + 1));
    }
    world.send(client, &frame(DATA, END_STREAM, 1, b""));
    world.say(conn, Do::Answer(b"0\r\n\r\n".to_vec()));
    world.settle();
    assert_eq!(
        world.stream_reply(client, 1).map(|reply| (reply.status, reply.body.length)),
        Some((200, 19))
    );
    world.finish();
}

#[test]
fn streams_of_http2_are_told_what_the_server_says() {
    for (answers, status) in [
        (CONTINUE, 200),
        (&b"HTTP/1.1 401 No\r\nContent-Length: 3\r\n\r\nno\n"[..], 401),
        (b"", 200),
    ] {
        let mut world = world_of(Buffering::Auto);
        let client = open(&mut world, &[("expect", "100-continue"), ("content-length", "5")]);
        assert_eq!(arrived(&world).as_deref(), Some(""));
        let conn = carrier(&world);
        let said =
            if status == 401 { Do::Answer(answers.to_vec()) } else { Do::Bytes(answers.to_vec()) };
        world.say(conn, said);
        world.run_for(if answers.is_empty() { SECOND + LATER } else { 0 });
        if status == 200 {
            world.send(client, &frame(DATA, END_STREAM, 1, b"hello"));
        }
        world.settle();
        let reply = world.stream_reply(client, 1).expect("an answer");
        let interim: &[u16] = if status == 200 { &[100] } else { &[] };
        assert_eq!((reply.status, &reply.interim[..]), (status, interim));
        assert_eq!(world.conns[conn].closed, status == 401);
        world.finish();
    }
}

/// A stream whose body arrives without an invitation, together with its end.
#[test]
fn a_stream_that_does_not_wait_keeps_its_body_back() {
    let mut world = world_of(Buffering::Auto);
    let client = open(&mut world, &[("expect", "100-continue")]);
    world.run_for(LATER);
    world.send(client, &frame(DATA, END_STREAM, 1, b"hello"));
    world.settle();
    assert_eq!(arrived(&world).as_deref(), Some(""));
    let conn = carrier(&world);
    world.say(conn, Do::Bytes(CONTINUE.to_vec()));
    world.settle();
    assert_eq!(world.stream_reply(client, 1).map(|reply| reply.status), Some(200));
    assert_eq!(
        world.requests().next().map(|request| request.body.text()).as_deref(),
        Some("hello")
    );
    world.finish();
}
