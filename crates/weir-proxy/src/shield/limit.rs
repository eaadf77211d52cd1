//! Applies a rate to one account: the generic cell rate algorithm in one atomic number (ITU-T I.371
//! annex A).
//!
//! An account is the time at which its client has caught up if it sends nothing more: its *due*.
//! Each request moves it by a gap; it may be `burst` gaps ahead of now and no further. So in any
//! time t at most `burst + rate * t` pass, and an account with a past due is like one that never
//! existed. Times here are *parts*: [`PARTS`] to a microsecond, so that rounding hardly affects the
//! gap of a high rate. Nothing overflows: now is at most 2^63, gap and room 2^61 (asserted below).
//! Workers' clocks may differ by a turn: a worker with a late clock sees less room.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// Parts of a microsecond.
pub const PARTS: u64 = 1 << PARTS_BITS;
const PARTS_BITS: u32 = 12;
/// Beyond this, 71 years, weir treats the monotonic clock as stopped.
const NOW_US_MAX: u64 = 1 << 51;
/// The longest gap, and the longest time of a whole burst.
const SPAN_MAX: u64 = 1 << 61;
/// A due that is further ahead than its limit allows, by more than this, was set by another limit
/// that had more room. A worker's time is that of its turn, and no turn takes this long: with a
/// smaller value, a worker that was held up would forgive what others have charged.
const SKEW: u64 = 60_000_000 * PARTS;
/// The latest possible due: an overflow would not compile.
const DUE_MAX: u64 = NOW_US_MAX * PARTS + SPAN_MAX + SKEW + SPAN_MAX;
const _: () = assert!(DUE_MAX < u64::MAX);

/// Converts a time to parts.
#[inline]
pub(super) fn parts(now_us: u64) -> u64 {
    now_us.min(NOW_US_MAX) << PARTS_BITS
}

/// A number of requests in a time, and a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Parts between two requests at an even pace, at least 1, rounded up.
    gap: u64,
    /// How far a due may be ahead, parts: `burst` gaps.
    room: u64,
    /// Refused requests count as well.
    hammer: bool,
}

/// The verdict on one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It may pass.
    Passed,
    /// It is over the limit; after `wait` parts one would pass.
    Over {
        /// See [`retry_after_s`].
        wait: u64,
    },
}

impl Rate {
    /// `count` in `window_us`, `burst` at once; each at least 1. `hammer`: a refused client has to
    /// be silent for a gap.
    pub fn new(count: u32, window_us: u64, burst: u32, hammer: bool) -> Rate {
        let window = window_us.clamp(1, SPAN_MAX / PARTS) * PARTS;
        let gap = window.div_ceil(u64::from(count.max(1))).max(1);
        let room = gap.saturating_mul(u64::from(burst.max(1))).min(SPAN_MAX);
        Rate { gap, room, hammer }
    }

    /// Returns the debt after one request.
    #[inline]
    pub(super) fn gap(&self) -> u64 {
        self.gap
    }

    /// Returns how long one request is remembered, microseconds. The table needs room for the
    /// number of new clients a second times this (Little's law).
    pub fn memory_us(&self) -> u64 {
        self.gap.div_ceil(PARTS)
    }

    /// Charges one request to an account.
    #[inline]
    pub(super) fn charge(&self, account: &AtomicU64, now_us: u64) -> Verdict {
        self.charge_above(account, 0, now_us)
    }

    /// Charges one request; an account with a past due has `floor` as its due before that.
    #[inline]
    pub(super) fn charge_above(&self, account: &AtomicU64, floor: u64, now_us: u64) -> Verdict {
        let mut due = account.load(SeqCst);
        loop {
            let (verdict, to) = self.judge(above(due, floor, now_us), now_us);
            if to == due {
                return verdict;
            }
            match account.compare_exchange_weak(due, to, SeqCst, SeqCst) {
                Ok(_) => return verdict,
                Err(other) => due = other,
            }
        }
    }

    /// Returns what [`Rate::charge`] would say.
    #[inline]
    pub(super) fn look(&self, account: &AtomicU64, now_us: u64) -> Verdict {
        self.look_above(account.load(SeqCst), 0, now_us)
    }

    /// Returns what [`Rate::charge_above`] would say with this due.
    #[inline]
    pub(super) fn look_above(&self, due: u64, floor: u64, now_us: u64) -> Verdict {
        self.judge(above(due, floor, now_us), now_us).0
    }

    /// Returns the verdict on one request with this due, and the due after it is charged.
    #[inline]
    fn judge(&self, due: u64, now_us: u64) -> (Verdict, u64) {
        let now = parts(now_us);
        let full = now + self.room;
        let is_of_another = due > full + SKEW;
        let owed = if is_of_another { full } else { due };
        let next = owed.max(now) + self.gap;
        match next <= full {
            true => (Verdict::Passed, next),
            false if self.hammer => (Verdict::Over { wait: next - full }, owed.max(full)),
            false => (Verdict::Over { wait: next - full }, owed),
        }
    }

    /// Returns the used share of the burst with this due, from 0 to 1; more if another limit with
    /// more room set the due.
    pub(super) fn share(&self, due: u64, now_us: u64) -> f64 {
        due.saturating_sub(parts(now_us)) as f64 / self.room as f64
    }

    /// Takes back a request that has passed.
    pub(super) fn take_back(&self, account: &AtomicU64) {
        let _ = account.fetch_update(SeqCst, SeqCst, |due| Some(due.saturating_sub(self.gap)));
    }
}

/// Returns the due or, if that is past, the later one of it and the floor.
#[inline]
fn above(due: u64, floor: u64, now_us: u64) -> u64 {
    if due <= parts(now_us) { due.max(floor) } else { due }
}

/// Returns when to retry, seconds: never earlier than a request can pass.
pub fn retry_after_s(wait: u64) -> u32 {
    u32::try_from(wait.div_ceil(PARTS * 1_000_000)).unwrap_or(u32::MAX).max(1)
}
