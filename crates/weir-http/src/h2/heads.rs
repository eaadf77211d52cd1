//! Header lists to request heads (RFC 9113 §8.2, §8.3): the same text and spans that
//! [`parse_request`](crate::parse_request) gives, judged by the same code.
//!
//! Each field is checked before a byte of it becomes text, so that nothing in a name or value can
//! become a separate line. All connections of a thread share one working memory. Bounds: the list
//! counts name, value and 32 a field, as RFC 9113 §6.5.2 defines it. Over the limit nothing more is
//! written, and the request is rejected; over [`LIST_FACTOR`] times the limit the rest of the block
//! is not read. Fields are counted as they leave: the crumbs of a cookie are one (RFC 9113 §8.2.3).

use super::hpack::{Decoder, HpackError};
use super::limits::Limits;
use super::priority::Priority;
use crate::field::{Field, FieldName, Fields};
use crate::known::classify;
use crate::oddity::Oddity;
use crate::request::{RequestBody, RequestHead, judge};
use crate::request_error::RequestError;
use crate::request_line::{Method, Version, judge_target, put_encoded};
use crate::scan::{NOT_TOKEN, UNDERSCORE, is_blank, is_token, target_end, token_faults, value_end};
use crate::span::Span;
use crate::syntax::SyntaxError;

/// A list this many times over the limit ends the connection.
const LIST_FACTOR: usize = 4;
/// What a field counts beyond its text (RFC 9113 §6.5.2).
const FIELD_BYTES: usize = 32;
/// Behind the target in the line.
const VERSION: &[u8] = b" HTTP/2.0\r\n";

/// Fields of a connection, which HTTP/2 does not have (RFC 9113 §8.2.2).
const CONNECTION: u64 = FieldName::set(&[
    FieldName::Connection,
    FieldName::KeepAlive,
    FieldName::ProxyConnection,
    FieldName::TransferEncoding,
    FieldName::Upgrade,
]);

/// Working memory for heads: the last one that was read. Keeps its memory; it is bounded by the
/// limits of heads.
#[derive(Debug, Default)]
pub struct Heads {
    /// The head as text.
    text: Vec<u8>,
    fields: Fields,
    /// Values of pseudo fields, until the line is written.
    pseudo: Vec<u8>,
    /// Crumbs of the cookie.
    cookie: Vec<u8>,
    /// The decoder's.
    scratch: Vec<u8>,
    /// Streams that are reset later in the same input.
    pub(super) doomed: Vec<u32>,
}

/// The meaning of a header list.
#[derive(Debug)]
pub(super) enum Outcome {
    /// A request, and its priority.
    Request(RequestHead, Priority),
    /// A request that is well-formed and can't be served.
    Refused(RequestError),
    /// Not a request (RFC 9113 §8.1.1), and the first reason for that.
    Malformed(RequestError),
}

/// A list while it is read.
struct List<'h> {
    text: &'h mut Vec<u8>,
    fields: &'h mut Fields,
    pseudo: &'h mut Vec<u8>,
    cookie: &'h mut Vec<u8>,
    limits: &'h crate::Limits,
    /// Bytes of the list so far.
    bytes: usize,
    /// Lines of fields so far, a cookie counted once.
    lines: usize,
    method: Option<Span>,
    scheme: Option<Span>,
    path: Option<Span>,
    authority: Option<Span>,
    head: RequestHead,
    /// The line is written: fields follow.
    begun: bool,
    has_host: bool,
    has_cookie: bool,
    malformed: Option<RequestError>,
    refused: Option<RequestError>,
}

impl Heads {
    /// The text of the head that was read last.
    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Its fields.
    pub(super) fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Returns its first line, as far as it was read.
    pub(super) fn line(&self) -> &[u8] {
        let end = self.text.windows(2).position(|pair| pair == b"\r\n").unwrap_or_default();
        &self.text[..end]
    }

    /// Reads a block that opens a stream; `end`: no body follows.
    ///
    /// # Errors
    /// The block can't be read, so that the connection is over.
    pub(super) fn request(
        &mut self,
        decoder: &mut Decoder,
        block: &[u8],
        end: bool,
        limits: &Limits,
    ) -> Result<Outcome, HpackError> {
        let Heads { text, fields, pseudo, cookie, scratch, .. } = self;
        text.clear();
        fields.clear();
        pseudo.clear();
        cookie.clear();
        let body = if end { RequestBody::None } else { RequestBody::Open };
        let head = RequestHead { version: Version::Http2, body, ..RequestHead::EMPTY };
        let (bytes, lines, limits) = (0, 0, &limits.head);
        let (method, scheme, path, authority) = (None, None, None, None);
        let (begun, has_host, has_cookie, malformed, refused) = (false, false, false, None, None);
        #[rustfmt::skip]
        let mut list = List {
            text, fields, pseudo, cookie, limits, bytes, lines, method, scheme, path, authority,
            head, begun, has_host, has_cookie, malformed, refused,
        };
        decoder.decode(block, scratch, |name, value| list.take(name, value))?;
        Ok(list.finish(end))
    }

    /// Reads a block after a body. False: it is malformed. Its fields are dropped.
    ///
    /// # Errors
    /// The block can't be read, so that the connection is over.
    pub(super) fn trailers(
        &mut self,
        decoder: &mut Decoder,
        block: &[u8],
        limits: &Limits,
    ) -> Result<bool, HpackError> {
        let (mut well_formed, mut bytes) = (true, 0usize);
        let bytes_max = limits.head.head_max().saturating_mul(LIST_FACTOR);
        decoder.decode(block, &mut self.scratch, |name, value| {
            bytes += name.len() + value.len() + FIELD_BYTES;
            well_formed &=
                check_field(name, trim(value)).is_ok() && !classify(name).is_in(CONNECTION);
            bytes <= bytes_max
        })?;
        Ok(well_formed)
    }

    /// Bytes of memory that it has.
    pub fn memory(&self) -> usize {
        let bytes = self.text.capacity()
            + self.pseudo.capacity()
            + self.cookie.capacity()
            + self.scratch.capacity();
        bytes + self.doomed.capacity() * size_of::<u32>() + self.fields.len() * size_of::<Field>()
    }
}

/// Checks that a name is valid in HTTP/2, which requires a token without capital letters, and that
/// a value has no control bytes (RFC 9113 §8.2.1, RFC 9110 §5.5).
#[inline]
fn check_field(name: &[u8], value: &[u8]) -> Result<(), RequestError> {
    let is_name = !name.is_empty()
        && token_faults(name) & NOT_TOKEN == 0
        && !name.iter().any(u8::is_ascii_uppercase);
    if is_name && value_end(value, 0) == value.len() { Ok(()) } else { Err(field_fault(name)) }
}

/// Returns the fault of a field whose name or value is invalid.
#[cold]
fn field_fault(name: &[u8]) -> RequestError {
    let fault = match name {
        b"" => SyntaxError::NameEmpty,
        _ if name.iter().any(|&byte| is_blank(byte)) => SyntaxError::NameSpaced,
        _ if token_faults(name) & NOT_TOKEN != 0 || name.iter().any(u8::is_ascii_uppercase) => {
            SyntaxError::NameInvalid
        }
        _ => SyntaxError::ControlByte,
    };
    fault.into()
}

/// Returns a value without the blanks around it. RFC 9113 §8.2.1 calls a request with them
/// malformed. In HTTP/1 they are not part of the value (RFC 9110 §5.5), servers get the value
/// without them, and clients do send them: Go's repeats such a request without end when its stream
/// is reset.
#[inline]
fn trim(value: &[u8]) -> &[u8] {
    let is_blank_at = |byte: Option<&u8>| byte.is_some_and(|&byte| is_blank(byte));
    if is_blank_at(value.first()) || is_blank_at(value.last()) { trimmed(value) } else { value }
}

#[cold]
fn trimmed(value: &[u8]) -> &[u8] {
    let is_text = |byte: &u8| !is_blank(*byte);
    let start = value.iter().position(is_text).unwrap_or(value.len());
    let end = value.iter().rposition(is_text).map_or(start, |last| last + 1);
    &value[start..end]
}

/// Whether this can be the value of a pseudo field: no control bytes and no blanks around it, which
/// no URI and no method has.
#[inline]
fn is_pseudo_value(value: &[u8]) -> bool {
    value_end(value, 0) == value.len() && trim(value).len() == value.len()
}

impl List<'_> {
    /// One field. False: the list is far too large.
    #[inline]
    fn take(&mut self, name: &[u8], value: &[u8]) -> bool {
        self.bytes += name.len() + value.len() + FIELD_BYTES;
        if self.bytes > self.limits.head_max() {
            self.refuse(SyntaxError::HeadTooLarge.into());
            return self.bytes <= self.limits.head_max().saturating_mul(LIST_FACTOR);
        }
        if self.malformed.is_some() {
            return true;
        }
        if name.first() == Some(&b':') {
            let is_fine = !self.begun && self.pseudo_field(name, value);
            self.malformed = (!is_fine).then_some(RequestError::PseudoField);
            return true;
        }
        if !self.begun {
            self.begin();
        }
        let fault = self.field(name, trim(value)).err();
        self.malformed = self.malformed.or(fault);
        true
    }

    fn refuse(&mut self, error: RequestError) {
        self.refused.get_or_insert(error);
    }

    /// RFC 9113 §8.3.1. False: malformed.
    fn pseudo_field(&mut self, name: &[u8], value: &[u8]) -> bool {
        let place = match name {
            b":method" => &mut self.method,
            b":scheme" => &mut self.scheme,
            b":path" => &mut self.path,
            b":authority" => &mut self.authority,
            _ => return false,
        };
        let start = self.pseudo.len();
        self.pseudo.extend_from_slice(value);
        place.replace(Span::new(start, self.pseudo.len())).is_none() && is_pseudo_value(value)
    }

    /// All pseudo fields have come: writes the line, and Host.
    fn begin(&mut self) {
        self.begun = true;
        self.malformed = self.write_line().err();
    }

    /// # Errors
    /// Why the list is malformed.
    fn write_line(&mut self) -> Result<(), RequestError> {
        let method = self.method.ok_or(RequestError::PseudoField)?.of(self.pseudo);
        self.head.method = Method::of(method);
        // PRI belongs to the preface (RFC 9113 §3.4).
        if !is_token(method) || method == b"PRI" {
            return Err(RequestError::MethodInvalid);
        }
        let connect = self.head.method == Method::Connect;
        let target = match (connect, self.scheme, self.path, self.authority) {
            // RFC 9113 §8.5
            (true, None, None, Some(authority)) => authority.of(self.pseudo),
            (false, Some(_), Some(path), _) => path.of(self.pseudo),
            _ => return Err(RequestError::PseudoField),
        };
        let is_path =
            target.first() == Some(&b'/') || target == b"*" && self.head.method == Method::Options;
        if !connect && !is_path {
            return Err(RequestError::TargetForm);
        }
        let fault = line_fault(method, target, self.limits);
        let scheme = self.scheme.map_or(&b"http"[..], |scheme| scheme.of(self.pseudo));
        let known =
            [b"http".as_slice(), b"https"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
        let fault = fault.or((!known).then_some(RequestError::TargetForm));
        if let Some(fault) = fault {
            self.refuse(fault);
            return Ok(());
        }
        self.text.extend_from_slice(method);
        self.text.push(b' ');
        let start = self.text.len();
        put_encoded(self.text, target);
        self.head.method_span = Span::new(0, method.len());
        self.head.target = Span::new(start, self.text.len());
        self.text.extend_from_slice(VERSION);
        if let Some(authority) = self.authority {
            self.counts_one_more();
            let authority = authority.of(self.pseudo);
            put(self.text, self.fields, b"host", authority, FieldName::Host, false);
        }
        Ok(())
    }

    /// An ordinary field, its value without blanks around it.
    ///
    /// # Errors
    /// Why the list is malformed.
    #[inline]
    fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), RequestError> {
        check_field(name, value)?;
        let known = classify(name);
        match known {
            FieldName::Cookie => {
                self.crumb(value);
                return Ok(());
            }
            FieldName::Host => {
                if std::mem::replace(&mut self.has_host, true) {
                    return Err(RequestError::HostRepeated);
                }
                if let Some(authority) = self.authority {
                    let is_same = authority.of(self.pseudo).eq_ignore_ascii_case(value);
                    return if is_same { Ok(()) } else { Err(RequestError::HostDiffers) };
                }
            }
            FieldName::Te if !value.eq_ignore_ascii_case(b"trailers") => {
                return Err(RequestError::ConnectionField);
            }
            _ if known.is_in(CONNECTION) => return Err(RequestError::ConnectionField),
            _ => {}
        }
        if self.counts_one_more() {
            let underscore = token_faults(name) & UNDERSCORE != 0;
            put(self.text, self.fields, name, value, known, underscore);
        }
        Ok(())
    }

    /// A part of the cookie (RFC 9113 §8.2.3): all become one line.
    fn crumb(&mut self, value: &[u8]) {
        if !std::mem::replace(&mut self.has_cookie, true) {
            self.counts_one_more();
        } else if !self.cookie.is_empty() {
            self.cookie.extend_from_slice(b"; ");
        }
        self.cookie.extend_from_slice(value);
    }

    /// Whether another line may be written.
    fn counts_one_more(&mut self) -> bool {
        self.lines += 1;
        if self.lines > self.limits.fields_max {
            self.refuse(SyntaxError::FieldsTooMany.into());
        }
        self.refused.is_none()
    }

    fn finish(mut self, end: bool) -> Outcome {
        if !self.begun && self.malformed.is_none() {
            self.begin();
        }
        if let Some(error) =
            self.malformed.filter(|_| self.refused != Some(SyntaxError::HeadTooLarge.into()))
        {
            return Outcome::Malformed(error);
        }
        if let Some(error) = self.refused {
            return Outcome::Refused(error);
        }
        if self.has_cookie {
            put(self.text, self.fields, b"cookie", self.cookie, FieldName::Cookie, false);
        }
        self.text.extend_from_slice(b"\r\n");
        self.head.bytes = self.text.len();
        let judged = judge_target(self.text, &mut self.head)
            .and_then(|()| judge(self.text, self.limits, self.fields, &mut self.head));
        if let Err(error) = judged {
            return Outcome::Refused(error);
        }
        // Bytes after CONNECT are not a body.
        if self.head.method == Method::Connect {
            self.head.body = RequestBody::None;
        }
        // RFC 9113 §8.1.1: a length without a body.
        if end && !self.head.body.is_empty() {
            return Outcome::Malformed(RequestError::LengthDiffers);
        }
        let priority = self.fields.get(self.text, b"priority").map(Priority::parse);
        Outcome::Request(self.head, priority.unwrap_or_default())
    }
}

/// Returns the fault of a target, of which nothing is written in that case.
fn line_fault(method: &[u8], target: &[u8], limits: &crate::Limits) -> Option<RequestError> {
    let stop = target.iter().position(|&byte| byte < 0x80 && target_end(&[byte], 0) == 0);
    match stop.map(|at| target[at]) {
        Some(b'#') => return Some(RequestError::TargetFragment),
        Some(_) => return Some(RequestError::TargetInvalid),
        None => {}
    }
    if std::str::from_utf8(target).is_err() {
        return Some(RequestError::TargetRaw);
    }
    let encoded = target.len() + 2 * target.iter().filter(|byte| !byte.is_ascii()).count();
    let too_long = method.len() + 1 + encoded + VERSION.len() > limits.line_with_end_max();
    too_long.then_some(SyntaxError::LineTooLong.into())
}

/// Appends a line and its field.
#[inline]
fn put(
    text: &mut Vec<u8>,
    fields: &mut Fields,
    name: &[u8],
    value: &[u8],
    known: FieldName,
    underscore: bool,
) {
    let start = text.len();
    text.extend_from_slice(name);
    text.extend_from_slice(b": ");
    text.extend_from_slice(value);
    text.extend_from_slice(b"\r\n");
    let name_end = start + name.len();
    let value = Span::new(name_end + 2, text.len() - 2);
    if underscore {
        fields.odd.insert(Oddity::Underscore);
    }
    let (line, name) = (Span::new(start, text.len()), Span::new(start, name_end));
    fields.push(Field { line, name, value, known, underscore, ..Field::default() });
}
