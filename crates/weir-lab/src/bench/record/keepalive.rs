//! What a probe saw of a server with busy workers.
//!
//! Filled by `run/keepalive.rs`, shown by `report/keepalive.rs`.

use serde::{Deserialize, Serialize};

use super::answers::Latency;

/// What the probe saw.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Probed {
    /// Requests.
    pub(crate) requests: u64,
    /// Responses slower than 20 ms, connecting included.
    pub(crate) slow: u64,
    /// Requests without a good response.
    pub(crate) failed: u64,
    /// Shares of the time that each worker of the server was busy, the least busy first.
    pub(crate) busy: Vec<f64>,
    /// Connecting, where a connection had to be made.
    pub(crate) connect: Option<Latency>,
    /// From the request to the first byte of the response.
    pub(crate) first_byte: Option<Latency>,
    /// The first requests on their connections, and the others, where the two were distinguished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) first: Option<Part>,
    /// See above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kept: Option<Part>,
    /// Whether weir used a separate connection for each request until the end, where it was to
    /// (`pool "fresh"`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) is_in_force: Option<bool>,
    /// Requests of the load that were answered.
    pub(crate) load_answered: u64,
    /// Those that got no response, in time or at all.
    pub(crate) load_failed: u64,
}

/// Responses of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// How many.
    pub(crate) answered: u64,
    /// Those slower than 20 ms.
    pub(crate) slow: u64,
    /// 99.9th percentile, microseconds.
    pub(crate) p99_9_us: f64,
}

impl Probed {
    /// Returns how many slow responses there would be in the published number of requests.
    pub(crate) fn slow_in_10_000(&self) -> f64 {
        self.slow as f64 / self.requests.max(1) as f64 * 1e4
    }
}
