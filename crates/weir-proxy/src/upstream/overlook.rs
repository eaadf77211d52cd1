//! Whether a server overlooks requests that came together with others: it answers one, and waits
//! until more data arrive. gunicorn with threads does so (its worker is woken by the socket, and
//! does not check the data it has read already).
//!
//! The engine keeps one [`OverlookDetector`] a server and worker. When the next response of a
//! connection is silent for [`OverlookDetector::patience_us`] and up to twice as long, at random, a
//! request is sent once more behind the others, which wakes such a server
//! (`upstream/overlooked.rs`). A server that overlooks begins to answer within the usual time of
//! its responses; one that is only slow does so by chance, at most one time in eight. So
//! [`HITS_MIN`] in a row are proof. A response that comes at another time doubles the patience and
//! restarts the count; one that comes without help, before anything was sent, only restarts it. A
//! server that has answered the last request of [`CLEARED_MIN`] batches without help is not
//! suspected any more: then nothing is sent twice because of this. Bound: four numbers.
//! docs/pipelining-stalls.md#overlooked-requests

/// The least patience.
const PATIENCE_US_MIN: u64 = 100_000;
/// Patience grows up to this, or as far as [`PATIENCE_FACTOR`] requires.
pub(crate) const PATIENCE_US_MAX: u64 = 2_000_000;
/// Patience is this many times as long as a response usually takes, at least.
const PATIENCE_FACTOR: u64 = 8;
/// A response that usually takes less may take this.
const USUAL_US_MIN: u64 = 5_000;
/// The usual time while it is unknown how long responses take.
const UNKNOWN_US: u64 = 60_000;
/// Responses within this time of one that counted may have the same cause: after a pause,
/// everything it held up comes at once.
const APART_US: u64 = 100_000;
/// This many responses that begin as soon as a request was sent once more are not chance.
const HITS_MIN: u8 = 4;
/// A server that answered the last request of this many batches overlooks none.
const CLEARED_MIN: u8 = 32;

/// How often in a row a server answered because something was sent, and how often not.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OverlookDetector {
    hits: u8,
    misses: u8,
    hit_us: u64,
    cleared: u8,
}

impl OverlookDetector {
    /// Returns how long a response may be silent before something is sent. `late_us`: four times
    /// the usual time of responses; `u64::MAX`: unknown.
    pub(crate) fn patience_us(&self, late_us: u64) -> u64 {
        let least_us = usual_us(late_us).saturating_mul(PATIENCE_FACTOR).max(PATIENCE_US_MIN);
        let doubled_us = least_us.saturating_mul(1 << self.misses.min(16));
        doubled_us.min(PATIENCE_US_MAX.max(least_us))
    }

    /// A response begins, `after_us` after something was sent because it was silent. True: the
    /// server overlooks requests, and the count starts again.
    pub(crate) fn on_answer(&mut self, late_us: u64, now_us: u64, after_us: u64) -> bool {
        if after_us > usual_us(late_us) {
            (self.hits, self.misses) = (0, self.misses.saturating_add(1));
            return false;
        }
        self.misses = 0;
        if self.hits > 0 && now_us.saturating_sub(self.hit_us) < APART_US {
            return false;
        }
        (self.hits, self.hit_us, self.cleared) = (self.hits + 1, now_us, 0);
        let proved = self.hits >= HITS_MIN;
        if proved {
            self.hits = 0;
        }
        proved
    }

    /// The last of several requests that were unanswered together was answered, though nothing was
    /// sent behind it.
    #[inline]
    pub(crate) fn on_last_answer(&mut self) {
        self.cleared = self.cleared.saturating_add(1);
    }

    /// Nothing is known of the server any more.
    pub(crate) fn suspect(&mut self) {
        self.cleared = 0;
    }

    /// Whether the server is known to overlook nothing.
    pub(crate) fn is_cleared(&self) -> bool {
        self.cleared >= CLEARED_MIN
    }

    /// A response begins that was silent for long, before anything was sent because of that.
    pub(crate) fn on_own_answer(&mut self) {
        self.hits = 0;
    }
}

/// The usual time of a response.
fn usual_us(late_us: u64) -> u64 {
    if late_us == u64::MAX { UNKNOWN_US } else { (late_us / 4).max(USUAL_US_MIN) }
}

#[cfg(test)]
mod tests {
    //! Proves: which responses are proof and how patience grows. How: step by step, and with
    //! responses that come at random times.

    use super::*;

    #[test]
    fn four_in_a_row_are_proof() {
        let mut detector = OverlookDetector::default();
        let found: Vec<_> =
            (1..=12).filter(|n| detector.on_answer(20_000, n * APART_US, 300)).collect();
        assert_eq!(found, [4, 8, 12]);
        assert!(!(13..100).any(|n| detector.on_answer(
            20_000,
            n * APART_US,
            if n % 4 == 3 { 5_001 } else { 5_000 }
        )));
    }

    #[test]
    fn answers_at_once_have_one_reason() {
        let mut detector = OverlookDetector::default();
        assert!(!(0..1_000).any(|_| detector.on_answer(20_000, 7, 300)));
        assert!(!(0..1_000).any(|_| detector.on_answer(20_000, APART_US + 6, 300)));
    }

    #[test]
    fn an_answer_of_its_own_begins_anew() {
        let mut detector = OverlookDetector::default();
        for n in 0..100 {
            assert!(!detector.on_answer(20_000, n * APART_US, 300));
            if n % 3 == 2 {
                detector.on_own_answer();
            }
        }
    }

    #[test]
    fn patience_is_doubled_up_to_two_seconds() {
        let mut detector = OverlookDetector::default();
        let mut patience = vec![detector.patience_us(20_000)];
        for _ in 0..7 {
            detector.on_answer(20_000, 0, 1_000_000);
            patience.push(detector.patience_us(20_000));
        }
        assert_eq!(
            patience,
            [100_000, 200_000, 400_000, 800_000, 1_600_000, 2_000_000, 2_000_000, 2_000_000]
        );
        detector.on_answer(20_000, 0, 1_000);
        assert_eq!(detector.patience_us(20_000), 100_000);
        // Eight times what is usual, also where that is long.
        assert_eq!(detector.patience_us(400_000), 800_000);
        assert_eq!(detector.patience_us(12_000_000), 24_000_000);
        assert_eq!(detector.patience_us(u64::MAX), 480_000);
        (0..300).for_each(|_| assert!(!detector.on_answer(20_000, 0, u64::MAX)));
        assert_eq!(detector.patience_us(12_000_000), 24_000_000);
    }
}
