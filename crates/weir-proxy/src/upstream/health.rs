//! The arithmetic of health: codes in a window, pauses between trials, streaks of probes. No state
//! of the engine.
//!
//! Kept by the worker that judges a server (`upstream/judge.rs`). Bounds: a window holds at most
//! its limit of times. docs/failover.md.

use std::collections::VecDeque;
use std::fmt;

use crate::base::stamp::mix;

/// First pause of a suspended server before a request is tried on it.
pub const PAUSE_MIN_US: u64 = 1_000_000;
/// Longest pause: each failed trial doubles it up to here.
pub const PAUSE_MAX_US: u64 = 30_000_000;
/// How long a trial may go without a response before another request is tried.
pub const TRIAL_PATIENCE_US: u64 = 10_000_000;
/// A trial is made with a safe request, which can be sent elsewhere when it fails. Where none has
/// come for this long, any request is taken.
pub const TRIAL_CHOICE_US: u64 = 10_000_000;

/// Statuses from one to another, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codes {
    /// 100-599.
    pub first: u16,
    /// Not less than `first`, at most 599.
    pub last: u16,
}

impl Codes {
    /// Whether a status is one of them.
    #[inline]
    pub fn contain(self, status: u16) -> bool {
        (self.first..=self.last).contains(&status)
    }

    /// Reads `503`, `5xx` or `200-399`.
    pub fn parse(text: &str) -> Option<Codes> {
        let number = |text: &str| {
            let fine = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|code| fine && (100..=599).contains(code))
        };
        let (first, last) = match (text.split_once('-'), text.strip_suffix("xx")) {
            (Some((first, last)), _) => (number(first)?, number(last)?),
            (None, Some(class)) => (number(&format!("{class}00"))?, number(&format!("{class}99"))?),
            (None, None) => (number(text)?, number(text)?),
        };
        (first <= last).then_some(Codes { first, last })
    }
}

impl fmt::Display for Codes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first, self.last) {
            (first, last) if first == last => write!(f, "{first}"),
            (first, last) if first % 100 == 0 && last == first + 99 => {
                write!(f, "{}xx", first / 100)
            }
            (first, last) => write!(f, "{first}-{last}"),
        }
    }
}

/// What a `failover` rule counts against a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symptom {
    /// A response with one of these statuses.
    Status(Codes),
    /// A connection that it reset, or closed within a response or before the first one, while a
    /// request was unanswered.
    Lost,
}

impl Symptom {
    /// Reads `lost`, or anything that [`Codes::parse`] reads.
    pub fn parse(text: &str) -> Option<Symptom> {
        if text == "lost" { Some(Symptom::Lost) } else { Codes::parse(text).map(Symptom::Status) }
    }

    /// The statuses that it is about.
    pub fn codes(self) -> Option<Codes> {
        match self {
            Symptom::Status(codes) => Some(codes),
            Symptom::Lost => None,
        }
    }
}

impl fmt::Display for Symptom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Symptom::Status(codes) => codes.fmt(f),
            Symptom::Lost => f.write_str("lost"),
        }
    }
}

/// The times of the events that a `failover` rule counts.
#[derive(Debug, Clone)]
pub struct Window {
    limit: usize,
    window_us: u64,
    times: VecDeque<u64>,
}

impl Window {
    /// Returns a window that is full with `limit` (at least 1) events within `window_us`.
    pub fn new(limit: u32, window_us: u64) -> Window {
        Window { limit: limit.max(1) as usize, window_us, times: VecDeque::new() }
    }

    /// Counts one. True: with it the window is full, and starts again.
    pub fn note(&mut self, now_us: u64) -> bool {
        while self
            .times
            .front()
            .is_some_and(|time_us| now_us.saturating_sub(*time_us) >= self.window_us)
        {
            self.times.pop_front();
        }
        self.times.push_back(now_us);
        let full = self.times.len() >= self.limit;
        if full {
            self.times.clear();
        }
        full
    }
}

/// A server must do well for this many times its longest possible pause before its failures are
/// forgotten.
const CALM_FACTOR: u64 = 10;

/// Returns how long a server must do well after a pause, so that it is not left alone for longer
/// when it fails again. A rule fails it within `window_us` at the earliest.
pub fn calm_us(trials: u32, window_us: u64) -> u64 {
    (CALM_FACTOR * longest_us(trials)).max(window_us.saturating_mul(2))
}

fn longest_us(trials: u32) -> u64 {
    (PAUSE_MIN_US << trials.min(5)).min(PAUSE_MAX_US)
}

/// Returns how long a server is left alone after this many failed trials or relapses. Up to a
/// quarter is taken off depending on `seed`.
pub fn pause_us(trials: u32, seed: u64) -> u64 {
    let pause_us = longest_us(trials);
    pause_us - mix(seed ^ u64::from(trials)) % (pause_us / 4 + 1)
}

#[cfg(test)]
mod tests {
    //! Proves: codes read back, a window is full exactly when `limit` events are within it, pauses
    //! double within their bounds. How: examples, and a model of the window.

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn codes_read_back() {
        for (text, first, last) in
            [("503", 503, 503), ("5xx", 500, 599), ("200-399", 200, 399), ("100", 100, 100)]
        {
            let codes = Codes::parse(text).unwrap();
            assert_eq!(
                (codes.first, codes.last, codes.to_string()),
                (first, last, text.to_owned())
            );
            assert!(
                codes.contain(first)
                    && codes.contain(last)
                    && !codes.contain(first - 1)
                    && !codes.contain(last + 1)
            );
        }
        for text in [
            "", "5", "6xx", "0xx", "xx", "600", "099", "50", "5000", "399-200", "200-", "-200",
            "+20", "5xX", "2xx-3xx",
        ] {
            assert_eq!(Codes::parse(text), None, "{text}");
        }
    }

    #[test]
    fn pauses_double() {
        for seed in 0..100 {
            for (trials, most_s) in [1, 2, 4, 8, 16, 30, 30].into_iter().enumerate() {
                let pause_us = pause_us(trials as u32, seed);
                assert!(
                    (most_s * 750_000..=most_s * 1_000_000).contains(&pause_us),
                    "{trials}: {pause_us}"
                );
            }
            assert!(pause_us(u32::MAX, seed) <= PAUSE_MAX_US);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn a_window_is_full_with_its_limit(
            steps in prop::collection::vec(0u64..40, 1..200),
            limit in 1u32..8,
        ) {
            let mut window = Window::new(limit, 100);
            let (mut now_us, mut since) = (1000, Vec::new());
            for step in steps {
                now_us += step;
                since.push(now_us);
                let within = since.iter().filter(|time_us| now_us - **time_us < 100).count();
                let full = within >= limit as usize;
                prop_assert_eq!(window.note(now_us), full);
                prop_assert!(window.times.len() < limit as usize);
                if full {
                    since.clear();
                }
            }
        }
    }
}
