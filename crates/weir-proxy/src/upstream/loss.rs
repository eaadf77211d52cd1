//! Ends of upstream connections: doubt, closes, resets, cancellations, and what becomes of the requests on them.
//!
//! Doubt ends a connection, and only it: what came before is delivered, nothing after it is used, what waited behind is sent
//! again if it may be (RFC 9112 §9.2, §9.3.1-2; docs/semantics.md §3a, §4).

use std::collections::VecDeque;

use weir_http::{Fields, ReplyContext, Trailers};

use super::Upstreams;
use super::pool::{Event, Pair, Pool, finish, take_requests};
use super::watch::End;
use crate::base::keys::{ConnKey, ServerIndex};
use crate::base::output::Output;
use crate::base::token::{ShortGeneration, Token};
use crate::cause::Cause;
use crate::context::Context;
use crate::cross::mail::{Fate, Repetition};
use crate::cross::router::Replies;
use crate::ending::UpstreamEnd;
use crate::observe::server_event::What;
use crate::request::pending_request::{ClientName, LinkId, PendingRequest, RequestFlags};
use crate::upstream::connection::{LinkState, UpstreamConn};
use crate::upstream::entry::{Entry, Silence};
use crate::upstream::request_log::RequestLog;
use crate::upstream::server::{Reach, Server};
use crate::upstream::trust::Doubt;

/// A server that ends a connection so soon after an answer ends it because of that.
pub(super) const ABRUPT_US: u64 = 100_000;
/// A connection that ends without an answer within this time counts as a failed try.
const FRUITLESS_US: u64 = 1_000_000;
/// How often a request may be the next one when a server ends a connection in order, before it is taken for the reason.
const PASSED_MAX: u8 = 2;
/// Time between two looks for connections that wait for an answer that nobody wants.
const SWEEP_US: u64 = 5_000_000;

/// How a connection came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Loss {
    /// The server said with an answer that it processed nothing behind it.
    Announced,
    /// Between two answers: of an answer that ends by close, or one after which the connection is not good for the next.
    Orderly,
    /// The server closed between two answers without saying so: a limit, an idle timer; or it died of the oldest request, which
    /// looks the same when it had read all that was sent.
    Closed,
    /// Our own decision, because of one client: the others are not to blame, and their tries are not counted.
    Ours,
    /// The server reset it, or closed it within an answer or before the first: it may have died.
    Died,
    /// Anything else.
    Broken,
    /// The answer to the oldest request is bad.
    BadAnswer,
}

impl Loss {
    /// Whether a request that was on the connection goes again, and whether that counts as a try; or its failure.
    /// `unsent`: nothing of the request was given to the driver, so that all of
    /// it is still here, also what came of a body that is not kept.
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
            Ok(ask.passed > PASSED_MAX || !matches!(self, Loss::Orderly | Loss::Closed | Loss::Ours))
        }
    }
}

/// A connection that has ended: what was on it, and what its end says.
struct Lost {
    server: ServerIndex,
    loss: Loss,
    why: UpstreamEnd,
    /// It was nobody's own.
    pooled: bool,
    /// The server ended it while nothing was asked.
    at_rest: bool,
    /// How long nothing had been asked, while that was so.
    rest_us: u64,
    /// The server ended it right behind an answer, without a word.
    abrupt: bool,
    /// The server ended it with requests that followed others, unanswered.
    pipelined: bool,
    /// It had rested when the oldest of the unanswered requests was sent.
    rested: bool,
    connected_us: u64,
    /// Complete answers, and those of them before it ever had two requests at a time.
    answers: u64,
    /// See above.
    answers_alone: u64,
    /// When the oldest request was put on it, if any of that was given to the driver.
    front_us: Option<u64>,
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
    fn take(link: &mut UpstreamConn, server: &mut Server, loss: Loss, why: UpstreamEnd, cx: &Context) -> Lost {
        let now_us = cx.now_us;
        // What weir itself ends, for one client, is no failure of its server.
        let young = link.history.answers == 0 && now_us.saturating_sub(link.contact.connected_us) < FRUITLESS_US;
        let fruitless = young && loss != Loss::Ours;
        link.contact.note_close(why);
        if !fruitless {
            link.contact.backoff.reset();
        }
        let (pooled, was_ready) = (link.owner.is_none(), link.is_ready());
        let by_server = matches!(loss, Loss::Announced | Loss::Orderly | Loss::Closed | Loss::Died);
        let unsaid = matches!(loss, Loss::Died | Loss::Closed) && was_ready;
        let rest_us = link.rest_us(now_us);
        let behind_answer = unsaid && !link.reply.begun && link.history.answers > 0;
        let front = link.entries.front().filter(|front| front.start < link.log.flushed());
        Lost {
            server: link.server,
            loss,
            why,
            pooled,
            at_rest: unsaid && link.entries.is_empty(),
            rest_us,
            abrupt: behind_answer && pooled && (!link.entries.is_empty() || rest_us < ABRUPT_US),
            pipelined: by_server && was_ready && link.rest.since_sync > 0 && !link.entries.is_empty(),
            rested: link.history.rested,
            connected_us: link.contact.connected_us,
            answers: link.history.answers,
            answers_alone: link.history.answers_alone,
            front_us: front.map(|front| front.sent_us),
            begun: link.reply.begun,
            client: link.entries.front().map_or(ClientName::default(), |front| front.ask.client),
            entries: take_requests(link, server, cx),
            log: std::mem::take(&mut link.log),
            body: std::mem::take(&mut link.out.body),
            body_done: link.out.body_done,
        }
    }

    /// Whether nothing of a request that was on it was given to the driver.
    fn is_unsent(&self, entry: &Entry) -> bool {
        entry.start >= self.log.flushed()
    }
}

impl Upstreams {
    /// Something that can't be, on a connection: it ends, and the server may lose its trust.
    pub(super) fn on_doubt(&mut self, index: ConnKey, doubt: Doubt, cx: &mut Context) {
        let server = self.pool.links.at(index).server;
        self.pool.doubt_server(server, Some(doubt), cx);
        cx.tell_all_doubt(server, Some(doubt));
        let link = self.pool.links.at(index);
        let fresh = link.history.answers == 0;
        let tries = link.entries.front().map_or(0, |entry| entry.ask.tries);
        let loss = if matches!(doubt, Doubt::EarlyAnswer | Doubt::Misframing) {
            Loss::Broken
        } else if fresh || tries > 0 || doubt == Doubt::EchoMismatch || link.reply.begun {
            Loss::BadAnswer
        } else {
            // It may be the tail of the answer before: the oldest request is asked again, alone on a new connection.
            Loss::Broken
        };
        self.lose_link(index, loss, UpstreamEnd::Doubt(doubt), cx);
    }

    /// Bytes on a connection on which nothing is asked (RFC 9112 §9.2: never an answer).
    pub(super) fn on_unasked(&mut self, index: ConnKey, bytes: &[u8], cx: &mut Context) {
        let link = self.pool.links.at(index);
        let farewell = bytes.starts_with(b"HTTP/1.") && bytes.get(8..12) == Some(b" 408");
        let blank = bytes.len() <= 4 && bytes.iter().all(|byte| matches!(byte, b'\r' | b'\n'));
        if farewell || blank {
            // Some servers say 408 before they close an idle connection; a stray empty line harms nobody.
            self.lose_link(index, Loss::Ours, UpstreamEnd::IdleClose, cx);
            return;
        }
        let otherwise = match link.ended_bodyless() {
            true => Doubt::ForbiddenBody,
            // Right behind it: what comes later may be a farewell.
            false if link.ended_measured() && link.history.answered_us == cx.now_us => Doubt::Misframing,
            false => Doubt::Garbage,
        };
        let doubt = self.pool.pair(index).name_surplus(bytes, otherwise, cx);
        self.end_doubted(index, doubt, cx);
    }

    /// Ends a connection between two answers because of what the server sent; None is an answer too many.
    pub(super) fn end_doubted(&mut self, index: ConnKey, doubt: Option<Doubt>, cx: &mut Context) {
        let server = self.pool.links.at(index).server;
        self.pool.doubt_server(server, doubt, cx);
        cx.tell_all_doubt(server, doubt);
        self.lose_link(index, Loss::Orderly, doubt.map_or(UpstreamEnd::Surplus, UpstreamEnd::Doubt), cx);
    }

    /// A server closed its sending direction. `is_cut`: only the network says so.
    pub(crate) fn link_ended(&mut self, token: u64, is_cut: bool, to: &mut Replies<'_>, cx: &mut Context) {
        let Some(index) = self.pool.link_of(token) else {
            let broken = is_cut.then_some(UpstreamEnd::Cut);
            let worse = self.health.probe_ended(token, broken, &mut self.pool, &mut self.groups, cx);
            return self.follow(worse, cx);
        };
        self.end_wait(index, to, cx);
        let Some(index) = self.pool.link_of(token) else { return };
        let link = self.pool.links.at_mut(index);
        if link.state() == LinkState::Tunnel {
            self.tunnel_link_ended(index, to, cx);
            return;
        }
        if link.ends_by_close() && is_cut {
            // Many servers never say it: it is no sign that one has died.
            return self.lose_link(index, Loss::Orderly, UpstreamEnd::Cut, cx);
        }
        if link.ends_by_close() {
            self.pool.links.at_mut(index).withheld.over = true;
            if self.watch_end(index, &[], to, cx) != End::Known {
                return;
            }
            let link = self.pool.links.at_mut(index);
            link.reply.persist = false;
            let behind = link.entries.len() > 1;
            let server = link.server;
            link.reply.large = false;
            let since_us = link.next_since_us();
            if let Some(entry) = finish(link, &mut self.pool.servers[server], cx) {
                self.pool.servers[server].learned.usual.on_answers(cx.now_us.saturating_sub(since_us), 1);
                let link = self.pool.links.at(index);
                let (answers, pooled) = (link.history.answers, link.owner.is_none());
                if pooled && answers == 1 {
                    self.pool.servers[server].learned.keepalive_limit.on_announced(answers);
                    self.pool.servers[server].learned.lasting.on_single();
                }
                self.answer_ended(index, &entry, Trailers::default(), to, cx);
            }
            if behind {
                self.pool.doubt_server(server, Some(Doubt::CloseDelimited), cx);
            }
            // It does not say that nothing behind it was processed.
            self.lose_link(index, Loss::Orderly, UpstreamEnd::AnswerEndedByClose, cx);
            return;
        }
        let between = !link.reply.begun && !link.has_stash() && link.history.answers > 0;
        self.lose_link(index, if between { Loss::Closed } else { Loss::Died }, UpstreamEnd::ServerClosed, cx);
    }

    /// A server's connection broke.
    pub(crate) fn link_failed(&mut self, token: u64, why: UpstreamEnd, to: &mut Replies<'_>, cx: &mut Context) {
        let Some(index) = self.pool.link_of(token) else {
            let worse = self.health.probe_ended(token, Some(why), &mut self.pool, &mut self.groups, cx);
            return self.follow(worse, cx);
        };
        self.end_wait(index, to, cx);
        let Some(index) = self.pool.link_of(token) else { return };
        let link = self.pool.links.at(index);
        let (server, under_way) = (link.server, link.reply.begun || link.has_stash());
        if under_way && link.is_ready() && link.entries.len() > 1 {
            self.pool.doubt_server(server, Some(Doubt::ResetWithin), cx);
            cx.tell_all_doubt(server, Some(Doubt::ResetWithin));
        }
        self.lose_link(index, Loss::Died, why, cx);
    }

    /// Ends a connection: what is unanswered is sent again elsewhere if it may be, and the connection is replaced.
    pub(super) fn lose_link(&mut self, index: ConnKey, loss: Loss, why: UpstreamEnd, cx: &mut Context) {
        let link = self.pool.links.at_mut(index);
        if link.state() == LinkState::Tunnel {
            self.end_tunnel(index, cx);
            return;
        }
        let mut lost = Lost::take(link, &mut self.pool.servers[link.server], loss, why, cx);
        cx.counters.upstream_closes.count(why);
        self.pool.servers[lost.server].stats.closes.count(why);
        self.pool.transition(index, Event::Ended, cx);
        self.replace(index, &lost, cx);
        let again = self.reclaim_all(&mut lost, cx);
        let server = lost.server;
        if loss == Loss::Died && lost.front_us.is_some() {
            let worse = self.health.on_loss(server, &mut self.pool, &mut self.groups, cx);
            self.follow(worse, cx);
        }
        // The oldest goes to the front last, so that it is first.
        for (ask, bytes) in again.into_iter().rev() {
            self.place_again(ask, bytes, cx);
        }
        let piped = lost.answers - lost.answers_alone;
        if lost.pipelined && self.pool.servers[server].learned.early_close.on_end(cx.now_us, piped) {
            self.pool.doubt_server(server, Some(Doubt::CutsShort), cx);
            cx.tell_all_doubt(server, Some(Doubt::CutsShort));
        }
        if self.pool.servers[server].ready == 0
            && matches!(loss, Loss::Died | Loss::Broken)
            && self.view(cx).should_evacuate(server)
        {
            self.evacuate(server, cx);
        }
        self.dispatch_group(server, cx);
    }

    /// Removes a client's connection that has ended; or notes what the end of one of the pool says about the server, and has another
    /// one made.
    fn replace(&mut self, index: ConnKey, lost: &Lost, cx: &mut Context) {
        if !lost.pooled {
            self.private.remove(index, &mut self.pool, cx);
            return;
        }
        let server = lost.server;
        let unused = (lost.at_rest || lost.why == UpstreamEnd::Idle) && lost.answers == 0;
        if matches!(lost.loss, Loss::Died | Loss::Broken) && !unused {
            self.pool.servers[server].contact.reach = Reach::Doubtful;
        }
        let yields =
            lost.why == UpstreamEnd::Crowded || lost.why == UpstreamEnd::Idle && self.view(cx).is_crowded(server);
        self.pool.disconnect(index, unused || yields, cx);
        self.pool.links.at_mut(index).gate.probation = lost.loss != Loss::Announced;
        if lost.at_rest {
            self.note_idle_end(server, lost.rest_us, cx);
        }
        if lost.abrupt {
            self.pool.servers[server].learned.keepalive_limit.on_abrupt(cx.now_us, lost.answers);
        }
    }

    /// What becomes of each request that was on a connection: it fails, or it is among those to be placed again, oldest first.
    fn reclaim_all(&mut self, lost: &mut Lost, cx: &mut Context) -> Vec<(PendingRequest, Vec<u8>)> {
        let server = lost.server;
        let may_be_death = matches!(lost.loss, Loss::Died | Loss::Closed) && lost.pooled;
        let crash = lost
            .front_us
            .filter(|_| may_be_death)
            .and_then(|us| self.isolation.crash_of(server, lost.connected_us, us, cx));
        let mut again = Vec::new();
        for (position, mut entry) in std::mem::take(&mut lost.entries).into_iter().enumerate() {
            let oldest = position == 0;
            let accused = !lost.is_unsent(&entry) && !entry.is_copy && (lost.loss == Loss::Died || oldest);
            let refused =
                crash.is_some_and(|crash| accused && self.isolation.accuse(crash, lost.rested, &entry, &lost.log, cx));
            if entry.ask.traits.has(RequestFlags::QUARANTINED) {
                self.isolation.on_lost(&entry.ask, accused, cx);
            }
            if entry.ask.traits.has(RequestFlags::TRIAL) {
                entry.ask.traits = entry.ask.traits.without(RequestFlags::TRIAL);
                self.health.trial_ended(server, false, &mut self.pool, &mut self.groups, cx);
            }
            if !self.cancelled.is_unwanted(&entry) {
                again.extend(self.reclaim(lost, &entry, oldest, refused, cx));
            }
        }
        again
    }

    /// What becomes of a request that was on a connection and whose answer somebody wants: it fails, goes back to its worker, or has
    /// to be placed again. `refused`: its server seems to die of it.
    fn reclaim(
        &mut self,
        lost: &Lost,
        entry: &Entry,
        oldest: bool,
        refused: bool,
        cx: &mut Context,
    ) -> Option<(PendingRequest, Vec<u8>)> {
        let mut ask = entry.ask;
        let unsent = lost.is_unsent(entry);
        let fate = match lost.loss.verdict(&mut ask, oldest, unsent) {
            Ok(_) if refused => Fate::Hopeless(Cause::Suspect),
            Ok(counts) => Fate::Lost(Repetition { counts, unsent, oldest, ours: lost.loss == Loss::Ours }),
            Err(cause) => Fate::Hopeless(cause),
        };
        // Whether its client has seen some of the answer that broke off, and is closed for that with all that it asked behind it, is for
        // that client's side to find out.
        let is_unclear = lost.begun && (oldest || ask.client == lost.client && ask.id.worker == cx.worker);
        let is_streaming = ask.traits.has(RequestFlags::STREAMING);
        if is_unclear && (!is_streaming || matches!(fate, Fate::Hopeless(_))) {
            self.isolation.send_home(ask, fate, &lost.log.copy(entry.start, entry.len as usize), cx);
            return None;
        }
        if let Err(cause) = self.groups.count_fate(&mut ask, fate, &self.pool, cx) {
            cx.answer_fails(ask.id, cause);
            return None;
        }
        let mut bytes = lost.log.copy(entry.start, entry.len as usize);
        if is_streaming {
            // The body that is not kept goes along as far as it has come; the rest follows when the request has its connection.
            lost.body.copy_to(&mut bytes);
            if lost.body_done {
                ask.traits = ask.traits.without(RequestFlags::STREAMING);
            } else {
                cx.body_flow(ask.id, true);
            }
        }
        Some((ask, bytes))
    }

    /// Ends connections whose server takes as long as forward-timeout for an answer that nobody wants any more: the time-out
    /// of that request went with its client. Needs no timer, because only a further request would suffer, and that
    /// brings a turn.
    pub(super) fn sweep(&mut self, cx: &mut Context) {
        if cx.now_us < self.swept_us + SWEEP_US {
            return;
        }
        self.swept_us = cx.now_us;
        self.isolation.sweep(cx);
        self.groups.refill(cx.now_us);
        let hangs = |index: &ConnKey| {
            let link = self.pool.links.at(*index);
            let upstream = usize::from(self.pool.servers[link.server].upstream);
            let patience_us = cx.plan.upstreams[upstream].forward_timeout_us;
            link.entries.front().is_some_and(|front| {
                front.cancelled && cx.now_us >= front.sent_us.max(link.history.answered_us).saturating_add(patience_us)
            })
        };
        let hanging: Vec<ConnKey> = self.pool.links.keys().filter(hangs).collect();
        for index in hanging {
            self.cancelled.doom(index, &self.pool);
        }
        self.end_doomed(cx);
    }

    /// Ends the connections whose requests were cancelled hard.
    pub(super) fn end_doomed(&mut self, cx: &mut Context) {
        while let Some(index) = self.cancelled.next_doomed(&self.pool) {
            self.lose_link(index, Loss::Ours, UpstreamEnd::Cancelled, cx);
        }
    }

    /// Stops or resumes the reading of a connection of this worker.
    pub(crate) fn flow_here(&mut self, to: LinkId, client: ClientName, pause: bool, cx: &mut Context) {
        if !self.pool.links.holds(to.index, to.generation) {
            return;
        }
        let now_us = cx.now_us;
        let link = self.pool.links.at_mut(to.index);
        let tunnel = link.state() == LinkState::Tunnel;
        let is_next = tunnel || link.entries.front().is_some_and(|entry| entry.ask.client == client);
        if pause && !is_next || !pause && link.reading.paused_by != client {
            return;
        }
        link.reading.set(pause, client);
        link.wait.silence = Silence::Unread;
        let server = link.server;
        if !tunnel {
            self.pool.servers[server].refresh(link, now_us);
        }
        if pause {
            self.pool.watch_stall(to.index, cx);
            if !tunnel {
                self.pool.grow(server, cx);
            }
        } else {
            let generation = ShortGeneration::of(to.generation);
            self.pool.receive_again(Token::Conn { key: to.index, generation }.pack(), cx);
            self.dispatch(server, cx);
        }
    }
}

impl Pool {
    /// Looks anew at what each connection of a server may take.
    pub(super) fn refresh_links(&mut self, server: ServerIndex, cx: &Context) {
        let now_us = cx.now_us;
        for position in 0..self.servers[server].links.len() {
            let index = self.servers[server].links[position];
            let link = self.links.at_mut(index);
            self.servers[server].refresh(link, now_us);
        }
    }

    /// Counts a doubt and lets the server's trust know. None is an answer too many.
    pub(super) fn doubt_server(&mut self, server: ServerIndex, doubt: Option<Doubt>, cx: &mut Context) {
        let demoted = self.distrust(server, doubt, cx);
        if demoted {
            self.events.note(server, doubt.map_or(What::Surplus, What::Demoted), cx);
        }
        let stats = &self.servers[server].stats;
        match doubt {
            Some(doubt) => {
                cx.counters.demotions.add(demoted.into());
                stats.demotions.add(demoted.into());
                cx.counters.doubt(doubt);
                stats.doubt(doubt);
            }
            None => {
                cx.counters.surplus.add(1);
                stats.surplus.add(1);
            }
        }
    }

    /// Lets the server's trust know of a doubt, here or at another worker, which counts it. True when it goes back to depth 1.
    pub(crate) fn distrust(&mut self, server: ServerIndex, doubt: Option<Doubt>, cx: &mut Context) -> bool {
        let now_us = cx.now_us;
        let machine = &mut self.servers[server];
        let demoted = match doubt {
            Some(doubt) => machine.learned.trust.on_doubt(now_us, doubt),
            None => machine.learned.trust.on_surplus(),
        };
        self.refresh_links(server, cx);
        if doubt == Some(Doubt::CutsShort) {
            self.hurry_silent(server, cx);
        }
        demoted
    }
}

impl Pair<'_> {
    /// What bytes are that nobody asked for: an answer too many (None), the beginning of one, or `otherwise`.
    pub(super) fn name_surplus(&self, bytes: &[u8], otherwise: Doubt, cx: &Context) -> Option<Doubt> {
        let Pair { link, server } = self;
        let plan = &cx.plan.upstreams[usize::from(server.upstream)];
        match weir_http::parse_reply(bytes, &plan.head, ReplyContext::default(), &mut Fields::default()) {
            // A farewell is for nobody in particular; a whole answer is somebody's.
            Ok(Some(head)) if head.status < 200 || head.status >= 400 && !head.persist => Some(Doubt::AnswerToNothing),
            Ok(Some(_)) => None,
            Ok(None) if bytes.is_empty() => Some(otherwise),
            Ok(None) if link.history.pipelined && bytes.starts_with(b"HTTP/1.") => None,
            Ok(None) => Some(Doubt::AnswerToNothing),
            Err(_) => Some(otherwise),
        }
    }
}
