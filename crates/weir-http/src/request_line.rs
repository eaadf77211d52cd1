//! The first line of a request: method, target, version, and the form of the target (RFC 9112 §3).
//!
//! Called by the request parser; bound: the line length of [`Limits`].

use crate::authority::{Port, is_authority};
use crate::head_scan::HeadScan;
use crate::limits::Limits;
use crate::request::RequestHead;
use crate::request_error::RequestError;
use crate::scan::{is_token_byte, target_end, value_end};
use crate::span::Span;
use crate::syntax::{SyntaxError, line_end};

/// Protocol version of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
    /// HTTP/2, whose heads are given in the form of HTTP/1 ([`h2`](crate::h2)). Never set for a
    /// head that was parsed from text.
    Http2,
}

impl Version {
    /// Returns the version as written in Via.
    pub(crate) fn number(self) -> &'static [u8] {
        match self {
            Self::Http10 => b"1.0",
            Self::Http11 => b"1.1",
            // RFC 9110 §7.6.3: HTTP/2 has no minor version.
            Self::Http2 => b"2",
        }
    }
}

/// Methods that differ for a proxy. Names are case-sensitive (RFC 9110 §9.1): `get` is
/// [`Method::Other`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[allow(missing_docs)] // each variant is the method of that name
pub enum Method {
    Get,
    Head,
    Post,
    Put,
    Delete,
    Connect,
    Options,
    Trace,
    Patch,
    Propfind,
    /// Any other token: forwarded unchanged, neither safe nor idempotent.
    Other,
}

impl Method {
    pub(crate) fn of(token: &[u8]) -> Self {
        match token {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"CONNECT" => Self::Connect,
            b"OPTIONS" => Self::Options,
            b"TRACE" => Self::Trace,
            b"PATCH" => Self::Patch,
            b"PROPFIND" => Self::Propfind,
            _ => Self::Other,
        }
    }

    /// Whether it requests no change (RFC 9110 §9.2.1; PROPFIND by RFC 4918 §9.1).
    pub fn is_safe(self) -> bool {
        matches!(self, Self::Get | Self::Head | Self::Options | Self::Trace | Self::Propfind)
    }

    /// Whether sending it twice has the same effect as sending it once (RFC 9110 §9.2.2).
    pub fn is_idempotent(self) -> bool {
        self.is_safe() || matches!(self, Self::Put | Self::Delete)
    }
}

/// The form of a target (RFC 9112 §3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum TargetForm {
    /// `/path?query`.
    Origin,
    /// `http://authority/path?query`.
    Absolute,
    /// `host:port`, with CONNECT only.
    Authority,
    /// `*`, with OPTIONS only.
    Asterisk,
}

/// Parses the request line that begins at `start` into `head` and returns the position after it;
/// None when the window ends in it. Filling the head in place spares copies of the parts through
/// three layers of results.
///
/// # Errors
/// The first fault from the left; a line over the limit is [`SyntaxError::LineTooLong`].
#[inline]
pub(crate) fn parse_request_line(
    window: &[u8],
    start: usize,
    limits: &Limits,
    head: &mut RequestHead,
) -> Result<Option<usize>, RequestError> {
    let line_max = start.saturating_add(limits.line_with_end_max());
    let line = &window[..window.len().min(line_max)];
    match request_line(line, start, head)? {
        None if window.len() >= line_max => Err(SyntaxError::LineTooLong.into()),
        end => Ok(end),
    }
}

#[inline(always)]
fn request_line(
    line: &[u8],
    start: usize,
    head: &mut RequestHead,
) -> Result<Option<usize>, RequestError> {
    let Some((method, method_end)) = parse_method(line, start)? else { return Ok(None) };
    let target_start = method_end + 1;
    let target_end = target_end(line, target_start);
    let Some(&stop) = line.get(target_end) else { return Ok(None) };
    if stop != b' ' || target_end == target_start {
        return target_fault(line, target_end);
    }
    let Some((version, end)) = parse_version(line, target_end + 1)? else { return Ok(None) };
    // PRI belongs to the preface of HTTP/2 and must never be a request (RFC 9113 §3.4).
    if method == Method::Other && &line[start..method_end] == b"PRI" {
        return Err(RequestError::MethodInvalid);
    }
    head.method = method;
    head.method_span = Span::new(start, method_end);
    head.target = Span::new(target_start, target_end);
    head.version = version;
    judge_target(line, head)?;
    Ok(Some(end))
}

/// Method and its end, which is a space.
#[inline(always)]
fn parse_method(line: &[u8], start: usize) -> Result<Option<(Method, usize)>, RequestError> {
    if line[start..].starts_with(b"GET ") {
        return Ok(Some((Method::Get, start + 3)));
    }
    let Some(len) = line[start..].iter().position(|&byte| !is_token_byte(byte)) else {
        return Ok(None);
    };
    let end = start + len;
    if line[end] != b' ' {
        return match byte_fault(line, end, RequestError::MethodInvalid) {
            Some(fault) => Err(fault),
            None => Ok(None),
        };
    }
    if end == start {
        return Err(RequestError::MethodInvalid);
    }
    Ok(Some((Method::of(&line[start..end]), end)))
}

#[cold]
fn target_fault(line: &[u8], at: usize) -> Result<Option<usize>, RequestError> {
    let fault = match line[at] {
        b'#' => RequestError::TargetFragment,
        0x80.. => RequestError::TargetRaw,
        b' ' => RequestError::TargetInvalid,
        // A line end here: a request without a version (HTTP/0.9).
        b'\r' => match line_end(line, at)? {
            None => return Ok(None),
            Some(_) => RequestError::VersionInvalid,
        },
        _ => match byte_fault(line, at, RequestError::TargetInvalid) {
            Some(fault) => fault,
            None => return Ok(None),
        },
    };
    Err(fault)
}

/// Returns the fault of a byte in the wrong place: line ends and control bytes by their own names.
/// None when the byte after a CR is needed and missing.
fn byte_fault(line: &[u8], at: usize, other: RequestError) -> Option<RequestError> {
    match line[at] {
        0..=0x1f | 0x7f if line[at] != b'\t' => match line_end(line, at) {
            Err(fault) => Some(fault.into()),
            Ok(None) => None,
            Ok(Some(_)) => Some(other),
        },
        _ => Some(other),
    }
}

/// Returns the version and the position after the line.
#[inline(always)]
fn parse_version(line: &[u8], at: usize) -> Result<Option<(Version, usize)>, RequestError> {
    if line[at..].starts_with(b"HTTP/1.1\r\n") {
        return Ok(Some((Version::Http11, at + 10)));
    }
    let version_end = value_end(line, at);
    let Some(end) = line_end(line, version_end)? else { return Ok(None) };
    match &line[at..version_end] {
        b"HTTP/1.1" => Ok(Some((Version::Http11, end))),
        b"HTTP/1.0" => Ok(Some((Version::Http10, end))),
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
            Err(RequestError::VersionUnsupported)
        }
        _ => Err(RequestError::VersionInvalid),
    }
}

/// Determines the meaning of the target. `head` has its method and the position of the target in
/// `line`.
///
/// # Errors
/// A form that the method may not have, or an encoding that others read as something else.
#[inline(always)]
pub(crate) fn judge_target(line: &[u8], head: &mut RequestHead) -> Result<(), RequestError> {
    split_target(line, head)?;
    check_encoding(head.path.of(line))
}

/// Form, path and authority of the target.
#[inline(always)]
fn split_target(line: &[u8], head: &mut RequestHead) -> Result<(), RequestError> {
    let text = head.target.of(line);
    if head.method == Method::Connect {
        head.form = TargetForm::Authority;
        head.authority = head.target;
        return if is_authority(text, Port::Required) {
            Ok(())
        } else {
            Err(RequestError::TargetForm)
        };
    }
    head.path = head.target;
    if text[0] == b'/' {
        head.form = TargetForm::Origin;
        return Ok(());
    }
    if text == b"*" {
        head.form = TargetForm::Asterisk;
        return if head.method == Method::Options { Ok(()) } else { Err(RequestError::TargetForm) };
    }
    split_absolute(line, head)
}

/// Splits `http://authority/path`. A query without a path has to be rewritten with an explicit `/`
/// (RFC 3986 §6.2.3), because the path to forward would not be a slice of it.
fn split_absolute(line: &[u8], head: &mut RequestHead) -> Result<(), RequestError> {
    let text = head.target.of(line);
    let scheme_len = [b"http://".as_slice(), b"https://"]
        .into_iter()
        .find(|scheme| {
            text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        })
        .map(<[u8]>::len)
        .ok_or(RequestError::TargetForm)?;
    let rest = &text[scheme_len..];
    let authority_len =
        rest.iter().position(|&byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    if !is_authority(&rest[..authority_len], Port::Optional) {
        return Err(RequestError::TargetAuthority);
    }
    if rest.get(authority_len) == Some(&b'?') {
        return Err(RequestError::TargetRaw);
    }
    let authority_start = head.target.start as usize + scheme_len;
    let authority_end = authority_start + authority_len;
    head.form = TargetForm::Absolute;
    head.authority = Span::new(authority_start, authority_end);
    head.path = Span::new(authority_end, head.target.end as usize);
    Ok(())
}

/// A head whose target was encoded by [`encode_target`].
#[derive(Debug)]
pub struct EncodedHead {
    /// The head to parse instead of the received one, and one byte of what follows it, if anything.
    pub bytes: Vec<u8>,
    /// How many bytes it is longer than the received one.
    pub added: usize,
    /// Bytes had to be encoded, which no client should send.
    pub is_raw: bool,
}

/// Returns a copy of the head at the start of `input`, for which parsing returned
/// [`RequestError::TargetRaw`]. The UTF-8 in path and query of its target is percent-encoded, and
/// an empty path in front of a query becomes `/` (RFC 3986 §6.2.3). RFC 3986 has no such bytes, but
/// URLs that people type into simple clients do (`curl http://host/café`), and all programs read
/// them like this. None when the line is not complete. An incomplete head is copied up to the end
/// of `input`, within the limit of a head: the cost depends on the head, not on the bytes that a
/// client has sent after it.
///
/// # Errors
/// Text that is not UTF-8, not in path or query, or in the target of CONNECT remains an error. A
/// line that can't become complete has its own error.
pub fn encode_target(input: &[u8], limits: &Limits) -> Result<Option<EncodedHead>, RequestError> {
    let found = HeadScan::request_end(input, limits);
    let window = limits.window(input);
    let input = match found {
        Ok(Some(head_end)) => &input[..input.len().min(head_end + 1)],
        _ => window,
    };
    let unfinished = || found.map(|_| None).map_err(RequestError::from);
    let Some(start) = input.iter().position(|byte| !matches!(byte, b'\r' | b'\n')) else {
        return unfinished();
    };
    let Some(end) = input[start..].iter().position(|&byte| byte == b'\n').map(|len| start + len)
    else {
        return unfinished();
    };
    let mut words = input[start..end].splitn(3, |&byte| byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path_start = match target.iter().position(|&byte| byte == b'/') {
        Some(0) => Some(0),
        Some(at) => {
            let rest = target.get(at + 2..).unwrap_or_default();
            rest.iter().position(|&byte| matches!(byte, b'/' | b'?')).map(|len| at + 2 + len)
        }
        None => None,
    };
    let path = path_start.map_or(&[][..], |at| &target[at..]);
    let (before, is_text) =
        (&target[..target.len() - path.len()], std::str::from_utf8(path).is_ok());
    if method == b"CONNECT" || !before.is_ascii() || !is_text {
        return Err(RequestError::TargetRaw);
    }
    let path_start = start + method.len() + 1 + before.len();
    let mut encoded = Vec::with_capacity(input.len() + 2 * path.len() + 1);
    encoded.extend_from_slice(&input[..path_start]);
    if path.first() == Some(&b'?') {
        encoded.push(b'/');
    }
    put_encoded(&mut encoded, path);
    encoded.extend_from_slice(&input[path_start + path.len()..]);
    Ok(Some(EncodedHead {
        added: encoded.len() - input.len(),
        bytes: encoded,
        is_raw: !path.is_ascii(),
    }))
}

/// Appends `path` with all bytes outside ASCII percent-encoded.
pub(crate) fn put_encoded(out: &mut Vec<u8>, path: &[u8]) {
    for &byte in path {
        if byte.is_ascii() {
            out.push(byte);
        } else {
            let digit = |value: u8| b"0123456789ABCDEF"[usize::from(value)];
            out.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte & 15)]);
        }
    }
}

/// Checks encoded bytes in the path (not the query, where any bytes may be data) that servers are
/// known to read differently than an access rule does: NUL, and a dot, slash or backslash as a
/// UTF-8 sequence longer than needed, such as `%c0%ae`. Other escapes need not be UTF-8: paths in
/// ISO 8859-1, cp1251 or GBK pass unchanged.
#[inline]
fn check_encoding(path_and_query: &[u8]) -> Result<(), RequestError> {
    if path_and_query.contains(&b'%') { check_encoded(path_and_query) } else { Ok(()) }
}

fn check_encoded(path_and_query: &[u8]) -> Result<(), RequestError> {
    let path = path_and_query.split(|&byte| byte == b'?').next().unwrap_or_default();
    for (at, _) in path.iter().enumerate().filter(|&(_, &byte)| byte == b'%') {
        let is_nul = encoded_byte(path, at) == Some(0);
        if is_nul
            || overlong_ascii(&path[at..])
                .is_some_and(|(byte, _)| matches!(byte, 0 | b'.' | b'/' | b'\\'))
        {
            return Err(RequestError::TargetEncoding);
        }
    }
    Ok(())
}

/// Returns the ASCII character at the start of `path` that is written as a UTF-8 sequence of two to
/// six bytes, each raw or escaped, and the length of that text; None: there is no such sequence.
/// Decoders that accept more than RFC 3629 allows read it as that character.
pub fn overlong_ascii(path: &[u8]) -> Option<(u8, usize)> {
    let byte_at = |at: usize| match path.get(at)? {
        b'%' => Some((encoded_byte(path, at)?, at + 3)),
        byte => Some((*byte, at + 1)),
    };
    let (first, mut at) = byte_at(0)?;
    let length = match first {
        0xc0 | 0xc1 => 2,
        0xe0 => 3,
        0xf0 => 4,
        0xf8 => 5,
        0xfc => 6,
        _ => return None,
    };
    let mut value = u32::from(first & 1);
    for _ in 1..length {
        let (byte, next) = byte_at(at)?;
        if byte & 0xc0 != 0x80 {
            return None;
        }
        (value, at) = (value << 6 | u32::from(byte & 0x3f), next);
    }
    u8::try_from(value).ok().filter(u8::is_ascii).map(|byte| (byte, at))
}

/// Returns the byte that `%xx` at this place encodes.
fn encoded_byte(path: &[u8], at: usize) -> Option<u8> {
    let &[b'%', high, low] = path.get(at..at + 3)? else { return None };
    let (high, low) = ((high as char).to_digit(16)?, (low as char).to_digit(16)?);
    Some((high * 16 + low) as u8)
}
