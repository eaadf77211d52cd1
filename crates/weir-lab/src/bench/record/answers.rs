//! What clients saw over many responses: times and errors.
//!
//! Part of records, whichever client sent the requests.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What went wrong, by kind: the words of `weir bomb` (`reset`, `timed_out`, ...) and `status 502`;
/// nothing is lumped together.
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
