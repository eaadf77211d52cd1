//! The client's side of HTTP/2 (RFC 9113), as much of it as a generator of requests needs: requests
//! whose content is known, responses that are reported as they come, no push, no priorities.
//!
//! One connection is a [`Client`]. Requests go in with [`Client::open`], received bytes with
//! [`Client::read`], which reports one [`Event`] a call; output is taken with [`Client::take_out`].
//! Frames and HPACK are those of the server's side. Bytes to events are in `client/read.rs`.
//!
//! Bounds: the streams that the server allows at a time, [`OUT_BYTES_MAX`] of content that waits to
//! be sent and a frame more, and otherwise those of `client/read.rs`. Content beyond that remains
//! with the caller, shared and not copied.

mod read;

use std::collections::VecDeque;
use std::sync::Arc;

use super::PREFACE;
use super::error::{Code, Failure};
use super::frame::{self, END_STREAM, FRAME_BYTES_MAX, Kind, Setting};
use super::hpack::Decoder;
use super::hpack::encode::EMPTY_TABLE;
use super::mux::{WINDOW_INITIAL, WINDOW_MAX};
use super::reply::put_fragments;
use read::Reader;

/// Maximum content that is written ahead of what was taken, bytes.
const OUT_BYTES_MAX: usize = 65_536;
/// Streams that a server is assumed to allow before it has announced a number: the least that
/// RFC 9113 §6.5.2 recommends.
const STREAMS_MAX_INITIAL: u32 = 100;
/// Last number that a stream of a client can have.
const STREAM_LAST: u32 = 0x7fff_ffff;

/// The windows that a client grants a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Windows {
    /// Bytes of a response's body that may be on their way, 0 to 2^31-1.
    pub stream: u32,
    /// The same of all responses of a connection together, 65,535 to 2^31-1.
    pub connection: u32,
    /// Received bytes are given back to the window. A client that never does so stalls its
    /// responses.
    pub gives_back: bool,
}

impl Windows {
    /// Windows of a client that accepts everything at once: 1 MiB a response, 16 MiB a connection.
    pub const OPEN: Windows = Windows { stream: 1 << 20, connection: 16 << 20, gives_back: true };
    /// Windows of a client that accepts no body at all.
    pub const SHUT: Windows =
        Windows { stream: 0, connection: WINDOW_INITIAL as u32, gives_back: false };
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its header block (RFC 7541 §6) by [`encode`](super::hpack::encode), pseudo-header fields
    /// first.
    pub block: &'a [u8],
    /// Its content.
    pub content: &'a Arc<[u8]>,
    /// Its method is HEAD: a length in its response is not the length of the response
    /// (RFC 9110 §9.3.2).
    pub is_head: bool,
}

/// A received event. Streams have the numbers that [`Client::open`] returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// The head of a response, or of an interim one (below 200).
    Head {
        /// Its stream, which is gone when `end`.
        stream: u32,
        /// 100 to 999.
        status: u16,
        /// The response is complete.
        end: bool,
    },
    /// A piece of a response's body; empty where only its end has come, with trailers or without.
    Data {
        /// Its stream, which is gone when `end`.
        stream: u32,
        /// They are valid only as long as the input.
        bytes: &'a [u8],
        /// The response is complete.
        end: bool,
    },
    /// The stream is over without a complete response.
    Reset {
        /// It is gone.
        stream: u32,
        /// Why.
        code: Code,
        /// The server has reset it; else its response was malformed and weir has reset it.
        by_server: bool,
    },
    /// The server accepts no further streams; those above `last` are gone and were not processed
    /// (RFC 9113 §6.8).
    Leaving {
        /// Last stream that may be answered.
        last: u32,
        /// Why.
        code: Code,
    },
}

/// A stream without a complete response.
#[derive(Debug)]
struct Stream {
    id: u32,
    is_head: bool,
    /// The head of its response has come, not counting interim ones.
    has_head: bool,
    /// Bytes of body that Content-Length has announced and that have not come.
    length_left: Option<u64>,
    content: Arc<[u8]>,
    /// Bytes of it that were written.
    sent: usize,
    /// What the server accepts, beyond the initial window that it has announced for all, less the
    /// written bytes.
    credit: i64,
    /// What the server may send yet.
    window: i64,
    /// Bytes of it that were received and not given back.
    owed: u32,
}

/// One connection. It owns its header table and its output. About 500 bytes when nothing is under
/// way, and 4 KiB more when the server fills the header table.
#[derive(Debug)]
pub struct Client {
    reader: Reader,
    decoder: Decoder,
    /// In the order of their ids.
    streams: VecDeque<Stream>,
    /// Streams of which some content is not written.
    unsent: usize,
    /// Number of the next stream.
    next: u32,
    streams_max: u32,
    windows: Windows,
    /// What the server may send yet on the connection, and the received bytes that were not given
    /// back.
    window: i64,
    owed: u32,
    /// What the server accepts: on the connection, and on a new stream.
    room: i64,
    room_initial: i64,
    /// The server has changed the size of its header table: the next block announces that ours is
    /// empty.
    table_changed: bool,
    table_bytes: u32,
    out: Vec<u8>,
    /// Last stream that the server processes, once it has announced it.
    left: Option<u32>,
    failure: Option<Failure>,
}

impl Client {
    /// Makes a new connection; the output begins with the preface and our settings.
    pub fn new(windows: Windows) -> Client {
        let windows = Windows {
            stream: windows.stream.min(WINDOW_MAX as u32),
            connection: windows.connection.clamp(WINDOW_INITIAL as u32, WINDOW_MAX as u32),
            ..windows
        };
        let mut out = PREFACE.to_vec();
        frame::put_settings(
            &mut out,
            &[(Setting::EnablePush, 0), (Setting::InitialWindowSize, windows.stream)],
        );
        frame::put_window_update(&mut out, 0, windows.connection - WINDOW_INITIAL as u32);
        Client {
            reader: Reader::default(),
            decoder: Decoder::default(),
            streams: VecDeque::new(),
            unsent: 0,
            next: 1,
            streams_max: STREAMS_MAX_INITIAL,
            windows,
            window: i64::from(windows.connection),
            owed: 0,
            room: WINDOW_INITIAL,
            room_initial: WINDOW_INITIAL,
            table_changed: false,
            table_bytes: frame::TABLE_BYTES_INITIAL,
            out,
            left: None,
            failure: None,
        }
    }

    // ---- what is known ----

    /// Returns the number of requests that may be made now.
    pub fn room(&self) -> usize {
        if self.is_leaving() {
            return 0;
        }
        let numbers_left = (STREAM_LAST - self.next) / 2 + 1;
        (self.streams_max as usize).saturating_sub(self.streams.len()).min(numbers_left as usize)
    }

    /// Returns the number of streams without a complete response.
    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// Whether the head of a response has come on a stream that is not over.
    pub fn has_head(&self, stream: u32) -> bool {
        self.place(stream).is_some_and(|place| self.streams[place].has_head)
    }

    /// Whether the server's settings have begun to come: it supports HTTP/2.
    pub fn is_greeted(&self) -> bool {
        self.reader.is_greeted()
    }

    /// Whether no stream can be opened any more: the server shuts the connection down, is at fault,
    /// or the numbers are used up.
    pub fn is_leaving(&self) -> bool {
        self.left.is_some() || self.failure.is_some() || self.next > STREAM_LAST
    }

    /// Whether something is to be sent.
    pub fn wants_write(&self) -> bool {
        !self.out.is_empty()
    }

    // ---- what is done ----

    /// Makes a request and returns the number of its stream, or None without
    /// [room](Client::room).
    pub fn open(&mut self, request: &Request<'_>) -> Option<u32> {
        if self.room() == 0 {
            return None;
        }
        let (id, ends) = (self.next, request.content.is_empty());
        self.next += 2;
        if std::mem::take(&mut self.table_changed) {
            put_fragments(&mut self.out, id, ends, &[&[EMPTY_TABLE], request.block].concat());
        } else {
            put_fragments(&mut self.out, id, ends, request.block);
        }
        self.streams.push_back(Stream {
            id,
            is_head: request.is_head,
            has_head: false,
            length_left: None,
            content: Arc::clone(request.content),
            sent: 0,
            credit: 0,
            window: i64::from(self.windows.stream),
            owed: 0,
        });
        if !ends {
            self.unsent += 1;
            self.write_content();
        }
        Some(id)
    }

    /// Cancels a stream (CANCEL). Whatever comes on it is ignored; nothing happens when it is over
    /// already.
    pub fn cancel(&mut self, stream: u32) {
        if self.forget(stream).is_some() {
            frame::put_reset(&mut self.out, stream, Code::Cancel);
        }
    }

    /// Takes everything that may be sent now.
    pub fn take_out(&mut self) -> Vec<u8> {
        let taken = std::mem::take(&mut self.out);
        // Content that had no room may follow.
        self.write_content();
        taken
    }

    /// Writes content as far as windows and [`OUT_BYTES_MAX`] let it, the oldest request first.
    fn write_content(&mut self) {
        if self.unsent == 0 {
            return;
        }
        for stream in &mut self.streams {
            while stream.sent < stream.content.len() && self.out.len() < OUT_BYTES_MAX {
                let allowed = self
                    .room
                    .min(self.room_initial + stream.credit)
                    .clamp(0, i64::from(FRAME_BYTES_MAX));
                let rest = &stream.content[stream.sent..];
                let piece = &rest[..rest.len().min(allowed as usize)];
                if piece.is_empty() {
                    break;
                }
                let ends = piece.len() == rest.len();
                frame::put_head(
                    &mut self.out,
                    Kind::Data,
                    if ends { END_STREAM } else { 0 },
                    stream.id,
                    piece.len(),
                );
                self.out.extend_from_slice(piece);
                stream.sent += piece.len();
                stream.credit -= piece.len() as i64;
                self.room -= piece.len() as i64;
                self.unsent -= usize::from(ends);
            }
        }
    }

    fn place(&self, id: u32) -> Option<usize> {
        self.streams.binary_search_by_key(&id, |stream| stream.id).ok()
    }

    fn find(&mut self, id: u32) -> Option<&mut Stream> {
        let place = self.place(id)?;
        self.streams.get_mut(place)
    }

    /// Removes a stream from the table.
    fn forget(&mut self, id: u32) -> Option<Stream> {
        let stream = self.streams.remove(self.place(id)?)?;
        self.unsent -= usize::from(stream.sent < stream.content.len());
        Some(stream)
    }

    /// The response on a stream is complete. A request whose content is not wanted any more is
    /// cancelled (RFC 9113 §8.1).
    fn end(&mut self, id: u32) {
        if self.forget(id).is_some_and(|stream| stream.sent < stream.content.len()) {
            frame::put_reset(&mut self.out, id, Code::Cancel);
        }
    }
}
