//! Answers: their parts as frames, and what is counted until it may leave (RFC 9113 §8.1, §8.8).
//!
//! Heads are encoded when they come, behind all control frames, because the encoder keeps no table; bodies are only counted. Trailers wait
//! as a block of their own. Calls for a stream that is not open any more do nothing: its end and an answer may cross.

use super::frame::{END_HEADERS, END_STREAM, FRAME_BYTES_MAX, FrameHead, HEAD_BYTES, Kind};
use super::hpack::encode::{EMPTY_TABLE, put_field, put_status};
use super::mux::Mux;
use super::stream::Answer;
use crate::encode::put_decimal;
use crate::pseudonym::Pseudonym;
use crate::reply_parts::{ReplyParts, Trailers};

/// What the head of an answer says besides what its source has said.
#[derive(Clone, Copy, Debug, Default)]
pub struct Additions<'a> {
    /// The name in Via, for an answer that passes through.
    pub via: Option<Pseudonym>,
    /// The value of Date, for an answer without.
    pub date: Option<&'a [u8; 29]>,
    /// The value of Content-Length.
    pub length: Option<u64>,
}

impl Mux {
    /// The head of the final answer: HEADERS, with END_STREAM when `end`: nothing else may be said of this answer then. Returns its bytes with
    /// frame headers; 0: the stream is not open, or has had a head.
    pub fn reply_head(&mut self, stream: u32, parts: &ReplyParts<'_>, additions: &Additions<'_>, end: bool) -> usize {
        let answer = if end { Answer::Closed } else { Answer::Begun };
        match self.streams.find_mut(stream) {
            Some(open) if open.answer == Answer::Awaited => open.answer = answer,
            _ => return 0,
        }
        self.put_block(stream, end, |out| put_parts(out, parts, additions))
    }

    /// An interim answer: any number of them before the final one; not 101. Returns its bytes with frame headers, 0 when it is too late.
    pub fn interim(&mut self, stream: u32, parts: &ReplyParts<'_>, via: Option<Pseudonym>) -> usize {
        debug_assert!((102..200).contains(&parts.status) || parts.status == 100, "an interim answer");
        if self.streams.find(stream).is_none_or(|open| open.answer != Answer::Awaited) {
            return 0;
        }
        let additions = Additions { via, ..Additions::default() };
        self.put_block(stream, false, |out| put_parts(out, parts, &additions))
    }

    /// So many more bytes of the answer's body wait with the caller to be sent, behind its head. False: nobody wants them, because the
    /// stream is not open; the caller forgets them.
    pub fn reply_data(&mut self, stream: u32, bytes: usize) -> bool {
        match self.streams.find_mut(stream) {
            Some(open) if open.answer == Answer::Begun => {
                open.queued += bytes;
                true
            }
            _ => false,
        }
    }

    /// The answer is complete: END_STREAM follows what waits, with the trailers. When the request's body is not complete then, the client is
    /// told that it isn't needed (RST_STREAM with NO_ERROR). Returns the bytes of a block of trailers.
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

    /// The caller keeps `bytes` of the request's body no longer: the client may send as many more.
    pub fn consumed(&mut self, stream: u32, bytes: usize) {
        let Some(open) = self.streams.find_mut(stream) else { return };
        let bytes = (bytes as u64).min(u64::from(open.held)) as u32;
        open.held -= bytes;
        if self.failure().is_none() {
            self.credit(stream, bytes);
        }
    }

    /// From now on the request's body is passed on as it comes; what is [consumed](Mux::consumed) has left but for `on_way` bytes at most. When a
    /// whole window has left and was consumed at once, the window grows.
    pub fn pass_body_on(&mut self, stream: u32, on_way: usize) {
        if let Some(open) = self.streams.find_mut(stream) {
            (open.passed_on, open.prompt) = (Some(on_way as u32), 0);
        }
    }

    /// The rest of the request's body is thrown away: no events. What was told counts as consumed.
    pub fn ignore_body(&mut self, stream: u32) {
        let Some(open) = self.streams.find_mut(stream) else { return };
        open.ignored = true;
        open.held = 0;
    }

    /// Bytes of body that were counted and have not left.
    pub fn unsent(&self, stream: u32) -> usize {
        self.streams.find(stream).map_or(0, |open| open.queued)
    }

    /// Bytes of body that have left on an open stream, in all: who judges the pace of a client compares it now and then.
    pub fn sent(&self, stream: u32) -> u64 {
        self.streams.find(stream).map_or(0, |open| open.sent)
    }

    /// Appends a header block to what is to be sent. Returns its bytes with frame headers.
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
        out.extend_from_slice(&FrameHead { length: fragment.len() as u32, kind, flags, stream }.bytes());
        out.extend_from_slice(fragment);
        if behind.is_empty() {
            return;
        }
        (kind, flags, rest) = (Kind::Continuation, 0, behind);
    }
}

/// The same fields in the same order as in HTTP/1, but for those of the connection.
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
