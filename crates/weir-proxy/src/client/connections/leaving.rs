//! How clients that have to leave are closed: after their last response, idle ones soon. This
//! happens when weir ends, when their listener closes, or when a successor has taken over. Called
//! by [`crate::client::Clients`]; bounds: [`DRAIN_IDLE_US`], [`LEAVE_IDLE_US`].

use super::Connections;
use crate::base::keys::ClientKey;
use crate::client::connection::{ClientConn, Reading};
use crate::client::patience::{DRAIN_IDLE_US, LEAVE_IDLE_US};
use crate::context::Context;
use crate::ending::Farewell;

impl Connections {
    /// Drains clients: see [`Engine::drain`](crate::engine::Engine::drain). Returns those that are
    /// to be closed at once.
    pub(in crate::client) fn drain(&mut self, who: Farewell, cx: &mut Context) -> Vec<ClientKey> {
        let (of, idle_us) = match who {
            Farewell::All => (None, DRAIN_IDLE_US),
            Farewell::Listener(listener) => (Some(listener), LEAVE_IDLE_US),
            Farewell::Successor => (None, LEAVE_IDLE_US),
            Farewell::AllButTunnels => {
                let ends = |conn: &ClientConn| {
                    conn.reading() != Reading::Tunnel && conn.stream.is_none() && !conn.is_fetch()
                };
                return self.conns.keys().filter(|index| ends(self.conns.at(*index))).collect();
            }
        };
        if of.is_none() && std::mem::replace(&mut self.draining, true) {
            return Vec::new();
        }
        (self.leaves_us, self.idle_us) = (cx.now_us + idle_us, idle_us);
        let is_of = |index: &ClientKey| of.is_none_or(|of| of == self.conns.at(*index).listener);
        let leaving: Vec<ClientKey> = self.conns.keys().filter(is_of).collect();
        for index in leaving {
            self.drain_one(index, cx);
        }
        Vec::new()
    }

    /// Prepares for a client whose listener closes, even if this worker has no other client of that
    /// listener.
    pub(in crate::client) fn expect_leaving(&mut self) {
        if self.idle_us == 0 {
            self.idle_us = LEAVE_IDLE_US;
        }
    }

    /// When a connection that has to leave ends, if it remains idle.
    pub(super) fn leaves_us(&self, conn: &ClientConn) -> Option<u64> {
        conn.flags.leaves.then(|| self.leaves_us.max(conn.since_us + self.idle_us))
    }

    /// Closes a client after its last response, an idle one at `leaves_us`.
    pub(in crate::client) fn drain_one(&mut self, index: ClientKey, cx: &mut Context) {
        self.conns.at_mut(index).flags.leaves = true;
        if let Some(streams) = self.carriers.get_mut(index) {
            streams.mux.drain(cx.now_us);
            self.mark(index);
            return self.arm(index, cx);
        }
        let conn = self.conns.at_mut(index);
        if conn.reading() == Reading::Tunnel || conn.stream.is_some() {
            return;
        }
        let begun = conn.has_begun_request();
        if conn.has_sent_all() && !begun {
            self.arm(index, cx);
        } else if let Some(last) = conn.codec.newest() {
            conn.take_no_more();
            self.exchanges.at_mut(last).want.close = true;
        }
        // Otherwise a response without that notice is being sent: the connection is idle once it is
        // done.
    }
}
