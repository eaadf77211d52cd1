//! What a request's query asks of the origin. Called by `connection.rs` for each request; pure.
//!
//! Bound: numbers that don't parse are refused with 400 by the caller, never guessed.

use crate::units::time_us;

/// The reply that `/?size=BYTES&status=CODE&delay=MS&burn=MS&block=MS&every=N&chunked=1&close=1&private=1&tag=N` describes; any part may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Length of the body in bytes; None is the three bytes `ok\n`.
    pub(super) size: Option<u64>,
    /// Status code, 200-599. Default 200.
    pub(super) status: u16,
    /// Time between the complete request and its reply, microseconds. Default 0.
    pub(super) delay_us: u64,
    /// Processor time that the reply costs, microseconds. Default 0.
    pub(super) burn_us: u64,
    /// How long the thread sleeps for the reply, microseconds, and serves nobody. Default 0.
    pub(super) block_us: u64,
    /// Delay, cost and sleep only each so manieth request of a thread; from 1, the default.
    pub(super) every: u64,
    /// Send the body in the chunked coding instead of with a length.
    pub(super) chunked: bool,
    /// Close the connection after the reply.
    pub(super) close: bool,
    /// Say that no cache may store it (`Cache-Control: private`).
    pub(super) private: bool,
    /// The number of its tag for caches (`Surrogate-Key: tN`); None: it has none.
    pub(super) tag: Option<u64>,
}

impl Default for Wanted {
    fn default() -> Wanted {
        Wanted {
            size: None,
            status: 200,
            delay_us: 0,
            burn_us: 0,
            block_us: 0,
            every: 1,
            chunked: false,
            close: false,
            private: false,
            tag: None,
        }
    }
}

/// Longest delay that is honoured: ten minutes.
const DELAY_US_MAX: u64 = 600_000_000;
/// Most processor time that a reply may cost: ten seconds.
const BURN_US_MAX: u64 = 10_000_000;
/// Longest sleep of a thread for a reply: ten seconds.
const BLOCK_US_MAX: u64 = 10_000_000;

/// What a reply costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Cost {
    /// How long it waits, microseconds.
    pub(super) delay_us: u64,
    /// Processor time of the thread, microseconds.
    pub(super) burn_us: u64,
    /// Sleep of the thread, microseconds.
    pub(super) block_us: u64,
}

impl Wanted {
    /// What the reply to the `nth` request of this thread costs.
    pub(super) fn cost_of(&self, nth: u64) -> Cost {
        let Wanted { delay_us, burn_us, block_us, .. } = *self;
        if nth.is_multiple_of(self.every) { Cost { delay_us, burn_us, block_us } } else { Cost::default() }
    }

    /// Reads a query (without the `?`). None when a known key has a value that can't be meant. Unknown keys are
    /// ignored, so that a client may tell requests apart with a key of its own.
    pub(super) fn from_query(query: &[u8]) -> Option<Wanted> {
        let mut wanted = Wanted::default();
        for pair in query.split(|byte| *byte == b'&') {
            let mut halves = pair.splitn(2, |byte| *byte == b'=');
            let (key, value) = (halves.next().unwrap_or_default(), halves.next().unwrap_or_default());
            match key {
                b"size" => wanted.size = Some(number(value)?),
                b"status" => wanted.status = status(value)?,
                b"delay" => wanted.delay_us = time(value, DELAY_US_MAX)?,
                b"burn" => wanted.burn_us = time(value, BURN_US_MAX)?,
                b"block" => wanted.block_us = time(value, BLOCK_US_MAX)?,
                b"every" => wanted.every = number(value).filter(|every| *every > 0)?,
                b"chunked" => wanted.chunked = flag(value)?,
                b"close" => wanted.close = flag(value)?,
                b"private" => wanted.private = flag(value)?,
                b"tag" => wanted.tag = Some(number(value)?),
                _ => {}
            }
        }
        Some(wanted)
    }
}

/// Digits only, at most 2^63.
fn number(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let parsed = std::str::from_utf8(value).ok()?.parse::<u64>().ok()?;
    (parsed <= 1 << 63).then_some(parsed)
}

/// `5`, `5ms`, `2s` or `500us`, in microseconds.
fn time(value: &[u8], us_max: u64) -> Option<u64> {
    time_us(std::str::from_utf8(value).ok()?).filter(|time_us| *time_us <= us_max)
}

/// A final status.
fn status(value: &[u8]) -> Option<u16> {
    let code = u16::try_from(number(value)?).ok()?;
    (200..600).contains(&code).then_some(code)
}

/// `1` or nothing is yes, `0` is no.
fn flag(value: &[u8]) -> Option<bool> {
    match value {
        b"" | b"1" => Some(true),
        b"0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read_and_unknown_ones_are_ignored() {
        let query =
            b"size=5000000000&status=404&id=7&delay=20&burn=500us&block=25ms&every=3&chunked=1&close&private&tag=12";
        let wanted = Wanted::from_query(query).unwrap();
        let expected = Wanted {
            size: Some(5_000_000_000),
            status: 404,
            delay_us: 20_000,
            burn_us: 500,
            block_us: 25_000,
            every: 3,
            chunked: true,
            close: true,
            private: true,
            tag: Some(12),
        };
        assert_eq!(wanted, expected);
        let costs: Vec<Cost> = (1..=4).map(|nth| wanted.cost_of(nth)).collect();
        let cost = Cost { delay_us: 20_000, burn_us: 500, block_us: 25_000 };
        assert_eq!(costs, [Cost::default(), Cost::default(), cost, Cost::default()]);
        assert_eq!(Wanted::from_query(b""), Some(Wanted::default()));
        assert_eq!(Wanted::from_query(b"chunked=0&close=0"), Some(Wanted::default()));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for query in ["size=", "size=-1", "size=1k", "size=99999999999999999999", "status=99", "status=101"] {
            assert_eq!(Wanted::from_query(query.as_bytes()), None, "{query}");
        }
        for query in [
            "status=600",
            "every=0",
            "delay=600001",
            "delay=x",
            "burn=11s",
            "burn=5m",
            "block=11s",
            "chunked=2",
            "close=yes",
            "private=2",
            "tag=shop",
        ] {
            assert_eq!(Wanted::from_query(query.as_bytes()), None, "{query}");
        }
    }
}
