//! Numbers for people: short, in the unit that fits. Pure.

use std::time::Duration;

/// Returns a count in at most five characters: `999`, `9999`, `12.3k`, `999k`, `1.2M`.
pub(crate) fn count(value: u64) -> String {
    scaled(value as f64, 0)
}

/// Returns bytes, as a count: `999B`, `12.3kB`.
pub(crate) fn bytes(value: u64) -> String {
    count(value) + "B"
}

/// Returns a rate: as a count, with one decimal place below ten.
pub(crate) fn rate(value: f64) -> String {
    scaled(value, usize::from(value < 9.95 && value > 0.0))
}

fn scaled(value: f64, digits: usize) -> String {
    if value < 9999.5 {
        return format!("{value:.digits$}");
    }
    let units = ["k", "M", "G", "T", "P", "E"];
    let mut value = value / 1000.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    let digits = usize::from(value < 99.95);
    format!("{value:.digits$}{}", units[unit])
}

/// Returns a response time in at most six characters: `85us`, `1.2ms`, `340ms`, `12.3s`, `4m10s`.
/// None: a dash.
pub(crate) fn time(us: Option<u64>) -> String {
    let Some(us) = us else { return "-".to_owned() };
    let us = us as f64;
    match us {
        _ if us < 999.5 => format!("{us:.0}us"),
        _ if us < 9_950.0 => format!("{:.1}ms", us / 1e3),
        _ if us < 999_500.0 => format!("{:.0}ms", us / 1e3),
        _ if us < 99_950_000.0 => format!("{:.1}s", us / 1e6),
        _ => span(Duration::from_secs_f64(us / 1e6)),
    }
}

/// Returns a long time in its two largest units: `45s`, `4m10s`, `3h4m`, `12d7h`.
pub(crate) fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let two = |large: u64, small: u64, names: [&str; 2]| match small {
        0 => format!("{large}{}", names[0]),
        _ => format!("{large}{}{small}{}", names[0], names[1]),
    };
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => two(seconds / 60, seconds % 60, ["m", "s"]),
        3600..86_400 => two(seconds / 3600, seconds / 60 % 60, ["h", "m"]),
        _ => two(seconds / 86_400, seconds / 3600 % 24, ["d", "h"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_rates_are_short() {
        for (value, text) in [
            (0, "0"),
            (9_999, "9999"),
            (10_000, "10.0k"),
            (99_949, "99.9k"),
            (99_950, "100k"),
            (999_499, "999k"),
            (999_500, "1.0M"),
            (12_345_678, "12.3M"),
            (u64::MAX, "18.4E"),
        ] {
            assert_eq!(count(value), text);
        }
        for (value, text) in
            [(0.0, "0"), (0.04, "0.0"), (9.94, "9.9"), (9.96, "10"), (12_345.6, "12.3k")]
        {
            assert_eq!(rate(value), text);
        }
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        for (us, text) in [
            (0, "0us"),
            (999, "999us"),
            (1_000, "1.0ms"),
            (9_949, "9.9ms"),
            (9_950, "10ms"),
            (340_400, "340ms"),
            (999_499, "999ms"),
            (999_500, "1.0s"),
            (60_000_000, "60.0s"),
            (250_000_000, "4m10s"),
        ] {
            assert_eq!(time(Some(us)), text);
        }
        assert_eq!(time(None), "-");
        for (seconds, text) in [(0, "0s"), (60, "1m"), (3_661, "1h1m"), (90_000, "1d1h")] {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
    }
}
