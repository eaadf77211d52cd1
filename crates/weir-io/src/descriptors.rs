//! How many descriptors of the process clients may have: the others are for servers, files, probes and operators.
//!
//! One [`Descriptors`] is shared by all drivers of a process; each counts there what it has accepted until that is closed, handshakes of TLS
//! included. With as many as may be, a driver accepts nobody more, as when the kernel refuses to
//! ([`Event::AcceptFailed`](crate::Event::AcceptFailed)): whoever connects waits in the queue of the listener. Several drivers that accept at the same time may
//! pass the limit by as many as one of them accepts in a turn; the reserve has room for that.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Resource, getrlimit};

/// Descriptors that a worker and what belongs to it need besides, and that are open before a client comes.
const OWN_OF_WORKER: usize = 16;
/// The same of the process.
const OWN: usize = 64;
/// Most that are kept for others than clients.
const RESERVE_MAX: usize = 8192;
/// Pause of accepting when there are as many clients as may be, microseconds: some of them are told to go.
pub(crate) const FULL_PAUSE_US: u64 = 20_000;

/// See the module.
#[derive(Debug)]
pub struct Descriptors {
    max: usize,
    accepted: AtomicUsize,
}

impl Default for Descriptors {
    /// As many as the kernel gives.
    fn default() -> Descriptors {
        Descriptors::new(usize::MAX)
    }
}

impl Descriptors {
    /// At most so many connections of clients.
    pub fn new(max: usize) -> Descriptors {
        Descriptors { max, accepted: AtomicUsize::new(0) }
    }

    /// What the limit of the process leaves to clients, with so many workers (`ulimit -n`): three quarters, or half where that is little.
    pub fn of_process(workers: usize) -> Descriptors {
        let limit = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
        Descriptors::new(limit.map_or(usize::MAX, |limit| limit - reserve(limit, workers)))
    }

    /// How many there may be.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Whether nobody more may be accepted.
    pub(crate) fn is_full(&self) -> bool {
        self.accepted.load(Ordering::Relaxed) >= self.max
    }

    /// Whether more than half of those were accepted: who is accepted without being asked for may pass the limit from there.
    pub(crate) fn is_near_full(&self) -> bool {
        self.accepted.load(Ordering::Relaxed) >= self.max / 2
    }

    /// A client was accepted.
    pub(crate) fn take(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    /// One of those is closed.
    pub(crate) fn give_back(&self) {
        self.accepted.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many of `limit` are not for clients.
fn reserve(limit: usize, workers: usize) -> usize {
    let own = OWN + OWN_OF_WORKER * workers;
    (limit / 4).min(RESERVE_MAX).max(own).min(limit / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_to_clients() {
        for (limit, workers, left) in [
            (256, 1, 176),
            (256, 64, 128),
            (1024, 1, 768),
            (1024, 4, 768),
            (20_000, 2, 15_000),
            (1 << 20, 64, (1 << 20) - 8192),
            (3, 1, 2),
        ] {
            assert_eq!(limit - reserve(limit, workers), left, "{limit} with {workers}");
        }
    }

    #[test]
    fn as_many_as_may_be() {
        let descriptors = Descriptors::new(2);
        descriptors.take();
        assert!(!descriptors.is_full());
        descriptors.take();
        assert!(descriptors.is_full());
        descriptors.give_back();
        assert!(!descriptors.is_full() && !Descriptors::default().is_full());
    }
}
