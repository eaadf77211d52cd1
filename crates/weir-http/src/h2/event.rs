//! The input and the events of [`Mux::read`](super::Mux::read).

use super::error::Code;
use super::limits::Limits;
use crate::field::Fields;
use crate::request::RequestHead;
use crate::request_error::RequestError;

/// Received bytes with the context to read them. Make one for each receive; when reading was
/// blocked, make one of the rest later.
#[derive(Debug)]
pub struct Turn<'a> {
    pub(super) input: &'a [u8],
    /// Bytes read.
    pub(super) at: usize,
    /// Microseconds of any clock that is monotonic.
    pub(super) now_us: u64,
    pub(super) limits: &'a Limits,
    /// The input was searched for streams that are reset in it.
    pub(super) searched: bool,
}

impl<'a> Turn<'a> {
    /// Makes a turn. `input` begins where the last turn has ended. `now_us` in microseconds, never
    /// less than before.
    pub fn new(input: &'a [u8], now_us: u64, limits: &'a Limits) -> Turn<'a> {
        Turn { input, at: 0, now_us, limits, searched: false }
    }

    /// Returns the bytes of the input that were read. All of them when
    /// [`Mux::read`](super::Mux::read) returned None and reading is not
    /// [blocked](super::Mux::blocked).
    pub fn consumed(&self) -> usize {
        self.at
    }
}

/// A request whose head is complete.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The head. Its spans refer to `text`; its version is
    /// [`Version::Http2`](crate::Version::Http2).
    pub head: RequestHead,
    /// The head as text of HTTP/1: line, Host first, fields in lower case, an empty line.
    pub text: &'a [u8],
    /// Its fields, whose spans refer to `text`.
    pub fields: &'a Fields,
}

/// A received event. Streams have the numbers that the client gave them.
#[derive(Debug)]
pub enum Event<'a> {
    /// A request. Nothing more of it follows when `end`, else its body: [`Event::Data`].
    Request {
        /// Its stream, which is open until [`Event::Reset`], or until its response has left and its
        /// body has come.
        stream: u32,
        /// Its head.
        request: Request<'a>,
        /// It has no body.
        end: bool,
    },
    /// A request that must be rejected, whether malformed (RFC 9113 §8.1.1) or not: respond with
    /// [`RequestError::status`]. Its body is discarded. A malformed request gets a response before
    /// its stream ends, because a client that gets only RST_STREAM cannot name a cause, and may
    /// repeat it at once.
    Refused {
        /// Its stream.
        stream: u32,
        /// Why.
        error: RequestError,
        /// The readable part of it as text of HTTP/1, at most its first line; may be empty.
        line: &'a [u8],
    },
    /// A part of a request's body. Call [`Mux::consumed`](super::Mux::consumed) when its bytes are
    /// no longer kept.
    Data {
        /// Its stream.
        stream: u32,
        /// The value set by [`Mux::set_tag`](super::Mux::set_tag), else 0.
        tag: u64,
        /// The bytes; may be empty when `end`.
        bytes: &'a [u8],
        /// The body is complete, and as long as its Content-Length announced. Trailers are dropped.
        end: bool,
    },
    /// A request's body does not match its head, or its trailers are malformed, and no response has
    /// begun: respond with [`RequestError::status`]. Nothing more of it follows.
    Broken {
        /// Its stream.
        stream: u32,
        /// Its tag, as in [`Event::Data`].
        tag: u64,
        /// What is wrong.
        error: RequestError,
    },
    /// A stream has ended early: nothing more of it follows and nothing can be sent on it. Pending
    /// output on it is discarded.
    Reset {
        /// The stream.
        stream: u32,
        /// Its tag, as in [`Event::Data`].
        tag: u64,
        /// Why.
        code: Code,
        /// The client has reset it; else an error of the client made weir reset it.
        by_client: bool,
    },
    /// The client will send no more requests (GOAWAY). Those under way continue.
    Leaving {
        /// Why.
        code: Code,
    },
}

/// Why nothing is read for the moment. The caller keeps the rest of the input, and stops receiving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocked {
    /// More output is pending than a client may make weir keep: until
    /// [`Mux::write_out`](super::Mux::write_out) has written it.
    Output,
    /// Requests that were reset still run: until [`Mux::gone`](super::Mux::gone) reports that one
    /// has ended.
    InFlight,
    /// The client has reset too many requests: until then, microseconds.
    Until(u64),
}
