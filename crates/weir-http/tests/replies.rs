//! Proves: the results of [`ReplyReader`] for a stream of responses, and that they are the same
//! however the stream is cut, whole or not. How: a table with every truncation and every split of
//! each row, generated streams in generated pieces, and seeded changes of both and of the corpus.

use proptest::collection::vec;
use proptest::prelude::*;
use weir_http::fuzzing::{self, Found, Heard, Mutator, corpus, read_replies};
use weir_http::{Fields, Limits, ReplyBody, ReplyContext, ReplyPart, ReplyReader};

const GET: ReplyContext = ReplyContext { head: false };
const HEAD: ReplyContext = ReplyContext { head: true };

fn head(status: u16, body: ReplyBody, fields: usize) -> Found {
    Found::Head(status, body, fields)
}

fn data(text: &str) -> Found {
    Found::Data(text.as_bytes().to_vec())
}

fn end(trailers: &str) -> Found {
    Found::End(trailers.as_bytes().to_vec())
}

/// Returns rows: a stream, the request that each of its responses belongs to, and the expected
/// results.
fn rows() -> Vec<(&'static str, ReplyContext, Vec<Found>)> {
    use ReplyBody::{Chunked, Length, None, UntilClose};
    vec![
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\nHTTP/1.1 404 No\r\n\
                Content-Length: 0\r\n\r\n",
            GET,
            vec![head(200, Length(3), 1), data("ok\n"), end(""), head(404, Length(0), 1), end("")],
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nok\r\n1\r\n\n\r\n0\r\n\
                A: b\r\nExpires: 0\r\n\r\n",
            GET,
            vec![head(200, Chunked, 1), data("ok\n"), end("A: b\r\n")],
        ),
        ("HTTP/1.0 200 OK\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", GET, {
            vec![head(200, UntilClose, 1), data("HTTP/1.1 200 OK\r\n\r\n")]
        }),
        (
            "HTTP/1.1 204 No\r\n\r\nHTTP/1.1 304 No\r\nContent-Length: 7\r\n\r\n\
                HTTP/1.1 204 No\r\n\r\n",
            GET,
            vec![
                head(204, None, 0),
                end(""),
                head(304, None, 1),
                end(""),
                head(204, None, 0),
                end(""),
            ],
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nHTTP/1.1 200 OK\r\n\
                Transfer-Encoding: chunked\r\n\r\n",
            HEAD,
            vec![head(200, None, 1), end(""), head(200, None, 1), end("")],
        ),
        (
            "HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 103 Hints\r\nLink: a\r\nLink: b\r\n\r\n\
                HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
            GET,
            vec![
                head(100, None, 0),
                head(103, None, 2),
                head(200, Length(1), 1),
                data("x"),
                end(""),
            ],
        ),
        (
            "HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            GET,
            vec![head(101, None, 2), data("HTTP/1.1 200 OK\r\n\r\n")],
        ),
    ]
}

fn whole(text: &[u8], reader: &ReplyReader, context: ReplyContext) -> Heard {
    read_replies(text, reader.clone(), context, [text.len()].into_iter())
}

/// Whether the results for a beginning are the beginning of the results for the whole.
fn is_prefix(found: &[Found], of: &[Found]) -> bool {
    let Some((last, before)) = found.split_last() else { return true };
    let Some(rest) = of.strip_prefix(before) else { return false };
    match (last, rest.first()) {
        (Found::Data(part), Some(Found::Data(all))) => all.starts_with(part),
        (last, other) => Some(last) == other,
    }
}

#[test]
fn every_truncation_and_every_split_say_the_same() {
    for (text, context, mut expected) in rows() {
        for reader in [ReplyReader::default(), ReplyReader::judging()] {
            assert_eq!(whole(text.as_bytes(), &reader, context).found, expected, "{text}");
            for length in 0..=text.len() {
                let part = &text.as_bytes()[..length];
                let heard = whole(part, &reader, context);
                assert!(is_prefix(&heard.found, &expected), "{text} up to {length}: {heard:?}");
                assert_eq!(
                    read_replies(part, reader.clone(), context, 1..=length),
                    heard,
                    "{text} up to {length}"
                );
                for cut in 0..length {
                    let pieces =
                        read_replies(part, reader.clone(), context, [cut, length].into_iter());
                    assert_eq!(pieces, heard, "{text} up to {length}, cut at {cut}");
                }
            }
            // A judging reader keeps no trailers.
            expected
                .iter_mut()
                .filter(|found| matches!(found, Found::End(_)))
                .for_each(|found| *found = end(""));
        }
    }
}

/// How a generated reply is framed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Framed {
    Interim,
    Bodyless,
    Length,
    Chunked,
}

fn streams() -> impl Strategy<Value = Vec<(Framed, String)>> {
    let framed = prop_oneof![
        1 => Just(Framed::Interim),
        1 => Just(Framed::Bodyless),
        3 => Just(Framed::Length),
        3 => Just(Framed::Chunked),
    ];
    vec((framed, "[\\r\\n0-9A-Z/. ]{0,30}"), 1..6)
}

/// Returns the bytes of these responses and the expected results. Bodies are sent in chunks of 7
/// bytes.
fn write(replies: &[(Framed, String)]) -> (String, Vec<Found>) {
    let (mut text, mut found) = (String::new(), Vec::new());
    for (framed, body) in replies {
        let length = body.len();
        match framed {
            Framed::Interim => text += "HTTP/1.1 103 Hints\r\nLink: a\r\n\r\n",
            Framed::Bodyless => {
                text += &format!("HTTP/1.1 304 No\r\nContent-Length: {length}\r\n\r\n")
            }
            Framed::Length => {
                text += &format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}")
            }
            Framed::Chunked => {
                text += "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
                for piece in body.as_bytes().chunks(7) {
                    text += &format!("{:x}\r\n{}\r\n", piece.len(), str::from_utf8(piece).unwrap());
                }
                text += "0\r\nA: b\r\n\r\n";
            }
        }
        let (status, framing) = match framed {
            Framed::Interim => (103, ReplyBody::None),
            Framed::Bodyless => (304, ReplyBody::None),
            Framed::Length => (200, ReplyBody::Length(length as u64)),
            Framed::Chunked => (200, ReplyBody::Chunked),
        };
        found.push(head(status, framing, 1));
        if matches!(framed, Framed::Length | Framed::Chunked) && length > 0 {
            found.push(data(body));
        }
        match framed {
            Framed::Interim => {}
            Framed::Chunked => found.push(end("A: b\r\n")),
            _ => found.push(end("")),
        }
    }
    (text, found)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn streams_in_any_pieces_are_what_was_written(
        replies in streams(),
        cuts in vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let (text, expected) = write(&replies);
        let mut ends: Vec<usize> =
            cuts.iter().map(|cut| cut.index(text.len())).chain([text.len()]).collect();
        ends.sort_unstable();
        let heard = read_replies(text.as_bytes(), ReplyReader::default(), GET, ends.into_iter());
        prop_assert_eq!(heard.found, expected);
        prop_assert_eq!(heard.consumed, text.len());
    }
}

/// Every truncation and split of every head of the corpus, and of seeded changes of streams.
#[test]
fn smoke_replies() {
    let seeds: Vec<Vec<u8>> = corpus::replies().into_iter().map(|case| case.input).collect();
    seeds.iter().filter(|seed| seed.len() < 4096).for_each(|seed| fuzzing::replies(seed));
    let short = seeds.into_iter().filter(|seed| seed.len() < 400);
    let seeds: Vec<Vec<u8>> =
        short.chain(rows().into_iter().map(|(text, ..)| text.as_bytes().to_vec())).collect();
    let mut mutator = Mutator::new(4);
    for _ in 0..3_000 {
        fuzzing::replies(&mutator.next(&seeds));
    }
}

/// Returns the result of each reader for a stream in these pieces.
fn said(pieces: &[&str]) -> [Option<Found>; 2] {
    let text = pieces.concat();
    let ends = pieces.iter().scan(0, |end, piece| {
        *end += piece.len();
        Some(*end)
    });
    [ReplyReader::default(), ReplyReader::judging()]
        .map(|reader| read_replies(text.as_bytes(), reader, GET, ends.clone()).found.pop())
}

#[test]
fn who_judges_finds_faults_at_once() {
    let fault = |text: &str| Some(Found::Fault(text.to_owned()));
    let version = "no status line of HTTP/1.0 or HTTP/1.1";
    assert_eq!(said(&["HELO"]), [fault(version), fault(version)]);
    assert_eq!(said(&["H", "ELO"]), [None, fault(version)]);
    assert_eq!(said(&["H", "ELO\r\n\r\n"]), [fault(version), fault(version)]);
    // Bare line ends are found without parsing, and so are the faults before them.
    assert_eq!(said(&["H", "ELO\n"]), [fault(version), fault(version)]);
}

#[test]
fn only_who_passes_replies_on_drops_trailers() {
    let chunked =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nHost: a\r\nA: b\r\n\r\n";
    let refused = Some(Found::Fault("a trailer that may not be one".to_owned()));
    assert_eq!(said(&[chunked]), [Some(end("A: b\r\n")), refused]);
}

/// docs/hostile-requests.md B10: as for requests, heads in pieces are not looked at twice. The
/// reader does not notice changes before its position.
#[test]
fn b10_the_search_never_goes_back() {
    let text = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(20_000));
    let (limits, mut fields, mut reader) =
        (Limits::default(), Fields::default(), ReplyReader::default());
    let mut input = Vec::new();
    for (at, &byte) in text.as_bytes()[..text.len() - 1].iter().enumerate() {
        input.push(byte);
        let part = reader.read(&input, &mut 0, GET, &limits, &mut fields);
        assert!(matches!(part, Ok(ReplyPart::More)), "{part:?} at {at}");
        if at > 2 {
            input[at - 2] = 0;
        }
    }
}

#[test]
fn other_protocols_have_no_end() {
    let (limits, mut fields, mut reader) =
        (Limits::default(), Fields::default(), ReplyReader::default());
    assert!(reader.awaits_head() && !reader.is_switched());
    assert_eq!(reader.body_left(), Some(0));
    reader.switch();
    assert!(
        reader.is_switched()
            && !reader.awaits_head()
            && !reader.is_complete()
            && !reader.ends_by_close()
    );
    assert_eq!(
        (reader.body_left(), reader.take_oddities(), reader.trailers().is_empty()),
        (None, None, true)
    );
    let mut at = 2;
    let part = reader.read(b"..HTTP/1.1 200 OK\r\n", &mut at, HEAD, &limits, &mut fields);
    assert!(matches!(part, Ok(ReplyPart::Data { start: 2, end: 19 })) && at == 19, "{part:?}");
    assert!(matches!(reader.read(b"", &mut 0, HEAD, &limits, &mut fields), Ok(ReplyPart::More)));
}
