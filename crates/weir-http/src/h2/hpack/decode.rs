//! Header blocks to fields (RFC 7541 §3, §5, §6).
//!
//! Strict where a lenient reading would be a guess. These are all errors: an index without an
//! entry, a number above [`NUMBER_MAX`], text that is not a Huffman code, and a size update that is
//! too large or comes after a field. The connection can't continue after an error. Work: a byte of
//! a block can expand to a whole entry of the table, so the receiver of the fields counts them and
//! stops ([`HpackError::Stopped`]).

use super::huffman;
use super::statics::STATIC;
use super::table::{SIZE_MAX, Table};

/// Larger numbers than this are never meaningful.
const NUMBER_MAX: u32 = 1 << 28;
/// Size updates at the beginning of a block: the smallest and the last one since the block before
/// (RFC 7541 §4.2).
const UPDATES_MAX: usize = 2;

/// A block that can't be read to its end. The table is useless then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HpackError {
    /// It ends within a field.
    Truncated,
    /// A number is too large, or has too many bytes.
    Number,
    /// No entry has this index.
    Index,
    /// Text that is not a Huffman code.
    Huffman,
    /// A size update above what is allowed, not at the beginning, or one too many.
    SizeUpdate,
    /// The receiver of the fields has stopped.
    Stopped,
}

impl HpackError {
    /// In a few words.
    pub fn word(self) -> &'static str {
        match self {
            HpackError::Truncated => "a header block ends within a field",
            HpackError::Number => "a number in a header block is too large",
            HpackError::Index => "an index in a header block that nothing has",
            HpackError::Huffman => "text in a header block is no Huffman code",
            HpackError::SizeUpdate => "a wrong size update in a header block",
            HpackError::Stopped => "the header list is too large",
        }
    }
}

/// The rest of a block.
struct Block<'a> {
    rest: &'a [u8],
}

/// Reads header blocks in the order in which they were sent; each has to be read, whatever happens
/// to its fields.
#[derive(Debug, Default)]
pub struct Decoder {
    table: Table,
}

impl Decoder {
    /// Passes name and value of each field of a complete block to `take` in order, until that
    /// returns false. `scratch` is working memory; it grows to the longest field.
    ///
    /// # Errors
    /// The sender is at fault, and no later block can be read; or `take` returned false.
    pub fn decode(
        &mut self,
        block: &[u8],
        scratch: &mut Vec<u8>,
        mut take: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), HpackError> {
        let mut block = Block { rest: block };
        self.size_updates(&mut block)?;
        while let Some(&first) = block.rest.first() {
            let goes_on = match first {
                // RFC 7541 §6.1
                0x80.. => {
                    let (name, value) = self.entry(block.number(7)?)?;
                    take(name, value)
                }
                // RFC 7541 §6.2.1
                0x40.. => {
                    let name_len = self.literal(&mut block, 6, scratch)?;
                    let (name, value) = scratch.split_at(name_len);
                    self.table.insert(name, value);
                    take(name, value)
                }
                // RFC 7541 §6.3: only in front of the first field
                0x20.. => return Err(HpackError::SizeUpdate),
                // RFC 7541 §6.2.2, §6.2.3: a proxy that writes everything without indexing need not
                // distinguish them
                _ => {
                    let name_len = self.literal(&mut block, 4, scratch)?;
                    let (name, value) = scratch.split_at(name_len);
                    take(name, value)
                }
            };
            if !goes_on {
                return Err(HpackError::Stopped);
            }
        }
        Ok(())
    }

    fn size_updates(&mut self, block: &mut Block<'_>) -> Result<(), HpackError> {
        for count in 0.. {
            match block.rest.first() {
                Some(0x20..0x40) if count < UPDATES_MAX => match block.number(5)? as usize {
                    size if size <= SIZE_MAX => self.table.resize(size),
                    _ => return Err(HpackError::SizeUpdate),
                },
                _ => break,
            }
        }
        Ok(())
    }

    /// The field with an index over both tables.
    fn entry(&self, index: u32) -> Result<(&[u8], &[u8]), HpackError> {
        let index = index as usize;
        match STATIC.get(index.wrapping_sub(1)) {
            Some(entry) => Ok(*entry),
            None if index == 0 => Err(HpackError::Index),
            None => self.table.get(index - STATIC.len() - 1).ok_or(HpackError::Index),
        }
    }

    /// Puts name and value of a literal into `scratch`; the length of the name.
    fn literal(
        &self,
        block: &mut Block<'_>,
        prefix: u32,
        scratch: &mut Vec<u8>,
    ) -> Result<usize, HpackError> {
        scratch.clear();
        match block.number(prefix)? {
            0 => block.text(scratch)?,
            index => scratch.extend_from_slice(self.entry(index)?.0),
        }
        let name_len = scratch.len();
        block.text(scratch)?;
        Ok(name_len)
    }

    /// Bytes of memory that the table has.
    pub fn memory(&self) -> usize {
        self.table.memory()
    }
}

impl Block<'_> {
    fn byte(&mut self) -> Result<u8, HpackError> {
        let (&byte, rest) = self.rest.split_first().ok_or(HpackError::Truncated)?;
        self.rest = rest;
        Ok(byte)
    }

    /// A number whose first byte has it in its lowest `prefix` bits (RFC 7541 §5.1): at most five
    /// bytes follow.
    fn number(&mut self, prefix: u32) -> Result<u32, HpackError> {
        let mask = (1u32 << prefix) - 1;
        let mut value = u32::from(self.byte()?) & mask;
        if value < mask {
            return Ok(value);
        }
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.byte()?;
            let added = u64::from(byte & 0x7f) << shift;
            let sum = u64::from(value) + added;
            if sum > u64::from(NUMBER_MAX) {
                return Err(HpackError::Number);
            }
            value = sum as u32;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(HpackError::Number)
    }

    /// Appends a text, whichever way it is written (RFC 7541 §5.2).
    fn text(&mut self, out: &mut Vec<u8>) -> Result<(), HpackError> {
        let coded = self.rest.first().is_some_and(|&first| first & 0x80 != 0);
        let len = self.number(7)? as usize;
        let (text, rest) = self.rest.split_at_checked(len).ok_or(HpackError::Truncated)?;
        self.rest = rest;
        if coded {
            huffman::decode(text, out).map_err(|_| HpackError::Huffman)
        } else {
            out.extend_from_slice(text);
            Ok(())
        }
    }
}
