//! The judge of streams: what it accepts and what it rejects, each rule with frames that break it.

use proptest::prelude::*;

use super::*;

const SERVER_PREFACE: &[&[u8]] =
    &[&[0, 0, 0, kind::SETTINGS, 0, 0, 0, 0, 0], &[0, 0, 0, kind::SETTINGS, ACK, 0, 0, 0, 0]];

/// Returns a connection with a request by `method` on stream 1, on which `window` bytes may be
/// sent.
fn asked(method: &str, window: u32) -> StrictStreams {
    let mut judge = StrictStreams::new();
    judge.set(Some(window));
    judge.feed(&SERVER_PREFACE.concat()).unwrap();
    judge.ask(1, method);
    judge
}

fn head(flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(kind::HEADERS, flags | END_HEADERS, 1, &header_block(fields))
}

fn data(flags: u8, bytes: &[u8]) -> Vec<u8> {
    frame(kind::DATA, flags, 1, bytes)
}

fn seen(judge: &mut StrictStreams) -> Vec<Seen> {
    std::iter::from_fn(|| judge.poll()).collect()
}

const OK: (&str, &str) = (":status", "200");

/// Returns frames of every kind that weir may send, one response with all its parts.
fn whole() -> Vec<u8> {
    [
        head(0, &[(":status", "103"), ("link", "</a>")]),
        frame(kind::HEADERS, 0, 1, &header_block(&[OK])),
        frame(
            kind::CONTINUATION,
            END_HEADERS,
            1,
            &header_block(&[("content-length", "5"), ("x-nonce", "a")]),
        ),
        data(0, b"he"),
        frame(kind::PING, 0, 0, b"12345678"),
        frame(kind::DATA, PADDED, 1, b"\x02llo\0\0"),
        frame(kind::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 9]),
        head(END_STREAM, &[("x-sum", "5")]),
        frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]),
    ]
    .concat()
}

#[test]
fn a_whole_answer_is_taken() {
    let mut judge = asked("GET", 100);
    judge.feed(&whole()).unwrap();
    let all = seen(&mut judge);
    let [
        Seen::Settings(_),
        Seen::Data(1, 2),
        Seen::Ping(_),
        Seen::Data(1, 6),
        Seen::Credit(0, 9),
        Seen::Reply(1, reply),
        Seen::Goaway(1, 0),
    ] = all.as_slice()
    else {
        panic!("{all:?}")
    };
    assert_eq!(
        (reply.status, &reply.interim, reply.body.text()),
        (200, &vec![103], "hello".to_owned())
    );
    assert_eq!(
        (reply.fields.first("x-nonce"), reply.trailers.first("x-sum")),
        (Some("a"), Some("5"))
    );
    assert!(judge.is_between_frames() && judge.has_begun(1));
}

#[test]
fn a_head_needs_no_body() {
    for (method, status) in [("HEAD", "200"), ("GET", "304")] {
        let mut judge = asked(method, 100);
        judge.feed(&head(END_STREAM, &[(":status", status), ("content-length", "7")])).unwrap();
        assert!(seen(&mut judge).iter().any(|seen| matches!(seen, Seen::Reply(1, _))), "{method}");
    }
}

proptest! {
    #[test]
    fn every_cut_gives_the_same(cuts in proptest::collection::vec(0_usize..400, 0..8)) {
        let bytes = whole();
        let mut cuts: Vec<usize> =
            cuts.into_iter().map(|cut| cut % bytes.len()).chain([bytes.len()]).collect();
        cuts.sort_unstable();
        let (mut at_once, mut in_parts) = (asked("GET", 100), asked("GET", 100));
        at_once.feed(&bytes).unwrap();
        let mut from = 0;
        for cut in cuts {
            in_parts.feed(&bytes[from..cut]).unwrap();
            from = cut;
        }
        prop_assert_eq!(seen(&mut at_once), seen(&mut in_parts));
    }
}

/// Each is wrong after the frames before it, and the judge says why.
#[test]
fn what_must_not_leave_is_refused() {
    let ok = || head(0, &[OK]);
    let cases: &[(&str, Vec<Vec<u8>>)] = &[
        ("more DATA than the window of the stream", vec![ok(), data(0, &[0; 11])]),
        ("DATA before the head", vec![data(0, b"x")]),
        ("an empty DATA", vec![ok(), data(0, b"")]),
        ("DATA behind the end", vec![head(END_STREAM, &[OK]), data(0, b"x")]),
        ("a head behind the end", vec![head(END_STREAM, &[OK]), head(END_STREAM, &[OK])]),
        ("a second head", vec![ok(), ok()]),
        ("trailers that do not end", vec![ok(), head(0, &[("a", "b")])]),
        ("a head without a status", vec![head(0, &[("a", "b")])]),
        ("101", vec![head(0, &[(":status", "101")])]),
        ("an interim answer that ends", vec![head(END_STREAM, &[(":status", "103")])]),
        ("a status that is none", vec![head(0, &[(":status", "20")])]),
        ("a status that is none", vec![head(0, &[(":status", "600")])]),
        ("a pseudo field", vec![head(0, &[OK, (":path", "/")])]),
        ("a field name", vec![head(0, &[OK, ("X-A", "b")])]),
        ("a field value with a control", vec![head(0, &[OK, ("x-a", "b\r\nc: d")])]),
        ("a field value with blanks", vec![head(0, &[OK, ("x-a", " b")])]),
        ("a field of the connection", vec![head(0, &[OK, ("transfer-encoding", "chunked")])]),
        ("a field of the connection", vec![head(0, &[OK, ("connection", "close")])]),
        (
            "several Content-Length",
            vec![head(0, &[OK, ("content-length", "1"), ("content-length", "1")])],
        ),
        ("Content-Length in a 204", vec![head(0, &[(":status", "204"), ("content-length", "0")])]),
        ("Content-Length that is not", vec![head(0, &[OK, ("content-length", "+1")])]),
        ("not as long", vec![head(0, &[OK, ("content-length", "2")]), data(END_STREAM, b"x")]),
        ("not as long", vec![head(END_STREAM, &[OK, ("content-length", "2")])]),
        ("a body where none", vec![head(0, &[(":status", "304")]), data(END_STREAM, b"x")]),
        ("behind RST_STREAM", vec![ok(), frame(kind::RST_STREAM, 0, 1, &[0; 4]), data(0, b"x")]),
        (
            "a second RST_STREAM",
            vec![frame(kind::RST_STREAM, 0, 1, &[0; 4]), frame(kind::RST_STREAM, 0, 1, &[0; 4])],
        ),
        ("nobody opened", vec![frame(kind::HEADERS, END_HEADERS, 3, &header_block(&[OK]))]),
        ("nobody opened", vec![frame(kind::WINDOW_UPDATE, 0, 3, &[0, 0, 0, 1])]),
        ("a WINDOW_UPDATE of nothing", vec![frame(kind::WINDOW_UPDATE, 0, 1, &[0; 4])]),
        (
            "between those of a header block",
            vec![frame(kind::HEADERS, 0, 1, &header_block(&[OK])), data(0, b"x")],
        ),
        ("CONTINUATION of nothing", vec![frame(kind::CONTINUATION, END_HEADERS, 1, &[])]),
        ("the answer to no PING", vec![frame(kind::PING, ACK, 0, &[0; 8])]),
        ("an acknowledgement of no", vec![frame(kind::SETTINGS, ACK, 0, &[])]),
        ("a setting with a value", vec![frame(kind::SETTINGS, 0, 0, &[0, 2, 0, 0, 0, 1])]),
        (
            "takes back",
            vec![
                frame(kind::GOAWAY, 0, 0, &[0; 8]),
                frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]),
            ],
        ),
        ("no reason", vec![frame(5, 0, 1, &[0; 4])]),
        ("larger than the client allows", vec![vec![0, 0x40, 1, 0, 0, 0, 0, 0, 1]]),
        ("more padding", vec![ok(), frame(kind::DATA, PADDED, 1, &[4, 0, 0])]),
        (
            "a header block",
            vec![frame(kind::HEADERS, END_HEADERS, 1, &[0xff, 0xff, 0xff, 0xff, 0xff])],
        ),
    ];
    for (rule, frames) in cases {
        let mut judge = asked("GET", 10);
        let (last, before) = frames.split_last().unwrap();
        before.iter().for_each(|frame| judge.feed(frame).unwrap());
        let violation = judge.feed(last).expect_err(rule);
        assert!(violation.rule.contains(rule), "{rule}: {violation}");
    }
    let mut judge = StrictStreams::new();
    judge.ask(1, "GET");
    assert!(judge.feed(&ok()).unwrap_err().rule.contains("no SETTINGS first"));
}

#[test]
fn windows_are_those_that_the_client_gave() {
    let send = |judge: &mut StrictStreams, bytes: usize| judge.feed(&data(0, &vec![0; bytes]));
    // SETTINGS that are not acknowledged may make it larger, not smaller.
    let mut judge = asked("GET", 10);
    judge.feed(&head(0, &[OK])).unwrap();
    judge.set(Some(4));
    send(&mut judge, 7).unwrap();
    judge.feed(SERVER_PREFACE[1]).unwrap();
    judge.credit(1, 5);
    send(&mut judge, 2).unwrap();
    assert!(send(&mut judge, 1).is_err());
    // The connection's window is separate.
    let mut judge = asked("GET", 1 << 20);
    judge.feed(&head(0, &[OK])).unwrap();
    (0..4).for_each(|_| send(&mut judge, 16_000).unwrap());
    judge.credit(0, 65);
    send(&mut judge, 1_600).unwrap();
    assert!(send(&mut judge, 1).unwrap_err().rule.contains("window of the connection"));
}

#[test]
fn what_comes_on_a_stream_that_was_given_up_is_not_wrong_and_uses_the_window() {
    let mut judge = asked("GET", 10);
    judge.give_up(1);
    judge.feed(&[head(0, &[OK]), data(END_STREAM, b"abc")].concat()).unwrap();
    assert_eq!(seen(&mut judge).last(), Some(&Seen::Data(1, 3)));
}
