//! Times and numbers as people write and read them. Called by the origin's rules, by reports and by
//! the verbs of the laboratory.

/// Reads the microseconds of `50`, `50ms`, `2s`, `500us`; a bare number is milliseconds. None for
/// anything else.
pub fn time_us(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let factor = match &text[split..] {
        "us" => 1,
        "" | "ms" => 1000,
        "s" => 1_000_000,
        _ => return None,
    };
    text[..split].parse::<u64>().ok()?.checked_mul(factor)
}

/// Nanoseconds with three digits in the unit that fits: `831 ns`, `12.4 us`, `1.04 s`.
pub fn show_ns(ns: u64) -> String {
    let (unit, value) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..999_500 => ("us", ns as f64 / 1e3),
        999_500..999_500_000 => ("ms", ns as f64 / 1e6),
        _ => ("s", ns as f64 / 1e9),
    };
    let digits = match value {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

/// A whole number with commas between the thousands.
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

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
    let us = number(digits)
        .map_err(|_| format!("`{text}` is not a duration such as 500ms, 10s or 2m"))?
        * factor;
    if us <= DURATION_US_MAX { Ok(us as u64) } else { Err(format!("`{text}` is more than a day")) }
}

/// Reads a number from 0, with decimals and `k` or `M` if wanted.
///
/// # Errors
/// A text that says what is expected.
pub(crate) fn number(text: &str) -> Result<f64, String> {
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
    fn times_are_read_with_their_unit() {
        for (text, expected) in
            [("5", 5_000), ("5ms", 5_000), ("0", 0), ("2s", 2_000_000), ("7us", 7)]
        {
            assert_eq!(time_us(text), Some(expected), "{text}");
        }
        for text in
            ["", "ms", "-1", "1.5s", "5 ms", "5m", "99999999999999999999s", "18446744073709551615s"]
        {
            assert_eq!(time_us(text), None, "{text}");
        }
    }

    #[test]
    fn three_digits_are_shown() {
        for (ns, expected) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 us"),
            (9_994, "9.99 us"),
            (9_996, "10.0 us"),
            (99_960, "100 us"),
            (999_499, "999 us"),
            (999_500, "1.00 ms"),
            (23_456_789, "23.5 ms"),
            (61_000_000_000, "61.0 s"),
        ] {
            assert_eq!(show_ns(ns), expected, "{ns}");
        }
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(
            [0, 999, 1000, 32_768, 1_000_000].map(grouped),
            ["0", "999", "1,000", "32,768", "1,000,000"]
        );
    }

    #[test]
    fn units_are_read_and_needed() {
        let good = [
            ("250us", 250),
            ("1.5ms", 1500),
            ("10s", 10_000_000),
            ("2m", 120_000_000),
            ("1h", 3_600_000_000),
        ];
        for (text, us) in good {
            assert_eq!(duration_us(text), Ok(us), "{text}");
        }
        for text in ["", "10", "s", "1d", "-1s", "1e3s", "25h", "1.2.3s", "infs", "10 s"] {
            assert!(duration_us(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_plain() {
        assert_eq!(
            (number("250"), number("1.5k"), number("2M")),
            (Ok(250.0), Ok(1500.0), Ok(2_000_000.0))
        );
        for text in ["", "k", "x", "-1", "+1", "1e9", "inf", "nan", "0x1"] {
            assert!(number(text).is_err(), "{text}");
        }
    }
}
