//! Requests and bodies sent to servers: everything that one turn has for a connection leaves in one send (stage forward).

use bytes::Bytes;

use super::Upstreams;
use super::connection::{LinkState, UpstreamConn};
use super::pool::Pool;
use crate::action::Action;
use crate::base::keys::ConnKey;
use crate::base::output::{HIGH_BYTES, LOW_BYTES, Out};
use crate::base::piece::Piece;
use crate::context::Context;
use crate::request::pending_request::{ClientName, ExchangeId, LinkId};

impl Upstreams {
    #[inline]
    pub(super) fn mark_link(&mut self, index: ConnKey) {
        let link = self.pool.links.at_mut(index);
        if !link.out.dirty {
            link.out.dirty = true;
            self.dirty_links.push(index);
        }
    }

    /// The send that a connection wants, if any.
    #[inline]
    pub(super) fn flush_link(&mut self, index: ConnKey, cx: &mut Context) -> Option<Action> {
        if !self.pool.links.is_occupied(index) {
            return None;
        }
        let link = self.pool.links.at_mut(index);
        link.out.dirty = false;
        if !link.wants_send() {
            return None;
        }
        let socket = link.socket?;
        let out = match (link.log.flush(), link.out.body.take()) {
            (Some(log), None) => Out::Shared(log),
            (Some(log), Some(body)) => Out::Vectored(join(log, body)),
            (None, Some(body)) => body,
            (None, None) => {
                link.tunnel.finished = true;
                if link.tunnel.ended {
                    self.doomed.push((index, self.pool.links.generation(index)));
                }
                return Some(Action::ShutdownLink { socket });
            }
        };
        link.out.sending = true;
        if link.unheard.on_sent(cx.now_us) {
            let due_us = link.unheard.due_us;
            self.pool.arm_link(index, due_us, cx);
        }
        let link = self.pool.links.at(index);
        cx.counters.upstream_sends.add(1);
        cx.counters.upstream_bytes_out.add(out.len() as u64);
        self.pool.servers[link.server].stats.bytes_out.add(out.len() as u64);
        cx.usage.moved(link.account, out.len() as u64, 0);
        Some(Action::SendLink { socket, out })
    }

    /// What was sent to a server was taken (`ok`) or not. Whose tunnel it is, if it is one.
    pub(crate) fn link_sent(&mut self, token: u64, ok: bool, cx: &mut Context) -> Option<ExchangeId> {
        let index = self.pool.link_of(token)?;
        let link = self.pool.links.at_mut(index);
        if !ok {
            // Read first: answers that are already here are delivered, then the receive tells the end.
            link.reply.persist = false;
            if link.state() != LinkState::Tunnel {
                let server = &mut self.pool.servers[link.server];
                server.refresh(link, cx.now_us);
            }
            return None;
        }
        link.out.sending = false;
        let again = link.wants_send();
        if link.unsent() <= LOW_BYTES
            && let Some(id) = link.out.body_paused.take()
        {
            cx.body_flow(id, false);
        }
        if again {
            self.mark_link(index);
        }
        self.pool.links.at(index).tunnel.peer
    }

    /// A piece of a request body or tunnel for a connection of this worker.
    pub(crate) fn link_body(
        &mut self,
        id: ExchangeId,
        client: ClientName,
        to: LinkId,
        piece: Piece<'_>,
        end: bool,
        cx: &mut Context,
    ) {
        let Some(index) = self.pool.carrier_of_body(id, to) else {
            self.body_to_waiting(id, client, &piece, end, cx);
            return;
        };
        let link = self.pool.links.at_mut(index);
        let tunnel = link.state() == LinkState::Tunnel;
        piece.push_to(&mut link.out.body, &mut cx.spare);
        if end && tunnel {
            link.tunnel.finish = true;
        } else if end {
            link.out.body_done = true;
        }
        if link.unsent() >= HIGH_BYTES && link.out.body_paused.is_none() && !end {
            link.out.body_paused = Some(id);
            cx.body_flow(id, true);
        }
        self.mark_link(index);
    }
}

/// The log's bytes in front of a body's.
fn join(log: Bytes, body: Out) -> Vec<Bytes> {
    let mut list = vec![log];
    match body {
        Out::Owned(bytes) => list.push(Bytes::from(bytes)),
        Out::Shared(bytes) => list.push(bytes),
        Out::Vectored(more) => list.extend(more),
    }
    list
}

impl Pool {
    /// The connection that the body of a request goes to: the one that its sender knows, or the one that it has moved to.
    fn carrier_of_body(&self, id: ExchangeId, to: LinkId) -> Option<ConnKey> {
        let carries = |link: &UpstreamConn| match link.state() {
            LinkState::Tunnel => link.tunnel.peer == Some(id),
            _ => link.entries.back().is_some_and(|entry| entry.ask.id == id),
        };
        if self.links.holds(to.index, to.generation) {
            return carries(self.links.at(to.index)).then_some(to.index);
        }
        self.links.keys().find(|index| carries(self.links.at(*index)))
    }
}
