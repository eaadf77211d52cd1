//! Encodes and decodes messages of netlink as bytes: headers, attributes, answers of the kernel.
//! Called by `nft` and `rtnetlink`, which know the meaning of the messages. Touches no socket.
//!
//! netlink(7). Lengths and types are in the byte order of the machine. Bounds: an attribute has at
//! most 65,535 bytes; nothing is read beyond the end of the received bytes.

const HEADER_BYTES: usize = 16;
/// This attribute contains attributes (`NLA_F_NESTED`).
const NESTED: u16 = 1 << 15;
/// `NLM_F_REQUEST`.
pub(crate) const REQUEST: u16 = 1;
/// `NLM_F_ACK`: success is answered as well.
pub(crate) const ACKNOWLEDGE: u16 = 4;
/// `NLM_F_CREATE`.
pub(crate) const CREATE: u16 = 0x400;
/// `NLM_F_EXCL`: it must not be there.
pub(crate) const EXCLUSIVE: u16 = 0x200;
/// `NLM_F_DUMP`: all entries.
pub(crate) const ALL: u16 = 0x300;
/// `NLMSG_ERROR`, and `NLMSG_DONE`, which ends a list of all entries.
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// Appends a message to these bytes: the header of its kind, with a length that is a multiple of
/// four, then attributes.
pub(crate) fn put(
    bytes: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    number: u32,
    header: &[u8],
    write: impl FnOnce(&mut Attributes<'_>),
) {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&(flags | REQUEST).to_ne_bytes());
    bytes.extend_from_slice(&number.to_ne_bytes());
    // The sender: the socket supplies it.
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(header);
    write(&mut Attributes { bytes });
    let length = (bytes.len() - start) as u32;
    bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
}

/// The attributes of a message, or those in another attribute.
#[derive(Debug)]
pub(crate) struct Attributes<'a> {
    bytes: &'a mut Vec<u8>,
}

impl Attributes<'_> {
    /// Attributes in an attribute.
    pub(crate) fn nest(&mut self, kind: u16, write: impl FnOnce(&mut Attributes<'_>)) {
        self.attribute(kind | NESTED, write);
    }

    /// Bytes as they are.
    pub(crate) fn bytes(&mut self, kind: u16, value: &[u8]) {
        self.attribute(kind, |inner| inner.bytes.extend_from_slice(value));
    }

    /// A header of this kind, and attributes behind it.
    pub(crate) fn message(
        &mut self,
        kind: u16,
        header: &[u8],
        write: impl FnOnce(&mut Attributes<'_>),
    ) {
        self.attribute(kind, |inner| {
            inner.bytes.extend_from_slice(header);
            write(inner);
        });
    }

    /// A text, with a zero byte behind it.
    pub(crate) fn text(&mut self, kind: u16, value: &str) {
        self.attribute(kind, |inner| {
            inner.bytes.extend_from_slice(value.as_bytes());
            inner.bytes.push(0);
        });
    }

    /// A number, in the byte order of the network.
    pub(crate) fn number(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    /// A large number, likewise.
    pub(crate) fn large(&mut self, kind: u16, value: u64) {
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
pub(crate) enum Answer<'a> {
    /// The outcome of a message: 0, or an error of the operating system.
    Done(i32),
    /// The requested entry: the header of its kind, then attributes.
    Told(&'a [u8]),
}

/// The messages of a datagram with their numbers, as far as they are complete.
pub(crate) fn answers(mut bytes: &[u8]) -> impl Iterator<Item = (u32, Answer<'_>)> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
        let message = bytes.get(..length).filter(|message| message.len() >= HEADER_BYTES)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        let number = u32::from_ne_bytes(*message[8..].first_chunk()?);
        let body = &message[HEADER_BYTES..];
        let answer = match u16::from_ne_bytes([message[4], message[5]]) {
            ERROR | DONE => Answer::Done(i32::from_ne_bytes(*body.first_chunk()?)),
            _ => Answer::Told(body),
        };
        Some((number, answer))
    })
}

/// The attribute of this kind among these.
pub(crate) fn find(mut bytes: &[u8], kind: u16) -> Option<&[u8]> {
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
