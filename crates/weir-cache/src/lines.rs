//! The field lines of a stored response: written once, read back as fields, and updated by a 304
//! (RFC 9111 §3.1, §3.2, §4.3.4).
//!
//! Inputs are end-to-end fields, without those that Connection names and those that frame a
//! message. Age is never among the lines, because it is rewritten each time; Date always is (RFC
//! 9110 §6.6.1).

/// The fields of lines that [`put_lines`] wrote.
pub use weir_http::fields_of_lines as stored_fields;
use weir_http::{FieldName, http_date};

use crate::options::Options;
use crate::validators::{Validators, is_strong, matches_strongly, matches_weakly};

/// Writes the lines of a response for the store: all fields except Age and those that the operator
/// strips. `received_s`, Unix time in seconds, becomes Date when the response has none.
pub fn put_lines<'a, V: AsRef<[u8]>>(
    out: &mut Vec<u8>,
    fields: impl Iterator<Item = (&'a [u8], V)>,
    options: &Options,
    received_s: u64,
) {
    let mut has_date = false;
    for (name, value) in fields.filter(|(name, _)| is_stored(name, options)) {
        has_date |= FieldName::of(name) == FieldName::Date;
        put_line(out, name, value.as_ref());
    }
    if !has_date {
        put_line(out, b"Date", &http_date(received_s));
    }
}

/// Writes fields as lines without changes.
pub fn put_fields<'a>(out: &mut Vec<u8>, fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) {
    fields.for_each(|(name, value)| put_line(out, name, value));
}

/// Writes the lines of a stored response that a 304 confirmed: its fields replace all stored ones
/// of the same name, except those that describe the stored body. The caller has to decide again, by
/// its status and these lines, whether the result may still be stored.
pub fn update_lines<'a, V: AsRef<[u8]>>(
    out: &mut Vec<u8>,
    stored: &[u8],
    fresh: impl Iterator<Item = (&'a [u8], V)> + Clone,
    options: &Options,
    received_s: u64,
) {
    let updates = fresh.filter(|(name, _)| is_stored(name, options) && is_updated(name, options));
    let has_date = updates.clone().any(|(name, _)| FieldName::of(name) == FieldName::Date);
    let is_replaced = |name: &[u8]| {
        // Without a Date it is as old as our own clock says.
        let is_old_date = !has_date && FieldName::of(name) == FieldName::Date;
        is_old_date || updates.clone().any(|(other, _)| other.eq_ignore_ascii_case(name))
    };
    for (name, value) in stored_fields(stored).filter(|(name, _)| !is_replaced(name)) {
        put_line(out, name, value);
    }
    put_lines(out, updates, options, received_s);
}

fn put_line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn is_stored(name: &[u8], options: &Options) -> bool {
    let known = FieldName::of(name);
    known != FieldName::Age && !known.is_hop_by_hop() && options.keeps(name)
}

/// RFC 9111 §3.2: excludes fields that the stored body depends on, and a cookie from the response
/// to one client that would reach all.
fn is_updated(name: &[u8], options: &Options) -> bool {
    match FieldName::of(name) {
        FieldName::ContentType | FieldName::ContentEncoding | FieldName::ContentRange => false,
        FieldName::SetCookie => options.stores_set_cookie,
        _ => !name.eq_ignore_ascii_case(b"set-cookie2") || options.stores_set_cookie,
    }
}

/// Whether a 304 confirms a stored response (RFC 9111 §4.3.4). `is_asked`: it is the one whose
/// validators were sent. A strong entity tag confirms all responses that have the same. A weaker
/// validator, or none, confirms only the one that was asked for, and only if that does not
/// contradict it. If it confirms none, the request has to be sent again without conditions.
pub fn is_confirmed(stored: &Validators<'_>, is_asked: bool, fresh: &Validators<'_>) -> bool {
    match (fresh.etag, fresh.modified_s) {
        (Some(tag), _) if is_strong(tag) => {
            stored.etag.is_some_and(|etag| matches_strongly(etag, tag))
        }
        (Some(tag), _) => is_asked && stored.etag.is_some_and(|etag| matches_weakly(etag, tag)),
        (None, Some(modified_s)) => {
            is_asked && stored.modified_s.is_none_or(|stored_s| stored_s == modified_s)
        }
        (None, None) => is_asked,
    }
}

/// Whether a 200 response to HEAD contradicts a stored one, which then is stale (RFC 9111 §4.3.5):
/// another entity tag, date or length. Lengths are bytes; None: not stated.
pub fn is_contradicted(
    stored: &Validators<'_>,
    stored_bytes: u64,
    head: &Validators<'_>,
    head_bytes: Option<u64>,
) -> bool {
    let has_other_tag = head.etag.is_some_and(|tag| stored.etag != Some(tag));
    let has_other_date = head.modified_s.is_some_and(|seconds| stored.modified_s != Some(seconds));
    has_other_tag || has_other_date || head_bytes.is_some_and(|bytes| bytes != stored_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::{NOW_S, pairs};
    use proptest::prelude::*;

    fn stored(lines: &[&'static str], options: &Options) -> String {
        let mut out = Vec::new();
        put_lines(&mut out, pairs(lines).into_iter(), options, NOW_S);
        String::from_utf8(out).expect("text")
    }

    fn updated(before: &str, lines: &[&'static str], options: &Options) -> String {
        let mut out = Vec::new();
        update_lines(&mut out, before.as_bytes(), pairs(lines).into_iter(), options, NOW_S + 9);
        String::from_utf8(out).expect("text")
    }

    /// RFC 9111 §3.1
    #[test]
    fn what_is_kept() {
        let options = Options { strip: vec![b"x-secret".to_vec()], ..Options::default() };
        let lines = stored(
            &[
                "A: 1",
                "Age: 7",
                "B:2",
                "X-SECRET: x",
                "Proxy-Authenticate: x",
                "Transfer-Encoding: x",
                "A: 3",
            ],
            &options,
        );
        assert_eq!(lines, "A: 1\r\nB: 2\r\nA: 3\r\nDate: Sat, 28 Nov 2026 00:00:00 GMT\r\n");
        assert_eq!(
            stored(&["date: Sun, 06 Nov 1994 08:49:37 GMT"], &options),
            "date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
        );
        let fields: Vec<_> = stored_fields(lines.as_bytes()).collect();
        assert_eq!(fields[..3], [(&b"A"[..], &b"1"[..]), (b"B", b"2"), (b"A", b"3")]);
    }

    /// RFC 9111 §3.2
    #[test]
    fn what_a_304_changes() {
        let options = Options::default();
        let before = stored(
            &[
                "A: 1",
                "a: 2",
                "Content-Type: x",
                "Content-Encoding: x",
                "Content-Foo: 1",
                "Date: Sun, 06 Nov 1994 08:49:37 GMT",
                "C: 3",
            ],
            &options,
        );
        let after = updated(
            &before,
            &[
                "A: 5",
                "Content-Type: y",
                "Content-Encoding: y",
                "Content-Length: 9",
                "content-foo: 2",
                "Age: 3",
                "Set-Cookie: a=b",
                "N: 1",
            ],
            &options,
        );
        let expected = "Content-Type: x\r\nContent-Encoding: x\r\nC: 3\r\nA: 5\r\n\
            content-foo: 2\r\nN: 1\r\n\
            Date: Sat, 28 Nov 2026 00:00:09 GMT\r\n";
        assert_eq!(after, expected);
        let dated = updated(&before, &["Date: Sun, 06 Nov 2022 08:49:37 GMT"], &options);
        assert!(
            dated.contains("2022") && !dated.contains("1994") && dated.contains("A: 1\r\na: 2\r\n"),
            "{dated}"
        );
        let cookies = Options { stores_set_cookie: true, ..Options::default() };
        assert!(updated(&before, &["Set-Cookie: a=b"], &cookies).contains("Set-Cookie: a=b\r\n"));
    }

    /// RFC 9111 §4.3.4
    #[test]
    fn whom_a_304_confirms() {
        let of = |etag: Option<&'static str>, modified_s: Option<u64>| Validators {
            etag: etag.map(str::as_bytes),
            modified_s,
            ..Validators::default()
        };
        let strong = of(Some("\"a\""), Some(5));
        assert!(is_confirmed(&strong, false, &of(Some("\"a\""), None)));
        assert!(!is_confirmed(&strong, true, &of(Some("\"b\""), Some(5))));
        assert!(!is_confirmed(&of(None, Some(5)), true, &of(Some("\"b\""), Some(5))));
        assert!(is_confirmed(&strong, true, &of(Some("W/\"a\""), None)));
        assert!(!is_confirmed(&strong, false, &of(Some("W/\"a\""), None)));
        assert!(!is_confirmed(&strong, true, &of(Some("W/\"b\""), None)));
        assert!(is_confirmed(&strong, true, &of(None, Some(5))));
        assert!(!is_confirmed(&strong, false, &of(None, Some(5))));
        assert!(!is_confirmed(&strong, true, &of(None, Some(6))));
        assert!(is_confirmed(&of(Some("\"a\""), None), true, &of(None, Some(6))));
        assert!(is_confirmed(&strong, true, &of(None, None)));
        assert!(!is_confirmed(&strong, false, &of(None, None)));
    }

    /// RFC 9111 §4.3.5
    #[test]
    fn what_head_tells() {
        let stored =
            Validators { etag: Some(b"\"a\""), modified_s: Some(5), ..Validators::default() };
        let none = Validators::default();
        assert!(!is_contradicted(&stored, 10, &none, None));
        assert!(!is_contradicted(&stored, 10, &stored, Some(10)));
        assert!(is_contradicted(&stored, 10, &none, Some(11)));
        assert!(is_contradicted(&stored, 10, &Validators { etag: Some(b"\"b\""), ..none }, None));
        assert!(is_contradicted(&stored, 10, &Validators { modified_s: Some(6), ..none }, None));
        assert!(is_contradicted(&none, 10, &stored, Some(10)));
    }

    proptest! {
        /// Written lines are read back; an update leaves the others unchanged and never duplicates
        /// a name that was sent once.
        #[test]
        fn lines_are_read_back(
            first in prop::collection::vec(("[A-D]", "[a-z:]([a-z: ]{0,5}[a-z:])?"), 0..6),
            second in prop::collection::vec(("[A-D]", "[a-z:]([a-z: ]{0,5}[a-z:])?"), 0..4),
        ) {
            let options = Options::default();
            let bytes = |list: &[(String, String)]| -> Vec<(Vec<u8>, Vec<u8>)> {
                list.iter()
                    .map(|(name, value)| (name.clone().into_bytes(), value.clone().into_bytes()))
                    .collect()
            };
            let (first, second) = (bytes(&first), bytes(&second));
            let fields = |list: &'static [(Vec<u8>, Vec<u8>)]| {
                list.iter().map(|(name, value)| (&name[..], &value[..]))
            };
            let (first, second): (&'static [_], &'static [_]) = (first.leak(), second.leak());
            let (mut before, mut after) = (Vec::new(), Vec::new());
            put_lines(&mut before, fields(first), &options, NOW_S);
            update_lines(&mut after, &before, fields(second), &options, NOW_S);
            let read = |lines: &[u8]| -> Vec<(Vec<u8>, Vec<u8>)> {
                let all = stored_fields(lines).filter(|(name, _)| *name != b"Date");
                all.map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
            };
            prop_assert_eq!(read(&before), first.to_vec());
            let kept =
                first.iter().filter(|(name, _)| second.iter().all(|(other, _)| other != name));
            let expected: Vec<_> = kept.chain(second).cloned().collect();
            prop_assert_eq!(read(&after), expected);
        }
    }
}
