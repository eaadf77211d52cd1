//! Response heads (RFC 9112 §4, §6.3; RFC 9110 §15).
//!
//! Called by the upstream connection on received bytes. With pipelining a wrong idea of where a
//! response ends gives one client's bytes to another, so every doubt is an error with its kind.
//! Only two faults are repaired, which the RFC requires of a proxy: white space before a colon and
//! folded lines.

use std::fmt;

use crate::field::{FieldName, Fields};
use crate::framing::{self, Coding, LengthFault};
use crate::limits::Limits;
use crate::request_line::Version;
use crate::scan::value_end;
use crate::span::Span;
use crate::syntax::{Sender, SyntaxError, line_end, parse_fields};

/// How a reply's body is delimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyBody {
    /// None, whatever the fields say: interim responses, 204, 304, and the response to HEAD.
    None,
    /// Content-Length.
    Length(u64),
    /// The chunked coding.
    Chunked,
    /// Until the connection ends: it can't be used again.
    UntilClose,
}

/// A complete reply head. Spans refer to the input that was parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyHead {
    /// Length of the head in the input with its empty line.
    pub bytes: usize,
    /// 100 to 999.
    pub status: u16,
    /// Reason phrase, may be empty.
    pub reason: Span,
    /// Version of the message.
    pub version: Version,
    /// What follows the head.
    pub body: ReplyBody,
    /// Content-Length as sent, also where no body follows (HEAD, 304).
    pub declared_length: Option<u64>,
    /// The server keeps the connection open after this response.
    pub persist: bool,
    /// Only with status 101: value of a valid Upgrade that Connection names.
    pub upgrade: Option<Span>,
    /// The server authenticates connections, not requests (NTLM, Negotiate): this connection
    /// belongs to one client now.
    pub connection_auth: bool,
}

/// What the parser must know of the request that a response belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplyContext {
    /// It was HEAD.
    pub head: bool,
}

/// Kinds of doubt about a server that a response head can raise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ReplyDoubt {
    /// Content-Length and Transfer-Encoding.
    BothFramings,
    /// A length that is not a number in range, or several different ones.
    InvalidLength,
    /// A transfer coding other than exactly `chunked`, or any in HTTP/1.0.
    UnknownCoding,
    /// Bytes that are not a valid response.
    NotAnAnswer,
}

/// One cause for each way in which an upstream's head is at fault. The connection must be closed,
/// nothing of it used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ReplyError {
    /// A fault of lines or fields.
    Syntax(SyntaxError),
    /// It doesn't begin with `HTTP/1.0 ` or `HTTP/1.1 `.
    VersionInvalid,
    /// The status is not three digits from 100 on, followed by a space.
    StatusInvalid,
    /// Content-Length is not 1*DIGIT up to 2^63-1.
    LengthInvalid,
    /// Several Content-Length lines.
    LengthRepeated,
    /// Content-Length and Transfer-Encoding.
    BothFramings,
    /// Transfer-Encoding is not exactly `chunked`.
    CodingUnknown,
    /// Transfer-Encoding in HTTP/1.0.
    CodingInHttp10,
}

impl ReplyError {
    /// Which doubt about the server it is.
    pub fn kind(self) -> ReplyDoubt {
        match self {
            Self::BothFramings => ReplyDoubt::BothFramings,
            Self::LengthInvalid | Self::LengthRepeated => ReplyDoubt::InvalidLength,
            Self::CodingUnknown | Self::CodingInHttp10 => ReplyDoubt::UnknownCoding,
            Self::Syntax(_) | Self::VersionInvalid | Self::StatusInvalid => ReplyDoubt::NotAnAnswer,
        }
    }

    /// Whether the head begins with a valid version and status.
    pub fn has_status_line(self) -> bool {
        !matches!(self, Self::VersionInvalid | Self::StatusInvalid)
    }

    /// Short word for log and counters.
    pub fn word(self) -> &'static str {
        match self {
            Self::Syntax(fault) => fault.word(),
            Self::VersionInvalid => "version-invalid",
            Self::StatusInvalid => "status-invalid",
            Self::LengthInvalid => "length-invalid",
            Self::LengthRepeated => "length-repeated",
            Self::BothFramings => "both-framings",
            Self::CodingUnknown => "coding-unknown",
            Self::CodingInHttp10 => "coding-in-http10",
        }
    }
}

impl From<SyntaxError> for ReplyError {
    fn from(fault: SyntaxError) -> Self {
        Self::Syntax(fault)
    }
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Syntax(fault) => return fault.fmt(f),
            Self::VersionInvalid => "no status line of HTTP/1.0 or HTTP/1.1",
            Self::StatusInvalid => "the status is not three digits and a space",
            Self::LengthInvalid => "Content-Length is not a number in range",
            Self::LengthRepeated => "Content-Length is there more than once",
            Self::BothFramings => "both Content-Length and Transfer-Encoding",
            Self::CodingUnknown => "Transfer-Encoding is not exactly chunked",
            Self::CodingInHttp10 => "Transfer-Encoding in HTTP/1.0",
        })
    }
}

impl std::error::Error for ReplyError {}

/// Parses a reply head at the start of `input`; `Ok(None)` when it is not complete yet. `fields` is
/// overwritten. Interim replies (1xx) are returned like any other.
///
/// A cut-off head gives either None or the error of the whole head. Call it once on fresh input;
/// for a head that arrives in pieces wait with
/// [`HeadScan::find_reply`](crate::HeadScan::find_reply).
///
/// # Errors
/// The upstream is at fault: [`ReplyError::kind`] says which doubt it raises.
pub fn parse_reply(
    input: &[u8],
    limits: &Limits,
    context: ReplyContext,
    fields: &mut Fields,
) -> Result<Option<ReplyHead>, ReplyError> {
    fields.clear();
    let window = limits.window(input);
    match parse_window(window, limits, context, fields)? {
        None if input.len() >= limits.head_max() => Err(SyntaxError::HeadTooLarge.into()),
        head => Ok(head),
    }
}

fn parse_window(
    window: &[u8],
    limits: &Limits,
    context: ReplyContext,
    fields: &mut Fields,
) -> Result<Option<ReplyHead>, ReplyError> {
    let line_max = limits.line_with_end_max();
    let line = &window[..window.len().min(line_max)];
    let Some(line) = status_line(line)? else {
        return if window.len() >= line_max {
            Err(SyntaxError::LineTooLong.into())
        } else {
            Ok(None)
        };
    };
    match parse_fields(window, line.end, limits.fields_max, Sender::Upstream, fields)? {
        None => Ok(None),
        Some(end) => judge(window, &line, end, context, fields).map(Some),
    }
}

struct StatusLine {
    version: Version,
    status: u16,
    reason: Span,
    end: usize,
}

/// `HTTP/1.1 200 reason`; the second space must be there even without a reason (RFC 9112 §4).
fn status_line(line: &[u8]) -> Result<Option<StatusLine>, ReplyError> {
    const STATUS: usize = b"HTTP/1.1 ".len();
    const REASON: usize = STATUS + b"200 ".len();
    if let Some(at) = line.iter().zip(b"HTTP/1.").position(|(byte, expected)| byte != expected) {
        return byte_fault(line, at, ReplyError::VersionInvalid);
    }
    let version = match line.get(7) {
        None => return Ok(None),
        Some(b'1') => Version::Http11,
        Some(b'0') => Version::Http10,
        Some(_) => return byte_fault(line, 7, ReplyError::VersionInvalid),
    };
    match line.get(8) {
        None => return Ok(None),
        Some(b' ') => {}
        Some(_) => return byte_fault(line, 8, ReplyError::VersionInvalid),
    }
    let mut status = 0;
    for at in STATUS..STATUS + 3 {
        match line.get(at) {
            None => return Ok(None),
            Some(&digit) if digit.is_ascii_digit() && (at > STATUS || digit != b'0') => {
                status = status * 10 + u16::from(digit - b'0');
            }
            Some(_) => return byte_fault(line, at, ReplyError::StatusInvalid),
        }
    }
    match line.get(REASON - 1) {
        None => return Ok(None),
        Some(b' ') => {}
        Some(_) => return byte_fault(line, REASON - 1, ReplyError::StatusInvalid),
    }
    let reason_end = value_end(line, REASON);
    let end = line_end(line, reason_end)?;
    Ok(end.map(|end| StatusLine { version, status, reason: Span::new(REASON, reason_end), end }))
}

/// The fault of a byte in the wrong place: bare line ends and control bytes by their own names.
fn byte_fault(line: &[u8], at: usize, other: ReplyError) -> Result<Option<StatusLine>, ReplyError> {
    if !line[at].is_ascii_control() || line[at] == b'\t' {
        return Err(other);
    }
    match line_end(line, at)? {
        None => Ok(None),
        Some(_) => Err(other),
    }
}

/// Decides what the reply means from all of its fields.
fn judge(
    input: &[u8],
    line: &StatusLine,
    bytes: usize,
    context: ReplyContext,
    fields: &mut Fields,
) -> Result<ReplyHead, ReplyError> {
    let declared_length = framing::content_length(input, fields).map_err(|fault| match fault {
        LengthFault::Invalid => ReplyError::LengthInvalid,
        LengthFault::Repeated => ReplyError::LengthRepeated,
    })?;
    let delimited =
        delimited(framing::transfer_coding(input, fields), declared_length, line.version)?;
    let options = framing::connection(input, fields)?;
    fields.judge_repeated();
    let bodiless = context.head || line.status < 200 || matches!(line.status, 204 | 304);
    let body = if bodiless { ReplyBody::None } else { delimited };
    let kept = !options.close && (line.version == Version::Http11 || options.keep_alive);
    let switching = line.status == 101 && line.version == Version::Http11 && options.upgrade;
    Ok(ReplyHead {
        bytes,
        status: line.status,
        reason: line.reason,
        version: line.version,
        body,
        declared_length,
        persist: kept && body != ReplyBody::UntilClose,
        upgrade: if switching { framing::upgrade(input, fields) } else { None },
        connection_auth: connection_auth(input, fields),
    })
}

/// RFC 9112 §6.3 without its room for interpretation, checked also where no body follows.
fn delimited(
    coding: Coding,
    length: Option<u64>,
    version: Version,
) -> Result<ReplyBody, ReplyError> {
    match (coding, length) {
        (Coding::Absent, None) => Ok(ReplyBody::UntilClose),
        (Coding::Absent, Some(length)) => Ok(ReplyBody::Length(length)),
        (_, Some(_)) => Err(ReplyError::BothFramings),
        _ if version == Version::Http10 => Err(ReplyError::CodingInHttp10),
        (Coding::Chunked, None) => Ok(ReplyBody::Chunked),
        (Coding::Unknown | Coding::Invalid, None) => Err(ReplyError::CodingUnknown),
    }
}

/// A comma inside a quoted string may look like a scheme; that only makes a connection private
/// unnecessarily.
fn connection_auth(input: &[u8], fields: &Fields) -> bool {
    fields.all(FieldName::WwwAuthenticate).any(|field| {
        framing::members(field.value.of(input)).any(|member| {
            let scheme = member.split(u8::is_ascii_whitespace).next().unwrap_or_default();
            scheme.eq_ignore_ascii_case(b"ntlm") || scheme.eq_ignore_ascii_case(b"negotiate")
        })
    })
}
