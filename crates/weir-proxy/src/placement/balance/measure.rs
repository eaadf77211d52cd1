//! The recent response times of one server, as one worker sees them: from sending a request to the
//! beginning of its response.
//!
//! Counts in buckets of an eighth of an octave, in [`SLOTS`] consecutive slots. A slot is closed
//! when it is [`TICK_US`] old and has some responses, or is old in any case: the window is half a
//! second with traffic, and several seconds with little. Requests in flight that take long count as
//! if their response came now, so that a server that has stopped responding is measured all the
//! same. Bound: 6 KiB for each server and worker, only with methods that need it.

use super::{Statistic, TICK_US};
use crate::base::log_buckets::Scale;

const SLOTS: usize = 10;
/// Steps an octave, as a power of two.
const STEP_BITS: u32 = 3;
type Buckets = Scale<STEP_BITS>;
/// Longer times (a minute and more) count as this.
const TIME_BITS: u32 = 26;
const BUCKETS: usize = Buckets::buckets(TIME_BITS);
/// A slot with fewer responses remains open.
const SAMPLES_MIN: u32 = 3;
/// But not longer than this.
const SLOT_US_MAX: u64 = 500_000;

#[derive(Debug, Clone)]
struct Slot {
    counts: [u16; BUCKETS],
    count: u32,
    sum_us: u64,
    min_us: u32,
    max_us: u32,
}

const EMPTY: Slot = Slot { counts: [0; BUCKETS], count: 0, sum_us: 0, min_us: u32::MAX, max_us: 0 };

/// See the module.
#[derive(Debug)]
pub struct Measure {
    by: Statistic,
    slots: Box<[Slot; SLOTS]>,
    /// The open slot, and since when.
    open: usize,
    opened_us: u64,
    /// Counts of all slots.
    total: Box<[u32; BUCKETS]>,
    due_us: u64,
}

impl Measure {
    /// Returns a measure without data.
    pub fn new(by: Statistic) -> Measure {
        let slots = Box::new([EMPTY; SLOTS]);
        Measure { by, slots, open: 0, opened_us: 0, total: Box::new([0; BUCKETS]), due_us: 0 }
    }

    /// Counts a response that began this long after its request was sent.
    #[inline]
    pub fn record(&mut self, response_us: u64) {
        let time_us = response_us.min((1 << TIME_BITS) - 1) as u32;
        let (bucket, slot) = (bucket(time_us), &mut self.slots[self.open]);
        // Samples beyond the range of a counter are far more than needed.
        if slot.counts[bucket] == u16::MAX {
            return;
        }
        slot.counts[bucket] += 1;
        self.total[bucket] += 1;
        slot.count += 1;
        slot.sum_us += u64::from(time_us);
        slot.min_us = slot.min_us.min(time_us);
        slot.max_us = slot.max_us.max(time_us);
    }

    /// Whether [`Measure::read`] is worth calling.
    #[inline]
    pub fn is_due(&self, now_us: u64) -> bool {
        now_us >= self.due_us
    }

    /// Returns the response time in microseconds and the number of responses behind it; with 0 of
    /// them it is unknown. `waiting` has the current ages of requests in flight, each with a number
    /// of requests.
    pub fn read(
        &mut self,
        now_us: u64,
        waiting: impl Iterator<Item = (u64, u32)> + Clone,
    ) -> (u32, u32) {
        self.due_us = now_us + TICK_US;
        self.close_slot(now_us);
        let slots = || self.slots.iter().filter(|slot| slot.count > 0);
        let count: u32 = slots().map(|slot| slot.count).sum();
        let measured_us = (count > 0).then(|| self.measured(count));
        // Requests that were sent just now say nothing.
        let late =
            waiting.filter(|(age_us, _)| measured_us.is_none_or(|us| *age_us > u64::from(us)));
        let late = late.map(|(age_us, requests)| (age_us.min((1 << TIME_BITS) - 1), requests));
        let late_count: u32 = late.clone().map(|(_, requests)| requests).sum();
        if late_count == 0 {
            return (measured_us.unwrap_or(0), count);
        }
        (self.with_late(late, count), count + late_count)
    }

    fn measured(&self, count: u32) -> u32 {
        let slots = || self.slots.iter().filter(|slot| slot.count > 0);
        match self.by {
            Statistic::Min => slots().map(|slot| slot.min_us).min().unwrap_or(0),
            Statistic::Max => slots().map(|slot| slot.max_us).max().unwrap_or(0),
            Statistic::Avg => {
                (slots().map(|slot| slot.sum_us).sum::<u64>() / u64::from(count)) as u32
            }
            Statistic::Percentile(of_10_000) => self.percentile(of_10_000, count, |_| 0),
        }
    }

    /// Returns the response time including requests that already take longer.
    fn with_late(&self, late: impl Iterator<Item = (u64, u32)> + Clone, count: u32) -> u32 {
        let slots = || self.slots.iter().filter(|slot| slot.count > 0);
        let all = count + late.clone().map(|(_, requests)| requests).sum::<u32>();
        match self.by {
            Statistic::Min if count > 0 => self.measured(count),
            Statistic::Min => late.map(|(age_us, _)| age_us as u32).min().unwrap_or(0),
            Statistic::Max => late.map(|(age_us, _)| age_us as u32).max().unwrap_or(0),
            Statistic::Avg => {
                let waited_us: u64 =
                    late.map(|(age_us, requests)| age_us * u64::from(requests)).sum();
                ((slots().map(|slot| slot.sum_us).sum::<u64>() + waited_us) / u64::from(all)) as u32
            }
            Statistic::Percentile(of_10_000) => self.percentile(of_10_000, all, |at| {
                late.clone()
                    .filter(|(age_us, _)| bucket(*age_us as u32) == at)
                    .map(|(_, requests)| requests)
                    .sum()
            }),
        }
    }

    fn percentile(&self, of_10_000: u32, count: u32, extra: impl Fn(usize) -> u32) -> u32 {
        let rank = (u64::from(count) * u64::from(of_10_000)).div_ceil(10_000).max(1);
        let mut below = 0;
        let found = (0..BUCKETS).find(|at| {
            below += u64::from(self.total[*at] + extra(*at));
            below >= rank
        });
        found.map_or(0, middle)
    }

    /// Opens the next slot when it is time, and forgets the old contents of that.
    fn close_slot(&mut self, now_us: u64) {
        if self.opened_us == 0 {
            self.opened_us = now_us;
        }
        while self.is_slot_over(now_us) {
            let age_us = now_us - self.opened_us;
            self.open = (self.open + 1) % SLOTS;
            let oldest = &mut self.slots[self.open];
            self.total
                .iter_mut()
                .zip(&oldest.counts)
                .for_each(|(total, count)| *total -= u32::from(*count));
            *oldest = EMPTY;
            // After a pause, empty slots pass at once; at most all of them.
            let passed_us = age_us.min(SLOT_US_MAX);
            self.opened_us =
                (self.opened_us + passed_us).max(now_us.saturating_sub(SLOT_US_MAX * SLOTS as u64));
        }
    }

    fn is_slot_over(&self, now_us: u64) -> bool {
        let age_us = now_us.saturating_sub(self.opened_us);
        age_us >= SLOT_US_MAX || age_us >= TICK_US && self.slots[self.open].count >= SAMPLES_MIN
    }
}

/// The bucket of a time.
fn bucket(time_us: u32) -> usize {
    Buckets::bucket(u64::from(time_us))
}

/// Returns the time that represents a bucket.
fn middle(bucket: usize) -> u32 {
    (Buckets::first(bucket) + Buckets::width(bucket) / 2) as u32
}

#[cfg(test)]
mod tests {
    //! Proves: each statistic, the window, requests in flight count, memory is bounded. How:
    //! examples and all buckets.

    use super::*;

    const NOBODY: std::iter::Empty<(u64, u32)> = std::iter::empty();
    const MS: u64 = 1_000;

    fn read(by: Statistic, times_us: &[u64], waiting: &[(u64, u32)]) -> (u32, u32) {
        let mut measure = Measure::new(by);
        times_us.iter().for_each(|us| measure.record(*us));
        measure.read(MS, waiting.iter().copied())
    }

    #[test]
    fn statistics() {
        let times: Vec<u64> = (1..=100).map(|n| n * 100).collect();
        assert_eq!(read(Statistic::Min, &times, &[]), (100, 100));
        assert_eq!(read(Statistic::Max, &times, &[]), (10_000, 100));
        assert_eq!(read(Statistic::Avg, &times, &[]), (5_050, 100));
        for (of_10_000, exact) in [(5000, 5_000u32), (9000, 9_000), (9900, 9_900), (9990, 10_000)] {
            let (found, _) = read(Statistic::Percentile(of_10_000), &times, &[]);
            assert!(found.abs_diff(exact) * 16 <= exact, "{found} for {exact}");
        }
        assert_eq!(read(Statistic::Avg, &[], &[]), (0, 0));
    }

    #[test]
    fn buckets_follow_each_other() {
        let mut last = 0;
        for time_us in 0..1 << 16 {
            let at = bucket(time_us);
            assert!(at == last || at == last + 1);
            assert!(middle(at).abs_diff(time_us) * 8 <= time_us.max(1), "{time_us} {}", middle(at));
            last = at;
        }
        assert_eq!(bucket((1 << TIME_BITS) - 1), BUCKETS - 1);
        assert_eq!(read(Statistic::Max, &[u64::MAX], &[]), ((1 << TIME_BITS) - 1, 1));
        assert!(size_of::<Slot>() * SLOTS + size_of::<[u32; BUCKETS]>() <= 6 * 1024);
    }

    /// A server that no longer responds: its last responses were quick, but the requests in flight
    /// take long.
    #[test]
    fn what_is_under_way_counts() {
        let quick = [MS; 10];
        assert_eq!(read(Statistic::Avg, &quick, &[(500, 5)]).0, 1000, "not longer than usual");
        assert_eq!(read(Statistic::Avg, &quick, &[(101 * MS, 10)]), (51_000, 20));
        assert!(read(Statistic::Percentile(9000), &quick, &[(100 * MS, 10)]).0 > 90_000);
        assert_eq!(read(Statistic::Percentile(5000), &quick, &[(100 * MS, 10)]).0 / 100, 9);
        assert_eq!(read(Statistic::Max, &quick, &[(100 * MS, 1)]).0, 100_000);
        assert_eq!(read(Statistic::Min, &quick, &[(100 * MS, 1)]).0, 1000);
        for by in [Statistic::Min, Statistic::Avg, Statistic::Max] {
            assert_eq!(read(by, &[], &[(100 * MS, 1)]), (100_000, 1), "{by:?}");
        }
    }

    /// With traffic, half a second later only new responses count; with little, it takes longer; in
    /// the end all is forgotten.
    #[test]
    fn the_window() {
        let mut measure = Measure::new(Statistic::Avg);
        let mut now_us = 1_000_000;
        let mut at = |measure: &mut Measure, each_us: u64, count: u64, value: u64| {
            let mut result = (0, 0);
            for _ in 0..count {
                now_us += each_us;
                measure.record(value);
                result = measure.read(now_us, NOBODY);
            }
            result
        };
        assert_eq!(at(&mut measure, 10 * MS, 200, 100).0, 100);
        assert_eq!(at(&mut measure, 10 * MS, 65, 900).0, 900);
        assert!(
            at(&mut measure, 200 * MS, 5, 100).0 > 100,
            "a second with five answers is not all"
        );
        assert_eq!(at(&mut measure, 200 * MS, 45, 100).0, 100);
        assert_eq!(measure.read(1_000_000_000, NOBODY), (0, 0));
        assert!(measure.total.iter().all(|count| *count == 0));
    }
}
