//! The request fields that select a response, and their values in the form in which they are
//! compared (RFC 9111 §4.1; RFC 9110 §12.5.5).
//!
//! A [`Selector`] is the secondary key of a stored response. Two requests have the same one only if
//! no compliant server can tell them apart by the named fields. Bounds: [`NAMES_MAX`] names; more,
//! or an invalid name, counts as `*`.

use weir_http::{FieldName, is_token};

use crate::list::members;
use crate::request::Request;

/// Most names in the Vary of a stored response.
pub const NAMES_MAX: usize = 16;

/// The fields that a response varies by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Vary {
    /// Fields in lower case, sorted, none twice; empty: every request gets the same.
    Names(Vec<Box<[u8]>>),
    /// `*`, text that is no name, too many names, or a field that a proxy writes: no other request
    /// gets it.
    Anything,
}

impl Default for Vary {
    fn default() -> Self {
        Self::Names(Vec::new())
    }
}

impl Vary {
    /// Adds the names of one line of Vary.
    pub fn add_line(&mut self, line: &[u8]) {
        for member in members(line) {
            let Self::Names(names) = self else { return };
            if member == b"*" || !is_token(member) || is_ours(member) {
                *self = Self::Anything;
                return;
            }
            let name = member.to_ascii_lowercase().into_boxed_slice();
            if let Err(at) = names.binary_search(&name) {
                if names.len() == NAMES_MAX {
                    *self = Self::Anything;
                    return;
                }
                names.insert(at, name);
            }
        }
    }
}

/// weir writes this field, so a server does not get the client's value: clients that look the same
/// here would not look the same there.
fn is_ours(name: &[u8]) -> bool {
    let known = FieldName::of(name);
    let is_written = matches!(
        known,
        FieldName::Via | FieldName::CdnLoop | FieldName::ClientCert | FieldName::ClientCertChain
    );
    is_written || known.is_forwarding() || known.is_hop_by_hop()
}

/// The values that the named fields have in a request: they decide whether a stored response was
/// selected by it. The request must have the values that the server gets: a field that a route sets
/// or removes must be changed before.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Selector {
    /// A line for each name in order: the name alone when the field is absent, otherwise
    /// `name=value`. No field can contain the line end.
    text: Box<[u8]>,
}

impl Selector {
    /// Returns the selector of a request, for a response that varies by these names (lower case,
    /// sorted).
    pub fn of(names: &[Box<[u8]>], request: Request<'_>) -> Self {
        let mut text = Vec::new();
        names.iter().for_each(|name| put_field(&mut text, name, request));
        Self { text: text.into() }
    }

    /// Whether the same fields of this request have the same values.
    pub fn matches(&self, request: Request<'_>) -> bool {
        let mut rest = &self.text[..];
        let mut line = Vec::new();
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            let stored = &rest[..=end];
            let name_end = stored.iter().position(|&byte| byte == b'=').unwrap_or(end);
            line.clear();
            put_field(&mut line, &stored[..name_end], request);
            if line != stored {
                return false;
            }
            rest = &rest[end + 1..];
        }
        true
    }

    /// Returns the names by which it selects, in order.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        let lines = self.text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| line.split(|&byte| byte == b'=').next().unwrap_or_default())
    }

    /// Whether it selects by nothing: every request matches.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns the bytes.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Reads a selector from bytes. None: no selector has this form.
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        let selector = Self { text: text.into() };
        let is_name = |name: &[u8]| is_token(name) && !name.iter().any(u8::is_ascii_uppercase);
        let names: Vec<&[u8]> = selector.names().collect();
        let lines = text.iter().filter(|byte| **byte == b'\n').count();
        let are_names =
            names.iter().all(|name| is_name(name)) && names.is_sorted_by(|one, next| one < next);
        let is_whole = text.last().is_none_or(|last| *last == b'\n') && lines == names.len();
        (is_whole && are_names && lines <= NAMES_MAX).then_some(selector)
    }

    /// Returns the bytes in memory besides the type itself.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }
}

/// Appends a field of a request as one line: of a selector, or of a key. A name (lower case) has no
/// `=`, a value no line end.
pub(crate) fn put_field(text: &mut Vec<u8>, name: &[u8], request: Request<'_>) {
    text.extend_from_slice(name);
    if name == b"accept-encoding" {
        text.push(b'=');
        text.extend_from_slice(accept_encoding(request).as_bytes());
    } else {
        let from = text.len();
        let mut is_there = false;
        for line in request.lines_named(name) {
            text.extend_from_slice(if is_there { b"," } else { b"=" });
            is_there = true;
            put_normalised(text, line);
        }
        if name == b"accept-language" {
            text[from..].make_ascii_lowercase();
        }
    }
    text.push(b'\n');
}

/// Appends a line with single spaces for white space, and none beside commas; quoted strings are
/// unchanged.
fn put_normalised(text: &mut Vec<u8>, line: &[u8]) {
    let (mut quoted, mut blank, mut at) = (false, false, 0);
    let mut last = b',';
    while let Some(&byte) = line.get(at) {
        at += 1;
        if !quoted && matches!(byte, b' ' | b'\t') {
            blank = true;
            continue;
        }
        if blank && last != b',' && byte != b',' {
            text.push(b' ');
        }
        (blank, last) = (false, byte);
        text.push(byte);
        match byte {
            b'"' => quoted = !quoted,
            b'\\' if quoted => {
                text.extend(line.get(at));
                at += 1;
            }
            _ => {}
        }
    }
}

/// Returns the content codings that a client accepts, in one canonical text for all ways to write
/// them. It is forwarded in place of the client's value, so that a server sees few variants. Only
/// `br`, `gzip` and `zstd` are known; without any of them it is `identity`, and also without the
/// field, because a client that cannot decode may omit it. (RFC 9110 §12.5.3)
pub fn accept_encoding(request: Request<'_>) -> &'static str {
    const KNOWN: [&[u8]; 3] = [b"br", b"gzip", b"zstd"];
    const TEXTS: [&str; 8] =
        ["identity", "br", "gzip", "br, gzip", "zstd", "br, zstd", "gzip, zstd", "br, gzip, zstd"];
    let (mut taken, mut named, mut any) = (0usize, 0usize, false);
    for member in request.lines_named(b"accept-encoding").flat_map(members) {
        let (coding, accepts) = coding_and_quality(member);
        if coding == b"*" {
            any = accepts;
        }
        let coding = if coding.eq_ignore_ascii_case(b"x-gzip") { b"gzip" } else { coding };
        if let Some(at) = KNOWN.iter().position(|known| known.eq_ignore_ascii_case(coding)) {
            taken = if accepts { taken | 1 << at } else { taken & !(1 << at) };
            named |= 1 << at;
        }
    }
    if any {
        taken |= !named & (TEXTS.len() - 1);
    }
    TEXTS[taken]
}

/// Returns a coding, and whether its quality is above 0. An unreadable coding is not accepted.
fn coding_and_quality(member: &[u8]) -> (&[u8], bool) {
    let mut parts = member.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
    let coding = parts.next().unwrap_or_default();
    let accepts = match (parts.next(), parts.next()) {
        (None, _) => true,
        (Some([b'q' | b'Q', b'=', quality @ ..]), None) => is_above_zero(quality),
        _ => false,
    };
    (coding, accepts)
}

/// Whether a `qvalue` of RFC 9110 §12.4.2 is above 0.
fn is_above_zero(quality: &[u8]) -> bool {
    match quality {
        [b'0', b'.', digits @ ..] => {
            digits.len() <= 3
                && digits.iter().all(u8::is_ascii_digit)
                && digits.iter().any(|&digit| digit != b'0')
        }
        [b'1'] => true,
        [b'1', b'.', zeros @ ..] => zeros.len() <= 3 && zeros.iter().all(|&digit| digit == b'0'),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::with_get;
    use proptest::prelude::*;

    fn vary(lines: &[&str]) -> Vary {
        let mut vary = Vary::default();
        lines.iter().for_each(|line| vary.add_line(line.as_bytes()));
        vary
    }

    fn names(lines: &[&str]) -> Vec<Box<[u8]>> {
        match vary(lines) {
            Vary::Names(names) => names,
            Vary::Anything => panic!("{lines:?} is anything"),
        }
    }

    fn selector(vary: &str, request: &str) -> Selector {
        with_get(request, |request| Selector::of(&names(&[vary]), request))
    }

    /// Whether the response to the first request also fits the second.
    fn same(vary: &str, first: &str, second: &str) -> bool {
        let stored = selector(vary, first);
        let matches = with_get(second, |request| stored.matches(request));
        assert_eq!(matches, stored == selector(vary, second), "{vary} {first} {second}");
        matches
    }

    /// RFC 9110 §12.5.5; RFC 9111 §4.1
    #[test]
    fn what_vary_names() {
        let cases: [(&[&str], &[&str]); 5] = [
            (&[], &[]),
            (&["", " , "], &[]),
            (&["Foo, bar", "FOO"], &["bar", "foo"]),
            (&["b,a,c"], &["a", "b", "c"]),
            (&["Accept-Encoding"], &["accept-encoding"]),
        ];
        for (lines, expected) in cases {
            let expected: Vec<Box<[u8]>> =
                expected.iter().map(|name| name.as_bytes().into()).collect();
            assert_eq!(names(lines), expected, "{lines:?}");
        }
        for lines in [
            ["*", ""],
            ["*, *", ""],
            ["*", "*"],
            [", *", ""],
            ["", "*"],
            ["*, Foo", ""],
            ["Foo, *", ""],
        ] {
            assert_eq!(vary(&lines), Vary::Anything, "{lines:?}");
        }
        for lines in
            [["Foo bar", "a"], ["Foo; a", ""], ["\"foo\"", ""], ["f\u{f6}o", ""], ["a=b", ""]]
        {
            assert_eq!(vary(&lines), Vary::Anything, "{lines:?}");
        }
        for name in [
            "X-Forwarded-For",
            "x-forwarded-any",
            "Forwarded",
            "X-Real-IP",
            "Via",
            "CDN-Loop",
            "Client-Cert",
            "Connection",
            "TE",
        ] {
            assert_eq!(vary(&["a", name]), Vary::Anything, "{name}");
        }
        let many: Vec<String> = (0..=NAMES_MAX).map(|i| format!("f{i}")).collect();
        assert_eq!(vary(&[&many.join(",")]), Vary::Anything);
        assert_eq!(names(&[&many[1..].join(","), "f1"]).len(), NAMES_MAX);
    }

    /// RFC 9111 §4.1: missing only matches missing; white space and line splits are ignored.
    #[test]
    fn which_requests_match() {
        assert!(same("Foo", "Foo: 1\r\n", "foo: 1\r\nOther: 3\r\n"));
        assert!(!same("Foo", "Foo: 1\r\n", "Foo: 2\r\n"));
        assert!(!same("Foo", "", "Foo: 1\r\n"));
        assert!(!same("Foo", "Foo: 1\r\n", ""));
        assert!(!same("Foo", "", "Foo:\r\n"));
        assert!(same("Foo", "", "Other: 1\r\n"));
        assert!(same("", "Foo: 1\r\n", "Foo: 2\r\n"));
        assert!(same("Foo, Bar", "Foo: 1\r\nBar: abc\r\n", "Bar: abc\r\nFoo: 1\r\n"));
        assert!(!same("Foo, Bar", "Foo: 1\r\nBar: abc\r\n", "Foo: abc\r\nBar: 1\r\n"));
        assert!(same("Foo", "Foo: 1, 2\r\n", "Foo: 1\r\nFoo: 2\r\n"));
        assert!(same("Foo", "Foo: 1,2\r\n", "Foo:  1 ,\t2 \r\n"));
        assert!(same("Foo", "Foo: a  b\r\n", "Foo: a\tb\r\n"));
        assert!(!same("Foo", "Foo: a b\r\n", "Foo: ab\r\n"));
        assert!(!same("Foo", "Foo: \"a, b\"\r\n", "Foo: \"a,b\"\r\n"));
        assert!(!same("Foo", "Foo: \"\\\", b\"\r\n", "Foo: \"\\\",b\"\r\n"));
        assert!(!same("Foo", "Foo: A\r\n", "Foo: a\r\n"));
        assert!(same(
            "Accept-Language",
            "Accept-Language: en, de\r\n",
            "Accept-Language: eN,De\r\n"
        ));
        assert!(!same(
            "Accept-Language",
            "Accept-Language: en, de\r\n",
            "Accept-Language: de, en\r\n"
        ));
        assert!(same(
            "Accept-Encoding",
            "Accept-Encoding: gzip, br;q=0.5\r\n",
            "Accept-Encoding: br,GZIP\r\n"
        ));
        assert!(!same("Accept-Encoding", "Accept-Encoding: gzip\r\n", "Accept-Encoding: br\r\n"));
        assert!(same("Cookie", "Cookie: a=b\r\n", "Cookie: a=b\r\n"));
    }

    /// RFC 9110 §12.5.3
    #[test]
    fn codings() {
        let cases = [
            ("", "identity"),
            ("Accept-Encoding:\r\n", "identity"),
            ("Accept-Encoding: identity\r\n", "identity"),
            ("Accept-Encoding: deflate\r\n", "identity"),
            ("Accept-Encoding: gzip, deflate, br, zstd\r\n", "br, gzip, zstd"),
            ("Accept-Encoding: zstd\r\nAccept-Encoding: X-GZip\r\n", "gzip, zstd"),
            ("Accept-Encoding: gzip;q=0, br; q=0.001, zstd;q=0.000\r\n", "br"),
            ("Accept-Encoding: gzip;q=1.000, br;q=1.001, zstd;q=2\r\n", "gzip"),
            ("Accept-Encoding: gzip;q=x, br;x=1, zstd;q=0.5;y\r\n", "identity"),
            ("Accept-Encoding: *\r\n", "br, gzip, zstd"),
            ("Accept-Encoding: gzip;q=0, *;q=0.5\r\n", "br, zstd"),
            ("Accept-Encoding: gzip, *;q=0\r\n", "gzip"),
            ("Accept-Encoding: gzip, gzip;q=0\r\n", "identity"),
        ];
        for (lines, expected) in cases {
            assert_eq!(with_get(lines, accept_encoding), expected, "{lines}");
        }
    }

    #[test]
    fn names_of_a_selector() {
        let stored = selector("b, Accept-Encoding, c", "c: x=y\r\n");
        assert_eq!(stored.names().collect::<Vec<_>>(), [&b"accept-encoding"[..], b"b", b"c"]);
        assert!(!stored.is_empty() && stored.bytes() > 0);
        assert!(selector("", "").is_empty());
    }

    proptest! {
        /// Values of one field never look like another field's, and a value equals only itself,
        /// spaces aside.
        #[test]
        fn different_values_differ(
            a in "[a=\",\\\\ ]{0,8}",
            b in "[a=\",\\\\ ]{0,8}",
            c in "[a=\",\\\\ ]{0,8}",
            d in "[a=\",\\\\ ]{0,8}",
        ) {
            let lines = |x: &str, y: &str| format!("F: {x}\r\nG: {y}\r\n");
            let bare = |text: &str| text.replace(' ', "");
            if same("F, G", &lines(&a, &b), &lines(&c, &d)) {
                prop_assert_eq!((bare(&a), bare(&b)), (bare(&c), bare(&d)));
            }
            prop_assert!(same("F, G", &lines(&a, &b), &lines(&a, &b)));
        }

        /// Normalised once is normalised for ever.
        #[test]
        fn normalising_is_idempotent(text in "[a=\",\\\\ \t]{0,20}") {

            let (mut once, mut twice) = (Vec::new(), Vec::new());
            put_normalised(&mut once, text.as_bytes());
            put_normalised(&mut twice, &once);
            prop_assert_eq!(once, twice);
        }

        #[test]
        fn any_vary_is_read(line in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut vary = Vary::default();
            vary.add_line(&line);
            let asks = line.split(|&byte| byte == b',').any(|member| member.trim_ascii() == b"*");
            prop_assert!(!asks || vary == Vary::Anything || line.contains(&b'"'));
        }
    }
}
