//! Times as people write and read them. Called by the origin's rules and by the verbs of the laboratory.

/// Microseconds of `50`, `50ms`, `2s`, `500us`; a bare number is milliseconds. None when it is nothing of this.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_unit() {
        for (text, expected) in [("5", 5_000), ("5ms", 5_000), ("0", 0), ("2s", 2_000_000), ("7us", 7)] {
            assert_eq!(time_us(text), Some(expected), "{text}");
        }
        for text in ["", "ms", "-1", "1.5s", "5 ms", "5m", "99999999999999999999s", "18446744073709551615s"] {
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
}
