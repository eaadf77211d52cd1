//! Upstream connections that are joined with one client each (RFC 9110 §7.8, §9.3.6).

use std::sync::Arc;

use super::Upstreams;
use super::connection::{LinkState, UpstreamConn};
use crate::action::Action;
use crate::base::keys::{ClientKey, ConnKey};
use crate::cause::Cause;
use crate::client::connection::Relay;
use crate::context::Context;
use crate::cross::router::Replies;
use crate::ending::UpstreamEnd;
use crate::request::pending_request::{ExchangeId, LinkId};

impl Upstreams {
    /// The connection leaves the pool, joined with one client; another takes its place.
    pub(super) fn become_tunnel(&mut self, index: ConnKey, id: ExchangeId, cx: &mut Context) {
        let link = self.links.at_mut(index);
        link.join(id);
        let asked = std::mem::take(&mut link.entries).len() as u32;
        let (server, position, owner) = (link.server, link.position, link.owner);
        let machine = &mut self.servers[server];
        machine.inflight -= asked;
        cx.counters.in_flight.sub(asked.into());
        machine.ready -= 1;
        cx.counters.upstream_connections.sub(1);
        match owner {
            Some(owner) => self.disown(owner, index),
            None => self.replace_link(server, position, UpstreamEnd::Upgraded, cx),
        }
    }

    pub(super) fn tunnel_link_ended(&mut self, index: ConnKey, to: &mut Replies<'_>, cx: &mut Context) {
        let link = self.links.at_mut(index);
        link.ended = true;
        let (peer, finished) = (link.peer, link.finished);
        if let Some(id) = peer {
            to.end(id, &[], cx);
        }
        if finished && self.links.is_occupied(index) {
            self.end_tunnel(index, cx);
        }
    }

    /// The client of a tunnel is gone. When both sides had ended in order, what it said last is still sent.
    pub(super) fn leave_tunnel(&mut self, index: ConnKey, cx: &mut Context) {
        let patience_us = cx.plan.client.send_timeout_us;
        let link = self.links.at_mut(index);
        if link.finish && link.ended && !link.finished {
            link.peer = None;
            link.give_up_us = cx.now_us + patience_us;
            self.arm_link(index, cx.now_us + patience_us, cx);
        } else {
            self.doomed.push((index, self.links.generation(index)));
        }
    }

    /// Ends both sides of a tunnel.
    pub(super) fn end_tunnel(&mut self, index: ConnKey, cx: &mut Context) {
        let link = self.links.remove(index);
        cx.counters.upstream_closes.count(UpstreamEnd::TunnelEnded);
        self.servers[link.server].stats.closes.count(UpstreamEnd::TunnelEnded);
        if let Some(socket) = link.socket {
            cx.actions.push_back(Action::CloseLink { socket });
        }
        if let Some(id) = link.peer.filter(|_| !(link.ended && link.finished)) {
            self.answer_fails(id, Cause::Truncated, cx);
        }
    }

    /// Whether a connection is a tunnel of this worker.
    pub(crate) fn is_tunnel(&self, link: LinkId) -> bool {
        self.links.holds(link.index, link.generation) && self.links.at(link.index).state == LinkState::Tunnel
    }

    /// Gives a tunnel away, to be moved by the driver, if that has everything that came before and neither side has ended. What was needed
    /// to make it is given up.
    pub(crate) fn release_tunnel(&mut self, client: ClientKey, tunnel: LinkId, cx: &Context) -> Option<Relay> {
        if !self.is_tunnel(tunnel) {
            return None;
        }
        let link = self.links.at(tunnel.index);
        let is_done = link.body.is_empty() && link.log.pending_len() == 0 && !link.ended && !link.finish;
        let socket = link.socket.filter(|_| is_done)?;
        let UpstreamConn { server, account, .. } = self.links.remove(tunnel.index);
        if self.private.get(client).is_some_and(|pool| pool.is_empty()) {
            self.private.take(client);
        }
        let stats = Arc::clone(&self.servers[server].stats);
        Some(Relay { socket, server, stats, account, looked_us: cx.now_us, moved: (0, 0) })
    }
}
