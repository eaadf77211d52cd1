//! Invalidation of stored responses: bans by common properties, and invalidations of single URLs.
//!
//! Bans ([`Bans`]) are few and come from the operator, or from a doubt about a connection. They end
//! when everything older was checked: each insertion checks some other responses, and a ban that is
//! added to many has all checked. Invalidations come with every request that changes something,
//! thousands a second. They are numbered, and a table has the number of the last one for each
//! place, which a hash of the URL chooses. If two URLs share a place, one may be refetched because
//! of the other. The table has as many places as responses of 4 KiB fit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::Store;
use super::index::{Bucket, Index, QuickIndex};
use super::memory::Account;
use super::object::Object;
use crate::bans::{BANS_MAX, Bans, Serial, SourceMark, Target, TooManyBans, Verdict};

/// Bytes of the store for each place of the table.
const PLACE_BYTES: u64 = 4096;
/// Most places: 8 MiB of numbers.
const PLACES_MAX: u64 = 1 << 20;

/// Keys that are checked when a response is stored, while bans exist.
pub(super) const SWEPT_BY_INSERT: usize = 32;
/// With this many bans, the next one has the whole store checked first.
const BANS_MANY: usize = BANS_MAX / 2;

/// The position of a sweep.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    shard: usize,
    /// Keys of the shard that it has passed.
    keys: usize,
}

/// Bans and invalidations.
#[derive(Debug)]
pub(super) struct Purges {
    bans: RwLock<Bans>,
    /// [`Bans::now`], so that a lookup needs no lock when nothing is new.
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

    /// Returns the age of a fetch that begins now: bans, which are held for it, and invalidations.
    pub(super) fn begin(&self, account: &Account) -> (Serial, u64) {
        let bans = self.read();
        account.hold(bans.now());
        (bans.now(), self.last.load(Ordering::Acquire))
    }

    /// Whether no ban was added since.
    pub(super) fn is_latest(&self, seen: Serial) -> bool {
        seen.0 == self.now.load(Ordering::Acquire)
    }

    /// Whether its URL became invalid since its fetch began.
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

    /// Returns the effect of bans since its last check on a response.
    pub(super) fn judge(&self, key: &[u8], object: &Object) -> Verdict {
        let is_new = object.seen().0 == self.now.load(Ordering::Acquire);
        if is_new && !self.bans.is_poisoned() {
            return Verdict::Stays;
        }
        let bans = self.read();
        // Read while no ban can end: before, another thread may have taken the response out because
        // of a ban, and ended that ban.
        let seen = object.seen();
        if object.has_left() {
            // The thread that took it out has judged it, or had no room: it is unknown which.
            return Verdict::Gone;
        }
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

    /// Drops the bans that all are newer than.
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
            // Then nothing is known to be allowed.
            bans.forget_all();
            self.bans.clear_poison();
            self.publish(&bans);
            bans
        })
    }
}

impl Store {
    /// Purges stored responses and those that are being fetched. When this returns none of them is
    /// found any more, or with `is_soft` only stale.
    ///
    /// # Errors
    /// [`BANS_MAX`] bans exist, and fetches that began before them keep them; purging all that is
    /// not soft never fails.
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

    /// Drops responses that arrived over a connection from this one on, because it was out of step
    /// with its requests. Also covers responses that wait to be stored. Without room for another
    /// ban, everything in the store is dropped.
    pub fn withdraw(&self, from: SourceMark) {
        self.counters.withdrawals.fetch_add(1, Ordering::Relaxed);
        if self.purges.add(Target::Source(from), false).is_err() {
            // Never fails.
            let _ = self.purges.add(Target::All, false);
        }
        self.changes.note(|| Target::Source(from), false);
    }

    /// Invalidates the stored responses of a URL, as in keys, and those being fetched for it: after
    /// a request that changed it (RFC 9111 §4.4).
    pub fn invalidate(&self, url: &[u8]) {
        self.counters.invalidations.fetch_add(1, Ordering::Relaxed);
        self.purges.invalidate(self.hashes(url).url);
        self.changes.note(|| Target::Url(url.to_vec()), false);
    }

    /// Checks the next `keys` keys, so that bans end. Does nothing without bans.
    pub fn sweep(&self, keys: usize, now_us: u64) {
        self.latest_us.fetch_max(now_us, Ordering::Relaxed);
        if self.purges.len() == 0 {
            return;
        }
        // Another worker is doing it.
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
        // The cursor does not decide whether all were checked: responses that were not keep their
        // bans.
        self.purges.retire(&self.account);
    }

    /// Checks `keys` keys of a shard behind the first `skipped`; returns whether there are more.
    fn look_at(
        &self,
        shard: &RwLock<QuickIndex>,
        (skipped, keys): (usize, usize),
        now_us: u64,
    ) -> bool {
        let now = Serial(self.purges.now.load(Ordering::Acquire));
        let (old, has_more) = {
            let index = self.read(shard);
            let of_key = |(key, bucket): (&[u8], &Bucket)| {
                let old = bucket.iter().filter(|(_, object)| object.seen() != now);
                old.map(|(_, object)| (Box::from(key), Arc::clone(object)))
                    .collect::<Vec<(Box<[u8]>, _)>>()
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
