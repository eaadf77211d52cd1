//! Servers that serve few connections at a time, because each connection keeps a thread or process
//! of theirs until it ends: a connection that waits for a place has to be given one.
//!
//! A proxy can't see whether a server has accepted a connection, so it experiments: when the first
//! response on a connection is late, idle connections are closed (`upstream/crowded.rs`). If a late
//! response then comes at once, that has helped. Before that, every second time, or every eighth
//! once closing has helped twice, it only waits whether the response comes anyway ([`Try::Wait`]):
//! a server that is merely slow is not tried again before a response takes twice as long. Only the
//! idle time of connections depends on it, so that a mistake costs connects, or a request of such a
//! server [`PATIENCE_US_MAX`].
//!
//! When closing has helped, every place was taken by a connection that had brought a response, so
//! their number is the number of places. From then on weir makes no more connections than that
//! ([`Places::count`]), and requests wait here instead of at the server. While requests wait, it
//! tries one more, then two, four and so on, as long as each of them gets a response in time; a try
//! that fails doubles the pause before the next ([`Places::on_waiting`]). So a server that was
//! misjudged has its connections back within seconds.
//!
//! One [`Places`] a server, shared by all workers, without locks: a worker that reads an old number
//! tries once too often or too late. Bound: twelve numbers. docs/connections.md.

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
/// Pause between two tries of more places, in which a failure shows; doubles when there are none.
const PAUSE_US: u64 = 500_000;
const PAUSE_US_MAX: u64 = 60_000_000;

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
    /// How many connections it serves at a time; 0: unknown.
    count: AtomicU32,
    /// Connections that had brought a response when one was last closed to make room.
    served: AtomicU32,
    /// When more are tried, and the pause before the next try.
    next_us: AtomicU64,
    pause_us: AtomicU64,
    /// How many more the last try was; 0: it has failed.
    step: AtomicU32,
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
            count: AtomicU32::default(),
            served: AtomicU32::default(),
            next_us: AtomicU64::default(),
            pause_us: AtomicU64::new(PAUSE_US),
            step: AtomicU32::default(),
        }
    }
}

impl Places {
    /// It is another server.
    pub(crate) fn forget(&self) {
        let all = [&self.tried_us, &self.waited_us, &self.closed_us, &self.helped_us];
        all.into_iter().for_each(|time| time.store(0, Ordering::Relaxed));
        self.patience_us.store(LATE_US, Ordering::Relaxed);
        let counts = [&self.tries, &self.proofs, &self.count, &self.served, &self.step];
        counts.into_iter().for_each(|count| count.store(0, Ordering::Relaxed));
        self.pause_us.store(PAUSE_US, Ordering::Relaxed);
    }

    /// How many connections the server serves at a time, over all workers; 0: unknown.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// A request waits because each place has a connection. Tries more if that is due.
    pub(crate) fn on_waiting(&self, now_us: u64) {
        if self.count() == 0 {
            return;
        }
        if !self.is_crowded(now_us) {
            self.count.store(0, Ordering::Relaxed);
            return;
        }
        let next_us = self.next_us.load(Ordering::Relaxed);
        let step = self.step.load(Ordering::Relaxed);
        // The last try has not failed.
        let worked = step > 0;
        let is_due = next_us <= now_us
            && self
                .next_us
                .compare_exchange(next_us, now_us + PAUSE_US, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_due {
            if worked {
                self.pause_us.store(PAUSE_US, Ordering::Relaxed);
            }
            let step = if worked { step.saturating_mul(2) } else { 1 };
            self.step.store(step, Ordering::Relaxed);
            let count = self.count().saturating_add(step);
            self.count.store(count, Ordering::Relaxed);
        }
    }

    /// Closing has helped: each place had a connection that had brought a response.
    fn learn(&self, now_us: u64) {
        let served = self.served.load(Ordering::Relaxed);
        let known = self.count.swap(served, Ordering::Relaxed) > 0;
        self.step.store(0, Ordering::Relaxed);
        let pause_us = match known {
            true => self.pause_us.load(Ordering::Relaxed).saturating_mul(2).min(PAUSE_US_MAX),
            false => PAUSE_US,
        };
        self.pause_us.store(pause_us, Ordering::Relaxed);
        self.next_us.store(now_us + pause_us, Ordering::Relaxed);
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

    /// Others make room; this many connections have brought a response, over all workers. 0: there
    /// are too few for each worker to have one, so that they have to take turns.
    pub(crate) fn on_vacate(&self, served: u32) {
        self.served.store(served, Ordering::Relaxed);
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
            if self.is_crowded(now_us) {
                self.learn(now_us);
            }
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

    /// Closing helps while this many connections have brought a response.
    fn helped(places: &Places, now_us: u64, served: u32) {
        places.on_vacate(served);
        places.on_closed(now_us);
        places.on_first_answer(now_us + 1, now_us - LATE_US);
    }

    #[test]
    fn places_are_counted_when_they_are_known() {
        let places = Places::default();
        helped(&places, SECOND, 16);
        assert_eq!(places.count(), 0, "not by one proof");
        places.on_waiting(SECOND + 2);
        assert_eq!(places.count(), 0);
        helped(&places, 2 * SECOND, 16);
        assert_eq!(places.count(), 16);
        places.forget();
        assert_eq!(places.count(), 0, "another server");
    }

    /// The pause grows while there are none, and the count follows when there are.
    #[test]
    fn more_places_are_looked_for() {
        let places = Places::default();
        (1..3).for_each(|n| helped(&places, n * SECOND, 4));
        let mut now_us = 2 * SECOND + 1;
        for pause_us in [1, 2, 4, 8].map(|pause| pause * PAUSE_US) {
            places.on_waiting(now_us + pause_us - 1);
            assert_eq!(places.count(), 4, "{pause_us}");
            now_us += pause_us;
            (0..3).for_each(|_| places.on_waiting(now_us));
            assert_eq!(places.count(), 5, "one more");
            helped(&places, now_us, 4);
            assert_eq!(places.count(), 4);
            now_us += 1;
        }
        now_us += PAUSE_US_MAX;
        for count in [5, 7, 11, 19] {
            places.on_waiting(now_us);
            assert_eq!(places.count(), count, "it has more now");
            now_us += PAUSE_US;
        }
        places.on_waiting(now_us + MEMORY_US);
        assert_eq!(places.count(), 0, "not for ever");
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
