//! Which connection of a server takes a request (stage schedule).
//!
//! Pure: a [`View`] and a request in, a [`Pick`] out. Where something has to be done first (a
//! connection is marked, ends, or is waited for) it says so, and [`super::placing`] does it, at one
//! place. docs/pipelining.md#which-connection-a-request-gets

use super::lost::ABRUPT_US;
use super::view::View;
use crate::base::keys::{ConnKey, ServerIndex};
use crate::request::pending_request::{ClientName, PendingRequest, RequestFlags};
use crate::upstream::connection::UpstreamConn;

/// What a server's connections can do for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pick {
    /// The connection at this position takes it.
    At(usize),
    /// This connection would take it, but the response under way there is late and was not marked
    /// yet: it must be marked, and another connection looked for.
    Late(ConnKey),
    /// None, until this connection has been idle until that time, or another is made.
    Rests(ConnKey, u64),
    /// None, until this connection has been closed and replaced: its server may be about to close
    /// it.
    Stale(ConnKey),
    /// None for now.
    Nothing,
}

impl View<'_> {
    /// Returns the connection that takes this request now, if any does.
    #[inline]
    pub(super) fn pick(&self, server: ServerIndex, ask: &PendingRequest) -> Pick {
        let machine = &self.servers[server];
        let tail = |conn: ConnKey| self.conns.at(conn).tail_client();
        let Some(mut position) = machine.pick(ask, tail) else { return Pick::Nothing };
        if machine.positions.is_resting(position) && machine.keeps_apart() {
            if let Some((index, until_us)) = self.rest_to_await(server) {
                return Pick::Rests(index, until_us);
            }
            position = self.longest_empty(server).unwrap_or(position);
        }
        if ask.traits.rides_apart() {
            return self.pick_fresh(server, ask, position);
        }
        let index = machine.conns[position];
        if self.is_overdue(index) { Pick::Late(index) } else { Pick::At(position) }
    }

    /// Where clients are kept apart and all empty connections have to stay idle: returns which of
    /// them is waited for, when another is being made that may be up sooner. None where it is
    /// unknown whether the server works on more than one connection at a time.
    fn rest_to_await(&self, server: ServerIndex) -> Option<(ConnKey, u64)> {
        let machine = &self.servers[server];
        let comes = machine.positions.is_coming() || machine.may_grow(false);
        if !comes || !self.is_hopeful(server) {
            return None;
        }
        let conns = || machine.conns.iter().map(|index| self.conns.at(*index));
        // Two at least have answered.
        conns().filter(|conn| conn.is_ready() && conn.history.answers > 0).nth(1)?;
        let resting = machine.positions.resting().map(|position| machine.conns[position]);
        let (until_us, index) =
            resting.map(|index| (self.conns.at(index).rest.until_us, index)).min()?;
        Some((index, until_us))
    }

    /// Of the idle connections, returns the one that has been empty for longest.
    fn longest_empty(&self, server: ServerIndex) -> Option<usize> {
        let machine = &self.servers[server];
        machine
            .positions
            .resting()
            .min_by_key(|position| self.conns.at(machine.conns[*position]).history.answered_us)
    }

    /// Returns an idle connection for a request that must be sent alone, `first` if that is good. A
    /// request that can't be sent again is not put on one that its server may be about to close:
    /// one of those is replaced.
    fn pick_fresh(&self, server: ServerIndex, ask: &PendingRequest, first: usize) -> Pick {
        let machine = &self.servers[server];
        let idle =
            (0..machine.conns.len()).filter(|position| machine.positions.is_empty_at(*position));
        let mut all = [first].into_iter().chain(idle);
        match all.find(|position| self.is_fresh(machine.conns[*position], ask)) {
            Some(position) => Pick::At(position),
            // Where another connection may be made, the request waits for that.
            None if machine.positions.coming_any() || machine.may_grow(true) => Pick::Nothing,
            None => Pick::Stale(machine.conns[first]),
        }
    }

    /// Returns an idle connection for a request in quarantine: one that has been idle for a while,
    /// and for a suspect no other, so that its end is evidence.
    pub(super) fn pick_quarantined(
        &self,
        server: ServerIndex,
        ask: &PendingRequest,
        suspect: bool,
    ) -> Option<usize> {
        let machine = &self.servers[server];
        let rested =
            |position: &usize| self.conns.at(machine.conns[*position]).is_rested(self.cx.now_us);
        let fresh = |position: &usize| self.is_fresh(machine.conns[*position], ask);
        let all = 0..machine.conns.len();
        let mut idle = all.filter(|position| machine.positions.is_idle(*position)).filter(fresh);
        idle.clone().find(rested).or_else(|| idle.next().filter(|_| !suspect))
    }

    /// Whether a request may use this idle connection: one that can't be sent again does not use a
    /// connection that its server may be about to close.
    pub(super) fn is_fresh(&self, index: ConnKey, ask: &PendingRequest) -> bool {
        if ask.traits.has(RequestFlags::RETRIABLE) && !ask.traits.has(RequestFlags::STREAMING) {
            return true;
        }
        let conn = self.conns.at(index);
        let machine = &self.servers[conn.server];
        let rest_us = conn.rest_us(self.cx.now_us);
        // This server recently ended a connection behind a response without notice.
        let abrupt = machine.learned.keepalive_limit.is_abrupt(self.cx.now_us);
        let lives = conn.history.answers == 0
            || !abrupt
                && (rest_us >= ABRUPT_US
                    || machine.learned.keepalive_limit.is_outlived(conn.history.answers));
        lives && machine.learned.idle_limit.is_fresh(self.cx.now_us, rest_us)
    }
}

impl UpstreamConn {
    /// The client of the last request on a connection.
    fn tail_client(&self) -> Option<ClientName> {
        self.entries.back().map(|entry| entry.ask.client)
    }
}
