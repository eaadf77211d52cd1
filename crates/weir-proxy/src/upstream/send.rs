//! Requests and bodies sent to servers: everything that one turn has for a connection leaves in one send (stage forward).

use bytes::Bytes;

use super::Upstreams;
use super::cancel::Cancelled;
use super::connection::{LinkState, UpstreamConn};
use super::pool::Pool;
use crate::action::Action;
use crate::base::keys::ConnKey;
use crate::base::output::{HIGH_BYTES, LOW_BYTES, Out};
use crate::base::piece::Piece;
use crate::context::Context;
use crate::request::pending_request::{ClientName, ExchangeId, LinkId};

/// Which connections have something to send, and what else is to be done for them when the turn ends. A connection is in `dirty` once, and
/// its mark says so.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    dirty: Vec<ConnKey>,
    /// Connections that received answers of a pipeline in this turn, and what had been given to the driver by then.
    to_acknowledge: Vec<(ConnKey, u32, u64)>,
}

impl Outbox {
    /// A connection has something to send.
    #[inline]
    pub(super) fn mark(&mut self, index: ConnKey, link: &mut UpstreamConn) {
        if !link.out.dirty {
            link.out.dirty = true;
            self.dirty.push(index);
        }
    }

    /// A server may hold the next answer back until what came on a connection is acknowledged.
    #[inline]
    pub(super) fn acknowledge(&mut self, index: ConnKey, pool: &Pool) {
        self.to_acknowledge.push((index, pool.links.generation(index), pool.links.at(index).log.flushed()));
    }

    /// The next send, or what else is to be done for what was received.
    #[inline]
    pub(super) fn poll(&mut self, pool: &mut Pool, cancelled: &mut Cancelled, cx: &mut Context) -> Option<Action> {
        while let Some(index) = self.dirty.pop() {
            let action = flush(index, pool, cancelled, cx);
            if action.is_some() {
                return action;
            }
        }
        while let Some(received) = self.to_acknowledge.pop() {
            let action = acknowledge(pool, received);
            if action.is_some() {
                return action;
            }
        }
        None
    }
}

/// The send that a connection wants, if any. A tunnel that both sides have ended is over with that.
#[inline]
fn flush(index: ConnKey, pool: &mut Pool, cancelled: &mut Cancelled, cx: &mut Context) -> Option<Action> {
    if !pool.links.is_occupied(index) {
        return None;
    }
    let link = pool.links.at_mut(index);
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
                cancelled.doom(index, pool);
            }
            return Some(Action::ShutdownLink { socket });
        }
    };
    link.out.sending = true;
    cx.counters.upstream_sends.add(1);
    cx.counters.upstream_bytes_out.add(out.len() as u64);
    pool.servers[link.server].stats.bytes_out.add(out.len() as u64);
    cx.usage.moved(link.account, out.len() as u64, 0);
    if link.unheard.on_sent(cx.now_us) {
        let due_us = link.unheard.due_us;
        pool.arm_link(index, due_us, cx);
    }
    Some(Action::SendLink { socket, out })
}

/// For a server that holds the next answer back until the last one is acknowledged: the kernel lets the acknowledgement
/// wait for a send, so without one in this turn it is asked for.
fn acknowledge(pool: &Pool, (index, generation, flushed): (ConnKey, u32, u64)) -> Option<Action> {
    if !pool.links.holds(index, generation) {
        return None;
    }
    let link = pool.links.at(index);
    let socket = link.socket?;
    let waits = !link.entries.is_empty() && link.log.flushed() == flushed;
    waits.then_some(Action::AcknowledgeLink { socket })
}

impl Upstreams {
    /// The next send, or what else is to be done for what was received.
    #[inline]
    pub(crate) fn poll_send(&mut self, cx: &mut Context) -> Option<Action> {
        self.outbox.poll(&mut self.pool, &mut self.cancelled, cx)
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
            self.outbox.mark(index, link);
        }
        link.tunnel.peer
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
            return self.placing().body_to_waiting(id, client, &piece, end, cx);
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
        self.outbox.mark(index, link);
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
