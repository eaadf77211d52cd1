//! Timers of connections and probes: one comparison when one fires, and a check of its purpose.

use super::Upstreams;
use super::aside::check_stall;
use super::connect::check_rest;
use super::connection::ConnState;
use super::crowded::check_first;
use super::late::{check_late, leave_behind};
use super::left::check_left;
use super::orders::NEVER_US;
use super::overlooked::check_silence;
use super::pool::Pool;
use super::queue_timeout::end_waits;
use super::tunnels;
use crate::base::keys::{ConnKey, ServerIndex};
use crate::base::token::Token;
use crate::context::Context;
use crate::cross::router::Replies;
use crate::ending::Timeout;
use crate::request::pending_request::PendingRequest;

/// The consequences for others of a check of a connection, or of a server.
#[must_use]
#[derive(Debug)]
pub(super) enum Then {
    /// Nothing, or nothing for others.
    Nothing,
    /// A request that waits for this server may be sent now.
    Dispatch(ServerIndex),
    /// These requests leave their connection to this server, oldest first, and get in line for
    /// another.
    Move(ServerIndex, Vec<(PendingRequest, Vec<u8>)>),
    /// Requests that wait for this server move elsewhere.
    Evacuate(ServerIndex),
    /// The standing of this server has become worse: requests that wait there are to leave.
    StandDown(ServerIndex),
    /// Connections to this server make room for one that waits for its first response.
    Vacate(ServerIndex),
}

impl Upstreams {
    /// A timer has fired.
    pub(crate) fn on_timer(&mut self, token: u64, to: &mut Replies<'_>, cx: &mut Context) {
        match Token::unpack(token) {
            Some(Token::Conn { key, generation })
                if self.pool.conns.holds_short(key, generation) =>
            {
                self.conn_timer(key, to, cx);
            }
            Some(Token::Probe { .. }) => {
                let then = self.health.on_timer(token, &mut self.pool, &mut self.groups, cx);
                self.act(then, cx);
            }
            Some(Token::Retry { key }) => {
                self.private.retry(key, &mut self.pool, &mut self.groups, cx)
            }
            Some(Token::Limit { server }) => {
                end_waits(server, &mut self.pool, cx);
                self.pool.servers[server].look_at_limit(cx.now_us);
                self.dispatch(server, cx);
            }
            _ => {}
        }
    }

    fn conn_timer(&mut self, index: ConnKey, to: &mut Replies<'_>, cx: &mut Context) {
        match self.pool.conns.at(index).state() {
            ConnState::Down { retry_us: NEVER_US } => {}
            ConnState::Down { retry_us } if retry_us <= cx.now_us => self.pool.connect(index, cx),
            ConnState::Down { retry_us } => self.pool.arm_conn(index, retry_us, cx),
            ConnState::Connecting { deadline_us } if deadline_us <= cx.now_us => {
                cx.counters.timeouts.count(Timeout::Connect);
                self.connect_failed(index, None, cx);
            }
            ConnState::Connecting { deadline_us } if self.pool.conns.at(index).owner.is_some() => {
                self.private.try_next_address(index, &mut self.pool, cx);
                self.pool.arm_conn(index, deadline_us, cx);
            }
            ConnState::Connecting { deadline_us } => self.pool.arm_conn(index, deadline_us, cx),
            ConnState::Tunnel if self.pool.conns.at(index).tunnel.give_up_us <= cx.now_us => {
                tunnels::end(index, &mut self.pool, cx);
            }
            ConnState::Tunnel => {}
            ConnState::Ready => self.look_at(index, to, cx),
        }
    }

    /// Checks everything that is due about a connection that is up.
    fn look_at(&mut self, index: ConnKey, to: &mut Replies<'_>, cx: &mut Context) {
        let conn = self.pool.conns.at(index);
        let (stall, late) = (conn.reading.due_us <= cx.now_us, conn.wait.due_us <= cx.now_us);
        let (rest, first) = (conn.rest.due_us <= cx.now_us, conn.room.due_us <= cx.now_us);
        let (quote, left) = (conn.withheld.due_us <= cx.now_us, conn.wait.left_us <= cx.now_us);
        if conn.unheard.due_us <= cx.now_us {
            self.pool.check_unheard(index, cx);
        }
        if stall {
            let then = check_stall(index, &mut self.pool, &self.groups, cx);
            self.act(then, cx);
        }
        if quote && self.pool.conns.is_occupied(index) {
            self.check_quote(index, to, cx);
        }
        if late && self.pool.conns.is_occupied(index) {
            self.look_at_wait(index, cx);
        }
        if first && self.pool.conns.is_occupied(index) && self.pool.conns.at(index).is_ready() {
            let then = check_first(index, &mut self.pool, &self.groups, cx);
            self.act(then, cx);
        }
        if left && self.pool.conns.is_occupied(index) && self.pool.conns.at(index).is_ready() {
            let Upstreams { pool, groups, cancelled, .. } = self;
            if let Some(ending) = check_left(index, pool, groups, cancelled, cx) {
                self.end(index, ending, cx);
            }
        }
        if rest
            && self.pool.conns.is_occupied(index)
            && self.pool.conns.at(index).is_ready()
            && let Some(ending) = check_rest(index, &mut self.pool, &self.groups, cx)
        {
            self.end(index, ending, cx);
        }
    }

    /// The next response of a connection may be late.
    fn look_at_wait(&mut self, index: ConnKey, cx: &mut Context) {
        let Upstreams { pool, groups, cancelled, outbox, .. } = self;
        pool.conns.at_mut(index).wait.due_us = u64::MAX;
        if let Some(ending) = check_silence(index, pool, groups, cancelled, outbox, cx) {
            return self.end(index, ending, cx);
        }
        let (then, leaves) = check_late(index, pool, cx);
        self.act(then, cx);
        if leaves {
            let then = leave_behind(index, &mut self.pool, &self.groups, cx);
            self.act(then, cx);
        }
    }

    /// Carries out the consequences for others.
    pub(super) fn act(&mut self, then: impl Into<Then>, cx: &mut Context) {
        match then.into() {
            Then::Nothing => {}
            Then::Dispatch(server) => self.placing().dispatch(server, cx),
            Then::Move(server, moved) => {
                self.agenda.serve(self.pool.servers[server].upstream);
                for (ask, bytes) in moved.into_iter().rev() {
                    if !self.cancelled.has(&ask) {
                        self.placing().place_again(ask, bytes, cx);
                    }
                }
            }
            Then::Evacuate(server) => self.placing().evacuate(server, cx),
            Then::StandDown(server) => self.placing().stand_down(server, cx),
            Then::Vacate(server) => self.vacate(server, cx),
        }
        self.work_off(cx);
    }
}

impl Pool {
    #[inline]
    pub(super) fn arm_conn(&mut self, index: ConnKey, due_us: u64, cx: &mut Context) {
        cx.wheel.insert(self.conn_token(index), due_us);
    }
}
