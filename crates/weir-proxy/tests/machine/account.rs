//! Proves: the access log has one line for each request, when it ends, with who ended it, where,
//! and how long each part took. How: each way that a request can end, against its line;
//! [`World::finish`] compares lines and bytes in all other tests of this binary as well.
//! docs/access-log.md, and the stage account of ARCHITECTURE.md.

use weir_proxy::plan::{PipelineMode, Plan};

use crate::tunnels::SWITCH;
use crate::world::{Do, Door, Seen, World, access_log, answer, honest, plan};

/// Milliseconds in microseconds.
const MS: u64 = 1000;

fn formatted(format: &str, plan: Plan) -> Plan {
    Plan { access_log: Some(access_log(format)), ..plan }
}

/// How it ended.
const END: &str = "$request_uri $status $ended_by $phase $reason $tries";

fn world(format: &str, connections: u32) -> World {
    World::started(formatted(format, plan(1, connections)), 1, 1)
}

/// Waits as many milliseconds as the target says behind its last `/`, then answers honestly; closes
/// for `/lost`.
fn slow(seen: &Seen<'_>) -> Option<Vec<Do>> {
    let target = seen.request.target.split('?').next().unwrap_or_default();
    if target == "/lost" {
        return Some(vec![Do::Rst]);
    }
    let wait_ms: u64 = target.rsplit('/').next().and_then(|text| text.parse().ok()).unwrap_or(0);
    seen.complete.then(|| vec![Do::Delay(wait_ms * MS), Do::Answer(answer(seen.request))])
}

#[test]
fn an_answer_that_is_complete() {
    let mut world = world(
        "$request $status $bytes_sent $request_length $upstream_addr $upstream_reuse $ended_by",
        1,
    );
    let client = world.client();
    world.get(client, "00000001");
    world.settle();
    let bytes = world.clients[client].taken;
    let asked = "GET /v?n=00000001 HTTP/1.1\r\nHost: a\r\n\r\n".len();
    assert_eq!(
        world.lines,
        [format!("GET /v?n=00000001 HTTP/1.1 200 {bytes} {asked} 127.0.0.1:9000 0 none")]
    );
    world.get(client, "00000002");
    world.settle();
    assert!(world.lines[1].ends_with("127.0.0.1:9000 1 none"), "{:?}", world.lines);
    world.finish();
}

/// The parts of the time of a request with a body whose server is slow, over a connection that is
/// busy.
#[test]
fn how_long_each_part_took() {
    let format = "$request_uri $body_time $queue_time $retry_time $upstream_header_time \
                  $upstream_response_time \
                  $send_time $request_time";
    let mut world = world(format, 1);
    world.serve(slow);
    let (first, second) = (world.client(), world.client());
    world.ask(first, "GET", "/100", "");
    world.settle();
    world.expect(second, "POST", false, false);
    world.send(second, b"POST /20 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nx");
    world.run_for(30 * MS);
    world.send(second, b"y");
    world.run_for(60 * MS);
    // From here on the second one does not read.
    world.stall(second, true);
    world.run_for(50 * MS);
    world.stall(second, false);
    world.settle();
    assert_eq!(world.lines[0], "/100 - 0.000000 0.000000 0.100000 0.100000 0.000000 0.100000");
    assert_eq!(
        world.lines[1],
        "/20 0.030000 0.070000 0.000000 0.020000 0.020000 0.020000 0.140000"
    );
    world.finish();
}

/// A request that has to wait for a connection shows how much of its wait that was.
#[test]
fn the_wait_for_a_connection() {
    let mut world =
        World::new(formatted("$queue_time $upstream_connect_time $request_time", plan(1, 1)), 1, 1);
    world.servers[0].door = Door::Refuses;
    world.run_for(MS / 2);
    let client = world.client();
    world.get(client, "00000001");
    world.settle();
    world.servers[0].door = Door::Open;
    world.run_for(5000 * MS);
    let times: Vec<f64> =
        world.lines[0].split(' ').map(|text| text.parse().expect("seconds")).collect();
    assert!(times[0] > 0.0 && times[1] == times[0] && times[2] >= times[0], "{:?}", world.lines);
    world.get(client, "00000002");
    world.settle();
    assert_eq!(world.lines[1], "0.000000 - 0.000000");
    world.finish();
}

#[test]
fn refusals_by_weir() {
    let mut world = world("[$request] $status $ended_by $phase $reason $upstream_name", 1);
    for (input, line) in [
        (&b"GET / x HTTP/1.1\r\nHost: a\r\n\r\n"[..], "[GET / x HTTP/1.1] 400 weir head"),
        (b"GET /\x01\"\r\n\r\n", "[GET /\\x01\\x22] 400 weir head"),
        (b"GET / HTTP/1.1\r\n\r\n", "[GET / HTTP/1.1] 400 weir head host-missing -"),
        (
            b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
            "[CONNECT a:443 HTTP/1.1] 405 weir head connect-refused -",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "[POST / HTTP/1.1] 400 weir body",
        ),
    ] {
        let client = world.client();
        world.expect(client, "GET", false, false);
        world.send(client, input);
        world.settle();
        let last = world.lines.last().expect("a line");
        assert!(last.starts_with(line), "{last} is not {line}");
    }
    assert_eq!(world.lines.len(), 5);
    world.finish();
}

/// A head and a body that do not arrive, and a client that sends nothing at all, which is no
/// request.
#[test]
fn clients_that_are_too_slow() {
    let mut world =
        world("$request_method $request $status $ended_by $phase $reason $request_length", 1);
    let (silent, head, body, half) =
        (world.client(), world.client(), world.client(), world.client());
    for client in [head, body, half] {
        world.expect(client, "POST", false, false);
    }
    world.send(head, b"GET /slow");
    let text = "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n";
    for client in [body, half] {
        world.send(client, format!("{text}1234").as_bytes());
    }
    world.half_close(half);
    world.run_for(100_000 * MS);
    assert!(world.clients[silent].closed);
    let bytes = text.len() + 4;
    let expected = [
        format!("POST POST /p HTTP/1.1 400 client body body-truncated {bytes}"),
        format!("POST POST /p HTTP/1.1 408 weir body body-too-slow {bytes}"),
        "- GET /slow 408 weir head head-timeout 9".to_owned(),
    ];
    assert_eq!(world.lines, expected);
    world.finish();
}

#[test]
fn servers_that_fail() {
    let mut world = world(END, 1);
    world.serve(slow);
    let client = world.client();
    world.post(client, "00000001", b"x");
    world.settle();
    world.ask(client, "GET", "/lost", "");
    world.run_for(60_000 * MS);
    world.ask(client, "GET", "/90000", "");
    world.run_for(70_000 * MS);
    world.servers[0].door = Door::Refuses;
    world.say(world.open_conns()[0], Do::Rst);
    world.run_for(60_000 * MS);
    world.ask(client, "GET", "/nobody", "");
    world.settle();
    let ends: Vec<&str> =
        world.lines.iter().map(|line| line.split_once(' ').expect("a target").1).collect();
    assert_eq!(ends[0], "200 none done - 1");
    assert_eq!(ends[1], "502 server wait retries-exceeded 6");
    assert_eq!(ends[2], "504 weir wait forward-timeout 1");
    assert_eq!(ends[3], "502 server connect no-server 0");
    world.finish();
}

/// A repeated request shows how often and what that cost; the place of its end is the last
/// connection.
#[test]
fn a_retried_request() {
    let format = "$status $ended_by $tries $retry_time $upstream_connection $upstream_reuse";
    let mut world = World::started(formatted(format, plan(1, 1)), 1, 1);
    let mut losses = 1;
    world.serve(move |seen| {
        losses -= 1;
        if losses == 0 { Some(vec![Do::Delay(10 * MS), Do::Rst]) } else { honest(seen) }
    });
    let client = world.client();
    world.get(client, "00000001");
    world.run_for(1000 * MS);
    let line: Vec<&str> = world.lines[0].split(' ').collect();
    assert_eq!(line[..3], ["200", "none", "2"]);
    assert!(line[3].parse::<f64>().expect("seconds") >= 0.010, "{line:?}");
    assert_eq!(line[5], "0", "a new connection");
    world.finish();
}

#[test]
fn an_answer_that_breaks_off() {
    let mut world = world(END, 1);
    world.serve(|_| {
        let half = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf".to_vec();
        Some(vec![Do::Answer(half), Do::Delay(MS), Do::Rst, Do::Silence])
    });
    let client = world.client();
    world.ask(client, "GET", "/half", "");
    world.run_for(10 * MS);
    assert_eq!(world.lines, ["/half 200 server answer truncated 1"]);
    world.finish();
}

/// Clients that leave, at each place where they can.
#[test]
fn clients_that_leave() {
    let mut deep = plan(1, 1);
    deep.upstreams[0].pipeline = PipelineMode::Off;
    let mut world = World::started(formatted(END, deep), 1, 1);
    world.serve(|seen| match seen.request.target.as_str() {
        "/half" => Some(vec![
            Do::Answer(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf".to_vec()),
            Do::Silence,
        ]),
        _ => slow(seen),
    });
    let clients: Vec<usize> = (0..4).map(|_| world.client()).collect();
    world.ask(clients[0], "GET", "/wait/50", "");
    world.settle();
    world.ask(clients[1], "GET", "/queue", "");
    world.expect(clients[2], "POST", false, false);
    world.send(clients[2], b"POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1234");
    world.settle();
    for client in [1, 2, 0] {
        world.reset(clients[client]);
        world.settle();
    }
    world.run_for(100 * MS);
    world.ask(clients[3], "GET", "/half", "");
    world.settle();
    world.reset(clients[3]);
    world.settle();
    let reset = "client-reset";
    let expected = [
        format!("/queue 499 client queue {reset} 0"),
        format!("/body 499 client body {reset} 0"),
        format!("/wait/50 499 client wait {reset} 1"),
        format!("/half 200 client answer {reset} 1"),
    ];
    assert_eq!(world.lines, expected);
    world.finish();
}

/// Responses that arrive out of order are logged in the order of the requests, each with its own
/// time; one that is complete here but does not reach the client shows that.
#[test]
fn pipelined_clients() {
    let mut world =
        world("$request_uri $status $upstream_response_time $request_time $ended_by $phase", 3);
    world.serve(slow);
    let client = world.client();
    for target in ["/30", "/10", "/20"] {
        world.ask(client, "GET", target, "");
    }
    world.run_for(40 * MS);
    let expected = [
        "/30 200 0.030000 0.030000 none done",
        "/10 200 0.010000 0.030000 none done",
        "/20 200 0.020000 0.030000 none done",
    ];
    assert_eq!(world.lines, expected);
    world.ask(client, "GET", "/30", "");
    world.ask(client, "GET", "/10", "");
    world.run_for(20 * MS);
    world.reset(client);
    world.settle();
    assert_eq!(
        world.lines[3..],
        ["/30 499 - 0.020000 client wait", "/10 200 0.010000 0.020000 client deliver"]
    );
    world.finish();
}

/// Requests behind a response that ends the connection are not answered: that is no fault of the
/// client.
#[test]
fn requests_behind_the_end() {
    let mut world = world(END, 2);
    world.serve(|seen| match seen.request.target.as_str() {
        "/cut" => {
            let half = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf".to_vec();
            Some(vec![Do::Delay(MS), Do::Answer(half), Do::Delay(MS), Do::Rst, Do::Silence])
        }
        _ => Some(vec![Do::Silence]),
    });
    let client = world.client();
    world.ask(client, "GET", "/cut", "");
    world.ask(client, "GET", "/behind", "");
    world.run_for(10 * MS);
    assert_eq!(
        world.lines,
        ["/cut 200 server answer truncated 1", "/behind 444 weir wait connection-closed 1"]
    );
    world.finish();
}

/// Facts that another worker's connection knows come with the response.
#[test]
fn a_request_that_crosses() {
    let format = "$worker $upstream_worker $upstream_addr $tries $upstream_header_time $status";
    let mut world = World::started(formatted(format, plan(1, 1)), 2, 1);
    world.serve(slow);
    for node in 0..2 {
        let client = world.client_of(node);
        world.ask(client, "GET", "/7", "");
        world.run_for(20 * MS);
    }
    assert_eq!(world.lines[0], "0 0 127.0.0.1:9000 1 0.007000 200");
    assert_eq!(world.lines[1], "1 0 127.0.0.1:9000 1 0.007000 200");
    world.finish();
}

/// A tunnel has its line at its end, with the bytes both ways, whichever side ends it.
#[test]
fn tunnels() {
    let asks = "Connection: upgrade\r\nUpgrade: websocket\r\n";
    for (ends, workers, expected) in [
        (0, 1, "none done -"),
        (1, 1, "client tunnel client-reset"),
        (2, 1, "server tunnel truncated"),
        (0, 2, "none done -"),
    ] {
        let format = "$status $request_length $body_bytes_sent $ended_by $phase $reason";
        let mut world = World::started(formatted(format, plan(1, 1)), workers, 1);
        world.serve(|_| Some(vec![Do::Switch(SWITCH.to_vec())]));
        let client = world.client_of(usize::from(workers) - 1);
        world.ask(client, "GET", "/ws", asks);
        world.settle();
        world.send(client, b"12345");
        world.settle();
        let conn = world.conns.iter().position(|conn| conn.tunnel == b"12345").expect("a tunnel");
        world.say(conn, Do::Bytes(vec![b'x'; 1000]));
        world.run_for(MS);
        assert!(world.lines.is_empty(), "{:?}", world.lines);
        match ends {
            0 => {
                world.half_close(client);
                world.say(conn, Do::Fin);
            }
            1 => world.reset(client),
            _ => world.say(conn, Do::Rst),
        }
        world.run_for(10 * MS);
        let head = "GET /ws HTTP/1.1\r\nHost: a\r\n\r\n".len() + asks.len();
        assert_eq!(world.lines, [format!("101 {} 1000 {expected}", head + 5)], "ended by {ends}");
        world.finish();
    }
}

/// Interim responses are not the body.
#[test]
fn interim_answers_count_as_head() {
    let mut world = world("$status $body_bytes_sent", 1);
    world.serve(|seen| {
        let hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".to_vec();
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc".to_vec();
        seen.complete.then(|| vec![Do::Bytes(hints), Do::Answer(answer)])
    });
    let client = world.client();
    world.get(client, "00000001");
    world.expect(client, "POST", false, false);
    world.send(
        client,
        b"POST /p HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n",
    );
    // Its server has no opinion on the body.
    world.run_for(1_100 * MS);
    world.send(client, b"x");
    world.settle();
    assert_eq!(world.lines, ["200 3", "200 3"]);
    world.finish();
}

/// Without a log, neither lines nor mail for them exist.
#[test]
fn off() {
    let [with, without] = [plan(1, 1), Plan { access_log: None, ..plan(1, 1) }].map(|plan| {
        let mut world = World::started(plan, 2, 1);
        let client = world.client_of(1);
        world.get(client, "00000001");
        world.settle();
        assert_eq!(world.clients[client].statuses(), [200]);
        let counted = (world.lines.len(), world.count(|counters| counters.mail_sent.get()));
        world.finish();
        counted
    });
    assert_eq!((with.0, without.0, with.1 - without.1), (1, 0, 1));
}
