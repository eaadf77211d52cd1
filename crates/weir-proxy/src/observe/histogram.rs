//! Latency histograms in microseconds: logarithmic with 16 linear steps an octave.
//!
//! One writer (the worker) records with plain loads and stores. Any thread may take a [`Snapshot`]
//! at any time, merge those of several workers, and subtract an earlier one to see only later
//! values (the sliding window of docs/semantics.md#what-you-can-observe). Bounds: 3.7 KB, one
//! bucket and the sum written for each value; a percentile is off by at most 1/32 (3.2 %).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::base::log_buckets::Scale;
use crate::observe::counters::COUNTING;

/// Steps an octave, as a power of two.
const STEP_BITS: u32 = 4;
type Buckets = Scale<STEP_BITS>;
/// Values from here on (71 minutes) count as the last bucket.
const VALUE_BITS: u32 = 32;
const BUCKETS: usize = Buckets::buckets(VALUE_BITS);

/// Counts of values, written by one thread and read by any.
pub struct Histogram {
    counts: Box<[AtomicU64; BUCKETS]>,
    sum: AtomicU64,
    max: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        let counts = Box::new([const { AtomicU64::new(0) }; BUCKETS]);
        Histogram { counts, sum: AtomicU64::new(0), max: AtomicU64::new(0) }
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let snapshot = self.snapshot();
        let (count, p50, max) = (snapshot.count(), snapshot.percentile(5000), snapshot.max);
        write!(f, "Histogram {{ count: {count}, p50: {p50:?}, max: {max} }}")
    }
}

impl Histogram {
    /// Counts a value. Only the owner may call it: with two writers values would be lost.
    #[inline]
    pub fn record(&self, value_us: u64) {
        self.record_many(value_us, 1);
    }

    /// Counts a value `times` times. Only the owner may call it.
    #[inline]
    pub fn record_many(&self, value_us: u64, times: u64) {
        if !COUNTING {
            return;
        }
        let count = &self.counts[bucket(value_us)];
        count.store(count.load(Relaxed) + times, Relaxed);
        self.sum.store(self.sum.load(Relaxed).wrapping_add(value_us.wrapping_mul(times)), Relaxed);
        if value_us > self.max.load(Relaxed) {
            self.max.store(value_us, Relaxed);
        }
    }

    /// Returns the values counted so far. Values recorded meanwhile may be seen in part (in the sum
    /// and not in the counts).
    pub fn snapshot(&self) -> Snapshot {
        let counts = self.counts.iter().map(|count| count.load(Relaxed)).collect();
        Snapshot { counts, sum: self.sum.load(Relaxed), max: self.max.load(Relaxed) }
    }
}

/// Counts at one moment, or between two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    counts: Box<[u64]>,
    sum: u64,
    max: u64,
}

impl Default for Snapshot {
    fn default() -> Snapshot {
        Snapshot { counts: vec![0; BUCKETS].into(), sum: 0, max: 0 }
    }
}

impl Snapshot {
    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of all values in microseconds, exact.
    pub fn sum_us(&self) -> u64 {
        self.sum
    }

    /// Returns the largest value: exact, or after [`Snapshot::since`] as exact as a percentile.
    /// None without values.
    pub fn max_us(&self) -> Option<u64> {
        (self.count() > 0).then_some(self.max)
    }

    /// Returns the smallest value, as exact as a percentile. None without values.
    pub fn min_us(&self) -> Option<u64> {
        self.counts.iter().position(|&count| count > 0).map(|at| middle(at).min(self.max))
    }

    /// Returns the mean. None without values.
    pub fn mean_us(&self) -> Option<u64> {
        self.sum.checked_div(self.count())
    }

    /// Returns the value that `of_10_000` of 10,000 values do not exceed: 5000 is the median, 9990
    /// is p99.9. None without values.
    pub fn percentile(&self, of_10_000: u32) -> Option<u64> {
        let count = self.count();
        let rank = (u128::from(count) * u128::from(of_10_000.min(10_000))).div_ceil(10_000).max(1);
        let mut below = 0;
        let at = self.counts.iter().position(|&count| {
            below += u128::from(count);
            below >= rank
        })?;
        Some(middle(at).min(self.max))
    }

    /// Adds the values of another snapshot.
    pub fn merge(&mut self, other: &Snapshot) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, other)| *mine += other);
        self.sum = self.sum.wrapping_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// Returns the values after an earlier snapshot of the same histogram.
    pub fn since(&self, earlier: &Snapshot) -> Snapshot {
        let pairs = self.counts.iter().zip(&earlier.counts);
        let counts: Box<[u64]> = pairs.map(|(now, before)| now.saturating_sub(*before)).collect();
        // The exact largest value is known only if it is a new one.
        let max = match counts.iter().rposition(|&count| count > 0) {
            Some(_) if self.max > earlier.max => self.max,
            Some(at) => middle(at).min(self.max),
            None => 0,
        };
        Snapshot { counts, sum: self.sum.wrapping_sub(earlier.sum), max }
    }

    /// Returns a compact copy to keep.
    pub fn sparse(&self) -> Sparse {
        let counted = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        Sparse {
            counts: counted.map(|(at, count)| (at as u16, *count)).collect(),
            sum: self.sum,
            max: self.max,
        }
    }

    /// Adds a compact copy.
    pub fn add(&mut self, kept: &Sparse) {
        kept.counts.iter().for_each(|(at, count)| self.counts[usize::from(*at)] += count);
        self.sum = self.sum.wrapping_add(kept.sum);
        self.max = self.max.max(kept.max);
    }

    /// Returns the number of values up to a bound; those in the bound's bucket count only if it
    /// ends with the bound.
    pub fn count_up_to(&self, bound: u64) -> u64 {
        self.counts[..bucket(bound + 1)].iter().sum()
    }

    /// Returns upper bounds (inclusive) and counts of the buckets that are not empty, in ascending
    /// order.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let all = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        all.map(|(at, count)| (Buckets::first(at) + Buckets::width(at) - 1, *count))
    }
}

/// A [`Snapshot`] with only the buckets that are not empty: a few hundred bytes for the values of
/// some seconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sparse {
    counts: Box<[(u16, u64)]>,
    sum: u64,
    max: u64,
}

/// The bucket of a value.
#[inline]
fn bucket(value: u64) -> usize {
    Buckets::bucket(value).min(BUCKETS - 1)
}

/// Returns the value that represents a bucket: at most half its width from each of its values.
fn middle(bucket: usize) -> u64 {
    Buckets::first(bucket) + (Buckets::width(bucket) - 1) / 2
}

#[cfg(test)]
mod tests {
    //! Proves: each value has its bucket, percentiles are within 1/32 of the exact ones, merging
    //! and subtracting give the same as recording. How: all bucket edges, and properties against a
    //! sorted list.

    use proptest::prelude::*;

    use super::*;

    fn of(values: &[u64]) -> Snapshot {
        let histogram = Histogram::default();
        values.iter().for_each(|value| histogram.record(*value));
        histogram.snapshot()
    }

    #[test]
    fn buckets_follow_each_other_without_gap() {
        let (first, width) = (Buckets::first, Buckets::width);
        let mut next = 0;
        for at in 0..BUCKETS {
            assert_eq!(first(at), next);
            assert_eq!((bucket(first(at)), bucket(first(at) + width(at) - 1)), (at, at));
            assert!(width(at) == 1 || width(at) << STEP_BITS <= first(at));
            next = first(at) + width(at);
        }
        assert_eq!(next, 1 << VALUE_BITS);
        assert_eq!((bucket(1 << VALUE_BITS), bucket(u64::MAX)), (BUCKETS - 1, BUCKETS - 1));
        assert!(size_of::<[AtomicU64; BUCKETS]>() <= 4096);
    }

    #[test]
    fn nothing_recorded() {
        let empty = of(&[]);
        assert_eq!(empty, Snapshot::default());
        assert_eq!(
            (empty.percentile(5000), empty.mean_us(), empty.max_us(), empty.min_us()),
            (None, None, None, None)
        );
    }

    /// The basis of a metric with few bounds: exact where a bucket begins behind the bound.
    #[test]
    fn values_up_to_a_bound() {
        let snapshot = of(&[0, 63, 64, 65, 127, 128, 1 << 20]);
        for (bound, expected) in
            [(63, 2), (127, 5), (255, 6), ((1 << 20) - 1, 6), ((1 << 21) - 1, 7)]
        {
            assert_eq!(snapshot.count_up_to(bound), expected, "{bound}");
        }
    }

    #[test]
    fn huge_values_count_as_the_last_bucket_and_stay_in_the_maximum() {
        let snapshot = of(&[u64::MAX / 4, 1]);
        assert_eq!((snapshot.count(), snapshot.max_us()), (2, Some(u64::MAX / 4)));
    }

    proptest! {
        #[test]
        fn percentiles_are_close(
            mut values in prop::collection::vec(
                (any::<u32>(), 0..32u32).prop_map(|(v, s)| u64::from(v >> s)),
                1..300
            ),
            of_10_000 in 0..=10_000u32,
        ) {
            let snapshot = of(&values);
            values.sort_unstable();
            let rank = (values.len() * of_10_000 as usize).div_ceil(10_000).max(1);
            let (exact, found) = (values[rank - 1], snapshot.percentile(of_10_000).unwrap());
            prop_assert!(found.abs_diff(exact) * 32 <= exact, "{} for {}", found, exact);
            prop_assert_eq!(snapshot.max_us(), values.last().copied());
            prop_assert_eq!(snapshot.sum_us(), values.iter().sum::<u64>());
            prop_assert!(snapshot.min_us().unwrap().abs_diff(values[0]) * 32 <= values[0]);
        }

        #[test]
        fn merged_and_subtracted(
            first in prop::collection::vec(any::<u32>().prop_map(u64::from), 0..50),
            second in prop::collection::vec(any::<u32>().prop_map(u64::from), 0..50),
        ) {
            let all: Vec<u64> = first.iter().chain(&second).copied().collect();
            let (before, after) = (of(&first), of(&all));
            let mut merged = before.clone();
            merged.merge(&of(&second));
            prop_assert_eq!(&merged, &after);
            let mut kept = Snapshot::default();
            kept.add(&before.sparse());
            kept.add(&of(&second).sparse());
            prop_assert_eq!(&kept, &after);
            let since = after.since(&before);
            prop_assert_eq!((&since.counts, since.sum), (&of(&second).counts, of(&second).sum));
            if let (Some(found), Some(exact)) = (since.max_us(), second.iter().max()) {
                prop_assert!(found.abs_diff(*exact) * 32 <= *exact);
            }
        }
    }
}
