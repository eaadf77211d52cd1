//! One connection of HTTP/2: the machine of its frames, and the streams on it.
//!
//! A stream is a separate client connection (`ClientConn` with `stream`) that has no socket. Its
//! one request is read, forwarded, answered and timed by the rules for any request, and only its
//! bytes take another path: heads become frames at once, and bodies wait in the stream's output
//! until windows and priorities let them leave. Reading is in `read.rs`, writing and timers in
//! `write.rs`. Invariants: each open stream of the machine has its connection as tag, and each of
//! them is in `all`; `unsent` is the sum of their outputs and of the bytes that are being encoded
//! for them; `due_us` is not later than any of their timers. Bounds: streams as `http2` of the plan
//! says, including those that were given up; unsent bytes [`CONNECTION_BYTES`] and one receive for
//! each stream.

use std::sync::Arc;

use weir_http::h2::{Limits, Mux};

use crate::base::check::equal;
use crate::base::keys::{ClientKey, Key};
use crate::base::output::HIGH_BYTES;
use crate::base::slab::Slab;
use crate::client::connection::ClientConn;
use crate::client::pace::PACE_BYTES;
use crate::ending::ClientEnd;
use crate::plan::ClientPlan;

/// Unsent bytes of all streams of a connection above which each stream has the least room.
const CONNECTION_BYTES: usize = 1024 * 1024;
/// Unsent bytes of a stream that are always allowed.
const STREAM_BYTES_MIN: usize = 16 * 1024;

impl ClientConn {
    /// The client of a stream has taken this many bytes of its response.
    pub(in crate::client) fn note_taken(&mut self, bytes: usize, now_us: u64) {
        self.flags.sending = self.codec.ready_bytes() > 0;
        if let Some(stream) = self.stream.as_deref_mut() {
            stream.taken += bytes;
            if stream.taken as u64 >= PACE_BYTES {
                (stream.taken, self.send_us) = (0, now_us);
            }
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(in crate::client) struct Streams {
    /// The frames.
    pub(in crate::client) mux: Mux,
    /// Its limits for as long as it lives: its client knows them.
    pub(in crate::client) limits: Arc<Limits>,
    /// The connections of all streams, including those that were given up. Each remains until it
    /// has been taken out of the table.
    pub(in crate::client) all: Vec<ClientKey>,
    /// Streams with complete responses, to be looked at when frames were written.
    pub(in crate::client) done: Vec<ClientKey>,
    /// The streams with bytes in the last frames; kept for its memory.
    pub(in crate::client) moved: Vec<(ClientKey, usize)>,
    /// When the first of their timers is due.
    pub(in crate::client) due_us: u64,
    /// Why the connection ends, when it does not end in order.
    pub(in crate::client) why: Option<ClientEnd>,
    /// When the incomplete frame, or client preface, began.
    begun_us: u64,
    /// At the last read: whether a frame was incomplete, and whether reading was blocked.
    was_incomplete: bool,
    was_blocked: bool,
    /// Complete frames at that time.
    completed: u32,
    /// Bytes of responses that wait in streams, or are being encoded for them.
    unsent: usize,
}

impl Streams {
    /// Creates it without streams.
    pub(in crate::client) fn new(limits: Arc<Limits>, now_us: u64) -> Streams {
        Streams {
            mux: Mux::new(&limits),
            limits,
            all: Vec::new(),
            done: Vec::new(),
            moved: Vec::new(),
            due_us: u64::MAX,
            why: None,
            begun_us: now_us,
            was_incomplete: false,
            was_blocked: false,
            completed: 0,
            unsent: 0,
        }
    }

    /// Bytes of a response wait in the output of a stream.
    pub(in crate::client) fn add_unsent(&mut self, id: u32, bytes: usize) {
        self.unsent += bytes;
        self.mux.reply_data(id, bytes);
    }

    /// The bytes of a response that are being encoded count as well.
    pub(in crate::client) fn change_coding(&mut self, before: usize, now: usize) {
        self.unsent = self.unsent - before + now;
    }

    /// Bytes have left the output of a stream, or were discarded.
    pub(in crate::client) fn take_unsent(&mut self, bytes: usize) {
        self.unsent -= bytes;
    }

    /// Unsent bytes of a stream above which its server is not read further: less, the more other
    /// streams have.
    pub(in crate::client) fn high_bytes(&self) -> usize {
        (CONNECTION_BYTES.saturating_sub(self.unsent) / 2).clamp(STREAM_BYTES_MIN, HIGH_BYTES)
    }

    /// Whether frames are not read for the moment, because of their cost.
    pub(in crate::client) fn is_blocked(&self) -> bool {
        self.mux.blocked().is_some()
    }

    /// Frames were read: the time for an incomplete frame begins when the frame does, or when the
    /// rest of it is read again. Reads that end within frames do not extend it: another frame has
    /// its own time.
    pub(in crate::client) fn note_read(&mut self, now_us: u64) {
        let (is_incomplete, is_blocked) = (self.mux.is_incomplete_frame(), self.is_blocked());
        let was_incomplete = std::mem::replace(&mut self.was_incomplete, is_incomplete);
        let was_blocked = std::mem::replace(&mut self.was_blocked, is_blocked);
        let completed = self.mux.frames_completed();
        let is_another = std::mem::replace(&mut self.completed, completed) != completed;
        if is_incomplete && (!was_incomplete || was_blocked || is_another) {
            self.begun_us = now_us;
        }
    }

    /// When the connection times out, or something is due on it. `conn` is the connection itself.
    pub(in crate::client) fn deadline(&self, conn: &ClientConn, plan: &ClientPlan) -> u64 {
        let sent_us =
            if conn.flags.sending { conn.send_us + plan.send_timeout_us } else { u64::MAX };
        let due_us = sent_us.min(self.due_us).min(self.mux.deadline_us().unwrap_or(u64::MAX));
        due_us.min(self.patience_end_us(conn, plan))
    }

    /// When a client times out that has begun a frame, or has nothing under way.
    pub(in crate::client) fn patience_end_us(&self, conn: &ClientConn, plan: &ClientPlan) -> u64 {
        if self.is_blocked() {
            u64::MAX
        } else if self.is_late_with_frame() {
            self.begun_us + plan.head_timeout_us
        } else if self.all.is_empty() && conn.has_sent_all() {
            conn.since_us + plan.idle_timeout_us
        } else {
            u64::MAX
        }
    }

    /// Whether the end of a frame, or of the client preface, is awaited.
    pub(in crate::client) fn is_late_with_frame(&self) -> bool {
        self.mux.is_incomplete_frame() || !self.mux.is_greeted()
    }

    /// Looks for impossible states. `coding`: bytes of a stream that are being encoded.
    ///
    /// # Errors
    /// The first broken invariant, in words.
    pub(in crate::client) fn audit(
        &self,
        conns: &Slab<ClientKey, ClientConn>,
        coding: impl Fn(&ClientConn) -> usize,
    ) -> Result<(), String> {
        let mut unsent = 0;
        for index in self.all.iter().copied() {
            if !conns.is_occupied(index) {
                return Err(format!("its stream {index} is gone"));
            }
            let conn = conns.at(index);
            unsent += conn.codec.ready_bytes() + coding(conn);
            if conn.armed_us < self.due_us {
                return Err(format!(
                    "its stream {index} has a timer at {} us, before all",
                    conn.armed_us
                ));
            }
        }
        equal("bytes unsent of streams", self.unsent, unsent)
    }
}

/// The connections of HTTP/2.
#[derive(Debug, Default)]
pub(in crate::client) struct Carriers {
    /// By slot of the connection.
    slots: Vec<Option<Box<Streams>>>,
    /// The number of streams of all of them.
    pub(in crate::client) streams: usize,
}

impl Carriers {
    /// The state of a connection; None: it does not speak HTTP/2, or is gone.
    #[inline]
    pub(in crate::client) fn get(&self, index: ClientKey) -> Option<&Streams> {
        self.slots.get(index.index())?.as_deref()
    }

    /// The same, mutable.
    #[inline]
    pub(in crate::client) fn get_mut(&mut self, index: ClientKey) -> Option<&mut Streams> {
        self.slots.get_mut(index.index())?.as_deref_mut()
    }

    /// Whether a connection has frames to write.
    pub(in crate::client) fn wants_write(&self, index: ClientKey) -> bool {
        self.get(index).is_some_and(|streams| streams.mux.wants_write())
    }

    /// Adds the state of a connection.
    pub(in crate::client) fn put(&mut self, index: ClientKey, streams: Box<Streams>) {
        let at = index.index();
        if at >= self.slots.len() {
            self.slots.resize_with(at + 1, || None);
        }
        self.slots[at] = Some(streams);
    }

    /// Removes the state of a connection.
    pub(in crate::client) fn take(&mut self, index: ClientKey) -> Option<Box<Streams>> {
        self.slots.get_mut(index.index())?.take()
    }

    /// Unsent bytes of a response on this connection above which its server is not read further.
    #[inline]
    pub(in crate::client) fn high_bytes(&self, conn: &ClientConn) -> usize {
        match conn.stream.as_deref() {
            None => HIGH_BYTES,
            Some(stream) => self.get(stream.carrier).map_or(STREAM_BYTES_MIN, Streams::high_bytes),
        }
    }
}
