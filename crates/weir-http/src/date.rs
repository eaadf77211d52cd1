//! The Date field's format. The caller has the clock (RFC 9110 §5.6.7).

const DAYS: &[u8; 21] = b"ThuFriSatSunMonTueWed";
const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
/// 9999-12-31T23:59:59Z, the last second that four digits of a year can name.
const SECONDS_MAX: u64 = 253_402_300_799;

/// IMF-fixdate of `seconds_since_epoch` (Unix time, seconds), such as `Sun, 06 Nov 1994 08:49:37
/// GMT`. Times beyond the year 9999 give its last second.
pub fn http_date(seconds_since_epoch: u64) -> [u8; 29] {
    let seconds = seconds_since_epoch.min(SECONDS_MAX);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let mut text = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    let weekday = (days % 7) as usize * 3;
    text[..3].copy_from_slice(&DAYS[weekday..weekday + 3]);
    two_digits(&mut text[5..7], day);
    let name = (month as usize - 1) * 3;
    text[8..11].copy_from_slice(&MONTHS[name..name + 3]);
    two_digits(&mut text[12..14], year / 100);
    two_digits(&mut text[14..16], year % 100);
    two_digits(&mut text[17..19], second / 3600);
    two_digits(&mut text[20..22], second / 60 % 60);
    two_digits(&mut text[23..25], second % 60);
    text
}

/// Returns the Unix time in seconds of an IMF-fixdate; None: it is not one, or one that
/// [`http_date`] does not write.
pub fn parse_http_date(text: &[u8]) -> Option<u64> {
    let text: &[u8; 29] = text.try_into().ok()?;
    let month = 1 + MONTHS.chunks(3).position(|name| name == &text[8..11])? as u64;
    let (year, day) = (100 * number(&text[12..14])? + number(&text[14..16])?, number(&text[5..7])?);
    // Years that begin with March, as in `civil`.
    let (year, shifted_month) =
        if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days = 365 * year + year / 4 - year / 100
        + year / 400
        + (153 * shifted_month + 2) / 5
        + day.checked_sub(1)?;
    let (hour, minute, second) =
        (number(&text[17..19])?, number(&text[20..22])?, number(&text[23..25])?);
    let seconds = days.checked_sub(719_468)? * 86_400 + hour * 3600 + minute * 60 + second;
    (http_date(seconds) == *text).then_some(seconds)
}

fn number(digits: &[u8]) -> Option<u64> {
    digits
        .iter()
        .try_fold(0, |all, digit| Some(10 * all + u64::from(char::from(*digit).to_digit(10)?)))
}

fn two_digits(place: &mut [u8], value: u64) {
    place[0] = b'0' + (value / 10) as u8;
    place[1] = b'0' + (value % 10) as u8;
}

/// Year, month and day from days since 1970-01-01, by eras of 400 years that begin on 1 March (the
/// method described by Howard Hinnant in "chrono-Compatible Low-Level Date Algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates() {
        let cases = [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (951_868_799, "Tue, 29 Feb 2000 23:59:59 GMT"),
            (1_709_251_199, "Thu, 29 Feb 2024 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (SECONDS_MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
            (u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ];
        for (seconds, text) in cases {
            assert_eq!(std::str::from_utf8(&http_date(seconds)), Ok(text));
            assert_eq!(parse_http_date(text.as_bytes()), Some(seconds.min(SECONDS_MAX)));
        }
    }

    #[test]
    fn other_texts_are_no_dates() {
        for text in [
            "",
            "Thu, 01 Jan 1970 00:00:00 GM",
            "Fri, 01 Jan 1970 00:00:00 GMT",
            "Thu, 01 Jan 1969 00:00:00 GMT",
            "Thu, 00 Jan 1970 00:00:00 GMT",
            "Thu, 01 jan 1970 00:00:00 GMT",
            "Thu, 01 Jan 0000 00:00:00 GMT",
            "Thu, 01 Jan 1970 00:60:00 GMT",
            "Thu, 01 Jan 1970 0x:00:00 GMT",
            "Thu,+01 Jan 1970 00:00:00 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
        ] {
            assert_eq!(parse_http_date(text.as_bytes()), None, "{text}");
        }
        for seconds in (0..SECONDS_MAX).step_by(86_399 * 997) {
            assert_eq!(parse_http_date(&http_date(seconds)), Some(seconds));
        }
    }

    /// Counts the days of 500 years one by one beside the formula.
    #[test]
    fn every_day_follows_the_one_before() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..182_625 {
            assert_eq!(civil(days), (year, month, day));
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = match month {
                2 => 28 + u64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > length {
                (day, month) = (1, month + 1);
            }
            if month > 12 {
                (month, year) = (1, year + 1);
            }
        }
    }
}
