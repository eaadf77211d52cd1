//! The tree that KDL and JSON have in common: entries with values and entries inside, each with its
//! place.
//!
//! Made by `kdl_text` and `json_text`, read by `check`. A property on a KDL line and a node in the
//! braces are equivalent here, as are a JSON member and a node; so every option may be written
//! either way.

use crate::problem::Span;

/// A value as written, after `${VAR}` was expanded.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Scalar {
    /// A string, quoted or bare.
    Text(String),
    /// A whole number.
    Integer(i128),
    /// A number with a fraction or exponent; only words that look like one are written so.
    Float(f64),
    /// `#true` or `#false`.
    Flag(bool),
    /// `#null`; no option takes it.
    Null,
    /// Its variables could not be expanded, which has been reported; there are no further messages
    /// about it.
    Broken,
}

/// A value and its place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Value {
    pub(crate) scalar: Scalar,
    pub(crate) span: Span,
}

/// A node, property or member.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Entry {
    /// Its name.
    pub(crate) name: String,
    /// The place of its name.
    pub(crate) name_span: Span,
    /// Values without a name, in order.
    pub(crate) values: Vec<Value>,
    /// Properties first, then nodes inside the braces.
    pub(crate) entries: Vec<Entry>,
    /// Whether there are braces, even empty ones.
    pub(crate) braces: bool,
    /// An empty array in JSON: no value, and no block either.
    pub(crate) nothing: bool,
}
