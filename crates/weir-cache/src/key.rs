//! The key under which responses are stored (RFC 9111 §2, §4): the request, in the bytes that are
//! forwarded.
//!
//! A key from a normalised path would let `/a/%2e%2e/b` decide the response to `/b`. Keys are
//! compared byte by byte; a hash of one only finds candidates. Bounds: those of request heads.

use crate::request::Request;
use crate::vary::put_field;

/// Parts that the operator adds to keys, or leaves out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyRules {
    /// Names of query parameters that are left out; a name that ends with `*` matches all with that
    /// prefix. Compared as received.
    pub ignored_parameters: Vec<Vec<u8>>,
    /// Query parameters are sorted by their bytes.
    pub sorts_query: bool,
    /// Request fields that are part of the key, in lower case.
    pub fields: Vec<Vec<u8>>,
    /// Cookies that are part of the key.
    pub cookies: Vec<Vec<u8>>,
}

/// The target of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place<'a> {
    /// Name of the upstream: the same URL may have another response elsewhere.
    pub upstream: &'a [u8],
    /// `http` or `https`, as the client uses it.
    pub scheme: &'a [u8],
    /// Host and port that the client requests (RFC 9112 §3.3), as received.
    pub authority: &'a [u8],
    /// Path and query as they are forwarded; empty counts as `/`.
    pub path: &'a [u8],
}

/// Returns the key of a request: its URL in a line, then the upstream, then the operator's
/// additions. No part can contain the line end.
pub fn key(place: Place<'_>, rules: &KeyRules, request: Request<'_>) -> Vec<u8> {
    let mut key = Vec::new();
    put_key(&mut key, place, rules, request);
    key
}

/// Appends the key of a request to an empty text: [`key`].
pub fn put_key(key: &mut Vec<u8>, place: Place<'_>, rules: &KeyRules, request: Request<'_>) {
    put_url(key, place, rules);
    key.push(b'\n');
    key.extend_from_slice(place.upstream);
    key.push(b'\n');
    rules.fields.iter().for_each(|name| put_field(key, name, request));
    for name in &rules.cookies {
        key.extend_from_slice(name);
        for value in request.cookies(name) {
            key.push(b'=');
            key.extend_from_slice(value);
            key.push(b';');
        }
        key.push(b'\n');
    }
}

/// Returns the URL of a key, which is its first line: purges name it, and unsafe methods invalidate
/// it.
pub fn url(place: Place<'_>, rules: &KeyRules) -> Vec<u8> {
    let mut url = Vec::new();
    put_url(&mut url, place, rules);
    url
}

fn put_url(url: &mut Vec<u8>, place: Place<'_>, rules: &KeyRules) {
    // Including the upstream, which follows in a key.
    url.reserve(
        place.scheme.len() + place.authority.len() + place.path.len() + place.upstream.len() + 6,
    );
    url.extend_from_slice(place.scheme);
    url.extend_from_slice(b"://");
    let from = url.len();
    url.extend_from_slice(without_default_port(place.scheme, place.authority));
    url[from..].make_ascii_lowercase();
    put_path(url, place.path, rules);
}

/// Returns path and query for the request to the server that fills the store; None: unchanged.
/// Parts that the key leaves out are not sent: otherwise one client could have them reflected in a
/// response for all.
pub fn asked_path(path: &[u8], rules: &KeyRules) -> Option<Vec<u8>> {
    if rules.ignored_parameters.is_empty() && !rules.sorts_query {
        return None;
    }
    let mut asked = Vec::with_capacity(path.len() + 1);
    put_path(&mut asked, path, rules);
    (asked != path).then_some(asked)
}

/// Returns the URL of a key.
pub fn url_of(key: &[u8]) -> &[u8] {
    key.split(|&byte| byte == b'\n').next().unwrap_or_default()
}

/// Returns an authority without the default port of its scheme (RFC 9110 §4.2.3).
pub(crate) fn without_default_port<'a>(scheme: &[u8], authority: &'a [u8]) -> &'a [u8] {
    let port: &[u8] = if scheme == b"https" { b":443" } else { b":80" };
    match authority.strip_suffix(port) {
        // Not the end of an IPv6 address, which is in brackets.
        Some(host) if !host.is_empty() => host,
        _ => authority,
    }
}

fn put_path(url: &mut Vec<u8>, path: &[u8], rules: &KeyRules) {
    if !path.starts_with(b"/") && path != b"*" {
        url.push(b'/');
    }
    let mark = path
        .iter()
        .position(|&byte| byte == b'?')
        .filter(|_| rules.sorts_query || !rules.ignored_parameters.is_empty());
    let Some(mark) = mark else {
        url.extend_from_slice(path);
        return;
    };
    url.extend_from_slice(&path[..mark]);
    let all = path[mark + 1..].split(|&byte| byte == b'&');
    let mut kept: Vec<&[u8]> = all.filter(|parameter| !is_ignored(parameter, rules)).collect();
    if rules.sorts_query {
        // If a name occurs several times, servers may use the first one, or the last: these keep
        // their order.
        kept.sort_by_key(|parameter| name_of(parameter));
    }
    for (at, parameter) in kept.iter().enumerate() {
        url.push(if at == 0 { b'?' } else { b'&' });
        url.extend_from_slice(parameter);
    }
}

fn name_of(parameter: &[u8]) -> &[u8] {
    parameter.split(|&byte| byte == b'=').next().unwrap_or_default()
}

fn is_ignored(parameter: &[u8], rules: &KeyRules) -> bool {
    let name = name_of(parameter);
    rules.ignored_parameters.iter().any(|ignored| match ignored.strip_suffix(b"*") {
        Some(start) => name.starts_with(start),
        None => name == ignored,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::with_get;
    use proptest::prelude::*;

    fn place(scheme: &'static str, authority: &'static str, path: &'static str) -> Place<'static> {
        Place {
            upstream: b"app",
            scheme: scheme.as_bytes(),
            authority: authority.as_bytes(),
            path: path.as_bytes(),
        }
    }

    fn text(
        scheme: &'static str,
        authority: &'static str,
        path: &'static str,
        rules: &KeyRules,
    ) -> String {
        String::from_utf8(url(place(scheme, authority, path), rules)).expect("text")
    }

    /// The bytes that are forwarded, the host in lower case without the default port.
    #[test]
    fn urls() {
        let plain = KeyRules::default();
        let cases = [
            (("http", "A.Example", "/A/%2e%2e/b?x=Y&&"), "http://a.example/A/%2e%2e/b?x=Y&&"),
            (("http", "a:80", "/"), "http://a/"),
            (("http", "a:443", "/"), "http://a:443/"),
            (("https", "a:443", ""), "https://a/"),
            (("https", "a:80", "?q"), "https://a:80/?q"),
            (("http", "[::1]:80", "/"), "http://[::1]/"),
            (("http", "a:8080", "/?"), "http://a:8080/?"),
            (("http", "", "/"), "http:///"),
        ];
        for ((scheme, authority, path), expected) in cases {
            assert_eq!(text(scheme, authority, path, &plain), expected);
        }
    }

    #[test]
    fn queries() {
        let rules = KeyRules {
            ignored_parameters: vec![b"utm_*".to_vec(), b"gclid".to_vec()],
            ..KeyRules::default()
        };
        let query = |path| text("http", "a", path, &rules);
        assert_eq!(query("/?utm_source=x&b=1&gclid=2&a=3&gclidx=4"), "http://a/?b=1&a=3&gclidx=4");
        assert_eq!(query("/?utm_source=x"), "http://a/");
        assert_eq!(query("/?UTM_source&x=utm_"), "http://a/?UTM_source&x=utm_");
        assert_eq!(query("/utm_x"), "http://a/utm_x");
        let asked = |path: &str| {
            asked_path(path.as_bytes(), &rules).map(|path| String::from_utf8(path).expect("text"))
        };
        assert_eq!(asked("/?b=1&utm_x=%3Cscript%3E&a").as_deref(), Some("/?b=1&a"));
        assert_eq!((asked("/a?b=1"), asked("/utm_x")), (None, None));
        assert_eq!(asked_path(b"/?utm_x", &KeyRules::default()), None);
        let sorted = KeyRules { sorts_query: true, ..KeyRules::default() };
        assert_eq!(text("http", "a", "/?b=1&a=2&a=1", &sorted), "http://a/?a=2&a=1&b=1");
    }

    #[test]
    fn what_the_operator_adds() {
        let rules = KeyRules {
            fields: vec![b"x-device".to_vec()],
            cookies: vec![b"lang".to_vec()],
            ..KeyRules::default()
        };
        let of =
            |lines: &str| with_get(lines, |request| key(place("http", "a", "/"), &rules, request));
        let none = of("");
        assert_eq!(none, b"http://a/\napp\nx-device\nlang\n");
        assert_eq!(
            of("X-Device:  a , b\r\nCookie: x=1; lang=de\r\n"),
            b"http://a/\napp\nx-device=a,b\nlang=de;\n"
        );
        assert_ne!(of("X-Device:\r\n"), none);
        assert_ne!(of("X-Device: a\r\nX-Device: b\r\n"), of("X-Device: a=b\r\n"));
        assert_ne!(of("Cookie: lang=\r\n"), none);
        assert_eq!(of("Cookie: langs=de\r\nOther: 1\r\n"), none);
        assert_eq!(url_of(&none), b"http://a/");
        let elsewhere = Place { upstream: b"files", ..place("http", "a", "/") };
        let other = with_get("", |request| key(elsewhere, &rules, request));
        assert_ne!(other, none);
    }

    proptest! {
        /// Without rules two requests share a key only if upstream, scheme, host and path are the
        /// same.
        #[test]
        fn other_paths_have_other_keys(a in "/[a-b/?&=%]{0,6}", b in "/[a-b/?&=%]{0,6}") {

            let of = |path: &str| {
                url(
                    Place {
                        upstream: b"u",
                        scheme: b"http",
                        authority: b"h",
                        path: path.as_bytes(),
                    },
                    &KeyRules::default(),
                )
            };
            prop_assert_eq!(of(&a) == of(&b), a == b);
        }

        /// Leaving a parameter out never changes the others or their order.
        #[test]
        fn others_stay(parameters in prop::collection::vec("[a-c]=[0-9]?", 0..6)) {
            let rules = KeyRules { ignored_parameters: vec![b"a".to_vec()], ..KeyRules::default() };
            let path = format!("/?{}", parameters.join("&"));
            let found = url(
                Place { upstream: b"u", scheme: b"http", authority: b"h", path: path.as_bytes() },
                &rules,
            );
            let kept: Vec<&str> =
                parameters.iter().map(String::as_str).filter(|p| !p.starts_with("a=")).collect();
            let mut expected = String::from("http://h/");
            if parameters.is_empty() {
                expected.push('?');
            } else if !kept.is_empty() {
                expected.push_str(&format!("?{}", kept.join("&")));
            }
            prop_assert_eq!(String::from_utf8(found).expect("text"), expected);
        }
    }
}
