//! Compression of responses on their way to clients (stage reply): between the parts that arrive
//! and the codec of the connection, so once for all versions of HTTP. docs/compression.md.
//!
//! When its head arrives, the rule of a response
//! ([`Compress`](crate::request::rules::compress::Compress)) decides what happens to it. Pieces of
//! the body pass through an encoder. Bytes that it keeps are flushed before the turn's sends
//! ([`Answers::flush_encoders`](super::answer::Answers::flush_encoders)), so that nothing from a
//! server is delayed. The coding of a truncated response has no end. Large responses are encoded on
//! another thread (`away.rs`): their pieces wait here for the turn's end, or for the encoder. An
//! idle response gives up its encoder when others need one (`reclaim.rs`). Bounds: the memory of a
//! worker's encoders, `compress_bytes_max` of the plan, of which one client has at most as much as
//! is free. The output waits in the output of the connection, and the bounds there stop sources as
//! always; bytes that wait here count in the same way.

mod away;
mod reclaim;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_http::ReplyBody;

pub(super) use self::reclaim::encoding_for;
use super::codec::Codec;
use super::connection::Exchange;
use super::connections::Connections;
use super::http1::Begun;
use crate::base::encoder::{Coding, Encoder, Shape};
use crate::base::keys::ExchangeKey;
use crate::base::output::{Output, Spare};
use crate::base::piece::Piece;
use crate::context::Context;
use crate::cross::answer::AnswerHead;
use crate::forward::shares::Lane;
use crate::observe::counters::Counters;
use crate::request::encoding::{Encoded, Job, Label, Share};
use crate::request::pending_request::ExchangeId;
use crate::request::rules::Ruled;
use crate::request::rules::compress::{Passed, with_coding};

/// A response up to this many bytes is compressed inline, between two looks at other clients. Most
/// pages and scripts are no larger, and this takes half a millisecond by default, two at most. A
/// larger response is compressed on another thread, which costs a hundredth of that and perhaps a
/// wait for a core.
const INLINE_BYTES_MAX: u64 = 32 * 1024;

/// The most that an encoder needs; where the total is smaller than this, a quarter of the total.
const NEED_BYTES: u64 = 5 << 20;
/// Clients with a known share, before those without any are forgotten.
const CLIENTS_KEPT: usize = 256;

/// The encoders of a worker.
#[derive(Debug, Default)]
pub(super) struct Encoders {
    /// Bytes that they hold, or may come to hold.
    bytes: Arc<AtomicU64>,
    /// Exchanges whose encoders may keep something back, or have input waiting.
    unflushed: Vec<ExchangeId>,
    /// The number of encoders opened so far.
    opened: u64,
    /// The share of each client in those bytes.
    clients: BTreeMap<Lane, Arc<AtomicU64>>,
    /// When to look next for idle encoders.
    look_us: u64,
}

/// A response that is being compressed.
///
/// While its encoder is away, or before the end of a turn when it is large, its input waits:
/// `waiting` is empty at the end of a turn unless the encoder is away.
#[derive(Debug)]
pub(crate) struct Compressing {
    place: Place,
    /// Different for each of a worker.
    number: u64,
    coding: Coding,
    /// Bytes of input and output.
    bytes: [u64; 2],
    /// When it last had work.
    worked_us: u64,
    /// It may keep something back, or has input waiting.
    keeps: bool,
    /// It is encoded on another thread from here on.
    is_large: bool,
    /// The next input.
    waiting: Output,
    /// Lines of its trailers, when all of the response has arrived.
    end: Option<Vec<u8>>,
}

/// Where an encoder is.
#[derive(Debug)]
enum Place {
    /// Here, with its share of the memory.
    Here(Encoder, Share),
    /// On another thread, with this many bytes.
    Away(usize),
    /// None: it has emitted the end of the response.
    Ended,
    /// None: memory ran out, and the response can't be completed.
    Broken,
}

/// Writes the head of a response as its rule demands; `write` is the codec. Returns an encoder if
/// the body is to be compressed.
pub(super) fn begin(
    ruled: &Ruled,
    head: &AnswerHead<'_>,
    is_head: bool,
    (encoders, client, bytes_max): (&mut Encoders, Option<Lane>, u64),
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
        // The client's copy may be compressed (RFC 9110 §15.4.5).
        (304, _) => {
            return (
                with_coding(&head.parts, None, accepted.takes_any(), |parts| {
                    write(&AnswerHead { parts, ..*head })
                }),
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
        Ok((coding, level)) => encoders
            .open(Shape::new(coding, level, length), client, bytes_max)
            .map(|mut compressing| {
                compressing.is_large = length.is_some_and(|length| length > INLINE_BYTES_MAX);
                (coding, Some(compressing))
            }),
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
        (true, None) => {
            with_coding(&head.parts, None, false, |parts| write(&AnswerHead { parts, ..*head }))
        }
        (true, coding) => with_coding(&head.parts, coding, true, |parts| {
            let body = if is_head { ReplyBody::None } else { ReplyBody::Chunked };
            write(&AnswerHead { parts, body, declared_length: None, ..*head })
        }),
    };
    (begun, compressing)
}

/// Takes a piece of a response that is compressed, and emits the output of it and of earlier ones.
pub(super) fn encode(
    codec: &mut Codec<'_>,
    slot: ExchangeKey,
    exchange: &mut Exchange,
    piece: Piece<'_>,
    cx: &mut Context,
) -> Piece<'static> {
    let Some(compressing) = &mut exchange.compressing else { return NOTHING };
    compressing.worked_us = cx.now_us;
    let out = compressing.piece(piece, &cx.counters, &mut cx.spare);
    let coding_bytes = compressing.coding_bytes();
    codec.set_coding(slot, exchange, coding_bytes);
    out
}

/// A response that may be compressed is no longer wanted, or another one replaces it.
pub(super) fn give_up(conns: &mut Connections, slot: ExchangeKey) {
    let (mut codec, exchange) = conns.codec(slot);
    if exchange.compressing.take().is_some() {
        codec.set_coding(slot, exchange, 0);
    }
}

const NOTHING: Piece<'static> = Piece::Borrowed(b"");

impl Encoders {
    /// Opens an encoder for a response if the limits allow it: all encoders of a worker hold at
    /// most `bytes_max`, and once half of that is in use, one client no more than is free.
    fn open(
        &mut self,
        shape: Shape,
        client: Option<Lane>,
        bytes_max: u64,
    ) -> Result<Box<Compressing>, Passed> {
        let bytes = shape.bytes();
        if !self.has_room(client, bytes, bytes_max) {
            return Err(Passed::Busy);
        }
        let client = client.map(|client| Arc::clone(self.clients.entry(client).or_default()));
        if self.clients.len() > CLIENTS_KEPT {
            self.clients.retain(|_, bytes| Arc::strong_count(bytes) > 1);
        }
        let encoder = Encoder::new(shape).ok_or(Passed::Busy)?;
        self.opened += 1;
        Ok(Box::new(Compressing {
            place: Place::Here(encoder, Share::new(bytes, &self.bytes).of_client(client)),
            number: self.opened,
            coding: shape.coding(),
            bytes: [0; 2],
            worked_us: 0,
            keeps: false,
            is_large: false,
            waiting: Output::default(),
            end: None,
        }))
    }

    /// Whether this many bytes are available for a response to this client.
    fn has_room(&self, client: Option<Lane>, bytes: u64, bytes_max: u64) -> bool {
        let all = self.bytes.load(Ordering::Relaxed);
        let free = bytes_max.saturating_sub(all);
        let mine = client
            .and_then(|client| self.clients.get(&client))
            .map_or(0, |mine| mine.load(Ordering::Relaxed));
        bytes <= free && (all + bytes <= bytes_max / 2 || client.is_none() || mine + bytes <= free)
    }

    /// Whether memory may be short for a response to this client.
    #[inline]
    fn is_short(&self, client: Option<Lane>, bytes_max: u64) -> bool {
        !self.has_room(client, NEED_BYTES.min(bytes_max / 4), bytes_max)
    }

    /// Whether memory is left for other clients.
    fn has_free(&self, bytes_max: u64) -> bool {
        self.has_room(None, NEED_BYTES.min(bytes_max / 4), bytes_max)
    }

    /// Whether encoders may keep something back, or have input waiting.
    #[inline]
    pub(super) fn has_unflushed(&self) -> bool {
        !self.unflushed.is_empty()
    }
}

impl Compressing {
    /// Sets the time of its start.
    pub(super) fn at(mut self: Box<Self>, now_us: u64) -> Box<Compressing> {
        self.worked_us = now_us;
        self
    }

    /// Whether its encoder is here, has begun and is idle.
    fn has_idle_memory(&self) -> bool {
        let is_here = matches!(&self.place, Place::Here(encoder, _) if !encoder.is_stored());
        is_here && !self.keeps && self.waiting.is_empty() && self.bytes[0] > 0
    }

    /// Drops its encoder; later input is not compressed. Emits the bytes that the encoder kept
    /// back.
    fn give_up_memory(&mut self, counters: &Counters) -> Piece<'static> {
        match std::mem::replace(&mut self.place, Place::Broken) {
            Place::Here(encoder, share) => {
                let (encoder, out) = encoder.store().unzip();
                if let Some(encoder) = encoder {
                    self.place = Place::Here(encoder, share.given_back());
                }
                self.out(out, counters)
            }
            other => {
                self.place = other;
                NOTHING
            }
        }
    }

    /// Takes a piece in, and emits the output of earlier ones. A piece of a large response waits.
    fn piece(
        &mut self,
        piece: Piece<'_>,
        counters: &Counters,
        spare: &mut Spare,
    ) -> Piece<'static> {
        self.bytes[0] += piece.len() as u64;
        counters.compression_bytes_in.add(piece.len() as u64);
        self.is_large |= self.bytes[0] > INLINE_BYTES_MAX;
        match &mut self.place {
            Place::Here(encoder, _) if !self.is_large => {
                let out = encoder.write(piece.bytes());
                self.out(out, counters)
            }
            Place::Here(..) | Place::Away(_) => {
                piece.push_to(&mut self.waiting, spare);
                NOTHING
            }
            Place::Ended | Place::Broken => NOTHING,
        }
    }

    fn flush(&mut self, counters: &Counters) -> Piece<'static> {
        self.keeps = false;
        let Place::Here(encoder, _) = &mut self.place else { return NOTHING };
        let out = encoder.flush();
        self.out(out, counters)
    }

    /// Counts the output. None: the response is broken, and its waiting input is dropped.
    fn out(&mut self, out: Option<Vec<u8>>, counters: &Counters) -> Piece<'static> {
        let Some(out) = out else {
            self.place = Place::Broken;
            self.waiting.clear();
            return NOTHING;
        };
        self.bytes[1] += out.len() as u64;
        counters.compression_bytes_out.add(out.len() as u64);
        Piece::Kept(out.into())
    }

    /// Emits the end of the response; None: it can't be completed.
    fn finish(&mut self, counters: &Counters) -> Option<Piece<'static>> {
        match std::mem::replace(&mut self.place, Place::Ended) {
            Place::Here(encoder, _share) => {
                let out = Some(encoder.finish()?);
                Some(self.out(out, counters))
            }
            Place::Ended => Some(NOTHING),
            Place::Away(_) | Place::Broken => None,
        }
    }

    /// Sends waiting input away with the encoder, if both are here. Returns the job.
    fn leave(&mut self, id: ExchangeId) -> Option<Box<Job>> {
        if self.waiting.is_empty() || !matches!(self.place, Place::Here(..)) {
            return None;
        }
        let waiting = std::mem::take(&mut self.waiting);
        let Place::Here(encoder, share) =
            std::mem::replace(&mut self.place, Place::Away(waiting.len()))
        else {
            return None;
        };
        let label = Label { id, number: self.number };
        Some(Box::new(Job {
            label,
            encoder,
            share,
            input: waiting.into_list(),
            is_last: self.end.is_some(),
        }))
    }

    /// The encoder is back: emits its output.
    fn come_back(
        &mut self,
        Encoded { share, outcome, .. }: Encoded,
        counters: &Counters,
    ) -> Piece<'static> {
        let (encoder, out) = outcome.unzip();
        self.place = encoder.flatten().map_or(Place::Ended, |encoder| Place::Here(encoder, share));
        self.out(out, counters)
    }

    /// Whether some of it waits to be encoded, or is being encoded.
    fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || matches!(self.place, Place::Away(_))
    }

    /// Bytes that have arrived and are not encoded.
    fn coding_bytes(&self) -> usize {
        let away = if let Place::Away(bytes) = self.place { bytes } else { 0 };
        self.waiting.len() + away
    }
}

#[cfg(test)]
mod tests {
    //! Proves: encoders of a worker hold no more bytes than their limit, and a finished encoder
    //! makes room, whatever happened to its response; small responses need little memory; a broken
    //! encoder emits nothing and never an end. How: all of them.

    use super::*;

    #[test]
    fn encoders_are_bounded() {
        let (mut encoders, large) = (Encoders::default(), Shape::new(Coding::Br, 6, None));
        let bytes_max = 3 * large.bytes() + 1;
        let mut all: Vec<_> =
            (0..3).map(|_| encoders.open(large, None, bytes_max).expect("room")).collect();
        assert_eq!(encoders.open(large, None, bytes_max).err(), Some(Passed::Busy));
        assert_eq!(encoders.bytes.load(Ordering::Relaxed), 3 * large.bytes());
        drop(all.pop());
        let small: Vec<_> = std::iter::from_fn(|| {
            encoders.open(Shape::new(Coding::Zstd, 3, Some(2000)), None, bytes_max).ok()
        })
        .collect();
        assert!(small.len() > 3, "{} beside one less", small.len());
        assert!(encoders.open(large, None, bytes_max).is_err());
        drop(small);
        all.push(encoders.open(large, None, bytes_max).expect("room again"));
        drop(all);
        assert_eq!(encoders.bytes.load(Ordering::Relaxed), 0);
        assert!(encoders.open(large, None, 0).is_err(), "with no memory nothing is compressed");
    }

    /// One client gets at most half; the others share what is left.
    #[test]
    fn one_client_leaves_memory_for_others() {
        let (mut encoders, shape) = (Encoders::default(), Shape::new(Coding::Br, 6, None));
        let bytes_max = 16 * shape.bytes();
        let lane = |last: u8| Some(Lane::of([192, 0, 2, last].into()));
        let fill = |encoders: &mut Encoders, client| {
            std::iter::from_fn(|| encoders.open(shape, client, bytes_max).ok()).collect::<Vec<_>>()
        };
        let first = fill(&mut encoders, lane(1));
        let second = fill(&mut encoders, lane(2));
        let third = fill(&mut encoders, lane(3));
        assert_eq!((first.len(), second.len(), third.len()), (8, 4, 2));
        assert!(
            encoders.is_short(lane(1), bytes_max)
                && encoders.has_room(lane(4), shape.bytes(), bytes_max)
        );
        drop((first, second, third));
        assert_eq!(encoders.bytes.load(Ordering::Relaxed), 0);
        assert_eq!(
            fill(&mut encoders, lane(2)).len(),
            8,
            "what is gone is given back to its client, too"
        );
        assert_eq!(fill(&mut encoders, None).len(), 16, "who nobody knows shares with all");
    }

    #[test]
    fn who_has_nothing_to_do_gives_up_its_memory() {
        let (mut encoders, counters, mut spare) =
            (Encoders::default(), Counters::default(), Spare::default());
        let mut compressing =
            encoders.open(Shape::new(Coding::Gzip, 5, None), None, 1 << 20).expect("room");
        assert!(!compressing.has_idle_memory(), "nothing has come");
        compressing.piece(Piece::Borrowed(&[b'a'; 5000]), &counters, &mut spare);
        assert!(compressing.has_idle_memory() && !compressing.give_up_memory(&counters).is_empty());
        assert!(!compressing.has_idle_memory() && compressing.give_up_memory(&counters).is_empty());
        assert_eq!(encoders.bytes.load(Ordering::Relaxed), 0);
        let out = compressing.piece(Piece::Borrowed(b"more"), &counters, &mut spare).len();
        assert_eq!(out, 4 + 5);
        assert!(compressing.finish(&counters).is_some_and(|end| !end.is_empty()));
    }

    #[test]
    fn what_goes_in_is_counted_as_it_comes_out() {
        let (mut encoders, counters, mut spare) =
            (Encoders::default(), Counters::default(), Spare::default());
        let mut compressing =
            encoders.open(Shape::new(Coding::Gzip, 5, None), None, 1 << 20).expect("room");
        let first = compressing.piece(Piece::Borrowed(&[b'a'; 5000]), &counters, &mut spare).len();
        let rest = compressing.flush(&counters).len();
        assert_eq!((counters.compression_bytes_in.get(), compressing.bytes[0]), (5000, 5000));
        assert_eq!(
            (counters.compression_bytes_out.get(), compressing.bytes[1]),
            ((first + rest) as u64, (first + rest) as u64)
        );
        assert!(first + rest < 200);
        assert!(compressing.out(None, &counters).is_empty());
        assert_eq!(encoders.bytes.load(Ordering::Relaxed), 0, "what is broken needs no memory");
        let more = compressing.piece(Piece::Borrowed(b"more"), &counters, &mut spare);
        assert!(
            more.is_empty()
                && compressing.flush(&counters).is_empty()
                && compressing.finish(&counters).is_none()
        );
    }

    /// The waiting input leaves with the encoder, and counts until that is back.
    #[test]
    fn a_large_answer_goes_away_and_comes_back() {
        let (mut encoders, counters, mut spare) =
            (Encoders::default(), Counters::default(), Spare::default());
        let mut compressing =
            encoders.open(Shape::new(Coding::Gzip, 5, None), None, 1 << 20).expect("room");
        let id = ExchangeId { worker: 0, index: ExchangeKey::NONE, generation: 0 };
        let bytes = vec![b'a'; INLINE_BYTES_MAX as usize];
        compressing.piece(Piece::Borrowed(&bytes), &counters, &mut spare);
        assert!(!compressing.is_large && !compressing.is_busy() && compressing.leave(id).is_none());
        assert!(compressing.piece(Piece::Borrowed(b"b"), &counters, &mut spare).is_empty());
        assert!(compressing.is_large && compressing.is_busy());
        let job = compressing.leave(id).expect("work");
        assert!(compressing.piece(Piece::Borrowed(b"cd"), &counters, &mut spare).is_empty());
        assert_eq!((job.bytes(), compressing.coding_bytes()), (1, 3));
        assert!(
            compressing.leave(id).is_none() && compressing.finish(&counters).is_none(),
            "it is away"
        );
        compressing.place = Place::Away(1);
        assert!(!compressing.come_back(*job.run(), &counters).is_empty());
        assert_eq!(compressing.coding_bytes(), 2);
        compressing.end = Some(Vec::new());
        let last = compressing.leave(id).expect("work").run();
        assert!(!compressing.come_back(*last, &counters).is_empty() && !compressing.is_busy());
        assert!(compressing.finish(&counters).is_some_and(|rest| rest.is_empty()));
        assert_eq!(encoders.bytes.load(Ordering::Relaxed), 0);
        assert_eq!(counters.compression_bytes_in.get(), INLINE_BYTES_MAX + 3);
    }
}
