//! Encodes messages of nfnetlink as bytes: a batch that the kernel carries out whole or not at all.
//! Called by `nft`.
//!
//! `linux/netfilter/nfnetlink.h`. Numbers in attributes of nftables are in the byte order of the
//! network. Bound: an attribute has at most 65,535 bytes, so lists of elements have at most
//! [`ELEMENTS_MAX`] of them a message.

use crate::netlink;
pub(super) use crate::netlink::{
    ACKNOWLEDGE, Answer, Attributes, CREATE, EXCLUSIVE, answers, find,
};

/// Elements that one message may name: each takes at most 44 bytes of an attribute with at most
/// 65,535.
pub(super) const ELEMENTS_MAX: usize = 500;

/// `NFNL_SUBSYS_NFTABLES`.
const NFTABLES: u16 = 10;
/// `NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END`.
const BATCH: [u16; 2] = [16, 17];
/// The families of a message: `NFPROTO_UNSPEC`, `NFPROTO_INET`.
const NO_FAMILY: u8 = 0;
const INET: u8 = 1;

/// Messages that are being written.
#[derive(Debug)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    sequence: u32,
}

impl Batch {
    /// An empty batch; its first message gets this number.
    pub(super) fn new(sequence: u32) -> Batch {
        let mut batch = Batch { bytes: Vec::new(), sequence };
        batch.mark(BATCH[0]);
        batch
    }

    /// Adds a message of this kind to nftables; `write` gives its attributes. Returns its number.
    pub(super) fn message(
        &mut self,
        kind: u8,
        flags: u16,
        write: impl FnOnce(&mut Attributes<'_>),
    ) -> u32 {
        self.put(NFTABLES << 8 | u16::from(kind), flags, INET, 0, write)
    }

    /// The bytes of all messages.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.mark(BATCH[1]);
        self.bytes
    }

    fn mark(&mut self, kind: u16) {
        self.put(kind, 0, NO_FAMILY, NFTABLES, |_| {});
    }

    fn put(
        &mut self,
        kind: u16,
        flags: u16,
        family: u8,
        resource: u16,
        write: impl FnOnce(&mut Attributes<'_>),
    ) -> u32 {
        let number = self.sequence;
        self.sequence = self.sequence.wrapping_add(1);
        let [high, low] = resource.to_be_bytes();
        netlink::put(&mut self.bytes, kind, flags, number, &[family, 0, high, low], write);
        number
    }
}

/// The bytes of one request that is not part of a batch.
pub(super) fn request(kind: u8, number: u32, write: impl FnOnce(&mut Attributes<'_>)) -> Vec<u8> {
    let mut alone = Batch { bytes: Vec::new(), sequence: number };
    alone.message(kind, 0, write);
    alone.bytes
}

#[cfg(test)]
mod tests {
    //! Proves: lengths, padding and order of the written bytes, and that reading never passes the
    //! end. How: bytes, and every cut.

    use super::*;

    #[test]
    fn a_batch_is_as_the_kernel_wants_it() {
        let mut batch = Batch::new(7);
        let number = batch.message(12, CREATE, |message| {
            message.text(1, "weir");
            message.nest(3, |inner| inner.number(4, 0x0102_0304));
        });
        assert_eq!(number, 8);
        let bytes = batch.finish();
        let (begin, rest) = bytes.split_at(20);
        let (middle, end) = rest.split_at(20 + 12 + 12);
        assert_eq!(
            begin,
            [&[20, 0, 0, 0, 16, 0, 1, 0, 7, 0, 0, 0][..], &[0; 4], &[0, 0, 0, 10]].concat()
        );
        let header =
            [&[44, 0, 0, 0, 12, 10, 1, 4, 8, 0, 0, 0][..], &[0; 4], &[1, 0, 0, 0]].concat();
        let text = [&[9, 0, 1, 0][..], b"weir\0", &[0; 3]].concat();
        let number = [12, 0, 3, 0x80, 8, 0, 4, 0, 1, 2, 3, 4];
        assert_eq!(middle, [&header[..], &text, &number].concat());
        assert_eq!(
            end,
            [&[20, 0, 0, 0, 17, 0, 1, 0, 9, 0, 0, 0][..], &[0; 4], &[0, 0, 0, 10]].concat()
        );
    }

    #[test]
    fn what_the_kernel_says_is_read_to_its_end() {
        let mut told = request(18, 3, |message| {
            message.text(1, "t");
            message.nest(4, |inner| inner.large(2, 77));
        });
        let packets = |bytes: &[u8]| find(find(bytes, 4)?, 2).map(<[u8]>::to_vec);
        let whole = told.len();
        told.extend_from_slice(
            &[&[20, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0][..], &(-23_i32).to_ne_bytes()]
                .concat(),
        );
        for cut in 0..=told.len() {
            let read: Vec<_> = answers(&told[..cut]).collect();
            assert_eq!(
                read.len(),
                usize::from(cut >= whole) + usize::from(cut == told.len()),
                "{cut}"
            );
            if let Some((number, Answer::Told(told))) = read.first() {
                // Skips the header that messages of nftables have.
                let bytes = &told[4..];
                assert_eq!((*number, packets(bytes)), (3, Some(77_u64.to_be_bytes().to_vec())));
                (0..bytes.len()).for_each(|cut| drop(packets(&bytes[..cut])));
            }
            assert!(read.get(1).is_none_or(|answer| *answer == (4, Answer::Done(-23))));
        }
        // A length that makes no sense.
        for length in [0_u32, 3, 15, u32::MAX] {
            assert_eq!(answers(&[&length.to_ne_bytes()[..], &[0; 40]].concat()).count(), 0);
        }
        assert_eq!(find(&[0; 8], 1), None);
    }
}
