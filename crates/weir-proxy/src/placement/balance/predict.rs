//! `predict`: the expected response time, by linear regression.
//!
//! A point of each server is kept every [`POINTS`]th part of `past`; the least squares line through
//! them, extended by `ahead`, gives the time that weights follow. A trend is trusted up to
//! [`BEYOND`] times the current measurement, either way. Bound: [`POINTS`] points of 16 bytes for
//! each server.

use std::collections::VecDeque;

/// Points of a trend.
const POINTS: usize = 64;
/// Fewer points than this are no trend.
const POINTS_MIN: usize = 3;
/// A prediction may be this many times as long, or as short, as the measurement.
const BEYOND: f64 = 10.0;

/// The recent past of all servers.
#[derive(Debug, Clone)]
pub(super) struct Trend {
    past_us: u64,
    ahead_us: u64,
    /// By server: when, and the response time then.
    points: Vec<VecDeque<(u64, f64)>>,
}

impl Trend {
    /// Returns a trend without points.
    pub(super) fn new(past_us: u64, ahead_us: u64) -> Trend {
        Trend { past_us, ahead_us, points: Vec::new() }
    }

    /// Makes room for this many servers.
    pub(super) fn for_servers(self, servers: usize) -> Trend {
        Trend { points: (0..servers).map(|_| VecDeque::with_capacity(POINTS)).collect(), ..self }
    }

    /// Takes the current measurement and returns the expected one; None when nothing is measured.
    pub(super) fn follow(&mut self, at: usize, now_us: u64, measured: Option<f64>) -> Option<f64> {
        let points = &mut self.points[at];
        while points
            .front()
            .is_some_and(|(then_us, _)| then_us.saturating_add(self.past_us) < now_us)
        {
            points.pop_front();
        }
        let measured = measured?;
        let apart_us = self.past_us / POINTS as u64;
        if points.back().is_none_or(|(then_us, _)| now_us >= then_us + apart_us) {
            if points.len() == POINTS {
                points.pop_front();
            }
            points.push_back((now_us, measured));
        }
        let predicted = line_at(points, now_us, self.ahead_us as f64).unwrap_or(measured);
        Some(predicted.clamp(measured / BEYOND, measured * BEYOND))
    }
}

/// Returns the value of the straight line through the points `ahead_us` after now; None when they
/// make no line.
fn line_at(points: &VecDeque<(u64, f64)>, now_us: u64, ahead_us: f64) -> Option<f64> {
    if points.len() < POINTS_MIN {
        return None;
    }
    let count = points.len() as f64;
    let when = |point: &(u64, f64)| -(now_us.saturating_sub(point.0) as f64);
    let mean_x = points.iter().map(when).sum::<f64>() / count;
    let mean_y = points.iter().map(|point| point.1).sum::<f64>() / count;
    let spread = points.iter().map(|point| (when(point) - mean_x).powi(2)).sum::<f64>();
    let slope = points.iter().map(|point| (when(point) - mean_x) * (point.1 - mean_y)).sum::<f64>()
        / spread;
    (spread > 0.0).then_some(mean_y + slope * (ahead_us - mean_x))
}

#[cfg(test)]
mod tests {
    //! Proves: the line is that of least squares, old points are forgotten, memory is bounded, a
    //! prediction is near the measurement. How: lines with and without noise, and the closed
    //! formula in another form.

    use proptest::prelude::*;

    use super::*;

    const SECOND_US: u64 = 1_000_000;

    fn trend() -> Trend {
        Trend::new(30 * SECOND_US, 15 * SECOND_US).for_servers(1)
    }

    #[test]
    fn a_straight_line_goes_on() {
        let mut trend = trend();
        let mut predicted = None;
        // 100 µs more each second, and 1,000 µs at second 40.
        for tick in 0..=40 * 20 {
            predicted = trend.follow(
                0,
                tick * 50_000,
                Some((tick * 5) as f64 - 3_000.0 + 2_000.0).map(|y| y.max(1.0)),
            );
        }
        let wanted = 3_000.0 + 1_500.0;
        assert!((predicted.unwrap() - wanted).abs() < 1.0, "{predicted:?}");
        assert!(trend.points[0].len() <= POINTS);
    }

    #[test]
    fn a_trend_is_not_believed_without_end() {
        let mut trend = trend();
        for second in 0..30u64 {
            trend.follow(0, second * SECOND_US, Some((30_000 - second * 1_000) as f64));
        }
        assert_eq!(
            trend.follow(0, 30 * SECOND_US, Some(500.0)),
            Some(50.0),
            "it would be below zero"
        );
        assert_eq!(trend.follow(0, 31 * SECOND_US, None), None);
        assert_eq!(
            trend.follow(0, 90 * SECOND_US, Some(70.0)),
            Some(70.0),
            "what was is forgotten"
        );
    }

    proptest! {
        /// Against the textbook's other form: slope = (n Σxy - Σx Σy) / (n Σx² - (Σx)²).
        #[test]
        fn equals_the_closed_formula(
            values in prop::collection::vec((1..1000u64, 1.0..1e6f64), 3..64),
            ahead in 0.0..1e3f64,
        ) {
            let mut now_us = 0;
            let points: VecDeque<(u64, f64)> = values
                .iter()
                .map(|(step, value)| {
                    now_us += step;
                    (now_us, *value)
                })
                .collect();
            let (mut sum_x, mut sum_y, mut sum_xy, mut sum_xx) = (0.0, 0.0, 0.0, 0.0);
            for (then_us, y) in &points {
                let x = *then_us as f64 - now_us as f64;
                (sum_x, sum_y, sum_xy, sum_xx) =
                    (sum_x + x, sum_y + y, sum_xy + x * y, sum_xx + x * x);
            }
            let n = points.len() as f64;
            let slope = (n * sum_xy - sum_x * sum_y) / (n * sum_xx - sum_x * sum_x);
            let wanted = (sum_y - slope * sum_x) / n + slope * ahead;
            let found = line_at(&points, now_us, ahead).unwrap();
            prop_assert!(
                (found - wanted).abs() <= 1e-6 * (wanted.abs() + 1e6),
                "{} {}",
                found,
                wanted
            );
        }
    }
}
