//! What reached the origin behind a cache.
//!
//! Filled by `run/cache.rs`, shown by `report/cache.rs`.

use serde::{Deserialize, Serialize};

/// What a run saw behind a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cached {
    /// Requests that the origin got in the counted time.
    pub(crate) fetches: u64,
    /// Requests of clients in that time, by the same count where both can be known.
    pub(crate) requests: u64,
    /// What the cache was told that it has, bytes; 0: not said.
    pub(crate) room_bytes: u64,
    /// The share of hits that nobody can do better than, percent; 0: not known.
    pub(crate) best_percent: f64,
}

impl Cached {
    /// Requests that the origin did not get, percent of all.
    pub(crate) fn hit_percent(&self) -> f64 {
        if self.requests == 0 {
            return f64::NAN;
        }
        (1.0 - self.fetches as f64 / self.requests as f64) * 100.0
    }
}
