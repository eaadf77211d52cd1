//! Structured fields: dictionaries and lists (RFC 9651).
//!
//! Called for targeted cache directives (RFC 9213) and for cache groups (RFC 9875). A field is read
//! as a whole or not at all: after a fault it counts as absent (RFC 9651 §4.2). Values that are not
//! needed are checked and dropped. No recursion: inner lists cannot be nested.

use std::borrow::Cow;

/// A bare item, as far as callers need it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value<'a> {
    /// An integer of up to 15 digits.
    Integer(i64),
    /// A boolean; also a key without a value.
    Boolean(bool),
    /// A string without its escapes.
    String(Cow<'a, [u8]>),
    /// Any other valid value: a token, a decimal, an inner list.
    Other,
}

/// The text is not of the expected type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Invalid;

/// Reads a dictionary whose lines were joined by commas and calls `each` for every member, without
/// parameters. If a key occurs twice, the last one counts (RFC 9651 §4.2.2). `each` may have been
/// called before a fault is found.
///
/// # Errors
/// The sender is at fault: the field has to be ignored.
pub fn parse_dictionary<'a>(
    text: &'a [u8],
    mut each: impl FnMut(&'a [u8], Value<'a>),
) -> Result<(), Invalid> {
    let mut input = Input::of(text)?;
    while !input.is_at_end() {
        let key = input.key()?;
        let value =
            if input.takes(b'=') { input.item_or_inner_list()? } else { Value::Boolean(true) };
        input.parameters()?;
        each(key, value);
        input.next_member()?;
    }
    Ok(())
}

/// Reads a list and calls `each` for every member, without parameters.
///
/// # Errors
/// The sender is at fault: the field has to be ignored.
pub fn parse_list<'a>(text: &'a [u8], mut each: impl FnMut(Value<'a>)) -> Result<(), Invalid> {
    let mut input = Input::of(text)?;
    while !input.is_at_end() {
        let value = input.item_or_inner_list()?;
        input.parameters()?;
        each(value);
        input.next_member()?;
    }
    Ok(())
}

/// The remaining text.
struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// RFC 9651 §4.2: ASCII without leading and trailing spaces.
    fn of(text: &'a [u8]) -> Result<Self, Invalid> {
        let mut rest = text;
        while let [b' ', tail @ ..] = rest {
            rest = tail;
        }
        while let [head @ .., b' '] = rest {
            rest = head;
        }
        if rest.is_ascii() { Ok(Self { rest }) } else { Err(Invalid) }
    }

    fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn takes(&mut self, byte: u8) -> bool {
        let is_there = self.peek() == Some(byte);
        self.rest = &self.rest[usize::from(is_there)..];
        is_there
    }

    fn take_while(&mut self, is_part: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.rest.iter().position(|&byte| !is_part(byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn spaces(&mut self) {
        self.take_while(|byte| byte == b' ');
    }

    /// Reads the end of a member: the end of the text, or a comma and another member.
    fn next_member(&mut self) -> Result<(), Invalid> {
        let is_blank = |byte| matches!(byte, b' ' | b'\t');
        self.take_while(is_blank);
        if self.is_at_end() {
            return Ok(());
        }
        if !self.takes(b',') {
            return Err(Invalid);
        }
        self.take_while(is_blank);
        if self.is_at_end() { Err(Invalid) } else { Ok(()) }
    }

    /// RFC 9651 §4.2.3.3
    fn key(&mut self) -> Result<&'a [u8], Invalid> {
        if !self.peek().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'*') {
            return Err(Invalid);
        }
        let is_part =
            |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*');
        Ok(self.take_while(is_part))
    }

    /// RFC 9651 §4.2.3.2
    fn parameters(&mut self) -> Result<(), Invalid> {
        while self.takes(b';') {
            self.spaces();
            self.key()?;
            if self.takes(b'=') {
                self.bare_item()?;
            }
        }
        Ok(())
    }

    /// RFC 9651 §4.2.1.1
    fn item_or_inner_list(&mut self) -> Result<Value<'a>, Invalid> {
        if !self.takes(b'(') {
            return self.bare_item();
        }
        loop {
            self.spaces();
            if self.takes(b')') {
                return Ok(Value::Other);
            }
            self.bare_item()?;
            self.parameters()?;
            if !matches!(self.peek(), Some(b' ' | b')')) {
                return Err(Invalid);
            }
        }
    }

    /// RFC 9651 §4.2.3.1
    fn bare_item(&mut self) -> Result<Value<'a>, Invalid> {
        match self.peek().ok_or(Invalid)? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string().map(Value::String),
            b'*' | b'a'..=b'z' | b'A'..=b'Z' => {
                let is_part =
                    |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte);
                self.take_while(is_part);
                Ok(Value::Other)
            }
            b':' => self.bytes(),
            b'?' => {
                self.takes(b'?');
                let is_true = self.takes(b'1');
                if is_true || self.takes(b'0') { Ok(Value::Boolean(is_true)) } else { Err(Invalid) }
            }
            b'@' => {
                self.takes(b'@');
                match self.number()? {
                    Value::Integer(_) => Ok(Value::Other),
                    _ => Err(Invalid),
                }
            }
            b'%' => self.display_string(),
            _ => Err(Invalid),
        }
    }

    /// RFC 9651 §4.2.4: up to 15 digits, or up to 12 and 1 to 3 behind the point.
    fn number(&mut self) -> Result<Value<'a>, Invalid> {
        let sign = if self.takes(b'-') { -1 } else { 1 };
        let whole = self.take_while(|byte| byte.is_ascii_digit());
        if whole.is_empty() {
            return Err(Invalid);
        }
        if self.takes(b'.') {
            let fraction = self.take_while(|byte| byte.is_ascii_digit());
            return if whole.len() <= 12 && matches!(fraction.len(), 1..=3) {
                Ok(Value::Other)
            } else {
                Err(Invalid)
            };
        }
        if whole.len() > 15 {
            return Err(Invalid);
        }
        Ok(Value::Integer(
            sign * whole.iter().fold(0, |all, &byte| all * 10 + i64::from(byte - b'0')),
        ))
    }

    /// RFC 9651 §4.2.5
    fn string(&mut self) -> Result<Cow<'a, [u8]>, Invalid> {
        self.takes(b'"');
        let plain =
            self.take_while(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\');
        if self.takes(b'"') {
            return Ok(Cow::Borrowed(plain));
        }
        let mut text = plain.to_vec();
        loop {
            match self.peek().ok_or(Invalid)? {
                b'"' => {
                    self.takes(b'"');
                    return Ok(Cow::Owned(text));
                }
                b'\\' => match self.rest.get(1) {
                    Some(byte @ (b'"' | b'\\')) => {
                        text.push(*byte);
                        self.rest = &self.rest[2..];
                    }
                    _ => return Err(Invalid),
                },
                byte @ b' '..=b'~' => {
                    text.push(byte);
                    self.takes(byte);
                }
                _ => return Err(Invalid),
            }
        }
    }

    /// RFC 9651 §4.2.7: base64 between colons; padding may be missing.
    fn bytes(&mut self) -> Result<Value<'a>, Invalid> {
        self.takes(b':');
        self.take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'));
        let padding = self.take_while(|byte| byte == b'=');
        if padding.len() <= 2 && self.takes(b':') { Ok(Value::Other) } else { Err(Invalid) }
    }

    /// RFC 9651 §4.2.10: UTF-8, whose bytes beyond ASCII are `%` and two digits in lower case.
    fn display_string(&mut self) -> Result<Value<'a>, Invalid> {
        self.takes(b'%');
        if !self.takes(b'"') {
            return Err(Invalid);
        }
        let mut text = Vec::new();
        loop {
            let byte = self.peek().filter(|byte| matches!(byte, b' '..=b'~')).ok_or(Invalid)?;
            self.takes(byte);
            match byte {
                b'"' => {
                    return std::str::from_utf8(&text).map(|_| Value::Other).map_err(|_| Invalid);
                }
                b'%' => {
                    let (Some(high), Some(low)) = (self.nibble(), self.nibble()) else {
                        return Err(Invalid);
                    };
                    text.push(high << 4 | low);
                }
                _ => text.push(byte),
            }
        }
    }

    fn nibble(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.takes(byte);
        match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dictionary(text: &str) -> Result<Vec<(String, Value<'_>)>, Invalid> {
        let mut found = Vec::new();
        parse_dictionary(text.as_bytes(), |key, value| {
            found.push((String::from_utf8_lossy(key).into(), value))
        })?;
        Ok(found)
    }

    #[test]
    fn dictionaries_of_the_rfc() {
        let string = |text: &'static str| Value::String(Cow::Borrowed(text.as_bytes()));
        let cases: [(&str, &[(&str, Value)]); 9] = [
            ("", &[]),
            ("  ", &[]),
            (
                "en=\"Applepie\", da=:w4ZibGV0w6ZydGU=:",
                &[("en", string("Applepie")), ("da", Value::Other)],
            ),
            (
                "a=?0, b, c; foo=bar",
                &[
                    ("a", Value::Boolean(false)),
                    ("b", Value::Boolean(true)),
                    ("c", Value::Boolean(true)),
                ],
            ),
            (
                "rating=1.5, feelings=(joy sadness)",
                &[("rating", Value::Other), ("feelings", Value::Other)],
            ),
            (
                "a=(1 2), b=3, c=4;aa=bb, d=(5 6);valid",
                &[
                    ("a", Value::Other),
                    ("b", Value::Integer(3)),
                    ("c", Value::Integer(4)),
                    ("d", Value::Other),
                ],
            ),
            (
                "a=1\t,\t b=-2 ,a=3",
                &[("a", Value::Integer(1)), ("b", Value::Integer(-2)), ("a", Value::Integer(3))],
            ),
            (
                r#"a="x\"y\\", b=%"f%c3%bc", c=@1659578233"#,
                &[("a", string("x\"y\\")), ("b", Value::Other), ("c", Value::Other)],
            ),
            ("*=tok:en/%, _x=( ), z=()", &[]),
        ];
        for (text, expected) in &cases[..8] {
            let found = dictionary(text).unwrap_or_else(|_| panic!("{text}"));
            let found: Vec<(&str, Value)> =
                found.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
            assert_eq!(found, *expected, "{text}");
        }
        assert_eq!(dictionary(cases[8].0), Err(Invalid), "a key can't begin with _");
        assert!(dictionary("*=tok:en/%, x=( ), z=()").is_ok());
    }

    #[test]
    fn what_is_no_dictionary() {
        for text in [
            "max-age=10000, &&&&&",
            "max-age =100",
            "max-age= 100",
            "MaX-aGe=1",
            "a,",
            ",a",
            "a,,b",
            "a b",
            "a=",
            "a=\"x",
            "a=\"\u{fc}\"",
            "a=\"\\x\"",
            "a=1.",
            "a=1.2345",
            "a=-",
            "a=1234567890123456",
            "a=1234567890123.1",
            "a=?2",
            "a=?",
            "a=:",
            "a=:a b:",
            "a=:====:",
            "a=(",
            "a=(1",
            "a=(1,2)",
            "a=(1\"x\")",
            "a=((1))",
            "a;",
            "a;B",
            "a;b=",
            "a=@1.5",
            "a=@x",
            "a=%x",
            "a=%\"x",
            "a=%\"%C3\"",
            "a=%\"%c3\"",
            "a=%\"%c\"",
            "a=\"x\ty\"",
            "\ta",
            "a\t",
            "a=\u{7f}",
        ] {
            let outcome = dictionary(text);
            let trailing_tab = text == "a\t";
            assert_eq!(outcome.is_err(), !trailing_tab, "{text:?}");
        }
    }

    #[test]
    fn lists() {
        let mut found = Vec::new();
        parse_list(br#""scripts", "a\"b";x=1, token, (1 2)"#, |value| found.push(value))
            .expect("valid");
        let string = |text: &'static [u8]| Value::String(Cow::Borrowed(text));
        assert_eq!(found, [string(b"scripts"), string(b"a\"b"), Value::Other, Value::Other]);
        for text in ["\"a\" \"b\"", "\"a\",", "a=1", "\"a"] {
            assert_eq!(parse_list(text.as_bytes(), |_| ()), Err(Invalid), "{text}");
        }
    }

    proptest! {
        /// Any bytes are read; a valid dictionary remains valid with another member, and no
        /// truncation panics.
        #[test]
        fn anything_is_read(text in r#"[a-c=?01"():;,\\ %@.*-]{0,24}"#) {
            let whole = parse_dictionary(text.as_bytes(), |_, _| ());
            if whole.is_ok() && !text.trim_matches(' ').is_empty() {
                let longer = format!("{text}, z=1");
                prop_assert!(parse_dictionary(longer.as_bytes(), |_, _| ()).is_ok(), "{}", longer);
            }
            for end in 0..text.len() {
                let _ = parse_dictionary(&text.as_bytes()[..end], |_, _| ());
                let _ = parse_list(&text.as_bytes()[..end], |_| ());
            }
        }

        #[test]
        fn any_bytes_are_read(text in prop::collection::vec(any::<u8>(), 0..40)) {
            let is_dictionary = parse_dictionary(&text, |_, _| ()).is_ok();
            prop_assert!(text.is_ascii() || !is_dictionary);
        }
    }
}
