//! Proves: no deadline ends a client that has something to take and takes it, however long a
//! response lasts; and a pause within a response has its own time-out (`answer-timeout`), with its
//! own name. docs/http1.md, docs/retries.md.

use weir_check::End;
use weir_check::upstreams::check_honest;

use crate::world::{Do, Seen, World, honest, plan};

const SECOND: u64 = 1_000_000;

/// A response of this many bytes, all at once.
fn large(bytes: usize) -> impl FnMut(&Seen<'_>) -> Option<Vec<Do>> {
    move |seen| {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\nX-Nonce: {}\r\n\r\n",
            seen.request.nonce()
        );
        let mut script = vec![Do::Answer(head.into_bytes())];
        script.extend((0..bytes / 10_000).map(|_| Do::Bytes(vec![b'y'; 10_000])));
        Some(script)
    }
}

/// One turn in which a client has taken a send and a timer may fire, as in a busy worker.
fn sip_late(world: &mut World, client: usize, us: u64) {
    world.sip(client);
    world.now_us += us;
    world.settle_once();
    world.settle();
}

/// Between a taken send and the next one the client is not idle.
#[test]
fn an_answer_that_is_taken_steadily_is_not_cut_between_two_sends() {
    for us in [1_000, 30_000, 100_000, 330_000, 1_100_000] {
        let mut hasty = plan(1, 1);
        hasty.client.idle_timeout_us = SECOND;
        let mut world = World::started(hasty, 1, 1);
        world.serve(large(3_000_000));
        let client = world.client();
        world.stall(client, true);
        world.run_for(SECOND / 2);
        world.get(client, "00000001");
        world.settle();
        let mut steps = 0;
        while world.clients[client].replies.is_empty() && world.clients[client].end.is_none() {
            // So that no timer fires between the turns.
            sip_late(&mut world, client, us);
            steps += 1;
            assert!(steps < 100_000);
        }
        let lengths: Vec<u64> =
            world.clients[client].replies.iter().map(|reply| reply.body.length).collect();
        assert_eq!(lengths, [3_000_000], "a send each {us} us: {:?}", world.clients[client].end);
        // It is idle from here on.
        world.stall(client, false);
        world.run_for(SECOND * 9 / 10);
        assert!(!world.clients[client].closed);
        world.run_for(SECOND / 4);
        assert_eq!(world.clients[client].end, Some(End::Clean));
        world.finish();
    }
}

/// Likewise for a client that has to leave: it gets its responses.
#[test]
fn a_client_that_is_to_go_gets_its_answer() {
    let mut world = World::simple(1);
    world.serve(large(3_000_000));
    let client = world.client();
    world.stall(client, true);
    world.get(client, "00000001");
    world.settle();
    world.nodes[0].engine.drain(weir_proxy::ending::Farewell::All);
    let mut steps = 0;
    while world.clients[client].replies.is_empty() && world.clients[client].end.is_none() {
        sip_late(&mut world, client, 40_000);
        steps += 1;
        assert!(steps < 100_000);
    }
    assert_eq!(world.clients[client].replies[0].body.length, 3_000_000);
    world.run_for(3 * SECOND);
    assert!(world.clients[client].closed);
    world.finish();
}

/// A connection of HTTP/2 is idle when its last bytes were taken, not when they were made.
#[test]
fn a_connection_of_http2_is_idle_when_its_last_bytes_are_taken() {
    let mut hasty = plan(1, 1);
    hasty.client.idle_timeout_us = SECOND;
    let mut world = World::started(hasty, 1, 1);
    world.serve(large(100_000));
    let client = world.http2_client(0, 1 << 20);
    world.settle();
    world.stall(client, true);
    world.open(client, 1, "/v?n=00000001");
    world.settle();
    // Each send takes longer than the time-out of an idle client.
    let mut steps = 0;
    while world.stream_reply(client, 1).is_none() {
        sip_late(&mut world, client, 1_400_000);
        steps += 1;
        assert!(steps < 100 && !world.clients[client].closed, "step {steps}");
    }
    world.stall(client, false);
    world.run_for(SECOND * 9 / 10);
    assert!(!world.clients[client].closed);
    // It hears so, and may respond.
    world.run_for(4 * SECOND);
    assert!(world.clients[client].closed);
    world.finish();
}

/// A request behind a response that its client takes slowly: its own response, which was held back,
/// has its time from when it may come.
#[test]
fn an_answer_that_was_kept_from_coming_is_not_late() {
    let mut hasty = plan(1, 1);
    hasty.upstreams[0].forward_timeout_us = 3 * SECOND;
    let mut world = World::started(hasty, 1, 1);
    world.serve(large(2_000_000));
    let client = world.client();
    world.stall(client, true);
    world.get(client, "00000001");
    world.get(client, "00000002");
    let mut steps = 0;
    while world.clients[client].replies.len() < 2 && world.clients[client].end.is_none() {
        world.run_for(2 * SECOND);
        world.sip(client);
        steps += 1;
        assert!(steps < 1_000);
    }
    assert_eq!(world.clients[client].statuses(), [200, 200]);
    world.finish();
}

/// A tunnel whose client takes the available bytes, slowly, is not silent.
#[test]
fn a_tunnel_that_is_being_read_is_not_silent() {
    let mut hasty = plan(1, 1);
    hasty.client.tunnel_timeout_us = SECOND;
    let mut world = World::started(hasty, 1, 1);
    world.serve(|seen| {
        let switch =
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n"
                .to_vec();
        seen.complete.then(|| vec![Do::Switch(switch), Do::Bytes(vec![b'y'; 1_000_000])])
    });
    let client = world.client();
    world.stall(client, true);
    world.ask(client, "GET", "/t?n=00000001", "Connection: Upgrade\r\nUpgrade: echo\r\n");
    let mut steps = 0;
    while world.clients[client].tunnel.len() < 1_000_000 && !world.clients[client].closed {
        world.run_for(SECOND * 14 / 10);
        world.sip(client);
        world.settle();
        steps += 1;
        assert!(steps < 1_000);
    }
    assert_eq!(world.clients[client].tunnel.len(), 1_000_000);
    world.stall(client, false);
    world.run_for(2 * SECOND);
    assert!(world.clients[client].closed, "silent from here on");
}

/// A client that takes a large send slowly, as the kernel knows, has its time for each 16 KiB of
/// it; one that takes less does not.
#[test]
fn a_send_that_is_being_taken_is_not_over_its_time() {
    for (http2, bytes_a_second, is_whole) in
        [(false, 1_000, true), (true, 1_000, true), (false, 200, false), (true, 200, false)]
    {
        let mut world = World::simple(1);
        world.serve(large(250_000));
        let client = if http2 { world.http2_client(0, 1 << 20) } else { world.client() };
        world.settle();
        world.stall(client, true);
        match http2 {
            true => world.open(client, 1, "/v?n=00000001"),
            false => world.get(client, "00000001"),
        }
        world.settle();
        // Each send takes longer than `send-timeout`.
        for second in 0..600 {
            world.clients[client].acked = Some(second * bytes_a_second);
            world.run_for(SECOND);
            if second % 150 == 149 {
                world.sip(client);
            }
        }
        let is_over = world.count(|counters| counters.timeouts.get("send")) > 0;
        assert_eq!(
            (world.clients[client].closed, is_over),
            (!is_whole, !is_whole),
            "{http2} {bytes_a_second}"
        );
        if !is_whole {
            continue;
        }
        world.stall(client, false);
        world.settle();
        let status = match http2 {
            true => world.stream_reply(client, 1).map(|reply| reply.status),
            false => world.clients[client].replies.first().map(|reply| reply.status),
        };
        assert_eq!(status, Some(200));
        world.finish();
    }
}

// ---- pauses within a response ----

/// Responses of each framing that begin, are silent for this time, and continue.
fn pausing(pause_us: u64) -> impl FnMut(&Seen<'_>) -> Option<Vec<Do>> {
    move |seen| {
        let (head, rest): (&str, &[u8]) = match seen.request.target.as_str() {
            "/chunked" => {
                ("Transfer-Encoding: chunked\r\n\r\n3\r\na\n\n\r\n", b"3\r\nb\n\n\r\n0\r\n\r\n")
            }
            "/length" => ("Content-Length: 2\r\n\r\na", b"b"),
            _ => ("Connection: close\r\n\r\na", b"b"),
        };
        let begin = format!("HTTP/1.1 200 OK\r\n{head}").into_bytes();
        let mut script = vec![Do::Answer(begin), Do::Delay(pause_us), Do::Bytes(rest.to_vec())];
        script.extend((seen.request.target == "/close").then_some(Do::Fin));
        Some(script)
    }
}

/// The time until a response begins predicts nothing about a pause within it: an event stream may
/// be silent for as long as a tunnel.
#[test]
fn a_silence_within_an_answer_is_not_a_late_answer() {
    for path in ["/chunked", "/length", "/close"] {
        for http2 in [false, true] {
            let mut hasty = plan(1, 1);
            hasty.upstreams[0].forward_timeout_us = 2 * SECOND;
            let mut world = World::started(hasty, 1, 1);
            world.serve(pausing(3_500 * SECOND));
            let client = if http2 { world.http2_client(0, 1 << 20) } else { world.client() };
            match http2 {
                true => world.open(client, 1, path),
                false => world.ask(client, "GET", path, ""),
            }
            world.run_for(3_501 * SECOND);
            let status = match http2 {
                true => world.stream_reply(client, 1).map(|reply| reply.status),
                false => world.clients[client].replies.first().map(|reply| reply.status),
            };
            assert_eq!(status, Some(200), "{path} {http2}");
            world.finish();
        }
    }
}

/// Over `answer-timeout` it is truncated, and the log has the party and the reason.
#[test]
fn a_silence_that_is_too_long_is_called_by_its_name() {
    for path in ["/chunked", "/length"] {
        let mut hasty = plan(1, 1);
        hasty.upstreams[0].answer_timeout_us = 2 * SECOND;
        let mut world = World::started(hasty, 1, 1);
        world.serve(pausing(3 * SECOND));
        let client = world.client();
        world.ask(client, "GET", path, "");
        world.run_for(4 * SECOND);
        assert!(world.clients[client].replies.is_empty() && world.clients[client].closed, "{path}");
        assert_eq!(world.count(|counters| counters.timeouts.get("answer")), 1);
        assert_eq!(world.count(|counters| counters.refusals.get("answer-timeout")), 1);
        let line = world.lines.iter().find(|line| line.contains(path)).expect("a line");
        assert!(line.contains(" weir answer answer-timeout "), "{line}");
        assert!(world.conns[0].closed, "what comes late reaches nobody");
    }
}

/// Each piece restarts it, and so does the client if the server waited for the client.
#[test]
fn pieces_buy_time_and_so_do_slow_clients() {
    let mut hasty = plan(1, 1);
    hasty.upstreams[0].answer_timeout_us = 2 * SECOND;
    let mut world = World::started(hasty, 1, 1);
    world.serve(|seen| {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 20\r\nX-Nonce: {}\r\n\r\n",
            seen.request.nonce()
        );
        let mut script = vec![Do::Answer(head.into_bytes())];
        script.extend((0..20).flat_map(|_| [Do::Delay(SECOND * 19 / 10), Do::Bytes(vec![b'y'])]));
        Some(script)
    });
    let client = world.client();
    world.get(client, "00000001");
    world.run_for(60 * SECOND);
    assert_eq!(world.clients[client].statuses(), [200]);
    world.serve(large(1_000_000));
    world.stall(client, true);
    world.get(client, "00000002");
    let mut steps = 0;
    while world.clients[client].replies.len() < 2 && !world.clients[client].closed {
        world.run_for(10 * SECOND);
        world.sip(client);
        steps += 1;
        assert!(steps < 1_000);
    }
    world.stall(client, false);
    world.settle();
    assert_eq!(world.clients[client].replies[1].body.length, 1_000_000);
    world.serve(honest);
    world.get(client, "00000003");
    world.settle();
    check_honest("00000003", &world.clients[client].replies[2]).unwrap();
    world.finish();
}

/// A client of HTTP/2 hears as soon that the pause behind the head of a response was too long.
#[test]
fn a_silence_behind_the_head_is_too_long_for_streams_too() {
    let mut hasty = plan(1, 1);
    hasty.upstreams[0].answer_timeout_us = 2 * SECOND;
    hasty.upstreams[0].forward_timeout_us = 20 * SECOND;
    let mut world = World::started(hasty, 1, 1);
    world.serve(|_| {
        Some(vec![
            Do::Answer(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n".to_vec()),
            Do::Silence,
        ])
    });
    let client = world.http2_client(0, 1 << 20);
    world.open(client, 1, "/v?n=00000001");
    world.run_for(3 * SECOND);
    assert_eq!(world.count(|counters| counters.timeouts.get("answer")), 1);
    world.finish();
}

/// Small pieces for a client that stops reading: its time is that of every send, whatever it was
/// waiting for before.
#[test]
fn a_stream_of_small_pieces_waits_for_no_deaf_client() {
    let mut hasty = plan(1, 1);
    hasty.client.send_timeout_us = 5 * SECOND;
    hasty.upstreams[0].forward_timeout_us = 3 * SECOND;
    let mut world = World::started(hasty, 1, 1);
    world.serve(|_| {
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        let piece = [Do::Delay(SECOND), Do::Bytes(b"3\r\none\r\n".to_vec())];
        Some([vec![Do::Answer(head)], piece.iter().cycle().take(240).cloned().collect()].concat())
    });
    let client = world.client();
    world.get(client, "00000001");
    world.run_for(30 * SECOND);
    assert!(!world.clients[client].closed, "it reads");
    world.stall(client, true);
    world.run_for(12 * SECOND);
    assert!(world.clients[client].closed);
    assert_eq!(world.count(|counters| counters.timeouts.get("send")), 1);
}

/// A client may pause for nearly all of `send-timeout` between two pieces, at any point of a send.
#[test]
fn a_client_may_rest_for_as_long_as_a_send_may_take() {
    for (rests, is_whole) in [(50, true), (140, false)] {
        let mut world = World::simple(1);
        world.serve(large(250_000));
        let client = world.client();
        world.stall(client, true);
        world.get(client, "00000001");
        world.settle();
        // It has taken plenty by 20 s, and pauses then.
        world.clients[client].acked = Some(0);
        world.run_for(20 * SECOND);
        world.clients[client].acked = Some(100_000);
        world.run_for(rests * SECOND);
        world.clients[client].acked = Some(200_000);
        world.run_for(25 * SECOND);
        assert_eq!(world.clients[client].closed, !is_whole, "{rests}");
        assert_eq!(world.count(|counters| counters.timeouts.get("send")) > 0, !is_whole, "{rests}");
        world.stall(client, false);
        world.settle();
    }
}

/// A connection that ends is not closed while its client takes the kernel's remaining bytes; one
/// that takes nothing has its time.
#[test]
fn what_is_left_at_the_end_may_be_taken() {
    let ending = |bytes_a_second: u64, seconds: u64| {
        let mut world = World::simple(1);
        let client = world.client();
        // A response that comes before the request is whole, behind which the connection ends.
        world.expect(client, "POST", false, false);
        world.send(client, b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n");
        world.clients[client].is_taking = true;
        for second in 0..seconds {
            world.clients[client].acked = Some(second * bytes_a_second);
            world.run_for(SECOND);
        }
        assert_eq!(world.clients[client].statuses(), [400]);
        (world, client)
    };
    let (mut world, client) = ending(1_000, 300);
    assert!(!world.clients[client].closed, "it takes what there is");
    world.clients[client].is_taking = false;
    world.run_for(3 * SECOND);
    assert!(world.clients[client].closed && !world.clients[client].was_reset, "it has all");
    let (world, client) = ending(10, 130);
    assert!(world.clients[client].closed && world.clients[client].was_reset, "it takes too little");
    assert_eq!(world.count(|counters| counters.timeouts.get("send")), 1);
}
