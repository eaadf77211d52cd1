//! Notes about an import: what was not carried over, what works differently, what was closed. Made
//! by `draft`, shown by the command line. Bound: [`NOTES_MAX`] are kept.

use std::fmt;

use super::tree::Place;

/// Notes of one import that are kept; more than anyone reads.
pub(super) const NOTES_MAX: usize = 1000;

/// Longest text of a directive in a note, characters.
const WHAT_MAX: usize = 80;

/// The kind of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It was dropped.
    Lost,
    /// It works differently than before.
    Different,
    /// It was for some clients only. Because weir cannot tell these apart, it is closed for all.
    Closed,
}

impl Kind {
    /// Returns it in words.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Lost => "not carried over",
            Kind::Different => "different",
            Kind::Closed => "closed",
        }
    }
}

/// One note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// `file:line`.
    pub place: String,
    /// The kind.
    pub kind: Kind,
    /// The directive, shortened.
    pub what: String,
    /// Why, and what to do.
    pub why: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: `{}`: {}", self.place, self.kind.word(), self.what, self.why)
    }
}

/// A note whose place has no name yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Draw {
    pub(super) place: Place,
    pub(super) kind: Kind,
    pub(super) what: String,
    pub(super) why: String,
}

/// Returns as much of a directive as fits in a line, without characters that could control a
/// terminal.
pub(super) fn short(text: &str) -> String {
    let mut out: String = harmless(text.chars().take(WHAT_MAX)).collect();
    if text.chars().nth(WHAT_MAX).is_some() {
        out.push_str("...");
    }
    out
}

/// Returns characters without line ends, control characters and direction marks.
pub(super) fn harmless(characters: impl Iterator<Item = char>) -> impl Iterator<Item = char> {
    characters
        .map(|c| if c.is_ascii_graphic() || c == ' ' || c.is_alphanumeric() { c } else { '?' })
}
