//! A cache that evicts the least recently requested entry: the yardstick for caches. Pure.
//!
//! Called by `run/cache.rs`, with keys drawn from the distribution of the clients' requests. Bound:
//! its keys.

use super::cache::Zipf;
use crate::random::Random;

/// Returns the share of requests that hit in a cache with room for `room` responses, of `counted`
/// requests, after `uncounted` ones. Percent; NaN where none are counted.
pub(crate) fn hit_percent(zipf: Zipf, room: usize, (uncounted, counted): (u64, u64)) -> f64 {
    let sums: Vec<u64> = zipf
        .weights()
        .scan(0, |sum, weight| {
            *sum += u64::from(weight);
            Some(*sum)
        })
        .collect();
    let all = sums.last().copied().unwrap_or(1);
    let (mut lru, mut random) = (Lru::new(sums.len(), room), Random::new(1));
    let mut draw = || {
        let drawn = random.next() % all;
        sums.partition_point(|sum| *sum <= drawn)
    };
    for _ in 0..uncounted {
        lru.ask(draw());
    }
    let hits = (0..counted).filter(|_| lru.ask(draw())).count();
    hits as f64 / counted as f64 * 100.0
}

/// Keys from 0, in a ring by when they were last requested. `next` of the last place is the key
/// that was requested last.
///
/// ```text
/// ring -> newest -> ... -> oldest -> ring
/// ```
struct Lru {
    /// By key, the last entry being that of the ring: the key that was requested just before it.
    next: Vec<usize>,
    /// And just after it. For a key that is not held: itself.
    previous: Vec<usize>,
    held: usize,
    room: usize,
}

impl Lru {
    fn new(keys: usize, room: usize) -> Lru {
        Lru { next: (0..=keys).collect(), previous: (0..=keys).collect(), held: 0, room }
    }

    /// Whether it has this key; from then on it does, if there is room for anything.
    fn ask(&mut self, key: usize) -> bool {
        let ring = self.next.len() - 1;
        let is_hit = self.next[key] != key;
        if is_hit {
            self.forget(key);
        } else if self.room == 0 {
            return false;
        } else if self.held == self.room {
            self.forget(self.previous[ring]);
        }
        let newest = self.next[ring];
        (self.next[key], self.previous[key]) = (newest, ring);
        (self.next[ring], self.previous[newest]) = (key, key);
        self.held += 1;
        is_hit
    }

    fn forget(&mut self, key: usize) {
        let (next, previous) = (self.next[key], self.previous[key]);
        (self.next[previous], self.previous[next]) = (next, previous);
        (self.next[key], self.previous[key]) = (key, key);
        self.held -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_longest_ago_is_forgotten() {
        let mut lru = Lru::new(5, 2);
        let asked: Vec<bool> = [0, 1, 0, 2, 1, 0, 0, 4, 0].map(|key| lru.ask(key)).into();
        assert_eq!(asked, [false, false, true, false, false, false, true, false, true]);
        assert!(![1, 1].map(|key| Lru::new(2, 0).ask(key)).contains(&true), "no room, no hits");
    }

    #[test]
    fn with_room_for_all_only_firsts_are_missed_and_with_less_it_stays_below_the_best() {
        let zipf = Zipf { keys: 1000, body: 1 << 20, room_mib: 250, alpha: 1.0 };
        let lru = hit_percent(zipf, zipf.fit(), (50_000, 50_000));
        // By Che's approximation 73.8 %.
        assert!((lru - 73.8).abs() < 2.0 && lru < zipf.best_percent(), "{lru}");
        let all = hit_percent(zipf, 1000, (100_000, 10_000));
        assert!(all > 99.9, "{all}");
    }
}
