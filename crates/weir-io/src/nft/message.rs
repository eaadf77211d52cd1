//! Messages of nfnetlink, put together as bytes: a batch that the kernel carries out whole or not at all. Called by `nft`.
//!
//! netlink(7); `linux/netfilter/nfnetlink.h`. Lengths and types are in the byte order of the machine, numbers in attributes of nftables in
//! that of the network. Bound: an attribute has at most 65,535 bytes, so whoever lists elements lists [`ELEMENTS_MAX`] of them a message.

/// Elements that one message may name: each takes at most 44 bytes of an attribute that can have 65,535.
pub(super) const ELEMENTS_MAX: usize = 500;

const HEADER_BYTES: usize = 16;
/// This attribute has attributes in it (`NLA_F_NESTED`).
const NESTED: u16 = 1 << 15;
/// `NFNL_SUBSYS_NFTABLES`.
const NFTABLES: u16 = 10;
/// `NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END`.
const BATCH: [u16; 2] = [16, 17];
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `NLM_F_ACK`: success is answered as well.
pub(super) const ACKNOWLEDGE: u16 = 4;
/// `NLM_F_CREATE`.
pub(super) const CREATE: u16 = 0x400;
/// `NLM_F_EXCL`: it must not be there.
pub(super) const EXCLUSIVE: u16 = 0x200;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;

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
    /// An empty one, whose first message has this number.
    pub(super) fn new(sequence: u32) -> Batch {
        let mut batch = Batch { bytes: Vec::new(), sequence };
        batch.mark(BATCH[0]);
        batch
    }

    /// A message to nftables of this kind; `write` gives its attributes. Its number.
    pub(super) fn message(&mut self, kind: u8, flags: u16, write: impl FnOnce(&mut Attributes<'_>)) -> u32 {
        self.put(NFTABLES << 8 | u16::from(kind), flags | REQUEST, INET, 0, write)
    }

    /// The bytes of all messages.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.mark(BATCH[1]);
        self.bytes
    }

    fn mark(&mut self, kind: u16) {
        self.put(kind, REQUEST, NO_FAMILY, NFTABLES, |_| {});
    }

    fn put(
        &mut self,
        kind: u16,
        flags: u16,
        family: u8,
        resource: u16,
        write: impl FnOnce(&mut Attributes<'_>),
    ) -> u32 {
        let (start, number) = (self.bytes.len(), self.sequence);
        self.sequence = self.sequence.wrapping_add(1);
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&number.to_ne_bytes());
        // From whom: the socket says it.
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&[family, 0]);
        self.bytes.extend_from_slice(&resource.to_be_bytes());
        write(&mut Attributes { bytes: &mut self.bytes });
        let length = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        number
    }
}

/// One request that is not of a batch. Its bytes.
pub(super) fn request(kind: u8, number: u32, write: impl FnOnce(&mut Attributes<'_>)) -> Vec<u8> {
    let mut alone = Batch { bytes: Vec::new(), sequence: number };
    alone.message(kind, 0, write);
    alone.bytes
}

/// The attributes of a message, or those in another attribute.
#[derive(Debug)]
pub(super) struct Attributes<'a> {
    bytes: &'a mut Vec<u8>,
}

impl Attributes<'_> {
    /// Attributes in an attribute.
    pub(super) fn nest(&mut self, kind: u16, write: impl FnOnce(&mut Attributes<'_>)) {
        self.attribute(kind | NESTED, write);
    }

    /// Bytes as they are.
    pub(super) fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.attribute(kind, |inner| inner.bytes.extend_from_slice(value));
    }

    /// A text, with the zero behind it.
    pub(super) fn text(&mut self, kind: u16, value: &str) {
        self.attribute(kind, |inner| {
            inner.bytes.extend_from_slice(value.as_bytes());
            inner.bytes.push(0);
        });
    }

    /// A number.
    pub(super) fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// A large number.
    pub(super) fn large(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_be_bytes());
    }

    fn attribute(&mut self, kind: u16, write: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        write(&mut Attributes { bytes: self.bytes });
        let length = self.bytes.len() - start;
        debug_assert!(length <= usize::from(u16::MAX), "an attribute has room for it");
        self.bytes[start..start + 2].copy_from_slice(&(length as u16).to_ne_bytes());
        self.bytes.resize(start + length.next_multiple_of(4), 0);
    }
}

/// A message of the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer<'a> {
    /// What became of a message: 0, or an error of the operating system.
    Done(i32),
    /// Attributes that were asked for.
    Told(&'a [u8]),
}

/// The messages of a datagram with their numbers, as far as it has whole ones.
pub(super) fn answers(mut bytes: &[u8]) -> impl Iterator<Item = (u32, Answer<'_>)> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        let message = bytes.get(..length).filter(|message| message.len() >= HEADER_BYTES)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        let number = u32::from_ne_bytes(*message[8..].first_chunk()?);
        let body = &message[HEADER_BYTES..];
        let answer = match u16::from_ne_bytes([message[4], message[5]]) {
            ERROR => Answer::Done(i32::from_ne_bytes(*body.first_chunk()?)),
            _ => Answer::Told(body.get(4..)?),
        };
        Some((number, answer))
    })
}

/// The attribute of this kind among these.
pub(super) fn find(mut bytes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(*bytes.first_chunk()?));
        let attribute = bytes.get(..length)?;
        let value = attribute.get(4..)?;
        if u16::from_ne_bytes([attribute[2], attribute[3]]) & !NESTED == kind {
            return Some(value);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    //! Proves: lengths, padding and order of what is written, and that what is read is never beyond its end. How: bytes, and every cut.

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
        assert_eq!(begin, [&[20, 0, 0, 0, 16, 0, 1, 0, 7, 0, 0, 0][..], &[0; 4], &[0, 0, 0, 10]].concat());
        let header = [&[44, 0, 0, 0, 12, 10, 1, 4, 8, 0, 0, 0][..], &[0; 4], &[1, 0, 0, 0]].concat();
        let text = [&[9, 0, 1, 0][..], b"weir\0", &[0; 3]].concat();
        let number = [12, 0, 3, 0x80, 8, 0, 4, 0, 1, 2, 3, 4];
        assert_eq!(middle, [&header[..], &text, &number].concat());
        assert_eq!(end, [&[20, 0, 0, 0, 17, 0, 1, 0, 9, 0, 0, 0][..], &[0; 4], &[0, 0, 0, 10]].concat());
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
            &[&[20, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0][..], &(-23_i32).to_ne_bytes()].concat(),
        );
        for cut in 0..=told.len() {
            let read: Vec<_> = answers(&told[..cut]).collect();
            assert_eq!(read.len(), usize::from(cut >= whole) + usize::from(cut == told.len()), "{cut}");
            if let Some((number, Answer::Told(bytes))) = read.first() {
                assert_eq!((*number, packets(bytes)), (3, Some(77_u64.to_be_bytes().to_vec())));
                (0..bytes.len()).for_each(|cut| drop(packets(&bytes[..cut])));
            }
            assert!(read.get(1).is_none_or(|answer| *answer == (4, Answer::Done(-23))));
        }
        // A length that leads nowhere.
        for length in [0_u32, 3, 15, u32::MAX] {
            assert_eq!(answers(&[&length.to_ne_bytes()[..], &[0; 40]].concat()).count(), 0);
        }
        assert_eq!(find(&[0; 8], 1), None);
    }
}
