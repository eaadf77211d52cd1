//! One upstream connection: the requests on it, and the reading of its responses in order.
//!
//! Called by the engine. Bounds: entries by the server's depth and queue size, the stash by the
//! limits of a response head. RFC 9112 §6, §9.3; doubtful input ends the connection (RFC 9112 §9.2,
//! §6.3).
//!
//! ```text
//!  Down --connect--> Connecting --Connected--> Ready --(lost)--> Down
//!                        |                       |
//!                        +--failed--> Down       +--101--> Tunnel --(ended)--> gone
//! ```

mod parts;
mod reply;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::net::SocketAddr;

use weir_http::{BodyOddities, BodyPart, Fields, Limits, ReplyContext, ReplyHead, Trailers};

pub(crate) use self::parts::{Contact, Gates, History, Outbound, Reading, Rest, Tunnel, Wait};
pub(crate) use self::reply::{Reply, Withheld};
use crate::base::keys::ServerIndex;
use crate::base::output::Spare;
use crate::base::piece::Piece;
use crate::cross::doubt::Doubt;
use crate::observe::accounting::Account;
use crate::request::pending_request::{ExchangeId, PendingRequest, RequestFlags};
use crate::retry::poison::CRASH_US;
use crate::upstream::crowded::Room;
use crate::upstream::entry::Entry;
use crate::upstream::pool::Standing;
use crate::upstream::private_pool::Owner;
use crate::upstream::request_log::RequestLog;
use crate::upstream::unheard::Unheard;

/// How long a shared connection has to be empty before an interim response can only be for the next
/// request.
const CALM_US: u64 = 100_000;

/// A request with its body is kept while the body follows in pieces, as long as it is not larger:
/// any head, and as much body as is gathered.
const HELD_BYTES_MAX: usize = 128 * 1024;

/// The state of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnState {
    /// Not connected; a try is due at this time.
    Down {
        /// When to connect; `u64::MAX`: when a request needs it, or an operator says so.
        retry_us: u64,
    },
    /// A connect is on its way.
    Connecting {
        /// When the patience with it ends.
        deadline_us: u64,
    },
    /// Takes requests.
    Ready,
    /// Joined with a client after 101, or for CONNECT.
    Tunnel,
}

impl Default for ConnState {
    fn default() -> ConnState {
        ConnState::Down { retry_us: u64::MAX }
    }
}

/// What [`UpstreamConn::step`] found next.
#[derive(Debug)]
pub(crate) enum Step {
    /// The input is used up; any remainder belongs to a head that is not complete.
    More,
    /// The head of an interim or final response to the oldest request.
    Head(ReplyHead),
    /// `input[start..end]` is part of the body (or of the tunnel).
    Body {
        /// First byte.
        start: usize,
        /// Behind the last byte.
        end: usize,
    },
    /// A byte that may be ignored.
    Skip,
    /// The response to the oldest request is complete.
    End,
    /// The oldest request got something that can't be its response, or any response.
    Doubt(Doubt),
    /// Bytes although no request is unanswered.
    Unasked,
}

/// One connection of a server. Made by [`UpstreamConn::new`] and [`UpstreamConn::of_owner`].
#[derive(Debug, Default)]
pub(crate) struct UpstreamConn {
    /// Its server.
    pub server: ServerIndex,
    /// Position among the server's connections on this worker; meaningless with an owner.
    pub position: u32,
    /// Its owner; None: the pool.
    pub owner: Option<Owner>,
    /// Its destination, when the configuration does not determine that.
    pub address: Option<SocketAddr>,
    /// The account that is charged for its bytes.
    pub account: Account,
    /// The driver's name for it.
    pub socket: Option<u64>,
    /// Its state.
    pub state: Standing,
    /// What was serialised and is not answered.
    pub log: RequestLog,
    /// Unanswered requests, oldest first.
    pub entries: VecDeque<Entry>,
    /// The data sent besides the log.
    pub out: Outbound,
    /// The state of one that is joined with a client.
    pub tunnel: Tunnel,
    /// Whether it is read.
    pub reading: Reading,
    /// The response that is being read.
    pub reply: Reply,
    /// The part of it that is held back.
    pub withheld: Withheld,
    /// The state of the wait for the next response.
    pub wait: Wait,
    /// Whether the sent bytes are acknowledged.
    pub unheard: Unheard,
    /// Whether it waits for a place at its server, or gives one up.
    pub room: Room,
    /// How long it has been idle, or has to be.
    pub rest: Rest,
    /// What keeps requests from it.
    pub gate: Gates,
    /// How it came to be.
    pub contact: Contact,
    /// What it has done.
    pub history: History,
}

impl UpstreamConn {
    /// Returns one that is not made yet, and was not to be made before `due_us`.
    pub(crate) fn new(server: ServerIndex, position: u32, due_us: u64) -> UpstreamConn {
        let contact = Contact { since_us: due_us, due_us, ..Contact::default() };
        UpstreamConn { server, position, contact, ..UpstreamConn::default() }
    }

    /// A connection of one client, or of one request, that is made now.
    pub(crate) fn of_owner(server: ServerIndex, owner: Owner, now_us: u64) -> UpstreamConn {
        UpstreamConn { owner: Some(owner), ..UpstreamConn::new(server, u32::MAX, now_us) }
    }

    /// It is joined with a client, after 101 or before anything was sent on it (CONNECT).
    pub(crate) fn join(&mut self, client: ExchangeId) {
        self.tunnel.peer = Some(client);
        self.reply.reader.switch();
    }

    /// Forgets everything about the connection that was and ended now; counters that outlive it are
    /// kept, and the fact that the next one follows a loss.
    pub(crate) fn reset(&mut self, now_us: u64) {
        let (contact, dirty, probation) =
            (self.contact.of_next(now_us), self.out.dirty, self.gate.probation);
        *self = UpstreamConn { contact, ..UpstreamConn::new(self.server, self.position, u64::MAX) };
        (self.out.dirty, self.gate.probation) = (dirty, probation);
    }

    /// Returns its state.
    #[inline]
    pub(crate) fn state(&self) -> ConnState {
        self.state.get()
    }

    /// Whether it is connected and takes requests.
    pub(crate) fn is_ready(&self) -> bool {
        self.state() == ConnState::Ready
    }

    /// Whether it was seen empty, and continues.
    pub(crate) fn is_vacant(&self) -> bool {
        let seen = !self.rest.syncing && !self.rest.unseen && !self.gate.locating;
        self.is_ready() && self.reply.persist && self.entries.is_empty() && seen
    }

    /// Whether it is being made, or due to be.
    pub(crate) fn is_coming(&self) -> bool {
        self.is_coming_by(u64::MAX - 1)
    }

    /// Whether it is being made, or due to be by then.
    pub(crate) fn is_coming_by(&self, by_us: u64) -> bool {
        match self.state() {
            ConnState::Connecting { .. } => true,
            ConnState::Down { retry_us } => retry_us <= by_us,
            _ => false,
        }
    }

    /// Whether it is not needed now.
    pub(crate) fn is_spare(&self) -> bool {
        self.state() == ConnState::Down { retry_us: u64::MAX }
    }

    /// Returns how long it has had no request, while that is so.
    pub(crate) fn rest_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.history.answered_us.max(self.contact.connected_us))
    }

    /// Returns since when the oldest request is the next one to be answered.
    pub(crate) fn next_since_us(&self) -> u64 {
        self.entries
            .front()
            .map_or(self.history.answered_us, |entry| entry.sent_us.max(self.history.answered_us))
    }

    /// Whether its end would say something about the next request: it would hardly belong to the
    /// previous response.
    pub(crate) fn is_rested(&self, now_us: u64) -> bool {
        self.history.answers == 0 || now_us.saturating_sub(self.history.answered_us) >= CRASH_US
    }

    /// Whether there is something to give to the driver now.
    pub(crate) fn wants_send(&self) -> bool {
        !self.out.sending
            && self.socket.is_some()
            && !matches!(self.state(), ConnState::Connecting { .. })
            && (self.log.pending_len() > 0
                || !self.out.body.is_empty()
                || self.tunnel.wants_finish())
    }

    /// Bytes not yet taken by the driver.
    pub(crate) fn unsent(&self) -> usize {
        self.log.pending_len() + self.out.body.len()
    }

    /// Notes a request whose bytes were just appended to the log from `start` on.
    pub(crate) fn push(&mut self, ask: PendingRequest, start: u64, now_us: u64) {
        let behind = !self.entries.is_empty();
        let is_strange = |entry: &Entry| entry.ask.carrier != ask.carrier;
        // Mostly the last one decides.
        let behind_strangers = self.entries.back().is_some_and(|last| {
            is_strange(last) || (last.behind_strangers && self.entries.iter().any(is_strange))
        });
        let strange_us = self.history.strange_us(ask.carrier);
        let soon = self.owner.is_none()
            && strange_us.is_some_and(|us| now_us.saturating_sub(us) < CALM_US);
        if behind {
            self.history.on_pipelined();
        } else {
            self.history.rested = self.is_rested(now_us);
            self.history.answered_us = self.history.answered_us.max(now_us);
        }
        self.rest.on_sent(behind, now_us);
        if ask.traits.has(RequestFlags::STREAMING) {
            (self.out.body_begun, self.out.body_done) = (false, false);
        }
        if ask.traits.has(RequestFlags::BODY) {
            self.out.lookalike.begin(self.log.pending_from(start));
        }
        self.gate.hold |= ask.traits.is_unfollowed();
        let len = (self.log.end() - start) as u32;
        self.entries.push_back(Entry {
            ask,
            start,
            len,
            sent_us: now_us,
            behind,
            behind_strangers,
            soon,
            cancelled: false,
            given_up: false,
            doubled: false,
            moved: false,
            is_copy: false,
        });
    }

    /// Takes a piece of the body of the request at the end of the entries. As long as all that was
    /// sent of it fits, it is kept, so that it can be sent again.
    pub(crate) fn push_body(&mut self, piece: Piece<'_>, spare: &mut Spare) {
        self.out.body_begun |= !piece.is_empty();
        let is_apart = self.state() == ConnState::Tunnel || !self.out.body.is_empty();
        let Some(entry) = self.entries.back_mut().filter(|_| !is_apart) else {
            return piece.push_to(&mut self.out.body, spare);
        };
        if entry.ask.traits.has(RequestFlags::RETRIABLE)
            && entry.len as usize + piece.len() <= HELD_BYTES_MAX
        {
            entry.len += piece.len() as u32;
            self.log.pending().extend_from_slice(piece.bytes());
        } else {
            entry.ask.traits = entry.ask.traits.without(RequestFlags::RETRIABLE);
            piece.push_to(&mut self.out.body, spare);
        }
    }

    /// Whether the oldest request asks its server whether to send the body.
    pub(crate) fn asks_for_leave(&self) -> bool {
        self.entries.front().is_some_and(|entry| entry.ask.traits.has(RequestFlags::EXPECTS))
    }

    /// Whether all of the last request was given to the driver.
    pub(crate) fn has_given_all(&self) -> bool {
        self.out.is_complete() && self.log.pending_len() == 0
    }

    /// Puts new input behind what is kept, and takes all of it out unless that is still the
    /// beginning of a head ([`ReplyReader::join`]).
    pub(crate) fn complete_stash(&mut self, input: &[u8], limits: &Limits) -> Option<Vec<u8>> {
        self.reply.reader.join(input, limits).map(Cow::into_owned)
    }

    /// Keeps what can't be read yet.
    pub(crate) fn keep_stash(&mut self, rest: &[u8]) {
        self.reply.reader.hold(rest);
    }

    /// Takes out what was kept.
    pub(crate) fn take_stash(&mut self) -> Vec<u8> {
        self.reply.reader.take_held()
    }

    /// Whether something is kept, usually an incomplete head.
    pub(crate) fn has_stash(&self) -> bool {
        self.reply.reader.has_held()
    }

    /// Whether the oldest request was cancelled before its body was complete: its server waits for
    /// the rest.
    pub(crate) fn front_is_abandoned(&self) -> bool {
        let abandoned =
            |entry: &Entry| entry.cancelled && entry.ask.traits.has(RequestFlags::STREAMING);
        !self.out.body_done && self.entries.front().is_some_and(abandoned)
    }

    /// Whether the end of the connection is the end of the response being read.
    pub(crate) fn ends_by_close(&self) -> bool {
        self.reply.reader.ends_by_close()
    }

    /// Whether the last response had no body whatever its fields said.
    pub(crate) fn ended_bodyless(&self) -> bool {
        self.history.answers > 0 && self.reply.bodyless
    }

    /// Whether nothing has come since the end of the last response, and that response declared its
    /// length.
    pub(crate) fn ended_measured(&self) -> bool {
        self.history.answers > 0 && self.reply.measured && self.reply.blanks == 0
    }

    /// Whether a body is being read (and no tunnel).
    pub(crate) fn is_framed(&self) -> bool {
        !self.reply.reader.is_switched()
    }

    /// Whether the body being read is complete, though that was not reported yet.
    pub(crate) fn is_body_over(&self) -> bool {
        self.reply.reader.is_complete()
    }

    /// Whether a request behind the oldest was given to the driver: its response may come.
    pub(crate) fn is_followed(&self) -> bool {
        self.entries.get(1).is_some_and(|entry| entry.start < self.log.flushed())
    }

    /// The same for one that is not merely the oldest once more.
    pub(crate) fn is_followed_by_another(&self) -> bool {
        let oldest = self.entries.front().map(|entry| entry.ask.id);
        let sent = self.entries.iter().take_while(|entry| entry.start < self.log.flushed());
        sent.skip(1).any(|entry| Some(entry.ask.id) != oldest)
    }

    /// Returns the bytes that are missing from a response with a declared length.
    pub(crate) fn body_left(&self) -> Option<u64> {
        self.reply.reader.body_left()
    }

    /// What was strange about the body being read, or just read, since this was last called.
    pub(crate) fn take_oddities(&mut self) -> Option<BodyOddities> {
        self.reply.reader.take_oddities()
    }

    /// Returns the number of interim responses to the oldest request so far.
    pub(crate) fn interims(&self) -> u8 {
        self.reply.interims
    }

    /// Whether the line end that was just skipped is the first one behind a response.
    pub(crate) fn is_first_blank(&self) -> bool {
        self.reply.blanks == 1
    }

    /// Returns the trailers of the response that has just ended.
    pub(crate) fn trailers(&self) -> Trailers<'_> {
        self.reply.reader.trailers()
    }

    /// Reads on from `input[*at..]`. Call until it returns [`Step::More`].
    #[inline]
    pub(crate) fn step(
        &mut self,
        input: &[u8],
        at: &mut usize,
        limits: &Limits,
        fields: &mut Fields,
    ) -> Step {
        if self.reply.reader.awaits_head() {
            return if *at < input.len() {
                self.step_head(input, at, limits, fields)
            } else {
                Step::More
            };
        }
        match self.reply.reader.read_body(input, at) {
            Ok(BodyPart::More) => Step::More,
            Ok(BodyPart::Data { start, end }) => Step::Body { start, end },
            Ok(BodyPart::End) => Step::End,
            Err(_) => Step::Doubt(Doubt::InvalidLength),
        }
    }

    /// Apart, so that the steps through a body need not make room for a head: 0.5 % of a request's
    /// instructions.
    #[inline(never)]
    fn step_head(
        &mut self,
        input: &[u8],
        at: &mut usize,
        limits: &Limits,
        fields: &mut Fields,
    ) -> Step {
        // Bytes that arrive before the driver has the oldest request answer nothing, although it
        // waits to be sent.
        let asked = match self.entries.front() {
            Some(entry) if entry.start < self.log.flushed() => entry.ask.traits,
            _ => return Step::Unasked,
        };
        if matches!(input[*at], b'\r' | b'\n') && self.history.answers > 0 {
            *at += 1;
            return self.reply.on_blank();
        }
        let context = ReplyContext { head: asked.has(RequestFlags::HEAD) };
        match self.reply.reader.read_head(input, at, context, limits, fields) {
            Ok(Some(head)) => self.reply.on_head(head, asked),
            Ok(None) => Step::More,
            Err(error) => Step::Doubt(self.reply.blame(error, self.ended_measured())),
        }
    }

    /// After [`Step::End`]: takes the answered request out and gets ready for the next response.
    pub(crate) fn finish_answer(&mut self, now_us: u64) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        // Now, because the end of a response may give this connection to the next request at once.
        self.history.on_answered(entry.ask.carrier, now_us);
        self.reply.end();
        self.withheld.over = false;
        self.wait.end();
        self.reading.on_next(self.entries.front().map(|next| next.ask.client));
        // An error may have been sent before the body was read, or without reading it (RFC 9112
        // §9.3).
        let is_unread = self.reply.status >= 400 || self.out.lookalike.is_found();
        self.gate.leftover |= entry.ask.traits.has(RequestFlags::BODY) && is_unread;
        if self.entries.is_empty() {
            let held = std::mem::take(&mut self.gate.hold);
            self.rest.on_empty(held, !entry.ask.traits.has(RequestFlags::PIPELINABLE));
        }
        Some(entry)
    }

    /// Takes back a request of which nothing was given to the driver.
    pub(crate) fn retract(&mut self, position: usize) -> Option<Entry> {
        let entry = self.entries.remove(position)?;
        debug_assert!(entry.start >= self.log.flushed(), "nothing of it was sent");
        self.log.cut(entry.start, entry.len as usize);
        self.entries.range_mut(position..).for_each(|later| later.start -= u64::from(entry.len));
        // A request that nothing may follow was the last one.
        self.gate.hold &= !entry.ask.traits.is_unfollowed();
        self.rest.on_retracted(entry.behind);
        Some(entry)
    }

    /// Frees the answered requests. Once a receive, not once a response.
    pub(crate) fn release_log(&mut self) {
        let answered = self.entries.front().map_or(self.log.flushed(), |entry| entry.start);
        self.log.release(answered);
    }
}
