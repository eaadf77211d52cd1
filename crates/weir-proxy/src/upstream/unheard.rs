//! Connections that were forgotten: by a firewall, or by a server whose machine lost its power.
//! Data sent on one are never acknowledged, and no error is reported.
//!
//! A connection on which nothing was heard for [`UNHEARD_US`] since something was sent is checked
//! again and again until all was acknowledged; the kernel knows (the driver's `delivery`). A server
//! that merely takes its time acknowledges, also with a closed window, and is never ended here.
//! Called by [`super::timers`] and by the worker. docs/connections.md.

use super::Upstreams;
use super::agenda::Ending;
use super::lost::Loss;
use super::pool::Pool;
use crate::action::Action;
use crate::base::keys::{ConnKey, ServerIndex};
use crate::context::Context;
use crate::cross::mail::Mail;
use crate::ending::UpstreamEnd;
use crate::upstream::connection::{ConnState, UpstreamConn};

/// How long nothing must have been heard. With [`AGAIN_US`] and the next connect a safe request is
/// answered within 3 s.
const UNHEARD_US: u64 = 2_500_000;
/// Time between two checks of a connection with something unacknowledged.
const AGAIN_US: u64 = 250_000;

/// The state of the bytes that were sent on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// All were acknowledged, or it is unknown.
    Acknowledged,
    /// Some were not, but something comes back, or may still.
    Underway,
    /// They were sent again and again, and nothing comes back.
    Unheard,
}

/// Whether the sent bytes of a connection are acknowledged. While some may not be and a timer runs:
/// `due_us` <= `since_us` + the time that is waited for it.
#[derive(Debug)]
pub(crate) struct Unheard {
    /// When something was sent that may not be acknowledged, or since then something was last
    /// received; `u64::MAX`: nothing was.
    pub since_us: u64,
    /// When a timer checks that; `u64::MAX`: none does.
    pub due_us: u64,
}

impl Default for Unheard {
    fn default() -> Unheard {
        Unheard { since_us: u64::MAX, due_us: u64::MAX }
    }
}

impl Unheard {
    /// Something was given to the driver. True when a timer must be set for [`Unheard::due_us`].
    pub(crate) fn on_sent(&mut self, now_us: u64) -> bool {
        self.since_us = self.since_us.min(now_us);
        let unwatched = self.due_us == u64::MAX;
        if unwatched {
            self.due_us = self.since_us + UNHEARD_US;
        }
        unwatched
    }

    /// Something was received. Earlier data may be acknowledged with that, or not.
    pub(crate) fn on_heard(&mut self, now_us: u64) {
        if self.since_us < u64::MAX {
            self.since_us = now_us;
        }
    }
}

impl UpstreamConn {
    /// Returns when the unacknowledged data were sent, as far as that is known: data sent before
    /// something was last heard may have arrived.
    fn lost_since_us(&self) -> u64 {
        let since_us = self.unheard.since_us;
        self.entries
            .iter()
            .map(|entry| entry.sent_us)
            .find(|sent_us| *sent_us >= since_us)
            .unwrap_or(since_us)
    }
}

impl Upstreams {
    /// Takes the state of the bytes that were sent on a connection.
    pub(crate) fn upstream_examined(&mut self, token: u64, delivery: Delivery, cx: &mut Context) {
        let Some(index) = self.pool.conn_of(token) else { return };
        let conn = self.pool.conns.at_mut(index);
        let (server, since_us) = (conn.server, conn.lost_since_us());
        match delivery {
            Delivery::Acknowledged => conn.unheard.since_us = u64::MAX,
            Delivery::Underway => self.pool.arm_unheard(index, cx.now_us + AGAIN_US, cx),
            Delivery::Unheard => {
                self.forget_resting(server, since_us, cx);
                cx.tell_all(|| Mail::Unheard { server, since_us });
                // Requests on it are not accused: they did not arrive.
                self.end(
                    index,
                    Ending { loss: Loss::Broken, why: UpstreamEnd::Unacknowledged },
                    cx,
                );
            }
        }
    }

    /// Whatever forgot one connection has forgotten others: idle ones on which nothing was heard
    /// since are closed before a request finds out. Those that are kept are replaced.
    pub(crate) fn forget_resting(&mut self, server: ServerIndex, since_us: u64, cx: &mut Context) {
        for position in 0..self.pool.servers[server].conns.len() {
            let index = self.pool.servers[server].conns[position];
            let conn = self.pool.conns.at(index);
            let heard_us = conn.history.answered_us.max(conn.contact.connected_us);
            if conn.state() == ConnState::Ready && conn.entries.is_empty() && heard_us < since_us {
                self.end(index, Ending::ours(UpstreamEnd::Unacknowledged), cx);
            }
        }
    }
}

impl Pool {
    /// The time of [`Unheard::on_sent`] is up.
    pub(super) fn check_unheard(&mut self, index: ConnKey, cx: &mut Context) {
        let now_us = cx.now_us;
        let conn = self.conns.at_mut(index);
        conn.unheard.due_us = u64::MAX;
        let due_us = conn.unheard.since_us.saturating_add(UNHEARD_US);
        if due_us == u64::MAX {
            return;
        }
        if due_us > now_us {
            self.arm_unheard(index, due_us, cx);
        } else if let Some(socket) = conn.socket {
            let token = self.conn_token(index);
            cx.actions.push_back(Action::ExamineUpstream { token, socket });
        }
    }

    fn arm_unheard(&mut self, index: ConnKey, due_us: u64, cx: &mut Context) {
        self.conns.at_mut(index).unheard.due_us = due_us;
        self.arm_conn(index, due_us, cx);
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a loss is dated by the first request that can't have arrived. How: one connection,
    //! step by step.

    use super::*;
    use crate::base::keys::{ExchangeKey, Key};
    use crate::request::pending_request::{ExchangeId, RequestFlags};
    use crate::upstream::queue::tests::request;

    fn send(conn: &mut UpstreamConn, now_us: u64) {
        let id = ExchangeId { worker: 0, index: ExchangeKey::new(0), generation: 0 };
        conn.push(request(id, RequestFlags::PIPELINABLE, 0).ask, 0, now_us);
        conn.unheard.on_sent(now_us);
    }

    #[test]
    fn what_is_lost_is_dated_by_the_first_that_can_not_have_arrived() {
        let mut conn = UpstreamConn::new(ServerIndex::new(0), 0, 0);
        send(&mut conn, 1_000);
        send(&mut conn, 1_200);
        assert_eq!(conn.lost_since_us(), 1_000, "nothing was heard since");
        conn.unheard.on_heard(1_500);
        send(&mut conn, 2_000);
        send(&mut conn, 3_000);
        assert_eq!(conn.lost_since_us(), 2_000, "those before may have arrived");
        conn.unheard.on_heard(4_000);
        assert_eq!(conn.lost_since_us(), 4_000, "all may have");
    }
}
