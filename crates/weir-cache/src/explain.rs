//! Explains to operators why a response is fresh or not: the arithmetic of its lifetime and age,
//! line by line (RFC 9111 §4.2).
//!
//! Computed from the numbers that decide, so that the explanation always matches the behaviour.

use std::fmt::Write;

use crate::answer::{Answer, Control, Expires};
use crate::freshness::{LifetimeSource, SECOND_US, lifetime};
use crate::options::Options;
use crate::storable::Terms;
use crate::usage::staleness_us;

/// Returns lines of name and text about a response that is, or would be, stored on terms made with
/// the same options. Age and delay of the response are known only from the terms: the response may
/// have been read from the store. `now_us` is of the monotonic clock.
pub fn explain(
    answer: &Answer,
    terms: &Terms,
    options: &Options,
    now_us: u64,
) -> Vec<(&'static str, String)> {
    vec![
        ("control", control(answer, options)),
        ("lifetime", lifetime_line(answer, terms, options)),
        ("age", age_line(answer, terms, now_us)),
        ("fresh", fresh_line(terms, now_us)),
        ("stale use", stale_line(answer, terms)),
    ]
}

fn control(answer: &Answer, options: &Options) -> String {
    match answer.control {
        Control::CacheControl => "Cache-Control and Expires".to_owned(),
        Control::Targeted(at) => {
            let name = options.targets.get(at).map_or(&b"?"[..], |name| name);
            format!("{}; it overrides Cache-Control and Expires", name.escape_ascii())
        }
    }
}

fn lifetime_line(answer: &Answer, terms: &Terms, options: &Options) -> String {
    let found = lifetime(answer, options, terms.received_s);
    let seconds = found.seconds;
    let mut text = match found.source {
        LifetimeSource::Forced => format!("{seconds} s from its receipt, forced by the operator"),
        LifetimeSource::SMaxage => format!("{seconds} s by s-maxage"),
        LifetimeSource::MaxAge => format!("{seconds} s by max-age"),
        LifetimeSource::Expires if answer.expires == Expires::Invalid => {
            "0 s: Expires is not a single date".to_owned()
        }
        LifetimeSource::Expires => format!("{seconds} s by Expires minus {}", date_name(answer)),
        LifetimeSource::Operator => format!("{seconds} s by the operator, because it states none"),
        LifetimeSource::Heuristic => {
            format!("{seconds} s, a tenth of {} minus Last-Modified", date_name(answer))
        }
        LifetimeSource::None => "none: it states none, and weir cannot estimate one".to_owned(),
    };
    if answer.is_error() && seconds == options.error_lifetime_max_s {
        text.push_str(", the maximum for errors");
    }
    text
}

fn date_name(answer: &Answer) -> &'static str {
    if answer.date_s.is_some() { "Date" } else { "its time of receipt" }
}

fn age_line(answer: &Answer, terms: &Terms, now_us: u64) -> String {
    let apparent_s = answer.date_s.map_or(0, |date_s| terms.received_s.saturating_sub(date_s));
    let mut text = seconds(terms.age_us(now_us));
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        ": {} at receipt, the larger of {apparent_s} s by Date and Age plus the response delay; \
            {} since then",
        seconds(terms.initial_age_us),
        seconds(now_us.saturating_sub(terms.received_us)),
    );
    text
}

fn fresh_line(terms: &Terms, now_us: u64) -> String {
    let end_us = u64::from(terms.lifetime_s) * SECOND_US;
    match staleness_us(terms, now_us) {
        _ if terms.no_cache => "validated before each use: no-cache".to_owned(),
        None => format!("yes, for another {}", seconds(end_us - terms.age_us(now_us))),
        Some(stale_us) => format!("no, stale for {}", seconds(stale_us)),
    }
}

fn stale_line(answer: &Answer, terms: &Terms) -> String {
    if answer.is_error() {
        return "never: it is an error".to_owned();
    }
    if terms.forbids_stale {
        return "forbidden by must-revalidate, proxy-revalidate, s-maxage or no-cache".to_owned();
    }
    format!(
        "{} s while weir fetches it again, {} s while its server fails",
        terms.stale_while_revalidate_s, terms.stale_if_error_s
    )
}

/// Microseconds as seconds with three digits.
fn seconds(us: u64) -> String {
    format!("{}.{:03} s", us / SECOND_US, us % SECOND_US / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::freshness::Times;
    use crate::kit::{NOW_S, answer};

    const TIMES: Times =
        Times { requested_us: 1_000_000, received_us: 1_250_000, received_s: NOW_S };

    /// Returns the explanation of a response `after_s` seconds after it arrived.
    fn said(status: u16, lines: &[&'static str], after_s: u64) -> Vec<String> {
        let options = Options { stale_if_error_s: 5, ..Options::default() };
        let answer = answer(status, lines, &options);
        let terms = Terms::of(&answer, &options, &TIMES);
        let now_us = TIMES.received_us + after_s * SECOND_US;
        let lines = explain(&answer, &terms, &options, now_us);
        lines.into_iter().map(|(name, text)| format!("{name}: {text}")).collect()
    }

    #[test]
    fn a_fresh_answer() {
        assert_eq!(
            said(
                200,
                &["Cache-Control: max-age=60", "Age: 7", "Date: Fri, 27 Nov 2026 23:59:58 GMT"],
                3
            ),
            [
                "control: Cache-Control and Expires",
                "lifetime: 60 s by max-age",
                "age: 10.250 s: 7.250 s at receipt, the larger of 2 s by Date and Age plus the \
                    response delay; 3.000 s since then",
                "fresh: yes, for another 49.750 s",
                "stale use: 0 s while weir fetches it again, 5 s while its server fails",
            ]
        );
    }

    #[test]
    fn other_answers() {
        let of = |status, lines: &[&'static str]| said(status, lines, 100);
        let targeted = of(200, &["CDN-Cache-Control: s-maxage=5"]);
        assert_eq!(
            targeted[0],
            "control: cdn-cache-control; it overrides Cache-Control and Expires"
        );
        assert_eq!(targeted[1], "lifetime: 5 s by s-maxage");
        assert_eq!(targeted[3], "fresh: no, stale for 95.250 s");
        assert_eq!(
            targeted[4],
            "stale use: forbidden by must-revalidate, proxy-revalidate, s-maxage or no-cache"
        );
        let error = of(503, &["Cache-Control: max-age=3600"]);
        assert_eq!(error[1], "lifetime: 10 s by max-age, the maximum for errors");
        assert_eq!(error[4], "stale use: never: it is an error");
        assert_eq!(of(200, &["Expires: 0"])[1], "lifetime: 0 s: Expires is not a single date");
        let expires = of(200, &["Expires: Sat, 28 Nov 2026 00:00:30 GMT"]);
        assert_eq!(expires[1], "lifetime: 30 s by Expires minus its time of receipt");
        let guessed = of(
            200,
            &[
                "Last-Modified: Fri, 27 Nov 2026 23:59:00 GMT",
                "Date: Sat, 28 Nov 2026 00:00:00 GMT",
            ],
        );
        assert_eq!(guessed[1], "lifetime: 6 s, a tenth of Date minus Last-Modified");
        assert_eq!(of(200, &[])[1], "lifetime: none: it states none, and weir cannot estimate one");
        assert_eq!(
            of(200, &["Cache-Control: no-cache"])[3],
            "fresh: validated before each use: no-cache"
        );
    }

    /// The lines state the numbers that decide.
    #[test]
    fn the_same_as_what_decides() {
        for after_s in 0..70 {
            let options = Options::default();
            let answer = answer(200, &["Cache-Control: max-age=60"], &options);
            let terms = Terms::of(&answer, &options, &TIMES);
            let is_fresh = crate::usage::is_fresh(&terms, TIMES.received_us + after_s * SECOND_US);
            assert_eq!(
                said(200, &["Cache-Control: max-age=60"], after_s)[3].starts_with("fresh: yes"),
                is_fresh
            );
        }
    }
}
