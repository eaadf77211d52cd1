//! A response that is stored, or is about to be: immutable except for what lookups note on it.
//!
//! One allocation has its field lines and, up to [`INLINE_MAX`], its body; a larger body is in
//! pieces that outputs can refer to. A 304 makes a new one that shares the pieces.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;

use super::memory::{Account, Charge};
use crate::bans::{Serial, SourceMark};
use crate::freshness::SECOND_US;
use crate::lines::stored_fields;
use crate::storable::Terms;
use crate::validators::Validators;

/// Most bytes of a body that is stored behind the field lines, where copying is cheaper than
/// referring.
pub const INLINE_MAX: usize = 4096;

/// The serial of a response that is no longer in the store.
const LEFT: u64 = u64::MAX;

/// A body in pieces, and their total length.
#[derive(Debug)]
pub(crate) struct Pieces {
    pub(crate) bytes: u64,
    pub(crate) list: Box<[Bytes]>,
}

/// Tags of a response, sorted, none twice.
#[derive(Debug)]
pub(crate) struct Tags(pub(crate) Box<[Vec<u8>]>);

/// The parts of a response without its body.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) terms: Terms,
    pub(crate) tags: Vec<Vec<u8>>,
    pub(crate) source: SourceMark,
    /// The bans that it is older than.
    pub(crate) seen: Serial,
    /// The invalidations that it is older than.
    pub(crate) began: u64,
}

/// A response. Owned by the store and by everything that sends it; its memory counts until the last
/// of them drops it.
#[derive(Debug)]
pub struct Object {
    /// Field lines, then the body if it is not in pieces.
    text: Box<[u8]>,
    lines_bytes: u32,
    hits: AtomicU32,
    pieces: Option<Arc<Pieces>>,
    tags: Option<Box<Tags>>,
    terms: Terms,
    source: SourceMark,
    began: u64,
    /// The [`Serial`] of its last check, or [`LEFT`].
    seen: AtomicU64,
    /// When a server last confirmed it, or was asked to; microseconds of the monotonic clock.
    checked_us: AtomicU64,
    /// When its soft purge was noticed; 0: not purged.
    stale_us: AtomicU64,
    charge: Charge,
}

impl Object {
    /// `text` are lines of `lines_bytes` bytes, and behind them the body if it has no pieces.
    pub(crate) fn new(
        parts: Parts,
        text: Box<[u8]>,
        lines_bytes: usize,
        pieces: Option<Arc<Pieces>>,
        charge: Charge,
    ) -> Self {
        charge.account().hold(parts.seen);
        Self {
            text,
            // Lines are 64 KiB at most (`FIELD_BYTES_MAX`).
            lines_bytes: lines_bytes as u32,
            hits: AtomicU32::new(0),
            pieces,
            tags: (!parts.tags.is_empty()).then(|| Box::new(Tags(parts.tags.into()))),
            terms: parts.terms,
            source: parts.source,
            began: parts.began,
            seen: AtomicU64::new(parts.seen.0),
            checked_us: AtomicU64::new(parts.terms.received_us),
            stale_us: AtomicU64::new(0),
            charge,
        }
    }

    /// Returns its field lines, each with its line end; without the status line and the empty line.
    pub fn lines(&self) -> &[u8] {
        &self.text[..self.lines_bytes as usize]
    }

    /// Returns its validators. `now_s` is Unix time in seconds.
    pub fn validators(&self, now_s: u64) -> Validators<'_> {
        Validators::of(stored_fields(self.lines()), now_s)
    }

    /// Returns the terms on which it is used: those that it was stored with, except that a softly
    /// purged one is past its lifetime since that was noticed.
    pub fn terms(&self) -> Terms {
        let stale_us = self.stale_us.load(Ordering::Relaxed);
        let mut terms = self.terms;
        if stale_us > 0 {
            terms.lifetime_s = terms.lifetime_s.min((terms.age_us(stale_us) / SECOND_US) as u32);
        }
        terms
    }

    /// Returns the terms that it was stored with.
    pub fn stored_terms(&self) -> &Terms {
        &self.terms
    }

    /// Returns the bytes of its body.
    pub fn body_bytes(&self) -> u64 {
        match &self.pieces {
            Some(pieces) => pieces.bytes,
            None => (self.text.len() - self.lines_bytes as usize) as u64,
        }
    }

    /// Returns the body as one slice, if it is small: up to [`INLINE_MAX`] bytes.
    pub fn small_body(&self) -> Option<&[u8]> {
        self.pieces.is_none().then(|| &self.text[self.lines_bytes as usize..])
    }

    /// Returns the pieces of a body that is not small; none of a small one. Each may be kept and
    /// sent after this is dropped.
    pub fn pieces(&self) -> &[Bytes] {
        self.pieces.as_ref().map_or(&[], |pieces| &pieces.list)
    }

    /// Returns the tags, sorted.
    pub fn tags(&self) -> &[Vec<u8>] {
        self.tags.as_ref().map_or(&[], |tags| &tags.0)
    }

    /// Returns its origin.
    pub fn source(&self) -> SourceMark {
        self.source
    }

    /// Returns how often it was found.
    pub fn hits(&self) -> u32 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Returns when a server last confirmed it or was asked to, microseconds of the monotonic
    /// clock.
    pub fn checked_us(&self) -> u64 {
        self.checked_us.load(Ordering::Relaxed)
    }

    /// Notes a validation request. True for the first one within `again_us`, which is worth
    /// sending; the others use the stored response.
    pub fn check(&self, now_us: u64, again_us: u64) -> bool {
        let before = self.checked_us.load(Ordering::Relaxed);
        let is_due = now_us.saturating_sub(before) >= again_us;
        let swapped = || {
            self.checked_us.compare_exchange(before, now_us, Ordering::Relaxed, Ordering::Relaxed)
        };
        is_due && swapped().is_ok()
    }

    /// Whether it was purged softly, and is stale since.
    pub fn is_purged_softly(&self) -> bool {
        self.stale_us.load(Ordering::Relaxed) > 0
    }

    /// Ends its lifetime now, microseconds of the monotonic clock: a soft purge, or the consequence
    /// of a response to HEAD (RFC 9111 §4.3.5).
    pub fn expire(&self, now_us: u64) {
        let _ =
            self.stale_us.compare_exchange(0, now_us.max(1), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns all bytes that it takes, with its part of the index.
    pub fn weight(&self) -> u64 {
        self.charge.bytes() + self.pieces.as_ref().map_or(0, |pieces| pieces_weight(&pieces.list))
    }

    pub(crate) fn note_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_hits(&self, hits: u32) {
        self.hits.store(hits, Ordering::Relaxed);
    }

    /// Whether its bytes are of this account.
    pub(crate) fn is_of(&self, account: &Arc<Account>) -> bool {
        Arc::ptr_eq(self.charge.account(), account)
    }

    /// Whether it was taken out of the store.
    pub(crate) fn has_left(&self) -> bool {
        self.seen().0 == LEFT
    }

    pub(crate) fn seen(&self) -> Serial {
        Serial(self.seen.load(Ordering::Acquire))
    }

    pub(crate) fn began(&self) -> u64 {
        self.began
    }

    pub(crate) fn shared_pieces(&self) -> Option<Arc<Pieces>> {
        self.pieces.clone()
    }

    /// Marks it as no longer in the store: no ban waits for it, however long it is still being
    /// sent.
    pub(crate) fn leave(&self) {
        let seen = self.seen.swap(LEFT, Ordering::AcqRel);
        if seen != LEFT {
            self.charge.account().release(Serial(seen));
        }
    }

    /// Notes that it was checked against all bans before `now`. The caller keeps bans from ending
    /// meanwhile.
    pub(crate) fn see(&self, before: Serial, now: Serial) {
        let account: &Account = self.charge.account();
        account.hold(now);
        let moved =
            self.seen.compare_exchange(before.0, now.0, Ordering::AcqRel, Ordering::Acquire);
        account.release(if moved.is_ok() { before } else { now });
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Returns the bytes of the pieces of a body, including the references to them.
pub(crate) fn pieces_weight(list: &[Bytes]) -> u64 {
    list.iter().map(|piece| super::collector::piece_weight(piece.len())).sum()
}
