//! Writing a reply to the client: head, framing, connection, chunks, and replies of our own (RFC
//! 9110 §7.6, §15, RFC 9112 §4, §6, §7.1).
//!
//! A response head is written in two steps: the upstream's part as soon as it is there, and framing
//! and connection when the client's session knows them. Never fails.

use crate::encode::{Framing, put_decimal, put_field, put_framing, put_via};
use crate::pseudonym::Pseudonym;
use crate::reply_parts::{ReplyParts, Trailers};

/// How the response describes the future of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Persistence<'a> {
    /// Not at all: HTTP/1.1 that remains open.
    Implied,
    /// `Connection: keep-alive`, for HTTP/1.0 clients that requested it.
    KeepAlive,
    /// `Connection: close`.
    Close,
    /// `Connection: upgrade` with the protocol, for 101.
    Upgrade(&'a [u8]),
}

/// Behind the data of a chunk.
pub const CHUNK_TAIL: &[u8] = b"\r\n";

/// Room for what [`finish_reply_head`] adds.
const ADDED_BYTES: usize = 128;

/// Appends status line and end-to-end fields, without framing, Connection and the empty line: those
/// come from [`finish_reply_head`]. Always HTTP/1.1. A response that passes through gets Via with
/// the name `via`; `date` is the value of Date, for a response that has none.
pub fn encode_reply_head(
    out: &mut Vec<u8>,
    parts: &ReplyParts<'_>,
    via: Option<Pseudonym>,
    date: Option<&[u8; 29]>,
) {
    out.reserve(parts.bytes_max() + ADDED_BYTES);
    out.extend_from_slice(b"HTTP/1.1 ");
    put_decimal(out, u64::from(parts.status));
    out.push(b' ');
    out.extend_from_slice(parts.reason);
    out.extend_from_slice(b"\r\n");
    parts.put_received(out);
    if let (Some(version), Some(us)) = (parts.version, via) {
        put_via(out, version, us);
    }
    for (name, value) in parts.added {
        put_field(out, name, value);
    }
    if let Some(date) = date {
        put_field(out, b"Date", date);
    }
}

/// Appends the framing field, the connection's future and the empty line. For HEAD and 304 the
/// framing is that of the body that is not sent.
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

/// Appends a complete error that ends the connection, with [`error_text`] as its content.
pub fn encode_error_reply(out: &mut Vec<u8>, status: u16, word: &str) {
    let text = error_text(status, word);
    encode_reply_head(
        out,
        &ReplyParts::made(status, &[SERVER, (b"Content-Type", b"text/plain")]),
        None,
        None,
    );
    finish_reply_head(out, Framing::Length(text.len() as u64), Persistence::Close);
    out.extend_from_slice(&text);
}

/// Returns the content of an error response of weir: a line of text that names status and `word`.
pub fn error_text(status: u16, word: &str) -> Vec<u8> {
    [&status_digits(status)[..], b" ", reason(status).as_bytes(), b": ", word.as_bytes(), b"\n"]
        .concat()
}

/// The field Server of responses that weir makes.
pub const SERVER: (&[u8], &[u8]) = (b"Server", b"weir");

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

/// Appends the end of a chunked body.
pub fn encode_last_chunk(out: &mut Vec<u8>, trailers: Trailers<'_>) {
    out.extend_from_slice(b"0\r\n");
    out.extend_from_slice(trailers.as_bytes());
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
