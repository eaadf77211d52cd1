//! The arithmetic over several runs: medians, and ratios that are taken within a round.
//!
//! Called by reports, and by `run/rounds.rs`, which sets a rate according to earlier measurements.

use serde::Serialize;

use super::outcome::Record;
use crate::bench::experiment::metric::Metric;

/// Returns the median; NaN without values.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

/// Returns the median over rounds.
pub(crate) fn middle(own: &[&Record], read: &dyn Fn(&Record) -> f64) -> f64 {
    median(own.iter().map(|record| read(record)).collect())
}

/// The confidence that an interval should have, where there are enough rounds.
const CONFIDENCE: f64 = 0.95;

/// Returns the confidence interval of a median of `count` values by their order, which assumes
/// nothing about their distribution. It gives how many values to leave out at each end, and the
/// probability that the rest encloses the true median. It is as narrow as [`CONFIDENCE`] allows;
/// with fewer than six values it has all of them, and then is less certain than that.
fn interval(count: usize) -> (usize, f64) {
    // The true median is outside when at most `left_out` values are on one of its sides: tosses of
    // a coin.
    let mut tail = 0.5_f64.powi(count as i32);
    let mut ways = tail;
    let mut best = (0, 1.0 - 2.0 * tail);
    for left_out in 1..count.div_ceil(2) {
        ways *= (count - left_out + 1) as f64 / left_out as f64;
        tail += ways;
        if 1.0 - 2.0 * tail < CONFIDENCE {
            break;
        }
        best = (left_out, 1.0 - 2.0 * tail);
    }
    (best.0, best.1.max(0.0))
}

/// Returns the probability that the interval of a median over this many rounds encloses the true
/// one.
pub(crate) fn confidence(rounds: u32) -> f64 {
    interval(rounds as usize).1
}

/// A figure over several rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    /// The lower end of the median's confidence interval.
    pub(crate) low: f64,
    /// The median.
    pub(crate) median: f64,
    /// The upper end.
    pub(crate) high: f64,
}

impl Spread {
    /// Returns the spread of these figures, without those that are not numbers; None when there are
    /// no others.
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (left_out, _) = interval(values.len());
        let low = *values.get(left_out)?;
        Some(Spread { low, high: values[values.len() - 1 - left_out], median: median(values) })
    }

    /// Returns the spread of the ratios between two contenders' figures, each within a round.
    pub(crate) fn of_ratios(
        records: &[&Record],
        metric: Metric,
        subject: &str,
        against: &str,
    ) -> Option<Spread> {
        Spread::of_pairs(records, metric, [subject, against], |mine, other| mine / other)
    }

    /// Returns the spread of the differences between two contenders' figures, each within a round.
    pub(crate) fn of_differences(
        records: &[&Record],
        metric: Metric,
        subject: &str,
        less: &str,
    ) -> Option<Spread> {
        Spread::of_pairs(records, metric, [subject, less], |mine, other| mine - other)
    }

    fn of_pairs(
        records: &[&Record],
        metric: Metric,
        [subject, against]: [&str; 2],
        compare: fn(f64, f64) -> f64,
    ) -> Option<Spread> {
        let mine = records.iter().filter(|record| record.contender == subject);
        Spread::of(mine.filter_map(|mine| {
            let other = records
                .iter()
                .find(|record| record.contender == against && record.round == mine.round)?;
            Some(compare(mine.figure(metric), other.figure(metric)))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, f64::NAN, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
        assert!(median(vec![]).is_nan());
    }

    #[test]
    fn an_interval_is_as_sure_as_its_rounds_allow() {
        // Tables of the sign test: 1 - 2 P(at most this many of n tosses).
        for (rounds, left_out, sure) in [
            (1, 0, 0.0),
            (3, 0, 0.75),
            (5, 0, 0.9375),
            (6, 0, 0.96875),
            (9, 1, 0.9609),
            (20, 5, 0.9586),
        ] {
            let (out, probability) = interval(rounds);
            assert_eq!(out, left_out, "{rounds}");
            assert!((probability - sure).abs() < 1e-4, "{rounds}: {probability}");
        }
        assert_eq!(interval(0).0, 0);
        let spread = Spread::of((1..=9).map(f64::from)).unwrap();
        assert_eq!(spread, Spread { low: 2.0, median: 5.0, high: 8.0 });
        assert_eq!(Spread::of(std::iter::empty()), None);
    }

    #[test]
    fn a_ratio_is_taken_within_its_round() {
        let record = |contender: &str, round, rate| Record {
            contender: contender.into(),
            round,
            rate,
            ..Record::default()
        };
        // The machine was ten times slower in round 2, which doesn't affect the ratio.
        let records = [
            record("a", 1, 200.0),
            record("b", 1, 100.0),
            record("a", 2, 30.0),
            record("b", 2, 10.0),
            record("a", 3, 400.0),
            record("b", 3, 100.0),
            record("a", 4, 1.0),
        ];
        let all: Vec<&Record> = records.iter().collect();
        let spread = Spread::of_ratios(&all, Metric::Rate, "a", "b");
        assert_eq!(spread, Some(Spread { low: 2.0, median: 3.0, high: 4.0 }));
        assert_eq!(Spread::of_ratios(&all, Metric::Rate, "a", "c"), None);
        let spread = Spread::of_differences(&all, Metric::Rate, "a", "b");
        assert_eq!(spread, Some(Spread { low: 20.0, median: 100.0, high: 300.0 }));
    }
}
