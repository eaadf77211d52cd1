//! Distinguished names as text: RFC 4514, as `openssl x509 -nameopt RFC2253` and other servers
//! write them. Pure; any bytes give a text. The text has no more than four bytes for each byte of
//! the name, and some for each attribute.

use crate::der::Reader;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const NUMERIC_STRING: u8 = 0x12;
const PRINTABLE_STRING: u8 = 0x13;
const TELETEX_STRING: u8 = 0x14;
const IA5_STRING: u8 = 0x16;
const BMP_STRING: u8 = 0x1e;

/// Attributes that have a word (RFC 4514 §3).
const WORDS: &[(&[u8], &str)] = &[
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 9], "STREET"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25], "DC"),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1], "UID"),
];

/// The text of the content of a name, the last part first (RFC 4514 §2.1). It ends at anything that
/// can't be understood.
pub(crate) fn text(name: &[u8]) -> String {
    let mut sets = Reader(name);
    let mut parts: Vec<String> = std::iter::from_fn(|| sets.next())
        .take_while(|(tag, _)| *tag == SET)
        .map(|(_, set)| {
            let mut attributes = Reader(set);
            let all =
                std::iter::from_fn(|| attributes.next()).take_while(|(tag, _)| *tag == SEQUENCE);
            all.filter_map(|(_, attribute)| attribute_text(attribute)).collect::<Vec<_>>().join("+")
        })
        .collect();
    parts.reverse();
    parts.join(",")
}

fn attribute_text(attribute: &[u8]) -> Option<String> {
    let mut reader = Reader(attribute);
    let kind = reader.expect(OBJECT_IDENTIFIER)?.0;
    let encoded = reader.0;
    let (tag, value) = reader.next()?;
    let word = WORDS.iter().find(|(known, _)| *known == kind).map(|(_, word)| *word);
    match (word, string(tag, value)) {
        (Some(word), Some(value)) => Some(format!("{word}={}", escaped(&value))),
        // RFC 4514 §2.4: after a number comes the encoding of the value.
        (word, _) => {
            let digits: String = encoded.iter().map(|byte| format!("{byte:02x}")).collect();
            Some(format!("{}=#{digits}", word.map_or_else(|| dotted(kind), str::to_owned)))
        }
    }
}

/// A string of one of the usual kinds.
fn string(tag: u8, value: &[u8]) -> Option<String> {
    match tag {
        UTF8_STRING => std::str::from_utf8(value).ok().map(str::to_owned),
        NUMERIC_STRING | PRINTABLE_STRING | IA5_STRING if value.is_ascii() => {
            Some(value.iter().map(|byte| char::from(*byte)).collect())
        }
        // In practice these strings contain Latin-1.
        TELETEX_STRING => Some(value.iter().map(|byte| char::from(*byte)).collect()),
        BMP_STRING if value.len().is_multiple_of(2) => {
            let units: Vec<u16> =
                value.chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
            String::from_utf16(&units).ok()
        }
        _ => None,
    }
}

/// Escapes the characters that could be mistaken for something else (RFC 4514 §2.4).
fn escaped(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let last = value.chars().count().saturating_sub(1);
    for (at, char) in value.chars().enumerate() {
        match char {
            '\0'..='\x1f' | '\x7f' => out += &format!("\\{:02x}", char as u32),
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => out.extend(['\\', char]),
            ' ' if at == 0 || at == last => out += "\\ ",
            '#' if at == 0 => out += "\\#",
            _ => out.push(char),
        }
    }
    out
}

/// An object identifier as numbers with dots between (X.690, 8.19).
fn dotted(kind: &[u8]) -> String {
    let mut numbers: Vec<u64> = Vec::new();
    let mut number = 0_u64;
    for byte in kind {
        number = number << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            if numbers.is_empty() {
                let first = (number / 40).min(2);
                numbers.push(first);
                number -= first * 40;
            }
            numbers.push(number);
            number = 0;
        }
    }
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    //! Proves: names are written as RFC 4514 has them, with nothing in them that could be taken for
    //! a part of the text. How: names written here.

    use super::*;

    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        [&[tag, u8::try_from(content.len()).unwrap()], content].concat()
    }

    fn attribute(kind: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        element(SEQUENCE, &[element(OBJECT_IDENTIFIER, kind), element(tag, value)].concat())
    }

    #[test]
    fn names_as_text() {
        let (country, common, mail) =
            (&[0x55, 4, 6][..], &[0x55, 4, 3][..], &[42, 0x86, 0x48, 0x86, 0xf7, 13, 1, 9, 1]);
        let unit = &[0x55, 4, 11][..];
        for (name, expected) in [
            (vec![], ""),
            (
                vec![
                    vec![attribute(country, PRINTABLE_STRING, b"DE")],
                    vec![
                        attribute(unit, UTF8_STRING, "Wehr & Söhne".as_bytes()),
                        attribute(unit, IA5_STRING, b"b"),
                    ],
                    vec![attribute(common, UTF8_STRING, b"partner")],
                ],
                "CN=partner,OU=Wehr & Söhne+OU=b,C=DE",
            ),
            (
                vec![vec![attribute(common, UTF8_STRING, b" #a,b=c\"\\\n ")]],
                "CN=\\ #a\\,b=c\\\"\\\\\\0a\\ ",
            ),
            (vec![vec![attribute(common, UTF8_STRING, b"#1")]], "CN=\\#1"),
            (vec![vec![attribute(common, TELETEX_STRING, b"\xfc")]], "CN=ü"),
            (vec![vec![attribute(common, BMP_STRING, &[0x20, 0xac])]], "CN=€"),
            (vec![vec![attribute(common, UTF8_STRING, b"\xff")]], "CN=#0c01ff"),
            (vec![vec![attribute(mail, IA5_STRING, b"a@b")]], "1.2.840.113549.1.9.1=#1603614062"),
        ] {
            let sets: Vec<u8> =
                name.iter().flat_map(|set: &Vec<Vec<u8>>| element(SET, &set.concat())).collect();
            assert_eq!(text(&sets), expected);
            for cut in 0..sets.len() {
                assert!(text(&sets[..cut]).len() <= expected.len().max(4 * sets.len()));
            }
        }
        assert_eq!(dotted(&[0x88, 0x37, 3]), "2.999.3");
        assert_eq!(dotted(&[0xff; 40]), "");
    }
}
