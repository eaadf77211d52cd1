//! `weir intercept --connect syn`: connects to a server while its client is being accepted
//! (docs/intercept.md).
//!
//! Kernel programs copy clients' first packets to a device in the namespace (`weir_bpf::Hold`); the
//! packets themselves go to the listener. A thread reads the copies and starts to connect to the
//! servers, from the clients' addresses and ports. It puts these attempts where workers look for
//! them ([`weir_worker::Prepared`]), and the worker that accepts the client waits for the attempt
//! as if it were its own. Attempts that cannot start here are left to that worker, which uses other
//! ports if the client's is taken.
//!
//! Bounds: [`Limits`]; [`Means::times`] for a client that is not accepted: then its attempt is
//! reset. A repeated packet finds the attempt, unless that is over.

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

/// The state of the thread.
pub(super) struct Early {
    means: Means,
    limits: Limits,
    /// Buffer for packets.
    packet: Vec<u8>,
    /// Next check of the timeouts.
    look_at: Instant,
}

impl Early {
    /// Allows at most this many attempts whose clients have not been accepted.
    pub(super) fn new(means: Means, max: usize, now: Instant) -> Early {
        Early {
            means,
            limits: Limits::new(max, now),
            packet: vec![0; PACKET_BYTES_MAX],
            look_at: now,
        }
    }

    /// Works until it is stopped.
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
                // Until the next check of the timeouts weir connects to no server, and the kernel
                // copies nothing.
                self.means.let_through(true);
            } else if self.begin(pair) != Begun::Before {
                // An attempt that fails at once costs as much here.
                self.limits.begun();
            }
        }
        Ok(())
    }

    /// Starts to connect to a client's server, unless that has been done.
    fn begin(&self, pair: Pair) -> Begun {
        let make = || unconnected(self.means.way(pair.client()), pair.server());
        let connect = |socket| begin_connect(socket, pair.server());
        self.means.prepared.begin(pair, Means::times(), make, connect)
    }

    fn may_begin(&mut self, now: Instant) -> bool {
        let prepared = &self.means.prepared;
        !prepared.is_over()
            && self.limits.has_room(prepared.waiting())
            && self.limits.may_begin(now)
    }

    /// Checks timeouts and room.
    fn look(&mut self, now: Instant) {
        self.means.expire();
        let lets_through = !self.may_begin(now);
        self.means.let_through(lets_through);
    }
}
