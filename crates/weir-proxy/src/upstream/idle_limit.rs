//! How long a server keeps an idle connection before it closes it (by default gunicorn: 2 s, Node:
//! 5 s, nginx: 75 s).
//!
//! The engine keeps one [`IdleLimit`] a server and worker. A request that is sent at the moment
//! when the server closes is lost; one that may be repeated is sent again, any other is an error
//! for its client (RFC 9112 §9.5). Weir avoids this by closing first, once it knows the limit.
//! Learned only from ends of connections on which no request was unanswered. Bound: four numbers.
//! docs/connections.md.

/// Consecutive ends after equally long idle times that make a limit.
const ENDS_MIN: u32 = 3;
/// Idle times are equally long when they differ by at most one part in this many.
const ALIKE: u64 = 10;
/// A shorter idle time does not count: the server closes after its responses.
const REST_US_MIN: u64 = 100_000;
/// A limit that is older than this is learned again: a raised limit can't be noticed while
/// connections are closed before it.
const VALID_US: u64 = 600_000_000;
/// The idle time up to which a connection is good for a request that can't be repeated, while no
/// limit is known.
pub(crate) const FRESH_US: u64 = 1_000_000;
/// How long before the server weir closes, at most; otherwise a part in [`ALIKE`].
const MARGIN_US_MAX: u64 = 1_000_000;

/// What is known of the limit of one server.
#[derive(Debug, Clone, Default)]
pub(crate) struct IdleLimit {
    /// The shortest of the last idle times that were alike.
    rest_us: u64,
    /// Consecutive ends after that time.
    ends: u32,
    /// When the last one was.
    learned_us: u64,
}

impl IdleLimit {
    /// The server has closed a connection that had been idle for this long. True: this made a limit
    /// of it.
    pub(crate) fn on_end(&mut self, now_us: u64, rest_us: u64) -> bool {
        // Several that end together are one event: a restart ends all, and they may have been idle
        // equally long.
        let together = self.ends > 0 && now_us.saturating_sub(self.learned_us) < rest_us / 2;
        if rest_us < REST_US_MIN || together {
            return false;
        }
        let alike = rest_us.abs_diff(self.rest_us) <= self.rest_us / ALIKE;
        self.ends = if alike { self.ends.saturating_add(1) } else { 1 };
        self.rest_us = if alike { self.rest_us.min(rest_us) } else { rest_us };
        self.learned_us = now_us;
        self.ends == ENDS_MIN
    }

    /// Returns how long a connection may be idle; None: no limit is known.
    pub(crate) fn limit_us(&self, now_us: u64) -> Option<u64> {
        let known = self.ends >= ENDS_MIN && now_us.saturating_sub(self.learned_us) < VALID_US;
        known.then_some(self.rest_us)
    }

    /// Returns the idle time after which weir closes a connection, shortly before the server does;
    /// None: no limit is known.
    pub(crate) fn close_after_us(&self, now_us: u64) -> Option<u64> {
        self.limit_us(now_us).map(|limit_us| limit_us - (limit_us / ALIKE).min(MARGIN_US_MAX))
    }

    /// Whether a connection that has been idle for this long is good for a request that can't be
    /// repeated.
    pub(crate) fn is_fresh(&self, now_us: u64, rest_us: u64) -> bool {
        rest_us <= self.limit_us(now_us).map_or(FRESH_US, |limit_us| limit_us / 4 * 3)
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a limit is learned from equally long idle times, kept for a while, and connections
    //! are closed before it. How: examples.

    use super::*;

    const SECOND: u64 = 1_000_000;

    fn after(rests: &[u64]) -> IdleLimit {
        let mut limit = IdleLimit::default();
        let mut now_us = 0;
        rests.iter().for_each(|rest_us| {
            limit.on_end(now_us, *rest_us);
            now_us += rest_us;
        });
        limit.learned_us = 0;
        limit
    }

    #[test]
    fn three_equal_rests_make_a_limit() {
        assert_eq!(after(&[2 * SECOND, 2 * SECOND]).limit_us(0), None);
        let limit = after(&[2_050_000, 2 * SECOND, 2_100_000]);
        assert_eq!(limit.limit_us(0), Some(2 * SECOND));
        assert_eq!(limit.close_after_us(0), Some(1_800_000));
        assert_eq!(after(&[75 * SECOND; 3]).close_after_us(0), Some(74 * SECOND));
        assert_eq!(
            after(&[2 * SECOND, 300_000, 2 * SECOND]).limit_us(0),
            None,
            "a restart is no limit"
        );
        assert_eq!(after(&[50_000; 8]).limit_us(0), None, "that is no rest");
    }

    #[test]
    fn it_is_learned_anew_after_a_while() {
        let mut limit = after(&[2 * SECOND; 3]);
        assert_eq!(limit.limit_us(VALID_US), None);
        limit.on_end(VALID_US, 5 * SECOND);
        assert_eq!(limit.limit_us(VALID_US), None, "a single one is none");
        assert!((0..8).all(|_| !limit.on_end(VALID_US, 5 * SECOND)), "all at once are one");
        assert!(!limit.on_end(VALID_US + 5 * SECOND, 5 * SECOND));
        assert!(limit.on_end(VALID_US + 10 * SECOND, 5 * SECOND), "news");
        assert_eq!(limit.limit_us(VALID_US), Some(5 * SECOND));
    }

    #[test]
    fn what_can_not_be_repeated_gets_a_fresh_connection() {
        let known = after(&[2 * SECOND; 3]);
        assert!(known.is_fresh(0, 1_500_000) && !known.is_fresh(0, 1_600_000));
        let unknown = IdleLimit::default();
        assert!(unknown.is_fresh(0, FRESH_US) && !unknown.is_fresh(0, FRESH_US + 1));
    }
}
