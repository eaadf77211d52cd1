//! Proves: which texts are targets; where they lead; and that no request leads to another host than
//! the text says, or to an invalid URL. How: tables, and requests generated from characters with a
//! meaning in URLs, judged by a separate URL parser.

use proptest::prelude::*;
use weir_http::{Fields, Limits};

use super::*;

/// The target of a request by a text; None: its head is refused before.
fn led(text: &str, request: &[u8], path: Option<&str>) -> Option<Result<String, RuleFault>> {
    let mut fields = Fields::default();
    let head = weir_http::parse_request(request, &Limits::default(), &mut fields).ok()??;
    let peer = "192.0.2.1".parse().unwrap();
    let known = Known {
        head: &head,
        fields: &fields,
        bytes: request,
        client: peer,
        peer,
        sealed: false,
        identity: None,
        user: None,
        upstream: "",
    };
    let to = Location::compile(text).unwrap().render(&known, path.map(str::as_bytes));
    Some(to.map(|to| String::from_utf8(to).unwrap()))
}

#[test]
fn where_texts_lead() {
    let get = |target: &str, host: &str| {
        format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nX-A: a b/c\r\n\r\n")
    };
    for (text, target, host, expected) in [
        (
            "https://$host$request_uri",
            "/a/b?c=d&e",
            "A.Example.:8080",
            "https://a.example/a/b?c=d&e",
        ),
        ("https://$host:8443$request_uri", "/", "[2001:db8::1]:80", "https://[2001:db8::1]:8443/"),
        ("https://www.$host/$request_uri", "/a", "example.org", "https://www.example.org/a"),
        ("HTTPS://Fixed.example", "/a", "b", "https://Fixed.example"),
        ("http://$host?from=$request_uri", "/a?b=c&d", "x", "http://x?from=%2Fa%3Fb%3Dc%26d"),
        ("https://login.example/?back=$scheme://$host$request_uri", "/a b", "x", ""),
        (
            "https://login.example/?back=$scheme://$host$request_uri",
            "/a",
            "x",
            "https://login.example/?back=http://x%2Fa",
        ),
        ("https://$host/$http_x_a/z", "/", "x", "https://x/a%20b%2Fc/z"),
        (
            "https://$host$request_uri",
            "http://other.example:81/p?q",
            "x",
            "https://other.example/p?q",
        ),
        ("https://$host$request_uri", "http://other.example", "x", "https://other.example/"),
        ("https://$host$request_uri", "//evil.example/x", "x", "https://x//evil.example/x"),
        ("$request_uri", "///evil.example/x", "x", "/evil.example/x"),
        ("/$request_uri", "//evil.example", "x", "/evil.example"),
        ("/$http_none/evil.example", "/", "x", "/evil.example"),
        (
            "/new$request_uri",
            "/a?x=\"<>\\^`{|}[]&%2f%zz%",
            "x",
            "/new/a?x=%22%3C%3E%5C%5E%60%7B%7C%7D%5B%5D&%2f%25zz%25",
        ),
        ("/a/$$/%41?b#c$http_x_a", "/", "x", "/a/$/%41?b#ca%20b%2Fc"),
        ("https://$host/$request_method/$remote_addr", "/", "x", "https://x/GET/192.0.2.1"),
    ] {
        let found = led(text, get(target, host).as_bytes(), None);
        let expected = (!expected.is_empty()).then(|| Ok(expected.to_owned()));
        assert_eq!(found, expected, "{text} {target} {host}");
    }
    let request = get("/api/v1", "x");
    assert_eq!(
        led("/v2$request_uri", request.as_bytes(), Some("/v1?q")),
        Some(Ok("/v2/v1?q".to_owned()))
    );
    assert_eq!(
        led("$request_uri", b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", None),
        Some(Ok("/".to_owned()))
    );
}

#[test]
fn c10_requests_that_lead_nowhere() {
    let text = "https://$host$request_uri";
    assert_eq!(led(text, b"GET / HTTP/1.0\r\n\r\n", None), Some(Err(RuleFault::Host)));
    let address = b"GET / HTTP/1.1\r\nHost: [::1]\r\n\r\n";
    assert_eq!(led("https://www.$host", address, None), Some(Err(RuleFault::Host)));
    let long = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "a".repeat(300));
    assert_eq!(led(text, long.as_bytes(), None), Some(Err(RuleFault::Host)));
    let much = format!("GET / HTTP/1.1\r\nHost: a\r\nX-A: {}\r\n\r\n", "/".repeat(1000));
    let words = format!("/{}", "$http_x_a".repeat(32));
    assert_eq!(led(&words, much.as_bytes(), None), Some(Err(RuleFault::TooLarge)));
}

#[test]
fn what_is_no_target() {
    use LocationError::{Authority, Behind, Character, Form, Host, Text, Upstream};
    for (text, expected) in [
        ("", Form),
        ("a", Form),
        ("//a", Form),
        ("/\\a", Form),
        ("$scheme://a", Form),
        ("$http_x", Form),
        ("ftp://a", Form),
        ("javascript:alert(1)", Form),
        ("https:/a", Form),
        ("https:// a", Character(' ')),
        ("https://a/ä", Character('ä')),
        ("/%4", Character('%')),
        ("/a[", Character('[')),
        ("/a#b#c", Character('#')),
        ("/a#$host#c", Character('#')),
        ("https://", Host),
        ("https:///a", Host),
        ("https://$request_uri", Host),
        ("https://a@$host/", Host),
        ("https://$host@a/", Host),
        ("https://$host:99999/", Host),
        ("https://$http_host/", Authority("http_host".to_owned())),
        ("https://$host$host", Authority("host".to_owned())),
        ("https://a$remote_addr/", Authority("remote_addr".to_owned())),
        ("https://$host$scheme", Authority("scheme".to_owned())),
        ("$request_uri?a", Behind),
        ("/a$request_uri$host", Behind),
        ("/$upstream_name", Upstream),
        ("/$status", Text(TextError::Late(Name::Status))),
        ("/\r\n", Text(TextError::Template(crate::observe::access::TemplateError::Control))),
    ] {
        let found = Location::compile(text);
        assert_eq!(found, Err(expected), "{text}");
        assert!(!found.unwrap_err().to_string().is_empty());
    }
}

/// A URL, parsed by the grammar of RFC 3986 §3 alone: scheme and host with port, empty for a path.
fn origin(url: &str) -> Result<(&str, &str), String> {
    let in_path = |c: char| c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:@/?#%".contains(c);
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) if scheme.chars().all(|c| c.is_ascii_alphabetic()) => (scheme, rest),
        _ => ("", url),
    };
    let host = if scheme.is_empty() {
        ""
    } else {
        &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())]
    };
    let path = &rest[host.len()..];
    if scheme.is_empty() && (!path.starts_with('/') || path.starts_with("//")) {
        return Err(format!("{url:?} is no path of the same host"));
    }
    if !path.chars().all(in_path) || path.matches('#').count() > 1 {
        return Err(format!("{url:?} has what can't stand in a URL"));
    }
    let escapes = path.match_indices('%').all(|(at, _)| {
        path.get(at + 1..at + 3)
            .is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
    });
    if escapes { Ok((scheme, host)) } else { Err(format!("{url:?} has half an escape")) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn c10_no_request_leads_elsewhere(
        parts in prop::collection::vec(prop::sample::select(
            &[
                "/", "//", "\\", "@", "evil.example", ":", "?", "#", "%", "%2f", "%0d%0a",
                "http://", "a", ".", "..", "\u{7f}", "\"", "&", "%5c", "x@y"
            ][..],
        ), 0..10),
        front in prop::sample::select(
            &["/", "//", "http://b.example/", "http://b.example", "*", ""][..]
        ),
        host in prop::sample::select(&[
            "b.example", "B.example:80", "[::1]", "b.example.", "a@b", "b!$&'()*+;=c", "a/b", ""
        ][..]),
        value in "[ -~\u{80}-\u{ff}]{0,20}",
        text in prop::sample::select(&[
            "https://$host$request_uri", "https://own.example:1$request_uri", "$request_uri",
            "/$request_uri", "/a$request_uri", "/$http_x/$http_x",
            "https://$host/$http_x?$http_x#$http_x",
            "https://own.example:1?a=$request_uri&b=$http_host",
            "https://own.example:1/$http_x$request_uri",
        ][..]),
    ) {
        let target = format!("{front}{}", parts.concat());
        let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nX: {value}\r\n\r\n");
        let Some(Ok(to)) = led(text, request.as_bytes(), None) else { return Ok(()) };
        let (scheme, authority) = origin(&to).map_err(TestCaseError::fail)?;
        // An absolute target names its host (RFC 9112 §3.2.2).
        let asked = target
            .strip_prefix("http://")
            .map_or(host, |rest| rest.split(['/', '?']).next().unwrap_or(rest));
        if !text.starts_with("https") {
            prop_assert_eq!((scheme, authority), ("", ""));
        } else if text.contains("own.example") {
            prop_assert_eq!((scheme, authority), ("https", "own.example:1"));
        } else {
            let bare = asked.to_ascii_lowercase();
            let bare = bare.strip_suffix(":80").unwrap_or(&bare);
            prop_assert_eq!((scheme, authority), ("https", bare.strip_suffix('.').unwrap_or(bare)));
        }
    }
}
