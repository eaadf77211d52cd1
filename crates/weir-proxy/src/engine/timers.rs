//! Time-outs: one lazy timer a session and one an upstream connection.
//!
//! A timer in the wheel is never moved. When it fires, the deadline is computed from the state; if that lies ahead the timer
//! is set again. So a request costs one comparison, not one timer.

use super::Engine;
use super::orders::NEVER_US;
use crate::base::keys::{ClientKey, ConnKey, ExchangeKey};
use crate::base::token::Token;
use crate::cause::Cause;
use crate::client::connection::{ClientConn, Exchange, Phase, Reading};
use crate::ending::{ClientEnd, Timeout};
use crate::forward::lookup::ERRAND_US;
use crate::upstream::connection::LinkState;

/// How long an answer that ends a connection is given to be read before the connection is closed.
const LINGER_US: u64 = 2_000_000;
/// How long an idle client stays when draining begins: what it has sent by then may be on the way, and closing on a request
/// would lose it. Longer than a round trip nearly everywhere.
const DRAIN_IDLE_US: u64 = 100_000;
/// Over which time the rate of a body is judged, again and again, while something of it comes.
const BODY_WINDOW_US: u64 = 10_000_000;
/// Time beyond that of an errand after which its answer is not waited for any more.
const GRACE_US: u64 = 1_000_000;

impl Engine {
    pub(super) fn run_timers(&mut self) {
        let mut expired = std::mem::take(&mut self.expired);
        self.wheel.advance(self.now_us, &mut expired);
        for token in expired.drain(..) {
            match Token::unpack(token) {
                Some(Token::Client { key, generation }) if self.sessions.holds_short(key, generation) => {
                    self.session_timer(key);
                }
                Some(Token::Conn { key, generation }) if self.links.holds_short(key, generation) => {
                    self.link_timer(key);
                }
                Some(Token::Probe { .. }) => self.probe_timer(token),
                _ => {}
            }
        }
        self.expired = expired;
    }

    pub(super) fn arm_link(&mut self, index: ConnKey, due_us: u64) {
        self.wheel.insert(self.link_token(index), due_us);
    }

    /// Makes sure that the session is looked at when its deadline comes.
    pub(super) fn arm_session(&mut self, index: ClientKey) {
        let due_us = self.deadline(self.sessions.at(index));
        let session = self.sessions.at_mut(index);
        if due_us < session.armed_us {
            session.armed_us = due_us;
            self.wheel.insert(self.client_token(index), due_us);
        }
    }

    /// When the session's patience ends, as things stand.
    pub(super) fn deadline(&self, session: &ClientConn) -> u64 {
        let plan = &self.plan.client;
        let mut due_us = u64::MAX;
        if session.flags.sending {
            due_us = session.send_us + plan.send_timeout_us;
        }
        if session.first != ExchangeKey::NONE {
            let exchange = self.exchanges.at(session.first);
            if is_server_awaited(session, exchange) {
                due_us = due_us.min(exchange.deadline_us);
            }
        }
        if let Some(approach) = session.own.as_deref().and_then(|own| own.approach.as_deref()) {
            due_us = due_us.min(approach.retry_us);
        }
        let reading = match session.reading {
            Reading::Head if session.has_begun_request() && !session.flags.stopped => plan.head_timeout_us,
            Reading::Head if session.first == ExchangeKey::NONE && !session.flags.sending => {
                let drained_us = self.draining_us.map_or(u64::MAX, |since_us| since_us + DRAIN_IDLE_US);
                return due_us.min(session.since_us + plan.idle_timeout_us).min(drained_us);
            }
            Reading::Body if !session.flags.body_paused => {
                due_us = due_us.min(self.window_end_us(session));
                plan.body_timeout_us
            }
            Reading::Tunnel => match &session.relay {
                Some(relay) => return due_us.min(self.look_us(relay)),
                None => plan.tunnel_timeout_us,
            },
            Reading::Await if session.first == ExchangeKey::NONE => ERRAND_US + GRACE_US,
            Reading::Linger => LINGER_US,
            _ => return due_us,
        };
        due_us.min(session.since_us + reading)
    }

    fn session_timer(&mut self, index: ClientKey) {
        let session = self.sessions.at(index);
        if self.now_us < session.armed_us {
            return;
        }
        let due_us = self.deadline(session);
        self.sessions.at_mut(index).armed_us = u64::MAX;
        if due_us <= self.now_us {
            self.session_timed_out(index);
            return;
        }
        self.arm_session(index);
    }

    /// When the rate of a body is judged next.
    fn window_end_us(&self, session: &ClientConn) -> u64 {
        let judged = session.upload.as_ref().filter(|upload| !upload.discard && self.plan.client.body_rate_min > 0);
        judged.map_or(u64::MAX, |upload| upload.window_us + BODY_WINDOW_US)
    }

    /// The time is over in which a body must have come with the least rate.
    fn judge_rate(&mut self, index: ClientKey) {
        let now_us = self.now_us;
        let least = self.plan.client.body_rate_min.saturating_mul(BODY_WINDOW_US / 1_000_000);
        let Some(upload) = self.sessions.at_mut(index).upload.as_mut() else { return };
        if now_us < upload.window_us + BODY_WINDOW_US {
            return;
        }
        if upload.judge_window(now_us, least) {
            self.counters.timeouts.count(Timeout::Body);
            self.upload_failed(index, Cause::BodyTooSlow);
        }
    }

    fn session_timed_out(&mut self, index: ClientKey) {
        if self.retry_approach(index) {
            if self.session_alive(index) {
                self.arm_session(index);
            }
            return;
        }
        let now_us = self.now_us;
        let session = self.sessions.at(index);
        if session.flags.sending && session.send_us + self.plan.client.send_timeout_us <= now_us {
            self.counters.timeouts.count(Timeout::Send);
            // Without a reset the kernel would go on offering what is unsent, and keep it in memory for minutes.
            self.sessions.at_mut(index).flags.reset = true;
            self.close_session(index, ClientEnd::SendTimeout);
            return;
        }
        let first = session.first;
        if first != ExchangeKey::NONE {
            let exchange = self.exchanges.at(first);
            if exchange.deadline_us <= now_us && is_server_awaited(session, exchange) {
                self.server_timed_out(first);
                if self.session_alive(index) {
                    self.arm_session(index);
                }
                return;
            }
        }
        match session.reading {
            Reading::Head if session.has_begun_request() => {
                self.counters.timeouts.count(Timeout::Head);
                let session = self.sessions.at_mut(index);
                let (since_us, stash) = (session.since_us, session.stash.take().unwrap_or_default());
                self.refuse(index, Cause::HeadTimeout, &stash.bytes[stash.start..], since_us);
            }
            Reading::Body if now_us < session.since_us + self.plan.client.body_timeout_us => self.judge_rate(index),
            Reading::Body => {
                self.counters.timeouts.count(Timeout::Body);
                self.upload_failed(index, Cause::BodyTimeout);
            }
            Reading::Head if self.is_draining() => self.close_session(index, ClientEnd::Drained),
            Reading::Head => {
                self.counters.timeouts.count(Timeout::Idle);
                self.close_session(index, ClientEnd::IdleTimeout);
            }
            Reading::Tunnel if self.sessions.at(index).relay.is_some() => self.look_at_relay(index),
            Reading::Tunnel => self.tunnel_timed_out(index),
            Reading::Linger => self.close_session(index, self.orderly_end(index)),
            Reading::Await if session.first == ExchangeKey::NONE => {
                self.counters.timeouts.count(Timeout::Errand);
                let stash = self.sessions.at_mut(index).stash.take().unwrap_or_default();
                let since_us = self.sessions.at(index).since_us;
                self.refuse(index, Cause::ErrandTimeout, &stash.bytes[stash.start..], since_us);
            }
            Reading::Await | Reading::Closing => self.arm_session(index),
        }
        if self.session_alive(index) {
            self.arm_session(index);
        }
    }

    /// The answer to a client's first request, or the next piece of it, has not come in time.
    fn server_timed_out(&mut self, slot: ExchangeKey) {
        self.cancel_upstream(slot, true);
        if self.exchanges.at(slot).phase == Phase::Waiting {
            self.counters.timeouts.count(Timeout::Forward);
            self.fail_exchange(slot, Cause::ForwardTimeout);
        } else {
            self.counters.timeouts.count(Timeout::Answer);
            self.answer_failed(slot, Cause::Truncated);
        }
    }

    /// Whether the slot is occupied; only for use right after the session was known to be there.
    pub(super) fn session_alive(&self, index: ClientKey) -> bool {
        self.sessions.is_occupied(index)
    }

    fn link_timer(&mut self, index: ConnKey) {
        match self.links.at(index).state {
            LinkState::Down { retry_us: NEVER_US } => {}
            LinkState::Down { retry_us } if retry_us <= self.now_us => self.connect(index),
            LinkState::Down { retry_us } => self.arm_link(index, retry_us),
            LinkState::Connecting { deadline_us } if deadline_us <= self.now_us => self.connect_timed_out(index),
            LinkState::Connecting { deadline_us } if self.links.at(index).owner.is_some() => {
                self.try_next_address(index);
                self.arm_link(index, deadline_us);
            }
            LinkState::Connecting { deadline_us } => self.arm_link(index, deadline_us),
            LinkState::Tunnel if self.links.at(index).give_up_us <= self.now_us => self.end_tunnel(index),
            LinkState::Tunnel => {}
            LinkState::Ready => {
                let link = self.links.at(index);
                let (stall, late) = (link.stall_due_us <= self.now_us, link.late_due_us <= self.now_us);
                let (rest, first) = (link.rest_due_us <= self.now_us, link.first_due_us <= self.now_us);
                let quote = link.quote_due_us <= self.now_us;
                if link.unheard_due_us <= self.now_us {
                    self.check_unheard(index);
                }
                if stall {
                    self.check_stall(index);
                }
                if quote && self.links.is_occupied(index) {
                    self.check_quote(index);
                }
                if late && self.links.is_occupied(index) {
                    self.check_late(index);
                }
                if first && self.links.is_occupied(index) && self.links.at(index).is_ready() {
                    self.check_first(index);
                }
                if rest && self.links.is_occupied(index) && self.links.at(index).is_ready() {
                    self.check_rest(index);
                }
            }
        }
    }
}

/// Whether it is the server that a client's first answer waits for. While the client has something to take and sources were
/// stopped for that, it is not.
fn is_server_awaited(session: &ClientConn, first: &Exchange) -> bool {
    let taken = session.unsent_first() == 0;
    match first.phase {
        Phase::Waiting => taken || session.paused.as_ref().is_none_or(|paused| paused.links.is_empty()),
        Phase::Answering => taken && session.reading != Reading::Tunnel,
        Phase::Reading | Phase::Done => false,
    }
}
