//! Heads of responses: what they show about their server and about further requests on the
//! connection, and their way to the client (stage receive).
//!
//! Called while responses are read ([`super::receive`]). A head that doesn't carry back the
//! identifier of its request belongs to no request. RFC 9110 §15.2.

use weir_http::{Fields, ReplyBody, ReplyHead, ReplyParts, Version};

use super::Upstreams;
use super::agenda::Agenda;
use super::crowded::note_first_answer;
use super::doubts::on_doubt;
use super::groups::Groups;
use super::overlooked::judge_silence;
use super::pool::{Pair, Pool};
use super::private_pool::PrivatePools;
use super::receive::{LARGE_BYTES, Reading};
use super::tunnels;
use crate::base::keys::ConnKey;
use crate::context::Context;
use crate::cross::answer::AnswerHead;
use crate::cross::doubt::Doubt;
use crate::cross::router::Replies;
use crate::request::pending_request::{ConnId, PendingRequest, RequestFlags};
use crate::upstream::entry::Silence;

impl Upstreams {
    /// The head of a response.
    pub(super) fn on_head(
        &mut self,
        index: ConnKey,
        head: &ReplyHead,
        fields: &Fields,
        input: &[u8],
        to: &mut Replies<'_>,
        cx: &mut Context,
    ) -> Reading {
        let from = self.pool.conn_id(index, cx);
        let conn = self.pool.conns.at_mut(index);
        let Some(ask) = conn.entries.front().map(|entry| entry.ask) else {
            return Reading::Break(None);
        };
        if !fields.oddities().is_empty() {
            self.pool.pair(index).odd_answer(fields.oddities(), cx);
        }
        let conn = self.pool.conns.at_mut(index);
        if head.status >= 200 || head.status == 101 {
            self.pool.servers[conn.server].stats.statuses.count(head.status);
        }
        if head.status == 101 {
            let Upstreams { pool, groups, private, agenda, .. } = self;
            let reading =
                on_switch(index, &ask, head, fields, input, pool, groups, private, agenda, to, cx);
            self.work_off(cx);
            return reading;
        }
        if head.status >= 200 {
            let is_mismatch = self.pool.pair(index).is_mismatch(&ask, fields, input, cx);
            let is_proven =
                !is_mismatch && cx.plan.upstreams[usize::from(ask.upstream)].echo.is_some();
            if !is_proven && may_have_overtaken(index, head, &self.pool, &mut self.groups, cx) {
                return Reading::Break(Some(on_doubt(
                    index,
                    Doubt::OvertakingError,
                    &mut self.pool,
                    cx,
                )));
            }
            let pair = self.pool.pair(index);
            if is_mismatch {
                return Reading::Break(Some(on_doubt(
                    index,
                    Doubt::EchoMismatch,
                    &mut self.pool,
                    cx,
                )));
            }
            let is_copy = || pair.conn.entries.front().is_some_and(|entry| entry.is_copy);
            if head.status >= pair.server.notable_from && !is_copy() {
                self.on_notable_answer(index, &ask, head.status, cx);
            }
            begin_answer(index, head, &mut self.pool, cx);
        } else {
            let count = self.pool.conns.at(index).interims();
            self.pool.pair(index).judge_interim(head.status, count, cx);
        }
        let pair = self.pool.pair(index);
        let Some(entry) = pair.conn.entries.front() else { return Reading::Break(None) };
        let stray = head.status < 200
            && (entry.behind_strangers
                || pair.is_mismatch(&ask, fields, input, cx)
                || entry.soon && pair.may_be_late(cx));
        if stray {
            // A party that can write behind its own response could have written this.
            cx.counters.interim_dropped.add(1);
        } else if !entry.cancelled {
            answer_head(&ask, from, head, fields, input, &self.pool, &self.groups, to, cx);
        }
        Reading::Continue(())
    }
}

/// Whether a response is an error that ends its connection, which may be for a request behind the
/// oldest: some servers reject a bad request at once. Then it is assigned to no request, and the
/// oldest is sent again, alone: nothing can overtake it there. Not if the oldest may not be sent
/// again, because nothing better is known then.
#[inline]
fn may_have_overtaken(
    index: ConnKey,
    head: &ReplyHead,
    pool: &Pool,
    groups: &mut Groups,
    cx: &Context,
) -> bool {
    let conn = pool.conns.at(index);
    let may_be_anothers = head.status >= 400 && !head.persist && conn.is_followed_by_another();
    may_be_anothers && conn.entries.front().is_some_and(|oldest| groups.may_repeat(&oldest.ask, cx))
}

/// The head of a 101: the connection is a tunnel from here on.
#[cold]
fn on_switch(
    index: ConnKey,
    ask: &PendingRequest,
    head: &ReplyHead,
    fields: &Fields,
    input: &[u8],
    pool: &mut Pool,
    groups: &Groups,
    private: &mut PrivatePools,
    agenda: &mut Agenda,
    to: &mut Replies<'_>,
    cx: &mut Context,
) -> Reading {
    let from = pool.conn_id(index, cx);
    let is_unwanted = pool.conns.at(index).entries.front().is_some_and(|entry| entry.cancelled);
    if !is_unwanted && pool.pair(index).is_mismatch(ask, fields, input, cx) {
        return Reading::Break(Some(on_doubt(index, Doubt::EchoMismatch, pool, cx)));
    }
    tunnels::begin(index, ask.id, pool, private, agenda, cx);
    if is_unwanted {
        pool.conns.at_mut(index).tunnel.peer = None;
        tunnels::end(index, pool, cx);
        return Reading::Break(None);
    }
    answer_head(ask, from, head, fields, input, pool, groups, to, cx);
    Reading::Continue(())
}

/// The head of a final response, which is that of the oldest request: records what it shows about
/// its server, and what may be sent on the connection behind it.
#[inline]
fn begin_answer(index: ConnKey, head: &ReplyHead, pool: &mut Pool, cx: &mut Context) {
    pool.pair(index).measure(cx);
    pool.pair(index).compare(cx);
    let conn = pool.conns.at_mut(index);
    conn.reply.begin(cx.now_us);
    if conn.wait.silence != Silence::Short {
        judge_silence(index, pool, cx);
    }
    let conn = pool.conns.at(index);
    if conn.history.answers == 0 && conn.owner.is_none() {
        let sent_us = conn.next_since_us();
        note_first_answer(index, sent_us, pool, cx);
    }
    let conn = pool.conns.at_mut(index);
    conn.reply.old = head.version == Version::Http10;
    if head.status == 204 && head.declared_length.is_some_and(|length| length > 0) {
        // The response is good without the body that it announces; anything that follows it is not.
        conn.reply.poison = Some(Doubt::ForbiddenBody);
    }
    if head.connection_auth && conn.owner.is_none() {
        // The connection now speaks for one client (NTLM, Negotiate): no other client may use it.
        conn.reply.persist = false;
    }
    let large = matches!(head.body, ReplyBody::Length(length) if length > LARGE_BYTES);
    if conn.owner.is_some_and(|owner| owner.once) {
        conn.reply.persist = false;
    }
    if large || matches!(head.body, ReplyBody::UntilClose) {
        pool.note_large(index, cx);
    } else {
        conn.reply.large = false;
    }
    let conn = pool.conns.at(index);
    if conn.entries.len() > 1 || conn.owner.is_none() && pool.servers[conn.server].watched {
        pool.watch_late(index, cx);
    }
}

/// Passes the head of a response to its requester, wherever that is.
fn answer_head(
    ask: &PendingRequest,
    from: ConnId,
    head: &ReplyHead,
    fields: &Fields,
    input: &[u8],
    pool: &Pool,
    groups: &Groups,
    to: &mut Replies<'_>,
    cx: &mut Context,
) {
    let is_last = head.status == 101 || head.status >= 200;
    let binding = if is_last {
        groups.view(pool, cx).binding(ask, pool.conns.at(from.index).server)
    } else {
        None
    };
    let binding = binding.as_deref().map(|value| [(&b"Set-Cookie"[..], value)]);
    let added = binding.as_ref().map_or(&[][..], |field| &field[..]);
    let head = AnswerHead {
        parts: ReplyParts::received(input, head, fields).with(added),
        body: head.body,
        declared_length: head.declared_length,
        upgrade: head.upgrade.map(|span| span.of(input)),
    };
    to.head(ask.id, from, &head, cx);
}

impl Pool {
    /// The response under way is large: nothing is put behind it.
    pub(super) fn note_large(&mut self, index: ConnKey, cx: &mut Context) {
        let conn = self.conns.at_mut(index);
        conn.reply.large = true;
        cx.counters.exclusive.add(1);
        let server = &mut self.servers[conn.server];
        server.refresh(conn, cx.now_us);
        self.watch_queue(index, cx);
    }
}

impl Pair<'_> {
    /// Notes how long a response was waited for, where balancing needs that.
    #[inline]
    fn measure(&mut self, cx: &Context) {
        if let Some(measure) = self.server.learned.measure.as_deref_mut()
            && let Some(entry) = self.conn.entries.front()
            // The time that a client takes for its body is not its server's time.
            && !entry.ask.traits.has(RequestFlags::STREAMING)
        {
            measure.record(cx.now_us.saturating_sub(entry.sent_us));
        }
    }

    /// Whether an interim response may be an earlier client's, where clients are kept apart: none
    /// has an identifier that shows it.
    fn may_be_late(&self, cx: &Context) -> bool {
        self.server.keeps_apart()
            && cx.plan.upstreams[usize::from(self.server.upstream)].echo.is_none()
    }

    /// Whether a response doesn't carry back the identifier of its request.
    #[inline]
    fn is_mismatch(
        &self,
        ask: &PendingRequest,
        fields: &Fields,
        input: &[u8],
        cx: &Context,
    ) -> bool {
        let echo = &cx.plan.upstreams[usize::from(self.server.upstream)].echo;
        echo.as_ref().is_some_and(|name| fields.get(input, name.as_bytes()) != Some(&ask.echo[..]))
    }
}
