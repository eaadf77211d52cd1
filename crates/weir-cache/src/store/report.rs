//! What the store tells operators: counts, sizes, and which answers are asked for most.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::Store;
use super::collector::NotKept;
use super::index::{Bucket, Index};
use crate::storable::NotStored;

/// What a request got.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Served {
    /// A stored answer that was fresh.
    Hit,
    /// A stored answer that was stale.
    Stale,
    /// A stored answer, after a server confirmed it.
    Revalidated,
    /// What a server answered.
    Miss,
    /// What a server answered to another one.
    Collapsed,
    /// What a server answered, for the cache had nothing to do with it.
    Bypass,
    /// What a server answered, because answers of its key are for one each.
    HitForMiss,
}

impl Served {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Hit, Self::Stale, Self::Revalidated, Self::Miss, Self::Collapsed, Self::Bypass, Self::HitForMiss];

    /// A word for logs and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Stale => "stale",
            Self::Revalidated => "revalidated",
            Self::Miss => "miss",
            Self::Collapsed => "collapsed",
            Self::Bypass => "bypass",
            Self::HitForMiss => "hit-for-miss",
        }
    }
}

/// Counts by worker, as every request counts and workers should not wait for each other's memory.
const CELLS: usize = 32;

#[derive(Debug, Default)]
#[repr(align(128))]
struct Cell {
    served: [AtomicU64; Served::ALL.len()],
    served_bytes: AtomicU64,
}

/// Counts of what happened since the start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    cells: [Cell; CELLS],
    pub(super) stored: AtomicU64,
    not_stored: [AtomicU64; NotStored::ALL.len()],
    not_kept: [AtomicU64; NotKept::ALL.len()],
    pub(super) purged: AtomicU64,
    pub(super) withdrawn: AtomicU64,
    pub(super) withdrawals: AtomicU64,
    pub(super) invalidations: AtomicU64,
    pub(super) poisoned: AtomicU64,
    /// None: nobody keeps one.
    snapshot: Mutex<Option<SnapshotFigures>>,
}

impl Counters {
    pub(super) fn not_kept(&self, why: NotKept) -> u64 {
        self.not_kept[why as usize].fetch_add(1, Ordering::Relaxed)
    }
}

/// What of the store outlives the process: by whoever writes and reads it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SnapshotFigures {
    /// When the last one was written, Unix time in seconds; 0: none was yet.
    pub written_s: u64,
    /// Answers in it.
    pub answers: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Answers that were stored again at the start.
    pub restored: u64,
    /// Answers that were not: stale, purged, without room, damaged.
    pub left_out: u64,
    /// Why there is none, or not all of it was used; empty: it is as it should be.
    pub problem: String,
}

/// What is and what was. Bytes are those of memory, but for `served_bytes`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Bytes that everything may have.
    pub limit_bytes: u64,
    /// Bytes of all that lives: stored, evicted and still being sent, being fetched.
    pub live_bytes: u64,
    /// Bytes of what is stored.
    pub stored_bytes: u64,
    /// Bytes of what is not stored any more, or not yet, and still being sent.
    pub zombie_bytes: u64,
    /// Bytes of what is being fetched.
    pub fill_bytes: u64,
    /// Keys that have answers.
    pub keys: u64,
    /// Answers, of all keys.
    pub objects: u64,
    /// Fetches under way that others may wait for.
    pub fills: u64,
    /// Purges that some stored answer has not been looked at for.
    pub bans: u64,
    /// Requests by what they got, in the order of [`Served::ALL`].
    pub served: [u64; Served::ALL.len()],
    /// Bytes of bodies that came from the store.
    pub served_bytes: u64,
    /// Answers that were stored.
    pub stored: u64,
    /// Answers that may not be stored, by why, in the order of [`NotStored::ALL`].
    pub not_stored: [u64; NotStored::ALL.len()],
    /// Answers that might have been stored, by why they were not, in the order of [`NotKept::ALL`].
    pub not_kept: [u64; NotKept::ALL.len()],
    /// Keys that went for want of room.
    pub evicted: u64,
    /// Answers that were found purged or invalid.
    pub purged: u64,
    /// Answers that were found to come from a connection that was out of step.
    pub withdrawn: u64,
    /// How often a connection was found to be out of step.
    pub withdrawals: u64,
    /// URLs that became invalid by requests that changed them.
    pub invalidations: u64,
    /// How often a panic cost the answers of a shard.
    pub poisoned: u64,
    /// What outlives the process; None: nothing.
    pub snapshot: Option<SnapshotFigures>,
}

/// By what [`Store::top`] sorts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// How often they were found.
    Hits,
    /// Bytes of memory.
    Bytes,
    /// Answers of the key.
    Variants,
}

/// One of the keys that have most.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Top {
    /// The key; its first line is the URL.
    pub key: Vec<u8>,
    /// Answers of it.
    pub variants: usize,
    /// How often they were found.
    pub hits: u64,
    /// Bytes of memory.
    pub bytes: u64,
    /// Status of the newest one.
    pub status: u16,
}

impl Store {
    /// A request of this worker got something; `body_bytes` came from the store.
    pub fn count_served(&self, served: Served, body_bytes: u64, worker: usize) {
        let cell = &self.counters.cells[worker % CELLS];
        cell.served[served as usize].fetch_add(1, Ordering::Relaxed);
        if body_bytes > 0 {
            cell.served_bytes.fetch_add(body_bytes, Ordering::Relaxed);
        }
    }

    /// An answer may not be stored.
    pub fn count_not_stored(&self, why: NotStored) {
        self.counters.not_stored[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// An answer was given up before [`Store::insert`], which counts itself.
    pub fn count_not_kept(&self, why: NotKept) {
        self.counters.not_kept(why);
    }

    /// Says what became of the snapshot; None: there is to be none.
    pub fn tell_snapshot(&self, figures: Option<SnapshotFigures>) {
        *self.counters.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = figures;
    }

    /// What is and what was. Looks at each shard, however much is in it.
    pub fn report(&self) -> Report {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counters = &self.counters;
        let mut report = Report {
            limit_bytes: self.account.limit(),
            live_bytes: self.account.live(),
            fill_bytes: self.account.fills(),
            fills: self.fills.count() as u64,
            bans: self.purges.len() as u64,
            stored: load(&counters.stored),
            not_stored: counters.not_stored.each_ref().map(load),
            not_kept: counters.not_kept.each_ref().map(load),
            purged: load(&counters.purged),
            withdrawn: load(&counters.withdrawn),
            withdrawals: load(&counters.withdrawals),
            invalidations: load(&counters.invalidations),
            poisoned: load(&counters.poisoned),
            snapshot: counters.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            ..Report::default()
        };
        for cell in &counters.cells {
            report.served.iter_mut().zip(&cell.served).for_each(|(sum, count)| *sum += load(count));
            report.served_bytes += load(&cell.served_bytes);
        }
        for shard in &self.shards {
            let shard = self.read(shard);
            report.stored_bytes += shard.weight();
            report.keys += shard.keys() as u64;
            report.evicted += shard.evicted();
            report.objects += shard.objects();
        }
        let known = report.stored_bytes + report.fill_bytes;
        report.zombie_bytes = report.live_bytes.saturating_sub(known);
        report
    }

    /// The `count` keys that have most, first the most. Looks at all that is stored.
    pub fn top(&self, by: By, count: usize) -> Vec<Top> {
        let rank = |top: &Top| match by {
            By::Hits => top.hits,
            By::Bytes => top.bytes,
            By::Variants => top.variants as u64,
        };
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = self.read(shard);
            all.extend(shard.iter().map(|(key, bucket)| top_of(key, bucket)));
            drop(shard);
            all.sort_by_key(|top| (Reverse(rank(top)), top.key.clone()));
            all.truncate(count);
        }
        all
    }
}

fn top_of(key: &[u8], bucket: &Bucket) -> Top {
    let objects = || bucket.iter().map(|(_, object)| object);
    Top {
        key: key.to_vec(),
        variants: bucket.len(),
        hits: objects().map(|object| u64::from(object.hits())).sum(),
        bytes: objects().map(|object| object.weight()).sum(),
        status: objects().next().map_or(0, |object| object.stored_terms().status),
    }
}
