//! What one run measured, and the arithmetic over several runs.
//!
//! Written by `load.rs`, `memory.rs` and `tunnel.rs`, kept as one line of JSON each, summarised by `report.rs`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bench::experiment::metric::Metric;
use crate::bench::run::failover::Failover;
use crate::bench::run::keepalive::Probed;

/// What went wrong, by kind: the words of `weir bomb` (`reset`, `timed_out`, ...) and `status 502`; nothing is lumped together.
pub(crate) type Errors = BTreeMap<String, u64>;

/// From the request (fixed rate: from the time it was due) to its reply, microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Latency {
    /// Half of the requests took at most this.
    pub(crate) p50_us: u64,
    /// 95 of 100.
    pub(crate) p95_us: u64,
    /// 99 of 100.
    pub(crate) p99_us: u64,
    /// 999 of 1000.
    pub(crate) p999_us: u64,
    /// All.
    pub(crate) max_us: u64,
}

/// One run: one JSON object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Name of the cell.
    pub(crate) cell: String,
    /// Name of the contender.
    pub(crate) contender: String,
    /// From 1.
    pub(crate) round: u32,
    /// Complete replies (memory runs: connections).
    pub(crate) requests: u64,
    /// Replies a second (slow clients and full tunnels: bytes a second).
    pub(crate) rate: f64,
    /// Bytes that the clients received.
    pub(crate) bytes: u64,
    /// Length of the window in microseconds.
    pub(crate) wall_us: f64,
    /// What clients saw: by the clock from when a request was due, in a closed loop from when it was sent. None when nothing was
    /// answered.
    pub(crate) latency: Option<Latency>,
    /// By the clock: the same from when requests were sent.
    pub(crate) sent: Option<Latency>,
    /// What went wrong.
    pub(crate) errors: Errors,
    /// Connections that the origin accepted in the window (direct: the generator's own).
    pub(crate) upstream_connections: u64,
    /// User and system time of the proxy, all processes and threads, in the window.
    pub(crate) proxy_us: f64,
    /// That of the generator.
    pub(crate) generator_us: f64,
    /// That of the origin.
    pub(crate) origin_us: f64,
    /// Why the generator was the limit, if it was.
    pub(crate) generator_limit: Option<String>,
    /// Why nothing was measured, if so.
    pub(crate) not_run: Option<String>,
    /// Share of the window in which the cores were idle.
    pub(crate) idle: f64,
    /// Share of the window that the host gave to other guests.
    pub(crate) stolen: f64,
    /// Proportional set size of the proxy after the run.
    pub(crate) pss_bytes: u64,
    /// Memory runs: growth over the state before the load (idle: proportional; slow clients: resident, at its highest).
    pub(crate) memory_bytes: f64,
    /// Idle connections: growth for each.
    pub(crate) bytes_per_connection: f64,
    /// What clients saw while servers died.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failover: Option<Failover>,
    /// What the probe saw.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) probed: Option<Probed>,
}

impl Record {
    /// The proxy's time for each request, microseconds; NaN where there is none.
    pub(crate) fn proxy_us_per_request(&self) -> f64 {
        self.per_request(self.proxy_us)
    }

    /// The proxy's time for each gigabyte, seconds; NaN where there is none.
    pub(crate) fn proxy_s_per_gigabyte(&self) -> f64 {
        if self.bytes == 0 || self.proxy_us == 0.0 { f64::NAN } else { self.proxy_us / self.bytes as f64 * 1e3 }
    }

    /// The generator's.
    pub(crate) fn generator_us_per_request(&self) -> f64 {
        self.per_request(self.generator_us)
    }

    /// The origin's.
    pub(crate) fn origin_us_per_request(&self) -> f64 {
        self.per_request(self.origin_us)
    }

    /// A figure of the latency, microseconds; NaN where nothing was answered.
    pub(crate) fn latency_us(&self, of: fn(&Latency) -> u64) -> f64 {
        self.latency.as_ref().map_or(f64::NAN, |latency| of(latency) as f64)
    }

    /// The figure that is compared; NaN where it was not measured.
    pub(crate) fn figure(&self, metric: Metric) -> f64 {
        match metric {
            Metric::Rate => self.rate,
            Metric::Cpu => self.proxy_us_per_request(),
            Metric::CpuGigabyte => self.proxy_s_per_gigabyte(),
            Metric::GeneratorCpu => self.generator_us_per_request(),
            Metric::P99 => self.latency_us(|latency| latency.p99_us),
            Metric::P99Ms => self.latency_us(|latency| latency.p99_us) / 1e3,
            Metric::SentP99Ms => self.sent.map_or(f64::NAN, |sent| sent.p99_us as f64 / 1e3),
            Metric::IdleBytes => self.bytes_per_connection,
            Metric::MemoryMb => self.memory_bytes / 1e6,
            Metric::Upstream => self.upstream_connections as f64,
        }
    }

    fn per_request(&self, us: f64) -> f64 {
        if self.requests == 0 || us == 0.0 { f64::NAN } else { us / self.requests as f64 }
    }
}

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
