//! Connections set aside: a client that takes its answer slowly keeps nobody else from a server.
//!
//! Nothing is sent behind an answer whose reading has stopped, and another connection may be made in its place
//! ([`crate::upstream::server::Server::may_grow`]). When it has stopped for [`STALL_US`], safe requests that were sent behind it are
//! sent again elsewhere, and their answers on this connection are thrown away. Without this, answers that wait for each other's
//! clients could also wait in a circle.

use super::Upstreams;
use super::pool::Pool;
use crate::base::keys::{ConnKey, ServerIndex};
use crate::context::Context;
use crate::ending::UpstreamEnd;
use crate::request::pending_request::PendingRequest;
use crate::upstream::connection::UpstreamConn;

/// How long an answer may stand still while others need its connection. A client that reads at all clears the
/// bytes that stopped it sooner than this.
pub(super) const STALL_US: u64 = 100_000;

/// Requests that are looked at to see whether another client's waits.
const YIELD_MAX: usize = 64;

/// Whether a slow answer to `slow` keeps `other` from being answered. The client's own later requests have to wait for
/// that answer anyway: on a connection each, they would only cost connections.
pub(super) fn keeps_up(slow: &PendingRequest, other: &PendingRequest) -> bool {
    slow.client != other.client || other.precedes(slow)
}

impl Upstreams {
    /// The time of [`Pool::watch_stall`] is up.
    pub(super) fn check_stall(&mut self, index: ConnKey, cx: &mut Context) {
        let link = self.pool.links.at_mut(index);
        link.reading.due_us = u64::MAX;
        if !link.reading.paused {
            return self.check_queue(index, cx);
        }
        let due_us = link.reading.paused_us + STALL_US;
        let Some(front) = link.entries.front().map(|entry| entry.ask) else { return };
        if due_us > cx.now_us {
            self.pool.arm_stall(index, due_us, cx);
            return;
        }
        let behind = link.entries.iter().skip(1).any(|entry| !entry.cancelled && keeps_up(&front, &entry.ask));
        let machine = &mut self.pool.servers[link.server];
        let awaited = machine.waiting.iter().any(|waiting| keeps_up(&front, &waiting.ask));
        if !behind && !awaited {
            self.pool.arm_stall(index, cx.now_us + STALL_US, cx);
            return;
        }
        cx.counters.set_aside.add(u64::from(!link.reading.stalled));
        (link.reading.yields, link.reading.stalled) = (true, true);
        machine.refresh(link, cx.now_us);
        let server = link.server;
        if behind {
            self.move_on(index, cx);
        } else {
            // Another one may be made in its place.
            self.dispatch(server, cx);
        }
        self.pool.arm_stall(index, cx.now_us + STALL_US, cx);
    }

    /// Requests that the slow answer keeps up are sent again elsewhere.
    fn move_on(&mut self, index: ConnKey, cx: &mut Context) {
        let link = self.pool.links.at_mut(index);
        let server = link.server;
        let Some(front) = link.entries.front().map(|entry| entry.ask) else { return };
        let moved = link.take_behind(|ask| keeps_up(&front, ask));
        let count = moved.len() as u64;
        cx.counters.resends.add(count);
        self.pool.servers[server].stats.resends.add(count);
        self.send_elsewhere(moved, cx);
        self.dispatch_group(server, cx);
    }

    /// Requests that leave their connection, oldest first, get in line for another.
    pub(super) fn send_elsewhere(&mut self, moved: Vec<(PendingRequest, Vec<u8>)>, cx: &mut Context) {
        for (ask, bytes) in moved.into_iter().rev() {
            if !self.cancelled.has(&ask) {
                self.place_again(ask, bytes, cx);
            }
        }
    }

    /// Puts another connection into the place of one that left the pool, to be made when it is needed.
    pub(super) fn replace_link(&mut self, server: ServerIndex, position: u32, why: UpstreamEnd, cx: &mut Context) {
        let mut fresh = UpstreamConn::new(server, position, u64::MAX);
        let old = self.pool.links.at(self.pool.servers[server].links[position as usize]);
        fresh.contact.closes = old.contact.closes;
        fresh.contact.note_close(why);
        (fresh.contact.due_us, fresh.contact.since_us) = (cx.now_us, cx.now_us);
        let (fresh, _) = self.pool.links.insert(fresh);
        self.pool.servers[server].links[position as usize] = fresh;
        let link = self.pool.links.at_mut(fresh);
        self.pool.servers[server].refresh(link, cx.now_us);
        self.pool.publish(server, cx);
        self.pool.keep_least(server, cx);
        self.dispatch(server, cx);
    }
}

impl Pool {
    /// The reading of a connection was stopped: looks again later whether it still is.
    pub(super) fn watch_stall(&mut self, index: ConnKey, cx: &mut Context) {
        let link = self.links.at_mut(index);
        link.reading.begin_pause(cx.now_us);
        if link.owner.is_none() && link.reading.due_us == u64::MAX && link.is_ready() {
            self.arm_stall(index, cx.now_us + STALL_US, cx);
        }
    }

    /// Connections whose clients do not read, while requests of others wait, may have others made in their place.
    pub(super) fn yield_paused(&mut self, server: ServerIndex, cx: &Context) {
        for index in self.servers[server].paused() {
            let link = self.links.at_mut(index);
            let Some(front) = link.entries.front().map(|entry| entry.ask) else { continue };
            let machine = &mut self.servers[server];
            link.reading.yields = machine.waiting.iter().take(YIELD_MAX).any(|waiting| keeps_up(&front, &waiting.ask));
            machine.refresh(link, cx.now_us);
        }
    }

    pub(super) fn arm_stall(&mut self, index: ConnKey, due_us: u64, cx: &mut Context) {
        self.links.at_mut(index).reading.due_us = due_us;
        self.arm_link(index, due_us, cx);
    }
}
