//! One connection of HTTP/2: the machine of its frames, and the streams on it.
//!
//! A stream is a client connection of its own (`ClientConn` with `stream`) that has no socket: its one request is read, forwarded,
//! answered and timed by the rules that hold for any request, and only its bytes take another way: heads become frames at once, bodies wait
//! in the stream's output until windows and priorities let them go. Reading is in `read.rs`, writing and timers in `write.rs`.
//! Invariants: each open stream of the machine has its connection as tag, and each of them is in `all`; `unsent` is the sum of their outputs and of what is being encoded for them; `due_us` is not later than
//! any of their timers. Bounds: streams as `http2` of the plan says, those that were given up included; unsent bytes
//! [`CONNECTION_BYTES`] and one receive for each stream.

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

/// Unsent bytes of all streams of a connection above which each has the least room.
const CONNECTION_BYTES: usize = 1024 * 1024;
/// Unsent bytes of a stream that are always allowed.
const STREAM_BYTES_MIN: usize = 16 * 1024;

impl ClientConn {
    /// The client of a stream has taken so many bytes of its answer.
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
    /// What it keeps to for as long as it lives: its client was told.
    pub(in crate::client) limits: Arc<Limits>,
    /// The connections of all streams, also of those that were given up. Each is there until it has been taken out of the table.
    pub(in crate::client) all: Vec<ClientKey>,
    /// Streams whose answers are complete, to be looked at when frames were written.
    pub(in crate::client) done: Vec<ClientKey>,
    /// Which streams had bytes in the last frames; kept for its memory.
    pub(in crate::client) moved: Vec<(ClientKey, usize)>,
    /// When the first of their timers comes.
    pub(in crate::client) due_us: u64,
    /// Why the connection ends, when it does not end in order.
    pub(in crate::client) why: Option<ClientEnd>,
    /// When a frame, or what a client says first, began that is not complete.
    begun_us: u64,
    /// When frames were last read: one had begun and was not complete; the rest was not to be read.
    was_incomplete: bool,
    was_blocked: bool,
    /// Frames that were complete then.
    completed: u32,
    /// Bytes of answers that wait in streams, or are being encoded for them.
    unsent: usize,
}

impl Streams {
    /// No streams yet.
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

    /// Bytes of an answer wait in the output of a stream.
    pub(in crate::client) fn add_unsent(&mut self, id: u32, bytes: usize) {
        self.unsent += bytes;
        self.mux.reply_data(id, bytes);
    }

    /// What is being encoded of an answer counts as well.
    pub(in crate::client) fn change_coding(&mut self, before: usize, now: usize) {
        self.unsent = self.unsent - before + now;
    }

    /// Bytes have left the output of a stream, or were thrown away.
    pub(in crate::client) fn take_unsent(&mut self, bytes: usize) {
        self.unsent -= bytes;
    }

    /// Unsent bytes of a stream above which its server is not read further: less, the more there is of others.
    pub(in crate::client) fn high_bytes(&self) -> usize {
        (CONNECTION_BYTES.saturating_sub(self.unsent) / 2).clamp(STREAM_BYTES_MIN, HIGH_BYTES)
    }

    /// Whether frames are not read for the moment, because of what they would cost.
    pub(in crate::client) fn is_blocked(&self) -> bool {
        self.mux.blocked().is_some()
    }

    /// Frames were read: the patience with one that is not complete begins when it does, or when the rest of it is read again. That reads
    /// end within frames makes them no longer: another frame is another patience.
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

    /// When the patience with the connection ends, or something is due on it. `conn` is the connection itself.
    pub(in crate::client) fn deadline(&self, conn: &ClientConn, plan: &ClientPlan) -> u64 {
        let sent_us = if conn.flags.sending { conn.send_us + plan.send_timeout_us } else { u64::MAX };
        let due_us = sent_us.min(self.due_us).min(self.mux.deadline_us().unwrap_or(u64::MAX));
        due_us.min(self.patience_end_us(conn, plan))
    }

    /// When the patience with a client ends that has begun a frame, or has nothing under way.
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

    /// A frame, or what a client says first, is awaited to its end.
    pub(in crate::client) fn is_late_with_frame(&self) -> bool {
        self.mux.is_incomplete_frame() || !self.mux.is_greeted()
    }

    /// Looks for states that can't be. `coding`: bytes of a stream that are being encoded.
    ///
    /// # Errors
    /// The first promise that is broken, in words.
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
                return Err(format!("its stream {index} has a timer at {} us, before all", conn.armed_us));
            }
        }
        equal("bytes unsent of streams", self.unsent, unsent)
    }
}

/// The connections that speak HTTP/2.
#[derive(Debug, Default)]
pub(in crate::client) struct Carriers {
    /// By slot of the connection.
    slots: Vec<Option<Box<Streams>>>,
    /// Streams of all of them.
    pub(in crate::client) streams: usize,
}

impl Carriers {
    /// What a connection has, to be looked at; None: it does not speak HTTP/2, or is gone.
    #[inline]
    pub(in crate::client) fn get(&self, index: ClientKey) -> Option<&Streams> {
        self.slots.get(index.index())?.as_deref()
    }

    /// The same, to change.
    #[inline]
    pub(in crate::client) fn get_mut(&mut self, index: ClientKey) -> Option<&mut Streams> {
        self.slots.get_mut(index.index())?.as_deref_mut()
    }

    /// Whether frames of a connection wait to be made.
    pub(in crate::client) fn wants_write(&self, index: ClientKey) -> bool {
        self.get(index).is_some_and(|streams| streams.mux.wants_write())
    }

    /// Puts in what a connection has.
    pub(in crate::client) fn put(&mut self, index: ClientKey, streams: Box<Streams>) {
        let at = index.index();
        if at >= self.slots.len() {
            self.slots.resize_with(at + 1, || None);
        }
        self.slots[at] = Some(streams);
    }

    /// Takes it out.
    pub(in crate::client) fn take(&mut self, index: ClientKey) -> Option<Box<Streams>> {
        self.slots.get_mut(index.index())?.take()
    }

    /// Unsent bytes of an answer on this connection above which its server is not read further.
    #[inline]
    pub(in crate::client) fn high_bytes(&self, conn: &ClientConn) -> usize {
        match conn.stream.as_deref() {
            None => HIGH_BYTES,
            Some(stream) => self.get(stream.carrier).map_or(STREAM_BYTES_MIN, Streams::high_bytes),
        }
    }
}
