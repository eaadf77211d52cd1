//! The last 300 seconds of counts that only grow: the present count less the earlier one.
//! docs/semantics.md#what-you-can-observe.
//!
//! Owned by the control thread, which makes a note every ten seconds; workers do not know of it.
//! Pure: the time is an argument. Bound: [`NOTES_MAX`] notes, each with the buckets of a histogram
//! that changed since the previous note (a few hundred bytes).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use weir_proxy::observe::counters::Totals;
use weir_proxy::observe::histogram::{Snapshot, Sparse};

use super::reading::Lately;

/// Length of the window.
pub(crate) const WINDOW: Duration = Duration::from_secs(300);
/// Largest number of notes, one each ten seconds.
const NOTES_MAX: usize = 30;
/// Largest number of marks, one each second: the oldest is two to three seconds old.
const MARKS_MAX: usize = 3;

/// Counts that only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    /// Final responses by class, 1xx (101 only) to 5xx.
    pub(crate) answers: [u64; 5],
    /// Requests sent again after a failure.
    pub(crate) retries: u64,
}

/// The changes between two notes.
#[derive(Debug)]
struct Note {
    began: Instant,
    counts: Counts,
    latency: Sparse,
}

/// The past of one server, worker, or all of weir.
#[derive(Debug)]
pub(crate) struct Past {
    /// Oldest first.
    notes: VecDeque<Note>,
    /// The time of the last note, and everything until then.
    noted: Instant,
    counts: Counts,
    latency: Snapshot,
    /// Responses until the beginnings of the last seconds, oldest first; never empty.
    marks: VecDeque<(Instant, u64)>,
}

impl Counts {
    /// Returns the counts of clients, or of a server: the names are the same.
    pub(crate) fn of(totals: &Totals) -> Counts {
        let class = |class| totals.get("answers", Some(class));
        Counts {
            answers: ["1xx", "2xx", "3xx", "4xx", "5xx"].map(class),
            retries: totals.get("retries", None),
        }
    }

    /// Returns the final responses of all classes.
    pub(crate) fn answers(&self) -> u64 {
        self.answers.iter().sum()
    }

    /// Returns the changes since an earlier moment.
    pub(crate) fn since(&self, earlier: &Counts) -> Counts {
        let answers =
            std::array::from_fn(|class| self.answers[class].saturating_sub(earlier.answers[class]));
        Counts { answers, retries: self.retries.saturating_sub(earlier.retries) }
    }

    fn add(&mut self, other: &Counts) {
        self.answers.iter_mut().zip(other.answers).for_each(|(mine, other)| *mine += other);
        self.retries += other.retries;
    }
}

impl Past {
    /// Begins without any counts.
    pub(crate) fn new(now: Instant) -> Past {
        let marks = [(now, 0)].into();
        Past {
            notes: VecDeque::new(),
            noted: now,
            counts: Counts::default(),
            latency: Snapshot::default(),
            marks,
        }
    }

    /// Begins with earlier counts.
    pub(crate) fn begin(&mut self, counts: Counts, latency: Snapshot) {
        self.marks.iter_mut().for_each(|(_, answers)| *answers = counts.answers());
        (self.counts, self.latency) = (counts, latency);
    }

    /// Marks a second.
    pub(crate) fn mark(&mut self, now: Instant, counts: Counts) {
        self.marks.push_back((now, counts.answers()));
        while self.marks.len() > MARKS_MAX {
            self.marks.pop_front();
        }
    }

    /// Returns the responses a second since the oldest mark.
    fn rate(&self, now: Instant, counts: &Counts) -> f64 {
        let Some((then, answers)) = self.marks.front() else { return 0.0 };
        let seconds = (now - *then).as_secs_f64();
        if seconds > 0.0 { counts.answers().saturating_sub(*answers) as f64 / seconds } else { 0.0 }
    }

    /// Makes a note of the present counts.
    pub(crate) fn note(&mut self, now: Instant, counts: Counts, latency: &Snapshot) {
        let new = latency.since(&self.latency).sparse();
        self.notes.push_back(Note {
            began: self.noted,
            counts: counts.since(&self.counts),
            latency: new,
        });
        while self.notes.len() > NOTES_MAX
            || self.notes.front().is_some_and(|note| now - note.began > WINDOW)
        {
            self.notes.pop_front();
        }
        (self.noted, self.counts) = (now, counts);
        self.latency.clone_from(latency);
    }

    /// Returns the activity within the window; its edge is that of a whole note.
    pub(crate) fn lately(&self, now: Instant, counts: Counts, latency: &Snapshot) -> Lately {
        let mut lately = Lately {
            answers_per_second: self.rate(now, &counts),
            covered: now - self.noted,
            counts: counts.since(&self.counts),
            latency: latency.since(&self.latency),
        };
        for note in self.notes.iter().filter(|note| now - note.began <= WINDOW) {
            lately.counts.add(&note.counts);
            lately.latency.add(&note.latency);
            lately.covered = lately.covered.max(now - note.began);
        }
        lately
    }
}

#[cfg(test)]
mod tests {
    //! Proves: anything older than the window is forgotten, anything younger appears as soon as it
    //! is counted, and the covered time fits; percentiles are those of a sorted list. How: values a
    //! second, noted every ten seconds, for ten minutes of made-up time; and random values at
    //! random times, counted by two workers.

    use proptest::prelude::*;
    use weir_proxy::observe::histogram::Histogram;

    use super::*;

    #[test]
    fn the_window_slides() {
        let start = Instant::now();
        let histogram = Histogram::default();
        let mut past = Past::new(start);
        for second in 1..=600u64 {
            // The value reveals when it was recorded.
            histogram.record(second * 1000);
            let now = start + Duration::from_secs(second);
            let counts = Counts { answers: [0, second, 0, 0, 0], retries: second / 2 };
            if second % 10 == 0 {
                past.note(now, counts, &histogram.snapshot());
            }
            let lately = past.lately(now, counts, &histogram.snapshot());
            let seconds = lately.covered.as_secs();
            assert!(
                seconds == second.min(seconds) && seconds <= 300 && seconds >= second.min(290),
                "{second}: {seconds}"
            );
            assert_eq!(
                (lately.latency.count(), lately.counts.answers[1]),
                (seconds, seconds),
                "{second}"
            );
            assert_eq!(lately.counts.retries, second / 2 - (second - seconds) / 2);
            let oldest = lately.latency.min_us().unwrap() / 1000;
            assert!(oldest.abs_diff(second - seconds + 1) * 32 <= second, "{second}: {oldest}");
        }
    }

    #[test]
    fn the_present_is_the_last_seconds() {
        let start = Instant::now();
        let mut past = Past::new(start);
        let mut answers = 0;
        for half in 1..=120u32 {
            let now = start + Duration::from_millis(500) * half;
            // A hundred a second for half a minute, then none.
            answers += if half <= 60 { 50 } else { 0 };
            let counts = Counts { answers: [0, answers, 0, 0, 0], retries: 0 };
            let rate = past.lately(now, counts, &Snapshot::default()).answers_per_second;
            match half {
                ..=60 => assert!((rate - 100.0).abs() < 1e-6, "{half}: {rate}"),
                61..=66 => assert!(rate < 100.0, "{half}: {rate}"),
                _ => assert!(rate.abs() < 1e-6, "{half}: {rate}"),
            }
            if half % 2 == 0 {
                past.mark(now, counts);
            }
        }
    }

    #[test]
    fn nothing_is_nothing() {
        let start = Instant::now();
        let past = Past::new(start);
        let lately = past.lately(start, Counts::default(), &Snapshot::default());
        assert_eq!((lately.covered, lately.latency.percentile(5000)), (Duration::ZERO, None));
    }

    /// Whether a value is within half a bucket of the exact one.
    fn is_near(found: Option<u64>, exact: Option<&u64>) -> bool {
        found.zip(exact).map_or(found.is_none() && exact.is_none(), |(found, exact)| {
            found.abs_diff(*exact) * 32 <= *exact
        })
    }

    proptest! {
        #[test]
        fn percentiles_are_those_of_what_came_within_the_window(
            steps in prop::collection::vec(
                (
                    1..15u64,
                    prop::collection::vec(
                        (any::<u32>(), 8..32u32)
                            .prop_map(|(value, bits)| u64::from(value >> bits)),
                        0..12
                    )
                ),
                1..80,
            ),
        ) {
            let start = Instant::now();
            let workers = [Histogram::default(), Histogram::default()];
            let (mut past, mut arrived, mut second) = (Past::new(start), Vec::new(), 0);
            for (seconds, values) in steps {
                second += seconds;
                let now = start + Duration::from_secs(second);
                for (worker, value) in workers.iter().cycle().zip(values) {
                    worker.record(value);
                    arrived.push((second, value));
                }
                let mut all = workers[0].snapshot();
                all.merge(&workers[1].snapshot());
                let lately = past.lately(now, Counts::default(), &all);
                let since = second - lately.covered.as_secs();
                prop_assert!(second - since <= WINDOW.as_secs());
                let mut exact: Vec<u64> =
                    arrived.iter().filter(|(at, _)| *at > since).map(|(_, value)| *value).collect();
                exact.sort_unstable();
                let found = &lately.latency;
                prop_assert_eq!(
                    (found.count(), found.sum_us()),
                    (exact.len() as u64, exact.iter().sum::<u64>())
                );
                prop_assert!(
                    is_near(found.min_us(), exact.first()) && is_near(found.max_us(), exact.last())
                );
                for of_10_000 in [5_000, 7_500, 9_000, 9_500, 9_900, 9_990] {
                    let rank = (exact.len() * of_10_000).div_ceil(10_000).saturating_sub(1);
                    prop_assert!(
                        is_near(found.percentile(of_10_000 as u32), exact.get(rank)),
                        "{} {:?}",
                        of_10_000,
                        exact
                    );
                }
                past.note(now, Counts::default(), &all);
            }
        }
    }
}
