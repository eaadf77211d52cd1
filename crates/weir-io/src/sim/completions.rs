//! Turns arrivals and commands into completions, and a driver's turn into handing them out.
//!
//! Bounds: receive buffers of each class; one completion of a receive that is armed once.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use bytes::{Buf, Bytes, BytesMut};

use super::end::{EndId, Owner, What};
use super::kernel::{Kind, Sending, SocketState, Staged, class_index};
use super::release::let_go;
use super::world::{Listener, World};
use crate::{Class, Completion, Event, Payload, Receive, Socket};

/// Turns in a row that may neither get nor request anything while asking not to wait.
const SPINS_MAX: u32 = 1_000;

impl World {
    // What the network reports.

    pub(super) fn touch(&mut self, driver: usize, socket: Socket) {
        let driver = &mut self.drivers[driver];
        let Some(state) = driver.get_mut(socket) else { return };
        if !state.touched {
            state.touched = true;
            driver.touched.push(socket);
        }
    }

    /// Something arrived for a socket, or its way of receiving changed.
    pub(super) fn arrived(&mut self, driver: usize, socket: Socket) {
        // A relay moves bytes in turns, whatever the style.
        if self.settings.lazy
            || self.drivers[driver].get(socket).is_some_and(|state| state.relaying)
        {
            self.touch(driver, socket);
        } else {
            self.pump_receive(driver, socket);
        }
    }

    /// There may be room to write.
    pub(super) fn writable(&mut self, driver: usize, socket: Socket) {
        if self.drivers[driver].get(socket).is_some_and(|state| state.relaying) {
            self.touch(driver, socket);
        }
        self.pump_send(driver, socket);
    }

    pub(super) fn connected(&mut self, driver: usize, socket: Socket, result: io::Result<()>) {
        let driver_state = &mut self.drivers[driver];
        let Some(state) = driver_state.get_mut(socket) else { return };
        if let Kind::Stream { connected, .. } = &mut state.kind {
            *connected = result.is_ok();
        }
        driver_state.stage(socket, Event::Connected(result));
        self.arrived(driver, socket);
    }

    pub(super) fn backlogged(
        &mut self,
        driver: usize,
        socket: Socket,
        address: SocketAddr,
        end: EndId,
    ) {
        let me = Listener::Driver { driver, socket };
        let list = self.listeners.get_mut(&address);
        if let Some(listening) =
            list.and_then(|list| list.iter_mut().find(|listening| listening.by == me))
        {
            listening.backlog.push_back(end);
        }
        if self.settings.lazy {
            self.touch(driver, socket);
        } else {
            self.pump_accept(driver, socket);
        }
    }

    pub(super) fn receive_again(&mut self, driver: usize, socket: Socket) {
        if let Some(state) = self.drivers[driver].get_mut(socket) {
            state.held = false;
            self.arrived(driver, socket);
        }
    }

    pub(super) fn accept_again(&mut self, driver: usize, socket: Socket) {
        if let Some(SocketState { kind: Kind::Listener { pausing, .. }, .. }) =
            self.drivers[driver].get_mut(socket)
        {
            *pausing = false;
            self.pump_accept(driver, socket);
        }
    }

    // Completions.

    fn pump_accept(&mut self, driver: usize, socket: Socket) {
        loop {
            let Some(state) = self.drivers[driver].get(socket) else { return };
            let Kind::Listener { address, pausing: false } = state.kind else { return };
            let me = Listener::Driver { driver, socket };
            let list = self.listeners.get_mut(&address);
            let Some(mine) =
                list.and_then(|list| list.iter_mut().find(|listening| listening.by == me))
            else {
                return;
            };
            let Some(end) = mine.backlog.pop_front() else { return };
            let full = self.drivers[driver].open >= self.settings.sockets_max;
            if full || self.rng.chance(self.settings.faults.accept_failed) {
                mine.backlog.push_front(end);
                self.accept_failed(driver, socket);
                return;
            }
            self.accept(driver, socket, end);
        }
    }

    fn accept_failed(&mut self, driver: usize, socket: Socket) {
        let error = io::Error::from_raw_os_error(libc::EMFILE);
        self.drivers[driver].stage(socket, Event::AcceptFailed(error));
        if let Some(SocketState { kind: Kind::Listener { pausing, .. }, .. }) =
            self.drivers[driver].get_mut(socket)
        {
            *pausing = true;
        }
        let at_us = self.now_us + self.rng.between(10_000, 100_000);
        self.schedule(at_us, What::AcceptAgain { driver, socket });
    }

    fn accept(&mut self, driver: usize, listener: Socket, id: EndId) {
        let Some(end) = self.ends.get_mut(id) else { return };
        let peer = end.remote;
        let socket = self.drivers[driver].insert(0, Kind::Stream { end: id, connected: true });
        end.owner = Owner::Driver { driver, socket };
        self.drivers[driver].stage(listener, Event::Accepted { socket, peer });
    }

    pub(super) fn pump_receive(&mut self, driver: usize, socket: Socket) {
        while self.receive_once(driver, socket) {}
    }

    /// Makes one completion of the arrived bytes. False when none can be made now.
    fn receive_once(&mut self, driver: usize, socket: Socket) -> bool {
        let Some(state) = self.drivers[driver].get(socket) else { return false };
        let Kind::Stream { end: id, connected: true } = state.kind else { return false };
        let (Receive::Once(class) | Receive::Many(class)) = state.receive else { return false };
        if state.held || state.ended {
            return false;
        }
        let Some(end) = self.ends.get_mut(id) else { return false };
        if !end.readable() {
            return false;
        }
        if end.inbox.is_empty() {
            end.told = true;
            let event = if end.fin {
                Event::Ended
            } else {
                // Linux reports the error once: when a send had it already, the receive just ends.
                end.error
                    .take()
                    .map_or(Event::Ended, |e| Event::ReceiveFailed(io::Error::from_raw_os_error(e)))
            };
            let driver = &mut self.drivers[driver];
            if let Some(state) = driver.get_mut(socket) {
                state.ended = true;
            }
            driver.stage(socket, event);
            return false;
        }
        if self.drivers[driver].has_to_wait(socket, class) {
            self.starve(driver, socket);
            return false;
        }
        if self.rng.chance(self.settings.faults.buffers_out) {
            self.hold(driver, socket);
            return false;
        }
        self.take(driver, socket, id, class)
    }

    fn starve(&mut self, driver: usize, socket: Socket) {
        let starved = &mut self.drivers[driver].starved;
        if !starved.contains(&socket) {
            starved.push_back(socket);
            self.drivers[driver].stats.starved += 1;
        }
    }

    fn hold(&mut self, driver: usize, socket: Socket) {
        if let Some(state) = self.drivers[driver].get_mut(socket) {
            state.held = true;
        }
        let at_us = self.now_us + self.rng.between(1, 5_000);
        self.schedule(at_us, What::ReceiveAgain { driver, socket });
    }

    fn take(&mut self, driver: usize, socket: Socket, id: EndId, class: Class) -> bool {
        let Some(end) = self.ends.get_mut(id) else { return false };
        let driver_state = &mut self.drivers[driver];
        let pool = &driver_state.pools[class_index(class)];
        let most = end.inbox.len().min(pool.bytes);
        let short = self.rng.chance(self.settings.faults.short_read);
        let bytes = if short { 1 + self.rng.index(most) } else { most };
        let buffer = pool.lend(end.inbox[..bytes].to_vec());
        end.inbox.advance(bytes);
        let mut more = true;
        if let Some(state) = driver_state.get_mut(socket)
            && matches!(state.receive, Receive::Once(_))
        {
            state.receive = Receive::Off;
            more = false;
        }
        driver_state.stage(socket, Event::Received(buffer));
        self.acknowledge(id, bytes);
        more
    }

    /// Writes as much of a socket's payload as the network has room for.
    pub(super) fn pump_send(&mut self, driver: usize, socket: Socket) {
        loop {
            let Some(state) = self.drivers[driver].get_mut(socket) else { return };
            let Kind::Stream { end: id, .. } = state.kind else { return };
            let Some(Sending { payload: Some(payload), done }) = &mut state.sending else { return };
            let Some(end) = self.ends.get_mut(id) else {
                return self.sent(driver, socket, Some(libc::EPIPE));
            };
            if end.reset || end.shut {
                let errno = end.error.take().unwrap_or(libc::EPIPE);
                return self.sent(driver, socket, Some(errno));
            }
            let rest = length(payload) - *done;
            if rest == 0 {
                return self.sent(driver, socket, None);
            }
            let room = self.settings.window_bytes.saturating_sub(end.in_pipe);
            if room == 0 {
                end.blocked = true;
                return;
            }
            let most = rest.min(room);
            let short = most > 1 && self.rng.chance(self.settings.faults.short_write);
            let bytes = if short { 1 + self.rng.index(most - 1) } else { most };
            let piece = copy(payload, *done, bytes);
            let partial = *done == 0 && bytes < rest;
            *done += bytes;
            self.drivers[driver].stats.partial_sends += u64::from(partial);
            self.push(id, piece);
            if short {
                self.schedule(self.now_us + 1, What::Writable { end: id });
                return;
            }
        }
    }

    fn sent(&mut self, driver: usize, socket: Socket, errno: Option<i32>) {
        let driver = &mut self.drivers[driver];
        let Some(payload) = driver.get_mut(socket).and_then(|s| s.sending.as_mut()?.payload.take())
        else {
            return;
        };
        let result = errno.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)));
        if let Some(errno) = errno {
            driver.relay_failed(socket, errno);
        }
        driver.stage(socket, Event::Sent { payload, result });
    }

    // A turn.

    pub(super) fn driver_turn(
        &mut self,
        driver: usize,
        wait_us: Option<u64>,
        into: &mut Vec<Completion>,
    ) {
        self.now_us += self.rng.between(1, self.settings.turn_us_max.max(1));
        self.drivers[driver].stats.turns += 1;
        let now_us = self.now_us;
        self.trace.line(|| format!("{now_us:>12} driver {driver} turn, may wait {wait_us:?}"));
        let before = into.len();
        self.look(driver);
        let state = &mut self.drivers[driver];
        // The caller counts from the last time that it knows.
        let deadline_us = wait_us.map(|wait_us| state.now_us.saturating_add(wait_us));
        state.now_us = self.now_us;
        let asked = std::mem::take(&mut state.asked);
        if state.waker.woken.swap(false, Ordering::AcqRel) {
            state.stats.wakes += 1;
            into.push(Completion {
                token: 0,
                socket: Socket { index: 0, generation: 0 },
                event: Event::Woken,
            });
        }
        self.hand_out(driver, into);
        let_go(self, driver, into);
        let idle = into.len() == before && self.drivers[driver].ready.is_empty();
        self.park(driver, deadline_us, idle, asked);
    }

    /// Looks at all sockets that were noted.
    fn look(&mut self, driver: usize) {
        feed(self, driver);
        for socket in std::mem::take(&mut self.drivers[driver].touched) {
            if let Some(state) = self.drivers[driver].get_mut(socket) {
                state.touched = false;
            }
            self.pump_send(driver, socket);
            self.pump_receive(driver, socket);
            self.pump_accept(driver, socket);
            self.pump_relay(driver, socket);
        }
        carry_out_changes(self, driver);
    }

    fn hand_out(&mut self, driver: usize, into: &mut Vec<Completion>) {
        let mut late = Vec::new();
        for staged in std::mem::take(&mut self.drivers[driver].ready) {
            let stream = (staged.socket, matches!(staged.event, Event::Sent { .. }));
            let stays =
                self.drivers[driver].get(staged.socket).is_some_and(|state| state.releasing);
            if stays
                || late.contains(&stream)
                || self.rng.chance(self.settings.faults.late_completion)
            {
                late.push(stream);
                self.drivers[driver].ready.push_back(staged);
            } else {
                self.hand_out_one(driver, staged, into);
            }
        }
    }

    fn hand_out_one(&mut self, driver: usize, staged: Staged, into: &mut Vec<Completion>) {
        let Staged { socket, event } = staged;
        self.drivers[driver].count(&event);
        self.trace_event(driver, socket, &event);
        let Some(state) = self.drivers[driver].get_mut(socket) else {
            self.fail("a completion outlived its socket");
        };
        let (token, sent) = (state.token, matches!(event, Event::Sent { .. }));
        if sent {
            state.sending = None;
            if state.relaying {
                self.touch(driver, socket);
            }
        }
        into.push(Completion { token, socket, event });
    }

    pub(super) fn trace_event(&mut self, driver: usize, socket: Socket, event: &Event) {
        let (kind, detail) = match event {
            Event::Accepted { socket, .. } => (1, u64::from(socket.index)),
            Event::AcceptFailed(_) => (2, 0),
            Event::Connected(result) => (3, u64::from(result.is_ok())),
            Event::Received(bytes) => (4, bytes.len() as u64),
            Event::Ended => (5, 0),
            Event::ReceiveFailed(_) => (6, 0),
            Event::Sent { payload, result } => {
                (7, length(payload) as u64 * 2 + u64::from(result.is_ok()))
            }
            Event::Woken => (8, 0),
            Event::RelayEnded { moved, .. } => (9, moved.a_to_b + moved.b_to_a),
            Event::Released(released) => (10, released.rest.len() as u64),
        };
        for number in [self.now_us, driver as u64, u64::from(socket.index), kind, detail] {
            self.trace.number(number);
        }
        let (now_us, Socket { index, generation }) = (self.now_us, socket);
        self.trace.line(|| {
            const WORDS: [&str; 11] = [
                "",
                "accepted",
                "accept failed",
                "connected",
                "received",
                "ended",
                "failed",
                "sent",
                "woken",
                "relay ended",
                "released",
            ];
            let word = WORDS[kind as usize];
            format!("{now_us:>12} driver {driver} socket {index}.{generation} {word} {detail}")
        });
    }

    /// Decides when the next turn is due: at once, because this turn may have changed what its
    /// caller would wait for, or when something happens.
    fn park(&mut self, driver: usize, deadline_us: Option<u64>, idle: bool, asked: bool) {
        let now_us = self.now_us;
        let state = &mut self.drivers[driver];
        let due = deadline_us.is_some_and(|at_us| at_us <= now_us);
        state.parked = idle && !due;
        state.deadline_us = deadline_us;
        state.spins = if idle && due && !asked { state.spins + 1 } else { 0 };
        if state.spins > SPINS_MAX {
            self.fail(
                "the driver's owner spins: turns without waiting that neither get nor ask anything",
            );
        }
    }
}

/// Reads sockets as they are now configured. Arrived bytes are received in this turn, as by a
/// receive of io_uring that finds bytes when it is submitted, or in a later one.
pub(super) fn carry_out_changes(world: &mut World, driver: usize) {
    for socket in std::mem::take(&mut world.drivers[driver].changed) {
        let Some(state) = world.drivers[driver].get_mut(socket) else { continue };
        let Some(how) = state.wanted.take() else { continue };
        state.receive = how;
        if world.rng.chance(world.settings.faults.late_arm) {
            world.touch(driver, socket);
        } else {
            world.pump_receive(driver, socket);
        }
    }
}

/// Gives buffers to sockets that wait for them, oldest first, one each.
fn feed(world: &mut World, driver: usize) {
    for socket in std::mem::take(&mut world.drivers[driver].starved) {
        if world.receive_once(driver, socket) {
            world.touch(driver, socket);
        }
    }
}

fn length(payload: &Payload) -> usize {
    match payload {
        Payload::Owned(bytes) => bytes.len(),
        Payload::Shared(bytes) => bytes.len(),
        Payload::Vectored(list) => list.iter().map(Bytes::len).sum(),
    }
}

/// A part of a payload.
fn copy(payload: &Payload, from: usize, bytes: usize) -> Bytes {
    match payload {
        Payload::Owned(buffer) => Bytes::copy_from_slice(&buffer[from..from + bytes]),
        Payload::Shared(buffer) => buffer.slice(from..from + bytes),
        Payload::Vectored(list) => {
            let mut out = BytesMut::with_capacity(bytes);
            let mut skip = from;
            for part in list {
                let start = skip.min(part.len());
                let stop = part.len().min(start + bytes - out.len());
                out.extend_from_slice(&part[start..stop]);
                skip -= start;
            }
            out.freeze()
        }
    }
}
