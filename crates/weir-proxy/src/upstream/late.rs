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
use crate::base::keys::{ConnKey, ServerIndex};
use crate::context::Context;
use crate::request::pending_request::{PendingRequest, RequestFlags};
use crate::upstream::connection::LinkState;

/// An answer is late so long after its beginning, however long its server's answers usually take.
const BEGUN_US: u64 = 100_000;
/// One that has not begun is late by now, also where nobody knows how long its server's answers usually take, or where many of them
/// are waited for on purpose (long polls).
const LATE_US_MAX: u64 = 1_000_000;
/// An answer that goes on for so long is taken for one without an end.
const ENDLESS_US: u64 = 1_000_000;

impl Upstreams {
    /// A request was put behind another one, or the answer to that one has begun: looks when that one would be late.
    pub(super) fn watch_late(&mut self, index: ConnKey, cx: &mut Context) {
        let due_us = self.late_at_us(index, self.late_us(self.links.at(index).server));
        self.arm_late(index, due_us, cx);
    }

    /// When the next answer of a connection is late, if those of its server may take so long.
    fn late_at_us(&self, index: ConnKey, late_us: u64) -> u64 {
        let link = self.links.at(index);
        let due_us = link.next_since_us().saturating_add(late_us);
        if link.begun { due_us.min(link.begun_us + BEGUN_US) } else { due_us }
    }

    /// How long the answers of a server may take before they are late. `u64::MAX`: they never are, and nothing waits for the server.
    fn late_us(&self, server: ServerIndex) -> u64 {
        let machine = &self.servers[server];
        match machine.usual.late_us() {
            u64::MAX if machine.waiting.is_empty() && !machine.usual.watches() => u64::MAX,
            late_us => late_us.min(LATE_US_MAX),
        }
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

    /// Whether the next answer of a connection is late, which nobody has seen while nothing was to be put behind it.
    pub(super) fn is_overdue(&self, index: ConnKey, cx: &Context) -> bool {
        let link = self.links.at(index);
        let late_us = self.servers[link.server].usual.late_us().min(LATE_US_MAX);
        !link.entries.is_empty() && cx.now_us >= self.late_at_us(index, late_us)
    }

    /// Nothing more is put behind the answer that is late.
    pub(super) fn mark_late(&mut self, index: ConnKey, cx: &mut Context) {
        let link = self.links.at_mut(index);
        link.late = true;
        self.servers[link.server].refresh(link, cx.now_us);
        self.watch_queue(index, cx);
    }

    /// The time of [`Upstreams::watch_late`] is up, or that of another timer of the connection.
    pub(super) fn check_late(&mut self, index: ConnKey, cx: &mut Context) {
        self.links.at_mut(index).late_due_us = u64::MAX;
        if !self.check_silence(index, cx) {
            return;
        }
        let link = self.links.at(index);
        let server = link.server;
        let waits = !self.servers[server].waiting.is_empty();
        if link.entries.len() < 2 - usize::from(waits) || link.state != LinkState::Ready {
            return;
        }
        let late_us = self.late_us(server);
        let (due_us, again_us) = (self.late_at_us(index, late_us), late_us.min(LATE_US_MAX));
        if due_us > cx.now_us || self.links.at(index).paused {
            if due_us < u64::MAX {
                self.arm_late(index, due_us.max(cx.now_us + again_us / 2), cx);
            }
            return;
        }
        self.mark_late(index, cx);
        if waits {
            self.dispatch(server, cx);
        }
        let escapes = self.servers[server].usual.watches();
        if escapes && self.links.at(index).entries.iter().skip(1).any(|entry| entry.is_movable()) {
            self.arm_late(index, cx.now_us + again_us, cx);
            self.leave_behind(index, cx);
        }
    }

    /// The answer under way has its connection for itself. When the others of its server are as busy, what waits for the server can
    /// wait for long: looks every [`STALL_US`] whether it had better go elsewhere.
    pub(super) fn watch_queue(&mut self, index: ConnKey, cx: &mut Context) {
        let link = self.links.at(index);
        let upstream = usize::from(self.servers[link.server].upstream);
        let several = self.groups[upstream].servers.len() > 1;
        if several && link.stall_due_us == u64::MAX {
            self.arm_stall(index, cx.now_us + STALL_US, cx);
        }
    }

    /// The time of [`Upstreams::watch_queue`] is up.
    pub(super) fn check_queue(&mut self, index: ConnKey, cx: &mut Context) {
        let link = self.links.at(index);
        if link.state == LinkState::Ready && (link.large || link.late) {
            let server = link.server;
            self.watch_queue(index, cx);
            self.relieve_queue(server, cx);
        }
    }

    /// Has [`Upstreams::check_late`] called by then at the latest.
    pub(super) fn arm_late(&mut self, index: ConnKey, due_us: u64, cx: &mut Context) {
        let link = self.links.at_mut(index);
        if due_us < link.late_due_us {
            link.late_due_us = due_us;
            self.arm_link(index, due_us, cx);
        }
    }

    /// Moves what is behind the oldest request, may leave and has somewhere to go.
    fn leave_behind(&mut self, index: ConnKey, cx: &mut Context) {
        let server = self.links.at(index).server;
        let group = self.groups[usize::from(self.servers[server].upstream)].servers;
        if !group.iter().any(|other| self.servers[other].has_room()) {
            return;
        }
        let machine = &self.servers[server];
        let binds = !machine.standing.accepts_bound() || !machine.has_room();
        let link = self.links.at_mut(index);
        let Some(front) = link.entries.front().map(|entry| entry.ask) else { return };
        let endless = link.begun && cx.now_us >= link.begun_us + ENDLESS_US;
        let usual = &mut self.servers[server].usual;
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
        self.servers[server].stats.escapes.add(count);
        self.send_elsewhere(moved, cx);
        self.dispatch_group(server, cx);
    }
}
