//! Properties of the parsers as plain functions over bytes: run by the fuzz targets and by `cargo
//! test` alike.
//!
//! Test support, not part of the proxy. A property that does not hold panics. [`corpus`] has the
//! seeds, [`Mutator`] changes them without a fuzzer.

pub mod corpus;
pub mod h2;
mod mutate;
mod replies;

pub use mutate::Mutator;
pub use replies::{Found, Heard, read_replies, replies};

use std::fmt::Debug;

use crate::{CHUNK_TAIL, Persistence, Trailers};
use crate::{
    Chunk, ChunkError, ChunkedDecoder, Field, FieldName, Fields, Framing, HeadScan, Limits,
    ReplyBody, ReplyContext, ReplyHead, ReplyParts, RequestBody, RequestEdits, RequestError,
    RequestHead, encode_chunk_head, encode_last_chunk, encode_reply_head, encode_request,
    encode_target, finish_reply_head, parse_reply, parse_request,
};

/// Checks request and response heads: cut-off, in pieces and whole agree, and encoded heads read
/// back as the same.
pub fn head(data: &[u8]) {
    let tight =
        Limits { line_bytes_max: 40, head_bytes_max: 160, fields_max: 4, ..Limits::default() };
    for limits in [Limits::default(), tight] {
        let whole = request_outcome(data, &limits);
        check_pieces(data, &whole, |input| request_outcome(input, &limits));
        check_scan(
            data,
            |scan, input| scan.find(input, &limits).map_err(|e| e.word()),
            |input| head_end(input, &limits).map_err(|e| e.word()),
        );
        let whole = reply_outcome(data, &limits);
        check_pieces(data, &whole, |input| reply_outcome(input, &limits));
        check_scan(
            data,
            |scan, input| scan.find_reply(input, &limits).map_err(|e| e.word()),
            |input| {
                let (context, fields) = (ReplyContext::default(), &mut Fields::default());
                parse_reply(input, &limits, context, fields)
                    .map(|head| head.map(|h| h.bytes))
                    .map_err(|e| e.word())
            },
        );
    }
    check_encoded_request(data);
    check_encoded_reply(data);
}

/// Returns where the request head in `input` ends; if its target has raw text, after that is
/// encoded.
fn head_end(input: &[u8], limits: &Limits) -> Result<Option<usize>, RequestError> {
    let parse = |input: &[u8]| {
        parse_request(input, limits, &mut Fields::default()).map(|head| head.map(|h| h.bytes))
    };
    match parse(input) {
        Err(RequestError::TargetRaw) => match encode_target(input, limits)? {
            Some(head) => Ok(parse(&head.bytes)?.map(|end| end - head.added)),
            None => Ok(None),
        },
        parsed => parsed,
    }
}

/// The comparable result of a parser: the head, where it ends, and its fields.
type Outcome<H> = Result<Option<(H, usize, Vec<Field>)>, &'static str>;

fn request_outcome(input: &[u8], limits: &Limits) -> Outcome<RequestHead> {
    let mut fields = Fields::default();
    let head = parse_request(input, limits, &mut fields).map_err(|fault| fault.word())?;
    Ok(head.map(|head| (head, head.bytes, fields.as_slice().to_vec())))
}

fn reply_outcome(input: &[u8], limits: &Limits) -> Outcome<ReplyHead> {
    let mut fields = Fields::default();
    let head = parse_reply(input, limits, ReplyContext::default(), &mut fields)
        .map_err(|fault| fault.word())?;
    Ok(head.map(|head| (head, head.bytes, fields.as_slice().to_vec())))
}

/// Returns places to cut at: all in inputs up to 300 bytes, some in longer ones.
fn cuts(len: usize) -> impl Iterator<Item = usize> {
    (0..len).step_by(len / 300 + 1)
}

fn check_pieces<H: PartialEq + Debug>(
    data: &[u8],
    whole: &Outcome<H>,
    parse: impl Fn(&[u8]) -> Outcome<H>,
) {
    for cut in cuts(data.len()) {
        let part = parse(&data[..cut]);
        match (&part, whole) {
            (Ok(None), Ok(Some((_, bytes, _)))) => {
                assert!(cut < *bytes, "complete head not seen at {cut}")
            }
            (Ok(None), _) => {}
            _ => assert_eq!(part, *whole, "cut at {cut}"),
        }
    }
}

/// Checks that the scan fed piece by piece ends where the parser ends, or with the same error.
fn check_scan(
    data: &[u8],
    find: impl Fn(&mut HeadScan, &[u8]) -> Result<Option<usize>, &'static str>,
    parse: impl Fn(&[u8]) -> Result<Option<usize>, &'static str>,
) {
    let mut scan = HeadScan::default();
    for cut in cuts(data.len()).chain([data.len()]) {
        let input = &data[..cut];
        match find(&mut scan, input) {
            Ok(None) => {
                let parsed = parse(input);
                assert!(!matches!(parsed, Ok(Some(_))), "scan misses the end at {cut}: {parsed:?}");
            }
            Ok(Some(bytes)) => {
                let parsed = parse(input);
                assert!(
                    parsed == Ok(Some(bytes)) || parsed.is_err(),
                    "scan {bytes}, parser {parsed:?}"
                );
                return;
            }
            Err(word) => {
                assert_eq!(parse(input), Err(word), "scan at {cut}");
                return;
            }
        }
    }
}

/// Returns the request at the start of `data` as it leaves with ordinary edits, without its body;
/// None if it isn't a request that is forwarded.
pub fn encoded_request(data: &[u8]) -> Option<Vec<u8>> {
    let mut fields = Fields::default();
    let head = parse_request(data, &Limits::default(), &mut fields).ok()??;
    if head.method == crate::Method::Connect {
        return None;
    }
    Some(encode_plain(data, &head, &fields))
}

fn encode_plain(data: &[u8], head: &RequestHead, fields: &Fields) -> Vec<u8> {
    let host = if head.authority.is_empty() { b"none" } else { head.authority.of(data) };
    let edits = RequestEdits {
        path: head.path.of(data),
        host,
        framing: match head.body {
            RequestBody::None => Framing::None,
            RequestBody::Length(length) => Framing::Length(length),
            RequestBody::Chunked | RequestBody::Open => Framing::Chunked,
        },
        close: false,
        expect: head.expect_continue,
        upgrade: head.upgrade.map(|span| span.of(data)),
        te_trailers: head.te_trailers,
        via: None,
        cdn_loop: None,
        underscores: false,
        judges_clients: false,
        forwarded: None,
        keeps_forwarding: false,
        extra: &[],
        removed: &[],
        added: &[],
    };
    let mut out = Vec::new();
    encode_request(&mut out, data, head, fields, &edits);
    out
}

fn check_encoded_request(data: &[u8]) {
    let Some(first) = encoded_request(data) else { return };
    let limits = Limits {
        line_bytes_max: 1 << 20,
        head_bytes_max: 1 << 20,
        fields_max: 1 << 16,
        ..Limits::default()
    };
    let mut fields = Fields::default();
    let head = match parse_request(&first, &limits, &mut fields) {
        Ok(Some(head)) => head,
        other => panic!("what leaves is not a request: {other:?} {}", first.escape_ascii()),
    };
    assert_eq!(head.bytes, first.len(), "what leaves is one request: {}", first.escape_ascii());
    for field in fields.as_slice() {
        assert!(!field.underscore, "{}", first.escape_ascii());
        let listed = field.listed && !matches!(field.known, FieldName::Te);
        assert!(!listed, "{}", first.escape_ascii());
    }
    assert!(
        head.te_trailers || !fields.as_slice().iter().any(|field| field.known == FieldName::Te)
    );
    assert_eq!(
        encode_plain(&first, &head, &fields).escape_ascii().to_string(),
        first.escape_ascii().to_string()
    );
}

fn check_encoded_reply(data: &[u8]) {
    let mut fields = Fields::default();
    let context = ReplyContext::default();
    let Ok(Some(head)) = parse_reply(data, &Limits::default(), context, &mut fields) else {
        return;
    };
    let first = encode_plain_reply(data, &head, &fields);
    let limits = Limits {
        line_bytes_max: 1 << 20,
        head_bytes_max: 1 << 20,
        fields_max: 1 << 16,
        ..Limits::default()
    };
    let again = match parse_reply(&first, &limits, context, &mut fields) {
        Ok(Some(head)) => head,
        other => panic!("what leaves is not a reply: {other:?} {}", first.escape_ascii()),
    };
    assert_eq!(again.bytes, first.len(), "what leaves is one reply: {}", first.escape_ascii());
    assert_eq!((again.status, again.body), (head.status, head.body));
    assert!(
        !fields.as_slice().iter().any(|field| field.folded || field.spaced),
        "{}",
        first.escape_ascii()
    );
    let second = encode_plain_reply(&first, &again, &fields);
    assert_eq!(second.escape_ascii().to_string(), first.escape_ascii().to_string());
}

fn encode_plain_reply(data: &[u8], head: &ReplyHead, fields: &Fields) -> Vec<u8> {
    let mut out = Vec::new();
    let parts = ReplyParts::received(data, head, fields);
    encode_reply_head(&mut out, &parts, None, None);
    let (mut text, mut list, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    encode_reply_head(&mut kept, &parts.keep(&mut text, &mut list).parts(&text, &list), None, None);
    assert_eq!(kept.escape_ascii().to_string(), out.escape_ascii().to_string());
    let framing = match (head.body, head.declared_length) {
        (ReplyBody::Chunked, _) => Framing::Chunked,
        (_, Some(length)) => Framing::Length(length),
        (_, None) => Framing::None,
    };
    let persistence =
        head.upgrade.map_or(Persistence::Implied, |span| Persistence::Upgrade(span.of(data)));
    finish_reply_head(&mut out, framing, persistence);
    out
}

/// The result of a chunked body.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Decoded {
    /// Body bytes before the end or the error.
    pub body: Vec<u8>,
    /// Trailer lines that may pass on.
    pub trailers: Vec<u8>,
    /// Bytes that belonged to the body, when it is complete.
    pub consumed: Option<usize>,
    /// Chunks with an extension, when it is complete.
    pub extensions: u16,
    /// Trailers that don't pass on, when it is complete.
    pub dropped: u8,
    /// The error.
    pub fault: Option<ChunkError>,
}

/// Decodes `data` in pieces that end at `ends` (ascending, the last one is the length).
pub fn decode_pieces(
    data: &[u8],
    keep_trailers: bool,
    ends: impl Iterator<Item = usize>,
) -> Decoded {
    let mut decoder = ChunkedDecoder::new(keep_trailers);
    let mut decoded = Decoded::default();
    let mut at = 0;
    for end in ends {
        while at < end {
            match decoder.decode(&data[at..end]) {
                Ok(Chunk::More) => at = end,
                Ok(Chunk::Data { start, end: stop }) => {
                    assert!(start < stop);
                    decoded.body.extend_from_slice(&data[at + start..at + stop]);
                    at += stop;
                }
                Ok(Chunk::End { consumed }) => {
                    assert!(decoder.is_done());
                    decoded.trailers = decoder.trailers().as_bytes().to_vec();
                    decoded.consumed = Some(at + consumed);
                    let odd = decoder.take_oddities().unwrap_or_default();
                    (decoded.extensions, decoded.dropped) = (odd.extensions, odd.trailers);
                    assert_eq!(decoder.take_oddities(), None);
                    return decoded;
                }
                Err(fault) => {
                    decoded.fault = Some(fault);
                    assert_eq!(decoder.decode(b"0\r\n\r\n"), Err(ChunkError::Failed));
                    return decoded;
                }
            }
        }
    }
    assert!(!decoder.is_done() && decoder.trailers().is_empty());
    decoded
}

/// Checks chunked bodies: whole, byte by byte and in two pieces they give the same, and encoded
/// bodies decode to the same.
pub fn chunked(data: &[u8]) {
    for keep in [false, true] {
        let whole = decode_pieces(data, keep, [data.len()].into_iter());
        assert_eq!(decode_pieces(data, keep, 1..=data.len()), whole, "byte by byte");
        for cut in cuts(data.len()).step_by(8) {
            assert_eq!(
                decode_pieces(data, keep, [cut, data.len()].into_iter()),
                whole,
                "cut at {cut}"
            );
        }
        if whole.consumed.is_some() {
            check_encoded_chunks(&whole, keep);
        }
    }
}

fn check_encoded_chunks(decoded: &Decoded, keep: bool) {
    let mut out = Vec::new();
    for piece in decoded.body.chunks(17) {
        encode_chunk_head(&mut out, piece.len());
        out.extend_from_slice(piece);
        out.extend_from_slice(CHUNK_TAIL);
    }
    encode_last_chunk(&mut out, Trailers::kept(&decoded.trailers));
    let again = decode_pieces(&out, keep, [out.len()].into_iter());
    assert_eq!((again.body, again.trailers), (decoded.body.clone(), decoded.trailers.clone()));
    assert_eq!(again.consumed, Some(out.len()));
}
