//! May a stored response be used for this request now? (RFC 9111 §4, §4.2.4, §5.2.1; RFC 5861; RFC
//! 8246)
//!
//! Called at each lookup that finds a response with the right key and selector. Everything is a
//! function of its [`Terms`] and the time.

use crate::directives::RequestDirectives;
use crate::freshness::SECOND_US;
use crate::options::{Options, RequestDirectivesMode};
use crate::storable::Terms;

/// Under [`RequestDirectivesMode::Validate`] a client cannot have a response validated within this
/// time of the last validation, µs.
pub const REVALIDATE_AGAIN_US: u64 = SECOND_US;

/// How to use a stored response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Usage {
    /// Send it.
    Fresh,
    /// Send it, and refetch it in the background: stale-while-revalidate.
    StaleWhileRevalidate,
    /// Send it although it is stale, because the client accepts that: max-stale.
    StaleAccepted,
    /// Ask the server first.
    Validate(Reason),
    /// 504: the client accepts only a stored response, and this one cannot be used (RFC 9111
    /// §5.2.1.7).
    GatewayTimeout,
}

/// Why a server is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Its lifetime is over.
    Stale,
    /// The response says no-cache.
    NoCache,
    /// The request says no-cache, or asks for a fresher one.
    Request,
}

/// Whether it is fresh: younger than its lifetime (RFC 9111 §4.2). `now_us` is of the monotonic
/// clock.
pub fn is_fresh(terms: &Terms, now_us: u64) -> bool {
    u64::from(terms.lifetime_s) * SECOND_US > terms.age_us(now_us)
}

/// Whether it is an error, by its status: never served stale.
pub(crate) fn is_error(terms: &Terms) -> bool {
    terms.status >= 400
}

/// Returns how long its lifetime has been over, microseconds; None while it is fresh.
pub fn staleness_us(terms: &Terms, now_us: u64) -> Option<u64> {
    terms.age_us(now_us).checked_sub(u64::from(terms.lifetime_s) * SECOND_US)
}

/// Returns how to use a stored response for a request. `checked_us` is when a server last confirmed
/// it, at least `received_us` of its terms.
pub fn judge_usage(
    terms: &Terms,
    request: &RequestDirectives,
    options: &Options,
    now_us: u64,
    checked_us: u64,
) -> Usage {
    let usage = if terms.no_cache {
        Usage::Validate(Reason::NoCache)
    } else {
        match staleness_us(terms, now_us) {
            None if wants_fresher(terms, request, options, now_us, checked_us) => {
                Usage::Validate(Reason::Request)
            }
            None => Usage::Fresh,
            Some(stale_us) => judge_stale(terms, request, options, now_us, stale_us),
        }
    };
    match usage {
        Usage::Validate(_) if request.only_if_cached => Usage::GatewayTimeout,
        usage => usage,
    }
}

fn judge_stale(
    terms: &Terms,
    request: &RequestDirectives,
    options: &Options,
    now_us: u64,
    stale_us: u64,
) -> Usage {
    // A request for a fresher response than a fresh one never gets it stale.
    let is_strict = options.request_directives != RequestDirectivesMode::Ignore
        && (request.no_cache
            || request.min_fresh_s.is_some_and(|s| s > 0)
            || is_too_old(terms, request, now_us));
    if terms.forbids_stale || is_error(terms) || is_strict {
        return Usage::Validate(Reason::Stale);
    }
    if is_within(stale_us, terms.stale_while_revalidate_s) {
        return Usage::StaleWhileRevalidate;
    }
    let accepted_s = match options.request_directives {
        RequestDirectivesMode::Ignore => 0,
        _ => request.max_stale_s.unwrap_or(0).min(options.max_stale_s),
    };
    if is_within(stale_us, accepted_s) {
        Usage::StaleAccepted
    } else {
        Usage::Validate(Reason::Stale)
    }
}

/// Whether a time is in the window of `seconds` behind the lifetime; the last microsecond belongs
/// to it, unless the window is empty.
fn is_within(stale_us: u64, seconds: u32) -> bool {
    seconds > 0 && stale_us <= u64::from(seconds) * SECOND_US
}

fn is_too_old(terms: &Terms, request: &RequestDirectives, now_us: u64) -> bool {
    request.max_age_s.is_some_and(|max_s| terms.age_us(now_us) > u64::from(max_s) * SECOND_US)
}

/// Whether a request's directives make a fresh response be validated. A response that was confirmed
/// a moment ago is fresh enough, unless the operator has the directives obeyed; one that does not
/// change while it is fresh is never validated.
fn wants_fresher(
    terms: &Terms,
    request: &RequestDirectives,
    options: &Options,
    now_us: u64,
    checked_us: u64,
) -> bool {
    let left_us = (u64::from(terms.lifetime_s) * SECOND_US).saturating_sub(terms.age_us(now_us));
    let is_too_short =
        request.min_fresh_s.is_some_and(|min_s| left_us < u64::from(min_s) * SECOND_US);
    let wants = request.no_cache || is_too_short || is_too_old(terms, request, now_us);
    let was_just_checked =
        now_us.saturating_sub(checked_us.max(terms.received_us)) < REVALIDATE_AGAIN_US;
    match options.request_directives {
        RequestDirectivesMode::Ignore => false,
        RequestDirectivesMode::Obey => wants && !terms.immutable,
        RequestDirectivesMode::Validate => wants && !terms.immutable && !was_just_checked,
    }
}

/// Why a server gave no response that could be sent instead of a stale one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerFailure {
    /// It could not be reached, took too long, or closed the connection.
    NoAnswer,
    /// It answered with this status.
    Status(u16),
}

/// Whether a stored response is sent because its server failed (RFC 5861 §4): only on errors of the
/// server, within its window, and never if something forbids stale responses.
pub fn is_sent_on_failure(terms: &Terms, failure: ServerFailure, now_us: u64) -> bool {
    let is_failure = match failure {
        ServerFailure::NoAnswer => true,
        ServerFailure::Status(status) => matches!(status, 500 | 502 | 503 | 504),
    };
    if !is_failure || terms.no_cache || terms.forbids_stale || is_error(terms) {
        return false;
    }
    // A fresh one is validated if a client wants it fresher; it is not worse than an error.
    staleness_us(terms, now_us).is_none_or(|stale_us| is_within(stale_us, terms.stale_if_error_s))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::RequestDirectivesMode as Mode;
    use proptest::prelude::*;

    /// Received at second 100, fresh for 10 seconds.
    const TERMS: Terms =
        Terms { received_us: 100 * SECOND_US, lifetime_s: 10, ..crate::kit::TERMS };

    fn directives(line: &str) -> RequestDirectives {
        let mut directives = RequestDirectives::default();
        directives.add_line(line.as_bytes());
        directives
    }

    /// Returns the usage `us` microseconds after it arrived.
    fn after(terms: &Terms, us: u64, line: &str, mode: Mode) -> Usage {
        let options = Options { request_directives: mode, max_stale_s: 5, ..Options::default() };
        judge_usage(terms, &directives(line), &options, terms.received_us + us, 0)
    }

    /// RFC 9111 §4.2
    #[test]
    fn fresh_until_its_lifetime_is_over() {
        let at = |us| after(&TERMS, us, "", Mode::Validate);
        assert_eq!(at(0), Usage::Fresh);
        assert_eq!(at(10 * SECOND_US - 1), Usage::Fresh);
        assert_eq!(at(10 * SECOND_US), Usage::Validate(Reason::Stale));
        let older = Terms { initial_age_us: 4 * SECOND_US + 1, ..TERMS };
        assert_eq!(after(&older, 6 * SECOND_US - 2, "", Mode::Validate), Usage::Fresh);
        assert_eq!(
            after(&older, 6 * SECOND_US - 1, "", Mode::Validate),
            Usage::Validate(Reason::Stale)
        );
        let never = Terms { lifetime_s: 0, ..TERMS };
        assert_eq!(after(&never, 0, "", Mode::Validate), Usage::Validate(Reason::Stale));
        let asked = Terms { no_cache: true, forbids_stale: true, ..TERMS };
        assert_eq!(after(&asked, 0, "", Mode::Ignore), Usage::Validate(Reason::NoCache));
        assert_eq!(after(&asked, 0, "only-if-cached", Mode::Ignore), Usage::GatewayTimeout);
    }

    /// RFC 5861 §3; RFC 9111 §4.2.4
    #[test]
    fn stale_while_it_is_fetched() {
        let terms = Terms { stale_while_revalidate_s: 3, ..TERMS };
        let at = |us, line| after(&terms, us, line, Mode::Validate);
        assert_eq!(at(13 * SECOND_US, ""), Usage::StaleWhileRevalidate);
        assert_eq!(at(13 * SECOND_US, "only-if-cached"), Usage::StaleWhileRevalidate);
        assert_eq!(at(13 * SECOND_US + 1, ""), Usage::Validate(Reason::Stale));
        assert_eq!(at(13 * SECOND_US + 1, "only-if-cached"), Usage::GatewayTimeout);
        assert_eq!(at(11 * SECOND_US, "no-cache"), Usage::Validate(Reason::Stale));
        assert_eq!(at(11 * SECOND_US, "max-age=5"), Usage::Validate(Reason::Stale));
        assert_eq!(
            after(&terms, 11 * SECOND_US, "no-cache", Mode::Ignore),
            Usage::StaleWhileRevalidate
        );
        let forbidden = Terms { forbids_stale: true, ..terms };
        assert_eq!(
            after(&forbidden, 11 * SECOND_US, "", Mode::Ignore),
            Usage::Validate(Reason::Stale)
        );
        let error = Terms { status: 500, ..terms };
        assert_eq!(after(&error, 11 * SECOND_US, "", Mode::Ignore), Usage::Validate(Reason::Stale));
    }

    /// RFC 9111 §5.2.1.2, up to what the operator allows (5 s).
    #[test]
    fn stale_because_the_client_takes_it() {
        let at = |us, line, mode| after(&TERMS, us, line, mode);
        assert_eq!(at(12 * SECOND_US, "max-stale=2", Mode::Validate), Usage::StaleAccepted);
        assert_eq!(
            at(12 * SECOND_US + 1, "max-stale=2", Mode::Validate),
            Usage::Validate(Reason::Stale)
        );
        assert_eq!(at(15 * SECOND_US, "max-stale", Mode::Validate), Usage::StaleAccepted);
        assert_eq!(
            at(15 * SECOND_US + 1, "max-stale", Mode::Validate),
            Usage::Validate(Reason::Stale)
        );
        assert_eq!(at(12 * SECOND_US, "max-stale=2", Mode::Ignore), Usage::Validate(Reason::Stale));
        let forbidden = Terms { forbids_stale: true, ..TERMS };
        assert_eq!(
            after(&forbidden, 11 * SECOND_US, "max-stale", Mode::Obey),
            Usage::Validate(Reason::Stale)
        );
        let by_default = judge_usage(
            &TERMS,
            &directives("max-stale"),
            &Options::default(),
            TERMS.received_us + 11 * SECOND_US,
            0,
        );
        assert_eq!(by_default, Usage::Validate(Reason::Stale));
    }

    /// RFC 9111 §5.2.1.1, §5.2.1.3, §5.2.1.4; RFC 8246.
    #[test]
    fn fresher_than_fresh() {
        let late = 5 * SECOND_US;
        for line in ["no-cache", "max-age=4", "max-age=0", "min-fresh=6", "max-age=x"] {
            assert_eq!(
                after(&TERMS, late, line, Mode::Validate),
                Usage::Validate(Reason::Request),
                "{line}"
            );
            assert_eq!(
                after(&TERMS, late, line, Mode::Obey),
                Usage::Validate(Reason::Request),
                "{line}"
            );
            assert_eq!(after(&TERMS, late, line, Mode::Ignore), Usage::Fresh, "{line}");
            let immutable = Terms { immutable: true, ..TERMS };
            assert_eq!(after(&immutable, late, line, Mode::Obey), Usage::Fresh, "{line}");
        }
        for line in ["max-age=5", "min-fresh=5", "max-age=9, min-fresh=1", "no-store"] {
            assert_eq!(after(&TERMS, late, line, Mode::Obey), Usage::Fresh, "{line}");
        }
        assert_eq!(
            after(&TERMS, late, "no-cache, only-if-cached", Mode::Obey),
            Usage::GatewayTimeout
        );
    }

    /// No client bypasses the cache more than once a second for a response.
    #[test]
    fn what_was_just_confirmed_is_fresh_enough() {
        let options = Options::default();
        let judge = |checked_us, now_us| {
            judge_usage(&TERMS, &directives("no-cache"), &options, now_us, checked_us)
        };
        assert_eq!(judge(0, 101 * SECOND_US - 1), Usage::Fresh);
        assert_eq!(judge(0, 101 * SECOND_US), Usage::Validate(Reason::Request));
        assert_eq!(judge(101 * SECOND_US, 102 * SECOND_US - 1), Usage::Fresh);
        assert_eq!(judge(101 * SECOND_US, 102 * SECOND_US), Usage::Validate(Reason::Request));
    }

    /// RFC 5861 §4; RFC 9111 §4.2.4
    #[test]
    fn when_servers_fail() {
        let terms = Terms { stale_if_error_s: 3, ..TERMS };
        let sent =
            |terms: &Terms, failure, us| is_sent_on_failure(terms, failure, TERMS.received_us + us);
        let inside = 13 * SECOND_US;
        for status in [500, 502, 503, 504] {
            assert!(sent(&terms, ServerFailure::Status(status), inside), "{status}");
        }
        for status in [200, 304, 403, 404, 501, 505, 599] {
            assert!(!sent(&terms, ServerFailure::Status(status), inside), "{status}");
        }
        assert!(sent(&terms, ServerFailure::NoAnswer, inside));
        assert!(!sent(&terms, ServerFailure::NoAnswer, inside + 1));
        assert!(sent(&TERMS, ServerFailure::NoAnswer, SECOND_US));
        assert!(!sent(&TERMS, ServerFailure::NoAnswer, 10 * SECOND_US));
        for bad in [
            Terms { forbids_stale: true, ..terms },
            Terms { no_cache: true, ..terms },
            Terms { status: 404, ..terms },
        ] {
            assert!(!sent(&bad, ServerFailure::NoAnswer, inside), "{bad:?}");
        }
    }

    proptest! {
        /// Never stale without licence, for any request and any times.
        #[test]
        fn stale_only_with_licence(
            age in 0u64..40,
            life in 0u32..20,
            swr in 0u32..20,
            sie in 0u32..20,
            since in 0u64..40_000_000,
            line in prop::sample::select(vec![
                "", "max-stale", "max-stale=3", "no-cache", "max-age=2", "min-fresh=2",
                "only-if-cached"
            ]),
            forbids_stale: bool,
            no_cache: bool,
            immutable: bool,
            status in prop::sample::select(vec![200u16, 404]),
            mode in prop::sample::select(vec![Mode::Validate, Mode::Obey, Mode::Ignore]),
        ) {
            let terms = Terms {
                status,
                initial_age_us: age * SECOND_US,
                lifetime_s: life,
                stale_while_revalidate_s: swr,
                stale_if_error_s: sie,
                no_cache,
                forbids_stale,
                immutable,
                ..TERMS
            };
            let is_stale = age * SECOND_US + since >= u64::from(life) * SECOND_US;
            let usage = after(&terms, since, line, mode);
            match usage {
                Usage::Fresh => prop_assert!(!is_stale && !no_cache),
                Usage::StaleWhileRevalidate | Usage::StaleAccepted => {
                    prop_assert!(is_stale && !forbids_stale && !no_cache && status < 400);
                    prop_assert!(
                        usage == Usage::StaleWhileRevalidate || line.starts_with("max-stale")
                    );
                    let window = if usage == Usage::StaleAccepted { 5 } else { swr };
                    prop_assert!(age * SECOND_US + since <= u64::from(life + window) * SECOND_US);
                }
                Usage::GatewayTimeout => prop_assert!(line == "only-if-cached"),
                Usage::Validate(_) => prop_assert!(line != "only-if-cached"),
            }
            if is_sent_on_failure(&terms, ServerFailure::NoAnswer, terms.received_us + since) {
                prop_assert!(!forbids_stale && !no_cache && status < 400);
                prop_assert!(
                    !is_stale || age * SECOND_US + since <= u64::from(life + sie) * SECOND_US
                );
            }
        }
    }
}
