//! One client connection of the origin as a state machine: bytes in, responses out, in order. Knows
//! no sockets.
//!
//! Called by `server.rs`: [`Connection::handle_input`] with what arrived,
//! [`Connection::handle_time`] when a delay is over, then [`Connection::poll_payload`] while
//! nothing is being sent. Calls `plan.rs` for the content of requests, `reply.rs` for bytes, and
//! `badly.rs` when it shall misbehave. Bounds: [`OUT_BYTES_MAX`] of responses not yet sent plus one
//! small response, [`INPUT_BYTES_MAX`] of requests not yet read (then [`Connection::wants_input`]
//! says no). RFC 9112 §2.2, §7.1, §9.3 (persistence, pipelining).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use weir_http::{Chunk, ChunkedDecoder, Fields, HeadScan, Limits, RequestBody, RequestHead};
use weir_io::Payload;

use super::badly::Drip;
use super::burn::{block, burn};
use super::mischief::Mischief;
use super::plan::Plan;
use super::reply::{Answer, Stream};
use super::stats::{OriginStats, ThreadStats};
use super::wanted::{Cost, slowed_us};
use crate::random::Random;

/// Responses that may wait for a send; more pipelined requests wait unread.
const OUT_BYTES_MAX: usize = 256 * 1024;
/// Received bytes that may wait for a delay, a stream, or a full output.
const INPUT_BYTES_MAX: usize = 128 * 1024;

/// What all connections of a thread share; lent for each call.
pub(super) struct Scene<'a> {
    pub(super) limits: &'a Limits,
    pub(super) fields: &'a mut Fields,
    /// `Date: ...` with CRLF.
    pub(super) date_line: &'a [u8],
    pub(super) now_us: u64,
    pub(super) counts: &'a mut OriginStats,
    /// Where other threads read the counts.
    pub(super) told: &'a ThreadStats,
    /// Totals over all threads, for `/__stats`.
    pub(super) totals: &'a dyn Fn() -> OriginStats,
    /// The misbehaviours, if any.
    pub(super) mischief: Option<&'a Mischief>,
    /// Receives the first line of each request, if anything does.
    pub(super) lines: Option<&'a mut Vec<u8>>,
    /// The source of everything random.
    pub(super) random: &'a mut Random,
    /// Delayed replies under way that have a `beyond`, over all threads.
    pub(super) at_work: &'a Arc<AtomicU64>,
}

/// One of the delayed replies that slow each other down; it is over when this is dropped.
#[derive(Debug)]
struct AtWork(Arc<AtomicU64>);

impl AtWork {
    /// Counts one more; returns it with their number including it.
    fn begin(all: &Arc<AtomicU64>) -> (AtWork, u64) {
        (AtWork(Arc::clone(all)), all.fetch_add(1, Relaxed) + 1)
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Where the connection is in the current request.
#[derive(Debug)]
pub(super) enum Stage {
    /// Between requests or inside a head.
    Head,
    /// Inside a body with this many bytes to come.
    Sized(Plan, u64),
    /// Inside a chunked body.
    Chunked(Plan, ChunkedDecoder),
    /// The response is due at this time.
    Delayed(Answer, u64),
    /// The response's body is being sent.
    Streaming(Stream),
    /// Input is read and never answered.
    Mute,
    /// Nothing more is read; the connection closes when everything is sent.
    Closing,
}

/// The machine.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stage: Stage,
    /// Received and not yet consumed: part of a head, or bytes that wait for a delay or stream.
    input: Vec<u8>,
    /// Looks for the end of a head that came in pieces.
    scan: Option<HeadScan>,
    pub(super) out: Vec<u8>,
    /// The client sends nothing more.
    ended: bool,
    /// Where to continue after the stream, if not at the next head.
    pub(super) after: Option<Box<Stage>>,
    /// The output is sent in this way.
    pub(super) drip: Option<Drip>,
    /// The connection ends by a reset.
    pub(super) resets: bool,
    /// Responses so far; counted only when it may misbehave.
    pub(super) answers: u64,
    /// Its delayed response slows others down.
    at_work: Option<AtWork>,
}

impl Connection {
    /// A connection without a byte; `out` is an empty buffer to reuse.
    pub(super) fn new(out: Vec<u8>) -> Connection {
        Connection {
            stage: Stage::Head,
            input: Vec::new(),
            scan: None,
            out,
            ended: false,
            after: None,
            drip: None,
            resets: false,
            answers: 0,
            at_work: None,
        }
    }

    /// Takes received bytes. Responses that are ready wait for [`Connection::poll_payload`].
    pub(super) fn handle_input(&mut self, scene: &mut Scene<'_>, bytes: &[u8]) {
        if self.input.is_empty() {
            let consumed = self.advance(scene, bytes);
            self.input.extend_from_slice(&bytes[consumed..]);
        } else {
            self.input.extend_from_slice(bytes);
            self.resume(scene);
        }
    }

    /// The client sends nothing more: its requests are still answered.
    pub(super) fn handle_end(&mut self) {
        self.ended = true;
        if matches!(self.stage, Stage::Sized(..) | Stage::Chunked(..)) {
            self.stage = Stage::Closing;
        }
    }

    /// Checks whether a delayed response is due.
    pub(super) fn handle_time(&mut self, scene: &mut Scene<'_>) {
        if !matches!(self.stage, Stage::Delayed(_, due_us) if due_us <= scene.now_us) {
            return;
        }
        self.at_work = None;
        if let Stage::Delayed(answer, _) = std::mem::replace(&mut self.stage, Stage::Head) {
            self.write(&answer, scene);
        }
        self.resume(scene);
    }

    /// The previous payload is sent: pipelined requests that waited for room are answered.
    pub(super) fn handle_sent(&mut self, scene: &mut Scene<'_>) {
        if !self.input.is_empty() {
            self.resume(scene);
        }
    }

    /// Returns when the current response, or its next piece, is due.
    pub(super) fn due_us(&self) -> Option<u64> {
        match self.stage {
            Stage::Delayed(_, due_us) => Some(due_us),
            _ => self.drip.as_ref().map(|drip| drip.due_us),
        }
    }

    /// Whether it ends by a reset once it is over.
    pub(super) fn resets(&self) -> bool {
        self.resets
    }

    /// Whether more may be received now.
    pub(super) fn wants_input(&self) -> bool {
        !self.ended && self.input.len() < INPUT_BYTES_MAX
    }

    /// Whether all requests are answered.
    pub(super) fn rests(&self) -> bool {
        matches!(self.stage, Stage::Head) && self.input.is_empty() && self.out.is_empty()
    }

    /// Whether the client has ended its direction.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether everything is answered and the connection has to end. Call this when nothing is left
    /// to send.
    pub(super) fn is_over(&self) -> bool {
        match self.stage {
            _ if self.drip.is_some() => false,
            Stage::Closing => true,
            Stage::Head | Stage::Mute => self.ended,
            _ => false,
        }
    }

    /// Returns the next bytes to send, all that are ready.
    pub(super) fn poll_payload(
        &mut self,
        spare: &mut Vec<Vec<u8>>,
        now_us: u64,
    ) -> Option<Payload> {
        if self.drip.is_some() {
            return self.poll_drip(now_us);
        }
        if let Stage::Streaming(stream) = &mut self.stage {
            let mut slices = Vec::new();
            if !self.out.is_empty() {
                slices.push(Bytes::from(std::mem::take(&mut self.out)));
            }
            stream.take(&mut slices, u64::MAX);
            self.leave_stream();
            return Some(Payload::Vectored(slices));
        }
        if self.out.is_empty() {
            return None;
        }
        Some(Payload::Owned(std::mem::replace(&mut self.out, spare.pop().unwrap_or_default())))
    }

    /// Returns the next few bytes, when they are due.
    fn poll_drip(&mut self, now_us: u64) -> Option<Payload> {
        let drip = self.drip.as_mut().filter(|drip| drip.due_us <= now_us)?;
        drip.due_us = now_us + drip.pause_us;
        if self.out.is_empty()
            && let Stage::Streaming(stream) = &mut self.stage
        {
            let mut slices = Vec::new();
            stream.take(&mut slices, drip.bytes);
            self.out.extend(slices.into_iter().flatten());
        }
        let length = usize::try_from(drip.bytes).unwrap_or(usize::MAX).min(self.out.len());
        let piece = self.out.drain(..length).collect();
        self.leave_stream();
        if self.out.is_empty() && !matches!(self.stage, Stage::Streaming(_)) {
            self.drip = None;
        }
        Some(Payload::Owned(piece))
    }

    /// Continues after a stream that is done.
    fn leave_stream(&mut self) {
        if let Stage::Streaming(stream) = &self.stage
            && stream.is_done()
        {
            let closes = stream.closes;
            let after = self.after.take().map_or(Stage::Head, |after| *after);
            self.stage = if closes { Stage::Closing } else { after };
        }
    }

    /// Continues with the bytes that waited.
    fn resume(&mut self, scene: &mut Scene<'_>) {
        let input = std::mem::take(&mut self.input);
        let consumed = self.advance(scene, &input);
        self.input = input;
        self.input.drain(..consumed);
    }

    /// Consumes as many requests as may be answered now; returns their length in bytes.
    fn advance(&mut self, scene: &mut Scene<'_>, input: &[u8]) -> usize {
        let mut at = 0;
        while at < input.len() {
            let rest = &input[at..];
            let step = match std::mem::replace(&mut self.stage, Stage::Head) {
                Stage::Head if self.out.len() >= OUT_BYTES_MAX || self.drip.is_some() => 0,
                Stage::Head => self.read_head(scene, rest),
                Stage::Sized(plan, left) => self.read_sized(scene, rest, plan, left),
                Stage::Chunked(plan, decoder) => self.read_chunked(scene, rest, plan, decoder),
                waiting @ (Stage::Delayed(..) | Stage::Streaming(_)) => {
                    self.stage = waiting;
                    0
                }
                unheard @ (Stage::Closing | Stage::Mute) => {
                    self.stage = unheard;
                    rest.len()
                }
            };
            at += step;
            if step == 0 {
                break;
            }
        }
        at
    }

    /// Returns 0 when the head isn't complete.
    fn read_head(&mut self, scene: &mut Scene<'_>, rest: &[u8]) -> usize {
        // The scan makes input that comes byte by byte cost linear work; heads that come whole skip
        // it.
        let found = self.scan.as_mut().map_or(Ok(Some(0)), |scan| scan.find(rest, scene.limits));
        let parsed = match found {
            Ok(Some(_)) => weir_http::parse_request(rest, scene.limits, scene.fields),
            Ok(None) => return 0,
            Err(error) => Err(error),
        };
        match parsed {
            Ok(None) => {
                self.scan.get_or_insert_default();
                0
            }
            Ok(Some(head)) => {
                self.scan = None;
                scene.counts.requests += 1;
                if let Some(lines) = &mut scene.lines {
                    note_line(lines, &rest[..head.bytes]);
                }
                self.begin(scene, rest, &head);
                head.bytes
            }
            Err(error) => {
                scene.counts.requests += 1;
                self.refuse(error.status(), error.word());
                rest.len()
            }
        }
    }

    fn begin(&mut self, scene: &mut Scene<'_>, input: &[u8], head: &RequestHead) {
        let Some(mut plan) = Plan::of(scene, input, head) else {
            return self.refuse(400, "unknown-query");
        };
        let bodiless = matches!(head.body, RequestBody::None | RequestBody::Length(0));
        if let Some(mischief) = scene.mischief
            && !plan.is_exempt()
        {
            mischief.requested();
            if !bodiless {
                plan = self.answer_early(scene, plan, head.expect_continue);
            }
        }
        let is_answered = matches!(plan, Plan::Answered);
        if head.expect_continue && !bodiless && !is_answered {
            self.out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        let stage = match head.body {
            RequestBody::None | RequestBody::Length(0) => return self.finish(scene, plan),
            RequestBody::Length(length) => Stage::Sized(plan, length),
            // The origin supports only HTTP/1, which has no body of an open length.
            RequestBody::Chunked | RequestBody::Open => {
                Stage::Chunked(plan, ChunkedDecoder::new(false))
            }
        };
        match self.stage {
            Stage::Streaming(_) => self.after = Some(Box::new(stage)),
            Stage::Closing if is_answered => {}
            _ => self.stage = stage,
        }
    }

    fn read_sized(
        &mut self,
        scene: &mut Scene<'_>,
        rest: &[u8],
        mut plan: Plan,
        left: u64,
    ) -> usize {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
        if !plan.take_body(&rest[..length]) {
            self.refuse(413, "echo-body-too-large");
            return rest.len();
        }
        match left - length as u64 {
            0 => self.finish(scene, plan),
            left => self.stage = Stage::Sized(plan, left),
        }
        length
    }

    fn read_chunked(
        &mut self,
        scene: &mut Scene<'_>,
        rest: &[u8],
        mut plan: Plan,
        mut decoder: ChunkedDecoder,
    ) -> usize {
        match decoder.decode(rest) {
            Ok(Chunk::More) => {
                self.stage = Stage::Chunked(plan, decoder);
                rest.len()
            }
            Ok(Chunk::Data { start, end }) => {
                if !plan.take_body(&rest[start..end]) {
                    self.refuse(413, "echo-body-too-large");
                    return rest.len();
                }
                self.stage = Stage::Chunked(plan, decoder);
                end
            }
            Ok(Chunk::End { consumed }) => {
                self.finish(scene, plan);
                consumed
            }
            Err(_) => {
                self.refuse(400, "bad-chunk");
                rest.len()
            }
        }
    }

    /// The request is complete: its response is written now, or later if it has a delay.
    fn finish(&mut self, scene: &mut Scene<'_>, plan: Plan) {
        let is_exempt = plan.is_exempt();
        let Some(mut answer) = plan.into_answer() else { return };
        let Cost { mut delay_us, burn_us, block_us } =
            answer.wanted.cost_of(scene.counts.requests, scene.random);
        if let Some(beyond) = answer.wanted.beyond.filter(|_| delay_us > 0) {
            let (own, at_work) = AtWork::begin(scene.at_work);
            self.at_work = Some(own);
            delay_us = slowed_us(delay_us, at_work, beyond);
        }
        if burn_us + block_us > 0 {
            // The counts are not published again for a while.
            scene.told.publish(scene.counts);
            burn(burn_us);
            block(block_us);
        }
        if scene.mischief.is_some() && !is_exempt {
            match self.spoil(scene, &mut answer) {
                Some(stall_us) => delay_us += stall_us,
                None => return,
            }
        }
        if delay_us > 0 {
            let due_us = scene.now_us + delay_us;
            self.stage = Stage::Delayed(answer, due_us);
        } else {
            self.write(&answer, scene);
        }
    }

    pub(super) fn write(&mut self, answer: &Answer, scene: &Scene<'_>) {
        if let Some(faults) = &answer.faults {
            return self.write_badly(answer, faults, scene);
        }
        self.stage = match answer.write(&mut self.out, scene.date_line) {
            Some(stream) => Stage::Streaming(stream),
            None if answer.closes() => Stage::Closing,
            None => Stage::Head,
        };
    }

    /// Writes a short error response and ends the connection.
    fn refuse(&mut self, status: u16, word: &str) {
        weir_http::encode_error_reply(&mut self.out, status, word);
        self.stage = Stage::Closing;
    }
}

/// Notes the first line of a head, for the log.
fn note_line(lines: &mut Vec<u8>, head: &[u8]) {
    let head = head.trim_ascii_start();
    let end = memchr::memchr2(b'\r', b'\n', head).unwrap_or(head.len());
    lines.extend_from_slice(&head[..end]);
    lines.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_at_work_until_it_is_written_or_its_connection_is_gone() {
        let all = Arc::new(AtomicU64::new(0));
        let (first, alone) = AtWork::begin(&all);
        let (second, both) = AtWork::begin(&all);
        assert_eq!((alone, both), (1, 2));
        drop(first);
        let gone = Connection { at_work: Some(second), ..Connection::new(Vec::new()) };
        assert_eq!(all.load(Relaxed), 1);
        drop(gone);
        assert_eq!(all.load(Relaxed), 0);
    }
}
