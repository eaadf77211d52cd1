//! Requests that wait for the response to another one (RFC 9111 §4: a cache may answer several
//! requests with one response).
//!
//! A waiting request was accepted because its key and its known selecting fields looked the same.
//! The head of the response decides again. A response that may not be stored, that varies by more
//! fields, or that would have to be validated first belongs only to the request that fetched it.

use crate::directives::RequestDirectives;
use crate::options::Options;
use crate::request::Request;
use crate::storable::{NotStored, Terms};
use crate::usage::{Usage, judge_usage};
use crate::vary::Selector;

/// The fate of a waiting request when the head has arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It also gets this response.
    Shares,
    /// The response is for others: it sends its own request, and others may wait for that in turn.
    AsksAgain,
    /// Responses of this key are for one request each: it is forwarded at once, and for a while no
    /// request waits for another one.
    Forwarded,
}

/// Whether a request may wait for the response to another one: not if it accepts only a stored
/// response.
pub fn may_wait(request: &RequestDirectives) -> bool {
    !request.only_if_cached
}

/// Decides when the head has arrived, at `now_us` of the monotonic clock: `terms` and `selector`
/// are those of the response.
pub fn fate(
    terms: Result<&Terms, NotStored>,
    selector: &Selector,
    reader: Request<'_>,
    options: &Options,
    now_us: u64,
) -> Fate {
    let Ok(terms) = terms else { return Fate::Forwarded };
    if !selector.matches(reader) {
        return Fate::AsksAgain;
    }
    match judge_usage(terms, &reader.directives(), options, now_us, now_us) {
        Usage::Fresh => Fate::Shares,
        _ => Fate::Forwarded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::freshness::Times;
    use crate::kit::{NOW_S, answer, with_get};
    use crate::storable::may_store;
    use crate::vary::Vary;
    use weir_http::ReplyBody;

    /// The first line is from the first request, the second from the waiting one.
    fn judged(lines: &[&'static str], asked: &str, reader: &str) -> Fate {
        let options = Options::default();
        let times = Times { requested_us: 1, received_us: 1, received_s: NOW_S };
        let answer = answer(200, lines, &options);
        let (terms, selector) = with_get(asked, |request| {
            let selector = match &answer.vary {
                Vary::Names(names) => Selector::of(names, request),
                Vary::Anything => Selector::default(),
            };
            (may_store(request, &answer, ReplyBody::Chunked, &options, &times), selector)
        });
        with_get(reader, |reader| {
            fate(terms.as_ref().map_err(|why| *why), &selector, reader, &options, 2)
        })
    }

    #[test]
    fn who_gets_the_answer_of_another() {
        let fresh = "Cache-Control: max-age=9";
        assert_eq!(judged(&[fresh], "", "Cookie: a=b\r\nAuthorization: x\r\n"), Fate::Shares);
        assert_eq!(judged(&[fresh], "", "Cache-Control: no-cache\r\n"), Fate::Shares);
        assert_eq!(judged(&[fresh, "Vary: Foo"], "Foo: 1\r\n", "Foo: 1\r\n"), Fate::Shares);
        assert_eq!(judged(&[fresh, "Vary: Foo"], "Foo: 1\r\n", "Foo: 2\r\n"), Fate::AsksAgain);
        assert_eq!(judged(&[fresh, "Vary: *"], "", ""), Fate::Forwarded);
        assert_eq!(judged(&[fresh], "Authorization: x\r\n", ""), Fate::Forwarded);
        assert_eq!(judged(&["Cache-Control: private, max-age=9"], "", ""), Fate::Forwarded);
        assert_eq!(judged(&["Cache-Control: no-cache", "ETag: \"a\""], "", ""), Fate::Forwarded);
        assert_eq!(judged(&["Cache-Control: max-age=0", "ETag: \"a\""], "", ""), Fate::Forwarded);
        assert_eq!(
            judged(&["Cache-Control: max-age=0, stale-while-revalidate=9"], "", ""),
            Fate::Forwarded
        );
    }

    #[test]
    fn who_waits() {
        assert!(may_wait(&RequestDirectives { no_cache: true, ..RequestDirectives::default() }));
        assert!(!may_wait(&RequestDirectives {
            only_if_cached: true,
            ..RequestDirectives::default()
        }));
    }
}
