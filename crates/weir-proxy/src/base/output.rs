//! The output of a connection: small pieces gathered in one buffer, large ones kept by reference.
//!
//! Order: `chunks` (oldest first), then `tail`. Bound: the owner stops the source above its high
//! mark.

use std::collections::VecDeque;

use bytes::Bytes;

/// Unsent bytes for one client above which the source of its response is not read further.
pub const HIGH_BYTES: usize = 128 * 1024;
/// Unsent bytes below which it is read again.
pub const LOW_BYTES: usize = 64 * 1024;

/// Smaller pieces are copied into the tail; keeping a reference costs more than copying them.
const KEEP_BYTES_MIN: usize = 4096;
/// Most bytes given away at once, so that a slow reader's timeout judges a bounded piece.
pub const TAKE_BYTES_MAX: usize = 256 * 1024;
/// Most slices given away at once.
const TAKE_SLICES_MAX: usize = 32;

/// Bytes waiting to be sent.
#[derive(Debug, Default)]
pub struct Output {
    tail: Vec<u8>,
    chunks: Option<Box<Chunks>>,
}

#[derive(Debug, Default)]
struct Chunks {
    list: VecDeque<Bytes>,
    bytes: usize,
}

/// The data of one send.
#[derive(Debug)]
pub enum Out {
    /// A single owned buffer; hand it back for reuse.
    Owned(Vec<u8>),
    /// One shared slice.
    Shared(Bytes),
    /// Several slices in order.
    Vectored(Vec<Bytes>),
}

impl Out {
    /// Its number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Out::Owned(bytes) => bytes.len(),
            Out::Shared(bytes) => bytes.len(),
            Out::Vectored(list) => list.iter().map(Bytes::len).sum(),
        }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, copied together (tests, checkers).
    pub fn to_vec(&self) -> Vec<u8> {
        match self {
            Out::Owned(bytes) => bytes.clone(),
            Out::Shared(bytes) => bytes.to_vec(),
            Out::Vectored(list) => list.concat(),
        }
    }
}

impl Output {
    /// Bytes waiting.
    pub fn len(&self) -> usize {
        self.tail.len() + self.chunks.as_ref().map_or(0, |chunks| chunks.bytes)
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.tail.is_empty() && self.chunks.is_none()
    }

    /// The buffer at the end, to append to. `spare` provides memory when there is none.
    pub fn tail(&mut self, spare: &mut Spare) -> &mut Vec<u8> {
        if self.tail.capacity() == 0 {
            self.tail = spare.take();
        }
        &mut self.tail
    }

    /// Appends bytes by reference when they are many, otherwise by copy.
    pub fn push(&mut self, bytes: Bytes, spare: &mut Spare) {
        if bytes.len() < KEEP_BYTES_MIN {
            self.tail(spare).extend_from_slice(&bytes);
            return;
        }
        let chunks = self.chunks.get_or_insert_default();
        if !self.tail.is_empty() {
            chunks.bytes += self.tail.len();
            chunks.list.push_back(Bytes::from(std::mem::take(&mut self.tail)));
        }
        chunks.bytes += bytes.len();
        chunks.list.push_back(bytes);
    }

    /// Appends everything of another output.
    pub fn append(&mut self, other: Output, spare: &mut Spare) {
        if self.is_empty() {
            spare.give(std::mem::replace(self, other).tail);
            return;
        }
        if let Some(chunks) = other.chunks {
            for bytes in chunks.list {
                self.push(bytes, spare);
            }
        }
        if !other.tail.is_empty() {
            self.tail(spare).extend_from_slice(&other.tail);
        }
        spare.give(other.tail);
    }

    /// Appends a copy of all waiting bytes.
    pub fn copy_to(&self, to: &mut Vec<u8>) {
        for bytes in self.chunks.iter().flat_map(|chunks| &chunks.list) {
            to.extend_from_slice(bytes);
        }
        to.extend_from_slice(&self.tail);
    }

    /// Takes the next bytes to send, at most about [`TAKE_BYTES_MAX`].
    pub fn take(&mut self) -> Option<Out> {
        let Some(chunks) = self.chunks.as_mut() else {
            return if self.tail.is_empty() {
                None
            } else {
                Some(Out::Owned(std::mem::take(&mut self.tail)))
            };
        };
        let mut list = Vec::with_capacity(chunks.list.len().min(TAKE_SLICES_MAX) + 1);
        let mut taken = 0;
        while let Some(bytes) = chunks.list.front_mut() {
            let room = TAKE_BYTES_MAX - taken;
            if room == 0 || list.len() == TAKE_SLICES_MAX {
                break;
            }
            let piece =
                if bytes.len() > room { bytes.split_to(room) } else { chunks.list.pop_front()? };
            taken += piece.len();
            chunks.bytes -= piece.len();
            list.push(piece);
        }
        if chunks.list.is_empty() {
            self.chunks = None;
            if !self.tail.is_empty() && self.tail.len() + taken <= TAKE_BYTES_MAX {
                list.push(Bytes::from(std::mem::take(&mut self.tail)));
            }
        }
        Some(if list.len() == 1 { Out::Shared(list.pop()?) } else { Out::Vectored(list) })
    }

    /// Moves the first `bytes`, or all if there are fewer, to the end of another output.
    pub(crate) fn move_to(&mut self, bytes: usize, to: &mut Output, spare: &mut Spare) {
        let mut left = bytes;
        while left > 0
            && let Some(chunks) = self.chunks.as_mut()
            && let Some(front) = chunks.list.front_mut()
        {
            let piece = front.split_to(left.min(front.len()));
            left -= piece.len();
            chunks.bytes -= piece.len();
            if front.is_empty() {
                chunks.list.pop_front();
            }
            if chunks.list.is_empty() {
                self.chunks = None;
            }
            to.push(piece, spare);
        }
        let rest = left.min(self.tail.len());
        if rest > 0 {
            to.tail(spare).extend_from_slice(&self.tail[..rest]);
            self.tail.drain(..rest);
        }
        if self.tail.is_empty() {
            spare.give(std::mem::take(&mut self.tail));
        }
    }

    /// All waiting bytes, in order.
    pub(crate) fn into_list(self) -> Vec<Bytes> {
        let chunks = self.chunks.map(|chunks| chunks.list).unwrap_or_default();
        let tail = (!self.tail.is_empty()).then(|| Bytes::from(self.tail));
        chunks.into_iter().chain(tail).collect()
    }

    /// Drops all waiting bytes.
    pub fn clear(&mut self) {
        *self = Output::default();
    }
}

/// Empty buffers kept for reuse, so that the usual response allocates nothing.
#[derive(Debug, Default)]
pub struct Spare {
    list: Vec<Vec<u8>>,
}

/// Buffers kept at most.
const SPARE_MAX: usize = 512;
/// Larger buffers are freed instead of kept.
const SPARE_BYTES_MAX: usize = 4096;
/// Room in a new buffer: a small answer with its head.
const SPARE_BYTES_NEW: usize = 480;

impl Spare {
    /// An empty buffer with some room.
    pub fn take(&mut self) -> Vec<u8> {
        self.list.pop().unwrap_or_else(|| Vec::with_capacity(SPARE_BYTES_NEW))
    }

    /// Keeps a buffer for later, or frees it.
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() != 0
            && buffer.capacity() <= SPARE_BYTES_MAX
            && self.list.len() < SPARE_MAX
        {
            buffer.clear();
            self.list.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Any mix of copies and references comes out once and in order.
        #[test]
        fn keeps_order(
            pieces in prop::collection::vec((any::<bool>(), 1usize..70_000), 0..20),
            take_after in 0usize..20,
        ) {
            let mut spare = Spare::default();
            let (mut output, mut model, mut got) = (Output::default(), Vec::new(), Vec::new());
            for (at, (copy, len)) in pieces.iter().enumerate() {
                let bytes: Vec<u8> = (0..*len).map(|n| (n * 7 + at) as u8).collect();
                model.extend_from_slice(&bytes);
                if *copy {
                    output.tail(&mut spare).extend_from_slice(&bytes);
                } else {
                    output.push(Bytes::from(bytes), &mut spare);
                }
                if at == take_after
                    && let Some(out) = output.take()
                {
                    got.extend(out.to_vec());
                }
                prop_assert_eq!(output.len() + got.len(), model.len());
            }
            while let Some(out) = output.take() {
                prop_assert!(matches!(out, Out::Owned(_)) || out.len() <= TAKE_BYTES_MAX);
                prop_assert!(!out.is_empty());
                got.extend(out.to_vec());
            }
            prop_assert!(output.is_empty());
            prop_assert_eq!(got, model);
        }
    }

    proptest! {
        /// A part that is moved in steps arrives once and in order; the rest remains.
        #[test]
        fn moves_a_part(
            pieces in prop::collection::vec((any::<bool>(), 1usize..20_000), 1..10),
            step in 1usize..30_000,
        ) {
            let mut spare = Spare::default();
            let (mut from, mut to, mut model) = (Output::default(), Output::default(), Vec::new());
            for (at, (copy, len)) in pieces.iter().enumerate() {
                let bytes: Vec<u8> = (0..*len).map(|n| (n * 7 + at) as u8).collect();
                model.extend_from_slice(&bytes);
                if *copy {
                    from.tail(&mut spare).extend_from_slice(&bytes);
                } else {
                    from.push(Bytes::from(bytes), &mut spare);
                }
            }
            while !from.is_empty() {
                let before = (from.len(), to.len());
                from.move_to(step, &mut to, &mut spare);
                let moved = step.min(before.0);
                prop_assert_eq!((from.len(), to.len()), (before.0 - moved, before.1 + moved));
            }
            let mut got = Vec::new();
            to.copy_to(&mut got);
            prop_assert_eq!(got, model);
        }
    }

    #[test]
    fn append_moves_everything() {
        let mut spare = Spare::default();
        let (mut first, mut second) = (Output::default(), Output::default());
        first.tail(&mut spare).extend_from_slice(b"a");
        second.push(Bytes::from(vec![b'b'; 5000]), &mut spare);
        second.tail(&mut spare).extend_from_slice(b"c");
        first.append(second, &mut spare);
        let mut all = Vec::new();
        while let Some(out) = first.take() {
            all.extend(out.to_vec());
        }
        assert_eq!(all.len(), 5002);
        assert_eq!((all[0], all[1], all[5001]), (b'a', b'b', b'c'));
    }

    #[test]
    fn a_list_has_everything_in_order() {
        let (mut spare, mut output) = (Spare::default(), Output::default());
        assert!(Output::default().into_list().is_empty());
        output.tail(&mut spare).extend_from_slice(b"a");
        output.push(Bytes::from(vec![b'b'; 5000]), &mut spare);
        output.tail(&mut spare).extend_from_slice(b"cd");
        let lengths: Vec<usize> = output.into_list().iter().map(Bytes::len).collect();
        assert_eq!(lengths, [1, 5000, 2]);
    }
}
