//! URLs that a response invalidates: after an unsafe method its target, Location and
//! Content-Location (RFC 9111 §4.4).
//!
//! Only URLs of the same origin, so that no site can empty the cache of another one.

use weir_http::Method;

use crate::key::{Place, without_default_port};

/// Whether a response with this status to this method invalidates stored ones: for every method
/// that is not safe, including unknown ones, and only without error.
pub fn invalidates(method: Method, status: u16) -> bool {
    !method.is_safe() && (200..400).contains(&status)
}

/// Returns path and query of a reference in the response for `base` (RFC 3986 §5.2), if it is of
/// the same origin; without its fragment.
pub fn same_origin_path(base: Place<'_>, reference: &[u8]) -> Option<Vec<u8>> {
    let reference = reference.split(|&byte| byte == b'#').next().unwrap_or_default();
    let rest = match scheme_len(reference) {
        Some(len) if !reference[..len].eq_ignore_ascii_case(base.scheme) => return None,
        Some(len) => &reference[len + 1..],
        None => reference,
    };
    if let Some(rest) = rest.strip_prefix(b"//") {
        let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
        return is_same_authority(base, &rest[..end]).then(|| normal_path(&rest[end..]));
    }
    if scheme_len(reference).is_some() {
        return None; // `http:path`, which is never intended
    }
    let (base_path, base_query) = split_query(base.path);
    match rest {
        [] => Some([if base_path.is_empty() { b"/" } else { base_path }, base_query].concat()),
        [b'?', ..] => Some([if base_path.is_empty() { b"/" } else { base_path }, rest].concat()),
        [b'/', ..] => Some(normal_path(rest)),
        _ => {
            let folder = base_path
                .iter()
                .rposition(|&byte| byte == b'/')
                .map_or(&b"/"[..], |at| &base_path[..=at]);
            Some(normal_path(&[folder, rest].concat()))
        }
    }
}

/// Returns the number of letters of the scheme before its colon; None: a relative reference.
fn scheme_len(reference: &[u8]) -> Option<usize> {
    let len = reference.iter().position(|byte| matches!(byte, b':' | b'/' | b'?'))?;
    let is_scheme = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    let begins = reference.first().is_some_and(u8::is_ascii_alphabetic);
    (reference[len] == b':' && begins && reference[..len].iter().all(is_scheme)).then_some(len)
}

fn is_same_authority(base: Place<'_>, authority: &[u8]) -> bool {
    let own = without_default_port(base.scheme, base.authority);
    without_default_port(base.scheme, authority).eq_ignore_ascii_case(own)
}

fn split_query(path: &[u8]) -> (&[u8], &[u8]) {
    path.split_at(path.iter().position(|&byte| byte == b'?').unwrap_or(path.len()))
}

/// Returns a path that begins with a slash and has no dot segments (RFC 3986 §5.2.4), and the
/// unchanged query.
fn normal_path(text: &[u8]) -> Vec<u8> {
    let (path, query) = split_query(text);
    let mut normal: Vec<u8> = Vec::with_capacity(text.len() + 1);
    let mut segments =
        path.strip_prefix(b"/").unwrap_or(path).split(|&byte| byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            b"." | b".." => {
                if segment == b".." {
                    normal.truncate(normal.iter().rposition(|&byte| byte == b'/').unwrap_or(0));
                }
                if is_last {
                    normal.push(b'/');
                }
            }
            _ => {
                normal.push(b'/');
                normal.extend_from_slice(segment);
            }
        }
    }
    normal.extend_from_slice(query);
    normal
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BASE: Place<'_> =
        Place { upstream: b"u", scheme: b"http", authority: b"a.example", path: b"/b/c/d;p?q" };

    fn path(reference: &str) -> Option<String> {
        same_origin_path(BASE, reference.as_bytes())
            .map(|path| String::from_utf8(path).expect("text"))
    }

    /// RFC 9111 §4.4
    #[test]
    fn who_invalidates() {
        for method in [Method::Post, Method::Put, Method::Delete, Method::Patch, Method::Other] {
            for status in [200, 201, 204, 301, 303, 399] {
                assert!(invalidates(method, status), "{method:?} {status}");
            }
            for status in [100, 199, 400, 404, 500, 503] {
                assert!(!invalidates(method, status), "{method:?} {status}");
            }
        }
        for method in [Method::Get, Method::Head, Method::Options, Method::Trace, Method::Propfind]
        {
            assert!(!invalidates(method, 200), "{method:?}");
        }
    }

    /// The examples of RFC 3986 §5.4, and references to other origins.
    #[test]
    fn references() {
        let cases = [
            ("g", "/b/c/g"),
            ("./g", "/b/c/g"),
            ("g/", "/b/c/g/"),
            ("/g", "/g"),
            ("//a.example", "/"),
            ("//A.Example:80/x?y", "/x?y"),
            ("http://a.example/x#f", "/x"),
            ("HTTP://a.example?y", "/?y"),
            ("?y", "/b/c/d;p?y"),
            ("g?y", "/b/c/g?y"),
            ("#s", "/b/c/d;p?q"),
            ("g#s", "/b/c/g"),
            (";x", "/b/c/;x"),
            ("", "/b/c/d;p?q"),
            (".", "/b/c/"),
            ("./", "/b/c/"),
            ("..", "/b/"),
            ("../g", "/b/g"),
            ("../..", "/"),
            ("../../g", "/g"),
            ("../../../g", "/g"),
            ("/./g", "/g"),
            ("/../g", "/g"),
            ("g.", "/b/c/g."),
            ("..g", "/b/c/..g"),
            ("./g/.", "/b/c/g/"),
            ("g/../h", "/b/c/h"),
            ("g;x=1/../y", "/b/c/y"),
            ("g?y/../x", "/b/c/g?y/../x"),
            ("/a//b", "/a//b"),
            ("1:x", "/b/c/1:x"),
        ];
        for (reference, expected) in cases {
            assert_eq!(path(reference).as_deref(), Some(expected), "{reference}");
        }
        for other in [
            "https://a.example/x",
            "http://b.example/x",
            "http://a.example:8080/x",
            "http://u@a.example/x",
            "//a.example.evil/x",
            "//",
            "mailto:x",
            "http:g",
        ] {
            assert_eq!(path(other), None, "{other}");
        }
        let root = Place { path: b"", ..BASE };
        assert_eq!(same_origin_path(root, b"x").as_deref(), Some(&b"/x"[..]));
        assert_eq!(same_origin_path(root, b"").as_deref(), Some(&b"/"[..]));
    }

    proptest! {
        /// Whatever a server sends, an invalidated path has no dot segments.
        #[test]
        fn paths_are_normal(reference in "[a./?#:]{0,12}|[ -~]{0,16}") {

            if let Some(path) = path(&reference).filter(|_| !reference.is_empty()) {
                prop_assert!(path.starts_with('/'), "{}", path);
                let plain = path.split('?').next().unwrap_or_default();
                prop_assert!(
                    plain.split('/').all(|segment| segment != "." && segment != ".."),
                    "{}",
                    path
                );
            }
        }
    }
}
