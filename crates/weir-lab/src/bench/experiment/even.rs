//! The experiments `ladder` and `taken-core`: how clients arrive, when a core is taken, and how
//! rivals are configured.
//!
//! Named by `even_cells.rs`, `cells.rs` and `contenders.rs`. Pure: times are counted from the
//! beginning of a run.

use super::block::Program;
use crate::random::Random;

/// Client connections of a ladder.
pub(crate) const CLIENTS: u32 = 2000;
/// How many of them are opened a second.
pub(crate) const OPENED_A_SECOND: u32 = 500;
/// Size of a burst; bursts take as many seconds altogether.
pub(crate) const BURST: u32 = 100;
/// How often each sends a request, milliseconds, a half more or less each time.
pub(crate) const ASKS_EVERY_MS: u64 = 500;

/// Clients that stay, and the count of them at each worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ladder {
    /// How they come.
    pub(crate) arrival: Arrival,
    /// Workers of the contender; None: one a core.
    pub(crate) workers: Option<usize>,
}

/// How clients come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// One by one: each is accepted before the next one connects, so that the load of a worker can
    /// count.
    Steady,
    /// Many in a moment, before the first of them is accepted.
    Bursts,
}

impl Arrival {
    /// Returns when the client of this number connects, from 0, microseconds.
    pub(crate) fn opened_at_us(self, nth: u32) -> u64 {
        let each_us = 1_000_000 / u64::from(OPENED_A_SECOND);
        match self {
            Arrival::Steady => u64::from(nth) * each_us,
            Arrival::Bursts => u64::from(nth / BURST * BURST) * each_us,
        }
    }
}

/// How long the core is taken each time, microseconds.
pub(crate) const TAKEN_US: u64 = 25_000;
/// How often a second it is taken, on average: 35 % of the time. The kernel grants real-time
/// processes 95 % of each second (`sched_rt_runtime_us`).
pub(crate) const TAKEN_A_SECOND: f64 = 14.0;
/// Kept connections beside that, and their requests a second.
pub(crate) const BESIDE: (u32, u32) = (64, 2000);

/// When a core is taken: at random moments (Poisson), the same ones for the same seed. A taking
/// that comes while the core is taken has to wait for its turn.
#[derive(Debug, Clone)]
pub(crate) struct Takings {
    random: Random,
    /// When the last one came.
    due_us: f64,
    /// When the core is free again.
    free_us: u64,
}

impl Takings {
    /// Returns those of this seed.
    pub(crate) fn new(seed: u64) -> Takings {
        Takings { random: Random::new(seed).fork(0), due_us: 0.0, free_us: 0 }
    }
}

impl Iterator for Takings {
    type Item = u64;

    /// When the core is taken next for [`TAKEN_US`], microseconds.
    fn next(&mut self) -> Option<u64> {
        self.due_us += self.random.exponential() / TAKEN_A_SECOND * 1e6;
        let begins_us = self.free_us.max(self.due_us as u64);
        self.free_us = begins_us + TAKEN_US;
        Some(begins_us)
    }
}

/// nginx or HAProxy, configured differently than for a dedicated machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rival {
    /// The program.
    pub(crate) program: Program,
    /// All workers accept from one socket, which is the default: a worker that is awake takes the
    /// connection. Else each has its own socket (`reuseport`, `shards by-thread`).
    pub(crate) is_shared: bool,
    /// Each worker has a core.
    pub(crate) is_pinned: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_come_as_often_one_by_one_as_in_bursts() {
        let of = |arrival: Arrival| [0, 1, 99, 100, 199, 1999].map(|nth| arrival.opened_at_us(nth));
        assert_eq!(of(Arrival::Steady), [0, 2000, 198_000, 200_000, 398_000, 3_998_000]);
        assert_eq!(of(Arrival::Bursts), [0, 0, 0, 200_000, 200_000, 3_800_000]);
    }

    #[test]
    fn a_core_is_taken_for_a_third_of_the_time_at_the_same_moments_for_the_same_seed() {
        let of = |seed| Takings::new(seed).take(20_000).collect::<Vec<u64>>();
        let begins = of(1);
        assert_eq!(begins, of(1));
        assert_ne!(begins, of(2));
        assert!(
            begins.windows(2).all(|pair| pair[1] >= pair[0] + TAKEN_US),
            "never twice at a time"
        );
        let seconds = *begins.last().unwrap() as f64 / 1e6;
        let share = 20_000.0 * TAKEN_US as f64 / 1e6 / seconds;
        assert!((0.34..0.36).contains(&share), "{share}");
        // An arrival at a random moment finds the core taken as often as it is taken (PASTA).
        let waited = begins.windows(2).filter(|pair| pair[1] == pair[0] + TAKEN_US).count() as f64
            / 20_000.0;
        assert!((0.33..0.37).contains(&waited), "{waited} had to wait for their turn");
    }
}
