//! Requests that wait for the answer to another one (RFC 9111 §4: a cache may answer several requests with one answer).
//!
//! Whoever waits was let in because key and selecting fields of what is known looked the same. What the head says decides anew: an answer
//! that may not be stored, that varies by more, or that would have to be validated first belongs to him alone who asked for it.

use crate::directives::RequestDirectives;
use crate::options::Options;
use crate::request::Request;
use crate::storable::{NotStored, Terms};
use crate::usage::{Usage, judge_usage};
use crate::vary::Selector;

/// What becomes of a request that waits when the head has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It gets this answer, too.
    Shares,
    /// It is for others: it asks for an answer of its own, which again others may wait for.
    AsksAgain,
    /// Answers of this key are for one each: it is forwarded at once, and nobody is to wait for another one for a while.
    Forwarded,
}

/// Whether a request may wait for the answer to another one: not if it wants no answer but a stored one.
pub fn may_wait(request: &RequestDirectives) -> bool {
    !request.only_if_cached
}

/// Decides when the head has come, at `now_us` of the monotonic clock: `terms` and `selector` are those of the answer.
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

    /// The first line is what the first request says, the second what the one says that waits.
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
        with_get(reader, |reader| fate(terms.as_ref().map_err(|why| *why), &selector, reader, &options, 2))
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
        assert_eq!(judged(&["Cache-Control: max-age=0, stale-while-revalidate=9"], "", ""), Fate::Forwarded);
    }

    #[test]
    fn who_waits() {
        assert!(may_wait(&RequestDirectives { no_cache: true, ..RequestDirectives::default() }));
        assert!(!may_wait(&RequestDirectives { only_if_cached: true, ..RequestDirectives::default() }));
    }
}
