//! The replies of one connection, one after the other: interim and final heads, bodies, ends (RFC 9112 §6, §9.3).
//!
//! Called with received bytes by all who read replies. It knows how they are framed and nothing of who asked: which request a
//! reply answers, and what may be doubted about it, is the caller's. Body bytes are not copied but named by position.
//! Bounds: [`Limits`] for a head and for what is held of it, [`BodyReader`] for a body; interim replies are not counted.

use std::borrow::Cow;
use std::fmt;

use crate::body_reader::{BodyPart, BodyReader};
use crate::chunked::ChunkError;
use crate::field::Fields;
use crate::head_scan::HeadScan;
use crate::limits::Limits;
use crate::oddity::BodyOddities;
use crate::reply::{ReplyBody, ReplyContext, ReplyError, ReplyHead, parse_reply};
use crate::reply_parts::Trailers;

/// What a call of [`ReplyReader::read`] found.
#[derive(Debug)]
pub enum ReplyPart {
    /// The input is used up but for the beginning of a head: that must be there again with what comes next.
    More,
    /// The head of an interim or of a final reply; its spans count from where it begins.
    Head(ReplyHead),
    /// `input[start..end]` is body, or what follows a change of protocol. `start < end`.
    Data {
        /// First byte.
        start: usize,
        /// One past the last.
        end: usize,
    },
    /// The reply is complete.
    End,
}

/// Why a reply can't be read further. The sender is at fault; nothing after the fault may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyFault {
    /// Its head.
    Head(ReplyError),
    /// Its chunked body.
    Body(ChunkError),
}

impl From<ReplyError> for ReplyFault {
    fn from(error: ReplyError) -> Self {
        Self::Head(error)
    }
}

impl From<ChunkError> for ReplyFault {
    fn from(error: ChunkError) -> Self {
        Self::Body(error)
    }
}

impl fmt::Display for ReplyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Head(error) => error.fmt(f),
            Self::Body(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReplyFault {}

/// Where it is in a reply.
#[derive(Clone, Debug, Default)]
enum Stage {
    #[default]
    Head,
    Body(BodyReader),
    /// Another protocol follows: nothing has an end any more.
    Switched,
}

/// State of one connection. The default is for one who passes replies on, [`ReplyReader::judging`] for one who only judges them.
///
/// ```text
///  +-1xx-+
///  v     |
/// Head --+--final--> Body: Data ... End --begin_reply--> Head
///   \---101, switch--> Switched: Data ...
/// ```
///
/// Invariants: `searching` and `held` belong to an incomplete head, or `held` to what the caller has not looked at; with
/// `judges` nothing is searched.
#[derive(Clone, Debug, Default)]
pub struct ReplyReader {
    stage: Stage,
    /// How far an incomplete head was searched for its end; meaningless unless `searching`.
    scan: HeadScan,
    searching: bool,
    judges: bool,
    /// What was not consumed of the input before. Empty: nothing.
    held: Vec<u8>,
}

impl ReplyReader {
    /// For one who judges a server and keeps nothing: a fault is found as soon as its byte is there, because a head in pieces is
    /// parsed anew with each piece, which costs their number squared; and trailers that may not be there are faults (RFC 9110
    /// §6.5.1). The default looks at each byte of a head a bounded number of times (docs/hostile.md B10), so that it finds a fault
    /// in pieces only when the head is complete, and drops such trailers.
    pub fn judging() -> Self {
        Self { judges: true, ..Self::default() }
    }

    /// Reads on from `input[*at..]` and moves `at` behind what was consumed. Call it until it gives [`ReplyPart::More`], then with
    /// what is left of the input and more behind that. `context` is of the request that this reply answers; `fields` is overwritten
    /// with each head. When the reply is complete it gives [`ReplyPart::End`] each time, until [`ReplyReader::begin_reply`].
    ///
    /// # Errors
    /// The sender is at fault; what was found before stands.
    ///
    /// # Panics
    /// `at` is behind the end of `input`.
    pub fn read(
        &mut self,
        input: &[u8],
        at: &mut usize,
        context: ReplyContext,
        limits: &Limits,
        fields: &mut Fields,
    ) -> Result<ReplyPart, ReplyFault> {
        if self.awaits_head() {
            let head = self.read_head(input, at, context, limits, fields)?;
            return Ok(head.map_or(ReplyPart::More, ReplyPart::Head));
        }
        Ok(match self.read_body(input, at)? {
            BodyPart::More => ReplyPart::More,
            BodyPart::Data { start, end } => ReplyPart::Data { start, end },
            BodyPart::End => ReplyPart::End,
        })
    }

    /// [`ReplyReader::read`] for one who has seen that [a head is next](ReplyReader::awaits_head); None: more is needed.
    ///
    /// # Errors
    /// The sender is at fault.
    ///
    /// # Panics
    /// `at` is behind the end of `input`.
    #[inline]
    pub fn read_head(
        &mut self,
        input: &[u8],
        at: &mut usize,
        context: ReplyContext,
        limits: &Limits,
        fields: &mut Fields,
    ) -> Result<Option<ReplyHead>, ReplyError> {
        let rest = &input[*at..];
        if rest.is_empty() || self.searching && self.scan.find_reply(rest, limits)?.is_none() {
            return Ok(None);
        }
        let parsed = parse_reply(rest, limits, context, fields)?;
        let Some(head) = &parsed else {
            if !self.judges {
                self.searching = true;
                self.scan.find_reply(rest, limits)?;
            }
            return Ok(None);
        };
        if self.searching {
            (self.scan, self.searching) = (HeadScan::default(), false);
        }
        *at += head.bytes;
        // Other interim replies are followed by another head (RFC 9110 §15.2).
        if head.status >= 200 {
            self.stage = Stage::Body(self.body_of(head));
        } else if head.status == 101 {
            self.stage = Stage::Switched;
        }
        Ok(parsed)
    }

    /// [`ReplyReader::read`] for one who has seen that no head is next.
    ///
    /// # Errors
    /// The sender is at fault.
    ///
    /// # Panics
    /// `at` is behind the end of `input`.
    #[inline]
    pub fn read_body(&mut self, input: &[u8], at: &mut usize) -> Result<BodyPart, ChunkError> {
        let start = *at;
        match &mut self.stage {
            Stage::Body(body) => body.read(input, at),
            Stage::Switched if start < input.len() => {
                *at = input.len();
                Ok(BodyPart::Data { start, end: *at })
            }
            Stage::Switched | Stage::Head => Ok(BodyPart::More),
        }
    }

    fn body_of(&self, head: &ReplyHead) -> BodyReader {
        match head.body {
            ReplyBody::None => BodyReader::length(0),
            ReplyBody::Length(length) => BodyReader::length(length),
            ReplyBody::Chunked => BodyReader::chunked(!self.judges),
            ReplyBody::UntilClose => BodyReader::until_close(),
        }
    }

    /// The next reply begins, whatever came of the one before.
    #[inline]
    pub fn begin_reply(&mut self) {
        self.stage = Stage::Head;
    }

    /// What follows is no HTTP any more, without a 101: the answer to CONNECT was good (RFC 9110 §9.3.6).
    pub fn switch(&mut self) {
        self.stage = Stage::Switched;
    }

    /// Keeps what was left of the input when [`ReplyPart::More`] came, or when the caller had enough of it.
    pub fn hold(&mut self, rest: &[u8]) {
        debug_assert!(self.held.is_empty());
        self.held.extend_from_slice(rest);
    }

    /// Something is held.
    #[inline]
    pub fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes out what is held.
    pub fn take_held(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// What to read on: `input` behind what is held, which is held no longer. None: that is still the beginning of a head, and all
    /// of it is held. So each byte of a head in pieces is copied once.
    pub fn join<'a>(&mut self, input: &'a [u8], limits: &Limits) -> Option<Cow<'a, [u8]>> {
        if self.held.is_empty() {
            return Some(Cow::Borrowed(input));
        }
        self.held.extend_from_slice(input);
        let waits = self.searching && matches!(self.scan.find_reply(&self.held, limits), Ok(None));
        (!waits).then(|| Cow::Owned(self.take_held()))
    }

    /// A head is next, or the rest of one.
    #[inline]
    pub fn awaits_head(&self) -> bool {
        matches!(self.stage, Stage::Head)
    }

    /// Another protocol follows.
    pub fn is_switched(&self) -> bool {
        matches!(self.stage, Stage::Switched)
    }

    /// The reply is complete, though its end may not have been told yet.
    pub fn is_complete(&self) -> bool {
        matches!(&self.stage, Stage::Body(body) if body.is_complete())
    }

    /// The end of the connection is the end of the reply (RFC 9112 §6.3).
    pub fn ends_by_close(&self) -> bool {
        matches!(&self.stage, Stage::Body(body) if body.ends_by_close())
    }

    /// Bytes of body still to come, 0 before a head; None: nobody knows.
    pub fn body_left(&self) -> Option<u64> {
        match &self.stage {
            Stage::Head => Some(0),
            Stage::Body(body) => body.left(),
            Stage::Switched => None,
        }
    }

    /// What was strange about the body being read, or just read, since this was last called.
    #[inline]
    pub fn take_oddities(&mut self) -> Option<BodyOddities> {
        if let Stage::Body(body) = &mut self.stage { body.take_oddities() } else { None }
    }

    /// Trailer lines of a complete reply, as [`ChunkedDecoder::trailers`](crate::ChunkedDecoder::trailers).
    #[inline]
    pub fn trailers(&self) -> Trailers<'_> {
        if let Stage::Body(body) = &self.stage { body.trailers() } else { Trailers::default() }
    }
}

const _: () = assert!(size_of::<ReplyReader>() <= 80);
