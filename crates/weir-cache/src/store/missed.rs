//! The keys that servers are asked for most, and why: frequent misses, told apart from single ones.
//!
//! Called when a request is not answered by the store, and when its response turns out not to be
//! storable. The many keys that are requested once must not displace the few that are requested
//! always. A key that finds no place takes that of the least missed one, with its count. So a key
//! that was missed more often than one in [`PLACES`] of its part is always present, and its count
//! is too high by at most that much (space-saving, Metwally et al., 2005). Bound: [`PARTS`] times
//! [`PLACES`] keys of at most [`KEY_BYTES_MAX`], about 600 KB.

use std::sync::{Mutex, PoisonError};

use super::Store;

/// Locks.
const PARTS: usize = 16;
/// Keys of each.
const PLACES: usize = 64;
/// Bytes of a key that are kept: its URL is at the front.
const KEY_BYTES_MAX: usize = 512;

/// A key that was requested from servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missed {
    /// The key, or the front of a long one; its first line is the URL.
    pub key: Vec<u8>,
    /// How often, since the start.
    pub misses: u64,
    /// How far the count may be too high, because another key had its place before.
    pub over: u64,
    /// The reason for the last miss, or why its last response was not stored: a word.
    pub why: &'static str,
}

/// The keys by hash, with the data of each at the same place.
#[derive(Debug, Default)]
struct Part {
    hashes: Vec<u64>,
    counts: Vec<u64>,
    missed: Vec<Known>,
}

#[derive(Debug)]
struct Known {
    key: Vec<u8>,
    over: u64,
    why: &'static str,
    /// `why` is about a response.
    is_refused: bool,
}

impl Part {
    fn at(&self, hash: u64) -> Option<usize> {
        self.hashes.iter().position(|its| *its == hash)
    }

    fn miss(&mut self, hash: u64, key: &[u8], why: &'static str) {
        if let Some(at) = self.at(hash) {
            self.counts[at] += 1;
            let known = &mut self.missed[at];
            // The reason why its responses are not stored says more than their absence.
            if !known.is_refused {
                known.why = why;
            }
            return;
        }
        let key = &key[..key.len().min(KEY_BYTES_MAX)];
        if self.hashes.len() < PLACES {
            self.hashes.push(hash);
            self.counts.push(1);
            self.missed.push(Known { key: key.to_vec(), over: 0, why, is_refused: false });
            return;
        }
        let Some((at, least)) =
            self.counts.iter().copied().enumerate().min_by_key(|(_, count)| *count)
        else {
            return;
        };
        (self.hashes[at], self.counts[at]) = (hash, least + 1);
        let known = &mut self.missed[at];
        // Its memory is reused for the next one.
        known.key.clear();
        known.key.extend_from_slice(key);
        (known.over, known.why, known.is_refused) = (least, why, false);
    }

    fn judged(&mut self, hash: u64, why: Option<&'static str>) {
        let Some(at) = self.at(hash) else { return };
        let known = &mut self.missed[at];
        known.is_refused = why.is_some();
        known.why = why.unwrap_or(known.why);
    }
}

/// All parts.
#[derive(Debug, Default)]
pub(super) struct Misses([Mutex<Part>; PARTS]);

impl Misses {
    /// The remains after a panic are as good as before: counts that lack one.
    fn with<R>(&self, hash: u64, work: impl FnOnce(&mut Part) -> R) -> R {
        // The low bits tell the keys of a part apart.
        let part = &self.0[(hash >> 60) as usize % PARTS];
        work(&mut part.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Store {
    /// Counts a request to a server for a response with this key: `why`, in a word.
    pub fn count_miss(&self, key: &[u8], why: &'static str) {
        let hash = self.hashes(key).key;
        self.misses.with(hash, |part| part.miss(hash, key, why));
    }

    /// Notes whether the server's response may be stored, or why not, in a word.
    pub fn note_answer(&self, key: &[u8], why_not: Option<&'static str>) {
        let hash = self.hashes(key).key;
        self.misses.with(hash, |part| part.judged(hash, why_not));
    }

    /// Returns the `count` keys that were requested most from servers, the most frequent first.
    pub fn missed(&self, count: usize) -> Vec<Missed> {
        let mut all = Vec::new();
        for part in &self.misses.0 {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            let of = |(known, misses): (&Known, &u64)| Missed {
                key: known.key.clone(),
                misses: *misses,
                over: known.over,
                why: known.why,
            };
            all.extend(part.missed.iter().zip(&part.counts).map(of));
        }
        all.sort_by(|a, b| b.misses.cmp(&a.misses).then_with(|| a.key.cmp(&b.key)));
        all.truncate(count);
        all
    }
}

#[cfg(test)]
mod tests {
    //! Proves: frequent misses are found among many single ones, with bounds of their counts, and
    //! with the reason. How: keys in a made-up order.

    use super::*;
    use crate::store::Limits;

    fn store() -> Store {
        Store::new(Limits { bytes: 1 << 20, object_bytes_max: 1 << 16, variants_max: 4 }, [3, 7], 4)
    }

    #[test]
    fn what_is_missed_often_is_found_among_many_that_are_missed_once() {
        let store = store();
        let often: Vec<Vec<u8>> =
            (0..5).map(|nth| format!("http://a/often/{nth}\napp").into_bytes()).collect();
        for nth in 0..20_000_u32 {
            store.count_miss(format!("http://a/once/{nth}\napp").as_bytes(), "uri-miss");
            if nth % 10 == 0 {
                often.iter().for_each(|key| store.count_miss(key, "stale"));
            }
        }
        let first = store.missed(5);
        let mut keys: Vec<&[u8]> = first.iter().map(|missed| &missed.key[..]).collect();
        keys.sort_unstable();
        assert_eq!(keys, often.iter().map(|key| &key[..]).collect::<Vec<_>>());
        for missed in &first {
            assert!(missed.misses >= 2000 && missed.misses - missed.over <= 2000, "{missed:?}");
            assert_eq!(missed.why, "stale");
        }
        assert_eq!(store.missed(usize::MAX).len(), PARTS * PLACES);
    }

    #[test]
    fn an_answer_that_may_not_be_stored_says_why_until_one_may() {
        let store = store();
        let why = |store: &Store| store.missed(1)[0].why;
        store.note_answer(b"http://a/\napp", Some("private"));
        assert_eq!(store.missed(1), [], "nobody has missed it");
        store.count_miss(b"http://a/\napp", "uri-miss");
        assert_eq!(why(&store), "uri-miss");
        store.note_answer(b"http://a/\napp", Some("private"));
        store.count_miss(b"http://a/\napp", "uri-miss");
        assert_eq!((why(&store), store.missed(1)[0].misses), ("private", 2));
        store.note_answer(b"http://a/\napp", None);
        store.count_miss(b"http://a/\napp", "stale");
        assert_eq!(why(&store), "stale");
    }

    #[test]
    fn of_a_long_key_the_front_is_kept() {
        let store = store();
        let key = [b"http://a/".to_vec(), vec![b'x'; 4000]].concat();
        store.count_miss(&key, "uri-miss");
        store.count_miss(&key, "uri-miss");
        assert_eq!((store.missed(1)[0].key.len(), store.missed(1)[0].misses), (KEY_BYTES_MAX, 2));
    }
}
