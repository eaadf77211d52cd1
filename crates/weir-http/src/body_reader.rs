//! Where a body ends, whatever determines that: a length, the chunked coding or the end of the
//! connection (RFC 9112 §6.3).
//!
//! Called by [`ReplyReader`](crate::ReplyReader), and with received bytes by every reader of
//! request bodies. Body bytes are not copied but named by position. Bounds: those of
//! [`ChunkedDecoder`].

use crate::chunked::{Chunk, ChunkError, ChunkedDecoder};
use crate::oddity::BodyOddities;
use crate::reply_parts::Trailers;

/// What a call of [`BodyReader::read`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyPart {
    /// The input is used up, and the body is not complete.
    More,
    /// `input[start..end]` is body. `start < end`.
    Data {
        /// First byte of body.
        start: usize,
        /// One past the last.
        end: usize,
    },
    /// The body and its trailers are complete. The next message follows.
    End,
}

/// State of one body. Without chunks it owns no memory.
#[derive(Clone, Debug)]
pub struct BodyReader(Framing);

/// What determines the end.
#[derive(Clone, Debug)]
enum Framing {
    /// Bytes still to come.
    Length(u64),
    Chunked(Box<ChunkedDecoder>),
    UntilClose,
}

impl BodyReader {
    /// Makes a reader for a body of `length` bytes, which may be 0 (RFC 9112 §6.2).
    #[inline]
    pub fn length(bytes: u64) -> Self {
        Self(Framing::Length(bytes))
    }

    /// A chunked body (RFC 9112 §7.1); `keep_trailers` as for [`ChunkedDecoder::new`].
    pub fn chunked(keep_trailers: bool) -> Self {
        Self(Framing::Chunked(Box::new(ChunkedDecoder::new(keep_trailers))))
    }

    /// A body that ends with the connection: it is never complete.
    #[inline]
    pub fn until_close() -> Self {
        Self(Framing::UntilClose)
    }

    /// Reads on from `input[*at..]` and moves `at` past the consumed bytes. Call it until it
    /// returns [`BodyPart::More`], then with new input. When the body is complete it returns
    /// [`BodyPart::End`] each time and consumes nothing.
    ///
    /// # Errors
    /// The sender is at fault. Body that was returned earlier precedes the fault.
    ///
    /// # Panics
    /// `at` is past the end of `input`.
    #[inline]
    pub fn read(&mut self, input: &[u8], at: &mut usize) -> Result<BodyPart, ChunkError> {
        let start = *at;
        let rest = &input[start..];
        if self.is_complete() {
            return Ok(BodyPart::End);
        }
        if rest.is_empty() {
            return Ok(BodyPart::More);
        }
        match &mut self.0 {
            Framing::Length(left) => {
                let taken = (*left).min(rest.len() as u64);
                *left -= taken;
                *at += taken as usize;
            }
            Framing::Chunked(decoder) => return read_chunked(decoder, rest, at),
            Framing::UntilClose => *at = input.len(),
        }
        Ok(BodyPart::Data { start, end: *at })
    }

    /// The body and its trailers are complete.
    #[inline]
    pub fn is_complete(&self) -> bool {
        match &self.0 {
            Framing::Length(left) => *left == 0,
            Framing::Chunked(decoder) => decoder.is_done(),
            Framing::UntilClose => false,
        }
    }

    /// The end of the connection is the end of the body.
    pub fn ends_by_close(&self) -> bool {
        matches!(self.0, Framing::UntilClose)
    }

    /// Returns the bytes still to come of a declared length; None: no length was declared.
    #[inline]
    pub fn left(&self) -> Option<u64> {
        if let Framing::Length(left) = self.0 { Some(left) } else { None }
    }

    /// Returns the oddities since the last call, as [`ChunkedDecoder::take_oddities`].
    #[inline]
    pub fn take_oddities(&mut self) -> Option<BodyOddities> {
        if let Framing::Chunked(decoder) = &mut self.0 { decoder.take_oddities() } else { None }
    }

    /// Trailers of a complete body, as [`ChunkedDecoder::trailers`].
    #[inline]
    pub fn trailers(&self) -> Trailers<'_> {
        if let Framing::Chunked(decoder) = &self.0 {
            decoder.trailers()
        } else {
            Trailers::default()
        }
    }
}

/// `rest` begins at `at`.
fn read_chunked(
    decoder: &mut ChunkedDecoder,
    rest: &[u8],
    at: &mut usize,
) -> Result<BodyPart, ChunkError> {
    let from = *at;
    Ok(match decoder.decode(rest)? {
        Chunk::More => {
            *at = from + rest.len();
            BodyPart::More
        }
        Chunk::Data { start, end } => {
            *at = from + end;
            BodyPart::Data { start: from + start, end: *at }
        }
        Chunk::End { consumed } => {
            *at = from + consumed;
            BodyPart::End
        }
    })
}

const _: () = assert!(size_of::<BodyReader>() <= 16);

#[cfg(test)]
mod tests {
    //! Proves: each framing ends where it should and nowhere else, and the reported state of a body
    //! is correct at every byte. How: bodies with something behind them, in pieces of every size.

    use super::*;

    /// Returns the body, the unconsumed bytes, and whether it is complete.
    fn read_by(mut body: BodyReader, input: &[u8], size: usize) -> (Vec<u8>, usize, bool) {
        let (mut data, mut at) = (Vec::new(), 0);
        for end in (size..input.len() + size).step_by(size).map(|end| end.min(input.len())) {
            loop {
                let before = (at, body.left());
                match body.read(&input[..end], &mut at).unwrap() {
                    BodyPart::More => break assert!(at == end && !body.is_complete()),
                    BodyPart::Data { start, end } => {
                        assert!(before.0 <= start && start < end && end == at);
                        assert_eq!(body.left(), before.1.map(|left| left - (end - start) as u64));
                        data.extend_from_slice(&input[start..end]);
                    }
                    BodyPart::End => {
                        assert!(body.is_complete() && !body.ends_by_close());
                        let consumed = at;
                        assert_eq!(
                            (body.read(input, &mut at), at),
                            (Ok(BodyPart::End), consumed),
                            "it says so again"
                        );
                        return (data, input.len() - at, true);
                    }
                }
            }
        }
        (data, input.len() - at, false)
    }

    #[test]
    fn each_framing_ends_where_it_should() {
        let chunks = b"2;a=b\r\nok\r\n1\r\n\n\r\n0\r\nX: y\r\n\r\nHTTP";
        for size in 1..40 {
            assert_eq!(
                read_by(BodyReader::length(3), b"ok\nHTTP", size),
                (b"ok\n".to_vec(), 4, true)
            );
            assert_eq!(read_by(BodyReader::length(0), b"HTTP", size), (Vec::new(), 4, true));
            assert_eq!(
                read_by(BodyReader::length(8), b"ok\nHTTP", size),
                (b"ok\nHTTP".to_vec(), 0, false)
            );
            assert_eq!(
                read_by(BodyReader::chunked(true), chunks, size),
                (b"ok\n".to_vec(), 4, true)
            );
            assert_eq!(
                read_by(BodyReader::until_close(), b"ok\nHTTP", size),
                (b"ok\nHTTP".to_vec(), 0, false)
            );
        }
    }

    #[test]
    fn only_chunks_have_trailers_and_oddities() {
        let mut body = BodyReader::chunked(true);
        let input = b"0;a\r\nX: y\r\nHost: z\r\n\r\n";
        assert_eq!(body.read(input, &mut 0), Ok(BodyPart::End));
        assert_eq!((body.trailers().as_bytes(), body.left()), (&b"X: y\r\n"[..], None));
        assert_eq!(
            body.take_oddities(),
            Some(BodyOddities { extensions: 1, crumbs: 0, trailers: 1 })
        );
        for mut body in [BodyReader::length(1), BodyReader::until_close()] {
            assert_eq!((body.take_oddities(), body.trailers().is_empty()), (None, true));
        }
        let refused = BodyReader::chunked(false).read(input, &mut 0);
        assert_eq!(refused, Err(ChunkError::TrailerForbidden));
    }
}
