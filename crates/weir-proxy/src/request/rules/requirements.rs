//! Requirements of a route that are checked before credentials: the Content-Type, a method that is
//! not overridden, a host with a name.
//!
//! Checked when a request is routed, after `allow` and `deny` and before passwords, servers and the
//! body (`client/ruling.rs`). Pure. Bound: linear in the head, times the patterns. RFC 9110 §8.3,
//! §15.5.4, §15.5.16, §15.5.20; docs/routes.md#what-a-route-requires.

use weir_http::{Fields, RequestHead, is_token};

use super::compress::fits;
use super::matching::{query, reads_as};
use crate::cause::Cause;
use crate::forward::policy::host::ends_in_number;

/// Fields that frameworks take the method from, in lower case.
const OVERRIDES: [&[u8]; 3] = [b"x-http-method-override", b"x-http-method", b"x-method-override"];
/// The member of the query that they take it from.
const OVERRIDE_MEMBER: &[u8] = b"_method";

/// See the module. The default requires nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requirements {
    /// Permitted content of requests: media types in lower case, with one `*` at most. Empty:
    /// anything.
    pub content_types: Vec<String>,
    /// No request may override its method by a field or in its query.
    pub no_override: bool,
    /// No request may have an address as its host in place of a name.
    pub no_address: bool,
}

impl Requirements {
    /// Whether every request meets them.
    pub fn is_empty(&self) -> bool {
        self.content_types.is_empty() && !self.no_override && !self.no_address
    }

    /// The requirement that a request does not meet. Spans of `head` and `fields` point into
    /// `bytes`.
    pub(crate) fn unmet(&self, head: &RequestHead, fields: &Fields, bytes: &[u8]) -> Option<Cause> {
        if self.no_address && is_address(head.authority.of(bytes)) {
            return Some(Cause::HostAddress);
        }
        if self.no_override && overrides(head.path.of(bytes), fields, bytes) {
            return Some(Cause::MethodOverride);
        }
        let is_judged = !self.content_types.is_empty() && !head.body.is_empty();
        (is_judged && !self.takes(fields, bytes)).then_some(Cause::ContentType)
    }

    /// Whether content with these fields has one of the types, whichever server reads them.
    fn takes(&self, fields: &Fields, bytes: &[u8]) -> bool {
        let passing = fields.as_slice().iter().filter(|field| !field.listed);
        let mut mine = passing.filter(|field| reads_as(field.name.of(bytes), b"content-type"));
        // With two lines, servers differ in which they read; `Content_Type` is dropped, or may be
        // read as Content-Type.
        let (Some(field), None) = (mine.next(), mine.next()) else { return false };
        let value = field.value.of(bytes);
        let end = value.iter().position(|byte| *byte == b';').unwrap_or(value.len());
        let media_type = value[..end].trim_ascii();
        !field.underscore
            && is_media_type(media_type)
            && self.content_types.iter().any(|pattern| fits(pattern.as_bytes(), media_type))
    }
}

/// Whether a value is one media type (RFC 9110 §8.3.1). A list of two has a comma, and servers
/// differ in which they take.
fn is_media_type(text: &[u8]) -> bool {
    let mut parts = text.split(|byte| *byte == b'/');
    matches!(
        (parts.next(), parts.next(), parts.next()),
        (Some(kind), Some(part), None) if is_token(kind) && is_token(part)
    )
}

/// Whether a server may take another method from a request than its own.
fn overrides(target: &[u8], fields: &Fields, bytes: &[u8]) -> bool {
    let mut passing = fields.as_slice().iter().filter(|field| !field.listed);
    passing.any(|field| OVERRIDES.iter().any(|name| reads_as(field.name.of(bytes), name)))
        || query(target).any(|(name, _)| name.reads_as(OVERRIDE_MEMBER))
}

/// Whether a host, possibly with a port, is an address, in any spelling that resolvers know: names
/// never end in a number (<https://url.spec.whatwg.org/#ends-in-a-number-checker>).
pub fn is_address(authority: &[u8]) -> bool {
    if authority.first() == Some(&b'[') {
        return true;
    }
    let end = authority.iter().position(|byte| *byte == b':').unwrap_or(authority.len());
    let name = &authority[..end];
    let name = name.strip_suffix(b".").unwrap_or(name);
    !name.is_empty() && !name.ends_with(b".") && ends_in_number(name)
}

#[cfg(test)]
mod tests {
    //! Proves: which requests meet the requirements of a route, including those with unusual
    //! spellings. How: tables.

    use super::*;

    fn unmet(requirements: &Requirements, text: &str) -> Option<Cause> {
        let mut fields = Fields::default();
        let head =
            weir_http::parse_request(text.as_bytes(), &weir_http::Limits::default(), &mut fields);
        requirements.unmet(
            &head.expect("a request").expect("a whole one"),
            &fields,
            text.as_bytes(),
        )
    }

    fn of_types(types: &[&str]) -> Requirements {
        Requirements {
            content_types: types.iter().map(|text| (*text).to_owned()).collect(),
            ..Requirements::default()
        }
    }

    #[test]
    fn types_of_content() {
        let all = of_types(&["application/json", "text/*", "application/*+json"]);
        for (fields, is_met) in [
            ("Content-Type: application/json", true),
            ("CONTENT-TYPE: Application/JSON ; charset=utf-8", true),
            ("Content-Type: text/csv;a=\"x, y/z\"", true),
            ("Content-Type: application/vnd.api+json", true),
            ("X-Other: a", false),
            ("Content-Type:", false),
            ("Content-Type: application/json5", false),
            ("Content-Type: application/x-www-form-urlencoded", false),
            ("Content-Type: texts/csv", false),
            ("Content-Type: text/", false),
            ("Content-Type: text/a/b", false),
            ("Content-Type: text/csv, image/png", false),
            ("Content-Type: ;text/csv", false),
            ("Content-Type: text/csv\r\nContent-Type: text/csv", false),
            ("Content-Type: text/csv\r\nContent_Type: image/png", false),
            ("Content_Type: text/csv", false),
            ("Connection: content-type\r\nContent-Type: text/csv", false),
        ] {
            for (framing, has_content) in [
                ("Content-Length: 5", true),
                ("Transfer-Encoding: chunked", true),
                ("Content-Length: 0", false),
                ("A: b", false),
            ] {
                let text = format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n{fields}\r\n\r\n");
                let expected = (has_content && !is_met).then_some(Cause::ContentType);
                assert_eq!(unmet(&all, &text), expected, "{text}");
                assert_eq!(unmet(&Requirements::default(), &text), None);
            }
        }
        let text =
            "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Type: image/png\r\n\r\n";
        assert_eq!(unmet(&of_types(&["*/*"]), text), None);
        assert_eq!(
            unmet(&of_types(&["*/*"]), &text.replace("image/png", "image")),
            Some(Cause::ContentType)
        );
    }

    #[test]
    fn methods_that_are_others() {
        let plain = Requirements { no_override: true, ..Requirements::default() };
        for (target, fields, is_met) in [
            ("/", "", true),
            ("/?method=PUT&_methods=a", "X-HTTP-Methods: PUT\r\n", true),
            ("/_method=a", "Connection: x-http-method\r\nX-HTTP-Method: PUT\r\n", true),
            ("/", "X-HTTP-Method-Override: DELETE\r\n", false),
            ("/", "x-http-method: PUT\r\n", false),
            ("/", "X-Method-Override:\r\n", false),
            ("/", "X_HTTP_Method_Override: DELETE\r\n", false),
            ("/?a=b&_method=DELETE", "", false),
            ("/?%5fmethod=DELETE", "", false),
            ("/?.method=DELETE", "", false),
            ("/?%20_method%00x=DELETE", "", false),
        ] {
            let text = format!("POST {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            assert_eq!(unmet(&plain, &text), (!is_met).then_some(Cause::MethodOverride), "{text}");
        }
    }

    #[test]
    fn hosts_that_are_addresses() {
        let named = Requirements { no_address: true, ..Requirements::default() };
        for (host, is_met) in [
            ("a.example", true),
            ("a.example:8080", true),
            ("1.2.3.4.example", true),
            ("a.example.", true),
            ("a..", true),
            ("0x7f.example", true),
            ("203.0.113.5", false),
            ("203.0.113.5:80", false),
            ("203.0.113.5.", false),
            ("[::1]", false),
            ("[2001:db8::1]:8443", false),
            ("127.1", false),
            ("2130706433", false),
            ("0x7f.0.0.0x1", false),
        ] {
            let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert_eq!(unmet(&named, &text), (!is_met).then_some(Cause::HostAddress), "{text}");
        }
        // The target's host counts where it has one (RFC 9112 §3.2.2); a request without a host has
        // no address.
        assert_eq!(
            unmet(&named, "GET http://10.0.0.1/ HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n"),
            Some(Cause::HostAddress)
        );
        assert_eq!(unmet(&named, "GET / HTTP/1.0\r\n\r\n"), None);
    }
}
