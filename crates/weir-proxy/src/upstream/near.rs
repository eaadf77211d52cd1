//! Which connections are near: this worker's core receives their packets. Where others are far, a
//! worker that has only far ones replaces them
//! ([`Server::may_try_nearer`](crate::upstream::server::Server::may_try_nearer)).
//!
//! Called when responses were read, and by the driver's answer. docs/pipelining.md.

use super::Upstreams;
use super::agenda::Ending;
use super::pool::Pool;
use crate::action::Action;
use crate::base::keys::ConnKey;
use crate::context::Context;
use crate::ending::UpstreamEnd;
use crate::upstream::connection::ConnState;

/// A far connection that answered fewer requests is not worth replacing.
const FAR_ANSWERS_MIN: u64 = 10_000;

impl Upstreams {
    /// The driver reports which core receives a connection's packets: this worker's (near) or
    /// another; None: unknown.
    pub(crate) fn upstream_located(&mut self, token: u64, near: Option<bool>, cx: &mut Context) {
        let Some(index) = self.pool.conn_of(token) else { return };
        let conn = self.pool.conns.at_mut(index);
        if conn.state() != ConnState::Ready {
            return;
        }
        let server_index = conn.server;
        let server = &mut self.pool.servers[server_index];
        let scouted = std::mem::take(&mut conn.gate.locating);
        server.positions.locate(conn.position, near);
        let costs = conn.rest.syncing && conn.history.answers >= FAR_ANSWERS_MIN;
        if near == Some(false)
            && conn.entries.is_empty()
            && (scouted || costs)
            && server.may_try_nearer(scouted)
        {
            return self.end(index, Ending::ours(UpstreamEnd::Far), cx);
        }
        if near == Some(true) && !conn.rest.syncing {
            server.note_near();
        }
        if scouted {
            server.refresh(conn, cx.now_us);
            self.dispatch(server_index, cx);
        }
    }
}

impl Pool {
    /// Asks which core receives a connection's packets. Only a response shows it: a handshake is
    /// the kernel's alone.
    pub(super) fn locate(&mut self, index: ConnKey, cx: &mut Context) {
        let conn = self.conns.at_mut(index);
        if let Some(socket) = conn.socket {
            let server = &self.servers[conn.server];
            conn.gate.locating =
                server.scouts() && conn.history.answers == 1 && conn.entries.is_empty();
            let token = self.conn_token(index);
            cx.actions.push_back(Action::LocateUpstream { token, socket });
        }
    }
}
