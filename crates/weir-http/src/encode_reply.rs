//! Writing a reply to the client: head, framing, connection, chunks, and replies of our own (RFC 9110 §7.6, §15,
//! RFC 9112 §4, §6, §7.1).
//!
//! A reply head is written in two steps: what comes from the upstream as soon as it is there, and framing and
//! connection when the client's session knows them. Never fails.

use crate::encode::{Framing, Run, put_decimal, put_field, put_framing, put_via};
use crate::field::{Field, FieldName, Fields};
use crate::pseudonym::Pseudonym;
use crate::reply::ReplyHead;

/// What the reply says about the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Persistence<'a> {
    /// Nothing: HTTP/1.1 that goes on.
    Implied,
    /// `Connection: keep-alive`, for HTTP/1.0 clients that asked for it.
    KeepAlive,
    /// `Connection: close`.
    Close,
    /// `Connection: upgrade` with the protocol, for 101.
    Upgrade(&'a [u8]),
}

/// Behind the data of a chunk.
pub const CHUNK_TAIL: &[u8] = b"\r\n";

/// Never passed on: hop-by-hop or written anew by us.
const REMOVED: u64 = FieldName::set(&[
    FieldName::ContentLength,
    FieldName::TransferEncoding,
    FieldName::Connection,
    FieldName::KeepAlive,
    FieldName::ProxyConnection,
    FieldName::ProxyAuthenticate,
    FieldName::ProxyAuthorization,
    FieldName::ProxyAuthenticationInfo,
    FieldName::Proxy,
    FieldName::Te,
    FieldName::Trailer,
    FieldName::Upgrade,
    FieldName::Http2Settings,
]);

/// Room for what [`finish_reply_head`] adds.
const ADDED_BYTES: usize = 128;

/// Appends status line and end-to-end fields, without framing, Connection and the empty line: those come from
/// [`finish_reply_head`]. Always HTTP/1.1. `input` and `fields` are those that gave `head`.
pub fn encode_reply_head(out: &mut Vec<u8>, input: &[u8], head: &ReplyHead, fields: &Fields, via: Option<Pseudonym>) {
    out.reserve(head.bytes + ADDED_BYTES);
    out.extend_from_slice(b"HTTP/1.1 ");
    put_decimal(out, u64::from(head.status));
    out.push(b' ');
    out.extend_from_slice(head.reason.of(input));
    out.extend_from_slice(b"\r\n");
    let mut run = Run::default();
    for field in fields.as_slice() {
        let goes = field.known.is_in(REMOVED) | field.listed;
        if !(goes | field.folded | field.spaced) {
            run.add(field);
            continue;
        }
        run.flush(out, input);
        if !goes {
            put_repaired(out, input, field);
        }
    }
    run.flush(out, input);
    if let Some(us) = via {
        put_via(out, head.version, us);
    }
}

/// A line that may not leave as it came: each fold, with the white space around it, becomes one space.
fn put_repaired(out: &mut Vec<u8>, input: &[u8], field: &Field) {
    out.extend_from_slice(field.name.of(input));
    out.extend_from_slice(b": ");
    let lines = field.value.of(input).split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
    for (i, line) in lines.filter(|line| !line.is_empty()).enumerate() {
        if i > 0 {
            out.push(b' ');
        }
        out.extend_from_slice(line);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends the framing field, the connection's fate and the empty line. For HEAD and 304 the framing is that of the
/// body that is not sent.
pub fn finish_reply_head(out: &mut Vec<u8>, framing: Framing, persistence: Persistence<'_>) {
    put_framing(out, framing);
    match persistence {
        Persistence::Implied => {}
        Persistence::KeepAlive => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        Persistence::Close => out.extend_from_slice(b"Connection: close\r\n"),
        Persistence::Upgrade(protocol) => {
            out.extend_from_slice(b"Connection: upgrade\r\n");
            put_field(out, b"Upgrade", protocol);
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a complete reply of our own: a line of text that names status and `word`. With `head_only` (an answer
/// to HEAD) the body is left out. `retry_after_s` is in seconds, `extra` complete field lines.
pub fn encode_error_reply(
    out: &mut Vec<u8>,
    status: u16,
    word: &str,
    close: bool,
    head_only: bool,
    retry_after_s: Option<u32>,
    extra: &[u8],
) {
    let status_bytes = status_digits(status);
    let reason = reason(status).as_bytes();
    let body: [&[u8]; 6] = [&status_bytes, b" ", reason, b": ", word.as_bytes(), b"\n"];
    let body_bytes: usize = body.iter().map(|part| part.len()).sum();
    out.reserve(160 + 2 * body_bytes);
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(&status_bytes);
    out.push(b' ');
    out.extend_from_slice(reason);
    out.extend_from_slice(b"\r\nServer: weir\r\nContent-Type: text/plain\r\n");
    if let Some(seconds) = retry_after_s {
        out.extend_from_slice(b"Retry-After: ");
        put_decimal(out, u64::from(seconds));
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(extra);
    let persistence = if close { Persistence::Close } else { Persistence::Implied };
    finish_reply_head(out, Framing::Length(body_bytes as u64), persistence);
    if !head_only {
        body.iter().for_each(|part| out.extend_from_slice(part));
    }
}

/// Appends a complete 200 that weir makes itself, with content of this media type and `extra` field lines; without the content
/// for HEAD.
pub fn encode_content_reply(
    out: &mut Vec<u8>,
    media_type: &str,
    content: &[u8],
    close: bool,
    head_only: bool,
    extra: &[u8],
) {
    out.extend_from_slice(b"HTTP/1.1 200 OK\r\nServer: weir\r\nContent-Type: ");
    out.extend_from_slice(media_type.as_bytes());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(extra);
    let persistence = if close { Persistence::Close } else { Persistence::Implied };
    finish_reply_head(out, Framing::Length(content.len() as u64), persistence);
    if !head_only {
        out.extend_from_slice(content);
    }
}

fn status_digits(status: u16) -> [u8; 3] {
    [status / 100 % 10, status / 10 % 10, status % 10].map(|digit| b'0' + digit as u8)
}

/// Appends the size line of a chunk. `len` must not be 0: that is [`encode_last_chunk`].
pub fn encode_chunk_head(out: &mut Vec<u8>, len: usize) {
    debug_assert!(len > 0);
    let digits = (usize::BITS - len.leading_zeros()).div_ceil(4).max(1);
    for place in (0..digits).rev() {
        out.push(b"0123456789abcdef"[len >> (4 * place) & 15]);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends the end of a chunked body. `trailers` are complete lines, as
/// [`ChunkedDecoder::trailers`](crate::ChunkedDecoder::trailers) gives them.
pub fn encode_last_chunk(out: &mut Vec<u8>, trailers: &[u8]) {
    out.extend_from_slice(b"0\r\n");
    out.extend_from_slice(trailers);
    out.extend_from_slice(b"\r\n");
}

/// The usual reason phrase (RFC 9110 §15 and the registry), empty for unknown codes.
pub fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        206 => "Partial Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        418 => "I'm a teapot",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        508 => "Loop Detected",
        _ => "",
    }
}
