//! `weir intercept --connect syn`: a server is asked while its client is being accepted (docs/semantics.md §24).
//!
//! Programs of the kernel give a copy of first packets of clients to a device in the namespace (`weir_bpf::Hold`); the packets themselves go to the listener.
//! A thread reads the copies and begins to connect to their servers, from their clients' addresses and ports. What it has begun is put where workers look
//! for it ([`weir_worker::Prepared`]): the one that accepts the client waits for the connect as for one of its own. Whatever can't be begun here is left to
//! that worker, which has other ports where the client's is taken.
//!
//! Bounds: [`Limits`]; [`Means::times`] for a client that is not accepted: what was begun for it is reset then. A packet that comes again finds what is
//! there, unless that is over.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use weir_io::{begin_connect, unconnected};
use weir_worker::{Begun, Pair};

use super::ahead::{Means, PACKET_BYTES_MAX, PACKETS_MAX, TICK};
use super::first::First;
use super::limits::Limits;

/// The thread's.
pub(super) struct Early {
    means: Means,
    limits: Limits,
    /// Where packets are read to.
    packet: Vec<u8>,
    /// When times are looked at again.
    look_at: Instant,
}

impl Early {
    /// Has begun so many at most, whose clients are not there.
    pub(super) fn new(means: Means, max: usize, now: Instant) -> Early {
        Early { means, limits: Limits::new(max, now), packet: vec![0; PACKET_BYTES_MAX], look_at: now }
    }

    /// Until it is stopped.
    ///
    /// # Errors
    /// The device is gone.
    pub(super) fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        while !stop.load(Relaxed) {
            let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
            match poll(&mut [PollFd::new(&self.means.device.tun, PollFlags::IN)], Some(&tick)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let now = Instant::now();
            self.read(now)?;
            if now >= self.look_at {
                self.look_at = now + TICK;
                self.look(now);
            }
        }
        Ok(())
    }

    fn read(&mut self, now: Instant) -> io::Result<()> {
        for _ in 0..PACKETS_MAX {
            let Some(bytes) = self.means.device.tun.read(&mut self.packet)? else { break };
            let Some(First { pair, .. }) = First::read(&self.packet[..bytes]) else { continue };
            if !self.may_begin(now) {
                // Until times are looked at again nobody is asked, and nothing is copied.
                self.means.let_through(true);
            } else if self.begin(pair) != Begun::Before {
                // One that fails at once costs as much here.
                self.limits.begun();
            }
        }
        Ok(())
    }

    /// Its server is asked, if nobody has asked it.
    fn begin(&self, pair: Pair) -> Begun {
        let make = || unconnected(self.means.way(pair.client()), pair.server());
        let connect = |socket| begin_connect(socket, pair.server());
        self.means.prepared.begin(pair, Means::times(), make, connect)
    }

    fn may_begin(&mut self, now: Instant) -> bool {
        let prepared = &self.means.prepared;
        !prepared.is_over() && self.limits.has_room(prepared.waiting()) && self.limits.may_begin(now)
    }

    /// Looks at times and at room.
    fn look(&mut self, now: Instant) {
        self.means.expire();
        let lets_through = !self.may_begin(now);
        self.means.let_through(lets_through);
    }
}
