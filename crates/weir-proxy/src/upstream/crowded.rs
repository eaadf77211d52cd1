//! Servers that serve fewer connections at a time than weir makes: a connection that waits for a
//! place gets one (stage schedule).
//!
//! A connection whose first answer is late ([`crate::cross::places`]), also that of a probe, may
//! not have been accepted, because the server has all its threads or processes with others that it
//! keeps, and waits on those for requests. So idle connections are closed, on all workers; where
//! none is idle, a busy one is closed as soon as it has run empty. A server where that has helped
//! twice keeps no connection without a request for longer than a moment, and gets no more
//! connections than it has places. Exact numbers of connections are left alone, and no unanswered
//! request is touched. docs/connections.md.

use super::Upstreams;
use super::agenda::Ending;
use super::connect::watch_rest;
use super::groups::Groups;
use super::pool::Pool;
use super::timers::Then;
use super::view::View;
use crate::base::keys::{ConnKey, ServerIndex};
use crate::context::Context;
use crate::cross::mail::Mail;
use crate::cross::places::{Try, WAIT_US};
use crate::ending::UpstreamEnd;
use crate::upstream::connection::UpstreamConn;

/// How late one that waits hears of what was learned with another.
const AGAIN_US_MAX: u64 = 1_000_000;

/// Whether a connection waits for a place at its server, or gives one up.
#[derive(Debug)]
pub(crate) struct Room {
    /// When a timer looks whether its first answer is late; `u64::MAX`: none does.
    pub due_us: u64,
    /// Is to make room for others as soon as it has run empty.
    pub leaves: bool,
    /// It counts as one that has brought a response ([`Load::served`]).
    ///
    /// [`Load::served`]: super::load::Load::served
    pub served: bool,
}

impl Default for Room {
    fn default() -> Room {
        Room { due_us: u64::MAX, leaves: false, served: false }
    }
}

impl UpstreamConn {
    /// Whether the server has begun to answer on it, so that it has accepted it.
    fn is_served(&self) -> bool {
        self.is_ready() && (self.history.answers > 0 || self.reply.begun)
    }

    /// Whether it waits for its first answer, and the server has all that it needs for that.
    fn awaits_first(&self) -> bool {
        let sent = self.entries.front().is_some_and(|front| front.start < self.log.flushed());
        self.is_ready()
            && sent
            && !self.is_served()
            && self.interims() == 0
            && self.out.is_complete()
    }

    /// Whether nothing is asked on it.
    fn is_resting(&self) -> bool {
        self.is_ready() && self.entries.is_empty()
    }
}

/// The first request was put on a connection: looks when its answer would be late.
pub(super) fn watch_first(index: ConnKey, pool: &mut Pool, groups: &Groups, cx: &mut Context) {
    let server = pool.conns.at(index).server;
    let view = groups.view(pool, cx);
    if view.may_vacate(server) {
        let due_us = cx.now_us + view.patience_us(server);
        pool.arm_first(index, due_us, cx);
    }
}

/// The first response on a connection begins, to what was sent at `sent_us`.
pub(super) fn note_first_answer(index: ConnKey, sent_us: u64, pool: &mut Pool, cx: &Context) {
    let conn = pool.conns.at_mut(index);
    let server = conn.server;
    if conn.is_ready() && !std::mem::replace(&mut conn.room.served, true) {
        pool.servers[server].learned.load.served += 1;
        pool.publish(server, cx);
    }
    pool.hints.places(server).on_first_answer(cx.now_us, sent_us);
}

/// The time of [`watch_first`] is up.
pub(super) fn check_first(
    index: ConnKey,
    pool: &mut Pool,
    groups: &Groups,
    cx: &mut Context,
) -> Then {
    let now_us = cx.now_us;
    let conn = pool.conns.at_mut(index);
    conn.room.due_us = u64::MAX;
    if conn.is_served() || conn.entries.is_empty() {
        return Then::Nothing;
    }
    let (server, awaits) = (conn.server, conn.awaits_first());
    let waited_us = now_us.saturating_sub(conn.next_since_us());
    let patience_us = groups.view(pool, cx).patience_us(server);
    let (again_us, then) = match patience_us.saturating_sub(waited_us) {
        _ if !awaits => (patience_us, Then::Nothing),
        0 => on_late_first(server, waited_us, pool, groups, cx),
        left_us => (left_us, Then::Nothing),
    };
    pool.arm_first(index, now_us + again_us, cx);
    then
}

/// Something has waited this long for its first answer from a server: others make room, on all
/// workers. Returns after how long this may be reported again.
pub(super) fn on_late_first(
    server: ServerIndex,
    waited_us: u64,
    pool: &Pool,
    groups: &Groups,
    cx: &mut Context,
) -> (u64, Then) {
    let tried = pool.hints.places(server).on_late(cx.now_us, waited_us);
    let patience_us = groups.view(pool, cx).patience_us(server);
    if tried != Some(Try::Vacate) {
        return (patience_us.clamp(WAIT_US, AGAIN_US_MAX), Then::Nothing);
    }
    let served = pool.hints.served(server);
    let served = if served < u32::from(cx.workers) { 0 } else { served };
    pool.hints.places(server).on_vacate(served);
    cx.tell_all(|| Mail::Vacate { server });
    (patience_us.min(AGAIN_US_MAX), Then::Vacate(server))
}

/// How a connection that is empty ends if it was to leave its place when it is.
pub(super) fn leaves_its_place(index: ConnKey, pool: &Pool, cx: &Context) -> Option<Ending> {
    let conn = pool.conns.at(index);
    conn.room.leaves.then(|| {
        pool.hints.places(conn.server).on_closed(cx.now_us);
        Ending::ours(UpstreamEnd::Crowded)
    })
}

/// A connection has run empty: how it ends, if it has to, to make room for one that waits.
#[inline]
pub(super) fn should_leave(
    index: ConnKey,
    pool: &mut Pool,
    groups: &Groups,
    cx: &mut Context,
) -> Option<Ending> {
    let leaving = leaves_its_place(index, pool, cx);
    if leaving.is_some() {
        return leaving;
    }
    let conn = pool.conns.at(index);
    let server = conn.server;
    if conn.owner.is_some() || !groups.view(pool, cx).is_crowded(server) {
        return None;
    }
    leave_crowded(index, server, pool, groups, cx)
}

/// The same where connections that rest keep others from their places.
#[cold]
fn leave_crowded(
    index: ConnKey,
    server: ServerIndex,
    pool: &mut Pool,
    groups: &Groups,
    cx: &mut Context,
) -> Option<Ending> {
    let ending = watch_rest(index, pool, groups, cx);
    let conns = &pool.servers[server].conns;
    let awaited = || conns.iter().any(|other| pool.conns.at(*other).awaits_first());
    // Within the number of places that is known, one that waits was tried, and its being late tells
    // that there was no place for it.
    let (places, machine) = (pool.hints.places(server), &pool.servers[server]);
    let tries = places.count() > 0 && machine.made() <= machine.limit();
    let leaves = !tries && !places.waits(cx.now_us) && awaited();
    ending.or(leaves.then_some(Ending::ours(UpstreamEnd::Crowded)))
}

impl Upstreams {
    /// Something waits for its first answer from a server, here or at another worker: connections
    /// that rest are closed; if there are none, one that is busy is when it has run empty: that
    /// which is likely to be the first.
    pub(crate) fn vacate(&mut self, server: ServerIndex, cx: &mut Context) {
        let machine = &self.pool.servers[server];
        let kept = machine.kept;
        let conns = machine.conns.iter().map(|index| (*index, self.pool.conns.at(*index)));
        let resting = |conn: &UpstreamConn| conn.is_resting() && kept != Some(conn.position);
        let resting = conns.clone().filter(|(_, conn)| resting(conn));
        // Where the number of places is known, the one that waits is one too many.
        let most = if self.pool.hints.places(server).count() > 0 { 1 } else { usize::MAX };
        let resting: Vec<ConnKey> = resting.map(|(index, _)| index).take(most).collect();
        if resting.is_empty() {
            let busy = conns.filter(|(_, conn)| {
                conn.is_served() && !conn.room.leaves && !conn.reply.large && !conn.wait.late
            });
            if let Some((index, _)) = busy.min_by_key(|(_, conn)| conn.entries.len()) {
                let conn = self.pool.conns.at_mut(index);
                (conn.room.leaves, conn.rest.syncing) = (true, true);
                self.pool.servers[server].refresh(conn, cx.now_us);
            }
        }
        for index in resting {
            // The end of one may have put a request on another.
            if self.pool.conns.at(index).is_resting() {
                self.pool.hints.places(server).on_closed(cx.now_us);
                self.end(index, Ending::ours(UpstreamEnd::Crowded), cx);
            }
        }
    }
}

impl View<'_> {
    /// Whether the numbers of connections to a server are for weir to choose.
    fn may_vacate(&self, server: ServerIndex) -> bool {
        let machine = &self.servers[server];
        let plan = &self.cx.plan.upstreams[usize::from(machine.upstream)].servers
            [usize::from(machine.index)];
        !machine.mode.private
            && !machine.limits.is_exact()
            && plan.connections_min < plan.connections
    }

    /// Whether connections to a server that rest keep others from theirs.
    #[inline]
    pub(super) fn is_crowded(&self, server: ServerIndex) -> bool {
        self.hints.places(server).is_crowded(self.cx.now_us) && self.may_vacate(server)
    }

    /// How long a first answer may take before it is late.
    fn patience_us(&self, server: ServerIndex) -> u64 {
        let patience_us = self.hints.places(server).patience_us(self.cx.now_us);
        match self.servers[server].learned.usual.late_us() {
            // Nothing is known, or what is usual is the waiting itself.
            u64::MAX => patience_us,
            _ if self.is_crowded(server) => patience_us,
            usual_us => patience_us.max(usual_us),
        }
    }

    /// How long a probe may wait for its answer before others make room for it.
    pub(super) fn probe_patience_us(&self, server: ServerIndex) -> u64 {
        if self.may_vacate(server) { self.patience_us(server) } else { u64::MAX }
    }
}

impl Pool {
    fn arm_first(&mut self, index: ConnKey, due_us: u64, cx: &mut Context) {
        self.conns.at_mut(index).room.due_us = due_us;
        self.arm_conn(index, due_us, cx);
    }
}
