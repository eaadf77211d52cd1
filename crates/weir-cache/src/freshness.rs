//! How long a response is fresh, and how old it is (RFC 9111 §4.2).
//!
//! Lifetimes are whole seconds; ages are counted in microseconds by our own clock, so that a
//! lifetime of one second is exactly that.

use crate::answer::{Answer, Expires};
use crate::directives::Directive;
use crate::list::DELTA_MAX;
use crate::options::Options;

/// Microseconds of a second.
pub(crate) const SECOND_US: u64 = 1_000_000;
/// Statuses that are cacheable by heuristics (RFC 9110 §15.1), without 206 and without errors,
/// which never get a guessed lifetime.
const HEURISTIC: [u16; 6] = [200, 203, 204, 300, 301, 308];
/// The longest guessed lifetime: a day.
const HEURISTIC_MAX_S: u64 = 86_400;

/// The source of a lifetime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LifetimeSource {
    /// The operator forces it.
    Forced,
    /// `s-maxage`.
    SMaxage,
    /// `max-age`.
    MaxAge,
    /// Expires minus Date.
    Expires,
    /// The operator configures one for responses without any.
    Operator,
    /// A tenth of the time since Last-Modified.
    Heuristic,
    /// None exists.
    None,
}

impl LifetimeSource {
    /// Returns a word that explains it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Forced => "forced",
            Self::SMaxage => "s-maxage",
            Self::MaxAge => "max-age",
            Self::Expires => "expires",
            Self::Operator => "operator",
            Self::Heuristic => "heuristic",
            Self::None => "none",
        }
    }

    /// The origin or the operator stated it.
    pub fn is_explicit(self) -> bool {
        !matches!(self, Self::Heuristic | Self::None)
    }
}

/// How long a response is fresh.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lifetime {
    /// Seconds, up to [`DELTA_MAX`]; 0: never.
    pub seconds: u32,
    /// The source.
    pub source: LifetimeSource,
}

/// When a response was requested and arrived, by the clocks of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// When its request was sent, microseconds of the monotonic clock.
    pub requested_us: u64,
    /// When its head arrived, microseconds of the same clock; not before `requested_us`.
    pub received_us: u64,
    /// When its head arrived, Unix time in seconds.
    pub received_s: u64,
}

/// Returns the lifetime of a response (RFC 9111 §4.2.1): s-maxage, max-age, Expires, in this order;
/// an operator's lifetime and the heuristic only if it states none. Errors live at most
/// [`Options::error_lifetime_max_s`].
pub fn lifetime(answer: &Answer, options: &Options, received_s: u64) -> Lifetime {
    let said = stated(answer, options, received_s);
    let max = if answer.is_error() { options.error_lifetime_max_s } else { DELTA_MAX };
    Lifetime { seconds: said.seconds.min(max), ..said }
}

fn stated(answer: &Answer, options: &Options, received_s: u64) -> Lifetime {
    use LifetimeSource as Source;
    let forced =
        Options::of_status(&options.forced_lifetimes, answer.status).map(|s| (s, Source::Forced));
    let s_maxage = answer.directives.s_maxage_s.map(|s| (s, Source::SMaxage));
    let max_age = answer.directives.max_age_s.map(|s| (s, Source::MaxAge));
    let expires = expires_in(answer, received_s).map(|s| (s, Source::Expires));
    let explicit = forced.or(s_maxage).or(max_age).or(expires);
    let operator =
        || Options::of_status(&options.lifetimes, answer.status).map(|s| (s, Source::Operator));
    let guessed = || heuristic(answer, options, received_s).map(|s| (s, Source::Heuristic));
    let (seconds, source) =
        explicit.or_else(operator).or_else(guessed).unwrap_or((0, Source::None));
    Lifetime { seconds, source }
}

/// Returns Expires minus Date, or minus the time of reception without a Date; 0 when it is past or
/// no date.
fn expires_in(answer: &Answer, received_s: u64) -> Option<u32> {
    match answer.expires {
        Expires::Absent => None,
        Expires::Invalid => Some(0),
        Expires::At(at) => Some(saturated(at.saturating_sub(answer.date_s.unwrap_or(received_s)))),
    }
}

/// RFC 9111 §4.2.2: a tenth of the time since the last modification, at most a day. It applies to
/// statuses that are cacheable by heuristics and to responses marked public, but never to errors.
fn heuristic(answer: &Answer, options: &Options, received_s: u64) -> Option<u32> {
    if !options.heuristic || answer.is_error() || !may_be_guessed(answer) {
        return None;
    }
    let modified_s = answer.modified_s?;
    let since = answer.date_s.unwrap_or(received_s).saturating_sub(modified_s);
    Some(saturated((since / 10).min(HEURISTIC_MAX_S)))
}

/// The status is cacheable by heuristics, or the response is marked public.
pub(crate) fn may_be_guessed(answer: &Answer) -> bool {
    let is_public = answer.directives.set.has(Directive::Public);
    !answer.is_error() && (is_public || HEURISTIC.contains(&answer.status))
}

/// Returns its age on arrival, microseconds (RFC 9111 §4.2.3, corrected_initial_age): by Date and
/// our clock, or by Age and the delay of the response, whichever is more.
pub fn initial_age_us(answer: &Answer, times: &Times) -> u64 {
    let apparent_s = answer.date_s.map_or(0, |date_s| times.received_s.saturating_sub(date_s));
    let delay_us = times.received_us.saturating_sub(times.requested_us);
    let corrected_us = u64::from(answer.age_s) * SECOND_US + delay_us;
    (apparent_s.min(u64::from(DELTA_MAX)) * SECOND_US).max(corrected_us)
}

fn saturated(seconds: u64) -> u32 {
    u32::try_from(seconds).unwrap_or(DELTA_MAX).min(DELTA_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::{NOW_S, answer};
    use proptest::prelude::*;
    use weir_http::http_date;

    const AT_ONCE: Times =
        Times { requested_us: 5_000_000, received_us: 5_000_000, received_s: NOW_S };

    /// Returns a line with a date `offset` seconds from now.
    fn dated(name: &str, offset: i64) -> &'static str {
        let date = http_date(NOW_S.saturating_add_signed(offset));
        format!("{name}: {}", String::from_utf8_lossy(&date)).leak()
    }

    fn seconds(lines: &[&'static str]) -> (u32, LifetimeSource) {
        let options = Options::default();
        let lifetime = lifetime(&answer(200, lines, &options), &options, NOW_S);
        (lifetime.seconds, lifetime.source)
    }

    /// RFC 9111 §4.2.1
    #[test]
    fn which_lifetime_counts() {
        use LifetimeSource as Source;
        let past = dated("Expires", -7200);
        assert_eq!(seconds(&[]), (0, Source::None));
        assert_eq!(seconds(&["Cache-Control: max-age=3600", past]), (3600, Source::MaxAge));
        assert_eq!(seconds(&["Cache-Control: max-age=3600", "Expires: 0"]), (3600, Source::MaxAge));
        assert_eq!(
            seconds(&["Cache-Control: max-age=0", dated("Expires", 3600)]),
            (0, Source::MaxAge)
        );
        assert_eq!(seconds(&["Cache-Control: s-maxage=1, max-age=3600"]), (1, Source::SMaxage));
        assert_eq!(
            seconds(&["Cache-Control: max-age=0", "Cache-Control: s-maxage=9", past]),
            (9, Source::SMaxage)
        );
        assert_eq!(seconds(&[dated("Expires", 30)]), (30, Source::Expires));
        assert_eq!(seconds(&[dated("Expires", 30), "Date: foo"]), (30, Source::Expires));
        assert_eq!(seconds(&[dated("Expires", 20), dated("Date", 10)]), (10, Source::Expires));
        assert_eq!(seconds(&[dated("Expires", 300), dated("Date", 400)]), (0, Source::Expires));
        assert_eq!(seconds(&[dated("Expires", 0), dated("Date", 0)]), (0, Source::Expires));
        assert_eq!(
            seconds(&["Expires: Sun, 21 Nov 2286 04:46:39 GMT"]),
            (DELTA_MAX, Source::Expires)
        );
        assert_eq!(seconds(&["Expires: x", dated("Last-Modified", -1000)]), (0, Source::Expires));
        assert_eq!(seconds(&["CDN-Cache-Control: a", dated("Expires", 30)]), (0, Source::None));
    }

    /// RFC 9111 §4.2.2, and never for errors.
    #[test]
    fn guesses() {
        use LifetimeSource as Source;
        let modified = dated("Last-Modified", -1000);
        let options = Options::default();
        for status in 200..600 {
            let expected = if HEURISTIC.contains(&status) {
                (100, Source::Heuristic)
            } else {
                (0, Source::None)
            };
            let found = lifetime(&answer(status, &[modified], &options), &options, NOW_S);
            assert_eq!((found.seconds, found.source), expected, "{status}");
            let public = lifetime(
                &answer(status, &[modified, "Cache-Control: public"], &options),
                &options,
                NOW_S,
            );
            assert_eq!(public.source == Source::Heuristic, status < 400, "{status}");
        }
        assert_eq!(seconds(&[dated("Last-Modified", -900_000)]), (86_400, Source::Heuristic));
        assert_eq!(seconds(&[dated("Last-Modified", 900)]), (0, Source::Heuristic));
        assert_eq!(seconds(&[modified, dated("Date", -500)]), (50, Source::Heuristic));
        let off = Options { heuristic: false, ..Options::default() };
        assert_eq!(lifetime(&answer(200, &[modified], &off), &off, NOW_S).source, Source::None);
    }

    #[test]
    fn what_the_operator_says() {
        use LifetimeSource as Source;
        let options = Options {
            lifetimes: vec![(200, 60), (404, 60)],
            forced_lifetimes: vec![(301, 70)],
            error_lifetime_max_s: 20,
            ..Options::default()
        };
        let of = |status, lines: &[&'static str]| {
            let found = lifetime(&answer(status, lines, &options), &options, NOW_S);
            (found.seconds, found.source)
        };
        assert_eq!(of(200, &[dated("Last-Modified", -1000)]), (60, Source::Operator));
        assert_eq!(of(200, &["Cache-Control: max-age=1"]), (1, Source::MaxAge));
        assert_eq!(of(301, &["Cache-Control: max-age=1"]), (70, Source::Forced));
        assert_eq!(of(404, &[]), (20, Source::Operator));
        assert_eq!(of(500, &["Cache-Control: max-age=3600"]), (20, Source::MaxAge));
        assert_eq!(of(399, &["Cache-Control: max-age=3600"]), (3600, Source::MaxAge));
    }

    /// RFC 9111 §4.2.3
    #[test]
    fn ages_when_they_come() {
        let age = |lines: &[&'static str], times: &Times| {
            initial_age_us(&answer(200, lines, &Options::default()), times)
        };
        let slow = Times { requested_us: 2_500_000, ..AT_ONCE };
        assert_eq!(age(&[], &AT_ONCE), 0);
        assert_eq!(age(&[], &slow), 2_500_000);
        assert_eq!(age(&[dated("Date", -7200)], &AT_ONCE), 7200 * SECOND_US);
        assert_eq!(age(&[dated("Date", 10), "Age: 15"], &slow), 17_500_000);
        assert_eq!(age(&[dated("Date", -10), "Age: 25"], &AT_ONCE), 25 * SECOND_US);
        assert_eq!(age(&[dated("Date", -100), "Age: 25"], &slow), 100 * SECOND_US);
        assert_eq!(
            age(&["Date: Thu, 01 Jan 1970 00:00:00 GMT"], &AT_ONCE),
            NOW_S.min(u64::from(DELTA_MAX)) * SECOND_US
        );
        assert_eq!(age(&["Age: 99999999999"], &slow), u64::from(DELTA_MAX) * SECOND_US + 2_500_000);
    }

    proptest! {
        /// The formulas of RFC 9111 §4.2, §4.2.1 and §4.2.3 as they are written there.
        #[test]
        fn like_the_rfc(
            s_maxage in prop::option::of(0u32..100),
            max_age in prop::option::of(0u32..100),
            expires in prop::option::of(-50i64..100),
            date in prop::option::of(-50i64..50),
            age in prop::option::of(0u32..100),
            delay_us in 0u64..9_000_000,
            later_us in 0u64..90_000_000,
        ) {
            let said = [
                s_maxage.map(|s| format!("Cache-Control: s-maxage={s}")),
                max_age.map(|s| format!("Cache-Control: max-age={s}")),
                age.map(|s| format!("Age: {s}")),
            ];
            let mut lines: Vec<&'static str> =
                said.into_iter().flatten().map(|line| &*line.leak()).collect();
            lines.extend(expires.map(|offset| dated("Expires", offset)));
            lines.extend(date.map(|offset| dated("Date", offset)));
            let times = Times {
                requested_us: 1_000_000,
                received_us: 1_000_000 + delay_us,
                received_s: NOW_S,
            };
            let answer = answer(200, &lines, &Options::default());
            let terms = crate::storable::Terms::of(&answer, &Options::default(), &times);

            let second = 1_000_000i128;
            let now_s = i128::from(NOW_S);
            let date_value = now_s + i128::from(date.unwrap_or(0));
            let lifetime = match (s_maxage, max_age, expires) {
                (Some(seconds), ..) | (None, Some(seconds), _) => i128::from(seconds),
                (None, None, Some(offset)) => now_s + i128::from(offset) - date_value,
                (None, None, None) => 0,
            };
            let apparent_age = (now_s - date_value).max(0) * second;
            let corrected_age_value = i128::from(age.unwrap_or(0)) * second + i128::from(delay_us);
            let current_age = apparent_age.max(corrected_age_value) + i128::from(later_us);
            let now_us = times.received_us + later_us;
            prop_assert_eq!(i128::from(terms.age_us(now_us)), current_age);
            prop_assert_eq!(
                crate::usage::is_fresh(&terms, now_us),
                lifetime * second > current_age
            );
        }
    }
}
