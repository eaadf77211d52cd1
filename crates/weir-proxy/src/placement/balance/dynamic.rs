//! `dynamic` and `predict`: weights that follow the response time.
//!
//! A server that takes r times as long as the fastest gets its weight divided by r^1.5. It never
//! gets less than a hundredth of it, so that it is still measured and its recovery is noticed.
//! (Divided by r, one of two servers would keep 9 % of the load when it becomes ten times slower.)
//! Weights approach that within a few ticks, because one measurement is not a trend.
//!
//! Response times are half a second old, and those of a busy server grow with every request that it
//! gets: weights alone would send everything to one server after the other. So no server gets far
//! more of the unanswered requests than its configured weight says ([`Bound`]). In balance, rate
//! times time is the same for all, by Little's law, and the bound hardly matters.

use super::{Bound, LOAD_PERCENT, predict::Trend};

/// The power of the response time.
const POWER: f64 = 1.5;
/// The smallest part of a weight.
const PART_MIN: f64 = 0.01;
/// About two thirds of a change are followed within this time.
const FOLLOW_US: f64 = 150_000.0;
/// As [`LOAD_PERCENT`], with a trend: it sends a server more than current measurements justify.
const TREND_LOAD_PERCENT: u64 = 175;

/// The state of weights that follow response times.
#[derive(Debug, Clone)]
pub(super) struct Dynamic {
    /// By server: logarithm of the part of its weight that it has, 0 or less.
    parts: Vec<f64>,
    /// The weights before they were multiplied, and their sum.
    before: Vec<i64>,
    sum: u64,
    times: Vec<Option<f64>>,
    trend: Option<Trend>,
}

impl Dynamic {
    /// Returns the state for servers with these weights; with a trend, weights follow its
    /// prediction.
    pub(super) fn new(weights: &[i64], trend: Option<Trend>) -> Dynamic {
        Dynamic {
            parts: vec![0.0; weights.len()],
            before: weights.to_vec(),
            sum: weights.iter().sum::<i64>() as u64,
            times: vec![None; weights.len()],
            trend: trend.map(|trend| trend.for_servers(weights.len())),
        }
    }

    /// Multiplies the weights by the parts that the response times leave. Their sum does not
    /// change: credits are in its units.
    pub(super) fn reweigh(
        &mut self,
        now_us: u64,
        since_us: u64,
        weights: &mut [i64],
        response_us: impl Fn(usize) -> Option<u64>,
    ) {
        for (at, time) in self.times.iter_mut().enumerate() {
            let measured = response_us(at).map(|us| us.max(1) as f64);
            *time = match &mut self.trend {
                Some(trend) => trend.follow(at, now_us, measured),
                None => measured,
            };
        }
        self.follow(1.0 - (-(since_us as f64) / FOLLOW_US).exp());
        self.before.copy_from_slice(weights);
        self.sum = weights.iter().sum::<i64>() as u64;
        let part = |(weight, part): (&i64, &f64)| *weight as f64 * part.exp();
        let scaled: f64 = weights.iter().zip(&self.parts).map(part).sum();
        for (weight, part) in weights.iter_mut().zip(&self.parts) {
            *weight = ((*weight as f64 * part.exp() * self.sum as f64 / scaled) as i64).max(1);
        }
    }

    /// Moves the parts this far towards the response times. After a pause it starts from the last
    /// state.
    fn follow(&mut self, step: f64) {
        let known = || self.times.iter().flatten();
        let count = known().count() as f64;
        let fastest = known().fold(f64::INFINITY, |least, time| least.min(*time));
        if count > 0.0 {
            let mean = (known().map(|time| time.ln()).sum::<f64>() / count).exp();
            for (part, time) in self.parts.iter_mut().zip(&self.times) {
                // A server without a response time counts as an average one.
                let slowness = time.unwrap_or(mean) / fastest;
                *part += step * ((-POWER * slowness.ln()).max(PART_MIN.ln()) - *part);
            }
        }
    }

    /// Returns which servers with these loads may have one more.
    pub(super) fn has_room(&self, loads: &[u32]) -> impl Fn(usize) -> bool {
        let percent = if self.trend.is_some() { TREND_LOAD_PERCENT } else { LOAD_PERCENT };
        let bound = Bound {
            load: loads.iter().map(|load| u64::from(*load)).sum(),
            weight: self.sum,
            percent,
        };
        // By its weight without regard to response times.
        move |at| bound.has_room(loads[at], self.before[at])
    }
}

#[cfg(test)]
mod tests;
