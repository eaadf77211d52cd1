//! Byte classes and the search for the first byte outside of one: the inner loop of head parsing.
//!
//! Called by the head parsers. Works on eight bytes at a time in a `u64` with exact (carry-free)
//! tests, and on blocks of 32 in a branch-free fold that the compiler turns into vector
//! instructions; the first bytes of a value go through words because most values are short. RFC
//! 9110 §5.5 and §5.6.2, RFC 9112 §3.2.

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;
const SEVEN: u64 = 0x7f7f_7f7f_7f7f_7f7f;

/// Bit 7 of each byte that equals `byte`; exact in every byte.
#[inline(always)]
fn equal(word: u64, byte: u8) -> u64 {
    let x = word ^ (LOW * u64::from(byte));
    !(((x & SEVEN) + SEVEN) | x) & HIGH
}

/// Bit 7 of each byte that is below `bound` (at most 0x80); exact in every byte.
#[inline(always)]
fn below(word: u64, bound: u8) -> u64 {
    !(((word & SEVEN) + LOW * u64::from(0x80 - bound)) | word) & HIGH
}

/// Bit 7 of each byte that is below `bound` (at most 0x80) or 0x7f; exact in every byte.
#[inline(always)]
fn control(word: u64, bound: u8) -> u64 {
    let low = word & SEVEN;
    !word & (!(low + LOW * u64::from(0x80 - bound)) | (low + LOW)) & HIGH
}

/// Bit 7 of each byte that is 0x7f or above; exact in every byte.
#[inline(always)]
fn del_or_above(word: u64) -> u64 {
    (((word & SEVEN) + LOW) | word) & HIGH
}

trait Stop {
    fn word(word: u64) -> u64;
    fn byte(byte: u8) -> bool;
}

/// Bytes that are not allowed in a field value: control bytes other than HTAB (RFC 9110 §5.5).
struct Value;

impl Stop for Value {
    #[inline(always)]
    fn word(word: u64) -> u64 {
        let stops = control(word, 0x20);
        // Tabs are rare: they are distinguished only where something was found.
        if stops == 0 { 0 } else { stops & !equal(word, b'\t') }
    }

    #[inline(always)]
    fn byte(byte: u8) -> bool {
        ((byte < 0x20) & (byte != b'\t')) | (byte == 0x7f)
    }
}

/// Bytes that are not allowed in a request target: all but visible ASCII, and `#` (RFC 9112 §3.2:
/// no fragment).
struct Target;

impl Stop for Target {
    #[inline(always)]
    fn word(word: u64) -> u64 {
        below(word, 0x21) | del_or_above(word) | equal(word, b'#')
    }

    #[inline(always)]
    fn byte(byte: u8) -> bool {
        (byte <= 0x20) | (byte >= 0x7f) | (byte == b'#')
    }
}

/// Bytes that end a field name: the colon, white space or a control byte. Other bytes are judged by
/// [`token_faults`].
struct Name;

impl Stop for Name {
    #[inline(always)]
    fn word(word: u64) -> u64 {
        control(word, 0x21) | equal(word, b':')
    }

    #[inline(always)]
    fn byte(byte: u8) -> bool {
        (byte <= 0x20) | (byte == 0x7f) | (byte == b':')
    }
}

/// Position of the first stop byte at or after `at`, or the length.
#[inline(always)]
fn find<S: Stop>(input: &[u8], at: usize) -> usize {
    const WORDS_FIRST: usize = 6;
    let mut at = at;
    for _ in 0..WORDS_FIRST {
        let Some(word) = input.get(at..).and_then(|rest| rest.first_chunk::<8>()) else {
            return tail::<S>(input, at);
        };
        let stops = S::word(u64::from_le_bytes(*word));
        if stops != 0 {
            return at + stops.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    find_long::<S>(input, at)
}

/// Blocks of 32 without a stop byte are skipped; the words find the place in the block that has it.
#[inline(never)]
fn find_long<S: Stop>(input: &[u8], mut at: usize) -> usize {
    while let Some(block) = input.get(at..).and_then(|rest| rest.first_chunk::<32>()) {
        if block.iter().fold(false, |stop, &byte| stop | S::byte(byte)) {
            break;
        }
        at += 32;
    }
    while let Some(word) = input.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let stops = S::word(u64::from_le_bytes(*word));
        if stops != 0 {
            return at + stops.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    tail::<S>(input, at)
}

#[inline(always)]
fn tail<S: Stop>(input: &[u8], at: usize) -> usize {
    let rest = input.get(at..).unwrap_or_default();
    at + rest.iter().position(|&byte| S::byte(byte)).unwrap_or(rest.len())
}

/// Returns the first byte at or after `at` that ends a field value or is not allowed in one, or the
/// length.
#[inline]
pub(crate) fn value_end(input: &[u8], at: usize) -> usize {
    find::<Value>(input, at)
}

/// Returns the first byte at or after `at` that is not allowed in a request target, or the length.
#[inline]
pub(crate) fn target_end(input: &[u8], at: usize) -> usize {
    find::<Target>(input, at)
}

/// First colon, white space or control byte at or after `at`, or the length.
#[inline]
pub(crate) fn name_end(input: &[u8], at: usize) -> usize {
    find::<Name>(input, at)
}

/// Bit of [`token_faults`]: an underscore is in it (a token, but see
/// [`Field::underscore`](crate::Field)).
pub(crate) const UNDERSCORE: u8 = 1;
/// Bit of [`token_faults`]: not a token.
pub(crate) const NOT_TOKEN: u8 = 0x80;

static TOKEN: [u8; 256] = token_table();

const fn token_table() -> [u8; 256] {
    let mut table = [NOT_TOKEN; 256];
    let mut i = 0;
    while i < 256 {
        let byte = i as u8;
        if byte.is_ascii_alphanumeric()
            || matches!(byte, b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.')
            || matches!(byte, b'^' | b'`' | b'|' | b'~')
        {
            table[i] = 0;
        }
        i += 1;
    }
    table[b'_' as usize] = UNDERSCORE;
    table
}

/// All faults of a would-be token or-ed together; 0 for a clean one. An empty name has none: check
/// that apart.
///
/// Names of letters and hyphens, which nearly all are, pass by words, the last one overlapping the
/// one before it.
#[inline]
pub(crate) fn token_faults(name: &[u8]) -> u8 {
    if let Some(last) = name.last_chunk::<8>() {
        let words = name.as_chunks::<8>().0.iter();
        if words.fold(unusual(last), |all, word| all | unusual(word)) == 0 {
            return 0;
        }
    }
    name.iter().fold(0, |faults, &byte| faults | TOKEN[byte as usize])
}

/// Bit 7 of each byte that is neither a letter nor a hyphen.
#[inline(always)]
fn unusual(word: &[u8; 8]) -> u64 {
    let word = u64::from_le_bytes(*word);
    let lower = word | (LOW * 0x20);
    let letter = below(lower, b'z' + 1) & !below(lower, b'a');
    !(letter | equal(word, b'-')) & HIGH
}

/// Whether a text is a token: RFC 9110 §5.6.2, 1*tchar.
#[inline]
pub fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && token_faults(text) & NOT_TOKEN == 0
}

/// One byte of a token.
#[inline]
pub(crate) fn is_token_byte(byte: u8) -> bool {
    TOKEN[byte as usize] & NOT_TOKEN == 0
}

/// SP or HTAB (RFC 9110 §5.6.3).
#[inline]
pub(crate) fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte at every place of buffers around the word and block sizes: words and bytes must
    /// agree.
    fn agree<S: Stop>(filler: u8) {
        assert!(!S::byte(filler));
        for len in [0, 1, 7, 8, 9, 31, 32, 33, 47, 48, 49, 80, 81, 95, 120] {
            let mut input = vec![filler; len];
            assert_eq!(find::<S>(&input, 0), len);
            for place in 0..len {
                for byte in 0..=255u8 {
                    input[place] = byte;
                    let expected = if S::byte(byte) { place } else { len };
                    assert_eq!(
                        find::<S>(&input, 0),
                        expected,
                        "byte {byte:#x} at {place} of {len}"
                    );
                }
                input[place] = filler;
            }
        }
    }

    #[test]
    fn every_byte_at_every_place() {
        agree::<Value>(b'a');
        agree::<Value>(b'\t');
        agree::<Value>(0xff);
        agree::<Target>(b'~');
        agree::<Name>(b'!');
        agree::<Name>(0x80);
    }

    #[test]
    fn neighbours_do_not_disturb_each_other() {
        for first in 0..=255u8 {
            for second in 0..=255u8 {
                let input = [first, second, b'a', b'a', b'a', b'a', b'a', b'a'];
                let expected = input.iter().position(|&byte| Value::byte(byte)).unwrap_or(8);
                assert_eq!(value_end(&input, 0), expected, "{first:#x} {second:#x}");
                let expected = input.iter().position(|&byte| Target::byte(byte)).unwrap_or(8);
                assert_eq!(target_end(&input, 0), expected, "{first:#x} {second:#x}");
            }
        }
    }

    #[test]
    fn tokens() {
        let separators = b"\"(),/:;<=>?@[\\]{} \t";
        for byte in 0..=255u8 {
            let token = (0x21..0x7f).contains(&byte) && !separators.contains(&byte);
            assert_eq!(is_token(&[byte]), token, "{byte:#x}");
        }
        assert!(!is_token(b""));
        for len in 1..20 {
            for place in 0..len {
                for byte in 0..=255u8 {
                    let mut name = vec![b'Q'; len];
                    name[place] = byte;
                    assert_eq!(
                        token_faults(&name),
                        TOKEN[byte as usize],
                        "{byte:#x} at {place} of {len}"
                    );
                }
            }
        }
        assert_eq!(token_faults(b"a_b"), UNDERSCORE);
    }
}
