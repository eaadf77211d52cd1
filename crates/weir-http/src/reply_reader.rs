//! The responses of one connection, one after the other: interim and final heads, bodies, ends
//! (RFC 9112 §6, §9.3).
//!
//! Called with received bytes by all readers of responses. It knows how responses are framed and
//! nothing of the requests: the caller knows which request a response belongs to, and what may be
//! doubted about it. Body bytes are not copied but named by position. Bounds: [`Limits`] for a head
//! and for the held part of it, [`BodyReader`] for a body; interim responses are not counted.

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
    /// The input is used up except for the beginning of a head: that must precede the next input.
    More,
    /// The head of an interim or of a final reply; its spans count from where it begins.
    Head(ReplyHead),
    /// `input[start..end]` is body, or bytes after a change of protocol. `start < end`.
    Data {
        /// First byte.
        start: usize,
        /// One past the last.
        end: usize,
    },
    /// The reply is complete.
    End,
}

/// Why a response can't be read further. The sender is at fault; nothing after the fault may be
/// used.
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

/// The position in a response.
#[derive(Clone, Debug, Default)]
enum Stage {
    #[default]
    Head,
    Body(BodyReader),
    /// Another protocol follows: no response ends any more.
    Switched,
}

/// State of one connection. The default is for a reader that passes responses on,
/// [`ReplyReader::judging`] for one that only judges them.
///
/// ```text
///  +-1xx-+
///  v     |
/// Head --+--final--> Body: Data ... End --begin_reply--> Head
///   \---101, switch--> Switched: Data ...
/// ```
///
/// Invariants: `searching` and `held` belong to an incomplete head, or `held` to bytes that the
/// caller has not looked at; with `judges` nothing is searched.
#[derive(Clone, Debug, Default)]
pub struct ReplyReader {
    stage: Stage,
    /// How far an incomplete head was searched for its end; meaningless unless `searching`.
    scan: HeadScan,
    searching: bool,
    judges: bool,
    /// Unconsumed bytes of earlier input. Empty: none.
    held: Vec<u8>,
}

impl ReplyReader {
    /// Makes a reader that judges a server and keeps nothing. It finds a fault as soon as its byte
    /// is there, because a head in pieces is parsed again with each piece, which costs their number
    /// squared. Trailers that are not allowed are faults (RFC 9110 §6.5.1). The default looks at
    /// each byte of a head a bounded number of times (docs/hostile-requests.md B10). So it finds a
    /// fault in pieces only when the head is complete, and drops such trailers.
    pub fn judging() -> Self {
        Self { judges: true, ..Self::default() }
    }

    /// Reads on from `input[*at..]` and moves `at` past the consumed bytes. Call it until it
    /// returns [`ReplyPart::More`], then with the rest of the input followed by more. `context` is
    /// of the request that this response belongs to; `fields` is overwritten with each head. When
    /// the response is complete it returns [`ReplyPart::End`] each time, until
    /// [`ReplyReader::begin_reply`].
    ///
    /// # Errors
    /// The sender is at fault; earlier results remain valid.
    ///
    /// # Panics
    /// `at` is past the end of `input`.
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

    /// Does the same as [`ReplyReader::read`] for a caller that has seen that
    /// [a head is next](ReplyReader::awaits_head); None: more is needed.
    ///
    /// # Errors
    /// The sender is at fault.
    ///
    /// # Panics
    /// `at` is past the end of `input`.
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

    /// Does the same as [`ReplyReader::read`] for a caller that has seen that no head is next.
    ///
    /// # Errors
    /// The sender is at fault.
    ///
    /// # Panics
    /// `at` is past the end of `input`.
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

    /// Begins the next response, whatever the state of the previous one.
    #[inline]
    pub fn begin_reply(&mut self) {
        self.stage = Stage::Head;
    }

    /// The bytes that follow are no longer HTTP, without a 101: CONNECT was successful
    /// (RFC 9110 §9.3.6).
    pub fn switch(&mut self) {
        self.stage = Stage::Switched;
    }

    /// Keeps the rest of the input when [`ReplyPart::More`] came, or when the caller stops early.
    pub fn hold(&mut self, rest: &[u8]) {
        debug_assert!(self.held.is_empty());
        self.held.extend_from_slice(rest);
    }

    /// Whether bytes are held.
    #[inline]
    pub fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes the held bytes.
    pub fn take_held(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Returns what to read on: the held bytes followed by `input`; they are no longer held then.
    /// None: that is still the beginning of a head, and all of it is held. So each byte of a head
    /// in pieces is copied once.
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

    /// Whether the response is complete, even if its end has not been reported yet.
    pub fn is_complete(&self) -> bool {
        matches!(&self.stage, Stage::Body(body) if body.is_complete())
    }

    /// The end of the connection is the end of the reply (RFC 9112 §6.3).
    pub fn ends_by_close(&self) -> bool {
        matches!(&self.stage, Stage::Body(body) if body.ends_by_close())
    }

    /// Returns the bytes of body still to come, 0 before a head; None: unknown.
    pub fn body_left(&self) -> Option<u64> {
        match &self.stage {
            Stage::Head => Some(0),
            Stage::Body(body) => body.left(),
            Stage::Switched => None,
        }
    }

    /// Returns the oddities of the body being read, or just read, since the last call.
    #[inline]
    pub fn take_oddities(&mut self) -> Option<BodyOddities> {
        if let Stage::Body(body) = &mut self.stage { body.take_oddities() } else { None }
    }

    /// Trailer lines of a complete reply, as
    /// [`ChunkedDecoder::trailers`](crate::ChunkedDecoder::trailers).
    #[inline]
    pub fn trailers(&self) -> Trailers<'_> {
        if let Stage::Body(body) = &self.stage { body.trailers() } else { Trailers::default() }
    }
}

const _: () = assert!(size_of::<ReplyReader>() <= 80);
