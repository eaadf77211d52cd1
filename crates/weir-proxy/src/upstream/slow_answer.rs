//! How long the responses of one server usually take, so that one that takes far longer is noticed
//! while it is awaited.
//!
//! The engine keeps one [`SlowDetector`] a server and worker, and reports each receive that
//! completes responses. It counts the time for which a response was the next one of its connection,
//! not the time in line behind others. The usual time is the 95th percentile of the last few
//! thousand: the 99th is itself a late response when one in a hundred is, and that is when this is
//! needed. Bound: 280 bytes; a few additions a receive, a pass over all classes every
//! [`REVIEW_ANSWERS`] responses. docs/pipelining-stalls.md#late-responses

use crate::base::log_buckets::Scale;
use crate::upstream::overlook::OverlookDetector;

/// Two an octave.
type Classes = Scale<1>;
/// Classes of times, up to nearly an hour.
const CLASSES: usize = 64;
/// Responses after which the limit is computed again.
const REVIEW_ANSWERS: u32 = 256;
/// Responses after which it is computed for the first time; then after twice as many, and so on.
const FIRST_ANSWERS: u32 = 16;
/// No response is late before this as long as few are known.
pub const UNSURE_US_MIN: u64 = 100_000;
/// Responses after which the older ones count half.
const MEMORY_ANSWERS: u32 = 4096;
/// A response is late when it takes this many times as long as usual...
const LATE_FACTOR: u64 = 4;
/// ...and not before this: the time of a busy machine's scheduler turn would otherwise look like a
/// slow server.
pub const LATE_US_MIN: u64 = 20_000;
/// One request in this many may be sent twice because of late responses, so that a server that is
/// only slow for a while doesn't get its load multiplied.
const SHARE: u32 = 5;
/// How much of that may be saved up: as many requests as can be on one connection behind a late
/// response.
const SAVED_MAX: u32 = 128;

/// Times of one server's responses.
#[derive(Debug, Clone)]
pub struct SlowDetector {
    /// Responses by class of their time, the older ones in part.
    counts: [u32; CLASSES],
    /// Sum of `counts`.
    total: u32,
    /// Responses until the next review.
    left: u32,
    /// `u64::MAX`: nothing is known.
    late_us: u64,
    moves: bool,
    /// Requests that may be moved, times [`SHARE`].
    saved: u32,
    /// Whether requests with far slower responses were overlooked.
    pub(crate) overlook: OverlookDetector,
}

impl SlowDetector {
    /// `moves`: whether anything may be moved away from behind a late response.
    pub fn new(moves: bool) -> SlowDetector {
        SlowDetector {
            counts: [0; CLASSES],
            total: 0,
            left: FIRST_ANSWERS,
            late_us: u64::MAX,
            moves,
            saved: SAVED_MAX * SHARE,
            overlook: OverlookDetector::default(),
        }
    }

    /// Learns from a receive that completed `count` responses (at least 1), the first of which had
    /// been the next one for `elapsed_us`.
    #[inline]
    pub fn on_answers(&mut self, elapsed_us: u64, count: u32) {
        self.counts[class(elapsed_us)] += 1;
        // The others were there already.
        self.counts[0] += count - 1;
        self.total += count;
        self.saved = self.saved.saturating_add(count).min(SAVED_MAX * SHARE);
        self.left = self.left.saturating_sub(count);
        if self.left == 0 {
            self.review();
        }
    }

    /// Returns from when on a response is late, microseconds since it is the next one of its
    /// connection. `u64::MAX` while nothing is known.
    pub fn late_us(&self) -> u64 {
        self.late_us
    }

    /// Returns how long the slowest thousandth of responses takes at least, microseconds; 0 while
    /// nothing is known.
    pub(crate) fn slowest_us(&self) -> u64 {
        let mut above = self.total / 1000;
        let slowest = self.counts.iter().rposition(|&count| {
            let found = count > above;
            above = above.saturating_sub(count);
            found
        });
        slowest.map_or(0, end_us)
    }

    /// Whether anything may be moved away from behind a late response.
    pub fn moves(&self) -> bool {
        self.moves
    }

    /// Whether a request may be moved away from behind a late response. Counts it.
    pub fn may_move(&mut self) -> bool {
        let may = self.saved >= SHARE;
        self.saved -= if may { SHARE } else { 0 };
        may
    }

    fn review(&mut self) {
        self.left = self.total.clamp(FIRST_ANSWERS, REVIEW_ANSWERS);
        let mut above = self.total / 20;
        let usual = self.counts.iter().rposition(|&count| {
            let found = count > above;
            above = above.saturating_sub(count);
            found
        });
        let usual_us = usual.map_or(0, end_us);
        let least_us = if self.total < REVIEW_ANSWERS { UNSURE_US_MIN } else { LATE_US_MIN };
        self.late_us = usual_us.saturating_mul(LATE_FACTOR).max(least_us);
        if self.total >= MEMORY_ANSWERS {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().sum();
        }
    }
}

/// The class of a time.
fn class(us: u64) -> usize {
    Classes::bucket(us).min(CLASSES - 1)
}

/// Where a class ends.
fn end_us(class: usize) -> u64 {
    Classes::first(class + 1)
}

#[cfg(test)]
mod tests {
    //! Proves: the limit for late responses follows the server, one slow response in a hundred
    //! remains late, and moves remain a share of the responses. How: examples, and a property
    //! against sorted lists.

    use proptest::prelude::*;

    use super::*;

    fn after(times: impl IntoIterator<Item = u64>) -> SlowDetector {
        let mut usual = SlowDetector::new(true);
        times.into_iter().for_each(|us| usual.on_answers(us, 1));
        usual
    }

    #[test]
    fn nothing_is_late_before_anything_is_known() {
        assert_eq!(after(vec![100; 15]).late_us(), u64::MAX);
        assert_eq!(after(vec![100; 16]).late_us(), UNSURE_US_MIN);
        assert_eq!(after(vec![100_000; 16]).late_us(), after(vec![100_000; 256]).late_us());
        assert_eq!(after(vec![100; 255]).late_us(), UNSURE_US_MIN);
        assert_eq!(after(vec![100; 256]).late_us(), LATE_US_MIN);
    }

    #[test]
    fn one_slow_answer_in_a_hundred_is_late_and_half_of_them_are_not() {
        let rare = after((0..10_000).map(|n| if n % 100 == 0 { 200_000 } else { 1_000 }));
        assert_eq!(rare.late_us(), LATE_US_MIN);
        let usual = after((0..10_000).map(|n| if n % 2 == 0 { 200_000 } else { 1_000 }));
        assert!(usual.late_us() > 400_000, "{}", usual.late_us());
    }

    #[test]
    fn the_slowest_thousandth_is_known() {
        assert_eq!(after([]).slowest_us(), 0);
        assert!(
            (300_000..=600_000).contains(&after([1_000, 300_000, 1_000]).slowest_us()),
            "the slowest of a few"
        );
        let often = |every: u64| {
            after((1..4_000).map(move |n| if n % every == 0 { 300_000 } else { 1_000 }))
                .slowest_us()
        };
        assert!((300_000..=600_000).contains(&often(500)), "{}", often(500));
        assert!((1_000..=2_000).contains(&often(3_000)), "{}", often(3_000));
    }

    /// Responses that come together count as many, so that batches don't make slow ones look
    /// frequent.
    #[test]
    fn batches_count_each_answer() {
        let mut usual = SlowDetector::new(true);
        for n in 0..1_000 {
            usual.on_answers(if n % 6 == 0 { 200_000 } else { 2_000 }, 16);
        }
        assert_eq!(usual.late_us(), LATE_US_MIN);
    }

    #[test]
    fn it_follows_a_server_that_becomes_slow_and_recovers() {
        let mut usual = after(vec![1_000; 10_000]);
        (0..1_000).for_each(|_| usual.on_answers(100_000, 1));
        assert!(usual.late_us() >= 400_000, "{}", usual.late_us());
        (0..40_000).for_each(|_| usual.on_answers(1_000, 1));
        assert_eq!(usual.late_us(), LATE_US_MIN);
    }

    #[test]
    fn moves_are_a_fifth_of_the_answers() {
        let mut usual = SlowDetector::new(true);
        let mut moved = 0;
        for _ in 0..10_000 {
            usual.on_answers(50, 4);
            moved += (0..4).filter(|_| usual.may_move()).count();
        }
        // The moves saved at first come on top.
        assert!((7_900..=8_000).contains(&(moved - SAVED_MAX as usize)), "{moved}");
        let mut idle = after(vec![50; 100_000]);
        assert_eq!((0..1_000).filter(|_| idle.may_move()).count() as u32, SAVED_MAX);
    }

    proptest! {
        #[test]
        fn classes_hold_their_times(us in 0..1u64 << 40) {
            let class = class(us);
            prop_assert!(us < end_us(class) || class == CLASSES - 1);
            prop_assert!(class == 0 || us >= end_us(class - 1));
        }

        /// The limit is four times the 95th percentile, up to the width of a class.
        #[test]
        fn the_limit_is_a_percentile(
            times in prop::collection::vec(10_000..1_000_000u64, 256..=256),
        ) {
            let mut sorted = times.clone();
            sorted.sort_unstable();
            let exact_us = sorted[sorted.len() - 1 - times.len() / 20];
            let late_us = after(times).late_us();
            prop_assert!(
                late_us >= exact_us * LATE_FACTOR && late_us <= exact_us * LATE_FACTOR * 3 / 2 + 8,
                "{} {}",
                late_us,
                exact_us
            );
        }
    }
}
