//! Late responses: requests queued behind one move elsewhere (head-of-line escape).
//! docs/pipelining-stalls.md#late-responses
//!
//! The response at the head of a connection takes far longer than its server usually needs
//! ([`crate::upstream::slow_answer`]), although its client reads. Nothing more is sent behind it;
//! safe requests that wait behind it are sent again on other connections, and their responses on
//! this connection are discarded. Each request is moved in this way at most twice, the second time
//! to a connection where nothing is in front of it. Only a share of all is moved, so that a server
//! in trouble doesn't get its load multiplied; but all requests behind a response that has begun
//! and does not end (an event stream) are. The late request itself is not moved: only its own
//! client waits for it. [`super::overlooked`] handles requests that a server seems to have
//! overlooked. Where requests may not be moved (`escape`), a slow response still keeps its
//! connection from others. Requests that wait for a server all of whose connections have such
//! responses, or large ones, move to another server that has room. [`super::aside`] handles slow
//! clients.

use super::aside::keeps_up;
use super::groups::Groups;
use super::left::forget_given_up;
use super::pool::Pool;
use super::timers::Then;
use super::view::View;
use crate::base::keys::{ConnKey, ServerIndex};
use crate::context::Context;
use crate::cross::answer::STALL_US;
use crate::request::pending_request::{PendingRequest, RequestFlags};
use crate::upstream::connection::{ConnState, UpstreamConn};
use crate::upstream::server::Server;

/// A response is late this long after its beginning, however long its server's responses usually
/// take.
const BEGUN_US: u64 = 100_000;
/// One that has not begun is late by now, also where it is unknown how long its server's responses
/// usually take, or where many of them are slow on purpose (long polls).
pub(super) const LATE_US_MAX: u64 = 1_000_000;
/// A response that lasts this long is assumed to have no end.
const ENDLESS_US: u64 = 1_000_000;

/// The time of [`Pool::watch_late`] is up, or that of another timer of the connection, and its
/// server has overlooked nothing. Also returns whether the requests behind the oldest are to leave
/// ([`leave_behind`]).
pub(super) fn check_late(index: ConnKey, pool: &mut Pool, cx: &mut Context) -> (Then, bool) {
    let conn = pool.conns.at(index);
    let server = conn.server;
    let waits = !pool.servers[server].waiting.is_calm();
    // The next request that waits has its connections checked again, which may not happen here.
    pool.servers[server].watched &= waits;
    if conn.entries.len() < 2 - usize::from(waits) || conn.state() != ConnState::Ready {
        return (Then::Nothing, false);
    }
    let late_us = pool.servers[server].late_us();
    let (due_us, again_us) = (conn.late_at_us(late_us), late_us.min(LATE_US_MAX));
    if due_us > cx.now_us || conn.reading.paused {
        if due_us < u64::MAX {
            pool.arm_late(index, due_us.max(cx.now_us + again_us / 2), cx);
        }
        return (Then::Nothing, false);
    }
    pool.mark_late(index, cx);
    forget_given_up(index, pool, cx);
    let escapes = pool.servers[server].learned.usual.moves();
    let leaves =
        escapes && pool.conns.at(index).entries.iter().skip(1).any(|entry| entry.is_movable());
    if leaves {
        pool.arm_late(index, cx.now_us + again_us, cx);
    }
    (if waits { Then::Dispatch(server) } else { Then::Nothing }, leaves)
}

/// The time of [`Pool::watch_queue`] is up: whether requests that wait for the server move
/// elsewhere.
pub(super) fn check_queue(
    index: ConnKey,
    pool: &mut Pool,
    groups: &Groups,
    cx: &mut Context,
) -> Then {
    let conn = pool.conns.at(index);
    if conn.state() != ConnState::Ready || !conn.reply.large && !conn.wait.late {
        return Then::Nothing;
    }
    let server = conn.server;
    pool.watch_queue(index, cx);
    if groups.view(pool, cx).has_relief(server) { Then::Evacuate(server) } else { Then::Nothing }
}

/// Moves the requests behind the oldest one of a connection whose response is late, if they may
/// leave and have a place to move to.
pub(super) fn leave_behind(index: ConnKey, pool: &mut Pool, groups: &Groups, cx: &Context) -> Then {
    let conn = pool.conns.at_mut(index);
    let server = conn.server;
    let machine = &pool.servers[server];
    let group = &groups[usize::from(machine.upstream)].servers;
    if !group.iter().any(|other| pool.servers[other].has_room()) {
        return Then::Nothing;
    }
    let binds = !machine.standing.accepts_bound() || !machine.has_room();
    let Some(front) = conn.entries.front().map(|entry| entry.ask) else { return Then::Nothing };
    let endless = conn.reply.begun && cx.now_us >= conn.reply.begun_us + ENDLESS_US;
    let usual = &mut pool.servers[server].learned.usual;
    // A request bound to a server that takes nothing more waits where it is.
    let stays = |ask: &PendingRequest| {
        binds && ask.traits.has(RequestFlags::BOUND) || !keeps_up(&front, ask)
    };
    let leaves = |ask: &PendingRequest| !stays(ask) && (endless || usual.may_move());
    let mut moved = conn.take_behind(leaves);
    for (ask, _) in &mut moved {
        ask.traits = ask
            .traits
            .with(RequestFlags::ALONE, ask.traits.has(RequestFlags::MOVED))
            .with(RequestFlags::MOVED, true);
    }
    let count = moved.len() as u64;
    cx.counters.escapes.add(count);
    let machine = &mut pool.servers[server];
    machine.moved += count as u32;
    machine.stats.escapes.add(count);
    Then::Move(server, moved)
}

impl View<'_> {
    /// Whether the next response of a connection is late. That was not noticed while nothing was to
    /// be put behind it.
    #[inline]
    pub(super) fn is_overdue(&self, index: ConnKey) -> bool {
        let conn = self.conns.at(index);
        let late_us = self.servers[conn.server].learned.usual.late_us().min(LATE_US_MAX);
        !conn.entries.is_empty() && self.cx.now_us >= conn.late_at_us(late_us)
    }

    /// Whether requests that wait for a server none of whose connections takes anything for now can
    /// move elsewhere: another server has room that is no backup. A server that is only busy is no
    /// reason to use backups.
    fn has_relief(&self, server: ServerIndex) -> bool {
        let machine = &self.servers[server];
        if machine.waiting.is_calm() || !machine.is_held() {
            return false;
        }
        let mut group = self.groups[usize::from(machine.upstream)].servers.iter();
        group.any(|other| {
            other != server && self.servers[other].has_room() && !self.is_backup(other)
        })
    }
}

impl Pool {
    /// Nothing more is put behind the late response.
    pub(super) fn mark_late(&mut self, index: ConnKey, cx: &mut Context) {
        let conn = self.conns.at_mut(index);
        conn.wait.late = true;
        self.servers[conn.server].refresh(conn, cx.now_us);
        self.watch_queue(index, cx);
    }

    /// The response under way has its connection for itself. When the other connections of its
    /// server are as busy, requests that wait for the server can wait for long: checks every
    /// [`STALL_US`] whether they had better move elsewhere.
    pub(super) fn watch_queue(&mut self, index: ConnKey, cx: &mut Context) {
        let conn = self.conns.at(index);
        if self.servers[conn.server].mode.several && conn.reading.due_us == u64::MAX {
            self.arm_stall(index, cx.now_us + STALL_US, cx);
        }
    }

    /// A request was put behind another, or the response to the earlier request has begun: checks
    /// when the earlier one would be late.
    #[inline]
    pub(super) fn watch_late(&mut self, index: ConnKey, cx: &mut Context) {
        let conn = self.conns.at(index);
        let due_us = conn.late_at_us(self.servers[conn.server].late_us());
        self.arm_late(index, due_us, cx);
    }

    /// Requests have begun to wait, and what they wait for may not end soon: checks when the next
    /// response of each connection would be late, so that another connection is made in its place.
    /// Requests that are sent meanwhile are checked as well.
    pub(super) fn watch_busy(&mut self, server: ServerIndex, cx: &mut Context) {
        let machine = &mut self.servers[server];
        let waits = !machine.waiting.is_calm();
        if std::mem::replace(&mut machine.watched, waits) || !waits {
            return;
        }
        for index in self.servers[server].pending() {
            self.watch_late(index, cx);
        }
    }

    /// Has [`check_late`] called by then at the latest.
    #[inline]
    pub(super) fn arm_late(&mut self, index: ConnKey, due_us: u64, cx: &mut Context) {
        let conn = self.conns.at_mut(index);
        if due_us < conn.wait.due_us {
            conn.wait.due_us = due_us;
            self.arm_conn(index, due_us, cx);
        }
    }
}

impl UpstreamConn {
    /// Returns when the next response is late, if those of its server may take this long.
    #[inline]
    fn late_at_us(&self, late_us: u64) -> u64 {
        let due_us = self.next_since_us().saturating_add(late_us);
        if self.reply.begun { due_us.min(self.reply.begun_us + BEGUN_US) } else { due_us }
    }
}

impl Server {
    /// Returns how long the responses of a server may take before they are late. `u64::MAX`: they
    /// never are, and nothing waits for the server.
    #[inline]
    fn late_us(&self) -> u64 {
        match self.learned.usual.late_us() {
            u64::MAX if self.waiting.is_calm() => u64::MAX,
            late_us => late_us.min(LATE_US_MAX),
        }
    }
}
