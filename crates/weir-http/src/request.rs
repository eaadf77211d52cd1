//! Request heads (RFC 9112 §3, §5, §6.3; RFC 9110 §7).
//!
//! Called by the client session on received bytes. One pass over the bytes, then a few looks at the
//! fields that were seen. Everything that weir decides about a request is decided here, once; the
//! encoder only writes it down.

use crate::authority::{Port, is_authority};
use crate::field::{FieldName, Fields};
use crate::framing::{self, Coding, LengthFault};
use crate::limits::Limits;
use crate::oddity::Oddity;
use crate::request_error::RequestError;
use crate::request_line::{Method, TargetForm, Version, parse_request_line};
use crate::span::Span;
use crate::syntax::{Sender, SyntaxError, line_end, parse_fields};

/// How a request's body is delimited. A request is never delimited by close (RFC 9112 §6.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestBody {
    /// No framing field: no body.
    None,
    /// Content-Length, which may be 0.
    Length(u64),
    /// The chunked coding.
    Chunked,
    /// In HTTP/2 only: plain bytes until the stream ends; the length is not announced
    /// (RFC 9113 §8.1).
    Open,
}

impl RequestBody {
    /// Not a single byte follows the head.
    pub fn is_empty(self) -> bool {
        matches!(self, Self::None | Self::Length(0))
    }
}

/// A complete request head. Spans refer to the input that was parsed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestHead {
    /// Length of the head in the input, with its empty line and skipped leading empty lines.
    pub bytes: usize,
    /// The method.
    pub method: Method,
    /// The method as received.
    pub method_span: Span,
    /// The target as received.
    pub target: Span,
    /// Path and query to forward; empty for authority-form and for an absolute-form without path
    /// (forward `/`, or `*` for OPTIONS); `*` for asterisk-form.
    pub path: Span,
    /// Host and port: from the target if it has them, else from Host; empty only in HTTP/1.0
    /// without Host.
    pub authority: Span,
    /// Form of the target.
    pub form: TargetForm,
    /// Version of the message.
    pub version: Version,
    /// What follows the head.
    pub body: RequestBody,
    /// The client keeps the connection open after this exchange.
    pub persist: bool,
    /// The client waits for 100 before it sends its body. Never set without a body or in HTTP/1.0.
    pub expect_continue: bool,
    /// Value of a valid Upgrade: HTTP/1.1, named by Connection, no body, not h2c.
    pub upgrade: Option<Span>,
    /// The client accepts trailers. Never set in HTTP/1.0, which has no chunked coding to carry
    /// them.
    pub te_trailers: bool,
    /// Conditional or partial: the response may lack the body that it describes.
    pub conditional: bool,
    /// Max-Forwards when it is one valid number; above 2^32-1 it counts as 2^32-1.
    pub max_forwards: Option<u32>,
    /// Via or CDN-Loop names us already: the request has come back.
    pub is_loop: bool,
}

impl RequestHead {
    /// The state before anything is known.
    pub(crate) const EMPTY: Self = Self {
        bytes: 0,
        method: Method::Other,
        method_span: Span { start: 0, end: 0 },
        target: Span { start: 0, end: 0 },
        path: Span { start: 0, end: 0 },
        authority: Span { start: 0, end: 0 },
        form: TargetForm::Origin,
        version: Version::Http11,
        body: RequestBody::None,
        persist: false,
        expect_continue: false,
        upgrade: None,
        te_trailers: false,
        conditional: false,
        max_forwards: None,
        is_loop: false,
    };

    /// Returns this head with another path and query, and its bytes, with one byte of what follows
    /// it, if anything. The part before the path moves towards it, so that spans after it don't
    /// change.
    ///
    /// # Panics
    /// `path` is longer than the one that it replaces.
    pub fn with_path(&self, input: &[u8], path: &[u8]) -> (Self, Vec<u8>) {
        let (start, end) = (self.path.start as usize, self.path.end as usize);
        let by = self.path.len() - path.len();
        let mut bytes = input[..input.len().min(self.bytes + 1)].to_vec();
        bytes.copy_within(..start, by);
        bytes[..by].fill(b' ');
        bytes[start + by..end].copy_from_slice(path);
        let moved = |span: Span| Span::new(span.start as usize + by, span.end as usize + by);
        let authority = if self.authority.end <= self.path.start {
            moved(self.authority)
        } else {
            self.authority
        };
        let method_span = moved(self.method_span);
        let target = Span::new(self.target.start as usize + by, self.target.end as usize);
        let path = Span::new(start + by, end);
        (Self { method_span, target, path, authority, ..*self }, bytes)
    }
}

/// Empty lines before a request that are skipped (RFC 9112 §2.2: a client may send one after a
/// body).
pub(crate) const LEADING_LINES_MAX: usize = 2;

const CONDITIONAL: u64 = FieldName::set(&[
    FieldName::IfMatch,
    FieldName::IfNoneMatch,
    FieldName::IfModifiedSince,
    FieldName::IfUnmodifiedSince,
    FieldName::IfRange,
    FieldName::Range,
]);

const FRAMING: u64 = FieldName::set(&[FieldName::ContentLength, FieldName::TransferEncoding]);

/// Fields that need a separate check; most requests have none.
const RARE: u64 = FieldName::set(&[
    FieldName::Upgrade,
    FieldName::Te,
    FieldName::MaxForwards,
    FieldName::Via,
    FieldName::CdnLoop,
    FieldName::Expect,
    FieldName::Proxy,
]);

/// Parses a request head at the start of `input`; `Ok(None)` when it is not complete yet. `fields`
/// is overwritten.
///
/// A cut-off head gives either None or the error of the whole head. Call it once on fresh input;
/// for a head that arrives in pieces wait with [`HeadScan`](crate::HeadScan), which doesn't start
/// over each time.
///
/// # Errors
/// The client is at fault: respond with [`RequestError::status`] and close.
pub fn parse_request(
    input: &[u8],
    limits: &Limits,
    fields: &mut Fields,
) -> Result<Option<RequestHead>, RequestError> {
    fields.clear();
    let window = limits.window(input);
    let mut head = RequestHead::EMPTY;
    if parse_window(window, limits, fields, &mut head)? {
        return Ok(Some(head));
    }
    if input.len() >= limits.head_max() { Err(SyntaxError::HeadTooLarge.into()) } else { Ok(None) }
}

/// Fills `head`; false when the window ends before the head does.
#[inline(always)]
fn parse_window(
    window: &[u8],
    limits: &Limits,
    fields: &mut Fields,
    head: &mut RequestHead,
) -> Result<bool, RequestError> {
    let Some(start) = skip_leading_lines(window, fields)? else { return Ok(false) };
    let Some(line_end) = parse_request_line(window, start, limits, head)? else { return Ok(false) };
    match parse_fields(window, line_end, limits.fields_max, Sender::Client, fields)? {
        None => Ok(false),
        Some(end) => {
            head.bytes = end;
            judge(window, limits, fields, head)?;
            Ok(true)
        }
    }
}

/// Start of the request line; None when the window ends before it.
#[inline]
fn skip_leading_lines(window: &[u8], fields: &mut Fields) -> Result<Option<usize>, RequestError> {
    let mut at = 0;
    while matches!(window.get(at), Some(b'\r' | b'\n')) {
        fields.odd.insert(Oddity::LeadingLine);
        match line_end(window, at)? {
            None => return Ok(None),
            Some(_) if at == LEADING_LINES_MAX * 2 => return Err(RequestError::LeadingLines),
            Some(next) => at = next,
        }
    }
    Ok((at < window.len()).then_some(at))
}

/// Decides what the request means from all of its fields. `head` has everything from its line; for
/// HTTP/2 also whether there is a body.
#[inline]
pub(crate) fn judge(
    input: &[u8],
    limits: &Limits,
    fields: &mut Fields,
    head: &mut RequestHead,
) -> Result<(), RequestError> {
    let mut is_followed = false;
    if fields.has_any(FRAMING) {
        let body = body(input, head, fields)?;
        // CONNECT has no content (RFC 9110 §9.3.6): what follows is for the tunnel, or is
        // discarded; never another request.
        is_followed = head.method == Method::Connect && !body.is_empty();
        head.body = if head.method == Method::Connect { RequestBody::None } else { body };
    }
    let host = host(input, head.version, fields)?;
    if matches!(head.form, TargetForm::Origin | TargetForm::Asterisk) {
        head.authority = host;
    } else if overrules(input, head, host) {
        fields.odd.insert(Oddity::OtherHost);
    }
    fields.judge_repeated();
    let options = framing::connection(input, fields)?;
    let modern = head.version != Version::Http10;
    head.persist = !options.close && !is_followed && (modern || options.keep_alive);
    head.conditional = fields.has_any(CONDITIONAL);
    if fields.has_any(RARE) {
        let empty = head.body.is_empty();
        head.expect_continue = expect_continue(input, fields)? && modern && !empty;
        if modern && options.upgrade && empty {
            head.upgrade = framing::upgrade(input, fields);
        }
        head.te_trailers = modern && framing::te_trailers(input, fields);
        head.max_forwards = max_forwards(input, fields);
        head.is_loop = framing::is_loop(input, fields, limits.pseudonym);
        if head.upgrade.is_none() && fields.find(FieldName::Upgrade).is_some() {
            fields.odd.insert(Oddity::VainUpgrade);
        }
        if fields.find(FieldName::Proxy).is_some() {
            fields.odd.insert(Oddity::ProxyField);
        }
    }
    Ok(())
}

/// The target is absolute and its authority is not what Host says.
#[cold]
fn overrules(input: &[u8], head: &RequestHead, host: Span) -> bool {
    let differs = !head.authority.of(input).eq_ignore_ascii_case(host.of(input));
    head.form == TargetForm::Absolute && !host.is_empty() && differs
}

/// RFC 9112 §6.3 without its room for interpretation: any doubt is an error.
fn body(input: &[u8], head: &RequestHead, fields: &Fields) -> Result<RequestBody, RequestError> {
    let length = framing::content_length(input, fields).map_err(|fault| match fault {
        LengthFault::Invalid => RequestError::LengthInvalid,
        LengthFault::Repeated => RequestError::LengthRepeated,
    })?;
    let coding = framing::transfer_coding(input, fields);
    let body = match (coding, length) {
        (Coding::Absent, None) => return Ok(RequestBody::None),
        (Coding::Absent, Some(length)) => RequestBody::Length(length),
        (_, Some(_)) => return Err(RequestError::BothFramings),
        _ if head.version == Version::Http10 => return Err(RequestError::CodingInHttp10),
        (Coding::Invalid, None) => return Err(RequestError::CodingInvalid),
        (Coding::Unknown, None) => return Err(RequestError::CodingUnknown),
        (Coding::Chunked, None) => RequestBody::Chunked,
    };
    match (head.method, body) {
        (Method::Connect, RequestBody::Chunked) => Err(RequestError::ConnectBody),
        (_, body) => Ok(body),
    }
}

/// Host must be valid even when the target overrules it (RFC 9112 §3.2).
#[inline]
fn host(input: &[u8], version: Version, fields: &Fields) -> Result<Span, RequestError> {
    match fields.find(FieldName::Host) {
        None if version != Version::Http10 => Err(RequestError::HostMissing),
        None => Ok(Span::default()),
        Some(_) if fields.is_repeated(FieldName::Host) => Err(RequestError::HostRepeated),
        Some(field) if !is_authority(field.value.of(input), Port::Optional) => {
            Err(RequestError::HostInvalid)
        }
        Some(field) => Ok(field.value),
    }
}

/// Reads Expect (RFC 9110 §10.1.1). Two expectations are one too many, even equal ones.
fn expect_continue(input: &[u8], fields: &Fields) -> Result<bool, RequestError> {
    match fields.find(FieldName::Expect) {
        None => Ok(false),
        Some(field)
            if !fields.is_repeated(FieldName::Expect)
                && field.value.of(input).eq_ignore_ascii_case(b"100-continue") =>
        {
            Ok(true)
        }
        Some(_) => Err(RequestError::Expectation),
    }
}

fn max_forwards(input: &[u8], fields: &Fields) -> Option<u32> {
    let field = fields.find(FieldName::MaxForwards)?;
    let digits = field.value.of(input);
    if fields.is_repeated(FieldName::MaxForwards)
        || digits.is_empty()
        || !digits.iter().all(u8::is_ascii_digit)
    {
        return None;
    }
    Some(framing::decimal(digits).and_then(|hops| u32::try_from(hops).ok()).unwrap_or(u32::MAX))
}
