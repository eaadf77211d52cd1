//! An answer that is stored, or is about to be: immutable but for what lookups note on it.
//!
//! One allocation has its field lines and, up to [`INLINE_MAX`], its body; a larger body is in pieces that outputs can refer to. A 304 makes a
//! new one that shares the pieces.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;

use super::memory::{Account, Charge};
use crate::bans::{Serial, SourceMark};
use crate::freshness::SECOND_US;
use crate::lines::stored_fields;
use crate::storable::Terms;
use crate::validators::Validators;

/// Most bytes of a body that lies behind the field lines: what is cheaper to copy than to refer to.
pub const INLINE_MAX: usize = 4096;

/// The serial of what is not in the store any more.
const LEFT: u64 = u64::MAX;

/// A body in pieces, and how long they are together.
#[derive(Debug)]
pub(crate) struct Pieces {
    pub(crate) bytes: u64,
    pub(crate) list: Box<[Bytes]>,
}

/// Tags of an answer, sorted, none twice.
#[derive(Debug)]
pub(crate) struct Tags(pub(crate) Box<[Vec<u8>]>);

/// What an answer is made of, but its body.
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

/// An answer. Owned by the store and by whoever sends it; its memory counts until the last of them lets go.
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
    /// [`Serial`] of when it was judged last, or [`LEFT`].
    seen: AtomicU64,
    /// When a server last confirmed it, or was asked to; microseconds of the monotonic clock.
    checked_us: AtomicU64,
    /// When it was noticed that it was purged softly; 0: it was not.
    stale_us: AtomicU64,
    charge: Charge,
}

impl Object {
    /// `text` are lines of so many bytes, and behind them the body if it has no pieces.
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

    /// Its field lines, each with its line end; without the status line and the empty line.
    pub fn lines(&self) -> &[u8] {
        &self.text[..self.lines_bytes as usize]
    }

    /// By what it can be recognised. `now_s` is Unix time in seconds.
    pub fn validators(&self, now_s: u64) -> Validators<'_> {
        Validators::of(stored_fields(self.lines()), now_s)
    }

    /// On which terms it is used: those that it was stored with, but for what was purged softly, whose lifetime is over since that was
    /// noticed.
    pub fn terms(&self) -> Terms {
        let stale_us = self.stale_us.load(Ordering::Relaxed);
        let mut terms = self.terms;
        if stale_us > 0 {
            terms.lifetime_s = terms.lifetime_s.min((terms.age_us(stale_us) / SECOND_US) as u32);
        }
        terms
    }

    /// The terms that it was stored with.
    pub fn stored_terms(&self) -> &Terms {
        &self.terms
    }

    /// Bytes of its body.
    pub fn body_bytes(&self) -> u64 {
        match &self.pieces {
            Some(pieces) => pieces.bytes,
            None => (self.text.len() - self.lines_bytes as usize) as u64,
        }
    }

    /// The body as one slice, if it is small: up to [`INLINE_MAX`] bytes.
    pub fn small_body(&self) -> Option<&[u8]> {
        self.pieces.is_none().then(|| &self.text[self.lines_bytes as usize..])
    }

    /// The pieces of a body that is not small; none of a small one. Each may be kept and sent after this is gone.
    pub fn pieces(&self) -> &[Bytes] {
        self.pieces.as_ref().map_or(&[], |pieces| &pieces.list)
    }

    /// The tags, sorted.
    pub fn tags(&self) -> &[Vec<u8>] {
        self.tags.as_ref().map_or(&[], |tags| &tags.0)
    }

    /// Where it came from.
    pub fn source(&self) -> SourceMark {
        self.source
    }

    /// How often it was found.
    pub fn hits(&self) -> u32 {
        self.hits.load(Ordering::Relaxed)
    }

    /// When a server last confirmed it or was asked to, microseconds of the monotonic clock.
    pub fn checked_us(&self) -> u64 {
        self.checked_us.load(Ordering::Relaxed)
    }

    /// A server is being asked whether it still holds. True for the first who says so within `again_us`, for whom a second question is worth
    /// it; the others use what there is.
    pub fn check(&self, now_us: u64, again_us: u64) -> bool {
        let before = self.checked_us.load(Ordering::Relaxed);
        let is_due = now_us.saturating_sub(before) >= again_us;
        let swapped = || self.checked_us.compare_exchange(before, now_us, Ordering::Relaxed, Ordering::Relaxed);
        is_due && swapped().is_ok()
    }

    /// It was purged softly, and is stale since.
    pub fn is_purged_softly(&self) -> bool {
        self.stale_us.load(Ordering::Relaxed) > 0
    }

    /// Its lifetime ends now, microseconds of the monotonic clock: a soft purge, or what was learned of it by an answer to HEAD
    /// (RFC 9111 §4.3.5).
    pub fn expire(&self, now_us: u64) {
        let _ = self.stale_us.compare_exchange(0, now_us.max(1), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// All bytes that it takes, with its part of the index.
    pub fn weight(&self) -> u64 {
        self.charge.bytes() + self.pieces.as_ref().map_or(0, |pieces| pieces_weight(&pieces.list))
    }

    pub(crate) fn note_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_hits(&self, hits: u32) {
        self.hits.store(hits, Ordering::Relaxed);
    }

    /// Its bytes are of this account.
    pub(crate) fn is_of(&self, account: &Arc<Account>) -> bool {
        Arc::ptr_eq(self.charge.account(), account)
    }

    /// It was taken out of the store.
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

    /// It is not in the store any more: no ban waits for it, however long it is still being sent.
    pub(crate) fn leave(&self) {
        let seen = self.seen.swap(LEFT, Ordering::AcqRel);
        if seen != LEFT {
            self.charge.account().release(Serial(seen));
        }
    }

    /// It has been judged with all bans before `now`. The caller keeps bans from ending meanwhile.
    pub(crate) fn see(&self, before: Serial, now: Serial) {
        let account: &Account = self.charge.account();
        account.hold(now);
        let moved = self.seen.compare_exchange(before.0, now.0, Ordering::AcqRel, Ordering::Acquire);
        account.release(if moved.is_ok() { before } else { now });
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.leave();
    }
}

/// What pieces of a body take, with what refers to them.
pub(crate) fn pieces_weight(list: &[Bytes]) -> u64 {
    list.iter().map(|piece| super::collector::piece_weight(piece.len())).sum()
}
