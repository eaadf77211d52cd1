//! Tags that responses give themselves so that many can be purged at once (RFC 9875; Surrogate-Key,
//! Cache-Tag, xkey of other products).
//!
//! Bounds: [`TAGS_MAX`] tags of [`TAG_BYTES_MAX`] bytes; RFC 9875 §2.1 asks for at least 128 of
//! 128. [`read_tags`] reports tags beyond that, so that such a response is not stored by mistake as
//! one that a purge would miss.

use crate::list::members;
use crate::structured::{Value, parse_list};

/// Most tags of a response.
pub const TAGS_MAX: usize = 256;
/// Most bytes of a tag.
pub const TAG_BYTES_MAX: usize = 256;

/// A field that contains tags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TagField {
    /// Cache-Groups: a list of strings (RFC 9875 §2).
    CacheGroups,
    /// Surrogate-Key: words separated by spaces.
    SurrogateKey,
    /// Cache-Tag: a list with commas.
    CacheTag,
    /// xkey: words separated by spaces.
    Xkey,
}

impl TagField {
    /// All fields.
    pub const ALL: [Self; 4] = [Self::CacheGroups, Self::SurrogateKey, Self::CacheTag, Self::Xkey];

    /// Returns its name in lower case.
    pub fn name(self) -> &'static [u8] {
        match self {
            Self::CacheGroups => b"cache-groups",
            Self::SurrogateKey => b"surrogate-key",
            Self::CacheTag => b"cache-tag",
            Self::Xkey => b"xkey",
        }
    }
}

/// More or longer tags than are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyTags;

/// Returns the tags in the lines of a field, sorted, none twice. A Cache-Groups that is no list of
/// strings has none.
///
/// # Errors
/// The server sends more than is kept: it could not be purged as the server intends.
pub fn read_tags<'a>(
    field: TagField,
    lines: impl Iterator<Item = &'a [u8]>,
) -> Result<Vec<Vec<u8>>, TooManyTags> {
    let mut tags: Vec<Vec<u8>> = Vec::new();
    match field {
        TagField::CacheGroups => {
            let text = lines.collect::<Vec<_>>().join(&b", "[..]);
            tags = groups(&text);
        }
        TagField::CacheTag => lines.for_each(|line| tags.extend(members(line).map(<[u8]>::to_vec))),
        TagField::SurrogateKey | TagField::Xkey => lines.for_each(|line| {
            let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            tags.extend(words.map(<[u8]>::to_vec));
        }),
    }
    tags.sort_unstable();
    tags.dedup();
    let fits = tags.len() <= TAGS_MAX && tags.iter().all(|tag| tag.len() <= TAG_BYTES_MAX);
    if fits { Ok(tags) } else { Err(TooManyTags) }
}

/// Returns the strings of a list; none if it is not one, or has a member that is not a string (RFC
/// 9875 §2).
pub fn groups(text: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut are_strings = true;
    let parsed = parse_list(text, |value| match value {
        Value::String(text) => found.push(text.into_owned()),
        _ => are_strings = false,
    });
    if parsed.is_ok() && are_strings { found } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(field: TagField, lines: &[&str]) -> Vec<String> {
        let found = read_tags(field, lines.iter().map(|line| line.as_bytes())).expect("few");
        found.into_iter().map(|tag| String::from_utf8(tag).expect("text")).collect()
    }

    #[test]
    fn tags_of_each_field() {
        assert_eq!(tags(TagField::CacheGroups, &["\"b\", \"a b\";x=1", "\"b\""]), ["a b", "b"]);
        assert_eq!(tags(TagField::CacheGroups, &["\"a\", b"]), [""; 0]);
        assert_eq!(tags(TagField::CacheGroups, &["\"a"]), [""; 0]);
        assert_eq!(tags(TagField::SurrogateKey, &["a  b,c\ta", "d"]), ["a", "b,c", "d"]);
        assert_eq!(tags(TagField::Xkey, &[""]), [""; 0]);
        assert_eq!(tags(TagField::CacheTag, &["a, b c,,", "A"]), ["A", "a", "b c"]);
    }

    #[test]
    fn too_many_are_told() {
        let names: Vec<String> = (0..=TAGS_MAX).map(|at| format!("t{at}")).collect();
        let read = |text: &str| {
            read_tags(TagField::CacheTag, std::iter::once(text.as_bytes())).map(|tags| tags.len())
        };
        assert_eq!(read(&names[1..].join(",")), Ok(TAGS_MAX));
        assert_eq!(read(&names.join(",")), Err(TooManyTags));
        assert_eq!(read(&"x".repeat(TAG_BYTES_MAX)), Ok(1));
        assert_eq!(read(&"x".repeat(TAG_BYTES_MAX + 1)), Err(TooManyTags));
    }
}
