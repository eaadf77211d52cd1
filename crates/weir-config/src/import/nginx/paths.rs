//! Paths of locations as conditions of routes: prefixes, single paths and expressions.
//!
//! nginx compares prefixes as texts, so `/v1` also takes `/v1x`. A route's path takes whole
//! segments. So such a prefix is a route for the folder, with a `path-regex`.

use super::super::begin::has_alternatives;
use super::super::route::{Condition, refused};
use super::super::tree::Node;
use crate::texts;

/// Longest text of `(?!text)`, bytes.
const LOOK_MAX: usize = 32;

/// How nginx compares the path of a location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// `=`
    Exact,
    /// `^~`: no expression is tried.
    Only,
    /// No modifier.
    Prefix,
    /// `~`, or `~*` if true.
    Regex(bool),
    /// `@`
    Named,
}

/// Returns how a location compares paths, and its text.
pub(super) fn how(node: &Node) -> (How, &str) {
    let (kind, text) = path(node);
    let how = match kind {
        "=" => How::Exact,
        "^~" => How::Only,
        "~" => How::Regex(false),
        "~*" => How::Regex(true),
        _ if text.starts_with('@') => How::Named,
        _ => How::Prefix,
    };
    (how, text)
}

/// Returns the modifier and the text of a location.
pub(super) fn path(node: &Node) -> (&str, &str) {
    let (first, second) = (node.argument(1), node.argument(2));
    if !second.is_empty() {
        return (first, second);
    }
    let kind = ["^~", "~*", "~", "="].into_iter().find(|kind| first.starts_with(kind));
    kind.map_or(("", first), |kind| (kind, &first[kind.len()..]))
}

/// Returns an expression of nginx as weir's. None: the two may differ, or weir refuses it.
pub(super) fn expression(text: &str, any_case: bool) -> Option<String> {
    let without = without_look(text);
    let text = without.as_deref().unwrap_or(text);
    if has_other_meaning(text) {
        return None;
    }
    // nginx compares bytes; without `-u`, a dot takes only valid UTF-8.
    let flags = match (any_case, takes_any_byte(text)) {
        (true, true) => "(?i-u)",
        (true, false) => "(?i)",
        (false, true) => "(?-u)",
        (false, false) => "",
    };
    let ours = format!("{flags}{text}");
    refused(&Condition::of_path(ours.clone(), false)).is_none().then_some(ours)
}

/// Returns an expression that ends with `(?!text)` without that: what follows differs from the text
/// somewhere. None: it has no such end.
fn without_look(expression: &str) -> Option<String> {
    let (front, look) = expression.split_once("(?!")?;
    let (text, rest) = look.split_once(')')?;
    if !matches!(rest, "" | ".*" | ".*$") {
        return None;
    }
    let text = text.replace("\\/", "/").replace("\\.", ".").replace("\\-", "-");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.');
    if text.is_empty() || text.len() > LOOK_MAX || !text.chars().all(is_plain) {
        return None;
    }
    let mut found = String::new();
    for c in text.chars().rev() {
        let c = regex::escape(&c.to_string());
        let next = if found.is_empty() { String::new() } else { format!("|{c}{found}") };
        found = format!("(?:$|[^{c}]{next})");
    }
    Some(format!("{front}{found}"))
}

/// Whether a part of it means something else in PCRE.
fn has_other_meaning(text: &str) -> bool {
    let mut rest = text.chars().peekable();
    let mut in_class = false;
    while let Some(c) = rest.next() {
        match c {
            '\\' => {
                if matches!(rest.next(), Some('<' | '>')) {
                    return true;
                }
            }
            '[' if in_class && rest.peek() != Some(&':') => return true,
            '[' if !in_class => {
                in_class = true;
                if rest.peek() == Some(&'^') {
                    rest.next();
                }
                if rest.peek() == Some(&']') {
                    rest.next();
                }
            }
            ']' => in_class = false,
            '&' | '-' | '~' if in_class && rest.peek() == Some(&c) => return true,
            _ => {}
        }
    }
    false
}

/// Whether it has a part that takes every byte, or all but some.
fn takes_any_byte(text: &str) -> bool {
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '\\' if matches!(rest.next(), Some('W' | 'D' | 'S' | 'w' | 'd' | 's' | 'b')) => {
                return true;
            }
            '.' => return true,
            '[' if rest.as_str().starts_with('^') => return true,
            _ => {}
        }
    }
    false
}

/// Returns an expression that matches whole paths: nginx replaces the whole path if an expression
/// matches.
pub(super) fn spanning(expression: &str) -> String {
    let flags = match expression.strip_prefix("(?") {
        Some(rest) => rest.find(')').filter(|end| {
            rest[..*end].bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
        }),
        None => None,
    };
    let (flags, rest) = expression.split_at(flags.map_or(0, |end| end + 3));
    // What a `rewrite` of weir sees is escaped, and has no other bytes.
    let flags = match flags {
        "(?-u)" => "",
        "(?i-u)" => "(?i)",
        flags => flags,
    };
    if has_alternatives(rest) {
        return format!("{flags}^.*?(?:{rest}).*$");
    }
    let front = if rest.starts_with('^') { "" } else { "^.*?" };
    let is_open = !rest.ends_with('$') || rest.ends_with("\\$");
    let end = if is_open && !rest.ends_with(".*)") && !rest.ends_with(".*") { ".*$" } else { "" };
    format!("{flags}{front}{rest}{end}")
}

/// Returns the whole segments that begin all paths of an expression. None: it has none.
pub(super) fn begins_with(expression: &str) -> Option<&str> {
    let literal = expression.strip_prefix('^')?;
    let end = literal
        .find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '/' | '-' | '_'))
        .unwrap_or(literal.len());
    // The text in front of `?` and similar may be missing.
    let end =
        if matches!(&literal[end..], "" | "$") { end } else { literal[..end].rfind('/')? + 1 };
    Some(&literal[..end]).filter(|prefix| prefix.len() > 1 && prefix.starts_with('/'))
}

/// Returns the path of a route for all paths that begin with a text, and the condition beside it.
pub(super) fn prefix(text: &str) -> (String, Option<Condition>) {
    if text.ends_with('/') && texts::route_path(text).is_ok_and(|path| path == text) {
        return (text.to_owned(), None);
    }
    (folder(text), Some(Condition::of_path(format!("^{}", regex::escape(text)), false)))
}

/// Returns the path of a route for one path, whether it is for that alone, and the condition.
pub(super) fn exactly(text: &str) -> (String, bool, Option<Condition>) {
    if texts::route_path(text).is_ok_and(|path| path == text) {
        return (text.to_owned(), true, None);
    }
    (folder(text), false, Some(Condition::of_path(format!("^{}$", regex::escape(text)), false)))
}

/// Returns the longest folder in a text that a route can have.
fn folder(text: &str) -> String {
    let ends = text.match_indices('/').map(|(at, _)| at + 1).collect::<Vec<_>>();
    let mut folders = ends.into_iter().rev().map(|end| &text[..end]);
    let fine = |path: &&str| texts::route_path(path).is_ok_and(|ours| ours == **path);
    folders.find(fine).unwrap_or("/").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_of_nginx() {
        for (text, any_case, ours) in [
            ("^/a", false, Some("^/a")),
            ("\\.php$", true, Some("(?i)\\.php$")),
            ("^/a/.*", false, Some("(?-u)^/a/.*")),
            ("^/[^/]+$", true, Some("(?i-u)^/[^/]+$")),
            ("/\\.(?!ab)", false, Some("(?-u)/\\.(?:$|[^a]|a(?:$|[^b]))")),
            ("^/a(?!b)c", false, None),
            ("^/a(?!b|c)", false, None),
            ("^/(a)\\1", false, None),
            ("[a&&b]", false, None),
            ("[[a]", false, None),
            ("[[:alpha:]]", false, Some("[[:alpha:]]")),
            ("(", false, None),
        ] {
            assert_eq!(expression(text, any_case).as_deref(), ours, "{text}");
        }
    }

    #[test]
    fn whole_paths() {
        for (text, ours) in [
            ("^/a/(.*)$", "^/a/(.*)$"),
            ("^/a/(.*)", "^/a/(.*)"),
            ("^/a", "^/a.*$"),
            ("/a$", "^.*?/a$"),
            ("^", "^.*$"),
            ("(?i)a", "(?i)^.*?a.*$"),
            ("^/a|/b", "^.*?(?:^/a|/b).*$"),
            ("^/(a|b)/$", "^/(a|b)/$"),
        ] {
            assert_eq!(spanning(text), ours, "{text}");
        }
    }

    #[test]
    fn prefixes_are_texts() {
        let shown = |text: &str| {
            let (path, condition) = prefix(text);
            (path, condition.and_then(|one| one.matches).map(|(_, text)| text))
        };
        assert_eq!(shown("/a/"), ("/a/".to_owned(), None));
        assert_eq!(shown("/"), ("/".to_owned(), None));
        assert_eq!(shown("/v1"), ("/".to_owned(), Some("^/v1".to_owned())));
        assert_eq!(shown("/a/b.c"), ("/a/".to_owned(), Some("^/a/b\\.c".to_owned())));
    }
}
