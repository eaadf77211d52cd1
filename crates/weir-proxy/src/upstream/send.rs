//! Requests and bodies sent to servers: everything that one turn has for a connection leaves in one
//! send (stage forward).

use bytes::Bytes;

use super::Upstreams;
use super::cancel::Cancelled;
use super::connection::{ConnState, UpstreamConn};
use super::pool::Pool;
use crate::action::Action;
use crate::base::keys::ConnKey;
use crate::base::output::{HIGH_BYTES, LOW_BYTES, Out};
use crate::base::piece::Piece;
use crate::context::Context;
use crate::request::pending_request::{ClientName, ConnId, ExchangeId, PendingRequest};

/// Which connections have something to send, and what else is to be done for them when the turn
/// ends. A connection is in `dirty` at most once, and its mark says so.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    dirty: Vec<ConnKey>,
    /// Connections that received pipelined responses in this turn, and the bytes that had been
    /// given to the driver by then.
    to_acknowledge: Vec<(ConnKey, u32, u64)>,
}

impl Outbox {
    /// A connection has something to send.
    #[inline]
    pub(super) fn mark(&mut self, index: ConnKey, conn: &mut UpstreamConn) {
        if !conn.out.dirty {
            conn.out.dirty = true;
            self.dirty.push(index);
        }
    }

    /// A server may hold the next response back until the bytes received on a connection are
    /// acknowledged.
    #[inline]
    pub(super) fn acknowledge(&mut self, index: ConnKey, pool: &Pool) {
        self.to_acknowledge.push((
            index,
            pool.conns.generation(index),
            pool.conns.at(index).log.flushed(),
        ));
    }

    /// Returns the next send, or another action for received bytes.
    #[inline]
    pub(super) fn poll(
        &mut self,
        pool: &mut Pool,
        cancelled: &mut Cancelled,
        cx: &mut Context,
    ) -> Option<Action> {
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

/// Returns the send that a connection wants, if any. A tunnel that both sides have ended is over
/// with that.
#[inline]
fn flush(
    index: ConnKey,
    pool: &mut Pool,
    cancelled: &mut Cancelled,
    cx: &mut Context,
) -> Option<Action> {
    if !pool.conns.is_occupied(index) {
        return None;
    }
    let conn = pool.conns.at_mut(index);
    conn.out.dirty = false;
    if !conn.wants_send() {
        return None;
    }
    let socket = conn.socket?;
    let given = conn.log.flushed();
    let out = match (conn.log.flush(), conn.out.body.take()) {
        (Some(log), None) => Out::Shared(log),
        (Some(log), Some(body)) => Out::Vectored(join(log, body)),
        (None, Some(body)) => body,
        (None, None) => {
            conn.tunnel.finished = true;
            if conn.tunnel.ended {
                cancelled.doom(index, pool);
            }
            return Some(Action::ShutdownUpstream { socket });
        }
    };
    conn.out.sending = true;
    cx.counters.upstream_sends.add(1);
    cx.counters.upstream_bytes_out.add(out.len() as u64);
    let (server, pooled) = (&pool.servers[conn.server], conn.owner.is_none());
    let mut requests = 0;
    for entry in conn.entries.iter_mut().rev().take_while(|entry| entry.start >= given) {
        requests += 1;
        if pooled {
            server.count_apart(&mut entry.ask);
        }
    }
    let stats = &server.stats;
    stats.requests.add(requests);
    stats.bytes_out.add(out.len() as u64);
    cx.usage.moved(conn.account, out.len() as u64, 0);
    if conn.unheard.on_sent(cx.now_us) {
        let due_us = conn.unheard.due_us;
        pool.arm_conn(index, due_us, cx);
    }
    Some(Action::SendUpstream { socket, out })
}

/// For a server that holds the next response back until the last one is acknowledged: the kernel
/// lets the acknowledgement wait for a send, so without one in this turn it is requested.
fn acknowledge(pool: &Pool, (index, generation, flushed): (ConnKey, u32, u64)) -> Option<Action> {
    if !pool.conns.holds(index, generation) {
        return None;
    }
    let conn = pool.conns.at(index);
    let socket = conn.socket?;
    let waits = !conn.entries.is_empty() && conn.log.flushed() == flushed;
    waits.then_some(Action::AcknowledgeUpstream { socket })
}

impl Upstreams {
    /// Returns the next send, or another action for received bytes.
    #[inline]
    pub(crate) fn poll_send(&mut self, cx: &mut Context) -> Option<Action> {
        self.outbox.poll(&mut self.pool, &mut self.cancelled, cx)
    }

    /// The driver has taken the bytes for a server (`ok`) or not. Returns the client's exchange if
    /// it is a tunnel.
    pub(crate) fn upstream_sent(
        &mut self,
        token: u64,
        ok: bool,
        cx: &mut Context,
    ) -> Option<ExchangeId> {
        let index = self.pool.conn_of(token)?;
        let conn = self.pool.conns.at_mut(index);
        if !ok {
            // Read first: responses that are already here are delivered, then the receive reports
            // the end.
            conn.reply.persist = false;
            if conn.state() != ConnState::Tunnel {
                let server = &mut self.pool.servers[conn.server];
                server.refresh(conn, cx.now_us);
            }
            return None;
        }
        conn.out.sending = false;
        let again = conn.wants_send();
        if conn.unsent() <= LOW_BYTES
            && let Some(id) = conn.out.body_paused.take()
        {
            cx.body_flow(id, false);
        }
        if again {
            self.outbox.mark(index, conn);
        }
        conn.tunnel.peer
    }

    /// A piece of a request body or tunnel for a connection of this worker.
    pub(crate) fn conn_body(
        &mut self,
        id: ExchangeId,
        client: ClientName,
        to: ConnId,
        piece: Piece<'_>,
        end: bool,
        cx: &mut Context,
    ) {
        let Some(index) = self.pool.carrier_of_body(id, to) else {
            return self.placing().body_to_waiting(id, client, &piece, end, cx);
        };
        let conn = self.pool.conns.at_mut(index);
        let tunnel = conn.state() == ConnState::Tunnel;
        if !tunnel {
            conn.out.lookalike.feed(piece.bytes());
        }
        conn.push_body(piece, &mut cx.spare);
        if end && tunnel {
            conn.tunnel.finish = true;
        } else if end {
            conn.out.body_done = true;
        }
        if conn.unsent() >= HIGH_BYTES && conn.out.body_paused.is_none() && !end {
            conn.out.body_paused = Some(id);
            cx.body_flow(id, true);
        }
        self.outbox.mark(index, conn);
    }
}

/// Adds a request of weir's own to a connection with its bytes already in the log from `start` on.
/// Its response is discarded.
pub(super) fn push_copy(
    index: ConnKey,
    ask: PendingRequest,
    start: u64,
    pool: &mut Pool,
    outbox: &mut Outbox,
    cx: &Context,
) {
    pool.push(index, ask, start, cx);
    let conn = pool.conns.at_mut(index);
    outbox.mark(index, conn);
    if let Some(copy) = conn.entries.back_mut() {
        (copy.cancelled, copy.is_copy) = (true, true);
    }
}

/// Joins the log's bytes and those of a body, in this order.
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
    /// Returns the connection for the body of a request: the one that its sender knows, or the one
    /// that it has moved to.
    fn carrier_of_body(&self, id: ExchangeId, to: ConnId) -> Option<ConnKey> {
        let carries = |conn: &UpstreamConn| match conn.state() {
            ConnState::Tunnel => conn.tunnel.peer == Some(id),
            _ => conn.entries.back().is_some_and(|entry| entry.ask.id == id),
        };
        if self.conns.holds(to.index, to.generation) {
            return carries(self.conns.at(to.index)).then_some(to.index);
        }
        self.conns.keys().find(|index| carries(self.conns.at(*index)))
    }
}
