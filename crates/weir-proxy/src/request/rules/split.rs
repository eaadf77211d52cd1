//! `split` of a route: forwards a share of its requests to another upstream, as for a canary (stage
//! route).
//!
//! Compiled by weir-config, held by the route. Without a key every request advances a sequence that
//! is as close to the shares as possible after any number of requests, over all workers (a
//! golden-ratio sequence: Weyl, 1916). With a key the same key is always on the same side, in each
//! weir and on each route with the same shares; a larger first share keeps the keys that it had.
//! docs/traffic-splitting.md.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::placement::balance::Key;

/// The whole: shares are hundredths of a percent.
pub const WHOLE: u32 = 10_000;

/// 2 to the 32nd and 64th, divided by the golden ratio.
const GOLDEN_32: u32 = 0x9E37_79B9;
const GOLDEN_64: u64 = 0x9E37_79B9_7F4A_7C15;

/// See the module.
#[derive(Debug)]
pub struct Split {
    /// Where each share ends, in [`WHOLE`]ths, and the index of its upstream. Ascending, at most
    /// [`WHOLE`].
    parts: Vec<(u32, usize)>,
    /// The index of the upstream for the rest.
    rest: usize,
    /// The key that decides; None: the count alone.
    key: Option<Key>,
    /// The number of requests so far.
    count: AtomicU32,
}

impl Split {
    /// `parts` are shares in [`WHOLE`]ths and indices of upstreams.
    pub fn new(parts: &[(u32, usize)], rest: usize, key: Option<Key>) -> Split {
        let mut end = 0;
        let ends = parts.iter().map(|(share, upstream)| {
            end = (end + share).min(WHOLE);
            (end, *upstream)
        });
        Split { parts: ends.collect(), rest, key, count: AtomicU32::new(0) }
    }

    /// The key that decides for requests that have one.
    pub(crate) fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// The upstream for a request, by the hash of its key, if it has one; and whether the upstream
    /// is that of a share.
    pub(crate) fn choose(&self, hash: Option<u64>) -> (usize, bool) {
        let point = match hash {
            Some(hash) => (hash.wrapping_mul(GOLDEN_64) >> 32) as u32,
            None => self.count.fetch_add(1, Ordering::Relaxed).wrapping_mul(GOLDEN_32),
        };
        let place = ((u64::from(point) * u64::from(WHOLE)) >> 32) as u32;
        let part = self.parts.iter().find(|(end, _)| place < *end);
        part.map_or((self.rest, false), |(_, upstream)| (*upstream, true))
    }

    /// All upstreams that it may lead to.
    pub(crate) fn upstreams(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().map(|(_, upstream)| *upstream).chain([self.rest])
    }

    /// The same with each upstream replaced by the entry at its index in this list.
    pub(crate) fn retargeted(&self, upstreams: &[usize]) -> Split {
        let parts = self.parts.iter().map(|(end, upstream)| (*end, upstreams[*upstream])).collect();
        let count = AtomicU32::new(self.count.load(Ordering::Relaxed));
        Split { parts, rest: upstreams[self.rest], key: self.key.clone(), count }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: shares are exact after any number of requests; a key decides alone, and a larger
    //! share loses no key. How: counting.

    use super::*;
    use crate::placement::balance::hash_key;

    #[test]
    fn shares_are_kept_at_any_time() {
        let split = Split::new(&[(500, 1), (2_500, 2)], 0, None);
        let mut had = [0_i64; 3];
        for n in 1..=20_000 {
            had[split.choose(None).0] += 1;
            for (upstream, share) in [(0, 7_000), (1, 500), (2, 2_500)] {
                let off = had[upstream] - n * share / 10_000;
                assert!(off.abs() <= 6, "{n} requests: {had:?}");
            }
        }
    }

    #[test]
    fn shares_at_the_edges() {
        for (share, expected) in [(0, 0), (WHOLE, 1000)] {
            let split = Split::new(&[(share, 1)], 0, None);
            assert_eq!((0..1000).filter(|_| split.choose(None) == (1, true)).count(), expected);
        }
    }

    #[test]
    fn a_key_stays_and_a_larger_share_keeps_it() {
        let keys: Vec<u64> = (0..10_000_u32)
            .map(|n| hash_key(format!("10.0.{}.{}", n / 250, n % 250).as_bytes()))
            .collect();
        let chosen = |share| {
            let split = Split::new(&[(share, 1)], 0, Some(Key::ClientIp));
            keys.iter().map(|key| split.choose(Some(*key)).0).collect::<Vec<_>>()
        };
        let (small, again, large) = (chosen(500), chosen(500), chosen(1_000));
        assert_eq!(small, again);
        let count = |all: &[usize]| all.iter().sum::<usize>();
        assert!((400..600).contains(&count(&small)) && (880..1_120).contains(&count(&large)));
        assert!(small.iter().zip(&large).all(|(small, large)| small <= large));
    }

    #[test]
    fn other_places() {
        let split = Split::new(&[(WHOLE, 1)], 0, None).retargeted(&[5, 7]);
        assert_eq!(split.upstreams().collect::<Vec<_>>(), [7, 5]);
        assert_eq!(split.choose(None), (7, true));
    }
}
