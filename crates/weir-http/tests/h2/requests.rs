//! Proves: accepted requests equal the same requests in HTTP/1.1, and invalid ones never become
//! text. How: a table of header lists (RFC 9113 §8.2, §8.3), and each accepted head is given to the
//! parser of HTTP/1.

use weir_http::h2::frame::{END_HEADERS, END_STREAM, Kind};
use weir_http::h2::{Code, Event, Glitch, Limits, Turn};
use weir_http::{Fields, Method, RequestBody, TargetForm, Version, parse_request};

use crate::kit::{GET, POST, Server, block, data, frame, headers, literal};

/// Returns the events of a list as a request without a body, and the output.
fn outcome(list: &[(&str, &str)]) -> (String, String) {
    let mut server = Server::new();
    (server.feed(&headers(1, END_STREAM, list)).join(", "), server.sent().join(", "))
}

#[test]
fn malformed_lists() {
    let get = |more: &[(&'static str, &'static str)]| [GET, more].concat();
    let (method, scheme, path, authority) = (GET[0], GET[1], GET[2], GET[3]);
    type List = Vec<(&'static str, &'static str)>;
    let lists: Vec<(&str, &str, List)> = vec![
        ("8.2 name in capitals", "name-invalid", get(&[("X-a", "1")])),
        ("8.2 no name", "name-empty", get(&[("", "1")])),
        ("8.2 name with a space", "name-spaced", get(&[("x y", "1")])),
        ("8.2 name with a colon", "name-invalid", get(&[("x:y", "1")])),
        ("8.2 name with CRLF", "name-invalid", get(&[("x\r\ny", "1")])),
        ("8.2 name with NUL", "name-invalid", get(&[("x\0", "1")])),
        ("8.2 name above ASCII", "name-invalid", get(&[("caf\u{e9}", "1")])),
        ("8.2.1 value with CR", "control-byte", get(&[("x", "a\rb")])),
        ("8.2.1 value with LF", "control-byte", get(&[("x", "a\nb")])),
        ("8.2.1 value with NUL", "control-byte", get(&[("x", "a\0b")])),
        (
            "8.2.1 value with a field",
            "control-byte",
            get(&[("x", "a\r\ntransfer-encoding: chunked")]),
        ),
        ("8.2.1 cookie with LF", "control-byte", get(&[("cookie", "a\nb")])),
        ("8.2.2 connection", "connection-field", get(&[("connection", "x-foo")])),
        ("8.2.2 proxy-connection", "connection-field", get(&[("proxy-connection", "close")])),
        ("8.2.2 keep-alive", "connection-field", get(&[("keep-alive", "1")])),
        ("8.2.2 transfer-encoding", "connection-field", get(&[("transfer-encoding", "chunked")])),
        ("8.2.2 upgrade", "connection-field", get(&[("upgrade", "websocket")])),
        ("8.2.2 te", "connection-field", get(&[("te", "trailers, deflate")])),
        (
            "8.3 pseudo behind a field",
            "pseudo-field",
            vec![method, scheme, path, ("x", "1"), authority],
        ),
        ("8.3 unknown pseudo", "pseudo-field", get(&[(":proto", "x")])),
        ("8.3 of answers", "pseudo-field", get(&[(":status", "200")])),
        ("8.3.1 twice", "pseudo-field", get(&[(":path", "/")])),
        ("8.3.1 twice", "pseudo-field", get(&[(":method", "GET")])),
        ("8.3.1 twice", "pseudo-field", get(&[(":authority", "a")])),
        ("8.3.1 no method", "pseudo-field", vec![scheme, path, authority]),
        ("8.3.1 no scheme", "pseudo-field", vec![method, path, authority]),
        ("8.3.1 no path", "pseudo-field", vec![method, scheme, authority]),
        ("8.3.1 empty path", "target-form", vec![method, scheme, (":path", ""), authority]),
        (
            "8.3.1 path without slash",
            "target-form",
            vec![method, scheme, (":path", "a"), authority],
        ),
        ("8.3.1 absolute", "target-form", vec![method, scheme, (":path", "http://a/"), authority]),
        ("8.3.1 asterisk for GET", "target-form", vec![method, scheme, (":path", "*"), authority]),
        (
            "8.3.1 method is no token",
            "method-invalid",
            vec![(":method", "GE T"), scheme, path, authority],
        ),
        (
            "8.3.1 method with CRLF",
            "pseudo-field",
            vec![(":method", "GET\r\n"), scheme, path, authority],
        ),
        (
            "8.3.1 path with CRLF",
            "pseudo-field",
            vec![method, scheme, (":path", "/\r\nx: y"), authority],
        ),
        (
            "8.3.1 authority with CRLF",
            "pseudo-field",
            vec![method, scheme, path, (":authority", "a\r\nx: y")],
        ),
        ("8.3.1 empty method", "method-invalid", vec![(":method", ""), scheme, path, authority]),
        ("3.4 PRI", "method-invalid", vec![(":method", "PRI"), scheme, path, authority]),
        ("8.3.1 host differs", "host-differs", get(&[("host", "b")])),
        ("8.3.1 two hosts", "host-repeated", get(&[("host", "a"), ("host", "a")])),
        ("8.5 CONNECT with a path", "pseudo-field", vec![(":method", "CONNECT"), path, authority]),
        (
            "8.5 CONNECT without authority",
            "pseudo-field",
            vec![(":method", "CONNECT"), ("host", "a:1")],
        ),
        (
            "RFC 8441",
            "pseudo-field",
            vec![(":method", "CONNECT"), (":protocol", "websocket"), scheme, path, authority],
        ),
        ("8.1.1 a length and no body", "length-differs", get(&[("content-length", "1")])),
        (
            "8.2.1 a path with a blank behind it",
            "pseudo-field",
            vec![method, scheme, (":path", "/ "), authority],
        ),
        ("empty", "pseudo-field", vec![]),
    ];
    for (section, word, list) in lists {
        // The caller has to respond, and nothing is sent before.
        assert_eq!(
            outcome(&list),
            (format!("refused 1 {word}"), String::new()),
            "{section}: {list:?}"
        );
    }
}

/// A malformed request gets a response and its stream is closed, whichever side is still open; no
/// code suggests that it may be repeated.
#[test]
fn a_malformed_request_is_answered() {
    let bad = [POST, &[("te", "gzip")]].concat();
    for end in [END_STREAM, 0] {
        let mut server = Server::new();
        assert_eq!(server.feed(&headers(1, end, &bad)), ["refused 1 connection-field"]);
        if end == 0 {
            assert_eq!(server.feed(&data(1, 0, b"abc")), [""; 0], "its body is thrown away");
        }
        server.answer(1, 3);
        assert_eq!(server.sent(), ["headers 1 :status=200", "data 1 3 end", "ended 1"]);
        if end == 0 {
            assert_eq!(server.feed(&data(1, 0, b"def")), [""; 0]);
            assert_eq!(server.sent(), ["rst 1 no-error"]);
        }
        assert_eq!(
            (server.mux.open(), server.count(Glitch::Malformed), server.count(Glitch::ForcedReset)),
            (0, 1, 0)
        );
        assert_eq!(server.feed(&headers(3, END_STREAM, GET)), ["request 3 GET / HTTP/2.0 end"]);
    }
}

/// Blanks around a value are not part of it, as in HTTP/1.
#[test]
fn blanks_around_values() {
    let list = [
        GET,
        &[
            ("x", " a b\t"),
            ("host", "\ta "),
            ("te", " trailers"),
            ("y", " \t "),
            ("cookie", " c=1 "),
        ],
    ]
    .concat();
    check_accepted(
        &list,
        true,
        "GET / HTTP/2.0\r\nhost: a\r\nx: a b\r\nte: trailers\r\ny: \r\ncookie: c=1\r\n\r\n",
    );
    let mut server = Server::new();
    server.feed(&headers(1, 0, POST));
    assert_eq!(
        server.feed(&headers(1, END_STREAM, &[("x", " y ")])),
        ["data 1 0 end"],
        "trailers, too"
    );
}

/// Well-formed for HTTP/2, and rejected for the reasons for which HTTP/1.1 rejects them.
#[test]
fn refused_requests() {
    let with = |at: usize, value: &'static str| {
        let mut list = GET.to_vec();
        list[at].1 = value;
        list
    };
    let get = |more: &[(&'static str, &'static str)]| [GET, more].concat();
    let long = format!("/{}", "x".repeat(9000));
    let long_path = [GET[0], GET[1], (":path", &long), GET[3]];
    for (word, list) in [
        ("target-fragment", with(2, "/#x")),
        ("target-invalid", with(2, "/a b")),
        ("target-encoding", with(2, "/%00")),
        ("target-encoding", with(2, "/%c0%ae")),
        ("target-form", with(1, "ftp")),
        ("host-invalid", with(3, "user@a")),
        ("host-invalid", with(3, "")),
        ("host-invalid", with(3, "a,b")),
        ("host-missing", GET[..3].to_vec()),
        ("length-invalid", get(&[("content-length", "+1")])),
        ("length-repeated", get(&[("content-length", "0"), ("content-length", "0")])),
        ("expectation", get(&[("expect", "cake")])),
        ("line-too-long", long_path.to_vec()),
        ("target-form", vec![(":method", "CONNECT"), (":authority", "a")]),
    ] {
        assert_eq!(outcome(&list), (format!("refused 1 {word}"), String::new()), "{list:?}");
    }
}

#[test]
fn a_refused_request_is_answered_and_its_body_thrown_away() {
    let mut server = Server::new();
    let list = [POST, &[("expect", "cake")]].concat();
    assert_eq!(server.feed(&headers(1, 0, &list)), ["refused 1 expectation"]);
    assert_eq!(server.feed(&data(1, 0, &[b'x'; 1000])), [""; 0]);
    server.answer(1, 3);
    assert_eq!(server.sent(), ["headers 1 :status=200", "data 1 3 end", "ended 1"]);
    assert_eq!(server.feed(&data(1, END_STREAM, &[b'x'; 1000])), [""; 0]);
    assert_eq!(server.sent(), [""; 0]);
    assert_eq!(server.mux.open(), 0);
}

/// Text, fields and head of a request; its text with the version of HTTP/1.1 gives the same head
/// and the same fields.
fn check_accepted(list: &[(&str, &str)], end: bool, text: &str) {
    let mut server = Server::new();
    let input = headers(1, if end { END_STREAM } else { 0 }, list);
    let limits = Limits::default();
    let mut turn = Turn::new(&input, 0, &limits);
    let Ok(Some(Event::Request { request, .. })) = server.mux.read(&mut turn, &mut server.heads)
    else {
        panic!("{list:?} is a request");
    };
    assert_eq!(String::from_utf8_lossy(request.text), text);
    let (head, old) = (request.head, text.replacen("HTTP/2.0", "HTTP/1.1", 1));
    let mut fields = Fields::default();
    let mut parsed = parse_request(old.as_bytes(), &limits.head, &mut fields).unwrap().unwrap();
    assert_eq!((head.version, parsed.version), (Version::Http2, Version::Http11));
    parsed.version = Version::Http2;
    // Without a length HTTP/1.1 has no body.
    if parsed.body == RequestBody::None && head.method != Method::Connect {
        assert_eq!(head.body, if end { RequestBody::None } else { RequestBody::Open });
        (parsed.body, parsed.expect_continue) = (head.body, head.expect_continue);
    }
    assert_eq!(parsed, head);
    assert_eq!(fields.as_slice(), request.fields.as_slice());
    assert_eq!(fields.oddities(), request.fields.oddities());
}

#[test]
fn requests_are_those_of_http_1() {
    check_accepted(GET, true, "GET / HTTP/2.0\r\nhost: a\r\n\r\n");
    let get = |more: &[(&'static str, &'static str)]| [GET, more].concat();
    let all = get(&[
        ("cookie", "a=1"),
        ("user-agent", "x y\tz"),
        ("host", "A"),
        ("cookie", "b=2"),
        ("te", "trailers"),
        ("x_y", ""),
        ("via", "1.1 weir"),
        ("if-match", "*"),
        ("range", "1"),
        ("range", "2"),
        ("max-forwards", "7"),
        ("cookie", "c=3"),
        ("http2-settings", "x"),
        ("x-utf", "caf\u{e9}"),
    ]);
    let text = "GET / HTTP/2.0\r\nhost: a\r\nuser-agent: x y\tz\r\nte: trailers\r\nx_y: \r\n\
                via: 1.1 weir\r\nif-match: *\r\n\
                range: 1\r\nrange: 2\r\nmax-forwards: 7\r\nhttp2-settings: x\r\n\
                x-utf: caf\u{e9}\r\ncookie: a=1; b=2; c=3\r\n\r\n";
    check_accepted(&all, true, text);
    let host_only = [GET[0], GET[1], (":path", "/caf\u{e9}?x=\u{fc}"), ("host", "h:80")];
    check_accepted(&host_only, true, "GET /caf%C3%A9?x=%C3%BC HTTP/2.0\r\nhost: h:80\r\n\r\n");
    let post = [POST, &[("content-length", "3"), ("expect", "100-continue")]].concat();
    check_accepted(
        &post,
        false,
        "POST / HTTP/2.0\r\nhost: a\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n",
    );
    check_accepted(
        &[POST, &[("expect", "100-continue")]].concat(),
        false,
        "POST / HTTP/2.0\r\nhost: a\r\nexpect: 100-continue\r\n\r\n",
    );
    let options =
        [(":method", "OPTIONS"), (":scheme", "https"), (":path", "*"), (":authority", "a")];
    check_accepted(&options, true, "OPTIONS * HTTP/2.0\r\nhost: a\r\n\r\n");
    check_accepted(
        &[(":method", "CONNECT"), (":authority", "a:443")],
        false,
        "CONNECT a:443 HTTP/2.0\r\nhost: a:443\r\n\r\n",
    );
}

#[test]
fn heads_without_a_length() {
    let mut server = Server::new();
    let list = [POST, &[("expect", "100-continue")]].concat();
    let input = headers(1, 0, &list);
    let limits = Limits::default();
    let mut turn = Turn::new(&input, 0, &limits);
    let Ok(Some(Event::Request { request, end, .. })) =
        server.mux.read(&mut turn, &mut server.heads)
    else {
        panic!()
    };
    assert!(request.head.expect_continue && request.head.persist && !end);
    assert_eq!((request.head.body, request.head.form), (RequestBody::Open, TargetForm::Origin));
}

/// RFC 9113 §8.1.1: the body is as long as announced, however it is cut.
#[test]
fn content_length_is_kept() {
    let post = |length| headers(1, 0, &[POST, &[("content-length", length)]].concat());
    let told = "request 1 POST / HTTP/2.0";
    let wrong = "broken 1 length-differs";
    let (trailers, bad) =
        (headers(1, END_STREAM, &[("x", "y")]), headers(1, END_STREAM, &[("X", "y")]));
    for (length, body, events) in [
        ("3", vec![data(1, END_STREAM, b"abc")], "data 1 3 end"),
        (
            "3",
            vec![data(1, 0, b"ab"), data(1, 0, b"c"), data(1, END_STREAM, b"")],
            "data 1 2, data 1 1, data 1 0 end",
        ),
        ("3", vec![data(1, 0, b"abc"), trailers.clone()], "data 1 3, data 1 0 end"),
        ("3", vec![data(1, 0, b"ab"), trailers], &format!("data 1 2, {wrong}")),
        ("3", vec![data(1, END_STREAM, b"ab")], wrong),
        ("3", vec![data(1, 0, b"abcd")], wrong),
        ("3", vec![data(1, 0, b"ab"), data(1, 0, b"cd")], &format!("data 1 2, {wrong}")),
        ("0", vec![data(1, 0, b"x")], wrong),
        ("3", vec![data(1, 0, b"abcd"), data(1, 0, b"e"), data(1, END_STREAM, b"f")], wrong),
        ("3", vec![data(1, 0, b"abc"), bad], "data 1 3, broken 1 trailers-invalid"),
        ("0", vec![data(1, END_STREAM, b"")], "data 1 0 end"),
    ] {
        let mut server = Server::new();
        let found = server.feed(&[post(length), body.concat()].concat()).join(", ");
        assert_eq!(found, format!("{told}, {events}"), "{length}");
        if events.contains("broken") {
            assert_eq!(server.sent(), [""; 0], "it is for the caller to answer it");
            server.answer(1, 0);
            let sent = server.sent();
            assert!(
                sent[0].starts_with("headers 1 :status=200")
                    && sent.last().is_some_and(|last| last == "ended 1"),
                "{sent:?}"
            );
            assert_eq!((server.mux.open(), server.count(Glitch::Malformed)), (0, 1));
        }
    }
    // A request with a response can only be reset.
    let mut server = Server::new();
    server.feed(&post("3"));
    server.answer(1, 2);
    assert_eq!(server.feed(&data(1, 0, b"abcd")), ["reset 1 protocol-error"]);
}

/// RFC 9113 §6.5.2 and §8.2.3: the list counts with 32 a field, a split cookie is one field.
#[test]
fn large_lists() {
    let limits = Limits {
        head: weir_http::Limits {
            head_bytes_max: 2000,
            fields_max: 10,
            ..weir_http::Limits::default()
        },
        ..Limits::default()
    };
    let feed = |fields: &[(&str, &str)]| {
        let mut server = Server::with(limits.clone());
        let found = server.feed(&headers(1, END_STREAM, &[GET, fields].concat())).join(", ");
        assert!(server.heads.memory() < 16_384, "{}", server.heads.memory());
        found
    };
    let told = "request 1 GET / HTTP/2.0 end";
    let base: usize = GET.iter().map(|(name, value)| name.len() + value.len() + 32).sum();
    let (fits, over) = ("x".repeat(2000 - base - 33), "x".repeat(2000 - base - 32));
    assert_eq!(feed(&[("a", &fits)]), told);
    assert_eq!(feed(&[("a", &over)]), "refused 1 head-too-large");
    assert_eq!(feed(&[("a", "b"); 9]), told);
    assert_eq!(feed(&[("a", "b"); 10]), "refused 1 fields-too-many");
    let crumbs = [&[("a", "b"); 8][..], &[("cookie", "c"); 30]].concat();
    assert_eq!(feed(&crumbs), told);
    assert_eq!(feed(&[&crumbs[..], &[("a", "b")]].concat()), "refused 1 fields-too-many");
    let value = "v".repeat(967);
    let list = |bytes: usize| vec![("n", &value[..]); bytes / 1000];
    assert_eq!(feed(&list(7600)), "refused 1 head-too-large");
    assert_eq!(feed(&list(8200)), "failed enhance-your-calm");
}

/// Whatever is rejected, the table of the client's encoder is the same on both sides afterwards.
#[test]
fn refused_lists_are_decoded() {
    let mut server = Server::new();
    let mut bad = vec![0x40];
    bad.extend_from_slice(b"\x05x-one\x03one");
    bad.extend_from_slice(&block(&[("BAD", "1")]));
    let refused = ["refused 1 pseudo-field"];
    assert_eq!(server.feed(&frame(Kind::Headers, END_HEADERS | END_STREAM, 1, &bad)), refused);
    let good = [block(GET), vec![0x80 | 62]].concat();
    assert_eq!(
        server.feed(&frame(Kind::Headers, END_HEADERS | END_STREAM, 3, &good)),
        ["request 3 GET / HTTP/2.0 end"]
    );
    let late = [block(&[("x", "y")]), vec![0x40, 1, b'n', 1, b'v']].concat();
    server.mux.reset(3, Code::Cancel);
    assert_eq!(server.feed(&frame(Kind::Headers, END_HEADERS | END_STREAM, 3, &late)), [""; 0]);
    let good = [block(GET), vec![0x80 | 62, 0x80 | 63]].concat();
    let input = frame(Kind::Headers, END_HEADERS | END_STREAM, 5, &good);
    let limits = Limits::default();
    let mut turn = Turn::new(&input, 0, &limits);
    let Ok(Some(Event::Request { request, .. })) = server.mux.read(&mut turn, &mut server.heads)
    else {
        panic!()
    };
    assert!(
        request.text.ends_with(b"n: v\r\nx-one: one\r\n\r\n"),
        "{}",
        request.text.escape_ascii()
    );
    assert_eq!(server.count(Glitch::Malformed), 1);
}

/// No byte in a name, value or pseudo field makes another line of it.
#[test]
fn no_byte_becomes_a_line() {
    for byte in 0..=255u8 {
        for place in 0..5 {
            let text = [b"a", &[byte][..], b"b"].concat();
            let path = [b"/", &text[..]].concat();
            let pick =
                |at: usize, usual: &'static [u8]| if at == place { &text[..] } else { usual };
            let mut list = Vec::new();
            literal(&mut list, b":method", pick(0, b"GET"));
            literal(&mut list, b":scheme", b"http");
            literal(&mut list, b":path", if place == 1 { &path[..] } else { b"/" });
            literal(&mut list, b":authority", pick(2, b"a"));
            literal(&mut list, pick(3, b"x"), pick(4, b"y"));
            let mut server = Server::new();
            let input = frame(Kind::Headers, END_HEADERS | END_STREAM, 1, &list);
            let limits = Limits::default();
            let mut turn = Turn::new(&input, 0, &limits);
            if let Ok(Some(Event::Request { request, .. })) =
                server.mux.read(&mut turn, &mut server.heads)
            {
                let lines =
                    request.text.iter().filter(|&&byte| byte == b'\n' || byte == b'\r').count();
                assert_eq!((lines, request.fields.len()), (8, 2), "{byte:#x} at {place}");
                let old = String::from_utf8_lossy(request.text).replacen("HTTP/2.0", "HTTP/1.1", 1);
                let parsed = parse_request(old.as_bytes(), &limits.head, &mut Fields::default());
                assert!(matches!(parsed, Ok(Some(_))), "{byte:#x} at {place}");
            }
        }
    }
}
