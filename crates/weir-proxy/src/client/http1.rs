//! The codec of HTTP/1 towards a client: parts of responses arrive in any order and interleaved,
//! and leave as text in the order of requests (stages order and reply).
//!
//! Called by [`Answers`](super::Answers) and [`Connections`](super::connections::Connections),
//! which ask it for the response that a client waits for, and leave order, framing and persistence
//! to it. An exchange carries the codec's state of its response ([`Http1Answer`]), and doesn't look
//! into it: a codec that lets responses leave side by side has a different state there.
//!
//! Only the first response leaves. Early parts of the others are held in their exchanges, and
//! become output when their turn comes. Invariants: the list from `first` by `next` has `queued`
//! exchanges and ends with `last`; `held_bytes` is the sum of the bytes that they hold and those
//! that are being encoded for them, without the first, which holds nothing. Bound: `queue`
//! exchanges, and as much output as [`Answers`](super::Answers) stops sources for. RFC 9112 §6,
//! §7.1, §9.3.

mod order;

use weir_http::{Framing, Persistence, Pseudonym, ReplyBody, ReplyParts, Trailers};

use super::connection::Exchange;
use crate::base::check::equal;
use crate::base::keys::{ExchangeKey, Key};
use crate::base::output::{Out, Output, Spare};
use crate::base::piece::Piece;
use crate::base::slab::Slab;
use crate::cross::answer::AnswerHead;

/// Responses on one connection.
#[derive(Debug)]
pub(super) struct Http1 {
    /// The exchange with the response that leaves, or [`ExchangeKey::NONE`].
    first: ExchangeKey,
    /// The newest exchange, or [`ExchangeKey::NONE`].
    last: ExchangeKey,
    /// Exchanges in the list.
    queued: u32,
    /// Bytes of responses that wait for their turn, including those that are being encoded.
    held_bytes: u32,
    /// The bytes to be sent.
    output: Output,
}

/// The codec's state of one response.
#[derive(Debug)]
pub(super) struct Http1Answer {
    /// The exchange behind it on its connection, or [`ExchangeKey::NONE`].
    next: ExchangeKey,
    framing: AnswerFraming,
    /// Bytes that have arrived for it and are not part of it yet, because they are being encoded or
    /// wait for that.
    coding: u32,
    /// Its bytes while it was not first.
    held: Output,
}

impl Http1Answer {
    /// Bytes for it that are being encoded or wait for that.
    #[inline]
    pub(super) fn coding(&self) -> usize {
        self.coding as usize
    }
}

/// How a response body is framed for the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AnswerFraming {
    /// As it comes: its length was declared, or it is empty.
    Plain,
    /// Each piece becomes a chunk.
    Chunked,
    /// Until close.
    UntilClose,
}

/// Fields of a response head that its source has not set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Additions {
    /// The name in Via.
    pub via: Option<Pseudonym>,
    /// Date, for a final response without one.
    pub date: Option<[u8; 29]>,
}

/// The result of writing a head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    /// Bytes of its text.
    pub bytes: usize,
    /// The connection ends with this response.
    pub closes: bool,
}

impl Default for Http1 {
    fn default() -> Http1 {
        let (first, last) = (ExchangeKey::NONE, ExchangeKey::NONE);
        Http1 { first, last, queued: 0, held_bytes: 0, output: Output::default() }
    }
}

impl Default for Http1Answer {
    fn default() -> Http1Answer {
        Http1Answer {
            next: ExchangeKey::NONE,
            framing: AnswerFraming::Plain,
            coding: 0,
            held: Output::default(),
        }
    }
}

impl Http1 {
    // ---- output ----

    /// Bytes that may be sent now.
    #[inline]
    pub(super) fn ready_bytes(&self) -> usize {
        self.output.len()
    }

    /// Bytes of responses that wait for their turn.
    #[inline]
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes as usize
    }

    /// Whether nothing may be sent now.
    #[inline]
    pub(super) fn is_sent(&self) -> bool {
        self.output.is_empty()
    }

    /// The next bytes to send.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Out> {
        self.output.take()
    }

    /// The output, for code that writes frames into it or takes a stream's bytes out of it.
    #[inline]
    pub(super) fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Writes something into a response: to the client if it is first, otherwise into its held
    /// bytes.
    #[inline]
    fn write<R>(
        &mut self,
        slot: ExchangeKey,
        answer: &mut Http1Answer,
        write: impl FnOnce(&mut Output) -> R,
    ) -> R {
        let before = answer.held.len();
        let out = if self.first == slot { &mut self.output } else { &mut answer.held };
        let done = write(out);
        // The first response holds nothing.
        self.held_bytes += (answer.held.len() - before) as u32;
        done
    }

    /// Sets how many bytes of a response are being encoded, or wait for that. Returns the previous
    /// number.
    pub(super) fn set_coding(
        &mut self,
        slot: ExchangeKey,
        answer: &mut Http1Answer,
        bytes: usize,
    ) -> usize {
        let before = std::mem::replace(&mut answer.coding, bytes as u32);
        if self.first != slot {
            self.held_bytes = self.held_bytes - before + answer.coding;
        }
        before as usize
    }

    /// Appends text to a response. Returns the number of bytes.
    #[inline]
    fn put(
        &mut self,
        slot: ExchangeKey,
        answer: &mut Http1Answer,
        spare: &mut Spare,
        text: impl FnOnce(&mut Vec<u8>),
    ) -> usize {
        self.write(slot, answer, |out| {
            let out = out.tail(spare);
            let start = out.len();
            text(out);
            out.len() - start
        })
    }

    // ---- parts of a response ----

    /// 100 Continue (RFC 9110 §10.1.1). Returns its bytes.
    pub(super) fn invite_body(
        &mut self,
        slot: ExchangeKey,
        exchange: &mut Exchange,
        spare: &mut Spare,
    ) -> usize {
        self.put(slot, &mut exchange.reply, spare, |out| {
            out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n")
        })
    }

    /// Writes an interim response. Returns its bytes.
    pub(super) fn interim(
        &mut self,
        slot: ExchangeKey,
        exchange: &mut Exchange,
        parts: &ReplyParts<'_>,
        via: Option<Pseudonym>,
        spare: &mut Spare,
    ) -> usize {
        self.put(slot, &mut exchange.reply, spare, |out| {
            weir_http::encode_reply_head(out, parts, via, None);
            out.extend_from_slice(b"\r\n");
        })
    }

    /// Writes the head of a final response. The connection ends with it when the exchange says so,
    /// or when nothing else could mark the end of its body.
    #[inline]
    pub(super) fn begin(
        &mut self,
        slot: ExchangeKey,
        exchange: &mut Exchange,
        head: &AnswerHead<'_>,
        additions: &Additions,
        spare: &mut Spare,
    ) -> Begun {
        let Exchange { reply, want, .. } = exchange;
        let unframed = matches!(head.body, ReplyBody::Chunked | ReplyBody::UntilClose);
        reply.framing = match (unframed, want.old) {
            (false, _) => AnswerFraming::Plain,
            (true, false) => AnswerFraming::Chunked,
            (true, true) => AnswerFraming::UntilClose,
        };
        want.close |= want.body_open || reply.framing == AnswerFraming::UntilClose;
        let status = head.parts.status;
        let framing = match (head.body, reply.framing) {
            (ReplyBody::None, _) if status == 204 || status < 200 => Framing::None,
            (ReplyBody::None, _) => head.declared_length.map_or(Framing::None, Framing::Length),
            (ReplyBody::Length(length), _) => Framing::Length(length),
            (_, AnswerFraming::Chunked) => Framing::Chunked,
            _ => Framing::None,
        };
        let persistence = match (want.close, want.old) {
            (true, _) => Persistence::Close,
            (false, true) => Persistence::KeepAlive,
            (false, false) => Persistence::Implied,
        };
        let bytes = self.put(slot, reply, spare, |out| {
            weir_http::encode_reply_head(out, &head.parts, additions.via, additions.date.as_ref());
            weir_http::finish_reply_head(out, framing, persistence);
        });
        Begun { bytes, closes: want.close }
    }

    /// Writes the head of a 101: the bytes of a tunnel follow (RFC 9110 §7.8). Returns its bytes.
    pub(super) fn switch(
        &mut self,
        slot: ExchangeKey,
        exchange: &mut Exchange,
        head: &AnswerHead<'_>,
        via: Option<Pseudonym>,
        spare: &mut Spare,
    ) -> usize {
        let persistence = head.upgrade.map_or(Persistence::Implied, Persistence::Upgrade);
        self.put(slot, &mut exchange.reply, spare, |out| {
            weir_http::encode_reply_head(out, &head.parts, via, None);
            weir_http::finish_reply_head(out, Framing::None, persistence);
        })
    }

    /// Writes the response to CONNECT: the bytes of a tunnel follow (RFC 9110 §9.3.6). Returns its
    /// bytes.
    pub(super) fn connected(
        &mut self,
        slot: ExchangeKey,
        exchange: &mut Exchange,
        spare: &mut Spare,
    ) -> usize {
        let line = b"HTTP/1.1 200 Connection established\r\n\r\n";
        self.put(slot, &mut exchange.reply, spare, |out| out.extend_from_slice(line))
    }

    /// Writes a piece of a response body or of a tunnel; not empty.
    #[inline]
    pub(super) fn body(
        &mut self,
        slot: ExchangeKey,
        exchange: &mut Exchange,
        piece: Piece<'_>,
        spare: &mut Spare,
    ) {
        let chunked = exchange.reply.framing == AnswerFraming::Chunked;
        self.write(slot, &mut exchange.reply, |out| {
            if chunked {
                weir_http::encode_chunk_head(out.tail(spare), piece.len());
            }
            piece.push_to(out, spare);
            if chunked {
                out.tail(spare).extend_from_slice(weir_http::CHUNK_TAIL);
            }
        });
    }

    /// Completes a response.
    #[inline]
    pub(super) fn end(
        &mut self,
        slot: ExchangeKey,
        exchange: &mut Exchange,
        trailers: Trailers<'_>,
        spare: &mut Spare,
    ) {
        if exchange.reply.framing == AnswerFraming::Chunked {
            let trailers = if exchange.want.trailers { trailers } else { Trailers::default() };
            self.put(slot, &mut exchange.reply, spare, |out| {
                weir_http::encode_last_chunk(out, trailers)
            });
        }
    }

    /// The rest of a response that has begun will not come: the connection ends behind what was
    /// sent, so that the client notices.
    pub(super) fn cut(&mut self, exchange: &mut Exchange) {
        exchange.want.close = true;
        exchange.want.cut = exchange.reply.framing == AnswerFraming::UntilClose;
    }

    /// Looks for impossible states. Returns the number of requests, each of which `check` has seen.
    ///
    /// # Errors
    /// The first broken invariant, in words.
    pub(super) fn audit(
        &self,
        exchanges: &Slab<ExchangeKey, Exchange>,
        mut check: impl FnMut(&Exchange) -> Result<(), String>,
    ) -> Result<(), String> {
        let (mut slot, mut last, mut count, mut held) = (self.first, ExchangeKey::NONE, 0, 0);
        while slot != ExchangeKey::NONE && count <= self.queued {
            let exchange = exchanges.at(slot);
            check(exchange)?;
            if slot == self.first && !exchange.reply.held.is_empty() {
                return Err("the first answer holds something".to_owned());
            }
            held += exchange.reply.held.len()
                + if slot == self.first { 0 } else { exchange.reply.coding() };
            (last, slot, count) = (slot, exchange.reply.next, count + 1);
        }
        equal("requests in the list", count as usize, self.queued as usize)?;
        equal("the last request", last.index(), self.last.index())?;
        equal("bytes of answers that wait", held, self.held_bytes as usize)
    }
}
