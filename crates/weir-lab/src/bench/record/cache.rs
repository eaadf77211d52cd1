//! Results of caches: requests that reached the origin, responses that were gone after a purge, and
//! what clients saw before and after an event.
//!
//! Filled by `run/cache.rs` and `run/cache_events.rs`, shown by `report/cache.rs`.

use serde::{Deserialize, Serialize};

/// The results of a run with a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Cached {
    /// Requests that the origin got in the counted time; where a run has other requests besides,
    /// only of those that it measures.
    pub(crate) fetches: u64,
    /// Requests of clients in that time, by the same count where both can be known.
    pub(crate) requests: u64,
    /// How long the origin took for each, milliseconds; 0: no noticeable time.
    pub(crate) origin_ms: u32,
    /// The configured size of the cache, bytes; 0: not configured.
    pub(crate) room_bytes: u64,
    /// What it took: memory above that of its start, and files in memory, bytes; 0: not read.
    pub(crate) taken_bytes: u64,
    /// The share of hits that no cache can exceed, percent; 0: not known.
    pub(crate) best_percent: f64,
    /// The share of hits of a cache that evicts the least recently requested entry and needs no
    /// byte besides bodies, percent; 0: not known.
    pub(crate) lru_percent: f64,
    /// Responses that it held at the end; 0: it does not say.
    pub(crate) answers: u64,
    /// The share of hits of a cache that evicts the least recently requested entry and holds as
    /// many responses, percent; 0: not known.
    pub(crate) same_lru_percent: f64,
    /// How long a client that is not slow waited for the whole of a response that others read
    /// slowly, microseconds; 0: not measured.
    pub(crate) whole_us: u64,
    /// From the order to end until it listened again, microseconds; 0: it was not ended.
    pub(crate) down_us: u64,
}

impl Cached {
    /// Returns the requests that did not reach the origin, percent of all.
    pub(crate) fn hit_percent(&self) -> f64 {
        if self.requests == 0 {
            return f64::NAN;
        }
        (1.0 - self.fetches as f64 / self.requests as f64) * 100.0
    }

    /// Returns its hits as a multiple of those of a cache that evicts the least recently requested
    /// entry and holds as many responses; NaN where that is not known.
    pub(crate) fn hits_of_same_lru(&self) -> f64 {
        if self.same_lru_percent == 0.0 {
            f64::NAN
        } else {
            self.hit_percent() / self.same_lru_percent
        }
    }

    /// Returns the memory that it took as a share of its configured size; NaN where either is not
    /// known.
    pub(crate) fn taken_of_room(&self) -> f64 {
        if self.room_bytes == 0 || self.taken_bytes == 0 {
            return f64::NAN;
        }
        self.taken_bytes as f64 / self.room_bytes as f64
    }
}

/// The effect of a purge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Purged {
    /// Responses that it applied to.
    pub(crate) objects: u64,
    /// Memory of the cache's processes before it, above that of their start, bytes.
    pub(crate) taken_bytes: u64,
    /// From the order to its end, microseconds.
    pub(crate) order_us: u64,
    /// From the order to the last old response that a client got, microseconds; 0: no client got
    /// one.
    pub(crate) gone_us: u64,
    /// Old responses to requests that were sent after the order had ended.
    pub(crate) old_after: u64,
    /// Responses that were checked after the order.
    pub(crate) looks: u64,
}

/// What clients saw before and after an event.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Halves {
    /// Before.
    pub(crate) before: Half,
    /// After.
    pub(crate) after: Half,
}

/// Some seconds of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Half {
    /// Responses a second.
    pub(crate) rate: f64,
    /// 99th percentile of latency, microseconds; 0: there was no response.
    pub(crate) p99_us: u64,
    /// The longest.
    pub(crate) max_us: u64,
    /// Requests that failed.
    pub(crate) failed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_no_number() {
        let cached = Cached {
            fetches: 250,
            requests: 1000,
            room_bytes: 200,
            taken_bytes: 230,
            ..Cached::default()
        };
        assert_eq!((cached.hit_percent(), cached.taken_of_room()), (75.0, 1.15));
        let unknown = Cached::default();
        assert!(unknown.hits_of_same_lru().is_nan());
        assert_eq!(Cached { same_lru_percent: 60.0, ..cached }.hits_of_same_lru(), 1.25);
        assert!(unknown.hit_percent().is_nan() && unknown.taken_of_room().is_nan());
        assert!(Cached { room_bytes: 1, ..unknown }.taken_of_room().is_nan());
    }
}
