//! How many descriptors of the process clients may use: the others are for servers, files, probes
//! and operators.
//!
//! All drivers of a process share one [`Descriptors`]; each counts there the connections that it
//! has accepted until they are closed, including TLS handshakes. At the maximum a driver accepts no
//! more clients, as when the kernel refuses to
//! ([`Event::AcceptFailed`](crate::Event::AcceptFailed)): new clients wait in the queue of the
//! listener. Several drivers that accept at the same time may exceed the limit by as many as one of
//! them accepts in a turn; the reserve has room for that.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Resource, getrlimit};

/// Descriptors that a worker and its parts need besides, and that are open before a client comes.
const OWN_OF_WORKER: usize = 16;
/// The same for the process.
const OWN: usize = 64;
/// The maximum that is reserved for other purposes than clients.
const RESERVE_MAX: usize = 8192;
/// Pause of accepting at the maximum number of clients, microseconds: some of them are being ended.
pub(crate) const FULL_PAUSE_US: u64 = 20_000;

/// See the module.
#[derive(Debug)]
pub struct Descriptors {
    max: usize,
    accepted: AtomicUsize,
}

impl Default for Descriptors {
    /// As many as the kernel grants.
    fn default() -> Descriptors {
        Descriptors::new(usize::MAX)
    }
}

impl Descriptors {
    /// With at most this number of client connections.
    pub fn new(max: usize) -> Descriptors {
        Descriptors { max, accepted: AtomicUsize::new(0) }
    }

    /// The share of the process's limit that is left to clients, with the given number of workers
    /// (`ulimit -n`): three quarters, or half of a low limit.
    pub fn of_process(workers: usize) -> Descriptors {
        let limit =
            getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
        Descriptors::new(limit.map_or(usize::MAX, |limit| limit - reserve(limit, workers)))
    }

    /// The maximum number.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Whether no more clients may be accepted.
    pub(crate) fn is_full(&self) -> bool {
        self.accepted.load(Ordering::Relaxed) >= self.max
    }

    /// Whether at least half of the maximum was accepted: from there, clients that the kernel
    /// accepts unasked may exceed the limit.
    pub(crate) fn is_near_full(&self) -> bool {
        self.accepted.load(Ordering::Relaxed) >= self.max / 2
    }

    /// A client was accepted.
    pub(crate) fn take(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    /// The connection of a client is closed.
    pub(crate) fn give_back(&self) {
        self.accepted.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many of `limit` are reserved for other purposes than clients.
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
