//! Servers that answer fewer connections at a time than weir makes: whoever waits for a place gets one (stage schedule).
//!
//! A connection whose first answer is late ([`crate::upstream::places`]), also that of a probe, may not have been accepted, because the
//! server has all its threads or processes with others that it keeps, and waits on those for requests. So what rests is closed, on all
//! workers; where nothing does, one that is busy is as soon as it has run empty. A server where that has helped twice keeps no
//! connection without a request for longer than a moment. Exact numbers of connections are left alone, and nothing that is
//! unanswered is touched. docs/semantics.md §3.

use super::Upstreams;
use super::loss::Loss;
use super::pool::Pool;
use super::view::View;
use crate::base::keys::{ConnKey, ServerIndex};
use crate::context::Context;
use crate::cross::mail::Mail;
use crate::ending::UpstreamEnd;
use crate::upstream::connection::UpstreamConn;
use crate::upstream::places::{Try, WAIT_US};

/// How late one that waits hears of what was learned with another.
const AGAIN_US_MAX: u64 = 1_000_000;

/// Whether a connection waits for a place at its server, or gives one up.
#[derive(Debug)]
pub(crate) struct Room {
    /// When a timer looks whether its first answer is late; `u64::MAX`: none does.
    pub due_us: u64,
    /// Is to make room for others as soon as it has run empty.
    pub leaves: bool,
}

impl Default for Room {
    fn default() -> Room {
        Room { due_us: u64::MAX, leaves: false }
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
        self.is_ready() && sent && !self.is_served() && self.interims() == 0 && self.out.is_complete()
    }

    /// Whether nothing is asked on it.
    fn is_resting(&self) -> bool {
        self.is_ready() && self.entries.is_empty()
    }
}

impl Upstreams {
    /// The first request was put on a connection: looks when its answer would be late.
    pub(super) fn watch_first(&mut self, index: ConnKey, cx: &mut Context) {
        let server = self.pool.links.at(index).server;
        if self.view(cx).may_vacate(server) {
            self.pool.arm_first(index, cx.now_us + self.view(cx).patience_us(server), cx);
        }
    }

    /// The time of [`Upstreams::watch_first`] is up.
    pub(super) fn check_first(&mut self, index: ConnKey, cx: &mut Context) {
        let now_us = cx.now_us;
        let link = self.pool.links.at_mut(index);
        link.room.due_us = u64::MAX;
        if link.is_served() || link.entries.is_empty() {
            return;
        }
        let (server, awaits) = (link.server, link.awaits_first());
        let waited_us = now_us.saturating_sub(link.next_since_us());
        let again_us = match self.view(cx).patience_us(server).saturating_sub(waited_us) {
            _ if !awaits => self.view(cx).patience_us(server),
            0 => self.on_late_first(server, waited_us, cx),
            left_us => left_us,
        };
        self.pool.arm_first(index, now_us + again_us, cx);
    }

    /// Something has waited for so long for its first answer from a server: others make room, on all workers. After how long it may be
    /// said again.
    pub(super) fn on_late_first(&mut self, server: ServerIndex, waited_us: u64, cx: &mut Context) -> u64 {
        if self.pool.hints.places(server).on_late(cx.now_us, waited_us) != Some(Try::Vacate) {
            return self.view(cx).patience_us(server).clamp(WAIT_US, AGAIN_US_MAX);
        }
        cx.tell_all(|| Mail::Vacate { server });
        self.vacate(server, cx);
        self.view(cx).patience_us(server).min(AGAIN_US_MAX)
    }

    /// Something waits for its first answer from a server, here or at another worker: connections that rest are closed; if there are
    /// none, one that is busy is when it has run empty: that which is likely to be the first.
    pub(crate) fn vacate(&mut self, server: ServerIndex, cx: &mut Context) {
        let machine = &self.pool.servers[server];
        let kept = machine.kept;
        let links = machine.links.iter().map(|index| (*index, self.pool.links.at(*index)));
        let resting = |link: &UpstreamConn| link.is_resting() && kept != Some(link.position);
        let resting: Vec<ConnKey> = links.clone().filter(|(_, link)| resting(link)).map(|(index, _)| index).collect();
        if resting.is_empty() {
            let busy =
                links.filter(|(_, link)| link.is_served() && !link.room.leaves && !link.reply.large && !link.wait.late);
            if let Some((index, _)) = busy.min_by_key(|(_, link)| link.entries.len()) {
                let link = self.pool.links.at_mut(index);
                (link.room.leaves, link.rest.syncing) = (true, true);
                self.pool.servers[server].refresh(link, cx.now_us);
            }
        }
        for index in resting {
            // The end of one may have put a request on another.
            if self.pool.links.at(index).is_resting() {
                self.pool.hints.places(server).on_closed(cx.now_us);
                self.lose_link(index, Loss::Ours, UpstreamEnd::Crowded, cx);
            }
        }
    }

    /// A connection has run empty: whether it ends, to make room for one that waits.
    pub(super) fn should_leave(&mut self, index: ConnKey, cx: &mut Context) -> bool {
        let link = self.pool.links.at(index);
        let server = link.server;
        if link.room.leaves {
            self.pool.hints.places(server).on_closed(cx.now_us);
            return true;
        }
        if link.owner.is_some() || !self.view(cx).is_crowded(server) {
            return false;
        }
        self.watch_rest(index, cx);
        let links = &self.pool.servers[server].links;
        let awaited = || links.iter().any(|other| self.pool.links.at(*other).awaits_first());
        !self.pool.hints.places(server).waits(cx.now_us) && awaited()
    }
}

impl View<'_> {
    /// Whether the numbers of connections to a server are for weir to choose.
    fn may_vacate(&self, server: ServerIndex) -> bool {
        let machine = &self.servers[server];
        let plan = &self.cx.plan.upstreams[usize::from(machine.upstream)].servers[usize::from(machine.index)];
        !machine.mode.private && !machine.limits.is_exact() && plan.connections_min < plan.connections
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
        self.links.at_mut(index).room.due_us = due_us;
        self.arm_link(index, due_us, cx);
    }
}
