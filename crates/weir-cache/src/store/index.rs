//! Finds responses by key, and evicts some when there is no room: one shard of the store.
//!
//! [`Index`] is the whole interface that the store needs, so that another policy can replace
//! quick_cache's. That is of the family of S3-FIFO and CLOCK-Pro: a scan of keys that are never
//! requested again does not empty it. No lock, no clock, no randomness: two runs evict the same.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::{Equivalent, Lifecycle, OptionsBuilder, Weighter, unsync};

use super::object::Object;
use crate::variants::Variants;

/// All responses of one key.
pub(crate) type Bucket = Variants<Arc<Object>>;
/// Evicted buckets: to be dropped when no lock is held.
pub(crate) type Gone = Vec<Bucket>;

/// Bytes that the index takes for a key besides its text: the entry with the links of its queue, a
/// place in the hash table, and half as much again for doubling tables and for remembered keys.
pub(crate) const ENTRY_BYTES: usize = (size_of::<Key>() + size_of::<Bucket>() + 21) * 3 / 2;
/// The typical size of a response: decides for how many evicted keys the index remembers that they
/// were present.
const OBJECT_BYTES_USUAL: u64 = 16 << 10;

/// Finds the responses of a key, and evicts some when their bytes exceed its capacity.
pub(crate) trait Index {
    /// Returns an index for this many bytes.
    fn new(capacity: u64) -> Self;
    /// Returns the responses of a requested key.
    fn get(&self, hash: u64, key: &[u8]) -> Option<&Bucket>;
    /// Returns the responses of a key without affecting eviction.
    fn peek(&self, hash: u64, key: &[u8]) -> Option<&Bucket>;
    /// Changes the responses of a key, which start empty if it is absent; the key is removed when
    /// none are left. Everything that is evicted for it is added to `gone`.
    fn change<R>(
        &mut self,
        hash: u64,
        key: &[u8],
        gone: &mut Gone,
        change: impl FnOnce(&mut Bucket) -> R,
    ) -> R;
    /// Returns all keys and their responses, in an order that only changes with the contents.
    fn iter(&self) -> impl Iterator<Item = (&[u8], &Bucket)>;
    /// Returns the number of keys.
    fn keys(&self) -> usize;
    /// Returns the number of responses, of all keys.
    fn objects(&self) -> u64;
    /// Returns the bytes of all responses.
    fn weight(&self) -> u64;
    /// Sets the capacity and evicts the excess.
    fn set_capacity(&mut self, capacity: u64);
    /// Returns how many keys were evicted for lack of room.
    fn evicted(&self) -> u64;
    /// Removes everything.
    fn clear(&mut self);
}

/// A stored key with its hash, so that it is not hashed again when the table grows.
#[derive(PartialEq, Eq)]
pub(crate) struct Key {
    hash: u64,
    text: Box<[u8]>,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// A key that is looked up.
struct Asked<'a> {
    hash: u64,
    text: &'a [u8],
}

impl Hash for Asked<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Equivalent<Key> for Asked<'_> {
    /// The hash only finds; the bytes decide.
    fn equivalent(&self, key: &Key) -> bool {
        self.hash == key.hash && self.text == &key.text[..]
    }
}

/// Keys are hashed already.
#[derive(Clone, Default)]
pub(crate) struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

impl BuildHasher for Hashed {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

#[derive(Clone)]
pub(crate) struct Weights;

impl Weighter<Key, Bucket> for Weights {
    fn weight(&self, _: &Key, bucket: &Bucket) -> u64 {
        bucket.iter().map(|(_, object)| object.weight()).sum()
    }
}

/// Collects evicted buckets, so that they are dropped after the lock, and counts them.
#[derive(Clone, Default)]
pub(crate) struct Evictions {
    /// Keys that were evicted.
    keys: Arc<AtomicU64>,
    /// Responses that remain.
    objects: Arc<AtomicU64>,
}

impl Lifecycle<Key, Bucket> for Evictions {
    type RequestState = Gone;

    fn on_evict(&self, gone: &mut Gone, _: Key, bucket: Bucket) {
        // A changed bucket leaves an empty one in its place.
        if !bucket.is_empty() {
            self.keys.fetch_add(1, Ordering::Relaxed);
            self.objects.fetch_sub(bucket.len() as u64, Ordering::Relaxed);
            gone.push(bucket);
        }
    }
}

/// The index by quick_cache.
pub(crate) struct QuickIndex {
    cache: unsync::Cache<Key, Bucket, Weights, Hashed, Evictions>,
    capacity: u64,
    counts: Evictions,
}

impl std::fmt::Debug for QuickIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QuickIndex")
            .field("keys", &self.keys())
            .field("weight", &self.weight())
            .finish()
    }
}

fn new_cache(
    capacity: u64,
    counts: &Evictions,
) -> unsync::Cache<Key, Bucket, Weights, Hashed, Evictions> {
    let options = OptionsBuilder::new()
        .shards(1)
        .estimated_items_capacity((capacity / OBJECT_BYTES_USUAL).max(64) as usize)
        .weight_capacity(capacity)
        .build();
    let options = options.unwrap_or_else(|_| unreachable!("both capacities are given"));
    unsync::Cache::with_options(options, Weights, Hashed::default(), counts.clone())
}

impl Index for QuickIndex {
    fn new(capacity: u64) -> Self {
        let counts = Evictions::default();
        Self { cache: new_cache(capacity, &counts), capacity, counts }
    }

    fn get(&self, hash: u64, key: &[u8]) -> Option<&Bucket> {
        self.cache.get(&Asked { hash, text: key })
    }

    fn peek(&self, hash: u64, key: &[u8]) -> Option<&Bucket> {
        self.cache.peek(&Asked { hash, text: key })
    }

    fn change<R>(
        &mut self,
        hash: u64,
        key: &[u8],
        gone: &mut Gone,
        change: impl FnOnce(&mut Bucket) -> R,
    ) -> R {
        let asked = Asked { hash, text: key };
        // Taken out and put back, because only an insertion makes the queues evict the excess.
        let mut bucket = self
            .cache
            .peek_mut(&asked)
            .map(|mut found| std::mem::take(&mut *found))
            .unwrap_or_default();
        let before = bucket.len() as u64;
        let result = change(&mut bucket);
        // Before anything is evicted for it.
        self.counts.objects.fetch_add(bucket.len() as u64, Ordering::Relaxed);
        self.counts.objects.fetch_sub(before, Ordering::Relaxed);
        if bucket.is_empty() {
            self.cache.remove(&asked);
        } else {
            self.cache.insert_with_lifecycle(Key { hash, text: key.into() }, bucket, gone);
        }
        result
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], &Bucket)> {
        self.cache.iter().map(|(key, bucket)| (&key.text[..], bucket))
    }

    fn keys(&self) -> usize {
        self.cache.len()
    }

    fn objects(&self) -> u64 {
        self.counts.objects.load(Ordering::Relaxed)
    }

    fn weight(&self) -> u64 {
        self.cache.weight()
    }

    fn set_capacity(&mut self, capacity: u64) {
        if capacity != self.capacity {
            self.capacity = capacity;
            self.cache.set_capacity(capacity);
        }
    }

    fn evicted(&self) -> u64 {
        self.counts.keys.load(Ordering::Relaxed)
    }

    fn clear(&mut self) {
        // A new one: the remains of the old one after a panic are not read.
        self.cache = new_cache(self.capacity, &self.counts);
        self.counts.objects.store(0, Ordering::Relaxed);
    }
}
