//! All responses that are stored under one key, and the selection for a request (RFC 9111 §4.1).
//!
//! The newest first: it shows by which fields the server selects now. Bound: as many as the
//! operator allows, then the least recently used one is dropped.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::request::Request;
use crate::vary::Selector;

/// The responses of one key, newest first; `T` is the stored part of each. Lookups change nothing
/// but a time, so that many can run at once.
#[derive(Debug)]
pub struct Variants<T> {
    list: List<T>,
}

/// Nearly all keys have one response: it needs no memory besides the entry.
#[derive(Debug)]
enum List<T> {
    One(Variant<T>),
    Several(Vec<Variant<T>>),
}

#[derive(Debug)]
struct Variant<T> {
    selector: Selector,
    /// When a request last got it, or it was stored; microseconds of the monotonic clock.
    used_us: AtomicU64,
    value: T,
}

impl<T> Default for Variants<T> {
    fn default() -> Self {
        Self { list: List::Several(Vec::new()) }
    }
}

impl<T> Variants<T> {
    /// Returns the newest one that was selected by the same values of its fields. `now_us` is of
    /// the monotonic clock.
    pub fn find(&self, request: Request<'_>, now_us: u64) -> Option<&T> {
        let found = self.variants().iter().find(|variant| variant.selector.matches(request))?;
        // It only decides which one to drop first: a lost update does no harm. Others read the same
        // memory, so it is written once a turn.
        if found.used_us.load(Ordering::Relaxed) != now_us {
            found.used_us.store(now_us, Ordering::Relaxed);
        }
        Some(&found.value)
    }

    /// Adds the newest one, and returns those that it replaces: those of the same selector, and
    /// while there are more than `max` the least recently used one. `max` is at least 1.
    pub fn insert(&mut self, selector: Selector, value: T, max: usize, now_us: u64) -> Vec<T> {
        self.change(|list| {
            let mut gone: Vec<T> = list
                .extract_if(.., |other| other.selector == selector)
                .map(|variant| variant.value)
                .collect();
            while list.len() >= max.max(1) {
                let used_us = |at: &usize| list[*at].used_us.load(Ordering::Relaxed);
                let oldest = (0..list.len()).rev().min_by_key(used_us).unwrap_or(0);
                gone.push(list.remove(oldest).value);
            }
            list.insert(0, Variant { selector, used_us: AtomicU64::new(now_us), value });
            gone
        })
    }

    /// Adds one behind all others, if none has the same selector and there are fewer than `max`;
    /// returns whether it was added.
    pub fn insert_last(&mut self, selector: Selector, value: T, max: usize, now_us: u64) -> bool {
        self.change(|list| {
            let has_place = list.len() < max && list.iter().all(|other| other.selector != selector);
            if has_place {
                list.push(Variant { selector, used_us: AtomicU64::new(now_us), value });
            }
            has_place
        })
    }

    /// Removes and returns all for which `is_gone` is true.
    pub fn remove_if(&mut self, is_gone: impl Fn(&Selector, &T) -> bool) -> Vec<T> {
        self.change(|list| {
            let gone = list.extract_if(.., |variant| is_gone(&variant.selector, &variant.value));
            gone.map(|variant| variant.value).collect()
        })
    }

    /// Changes them as a list; a single one is stored without a list again.
    fn change<R>(&mut self, change: impl FnOnce(&mut Vec<Variant<T>>) -> R) -> R {
        let mut list = match std::mem::replace(&mut self.list, List::Several(Vec::new())) {
            List::One(variant) => vec![variant],
            List::Several(list) => list,
        };
        let result = change(&mut list);
        self.list = match (list.len(), list.pop()) {
            (1, Some(variant)) => List::One(variant),
            (_, last) => {
                list.extend(last);
                List::Several(list)
            }
        };
        result
    }

    fn variants(&self) -> &[Variant<T>] {
        match &self.list {
            List::One(variant) => std::slice::from_ref(variant),
            List::Several(list) => list,
        }
    }

    /// Returns all of them, newest first.
    pub fn iter(&self) -> impl Iterator<Item = (&Selector, &T)> + Clone {
        self.variants().iter().map(|variant| (&variant.selector, &variant.value))
    }

    /// Returns the number of responses.
    pub fn len(&self) -> usize {
        self.variants().len()
    }

    /// Whether it is empty: the key can be removed.
    pub fn is_empty(&self) -> bool {
        self.variants().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::with_get;
    use crate::vary::Vary;
    use proptest::prelude::*;

    fn selector(vary: &str, request: Request<'_>) -> Selector {
        let mut parsed = Vary::default();
        parsed.add_line(vary.as_bytes());
        match parsed {
            Vary::Names(names) => Selector::of(&names, request),
            Vary::Anything => panic!("{vary}"),
        }
    }

    #[test]
    fn the_newest_that_fits() {
        let mut all = Variants::default();
        with_get("Foo: 1\r\n", |one| {
            assert!(all.insert(selector("", one), 10, 4, 1).is_empty());
            assert!(all.insert(selector("Foo", one), 11, 4, 1).is_empty());
            assert_eq!(all.find(one, 2), Some(&11));
            assert_eq!(all.insert(selector("Foo", one), 12, 4, 3), [11]);
            assert_eq!(all.find(one, 4), Some(&12));
        });
        with_get("Foo: 2\r\n", |two| assert_eq!(all.find(two, 5), Some(&10)));
        assert_eq!(all.remove_if(|_, value| *value == 12), [12]);
        assert_eq!((all.len(), all.is_empty()), (1, false));
    }

    /// Of two that were used at the same time the older one is dropped.
    #[test]
    fn who_goes_first() {
        let mut all = Variants::default();
        for (number, lines) in ["A: 1\r\n", "A: 2\r\n", "A: 3\r\n"].iter().enumerate() {
            let gone = with_get(lines, |request| all.insert(selector("A", request), number, 2, 7));
            assert_eq!(gone, if number == 2 { vec![0] } else { vec![] });
        }
        with_get("A: 2\r\n", |request| assert_eq!(all.find(request, 8), Some(&1)));
        let gone = with_get("A: 4\r\n", |request| all.insert(selector("A", request), 3, 2, 8));
        assert_eq!(gone, [2]);
    }

    /// Fields by number and value.
    type Fields = Vec<(usize, u8)>;

    /// The last requests, in the plainest form.
    #[derive(Default)]
    struct Model {
        /// Newest first: the selector, the stored value, when it was used.
        list: Vec<(Fields, u32, usize)>,
        now: usize,
    }

    impl Model {
        fn find(&mut self, values: &[u8; 3]) -> Option<u32> {
            self.now += 1;
            let found = self
                .list
                .iter_mut()
                .find(|(by, ..)| by.iter().all(|(at, value)| values[*at] == *value))?;
            found.2 = self.now;
            Some(found.1)
        }

        fn insert(&mut self, by: Fields, value: u32, max: usize) {
            self.now += 1;
            self.list.retain(|(other, ..)| *other != by);
            while self.list.len() >= max {
                let oldest = self.list.iter().map(|(.., used)| *used).min();
                self.list.retain(|(.., used)| Some(*used) != oldest);
            }
            self.list.insert(0, (by, value, self.now));
        }
    }

    proptest! {
        /// Never a response that was selected by other values, and the same ones as the model.
        #[test]
        fn like_the_model(
            steps in prop::collection::vec(
                (any::<bool>(), [0u8..3, 0u8..3, 0u8..2], 0usize..8),
                0..40
            ),
            max in 1usize..5,
        ) {
            let (mut all, mut model) = (Variants::default(), Model::default());
            for (number, (inserts, values, mask)) in (0u32..).zip(steps) {
                let lines: String = values
                    .iter()
                    .enumerate()
                    .map(|(at, value)| format!("F{at}: {value}\r\n"))
                    .collect();
                let by: Vec<usize> = (0..3).filter(|at| mask & 1 << at != 0).collect();
                let vary = by.iter().map(|at| format!("F{at}")).collect::<Vec<_>>().join(",");
                with_get(&lines, |request| {
                    if inserts {
                        all.insert(selector(&vary, request), number, max, u64::from(number));
                        model.insert(by.iter().map(|at| (*at, values[*at])).collect(), number, max);
                    } else {
                        assert_eq!(
                            all.find(request, u64::from(number)).copied(),
                            model.find(&values)
                        );
                    }
                });
                let left: Vec<u32> = all.iter().map(|(_, value)| *value).collect();
                prop_assert_eq!(
                    left,
                    model.list.iter().map(|(_, value, _)| *value).collect::<Vec<_>>()
                );
                prop_assert!(all.len() <= max);
            }
        }
    }
}
