//! Late answers: what is queued behind one goes elsewhere (head-of-line escape). docs/pipelining.md#what-may-follow-what
//!
//! The answer at the head of a connection takes far longer than its server usually needs ([`crate::upstream::slow_answer`]), although its
//! client reads. Nothing more is sent behind it; safe requests that wait behind it are sent again on other connections, and
//! their answers on this one are thrown away. Each request is moved so at most twice, the second time to where nothing is in front
//! of it. Only a share of all is moved, so that a server in trouble doesn't get its load multiplied; but all behind an answer that
//! has begun and does not end (an event stream). The late request itself stays: only its own client waits for it. What a server
//! seems to have overlooked is the business of [`super::overlooked`]. Where requests may not be moved (`escape`), what takes long still
//! keeps its connection from others. What waits for a server all of whose connections have such answers, or large ones, goes to another
//! server that has room. Slow clients are the business of [`super::aside`].

use super::Upstreams;
use super::aside::{STALL_US, keeps_up};
use super::pool::{Pair, Pool};
use crate::base::keys::{ConnKey, ServerIndex};
use crate::context::Context;
use crate::request::pending_request::{PendingRequest, RequestFlags};
use crate::upstream::connection::{LinkState, UpstreamConn};
use crate::upstream::server::Server;

/// An answer is late so long after its beginning, however long its server's answers usually take.
const BEGUN_US: u64 = 100_000;
/// One that has not begun is late by now, also where nobody knows how long its server's answers usually take, or where many of them
/// are waited for on purpose (long polls).
const LATE_US_MAX: u64 = 1_000_000;
/// An answer that goes on for so long is taken for one without an end.
const ENDLESS_US: u64 = 1_000_000;

impl Upstreams {
    /// The time of [`Pool::watch_late`] is up, or that of another timer of the connection.
    pub(super) fn check_late(&mut self, index: ConnKey, cx: &mut Context) {
        self.pool.links.at_mut(index).wait.due_us = u64::MAX;
        if !self.check_silence(index, cx) {
            return;
        }
        let link = self.pool.links.at(index);
        let server = link.server;
        let waits = !self.pool.servers[server].waiting.is_empty();
        if link.entries.len() < 2 - usize::from(waits) || link.state() != LinkState::Ready {
            return;
        }
        let late_us = self.pool.servers[server].late_us();
        let (due_us, again_us) = (self.pool.links.at(index).late_at_us(late_us), late_us.min(LATE_US_MAX));
        if due_us > cx.now_us || self.pool.links.at(index).reading.paused {
            if due_us < u64::MAX {
                self.pool.arm_late(index, due_us.max(cx.now_us + again_us / 2), cx);
            }
            return;
        }
        self.pool.mark_late(index, cx);
        if waits {
            self.dispatch(server, cx);
        }
        let escapes = self.pool.servers[server].learned.usual.watches();
        if escapes && self.pool.links.at(index).entries.iter().skip(1).any(|entry| entry.is_movable()) {
            self.pool.arm_late(index, cx.now_us + again_us, cx);
            self.leave_behind(index, cx);
        }
    }

    /// The time of [`Pool::watch_queue`] is up.
    pub(super) fn check_queue(&mut self, index: ConnKey, cx: &mut Context) {
        let link = self.pool.links.at(index);
        if link.state() == LinkState::Ready && (link.reply.large || link.wait.late) {
            let server = link.server;
            self.pool.watch_queue(index, cx);
            self.relieve_queue(server, cx);
        }
    }

    /// Moves what is behind the oldest request, may leave and has somewhere to go.
    fn leave_behind(&mut self, index: ConnKey, cx: &mut Context) {
        let server = self.pool.links.at(index).server;
        let group = self.groups[usize::from(self.pool.servers[server].upstream)].servers;
        if !group.iter().any(|other| self.pool.servers[other].has_room()) {
            return;
        }
        let machine = &self.pool.servers[server];
        let binds = !machine.standing.accepts_bound() || !machine.has_room();
        let link = self.pool.links.at_mut(index);
        let Some(front) = link.entries.front().map(|entry| entry.ask) else { return };
        let endless = link.reply.begun && cx.now_us >= link.reply.begun_us + ENDLESS_US;
        let usual = &mut self.pool.servers[server].learned.usual;
        // What is bound to a server that takes nothing more waits where it is.
        let stays = |ask: &PendingRequest| binds && ask.traits.has(RequestFlags::BOUND) || !keeps_up(&front, ask);
        let leaves = |ask: &PendingRequest| !stays(ask) && (endless || usual.may_move());
        let mut moved = link.take_behind(leaves);
        for (ask, _) in &mut moved {
            ask.traits = ask
                .traits
                .with(RequestFlags::ALONE, ask.traits.has(RequestFlags::MOVED))
                .with(RequestFlags::MOVED, true);
        }
        let count = moved.len() as u64;
        cx.counters.escapes.add(count);
        self.pool.servers[server].stats.escapes.add(count);
        self.send_elsewhere(moved, cx);
        self.dispatch_group(server, cx);
    }
}

impl Pool {
    /// Nothing more is put behind the answer that is late.
    pub(super) fn mark_late(&mut self, index: ConnKey, cx: &mut Context) {
        let link = self.links.at_mut(index);
        link.wait.late = true;
        self.servers[link.server].refresh(link, cx.now_us);
        self.watch_queue(index, cx);
    }

    /// The answer under way has its connection for itself. When the others of its server are as busy, what waits for the server can
    /// wait for long: looks every [`STALL_US`] whether it had better go elsewhere.
    pub(super) fn watch_queue(&mut self, index: ConnKey, cx: &mut Context) {
        let link = self.links.at(index);
        if self.servers[link.server].mode.several && link.reading.due_us == u64::MAX {
            self.arm_stall(index, cx.now_us + STALL_US, cx);
        }
    }

    /// A request was put behind another one, or the answer to that one has begun: looks when that one would be late.
    #[inline]
    pub(super) fn watch_late(&mut self, index: ConnKey, cx: &mut Context) {
        let link = self.links.at(index);
        let due_us = link.late_at_us(self.servers[link.server].late_us());
        self.arm_late(index, due_us, cx);
    }

    /// Requests have begun to wait, and what they wait for may not end soon: looks when the next answer of each connection would be late,
    /// so that another one is made in its place. What is sent while requests wait is looked at as well.
    pub(super) fn watch_busy(&mut self, server: ServerIndex, cx: &mut Context) {
        let machine = &mut self.servers[server];
        let waits = !machine.waiting.is_empty();
        if std::mem::replace(&mut machine.watched, waits) || !waits {
            return;
        }
        for index in self.servers[server].pending() {
            self.watch_late(index, cx);
        }
    }

    /// Has [`Upstreams::check_late`] called by then at the latest.
    #[inline]
    pub(super) fn arm_late(&mut self, index: ConnKey, due_us: u64, cx: &mut Context) {
        let link = self.links.at_mut(index);
        if due_us < link.wait.due_us {
            link.wait.due_us = due_us;
            self.arm_link(index, due_us, cx);
        }
    }
}

impl Pair<'_> {
    /// Whether the next answer of a connection is late, which nobody has seen while nothing was to be put behind it.
    #[inline]
    pub(super) fn is_overdue(&self, cx: &Context) -> bool {
        let late_us = self.server.learned.usual.late_us().min(LATE_US_MAX);
        !self.link.entries.is_empty() && cx.now_us >= self.link.late_at_us(late_us)
    }
}

impl UpstreamConn {
    /// When the next answer is late, if those of its server may take so long.
    #[inline]
    fn late_at_us(&self, late_us: u64) -> u64 {
        let due_us = self.next_since_us().saturating_add(late_us);
        if self.reply.begun { due_us.min(self.reply.begun_us + BEGUN_US) } else { due_us }
    }
}

impl Server {
    /// How long the answers of a server may take before they are late. `u64::MAX`: they never are, and nothing waits for the server.
    #[inline]
    fn late_us(&self) -> u64 {
        match self.learned.usual.late_us() {
            u64::MAX if self.waiting.is_empty() && !self.learned.usual.watches() => u64::MAX,
            late_us => late_us.min(LATE_US_MAX),
        }
    }
}
