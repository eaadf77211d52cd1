//! The requests that matchers of Caddy see: as earlier directives left them. weir's routes see
//! those that clients send.

use std::collections::BTreeMap;

use super::super::cases::Effect;
use super::super::route::Condition;
use super::matcher::{Test, path_matches, regex_matches, value_matches};
use super::pieces::Piece;

/// The changes to requests so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    /// The prefix that all paths have lost.
    taken: String,
    /// The prefix that all of them have got instead.
    given: String,
    /// Any other change of the path: an expression with its replacement.
    changed: Option<(String, String)>,
    /// The path that all of them have now.
    fixed: Option<String>,
    /// Fields, in lower case, with their values; None: unknown.
    fields: BTreeMap<String, Option<Vec<String>>>,
    /// Names of removed fields, with `*`; false: perhaps they are removed.
    gone: Vec<(String, bool)>,
}

impl Seen {
    /// Whether paths are as clients sent them.
    pub(super) fn has_same_path(&self) -> bool {
        self.taken.is_empty() && self.given.is_empty() && !self.has_other_path()
    }

    fn has_other_path(&self) -> bool {
        self.changed.is_some() || self.fixed.is_some()
    }

    /// Whether all of these paths have a prefix, as matchers see them.
    pub(super) fn is_below(&self, prefix: &str, pieces: &[Piece]) -> bool {
        let whole = format!("{}{prefix}/", self.taken).to_lowercase();
        let has_it = |piece: &Piece| piece.case.path().to_lowercase().starts_with(&whole);
        self.given.is_empty() && !self.has_other_path() && pieces.iter().all(has_it)
    }

    /// Whether no path has a prefix, as matchers see them.
    pub(super) fn is_apart_from(&self, prefix: &str) -> bool {
        let (given, prefix) = (self.given.to_lowercase(), prefix.to_lowercase());
        let is_related = format!("{given}/").starts_with(&prefix) || prefix.starts_with(&given);
        !self.has_other_path() && !is_related
    }

    /// A prefix is stripped from all paths. False: this cannot be expressed.
    pub(super) fn strip(&mut self, prefix: &str) -> bool {
        let rest = self.given.get(prefix.len()..).map(str::to_owned);
        if self.has_other_path() {
            return false;
        }
        if self.given.is_empty() {
            self.taken.push_str(prefix);
            return true;
        }
        let has_it = self.given.to_lowercase().starts_with(&prefix.to_lowercase());
        let rest = rest.filter(|rest| has_it && (rest.is_empty() || rest.starts_with('/')));
        match rest {
            Some(rest) => {
                self.given = rest;
                true
            }
            None => false,
        }
    }

    /// A prefix is put in front of all paths. False: this cannot be expressed.
    pub(super) fn put_in_front(&mut self, prefix: &str) -> bool {
        if self.has_other_path() {
            return false;
        }
        self.given.insert_str(0, prefix);
        true
    }

    /// Every request has this path.
    pub(super) fn fix(&mut self, path: &str) {
        let to = path.replace('$', "$$");
        self.changed = Some(("(?s)^.*$".to_owned(), to));
        self.fixed = Some(path.to_owned());
    }

    /// Paths are changed by an expression. False: this cannot be expressed.
    pub(super) fn change(&mut self, regex: &str, to: &str) -> bool {
        if !self.has_same_path() {
            return false;
        }
        self.changed = Some((regex.to_owned(), to.to_owned()));
        true
    }

    /// Returns the changes of paths as weir's `rewrite`.
    pub(super) fn rewrites(&self) -> Vec<(String, String)> {
        if let Some(changed) = &self.changed {
            return vec![changed.clone()];
        }
        if self.has_same_path() {
            return Vec::new();
        }
        let to = format!("{}/", self.given.replace('$', "$$"));
        let regex = if self.taken.is_empty() {
            "^/".to_owned()
        } else {
            format!("(?i)^{}(?:/|$)", regex::escape(&self.taken))
        };
        vec![(regex, to)]
    }

    /// A field has these values now; None: unknown ones.
    pub(super) fn set_field(&mut self, name: &str, values: Option<Vec<String>>) {
        if name.contains('*') {
            self.gone.push((name.to_ascii_lowercase(), values.is_some()));
        } else {
            self.fields.insert(name.to_ascii_lowercase(), values);
        }
    }

    /// Whether a field is as clients sent it.
    pub(super) fn has_same_field(&self, name: &str) -> bool {
        self.values(name).is_none()
    }

    fn values(&self, name: &str) -> Option<Option<Vec<String>>> {
        let name = name.to_ascii_lowercase();
        let fits = |(pattern, _): &&(String, bool)| {
            let pattern = regex::escape(pattern).replace("\\*", ".*");
            regex_matches(&format!("^{pattern}$"), &name).unwrap_or(true)
        };
        let gone = self.gone.iter().find(fits);
        match (self.fields.get(&name), gone) {
            (Some(values), None) => Some(values.clone()),
            (None, None) => None,
            (None, Some((_, true))) => Some(Some(Vec::new())),
            // The removal may come before or after another change.
            (_, Some(_)) => Some(None),
        }
    }

    /// Returns a test by the requests that clients send.
    pub(super) fn asked(&self, test: Test) -> Test {
        match test {
            Test::All(all) => Test::All(all.into_iter().map(|test| self.asked(test)).collect()),
            Test::Any(any) => Test::Any(any.into_iter().map(|test| self.asked(test)).collect()),
            Test::Not(inner) => Test::Not(Box::new(self.asked(*inner))),
            Test::Path(pattern) if pattern == "*" || pattern == "/*" => Test::Path(pattern),
            Test::Path(pattern) => self.path(pattern),
            Test::Regex(regex) => self.regex(regex),
            Test::Is(Effect::Condition(condition)) if condition.subject == "header" => {
                self.field(condition)
            }
            other => other,
        }
    }

    fn path(&self, pattern: String) -> Test {
        if let Some(fixed) = &self.fixed {
            return path_matches(&pattern, fixed).map_or(Test::Unsaid, Test::constant);
        }
        if self.has_same_path() {
            return Test::Path(pattern);
        }
        if self.changed.is_some() || !pattern.starts_with('/') {
            return Test::Unsaid;
        }
        let start = pattern.find(['*', '?', '[', '\\', '%', '{']).unwrap_or(pattern.len());
        let (lower, given) = (pattern[..start].to_lowercase(), self.given.to_lowercase());
        if lower.starts_with(&given) && pattern.is_char_boundary(given.len()) {
            return self.behind(&pattern[given.len()..]);
        }
        match given.starts_with(&lower) {
            true if pattern[start..] == *"*" => Test::constant(true),
            true => Test::Unsaid,
            false => Test::constant(false),
        }
    }

    /// Returns the test for a pattern of what follows the prefix.
    fn behind(&self, rest: &str) -> Test {
        let taken = &self.taken;
        match rest {
            "*" | "/*" => Test::constant(true),
            "" | "/" if !taken.is_empty() => {
                Test::Any(vec![Test::Path(taken.clone()), Test::Path(format!("{taken}/"))])
            }
            "" => Test::constant(false),
            rest if rest.starts_with('/') => Test::Path(format!("{taken}{rest}")),
            rest if rest.starts_with(['*', '?', '[', '\\', '%', '{']) => Test::Unsaid,
            _ => Test::constant(false),
        }
    }

    fn regex(&self, regex: String) -> Test {
        if let Some(fixed) = &self.fixed {
            return regex_matches(&regex, fixed).map_or(Test::Unsaid, Test::constant);
        }
        if self.has_same_path() {
            return Test::Regex(regex);
        }
        let rest = regex.strip_prefix("^/").filter(|rest| !rest.contains('|'));
        match rest.filter(|rest| !rest.starts_with(['*', '+', '?', '{'])) {
            Some(rest) if !self.has_other_path() && self.given.is_empty() => {
                Test::Regex(format!("^(?i:{})/{rest}", regex::escape(&self.taken)))
            }
            _ => Test::Unsaid,
        }
    }

    fn field(&self, condition: Condition) -> Test {
        match self.values(&condition.name) {
            None => Test::Is(Effect::Condition(condition)),
            Some(None) => Test::Unsaid,
            Some(Some(values)) => {
                let all: Option<Vec<bool>> = values
                    .iter()
                    .map(|value| value_matches(condition.matches.as_ref(), value))
                    .collect();
                all.map_or(Test::Unsaid, |all| Test::constant(all.contains(&true) != condition.not))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(seen: &Seen, pattern: &str) -> String {
        match seen.asked(Test::Path(pattern.to_owned())) {
            Test::Path(path) => path,
            Test::Any(any) if !any.is_empty() => format!("any of {}", any.len()),
            Test::Unsaid => "unsaid".to_owned(),
            other => if other.is_always() { "always" } else { "never" }.to_owned(),
        }
    }

    #[test]
    fn paths_that_clients_ask_for() {
        let mut seen = Seen::default();
        assert_eq!(path(&seen, "/x"), "/x");
        assert!(seen.strip("/a") && seen.strip("/b"));
        assert_eq!(
            [path(&seen, "/x"), path(&seen, "/x*"), path(&seen, "/"), path(&seen, "*.x")],
            ["/a/b/x", "/a/b/x*", "any of 2", "unsaid"]
        );
        assert_eq!(seen.rewrites(), [("(?i)^/a/b(?:/|$)".to_owned(), "/".to_owned())]);
        assert!(seen.put_in_front("/new"));
        assert_eq!(
            [path(&seen, "/New/x"), path(&seen, "/new/*"), path(&seen, "/n*"), path(&seen, "/y/*")],
            ["/a/b/x", "always", "always", "never"]
        );
        assert_eq!(seen.rewrites()[0].1, "/new/");
        assert!(!seen.change("x", "y"));
        assert!(seen.is_apart_from("/x") && !seen.is_apart_from("/N"));
        seen.fix("/f");
        assert_eq!([path(&seen, "/f"), path(&seen, "/x")], ["always", "never"]);
        let mut seen = Seen::default();
        assert!(seen.change("x", "y") && !seen.strip("/a"));
        assert_eq!(path(&seen, "/x"), "unsaid");
    }

    #[test]
    fn fields_that_clients_send() {
        let mut seen = Seen::default();
        let is = |seen: &Seen, value: &str| {
            let condition = Condition {
                subject: "header",
                name: "X-Role".to_owned(),
                matches: Some(("eq", value.to_owned())),
                not: false,
            };
            match seen.asked(Test::Is(Effect::Condition(condition))) {
                Test::Is(_) => "asked",
                Test::Unsaid => "unsaid",
                test => {
                    if test.is_always() {
                        "always"
                    } else {
                        "never"
                    }
                }
            }
        };
        assert_eq!(is(&seen, "a"), "asked");
        seen.set_field("x-role", Some(vec!["a".to_owned()]));
        assert_eq!([is(&seen, "a"), is(&seen, "b")], ["always", "never"]);
        seen.set_field("x-role", None);
        assert_eq!(is(&seen, "a"), "unsaid");
        let mut seen = Seen::default();
        seen.set_field("X-*", Some(Vec::new()));
        assert_eq!(is(&seen, "a"), "never");
    }
}
