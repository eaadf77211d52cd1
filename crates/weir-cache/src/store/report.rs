//! The store's report for operators: counts, sizes, and the most requested responses.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::Store;
use super::collector::NotKept;
use super::index::{Bucket, Index};
use crate::storable::NotStored;

/// The source of the response to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Served {
    /// A fresh stored response.
    Hit,
    /// A stale stored response.
    Stale,
    /// A stored response, after a server confirmed it.
    Revalidated,
    /// A server.
    Miss,
    /// A server, by the fetch of another request.
    Collapsed,
    /// A server, because the cache does not handle the request.
    Bypass,
    /// A server, because responses of its key are for one request each.
    HitForMiss,
}

impl Served {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Hit,
        Self::Stale,
        Self::Revalidated,
        Self::Miss,
        Self::Collapsed,
        Self::Bypass,
        Self::HitForMiss,
    ];

    /// Returns a word for logs and metrics.
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

/// Counts by worker: every request counts, and workers should not wait for each other's memory.
const CELLS: usize = 32;

#[derive(Debug, Default)]
#[repr(align(128))]
struct Cell {
    served: [AtomicU64; Served::ALL.len()],
    served_bytes: AtomicU64,
}

/// Counts of events since the start.
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
    /// None: no snapshot is kept.
    snapshot: Mutex<Option<SnapshotFigures>>,
}

impl Counters {
    pub(super) fn not_kept(&self, why: NotKept) -> u64 {
        self.not_kept[why as usize].fetch_add(1, Ordering::Relaxed)
    }
}

/// Figures of the snapshot, from its writer and reader.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SnapshotFigures {
    /// When the last one was written, Unix time in seconds; 0: never.
    pub written_s: u64,
    /// Responses in it.
    pub answers: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Responses that were stored again at the start.
    pub restored: u64,
    /// Responses that were not: stale, purged, without room, damaged.
    pub left_out: u64,
    /// Why none exists, or not all of it was used; empty: no problem.
    pub problem: String,
}

/// The current state and totals. Bytes are those of memory, except `served_bytes`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The limit of all bytes.
    pub limit_bytes: u64,
    /// All live bytes: stored, evicted and still being sent, being fetched.
    pub live_bytes: u64,
    /// Bytes of stored responses.
    pub stored_bytes: u64,
    /// Bytes of responses that are no longer stored, or not yet, and still being sent.
    pub zombie_bytes: u64,
    /// Bytes of responses that are being fetched.
    pub fill_bytes: u64,
    /// Keys that have responses.
    pub keys: u64,
    /// Responses, of all keys.
    pub objects: u64,
    /// Fetches in progress that others may wait for.
    pub fills: u64,
    /// Purges that some stored response has not been checked against.
    pub bans: u64,
    /// Requests by source of the response, in the order of [`Served::ALL`].
    pub served: [u64; Served::ALL.len()],
    /// Bytes of bodies from the store.
    pub served_bytes: u64,
    /// Responses that were stored.
    pub stored: u64,
    /// Responses that may not be stored, by reason, in the order of [`NotStored::ALL`].
    pub not_stored: [u64; NotStored::ALL.len()],
    /// Responses that might have been stored, by the reason why they were not, in the order of
    /// [`NotKept::ALL`].
    pub not_kept: [u64; NotKept::ALL.len()],
    /// Keys that were evicted for lack of room.
    pub evicted: u64,
    /// Responses that were found purged or invalid.
    pub purged: u64,
    /// Responses that were found to come from a connection that was out of step.
    pub withdrawn: u64,
    /// How often a connection was found to be out of step.
    pub withdrawals: u64,
    /// URLs that requests have changed and so invalidated.
    pub invalidations: u64,
    /// How often a panic cost the responses of a shard.
    pub poisoned: u64,
    /// Figures of the snapshot; None: no snapshot.
    pub snapshot: Option<SnapshotFigures>,
}

/// The order of [`Store::top`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// How often they were found.
    Hits,
    /// Bytes of memory.
    Bytes,
    /// Responses of the key.
    Variants,
}

/// One of the top keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Top {
    /// The key; its first line is the URL.
    pub key: Vec<u8>,
    /// Its responses.
    pub variants: usize,
    /// How often they were found.
    pub hits: u64,
    /// Bytes of memory.
    pub bytes: u64,
    /// Status of the newest one.
    pub status: u16,
}

impl Store {
    /// Counts the source of a response on this worker; `body_bytes` came from the store.
    pub fn count_served(&self, served: Served, body_bytes: u64, worker: usize) {
        let cell = &self.counters.cells[worker % CELLS];
        cell.served[served as usize].fetch_add(1, Ordering::Relaxed);
        if body_bytes > 0 {
            cell.served_bytes.fetch_add(body_bytes, Ordering::Relaxed);
        }
    }

    /// Counts a response that may not be stored.
    pub fn count_not_stored(&self, why: NotStored) {
        self.counters.not_stored[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a response that was abandoned before [`Store::insert`], which counts its own
    /// failures.
    pub fn count_not_kept(&self, why: NotKept) {
        self.counters.not_kept(why);
    }

    /// Sets the figures of the snapshot; None: no snapshot is configured.
    pub fn tell_snapshot(&self, figures: Option<SnapshotFigures>) {
        *self.counters.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = figures;
    }

    /// Returns the current state and totals. Visits each shard, however much it contains.
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

    /// Returns the `count` top keys, the highest first. Goes through the whole store.
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
