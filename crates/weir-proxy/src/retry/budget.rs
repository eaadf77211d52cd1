//! How many requests may be sent again after losses: a share of all requests, so that failures
//! don't multiply load.
//!
//! The engine keeps one [`Budget`] an upstream and worker, reports each request that is sent and
//! asks it before one is sent again. Repetitions because weir ends a connection for the sake of one
//! client (it left, its time is up) are charged as well, each request. Otherwise only the oldest
//! request of a lost connection asks, when its repetition is counted: servers work on the requests
//! of a connection one after another, so the requests behind it cost them nothing twice; and it is
//! sent alone from then on, so that it is the oldest when it is lost again. docs/retries.md;
//! Finagle and Envoy bound retries the same way.
//!
//! A bucket of tokens, one a repetition. A request earns `percent` hundredths of one, a second
//! earns [`FLOOR_PER_SECOND`]. The bucket must be able to cover the death of a server with all its
//! requests in flight: it holds at most [`BURST_MIN`], and what the requests of the last
//! [`WINDOW_US`] earned. At 20 % that is two seconds of requests, and the number in flight at once
//! is the request rate times the response time (Little's law). So no request fails for want of a
//! token when one server of several dies, unless a worker has more than 1,000 connections there and
//! requests that take longer than two seconds; and a server that fails everything gets those two
//! seconds twice, then a fifth on top.

/// Repetitions that a bucket holds at least when it is full.
pub const BURST_MIN: u64 = 1_000;
/// Repetitions that each second allows, whatever was sent.
pub const FLOOR_PER_SECOND: u64 = 10;
/// The time whose requests decide how many more a bucket may hold.
pub const WINDOW_US: u64 = 10_000_000;
/// Time between two refills.
const REFILL_US: u64 = 100_000;
/// Tokens are counted in hundredths, so that a percentage of a request is a whole number.
const TOKEN: u64 = 100;

/// Tokens for the repetitions of one upstream on one worker. Integers only; no allocation.
///
/// Invariant: `tokens` <= [`BURST_MIN`] + `percent` of `recent`, in hundredths, at each refill.
#[derive(Debug, Clone)]
pub struct Budget {
    /// 0-100.
    percent: u64,
    /// Hundredths of a repetition.
    tokens: u64,
    /// Requests since the last refill.
    sent: u64,
    /// About as many requests as in the last [`WINDOW_US`] before it.
    recent: u64,
    /// When it was.
    refilled_us: u64,
}

impl Budget {
    /// A full bucket. `percent` of requests (0-100) may be repeated on top of the floor.
    pub fn new(percent: u32, now_us: u64) -> Budget {
        Budget {
            percent: u64::from(percent),
            tokens: BURST_MIN * TOKEN,
            sent: 0,
            recent: 0,
            refilled_us: now_us,
        }
    }

    /// A request was sent; `first`: it is no repetition.
    #[inline]
    pub fn on_sent(&mut self, first: bool) {
        self.sent += u64::from(first);
    }

    /// Whether a request may be sent again now. It counts as sent.
    pub fn spend(&mut self, now_us: u64) -> bool {
        self.refill(now_us);
        let may = self.tokens >= TOKEN;
        self.tokens -= if may { TOKEN } else { 0 };
        may
    }

    /// Whether `count` requests could be sent again now.
    pub fn has(&mut self, now_us: u64, count: u64) -> bool {
        self.refill(now_us);
        self.tokens >= count.saturating_mul(TOKEN)
    }

    /// A request is sent again in any case: its cost is taken from the others.
    pub fn charge(&mut self, now_us: u64) {
        self.refill(now_us);
        self.tokens = self.tokens.saturating_sub(TOKEN);
    }

    /// Adds what was earned since the last refill. Call it every few seconds; a bucket that is
    /// refilled only when something fails would take a burst before a long silence for nothing.
    pub fn refill(&mut self, now_us: u64) {
        let elapsed_us = now_us.saturating_sub(self.refilled_us);
        if elapsed_us < REFILL_US {
            return;
        }
        let faded = u128::from(self.recent) * u128::from(elapsed_us);
        self.recent = match elapsed_us < WINDOW_US {
            true => self.recent - faded.div_ceil(u128::from(WINDOW_US)) as u64 + self.sent,
            false => {
                (u128::from(self.sent) * u128::from(WINDOW_US) / u128::from(elapsed_us)) as u64
            }
        };
        let floor = u128::from(elapsed_us) * u128::from(FLOOR_PER_SECOND * TOKEN) / 1_000_000;
        let earned = (self.sent * self.percent).saturating_add(floor as u64);
        let most = BURST_MIN * TOKEN + self.recent * self.percent;
        self.tokens = self.tokens.saturating_add(earned).min(most);
        self.sent = 0;
        self.refilled_us = now_us;
    }
}

#[cfg(test)]
mod tests {
    //! Proves: whatever happens, repetitions stay below the share and the floor; and a death after
    //! any steady traffic is covered. How: random histories against the sums, and the arithmetic of
    //! a death.

    use super::*;
    use proptest::prelude::*;

    fn spend_all(budget: &mut Budget, now_us: u64) -> u64 {
        let mut spent = 0;
        while budget.spend(now_us) {
            spent += 1;
        }
        spent
    }

    /// Charges are subtracted, down to nothing, and the remainder can be queried.
    #[test]
    fn charges_count() {
        let mut budget = Budget::new(20, 0);
        assert!(budget.has(0, BURST_MIN) && !budget.has(0, BURST_MIN + 1));
        (0..BURST_MIN - 1).for_each(|_| budget.charge(0));
        assert!(budget.has(0, 1) && !budget.has(0, 2));
        (0..5).for_each(|_| budget.charge(0));
        assert!(budget.has(0, 0) && !budget.has(0, 1) && !budget.spend(0));
        assert!(
            budget.has(1_000_000, FLOOR_PER_SECOND) && !budget.has(1_000_000, FLOOR_PER_SECOND + 1)
        );
    }

    proptest! {
        #[test]
        fn never_more_than_the_share(
            percent in 0u32..=100,
            steps in prop::collection::vec((0u64..3_000_000, 0u64..5_000, 0u64..5_000), 1..200),
        ) {
            let (mut now_us, mut sent, mut repeated) = (7, 0, 0);
            let mut budget = Budget::new(percent, now_us);
            let begun_us = now_us;
            for (pause_us, requests, losses) in steps {
                now_us += pause_us;
                (0..requests).for_each(|_| budget.on_sent(true));
                sent += requests;
                for _ in 0..losses {
                    repeated += u64::from(budget.spend(now_us));
                    budget.on_sent(false);
                }
                let earned = sent * u64::from(percent)
                    + (now_us - begun_us) * FLOOR_PER_SECOND * TOKEN / 1_000_000;
                prop_assert!(repeated * TOKEN <= BURST_MIN * TOKEN + earned);
            }
        }

        /// Everything that two seconds of steady traffic bring may be lost at once.
        #[test]
        fn a_death_is_covered(a_second in 1u64..200_000, looks_ms in 100u64..5_000) {
            let mut budget = Budget::new(20, 0);
            let mut now_us = 0;
            while now_us < 30_000_000 {
                now_us += looks_ms * 1_000;
                (0..a_second * looks_ms / 1_000).for_each(|_| budget.on_sent(true));
                budget.refill(now_us);
            }
            // The part that fades within a window of few refills, and the part lost by rounding.
            let expected = a_second * 2 * 6 / 10;
            prop_assert!(spend_all(&mut budget, now_us) >= BURST_MIN.max(expected));
        }
    }

    #[test]
    fn the_floor_comes_back_and_the_bucket_is_bounded() {
        let mut budget = Budget::new(0, 0);
        assert_eq!(spend_all(&mut budget, 0), BURST_MIN);
        assert_eq!(spend_all(&mut budget, 2_000_000), 2 * FLOOR_PER_SECOND);
        assert_eq!(
            spend_all(&mut budget, 3_600_000_000),
            BURST_MIN,
            "an hour is not an hour of repetitions"
        );
        let mut busy = Budget::new(20, 0);
        (0..1_000_000).for_each(|_| busy.on_sent(true));
        busy.refill(1_000_000);
        busy.refill(3_600_000_000);
        assert_eq!(
            spend_all(&mut busy, 3_600_000_000),
            BURST_MIN,
            "nor are the requests of an hour ago"
        );
    }
}
