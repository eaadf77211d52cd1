//! The result of a run in which servers died.
//!
//! Filled by `run/failover.rs`, shown by `report/failover.rs` and `report/drawing/seconds.rs`.

use serde::{Deserialize, Serialize};

use super::answers::{Errors, Latency};

/// The result of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Failover {
    /// GETs.
    pub(crate) reads: Requests,
    /// POSTs.
    pub(crate) writes: Requests,
    /// POSTs that servers got more often than once, each counted once for every repetition.
    pub(crate) writes_twice: u64,
    /// Different POSTs that reached servers, including those before the counted time.
    pub(crate) writes_reached: u64,
    /// Seconds of the run in which a request failed.
    pub(crate) seconds_failed: u32,
    /// From the first fault to the last failure, seconds; None: no request failed.
    pub(crate) last_failure_s: Option<f64>,
    /// What was done to the servers.
    pub(crate) events: Vec<Event>,
    /// By second.
    pub(crate) timeline: Vec<Second>,
}

/// One class of requests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Requests {
    /// Requests that were due.
    pub(crate) offered: u64,
    /// Answered with 2xx.
    pub(crate) good: u64,
    /// All others, by kind.
    pub(crate) failed: Errors,
    /// From when it was due to the response, whatever its status.
    pub(crate) latency: Latency,
}

/// Something that was done to a server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    /// Seconds from the beginning of the counted time.
    pub(crate) at_s: f64,
    /// The server, from 1.
    pub(crate) server: usize,
    /// The event.
    pub(crate) what: String,
    /// The process that it was done to, or that was started.
    pub(crate) process: u32,
}

/// A second of both classes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Second {
    /// From 0.
    pub(crate) second: u32,
    /// Responses with 2xx.
    pub(crate) good: u64,
    /// Requests that failed.
    pub(crate) failed: u64,
    /// From when a request was due to the response; None without responses.
    pub(crate) p99_us: Option<u64>,
    /// The longest.
    pub(crate) max_us: Option<u64>,
}
