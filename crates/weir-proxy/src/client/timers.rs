//! Timeouts: one lazy timer a connection and one an upstream connection.
//!
//! A timer in the wheel is never moved. When it fires, the deadline is computed from the state; if
//! that is in the future the timer is set again. So a request costs one comparison, not one timer.

use super::answer::Answers;
use super::cache::{self, fetched};
use super::departed::look_for_client;
use super::pace::{judge, look_at_send, look_us};
use super::uploads::pass_on_is_due;
use super::{Clients, tarpit};
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::cause::Cause;
use crate::client::connection::{Phase, Reading};
use crate::context::Context;
use crate::ending::{ClientEnd, Timeout};

/// Handles what is due with a body that is being read.
fn body_timed_out(clients: &mut Clients, index: ClientKey, cx: &mut Context) {
    let now_us = cx.now_us;
    if pass_on_is_due(clients, index, cx) {
        return;
    }
    let since_us = clients.conn(index).since_us;
    let Some((slot, _)) = clients.answers.conns.upload(index) else { return };
    if !clients.answers.conns.exchange(slot).judges_body() {
        return;
    }
    if now_us < since_us + cx.plan.client.body_timeout_us {
        return clients.judge_rate(index, cx);
    }
    note_late(clients, index, Timeout::Body, cx);
    clients.answers.upload_failed(index, Cause::BodyTimeout, cx);
}

/// A client has not taken enough of a send in time.
pub(super) fn send_timed_out(clients: &mut Clients, index: ClientKey, cx: &mut Context) {
    note_late(clients, index, Timeout::Send, cx);
    // Without a reset the kernel would continue to offer the unsent bytes, and keep them in memory
    // for minutes.
    clients.conn_mut(index).flags.reset = true;
    clients.answers.close_conn(index, ClientEnd::SendTimeout, cx);
}

/// A client was late.
fn note_late(clients: &mut Clients, index: ClientKey, with: Timeout, cx: &Context) {
    cx.counters.timeouts.count(with);
    clients.conn_mut(index).flags.late = true;
}

/// The response that a client waits for is late, or it is time to check on the client. Returns
/// whether nothing else is to be done.
fn look_at_first(
    clients: &mut Clients,
    index: ClientKey,
    first: ExchangeKey,
    cx: &mut Context,
) -> bool {
    let exchange = clients.answers.conns.exchange(first);
    if !clients.conn(index).awaits_server(exchange) {
        return false;
    }
    if exchange.deadline_us > cx.now_us {
        return look_for_client(clients, index, first, cx);
    }
    clients.answers.server_timed_out(first, cx);
    if clients.is_there(index) {
        clients.answers.conns.arm(index, cx);
    }
    true
}

impl Clients {
    /// Handles a timer.
    pub(crate) fn on_timer(&mut self, token: u64, cx: &mut Context) {
        if let Some(index) = self.answers.conns.of_token(token) {
            self.conn_timer(index, cx);
        }
    }

    fn conn_timer(&mut self, index: ClientKey, cx: &mut Context) {
        let conn = self.conn(index);
        if cx.now_us < conn.armed_us {
            return;
        }
        let is_carrier = conn.reading() == Reading::Frames;
        if is_carrier {
            self.look_at_streams(index, cx);
            if !self.is_there(index) {
                return;
            }
        }
        let due_us = self.answers.conns.deadline(index, cx);
        self.conn_mut(index).armed_us = u64::MAX;
        if self.answers.conns.tarpit.until_us(index) <= cx.now_us {
            return tarpit::let_go(&mut self.answers, index, cx);
        }
        if due_us <= cx.now_us {
            self.conn_timed_out(index, cx);
            return;
        }
        self.answers.conns.arm(index, cx);
    }

    /// Looks at the streams of a connection that may have timed out, and does what is due for its
    /// frames.
    fn look_at_streams(&mut self, carrier: ClientKey, cx: &mut Context) {
        let Some(streams) = self.answers.conns.carriers.get_mut(carrier) else { return };
        streams.mux.expire(cx.now_us);
        if streams.due_us <= cx.now_us {
            streams.due_us = u64::MAX;
            let all = streams.all.clone();
            all.iter().for_each(|index| self.conn_timer(*index, cx));
            // For those that were not due, or are due again.
            let due_us = all
                .iter()
                .filter(|index| self.is_there(**index))
                .map(|index| self.conn(*index).armed_us)
                .min();
            if let (Some(streams), Some(due_us)) =
                (self.answers.conns.carriers.get_mut(carrier), due_us)
            {
                streams.due_us = streams.due_us.min(due_us);
            }
        }
        if self.conn(carrier).stash.is_some() {
            self.answers.conns.look_again(carrier);
        }
        self.answers.conns.mark(carrier);
    }

    /// The window has ended in which a body had to arrive with the minimum rate.
    fn judge_rate(&mut self, index: ClientKey, cx: &mut Context) {
        let now_us = cx.now_us;
        let Some((_, upload)) = self.answers.conns.upload(index) else { return };
        if upload.has_rate() && upload.is_too_slow(now_us, cx.plan.client.body_rate_min) {
            note_late(self, index, Timeout::Body, cx);
            self.answers.upload_failed(index, Cause::BodyTooSlow, cx);
        }
    }

    fn conn_timed_out(&mut self, index: ClientKey, cx: &mut Context) {
        let now_us = cx.now_us;
        let conn = self.conn(index);
        if let Some(stream) = conn.stream.as_deref()
            && conn.flags.sending
            && self
                .answers
                .conns
                .carriers
                .get(stream.carrier)
                .is_some_and(|streams| streams.mux.may_send(stream.id))
        {
            // Other streams come first: the client is not the cause, and is judged by what the
            // connection takes.
            self.conn_mut(index).send_us = now_us;
        }
        let conn = self.conn(index);
        if conn.flags.sending && conn.send_us + cx.plan.client.send_timeout_us <= now_us {
            return match conn.stream {
                None => judge(&self.answers.conns, index, cx),
                Some(_) => send_timed_out(self, index, cx),
            };
        }
        if look_us(&self.answers.conns, index, cx) <= now_us {
            look_at_send(&mut self.answers.conns, index, cx);
            return self.answers.conns.arm(index, cx);
        }
        if let Some(first) = conn.codec.current()
            && look_at_first(self, index, first, cx)
        {
            return;
        }
        let conn = self.conn(index);
        match conn.reading() {
            Reading::Head if conn.has_begun_request() => {
                note_late(self, index, Timeout::Head, cx);
                let conn = self.conn_mut(index);
                let (since_us, stash) = (conn.since_us, conn.stash.take().unwrap_or_default());
                self.answers.refuse(
                    index,
                    Cause::HeadTimeout,
                    &stash.bytes[stash.start..],
                    since_us,
                    cx,
                );
            }
            Reading::Body => body_timed_out(self, index, cx),
            Reading::Head if self.conn(index).flags.leaves => {
                self.answers.close_conn(index, ClientEnd::Drained, cx)
            }
            Reading::Head => {
                cx.counters.timeouts.count(Timeout::Idle);
                self.answers.close_conn(index, ClientEnd::IdleTimeout, cx);
            }
            Reading::Tunnel if self.conn(index).relay.is_some() => self.look_at_relay(index, cx),
            Reading::Tunnel => self.answers.tunnel_timed_out(index, cx),
            Reading::Frames => self.answers.http2_timed_out(index, cx),
            Reading::Linger => judge(&self.answers.conns, index, cx),
            Reading::Await if conn.codec.is_empty() => {
                cx.counters.timeouts.count(Timeout::Errand);
                let stash = self.conn_mut(index).stash.take().unwrap_or_default();
                let since_us = self.conn(index).since_us;
                self.answers.refuse(
                    index,
                    Cause::ErrandTimeout,
                    &stash.bytes[stash.start..],
                    since_us,
                    cx,
                );
            }
            Reading::Await if conn.flags.unverified => {
                cx.counters.timeouts.count(Timeout::Errand);
                self.conn_mut(index).flags.unverified = false;
                let id = self.answers.conns.visitors.stop_waiting(index);
                if let Some(id) = id.filter(|id| self.answers.conns.holds(*id)) {
                    self.answers.fail_exchange(id.index, Cause::ErrandTimeout, cx);
                }
            }
            Reading::Await | Reading::Closing => self.answers.conns.arm(index, cx),
        }
        if self.is_there(index) {
            self.answers.conns.arm(index, cx);
        }
    }
}

impl Answers {
    /// The response to a client's first request, or the next piece of it, has not arrived in time.
    fn server_timed_out(&mut self, slot: ExchangeKey, cx: &mut Context) {
        if self.conns.exchange(slot).is_fetch() {
            return fetched::timed_out(self, slot, cx);
        }
        if cache::goes_on_waiting(self, slot, cx) {
            return;
        }
        self.conns.cancel(slot, true, cx);
        if self.conns.exchange(slot).phase() == Phase::Waiting {
            cx.counters.timeouts.count(Timeout::Forward);
            self.fail_exchange(slot, Cause::ForwardTimeout, cx);
        } else {
            cx.counters.timeouts.count(Timeout::Answer);
            self.answer_failed(slot, Cause::AnswerTimeout, cx);
        }
    }
}
