//! Time-outs: one lazy timer a session and one an upstream connection.
//!
//! A timer in the wheel is never moved. When it fires, the deadline is computed from the state; if that lies ahead the timer
//! is set again. So a request costs one comparison, not one timer.

use super::Clients;
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::cause::Cause;
use crate::client::connection::{ClientConn, Exchange, Phase, Reading};
use crate::context::Context;
use crate::ending::{ClientEnd, Timeout};
use crate::forward::lookup::ERRAND_US;

/// How long an answer that ends a connection is given to be read before the connection is closed.
const LINGER_US: u64 = 2_000_000;
/// How long an idle client stays when draining begins: what it has sent by then may be on the way, and closing on a request
/// would lose it. Longer than a round trip nearly everywhere.
const DRAIN_IDLE_US: u64 = 100_000;
/// Over which time the rate of a body is judged, again and again, while something of it comes.
const BODY_WINDOW_US: u64 = 10_000_000;
/// Time beyond that of an errand after which its answer is not waited for any more.
const GRACE_US: u64 = 1_000_000;

impl Clients {
    /// Makes sure that the session is looked at when its deadline comes.
    pub(super) fn arm_session(&mut self, index: ClientKey, cx: &mut Context) {
        let due_us = self.deadline(self.sessions.at(index), cx);
        let session = self.sessions.at_mut(index);
        if due_us < session.armed_us {
            session.armed_us = due_us;
            cx.wheel.insert(self.client_token(index), due_us);
        }
    }

    /// When the session's patience ends, as things stand.
    pub(super) fn deadline(&self, session: &ClientConn, cx: &Context) -> u64 {
        let plan = &cx.plan.client;
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
        let reading = match session.reading {
            Reading::Head if session.has_begun_request() && !session.flags.stopped => plan.head_timeout_us,
            Reading::Head if session.first == ExchangeKey::NONE && !session.flags.sending => {
                let drained_us = self.draining_us.map_or(u64::MAX, |since_us| since_us + DRAIN_IDLE_US);
                return due_us.min(session.since_us + plan.idle_timeout_us).min(drained_us);
            }
            Reading::Body if !session.flags.body_paused => {
                due_us = due_us.min(self.window_end_us(session, cx));
                plan.body_timeout_us
            }
            Reading::Tunnel => match &session.relay {
                Some(relay) => return due_us.min(self.look_us(relay, cx)),
                None => plan.tunnel_timeout_us,
            },
            Reading::Await if session.first == ExchangeKey::NONE => ERRAND_US + GRACE_US,
            Reading::Linger => LINGER_US,
            _ => return due_us,
        };
        due_us.min(session.since_us + reading)
    }

    /// A timer has come.
    pub(crate) fn on_timer(&mut self, token: u64, cx: &mut Context) {
        if let Some(index) = self.session_of(token) {
            self.session_timer(index, cx);
        }
    }

    fn session_timer(&mut self, index: ClientKey, cx: &mut Context) {
        let session = self.sessions.at(index);
        if cx.now_us < session.armed_us {
            return;
        }
        let due_us = self.deadline(session, cx);
        self.sessions.at_mut(index).armed_us = u64::MAX;
        if due_us <= cx.now_us {
            self.session_timed_out(index, cx);
            return;
        }
        self.arm_session(index, cx);
    }

    /// When the rate of a body is judged next.
    fn window_end_us(&self, session: &ClientConn, cx: &Context) -> u64 {
        let judged = session.upload.as_ref().filter(|upload| !upload.discard && cx.plan.client.body_rate_min > 0);
        judged.map_or(u64::MAX, |upload| upload.window_us + BODY_WINDOW_US)
    }

    /// The time is over in which a body must have come with the least rate.
    fn judge_rate(&mut self, index: ClientKey, cx: &mut Context) {
        let now_us = cx.now_us;
        let least = cx.plan.client.body_rate_min.saturating_mul(BODY_WINDOW_US / 1_000_000);
        let Some(upload) = self.sessions.at_mut(index).upload.as_mut() else { return };
        if now_us < upload.window_us + BODY_WINDOW_US {
            return;
        }
        if upload.judge_window(now_us, least) {
            cx.counters.timeouts.count(Timeout::Body);
            self.upload_failed(index, Cause::BodyTooSlow, cx);
        }
    }

    fn session_timed_out(&mut self, index: ClientKey, cx: &mut Context) {
        let now_us = cx.now_us;
        let session = self.sessions.at(index);
        if session.flags.sending && session.send_us + cx.plan.client.send_timeout_us <= now_us {
            cx.counters.timeouts.count(Timeout::Send);
            // Without a reset the kernel would go on offering what is unsent, and keep it in memory for minutes.
            self.sessions.at_mut(index).flags.reset = true;
            self.close_session(index, ClientEnd::SendTimeout, cx);
            return;
        }
        let first = session.first;
        if first != ExchangeKey::NONE {
            let exchange = self.exchanges.at(first);
            if exchange.deadline_us <= now_us && is_server_awaited(session, exchange) {
                self.server_timed_out(first, cx);
                if self.session_alive(index) {
                    self.arm_session(index, cx);
                }
                return;
            }
        }
        match session.reading {
            Reading::Head if session.has_begun_request() => {
                cx.counters.timeouts.count(Timeout::Head);
                let session = self.sessions.at_mut(index);
                let (since_us, stash) = (session.since_us, session.stash.take().unwrap_or_default());
                self.refuse(index, Cause::HeadTimeout, &stash.bytes[stash.start..], since_us, cx);
            }
            Reading::Body if now_us < session.since_us + cx.plan.client.body_timeout_us => self.judge_rate(index, cx),
            Reading::Body => {
                cx.counters.timeouts.count(Timeout::Body);
                self.upload_failed(index, Cause::BodyTimeout, cx);
            }
            Reading::Head if self.is_draining() => self.close_session(index, ClientEnd::Drained, cx),
            Reading::Head => {
                cx.counters.timeouts.count(Timeout::Idle);
                self.close_session(index, ClientEnd::IdleTimeout, cx);
            }
            Reading::Tunnel if self.sessions.at(index).relay.is_some() => self.look_at_relay(index, cx),
            Reading::Tunnel => self.tunnel_timed_out(index, cx),
            Reading::Linger => self.close_session(index, self.orderly_end(index, cx), cx),
            Reading::Await if session.first == ExchangeKey::NONE => {
                cx.counters.timeouts.count(Timeout::Errand);
                let stash = self.sessions.at_mut(index).stash.take().unwrap_or_default();
                let since_us = self.sessions.at(index).since_us;
                self.refuse(index, Cause::ErrandTimeout, &stash.bytes[stash.start..], since_us, cx);
            }
            Reading::Await | Reading::Closing => self.arm_session(index, cx),
        }
        if self.session_alive(index) {
            self.arm_session(index, cx);
        }
    }

    /// The answer to a client's first request, or the next piece of it, has not come in time.
    fn server_timed_out(&mut self, slot: ExchangeKey, cx: &mut Context) {
        self.cancel_upstream(slot, true, cx);
        if self.exchanges.at(slot).phase == Phase::Waiting {
            cx.counters.timeouts.count(Timeout::Forward);
            self.fail_exchange(slot, Cause::ForwardTimeout, cx);
        } else {
            cx.counters.timeouts.count(Timeout::Answer);
            self.answer_failed(slot, Cause::Truncated, cx);
        }
    }

    /// Whether the slot is occupied; only for use right after the session was known to be there.
    pub(super) fn session_alive(&self, index: ClientKey) -> bool {
        self.sessions.is_occupied(index)
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
