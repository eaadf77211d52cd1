//! The commands of a driver's owner to the simulated kernel. Called by [`super::SimDriver`];
//! effects that a real kernel would show later (bytes sent, bytes received) are left to
//! `completions.rs`.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use super::begun::local_of;
use super::end::{End, EndId, Owner};
use super::kernel::{Kind, Sending};
use super::world::{Listener, Listening, World};
use crate::{Event, Payload, Receive, Socket, Token};

impl World {
    pub(super) fn driver_listen(
        &mut self,
        driver: usize,
        address: SocketAddr,
        token: Token,
    ) -> Socket {
        let socket = self.drivers[driver].insert(token, Kind::Listener { address, pausing: false });
        let listening = Listening {
            by: Listener::Driver { driver, socket },
            backlog: VecDeque::new(),
            deaf: false,
        };
        self.listeners.entry(address).or_default().push(listening);
        socket
    }

    pub(super) fn driver_turn_away(&mut self, driver: usize, socket: Socket) {
        let me = Listener::Driver { driver, socket };
        let all = self.listeners.values_mut().flatten();
        all.filter(|listening| listening.by == me).for_each(|listening| listening.deaf = true);
    }

    /// `from`: its source address, which may belong to any machine; port 0 is any port of it.
    pub(super) fn driver_connect(
        &mut self,
        driver: usize,
        from: Option<SocketAddr>,
        to: SocketAddr,
        token: Token,
    ) -> io::Result<Socket> {
        let full = self.drivers[driver].open >= self.settings.sockets_max;
        if full || self.rng.chance(self.settings.faults.connect_failed) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let local = match from {
            None => self.new_local(Ipv4Addr::new(10, 2, 0, driver as u8)),
            Some(from) => local_of(self, from, to)?,
        };
        let end = self.ends.insert(End::new(Owner::Backlog, local, to));
        let socket = self.drivers[driver].insert(token, Kind::Stream { end, connected: false });
        if let Some(end) = self.ends.get_mut(end) {
            end.owner = Owner::Driver { driver, socket };
        }
        self.start_connect(end, to, true);
        Ok(socket)
    }

    pub(super) fn driver_receive(&mut self, driver: usize, socket: Socket, how: Receive) {
        if !matches!(how, Receive::Many(_)) && self.rng.chance(self.settings.faults.late_off) {
            self.pump_receive(driver, socket);
        }
        let now_us = self.now_us;
        self.trace.line(|| {
            format!(
                "{now_us:>12} driver {driver} socket {}.{} {how:?}",
                socket.index, socket.generation
            )
        });
        let state = self.drivers[driver]
            .get_mut(socket)
            .filter(|state| !state.relaying && !state.releasing);
        let Some(state) = state else { return };
        if how == Receive::Off {
            state.receive = Receive::Off;
        }
        if state.wanted.replace(how).is_none() {
            self.drivers[driver].changed.push(socket);
        }
    }

    pub(super) fn driver_send(&mut self, driver: usize, socket: Socket, payload: Payload) {
        let Some(state) = self.drivers[driver].get_mut(socket).filter(|state| !state.relaying)
        else {
            return;
        };
        if state.releasing {
            return;
        }
        let connected = matches!(state.kind, Kind::Stream { connected: true, .. });
        if state.sending.is_some() {
            self.fail("send while a send of the socket is in flight");
        }
        if !connected {
            self.fail("send on a socket that is not connected");
        }
        state.sending = Some(Sending { payload: Some(payload), done: 0 });
        self.touch(driver, socket);
    }

    pub(super) fn driver_shutdown_write(&mut self, driver: usize, socket: Socket) {
        let Some(state) =
            self.drivers[driver].get(socket).filter(|state| !state.relaying && !state.releasing)
        else {
            return;
        };
        if state.sending.is_some() {
            self.fail("shutdown_write while a send of the socket is in flight");
        }
        if let Kind::Stream { end, .. } = state.kind {
            self.shut_end(end);
        }
    }

    pub(super) fn driver_close(&mut self, driver: usize, socket: Socket, reset: bool) {
        let race = self.rng.chance(self.settings.faults.close_race);
        if race {
            self.pump_send(driver, socket);
        }
        self.drop_relay(driver, socket);
        let Some((state, staged)) = self.drivers[driver].remove(socket) else { return };
        match state.kind {
            Kind::Listener { address, .. } => self.close_listener(driver, socket, address),
            Kind::Stream { end, .. } => {
                let abort = race && self.bytes_on_the_way(end);
                // Bytes that the driver took and never handed out count as read for the kernel, or
                // as unread: a ring takes them, readiness leaves them.
                let unread = self.settings.lazy
                    && staged.iter().any(|s| matches!(s.event, Event::Received(_)));
                self.close_end(end, reset || abort || unread);
            }
        }
        for late in staged {
            if let Event::Accepted { socket, .. } = late.event {
                self.driver_close(driver, socket, false);
            }
        }
    }

    fn close_listener(&mut self, driver: usize, socket: Socket, address: SocketAddr) {
        let me = Listener::Driver { driver, socket };
        let Some(list) = self.listeners.get_mut(&address) else { return };
        let Some(at) = list.iter().position(|listening| listening.by == me) else { return };
        let gone = list.remove(at);
        if list.is_empty() {
            self.listeners.remove(&address);
        }
        for end in gone.backlog {
            self.close_end(end, true);
        }
    }

    fn bytes_on_the_way(&self, id: EndId) -> bool {
        let Some(end) = self.ends.get(id) else { return false };
        let Some(peer) = end.peer.and_then(|peer| self.ends.get(peer)) else { return false };
        peer.in_pipe > end.inbox.len()
    }
}
