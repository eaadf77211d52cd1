//! Time-outs: one lazy timer a session and one an upstream connection.
//!
//! A timer in the wheel is never moved. When it fires, the deadline is computed from the state; if that lies ahead the timer
//! is set again. So a request costs one comparison, not one timer.

use super::Clients;
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::cause::Cause;
use crate::client::connection::{Phase, Reading};
use crate::context::Context;
use crate::ending::{ClientEnd, Timeout};

impl Clients {
    /// A timer has come.
    pub(crate) fn on_timer(&mut self, token: u64, cx: &mut Context) {
        if let Some(index) = self.conns.of_token(token) {
            self.session_timer(index, cx);
        }
    }

    fn session_timer(&mut self, index: ClientKey, cx: &mut Context) {
        let session = self.conns.at(index);
        if cx.now_us < session.armed_us {
            return;
        }
        let due_us = self.conns.deadline(session, cx);
        self.conns.at_mut(index).armed_us = u64::MAX;
        if due_us <= cx.now_us {
            self.session_timed_out(index, cx);
            return;
        }
        self.conns.arm(index, cx);
    }

    /// The time is over in which a body must have come with the least rate.
    fn judge_rate(&mut self, index: ClientKey, cx: &mut Context) {
        let now_us = cx.now_us;
        let Some(upload) = self.conns.at_mut(index).upload.as_mut() else { return };
        if upload.is_too_slow(now_us, cx.plan.client.body_rate_min) {
            cx.counters.timeouts.count(Timeout::Body);
            self.upload_failed(index, Cause::BodyTooSlow, cx);
        }
    }

    fn session_timed_out(&mut self, index: ClientKey, cx: &mut Context) {
        let now_us = cx.now_us;
        let session = self.conns.at(index);
        if session.flags.sending && session.send_us + cx.plan.client.send_timeout_us <= now_us {
            cx.counters.timeouts.count(Timeout::Send);
            // Without a reset the kernel would go on offering what is unsent, and keep it in memory for minutes.
            self.conns.at_mut(index).flags.reset = true;
            self.close_session(index, ClientEnd::SendTimeout, cx);
            return;
        }
        let first = session.first;
        if first != ExchangeKey::NONE {
            let exchange = self.conns.exchange(first);
            if exchange.deadline_us <= now_us && session.awaits_server(exchange) {
                self.server_timed_out(first, cx);
                if self.conns.is_there(index) {
                    self.conns.arm(index, cx);
                }
                return;
            }
        }
        match session.reading {
            Reading::Head if session.has_begun_request() => {
                cx.counters.timeouts.count(Timeout::Head);
                let session = self.conns.at_mut(index);
                let (since_us, stash) = (session.since_us, session.stash.take().unwrap_or_default());
                self.refuse(index, Cause::HeadTimeout, &stash.bytes[stash.start..], since_us, cx);
            }
            Reading::Body if now_us < session.since_us + cx.plan.client.body_timeout_us => self.judge_rate(index, cx),
            Reading::Body => {
                cx.counters.timeouts.count(Timeout::Body);
                self.upload_failed(index, Cause::BodyTimeout, cx);
            }
            Reading::Head if self.conns.is_draining() => self.close_session(index, ClientEnd::Drained, cx),
            Reading::Head => {
                cx.counters.timeouts.count(Timeout::Idle);
                self.close_session(index, ClientEnd::IdleTimeout, cx);
            }
            Reading::Tunnel if self.conns.at(index).relay.is_some() => self.look_at_relay(index, cx),
            Reading::Tunnel => self.tunnel_timed_out(index, cx),
            Reading::Linger => self.close_session(index, self.conns.at(index).orderly_end(&cx.plan.client), cx),
            Reading::Await if session.first == ExchangeKey::NONE => {
                cx.counters.timeouts.count(Timeout::Errand);
                let stash = self.conns.at_mut(index).stash.take().unwrap_or_default();
                let since_us = self.conns.at(index).since_us;
                self.refuse(index, Cause::ErrandTimeout, &stash.bytes[stash.start..], since_us, cx);
            }
            Reading::Await | Reading::Closing => self.conns.arm(index, cx),
        }
        if self.conns.is_there(index) {
            self.conns.arm(index, cx);
        }
    }

    /// The answer to a client's first request, or the next piece of it, has not come in time.
    fn server_timed_out(&mut self, slot: ExchangeKey, cx: &mut Context) {
        self.conns.cancel(slot, true, cx);
        if self.conns.exchange(slot).phase == Phase::Waiting {
            cx.counters.timeouts.count(Timeout::Forward);
            self.fail_exchange(slot, Cause::ForwardTimeout, cx);
        } else {
            cx.counters.timeouts.count(Timeout::Answer);
            self.answer_failed(slot, Cause::Truncated, cx);
        }
    }
}
