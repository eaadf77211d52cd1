//! The paths that matchers of Caddy see: those after `handle_path`, `uri` and `rewrite` in front of
//! them. weir's routes see the paths that clients request.

use super::super::cases::{Effect, Term};
use super::super::order::covers_path;

/// The changes to paths so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// The prefixes that may have been stripped, one of these; empty: none.
    taken: Vec<String>,
    /// Whether they were changed in a way that paths of routes cannot express.
    is_other: bool,
}

impl Seen {
    /// A prefix is stripped.
    pub(super) fn strip(&mut self, prefix: &str) {
        self.taken = self.prefixes().map(|taken| format!("{taken}{prefix}")).collect();
    }

    /// A prefix is stripped from paths that have it.
    pub(super) fn may_strip(&mut self, prefix: &str) {
        self.taken = self
            .prefixes()
            .flat_map(|taken| [format!("{taken}{prefix}"), taken.to_owned()])
            .collect();
    }

    pub(super) fn rewrite(&mut self) {
        self.is_other = true;
    }

    /// Returns the one prefix that was stripped from all paths, perhaps empty.
    pub(super) fn only(&self) -> Option<&str> {
        let mut all = self.prefixes();
        all.next().filter(|_| all.next().is_none() && !self.is_other)
    }

    fn prefixes(&self) -> impl Iterator<Item = &str> {
        let none = self.taken.is_empty().then_some("");
        self.taken.iter().map(String::as_str).chain(none)
    }

    /// Returns criteria by the requested paths. A criterion that cannot be expressed is taken as
    /// one that admits or refuses requests, by `refuses`.
    pub(super) fn asked(&self, terms: Vec<Term>, refuses: bool) -> Vec<Term> {
        terms.into_iter().map(|term| self.asked_one(term, refuses)).collect()
    }

    fn asked_one(&self, term: Term, refuses: bool) -> Term {
        let is_path = |effect: &Effect| matches!(effect, Effect::Path(_) | Effect::Exactly(_));
        if !term.any.iter().any(is_path) {
            return term;
        }
        if self.is_other {
            return Term { not: refuses, any: vec![Effect::Unsaid] };
        }
        let any = term.any.into_iter().flat_map(|effect| self.joined(effect)).collect();
        Term { any, ..term }
    }

    fn joined(&self, effect: Effect) -> Vec<Effect> {
        let whole = |taken: &str, path: &str| match path {
            "/" if !taken.is_empty() => taken.to_owned(),
            path => format!("{taken}{path}"),
        };
        let all = |path: &str| -> Vec<String> {
            // A path behind a prefix that may be missing has lost that prefix.
            let has_it = |taken: &&str| {
                self.taken.iter().any(|other| other != taken && is_below(other, taken, path))
            };
            self.prefixes().filter(|taken| !has_it(taken)).map(|taken| whole(taken, path)).collect()
        };
        match effect {
            Effect::Path(path) => all(&path).into_iter().map(Effect::Path).collect(),
            Effect::Exactly(path) => all(&path).into_iter().map(Effect::Exactly).collect(),
            other => vec![other],
        }
    }
}

/// Whether a path without `taken` is one from which `longer` would have been stripped.
fn is_below(longer: &str, taken: &str, path: &str) -> bool {
    longer.strip_prefix(taken).is_some_and(|rest| covers_path(rest, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(seen: &Seen, path: &str) -> Vec<String> {
        let terms =
            seen.asked(vec![Term { not: false, any: vec![Effect::Path(path.to_owned())] }], true);
        let shown = |effect: &Effect| match effect {
            Effect::Path(path) => path.clone(),
            other => format!("{} {other:?}", terms[0].not),
        };
        terms[0].any.iter().map(shown).collect()
    }

    #[test]
    fn paths_that_clients_ask_for() {
        let mut seen = Seen::default();
        assert_eq!(asked(&seen, "/x"), ["/x"]);
        seen.strip("/a");
        seen.strip("/b");
        assert_eq!(
            (asked(&seen, "/x"), asked(&seen, "/")),
            (vec!["/a/b/x".to_owned()], vec!["/a/b".to_owned()])
        );
        seen.may_strip("/c");
        assert_eq!(asked(&seen, "/x"), ["/a/b/c/x", "/a/b/x"]);
        assert_eq!((asked(&seen, "/c/x"), seen.only()), (vec!["/a/b/c/c/x".to_owned()], None));
        seen.rewrite();
        assert_eq!(asked(&seen, "/x"), ["true Unsaid"]);
    }
}
