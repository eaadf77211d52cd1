//! Responses: their parts as frames, and the byte counts of what may not leave yet (RFC 9113 §8.1,
//! §8.8).
//!
//! Heads are encoded when they come, after all control frames, because the encoder keeps no table;
//! bodies are only counted. Trailers wait as a separate block. Calls for a stream that is not open
//! any more do nothing: its end and a response may cross.

use super::frame::{END_HEADERS, END_STREAM, FRAME_BYTES_MAX, FrameHead, HEAD_BYTES, Kind};
use super::hpack::encode::{EMPTY_TABLE, put_field, put_status};
use super::mux::Mux;
use super::stream::Answer;
use crate::encode::put_decimal;
use crate::pseudonym::Pseudonym;
use crate::reply_parts::{ReplyParts, Trailers};

/// Additions to the head of a response beyond those of its source.
#[derive(Clone, Copy, Debug, Default)]
pub struct Additions<'a> {
    /// The name in Via, for a response that passes through.
    pub via: Option<Pseudonym>,
    /// The value of Date, for a response without.
    pub date: Option<&'a [u8; 29]>,
    /// The value of Content-Length.
    pub length: Option<u64>,
}

impl Mux {
    /// Writes the head of the final response: HEADERS, with END_STREAM when `end`: nothing else may
    /// follow in this response then. Returns its bytes with frame headers; 0: the stream is not
    /// open, or has had a head.
    pub fn reply_head(
        &mut self,
        stream: u32,
        parts: &ReplyParts<'_>,
        additions: &Additions<'_>,
        end: bool,
    ) -> usize {
        let answer = if end { Answer::Closed } else { Answer::Begun };
        match self.streams.find_mut(stream) {
            Some(open) if open.answer == Answer::Awaited => open.answer = answer,
            _ => return 0,
        }
        self.put_block(stream, end, |out| put_parts(out, parts, additions))
    }

    /// Writes an interim response: any number of them before the final one; not 101. Returns its
    /// bytes with frame headers, 0 when it is too late.
    pub fn interim(
        &mut self,
        stream: u32,
        parts: &ReplyParts<'_>,
        via: Option<Pseudonym>,
    ) -> usize {
        debug_assert!(
            (102..200).contains(&parts.status) || parts.status == 100,
            "an interim answer"
        );
        if self.streams.find(stream).is_none_or(|open| open.answer != Answer::Awaited) {
            return 0;
        }
        let additions = Additions { via, ..Additions::default() };
        self.put_block(stream, false, |out| put_parts(out, parts, &additions))
    }

    /// Counts `bytes` more bytes of the response's body, which wait with the caller to be sent
    /// after its head. False: they are not wanted, because the stream is not open; the caller
    /// discards them.
    pub fn reply_data(&mut self, stream: u32, bytes: usize) -> bool {
        match self.streams.find_mut(stream) {
            Some(open) if open.answer == Answer::Begun => {
                open.queued += bytes;
                true
            }
            _ => false,
        }
    }

    /// The response is complete: END_STREAM follows the pending bytes, with the trailers. When the
    /// request's body is not complete then, and more of it comes that is not its end, RST_STREAM
    /// with NO_ERROR informs the client that it isn't needed. A reset right behind the response
    /// would have some clients discard it (curl 7.88). Returns the bytes of a block of trailers.
    pub fn end(&mut self, stream: u32, trailers: Trailers<'_>) -> usize {
        let Some(open) = self.streams.find_mut(stream) else { return 0 };
        if open.answer != Answer::Begun {
            return 0;
        }
        open.answer = Answer::Complete;
        if trailers.is_empty() {
            return 0;
        }
        let mut block = Vec::new();
        trailers.fields().for_each(|(name, value)| put_field(&mut block, name, value));
        let bytes = block.len();
        open.trailers = Some(block.into_boxed_slice());
        bytes
    }

    /// The caller keeps `bytes` of the request's body no longer: the client may send that many
    /// more.
    pub fn consumed(&mut self, stream: u32, bytes: usize) {
        let Some(open) = self.streams.find_mut(stream) else { return };
        let bytes = (bytes as u64).min(u64::from(open.held)) as u32;
        open.held -= bytes;
        if self.failure().is_none() {
            self.credit(stream, bytes);
        }
    }

    /// From now on the request's body is passed on as it comes; [consumed](Mux::consumed) bytes
    /// have left except for `on_way` bytes at most. When a whole window has left and was consumed
    /// at once, the window grows.
    pub fn pass_body_on(&mut self, stream: u32, on_way: usize) {
        if let Some(open) = self.streams.find_mut(stream) {
            (open.passed_on, open.prompt) = (Some(on_way as u32), 0);
        }
    }

    /// Discards the rest of the request's body: no events. The bytes that were reported count as
    /// consumed.
    pub fn ignore_body(&mut self, stream: u32) {
        let Some(open) = self.streams.find_mut(stream) else { return };
        open.ignored = true;
        open.held = 0;
    }

    /// Returns the bytes of body that were counted and have not left.
    pub fn unsent(&self, stream: u32) -> usize {
        self.streams.find(stream).map_or(0, |open| open.queued)
    }

    /// Returns the bytes of body that have left on an open stream, in all: a caller that judges the
    /// pace of a client compares it now and then.
    pub fn sent(&self, stream: u32) -> u64 {
        self.streams.find(stream).map_or(0, |open| open.sent)
    }

    /// Appends a header block to the pending output. Returns its bytes with frame headers.
    fn put_block(&mut self, stream: u32, end: bool, write: impl FnOnce(&mut Vec<u8>)) -> usize {
        if self.failure().is_some() {
            return 0;
        }
        let start = self.out.len();
        self.out.extend_from_slice(&[0; HEAD_BYTES]);
        if std::mem::take(&mut self.sending.table_changed) {
            self.out.push(EMPTY_TABLE);
        }
        write(&mut self.out);
        let length = self.out.len() - start - HEAD_BYTES;
        if length > FRAME_BYTES_MAX as usize {
            let block = self.out.split_off(start + HEAD_BYTES);
            self.out.truncate(start);
            put_fragments(&mut self.out, stream, end, &block);
        } else {
            let flags = END_HEADERS | if end { END_STREAM } else { 0 };
            let head = FrameHead { length: length as u32, kind: Kind::Headers, flags, stream };
            self.out[start..start + HEAD_BYTES].copy_from_slice(&head.bytes());
        }
        self.out.len() - start
    }
}

/// A header block that may need several frames.
pub(super) fn put_fragments(out: &mut Vec<u8>, stream: u32, end: bool, block: &[u8]) {
    let (mut kind, mut flags, mut rest) = (Kind::Headers, if end { END_STREAM } else { 0 }, block);
    loop {
        let (fragment, behind) = rest.split_at(rest.len().min(FRAME_BYTES_MAX as usize));
        if behind.is_empty() {
            flags |= END_HEADERS;
        }
        out.extend_from_slice(
            &FrameHead { length: fragment.len() as u32, kind, flags, stream }.bytes(),
        );
        out.extend_from_slice(fragment);
        if behind.is_empty() {
            return;
        }
        (kind, flags, rest) = (Kind::Continuation, 0, behind);
    }
}

/// Writes the same fields in the same order as in HTTP/1, except those of the connection.
fn put_parts(out: &mut Vec<u8>, parts: &ReplyParts<'_>, additions: &Additions<'_>) {
    put_status(out, parts.status);
    for (name, value) in parts.fields() {
        put_field(out, name, &value);
    }
    if let (Some(version), Some(us)) = (parts.version, additions.via) {
        put_field(out, b"via", &[version.number(), b" ", us.as_bytes()].concat());
    }
    if let Some(date) = additions.date {
        put_field(out, b"date", date);
    }
    if let Some(length) = additions.length {
        let mut digits = Vec::with_capacity(20);
        put_decimal(&mut digits, length);
        put_field(out, b"content-length", &digits);
    }
}
