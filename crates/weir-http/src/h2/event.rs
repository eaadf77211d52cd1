//! What [`Mux::read`](super::Mux::read) is given and what it says.

use super::error::Code;
use super::limits::Limits;
use crate::field::Fields;
use crate::request::RequestHead;
use crate::request_error::RequestError;

/// Received bytes with what is needed to read them. Make one for each receive; when reading was blocked, make one of the rest later.
#[derive(Debug)]
pub struct Turn<'a> {
    pub(super) input: &'a [u8],
    /// Bytes read.
    pub(super) at: usize,
    /// Microseconds of any clock that never goes back.
    pub(super) now_us: u64,
    pub(super) limits: &'a Limits,
    /// The input was searched for streams that are reset in it.
    pub(super) searched: bool,
}

impl<'a> Turn<'a> {
    /// `input` begins where the last turn has ended. `now_us` in microseconds, never less than before.
    pub fn new(input: &'a [u8], now_us: u64, limits: &'a Limits) -> Turn<'a> {
        Turn { input, at: 0, now_us, limits, searched: false }
    }

    /// Bytes of the input that were read. All of them when [`Mux::read`](super::Mux::read) gave None and reading is not
    /// [blocked](super::Mux::blocked).
    pub fn consumed(&self) -> usize {
        self.at
    }
}

/// A request whose head is complete.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The head. Its spans refer to `text`; its version is [`Version::Http2`](crate::Version::Http2).
    pub head: RequestHead,
    /// The head as text of HTTP/1: line, Host first, fields in lower case, an empty line.
    pub text: &'a [u8],
    /// Its fields, whose spans refer to `text`.
    pub fields: &'a Fields,
}

/// What has come. Streams are told by the number that the client gave them.
#[derive(Debug)]
pub enum Event<'a> {
    /// A request. Nothing comes of it any more when `end`, else its body: [`Event::Data`].
    Request {
        /// Its stream, which is open until [`Event::Reset`], or until its answer has left and its body has come.
        stream: u32,
        /// Its head.
        request: Request<'a>,
        /// It has no body.
        end: bool,
    },
    /// A request that must be refused, be it malformed (RFC 9113 §8.1.1) or not: answer with [`RequestError::status`]. Its body is
    /// thrown away. A malformed one is answered before its stream ends, because a client that gets nothing but RST_STREAM has
    /// no cause to name, and may repeat it at once.
    Refused {
        /// Its stream.
        stream: u32,
        /// Why.
        error: RequestError,
        /// What could be read of it as text of HTTP/1, at most its first line; may be empty.
        line: &'a [u8],
    },
    /// A part of a request's body. Say with [`Mux::consumed`](super::Mux::consumed) when its bytes are no longer kept.
    Data {
        /// Its stream.
        stream: u32,
        /// What [`Mux::set_tag`](super::Mux::set_tag) has set, else 0.
        tag: u64,
        /// The bytes; may be empty when `end`.
        bytes: &'a [u8],
        /// The body is complete, and as long as its Content-Length has said. Trailers are dropped.
        end: bool,
    },
    /// A request's body is not what its head has said, or its trailers are malformed, and no answer has begun: answer with
    /// [`RequestError::status`]. Nothing more comes of it.
    Broken {
        /// Its stream.
        stream: u32,
        /// Its tag, as in [`Event::Data`].
        tag: u64,
        /// What is wrong.
        error: RequestError,
    },
    /// A stream has ended before its time: nothing more comes of it and nothing can be sent on it. What waited to be sent is forgotten.
    Reset {
        /// The stream.
        stream: u32,
        /// Its tag, as in [`Event::Data`].
        tag: u64,
        /// Why.
        code: Code,
        /// The client has reset it; else it was made so by an error of the client.
        by_client: bool,
    },
    /// The client will ask for nothing more (GOAWAY). What is under way goes on.
    Leaving {
        /// Why.
        code: Code,
    },
}

/// Why nothing is read for the moment. The rest of the input is to be kept, and receiving to be stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocked {
    /// More is to be sent than a client may make us keep: until [`Mux::write_out`](super::Mux::write_out) has written it.
    Output,
    /// Requests that were reset still run: until [`Mux::gone`](super::Mux::gone) says that one has ended.
    InFlight,
    /// The client has reset too many requests: until then, microseconds.
    Until(u64),
}
