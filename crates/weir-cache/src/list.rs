//! Lists with commas whose members may have quoted strings (RFC 9110 §5.6.1, §5.6.4), and the
//! numbers in them.
//!
//! Called for every field that is a list: Cache-Control, Vary, Age, If-None-Match, Accept-Encoding.
//! Nothing is allocated.

/// Seconds that represent all numbers too large to count: 2^31 (RFC 9111 §1.2.2).
pub const DELTA_MAX: u32 = 1 << 31;

/// Returns the members of one line of a list without the white space around them. Empty ones are
/// left out. A comma in a quoted string does not separate; an unclosed string extends to the end of
/// the line.
pub(crate) fn members(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = line;
    std::iter::from_fn(move || {
        while !rest.is_empty() {
            let end = member_end(rest);
            let member = rest[..end].trim_ascii();
            rest = rest.get(end + 1..).unwrap_or_default();
            if !member.is_empty() {
                return Some(member);
            }
        }
        None
    })
}

/// Returns the position of the first comma outside of quoted strings, or the length.
fn member_end(text: &[u8]) -> usize {
    let (mut quoted, mut at) = (false, 0);
    while let Some(&byte) = text.get(at) {
        match byte {
            b',' if !quoted => return at,
            b'\\' if quoted => at += 1,
            b'"' => quoted = !quoted,
            _ => {}
        }
        at += 1;
    }
    text.len()
}

/// delta-seconds: only digits, at most [`DELTA_MAX`]. None: no number.
pub(crate) fn delta_seconds(text: &[u8]) -> Option<u32> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = text
        .iter()
        .fold(0u32, |all, &byte| all.saturating_mul(10).saturating_add(u32::from(byte - b'0')));
    Some(value.min(DELTA_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(line: &str) -> Vec<&str> {
        members(line.as_bytes()).map(|member| std::str::from_utf8(member).unwrap_or("?")).collect()
    }

    #[test]
    fn commas_outside_of_strings_separate() {
        assert_eq!(all(""), [""; 0]);
        assert_eq!(all(" , ,\t,"), [""; 0]);
        assert_eq!(all("a"), ["a"]);
        assert_eq!(all("a,b"), ["a", "b"]);
        assert_eq!(all(",a ,\t b c,,"), ["a", "b c"]);
        assert_eq!(all(r#"a="x, y", b"#), [r#"a="x, y""#, "b"]);
        assert_eq!(all(r#"a="x\", y", b"#), [r#"a="x\", y""#, "b"]);
        assert_eq!(all(r#"a="x\\", b"#), [r#"a="x\\""#, "b"]);
        assert_eq!(all(r#"a="x, b"#), [r#"a="x, b"#]);
        assert_eq!(all(r#"a="x\"#), [r#"a="x\"#]);
        assert_eq!(all(r"a\,b"), [r"a\", "b"]);
    }

    #[test]
    fn numbers_saturate() {
        let cases: [(&str, Option<u32>); 12] = [
            ("0", Some(0)),
            ("003600", Some(3600)),
            ("2147483647", Some(DELTA_MAX - 1)),
            ("2147483648", Some(DELTA_MAX)),
            ("2147483649", Some(DELTA_MAX)),
            ("99999999999999999999999", Some(DELTA_MAX)),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("1.0", None),
            ("1 ", None),
            ("a", None),
        ];
        for (text, value) in cases {
            assert_eq!(delta_seconds(text.as_bytes()), value, "{text}");
        }
    }

    proptest! {
        /// Nothing but separators and white space gets lost, in order.
        #[test]
        fn members_are_parts_of_the_line(line in "[a\", \\\\\t=]{0,30}") {
            let mut at = 0;
            for member in members(line.as_bytes()) {
                let text = std::str::from_utf8(member).expect("ASCII");
                prop_assert!(!text.is_empty() && text.trim_ascii() == text);
                at += line[at..].find(text).expect("in order") + text.len();
            }
        }
    }
}
