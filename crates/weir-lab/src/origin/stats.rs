//! What the origin counts. Each thread has its own counters and is their only writer; readers add them up.
//!
//! Called by `server.rs` (once a turn), by `/__stats` and by [`super::OriginHandle::stats`].

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};

/// Totals since the start of the origin, over all threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginStats {
    /// Connections accepted.
    pub connects: u64,
    /// Connections closed, by either side.
    pub closes: u64,
    /// Requests whose head was complete, also refused ones.
    pub requests: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes handed to the kernel.
    pub bytes_out: u64,
    /// Receives that returned bytes; `requests / receives` says how well the requests were batched.
    pub receives: u64,
}

impl OriginStats {
    /// What happened between `earlier` and `self`.
    pub fn since(self, earlier: OriginStats) -> OriginStats {
        OriginStats {
            connects: self.connects - earlier.connects,
            closes: self.closes - earlier.closes,
            requests: self.requests - earlier.requests,
            bytes_in: self.bytes_in - earlier.bytes_in,
            bytes_out: self.bytes_out - earlier.bytes_out,
            receives: self.receives - earlier.receives,
        }
    }
}

/// The shared side of one thread's counters, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct ThreadStats {
    values: [AtomicU64; 6],
}

impl ThreadStats {
    /// Makes the thread's counters visible to others.
    pub(super) fn publish(&self, stats: &OriginStats) {
        let values = [stats.connects, stats.closes, stats.requests, stats.bytes_in, stats.bytes_out, stats.receives];
        for (slot, value) in self.values.iter().zip(values) {
            slot.store(value, Relaxed);
        }
    }
}

/// Adds up what all threads have published.
pub(super) fn total(threads: &[ThreadStats]) -> OriginStats {
    let sum = |index: usize| threads.iter().map(|thread| thread.values[index].load(Relaxed)).sum();
    OriginStats {
        connects: sum(0),
        closes: sum(1),
        requests: sum(2),
        bytes_in: sum(3),
        bytes_out: sum(4),
        receives: sum(5),
    }
}
