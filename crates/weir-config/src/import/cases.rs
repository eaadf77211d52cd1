//! Conditions of other programs, as cases that routes can express: one host, one path, some
//! methods, fields.
//!
//! Called by dialects whose conditions are expressions. Bound: [`CASES_MAX`] cases of one
//! condition.

use super::access::Access;
use super::order::{covers_host, covers_path};
use super::route::{Condition, Route, Scheme};

/// Cases of one condition.
pub(super) const CASES_MAX: usize = 200;

/// The requests for which all of this is true.
#[derive(Debug, Clone, Default)]
pub(super) struct Case {
    /// None: all.
    scheme: Option<Scheme>,
    host: Option<String>,
    path: Option<String>,
    /// The path itself, without paths below it.
    pub(super) exact: bool,
    pub(super) methods: Vec<String>,
    pub(super) conditions: Vec<Condition>,
    /// Addresses of clients; true: all but these.
    clients: Option<(bool, Vec<String>)>,
    /// A condition that routes cannot express; Some(true): its negation.
    unsaid: Option<bool>,
    /// No request matches.
    impossible: bool,
}

/// The condition of one criterion.
#[derive(Debug, Clone)]
pub(super) enum Effect {
    Host(String),
    /// A prefix.
    Path(String),
    /// One path.
    Exactly(String),
    Methods(Vec<String>),
    Condition(Condition),
    Scheme(Scheme),
    /// Addresses of clients, one of them.
    Clients(Vec<String>),
    Always,
    /// A condition that routes cannot express.
    Unsaid,
}

/// One term of a condition.
#[derive(Debug, Clone)]
pub(super) struct Term {
    pub(super) not: bool,
    /// One of these.
    pub(super) any: Vec<Effect>,
}

impl Case {
    pub(super) fn path(&self) -> String {
        self.path.clone().unwrap_or_else(|| "/".to_owned())
    }

    /// Returns the case with an additional negated condition that routes cannot express: a rule
    /// that refuses its requests refuses all of these.
    pub(super) fn all_but_some(&self) -> Case {
        Case { unsaid: Some(true), ..self.clone() }
    }

    /// Returns a route for its requests that otherwise equals this one.
    pub(super) fn route(&self, base: Route) -> Route {
        Route {
            scheme: self.scheme,
            path: self.path(),
            host: self.host.clone().unwrap_or_else(|| "*".to_owned()),
            exact: self.exact,
            methods: self.methods.clone(),
            conditions: self.conditions.clone(),
            ..base
        }
    }

    /// Returns the access of a route whose rule refuses this case by addresses. Open: the case has
    /// no addresses, so all of its requests are refused. None: routes cannot express it.
    pub(super) fn access(&self) -> Option<Access> {
        if self.unsaid.is_some() {
            return None;
        }
        let access = self.clients.as_ref().map(|(is_rest, whom)| Access::without(whom, *is_rest));
        Some(access.unwrap_or_default()).filter(Access::fits)
    }

    /// Returns clients that it exempts; None: it covers only some clients, or routes cannot express
    /// it.
    pub(super) fn exempt(&self) -> Option<&[String]> {
        match (&self.clients, self.unsaid) {
            (None, None) => Some(&[]),
            (Some((true, whom)), None) => Some(whom),
            _ => None,
        }
    }

    fn says_something(&self) -> bool {
        let path = self.path.as_ref().is_some_and(|path| path != "/" || self.exact);
        path || self.scheme.is_some() || !self.methods.is_empty() || !self.conditions.is_empty()
    }

    /// Returns the case with one more effect.
    fn and(&self, effect: &Effect, not: bool) -> Case {
        let mut case = self.clone();
        match effect {
            Effect::Always => case.impossible |= not,
            Effect::Scheme(scheme) => {
                let scheme = if not { scheme.other() } else { *scheme };
                case.impossible |= case.scheme.is_some_and(|other| other != scheme);
                case.scheme = Some(scheme);
            }
            Effect::Clients(whom) => match &mut case.clients {
                None => case.clients = Some((not, whom.clone())),
                Some((true, others)) if not => others.extend_from_slice(whom),
                // The clients that are on both lists.
                Some(_) => case.unsaid = Some(case.unsaid.unwrap_or(false) || not),
            },
            Effect::Condition(condition) => {
                case.conditions.push(Condition { not: not != condition.not, ..condition.clone() });
            }
            // A negated condition is the stronger one to remember: it keeps all others out.
            _ if not => case.unsaid = Some(true),
            Effect::Unsaid => case.unsaid = Some(case.unsaid.unwrap_or(false)),
            Effect::Host(host) => match &case.host {
                Some(other) if covers_host(host, other) => {}
                Some(other) if !covers_host(other, host) => case.impossible = true,
                _ => case.host = Some(host.clone()),
            },
            Effect::Exactly(path) => {
                let fits = case.path.as_ref().is_none_or(|other| {
                    if case.exact { path == other } else { covers_path(other, path) }
                });
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

/// Returns the cases of `of` for which all of these are true; None: too many.
pub(super) fn and_all(of: Vec<Case>, terms: &[Term]) -> Option<Vec<Case>> {
    let mut cases = of;
    for term in terms {
        let with = |case: &Case| -> Vec<Case> {
            if term.not {
                // None of these terms.
                vec![term.any.iter().fold(case.clone(), |case, effect| case.and(effect, true))]
            } else {
                term.any.iter().map(|effect| case.and(effect, false)).collect()
            }
        };
        cases = cases
            .iter()
            .flat_map(with)
            .filter(|case| !case.impossible)
            .take(CASES_MAX + 1)
            .collect();
    }
    (cases.len() <= CASES_MAX).then_some(cases)
}

/// Returns the cases that routes can express, and whether others were left out.
pub(super) fn said(all: Vec<Case>) -> (Vec<Case>, bool) {
    let is_said = |case: &Case| case.unsaid.is_none() && case.clients.is_none();
    let (said, others): (Vec<Case>, Vec<Case>) = all.into_iter().partition(is_said);
    (said, !others.is_empty())
}

/// Returns the cases of a rule that redirects clients to TLS, whether it redirects more than in the
/// source, and whether others were left out. Requests that the source does not redirect by a
/// condition that routes cannot express are redirected as well, unless they use TLS.
pub(super) fn sent_to_tls(all: Vec<Case>) -> (Vec<Case>, bool, bool) {
    let is_wider = |case: &Case| {
        let is_rest = case.clients.as_ref().is_none_or(|(is_rest, _)| *is_rest);
        let has_rest = case.unsaid == Some(true) || case.unsaid.is_none() && case.clients.is_some();
        is_rest && has_rest && case.scheme != Some(Scheme::Https)
    };
    let (wider, others): (Vec<Case>, Vec<Case>) = all.into_iter().partition(is_wider);
    let (mut cases, lost) = said(others);
    let is_more = !wider.is_empty();
    cases.extend(wider.into_iter().map(|case| Case {
        scheme: Some(Scheme::Http),
        clients: None,
        unsaid: None,
        ..case
    }));
    (cases, is_more, lost)
}

/// Returns the cases of a rule that refuses, and whether others were left out. Conditions that
/// cannot be expressed are left out of a case, so that more is refused, unless nothing else
/// remains. Then a case that admits some clients (`not allowed`) refuses all, and one that keeps
/// some out (`bad`) refuses none.
pub(super) fn refused(all: Vec<Case>) -> (Vec<Case>, bool) {
    let refuses = |case: &Case| {
        let lets_in =
            |of: &Option<(bool, Vec<String>)>| of.as_ref().is_some_and(|(is_rest, _)| *is_rest);
        case.access().is_some()
            || case.says_something()
            || case.unsaid != Some(false)
            || lets_in(&case.clients)
    };
    let (kept, others): (Vec<Case>, Vec<Case>) = all.into_iter().partition(refuses);
    (kept, !others.is_empty())
}

#[cfg(test)]
mod tests {
    //! Proves: what cases express about addresses and schemes, and how a rule that refuses treats
    //! conditions that cannot be expressed. How: examples.

    use super::*;

    fn case(terms: &[(bool, Effect)]) -> Vec<Case> {
        let terms: Vec<Term> = terms
            .iter()
            .map(|(not, effect)| Term { not: *not, any: vec![effect.clone()] })
            .collect();
        and_all(vec![Case::default()], &terms).unwrap()
    }

    fn clients(whom: &str) -> Effect {
        Effect::Clients(vec![whom.to_owned()])
    }

    fn lines(case: &Case) -> Option<Vec<String>> {
        case.access().map(|access| {
            access.lines().map(|(word, whom)| format!("{word} {}", whom.join(" "))).collect()
        })
    }

    #[test]
    fn addresses() {
        assert_eq!(lines(&case(&[(false, clients("a"))])[0]).unwrap(), ["deny a"]);
        assert_eq!(lines(&case(&[(true, clients("a"))])[0]).unwrap(), ["allow a", "deny all"]);
        assert_eq!(
            lines(&case(&[(true, clients("a")), (true, clients("b"))])[0]).unwrap(),
            ["allow a b", "deny all"]
        );
        assert_eq!(lines(&case(&[])[0]).unwrap(), [""; 0]);
        for both in [
            [(true, clients("a")), (false, clients("b"))],
            [(false, clients("a")), (true, Effect::Unsaid)],
        ] {
            assert_eq!(lines(&case(&both)[0]), None);
        }
        assert!(said(case(&[(false, clients("a"))])).1, "routes don't go by addresses");
    }

    #[test]
    fn schemes() {
        let of = |terms: &[(bool, Effect)]| {
            case(terms).into_iter().map(|case| case.scheme).collect::<Vec<_>>()
        };
        let https = Effect::Scheme(Scheme::Https);
        assert_eq!(of(&[(true, https.clone())]), [Some(Scheme::Http)]);
        assert_eq!(of(&[(true, https.clone()), (false, https)]), [None; 0]);
    }

    #[test]
    fn what_sends_to_tls_sends_too_many_rather_than_too_few() {
        let path = || Effect::Path("/x".to_owned());
        let http = (true, Effect::Scheme(Scheme::Https));
        for rest in [path(), Effect::Unsaid, clients("a")] {
            let (cases, wider, lost) = sent_to_tls(case(&[http.clone(), (true, rest.clone())]));
            assert_eq!(
                (cases[0].scheme, cases[0].unsaid, wider, lost),
                (Some(Scheme::Http), None, true, false)
            );
            assert!(cases[0].clients.is_none());
            assert_eq!(sent_to_tls(case(&[(true, rest)])).0[0].scheme, Some(Scheme::Http));
        }
        let (cases, wider, lost) = sent_to_tls(case(&[http.clone(), (false, path())]));
        assert_eq!((cases.len(), wider, lost), (1, false, false));
        for some in [Effect::Unsaid, clients("a")] {
            let (cases, wider, lost) = sent_to_tls(case(&[http.clone(), (false, some)]));
            assert_eq!((cases.len(), wider, lost), (0, false, true));
        }
    }

    #[test]
    fn what_refuses_keeps_out_too_many_rather_than_too_few() {
        let kept = |terms: &[(bool, Effect)]| refused(case(terms)).0.len();
        // Bad clients, of which nothing else is known.
        assert_eq!(kept(&[(false, Effect::Unsaid)]), 0);
        assert_eq!(kept(&[(false, Effect::Unsaid), (false, clients("a"))]), 0);
        assert_eq!(kept(&[(false, Effect::Unsaid), (false, Effect::Path("/x".to_owned()))]), 1);
        // All but good clients.
        assert_eq!(kept(&[(true, Effect::Unsaid)]), 1);
        assert_eq!(kept(&[(false, Effect::Unsaid), (true, clients("a"))]), 1);
        assert_eq!(kept(&[(false, clients("a"))]), 1);
        let unknown = refused(vec![Case::default().all_but_some()]).0;
        assert!(unknown.len() == 1 && unknown[0].access().is_none(), "it closes");
    }
}
