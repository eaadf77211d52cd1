//! Fields to header blocks (RFC 7541 §6), without a dynamic table: entries of the static table by
//! index, all else as literals that are not kept.
//!
//! Names are written in lower case (RFC 9113 §8.2.1), texts with the Huffman code where that is
//! shorter.

use super::huffman;
use super::statics::{STATIC, index_of};

/// Index of the first `:status`.
const STATUS: u8 = 8;
/// Entries of the static table that have a status.
const STATUSES: std::ops::Range<usize> = 7..14;

/// Announces that the table is empty from here on. It has to precede the first field of the next
/// block, after the peer has changed the size of its table (RFC 7541 §4.2).
pub const EMPTY_TABLE: u8 = 0x20;

/// Appends `:status`.
pub fn put_status(out: &mut Vec<u8>, status: u16) {
    let digits = [status / 100 % 10, status / 10 % 10, status % 10].map(|digit| b'0' + digit as u8);
    match STATIC[STATUSES].iter().position(|(_, value)| **value == digits) {
        Some(place) => out.push(0x80 | (STATUS + place as u8)),
        None => {
            out.push(STATUS);
            put_text(out, digits.into_iter());
        }
    }
}

/// Appends a field as a literal without indexing.
pub fn put_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    match index_of(name) {
        Some(index) => put_number(out, 0x00, 4, usize::from(index)),
        None => {
            out.push(0x00);
            put_text(out, name.iter().map(u8::to_ascii_lowercase));
        }
    }
    put_text(out, value.iter().copied());
}

/// Appends a field: by its index where the static table has it with this value, else as
/// [`put_field`] does.
pub fn put_known(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    match STATIC.iter().position(|(its, known)| *known == value && its.eq_ignore_ascii_case(name)) {
        Some(place) => put_number(out, 0x80, 7, place + 1),
        None => put_field(out, name, value),
    }
}

fn put_text(out: &mut Vec<u8>, text: impl ExactSizeIterator<Item = u8> + Clone) {
    let coded = huffman::coded_len(text.clone());
    if coded < text.len() {
        put_number(out, 0x80, 7, coded);
        huffman::encode(text, out);
    } else {
        put_number(out, 0x00, 7, text.len());
        out.extend(text);
    }
}

/// Appends a number after flags that occupy the bits above its lowest `prefix` bits
/// (RFC 7541 §5.1).
fn put_number(out: &mut Vec<u8>, flags: u8, prefix: u32, value: usize) {
    let mask = (1usize << prefix) - 1;
    if value < mask {
        return out.push(flags | value as u8);
    }
    out.push(flags | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    //! Proves: encoded fields read back, in lower case; numbers as in RFC 7541 appendix C.1.

    use super::*;
    use crate::h2::hpack::Decoder;

    fn decoded(block: &[u8]) -> Vec<(String, String)> {
        let (mut found, text) =
            (Vec::new(), |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap());
        let mut decoder = Decoder::default();
        let take = |name: &[u8], value: &[u8]| {
            found.push((text(name), text(value)));
            true
        };
        decoder.decode(block, &mut Vec::new(), take).unwrap();
        assert_eq!(decoder.memory(), 0, "nothing is to be kept");
        found
    }

    #[test]
    fn numbers() {
        let number = |prefix, value| {
            let mut out = Vec::new();
            put_number(&mut out, 0, prefix, value);
            out
        };
        assert_eq!(number(5, 10), [0b0000_1010]);
        assert_eq!(number(5, 1337), [0b0001_1111, 0b1001_1010, 0b0000_1010]);
        assert_eq!(number(8, 42), [42]);
        assert_eq!((number(7, 126), number(7, 127)), (vec![126], vec![127, 0]));
    }

    #[test]
    fn statuses() {
        for status in 100..=999 {
            let mut block = Vec::new();
            put_status(&mut block, status);
            assert_eq!(decoded(&block), [(":status".to_owned(), status.to_string())]);
            let indexed = [200, 204, 206, 304, 400, 404, 500].contains(&status);
            assert_eq!(block.len() == 1, indexed, "{status}");
        }
    }

    #[test]
    fn known_fields_are_one_byte() {
        for (name, value, bytes) in [
            (":method", "GET", Some(0x82)),
            (":scheme", "https", Some(0x87)),
            (":Path", "/", Some(0x84)),
            ("accept-encoding", "gzip, deflate", Some(0x90)),
            (":method", "PUT", None),
        ] {
            let mut block = Vec::new();
            put_known(&mut block, name.as_bytes(), value.as_bytes());
            assert_eq!(decoded(&block), [(name.to_ascii_lowercase(), value.to_owned())]);
            assert_eq!((block.len() == 1).then_some(block[0]), bytes, "{name}");
        }
    }

    #[test]
    fn fields() {
        let mut block = vec![EMPTY_TABLE];
        let long = "x".repeat(300);
        let fields = [
            ("Server", "weir"),
            ("X-Thing", ""),
            ("ETag", "\"~~~~|<>\""),
            ("content-type", "text/html"),
            ("Y", &long),
        ];
        for (name, value) in fields {
            put_field(&mut block, name.as_bytes(), value.as_bytes());
        }
        let expected = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
        assert_eq!(decoded(&block), expected);
    }
}
