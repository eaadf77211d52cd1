//! Proves: a client reports each response as it came, keeps to the windows of its server and gives
//! its own back, and reports each fault of a server with the code of the section. How: frames of a
//! server by hand, tables by section, and the server's machine at the other end.

use std::sync::Arc;

use weir_http::h2::client::{Client, Event, Request, Windows};
use weir_http::h2::frame::{
    ACK, END_HEADERS, END_STREAM, FrameHead, HEAD_BYTES, Kind, PADDED, PRIORITY,
};
use weir_http::h2::hpack::encode::put_known;
use weir_http::h2::{self, Additions, Heads, Limits, Mux, Outgoing, PREFACE, Turn};
use weir_http::{ReplyParts, Trailers};

use crate::kit::{block, data, frame, headers, reset, setting, window};

/// Returns the first bytes of a server.
fn greeting() -> Vec<u8> {
    frame(Kind::Settings, 0, 0, &[])
}

fn content(bytes: usize) -> Arc<[u8]> {
    (0..bytes).map(|at| at as u8).collect()
}

fn get(client: &mut Client) -> u32 {
    ask(client, "GET", &content(0))
}

fn ask(client: &mut Client, method: &str, content: &Arc<[u8]>) -> u32 {
    let mut block = Vec::new();
    for (name, value) in
        [(":method", method), (":scheme", "http"), (":authority", "a"), (":path", "/")]
    {
        put_known(&mut block, name.as_bytes(), value.as_bytes());
    }
    client
        .open(&Request { block: &block, content, is_head: method == "HEAD" })
        .expect("there is room")
}

/// Feeds input and returns its events, in words.
fn feed(client: &mut Client, input: &[u8]) -> Vec<String> {
    let (mut words, mut at) = (Vec::new(), 0);
    loop {
        match client.read(input, &mut at) {
            Ok(Some(event)) => words.push(said(&event)),
            Ok(None) => break,
            Err(failure) => {
                words.push(format!("failed {}", failure.code.word()));
                assert_eq!(
                    (client.read(input, &mut at).err(), client.room()),
                    (Some(failure), 0),
                    "it says so again"
                );
                break;
            }
        }
    }
    words
}

fn said(event: &Event<'_>) -> String {
    let last = |end: bool| if end { " end" } else { "" };
    match *event {
        Event::Head { stream, status, end } => format!("head {stream} {status}{}", last(end)),
        Event::Data { stream, bytes, end } => format!("data {stream} {}{}", bytes.len(), last(end)),
        Event::Reset { stream, code, by_server: true } => format!("reset {stream} {}", code.word()),
        Event::Reset { stream, code, by_server: false } => {
            format!("given up {stream} {}", code.word())
        }
        Event::Leaving { last, code } => format!("leaving {last} {}", code.word()),
    }
}

/// The frames that leave, in words; bodies by their lengths.
fn sent(client: &mut Client) -> Vec<String> {
    let mut out = Vec::new();
    while client.wants_write() {
        out.extend(client.take_out());
    }
    frames(out.strip_prefix(&PREFACE[..]).unwrap_or(&out))
}

fn frames(mut bytes: &[u8]) -> Vec<String> {
    let mut words = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() {
        let head = FrameHead::parse(head);
        head.check().expect("a frame that may be sent");
        let (payload, behind) = rest.split_at(head.length as usize);
        bytes = behind;
        let number = || payload.first_chunk().map_or(0, |it| u32::from_be_bytes(*it));
        let end = if head.has(END_STREAM) { " end" } else { "" };
        words.push(match head.kind {
            Kind::Settings if head.has(ACK) => "settings ack".to_owned(),
            Kind::Settings => format!("settings {payload:?}"),
            Kind::WindowUpdate => format!("window {} {}", head.stream, number()),
            Kind::Headers => format!("headers {}{end}", head.stream),
            Kind::Data => format!("data {} {}{end}", head.stream, head.length),
            Kind::RstStream => format!("rst {} {}", head.stream, h2::Code::of(number()).word()),
            Kind::Ping => format!("pong {}", payload.escape_ascii()),
            Kind::Goaway => "goaway".to_owned(),
            other => format!("{other:?} {}", head.stream),
        });
    }
    assert!(bytes.is_empty(), "whole frames");
    words
}

#[test]
fn the_greeting_says_what_may_come() {
    let mut client = Client::new(Windows { stream: 70_000, connection: 100_000, gives_back: true });
    let stream = get(&mut client);
    assert!(!client.is_greeted());
    let out = client.take_out();
    assert!(out.starts_with(PREFACE) && !client.wants_write());
    let settings = "settings [0, 2, 0, 0, 0, 0, 0, 4, 0, 1, 17, 112]";
    assert_eq!(frames(&out[PREFACE.len()..]), [settings, "window 0 34465", "headers 1 end"]);
    assert_eq!(feed(&mut client, &greeting()), [""; 0]);
    assert!(client.is_greeted());
    assert_eq!(sent(&mut client), ["settings ack"]);
    // No window: none on streams, and on the connection the smallest possible one.
    let mut shut = Client::new(Windows::SHUT);
    assert_eq!(sent(&mut shut), ["settings [0, 2, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0]"]);
    assert_eq!(stream, 1);
}

/// Returns all parts that a response may have, on three streams.
fn everything() -> Vec<u8> {
    let head = block(&[(":status", "200"), ("content-length", "5"), ("x-a", "b")]);
    let (first, second) = head.split_at(9);
    [
        greeting(),
        frame(Kind::Headers, END_HEADERS, 1, &block(&[(":status", "103"), ("link", "</a>")])),
        frame(Kind::Headers, PADDED | PRIORITY, 1, &[&[2, 0, 0, 0, 0, 9], first, &[0, 0]].concat()),
        frame(Kind::Continuation, END_HEADERS, 1, second),
        data(1, PADDED, b"\x03abc\0\0\0"),
        frame(Kind::Ping, 0, 0, b"12345678"),
        frame(Kind::Unknown(99), 0xff, 1, b"whatever"),
        headers(3, END_STREAM, &[(":status", "404")]),
        data(1, 0, b""),
        data(1, 0, b"de"),
        headers(1, END_STREAM, &[("x-sum", "9")]),
        reset(5, h2::Code::RefusedStream),
        data(1, END_STREAM, b"passed over"),
        frame(Kind::Goaway, 0, 0, &[0, 0, 0, 5, 0, 0, 0, 0, b'!']),
    ]
    .concat()
}

#[test]
fn answers_are_told_as_they_came_however_they_are_cut() {
    let run = |pieces: &[&[u8]]| {
        let mut client = Client::new(Windows::OPEN);
        (0..4).for_each(|_| _ = get(&mut client));
        let mut body = 0;
        let words: Vec<String> = pieces.iter().flat_map(|piece| feed(&mut client, piece)).collect();
        // Pieces of a body are as the input was cut.
        let mut words: Vec<String> = words
            .into_iter()
            .filter(|word| {
                let bytes =
                    word.strip_prefix("data 1 ").and_then(|rest| rest.parse::<usize>().ok());
                body += bytes.unwrap_or(0);
                bytes.is_none()
            })
            .collect();
        words.push(format!("{body} bytes"));
        (words, sent(&mut client))
    };
    let input = everything();
    let whole = run(&[&input]);
    let events =
        ["head 1 103", "head 1 200", "head 3 404 end", "data 1 0 end", "reset 5 refused-stream"];
    assert_eq!(whole.0, [&events[..], &["leaving 5 no-error", "5 bytes"]].concat());
    assert_eq!(whole.1[6..], ["settings ack", "pong 12345678"]);
    for cut in 0..input.len() {
        assert_eq!(run(&[&input[..cut], &input[cut..]]), whole, "cut at {cut}");
    }
    assert_eq!(run(&input.chunks(1).collect::<Vec<_>>()), whole);
}

#[test]
fn who_leaves_is_asked_no_more_and_what_he_does_not_take_is_over() {
    let mut client = Client::new(Windows::OPEN);
    feed(&mut client, &[greeting(), setting(3, 4)].concat());
    (0..4).for_each(|_| _ = get(&mut client));
    assert_eq!((client.room(), client.open_streams(), client.is_leaving()), (0, 4, false));
    let goaway = |last: u8| frame(Kind::Goaway, 0, 0, &[0, 0, 0, last, 0, 0, 0, 11]);
    assert_eq!(feed(&mut client, &goaway(5)), ["leaving 5 enhance-your-calm"]);
    assert_eq!((client.room(), client.open_streams(), client.is_leaving()), (0, 3, true));
    assert_eq!(feed(&mut client, &headers(7, END_STREAM, &[(":status", "200")])), [""; 0]);
    assert_eq!(
        feed(&mut client, &headers(5, END_STREAM, &[(":status", "200")])),
        ["head 5 200 end"]
    );
}

#[test]
fn content_leaves_as_windows_let_it_and_the_last_byte_ends_the_stream() {
    let mut client = Client::new(Windows::OPEN);
    // 40,000 bytes a stream, 65,535 on the connection.
    feed(&mut client, &[greeting(), setting(4, 40_000)].concat());
    sent(&mut client);
    let whole = content(50_000);
    let (first, second) = (ask(&mut client, "POST", &whole), ask(&mut client, "PUT", &whole));
    let full = "data 1 16384";
    let expected =
        ["headers 1", full, full, "data 1 7232", "headers 3", "data 3 16384", "data 3 9151"];
    assert_eq!(sent(&mut client), expected);
    feed(&mut client, &window(first, 100_000));
    assert_eq!(sent(&mut client), [""; 0], "the connection has no room");
    feed(&mut client, &window(0, 100_000));
    assert_eq!(sent(&mut client), ["data 1 10000 end", "data 3 14465"]);
    // Smaller windows become negative: credit has to fill that up first (RFC 9113 §6.9.2).
    feed(&mut client, &[setting(4, 30_000), window(second, 10_001)].concat());
    assert_eq!(sent(&mut client), ["settings ack", "data 3 1"]);
    // A response that does not wait for the rest ends it.
    assert_eq!(
        feed(&mut client, &headers(second, END_STREAM, &[(":status", "413")])),
        ["head 3 413 end"]
    );
    assert_eq!(sent(&mut client), ["rst 3 cancel"]);
    assert_eq!(
        feed(&mut client, &headers(first, END_STREAM, &[(":status", "200")])),
        ["head 1 200 end"]
    );
    assert_eq!((sent(&mut client), client.open_streams()), (vec![], 0));
}

#[test]
fn windows_are_given_back_to_who_keeps_to_them() {
    let (piece, ok) = (vec![0; 16_000], headers(1, 0, &[(":status", "200")]));
    let windows = Windows { stream: 32_000, connection: 65_535, gives_back: true };
    let mut client = Client::new(windows);
    get(&mut client);
    feed(&mut client, &[greeting(), ok.clone()].concat());
    sent(&mut client);
    for nth in 1..=100 {
        assert_eq!(feed(&mut client, &data(1, 0, &piece)), ["data 1 16000"]);
        let connection = ["window 0 48000"].into_iter().filter(|_| nth % 3 == 0);
        let expected: Vec<&str> =
            connection.chain(["window 1 32000"].into_iter().filter(|_| nth % 2 == 0)).collect();
        assert_eq!(sent(&mut client), expected, "{nth}");
    }
    // A client that gives nothing back, and a client that gets more than it has granted.
    for (windows, pieces) in [(Windows { gives_back: false, ..windows }, 2), (Windows::SHUT, 0)] {
        let mut client = Client::new(windows);
        get(&mut client);
        feed(&mut client, &[greeting(), ok.clone()].concat());
        sent(&mut client);
        for _ in 0..pieces {
            assert_eq!(feed(&mut client, &data(1, 0, &piece)), ["data 1 16000"]);
        }
        assert_eq!(sent(&mut client), [""; 0]);
        assert_eq!(feed(&mut client, &data(1, 0, b"x")), ["failed flow-control-error"]);
        assert_eq!(sent(&mut client), ["goaway"]);
    }
}

#[test]
fn what_a_server_may_not_do() {
    let ok = || headers(1, 0, &[(":status", "200")]);
    let (protocol, size, flow) =
        ("failed protocol-error", "failed frame-size-error", "failed flow-control-error");
    let malformed = "given up 1 protocol-error";
    let rows = [
        ("3.4", frame(Kind::Ping, 0, 0, &[0; 8]), protocol, false),
        ("3.4", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), size, false),
        ("4.2", data(1, 0, &[0; 16_385]), size, true),
        (
            "4.3",
            [frame(Kind::Headers, 0, 1, &block(&[(":status", "200")])), ok()].concat(),
            protocol,
            true,
        ),
        (
            "4.3",
            frame(Kind::Headers, END_HEADERS, 1, &[0xff, 0xff, 0xff, 0xff, 0xff]),
            "failed compression-error",
            true,
        ),
        ("5.1", headers(5, 0, &[(":status", "200")]), protocol, true),
        ("5.1.1", headers(2, 0, &[(":status", "200")]), protocol, true),
        ("6.1", data(1, PADDED, b"\x02a"), protocol, true),
        ("6.1", data(1, PADDED, b""), size, true),
        ("6.2", frame(Kind::Headers, END_HEADERS | PADDED, 1, &[9, 1]), protocol, true),
        ("6.5.2", setting(4, 0x8000_0000), flow, true),
        ("6.6", frame(Kind::PushPromise, END_HEADERS, 1, &[0, 0, 0, 2]), protocol, true),
        ("6.9", window(0, 0), protocol, true),
        ("6.9", window(1, 0), malformed, true),
        ("6.9.1", window(0, 0x7fff_ffff), flow, true),
        ("6.9.1", window(1, 0x7fff_ffff), "given up 1 flow-control-error", true),
        ("6.10", frame(Kind::Continuation, END_HEADERS, 1, b""), protocol, true),
        ("8.1", data(1, 0, b"a"), malformed, true),
        ("8.1", headers(1, END_STREAM, &[(":status", "100")]), malformed, true),
        ("8.2.1", headers(1, 0, &[(":status", "200"), ("X-Upper", "a")]), malformed, true),
        ("8.2.2", headers(1, 0, &[(":status", "200"), ("connection", "close")]), malformed, true),
        ("8.3", headers(1, 0, &[("x-a", "b"), (":status", "200")]), malformed, true),
        ("8.3", headers(1, 0, &[(":status", "200"), (":status", "200")]), malformed, true),
        ("8.3", headers(1, 0, &[(":status", "200"), (":path", "/")]), malformed, true),
        ("8.3.2", headers(1, 0, &[("x-a", "b")]), malformed, true),
        ("8.3.2", headers(1, 0, &[(":status", "2000")]), malformed, true),
        (
            "8.1.1",
            headers(1, END_STREAM, &[(":status", "200"), ("content-length", "1")]),
            malformed,
            true,
        ),
    ];
    for (section, input, expected, greets) in rows {
        let mut client = Client::new(Windows::OPEN);
        get(&mut client);
        let before = if greets { greeting() } else { Vec::new() };
        assert_eq!(feed(&mut client, &[before, input].concat()), [expected], "{section}");
        let said = sent(&mut client);
        let last = if expected.starts_with("failed") { "goaway" } else { "rst 1" };
        assert!(said.last().is_some_and(|word| word.starts_with(last)), "{section}: {said:?}");
    }
    // After a head: trailers with a status, or without an end; more or less of a body than was
    // announced.
    let five = headers(1, 0, &[(":status", "200"), ("content-length", "5")]);
    for (section, head, behind) in [
        ("8.1", ok(), headers(1, END_STREAM, &[(":status", "200")])),
        ("8.1", ok(), headers(1, 0, &[("x-a", "b")])),
        ("8.1.1", five.clone(), data(1, 0, b"123456")),
        ("8.1.1", five.clone(), data(1, END_STREAM, b"1234")),
        ("8.1.1", five, headers(1, END_STREAM, &[("x-a", "b")])),
    ] {
        let mut client = Client::new(Windows::OPEN);
        get(&mut client);
        assert_eq!(
            feed(&mut client, &[greeting(), head, behind].concat()),
            ["head 1 200", malformed],
            "{section}"
        );
    }
}

#[test]
fn what_is_said_of_a_length_without_a_body_is_of_another_answer() {
    for (method, status) in [("HEAD", "200"), ("GET", "304")] {
        let mut client = Client::new(Windows::OPEN);
        ask(&mut client, method, &content(0));
        let answer = headers(1, END_STREAM, &[(":status", status), ("content-length", "77")]);
        assert_eq!(
            feed(&mut client, &[greeting(), answer].concat()),
            [format!("head 1 {status} end")]
        );
    }
}

#[test]
fn large_heads_come_in_parts_and_are_bounded() {
    let mut client = Client::new(Windows::OPEN);
    let mut block = Vec::new();
    put_known(&mut block, b":method", b"GET");
    put_known(&mut block, b"x-large", &[b'~'; 40_000]);
    let opened = client.open(&Request { block: &block, content: &content(0), is_head: false });
    assert_eq!(opened, Some(1));
    let said = sent(&mut client);
    assert_eq!(said[2..], ["headers 1 end", "Continuation 1", "Continuation 1"]);
    // Responses to control frames as well; not for ever.
    let part = frame(Kind::Continuation, 0, 1, &[0; 16_384]);
    let endless = [greeting(), frame(Kind::Headers, 0, 1, &[0; 16_384]), part.repeat(4)].concat();
    assert_eq!(feed(&mut client, &endless), ["failed enhance-your-calm"]);
    // Control frames that need a response are answered as long as responses leave.
    let mut client = Client::new(Windows::OPEN);
    let pings = frame(Kind::Ping, 0, 0, b"12345678").repeat(100_000);
    assert_eq!(feed(&mut client, &[greeting(), pings].concat()), ["failed enhance-your-calm"]);
    assert!(client.take_out().len() < (1 << 20) + 100);
}

#[test]
fn the_table_of_the_peer_is_said_to_be_empty_when_it_changes() {
    let mut client = Client::new(Windows::OPEN);
    feed(&mut client, &[greeting(), setting(1, 100)].concat());
    client.take_out();
    let first = |client: &mut Client| {
        get(client);
        client.take_out()[HEAD_BYTES]
    };
    assert_eq!((first(&mut client), first(&mut client)), (0x20, 0x82));
}

/// The server's machine, which sends back what it receives.
struct Echo {
    mux: Mux,
    heads: Heads,
    limits: Limits,
    /// Of each stream: content, sent so far.
    bodies: std::collections::BTreeMap<u32, (Vec<u8>, usize)>,
    out: Vec<u8>,
}

struct Wire<'a>(&'a mut Vec<u8>, &'a mut std::collections::BTreeMap<u32, (Vec<u8>, usize)>);

impl Outgoing for Wire<'_> {
    fn frames(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn body(&mut self, stream: u32, _: u64, bytes: usize) {
        let (body, sent) = self.1.get_mut(&stream).expect("it has content");
        self.0.extend_from_slice(&body[*sent..*sent + bytes]);
        *sent += bytes;
    }

    fn ended(&mut self, stream: u32, _: u64) {
        self.1.remove(&stream);
    }
}

impl Echo {
    fn feed(&mut self, input: &[u8]) {
        let limits = self.limits.clone();
        let mut turn = Turn::new(input, 1, &limits);
        while let Some(event) =
            self.mux.read(&mut turn, &mut self.heads).expect("a client that keeps to the rules")
        {
            let (stream, ends) = match event {
                h2::Event::Request { stream, end, .. } => {
                    self.bodies.insert(stream, (Vec::new(), 0));
                    (stream, end)
                }
                h2::Event::Data { stream, bytes, end, .. } => {
                    self.bodies.get_mut(&stream).expect("it has a head").0.extend_from_slice(bytes);
                    self.mux.consumed(stream, bytes.len());
                    (stream, end)
                }
                other => panic!("{other:?}"),
            };
            if ends {
                let bytes = self.bodies[&stream].0.len();
                self.mux.reply_head(
                    stream,
                    &ReplyParts::made(200, &[]),
                    &Additions::default(),
                    bytes == 0,
                );
                self.mux.reply_data(stream, bytes);
                self.mux
                    .end(stream, Trailers::kept(if stream % 4 == 1 { b"A: b\r\n" } else { b"" }));
            }
        }
        assert!(turn.consumed() == input.len(), "{:?}", self.mux.blocked());
        while self.mux.write_out(10_000, &mut Wire(&mut self.out, &mut self.bodies)) > 0 {}
    }
}

#[test]
fn with_our_own_server_everything_comes_back_whole() {
    for (windows, piece) in [
        (Windows::OPEN, 70_000),
        (Windows { stream: 1_000, connection: 65_535, gives_back: true }, 777),
    ] {
        let limits = Limits { requests_max: u32::MAX, ..Limits::default() };
        let (mux, heads) = (Mux::new(&limits), Heads::default());
        let mut server = Echo { mux, heads, limits, bodies: Default::default(), out: Vec::new() };
        let mut client = Client::new(windows);
        let (mut asked, mut done, mut bodies) =
            (0usize, 0usize, std::collections::BTreeMap::<u32, Vec<u8>>::new());
        while done < 300 {
            while asked < 300 && client.room() > 0 && client.open_streams() < 20 {
                let bytes = asked * 997 % 90_000;
                bodies.insert(ask(&mut client, "POST", &content(bytes)), Vec::new());
                asked += 1;
            }
            let out = client.take_out();
            out.chunks(piece).for_each(|piece| server.feed(piece));
            let back = std::mem::take(&mut server.out);
            assert!(
                !back.is_empty() || !out.is_empty(),
                "nothing moves: {} open",
                client.open_streams()
            );
            for piece in back.chunks(piece) {
                let mut at = 0;
                while let Some(event) =
                    client.read(piece, &mut at).expect("a server that keeps to the rules")
                {
                    let (stream, ended) = match event {
                        Event::Head { stream, status: 200, end } => (stream, end),
                        Event::Data { stream, bytes, end } => {
                            bodies.get_mut(&stream).expect("it was asked").extend_from_slice(bytes);
                            (stream, end)
                        }
                        other => panic!("{other:?}"),
                    };
                    if ended {
                        let nth = (stream as usize - 1) / 2;
                        let body = bodies.remove(&stream).expect("it was asked");
                        assert!(body[..] == content(nth * 997 % 90_000)[..], "stream {stream}");
                        done += 1;
                    }
                }
            }
        }
        assert_eq!((client.open_streams(), server.mux.open(), bodies.len()), (0, 0, 0));
    }
}

/// What no server may send, even where a generator of requests could tolerate it.
#[test]
fn answers_are_judged_as_strictly_as_requests() {
    let head = |fields: &[(&str, &str)], flags: u8| headers(1, flags, fields);
    let with = |length: &'static str| head(&[(":status", "200"), ("content-length", length)], 0);
    let malformed = "given up 1 protocol-error";
    for (what, method, frames, last) in [
        ("a length with a sign", "GET", with("+3"), malformed),
        ("no length", "GET", with(""), malformed),
        ("a length that is too large", "GET", with("18446744073709551616"), malformed),
        ("a switch of protocols", "GET", head(&[(":status", "101")], 0), malformed),
        ("a body for HEAD", "HEAD", [with("3"), data(1, END_STREAM, b"abc")].concat(), malformed),
        ("an end for HEAD", "HEAD", [with("3"), data(1, END_STREAM, b"")].concat(), "data 1 0 end"),
        (
            "204 with a body",
            "GET",
            [head(&[(":status", "204")], 0), data(1, 0, b"x")].concat(),
            malformed,
        ),
        (
            "304 with a body",
            "GET",
            [head(&[(":status", "304")], 0), data(1, 0, b"x")].concat(),
            malformed,
        ),
        ("push", "GET", setting(2, 1), "failed protocol-error"),
        ("push by 2", "GET", setting(2, 2), "failed protocol-error"),
        ("small frames", "GET", setting(5, 16_383), "failed protocol-error"),
        ("large frames", "GET", setting(5, 1 << 24), "failed protocol-error"),
        ("priorities by 2", "GET", setting(9, 2), "failed protocol-error"),
        ("a window that is too large", "GET", setting(4, 1 << 31), "failed flow-control-error"),
    ] {
        let mut client = Client::new(Windows::OPEN);
        feed(&mut client, &greeting());
        ask(&mut client, method, &content(0));
        assert_eq!(feed(&mut client, &frames).last().map(String::as_str), Some(last), "{what}");
    }
}
