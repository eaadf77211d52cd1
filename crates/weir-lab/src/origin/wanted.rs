//! The parameters in the query of a request to the origin. Called by `connection.rs` for each
//! request; pure.
//!
//! Bound: numbers that don't parse are rejected with 400 by the caller, never guessed.

use crate::random::Random;
use crate::units::time_us;

/// The response that the query of `/?size=BYTES&status=CODE&delay=TIME` and so on describes, with
/// the keys that the module [`origin`](super) lists; any part may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Length of the body in bytes; None is the three bytes `ok\n`.
    pub(super) size: Option<u64>,
    /// Status code, 200-599. Default 200.
    pub(super) status: u16,
    /// Time between the complete request and its response. Default none.
    pub(super) delay: Delay,
    /// How many delayed responses the server works on at full speed; with more each takes longer.
    /// None: any number.
    pub(super) beyond: Option<u64>,
    /// Processor time that the response costs, microseconds. Default 0.
    pub(super) burn_us: u64,
    /// How long the thread sleeps for the response, microseconds, and serves no other connection.
    /// Default 0.
    pub(super) block_us: u64,
    /// Delay, cost and sleep apply only to every nth request of a thread; from 1, the default.
    pub(super) every: u64,
    /// Send the body in the chunked coding instead of with a length.
    pub(super) chunked: bool,
    /// Close the connection after the response.
    pub(super) close: bool,
    /// Tell caches not to store it (`Cache-Control: private`).
    pub(super) private: bool,
    /// The number of its tag for caches (`Surrogate-Key: tN`); None: it has no tag.
    pub(super) tag: Option<u64>,
}

impl Default for Wanted {
    fn default() -> Wanted {
        Wanted {
            size: None,
            status: 200,
            delay: Delay::Fixed(0),
            beyond: None,
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
/// Most processor time that a response may cost: ten seconds.
const BURN_US_MAX: u64 = 10_000_000;
/// Longest sleep of a thread for a response: ten seconds.
const BLOCK_US_MAX: u64 = 10_000_000;

/// Largest standard deviation of the logarithm of a delay, in thousandths.
const SIGMA_MILLI_MAX: u64 = 5_000;

/// How long a response waits, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delay {
    /// Always as long.
    Fixed(u64),
    /// At random from the first to the second, all equally likely.
    Between(u64, u64),
    /// At random; its logarithm has a normal distribution.
    LogNormal {
        /// Half of the delays are shorter.
        median_us: u64,
        /// Standard deviation of the natural logarithm, in thousandths.
        sigma_milli: u64,
    },
}

impl Delay {
    /// Reads `5`, `5ms`, `100ms..600ms` or `lognormal:2ms:1.5`.
    fn parse(value: &[u8]) -> Option<Delay> {
        let text = std::str::from_utf8(value).ok()?;
        let time = |text: &str| time(text.as_bytes(), DELAY_US_MAX);
        if let Some(rest) = text.strip_prefix("lognormal:") {
            let (median, sigma) = rest.split_once(':')?;
            let sigma_milli = thousandths(sigma).filter(|sigma| *sigma <= SIGMA_MILLI_MAX)?;
            return Some(Delay::LogNormal { median_us: time(median)?, sigma_milli });
        }
        match text.split_once("..") {
            Some((least, most)) => {
                let (least, most) = (time(least)?, time(most)?);
                (least <= most).then_some(Delay::Between(least, most))
            }
            None => time(text).map(Delay::Fixed),
        }
    }

    /// Draws a delay, microseconds.
    fn draw_us(self, random: &mut Random) -> u64 {
        match self {
            Delay::Fixed(us) => us,
            Delay::Between(least, most) => {
                least + (random.fraction() * (most - least + 1) as f64) as u64
            }
            Delay::LogNormal { median_us, sigma_milli } => {
                let factor = (random.normal() * sigma_milli as f64 / 1e3).exp();
                ((median_us as f64 * factor) as u64).min(DELAY_US_MAX)
            }
        }
    }
}

/// Returns a delay that takes longer because `at_work` responses are under way and the server works
/// on `beyond` of them at full speed. Each takes longer by the square of the excess, as if all
/// waited for one lock: with twice as many the server finishes half as many a second.
pub(super) fn slowed_us(delay_us: u64, at_work: u64, beyond: u64) -> u64 {
    let excess = at_work as f64 / beyond as f64;
    if excess <= 1.0 {
        delay_us
    } else {
        ((delay_us as f64 * excess * excess) as u64).min(DELAY_US_MAX)
    }
}

/// The cost of a response.
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
    /// Returns the cost of the response to the `nth` request of this thread.
    pub(super) fn cost_of(&self, nth: u64, random: &mut Random) -> Cost {
        let Wanted { delay, burn_us, block_us, .. } = *self;
        if !nth.is_multiple_of(self.every) {
            return Cost::default();
        }
        Cost { delay_us: delay.draw_us(random), burn_us, block_us }
    }

    /// Reads a query (without the `?`). None when a known key has an invalid value. Unknown keys
    /// are ignored, so that a client may distinguish requests with its own key.
    pub(super) fn from_query(query: &[u8]) -> Option<Wanted> {
        let mut wanted = Wanted::default();
        for pair in query.split(|byte| *byte == b'&') {
            let mut halves = pair.splitn(2, |byte| *byte == b'=');
            let (key, value) =
                (halves.next().unwrap_or_default(), halves.next().unwrap_or_default());
            match key {
                b"size" => wanted.size = Some(number(value)?),
                b"status" => wanted.status = status(value)?,
                b"delay" => wanted.delay = Delay::parse(value)?,
                b"beyond" => wanted.beyond = Some(number(value).filter(|beyond| *beyond > 0)?),
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

/// Reads `1.5` as 1500: a number from 0 with at most three digits after the point.
fn thousandths(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let padded = (1..=3).contains(&part.len()).then(|| format!("{part:0<3}"))?;
    number(whole.as_bytes())?.checked_mul(1000)?.checked_add(number(padded.as_bytes())?)
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
            b"size=5000000000&status=404&id=7&delay=20&beyond=32&burn=500us&block=25ms&every=3&\
              chunked=1&close&private&tag=12";
        let wanted = Wanted::from_query(query).unwrap();
        let expected = Wanted {
            size: Some(5_000_000_000),
            status: 404,
            delay: Delay::Fixed(20_000),
            beyond: Some(32),
            burn_us: 500,
            block_us: 25_000,
            every: 3,
            chunked: true,
            close: true,
            private: true,
            tag: Some(12),
        };
        assert_eq!(wanted, expected);
        let costs: Vec<Cost> =
            (1..=4).map(|nth| wanted.cost_of(nth, &mut Random::new(1))).collect();
        let cost = Cost { delay_us: 20_000, burn_us: 500, block_us: 25_000 };
        assert_eq!(costs, [Cost::default(), Cost::default(), cost, Cost::default()]);
        assert_eq!(Wanted::from_query(b""), Some(Wanted::default()));
        assert_eq!(Wanted::from_query(b"chunked=0&close=0"), Some(Wanted::default()));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for query in
            ["size=", "size=-1", "size=1k", "size=99999999999999999999", "status=99", "status=101"]
        {
            assert_eq!(Wanted::from_query(query.as_bytes()), None, "{query}");
        }
        for query in [
            "status=600",
            "every=0",
            "delay=600001",
            "delay=x",
            "delay=2ms..1ms",
            "delay=1..",
            "delay=1..600001",
            "delay=lognormal:2ms",
            "delay=lognormal:2ms:5.1",
            "delay=lognormal:2ms:1.",
            "delay=lognormal:2ms:1.0001",
            "delay=lognormal:x:1",
            "delay=normal:2ms:1",
            "beyond=0",
            "beyond=x",
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

    /// Returns 10,000 delays as a query specifies them, from the shortest to the longest,
    /// microseconds.
    fn delays(query: &str) -> Vec<u64> {
        let (wanted, mut random) = (Wanted::from_query(query.as_bytes()).unwrap(), Random::new(1));
        let mut all: Vec<u64> =
            (1..=10_000).map(|nth| wanted.cost_of(nth, &mut random).delay_us).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn delays_have_the_distribution_that_is_asked_for() {
        let even = delays("delay=100ms..600ms");
        assert!(even[0] >= 100_000 && even[9_999] <= 600_000, "{} {}", even[0], even[9_999]);
        assert!(
            (340_000..360_000).contains(&even[5_000]) && even[9_999] > 590_000,
            "{}",
            even[5_000]
        );
        assert_eq!(delays("delay=3..3"), vec![3_000; 10_000]);
        let heavy = delays("delay=lognormal:2ms:1.5");
        // Quantiles of exp(1.5 z) times 2 ms: 0.29, 2 and 13.7 ms at 10, 50 and 90 %, 65.5 ms at 99
        // %.
        for (at, expected_us) in
            [(1_000, 292.0), (5_000, 2_000.0), (9_000, 13_670.0), (9_900, 65_540.0)]
        {
            let ratio = heavy[at] as f64 / expected_us;
            assert!((0.85..1.15).contains(&ratio), "{at}: {} instead of {expected_us}", heavy[at]);
        }
        let some = delays("delay=100ms..600ms&every=20");
        assert_eq!(some.iter().filter(|us| **us > 0).count(), 500, "5 % are slow");
    }

    #[test]
    fn a_server_that_waits_for_a_lock_is_slower_with_more_than_it_has_room_for() {
        let of = |at_work| slowed_us(20_000, at_work, 32);
        assert_eq!([1, 32, 64, 128].map(of), [20_000, 20_000, 80_000, 320_000]);
        assert_eq!(slowed_us(20_000, u64::MAX, 1), DELAY_US_MAX);
    }
}
