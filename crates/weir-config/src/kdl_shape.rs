//! Checks the shape of KDL text before it is parsed: strings, comments and braces must end, and not
//! nest too deep.
//!
//! Called by `kdl_text`. It exists for two reasons: "this brace is never closed" with the place of
//! the brace is a better message than any that a parser gives at the end of the file; and the
//! parser is recursive, with a time that doubles for each level of some nestings. Bound: one pass,
//! [`NESTING_MAX`] levels.

use crate::problem::{Problem, Span};

/// Deepest nesting of braces or block comments that is read; the option table needs 2.
pub(crate) const NESTING_MAX: usize = 8;

/// Returns the first mistake in the shape, if any.
pub(crate) fn check(text: &str) -> Result<(), Box<Problem>> {
    let mut scanner = Scanner { text, at: 0, open: Vec::new() };
    while scanner.at < text.len() {
        scanner.step()?;
    }
    match scanner.open.last() {
        Some(at) => Err(problem(&(*at..at + 1), "this brace is never closed")),
        None => Ok(()),
    }
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    /// The places of the open braces.
    open: Vec<usize>,
}

impl Scanner<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// Moves behind one token or character.
    fn step(&mut self) -> Result<(), Box<Problem>> {
        let rest = self.rest();
        let hashes = rest.bytes().take_while(|byte| *byte == b'#').count();
        match rest.as_bytes() {
            [b'/', b'/', ..] => self.at += rest.find(is_newline).unwrap_or(rest.len()),
            [b'/', b'*', ..] => self.comment()?,
            [b'"', ..] => self.string()?,
            [b'#', ..] if rest[hashes..].starts_with('"') => self.raw_string(hashes)?,
            [b'#', ..] if self.is_comment(&rest[hashes..]) => {
                let end = rest.find(is_newline).unwrap_or(rest.len());
                let problem = Problem::new(
                    "syntax",
                    &(self.at..self.at + end),
                    "a comment begins with //, not with #",
                );
                return Err(Box::new(problem.help(format!("//{}", rest[hashes..end].trim_end()))));
            }
            [b'#', ..] => self.at += hashes,
            [b';', ..] if self.is_comment("") => {
                let end = rest.find(is_newline).unwrap_or(rest.len());
                let problem = Problem::new(
                    "syntax",
                    &(self.at..self.at + end),
                    "a line does not begin with ;",
                );
                let help = format!("a comment begins with //, as //{}", rest[1..end].trim_end());
                return Err(Box::new(problem.help(help)));
            }
            [b'{', ..] => self.brace()?,
            [b'}', ..] => {
                if self.open.pop().is_none() {
                    return Err(problem(
                        &(self.at..self.at + 1),
                        "this brace matches no opening brace",
                    ));
                }
                self.at += 1;
            }
            _ => self.at += rest.chars().next().map_or(1, char::len_utf8),
        }
        Ok(())
    }

    /// Whether a sign with this text behind it begins a comment: at the beginning of a line, or
    /// between spaces. Otherwise it belongs to a word such as `#true`.
    fn is_comment(&self, behind: &str) -> bool {
        let before = &self.text[..self.at];
        let line = before.rsplit(is_newline).next().unwrap_or_default().trim_start();
        let goes_on = before.trim_end().ends_with('\\');
        let spaced =
            before.ends_with(char::is_whitespace) && behind.starts_with(char::is_whitespace);
        line.is_empty() && !goes_on || spaced
    }

    fn brace(&mut self) -> Result<(), Box<Problem>> {
        if self.open.len() == NESTING_MAX {
            return Err(problem(
                &(self.at..self.at + 1),
                &format!("nested deeper than {NESTING_MAX} levels"),
            ));
        }
        self.open.push(self.at);
        self.at += 1;
        Ok(())
    }

    /// Skips a block comment; they nest.
    fn comment(&mut self) -> Result<(), Box<Problem>> {
        let start = self.at;
        let mut depth = 0;
        while self.at < self.text.len() {
            let rest = self.rest();
            if rest.starts_with("/*") {
                depth += 1;
                self.at += 2;
            } else if rest.starts_with("*/") {
                depth -= 1;
                self.at += 2;
            } else {
                self.at += rest.chars().next().map_or(1, char::len_utf8);
            }
            if depth == 0 {
                return Ok(());
            }
            if depth > NESTING_MAX {
                return Err(problem(
                    &(start..start + 2),
                    &format!("comments are nested deeper than {NESTING_MAX} levels"),
                ));
            }
        }
        Err(problem(&(start..start + 2), "this comment is never closed"))
    }

    /// Skips a quoted string: on one line, or between three quotes on several.
    fn string(&mut self) -> Result<(), Box<Problem>> {
        let start = self.at;
        let several = self.rest().starts_with("\"\"\"");
        let end = if several { "\"\"\"" } else { "\"" };
        self.at += end.len();
        while self.at < self.text.len() {
            let rest = self.rest();
            if rest.starts_with(end) {
                self.at += end.len();
                return Ok(());
            }
            let mut chars = rest.chars();
            match chars.next() {
                Some('\\') => self.at += 1 + self.escape_len(),
                Some(c) if is_newline(c) && !several => break,
                c => self.at += c.map_or(1, char::len_utf8),
            }
        }
        Err(unclosed_string(start, end.len()))
    }

    /// Returns how much a backslash covers: one character, or all white space (so that a string may
    /// continue on the next line).
    fn escape_len(&self) -> usize {
        let behind = &self.rest()[1..];
        let space = behind.len() - behind.trim_start().len();
        if space > 0 { space } else { behind.chars().next().map_or(0, char::len_utf8) }
    }

    /// Skips `#"..."#` with any number of `#`, without escapes.
    fn raw_string(&mut self, hashes: usize) -> Result<(), Box<Problem>> {
        let start = self.at;
        let several = self.rest()[hashes..].starts_with("\"\"\"");
        let quotes = if several { 3 } else { 1 };
        let end = format!("{}{}", "\"".repeat(quotes), "#".repeat(hashes));
        let inside = &self.rest()[hashes + quotes..];
        match inside.find(&end) {
            Some(length) if several || !inside[..length].contains(is_newline) => {
                self.at += hashes + quotes + length + end.len();
                Ok(())
            }
            _ => Err(unclosed_string(start, hashes + quotes)),
        }
    }
}

fn unclosed_string(start: usize, length: usize) -> Box<Problem> {
    problem(&(start..start + length), "this string is not closed on its line")
}

fn problem(span: &Span, message: &str) -> Box<Problem> {
    Box::new(Problem::new("syntax", span, message))
}

/// Line ends of KDL 2.0.
fn is_newline(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn well_shaped() {
        for text in [
            "",
            "a {}",
            "a \"}\" { b \"\\\"{\"; }",
            "// {\na",
            "/* { /* } */ */ a",
            "a #\"{\"\"#",
            "a ##\"\"#{\"##",
            "a \"\"\"\n{ \"\n\"\"\"",
            "a \"x \\\n   y\"",
            "a #true",
            "a #\"\"\"\n\"{\n\"\"\"#",
            "ä {ö \"ü\"}",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn badly_shaped_names_the_opening() {
        for (text, at) in [
            ("a {\n b {}\n", 2),
            ("}", 0),
            ("x /* y", 2),
            ("a \"b\nc\"", 2),
            ("a #\"b\"", 2),
            ("a \"\"\" b", 2),
            ("a \"\\\"", 2),
        ] {
            let problem = check(text).unwrap_err();
            assert_eq!(problem.span.as_ref().map(|span| span.start), Some(at), "{text}");
        }
    }

    #[test]
    fn other_comments_are_told() {
        for text in
            ["# a {", "#a \"", "a #true\n  ## don't\n", "a 1 # b", "a { # b\n}", "a\u{2028}# b"]
        {
            let problem = check(text).unwrap_err();
            assert!(problem.message.contains("//"), "{text}: {problem:?}");
        }
        for text in ["a \\\n #true", "a #true;b #null", "#\"a\"# 1", "a#b", "// # a", "a \"# b\""] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn deep_nesting_is_refused() {
        for unit in ["a {", "/*", "/*/", "a { /- b {", "a \"}\" {", "a /* } */ {"] {
            assert!(check(&unit.repeat(100_000)).is_err(), "{unit}");
        }
        assert_eq!(
            check(&format!("{}{}", "a {".repeat(NESTING_MAX), "}".repeat(NESTING_MAX))),
            Ok(())
        );
    }
}
