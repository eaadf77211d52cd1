//! Payloads that are being sent, and how much of them the kernel has taken. Used by both drivers.
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

/// The next piece for the kernel.
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

    /// The next piece, at most 1 GiB of it.
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

#[cfg(test)]
mod tests {
    //! However the kernel splits a payload, it is offered each byte once and in order.

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    /// The next offer, as bytes.
    fn offered(outgoing: &Outgoing) -> Vec<u8> {
        let read = |start: *const u8, len| {
            // SAFETY: the range is part of the payload of `outgoing`, which outlives the copy.
            unsafe { std::slice::from_raw_parts(start, len) }.to_vec()
        };
        match outgoing.next() {
            Next::Nothing => Vec::new(),
            Next::One(start, len) => read(start, len),
            Next::Several => {
                let mut slices =
                    [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; SLICES_MAX];
                let count = outgoing.fill(&mut slices);
                assert!(count > 0);
                slices[..count]
                    .iter()
                    .flat_map(|slice| read(slice.iov_base.cast(), slice.iov_len))
                    .collect()
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn each_byte_once_and_in_order(
            lens in proptest::collection::vec(0usize..40, 0..150),
            cuts in proptest::collection::vec(1usize..200, 1..20),
            form in 0..3,
        ) {
            let mut next = 0u8;
            let mut slice = |len: usize| {
                Bytes::from_iter((0..len).map(|_| {
                    next = next.wrapping_add(1);
                    next
                }))
            };
            let slices: Vec<Bytes> = lens.into_iter().map(&mut slice).collect();
            let whole = slices.concat();
            let payload = match form {
                0 => Payload::Owned(whole.clone()),
                1 => Payload::Shared(whole.clone().into()),
                _ => Payload::Vectored(slices),
            };
            let mut outgoing = Outgoing::new(payload);
            let mut taken = Vec::new();
            for cut in cuts.iter().cycle() {
                let offer = offered(&outgoing);
                prop_assert_eq!(offer.is_empty(), taken.len() == whole.len());
                if offer.is_empty() {
                    break;
                }
                let take = (*cut).min(offer.len());
                taken.extend_from_slice(&offer[..take]);
                prop_assert_eq!(outgoing.advance(take), taken.len() == whole.len());
            }
            prop_assert_eq!(taken, whole);
        }
    }

    #[test]
    fn slots_are_reused() {
        let mut sends = Sends::default();
        let first = sends.insert(Outgoing::new(Payload::Owned(vec![1])));
        let second = sends.insert(Outgoing::new(Payload::Owned(vec![2])));
        assert!(sends.remove(first).is_some() && sends.remove(first).is_none());
        assert_eq!(sends.insert(Outgoing::new(Payload::Owned(vec![3]))), first);
        assert!(sends.get(second).is_some() && sends.get(NO_SEND).is_none());
    }
}
