//! Which frame leaves next: control frames and heads first, then bodies by urgency (RFC 9218 §10),
//! as windows allow (RFC 9113 §6.9).
//!
//! Within an urgency the oldest stream that is not incremental and all that are incremental take
//! turns, one frame each; other streams that are not incremental wait until the oldest has nothing
//! to send. So a response that is of use only as a whole comes as early as possible, and nothing
//! starves. Bounds: a call writes the requested amount, and one frame more at most. Ready streams
//! are sorted in each call: as many steps as there are open streams, few compared with the bytes
//! that a call writes.

use super::frame::{self, END_STREAM, FrameHead, Kind};
use super::hpack::encode::EMPTY_TABLE;
use super::mux::Mux;
use super::reply::put_fragments;
use super::stream::{Answer, Stream};

/// Bytes of a DATA frame at most: with its head they fit into one record of TLS.
const DATA_BYTES_MAX: usize = 16_384 - frame::HEAD_BYTES;
/// Memory that is kept for control frames and heads while something is under way, and else.
const OUT_BYTES_KEPT: usize = 16_384;
const OUT_BYTES_IDLE: usize = 64;

/// Where frames go. Calls come in the order in which the bytes have to leave.
pub trait Outgoing {
    /// Takes bytes of frames: to be copied.
    fn frames(&mut self, bytes: &[u8]);

    /// Takes the next `bytes` of the response's body on this stream, which the caller has: the
    /// payload of a DATA frame whose head was just given.
    fn body(&mut self, stream: u32, tag: u64, bytes: usize);

    /// The response on this stream has left completely. The stream is gone.
    fn ended(&mut self, stream: u32, tag: u64);
}

/// A stream that has something to send. Streams are looked at in the order of this type.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Ready {
    urgency: u8,
    incremental: bool,
    /// Incremental streams that had a turn lately come after those that had none.
    had_turn: bool,
    id: u32,
}

impl Mux {
    /// Whether something may be written now.
    pub fn wants_write(&self) -> bool {
        self.written < self.out.len()
            || self.failure().is_none() && self.streams.iter().any(|open| self.is_ready(open))
    }

    /// Writes what may leave, `bytes_max` and a frame more at most. Returns how much; 0: nothing
    /// may leave now, or `bytes_max` is 0.
    pub fn write_out(&mut self, bytes_max: usize, to: &mut impl Outgoing) -> usize {
        let mut written = self.write_control(bytes_max, to);
        if written >= bytes_max || self.failure().is_some() {
            return written;
        }
        let mut ready = self.ready();
        ready.sort_unstable();
        for group in ready.chunk_by(|a, b| a.urgency == b.urgency) {
            written += self.write_group(group, bytes_max.saturating_sub(written), to);
            if written >= bytes_max {
                break;
            }
        }
        if self.streams.is_empty() && self.out.is_empty() {
            self.out.shrink_to(OUT_BYTES_IDLE);
        }
        written
    }

    fn write_control(&mut self, bytes_max: usize, to: &mut impl Outgoing) -> usize {
        let bytes = (self.out.len() - self.written).min(bytes_max);
        if bytes > 0 {
            to.frames(&self.out[self.written..self.written + bytes]);
            self.written += bytes;
        }
        if self.written == self.out.len() {
            self.written = 0;
            self.out.clear();
            self.out.shrink_to(OUT_BYTES_KEPT);
        } else if self.written > self.out.len() / 2 {
            self.out.drain(..std::mem::take(&mut self.written));
        }
        bytes
    }

    /// Whether something of it may leave after the control frames.
    pub(super) fn is_ready(&self, open: &Stream) -> bool {
        match (open.answer, open.queued) {
            (Answer::Awaited, _) | (Answer::Begun, 0) => false,
            (Answer::Closed, _) | (Answer::Complete, 0) => true,
            _ => self.sending.window > 0 && self.sending.stream_initial + open.credit > 0,
        }
    }

    fn ready(&self) -> Vec<Ready> {
        let ready = self.streams.iter().filter(|open| self.is_ready(open));
        ready
            .map(|open| {
                let (urgency, incremental) = (open.priority.urgency & 7, open.priority.incremental);
                let had_turn = incremental && open.id <= self.sending.turns[usize::from(urgency)];
                Ready { urgency, incremental, had_turn, id: open.id }
            })
            .collect()
    }

    /// Streams of one urgency, those that are not incremental in front.
    fn write_group(&mut self, group: &[Ready], bytes_max: usize, to: &mut impl Outgoing) -> usize {
        let (whole, shared) = group.split_at(group.partition_point(|ready| !ready.incremental));
        let (mut whole, mut shared, mut written) = (whole.iter(), shared.to_vec(), 0);
        let mut oldest = whole.next();
        while (oldest.is_some() || !shared.is_empty()) && written < bytes_max {
            if let Some(ready) = oldest {
                let (bytes, more) = self.write_frame(ready.id, to);
                written += bytes;
                oldest = if more { Some(ready) } else { whole.next() };
            }
            shared.retain(|ready| {
                if written >= bytes_max {
                    return true;
                }
                let (bytes, more) = self.write_frame(ready.id, to);
                written += bytes;
                self.sending.turns[usize::from(ready.urgency)] = ready.id;
                more
            });
        }
        written
    }

    /// The next frame of a stream: its bytes, and whether another one may follow at once.
    fn write_frame(&mut self, id: u32, to: &mut impl Outgoing) -> (usize, bool) {
        let room = self.sending.window.max(0) as usize;
        let initial = self.sending.stream_initial;
        let Some(open) = self.streams.find_mut(id) else { return (0, false) };
        let tag = open.tag;
        let allowed = room.min((initial + open.credit).max(0) as usize).min(DATA_BYTES_MAX);
        let bytes = open.queued.min(allowed);
        let complete = open.answer == Answer::Complete && bytes == open.queued;
        let mut written = 0;
        let ends = complete && open.trailers.is_none();
        if bytes > 0 || ends {
            open.queued -= bytes;
            open.sent += bytes as u64;
            open.credit -= bytes as i64;
            self.sending.window -= bytes as i64;
            self.budget.sent(bytes as u32);
            let flags = if ends { END_STREAM } else { 0 };
            let head =
                FrameHead { length: bytes as u32, kind: Kind::Data, flags, stream: id }.bytes();
            to.frames(&head);
            if bytes > 0 {
                to.body(id, tag, bytes);
            }
            written += head.len() + bytes;
        }
        let closed =
            complete || self.streams.find(id).is_some_and(|open| open.answer == Answer::Closed);
        if closed {
            written += self.write_end(id, to);
        }
        (written, !closed && self.streams.find(id).is_some_and(|open| self.is_ready(open)))
    }

    /// Writes the end of a response: its trailers. When the request's body is still coming, a reset
    /// follows the next of it (RFC 9113 §8.1).
    fn write_end(&mut self, id: u32, to: &mut impl Outgoing) -> usize {
        let Some(stream) = self.forget(id) else { return 0 };
        let mut end = Vec::new();
        if let Some(trailers) = stream.trailers {
            let mut block = trailers.into_vec();
            if std::mem::take(&mut self.sending.table_changed) {
                block.insert(0, EMPTY_TABLE);
            }
            put_fragments(&mut end, id, true, &block);
        }
        if !stream.received {
            // Where all announced content is here only an end, or trailers, can follow: no reason
            // to cancel that.
            if stream.length_left == Some(0) {
                self.recent.add(id);
            } else {
                self.recent.add_unended(id);
            }
        }
        if !end.is_empty() {
            to.frames(&end);
        }
        self.budget.answered();
        to.ended(id, stream.tag);
        end.len()
    }
}
