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
    /// Requests that it leaves out, each with all that one of these says. None: its dialect does
    /// not read this, so that such a condition is one that routes cannot express.
    pub(super) except: Option<Vec<Effect>>,
    /// No request matches.
    impossible: bool,
}

/// The condition of one criterion.
#[derive(Debug, Clone)]
pub(super) enum Effect {
    Host(String),
    /// A prefix of whole segments.
    Path(String),
    /// The first characters of the path.
    Prefix(String),
    /// One path.
    Exactly(String),
    Methods(Vec<String>),
    Condition(Condition),
    Scheme(Scheme),
    /// Addresses of clients, one of them.
    Clients(Vec<String>),
    /// All of these.
    All(Vec<Effect>),
    /// Some requests of this effect; routes cannot express which.
    Among(Box<Effect>),
    Always,
    Never,
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
    /// Returns all requests, for a dialect that reads [`Case::except`].
    pub(super) fn all() -> Case {
        Case { except: Some(Vec::new()), ..Case::default() }
    }

    /// Returns the requests of an effect.
    pub(super) fn of(effect: &Effect) -> Case {
        Case::all().and(effect, false)
    }

    /// Whether routes can express it only in part.
    pub(super) fn is_vague(&self) -> bool {
        self.unsaid.is_some()
    }

    /// Returns the addresses of its clients; true: it has all others.
    pub(super) fn clients(&self) -> Option<(bool, &[String])> {
        self.clients.as_ref().map(|(is_rest, whom)| (*is_rest, &whom[..]))
    }

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

    /// Returns the access of a route for the clients of this case alone; None: as with
    /// [`Case::access`].
    pub(super) fn own_access(&self) -> Option<Access> {
        if self.unsaid.is_some() {
            return None;
        }
        let access = self.clients.as_ref().map(|(is_rest, whom)| Access::without(whom, !is_rest));
        Some(access.unwrap_or_default()).filter(Access::fits)
    }

    /// Returns the case for all clients, and without what routes cannot express.
    pub(super) fn widest(&self) -> Case {
        Case { clients: None, unsaid: None, ..self.clone() }
    }

    /// Returns clients that it exempts; None: it covers only some clients, or routes cannot express
    /// it.
    pub(super) fn exempt(&self) -> Option<&[String]> {
        if self.except.as_ref().is_some_and(|except| !except.is_empty()) {
            return None;
        }
        match (&self.clients, self.unsaid) {
            (None, None) => Some(&[]),
            (Some((true, whom)), None) => Some(whom),
            _ => None,
        }
    }

    /// Returns the case with one more effect.
    fn and(&self, effect: &Effect, not: bool) -> Case {
        let mut case = self.clone();
        match effect {
            Effect::Always => case.impossible |= not,
            Effect::Never => case.impossible |= !not,
            Effect::All(all) if !not => {
                return all.iter().fold(case, |case, effect| case.and(effect, false));
            }
            Effect::Among(wide) if !not => {
                case = case.and(wide, false);
                case.unsaid = Some(case.unsaid.unwrap_or(false));
            }
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
                case.meet(Condition { not: not != condition.not, ..condition.clone() });
            }
            Effect::Path(path) | Effect::Prefix(path) | Effect::Exactly(path) if not => {
                let end = match effect {
                    Effect::Exactly(_) => "$",
                    Effect::Path(path) if !path.ends_with('/') => "(/|$)",
                    _ => "",
                };
                case.meet(Condition::of_path(format!("^{}{end}", regex::escape(path)), true));
            }
            Effect::Prefix(path) => {
                let folder = path.rfind('/').map_or("/", |end| &path[..=end]);
                case = case.and(&Effect::Path(folder.to_owned()), false);
                if folder != path {
                    case.meet(Condition::of_path(format!("^{}", regex::escape(path)), false));
                }
            }
            Effect::Host(host) if not && case.host.as_ref() == Some(host) => case.impossible = true,
            Effect::Methods(methods) if not && !case.methods.is_empty() => {
                case.methods.retain(|method| !methods.contains(method));
                case.impossible |= case.methods.is_empty();
            }
            Effect::Host(_) | Effect::Methods(_) | Effect::All(_)
                if not && case.except.is_some() =>
            {
                case.except.get_or_insert_default().push(effect.clone());
            }
            // A negated condition is the stronger one to remember: it keeps all others out.
            _ if not => case.unsaid = Some(true),
            Effect::Unsaid | Effect::All(_) | Effect::Among(_) => {
                case.unsaid = Some(case.unsaid.unwrap_or(false));
            }
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

    /// Adds a condition.
    fn meet(&mut self, condition: Condition) {
        let of = |one: &Condition| (one.subject, one.name.clone(), one.matches.clone());
        match self.conditions.iter().find(|other| of(other) == of(&condition)) {
            Some(other) => self.impossible |= other.not != condition.not,
            None => self.conditions.push(condition),
        }
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
    }

    #[test]
    fn paths() {
        let shown = |terms: &[(bool, Effect)]| -> Vec<String> {
            let of = |case: Case| {
                let conditions = case.conditions.iter().map(|one| {
                    let text = one.matches.as_ref().map_or("", |(_, text)| text);
                    format!(" {}{text}", if one.not { "!" } else { "" })
                });
                let conditions: String = conditions.collect();
                format!("{}{conditions}", case.path())
            };
            case(terms).into_iter().map(of).collect()
        };
        let prefix = |path: &str| Effect::Prefix(path.to_owned());
        assert_eq!(shown(&[(false, prefix("/a/b"))]), ["/a/ ^/a/b"]);
        assert_eq!(shown(&[(false, prefix("/a/"))]), ["/a/"]);
        assert_eq!(shown(&[(true, prefix("/a."))]), [r"/ !^/a\."]);
        assert_eq!(shown(&[(true, Effect::Path("/a".to_owned()))]), ["/ !^/a(/|$)"]);
        assert_eq!(shown(&[(true, Effect::Exactly("/a".to_owned()))]), ["/ !^/a$"]);
        assert_eq!(shown(&[(true, prefix("/a")), (false, prefix("/a"))]), [""; 0]);
        assert_eq!(shown(&[(false, Effect::Never)]), [""; 0]);
        assert_eq!(shown(&[(true, Effect::Never)]), ["/"]);
    }

    #[test]
    fn what_is_left_out() {
        let host = Effect::Host("a".to_owned());
        let term = [Term { not: true, any: vec![host.clone()] }];
        let left = and_all(vec![Case::all()], &term).unwrap();
        assert!(left[0].except.as_ref().is_some_and(|all| all.len() == 1) && !left[0].is_vague());
        assert!(left[0].exempt().is_none(), "a limit cannot leave requests out");
        assert!(case(&[(true, host)])[0].is_vague(), "for a dialect that does not read it");
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
}
