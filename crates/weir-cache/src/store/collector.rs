//! The body of a response while it is fetched: copied into its own memory, which is counted before
//! it is allocated.
//!
//! Receive buffers are never kept: a piece of 1 KB would keep 64 KiB of them. Chunks are
//! [`CHUNK_BYTES`] or, with a known end, the rest. With an unknown end they double from
//! [`FIRST_BYTES`] on, and the last one is cut to its size. Readers can be served from it while it
//! grows. Bounds: the largest object, and the store's limit for all fetches.

use std::sync::Arc;

use bytes::Bytes;

use super::memory::{Account, Charge, allocated};
use super::object::{INLINE_MAX, Pieces};

/// Bytes of a chunk of a large body: large enough to be sent by reference, small enough to stream.
const CHUNK_BYTES: usize = 64 << 10;
/// Bytes of the first chunk if the length is not known.
const FIRST_BYTES: usize = 4096;
/// The memory that refers to a chunk: its owner with the charge, and the reference itself.
const PIECE_BYTES: usize = 64 + size_of::<Bytes>();

/// Why a fetched response is not kept. It is sent to its client, and is not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum NotKept {
    /// The body is larger than objects may be, or than was stated.
    TooLarge,
    /// Everything that is being fetched and sent takes all memory.
    NoRoom,
    /// It was purged or became invalid while it was fetched.
    Purged,
    /// Its connection turned out to be untrusted.
    Withdrawn,
}

impl NotKept {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::TooLarge, Self::NoRoom, Self::Purged, Self::Withdrawn];

    /// Returns a word for logs, metrics and Cache-Status.
    pub fn word(self) -> &'static str {
        match self {
            Self::TooLarge => "body-too-large",
            Self::NoRoom => "no-room",
            Self::Purged => "purged",
            Self::Withdrawn => "withdrawn",
        }
    }
}

/// A body that grows.
#[derive(Debug)]
pub struct Collector {
    account: Arc<Account>,
    /// The length that the head stated; None: chunked.
    known: Option<u64>,
    bytes_max: u64,
    /// The position of each chunk, and the chunk. All but the last one are full.
    chunks: Vec<(u64, Vec<u8>)>,
    bytes: u64,
    /// The bytes that were taken for it.
    taken: u64,
}

impl Collector {
    /// `known`: the length that the head states.
    pub(crate) fn new(
        account: Arc<Account>,
        bytes_max: u64,
        known: Option<u64>,
    ) -> Result<Self, NotKept> {
        if known.is_some_and(|bytes| bytes > bytes_max) {
            return Err(NotKept::TooLarge);
        }
        Ok(Self { account, known, bytes_max, chunks: Vec::new(), bytes: 0, taken: 0 })
    }

    /// Adds a received piece.
    ///
    /// # Errors
    /// It is not kept. Earlier pieces are still available to readers, and nothing of this piece is.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), NotKept> {
        let before = self.bytes;
        let pushed = self.push_all(piece);
        if pushed.is_err() {
            self.forget_from(before);
        }
        pushed
    }

    fn forget_from(&mut self, position: u64) {
        self.bytes = position;
        while let Some((_, chunk)) = self.chunks.pop_if(|(begin, _)| *begin >= position) {
            let weight = piece_weight(chunk.capacity());
            drop(chunk);
            self.account.give_fill(weight);
            self.taken -= weight;
        }
        if let Some((begin, chunk)) = self.chunks.last_mut() {
            chunk.truncate(usize::try_from(position - *begin).unwrap_or(usize::MAX));
        }
    }

    fn push_all(&mut self, piece: &[u8]) -> Result<(), NotKept> {
        let after = self.bytes + piece.len() as u64;
        if after > self.bytes_max || self.known.is_some_and(|known| after > known) {
            return Err(NotKept::TooLarge);
        }
        let mut rest = piece;
        while !rest.is_empty() {
            let room = self.chunks.last().map_or(0, |(_, chunk)| chunk.capacity() - chunk.len());
            if room == 0 {
                self.grow()?;
                continue;
            }
            let (now, later) = rest.split_at(room.min(rest.len()));
            if let Some((_, chunk)) = self.chunks.last_mut() {
                chunk.extend_from_slice(now);
            }
            self.bytes += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    fn grow(&mut self) -> Result<(), NotKept> {
        let bytes = match self.known {
            Some(known) => usize::try_from(known - self.bytes).unwrap_or(CHUNK_BYTES),
            None => FIRST_BYTES << self.chunks.len().min(8),
        };
        let bytes = bytes.clamp(1, CHUNK_BYTES);
        let weight = piece_weight(bytes);
        if !self.account.take_fill(weight) {
            return Err(NotKept::NoRoom);
        }
        self.taken += weight;
        self.chunks.push((self.bytes, Vec::with_capacity(bytes)));
        Ok(())
    }

    /// Returns the bytes received so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the contiguous bytes from this position on; empty when no more were received yet.
    pub fn from(&self, position: u64) -> &[u8] {
        let at = self.chunks.partition_point(|(begin, _)| *begin <= position);
        let Some((begin, chunk)) = at.checked_sub(1).and_then(|at| self.chunks.get(at)) else {
            return &[];
        };
        let within = usize::try_from(position - begin).unwrap_or(usize::MAX);
        chunk.get(within..).unwrap_or_default()
    }

    /// Whether it has the length that its head stated; true if none was stated.
    pub fn is_whole(&self) -> bool {
        self.known.is_none_or(|known| known == self.bytes)
    }

    /// Returns the bytes that were taken for it, which its next owner has to give back.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Whether it is stored behind the field lines.
    pub(crate) fn is_small(&self) -> bool {
        self.bytes <= INLINE_MAX as u64
    }

    /// Returns the bytes that its pieces will take.
    pub(crate) fn pieces_weight(&self) -> u64 {
        self.chunks.iter().map(|(_, chunk)| piece_weight(chunk.len())).sum()
    }

    /// Appends it to `text`.
    pub(crate) fn put(&self, text: &mut Vec<u8>) {
        self.chunks.iter().for_each(|(_, chunk)| text.extend_from_slice(chunk));
    }

    /// Makes pieces of it; `charge` has at least [`Collector::pieces_weight`].
    pub(crate) fn into_pieces(mut self, charge: &mut Charge) -> Pieces {
        let list = self.chunks.drain(..).map(|(_, chunk)| {
            let charge = charge.split(piece_weight(chunk.len()));
            Bytes::from_owner(Chunk { bytes: chunk.into_boxed_slice(), _charge: charge })
        });
        let list = list.collect();
        Pieces { bytes: self.bytes, list }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.account.give_fill(self.taken);
    }
}

/// A chunk with its charge: lives until the last reference to any part of it is gone.
struct Chunk {
    bytes: Box<[u8]>,
    _charge: Charge,
}

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Returns the bytes that a piece of a body takes, including the references to it.
pub(crate) fn piece_weight(bytes: usize) -> u64 {
    allocated(bytes) + PIECE_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn collected(collector: &Collector) -> Vec<u8> {
        let mut all = Vec::new();
        while !collector.from(all.len() as u64).is_empty() {
            all.extend_from_slice(collector.from(all.len() as u64));
        }
        all
    }

    #[test]
    fn what_is_too_large_or_finds_no_room() {
        let account = Arc::new(Account::new(64 << 10));
        let new = |known| Collector::new(Arc::clone(&account), 10_000, known);
        assert_eq!(new(Some(10_001)).err(), Some(NotKept::TooLarge));
        let mut short = new(Some(3)).expect("small");
        assert_eq!(short.push(b"ab"), Ok(()));
        assert!(!short.is_whole());
        assert_eq!(short.push(b"cd"), Err(NotKept::TooLarge));
        assert_eq!((short.push(b"c"), short.is_whole()), (Ok(()), true));
        let mut chunked = new(None).expect("small");
        assert_eq!(chunked.push(&[0; 10_001]), Err(NotKept::TooLarge));
        assert_eq!(chunked.push(&[7; 8000]), Ok(()));
        let mut other = new(None).expect("small");
        assert_eq!(other.push(&[7; 8000]), Err(NotKept::NoRoom));
        // Nothing is kept of a piece that found room only in part.
        assert_eq!((other.bytes(), other.from(0)), (0, &[][..]));
        assert_eq!(other.push(&[8; 3000]), Ok(()));
        assert_eq!(other.push(&[7; 5000]), Err(NotKept::NoRoom));
        assert_eq!((other.bytes(), collected(&other)), (3000, vec![8; 3000]));
        assert_eq!(other.push(&[9; 1000]), Ok(()));
        assert_eq!(collected(&other), [vec![8; 3000], vec![9; 1000]].concat());
        drop(chunked);
        drop(other);
        drop(short);
        assert_eq!((account.live(), account.fills()), (0, 0));
    }

    proptest! {
        /// The output equals the input, however it was cut, while it grows and as pieces; and all
        /// taken bytes are given back.
        #[test]
        fn nothing_is_lost(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40_000), 0..8),
            says in any::<bool>(),
        ) {
            let whole = pieces.concat();
            let account = Arc::new(Account::new(16 << 20));
            let known = says.then_some(whole.len() as u64);
            let mut collector =
                Collector::new(Arc::clone(&account), 1 << 20, known).expect("small");
            for piece in &pieces {
                prop_assert_eq!(collector.push(piece), Ok(()));
                prop_assert!(collector.taken() >= collector.bytes());
            }
            prop_assert_eq!(collected(&collector), &whole[..]);
            prop_assert!(collector.is_whole());
            let weight = collector.pieces_weight();
            prop_assert!(weight <= collector.taken());
            let mut charge = account.admit(weight, collector.taken()).expect("it fits");
            let made = collector.into_pieces(&mut charge);
            prop_assert_eq!((charge.bytes(), account.fills(), account.live()), (0, 0, weight));
            prop_assert_eq!(made.list.concat(), whole);
            let last = made.list.last().cloned();
            drop((made, charge));
            let left = last.as_ref().map_or(0, |piece| piece_weight(piece.len()));
            prop_assert_eq!(account.live(), left);
        }
    }
}
