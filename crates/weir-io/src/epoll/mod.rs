//! The epoll driver: performs the calls itself when a socket is ready and reports completions, as
//! io_uring would.
//!
//! Made and used by one worker thread. Each socket is registered once, edge-triggered; readiness is
//! remembered, so that a request costs one receive, one send and its share of a wait. Bounds:
//! receives a socket and accepts a listener in one turn, buffers of the pools, 256 events a wait.
//!
//! `work` performs what is ready, `poller` holds the system calls.

pub(crate) mod poller;
mod release;
mod work;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use crate::later::Later;
use crate::net::{
    accept_queue, acknowledge, clock_us, close_fd, connect_unix, delivery, duplicate, keep_alive,
    linger_zero, local_address, receiving_core, set_backlog, set_congestion, set_nonblocking,
    shutdown_write, turn_away,
};
use crate::outgoing::{Next, Outgoing, Sends};
use crate::pool::Pool;
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

use poller::{OUT, Poller, Wait};

/// Known to epoll.
const WATCHED: u32 = 1 << OWN_BITS;
/// Known to epoll for room to send as well.
const WATCHED_OUT: u32 = 1 << (OWN_BITS + 1);
/// A receive (or accept) may find something.
const READABLE: u32 = 1 << (OWN_BITS + 2);
/// The end or an error follows the last byte, so a short receive does not mean that nothing is
/// left.
const HANGING_UP: u32 = 1 << (OWN_BITS + 3);
/// On the list of sockets that are ready.
const QUEUED: u32 = 1 << (OWN_BITS + 4);
/// The send in flight waits for room.
const BLOCKED: u32 = 1 << (OWN_BITS + 5);
/// Bytes that arrive may come later.
const DEFERRED: u32 = 1 << (OWN_BITS + 6);

/// A listener that the kernel does not report, because accepting pauses.
const UNTOLD: u32 = 1 << (OWN_BITS + 7);

/// `data` of the wake descriptor; no socket has it, because generations start at 1 and slots are
/// far fewer.
const WAKE_DATA: u64 = u64::MAX;

fn data_of(socket: Socket) -> u64 {
    u64::from(socket.index) << 32 | u64::from(socket.generation)
}

/// The epoll driver of one worker.
pub struct Epoll {
    poller: Poller,
    table: Table,
    sends: Sends,
    /// Small, large.
    pools: [Pool; 2],
    scarce: Scarce,
    /// Sockets whose send was not tried yet.
    unsent: Vec<Socket>,
    /// Sockets that are readable and wanted, in turn.
    ready: VecDeque<Socket>,
    /// Bytes that this turn has received into small buffers.
    small_bytes: usize,
    paused: Vec<(Socket, u64)>,
    later: Later,
    refused: Refused,
    courtesy: Courtesy,
    pending: Vec<Completion>,
    pub(crate) relays: Relays,
    over: Vec<Over>,
    releases: Releases,
    events: Vec<(u64, u32)>,
    /// The last turn returned without asking the kernel.
    skipped_wait: bool,
    wake: Arc<WakeState>,
    now_us: u64,
    stats: DriverStats,
    options: Options,
}

impl Epoll {
    /// Makes a driver.
    ///
    /// # Errors
    /// The operating system's, when descriptors or address space run out.
    pub fn new(options: Options) -> io::Result<Epoll> {
        let poller = Poller::new()?;
        let wake = Arc::new(WakeState::new()?);
        // Edge-triggered: each write counts, and the counter needs no reading.
        poller.add(wake.fd(), WAKE_DATA, 0)?;
        let small = Pool::new(options.small_count, options.small_bytes, Arc::clone(&wake))?;
        let large = Pool::new(options.large_count, options.large_bytes, Arc::clone(&wake))?;
        Ok(Epoll {
            poller,
            table: Table::new(),
            sends: Sends::default(),
            pools: [small, large],
            scarce: Scarce::default(),
            unsent: Vec::new(),
            ready: VecDeque::new(),
            small_bytes: 0,
            paused: Vec::new(),
            later: Later::default(),
            refused: Refused::default(),
            courtesy: Courtesy::default(),
            pending: Vec::new(),
            relays: Relays::new(&options),
            over: Vec::new(),
            releases: Releases::default(),
            events: Vec::new(),
            skipped_wait: false,
            wake,
            now_us: clock_us(),
            stats: DriverStats::default(),
            options,
        })
    }

    /// Registers a socket when it is first waited for. A failure ends its receiving.
    fn watch(&mut self, socket: Socket) {
        let slot = self.table.slot(socket.index);
        if slot.has(WATCHED) {
            return;
        }
        slot.set(WATCHED);
        if let Err(error) = self.poller.add(slot.fd, data_of(socket), 0) {
            slot.set(table::ENDED);
            let event = Event::ReceiveFailed(error);
            self.pending.push(Completion { token: slot.token, socket, event });
        }
    }

    /// Puts a socket on the ready list if a receive is wanted and may find something.
    fn enqueue(&mut self, socket: Socket) {
        let slot = self.table.slot(socket.index);
        let wanted = slot.has(table::LISTENER) || slot.want() != Receive::Off;
        if wanted
            && slot.has(READABLE)
            && !slot.has(QUEUED | table::ENDED | table::STARVED | table::CONNECTING)
        {
            slot.set(QUEUED);
            self.ready.push_back(socket);
        }
    }

    fn go_on_accepting(&mut self) {
        let now_us = self.now_us;
        while let Some(at) = self.paused.iter().position(|&(_, until_us)| until_us <= now_us) {
            let (socket, _) = self.paused.swap_remove(at);
            let Some(slot) = self.table.named(socket) else { continue };
            slot.set(READABLE);
            if slot.has(UNTOLD) {
                slot.clear(UNTOLD);
                let fd = slot.fd;
                // Without room for it in the kernel it is tried again later.
                if self.poller.add(fd, data_of(socket), 0).is_err() {
                    self.table.slot(socket.index).set(UNTOLD);
                    self.paused.push((socket, now_us + self.options.accept_pause_us));
                    continue;
                }
            }
            self.enqueue(socket);
        }
    }

    fn wait(&self, wait_us: Option<u64>, have: bool) -> Wait {
        if have || !self.ready.is_empty() || !self.unsent.is_empty() || self.relays.has_work() {
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

    /// Does the work that is possible without asking the kernel what is ready. True when a relay
    /// had something to do.
    fn perform(&mut self, into: &mut Vec<Completion>) -> bool {
        self.feed(Class::Small);
        self.feed(Class::Large);
        self.go_on_accepting();
        let now_us = self.now_us;
        self.pools.iter_mut().for_each(|pool| pool.trim(now_us));
        into.append(&mut self.pending);
        self.finish_releases(into);
        for (socket, mask) in self.later.look(now_us, &mut self.stats.syscalls) {
            self.on_ready(socket, mask, into);
        }
        self.send_unsent(into);
        self.receive_ready(into);
        let relayed = self.relays.has_work();
        self.relays.run(&mut self.over);
        for over in self.over.drain(..) {
            let [socket, _] = over.sockets;
            let event = Event::RelayEnded { moved: over.moved, how: over.how };
            into.push(Completion { token: self.table.slot(socket.index).token, socket, event });
        }
        relayed
    }

    /// Asks the kernel what is ready, unless there is enough to report. True when another thread
    /// woke this driver.
    fn poll_or_not(
        &mut self,
        wait_us: Option<u64>,
        before: usize,
        into: &mut Vec<Completion>,
    ) -> io::Result<bool> {
        let have = into.len() > before;
        // The events of the work just done are enough for one turn: a wait that finds nothing costs
        // as much as one that does. But only every second time, so that no socket waits for others
        // that always have something.
        if have && !self.skipped_wait {
            self.skipped_wait = true;
            self.now_us = clock_us();
            return Ok(self.wake.rise());
        }
        self.skipped_wait = false;
        self.poll(self.wait(wait_us, have), into)
    }

    /// The facts about a socket that a relay needs; None when it can't be relayed.
    fn start_of(&mut self, socket: Socket) -> Option<Start> {
        let slot =
            self.table.named(socket).filter(|slot| !slot.has(table::TAKEN | table::LISTENER))?;
        debug_assert!(!slot.has(table::CONNECTING), "only connected sockets are relayed");
        let (fd, sending, ended) = (slot.fd, slot.send != NO_SEND, slot.has(table::ENDED));
        Some(Start { socket, fd, receiving: false, sending, ended })
    }

    /// The end of receiving, if it was not handed out yet.
    fn take_failure(&mut self, socket: Socket) -> Option<io::Error> {
        let failed = |completion: &mut Completion| {
            completion.socket == socket && matches!(completion.event, Event::ReceiveFailed(_))
        };
        match self.pending.extract_if(.., failed).next()?.event {
            Event::ReceiveFailed(error) => Some(error),
            _ => None,
        }
    }

    /// Registers a socket for both directions.
    fn watch_both(&mut self, socket: Socket) -> io::Result<()> {
        let slot = self.table.slot(socket.index);
        let known = (slot.has(WATCHED), slot.has(WATCHED_OUT));
        slot.set(WATCHED | WATCHED_OUT);
        match known {
            (_, true) => Ok(()),
            (true, false) => self.poller.change(slot.fd, data_of(socket), !slot.has(DEFERRED), OUT),
            (false, false) => self.poller.add(slot.fd, data_of(socket), OUT),
        }
    }

    /// Asks the kernel what is ready and handles it.
    fn poll(&mut self, wait: Wait, into: &mut Vec<Completion>) -> io::Result<bool> {
        let may_wait = wait != Wait::No && self.wake.fall_asleep();
        let mut events = std::mem::take(&mut self.events);
        self.stats.syscalls += 1;
        self.poller.wait(if may_wait { wait } else { Wait::No }, &mut events)?;
        let woken = self.wake.rise();
        self.now_us = clock_us();
        for (data, mask) in events.drain(..) {
            if data != WAKE_DATA {
                let socket = Socket { index: (data >> 32) as u32, generation: data as u32 };
                self.on_ready(socket, mask, into);
            }
        }
        self.events = events;
        Ok(woken)
    }
}

impl Driver for Epoll {
    fn now_us(&self) -> u64 {
        self.now_us
    }

    fn listen(&mut self, listener: impl Into<OwnedFd>, token: Token) -> io::Result<Socket> {
        let listener = listener.into();
        set_nonblocking(listener.as_raw_fd())?;
        let socket = self.table.insert(listener.into_raw_fd(), token);
        let slot = self.table.slot(socket.index);
        slot.set(table::LISTENER | WATCHED);
        let fd = slot.fd;
        if let Err(error) = self.poller.add(fd, data_of(socket), 0) {
            close_fd(fd);
            self.table.remove(socket.index);
            return Err(error);
        }
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
        // Accepting is done in one piece here, so no client is in between.
        if self.table.named(listener).is_some_and(|slot| slot.has(table::LISTENER)) {
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
        let fd = way.socket_to_connect(to, true)?.into_raw_fd();
        let outcome = poller::connect(fd, to);
        Ok(self.watch_connect(fd, outcome, token))
    }

    fn connect_unix(&mut self, path: &Path, token: Token) -> io::Result<Socket> {
        let (socket, outcome) = connect_unix(path, true)?;
        Ok(self.watch_connect(socket.into_raw_fd(), outcome, token))
    }

    fn adopt(&mut self, begun: OwnedFd, token: Token) -> io::Result<Socket> {
        rustix::io::ioctl_fionbio(&begun, true)?;
        Ok(self.watch_connect(begun.into_raw_fd(), Ok(()), token))
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
        let Some(slot) = self.table.named(socket) else { return };
        if slot.has(table::ENDED | table::LISTENER | table::TAKEN) {
            return;
        }
        slot.set_want(how);
        slot.clear(table::FRESH);
        if let Receive::Once(class) | Receive::Many(class) = how {
            self.watch(socket);
            let slot = self.table.slot(socket.index);
            // It was off when a buffer came for it: it keeps its place among the waiting.
            if !slot.has(QUEUED | table::STARVED | table::ENDED) && self.scarce.keeps(socket) {
                slot.set(table::STARVED);
                self.scarce.wait(class, socket);
            }
            self.enqueue(socket);
        }
    }

    fn defer(&mut self, socket: Socket, on: bool) {
        let Some(slot) = self.table.named(socket) else { return };
        if slot.has(DEFERRED) == on
            || slot.has(table::ENDED | table::LISTENER | table::CONNECTING | table::TAKEN)
        {
            return;
        }
        self.watch(socket);
        let slot = self.table.slot(socket.index);
        let fd = slot.fd;
        if on && !self.later.enter(fd, socket, self.now_us) {
            return;
        }
        if on {
            slot.set(DEFERRED);
        } else {
            slot.clear(DEFERRED);
            self.later.leave(fd);
        }
        let more = if slot.has(WATCHED_OUT) { OUT } else { 0 };
        // It fails only for a socket that is not watched, so one whose receiving has ended.
        let _ = self.poller.change(fd, data_of(socket), !on, more);
    }

    fn send(&mut self, socket: Socket, payload: Payload) {
        let Some(slot) = self.table.named(socket) else { return };
        debug_assert!(slot.send == NO_SEND, "one send at a time");
        if slot.has(table::TAKEN) {
            return;
        }
        let outgoing = Outgoing::new(payload);
        if matches!(outgoing.next(), Next::Nothing) {
            let event = Event::Sent { payload: outgoing.into_payload(), result: Ok(()) };
            self.pending.push(Completion { token: slot.token, socket, event });
            return;
        }
        slot.send = self.sends.insert(outgoing);
        self.unsent.push(socket);
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
        self.relays.start([first, second], true);
        for socket in [a, b] {
            self.table.slot(socket.index).set_want(Receive::Off);
            self.table.slot(socket.index).set(table::RELAYING);
            let failure = self.watch_both(socket).err().or_else(|| self.take_failure(socket));
            if let Some(error) = failure {
                self.relays.failed(socket, &error);
            }
        }
    }

    fn relayed(&self, socket: Socket) -> Option<Relayed> {
        self.relays.moved(socket)
    }

    fn close(&mut self, socket: Socket) {
        self.relays.remove(socket);
        let Some(slot) = self.table.named(socket) else { return };
        if slot.send != NO_SEND {
            self.sends.remove(slot.send);
            slot.send = NO_SEND;
        }
        if slot.has(DEFERRED) {
            self.later.leave(slot.fd);
        }
        // Closing the only descriptor of a file also ends its registration. A listener may have
        // others, in other processes.
        if slot.has(table::LISTENER) {
            if !slot.has(UNTOLD) {
                self.poller.remove(slot.fd);
            }
            self.refused.forget(socket.index);
        }
        if let Some(listener) = slot.fresh_of() {
            self.refused.refused(listener);
        }
        close_fd(slot.fd);
        self.table.remove(socket.index);
        self.releases.take(socket);
        self.scarce.forget(socket);
        self.pending.retain(|completion| completion.socket != socket);
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
        let [small, large] = &mut self.pools;
        if let Some(other) = small.recycle(buffer) {
            // A buffer of neither pool is dropped, which returns it to its owner.
            drop(large.recycle(other));
        }
    }

    fn buffers(&self, class: Class) -> (u32, u32) {
        let pool = &self.pools[class as usize];
        (pool.free() as u32, pool.total() as u32)
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
        let mut woken;
        // Bytes that relays move are no news for the caller, for a while.
        loop {
            let left_us = until_us.map(|until_us| until_us.saturating_sub(self.now_us));
            let relayed = self.perform(into);
            woken = self.poll_or_not(left_us, before, into)?;
            let busy = relayed || self.relays.has_work();
            if !busy
                || woken
                || into.len() > before
                || self.now_us >= until_us.unwrap_or(u64::MAX).min(begun_us + TURN_US)
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
        "epoll"
    }

    fn stats(&self) -> DriverStats {
        let mut stats = self.stats;
        self.relays.count(&mut stats);
        stats
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        for socket in self.table.occupied() {
            self.close(socket);
        }
    }
}
