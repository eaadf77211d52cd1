//! Parts of a stored response: one range of bytes, or all of it (RFC 9110 §14; RFC 9111 §3.3; RFC
//! 9530).
//!
//! Called for 200 responses that may be used and that pass the client's conditions. A request for
//! several ranges gets the whole response, which is always allowed (RFC 9110 §14.2), because
//! clients use sets of ranges to make servers send more than they have.

use weir_http::{FieldName, Method};

use crate::date::parse_date;
use crate::list::members;
use crate::request::Request;
use crate::validators::{Validators, matches_strongly};

/// The part of a stored response that is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// All of it, with 200.
    Whole,
    /// These bytes, with 206: `first <= last`, and `last` is below the length.
    Bytes {
        /// Position of the first byte.
        first: u64,
        /// Position of the last byte.
        last: u64,
    },
    /// None, with 416: it has no such bytes.
    Unsatisfiable,
}

impl Part {
    /// Returns the Content-Range for a response of `length` bytes (RFC 9110 §14.4); None with
    /// [`Part::Whole`].
    pub fn content_range(self, length: u64) -> Option<String> {
        match self {
            Self::Whole => None,
            Self::Bytes { first, last } => Some(format!("bytes {first}-{last}/{length}")),
            Self::Unsatisfiable => Some(format!("bytes */{length}")),
        }
    }
}

/// Returns the part of a stored response of `length` bytes that a request asks for. `now_s` is Unix
/// time in seconds.
pub fn judge_range(
    request: Request<'_>,
    status: u16,
    stored: &Validators<'_>,
    length: u64,
    now_s: u64,
) -> Part {
    if request.head.method != Method::Get || status != 200 || !is_same(request, stored, now_s) {
        return Part::Whole;
    }
    request.only_line(FieldName::Range).map_or(Part::Whole, |text| part(text, length))
}

/// If-Range: only for the very same response (RFC 9110 §13.1.5). A date matches only as the exact
/// Last-Modified, and if that is at least a second before Date (RFC 9110 §8.8.2.2).
fn is_same(request: Request<'_>, stored: &Validators<'_>, now_s: u64) -> bool {
    if !request.has(FieldName::IfRange) {
        return true;
    }
    let Some(text) = request.only_line(FieldName::IfRange) else { return false };
    if stored.etag.is_some_and(|etag| matches_strongly(etag, text)) {
        return true;
    }
    let is_exact = stored.modified_s.is_some() && stored.modified_s == parse_date(text, now_s);
    is_exact
        && stored
            .date_s
            .zip(stored.modified_s)
            .is_some_and(|(date_s, modified_s)| modified_s < date_s)
}

/// RFC 9110 §14.1.2. A malformed range counts as absent (RFC 9110 §14.2).
fn part(text: &[u8], length: u64) -> Part {
    let Some(end) = text.iter().position(|&byte| byte == b'=') else { return Part::Whole };
    if !text[..end].eq_ignore_ascii_case(b"bytes") {
        return Part::Whole;
    }
    let mut ranges = members(&text[end + 1..]);
    let (Some(range), None) = (ranges.next(), ranges.next()) else { return Part::Whole };
    let Some(dash) = range.iter().position(|&byte| byte == b'-') else { return Part::Whole };
    match (&range[..dash], &range[dash + 1..]) {
        ([], suffix) => position(suffix).map_or(Part::Whole, |count| last_bytes(count, length)),
        (first, []) => {
            position(first).map_or(Part::Whole, |first| between(first, u64::MAX, length))
        }
        (first, last) => match (position(first), position(last)) {
            (Some(first), Some(last)) if first <= last => between(first, last, length),
            _ => Part::Whole,
        },
    }
}

fn between(first: u64, last: u64, length: u64) -> Part {
    if first >= length {
        Part::Unsatisfiable
    } else {
        Part::Bytes { first, last: last.min(length - 1) }
    }
}

/// Returns the last `count` bytes. For a response without a body that is all of it, which has no
/// Content-Range.
fn last_bytes(count: u64, length: u64) -> Part {
    match (count, length) {
        (0, _) => Part::Unsatisfiable,
        (_, 0) => Part::Whole,
        _ => Part::Bytes { first: length.saturating_sub(count), last: length - 1 },
    }
}

/// Reads digits; a number beyond 2^64-1 counts as that.
fn position(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(
        text.iter()
            .fold(0u64, |all, &byte| all.saturating_mul(10).saturating_add(u64::from(byte - b'0'))),
    )
}

/// Whether a field of the stored response is sent with a part of it: not digests of the content,
/// which now differs (RFC 9530 §2), and not fields that frame or name a part.
pub fn is_on_part(name: &[u8]) -> bool {
    const OF_WHOLE: [&[u8]; 4] =
        [b"content-length", b"content-range", b"content-md5", b"content-digest"];
    !OF_WHOLE.iter().any(|other| name.eq_ignore_ascii_case(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::{NOW_S, with_get, with_request};
    use proptest::prelude::*;

    fn bytes(first: u64, last: u64) -> Part {
        Part::Bytes { first, last }
    }

    /// RFC 9110 §14.1.2, of 11 bytes.
    #[test]
    fn ranges() {
        let cases = [
            ("bytes=0-1", bytes(0, 1)),
            ("BYTES=0-1", bytes(0, 1)),
            ("bytes= 0-1 ", bytes(0, 1)),
            ("bytes=,0-1,", bytes(0, 1)),
            ("bytes=1-", bytes(1, 10)),
            ("bytes=-1", bytes(10, 10)),
            ("bytes=-99", bytes(0, 10)),
            ("bytes=0-99999999999999999999999", bytes(0, 10)),
            ("bytes=10-10", bytes(10, 10)),
            ("bytes=11-", Part::Unsatisfiable),
            ("bytes=99999999999999999999999-", Part::Unsatisfiable),
            ("bytes=-0", Part::Unsatisfiable),
            ("bytes=0-1,3-4", Part::Whole),
            ("bytes=2-1", Part::Whole),
            ("bytes=-", Part::Whole),
            ("bytes=", Part::Whole),
            ("bytes=x-1", Part::Whole),
            ("bytes=1-x", Part::Whole),
            ("bytes=1-2-3", Part::Whole),
            ("bytes=--1", Part::Whole),
            ("bytes=+1-2", Part::Whole),
            ("bytes 0-1", Part::Whole),
            ("lines=0-1", Part::Whole),
        ];
        for (text, expected) in cases {
            assert_eq!(part(text.as_bytes(), 11), expected, "{text}");
        }
        assert_eq!(part(b"bytes=-5", 0), Part::Whole);
        assert_eq!(part(b"bytes=0-", 0), Part::Unsatisfiable);
        assert_eq!(bytes(0, 1).content_range(11).as_deref(), Some("bytes 0-1/11"));
        assert_eq!(Part::Unsatisfiable.content_range(11).as_deref(), Some("bytes */11"));
        assert_eq!(Part::Whole.content_range(11), None);
    }

    /// RFC 9110 §13.1.5, §14.2
    #[test]
    fn when_ranges_count() {
        let stored = Validators {
            etag: Some(b"\"a\""),
            modified: Some(b"Sun, 06 Nov 1994 08:49:37 GMT"),
            modified_s: Some(784_111_777),
            date_s: Some(NOW_S),
        };
        let judge = |lines: &str, stored: &Validators| {
            let lines = format!("Range: bytes=0-1\r\n{lines}");
            with_get(&lines, |request| judge_range(request, 200, stored, 11, NOW_S))
        };
        for (lines, expected) in [
            ("", bytes(0, 1)),
            ("Range: bytes=0-2\r\n", Part::Whole),
            ("If-Range: \"a\"\r\n", bytes(0, 1)),
            ("If-Range: W/\"a\"\r\n", Part::Whole),
            ("If-Range: \"b\"\r\n", Part::Whole),
            ("If-Range: \"a\"\r\nIf-Range: \"a\"\r\n", Part::Whole),
            ("If-Range: Sun, 06 Nov 1994 08:49:37 GMT\r\n", bytes(0, 1)),
            ("If-Range: Sun, 06 Nov 1994 08:49:38 GMT\r\n", Part::Whole),
            ("If-Range: x\r\n", Part::Whole),
        ] {
            assert_eq!(judge(lines, &stored), expected, "{lines}");
        }
        let weak = Validators { etag: Some(b"W/\"a\""), date_s: Some(784_111_777), ..stored };
        assert_eq!(judge("If-Range: W/\"a\"\r\n", &weak), Part::Whole);
        assert_eq!(judge("If-Range: Sun, 06 Nov 1994 08:49:37 GMT\r\n", &weak), Part::Whole);
        assert_eq!(judge("If-Range: x\r\n", &Validators::default()), Part::Whole);
        let lines = "HEAD / HTTP/1.1\r\nHost: a\r\nRange: bytes=0-1\r\n";
        assert_eq!(
            with_request(lines, |request| judge_range(request, 200, &stored, 11, NOW_S)),
            Part::Whole
        );
        let of_error = with_get("Range: bytes=0-1\r\n", |request| {
            judge_range(request, 404, &stored, 11, NOW_S)
        });
        assert_eq!(of_error, Part::Whole);
    }

    /// RFC 9530 §2, §3
    #[test]
    fn fields_of_a_part() {
        for name in ["Content-Digest", "Content-Length", "Content-Range", "Content-MD5"] {
            assert!(!is_on_part(name.as_bytes()), "{name}");
        }
        for name in ["Repr-Digest", "ETag", "Content-Type", "Date", "A"] {
            assert!(is_on_part(name.as_bytes()), "{name}");
        }
    }

    proptest! {
        /// A part is never outside of the response, and any text and truncation is read.
        #[test]
        fn parts_are_inside(
            text in "bytes=[0-9, -]{0,24}|[ -~]{0,24}",
            length in prop_oneof![0u64..40, any::<u64>()],
        ) {
            for end in 0..=text.len() {
                if let Part::Bytes { first, last } = part(&text.as_bytes()[..end], length) {
                    prop_assert!(first <= last && last < length);
                }
            }
        }
    }
}
