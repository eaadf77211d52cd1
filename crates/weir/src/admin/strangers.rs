//! Detects requests to the metrics listener from a browser under the control of a foreign page.
//! With a name that leads here for a moment (DNS rebinding), such a page could read the responses.
//! Called by `routes`. Pure.
//!
//! A script cannot change Host, and an attacker can own only names with a dot. So weir serves
//! requests for an address, for `localhost`, for a name without a dot, for the name of this
//! machine, or for a name of `metrics-hosts`. A request for another name passes if it is for a
//! program and no browser has sent it: Prometheus uses whatever name its target has. Resources for
//! browsers ([`Meant`]) have no such exception.

use std::net::IpAddr;

use hyper::HeaderMap;
use hyper::Uri;
use hyper::header::{ACCEPT_LANGUAGE, COOKIE, HOST, HeaderName, ORIGIN, REFERER, USER_AGENT};

/// Longest displayed name.
const SHOWN_MAX: usize = 80;

/// The reader of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meant {
    /// A browser: the live page.
    Browser,
    /// A program.
    Program,
}

/// Facts about the listener.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<'a> {
    /// `metrics-hosts`, in lower case.
    pub(super) hosts: &'a [String],
    /// The name of this machine.
    pub(super) machine: &'a str,
}

/// Returns why a request is rejected; None: it is not.
pub(super) fn refused(
    meant: Meant,
    uri: &Uri,
    headers: &HeaderMap,
    known: Known<'_>,
) -> Option<String> {
    if is_embedded(headers) {
        return Some("a page of another site sent this request".to_owned());
    }
    let named = headers.get_all(HOST).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    let all = named.chain(uri.authority().map(|authority| authority.as_str().into()));
    let foreign = all
        .map(|authority| host(&authority).to_ascii_lowercase())
        .find(|host| !is_ours(host, known))?;
    if meant == Meant::Program && !is_browser(headers) {
        return None;
    }
    let shown: String = foreign
        .chars()
        .take(SHOWN_MAX)
        .map(|c| if c.is_ascii_graphic() { c } else { '?' })
        .collect();
    Some(format!(
        "a browser requested the host `{shown}`, a name that another site may have pointed here; \
            use the address, or write `metrics-hosts \"{shown}\"`"
    ))
}

/// Returns the host of an authority, without the port and a final dot.
fn host(authority: &str) -> &str {
    let host = match authority.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, port)) if port.is_empty() || port.starts_with(':') => host,
            _ => authority,
        },
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    };
    host.strip_suffix('.').unwrap_or(host)
}

/// Whether no attacker can own this name.
fn is_ours(host: &str, known: Known<'_>) -> bool {
    let is_named = |pattern: &String| match pattern.strip_prefix('*') {
        Some(domain) => domain.is_empty() || host.len() > domain.len() && host.ends_with(domain),
        None => pattern == host,
    };
    host.parse::<IpAddr>().is_ok()
        || !host.contains('.')
        || host.ends_with(".localhost")
        || host.eq_ignore_ascii_case(known.machine)
        || known.hosts.iter().any(is_named)
}

/// Whether a page of another site makes a browser load it as a part of that page (Fetch Metadata).
fn is_embedded(headers: &HeaderMap) -> bool {
    let is = |name: &'static str, word: &str| {
        headers
            .get(HeaderName::from_static(name))
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(word.as_bytes()))
    };
    is("sec-fetch-site", "cross-site") && !is("sec-fetch-mode", "navigate")
}

/// Whether a browser has sent the request: it has fields that browsers send and scripts cannot
/// remove, and that programs do not send.
fn is_browser(headers: &HeaderMap) -> bool {
    let has = |name: &HeaderName| headers.contains_key(name);
    let is_fetch = headers.keys().any(|name| name.as_str().starts_with("sec-"));
    let agent =
        headers.get(USER_AGENT).is_some_and(|value| value.as_bytes().starts_with(b"Mozilla/"));
    is_fetch || agent || [ACCEPT_LANGUAGE, COOKIE, ORIGIN, REFERER].iter().any(has)
}

#[cfg(test)]
mod tests {
    //! Proves: a browser that a foreign name has led here gets nothing, whatever the request.
    //! Requests of people for an address or a local name get everything, as do programs' requests
    //! for any name. How: a table of requests.

    use hyper::header::HeaderValue;

    use super::*;

    const CHROME: [(&str, &str); 2] = [("user-agent", "Mozilla/5.0"), ("accept-language", "de")];

    fn verdict(
        meant: Meant,
        uri: &str,
        hosts: &[&str],
        fields: &[(&'static str, &str)],
        configured: &[&str],
    ) -> Option<String> {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, HeaderValue::from_bytes(host.as_bytes()).unwrap());
        }
        for (name, value) in fields {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        let configured: Vec<String> = configured.iter().map(|name| (*name).to_owned()).collect();
        refused(
            meant,
            &uri.parse().unwrap(),
            &headers,
            Known { hosts: &configured, machine: "proxy1.corp.test" },
        )
    }

    fn passes(
        meant: Meant,
        host: &str,
        fields: &[(&'static str, &str)],
        configured: &[&str],
    ) -> bool {
        verdict(meant, "/", &[host], fields, configured).is_none()
    }

    #[test]
    fn names_that_nobody_else_can_have() {
        let own = [
            "127.0.0.1:9100",
            "10.0.0.1",
            "[::1]:9100",
            "[2001:db8::1]",
            "localhost:9100",
            "LOCALHOST",
            "localhost.",
            "a.localhost",
            "weir:9100",
            "weir",
            "proxy1.corp.test:9100",
            "Proxy1.Corp.Test.",
            "",
        ];
        let foreign = [
            "evil.test",
            "evil.test:9100",
            "127.0.0.1.evil.test",
            "localhost.evil.test",
            "a.proxy1.corp.test",
            "xlocalhost.test",
            "1.2.3",
            "[::1].evil.test",
            "evil.test:80:90",
            "evil.test@127.0.0.1:9100",
            "\u{e4}.test",
        ];
        for meant in [Meant::Browser, Meant::Program] {
            assert!(own.iter().all(|host| passes(meant, host, &CHROME, &[])), "{meant:?}");
            for host in foreign {
                assert!(!passes(meant, host, &CHROME, &[]), "{meant:?} {host}");
            }
        }
    }

    #[test]
    fn programs_may_ask_for_any_name() {
        let prometheus = [
            ("user-agent", "Prometheus/3.0.0"),
            ("accept", "application/openmetrics-text"),
            ("accept-encoding", "gzip"),
        ];
        assert!(passes(Meant::Program, "weir.example.org:9100", &prometheus, &[]));
        assert!(
            !passes(Meant::Browser, "weir.example.org:9100", &prometheus, &[]),
            "the page is for browsers"
        );
        for (name, value) in [
            ("origin", "http://evil.test"),
            ("referer", "http://evil.test/"),
            ("sec-fetch-site", "same-origin"),
            ("cookie", "a=b"),
            ("accept-language", "*"),
            ("user-agent", "Mozilla/5.0"),
            ("sec-ch-ua", "x"),
        ] {
            assert!(
                !passes(Meant::Program, "weir.example.org:9100", &[(name, value)], &[]),
                "{name}"
            );
        }
    }

    #[test]
    fn names_that_are_configured() {
        for (configured, host, may) in [
            ("weir.example.org", "weir.example.org:9100", true),
            ("weir.example.org", "x.weir.example.org", false),
            ("*.example.org", "weir.Example.org", true),
            ("*.example.org", "example.org", false),
            ("*.example.org", "badexample.org", false),
            ("*", "evil.test", true),
        ] {
            assert_eq!(
                passes(Meant::Browser, host, &CHROME, &[configured]),
                may,
                "{configured} {host}"
            );
        }
    }

    #[test]
    fn all_that_a_request_says_counts() {
        let two = |hosts: &[&str]| verdict(Meant::Browser, "/", hosts, &CHROME, &[]).is_none();
        assert!(
            two(&["127.0.0.1", "localhost"])
                && !two(&["127.0.0.1", "evil.test"])
                && !two(&["evil.test", "127.0.0.1"])
        );
        assert!(
            verdict(Meant::Browser, "http://evil.test/", &["127.0.0.1"], &CHROME, &[]).is_some(),
            "absolute-form"
        );
        let said = verdict(Meant::Browser, "/", &["evil.test:9100"], &CHROME, &[]).unwrap();
        assert!(said.contains("metrics-hosts \"evil.test\""), "{said}");
        // A page of another site that requests the address.
        let cross = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")];
        assert!(!passes(Meant::Program, "127.0.0.1:9100", &cross, &[]));
        let followed = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
        assert!(
            passes(Meant::Browser, "127.0.0.1:9100", &followed, &[]),
            "a link that somebody follows"
        );
    }
}
