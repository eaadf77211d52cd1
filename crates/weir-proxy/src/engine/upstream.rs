//! The servers' side: connections made and replaced, requests sent, answers read and matched (stages forward and receive).
//!
//! Doubt ends a connection, and only it: what came before is delivered, nothing after it is used, what waited behind is sent
//! again if it may be (RFC 9112 §9.2, §9.3.1-2).

use bytes::Bytes;
use weir_http::{Fields, ReplyBody, ReplyContext, ReplyHead, Version};

use super::answer::Lines;
use super::{Action, Engine, HIGH_BYTES, Input, LOW_BYTES, Owner, Piece, token};
use crate::ask::{Ask, ExchangeId, Failure, LinkId, Traits};
use crate::link::{LinkState, Step};
use crate::mail::AnswerHead;
use crate::output::Out;
use crate::session::{Phase, Reading};
use crate::trust::Doubt;

/// Bytes of an unwanted answer that are read to keep its connection; with more to come the connection is closed.
const DISCARD_BYTES_MAX: u64 = 256 * 1024;
/// An answer larger than this keeps others from being queued behind it.
pub(crate) const LARGE_BYTES: u64 = 256 * 1024;

/// A connection that ends without an answer within this time counts as a failed try.
const FRUITLESS_US: u64 = 1_000_000;

/// How often a request may be the next one when a server ends a connection in order, before it is taken for the reason.
const PASSED_MAX: u8 = 2;
/// Time between two looks for connections that wait for an answer that nobody wants.
const SWEEP_US: u64 = 5_000_000;

/// How many times as long as its last answers took a connection is left empty at a sync point, and how long at most. When
/// an answer was one too many, the server still works on what weir takes for answered; this is when it shows.
const SYNC_ANSWERS: u64 = 2;
const SYNC_US_MAX: u64 = 100_000;

/// How a connection came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Loss {
    /// The server said that nothing behind its last answer was processed, or ended between answers.
    Announced,
    /// The server closed between two answers without saying so.
    Orderly,
    /// Our own decision, because of one client: the others are not to blame, and their tries are not counted.
    Ours,
    /// Anything else.
    Broken,
    /// The answer to the oldest request is bad.
    BadAnswer,
}

impl Engine {
    // ---- connecting ----

    pub(super) fn connect(&mut self, index: u32) {
        if self.draining && self.sessions.is_empty() {
            return;
        }
        let link = self.links.at_mut(index);
        let server = &mut self.servers[link.server as usize];
        if let Err(retry_us) = server.pacer.admit(self.now_us) {
            link.state = LinkState::Down { retry_us };
            self.arm_link(index, retry_us);
            return;
        }
        let upstream = &self.plan.upstreams[usize::from(server.upstream)];
        let address = upstream.servers[usize::from(server.index)].address;
        let deadline_us = self.now_us + upstream.connect_timeout_us;
        self.links.at_mut(index).state = LinkState::Connecting { deadline_us };
        self.arm_link(index, deadline_us);
        self.counters.upstream_connects.add(1);
        let token = token(Owner::Link, index, self.links.generation(index));
        self.actions.push_back(Action::Connect { token, address });
    }

    /// A connect has begun; `socket` is the driver's name for it. False: not wanted any more, close it.
    pub fn link_started(&mut self, token: u64, socket: u64) -> bool {
        match self.link_of(token) {
            Some(index) => {
                self.links.at_mut(index).socket = Some(socket);
                true
            }
            None => false,
        }
    }

    /// A connect has ended.
    pub fn link_connected(&mut self, token: u64, ok: bool) {
        let Some(index) = self.link_of(token) else { return };
        if !ok {
            self.connect_failed(index);
            return;
        }
        let now_us = self.now_us;
        let link = self.links.at_mut(index);
        let Some(socket) = link.socket else { return };
        link.state = LinkState::Ready;
        link.empty_us = now_us;
        link.connected_us = now_us;
        link.receiving = true;
        let position = link.server as usize;
        self.actions.push_back(Action::ReceiveLink { socket });
        self.counters.upstream_connections.add(1);
        let server = &mut self.servers[position];
        server.failures = 0;
        server.ready += 1;
        server.refresh(link, now_us);
        self.publish_ready(position);
        self.dispatch(position);
    }

    pub(super) fn connect_timed_out(&mut self, index: u32) {
        self.counters.timeouts.count("connect");
        self.connect_failed(index);
    }

    fn connect_failed(&mut self, index: u32) {
        self.counters.upstream_connect_failures.add(1);
        let link = self.links.at_mut(index);
        link.closed_why = "connect-failed";
        let (server, attempts) = (link.server as usize, link.backoff.attempts());
        self.disconnect(index);
        let machine = &mut self.servers[server];
        machine.failures = machine.failures.max(attempts);
        if machine.ready == 0 && !machine.waiting.is_empty() && self.should_evacuate(server) {
            self.evacuate(server);
        }
    }

    /// Whether what waits for a server without connections should go elsewhere (or fail) now.
    fn should_evacuate(&self, server: usize) -> bool {
        let group = self.groups[usize::from(self.servers[server].upstream)].servers.clone();
        !self.may_come_up(server) || group.into_iter().any(|other| other != server && self.servers[other].ready > 0)
    }

    /// Closes the socket if there is one and sets the time of the next try.
    fn disconnect(&mut self, index: u32) {
        let link = self.links.at_mut(index);
        if let Some(socket) = link.socket.take() {
            self.actions.push_back(Action::CloseLink { socket });
        }
        let retry_us = self.now_us + link.backoff.next_delay_us(self.seed ^ u64::from(index));
        link.reset(retry_us);
        let server = &mut self.servers[link.server as usize];
        server.refresh(link, self.now_us);
        self.links.renew(index);
        if retry_us <= self.now_us {
            self.connect(index);
        } else {
            self.arm_link(index, retry_us);
        }
    }

    pub(super) fn publish_ready(&self, server: usize) {
        self.hints.set_ready(server, usize::from(self.worker), self.servers[server].ready);
    }

    // ---- sending ----

    pub(super) fn mark_link(&mut self, index: u32) {
        let link = self.links.at_mut(index);
        if !link.dirty {
            link.dirty = true;
            self.dirty_links.push(index);
        }
    }

    /// The send that a connection wants, if any.
    pub(super) fn flush_link(&mut self, index: u32) -> Option<Action> {
        if !self.links.is_occupied(index) {
            return None;
        }
        let link = self.links.at_mut(index);
        link.dirty = false;
        if !link.wants_send() {
            return None;
        }
        let socket = link.socket?;
        let out = match (link.log.flush(), link.body.take()) {
            (Some(log), None) => Out::Shared(log),
            (Some(log), Some(body)) => Out::Vectored(join(log, body)),
            (None, Some(body)) => body,
            (None, None) => {
                link.finished = true;
                if link.ended {
                    self.doomed.push((index, self.links.generation(index)));
                }
                return Some(Action::ShutdownLink { socket });
            }
        };
        link.sending = true;
        self.counters.upstream_sends.add(1);
        self.counters.upstream_bytes_out.add(out.len() as u64);
        Some(Action::SendLink { socket, out })
    }

    /// What was sent to a server was taken (`ok`) or not.
    pub fn link_sent(&mut self, token: u64, ok: bool) {
        let Some(index) = self.link_of(token) else { return };
        let link = self.links.at_mut(index);
        if !ok {
            // Read first: answers that are already here are delivered, then the receive tells the end.
            link.persist = false;
            if link.state != LinkState::Tunnel {
                let server = &mut self.servers[link.server as usize];
                server.refresh(link, self.now_us);
            }
            return;
        }
        link.sending = false;
        let again = link.wants_send();
        if link.unsent() <= LOW_BYTES
            && let Some(id) = link.body_paused.take()
        {
            self.body_flow(id, false);
        }
        if again {
            self.mark_link(index);
        }
    }

    /// A piece of a request body or tunnel for a connection of this worker.
    pub(super) fn link_body(&mut self, id: ExchangeId, to: LinkId, piece: Piece<'_>, end: bool) {
        if !self.links.holds(to.index, to.generation) {
            return;
        }
        let link = self.links.at_mut(to.index);
        let tunnel = link.state == LinkState::Tunnel;
        if tunnel && link.peer != Some(id) || !tunnel && link.entries.back().is_none_or(|entry| entry.ask.id != id) {
            return;
        }
        piece.push_to(&mut link.body, &mut self.spare);
        if end && tunnel {
            link.finish = true;
        } else if end {
            link.body_done = true;
        }
        if link.unsent() >= HIGH_BYTES && link.body_paused.is_none() && !end {
            link.body_paused = Some(id);
            self.body_flow(id, true);
        }
        self.mark_link(to.index);
    }

    // ---- receiving ----

    /// A server sent bytes.
    pub fn link_received(&mut self, token: u64, input: &Input<'_>) {
        let Some(index) = self.link_of(token) else { return };
        self.counters.upstream_receives.add(1);
        self.counters.upstream_bytes_in.add(input.bytes.len() as u64);
        let link = self.links.at_mut(index);
        link.receiving = false;
        if link.has_stash() {
            let server = &self.servers[link.server as usize];
            let limits = &self.plan.upstreams[usize::from(server.upstream)].head;
            if let Some(bytes) = link.complete_stash(input.bytes, limits) {
                let bytes = Bytes::from(bytes);
                self.read_answers(index, &Input::shared(&bytes));
            }
        } else {
            self.read_answers(index, input);
        }
        self.receive_again(token);
    }

    /// Reads on unless the client of the answer under way has enough.
    fn receive_again(&mut self, token: u64) {
        let Some(index) = self.link_of(token) else { return };
        let link = self.links.at_mut(index);
        if let Some(socket) = link.socket.filter(|_| !link.paused && !link.receiving) {
            link.receiving = true;
            self.actions.push_back(Action::ReceiveLink { socket });
        }
    }

    fn read_answers(&mut self, index: u32, input: &Input<'_>) {
        let plan = std::sync::Arc::clone(&self.plan);
        let link = self.links.at(index);
        let server = link.server as usize;
        let limits = &plan.upstreams[usize::from(self.servers[server].upstream)].head;
        let since_us = link.entries.front().map_or(self.now_us, |entry| entry.sent_us.max(link.answered_us));
        let (before, depth) = (link.answers, link.entries.len() as u32);
        self.links.at_mut(index).answer_bytes += input.bytes.len() as u64;
        let generation = self.links.generation(index);
        let mut fields = std::mem::take(&mut self.fields);
        let mut at = 0;
        loop {
            let step = self.links.at_mut(index).step(input.bytes, &mut at, limits, &mut fields);
            let live = match step {
                Step::More => break,
                Step::Skip => true,
                Step::Head(head) => {
                    let start = at - head.bytes;
                    self.on_head(index, &head, &fields, &input.bytes[start..])
                }
                Step::Body { start, end } => self.on_body(index, input.piece(start..end)),
                Step::End => self.on_end(index, &input.bytes[at..]),
                Step::Doubt(doubt) => {
                    self.on_doubt(index, doubt);
                    false
                }
                Step::Unasked => {
                    self.on_unasked(index, &input.bytes[at..]);
                    false
                }
            };
            if !live || !self.links.holds(index, generation) {
                break;
            }
        }
        self.fields = fields;
        if !self.links.holds(index, generation) {
            self.dispatch(server);
            return;
        }
        let now_us = self.now_us;
        let link = self.links.at_mut(index);
        if at < input.bytes.len() && link.state != LinkState::Tunnel {
            link.keep_stash(&input.bytes[at..]);
        }
        let answered = (link.answers - before) as u32;
        if answered > 0 {
            link.answered_us = now_us;
            link.backoff.reset();
            link.release_log();
            let answer_bytes = std::mem::take(&mut link.answer_bytes);
            let machine = &mut self.servers[server];
            machine.note_answers(answer_bytes, answered);
            // What waits because all connections are full would stand in line behind this one.
            let waiting = machine.waiting.len() / machine.links.len().max(1);
            machine.depth.on_answers(now_us - since_us, answered, depth + waiting as u32);
            self.after_answers(index, server, (now_us - since_us) / u64::from(answered));
        }
    }

    /// A connection has room again. `answer_us` is how long an answer took.
    fn after_answers(&mut self, index: u32, server: usize, answer_us: u64) {
        let now_us = self.now_us;
        let link = self.links.at_mut(index);
        if link.state == LinkState::Tunnel {
            return;
        }
        if link.syncing && link.entries.is_empty() {
            link.sync_until_us = now_us + (SYNC_ANSWERS * answer_us).min(SYNC_US_MAX);
            let generation = self.links.generation(index);
            self.synced.push((index, generation));
            self.counters.sync_points.add(1);
        }
        let link = self.links.at_mut(index);
        self.servers[server].refresh(link, self.now_us);
        self.dispatch(server);
    }

    /// Connections that ran empty at a sync point take requests again, once everything that had arrived by then was read.
    pub(super) fn reopen_synced(&mut self) {
        let before = std::mem::replace(&mut self.synced_before, std::mem::take(&mut self.synced));
        for (index, generation) in before {
            if self.links.holds(index, generation) {
                let link = self.links.at_mut(index);
                if self.now_us < link.sync_until_us {
                    self.synced_before.push((index, generation));
                    continue;
                }
                link.syncing = false;
                let server = link.server as usize;
                self.servers[server].refresh(link, self.now_us);
                self.dispatch(server);
            }
        }
    }

    /// The head of an answer. False: the connection is gone.
    fn on_head(&mut self, index: u32, head: &ReplyHead, fields: &Fields, input: &[u8]) -> bool {
        let from = self.link_id(index);
        let link = self.links.at_mut(index);
        let Some(ask) = link.entries.front().map(|entry| entry.ask) else { return false };
        if head.status == 101 {
            if self.links.at(index).entries.front().is_some_and(|entry| entry.cancelled) || self.is_gone(ask.id) {
                self.become_tunnel(index, ask.id);
                self.end_tunnel(index);
                return false;
            }
            let upgrade = head.upgrade.map(|span| Bytes::copy_from_slice(span.of(input)));
            self.become_tunnel(index, ask.id);
            self.answer_head(ask.id, from, head, upgrade, fields, input);
            return true;
        }
        if head.status >= 200 {
            if self.is_mismatch(index, &ask, fields, input) {
                self.on_doubt(index, Doubt::EchoMismatch);
                return false;
            }
            let link = self.links.at_mut(index);
            link.begun = true;
            link.old = head.version == Version::Http10;
            if head.status == 204 && head.declared_length.is_some_and(|length| length > 0) {
                // The answer is good without the body that it announces; what follows it is not.
                link.poison = Some(Doubt::ForbiddenBody);
            }
            if head.connection_auth {
                // The connection now speaks for one client (NTLM, Negotiate): it is nobody else's.
                link.persist = false;
            }
            let large = matches!(head.body, ReplyBody::Length(length) if length > LARGE_BYTES);
            link.large = large || matches!(head.body, ReplyBody::UntilClose);
            if link.large {
                self.counters.exclusive.add(1);
                let server = &mut self.servers[link.server as usize];
                server.refresh(link, self.now_us);
            }
        }
        if !self.links.at(index).entries.front().is_some_and(|entry| entry.cancelled) {
            self.answer_head(ask.id, from, head, None, fields, input);
        }
        true
    }

    /// Whether an answer doesn't carry back the identifier of its request.
    fn is_mismatch(&self, index: u32, ask: &Ask, fields: &Fields, input: &[u8]) -> bool {
        let server = self.links.at(index).server as usize;
        let echo = &self.plan.upstreams[usize::from(self.servers[server].upstream)].echo;
        echo.as_ref().is_some_and(|name| fields.get(input, name.as_bytes()) != Some(&ask.echo[..]))
    }

    fn on_body(&mut self, index: u32, piece: Piece<'_>) -> bool {
        let link = self.links.at_mut(index);
        let (id, cancelled) = match (link.state, link.entries.front()) {
            (LinkState::Tunnel, _) => (link.peer, false),
            (_, Some(entry)) => (Some(entry.ask.id), entry.cancelled),
            (_, None) => (None, true),
        };
        let Some(id) = id else { return false };
        link.body_bytes += piece.len() as u64;
        if link.body_bytes > LARGE_BYTES && !link.large && link.state == LinkState::Ready {
            link.large = true;
            self.counters.exclusive.add(1);
            let server = &mut self.servers[link.server as usize];
            server.refresh(link, self.now_us);
        }
        if cancelled || self.is_gone(id) {
            return self.discard(index);
        }
        self.answer_piece(id, piece);
        true
    }

    pub(super) fn is_gone(&self, id: ExchangeId) -> bool {
        id.worker == self.worker && !self.exchanges.holds(id.index, id.generation)
    }

    /// An answer that nobody wants: a short rest is read, a long one costs the connection.
    fn discard(&mut self, index: u32) -> bool {
        let link = self.links.at(index);
        let short = link.body_left().is_some_and(|left| left <= DISCARD_BYTES_MAX);
        if link.state != LinkState::Tunnel && (short || link.has_hostage()) {
            return true;
        }
        self.lose_link(index, Loss::Ours, "client-gone");
        false
    }

    /// The oldest answer is complete; `rest` is what came behind it.
    fn on_end(&mut self, index: u32, rest: &[u8]) -> bool {
        let now_us = self.now_us;
        let link = self.links.at_mut(index);
        let trailers = link.trailers().to_vec();
        let streaming = link.entries.front().is_some_and(|entry| entry.ask.traits.has(Traits::STREAMING));
        let early = streaming && (!link.body_done || !link.body.is_empty());
        link.large = false;
        let (persist, announced, position, poison) = (link.persist, link.announced, link.position, link.poison);
        let old = link.old;
        let Some(entry) = link.finish_answer(now_us) else { return false };
        let (server, behind) = (link.server, !link.entries.is_empty());
        link.probation = false;
        let machine = &mut self.servers[link.server as usize];
        machine.inflight -= 1;
        if persist && !old && !early && poison.is_none() {
            machine.trust.on_clean_answer(now_us, position, entry.ask.traits.invites_body());
        }
        self.counters.in_flight.sub(1);
        if !entry.cancelled {
            self.answer_done(entry.ask.id, &trailers);
        }
        if self.is_aside_done(index) {
            self.lose_link(index, Loss::Orderly, "set-aside");
            return false;
        }
        if early {
            self.on_doubt(index, Doubt::EarlyAnswer);
            return false;
        }
        if let Some(doubt) = poison {
            let doubt = self.name_surplus(index, rest, doubt);
            self.end_doubted(index, doubt);
            return false;
        }
        if self.links.at(index).front_is_abandoned() {
            self.lose_link(index, Loss::Ours, "cancelled");
            return false;
        }
        if !persist || old && behind {
            if behind {
                self.doubt_server(server, Some(Doubt::NotPersistent));
            }
            // That weir won't go on with it says nothing about what the server did behind this answer.
            let ending =
                if announced { (Loss::Announced, "server-said-close") } else { (Loss::Orderly, "not-reusable") };
            self.lose_link(index, ending.0, ending.1);
            return false;
        }
        true
    }

    /// Something that can't be, on a connection: it ends, and the server may lose its trust.
    fn on_doubt(&mut self, index: u32, doubt: Doubt) {
        let server = self.links.at(index).server;
        self.doubt_server(server, Some(doubt));
        self.tell_all_doubt(server, Some(doubt));
        let link = self.links.at(index);
        let fresh = link.answers == 0;
        let tries = link.entries.front().map_or(0, |entry| entry.ask.tries);
        let loss = if doubt == Doubt::EarlyAnswer {
            Loss::Broken
        } else if fresh || tries > 0 || doubt == Doubt::EchoMismatch || link.begun {
            Loss::BadAnswer
        } else {
            // It may be the tail of the answer before: the oldest request is asked again, alone on a new connection.
            Loss::Broken
        };
        self.lose_link(index, loss, doubt.word());
    }

    /// Counts a doubt and lets the server's trust know. None is an answer too many.
    pub(super) fn doubt_server(&mut self, server: u32, doubt: Option<Doubt>) {
        let now_us = self.now_us;
        let machine = &mut self.servers[server as usize];
        match doubt {
            Some(doubt) => {
                if machine.trust.on_doubt(now_us, doubt) {
                    self.counters.demotions.add(1);
                }
                self.counters.doubt(doubt);
            }
            None => {
                machine.trust.on_surplus();
                self.counters.surplus.add(1);
            }
        }
        for position in 0..self.servers[server as usize].links.len() {
            let index = self.servers[server as usize].links[position];
            let link = self.links.at_mut(index);
            self.servers[server as usize].refresh(link, now_us);
        }
    }

    /// Bytes on a connection on which nothing is asked (RFC 9112 §9.2: never an answer).
    fn on_unasked(&mut self, index: u32, bytes: &[u8]) {
        let link = self.links.at(index);
        let farewell = bytes.starts_with(b"HTTP/1.") && bytes.get(8..12) == Some(b" 408");
        let blank = bytes.len() <= 4 && bytes.iter().all(|byte| matches!(byte, b'\r' | b'\n'));
        if farewell || blank {
            // Some servers say 408 before they close an idle connection; a stray empty line harms nobody.
            self.lose_link(index, Loss::Ours, "idle-close");
            return;
        }
        let otherwise = if link.ended_bodyless() { Doubt::ForbiddenBody } else { Doubt::Garbage };
        let doubt = self.name_surplus(index, bytes, otherwise);
        self.end_doubted(index, doubt);
    }

    /// What bytes are that nobody asked for: an answer too many (None), the beginning of one, or `otherwise`.
    fn name_surplus(&self, index: u32, bytes: &[u8], otherwise: Doubt) -> Option<Doubt> {
        let link = self.links.at(index);
        let plan = &self.plan.upstreams[usize::from(self.servers[link.server as usize].upstream)];
        match weir_http::parse_reply(bytes, &plan.head, ReplyContext::default(), &mut Fields::default()) {
            // A farewell is for nobody in particular; a whole answer is somebody's.
            Ok(Some(head)) if head.status < 200 || head.status >= 400 && !head.persist => Some(Doubt::AnswerToNothing),
            Ok(Some(_)) => None,
            Ok(None) if bytes.is_empty() => Some(otherwise),
            Ok(None) if link.pipelined && bytes.starts_with(b"HTTP/1.") => None,
            Ok(None) => Some(Doubt::AnswerToNothing),
            Err(_) => Some(otherwise),
        }
    }

    /// Ends a connection between two answers because of what the server sent; None is an answer too many.
    fn end_doubted(&mut self, index: u32, doubt: Option<Doubt>) {
        let server = self.links.at(index).server;
        self.doubt_server(server, doubt);
        self.tell_all_doubt(server, doubt);
        self.lose_link(index, Loss::Orderly, doubt.map_or("surplus", Doubt::word));
    }

    // ---- ending ----

    /// A server closed its sending direction.
    pub fn link_ended(&mut self, token: u64) {
        let Some(index) = self.link_of(token) else { return };
        let link = self.links.at_mut(index);
        if link.state == LinkState::Tunnel {
            self.tunnel_link_ended(index);
            return;
        }
        if link.ends_by_close() {
            link.persist = false;
            let behind = link.entries.len() > 1;
            let server = link.server;
            link.large = false;
            if let Some(entry) = link.finish_answer(self.now_us) {
                self.servers[server as usize].inflight -= 1;
                self.counters.in_flight.sub(1);
                // A cancelled request may have been asked elsewhere: this is not the end of that answer.
                if !entry.cancelled {
                    self.answer_done(entry.ask.id, &[]);
                }
            }
            if behind {
                self.doubt_server(server, Some(Doubt::CloseDelimited));
            }
            // It does not say that nothing behind it was processed.
            self.lose_link(index, Loss::Orderly, "answer-ended-by-close");
            return;
        }
        let between = !link.begun && !link.has_stash() && link.answers > 0;
        self.lose_link(index, if between { Loss::Orderly } else { Loss::Broken }, "server-closed");
    }

    /// A server's connection broke.
    pub fn link_failed(&mut self, token: u64) {
        let Some(index) = self.link_of(token) else { return };
        self.lose_link(index, Loss::Broken, "reset");
    }

    /// Ends a connection: what is unanswered is sent again elsewhere if it may be, and the connection is replaced.
    pub(super) fn lose_link(&mut self, index: u32, loss: Loss, why: &'static str) {
        let link = self.links.at_mut(index);
        if link.state == LinkState::Tunnel {
            self.end_tunnel(index);
            return;
        }
        let server = link.server as usize;
        let was_ready = link.is_ready();
        let aside = link.state == LinkState::Aside;
        let fruitless = link.answers == 0 && self.now_us.saturating_sub(link.connected_us) < FRUITLESS_US;
        link.closed_why = why;
        if !fruitless {
            link.backoff.reset();
        }
        let entries = std::mem::take(&mut link.entries);
        let log = std::mem::take(&mut link.log);
        let begun = link.begun;
        self.counters.upstream_closes.count(why);
        if was_ready {
            self.counters.upstream_connections.sub(1);
            self.servers[server].ready -= 1;
        }
        self.servers[server].inflight -= entries.len() as u32;
        self.counters.in_flight.sub(entries.len() as u64);
        self.publish_ready(server);
        if aside {
            self.remove_aside(index);
        } else {
            self.disconnect(index);
            self.links.at_mut(index).probation = loss != Loss::Announced;
        }
        let mut again = Vec::new();
        for (position, entry) in entries.into_iter().enumerate() {
            let unsent = entry.start >= log.flushed();
            let oldest = position == 0;
            let mut ask = entry.ask;
            if entry.cancelled || self.is_gone(ask.id) {
                continue;
            }
            let whole = !ask.traits.has(Traits::STREAMING);
            let verdict = if oldest && begun {
                Err(Failure::Truncated)
            } else if oldest && loss == Loss::BadAnswer {
                Err(Failure::BadAnswer)
            } else if whole && (unsent || loss == Loss::Announced) {
                Ok(false)
            } else if !ask.traits.has(Traits::RETRIABLE) {
                Err(Failure::Lost)
            } else {
                // Twice the reason for the end is hardly chance.
                ask.passed += u8::from(oldest && loss == Loss::Orderly);
                Ok(ask.passed > PASSED_MAX || !matches!(loss, Loss::Orderly | Loss::Ours))
            };
            match verdict {
                Err(failure) => self.answer_fails(ask.id, failure),
                Ok(counts) => {
                    let counter = match (unsent, counts) {
                        (true, _) => &self.counters.moves,
                        (false, true) => &self.counters.retries,
                        (false, false) => &self.counters.resends,
                    };
                    counter.add(1);
                    let retries = self.plan.upstreams[usize::from(ask.upstream)].forward_retries;
                    if counts {
                        ask.tries = ask.tries.saturating_add(1);
                        ask.traits = ask.traits.with(Traits::ALONE, true);
                    }
                    if u32::from(ask.tries) > retries {
                        self.answer_fails(ask.id, Failure::RetriesExceeded);
                    } else {
                        again.push((ask, log.copy(entry.start, entry.len as usize)));
                    }
                }
            }
        }
        // The oldest goes to the front last, so that it is first.
        for (ask, bytes) in again.into_iter().rev() {
            self.place_again(ask, bytes);
        }
        self.dispatch_group(server);
    }

    /// Nobody wants the answer of this exchange any more. `hard`: a connection that carries it must end.
    pub(super) fn cancel_here(&mut self, id: ExchangeId, hard: bool) {
        for server in 0..self.servers.len() {
            let waiting = &mut self.servers[server].waiting;
            if let Some(position) = waiting.iter().position(|waiting| waiting.ask.id == id) {
                waiting.remove(position);
                self.counters.queue_waiting.sub(1);
                return;
            }
        }
        if !hard && id.worker == self.worker {
            // The exchange's slot is free or answered: that alone makes its answer unwanted.
            return;
        }
        let carrier = self.links.indexes().find(|index| {
            let link = self.links.at(*index);
            // One that was set aside may have it too, cancelled when it moved.
            link.peer == Some(id) || link.entries.iter().any(|entry| entry.ask.id == id && !entry.cancelled)
        });
        let Some(index) = carrier else { return };
        if self.links.at(index).state == LinkState::Tunnel {
            self.leave_tunnel(index);
            return;
        }
        if let Some(entry) = self.links.at_mut(index).entries.iter_mut().find(|entry| entry.ask.id == id) {
            entry.cancelled = true;
        }
        // What stands in front is answered first: its clients have nothing to do with this one.
        let in_front = self.links.at(index).entries.iter().take_while(|entry| entry.ask.id != id);
        let wanted = in_front.filter(|entry| !entry.cancelled && !self.is_gone(entry.ask.id)).count();
        if hard && wanted == 0 {
            // Later, because this may be called from the middle of another change.
            self.doomed.push((index, self.links.generation(index)));
        }
    }

    /// Ends connections whose server takes as long as forward-timeout for an answer that nobody wants any more: the time-out
    /// of that request went with its client. Needs no timer, because only a further request would suffer, and that
    /// brings a turn.
    pub(super) fn sweep(&mut self) {
        if self.now_us < self.swept_us + SWEEP_US {
            return;
        }
        self.swept_us = self.now_us;
        let hangs = |index: &u32| {
            let link = self.links.at(*index);
            let upstream = usize::from(self.servers[link.server as usize].upstream);
            let patience_us = self.plan.upstreams[upstream].forward_timeout_us;
            link.entries.front().is_some_and(|front| {
                (front.cancelled || self.is_gone(front.ask.id))
                    && self.now_us >= front.sent_us.max(link.answered_us).saturating_add(patience_us)
            })
        };
        let hanging: Vec<u32> = self.links.indexes().filter(hangs).collect();
        for index in hanging {
            self.doomed.push((index, self.links.generation(index)));
        }
        self.end_doomed();
    }

    /// Ends the connections whose requests were cancelled hard.
    pub(super) fn end_doomed(&mut self) {
        while let Some((index, generation)) = self.doomed.pop() {
            if self.links.holds(index, generation) {
                self.lose_link(index, Loss::Ours, "cancelled");
            }
        }
    }

    /// Stops or resumes the reading of a connection of this worker.
    pub(super) fn flow_here(&mut self, to: LinkId, client: u64, pause: bool) {
        if !self.links.holds(to.index, to.generation) {
            return;
        }
        let now_us = self.now_us;
        let link = self.links.at_mut(to.index);
        let tunnel = link.state == LinkState::Tunnel;
        let is_next = tunnel || link.entries.front().is_some_and(|entry| entry.ask.client == client);
        if pause && !is_next || !pause && link.paused_by != client {
            return;
        }
        link.paused = pause;
        link.paused_by = client;
        let server = link.server as usize;
        if !tunnel {
            self.servers[server].refresh(link, now_us);
        }
        if pause {
            self.watch_stall(to.index);
        } else {
            self.receive_again(token(Owner::Link, to.index, to.generation));
            self.dispatch(server);
        }
    }

    // ---- tunnels ----

    /// The connection leaves the pool, joined with one client; another takes its place.
    fn become_tunnel(&mut self, index: u32, id: ExchangeId) {
        let link = self.links.at_mut(index);
        link.peer = Some(id);
        link.entries.clear();
        let (server, position) = (link.server as usize, link.position);
        let machine = &mut self.servers[server];
        machine.inflight -= 1;
        machine.ready -= 1;
        self.counters.in_flight.sub(1);
        self.counters.upstream_connections.sub(1);
        self.replace_link(server, position);
    }

    fn tunnel_link_ended(&mut self, index: u32) {
        let link = self.links.at_mut(index);
        link.ended = true;
        let (peer, finished) = (link.peer, link.finished);
        if let Some(id) = peer {
            self.answer_done(id, &[]);
        }
        if finished && self.links.is_occupied(index) {
            self.end_tunnel(index);
        }
    }

    /// The client of a tunnel is gone. When both sides had ended in order, what it said last is still sent.
    fn leave_tunnel(&mut self, index: u32) {
        let patience_us = self.plan.client.send_timeout_us;
        let link = self.links.at_mut(index);
        if link.finish && link.ended && !link.finished {
            link.peer = None;
            link.give_up_us = self.now_us + patience_us;
            self.arm_link(index, self.now_us + patience_us);
        } else {
            self.doomed.push((index, self.links.generation(index)));
        }
    }

    /// Ends both sides of a tunnel.
    pub(super) fn end_tunnel(&mut self, index: u32) {
        let link = self.links.remove(index);
        self.counters.upstream_closes.count("tunnel-ended");
        if let Some(socket) = link.socket {
            self.actions.push_back(Action::CloseLink { socket });
        }
        if let Some(id) = link.peer.filter(|_| !(link.ended && link.finished)) {
            self.answer_fails(id, Failure::Truncated);
        }
    }

    /// The upstream's side of a tunnel broke: its client gets what there is, then the end.
    pub(super) fn break_tunnel(&mut self, index: u32) {
        let session = self.sessions.at_mut(index);
        if session.output.is_empty() && !session.flags.sending {
            self.close_session(index, "tunnel-ended");
            return;
        }
        session.reading = Reading::Closing;
        session.flags.close = true;
        self.counters.tunnels.sub(1);
        self.pop_exchange(index);
        self.mark_session(index);
    }

    /// The client of a tunnel sent bytes.
    pub(super) fn tunnel_from_client(&mut self, index: u32, piece: Piece<'_>) {
        let session = self.sessions.at_mut(index);
        session.since_us = self.now_us;
        let exchange = session.first;
        self.body_to_link(exchange, piece, false);
    }

    pub(super) fn tunnel_client_ended(&mut self, index: u32) {
        let session = self.sessions.at(index);
        let (exchange, over) = (session.first, session.flags.shut);
        self.body_to_link(exchange, Piece::Borrowed(&[]), true);
        if over {
            self.close_session(index, "tunnel-ended");
        }
    }

    /// The local side of [`Engine::answer_done`] when the session is a tunnel: the upstream closed its direction.
    pub(super) fn tunnel_answer_ended(&mut self, slot: u32) {
        let index = self.exchanges.at(slot).session;
        self.sessions.at_mut(index).flags.tunnel_ended = true;
        self.mark_session(index);
    }

    /// Whether an exchange is a tunnel now.
    pub(super) fn is_tunnel(&self, slot: u32) -> bool {
        let exchange = self.exchanges.at(slot);
        exchange.phase == Phase::Answering && self.sessions.at(exchange.session).reading == Reading::Tunnel
    }
}

/// The log's bytes in front of a body's.
fn join(log: Bytes, body: Out) -> Vec<Bytes> {
    let mut list = vec![log];
    match body {
        Out::Owned(bytes) => list.push(Bytes::from(bytes)),
        Out::Shared(bytes) => list.push(bytes),
        Out::Vectored(more) => list.extend(more),
    }
    list
}

impl Engine {
    /// The head of an answer, to wherever its asker is.
    fn answer_head(
        &mut self,
        id: ExchangeId,
        from: LinkId,
        head: &ReplyHead,
        upgrade: Option<Bytes>,
        fields: &Fields,
        input: &[u8],
    ) {
        let summary = AnswerHead { status: head.status, body: head.body, declared_length: head.declared_length };
        let lines = Lines::Parsed { input, head, fields };
        if id.worker != self.worker {
            self.mail_head(id, from, summary, upgrade, lines);
        } else if self.exchanges.holds(id.index, id.generation) {
            self.on_answer_head(id.index, from, summary, upgrade.as_deref(), lines);
        }
    }
}
