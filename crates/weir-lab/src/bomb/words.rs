//! Durations, numbers and shares as users type them: `250us`, `10s`, `1.5k`, `99%`. Called by the readers of the command line.
//!
//! Bound: a duration is at most a day. Nothing is guessed: a duration without a unit is refused.

/// A day.
const DURATION_US_MAX: f64 = 86_400e6;

/// Reads a duration with its unit: us, ms, s, m or h. Microseconds, from 0 to a day.
///
/// # Errors
/// A text that says what is expected.
pub fn duration_us(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "m" => 60e6,
        "h" => 3600e6,
        _ => return Err(format!("`{text}` is not a duration such as 500ms, 10s or 2m")),
    };
    let us = number(digits).map_err(|_| format!("`{text}` is not a duration such as 500ms, 10s or 2m"))? * factor;
    if us <= DURATION_US_MAX { Ok(us as u64) } else { Err(format!("`{text}` is more than a day")) }
}

/// Reads a number from 0, with decimals and `k` or `M` if wanted.
///
/// # Errors
/// A text that says what is expected.
pub(super) fn number(text: &str) -> Result<f64, String> {
    let (digits, factor) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 1e3),
        Some(b'M') => (&text[..text.len() - 1], 1e6),
        _ => (text, 1.0),
    };
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    match digits.parse::<f64>() {
        Ok(value) if plain => Ok(value * factor),
        _ => Err(format!("`{text}` is not a number such as 250, 1.5k or 2M")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read_and_needed() {
        let good = [("250us", 250), ("1.5ms", 1500), ("10s", 10_000_000), ("2m", 120_000_000), ("1h", 3_600_000_000)];
        for (text, us) in good {
            assert_eq!(duration_us(text), Ok(us), "{text}");
        }
        for text in ["", "10", "s", "1d", "-1s", "1e3s", "25h", "1.2.3s", "infs", "10 s"] {
            assert!(duration_us(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_plain() {
        assert_eq!((number("250"), number("1.5k"), number("2M")), (Ok(250.0), Ok(1500.0), Ok(2_000_000.0)));
        for text in ["", "k", "x", "-1", "+1", "1e9", "inf", "nan", "0x1"] {
            assert!(number(text).is_err(), "{text}");
        }
    }
}
