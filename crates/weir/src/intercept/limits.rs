//! Limits how many connections begin before their clients are accepted, at a time and in a second,
//! so that forged first packets cost servers no more than that. It has no clock, so that tests can
//! check it.

use std::time::{Duration, Instant};

/// Largest number of packets held, or of connections that wait for their client, if there are
/// descriptors for that.
pub(super) const HELD_MAX: usize = 4096;
/// Largest number begun in a second, which one thread does with ease.
pub(super) const BEGUN_MAX: u32 = 10_000;
const SECOND: Duration = Duration::from_secs(1);

/// The limits, and their use.
#[derive(Debug)]
pub(super) struct Limits {
    max: usize,
    /// The limit was reached; some room has to return first.
    is_full: bool,
    /// The start of the second, and the number begun since then.
    second: (Instant, u32),
}

impl Limits {
    /// Allows this many at a time.
    pub(super) fn new(max: usize, now: Instant) -> Limits {
        Limits { max, is_full: false, second: (now, 0) }
    }

    /// Whether there is room for another, given the present number.
    pub(super) fn has_room(&mut self, count: usize) -> bool {
        self.is_full = count >= if self.is_full { self.max / 4 * 3 } else { self.max };
        !self.is_full
    }

    /// Whether another may begin in this second.
    pub(super) fn may_begin(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.second.0) >= SECOND {
            self.second = (now, 0);
        }
        self.second.1 < BEGUN_MAX
    }

    /// Counts one more that was begun.
    pub(super) fn begun(&mut self) {
        self.second.1 += 1;
    }
}

#[cfg(test)]
mod tests {
    //! Proves: the numbers at a time and in a second are bounded, and room returns only when there
    //! is clearly some. How: times of the test's choice.

    use super::*;

    #[test]
    fn there_is_room_again_when_there_is_clearly_some() {
        let mut limits = Limits::new(100, Instant::now());
        for (count, has_room) in
            [(0, true), (99, true), (100, false), (99, false), (75, false), (74, true), (99, true)]
        {
            assert_eq!(limits.has_room(count), has_room, "{count}");
        }
    }

    #[test]
    fn there_is_an_end_to_what_is_begun() {
        let now = Instant::now();
        let mut limits = Limits::new(usize::MAX, now);
        for begun in 0..BEGUN_MAX {
            assert!(limits.may_begin(now), "{begun}");
            limits.begun();
        }
        assert!(!limits.may_begin(now) && !limits.may_begin(now + SECOND / 2));
        assert!(limits.may_begin(now + SECOND));
    }
}
