//! When a lost connection to a server is opened again, and how many at once.
//!
//! The engine keeps one [`Backoff`] a connection and one [`Pacer`] a server. A connection that
//! closes is replaced at once; one that can't be opened is tried less and less often. When hundreds
//! drop together, the server is not met by all of them in the same moment. docs/retries.md.

use crate::base::stamp::mix;

/// Delays before the first tries; then it doubles from a second on.
const FIRST_US: [u64; 6] = [0, 1_000, 10_000, 100_000, 250_000, 500_000];
/// Longest delay.
const DELAY_US_MAX: u64 = 30 * 1_000_000;

/// Tries of one connection since it last worked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Backoff {
    /// Delays asked for since [`Backoff::reset`].
    attempts: u32,
    /// Of them before the last connect to the server that succeeded.
    before: u32,
    /// Connects to the server that had succeeded when [`Backoff::failures`] was last asked.
    connects: u64,
}

impl Backoff {
    /// Delays asked for since the last success: after a failed first connect it is 1.
    pub(crate) fn attempts(self) -> u32 {
        self.attempts
    }

    /// A connect has failed: returns how many did in a row. `connects`: how many to the server have
    /// succeeded, which need not have been of use.
    pub(crate) fn failures(&mut self, connects: u64) -> u32 {
        if std::mem::replace(&mut self.connects, connects) != connects {
            self.before = self.attempts.saturating_sub(1);
        }
        self.attempts - self.before
    }

    /// The connection was of use.
    pub(crate) fn reset(&mut self) {
        *self = Backoff::default();
    }

    /// How long to wait before the next try: at once, 1 ms, 10, 100, 250, 500 ms, 1 s, 2 s ... 30
    /// s. Up to a quarter is taken off depending on `seed`, which should differ between
    /// connections, so that they don't march in step.
    pub(crate) fn next_delay_us(&mut self, seed: u64) -> u64 {
        let attempt = self.attempts as usize;
        self.attempts = self.attempts.saturating_add(1);
        let delay_us = match FIRST_US.get(attempt) {
            Some(delay_us) => *delay_us,
            // Five doublings of a second are more than the longest delay.
            None => (1_000_000 << (attempt - FIRST_US.len()).min(5)).min(DELAY_US_MAX),
        };
        delay_us - mix(seed ^ u64::from(self.attempts)) % (delay_us / 4 + 1)
    }
}

/// How long a tick of the pacer is: long enough that a handshake in the same building has ended, so
/// that a server that can't keep up is noticed before ten times as many come.
pub(crate) const PACE_TICK_US: u64 = 10_000;
/// Most connects of one tick.
pub(crate) const PACE_MAX: u32 = 1000;
/// Without a tick that used its whole allowance for this long, it starts from 1 again.
pub(crate) const PACE_CALM_US: u64 = 1_000_000;

/// Admits connects to one server: 1 in the first tick, then 10, 100, 1000 a tick while there are
/// more to make.
#[derive(Debug, Clone)]
pub(crate) struct Pacer {
    /// Admitted in each tick.
    allowance: u32,
    /// Still free in the current tick.
    left: u32,
    /// Beginning of the current tick.
    tick_us: u64,
    /// When a tick last used its whole allowance.
    busy_us: u64,
}

impl Default for Pacer {
    fn default() -> Pacer {
        Pacer { allowance: 1, left: 1, tick_us: 0, busy_us: 0 }
    }
}

impl Pacer {
    /// Whether a connect may begin now.
    ///
    /// # Errors
    /// The time at which to ask again.
    pub(crate) fn admit(&mut self, now_us: u64) -> Result<(), u64> {
        if now_us >= self.tick_us + PACE_TICK_US {
            self.begin_tick(now_us);
        }
        if self.left == 0 {
            self.busy_us = now_us;
            return Err(self.tick_us + PACE_TICK_US);
        }
        self.left -= 1;
        Ok(())
    }

    fn begin_tick(&mut self, now_us: u64) {
        if now_us.saturating_sub(self.busy_us) >= PACE_CALM_US {
            self.allowance = 1;
        } else if self.left == 0 {
            self.allowance = (self.allowance * 10).min(PACE_MAX);
        }
        self.left = self.allowance;
        self.tick_us = now_us;
    }
}

#[cfg(test)]
mod tests {
    //! Proves: the delays, their jitter and the pace are those of
    //! docs/retries.md. How: step by step.

    use super::*;

    #[test]
    fn delays_grow_to_30_seconds_with_jitter() {
        let expected_ms = [0, 1, 10, 100, 250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000];
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..1000 {
            let mut backoff = Backoff::default();
            for (attempt, most_ms) in expected_ms.into_iter().enumerate() {
                assert_eq!(backoff.attempts() as usize, attempt);
                let delay_us = backoff.next_delay_us(seed);
                assert!(
                    delay_us <= most_ms * 1000 && delay_us >= most_ms * 750,
                    "{most_ms} ms: {delay_us}"
                );
                seen.insert(delay_us);
            }
            backoff.reset();
            assert_eq!((backoff.next_delay_us(seed), backoff.attempts()), (0, 1));
        }
        assert!(seen.len() > 5000, "{} different delays", seen.len());
        let mut backoff = Backoff { attempts: u32::MAX, ..Backoff::default() };
        assert!(backoff.next_delay_us(1) <= DELAY_US_MAX);
    }

    #[test]
    fn connects_that_failed_in_a_row() {
        let mut backoff = Backoff::default();
        for connects in 1..20 {
            backoff.next_delay_us(1);
            assert_eq!(backoff.failures(connects.into()), 1, "the connects before were answered");
            backoff.next_delay_us(1);
            assert_eq!(
                (backoff.failures(connects.into()), backoff.attempts()),
                (2, 2 * connects),
                "but were of no use"
            );
        }
        backoff.reset();
        assert_eq!((backoff.failures(21), backoff.attempts()), (0, 0));
    }

    /// Admitted at once when this many ask.
    fn admitted(pacer: &mut Pacer, now_us: u64, asking: u32) -> u32 {
        (0..asking).filter(|_| pacer.admit(now_us).is_ok()).count() as u32
    }

    #[test]
    fn a_crowd_is_admitted_in_growing_groups() {
        let mut pacer = Pacer::default();
        let mut now_us = 5_000_000;
        let mut left = 5000;
        let mut groups = Vec::new();
        while left > 0 {
            let group = admitted(&mut pacer, now_us, left);
            groups.push(group);
            left -= group;
            assert!(left == 0 || pacer.admit(now_us) == Err(now_us + PACE_TICK_US));
            now_us += PACE_TICK_US;
        }
        assert_eq!(groups, [1, 10, 100, 1000, 1000, 1000, 1000, 889]);
        // A calm second, and it starts from 1 again.
        now_us += PACE_CALM_US;
        assert_eq!(admitted(&mut pacer, now_us, 50), 1);
    }

    #[test]
    fn single_losses_are_replaced_at_once() {
        let mut pacer = Pacer::default();
        for second in 1..100 {
            assert_eq!(pacer.admit(second * 50_000), Ok(()));
        }
    }

    #[test]
    fn the_pace_stays_while_it_is_used_and_no_longer_grows_when_it_suffices() {
        let mut pacer = Pacer::default();
        let mut now_us = 5_000_000;
        admitted(&mut pacer, now_us, 2);
        for _ in 0..20 {
            now_us += PACE_TICK_US;
            assert_eq!(admitted(&mut pacer, now_us, 5), 5);
        }
        now_us += PACE_TICK_US;
        assert_eq!(admitted(&mut pacer, now_us, 50), 10);
    }
}
