//! Test helpers of this crate for heads that are written as text.

use weir_http::{Fields, Limits, parse_request};

use crate::answer::Answer;
use crate::freshness::LifetimeSource;
use crate::options::Options;
use crate::request::Request;
use crate::storable::Terms;

/// 2026-11-28T00:00:00Z, which is "now" in tests.
pub(crate) const NOW_S: u64 = 1_795_824_000;

/// Terms of a response that arrived when the monotonic clock began, and is fresh for a minute.
pub(crate) const TERMS: Terms = Terms {
    status: 200,
    received_us: 0,
    received_s: NOW_S,
    initial_age_us: 0,
    lifetime_s: 60,
    lifetime_source: LifetimeSource::MaxAge,
    stale_while_revalidate_s: 0,
    stale_if_error_s: 0,
    no_cache: false,
    forbids_stale: false,
    immutable: false,
    has_validator: true,
};

/// Calls `then` with a request of these lines, without the empty line.
pub(crate) fn with_request<T>(lines: &str, then: impl FnOnce(Request<'_>) -> T) -> T {
    let input = format!("{lines}\r\n");
    let mut fields = Fields::default();
    let head = parse_request(input.as_bytes(), &Limits::default(), &mut fields);
    let head = head.unwrap_or_else(|error| panic!("{error}: {lines}")).expect("complete");
    then(Request { input: input.as_bytes(), head: &head, fields: &fields })
}

/// A GET of `/` with these further lines, each with its line end.
pub(crate) fn with_get<T>(lines: &str, then: impl FnOnce(Request<'_>) -> T) -> T {
    with_request(&format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}"), then)
}

/// Returns name and value of lines such as `Age: 5`.
pub(crate) fn pairs(lines: &[&'static str]) -> Vec<(&'static [u8], &'static [u8])> {
    let split = |line: &'static str| line.split_once(':').unwrap_or_else(|| panic!("{line}"));
    lines
        .iter()
        .map(|line| (split(line).0.as_bytes(), split(line).1.trim_ascii().as_bytes()))
        .collect()
}

/// Returns a response with these lines, received at [`NOW_S`].
pub(crate) fn answer(status: u16, lines: &[&'static str], options: &Options) -> Answer {
    Answer::read(status, pairs(lines).into_iter(), options, NOW_S)
}
