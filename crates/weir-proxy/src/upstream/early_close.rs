//! Whether a server tolerates pipelining: many don't, and show it by ending connections that have
//! more than one request.
//!
//! The engine keeps one [`EarlyCloseDetector`] a server and worker and reports each connection that
//! the server ended while requests that had been sent behind others were unanswered: by closing, by
//! a reset, or within a response. A keep-alive limit ends them as well, but after many responses;
//! so the count is how many came since the connection was first pipelined. The engine makes a doubt
//! of it ([`crate::cross::doubt::Doubt::CutsShort`]), which puts the server back to depth 1 for a
//! time. Bound: two numbers. docs/connections.md#trust-in-a-server; docs/hostile.md E18, E28.

/// An end after fewer responses since the connection was first pipelined is short.
const ANSWERS_MIN: u64 = 8;
/// This many short ends of the last eight are too many.
const SHORT_ENDS_MAX: u32 = 5;
/// Ends within this time of one that counted are the same event: a server that dies takes all its
/// connections along.
const APART_US: u64 = 100_000;
/// After this long without an end nothing is held against the server.
const MEMORY_US: u64 = 60_000_000;

/// How the last eight pipelined connections ended.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EarlyCloseDetector {
    /// One bit for each, the last one lowest: it was short.
    short: u8,
    ended_us: Option<u64>,
}

impl EarlyCloseDetector {
    /// The server ended a pipelined connection, `answers` after that had its second request at a
    /// time. True: it seems not to tolerate pipelining, and the count starts again.
    pub(crate) fn on_end(&mut self, now_us: u64, answers: u64) -> bool {
        let elapsed_us = self.ended_us.map_or(u64::MAX, |ended_us| now_us.saturating_sub(ended_us));
        if elapsed_us < APART_US {
            return false;
        }
        if elapsed_us > MEMORY_US {
            self.short = 0;
        }
        self.ended_us = Some(now_us);
        self.short = self.short << 1 | u8::from(answers < ANSWERS_MIN);
        let too_many = self.short.count_ones() > SHORT_ENDS_MAX;
        if too_many {
            self.short = 0;
        }
        too_many
    }
}

#[cfg(test)]
mod tests {
    //! Proves: only a server that ends pipelined connections early, over and over, is found. How:
    //! step by step.

    use super::*;

    /// Ends until it is found, at most 100, with `apart_us` between them.
    fn found_after(apart_us: u64, answers: impl Fn(u32) -> u64) -> Option<u32> {
        let mut detector = EarlyCloseDetector::default();
        (1..=100).find(|n| detector.on_end(u64::from(*n) * apart_us, answers(*n)))
    }

    #[test]
    fn short_ends_are_found_after_six() {
        assert_eq!(found_after(1_000_000, |_| 0), Some(6));
        assert_eq!(found_after(1_000_000, |_| ANSWERS_MIN - 1), Some(6));
        assert_eq!(
            found_after(1_000_000, |n| if n % 4 == 0 { 500 } else { 1 }),
            Some(7),
            "most of them"
        );
    }

    #[test]
    fn limits_accidents_and_crashes_are_not() {
        assert_eq!(found_after(1_000_000, |_| 99), None, "a keep-alive limit");
        assert_eq!(
            found_after(1_000_000, |n| if n % 2 == 0 { 500 } else { 1 }),
            None,
            "now and then"
        );
        assert_eq!(found_after(MEMORY_US + 1, |_| 0), None, "once a minute");
        assert_eq!(found_after(1_000, |_| 0), None, "a crash of a hundred connections");
    }

    #[test]
    fn it_begins_anew() {
        let mut detector = EarlyCloseDetector::default();
        let found = (1..=18).filter(|n| detector.on_end(n * 1_000_000, 0)).collect::<Vec<_>>();
        assert_eq!(found, [6, 12, 18]);
    }
}
