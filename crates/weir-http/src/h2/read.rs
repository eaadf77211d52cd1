//! Bytes to frames: where a connection is in what it receives, and which frame may come next (RFC
//! 9113 §3.4, §4.1, §4.3, §6.10).
//!
//! DATA is passed on as it comes. Of all other frames the whole payload is needed: it is read in
//! place when it is in one piece of input, else gathered in `Mux::block`, as are header blocks of
//! several frames. Invariant: `block` is empty unless a frame or a header block is incomplete.
//! Bounds: a payload of [`FRAME_BYTES_MAX`](super::frame::FRAME_BYTES_MAX), header blocks as in
//! `receive.rs`. A cut-off input gives the same results as the whole one, up to the cut.

use super::PREFACE;
use super::budget::Cost;
use super::error::{Code, Failure};
use super::event::{Event, Request, Turn};
use super::frame::{ACK, FrameHead, HEAD_BYTES, Kind};
use super::heads::Heads;
use super::mux::Mux;
use crate::request::RequestHead;
use crate::request_error::RequestError;

/// Where a connection is in reading.
#[derive(Debug)]
pub(super) struct Reader {
    phase: Phase,
    /// The first bytes of a frame, `have` of them.
    head: [u8; HEAD_BYTES],
    /// Bytes of the preface or of the head that have come.
    have: u8,
    /// The frame whose payload is read.
    pub(super) frame: FrameHead,
    /// Bytes of its payload that have not come.
    pub(super) left: u32,
    /// No part of it was processed yet.
    fresh: bool,
    /// DATA: how its payload is treated.
    pub(super) data: Data,
    /// Frames that have begun, those of a header block counted once; it wraps.
    begun: u32,
    /// The client's settings have begun to come.
    greeted: bool,
    /// A header block that is not complete.
    pub(super) open_block: Option<OpenBlock>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Preface,
    Head,
    Payload,
}

/// How the payload of a DATA frame is treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Data {
    /// The length of its padding comes first.
    Padded,
    /// Body, followed by this many bytes of padding.
    Body(u32),
    /// It is discarded.
    Dropped,
}

/// A header block whose end has not come. Only CONTINUATION of its stream may come now.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenBlock {
    pub(super) stream: u32,
    pub(super) end_stream: bool,
    /// It depends on itself, in the priorities of RFC 7540.
    pub(super) odd_priority: bool,
    /// CONTINUATION frames so far.
    pub(super) frames: u8,
    /// Bytes in `Mux::block` in front of the frame that is read.
    pub(super) gathered: usize,
}

impl Default for Reader {
    fn default() -> Reader {
        Reader {
            phase: Phase::Preface,
            head: [0; HEAD_BYTES],
            have: 0,
            frame: FrameHead { length: 0, kind: Kind::Data, flags: 0, stream: 0 },
            left: 0,
            fresh: false,
            data: Data::Dropped,
            begun: 0,
            greeted: false,
            open_block: None,
        }
    }
}

impl Reader {
    pub(super) fn is_incomplete(&self) -> bool {
        self.phase != Phase::Head || self.have > 0 || self.open_block.is_some() || !self.greeted
    }

    /// Returns the number of complete frames and header blocks; it wraps.
    pub(super) fn completed(&self) -> u32 {
        let is_open = self.phase == Phase::Payload || self.open_block.is_some();
        self.begun.wrapping_sub(u32::from(is_open))
    }

    pub(super) fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// A piece of a body is read.
    pub(super) fn is_in_data(&self) -> bool {
        self.pending().is_some_and(|frame| frame.kind == Kind::Data)
    }

    /// The frame whose payload is read.
    pub(super) fn pending(&self) -> Option<FrameHead> {
        (self.phase == Phase::Payload).then_some(self.frame)
    }
}

/// The meaning of a part of the input.
pub(super) enum Made {
    /// Nothing: more input is needed.
    Nothing,
    /// Something that the caller need not know.
    Progress,
    Step(Step),
}

/// An [`Event`] that borrows nothing yet.
pub(super) enum Step {
    Request { stream: u32, head: RequestHead, end: bool },
    Refused { stream: u32, error: RequestError },
    Broken { stream: u32, tag: u64, error: RequestError },
    Data { stream: u32, tag: u64, from: usize, to: usize, end: bool },
    Reset { stream: u32, tag: u64, code: Code, by_client: bool },
    Leaving { code: Code },
}

/// A complete payload.
#[derive(Clone, Copy)]
enum Payload<'a> {
    /// In the input.
    Here(&'a [u8]),
    /// At the end of `Mux::block`.
    Gathered,
}

impl Mux {
    /// Reads on from the turn's position, to the next event. None: the input is used up, or reading
    /// is [blocked](Mux::blocked); the caller keeps the unconsumed bytes then. Call it until it
    /// returns None. `heads` is working memory; one for all connections of a thread is enough.
    ///
    /// # Errors
    /// The client is at fault and the connection over: write the pending output, and close. Every
    /// later call returns the same.
    pub fn read<'e, 'a: 'e>(
        &mut self,
        turn: &mut Turn<'a>,
        heads: &'e mut Heads,
    ) -> Result<Option<Event<'e>>, Failure> {
        let step = match (Reading { mux: self, turn, heads }).step() {
            Ok(Some(step)) => step,
            Ok(None) => return Ok(None),
            Err(failure) => return Err(self.fail(failure.code, failure.why)),
        };
        let input = turn.input;
        Ok(Some(match step {
            Step::Request { stream, head, end } => {
                let request = Request { head, text: heads.text(), fields: heads.fields() };
                Event::Request { stream, request, end }
            }
            Step::Refused { stream, error } => Event::Refused { stream, error, line: heads.line() },
            Step::Broken { stream, tag, error } => Event::Broken { stream, tag, error },
            Step::Data { stream, tag, from, to, end } => {
                Event::Data { stream, tag, bytes: &input[from..to], end }
            }
            Step::Reset { stream, tag, code, by_client } => {
                Event::Reset { stream, tag, code, by_client }
            }
            Step::Leaving { code } => Event::Leaving { code },
        }))
    }
}

/// A connection while it reads.
pub(super) struct Reading<'m, 'a> {
    pub(super) mux: &'m mut Mux,
    pub(super) turn: &'m mut Turn<'a>,
    pub(super) heads: &'m mut Heads,
}

impl<'a> Reading<'_, 'a> {
    fn step(&mut self) -> Result<Option<Step>, Failure> {
        self.mux.budget.expire(self.turn.now_us);
        loop {
            if let Some(failure) = self.mux.failure() {
                return Err(failure);
            }
            if self.mux.blocked().is_some() {
                return Ok(None);
            }
            let made = match self.mux.reader.phase {
                Phase::Preface => self.read_preface()?,
                Phase::Head => self.read_head()?,
                Phase::Payload => self.read_payload()?,
            };
            match made {
                Made::Nothing => return Ok(None),
                Made::Progress => {}
                Made::Step(step) => return Ok(Some(step)),
            }
        }
    }

    fn read_preface(&mut self) -> Result<Made, Failure> {
        let (reader, rest) = (&mut self.mux.reader, &self.turn.input[self.turn.at..]);
        let expected = &PREFACE[usize::from(reader.have)..];
        let taken = expected.len().min(rest.len());
        if rest[..taken] != expected[..taken] {
            return Err(Failure { code: Code::ProtocolError, why: "no preface of HTTP/2" });
        }
        self.turn.at += taken;
        reader.have += taken as u8;
        if taken < expected.len() {
            return Ok(Made::Nothing);
        }
        (reader.phase, reader.have) = (Phase::Head, 0);
        Ok(Made::Progress)
    }

    fn read_head(&mut self) -> Result<Made, Failure> {
        let (reader, rest) = (&mut self.mux.reader, &self.turn.input[self.turn.at..]);
        let have = usize::from(reader.have);
        let taken = rest.len().min(HEAD_BYTES - have);
        reader.head[have..have + taken].copy_from_slice(&rest[..taken]);
        self.turn.at += taken;
        reader.have += taken as u8;
        if usize::from(reader.have) < HEAD_BYTES {
            return Ok(Made::Nothing);
        }
        let frame = FrameHead::parse(&reader.head);
        frame.check()?;
        reader.may_come(&frame)?;
        if frame.kind != Kind::Continuation {
            reader.begun = reader.begun.wrapping_add(1);
        }
        (reader.phase, reader.have) = (Phase::Payload, 0);
        (reader.frame, reader.left, reader.fresh) = (frame, frame.length, true);
        Ok(Made::Progress)
    }

    fn read_payload(&mut self) -> Result<Made, Failure> {
        if std::mem::take(&mut self.mux.reader.fresh)
            && let Some(step) = self.begin_frame()?
        {
            return Ok(Made::Step(step));
        }
        match self.mux.reader.frame.kind {
            Kind::Data => self.read_data(),
            Kind::Unknown(_) => Ok(self.skip()),
            _ => match self.payload() {
                None => Ok(Made::Nothing),
                Some(payload) => {
                    self.mux.reader.phase = Phase::Head;
                    let step = self.take_frame(payload)?;
                    Ok(step.map_or(Made::Progress, Made::Step))
                }
            },
        }
    }

    /// Makes the checks that are possible before the payload. A step: the stream is at fault.
    fn begin_frame(&mut self) -> Result<Option<Step>, Failure> {
        match self.mux.reader.frame.kind {
            Kind::Data => return self.begin_data(),
            Kind::Continuation => self.begin_continuation()?,
            Kind::Unknown(_) => self.chatter(Cost::Small)?,
            _ => {}
        }
        Ok(None)
    }

    /// Skips the received part of the payload.
    pub(super) fn skip(&mut self) -> Made {
        let taken = (self.turn.input.len() - self.turn.at).min(self.mux.reader.left as usize);
        self.turn.at += taken;
        self.mux.reader.left -= taken as u32;
        self.after_part()
    }

    /// A part of a payload that need not be complete was read.
    pub(super) fn after_part(&mut self) -> Made {
        if self.mux.reader.left > 0 {
            return Made::Nothing;
        }
        self.mux.reader.phase = Phase::Head;
        Made::Progress
    }

    /// The payload of a DATA frame is read: the next thing is a frame.
    pub(super) fn end_frame(&mut self) {
        debug_assert_eq!(self.mux.reader.left, 0);
        self.mux.reader.phase = Phase::Head;
    }

    /// The payload, when all of it is there.
    fn payload(&mut self) -> Option<Payload<'a>> {
        let (input, needed) = (self.turn.input, self.mux.reader.left as usize);
        let rest = &input[self.turn.at..];
        let gathered = self.mux.reader.open_block.map_or(0, |block| block.gathered);
        if self.mux.block.len() == gathered && rest.len() >= needed {
            self.turn.at += needed;
            self.mux.reader.left = 0;
            return Some(Payload::Here(&rest[..needed]));
        }
        let taken = rest.len().min(needed);
        self.mux.block.extend_from_slice(&rest[..taken]);
        self.turn.at += taken;
        self.mux.reader.left -= taken as u32;
        (taken == needed).then_some(Payload::Gathered)
    }

    /// A frame other than DATA is complete.
    fn take_frame(&mut self, payload: Payload<'_>) -> Result<Option<Step>, Failure> {
        if self.mux.reader.frame.kind == Kind::Continuation {
            if let Payload::Here(fragment) = payload {
                self.mux.block.extend_from_slice(fragment);
            }
            return self.take_continuation();
        }
        match payload {
            Payload::Here(payload) => self.take_payload(payload),
            Payload::Gathered => {
                let payload = std::mem::take(&mut self.mux.block);
                self.take_payload(&payload)
            }
        }
    }

    fn take_payload(&mut self, payload: &[u8]) -> Result<Option<Step>, Failure> {
        match self.mux.reader.frame.kind {
            Kind::Headers => self.take_headers(payload),
            _ => self.take_control(payload),
        }
    }
}

impl Reader {
    /// Checks that this frame may come now.
    fn may_come(&mut self, frame: &FrameHead) -> Result<(), Failure> {
        let fault = |why| Err(Failure { code: Code::ProtocolError, why });
        // RFC 9113 §3.4
        if !self.greeted {
            if frame.kind != Kind::Settings || frame.has(ACK) {
                return fault("the first frame is not SETTINGS");
            }
            self.greeted = true;
        }
        // RFC 9113 §4.3, §6.10
        match (&self.open_block, frame.kind) {
            (Some(block), Kind::Continuation) if block.stream == frame.stream => Ok(()),
            (Some(_), _) => fault("a header block was interrupted"),
            (None, Kind::Continuation) => fault("CONTINUATION without a header block"),
            (None, _) => Ok(()),
        }
    }
}
