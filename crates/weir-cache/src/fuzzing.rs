//! Invariants for any request with any response. Called by the fuzz target `cache` and by property
//! tests; a violation panics.

use weir_http::{Fields, Limits, ReplyContext, ReplyHead, ReplyParts, parse_reply, parse_request};

use crate::{
    Answer, Control, Directive, KeyRules, NotStored, Options, Part, Place, Request, Selector,
    ServerFailure, Terms, Times, Usage, Validators, Vary, bypass, fate, is_confirmed, is_fresh,
    is_sent_on_failure, judge_conditions, judge_range, judge_usage, key, may_store, put_lines,
    read_tags, same_origin_path, stored_fields, update_lines, url_of,
};

/// A snapshot of the store, and its seeds.
pub use crate::store::snapshot::fuzzing::{seeds as snapshot_seeds, snapshot};

const NOW_S: u64 = 1_795_824_000;
const TIMES: Times = Times { requested_us: 1_000_000, received_us: 2_000_000, received_s: NOW_S };

/// Runs a request head, and behind it the head of its response, through all rules in their usual
/// order.
pub fn exchange(data: &[u8]) {
    let mut fields = Fields::default();
    let Ok(Some(head)) = parse_request(data, &Limits::default(), &mut fields) else { return };
    let request = Request { input: data, head: &head, fields: &fields };
    let options = Options {
        stale_while_revalidate_s: 5,
        stale_if_error_s: 5,
        max_stale_s: 5,
        ..Options::default()
    };
    check_request(request, &options);
    let rest = &data[head.bytes..];
    let mut answer_fields = Fields::default();
    let Ok(Some(reply)) =
        parse_reply(rest, &Limits::default(), ReplyContext::default(), &mut answer_fields)
    else {
        return;
    };
    check_answer(request, &options, (rest, &reply, &answer_fields));
}

fn check_request(request: Request<'_>, options: &Options) {
    bypass(request, b"http", options);
    let rules = KeyRules {
        ignored_parameters: vec![b"utm_*".to_vec()],
        sorts_query: true,
        fields: vec![b"accept-encoding".to_vec(), b"x".to_vec()],
        cookies: vec![b"a".to_vec()],
    };
    let head = request.head;
    let place = Place {
        upstream: b"app",
        scheme: b"http",
        authority: head.authority.of(request.input),
        path: head.path.of(request.input),
    };
    let key = key(place, &rules, request);
    let lines = key.iter().filter(|&&byte| byte == b'\n').count();
    assert_eq!(lines, 5, "no part of a key has a line end: {}", key.escape_ascii());
    assert!(url_of(&key).starts_with(b"http://"));
}

fn check_answer(
    request: Request<'_>,
    options: &Options,
    (input, reply, fields): (&[u8], &ReplyHead, &Fields),
) {
    let parts = ReplyParts::received(input, reply, fields);
    let answer = Answer::read(reply.status, parts.fields(), options, NOW_S);
    let said = may_store(request, &answer, reply.body, options, &TIMES);
    let mut lines = Vec::new();
    put_lines(&mut lines, parts.fields(), options, NOW_S);
    check_lines(&answer, &lines, options, reply.status);
    for (_, value) in stored_fields(&lines) {
        let place = Place { upstream: b"u", scheme: b"http", authority: b"a", path: b"/x/y?z" };
        assert!(same_origin_path(place, value).is_none_or(|path| path.starts_with(b"/")));
        for field in
            [crate::TagField::CacheGroups, crate::TagField::CacheTag, crate::TagField::Xkey]
        {
            assert!(
                read_tags(field, std::iter::once(value)).is_ok_and(|tags| tags.is_sorted())
                    || value.len() > crate::TAG_BYTES_MAX
            );
        }
    }
    // With an additional forbidding line nothing is stored.
    let more =
        stored_fields(&lines).chain(std::iter::once((&b"Cache-Control"[..], &b"private"[..])));
    let forbidden = Answer::read(reply.status, more, options, NOW_S);
    if forbidden.control == Control::CacheControl {
        assert!(may_store(request, &forbidden, reply.body, options, &TIMES).is_err());
    }
    match said {
        Ok(terms) => check_stored(request, options, &answer, &terms, &lines),
        Err(why) => assert!(
            !why.word().is_empty() && (why != NotStored::VaryAny || answer.vary == Vary::Anything)
        ),
    }
}

/// The stored lines say the same as the received ones, except for the age.
fn check_lines(answer: &Answer, lines: &[u8], options: &Options, status: u16) {
    let again = Answer::read(status, stored_fields(lines), options, NOW_S);
    assert_eq!(
        (again.directives, again.control, again.expires),
        (answer.directives, answer.control, answer.expires)
    );
    assert_eq!(
        (&again.vary, again.has_etag, again.modified_s),
        (&answer.vary, answer.has_etag, answer.modified_s)
    );
    let mut updated = Vec::new();
    update_lines(&mut updated, lines, stored_fields(lines), options, NOW_S);
    let sorted = |lines: &[u8]| {
        let mut all: Vec<Vec<u8>> =
            lines.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
        all.retain(|line| !line.to_ascii_lowercase().starts_with(b"set-cookie"));
        all.sort_unstable();
        all
    };
    assert_eq!(sorted(lines), sorted(&updated), "an update by the same fields changes nothing");
}

fn check_stored(
    request: Request<'_>,
    options: &Options,
    answer: &Answer,
    terms: &Terms,
    lines: &[u8],
) {
    assert!(!answer.directives.set.has_any(&[Directive::Private]));
    let Vary::Names(names) = &answer.vary else { panic!("stored though it varies by anything") };
    let selector = Selector::of(names, request);
    assert!(selector.matches(request), "who asked for it can get it");
    assert!(selector.names().eq(names.iter().map(|name| &name[..])));
    fate(Ok(terms), &selector, request, options, TIMES.received_us);
    let directives = request.directives();
    for after_s in [0, 1, 10, 100, 1 << 33] {
        let now_us = TIMES.received_us + after_s * 1_000_000;
        let is_fresh = is_fresh(terms, now_us);
        match judge_usage(terms, &directives, options, now_us, 0) {
            Usage::Fresh => assert!(is_fresh && !terms.no_cache),
            Usage::StaleWhileRevalidate | Usage::StaleAccepted => {
                assert!(!is_fresh && !terms.forbids_stale)
            }
            Usage::Validate(_) => assert!(!directives.only_if_cached),
            Usage::GatewayTimeout => assert!(directives.only_if_cached),
        }
        if is_sent_on_failure(terms, ServerFailure::NoAnswer, now_us) {
            assert!(is_fresh || !terms.forbids_stale);
        }
    }
    let validators = Validators::of(stored_fields(lines), NOW_S);
    assert_eq!(terms.has_validator, !validators.is_empty());
    assert!(is_confirmed(&validators, true, &validators));
    judge_conditions(request, terms.status, &validators, NOW_S, NOW_S);
    for length in [0, 1, 10, u64::MAX] {
        if let Part::Bytes { first, last } =
            judge_range(request, terms.status, &validators, length, NOW_S)
        {
            assert!(first <= last && last < length);
        }
    }
}

/// Exchanges to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    let exchanges = [
        ("", "Cache-Control: max-age=60, public\r\nVary: Accept-Encoding, X\r\nETag: \"a\"\r\n"),
        (
            "Cache-Control: no-cache\r\nAccept-Encoding: gzip, br;q=0.5\r\n",
            "Cache-Control: s-maxage=\"60\"\r\nAge: 7, 8\r\n",
        ),
        (
            "Range: bytes=1-5\r\nIf-Range: \"a\"\r\n",
            "Expires: Thu, 01 Jan 2099 00:00:10 GMT\r\nETag: \"a\"\r\n",
        ),
        (
            "If-None-Match: W/\"a\", *\r\n",
            "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nDate: x\r\n",
        ),
        (
            "Authorization: x\r\nCookie: a=b; c\r\n",
            "CDN-Cache-Control: max-age=5;a=(1 2), no-cache=?0\r\nVary: cookie\r\n",
        ),
        (
            "Cache-Control: max-stale, only-if-cached\r\nX: a, \"b, c\"\r\n",
            "Cache-Control: stale-if-error=9, max-age=1\r\nVary: x\r\n",
        ),
        (
            "",
            "Location: ../x?y#z\r\nCache-Groups: \"a\", \"b\"\r\nContent-Location: //a/..\r\n\
                Set-Cookie: a=b\r\n",
        ),
    ];
    let texts = exchanges.map(|(asked, answered)| {
        format!(
            "GET /a?b=c&utm_x=1 HTTP/1.1\r\nHost: A\r\n{asked}\r\nHTTP/1.1 200 OK\r\n\
            Content-Length: 9\r\n{answered}\r\n"
        )
    });
    texts.map(String::into_bytes).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn seeds_are_exchanges() {
        for seed in seeds() {
            let mut fields = Fields::default();
            let head = parse_request(&seed, &Limits::default(), &mut fields)
                .expect("valid")
                .expect("whole");
            let rest = &seed[head.bytes..];
            let reply = parse_reply(rest, &Limits::default(), ReplyContext::default(), &mut fields)
                .expect("valid");
            assert_eq!(reply.map(|reply| reply.bytes), Some(rest.len()), "{}", seed.escape_ascii());
            exchange(&seed);
        }
    }

    /// Every truncation, and every changed byte.
    #[test]
    fn seeds_with_faults() {
        for seed in seeds() {
            for end in 0..seed.len() {
                exchange(&seed[..end]);
                for byte in [b'"', b',', b'=', b' ', b'*', b'0'] {
                    let mut other = seed.clone();
                    other[end] = byte;
                    exchange(&other);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn any_exchange(
            asked in "((Cache-Control|Range|If-Range|If-None-Match|X|Cookie|Accept-Encoding): \
                (no-cache|max-stale|bytes=|\"a\"|gzip|[;=\\-*, 0-9a\"]){0,5}\r\n){0,3}",
            status in prop::sample::select(vec![
                "200", "203", "206", "301", "304", "404", "500", "599"
            ]),
            answered in "((Cache-Control|CDN-Cache-Control|Vary|Age|Expires|ETag|Date|Location): \
                (max-age=|s-maxage=|public|no-cache|X|\"a\"|[;=\\-*, 0-9a\"]){0,6}\r\n){0,4}",
        ) {
            exchange(
                format!(
                    "GET /a?b HTTP/1.1\r\nHost: a\r\n{asked}\r\nHTTP/1.1 {status} X\r\n\
                Content-Length: 0\r\n{answered}\r\n"
                )
                .as_bytes(),
            );
        }
    }
}
