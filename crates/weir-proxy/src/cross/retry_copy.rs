//! Requests that are with another worker: a copy of each that may be repeated, until its response
//! begins.
//!
//! The requests that another worker has are lost with its machines when they panic, and can't be
//! recovered from it (`engine/lives.rs`). Kept by the worker of the client, in its exchange; the
//! memory of small ones is used again. Bounds: one copy for each such request, as long as the
//! request itself; [`SPARE_MAX`] copies of at most [`SPARE_BYTES_MAX`] are saved for later.

use crate::request::pending_request::PendingRequest;

/// Copies that are saved for later.
const SPARE_MAX: usize = 256;
/// A larger one is given back to the allocator.
const SPARE_BYTES_MAX: usize = 4096;

/// A request and its bytes as they were mailed.
#[derive(Debug)]
pub(crate) struct RetryCopy {
    /// The request.
    pub ask: PendingRequest,
    /// Serialised.
    pub bytes: Vec<u8>,
}

/// Where the memory of copies waits.
#[derive(Debug, Default)]
pub(crate) struct RetryCopies {
    // Boxed, because an exchange has room for a pointer only.
    #[expect(clippy::vec_box, reason = "they come from exchanges and go to exchanges as they are")]
    spare: Vec<Box<RetryCopy>>,
}

impl RetryCopies {
    /// A copy.
    pub(crate) fn keep(&mut self, ask: PendingRequest, bytes: &[u8]) -> Box<RetryCopy> {
        let Some(mut kept) = self.spare.pop() else {
            return Box::new(RetryCopy { ask, bytes: bytes.to_vec() });
        };
        kept.ask = ask;
        kept.bytes.clear();
        kept.bytes.extend_from_slice(bytes);
        kept
    }

    /// It is not needed any more.
    pub(crate) fn give_back(&mut self, kept: Box<RetryCopy>) {
        if self.spare.len() < SPARE_MAX && kept.bytes.capacity() <= SPARE_BYTES_MAX {
            self.spare.push(kept);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a copy is equal to its source, whatever was there before, and saved memory is
    //! bounded. How: more than it holds.

    use super::*;
    use crate::base::keys::{ExchangeKey, Key};
    use crate::request::pending_request::{ExchangeId, NOBODY, RequestFlags};

    fn ask(index: u32) -> PendingRequest {
        PendingRequest {
            id: ExchangeId { worker: 0, index: ExchangeKey::new(index), generation: 0 },
            client: Default::default(),
            carrier: Default::default(),
            serial: 0,
            upstream: 0,
            server: 0,
            bound: NOBODY,
            tries: 0,
            passed: 0,
            barren: 0,
            class: Default::default(),
            traits: RequestFlags::default(),
            received_us: 0,
            asked_us: 0,
            echo: Default::default(),
            key: 0,
        }
    }

    #[test]
    fn copies_are_used_again_within_bounds() {
        let mut shelf = RetryCopies::default();
        let all: Vec<Box<RetryCopy>> =
            (0..2 * SPARE_MAX as u32).map(|index| shelf.keep(ask(index), b"long before")).collect();
        all.into_iter().for_each(|kept| shelf.give_back(kept));
        assert_eq!(shelf.spare.len(), SPARE_MAX);
        let kept = shelf.keep(ask(7), b"short");
        assert_eq!((kept.ask.id.index.number(), kept.bytes.as_slice()), (7, b"short".as_slice()));
        let large = shelf.keep(ask(8), &[b'x'; SPARE_BYTES_MAX + 1]);
        shelf.give_back(large);
        assert_eq!(shelf.spare.len(), SPARE_MAX - 2);
    }
}
