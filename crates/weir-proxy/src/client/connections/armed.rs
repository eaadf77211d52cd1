//! One timer for each connection, set to the earliest of its deadlines. Called by
//! [`crate::client::Clients`] and [`crate::client::answer::Answers`]; the deadlines are in
//! `patience.rs` and `pace.rs`. Bound: an entry of the wheel for each connection.

use super::Connections;
use crate::base::keys::ClientKey;
use crate::client::connection::Reading;
use crate::client::pace::look_us;
use crate::context::Context;

impl Connections {
    /// Makes sure that the connection is looked at by its deadline.
    #[inline]
    pub(in crate::client) fn arm(&mut self, index: ClientKey, cx: &mut Context) {
        let mut due_us = self.deadline(index, cx);
        if due_us < u64::MAX {
            // A small send in between sets no timer, so no timer may be later than the limit of a
            // send.
            due_us = due_us.min(cx.now_us.saturating_add(cx.plan.client.send_timeout_us));
        }
        let mut index = index;
        loop {
            let conn = self.conns.at_mut(index);
            if due_us >= conn.armed_us {
                return;
            }
            conn.armed_us = due_us;
            // Streams have no timers in the wheel: their connection has one for all of them.
            let Some(stream) = conn.stream.as_deref() else { break };
            index = stream.carrier;
            if let Some(streams) = self.carriers.get_mut(index) {
                streams.due_us = streams.due_us.min(due_us);
            }
        }
        cx.wheel.insert(self.token(index), due_us);
    }

    /// The present deadline of a connection.
    #[inline]
    pub(in crate::client) fn deadline(&self, index: ClientKey, cx: &Context) -> u64 {
        let conn = self.conns.at(index);
        let look_us = look_us(self, index, cx);
        if conn.reading() == Reading::Frames {
            let streams = self.carriers.get(index);
            return streams
                .map_or(u64::MAX, |streams| streams.deadline(conn, &cx.plan.client))
                .min(look_us);
        }
        let due_us = conn.deadline(
            self.current(conn),
            || self.inward(conn),
            self.leaves_us(conn),
            &cx.plan.client,
        );
        due_us.min(self.tarpit.until_us(index)).min(look_us)
    }

    /// From here on a client waits for its server, which may time out before the timer that is set:
    /// that may be the timer for a send, or for an earlier request with a longer timeout.
    #[inline]
    pub(in crate::client) fn arm_awaited(&mut self, index: ClientKey, cx: &mut Context) {
        let conn = self.conns.at(index);
        let is_watched = conn.flags.ended || conn.flags.stopped;
        if is_watched
            || self.current(conn).is_some_and(|current| current.deadline_us < conn.armed_us)
        {
            self.arm(index, cx);
        }
    }
}
