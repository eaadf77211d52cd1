//! Times and sizes in readable form: `10s`, `1h30m`, `64KiB`. Called by the option table; bound:
//! u64.

/// Microseconds in each unit of time, largest first.
const TIMES: [(&str, u64); 6] = [
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("us", 1),
];

/// Bytes in each unit of size, largest first.
const SIZES: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Reads a time such as `250ms` or `1h30m`; the result is in microseconds.
///
/// # Errors
/// The mistake in it, for the user.
pub fn parse_time(text: &str) -> Result<u64, String> {
    let mut rest = text;
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (number, unit, after) = split(rest, "a time", "10s, 500ms or 1h30m")?;
        let Some((_, scale)) = TIMES.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("`{unit}` is not a unit of time: use us, ms, s, m, h or d"));
        };
        total = number
            .checked_mul(*scale)
            .and_then(|us| total.checked_add(us))
            .ok_or("the time is too long")?;
        rest = after;
    }
    if text.is_empty() {
        Err("a time can't be empty: write it like 10s".to_owned())
    } else {
        Ok(total)
    }
}

/// Reads a size such as `64KiB`; the result is in bytes. A bare number counts bytes.
///
/// # Errors
/// The mistake in it, for the user.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map_err(|_| "the size is too large".to_owned());
    }
    let (number, unit, after) = split(text, "a size", "64KiB or 10MiB")?;
    if !after.is_empty() {
        return Err(format!("`{text}` is not a size: write it like 64KiB"));
    }
    let Some((_, scale)) = SIZES.iter().find(|(name, _)| *name == unit) else {
        return Err(
            match SIZES
                .iter()
                .find(|(name, _)| unit.len() < 4 && name[..1].eq_ignore_ascii_case(&unit[..1]))
            {
                Some((name, _)) => format!("`{unit}` is not a unit of size: use {name}"),
                None => format!("`{unit}` is not a unit of size: use B, KiB, MiB, GiB or TiB"),
            },
        );
    };
    number.checked_mul(*scale).ok_or_else(|| "the size is too large".to_owned())
}

/// Cuts `10sREST` into 10, `s` and `REST`.
fn split<'a>(text: &'a str, what: &str, example: &str) -> Result<(u64, &'a str, &'a str), String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let letters = text[digits..].bytes().take_while(u8::is_ascii_alphabetic).count();
    if digits == 0 || (letters == 0 && digits < text.len()) {
        return Err(format!("`{text}` is not {what}: write it like {example}"));
    }
    if letters == 0 {
        return Err(format!("{what} needs a unit: write it like {example}"));
    }
    let number = text[..digits].parse().map_err(|_| format!("{what} cannot be this large"))?;
    Ok((number, &text[digits..digits + letters], &text[digits + letters..]))
}

/// Writes microseconds in the largest unit that is exact.
pub fn time_text(us: u64) -> String {
    exact(us, &TIMES, "0s")
}

/// Writes bytes in the largest unit that is exact.
pub(crate) fn size_text(bytes: u64) -> String {
    exact(bytes, &SIZES, "0B")
}

fn exact(value: u64, units: &[(&str, u64)], zero: &str) -> String {
    let fits = units.iter().find(|(_, scale)| value.is_multiple_of(*scale));
    match fits {
        Some((name, scale)) if value > 0 => format!("{}{name}", value / scale),
        _ => zero.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times() {
        assert_eq!(parse_time("10s"), Ok(10_000_000));
        assert_eq!(parse_time("1h30m"), Ok(5_400_000_000));
        assert_eq!(parse_time("250us"), Ok(250));
        for bad in [
            "",
            "10",
            "s",
            "10x",
            "10 s",
            "-1s",
            "1.5s",
            "10s5",
            "99999999999999999999s",
            "999999999999d",
        ] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
        assert!(parse_time("10").unwrap_err().contains("needs a unit"));
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("64KiB"), Ok(65536));
        assert_eq!(parse_size("512"), Ok(512));
        for bad in ["", "KiB", "64K", "64kb", "64KiB1", "1KiB1KiB", "99999999TiB", "-1"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert!(parse_size("64kb").unwrap_err().contains("use KiB"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn text_reads_back(value in any::<u64>()) {
            prop_assert_eq!(parse_time(&time_text(value)), Ok(value));
            prop_assert_eq!(parse_size(&size_text(value)), Ok(value));
        }

        #[test]
        fn arbitrary_text_never_panics(text in "\\PC{0,12}") {
            let _ = parse_time(&text);
            let _ = parse_size(&text);
        }
    }
}
