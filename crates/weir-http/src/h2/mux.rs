//! One HTTP/2 connection from the server's side: its state, how it begins and how it ends.
//!
//! Reading is in `read.rs` (frames from bytes), `frames.rs` and `receive.rs` (their meaning);
//! responses are in `reply.rs`, writing in `schedule.rs`. Invariants: streams in the table have odd
//! numbers up to `last`; `streams.len() <= streams_max`. Bounds: `out` grows by responses to
//! control frames up to [`OUT_BYTES_MAX`] and one frame, and by one head for each response; `block`
//! by one header block. RFC 9113 §3.4, §5, §6.8.

use super::budget::Budget;
use super::error::{Code, Failure};
use super::event::Blocked;
use super::frame::{self, Kind, Setting};
use super::glitch::{Glitch, Glitches};
use super::growth::Growth;
use super::hpack::Decoder;
use super::limits::Limits;
use super::priority::Priority;
use super::read::Reader;
use super::stream::{Recent, Stream, Streams};

/// Bytes of control frames and heads to be sent above which nothing is read (CVE-2019-9512, -9514,
/// -9515).
pub(super) const OUT_BYTES_MAX: usize = 65_536;
/// Time between the two GOAWAYs of a drain, in which requests that are on their way arrive (RFC
/// 9113 §6.8).
const DRAIN_US: u64 = 1_000_000;
/// Larger than any stream: "more GOAWAY will follow".
const STREAM_MAX: u32 = 0x7fff_ffff;
/// Windows before either side has changed them (RFC 9113 §6.9.2).
pub(super) const WINDOW_INITIAL: i64 = 65_535;
/// Largest window (RFC 9113 §6.9.1).
pub(super) const WINDOW_MAX: i64 = 0x7fff_ffff;

/// A connection. It owns its streams, header table and control output; not the bodies of responses.
/// About 500 bytes when idle, and 4 KiB more when the client fills its header table.
#[derive(Debug)]
pub struct Mux {
    /// Where it is in the bytes of the client.
    pub(super) reader: Reader,
    /// A header block or frame that came in several pieces.
    pub(super) block: Vec<u8>,
    pub(super) decoder: Decoder,
    pub(super) streams: Streams,
    pub(super) recent: Recent,
    pub(super) budget: Budget,
    pub(super) glitches: Glitches,
    pub(super) going: Going,
    /// Control frames and heads to be sent: those before `written` are gone.
    pub(super) out: Vec<u8>,
    pub(super) written: usize,
    pub(super) receiving: Receiving,
    pub(super) sending: Sending,
    /// Most requests under way at once, as announced.
    pub(super) streams_max: u32,
    /// Requests that were reset and still run.
    pub(super) lingering: u32,
    /// Highest stream that the client has opened.
    pub(super) last: u32,
    /// Streams opened.
    pub(super) opened: u32,
}

/// Windows of the bytes that the client sends.
#[derive(Debug)]
pub(super) struct Receiving {
    /// What the client may still send on the connection: more than `window_full` for a while after
    /// a window that had grown is gone.
    pub(super) window: i64,
    /// Full size of the connection's window, including the growth of streams.
    pub(super) window_full: u32,
    /// The growth of streams.
    pub(super) growth: Growth,
    /// Full size of a stream's window, as announced.
    pub(super) stream_full: u32,
    /// What a new stream begins with: the default until the client has acknowledged our settings.
    pub(super) stream_initial: i64,
}

/// Windows of the bytes that weir sends.
#[derive(Debug)]
pub(super) struct Sending {
    /// What the client accepts on the connection.
    pub(super) window: i64,
    /// What it accepts on a new stream; older ones move with it.
    pub(super) stream_initial: i64,
    /// The client has changed the size of its header table: the next block announces that ours is
    /// empty.
    pub(super) table_changed: bool,
    /// Its size, to notice that.
    pub(super) table_bytes: u32,
    /// For each urgency: the incremental stream that had the last frame.
    pub(super) turns: [u32; Priority::URGENCIES],
}

/// Whether the connection continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Going {
    Open,
    /// The client was informed of the shutdown; at this time, microseconds, it is informed of the
    /// last stream.
    Leaving(u64),
    /// Streams above this number are not accepted.
    Left(u32),
    /// At fault.
    Failed(Failure),
}

impl Mux {
    /// Makes a connection whose first bytes are [`PREFACE`](super::PREFACE). Our settings are among
    /// the bytes to send at once.
    pub fn new(limits: &Limits) -> Mux {
        let window_full =
            limits.connection_window_bytes.clamp(WINDOW_INITIAL as u32 + 1, WINDOW_MAX as u32);
        let stream_full = limits.window_bytes.clamp(1, WINDOW_MAX as u32);
        let mut out = Vec::with_capacity(64);
        let settings = [
            (Setting::MaxConcurrentStreams, limits.streams_max),
            (Setting::InitialWindowSize, stream_full),
            (
                Setting::MaxHeaderListSize,
                u32::try_from(limits.head.head_bytes_max).unwrap_or(u32::MAX),
            ),
            (Setting::NoRfc7540Priorities, 1),
        ];
        frame::put_settings(&mut out, &settings);
        frame::put_window_update(&mut out, 0, window_full - WINDOW_INITIAL as u32);
        Mux {
            reader: Reader::default(),
            block: Vec::new(),
            decoder: Decoder::default(),
            streams: Streams::default(),
            recent: Recent::default(),
            budget: Budget::default(),
            glitches: Glitches::default(),
            going: Going::Open,
            out,
            written: 0,
            receiving: Receiving {
                window: i64::from(window_full),
                window_full,
                growth: Growth::new(&limits.growth),
                stream_full,
                stream_initial: WINDOW_INITIAL,
            },
            sending: Sending {
                window: WINDOW_INITIAL,
                stream_initial: WINDOW_INITIAL,
                table_changed: false,
                table_bytes: frame::TABLE_BYTES_INITIAL,
                turns: [0; Priority::URGENCIES],
            },
            streams_max: limits.streams_max,
            lingering: 0,
            last: 0,
            opened: 0,
        }
    }

    // ---- what is known ----

    /// Returns the open streams, oldest first, with their tags.
    pub fn streams(&self) -> impl Iterator<Item = (u32, u64)> {
        self.streams.iter().map(|stream| (stream.id, stream.tag))
    }

    /// Returns the number of open streams.
    pub fn open(&self) -> usize {
        self.streams.len()
    }

    /// Returns the number of requests that were reset and still run: [`Mux::linger`] without
    /// [`Mux::gone`].
    pub fn lingering(&self) -> u32 {
        self.lingering
    }

    /// Returns the tag of an open stream, else 0; None: it is not open.
    pub fn tag(&self, stream: u32) -> Option<u64> {
        self.streams.find(stream).map(|stream| stream.tag)
    }

    /// Sets the tag that comes with each event of the stream.
    pub fn set_tag(&mut self, stream: u32, tag: u64) {
        if let Some(stream) = self.streams.find_mut(stream) {
            stream.tag = tag;
        }
    }

    /// The priority of an open stream.
    pub fn priority(&self, stream: u32) -> Option<Priority> {
        self.streams.find(stream).map(|stream| stream.priority)
    }

    /// Takes the glitches since the last call.
    pub fn take_glitches(&mut self) -> Glitches {
        std::mem::take(&mut self.glitches)
    }

    /// Returns the fault of the client: the connection ends when the pending output has left.
    pub fn failure(&self) -> Option<Failure> {
        if let Going::Failed(failure) = self.going { Some(failure) } else { None }
    }

    /// Whether a frame, a header block or the preface has begun and is not complete.
    pub fn is_incomplete(&self) -> bool {
        self.reader.is_incomplete()
    }

    /// Whether something other than a piece of a body has begun and is not complete: something that
    /// a client has to complete soon.
    pub fn is_incomplete_frame(&self) -> bool {
        self.is_incomplete() && !self.reader.is_in_data()
    }

    /// Returns the number of complete frames and header blocks, to detect whether an incomplete one
    /// is the same as before; it wraps.
    pub fn frames_completed(&self) -> u32 {
        self.reader.completed()
    }

    /// Whether bytes of this stream would leave now, were it not for more urgent or older streams.
    pub fn may_send(&self, stream: u32) -> bool {
        self.streams.find(stream).is_some_and(|open| self.is_ready(open))
    }

    /// Whether the client has identified itself: preface and settings have come.
    pub fn is_greeted(&self) -> bool {
        self.reader.is_greeted()
    }

    /// Whether everything is answered and written and nothing more is accepted: close.
    pub fn is_finished(&self) -> bool {
        let left = match self.going {
            Going::Open | Going::Leaving(_) => false,
            Going::Left(_) => self.streams.is_empty(),
            Going::Failed(_) => true,
        };
        left && self.written == self.out.len()
    }

    /// Returns why nothing is read, if so. The caller that removes the reason calls [`Mux::read`]
    /// again.
    pub fn blocked(&self) -> Option<Blocked> {
        if self.failure().is_some() {
            return None;
        }
        if self.out.len() - self.written >= OUT_BYTES_MAX {
            return Some(Blocked::Output);
        }
        if let Some(until_us) = self.budget.blocked_until() {
            return Some(Blocked::Until(until_us));
        }
        let full =
            self.streams.len() as u32 + self.lingering >= self.streams_max && self.lingering > 0;
        (full && self.opens_stream()).then_some(Blocked::InFlight)
    }

    /// Returns when [`Mux::expire`] is to be called, microseconds: reading continues, or a drain
    /// has its second step.
    pub fn deadline_us(&self) -> Option<u64> {
        let drain = if let Going::Leaving(at_us) = self.going { Some(at_us) } else { None };
        drain.into_iter().chain(self.budget.blocked_until()).min()
    }

    /// Does what is due. Reading may continue then, and there may be bytes to send.
    pub fn expire(&mut self, now_us: u64) {
        self.budget.expire(now_us);
        if matches!(self.going, Going::Leaving(at_us) if at_us <= now_us) {
            self.leave();
        }
    }

    /// Bytes of memory that it has beside itself.
    pub fn memory(&self) -> usize {
        let streams = self.streams.memory() + self.recent.memory();
        self.block.capacity() + self.out.capacity() + self.decoder.memory() + streams
    }

    // ---- the end ----

    /// Announces to the client that the connection ends soon. Requests that are on their way are
    /// accepted for another second; then [`Mux::deadline_us`] is due, the client is informed which
    /// was the last, and others are ignored (RFC 9113 §6.8).
    pub fn drain(&mut self, now_us: u64) {
        if self.going == Going::Open {
            self.going = Going::Leaving(now_us.saturating_add(DRAIN_US));
            frame::put_goaway(&mut self.out, STREAM_MAX, Code::NoError);
        }
    }

    /// Accepts no more streams.
    pub(super) fn leave(&mut self) {
        if matches!(self.going, Going::Open | Going::Leaving(_)) {
            self.going = Going::Left(self.last);
            frame::put_goaway(&mut self.out, self.last, Code::NoError);
        }
    }

    /// Ends the connection with GOAWAY(`code`), whichever side is at fault: nothing is read or
    /// answered any more, [`Mux::is_finished`] is true as soon as the bytes have left. The first
    /// call counts.
    pub fn fail(&mut self, code: Code, why: &'static str) -> Failure {
        if let Going::Failed(failure) = self.going {
            return failure;
        }
        let failure = Failure { code, why };
        let last = if let Going::Left(last) = self.going { last } else { self.last };
        self.going = Going::Failed(failure);
        frame::put_goaway(&mut self.out, last, code);
        self.block = Vec::new();
        failure
    }

    // ---- in flight ----

    /// A request whose stream is gone still runs: it counts as a stream until [`Mux::gone`].
    pub fn linger(&mut self) {
        self.lingering += 1;
    }

    /// A request for which [`Mux::linger`] was called has ended. Reading may go on then.
    pub fn gone(&mut self) {
        debug_assert!(self.lingering > 0, "more have ended than lingered");
        self.lingering = self.lingering.saturating_sub(1);
    }

    // ---- streams ----

    /// Ends a stream with RST_STREAM: nothing is sent on it any more, and bytes from the client on
    /// it are ignored. The bytes that were counted with [`Mux::reply_data`] are discarded. No event
    /// follows.
    pub fn reset(&mut self, stream: u32, code: Code) {
        if self.forget(stream).is_some() && self.failure().is_none() {
            self.recent.add(stream);
            frame::put_reset(&mut self.out, stream, code);
        }
    }

    /// Removes a stream from the table.
    pub(super) fn forget(&mut self, id: u32) -> Option<Stream> {
        let stream = self.streams.remove(id)?;
        self.receiving.growth.give_back(stream.grown);
        self.receiving.window_full -= stream.grown;
        Some(stream)
    }

    pub(super) fn glitch(&mut self, kind: Glitch) {
        self.glitches.add(kind);
    }

    // ---- windows ----

    /// Gives `bytes` of a stream's window back to the client, when they are worth a frame, or more
    /// than that when it may grow.
    pub(super) fn credit(&mut self, id: u32, bytes: u32) {
        let receiving = &mut self.receiving;
        let Some(stream) = self.streams.find_mut(id) else { return };
        stream.owed += bytes;
        if stream.received || stream.ignored {
            return;
        }
        let (full, mut more) = (receiving.stream_full + stream.grown, 0);
        if stream.has_used_up(full) {
            more = receiving.growth.grow(full);
        }
        if more > 0 {
            // The same for the connection, so that no other stream has less because of it.
            stream.grown += more;
            receiving.window_full += more;
            receiving.window += i64::from(more);
            frame::put_window_update(&mut self.out, 0, more);
        }
        if more > 0 || stream.owed >= full.div_ceil(2) {
            let increment = std::mem::take(&mut stream.owed) + more;
            stream.window += i64::from(increment);
            frame::put_window_update(&mut self.out, id, increment);
        }
    }

    /// Does the same for the connection, even for bytes that the caller keeps: each stream's own
    /// window bounds those, and streams that wait must leave room for those that proceed.
    pub(super) fn give_back_connection(&mut self) {
        let receiving = &mut self.receiving;
        let owed = i64::from(receiving.window_full) - receiving.window;
        if owed >= i64::from(receiving.window_full / 2) {
            receiving.window += owed;
            frame::put_window_update(&mut self.out, 0, owed as u32);
        }
    }

    // ---- leaves ----

    /// The frame whose payload is to be read opens a stream.
    fn opens_stream(&self) -> bool {
        self.reader
            .pending()
            .is_some_and(|head| head.kind == Kind::Headers && head.stream > self.last)
    }
}
