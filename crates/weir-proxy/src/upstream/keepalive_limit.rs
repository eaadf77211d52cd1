//! After how many requests a server ends a connection (by default nginx: 1,000, Apache: 100).
//!
//! The engine keeps one [`KeepaliveLimit`] a server and worker. Requests that were pipelined behind
//! the last response of a connection have to be sent again, which at a depth of 30 and a limit of
//! 100 is a third of the work. Weir avoids that by putting nothing there, once it knows the limit.
//! The limit is learned only from ends that the server announced with a response (RFC 9112 §9.6):
//! an unannounced end could come later than the next request. Unannounced ends are remembered
//! separately, and so is how many responses a connection has outlived: a request that can't be
//! repeated does not test whether it outlives more. Bound: five numbers. docs/retries.md.

/// Consecutive ends after the same number of responses that make a limit.
const ENDS_MIN: u32 = 3;

/// The number of responses after which no connection is expected to end without notice.
const OUTLIVED_ENOUGH: u64 = 100;

/// How long an unannounced end is held against a server.
const REMEMBERED_US: u64 = 60_000_000;

/// What is known of the limit of one server.
#[derive(Debug, Clone)]
pub(crate) struct KeepaliveLimit {
    /// Responses of a connection, `u64::MAX` while unknown.
    limit: u64,
    /// Responses at the last announced end.
    last: u64,
    /// Consecutive announced ends after that many.
    ends: u32,
    /// When it last ended one right behind a response without announcing it.
    abrupt_us: Option<u64>,
    /// A connection has continued after this many responses, and none has ended without notice
    /// since that had given fewer.
    outlived: u64,
}

impl Default for KeepaliveLimit {
    fn default() -> KeepaliveLimit {
        KeepaliveLimit { limit: u64::MAX, last: 0, ends: 0, abrupt_us: None, outlived: 0 }
    }
}

impl KeepaliveLimit {
    /// Returns the requests that a connection gets in all; `u64::MAX`: no limit is known.
    #[inline]
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// The server announced with a response that the connection ends; `answers` is how many it
    /// gave, including that response.
    pub(crate) fn on_announced(&mut self, answers: u64) {
        self.ends = if answers == self.last { self.ends + 1 } else { 1 };
        self.last = answers;
        if self.ends >= ENDS_MIN {
            self.limit = answers;
        }
    }

    /// The server has ended a connection without notice, right behind the last of `answers`
    /// responses.
    pub(crate) fn on_abrupt(&mut self, now_us: u64, answers: u64) {
        self.abrupt_us = Some(now_us);
        self.outlived = self.outlived.min(answers.saturating_sub(1));
    }

    /// Whether a connection that has just given this many responses continues, as far as other
    /// connections show.
    pub(crate) fn is_outlived(&self, answers: u64) -> bool {
        answers <= self.outlived || self.outlived >= OUTLIVED_ENOUGH
    }

    /// Whether that has happened recently: a request sent behind a response may meet the end.
    pub(crate) fn is_abrupt(&self, now_us: u64) -> bool {
        self.abrupt_us.is_some_and(|abrupt_us| now_us.saturating_sub(abrupt_us) < REMEMBERED_US)
    }

    /// A connection lived until it gave the last of `answers` responses, and is to continue: the
    /// assumed limit does not exist.
    #[inline]
    pub(crate) fn on_survived(&mut self, answers: u64) {
        self.outlived = self.outlived.max(answers - 1);
        if answers >= self.limit {
            *self = KeepaliveLimit {
                abrupt_us: self.abrupt_us,
                outlived: self.outlived,
                ..KeepaliveLimit::default()
            };
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a limit is learned from equal ends, kept through others, forgotten when it is wrong.
    //! How: examples.

    use super::*;

    fn after(ends: &[u64]) -> KeepaliveLimit {
        let mut lifespan = KeepaliveLimit::default();
        ends.iter().for_each(|answers| lifespan.on_announced(*answers));
        lifespan
    }

    #[test]
    fn three_equal_ends_in_a_row_make_a_limit() {
        assert_eq!(after(&[]).limit(), u64::MAX);
        assert_eq!(after(&[100, 100]).limit(), u64::MAX);
        assert_eq!(after(&[100, 100, 100]).limit(), 100);
        assert_eq!(after(&[100, 37, 100, 100]).limit(), u64::MAX);
        // An error that ends a connection early says nothing about the others.
        assert_eq!(after(&[100, 100, 100, 37, 52]).limit(), 100);
        assert_eq!(after(&[1000, 1000, 1000, 100, 100, 100]).limit(), 100);
    }

    #[test]
    fn an_end_without_a_word_is_remembered_for_a_while() {
        let mut lifespan = KeepaliveLimit::default();
        assert!(!lifespan.is_abrupt(0));
        lifespan.on_abrupt(5, 1);
        lifespan.on_announced(1);
        lifespan.on_survived(2);
        assert!(lifespan.is_abrupt(5) && lifespan.is_abrupt(REMEMBERED_US));
        assert!(!lifespan.is_abrupt(5 + REMEMBERED_US));
    }

    #[test]
    fn nobody_knows_what_was_not_outlived() {
        let mut lifespan = KeepaliveLimit::default();
        assert!(lifespan.is_outlived(0) && !lifespan.is_outlived(1));
        (1..=7).for_each(|answers| lifespan.on_survived(answers));
        assert!(lifespan.is_outlived(6) && !lifespan.is_outlived(7));
        lifespan.on_abrupt(0, 3);
        assert!(lifespan.is_outlived(2) && !lifespan.is_outlived(3));
        lifespan.on_survived(OUTLIVED_ENOUGH + 1);
        assert!(lifespan.is_outlived(u64::MAX));
    }

    #[test]
    fn a_limit_that_is_outlived_is_forgotten() {
        let mut lifespan = after(&[100, 100, 100]);
        lifespan.on_survived(99);
        assert_eq!(lifespan.limit(), 100);
        lifespan.on_survived(100);
        assert_eq!(lifespan.limit(), u64::MAX);
        lifespan.on_announced(100);
        assert_eq!(lifespan.limit(), u64::MAX, "it is learned anew");
    }
}
