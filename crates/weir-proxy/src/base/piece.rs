//! Received bytes, and parts of them on their way: by reference until something has to keep them.

use std::ops::Range;

use bytes::Bytes;

use super::output::{Output, Spare};

/// Received bytes as the machines read them: a slice, and the memory behind it when that may be
/// kept.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    pub(crate) bytes: &'a [u8],
    shared: Option<&'a Bytes>,
}

/// Pieces of at least this many bytes are kept by reference when possible.
const KEEP_BYTES_MIN: usize = 4096;

impl<'a> Input<'a> {
    /// Bytes that must be copied to be kept.
    pub fn borrowed(bytes: &'a [u8]) -> Input<'a> {
        Input { bytes, shared: None }
    }

    /// Bytes whose memory may be kept.
    pub fn shared(bytes: &'a Bytes) -> Input<'a> {
        Input { bytes, shared: Some(bytes) }
    }

    /// A part of the input, by reference where that is cheaper than a copy.
    #[inline]
    pub(crate) fn piece(&self, range: Range<usize>) -> Piece<'a> {
        match self.shared {
            Some(bytes) if range.len() >= KEEP_BYTES_MIN => Piece::Kept(bytes.slice(range)),
            _ => Piece::Borrowed(&self.bytes[range]),
        }
    }
}

/// A part of a body on its way.
#[derive(Debug)]
pub(crate) enum Piece<'a> {
    /// To be copied.
    Borrowed(&'a [u8]),
    /// To be passed on.
    Kept(Bytes),
}

impl Piece<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Piece::Borrowed(bytes) => bytes,
            Piece::Kept(bytes) => bytes,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes().len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    /// The piece, to be kept.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Piece::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
            Piece::Kept(bytes) => bytes,
        }
    }

    /// Appends the piece to an output.
    #[inline]
    pub(crate) fn push_to(self, output: &mut Output, spare: &mut Spare) {
        match self {
            Piece::Borrowed(bytes) if bytes.len() >= KEEP_BYTES_MIN => {
                output.push(Bytes::copy_from_slice(bytes), spare)
            }
            Piece::Borrowed(bytes) => output.tail(spare).extend_from_slice(bytes),
            Piece::Kept(bytes) => output.push(bytes, spare),
        }
    }
}
