//! An operator's orders for a server while weir runs: drain, disable, enable (docs/failover.md,
//! `upstream/server_state.rs`).
//!
//! The caller informs every worker; each carries the order out for its own connections. No request
//! in flight is lost: it is finished where it is, and requests that only wait move elsewhere if
//! they can.

use super::Upstreams;
use super::agenda::{Agenda, Ending};
use super::judge::judge_of;
use super::pool::Pool;
use super::timers::Then;
use crate::base::keys::{Key, ServerIndex};
use crate::context::Context;
use crate::cross::standing::Order;
use crate::ending::UpstreamEnd;
use crate::observe::server_event::What;
use crate::upstream::connection::ConnState;
use crate::upstream::server_state::ServerState;

/// Due never: a connection that is not to be made.
pub(super) const NEVER_US: u64 = u64::MAX;

impl Upstreams {
    /// The surplus answers of a server (by its place among those of all upstreams) are forgotten,
    /// and its failure to tolerate pipelining: it may earn trust again.
    pub(crate) fn clear_surplus(&mut self, server: u32, cx: &mut Context) {
        let server = ServerIndex::new(server);
        if let Some(machine) = self.pool.servers.get_mut(server) {
            machine.learned.forgive();
            self.pool.hints.set_verdict(server, None);
            self.pool.events.note(server, What::Cleared, cx);
            self.pool.refresh_conns(server, cx);
            self.dispatch(server, cx);
        }
    }

    /// Carries out an order for a server, named by its index over all upstreams of the plan; an
    /// unknown one is ignored. Idempotent. A worker that restarts later finds the order in its
    /// [`super::Hints`].
    pub(crate) fn order(&mut self, server: u32, order: Order, cx: &mut Context) {
        let server = ServerIndex::new(server);
        let Some(machine) = self.pool.servers.get_mut(server) else { return };
        self.pool.hints.set_order(server, order);
        if !machine.standing.order(order) {
            return;
        }
        if order == Order::Enable {
            machine.recovered(cx.now_us);
        }
        if judge_of(server, cx) == cx.worker {
            self.pool.events.note(server, What::Ordered(order), cx);
        }
        if order != Order::Disable {
            self.pool.connect_at_once(server, cx);
        }
        self.act(Then::StandDown(server), cx);
    }
}

/// Closes the connections of a disabled server that have nothing in flight. Requests that could not
/// move elsewhere are served first.
#[inline]
pub(super) fn retire(server: ServerIndex, pool: &mut Pool, agenda: &mut Agenda, cx: &mut Context) {
    let machine = &pool.servers[server];
    if !machine.standing.keeps_connections() && machine.waiting.is_empty() {
        close_idle(server, pool, agenda, cx);
    }
}

fn close_idle(server: ServerIndex, pool: &mut Pool, agenda: &mut Agenda, cx: &mut Context) {
    for position in 0..pool.servers[server].conns.len() {
        let index = pool.servers[server].conns[position];
        match pool.conns.at(index).state() {
            ConnState::Ready if pool.conns.at(index).entries.is_empty() => {
                agenda.end(index, Ending::ours(UpstreamEnd::Disabled), pool);
            }
            ConnState::Connecting { .. } | ConnState::Down { .. } => {
                pool.disconnect(index, false, cx)
            }
            ConnState::Ready | ConnState::Tunnel => {}
        }
    }
}

impl Pool {
    /// Whether a server takes new requests as far as this worker knows, and why not.
    pub(crate) fn standing(&self, server: u32) -> Option<&ServerState> {
        self.servers.get(ServerIndex::new(server)).map(|machine| &machine.standing)
    }

    /// Returns the number of requests that wait for a server or are in flight to it on this
    /// worker's connections: 0 on all workers, and a server that is draining is empty.
    pub(crate) fn load(&self, server: u32) -> usize {
        let requests = |machine: &crate::upstream::server::Server| {
            machine.inflight as usize + machine.waiting.len()
        };
        self.servers.get(ServerIndex::new(server)).map_or(0, requests)
    }

    /// Makes the connections that a server lacks and that are needed or kept, as fast as its pace
    /// allows: earlier failures to reach it no longer count.
    pub(super) fn connect_at_once(&mut self, server: ServerIndex, cx: &mut Context) {
        let now_us = cx.now_us;
        for position in 0..self.servers[server].conns.len() {
            let index = self.servers[server].conns[position];
            let conn = self.conns.at_mut(index);
            if let ConnState::Down { retry_us } = conn.state() {
                conn.contact.backoff.reset();
                conn.contact.due_us = now_us;
                if retry_us != NEVER_US {
                    self.connect(index, cx);
                }
            }
        }
        self.keep_least(server, cx);
        self.grow(server, cx);
    }
}
