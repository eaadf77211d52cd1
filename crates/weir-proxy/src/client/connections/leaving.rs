//! How clients go that are to: after what they have asked, idle ones soon. When weir ends, when the listener goes that they came in by, when a
//! successor has taken over. Called by [`crate::client::Clients`]; bounds: [`DRAIN_IDLE_US`], [`LEAVE_IDLE_US`].

use super::Connections;
use crate::base::keys::ClientKey;
use crate::client::connection::{ClientConn, Reading};
use crate::client::patience::{DRAIN_IDLE_US, LEAVE_IDLE_US};
use crate::context::Context;
use crate::ending::Farewell;

impl Connections {
    /// Lets clients go: see [`Engine::drain`](crate::engine::Engine::drain). Gives those that are to be closed at once.
    pub(in crate::client) fn drain(&mut self, who: Farewell, cx: &mut Context) -> Vec<ClientKey> {
        let (of, idle_us) = match who {
            Farewell::All => (None, DRAIN_IDLE_US),
            Farewell::Listener(listener) => (Some(listener), LEAVE_IDLE_US),
            Farewell::Successor => (None, LEAVE_IDLE_US),
            Farewell::AllButTunnels => {
                let ends =
                    |conn: &ClientConn| conn.reading() != Reading::Tunnel && conn.stream.is_none() && !conn.is_fetch();
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

    /// One comes whose listener goes, also if this worker had no other client of it.
    pub(in crate::client) fn expect_leaving(&mut self) {
        if self.idle_us == 0 {
            self.idle_us = LEAVE_IDLE_US;
        }
    }

    /// When a connection ends that is to go, if it stays idle.
    pub(super) fn leaves_us(&self, conn: &ClientConn) -> Option<u64> {
        conn.flags.leaves.then(|| self.leaves_us.max(conn.since_us + self.idle_us))
    }

    /// A client is closed after what it asked, an idle one at `leaves_us`.
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
        // Else an answer is being sent that did not say so: it is idle when that is done.
    }
}
