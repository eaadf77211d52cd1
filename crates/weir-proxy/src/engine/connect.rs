//! Connections to servers made and replaced: exactly as many as configured, at the pace of back-off (stage forward).

use super::orders::NEVER_US;
use super::{Action, Engine, Owner, token};
use crate::link::LinkState;

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
        let link = self.links.at_mut(index);
        link.state = LinkState::Connecting { deadline_us };
        link.since_us = self.now_us;
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
            None => false,
        }
    }

    /// A connect has ended.
    pub fn link_connected(&mut self, token: u64, ok: bool) {
        let Some(index) = self.link_of(token) else { return };
        if !ok {
            self.connect_failed(index);
            return;
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
        if server.ready == 0 && server.failures > 0 {
            server.recovered(now_us);
        }
        server.failures = 0;
        server.ready += 1;
        server.locate(link.position, None);
        server.refresh(link, now_us);
        self.publish_ready(position);
        self.dispatch(position);
    }

    pub(super) fn connect_timed_out(&mut self, index: u32) {
        self.counters.timeouts.count("connect");
        self.connect_failed(index);
    }

    pub(super) fn connect_failed(&mut self, index: u32) {
        self.counters.upstream_connect_failures.add(1);
        let link = self.links.at_mut(index);
        link.note_close("connect-failed");
        let (server, attempts) = (link.server as usize, link.backoff.attempts());
        self.disconnect(index);
        let machine = &mut self.servers[server];
        machine.stats.connect_failures.add(1);
        machine.stats.closes.count("connect-failed");
        machine.failures = machine.failures.max(attempts);
        if machine.ready == 0 && !machine.waiting.is_empty() && self.should_evacuate(server) {
            self.evacuate(server);
        }
    }

    /// Whether what waits for a server without connections should go elsewhere (or fail) now.
    pub(super) fn should_evacuate(&self, server: usize) -> bool {
        let group = self.groups[usize::from(self.servers[server].upstream)].servers.clone();
        !self.may_come_up(server) || group.into_iter().any(|other| other != server && self.may_take(other))
    }

    /// Closes the socket if there is one and sets the time of the next try.
    pub(super) fn disconnect(&mut self, index: u32) {
        let link = self.links.at_mut(index);
        if let Some(socket) = link.socket.take() {
            self.actions.push_back(Action::CloseLink { socket });
        }
        let server = &mut self.servers[link.server as usize];
        let parked = !server.standing.keeps_connections();
        let delay_us = link.backoff.next_delay_us(self.seed ^ u64::from(index));
        let retry_us = if parked { NEVER_US } else { self.now_us + delay_us };
        link.reset(retry_us, self.now_us);
        server.refresh(link, self.now_us);
        self.links.renew(index);
        if parked {
            return;
        }
        if retry_us <= self.now_us {
            self.connect(index);
        } else {
            self.arm_link(index, retry_us);
        }
    }

    pub(super) fn publish_ready(&self, server: usize) {
        self.hints.set_ready(server, usize::from(self.worker), self.servers[server].ready);
    }
}
