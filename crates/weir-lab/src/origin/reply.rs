//! Turns a response into bytes: the head, and the body or the plan to stream it.
//!
//! Called by `connection.rs`; pure. Bound: a body over [`INLINE_BYTES_MAX`] is never copied, it is
//! sent as slices of one static pattern, so that a response of any size needs no memory.
//! RFC 9112 §6 (framing), RFC 9110 §8.6, §15.

use std::sync::OnceLock;

use bytes::Bytes;
use weir_http::reason;

use super::badly::Faults;
use super::wanted::Wanted;

/// Bodies up to this length are copied after their head.
const INLINE_BYTES_MAX: u64 = 16 * 1024;
/// The pattern repeats after this many bytes: a prime, so that shifted data doesn't look right.
const PERIOD: u64 = 89;
/// Length of the static pattern, a multiple of the period, about 256 KiB.
const PATTERN_BYTES: usize = 89 * 2944;
/// Maximum bytes of a streamed body in one send.
const SEND_BYTES_MAX: u64 = 1024 * 1024;
/// Length of a chunk of a streamed chunked body.
const CHUNK_BYTES: u64 = 64 * 1024;

/// Returns the byte at `offset` of every body that `size=` requests; printable ASCII.
pub fn pattern_byte(offset: u64) -> u8 {
    b'!' + u8::try_from(offset % PERIOD).unwrap_or(0)
}

/// The pattern that bodies are cut from; made once, kept for ever.
fn pattern() -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    PATTERN.get_or_init(|| (0..PATTERN_BYTES as u64).map(pattern_byte).collect())
}

/// Where a body comes from.
#[derive(Debug, Clone)]
pub(super) enum Body {
    /// Text that was made for this response, and its media type.
    Text(Vec<u8>, &'static str),
    /// This many bytes of the pattern.
    Pattern(u64),
    /// The default of three bytes.
    Ok,
}

/// A response that is ready to be written.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    /// Status, framing, and whether to close.
    pub(super) wanted: Wanted,
    /// Its content.
    pub(super) body: Body,
    /// The request was HEAD.
    pub(super) head_only: bool,
    /// The request was HTTP/1.0: no chunked coding; `keep-alive` has to be announced.
    pub(super) http10: bool,
    /// The client keeps the connection open.
    pub(super) persist: bool,
    /// Its intentional faults.
    pub(super) faults: Option<Box<Faults>>,
}

/// The rest of a body that is being sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stream {
    offset: u64,
    end: u64,
    chunked: bool,
    /// The end of the chunked coding is left out.
    cut: bool,
    /// The connection ends after the body.
    pub(super) closes: bool,
}

impl Answer {
    /// Whether the connection ends after this response.
    pub(super) fn closes(&self) -> bool {
        self.wanted.close || !self.persist || self.ends_by_close()
    }

    /// Whether only the end of the connection delimits the body: one of unknown length towards
    /// HTTP/1.0.
    fn ends_by_close(&self) -> bool {
        self.wanted.chunked && self.http10
    }

    /// Returns the same response without faults.
    pub(super) fn clone_sound(&self) -> Answer {
        Answer { faults: None, ..self.clone() }
    }

    /// Whether at least a byte follows the head.
    pub(super) fn has_body(&self) -> bool {
        let bodiless = self.head_only || matches!(self.wanted.status, 204 | 304);
        let is_empty = match &self.body {
            Body::Text(text, _) => text.is_empty(),
            Body::Pattern(length) => *length == 0,
            Body::Ok => false,
        };
        !bodiless && !is_empty
    }

    /// Writes head and short bodies into `out`; returns a long body, to be streamed after it.
    pub(super) fn write(&self, out: &mut Vec<u8>, date_line: &[u8]) -> Option<Stream> {
        let bodiless = matches!(self.wanted.status, 204 | 304);
        let (length, media) = match &self.body {
            Body::Text(text, media) => (text.len() as u64, *media),
            Body::Pattern(length) => (*length, "text/plain"),
            Body::Ok => (3, "text/plain"),
        };
        self.write_head(out, date_line, length, media, bodiless);
        if bodiless || self.head_only {
            return None;
        }
        let chunked = self.wanted.chunked && !self.http10;
        match &self.body {
            Body::Pattern(length) if *length > INLINE_BYTES_MAX => {
                return Some(Stream {
                    offset: 0,
                    end: *length,
                    chunked,
                    cut: false,
                    closes: self.closes(),
                });
            }
            Body::Pattern(length) => {
                put_body(out, &pattern()[..usize::try_from(*length).unwrap_or(0)], chunked)
            }
            Body::Text(text, _) => put_body(out, text, chunked),
            Body::Ok => put_body(out, b"ok\n", chunked),
        }
        None
    }

    fn write_head(
        &self,
        out: &mut Vec<u8>,
        date_line: &[u8],
        length: u64,
        media: &str,
        bodiless: bool,
    ) {
        if self.wanted.status == 200 {
            out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        } else {
            let status = self.wanted.status;
            out.extend_from_slice(format!("HTTP/1.1 {status} {}\r\n", reason(status)).as_bytes());
        }
        out.extend_from_slice(date_line);
        if !bodiless {
            out.extend_from_slice(b"Content-Type: ");
            out.extend_from_slice(media.as_bytes());
            out.extend_from_slice(b"\r\n");
            self.write_framing(out, length);
        }
        if self.wanted.private {
            out.extend_from_slice(b"Cache-Control: private\r\n");
        }
        if let Some(tag) = self.wanted.tag {
            out.extend_from_slice(format!("Surrogate-Key: t{tag}\r\n").as_bytes());
        }
        if self.closes() {
            out.extend_from_slice(b"Connection: close\r\n");
        } else if self.http10 {
            out.extend_from_slice(b"Connection: keep-alive\r\n");
        }
        out.extend_from_slice(b"\r\n");
    }

    fn write_framing(&self, out: &mut Vec<u8>, length: u64) {
        if self.ends_by_close() {
            return;
        }
        if self.wanted.chunked {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
            return;
        }
        out.extend_from_slice(b"Content-Length: ");
        if length < 10 {
            out.push(b'0' + u8::try_from(length).unwrap_or(0));
        } else {
            out.extend_from_slice(length.to_string().as_bytes());
        }
        out.extend_from_slice(b"\r\n");
    }
}

fn put_body(out: &mut Vec<u8>, body: &[u8], chunked: bool) {
    if !chunked {
        out.extend_from_slice(body);
        return;
    }
    if !body.is_empty() {
        out.extend_from_slice(format!("{:x}\r\n", body.len()).as_bytes());
        out.extend_from_slice(body);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
}

impl Stream {
    /// Whether everything was handed out.
    pub(super) fn is_done(&self) -> bool {
        self.offset == self.end
    }

    /// Shifts to a wrong part of the pattern, of the same length.
    pub(super) fn shift(&mut self) {
        self.offset += 1;
        self.end += 1;
    }

    /// Makes it end in the middle.
    pub(super) fn cut(&mut self) {
        self.end = self.offset + (self.end - self.offset) / 2;
        self.cut = true;
    }

    /// Appends the slices of the next send, at most `bytes_max` and [`SEND_BYTES_MAX`] of body.
    pub(super) fn take(&mut self, slices: &mut Vec<Bytes>, bytes_max: u64) {
        let stop = self.end.min(self.offset + SEND_BYTES_MAX.min(bytes_max));
        while self.offset < stop {
            let piece = if self.chunked { CHUNK_BYTES } else { PATTERN_BYTES as u64 / 2 };
            let length = piece.min(stop - self.offset);
            if self.chunked {
                slices.push(Bytes::from(format!("{length:x}\r\n")));
            }
            slices.push(self.slice(length));
            if self.chunked {
                slices.push(Bytes::from_static(b"\r\n"));
            }
            self.offset += length;
        }
        if self.chunked && !self.cut && self.is_done() {
            slices.push(Bytes::from_static(b"0\r\n\r\n"));
        }
    }

    /// `length` bytes of the pattern in the phase of the current offset; at most half the pattern.
    fn slice(&self, length: u64) -> Bytes {
        let phase = usize::try_from(self.offset % PERIOD).unwrap_or(0);
        let length = usize::try_from(length).unwrap_or(0);
        Bytes::from_static(&pattern()[phase..phase + length])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(wanted: Wanted, body: Body) -> Answer {
        Answer { wanted, body, head_only: false, http10: false, persist: true, faults: None }
    }

    #[test]
    fn the_default_reply_is_three_bytes() {
        let mut out = Vec::new();
        assert_eq!(answer(Wanted::default(), Body::Ok).write(&mut out, b"Date: x\r\n"), None);
        let expected = "HTTP/1.1 200 OK\r\nDate: x\r\nContent-Type: text/plain\r\n\
            Content-Length: 3\r\n\r\nok\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn a_streamed_body_is_the_pattern_whatever_the_cuts() {
        for (length, chunked) in [(3_000_001_u64, false), (3_000_001, true), (16_385, true)] {
            let mut stream = Stream { offset: 0, end: length, chunked, cut: false, closes: false };
            let mut slices = Vec::new();
            while !stream.is_done() {
                stream.take(&mut slices, u64::MAX);
            }
            let sent: Vec<u8> = slices.concat();
            let body = if chunked { unchunk(&sent) } else { sent };
            assert_eq!(body.len() as u64, length);
            assert!(body.iter().enumerate().all(|(at, byte)| *byte == pattern_byte(at as u64)));
        }
    }

    /// An independent, lazy decoder: enough for what this file writes.
    fn unchunk(mut rest: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let end = rest.windows(2).position(|pair| pair == b"\r\n").unwrap();
            let length =
                usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
            rest = &rest[end + 2..];
            if length == 0 {
                assert_eq!(rest, b"\r\n");
                return body;
            }
            body.extend_from_slice(&rest[..length]);
            assert_eq!(&rest[length..length + 2], b"\r\n");
            rest = &rest[length + 2..];
        }
    }

    #[test]
    fn no_body_and_no_framing_for_204_and_304() {
        for status in [204, 304] {
            let mut out = Vec::new();
            let stream = answer(Wanted { status, ..Wanted::default() }, Body::Pattern(1 << 40))
                .write(&mut out, b"");
            assert_eq!(stream, None);
            assert!(!String::from_utf8(out).unwrap().contains("Content-Length"));
        }
    }

    #[test]
    fn caches_are_told_what_was_asked_for() {
        let head = |wanted| {
            let mut out = Vec::new();
            answer(wanted, Body::Ok).write(&mut out, b"");
            String::from_utf8(out).unwrap()
        };
        let text = head(Wanted { private: true, tag: Some(7), ..Wanted::default() });
        assert!(text.contains("\r\nCache-Control: private\r\nSurrogate-Key: t7\r\n"), "{text}");
        let text = head(Wanted::default());
        assert!(!text.contains("Cache-Control") && !text.contains("Surrogate-Key"), "{text}");
    }

    #[test]
    fn http10_gets_no_chunks_but_a_close() {
        let mut out = Vec::new();
        let mut reply =
            answer(Wanted { chunked: true, size: Some(5), ..Wanted::default() }, Body::Pattern(5));
        reply.http10 = true;
        assert!(reply.closes());
        reply.write(&mut out, b"");
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("Connection: close\r\n") && !text.contains("chunked"), "{text}");
        assert!(text.ends_with("\r\n\r\n!\"#$%"), "{text}");
    }
}
