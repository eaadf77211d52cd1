//! The work when a socket is ready: receive, send, accept, the end of a connect. Called by
//! [`super::Epoll::turn`].
//!
//! Bounds: `receives_per_turn` and `accepts_per_turn` for one socket, `small_bytes_per_turn` for
//! all, [`SEND_CALLS_MAX`] for one payload; a socket that has more moves to the end of the ready
//! list.

use std::io;
use std::os::fd::RawFd;

use crate::courtesy::LEFT_US;
use crate::descriptors::FULL_PAUSE_US;
use crate::net::{
    accept, concerns_one_connection, connect_result, is_unix, listen_again, receive, send,
};
use crate::outgoing::{Next, SLICES_MAX};
use crate::refused::PAUSE_US;
use crate::relay::Ready;
use crate::table::{self, NO_SEND};
use crate::{Class, Completion, Event, Receive, Socket, Token};

use super::poller::{self, BROKEN, HANGUP, IN, OUT};
use super::{
    BLOCKED, DEFERRED, Epoll, HANGING_UP, QUEUED, READABLE, UNTOLD, WATCHED, WATCHED_OUT, data_of,
};

/// Calls that a payload may take in a turn.
const SEND_CALLS_MAX: usize = 16;

/// The outcome of an attempt to receive.
enum Outcome {
    /// More bytes may follow at once.
    Again,
    /// Nothing is left for now.
    Dry,
    /// Over.
    End(Event),
}

impl Epoll {
    /// A connect that was started, or has failed already.
    pub(super) fn watch_connect(
        &mut self,
        fd: RawFd,
        started: io::Result<()>,
        token: Token,
    ) -> Socket {
        let socket = self.table.insert(fd, token);
        let slot = self.table.slot(socket.index);
        let mut outcome = started;
        if outcome.is_ok() {
            slot.set(WATCHED | WATCHED_OUT);
            outcome = self.poller.add(fd, data_of(socket), OUT);
        }
        match outcome {
            // The descriptor becomes writable when it is connected, at once if it is already.
            Ok(()) => slot.set(table::CONNECTING),
            Err(error) => {
                slot.set(table::ENDED);
                self.pending.push(Completion {
                    token,
                    socket,
                    event: Event::Connected(Err(error)),
                });
            }
        }
        socket
    }

    /// Handles one event of epoll.
    pub(super) fn on_ready(&mut self, socket: Socket, mask: u32, into: &mut Vec<Completion>) {
        let Some(slot) = self.table.occupant(socket.index, socket.generation) else { return };
        if slot.has(table::RELAYING) {
            self.relays.on_ready(socket, Ready::from_mask(mask));
        }
        if mask & (IN | HANGUP) != 0 {
            slot.set(READABLE);
        }
        if mask & HANGUP != 0 {
            slot.set(HANGING_UP);
        }
        if slot.has(table::CONNECTING) && mask & (OUT | BROKEN) != 0 {
            self.finish_connect(socket, into);
        } else if slot.has(BLOCKED) && mask & (OUT | BROKEN) != 0 {
            slot.clear(BLOCKED);
            self.transmit(socket, into);
        }
        let slot = self.table.slot(socket.index);
        if slot.has(READABLE) && !slot.has(QUEUED | table::CONNECTING) {
            self.serve(socket, into);
        }
    }

    fn finish_connect(&mut self, socket: Socket, into: &mut Vec<Completion>) {
        let slot = self.table.slot(socket.index);
        slot.clear(table::CONNECTING);
        let result = connect_result(slot.fd);
        if result.is_err() {
            slot.set(table::ENDED);
        }
        into.push(Completion { token: slot.token, socket, event: Event::Connected(result) });
    }

    /// Takes buffers back from other threads, and lets sockets that waited for them receive before
    /// all others.
    pub(super) fn feed(&mut self, class: Class) {
        let pool = &mut self.pools[class as usize];
        if self.scarce.is_empty(class) {
            return pool.collect();
        }
        pool.collect_or_starve();
        let count = pool.free();
        let mut fed = Vec::new();
        while fed.len() < count {
            let Some((place, socket)) = self.scarce.pop(class) else { break };
            let Some(slot) = self.table.named(socket) else { continue };
            slot.clear(table::STARVED);
            if slot.has(table::ENDED | table::TAKEN) {
                continue;
            }
            // Until it is received: those in front of it may use the buffers up, and it may be off.
            self.scarce.keep(place, socket);
            if slot.want() != Receive::Off {
                fed.push(socket);
            }
        }
        // To the front: one fast sender on the ready list may take all buffers, turn after turn.
        for socket in fed.into_iter().rev() {
            self.enqueue(socket);
            if self.ready.back() == Some(&socket) {
                self.ready.rotate_right(1);
            }
        }
    }

    /// Whether this turn has received as much into small buffers as it may.
    fn is_sated(&self) -> bool {
        self.small_bytes >= self.options.small_bytes_per_turn
    }

    /// One pass over the sockets that were ready at the start of it. Those that the turn has no
    /// room for remain in front.
    pub(super) fn receive_ready(&mut self, into: &mut Vec<Completion>) {
        for _ in 0..self.ready.len() {
            if self.is_sated() {
                return;
            }
            let Some(socket) = self.ready.pop_front() else { return };
            if let Some(slot) = self.table.named(socket) {
                slot.clear(QUEUED);
                self.serve(socket, into);
            }
        }
    }

    /// Receives or accepts within the limits of a turn.
    fn serve(&mut self, socket: Socket, into: &mut Vec<Completion>) {
        if self.table.slot(socket.index).has(table::LISTENER) {
            self.accept_some(socket, into);
        } else {
            self.receive_some(socket, into);
        }
        self.enqueue(socket);
    }

    fn receive_some(&mut self, socket: Socket, into: &mut Vec<Completion>) {
        for _ in 0..self.options.receives_per_turn {
            let slot = self.table.slot(socket.index);
            if slot.has(table::ENDED | table::STARVED) || !slot.has(READABLE) {
                return;
            }
            let (class, once) = match slot.want() {
                Receive::Off => return,
                Receive::Once(class) => (class, true),
                Receive::Many(class) => (class, false),
            };
            if class == Class::Small && self.is_sated() {
                return;
            }
            match self.receive_one(socket, class, once, into) {
                Outcome::Again => {}
                Outcome::Dry => return,
                Outcome::End(event) => {
                    let slot = self.table.slot(socket.index);
                    slot.set(table::ENDED);
                    // It needs no further looks either.
                    if slot.has(DEFERRED) {
                        slot.clear(DEFERRED);
                        self.later.leave(slot.fd);
                    }
                    into.push(Completion { token: slot.token, socket, event });
                    return;
                }
            }
        }
    }

    fn receive_one(
        &mut self,
        socket: Socket,
        class: Class,
        once: bool,
        into: &mut Vec<Completion>,
    ) -> Outcome {
        let slot = self.table.slot(socket.index);
        let pool = &mut self.pools[class as usize];
        let Some(id) = pool.take() else {
            self.stats.starved += 1;
            slot.set(table::STARVED);
            self.scarce.wait(class, socket);
            return Outcome::Dry;
        };
        self.scarce.forget(socket);
        self.stats.syscalls += 1;
        // SAFETY: the buffer belongs to the pool until it is lent, and has the length that the pool
        // says.
        let result = unsafe { receive(slot.fd, pool.address(id), pool.size() as usize) };
        match result {
            Ok(0) => {
                pool.put(id);
                Outcome::End(Event::Ended)
            }
            Ok(len) => {
                self.stats.receives += 1;
                self.small_bytes += if class == Class::Small { len } else { 0 };
                let event = Event::Received(pool.lend(id, len as u32));
                into.push(Completion { token: slot.token, socket, event });
                if once {
                    slot.set_want(Receive::Off);
                }
                // A short receive has emptied the socket, and an edge announces later bytes; but an
                // end that was announced already would not be announced again.
                if len < pool.size() as usize && !slot.has(HANGING_UP) {
                    slot.clear(READABLE);
                    return Outcome::Dry;
                }
                Outcome::Again
            }
            Err(error) => {
                pool.put(id);
                match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        slot.clear(READABLE);
                        Outcome::Dry
                    }
                    io::ErrorKind::Interrupted => Outcome::Again,
                    _ => Outcome::End(Event::ReceiveFailed(error)),
                }
            }
        }
    }

    /// Tries the sends that were queued since the last turn.
    pub(super) fn send_unsent(&mut self, into: &mut Vec<Completion>) {
        let mut unsent = std::mem::take(&mut self.unsent);
        for socket in unsent.drain(..) {
            if self.table.named(socket).is_some() {
                self.transmit(socket, into);
            }
        }
        // Those that used up their calls queued themselves again.
        std::mem::swap(&mut unsent, &mut self.unsent);
        self.unsent.append(&mut unsent);
    }

    /// Sends as much of a payload as the kernel takes.
    fn transmit(&mut self, socket: Socket, into: &mut Vec<Completion>) {
        for call in 0..SEND_CALLS_MAX {
            let slot = self.table.slot(socket.index);
            let Some(outgoing) = self.sends.get(slot.send) else { return };
            let mut slices =
                [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; SLICES_MAX];
            let (result, offered) = match outgoing.next() {
                Next::Nothing => return self.finish_send(socket, Ok(()), into),
                // SAFETY: the range is part of the payload, which remains in `sends`.
                Next::One(start, len) => (unsafe { send(slot.fd, start, len, false) }, len),
                Next::Several => {
                    let count = outgoing.fill(&mut slices);
                    let offered = slices[..count].iter().map(|slice| slice.iov_len).sum();
                    // SAFETY: the slices are parts of the payload, which remains in `sends`.
                    (unsafe { poller::send_slices(slot.fd, &mut slices, count) }, offered)
                }
            };
            self.stats.syscalls += 1;
            match result {
                Ok(taken) => {
                    if outgoing.advance(taken) {
                        return self.finish_send(socket, Ok(()), into);
                    }
                    self.stats.partial_sends += u64::from(call == 0);
                    if taken < offered {
                        return self.block(socket, into);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.block(socket, into);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.finish_send(socket, Err(error), into),
            }
        }
        self.unsent.push(socket);
    }

    /// The kernel's buffer is full: an edge will report when it has room.
    fn block(&mut self, socket: Socket, into: &mut Vec<Completion>) {
        let slot = self.table.slot(socket.index);
        slot.set(BLOCKED);
        if let Err(error) = self.watch_both(socket) {
            self.finish_send(socket, Err(error), into);
        }
    }

    fn finish_send(&mut self, socket: Socket, result: io::Result<()>, into: &mut Vec<Completion>) {
        let slot = self.table.slot(socket.index);
        slot.clear(BLOCKED);
        let send = std::mem::replace(&mut slot.send, NO_SEND);
        let Some(outgoing) = self.sends.remove(send) else { return };
        self.stats.sends += u64::from(result.is_ok());
        if slot.has(table::RELAYING) {
            self.relays.send_is_over(socket, &result);
        }
        let event = Event::Sent { payload: outgoing.into_payload(), result };
        into.push(Completion { token: slot.token, socket, event });
    }

    fn accept_some(&mut self, listener: Socket, into: &mut Vec<Completion>) {
        if self
            .paused
            .iter()
            .any(|(paused, until_us)| *paused == listener && *until_us > self.now_us)
        {
            // It is checked when the pause ends.
            return self.table.slot(listener.index).clear(READABLE);
        }
        let slot = self.table.slot(listener.index);
        let (fd, token, is_deaf) = (slot.fd, slot.token, slot.has(table::DEAF));
        let is_shared = || self.options.shared_listeners || is_unix(fd);
        if !self.courtesy.takes_up(listener.index)
            && self.courtesy.leaves(listener.index, is_shared, self.now_us)
        {
            self.table.slot(listener.index).clear(READABLE);
            return self.paused.push((listener, self.now_us + LEFT_US));
        }
        let mut some = false;
        for _ in 0..self.options.accepts_per_turn {
            if self.table.is_full() {
                let error = io::Error::from_raw_os_error(libc::EMFILE);
                return self.hold_back(listener, token, error, FULL_PAUSE_US, into);
            }
            self.stats.syscalls += 1;
            match accept(fd, true) {
                Ok((accepted, peer)) => {
                    if is_deaf {
                        listen_again(accepted);
                    }
                    self.stats.accepts += 1;
                    let socket = self.table.insert_fresh(accepted, listener);
                    self.refused.came(listener.index);
                    some = true;
                    into.push(Completion {
                        token,
                        socket: listener,
                        event: Event::Accepted { socket, peer },
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.table.slot(listener.index).clear(READABLE);
                    if some && self.refused.pauses(listener.index) {
                        self.stats.accept_pauses += 1;
                        self.poller.remove(fd);
                        self.table.slot(listener.index).set(UNTOLD);
                        self.paused.push((listener, self.now_us + PAUSE_US));
                    }
                    return;
                }
                Err(error) if error.raw_os_error().is_some_and(concerns_one_connection) => {}
                Err(error) => {
                    return self.hold_back(
                        listener,
                        token,
                        error,
                        self.options.accept_pause_us,
                        into,
                    );
                }
            }
        }
    }

    /// Pauses accepting, and reports the error.
    fn hold_back(
        &mut self,
        listener: Socket,
        token: Token,
        error: io::Error,
        pause_us: u64,
        into: &mut Vec<Completion>,
    ) {
        self.stats.accept_failures += 1;
        self.table.slot(listener.index).clear(READABLE);
        self.paused.push((listener, self.now_us + pause_us));
        into.push(Completion { token, socket: listener, event: Event::AcceptFailed(error) });
    }
}
