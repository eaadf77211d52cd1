//! What one run measured, and the arithmetic over several runs.
//!
//! Written by `load.rs` and `memory.rs`, kept as one line of JSON each, summarised by `report.rs`.

use serde::{Deserialize, Serialize};

/// Errors by kind. What each generator counts is what the client saw.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Errors {
    /// Connects that failed.
    pub(super) connect: u64,
    /// Connections that broke or ended while a reply was due (memory runs: connections lost).
    pub(super) read: u64,
    /// Sends that failed.
    pub(super) write: u64,
    /// Replies that took longer than 10 s (fixed rate: that never came).
    pub(super) timeout: u64,
    /// Replies with a status of 400 or more (fixed rate: other than 200).
    pub(super) status: u64,
}

impl Errors {
    /// All kinds together.
    pub(super) fn total(&self) -> u64 {
        self.connect + self.read + self.write + self.timeout + self.status
    }

    /// Adds another run's.
    pub(super) fn add(&mut self, other: &Errors) {
        self.connect += other.connect;
        self.read += other.read;
        self.write += other.write;
        self.timeout += other.timeout;
        self.status += other.status;
    }
}

/// From the request (fixed rate: from the time it was due) to its reply, microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Latency {
    /// Half of the requests took at most this.
    pub(super) p50_us: u64,
    /// 95 of 100.
    pub(super) p95_us: u64,
    /// 99 of 100.
    pub(super) p99_us: u64,
    /// 999 of 1000.
    pub(super) p999_us: u64,
    /// All.
    pub(super) max_us: u64,
}

/// One run: one JSON object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Name of the cell.
    pub(super) cell: String,
    /// Name of the contender.
    pub(super) contender: String,
    /// From 1.
    pub(super) round: u32,
    /// Complete replies (memory runs: connections).
    pub(super) requests: u64,
    /// Replies a second (slow clients: bytes a second).
    pub(super) rate: f64,
    /// Bytes that the clients received.
    pub(super) bytes: u64,
    /// Length of the window in microseconds.
    pub(super) wall_us: f64,
    /// What clients saw.
    pub(super) latency: Latency,
    /// What went wrong.
    pub(super) errors: Errors,
    /// Connections that the origin accepted in the window (direct: the generator's own).
    pub(super) upstream_connections: u64,
    /// User and system time of the proxy, all processes and threads, in the window.
    pub(super) proxy_us: f64,
    /// That of the generator.
    pub(super) generator_us: f64,
    /// That of the origin.
    pub(super) origin_us: f64,
    /// Share of the window in which the cores were idle.
    pub(super) idle: f64,
    /// Share of the window that the host gave to other guests.
    pub(super) stolen: f64,
    /// Proportional set size of the proxy after the run.
    pub(super) pss_bytes: u64,
    /// Memory runs: growth over the state before the load (idle: proportional; slow clients: resident, at its highest).
    pub(super) memory_bytes: f64,
    /// Idle connections: growth for each.
    pub(super) bytes_per_connection: f64,
}

impl Record {
    /// The proxy's time for each request, microseconds.
    pub(super) fn proxy_us_per_request(&self) -> f64 {
        self.per_request(self.proxy_us)
    }

    /// The generator's.
    pub(super) fn generator_us_per_request(&self) -> f64 {
        self.per_request(self.generator_us)
    }

    /// The origin's.
    pub(super) fn origin_us_per_request(&self) -> f64 {
        self.per_request(self.origin_us)
    }

    fn per_request(&self, us: f64) -> f64 {
        if self.requests == 0 { f64::NAN } else { us / self.requests as f64 }
    }
}

/// What can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Metric {
    /// Replies a second.
    Rate,
    /// Proxy CPU for each request.
    Cpu,
    /// 99th percentile of latency.
    P99,
    /// Bytes for each idle connection.
    IdleBytes,
    /// Megabytes above idle.
    MemoryMb,
}

impl Metric {
    /// The figure of one run.
    pub(super) fn of(self, record: &Record) -> f64 {
        match self {
            Metric::Rate => record.rate,
            Metric::Cpu => record.proxy_us_per_request(),
            Metric::P99 => record.latency.p99_us as f64,
            Metric::IdleBytes => record.bytes_per_connection,
            Metric::MemoryMb => record.memory_bytes / 1e6,
        }
    }
}

/// The median; NaN of nothing.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

/// Median over the rounds of the ratio between two contenders' figures in the same round.
pub(super) fn median_ratio(records: &[&Record], metric: Metric, subject: &str, against: &str) -> f64 {
    let ratios = records.iter().filter(|record| record.contender == subject).filter_map(|mine| {
        let other = records.iter().find(|record| record.contender == against && record.round == mine.round)?;
        Some(metric.of(mine) / metric.of(other))
    });
    median(ratios.collect())
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
        assert_eq!(median_ratio(&all, Metric::Rate, "a", "b"), 3.0);
        assert!(median_ratio(&all, Metric::Rate, "a", "c").is_nan());
    }
}
