//! Answers that are compressed on their way to their client (stage reply): between the parts that come and the codec of the connection, so
//! once for all versions of HTTP. docs/semantics.md §18.
//!
//! What is to become of an answer says its rule ([`Compress`](crate::request::rules::compress::Compress)) when its head is there. Pieces of the body go through an encoder;
//! what it keeps is flushed before the turn's sends ([`Answers::flush_encoders`]), so that nothing that a server has sent stands still. An answer
//! that breaks off has no end of its coding. Bounds: the memory of a worker's encoders, `compress_bytes_max` of the plan; what comes out waits in the output of the
//! connection, whose bounds stop sources as always.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_http::{ReplyBody, Trailers};

use super::answer::Answers;
use super::http1::Begun;
use crate::base::encoder::{Coding, Encoder, Shape};
use crate::base::keys::ExchangeKey;
use crate::base::piece::Piece;
use crate::cause::Cause;
use crate::client::connection::Phase;
use crate::context::Context;
use crate::cross::answer::AnswerHead;
use crate::observe::counters::Counters;
use crate::request::pending_request::ExchangeId;
use crate::request::rules::Ruled;
use crate::request::rules::compress::{Passed, is_of_bytes, with_coding};

/// The encoders of a worker.
#[derive(Debug, Default)]
pub(super) struct Encoders {
    /// Bytes that they hold, or may come to hold.
    bytes: Arc<AtomicU64>,
    /// Exchanges whose encoders may keep something back.
    unflushed: Vec<ExchangeId>,
}

/// An answer that is being compressed.
#[derive(Debug)]
pub(crate) struct Compressing {
    encoder: Encoder,
    coding: Coding,
    /// Bytes that went in and came out.
    bytes: [u64; 2],
    /// It may keep something back.
    keeps: bool,
    /// There was no memory: the answer can't be completed.
    is_broken: bool,
    _share: Share,
}

/// What an encoder has of its worker's memory; it gives it back whatever becomes of its exchange.
#[derive(Debug)]
struct Share {
    bytes: u64,
    of: Arc<AtomicU64>,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Writes the head of an answer, as its rule has it; `write` is the codec. With an encoder when its body is to be compressed.
pub(super) fn begin(
    ruled: &Ruled,
    head: &AnswerHead<'_>,
    is_head: bool,
    (encoders, bytes_max): (&Encoders, u64),
    counters: &Counters,
    write: impl FnOnce(&AnswerHead<'_>) -> Begun,
) -> (Begun, Option<Box<Compressing>>) {
    let Some((rule, accepted)) = ruled.compress() else { return (write(head), None) };
    let length = match head.body {
        ReplyBody::Length(length) => Some(length),
        ReplyBody::None => head.declared_length,
        ReplyBody::Chunked | ReplyBody::UntilClose => None,
    };
    match (head.parts.status, head.body) {
        // What the client has may be compressed (RFC 9110 §15.4.5).
        (304, _) => {
            return (
                with_coding(&head.parts, None, accepted.takes_any(), |parts| write(&AnswerHead { parts, ..*head })),
                None,
            );
        }
        (204 | 205, _) => return (write(head), None),
        (_, ReplyBody::None) if !is_head => return (write(head), None),
        _ => {}
    }
    let verdict = accepted.judge(rule, &head.parts, length);
    let compressing = match verdict.coding {
        Ok((coding, _)) if is_head => Ok((coding, None)),
        Ok((coding, level)) => {
            encoders.open(Shape::new(coding, level, length), bytes_max).map(|compressing| (coding, Some(compressing)))
        }
        Err(why) => Err(why),
    };
    let (coding, compressing) = match compressing {
        Ok((coding, compressing)) => (Some(coding), compressing),
        Err(why) => {
            counters.compression_passed.count(why);
            (None, None)
        }
    };
    if compressing.is_some() {
        coding.iter().for_each(|coding| counters.compressed.count(*coding));
    }
    let begun = match (verdict.varies, coding) {
        (false, _) => write(head),
        (true, None) => with_coding(&head.parts, None, false, |parts| write(&AnswerHead { parts, ..*head })),
        (true, coding) => with_coding(&head.parts, coding, true, |parts| {
            let body = if is_head { ReplyBody::None } else { ReplyBody::Chunked };
            write(&AnswerHead { parts, body, declared_length: None, ..*head })
        }),
    };
    (begun, compressing)
}

impl Encoders {
    /// An encoder for an answer, if there may be one: all of a worker hold at most so many bytes.
    fn open(&self, shape: Shape, bytes_max: u64) -> Result<Box<Compressing>, Passed> {
        let bytes = shape.bytes();
        if self.bytes.load(Ordering::Relaxed) + bytes > bytes_max {
            return Err(Passed::Busy);
        }
        let encoder = Encoder::new(shape).ok_or(Passed::Busy)?;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let share = Share { bytes, of: Arc::clone(&self.bytes) };
        let coding = shape.coding();
        Ok(Box::new(Compressing { encoder, coding, bytes: [0; 2], keeps: false, is_broken: false, _share: share }))
    }
}

impl Compressing {
    /// Takes a piece in, and gives out what has become of those before.
    pub(super) fn piece(&mut self, piece: &Piece<'_>, counters: &Counters) -> Piece<'static> {
        let bytes = piece.bytes();
        self.bytes[0] += bytes.len() as u64;
        counters.compression_bytes_in.add(bytes.len() as u64);
        let out = if self.is_broken { None } else { self.encoder.write(bytes) };
        self.out(out, counters)
    }

    fn flush(&mut self, counters: &Counters) -> Piece<'static> {
        self.keeps = false;
        let out = if self.is_broken { None } else { self.encoder.flush() };
        self.out(out, counters)
    }

    fn out(&mut self, out: Option<Vec<u8>>, counters: &Counters) -> Piece<'static> {
        self.is_broken |= out.is_none();
        let out = out.unwrap_or_default();
        self.bytes[1] += out.len() as u64;
        counters.compression_bytes_out.add(out.len() as u64);
        Piece::Kept(out.into())
    }
}

impl Answers {
    /// What an encoder has taken in has to leave with this turn's sends.
    pub(super) fn note_unflushed(&mut self, slot: ExchangeKey, cx: &Context) {
        let id = self.conns.exchange_id(slot, cx);
        if let Some(compressing) = &mut self.conns.exchange_mut(slot).compressing
            && !std::mem::replace(&mut compressing.keeps, true)
        {
            self.encoders.unflushed.push(id);
        }
    }

    /// Whether encoders may keep something back.
    #[inline]
    pub(super) fn has_unflushed(&self) -> bool {
        !self.encoders.unflushed.is_empty()
    }

    /// Whatever encoders keep goes to their clients, unless it has gone.
    pub(super) fn flush_encoders(&mut self, cx: &mut Context) {
        let mut unflushed = std::mem::take(&mut self.encoders.unflushed);
        for id in unflushed.drain(..) {
            if !self.conns.is_in(id, Phase::Answering) {
                continue;
            }
            let (mut codec, exchange) = self.conns.codec(id.index);
            let Some(compressing) = exchange.compressing.as_mut().filter(|compressing| compressing.keeps) else {
                continue;
            };
            let piece = compressing.flush(&cx.counters);
            if !piece.is_empty() {
                codec.body(id.index, exchange, piece, &mut cx.spare);
                let index = exchange.conn;
                self.await_client(index, cx);
                self.conns.mark(index);
            }
        }
        self.encoders.unflushed = unflushed;
    }

    /// An answer that was compressed is complete, or can't be completed.
    pub(super) fn end_compressed(
        &mut self,
        slot: ExchangeKey,
        compressing: Compressing,
        trailers: Trailers<'_>,
        cx: &mut Context,
    ) {
        let Compressing { encoder, coding, bytes: [taken, given], is_broken, _share, .. } = compressing;
        let Some(rest) = encoder.finish().filter(|_| !is_broken) else {
            return self.answer_failed(slot, Cause::Truncated, cx);
        };
        cx.counters.compression_bytes_out.add(rest.len() as u64);
        self.records.compressed(slot, coding, taken, given + rest.len() as u64);
        let (mut codec, exchange) = self.conns.codec(slot);
        if !rest.is_empty() {
            codec.body(slot, exchange, Piece::Kept(rest.into()), &mut cx.spare);
        }
        self.await_client(self.conns.exchange(slot).conn, cx);
        let mut lines = Vec::new();
        for (name, value) in trailers.fields().filter(|(name, _)| !is_of_bytes(name)) {
            lines.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
        }
        self.answer_ends(slot, Trailers::kept(&lines), cx);
    }
}

#[cfg(test)]
mod tests {
    //! Proves: encoders of a worker hold so many bytes and no more, and one that goes makes room, whatever becomes of its answer; small answers
    //! need little of it; an encoder that is broken gives nothing and never an end. How: all of them.

    use super::*;

    #[test]
    fn encoders_are_bounded() {
        let (encoders, large) = (Encoders::default(), Shape::new(Coding::Br, 6, None));
        let bytes_max = 3 * large.bytes() + 1;
        let mut all: Vec<_> = (0..3).map(|_| encoders.open(large, bytes_max).expect("room")).collect();
        assert_eq!(encoders.open(large, bytes_max).err(), Some(Passed::Busy));
        assert_eq!(encoders.bytes.load(Ordering::Relaxed), 3 * large.bytes());
        drop(all.pop());
        let small: Vec<_> =
            std::iter::from_fn(|| encoders.open(Shape::new(Coding::Zstd, 3, Some(2000)), bytes_max).ok()).collect();
        assert!(small.len() > 3, "{} beside one less", small.len());
        assert!(encoders.open(large, bytes_max).is_err());
        drop(small);
        all.push(encoders.open(large, bytes_max).expect("room again"));
        drop(all);
        assert_eq!(encoders.bytes.load(Ordering::Relaxed), 0);
        assert!(encoders.open(large, 0).is_err(), "with no memory nothing is compressed");
    }

    #[test]
    fn what_goes_in_is_counted_as_it_comes_out() {
        let (encoders, counters) = (Encoders::default(), Counters::default());
        let mut compressing = encoders.open(Shape::new(Coding::Gzip, 5, None), 1 << 20).expect("room");
        let first = compressing.piece(&Piece::Borrowed(&[b'a'; 5000]), &counters).len();
        let rest = compressing.flush(&counters).len();
        assert_eq!((counters.compression_bytes_in.get(), compressing.bytes[0]), (5000, 5000));
        assert_eq!(
            (counters.compression_bytes_out.get(), compressing.bytes[1]),
            ((first + rest) as u64, (first + rest) as u64)
        );
        assert!(first + rest < 200);
        compressing.is_broken = true;
        assert!(
            compressing.piece(&Piece::Borrowed(b"more"), &counters).is_empty()
                && compressing.flush(&counters).is_empty()
        );
    }
}
