//! The stored responses, for all workers: found by key and request, bounded in bytes, purged at
//! once.
//!
//! All methods take `&self`. The steps for a request: [`Store::find`]; if that finds nothing,
//! [`Store::begin_fill`] says whether it is being fetched already. The fetching worker collects the
//! body ([`Store::collect`]), makes an [`Object`] of it ([`Store::complete`]), and stores it once
//! its connection has proved itself ([`Store::insert`]). In between, any holder of the object can
//! send it.
//!
//! Purges hold from the moment in which their call returns, also for responses that are being
//! fetched. A response has the numbers of the last purge and of the last invalidation at the start
//! of its fetch, and is compared with later ones.
//!
//! Bounds: all live bytes <= `bytes` of [`Limits`], plus the lines of responses that find no room
//! and are being sent; bytes being fetched <= 5/16 of it. The index gets what is left beside two of
//! the largest objects; that reserve is at least an eighth and at most 5/16. A lock that is
//! poisoned by a panic costs the responses of its shard, never the process.

mod changes;
mod collector;
mod fills;
mod index;
mod memory;
mod missed;
mod object;
mod purge;
mod report;
pub(crate) mod snapshot;
#[cfg(test)]
mod tests;

use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub use changes::{Change, Noted};
pub use collector::{Collector, NotKept};
pub use fills::{Begun, Fill, FillName, MARKS_MAX, WORKERS_MAX, Workers};
pub use missed::Missed;
pub use object::{INLINE_MAX, Object};
pub use report::{By, Report, Served, SnapshotFigures, Top};
pub use snapshot::{
    Changed, Flaw, Moment, PREFACE_BYTES, Preface, Records, Restored, Restoring, SNAPSHOT_MAGIC,
    put_change,
};

use crate::bans::{SourceMark, Verdict};
use crate::key::url_of;
use crate::request::Request;
use crate::storable::Terms;
use crate::vary::Selector;
use changes::Changes;
use fills::Fills;
use index::{ENTRY_BYTES, Gone, Index, QuickIndex};
use memory::{Account, allocated, part_of_fills};
use missed::Misses;
use object::Parts;
use purge::Purges;
use report::Counters;

/// The smallest shard has room for this many of the largest objects: otherwise the store has fewer
/// shards.
const OBJECTS_OF_SHARD_MIN: u64 = 2;

/// Bytes that are freed at a time while a shard is locked.
const FREED_AT_ONCE: u64 = 1 << 20;

/// The limits of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// All live bytes.
    pub bytes: u64,
    /// Bytes of the largest body, at most a quarter of `bytes`.
    pub object_bytes_max: u64,
    /// Most responses of one key, at least 1.
    pub variants_max: usize,
}

impl Limits {
    /// Returns the bytes for the index: the rest is for responses that are being fetched, and for
    /// evicted ones that are still being sent.
    fn index_bytes(&self) -> u64 {
        let aside = self
            .object_bytes_max
            .saturating_mul(2)
            .clamp(self.bytes / 8, part_of_fills(self.bytes));
        self.bytes - aside
    }

    fn shards(&self, wanted: usize) -> usize {
        let fit =
            self.index_bytes() / self.object_bytes_max.saturating_mul(OBJECTS_OF_SHARD_MIN).max(1);
        let shards = (wanted as u64).min(fit).max(1);
        1 << shards.ilog2()
    }
}

/// The result of a lookup.
#[derive(Clone, Debug)]
pub struct Found {
    /// The response.
    pub object: Arc<Object>,
    /// The terms on which it may be used: [`Object::terms`].
    pub terms: Terms,
}

/// The parts of a response without its body.
#[derive(Debug)]
pub struct Draft<'a> {
    /// As [`key`](crate::key()) makes it.
    pub key: &'a [u8],
    /// The selector.
    pub selector: Selector,
    /// Its lines, as [`put_lines`](crate::put_lines) or [`update_lines`](crate::update_lines) wrote
    /// them.
    pub lines: &'a [u8],
    /// The terms on which it may be used.
    pub terms: Terms,
    /// Its tags, sorted, none twice, as [`read_tags`](crate::read_tags) gives them.
    pub tags: Vec<Vec<u8>>,
    /// Its origin.
    pub source: SourceMark,
}

/// A whole response that is not in the store yet.
#[derive(Debug)]
pub struct Pending {
    key: Box<[u8]>,
    selector: Selector,
    object: Arc<Object>,
    /// The store has room for it. Otherwise the clients that are being sent it get the rest.
    fits: bool,
}

impl Pending {
    /// Returns the response, which may be sent already.
    pub fn object(&self) -> &Arc<Object> {
        &self.object
    }

    /// Returns its selector.
    pub fn selector(&self) -> &Selector {
        &self.selector
    }

    /// Returns the key under which it will be found.
    pub fn key(&self) -> &[u8] {
        &self.key
    }
}

/// The hash of a key, and of its URL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Hashes {
    url: u64,
    key: u64,
}

/// The store. One for a process, behind an Arc.
#[derive(Debug)]
pub struct Store {
    shards: Box<[RwLock<QuickIndex>]>,
    /// The secret that hides from attackers which keys share a place.
    seed: [u64; 2],
    account: Arc<Account>,
    object_bytes_max: AtomicU64,
    variants_max: AtomicUsize,
    purges: Purges,
    fills: Fills,
    counters: Counters,
    misses: Misses,
    /// For keepers of a copy.
    changes: Changes,
    /// The latest known moment, microseconds of the monotonic clock.
    latest_us: AtomicU64,
    /// Where the next sweep continues.
    swept: Mutex<purge::Cursor>,
}

impl Store {
    /// Returns an empty store. `seed` is random; `shards` is the most locks, rounded down to a
    /// power of two, and fewer if objects are large.
    pub fn new(limits: Limits, seed: [u64; 2], shards: usize) -> Self {
        let count = limits.shards(shards);
        let capacity = limits.index_bytes() / count as u64;
        Self {
            shards: (0..count).map(|_| RwLock::new(QuickIndex::new(capacity))).collect(),
            seed,
            account: Arc::new(Account::new(limits.bytes)),
            object_bytes_max: AtomicU64::new(limits.object_bytes_max),
            variants_max: AtomicUsize::new(limits.variants_max.max(1)),
            purges: Purges::new(limits.bytes),
            fills: Fills::default(),
            counters: Counters::default(),
            misses: Misses::default(),
            changes: Changes::default(),
            latest_us: AtomicU64::new(0),
            swept: Mutex::default(),
        }
    }

    /// Changes the limits of a store in use. The excess is evicted at once. The shards, whose
    /// number does not change, also bound the largest object: one much larger than at the start
    /// finds no place.
    pub fn set_limits(&self, limits: Limits) {
        self.account.set_limit(limits.bytes);
        self.object_bytes_max.store(limits.object_bytes_max, Ordering::Relaxed);
        self.variants_max.store(limits.variants_max.max(1), Ordering::Relaxed);
        let capacity = limits.index_bytes() / self.shards.len() as u64;
        for shard in &self.shards {
            // In steps, so that no thread waits for the lock while much is freed.
            loop {
                let mut index = self.write(shard);
                let step = index.weight().saturating_sub(FREED_AT_ONCE).max(capacity);
                index.set_capacity(step);
                if step == capacity {
                    break;
                }
            }
        }
    }

    /// Returns the bytes of the largest body that is stored.
    pub fn object_bytes_max(&self) -> u64 {
        self.object_bytes_max.load(Ordering::Relaxed)
    }

    /// Returns the most responses of one key.
    fn variants_max(&self) -> usize {
        self.variants_max.load(Ordering::Relaxed)
    }

    /// Returns the newest response of a key that the request's fields select, unless it was purged.
    /// It may be stale. `now_us` is of the monotonic clock.
    pub fn find(&self, key: &[u8], request: Request<'_>, now_us: u64) -> Option<Found> {
        let hashes = self.hashes(key);
        // A purged response makes room for an older one.
        for _ in 0..=self.variants_max.load(Ordering::Relaxed) {
            let object = {
                let shard = self.read(self.shard(hashes));
                Arc::clone(shard.get(hashes.key, key)?.find(request, now_us)?)
            };
            if self.stays(key, hashes, &object, now_us) {
                object.note_hit();
                let terms = object.terms();
                return Some(Found { object, terms });
            }
        }
        None
    }

    /// Returns all responses of a key, newest first, with the selector of each. The lookup does not
    /// affect eviction, and purged responses are left out, or stale if the purge was soft. `now_us`
    /// is of the monotonic clock.
    pub fn variants(&self, key: &[u8], now_us: u64) -> Vec<(Selector, Arc<Object>)> {
        let hashes = self.hashes(key);
        let all: Vec<_> = {
            let shard = self.read(self.shard(hashes));
            let bucket = shard.peek(hashes.key, key);
            bucket
                .into_iter()
                .flat_map(|bucket| bucket.iter())
                .map(|(by, object)| (by.clone(), Arc::clone(object)))
                .collect()
        };
        let stays = |object: &Object| {
            let verdict = self.verdict(key, hashes, object);
            if verdict == Verdict::Stale {
                object.expire(now_us);
            }
            verdict <= Verdict::Stale
        };
        all.into_iter().filter(|(_, object)| stays(object)).collect()
    }

    /// Returns all keys of a URL, as in keys. Goes through the whole store: for operators.
    pub fn keys_of(&self, url: &[u8]) -> Vec<Vec<u8>> {
        let of_shard = |shard| {
            let shard = self.read(shard);
            let keys = shard.iter().map(|(key, _)| key).filter(|key| url_of(key) == url);
            keys.map(<[u8]>::to_vec).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    /// Returns memory for a body that is about to arrive. `known`: its length, if the head states
    /// it.
    ///
    /// # Errors
    /// It is larger than objects may be.
    pub fn collect(&self, known: Option<u64>) -> Result<Collector, NotKept> {
        Collector::new(Arc::clone(&self.account), self.object_bytes_max(), known)
    }

    /// Makes a response of a completed fetch. No lookup finds it yet.
    ///
    /// # Errors
    /// Its fetch began with another store. The body is returned, for the clients that are being
    /// sent it.
    pub fn complete(
        &self,
        fill: &Fill,
        draft: Draft<'_>,
        body: Collector,
    ) -> Result<Pending, (NotKept, Box<Collector>)> {
        let small_bytes = if body.is_small() { body.bytes() as usize } else { 0 };
        let own = own_weight(&draft, draft.lines.len() + small_bytes);
        let pieces_weight = if body.is_small() { 0 } else { body.pieces_weight() };
        if !fill.is_of(&self.fills) {
            return Err((NotKept::NoRoom, Box::new(body)));
        }
        let (mut charge, fits) = self.account.take_over(own + pieces_weight, body.taken());
        let mut text = Vec::with_capacity(draft.lines.len() + small_bytes);
        text.extend_from_slice(draft.lines);
        let pieces = if body.is_small() {
            body.put(&mut text);
            None
        } else {
            Some(Arc::new(body.into_pieces(&mut charge)))
        };
        let lines_bytes = draft.lines.len();
        let (key, selector, parts) = draft.split(fill);
        let object = Object::new(parts, text.into(), lines_bytes, pieces, charge);
        Ok(Pending { key, selector, object: Arc::new(object), fits })
    }

    /// Makes a response with new lines and terms and the body of a stored one that a 304 confirmed.
    ///
    /// # Errors
    /// It finds no room.
    pub fn refresh(
        &self,
        fill: &Fill,
        draft: Draft<'_>,
        stored: &Object,
    ) -> Result<Pending, NotKept> {
        let body = stored.small_body().unwrap_or_default();
        let charge = self.account.admit(own_weight(&draft, draft.lines.len() + body.len()), 0);
        let charge = charge.filter(|_| fill.is_of(&self.fills)).ok_or(NotKept::NoRoom)?;
        let text = [draft.lines, body].concat().into_boxed_slice();
        let lines_bytes = draft.lines.len();
        let (key, selector, parts) = draft.split(fill);
        let object = Object::new(parts, text, lines_bytes, stored.shared_pieces(), charge);
        Ok(Pending { key, selector, object: Arc::new(object), fits: true })
    }

    /// Stores a response: it is found from now on, and replaces those of the same selector.
    /// `now_us` is of the monotonic clock.
    ///
    /// # Errors
    /// It was purged, invalidated or withdrawn since its fetch began, or does not fit. All are
    /// counted.
    pub fn insert(&self, pending: Pending, now_us: u64) -> Result<Arc<Object>, NotKept> {
        let Pending { key, selector, object, fits } = pending;
        let result = match fits {
            true => self.put(&key, selector, &object, now_us),
            false => Err(NotKept::NoRoom),
        };
        match result {
            Ok(()) => self.counters.stored.fetch_add(1, Ordering::Relaxed),
            Err(why) => self.counters.not_kept(why),
        };
        self.sweep(purge::SWEPT_BY_INSERT, now_us);
        result.map(|()| object)
    }

    fn put(
        &self,
        key: &[u8],
        selector: Selector,
        object: &Arc<Object>,
        now_us: u64,
    ) -> Result<(), NotKept> {
        if !object.is_of(&self.account) {
            return Err(NotKept::NoRoom);
        }
        let hashes = self.hashes(key);
        match self.verdict(key, hashes, object) {
            Verdict::Stays => {}
            Verdict::Stale => object.expire(now_us),
            Verdict::Gone => return Err(NotKept::Purged),
            Verdict::Withdrawn => return Err(NotKept::Withdrawn),
        }
        let variants_max = self.variants_max.load(Ordering::Relaxed);
        let mut gone = Gone::new();
        let mut shard = self.write(self.shard(hashes));
        let replaced = shard.change(hashes.key, key, &mut gone, |bucket| {
            bucket.insert(selector, Arc::clone(object), variants_max, now_us)
        });
        let is_there =
            |bucket: &index::Bucket| bucket.iter().any(|(_, other)| Arc::ptr_eq(other, object));
        let fits = shard.peek(hashes.key, key).is_some_and(is_there);
        // Large ones are freed after the lock is released.
        drop(shard);
        let_go(gone, replaced);
        if fits { Ok(()) } else { Err(NotKept::TooLarge) }
    }

    fn remove(&self, key: &[u8], hashes: Hashes, object: &Arc<Object>) {
        let mut gone = Gone::new();
        let mut shard = self.write(self.shard(hashes));
        let removed = shard.change(hashes.key, key, &mut gone, |bucket| {
            bucket.remove_if(|_, other| Arc::ptr_eq(other, object))
        });
        drop(shard);
        let_go(gone, removed);
    }

    /// Whether a response that was found may be used; removes it if not.
    fn stays(&self, key: &[u8], hashes: Hashes, object: &Arc<Object>, now_us: u64) -> bool {
        match self.verdict(key, hashes, object) {
            Verdict::Stays => return true,
            Verdict::Stale => {
                object.expire(now_us);
                return true;
            }
            Verdict::Gone => self.counters.purged.fetch_add(1, Ordering::Relaxed),
            Verdict::Withdrawn => self.counters.withdrawn.fetch_add(1, Ordering::Relaxed),
        };
        self.remove(key, hashes, object);
        false
    }

    /// Whether a response that was found before may still be used: it was neither purged nor
    /// invalidated since, nor evicted.
    pub fn is_valid(&self, key: &[u8], object: &Object) -> bool {
        object.is_of(&self.account) && self.verdict(key, self.hashes(key), object) <= Verdict::Stale
    }

    /// Returns the effect of purges and invalidations since the last check of a response.
    fn verdict(&self, key: &[u8], hashes: Hashes, object: &Object) -> Verdict {
        if self.purges.is_invalid(hashes.url, object.began()) {
            Verdict::Gone
        } else {
            self.purges.judge(key, object)
        }
    }

    fn shard(&self, hashes: Hashes) -> &RwLock<QuickIndex> {
        // Bits that the table of a shard does not use.
        &self.shards[(hashes.key >> 40) as usize & (self.shards.len() - 1)]
    }

    /// Locks a shard for reading, after emptying it if a panic left it half changed.
    fn read<'a>(&self, shard: &'a RwLock<QuickIndex>) -> RwLockReadGuard<'a, QuickIndex> {
        if shard.is_poisoned() {
            drop(self.write(shard));
        }
        shard.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write<'a>(&self, shard: &'a RwLock<QuickIndex>) -> RwLockWriteGuard<'a, QuickIndex> {
        shard.write().unwrap_or_else(|poisoned| {
            let mut guard = poisoned.into_inner();
            guard.clear();
            shard.clear_poison();
            self.counters.poisoned.fetch_add(1, Ordering::Relaxed);
            guard
        })
    }

    /// SipHash with a secret.
    fn hashes(&self, key: &[u8]) -> Hashes {
        let url = url_of(key);
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.seed[0]);
        hasher.write_u64(self.seed[1]);
        hasher.write(url);
        let of_url = hasher.finish();
        hasher.write(&key[url.len()..]);
        Hashes { url: of_url, key: hasher.finish() }
    }
}

impl Draft<'_> {
    fn split(self, fill: &Fill) -> (Box<[u8]>, Selector, Parts) {
        let parts = Parts {
            terms: self.terms,
            tags: self.tags,
            source: self.source,
            seen: fill.seen(),
            began: fill.began(),
        };
        (self.key.into(), self.selector, parts)
    }
}

/// Drops what left the index, when no lock is held.
fn let_go(gone: Gone, removed: Vec<Arc<Object>>) {
    gone.iter().flat_map(|bucket| bucket.iter()).for_each(|(_, object)| object.leave());
    removed.iter().for_each(|object| object.leave());
    drop((gone, removed));
}

/// Returns the bytes of a response besides the pieces of its body: with its key and its part of the
/// index.
fn own_weight(draft: &Draft<'_>, text_bytes: usize) -> u64 {
    let tags: u64 =
        draft.tags.iter().map(|tag| allocated(tag.capacity()) + size_of::<Vec<u8>>() as u64).sum();
    let selector = if draft.selector.is_empty() { 0 } else { allocated(draft.selector.bytes()) };
    allocated(text_bytes) + allocated(draft.key.len()) + selector + tags + OBJECT_BYTES as u64
}

/// The memory of every response besides its key, its lines, its body and its tags: the object with
/// the counts of its Arc, and its part of the index.
pub const OBJECT_BYTES: usize = size_of::<Object>() + 16 + ENTRY_BYTES;
