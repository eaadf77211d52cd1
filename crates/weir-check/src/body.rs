//! Bodies, decoded strictly: exact lengths, chunks without extensions, every CRLF where it belongs
//! (RFC 9112 §6, §7.1).

use crate::grammar::{field, latin1};
use crate::message::Fields;

/// The bytes of a body: all are counted and summed, the first 1 MiB are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body {
    /// The first 1 MiB.
    pub bytes: Vec<u8>,
    /// How many there were.
    pub length: u64,
    /// FNV-1a of all of them; compare with [`Body::of`].
    pub sum: u64,
}

/// Maximum bytes that are kept of one body.
const KEPT_BYTES_MAX: usize = 1 << 20;

impl Default for Body {
    fn default() -> Body {
        Body { bytes: Vec::new(), length: 0, sum: 0xcbf2_9ce4_8422_2325 }
    }
}

impl Body {
    /// The body that consists of these bytes.
    pub fn of(bytes: &[u8]) -> Body {
        let mut body = Body::default();
        body.push(bytes);
        body
    }

    /// Appends.
    pub fn push(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        self.sum = bytes
            .iter()
            .fold(self.sum, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let kept = bytes.len().min(KEPT_BYTES_MAX - self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..kept]);
    }

    /// Returns the kept bytes, one character for each byte.
    pub fn text(&self) -> String {
        latin1(&self.bytes)
    }
}

/// Where a body ends.
#[derive(Debug)]
pub(crate) enum BodyReader {
    /// This many bytes are missing.
    Length(u64),
    /// A chunk-size line, so far.
    Size(Vec<u8>),
    /// This many bytes of the chunk are missing.
    Data(u64),
    /// CRLF after chunk data; how much of it was seen.
    DataEnd(usize),
    /// Trailer lines and the empty line, so far.
    Trailers(Vec<u8>),
    /// Everything, until the connection ends.
    UntilClose,
    /// Nothing is missing.
    Done,
}

/// Longest trailer section that is accepted.
const TRAILER_BYTES_MAX: usize = 32 << 10;

impl BodyReader {
    /// A body of this many bytes.
    pub(crate) fn length(length: u64) -> BodyReader {
        if length == 0 { BodyReader::Done } else { BodyReader::Length(length) }
    }

    /// A chunked body.
    pub(crate) fn chunked() -> BodyReader {
        BodyReader::Size(Vec::new())
    }

    /// Takes the bytes of the body from the front of `input` and returns how many there were.
    pub(crate) fn feed(
        &mut self,
        input: &[u8],
        body: &mut Body,
        trailers: &mut Fields,
    ) -> Result<usize, &'static str> {
        let mut at = 0;
        while at < input.len() && !matches!(self, BodyReader::Done) {
            at += match self {
                BodyReader::Length(missing) | BodyReader::Data(missing) => {
                    let n = (input.len() - at).min(usize::try_from(*missing).unwrap_or(usize::MAX));
                    body.push(&input[at..at + n]);
                    *missing -= n as u64;
                    n
                }
                BodyReader::UntilClose => {
                    body.push(&input[at..]);
                    input.len() - at
                }
                BodyReader::Size(line) | BodyReader::Trailers(line) => {
                    line.push(input[at]);
                    1
                }
                BodyReader::DataEnd(seen) => {
                    if input[at] != b"\r\n"[*seen] {
                        return Err("chunk data not followed by CRLF");
                    }
                    *seen += 1;
                    1
                }
                BodyReader::Done => 0,
            };
            self.advance(trailers)?;
        }
        Ok(at)
    }

    /// Advances to the next state when the current one is complete.
    fn advance(&mut self, trailers: &mut Fields) -> Result<(), &'static str> {
        let next = match self {
            BodyReader::Length(0) => BodyReader::Done,
            BodyReader::Data(0) => BodyReader::DataEnd(0),
            BodyReader::DataEnd(2) => BodyReader::Size(Vec::new()),
            BodyReader::Size(line) => match chunk_size(line)? {
                Some(0) => BodyReader::Trailers(Vec::new()),
                Some(size) => BodyReader::Data(size),
                None => return Ok(()),
            },
            BodyReader::Trailers(lines) => {
                if !trailer_line(lines, trailers)? {
                    return Ok(());
                }
                BodyReader::Done
            }
            _ => return Ok(()),
        };
        *self = next;
        Ok(())
    }
}

/// The size of a complete chunk line; None while it isn't complete.
fn chunk_size(line: &[u8]) -> Result<Option<u64>, &'static str> {
    let digits = line.strip_suffix(b"\r\n").unwrap_or(line.strip_suffix(b"\r").unwrap_or(line));
    if digits.len() > 16 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err("chunk-size line that is not 1 to 16 hexadecimal digits and CRLF");
    }
    if !line.ends_with(b"\r\n") {
        return Ok(None);
    }
    let size = u64::from_str_radix(&latin1(digits), 16).map_err(|_| "empty chunk size")?;
    Ok(Some(size))
}

/// Takes a complete trailer line; true when it was the empty one.
fn trailer_line(line: &mut Vec<u8>, trailers: &mut Fields) -> Result<bool, &'static str> {
    if line.len() > TRAILER_BYTES_MAX {
        return Err("trailers without end");
    }
    if !line.ends_with(b"\n") {
        return Ok(false);
    }
    let Some(text) = line.strip_suffix(b"\r\n") else { return Err("bare LF in trailers") };
    if text.is_empty() {
        return Ok(true);
    }
    trailers.0.push(field(text)?);
    line.clear();
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes in two parts.
    fn decode(input: &[u8], split: usize) -> Result<(String, usize), &'static str> {
        let (mut reader, mut body, mut trailers) =
            (BodyReader::chunked(), Body::default(), Fields::default());
        let first = reader.feed(&input[..split], &mut body, &mut trailers)?;
        let second = if first == split {
            reader.feed(&input[split..], &mut body, &mut trailers)?
        } else {
            0
        };
        match reader {
            BodyReader::Done => Ok((body.text(), first + second)),
            _ => Err("not complete"),
        }
    }

    #[test]
    fn chunks_decode_alike_at_every_split() {
        let input = b"5\r\nhello\r\nA\r\n0123456789\r\n0\r\n\r\nGET";
        for split in 0..input.len() {
            assert_eq!(
                decode(input, split),
                Ok(("hello0123456789".into(), input.len() - 3)),
                "split at {split}"
            );
        }
    }

    #[test]
    fn what_the_grammar_forbids_is_refused() {
        let bad: [&[u8]; 9] = [
            b"5;a=b\r\nhello\r\n0\r\n\r\n",
            b"5 \r\nhello\r\n0\r\n\r\n",
            b"5\nhello\r\n0\r\n\r\n",
            b"5\r\nhelloXX0\r\n\r\n",
            b"5\r\nhello\n0\r\n\r\n",
            b"\r\nhello\r\n0\r\n\r\n",
            b"0x5\r\nhello\r\n0\r\n\r\n",
            b"00000000000000005\r\nhello\r\n0\r\n\r\n",
            b"0\r\nno colon\r\n\r\n",
        ];
        for input in bad {
            assert!(decode(input, 0).is_err(), "{}", input.escape_ascii());
        }
    }
}
