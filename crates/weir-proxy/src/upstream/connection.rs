//! One upstream connection: what was asked on it, and the reading of its answers in order.
//!
//! Called by the engine. Bounds: entries by the server's depth and queue size, the stash by the limits of a reply head.
//! RFC 9112 §6, §9.3; what is doubtful ends the connection (RFC 9112 §9.2, §6.3).
//!
//! ```text
//!  Down --connect--> Connecting --Connected--> Ready --(lost)--> Down
//!                        |                       |
//!                        +--failed--> Down       +--101--> Tunnel --(ended)--> gone
//! ```

use std::borrow::Cow;
use std::collections::VecDeque;
use std::net::SocketAddr;

use weir_http::{
    BodyOddities, BodyPart, Fields, Limits, ReplyBody, ReplyContext, ReplyError, ReplyHead, ReplyReader, Trailers,
};

use crate::base::keys::ServerIndex;
use crate::base::output::Output;
use crate::ending::UpstreamEnd;
use crate::observe::accounting::Account;
use crate::request::pending_request::{ClientName, ExchangeId, PendingRequest, RequestFlags};
use crate::retry::poison::CRASH_US;
use crate::upstream::backoff::Backoff;
use crate::upstream::entry::{Entry, Silence};
use crate::upstream::misframing::Print;
use crate::upstream::pool::Standing;
use crate::upstream::private_pool::Owner;
use crate::upstream::request_log::RequestLog;
use crate::upstream::trust::Doubt;

/// Bytes of line ends in front of an answer that are ignored (docs/hostile.md E3).
const BLANKS_MAX: u8 = 4;
/// A connection that others share has to be empty for so long that an interim answer can only be for the next request.
const CALM_US: u64 = 100_000;
/// Interim answers to one request after which the server is doubted.
const INTERIM_MAX: u8 = 32;

/// Where a connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkState {
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

impl Default for LinkState {
    fn default() -> LinkState {
        LinkState::Down { retry_us: u64::MAX }
    }
}

/// What [`UpstreamConn::step`] found next.
#[derive(Debug)]
pub(crate) enum Step {
    /// The input is used up; what is left of it belongs to a head that is not complete.
    More,
    /// The head of an interim or final answer to the oldest request.
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
    /// The answer to the oldest request is complete.
    End,
    /// The oldest request got something that can't be its answer, or somebody's.
    Doubt(Doubt),
    /// Bytes although nothing is asked.
    Unasked,
}

/// One connection of a server. Made by [`UpstreamConn::new`] and [`UpstreamConn::of_owner`]: `default` leaves zeros, also for timers.
#[derive(Debug, Default)]
pub(crate) struct UpstreamConn {
    /// Its server.
    pub server: ServerIndex,
    /// Position among the server's connections on this worker; meaningless with an owner.
    pub position: u32,
    /// Whose it is; None: the pool's.
    pub owner: Option<Owner>,
    /// Where it leads to, when the configuration does not say that.
    pub address: Option<SocketAddr>,
    /// To whom its bytes are charged.
    pub account: Account,
    /// The driver's name for it.
    pub socket: Option<u64>,
    /// Where it stands.
    pub state: Standing,
    /// What was serialised and is not answered.
    pub log: RequestLog,
    /// Pieces of a request body that is not kept, or of a tunnel; sent behind the log.
    pub body: Output,
    /// Unanswered requests, oldest first.
    pub entries: VecDeque<Entry>,
    /// A send is with the driver.
    pub sending: bool,
    /// In the engine's list of connections with something to send.
    pub dirty: bool,
    /// A receive is armed.
    pub receiving: bool,
    /// The client of the answer that is being read asked to stop.
    pub paused: bool,
    /// When it did.
    pub paused_us: u64,
    /// Others wait for a connection because of that.
    pub yields: bool,
    /// They do, and it lasts for longer than a client needs that reads at all.
    pub stalled: bool,
    /// Which client that was, as in [`PendingRequest::client`].
    pub paused_by: ClientName,
    /// When a timer looks whether the stop lasts; `u64::MAX`: none does.
    pub stall_due_us: u64,
    /// The answer that is next takes far longer than usual: nothing is sent behind it.
    pub late: bool,
    /// When a timer looks whether the answer that is next is late; `u64::MAX`: none does.
    pub late_due_us: u64,
    /// When something was sent that may not be acknowledged, or since then something was last received; `u64::MAX`: nothing was.
    pub unheard_us: u64,
    /// When a timer looks at that; `u64::MAX`: none does.
    pub unheard_due_us: u64,
    /// When a timer looks whether it has rested for long enough; `u64::MAX`: none does.
    pub rest_due_us: u64,
    /// When a timer looks whether its first answer is late; `u64::MAX`: none does.
    pub first_due_us: u64,
    /// Is to make room for others as soon as it has run empty.
    pub leaves: bool,
    /// Nothing may be sent behind what is unanswered now.
    pub hold: bool,
    /// It is being found out whether it is near: it takes nothing meanwhile.
    pub locating: bool,
    /// No second request before the first answer: the connection follows a loss, or is to be located first.
    pub probation: bool,
    /// Had as many unanswered requests as it may have, and not much fewer since.
    pub full: bool,
    /// Let run empty before the next request: a sync point.
    pub syncing: bool,
    /// Ran empty, and it is not known yet whether everything that had arrived by then was read: it takes nothing.
    pub unseen: bool,
    /// Ran empty after something that is likely to bring an answer too many, or one that would not show in what follows.
    pub wary: bool,
    /// Until when that may well come, since it ran empty.
    pub rest_until_us: u64,
    /// Requests since it was last empty for so long.
    pub unrested: u32,
    /// When the first of them was sent.
    pub unrested_us: u64,
    /// Requests sent behind another one since it was last empty.
    pub since_sync: u32,
    /// When it was established.
    pub connected_us: u64,
    /// When it was established, or its connect began, or it ended: for status.
    pub since_us: u64,
    /// How often it ended or could not be established: for status.
    pub closes: u64,
    /// Bytes read since an answer was last complete.
    pub answer_bytes: u64,
    /// Has ever had two requests at a time.
    pub pipelined: bool,
    /// Answers before it had.
    pub answers_alone: u64,
    /// Complete answers since it was made.
    pub answers: u64,
    /// Had rested when the oldest of the unanswered requests that follow each other was sent ([`UpstreamConn::is_rested`]).
    pub rested: bool,
    /// When the last answer was complete.
    pub answered_us: u64,
    /// How often it was tried in vain.
    pub backoff: Backoff,
    /// When the next try is due by that.
    pub due_us: u64,
    /// The present connect, or the connection that came of it, began before that was due: if it fails, it does not count.
    pub scouting: bool,
    /// The streaming request at the end of `entries` has been given completely.
    pub body_done: bool,
    /// The client told to hold its request body back.
    pub body_paused: Option<ExchangeId>,
    /// The answer being read is large: nothing is queued behind it.
    pub large: bool,
    /// The answer being read is HTTP/1.0: nothing may have been sent behind its request.
    pub old: bool,
    /// The head of the oldest request's answer was delivered.
    pub begun: bool,
    /// When it was; meaningless before.
    pub begun_us: u64,
    /// What makes the connection unusable once the answer being read is complete.
    pub poison: Option<Doubt>,
    /// Body bytes of the answer being read.
    pub body_bytes: u64,
    /// Bytes of it that came when nobody wanted it any more, and when the first of them did.
    pub unwanted_bytes: u64,
    /// See above; meaningless while there are none.
    pub unwanted_us: u64,
    /// The answer being read lets the connection live.
    pub persist: bool,
    /// The server said with it that the connection ends, so that it processed nothing behind (RFC 9112 §9.6).
    pub announced: bool,
    /// Asked for shutdown of the sending direction once everything is sent (tunnels).
    pub finish: bool,
    /// The sending direction was shut (tunnels).
    pub finished: bool,
    /// The server has ended its direction (tunnels).
    pub ended: bool,
    /// The other side of a tunnel; None when that is gone.
    pub peer: Option<ExchangeId>,
    /// When a tunnel whose client is gone gives up sending what that said last.
    pub give_up_us: u64,
    /// Why it was last closed, for status.
    pub closed_why: Option<UpstreamEnd>,
    /// How the wait for the next answer goes.
    pub silence: Silence,
    /// A request was sent once more on it: it takes no others, and ends when nobody waits for anything on it.
    pub nudged: bool,
    /// Glitches on it since it was established.
    pub glitches: u32,
    /// The end of a body so far that may become the head of another answer: not delivered yet, but for its first bytes.
    pub quote: Vec<u8>,
    /// How many these are.
    pub quote_given: usize,
    /// When a timer looks whether it is still not known; `u64::MAX`: none does.
    pub quote_due_us: u64,
    /// The body is complete and so delivered, whatever may come behind it.
    pub quote_over: bool,
    /// What the answer being read is like, and when its head came; noted when its body is not complete with that.
    pub print: Option<(Print, u64)>,
    reader: ReplyReader,
    interims: u8,
    blanks: u8,
    bodyless: bool,
    /// The last answer had a body of declared length.
    measured: bool,
}

impl UpstreamConn {
    /// One that is not made yet, and was not to be before `due_us`.
    pub(crate) fn new(server: ServerIndex, position: u32, due_us: u64) -> UpstreamConn {
        UpstreamConn {
            server,
            position,
            since_us: due_us,
            due_us,
            body_done: true,
            persist: true,
            // No timer looks at anything.
            stall_due_us: u64::MAX,
            late_due_us: u64::MAX,
            unheard_us: u64::MAX,
            unheard_due_us: u64::MAX,
            rest_due_us: u64::MAX,
            first_due_us: u64::MAX,
            quote_due_us: u64::MAX,
            give_up_us: u64::MAX,
            ..UpstreamConn::default()
        }
    }

    /// A connection of one client, or of one request, that is made now.
    pub(crate) fn of_owner(server: ServerIndex, owner: Owner, now_us: u64) -> UpstreamConn {
        let mut link = UpstreamConn::new(server, u32::MAX, now_us);
        link.owner = Some(owner);
        link
    }

    /// It is joined with a client, after 101 or before anything was sent on it (CONNECT).
    pub(crate) fn join(&mut self, client: ExchangeId) {
        self.peer = Some(client);
        self.reader.switch();
    }

    /// Notes that it ended or could not be established, for status.
    pub(crate) fn note_close(&mut self, why: UpstreamEnd) {
        (self.closes, self.closed_why) = (self.closes + 1, Some(why));
    }

    /// Forgets everything about the connection that was and ended now; counters that outlive it stay, and that the next one follows
    /// a loss.
    pub(crate) fn reset(&mut self, now_us: u64) {
        let (backoff, closes, closed_why) = (self.backoff, self.closes, self.closed_why);
        let (dirty, probation) = (self.dirty, self.probation);
        *self = UpstreamConn::new(self.server, self.position, u64::MAX);
        (self.backoff, self.closes, self.closed_why) = (backoff, closes, closed_why);
        (self.dirty, self.probation, self.since_us) = (dirty, probation, now_us);
    }

    /// Where it stands.
    #[inline]
    pub(crate) fn state(&self) -> LinkState {
        self.state.get()
    }

    /// Whether it is connected and takes requests.
    pub(crate) fn is_ready(&self) -> bool {
        self.state() == LinkState::Ready
    }

    /// Whether it was seen empty, and goes on.
    pub(crate) fn is_vacant(&self) -> bool {
        let seen = !self.syncing && !self.unseen && !self.locating;
        self.is_ready() && self.persist && self.entries.is_empty() && seen
    }

    /// Whether it is being made, or due to be.
    pub(crate) fn is_coming(&self) -> bool {
        self.is_coming_by(u64::MAX - 1)
    }

    /// Whether it is being made, or due to be by then.
    pub(crate) fn is_coming_by(&self, by_us: u64) -> bool {
        match self.state() {
            LinkState::Connecting { .. } => true,
            LinkState::Down { retry_us } => retry_us <= by_us,
            _ => false,
        }
    }

    /// Whether it is not needed now.
    pub(crate) fn is_spare(&self) -> bool {
        self.state() == LinkState::Down { retry_us: u64::MAX }
    }

    /// How long nothing was asked on it, while that is so.
    pub(crate) fn rest_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.answered_us.max(self.connected_us))
    }

    /// Since when the oldest request is the next one to be answered.
    pub(crate) fn next_since_us(&self) -> u64 {
        self.entries.front().map_or(self.answered_us, |entry| entry.sent_us.max(self.answered_us))
    }

    /// Whether its end would say something of the next request: it would hardly belong to the answer before.
    pub(crate) fn is_rested(&self, now_us: u64) -> bool {
        self.answers == 0 || now_us.saturating_sub(self.answered_us) >= CRASH_US
    }

    /// Whether there is something to give to the driver now.
    pub(crate) fn wants_send(&self) -> bool {
        !self.sending
            && self.socket.is_some()
            && !matches!(self.state(), LinkState::Connecting { .. })
            && (self.log.pending_len() > 0 || !self.body.is_empty() || (self.finish && !self.finished))
    }

    /// Bytes not yet taken by the driver.
    pub(crate) fn unsent(&self) -> usize {
        self.log.pending_len() + self.body.len()
    }

    /// Notes a request whose bytes were just appended to the log from `start` on.
    pub(crate) fn push(&mut self, ask: PendingRequest, start: u64, now_us: u64) {
        let behind = !self.entries.is_empty();
        let soon = self.owner.is_none() && self.answers > 0 && self.rest_us(now_us) < CALM_US;
        if behind {
            self.since_sync += 1;
            if !self.pipelined {
                self.answers_alone = self.answers;
            }
            self.pipelined = true;
        } else {
            self.rested = self.is_rested(now_us);
            if now_us >= self.rest_until_us {
                (self.unrested, self.unrested_us) = (0, now_us);
            }
            self.answered_us = self.answered_us.max(now_us);
        }
        self.unrested += 1;
        if ask.traits.has(RequestFlags::STREAMING) {
            self.body_done = false;
        }
        self.hold |= ask.traits.is_unfollowed();
        let len = (self.log.end() - start) as u32;
        self.entries.push_back(Entry {
            ask,
            start,
            len,
            sent_us: now_us,
            behind,
            soon,
            cancelled: false,
            doubled: false,
            is_copy: false,
        });
    }

    /// Puts new input behind what is kept, and takes all of it out unless that is still the beginning of a head
    /// ([`ReplyReader::join`]).
    pub(crate) fn complete_stash(&mut self, input: &[u8], limits: &Limits) -> Option<Vec<u8>> {
        self.reader.join(input, limits).map(Cow::into_owned)
    }

    /// Keeps what can't be read yet.
    pub(crate) fn keep_stash(&mut self, rest: &[u8]) {
        self.reader.hold(rest);
    }

    /// Takes what was kept out.
    pub(crate) fn take_stash(&mut self) -> Vec<u8> {
        self.reader.take_held()
    }

    /// Whether something is kept, usually an incomplete head.
    pub(crate) fn has_stash(&self) -> bool {
        self.reader.has_held()
    }

    /// Whether the oldest request was given up before its body was complete: its server waits for the rest.
    pub(crate) fn front_is_abandoned(&self) -> bool {
        let abandoned = |entry: &Entry| entry.cancelled && entry.ask.traits.has(RequestFlags::STREAMING);
        !self.body_done && self.entries.front().is_some_and(abandoned)
    }

    /// Whether the end of the connection is the end of the answer being read.
    pub(crate) fn ends_by_close(&self) -> bool {
        self.reader.ends_by_close()
    }

    /// Whether the last answer had no body whatever its fields said.
    pub(crate) fn ended_bodyless(&self) -> bool {
        self.answers > 0 && self.bodyless
    }

    /// Whether nothing came since the end of the last answer, and that said how long it is.
    pub(crate) fn ended_measured(&self) -> bool {
        self.answers > 0 && self.measured && self.blanks == 0
    }

    /// Whether a body is being read (and no tunnel).
    pub(crate) fn is_framed(&self) -> bool {
        !self.reader.is_switched()
    }

    /// Takes what is held back of a body, and how much of it was delivered.
    pub(crate) fn take_quote(&mut self) -> (Vec<u8>, usize) {
        self.quote_due_us = u64::MAX;
        (std::mem::take(&mut self.quote), std::mem::take(&mut self.quote_given))
    }

    /// Whether the body being read is complete, though that was not told yet.
    pub(crate) fn is_body_over(&self) -> bool {
        self.reader.is_complete()
    }

    /// Whether a request behind the oldest was given to the driver: its answer may come.
    pub(crate) fn is_followed(&self) -> bool {
        self.entries.get(1).is_some_and(|entry| entry.start < self.log.flushed())
    }

    /// Bytes still to come of an answer with a declared length.
    pub(crate) fn body_left(&self) -> Option<u64> {
        self.reader.body_left()
    }

    /// What was strange about the body being read, or just read, since this was last called.
    pub(crate) fn take_oddities(&mut self) -> Option<BodyOddities> {
        self.reader.take_oddities()
    }

    /// Interim answers to the oldest request so far.
    pub(crate) fn interims(&self) -> u8 {
        self.interims
    }

    /// Whether the line end that was just skipped is the first one behind an answer.
    pub(crate) fn is_first_blank(&self) -> bool {
        self.blanks == 1
    }

    /// Trailers of the answer that has just ended.
    pub(crate) fn trailers(&self) -> Trailers<'_> {
        self.reader.trailers()
    }

    /// Reads on from `input[*at..]`. Call until it returns [`Step::More`].
    #[inline]
    pub(crate) fn step(&mut self, input: &[u8], at: &mut usize, limits: &Limits, fields: &mut Fields) -> Step {
        if self.reader.awaits_head() {
            return if *at < input.len() { self.step_head(input, at, limits, fields) } else { Step::More };
        }
        match self.reader.read_body(input, at) {
            Ok(BodyPart::More) => Step::More,
            Ok(BodyPart::Data { start, end }) => Step::Body { start, end },
            Ok(BodyPart::End) => Step::End,
            Err(_) => Step::Doubt(Doubt::InvalidLength),
        }
    }

    /// Apart, so that the steps through a body need not make room for a head: 0.5 % of a request's instructions.
    #[inline(never)]
    fn step_head(&mut self, input: &[u8], at: &mut usize, limits: &Limits, fields: &mut Fields) -> Step {
        // What is here before the oldest request was given to the driver answers nothing, although that waits to be sent.
        let asked = match self.entries.front() {
            Some(entry) if entry.start < self.log.flushed() => entry.ask.traits,
            _ => return Step::Unasked,
        };
        if matches!(input[*at], b'\r' | b'\n') && self.answers > 0 {
            // Some servers end a body with a line end that they did not count.
            self.blanks += 1;
            *at += 1;
            return if self.blanks > BLANKS_MAX { Step::Doubt(Doubt::Garbage) } else { Step::Skip };
        }
        let context = ReplyContext { head: asked.has(RequestFlags::HEAD) };
        match self.reader.read_head(input, at, context, limits, fields) {
            Ok(Some(head)) => self.on_head(head, asked),
            Ok(None) => Step::More,
            Err(error) => Step::Doubt(self.blame(error)),
        }
    }

    fn on_head(&mut self, head: ReplyHead, asked: RequestFlags) -> Step {
        if head.status < 200 {
            if head.status == 101 {
                if !asked.has(RequestFlags::UPGRADE) || head.upgrade.is_none() {
                    return Step::Doubt(Doubt::UnaskedUpgrade);
                }
                // Whether it becomes a tunnel is the engine's decision.
                return Step::Head(head);
            }
            self.interims += 1;
            if self.interims > INTERIM_MAX {
                return Step::Doubt(Doubt::InterimFlood);
            }
            return Step::Head(head);
        }
        self.bodyless = matches!(head.body, ReplyBody::None);
        self.measured = matches!(head.body, ReplyBody::Length(1..));
        self.persist = head.persist;
        self.announced = !head.persist;
        Step::Head(head)
    }

    /// After [`Step::End`]: takes the answered request out and gets ready for the next answer.
    pub(crate) fn finish_answer(&mut self, now_us: u64) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        // Now, because the end of an answer may give this connection to the next request at once.
        self.answered_us = now_us;
        self.reader.begin_reply();
        self.interims = 0;
        self.blanks = 0;
        self.poison = None;
        self.body_bytes = 0;
        self.unwanted_bytes = 0;
        self.begun = false;
        self.print = None;
        self.quote_over = false;
        self.late = false;
        self.silence = Silence::Short;
        // Another client's answer comes next: that one has stopped nothing.
        self.paused &= self.entries.front().is_some_and(|next| next.ask.client == self.paused_by);
        self.yields &= self.paused;
        self.stalled &= self.paused;
        self.answers += 1;
        if self.entries.is_empty() {
            self.unseen = std::mem::take(&mut self.hold);
            self.wary = self.since_sync > 0 || !entry.ask.traits.has(RequestFlags::PIPELINABLE);
            self.since_sync = 0;
        }
        Some(entry)
    }

    /// Frees what is answered. Once a receive, not once an answer.
    pub(crate) fn release_log(&mut self) {
        let answered = self.entries.front().map_or(self.log.flushed(), |entry| entry.start);
        self.log.release(answered);
    }

    /// What a head that can't be read says of the server.
    fn blame(&self, error: ReplyError) -> Doubt {
        match error.kind() {
            weir_http::ReplyDoubt::BothFramings => Doubt::BothFramings,
            weir_http::ReplyDoubt::InvalidLength => Doubt::InvalidLength,
            weir_http::ReplyDoubt::UnknownCoding => Doubt::UnknownCoding,
            weir_http::ReplyDoubt::NotAnAnswer if self.bodyless => Doubt::ForbiddenBody,
            // A status line with something wrong in its fields begins where the next answer is to begin.
            weir_http::ReplyDoubt::NotAnAnswer if self.ended_measured() && !error.has_status_line() => {
                Doubt::Misframing
            }
            weir_http::ReplyDoubt::NotAnAnswer => Doubt::Garbage,
        }
    }
}
