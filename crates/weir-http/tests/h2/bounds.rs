//! Proves: whatever a client does, memory is bounded by a number, and useless work ends the
//! connection. How: each attack with a known number, on one connection, and its result.

use weir_http::h2::frame::{ACK, END_HEADERS, END_STREAM, Kind, PRIORITY};
use weir_http::h2::{Blocked, Code, Glitch, Limits};

use crate::kit::{GET, POST, Server, block, coded, data, frame, headers, reset, setting, window};

/// Heap of a connection at its worst: control output with a frame, streams, header table, a block.
const MEMORY_MAX: usize = 65_536 + 16_393 + 100 * 128 + 8192 + 65_536;

/// Feeds the same input until the connection fails. Returns how often that succeeded, and how it
/// ended.
fn flood(server: &mut Server, mut input: impl FnMut(u32) -> Vec<u8>) -> (u32, String) {
    for round in 0..100_000 {
        let words = server.feed(&input(round));
        assert!(
            server.mux.memory() <= MEMORY_MAX,
            "{} bytes in round {round}",
            server.mux.memory()
        );
        if let Some(failure) = words.iter().find(|words| words.starts_with("failed")) {
            return (round, failure.clone());
        }
        server.sent();
    }
    (100_000, "nothing".to_owned())
}

#[test]
fn frames_that_bring_nothing() {
    let ping = frame(Kind::Ping, 0, 0, &[0; 8]);
    let empty = [headers(1, 0, POST), data(1, 0, b"").repeat(50)].concat();
    let priority = frame(Kind::Priority, 0, 1, &[0, 0, 0, 0, 0]);
    let update = frame(Kind::PriorityUpdate, 0, 0, b"\0\0\0\x01u=1");
    for (name, input, rounds) in [
        ("2019-9512 PING", ping, 900..=1000),
        ("2019-9515 SETTINGS", setting(3, 1), 90..=100),
        ("SETTINGS ACK", frame(Kind::Settings, ACK, 0, &[]), 90..=100),
        ("2019-9513 PRIORITY", priority, 900..=1000),
        ("RFC 9218 PRIORITY_UPDATE", update, 900..=1000),
        ("unknown", frame(Kind::Unknown(99), 0, 0, b"x"), 900..=1000),
        ("window updates", window(0, 1), 900..=1100),
        ("GOAWAY", frame(Kind::Goaway, 0, 0, &[0; 8]), 90..=100),
    ] {
        let mut server = Server::new();
        let (count, end) = flood(&mut server, |_| input.clone());
        assert_eq!(end, "failed enhance-your-calm", "{name}");
        assert!(rounds.contains(&count), "{name}: {count}");
        assert_eq!(server.count(Glitch::Chatter), 1, "{name}");
    }
    let mut server = Server::new();
    assert!(
        server.feed(&empty).len() == 1 && server.feed(&data(1, 0, b"").repeat(60)).len() == 1,
        "2019-9518 empty DATA"
    );
    assert!(server.count(Glitch::EmptyFrame) > 90);
}

/// A second of waiting is worth ten frames.
#[test]
fn slow_pings_are_nobodys_business() {
    let mut server = Server::new();
    for _ in 0..20_000 {
        server.now_us += 200_000;
        assert_eq!(server.feed(&frame(Kind::Ping, 0, 0, &[0; 8])), [""; 0]);
        server.sent();
    }
}

/// CVE-2019-9512, -9514, -9515, -9517: nothing is read while more than 64 KiB wait to be sent.
#[test]
fn unsent_output_stops_reading() {
    let mut server = Server::new();
    let mut fed = 0;
    while server.mux.blocked().is_none() {
        let request = headers(1 + 2 * fed, END_STREAM, GET);
        assert!(
            server.feed(&[request, frame(Kind::Ping, 0, 0, &[0; 8]).repeat(10)].concat()).len()
                <= 1
        );
        // Chatter is earned by honest work.
        server.feed(&reset(1 + 2 * fed, Code::Cancel));
        server.now_us += 1_000_000;
        fed += 1;
        if let Some(Blocked::Until(until_us)) = server.mux.blocked() {
            server.mux.expire(until_us);
        }
    }
    assert_eq!(server.mux.blocked(), Some(Blocked::Output));
    assert!(server.mux.memory() <= MEMORY_MAX);
    let ping = frame(Kind::Ping, 0, 0, &[0; 8]);
    server.feed(&ping);
    assert!(server.rest.ends_with(&ping) && server.sent().len() > 3000);
    server.feed(&[]);
    assert!(server.rest.is_empty());
}

/// CVE-2023-44487 spread over receives: after a hundred there is a pause, the third one is the end.
#[test]
fn rapid_reset() {
    let mut server = Server::new();
    let (mut asked, mut pauses) = (0u32, 0);
    let end = loop {
        let stream = 1 + 2 * asked;
        asked += 1;
        let words = [
            server.feed(&headers(stream, END_STREAM, GET)),
            server.feed(&reset(stream, Code::Cancel)),
        ]
        .concat();
        if let Some(end) = words.iter().find(|words| words.starts_with("failed")) {
            break end.clone();
        }
        if let Some(Blocked::Until(until_us)) = server.mux.blocked() {
            pauses += 1;
            assert_eq!(
                (server.mux.deadline_us(), until_us),
                (Some(until_us), server.now_us + 100_000)
            );
            let more = server.feed(&headers(stream + 2, END_STREAM, GET));
            assert!(more.is_empty() && !server.rest.is_empty(), "nothing is read");
            server.now_us = until_us;
            server.mux.expire(until_us);
            assert_eq!(server.feed(&[]).len(), 1);
            assert_eq!(server.feed(&reset(stream + 2, Code::Cancel)).len(), 1);
            asked += 1;
        }
    };
    assert_eq!((asked, pauses, end.as_str()), (120, 2, "failed enhance-your-calm"));
    assert_eq!(server.count(Glitch::ResetEarly), 120);
    // A client that gets responses may reset as many requests as it gets responses.
    let mut honest = Server::new();
    for at in 0..4000 {
        let stream = 1 + 2 * at;
        honest.feed(&headers(stream, END_STREAM, GET));
        if at % 2 == 0 {
            drop(honest.feed(&reset(stream, Code::Cancel)))
        } else {
            honest.answer(stream, 0)
        }
        honest.sent();
        assert!(honest.mux.blocked().is_none() && honest.mux.failure().is_none());
    }
}

/// The same in one receive: no server sees these requests.
#[test]
fn rapid_reset_at_once() {
    let mut server = Server::new();
    let pairs: Vec<u8> = (0..60)
        .flat_map(|at| {
            [headers(1 + 2 * at, END_STREAM, GET), reset(1 + 2 * at, Code::Cancel)].concat()
        })
        .collect();
    let other = headers(999, END_STREAM, GET);
    assert_eq!(server.feed(&[pairs, other].concat()), ["request 999 GET / HTTP/2.0 end"]);
    assert_eq!(server.count(Glitch::ResetEarly), 60);
}

/// What a client does to its newest stream.
type Deed = fn(u32) -> Vec<u8>;

/// CVE-2019-9514, CVE-2025-8671: ways to make a server reset a stream, ten times at most.
#[test]
fn made_to_reset() {
    let (get, post) = (headers, headers);
    let ways: [(&str, Deed); 8] = [
        ("a request that is none", |id| headers(id + 2, END_STREAM, &GET[1..])),
        ("window update of 0", |id| window(id, 0)),
        ("window too large", |id| window(id, 0x7fff_ffff)),
        ("PRIORITY of four bytes", |id| frame(Kind::Priority, 0, id, &[0; 4])),
        ("PRIORITY on itself", |id| {
            frame(Kind::Priority, 0, id, &[&id.to_be_bytes()[..], &[0]].concat())
        }),
        ("HEADERS when half-closed", |id| headers(id, END_STREAM, GET)),
        ("DATA when half-closed", |id| data(id, 0, b"x")),
        ("HEADERS on itself", |id| {
            let payload = [&(id + 2).to_be_bytes()[..], &[0], &block(GET)].concat();
            frame(Kind::Headers, END_HEADERS | END_STREAM | PRIORITY, id + 2, &payload)
        }),
    ];
    for (name, deed) in ways {
        let mut server = Server::new();
        let (rounds, end) = flood(&mut server, |round| {
            let id = 1 + 4 * round;
            [get(id, END_STREAM, GET), deed(id)].concat()
        });
        assert_eq!((rounds, end.as_str()), (10, "failed enhance-your-calm"), "{name}");
        let glitch =
            if name == "a request that is none" { Glitch::Malformed } else { Glitch::ForcedReset };
        assert_eq!(server.count(glitch), 11, "{name}");
    }
    let mut server = Server::new();
    let (rounds, _) = flood(&mut server, |round| {
        [
            post(1 + 2 * round, 0, &[POST, &[("content-length", "1")]].concat()),
            data(1 + 2 * round, END_STREAM, b""),
        ]
        .concat()
    });
    assert_eq!(rounds, 10, "a body that is too short");
}

/// A request that was reset and still runs counts as under way.
#[test]
fn in_flight_also_after_reset() {
    let mut server = Server::with(Limits { streams_max: 3, ..Limits::default() });
    for stream in [1, 3] {
        server.feed(&headers(stream, END_STREAM, GET));
        assert_eq!(
            server.feed(&reset(stream, Code::Cancel)),
            [format!("reset {stream} cancel by client")]
        );
        server.mux.linger();
    }
    assert_eq!(server.feed(&headers(5, 0, POST)).len(), 1);
    let input = [headers(7, END_STREAM, GET), headers(9, END_STREAM, GET)].concat();
    assert_eq!(
        server.feed(&[data(5, 0, b"abc"), input].concat()),
        ["data 5 3"],
        "what is open goes on"
    );
    assert_eq!((server.mux.blocked(), server.mux.lingering()), (Some(Blocked::InFlight), 2));
    server.mux.gone();
    assert_eq!(server.feed(&[]), ["request 7 GET / HTTP/2.0 end"]);
    assert_eq!(server.mux.blocked(), Some(Blocked::InFlight));
    server.answer(7, 0);
    server.sent();
    assert_eq!(server.feed(&[]), ["request 9 GET / HTTP/2.0 end"]);
    server.mux.gone();
    assert_eq!(server.mux.lingering(), 0);
}

/// RFC 9113 §5.1.2.
#[test]
fn more_streams_than_announced() {
    let mut server = Server::with(Limits { streams_max: 2, ..Limits::default() });
    let input: Vec<u8> = [1, 3, 5].iter().flat_map(|&stream| headers(stream, 0, POST)).collect();
    assert_eq!(server.feed(&input).len(), 2);
    assert_eq!(server.feed(&data(5, 0, b"x")), [""; 0]);
    assert_eq!(
        (server.sent(), server.count(Glitch::Refused)),
        (vec!["rst 5 refused-stream".to_owned()], 1)
    );
    server.mux.reset(1, Code::Cancel);
    assert_eq!(server.feed(&headers(7, 0, POST)).len(), 1);
}

/// CVE-2024-27316: eight CONTINUATION frames, and as many bytes as a head may have.
#[test]
fn endless_continuation() {
    let more = |payload: &[u8]| frame(Kind::Continuation, 0, 1, payload);
    for (name, first, next, rounds) in [
        ("tiny", block(GET), block(&[("a", "b")]), 8),
        ("empty", block(GET), Vec::new(), 8),
        ("large", vec![0; 16_000], vec![0; 16_000], 1),
    ] {
        let mut server = Server::new();
        server.feed(&frame(Kind::Headers, END_STREAM, 1, &first));
        let (count, end) = flood(&mut server, |_| more(&next));
        assert_eq!((count, end.as_str()), (rounds, "failed enhance-your-calm"), "{name}");
    }
}

/// CVE-2016-6581, CVE-2026-49975: a byte that expands to a field of 4,000.
#[test]
fn header_bomb() {
    let mut list = block(GET);
    list.push(0x40);
    list.extend_from_slice(&coded(&[("x-large", &"~".repeat(3900))])[1..]);
    list.extend_from_slice(&[0x80 | 62; 8000]);
    let mut server = Server::new();
    assert_eq!(
        server.feed(&frame(Kind::Headers, END_HEADERS | END_STREAM, 1, &list)),
        ["failed enhance-your-calm"]
    );
    assert!(server.heads.memory() < 4 * 32_768, "{}", server.heads.memory());
    assert!(server.mux.memory() <= MEMORY_MAX);
    // The same in few bytes a list, on many unread streams.
    let mut server = Server::new();
    let mut small = block(GET);
    small.push(0x40);
    small.extend_from_slice(&coded(&[("x-large", &"~".repeat(3900))])[1..]);
    server.feed(&frame(Kind::Headers, END_HEADERS | END_STREAM, 1, &small));
    for at in 1..100 {
        let list = [&block(GET)[..], &[0x80 | 62; 7]].concat();
        assert_eq!(
            server.feed(&frame(Kind::Headers, END_HEADERS | END_STREAM, 1 + 2 * at, &list)).len(),
            1
        );
    }
    assert!(server.mux.memory() <= 100 * 128 + 8192 + 1024, "{}", server.mux.memory());
}

/// CVE-2019-9516, CVE-2026-47774: fields that take almost nothing on the wire, and crumbs of a
/// cookie, cost what the list counts for them.
#[test]
fn fields_of_next_to_nothing() {
    // The first field of a list, and what repeats it.
    let kept = |value: &str| [&[0x60][..], &coded(&[("cookie", value)])[2..]].concat();
    let again = vec![0x80 | 62];
    for (name, first, more, count) in [
        ("empty names", Vec::new(), vec![0, 0, 0], 5_000),
        ("large crumbs", kept(&"~".repeat(3_000)), again.clone(), 5_000),
        ("empty crumbs", kept(""), again, 15_000),
    ] {
        let send = |server: &mut Server, stream: u32, count: usize| {
            let list = [&block(GET)[..], &first, &more.repeat(count)].concat();
            server.feed(&frame(Kind::Headers, END_HEADERS | END_STREAM, stream, &list))
        };
        let mut server = Server::new();
        assert_eq!(send(&mut server, 1, count), ["failed enhance-your-calm"], "{name}");
        assert!(server.heads.memory() < 4 * 32_768, "{name}: {}", server.heads.memory());
        // Few of them, over and over: refused, malformed or a request, and nothing is kept.
        let mut server = Server::new();
        for at in 0..8 {
            send(&mut server, 1 + 2 * at, 40);
            assert!(
                server.mux.memory() <= 8 * 128 + 8192 + 4096 + 1024,
                "{name}: {}",
                server.mux.memory()
            );
            assert!(server.heads.memory() < 4 * 32_768, "{name}: {}", server.heads.memory());
        }
    }
}

/// RUSTSEC-2026-0258: a body byte by byte that is never consumed. A frame costs according to its
/// content, and the window ends it.
#[test]
fn tiny_data() {
    let mut server = Server::new();
    server.consumes = false;
    server.feed(&headers(1, 0, POST));
    let before = server.mux.memory();
    let tiny = data(1, 0, b"x").repeat(1024);
    for _ in 0..64 {
        assert_eq!(server.feed(&tiny).len(), 1024);
        assert!(server.mux.memory() <= before && server.sent().is_empty());
    }
    assert_eq!(server.feed(&data(1, 0, b"x")), ["reset 1 flow-control-error"]);
}

/// CVE-2019-9511: one-byte windows make many frames, but no memory and no more work than frames.
#[test]
fn dribbled_windows() {
    let mut server = Server::new();
    server.feed(&setting(4, 0));
    server.sent();
    for at in 0..100 {
        server.feed(&headers(1 + 2 * at, END_STREAM, GET));
        server.answer(1 + 2 * at, 1000);
    }
    server.sent();
    let before = server.mux.memory();
    for round in 0..20_000u32 {
        let words = server.feed(&window(1 + 2 * (round % 100), 1));
        assert!(words.is_empty(), "paid for by the bytes: {words:?}");
        assert_eq!(server.sent().len(), 1);
        assert!(server.mux.memory() <= before);
    }
}

/// An idle connection has next to nothing.
#[test]
fn idle_memory() {
    let mut server = Server::new();
    let idle = size_of_val(&server.mux) + server.mux.memory();
    assert!(idle <= 768, "{idle}");
    for at in 0..100 {
        server.feed(&headers(1 + 2 * at, END_STREAM, GET));
    }
    (0..100).for_each(|at| server.answer(1 + 2 * at, 100));
    assert!(server.mux.memory() > 10_000);
    server.sent();
    let after = size_of_val(&server.mux) + server.mux.memory();
    assert!(after <= 1024, "{after}");
}
