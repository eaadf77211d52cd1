//! HTTP-date in its three forms, as recipients must accept them (RFC 9110 §5.6.7).
//!
//! More lenient than `weir_http::parse_http_date`, which reads only the dates that weir writes:
//! letters in any case, and the name of the day need not match the date, because origins get it
//! wrong. Everything else is exact, so that an invalid date counts as none (RFC 9111 §5.3).

const DAYS: [&[u8]; 7] =
    [b"Sunday", b"Monday", b"Tuesday", b"Wednesday", b"Thursday", b"Friday", b"Saturday"];
const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];
/// Letters of the short name of a day.
const SHORT: usize = 3;
/// Days in 400 years.
const ERA_DAYS: u64 = 146_097;

/// Returns Unix time in seconds of an HTTP-date; a time before 1970 is 0. `now_s`, Unix time in
/// seconds, decides the century of a year with two digits. None: it is no HTTP-date.
pub fn parse_date(text: &[u8], now_s: u64) -> Option<u64> {
    fixdate(text).or_else(|| rfc850(text, now_s)).or_else(|| asctime(text))
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`
fn fixdate(text: &[u8]) -> Option<u64> {
    let rest = text.get(SHORT..).filter(|_| is_day(&text[..SHORT], SHORT))?;
    let rest = rest.strip_prefix(b", ")?;
    let (day, rest) = digits(rest, 2)?;
    let (month, rest) = month(rest.strip_prefix(b" ")?)?;
    let (year, rest) = digits(rest.strip_prefix(b" ")?, 4)?;
    let (second, rest) = time(rest.strip_prefix(b" ")?)?;
    if !rest.eq_ignore_ascii_case(b" GMT") {
        return None;
    }
    unix_time(year, month, day, second)
}

/// `Sunday, 06-Nov-94 08:49:37 GMT`; a year that seems more than 50 years ahead is the last one
/// with these digits.
fn rfc850(text: &[u8], now_s: u64) -> Option<u64> {
    let comma = text.iter().position(|&byte| byte == b',')?;
    let rest = text[comma..].strip_prefix(b", ").filter(|_| is_day(&text[..comma], usize::MAX))?;
    let (day, rest) = digits(rest, 2)?;
    let (month, rest) = month(rest.strip_prefix(b"-")?)?;
    let (short_year, rest) = digits(rest.strip_prefix(b"-")?, 2)?;
    let (second, rest) = time(rest.strip_prefix(b" ")?)?;
    if !rest.eq_ignore_ascii_case(b" GMT") {
        return None;
    }
    let this_year = 1970 + now_s / (ERA_DAYS * 86_400 / 400);
    let year = this_year / 100 * 100 + short_year;
    unix_time(if year > this_year + 50 { year - 100 } else { year }, month, day, second)
}

/// `Sun Nov  6 08:49:37 1994`
fn asctime(text: &[u8]) -> Option<u64> {
    let rest = text.get(SHORT..).filter(|_| is_day(&text[..SHORT], SHORT))?;
    let (month, rest) = month(rest.strip_prefix(b" ")?)?;
    let rest = rest.strip_prefix(b" ")?;
    let (day, rest) = match rest.strip_prefix(b" ") {
        Some(rest) => digits(rest, 1)?,
        None => digits(rest, 2)?,
    };
    let (second, rest) = time(rest.strip_prefix(b" ")?)?;
    let (year, rest) = digits(rest.strip_prefix(b" ")?, 4)?;
    if !rest.is_empty() {
        return None;
    }
    unix_time(year, month, day, second)
}

/// Whether this is the name of a day, or its first `letters`.
fn is_day(text: &[u8], letters: usize) -> bool {
    DAYS.iter().any(|day| day[..day.len().min(letters)].eq_ignore_ascii_case(text))
}

/// Returns the month, 1 to 12, and the text behind it.
fn month(text: &[u8]) -> Option<(u64, &[u8])> {
    let (name, rest) = text.split_at_checked(SHORT)?;
    let at = MONTHS.iter().position(|month| month.eq_ignore_ascii_case(name))?;
    Some((at as u64 + 1, rest))
}

/// Returns seconds of the day from `hh:mm:ss`, and the text behind it. A leap second is allowed.
fn time(text: &[u8]) -> Option<(u64, &[u8])> {
    let (hour, rest) = digits(text, 2)?;
    let (minute, rest) = digits(rest.strip_prefix(b":")?, 2)?;
    let (second, rest) = digits(rest.strip_prefix(b":")?, 2)?;
    (hour < 24 && minute < 60 && second <= 60).then_some((hour * 3600 + minute * 60 + second, rest))
}

/// Returns a number of exactly `count` digits, and the text behind it.
fn digits(text: &[u8], count: usize) -> Option<(u64, &[u8])> {
    let (digits, rest) = text.split_at_checked(count)?;
    let number = digits
        .iter()
        .try_fold(0, |all, &byte| byte.is_ascii_digit().then(|| all * 10 + u64::from(byte - b'0')));
    Some((number?, rest))
}

/// Computed by eras of 400 years that begin on 1 March (Howard Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms").
fn unix_time(year: u64, month: u64, day: u64, second: u64) -> Option<u64> {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days_of_month = match month {
        2 => 28 + u64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if day == 0 || day > days_of_month {
        return None;
    }
    if year < 1970 {
        return Some(0);
    }
    let (year, shifted) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * shifted + 2) / 5 + day - 1;
    Some((days - 719_468) * 86_400 + second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_http::http_date;

    /// 2026-11-28.
    const NOW: u64 = 1_795_824_000;

    #[test]
    fn three_forms_in_any_case() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "sUN, 06 nOV 1994 08:49:37 gmt",
            "Thu, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse_date(text.as_bytes(), NOW), Some(784_111_777), "{text}");
        }
        assert_eq!(parse_date(b"Sun Nov 16 08:49:37 1994", NOW), Some(784_111_777 + 864_000));
    }

    /// RFC 9110 §5.6.7: more than 50 years ahead is in the past.
    #[test]
    fn years_with_two_digits() {
        let year = |text: &str| parse_date(text.as_bytes(), NOW).map(|s| 1970 + s / 31_556_952);
        assert_eq!(year("Thursday, 18-Aug-50 02:01:18 GMT"), Some(2050));
        assert_eq!(year("Thursday, 18-Aug-76 02:01:18 GMT"), Some(2076));
        assert_eq!(year("Thursday, 18-Aug-77 02:01:18 GMT"), Some(1977));
    }

    #[test]
    fn what_is_no_date() {
        for text in [
            "",
            "0",
            "-1",
            "Thu, 18 Aug 2050 02:01:18 UTC",
            "Thu, 18 Aug 2050 02:01:18 AEST",
            "Thu, 18 Aug 2050 02:01:18 GMT ",
            "Thu, 18 Aug 50 02:01:18 GMT",
            "Thu 18 Aug 2050 02:01:18 GMT",
            "Thu, 18  Aug  2050 02:01:18 GMT",
            "Thu, 18-Aug-2050 02:01:18 GMT",
            "Thu, 18 Aug 2050 02.01.18 GMT",
            "Thu, 18 Aug 2050 2:01:18 GMT",
            "Thu, 18 Aug 2050 24:01:18 GMT",
            "Thu, 18 Aug 2050 02:60:18 GMT",
            "Thu, 18 Aug 2050 02:01:61 GMT",
            "Thu, 00 Aug 2050 02:01:18 GMT",
            "Thu, 29 Feb 2050 02:01:18 GMT",
            "Thu, 31 Apr 2050 02:01:18 GMT",
            "Thu, 18 Avg 2050 02:01:18 GMT",
            "Xyz, 18 Aug 2050 02:01:18 GMT",
            "Thu, 18-Aug-50 02:01:18 GMT2",
            "Thurs, 18-Aug-50 02:01:18 GMT",
            "Thu Aug 8 02:01:18 2050",
            "Thu Aug  8 02:01:18 2050 GMT",
        ] {
            assert_eq!(parse_date(text.as_bytes(), NOW), None, "{text}");
        }
        assert_eq!(parse_date(b"Wed, 31 Dec 1969 23:59:59 GMT", NOW), Some(0));
        assert_eq!(parse_date(b"Sat, 01 Jan 0000 00:00:00 GMT", NOW), Some(0));
        assert_eq!(parse_date(b"Fri, 31 Dec 9999 23:59:60 GMT", NOW), Some(253_402_300_800));
    }

    proptest! {
        #[test]
        fn what_we_write_is_read(seconds in 0..253_402_300_800u64) {
            prop_assert_eq!(parse_date(&http_date(seconds), NOW), Some(seconds));
        }

        #[test]
        fn no_cut_is_a_date(seconds in 0..253_402_300_800u64, len in 0usize..29) {
            prop_assert_eq!(parse_date(&http_date(seconds)[..len], NOW), None);
        }

        #[test]
        fn anything_is_read(
            text in proptest::collection::vec(any::<u8>(), 0..40),
            now in 0..1u64 << 40,
        ) {
            let _ = parse_date(&text, now);
        }
    }
}
