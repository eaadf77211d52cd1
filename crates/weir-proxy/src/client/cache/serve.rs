//! Stored responses, or parts of them, on their way to a client: heads and small bodies at once,
//! the rest as the client takes it.
//!
//! A stored body is sent by reference, so that a response that waits for its turn, or for a slow
//! client, only costs the references. Bounds: [`HIGH_BYTES`](crate::base::output::HIGH_BYTES) and
//! one piece for each client, as for what servers send.

use std::sync::Arc;

use weir_cache::{
    CacheStatus, Condition, Object, Part, Request, Terms, Validators, is_on_not_modified,
    is_on_part, judge_conditions, judge_range, staleness_us, stored_fields,
};
use weir_http::{Method, ReplyBody, ReplyParts, Trailers, Version};

use super::{Body, Caching, PiecePlace, Sends, Telling, fetch, status_text, wall_s};
use crate::base::keys::ExchangeKey;
use crate::base::piece::Piece;
use crate::client::answer::Answers;
use crate::client::connection::{NO_WORKER, Phase};
use crate::client::unsent::unsent_first;
use crate::context::Context;
use crate::cross::answer::{AnswerHead, Source};
use crate::request::pending_request::ExchangeId;

/// Bytes of a body that are sent at once.
const AT_ONCE_BYTES: u64 = 16 << 10;
/// Bytes of a body in a fetch that are copied in one piece.
const COPY_BYTES: usize = 16 << 10;

/// Seconds that a response remains fresh; negative: the seconds since it became stale
/// (RFC 9211 §2.4).
fn ttl_s(terms: &Terms, now_us: u64) -> i64 {
    match staleness_us(terms, now_us) {
        Some(stale_us) => -i64::try_from(stale_us / 1_000_000).unwrap_or(i64::MAX),
        None => i64::from(terms.lifetime_s) - i64::from(terms.age_s(now_us)),
    }
}

/// A substitute for the complete response.
enum Sent {
    Whole,
    NotModified,
    Part(Part),
}

/// Decides which part of a response a client gets whose request has conditions or a range.
fn judge(
    request: Request<'_>,
    terms: &Terms,
    lines: &[u8],
    length: Option<u64>,
    cx: &Context,
) -> Sent {
    if !request.head.conditional {
        return Sent::Whole;
    }
    let now_s = wall_s(cx);
    let stored = Validators::of(stored_fields(lines), now_s);
    if judge_conditions(request, terms.status, &stored, terms.received_s, now_s)
        == Condition::NotModified
    {
        return Sent::NotModified;
    }
    let Some(length) = length else { return Sent::Whole };
    match judge_range(request, terms.status, &stored, length, now_s) {
        Part::Whole => Sent::Whole,
        part => Sent::Part(part),
    }
}

/// Where the body of a beginning response is.
#[derive(Clone, Copy)]
pub(super) enum Content<'a> {
    /// In a fetch.
    Fetched(ExchangeId),
    /// In a complete stored response.
    Stored(&'a Arc<Object>),
}

/// Gives a client a stored response, as far as its request wants it.
pub(super) fn serve(
    answers: &mut Answers,
    slot: ExchangeKey,
    object: &Arc<Object>,
    request: Request<'_>,
    telling: &Telling,
    cx: &mut Context,
) {
    let (terms, length) = (object.terms(), Some(object.body_bytes()));
    begin(
        answers,
        slot,
        (object.lines(), &terms),
        length,
        Content::Stored(object),
        request,
        telling,
        cx,
    );
}

/// The same for a response of these lines whose body may be incomplete yet; `length` of the body,
/// if it is known.
pub(super) fn begin(
    answers: &mut Answers,
    slot: ExchangeKey,
    (lines, terms): (&[u8], &Terms),
    length: Option<u64>,
    content: Content<'_>,
    request: Request<'_>,
    telling: &Telling,
    cx: &mut Context,
) {
    let sent = judge(request, terms, lines, length, cx);
    let exchange = answers.conns.exchange_mut(slot);
    exchange.caching = None;
    exchange.asked = NO_WORKER;
    let removed = sent.removed(lines, &telling.hidden);
    let mut digits = itoa::Buffer::new();
    let age = digits.format(terms.age_s(cx.now_us)).as_bytes();
    let status =
        telling.status.map(|status| CacheStatus { ttl_s: Some(ttl_s(terms, cx.now_us)), ..status });
    let status = status.as_ref().map(status_text);
    let range = match &sent {
        Sent::Part(part) => part.content_range(length.unwrap_or(0)),
        _ => None,
    };
    let mut added: [(&[u8], &[u8]); 3] = [(b"Age", age); 3];
    let more = range.iter().map(|range| (&b"Content-Range"[..], range.as_bytes()));
    let more = more.chain(status.iter().map(|text| (&b"Cache-Status"[..], text.as_slice())));
    let count = 1 + added[1..].iter_mut().zip(more).map(|(place, field)| *place = field).count();
    let (code, at, end) = match sent {
        Sent::Whole => (terms.status, 0, length),
        Sent::NotModified => (304, 0, Some(0)),
        Sent::Part(Part::Bytes { first, last }) => (206, first, Some(last + 1)),
        Sent::Part(_) => (416, 0, Some(0)),
    };
    let has_body = code != 304 && code != 204 && request.head.method != Method::Head;
    let declared_length = end.map(|end| end - at).filter(|_| code != 304 && code != 204);
    let framing = match declared_length {
        _ if !has_body => ReplyBody::None,
        Some(length) => ReplyBody::Length(length),
        None => ReplyBody::Chunked,
    };
    // Age says that a response was not made for this request (RFC 9111 §5.1).
    let first = usize::from(telling.is_made_for_it && age == b"0");
    let mut parts = ReplyParts::of_lines(code, lines).with(&added[first..count]).without(&removed);
    (parts.version, parts.has_date) = (Some(Version::Http11), true);
    let head = AnswerHead { parts, body: framing, declared_length, upgrade: None };
    answers.answer_begin(slot, Source::Here, &head, cx);
    if !has_body || end == Some(at) {
        return answers.answer_end(slot, Trailers::default(), cx);
    }
    send_body(answers, slot, content, at, end, cx);
}

impl Sent {
    /// Names of the stored fields that are not sent: those that are for the store alone, and those
    /// that do not belong to a part.
    fn removed<'a>(&self, lines: &'a [u8], hidden: &[&'a [u8]]) -> Vec<&'a [u8]> {
        let names = || stored_fields(lines).map(|(name, _)| name);
        let has_etag = || names().any(|name| name.eq_ignore_ascii_case(b"etag"));
        let mut removed = hidden.to_vec();
        match self {
            Sent::Whole => {}
            Sent::NotModified => {
                let has_etag = has_etag();
                removed.extend(names().filter(|name| !is_on_not_modified(name, has_etag)));
            }
            Sent::Part(Part::Unsatisfiable) => {
                removed.extend(names().filter(|name| {
                    name.eq_ignore_ascii_case(b"content-type") || !is_on_part(name)
                }));
            }
            Sent::Part(_) => removed.extend(names().filter(|name| !is_on_part(name))),
        }
        removed
    }
}

/// Sends the body of a response that has begun, from a position up to another: all of it if it is
/// small, otherwise as much as the client takes.
fn send_body(
    answers: &mut Answers,
    slot: ExchangeKey,
    content: Content<'_>,
    at: u64,
    end: Option<u64>,
    cx: &mut Context,
) {
    if let (Content::Stored(object), Some(end)) = (content, end)
        && end - at <= AT_ONCE_BYTES
    {
        let (mut at, mut place) = (at, PiecePlace::default());
        while at < end {
            let Some(piece) = piece_of(object, &mut place, at, end) else { break };
            at += piece.len() as u64;
            answers.answer_body(slot, piece, cx);
        }
        return answers.answer_end(slot, Trailers::default(), cx);
    }
    let body = match content {
        Content::Fetched(id) => Body::Fetched(id),
        Content::Stored(object) => Body::Stored(Arc::clone(object)),
    };
    answers.conns.exchange_mut(slot).caching =
        Some(Caching::Sends(Box::new(Sends { body, place: PiecePlace::default(), at, end })));
    pump(answers, slot, cx);
}

/// The contiguous bytes of a body from a position on, up to another; `place` is where the last ones
/// were found, and only moves forward.
fn piece_of<'a>(
    object: &'a Object,
    place: &mut PiecePlace,
    at: u64,
    end: u64,
) -> Option<Piece<'a>> {
    if let Some(small) = object.small_body() {
        return Some(Piece::Borrowed(small.get(at as usize..end as usize)?));
    }
    while let Some(piece) = object.pieces().get(place.piece) {
        let behind = place.begin + piece.len() as u64;
        if at < behind {
            let last = (end.min(behind) - place.begin) as usize;
            return Some(Piece::Kept(piece.slice((at - place.begin) as usize..last)));
        }
        *place = PiecePlace { piece: place.piece + 1, begin: behind };
    }
    None
}

/// Sends as much of a body as its client takes now, if it is the turn of its response.
pub(super) fn pump(answers: &mut Answers, slot: ExchangeKey, cx: &mut Context) {
    loop {
        let exchange = answers.conns.exchange(slot);
        let index = exchange.conn;
        if exchange.phase() != Phase::Answering || !answers.conns.at(index).codec.leaves(slot) {
            return;
        }
        let high_bytes = answers.conns.carriers.high_bytes(answers.conns.at(index));
        if unsent_first(&answers.conns, index) >= high_bytes {
            // It continues when the client has taken some.
            return;
        }
        let Some(Caching::Sends(sends)) = &exchange.caching else { return };
        let mut place = sends.place;
        let (at, end) = (sends.at, sends.end.unwrap_or(u64::MAX));
        let piece = match &sends.body {
            _ if at == end => None,
            Body::Stored(object) => piece_of(object, &mut place, at, end).map(Piece::into_bytes),
            Body::Fetched(id) => {
                // The bytes received so far.
                let got = fetch::collected(&answers.conns, *id, at);
                let got = &got[..got.len().min(COPY_BYTES).min((end - at) as usize)];
                if got.is_empty() {
                    return;
                }
                Some(bytes::Bytes::copy_from_slice(got))
            }
        };
        let Some(piece) = piece else {
            answers.conns.exchange_mut(slot).caching = None;
            return answers.answer_end(slot, Trailers::default(), cx);
        };
        if let Some(Caching::Sends(sends)) = &mut answers.conns.exchange_mut(slot).caching {
            sends.at += piece.len() as u64;
            sends.place = place;
        }
        answers.answer_body(slot, Piece::Kept(piece), cx);
    }
}

/// Sends more to the clients that have taken some.
pub(in crate::client) fn pump_all(answers: &mut Answers, cx: &mut Context) {
    while let Some(client @ (index, _)) = answers.conns.caches.to_pump.pop() {
        if answers.conns.knows(client)
            && let Some(slot) = answers.conns.at(index).codec.current()
        {
            pump(answers, slot, cx);
        }
    }
}

/// A body that was being fetched is stored: its client gets the rest from the store.
pub(super) fn go_on_from(
    answers: &mut Answers,
    slot: ExchangeKey,
    object: &Arc<Object>,
    cx: &mut Context,
) {
    if let Some(Caching::Sends(sends)) = &mut answers.conns.exchange_mut(slot).caching {
        sends.body = Body::Stored(Arc::clone(object));
        sends.end = Some(sends.end.unwrap_or(object.body_bytes()));
        pump(answers, slot, cx);
    }
}

/// The fields that ask a server whether the stored response is still valid.
pub(super) fn conditions(object: &Object, cx: &Context) -> Vec<(&'static [u8], Vec<u8>)> {
    object.validators(wall_s(cx)).conditions().map(|(name, value)| (name, value.to_vec())).collect()
}
