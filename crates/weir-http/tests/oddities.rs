//! Proves: every oddity of an accepted message is seen, each kind alone and in any company, and
//! none in a usual message. How: examples of each kind, and every selection of them in one head.

use proptest::prelude::*;
use weir_http::{
    BodyOddities, Chunk, ChunkedDecoder, Fields, Limits, Oddity, ReplyContext, parse_reply,
    parse_request,
};

fn of_request(text: &str) -> Vec<Oddity> {
    let mut fields = Fields::default();
    let parsed = parse_request(text.as_bytes(), &Limits::default(), &mut fields);
    assert!(matches!(parsed, Ok(Some(_))), "{parsed:?}: {text:?}");
    fields.oddities().iter().collect()
}

fn of_reply(text: &str) -> Vec<Oddity> {
    let mut fields = Fields::default();
    let parsed =
        parse_reply(text.as_bytes(), &Limits::default(), ReplyContext::default(), &mut fields);
    assert!(matches!(parsed, Ok(Some(_))), "{parsed:?}: {text:?}");
    fields.oddities().iter().collect()
}

/// A line for each kind that a field line can show.
const LINES: [(&str, Oddity); 6] = [
    ("X_y: 1\r\n", Oddity::Underscore),
    ("Connection: keep-alive, host\r\n", Oddity::ListedInVain),
    ("Cookie: a\r\ncookie: b\r\n", Oddity::Repeated),
    ("Content-Type: a/b\r\nContent-Type: a/b\r\n", Oddity::Repeated),
    ("Upgrade: h2c\r\n", Oddity::VainUpgrade),
    ("Proxy: http://evil/\r\n", Oddity::ProxyField),
];

#[test]
fn each_kind_of_request() {
    let get = |first: &str, more: &str| format!("{first}\r\nHost: a\r\n{more}\r\n");
    for (line, oddity) in LINES {
        assert_eq!(of_request(&get("GET / HTTP/1.1", line)), [oddity], "{line:?}");
    }
    assert_eq!(of_request(&get("\r\nGET / HTTP/1.1", "")), [Oddity::LeadingLine]);
    assert_eq!(of_request(&get("GET http://b/ HTTP/1.1", "")), [Oddity::OtherHost]);
    let upgrade = "Connection: upgrade\r\nUpgrade: websocket\r\n";
    assert_eq!(of_request(&get("GET / HTTP/1.0", upgrade)), [Oddity::VainUpgrade]);
    assert_eq!(
        of_request(&get("GET / HTTP/1.1", &format!("{upgrade}Content-Length: 1\r\n"))),
        [Oddity::VainUpgrade]
    );
}

#[test]
fn usual_requests_are_not_strange() {
    for text in [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://A/x HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a/x HTTP/1.0\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: x-hop, keep-alive, TE\r\nTE: trailers\r\n\
            X-Hop: 1\r\nAccept: 1\r\nAccept: 2\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nCookie: a\r\n\
            Via: 1.1 a\r\nVia: 1.1 b\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\
            Max-Forwards: 1\r\n\r\n",
    ] {
        assert_eq!(of_request(text), [], "{text:?}");
    }
}

#[test]
fn each_kind_of_reply() {
    let answer = |more: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n{more}\r\n");
    for (line, oddity) in [
        ("A: b\r\n c\r\n", Oddity::Folded),
        ("A : b\r\n", Oddity::SpacedName),
        ("A_b: c\r\n", Oddity::Underscore),
        ("Connection: set-cookie\r\n", Oddity::ListedInVain),
        ("Date: a\r\nDate: a\r\n", Oddity::Repeated),
    ] {
        assert_eq!(of_reply(&answer(line)), [oddity], "{line:?}");
    }
    let usual = "Set-Cookie: a\r\nSet-Cookie: b\r\nDate: d\r\nServer: a\r\nServer: b\r\n\
        Upgrade: h2\r\nConnection: upgrade\r\n";
    assert_eq!(of_reply(&answer(usual)), []);
}

/// The oddities of one head do not carry over to the next.
#[test]
fn each_head_begins_anew() {
    let mut fields = Fields::default();
    for (text, odd) in [
        ("GET / HTTP/1.1\r\nHost: a\r\nX_y: 1\r\n\r\n", true),
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", false),
    ] {
        parse_request(text.as_bytes(), &Limits::default(), &mut fields).unwrap().unwrap();
        assert_eq!(!fields.oddities().is_empty(), odd);
    }
}

proptest! {
    /// Whatever else is there, each kind is seen.
    #[test]
    fn any_company(
        chosen in proptest::collection::vec(any::<bool>(), LINES.len()),
        blank in any::<bool>(),
        usual in 0usize..4,
    ) {
        let mut text = format!("{}GET / HTTP/1.1\r\nHost: a\r\n", if blank { "\r\n" } else { "" });
        let mut expected: Vec<Oddity> = blank.then_some(Oddity::LeadingLine).into_iter().collect();
        for ((line, oddity), _) in LINES.iter().zip(&chosen).filter(|(_, chosen)| **chosen) {
            text += line;
            text += &"Accept: a, b;q=0.1\r\n".repeat(usual);
            expected.push(*oddity);
        }
        expected.sort_by_key(|oddity| *oddity as u8);
        expected.dedup();
        prop_assert_eq!(of_request(&(text + "\r\n")), expected);
    }
}

/// Returns the oddities of a body that comes in these pieces.
fn of_body(pieces: &[Vec<u8>], keep_trailers: bool) -> BodyOddities {
    let mut decoder = ChunkedDecoder::new(keep_trailers);
    let mut all = BodyOddities::default();
    for piece in pieces {
        let mut at = 0;
        while at < piece.len() {
            match decoder.decode(&piece[at..]).unwrap() {
                Chunk::Data { end, .. } => {
                    at += end;
                    continue;
                }
                Chunk::End { consumed } => at += consumed,
                Chunk::More => at = piece.len(),
            }
            let odd = decoder.take_oddities().unwrap_or_default();
            assert_eq!(decoder.take_oddities(), None, "told once");
            all.extensions += odd.extensions;
            all.crumbs += odd.crumbs;
            all.trailers += odd.trailers;
        }
    }
    assert!(decoder.is_done());
    all
}

#[test]
fn extensions_and_trailers_of_a_body() {
    let body = b"1;a\r\nx\r\n400\r\n"
        .iter()
        .chain(&[b'y'; 1024])
        .chain(b"\r\n2 \r\n")
        .copied()
        .collect::<Vec<_>>();
    assert!(ChunkedDecoder::new(false).decode(&body[..5]).is_ok());
    let body =
        b"1;a\r\nx\r\n2\r\nyy\r\n3;b=\"c\";d\r\nzzz\r\n0;e\r\nX-T: 1\r\nDate: 2\r\n\r\n".to_vec();
    let (extensions, crumbs) = (3, 0);
    assert_eq!(
        of_body(std::slice::from_ref(&body), false),
        BodyOddities { extensions, crumbs, trailers: 2 },
        "none passes on"
    );
    assert_eq!(
        of_body(std::slice::from_ref(&body), true),
        BodyOddities { extensions, crumbs, trailers: 1 },
        "a date is too late"
    );
    let bytes: Vec<Vec<u8>> = body.iter().map(|byte| vec![*byte]).collect();
    assert_eq!(of_body(&bytes, true), BodyOddities { extensions, crumbs, trailers: 1 });
    assert_eq!(of_body(&[b"5\r\nhello\r\n0\r\n\r\n".to_vec()], false), BodyOddities::default());
}

#[test]
fn many_very_small_chunks_at_once_are_strange() {
    let body = |chunk: &str, count: usize| (chunk.repeat(count) + "0\r\n\r\n").into_bytes();
    let crumbs = |body: &[u8], piece: usize| {
        of_body(&body.chunks(piece).map(<[u8]>::to_vec).collect::<Vec<_>>(), false).crumbs
    };
    for (chunk, strange) in
        [("1\r\nx\r\n", true), ("7\r\n1234567\r\n", true), ("8\r\n12345678\r\n", false)]
    {
        let times = u8::from(strange);
        assert_eq!(crumbs(&body(chunk, 127), usize::MAX), 0);
        assert_eq!(crumbs(&body(chunk, 128), usize::MAX), times);
        assert_eq!(crumbs(&body(chunk, 1000), usize::MAX), 7 * times);
        // A stream of events: each comes when it happens, some together.
        assert_eq!(crumbs(&body(chunk, 1000), chunk.len()), 0);
        assert_eq!(crumbs(&body(chunk, 1000), 50 * chunk.len()), 0);
        assert_eq!(crumbs(&body(chunk, 1000), 250 * chunk.len()), 4 * times);
    }
}
