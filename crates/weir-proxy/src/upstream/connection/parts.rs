//! The state of an upstream connection, in groups that have one subject each: the data to be sent,
//! how its responses are received and awaited, when it is idle, what opens and shuts it, how it
//! came to be, what it has done. Pure.
//!
//! Each group answers for its own fields; [`super`] decides what follows for the connection, and
//! [`crate::upstream::server::Server::refresh`] for its server. A time of `u64::MAX` is one at
//! which no timer fires.

use crate::base::output::Output;
use crate::ending::UpstreamEnd;
use crate::request::lookalike::Lookalike;
use crate::request::pending_request::{ClientName, ExchangeId};
use crate::upstream::backoff::Backoff;
use crate::upstream::class::Mark;
use crate::upstream::entry::Silence;

/// Data on its way to the server besides the log. At most one of its sends is with the driver.
#[derive(Debug)]
pub(crate) struct Outbound {
    /// Pieces of a request body that are not kept, or of a tunnel; sent behind the log.
    pub body: Output,
    /// What the body of the last request with a body looks like.
    pub lookalike: Lookalike,
    /// Part of the body of the last streaming request has followed its head.
    pub body_begun: bool,
    /// The streaming request at the end of the entries has arrived completely.
    pub body_done: bool,
    /// The client that was asked to hold its request body back.
    pub body_paused: Option<ExchangeId>,
    /// A send is with the driver.
    pub sending: bool,
    /// In the list of connections with something to send.
    pub dirty: bool,
}

impl Default for Outbound {
    fn default() -> Outbound {
        let (body, lookalike) = Default::default();
        Outbound {
            body,
            lookalike,
            body_begun: false,
            body_done: true,
            body_paused: None,
            sending: false,
            dirty: false,
        }
    }
}

impl Outbound {
    /// Whether all of the body of the last request was given to the driver.
    pub(crate) fn is_complete(&self) -> bool {
        self.body_done && self.body.is_empty()
    }
}

/// A connection that is joined with one client. `finished` implies `finish`.
#[derive(Debug)]
pub(crate) struct Tunnel {
    /// Asked for shutdown of the sending direction once everything is sent.
    pub finish: bool,
    /// The sending direction was shut.
    pub finished: bool,
    /// The server has ended its direction.
    pub ended: bool,
    /// The other side; None when that is gone.
    pub peer: Option<ExchangeId>,
    /// When a tunnel whose client is gone gives up sending the client's last data.
    pub give_up_us: u64,
}

impl Default for Tunnel {
    fn default() -> Tunnel {
        Tunnel { finish: false, finished: false, ended: false, peer: None, give_up_us: u64::MAX }
    }
}

impl Tunnel {
    /// Whether the sending direction is to be shut, and was not yet.
    pub(crate) fn wants_finish(&self) -> bool {
        self.finish && !self.finished
    }

    /// Whether both sides have ended in order.
    pub(crate) fn is_over(&self) -> bool {
        self.ended && self.finished
    }
}

/// Whether the connection is read, and which client stopped that. `yields` and `stalled` imply
/// `paused`.
#[derive(Debug)]
pub(crate) struct Reading {
    /// A receive is armed.
    pub receiving: bool,
    /// The client of the response that is being read asked to stop.
    pub paused: bool,
    /// When it did.
    pub paused_us: u64,
    /// Others wait for a connection because of that.
    pub yields: bool,
    /// They do, and it lasts for longer than any client needs that reads at all.
    pub stalled: bool,
    /// Which client that was, as in [`crate::request::pending_request::PendingRequest::client`].
    pub paused_by: ClientName,
    /// Bytes of the response under way that another worker was given, and for which it has not said
    /// yet that there is room for more.
    pub unheard: usize,
    /// When a timer checks whether the stop lasts.
    pub due_us: u64,
}

impl Default for Reading {
    fn default() -> Reading {
        Reading {
            receiving: false,
            paused: false,
            paused_us: 0,
            yields: false,
            stalled: false,
            paused_by: ClientName::default(),
            unheard: 0,
            due_us: u64::MAX,
        }
    }
}

impl Reading {
    /// A client has enough (`pause`), or reads on.
    pub(crate) fn set(&mut self, pause: bool, client: ClientName) {
        (self.paused, self.yields, self.stalled) = (pause, false, false);
        self.paused_by = client;
    }

    /// It is stopped now, and no other request is known to suffer from it.
    pub(crate) fn begin_pause(&mut self, now_us: u64) {
        (self.paused_us, self.yields, self.stalled) = (now_us, false, false);
    }

    /// The next response is for this client, or for none: one of another client has stopped
    /// nothing.
    pub(crate) fn on_next(&mut self, client: Option<ClientName>) {
        self.unheard = 0;
        self.paused &= client == Some(self.paused_by);
        self.yields &= self.paused;
        self.stalled &= self.paused;
    }
}

/// The state of the wait for the next response.
#[derive(Debug)]
pub(crate) struct Wait {
    /// The next response takes far longer than usual: nothing is sent behind it.
    pub late: bool,
    /// When a timer checks whether the next response is late.
    pub due_us: u64,
    /// Whether its server may have overlooked the request.
    pub silence: Silence,
    /// A request was sent once more on it: it takes no others, and ends when no request waits on it
    /// any more.
    pub nudged: bool,
    /// When a timer checks whether it ends because no client wants the next response.
    pub left_us: u64,
    /// The unanswered request is a rehearsal.
    pub rehearses: bool,
    /// The state of its server when the oldest request became the next one to be answered.
    pub mark: Mark,
}

impl Default for Wait {
    fn default() -> Wait {
        let mark = Mark::default();
        let silence = Silence::Short;
        Wait {
            late: false,
            due_us: u64::MAX,
            silence,
            nudged: false,
            left_us: u64::MAX,
            rehearses: false,
            mark,
        }
    }
}

impl Wait {
    /// The response is complete.
    pub(crate) fn end(&mut self) {
        (self.late, self.silence, self.left_us) = (false, Silence::Short, u64::MAX);
    }
}

/// How long it has been idle, and may have to be before the next request. `since_sync` <=
/// `unrested`.
#[derive(Debug)]
pub(crate) struct Rest {
    /// When a timer checks whether it has been idle for long enough.
    pub due_us: u64,
    /// It is allowed to run empty before the next request: a sync point.
    pub syncing: bool,
    /// It ran empty, and it is not known yet whether everything that had arrived by then was read:
    /// it takes nothing.
    pub unseen: bool,
    /// It ran empty after something that is likely to bring an answer too many, or one that would
    /// not be noticed later.
    pub wary: bool,
    /// Until when that may well come, since it ran empty.
    pub until_us: u64,
    /// Requests since it was last empty for long enough.
    pub unrested: u32,
    /// When the first of them was sent.
    pub unrested_us: u64,
    /// Requests sent behind another since it was last empty.
    pub since_sync: u32,
}

impl Default for Rest {
    fn default() -> Rest {
        Rest {
            due_us: u64::MAX,
            syncing: false,
            unseen: false,
            wary: false,
            until_us: 0,
            unrested: 0,
            unrested_us: 0,
            since_sync: 0,
        }
    }
}

impl Rest {
    /// A request is sent, behind others or on the empty connection.
    pub(crate) fn on_sent(&mut self, behind: bool, now_us: u64) {
        if behind {
            self.since_sync += 1;
        } else if now_us >= self.until_us {
            (self.unrested, self.unrested_us) = (0, now_us);
        }
        self.unrested += 1;
    }

    /// A request was taken back before it was sent. `behind`: it was put behind others.
    pub(crate) fn on_retracted(&mut self, behind: bool) {
        self.since_sync -= u32::from(behind);
        self.unrested -= 1;
    }

    /// It has run empty. `held`: nothing could follow the last request. `alone`: that request was
    /// not to be pipelined.
    pub(crate) fn on_empty(&mut self, held: bool, alone: bool) {
        self.unseen = held;
        self.wary = self.since_sync > 0 || alone;
        self.since_sync = 0;
    }

    /// Everything that had arrived when it ran empty was read: it takes requests again.
    pub(crate) fn reopen(&mut self) {
        (self.syncing, self.unseen, self.wary) = (false, false, false);
    }

    /// Whether it still remains idle in case the last request brings something more.
    pub(crate) fn is_wary(&self, now_us: u64) -> bool {
        self.wary && now_us < self.until_us
    }
}

/// What keeps requests from it though it is up.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    /// Nothing may be sent behind the requests that are unanswered now.
    pub hold: bool,
    /// It is being determined whether it is near: it takes nothing meanwhile.
    pub locating: bool,
    /// No second request before the first response: the connection follows a loss, or is to be
    /// located first.
    pub probation: bool,
    /// It had as many unanswered requests as it may have, and not much fewer since.
    pub full: bool,
    /// The server may not have read the body of the last request: it may take the unread part for
    /// the next request.
    pub leftover: bool,
}

impl Gates {
    /// It has `len` unanswered requests of at most `limit`. It is refilled by a quarter of the
    /// depth: one request for each response as it comes would make batches of one ever after.
    pub(crate) fn fill(&mut self, len: u32, limit: u32) {
        self.full = len >= limit || self.full && len > limit - limit / 4;
    }
}

/// How it came to be, and how often it ended. A lost connection leaves this to its replacement.
#[derive(Debug, Default)]
pub(crate) struct Contact {
    /// How often connecting has failed.
    pub backoff: Backoff,
    /// When the next try is due by that.
    pub due_us: u64,
    /// The present connect, or the connection that it made, began before that was due: if it fails,
    /// it does not count.
    pub scouting: bool,
    /// When it was established.
    pub connected_us: u64,
    /// When it was established, or its connect began, or it ended: for status.
    pub since_us: u64,
    /// How often it ended or could not be established: for status.
    pub closes: u64,
    /// Why it was last closed, for status.
    pub closed_why: Option<UpstreamEnd>,
}

impl Contact {
    /// It ended or could not be established.
    pub(crate) fn note_close(&mut self, why: UpstreamEnd) {
        (self.closes, self.closed_why) = (self.closes + 1, Some(why));
    }

    /// A connect begins.
    pub(crate) fn begin(&mut self, now_us: u64) {
        self.since_us = now_us;
        self.scouting = self.due_us > now_us;
    }

    /// Whether the connect that failed, or whose connection ended, had begun before its due time,
    /// which is still to come.
    pub(crate) fn is_ahead(&self, now_us: u64) -> bool {
        self.scouting && self.due_us > now_us
    }

    /// Returns what its replacement keeps of it, when the connection is gone.
    pub(crate) fn of_next(&self, now_us: u64) -> Contact {
        let Contact { backoff, closes, closed_why, .. } = *self;
        Contact {
            backoff,
            closes,
            closed_why,
            due_us: u64::MAX,
            since_us: now_us,
            scouting: false,
            connected_us: 0,
        }
    }
}

/// What it has done since it was established. `answers_alone` <= `answers`.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// It has had two requests at a time.
    pub pipelined: bool,
    /// Responses before it had.
    pub answers_alone: u64,
    /// Complete responses.
    pub answers: u64,
    /// When the last response was complete.
    pub answered_us: u64,
    /// The client connection that it was for, and when it was complete.
    last: Option<(ClientName, u64)>,
    /// When the last response to any other client connection was complete.
    before_us: Option<u64>,
    /// It had been idle when the oldest of the consecutive unanswered requests was sent
    /// ([`super::UpstreamConn::is_rested`]).
    pub rested: bool,
    /// Glitches on it.
    pub glitches: u32,
}

impl History {
    /// A response to this client connection is complete.
    pub(crate) fn on_answered(&mut self, carrier: ClientName, now_us: u64) {
        if let Some((_, us)) = self.last.filter(|(last, _)| *last != carrier) {
            self.before_us = Some(us);
        }
        self.last = Some((carrier, now_us));
        self.answered_us = now_us;
        self.answers += 1;
    }

    /// Returns when the last response to another client connection was complete; None: none was.
    pub(crate) fn strange_us(&self, carrier: ClientName) -> Option<u64> {
        match self.last {
            Some((last, us)) if last != carrier => Some(us),
            _ => self.before_us,
        }
    }

    /// A request is sent behind another one.
    pub(crate) fn on_pipelined(&mut self) {
        if !self.pipelined {
            self.answers_alone = self.answers;
        }
        self.pipelined = true;
    }
}
