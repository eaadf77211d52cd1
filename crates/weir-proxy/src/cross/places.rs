//! Servers that serve few connections at a time, because each connection keeps a thread or process
//! of theirs until it ends: a connection that waits for a place has to be given one.
//!
//! A proxy can't see whether a server has accepted a connection, so it experiments: when the first
//! response on a connection is late, idle connections are closed (`upstream/crowded.rs`). If a late
//! response then comes at once, that has helped. Before that, every second time, or every eighth
//! once closing has helped twice, it only waits whether the response comes anyway ([`Try::Wait`]):
//! a server that is merely slow is not tried again before a response takes twice as long. Only the
//! idle time of connections depends on it, so that a mistake costs connects, or a request of such a
//! server [`PATIENCE_US_MAX`]. One [`Places`] a server, shared by all workers, without locks: a
//! worker that reads an old number tries once too often or too late. Bound: seven numbers.
//! docs/connections.md.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Before this no first answer is late.
pub(crate) const LATE_US: u64 = 100_000;
/// How long weir waits to see whether late responses come without help.
pub(crate) const WAIT_US: u64 = 100_000;
/// What comes so soon after connections were closed has come because of that. Much less, so that
/// answers which take their time at random are found to come by themselves sooner than to be
/// helped.
const HELP_US: u64 = 40_000;
/// Every how many times it only waits for that; and the same where closing has helped before.
const WAITS: u32 = 2;
const WAITS_CROWDED: u32 = 8;
/// How often that must have helped for the server to be one of few places.
const PROOFS_MIN: u32 = 2;
/// Learned facts hold for this long; then half of the patience.
const MEMORY_US: u64 = 600_000_000;
/// No longer than this is waited for a first answer.
const PATIENCE_US_MAX: u64 = 30_000_000;

/// What is done about a late first answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Try {
    /// Nothing for [`WAIT_US`]: the response may come without help.
    Wait,
    /// Others make room.
    Vacate,
}

/// What is known of the places of one server.
#[derive(Debug)]
pub(crate) struct Places {
    /// How long a first answer may take before others make room.
    patience_us: AtomicU64,
    /// When one last took longer; 0: never.
    tried_us: AtomicU64,
    /// How often.
    tries: AtomicU32,
    /// When nothing was done about it.
    waited_us: AtomicU64,
    /// When a connection was last closed for that.
    closed_us: AtomicU64,
    /// When that last helped.
    helped_us: AtomicU64,
    /// How often it has helped since it did not for [`MEMORY_US`].
    proofs: AtomicU32,
}

impl Default for Places {
    fn default() -> Places {
        Places {
            patience_us: AtomicU64::new(LATE_US),
            tried_us: AtomicU64::default(),
            tries: AtomicU32::default(),
            waited_us: AtomicU64::default(),
            closed_us: AtomicU64::default(),
            helped_us: AtomicU64::default(),
            proofs: AtomicU32::default(),
        }
    }
}

impl Places {
    /// It is another server.
    pub(crate) fn forget(&self) {
        let all = [&self.tried_us, &self.waited_us, &self.closed_us, &self.helped_us];
        all.into_iter().for_each(|time| time.store(0, Ordering::Relaxed));
        self.patience_us.store(LATE_US, Ordering::Relaxed);
        [&self.tries, &self.proofs].into_iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }

    /// How long a first answer may take before others make room.
    pub(crate) fn patience_us(&self, now_us: u64) -> u64 {
        let tried_us = self.tried_us.load(Ordering::Relaxed);
        let halves = (now_us.saturating_sub(tried_us) / MEMORY_US).min(16);
        (self.patience_us.load(Ordering::Relaxed) >> halves).clamp(LATE_US, PATIENCE_US_MAX)
    }

    /// A first response has taken this long. None: it is being found out whether such responses
    /// come without help, or whether the last try helps.
    pub(crate) fn on_late(&self, now_us: u64, late_us: u64) -> Option<Try> {
        let tried_us = self.tried_us.load(Ordering::Relaxed);
        if self.waits(now_us) || tried_us > 0 && now_us < tried_us + self.patience_us(now_us) {
            return None;
        }
        let every = if self.is_crowded(now_us) { WAITS_CROWDED } else { WAITS };
        if self.tries.fetch_add(1, Ordering::Relaxed).is_multiple_of(every) {
            self.waited_us.store(now_us, Ordering::Relaxed);
            return Some(Try::Wait);
        }
        self.be_patient(now_us, late_us);
        Some(Try::Vacate)
    }

    /// Whether it is being seen whether late answers come by themselves.
    pub(crate) fn waits(&self, now_us: u64) -> bool {
        let waited_us = self.waited_us.load(Ordering::Relaxed);
        waited_us > 0 && now_us.saturating_sub(waited_us) < WAIT_US
    }

    fn be_patient(&self, now_us: u64, late_us: u64) {
        let patience_us = self.patience_us(now_us).max(late_us).saturating_mul(2);
        self.patience_us.store(patience_us, Ordering::Relaxed);
        self.tried_us.store(now_us, Ordering::Relaxed);
    }

    /// A connection is closed to make room.
    pub(crate) fn on_closed(&self, now_us: u64) {
        self.closed_us.store(now_us, Ordering::Relaxed);
    }

    /// The first answer on a connection begins, to what was sent at `sent_us`.
    pub(crate) fn on_first_answer(&self, now_us: u64, sent_us: u64) {
        let came = |us: u64, most_us: u64| {
            us.saturating_sub(sent_us) >= LATE_US && now_us.saturating_sub(us) <= most_us
        };
        let closed_us = self.closed_us.load(Ordering::Relaxed);
        let waited_us = self.waited_us.load(Ordering::Relaxed);
        if came(waited_us, WAIT_US) && closed_us < waited_us {
            self.proofs.store(0, Ordering::Relaxed);
            self.be_patient(now_us, 0);
        }
        if !came(closed_us, HELP_US) || closed_us < waited_us {
            return;
        }
        // Others that come at the same time prove nothing more.
        let helped_us = self.helped_us.swap(now_us, Ordering::Relaxed);
        if helped_us < closed_us {
            let lasts = now_us.saturating_sub(helped_us) < MEMORY_US;
            self.proofs.store(
                if lasts { self.proofs.load(Ordering::Relaxed) + 1 } else { 1 },
                Ordering::Relaxed,
            );
        }
        self.patience_us.store(LATE_US, Ordering::Relaxed);
    }

    /// Whether the server seems to have so few places that connections which rest keep others from
    /// theirs.
    pub(crate) fn is_crowded(&self, now_us: u64) -> bool {
        let proofs = self.proofs.load(Ordering::Relaxed);
        proofs >= PROOFS_MIN
            && now_us.saturating_sub(self.helped_us.load(Ordering::Relaxed)) < MEMORY_US
    }
}

#[cfg(test)]
mod tests {
    //! Proves: closing that helped is distinguished from closing that did not, and slow servers are
    //! left alone. How: step by step.

    use super::*;

    const SECOND: u64 = 1_000_000;

    /// A first response is late, and comes `after_us` later.
    fn late_by(places: &Places, now_us: u64, after_us: u64) -> Option<Try> {
        let tried = places.on_late(now_us, LATE_US);
        if tried == Some(Try::Vacate) {
            places.on_closed(now_us);
        }
        places.on_first_answer(now_us + after_us, now_us - LATE_US);
        tried
    }

    #[test]
    fn what_helps_twice_is_a_proof() {
        let places = Places::default();
        for (n, crowded) in [(1, false), (2, true), (3, true)] {
            let now_us = n * SECOND;
            if places.on_late(now_us, LATE_US) == Some(Try::Wait) {
                assert_eq!(places.on_late(now_us + WAIT_US - 1, LATE_US), None);
                assert_eq!(late_by(&places, now_us + WAIT_US, HELP_US), Some(Try::Vacate));
            } else {
                places.on_closed(now_us);
                places.on_first_answer(now_us, now_us - LATE_US);
            }
            // Another one at the same time.
            places.on_first_answer(now_us + HELP_US, now_us - LATE_US);
            let now_us = now_us + SECOND / 2;
            assert_eq!(
                (places.is_crowded(now_us), places.patience_us(now_us)),
                (crowded, LATE_US),
                "{n}"
            );
        }
        assert!(!places.is_crowded(4 * SECOND + MEMORY_US), "not for ever");
    }

    /// Also where two came at once by chance.
    #[test]
    fn what_comes_by_itself_is_none() {
        for after_us in [1, WAIT_US] {
            let places = Places::default();
            places.proofs.store(2, Ordering::Relaxed);
            places.helped_us.store(1, Ordering::Relaxed);
            assert!(places.is_crowded(SECOND));
            let tried = late_by(&places, SECOND, after_us);
            assert_eq!((tried, places.is_crowded(2 * SECOND)), (Some(Try::Wait), false));
            assert_eq!(places.patience_us(2 * SECOND), 2 * LATE_US);
        }
        let places = Places::default();
        for n in 1..10 {
            late_by(&places, n * SECOND, WAIT_US + 1);
        }
        assert!(!places.is_crowded(10 * SECOND));
    }

    #[test]
    fn slow_servers_are_left_alone() {
        let places = Places::default();
        assert_eq!(places.patience_us(0), LATE_US);
        places.be_patient(SECOND, LATE_US);
        assert_eq!(places.patience_us(SECOND), 2 * LATE_US);
        places.be_patient(SECOND, 5 * SECOND);
        assert_eq!(places.patience_us(SECOND), 10 * SECOND);
        assert_eq!(
            (places.on_late(2 * SECOND, 10 * SECOND), places.on_late(10 * SECOND, 20 * SECOND)),
            (None, None)
        );
        assert_eq!(places.patience_us(SECOND + MEMORY_US), 5 * SECOND);
        assert_eq!(places.patience_us(100 * MEMORY_US), LATE_US);
        places.be_patient(SECOND, 50 * SECOND);
        assert_eq!(places.patience_us(SECOND), PATIENCE_US_MAX);
    }
}
