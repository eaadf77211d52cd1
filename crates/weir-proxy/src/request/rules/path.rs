//! The path that a server gets: `strip-prefix`, then the first `rewrite` that matches.
//!
//! Both work on the path in its canonical form, which means the same (RFC 3986 §6.2.2): escapes of
//! letters, digits and `-._~` decoded, the digits of others in capitals, without dot segments and
//! empty ones. So rules see the same path that the route was chosen by, and their result is in that
//! form again: nothing escapes from a prefix by `..`, and no result begins with `//`. The query is
//! unchanged. Expressions take time linear in the path. docs/hostile-requests.md C4.

use regex::bytes::{Captures, Regex};

use super::RuleFault;
use crate::request::route::path::normalised;

/// The changes to paths.
#[derive(Debug, Clone, Default)]
pub struct PathRules {
    /// The prefix to remove, decoded, with its first slash; the path of the route begins with it.
    /// None: nothing.
    pub strip: Option<Box<[u8]>>,
    /// The first match is applied.
    pub rewrites: Vec<Rewrite>,
}

/// A replacement of matching text.
#[derive(Debug, Clone)]
pub struct Rewrite {
    /// The expression to find in the path.
    pub regex: Regex,
    /// The replacement for the matching part.
    pub to: Replacement,
}

/// A text with references to groups of an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    /// A group each, with the literal text in front of it.
    segments: Vec<(Box<[u8]>, usize)>,
    /// Literal text behind the last group.
    tail: Box<[u8]>,
}

impl PathRules {
    /// Whether paths are not changed.
    pub fn is_empty(&self) -> bool {
        self.strip.is_none() && self.rewrites.is_empty()
    }

    /// Path and query for the server; None: as they came.
    ///
    /// # Errors
    /// [`RuleFault::Path`].
    pub(super) fn apply(&self, target: &[u8]) -> Result<Option<Vec<u8>>, RuleFault> {
        // OPTIONS for everything has no path.
        if self.is_empty() || target.first() != Some(&b'/') {
            return Ok(None);
        }
        let end = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
        let mut path = canonical(&target[..end])?;
        if let Some(prefix) = &self.strip {
            path = stripped(&path, prefix).ok_or(RuleFault::Path)?;
        }
        for rewrite in &self.rewrites {
            if let Some(found) = rewrite.regex.captures(&path) {
                path = canonical(&rewrite.to.replaced(&path, &found))?;
                break;
            }
        }
        path.extend_from_slice(&target[end..]);
        Ok(Some(path))
    }
}

impl Replacement {
    /// Compiles a text: `$1` is the match of the first group, `$0` the whole match, `$$` a dollar
    /// sign.
    ///
    /// # Errors
    /// What is wrong with it, for the operator. `groups`: how many the expression has, without
    /// `$0`.
    pub fn compile(text: &str, groups: usize) -> Result<Replacement, String> {
        let fine = |byte: u8| byte.is_ascii_graphic() && !b"?#\\".contains(&byte);
        if !text.bytes().all(fine) {
            return Err(
                "a path cannot contain `?`, `#`, `\\` or white space; write characters outside \
                    ASCII as `%C3%A4`"
                    .to_owned(),
            );
        }
        let mut replacement = Replacement { segments: Vec::new(), tail: Box::default() };
        let (mut literal, mut rest) = (Vec::new(), text);
        while let Some(at) = rest.find('$') {
            literal.extend_from_slice(&rest.as_bytes()[..at]);
            let behind = &rest[at + 1..];
            let digit = behind.chars().next().and_then(|first| first.to_digit(10));
            match (behind.starts_with('$'), digit) {
                (true, _) => literal.push(b'$'),
                (false, Some(group)) if group as usize <= groups => {
                    replacement
                        .segments
                        .push((std::mem::take(&mut literal).into(), group as usize));
                }
                (false, Some(group)) => return Err(format!("the expression has no group {group}")),
                (false, None) => {
                    return Err(
                        "write the number of a group behind `$`, or `$$` for the character"
                            .to_owned(),
                    );
                }
            }
            rest = &behind[1..];
        }
        literal.extend_from_slice(rest.as_bytes());
        replacement.tail = literal.into();
        Ok(replacement)
    }

    /// The path with this in place of the match.
    fn replaced(&self, path: &[u8], found: &Captures<'_>) -> Vec<u8> {
        let all = found.get(0).map_or(0..0, |all| all.range());
        let mut out = path[..all.start].to_vec();
        for (literal, group) in &self.segments {
            out.extend_from_slice(literal);
            out.extend_from_slice(found.get(*group).map_or(&b""[..], |group| group.as_bytes()));
        }
        out.extend_from_slice(&self.tail);
        out.extend_from_slice(&path[all.end..]);
        out
    }
}

/// The path in its canonical form, which begins with one slash.
///
/// # Errors
/// [`RuleFault::Path`]: it is not a path, or is ambiguous ([`normalised`]).
fn canonical(path: &[u8]) -> Result<Vec<u8>, RuleFault> {
    if path.first() != Some(&b'/') || !path.iter().all(u8::is_ascii_graphic) {
        return Err(RuleFault::Path);
    }
    normalised(path, &mut Vec::new()).map_err(|_| RuleFault::Path)?;
    let decoded = undo_escapes(path);
    let mut out = Vec::with_capacity(decoded.len());
    let mut segments = decoded[1..].split(|byte| *byte == b'/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            b"" | b"." => {}
            b".." => out.truncate(out.iter().rposition(|byte| *byte == b'/').unwrap_or(0)),
            _ => {
                out.push(b'/');
                out.extend_from_slice(segment);
                continue;
            }
        }
        if is_last {
            out.push(b'/');
        }
    }
    Ok(out)
}

/// Letters, digits and `-._~` as themselves, other escapes with capital digits.
pub(crate) fn undo_escapes(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        let (Some(value), b'%') = (escaped(behind), byte) else {
            out.push(byte);
            continue;
        };
        if value.is_ascii_alphanumeric() || b"-._~".contains(&value) {
            out.push(value);
        } else {
            out.push(b'%');
            out.extend(behind[..2].iter().map(u8::to_ascii_uppercase));
        }
        rest = &behind[2..];
    }
    out
}

/// The byte for two hexadecimal digits.
fn escaped(rest: &[u8]) -> Option<u8> {
    let digit = |at: usize| rest.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    Some((digit(0)? << 4 | digit(1)?) as u8)
}

/// The canonical path without a prefix that ends on a segment; None: it does not begin with that,
/// or does so in a way that others read differently (parameters within it).
fn stripped(path: &[u8], prefix: &[u8]) -> Option<Vec<u8>> {
    let mut rest = path;
    for wanted in prefix.strip_suffix(b"/").unwrap_or(prefix) {
        let (byte, used) = match escaped(rest.get(1..).unwrap_or_default()) {
            Some(byte) if rest.first() == Some(&b'%') => (byte, 3),
            _ => (*rest.first()?, 1),
        };
        if byte != *wanted {
            return None;
        }
        rest = &rest[used..];
    }
    match rest.first() {
        None => Some(b"/".to_vec()),
        Some(b'/') => Some(rest.to_vec()),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    //! Proves: how paths are changed, written in whatever way; the result is in canonical form,
    //! below its new prefix, and never begins with two slashes. How: tables, and properties over
    //! paths made of the parts that matter.

    use proptest::prelude::*;

    use super::*;

    fn rules(strip: &str, rewrites: &[(&str, &str)]) -> PathRules {
        let rewrite = |(regex, to): &(&str, &str)| {
            let regex = Regex::new(regex).unwrap();
            let to = Replacement::compile(to, regex.captures_len() - 1).unwrap();
            Rewrite { regex, to }
        };
        PathRules {
            strip: (!strip.is_empty()).then(|| strip.as_bytes().into()),
            rewrites: rewrites.iter().map(rewrite).collect(),
        }
    }

    fn applied(rules: &PathRules, target: &str) -> Result<String, RuleFault> {
        let path = rules.apply(target.as_bytes())?.unwrap_or_else(|| target.as_bytes().to_vec());
        Ok(String::from_utf8(path).unwrap())
    }

    #[test]
    fn prefixes() {
        for (prefix, target, expected) in [
            ("/api", "/api", Some("/")),
            ("/api", "/api?a=/../b", Some("/?a=/../b")),
            ("/api", "/api/", Some("/")),
            ("/api/", "/api/x", Some("/x")),
            ("/api", "/api//x", Some("/x")),
            ("/api", "//api/x/", Some("/x/")),
            ("/api", "/%61pi/%7Ex%2f%c3%a4", Some("/~x%2F%C3%A4")),
            ("/api", "/api/../api/x", Some("/x")),
            ("/api", "/x/%2e%2E/api/a/./b/..", Some("/a/")),
            ("/api", "/api/x;v=1/y", Some("/x;v=1/y")),
            ("/a/b", "/a%2Fb/c", Some("/c")),
            ("/café", "/caf%C3%A9/x", Some("/x")),
            ("/", "/x", Some("/x")),
            ("/api", "/api/../secret", None),
            ("/api", "/apis", None),
            ("/api", "/api;v=1/x", None),
            ("/api", "/api%2Fx", None),
            ("/api", "/api/..;/x", None),
            ("/api", "/api/%2", None),
        ] {
            let found = applied(&rules(prefix, &[]), target);
            assert_eq!(
                found,
                expected.map(str::to_owned).ok_or(RuleFault::Path),
                "{prefix} {target}"
            );
        }
        assert_eq!(rules("/api", &[]).apply(b"*"), Ok(None));
        assert_eq!(rules("", &[]).apply(b"//x"), Ok(None));
    }

    #[test]
    fn rewrites() {
        let these = rules(
            "/v1",
            &[
                ("^/item/([0-9]+)$", "/i/$1/$$"),
                ("^/old/", "/new/"),
                ("^/(.*)$", "/$1"),
                ("x", "y"),
            ],
        );
        for (target, expected) in [
            ("/v1/item/12?a", "/i/12/$?a"),
            ("/v1/%69tem/1%32", "/i/12/$"),
            ("/v1/old/a/old/b", "/new/a/old/b"),
            ("/v1/x", "/x"),
            ("/v1//%2F/evil", "/%2F/evil"),
        ] {
            assert_eq!(applied(&these, target), Ok(expected.to_owned()), "{target}");
        }
        let join = rules("", &[("^/to/(.*)$", "$1")]);
        for target in ["/to//evil.example", "/to/x", "/to/"] {
            assert_eq!(applied(&join, target), Err(RuleFault::Path), "a path begins with a slash");
        }
        let cut = rules("", &[("^/(..)(.*)$", "/$2$1")]);
        assert_eq!(
            applied(&cut, "/a%C3%A4"),
            Err(RuleFault::Path),
            "an escape that is cut is none"
        );
        assert_eq!(
            applied(&rules("", &[("^/(.)/(.*)", "/$1$1/$2")]), "/~/%2E%2e/x"),
            Ok("/x".to_owned())
        );
    }

    #[test]
    fn replacements_that_are_none() {
        for (text, groups) in [
            ("/$2", 1),
            ("/$", 1),
            ("/$x", 1),
            ("/?a", 0),
            ("/ ", 0),
            ("/\\x", 0),
            ("/ä", 0),
            ("/#", 0),
        ] {
            assert!(Replacement::compile(text, groups).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_comes_out_is_canonical(
            parts in prop::collection::vec(prop::sample::select(
                &[
                    "/", "/", "a", ".", "..", "%2e", "%2F", "%5c", ";", "%", "%25", "b", "%0d%0a",
                    "%61", "api", "?", "\\", "//", "%zz"
                ][..],
            ), 0..14),
            strip in prop::bool::ANY,
            to in prop::sample::select(&["/n/$1", "/$2$1", "/n$2/$1/.", "$1"][..]),
        ) {
            let target = format!("/api{}", parts.concat());
            let rules = rules(if strip { "/api" } else { "" }, &[("^/(..?)(.*)$", to)]);
            if let Ok(Some(out)) = rules.apply(target.as_bytes()) {
                let path = out.split(|byte| *byte == b'?').next().unwrap();
                prop_assert!(
                    path.starts_with(b"/") && !path.starts_with(b"//") && !path.contains(&b'\\')
                );
                prop_assert!(out.iter().all(u8::is_ascii_graphic));
                prop_assert_eq!(canonical(path), Ok(path.to_vec()));
                let query = target.find('?').map_or("", |at| &target[at..]);
                prop_assert!(out.ends_with(query.as_bytes()));
            }
        }
    }
}
