//! What is to be known of an import: what was not carried over, what works otherwise, what was closed. Made by `draft`, told by the
//! command line. Bound: [`NOTES_MAX`] are kept.

use std::fmt;

use super::tree::Place;

/// Notes that are kept of one import; more than anybody reads.
pub(super) const NOTES_MAX: usize = 1000;

/// Longest text of a directive in a note, characters.
const WHAT_MAX: usize = 80;

/// What is the matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It is not there any more.
    Lost,
    /// It is there, and does something else than before.
    Different,
    /// It was for some people only. As weir can't tell them from others it is for nobody now.
    Closed,
}

impl Kind {
    /// In words.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Lost => "not carried over",
            Kind::Different => "different",
            Kind::Closed => "closed",
        }
    }
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// `file:line`.
    pub place: String,
    /// What is the matter.
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

/// As much of a directive as a line has room for, without what a terminal could take for an order.
pub(super) fn short(text: &str) -> String {
    let mut out: String = harmless(text.chars().take(WHAT_MAX)).collect();
    if text.chars().nth(WHAT_MAX).is_some() {
        out.push_str("...");
    }
    out
}

/// Characters without those that end a line, are none, or change the direction of others.
pub(super) fn harmless(characters: impl Iterator<Item = char>) -> impl Iterator<Item = char> {
    characters.map(|c| if c.is_ascii_graphic() || c == ' ' || c.is_alphanumeric() { c } else { '?' })
}
