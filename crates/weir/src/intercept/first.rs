//! `weir intercept --connect first`: a client gets exactly the reaction of its server
//! (docs/intercept.md).
//!
//! Kernel programs pass clients' first packets to a device in the namespace instead of the listener
//! (`weir_bpf::Hold`). A thread reads them there and connects to the servers, from the clients'
//! addresses and ports. If the server accepts, the connection is put where workers look for it
//! (`weir_worker::Prepared`), and the packet goes on to the listener. If the server refuses or is
//! reported unreachable, the client gets exactly that. Silence remains silence. Packets that cannot
//! be held go on to the listener at once, as without this mode.
//!
//! Bounds: [`ledger`], [`Means::times`] for a client that does not return.

mod ledger;
mod packet;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use ledger::{Ledger, PATIENCE, Waiting};
pub(in crate::intercept) use packet::First;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{Timespec, epoll::Event};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use weir_io::{Attempt, Outbound, Outcome};
use weir_proxy::ending::Held;

use super::ahead::{Means, PACKET_BYTES_MAX, PACKETS_MAX, TICK};

/// Largest number of events handled at a time.
const EVENTS_MAX: usize = 256;
/// The device's name in the poll; connection attempts have the names of the ledger.
const DEVICE: u64 = u64::MAX;

/// The state of the thread.
pub(super) struct Holder {
    means: Means,
    poll: OwnedFd,
    ledger: Ledger<Attempt>,
    /// Buffer for packets.
    packet: Vec<u8>,
    /// Next check of the timeouts.
    look_at: Instant,
}

impl Holder {
    /// Holds at most this many packets.
    ///
    /// # Errors
    /// No descriptors.
    pub(super) fn new(means: Means, max: usize, now: Instant) -> io::Result<Holder> {
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&poll, &means.device.tun, EventData::new_u64(DEVICE), EventFlags::IN)?;
        let (ledger, packet) = (Ledger::new(max, now), vec![0; PACKET_BYTES_MAX]);
        Ok(Holder { means, poll, ledger, packet, look_at: now })
    }

    /// Works until it is stopped.
    ///
    /// # Errors
    /// The device is gone.
    pub(super) fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let mut events: Vec<Event> = Vec::with_capacity(EVENTS_MAX);
        while !stop.load(Relaxed) {
            events.clear();
            let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
            match epoll::wait(&self.poll, spare_capacity(&mut events), Some(&tick)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let now = Instant::now();
            for event in events.drain(..) {
                match event.data.u64() {
                    DEVICE => self.read(now)?,
                    name => self.ended(name),
                }
            }
            if now >= self.look_at {
                self.look_at = now + TICK;
                self.look(now);
            }
            self.means.prepared.set_holding(self.ledger.len());
        }
        Ok(())
    }

    fn read(&mut self, now: Instant) -> io::Result<()> {
        let mut packet = std::mem::take(&mut self.packet);
        for _ in 0..PACKETS_MAX {
            let Some(bytes) = self.means.device.tun.read(&mut packet)? else { break };
            if let Some(first) = First::read(&packet[..bytes]) {
                self.begin(&first, now);
            }
        }
        self.packet = packet;
        Ok(())
    }

    /// Handles the first packet of a client, or its repetition.
    fn begin(&mut self, first: &First<'_>, now: Instant) {
        let pair = first.pair;
        if self.ledger.renew(&pair, first.bytes()) {
            return;
        }
        if self.means.prepared.has(&pair) {
            return self.pass_on(first.bytes());
        }
        let begun = self.may_begin(now).then(|| self.connect(pair.client(), pair.server()));
        let Some(Ok(attempt)) = begun else {
            return self.pass_on(first.bytes());
        };
        let name = EventData::new_u64(self.ledger.next_name());
        if epoll::add(&self.poll, &attempt, name, EventFlags::OUT).is_err() {
            return self.pass_on(first.bytes());
        }
        self.ledger.hold(Waiting { pair, packet: first.bytes().to_vec(), attempt }, now);
    }

    /// Starts to connect from the address and port of a client, or from another port if that is
    /// taken.
    fn connect(&self, client: SocketAddr, server: SocketAddr) -> io::Result<Attempt> {
        let way = self.means.way(client);
        let taken = [Errno::ADDRINUSE, Errno::ADDRNOTAVAIL];
        match Attempt::begin(way, server) {
            Err(error)
                if Errno::from_io_error(&error).is_some_and(|errno| taken.contains(&errno)) =>
            {
                let any_port = Attempt::begin(
                    Outbound { from: Some(SocketAddr::new(client.ip(), 0)), ..way },
                    server,
                );
                any_port.inspect(|_| self.means.prepared.count_changed_port())
            }
            begun => begun,
        }
    }

    /// Handles the end of a connection attempt: passes the result on to its client.
    fn ended(&mut self, name: u64) {
        let Some(Waiting { pair, packet, attempt }) = self.ledger.take(name) else { return };
        // The socket may be shared from now on, and closing it would not remove it from the poll.
        let _ = epoll::delete(&self.poll, &attempt);
        let first = First::read(&packet);
        let (what, answer) = match attempt.outcome() {
            Outcome::Connected(socket) => {
                self.means.prepared.put(pair, socket, Means::times());
                (Held::Connected, Some(packet))
            }
            Outcome::Refused => (Held::Refused, first.map(|first| first.reset())),
            Outcome::Unreachable(report) => {
                (Held::Unreachable, first.and_then(|first| first.unreachable(report)))
            }
            Outcome::Failed(_) => (Held::Silent, None),
        };
        self.means.prepared.count(what);
        if let Some(answer) = answer {
            self.pass_on(&answer);
        }
    }

    /// Passes a packet on. A loss here is like a loss in the network.
    fn pass_on(&self, packet: &[u8]) {
        let _ = self.means.device.tun.write(packet);
    }

    fn may_begin(&mut self, now: Instant) -> bool {
        !self.means.prepared.is_over() && self.ledger.may_begin(self.means.prepared.waiting(), now)
    }

    /// Checks timeouts and room. Once weir no longer accepts clients it keeps none waiting: when
    /// they try again they connect without weir.
    fn look(&mut self, now: Instant) {
        let is_over = self.means.prepared.is_over();
        let now = if is_over { now + PATIENCE } else { now };
        while let Some(Waiting { attempt, .. }) = self.ledger.expired(now) {
            let _ = epoll::delete(&self.poll, &attempt);
            self.means.prepared.count(Held::Silent);
        }
        self.means.expire();
        let lets_through = is_over || !self.ledger.has_room(self.means.prepared.waiting());
        self.means.let_through(lets_through);
    }
}
