//! The chunked transfer coding, decoded as it arrives (RFC 9112 §7.1).
//!
//! Called with received bytes of a request or response body. Every byte is looked at once, however
//! the input is cut; body bytes are not copied but named by position. Extensions are checked and
//! discarded. Bounds: digits of a size, 16 KiB of extensions a body, 100 lines and 32 KiB of
//! trailers.

use std::fmt;

use crate::framing::LENGTH_MAX;
use crate::oddity::BodyOddities;
use crate::reply_parts::Trailers;
use crate::scan::{is_blank, is_token_byte};
use crate::syntax::SyntaxError;
use crate::trailer::{TrailerFate, judge_trailer};

/// Digits of a chunk size with leading zeros: twice what 64 bits need.
const DIGITS_MAX: u8 = 32;
/// Bytes of extensions in one body (RFC 9112 §7.1.1 requires a limit).
const EXTENSION_BYTES_MAX: u16 = 16 * 1024;
/// Trailer lines and their bytes; dropped ones count.
const TRAILERS_MAX: u8 = 100;
const TRAILER_BYTES_MAX: u16 = 32 * 1024;

/// Chunks with less data than this are crumbs.
const CRUMB_BYTES: u64 = 8;
/// This many crumbs at once are strange. A stream that sends data as soon as it has it brings few
/// at a time.
const CRUMBS: u8 = 128;

/// What a call of [`ChunkedDecoder::decode`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chunk {
    /// All of the input was consumed and none of it passes on.
    More,
    /// `input[start..end]` is body, and `end` bytes were consumed. `start < end`.
    Data {
        /// First byte of body.
        start: usize,
        /// One past the last; also the number of consumed bytes.
        end: usize,
    },
    /// The body and its trailers are complete.
    End {
        /// Bytes of input that belonged to it; the next message follows.
        consumed: usize,
    },
}

/// Why a chunked body is rejected. The sender is at fault; nothing after the fault may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ChunkError {
    /// A size that is not 1*HEXDIG, or is followed by something other than an extension or CRLF.
    SizeInvalid,
    /// A size above 2^63-1, or one with too many zeros before it.
    SizeTooLarge,
    /// An extension that does not match the grammar.
    ExtensionInvalid,
    /// More bytes of extensions than allowed.
    ExtensionsTooLarge,
    /// A line that ends with LF alone, or with a CR without LF.
    LineEnd,
    /// The bytes after the data of a chunk are not CRLF.
    DataEnd,
    /// A trailer that is not a field line.
    TrailerInvalid(SyntaxError),
    /// A trailer that would be framing, routing, authentication or about the connection.
    TrailerForbidden,
    /// More trailers than allowed.
    TrailersTooLarge,
    /// Called again after an error.
    Failed,
}

impl ChunkError {
    /// Short word for log and counters.
    pub fn word(self) -> &'static str {
        match self {
            Self::SizeInvalid => "chunk-size-invalid",
            Self::SizeTooLarge => "chunk-size-too-large",
            Self::ExtensionInvalid => "chunk-extension-invalid",
            Self::ExtensionsTooLarge => "chunk-extensions-too-large",
            Self::LineEnd => "chunk-line-end",
            Self::DataEnd => "chunk-data-end",
            Self::TrailerInvalid(_) => "trailer-invalid",
            Self::TrailerForbidden => "trailer-forbidden",
            Self::TrailersTooLarge => "trailers-too-large",
            Self::Failed => "chunk-after-error",
        }
    }
}

impl fmt::Display for ChunkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SizeInvalid => "a chunk size is not hexadecimal digits",
            Self::SizeTooLarge => "a chunk size is too large",
            Self::ExtensionInvalid => "a chunk extension is malformed",
            Self::ExtensionsTooLarge => "too many bytes of chunk extensions",
            Self::LineEnd => "a chunk line does not end with CRLF",
            Self::DataEnd => "the data of a chunk is not followed by CRLF",
            Self::TrailerInvalid(fault) => return write!(f, "in a trailer: {fault}"),
            Self::TrailerForbidden => "a trailer that may not be one",
            Self::TrailersTooLarge => "too many trailers",
            Self::Failed => "the body failed before",
        })
    }
}

impl std::error::Error for ChunkError {}

#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Size,
    /// Behind `;` or white space after it.
    ExtensionStart,
    ExtensionName,
    /// White space after a name or value: another part must follow.
    ExtensionSpace,
    /// As `ExtensionSpace`, but after a value: no `=` any more.
    ValueSpace,
    ValueStart,
    ValueToken,
    ValueQuoted,
    ValueEscaped,
    /// Behind the closing quote.
    ValueEnd,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    Trailer,
    TrailerLf,
    EndLf,
    Done,
    Failed,
}

/// State of one chunked body. Without trailers it owns no memory.
///
/// ```text
/// size [;ext] CRLF data CRLF  ...  0 [;ext] CRLF *( trailer CRLF ) CRLF
/// Size -> Ext* -> SizeLf -> Data -> DataCr -> DataLf -> Size
///                      \-> TrailerStart -> Trailer -> TrailerLf -> TrailerStart -> EndLf -> Done
/// ```
#[derive(Clone, Debug)]
pub struct ChunkedDecoder {
    /// Size so far, then the remaining length of the chunk's data.
    left: u64,
    /// Lines that may pass on, followed by the line that is arriving.
    trailers: Vec<u8>,
    extension_bytes: u16,
    trailer_bytes: u16,
    /// Where the arriving line begins in `trailers`.
    trailer_line: u16,
    trailer_count: u8,
    digits: u8,
    /// Crumbs since the input was last used up, or since they were last counted.
    crumbs: u8,
    keep_trailers: bool,
    state: State,
    odd: BodyOddities,
}

impl ChunkedDecoder {
    /// Makes a decoder for a new body. With `keep_trailers` (responses) trailers that may pass on
    /// are kept and all others dropped; without (requests) none is kept, and a trailer that would
    /// be framing, routing or authentication is an error.
    pub fn new(keep_trailers: bool) -> Self {
        Self {
            left: 0,
            trailers: Vec::new(),
            extension_bytes: 0,
            trailer_bytes: 0,
            trailer_line: 0,
            trailer_count: 0,
            digits: 0,
            crumbs: 0,
            keep_trailers,
            state: State::Size,
            odd: BodyOddities::default(),
        }
    }

    /// Looks at `input` from its start; call it again with the bytes after the consumed part, and
    /// after [`Chunk::More`] with new input. After the end it consumes nothing.
    ///
    /// # Errors
    /// The sender is at fault. Body that was returned earlier precedes the fault.
    pub fn decode(&mut self, input: &[u8]) -> Result<Chunk, ChunkError> {
        let mut at = 0;
        while at < input.len() {
            if self.state == State::Data {
                return Ok(self.take_data(input.len() - at, at));
            }
            if self.state == State::Done {
                return Ok(Chunk::End { consumed: at });
            }
            match self.step(input[at]) {
                Ok(next) => self.state = next,
                Err(fault) => {
                    self.state = State::Failed;
                    return Err(fault);
                }
            }
            at += 1;
        }
        match self.state {
            State::Done => Ok(Chunk::End { consumed: at }),
            _ => {
                self.crumbs = 0;
                Ok(Chunk::More)
            }
        }
    }

    /// Returns the oddities since the last call; None: nothing. Call it after [`Chunk::More`] and
    /// [`Chunk::End`].
    #[inline]
    pub fn take_oddities(&mut self) -> Option<BodyOddities> {
        if self.odd == BodyOddities::default() { None } else { Some(std::mem::take(&mut self.odd)) }
    }

    /// Returns the fields after the body that may pass on. None unless they are kept and the body
    /// is complete.
    pub fn trailers(&self) -> Trailers<'_> {
        if self.state == State::Done { Trailers::new(&self.trailers) } else { Trailers::default() }
    }

    /// The body and its trailers are complete.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    fn take_data(&mut self, available: usize, start: usize) -> Chunk {
        let len = usize::try_from(self.left).unwrap_or(usize::MAX).min(available);
        self.left -= len as u64;
        if self.left == 0 {
            self.state = State::DataCr;
        }
        Chunk::Data { start, end: start + len }
    }

    /// The state after one byte that is not data.
    fn step(&mut self, byte: u8) -> Result<State, ChunkError> {
        match self.state {
            State::Size => self.size(byte),
            State::SizeLf => self.size_end(byte),
            State::DataCr => expect(byte, b'\r', State::DataLf, ChunkError::DataEnd),
            State::DataLf => expect(byte, b'\n', State::Size, ChunkError::DataEnd),
            State::TrailerStart if byte == b'\r' => Ok(State::EndLf),
            State::TrailerStart | State::Trailer => self.trailer(byte),
            State::TrailerLf => self.trailer_end(byte),
            State::EndLf => expect(byte, b'\n', State::Done, ChunkError::LineEnd),
            State::Data | State::Done | State::Failed => Err(ChunkError::Failed),
            _ => self.extension(byte),
        }
    }

    fn size(&mut self, byte: u8) -> Result<State, ChunkError> {
        if let Some(digit) = (byte as char).to_digit(16) {
            self.digits += 1;
            if self.digits > DIGITS_MAX || self.left > LENGTH_MAX >> 4 {
                return Err(ChunkError::SizeTooLarge);
            }
            self.left = self.left << 4 | u64::from(digit);
            return Ok(State::Size);
        }
        match byte {
            b'\r' if self.digits > 0 => Ok(State::SizeLf),
            b';' if self.digits > 0 => {
                self.count_extension()?;
                self.odd.extensions = self.odd.extensions.saturating_add(1);
                Ok(State::ExtensionStart)
            }
            b'\n' => Err(ChunkError::LineEnd),
            _ => Err(ChunkError::SizeInvalid),
        }
    }

    fn size_end(&mut self, byte: u8) -> Result<State, ChunkError> {
        self.digits = 0;
        if self.left < CRUMB_BYTES {
            return self.crumb_end(byte);
        }
        expect(byte, b'\n', State::Data, ChunkError::LineEnd)
    }

    /// The last chunk, or a very small one.
    fn crumb_end(&mut self, byte: u8) -> Result<State, ChunkError> {
        if self.left == 0 {
            return expect(byte, b'\n', State::TrailerStart, ChunkError::LineEnd);
        }
        self.crumbs += 1;
        if self.crumbs == CRUMBS {
            self.crumbs = 0;
            self.odd.crumbs = self.odd.crumbs.saturating_add(1);
        }
        expect(byte, b'\n', State::Data, ChunkError::LineEnd)
    }

    fn count_extension(&mut self) -> Result<(), ChunkError> {
        self.extension_bytes += 1;
        if self.extension_bytes > EXTENSION_BYTES_MAX {
            Err(ChunkError::ExtensionsTooLarge)
        } else {
            Ok(())
        }
    }

    /// One byte of `*( ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )`, with bad white
    /// space where the grammar has it, but not between the size and its first semicolon.
    fn extension(&mut self, byte: u8) -> Result<State, ChunkError> {
        if byte == b'\r' {
            return match self.state {
                State::ExtensionName | State::ValueToken | State::ValueEnd => Ok(State::SizeLf),
                _ => Err(ChunkError::ExtensionInvalid),
            };
        }
        self.count_extension()?;
        let next = match (self.state, byte) {
            (_, b'\n') => return Err(ChunkError::LineEnd),
            (State::ExtensionStart, _) if is_blank(byte) => State::ExtensionStart,
            (State::ExtensionStart | State::ExtensionName, _) if is_token_byte(byte) => {
                State::ExtensionName
            }
            (State::ExtensionName | State::ExtensionSpace, b'=') => State::ValueStart,
            (State::ExtensionName | State::ExtensionSpace, _) if is_blank(byte) => {
                State::ExtensionSpace
            }
            (State::ValueStart, _) if is_blank(byte) => State::ValueStart,
            (State::ValueStart, b'"') => State::ValueQuoted,
            (State::ValueStart | State::ValueToken, _) if is_token_byte(byte) => State::ValueToken,
            (State::ValueQuoted, b'"') => State::ValueEnd,
            (State::ValueQuoted, b'\\') => State::ValueEscaped,
            (State::ValueQuoted | State::ValueEscaped, _) if is_text(byte) => State::ValueQuoted,
            (State::ValueToken | State::ValueEnd | State::ValueSpace, _) if is_blank(byte) => {
                State::ValueSpace
            }
            (
                State::ExtensionName
                | State::ExtensionSpace
                | State::ValueToken
                | State::ValueEnd
                | State::ValueSpace,
                b';',
            ) => State::ExtensionStart,
            _ => return Err(ChunkError::ExtensionInvalid),
        };
        Ok(next)
    }

    /// Takes one byte of a trailer line. The line is collected whole, because only its name shows
    /// whether it is allowed.
    fn trailer(&mut self, byte: u8) -> Result<State, ChunkError> {
        if byte == b'\n' {
            return Err(ChunkError::LineEnd);
        }
        self.collect(byte)?;
        Ok(if byte == b'\r' { State::TrailerLf } else { State::Trailer })
    }

    fn collect(&mut self, byte: u8) -> Result<(), ChunkError> {
        self.trailer_bytes += 1;
        if self.trailer_bytes > TRAILER_BYTES_MAX {
            return Err(ChunkError::TrailersTooLarge);
        }
        self.trailers.push(byte);
        Ok(())
    }

    fn trailer_end(&mut self, byte: u8) -> Result<State, ChunkError> {
        if byte != b'\n' {
            return Err(ChunkError::LineEnd);
        }
        self.collect(byte)?;
        self.trailer_count += 1;
        if self.trailer_count > TRAILERS_MAX {
            return Err(ChunkError::TrailersTooLarge);
        }
        let line = self.trailer_line as usize;
        let fate = judge_trailer(&self.trailers[line..]).map_err(ChunkError::TrailerInvalid)?;
        if fate == TrailerFate::Forbidden && !self.keep_trailers {
            return Err(ChunkError::TrailerForbidden);
        }
        if fate != TrailerFate::Pass || !self.keep_trailers {
            self.trailers.truncate(line);
            self.odd.trailers = self.odd.trailers.saturating_add(1);
        }
        self.trailer_line = self.trailers.len() as u16;
        Ok(State::TrailerStart)
    }
}

/// Returns `next` if the byte is the expected one.
fn expect(byte: u8, expected: u8, next: State, fault: ChunkError) -> Result<State, ChunkError> {
    if byte == expected { Ok(next) } else { Err(fault) }
}

/// Whether a byte is allowed in a quoted string, in part after a backslash: HTAB, SP, visible and
/// obs-text (RFC 9110 §5.6.4).
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= 0x20 && byte != 0x7f)
}

const _: () = assert!(size_of::<ChunkedDecoder>() <= 48);
const _: () = assert!(TRAILER_BYTES_MAX < u16::MAX && TRAILERS_MAX < u8::MAX);
