//! A route of an import, and the reasons for which the option table refuses it. Made by the
//! dialects, kept by `draft`.

use weir_proxy::request::rules::path::Replacement;

use super::access::Access;
use super::tree::Place;
use crate::compile::unseen;
use crate::texts;

/// The target of a route.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum To {
    /// Nowhere: 503, because what served it could not be carried over.
    #[default]
    Closed,
    /// Nowhere: 403, because it was for some clients only, and weir cannot tell which.
    Denied,
    /// Nowhere: 404, as in the source.
    Nothing,
    /// An index of [`Draft::upstreams`](super::draft::Draft::upstreams).
    Upstream(usize),
    /// An index of [`Draft::answers`](super::draft::Draft::answers).
    Answer(usize),
}

/// The scheme of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scheme {
    /// Without TLS.
    Http,
    /// With it.
    Https,
}

impl To {
    /// Whether weir rejects its requests.
    pub(super) fn is_closed(self) -> bool {
        matches!(self, To::Closed | To::Denied | To::Nothing)
    }
}

impl Scheme {
    pub(super) const ALL: [Scheme; 2] = [Scheme::Http, Scheme::Https];

    /// Returns the word as it is written.
    pub(super) fn word(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    /// Returns the scheme of clients with TLS, or without.
    pub(super) fn of(over_tls: bool) -> Scheme {
        if over_tls { Scheme::Https } else { Scheme::Http }
    }

    pub(super) fn other(self) -> Scheme {
        Scheme::of(self == Scheme::Http)
    }
}

/// A route.
#[derive(Debug, Clone, Default)]
pub(super) struct Route {
    pub(super) group: usize,
    pub(super) place: Place,
    pub(super) what: String,
    /// Only for clients of these, indices of [`Draft::listens`](super::draft::Draft::listens);
    /// none: of all listeners of its group.
    pub(super) listens: Vec<usize>,
    /// Only for clients of listeners with TLS, or without; None: both.
    pub(super) scheme: Option<Scheme>,
    pub(super) host: String,
    pub(super) path: String,
    /// The path alone, without paths below it.
    pub(super) exact: bool,
    pub(super) methods: Vec<String>,
    pub(super) conditions: Vec<Condition>,
    /// The clients that it accepts.
    pub(super) access: Access,
    pub(super) to: To,
    pub(super) strip: Option<String>,
    pub(super) rewrites: Vec<(String, String)>,
    /// The Host that servers see.
    pub(super) server_host: Option<String>,
    pub(super) request: Vec<Edit>,
    pub(super) answer: Vec<Edit>,
    /// Options of `compress`, as they are written; None: no compression.
    pub(super) compress: Option<Vec<String>>,
    /// Options of `cache`, as they are written; None: nothing is stored.
    pub(super) cache: Option<Vec<String>>,
    /// `request-buffering`, if it is set.
    pub(super) buffering: Option<&'static str>,
}

/// The subject of a condition that compares the decoded path with a `regex`.
pub(super) const PATH: &str = "path";

/// A further condition for requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Condition {
    /// `header`, `query`, `cookie` or [`PATH`].
    pub(super) subject: &'static str,
    /// Empty with [`PATH`].
    pub(super) name: String,
    /// `eq` and so on, with its text; None: presence is enough.
    pub(super) matches: Option<(&'static str, String)>,
    pub(super) not: bool,
}

impl Condition {
    /// Returns the condition that an expression matches the decoded path, or that it does not.
    pub(super) fn of_path(regex: String, not: bool) -> Condition {
        let (name, matches) = (String::new(), Some(("regex", regex)));
        Condition { subject: PATH, name, matches, not }
    }
}

/// A change of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Edit {
    /// `set`, `add` or `remove`.
    pub(super) verb: &'static str,
    pub(super) name: String,
    /// Empty with `remove`.
    pub(super) value: String,
}

impl Route {
    /// Returns why the table refuses it.
    pub(super) fn refused(&self) -> Option<String> {
        let mut why = match (texts::host_pattern(&self.host), texts::route_path(&self.path)) {
            (Err(why), _) | (_, Err(why)) => Some(why),
            _ => None,
        };
        why = why.or_else(|| self.methods.iter().find_map(|method| texts::method(method).err()));
        why = why.or_else(|| self.conditions.iter().find_map(refused));
        why = why
            .or_else(|| self.server_host.as_ref().and_then(|host| texts::probe_host(host).err()));
        why.or_else(|| self.rewrites.iter().find_map(|(regex, to)| refused_rewrite(regex, to)))
    }

    /// Whether a later one for clients of the same listeners gets no requests.
    pub(super) fn hides(&self, later: &Route) -> bool {
        // A route with methods comes before one without.
        let methods = self.methods.is_empty() == later.methods.is_empty()
            && later.methods.iter().all(|one| self.methods.contains(one));
        let place = |route: &Route| (route.host.clone(), route.path.clone(), route.exact);
        place(self) == place(later) && self.conditions == later.conditions && methods
    }

    /// Whether requests have the same fate.
    pub(super) fn does_the_same(&self, other: &Route) -> bool {
        (self.group, self.to, &self.access) == (other.group, other.to, &other.access)
            && (&self.strip, &self.rewrites, &self.server_host)
                == (&other.strip, &other.rewrites, &other.server_host)
            && (&self.request, &self.answer, &self.compress)
                == (&other.request, &other.answer, &other.compress)
            && (&self.cache, self.buffering) == (&other.cache, other.buffering)
    }

    /// Whether it takes all requests of its host and scheme.
    pub(super) fn takes_all(&self) -> bool {
        self.path == "/" && !self.exact && self.methods.is_empty() && self.conditions.is_empty()
    }
}

/// Returns why the table refuses a condition.
pub(super) fn refused(condition: &Condition) -> Option<String> {
    let name = match condition.subject {
        PATH => None,
        "header" => unseen(&condition.name),
        "cookie" => texts::cookie_name(&condition.name).err(),
        _ => texts::route::name(&condition.name).err(),
    };
    let value = condition.matches.as_ref().and_then(|(kind, text)| match *kind {
        "regex" => texts::regex(text).err(),
        _ => texts::route::value(text).err(),
    });
    name.or(value)
}

fn refused_rewrite(regex: &str, to: &str) -> Option<String> {
    match regex::bytes::Regex::new(regex) {
        Ok(compiled) => Replacement::compile(to, compiled.captures_len() - 1).err(),
        Err(_) => texts::regex(regex).err(),
    }
}
