//! Output to clients, and the ends of their connections (stage reply).

use super::answer::Answers;
use super::cache::{fetch, pump_all};
use super::{compressing, guard, stalls};
use crate::action::Action;
use crate::base::keys::ClientKey;
use crate::base::output::Out;
use crate::client::connection::{Phase, Reading};
use crate::context::Context;
use crate::cross::mail::Mail;
use crate::ending::ClientEnd;

impl Answers {
    /// The output of a client was taken (`ok`) or not. `spare` is the buffer, for reuse.
    pub(crate) fn client_sent(
        &mut self,
        token: u64,
        spare: Option<Vec<u8>>,
        ok: bool,
        cx: &mut Context,
    ) {
        if let Some(buffer) = spare {
            cx.spare.give(buffer);
        }
        let Some(index) = self.conns.of_token(token) else { return };
        if !ok {
            self.close_conn(index, ClientEnd::ClientReset, cx);
            return;
        }
        let conn = self.conns.at_mut(index);
        conn.flags.sending = false;
        let tunnel = conn.reading() == Reading::Tunnel;
        let began_idle = conn.reading() == Reading::Frames && conn.send_us <= conn.since_us;
        if tunnel || began_idle {
            // It is silent, or idle, only from here on: until now its client was taking output.
            conn.since_us = cx.now_us;
        }
        let taken = std::mem::take(&mut conn.inflight);
        self.records.delivered(index, taken.into(), cx);
        // Frames are made when there is room: including the last frame, which says why a connection
        // ends.
        if !conn.codec.is_sent() || matches!(conn.reading(), Reading::Frames | Reading::Closing) {
            self.conns.mark(index);
            self.conns.arm(index, cx);
        } else if conn.codec.is_empty() || conn.flags.tunnel_ended {
            self.conn_is_idle(index, cx);
        }
        if self.conns.is_there(index) {
            self.conns.relieve(index, cx);
            self.conns.arm_awaited(index, cx);
        }
        if tunnel && self.conns.is_there(index) {
            self.conns.arm(index, cx);
            self.conns.want_relay(index, cx);
        }
    }

    /// Every request has its response, and all output is sent.
    fn conn_is_idle(&mut self, index: ClientKey, cx: &mut Context) {
        let now_us = cx.now_us;
        if self.conns.carriers.get(index).is_some_and(|streams| !streams.all.is_empty()) {
            return;
        }
        let conn = self.conns.at_mut(index);
        if conn.flags.tunnel_ended {
            if !conn.flags.shut {
                conn.flags.shut = true;
                cx.actions.push_back(Action::ShutdownClient { socket: conn.socket });
            }
            if self.conns.at(index).flags.ended {
                self.close_conn(index, ClientEnd::TunnelEnded, cx);
            }
            return;
        }
        // Unparsed input from before its client closed comes next.
        let more = conn.flags.ended && conn.stash.is_some() && !conn.flags.close;
        if more || !conn.flags.close && !conn.flags.ended {
            if conn.reading() == Reading::Head && !conn.has_begun_request() {
                conn.since_us = now_us;
                // The timeout for a server may be longer than the one for an idle client, or for a
                // client that has to leave.
                if conn.flags.leaves
                    || conn.armed_us > now_us.saturating_add(cx.plan.client.idle_timeout_us)
                {
                    self.conns.arm(index, cx);
                }
            }
            return;
        }
        if conn.flags.ended || conn.flags.reset || !conn.flags.unread {
            self.close_conn(index, self.conns.at(index).orderly_end(&cx.plan.client), cx);
        } else if conn.reading() != Reading::Linger {
            conn.read_as(Reading::Linger);
            conn.since_us = now_us;
            conn.flags.shut = true;
            cx.actions.push_back(Action::ShutdownClient { socket: conn.socket });
            self.conns.update_receive(index, cx);
            self.conns.arm(index, cx);
        }
    }

    /// The send that a connection wants, if any.
    #[inline]
    pub(super) fn flush_conn(&mut self, index: ClientKey, cx: &mut Context) -> Option<Action> {
        if !self.conns.is_there(index) {
            return None;
        }
        let now_us = cx.now_us;
        let conn = self.conns.at_mut(index);
        conn.flags.dirty = false;
        if conn.flags.sending {
            return None;
        }
        if self.conns.carriers.get(index).is_some() {
            self.fill(index, cx);
        }
        let conn = self.conns.at_mut(index);
        let Some(out) = conn.codec.take() else {
            if conn.codec.is_empty() || conn.flags.tunnel_ended {
                self.conn_is_idle(index, cx);
            }
            return cx.actions.pop_front();
        };
        conn.flags.sending = true;
        conn.send_us = now_us;
        conn.inflight = out.len() as u32;
        let socket = conn.socket;
        cx.counters.client_bytes_out.add(out.len() as u64);
        // Large sends have their own deadline; for a small send the timer that is set anyway is
        // enough.
        if !matches!(out, Out::Owned(_)) || conn.armed_us == u64::MAX {
            self.conns.arm(index, cx);
        }
        Some(Action::SendClient { socket, out })
    }

    /// The next send.
    #[inline]
    pub(crate) fn poll_send(&mut self, cx: &mut Context) -> Option<Action> {
        if self.encoders.has_unflushed() {
            self.flush_encoders(cx);
        }
        pump_all(self, cx);
        while let Some(index) = self.conns.next_marked() {
            let action = self.flush_conn(index, cx);
            if action.is_some() {
                return action;
            }
        }
        None
    }

    /// Ends a client's connection now. Its requests without a complete response are cancelled.
    pub(super) fn close_conn(&mut self, index: ClientKey, why: ClientEnd, cx: &mut Context) {
        if self.conns.at(index).is_fetch() {
            return fetch::cut(self, index, cx);
        }
        self.close_streams(index, why, cx);
        self.records.closed(index, why, cx);
        self.drop_exchanges(index, why, cx);
        stalls::end_stalls(&mut self.conns, index, cx);
        let mut conn = self.conns.remove(index);
        if conn.flags.has_pool {
            cx.post(cx.worker, Mail::Gone { client: index });
        }
        conn.relay.iter().for_each(|relay| relay.end(cx));
        if conn.stream.is_some() {
            return self.end_stream(index, &mut conn, why, cx);
        }
        let why = self.conns.carriers.take(index).and_then(|streams| streams.why).unwrap_or(why);
        cx.counters.client_connections.sub(1);
        if conn.reading() == Reading::Tunnel {
            cx.counters.tunnels.sub(1);
        }
        cx.counters.client_closes.count(why);
        if conn.glitches > 0 || conn.flags.late {
            guard::charge_manners(&conn, cx);
        }
        cx.actions.push_back(Action::CloseClient { socket: conn.socket, reset: conn.flags.reset });
    }

    /// Drops all exchanges of a connection; the servers' side learns of those under way.
    pub(super) fn drop_exchanges(&mut self, index: ClientKey, why: ClientEnd, cx: &mut Context) {
        self.conns.tarpit.forget(index);
        while let Some(first) = self.conns.at(index).codec.current() {
            let exchange = self.conns.exchange(first);
            let hard = exchange.want.body_open || self.conns.at(index).reading() == Reading::Tunnel;
            if matches!(exchange.phase(), Phase::Reading | Phase::Waiting) {
                cx.counters.requests_abandoned.add(1);
            }
            if self.conns.at(index).relay.is_none() {
                self.conns.cancel(first, hard, cx);
            }
            fetch::on_dropped(self, first, hard, cx);
            self.records.abandoned(
                index,
                why,
                || self.conns.ending(index, first, &cx.plan.client),
                cx,
            );
            compressing::give_up(&mut self.conns, first);
            self.conns.pop(index);
        }
    }
}
