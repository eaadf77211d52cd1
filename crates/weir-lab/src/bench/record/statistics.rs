//! The arithmetic over several runs: medians, and ratios that are taken within a round.
//!
//! Called by reports, and by `run/rounds.rs`, which sets a rate by what was measured before.

use super::outcome::Record;
use crate::bench::experiment::metric::Metric;

/// The median; NaN of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

/// The median over rounds.
pub(crate) fn middle(own: &[&Record], read: &dyn Fn(&Record) -> f64) -> f64 {
    median(own.iter().map(|record| read(record)).collect())
}

/// A figure over several rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    /// The lowest.
    pub(crate) low: f64,
    /// The median.
    pub(crate) median: f64,
    /// The highest.
    pub(crate) high: f64,
}

impl Spread {
    /// Of these figures, without those that are no numbers; None when there are no others.
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Option<Spread> {
        let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        let low = values.iter().copied().reduce(f64::min)?;
        let high = values.iter().copied().reduce(f64::max)?;
        Some(Spread { low, median: median(values), high })
    }

    /// Of the ratios between two contenders' figures, each within a round.
    pub(crate) fn of_ratios(records: &[&Record], metric: Metric, subject: &str, against: &str) -> Option<Spread> {
        let mine = records.iter().filter(|record| record.contender == subject);
        Spread::of(mine.filter_map(|mine| {
            let other = records.iter().find(|record| record.contender == against && record.round == mine.round)?;
            Some(mine.figure(metric) / other.figure(metric))
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
    fn a_ratio_is_taken_within_its_round() {
        let record =
            |contender: &str, round, rate| Record { contender: contender.into(), round, rate, ..Record::default() };
        // The machine was ten times slower in round 2: the ratio doesn't care.
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
    }
}
