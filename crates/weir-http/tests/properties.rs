//! Properties over many inputs: the fuzz targets' functions on the corpus and on seeded changes of
//! it, generated heads, httparse as a second opinion, and the strict grammar of weir-check as judge
//! of what is encoded.

use proptest::collection::vec;
use proptest::prelude::*;
use weir_check::{Rules, StrictRequests};
use weir_http::fuzzing::{self, Mutator, corpus, decode_pieces};
use weir_http::{Fields, Limits, Method, ReplyContext, parse_reply, parse_request};

fn heads() -> Vec<Vec<u8>> {
    corpus::requests().into_iter().chain(corpus::replies()).map(|case| case.input).collect()
}

fn bodies() -> Vec<Vec<u8>> {
    corpus::chunked().into_iter().map(|case| case.input).collect()
}

/// Returns heads that are accepted: small changes of them often still are.
fn accepted() -> Vec<Vec<u8>> {
    let all = corpus::requests().into_iter().chain(corpus::replies());
    short(all.filter(|case| case.expected.is_ok()).map(|case| case.input).collect())
}

/// Seeds that are short enough to be cut and changed thousands of times.
fn short(inputs: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    inputs.into_iter().filter(|input| input.len() < 400).collect()
}

/// Every truncation and split of every head of the corpus.
#[test]
fn heads_of_the_corpus() {
    for input in heads() {
        fuzzing::head(&input);
    }
}

#[test]
fn bodies_of_the_corpus() {
    for input in bodies() {
        fuzzing::chunked(&input);
    }
}

/// Every two-way split of the short ones (the fuzz function cuts at some places only).
#[test]
fn bodies_in_every_two_pieces() {
    for input in short(bodies()) {
        for keep in [false, true] {
            let whole = decode_pieces(&input, keep, [input.len()].into_iter());
            for cut in 0..=input.len() {
                assert_eq!(decode_pieces(&input, keep, [cut, input.len()].into_iter()), whole);
            }
        }
    }
}

#[test]
fn smoke_head() {
    let (mut mutator, seeds) = (Mutator::new(1), short(heads()));
    for _ in 0..3_000 {
        fuzzing::head(&mutator.next(&seeds));
    }
}

#[test]
fn smoke_chunked() {
    let (mut mutator, seeds) = (Mutator::new(2), short(bodies()));
    for _ in 0..5_000 {
        fuzzing::chunked(&mutator.next(&seeds));
    }
}

/// The encoding of any accepted head satisfies a grammar that was written without our parser.
#[test]
fn what_leaves_is_strict() {
    let (mut mutator, seeds) = (Mutator::new(3), accepted());
    let mut judged = 0;
    let all: Vec<Vec<u8>> =
        heads().into_iter().chain((0..20_000).map(|_| mutator.next(&seeds))).collect();
    for input in all {
        let Some(out) = fuzzing::encoded_request(&input) else { continue };
        judged += 1;
        let mut judge = StrictRequests::new(Rules { via: false, ..Rules::default() });
        if let Err(violation) = judge.feed(&out) {
            panic!("{violation:?}: {} became {}", input.escape_ascii(), out.escape_ascii());
        }
        assert!(
            judge.poll_request().is_some() || judge.current().is_some(),
            "{}",
            out.escape_ascii()
        );
    }
    assert!(judged > 1_000, "only {judged}");
}

/// Whatever we accept, httparse accepts with the same lines and fields.
fn agree_on_request(input: &[u8]) -> bool {
    let mut fields = Fields::default();
    let Ok(Some(head)) = parse_request(input, &Limits::default(), &mut fields) else {
        return false;
    };
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut other = httparse::Request::new(&mut headers);
    let status =
        other.parse(input).unwrap_or_else(|fault| panic!("{fault}: {}", input.escape_ascii()));
    assert_eq!(status, httparse::Status::Complete(head.bytes), "{}", input.escape_ascii());
    assert_eq!(other.method.map(str::as_bytes), Some(head.method_span.of(input)));
    assert_eq!(other.path.map(str::as_bytes), Some(head.target.of(input)));
    same_fields(input, &fields, other.headers);
    true
}

fn agree_on_reply(input: &[u8]) -> bool {
    let mut fields = Fields::default();
    let Ok(Some(head)) =
        parse_reply(input, &Limits::default(), ReplyContext::default(), &mut fields)
    else {
        return false;
    };
    if fields.as_slice().iter().any(|field| field.folded) {
        return false; // httparse keeps folds in its values in its own way
    }
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut other = httparse::Response::new(&mut headers);
    let mut config = httparse::ParserConfig::default();
    config.allow_spaces_after_header_name_in_responses(true);
    let status = config
        .parse_response(&mut other, input)
        .unwrap_or_else(|fault| panic!("{fault}: {}", input.escape_ascii()));
    assert_eq!(status, httparse::Status::Complete(head.bytes), "{}", input.escape_ascii());
    assert_eq!(other.code, Some(head.status));
    same_fields(input, &fields, other.headers);
    true
}

fn same_fields(input: &[u8], fields: &Fields, headers: &[httparse::Header<'_>]) {
    let ours: Vec<_> = fields
        .as_slice()
        .iter()
        .map(|field| (field.name.of(input), field.value.of(input)))
        .collect();
    let theirs: Vec<_> =
        headers.iter().map(|header| (header.name.as_bytes(), header.value)).collect();
    assert_eq!(ours, theirs, "{}", input.escape_ascii());
}

#[test]
fn httparse_agrees() {
    let (mut mutator, seeds) = (Mutator::new(4), accepted());
    let (mut requests, mut replies) = (0, 0);
    let all: Vec<Vec<u8>> =
        heads().into_iter().chain((0..20_000).map(|_| mutator.next(&seeds))).collect();
    for input in all {
        requests += usize::from(agree_on_request(&input));
        replies += usize::from(agree_on_reply(&input));
    }
    assert!(requests > 1_000 && replies > 500, "only {requests} and {replies}");
}

fn token() -> impl Strategy<Value = String> {
    "[A-Za-z0-9!#$%&'*+.^_`|~-]{1,20}"
}

/// A field that decides nothing.
fn field() -> impl Strategy<Value = (String, String)> {
    let value = "([!-~]([ \t!-~]{0,60}[!-~])?)?";
    (token(), value).prop_map(|(name, value)| (format!("X-{name}"), value))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Any head of the grammar is accepted, and each part is found again.
    #[test]
    fn valid_requests_parse(
        method in "[A-Z]{1,12}",
        path in "/[a-z0-9/?&=.;:@+-]{0,80}",
        host in "[a-z0-9-]{1,20}(\\.[a-z]{2,5})?(:[0-9]{1,4})?",
        fields in vec(field(), 0..30),
        blanks in "[ \t]{0,3}",
        length in proptest::option::of(0..u64::MAX / 2),
    ) {
        prop_assume!(method != "CONNECT" && method != "PRI");
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost:{blanks}{host}\r\n");
        for (name, value) in &fields {
            text.push_str(&format!("{name}:{blanks}{value}{blanks}\r\n"));
        }
        if let Some(length) = length {
            text.push_str(&format!("Content-Length: {length}\r\n"));
        }
        text.push_str("\r\n");
        let input = text.as_bytes();
        let mut parsed = Fields::default();
        let head = parse_request(input, &Limits::default(), &mut parsed).unwrap().unwrap();
        prop_assert_eq!(head.bytes, input.len());
        prop_assert_eq!(head.method_span.of(input), method.as_bytes());
        prop_assert_eq!(head.method == Method::Get, method == "GET");
        prop_assert_eq!(head.path.of(input), path.as_bytes());
        prop_assert_eq!(head.authority.of(input), host.as_bytes());
        for (i, (name, value)) in fields.iter().enumerate() {
            let field = parsed.as_slice()[i + 1];
            prop_assert_eq!(field.name.of(input), name.as_bytes());
            prop_assert_eq!(field.value.of(input), value.as_bytes());
            prop_assert_eq!(field.underscore, name.contains('_'));
        }
        let expected = length.map_or(weir_http::RequestBody::None, weir_http::RequestBody::Length);
        prop_assert_eq!(head.body, expected);
        prop_assert!(agree_on_request(input));
    }

    /// Arbitrary bytes never panic and never break a property.
    #[test]
    fn arbitrary_bytes(data in vec(any::<u8>(), 0..200)) {
        fuzzing::head(&data);
        fuzzing::chunked(&data);
    }

    /// Any body in any chunks and any pieces is decoded to itself.
    #[test]
    fn chunked_round_trip(
        chunks in vec(vec(any::<u8>(), 1..300), 0..10),
        mut ends in vec(0..4000usize, 0..8),
        trailers in vec(field(), 0..5),
    ) {
        let mut wire = Vec::new();
        for chunk in &chunks {
            weir_http::encode_chunk_head(&mut wire, chunk.len());
            wire.extend_from_slice(chunk);
            wire.extend_from_slice(weir_http::CHUNK_TAIL);
        }
        let lines: String = trailers
            .iter()
            .filter(|(name, _)| !name.to_ascii_lowercase().starts_with("x-forwarded-"))
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        weir_http::encode_last_chunk(&mut wire, weir_http::Trailers::kept(lines.as_bytes()));
        ends.retain(|&end| end < wire.len());
        ends.sort_unstable();
        ends.push(wire.len());
        let decoded = decode_pieces(&wire, true, ends.into_iter());
        prop_assert_eq!(decoded.body, chunks.concat());
        prop_assert_eq!(decoded.trailers, lines.into_bytes());
        prop_assert_eq!(decoded.consumed, Some(wire.len()));
    }
}

/// A chunked body in many pieces costs each byte once: trailers are kept, forbidden ones dropped.
#[test]
fn a11_trailers_that_pass() {
    let wire =
        b"0\r\nX-Sum: 1\r\nContent-Length: 5\r\nDate: x\r\nSet-Cookie: a\r\nGrpc-Status: 0\r\n\r\n";
    let decoded = decode_pieces(wire, true, 1..=wire.len());
    assert_eq!(decoded.trailers, b"X-Sum: 1\r\nGrpc-Status: 0\r\n");
    assert_eq!(decoded.consumed, Some(wire.len()));
    let plain = b"0\r\nX-Sum: 1\r\nDate: x\r\n\r\n";
    assert_eq!(decode_pieces(plain, false, 1..=plain.len()).trailers, b"");
}
