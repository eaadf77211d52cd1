//! What a rate makes of one account: the generic cell rate algorithm in one atomic number (ITU-T I.371 annex A).
//!
//! An account is the time at which its client has caught up, if he asks nothing more: its *due*. Each request moves it by a gap; it may
//! lie `burst` gaps ahead of now and no further. So in any time t at most `burst + rate * t` pass, and an account whose due is past is
//! like one that was never there. Times here are *parts*: [`PARTS`] to a microsecond, so that a gap of a high rate is more than rounding.
//! Nothing overflows: now is at most 2^63, gap and room 2^61 (asserted below). Workers' clocks may differ by a turn: whose is behind sees
//! less room.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// Parts of a microsecond.
pub const PARTS: u64 = 1 << PARTS_BITS;
const PARTS_BITS: u32 = 12;
/// Beyond this, 71 years, a monotonic clock stands still for us.
const NOW_US_MAX: u64 = 1 << 51;
/// The longest that a gap, or all of a burst, takes.
const SPAN_MAX: u64 = 1 << 61;
/// A due that lies so much further ahead than its limit allows is of another limit, which had more room. A worker's time is that of its turn, and
/// no turn takes so long: with less, one that was held up would forgive what others have charged.
const SKEW: u64 = 60_000_000 * PARTS;
/// The latest due that there can be: an overflow would not compile.
const DUE_MAX: u64 = NOW_US_MAX * PARTS + SPAN_MAX + SKEW + SPAN_MAX;
const _: () = assert!(DUE_MAX < u64::MAX);

/// A time as parts.
#[inline]
pub(super) fn parts(now_us: u64) -> u64 {
    now_us.min(NOW_US_MAX) << PARTS_BITS
}

/// So many in so much time, and so many at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Parts between two that come evenly, at least 1, rounded up.
    gap: u64,
    /// Parts that a due may lie ahead: `burst` gaps.
    room: u64,
    /// Those that are refused count as well.
    hammer: bool,
}

/// What has become of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It may pass.
    Passed,
    /// It is one too many; in so many parts one would pass.
    Over {
        /// See [`retry_after_s`].
        wait: u64,
    },
}

impl Rate {
    /// `count` in `window_us`, `burst` at once; each at least 1. `hammer`: who is refused has to keep quiet for a gap.
    pub fn new(count: u32, window_us: u64, burst: u32, hammer: bool) -> Rate {
        let window = window_us.clamp(1, SPAN_MAX / PARTS) * PARTS;
        let gap = window.div_ceil(u64::from(count.max(1))).max(1);
        let room = gap.saturating_mul(u64::from(burst.max(1))).min(SPAN_MAX);
        Rate { gap, room, hammer }
    }

    /// What somebody owes who has asked once.
    #[inline]
    pub(super) fn gap(&self) -> u64 {
        self.gap
    }

    /// How long one request is remembered, microseconds: with it the room that is needed is new clients a second times this (Little's law).
    pub fn memory_us(&self) -> u64 {
        self.gap.div_ceil(PARTS)
    }

    /// Charges one request to an account.
    #[inline]
    pub(super) fn charge(&self, account: &AtomicU64, now_us: u64) -> Verdict {
        self.charge_above(account, 0, now_us)
    }

    /// The same; an account whose due is past has `floor` as its due before that.
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

    /// What [`Rate::charge`] would say.
    #[inline]
    pub(super) fn look(&self, account: &AtomicU64, now_us: u64) -> Verdict {
        self.look_above(account.load(SeqCst), 0, now_us)
    }

    /// What [`Rate::charge_above`] would say to somebody with this due.
    #[inline]
    pub(super) fn look_above(&self, due: u64, floor: u64, now_us: u64) -> Verdict {
        self.judge(above(due, floor, now_us), now_us).0
    }

    /// What becomes of one request of somebody with this due, and of the due if it is charged.
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

    /// How much of what may come at once somebody with this due has used, from 0 to 1; more if it was another limit that let him.
    pub(super) fn share(&self, due: u64, now_us: u64) -> f64 {
        due.saturating_sub(parts(now_us)) as f64 / self.room as f64
    }

    /// Takes a request back that has passed.
    pub(super) fn take_back(&self, account: &AtomicU64) {
        let _ = account.fetch_update(SeqCst, SeqCst, |due| Some(due.saturating_sub(self.gap)));
    }
}

/// A due, or where that is past the floor, if that is later.
#[inline]
fn above(due: u64, floor: u64, now_us: u64) -> u64 {
    if due <= parts(now_us) { due.max(floor) } else { due }
}

/// When to come again, seconds: never earlier than would do.
pub fn retry_after_s(wait: u64) -> u32 {
    u32::try_from(wait.div_ceil(PARTS * 1_000_000)).unwrap_or(u32::MAX).max(1)
}
