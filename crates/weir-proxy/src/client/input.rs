//! Input of a client that waits to be parsed (stage parse): bytes of an incomplete head, or of
//! requests, bodies, frames and tunnels that may not continue yet.
//!
//! Bounds: above `STASH_BYTES_MAX` a client is not read, above `STASH_BYTES_END` its connection
//! ends.

use weir_http::HeadScan;

use super::Clients;
use super::answer::Answers;
use super::connection::{ClientConn, Reading};
use crate::base::keys::ClientKey;
use crate::context::Context;
use crate::ending::ClientEnd;

/// Unparsed bytes of one client above which it is not read; for a head the limit of heads, if that
/// is higher.
pub(super) const STASH_BYTES_MAX: usize = 64 * 1024;
/// Unparsed bytes of one client above which its connection ends. After reading has stopped, the
/// driver holds at most what it receives in one turn (`small_bytes_per_turn`, and as much again).
pub(super) const STASH_BYTES_END: usize = 21 * STASH_BYTES_MAX;

/// Input that waits. It remains with its connection while it is parsed, so that all code that looks
/// at the connection meanwhile knows of it: only the bytes are lent ([`ReadBuffer::lend`]).
///
/// Invariant: while bytes are lent, `bytes` is empty and nothing is added.
#[derive(Debug, Default)]
pub(crate) struct ReadBuffer {
    /// The bytes; those before `start` are done.
    pub bytes: Vec<u8>,
    /// First byte not parsed.
    pub start: usize,
    /// The bytes are being parsed.
    is_lent: bool,
    /// The number of lent bytes; 0 while they are here.
    lent: usize,
    /// How far the head at `start` has been searched.
    pub scan: HeadScan,
    /// Small pieces in which that head arrived, modulo [`PIECES`].
    pub pieces: u8,
}

/// Bytes of a piece of a head below which it is small: less than a line of most heads.
const PIECE_BYTES: usize = 64;
/// This many small pieces of one head are a glitch.
const PIECES: u8 = 16;
/// Capacity that the buffer may keep however few bytes are left.
const ROOM_BYTES_MAX: usize = 16 * 1024;
/// Bytes of empty lines, and of an incomplete one, that may precede a request; with more the head
/// is refused.
const BLANK_BYTES_MAX: usize = 5;

/// Input that is being parsed ([`ReadBuffer::lend`]).
#[derive(Debug)]
pub(crate) struct Lent {
    bytes: Vec<u8>,
    start: usize,
}

impl Lent {
    /// The bytes that were not parsed before.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl ReadBuffer {
    /// Bytes that are not parsed, or are being parsed.
    pub(super) fn len(&self) -> usize {
        self.lent + self.bytes.len() - self.start
    }

    /// Lends the bytes for parsing; None: they are being parsed already.
    fn lend(&mut self) -> Option<Lent> {
        if std::mem::replace(&mut self.is_lent, true) {
            return None;
        }
        self.lent = self.len();
        Some(Lent {
            bytes: std::mem::take(&mut self.bytes),
            start: std::mem::take(&mut self.start),
        })
    }

    /// Takes the bytes back, `used` of which were parsed. Reuses the space of the parsed bytes when
    /// they are at least half.
    fn take_back(&mut self, lent: Lent, used: usize) {
        debug_assert!(
            self.is_lent && self.bytes.is_empty(),
            "nothing is added to what is being parsed"
        );
        (self.is_lent, self.lent, self.bytes, self.start) =
            (false, 0, lent.bytes, lent.start + used);
        self.drop_done();
    }

    /// Moves the unparsed bytes to the front when they are no more than the parsed ones.
    fn drop_done(&mut self) {
        if self.start * 2 >= self.bytes.len() {
            self.bytes.drain(..self.start);
            self.start = 0;
            // The capacity for a burst is not kept for the beginning of a head.
            if self.bytes.capacity() > ROOM_BYTES_MAX.max(4 * self.bytes.len()) {
                self.bytes.shrink_to_fit();
            }
        }
    }

    /// Adds received bytes.
    pub(super) fn push(&mut self, piece: &[u8]) {
        debug_assert!(!self.is_lent, "nothing is added to what is being parsed");
        self.bytes.extend_from_slice(piece);
    }

    /// Takes in received bytes. True: the head at the beginning arrives in many small pieces.
    pub(crate) fn add(&mut self, piece: &[u8]) -> bool {
        self.push(piece);
        if piece.len() >= PIECE_BYTES {
            return false;
        }
        self.pieces = (self.pieces + 1) % PIECES;
        self.pieces == 0
    }

    /// Whether the bytes are only empty lines, which begin no head (RFC 9112 §2.2: some clients
    /// send one behind a body).
    pub(super) fn is_blank(&self) -> bool {
        let rest = &self.bytes[self.start..];
        self.len() <= BLANK_BYTES_MAX && rest.iter().all(|byte| matches!(byte, b'\r' | b'\n'))
    }

    /// A new head begins, or the same head is parsed from its beginning.
    pub(crate) fn begin_head(&mut self) {
        (self.scan, self.pieces) = (HeadScan::default(), 0);
    }
}

impl ClientConn {
    /// Bytes that wait to be parsed.
    pub(super) fn stashed(&self) -> usize {
        self.stash.as_ref().map_or(0, |stash| stash.len())
    }

    /// Whether input waits that is not being parsed right now.
    pub(super) fn has_waiting_input(&self) -> bool {
        self.stash.as_ref().is_some_and(|stash| !stash.is_lent)
    }

    /// Lends waiting input for parsing; None: none waits, or it is being parsed already.
    pub(super) fn lend_input(&mut self) -> Option<Lent> {
        self.stash.as_mut()?.lend()
    }

    /// Takes input back, `used` bytes of which were parsed. The rest waits, if it still may.
    /// Returns whether input waits.
    pub(super) fn take_input_back(&mut self, lent: Lent, used: usize) -> bool {
        let is_left = used < lent.rest().len();
        self.stash = self.stash.take().filter(|_| is_left);
        if let Some(stash) = &mut self.stash {
            stash.take_back(lent, used);
        }
        if is_left && matches!(self.reading(), Reading::Closing | Reading::Linger) {
            self.flags.unread = true;
            self.stash = None;
        }
        self.stash.is_some()
    }
}

/// Continues or stops receiving from a client. A client that has sent more than may still arrive
/// after that is reset.
pub(super) fn stop_or_go_on(answers: &mut Answers, index: ClientKey, cx: &mut Context) {
    if answers.conns.at(index).stashed() > STASH_BYTES_END {
        reset(answers, index, ClientEnd::Overrun, cx);
    } else {
        answers.conns.update_receive(index, cx);
    }
}

/// A client's input takes too long to handle: the rest of it is not handled.
pub(crate) fn end_costly(clients: &mut Clients, token: u64, cx: &mut Context) {
    if let Some(index) = clients.answers.conns.of_token(token) {
        reset(&mut clients.answers, index, ClientEnd::TooCostly, cx);
    }
}

fn reset(answers: &mut Answers, index: ClientKey, why: ClientEnd, cx: &mut Context) {
    answers.conns.at_mut(index).flags.reset = true;
    answers.close_conn(index, why, cx);
}
