//! Credentials of the scheme Basic, as clients send them to the forward proxy or to a route with
//! `users`, and the challenges that request them. Pure. RFC 9110 §11, RFC 7617.
//!
//! Bound: [`CREDENTIALS_BYTES_MAX`] of the field.

use std::hint::black_box;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use weir_http::{FieldName, Fields};

use super::lookup::Credentials;

/// Longest value that is parsed.
const CREDENTIALS_BYTES_MAX: usize = 4096;

/// Why a request has no credentials that could be verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// It has no such field.
    Missing,
    /// It has two such fields, or one that is too long.
    Invalid,
}

/// Returns the value of Authorization or Proxy-Authorization.
///
/// # Errors
/// The client's: [`Unreadable`].
pub(crate) fn shown<'a>(
    fields: &Fields,
    name: FieldName,
    bytes: &'a [u8],
) -> Result<&'a [u8], Unreadable> {
    let mut lines = fields.all(name);
    let value = lines.next().ok_or(Unreadable::Missing)?.value.of(bytes);
    let is_one = lines.next().is_none() && value.len() <= CREDENTIALS_BYTES_MAX;
    is_one.then_some(value).ok_or(Unreadable::Invalid)
}

/// Parses credentials of the scheme Basic (RFC 7617 §2); None: they are invalid.
pub(crate) fn read_basic(value: &[u8]) -> Option<Credentials> {
    let (scheme, rest) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let pair = BASE64_STANDARD.decode(rest.trim_ascii_start()).ok()?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    let name = std::str::from_utf8(&pair[..colon]).ok()?;
    let clean = !name.is_empty() && !name.chars().any(char::is_control);
    clean.then(|| Credentials { name: name.into(), password: pair[colon + 1..].into() })
}

/// Whether these are the credentials that were correct before. The time it takes does not reveal
/// where they differ.
pub(crate) fn is_same(shown: &[u8], good: &[u8]) -> bool {
    let differences = shown.iter().zip(good).fold(0, |all, (shown, good)| all | (shown ^ good));
    shown.len() == good.len() && black_box(differences) == 0
}

/// Returns the value of Proxy-Authenticate or WWW-Authenticate: name and password are wanted, and
/// for what (RFC 7617 §2, §2.1).
pub(crate) fn challenge(realm: &str) -> String {
    let realm: String =
        realm.chars().filter(|c| !matches!(c, '"' | '\\') && !c.is_control()).collect();
    format!("Basic realm=\"{realm}\", charset=\"UTF-8\"")
}

#[cfg(test)]
mod tests {
    //! Proves: credentials are parsed as the RFC says, and a realm can't end its quotes. How:
    //! tables.

    use super::*;

    #[test]
    fn credentials() {
        // The example of RFC 7617 §2, and a password with a colon that is not UTF-8.
        let aladdin = read_basic(b"Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==").unwrap();
        assert_eq!((&*aladdin.name, &*aladdin.password), ("Aladdin", &b"open sesame"[..]));
        let odd = read_basic(b"BASIC   YTo6/w==").unwrap();
        assert_eq!((&*odd.name, &*odd.password), ("a", &b":\xff"[..]));
        for bad in [
            "",
            "Basic",
            "Basic ",
            "Basic YQ==",
            "Basic Og==",
            "Basic YQpiOmM=",
            "Bearer YTpi",
            "Basic YTpi!",
        ] {
            assert_eq!(read_basic(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn the_same() {
        for (shown, good, same) in [
            ("", "", true),
            ("Basic YTpi", "Basic YTpi", true),
            ("a", "b", false),
            ("a", "ab", false),
            ("ab", "a", false),
        ] {
            assert_eq!(is_same(shown.as_bytes(), good.as_bytes()), same, "{shown} {good}");
        }
    }

    #[test]
    fn challenges() {
        assert_eq!(challenge("b\u{fc}ro"), "Basic realm=\"b\u{fc}ro\", charset=\"UTF-8\"");
        assert_eq!(challenge("a\"\\\r\nb"), "Basic realm=\"ab\", charset=\"UTF-8\"");
    }
}
