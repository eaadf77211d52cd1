//! Proves: a large response that is compressed is encoded on another thread while others are
//! served, and arrives in order, with its trailers, to its end. The wait for that stops its server;
//! a client that waits is not slow. A result for a client or a machine that is gone is dropped, and
//! its memory is free. How: jobs that remain undone until the test wants them done.
//! docs/compression.md.

use weir_check::End;

use crate::compress::{compressing, decoded};
use crate::world::{Do, World};

/// Bytes of a large response.
const LARGE: usize = 100_000;
/// Longer than any time-out.
const LONG_US: u64 = 300_000_000;
const MEMORY: u64 = 128 << 20;
const GZIP: &str = "Accept-Encoding: gzip\r\nTE: trailers\r\n";

/// Text that can be compressed, but not to nothing.
fn text(bytes: usize) -> Vec<u8> {
    let lines = (0_u32..)
        .flat_map(|n| format!("line {n}: {:08x}\n", n.wrapping_mul(2_654_435_761)).into_bytes());
    lines.take(bytes).collect()
}

fn head(framing: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n{framing}\r\n\r\n").into_bytes()
}

fn message(content: &[u8]) -> Vec<u8> {
    [head(&format!("Content-Length: {}", content.len())), content.to_vec()].concat()
}

/// A world whose server responds by the name of the request: this many bytes; `dies` half of a
/// large response; `chunks` chunks and a trailer.
fn world(bytes_max: u64) -> World {
    let mut plan = compressing(bytes_max);
    plan.upstreams[0].answer_timeout_us = 60_000_000;
    let mut world = World::started(plan, 1, 1);
    world.encodes_elsewhere = true;
    world.serve(|seen| {
        let script = match seen.request.nonce() {
            "dies" => vec![
                Do::Bytes(message(&text(LARGE))[..LARGE / 2].to_vec()),
                Do::Delay(1_000_000),
                Do::Rst,
            ],
            "chunks" => {
                let mut message = head("Transfer-Encoding: chunked");
                for chunk in text(LARGE).chunks(9_999) {
                    message.extend(
                        [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat(),
                    );
                }
                message.extend(b"0\r\nDigest: no\r\nGrade: A\r\n\r\n");
                vec![Do::Answer(message)]
            }
            bytes => vec![Do::Answer(message(&text(bytes.parse().expect("a number"))))],
        };
        seen.complete.then_some(script)
    });
    world
}

fn get(world: &mut World, client: usize, name: &str) {
    world.ask(client, "GET", &format!("/v?n={name}"), GZIP);
}

/// Returns the responses of a client, decoded.
fn answers(world: &World, client: usize) -> Vec<usize> {
    let length = |reply: &weir_check::Reply| {
        let (bytes, is_whole) = decoded(reply);
        assert!(is_whole && bytes == text(bytes.len()), "not what was sent");
        bytes.len()
    };
    world.clients[client].replies.iter().map(length).collect()
}

#[test]
fn a_large_answer_is_away_while_others_are_served() {
    let mut world = world(MEMORY);
    let (client, other) = (world.client(), world.client());
    for bytes in ["2000", "100000", "3000", "70000", "4000"] {
        get(&mut world, client, bytes);
    }
    world.run_for(1_000);
    assert_eq!(answers(&world, client), [2000], "behind it everything waits");
    assert!(world.clients[client].current().is_some(), "its head is there");
    assert_eq!(world.count(|counters| counters.compressions_away.get()), world.jobs.len() as u64);
    get(&mut world, other, "5000");
    world.run_for(1_000);
    assert_eq!(answers(&world, other), [5000]);
    // The later one is done first, and waits.
    world.jobs.make_contiguous().reverse();
    world.encode();
    world.settle();
    assert_eq!(answers(&world, client), [2000]);
    world.encode_all();
    assert_eq!(answers(&world, client), [2000, 100_000, 3000, 70_000, 4000]);
    assert_eq!(world.count(|counters| counters.compression_bytes_in.get()), 184_000);
    world.finish();
}

#[test]
fn trailers_come_behind_all_of_it() {
    let mut world = world(MEMORY);
    let client = world.client();
    get(&mut world, client, "chunks");
    world.run_for(1_000);
    assert!(!world.jobs.is_empty() && world.clients[client].replies.is_empty());
    world.encode_all();
    assert_eq!(answers(&world, client), [LARGE]);
    let trailers = &world.clients[client].replies[0].trailers;
    assert_eq!((trailers.first("grade"), trailers.has("digest")), (Some("A"), false));
    world.finish();
}

#[test]
fn what_waits_stops_the_server() {
    for is_shared in [true, false] {
        let mut world = world(MEMORY);
        world.shared = is_shared;
        world.cut_upstream = crate::world::Cut::Each(60_000);
        let client = world.client();
        get(&mut world, client, "2000000");
        world.run_for(LONG_US);
        let unread =
            |world: &World| world.conns.iter().map(crate::world::Conn::unread).sum::<usize>();
        assert!(unread(&world) > 1_700_000, "{} unread", unread(&world));
        assert_eq!(world.jobs.len(), 1, "one at a time");
        world.nodes[0].engine.audit_bytes().expect("bounded");
        world.encode();
        world.settle();
        assert!(unread(&world) < 1_850_000 && !world.clients[client].closed);
        // A client that takes nothing stops it as well.
        world.stall(client, true);
        world.encode_all();
        assert!(unread(&world) > 100_000, "{} unread", unread(&world));
        world.stall(client, false);
        world.settle();
        world.encode_all();
        assert_eq!((answers(&world, client), unread(&world)), (vec![2_000_000], 0));
        world.finish();
    }
}

#[test]
fn nobody_is_slow_while_encoders_are() {
    let mut world = world(MEMORY);
    world.serve(|seen| {
        let message = message(&text(LARGE));
        let (first, rest) = message.split_at(LARGE / 2);
        seen.complete
            .then(|| vec![Do::Bytes(first.to_vec()), Do::Delay(LONG_US), Do::Answer(rest.to_vec())])
    });
    let client = world.client();
    get(&mut world, client, "1");
    world.run_for(LONG_US - 10_000_000);
    assert_eq!((world.jobs.len(), world.clients[client].closed), (1, false));
    world.encode();
    // From here on the server is late.
    world.run_for(11_000_000);
    world.encode();
    world.settle();
    assert_eq!(answers(&world, client), [LARGE]);
    // A stalled server's response is truncated.
    let late = world.client();
    get(&mut world, late, "1");
    world.run_for(1_000_000);
    world.encode();
    world.run_for(LONG_US - 2_000_000);
    assert!(world.clients[late].closed);
    assert_eq!(world.count(|counters| counters.timeouts.get("answer")), 1);
    world.finish();
}

/// Memory for one encoder: another one can exist only when that is given back.
#[test]
fn what_comes_back_late_is_for_nobody_and_frees_its_memory() {
    for ends_by in ["client", "server", "rebirth"] {
        let mut world = world(500 << 10);
        let client = world.client();
        get(&mut world, client, if ends_by == "server" { "dies" } else { "100000" });
        world.run_for(1_000);
        assert_eq!(world.jobs.len(), 1);
        let (_, job) = world.jobs.pop_front().expect("a job");
        match ends_by {
            "client" => world.reset(client),
            "server" => world.run_for(2_000_000),
            _ => world.begin_anew(0),
        }
        world.settle();
        if let Some(End::Truncated(Some(reply))) = &world.clients[client].end {
            assert_eq!(decoded(reply).0.len(), 0, "it was away");
        } else {
            assert_eq!(ends_by, "client");
        }
        world.run_for(1_000_000);
        let other = world.client();
        get(&mut world, other, "2000");
        world.run_for(1_000_000);
        let is_coded = |world: &World, at: usize| {
            world.clients[other].replies[at].fields.has("content-encoding")
        };
        // New machines know nothing of earlier ones.
        assert_eq!(is_coded(&world, 0), ends_by == "rebirth");
        let encoded = job.run();
        world.give_back(0, encoded);
        world.settle();
        get(&mut world, other, "2000");
        world.run_for(1_000_000);
        assert!(is_coded(&world, 1), "{ends_by}");
        assert_eq!(world.count(|counters| counters.compressions_away.get()), 0);
        world.finish();
    }
}

/// A repeated request has another encoder: the first one is not mistaken for it.
#[test]
fn an_answer_that_is_asked_for_again_begins_anew() {
    let mut world = world(MEMORY);
    let mut deaths = 1;
    world.serve(move |seen| {
        let message = message(&text(LARGE));
        let is_first = seen.request.nonce() == "first";
        if !is_first && deaths > 0 {
            deaths -= 1;
            return Some(vec![Do::Bytes(message[..LARGE / 2].to_vec()), Do::Delay(1_000), Do::Rst]);
        }
        let delay = if is_first { 5_000_000 } else { 0 };
        seen.complete.then(|| vec![Do::Delay(delay), Do::Answer(message)])
    });
    let client = world.client();
    get(&mut world, client, "first");
    get(&mut world, client, "second");
    world.run_for(2_000_000);
    assert_eq!(world.jobs.len(), 2, "of the second one, which was lost, and of the same again");
    world.encode();
    world.settle();
    world.run_for(5_000_000);
    world.encode_all();
    assert_eq!(answers(&world, client), [LARGE, LARGE]);
    world.finish();
}

#[test]
fn streams_are_encoded_side_by_side() {
    let mut world = world(MEMORY);
    let client = world.http2_client(0, 1 << 20);
    let fields = [("accept-encoding", "gzip"), ("te", "trailers")];
    for (stream, name) in [(1, "100000"), (3, "chunks"), (5, "3000"), (7, "300000")] {
        world.open_with(client, stream, ("GET", &format!("/v?n={name}")), &fields, None);
    }
    world.run_for(LONG_US);
    assert_eq!(world.streams_answered(client), [5]);
    assert_eq!(world.jobs.len(), 3);
    world.reset_stream(client, 7);
    world.jobs.rotate_left(1);
    world.settle();
    world.encode_all();
    assert_eq!(world.streams_answered(client).len(), 3);
    for stream in [1, 3] {
        let (bytes, is_whole) = decoded(world.stream_reply(client, stream).expect("an answer"));
        assert!(is_whole && bytes == text(LARGE), "{stream}");
    }
    world.finish();
}

/// An event has been sent when the turn ends, also one of a large response.
#[test]
fn small_parts_of_large_answers_stay_here() {
    let mut world = world(MEMORY);
    world.serve(|seen| {
        let chunk =
            |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        let all = text(LARGE);
        let script = vec![
            Do::Bytes([head("Transfer-Encoding: chunked"), chunk(&all[..50_000])].concat()),
            Do::Delay(10_000),
            Do::Bytes(chunk(&all[50_000..50_100])),
            Do::Delay(10_000_000),
            Do::Answer([chunk(&all[50_100..]), b"0\r\n\r\n".to_vec()].concat()),
        ];
        seen.complete.then_some(script)
    });
    let client = world.client();
    get(&mut world, client, "1");
    world.run_for(1_000);
    world.encode();
    world.run_for(100_000);
    assert!(world.jobs.is_empty());
    let so_far = decoded(world.clients[client].current().expect("a beginning")).0;
    assert!(so_far == text(50_100), "{} bytes", so_far.len());
    world.run_for(20_000_000);
    world.encode_all();
    assert_eq!(answers(&world, client), [LARGE]);
    world.finish();
}

#[test]
fn who_has_no_room_encodes_at_once() {
    let mut world = world(MEMORY);
    world.encodes_elsewhere = false;
    let client = world.client();
    get(&mut world, client, "2000000");
    get(&mut world, client, "chunks");
    world.run_for(1_000_000);
    assert_eq!(answers(&world, client), [2_000_000, LARGE]);
    world.finish();
}
