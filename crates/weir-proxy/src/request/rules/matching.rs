//! Conditions of a route besides host, prefix of the path and method: a field, a member of the
//! query, a cookie, the path.
//!
//! Checked by [`RouteTable::find`](crate::request::route::RouteTable::find) where a route has such
//! conditions. Bound: linear in the head.

use crate::placement::cookie;
use crate::request::nonidempotent::TargetMatch;
use crate::request::route::Asked;

/// One condition.
#[derive(Debug, Clone)]
pub struct Condition {
    /// The part of the request that it examines.
    pub subject: Subject,
    /// What one of its values has to match.
    pub value: TargetMatch,
    /// It must not match.
    pub not: bool,
}

/// The part of a request that a condition examines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// Lines of the field of this name, compared without case.
    Header(String),
    /// Members of the query of this name. Names and values are compared decoded, with `+` as a
    /// space.
    Query(String),
    /// Cookies of this name, compared with case.
    Cookie(String),
    /// The path: decoded, without dot segments, empty segments, parameters and query.
    Path,
}

impl Condition {
    /// Whether a request with this normalised path meets it.
    pub(crate) fn is_met(&self, path: &[u8], asked: &Asked<'_>) -> bool {
        let Asked { path: target, fields, bytes, .. } = *asked;
        let fits = |value: &[u8]| self.value.matches(value);
        let found = match &self.subject {
            Subject::Header(name) => {
                let lines = fields.as_slice().iter().filter(|field| !field.listed);
                let mut mine = lines
                    .filter(|field| field.name.of(bytes).eq_ignore_ascii_case(name.as_bytes()));
                mine.any(|field| fits(field.value.of(bytes)))
            }
            Subject::Query(name) => query(target)
                .any(|(key, value)| key.is(name.as_bytes()) && fits(&value.collect::<Vec<u8>>())),
            Subject::Cookie(name) => cookie::values(fields, bytes, name.as_bytes()).any(fits),
            Subject::Path => fits(path),
        };
        found != self.not
    }
}

/// The members of a query, to be decoded: name and value; the value is empty without a `=`.
pub(crate) fn query(target: &[u8]) -> impl Iterator<Item = (Decoded<'_>, Decoded<'_>)> {
    let query =
        target.iter().position(|byte| *byte == b'?').map_or(&b""[..], |at| &target[at + 1..]);
    query.split(|byte| *byte == b'&').filter(|member| !member.is_empty()).map(|member| {
        let at = member.iter().position(|byte| *byte == b'=').unwrap_or(member.len());
        (Decoded(&member[..at]), Decoded(member.get(at + 1..).unwrap_or_default()))
    })
}

/// Bytes with escapes decoded; a `%` without two digits represents itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decoded<'a>(&'a [u8]);

impl Iterator for Decoded<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        let (&byte, behind) = self.0.split_first()?;
        let digit = |at: usize| behind.get(at).and_then(|&byte| char::from(byte).to_digit(16));
        let (byte, used) = match (byte, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => ((high << 4 | low) as u8, 2),
            (b'+', ..) => (b' ', 0),
            _ => (byte, 0),
        };
        self.0 = &behind[used..];
        Some(byte)
    }
}

impl Decoded<'_> {
    fn is(self, name: &[u8]) -> bool {
        self.eq(name.iter().copied())
    }

    /// Whether some server reads this name as `name`: PHP ends names at NUL, drops leading spaces,
    /// and reads `.` and spaces as `_`
    /// (<https://www.php.net/manual/en/language.variables.external.php>).
    pub(crate) fn reads_as(self, name: &[u8]) -> bool {
        let read = |byte: u8| if byte == b'.' || byte == b' ' { b'_' } else { byte };
        let mine = self.skip_while(|byte| *byte == b' ').take_while(|byte| *byte != 0).map(read);
        mine.eq(name.iter().copied().map(read))
    }
}

/// Whether a name of a field may be read as `other`: many applications read `_` as `-`.
pub(crate) fn reads_as(name: &[u8], other: &[u8]) -> bool {
    let read = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    name.len() == other.len() && name.iter().map(read).eq(other.iter().map(read))
}

#[cfg(test)]
mod tests {
    //! Proves: which requests meet a condition, including those that write it in unusual ways. How:
    //! a table.

    use weir_http::Fields;

    use super::*;

    fn meets(subject: &Subject, value: &str, target: &str, lines: &[&str]) -> bool {
        let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        let text = format!("GET {target} HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let mut fields = Fields::default();
        weir_http::parse_request(text.as_bytes(), &weir_http::Limits::default(), &mut fields)
            .unwrap()
            .unwrap();
        let value = match value {
            "*" => TargetMatch::Any,
            _ => TargetMatch::Eq(value.to_owned()),
        };
        let condition = |not| Condition { subject: subject.clone(), value: value.clone(), not };
        let asked = Asked {
            listener: None,
            sealed: false,
            host: b"a",
            path: target.as_bytes(),
            method: b"GET",
            fields: &fields,
            bytes: text.as_bytes(),
        };
        let met = condition(false).is_met(b"/", &asked);
        assert_ne!(met, condition(true).is_met(b"/", &asked));
        met
    }

    #[test]
    fn headers() {
        let is = |value: &str, lines: &[&str]| {
            meets(&Subject::Header("x-a".to_owned()), value, "/", lines)
        };
        assert!(is("*", &["X-A:"]) && is("1", &["x-a: 1 "]) && is("1", &["X-A: 2", "X-A: 1"]));
        assert!(!is("*", &["X-B: 1"]) && !is("1", &["X-A: 1, 2"]) && !is("*", &[]));
        // Hop-by-hop fields between the client and weir are not for routes.
        assert!(!is("*", &["Connection: x-a", "X-A: 1"]));
    }

    #[test]
    fn queries() {
        let is = |value: &str, target: &str| {
            meets(&Subject::Query("v 1".to_owned()), value, target, &[])
        };
        assert!(
            is("a", "/?v+1=a")
                && is("a", "/?%76+1=%61")
                && is("a", "/?v+1=b&v+1=a")
                && is("", "/?v+1")
        );
        assert!(is("a", "/?b&v%201=a") && is("a", "/?&v+1=a") && !is("a", "/??v+1=a"));
        assert!(
            !is("*", "/v+1=a")
                && !is("*", "/?v+11=a")
                && !is("a", "/?v+1=a%")
                && is("a%", "/?v+1=a%")
        );
    }

    #[test]
    fn cookies() {
        let is = |value: &str, lines: &[&str]| {
            meets(&Subject::Cookie("beta".to_owned()), value, "/", lines)
        };
        assert!(is("*", &["Cookie: a=1; beta=0"]) && is("1", &["Cookie: beta=0; beta=1"]));
        assert!(!is("*", &["Cookie: Beta=1; abeta=1"]) && !is("*", &[]));
    }
}
