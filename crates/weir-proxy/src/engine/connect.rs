//! Connections to servers made and replaced: exactly as many as configured, at the pace of back-off; and a server that
//! is down looked for every second (stage forward). semantics.md §4.

use super::orders::NEVER_US;
use super::{Action, Engine, Owner, token};
use crate::event::What;
use crate::link::LinkState;

/// While a worker has no connection to a server, it tries at least this often, whatever the back-off says: a server that
/// is there again gets requests within a second.
const SCOUT_US: u64 = 800_000;

impl Engine {
    pub(super) fn connect(&mut self, index: u32) {
        let link = self.links.at_mut(index);
        let server = &mut self.servers[link.server as usize];
        if !server.standing.keeps_connections() {
            link.state = LinkState::Down { retry_us: NEVER_US };
            return;
        }
        if let Err(retry_us) = server.pacer.admit(self.now_us) {
            link.state = LinkState::Down { retry_us };
            self.arm_link(index, retry_us);
            return;
        }
        server.stats.connects.add(1);
        let upstream = &self.plan.upstreams[usize::from(server.upstream)];
        let address = upstream.servers[usize::from(server.index)].address;
        let deadline_us = self.now_us + upstream.connect_timeout_us;
        let now_us = self.now_us;
        let link = self.links.at_mut(index);
        link.state = LinkState::Connecting { deadline_us };
        link.since_us = now_us;
        link.scouting = link.due_us > now_us;
        self.arm_link(index, deadline_us);
        self.counters.upstream_connects.add(1);
        let token = token(Owner::Link, index, self.links.generation(index));
        self.actions.push_back(Action::Connect { token, address });
    }

    /// A connect has begun; `socket` is the driver's name for it. False: not wanted any more, close it.
    pub fn link_started(&mut self, token: u64, socket: u64) -> bool {
        match self.link_of(token) {
            Some(index) => {
                self.links.at_mut(index).socket = Some(socket);
                true
            }
            None => self.probe_started(token, socket),
        }
    }

    /// A connect has ended.
    pub fn link_connected(&mut self, token: u64, ok: bool) {
        let Some(index) = self.link_of(token) else { return self.probe_connected(token, ok) };
        if !ok {
            self.connect_failed(index);
            return;
        }
        if self.links.at(index).owner.is_some() {
            return self.own_connected(index);
        }
        let now_us = self.now_us;
        let link = self.links.at_mut(index);
        let Some(socket) = link.socket else { return };
        link.state = LinkState::Ready;
        (link.connected_us, link.since_us) = (now_us, now_us);
        link.receiving = true;
        let position = link.server as usize;
        self.actions.push_back(Action::ReceiveLink { socket });
        self.counters.upstream_connections.add(1);
        let server = &mut self.servers[position];
        // A connection that was closed and made again is not a server that was away.
        let revived = server.ready == 0 && server.failures > 0;
        server.failures = 0;
        server.unreachable = false;
        server.ready += 1;
        server.locate(link.position, None);
        link.probation |= server.scouts();
        server.refresh(link, now_us);
        if revived {
            self.server_recovered(position);
            self.probe_soon(position as u32);
        }
        if std::mem::take(&mut self.servers[position].told_unreachable) {
            self.note_event(position as u32, What::Reachable);
        }
        self.publish_ready(position);
        self.dispatch(position);
    }

    pub(super) fn connect_timed_out(&mut self, index: u32) {
        self.counters.timeouts.count("connect");
        self.connect_failed(index);
    }

    pub(super) fn connect_failed(&mut self, index: u32) {
        if self.links.at(index).owner.is_some() {
            return self.own_failed(index);
        }
        self.counters.upstream_connect_failures.add(1);
        let link = self.links.at_mut(index);
        link.note_close("connect-failed");
        let (server, attempts) = (link.server as usize, link.backoff.attempts());
        self.disconnect(index);
        let machine = &mut self.servers[server];
        machine.stats.connect_failures.add(1);
        machine.stats.closes.count("connect-failed");
        machine.failures = machine.failures.max(attempts);
        machine.unreachable = machine.ready == 0;
        if machine.unreachable && self.should_evacuate(server) {
            self.evacuate(server);
        }
        self.tell_unreachable(server);
    }

    /// Has the log say that a server can't be reached, once, by the worker that judges it.
    pub(super) fn tell_unreachable(&mut self, server: usize) {
        let judged = self.judge_of(server as u32) == self.worker;
        let machine = &self.servers[server];
        let news = judged && machine.unreachable && !machine.told_unreachable;
        if news && self.ready_elsewhere(server).is_none() {
            self.servers[server].told_unreachable = true;
            self.note_event(server as u32, What::Unreachable);
        }
    }

    /// Closes the socket if there is one and sets the time of the next try.
    pub(super) fn disconnect(&mut self, index: u32) {
        let link = self.links.at_mut(index);
        if let Some(socket) = link.socket.take() {
            self.actions.push_back(Action::CloseLink { socket });
        }
        let position = link.server as usize;
        let parked = !self.servers[position].standing.keeps_connections();
        let ahead_of_time = link.scouting && link.due_us > self.now_us;
        let retry_us = if parked {
            NEVER_US
        } else if ahead_of_time {
            link.due_us
        } else {
            self.now_us + link.backoff.next_delay_us(self.seed ^ u64::from(index))
        };
        link.reset(retry_us, self.now_us);
        let server = &mut self.servers[position];
        server.refresh(link, self.now_us);
        self.links.renew(index);
        if parked {
            return;
        }
        if retry_us <= self.now_us {
            self.connect(index);
        } else {
            self.arm_link(index, retry_us);
            self.look_out(position);
        }
    }

    /// Makes sure that a server without connections is tried again soon, by the first of them.
    fn look_out(&mut self, server: usize) {
        let machine = &mut self.servers[server];
        if machine.ready > 0 {
            return;
        }
        machine.was_down = true;
        let soon_us = self.now_us + SCOUT_US;
        let first = machine.links[0];
        let link = self.links.at_mut(first);
        if matches!(link.state, LinkState::Down { retry_us } if retry_us > soon_us) {
            link.state = LinkState::Down { retry_us: soon_us };
            self.arm_link(first, soon_us);
        }
    }

    /// A server that was down has answered: all its connections are due now. Not earlier, because something in front of it
    /// may accept and close.
    pub(super) fn follow_scout(&mut self, server: usize) {
        self.servers[server].was_down = false;
        if !self.servers[server].standing.keeps_connections() {
            return;
        }
        for position in 0..self.servers[server].links.len() {
            let index = self.servers[server].links[position];
            if matches!(self.links.at(index).state, LinkState::Down { .. }) {
                self.connect(index);
            }
        }
    }

    pub(super) fn publish_ready(&self, server: usize) {
        if self.servers[server].private {
            // No other worker may use them.
            return;
        }
        self.hints.set_ready(server, usize::from(self.worker), self.servers[server].ready);
    }
}
