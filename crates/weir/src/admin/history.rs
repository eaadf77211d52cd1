//! The last two minutes of all clients, a sample a second, for the charts of the live page.
//! docs/status-metrics.md#the-live-page.
//!
//! Owned by the control thread, which adds a sample whenever it marks a second; workers do not know
//! of it. Pure: the time is an argument. Bound: [`SAMPLES_MAX`] samples, and one histogram.

use std::collections::VecDeque;
use std::time::Instant;

use serde::Serialize;
use weir_proxy::observe::counters::Totals;
use weir_proxy::observe::histogram::Snapshot;

use super::status::{gauge, thousandths};
use super::window::Counts;

/// Largest number of samples, one each second.
pub(crate) const SAMPLES_MAX: usize = 120;

/// The activity of about a second, and the state at its end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Sample {
    /// Samples before it, since the start.
    pub(crate) number: u64,
    /// Final responses a second.
    pub(crate) answers: f64,
    /// Those of the class 5xx.
    pub(crate) failures: f64,
    /// From the receipt of a request to the end of its response; null without responses.
    pub(crate) p50_us: Option<u64>,
    pub(crate) p90_us: Option<u64>,
    pub(crate) p99_us: Option<u64>,
    /// Requests on connections to servers, without a response yet.
    pub(crate) in_flight: u64,
    /// Requests without a connection.
    pub(crate) waiting: u64,
}

/// Samples, oldest first.
#[derive(Debug)]
pub(crate) struct History {
    samples: VecDeque<Sample>,
    next: u64,
    /// The time of the last sample, and everything until then.
    at: Instant,
    counts: Counts,
    latency: Snapshot,
}

impl History {
    /// Begins without any counts.
    pub(crate) fn new(now: Instant) -> History {
        let latency = Snapshot::default();
        History { samples: VecDeque::new(), next: 0, at: now, counts: Counts::default(), latency }
    }

    /// Adds a sample of the activity since the last one; `totals` and `latency` are of all clients
    /// since the start.
    pub(crate) fn add(&mut self, now: Instant, totals: &Totals, latency: Snapshot) {
        let counts = Counts::of(totals);
        let new = counts.since(&self.counts);
        let times = latency.since(&self.latency);
        let seconds = (now - self.at).as_secs_f64().max(1e-3);
        let a_second = |count: u64| thousandths(count as f64 / seconds);
        let percentile = |of_10_000| times.percentile(of_10_000);
        let [_, _, _, _, failures] = new.answers;
        self.samples.push_back(Sample {
            number: self.next,
            answers: a_second(new.answers()),
            failures: a_second(failures),
            p50_us: percentile(5000),
            p90_us: percentile(9000),
            p99_us: percentile(9900),
            in_flight: gauge(totals.get("in_flight", None)),
            waiting: gauge(totals.get("queue_waiting", None)),
        });
        while self.samples.len() > SAMPLES_MAX {
            self.samples.pop_front();
        }
        (self.next, self.at, self.counts, self.latency) = (self.next + 1, now, counts, latency);
    }

    /// Returns all samples.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        self.samples.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a sample has the activity of its second and nothing else, and old ones are
    //! forgotten. How: made-up seconds.

    use std::time::Duration;

    use weir_proxy::observe::counters::Counters;
    use weir_proxy::observe::histogram::Histogram;

    use super::*;

    #[test]
    fn samples_are_of_their_second() {
        let start = Instant::now();
        let mut history = History::new(start);
        let (counters, histogram) = (Counters::default(), Histogram::default());
        for second in 1..=150u64 {
            for _ in 0..2 * second {
                counters.answer(200);
                histogram.record(second * 100);
            }
            counters.answer(502);
            counters.in_flight.set(second);
            let mut totals = Totals::default();
            totals.add(&counters);
            // Seconds are not exact.
            history.add(
                start + Duration::from_millis(500) * second as u32,
                &totals,
                histogram.snapshot(),
            );
        }
        let samples = history.samples();
        assert_eq!((samples.len(), samples[0].number), (SAMPLES_MAX, 30));
        for sample in samples {
            let second = sample.number + 1;
            assert!((sample.answers - 2.0 * (2 * second + 1) as f64).abs() < 1e-6, "{sample:?}");
            assert!((sample.failures - 2.0).abs() < 1e-6, "{sample:?}");
            for found in [sample.p50_us, sample.p99_us] {
                assert!(found.unwrap().abs_diff(second * 100) * 32 <= second * 100, "{sample:?}");
            }
            assert_eq!((sample.in_flight, sample.waiting), (second, 0));
        }
    }

    #[test]
    fn a_second_without_answers_has_no_times() {
        let start = Instant::now();
        let mut history = History::new(start);
        history.add(start + Duration::from_secs(1), &Totals::default(), Snapshot::default());
        let sample = &history.samples()[0];
        assert_eq!((sample.p50_us, sample.p99_us), (None, None));
        assert!(sample.answers.abs() < 1e-9);
    }
}
