//! When requests are due: a rate that may change in stages, evenly spaced or at random (Poisson).
//!
//! Called by each thread of the generator; pure. The expected count of requests up to a moment is a
//! sum of straight and curved pieces; a request is due where that sum reaches its number. Evenly
//! spaced requests have whole numbers, and thread `k` of `n` takes each `n`th of them, so that all
//! threads together are evenly spaced as well.

use std::fmt::{self, Display};

use crate::random::Random;
use crate::units::{duration_us, number};

/// Highest possible rate, requests a second.
const RATE_MAX: f64 = 1e8;

/// One part of a rate.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Stage {
    /// Requests a second at its beginning.
    from: f64,
    /// At its end.
    to: f64,
    /// How long it lasts; infinite for the last when it has no end.
    seconds: f64,
}

/// A rate over time: `1000`, `100..1000/30s` (a ramp), `100/10s,500/10s,1000` (steps).
#[derive(Debug, Clone, PartialEq)]
pub struct Rate {
    text: String,
    stages: Vec<Stage>,
}

impl Rate {
    /// Reads `RATE[..RATE][/DURATION][,...]`. Only the last stage may lack its duration: it
    /// continues to the end, and a ramp keeps the rate that it reached.
    ///
    /// # Errors
    /// A text that says what is wrong and what is expected.
    pub fn parse(text: &str) -> Result<Rate, String> {
        let mut stages = Vec::new();
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        for (at, part) in parts.iter().enumerate() {
            let (rates, time) =
                part.split_once('/').map_or((*part, None), |(rates, time)| (rates, Some(time)));
            let (from, to) = rates.split_once("..").unwrap_or((rates, rates));
            let (from, to) = (per_second(from)?, per_second(to)?);
            let last = at + 1 == parts.len();
            let seconds = match time {
                Some(time) => duration_us(time)? as f64 / 1e6,
                None if last && from == to => f64::INFINITY,
                None => return Err(format!("`{part}` needs a duration, for example `{part}/10s`")),
            };
            stages.push(Stage { from, to, seconds });
            if last && seconds.is_finite() {
                stages.push(Stage { from: to, to, seconds: f64::INFINITY });
            }
        }
        if stages.iter().all(|stage| stage.from == 0.0 && stage.to == 0.0) {
            return Err("the rate is always 0".to_owned());
        }
        Ok(Rate { text: text.to_owned(), stages })
    }

    /// Requests expected from the first moment to `seconds`.
    pub fn expected(&self, seconds: f64) -> f64 {
        let mut left = seconds;
        let mut sum = 0.0;
        for stage in &self.stages {
            let within = left.min(stage.seconds);
            sum += stage.count(within);
            left -= within;
            if left <= 0.0 {
                break;
            }
        }
        sum
    }
}

impl Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn per_second(text: &str) -> Result<f64, String> {
    let rate = number(text)?;
    if rate <= RATE_MAX {
        Ok(rate)
    } else {
        Err(format!("`{text}` is more than 100,000,000 requests per second"))
    }
}

impl Stage {
    fn slope(&self) -> f64 {
        if self.seconds.is_finite() { (self.to - self.from) / self.seconds } else { 0.0 }
    }

    /// Returns the requests within its first `seconds` seconds.
    fn count(&self, seconds: f64) -> f64 {
        self.from * seconds + self.slope() * seconds * seconds / 2.0
    }

    /// Returns where in it the count is reached; None when it is not.
    fn reaches(&self, count: f64) -> Option<f64> {
        if self.seconds.is_finite() && count > self.count(self.seconds)
            || self.from == 0.0 && self.to == 0.0
        {
            return None;
        }
        let slope = self.slope();
        // The root of `from * t + slope * t^2 / 2 = count`, in the form that is exact when the
        // slope is small.
        let root = (self.from * self.from + 2.0 * slope * count).max(0.0).sqrt();
        Some(if count == 0.0 { 0.0 } else { 2.0 * count / (self.from + root) })
    }
}

/// The moments at which one thread's requests are due.
#[derive(Debug)]
pub(crate) struct Schedule {
    stages: Vec<Stage>,
    stage: usize,
    /// Seconds and expected requests before the current stage.
    before: (f64, f64),
    /// The number of the next request, among those of all threads.
    number: f64,
    threads: f64,
    /// Draws the distances, when they are random.
    random: Option<Random>,
}

impl Schedule {
    /// For thread `thread` of `threads`; with a seed the distances are random.
    pub(crate) fn new(rate: &Rate, thread: usize, threads: usize, seed: Option<u64>) -> Schedule {
        let mut random = seed.map(|seed| Random::new(seed).fork(thread as u64));
        let threads = threads as f64;
        let number = random.as_mut().map_or(thread as f64, |random| random.exponential() * threads);
        Schedule {
            stages: rate.stages.clone(),
            stage: 0,
            before: (0.0, 0.0),
            number,
            threads,
            random,
        }
    }

    /// When the next request is due, microseconds from the first moment. None: never again.
    pub(crate) fn next_us(&mut self) -> Option<u64> {
        loop {
            let stage = self.stages.get(self.stage)?;
            if let Some(within) = stage.reaches(self.number - self.before.1) {
                let due_us = ((self.before.0 + within) * 1e6) as u64;
                self.number += self.threads * self.random.as_mut().map_or(1.0, Random::exponential);
                return Some(due_us);
            }
            if !stage.seconds.is_finite() {
                return None;
            }
            self.before =
                (self.before.0 + stage.seconds, self.before.1 + stage.count(stage.seconds));
            self.stage += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dues(text: &str, count: usize) -> Vec<u64> {
        let mut schedule = Schedule::new(&Rate::parse(text).unwrap(), 0, 1, None);
        std::iter::from_fn(|| schedule.next_us()).take(count).collect()
    }

    #[test]
    fn a_constant_rate_is_evenly_spaced() {
        assert_eq!(dues("1000", 4), [0, 1000, 2000, 3000]);
        assert_eq!(dues("2.5k", 3), [0, 400, 800]);
    }

    #[test]
    fn steps_follow_each_other() {
        assert_eq!(dues("2/1s,4", 6), [0, 500_000, 1_000_000, 1_250_000, 1_500_000, 1_750_000]);
        // A pause is a stage as well.
        assert_eq!(dues("2/1s,0/1s,2", 4), [0, 500_000, 1_000_000, 2_500_000]);
    }

    #[test]
    fn a_ramp_reaches_its_counts() {
        let rate = Rate::parse("0..100/10s").unwrap();
        assert!((rate.expected(10.0) - 500.0).abs() < 1e-6);
        assert!((rate.expected(12.0) - 700.0).abs() < 1e-6);
        let dues = dues("0..100/10s", 1000);
        let within =
            |from: u64, to: u64| dues.iter().filter(|due| (from..to).contains(*due)).count();
        assert!((124..=126).contains(&within(0, 5_000_000)), "{}", within(0, 5_000_000));
        assert!((374..=376).contains(&within(5_000_000, 10_000_000)));
        assert!(
            (99..=101).contains(&within(10_000_000, 11_000_000)),
            "it stays at what it reached"
        );
    }

    #[test]
    fn threads_share_the_moments() {
        let rate = Rate::parse("100..1000/2s,50").unwrap();
        let mut all: Vec<u64> = Vec::new();
        for thread in 0..3 {
            let mut schedule = Schedule::new(&rate, thread, 3, None);
            all.extend(
                std::iter::from_fn(|| schedule.next_us()).take_while(|due| *due < 4_000_000),
            );
        }
        all.sort_unstable();
        let mut alone = Schedule::new(&rate, 0, 1, None);
        let alone: Vec<u64> =
            std::iter::from_fn(|| alone.next_us()).take_while(|due| *due < 4_000_000).collect();
        assert_eq!(all, alone);
    }

    #[test]
    fn threads_have_distances_of_their_own() {
        let rate = Rate::parse("1000").unwrap();
        let mut all: Vec<u64> = Vec::new();
        for thread in 0..3 {
            let mut schedule = Schedule::new(&rate, thread, 3, Some(7));
            let due: Vec<u64> =
                std::iter::repeat_with(|| schedule.next_us().unwrap()).take(50).collect();
            all.extend(due.windows(2).map(|pair| pair[1] - pair[0]));
        }
        // A few distances coincide by chance in microseconds; if a neighbour's were shifted by one
        // place, all would.
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert!(all.len() > count * 9 / 10, "{} of {count}", all.len());
    }

    #[test]
    fn random_distances_have_the_rate_and_the_spread_of_poisson() {
        let mut schedule = Schedule::new(&Rate::parse("1000").unwrap(), 0, 1, Some(7));
        let dues: Vec<u64> = std::iter::from_fn(|| schedule.next_us()).take(100_000).collect();
        let seconds = *dues.last().unwrap() as f64 / 1e6;
        assert!((98.0..102.0).contains(&seconds), "{seconds}");
        let distances: Vec<f64> = dues.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = distances.iter().sum::<f64>() / distances.len() as f64;
        let variance =
            distances.iter().map(|it| (it - mean).powi(2)).sum::<f64>() / distances.len() as f64;
        assert!(
            (0.95..1.05).contains(&(variance.sqrt() / mean)),
            "exponential distances spread as far as they are long"
        );
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        for text in ["", "x", "-1", "1..2", "1,2", "0", "1/", "1/x", "1e99", "nan", "inf"] {
            assert!(Rate::parse(text).is_err(), "{text}");
        }
    }
}
