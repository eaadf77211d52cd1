//! Tunnels: a client and an upstream connection joined after 101, each direction with its own end (RFC 9110 §7.8).
//!
//! Bound: [`super::HIGH_BYTES`] unsent each way; the tunnel's time-out, and the client's send time-out for what is left to say.

use super::{Action, Engine, Piece};
use crate::base::keys::{ClientKey, ConnKey, ExchangeKey};
use crate::cause::Cause;
use crate::client::connection::{Phase, Reading};
use crate::ending::{ClientEnd, Timeout, UpstreamEnd};
use crate::request::pending_request::ExchangeId;

impl Engine {
    /// The connection leaves the pool, joined with one client; another takes its place.
    pub(super) fn become_tunnel(&mut self, index: ConnKey, id: ExchangeId) {
        let link = self.links.at_mut(index);
        link.join(id);
        let asked = std::mem::take(&mut link.entries).len() as u32;
        let (server, position, owner) = (link.server, link.position, link.owner);
        let machine = &mut self.servers[server];
        machine.inflight -= asked;
        self.counters.in_flight.sub(asked.into());
        machine.ready -= 1;
        self.counters.upstream_connections.sub(1);
        match owner {
            Some(owner) => self.disown(owner, index),
            None => self.replace_link(server, position, UpstreamEnd::Upgraded),
        }
    }

    pub(super) fn tunnel_link_ended(&mut self, index: ConnKey) {
        let link = self.links.at_mut(index);
        link.ended = true;
        let (peer, finished) = (link.peer, link.finished);
        if let Some(id) = peer {
            self.answer_done(id, &[]);
        }
        if finished && self.links.is_occupied(index) {
            self.end_tunnel(index);
        }
    }

    /// The client of a tunnel is gone. When both sides had ended in order, what it said last is still sent.
    pub(super) fn leave_tunnel(&mut self, index: ConnKey) {
        let patience_us = self.plan.client.send_timeout_us;
        let link = self.links.at_mut(index);
        if link.finish && link.ended && !link.finished {
            link.peer = None;
            link.give_up_us = self.now_us + patience_us;
            self.arm_link(index, self.now_us + patience_us);
        } else {
            self.doomed.push((index, self.links.generation(index)));
        }
    }

    /// Ends both sides of a tunnel.
    pub(super) fn end_tunnel(&mut self, index: ConnKey) {
        let link = self.links.remove(index);
        self.counters.upstream_closes.count(UpstreamEnd::TunnelEnded);
        self.servers[link.server].stats.closes.count(UpstreamEnd::TunnelEnded);
        if let Some(socket) = link.socket {
            self.actions.push_back(Action::CloseLink { socket });
        }
        if let Some(id) = link.peer.filter(|_| !(link.ended && link.finished)) {
            self.answer_fails(id, Cause::Truncated);
        }
    }

    /// The upstream's side of a tunnel broke: its client gets what there is, then the end.
    pub(super) fn break_tunnel(&mut self, index: ClientKey) {
        let session = self.sessions.at_mut(index);
        if session.output.is_empty() && !session.flags.sending {
            self.close_session(index, ClientEnd::TunnelEnded);
            return;
        }
        session.reading = Reading::Closing;
        session.flags.close = true;
        self.counters.tunnels.sub(1);
        self.note_complete(index);
        self.pop_exchange(index);
        self.mark_session(index);
    }

    /// Nothing was said either way for too long.
    pub(super) fn tunnel_timed_out(&mut self, index: ClientKey) {
        self.counters.timeouts.count(Timeout::Tunnel);
        self.close_session(index, ClientEnd::TunnelTimeout);
    }

    /// The client of a tunnel sent bytes.
    pub(super) fn tunnel_from_client(&mut self, index: ClientKey, piece: Piece<'_>) {
        let session = self.sessions.at_mut(index);
        session.since_us = self.now_us;
        let exchange = session.first;
        self.note_body(exchange, piece.len() as u64, false);
        self.body_to_link(exchange, piece, false);
    }

    pub(super) fn tunnel_client_ended(&mut self, index: ClientKey) {
        let session = self.sessions.at(index);
        let (exchange, over) = (session.first, session.flags.shut);
        self.body_to_link(exchange, Piece::Borrowed(&[]), true);
        if over {
            self.close_session(index, ClientEnd::TunnelEnded);
        }
    }

    /// The local side of [`Engine::answer_done`] when the session is a tunnel: the upstream closed its direction.
    pub(super) fn tunnel_answer_ended(&mut self, slot: ExchangeKey) {
        let index = self.exchanges.at(slot).session;
        self.sessions.at_mut(index).flags.tunnel_ended = true;
        self.mark_session(index);
    }

    /// Whether an exchange is a tunnel now.
    pub(super) fn is_tunnel(&self, slot: ExchangeKey) -> bool {
        let exchange = self.exchanges.at(slot);
        exchange.phase == Phase::Answering && self.sessions.at(exchange.session).reading == Reading::Tunnel
    }
}
