//! What conditions of other programs ask for, as cases that routes can say: one host, one path, some methods, fields.
//!
//! Called by dialects whose conditions are expressions. Bound: [`CASES_MAX`] cases of one condition.

use super::draft::Condition;
use super::order::{covers_host, covers_path};

/// Cases of one condition.
pub(super) const CASES_MAX: usize = 200;

/// Requests that all of this is true of.
#[derive(Debug, Clone, Default)]
pub(super) struct Case {
    /// None: all.
    host: Option<String>,
    path: Option<String>,
    /// The path alone.
    pub(super) exact: bool,
    pub(super) methods: Vec<String>,
    pub(super) conditions: Vec<Condition>,
    /// Something that routes can't say; Some(true): that it is not so.
    unsaid: Option<bool>,
    /// No request is like this.
    impossible: bool,
}

/// What one criterion asks for.
#[derive(Debug, Clone)]
pub(super) enum Effect {
    Host(String),
    /// A prefix.
    Path(String),
    /// One path.
    Exactly(String),
    Methods(Vec<String>),
    Condition(Condition),
    Always,
    /// Something that routes can't say.
    Unsaid,
}

/// One word of a condition.
#[derive(Debug, Clone)]
pub(super) struct Term {
    pub(super) not: bool,
    /// One of these.
    pub(super) any: Vec<Effect>,
}

impl Case {
    pub(super) fn host(&self) -> String {
        self.host.clone().unwrap_or_else(|| "*".to_owned())
    }

    pub(super) fn path(&self) -> String {
        self.path.clone().unwrap_or_else(|| "/".to_owned())
    }

    fn says_something(&self) -> bool {
        let path = self.path.as_ref().is_some_and(|path| path != "/" || self.exact);
        path || !self.methods.is_empty() || !self.conditions.is_empty()
    }

    /// The same with one more.
    fn and(&self, effect: &Effect, not: bool) -> Case {
        let mut case = self.clone();
        match effect {
            Effect::Always => case.impossible |= not,
            Effect::Condition(condition) => {
                case.conditions.push(Condition { not: not != condition.not, ..condition.clone() });
            }
            // That something is not there is the stronger thing to keep in mind: it keeps out all others.
            _ if not => case.unsaid = Some(true),
            Effect::Unsaid => case.unsaid = Some(case.unsaid.unwrap_or(false)),
            Effect::Host(host) => match &case.host {
                Some(other) if covers_host(host, other) => {}
                Some(other) if !covers_host(other, host) => case.impossible = true,
                _ => case.host = Some(host.clone()),
            },
            Effect::Exactly(path) => {
                let fits = case
                    .path
                    .as_ref()
                    .is_none_or(|other| if case.exact { path == other } else { covers_path(other, path) });
                case.impossible |= !fits;
                (case.path, case.exact) = (Some(path.clone()), true);
            }
            Effect::Path(path) if case.exact => {
                case.impossible |= case.path.as_ref().is_none_or(|other| !covers_path(path, other));
            }
            Effect::Path(path) => match &case.path {
                Some(other) if covers_path(path, other) => {}
                Some(other) if !covers_path(other, path) => case.impossible = true,
                _ => case.path = Some(path.clone()),
            },
            Effect::Methods(methods) if case.methods.is_empty() => case.methods.clone_from(methods),
            Effect::Methods(methods) => {
                case.methods.retain(|method| methods.contains(method));
                case.impossible |= case.methods.is_empty();
            }
        }
        case
    }
}

/// The cases of `of` that all of these are true of; None: too many.
pub(super) fn and_all(of: Vec<Case>, terms: &[Term]) -> Option<Vec<Case>> {
    let mut cases = of;
    for term in terms {
        let with = |case: &Case| -> Vec<Case> {
            if term.not {
                // None of them.
                vec![term.any.iter().fold(case.clone(), |case, effect| case.and(effect, true))]
            } else {
                term.any.iter().map(|effect| case.and(effect, false)).collect()
            }
        };
        cases = cases.iter().flat_map(with).filter(|case| !case.impossible).take(CASES_MAX + 1).collect();
    }
    (cases.len() <= CASES_MAX).then_some(cases)
}

/// Those that routes can say, and whether there were others.
pub(super) fn said(all: Vec<Case>) -> (Vec<Case>, bool) {
    let (said, others): (Vec<Case>, Vec<Case>) = all.into_iter().partition(|case| case.unsaid.is_none());
    (said, !others.is_empty())
}

/// Those of a rule that refuses, and whether there were others. What can't be said is left out of a case, so that more is refused, unless
/// nothing else is there: then one that lets some in (`not allowed`) refuses all, and one that keeps some out (`bad`) refuses nobody.
pub(super) fn refused(all: Vec<Case>) -> (Vec<Case>, bool) {
    let refuses = |case: &Case| case.says_something() || case.unsaid != Some(false);
    let (kept, others): (Vec<Case>, Vec<Case>) = all.into_iter().partition(refuses);
    (kept, !others.is_empty())
}
