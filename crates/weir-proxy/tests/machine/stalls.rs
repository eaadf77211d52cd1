//! Proves: responses that a client does not take keep others from a server no longer than
//! docs/connections.md says, whatever number of streams or requests it has, and cost no more
//! memory than docs/buffers.md says; and a client that resets streams costs no other anything. How:
//! one connection to a server, which all need. After each turn a check confirms that budgets fit
//! and are given back (`audit_stalls`).

use std::collections::BTreeSet;

use weir_check::upstreams::check_honest;
use weir_proxy::plan::{PipelineMode, Plan};

use crate::world::http2::CANCEL;
use crate::world::{Do, Seen, World, access_log, honest, plan};

/// Bytes that are taken in for one client, and for a worker.
const CLIENT_BYTES: usize = 1 << 20;
const WORKER_BYTES: usize = 64 << 20;
/// Connections that may be set aside for a client.
const ASIDES: usize = 16;
/// A body that may be taken in, and one that is too large for that.
const MIDDLING: usize = 200_000;
const LARGE: usize = 2_000_000;

/// Bodies in pieces for `/middling` and `/large`; nothing for `/never`; all other requests
/// honestly.
fn serve(seen: &Seen<'_>) -> Option<Vec<Do>> {
    let length = match seen.request.target.split('?').next() {
        Some("/middling") => MIDDLING,
        Some("/large") => LARGE,
        Some("/never") => return Some(vec![Do::Delay(1_000_000), Do::Answer(no_body(seen))]),
        _ => return honest(seen),
    };
    let nonce = seen.request.nonce();
    let head = format!("HTTP/1.1 200 OK\r\nX-Nonce: {nonce}\r\nContent-Length: {length}\r\n\r\n");
    let pieces = (0..length / 20_000).map(|_| Do::Bytes(vec![b'x'; 20_000]));
    Some([Do::Answer(head.into_bytes())].into_iter().chain(pieces).collect())
}

fn no_body(seen: &Seen<'_>) -> Vec<u8> {
    format!("HTTP/1.1 204 No Content\r\nX-Nonce: {}\r\n\r\n", seen.request.nonce()).into_bytes()
}

/// One server with one connection, of the first worker, that has earned its depth.
fn warm(workers: u16, change: impl FnOnce(&mut Plan)) -> World {
    let mut plan = plan(1, 1);
    plan.upstreams[0].pipeline = PipelineMode::Depth(16);
    // The bytes of a connection do not show those of a stream.
    plan.access_log = Some(access_log("$status $bytes_sent $ended_by $phase $reason"));
    change(&mut plan);
    let mut world = World::started(plan, workers, 1);
    let client = world.client();
    for n in 0..70 {
        world.get(client, &format!("{n:08}"));
        world.settle();
    }
    world.serve(serve);
    world
}

fn unread(world: &World) -> usize {
    world.conns.iter().filter(|conn| !conn.closed).map(|conn| conn.unread()).sum()
}

fn absorbed_bytes(world: &World) -> usize {
    world.count(|counters| counters.absorbed_bytes.get()) as usize
}

/// Requests that wait for a connection, or for their own client.
fn waiting(world: &World) -> usize {
    world.count(|counters| counters.queue_waiting.get()) as usize
}

/// Returns requests for this target that a server got, each once.
fn asked(world: &World, target: &str) -> usize {
    let all = world.requests().filter(|request| request.target.starts_with(target));
    all.map(|request| request.nonce()).collect::<BTreeSet<_>>().len()
}

/// As soon as a request waits behind it, and no sooner, the rest of a middling response is taken
/// in.
#[test]
fn the_rest_is_taken_in_for_who_waits_behind() {
    for workers in [1, 2] {
        let mut world = warm(workers, |_| {});
        let slow = world.client_of(usize::from(workers) - 1);
        world.stall(slow, true);
        world.ask(slow, "GET", "/middling?n=a0000001", "");
        world.settle();
        assert!(unread(&world) > 0 && absorbed_bytes(&world) == 0, "nobody waits");
        let other = world.client();
        world.get(other, "b0000001");
        world.settle();
        check_honest("b0000001", &world.clients[other].replies[0]).unwrap();
        let absorbed = absorbed_bytes(&world);
        assert!((MIDDLING..MIDDLING + 100_000).contains(&absorbed), "{absorbed} bytes");
        assert_eq!(world.count(|counters| counters.absorbed.get()), 1);
        assert_eq!(world.count(|counters| counters.set_aside.get()), 0);
        world.stall(slow, false);
        world.settle();
        assert_eq!(
            (world.clients[slow].replies[0].body.length, absorbed_bytes(&world)),
            (MIDDLING as u64, 0)
        );
        assert_eq!(world.open_conns().len(), 1);
        world.finish();
    }
}

/// A large response is not, nor one of unknown length after too much of it.
#[test]
fn what_is_large_is_not_taken_in() {
    let mut world = warm(1, |_| {});
    let slow = world.client();
    world.stall(slow, true);
    world.ask(slow, "GET", "/large?n=a0000001", "");
    world.settle();
    let other = world.client();
    world.get(other, "b0000001");
    world.run_for(1_000_000);
    check_honest("b0000001", &world.clients[other].replies[0]).unwrap();
    assert_eq!((absorbed_bytes(&world), world.count(|counters| counters.absorbed.get())), (0, 0));
    world.stall(slow, false);
    world.run_for(1_000_000);
    assert_eq!(world.clients[slow].replies[0].body.length, LARGE as u64);
    world.finish();
}

/// Many streams without a window: as much is taken in for them as for one client, and given back on
/// delivery, on reset, and when their connection is lost.
#[test]
fn all_streams_of_a_client_have_one_budget() {
    for (workers, end) in
        [(1, "delivered"), (2, "delivered"), (1, "reset"), (2, "reset"), (1, "lost"), (2, "lost")]
    {
        let mut world = warm(workers, |_| {});
        let slow = world.http2_client(usize::from(workers) - 1, 0);
        let streams: Vec<u32> = (0..12).map(|n| 1 + 2 * n).collect();
        streams
            .iter()
            .for_each(|stream| world.open(slow, *stream, &format!("/middling?n=a{stream:07}")));
        for n in 0..30 {
            let other = world.client();
            world.get(other, &format!("b{n:07}"));
            world.run_for(200_000);
            check_honest(&format!("b{n:07}"), &world.clients[other].replies[0]).unwrap();
        }
        let absorbed = absorbed_bytes(&world);
        assert!((CLIENT_BYTES / 2..=CLIENT_BYTES).contains(&absorbed), "{absorbed} bytes");
        assert!(world.count(|counters| counters.set_aside.get()) > 0);
        let taken = world.count(|counters| counters.upstream_bytes_in.get()) as usize;
        assert!(taken < 2 * CLIENT_BYTES + streams.len() * 65_536, "{taken} bytes were taken");
        match end {
            "delivered" => streams.iter().for_each(|stream| world.credit(slow, *stream, 1 << 20)),
            "reset" => streams.iter().for_each(|stream| world.reset_stream(slow, *stream)),
            _ => world.reset(slow),
        }
        world.run_for(5_000_000);
        assert_eq!(absorbed_bytes(&world), 0, "{end}");
        if end == "delivered" {
            let mut answered = world.streams_answered(slow);
            answered.sort_unstable();
            assert_eq!(answered, streams);
        }
        world.finish();
    }
}

/// Very many clients that read nothing: the memory for all of them is bounded, and those beyond it
/// are set aside.
#[test]
fn all_clients_of_a_worker_have_one_budget() {
    let mut world = warm(1, |_| {});
    let fitting = WORKER_BYTES / MIDDLING;
    for n in 0..fitting + 20 {
        let slow = world.client();
        world.stall(slow, true);
        world.ask(slow, "GET", &format!("/middling?n=a{n:07}"), "");
        // The next one waits for it.
        world.settle_once();
    }
    let other = world.client();
    world.get(other, "b0000001");
    world.run_for(20_000_000);
    check_honest("b0000001", &world.clients[other].replies[0]).unwrap();
    let absorbed = absorbed_bytes(&world);
    assert!((WORKER_BYTES / 2..=WORKER_BYTES).contains(&absorbed), "{absorbed} bytes");
    assert!(world.count(|counters| counters.set_aside.get()) > 0);
    world.finish();
}

/// A client with many streams of large responses that stall, while others send requests: this many
/// connections are aside for it, and no more requests are sent for it until one of them continues;
/// none is reset.
#[test]
fn h4_who_has_enough_aside_waits_for_itself() {
    for workers in [1, 2] {
        let mut world = warm(workers, |_| {});
        let slow = world.http2_client(usize::from(workers) - 1, 0);
        let streams: Vec<u32> = (0..30).map(|n| 1 + 2 * n).collect();
        streams
            .iter()
            .for_each(|stream| world.open(slow, *stream, &format!("/large?n=a{stream:07}")));
        for n in 0..40 {
            let other = world.client();
            world.get(other, &format!("b{n:07}"));
            // A tenth of a second for each ASIDES streams of a client, once.
            world.run_for(if n == 0 { 300_000 } else { 200_000 });
            check_honest(&format!("b{n:07}"), &world.clients[other].replies[0]).unwrap();
            assert!(
                world.open_conns().len() <= ASIDES + 2,
                "{} connections",
                world.open_conns().len()
            );
        }
        assert_eq!(
            (world.streams_reset(slow, CANCEL), waiting(&world)),
            (vec![], streams.len() - ASIDES),
            "{workers} workers"
        );
        assert_eq!(world.count(|counters| counters.set_aside.get()) as usize, ASIDES);
        // One of them is taken: further requests are sent.
        world.credit(slow, streams[3], 1 << 30);
        world.run_for(1_000_000);
        assert_eq!(world.streams_answered(slow), [streams[3]]);
        assert_eq!(world.streams_reset(slow, CANCEL), []);
        streams.iter().for_each(|stream| world.credit(slow, *stream, 1 << 30));
        world.run_for(5_000_000);
        let mut answered = world.streams_answered(slow);
        answered.sort_unstable();
        assert_eq!((answered, world.count(|counters| counters.stalled.get())), (streams, 0));
        world.finish();
    }
}

/// A request that waits so has the time of any request, and ends with its stream and its
/// connection.
#[test]
fn what_waits_for_its_own_client_has_an_end() {
    for end in ["forward-timeout", "reset", "lost"] {
        let mut world = warm(1, |plan| plan.upstreams[0].forward_timeout_us = 20_000_000);
        let slow = world.http2_client(0, 0);
        let streams: Vec<u32> = (0..30).map(|n| 1 + 2 * n).collect();
        streams
            .iter()
            .for_each(|stream| world.open(slow, *stream, &format!("/large?n=a{stream:07}")));
        for n in 0..30 {
            let other = world.client();
            world.get(other, &format!("b{n:07}"));
            world.run_for(300_000);
        }
        assert_eq!(waiting(&world), streams.len() - ASIDES);
        match end {
            "reset" => streams.iter().for_each(|stream| world.reset_stream(slow, *stream)),
            "lost" => world.reset(slow),
            _ => {}
        }
        world.run_for(30_000_000);
        assert_eq!(waiting(&world), 0, "{end}");
        if end == "forward-timeout" {
            streams.iter().for_each(|stream| world.credit(slow, *stream, 1 << 30));
        }
        world.run_for(5_000_000);
        let late = world.lines.iter().filter(|line| line.starts_with("504")).count();
        assert_eq!(
            late,
            if end == "forward-timeout" { streams.len() - ASIDES } else { 0 },
            "{end}"
        );
        world.finish();
    }
}

/// Many clients whose streams stall: from some number of connections on each may use only a few,
/// the longest stalled one is reset, and requests that it would also stall are not sent again for
/// it.
#[test]
fn many_clients_that_stand_still_have_few_aside_each() {
    for workers in [1, 2] {
        let mut world = warm(workers, |_| {});
        let slow: Vec<usize> =
            (0..8).map(|n| world.http2_client(n % usize::from(workers), 0)).collect();
        let mut opened = vec![0; slow.len()];
        for round in 0..40 {
            for (client, opened) in slow.iter().zip(&mut opened) {
                // As many as it may have: a reset one is requested again.
                let gone = world.streams_reset(*client, CANCEL).len();
                while *opened - gone < 20 {
                    world.open(
                        *client,
                        1 + 2 * *opened as u32,
                        &format!("/large?n=a{client:03}{opened:04}"),
                    );
                    *opened += 1;
                }
            }
            let other = world.client();
            world.get(other, &format!("b{round:07}"));
            world.run_for(200_000);
        }
        let before = asked(&world, "/large");
        for round in 40..60 {
            let other = world.client();
            world.get(other, &format!("b{round:07}"));
            world.run_for(200_000);
            check_honest(&format!("b{round:07}"), &world.clients[other].replies[0]).unwrap();
        }
        let (open, stalled) =
            (world.open_conns().len(), world.count(|counters| counters.stalled.get()));
        // 64 aside in all before that starts.
        assert!(
            open <= 64 + 2 * slow.len() + 4 && stalled > 0,
            "{open} connections, {stalled} reset"
        );
        assert_eq!(asked(&world, "/large"), before, "{workers} workers: it goes on");
        world.finish();
    }
}

/// Responses from another worker for streams that take nothing: no more of each than a few
/// receives.
#[test]
fn a_stream_of_another_worker_takes_in_no_more() {
    let mut world = warm(2, |_| {});
    let slow = world.http2_client(1, 0);
    (0..8).for_each(|n| world.open(slow, 1 + 2 * n, &format!("/large?n=a{n:07}")));
    world.run_for(1_000_000);
    let taken = world.count(|counters| counters.upstream_bytes_in.get()) as usize;
    assert!(taken < 8 * 200_000 + 100_000, "{taken} bytes");
    (0..8).for_each(|n| world.credit(slow, 1 + 2 * n, 1 << 30));
    world.run_for(5_000_000);
    assert_eq!(world.streams_answered(slow).len(), 8);
    world.finish();
}

/// The streams of one client count, not those of all.
#[test]
fn two_clients_may_have_as_many_aside_each() {
    let mut world = warm(1, |_| {});
    let slow = [0, 1].map(|_| world.http2_client(0, 0));
    for (client, letter) in slow.iter().zip(["a", "c"]) {
        (0..12).for_each(|n| world.open(*client, 1 + 2 * n, &format!("/large?n={letter}{n:07}")));
    }
    for n in 0..40 {
        let other = world.client();
        world.get(other, &format!("b{n:07}"));
        world.run_for(200_000);
        check_honest(&format!("b{n:07}"), &world.clients[other].replies[0]).unwrap();
    }
    assert_eq!(world.count(|counters| counters.stalled.get()), 0);
    for client in slow {
        (0..12).for_each(|n| world.credit(client, 1 + 2 * n, 1 << 30));
    }
    world.run_for(5_000_000);
    slow.iter().for_each(|client| assert_eq!(world.streams_answered(*client).len(), 12));
    world.finish();
}

/// Likewise for HTTP/1.1: many requests in a row, and nothing read.
#[test]
fn a_connection_with_enough_aside_waits_for_itself() {
    let mut world = warm(1, |plan| {
        plan.client.requests_queued_max = 64;
        plan.upstreams[0].pipeline = PipelineMode::Off;
    });
    let slow = world.client();
    world.stall(slow, true);
    let mut all = Vec::new();
    for n in 0..40 {
        world.expect(slow, "GET", false, false);
        all.extend(format!("GET /large?n=a{n:07} HTTP/1.1\r\nHost: a\r\n\r\n").bytes());
    }
    world.send(slow, &all);
    for n in 0..60 {
        let other = world.client();
        world.get(other, &format!("b{n:07}"));
        world.run_for(200_000);
        check_honest(&format!("b{n:07}"), &world.clients[other].replies[0]).unwrap();
    }
    assert_eq!(world.count(|counters| counters.set_aside.get()) as usize, ASIDES);
    assert_eq!(world.count(|counters| counters.client_closes.get("stalled")), 0);
    world.stall(slow, false);
    world.run_for(10_000_000);
    assert_eq!(world.clients[slow].replies.len(), 40);
    world.finish();
}

/// Streams that are reset while their requests wait in a line: those are sent to no server, and
/// their places are free at once.
#[test]
fn what_is_reset_in_a_line_is_never_asked() {
    for workers in [1, 2] {
        let mut world = warm(workers, |plan| plan.upstreams[0].queue_size = 40);
        let slow = world.http2_client(usize::from(workers) - 1, 1 << 20);
        // More rounds than the line is long, and fewer than a client may reset.
        for round in 0..3 {
            let streams = (0..30).map(|n| 1 + 2 * (30 * round + n));
            streams
                .clone()
                .for_each(|stream| world.open(slow, stream, &format!("/never?n=a{stream:07}")));
            world.settle();
            assert!(world.count(|counters| counters.queue_waiting.get()) > 0);
            streams.clone().for_each(|stream| world.reset_stream(slow, stream));
            world.settle();
            assert_eq!(world.count(|counters| counters.queue_waiting.get()), 0, "round {round}");
        }
        let on_connection = asked(&world, "/never");
        let other = world.client();
        world.get(other, "b0000001");
        world.run_for(60_000_000);
        check_honest("b0000001", &world.clients[other].replies[0]).unwrap();
        assert_eq!(
            asked(&world, "/never"),
            on_connection,
            "what was given up is asked of a server"
        );
        assert_eq!(world.count(|counters| counters.searches.get()), 0);
        world.finish();
    }
}

/// A reset costs the price of the frame, wherever its request is: no line or connection is
/// searched.
#[test]
fn h5_resets_make_nobody_search() {
    for workers in [1, 2] {
        let mut world = warm(workers, |_| {});
        let slow = world.http2_client(usize::from(workers) - 1, 0);
        let mut stream = 1;
        for round in 0..90 {
            // On the connection, and within its response; in the same bytes, in a line, and within
            // a response that its server sends.
            let target = ["/v", "/never", "/middling", "/large"][round % 4];
            world.open(slow, stream, &format!("{target}?n=a{stream:07}"));
            if round % 3 > 0 {
                world.settle();
            }
            world.reset_stream(slow, stream);
            stream += 2;
            // A complete response compensates for a reset.
            world.open(slow, stream, &format!("/v?n=a{stream:07}"));
            world.credit(slow, stream, 1 << 20);
            world.run_for(3_000_000);
            stream += 2;
        }
        assert_eq!(world.count(|counters| counters.searches.get()), 0);
        assert_eq!(world.streams_answered(slow).len(), 90);
        world.finish();
    }
}
