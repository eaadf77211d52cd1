//! Proves: strange but legal events are counted by kind and for each connection, usual traffic
//! counts nothing, and a connection with too many of them ends in order: earlier requests are
//! answered, the last response says so, and counters and access log have the reason. How: each kind
//! separately, random mixtures against a separate count, and limits with requests in progress.
//! docs/status-glitches.md#glitches

use weir_check::upstreams::check_honest;
use weir_check::{Rules, StrictRequests};
use weir_proxy::ending::UpstreamEnd;
use weir_proxy::observe::glitch::{ClientGlitch, UpstreamGlitch};
use weir_proxy::observe::report::ConnectionReport;
use weir_proxy::plan::{PipelineMode, Plan};
use weir_proxy::upstream::trust::CLEAN_ANSWERS_MIN;

use crate::world::{Cut, Do, Rng, Seen, World, access_log, answer, plan};

/// Kinds by their words, and how often.
type Kinds = &'static [(&'static str, u64)];

/// Returns the kinds of client glitches, and how often.
fn of_clients(world: &World) -> Vec<(&'static str, u64)> {
    let count =
        |kind: ClientGlitch| world.count(|counters| counters.client_glitches[kind as usize].get());
    let all = ClientGlitch::ALL.iter().map(|(kind, word, _)| (*word, count(*kind)));
    all.filter(|(_, count)| *count > 0).collect()
}

/// Returns the kinds of server glitches, and how often.
fn of_servers(world: &World) -> Vec<(&'static str, u64)> {
    let count = |kind: UpstreamGlitch| {
        world.count(|counters| counters.upstream_glitches[kind as usize].get())
    };
    let of_server =
        |kind: UpstreamGlitch| world.count_of(0, |server| server.glitches[kind as usize].get());
    for (kind, word, _) in UpstreamGlitch::ALL {
        assert_eq!(count(*kind), of_server(*kind), "{word}");
    }
    let all = UpstreamGlitch::ALL.iter().map(|(kind, word, _)| (*word, count(*kind)));
    all.filter(|(_, count)| *count > 0).collect()
}

fn sum(kinds: &[(&str, u64)]) -> u64 {
    kinds.iter().map(|(_, count)| count).sum()
}

/// Returns a plan whose clients may make this many glitches, and whose log lines show the outcome.
fn limited(max: u32) -> Plan {
    let mut plan = plan(1, 2);
    plan.client.glitches_max = Some(max);
    plan.access_log = Some(access_log("$request_uri $status $glitches $ended_by $phase $reason"));
    plan
}

/// A request without a body and with these field lines.
fn with(fields: &str) -> String {
    format!("GET /v?n=00000001 HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

/// A chunked POST with this body.
fn chunked(body: &str) -> String {
    format!("POST /v?n=00000001 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}")
}

#[test]
fn each_kind_of_a_client() {
    let crumbs = "1\r\nx\r\n".repeat(300);
    let cases: [(&str, String, Kinds); 17] = [
        ("GET", with("").replace("GET", "\r\nGET"), &[("leading-line", 1)]),
        ("GET", with("X_a: 1\r\nX_b: 2\r\n"), &[("underscore", 1)]),
        ("GET", with("").replace("00000001", "00000001&q=café"), &[("target-raw", 1)]),
        ("GET", with("Connection: cookie, x-a\r\n"), &[("connection-list", 1)]),
        ("GET", with("Cookie: a\r\nCookie: b\r\n"), &[("field-repeated", 1)]),
        ("GET", with("").replace(" /v", " http://b/v"), &[("other-host", 1)]),
        ("GET", with("Upgrade: h2c\r\nConnection: upgrade\r\n"), &[("upgrade-ignored", 1)]),
        ("GET", with("Proxy: x\r\n"), &[("proxy-field", 1)]),
        ("GET", with("Content-Length: 2\r\n") + "xy", &[("body-unexpected", 1)]),
        (
            "DELETE",
            chunked("1\r\nx\r\n0\r\n\r\n").replace("POST", "DELETE"),
            &[("body-unexpected", 1)],
        ),
        (
            "POST",
            chunked("0\r\n\r\n").replace("Host", "Expect: 100-continue\r\nHost"),
            &[("body-unawaited", 1)],
        ),
        ("POST", chunked("1;a\r\nx\r\n2;b=\"c\"\r\nxy\r\n0;d\r\n\r\n"), &[("chunk-extension", 3)]),
        ("POST", chunked(&(crumbs + "0\r\n\r\n")), &[("chunk-crumbs", 2)]),
        ("POST", chunked("1\r\nx\r\n0\r\nX-A: 1\r\nX-B: 2\r\n\r\n"), &[("trailer-dropped", 2)]),
        // Requests that weir itself answers are checked as well.
        (
            "OPTIONS",
            with("Max-Forwards: 0\r\nX_y: 1\r\n").replace("GET", "OPTIONS"),
            &[("underscore", 1)],
        ),
        ("GET", with("X_y: 1\r\nProxy: 1\r\n"), &[("underscore", 1), ("proxy-field", 1)]),
        ("GET", with("X-Y: 1\r\nConnection: keep-alive, x-y\r\n"), &[]),
    ];
    for (method, request, kinds) in cases {
        let unlimited =
            Plan { access_log: Some(access_log("$status $glitches $reason")), ..plan(1, 2) };
        let mut world = World::started(unlimited, 1, 1);
        let client = world.client();
        for n in 1..=2 {
            world.expect(client, method, false, false);
            world.send(client, request.as_bytes());
            world.run_for(100_000);
            let expected: Vec<(&str, u64)> =
                kinds.iter().map(|(word, count)| (*word, count * n)).collect();
            assert_eq!(of_clients(&world), expected, "{request:.200}");
            let line = world.lines.last().expect("a line");
            assert!(
                line.starts_with(&format!("200 {} ", sum(&expected))),
                "{line}: {request:.200}"
            );
        }
        assert_eq!(world.clients[client].statuses(), [200, 200], "{request:.200}");
        assert!(!world.clients[client].closed);
        assert_eq!(of_servers(&world), []);
        world.finish();
    }
}

#[test]
fn a_head_in_many_small_pieces() {
    for (piece, kinds) in [(5, 2), (63, 0), (10, 1)] {
        let mut world = World::simple(1);
        let client = world.client();
        let request = with(&"X-A: 12345678901\r\n".repeat(8));
        world.expect(client, "GET", false, false);
        world.send_cut(client, request.as_bytes(), Cut::Each(piece));
        world.run_for(100_000);
        let expected = if kinds == 0 { vec![] } else { vec![("head-pieces", kinds)] };
        assert_eq!(of_clients(&world), expected, "{} bytes in pieces of {piece}", request.len());
        assert_eq!(world.clients[client].statuses(), [200]);
        world.finish();
    }
}

/// Also for input piece by piece, as long as a head has few pieces; and names with `_` where they
/// are wanted.
#[test]
fn usual_traffic_makes_none() {
    let mut wanted = plan(1, 2);
    wanted.client.underscores = true;
    let mut world = World::started(wanted, 1, 1);
    // Otherwise a POST would have a new connection: it is not known yet that this one lasts for
    // more responses.
    for n in 0..210 {
        let client = world.client();
        world.get(client, &format!("aaaa{n:04}"));
        world.settle();
        world.reset(client);
    }
    let rules = Rules { underscores: true, ..Rules::default() };
    world.conns.iter_mut().for_each(|conn| conn.judge = StrictRequests::new(rules));
    let client = world.client();
    for n in 0..50 {
        world.expect(client, "GET", false, false);
        world.send_cut(client, with("X_y: 1\r\n").as_bytes(), Cut::Each(20));
        world.post(client, &format!("{n:08}"), b"hello");
        world.expect(client, "POST", false, false);
        world.send(client, chunked("5\r\nhello\r\n5\r\nworld\r\n").as_bytes());
        world.settle();
        world.send(client, b"0\r\n\r\n");
        world.run_for(100_000);
    }
    // A stream of requests in which each small piece ends one head and begins the next.
    let requests = with("X-A: 0123456789\r\n").repeat(60);
    (0..60).for_each(|_| world.expect(client, "GET", false, false));
    world.send_cut(client, requests.as_bytes(), Cut::Each(50));
    world.run_for(100_000);
    assert_eq!(world.clients[client].replies.len(), 210);
    assert_eq!((of_clients(&world), of_servers(&world)), (vec![], vec![]));
    world.finish();
}

/// Random requests with random oddities, pipelined and cut at random: the connection's count equals
/// theirs.
#[test]
fn random_mixtures_are_counted_right() {
    let odd = [
        "X_y: 1\r\n",
        "Connection: host\r\n",
        "Range: a\r\nRange: b\r\n",
        "Upgrade: h2c\r\n",
        "Proxy: a\r\n",
    ];
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let unlimited = Plan { access_log: Some(access_log("$glitches")), ..plan(1, 4) };
        let mut world = World::started(unlimited, 1, seed);
        let client = world.client();
        let (mut bytes, mut counts) = (String::new(), Vec::new());
        for _ in 0..30 {
            let chosen: Vec<&str> = odd.into_iter().filter(|_| rng.one_in(4)).collect();
            let blank = rng.one_in(4);
            bytes += if blank { "\r\n" } else { "" };
            bytes += &with(
                &(chosen.concat()
                    + "X-Long: 0123456789012345678901234567890123456789012345678901234567890\r\n"),
            );
            counts.push(counts.last().unwrap_or(&0) + chosen.len() as u64 + u64::from(blank));
            world.expect(client, "GET", false, false);
        }
        world.send_cut(client, bytes.as_bytes(), Cut::Each(100 + rng.below(400) as usize));
        world.run_for(1_000_000);
        assert_eq!(sum(&of_clients(&world)), *counts.last().unwrap(), "seed {seed}");
        // A line has the count at the end of its exchange, which may be more than up to its
        // request.
        let lines: Vec<u64> = world.lines.iter().map(|line| line.parse().unwrap()).collect();
        assert_eq!(lines.len(), counts.len());
        assert!(
            lines.iter().zip(&counts).all(|(said, counted)| said >= counted) && lines.is_sorted(),
            "seed {seed}"
        );
        assert_eq!(lines.last(), counts.last(), "seed {seed}");
        world.finish();
    }
}

/// Over the limit with requests in progress: they are answered, in order, the last one says close,
/// and nothing behind it is sent to a server.
#[test]
fn a_client_over_the_limit_is_closed_behind_what_it_asked() {
    for pause_us in [0, 20_000] {
        let mut world = World::started(limited(2), 1, 1);
        world.serve(move |seen| Some(vec![Do::Delay(pause_us), Do::Answer(answer(seen.request))]));
        let (client, other) = (world.client(), world.client());
        for n in 0..6 {
            let odd = if n == 0 { "" } else { "X_y: 1\r\n" };
            world.ask(client, "GET", &format!("/v?n={n:08}"), odd);
        }
        world.ask(other, "GET", "/v?n=10000000", "X_y: 1\r\n");
        world.run_for(1_000_000);
        let replies = &world.clients[client].replies;
        assert_eq!(world.clients[client].statuses(), [200; 4]);
        assert_eq!(
            replies.iter().map(|reply| reply.closes).collect::<Vec<_>>(),
            [false, false, false, true]
        );
        (0..4).for_each(|n| check_honest(&format!("{n:08}"), &replies[n]).unwrap());
        assert_eq!(world.requests().count(), 5, "what came behind was not asked");
        world.run_for(3_000_000);
        assert!(world.clients[client].closed && !world.clients[client].was_reset);
        assert_eq!(world.count(|counters| counters.client_closes.get("glitches")), 1);
        let last = world.lines.iter().find(|line| line.starts_with("/v?n=00000003")).unwrap();
        assert_eq!(last, "/v?n=00000003 200 3 weir done glitches");
        let before = world.lines.iter().filter(|line| line.ends_with("none done -")).count();
        assert_eq!((world.lines.len(), before), (5, 4), "{:?}", world.lines);
        assert!(!world.clients[other].closed, "each connection has its own count");
        world.get(other, "10000001");
        world.run_for(1_000_000);
        assert!(!world.clients[other].replies[1].closes);
        world.finish();
    }
}

/// The allowed number is allowed.
#[test]
fn a_client_at_the_limit_goes_on() {
    let mut world = World::started(limited(3), 1, 1);
    let client = world.client();
    (0..3).for_each(|n| world.ask(client, "GET", &format!("/v?n={n:08}"), "X_y: 1\r\n"));
    (3..9).for_each(|n| world.get(client, &format!("{n:08}")));
    world.run_for(1_000_000);
    assert_eq!(world.clients[client].statuses(), [200; 9]);
    assert!(!world.clients[client].closed);
    world.finish();
}

/// A body that brings the count over the limit may complete; one that continues is refused.
#[test]
fn a_strange_body_over_the_limit() {
    let extended = "1;a\r\nx\r\n";
    for (chunks, statuses, line) in [
        (10, vec![200, 200], "200 10 none done -"),
        (11, vec![200], "200 11 weir done glitches"),
        (20, vec![200], "200 20 weir done glitches"),
        (21, vec![400], "400 21 weir body glitches"),
        (9_000, vec![400], "400 21 weir body glitches"),
    ] {
        let mut world = World::started(limited(10), 1, 1);
        let client = world.client();
        world.expect(client, "POST", false, false);
        let body = extended.repeat(chunks).into_bytes();
        world.send(client, chunked("").as_bytes());
        // One at a time until it is decided, then the rest.
        for (n, piece) in body.chunks(extended.len()).enumerate() {
            if n < 30 || !world.clients[client].closed {
                world.send(client, piece);
            }
            if n < 30 {
                world.settle();
            }
        }
        world.send(client, b"0\r\n\r\n");
        world.settle();
        world.get(client, "00000002");
        world.run_for(3_000_000);
        assert_eq!(world.clients[client].statuses(), statuses, "{chunks} chunks");
        assert_eq!(world.lines[0], format!("/v?n=00000001 {line}"));
        assert_eq!(world.clients[client].closed, statuses.len() == 1);
        let served = statuses.iter().filter(|status| **status == 200).count();
        assert_eq!(world.requests().count(), served, "a refused body is not forwarded");
        world.finish();
    }
}

/// A body that is already being sent to a server ends there as well.
#[test]
fn a_strange_body_that_streams() {
    let mut world = World::started(limited(10), 1, 1);
    let client = world.client();
    world.expect(client, "POST", false, false);
    world.send(client, chunked(&format!("20000\r\n{}\r\n", "x".repeat(0x20000))).as_bytes());
    world.run_for(10_000);
    assert!(world.conns.iter().any(|conn| conn.judge.current().is_some()), "it streams");
    (0..30).for_each(|_| world.send(client, b"1;a\r\nx\r\n"));
    world.run_for(3_000_000);
    assert_eq!(world.clients[client].statuses(), [400]);
    assert!(
        world.conns.iter().any(|conn| conn.closed),
        "no connection is left with half a request"
    );
    assert_eq!(world.requests().count(), 0);
    world.finish();
}

/// An incomplete head in small pieces is refused behind earlier responses.
#[test]
fn a_head_in_pieces_over_the_limit() {
    let mut world = World::started(limited(2), 1, 1);
    world.serve(|seen| Some(vec![Do::Delay(50_000), Do::Answer(answer(seen.request))]));
    let client = world.client();
    world.get(client, "00000002");
    world.settle();
    world.expect(client, "GET", false, false);
    for byte in with(&"X-A: 1\r\n".repeat(20)).bytes().take(100) {
        world.send(client, &[byte]);
        world.settle();
    }
    world.run_for(3_000_000);
    assert_eq!(world.clients[client].statuses(), [200, 400]);
    assert!(world.clients[client].closed);
    assert_eq!(world.lines, ["/v?n=00000002 200 3 none done -", "- 400 3 weir head glitches"]);
    assert_eq!(world.count(|counters| counters.client_closes.get("glitches")), 1);
    world.finish();
}

/// The piece that brings it over the limit completes the request: it is answered.
#[test]
fn a_head_in_pieces_that_is_complete_at_last() {
    let mut world = World::started(limited(2), 1, 1);
    let client = world.client();
    let request = with(&"X-A: 1\r\n".repeat(20));
    // The first piece only makes a stash; each third sixteen of those behind it is one too many.
    let (head, tail) = request.split_at(request.len() - 48);
    world.expect(client, "GET", false, false);
    world.send(client, head.as_bytes());
    tail.bytes().for_each(|byte| world.send(client, &[byte]));
    world.run_for(3_000_000);
    assert_eq!(of_clients(&world), [("head-pieces", 3)]);
    assert_eq!(world.clients[client].statuses(), [200]);
    assert!(world.clients[client].closed);
    world.finish();
}

/// An upgrade that brings its client over the limit is answered: with the last response, or with a
/// tunnel, which is not touched.
#[test]
fn an_upgrade_over_the_limit() {
    let upgrade = "Connection: upgrade, host\r\nUpgrade: websocket\r\nX_y: 1\r\n";
    for granted in [false, true] {
        let mut world = World::started(limited(1), 1, 1);
        world.serve(move |seen| {
            let switch = || vec![Do::Switch(crate::tunnels::SWITCH.to_vec())];
            Some(if granted { switch() } else { vec![Do::Answer(answer(seen.request))] })
        });
        let client = world.client();
        world.ask(client, "GET", "/v?n=00000001", upgrade);
        world.run_for(10_000);
        assert_eq!(world.clients[client].statuses(), [if granted { 101 } else { 200 }]);
        assert_eq!(world.clients[client].closed, !granted);
        if granted {
            world.send(client, &b"\r\n".repeat(100));
            world.run_for(10_000);
            assert_eq!(world.conns.iter().map(|conn| conn.tunnel.len()).sum::<usize>(), 200);
            assert!(!world.clients[client].closed);
        } else {
            assert!(world.clients[client].replies[0].closes);
        }
        world.finish();
    }
}

/// A response with these field lines, and interim responses before it and bytes behind it.
fn odd_answer(seen: &Seen<'_>, before: &str, fields: &str, behind: &str) -> Option<Vec<Do>> {
    let text = String::from_utf8(answer(seen.request)).unwrap();
    let (line, rest) = text.split_once("\r\n").unwrap();
    Some(vec![Do::Answer(format!("{before}{line}\r\n{fields}{rest}{behind}").into_bytes())])
}

/// A response whose body is chunked.
fn chunked_answer(seen: &Seen<'_>, body: &str) -> Option<Vec<Do>> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nX-Nonce: {}\r\nTransfer-Encoding: chunked\r\n\r\n",
        seen.request.nonce()
    );
    Some(vec![Do::Answer((head + body).into_bytes())])
}

type Odd = fn(&Seen<'_>) -> Option<Vec<Do>>;

#[test]
fn each_kind_of_a_server() {
    let cases: [(Odd, Kinds); 12] = [
        (
            |seen| odd_answer(seen, "HTTP/1.1 100 Continue\r\n\r\n", "", ""),
            &[("continue-unasked", 1)],
        ),
        (|seen| odd_answer(seen, &"HTTP/1.1 103 E\r\n\r\n".repeat(4), "", ""), &[]),
        (
            |seen| odd_answer(seen, &"HTTP/1.1 103 E\r\n\r\n".repeat(7), "", ""),
            &[("interim-many", 3)],
        ),
        (|seen| odd_answer(seen, "", "X-A: b\r\n c\r\nX-B: d\r\n e\r\n", ""), &[("line-fold", 1)]),
        (|seen| odd_answer(seen, "", "X-A : b\r\n", ""), &[("name-spaced", 1)]),
        (|seen| odd_answer(seen, "", "Connection: set-cookie\r\n", ""), &[("connection-list", 1)]),
        (
            |seen| odd_answer(seen, "", "Location: a\r\nLocation: b\r\n", ""),
            &[("field-repeated", 1)],
        ),
        (|seen| odd_answer(seen, "", "X_a: b\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n", ""), &[]),
        (|seen| chunked_answer(seen, "1;a\r\nx\r\n0;b\r\n\r\n"), &[("chunk-extension", 2)]),
        (
            |seen| chunked_answer(seen, &("1\r\nx\r\n".repeat(300) + "0\r\n\r\n")),
            &[("chunk-crumbs", 2)],
        ),
        (
            |seen| chunked_answer(seen, "1\r\nx\r\n0\r\nDate: a\r\nX-Sum: b\r\nHost: c\r\n\r\n"),
            &[("trailer-dropped", 2)],
        ),
        (|seen| chunked_answer(seen, "5\r\nhello\r\n0\r\nX-Sum: b\r\n\r\n"), &[]),
    ];
    for (number, (serve, kinds)) in cases.into_iter().enumerate() {
        let mut world = World::simple(1);
        world.serve(serve);
        let client = world.client();
        for n in 1..=2 {
            world.get(client, &format!("{n:08}"));
            world.run_for(10_000);
            let expected: Vec<(&str, u64)> =
                kinds.iter().map(|(word, count)| (*word, count * n)).collect();
            assert_eq!(of_servers(&world), expected, "case {number}");
            assert_eq!(u64::from(only(&world).glitches), sum(&expected), "case {number}");
        }
        assert_eq!(world.clients[client].statuses(), [200, 200], "case {number}");
        assert_eq!(of_clients(&world), []);
        world.finish();
    }
}

/// The only connection of the only server.
fn only(world: &World) -> ConnectionReport {
    let report = world.nodes[0].engine.report();
    let [connection] = &report.servers[0].connections[..] else { panic!("{report:?}") };
    connection.clone()
}

/// Line ends behind a response are counted once a response, when another request is unanswered;
/// otherwise they end the connection.
#[test]
fn line_ends_behind_answers() {
    let mut world = World::started(deep(None), 1, 1);
    earn(&mut world);
    world.serve(|seen| {
        let mut script = odd_answer(seen, "", "", "\r\n\r\n")?;
        script.insert(0, Do::Delay(1_000));
        Some(script)
    });
    let client = world.client();
    (0..4).for_each(|n| world.get(client, &format!("{n:08}")));
    world.run_for(100_000);
    assert_eq!(world.clients[client].statuses(), [200; 4]);
    assert_eq!(of_servers(&world), [("blank-line", 3)]);
    world.finish();
}

/// A server that is pipelined up to eight deep over one connection, whose connections may make this
/// many glitches.
fn deep(max: Option<u32>) -> Plan {
    let mut plan = plan(1, 1);
    plan.upstreams[0].pipeline = PipelineMode::Depth(8);
    plan.upstreams[0].glitches_max = max;
    plan
}

fn earn(world: &mut World) {
    let client = world.client();
    for n in 0..CLEAN_ANSWERS_MIN {
        world.get(client, &format!("8{n:07}"));
        world.settle();
    }
}

/// Over the limit a connection takes nothing more, runs empty and is replaced; every request is
/// answered, none twice.
#[test]
fn a_connection_over_the_limit_is_made_anew() {
    for pause_us in [0, 5_000] {
        let mut world = World::started(deep(Some(10)), 1, 1);
        earn(&mut world);
        world.serve(move |seen| {
            let mut script = odd_answer(seen, "", "X-A: b\r\n c\r\n", "")?;
            script.insert(0, Do::Delay(pause_us));
            Some(script)
        });
        let clients: Vec<usize> = (0..8).map(|_| world.client()).collect();
        for n in 0..200 {
            world.get(clients[n % 8], &format!("{n:08}"));
            if n % 8 == 7 {
                world.settle_once();
            }
        }
        world.run_for(5_000_000);
        for n in 0..200 {
            check_honest(&format!("{n:08}"), &world.clients[clients[n % 8]].replies[n / 8])
                .unwrap();
            assert_eq!(world.times_served(&format!("{n:08}")), 1);
        }
        let ended = world.count(|counters| counters.upstream_closes.get("glitches"));
        let odd = |conn: &weir_check::Request| !conn.nonce().starts_with('8');
        let most =
            world.conns.iter().map(|conn| conn.requests.iter().filter(|it| odd(it)).count()).max();
        // Eleven that are too many, and the requests that had been sent behind the eleventh.
        assert!(
            ended >= 200 / 19 && most.is_some_and(|most| (11..=19).contains(&most)),
            "{ended} ended, {most:?} on one"
        );
        assert_eq!(only(&world).closed_why, Some(UpstreamEnd::Glitches));
        assert!(only(&world).glitches <= 10, "the new connection has its own count");
        assert_eq!(sum(&of_servers(&world)), 200);
        assert_eq!(world.count(|counters| counters.doubts.iter().map(|n| n.get()).sum()), 0);
        world.finish();
    }
}

/// A response that streams is counted while it streams, and is not truncated.
#[test]
fn an_answer_that_streams_is_not_cut() {
    let mut world = World::started(deep(Some(1)), 1, 1);
    world.serve(|seen| {
        let mut script = chunked_answer(seen, "")?;
        script
            .extend((0..20).flat_map(|_| [Do::Delay(1_000), Do::Bytes(b"1;a\r\nx\r\n".to_vec())]));
        script.extend([Do::Bytes(b"0\r\n\r\n".to_vec())]);
        Some(script)
    });
    let client = world.client();
    world.get(client, "00000001");
    world.run_for(10_500);
    assert_eq!((only(&world).glitches, only(&world).closes), (10, 0));
    world.run_for(100_000);
    assert_eq!(world.clients[client].replies[0].body.length, 20);
    assert_eq!((only(&world).closes, only(&world).closed_why), (1, Some(UpstreamEnd::Glitches)));
    world.finish();
}
