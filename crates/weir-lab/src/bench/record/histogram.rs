//! Latencies of a run as counts in buckets, narrow enough that a percentile is at most 4.5 % above
//! the measured one.
//!
//! Made by `run/load.rs` from the generator's output. Bound: 16 buckets for each doubling, so a few
//! hundred pairs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Buckets of each doubling.
const STEPS: f64 = 16.0;

/// Pairs of the highest latency of a bucket, microseconds, and a count; rising.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Histogram(Vec<(u64, u64)>);

impl Histogram {
    /// Counts latencies in microseconds with their counts, and histograms of other rounds.
    pub(crate) fn of(pairs: impl IntoIterator<Item = (u64, u64)>) -> Histogram {
        let mut buckets: BTreeMap<u64, u64> = BTreeMap::new();
        for (us, count) in pairs.into_iter().filter(|(_, count)| *count > 0) {
            *buckets.entry(bucket_us(us)).or_default() += count;
        }
        Histogram(buckets.into_iter().collect())
    }

    /// Whether nothing was counted.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its pairs.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().copied()
    }

    /// Latencies counted.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    /// Returns the latency that this share of all, 0 to 1, did not exceed, microseconds; NaN
    /// without latencies.
    pub(crate) fn quantile_us(&self, quantile: f64) -> f64 {
        let wanted = (quantile * self.count() as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let at = self.0.iter().find(|(_, count)| {
            seen += count;
            seen >= wanted
        });
        at.map_or(f64::NAN, |(us, _)| *us as f64)
    }
}

/// Returns the highest latency of its bucket. The highest of a bucket is in that bucket.
fn bucket_us(us: u64) -> u64 {
    let step = ((us.max(1) as f64).log2() * STEPS - 1e-6).ceil();
    // Below 23 microseconds several steps are the same whole number.
    ((step / STEPS).exp2().floor() as u64).max(us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_latencies_but_for_the_width_of_a_bucket() {
        let histogram = Histogram::of((1..=10_000).map(|us| (us, 1)));
        assert_eq!(histogram.count(), 10_000);
        assert!(histogram.pairs().count() < 250, "{histogram:?}");
        for (quantile, us) in [(0.0001, 1.0), (0.5, 5_000.0), (0.99, 9_900.0), (1.0, 10_000.0)] {
            let got = histogram.quantile_us(quantile);
            assert!(got >= us && got <= us * 1.045, "{quantile}: {got}");
        }
        assert!(
            Histogram::default().quantile_us(0.5).is_nan() && Histogram::of([(5, 0)]).is_empty()
        );
    }

    #[test]
    fn histograms_of_rounds_add_up() {
        let one = Histogram::of([(100, 3), (2_000, 1)]);
        let both = Histogram::of(one.pairs().chain(Histogram::of([(100, 2)]).pairs()));
        assert_eq!(both.count(), 6);
        assert_eq!(both.pairs().count(), 2, "a bucket stays what it is: {both:?}");
        assert!(both.quantile_us(0.5) < 105.0);
    }
}
