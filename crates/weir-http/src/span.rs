//! A piece of the input by position, so that a parsed head borrows nothing and can wait beside its
//! bytes.

/// Half-open range of byte positions in the input that a head was parsed from. `start <= end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    /// From positions; heads are far below 4 GiB because [`Limits`](crate::Limits) caps them.
    pub(crate) fn new(start: usize, end: usize) -> Self {
        debug_assert!(start <= end && end <= u32::MAX as usize);
        Self { start: start as u32, end: end as u32 }
    }

    /// Returns the bytes that it covers.
    ///
    /// # Panics
    /// `input` is shorter than the input that was parsed.
    #[inline]
    pub fn of(self, input: &[u8]) -> &[u8] {
        &input[self.start as usize..self.end as usize]
    }

    /// Bytes covered.
    #[inline]
    pub fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    /// Covers nothing; also the value for "absent".
    #[inline]
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}
