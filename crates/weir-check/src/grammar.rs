//! The productions of RFC 9112 and RFC 9110 that everything leaving weir must match, byte by byte.
//!
//! Called by the two stream checkers. Nothing is tolerated that the grammar marks obsolete or that
//! a recipient "MAY" accept: senders have no such licence.

use std::fmt;

use crate::message::Fields;

/// Output of weir that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Bytes of the stream before the message (or the byte) at fault.
    pub offset: u64,
    /// The rule that was broken.
    pub rule: String,
    /// The bytes around the fault, escaped, at most 200.
    pub excerpt: String,
}

impl Violation {
    /// A violation with the first bytes of `bytes` as its excerpt.
    pub(crate) fn new(offset: u64, rule: impl Into<String>, bytes: &[u8]) -> Violation {
        let shown = &bytes[..bytes.len().min(200)];
        Violation { offset, rule: rule.into(), excerpt: shown.escape_ascii().to_string() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: {}: \"{}\"", self.offset, self.rule, self.excerpt)
    }
}

impl std::error::Error for Violation {}

/// `tchar` of RFC 9110 §5.6.2.
pub(crate) fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// `token` of RFC 9110 §5.6.2.
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().copied().all(is_token_byte)
}

/// A byte of a field value: VCHAR, obs-text, SP or HTAB (RFC 9110 §5.5).
pub(crate) fn is_value_byte(byte: u8) -> bool {
    byte == b'\t' || (byte >= 0x20 && byte != 0x7f)
}

/// One octet, one character: values may hold obs-text, which is not UTF-8.
pub(crate) fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| char::from(byte)).collect()
}

/// Returns where the head ends (after its empty line), looking from `from` on; the search is
/// resumed, not repeated.
///
/// # Errors
/// The sender wrote a bare CR or LF, NUL or another control byte: certain before the head is
/// complete.
pub(crate) fn head_end(
    input: &[u8],
    from: &mut usize,
) -> Result<Option<usize>, (usize, &'static str)> {
    while *from < input.len() {
        let (at, byte) = (*from, input[*from]);
        let after_cr = at > 0 && input[at - 1] == b'\r';
        match byte {
            b'\n' if !after_cr => return Err((at, "bare LF in a head")),
            _ if at > HEAD_BYTES_MAX => return Err((at, "head larger than 64 KiB")),
            b'\n' if at >= 3 && input[at - 3..at] == *b"\r\n\r" => return Ok(Some(at + 1)),
            b'\n' => {}
            _ if after_cr => return Err((at - 1, "bare CR in a head")),
            b'\t' | b'\r' => {}
            0..=0x1f | 0x7f => return Err((at, "control byte in a head")),
            _ => {}
        }
        *from += 1;
    }
    Ok(None)
}

/// The largest acceptable head: twice weir's own limit.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// The lines of a complete head without their CRLF, the empty line left out.
pub(crate) fn lines(head: &[u8]) -> Vec<&[u8]> {
    let text = &head[..head.len() - 4];
    let mut lines = Vec::new();
    let mut start = 0;
    for at in 0..text.len() {
        if text[at] == b'\n' {
            lines.push(&text[start..at - 1]);
            start = at + 1;
        }
    }
    lines.push(&text[start..]);
    lines
}

/// `field-line` of RFC 9112 §5: `field-name ":" OWS field-value OWS`, never folded.
pub(crate) fn field(line: &[u8]) -> Result<(String, String), &'static str> {
    let Some(colon) = line.iter().position(|&byte| byte == b':') else {
        return Err("field line without a colon");
    };
    let name = &line[..colon];
    if name.first().is_some_and(|&byte| byte == b' ' || byte == b'\t') {
        return Err("obs-fold");
    }
    if !is_token(name) {
        return Err("field name that is not a token");
    }
    let value = trim(&line[colon + 1..]);
    if !value.iter().copied().all(is_value_byte) {
        return Err("field value with a control byte");
    }
    Ok((latin1(name), latin1(value)))
}

/// Returns the value without the optional white space at both ends.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// The value of Content-Length: digits that fit 63 bits.
pub(crate) fn content_length(value: &str) -> Result<u64, &'static str> {
    if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("Content-Length that is not all digits");
    }
    value
        .parse::<u64>()
        .ok()
        .filter(|&n| i64::try_from(n).is_ok())
        .ok_or("Content-Length that overflows")
}

/// The framing fields of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Declared {
    /// Neither field.
    Nothing,
    /// One Content-Length.
    Length(u64),
    /// One Transfer-Encoding, exactly `chunked`.
    Chunked,
}

/// The one framing field of a message (RFC 9112 §6.1, §6.2).
pub(crate) fn framing(fields: &Fields) -> Result<Declared, &'static str> {
    let lengths = fields.all("content-length");
    let codings = fields.all("transfer-encoding");
    match (lengths.as_slice(), codings.as_slice()) {
        ([], []) => Ok(Declared::Nothing),
        ([length], []) => content_length(length).map(Declared::Length),
        ([], [coding]) if coding.eq_ignore_ascii_case("chunked") => Ok(Declared::Chunked),
        ([], [_]) => Err("Transfer-Encoding other than chunked"),
        ([], _) => Err("several Transfer-Encoding fields"),
        (_, []) => Err("several Content-Length fields"),
        _ => Err("Content-Length beside Transfer-Encoding"),
    }
}

/// Returns the members of a comma-separated list, in lower case.
pub(crate) fn list(values: &[&str]) -> Vec<String> {
    values
        .iter()
        .flat_map(|value| value.split(','))
        .map(|member| member.trim().to_ascii_lowercase())
        .filter(|member| !member.is_empty())
        .collect()
}

/// Whether this is `uri-host [":" port]` of RFC 9110 §7.2, never empty: weir forwards only http
/// targets.
pub(crate) fn is_host(value: &str) -> bool {
    let (host, port) = match value.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if address.parse::<std::net::Ipv6Addr>().is_ok() => {
                ("literal", port)
            }
            _ => return false,
        },
        None => match value.find(':') {
            Some(colon) => value.split_at(colon),
            None => (value, ""),
        },
    };
    let name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+;=%".contains(&byte);
    let port_is_valid = match port.strip_prefix(':') {
        Some("") => true,
        Some(digits) => {
            digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.parse::<u16>().is_ok()
        }
        None => port.is_empty(),
    };
    !host.is_empty() && host.bytes().all(name_byte) && port_is_valid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for good in ["a", "a.b", "a:80", "127.0.0.1:8080", "[::1]", "[::1]:80", "a:"] {
            assert!(is_host(good), "{good}");
        }
        for bad in
            ["", "a,b", "u@a", "a/b", "a:99999", "[::1", "a b", ":80", "a:8x", "[g::]", "[::1]80"]
        {
            assert!(!is_host(bad), "{bad}");
        }
    }

    #[test]
    fn head_end_is_found_at_every_split_and_control_bytes_are_named() {
        let head = b"GET / HTTP/1.1\r\nHost: a\r\nX:\tb\r\n\r\nrest";
        for split in 0..head.len() {
            let mut from = 0;
            let early = head_end(&head[..split], &mut from).unwrap();
            let end = early.or_else(|| head_end(head, &mut from).unwrap());
            assert_eq!(end, Some(head.len() - 4), "split at {split}");
        }
        for bad in [&b"GET / HTTP/1.1\nHost"[..], b"X: a\rb", b"X: \0", b"X: \x7f", b"\n"] {
            assert!(head_end(bad, &mut 0).is_err(), "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn fields_follow_the_grammar() {
        assert_eq!(field(b"X-A: \t b c \t"), Ok(("X-A".into(), "b c".into())));
        for bad in [&b"X-A : b"[..], b" X: b", b": b", b"X", b"X(: b", b"T\xe9st: b"] {
            assert!(field(bad).is_err(), "{}", bad.escape_ascii());
        }
    }
}
