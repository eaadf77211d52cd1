//! Entity tags and modification dates: how they compare, and the results of a client's conditions
//! (RFC 9110 §8.8, §13; RFC 9111 §4.3).
//!
//! Conditions are judged only for stored responses that may be used; If-Match and
//! If-Unmodified-Since never get here ([`bypass`](crate::bypass)).

use weir_http::FieldName;

use crate::date::parse_date;
use crate::list::members;
use crate::request::Request;

/// Whether this is one entity tag (RFC 9110 §8.8.3). Unquoted text is not.
pub fn is_etag(text: &[u8]) -> bool {
    let opaque = text.strip_prefix(b"W/").unwrap_or(text);
    match opaque {
        [b'"', inside @ .., b'"'] => {
            inside.iter().all(|&byte| matches!(byte, 0x21 | 0x23..=0x7e | 0x80..))
        }
        _ => false,
    }
}

/// Whether the entity tag is a strong one.
pub fn is_strong(etag: &[u8]) -> bool {
    is_etag(etag) && !etag.starts_with(b"W/")
}

/// Weak comparison: equal except for the weakness mark (RFC 9110 §8.8.3.2).
pub fn matches_weakly(a: &[u8], b: &[u8]) -> bool {
    let opaque = |etag| <[u8]>::strip_prefix(etag, b"W/").unwrap_or(etag);
    is_etag(a) && is_etag(b) && opaque(a) == opaque(b)
}

/// Strong comparison: both strong and equal.
pub fn matches_strongly(a: &[u8], b: &[u8]) -> bool {
    is_strong(a) && a == b
}

/// The validators of a stored response; values as they were received.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Validators<'a> {
    /// A valid entity tag.
    pub etag: Option<&'a [u8]>,
    /// The text of Last-Modified, if it is a date.
    pub modified: Option<&'a [u8]>,
    /// The date in `modified`, Unix time in seconds.
    pub modified_s: Option<u64>,
    /// Date, Unix time in seconds.
    pub date_s: Option<u64>,
}

impl<'a> Validators<'a> {
    /// Returns the validators in the fields of a response. `now_s` is Unix time in seconds.
    pub fn of(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>, now_s: u64) -> Self {
        let mut found = Self::default();
        for (name, value) in fields {
            if name.eq_ignore_ascii_case(b"etag") {
                found.etag = found.etag.or(Some(value).filter(|value| is_etag(value)));
            } else if name.eq_ignore_ascii_case(b"last-modified") && found.modified.is_none() {
                found.modified_s = parse_date(value, now_s);
                found.modified = found.modified_s.map(|_| value);
            } else if name.eq_ignore_ascii_case(b"date") {
                found.date_s = found.date_s.or_else(|| parse_date(value, now_s));
            }
        }
        found
    }

    /// Whether nothing could prove that it is still the same.
    pub fn is_empty(&self) -> bool {
        self.etag.is_none() && self.modified.is_none()
    }

    /// Returns the fields that ask a server whether it still has the same response (RFC 9111
    /// §4.3.1).
    pub fn conditions(&self) -> impl Iterator<Item = (&'static [u8], &'a [u8])> {
        let tag = self.etag.map(|etag| (&b"If-None-Match"[..], etag));
        tag.into_iter().chain(self.modified.map(|text| (&b"If-Modified-Since"[..], text)))
    }
}

/// The result of a client's conditions for a stored response that may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// It is sent.
    Send,
    /// The client has it: 304.
    NotModified,
}

/// Judges If-None-Match, or without it If-Modified-Since (RFC 9110 §13.2.2; RFC 9111 §4.3.2). Only
/// responses with a status of 2xx have conditions (RFC 9110 §13.2.1). If Last-Modified is missing,
/// Date replaces it, or else `received_s`, Unix time in seconds.
pub fn judge_conditions(
    request: Request<'_>,
    status: u16,
    stored: &Validators<'_>,
    received_s: u64,
    now_s: u64,
) -> Condition {
    let is_same = if !(200..300).contains(&status) {
        false
    } else if request.has(FieldName::IfNoneMatch) {
        let mut tags = request.lines(FieldName::IfNoneMatch).flat_map(members);
        tags.any(|tag| tag == b"*" || stored.etag.is_some_and(|etag| matches_weakly(tag, etag)))
    } else {
        let since =
            request.only_line(FieldName::IfModifiedSince).and_then(|text| parse_date(text, now_s));
        since
            .is_some_and(|since| stored.modified_s.or(stored.date_s).unwrap_or(received_s) <= since)
    };
    if is_same { Condition::NotModified } else { Condition::Send }
}

/// Whether a field of the stored response is sent with a 304: not fields that only describe a body
/// (RFC 9110 §15.4.5).
pub fn is_on_not_modified(name: &[u8], has_etag: bool) -> bool {
    const OF_BODIES: [&[u8]; 9] = [
        b"content-length",
        b"content-type",
        b"content-encoding",
        b"content-language",
        b"content-range",
        b"content-md5",
        b"content-digest",
        b"repr-digest",
        b"digest",
    ];
    let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
    let only_describes =
        OF_BODIES.iter().any(|other| is(other)) || has_etag && is(b"last-modified");
    !only_describes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::{NOW_S, pairs, with_get};

    const MODIFIED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const MODIFIED_S: u64 = 784_111_777;

    /// RFC 9110 §8.8.3
    #[test]
    fn what_tags_are() {
        for tag in ["\"\"", "\"a!b\"", "W/\"a\"", "\"\u{fc}\"", "\"a\\b\"", "\"a,b\""] {
            assert!(is_etag(tag.as_bytes()), "{tag}");
        }
        for tag in [
            "",
            "a",
            "\"",
            "W/",
            "W/a",
            "w/\"a\"",
            "W\"a\"",
            "\"a b\"",
            "\"a\"b\"",
            "\"a\u{7f}\"",
            "*",
            "\"a\" ",
        ] {
            assert!(!is_etag(tag.as_bytes()), "{tag}");
        }
    }

    /// The table of RFC 9110 §8.8.3.2.
    #[test]
    fn comparisons() {
        let cases = [
            ("W/\"1\"", "W/\"1\"", false, true),
            ("W/\"1\"", "W/\"2\"", false, false),
            ("W/\"1\"", "\"1\"", false, true),
            ("\"1\"", "\"1\"", true, true),
        ];
        for (a, b, strong, weak) in cases {
            let (a, b) = (a.as_bytes(), b.as_bytes());
            assert_eq!((matches_strongly(a, b), matches_weakly(a, b)), (strong, weak));
            assert_eq!((matches_strongly(b, a), matches_weakly(b, a)), (strong, weak));
        }
        assert!(!matches_weakly(b"abc", b"abc") && !matches_strongly(b"abc", b"abc"));
    }

    #[test]
    fn validators_of_fields() {
        let fields = pairs(&[
            "ETag: x",
            "etag: \"a\"",
            "ETag: \"b\"",
            "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT",
        ]);
        let found = Validators::of(fields.into_iter(), NOW_S);
        assert_eq!(found.etag, Some(&b"\"a\""[..]));
        assert_eq!(found.modified_s, Some(MODIFIED_S));
        let conditions: Vec<_> = found.conditions().collect();
        assert_eq!(
            conditions,
            [
                (&b"If-None-Match"[..], &b"\"a\""[..]),
                (&b"If-Modified-Since"[..], MODIFIED.as_bytes())
            ]
        );
        let none =
            Validators::of(pairs(&["ETag: x", "Last-Modified: yesterday"]).into_iter(), NOW_S);
        assert!(none.is_empty() && none.conditions().next().is_none());
    }

    /// RFC 9110 §13.1.2, §13.1.3, §13.2.2; RFC 9111 §4.3.2
    #[test]
    fn what_conditions_say() {
        use Condition::{NotModified, Send};
        let both = Validators {
            etag: Some(b"\"a,b\""),
            modified: Some(MODIFIED.as_bytes()),
            modified_s: Some(MODIFIED_S),
            date_s: Some(NOW_S),
        };
        let cases = [
            ("", Send),
            ("If-None-Match: \"a,b\"\r\n", NotModified),
            ("If-None-Match: W/\"a,b\"\r\n", NotModified),
            ("If-None-Match: \"1\", \"a,b\", \"2\"\r\n", NotModified),
            ("If-None-Match: \"1\"\r\nIf-None-Match: \"a,b\"\r\n", NotModified),
            ("If-None-Match: *\r\n", NotModified),
            ("If-None-Match: \"1\"\r\n", Send),
            ("If-None-Match: a,b\r\n", Send),
            ("If-None-Match:\r\n", Send),
            ("If-None-Match: \"1\"\r\nIf-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n", Send),
            (
                "If-None-Match: \"a,b\"\r\nIf-Modified-Since: Sun, 06 Nov 1983 08:49:37 GMT\r\n",
                NotModified,
            ),
            ("If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n", NotModified),
            ("If-Modified-Since: Sunday, 06-Nov-94 08:49:38 GMT\r\n", NotModified),
            ("If-Modified-Since: Sun, 06 Nov 1994 08:49:36 GMT\r\n", Send),
            ("If-Modified-Since: yesterday\r\n", Send),
        ];
        for (lines, expected) in cases {
            let found =
                with_get(lines, |request| judge_conditions(request, 200, &both, NOW_S, NOW_S));
            assert_eq!(found, expected, "{lines}");
            let of_error =
                with_get(lines, |request| judge_conditions(request, 404, &both, NOW_S, NOW_S));
            assert_eq!(of_error, Send, "{lines}");
        }
        let since = "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
        let judge = |stored: Validators, received_s| {
            with_get(since, |request| judge_conditions(request, 200, &stored, received_s, NOW_S))
        };
        let dated = Validators { date_s: Some(MODIFIED_S), ..Validators::default() };
        assert_eq!(judge(dated, NOW_S), NotModified);
        assert_eq!(judge(Validators::default(), MODIFIED_S), NotModified);
        assert_eq!(judge(Validators::default(), NOW_S), Send);
    }

    /// RFC 9110 §15.4.5
    #[test]
    fn fields_of_a_304() {
        for name in [
            "ETag",
            "Date",
            "Expires",
            "Cache-Control",
            "Vary",
            "Content-Location",
            "Set-Cookie",
            "X-Y",
        ] {
            assert!(is_on_not_modified(name.as_bytes(), true), "{name}");
        }
        for name in
            ["Content-Length", "Content-Type", "Content-Encoding", "Repr-Digest", "Last-Modified"]
        {
            assert!(!is_on_not_modified(name.as_bytes(), true), "{name}");
        }
        assert!(is_on_not_modified(b"Last-Modified", false));
    }
}
