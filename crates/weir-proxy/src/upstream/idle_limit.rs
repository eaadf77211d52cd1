//! How long a server lets a connection rest before it closes it (gunicorn: 2 s, Node: 5 s, nginx: 75 s, if nobody set it).
//!
//! The engine keeps one [`IdleLimit`] a server and worker. A request that is sent in the moment when the server closes is
//! lost; one that may be repeated goes again, another one is an error for its client (RFC 9112 §9.5). Who knows the limit
//! closes first. Learned only from ends of connections on which nothing was asked. Bound: four numbers.
//! docs/connections.md.

/// Ends in a row after equally long rests that make a limit.
const ENDS_MIN: u32 = 3;
/// Rests are equally long when they differ by at most one part in so many.
const ALIKE: u64 = 10;
/// A shorter rest is none: the server closes after its answers.
const REST_US_MIN: u64 = 100_000;
/// A limit that was learned so long ago is learned anew: nobody can see that it was raised while connections are closed before it.
const VALID_US: u64 = 600_000_000;
/// Up to which rest a connection is good for a request that can't be repeated, while no limit is known.
pub(crate) const FRESH_US: u64 = 1_000_000;
/// How long before the server weir closes, at most; else a part in [`ALIKE`].
const MARGIN_US_MAX: u64 = 1_000_000;

/// What is known of the limit of one server.
#[derive(Debug, Clone, Default)]
pub(crate) struct IdleLimit {
    /// The shortest of the last rests that were alike.
    rest_us: u64,
    /// Ends in a row after that.
    ends: u32,
    /// When the last one was.
    learned_us: u64,
}

impl IdleLimit {
    /// The server has closed a connection that had rested for so long. True: this made a limit of it.
    pub(crate) fn on_end(&mut self, now_us: u64, rest_us: u64) -> bool {
        // Several that end together are one event: a restart ends all, and they may have rested equally long.
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

    /// How long a connection may rest; None: no limit is known.
    pub(crate) fn limit_us(&self, now_us: u64) -> Option<u64> {
        let known = self.ends >= ENDS_MIN && now_us.saturating_sub(self.learned_us) < VALID_US;
        known.then_some(self.rest_us)
    }

    /// After which rest weir closes a connection, shortly before the server does; None: no limit is known.
    pub(crate) fn close_after_us(&self, now_us: u64) -> Option<u64> {
        self.limit_us(now_us).map(|limit_us| limit_us - (limit_us / ALIKE).min(MARGIN_US_MAX))
    }

    /// Whether a connection that has rested for so long is good for a request that can't be repeated.
    pub(crate) fn is_fresh(&self, now_us: u64, rest_us: u64) -> bool {
        rest_us <= self.limit_us(now_us).map_or(FRESH_US, |limit_us| limit_us / 4 * 3)
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a limit is learned from equally long rests, kept for a while, and closed before. How: examples.

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
        assert_eq!(after(&[2 * SECOND, 300_000, 2 * SECOND]).limit_us(0), None, "a restart is no limit");
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
