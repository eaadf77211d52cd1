//! The content of accepted heads: framing, persistence, authority, lists, and the statuses of
//! rejections.

use weir_http::{
    Field, FieldName, Fields, HeadScan, Limits, Method, ReplyBody, ReplyContext, ReplyDoubt,
    ReplyError, ReplyHead, RequestBody, RequestError, RequestHead, SyntaxError, TargetForm,
    Version, encode_target, parse_reply, parse_request,
};

fn request(text: &str) -> (RequestHead, Fields) {
    let mut fields = Fields::default();
    match parse_request(text.as_bytes(), &Limits::default(), &mut fields) {
        Ok(Some(head)) => (head, fields),
        other => panic!("{other:?}: {text:?}"),
    }
}

fn refusal(text: &str) -> RequestError {
    match parse_request(text.as_bytes(), &Limits::default(), &mut Fields::default()) {
        Err(fault) => fault,
        other => panic!("{other:?}: {text:?}"),
    }
}

fn reply(text: &str, head: bool) -> (ReplyHead, Fields) {
    let mut fields = Fields::default();
    match parse_reply(text.as_bytes(), &Limits::default(), ReplyContext { head }, &mut fields) {
        Ok(Some(head)) => (head, fields),
        other => panic!("{other:?}: {text:?}"),
    }
}

fn get(more: &str) -> String {
    format!("GET /p?q HTTP/1.1\r\nHost: h:1\r\n{more}\r\n")
}

#[test]
fn spans_name_the_parts() {
    let text = format!("\r\n{}GET", get("X-A: \t b c \t\r\n"));
    let (head, fields) = request(&text);
    let input = text.as_bytes();
    assert_eq!(head.bytes, text.len() - 3);
    assert_eq!(
        (head.method, head.form, head.version),
        (Method::Get, TargetForm::Origin, Version::Http11)
    );
    assert_eq!(head.method_span.of(input), b"GET");
    assert_eq!(head.target.of(input), b"/p?q");
    assert_eq!(head.path.of(input), b"/p?q");
    assert_eq!(head.authority.of(input), b"h:1");
    let Field { line, name, value, known, .. } = fields.as_slice()[1];
    assert_eq!(line.of(input), b"X-A: \t b c \t\r\n");
    assert_eq!(
        (name.of(input), value.of(input), known),
        (&b"X-A"[..], &b"b c"[..], FieldName::Other)
    );
    assert_eq!(fields.get(input, b"x-a"), Some(&b"b c"[..]));
    assert_eq!(fields.get(input, b"host"), Some(&b"h:1"[..]));
    assert_eq!(fields.get(input, b"x-b"), None);
    assert!(fields.find(FieldName::Cookie).is_none());
}

#[test]
fn bodies() {
    assert_eq!(request(&get("")).0.body, RequestBody::None);
    assert_eq!(request(&get("Content-Length: 0\r\n")).0.body, RequestBody::Length(0));
    assert_eq!(request(&get("Content-Length: 007\r\n")).0.body, RequestBody::Length(7));
    assert_eq!(request(&get("transfer-encoding:Chunked\r\n")).0.body, RequestBody::Chunked);
    assert_eq!(request(&get("Content_Length: 7\r\n")).0.body, RequestBody::None);
}

#[test]
fn persistence() {
    let cases = [
        ("1.1", "", true),
        ("1.1", "Connection: close\r\n", false),
        ("1.1", "Connection: keep-alive, CLOSE\r\n", false),
        ("1.1", "Connection: x\r\nConnection: close\r\n", false),
        ("1.1", "Connection: \"close\"\r\n", true),
        ("1.0", "", false),
        ("1.0", "Connection: Keep-Alive\r\n", true),
        ("1.0", "Connection: keep-alive, close\r\n", false),
        ("1.0", "Proxy-Connection: keep-alive\r\n", false),
    ];
    for (version, more, expected) in cases {
        assert_eq!(
            request(&format!("GET / HTTP/{version}\r\nHost: a\r\n{more}\r\n")).0.persist,
            expected,
            "{more}"
        );
    }
}

#[test]
fn absolute_form_overrules_host() {
    let cases = [
        ("http://b/", "b", "/"),
        ("HTTPS://b:8443/x?y", "b:8443", "/x?y"),
        ("http://b", "b", ""),
        ("http://[::1]:80/", "[::1]:80", "/"),
    ];
    for (target, authority, path) in cases {
        let text = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        let head = request(&text).0;
        assert_eq!(head.form, TargetForm::Absolute);
        assert_eq!(head.authority.of(text.as_bytes()), authority.as_bytes());
        assert_eq!(head.path.of(text.as_bytes()), path.as_bytes());
    }
    let text = "CONNECT b:443 HTTP/1.1\r\nHost: a\r\n\r\n";
    let head = request(text).0;
    assert_eq!(
        (head.form, head.authority.of(text.as_bytes())),
        (TargetForm::Authority, &b"b:443"[..])
    );
    let text = "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n";
    let head = request(text).0;
    assert_eq!((head.form, head.path.of(text.as_bytes())), (TargetForm::Asterisk, &b"*"[..]));
    assert!(request("GET / HTTP/1.0\r\n\r\n").0.authority.is_empty());
}

#[test]
fn expectations_count_only_with_a_body_in_http11() {
    let post = |version, more: &str| {
        request(&format!("POST / HTTP/{version}\r\nHost: a\r\nExpect: 100-continue\r\n{more}\r\n"))
            .0
            .expect_continue
    };
    assert!(post("1.1", "Content-Length: 1\r\n"));
    assert!(post("1.1", "Transfer-Encoding: chunked\r\n"));
    assert!(!post("1.1", "Content-Length: 0\r\n"));
    assert!(!post("1.1", ""));
    assert!(!post("1.0", "Content-Length: 1\r\n"));
}

#[test]
fn upgrades() {
    let asked = |more: &str| {
        let text = get(more);
        request(&text)
            .0
            .upgrade
            .map(|span| String::from_utf8_lossy(span.of(text.as_bytes())).into_owned())
    };
    let websocket = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n";
    assert_eq!(asked(websocket).as_deref(), Some("websocket"));
    assert_eq!(asked("Connection: upgrade\r\nUpgrade: a/1, b\r\n").as_deref(), Some("a/1, b"));
    assert_eq!(asked(&format!("{websocket}Content-Length: 0\r\n")).as_deref(), Some("websocket"));
    let without = [
        "Upgrade: websocket\r\n",
        "Connection: upgrade\r\n",
        "Connection: upgrade\r\nUpgrade: h2c\r\n",
        "Connection: upgrade\r\nUpgrade: websocket, H2C\r\n",
        "Connection: upgrade\r\nUpgrade: \r\n",
        "Connection: upgrade\r\nUpgrade: a b\r\n",
        "Connection: upgrade\r\nUpgrade: a/\r\n",
        "Connection: upgrade\r\nUpgrade: a\r\nUpgrade: b\r\n",
        "Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 1\r\n",
        "Connection: upgrade\r\nUpgrade: websocket\r\nTransfer-Encoding: chunked\r\n",
    ];
    for more in without {
        assert_eq!(asked(more), None, "{more}");
    }
    let old = "GET / HTTP/1.0\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert!(request(old).0.upgrade.is_none());
}

#[test]
fn flags_and_numbers() {
    assert!(request(&get("TE: deflate;q=0.5 , Trailers\r\n")).0.te_trailers);
    assert!(!request(&get("TE: trailersx\r\n")).0.te_trailers);
    assert!(!request("GET / HTTP/1.0\r\nTE: trailers\r\n\r\n").0.te_trailers);
    for name in [
        "If-Match",
        "if-none-match",
        "If-Modified-Since",
        "If-Unmodified-Since",
        "If-Range",
        "Range",
    ] {
        assert!(request(&get(&format!("{name}: x\r\n"))).0.conditional, "{name}");
    }
    assert!(!request(&get("If-Nothing: x\r\n")).0.conditional);
    let hops = |value: &str| request(&get(&format!("Max-Forwards: {value}\r\n"))).0.max_forwards;
    assert_eq!(
        (hops("0"), hops("10"), hops("99999999999999999999999")),
        (Some(0), Some(10), Some(u32::MAX))
    );
    assert_eq!((hops("-1"), hops(""), hops("1\r\nMax-Forwards: 1")), (None, None, None));
    assert!(request(&get("Via: 1.1 x\r\nVia: 1.0 Weir (comment)\r\n")).0.is_loop);
    for (value, expected) in [
        ("weir", true),
        ("a, Weir", true),
        ("a;x=1 , weir ; y", true),
        ("\r\nCDN-Loop: weir", true),
        ("weird, a;weir, a weir", false),
        ("", false),
    ] {
        assert_eq!(request(&get(&format!("CDN-Loop: {value}\r\n"))).0.is_loop, expected, "{value}");
    }
    assert!(!request(&get("Via: 1.1 x (1.1 weir)\r\n")).0.is_loop);
}

/// docs/hostile-requests.md B11: which fields Connection may remove and which not.
#[test]
fn b11_listed_fields() {
    let text =
        get("Connection: x-hop, Host, Cookie, Authorization, X-Forwarded-For, Via, X-Real-IP, \
         Accept\r\nX-HOP: 1\r\nCookie: c\r\n\
         Authorization: a\r\nX-Forwarded-For: f\r\nVia: 1.1 v\r\nX-Real-IP: r\r\nX-Hop: 2\r\n\
         Accept: *\r\nX-Hopp: 3\r\n");
    let (_, fields) = request(&text);
    let listed: Vec<&[u8]> = fields
        .as_slice()
        .iter()
        .filter(|field| field.listed)
        .map(|field| field.line.of(text.as_bytes()))
        .collect();
    assert_eq!(listed, [&b"X-HOP: 1\r\n"[..], b"X-Hop: 2\r\n", b"Accept: *\r\n"]);
}

#[test]
fn statuses_of_refusals() {
    let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(9000));
    let large = get(&format!("X: {}\r\n", "a".repeat(40_000)));
    let many = get(&"X: y\r\n".repeat(200));
    let post = |more: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{more}\r\n");
    let cases = [
        (long, 414),
        (large, 431),
        (many, 431),
        (get("X : y\r\n"), 400),
        ("GET / HTTP/3.0\r\n\r\n".to_owned(), 505),
        (post("Transfer-Encoding: gzip\r\n"), 501),
        (post("Transfer-Encoding: gzip\r\nContent-Length: 1\r\n"), 400),
        (post("Expect: tea\r\n"), 417),
    ];
    for (text, status) in cases {
        assert_eq!(refusal(&text).status(), status, "{:.80}", text);
    }
    assert_eq!(RequestError::Syntax(SyntaxError::BareLf).to_string(), "a line ends with LF alone");
}

#[test]
fn limits_are_exact() {
    let tight =
        Limits { line_bytes_max: 14, head_bytes_max: 29, fields_max: 1, ..Limits::default() };
    let parse = |text: &str| {
        let parsed = parse_request(text.as_bytes(), &tight, &mut Fields::default());
        parsed.map(|head| head.map(|head| head.bytes)).map_err(|fault| fault.status())
    };
    assert_eq!(parse("GET / HTTP/1.1\r\nHost: abc\r\n\r\n"), Ok(Some(29)));
    assert_eq!(parse("GET / HTTP/1.1\r\nHost: abcd\r\n\r\n"), Err(431));
    assert_eq!(parse("GET / HTTP/1.1\r\nHost: abcd\r\n"), Ok(None));
    assert_eq!(parse("GET /a HTTP/1.1\r\nHost: a\r\n\r\n"), Err(414));
    assert_eq!(parse("GET /a HTTP/1.1"), Ok(None));
    assert_eq!(parse("GET / HTTP/1.1\r\nHost:a\r\na:\r\n\r\n"), Err(431));
}

#[test]
fn replies_know_their_bodies() {
    let cases = [
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
            false,
            ReplyBody::Length(5),
            Some(5),
            true,
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", true, ReplyBody::None, Some(5), true),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            false,
            ReplyBody::Chunked,
            None,
            true,
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            true,
            ReplyBody::None,
            None,
            true,
        ),
        ("HTTP/1.1 200 OK\r\n\r\n", false, ReplyBody::UntilClose, None, false),
        ("HTTP/1.1 200 OK\r\n\r\n", true, ReplyBody::None, None, true),
        ("HTTP/1.1 204 x\r\nContent-Length: 5\r\n\r\n", false, ReplyBody::None, Some(5), true),
        ("HTTP/1.1 304 x\r\nContent-Length: 5\r\n\r\n", false, ReplyBody::None, Some(5), true),
        ("HTTP/1.1 103 x\r\n\r\n", false, ReplyBody::None, None, true),
        (
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            false,
            ReplyBody::Length(0),
            Some(0),
            false,
        ),
        (
            "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
            false,
            ReplyBody::Length(0),
            Some(0),
            false,
        ),
        (
            "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
            false,
            ReplyBody::Length(0),
            Some(0),
            true,
        ),
    ];
    for (text, head, body, declared, persist) in cases {
        let parsed = reply(text, head).0;
        assert_eq!(
            (parsed.body, parsed.declared_length, parsed.persist),
            (body, declared, persist),
            "{text:?}"
        );
    }
}

#[test]
fn replies_that_change_the_connection() {
    let switching = "HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let span = reply(switching, false).0.upgrade.unwrap();
    assert_eq!(span.of(switching.as_bytes()), b"websocket");
    assert!(reply("HTTP/1.1 101 x\r\nUpgrade: websocket\r\n\r\n", false).0.upgrade.is_none());
    assert!(
        reply("HTTP/1.1 200 x\r\nConnection: upgrade\r\nUpgrade: a\r\n\r\n", false)
            .0
            .upgrade
            .is_none()
    );
    let auth = |value: &str| {
        reply(
            &format!("HTTP/1.1 401 x\r\nWWW-Authenticate: {value}\r\nContent-Length: 0\r\n\r\n"),
            false,
        )
        .0
        .connection_auth
    };
    assert!(auth("NTLM") && auth("negotiate") && auth("Basic realm=\"a\", Negotiate abc=="));
    assert!(auth("Basic realm=\"a\"\r\nWWW-Authenticate: NTLM"));
    assert!(!auth("Basic realm=\"ntlm\"") && !auth("NTLMv3"));
}

#[test]
fn e17_folded_values() {
    let text = "HTTP/1.1 200 OK\r\nA: x\r\n \t y\r\nB:\r\n z\r\n  \r\nC\t : w\r\n\
        Content-Length: 0\r\n\r\n";
    let (_, fields) = reply(text, false);
    let input = text.as_bytes();
    let [a, b, c, _] = fields.as_slice() else { panic!("{fields:?}") };
    assert!(a.folded && b.folded && !c.folded);
    assert_eq!(
        (a.value.of(input), b.value.of(input), c.value.of(input)),
        (&b"x\r\n \t y"[..], &b"z"[..], &b"w"[..])
    );
    assert_eq!(c.name.of(input), b"C");
    assert_eq!(b.line.of(input), b"B:\r\n z\r\n  \r\n");
}

#[test]
fn doubts_have_kinds() {
    let kind = |text: &str| {
        let parsed = parse_reply(
            text.as_bytes(),
            &Limits::default(),
            ReplyContext::default(),
            &mut Fields::default(),
        );
        parsed.map_err(ReplyError::kind).map(|_| ())
    };
    let answer = |more: &str| format!("HTTP/1.1 200 OK\r\n{more}\r\n");
    let both = answer("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n");
    assert_eq!(kind(&both), Err(ReplyDoubt::BothFramings));
    assert_eq!(kind(&answer("Content-Length: x\r\n")), Err(ReplyDoubt::InvalidLength));
    assert_eq!(
        kind(&answer("Content-Length: 1\r\nContent-Length: 2\r\n")),
        Err(ReplyDoubt::InvalidLength)
    );
    assert_eq!(kind(&answer("Transfer-Encoding: gzip\r\n")), Err(ReplyDoubt::UnknownCoding));
    assert_eq!(
        kind("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
        Err(ReplyDoubt::UnknownCoding)
    );
    assert_eq!(kind("nonsense"), Err(ReplyDoubt::NotAnAnswer));
    assert_eq!(kind(&answer("X: a\rb\r\n")), Err(ReplyDoubt::NotAnAnswer));
}

/// B10: byte by byte, the scan looks at each byte about once. Its position is not public, so this
/// checks that it does not start over: bytes before its position may change without its noticing.
#[test]
fn b10_the_scan_never_goes_back() {
    let text = get(&format!("X: {}\r\n", "y".repeat(20_000)));
    let mut input = Vec::new();
    let mut scan = HeadScan::default();
    for (at, &byte) in text.as_bytes().iter().enumerate() {
        input.push(byte);
        let found = scan.find(&input, &Limits::default()).unwrap();
        assert_eq!(found, (at + 1 == text.len()).then_some(text.len()));
        if at > 2 {
            // A second look would stumble over this.
            input[at - 2] = 0;
        }
    }
}

#[test]
fn scratch_is_reused() {
    let mut fields = Fields::default();
    let limits = Limits::default();
    let first = get("Cookie: a\r\nCookie: b\r\nX_y: 1\r\n");
    parse_request(first.as_bytes(), &limits, &mut fields).unwrap().unwrap();
    assert_eq!(fields.all(FieldName::Cookie).count(), 2);
    parse_request(get("").as_bytes(), &limits, &mut fields).unwrap().unwrap();
    assert_eq!(fields.len(), 1);
    assert!(fields.find(FieldName::Cookie).is_none());
    assert_eq!(fields.all(FieldName::Cookie).count(), 0);
    assert!(parse_request(b"GET /", &limits, &mut fields).unwrap().is_none());
    assert!(fields.is_empty());
}

#[test]
fn a_complete_head_is_found_again() {
    for head in
        [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"]
    {
        let input = [head, b"GET / HTTP/1.1\r\n"].concat();
        let mut scan = HeadScan::default();
        for known in [head.len(), head.len(), input.len()] {
            assert_eq!(scan.find(&input[..known], &Limits::default()), Ok(Some(head.len())));
        }
    }
}

/// The fault of a head with raw text in its target is the same as if that had been encoded, in
/// pieces and at once.
#[test]
fn raw_targets_hide_no_other_fault() {
    let limits = Limits { line_bytes_max: 100, head_bytes_max: 300, ..Limits::default() };
    let long = |byte: &str, times| format!("{}{}", "é", byte.repeat(times));
    for (text, word) in [
        (format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", long("x", 100)), "line-too-long"),
        (format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", long("é", 30)), "line-too-long"),
        (format!("GET /é HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", long("x", 300)), "head-too-large"),
        ("GET /é HTTP/1.1\nHost: a\r\n\r\n".to_owned(), "bare-lf"),
        ("GET /é HTTP/1.1\r\nHost: a\n\r\n".to_owned(), "bare-lf"),
        ("GET /é HTTP/1.1\r\nHost: a\0\r\n\r\n".to_owned(), "control-byte"),
        ("GET /é HTTP/3.1\r\nHost: a\n\r\n".to_owned(), "version-unsupported"),
        ("GET é HTTP/1.1\r\nHost: a\n\r\n".to_owned(), "target-raw"),
    ] {
        let judge = |input: &[u8]| {
            let encoded = encode_target(input, &limits)?.expect("a whole line");
            parse_request(&encoded.bytes, &limits, &mut Fields::default())
                .map(|head| head.map(|head| head.bytes))
        };
        let at_once = judge(text.as_bytes()).expect_err(&text);
        let mut scan = HeadScan::default();
        let found =
            (0..=text.len()).find_map(|at| match scan.find(&text.as_bytes()[..at], &limits) {
                Ok(None) => None,
                found => Some(found),
            });
        // For a head that is complete and only then found too long, the parser reports the error.
        let in_pieces = match found.expect("an end or an error") {
            Ok(_) => judge(text.as_bytes()).expect_err(&text),
            Err(error) => error,
        };
        assert_eq!((at_once.word(), in_pieces.word()), (word, word), "{text:?}");
    }
}

/// An empty path in front of a query is `/` (RFC 3986 §6.2.3), and only that is added.
#[test]
fn a_query_without_a_path_gets_one() {
    let rest = " HTTP/1.1\r\nHost: b\r\n\r\n";
    for (target, path) in [
        ("http://b?q", "/?q"),
        ("http://b:80?x=1/2", "/?x=1/2"),
        ("HTTP://[::1]:80?", "/?"),
        ("https://b?\u{e9}", "/?%C3%A9"),
    ] {
        let text = format!("GET {target}{rest}G");
        let parse = |bytes: &[u8]| parse_request(bytes, &Limits::default(), &mut Fields::default());
        assert_eq!(parse(text.as_bytes()), Err(RequestError::TargetRaw));
        let encoded = encode_target(text.as_bytes(), &Limits::default()).unwrap().unwrap();
        let head = parse(&encoded.bytes).unwrap().unwrap();
        assert_eq!(String::from_utf8_lossy(head.path.of(&encoded.bytes)), path);
        assert_eq!(
            (head.bytes - encoded.added, encoded.is_raw),
            (text.len() - 1, !target.is_ascii())
        );
        let mut scan = HeadScan::default();
        let ends: Vec<_> = (0..text.len() - 1)
            .map(|at| scan.find(&text.as_bytes()[..at], &Limits::default()))
            .collect();
        assert!(ends.iter().all(|end| *end == Ok(None)), "{text}: {ends:?}");
        assert_eq!(scan.find(text.as_bytes(), &Limits::default()), Ok(Some(text.len() - 1)));
    }
    for target in ["http://?q", "http://u@b?q", "ftp://b?q", "b?q"] {
        let text = format!("GET {target}{rest}");
        let encoded = encode_target(text.as_bytes(), &Limits::default());
        let parsed = encoded.map(|encoded| {
            let bytes = encoded.expect("a whole line").bytes;
            parse_request(&bytes, &Limits::default(), &mut Fields::default())
        });
        assert!(parsed.is_ok_and(|parsed| parsed.is_err()), "{target}");
    }
}

/// The cost of encoding depends on the head, however much follows it.
#[test]
fn only_the_head_is_copied_to_encode_its_target() {
    let head = "\r\nGET /é?ü HTTP/1.1\r\nHost: a\r\n\r\n";
    for behind in ["", "G", &head.repeat(100)] {
        let encoded = encode_target(format!("{head}{behind}").as_bytes(), &Limits::default())
            .unwrap()
            .unwrap();
        assert_eq!((encoded.added, encoded.bytes.len()), (8, head.len() + 8 + behind.len().min(1)));
    }
    let endless = format!("GET /é HTTP/1.1\r\nX: {}", "x".repeat(100_000));
    let encoded = encode_target(endless.as_bytes(), &Limits::default()).unwrap().unwrap();
    assert_eq!(encoded.bytes.len(), Limits::default().head_bytes_max + 4);
    assert!(encode_target("GET /é".as_bytes(), &Limits::default()).unwrap().is_none());
}
