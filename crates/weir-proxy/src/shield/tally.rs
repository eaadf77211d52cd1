//! Counters of one limit. They belong to the limit and not to a plan, so a reload that keeps the
//! limit keeps them.
//!
//! Each worker counts in its own cache line, so that no worker waits for another's; with more than
//! [`STRIPES`] workers some share one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Lines of counters.
const STRIPES: usize = 16;

/// The outcome for a connection or request that a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was within the limit.
    Passed,
    /// It was refused.
    Refused,
    /// It was over the limit, which only observes.
    Observed,
    /// The table had no room for its client: it was let through.
    Untracked,
    /// The table had no room for its values, which were counted together with others. One of the
    /// outcomes above is counted as well.
    Shared,
}

impl Outcome {
    /// All, in the order in which they are shown.
    pub const ALL: [Outcome; 5] =
        [Outcome::Passed, Outcome::Refused, Outcome::Observed, Outcome::Untracked, Outcome::Shared];

    /// Returns the word in status and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Refused => "refused",
            Outcome::Observed => "observed",
            Outcome::Untracked => "untracked",
            Outcome::Shared => "shared",
        }
    }
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe([AtomicU64; 5]);

const _: () = assert!(size_of::<Stripe>() == 64);

/// See the module.
#[derive(Debug, Default)]
pub struct Tally([Stripe; STRIPES]);

impl Tally {
    /// Counts one outcome on this worker.
    #[inline]
    pub fn count(&self, worker: u16, outcome: Outcome) {
        self.0[usize::from(worker) % STRIPES].0[outcome as usize].fetch_add(1, Relaxed);
    }

    /// Returns the count of an outcome.
    pub fn get(&self, outcome: Outcome) -> u64 {
        self.0
            .iter()
            .fold(0, |sum, stripe| sum.wrapping_add(stripe.0[outcome as usize].load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_is_counted_by_itself_over_all_workers() {
        let tally = Tally::default();
        for worker in 0..40 {
            for (place, outcome) in Outcome::ALL.into_iter().enumerate() {
                (0..=place).for_each(|_| tally.count(worker, outcome));
            }
        }
        assert_eq!(Outcome::ALL.map(|outcome| tally.get(outcome)), [40, 80, 120, 160, 200]);
    }
}
