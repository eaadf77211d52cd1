//! Values that are valid for a time, in bounded memory: results of name servers, good credentials.
//! Called by `names` and `verify`.
//!
//! Bound: `max` entries. It has two generations. When the young one reaches half of that, it
//! becomes the old one, and the values of the previous old one that were not used since are
//! dropped. So inserting and finding cost the same however full it is.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Values by key, each until its end.
#[derive(Debug)]
pub(crate) struct Cache<K, V> {
    young: HashMap<K, (V, Instant)>,
    old: HashMap<K, (V, Instant)>,
    half: usize,
}

impl<K: Hash + Eq, V> Cache<K, V> {
    /// Makes room for `max` values, at least 2.
    pub(crate) fn new(max: usize) -> Cache<K, V> {
        Cache { young: HashMap::new(), old: HashMap::new(), half: (max / 2).max(1) }
    }

    /// Keeps a value until `end`.
    pub(crate) fn insert(&mut self, key: K, value: V, end: Instant) {
        self.old.remove(&key);
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, (value, end));
    }

    /// Returns the value, and its remaining validity, more than zero.
    pub(crate) fn find<Q>(&mut self, key: &Q, now: Instant) -> Option<(&V, Duration)>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if let Some((key, (value, end))) = self.old.remove_entry(key) {
            self.insert(key, value, end);
        }
        let (_, end) = self.young.get(key)?;
        if *end <= now {
            self.young.remove(key);
            return None;
        }
        self.young.get(key).map(|(value, end)| (value, *end - now))
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    //! Proves: values end when they should, the bound holds, and used values survive. How: times as
    //! arguments.

    use super::*;

    #[test]
    fn a_value_ends_at_its_time() {
        let start = Instant::now();
        let mut cache = Cache::new(10);
        cache.insert("a", 1, start + Duration::from_secs(2));
        assert_eq!(
            cache.find("a", start + Duration::from_secs(1)),
            Some((&1, Duration::from_secs(1)))
        );
        assert_eq!(cache.find("a", start + Duration::from_secs(2)), None);
        assert_eq!(cache.len(), 0);
        cache.insert("a", 1, start + Duration::from_secs(9));
        cache.insert("a", 2, start + Duration::from_secs(5));
        assert_eq!(cache.find("a", start), Some((&2, Duration::from_secs(5))));
    }

    #[test]
    fn a_flood_stays_in_bounds_and_does_not_drive_out_what_is_used() {
        let start = Instant::now();
        let end = start + Duration::from_secs(60);
        let mut cache = Cache::new(100);
        cache.insert(u32::MAX, 7, end);
        for key in 0..10_000 {
            cache.insert(key, key, end);
            assert!(cache.len() <= 100, "{}", cache.len());
            assert_eq!(cache.find(&u32::MAX, start).map(|(value, _)| *value), Some(7));
        }
        assert_eq!(cache.find(&9_999, start).map(|(value, _)| *value), Some(9_999));
        assert_eq!(cache.find(&5_000, start), None);
        cache.clear();
        assert_eq!(cache.len(), 0);
    }
}
