//! The elements of the option table: blocks, rows, and the kinds of values that rows take.
//!
//! `options` has the table itself, `check` applies it, `print` and `reference` write it out.

use std::fmt::{self, Display};

use crate::tree::Scalar;
use crate::units::{parse_size, parse_time, size_text, time_text};

/// A block: the document itself, `client`, `upstream` and so on.
#[derive(Debug)]
pub(crate) struct Block {
    /// The word that begins it; empty for the document.
    pub(crate) name: &'static str,
    /// One sentence for the reference.
    pub(crate) help: &'static str,
    /// The values behind the word without a name; in JSON, and optionally in KDL, they have the
    /// name of the row.
    pub(crate) positional: &'static [Row],
    /// Options, as `name=value` on the line or `name value` in the braces.
    pub(crate) options: &'static [Row],
    /// Further options, which another block has in common.
    pub(crate) shared: &'static [Row],
    /// Blocks inside.
    pub(crate) blocks: &'static [Block],
    /// Whether it may occur more than once. One that may not is filled with defaults when it is
    /// missing, unless it has required options.
    pub(crate) repeats: bool,
    /// It has an effect only when this option of the block around it is one of these words;
    /// otherwise it is not allowed there.
    pub(crate) with: Option<(&'static str, &'static [&'static str])>,
    /// The word that begins it is one of the values of its first positional row: `allow ...`. JSON
    /// uses its name instead, where blocks with one name keep their order.
    pub(crate) by_word: bool,
}

/// The usual values of blocks.
pub(crate) const BLOCK: Block = Block {
    name: "",
    help: "",
    positional: &[],
    options: &[],
    shared: &[],
    blocks: &[],
    repeats: false,
    with: None,
    by_word: false,
};

/// One option: this row gives its parser, its default, its help and its documentation.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) default: Default,
    pub(crate) help: &'static str,
}

/// The value of an option that is not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Default {
    /// It must be written.
    Required,
    /// The option is absent.
    Absent,
    /// This value, as it would be written.
    Is(&'static str),
    /// This number, or the value of the named other option of the block if that is more.
    AtLeast(&'static str, &'static str),
    /// The first value; the last one if one of the other options of the block is written, for those
    /// with a word with that value.
    Beside(&'static str, &'static [(&'static str, Option<&'static str>)], &'static str),
    /// This value, unless the named other option of the block is written: the two exclude each
    /// other.
    Unless(&'static str, &'static str),
    /// The last, when the named other option of the block is one of these words. Otherwise it may
    /// not be written, because it would have no effect.
    With(&'static str, &'static [&'static str], &'static Default),
    /// The last, unless the named other option is one of these words. Then it may not be written.
    Without(&'static str, &'static [&'static str], &'static Default),
    /// The last, if the named other option is written. Otherwise it may not be written.
    Given(&'static str, &'static Default),
}

/// Checks a text and returns its canonical form.
pub(crate) type TextCheck = fn(&str) -> Result<String, String>;

/// The values that an option takes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// A time in microseconds, at least and at most.
    Time(u64, u64),
    /// A size in bytes, at least and at most.
    Size(u64, u64),
    /// A whole number, at least and at most.
    Count(u64, u64),
    /// `#true` or `#false`; `on` and `off` are equivalent.
    Flag,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Text that a function accepts, with a description of it.
    Text(&'static str, TextCheck),
    /// Several texts, each of which a function accepts; may be empty.
    List(&'static str, TextCheck),
    /// A word for "no value", or a value of the other kind.
    Or(&'static str, &'static Kind),
}

/// A value that has been checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Setting {
    /// Microseconds.
    Time(u64),
    /// Bytes.
    Size(u64),
    /// A number.
    Count(u64),
    /// Yes or no.
    Flag(bool),
    /// A text in its canonical form.
    Text(String),
    /// One of the words of the row.
    Word(&'static str),
}

impl Block {
    /// Returns the row with this name.
    pub(crate) fn row(&self, name: &str) -> Option<&'static Row> {
        self.rows().find(|row| row.name == name)
    }

    /// Whether it has a required option: then it exists only when it is written.
    pub(crate) fn needs_something(&self) -> bool {
        self.rows().any(|row| row.default == Default::Required)
    }

    /// Returns all rows.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &'static Row> {
        self.positional.iter().chain(self.options).chain(self.shared)
    }

    /// Returns every word that is valid inside.
    pub(crate) fn words(&self) -> impl Iterator<Item = &'static str> {
        self.rows()
            .map(|row| row.name)
            .chain(self.blocks.iter().flat_map(|block| block.beginnings()))
    }

    /// Returns the words that it may begin with, as written.
    pub(crate) fn beginnings(&self) -> Vec<&'static str> {
        match self.positional.first() {
            Some(row) if self.by_word => row.kind.words(),
            _ => vec![self.name],
        }
    }
}

impl Kind {
    /// Whether it takes several values.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self, Kind::List(..))
    }

    /// Returns the valid words, for suggestions.
    fn words(&self) -> Vec<&'static str> {
        match self {
            Kind::Word(words) => words.to_vec(),
            Kind::Or(word, other) => std::iter::once(*word).chain(other.words()).collect(),
            _ => Vec::new(),
        }
    }

    /// Checks a value as written.
    ///
    /// # Errors
    /// The mistake in it, for the user.
    pub(crate) fn check(&self, scalar: &Scalar) -> Result<Setting, String> {
        match (self, scalar) {
            (Kind::Or(word, _), Scalar::Text(text)) if text == word => Ok(Setting::Word(word)),
            (Kind::Or(_, other), _) => other.check(scalar).map_err(|message| {
                // Words of both kinds are valid, so "expected" names both.
                let message = if message == other.expected() { self.expected() } else { message };
                self.with_words(scalar, message)
            }),
            (Kind::Time(..), Scalar::Integer(number)) => {
                Err(format!("a time needs a unit: {number}s, {number}ms or another one"))
            }
            (Kind::Time(min, max), Scalar::Text(text)) => {
                self.ranged(parse_time(text)?, *min, *max).map(Setting::Time)
            }
            (Kind::Size(min, max), Scalar::Text(text)) => {
                self.ranged(parse_size(text)?, *min, *max).map(Setting::Size)
            }
            (Kind::Size(min, max), Scalar::Integer(number)) => {
                self.ranged_wide(*number, *min, *max).map(Setting::Size)
            }
            (Kind::Count(min, max), Scalar::Integer(number)) => {
                self.ranged_wide(*number, *min, *max).map(Setting::Count)
            }
            // The expansion of a variable is text.
            (Kind::Count(min, max), Scalar::Text(text)) if is_digits(text) => {
                let number = text.parse().map_err(|_| self.expected())?;
                self.ranged(number, *min, *max).map(Setting::Count)
            }
            (Kind::Flag, Scalar::Flag(flag)) => Ok(Setting::Flag(*flag)),
            (Kind::Flag, Scalar::Text(text)) if text == "on" || text == "true" => {
                Ok(Setting::Flag(true))
            }
            (Kind::Flag, Scalar::Text(text)) if text == "off" || text == "false" => {
                Ok(Setting::Flag(false))
            }
            // A version without quotes is a number.
            (Kind::Word(words), Scalar::Float(number))
                if words.contains(&number.to_string().as_str()) =>
            {
                self.check(&Scalar::Text(number.to_string()))
            }
            (Kind::Word(words), Scalar::Text(text)) => {
                match words.iter().find(|word| *word == text) {
                    Some(word) => Ok(Setting::Word(word)),
                    None => Err(self.with_words(scalar, self.expected())),
                }
            }
            (Kind::Text(_, check) | Kind::List(_, check), Scalar::Text(text)) => {
                check(text).map(Setting::Text)
            }
            // 503 as well as "503".
            (Kind::Text(_, check) | Kind::List(_, check), Scalar::Integer(number)) => {
                check(&number.to_string()).map(Setting::Text)
            }
            _ => Err(self.expected()),
        }
    }

    /// Returns the message, or the nearest word when a word was probably intended.
    fn with_words(&self, scalar: &Scalar, message: String) -> String {
        let Scalar::Text(text) = scalar else { return message };
        if let Some(say) = crate::habits::value(text, &self.words()) {
            return format!("`{text}` is not known here; in weir this is {say}");
        }
        match crate::problem::nearest(text, self.words()) {
            Some(word) => format!("`{text}` is not known here; did you mean `{word}`?"),
            None => message,
        }
    }

    fn expected(&self) -> String {
        format!("expected {self}")
    }

    fn ranged(&self, value: u64, min: u64, max: u64) -> Result<u64, String> {
        if (min..=max).contains(&value) {
            Ok(value)
        } else {
            Err(format!("out of range: expected {self}"))
        }
    }

    fn ranged_wide(&self, value: i128, min: u64, max: u64) -> Result<u64, String> {
        match u64::try_from(value) {
            Ok(value) => self.ranged(value, min, max),
            Err(_) => Err(format!("out of range: expected {self}")),
        }
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

impl Display for Kind {
    /// Writes the valid values, for messages and the reference.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Time(min, max) => {
                write!(f, "a time from {} to {}", time_text(*min), time_text(*max))
            }
            Kind::Size(min, max) => {
                write!(f, "a size from {} to {}", size_text(*min), size_text(*max))
            }
            Kind::Count(min, max) => write!(f, "a number from {min} to {max}"),
            Kind::Flag => f.write_str("#true or #false"),
            Kind::Word(words) => {
                let quoted: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
                f.write_str(&quoted.join(" or "))
            }
            Kind::Text(what, _) => f.write_str(what),
            Kind::List(what, _) => write!(f, "{what}, any number of them"),
            Kind::Or(word, other) => write!(f, "{other}, or `{word}`"),
        }
    }
}
