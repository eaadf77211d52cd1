//! What caches did: what reached the origin behind one, what was gone after a purge, and what clients saw before and after something happened.
//!
//! Filled by `run/cache.rs` and `run/cache_events.rs`, shown by `report/cache.rs`.

use serde::{Deserialize, Serialize};

/// What a run saw behind a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Cached {
    /// Requests that the origin got in the counted time: of those that are meant, where a run has others besides.
    pub(crate) fetches: u64,
    /// Requests of clients in that time, by the same count where both can be known.
    pub(crate) requests: u64,
    /// How long the origin took for each, milliseconds; 0: no time to speak of.
    pub(crate) origin_ms: u32,
    /// What the cache was told that it has, bytes; 0: not said.
    pub(crate) room_bytes: u64,
    /// What it took: memory above that of its start, and files in memory, bytes; 0: not read.
    pub(crate) taken_bytes: u64,
    /// The share of hits that nobody can do better than, percent; 0: not known.
    pub(crate) best_percent: f64,
    /// The share of one that forgets what was asked for longest ago and needs no byte besides bodies, percent; 0: not known.
    pub(crate) lru_percent: f64,
    /// Answers that it had at the end; 0: it does not say.
    pub(crate) answers: u64,
    /// The share of one that forgets what was asked for longest ago, of as many answers, percent; 0: not known.
    pub(crate) same_lru_percent: f64,
    /// How long a client who is not slow waited for the whole of an answer that others read slowly, microseconds; 0: nobody asked.
    pub(crate) whole_us: u64,
    /// From the order to end to when it listened again, microseconds; 0: it was not ended.
    pub(crate) down_us: u64,
}

impl Cached {
    /// Requests that the origin did not get, percent of all.
    pub(crate) fn hit_percent(&self) -> f64 {
        if self.requests == 0 {
            return f64::NAN;
        }
        (1.0 - self.fetches as f64 / self.requests as f64) * 100.0
    }

    /// Its hits as a multiple of those of one that forgets what was asked for longest ago, of as many answers; NaN where that is not known.
    pub(crate) fn hits_of_same_lru(&self) -> f64 {
        if self.same_lru_percent == 0.0 { f64::NAN } else { self.hit_percent() / self.same_lru_percent }
    }

    /// What it took as a part of what it was told that it has; NaN where either is not known.
    pub(crate) fn taken_of_room(&self) -> f64 {
        if self.room_bytes == 0 || self.taken_bytes == 0 {
            return f64::NAN;
        }
        self.taken_bytes as f64 / self.room_bytes as f64
    }
}

/// What a purge did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Purged {
    /// Answers that it was about.
    pub(crate) objects: u64,
    /// Bytes that the cache's processes had before it, above those of their start.
    pub(crate) taken_bytes: u64,
    /// From the order to its end, microseconds.
    pub(crate) order_us: u64,
    /// From the order to the last old answer that somebody got, microseconds; 0: nobody got one.
    pub(crate) gone_us: u64,
    /// Old answers to requests that were sent after the order had ended.
    pub(crate) old_after: u64,
    /// Answers that were looked at after the order.
    pub(crate) looks: u64,
}

/// What clients saw before and after something happened.
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
    /// Answers a second.
    pub(crate) rate: f64,
    /// 99th percentile of latency, microseconds; 0: nothing was answered.
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
        let cached = Cached { fetches: 250, requests: 1000, room_bytes: 200, taken_bytes: 230, ..Cached::default() };
        assert_eq!((cached.hit_percent(), cached.taken_of_room()), (75.0, 1.15));
        let unknown = Cached::default();
        assert!(unknown.hits_of_same_lru().is_nan());
        assert_eq!(Cached { same_lru_percent: 60.0, ..cached }.hits_of_same_lru(), 1.25);
        assert!(unknown.hit_percent().is_nan() && unknown.taken_of_room().is_nan());
        assert!(Cached { room_bytes: 1, ..unknown }.taken_of_room().is_nan());
    }
}
