//! Formats seconds since 1970 as date and time in a zone, once a second.
//!
//! Called by the renderer. The offset of the zone is an argument: the operating system knows the
//! rules of zones.

use std::io::Write;

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Bytes of an ISO 8601 time in front of the milliseconds.
const ISO_SECONDS: usize = 19;

/// A second in the formats of lines.
#[derive(Debug, Default)]
pub(super) struct Stamp {
    /// Seconds since 1970 and offset of the zone, once they were written.
    of: Option<(i64, i32)>,
    local: Vec<u8>,
    iso: Vec<u8>,
}

impl Stamp {
    /// Sets the second, in a zone `zone_s` seconds east of Greenwich.
    pub(super) fn set(&mut self, unix_s: i64, zone_s: i32) {
        if self.of != Some((unix_s, zone_s)) {
            self.of = Some((unix_s, zone_s));
            self.write(unix_s, zone_s);
        }
    }

    fn write(&mut self, unix_s: i64, zone_s: i32) {
        let shown_s = unix_s.saturating_add(i64::from(zone_s));
        let (year, month, day) = civil(shown_s.div_euclid(86_400));
        let of_day = shown_s.rem_euclid(86_400);
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        let sign = if zone_s < 0 { '-' } else { '+' };
        let (east_h, east_m) = (zone_s.abs() / 3600, zone_s.abs() / 60 % 60);
        let name = MONTHS[month as usize - 1];
        self.local.clear();
        self.iso.clear();
        // Writing to a vector cannot fail.
        let _ = write!(
            self.local,
            "{day:02}/{name}/{year:04}:{hour:02}:{minute:02}:{second:02} \
                {sign}{east_h:02}{east_m:02}"
        );
        let _ = write!(
            self.iso,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}\
                {sign}{east_h:02}:{east_m:02}"
        );
    }

    /// `21/Nov/2026:22:40:56 +0100`.
    pub(super) fn local(&self) -> &[u8] {
        &self.local
    }

    /// `2026-11-21T22:40:56+01:00`.
    pub(super) fn iso(&self) -> &[u8] {
        &self.iso
    }

    /// Returns the ISO 8601 time in two parts, with the place for milliseconds between them.
    pub(super) fn iso_parts(&self) -> (&[u8], &[u8]) {
        self.iso.split_at(ISO_SECONDS.min(self.iso.len()))
    }
}

/// Returns year, month (1-12) and day (1-31) of a day since 1970, Gregorian, for years 0 to 9999;
/// clamped outside.
fn civil(day: i64) -> (i64, i64, i64) {
    // Days of years that begin with March, in eras of 400 years (146,097 days); Howard Hinnant,
    // `civil_from_days`.
    let day = day.clamp(-719_162, 2_932_896) + 719_468;
    let (era, of_era) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    //! Proves: dates are right from year 1 to 9999, and stamps have their format in any zone. How:
    //! every day against counting; examples made with date(1).

    use super::*;

    #[test]
    fn every_day_follows_the_one_before() {
        let leap = |year: i64| year % 4 == 0 && year % 100 != 0 || year % 400 == 0;
        let days = |year, month| match month {
            4 | 6 | 9 | 11 => 30,
            2 => 28 + i64::from(leap(year)),
            _ => 31,
        };
        let (mut year, mut month, mut day) = (1, 1, 1);
        for number in -719_162..=2_932_896 {
            assert_eq!(civil(number), (year, month, day));
            if number == 0 {
                assert_eq!((year, month, day), (1970, 1, 1));
            }
            day += 1;
            if day > days(year, month) {
                (day, month) = (1, month + 1);
            }
            if month > 12 {
                (month, year) = (1, year + 1);
            }
        }
        assert_eq!((year, month, day), (10_000, 1, 1));
    }

    #[test]
    fn forms() {
        let mut stamp = Stamp::default();
        for (unix_s, zone_s, local, iso) in [
            (1_795_297_256, 3600, "21/Nov/2026:22:40:56 +0100", "2026-11-21T22:40:56+01:00"),
            (951_782_400, 0, "29/Feb/2000:00:00:00 +0000", "2000-02-29T00:00:00+00:00"),
            (951_782_400, -12_600, "28/Feb/2000:20:30:00 -0330", "2000-02-28T20:30:00-03:30"),
            (-1, 0, "31/Dec/1969:23:59:59 +0000", "1969-12-31T23:59:59+00:00"),
        ] {
            stamp.set(unix_s, zone_s);
            assert_eq!((stamp.local(), stamp.iso()), (local.as_bytes(), iso.as_bytes()));
            assert_eq!(stamp.iso_parts().0, &iso.as_bytes()[..19]);
        }
        stamp.set(i64::MAX, i32::MAX);
        stamp.set(i64::MIN, i32::MIN + 1);
    }
}
