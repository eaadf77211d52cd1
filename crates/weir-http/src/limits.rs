//! Limits of one message head, the same numbers for requests and responses.

use crate::pseudonym::Pseudonym;

/// The maximum cost of a head. Over the limits: 414 for the line, 431 for the rest; an upstream's
/// head is an error.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Request or status line in bytes, without its CRLF. Default 8192 (RFC 9112 §3 asks for at
    /// least 8000).
    pub line_bytes_max: usize,
    /// The whole head in bytes, with its line, all CRLF and leading empty lines. Default 32768.
    pub head_bytes_max: usize,
    /// Field lines. Default 100.
    pub fields_max: usize,
    /// Our name: a request with it in Via has come back. Default `weir`.
    pub pseudonym: Pseudonym,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            line_bytes_max: 8192,
            head_bytes_max: 32768,
            fields_max: 100,
            pseudonym: Pseudonym::default(),
        }
    }
}

impl Limits {
    /// Spans are 32 bits wide: whatever the configuration, a head never exceeds 1 GiB.
    const HEAD_BYTES_CEILING: usize = 1 << 30;

    /// The part of `input` that a head may lie in.
    #[inline]
    pub(crate) fn window<'a>(&self, input: &'a [u8]) -> &'a [u8] {
        &input[..input.len().min(self.head_max())]
    }

    #[inline]
    pub(crate) fn head_max(&self) -> usize {
        self.head_bytes_max.min(Self::HEAD_BYTES_CEILING)
    }

    /// Bytes that a first line may take with its CRLF.
    #[inline]
    pub(crate) fn line_with_end_max(&self) -> usize {
        self.line_bytes_max.saturating_add(2)
    }
}
