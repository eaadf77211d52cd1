//! The request log of one upstream connection: the requests that were serialised for it and are not
//! answered yet.
//!
//! Offsets count bytes since the connection was made.
//!
//! ```text
//!   kept (given to the driver)        pending (serialised this turn)
//!   |-----piece-----|----piece----|   |----------------|
//!   released when answered        flushed            end
//! ```
//!
//! Responses come in order, so the unanswered part is always a suffix. A piece is immutable once
//! flushed, because the kernel may still read it; it is freed when all requests in it are answered.

use std::collections::VecDeque;

use bytes::Bytes;

/// Serialised requests, oldest first.
#[derive(Debug, Default)]
pub(crate) struct RequestLog {
    kept: VecDeque<Bytes>,
    kept_start: u64,
    flushed: u64,
    pending: Vec<u8>,
}

impl RequestLog {
    /// Offset behind the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.flushed + self.pending.len() as u64
    }

    /// Offset behind the last byte that was given to the driver.
    pub(crate) fn flushed(&self) -> u64 {
        self.flushed
    }

    /// Bytes held.
    pub(crate) fn len(&self) -> u64 {
        self.end() - self.kept_start
    }

    /// Whether nothing is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the buffer that the next request is serialised into.
    pub(crate) fn pending(&mut self) -> &mut Vec<u8> {
        &mut self.pending
    }

    /// Returns the pending bytes from an offset on.
    pub(crate) fn pending_from(&self, start: u64) -> &[u8] {
        let from = start.saturating_sub(self.flushed) as usize;
        self.pending.get(from..).unwrap_or_default()
    }

    /// Bytes that wait to be given to the driver.
    pub(crate) fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// Takes `len` bytes from `start` on out of the pending bytes: those behind them move up.
    pub(crate) fn cut(&mut self, start: u64, len: usize) {
        let from = (start - self.flushed) as usize;
        self.pending.drain(from..from + len);
    }

    /// Takes the pending bytes to send them, and keeps them.
    pub(crate) fn flush(&mut self) -> Option<Bytes> {
        if self.pending.is_empty() {
            return None;
        }
        let piece = Bytes::from(std::mem::take(&mut self.pending));
        self.flushed += piece.len() as u64;
        self.kept.push_back(piece.clone());
        Some(piece)
    }

    /// Frees the pieces that are wholly below `answered`.
    pub(crate) fn release(&mut self, answered: u64) {
        while let Some(piece) = self.kept.front() {
            let end = self.kept_start + piece.len() as u64;
            if end > answered {
                return;
            }
            self.kept_start = end;
            self.kept.pop_front();
        }
    }

    /// Returns a copy of the bytes of one request, to send it elsewhere.
    pub(crate) fn copy(&self, start: u64, len: usize) -> Vec<u8> {
        let mut copy = Vec::with_capacity(len);
        let mut at = self.kept_start;
        let end = start + len as u64;
        let pieces =
            self.kept.iter().map(|piece| &piece[..]).chain(std::iter::once(&self.pending[..]));
        for piece in pieces {
            let piece_end = at + piece.len() as u64;
            if piece_end > start && at < end {
                let from = start.saturating_sub(at) as usize;
                let to = (end.min(piece_end) - at) as usize;
                copy.extend_from_slice(&piece[from..to]);
            }
            at = piece_end;
        }
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the flushes, releases and cuts, an unanswered request can be copied out
        /// unchanged.
        #[test]
        fn unanswered_requests_stay(
            requests in prop::collection::vec(
                (1usize..300, any::<bool>(), 0usize..3, prop::option::of(0usize..4)),
                1..60
            ),
        ) {
            let mut log = RequestLog::default();
            let mut live = VecDeque::new();
            for (at, (len, flush, answered, cut)) in requests.iter().enumerate() {
                let bytes: Vec<u8> = (0..*len).map(|n| (n + at) as u8).collect();
                let start = log.end();
                log.pending().extend_from_slice(&bytes);
                live.push_back((start, bytes));
                let pending =
                    live.iter().position(|(start, _): &(u64, Vec<u8>)| *start >= log.flushed());
                if let (Some(first), Some(cut)) = (pending, cut)
                    && let Some((start, bytes)) = live.remove(first + cut)
                {
                    log.cut(start, bytes.len());
                    live.range_mut(first + cut..)
                        .for_each(|(start, _)| *start -= bytes.len() as u64);
                }
                if *flush {
                    log.flush();
                }
                for _ in 0..*answered {
                    if live.front().is_some_and(|(start, bytes): &(u64, Vec<u8>)| {
                        start + bytes.len() as u64 <= log.flushed()
                    }) {
                        live.pop_front();
                    }
                }
                log.release(live.front().map_or(log.end(), |(start, _)| *start));
                for (start, bytes) in &live {
                    prop_assert_eq!(&log.copy(*start, bytes.len()), bytes);
                }
            }
            log.flush();
            log.release(log.end());
            prop_assert!(log.is_empty());
        }
    }
}
