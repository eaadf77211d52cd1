//! What makes stored answers invalid: bans by what they have in common, and invalidations of single URLs.
//!
//! Bans ([`Bans`]) are few and by the operator, or for a connection that is doubted. They end when all that is older was looked at: each answer
//! that is stored has some others looked at, and who adds a ban to many has all. Invalidations come with every
//! request that changes something, thousands a second: they are numbered, and a table has the number of the last one for each place, which
//! a hash of the URL chooses. Of two URLs that share a place one may be fetched again for the other's sake; there are as many places as
//! answers of 4 KiB fit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::Store;
use super::index::{Bucket, Index, QuickIndex};
use super::memory::Account;
use super::object::Object;
use crate::bans::{BANS_MAX, Bans, Serial, SourceMark, Target, TooManyBans, Verdict};

/// A place of the table stands for so many bytes of the store.
const PLACE_BYTES: u64 = 4096;
/// Most places: 8 MiB of numbers.
const PLACES_MAX: u64 = 1 << 20;

/// Keys that are looked at when an answer is stored, while there are bans.
pub(super) const SWEPT_BY_INSERT: usize = 32;
/// With so many bans the next one has all that is stored looked at first.
const BANS_MANY: usize = BANS_MAX / 2;

/// Where a sweep is.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    shard: usize,
    /// Keys of the shard that it has been at.
    keys: usize,
}

/// Bans and invalidations.
#[derive(Debug)]
pub(super) struct Purges {
    bans: RwLock<Bans>,
    /// [`Bans::now`], so that a lookup needs no lock when there is nothing new.
    now: AtomicU64,
    /// [`Bans::len`], for the same reason.
    count: AtomicUsize,
    /// The number of the last invalidation.
    last: AtomicU64,
    /// For each place the number of its last invalidation.
    places: Box<[AtomicU64]>,
}

impl Purges {
    pub(super) fn new(bytes: u64) -> Self {
        let places = (bytes / PLACE_BYTES).clamp(1024, PLACES_MAX).next_power_of_two();
        Self {
            bans: RwLock::default(),
            now: AtomicU64::new(0),
            count: AtomicUsize::new(0),
            last: AtomicU64::new(0),
            places: (0..places).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// What a fetch that begins now is older than: bans, which are held for it, and invalidations.
    pub(super) fn begin(&self, account: &Account) -> (Serial, u64) {
        let bans = self.read();
        account.hold(bans.now());
        (bans.now(), self.last.load(Ordering::Acquire))
    }

    /// There was no ban since this.
    pub(super) fn is_latest(&self, seen: Serial) -> bool {
        seen.0 == self.now.load(Ordering::Acquire)
    }

    /// Its URL became invalid since its fetch began.
    pub(super) fn is_invalid(&self, url_hash: u64, began: u64) -> bool {
        self.place(url_hash).load(Ordering::Acquire) > began
    }

    fn invalidate(&self, url_hash: u64) {
        let number = self.last.fetch_add(1, Ordering::AcqRel) + 1;
        self.place(url_hash).fetch_max(number, Ordering::AcqRel);
    }

    fn place(&self, url_hash: u64) -> &AtomicU64 {
        &self.places[url_hash as usize & (self.places.len() - 1)]
    }

    /// What bans since it was looked at last make of an answer.
    pub(super) fn judge(&self, key: &[u8], object: &Object) -> Verdict {
        let seen = object.seen();
        if object.has_left() {
            // Whoever took it out has judged it, or had no room: it is not known which.
            return Verdict::Gone;
        }
        if seen.0 == self.now.load(Ordering::Acquire) && !self.bans.is_poisoned() {
            return Verdict::Stays;
        }
        let bans = self.read();
        let verdict = bans.judge(seen, key, object.tags(), object.source());
        if verdict <= Verdict::Stale {
            object.see(seen, bans.now());
        }
        verdict
    }

    fn add(&self, target: Target, is_soft: bool) -> Result<(), TooManyBans> {
        let mut bans = self.write();
        let result = bans.add(target, is_soft);
        self.publish(&bans);
        result
    }

    /// Lets go of the bans that nobody is older than.
    fn retire(&self, account: &Account) {
        let mut bans = self.write();
        let now = bans.now();
        bans.retire(account.oldest().unwrap_or(now));
        self.publish(&bans);
    }

    fn publish(&self, bans: &Bans) {
        self.count.store(bans.len(), Ordering::Release);
        self.now.store(bans.now().0, Ordering::Release);
    }

    #[cfg(test)]
    pub(super) fn panic_while_locked(&self) {
        let _guard = self.write();
        std::panic::resume_unwind(Box::new("as a bug would"));
    }

    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    fn read(&self) -> RwLockReadGuard<'_, Bans> {
        if self.bans.is_poisoned() {
            drop(self.write());
        }
        self.bans.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Bans> {
        self.bans.write().unwrap_or_else(|poisoned| {
            let mut bans = poisoned.into_inner();
            // Nothing is known to be allowed then.
            bans.forget_all();
            self.bans.clear_poison();
            self.publish(&bans);
            bans
        })
    }
}

impl Store {
    /// Purges what is stored and what is being fetched. When this returns none of it is found any more, or with `is_soft` only stale.
    ///
    /// # Errors
    /// There are [`BANS_MAX`], and what is being fetched since before them keeps them; to purge all that is not soft always works.
    pub fn ban(&self, target: Target, is_soft: bool) -> Result<(), TooManyBans> {
        if self.purges.len() >= BANS_MANY {
            let now_us = self.latest_us.load(Ordering::Relaxed);
            for shard in &self.shards {
                self.look_at(shard, (0, usize::MAX), now_us);
            }
            self.purges.retire(&self.account);
        }
        let added = self.purges.add(target.clone(), is_soft);
        if added.is_ok() {
            self.changes.note(|| target, is_soft);
        }
        added
    }

    /// Drops what came over a connection from this answer on, for it was out of step with its requests. Also what waits to be stored. If
    /// there is no room for another ban all that is stored goes.
    pub fn withdraw(&self, from: SourceMark) {
        self.counters.withdrawals.fetch_add(1, Ordering::Relaxed);
        if self.purges.add(Target::Source(from), false).is_err() {
            // Always works.
            let _ = self.purges.add(Target::All, false);
        }
        self.changes.note(|| Target::Source(from), false);
    }

    /// What is stored for a URL, as keys have it, and what is being fetched for it, is not used any more: by a request that changed it
    /// (RFC 9111 §4.4).
    pub fn invalidate(&self, url: &[u8]) {
        self.counters.invalidations.fetch_add(1, Ordering::Relaxed);
        self.purges.invalidate(self.hashes(url).url);
        self.changes.note(|| Target::Url(url.to_vec()), false);
    }

    /// Looks at the next `keys` keys, so that bans end. Nothing to do while there are none.
    pub fn sweep(&self, keys: usize, now_us: u64) {
        self.latest_us.fetch_max(now_us, Ordering::Relaxed);
        if self.purges.len() == 0 {
            return;
        }
        // Another worker is at it.
        let Ok(mut cursor) = self.swept.try_lock() else {
            self.swept.clear_poison();
            return;
        };
        let shard = cursor.shard % self.shards.len();
        let has_more = self.look_at(&self.shards[shard], (cursor.keys, keys), now_us);
        *cursor = match has_more {
            true => Cursor { shard, keys: cursor.keys.saturating_add(keys) },
            false => Cursor { shard: shard + 1, keys: 0 },
        };
        // Whether all was looked at is not for the cursor to say: who was not keeps its bans.
        self.purges.retire(&self.account);
    }

    /// Looks at so many keys of a shard behind the first so many; whether there are more.
    fn look_at(&self, shard: &RwLock<QuickIndex>, (skipped, keys): (usize, usize), now_us: u64) -> bool {
        let now = Serial(self.purges.now.load(Ordering::Acquire));
        let (old, has_more) = {
            let index = self.read(shard);
            let of_key = |(key, bucket): (&[u8], &Bucket)| {
                let old = bucket.iter().filter(|(_, object)| object.seen() != now);
                old.map(|(_, object)| (Box::from(key), Arc::clone(object))).collect::<Vec<(Box<[u8]>, _)>>()
            };
            let old: Vec<_> = index.iter().skip(skipped).take(keys).flat_map(of_key).collect();
            (old, skipped.saturating_add(keys) < index.keys())
        };
        for (key, object) in old {
            self.stays(&key, self.hashes(&key), &object, now_us);
        }
        has_more
    }
}
