//! Which requests must not be pipelined although their method is safe:
//! `nonidempotent METHOD MATCH`.
//!
//! Built by weir-config, called by the engine once for each safe request. Regular expressions run
//! in time linear in the target, which is at most a request line long. docs/connections.md.

use regex::bytes::Regex;

use super::rules::path::undo_escapes;

/// One line of the configuration.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Case-sensitive (RFC 9110 §9.1).
    pub method: String,
    /// The targets.
    pub target: TargetMatch,
}

/// How a rule matches the request target: path and query as they are forwarded, and without escapes
/// of letters, digits and `-._~`, which mean the same (RFC 3986 §6.2.2.2).
#[derive(Debug, Clone)]
pub enum TargetMatch {
    /// All targets.
    Any,
    /// Equal.
    Eq(String),
    /// Begins with.
    Prefix(String),
    /// Ends with.
    Suffix(String),
    /// Contains a match; anchor with `^` and `$`.
    Regex(Regex),
}

/// All rules of an upstream. The default has none, which costs nothing.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    rules: Vec<Rule>,
}

impl Rules {
    /// Rules in any order: one match is enough.
    pub fn new(rules: Vec<Rule>) -> Rules {
        Rules { rules }
    }

    /// Whether no rule exists.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether a rule says that this request must not be pipelined.
    #[inline]
    pub fn matches(&self, method: &[u8], target: &[u8]) -> bool {
        !self.rules.is_empty() && self.matches_one(method, target)
    }

    fn matches_one(&self, method: &[u8], target: &[u8]) -> bool {
        let mut mine = self.rules.iter().filter(|rule| rule.method.as_bytes() == method);
        // An unnecessary escape hides nothing.
        let plain = target.contains(&b'%').then(|| undo_escapes(target));
        mine.any(|rule| {
            rule.target.matches(target)
                || plain.as_ref().is_some_and(|plain| rule.target.matches(plain))
        })
    }
}

impl TargetMatch {
    /// Whether the target matches.
    pub fn matches(&self, target: &[u8]) -> bool {
        match self {
            TargetMatch::Any => true,
            TargetMatch::Eq(text) => target == text.as_bytes(),
            TargetMatch::Prefix(text) => target.starts_with(text.as_bytes()),
            TargetMatch::Suffix(text) => target.ends_with(text.as_bytes()),
            TargetMatch::Regex(regex) => regex.is_match(target),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: each kind of match, and that method and target must both fit. How: a table of
    //! examples.

    use super::*;

    fn rule(method: &str, target: TargetMatch) -> Rules {
        Rules::new(vec![Rule { method: method.to_owned(), target }])
    }

    #[test]
    fn each_kind_of_match() {
        let text = |text: &str| text.to_owned();
        for (target, yes, no) in [
            (TargetMatch::Any, vec!["/", "/x?y", "*", ""], vec![]),
            (TargetMatch::Eq(text("/a?b")), vec!["/a?b"], vec!["/a", "/a?bc", "/A?b", ""]),
            (
                TargetMatch::Prefix(text("/forum?post")),
                vec!["/forum?post", "/forum?post=1"],
                vec!["/forum?pos", "/x"],
            ),
            (TargetMatch::Suffix(text(".cgi")), vec!["/a.cgi", ".cgi"], vec!["/a.cgi?x", "/cgi"]),
            (
                TargetMatch::Regex(Regex::new("^/(buy|sell)/[0-9]+$").unwrap()),
                vec!["/buy/12"],
                vec!["/buy/", "/a/buy/1"],
            ),
        ] {
            let rules = rule("GET", target);
            for target in yes {
                assert!(rules.matches(b"GET", target.as_bytes()), "{rules:?} {target}");
                assert!(!rules.matches(b"HEAD", target.as_bytes()), "{rules:?} {target}");
                assert!(!rules.matches(b"get", target.as_bytes()), "{rules:?} {target}");
            }
            for target in no {
                assert!(!rules.matches(b"GET", target.as_bytes()), "{rules:?} {target}");
            }
        }
    }

    #[test]
    fn one_of_several_rules_is_enough() {
        let rules = Rules::new(vec![
            Rule { method: "GET".to_owned(), target: TargetMatch::Eq("/a".to_owned()) },
            Rule { method: "OPTIONS".to_owned(), target: TargetMatch::Any },
        ]);
        assert!(
            rules.matches(b"GET", b"/a")
                && rules.matches(b"OPTIONS", b"/b")
                && !rules.matches(b"GET", b"/b")
        );
    }

    #[test]
    fn targets_need_not_be_text() {
        let rules = rule("GET", TargetMatch::Regex(Regex::new(r"(?-u)\xff$").unwrap()));
        assert!(rules.matches(b"GET", b"/\xff"));
    }

    #[test]
    fn no_rules_match_nothing() {
        assert!(Rules::default().is_empty() && !Rules::default().matches(b"GET", b"/"));
    }
}
