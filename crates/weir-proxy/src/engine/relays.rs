//! Tunnels whose bytes the driver moves by itself, without copying them to user space where that pays (stages receive and reply).
//!
//! A tunnel is handed over as soon as the driver has been given everything that came before; one whose upstream connection is
//! another worker's, or one side of which has ended by then, stays here (`tunnels.rs`). What the driver moved is counted when the
//! tunnel is looked at, [`LOOKS`] times in its time-out, and at its end.

use super::{Action, Engine};
use crate::base::keys::{ClientKey, ConnKey, ExchangeKey};
use crate::client::connection::{Reading, Relay};
use crate::ending::{ClientEnd, UpstreamEnd};
use crate::upstream::connection::{LinkState, UpstreamConn};

/// How often a tunnel is looked at in the time that it may stay silent: so much longer than that it may live.
const LOOKS: u64 = 8;

impl Engine {
    /// The bytes of a tunnel may be the driver's when it has what came before.
    pub(super) fn want_relay(&mut self, index: ClientKey) {
        let session = self.sessions.at(index);
        if self.relays && session.reading == Reading::Tunnel && session.relay.is_none() {
            self.to_relay.push((index, self.sessions.generation(index)));
        }
    }

    /// The upstream connection of a client's tunnel, when it is this worker's.
    pub(super) fn tunnel_link(&self, index: ClientKey) -> Option<ConnKey> {
        let session = self.sessions.at(index);
        if session.reading != Reading::Tunnel || session.first == ExchangeKey::NONE {
            return None;
        }
        let link = self.exchanges.at(session.first).link.filter(|link| link.worker == self.worker)?;
        let lives =
            self.links.holds(link.index, link.generation) && self.links.at(link.index).state == LinkState::Tunnel;
        lives.then_some(link.index)
    }

    /// Hands a tunnel over, if the driver has everything that came before and nobody has ended. What was needed to make it is
    /// given up: an idle tunnel is small.
    pub(super) fn begin_relay(&mut self, index: ClientKey) -> Option<Action> {
        let position = self.tunnel_link(index)?;
        let (session, link) = (self.sessions.at(index), self.links.at(position));
        let client_is_done = session.output.is_empty() && session.stash.is_none() && !session.flags.ended;
        let link_is_done = link.body.is_empty() && link.log.pending_len() == 0 && !link.ended && !link.finish;
        let (client, socket) = (session.socket, link.socket?);
        if !client_is_done || !link_is_done {
            return None;
        }
        let UpstreamConn { server, account, .. } = self.links.remove(position);
        self.servers[server].relays += 1;
        let now_us = self.now_us;
        let session = self.sessions.at_mut(index);
        session.relay = Some(Box::new(Relay { socket, server, account, looked_us: now_us, moved: (0, 0) }));
        session.own = session.own.take().filter(|own| !own.is_empty());
        if let Some(own) = &mut session.own {
            own.proxied.forget_request();
        }
        self.arm_session(index);
        Some(Action::Relay { client, server: socket })
    }

    /// When a tunnel is looked at next.
    pub(super) fn look_us(&self, relay: &Relay) -> u64 {
        relay.looked_us + (self.plan.client.tunnel_timeout_us / LOOKS).max(1)
    }

    /// Asks how much a client's tunnel has moved.
    pub(super) fn look_at_relay(&mut self, index: ClientKey) {
        let token = self.client_token(index);
        let session = self.sessions.at_mut(index);
        if let Some(relay) = &mut session.relay {
            relay.looked_us = self.now_us;
        }
        self.actions.push_back(Action::LookRelay { token, client: session.socket });
    }

    /// So much a tunnel has moved, from its client and to it, since it is the driver's. One that has moved nothing for too long
    /// ends.
    pub fn relay_looked(&mut self, token: u64, from_client: u64, to_client: u64) {
        let Some(index) = self.session_of(token) else { return };
        if self.count_relayed(index, from_client, to_client) {
            self.sessions.at_mut(index).since_us = self.now_us;
        } else if self.sessions.at(index).since_us + self.plan.client.tunnel_timeout_us <= self.now_us {
            self.tunnel_timed_out(index);
        }
    }

    /// A tunnel is over. `by_client`: its client broke off, rather than both sides having ended or the server having broken off.
    pub fn relay_ended(&mut self, token: u64, from_client: u64, to_client: u64, by_client: bool) {
        let Some(index) = self.session_of(token) else { return };
        self.count_relayed(index, from_client, to_client);
        self.close_session(index, if by_client { ClientEnd::ClientReset } else { ClientEnd::TunnelEnded });
    }

    /// Counts what the driver has moved since the last time. False: nothing.
    fn count_relayed(&mut self, index: ClientKey, from_client: u64, to_client: u64) -> bool {
        let Some(relay) = &mut self.sessions.at_mut(index).relay else { return false };
        let before = std::mem::replace(&mut relay.moved, (from_client, to_client));
        let (up, down) = (from_client.saturating_sub(before.0), to_client.saturating_sub(before.1));
        let stats = &self.servers[relay.server].stats;
        stats.bytes_out.add(up);
        stats.bytes_in.add(down);
        self.usage.moved(relay.account, up, down);
        self.counters.client_bytes_in.add(up);
        self.counters.upstream_bytes_out.add(up);
        self.counters.upstream_bytes_in.add(down);
        self.counters.client_bytes_out.add(down);
        self.note_body(self.sessions.at(index).first, up, false);
        if let Some(access) = &mut self.access {
            access.delivered(index, down, self.now_us);
        }
        up + down > 0
    }

    /// The client of a tunnel that the driver moves is gone: its upstream connection goes with it.
    pub(super) fn end_relay(&mut self, relay: &Relay) {
        let server = &mut self.servers[relay.server];
        server.relays -= 1;
        server.stats.closes.count(UpstreamEnd::TunnelEnded);
        self.counters.upstream_closes.count(UpstreamEnd::TunnelEnded);
        self.actions.push_back(Action::CloseLink { socket: relay.socket });
    }
}
