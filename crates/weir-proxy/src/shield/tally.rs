//! What is counted of one limit. It belongs to the limit and not to a plan: a reload that keeps the limit keeps it.
//!
//! Workers count in lines of their own, so that none of them waits for another's; with more than [`STRIPES`] some share one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Lines of counters.
const STRIPES: usize = 16;

/// What has become of one that a limit is for.
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
    /// The table had no room for what it says, which was counted together with others. It is one of those above as well.
    Shared,
}

impl Outcome {
    /// All, in the order in which they are shown.
    pub const ALL: [Outcome; 5] =
        [Outcome::Passed, Outcome::Refused, Outcome::Observed, Outcome::Untracked, Outcome::Shared];

    /// The word in status and metrics.
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
    /// Counts one, on this worker.
    #[inline]
    pub fn count(&self, worker: u16, outcome: Outcome) {
        self.0[usize::from(worker) % STRIPES].0[outcome as usize].fetch_add(1, Relaxed);
    }

    /// How many there were.
    pub fn get(&self, outcome: Outcome) -> u64 {
        self.0.iter().fold(0, |sum, stripe| sum.wrapping_add(stripe.0[outcome as usize].load(Relaxed)))
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
