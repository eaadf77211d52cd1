//! Connections set aside: a client that takes its answer slowly keeps nobody else from a server.
//!
//! A connection whose reading has stopped for [`STALL_US`] while others need it leaves the pool and is replaced at once;
//! safe requests that were sent behind the slow answer are sent again elsewhere, and their answers on this connection are
//! thrown away. It ends with its last wanted answer. Without this, answers that wait for each other's clients could also
//! wait in a circle. Bound: [`ASIDE_MAX`] for each server and worker; beyond it the others wait.

use super::Engine;
use crate::ask::Ask;
use crate::link::{Link, LinkState};

/// How long an answer may stand still while others need its connection. A client that reads at all clears the
/// bytes that stopped it sooner than this.
pub(super) const STALL_US: u64 = 100_000;
/// Connections of one server set aside at a time.
const ASIDE_MAX: u32 = 1_000;

/// Whether a slow answer to `slow` keeps `other` from being answered. The client's own later requests have to wait for
/// that answer anyway: on a connection each, they would only cost connections.
pub(super) fn keeps_up(slow: &Ask, other: &Ask) -> bool {
    slow.client != other.client || other.precedes(slow)
}

impl Engine {
    /// The reading of a connection was stopped: looks again later whether it still is.
    pub(super) fn watch_stall(&mut self, index: u32) {
        let link = self.links.at_mut(index);
        link.paused_us = self.now_us;
        if link.owner.is_none()
            && link.stall_due_us == u64::MAX
            && matches!(link.state, LinkState::Ready | LinkState::Aside)
        {
            self.arm_stall(index, self.now_us + STALL_US);
        }
    }

    /// The time of [`Engine::watch_stall`] is up.
    pub(super) fn check_stall(&mut self, index: u32) {
        let link = self.links.at_mut(index);
        link.stall_due_us = u64::MAX;
        if !link.paused {
            return self.check_queue(index);
        }
        let due_us = link.paused_us + STALL_US;
        let Some(front) = link.entries.front().map(|entry| entry.ask) else { return };
        let behind = link.entries.iter().skip(1).any(|entry| !entry.cancelled && keeps_up(&front, &entry.ask));
        let aside = link.state == LinkState::Aside;
        let server = &self.servers[link.server as usize];
        let needed = behind || !aside && server.waiting.iter().any(|waiting| keeps_up(&front, &waiting.ask));
        if due_us <= self.now_us && needed && aside {
            // Its slow answer is another one now: requests that could stay behind the first may have to go.
            self.move_on(index);
        } else if due_us <= self.now_us && needed && server.aside < ASIDE_MAX {
            self.set_aside(index);
        } else {
            self.arm_stall(index, due_us.max(self.now_us + STALL_US));
        }
    }

    pub(super) fn arm_stall(&mut self, index: u32, due_us: u64) {
        self.links.at_mut(index).stall_due_us = due_us;
        self.arm_link(index, due_us);
    }

    /// The connection leaves the pool with the answer under way; another takes its place.
    fn set_aside(&mut self, index: u32) {
        let link = self.links.at_mut(index);
        link.state = LinkState::Aside;
        let (server, position) = (link.server as usize, link.position);
        self.counters.set_aside.add(1);
        self.counters.upstream_connections.sub(1);
        self.servers[server].aside += 1;
        self.servers[server].ready -= 1;
        self.replace_link(server, position, "set-aside");
        self.move_on(index);
    }

    /// Requests that the slow answer keeps up are sent again elsewhere.
    fn move_on(&mut self, index: u32) {
        let link = self.links.at_mut(index);
        let server = link.server as usize;
        let Some(front) = link.entries.front().map(|entry| entry.ask) else { return };
        let moved = link.take_behind(|ask| keeps_up(&front, ask));
        let count = moved.len() as u64;
        self.counters.resends.add(count);
        self.servers[server].stats.resends.add(count);
        self.send_elsewhere(moved);
        self.dispatch_group(server);
    }

    /// Requests that leave their connection, oldest first, get in line for another.
    pub(super) fn send_elsewhere(&mut self, moved: Vec<(Ask, Vec<u8>)>) {
        for (ask, bytes) in moved.into_iter().rev() {
            if !self.is_gone(ask.id) {
                self.place_again(ask, bytes);
            }
        }
    }

    /// Puts a new connection into the place of one that left the pool.
    pub(super) fn replace_link(&mut self, server: usize, position: u32, why: &'static str) {
        let mut fresh = Link::new(server as u32, position, self.now_us);
        let old = self.links.at(self.servers[server].links[position as usize]);
        fresh.closes = old.closes;
        fresh.note_close(why);
        let (fresh, _) = self.links.insert(fresh);
        self.servers[server].links[position as usize] = fresh;
        let link = self.links.at_mut(fresh);
        self.servers[server].refresh(link, self.now_us);
        self.publish_ready(server);
        self.connect(fresh);
    }

    /// Whether a connection that was set aside has nothing more to do.
    pub(super) fn is_aside_done(&self, index: u32) -> bool {
        let link = self.links.at(index);
        link.state == LinkState::Aside && link.entries.iter().all(|entry| entry.cancelled)
    }

    /// Ends a connection that was set aside.
    pub(super) fn remove_aside(&mut self, index: u32) {
        let link = self.links.remove(index);
        self.servers[link.server as usize].aside -= 1;
        if let Some(socket) = link.socket {
            self.actions.push_back(super::Action::CloseLink { socket });
        }
    }
}
