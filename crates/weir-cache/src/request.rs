//! A request as the cache sees it: its parsed head, and whether the cache handles it.
//!
//! A field that shapes a response without being part of its key would affect all clients, which is
//! how caches are poisoned: requests with such fields bypass the cache.

use weir_http::{FieldName, Fields, Method, RequestHead};

use crate::directives::RequestDirectives;
use crate::options::Options;

/// A parsed request head.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The text that the spans refer to.
    pub input: &'a [u8],
    /// The head.
    pub head: &'a RequestHead,
    /// Its fields.
    pub fields: &'a Fields,
}

impl<'a> Request<'a> {
    /// Returns the values of all lines of a known field, in order.
    pub fn lines(self, name: FieldName) -> impl Iterator<Item = &'a [u8]> {
        self.fields.all(name).map(move |field| field.value.of(self.input))
    }

    /// Returns the values of all lines of a field by its name, in any case, in order.
    pub fn lines_named(self, name: &[u8]) -> impl Iterator<Item = &'a [u8]> {
        let known = FieldName::of(name);
        let is_it = move |text: &[u8]| text.eq_ignore_ascii_case(name);
        self.fields
            .all(known)
            .filter(move |field| is_it(field.name.of(self.input)))
            .map(move |field| field.value.of(self.input))
    }

    /// Returns the value of a field that has one line; None also when it has several.
    pub(crate) fn only_line(self, name: FieldName) -> Option<&'a [u8]> {
        let mut lines = self.lines(name);
        lines.next().filter(|_| lines.next().is_none())
    }

    /// Whether the field is present.
    pub fn has(self, name: FieldName) -> bool {
        self.fields.find(name).is_some()
    }

    /// Returns its cache directives.
    pub fn directives(self) -> RequestDirectives {
        let mut directives = RequestDirectives::default();
        self.lines(FieldName::CacheControl).for_each(|line| directives.add_line(line));
        directives
    }

    /// Returns the values of cookies with this name, in order. Names are compared exactly (RFC 6265
    /// §4.1.1).
    pub fn cookies(self, name: &[u8]) -> impl Iterator<Item = &'a [u8]> {
        let pairs = self.lines(FieldName::Cookie).flat_map(|line| line.split(|&byte| byte == b';'));
        pairs.filter_map(move |pair| {
            let pair = pair.trim_ascii();
            let end = pair.iter().position(|&byte| byte == b'=')?;
            (pair[..end].trim_ascii() == name).then(|| pair[end + 1..].trim_ascii())
        })
    }
}

/// Why a request bypasses the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bypass {
    /// Neither GET nor HEAD.
    Method,
    /// GET or HEAD with a body, which would be part of the key and is not.
    Body,
    /// It asks for another protocol.
    Upgrade,
    /// If-Match or If-Unmodified-Since: the origin has to decide (RFC 9110 §13.1).
    Precondition,
    /// A cookie that the operator named.
    Cookie,
    /// A trusted proxy states another scheme or host for the request than the key has, or one that
    /// no key could have.
    Forwarded,
    /// A field that some servers use as the target or the method, and that is not in the key.
    Rewritten,
}

impl Bypass {
    /// Returns a word for logs and Cache-Status.
    pub fn word(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::Body => "fat-get",
            Self::Upgrade => "upgrade",
            Self::Precondition => "precondition",
            Self::Cookie => "cookie",
            Self::Forwarded => "forwarded",
            Self::Rewritten => "rewritten",
        }
    }
}

/// Fields by which frameworks replace the target or method of the request line.
const REWRITING: [&[u8]; 10] = [
    b"X-Original-URL",
    b"X-Rewrite-URL",
    b"X-HTTP-Method-Override",
    b"X-HTTP-Method",
    b"X-Method-Override",
    b"X-Host",
    b"X-Original-Host",
    b"X-HTTP-Host-Override",
    b"X-Url-Scheme",
    b"Front-End-Https",
];

/// Returns whether a request bypasses the cache, and why. Its forwarding fields are those that the
/// server will get: those of untrusted clients were removed before. `scheme`: that of the key.
pub fn bypass(request: Request<'_>, scheme: &[u8], options: &Options) -> Option<Bypass> {
    let head = request.head;
    if !matches!(head.method, Method::Get | Method::Head) {
        return Some(Bypass::Method);
    }
    if !head.body.is_empty() {
        return Some(Bypass::Body);
    }
    if head.upgrade.is_some() {
        return Some(Bypass::Upgrade);
    }
    if request.has(FieldName::IfMatch) || request.has(FieldName::IfUnmodifiedSince) {
        return Some(Bypass::Precondition);
    }
    if options.bypass_cookies.iter().any(|name| request.cookies(name).next().is_some()) {
        return Some(Bypass::Cookie);
    }
    let authority = head.authority.of(request.input);
    if is_forwarded_otherwise(request, scheme, authority) {
        return Some(Bypass::Forwarded);
    }
    // None of them is a known field.
    let is_rewriting =
        |name: &[u8]| REWRITING.iter().any(|rewriting| name.eq_ignore_ascii_case(rewriting));
    let mut unknown = request.fields.all(FieldName::Other);
    unknown.any(|field| is_rewriting(field.name.of(request.input))).then_some(Bypass::Rewritten)
}

/// Whether a field of a trusted proxy, from which servers build links and redirects, differs from
/// the key.
fn is_forwarded_otherwise(request: Request<'_>, scheme: &[u8], authority: &[u8]) -> bool {
    let is = |text: &[u8], wanted: &[u8]| text.trim_ascii().eq_ignore_ascii_case(wanted);
    let pair = |pair: &[u8]| {
        let mut halves = pair.splitn(2, |&byte| byte == b'=').map(<[u8]>::trim_ascii);
        let (name, value) = (halves.next().unwrap_or_default(), halves.next().unwrap_or_default());
        let value =
            value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
        is(name, b"host") && !is(value, authority) || is(name, b"proto") && !is(value, scheme)
    };
    let other = |name: &[u8], value: &[u8]| {
        let port: &[u8] = if scheme == b"https" { b"443" } else { b"80" };
        let ends_with_port =
            || authority.strip_suffix(value).is_some_and(|before| before.ends_with(b":"));
        match name.to_ascii_lowercase().as_slice() {
            b"x-forwarded-port" => !is(value, port) && !ends_with_port(),
            b"x-forwarded-scheme" => !is(value, scheme),
            b"x-forwarded-ssl" => is(value, b"on") != (scheme == b"https"),
            // The proxy's own name.
            b"x-forwarded-server" => false,
            _ => true,
        }
    };
    let mut others = request.fields.all(FieldName::XForwardedOther);
    request.lines(FieldName::XForwardedHost).any(|host| !is(host, authority))
        || request.lines(FieldName::XForwardedProto).any(|proto| !is(proto, scheme))
        || request
            .lines(FieldName::Forwarded)
            .flat_map(|line| line.split(|byte| b",;".contains(byte)))
            .any(pair)
        || others.any(|field| other(field.name.of(request.input), field.value.of(request.input)))
}

/// Whether a request that fetches a response for the store may not have this field: one client's
/// wishes would shape the response for all.
pub fn is_kept_from_fetches(name: FieldName) -> bool {
    use FieldName::{
        Expect, IfMatch, IfModifiedSince, IfNoneMatch, IfRange, IfUnmodifiedSince, Range,
    };
    let conditional = matches!(
        name,
        IfMatch | IfNoneMatch | IfModifiedSince | IfUnmodifiedSince | IfRange | Range
    );
    conditional || name == Expect || name.is_hop_by_hop()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::with_request;

    fn judged(lines: &str, options: &Options) -> Option<Bypass> {
        with_request(lines, |request| bypass(request, b"http", options))
    }

    /// A field outside of the key must not shape a stored response.
    #[test]
    fn who_goes_past_the_cache() {
        let options = Options { bypass_cookies: vec![b"session".to_vec()], ..Options::default() };
        let cases: [(&str, Option<Bypass>); 28] = [
            ("GET / HTTP/1.1\r\nHost: a\r\n", None),
            ("HEAD / HTTP/1.1\r\nHost: a\r\n", None),
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n", None),
            ("GET / HTTP/1.1\r\nHost: a\r\nCookie: other=session\r\n", None),
            ("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Host: A\r\n", None),
            ("GET / HTTP/1.1\r\nHost: a\r\nIf-None-Match: \"x\"\r\nRange: bytes=0-\r\n", None),
            ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n", Some(Bypass::Method)),
            ("get / HTTP/1.1\r\nHost: a\r\n", Some(Bypass::Method)),
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n", Some(Bypass::Body)),
            ("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n", Some(Bypass::Body)),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n",
                Some(Bypass::Upgrade),
            ),
            ("GET / HTTP/1.1\r\nHost: a\r\nIf-Match: \"x\"\r\n", Some(Bypass::Precondition)),
            ("GET / HTTP/1.1\r\nHost: a\r\nIf-Unmodified-Since: x\r\n", Some(Bypass::Precondition)),
            ("GET / HTTP/1.1\r\nHost: a\r\nCookie: a=b; session=1\r\n", Some(Bypass::Cookie)),
            ("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Host: evil\r\n", Some(Bypass::Forwarded)),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Host: a\r\nX-Forwarded-Host: b\r\n",
                Some(Bypass::Forwarded),
            ),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Proto: HTTP\r\nX-Forwarded-Port: 80\r\n",
                None,
            ),
            (
                "GET / HTTP/1.1\r\nHost: a:81\r\nX-Forwarded-Port: 81\r\nX-Forwarded-Server: p\r\n",
                None,
            ),
            (
                "GET / HTTP/1.1\r\nHost: a\r\n\
                    Forwarded: for=1.2.3.4;host=\"A\", for=5;proto=http\r\n",
                None,
            ),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Ssl: off\r\nX-Forwarded-Scheme: http\r\n",
                None,
            ),
            ("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Proto: https\r\n", Some(Bypass::Forwarded)),
            ("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Port: 8\r\n", Some(Bypass::Forwarded)),
            ("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-Prefix: /evil\r\n", Some(Bypass::Forwarded)),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nForwarded: for=1, Host = evil\r\n",
                Some(Bypass::Forwarded),
            ),
            ("GET / HTTP/1.1\r\nHost: a\r\nForwarded: proto=https\r\n", Some(Bypass::Forwarded)),
            ("GET / HTTP/1.1\r\nHost: a\r\nX-Host: evil\r\n", Some(Bypass::Rewritten)),
            ("GET / HTTP/1.1\r\nHost: a\r\nx-original-url: /admin\r\n", Some(Bypass::Rewritten)),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nX-HTTP-Method-Override: DELETE\r\n",
                Some(Bypass::Rewritten),
            ),
        ];
        for (lines, expected) in cases {
            assert_eq!(judged(lines, &options), expected, "{lines}");
        }
    }

    #[test]
    fn what_fetches_do_not_say() {
        for name in [
            "Range",
            "If-Range",
            "If-None-Match",
            "If-Modified-Since",
            "If-Match",
            "Expect",
            "TE",
            "Connection",
        ] {
            assert!(is_kept_from_fetches(FieldName::of(name.as_bytes())), "{name}");
        }
        for name in
            ["Host", "Accept", "Accept-Encoding", "Authorization", "Cookie", "Cache-Control", "X-Y"]
        {
            assert!(!is_kept_from_fetches(FieldName::of(name.as_bytes())), "{name}");
        }
    }

    #[test]
    fn cookies_by_name() {
        with_request(
            "GET / HTTP/1.1\r\nHost: a\r\nCookie: a=1; b = 2;c;a=3;=4\r\nCookie: ab=5\r\n",
            |request| {
                assert_eq!(request.cookies(b"a").collect::<Vec<_>>(), [b"1", b"3"]);
                assert_eq!(request.cookies(b"b").collect::<Vec<_>>(), [b"2"]);
                assert_eq!(request.cookies(b"c").count(), 0);
            },
        );
    }
}
