//! Proves: every wait has its deadline and every queue its bound, with the status, the close and
//! the counter that docs/http1.md and docs/retries.md promise. Virtual time; docs/hostile.md H1-H3.

use weir_check::End;
use weir_check::upstreams::check_honest;
use weir_proxy::ending::Farewell;
use weir_proxy::plan::{ClientPlan, Entrance, PipelineMode, Plan};

use weir_proxy::request::rules::buffering::Buffering;

use crate::uploads::buffered;
use crate::world::{Do, Door, Seen, World, answer, honest, plan};

const SECOND: u64 = 1_000_000;

/// Never answers `/never`, answers all other requests honestly.
fn sometimes(seen: &Seen<'_>) -> Option<Vec<Do>> {
    if seen.request.target.starts_with("/never") { Some(vec![Do::Silence]) } else { honest(seen) }
}

#[test]
fn h1_a_head_has_ten_seconds_in_all() {
    let mut world = World::simple(1);
    let client = world.client();
    world.expect(client, "GET", false, false);
    for byte in b"GET / HT" {
        world.send(client, &[*byte]);
        world.run_for(SECOND);
    }
    assert!(world.clients[client].replies.is_empty());
    world.run_for(3 * SECOND);
    assert_eq!(world.clients[client].statuses(), [408]);
    assert!(world.clients[client].replies[0].closes);
    world.run_for(3 * SECOND);
    assert!(world.clients[client].closed);
    assert_eq!(world.count(|counters| counters.timeouts.get("head")), 1);
    world.finish();
}

/// Likewise behind requests in the same input: bytes that complete nothing buy no time.
#[test]
fn h1_a_second_head_has_ten_seconds_too() {
    let mut world = World::simple(1);
    let client = world.client();
    world.expect(client, "GET", false, false);
    world.send(client, b"GET /v?n=00000001 HT");
    world.settle();
    let long =
        format!("TP/1.1\r\nHost: a\r\n\r\nGET /v?n=00000002 HTTP/1.1\r\nX: {}", "x".repeat(500));
    world.send(client, long.as_bytes());
    world.expect(client, "GET", false, false);
    for _ in 0..30 {
        world.run_for(SECOND);
        world.send(client, b"x");
    }
    world.run_for(SECOND);
    assert_eq!(world.clients[client].statuses(), [200, 408]);
    world.finish();
}

#[test]
fn an_idle_client_is_closed_in_silence() {
    let mut world = World::simple(1);
    let (fresh, used) = (world.client(), world.client());
    world.get(used, "00000001");
    world.run_for(74 * SECOND);
    assert!(!world.clients[fresh].closed && !world.clients[used].closed);
    world.run_for(2 * SECOND);
    for client in [fresh, used] {
        assert!(world.clients[client].closed && world.clients[client].end == Some(End::Clean));
    }
    assert_eq!(world.count(|counters| counters.timeouts.get("idle")), 2);
    world.finish();
}

/// Empty lines behind a request, as old browsers send them, begin no head: not while the client is
/// idle, not while it waits for its response, in one piece or two.
#[test]
fn an_idle_client_that_sends_empty_lines_is_idle() {
    for blank in [&[&b"\r\n"[..]][..], &[b"\r", b"\n"], &[b"\r\n\r\n"], &[b"\r"]] {
        let mut world = World::simple(1);
        world.serve(|seen| {
            [Do::Delay(15 * SECOND)].into_iter().chain(honest(seen)?).map(Some).collect()
        });
        let (fresh, used, waiting) = (world.client(), world.client(), world.client());
        world.post(used, "00000001", b"x");
        world.run_for(20 * SECOND);
        world.post(waiting, "00000002", b"x");
        for client in [fresh, used, waiting] {
            blank.iter().for_each(|piece| world.send(client, piece));
        }
        world.run_for(74 * SECOND);
        assert!(
            [fresh, used, waiting].iter().all(|client| !world.clients[*client].closed),
            "{blank:?}"
        );
        world.run_for(2 * SECOND);
        assert!(world.clients[fresh].closed && world.clients[used].closed, "{blank:?}");
        assert!(!world.clients[waiting].closed, "from the end of its answer on");
        world.run_for(15 * SECOND);
        for (client, replies) in [(fresh, 0), (used, 1), (waiting, 1)] {
            assert_eq!(world.clients[client].replies.len(), replies, "{blank:?}");
            assert_eq!(world.clients[client].end, Some(End::Clean), "{blank:?}");
            assert!(world.clients[client].closed);
        }
        assert_eq!(world.count(|counters| counters.timeouts.get("idle")), 3);
        world.finish();
    }
}

/// A head has ten seconds from its first byte on, however long ago the empty line came; too many
/// empty lines are refused at once.
#[test]
fn a_head_behind_an_empty_line_has_ten_seconds() {
    let mut world = World::simple(1);
    let (slow, served, many) = (world.client(), world.client(), world.client());
    [slow, served, many].iter().for_each(|client| world.send(*client, b"\r\n"));
    world.run_for(60 * SECOND);
    world.expect(slow, "GET", false, false);
    world.send(slow, b"G");
    world.run_for(9 * SECOND);
    world.get(served, "00000001");
    world.expect(many, "GET", false, false);
    world.send(many, b"\r\n");
    world.run_for(SECOND / 2);
    assert!(world.clients[slow].replies.is_empty());
    check_honest("00000001", &world.clients[served].replies[0]).unwrap();
    assert!(world.clients[many].replies.is_empty());
    world.send(many, b"\r\n");
    world.run_for(SECOND);
    assert_eq!(world.clients[slow].statuses(), [408]);
    assert_eq!(world.clients[many].statuses(), [400]);
    world.finish();
}

/// Also after a wait for a server with a longer time-out than that of idle clients.
#[test]
fn an_idle_client_is_closed_in_time_after_a_slow_answer() {
    let mut patient = plan(1, 1);
    patient.upstreams[0].forward_timeout_us = 600 * SECOND;
    let mut world = World::started(patient, 1, 1);
    world.serve(|seen| {
        [Do::Delay(80 * SECOND)].into_iter().chain(honest(seen)?).map(Some).collect()
    });
    let client = world.client();
    world.get(client, "00000001");
    world.run_for(81 * SECOND);
    check_honest("00000001", &world.clients[client].replies[0]).unwrap();
    world.run_for(73 * SECOND);
    assert!(!world.clients[client].closed);
    world.run_for(2 * SECOND);
    assert!(world.clients[client].closed && world.clients[client].end == Some(End::Clean));
    assert_eq!(world.count(|counters| counters.timeouts.get("idle")), 1);
    world.finish();
}

#[test]
fn h2_a_body_has_thirty_seconds_between_reads_and_a_least_rate() {
    for (bytes_each, pause_us, after_us) in
        [(0, 31 * SECOND, 0), (10, 2 * SECOND, 0), (1, 20 * SECOND, 0)]
    {
        let mut world = World::started(buffered(Buffering::On), 1, 1);
        let client = world.client();
        world.expect(client, "POST", false, false);
        world.send(client, b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
        for _ in 0..60 * SECOND / pause_us + 1 {
            world.send(client, &vec![b'x'; bytes_each]);
            world.run_for(pause_us + after_us);
        }
        assert_eq!(
            world.clients[client].statuses(),
            [408],
            "{bytes_each} bytes every {pause_us} us"
        );
        assert_eq!(world.count(|counters| counters.timeouts.get("body")), 1);
        assert_eq!(world.requests().count(), 0);
        let has_begun = world.conns.iter().any(|conn| conn.judge.current().is_some());
        assert!(!has_begun, "a slow body costs no connection while it is gathered");
        world.finish();
    }
}

/// A client that loses its network continues where it stopped, if that is before body-timeout: also
/// when the first bytes then are few.
#[test]
fn a_pause_in_a_body_does_not_make_it_slow() {
    // Gathered, and streamed.
    for size in [2_000, 200_000] {
        for (more_us, again_us) in
            [(0, 0), (9 * SECOND, 0), (0, 4 * SECOND), (5 * SECOND, 9 * SECOND)]
        {
            let mut world = World::simple(1);
            let client = world.client();
            world.expect(client, "POST", false, false);
            let length = 2 * size + 20;
            world.send(
                client,
                format!(
                    "POST /p?n=00000001 HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
                )
                .as_bytes(),
            );
            world.send(client, &vec![b'x'; size]);
            world.run_for(more_us);
            world.send(client, &[b'x'; 10]);
            world.run_for(25 * SECOND);
            world.send(client, &[b'x'; 10]);
            world.run_for(again_us);
            world.send(client, &vec![b'x'; size]);
            world.run_for(SECOND);
            let replies = &world.clients[client].replies;
            assert_eq!(replies.len(), 1, "{size} {more_us} {again_us}");
            assert_eq!(world.clients[client].statuses(), [200], "{size} {more_us} {again_us}");
            check_honest("00000001", &replies[0]).unwrap();
            world.finish();
        }
    }
}

/// A body with a byte now and then is slow, however much came before, and even if that byte is not
/// part of the body itself.
#[test]
fn a_byte_now_and_then_makes_a_body_slow() {
    let chunk = format!("186a0\r\n{}\r\n1;a=", "x".repeat(100_000));
    for (framing, fast, byte) in [
        ("Content-Length: 200000", "", b"x"),
        ("Content-Length: 200000", &chunk[7..100_007], b"x"),
        ("Transfer-Encoding: chunked", &chunk, b"x"),
    ] {
        for pause_us in [2 * SECOND, 11 * SECOND, 29 * SECOND] {
            let mut world = World::simple(1);
            let client = world.client();
            world.expect(client, "POST", false, false);
            world.send(
                client,
                format!("POST /p?n=00000001 HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n{fast}")
                    .as_bytes(),
            );
            for _ in 0..100 * SECOND / pause_us {
                world.run_for(pause_us);
                world.send(client, byte);
            }
            assert_eq!(
                world.clients[client].statuses(),
                [408],
                "{framing} {} {pause_us}",
                fast.len()
            );
            assert_eq!(world.count(|counters| counters.timeouts.get("body")), 1);
            world.finish();
        }
    }
}

/// A large upload may take longer than forward-timeout, as long as it continues.
#[test]
fn a_long_upload_is_not_a_late_answer() {
    let mut world = World::simple(1);
    let client = world.client();
    world.expect(client, "POST", false, false);
    world.send(
        client,
        b"POST /p?n=00000001 HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n",
    );
    for _ in 0..200 {
        world.send(client, &[b'x'; 100_000]);
        world.run_for(SECOND);
    }
    check_honest("00000001", &world.clients[client].replies[0]).unwrap();
    world.finish();
}

/// A server that takes nothing of an upload is as late as one that does not respond.
#[test]
fn an_upload_that_a_server_does_not_take_ends() {
    let mut world = World::simple(1);
    world.servers[0].deaf = true;
    let client = world.client();
    world.expect(client, "POST", false, false);
    world.send(
        client,
        b"POST /p?n=00000001 HTTP/1.1\r\nHost: a\r\nContent-Length: 20000000\r\n\r\n",
    );
    for _ in 0..50 {
        world.send(client, &[b'x'; 100_000]);
        world.run_for(SECOND);
    }
    assert!(world.clients[client].unread() > 4_500_000, "read although nobody takes it");
    world.run_for(70 * SECOND);
    assert_eq!(world.clients[client].statuses(), [504]);
    assert!(world.conns[0].closed);
    world.finish();
}

#[test]
fn h3_a_client_that_reads_nothing_is_closed() {
    let mut world = World::simple(1);
    world.serve(|seen| {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\nX-Nonce: {}\r\n\r\n",
            seen.request.nonce()
        );
        let mut script = vec![Do::Answer(head.into_bytes())];
        script.extend((0..100).map(|_| Do::Bytes(vec![b'y'; 100_000])));
        Some(script)
    });
    let client = world.client();
    world.stall(client, true);
    world.get(client, "00000001");
    world.run_for(30 * SECOND);
    let conn = world.requests().next().map(|_| 0).unwrap();
    assert!(world.conns[conn].unread() > 9_000_000, "{} unread", world.conns[conn].unread());
    assert!(!world.clients[client].closed);
    world.run_for(31 * SECOND);
    assert!(world.clients[client].closed);
    assert_eq!(world.count(|counters| counters.timeouts.get("send")), 1);
    assert!(world.conns[conn].closed, "the rest of 10 MB is not read for nobody");
    world.finish();
}

/// A client that reads little by little gets everything.
#[test]
fn h3_a_slow_reader_is_served() {
    let mut world = World::simple(1);
    world.serve(|seen| {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 5000000\r\nX-Nonce: {}\r\n\r\n",
            seen.request.nonce()
        );
        let mut script = vec![Do::Answer(head.into_bytes())];
        script.extend((0..50).map(|_| Do::Bytes(vec![b'y'; 100_000])));
        Some(script)
    });
    let client = world.client();
    world.stall(client, true);
    world.get(client, "00000001");
    let mut steps = 0;
    while world.clients[client].replies.is_empty() {
        world.run_for(20 * SECOND);
        world.sip(client);
        steps += 1;
        assert!(steps < 1000);
    }
    assert_eq!(world.clients[client].replies[0].body.length, 5_000_000);
    assert!(steps > 10, "the answer was held in memory: {steps} sends");
    world.finish();
}

/// A request that waits behind a long response of the same client has its own time, not that of the
/// response.
#[test]
fn the_patience_with_a_request_does_not_grow_behind_a_long_answer() {
    let mut world = World::simple(2);
    world.serve(|seen| {
        if seen.request.nonce() == "00000002" {
            return Some(vec![Do::Silence]);
        }
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 121\r\nX-Nonce: {}\r\n\r\n",
            seen.request.nonce()
        );
        let mut script = vec![Do::Answer(head.into_bytes())];
        script.extend((0..121).flat_map(|_| [Do::Delay(SECOND / 2), Do::Bytes(vec![b'y'])]));
        Some(script)
    });
    let client = world.client();
    world.get(client, "00000001");
    world.run_for(SECOND);
    world.get(client, "00000002");
    world.run_for(61 * SECOND);
    assert_eq!(world.clients[client].statuses(), [200, 504]);
    world.finish();
}

/// 504 at forward-timeout; the connection is closed, neighbours behind it are answered elsewhere,
/// the late bytes are dropped.
#[test]
fn an_answer_that_does_not_come_is_504_for_its_asker_only() {
    let mut limited = plan(1, 2);
    limited.upstreams[0].pipeline = PipelineMode::Depth(8);
    let mut world = World::started(limited, 1, 1);
    let warm: Vec<usize> = (0..4).map(|_| world.client()).collect();
    for n in 0..100 {
        world.get(warm[n % 4], &format!("{n:08}"));
        world.get(warm[(n + 1) % 4], &format!("1{n:07}"));
        world.settle();
    }
    world.serve(sometimes);
    let (late, behind) = (world.client(), world.client());
    world.ask(late, "GET", "/never?n=aaaa0001", "");
    world.run_for(30 * SECOND);
    world.get(behind, "aaaa0002");
    world.run_for(29 * SECOND);
    assert!(world.clients[late].replies.is_empty());
    let conn = (0..world.conns.len())
        .find(|conn| world.conns[*conn].requests.iter().any(|it| it.nonce() == "aaaa0001"));
    world.run_for(2 * SECOND);
    assert_eq!(world.clients[late].statuses(), [504]);
    assert!(!world.clients[late].replies[0].closes, "the client's connection is not to blame");
    check_honest("aaaa0002", &world.clients[behind].replies[0]).unwrap();
    assert!(world.conns[conn.unwrap()].closed);
    assert_eq!(world.count(|counters| counters.timeouts.get("forward")), 1);
    world.get(late, "aaaa0003");
    world.run_for(SECOND);
    check_honest("aaaa0003", &world.clients[late].replies[1]).unwrap();
    world.finish();
}

/// A request that is late because it is behind a long response costs that response nothing.
#[test]
fn a_late_request_behind_a_long_answer_does_not_harm_it() {
    let mut limited = plan(1, 1);
    limited.upstreams[0].pipeline = PipelineMode::Depth(8);
    let mut world = World::started(limited, 1, 1);
    let (long, behind) = (world.client(), world.client());
    for n in 0..80 {
        world.get(long, &format!("{n:08}"));
        world.settle();
    }
    world.serve(|seen| {
        if seen.request.nonce() != "aaaa0001" {
            return honest(seen);
        }
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 200000\r\nX-Nonce: aaaa0001\r\n\r\n";
        let mut script = vec![Do::Delay(1000), Do::Answer(head.as_bytes().to_vec())];
        for _ in 0..200 {
            script.extend([Do::Delay(SECOND), Do::Bytes(vec![b'y'; 1000])]);
        }
        Some(script)
    });
    world.get(long, "aaaa0001");
    world.get(behind, "aaaa0002");
    world.run_for(210 * SECOND);
    let last = world.clients[long].replies.last().unwrap();
    assert_eq!((last.fields.first("x-nonce"), last.body.length), (Some("aaaa0001"), 200_000));
    assert_eq!(world.clients[behind].replies.len(), 1);
    let after = world.client();
    world.get(after, "aaaa0003");
    world.run_for(SECOND);
    check_honest("aaaa0003", &world.clients[after].replies[0]).unwrap();
    assert!(!world.conns[0].closed);
    world.finish();
}

/// A response that stops in the middle times out after answer-timeout: its client sees the end of
/// its connection.
#[test]
fn an_answer_that_stops_in_the_middle_ends() {
    for chunked in [false, true] {
        let mut limited = plan(1, 1);
        limited.upstreams[0].answer_timeout_us = 60 * SECOND;
        let mut world = World::started(limited, 1, 1);
        world.serve(move |_| {
            let framing = if chunked {
                "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
            } else {
                "Content-Length: 10\r\n\r\nhello"
            };
            Some(vec![
                Do::Answer(format!("HTTP/1.1 200 OK\r\n{framing}").into_bytes()),
                Do::Silence,
            ])
        });
        let client = world.client();
        world.get(client, "00000001");
        world.run_for(50 * SECOND);
        assert!(!world.clients[client].closed);
        world.run_for(70 * SECOND);
        assert!(world.clients[client].closed && world.conns[0].closed);
        assert!(matches!(world.clients[client].end, Some(End::Truncated(_))));
        world.finish();
    }
}

#[test]
fn no_server_is_502() {
    let mut world = World::new(plan(2, 3), 1, 1);
    world.servers[0].door = Door::Refuses;
    world.servers[1].door = Door::Refuses;
    world.run_for(60 * SECOND);
    assert!(world.count(|counters| counters.upstream_connect_failures.get()) >= 60);
    let client = world.client();
    world.get(client, "00000001");
    world.run_for(SECOND);
    assert_eq!(world.clients[client].statuses(), [502]);
    world.servers[1].door = Door::Open;
    world.run_for(31 * SECOND);
    world.get(client, "00000002");
    world.settle();
    check_honest("00000002", &world.clients[client].replies[1]).unwrap();
    world.finish();
}

/// Requests that wait for a server that stays down move to another; at the start nothing is refused
/// while connects are still in progress.
#[test]
fn what_waits_for_a_server_moves_on() {
    // One of two servers is mute: requests for it move to the other server or to a server that
    // recovers.
    let mut world = World::new(plan(2, 1), 1, 1);
    world.servers[0].door = Door::Mute;
    world.run_for(100_000);
    let client = world.client();
    for n in 0..10 {
        world.get(client, &format!("{n:08}"));
    }
    world.run_for(SECOND);
    assert_eq!(world.clients[client].replies.len(), 10);
    assert_eq!(world.count(|counters| counters.timeouts.get("connect")), 0);
    world.run_for(10 * SECOND);
    assert!(world.count(|counters| counters.timeouts.get("connect")) > 0);
    world.finish();
}

#[test]
fn full_queues_are_503_with_retry_after() {
    let mut limited = plan(1, 2);
    limited.upstreams[0].queue_size = 10;
    let mut world = World::started(limited, 1, 1);
    world.serve(|_| Some(vec![Do::Silence]));
    let clients: Vec<usize> = (0..30).map(|_| world.client()).collect();
    for (n, client) in clients.iter().enumerate() {
        world.get(*client, &format!("{n:08}"));
        world.settle();
    }
    let refused: Vec<usize> = clients
        .iter()
        .copied()
        .filter(|client| !world.clients[*client].replies.is_empty())
        .collect();
    assert_eq!(refused, clients[20..]);
    for client in refused {
        let reply = &world.clients[client].replies[0];
        assert!(reply.status == 503 && reply.fields.has("retry-after") && !reply.closes);
    }
    world.run_for(61 * SECOND);
    assert!(clients[..20].iter().all(|client| world.clients[*client].statuses() == [504]));
    world.serve(honest);
    world.run_for(SECOND);
    world.get(clients[0], "99999999");
    world.run_for(SECOND);
    check_honest("99999999", &world.clients[clients[0]].replies[1]).unwrap();
    world.finish();
}

/// 64 unanswered requests of one client; then it is not read.
#[test]
fn a_pipelining_client_is_not_read_further() {
    let mut world = World::simple(4);
    world.serve(|seen| Some(vec![Do::Delay(1_000_000), Do::Answer(answer(seen.request))]));
    let client = world.client();
    for n in 0..4000 {
        world.get(client, &format!("{n:08}"));
    }
    world.settle();
    let taken = 4000 - world.clients[client].unread() / 42;
    assert!((64..400).contains(&taken), "{taken} requests were read");
    assert_eq!(world.nodes[0].engine.exchanges(), 64);
    world.finish();
}

/// A body larger than allowed is 413: by its declaration at once, by chunks when it is too much.
#[test]
fn a_body_over_the_limit_is_413() {
    for (body_max, declared) in [(1000, true), (1000, false), (200_000, false), (200_000, true)] {
        let mut limited = plan(1, 1);
        limited.client.body_bytes_max = Some(body_max);
        let mut world = World::started(limited, 1, 1);
        let (client, victim) = (world.client(), world.client());
        world.expect(client, "POST", false, false);
        let framing =
            if declared { "Content-Length: 300000" } else { "Transfer-Encoding: chunked" };
        world.send(client, format!("POST /p HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n").as_bytes());
        for _ in 0..30 {
            let piece = if declared {
                vec![b'x'; 10_000]
            } else {
                [b"2710\r\n", &[b'x'; 10_000][..], b"\r\n"].concat()
            };
            world.send(client, &piece);
        }
        world.get(victim, "00000001");
        world.run_for(5 * SECOND);
        assert_eq!(world.clients[client].statuses(), [413], "{body_max} {declared}");
        assert!(world.clients[client].closed);
        check_honest("00000001", &world.clients[victim].replies[0]).unwrap();
        assert!(world.requests().all(|request| request.method == "GET"));
        world.finish();
    }
}

/// Draining: clients leave after their responses, idle ones soon: a request in flight when draining
/// begins is still answered.
#[test]
fn draining_finishes_what_is_under_way() {
    let mut world = World::simple(2);
    world.serve(|seen| Some(vec![Do::Delay(SECOND), Do::Answer(answer(seen.request))]));
    let (idle, busy, double) = (world.client(), world.client(), world.client());
    let (blank, crossing) = (world.client(), world.client());
    world.send(blank, b"\r\n");
    world.get(busy, "00000001");
    world.get(double, "00000002");
    world.get(double, "00000003");
    world.settle();
    world.nodes[0].engine.drain(Farewell::All);
    world.run_for(90 * 1000);
    assert!(!world.clients[idle].closed, "a request of it may be on its way");
    world.get(crossing, "00000005");
    world.run_for(20 * 1000);
    assert!(
        world.clients[idle].closed
            && !world.clients[busy].closed
            && !world.clients[crossing].closed
    );
    assert!(world.clients[blank].closed, "an empty line is no request");
    // A request after the beginning of the drain, behind a response that says close, is not taken.
    world.get(busy, "00000004");
    world.run_for(10 * SECOND);
    assert_eq!(world.clients[busy].statuses(), [200]);
    assert!(world.clients[busy].replies[0].closes && world.clients[busy].closed);
    assert_eq!(world.clients[double].statuses(), [200, 200]);
    assert!(world.clients[double].replies[1].closes && world.clients[double].closed);
    assert_eq!(world.clients[crossing].statuses(), [200]);
    assert!(world.clients[crossing].replies[0].closes && world.clients[crossing].closed);
    assert_eq!(world.times_served("00000004"), 0);
    assert!(world.nodes[0].engine.is_drained());
    world.finish();
}

/// A response without a close is in flight when draining begins: its client's next request may be
/// as well.
#[test]
fn draining_waits_for_who_is_being_answered() {
    let mut world = World::simple(2);
    world.serve(|seen| Some(vec![Do::Answer(answer(seen.request))]));
    let client = world.client();
    world.stall(client, true);
    world.get(client, "00000001");
    world.settle();
    world.nodes[0].engine.drain(Farewell::All);
    world.run_for(SECOND);
    world.stall(client, false);
    world.get(client, "00000002");
    world.run_for(SECOND);
    assert_eq!(world.clients[client].statuses(), [200, 200]);
    assert!(!world.clients[client].replies[0].closes && world.clients[client].replies[1].closes);
    assert!(world.clients[client].closed && world.nodes[0].engine.is_drained());
    world.finish();
}

/// A listener closes: its clients are answered with a close, or are closed after 5 s without a
/// request; those of others are kept.
#[test]
fn clients_of_a_listener_that_goes_are_finished() {
    let mut world = World::simple(2);
    world.serve(|seen| Some(vec![Do::Delay(SECOND), Do::Answer(answer(seen.request))]));
    let [stays, idle, busy, late] = [1, 7, 7, 7].map(|listener| {
        world.listener = listener;
        world.client()
    });
    world.get(busy, "00000001");
    world.settle();
    world.nodes[0].engine.drain(Farewell::Listener(7));
    world.run_for(4 * SECOND);
    world.get(late, "00000002");
    world.run_for(2 * SECOND);
    assert!(world.clients[idle].closed && world.clients[busy].closed && world.clients[late].closed);
    for asked in [busy, late] {
        assert_eq!(world.clients[asked].statuses(), [200]);
        assert!(world.clients[asked].replies[0].closes);
    }
    assert!(!world.nodes[0].engine.is_drained());
    world.get(stays, "00000003");
    world.run_for(2 * SECOND);
    assert!(!world.clients[stays].closed && !world.clients[stays].replies[0].closes);
    world.finish();
}

/// A successor takes new clients: as above, for all clients, so that one that seldom sends requests
/// hears it before its connection ends.
#[test]
fn clients_of_a_retired_weir_are_finished() {
    let mut world = World::simple(2);
    world.serve(|seen| Some(vec![Do::Delay(SECOND), Do::Answer(answer(seen.request))]));
    let [idle, busy, late] = [(); 3].map(|()| world.client());
    world.get(busy, "00000001");
    world.settle();
    world.nodes[0].engine.drain(Farewell::Successor);
    world.run_for(3 * SECOND);
    assert!(!world.clients[idle].closed && world.clients[busy].closed);
    // It was accepted before that, and its handshake took its time.
    let later = world.client();
    world.run_for(SECOND);
    world.get(late, "00000002");
    world.run_for(3 * SECOND);
    assert!(world.clients[idle].closed && world.clients[idle].replies.is_empty());
    world.get(later, "00000003");
    world.run_for(2 * SECOND);
    for asked in [busy, late, later] {
        assert_eq!(world.clients[asked].statuses(), [200]);
        assert!(world.clients[asked].replies[0].closes && world.clients[asked].closed);
    }
    assert!(world.nodes[0].engine.is_drained());
    world.finish();
}

/// The time of a retired weir's requests is over: a client with a part of a response sees that it
/// is not whole.
#[test]
fn clients_that_take_too_long_are_ended() {
    let mut world = World::simple(2);
    world.serve(|seen| Some(vec![Do::Delay(100 * SECOND), Do::Answer(answer(seen.request))]));
    let (idle, busy) = (world.client(), world.client());
    world.get(busy, "00000001");
    world.settle();
    world.nodes[0].engine.drain(Farewell::Successor);
    world.run_for(SECOND);
    assert!(!world.clients[idle].closed && !world.clients[busy].closed);
    world.nodes[0].engine.drain(Farewell::AllButTunnels);
    world.run_for(SECOND);
    assert!(
        world.clients[idle].closed
            && world.clients[busy].closed
            && world.clients[busy].replies.is_empty()
    );
    assert!(world.nodes[0].engine.is_drained());
    world.run_for(200 * SECOND);
    world.finish();
}

/// A client that ends its sending direction still gets its responses, where such clients are
/// served.
#[test]
fn a_half_closed_client_is_answered() {
    let client = ClientPlan { serves_half_closed: true, ..ClientPlan::default() };
    let mut world = World::started(Plan { client, ..plan(1, 2) }, 1, 1);
    world.serve(|seen| Some(vec![Do::Delay(SECOND), Do::Answer(answer(seen.request))]));
    let client = world.client();
    for n in 0..200 {
        world.get(client, &format!("{n:08}"));
    }
    world.half_close(client);
    world.run_for(300 * SECOND);
    assert_eq!(world.clients[client].replies.len(), 200);
    assert!(world.clients[client].closed);
    let (half, body) = (world.client(), world.client());
    world.send(half, b"GET / HT");
    world.half_close(half);
    world.expect(body, "POST", false, false);
    world.send(body, b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf");
    world.half_close(body);
    world.settle();
    assert!(world.clients[half].closed && world.clients[half].replies.is_empty());
    assert_eq!(world.clients[body].statuses(), [400]);
    world.finish();
}

/// Too many clients are refused, and weir has room again when some have left.
#[test]
fn too_many_clients_are_refused() {
    use std::net::{Ipv4Addr, SocketAddr};
    let mut limited = plan(1, 1);
    limited.client.connections_max = Some(2);
    let mut world = World::started(limited, 1, 1);
    let (first, _second) = (world.client(), world.client());
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let entrance = Entrance { serves: world.serves, ..Entrance::default() };
    assert!(world.nodes[0].engine.accepted(77, peer, entrance).is_err());
    world.reset(first);
    world.settle();
    world.client();
    assert_eq!(world.count(|counters| counters.connections_refused.get()), 1);
    world.finish();
}
