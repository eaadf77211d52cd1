//! Answers read and matched to the oldest unanswered request (stage receive).
//!
//! Connections are made in [`super::connect`] and end in [`super::loss`]. RFC 9112 §9.2, §9.3.

use bytes::Bytes;
use weir_http::Trailers;

use super::Upstreams;
use super::loss::Loss;
use super::pool::{Pool, finish};
use super::watch::{End, Watch};
use crate::action::Action;
use crate::base::keys::{ConnKey, ServerIndex};
use crate::base::piece::{Input, Piece};
use crate::base::token::{ShortGeneration, Token};
use crate::context::Context;
use crate::cross::answer::Stop;
use crate::cross::router::Replies;
use crate::ending::UpstreamEnd;
use crate::observe::glitch::UpstreamGlitch;
use crate::request::pending_request::{LinkId, RequestFlags};
use crate::upstream::connection::{LinkState, Step, UpstreamConn};
use crate::upstream::depth::Answers;
use crate::upstream::entry::Entry;
use crate::upstream::server::Reach;
use crate::upstream::trust::Doubt;

/// Bytes of an unwanted answer that are read to keep its connection; with more to come the connection is closed.
const DISCARD_BYTES_MAX: u64 = 256 * 1024;
/// How long one of unknown length is read for that.
const DISCARD_US: u64 = 1_000_000;
/// An answer larger than this keeps others from being queued behind it.
pub(crate) const LARGE_BYTES: u64 = 256 * 1024;

/// How many times as long as its last answers took is a rest for a connection that ran empty, and how long at most. When
/// an answer was one too many, the server still works on what weir takes for answered; this is when it shows.
const REST_ANSWERS: u64 = 2;
const REST_US_MAX: u64 = 100_000;

/// How a connection stood when a receive came.
#[derive(Clone, Copy)]
struct Before {
    /// Since when the server has worked on the oldest request.
    since_us: u64,
    /// Nothing was answered on the connection since that was sent.
    first: bool,
    /// Complete answers.
    answers: u64,
    /// Unanswered requests.
    depth: u32,
}

impl Before {
    #[inline]
    fn of(link: &UpstreamConn, now_us: u64) -> Before {
        let front = link.entries.front();
        Before {
            since_us: front.map_or(now_us, |entry| entry.sent_us.max(link.history.answered_us)),
            first: front.is_some_and(|entry| entry.sent_us >= link.history.answered_us),
            answers: link.history.answers,
            depth: link.entries.len() as u32,
        }
    }
}

impl Upstreams {
    /// A server sent bytes.
    pub(crate) fn link_received(&mut self, token: u64, input: &Input<'_>, to: &mut Replies<'_>, cx: &mut Context) {
        let Some(index) = self.pool.link_of(token) else {
            let worse = self.health.probe_received(token, input, &mut self.pool, &mut self.groups, cx);
            return self.follow(worse, cx);
        };
        cx.counters.upstream_receives.add(1);
        cx.counters.upstream_bytes_in.add(input.bytes.len() as u64);
        let link = self.pool.links.at_mut(index);
        link.reading.receiving = false;
        link.unheard.on_heard(cx.now_us);
        self.pool.servers[link.server].stats.bytes_in.add(input.bytes.len() as u64);
        cx.usage.moved(link.account, 0, input.bytes.len() as u64);
        if link.has_stash() {
            let server = &self.pool.servers[link.server];
            let limits = &cx.plan.upstreams[usize::from(server.upstream)].head;
            if let Some(bytes) = link.complete_stash(input.bytes, limits) {
                let bytes = Bytes::from(bytes);
                self.read_answers(index, &Input::shared(&bytes), to, cx);
            }
        } else {
            self.read_answers(index, input, to, cx);
        }
        self.pool.receive_again(token, cx);
    }

    /// Reads what a server sent, from where the last complete head ended, and sees to what follows from it.
    pub(super) fn read_answers(&mut self, index: ConnKey, input: &Input<'_>, to: &mut Replies<'_>, cx: &mut Context) {
        let link = self.pool.links.at_mut(index);
        link.reply.received_bytes += input.bytes.len() as u64;
        let before = Before::of(link, cx.now_us);
        let server = link.server;
        let generation = self.pool.links.generation(index);
        let mut watch = Watch::default();
        let at = self.read_steps(index, generation, input, &mut watch, to, cx);
        if !self.pool.links.holds(index, generation) {
            self.dispatch(server, cx);
            return;
        }
        self.pool.pair(index).keep_print(input, &watch, cx);
        let now_us = cx.now_us;
        if let Some(odd) = self.pool.links.at_mut(index).take_oddities() {
            self.pool.pair(index).odd_body(odd, cx);
        }
        let link = self.pool.links.at_mut(index);
        if at < input.bytes.len() && link.state() != LinkState::Tunnel {
            link.keep_stash(&input.bytes[at..]);
        }
        let elapsed_us = now_us - before.since_us;
        let (answers, waits) = (link.history.answers, !link.entries.is_empty());
        if before.depth > 1 && self.pool.servers[server].learned.holds_back(elapsed_us, now_us) && waits {
            self.outbox.acknowledge(index, &self.pool);
        }
        if answers > before.answers {
            self.on_answers(index, before, cx);
        }
    }

    /// Goes through the steps of what a server sent until it is used up or the connection is gone. How far it was read; what is
    /// left belongs to a head that is not complete.
    #[inline]
    fn read_steps(
        &mut self,
        index: ConnKey,
        generation: u32,
        input: &Input<'_>,
        watch: &mut Watch,
        to: &mut Replies<'_>,
        cx: &mut Context,
    ) -> usize {
        let plan = std::sync::Arc::clone(&cx.plan);
        let server = self.pool.links.at(index).server;
        let limits = &plan.upstreams[usize::from(self.pool.servers[server].upstream)].head;
        let mut fields = std::mem::take(&mut self.fields);
        let mut at = 0;
        loop {
            let step = self.pool.links.at_mut(index).step(input.bytes, &mut at, limits, &mut fields);
            let live = match step {
                Step::More => break,
                Step::Skip => {
                    if self.pool.links.at(index).is_first_blank() {
                        self.pool.pair(index).glitch(UpstreamGlitch::BlankLine, 1, cx);
                    }
                    true
                }
                Step::Head(head) => {
                    let start = at - head.bytes;
                    if self.pool.pair(index).is_misframed(input, &head, at, watch, cx) {
                        self.on_doubt(index, Doubt::Misframing, cx);
                        break;
                    }
                    self.on_head(index, &head, &fields, &input.bytes[start..], to, cx)
                }
                Step::Body { start, end } => self.watch_body(index, input, start..end, watch, to, cx),
                Step::End => {
                    let end = self.watch_end(index, &input.bytes[at..], to, cx);
                    if end == End::Waits {
                        break;
                    }
                    watch.end();
                    end == End::Known && self.on_end(index, &input.bytes[at..], to, cx)
                }
                Step::Doubt(doubt) => {
                    self.on_doubt(index, doubt, cx);
                    false
                }
                Step::Unasked => {
                    self.on_unasked(index, &input.bytes[at..], cx);
                    false
                }
            };
            if !live || !self.pool.links.holds(index, generation) {
                break;
            }
        }
        self.fields = fields;
        at
    }

    /// Answers were complete within a receive: what that says about the server, and that the connection has room again.
    #[inline]
    fn on_answers(&mut self, index: ConnKey, before: Before, cx: &mut Context) {
        let link = self.pool.links.at(index);
        let (server, pooled) = (link.server, link.owner.is_none());
        let answered = (link.history.answers - before.answers) as u32;
        if before.answers == 0 && pooled {
            self.pool.locate(index, cx);
            if self.pool.servers[server].contact.was_down {
                self.pool.follow_scout(server, cx);
            }
        }
        self.pool.publish_response(server, cx);
        let link = self.pool.links.at_mut(index);
        link.contact.backoff.reset();
        link.release_log();
        self.isolation.on_life(server);
        let answer_bytes = std::mem::take(&mut self.pool.links.at_mut(index).reply.received_bytes);
        let now_us = cx.now_us;
        let elapsed_us = now_us - before.since_us;
        let machine = &mut self.pool.servers[server];
        if machine.contact.reach != Reach::Proven && !machine.mode.private {
            machine.contact.reach = Reach::Proven;
        }
        machine.learned.note_answers(answer_bytes, answered);
        // What waits because all connections are full would stand in line behind this one.
        let waiting = machine.waiting.len() / machine.made().max(1) as usize;
        let depth = before.depth + waiting as u32;
        // How long a server takes that had to be asked twice is not what it usually takes.
        if !self.pool.links.at(index).wait.nudged {
            machine.learned.usual.on_answers(elapsed_us, answered);
            machine.learned.depth.on_answers(&Answers {
                now_us,
                elapsed_us,
                count: answered,
                depth,
                first: before.first,
            });
        }
        self.after_answers(index, server, elapsed_us / u64::from(answered), cx);
    }

    /// A connection has room again. `answer_us` is how long an answer took.
    pub(super) fn after_answers(&mut self, index: ConnKey, server: ServerIndex, answer_us: u64, cx: &mut Context) {
        let now_us = cx.now_us;
        let link = self.pool.links.at_mut(index);
        if link.state() == LinkState::Tunnel {
            return;
        }
        if link.owner.is_some() {
            if link.entries.is_empty() && !self.pool.servers[server].standing.keeps_connections() {
                self.lose_link(index, Loss::Ours, UpstreamEnd::Disabled, cx);
            }
            return;
        }
        if link.history.pipelined && link.entries.is_empty() && self.pool.servers[server].mode.share_client {
            // The next request may be another client's. Should the server still owe an answer to this one, it must not get it.
            self.lose_link(index, Loss::Ours, UpstreamEnd::ShareClient, cx);
            return;
        }
        if self.pool.links.at(index).wait.nudged && self.pool.links.at(index).is_unwanted() {
            self.lose_link(index, Loss::Ours, UpstreamEnd::Overlooked, cx);
            return;
        }
        if self.pool.links.at(index).entries.is_empty() && self.should_leave(index, cx) {
            self.lose_link(index, Loss::Ours, UpstreamEnd::Crowded, cx);
            return self.retire(server, cx);
        }
        let link = self.pool.links.at_mut(index);
        if link.entries.is_empty() {
            link.rest.until_us = now_us + (REST_ANSWERS * answer_us).min(REST_US_MAX);
            let single = self.pool.servers[server].is_single();
            link.rest.unseen |= single;
            link.rest.wary |= single;
        }
        if link.rest.syncing && link.entries.is_empty() {
            if self.pool.pair(index).is_worn(cx) {
                self.lose_link(index, Loss::Ours, UpstreamEnd::Glitches, cx);
                return;
            }
            self.ran_empty.note_synced(index, &self.pool);
            cx.counters.sync_points.add(1);
            self.pool.locate(index, cx);
        } else if link.entries.is_empty() && (link.rest.unseen || link.rest.wary) {
            self.ran_empty.note(index, &self.pool);
        }
        let link = self.pool.links.at_mut(index);
        self.pool.servers[server].refresh(link, cx.now_us);
        if link.entries.is_empty() && self.pool.servers[server].is_over() {
            self.lose_link(index, Loss::Ours, UpstreamEnd::Unneeded, cx);
            return;
        }
        self.dispatch(server, cx);
        self.retire(server, cx);
    }

    pub(super) fn on_body(&mut self, index: ConnKey, piece: Piece<'_>, to: &mut Replies<'_>, cx: &mut Context) -> bool {
        let link = self.pool.links.at_mut(index);
        let (id, cancelled) = match (link.state(), link.entries.front()) {
            (LinkState::Tunnel, _) => (link.tunnel.peer, false),
            (_, Some(entry)) => (Some(entry.ask.id), entry.cancelled),
            (_, None) => (None, true),
        };
        let Some(id) = id else { return false };
        link.reply.body_bytes += piece.len() as u64;
        if link.reply.body_bytes > LARGE_BYTES && !link.reply.large && link.state() == LinkState::Ready {
            self.pool.note_large(index, cx);
        }
        if cancelled {
            return self.discard(index, piece.len(), cx);
        }
        if let Some(Stop { link, client }) = to.piece(id, piece, cx) {
            cx.forget_resume(link);
            self.flow_here(link, client, true, cx);
        }
        true
    }

    /// So many bytes of an answer that nobody wants: a short rest is read, a long one costs the connection. Where nobody knows how
    /// long it is, as much is read before it is taken for long, for a second at most. False: the connection is gone.
    fn discard(&mut self, index: ConnKey, bytes: usize, cx: &mut Context) -> bool {
        let now_us = cx.now_us;
        let link = self.pool.links.at_mut(index);
        link.reply.note_unwanted(bytes, now_us);
        let short = match link.body_left() {
            Some(left) => left <= DISCARD_BYTES_MAX,
            None if link.ends_by_close() => false,
            None => link.reply.unwanted_bytes <= DISCARD_BYTES_MAX && now_us < link.reply.unwanted_us + DISCARD_US,
        };
        if link.state() != LinkState::Tunnel
            && (short || !self.groups.may_send_again(index, &self.pool, &self.cancelled, cx))
        {
            return true;
        }
        let doubled = self.pool.links.at(index).entries.front().is_some_and(|entry| entry.doubled);
        self.lose_link(index, Loss::Ours, if doubled { UpstreamEnd::Cancelled } else { UpstreamEnd::ClientGone }, cx);
        false
    }

    /// The answer to the request that was the oldest on this connection is complete: counted, and told to whoever asked.
    pub(super) fn answer_ended(
        &mut self,
        index: ConnKey,
        entry: &Entry,
        trailers: Trailers<'_>,
        to: &mut Replies<'_>,
        cx: &mut Context,
    ) {
        let link = self.pool.links.at(index);
        self.isolation.on_answer(entry, &link.log, cx);
        let machine = &mut self.pool.servers[link.server];
        machine.stats.latency.record(cx.now_us.saturating_sub(entry.sent_us));
        // A cancelled request may have been asked elsewhere: this is not the end of that answer.
        if !entry.cancelled {
            to.end(entry.ask.id, trailers, cx);
        }
    }

    /// The oldest answer is complete; `rest` is what came behind it.
    pub(super) fn on_end(&mut self, index: ConnKey, rest: &[u8], to: &mut Replies<'_>, cx: &mut Context) -> bool {
        let now_us = cx.now_us;
        let link = self.pool.links.at_mut(index);
        let trailers = link.trailers().as_bytes().to_vec();
        if let Some(odd) = link.take_oddities() {
            self.pool.pair(index).odd_body(odd, cx);
        }
        let link = self.pool.links.at_mut(index);
        let streaming = link.entries.front().is_some_and(|entry| entry.ask.traits.has(RequestFlags::STREAMING));
        let early = streaming && !link.out.is_complete();
        link.reply.large = false;
        let (persist, announced, position, poison) =
            (link.reply.persist, link.reply.announced, link.position, link.reply.poison);
        let (old, pooled) = (link.reply.old, link.owner.is_none());
        let once = link.owner.is_some_and(|owner| owner.once);
        let since_us = link.next_since_us();
        let Some(entry) = finish(link, &mut self.pool.servers[link.server], cx) else { return false };
        let (server, behind) = (link.server, !link.entries.is_empty());
        link.gate.probation = false;
        let answers = link.history.answers;
        let machine = &mut self.pool.servers[server];
        machine.learned.on_end(answers, persist, announced, pooled);
        if persist && !old && !early && poison.is_none() && pooled {
            machine.learned.trust.on_clean_answer(now_us, position);
        }
        self.answer_ended(index, &entry, Trailers::kept(&trailers), to, cx);
        if early {
            self.on_doubt(index, Doubt::EarlyAnswer, cx);
            return false;
        }
        if let Some(doubt) = poison {
            let doubt = self.pool.pair(index).name_surplus(rest, doubt, cx);
            self.end_doubted(index, doubt, cx);
            return false;
        }
        if self.pool.links.at(index).front_is_abandoned() {
            self.lose_link(index, Loss::Ours, UpstreamEnd::Cancelled, cx);
            return false;
        }
        if !persist || old && behind {
            // Nobody looks at this connection after the receive.
            self.pool.servers[server].learned.usual.on_answers(now_us.saturating_sub(since_us), 1);
            if behind {
                self.pool.doubt_server(server, Some(Doubt::NotPersistent), cx);
            }
            // That weir won't go on with it says nothing about what the server did behind this answer.
            let ending = match announced {
                _ if once => (Loss::Ours, UpstreamEnd::PerRequest),
                true => (Loss::Announced, UpstreamEnd::ServerSaidClose),
                false => (Loss::Orderly, UpstreamEnd::NotReusable),
            };
            self.lose_link(index, ending.0, ending.1, cx);
            return false;
        }
        true
    }
}

impl Pool {
    #[inline]
    pub(super) fn link_id(&self, index: ConnKey, cx: &Context) -> LinkId {
        LinkId { worker: cx.worker, index, generation: self.links.generation(index) }
    }

    /// Names an upstream connection towards the worker and the timers.
    #[inline]
    pub(super) fn link_token(&self, index: ConnKey) -> u64 {
        let generation = ShortGeneration::of(self.links.generation(index));
        Token::Conn { key: index, generation }.pack()
    }

    /// The upstream connection that a token names, if it is still there.
    #[inline]
    pub(super) fn link_of(&self, token: u64) -> Option<ConnKey> {
        match Token::unpack(token)? {
            Token::Conn { key, generation } => self.links.holds_short(key, generation).then_some(key),
            _ => None,
        }
    }

    /// Reads on unless the client of the answer under way has enough.
    #[inline]
    pub(super) fn receive_again(&mut self, token: u64, cx: &mut Context) {
        let Some(index) = self.link_of(token) else { return };
        let link = self.links.at_mut(index);
        if let Some(socket) = link.socket.filter(|_| !link.reading.paused && !link.reading.receiving) {
            link.reading.receiving = true;
            cx.actions.push_back(Action::ReceiveLink { socket });
        }
    }
}
