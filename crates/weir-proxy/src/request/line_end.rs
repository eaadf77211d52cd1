//! Whether a text carries a line end in an encoding that some server undoes: the beginning of
//! response splitting.
//!
//! A server that copies a decoded part of a request into a head ends its own response with it and
//! begins another one. A suspicious request is sent last on its connection
//! ([`crate::request::pending_request::RequestFlags::LAST`]), so that the second response is found
//! before any client gets it. Called by the engine for each request head: one vectorised search if
//! nothing is encoded. Bound: linear, at most [`ROUNDS_MAX`] passes. RFC 9112 §11.1,
//! docs/hostile.md E21.

use memchr::{memchr, memchr_iter};

/// How often a text is decoded. A text that is still encoded after that is not honest.
const ROUNDS_MAX: usize = 4;

/// Whether `text` has a CR or LF in one of these encodings: percent-encoded, once or several times;
/// as `%u` of two bytes; in an overlong form of UTF-8 (`%c0%8a`); or as a character whose low byte
/// it is (`%c4%8a`, U+010A), because some servers truncate characters to bytes.
pub(crate) fn carries_line_end(text: &[u8]) -> bool {
    memchr_iter(b'%', text).any(|at| is_notable(&text[at + 1..])) && decodes_to_line_end(text)
}

/// Whether the bytes after a percent sign may be, or hide, a line end.
fn is_notable(rest: &[u8]) -> bool {
    match escaped(rest) {
        Some(byte) => matches!(byte, b'\r' | b'\n' | b'%' | 0x8a | 0x8d),
        None => true,
    }
}

fn decodes_to_line_end(text: &[u8]) -> bool {
    let mut text = text.to_vec();
    for _ in 0..ROUNDS_MAX {
        let Some(decoded) = decode(&text) else { return true };
        if decoded.len() == text.len() {
            return false;
        }
        text = decoded;
    }
    true
}

/// The text with its escapes decoded once; None: one of them is a line end.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = memchr(b'%', rest) {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at + 1..];
        let (byte, len) = match (escaped(rest), wide(rest)) {
            (Some(byte), _) => (byte, 2),
            (None, Some(low)) => (low, 5),
            (None, None) => {
                out.push(b'%');
                continue;
            }
        };
        if matches!(byte, b'\r' | b'\n') {
            return None;
        }
        out.push(byte);
        rest = &rest[len..];
    }
    out.extend_from_slice(rest);
    // The low byte of a character is in the last two bytes of its UTF-8 form: for 0x0a and 0x0d
    // these. Whether another byte follows is not checked, because not every decoder checks it: few
    // characters are suspected without reason.
    let cut = |pair: &[u8]| pair[0] >= 0x80 && pair[0] & 3 == 0 && matches!(pair[1], 0x8a | 0x8d);
    (!out.windows(2).any(cut)).then_some(out)
}

/// The byte for two hexadecimal digits.
fn escaped(rest: &[u8]) -> Option<u8> {
    let [high, low, ..] = rest else { return None };
    Some(digit(*high)? << 4 | digit(*low)?)
}

/// The low byte of `uXXXX`.
fn wide(rest: &[u8]) -> Option<u8> {
    let (b'u' | b'U', digits) = rest.split_first()? else { return None };
    escaped(digits)?;
    escaped(digits.get(2..)?)
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    //! Proves: each way to encode a line end is found, at any position and however often it is
    //! encoded again; other text is not. How: examples, and properties with a separate encoder.

    use proptest::prelude::*;

    use super::*;

    const LINE_ENDS: [&str; 22] = [
        "%0d",
        "%0a",
        "%0D",
        "%0A",
        "%250d",
        "%25250a",
        "%2525250D",
        "%25%30%64",
        "%%30%61",
        "%0%61",
        "%%30a",
        "%c0%8a",
        "%C0%8D",
        "%e0%80%8a",
        "%f0%80%80%8d",
        "%c4%8a",
        "%c4%8d",
        "%e5%98%8a",
        "%e5%98%8d",
        "%u000a",
        "%u010D",
        "%25c4%258a",
    ];

    #[test]
    fn each_form_is_found() {
        for form in LINE_ENDS {
            assert!(carries_line_end(form.as_bytes()), "{form}");
            assert!(
                carries_line_end(format!("/a?next={form}Set-Cookie:%20x").as_bytes()),
                "{form}"
            );
        }
    }

    #[test]
    fn other_text_is_not() {
        for text in [
            "",
            "/",
            "/a?b=c",
            "%",
            "%%",
            "100%",
            "%2",
            "%20%2f%3D",
            "%00",
            "%0",
            "%0g",
            "%d0%",
            "%C3%A4%C3%BC",
            "%e4%bd%a0",
            "%8a",
            "%8d",
            "%c1%8b",
            "%2520",
            "%2525",
            "%u0041",
            "%u0a41",
            "%uD0",
            "a%c3%8a%c5%8d",
            "0d0a",
            "\\r\\n",
            "%F0%9F%98%80",
        ] {
            assert!(!carries_line_end(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn what_is_encoded_without_end_is_suspect() {
        assert!(carries_line_end(format!("%{}41", "25".repeat(9)).as_bytes()));
    }

    /// Percent-encodes all bytes of a text, `times` times.
    fn encode(text: &[u8], times: usize) -> Vec<u8> {
        (0..times).fold(text.to_vec(), |text, _| {
            text.iter().flat_map(|byte| format!("%{byte:02x}").into_bytes()).collect()
        })
    }

    proptest! {
        #[test]
        fn a_character_is_found_by_its_low_byte(
            before in "[a-z%/é]{0,9}",
            at in any::<char>(),
            times in 1..3usize,
        ) {
            let text = format!("{before}{at}");
            let found = carries_line_end(&encode(text.as_bytes(), times));
            prop_assert!(found || !matches!(at as u32 as u8, 0x0a | 0x0d));
        }

        #[test]
        fn others_are_not(
            text in "[ -$&-~\u{80}-\u{109}\u{10e}-\u{209}é]{0,60}",
            times in 0..3usize,
        ) {
            prop_assert!(!carries_line_end(&encode(text.as_bytes(), times)));
        }

        #[test]
        fn its_place_makes_no_difference(
            before in ".{0,40}",
            behind in ".{0,40}",
            form in 0..LINE_ENDS.len(),
        ) {
            // An incomplete escape in front of it would take its first digits.
            let before = before.replace('%', "");
            let text = format!("{before}{}{behind}", LINE_ENDS[form]);
            prop_assert!(carries_line_end(text.as_bytes()));
        }

        #[test]
        fn what_is_not_encoded_is_none(text in "[^%]{0,200}") {

            prop_assert!(!carries_line_end(text.as_bytes()));
        }
    }
}
