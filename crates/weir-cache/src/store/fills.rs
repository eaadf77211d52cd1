//! The registry of fetches, so that a thousand requests for one response make one request to the
//! server, over all workers.
//!
//! The first request gets a [`Fill`], the others learn which worker has it. Waiting requests of
//! other workers are remembered by their worker, so that the owner can inform them when the fetch
//! is over; then they look again. The registry knows keys by 128 bits of a keyed hash: a request
//! that shares the response of another request's fetch compares the key. A mark says that responses
//! of a key are for one request each, so that no request waits for a response that it will not get.
//!
//! Bounds: one entry a fetch in progress; [`MARKS_MAX`] marks, then the one that ends first is
//! dropped.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Store;
use super::memory::Account;
use crate::bans::Serial;
use crate::request::Request;
use crate::vary::Selector;

/// Most workers of a process.
pub const WORKERS_MAX: usize = 1024;
/// Most marks of keys whose responses are for one request each.
pub const MARKS_MAX: usize = 64 * PLACE_MARKS_MAX;
/// Locks of the registry.
const PLACES: usize = 64;
const PLACE_MARKS_MAX: usize = 1024;

/// The name of a fetch: of its key, and of the fields that the newest stored response of it varies
/// by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FillName([u64; 2]);

/// A set of workers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Workers(Vec<u64>);

impl Workers {
    /// Adds a worker.
    fn add(&mut self, worker: usize) {
        if self.0.len() <= worker / 64 {
            self.0.resize(worker / 64 + 1, 0);
        }
        self.0[worker / 64] |= 1 << (worker % 64);
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|bits| *bits == 0)
    }

    /// Returns all workers by number.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        let of_word = |(at, bits): (usize, &u64)| {
            let bits = *bits;
            (0..64).filter(move |bit| bits & 1 << bit != 0).map(move |bit| at * 64 + bit)
        };
        self.0.iter().enumerate().flat_map(of_word)
    }
}

/// What to do about a response that is not stored.
#[derive(Debug)]
pub enum Begun {
    /// Fetch it: no other worker does.
    Owner(Fill),
    /// Wait: this worker fetches it. If it is another worker, the owner is informed of this one
    /// when it is over, by [`Fill::end`].
    Waiting {
        /// Its number.
        worker: usize,
        /// The name of the fetch.
        name: FillName,
    },
    /// Forward the request: the responses are for one request each.
    HitForMiss,
}

/// A fetch in progress. If it is dropped without [`Fill::end`], it is over as well, but waiting
/// requests on other workers are not informed.
#[derive(Debug)]
pub struct Fill {
    fills: Arc<Registry>,
    account: Arc<Account>,
    name: FillName,
    /// Distinguishes the fetches of this name.
    number: u64,
    seen: Serial,
    began: u64,
    is_registered: bool,
}

impl Fill {
    /// Returns the name under which others wait for it.
    pub fn name(&self) -> FillName {
        self.name
    }

    /// Whether requests of other workers wait for it, or did so: they are not counted out when they
    /// leave.
    pub fn is_awaited(&self) -> bool {
        let place = self.fills.place(self.name);
        let entry = place
            .fills
            .get(&self.name)
            .filter(|entry| self.is_registered && entry.number == self.number);
        entry.is_some_and(|entry| !entry.waiting.is_empty())
    }

    /// Ends the fetch and returns the other workers that have to be informed. From now on another
    /// fetch may begin, so the response has to be stored before.
    pub fn end(mut self) -> Workers {
        self.is_registered = false;
        self.fills.remove(self.name, self.number).unwrap_or_default()
    }

    /// Whether it is registered with these.
    pub(super) fn is_of(&self, fills: &Fills) -> bool {
        Arc::ptr_eq(&self.fills, &fills.0)
    }

    pub(super) fn seen(&self) -> Serial {
        self.seen
    }

    pub(super) fn began(&self) -> u64 {
        self.began
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        if self.is_registered {
            self.fills.remove(self.name, self.number);
        }
        self.account.release(self.seen);
    }
}

/// A fetch in the registry.
#[derive(Debug)]
struct Entry {
    number: u64,
    worker: usize,
    waiting: Workers,
}

/// Names are hashes already.
#[derive(Default)]
struct Named(u64);

impl Hasher for Named {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, part: u64) {
        self.0 ^= part;
    }

    fn write_usize(&mut self, _: usize) {}
}

type Map<V> = HashMap<FillName, V, BuildHasherDefault<Named>>;

#[derive(Debug, Default)]
struct Place {
    fills: Map<Entry>,
    /// When the mark of a key ends, microseconds of the monotonic clock.
    marks: Map<u64>,
}

#[derive(Debug)]
struct Registry {
    places: [Mutex<Place>; PLACES],
    numbers: AtomicU64,
}

impl Registry {
    fn place(&self, name: FillName) -> MutexGuard<'_, Place> {
        let place = &self.places[(name.0[1] >> 32) as usize % PLACES];
        // Every change is one call on a map: a panic leaves no half of it.
        place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, name: FillName, number: u64) -> Option<Workers> {
        let mut place = self.place(name);
        let is_it = place.fills.get(&name).is_some_and(|entry| entry.number == number);
        is_it.then(|| place.fills.remove(&name).map(|entry| entry.waiting)).flatten()
    }
}

/// The registry, and marks.
#[derive(Debug)]
pub(super) struct Fills(Arc<Registry>);

impl Default for Fills {
    fn default() -> Self {
        let places = std::array::from_fn(|_| Mutex::default());
        Self(Arc::new(Registry { places, numbers: AtomicU64::new(0) }))
    }
}

impl Fills {
    pub(super) fn count(&self) -> usize {
        let count =
            |place: &Mutex<Place>| place.lock().unwrap_or_else(PoisonError::into_inner).fills.len();
        self.0.places.iter().map(count).sum()
    }
}

impl Store {
    /// Returns the name of the fetch for a request: as far as known, requests of other names would
    /// not get its response.
    pub fn fill_name(&self, key: &[u8], request: Request<'_>) -> FillName {
        let hashes = self.hashes(key);
        let newest = {
            let shard = self.read(self.shard(hashes));
            let newest = super::index::Index::peek(&*shard, hashes.key, key)
                .and_then(|bucket| bucket.iter().next());
            newest.map(|(selector, _)| selector.clone())
        };
        let names: Vec<Box<[u8]>> =
            newest.iter().flat_map(|selector| selector.names()).map(Box::from).collect();
        self.name(key, &Selector::of(&names, request))
    }

    /// Returns the name for requests of one selector.
    fn name(&self, key: &[u8], selector: &Selector) -> FillName {
        let part = |first: u64, second: u64| {
            let mut hasher = DefaultHasher::new();
            hasher.write_u64(first);
            hasher.write_u64(second);
            hasher.write(key);
            hasher.write_u8(0);
            std::hash::Hash::hash(selector, &mut hasher);
            hasher.finish()
        };
        FillName([part(self.seed[0], self.seed[1]), part(self.seed[1], !self.seed[0])])
    }

    /// A request of this worker needs a response that is not stored, or has to be validated.
    /// `worker` is below [`WORKERS_MAX`]; `now_us` of the monotonic clock. Has to be called before
    /// the request is sent: a purge from now on also covers this fetch.
    pub fn begin_fill(
        &self,
        key: &[u8],
        request: Request<'_>,
        worker: usize,
        now_us: u64,
    ) -> Begun {
        let mark = self.name(key, &Selector::default());
        let is_marked = {
            let mut place = self.fills.0.place(mark);
            let until_us = place.marks.get(&mark).copied();
            if until_us.is_some_and(|until_us| until_us <= now_us) {
                place.marks.remove(&mark);
            }
            until_us.is_some_and(|until_us| until_us > now_us)
        };
        if is_marked {
            return Begun::HitForMiss;
        }
        let name = self.fill_name(key, request);
        let number = self.fills.0.numbers.fetch_add(1, Ordering::Relaxed);
        {
            let mut place = self.fills.0.place(name);
            if let Some(entry) = place.fills.get_mut(&name) {
                if entry.worker != worker {
                    entry.waiting.add(worker.min(WORKERS_MAX - 1));
                }
                return Begun::Waiting { worker: entry.worker, name };
            }
            place.fills.insert(name, Entry { number, worker, waiting: Workers::default() });
        }
        Begun::Owner(self.fill(name, number, true))
    }

    /// Returns a fetch without waiting requests that others may also make: for a response that is
    /// marked as for one request each, in case it may be stored.
    pub fn lone_fill(&self, key: &[u8]) -> Fill {
        self.fill(self.name(key, &Selector::default()), u64::MAX, false)
    }

    fn fill(&self, name: FillName, number: u64, is_registered: bool) -> Fill {
        let (seen, began) = self.purges.begin(&self.account);
        let fills = Arc::clone(&self.fills.0);
        Fill { fills, account: Arc::clone(&self.account), name, number, seen, began, is_registered }
    }

    /// Whether nothing was purged since a fetch of this key began, nor its URL invalidated: a
    /// request that begins now may get its response.
    pub fn is_current(&self, fill: &Fill, key: &[u8]) -> bool {
        !self.purges.is_invalid(self.hashes(key).url, fill.began)
            && self.purges.is_latest(fill.seen)
    }

    /// Marks responses of this key as for one request each until then, microseconds of the
    /// monotonic clock: no request waits for another one's.
    pub fn mark_hit_for_miss(&self, key: &[u8], until_us: u64) {
        let mark = self.name(key, &Selector::default());
        let mut place = self.fills.0.place(mark);
        if place.marks.len() >= PLACE_MARKS_MAX && !place.marks.contains_key(&mark) {
            let first =
                place.marks.iter().min_by_key(|(_, until_us)| **until_us).map(|(name, _)| *name);
            first.map(|first| place.marks.remove(&first));
        }
        place.marks.insert(mark, until_us);
    }

    /// Removes the mark, because a response could be stored after all.
    pub fn unmark_hit_for_miss(&self, key: &[u8]) {
        let mark = self.name(key, &Selector::default());
        self.fills.0.place(mark).marks.remove(&mark);
    }

    /// A worker was restarted: the fetches of its former life are over. Returns the other workers
    /// that wait for them.
    pub fn forget_worker(&self, worker: usize) -> Vec<(FillName, Workers)> {
        let mut over = Vec::new();
        for place in &self.fills.0.places {
            let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
            let gone = place.fills.extract_if(|_, entry| entry.worker == worker);
            over.extend(gone.map(|(name, entry)| (name, entry.waiting)));
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::with_get;
    use crate::store::Limits;

    const KEY: &[u8] = b"http://a/\napp\n";

    fn store() -> Store {
        Store::new(Limits { bytes: 1 << 20, object_bytes_max: 1 << 16, variants_max: 4 }, [1, 2], 4)
    }

    fn begin(store: &Store, key: &[u8], worker: usize, now_us: u64) -> Begun {
        with_get("", |request| store.begin_fill(key, request, worker, now_us))
    }

    fn owner(begun: Begun) -> Fill {
        match begun {
            Begun::Owner(fill) => fill,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_fetches_and_hears_who_waits() {
        let store = store();
        let fill = owner(begin(&store, KEY, 3, 0));
        let other = owner(begin(&store, b"http://b/\napp\n", 3, 0));
        for worker in [3, 70, 5, 70] {
            let begun = begin(&store, KEY, worker, 0);
            assert!(
                matches!(begun, Begun::Waiting { worker: 3, name } if name == fill.name()),
                "{begun:?}"
            );
        }
        assert_eq!(store.fills.count(), 2);
        assert!(fill.is_awaited() && !other.is_awaited() && !store.lone_fill(KEY).is_awaited());
        assert_eq!(fill.end().iter().collect::<Vec<_>>(), [5, 70]);
        let again = owner(begin(&store, KEY, 5, 0));
        assert!(other.end().is_empty());
        drop(again);
        assert_eq!(store.fills.count(), 0);
    }

    /// The end of a fetch from a worker's former life does not end the one that came after it.
    #[test]
    fn a_worker_that_is_born_again() {
        let store = store();
        let former = owner(begin(&store, KEY, 1, 0));
        let elsewhere = owner(begin(&store, b"http://b/\n\n", 2, 0));
        begin(&store, KEY, 2, 0);
        let over = store.forget_worker(1);
        assert_eq!(over.len(), 1);
        assert_eq!((over[0].0, over[0].1.iter().collect::<Vec<_>>()), (former.name(), vec![2]));
        let next = owner(begin(&store, KEY, 2, 0));
        drop(former);
        assert!(matches!(begin(&store, KEY, 1, 0), Begun::Waiting { worker: 2, .. }));
        drop((next, elsewhere));
        assert_eq!(store.fills.count(), 0);
    }

    #[test]
    fn who_asks_after_a_change() {
        let store = store();
        let current = |fill: &Fill| store.is_current(fill, KEY);
        let fill = owner(begin(&store, KEY, 0, 0));
        assert!(current(&fill));
        store.invalidate(b"http://a/");
        assert!(!current(&fill));
        let next = store.lone_fill(KEY);
        assert!(current(&next));
        store.withdraw(crate::bans::SourceMark { connection: 1, position: 0 });
        assert!(!current(&next) && current(&store.lone_fill(KEY)));
    }

    #[test]
    fn what_is_for_one_each() {
        let store = store();
        store.mark_hit_for_miss(KEY, 10);
        assert!(matches!(begin(&store, KEY, 0, 9), Begun::HitForMiss));
        drop(owner(begin(&store, KEY, 0, 10)));
        store.mark_hit_for_miss(KEY, 20);
        assert!(matches!(begin(&store, KEY, 0, 11), Begun::HitForMiss));
        store.unmark_hit_for_miss(KEY);
        drop(owner(begin(&store, KEY, 0, 11)));
    }

    #[test]
    fn marks_are_bounded() {
        let store = store();
        for number in 0..(MARKS_MAX + 5000) as u64 {
            store.mark_hit_for_miss(&number.to_be_bytes(), 1000 + number);
        }
        let marks: usize =
            store.fills.0.places.iter().map(|place| place.lock().expect("whole").marks.len()).sum();
        assert!(marks <= MARKS_MAX && marks > MARKS_MAX / 2, "{marks}");
        let last = (MARKS_MAX + 4999) as u64;
        assert!(matches!(begin(&store, &last.to_be_bytes(), 0, 0), Begun::HitForMiss));
    }
}
