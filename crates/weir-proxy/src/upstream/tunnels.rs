//! Upstream connections that are joined with one client each (RFC 9110 §7.8, §9.3.6).

use std::sync::Arc;

use weir_http::Trailers;

use super::Upstreams;
use super::agenda::Agenda;
use super::connection::{ConnState, UpstreamConn};
use super::fresh::count_open;
use super::pool::{Event, Pool, take_requests};
use super::private_pool::PrivatePools;
use crate::action::Action;
use crate::base::keys::{ClientKey, ConnKey, ServerIndex};
use crate::cause::Cause;
use crate::context::Context;
use crate::cross::relay::Relay;
use crate::cross::router::Replies;
use crate::ending::UpstreamEnd;
use crate::request::pending_request::{ConnId, ExchangeId};

/// A connection leaves the pool, joined with one client; another takes its place.
pub(super) fn begin(
    index: ConnKey,
    id: ExchangeId,
    pool: &mut Pool,
    private: &mut PrivatePools,
    agenda: &mut Agenda,
    cx: &mut Context,
) {
    let conn = pool.conns.at_mut(index);
    let (server, position, owner) = (conn.server, conn.position, conn.owner);
    take_requests(conn, &mut pool.servers[server], cx);
    pool.transition(index, Event::Joined(id), cx);
    match owner {
        Some(owner) => {
            count_open(index, false, pool);
            private.disown(owner, index);
        }
        None => {
            replace(server, position, pool, cx);
            agenda.serve(pool.servers[server].upstream);
        }
    }
}

/// Puts another connection in the place of one that left the pool, to be made when it is needed.
fn replace(server: ServerIndex, position: u32, pool: &mut Pool, cx: &mut Context) {
    let mut fresh = UpstreamConn::new(server, position, u64::MAX);
    let old = pool.conns.at(pool.servers[server].conns[position as usize]);
    fresh.contact.closes = old.contact.closes;
    fresh.contact.note_close(UpstreamEnd::Upgraded);
    (fresh.contact.due_us, fresh.contact.since_us) = (cx.now_us, cx.now_us);
    let (fresh, _) = pool.conns.insert(fresh);
    pool.servers[server].conns[position as usize] = fresh;
    pool.pair(fresh).refresh(cx);
    pool.publish(server, cx);
    pool.keep_least(server, cx);
}

/// The server of a tunnel has ended its direction.
pub(super) fn server_ended(
    index: ConnKey,
    pool: &mut Pool,
    to: &mut Replies<'_>,
    cx: &mut Context,
) {
    let conn = pool.conns.at_mut(index);
    conn.tunnel.ended = true;
    let (peer, finished) = (conn.tunnel.peer, conn.tunnel.finished);
    if let Some(id) = peer {
        to.end(id, Trailers::default(), cx);
    }
    if finished {
        end(index, pool, cx);
    }
}

/// Ends both sides of a tunnel.
pub(super) fn end(index: ConnKey, pool: &mut Pool, cx: &mut Context) {
    let conn = pool.conns.remove(index);
    cx.counters.upstream_closes.count(UpstreamEnd::TunnelEnded);
    pool.servers[conn.server].stats.closes.count(UpstreamEnd::TunnelEnded);
    pool.hints.set_seen(conn.server, cx.now_us);
    if let Some(socket) = conn.socket {
        cx.actions.push_back(Action::CloseUpstream { socket });
    }
    if let Some(id) = conn.tunnel.peer.filter(|_| !conn.tunnel.is_over()) {
        cx.answer_fails(id, Cause::Truncated);
    }
}

impl Upstreams {
    /// Gives a tunnel away, so that the driver moves its bytes, if the driver has all earlier bytes
    /// and neither side has ended. The state that was needed to make it is dropped.
    pub(crate) fn release_tunnel(
        &mut self,
        client: ClientKey,
        tunnel: ConnId,
        cx: &Context,
    ) -> Option<Relay> {
        if !self.pool.is_tunnel(tunnel) {
            return None;
        }
        let conn = self.pool.conns.at(tunnel.index);
        // The driver can't move bytes that have to be decrypted.
        let upstream = usize::from(self.pool.servers[conn.server].upstream);
        if cx.plan.upstreams[upstream].tls.is_some() {
            return None;
        }
        let is_done = conn.out.body.is_empty()
            && conn.log.pending_len() == 0
            && !conn.tunnel.ended
            && !conn.tunnel.finish;
        let socket = conn.socket.filter(|_| is_done)?;
        let UpstreamConn { server, account, .. } = self.pool.conns.remove(tunnel.index);
        self.private.forget_empty(client);
        let stats = Arc::clone(&self.pool.servers[server].stats);
        let hints = Arc::clone(&self.pool.hints);
        Some(Relay { socket, server, hints, stats, account, looked_us: cx.now_us, moved: (0, 0) })
    }
}

impl Pool {
    /// Whether a connection is a tunnel of this worker.
    pub(crate) fn is_tunnel(&self, conn: ConnId) -> bool {
        self.conns.holds(conn.index, conn.generation)
            && self.conns.at(conn.index).state() == ConnState::Tunnel
    }
}
