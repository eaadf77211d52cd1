//! Proves: each misbehaviour does what its name says, as often as it shall, and the origin's counts
//! are those of the clients. How: real sockets on both drivers, one connection at a time, every
//! byte and every end checked.

use std::io::{BufRead, BufReader, ErrorKind};

use weir_check::waiting::Waiting;

use super::*;

/// Runs a test body on each driver against an origin with these misbehaviours.
fn badly(texts: &str, body: impl Fn(&OriginHandle)) {
    let misbehaviours: Misbehaviours = texts.parse().unwrap();
    for io in [IoChoice::Epoll, IoChoice::Uring] {
        let options = OriginOptions { listen: (Ipv4Addr::LOCALHOST, 0).into(), threads: 2, io };
        match spawn_misbehaving(options, misbehaviours) {
            Ok(origin) => body(&origin),
            Err(error) if io == IoChoice::Uring => eprintln!("skipped on io_uring: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Sends one request on a new connection. Returns the bytes received, and how it ended.
fn ask(origin: &OriginHandle, target: &str) -> (String, Option<ErrorKind>) {
    let mut reply = Vec::new();
    // A reset may overtake the return from connecting.
    let mut stream = match TcpStream::connect(origin.local_addr()) {
        Ok(stream) => patient(stream),
        Err(error) => return (String::new(), Some(error.kind())),
    };
    let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let outcome =
        stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_end(&mut reply));
    (without_dates(&String::from_utf8(reply).unwrap()), outcome.err().map(|error| error.kind()))
}

/// Returns the body after a head.
fn body_of(reply: &str) -> &str {
    reply.split_once("\r\n\r\n").unwrap().1
}

fn counted(origin: &OriginHandle, kind: Kind, expected: u64) {
    until(origin, |stats| stats.misbehaved.count(kind) == expected);
}

/// Sends requests until the connection ends. Returns how many responses came, and whether the last
/// one announced the end.
fn answers_of_a_connection(origin: &OriginHandle) -> (u32, bool) {
    let mut reader = BufReader::new(connect(origin));
    for answers in 0.. {
        let mut head = String::new();
        let sent = reader.get_mut().write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        while sent.is_ok()
            && !head.ends_with("\r\n\r\n")
            && reader.read_line(&mut head).is_ok_and(|length| length > 0)
        {}
        if head.is_empty() {
            return (answers, false);
        }
        reader.read_exact(&mut [0; 3]).unwrap();
        if head.contains("Connection: close\r\n") {
            assert_eq!(reader.read(&mut [0]).unwrap(), 0, "it says so and does it");
            return (answers + 1, true);
        }
    }
    unreachable!()
}

#[test]
fn connections_end_after_so_many_answers() {
    for (text, kind, expected) in [
        ("close-after=3", Kind::CloseAfter, (3, true)),
        ("hang-up-after=2", Kind::HangUpAfter, (2, false)),
        ("no-keep-alive", Kind::NoKeepAlive, (1, true)),
    ] {
        badly(text, |origin| {
            for _ in 0..4 {
                assert_eq!(answers_of_a_connection(origin), expected, "{text}");
            }
            counted(origin, kind, 4);
        });
    }
}

#[test]
fn shares_are_counted_as_clients_see_them() {
    for (text, kind) in
        [("reset=33%", Kind::Reset), ("refuse=50%", Kind::Refuse), ("hang-up=25%", Kind::HangUp)]
    {
        badly(text, |origin| {
            let outcomes: Vec<_> = (0..200).map(|_| ask(origin, "/")).collect();
            let served =
                outcomes.iter().filter(|(reply, _)| reply.ends_with("\r\n\r\nok\n")).count() as u64;
            let none = outcomes.iter().filter(|(reply, _)| reply.is_empty()).count() as u64;
            let ended_well = outcomes.iter().filter(|(_, error)| error.is_none()).count() as u64;
            assert_eq!(served + none, 200, "{text}");
            assert!((25..=125).contains(&none), "{text}: {none}");
            assert_eq!(
                ended_well,
                if kind == Kind::HangUp { 200 } else { served },
                "{text}: resets are resets"
            );
            counted(origin, kind, none);
        });
    }
}

#[test]
fn every_nth_counts_over_all_connections() {
    badly("status=503:every=3", |origin| {
        let bad: Vec<bool> =
            (0..9).map(|_| ask(origin, "/").0.starts_with("HTTP/1.1 503 ")).collect();
        assert_eq!(bad, [false, false, true, false, false, true, false, false, true]);
        counted(origin, Kind::Status, 3);
    });
}

#[test]
fn no_answer_keeps_the_connection_until_the_client_ends_it() {
    badly("no-answer", |origin| {
        let mut stream = connect(origin);
        stream.write_all("GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(3).as_bytes()).unwrap();
        counted(origin, Kind::NoAnswer, 1);
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        until(origin, |stats| stats.closes == 1);
    });
}

#[test]
fn bodies_are_cut_in_the_middle() {
    for (text, kind, end) in [
        ("truncate", Kind::Truncate, None),
        ("reset-mid-body", Kind::ResetMidBody, Some(ErrorKind::ConnectionReset)),
    ] {
        badly(text, |origin| {
            for (target, length) in [("/?size=10", 5), ("/?size=100000", 50_000)] {
                let (reply, error) = ask(origin, target);
                assert_eq!((body_of(&reply).len(), error), (length, end), "{text} {target}");
            }
            let (reply, _) = ask(origin, "/?size=100000&chunked=1");
            assert!(reply.len() > 40_000 && !reply.ends_with("0\r\n\r\n"), "{text}");
            counted(origin, kind, 3);
            let without_body = if kind == Kind::Truncate {
                ask(origin, "/?status=204")
            } else {
                ask(origin, "/?size=0")
            };
            assert_eq!(without_body.1, None, "an answer without a body has no middle");
            counted(origin, kind, 3);
        });
    }
}

#[test]
fn a_wrong_byte_is_found_at_the_right_length() {
    badly("garble=every=2", |origin| {
        for target in ["/?size=100", "/?size=100000"] {
            let right: String = ask(origin, target).0;
            let wrong = ask(origin, target).0;
            let differences = body_of(&right)
                .bytes()
                .zip(body_of(&wrong).bytes())
                .filter(|(a, b)| a != b)
                .count();
            assert_eq!(right.len(), wrong.len());
            assert!(differences > 0, "{target}");
        }
        counted(origin, Kind::Garble, 2);
    });
}

#[test]
fn an_early_answer_comes_before_the_body_and_the_next_request_is_understood() {
    badly("answer-early", |origin| {
        for size in [5, 100_000] {
            let mut stream = connect(origin);
            let head =
                format!("POST /?size={size} HTTP/1.1\r\nHost: a\r\nContent-Length: 70000\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            assert_eq!(read_reply(&mut reader).len(), size, "before a byte of the body was sent");
            stream.write_all(&vec![b'G'; 70_000]).unwrap();
            stream.write_all(b"GET /?size=7 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            assert_eq!(read_reply(&mut reader).len(), 7);
        }
        counted(origin, Kind::AnswerEarly, 2);
        let mut stream = connect(origin);
        let head =
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        assert_eq!(line, "HTTP/1.1 200 OK\r\n", "not 100 Continue");
    });
}

#[test]
fn answers_come_twice_in_order() {
    badly("answer-twice:every=2", |origin| {
        for size in [4, 50_000] {
            let mut stream = connect(origin);
            let ask = |size: usize| format!("GET /?size={size} HTTP/1.1\r\nHost: a\r\n\r\n");
            stream.write_all((ask(1) + &ask(size) + &ask(2) + &ask(3)).as_bytes()).unwrap();
            let mut reader = BufReader::new(stream);
            let lengths = [(); 6].map(|()| read_reply(&mut reader).len());
            assert_eq!(lengths, [1, size, size, 2, 3, 3]);
        }
        counted(origin, Kind::AnswerTwice, 4);
    });
}

#[test]
fn an_answer_drips_and_the_next_one_waits_behind_it() {
    badly("slow-drip=4000:2:every=2", |origin| {
        for target in ["/?size=9000", "/?size=40000", "/?size=40000&chunked=1"] {
            let begin = Instant::now();
            let (expected, _) = ask(origin, target);
            let (reply, error) = ask(origin, target);
            assert_eq!(error, None);
            // The chunks are of another length: their bytes are sent as they come from the pattern.
            let is_whole = if target.contains("chunked") {
                reply.ends_with("\r\n0\r\n\r\n")
            } else {
                reply == expected
            };
            assert!(is_whole, "{target}");
            // Every piece but the first waits.
            let pauses = Duration::from_millis(2 * (reply.len() as u64 / 4000 - 1));
            assert!(begin.elapsed() >= pauses, "{:?}", begin.elapsed());
        }
        let mut stream = connect(origin);
        stream
            .write_all("GET /?size=9000 HTTP/1.1\r\nHost: a\r\n\r\n".repeat(4).as_bytes())
            .unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut reader = BufReader::new(stream);
        assert_eq!([(); 4].map(|()| read_reply(&mut reader).len()), [9000; 4]);
        counted(origin, Kind::SlowDrip, 5);
    });
}

#[test]
fn one_answer_stalls_and_the_others_do_not_wait() {
    badly("stall=400", |origin| {
        let mut stalled = connect(origin);
        let begin = Instant::now();
        stalled.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        counted(origin, Kind::Stall, 1);
        for _ in 0..10 {
            assert!(ask(origin, "/").0.ends_with("ok\n"));
        }
        stalled.set_nonblocking(true).unwrap();
        // Without blocking, since the client's end would wait.
        let early = (&*stalled).read(&mut [0]);
        if begin.elapsed() < Duration::from_millis(400) {
            assert_eq!(
                early.unwrap_err().kind(),
                ErrorKind::WouldBlock,
                "ten others were answered meanwhile"
            );
        }
        stalled.set_nonblocking(false).unwrap();
        stalled.read_to_end(&mut Vec::new()).unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(400));
        counted(origin, Kind::Stall, 1);
    });
}

#[test]
fn a_freeze_stops_everything_once_so_long_after_the_first_request() {
    badly("freeze=700:at=100", |origin| {
        let (begin, mut waiting) = (Instant::now(), Waiting::begin());
        let mut longest = Duration::ZERO;
        while origin.stats().misbehaved.count(Kind::Freeze) == 0 {
            assert!(waiting.goes_on(), "no freeze; {}", waiting.story());
            let one = Instant::now();
            assert!(ask(origin, "/").0.ends_with("ok\n"));
            longest = longest.max(one.elapsed());
        }
        assert!(begin.elapsed() >= Duration::from_millis(700), "{:?}", begin.elapsed());
        assert!(longest >= Duration::from_millis(100), "somebody waited: {longest:?}");
        for _ in 0..20 {
            assert!(ask(origin, "/").0.ends_with("ok\n"));
        }
        counted(origin, Kind::Freeze, 1);
    });
}

#[test]
fn the_statistics_are_served_properly_and_name_what_was_asked_for() {
    badly("reset:every=1000,hang-up=100%", |origin| {
        assert_eq!(ask(origin, "/"), (String::new(), None));
        counted(origin, Kind::HangUp, 1);
        let (reply, error) = ask(origin, "/__stats");
        assert_eq!(error, None);
        assert!(reply.contains("\"misbehaved\":{\"reset\":0,\"hang-up\":1}"), "{reply}");
    });
}

#[test]
fn busy_handlers_use_the_time_of_their_thread() {
    badly("close-after=1000", |origin| {
        let begin = Instant::now();
        assert!(ask(origin, "/?burn=30ms").0.ends_with("ok\n"));
        assert!(begin.elapsed() >= Duration::from_millis(30));
    });
}
