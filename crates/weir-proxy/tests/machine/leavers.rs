//! Proves: a server hears at once that a waiting client has left, however the client left and
//! wherever the connection is; unsent requests are not sent any more; no other client suffers. A
//! client that only ends its sending direction gets responses that come without a pause, or all
//! where that is configured (docs/retries.md). How: servers that respond late or never, and
//! clients that leave by a reset, a FIN, RST_STREAM, GOAWAY and the end of a connection of HTTP/2.

use weir_check::streams::{frame, kind};
use weir_proxy::plan::{ClientPlan, PipelineMode, Plan};

use crate::world::{Do, World, answer, plan};

const SECOND_US: u64 = 1_000_000;
/// By then a server knows it.
const SOON_US: u64 = 200_000;

/// A response that begins and has no end.
const STREAM: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n\
        one\r\n";

/// How a client leaves.
#[derive(Debug, Clone, Copy)]
enum Leave {
    Reset,
    End,
}

fn leave(world: &mut World, client: usize, how: Leave) {
    match how {
        Leave::Reset => world.reset(client),
        Leave::End => world.half_close(client),
    }
}

/// Responses that never come, that begin, and that have much left.
fn silences() -> [(&'static str, Vec<Do>); 3] {
    let large = b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\nabc".to_vec();
    [
        ("nothing", vec![Do::Silence]),
        ("a stream", vec![Do::Bytes(STREAM.to_vec()), Do::Silence]),
        ("a large one", vec![Do::Bytes(large), Do::Silence]),
    ]
}

#[test]
fn a_server_hears_that_a_client_has_left() {
    for (what, silence) in silences() {
        for how in [Leave::Reset, Leave::End] {
            // Of two workers one has the only connection.
            for (workers, node) in [(1, 0), (2, 0), (2, 1)] {
                let mut world = World::started(plan(1, 1), workers, 1);
                let silence = silence.clone();
                world.serve(move |_| Some(silence.clone()));
                let client = world.client_of(node);
                world.get(client, "00000001");
                world.run_for(SECOND_US);
                assert!(world.conns[0].is_open(), "{what}");
                leave(&mut world, client, how);
                world.run_for(SOON_US);
                assert!(
                    world.conns[0].closed,
                    "{what}, {how:?}, {workers} workers, client of {node}"
                );
                world.run_for(120 * SECOND_US);
                assert_eq!(world.requests().count(), 1, "nothing is repeated");
                world.finish();
            }
        }
    }
}

#[test]
fn a_server_hears_that_a_stream_or_its_connection_has_ended() {
    let goaway =
        |code: u32| frame(kind::GOAWAY, 0, 0, &[0u32.to_be_bytes(), code.to_be_bytes()].concat());
    for (what, silence) in silences() {
        for how in ["RST_STREAM", "FIN", "reset", "GOAWAY", "error"] {
            let mut world = World::started(plan(1, 1), 1, 1);
            let silence = silence.clone();
            world.serve(move |_| Some(silence.clone()));
            let client = world.http2_client(0, 65_535);
            world.open(client, 1, "/v?n=00000001");
            world.run_for(SECOND_US);
            match how {
                "RST_STREAM" => world.reset_stream(client, 1),
                "FIN" => world.half_close(client),
                "reset" => world.reset(client),
                "GOAWAY" => world.send(client, &goaway(0)),
                _ => world.send(client, &goaway(2)),
            }
            world.run_for(SOON_US);
            // In order, requests in progress continue (RFC 9113 §6.8).
            assert_eq!(world.conns[0].closed, how != "GOAWAY", "{what}, {how}");
            if how == "GOAWAY" {
                world.half_close(client);
                world.run_for(SOON_US);
                assert!(world.conns[0].closed, "{what}, {how} and FIN");
            }
            world.finish();
        }
    }
}

/// A reset stream counts until its server has heard of it, and not longer.
#[test]
fn streams_that_were_given_up_make_room() {
    let mut world = World::simple(8);
    world.serve(|_| Some(vec![Do::Silence]));
    let client = world.http2_client(0, 65_535);
    for stream in (1..17).step_by(2) {
        world.open(client, stream, &format!("/v?n={stream:08}"));
        world.settle();
        world.reset_stream(client, stream);
    }
    world.run_for(SOON_US);
    assert_eq!(world.nodes[0].engine.exchanges(), 0);
    assert!(world.conns.iter().filter(|conn| !conn.requests.is_empty()).all(|conn| conn.closed));
    world.finish();
}

/// Waiting requests, and those on a connection that has sent nothing of them: the server never sees
/// them.
#[test]
fn what_was_not_sent_is_dropped() {
    for how in [Leave::Reset, Leave::End] {
        let mut world = World::started(plan(1, 1), 1, 1);
        world.serve(|seen| Some(vec![Do::Delay(SECOND_US), Do::Answer(answer(seen.request))]));
        let (first, second, third) = (world.client(), world.client(), world.client());
        world.get(first, "00000001");
        world.settle();
        world.get(second, "00000002");
        world.get(third, "00000003");
        world.settle();
        leave(&mut world, second, how);
        world.run_for(4 * SECOND_US);
        assert_eq!((world.times_served("00000001"), world.times_served("00000003")), (1, 1));
        assert_eq!(world.times_served("00000002"), 0, "{how:?}");
        assert_eq!(world.clients[third].statuses(), [200]);
        world.finish();
    }
    // A request and the reset behind it come together.
    let mut world = World::started(plan(1, 1), 1, 1);
    let (client, other) = (world.client(), world.client());
    world.get(other, "00000001");
    world.settle();
    world.send(client, b"GET /v?n=00000002 HTTP/1.1\r\nHost: a\r\n\r\n");
    world.reset_behind(client);
    world.run_for(SOON_US);
    world.get(other, "00000003");
    world.run_for(SOON_US);
    assert_eq!(
        (world.times_served("00000002"), world.clients[other].statuses()),
        (0, vec![200; 2])
    );
    assert_eq!(
        world.count(|counters| counters.upstream_connects.get()),
        1,
        "its connection goes on"
    );
    world.finish();
}

/// Many clients that leave delay no other: neither requests that wait with them, nor a newcomer.
#[test]
fn many_that_leave_hold_up_nobody() {
    for how in [Leave::Reset, Leave::End] {
        let mut few = plan(1, 8);
        few.upstreams[0].servers[0].connections_min = 1;
        few.upstreams[0].servers[0].connections_max = 16;
        let mut world = World::started(few, 1, 1);
        world.serve(|seen| match seen.request.nonce().starts_with('a') {
            true => Some(vec![Do::Bytes(STREAM.to_vec()), Do::Silence]),
            false => Some(vec![Do::Answer(answer(seen.request))]),
        });
        let leavers: Vec<usize> = (0..100).map(|_| world.client()).collect();
        for (at, leaver) in leavers.iter().enumerate() {
            world.get(*leaver, &format!("a{at:07}"));
        }
        world.run_for(SECOND_US);
        leavers.iter().for_each(|leaver| leave(&mut world, *leaver, how));
        world.run_for(SOON_US);
        let other = world.client();
        world.get(other, "00000001");
        world.run_for(SOON_US);
        assert_eq!(world.clients[other].statuses(), [200], "{how:?}");
        assert_eq!(world.count(|counters| counters.queue_waiting.get()), 0);
        world.finish();
    }
}

/// Other clients' requests behind the response of a client that has left are answered, each once.
#[test]
fn others_behind_it_move_away() {
    let mut deep = plan(1, 2);
    deep.upstreams[0].pipeline = PipelineMode::Depth(16);
    let mut world = World::started(deep, 1, 1);
    // Trust is earned over both connections.
    let warm = [world.client(), world.client()];
    for n in 0..100 {
        warm.iter().enumerate().for_each(|(at, client)| world.get(*client, &format!("{at}{n:07}")));
        world.settle();
    }
    // A request behind the stream of events waits for it.
    let mut held = None;
    world.serve(move |seen| {
        if seen.request.nonce().starts_with('a') {
            held = Some(seen.conn);
            return Some(vec![Do::Bytes(STREAM.to_vec()), Do::Silence]);
        }
        (held != Some(seen.conn)).then(|| vec![Do::Answer(answer(seen.request))])
    });
    let (leaver, others) = (world.client(), [world.client(), world.client(), world.client()]);
    world.get(leaver, "a0000001");
    for (at, other) in others.iter().enumerate() {
        world.get(*other, &format!("b{at:07}"));
    }
    world.settle();
    let carrier = world.seen_by("a0000001")[0];
    assert!(
        world.conns[carrier].requests.iter().any(|request| request.nonce().starts_with('b')),
        "nobody is behind"
    );
    world.reset(leaver);
    world.run_for(2 * SECOND_US);
    for other in others {
        assert_eq!(world.clients[other].statuses(), [200]);
    }
    assert!(world.conns[carrier].closed);
    assert_eq!(world.times_served("a0000001"), 1, "what nobody wants is not asked again");
    world.finish();
}

/// A client that ends its sending direction has all responses that come without a pause; or waits
/// as long as any other, where that is configured.
#[test]
fn a_half_closed_client_has_what_comes() {
    let pieces = |pause_us: u64| {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n".to_vec();
        let mut script = vec![Do::Bytes(head)];
        for _ in 0..3 {
            script.extend([Do::Delay(pause_us), Do::Bytes(b"0123456789".to_vec())]);
        }
        script.extend([Do::Delay(pause_us), Do::Answer(b"0123456789".to_vec())]);
        script
    };
    for (serves_half_closed, pause_us, is_whole) in
        [(false, 60_000, true), (false, 500_000, false), (true, 500_000, true)]
    {
        let client = ClientPlan { serves_half_closed, ..ClientPlan::default() };
        let mut world = World::started(Plan { client, ..plan(1, 1) }, 1, 1);
        world.serve(move |_| Some(pieces(pause_us)));
        let client = world.client();
        world.get(client, "00000001");
        world.half_close(client);
        world.run_for(10 * SECOND_US);
        let machine = &world.clients[client];
        assert_eq!(
            (machine.statuses(), machine.closed),
            (if is_whole { vec![200] } else { vec![] }, true)
        );
        assert_eq!(
            machine.was_reset, !is_whole,
            "what it has of an answer must not look like all of it"
        );
        world.finish();
    }
}

/// Requests that a client has sent behind long responses are answered as long as these continue.
#[test]
fn a_half_closed_pipeline_is_answered_while_answers_come() {
    let mut world = World::simple(4);
    world.serve(|seen| Some(vec![Do::Delay(60_000), Do::Answer(answer(seen.request))]));
    let client = world.client();
    for n in 0..100 {
        world.get(client, &format!("{n:08}"));
    }
    world.half_close(client);
    world.run_for(20 * SECOND_US);
    assert_eq!((world.clients[client].replies.len(), world.clients[client].closed), (100, true));
    world.finish();
}

/// A client that is not read, because it has sent too much, is seen to leave all the same; its
/// unparsed requests are never sent.
#[test]
fn a_client_that_is_not_read_is_seen_to_leave() {
    for how in [Leave::Reset, Leave::End] {
        let client = ClientPlan { requests_queued_max: 2, ..ClientPlan::default() };
        let mut world = World::started(Plan { client, ..plan(1, 4) }, 1, 1);
        world.serve(|_| Some(vec![Do::Silence]));
        let client = world.client();
        for n in 0..20 {
            world.get(client, &format!("{n:08}"));
        }
        world.run_for(SECOND_US);
        assert!(world.clients[client].unread() > 0, "it is not read");
        match how {
            Leave::Reset => world.reset_behind(client),
            Leave::End => world.half_close(client),
        }
        world.run_for(SECOND_US);
        assert!(world.clients[client].closed, "{how:?}");
        assert_eq!((world.requests().count(), world.nodes[0].engine.exchanges()), (2, 0));
        assert!(
            world.conns.iter().filter(|conn| !conn.requests.is_empty()).all(|conn| conn.closed)
        );
        world.finish();
    }
}

/// A request that is cancelled as its connection was to run empty leaves a usable connection.
#[test]
fn what_is_taken_back_at_a_sync_point_stops_nothing() {
    let mut fixed = plan(1, 1);
    fixed.upstreams[0].pipeline = PipelineMode::Depth(16);
    let mut world = World::started(fixed, 1, 1);
    world.serve(|seen| Some(vec![Do::Delay(2_000), Do::Answer(answer(seen.request))]));
    let client = world.client();
    for n in 0..100 {
        world.get(client, &format!("a{n:07}"));
        world.run_for(2_000);
        let leaver = world.client();
        world.send(leaver, format!("GET /v?n=b{n:07} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        world.reset_behind(leaver);
        world.settle();
    }
    world.run_for(SECOND_US);
    assert_eq!(world.clients[client].statuses(), [200; 100]);
    assert!(world.count(|counters| counters.sync_points.get()) > 0);
    assert!(
        world.requests().all(|request| request.nonce().starts_with('a')),
        "nobody wants the others"
    );
    world.finish();
}

/// A client that waits for a connection and leaves takes from no other the chance that another
/// connection is made.
#[test]
fn one_that_waited_and_left_stops_no_growth() {
    let mut few = plan(1, 1);
    few.upstreams[0].servers[0].connections_max = 4;
    few.upstreams[0].pipeline = PipelineMode::Depth(16);
    let mut world = World::started(few, 1, 1);
    world.serve(|seen| match seen.request.nonce().starts_with('a') {
        true => Some(vec![Do::Bytes(STREAM.to_vec()), Do::Silence]),
        false => Some(vec![Do::Answer(answer(seen.request))]),
    });
    let (stream, leaver, other) = (world.client(), world.client(), world.client());
    world.get(stream, "a0000001");
    world.settle();
    world.get(leaver, "b0000001");
    world.settle();
    world.reset(leaver);
    world.run_for(5 * SECOND_US);
    world.get(other, "b0000002");
    world.run_for(3 * SECOND_US);
    assert_eq!(world.clients[other].statuses(), [200]);
    assert_eq!(world.times_served("b0000001"), 0);
    world.finish();
}

/// Streams that were reset behind an endless response count only until that is known to be endless.
#[test]
fn streams_reset_behind_an_endless_answer_make_room() {
    let mut deep = plan(1, 2);
    deep.upstreams[0].pipeline = PipelineMode::Depth(16);
    let mut world = World::started(deep, 1, 1);
    let warm = [world.client(), world.client()];
    for n in 0..100 {
        warm.iter().enumerate().for_each(|(at, client)| world.get(*client, &format!("{at}{n:07}")));
        world.settle();
    }
    let mut held = None;
    world.serve(move |seen| {
        if seen.request.nonce().starts_with('a') {
            held = Some(seen.conn);
            return Some(vec![Do::Bytes(STREAM.to_vec()), Do::Silence]);
        }
        (held != Some(seen.conn)).then(|| vec![Do::Answer(answer(seen.request))])
    });
    let (first, second) = (world.client(), world.http2_client(0, 65_535));
    world.settle();
    world.get(first, "a0000001");
    let streams = (1..20).step_by(2);
    streams.clone().for_each(|stream| world.open(second, stream, &format!("/v?n=b{stream:07}")));
    world.settle();
    let carrier = world.seen_by("a0000001")[0];
    assert!(
        world.conns[carrier].requests.iter().any(|request| request.nonce().starts_with('b')),
        "nobody is behind"
    );
    streams.for_each(|stream| world.reset_stream(second, stream));
    world.run_for(3 * SECOND_US);
    assert_eq!(world.nodes[0].engine.exchanges(), 1, "only the answer without an end");
    assert!(world.conns[carrier].is_open(), "it goes on");
    world.finish();
}

/// A half-closed client has left when it has everything that is available for it, and not while the
/// kernel still has some of it.
#[test]
fn a_half_closed_client_that_takes_something_has_not_left() {
    let mut world = World::started(plan(1, 1), 1, 1);
    let pause_us = 2 * SECOND_US;
    world.serve(move |_| {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n0123456789".to_vec();
        Some(vec![Do::Bytes(head), Do::Delay(pause_us), Do::Answer(b"0123456789".to_vec())])
    });
    for (is_taking, statuses) in [(true, vec![200]), (false, vec![])] {
        let client = world.client();
        (world.clients[client].is_taking, world.clients[client].acked) = (is_taking, Some(0));
        world.get(client, "00000001");
        world.half_close(client);
        world.run_for(pause_us + SECOND_US);
        assert_eq!(world.clients[client].statuses(), statuses);
        assert_eq!(world.clients[client].was_reset, !is_taking);
    }
    world.finish();
}

/// A client that takes nothing of the kernel's bytes for it has left after `send-timeout`.
#[test]
fn a_half_closed_client_that_takes_nothing_leaves() {
    let mut world = World::started(plan(1, 1), 1, 1);
    world.serve(|_| Some(vec![Do::Bytes(STREAM.to_vec()), Do::Silence]));
    let client = world.client();
    (world.clients[client].is_taking, world.clients[client].acked) = (true, Some(10));
    world.get(client, "00000001");
    world.half_close(client);
    world.run_for(55 * SECOND_US);
    assert!(!world.clients[client].closed);
    world.run_for(10 * SECOND_US);
    assert!(world.clients[client].closed && world.clients[client].was_reset);
    world.finish();
}
