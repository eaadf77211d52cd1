//! Checks of text values of socket options, and their meaning as numbers.

use weir_proxy::plan::Keepalive;

use crate::units::{parse_size, parse_time};

/// Longest name of an interface (linux/if.h: IFNAMSIZ, without the final zero).
const DEVICE_BYTES_MAX: usize = 15;
/// Rates, bits a second.
const RATES: [f64; 2] = [8e3, 100e9];

/// The name of an interface.
pub(crate) fn device(text: &str) -> Result<String, String> {
    let fine = |c: char| c.is_ascii_graphic() && c != '/' && c != ':';
    if text.is_empty()
        || text.len() > DEVICE_BYTES_MAX
        || !text.chars().all(fine)
        || matches!(text, "." | "..")
    {
        return Err(format!(
            "a name must have 1 to {DEVICE_BYTES_MAX} letters, digits or signs, such as eth1"
        ));
    }
    Ok(text.to_owned())
}

/// A mark, in its decimal form.
pub(crate) fn mark(text: &str) -> Result<String, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) if !digits.starts_with('+') => u32::from_str_radix(digits, 16).ok(),
        _ if text.starts_with('+') => None,
        _ => text.parse().ok(),
    };
    match number {
        Some(0) => Err("0 is not a mark: leave the option out".to_owned()),
        Some(number) => Ok(number.to_string()),
        None => {
            Err("a mark must be a number from 1 to 4294967295, also written as 0x10".to_owned())
        }
    }
}

/// Code points by their names (RFC 2474, RFC 2597, RFC 3246, RFC 5865, RFC 8622).
const CODE_POINTS: [(&str, u64); 23] = [
    ("cs0", 0),
    ("le", 1),
    ("cs1", 8),
    ("af11", 10),
    ("af12", 12),
    ("af13", 14),
    ("cs2", 16),
    ("af21", 18),
    ("af22", 20),
    ("af23", 22),
    ("cs3", 24),
    ("af31", 26),
    ("af32", 28),
    ("af33", 30),
    ("cs4", 32),
    ("af41", 34),
    ("af42", 36),
    ("af43", 38),
    ("cs5", 40),
    ("va", 44),
    ("ef", 46),
    ("cs6", 48),
    ("cs7", 56),
];

/// Returns a code point as a number.
pub(crate) fn code_point(text: &str) -> Option<u64> {
    let named = CODE_POINTS.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    named.or_else(|| text.parse().ok().filter(|number| digits && *number < 64))
}

/// A code point, as written.
pub(crate) fn dscp(text: &str) -> Result<String, String> {
    let text = text.to_ascii_lowercase();
    match code_point(&text) {
        Some(_) => Ok(text),
        None => {
            Err("a code point must be a number from 0 to 63, or a name such as ef, af21, cs1 or le"
                .to_owned())
        }
    }
}

/// Returns a rate in bytes a second.
pub(crate) fn bytes_per_second(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!("`{text}` is not a rate: write it like 20Mbit/s, or like 2MiB for bytes a second")
    };
    let rate = text.strip_suffix("/s").unwrap_or(text);
    let Some(amount) = rate.strip_suffix("bit") else {
        let bytes = parse_size(rate).map_err(|_| wrong())?;
        return within(bytes as f64 * 8.0).map(|_| bytes);
    };
    let (digits, factor) = match amount.as_bytes().last() {
        Some(b'k' | b'K') => (&amount[..amount.len() - 1], 1e3),
        Some(b'M' | b'm') => (&amount[..amount.len() - 1], 1e6),
        Some(b'G' | b'g') => (&amount[..amount.len() - 1], 1e9),
        _ => (amount, 1.0),
    };
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit())
        && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = digits.parse().ok().filter(|_| is_number).ok_or_else(wrong)?;
    within(number * factor).map(|bits| (bits / 8.0) as u64)
}

fn within(bits: f64) -> Result<f64, String> {
    match (RATES[0]..=RATES[1]).contains(&bits) {
        true => Ok(bits),
        false => Err("out of range: a rate is 8kbit/s to 100Gbit/s".to_owned()),
    }
}

/// A rate, as written.
pub(crate) fn rate(text: &str) -> Result<String, String> {
    bytes_per_second(text).map(|_| text.to_owned())
}

/// The defaults of omitted values for keepalive probes: the idle time before the first, the time
/// between two, seconds; and the number without a reply.
const ASKING: (u16, u16, u8) = (60, 10, 6);

/// Parses when the other side is probed.
pub(crate) fn asking(text: &str) -> Result<Keepalive, String> {
    if text == "off" {
        return Ok(Keepalive::Off);
    }
    let parts: Vec<&str> = text.split(':').collect();
    if text.is_empty() || text == "on" || parts.len() > 3 {
        return Err("write `off`, or idle time, interval and number of probes, such as 60s:10s:6"
            .to_owned());
    }
    let part = |at: usize| parts.get(at).copied().filter(|part| !part.is_empty());
    let seconds = |at: usize, usual: u16| match part(at) {
        None => Ok(usual),
        Some(part) => match parse_time(part)? {
            us if us % 1_000_000 != 0 => {
                Err(format!("`{part}`: the kernel counts whole seconds here"))
            }
            us => u16::try_from(us / 1_000_000)
                .ok()
                .filter(|seconds| (1..=Keepalive::SECONDS_MAX).contains(seconds))
                .ok_or_else(|| {
                    format!("`{part}` is out of range: 1s to {}s", Keepalive::SECONDS_MAX)
                }),
        },
    };
    let (idle_s, interval_s) = (seconds(0, ASKING.0)?, seconds(1, ASKING.1)?);
    let count = |part: &str| {
        let probes =
            part.parse().ok().filter(|probes| (1..=Keepalive::PROBES_MAX).contains(probes));
        probes.filter(|_| !part.starts_with('+'))
    };
    let probes = part(2).map_or(Some(ASKING.2), count);
    let probes = probes.ok_or_else(|| {
        format!("the number of probes must be from 1 to {}", Keepalive::PROBES_MAX)
    })?;
    Ok(Keepalive::Ask { idle_s, interval_s, probes })
}

/// The time of probes, as written.
pub(crate) fn keepalive(text: &str) -> Result<String, String> {
    asking(text).map(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    //! Proves: values have the written meaning, and all others are refused. How: tables, and that
    //! numbers of code points are unique and in order.

    use super::*;

    #[test]
    fn texts() {
        let good =
            |found: Result<String, String>, wanted: &str| assert_eq!(found.as_deref(), Ok(wanted));
        good(device("eth1.7@x"), "eth1.7@x");
        good(mark("7"), "7");
        good(mark("0x10"), "16");
        good(mark("4294967295"), "4294967295");
        good(dscp("AF21"), "af21");
        good(dscp("63"), "63");
        for text in ["", ".", "a/b", "a b", "sixteen-letters-", "a:1"] {
            assert!(device(text).is_err(), "{text}");
        }
        for text in ["", "0", "-1", "+1", "0x", "0x+1", "4294967296", "a"] {
            assert!(mark(text).is_err(), "{text}");
        }
        for text in ["", "64", "-1", "+1", "af14", "ef "] {
            assert!(dscp(text).is_err(), "{text}");
        }
        assert!(CODE_POINTS.is_sorted_by(|one, other| one.1 < other.1));
    }

    #[test]
    fn times_to_ask() {
        let ask = |idle_s, interval_s, probes| Ok(Keepalive::Ask { idle_s, interval_s, probes });
        assert_eq!(asking("off"), Ok(Keepalive::Off));
        for (text, wanted) in [
            ("60s:10s:6", ask(60, 10, 6)),
            ("1m30s", ask(90, 10, 6)),
            ("30m::10", ask(1800, 10, 10)),
            (":1s", ask(60, 1, 6)),
            ("::127", ask(60, 10, 127)),
            ("32767s:32767s:1", ask(32_767, 32_767, 1)),
        ] {
            assert_eq!(asking(text), wanted, "{text}");
        }
        for text in [
            "",
            "on",
            "60",
            "500ms",
            "0s",
            "32768s",
            "1d",
            "1s:0s",
            "1s:1s:0",
            "::128",
            "::+6",
            "::x",
            "1s:1s:1:1",
            "1s,1s",
        ] {
            assert!(asking(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates() {
        for (text, bytes) in [
            ("20Mbit/s", 2_500_000),
            ("20mbit", 2_500_000),
            ("1.5Gbit/s", 187_500_000),
            ("8000bit/s", 1_000),
            ("2MiB", 2 << 20),
            ("2MiB/s", 2 << 20),
            ("1000", 1_000),
        ] {
            assert_eq!(bytes_per_second(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "bit",
            "Mbit/s",
            "-1Mbit/s",
            "1e9bit/s",
            "20MB/s",
            "7kbit/s",
            "101Gbit/s",
            "20M",
            "nanbit",
        ] {
            assert!(bytes_per_second(text).is_err(), "{text}");
        }
    }
}
