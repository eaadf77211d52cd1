//! How long the records of a client's connection are.
//!
//! A client can use nothing of a record before all of it has arrived. So the first bytes after a
//! pause are sent in short records, several of which fit into what a network takes at once then
//! (ten segments, RFC 6928). Everything later is sent in long ones, which cost less.

use crate::cipher::RECORD_BYTES_MAX;

/// Plaintext of a short record.
pub const SHORT_RECORD_BYTES: usize = 4096;
/// Bytes that are sent in short records after a pause.
pub const SHORT_BYTES: usize = 64 * 1024;
/// Time without sending that counts as a pause, microseconds.
pub const REST_US: u64 = 1_000_000;

const _: () = assert!(
    SHORT_RECORD_BYTES < RECORD_BYTES_MAX && SHORT_BYTES.is_multiple_of(SHORT_RECORD_BYTES)
);

/// How much a connection has sent since its last pause.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// Bytes that are still to be sent in short records.
    short_left: usize,
    /// When the last bytes were sent, microseconds.
    sent_us: u64,
}

impl Pace {
    /// For a connection that has sent nothing.
    pub(crate) fn new() -> Pace {
        Pace { short_left: SHORT_BYTES, sent_us: 0 }
    }

    /// Counts bytes that are sent now. Returns how many of them, from the first, are sent in short
    /// records.
    pub(crate) fn short(&mut self, bytes: usize, now_us: u64) -> usize {
        if now_us.saturating_sub(self.sent_us) >= REST_US {
            self.short_left = SHORT_BYTES;
        }
        let short = bytes.min(self.short_left);
        self.short_left -= short;
        self.sent_us = now_us;
        short
    }
}

/// The first `at` bytes of these slices, and the others.
pub(crate) fn split<'a>(parts: &[&'a [u8]], at: usize) -> (Vec<&'a [u8]>, Vec<&'a [u8]>) {
    let (mut before, mut behind, mut left) = (Vec::with_capacity(parts.len()), Vec::new(), at);
    for part in parts {
        let (first, rest) = part.split_at(left.min(part.len()));
        left -= first.len();
        if !first.is_empty() {
            before.push(first);
        }
        if !rest.is_empty() {
            behind.push(rest);
        }
    }
    (before, behind)
}

#[cfg(test)]
mod tests {
    //! Proves: the first bytes after a pause are sent in short records, and no others; nothing is
    //! lost where that changes. How: examples.

    use super::*;

    #[test]
    fn short_ones_come_first_and_after_a_rest() {
        let mut pace = Pace::new();
        assert_eq!((pace.short(10, 5), pace.short(0, 5)), (10, 0));
        assert_eq!(pace.short(100_000, REST_US), SHORT_BYTES - 10);
        assert_eq!(pace.short(1, 2 * REST_US - 1), 0);
        assert_eq!(pace.short(1, 3 * REST_US - 2), 0);
        assert_eq!(
            (pace.short(SHORT_BYTES, 4 * REST_US - 2), pace.short(1, 4 * REST_US - 2)),
            (SHORT_BYTES, 0)
        );
    }

    #[test]
    fn slices_are_split_anywhere() {
        let parts: [&[u8]; 4] = [b"abc", b"", b"d", b"efg"];
        for at in 0..=9 {
            let (before, behind) = split(&parts, at);
            assert_eq!(
                (before.concat().len(), [before, behind].concat().concat()),
                (at.min(7), b"abcdefg".to_vec())
            );
        }
    }
}
