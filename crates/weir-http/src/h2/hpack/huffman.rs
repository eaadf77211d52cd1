//! The Huffman code of RFC 7541 (§5.2, appendix B).
//!
//! It is canonical: the lengths of the codes determine the codes, so only these are written down.
//! Decoding looks up the next [`FIRST_BITS`] bits in one table, which has all common codes; longer
//! codes are found by their length.

/// Bits of the code of each byte.
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

/// Longest code. The only other one of this length is that of the end (EOS), all ones.
const BITS_MAX: usize = 30;
/// Bits that the first look decides on.
const FIRST_BITS: usize = 9;

/// The code of each byte, in its low bits.
static CODES: [u32; 256] = BUILT.codes;
/// By the next bits: length of the code in the high byte (0: longer), the byte in the low one.
static FIRST: [u16; 1 << FIRST_BITS] = BUILT.first;
/// By length: the first code that is too large to have it, at the upper end of 32 bits.
static ENDS: [u32; BITS_MAX + 1] = BUILT.ends;
/// By length: the first code of this length, and its place in `SORTED`.
static STARTS: [(u32, u16); BITS_MAX + 1] = BUILT.starts;
/// Bytes in the order of their codes.
static SORTED: [u8; 256] = BUILT.sorted;

struct Built {
    codes: [u32; 256],
    first: [u16; 1 << FIRST_BITS],
    ends: [u32; BITS_MAX + 1],
    starts: [(u32, u16); BITS_MAX + 1],
    sorted: [u8; 256],
}

const BUILT: Built = build();

const fn build() -> Built {
    let mut built = Built {
        codes: [0; 256],
        first: [0; 1 << FIRST_BITS],
        ends: [0; BITS_MAX + 1],
        starts: [(0, 0); BITS_MAX + 1],
        sorted: [0; 256],
    };
    let (mut code, mut place, mut bits) = (0u32, 0usize, 1);
    while bits <= BITS_MAX {
        code <<= 1;
        built.starts[bits] = (code, place as u16);
        let mut byte = 0;
        while byte < 256 {
            if LENGTHS[byte] as usize == bits {
                built.codes[byte] = code;
                built.sorted[place] = byte as u8;
                if bits <= FIRST_BITS {
                    let from = (code as usize) << (FIRST_BITS - bits);
                    let mut filled = 0;
                    while filled < 1 << (FIRST_BITS - bits) {
                        built.first[from + filled] = (bits as u16) << 8 | byte as u16;
                        filled += 1;
                    }
                }
                code += 1;
                place += 1;
            }
            byte += 1;
        }
        built.ends[bits] = code << (32 - bits);
        bits += 1;
    }
    assert!(place == 256 && code == 0x3fff_ffff, "all codes but that of the end are given away");
    built
}

/// The text is not the output of an encoder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NotHuffman;

/// Appends the text that `coded` encodes: at most 8/5 of its bytes.
///
/// # Errors
/// It contains the code of the end, or the bits after the last byte are not the beginning of that
/// code, or are more than seven.
pub(super) fn decode(coded: &[u8], out: &mut Vec<u8>) -> Result<(), NotHuffman> {
    out.reserve(coded.len() * 8 / 5);
    let (mut pending, mut have, mut rest) = (0u64, 0usize, coded);
    loop {
        if have <= 32 {
            (pending, have, rest) = refill(pending, have, rest);
        }
        let entry = FIRST[(pending >> (64 - FIRST_BITS)) as usize];
        let (bits, byte) = if entry == 0 {
            long_code((pending >> 32) as u32)
        } else {
            ((entry >> 8) as usize, entry as u8)
        };
        if bits > have {
            // The rest is not a code: it has to be a short piece of the end's, which is all ones.
            let all_ones = have < 8 && pending.leading_ones() as usize >= have;
            return if all_ones { Ok(()) } else { Err(NotHuffman) };
        }
        out.push(byte);
        pending <<= bits;
        have -= bits;
    }
}

/// Fills up with whole bytes; the bits below them are zeros.
#[inline]
fn refill(mut pending: u64, mut have: usize, rest: &[u8]) -> (u64, usize, &[u8]) {
    if let Some((word, rest)) = rest.split_first_chunk::<4>() {
        let word = u64::from(u32::from_be_bytes(*word));
        return (pending | word << (32 - have), have + 32, rest);
    }
    for &byte in rest {
        pending |= u64::from(byte) << (56 - have);
        have += 8;
    }
    (pending, have, &[])
}

/// Returns length and byte of a code longer than [`FIRST_BITS`], which is at the upper end; for the
/// code of the end, a length that no byte has.
#[cold]
fn long_code(upper: u32) -> (usize, u8) {
    for bits in FIRST_BITS + 1..=BITS_MAX {
        if upper < ENDS[bits] {
            let (code, place) = STARTS[bits];
            return (
                bits,
                SORTED[(usize::from(place) + ((upper >> (32 - bits)) - code) as usize) & 255],
            );
        }
    }
    (usize::MAX, 0)
}

/// Returns the bytes of the text when it is encoded.
pub(super) fn coded_len(text: impl Iterator<Item = u8>) -> usize {
    text.map(|byte| usize::from(LENGTHS[usize::from(byte)])).sum::<usize>().div_ceil(8)
}

/// Appends the text, encoded.
pub(super) fn encode(text: impl Iterator<Item = u8>, out: &mut Vec<u8>) {
    let (mut pending, mut have) = (0u64, 0u32);
    for byte in text {
        let bits = u32::from(LENGTHS[usize::from(byte)]);
        pending = pending << bits | u64::from(CODES[usize::from(byte)]);
        have += bits;
        if have >= 32 {
            have -= 32;
            out.extend_from_slice(&((pending >> have) as u32).to_be_bytes());
        }
    }
    while have >= 8 {
        have -= 8;
        out.push((pending >> have) as u8);
    }
    if have > 0 {
        out.push((pending << (8 - have)) as u8 | (0xff >> have));
    }
}

#[cfg(test)]
mod tests {
    //! Proves: each byte and pair of bytes decodes to itself after encoding; an invalid code is
    //! rejected at every length.

    use super::*;

    fn decoded(coded: &[u8]) -> Result<Vec<u8>, NotHuffman> {
        let mut out = Vec::new();
        decode(coded, &mut out).map(|()| out)
    }

    fn encoded(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(text.iter().copied(), &mut out);
        assert_eq!(out.len(), coded_len(text.iter().copied()));
        out
    }

    #[test]
    fn every_pair_of_bytes() {
        for first in 0..=255u8 {
            assert_eq!(decoded(&encoded(&[first])), Ok(vec![first]));
            for second in 0..=255u8 {
                let text = [first, second, b'a', second, first];
                assert_eq!(decoded(&encoded(&text)), Ok(text.to_vec()));
            }
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decoded(&encoded(&all)), Ok(all));
    }

    /// RFC 7541 appendix C.4.1 and C.6.1.
    #[test]
    fn of_the_rfc() {
        assert_eq!(
            encoded(b"www.example.com"),
            b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"
        );
        assert_eq!(encoded(b"302"), b"\x64\x02");
        assert_eq!(encoded(b"private"), b"\xae\xc3\x77\x1a\x4b");
    }

    /// RFC 7541 §5.2: padding of eight bits or more, padding that is not ones, and the code of the
    /// end are errors.
    #[test]
    fn padding_and_the_end() {
        for len in 0..12 {
            let text = vec![b'a'; len];
            let coded = encoded(&text);
            assert_eq!(
                decoded(&[&coded[..], b"\xff"].concat()),
                Err(NotHuffman),
                "a byte more, {len}"
            );
            let bits = 5 * len % 8;
            if bits > 0 {
                let mut zeros = coded.clone();
                *zeros.last_mut().unwrap() &= !(0xffu8 >> bits);
                assert_ne!(decoded(&zeros), Ok(text), "zeros, {len}");
            }
            for ones in 1..10 {
                let with_end = [&coded[..], &vec![0xff; ones]].concat();
                assert_eq!(
                    decoded(&with_end),
                    Err(NotHuffman),
                    "{ones} bytes of ones behind {len}"
                );
            }
        }
        assert_eq!(decoded(b""), Ok(Vec::new()));
        assert_eq!(decoded(b"\xff\xff\xff\xfc"), Err(NotHuffman), "the end and two zeros");
        assert_eq!(decoded(b"\x00"), Err(NotHuffman), "a zero and three bits that are no ones");
    }
}
