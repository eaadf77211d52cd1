//! Proves: each frame does what its section says, and each violation has its code and its extent.
//! How: a table by section of RFC 9113, from the frames that a client sends after the greeting to
//! events and frames; and the greeting itself.

use weir_http::h2::frame::{ACK, END_HEADERS, END_STREAM, Kind, PADDED, PRIORITY};
use weir_http::h2::{Code, Glitch, Limits, PREFACE};

use crate::kit::{GET, POST, Server, block, data, frame, headers, reset, setting, window};

#[test]
fn the_greeting() {
    let mut server = Server::silent(Limits::default());
    let settings = "settings MaxConcurrentStreams=100 InitialWindowSize=65536 \
        MaxHeaderListSize=32768 NoRfc7540Priorities=1";
    assert_eq!(server.sent(), [settings, "window 0 983041"]);
    assert!(server.mux.is_incomplete() && !server.mux.is_greeted());
    assert_eq!(server.feed(PREFACE), [""; 0]);
    assert!(server.mux.is_incomplete());
    assert_eq!(server.feed(&frame(Kind::Settings, 0, 0, &[])), [""; 0]);
    assert!(!server.mux.is_incomplete() && server.mux.is_greeted());
    assert_eq!(server.sent(), ["settings ack"]);
}

/// RFC 9113 §3.4.
#[test]
fn what_is_no_greeting() {
    let settings = frame(Kind::Settings, 0, 0, &[]);
    for (input, words) in [
        (b"GET / HTTP/1.1\r\n".to_vec(), "failed protocol-error"),
        (b"PRI * HTTP/2.0\r\n\r\nXM".to_vec(), "failed protocol-error"),
        ([&PREFACE[..], &headers(1, END_STREAM, GET)].concat(), "failed protocol-error"),
        ([&PREFACE[..], &frame(Kind::Settings, ACK, 0, &[])].concat(), "failed protocol-error"),
        ([&PREFACE[..], &frame(Kind::Ping, 0, 0, &[0; 8])].concat(), "failed protocol-error"),
        ([&PREFACE[..], &settings, &settings].concat(), ""),
    ] {
        let mut server = Server::silent(Limits::default());
        let found = server.feed(&input).join(", ");
        assert_eq!(found, words, "{}", input.escape_ascii());
        assert!(!server.mux.is_finished());
        server.sent();
        assert_eq!(server.mux.is_finished(), !words.is_empty(), "closed when the bytes have left");
    }
}

/// Section, input, events, output.
type Row = (&'static str, Vec<Vec<u8>>, &'static str, &'static str);

fn check(rows: Vec<Row>) {
    for (section, frames, events, sent) in rows {
        let mut server = Server::new();
        let found = server.feed(&frames.concat());
        assert_eq!(found.join(", "), events, "{section}: events");
        let left: Vec<String> = server.sent();
        assert_eq!(left.join(", "), sent, "{section}: frames");
    }
}

const R1: &str = "request 1 GET / HTTP/2.0 end";
const P1: &str = "request 1 POST / HTTP/2.0";

fn with(before: &'static str, after: &str) -> &'static str {
    Box::leak(format!("{before}, {after}").into_boxed_str())
}

#[test]
fn streams_and_their_states() {
    let (get, post) = (|| headers(1, END_STREAM, GET), || headers(1, 0, POST));
    let closed = "failed stream-closed";
    let rows = vec![
        (
            "5.1 idle: DATA",
            vec![data(1, END_STREAM, b"x")],
            "failed protocol-error",
            "goaway 0 protocol-error",
        ),
        (
            "5.1 idle: RST_STREAM",
            vec![reset(1, Code::Cancel)],
            "failed protocol-error",
            "goaway 0 protocol-error",
        ),
        (
            "5.1 idle: WINDOW_UPDATE",
            vec![window(1, 9)],
            "failed protocol-error",
            "goaway 0 protocol-error",
        ),
        (
            "5.1 idle, even: WINDOW_UPDATE",
            vec![get(), window(2, 9)],
            with(R1, "failed protocol-error"),
            "goaway 1 protocol-error",
        ),
        ("5.1 idle: PRIORITY", vec![frame(Kind::Priority, 0, 1, &[0, 0, 0, 3, 9])], "", ""),
        (
            "5.1 half-closed: DATA",
            vec![get(), data(1, 0, b"x")],
            with(R1, "reset 1 stream-closed"),
            "rst 1 stream-closed",
        ),
        (
            "5.1 half-closed: HEADERS",
            vec![get(), get()],
            with(R1, "reset 1 stream-closed"),
            "rst 1 stream-closed",
        ),
        ("5.1 half-closed: WINDOW_UPDATE", vec![get(), window(1, 9)], R1, ""),
        (
            "5.1 half-closed: RST_STREAM",
            vec![post(), data(1, END_STREAM, b""), reset(1, Code::Cancel)],
            "data 1 0 end",
            "",
        ),
        (
            "5.1 closed by the client: RST_STREAM",
            vec![get(), reset(1, Code::Cancel), reset(1, Code::Cancel)],
            "",
            "",
        ),
        (
            "5.1 closed by the client: DATA",
            vec![post(), reset(1, Code::Cancel), data(1, 0, b"x")],
            closed,
            "goaway 1 stream-closed",
        ),
        (
            "5.1 closed by the client: HEADERS",
            vec![get(), reset(1, Code::Cancel), get()],
            closed,
            "goaway 1 stream-closed",
        ),
        (
            "5.1.1 even",
            vec![headers(2, END_STREAM, GET)],
            "failed protocol-error",
            "goaway 0 protocol-error",
        ),
        (
            "5.1.1 lower",
            vec![headers(5, END_STREAM, GET), headers(3, END_STREAM, GET)],
            "request 5 GET / HTTP/2.0 end, failed stream-closed",
            "goaway 5 stream-closed",
        ),
        (
            "5.4.1, 6.8 GOAWAY",
            vec![frame(Kind::Goaway, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 8, b'!'])],
            "leaving cancel",
            "",
        ),
        ("5.5 unknown", vec![frame(Kind::Unknown(200), 0xff, 1, b"abc"), get()], R1, ""),
        (
            "5.5 unknown in a block",
            vec![
                frame(Kind::Headers, END_STREAM, 1, &block(GET)),
                frame(Kind::Unknown(200), 0, 1, b""),
            ],
            "failed protocol-error",
            "goaway 0 protocol-error",
        ),
        (
            "6.6 PUSH_PROMISE",
            vec![frame(Kind::PushPromise, 0, 1, &[0; 4])],
            "failed protocol-error",
            "goaway 0 protocol-error",
        ),
    ];
    let rows = rows.into_iter().map(|(section, frames, events, sent)| {
        // A stream that is reset in the same input was never reported.
        let events = if section.ends_with("half-closed: RST_STREAM") { "" } else { events };
        (section, frames, events, sent)
    });
    check(rows.collect());
}

#[test]
fn frames_on_streams() {
    let (get, post) = (|| headers(1, END_STREAM, GET), || headers(1, 0, POST));
    let half = block(GET);
    let (first, second) = half.split_at(7);
    let padded = |stream, flags, padding: u8, text: &[u8]| {
        data(
            stream,
            flags | PADDED,
            &[&[padding], text, &vec![0; usize::from(padding)][..]].concat(),
        )
    };
    check(vec![
        (
            "6.1 padding",
            vec![post(), padded(1, END_STREAM, 9, b"abc")],
            with(P1, "data 1 3 end"),
            "",
        ),
        (
            "6.1 only padding",
            vec![post(), padded(1, 0, 255, b""), data(1, END_STREAM, b"")],
            with(P1, "data 1 0 end"),
            "",
        ),
        (
            "6.1 too much padding",
            vec![post(), data(1, PADDED, &[3, 0, 0])],
            with(P1, "failed protocol-error"),
            "goaway 1 protocol-error",
        ),
        (
            "6.1 no length of padding",
            vec![post(), data(1, PADDED, &[])],
            with(P1, "failed frame-size-error"),
            "goaway 1 frame-size-error",
        ),
        (
            "6.2 padding and priority",
            vec![frame(
                Kind::Headers,
                END_HEADERS | END_STREAM | PADDED | PRIORITY,
                1,
                &[&[2, 0, 0, 0, 0, 16][..], &half, &[0, 0]].concat(),
            )],
            R1,
            "",
        ),
        (
            "6.2 too much padding",
            vec![frame(Kind::Headers, END_HEADERS | PADDED, 1, &[2, 0])],
            "failed protocol-error",
            "goaway 0 protocol-error",
        ),
        (
            "6.2 too short",
            vec![frame(Kind::Headers, END_HEADERS | PRIORITY, 1, &[0; 4])],
            "failed frame-size-error",
            "goaway 0 frame-size-error",
        ),
        (
            "5.3.1 depends on itself",
            vec![frame(
                Kind::Headers,
                END_HEADERS | END_STREAM | PRIORITY,
                1,
                &[&[0, 0, 0, 1, 16][..], &half].concat(),
            )],
            "",
            "rst 1 protocol-error",
        ),
        (
            "6.3 wrong length",
            vec![get(), frame(Kind::Priority, 0, 1, &[0; 4])],
            with(R1, "reset 1 frame-size-error"),
            "rst 1 frame-size-error",
        ),
        (
            "6.3 depends on itself",
            vec![get(), frame(Kind::Priority, 0, 1, &[0, 0, 0, 1, 0])],
            with(R1, "reset 1 protocol-error"),
            "rst 1 protocol-error",
        ),
        (
            "6.3 the same on an idle stream",
            vec![frame(Kind::Priority, 0, 3, &[0, 0, 0, 3, 0])],
            "failed protocol-error",
            "goaway 0 protocol-error",
        ),
        (
            "6.9 window update of 0",
            vec![get(), window(1, 0)],
            with(R1, "reset 1 protocol-error"),
            "rst 1 protocol-error",
        ),
        (
            "6.9.1 window too large",
            vec![get(), window(1, 0x7fff_ffff)],
            with(R1, "reset 1 flow-control-error"),
            "rst 1 flow-control-error",
        ),
        (
            "6.9 the connection's, 0",
            vec![window(0, 0)],
            "failed protocol-error",
            "goaway 0 protocol-error",
        ),
        (
            "6.9.1 the connection's, too large",
            vec![window(0, 0x7fff_0000), window(0, 1)],
            "failed flow-control-error",
            "goaway 0 flow-control-error",
        ),
        (
            "6.10 in two",
            vec![
                frame(Kind::Headers, END_STREAM, 1, first),
                frame(Kind::Continuation, END_HEADERS, 1, second),
            ],
            R1,
            "",
        ),
        (
            "6.10 in three",
            vec![
                frame(Kind::Headers, END_STREAM, 1, first),
                frame(Kind::Continuation, 0, 1, second),
                frame(Kind::Continuation, END_HEADERS, 1, b""),
            ],
            R1,
            "",
        ),
        (
            "6.10 of another stream",
            vec![
                frame(Kind::Headers, END_STREAM, 1, first),
                frame(Kind::Continuation, END_HEADERS, 3, second),
            ],
            "failed protocol-error",
            "goaway 0 protocol-error",
        ),
        (
            "6.10 without HEADERS",
            vec![frame(Kind::Continuation, END_HEADERS, 1, second)],
            "failed protocol-error",
            "goaway 0 protocol-error",
        ),
        (
            "6.10 behind the end",
            vec![get(), frame(Kind::Continuation, END_HEADERS, 1, b"")],
            with(R1, "failed protocol-error"),
            "goaway 1 protocol-error",
        ),
        (
            "8.1 trailers",
            vec![post(), data(1, 0, b"abc"), headers(1, END_STREAM, &[("x-sum", "1")])],
            with(P1, "data 1 3, data 1 0 end"),
            "",
        ),
        (
            "8.1 HEADERS in a body",
            vec![post(), headers(1, 0, &[("x-sum", "1")])],
            with(P1, "broken 1 trailers-invalid"),
            "",
        ),
        (
            "8.1 pseudo field in trailers",
            vec![post(), headers(1, END_STREAM, &[(":path", "/")])],
            with(P1, "broken 1 trailers-invalid"),
            "",
        ),
        (
            "8.2.2 connection in trailers",
            vec![post(), headers(1, END_STREAM, &[("connection", "x")])],
            with(P1, "broken 1 trailers-invalid"),
            "",
        ),
    ]);
}

#[test]
fn frames_of_the_connection() {
    check(vec![
        ("6.5 settings", vec![setting(4, 9), setting(77, 9)], "", "settings ack, settings ack"),
        (
            "6.5.2 ENABLE_PUSH",
            vec![setting(2, 2)],
            "failed protocol-error",
            "goaway 0 protocol-error",
        ),
        ("6.5.2 ENABLE_PUSH", vec![setting(2, 1)], "", "settings ack"),
        (
            "6.5.2 INITIAL_WINDOW_SIZE",
            vec![setting(4, 0x8000_0000)],
            "failed flow-control-error",
            "goaway 0 flow-control-error",
        ),
        (
            "6.5.2 MAX_FRAME_SIZE",
            vec![setting(5, 16_383)],
            "failed protocol-error",
            "goaway 0 protocol-error",
        ),
        (
            "6.5.2 MAX_FRAME_SIZE",
            vec![setting(5, 16_777_216)],
            "failed protocol-error",
            "goaway 0 protocol-error",
        ),
        ("RFC 9218 2.1", vec![setting(9, 2)], "failed protocol-error", "goaway 0 protocol-error"),
        (
            "6.7 PING",
            vec![frame(Kind::Ping, 0, 0, b"abcdefgh"), frame(Kind::Ping, ACK, 0, b"abcdefgh")],
            "",
            "pong abcdefgh",
        ),
        (
            "6.9.2 overflow",
            vec![
                headers(1, END_STREAM, GET),
                window(1, 0x7fff_ff00 - 65_535),
                setting(4, 65_536 + 0x100),
            ],
            with(R1, "failed flow-control-error"),
            "goaway 1 flow-control-error",
        ),
        (
            "RFC 9218 7.1",
            vec![frame(Kind::PriorityUpdate, 0, 0, b"\0\0\0\0u=1")],
            "failed protocol-error",
            "goaway 0 protocol-error",
        ),
        ("RFC 9218 7.1", vec![frame(Kind::PriorityUpdate, 0, 0, b"\0\0\0\x05u=1")], "", ""),
    ]);
}

/// RFC 9113 §5.1: frames that were sent before the client could know of the end are ignored, and
/// paid for.
#[test]
fn frames_behind_our_resets() {
    let mut server = Server::new();
    assert_eq!(server.feed(&headers(1, 0, POST)), [P1]);
    server.mux.reset(1, Code::Cancel);
    server.mux.reset(1, Code::Cancel);
    let late = [
        data(1, 0, b"abc"),
        window(1, 5),
        headers(1, END_STREAM, &[("x", "y")]),
        data(1, END_STREAM, b""),
    ];
    assert_eq!(server.feed(&late.concat()), [""; 0]);
    assert_eq!(server.sent(), ["rst 1 cancel"]);
    assert_eq!(server.count(Glitch::ClosedStream), 1);
    assert_eq!(server.feed(&reset(1, Code::Cancel)), [""; 0]);
    assert_eq!(server.feed(&data(1, 0, b"x")), ["failed stream-closed"], "now both know");
}

#[test]
fn priorities_are_read() {
    let mut server = Server::new();
    let fields = [GET, &[("priority", "u=1, i")]].concat();
    server.feed(&headers(1, END_STREAM, &fields));
    let priority = server.mux.priority(1).unwrap();
    assert_eq!((priority.urgency, priority.incremental), (1, true));
    server.feed(&frame(Kind::PriorityUpdate, 0, 0, b"\0\0\0\x01u=6"));
    let priority = server.mux.priority(1).unwrap();
    assert_eq!((priority.urgency, priority.incremental), (6, false));
    assert_eq!(server.mux.priority(3), None);
}
