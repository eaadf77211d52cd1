//! What the origin counts. Each thread has its own counters and is their only writer; readers add
//! them up.
//!
//! Called by `server.rs` (once a turn), by `/__stats`, by `weir origin` and by
//! [`super::OriginHandle::stats`].

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Serialize, Serializer};

use super::misbehave::{Kind, Misbehaviours};

/// Totals since the start of the origin, over all threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct OriginStats {
    /// Connections accepted.
    pub connects: u64,
    /// Connections closed, by either side.
    pub closes: u64,
    /// Requests whose head was complete, including refused ones.
    pub requests: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes handed to the kernel.
    pub bytes_out: u64,
    /// Receives that returned bytes; `requests / receives` says how well the requests were batched.
    pub receives: u64,
    /// TLS handshakes that were completed.
    pub handshakes: u64,
    /// Those of them that resumed an earlier session.
    pub resumed: u64,
    /// TLS handshakes that failed, and connections that broke after theirs.
    pub handshakes_failed: u64,
    /// How often each configured misbehaviour happened. In JSON an object by name.
    pub misbehaved: Misbehaved,
}

/// A count for each configured misbehaviour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Misbehaved {
    counts: [u64; Kind::COUNT],
    asked_for: Misbehaviours,
}

impl Default for Misbehaved {
    fn default() -> Misbehaved {
        Misbehaved { counts: [0; Kind::COUNT], asked_for: Misbehaviours::default() }
    }
}

impl Misbehaved {
    /// Returns how often it happened.
    pub fn count(&self, kind: Kind) -> u64 {
        self.counts[kind as usize]
    }

    /// Returns the configured misbehaviours, with counts.
    pub fn iter(&self) -> impl Iterator<Item = (Kind, u64)> {
        self.asked_for.kinds().map(|kind| (kind, self.count(kind)))
    }

    /// Counts it once more.
    pub(super) fn add(&mut self, kind: Kind) {
        self.counts[kind as usize] += 1;
    }
}

impl Serialize for Misbehaved {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(kind, count)| (kind.name(), count)))
    }
}

impl OriginStats {
    /// What happened between `earlier` and `self`.
    pub fn since(self, earlier: OriginStats) -> OriginStats {
        let mut misbehaved = self.misbehaved;
        for (count, before) in misbehaved.counts.iter_mut().zip(earlier.misbehaved.counts) {
            *count -= before;
        }
        OriginStats {
            connects: self.connects - earlier.connects,
            closes: self.closes - earlier.closes,
            requests: self.requests - earlier.requests,
            bytes_in: self.bytes_in - earlier.bytes_in,
            bytes_out: self.bytes_out - earlier.bytes_out,
            receives: self.receives - earlier.receives,
            handshakes: self.handshakes - earlier.handshakes,
            resumed: self.resumed - earlier.resumed,
            handshakes_failed: self.handshakes_failed - earlier.handshakes_failed,
            misbehaved,
        }
    }
}

/// The shared side of one thread's counters, on a separate cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct ThreadStats {
    values: [AtomicU64; 9],
    misbehaved: [AtomicU64; Kind::COUNT],
}

impl ThreadStats {
    /// Makes the thread's counters visible to others.
    pub(super) fn publish(&self, stats: &OriginStats) {
        let values = [
            stats.connects,
            stats.closes,
            stats.requests,
            stats.bytes_in,
            stats.bytes_out,
            stats.receives,
            stats.handshakes,
            stats.resumed,
            stats.handshakes_failed,
        ];
        for (slot, value) in self.values.iter().zip(values) {
            slot.store(value, Relaxed);
        }
    }

    /// Does the same for misbehaviours; called only when there are any.
    pub(super) fn publish_misbehaved(&self, stats: &OriginStats) {
        for (slot, value) in self.misbehaved.iter().zip(stats.misbehaved.counts) {
            slot.store(value, Relaxed);
        }
    }
}

/// Adds up what all threads have published.
pub(super) fn total(threads: &[ThreadStats], asked_for: Misbehaviours) -> OriginStats {
    let sum = |index: usize| threads.iter().map(|thread| thread.values[index].load(Relaxed)).sum();
    let wrong =
        |index: usize| threads.iter().map(|thread| thread.misbehaved[index].load(Relaxed)).sum();
    OriginStats {
        connects: sum(0),
        closes: sum(1),
        requests: sum(2),
        bytes_in: sum(3),
        bytes_out: sum(4),
        receives: sum(5),
        handshakes: sum(6),
        resumed: sum(7),
        handshakes_failed: sum(8),
        misbehaved: Misbehaved { counts: std::array::from_fn(wrong), asked_for },
    }
}
