//! Tunnels that the driver relays without weir, and without copies to user space where that pays
//! (stages receive and reply).
//!
//! A tunnel is handed over as soon as the driver has everything that came before. A tunnel remains
//! here (`tunnels.rs`) if another worker has its upstream connection, or if one side has closed by
//! then. The bytes that the driver moved are counted when weir looks at the tunnel, eight times in
//! its timeout, and at its end.

use super::Clients;
use crate::action::Action;
use crate::base::keys::ClientKey;
use crate::context::Context;
use crate::cross::relay::Relay;
use crate::ending::{ClientEnd, UpstreamEnd};
use crate::request::pending_request::{ConnId, ExchangeId};

impl Relay {
    /// Takes the bytes moved since it began, from the client and to it. Counts and returns those
    /// since the last call.
    fn count(&mut self, moved: (u64, u64), cx: &mut Context) -> (u64, u64) {
        let before = std::mem::replace(&mut self.moved, moved);
        let (up, down) = (moved.0.saturating_sub(before.0), moved.1.saturating_sub(before.1));
        self.stats.bytes_out.add(up);
        self.stats.bytes_in.add(down);
        cx.usage.moved(self.account, up, down);
        cx.counters.client_bytes_in.add(up);
        cx.counters.upstream_bytes_out.add(up);
        cx.counters.upstream_bytes_in.add(down);
        cx.counters.client_bytes_out.add(down);
        (up, down)
    }

    /// Its client is gone: its upstream connection ends with it.
    pub(super) fn end(&self, cx: &mut Context) {
        self.hints.set_seen(self.server, cx.now_us);
        self.stats.closes.count(UpstreamEnd::TunnelEnded);
        cx.counters.upstream_closes.count(UpstreamEnd::TunnelEnded);
        cx.actions.push_back(Action::CloseUpstream { socket: self.socket });
    }
}

impl Clients {
    /// The same for the client of an exchange, if this worker has it.
    pub(crate) fn want_relay_of(&mut self, id: ExchangeId, cx: &Context) {
        if id.worker == cx.worker && self.answers.conns.holds(id) {
            self.answers.conns.want_relay(self.answers.conns.exchange(id.index).conn, cx);
        }
    }

    /// The next tunnel whose bytes the driver may move: this worker has its server's connection,
    /// the driver has everything that came before, and its client has not closed. None: no tunnel
    /// is ready.
    #[inline]
    pub(crate) fn next_to_relay(&mut self, cx: &Context) -> Option<(ClientKey, ConnId)> {
        self.answers.conns.next_to_relay(cx)
    }

    /// The driver moves the bytes of a tunnel from now on. Frees the state that led to the tunnel:
    /// an idle tunnel is small.
    pub(crate) fn begin_relay(&mut self, index: ClientKey, relay: Relay, cx: &mut Context) {
        let server = relay.socket;
        let conn = self.conn_mut(index);
        conn.relay = Some(Box::new(relay));
        conn.proxied = conn.proxied.take().filter(|proxied| proxied.seat.is_some());
        if let Some(proxied) = &mut conn.proxied {
            proxied.forget_request();
        }
        cx.actions.push_back(Action::Relay { client: conn.socket, server });
        self.answers.conns.arm(index, cx);
    }

    /// Asks the driver how much a client's tunnel has moved.
    pub(super) fn look_at_relay(&mut self, index: ClientKey, cx: &mut Context) {
        let token = self.answers.conns.token(index);
        let conn = self.conn_mut(index);
        if let Some(relay) = &mut conn.relay {
            relay.looked_us = cx.now_us;
        }
        cx.actions.push_back(Action::LookRelay { token, client: conn.socket });
    }

    /// Takes the bytes that a tunnel has moved, from its client and to it, since the driver has it.
    /// A tunnel that has moved nothing for too long ends.
    pub(crate) fn relay_looked(
        &mut self,
        token: u64,
        from_client: u64,
        to_client: u64,
        cx: &mut Context,
    ) {
        let Some(index) = self.answers.conns.of_token(token) else { return };
        if self.count_relayed(index, from_client, to_client, cx) {
            self.conn_mut(index).since_us = cx.now_us;
        } else if self.conn(index).since_us + cx.plan.client.tunnel_timeout_us <= cx.now_us {
            self.answers.tunnel_timed_out(index, cx);
        }
    }

    /// A tunnel is over. `by_client`: its client broke off; otherwise both sides have closed or the
    /// server broke off.
    pub(crate) fn relay_ended(
        &mut self,
        token: u64,
        from_client: u64,
        to_client: u64,
        by_client: bool,
        cx: &mut Context,
    ) {
        let Some(index) = self.answers.conns.of_token(token) else { return };
        self.count_relayed(index, from_client, to_client, cx);
        self.answers.close_conn(
            index,
            if by_client { ClientEnd::ClientReset } else { ClientEnd::TunnelEnded },
            cx,
        );
    }

    /// Counts the bytes that the driver has moved since the last time. False: none.
    fn count_relayed(
        &mut self,
        index: ClientKey,
        from_client: u64,
        to_client: u64,
        cx: &mut Context,
    ) -> bool {
        let Some(relay) = &mut self.conn_mut(index).relay else { return false };
        let (up, down) = relay.count((from_client, to_client), cx);
        if let Some(exchange) = self.conn(index).codec.current() {
            self.answers.records.body(exchange, up, false, cx);
        }
        self.answers.records.delivered(index, down, cx);
        up + down > 0
    }
}
