//! Handles a connection that has ended: what its end says about its server, and the fate of each
//! request that was on it.
//!
//! Called by [`super::close`], which has the rest done. A request fails, returns to the worker of
//! its client, or has to be placed again. This module decides which, from how the connection ended
//! and how far the request had come. docs/connections.md#trust-in-a-server, docs/retries.md.

use std::collections::VecDeque;

use super::agenda::{Agenda, Ending};
use super::cancel::Cancelled;
use super::connect::note_idle_end;
use super::groups::Groups;
use super::isolation::Isolation;
use super::pool::{Pool, take_requests};
use super::private_pool::PrivatePools;
use crate::base::keys::{ConnKey, ServerIndex};
use crate::base::output::Output;
use crate::cause::Cause;
use crate::context::Context;
use crate::cross::mail::{Fate, Mail, Repetition};
use crate::ending::UpstreamEnd;
use crate::request::pending_request::{ClientName, PendingRequest, RequestFlags};
use crate::upstream::connection::UpstreamConn;
use crate::upstream::entry::Entry;
use crate::upstream::request_log::RequestLog;
use crate::upstream::server::{Reach, Server};

/// A server that ends a connection so soon after an answer ends it because of that.
pub(super) const ABRUPT_US: u64 = 100_000;
/// A connection that ends without an answer within this time counts as a failed try.
const FRUITLESS_US: u64 = 1_000_000;
/// How often a request may be the next one when a server ends a connection in order, before it is
/// taken for the reason.
const PASSED_MAX: u8 = 2;

/// How a connection came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Loss {
    /// The server said with an answer that it processed nothing behind it.
    Announced,
    /// Between two answers: of an answer that ends by close, or one after which the connection is
    /// not good for the next.
    Orderly,
    /// The server closed between two answers without saying so: a limit, an idle timer; or it died
    /// of the oldest request, which looks the same when it had read all that was sent.
    Closed,
    /// Our own decision, because of one client: the others are not to blame, and their tries are
    /// not counted.
    Ours,
    /// The server reset it, or closed it within an answer or before the first: it may have died.
    Died,
    /// Anything else.
    Broken,
    /// The answer to the oldest request is bad.
    BadAnswer,
}

impl Loss {
    /// Whether a request that was on the connection is sent again, and whether that counts as a
    /// try; or its failure. `unsent`: nothing of the request was given to the driver, so that all
    /// of it is still here, including the received part of a body that is not kept.
    fn verdict(self, ask: &mut PendingRequest, oldest: bool, unsent: bool) -> Result<bool, Cause> {
        if oldest && self == Loss::BadAnswer {
            Err(Cause::BadAnswer)
        } else if unsent {
            Ok(false)
        } else if !ask.traits.has(RequestFlags::RETRIABLE) {
            Err(Cause::Lost)
        } else if self == Loss::Announced {
            Ok(false)
        } else {
            // Twice the reason for the end is hardly chance.
            ask.passed += u8::from(oldest && matches!(self, Loss::Orderly | Loss::Closed));
            ask.traits = ask.traits.with(RequestFlags::ALONE, oldest && self == Loss::Closed);
            Ok(ask.passed > PASSED_MAX
                || !matches!(self, Loss::Orderly | Loss::Closed | Loss::Ours))
        }
    }
}

/// A connection that has ended: its requests, and what its end says.
pub(super) struct Lost {
    pub(super) server: ServerIndex,
    loss: Loss,
    why: UpstreamEnd,
    /// It belonged to no single client.
    pooled: bool,
    /// The server ended it while nothing was asked.
    at_rest: bool,
    /// How long nothing had been asked, while that was so.
    rest_us: u64,
    /// The server ended it right behind an answer, without a word.
    abrupt: bool,
    /// The server ended it with requests that followed others, unanswered.
    pipelined: bool,
    /// The server ended it without announcing that.
    sudden: bool,
    /// It had rested when the oldest of the unanswered requests was sent.
    rested: bool,
    connected_us: u64,
    /// Complete answers, and those of them before it ever had two requests at a time.
    answers: u64,
    /// See above.
    answers_alone: u64,
    /// When the oldest request was put on it, if any of that was given to the driver.
    front_us: Option<u64>,
    /// What was unanswered is a rehearsal: requests of weir's own.
    rehearsal: bool,
    /// The head of the oldest request's answer was passed on.
    begun: bool,
    /// Whose that request was.
    client: ClientName,
    /// Unanswered requests, oldest first.
    entries: VecDeque<Entry>,
    log: RequestLog,
    /// What is here of a body that is not kept, and whether that is its end.
    body: Output,
    /// See above.
    body_done: bool,
}

impl Lost {
    /// Takes what a connection has, and notes on it that it ends.
    pub(super) fn take(
        conn: &mut UpstreamConn,
        server: &mut Server,
        ending: Ending,
        cx: &Context,
    ) -> Lost {
        let now_us = cx.now_us;
        let Ending { loss, why } = ending;
        // What weir itself ends, for one client, is no failure of its server.
        let young = conn.history.answers == 0
            && now_us.saturating_sub(conn.contact.connected_us) < FRUITLESS_US;
        let fruitless = young && loss != Loss::Ours;
        conn.contact.note_close(why);
        if !fruitless {
            conn.contact.backoff.reset();
        }
        let (pooled, was_ready) = (conn.owner.is_none(), conn.is_ready());
        let by_server = matches!(loss, Loss::Announced | Loss::Orderly | Loss::Closed | Loss::Died);
        let unsaid = matches!(loss, Loss::Died | Loss::Closed) && was_ready;
        let rest_us = conn.rest_us(now_us);
        let behind_answer = unsaid && !conn.reply.begun && conn.history.answers > 0;
        let front = conn.entries.front().filter(|front| front.start < conn.log.flushed());
        Lost {
            server: conn.server,
            loss,
            why,
            pooled,
            at_rest: unsaid && conn.entries.is_empty(),
            rest_us,
            abrupt: behind_answer && pooled && (!conn.entries.is_empty() || rest_us < ABRUPT_US),
            sudden: pooled && unsaid && !conn.wait.rehearses,
            pipelined: by_server
                && was_ready
                && conn.rest.since_sync > 0
                && !conn.entries.is_empty(),
            rested: conn.history.rested,
            connected_us: conn.contact.connected_us,
            answers: conn.history.answers,
            answers_alone: conn.history.answers_alone,
            front_us: front.map(|front| front.sent_us),
            rehearsal: conn.wait.rehearses,
            begun: conn.reply.begun,
            client: conn.entries.front().map_or(ClientName::default(), |front| front.ask.client),
            entries: take_requests(conn, server, cx),
            log: std::mem::take(&mut conn.log),
            body: std::mem::take(&mut conn.out.body),
            body_done: conn.out.body_done,
        }
    }

    /// Whether nothing of a request that was on it was given to the driver.
    fn is_unsent(&self, entry: &Entry) -> bool {
        entry.start >= self.log.flushed()
    }
    /// Whether its server may have died with a request on it.
    pub(super) fn is_death(&self) -> bool {
        self.loss == Loss::Died && self.front_us.is_some() && !self.rehearsal
    }

    /// How many requests were sent on it and not answered, if the server ended it without
    /// announcing that.
    pub(super) fn sudden_end(&self) -> Option<usize> {
        self.sudden.then(|| self.entries.iter().filter(|entry| !self.is_unsent(entry)).count())
    }

    /// Whether what was unanswered on it is a rehearsal.
    pub(super) fn is_rehearsal(&self) -> bool {
        self.rehearsal
    }

    /// Whether another program may have taken the place of its server: the connection was shared,
    /// and was broken off.
    pub(super) fn may_be_replaced(&self) -> bool {
        self.pooled && self.is_failure()
    }

    /// Whether nothing says that its server can be reached still.
    pub(super) fn is_failure(&self) -> bool {
        matches!(self.loss, Loss::Died | Loss::Broken)
    }

    /// Answers that it brought while others were asked on it, if its end shows that its server does
    /// not answer what follows another request.
    pub(super) fn piped_answers(&self) -> Option<u64> {
        (self.pipelined && !self.rehearsal).then_some(self.answers - self.answers_alone)
    }

    /// Removes a client's connection that has ended; or notes what the end of one of the pool says
    /// about the server, and has another one made.
    pub(super) fn replace(
        &self,
        index: ConnKey,
        pool: &mut Pool,
        groups: &Groups,
        private: &mut PrivatePools,
        agenda: &mut Agenda,
        cx: &mut Context,
    ) {
        if !self.pooled {
            return private.remove(index, pool, cx);
        }
        let server = self.server;
        let unused = (self.at_rest || self.why == UpstreamEnd::Idle) && self.answers == 0;
        if self.is_failure() && !unused {
            pool.servers[server].contact.reach = Reach::Doubtful;
        }
        let yields = self.why == UpstreamEnd::Crowded
            || self.why == UpstreamEnd::Idle && groups.view(pool, cx).is_crowded(server);
        pool.disconnect(index, unused || yields, cx);
        pool.conns.at_mut(index).gate.probation = self.loss != Loss::Announced;
        if self.at_rest {
            note_idle_end(server, self.rest_us, pool, groups, agenda, cx);
        }
        if self.abrupt {
            pool.servers[server].learned.keepalive_limit.on_abrupt(cx.now_us, self.answers);
        }
    }

    /// Whether it brought nothing, nor has anything else of its server lately: whatever accepts
    /// there may be no server.
    fn is_barren(&self, pool: &Pool, cx: &Context) -> bool {
        let is_useful = |index: &ConnKey| pool.conns.at(*index).history.answers > 0;
        let is_useless =
            self.answers == 0 && !self.begun && matches!(self.loss, Loss::Died | Loss::Closed);
        is_useless
            && cx.now_us >= pool.hints.awaited_until_us(self.server)
            && !pool.servers[self.server].conns.iter().any(is_useful)
    }

    /// How many of its requests were to show whether the suspended server works again. None of them
    /// shows it any more.
    pub(super) fn end_trials(&mut self) -> usize {
        let trials = self.entries.iter_mut().map(|entry| &mut entry.ask.traits);
        let trials = trials.filter(|traits| traits.has(RequestFlags::TRIAL));
        trials.map(|traits| *traits = traits.without(RequestFlags::TRIAL)).count()
    }

    /// What becomes of each request that was on a connection: it fails, or it is among those to be
    /// placed again, oldest first.
    pub(super) fn reclaim_all(
        &mut self,
        pool: &Pool,
        groups: &mut Groups,
        isolation: &mut Isolation,
        cancelled: &Cancelled,
        cx: &mut Context,
    ) -> Vec<(PendingRequest, Vec<u8>)> {
        let may_be_death = matches!(self.loss, Loss::Died | Loss::Closed) && self.pooled;
        let front_us = self.front_us.filter(|_| may_be_death);
        let crash =
            front_us.and_then(|us| isolation.crash_of(self.server, self.connected_us, us, cx));
        let mut again = Vec::new();
        for (position, entry) in std::mem::take(&mut self.entries).into_iter().enumerate() {
            let oldest = position == 0;
            let accused =
                !self.is_unsent(&entry) && !entry.is_copy && (self.loss == Loss::Died || oldest);
            let refused = crash.is_some_and(|crash| {
                accused && isolation.accuse(crash, self.rested, &entry, &self.log, cx)
            });
            if entry.ask.traits.has(RequestFlags::QUARANTINED) {
                isolation.on_lost(&entry.ask, accused, cx);
            }
            if cancelled.is_withdrawn(&entry) {
                cx.post(entry.ask.id.worker, Mail::Withdrawn { id: entry.ask.id });
            } else if !cancelled.is_unwanted(&entry) {
                again.extend(self.reclaim(&entry, oldest, refused, pool, groups, isolation, cx));
            }
        }
        again
    }

    /// The fate of a request that was on a connection and whose response is still wanted: it fails,
    /// returns to its worker, or has to be placed again. `refused`: its server seems to die of it.
    fn reclaim(
        &self,
        entry: &Entry,
        oldest: bool,
        refused: bool,
        pool: &Pool,
        groups: &mut Groups,
        isolation: &mut Isolation,
        cx: &mut Context,
    ) -> Option<(PendingRequest, Vec<u8>)> {
        let mut ask = entry.ask;
        let unsent = self.is_unsent(entry);
        let is_barren = self.is_barren(pool, cx);
        ask.barren = ask.barren.saturating_add(u8::from(is_barren));
        // Whether its client has seen some of the answer that broke off, and is closed for that
        // with all that it asked behind it, is for that client's side to find out.
        let is_unclear =
            self.begun && (oldest || ask.client == self.client && ask.id.worker == cx.worker);
        let is_streaming = ask.traits.has(RequestFlags::STREAMING);
        let fate = match self.loss.verdict(&mut ask, oldest, unsent) {
            Ok(_) if refused => Fate::Hopeless(Cause::Suspect),
            // Once more, and once for each other server: then it is taken for down.
            Ok(_) if is_barren && usize::from(ask.barren) > groups.usable(&ask, pool) => {
                Fate::Hopeless(Cause::NoServer)
            }
            // The rest of its body could not follow it there.
            Ok(_) if is_unclear && is_streaming && !unsent => Fate::Hopeless(Cause::Lost),
            Ok(counts) => {
                Fate::Lost(Repetition { counts, unsent, oldest, ours: self.loss == Loss::Ours })
            }
            Err(cause) => Fate::Hopeless(cause),
        };
        if is_unclear && (!is_streaming || matches!(fate, Fate::Hopeless(_))) {
            isolation.send_home(ask, fate, &self.log.copy(entry.start, entry.len as usize), cx);
            return None;
        }
        if let Err(cause) = groups.count_fate(&mut ask, fate, pool, cx) {
            cx.answer_fails(ask.id, cause);
            return None;
        }
        let mut bytes = self.log.copy(entry.start, entry.len as usize);
        if is_streaming {
            // The received part of an unkept body is sent along; the rest follows when the request
            // has its connection.
            self.body.copy_to(&mut bytes);
            if self.body_done {
                ask.traits = ask.traits.without(RequestFlags::STREAMING);
            } else {
                cx.body_flow(ask.id, true);
            }
        }
        Some((ask, bytes))
    }
}
