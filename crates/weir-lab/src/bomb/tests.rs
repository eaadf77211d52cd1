//! Proves: every connection and request is counted once, with its outcome; a stall of the server
//! shows in the corrected latency and not in the raw one; every figure of the summary can be made
//! again from the raw file. How: the embedded origin misbehaves as configured and counts the
//! results, both drivers are used, and independent code reads the file.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use serde_json::Value;
use weir_io::bind_listener;

use super::*;
use crate::origin::{self, Kind, Misbehaviours, OriginHandle, OriginOptions, OriginStats};
use crate::target::Target;

fn origin_that(misbehaves: &[&str]) -> OriginHandle {
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    let rules = Misbehaviours::parse(misbehaves).unwrap();
    origin::spawn_misbehaving(OriginOptions { listen, threads: 1, io: IoChoice::Epoll }, rules)
        .unwrap()
}

fn class_to(address: SocketAddr, path: &str) -> Class {
    let target = Target {
        address,
        host: address.to_string(),
        path: path.to_owned(),
        name: address.ip().to_string(),
        is_tls: false,
    };
    let request = Request::new(&target.host, path, 1, &Spelling::default()).unwrap();
    Class {
        name: "all".to_owned(),
        target,
        connections: 4,
        rate: None,
        poisson: false,
        behaviour: Behaviour::Normal,
        sources: None,
        mix: Mix::new(vec![request]).unwrap(),
        http2: false,
        depth: 1,
        close_every: None,
        ending: Ending::Announced,
        seed: 1,
        drip: None,
        tls: None,
    }
}

fn plan(classes: Vec<Class>, io: IoChoice) -> Plan {
    Plan {
        classes,
        threads: 2,
        own: 0..2,
        io,
        duration_us: None,
        requests: Some(1000),
        warm_up_us: 0,
        connect_timeout_us: 300_000,
        timeout_us: 5_000_000,
        late_us: 1_000_000,
        same_body: false,
        seed: 1,
        stop: Arc::default(),
    }
}

fn run_plan(plan: &Plan) -> (Record, Summary) {
    let record = run(plan, |_, _| {}).unwrap();
    let summary = Summary::of(&record);
    (record, summary)
}

/// Both drivers; where io_uring is forbidden, epoll twice.
const DRIVERS: [IoChoice; 2] = [IoChoice::Auto, IoChoice::Epoll];

/// Runs the requests against an origin that misbehaves, and returns both accounts.
fn accounts(misbehaves: &[&str], change: impl Fn(&mut Plan)) -> Vec<(Counts, OriginStats)> {
    let both = DRIVERS.map(|io| {
        let server = origin_that(misbehaves);
        let mut plan = plan(vec![class_to(server.local_addr(), "/?size=2000")], io);
        change(&mut plan);
        let (_, summary) = run_plan(&plan);
        let counts = summary.total.counted().clone();
        // The origin publishes once a turn: a request after all others is answered in a later one.
        let address = server.local_addr();
        let mut last = self::plan(vec![class_to(address, "/__stats")], IoChoice::Epoll);
        (last.requests, last.threads, last.own) = (Some(1), 1, 0..1);
        run_plan(&last);
        (counts, server.stats())
    });
    both.into()
}

#[test]
fn every_request_is_answered_once() {
    for depth in [1, 7] {
        for (counts, server) in accounts(&[], |plan| plan.classes[0].depth = depth) {
            assert_eq!((counts.outcomes(Outcome::Answered), counts.offered()), (1000, 1000));
            assert_eq!((counts.statuses[&200], counts.connects(Connect::Established)), (1000, 4));
            assert_eq!((counts.ends(End::Ours), counts.failed(), counts.blocked()), (4, 0, 0));
            assert!(server.requests > 1000 && counts.bytes_in > 2_000_000);
        }
    }
}

#[test]
fn connections_are_closed_as_often_as_asked() {
    for (counts, server) in accounts(&[], |plan| plan.classes[0].close_every = Some(5)) {
        assert_eq!((counts.outcomes(Outcome::Answered), counts.failed()), (1000, 0));
        assert!((200..=204).contains(&counts.connects(Connect::Established)), "{counts:?}");
        assert!(server.connects >= counts.connects(Connect::Established));
        assert!(counts.ends(End::Announced) >= 196, "{counts:?}");
    }
}

#[test]
fn by_the_clock_a_connection_is_made_when_it_is_due() {
    for io in DRIVERS {
        let server = origin_that(&[]);
        let mut plan = plan(vec![class_to(server.local_addr(), "/")], io);
        plan.classes[0].rate = Some(Rate::parse("200").unwrap());
        plan.classes[0].close_every = Some(1);
        plan.requests = Some(21);
        let (_, summary) = run_plan(&plan);
        let counts = summary.total.counted();
        assert_eq!((counts.outcomes(Outcome::Answered), counts.failed()), (21, 0), "{summary}");
        assert_eq!(counts.connects(Connect::Established), 21, "none is made in advance: {summary}");
        let (due, sent, connect) =
            (summary.total.corrected, summary.total.raw, summary.total.connect);
        let [due, sent, connect] = [due, sent, connect].map(|times| times.unwrap().mean_us);
        // A histogram keeps three digits.
        assert!(
            due >= (sent + connect) * 0.99,
            "connecting belongs to what a user waits for: {summary}"
        );
    }
}

#[test]
fn a_request_whose_connection_fails_goes_on_waiting() {
    let nobody = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    for io in DRIVERS {
        let mut plan = plan(vec![class_to(nobody, "/")], io);
        plan.classes[0].rate = Some(Rate::parse("1000").unwrap());
        plan.classes[0].close_every = Some(3);
        (plan.requests, plan.timeout_us) = (Some(10), 100_000);
        let (_, summary) = run_plan(&plan);
        let counts = summary.total.counted();
        assert_eq!((counts.outcomes(Outcome::Unsent), counts.offered()), (10, 10), "{summary}");
        assert!(
            counts.connects(Connect::Refused) > 0 && summary.total.last_failure_seconds.is_some(),
            "{summary}"
        );
        assert!(summary.total.reached_nobody(), "{summary}");
    }
}

#[test]
fn what_a_server_does_wrong_is_counted_as_it_counts() {
    type Row = (&'static str, Kind, Outcome);
    let rows: [Row; 4] = [
        ("reset=33%", Kind::Reset, Outcome::Reset),
        ("hang-up=20%", Kind::HangUp, Outcome::Closed),
        ("truncate:10%", Kind::Truncate, Outcome::Truncated),
        ("garble:25%", Kind::Garble, Outcome::WrongBody),
    ];
    for (rule, kind, outcome) in rows {
        for (counts, server) in accounts(&[rule], |plan| plan.same_body = kind == Kind::Garble) {
            let done = server.misbehaved.count(kind);
            // The first body may be the wrong one: then all right ones count as wrong.
            let wrong = counts.outcomes(outcome);
            let turned = kind == Kind::Garble && wrong == 1000 - done;
            assert!(
                done > 50 && (wrong == done || wrong + 1 == done || turned),
                "{rule}: {counts:?} {done}"
            );
            assert_eq!(counts.offered(), 1000, "{rule}");
            assert_eq!(counts.outcomes(Outcome::Answered) + wrong, 1000, "{rule}: {counts:?}");
        }
    }
}

#[test]
fn connections_that_are_reset_at_once_are_told_from_those_that_nobody_accepts() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    for io in DRIVERS {
        let mut plan = plan(vec![class_to(address, "/")], io);
        (plan.duration_us, plan.requests) = (Some(200_000), None);
        let (_, summary) = run_plan(&plan);
        let counts = summary.total.counted();
        assert!(
            counts.connects(Connect::Refused) >= 4 && counts.connects(Connect::Established) == 0,
            "{counts:?}"
        );
        assert_eq!((counts.blocked(), counts.offered()), (counts.connects(Connect::Refused), 0));
        assert!(summary.total.first_block_seconds.unwrap() < 0.1);
    }
}

#[test]
fn a_reset_at_once_is_one_whenever_it_is_seen() {
    // With more connections than requests some have no request when they are reset.
    let cases = [(None, 100, 4), (Some("2000"), 100, 4), (None, 6, 40)];
    for (io, (rate, requests, connections)) in
        DRIVERS.into_iter().flat_map(|io| cases.map(|case| (io, case)))
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let mut class = class_to(address, "/");
        (class.close_every, class.rate) = (Some(1), rate.map(|rate| Rate::parse(rate).unwrap()));
        class.connections = connections;
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        // Until the end: the generator may connect for a request that another connection makes
        // then.
        let server = std::thread::spawn(move || {
            for stream in listener.incoming().take_while(|_| !is_over.load(Ordering::SeqCst)) {
                let stream = stream.unwrap();
                socket2::SockRef::from(&stream)
                    .set_linger(Some(std::time::Duration::ZERO))
                    .unwrap();
            }
        });
        let mut plan = plan(vec![class], io);
        plan.requests = Some(requests);
        let (_, summary) = run_plan(&plan);
        over.store(true, Ordering::SeqCst);
        // Refused when one of the generator's was the last.
        drop(std::net::TcpStream::connect(address));
        server.join().unwrap();
        let counts = summary.total.counted();
        assert_eq!(
            (counts.outcomes(Outcome::Reset), counts.offered()),
            (requests, requests),
            "{summary}"
        );
        assert!(counts.connects(Connect::Refused) == 0 || rate.is_none(), "{summary}");
    }
}

#[test]
fn silence_is_counted_as_dropped() {
    for io in DRIVERS {
        // A queue of one that is never emptied: the kernel completes a handshake or two and drops
        // later packets.
        let listener = bind_listener((Ipv4Addr::LOCALHOST, 0).into(), 1).unwrap();
        let mut class = class_to(listener.local_addr().unwrap(), "/");
        class.connections = 10;
        let mut plan = plan(vec![class], io);
        (plan.duration_us, plan.requests) = (Some(500_000), None);
        let (_, summary) = run_plan(&plan);
        let counts = summary.total.counted();
        assert!((1..=3).contains(&counts.connects(Connect::Established)), "{counts:?}");
        assert!(counts.connects(Connect::TimedOut) >= 7, "{counts:?}");
        assert_eq!(counts.outcomes(Outcome::Unfinished), counts.connects(Connect::Established));
    }
}

#[test]
fn a_stall_shows_in_the_corrected_latency_only() {
    // One response of 500 takes 300 ms: with one connection the 150 requests that become due
    // meanwhile wait for it.
    for io in DRIVERS {
        let server = origin_that(&["stall=300ms:every=500"]);
        let mut class = class_to(server.local_addr(), "/");
        (class.connections, class.rate) = (1, Some(Rate::parse("500").unwrap()));
        let mut plan = plan(vec![class], io);
        (plan.threads, plan.own, plan.requests) = (1, 0..1, Some(900));
        let (_, summary) = run_plan(&plan);
        let (corrected, raw) = (summary.total.corrected.unwrap(), summary.total.raw.unwrap());
        assert_eq!((corrected.count, raw.count), (900, 900));
        assert!(corrected.p99_us >= 250_000 && corrected.p90_us >= 100_000, "{corrected:?}");
        assert!(raw.max_us >= 300_000 && raw.p99_us < corrected.p99_us / 2, "{raw:?}");
    }
}

#[test]
fn classes_have_their_own_addresses_rates_and_results() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let base = class_to(address, "/");
    let parse = |text: &str| Class::parse(text, &base, &Spelling::default()).unwrap();
    let classes = vec![
        parse("holders: behave=hold, connections=3, source=127.0.9.1-127.0.9.3"),
        parse("b: connections=1"),
    ];
    let mut plan = plan(classes, IoChoice::Auto);
    (plan.duration_us, plan.requests) = (Some(300_000), None);
    let accepts = std::thread::spawn(move || {
        let streams: Vec<_> = (0..4).map(|_| listener.accept().unwrap()).collect();
        let peers: std::collections::BTreeSet<_> =
            streams.iter().map(|(_, peer)| peer.ip().to_string()).collect();
        // Kept open until the run has ended.
        (peers, streams)
    });
    let (_, summary) = run_plan(&plan);
    let (peers, _streams) = accepts.join().unwrap();
    let expected: Vec<_> =
        ["127.0.0.1", "127.0.9.1", "127.0.9.2", "127.0.9.3"].map(str::to_owned).into();
    assert_eq!(peers.into_iter().collect::<Vec<_>>(), expected);
    let holders = summary.class("holders").unwrap().counted();
    assert_eq!((holders.outcomes(Outcome::Unfinished), holders.bytes_out), (3, 0));
    assert_eq!(summary.class("b").unwrap().counted().outcomes(Outcome::Unfinished), 1);
    // Clients that only hold connections want no response, and do not make up for those that send
    // requests and get none.
    let failed = ["holders", "b"].map(|name| summary.class(name).unwrap().failed_entirely());
    assert_eq!((failed, summary.total.failed_entirely()), ([false, true], true), "{summary}");
}

/// A client that only holds connections makes them when they are due, and another one when it has
/// lost one.
#[test]
fn connections_that_are_held_begin_by_the_clock() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let base = class_to(listener.local_addr().unwrap(), "/");
    let class = Class::parse(
        "held: behave=hold, rate=0/200ms+50, connections=8",
        &base,
        &Spelling::default(),
    )
    .unwrap();
    let mut plan = Plan { threads: 1, own: 0..1, ..plan(vec![class], IoChoice::Auto) };
    (plan.duration_us, plan.requests) = (Some(2_000_000), None);
    let begun = std::time::Instant::now();
    let accepts = std::thread::spawn(move || {
        let (first, _) = listener.accept().unwrap();
        let after = begun.elapsed();
        drop(first);
        // Kept open until the run has ended.
        let held: Vec<_> = (0..8).map(|_| listener.accept().unwrap()).collect();
        (after, held)
    });
    let (_, summary) = run_plan(&plan);
    let (after, _held) = accepts.join().unwrap();
    assert!(after.as_millis() >= 200, "{after:?}");
    let held = summary.class("held").unwrap().counted();
    assert_eq!(
        (held.outcomes(Outcome::Closed), held.outcomes(Outcome::Unfinished)),
        (1, 8),
        "{summary}"
    );
    assert!(!summary.total.failed_entirely(), "{summary}");
    assert_eq!(
        (held.offered(), held.bytes_out),
        (90, 0),
        "what finds all of them in use is not sent: {summary}"
    );
}

#[test]
fn the_last_failure_has_its_moment_and_the_waiting_of_slow_clients_is_none() {
    let server = origin_that(&["stall=400ms:every=2"]);
    let base = class_to(server.local_addr(), "/");
    let parse = |text: &str| Class::parse(text, &base, &Spelling::default()).unwrap();
    let classes = vec![
        parse("posts: method=POST, body=x=1, path=/a?id={serial}, connections=1"),
        parse("good: connections=1, path=/__stats"),
        parse("held: behave=hold, connections=1"),
    ];
    let mut plan = plan(classes, IoChoice::Auto);
    (plan.duration_us, plan.requests, plan.timeout_us) = (Some(300_000), None, 100_000);
    let (_, summary) = run_plan(&plan);
    let of = |name: &str| summary.class(name).unwrap();
    assert!(of("posts").counted().outcomes(Outcome::TimedOut) >= 1, "{summary}");
    assert!((0.1..5.0).contains(&of("posts").last_failure_seconds.unwrap()), "{summary}");
    assert_eq!(
        (of("good").last_failure_seconds, of("held").last_failure_seconds),
        (None, None),
        "{summary}"
    );
}

#[test]
fn slow_and_broken_clients_send_what_they_say() {
    let server = origin_that(&[]);
    let base = class_to(server.local_addr(), "/sum");
    let parse = |text: &str| Class::parse(text, &base, &Spelling::default()).unwrap();
    let classes = vec![
        parse("drips: pieces=7/1ms, connections=2"),
        parse("heads: behave=slow-head, connections=1"),
        parse("bodies: behave=slow-body, pieces=1000/1ms, connections=1"),
        parse("readers: behave=slow-reader, path=/?size=100000, connections=1"),
        parse("broken: behave=malformed, connections=1"),
        parse("large: behave=oversized, connections=1"),
        parse("flood: behave=connect-flood, rate=100, connections=5"),
    ];
    let mut plan = plan(classes, IoChoice::Auto);
    (plan.duration_us, plan.requests) = (Some(400_000), None);
    let (_, summary) = run_plan(&plan);
    let counts = |name: &str| summary.class(name).unwrap().counted();
    // How many there are in the time depends on the machine.
    assert!(counts("drips").answered() > 0 && counts("drips").failed() == 0, "{summary}");
    assert_eq!(
        (counts("heads").outcomes(Outcome::Unfinished), counts("heads").bytes_out),
        (1, 1),
        "{summary}"
    );
    assert!(counts("bodies").bytes_out > 1000 && counts("bodies").answered() == 0, "{summary}");
    assert!(counts("readers").bytes_in >= 4096 && counts("readers").answered() == 0, "{summary}");
    assert!(counts("broken").status_class(4) + counts("broken").status_class(5) > 0, "{summary}");
    assert!(counts("large").status_class(4) > 0 || counts("large").failed() > 0, "{summary}");
    assert!((1..=41).contains(&counts("flood").outcomes(Outcome::Connected)), "{summary}");
}

#[test]
fn connections_end_as_they_are_told_to_and_without_a_word_before() {
    for (io, end) in DRIVERS.into_iter().flat_map(|io| ["fin", "rst"].map(|end| (io, end))) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let base = class_to(listener.local_addr().unwrap(), "/");
        let parse = |text: &str| Class::parse(text, &base, &Spelling::default()).unwrap();
        let asks = parse(&format!("asks: connections=1, close-every=1, end={end}"));
        let floods = parse(&format!("floods: connections=1, behave=connect-flood, end={end}"));
        // What a server sees of the connection after its response, or before a request; and the
        // request.
        let serve = move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; 1000];
            match stream.read(&mut request) {
                Err(error) => return (error.kind() == ErrorKind::ConnectionReset, String::new()),
                Ok(length) => request.truncate(length),
            }
            if !request.is_empty() {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
            }
            let is_reset = stream
                .read(&mut [0])
                .is_err_and(|error| error.kind() == ErrorKind::ConnectionReset);
            (is_reset, String::from_utf8(request).unwrap())
        };
        let server = std::thread::spawn(move || [serve(), serve()]);
        for (class, outcome) in [(asks, Outcome::Answered), (floods, Outcome::Connected)] {
            let mut plan = plan(vec![class], io);
            (plan.threads, plan.own, plan.requests) = (1, 0..1, Some(1));
            let (_, summary) = run_plan(&plan);
            let counts = summary.total.counted();
            assert_eq!(
                (counts.outcomes(outcome), counts.ends(End::Ours)),
                (1, 1),
                "{end}: {summary}"
            );
        }
        let is_reset = end == "rst";
        let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", base.target.host);
        assert_eq!(
            server.join().unwrap(),
            [(is_reset, request), (is_reset, String::new())],
            "{end}"
        );
    }
}

#[test]
fn whatever_is_odd_in_a_valid_request_has_an_answer() {
    for io in DRIVERS {
        let server = origin_that(&[]);
        let base = class_to(server.local_addr(), "/");
        let odd =
            Class::parse("odd: behave=fuzz, seed=42, connections=4", &base, &Spelling::default())
                .unwrap();
        let (_, summary) = run_plan(&plan(vec![odd], io));
        let counts = summary.total.counted();
        assert_eq!(
            (counts.answered(), counts.offered(), counts.statuses.get(&400)),
            (1000, 1000, None),
            "{summary}"
        );
    }
}

#[test]
fn a_run_ends_when_told_and_keeps_what_it_has() {
    let server = origin_that(&[]);
    let mut plan = plan(vec![class_to(server.local_addr(), "/")], IoChoice::Auto);
    (plan.duration_us, plan.requests) = (Some(3_600_000_000), None);
    let stop = Arc::clone(&plan.stop);
    // Set after the first second that was reported.
    let record = run(&plan, |_, _| stop.store(true, Ordering::Relaxed)).unwrap();
    let summary = Summary::of(&record);
    assert!(summary.total.counted().answered() > 100 && summary.seconds < 60.0, "{summary}");
}

/// Adds up the lines of a class with independent code.
struct Recount {
    words: BTreeMap<String, u64>,
    times: BTreeMap<&'static str, Vec<(u64, u64)>>,
}

fn recount(lines: &[Value]) -> Recount {
    let mut all = Recount { words: BTreeMap::new(), times: BTreeMap::new() };
    for line in lines.iter().filter(|line| line["kind"] == "second") {
        for group in ["connections", "requests", "ends", "statuses"] {
            for (word, count) in line[group].as_object().unwrap() {
                *all.words.entry(format!("{group}.{word}")).or_default() += count.as_u64().unwrap();
            }
        }
        for name in ["raw_us", "corrected_us", "connect_us"] {
            for pair in line[name].as_array().unwrap() {
                all.times
                    .entry(name)
                    .or_default()
                    .push((pair[0].as_u64().unwrap(), pair[1].as_u64().unwrap()));
            }
        }
    }
    all.times.values_mut().for_each(|pairs| pairs.sort_unstable());
    all
}

/// Returns the smallest value that this many of 10,000 don't exceed.
fn quantile(pairs: &[(u64, u64)], of_10_000: u64) -> u64 {
    let all: u64 = pairs.iter().map(|(_, count)| count).sum();
    let wanted = (all * of_10_000).div_ceil(10_000);
    let mut seen = 0;
    let found = pairs.iter().find(|(_, count)| {
        seen += count;
        seen >= wanted
    });
    found.unwrap().0
}

#[test]
fn the_summary_can_be_made_again_from_the_raw_file() {
    let server = origin_that(&["reset=5%", "status=503:10%"]);
    let mut class = class_to(server.local_addr(), "/?size=100");
    (class.connections, class.rate) = (8, Some(Rate::parse("1000..3000/1s,500").unwrap()));
    let mut plan = plan(vec![class], IoChoice::Auto);
    (plan.duration_us, plan.requests) = (Some(1_500_000), None);
    let (record, summary) = run_plan(&plan);
    let file: Vec<String> =
        record.lines().map(|line| serde_json::to_string(&line).unwrap()).collect();
    let lines: Vec<Value> = file.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let summary = serde_json::to_value(&summary).unwrap();
    let again = Summary::of(&Record::read(&file.join("\n")).unwrap());
    assert_eq!(serde_json::to_value(&again).unwrap(), summary);
    let total = &summary["total"];
    let recount = recount(&lines);
    let mut words = BTreeMap::new();
    for group in ["connections", "requests", "ends", "statuses"] {
        for (word, count) in total[group].as_object().unwrap() {
            words.insert(format!("{group}.{word}"), count.as_u64().unwrap());
        }
    }
    assert_eq!(words, recount.words);
    for (name, figures) in
        [("raw_us", "raw"), ("corrected_us", "corrected"), ("connect_us", "connect")]
    {
        let pairs = &recount.times[name];
        for (figure, of_10_000) in
            [("p50_us", 5000), ("p90_us", 9000), ("p99_us", 9900), ("p999_us", 9990)]
        {
            assert_eq!(total[figures][figure], quantile(pairs, of_10_000), "{name} {figure}");
        }
        assert_eq!(total[figures]["max_us"], pairs.last().unwrap().0);
        assert_eq!(total[figures]["count"], pairs.iter().map(|(_, count)| count).sum::<u64>());
    }
    let thread = |name: &str| {
        let threads = lines.iter().filter(|line| line["kind"] == "thread");
        threads.map(|line| line[name].as_u64().unwrap()).max().unwrap() as f64
    };
    let seconds = thread("counted_us") / 1e6;
    let answered = recount.words["requests.answered"] as f64;
    let close =
        |value: &Value, expected: f64| (value.as_f64().unwrap() - expected).abs() < 1e-6 * expected;
    assert!(close(&summary["seconds"], seconds));
    assert!(close(&total["answered_per_second"], answered / seconds));
    let turned_away = recount.words["requests.reset"] + recount.words["statuses.503"];
    let offered: u64 = recount
        .words
        .iter()
        .filter(|(word, _)| word.starts_with("requests."))
        .map(|(_, count)| count)
        .sum();
    assert!(close(&total["blocked"], turned_away as f64 / offered as f64), "{total}");
    // 2,000 in the first second, 250 in the half second after it.
    assert_eq!(offered, 2250);
}

#[test]
fn log_and_report_say_what_the_summary_says() {
    let server = origin_that(&["reset=10%"]);
    let mut first = class_to(server.local_addr(), "/<b>");
    (first.name, first.rate) = ("due".to_owned(), Some(Rate::parse("500").unwrap()));
    let second = Class { name: "closed".to_owned(), rate: None, ..first.clone() };
    let mut plan = plan(vec![first, second], IoChoice::Auto);
    (plan.duration_us, plan.requests) = (Some(2_000_000), None);
    let (record, summary) = run_plan(&plan);
    let mut log = Vec::new();
    record.write_hdr_log(&mut log, std::time::SystemTime::now()).unwrap();
    for class in &summary.classes {
        let mut read = slice::histogram();
        let mut deserializer = Deserializer::new();
        for entry in IntervalLogIterator::new(&log) {
            let LogEntry::Interval(interval) = entry.unwrap() else { continue };
            if interval.tag().unwrap().as_str() == class.name {
                let bytes = base64_decoded(interval.encoded_histogram());
                read.add(deserializer.deserialize::<u64, _>(&mut &bytes[..]).unwrap()).unwrap();
            }
        }
        assert_eq!(read.len(), class.counted().answered());
        assert_eq!(Some(read.value_at_quantile(0.99)), class.latency_us(0.99));
    }
    let page = html(&record, &summary).unwrap();
    assert_eq!(page.matches("<svg").count(), 4, "answers, blocked, 99th percentile, percentiles");
    assert!(page.contains(&summary.total.counted().answered().to_string()), "the counts are in it");
    assert!(page.contains("/&lt;b&gt;") && !page.contains("<b>"), "what was typed is escaped");
    assert!(
        !page.contains("<script") && !page.contains("src=") && !page.contains("href="),
        "it needs no network"
    );
}

/// RFC 4648 §4, to avoid a library for one test.
fn base64_decoded(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut held, mut out) = (0u32, 0, Vec::new());
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        bits = bits << 6 | ALPHABET.iter().position(|letter| *letter == byte).unwrap() as u32;
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    out
}

#[test]
fn what_cannot_work_is_said_before_any_load() {
    let address = (Ipv4Addr::LOCALHOST, 9).into();
    let base = class_to(address, "/");
    let with = |class: Class| plan(vec![class], IoChoice::Auto);
    let many = Class { connections: 100_000, ..base.clone() };
    assert_eq!(
        (processes(&with(base.clone()), 20_000), processes(&with(many.clone()), 20_000)),
        (1, 6)
    );
    assert!(check(&with(many.clone()), 1_000).unwrap_err().contains("descriptors"));
    assert!(check(&with(many.clone()), u64::MAX).unwrap_err().contains("--source"));
    let spread = Class { sources: Some(Sources::parse("127.0.0.0/24").unwrap()), ..many };
    assert_eq!(check(&with(spread), u64::MAX), Ok(()));
    let hold = Class { behaviour: Behaviour::Hold, ..base.clone() };
    assert!(check(&with(hold), 20_000).unwrap_err().contains("-d"));
    let twice = plan(vec![base.clone(), base.clone()], IoChoice::Auto);
    assert!(check(&twice, 20_000).unwrap_err().contains("two classes"));
    for text in [
        "x y: connections=1",
        ": connections=1",
        "a: connections=0",
        "a: conections=1",
        "a: connections",
        "a: behave=bad",
        "a: rate=x",
        "a: source=::1",
        "a: behave=hold, close-every=5",
        "a: behave=connect-flood, pipeline=2",
        "a: pieces=1/1ms, pipeline=2",
        "a: path=x",
        "a: end=x",
        "a: seed=-1",
    ] {
        assert!(Class::parse(text, &base, &Spelling::default()).is_err(), "{text}");
    }
    let as_http1 = Class { http2: true, ..base.clone() };
    assert!(
        as_http1.arrange().is_err_and(|why| why.contains("HTTP/1.1")),
        "its requests have another form"
    );
    let class = Class::parse(
        "a: rate=100/1s+200, behave=normal, close-every=never",
        &base,
        &Spelling::default(),
    )
    .unwrap();
    assert_eq!((class.rate.unwrap().expected(2.0), class.close_every), (300.0, None));
}

#[test]
fn connections_to_this_machine_come_from_as_many_addresses_as_their_ports_ask_for() {
    let of = |address: &str, connections, sources: Option<&str>| Class {
        connections,
        sources: sources.map(|text| Sources::parse(text).unwrap()),
        ..class_to(address.parse().unwrap(), "/")
    };
    let spread = |class: Class| {
        let mut plan = plan(vec![class], IoChoice::Auto);
        super::spread(&mut plan);
        plan.classes[0].sources.map(|sources| sources.count())
    };
    // No range of ports is as large as this.
    assert_eq!(spread(of("127.0.0.1:1", 70_000, None)), Some(254));
    assert_eq!(spread(of("127.0.0.1:1", 64, None)), None, "enough of them");
    assert_eq!(spread(of("10.0.0.1:1", 70_000, None)), None, "addresses of others are not taken");
    assert_eq!(
        spread(of("127.0.0.1:1", 70_000, Some("127.0.0.9"))),
        Some(1),
        "what was said holds"
    );
}
