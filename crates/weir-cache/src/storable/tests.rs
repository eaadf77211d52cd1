//! Tests of what is stored, row by row; and the rules once more as the RFC states them.

use super::*;
use crate::kit::{NOW_S, answer, with_get, with_request};
use proptest::prelude::*;

const TIMES: Times = Times { requested_us: 1_000_000, received_us: 1_000_000, received_s: NOW_S };
const MODIFIED: &str = "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT";

fn stored_with(
    request: &str,
    status: u16,
    lines: &[&'static str],
    options: &Options,
) -> Result<Terms, NotStored> {
    with_get(request, |request| {
        may_store(request, &answer(status, lines, options), ReplyBody::Chunked, options, &TIMES)
    })
}

fn stored(status: u16, lines: &[&'static str]) -> Result<Terms, NotStored> {
    stored_with("", status, lines, &Options::default())
}

/// RFC 9111 §3: the method, the request, whether the response is whole.
#[test]
fn requests_and_bodies() {
    let options = Options { object_bytes_max: 100, ..Options::default() };
    let fresh = answer(200, &["Cache-Control: max-age=60"], &options);
    let store = |request: &str, body| {
        with_request(&format!("{request} / HTTP/1.1\r\nHost: a\r\n"), |request| {
            may_store(request, &fresh, body, &options, &TIMES).err()
        })
    };
    assert_eq!(store("GET", ReplyBody::Length(100)), None);
    assert_eq!(store("GET", ReplyBody::Chunked), None);
    assert_eq!(store("GET", ReplyBody::None), None);
    assert_eq!(store("GET", ReplyBody::Length(101)), Some(NotStored::BodyTooLarge));
    assert_eq!(store("GET", ReplyBody::UntilClose), Some(NotStored::UntilClose));
    for method in ["HEAD", "POST", "PUT", "OPTIONS", "M-SEARCH"] {
        assert_eq!(store(method, ReplyBody::Length(1)), Some(NotStored::Method), "{method}");
    }
    let fresh = &["Cache-Control: max-age=60"];
    let fat = stored_with("Content-Length: 3\r\n", 200, fresh, &options);
    assert_eq!(fat, Err(NotStored::RequestBody));
    let no_store = stored_with("Cache-Control: no-store\r\n", 200, fresh, &options);
    assert_eq!(no_store, Err(NotStored::RequestNoStore));
    let long: &'static str = format!("X: {}", "x".repeat(FIELD_BYTES_MAX)).leak();
    assert_eq!(stored(200, &[fresh[0], long]), Err(NotStored::FieldsTooLarge));
}

/// Every final status with an explicit lifetime except 206 and 304.
#[test]
fn statuses() {
    for status in 200..=999 {
        let expected = if matches!(status, 206 | 304) { Some(NotStored::Status) } else { None };
        assert_eq!(stored(status, &["Cache-Control: max-age=60"]).err(), expected, "{status}");
    }
    for status in [100, 101, 103, 199] {
        assert_eq!(stored(status, &["Cache-Control: max-age=60"]), Err(NotStored::Status));
    }
}

/// RFC 9111 §5.2.2
#[test]
fn directives() {
    let cases: [(u16, &[&'static str], Option<NotStored>); 22] = [
        (200, &["Cache-Control: max-age=60, no-store"], Some(NotStored::NoStore)),
        (200, &["Cache-Control: max-age=60", "Cache-Control: No-StOrE"], Some(NotStored::NoStore)),
        (200, &["Cache-Control: private, max-age=60"], Some(NotStored::Private)),
        (200, &["Cache-Control: private=\"a\", max-age=60"], Some(NotStored::Private)),
        (200, &["Cache-Control: max-age=60, no-store, must-understand"], None),
        (599, &["Cache-Control: max-age=60, no-store, must-understand"], Some(NotStored::NoStore)),
        (599, &["Cache-Control: max-age=60, must-understand"], Some(NotStored::NoStore)),
        (200, &["Cache-Control: max-age=60", "Vary: *"], Some(NotStored::VaryAny)),
        (200, &["Cache-Control: max-age=60", "Vary: Foo", "Vary: ,*"], Some(NotStored::VaryAny)),
        (200, &["Cache-Control: max-age=60", "Vary: foo bar"], Some(NotStored::VaryAny)),
        (200, &["Cache-Control: max-age=60", "Set-Cookie: a=b"], Some(NotStored::SetCookie)),
        (200, &["Cache-Control: max-age=60, public", "Set-Cookie: a=b"], None),
        (
            200,
            &["CDN-Cache-Control: private", "Cache-Control: max-age=60"],
            Some(NotStored::Private),
        ),
        (
            200,
            &["CDN-Cache-Control: no-store", "Cache-Control: max-age=60"],
            Some(NotStored::NoStore),
        ),
        (200, &["CDN-Cache-Control: max-age=60", "Cache-Control: no-store"], None),
        (
            200,
            &["CDN-Cache-Control: max-age=60, &&&&&", "Cache-Control: no-store"],
            Some(NotStored::NoStore),
        ),
        (
            200,
            &["CDN-Cache-Control: max-age=\"60\"", "Cache-Control: no-store"],
            Some(NotStored::NeverUsable),
        ),
        (200, &["Cache-Control: no-cache", "ETag: \"a\""], None),
        (201, &["Cache-Control: no-cache", "ETag: \"a\""], None),
        (200, &["Cache-Control: no-cache"], Some(NotStored::NeverUsable)),
        (200, &["Cache-Control: max-age=60, no-cache"], Some(NotStored::NeverUsable)),
        (404, &["Cache-Control: no-cache", "ETag: \"a\""], Some(NotStored::NoLifetime)),
    ];
    for (status, lines, expected) in cases {
        assert_eq!(stored(status, lines).err(), expected, "{status} {lines:?}");
    }
    let options = Options { stores_set_cookie: true, ..Options::default() };
    let cookie = &["Cache-Control: max-age=60", "Set-Cookie: a=b"];
    assert!(stored_with("", 200, cookie, &options).is_ok());
    let options = Options { strip: vec![b"set-cookie".to_vec()], ..Options::default() };
    assert!(stored_with("", 200, cookie, &options).is_ok());
}

/// RFC 9111 §3.5
#[test]
fn credentials() {
    let with = |lines: &[&'static str]| {
        stored_with("Authorization: FOO\r\n", 200, lines, &Options::default()).err()
    };
    assert_eq!(with(&["Cache-Control: max-age=60"]), Some(NotStored::Authorization));
    assert_eq!(
        with(&["Cache-Control: max-age=60, proxy-revalidate"]),
        Some(NotStored::Authorization)
    );
    assert_eq!(
        with(&["CDN-Cache-Control: max-age=60", "Cache-Control: public"]),
        Some(NotStored::Authorization)
    );
    assert_eq!(with(&["Cache-Control: max-age=60, public"]), None);
    assert_eq!(with(&["Cache-Control: max-age=60, must-revalidate"]), None);
    assert_eq!(with(&["Cache-Control: s-maxage=60"]), None);
}

/// RFC 9111 §3, §4.2.2: without a lifetime only responses that may be guessed or validated.
#[test]
fn lifetimes() {
    assert_eq!(stored(200, &[]), Err(NotStored::NeverUsable));
    assert_eq!(stored(200, &["ETag: \"a\""]).map(|terms| terms.lifetime_s), Ok(0));
    assert_eq!(stored(200, &[MODIFIED]).map(|terms| terms.lifetime_s), Ok(86_400));
    assert_eq!(stored(200, &["Cache-Control: max-age=0"]), Err(NotStored::NeverUsable));
    assert_eq!(stored(200, &["Cache-Control: max-age=60", "Age: 60"]), Err(NotStored::NeverUsable));
    assert!(stored(200, &["Cache-Control: max-age=60", "Age: 59"]).is_ok());
    assert!(stored(200, &["Cache-Control: max-age=0, stale-while-revalidate=9"]).is_ok());
    assert!(stored(200, &["Cache-Control: max-age=0, stale-if-error=9"]).is_ok());
    assert_eq!(
        stored(200, &["Cache-Control: s-maxage=0, stale-if-error=9"]),
        Err(NotStored::NeverUsable)
    );
    for status in [201, 202, 302, 307] {
        assert_eq!(stored(status, &[MODIFIED]), Err(NotStored::NoLifetime), "{status}");
    }
    for status in [403, 404, 410, 500, 502, 503, 504, 599] {
        assert_eq!(stored(status, &[MODIFIED]), Err(NotStored::NoLifetime), "{status}");
        assert_eq!(
            stored(status, &[MODIFIED, "Cache-Control: public"]),
            Err(NotStored::NoLifetime),
            "{status}"
        );
        let expired = stored(status, &[MODIFIED, "Expires: 0"]);
        assert_eq!(expired, Err(NotStored::NeverUsable), "{status}");
    }
}

/// RFC 5861; RFC 9111 §4.2.4, §5.2.2.10: a response that forbids stale use has no windows.
#[test]
fn windows() {
    let options =
        Options { stale_while_revalidate_s: 30, stale_if_error_s: 40, ..Options::default() };
    let windows = |status, lines: &[&'static str]| {
        let terms = stored_with("", status, lines, &options).expect("stored");
        (terms.stale_while_revalidate_s, terms.stale_if_error_s)
    };
    assert_eq!(windows(200, &["Cache-Control: max-age=9"]), (30, 40));
    assert_eq!(
        windows(200, &["Cache-Control: max-age=9, stale-while-revalidate=1, stale-if-error=0"]),
        (1, 0)
    );
    let all = "max-age=9, stale-while-revalidate=1, stale-if-error=2";
    for other in ["must-revalidate", "proxy-revalidate", "s-maxage=9"] {
        let line: &'static str = format!("Cache-Control: {all}, {other}").leak();
        assert_eq!(windows(200, &[line]), (0, 0), "{other}");
    }
    assert_eq!(windows(500, &["Cache-Control: max-age=9, stale-if-error=9"]), (0, 0));
}

/// A response that says nothing about caches may be for one client: no other client gets it
/// unvalidated, although the operator has stale responses served.
#[test]
fn what_says_nothing_is_never_served_stale() {
    let options = Options {
        stale_while_revalidate_s: 30,
        stale_if_error_s: 40,
        max_stale_s: 50,
        ..Options::default()
    };
    let of = |lines: &[&'static str]| {
        let stored = stored_with("", 200, lines, &options);
        stored.map(|terms| {
            (terms.forbids_stale, terms.stale_while_revalidate_s, terms.stale_if_error_s)
        })
    };
    assert_eq!(of(&[]), Err(NotStored::NeverUsable));
    assert_eq!(of(&["ETag: \"a\""]), Ok((true, 0, 0)), "validated for each use");
    assert_eq!(of(&["Cache-Control: public"]), Ok((false, 30, 40)));
    assert_eq!(of(&["Cache-Control: stale-while-revalidate=3"]), Ok((false, 3, 40)));
    assert_eq!(of(&["Cache-Control: max-age=0"]), Ok((false, 30, 40)));
}

#[test]
fn forced_lifetimes_stand_above_the_answer() {
    let options = Options { forced_lifetimes: vec![(200, 50)], ..Options::default() };
    let terms = stored_with("", 200, &["Cache-Control: max-age=1, no-cache", "Age: 99"], &options)
        .expect("stored");
    assert_eq!(
        (terms.lifetime_s, terms.initial_age_us, terms.no_cache),
        (149, 99 * SECOND_US, false)
    );
    assert_eq!(
        (terms.age_s(TIMES.received_us), terms.age_s(TIMES.received_us + SECOND_US)),
        (99, 100)
    );
    assert_eq!(
        stored_with("", 200, &["Cache-Control: no-store"], &options),
        Err(NotStored::NoStore)
    );
    assert_eq!(
        stored_with("", 200, &["Cache-Control: private"], &options),
        Err(NotStored::Private)
    );
}

/// RFC 9111 §3 once more, as its text states it, for a shared cache.
fn rfc_allows(
    status: u16,
    has_credentials: bool,
    has: impl Fn(&str) -> bool,
    lifetime_said: bool,
) -> bool {
    let understands = UNDERSTOOD.contains(&status);
    let is_final = status >= 200;
    let no_store = has("no-store") && !(has("must-understand") && understands);
    let not_understood = (matches!(status, 206 | 304) || has("must-understand")) && !understands;
    let credentials =
        has_credentials && !has("must-revalidate") && !has("public") && !has("s-maxage=60");
    let is_allowed = has("public")
        || lifetime_said
        || [200, 203, 204, 300, 301, 308, 404, 405, 410, 414, 501].contains(&status);
    is_final
        && !no_store
        && !not_understood
        && !has("private")
        && !credentials
        && (is_allowed || has("no-cache"))
}

proptest! {
    /// No response is stored that the RFC forbids, and stored ones can be of use.
    #[test]
    fn nothing_looser_than_the_rfc(
        status in prop::sample::select(vec![
            100u16, 200, 201, 203, 204, 206, 301, 302, 304, 404, 410, 500, 503, 599
        ]),
        chosen in prop::collection::vec(prop::sample::select(vec![
            "no-store", "no-cache", "private", "public", "must-revalidate", "proxy-revalidate",
            "must-understand", "max-age=60", "max-age=0", "s-maxage=60", "stale-if-error=5",
            "immutable", "x=\"no-store\"",
        ]), 0..5),
        has_credentials: bool,
        has_etag: bool,
        sets_cookie: bool,
        expires: bool,
    ) {
        let mut lines: Vec<&'static str> =
            vec![format!("Cache-Control: {}", chosen.join(", ")).leak()];
        lines.extend(has_etag.then_some("ETag: \"a\""));
        lines.extend(sets_cookie.then_some("Set-Cookie: a=b"));
        lines.extend(expires.then_some("Expires: Thu, 01 Jan 2099 00:00:10 GMT"));
        let request = if has_credentials { "Authorization: x\r\n" } else { "" };
        let found = stored_with(request, status, &lines, &Options::default());
        let has = |word: &str| chosen.contains(&word);
        let lifetime_said =
            expires || ["max-age=60", "max-age=0", "s-maxage=60"].iter().any(|word| has(word));
        if let Ok(terms) = found {
            prop_assert!(
                rfc_allows(status, has_credentials, has, lifetime_said),
                "{} {:?}",
                status,
                lines
            );
            prop_assert!(!sets_cookie || has("public"));
            prop_assert!(
                !terms.forbids_stale
                    || terms.stale_if_error_s == 0 && terms.stale_while_revalidate_s == 0
            );
            prop_assert!(terms.no_cache == has("no-cache"));
            prop_assert!(
                status < 400 || !terms.no_cache && terms.lifetime_s > 0 && terms.lifetime_s <= 10
            );
        } else {
            // The plain cases are not refused either.
            let plain = ["no-store", "private", "no-cache", "must-understand", "max-age=0"]
                .iter()
                .all(|word| !has(word));
            let is_final = status >= 200 && !matches!(status, 206 | 304);
            prop_assert!(
                !(plain && lifetime_said && is_final && !has_credentials && !sets_cookie),
                "{} {:?}",
                status,
                lines
            );
        }
    }
}
