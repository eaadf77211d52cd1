//! What is stored, for all workers: found by key and request, bounded in bytes, purged at once.
//!
//! All methods take `&self`. The way of a request: [`Store::find`]; if nothing is there, [`Store::begin_fill`] says whether somebody fetches
//! it already; the one who fetches collects the body ([`Store::collect`]), makes an [`Object`] of it ([`Store::complete`]), and once its
//! connection has proved itself stores it ([`Store::insert`]). Between, the object can be sent by whoever has it.
//!
//! Purges hold from the moment in which their call returns, also for what is being fetched: an answer has the number of the last purge and of
//! the last invalidation of when its fetch began, and is compared with those since.
//!
//! Bounds: all bytes that live <= `bytes` of [`Limits`], and the lines of answers that find no room and are being sent; what is being fetched <= 5/16 of it; the index <= what is left when there is
//! room for two of the largest objects, at least an eighth, at most 5/16. A lock that a panic left behind costs the answers of its
//! shard, never the process.

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
    Changed, Flaw, Moment, PREFACE_BYTES, Preface, Records, Restored, Restoring, SNAPSHOT_MAGIC, put_change,
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

/// Largest objects that the least shard has room for: otherwise there are fewer shards.
const OBJECTS_OF_SHARD_MIN: u64 = 2;

/// Bytes that are freed at a time while a shard is locked.
const FREED_AT_ONCE: u64 = 1 << 20;

/// How much is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of everything that lives.
    pub bytes: u64,
    /// Bytes of the largest body, at most a quarter of `bytes`.
    pub object_bytes_max: u64,
    /// Most answers of one key, 1 at least.
    pub variants_max: usize,
}

impl Limits {
    /// What the index may have: the rest is for what is fetched, and for what is evicted and still being sent.
    fn index_bytes(&self) -> u64 {
        let aside = self.object_bytes_max.saturating_mul(2).clamp(self.bytes / 8, part_of_fills(self.bytes));
        self.bytes - aside
    }

    fn shards(&self, wanted: usize) -> usize {
        let fit = self.index_bytes() / self.object_bytes_max.saturating_mul(OBJECTS_OF_SHARD_MIN).max(1);
        let shards = (wanted as u64).min(fit).max(1);
        1 << shards.ilog2()
    }
}

/// What a lookup found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The answer.
    pub object: Arc<Object>,
    /// On which terms it may be used: [`Object::terms`].
    pub terms: Terms,
}

/// What an answer is made of, but its body.
#[derive(Debug)]
pub struct Draft<'a> {
    /// As [`key`](crate::key()) makes it.
    pub key: &'a [u8],
    /// What selects it.
    pub selector: Selector,
    /// Its lines, as [`put_lines`](crate::put_lines) or [`update_lines`](crate::update_lines) wrote them.
    pub lines: &'a [u8],
    /// On which terms it may be used.
    pub terms: Terms,
    /// Its tags, sorted, none twice, as [`read_tags`](crate::read_tags) gives them.
    pub tags: Vec<Vec<u8>>,
    /// Where it came from.
    pub source: SourceMark,
}

/// A whole answer that is not in the store yet.
#[derive(Debug)]
pub struct Pending {
    key: Box<[u8]>,
    selector: Selector,
    object: Arc<Object>,
    /// There is room for it in the store. Else whoever is being sent it gets the rest.
    fits: bool,
}

impl Pending {
    /// The answer, which may be sent already.
    pub fn object(&self) -> &Arc<Object> {
        &self.object
    }

    /// What selects it.
    pub fn selector(&self) -> &Selector {
        &self.selector
    }

    /// The key under which it will be found.
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
    /// What strangers must not know: which keys share a place.
    seed: [u64; 2],
    account: Arc<Account>,
    object_bytes_max: AtomicU64,
    variants_max: AtomicUsize,
    purges: Purges,
    fills: Fills,
    counters: Counters,
    misses: Misses,
    /// For whoever keeps a copy.
    changes: Changes,
    /// The latest moment that it was told, microseconds of the monotonic clock.
    latest_us: AtomicU64,
    /// Where the next sweep goes on.
    swept: Mutex<purge::Cursor>,
}

impl Store {
    /// An empty one. `seed` is random; `shards` is how many locks there are at most, rounded down to a power of two, and less where objects
    /// are large.
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

    /// Changes the limits while it is used. What is too much is let go at once. The largest object is bounded by the shards, too, whose
    /// number stays: a much larger one than at the start finds no place.
    pub fn set_limits(&self, limits: Limits) {
        self.account.set_limit(limits.bytes);
        self.object_bytes_max.store(limits.object_bytes_max, Ordering::Relaxed);
        self.variants_max.store(limits.variants_max.max(1), Ordering::Relaxed);
        let capacity = limits.index_bytes() / self.shards.len() as u64;
        for shard in &self.shards {
            // In steps, so that nobody waits for the lock while much is freed.
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

    /// Bytes of the largest body that is stored.
    pub fn object_bytes_max(&self) -> u64 {
        self.object_bytes_max.load(Ordering::Relaxed)
    }

    /// Most answers of one key.
    fn variants_max(&self) -> usize {
        self.variants_max.load(Ordering::Relaxed)
    }

    /// The newest answer of a key that was selected by what the request says, unless it was purged. It may be stale. `now_us` is of the
    /// monotonic clock.
    pub fn find(&self, key: &[u8], request: Request<'_>, now_us: u64) -> Option<Found> {
        let hashes = self.hashes(key);
        // One that was purged makes room for an older one.
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

    /// All answers of a key, newest first, with what selects each. Nothing is learned of the look, and what was purged is not among them, or
    /// stale if that was soft. `now_us` is of the monotonic clock.
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

    /// All keys of a URL, as keys have it. Looks at all that is stored: for operators.
    pub fn keys_of(&self, url: &[u8]) -> Vec<Vec<u8>> {
        let of_shard = |shard| {
            let shard = self.read(shard);
            let keys = shard.iter().map(|(key, _)| key).filter(|key| url_of(key) == url);
            keys.map(<[u8]>::to_vec).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    /// Memory for a body that is about to come. `known`: its length, if the head says it.
    ///
    /// # Errors
    /// It is larger than objects may be.
    pub fn collect(&self, known: Option<u64>) -> Result<Collector, NotKept> {
        Collector::new(Arc::clone(&self.account), self.object_bytes_max(), known)
    }

    /// Makes an answer of what was fetched. Nobody finds it yet.
    ///
    /// # Errors
    /// Its fetch began with another store. The body is given back, for those who are being sent it.
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

    /// Makes an answer with new lines and terms and the body of a stored one, which a 304 confirmed.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn refresh(&self, fill: &Fill, draft: Draft<'_>, stored: &Object) -> Result<Pending, NotKept> {
        let body = stored.small_body().unwrap_or_default();
        let charge = self.account.admit(own_weight(&draft, draft.lines.len() + body.len()), 0);
        let charge = charge.filter(|_| fill.is_of(&self.fills)).ok_or(NotKept::NoRoom)?;
        let text = [draft.lines, body].concat().into_boxed_slice();
        let lines_bytes = draft.lines.len();
        let (key, selector, parts) = draft.split(fill);
        let object = Object::new(parts, text, lines_bytes, stored.shared_pieces(), charge);
        Ok(Pending { key, selector, object: Arc::new(object), fits: true })
    }

    /// Stores an answer: it is found from now on, and replaces those of the same selector. `now_us` is of the monotonic clock.
    ///
    /// # Errors
    /// It was purged, invalidated or withdrawn since its fetch began, or does not fit. All are counted.
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

    fn put(&self, key: &[u8], selector: Selector, object: &Arc<Object>, now_us: u64) -> Result<(), NotKept> {
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
        let is_there = |bucket: &index::Bucket| bucket.iter().any(|(_, other)| Arc::ptr_eq(other, object));
        let fits = shard.peek(hashes.key, key).is_some_and(is_there);
        // Large ones are freed when nobody waits for the lock.
        drop(shard);
        let_go(gone, replaced);
        if fits { Ok(()) } else { Err(NotKept::TooLarge) }
    }

    fn remove(&self, key: &[u8], hashes: Hashes, object: &Arc<Object>) {
        let mut gone = Gone::new();
        let mut shard = self.write(self.shard(hashes));
        let removed =
            shard.change(hashes.key, key, &mut gone, |bucket| bucket.remove_if(|_, other| Arc::ptr_eq(other, object)));
        drop(shard);
        let_go(gone, removed);
    }

    /// Whether an answer that was found may be used; removes it if not.
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

    /// Whether an answer that was found before may still be used: it was neither purged nor invalidated since, nor has it made room for others.
    pub fn is_valid(&self, key: &[u8], object: &Object) -> bool {
        object.is_of(&self.account) && self.verdict(key, self.hashes(key), object) <= Verdict::Stale
    }

    /// What purges and invalidations since it was looked at last make of an answer.
    fn verdict(&self, key: &[u8], hashes: Hashes, object: &Object) -> Verdict {
        if self.purges.is_invalid(hashes.url, object.began()) { Verdict::Gone } else { self.purges.judge(key, object) }
    }

    fn shard(&self, hashes: Hashes) -> &RwLock<QuickIndex> {
        // Bits that the table of a shard does not go by.
        &self.shards[(hashes.key >> 40) as usize & (self.shards.len() - 1)]
    }

    /// Reads a shard, after emptying it if a panic left it half changed.
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

    /// SipHash behind a secret.
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
        let parts =
            Parts { terms: self.terms, tags: self.tags, source: self.source, seen: fill.seen(), began: fill.began() };
        (self.key.into(), self.selector, parts)
    }
}

/// What left the index, when no lock is held.
fn let_go(gone: Gone, removed: Vec<Arc<Object>>) {
    gone.iter().flat_map(|bucket| bucket.iter()).for_each(|(_, object)| object.leave());
    removed.iter().for_each(|object| object.leave());
    drop((gone, removed));
}

/// Bytes of an answer besides the pieces of its body: with its key and its part of the index.
fn own_weight(draft: &Draft<'_>, text_bytes: usize) -> u64 {
    let tags: u64 = draft.tags.iter().map(|tag| allocated(tag.capacity()) + size_of::<Vec<u8>>() as u64).sum();
    let selector = if draft.selector.is_empty() { 0 } else { allocated(draft.selector.bytes()) };
    allocated(text_bytes) + allocated(draft.key.len()) + selector + tags + OBJECT_BYTES as u64
}

/// What every answer takes besides its key, its lines, its body and its tags: itself with the counts of its Arc, and its part of the index.
pub const OBJECT_BYTES: usize = size_of::<Object>() + 16 + ENTRY_BYTES;
