//! What a thread saw of a class within a second, and its form in the raw file. Filled by
//! `thread.rs`, added up by `record.rs`.

use hdrhistogram::Histogram;

use super::count::Counts;

/// Longest distinguishable time, microseconds; longer ones count as this.
pub(crate) const LONGEST_US: u64 = 600_000_000;
/// Times are exact to three digits.
const DIGITS: u8 = 3;

/// Times in microseconds, to three digits.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_US, DIGITS)
        .expect("constant bounds that the library accepts")
}

/// Counts and times of one class.
#[derive(Debug, Clone, Default)]
pub struct Slice {
    /// The outcomes of connections and requests.
    pub counts: Counts,
    times: Option<Box<Times>>,
    /// When a client of the class was first blocked, from the beginning of the results,
    /// microseconds.
    pub first_block_us: Option<u64>,
    /// When a client last got no response or one of 500 and more, from the beginning of the
    /// results, microseconds.
    pub last_failure_us: Option<u64>,
}

/// Times of answered requests and of connects, microseconds.
#[derive(Debug, Clone)]
pub struct Times {
    /// From sent to the last byte of the response.
    pub raw: Histogram<u64>,
    /// From due to the last byte of the response; empty in a closed loop.
    pub corrected: Histogram<u64>,
    /// From the first packet to an established connection.
    pub connect: Histogram<u64>,
    /// From due to when the generator looked: its own delay.
    pub lag: Histogram<u64>,
}

impl Default for Times {
    fn default() -> Times {
        Times { raw: histogram(), corrected: histogram(), connect: histogram(), lag: histogram() }
    }
}

impl Times {
    /// Returns how long a user waited: from due where there is a rate, else from sent.
    pub(crate) fn latency(&self) -> &Histogram<u64> {
        if self.corrected.is_empty() { &self.raw } else { &self.corrected }
    }
}

impl Slice {
    pub(crate) fn new(counts: Counts, times: Times) -> Slice {
        Slice { counts, times: Some(Box::new(times)), ..Slice::default() }
    }

    /// The times, if there are any.
    pub fn times(&self) -> Option<&Times> {
        self.times.as_deref()
    }

    fn times_mut(&mut self) -> &mut Times {
        self.times.get_or_insert_default()
    }

    pub(crate) fn record(&mut self, raw_us: u64, corrected_us: Option<u64>) {
        let times = self.times_mut();
        times.raw.saturating_record(raw_us.max(1));
        if let Some(corrected_us) = corrected_us {
            times.corrected.saturating_record(corrected_us.max(1));
        }
    }

    pub(crate) fn record_connect(&mut self, us: u64) {
        self.times_mut().connect.saturating_record(us.max(1));
    }

    pub(crate) fn record_lag(&mut self, us: u64, counted: bool) {
        if counted {
            self.times_mut().lag.saturating_record(us.max(1));
        }
    }

    pub(crate) fn block(&mut self, at_us: u64) {
        self.first_block_us.get_or_insert(at_us);
    }

    pub(crate) fn fail(&mut self, at_us: u64) {
        self.last_failure_us = self.last_failure_us.max(Some(at_us));
    }

    /// Returns what was recorded since the last call, if anything.
    pub(crate) fn take(&mut self) -> Option<Slice> {
        let empty = self.times.is_none() && self.counts == Counts::default();
        (!empty).then(|| std::mem::take(self))
    }

    /// Adds the results of another slice.
    pub fn add(&mut self, other: &Slice) {
        self.counts.add(&other.counts);
        if let Some(times) = other.times() {
            let mine = self.times_mut();
            let pairs = [
                (&mut mine.raw, &times.raw),
                (&mut mine.corrected, &times.corrected),
                (&mut mine.connect, &times.connect),
                (&mut mine.lag, &times.lag),
            ];
            for (mine, its) in pairs {
                mine.add(its).expect("the same bounds");
            }
        }
        self.first_block_us = match (self.first_block_us, other.first_block_us) {
            (Some(mine), Some(its)) => Some(mine.min(its)),
            (mine, its) => mine.or(its),
        };
        self.last_failure_us = self.last_failure_us.max(other.last_failure_us);
    }
}

/// A histogram as pairs of the highest value of a bucket and its count.
pub(crate) fn pairs(histogram: &Histogram<u64>) -> Vec<(u64, u64)> {
    histogram
        .iter_recorded()
        .map(|value| (value.value_iterated_to(), value.count_since_last_iteration()))
        .collect()
}

/// Restores the histogram that [`pairs`] was made of.
///
/// # Errors
/// A value beyond [`LONGEST_US`].
pub(crate) fn from_pairs(pairs: &[(u64, u64)]) -> Result<Histogram<u64>, String> {
    let mut all = histogram();
    for (value, count) in pairs {
        all.record_n(*value, *count).map_err(|error| error.to_string())?;
    }
    Ok(all)
}
