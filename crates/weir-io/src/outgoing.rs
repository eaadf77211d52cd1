//! What is being sent: payloads and how much of them the kernel has taken. Used by both drivers.
//!
//! Bound: one for each socket, by the contract of [`crate::Driver::send`].

use crate::Payload;
use crate::table::NO_SEND;

/// Slices handed to the kernel at a time.
pub(crate) const SLICES_MAX: usize = 64;

/// Bytes handed to the kernel at a time in one slice; far below what its 32-bit results can count.
const SLICE_BYTES_MAX: usize = 1 << 30;

/// A payload and the position of the first byte that was not taken yet.
#[derive(Debug)]
pub(crate) struct Outgoing {
    payload: Payload,
    /// Slice of a vectored payload; 0 for the others.
    slice: usize,
    /// Offset in that slice.
    offset: usize,
}

/// What to hand to the kernel next.
pub(crate) enum Next {
    /// Everything was taken.
    Nothing,
    /// One contiguous range.
    One(*const u8, usize),
    /// Several slices: use [`Outgoing::fill`].
    Several,
}

impl Outgoing {
    pub(crate) fn new(payload: Payload) -> Outgoing {
        let mut outgoing = Outgoing { payload, slice: 0, offset: 0 };
        outgoing.advance(0);
        outgoing
    }

    pub(crate) fn into_payload(self) -> Payload {
        self.payload
    }

    fn slice_at(&self, at: usize) -> Option<&[u8]> {
        match &self.payload {
            Payload::Owned(bytes) => (at == 0).then_some(&bytes[..]),
            Payload::Shared(bytes) => (at == 0).then_some(&bytes[..]),
            Payload::Vectored(slices) => slices.get(at).map(|slice| &slice[..]),
        }
    }

    /// What comes next, at most 1 GiB of it.
    pub(crate) fn next(&self) -> Next {
        let Some(slice) = self.slice_at(self.slice) else { return Next::Nothing };
        if self.slice_at(self.slice + 1).is_some() {
            return Next::Several;
        }
        let rest = &slice[self.offset..];
        Next::One(rest.as_ptr(), rest.len().min(SLICE_BYTES_MAX))
    }

    /// Describes up to [`SLICES_MAX`] slices; returns how many.
    pub(crate) fn fill(&self, into: &mut [libc::iovec; SLICES_MAX]) -> usize {
        let mut count = 0;
        let mut offset = self.offset;
        while count < SLICES_MAX {
            let Some(slice) = self.slice_at(self.slice + count) else { break };
            let rest = &slice[offset..];
            into[count] = libc::iovec {
                iov_base: rest.as_ptr().cast_mut().cast(),
                iov_len: rest.len().min(SLICE_BYTES_MAX / SLICES_MAX),
            };
            count += 1;
            if rest.len() > SLICE_BYTES_MAX / SLICES_MAX {
                break;
            }
            offset = 0;
        }
        count
    }

    /// The kernel took `taken` bytes. True when that was all.
    pub(crate) fn advance(&mut self, mut taken: usize) -> bool {
        loop {
            let Some(len) = self.slice_at(self.slice).map(<[u8]>::len) else { return true };
            let rest = len - self.offset;
            if taken < rest {
                self.offset += taken;
                return false;
            }
            taken -= rest;
            self.slice += 1;
            self.offset = 0;
        }
    }
}

/// The sends in flight of one driver; slots are reused last in, first out.
#[derive(Debug, Default)]
pub(crate) struct Sends {
    items: Vec<Option<Outgoing>>,
    free: Vec<u32>,
}

impl Sends {
    pub(crate) fn insert(&mut self, outgoing: Outgoing) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.items.push(None);
            (self.items.len() - 1) as u32
        });
        debug_assert!(index != NO_SEND);
        self.items[index as usize] = Some(outgoing);
        index
    }

    pub(crate) fn get(&mut self, index: u32) -> Option<&mut Outgoing> {
        self.items.get_mut(index as usize)?.as_mut()
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<Outgoing> {
        let outgoing = self.items.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(outgoing)
    }
}
