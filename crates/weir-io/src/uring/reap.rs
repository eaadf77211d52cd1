//! Handles the completions of the ring. Called by [`super::Uring::turn`] and on drop.
//!
//! Each handler first updates what is in flight, then delivers, then makes the socket match the
//! wanted mode.

use std::io;

use crate::courtesy::LEFT_US;
use crate::descriptors::FULL_PAUSE_US;
use crate::net::{
    accept, accept_queue, close_fd, concerns_one_connection, connect_result, listen_again,
    peer_address,
};
use crate::refused::PAUSE_US;
use crate::relay::Ready;
use crate::table::{self, NO_SEND};
use crate::{Class, Completion, Driver, Event, Receive, RecvBuf, Socket, Token};

use super::operations::{Kind, decode};
use super::ring::Entry;
use super::{
    ACCEPTING, ARMED, ARMED_LARGE, CANCELLING, DEFERRED, DRAINED, FED, HANDED_OVER, ODD, POLLED,
    POLLING, SHARED, Uring,
};

/// Most connections that are taken from a listener at a path that is handed over: its queue has no
/// more.
const REST_MAX: u32 = 65_535;

impl Uring {
    /// Handles what the kernel has posted, up to the limit of a turn; returns how many.
    pub(super) fn reap(&mut self, into: &mut Vec<Completion>) -> usize {
        let mut entries = std::mem::take(&mut self.entries);
        self.ring.reap(self.options.completions_per_turn, &mut entries);
        let count = entries.len();
        self.is_behind = count >= self.options.completions_per_turn;
        for entry in entries.drain(..) {
            let (kind, socket) = decode(entry.user_data);
            match kind {
                Kind::Receive => self.on_receive(socket, entry, into),
                Kind::Send => self.on_send(socket, entry, into),
                Kind::Accept => self.on_accept(socket, entry, into),
                Kind::Connect => self.on_connect(socket, entry, into),
                Kind::CancelEven => self.on_cancel(socket, false),
                Kind::CancelOdd => self.on_cancel(socket, true),
                Kind::Relay => self.on_relay_ready(socket, entry),
                Kind::Wake if !entry.more() => self.watch_wake(),
                Kind::Wake | Kind::Ignored => {}
            }
        }
        self.entries = entries;
        for class in [Class::Small, Class::Large] {
            for socket in self.sated[class as usize].drain(..) {
                self.scarce.wait(class, socket);
            }
        }
        count
    }

    fn on_receive(&mut self, socket: Socket, entry: Entry, into: &mut Vec<Completion>) {
        let Some(slot) = self.table.occupant(socket.index, socket.generation) else {
            debug_assert!(false, "a slot outlives its operations");
            return;
        };
        let class = if slot.has(ARMED_LARGE) { Class::Large } else { Class::Small };
        if !entry.more() {
            slot.clear(ARMED | CANCELLING);
        }
        let (token, closing, relaying) =
            (slot.token, slot.has(table::CLOSING), slot.has(table::RELAYING));
        let releasing = slot.has(table::RELEASING);
        let buffer = self.filled(class, entry, closing);
        if closing {
            if !entry.more() {
                self.free(socket.index);
            }
            return;
        }
        if releasing {
            return self.received_last(socket, entry, buffer);
        }
        if relaying {
            self.deliver_to_relay(socket, entry, buffer);
        } else {
            self.deliver(socket, token, class, entry.result, buffer, into);
        }
        // A receive that continues needs nothing: whatever it should be instead, its cancellation
        // is on the way.
        if !entry.more() {
            self.change(socket);
            // More may be there than one buffer holds.
            if entry.result as u32 == self.groups[class as usize].pool.size()
                && self.is_deferred(socket)
            {
                self.receive_deferred(socket);
            }
        }
    }

    /// The buffer that came with a completion, if it holds wanted bytes.
    fn filled(&mut self, class: Class, entry: Entry, unwanted: bool) -> Option<RecvBuf> {
        let id = entry.buffer()?;
        let group = &mut self.groups[class as usize];
        group.consumed();
        if unwanted || entry.result <= 0 {
            group.pool.put(id);
            return None;
        }
        if class == Class::Small {
            self.small_bytes += entry.result as usize;
        }
        Some(group.pool.lend(id, entry.result as u32))
    }

    /// A receive from before the relay.
    fn deliver_to_relay(&mut self, socket: Socket, entry: Entry, buffer: Option<RecvBuf>) {
        match (buffer, -entry.result) {
            (Some(buffer), _) => {
                self.relays.received(socket, &buffer);
                self.recycle(buffer);
            }
            (None, 0) => self.relays.source_ended(socket),
            (None, libc::ENOBUFS | libc::ECANCELED | libc::EINTR | libc::EAGAIN) => {}
            (None, code) => self.relays.failed(socket, &io::Error::from_raw_os_error(code)),
        }
        if !entry.more() {
            self.relays.receive_is_over(socket);
        }
    }

    /// A socket of a relay may be ready.
    fn on_relay_ready(&mut self, socket: Socket, entry: Entry) {
        let Some(slot) = self.table.occupant(socket.index, socket.generation) else {
            debug_assert!(false, "a slot outlives its operations");
            return;
        };
        if !entry.more() {
            slot.clear(POLLING);
        }
        if slot.has(table::CLOSING) {
            if !entry.more() {
                self.free(socket.index);
            }
            return;
        }
        match entry.result {
            mask if mask >= 0 => self.relays.on_ready(socket, Ready::from_mask(mask as u32)),
            code => self.relays.failed(socket, &io::Error::from_raw_os_error(-code)),
        }
        if !entry.more() && self.relays.moved(socket).is_some() && entry.result >= 0 {
            self.watch_relayed(socket);
        }
    }

    fn deliver(
        &mut self,
        socket: Socket,
        token: Token,
        class: Class,
        result: i32,
        buffer: Option<RecvBuf>,
        into: &mut Vec<Completion>,
    ) {
        if result != -libc::ENOBUFS {
            self.scarce.forget(socket);
        }
        let slot = self.table.slot(socket.index);
        let event = match (buffer, -result) {
            (Some(buffer), _) => {
                if matches!(slot.want(), Receive::Once(_)) {
                    slot.set_want(Receive::Off);
                }
                slot.set(FED);
                slot.clear(DRAINED);
                if (result as u32) < self.groups[class as usize].pool.size() {
                    slot.set(DRAINED);
                }
                self.stats.receives += 1;
                Event::Received(buffer)
            }
            (None, 0) => {
                self.receiving_ends(socket);
                Event::Ended
            }
            (None, libc::ENOBUFS) => return self.queue_for_buffer(socket, class),
            (None, libc::ECANCELED | libc::EINTR | libc::EAGAIN) => return,
            (None, code) => {
                self.receiving_ends(socket);
                Event::ReceiveFailed(io::Error::from_raw_os_error(code))
            }
        };
        into.push(Completion { token, socket, event });
    }

    /// Nothing more will be received, so no further looks are needed either.
    fn receiving_ends(&mut self, socket: Socket) {
        let slot = self.table.slot(socket.index);
        slot.set(table::ENDED);
        if slot.has(DEFERRED) {
            slot.clear(DEFERRED);
            self.later.leave(slot.fd);
        }
    }

    /// One call used up the buffers that the kernel had. Sockets that got some of them queue behind
    /// those that got none: one fast sender may take them all, call after call.
    fn queue_for_buffer(&mut self, socket: Socket, class: Class) {
        let slot = self.table.slot(socket.index);
        if slot.want() == Receive::Off || slot.has(table::STARVED) {
            return;
        }
        slot.set(table::STARVED);
        self.stats.starved += u64::from(self.groups[class as usize].pool.free() == 0);
        if slot.has(FED) {
            slot.clear(FED);
            self.sated[class as usize].push(socket);
        } else {
            self.scarce.wait(class, socket);
        }
    }

    /// A cancellation found nothing to cancel, or the receive was busy at that moment.
    fn on_cancel(&mut self, socket: Socket, odd: bool) {
        let Some(slot) = self.table.occupant(socket.index, socket.generation) else { return };
        // A cancellation that came too late for its receive says nothing about the next one. Each
        // would cause another cancellation, and their completions would delay those of receives.
        if !slot.has(ARMED) || slot.has(ODD) != odd {
            return;
        }
        // If its last completion is already on the way, trying again does no harm.
        if slot.has(table::CLOSING) {
            self.cancel_receive(socket);
        } else {
            slot.clear(CANCELLING);
            self.change(socket);
        }
    }

    fn on_send(&mut self, socket: Socket, entry: Entry, into: &mut Vec<Completion>) {
        let Some(slot) = self.table.occupant(socket.index, socket.generation) else {
            debug_assert!(false, "a slot outlives its operations");
            return;
        };
        let (token, send, closing) = (slot.token, slot.send, slot.has(table::CLOSING));
        let Some(outgoing) = self.sends.get(send) else { return };
        let result = match entry.result {
            _ if closing => Ok(()),
            taken if taken > 0 => {
                if !outgoing.advance(taken as usize) {
                    self.stats.partial_sends += 1;
                    return self.queue_send(socket);
                }
                self.stats.sends += 1;
                Ok(())
            }
            0 => Err(io::ErrorKind::WriteZero.into()),
            code if matches!(-code, libc::EINTR | libc::EAGAIN) => return self.queue_send(socket),
            code => Err(io::Error::from_raw_os_error(-code)),
        };
        let slot = self.table.slot(socket.index);
        slot.send = NO_SEND;
        let relaying = slot.has(table::RELAYING);
        let Some(outgoing) = self.sends.remove(send) else { return };
        if closing {
            return self.free(socket.index);
        }
        if relaying {
            self.relays.send_is_over(socket, &result);
        }
        let event = Event::Sent { payload: outgoing.into_payload(), result };
        into.push(Completion { token, socket, event });
    }

    fn on_connect(&mut self, socket: Socket, entry: Entry, into: &mut Vec<Completion>) {
        let Some(slot) = self.table.occupant(socket.index, socket.generation) else { return };
        slot.clear(table::CONNECTING);
        if slot.has(table::CLOSING) {
            return self.free(socket.index);
        }
        let result = match entry.result {
            ..0 => Err(io::Error::from_raw_os_error(-entry.result)),
            // For a connect that was begun elsewhere: its readiness, and not its outcome.
            _ => connect_result(slot.fd),
        };
        into.push(Completion { token: slot.token, socket, event: Event::Connected(result) });
    }

    fn on_accept(&mut self, listener: Socket, entry: Entry, into: &mut Vec<Completion>) {
        let Some(slot) = self.table.occupant(listener.index, listener.generation) else { return };
        if !entry.more() {
            slot.clear(ACCEPTING);
        }
        let (fd, token, closing) = (slot.fd, slot.token, slot.has(table::CLOSING));
        let (handed_over, is_polled) = (slot.has(HANDED_OVER) && !closing, slot.has(POLLED));
        let (mut code, mut rests) = (-entry.result, false);
        if entry.result >= 0 && !is_polled {
            self.on_connection(listener, entry.result, token, closing, into);
        } else if entry.result >= 0 && !closing && !handed_over && self.leaves_to_others(listener) {
            return self.paused.push((listener, self.now_us + LEFT_US));
        } else if entry.result >= 0 && !closing {
            (code, rests) = self.accept_some(listener, fd, token, into);
        }
        if entry.more() {
            if handed_over {
                self.cancel_ignored(Kind::Accept, listener);
            }
            return;
        }
        if closing {
            return self.free(listener.index);
        }
        if handed_over {
            self.accept_rest(listener, fd, token, into);
            return self.close(listener);
        }
        if rests && self.refused.pauses(listener.index) {
            self.stats.accept_pauses += 1;
            return self.paused.push((listener, self.now_us + PAUSE_US));
        }
        self.after_accepting(listener, token, code, into);
    }

    /// Continues to accept, or pauses because that failed.
    fn after_accepting(
        &mut self,
        listener: Socket,
        token: Token,
        code: i32,
        into: &mut Vec<Completion>,
    ) {
        // Cancelled: it is to continue with pauses.
        if code <= 0 || code == libc::ECANCELED || concerns_one_connection(code) {
            return self.arm_accept(listener);
        }
        self.stats.accept_failures += 1;
        let pause_us =
            if self.table.is_full() { FULL_PAUSE_US } else { self.options.accept_pause_us };
        self.paused.push((listener, self.now_us + pause_us));
        let error = io::Error::from_raw_os_error(code);
        into.push(Completion { token, socket: listener, event: Event::AcceptFailed(error) });
    }

    /// Whether the clients that wait at a listener are left to another driver for a moment.
    fn leaves_to_others(&mut self, listener: Socket) -> bool {
        let is_shared = self.table.slot(listener.index).has(SHARED);
        is_shared && self.courtesy.leaves(listener.index, || true, self.now_us)
    }

    /// Accepts the clients that were left to another driver and are still there.
    pub(super) fn take_up(&mut self, listener: Socket) {
        let Some(slot) = self.table.named(listener) else { return };
        let (fd, token) = (slot.fd, slot.token);
        let mut into = std::mem::take(&mut self.pending);
        let (code, _) = self.accept_some(listener, fd, token, &mut into);
        self.after_accepting(listener, token, code, &mut into);
        self.pending = into;
    }

    /// Takes waiting connections from a listener, up to the limit of a turn. Returns 0, or why
    /// accepting failed; it is no failure that another driver was faster. And whether no client is
    /// left.
    fn accept_some(
        &mut self,
        listener: Socket,
        fd: i32,
        token: Token,
        into: &mut Vec<Completion>,
    ) -> (i32, bool) {
        for _ in 0..self.options.accepts_per_turn {
            if self.table.is_full() {
                return (libc::EMFILE, false);
            }
            self.stats.syscalls += 1;
            match accept(fd, false) {
                Ok((accepted, _)) => self.on_connection(listener, accepted, token, false, into),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return (0, true),
                Err(error) => return (error.raw_os_error().unwrap_or(libc::EIO), false),
            }
        }
        (0, false)
    }

    /// Takes the waiting connections from a listener that is handed over. The kernel reports a
    /// connection to one process (io_uring accepts in turn): one that it has reported to this
    /// process, and not to the other, would wait until another one comes.
    fn accept_rest(&mut self, listener: Socket, fd: i32, token: Token, into: &mut Vec<Completion>) {
        // The queue at a path is not reported: all of it, then.
        let waiting = accept_queue(fd).map_or(REST_MAX, |queue| queue.waiting);
        for _ in 0..waiting {
            self.stats.syscalls += 1;
            match accept(fd, false) {
                Ok((accepted, _)) => self.on_connection(listener, accepted, token, false, into),
                Err(error)
                    if concerns_one_connection(error.raw_os_error().unwrap_or(libc::EIO)) => {}
                Err(_) => return,
            }
        }
    }

    fn on_connection(
        &mut self,
        listener: Socket,
        fd: i32,
        token: Token,
        closing: bool,
        into: &mut Vec<Completion>,
    ) {
        if closing {
            return close_fd(fd);
        }
        // It fails when the client has already reset the connection, and so has gone.
        let Ok(peer) = peer_address(fd) else { return close_fd(fd) };
        if self.table.slot(listener.index).has(table::DEAF) {
            listen_again(fd);
        }
        self.stats.accepts += 1;
        let socket = self.table.insert_fresh(fd, listener);
        let ends = self.refused.came(listener.index) || self.table.is_near_full();
        if ends && self.table.slot(listener.index).has(ACCEPTING) {
            self.cancel_ignored(Kind::Accept, listener);
        }
        into.push(Completion { token, socket: listener, event: Event::Accepted { socket, peer } });
    }
}
