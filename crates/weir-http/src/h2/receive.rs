//! Requests and their bodies: HEADERS, CONTINUATION and DATA (RFC 9113 §5.1, §6.1, §6.2, §6.9,
//! §6.10, §8.1).
//!
//! A header block is always decoded, whatever happens to its stream: later blocks depend on it. A
//! DATA frame is charged with all its bytes to both windows when its head has come. The
//! connection's bytes are given back when they are worth a frame, whatever is kept, so that unread
//! uploads don't stop the others. Bounds: [`CONTINUATIONS_MAX`] frames a block, and the head limit
//! in bytes; at most a window of each stream's body is kept, which may have grown (`growth.rs`).

use super::budget::Cost;
use super::error::{Code, Failure};
use super::event::Turn;
use super::frame::{
    self, END_HEADERS, END_STREAM, FRAME_BYTES_MAX, FrameHead, HEAD_BYTES, Kind, PADDED,
};
use super::glitch::Glitch;
use super::heads::{Heads, Outcome};
use super::hpack::HpackError;
use super::limits::Limits;
use super::mux::Going;
use super::read::{Data, Made, OpenBlock, Reading, Step};
use super::stream::{Answer, Stream};
use crate::request::{RequestBody, RequestHead};
use crate::request_error::RequestError;

/// CONTINUATION frames of a header block (CVE-2024-27316). An ordinary head needs none.
const CONTINUATIONS_MAX: u8 = 8;

/// A complete header block.
struct Block<'a> {
    bytes: &'a [u8],
    stream: u32,
    end_stream: bool,
    odd_priority: bool,
}

impl Reading<'_, '_> {
    // ---- header blocks ----

    /// A HEADERS frame is complete.
    pub(super) fn take_headers(&mut self, payload: &[u8]) -> Result<Option<Step>, Failure> {
        let frame = self.mux.reader.frame;
        if frame.stream.is_multiple_of(2) {
            return Err(Failure {
                code: Code::ProtocolError,
                why: "a client's stream has an even number",
            });
        }
        let (bytes, odd_priority) = frame::fragment(&frame, payload)?;
        let (stream, end_stream) = (frame.stream, frame.has(END_STREAM));
        if frame.has(END_HEADERS) {
            return self.take_block(&Block { bytes, stream, end_stream, odd_priority });
        }
        if bytes.is_empty() {
            self.empty_frame()?;
        }
        self.mux.glitch(Glitch::Continuation);
        self.mux.block = bytes.to_vec();
        let gathered = self.mux.block.len();
        self.mux.reader.open_block =
            Some(OpenBlock { stream, end_stream, odd_priority, frames: 0, gathered });
        self.block_fits(self.turn.limits)?;
        Ok(None)
    }

    /// The head of a CONTINUATION frame has come.
    pub(super) fn begin_continuation(&mut self) -> Result<(), Failure> {
        let frame = self.mux.reader.frame;
        if frame.length == 0 {
            self.empty_frame()?;
        }
        let Some(block) = &mut self.mux.reader.open_block else { return Ok(()) };
        block.frames += 1;
        if block.frames > CONTINUATIONS_MAX {
            return Err(Failure {
                code: Code::EnhanceYourCalm,
                why: "a header block in too many frames",
            });
        }
        Ok(())
    }

    /// A CONTINUATION frame is complete and at the end of the gathered block.
    pub(super) fn take_continuation(&mut self) -> Result<Option<Step>, Failure> {
        self.block_fits(self.turn.limits)?;
        let gathered = self.mux.block.len();
        let Some(open) = &mut self.mux.reader.open_block else { return Ok(None) };
        open.gathered = gathered;
        if !self.mux.reader.frame.has(END_HEADERS) {
            return Ok(None);
        }
        let OpenBlock { stream, end_stream, odd_priority, .. } = *open;
        self.mux.reader.open_block = None;
        let bytes = std::mem::take(&mut self.mux.block);
        self.take_block(&Block { bytes: &bytes, stream, end_stream, odd_priority })
    }

    /// Checks the size: a block that is too large for any allowed head is not gathered to its end.
    fn block_fits(&self, limits: &Limits) -> Result<(), Failure> {
        let bytes_max = limits.head.head_max().max(FRAME_BYTES_MAX as usize);
        if self.mux.block.len() > bytes_max {
            return Err(Failure {
                code: Code::EnhanceYourCalm,
                why: "a header block is too large",
            });
        }
        Ok(())
    }

    /// A header block is complete: a request, trailers, or a block that is ignored.
    fn take_block(&mut self, block: &Block<'_>) -> Result<Option<Step>, Failure> {
        let id = block.stream;
        if id > self.mux.last {
            return self.take_request(block);
        }
        let well_formed = self
            .heads
            .trailers(&mut self.mux.decoder, block.bytes, self.turn.limits)
            .map_err(unreadable)?;
        let Some(stream) = self.mux.streams.find(id) else {
            self.closed_stream()?;
            let passes = self.passes_over(id);
            let failure =
                Failure { code: Code::StreamClosed, why: "HEADERS for a stream that is closed" };
            return if passes { Ok(None) } else { Err(failure) };
        };
        if stream.received {
            return self.stream_error(id, Code::StreamClosed);
        }
        if block.odd_priority {
            return self.stream_error(id, Code::ProtocolError);
        }
        if !well_formed || !block.end_stream {
            return self.body_fault(id, RequestError::TrailersInvalid, block.end_stream);
        }
        if stream.length_left.is_some_and(|left| left > 0) {
            return self.body_fault(id, RequestError::LengthDiffers, true);
        }
        self.mux.glitch(Glitch::TrailerDropped);
        Ok(self.end_body(id, self.turn.at, self.turn.at))
    }

    /// A block that opens a stream.
    fn take_request(&mut self, block: &Block<'_>) -> Result<Option<Step>, Failure> {
        let (id, end) = (block.stream, block.end_stream);
        self.mux.last = id;
        self.mux.opened += 1;
        let outcome = self
            .heads
            .request(&mut self.mux.decoder, block.bytes, end, self.turn.limits)
            .map_err(unreadable)?;
        if self.is_left(id) {
            self.closed_stream()?;
            return Ok(None);
        }
        self.mux.budget.request();
        if self.mux.opened >= self.turn.limits.requests_max {
            self.mux.drain(self.turn.now_us);
        }
        if self.mux.streams.len() as u32 >= self.mux.streams_max {
            self.mux.glitch(Glitch::Refused);
            self.mux.recent.add(id);
            frame::put_reset(&mut self.mux.out, id, Code::RefusedStream);
            self.mux.budget.reset_early(self.turn.now_us)?;
            return Ok(None);
        }
        if block.odd_priority {
            self.mux.glitch(Glitch::Malformed);
            return self.stream_error(id, Code::ProtocolError);
        }
        if matches!(outcome, Outcome::Malformed(_)) {
            self.mux.glitch(Glitch::Malformed);
            self.mux.budget.forced_reset()?;
        }
        if is_doomed(id, self.turn, self.heads) {
            self.mux.glitch(Glitch::ResetEarly);
            self.mux.recent.add(id);
            self.mux.budget.reset_early(self.turn.now_us)?;
            return Ok(None);
        }
        let mut stream = Stream::new(id, end, self.mux.receiving.stream_initial);
        let step = match outcome {
            Outcome::Request(head, priority) => {
                stream.priority = priority;
                stream.length_left = length(&head);
                Step::Request { stream: id, head, end }
            }
            Outcome::Refused(error) | Outcome::Malformed(error) => {
                stream.ignored = true;
                Step::Refused { stream: id, error }
            }
        };
        self.mux.streams.add(stream);
        Ok(Some(step))
    }

    /// Whether streams with this number are no longer accepted.
    pub(super) fn is_left(&self, id: u32) -> bool {
        matches!(self.mux.going, Going::Left(last) if id > last)
    }

    fn empty_frame(&mut self) -> Result<(), Failure> {
        self.mux.glitch(Glitch::EmptyFrame);
        self.chatter(Cost::Large)
    }

    // ---- bodies ----

    /// The head of a DATA frame has come. A step: the stream is at fault.
    pub(super) fn begin_data(&mut self) -> Result<Option<Step>, Failure> {
        let frame = self.mux.reader.frame;
        let (id, bytes) = (frame.stream, frame.length);
        self.not_idle(id)?;
        self.mux.reader.data = Data::Dropped;
        self.mux.receiving.window -= i64::from(bytes);
        if self.mux.receiving.window < 0 {
            return Err(Failure {
                code: Code::FlowControlError,
                why: "more DATA than the connection's window",
            });
        }
        self.mux.give_back_connection();
        if bytes == 0 && frame.has(PADDED) {
            return Err(Failure {
                code: Code::FrameSizeError,
                why: "a padded frame without the length of its padding",
            });
        }
        if bytes == 0 && !frame.has(END_STREAM) {
            self.empty_frame()?;
        }
        let Some(stream) = self.mux.streams.find_mut(id) else {
            if self.passes_over(id) {
                // After its end nothing more is expected.
                if frame.has(END_STREAM) {
                    self.mux.recent.remove(id);
                } else if self.mux.recent.take_unended(id) {
                    frame::put_reset(&mut self.mux.out, id, Code::NoError);
                }
                return Ok(None);
            }
            return Err(Failure {
                code: Code::StreamClosed,
                why: "DATA for a stream that is closed",
            });
        };
        if stream.received {
            return self.stream_error(id, Code::StreamClosed);
        }
        stream.window -= i64::from(bytes);
        if stream.window < 0 {
            return self.stream_error(id, Code::FlowControlError);
        }
        self.mux.budget.received(bytes);
        if frame.has(PADDED) {
            self.mux.reader.data = Data::Padded;
            return Ok(None);
        }
        self.begin_body(0)
    }

    /// The padding of a DATA frame is known: its body begins. RFC 9113 §8.1.1: it has to be as long
    /// as announced.
    fn begin_body(&mut self, padding: u32) -> Result<Option<Step>, Failure> {
        let (id, end) = (self.mux.reader.frame.stream, self.mux.reader.frame.has(END_STREAM));
        let bytes = u64::from(self.mux.reader.left - padding);
        self.mux.reader.data = Data::Dropped;
        let Some(stream) = self.mux.streams.find_mut(id) else { return Ok(None) };
        if let Some(left) = &mut stream.length_left
            && !frame::fits_length(left, bytes, end)
        {
            return self.body_fault(id, RequestError::LengthDiffers, end);
        }
        self.mux.reader.data = Data::Body(padding);
        Ok(None)
    }

    /// The body of a request does not match its head, which its client pays for. It gets a response
    /// if none has begun. `end`: no more of it comes after this frame.
    fn body_fault(
        &mut self,
        id: u32,
        error: RequestError,
        end: bool,
    ) -> Result<Option<Step>, Failure> {
        let Some(stream) = self.mux.streams.find_mut(id) else { return Ok(None) };
        if stream.answer != Answer::Awaited || stream.ignored {
            return self.stream_error(id, Code::ProtocolError);
        }
        (stream.ignored, stream.received, stream.length_left) = (true, end, None);
        let tag = stream.tag;
        self.mux.glitch(Glitch::Malformed);
        self.mux.budget.forced_reset()?;
        Ok(Some(Step::Broken { stream: id, tag, error }))
    }

    /// Reads the received part of the payload of a DATA frame.
    pub(super) fn read_data(&mut self) -> Result<Made, Failure> {
        match self.mux.reader.data {
            Data::Dropped => Ok(self.skip()),
            Data::Padded => {
                let Some(&padding) = self.turn.input.get(self.turn.at) else {
                    return Ok(Made::Nothing);
                };
                self.turn.at += 1;
                self.mux.reader.left -= 1;
                if u32::from(padding) > self.mux.reader.left {
                    return Err(Failure {
                        code: Code::ProtocolError,
                        why: "more padding than there is frame",
                    });
                }
                self.mux.credit(self.mux.reader.frame.stream, 1 + u32::from(padding));
                let step = self.begin_body(u32::from(padding))?;
                Ok(step.map_or(Made::Progress, Made::Step))
            }
            Data::Body(padding) => Ok(self.read_body(padding)),
        }
    }

    fn read_body(&mut self, padding: u32) -> Made {
        let id = self.mux.reader.frame.stream;
        let Some(stream) = self.mux.streams.find_mut(id) else { return self.skip() };
        let available = (self.turn.input.len() - self.turn.at).min(self.mux.reader.left as usize);
        let body =
            available.min((self.mux.reader.left - padding.min(self.mux.reader.left)) as usize);
        let (from, to) = (self.turn.at, self.turn.at + body);
        self.turn.at += available;
        self.mux.reader.left -= available as u32;
        self.mux.reader.data = Data::Body(padding.min(self.mux.reader.left));
        let told = if stream.ignored { 0 } else { body as u32 };
        stream.hold(told);
        let tag = stream.tag;
        if self.mux.reader.left == 0 {
            self.end_frame();
            if self.mux.reader.frame.has(END_STREAM) {
                return self.end_body(id, from, to).map_or(Made::Progress, Made::Step);
            }
        }
        match (told, self.mux.reader.left) {
            (0, 0) => Made::Progress,
            (0, _) => Made::Nothing,
            _ => Made::Step(Step::Data { stream: id, tag, from, to, end: false }),
        }
    }

    /// A request's body is complete; its last bytes are those of the input from `from` to `to`.
    /// None: the body is ignored.
    fn end_body(&mut self, id: u32, from: usize, to: usize) -> Option<Step> {
        let stream = self.mux.streams.find_mut(id)?;
        stream.received = true;
        let tag = stream.tag;
        (!stream.ignored).then_some(Step::Data { stream: id, tag, from, to, end: true })
    }
}

/// Returns the announced length of a body, if any.
fn length(head: &RequestHead) -> Option<u64> {
    match head.body {
        RequestBody::Length(length) => Some(length),
        _ => None,
    }
}

fn unreadable(error: HpackError) -> Failure {
    let code =
        if error == HpackError::Stopped { Code::EnhanceYourCalm } else { Code::CompressionError };
    Failure { code, why: error.word() }
}

/// Whether the stream that has just begun is reset later in the same input: such a request never
/// reaches a server. The rest of the input is searched once, by the heads of its frames.
fn is_doomed(id: u32, turn: &mut Turn<'_>, heads: &mut Heads) -> bool {
    if !std::mem::replace(&mut turn.searched, true) {
        heads.doomed.clear();
        let mut rest = &turn.input[turn.at..];
        while let Some((head, behind)) = rest.split_first_chunk::<HEAD_BYTES>() {
            let head = FrameHead::parse(head);
            if head.kind == Kind::RstStream {
                heads.doomed.push(head.stream);
            }
            rest = behind.get(head.length as usize..).unwrap_or_default();
        }
        heads.doomed.sort_unstable();
    }
    heads.doomed.binary_search(&id).is_ok()
}
