//! Matches responses to the oldest unanswered request, and draws the consequences (stage receive).
//!
//! Bodies are watched in [`super::watch`]; connections are made in [`super::connect`] and end in
//! [`super::close`]. RFC 9112 §9.2, §9.3.

use std::ops::ControlFlow;

use bytes::Bytes;
use weir_http::Trailers;

use super::Upstreams;
use super::agenda::Ending;
use super::aside::{flow, stop_for_front};
use super::cancel::Cancelled;
use super::crowded::should_leave;
use super::doubts::{on_doubt, on_surplus, on_unasked};
use super::groups::Groups;
use super::isolation::Isolation;
use super::left::watch_left;
use super::lost::Loss;
use super::orders::retire;
use super::pool::{Pool, finish};
use super::ran_empty::RanEmpty;
use super::rehearsal;
use super::watch::{Held, Receive, held_end};
use crate::action::Action;
use crate::base::keys::ConnKey;
use crate::base::piece::{Input, Piece};
use crate::base::token::{ShortGeneration, Token};
use crate::context::Context;
use crate::cross::answer::Stop;
use crate::cross::doubt::Doubt;
use crate::cross::router::Replies;
use crate::ending::UpstreamEnd;
use crate::observe::glitch::UpstreamGlitch;
use crate::request::pending_request::{ConnId, RequestFlags};
use crate::upstream::connection::{ConnState, Step, UpstreamConn};
use crate::upstream::depth::Answers;
use crate::upstream::entry::Entry;
use crate::upstream::misframing::BEGINNING;
use crate::upstream::server::Reach;

/// Bytes of an unwanted response that are read to keep its connection; with more to come the
/// connection is closed.
const DISCARD_BYTES_MAX: u64 = 256 * 1024;
/// How long one of unknown length is read for that.
const DISCARD_US: u64 = 1_000_000;
/// A response larger than this keeps others from being queued behind it.
pub(crate) const LARGE_BYTES: u64 = 256 * 1024;

/// A connection that ran empty rests this many times as long as its last responses took, and at
/// most this long. After a surplus response the server still works on a request that weir takes for
/// answered; it shows during the rest.
const REST_ANSWERS: u64 = 2;
const REST_US_MAX: u64 = 100_000;

/// The state of a connection when a receive came.
#[derive(Clone, Copy)]
struct Before {
    /// Since when the server has worked on the oldest request.
    since_us: u64,
    /// Nothing was answered on the connection since that was sent.
    first: bool,
    /// Complete responses.
    answers: u64,
    /// Unanswered requests.
    depth: u32,
}

impl Before {
    #[inline]
    fn of(conn: &UpstreamConn, now_us: u64) -> Before {
        let front = conn.entries.front();
        Before {
            since_us: front.map_or(now_us, |entry| entry.sent_us.max(conn.history.answered_us)),
            first: front.is_some_and(|entry| entry.sent_us >= conn.history.answered_us),
            answers: conn.history.answers,
            depth: conn.entries.len() as u32,
        }
    }
}

/// Whether reading a receive continues. If not, how the connection ends, unless it is gone or need
/// not end.
pub(super) type Reading = ControlFlow<Option<Ending>>;

/// The connection ends.
fn broken(ending: Ending) -> Reading {
    Reading::Break(Some(ending))
}

/// What happens to a connection behind responses.
#[must_use]
enum After {
    /// It ends.
    Ends(Ending),
    /// It may have room for waiting requests.
    Open,
    /// No other client's requests use it.
    Apart,
}

impl Upstreams {
    /// A server sent bytes.
    pub(crate) fn upstream_received(
        &mut self,
        token: u64,
        input: &Input<'_>,
        to: &mut Replies<'_>,
        cx: &mut Context,
    ) {
        let Some(index) = self.pool.conn_of(token) else {
            let worse =
                self.health.probe_received(token, input, &mut self.pool, &mut self.groups, cx);
            return self.act(worse, cx);
        };
        cx.counters.upstream_receives.add(1);
        cx.counters.upstream_bytes_in.add(input.bytes.len() as u64);
        let conn = self.pool.conns.at_mut(index);
        conn.reading.receiving = false;
        conn.unheard.on_heard(cx.now_us);
        self.pool.servers[conn.server].stats.bytes_in.add(input.bytes.len() as u64);
        cx.usage.moved(conn.account, 0, input.bytes.len() as u64);
        if conn.has_stash() {
            let server = &self.pool.servers[conn.server];
            let limits = &cx.plan.upstreams[usize::from(server.upstream)].head;
            if let Some(bytes) = conn.complete_stash(input.bytes, limits) {
                let bytes = Bytes::from(bytes);
                self.read_answers(index, &Input::shared(&bytes), to, cx);
            }
        } else {
            self.read_answers(index, input, to, cx);
        }
        self.pool.receive_again(token, cx);
    }

    /// Reads the bytes of a server, from where the last complete head ended, and acts on the
    /// result.
    pub(super) fn read_answers(
        &mut self,
        index: ConnKey,
        input: &Input<'_>,
        to: &mut Replies<'_>,
        cx: &mut Context,
    ) {
        let conn = self.pool.conns.at_mut(index);
        conn.reply.received_bytes += input.bytes.len() as u64;
        let before = Before::of(conn, cx.now_us);
        let server = conn.server;
        let generation = self.pool.conns.generation(index);
        let mut receive = Receive::new(*input);
        if let Some(ending) = self.read_steps(index, generation, &mut receive, to, cx) {
            self.end(index, ending, cx);
        }
        if !self.pool.conns.holds(index, generation) {
            self.dispatch(server, cx);
            return;
        }
        self.pool.pair(index).keep_print(&receive, cx);
        let now_us = cx.now_us;
        if let Some(odd) = self.pool.conns.at_mut(index).take_oddities() {
            self.pool.pair(index).odd_body(odd, cx);
        }
        let conn = self.pool.conns.at_mut(index);
        if !receive.rest().is_empty() && conn.state() != ConnState::Tunnel {
            conn.keep_stash(receive.rest());
        }
        let elapsed_us = now_us - before.since_us;
        let (answers, waits) = (conn.history.answers, !conn.entries.is_empty());
        if before.depth > 1
            && self.pool.servers[server].learned.holds_back(elapsed_us, now_us)
            && waits
        {
            self.outbox.acknowledge(index, &self.pool);
        }
        if answers > before.answers {
            let Upstreams { pool, groups, isolation, ran_empty, agenda, .. } = self;
            let answer_us = note_answers(index, before, pool, isolation, cx);
            match look_behind(index, answer_us, pool, groups, ran_empty, cx) {
                After::Ends(ending) => agenda.end(index, ending, pool),
                After::Open => {
                    if pool.servers[server].learned.trust.wants_rehearsal() {
                        rehearsal::begin(index, pool, &mut self.outbox, cx);
                    }
                    self.placing().dispatch(server, cx);
                }
                After::Apart => return,
            }
            retire(server, &mut self.pool, &mut self.agenda, cx);
            self.work_off(cx);
            self.placing().relieve_others(server, cx);
            self.work_off(cx);
        }
    }

    /// Reads the bytes of a server until they are used up or the connection has to end, which is
    /// returned.
    #[inline]
    fn read_steps(
        &mut self,
        index: ConnKey,
        generation: u32,
        receive: &mut Receive<'_>,
        to: &mut Replies<'_>,
        cx: &mut Context,
    ) -> Option<Ending> {
        let plan = std::sync::Arc::clone(&cx.plan);
        let server = self.pool.conns.at(index).server;
        let limits = &plan.upstreams[usize::from(self.pool.servers[server].upstream)].head;
        let mut fields = std::mem::take(&mut self.fields);
        let ending = loop {
            let Upstreams { pool, groups, isolation, cancelled, .. } = self;
            let step = pool.conns.at_mut(index).step(
                receive.input.bytes,
                &mut receive.at,
                limits,
                &mut fields,
            );
            let reading = match step {
                Step::More => break None,
                Step::Skip => {
                    if pool.conns.at(index).is_first_blank() {
                        pool.pair(index).glitch(UpstreamGlitch::BlankLine, 1, cx);
                    }
                    Reading::Continue(())
                }
                Step::Head(head) if receive.is_misframed(&head, &pool.pair(index), cx) => {
                    broken(on_doubt(index, Doubt::Misframing, pool, cx))
                }
                Step::Head(head) => {
                    let start = receive.at - head.bytes;
                    self.on_head(index, &head, &fields, &receive.input.bytes[start..], to, cx)
                }
                Step::Body { start, end } => {
                    match receive.watch_body(index, start..end, pool, cx) {
                        Some(piece) if piece.is_empty() => Reading::Continue(()),
                        Some(piece) => on_body(index, piece, pool, groups, cancelled, to, cx),
                        None => broken(on_doubt(index, Doubt::Misframing, pool, cx)),
                    }
                }
                Step::End => match receive.end_body(index, pool, cx) {
                    Held::Nothing => on_end(index, receive.rest(), pool, isolation, to, cx),
                    // The end comes again.
                    Held::Body(piece) => {
                        on_body(index, Piece::Kept(piece), pool, groups, cancelled, to, cx)
                    }
                    Held::Waits => break None,
                    Held::Misframed => broken(on_doubt(index, Doubt::Misframing, pool, cx)),
                },
                Step::Doubt(doubt) => broken(on_doubt(index, doubt, pool, cx)),
                Step::Unasked => broken(on_unasked(index, receive.rest(), pool, cx)),
            };
            if let Reading::Break(ending) = reading {
                break ending;
            }
            if !self.pool.conns.holds(index, generation) {
                break None;
            }
        };
        self.fields = fields;
        ending
    }

    /// The end of a body waits no longer for the bytes behind it, if it does.
    pub(super) fn end_wait(&mut self, index: ConnKey, to: &mut Replies<'_>, cx: &mut Context) {
        let conn = self.pool.conns.at_mut(index);
        if !conn.withheld.bytes.is_empty() && conn.is_body_over() {
            conn.withheld.over = true;
            let rest = conn.take_stash();
            self.read_answers(index, &Input::borrowed(&rest), to, cx);
        }
    }

    /// The bytes held back were not followed by more for a while.
    pub(super) fn check_quote(&mut self, index: ConnKey, to: &mut Replies<'_>, cx: &mut Context) {
        self.end_wait(index, to, cx);
        if !self.pool.conns.is_occupied(index) {
            return;
        }
        let Upstreams { pool, groups, cancelled, .. } = self;
        let conn = pool.conns.at_mut(index);
        let (len, given) = (conn.withheld.bytes.len(), conn.withheld.given);
        if given < len && len < BEGINNING.len() {
            conn.withheld.given = len;
            let rest = Bytes::copy_from_slice(&conn.withheld.bytes[given..]);
            if let Reading::Break(Some(ending)) =
                on_body(index, Piece::Kept(rest), pool, groups, cancelled, to, cx)
            {
                self.end(index, ending, cx);
            }
        }
    }
}

/// Responses were complete within a receive: what that says about the server. Returns how long each
/// took.
#[inline]
fn note_answers(
    index: ConnKey,
    before: Before,
    pool: &mut Pool,
    isolation: &mut Isolation,
    cx: &mut Context,
) -> u64 {
    let conn = pool.conns.at(index);
    let (server, pooled) = (conn.server, conn.owner.is_none());
    let answered = (conn.history.answers - before.answers) as u32;
    if before.answers == 0 && pooled {
        pool.locate(index, cx);
        if pool.servers[server].contact.was_down {
            pool.follow_scout(server, cx);
        }
    }
    pool.publish_response(server, cx);
    let conn = pool.conns.at_mut(index);
    conn.contact.backoff.reset();
    conn.release_log();
    isolation.on_life(server);
    let answer_bytes = std::mem::take(&mut pool.conns.at_mut(index).reply.received_bytes);
    let now_us = cx.now_us;
    let elapsed_us = now_us - before.since_us;
    let machine = &mut pool.servers[server];
    if machine.contact.reach != Reach::Proven && !machine.mode.private {
        machine.contact.reach = Reach::Proven;
    }
    machine.learned.note_answers(answer_bytes, answered);
    // Requests that wait because all connections are full would be in line behind this connection.
    let waiting = machine.waiting.unparked() / machine.made().max(1) as usize;
    let depth = before.depth + waiting as u32;
    // A request that was sent twice does not show the server's usual time, nor does a connection
    // made for one request.
    if !pool.conns.at(index).wait.nudged && (pooled || machine.fresh.is_none()) {
        machine.learned.usual.on_answers(elapsed_us, answered);
        machine.learned.depth.on_answers(&Answers {
            now_us,
            elapsed_us,
            count: answered,
            depth,
            first: before.first,
        });
    }
    elapsed_us / u64::from(answered)
}

/// Responses were complete within a receive, each of which took this long: whether the connection
/// continues, and takes requests.
#[inline]
fn look_behind(
    index: ConnKey,
    answer_us: u64,
    pool: &mut Pool,
    groups: &Groups,
    ran_empty: &mut RanEmpty,
    cx: &mut Context,
) -> After {
    let conn = pool.conns.at(index);
    let (server, is_empty) = (conn.server, conn.entries.is_empty());
    let machine = &pool.servers[server];
    if conn.state() == ConnState::Tunnel {
        return After::Apart;
    }
    if conn.owner.is_some() {
        return match is_empty && !machine.standing.keeps_connections() {
            true => After::Ends(Ending::ours(UpstreamEnd::Disabled)),
            false => After::Apart,
        };
    }
    if is_empty && conn.wait.rehearses {
        rehearsal::passed(index, pool, cx);
    }
    let conn = pool.conns.at(index);
    let machine = &pool.servers[server];
    if conn.history.pipelined && is_empty && machine.mode.share_client {
        // The next request may be another client's: it must not get a response still owed to this
        // client.
        return After::Ends(Ending::ours(UpstreamEnd::ShareClient));
    }
    if conn.gate.leftover && is_empty {
        return After::Ends(Ending::ours(UpstreamEnd::BodyLeft));
    }
    if conn.wait.nudged && conn.is_unwanted() {
        return After::Ends(Ending::ours(UpstreamEnd::Overlooked));
    }
    watch_left(index, pool, cx);
    if is_empty && let Some(ending) = should_leave(index, pool, groups, cx) {
        return After::Ends(ending);
    }
    let conn = pool.conns.at_mut(index);
    if is_empty {
        conn.rest.until_us = cx.now_us + (REST_ANSWERS * answer_us).min(REST_US_MAX);
        let single = pool.servers[server].is_single();
        conn.rest.unseen |= single;
        conn.rest.wary |= single;
    }
    if conn.rest.syncing && is_empty {
        if let Some(ending) = ran_empty.note_synced(index, pool, cx) {
            return After::Ends(ending);
        }
        cx.counters.sync_points.add(1);
        pool.locate(index, cx);
    } else if is_empty && (conn.rest.unseen || conn.rest.wary) {
        ran_empty.note(index, pool);
    }
    pool.pair(index).refresh(cx);
    match is_empty && pool.servers[server].is_over() {
        true => After::Ends(Ending::ours(UpstreamEnd::Unneeded)),
        false => After::Open,
    }
}

/// A piece of the body of the oldest response, or of a tunnel: delivered, or discarded.
pub(super) fn on_body(
    index: ConnKey,
    piece: Piece<'_>,
    pool: &mut Pool,
    groups: &mut Groups,
    cancelled: &Cancelled,
    to: &mut Replies<'_>,
    cx: &mut Context,
) -> Reading {
    let conn = pool.conns.at_mut(index);
    let (id, unwanted) = match (conn.state(), conn.entries.front()) {
        (ConnState::Tunnel, _) => (conn.tunnel.peer, false),
        (_, Some(entry)) => (Some(entry.ask.id), !entry.is_wanted()),
        (_, None) => (None, true),
    };
    let Some(id) = id else { return Reading::Break(None) };
    conn.reply.body_bytes += piece.len() as u64;
    let meters = id.worker != cx.worker && conn.meters(piece.len());
    if conn.reply.body_bytes > LARGE_BYTES && !conn.reply.large && conn.state() == ConnState::Ready
    {
        pool.note_large(index, cx);
    }
    if unwanted {
        return discard(index, piece.len(), pool, groups, cancelled, cx);
    }
    let meter = if meters { stop_for_front(index, pool, cx) } else { None };
    if let Some(Stop { conn, client }) = to.piece(id, piece, meter, cx) {
        cx.forget_resume(conn);
        flow(conn, client, true, pool, cx);
    }
    Reading::Continue(())
}

/// Bytes of an unwanted response: a short remainder is read, a long one costs the connection. Where
/// its length is unknown, the same amount is read before it is taken for long, for a second at
/// most.
fn discard(
    index: ConnKey,
    bytes: usize,
    pool: &mut Pool,
    groups: &mut Groups,
    cancelled: &Cancelled,
    cx: &Context,
) -> Reading {
    let now_us = cx.now_us;
    let conn = pool.conns.at_mut(index);
    conn.reply.note_unwanted(bytes, now_us);
    let short = match conn.body_left() {
        Some(left) => left <= DISCARD_BYTES_MAX,
        None if conn.ends_by_close() => false,
        None => {
            conn.reply.unwanted_bytes <= DISCARD_BYTES_MAX
                && now_us < conn.reply.unwanted_us + DISCARD_US
        }
    };
    if conn.state() != ConnState::Tunnel
        && (short || !groups.may_send_again(index, pool, cancelled, cx))
    {
        return Reading::Continue(());
    }
    let doubled = pool.conns.at(index).entries.front().is_some_and(|entry| entry.doubled);
    broken(Ending::ours(if doubled { UpstreamEnd::Cancelled } else { UpstreamEnd::ClientGone }))
}

/// The oldest response is complete; `rest` is the data behind it.
fn on_end(
    index: ConnKey,
    rest: &[u8],
    pool: &mut Pool,
    isolation: &mut Isolation,
    to: &mut Replies<'_>,
    cx: &mut Context,
) -> Reading {
    let now_us = cx.now_us;
    let conn = pool.conns.at_mut(index);
    let trailers = conn.trailers().as_bytes().to_vec();
    if let Some(odd) = conn.take_oddities() {
        pool.pair(index).odd_body(odd, cx);
    }
    let conn = pool.conns.at_mut(index);
    let streaming =
        conn.entries.front().is_some_and(|entry| entry.ask.traits.has(RequestFlags::STREAMING));
    let early = streaming && !conn.has_given_all();
    // The server declined the body: no doubt, but its connection waits for one that never comes.
    let is_declined = early && !conn.out.body_begun && conn.asks_for_leave();
    conn.reply.large = false;
    let (persist, announced, position, poison) =
        (conn.reply.persist, conn.reply.announced, conn.position, conn.reply.poison);
    let (old, pooled, once) =
        (conn.reply.old, conn.owner.is_none(), conn.owner.is_some_and(|owner| owner.once));
    let (since_us, body_bytes) = (conn.next_since_us(), conn.reply.body_bytes);
    let Some(entry) = finish(conn, &mut pool.servers[conn.server], cx) else {
        return Reading::Break(None);
    };
    let (server, behind) = (conn.server, !conn.entries.is_empty());
    conn.gate.probation = false;
    let (answers, nudged) = (conn.history.answers, conn.wait.nudged);
    let machine = &mut pool.servers[server];
    if entry.behind && !behind && !nudged {
        machine.learned.usual.overlook.on_last_answer();
    }
    if machine.fresh.is_none() || pooled {
        machine.learned.on_end(answers, persist, announced, pooled);
    }
    if persist && !old && !early && poison.is_none() && pooled {
        machine.learned.trust.on_clean_answer(now_us, position);
        if machine.learned.trust.wants_rehearsal() {
            rehearsal::offer(index, &entry, body_bytes, pool, cx);
        }
    }
    answer_ended(index, &entry, Trailers::kept(&trailers), pool, isolation, to, cx);
    if early && !is_declined {
        return broken(on_doubt(index, Doubt::EarlyAnswer, pool, cx));
    }
    if let Some(doubt) = poison {
        return broken(on_surplus(index, rest, doubt, pool, cx));
    }
    if pool.conns.at(index).front_is_abandoned() {
        return broken(Ending::ours(UpstreamEnd::Cancelled));
    }
    let goes_on = persist && !is_declined && !may_stray(index, &entry, pool);
    if goes_on && !(old && behind) {
        return Reading::Continue(());
    }
    // Nothing else handles this connection after the receive.
    let machine = &mut pool.servers[server];
    if pooled || machine.fresh.is_none() {
        machine.learned.usual.on_answers(now_us.saturating_sub(since_us), 1);
    }
    if behind {
        pool.doubt_server(server, Some(Doubt::NotPersistent), cx);
    }
    // That weir stops using it says nothing about what the server did behind this response.
    broken(match announced {
        _ if once => Ending::ours(UpstreamEnd::PerRequest),
        true => Ending { loss: Loss::Announced, why: UpstreamEnd::ServerSaidClose },
        false => Ending { loss: Loss::Orderly, why: UpstreamEnd::NotReusable },
    })
}

/// Whether a body may come behind the response to this request, where none may follow: the server
/// has done that before.
fn may_stray(index: ConnKey, entry: &Entry, pool: &Pool) -> bool {
    let conn = pool.conns.at(index);
    let strays =
        entry.ask.traits.has(RequestFlags::HEAD) && pool.servers[conn.server].learned.strays;
    strays && !conn.wait.rehearses
}

/// The response to the oldest request on this connection is complete: it is counted, and the
/// requester is informed.
pub(super) fn answer_ended(
    index: ConnKey,
    entry: &Entry,
    trailers: Trailers<'_>,
    pool: &mut Pool,
    isolation: &mut Isolation,
    to: &mut Replies<'_>,
    cx: &mut Context,
) {
    let conn = pool.conns.at(index);
    isolation.on_answer(entry, &conn.log, cx);
    let machine = &mut pool.servers[conn.server];
    let took_us = cx.now_us.saturating_sub(entry.sent_us);
    machine.stats.latency.record(took_us);
    machine.note_answer(took_us, cx.now_us);
    // A cancelled request may have been sent elsewhere: this is not the end of that response.
    if !entry.cancelled {
        to.end(entry.ask.id, trailers, cx);
    }
}

/// The end of the connection ends the response to its oldest request: its held-back bytes are
/// delivered. Returns how the connection ends.
pub(super) fn answer_closed(
    index: ConnKey,
    pool: &mut Pool,
    groups: &mut Groups,
    isolation: &mut Isolation,
    cancelled: &Cancelled,
    to: &mut Replies<'_>,
    cx: &mut Context,
) -> Ending {
    pool.conns.at_mut(index).withheld.over = true;
    match held_end(index, &[], pool, cx) {
        Held::Nothing | Held::Waits => {}
        Held::Misframed => return on_doubt(index, Doubt::Misframing, pool, cx),
        Held::Body(piece) => {
            let read = on_body(index, Piece::Kept(piece), pool, groups, cancelled, to, cx);
            if let Reading::Break(Some(ending)) = read {
                return ending;
            }
        }
    }
    let conn = pool.conns.at_mut(index);
    conn.reply.persist = false;
    let behind = conn.entries.len() > 1;
    let server = conn.server;
    conn.reply.large = false;
    let since_us = conn.next_since_us();
    if let Some(entry) = finish(conn, &mut pool.servers[server], cx) {
        let (answers, pooled) = (conn.history.answers, conn.owner.is_none());
        let learned = &mut pool.servers[server].learned;
        learned.usual.on_answers(cx.now_us.saturating_sub(since_us), 1);
        if pooled && answers == 1 {
            learned.keepalive_limit.on_announced(answers);
            learned.lasting.on_single();
        }
        answer_ended(index, &entry, Trailers::default(), pool, isolation, to, cx);
    }
    if behind {
        pool.doubt_server(server, Some(Doubt::CloseDelimited), cx);
    }
    // It does not say that nothing behind it was processed.
    Ending { loss: Loss::Orderly, why: UpstreamEnd::AnswerEndedByClose }
}

impl Pool {
    #[inline]
    pub(super) fn conn_id(&self, index: ConnKey, cx: &Context) -> ConnId {
        ConnId { worker: cx.worker, index, generation: self.conns.generation(index) }
    }

    /// Names an upstream connection towards the worker and the timers.
    #[inline]
    pub(super) fn conn_token(&self, index: ConnKey) -> u64 {
        let generation = ShortGeneration::of(self.conns.generation(index));
        Token::Conn { key: index, generation }.pack()
    }

    /// The upstream connection that a token names, if it is still there.
    #[inline]
    pub(super) fn conn_of(&self, token: u64) -> Option<ConnKey> {
        match Token::unpack(token)? {
            Token::Conn { key, generation } => {
                self.conns.holds_short(key, generation).then_some(key)
            }
            _ => None,
        }
    }

    /// Reads on unless the client of the response under way has enough.
    #[inline]
    pub(super) fn receive_again(&mut self, token: u64, cx: &mut Context) {
        let Some(index) = self.conn_of(token) else { return };
        let conn = self.conns.at_mut(index);
        if let Some(socket) =
            conn.socket.filter(|_| !conn.reading.paused && !conn.reading.receiving)
        {
            conn.reading.receiving = true;
            cx.actions.push_back(Action::ReceiveUpstream { socket });
        }
    }
}
