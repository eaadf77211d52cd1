//! HTTP/1.1 without sockets: heads, framing, chunked coding, field edits, encoding (RFC 9110,
//! RFC 9112); and HTTP/2 from the server's side, and a generator of requests ([`h2`]).
//!
//! One strictness for all, no lenient mode: everything that does not match the grammar exactly is
//! rejected, because request smuggling relies on texts that two programs read differently. Input is
//! a byte slice, output is spans into it; messages that leave are rewritten from those spans with
//! exactly one framing field.
//!
//! The usual order for one request: [`parse_request`] on the received bytes; when it returns
//! `None`, [`HeadScan::find`] on the grown input until the head is complete, then [`parse_request`]
//! once more; [`BodyReader`] for a body; [`encode_request`] into the connection's log. The response
//! takes [`ReplyReader`], which parses heads with [`parse_reply`] and reads bodies, then
//! [`encode_reply_head`] and [`finish_reply_head`].
#![forbid(unsafe_code)]

mod authority;
mod body_reader;
mod chunked;
mod date;
mod encode;
mod encode_reply;
mod faults;
mod field;
mod framing;
pub mod fuzzing;
pub mod h2;
mod head_scan;
mod known;
mod limits;
mod oddity;
mod pseudonym;
mod reply;
mod reply_parts;
mod reply_reader;
mod request;
mod request_error;
mod request_line;
mod scan;
mod span;
mod syntax;
mod trailer;

pub use authority::is_host;
pub use body_reader::{BodyPart, BodyReader};
pub use chunked::{Chunk, ChunkError, ChunkedDecoder};
pub use date::{http_date, parse_http_date};
pub use encode::{Forwarded, Framing, RequestEdits, encode_request};
pub use encode_reply::{
    CHUNK_TAIL, Persistence, SERVER, encode_chunk_head, encode_error_reply, encode_last_chunk,
    encode_reply_head, error_text, finish_reply_head, reason,
};
pub use field::{Field, FieldName, Fields};
pub use head_scan::HeadScan;
pub use limits::Limits;
pub use oddity::{BodyOddities, Oddities, Oddity};
pub use pseudonym::Pseudonym;
pub use reply::{ReplyBody, ReplyContext, ReplyDoubt, ReplyError, ReplyHead, parse_reply};
pub use reply_parts::{KeptReply, ReplyParts, Trailers, fields_of_lines};
pub use reply_reader::{ReplyFault, ReplyPart, ReplyReader};
pub use request::{RequestBody, RequestHead, parse_request};
pub use request_error::RequestError;
pub use request_line::{EncodedHead, Method, TargetForm, Version, encode_target, overlong_ascii};
pub use scan::is_token;
pub use span::Span;
pub use syntax::SyntaxError;
