//! The io_uring driver: multishot accept and receive into provided buffers, one system call a turn.
//!
//! Made and used by one worker thread. Commands queue operations, [`Driver::turn`] submits and
//! reaps. `ring` is the shared memory, `group` the provided buffers; `operations` queues, `reap`
//! handles completions. Bounds: one receive, one send or one connect in flight for each socket;
//! completions a turn; buffers of the pools.
//!
//! A slot is reused only after the last completion of its occupant, and each operation carries the
//! generation.

mod group;
mod operations;
mod reap;
mod release;
mod ring;
mod scratch;

use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use io_uring::{opcode, squeue, types};

use crate::later::Later;
use crate::net::{
    accept_queue, acknowledge, clock_us, connect_unix, delivery, duplicate, is_unix, keep_alive,
    linger_zero, local_address, receiving_core, set_backlog, set_congestion, shutdown_write,
    turn_away,
};
use crate::outgoing::{Next, Outgoing, Sends};
use crate::refused::Refused;
use crate::relay::{Over, Relays, Start, TURN_US};
use crate::released::Releases;
use crate::scarce::Scarce;
use crate::table::{self, NO_SEND, OWN_BITS, Table};
use crate::wake::WakeState;
use crate::{
    AcceptQueue, Class, Completion, Courtesy, Delivery, Departure, Descriptors, Driver,
    DriverStats, Event, Loose, Options, Outbound, Payload, Receive, RecvBuf, Relayed, Socket,
    Token, Waker,
};

pub(crate) use group::Group;
use operations::{Kind, user_data};
pub(crate) use ring::{Entry, Ring, Wait};
use scratch::Scratch;

/// A receive is in flight.
const ARMED: u32 = 1 << OWN_BITS;
/// It is a multishot one.
const ARMED_MANY: u32 = 1 << (OWN_BITS + 1);
/// It draws from the large buffers.
const ARMED_LARGE: u32 = 1 << (OWN_BITS + 2);
/// Its cancellation is in flight.
const CANCELLING: u32 = 1 << (OWN_BITS + 3);
/// An accept is in flight.
const ACCEPTING: u32 = 1 << (OWN_BITS + 4);
/// Got bytes since it last queued for a buffer.
const FED: u32 = 1 << (OWN_BITS + 5);
/// A poll for a relay is in flight.
const POLLING: u32 = 1 << (OWN_BITS + 6);
/// A listener that belongs to another process from now on; it is closed when its accept is over.
const HANDED_OVER: u32 = 1 << (OWN_BITS + 7);
/// A listener that other drivers accept from as well.
const SHARED: u32 = 1 << (OWN_BITS + 8);
/// Arriving bytes may come later.
const DEFERRED: u32 = 1 << (OWN_BITS + 9);
/// The accept in flight only reports that a client is there.
const POLLED: u32 = 1 << (OWN_BITS + 10);
/// How it is received changes before the next system call.
const CHANGED: u32 = 1 << (OWN_BITS + 11);
/// Its last receive left room in its buffer, so that nothing more was there, and it was wanted ever
/// since.
const DRAINED: u32 = 1 << (OWN_BITS + 12);
/// Of every second receive: distinguishes its cancellation from that of the receive before. More
/// never exist: the kernel posts the outcome of a cancellation before that of a receive queued
/// behind it.
const ODD: u32 = 1 << (OWN_BITS + 13);

/// Time that [`Drop`] waits for the kernel to release memory before it leaks it instead.
const DROP_WAIT_US: u64 = 2_000_000;

/// Completions of one call that suggest that the kernel stopped at its limit.
const WHOLE_BATCH: usize = 16;

/// The io_uring driver of one worker.
pub struct Uring {
    ring: Ring,
    table: Table,
    sends: Sends,
    /// Small, large.
    groups: [Group; 2],
    scarce: Scarce,
    /// Those of the current reaping that move to the end of the queue.
    sated: [Vec<Socket>; 2],
    /// Sockets that get the wanted receive mode before the next system call, each once.
    changed: Vec<Socket>,
    /// Bytes that this turn has received into small buffers.
    small_bytes: usize,
    /// Listeners that pause, and when they resume.
    paused: Vec<(Socket, u64)>,
    later: Later,
    refused: Refused,
    courtesy: Courtesy,
    /// Completions made without the kernel.
    pending: Vec<Completion>,
    pub(crate) relays: Relays,
    over: Vec<Over>,
    releases: Releases,
    /// Cancellations queued since the last system call: each brings a completion at once that no
    /// caller waits for.
    cancelled: u32,
    entries: Vec<Entry>,
    /// The last reaping left completions for the next one, or may have.
    is_behind: bool,
    scratch: Scratch,
    wake: Arc<WakeState>,
    now_us: u64,
    stats: DriverStats,
    options: Options,
    /// The kernel accepts calls of the thread that made the ring only.
    not_send: PhantomData<*const ()>,
}

impl Uring {
    /// Sets everything up for the calling thread, which must be the one that uses the driver.
    ///
    /// # Errors
    /// The operating system's; EPERM, ENOSYS and EINVAL mean that this kernel or container has no
    /// usable io_uring.
    pub fn new(options: Options) -> io::Result<Uring> {
        let ring = Ring::new(&options)?;
        let wake = Arc::new(WakeState::new()?);
        let group =
            |id, count, bytes, armed| Group::new(&ring, id, count, bytes, armed, Arc::clone(&wake));
        let small = group(0, options.small_count, options.small_bytes, options.small_armed)?;
        let large = group(1, options.large_count, options.large_bytes, options.large_armed)?;
        let mut driver = Uring {
            ring,
            table: Table::new(),
            sends: Sends::default(),
            groups: [small, large],
            scarce: Scarce::default(),
            sated: [Vec::new(), Vec::new()],
            changed: Vec::new(),
            small_bytes: 0,
            paused: Vec::new(),
            later: Later::default(),
            refused: Refused::default(),
            courtesy: Courtesy::default(),
            pending: Vec::new(),
            relays: Relays::new(&options),
            over: Vec::new(),
            releases: Releases::default(),
            cancelled: 0,
            entries: Vec::new(),
            is_behind: false,
            scratch: Scratch::default(),
            wake,
            now_us: clock_us(),
            stats: DriverStats::default(),
            options,
            not_send: PhantomData,
        };
        driver.watch_wake();
        Ok(driver)
    }

    fn go_on_accepting(&mut self) {
        let now_us = self.now_us;
        while let Some(at) = self.paused.iter().position(|&(_, until_us)| until_us <= now_us) {
            let (socket, _) = self.paused.swap_remove(at);
            if self.courtesy.takes_up(socket.index) {
                self.take_up(socket);
            } else {
                self.arm_accept(socket);
            }
        }
    }

    /// How long the kernel may be waited for.
    fn wait(&mut self, wait_us: Option<u64>, have: bool) -> Wait {
        if have || self.relays.has_work() || self.may_feed() {
            return Wait::No;
        }
        let paused = self.paused.iter().map(|&(_, until_us)| until_us.saturating_sub(self.now_us));
        let resume_us = paused.chain(self.later.wait_us(self.now_us)).min();
        match (wait_us, resume_us) {
            (Some(0), _) => Wait::No,
            (None, None) => Wait::Forever,
            (Some(us), None) | (None, Some(us)) => Wait::Us(us.max(1)),
            (Some(us), Some(resume_us)) => Wait::Us(us.min(resume_us).max(1)),
        }
    }

    /// The work before the kernel is asked: buffers, pauses, completions that need no kernel.
    fn prepare(&mut self, into: &mut Vec<Completion>) {
        self.feed(Class::Small);
        self.feed(Class::Large);
        self.go_on_accepting();
        let now_us = self.now_us;
        for (socket, _) in self.later.look(now_us, &mut self.stats.syscalls) {
            self.receive_deferred(socket);
        }
        self.carry_out_changes();
        self.groups.iter_mut().for_each(|group| group.pool.trim(now_us));
        into.append(&mut self.pending);
        self.finish_releases(into);
    }

    /// Asks the kernel once, and again as long as it has whole batches. True when another thread
    /// woke this driver.
    fn wait_and_reap(
        &mut self,
        wait: Wait,
        before: usize,
        into: &mut Vec<Completion>,
    ) -> io::Result<bool> {
        self.enter(wait)?;
        let woken = self.wake.rise();
        self.now_us = clock_us();
        let mut reaped = self.reap(into);
        // The kernel runs about 20 pieces of deferred work a call. Its flag alone does not prove
        // that it has more: it is set after the work was queued, so it remains set without cause
        // when the work was done in between.
        while reaped >= WHOLE_BATCH
            && self.ring.has_pending_work()
            && into.len() - before < self.options.completions_per_turn
            && self.small_bytes < self.options.small_bytes_per_turn
        {
            self.groups.iter_mut().for_each(Group::refill);
            self.enter(Wait::No)?;
            reaped = self.reap(into);
        }
        Ok(woken)
    }

    /// One system call, marked as asleep for others only if it may really wait.
    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        let may_wait = wait != Wait::No && self.wake.fall_asleep();
        let cancelled = std::mem::take(&mut self.cancelled);
        self.ring.enter(if may_wait { wait } else { Wait::No }, cancelled)?;
        if self.ring.is_drained() {
            self.scratch.clear();
        }
        Ok(())
    }

    fn run_relays(&mut self, into: &mut Vec<Completion>) {
        self.relays.run(&mut self.over);
        for over in self.over.drain(..) {
            let [socket, _] = over.sockets;
            let event = Event::RelayEnded { moved: over.moved, how: over.how };
            into.push(Completion { token: self.table.slot(socket.index).token, socket, event });
        }
    }

    /// The facts about a socket that a relay needs; None when it can't be relayed.
    fn start_of(&mut self, socket: Socket) -> Option<Start> {
        let slot =
            self.table.named(socket).filter(|slot| !slot.has(table::TAKEN | table::LISTENER))?;
        debug_assert!(!slot.has(table::CONNECTING), "only connected sockets are relayed");
        let (fd, sending, ended) = (slot.fd, slot.send != NO_SEND, slot.has(table::ENDED));
        Some(Start { socket, fd, receiving: slot.has(ARMED), sending, ended })
    }

    fn start_socket(&mut self, fd: RawFd, token: Token) -> Socket {
        self.table.insert(fd, token)
    }
}

impl Driver for Uring {
    fn now_us(&self) -> u64 {
        self.now_us
    }

    fn listen(&mut self, listener: impl Into<OwnedFd>, token: Token) -> io::Result<Socket> {
        let fd = listener.into().into_raw_fd();
        let socket = self.start_socket(fd, token);
        let slot = self.table.slot(socket.index);
        slot.set(table::LISTENER);
        // A path has one listener for all drivers.
        if self.options.shared_listeners || is_unix(fd) {
            slot.set(SHARED);
        }
        self.arm_accept(socket);
        Ok(socket)
    }

    fn turn_away(&mut self, listener: Socket) {
        if let Some(slot) = self.table.named(listener).filter(|slot| slot.has(table::LISTENER))
            && turn_away(slot.fd)
        {
            slot.set(table::DEAF);
        }
    }

    fn set_courtesy(&mut self, courtesy: Courtesy) {
        self.courtesy = courtesy;
    }

    fn share_descriptors(&mut self, descriptors: Arc<Descriptors>) {
        self.table.share(descriptors);
    }

    fn hand_over(&mut self, listener: Socket) {
        let Some(slot) = self.table.named(listener).filter(|slot| slot.has(table::LISTENER)) else {
            return;
        };
        slot.set(HANDED_OVER);
        if slot.has(ACCEPTING) {
            self.cancel_ignored(Kind::Accept, listener);
        } else {
            self.close(listener);
        }
    }

    fn duplicate(&mut self, listener: Socket) -> io::Result<OwnedFd> {
        let slot = self.table.named(listener).filter(|slot| slot.has(table::LISTENER));
        slot.map_or_else(|| Err(io::ErrorKind::NotFound.into()), |slot| duplicate(slot.fd))
    }

    fn set_backlog(&mut self, listener: Socket, backlog: u32) {
        if let Some(slot) = self.table.named(listener).filter(|slot| slot.has(table::LISTENER)) {
            set_backlog(slot.fd, backlog);
        }
    }

    fn connect_by(
        &mut self,
        way: Outbound<'_>,
        to: SocketAddr,
        token: Token,
    ) -> io::Result<Socket> {
        let fd = way.socket_to_connect(to, false)?.into_raw_fd();
        let socket = self.start_socket(fd, token);
        self.table.slot(socket.index).set(table::CONNECTING);
        let (address, len) = self.scratch.address(to);
        let entry = opcode::Connect::new(types::Fd(fd), address, len).build();
        self.push(entry.user_data(user_data(Kind::Connect, socket)));
        Ok(socket)
    }

    fn connect_unix(&mut self, path: &Path, token: Token) -> io::Result<Socket> {
        let (socket, outcome) = connect_unix(path, false)?;
        let socket = self.start_socket(socket.into_raw_fd(), token);
        self.pending.push(Completion { token, socket, event: Event::Connected(outcome) });
        Ok(socket)
    }

    fn adopt(&mut self, begun: OwnedFd, token: Token) -> io::Result<Socket> {
        // Otherwise operations that have to wait would fail instead (io_uring_enter(2)).
        rustix::io::ioctl_fionbio(&begun, false)?;
        let fd = begun.into_raw_fd();
        let socket = self.start_socket(fd, token);
        self.table.slot(socket.index).set(table::CONNECTING);
        // A second connect(2) of one that is under way would fail (EALREADY).
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLOUT as u32).build();
        self.push(entry.user_data(user_data(Kind::Connect, socket)));
        Ok(socket)
    }

    fn release(&mut self, socket: Socket) -> bool {
        self.begin_release(socket)
    }

    fn take_in(&mut self, connection: Loose, token: Token) -> io::Result<Socket> {
        self.insert_loose(connection, token)
    }

    fn set_token(&mut self, socket: Socket, token: Token) {
        if let Some(slot) = self.table.named(socket) {
            slot.token = token;
            slot.clear(table::FRESH);
            self.pending
                .iter_mut()
                .filter(|one| one.socket == socket)
                .for_each(|one| one.token = token);
        }
    }

    fn receive(&mut self, socket: Socket, how: Receive) {
        let Some(slot) = self.table.named(socket).filter(|slot| !slot.has(table::TAKEN)) else {
            return;
        };
        slot.set_want(how);
        slot.clear(table::FRESH | if how == Receive::Off { DRAINED } else { 0 });
        self.change(socket);
    }

    fn defer(&mut self, socket: Socket, on: bool) {
        let Some(slot) = self.table.named(socket) else { return };
        if slot.has(DEFERRED) == on
            || slot.has(table::ENDED | table::LISTENER | table::CONNECTING | table::TAKEN)
        {
            return;
        }
        let fd = slot.fd;
        if on && !self.later.enter(fd, socket, self.now_us) {
            return;
        }
        let slot = self.table.slot(socket.index);
        if on {
            slot.set(DEFERRED);
        } else {
            slot.clear(DEFERRED);
            self.later.leave(fd);
        }
        self.change(socket);
    }

    fn send(&mut self, socket: Socket, payload: Payload) {
        let Some(slot) = self.table.named(socket).filter(|slot| !slot.has(table::TAKEN)) else {
            return;
        };
        debug_assert!(slot.send == NO_SEND, "one send at a time");
        let outgoing = Outgoing::new(payload);
        if matches!(outgoing.next(), Next::Nothing) {
            let event = Event::Sent { payload: outgoing.into_payload(), result: Ok(()) };
            self.pending.push(Completion { token: slot.token, socket, event });
            return;
        }
        slot.send = self.sends.insert(outgoing);
        self.queue_send(socket);
    }

    fn shutdown_write(&mut self, socket: Socket) {
        if let Some(slot) = self.table.named(socket).filter(|slot| !slot.has(table::TAKEN)) {
            shutdown_write(slot.fd);
        }
    }

    fn acknowledge(&mut self, socket: Socket) {
        if let Some(slot) = self.table.named(socket) {
            acknowledge(slot.fd);
        }
    }

    fn relay(&mut self, a: Socket, b: Socket) {
        [a, b].into_iter().for_each(|socket| self.defer(socket, false));
        let (Some(first), Some(second)) = (self.start_of(a), self.start_of(b)) else { return };
        self.relays.start([first, second], false);
        for socket in [a, b] {
            let slot = self.table.slot(socket.index);
            slot.set_want(Receive::Off);
            slot.set(table::RELAYING);
            self.reconcile(socket);
            self.watch_relayed(socket);
        }
    }

    fn relayed(&self, socket: Socket) -> Option<Relayed> {
        self.relays.moved(socket)
    }

    fn close(&mut self, socket: Socket) {
        self.relays.remove(socket);
        let Some(slot) = self.table.named(socket) else { return };
        slot.set(table::CLOSING);
        self.releases.take(socket);
        self.scarce.forget(socket);
        if let Some(listener) = slot.fresh_of() {
            self.refused.refused(listener);
        } else if slot.has(table::LISTENER) {
            self.refused.forget(socket.index);
        }
        let (fd, deferred) = (slot.fd, slot.has(DEFERRED));
        let (receiving, cancelling) = (slot.has(ARMED), slot.has(CANCELLING));
        let (sending, connecting, accepting) =
            (slot.send != NO_SEND, slot.has(table::CONNECTING), slot.has(ACCEPTING));
        let polling = slot.has(POLLING);
        if deferred {
            self.later.leave(fd);
        }
        if receiving && !cancelling {
            self.table.slot(socket.index).set(CANCELLING);
            self.cancel_receive(socket);
        }
        if sending {
            self.cancel_ignored(Kind::Send, socket);
        }
        if connecting {
            self.cancel_ignored(Kind::Connect, socket);
        }
        if accepting {
            self.cancel_ignored(Kind::Accept, socket);
        }
        if polling {
            self.cancel_ignored(Kind::Relay, socket);
        }
        // In order behind the cancellations; operations still in flight hold their own references
        // to the file.
        let close = opcode::Close::new(types::Fd(fd)).build().flags(squeue::Flags::SKIP_SUCCESS);
        self.push(close.user_data(user_data(Kind::Ignored, socket)));
        self.pending.retain(|completion| completion.socket != socket);
        self.free(socket.index);
    }

    fn reset(&mut self, socket: Socket) {
        if let Some(slot) = self.table.named(socket) {
            linger_zero(slot.fd);
            self.close(socket);
        }
    }

    fn streams(&self) -> Vec<Socket> {
        self.table.streams()
    }

    fn recycle(&mut self, buffer: RecvBuf) {
        let [small, large] = &mut self.groups;
        if let Some(other) = small.pool.recycle(buffer) {
            // A buffer of neither pool is dropped, which returns it to its owner.
            drop(large.pool.recycle(other));
        }
    }

    fn buffers(&self, class: Class) -> (u32, u32) {
        let group = &self.groups[class as usize];
        (group.free() as u32, group.pool.total() as u32)
    }

    fn delivery(&mut self, socket: Socket) -> Delivery {
        self.table.named(socket).map_or(Delivery::Acknowledged, |slot| delivery(slot.fd))
    }

    fn departure(&mut self, socket: Socket) -> Departure {
        self.table.named(socket).map_or(Departure::Broken, |slot| crate::net::departure(slot.fd))
    }

    fn path(&mut self, socket: Socket) -> Option<crate::Path> {
        self.table.named(socket).and_then(|slot| crate::path::path(slot.fd))
    }

    fn set_congestion(&mut self, socket: Socket, name: &str) {
        if let Some(slot) = self.table.named(socket) {
            set_congestion(slot.fd, name);
        }
    }

    fn destination(&mut self, socket: Socket) -> Option<SocketAddr> {
        self.table.named(socket).and_then(|slot| local_address(slot.fd))
    }

    fn keep_alive(&mut self, socket: Socket) {
        if let Some(slot) = self.table.named(socket) {
            keep_alive(slot.fd);
        }
    }

    fn receiving_core(&mut self, socket: Socket) -> Option<u32> {
        self.table.named(socket).and_then(|slot| receiving_core(slot.fd))
    }

    fn accept_queue(&mut self, listener: Socket) -> Option<AcceptQueue> {
        self.table.named(listener).and_then(|slot| accept_queue(slot.fd))
    }

    fn turn(&mut self, wait_us: Option<u64>, into: &mut Vec<Completion>) -> io::Result<()> {
        self.stats.turns += 1;
        self.small_bytes = 0;
        let before = into.len();
        let begun_us = self.now_us;
        let until_us = wait_us.map(|us| begun_us.saturating_add(us));
        let (mut woken, mut relayed) = (false, false);
        // Completions without an owner (cancellations, buffers that came back) do not end the wait,
        // nor do the bytes that relays move, for a while.
        loop {
            let left_us = until_us.map(|until_us| until_us.saturating_sub(self.now_us));
            self.prepare(into);
            let wait = self.wait(left_us, into.len() > before);
            woken |= self.wait_and_reap(wait, before, into)?;
            relayed |= self.relays.has_work();
            self.run_relays(into);
            let relayed_until_us = if relayed { begun_us + TURN_US } else { u64::MAX };
            if woken
                || into.len() > before
                || self.now_us >= until_us.unwrap_or(u64::MAX).min(relayed_until_us)
            {
                break;
            }
        }
        if woken {
            self.stats.wakes += 1;
            let socket = Socket { index: 0, generation: 0 };
            into.push(Completion { token: 0, socket, event: Event::Woken });
        }
        self.stats.completions += (into.len() - before) as u64;
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.wake.clone()
    }

    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn stats(&self) -> DriverStats {
        let mut stats =
            DriverStats { syscalls: self.stats.syscalls + self.ring.syscalls, ..self.stats };
        self.relays.count(&mut stats);
        stats
    }
}

impl Drop for Uring {
    /// Closes all sockets and waits until the kernel has released all memory.
    fn drop(&mut self) {
        for socket in self.table.occupied() {
            self.close(socket);
        }
        let until_us = clock_us() + DROP_WAIT_US;
        let mut rest = Vec::new();
        while self.table.live() > 0 && clock_us() < until_us {
            if self.ring.enter(Wait::Us(10_000), 0).is_err() {
                break;
            }
            self.reap(&mut rest);
        }
        // Operations that the kernel did not finish in time are closed with the ring; their memory
        // must not be reused.
        if self.table.live() > 0 {
            std::mem::forget(std::mem::take(&mut self.sends));
            self.groups.iter().for_each(|group| group.pool.leak());
        } else {
            self.groups.iter().for_each(|group| group.release(&self.ring));
        }
        // Closes that were queued but need no completion.
        let _ = self.ring.enter(Wait::No, 0);
    }
}
