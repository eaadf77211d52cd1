//! Upstream connections that are joined with one client each (RFC 9110 §7.8, §9.3.6).

use std::sync::Arc;

use weir_http::Trailers;

use super::Upstreams;
use super::agenda::Agenda;
use super::connection::{LinkState, UpstreamConn};
use super::pool::{Event, Pool, take_requests};
use super::private_pool::PrivatePools;
use crate::action::Action;
use crate::base::keys::{ClientKey, ConnKey, ServerIndex};
use crate::cause::Cause;
use crate::context::Context;
use crate::cross::relay::Relay;
use crate::cross::router::Replies;
use crate::ending::UpstreamEnd;
use crate::request::pending_request::{ExchangeId, LinkId};

/// A connection leaves the pool, joined with one client; another takes its place.
pub(super) fn begin(
    index: ConnKey,
    id: ExchangeId,
    pool: &mut Pool,
    private: &mut PrivatePools,
    agenda: &mut Agenda,
    cx: &mut Context,
) {
    let link = pool.links.at_mut(index);
    let (server, position, owner) = (link.server, link.position, link.owner);
    take_requests(link, &mut pool.servers[server], cx);
    pool.transition(index, Event::Joined(id), cx);
    match owner {
        Some(owner) => private.disown(owner, index),
        None => {
            replace(server, position, pool, cx);
            agenda.serve(pool.servers[server].upstream);
        }
    }
}

/// Puts another connection into the place of one that left the pool, to be made when it is needed.
fn replace(server: ServerIndex, position: u32, pool: &mut Pool, cx: &mut Context) {
    let mut fresh = UpstreamConn::new(server, position, u64::MAX);
    let old = pool.links.at(pool.servers[server].links[position as usize]);
    fresh.contact.closes = old.contact.closes;
    fresh.contact.note_close(UpstreamEnd::Upgraded);
    (fresh.contact.due_us, fresh.contact.since_us) = (cx.now_us, cx.now_us);
    let (fresh, _) = pool.links.insert(fresh);
    pool.servers[server].links[position as usize] = fresh;
    pool.pair(fresh).refresh(cx);
    pool.publish(server, cx);
    pool.keep_least(server, cx);
}

/// The server of a tunnel has ended its direction.
pub(super) fn server_ended(index: ConnKey, pool: &mut Pool, to: &mut Replies<'_>, cx: &mut Context) {
    let link = pool.links.at_mut(index);
    link.tunnel.ended = true;
    let (peer, finished) = (link.tunnel.peer, link.tunnel.finished);
    if let Some(id) = peer {
        to.end(id, Trailers::default(), cx);
    }
    if finished {
        end(index, pool, cx);
    }
}

/// Ends both sides of a tunnel.
pub(super) fn end(index: ConnKey, pool: &mut Pool, cx: &mut Context) {
    let link = pool.links.remove(index);
    cx.counters.upstream_closes.count(UpstreamEnd::TunnelEnded);
    pool.servers[link.server].stats.closes.count(UpstreamEnd::TunnelEnded);
    if let Some(socket) = link.socket {
        cx.actions.push_back(Action::CloseLink { socket });
    }
    if let Some(id) = link.tunnel.peer.filter(|_| !link.tunnel.is_over()) {
        cx.answer_fails(id, Cause::Truncated);
    }
}

impl Upstreams {
    /// Gives a tunnel away, to be moved by the driver, if that has everything that came before and neither side has ended. What was needed
    /// to make it is given up.
    pub(crate) fn release_tunnel(&mut self, client: ClientKey, tunnel: LinkId, cx: &Context) -> Option<Relay> {
        if !self.pool.is_tunnel(tunnel) {
            return None;
        }
        let link = self.pool.links.at(tunnel.index);
        // What has to be opened can't be moved by the driver.
        let upstream = usize::from(self.pool.servers[link.server].upstream);
        if cx.plan.upstreams[upstream].tls.is_some() {
            return None;
        }
        let is_done =
            link.out.body.is_empty() && link.log.pending_len() == 0 && !link.tunnel.ended && !link.tunnel.finish;
        let socket = link.socket.filter(|_| is_done)?;
        let UpstreamConn { server, account, .. } = self.pool.links.remove(tunnel.index);
        self.private.forget_empty(client);
        let stats = Arc::clone(&self.pool.servers[server].stats);
        Some(Relay { socket, server, stats, account, looked_us: cx.now_us, moved: (0, 0) })
    }
}

impl Pool {
    /// Whether a connection is a tunnel of this worker.
    pub(crate) fn is_tunnel(&self, link: LinkId) -> bool {
        self.links.holds(link.index, link.generation) && self.links.at(link.index).state() == LinkState::Tunnel
    }
}
