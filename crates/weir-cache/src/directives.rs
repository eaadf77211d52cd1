//! Cache-Control of responses and requests (RFC 9111 §5.2; RFC 5861; RFC 8246).
//!
//! Malformed text never extends the life of a response. A forbidding directive also counts if its
//! argument or the text behind it is malformed, a permitting one only if it is exact, and an
//! unreadable lifetime is 0. Of several different lifetimes the smallest counts.

use weir_http::is_token;

use crate::list::{DELTA_MAX, delta_seconds, members};

/// A directive of a response that is present or absent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs)] // each variant is the directive of that name
pub enum Directive {
    NoStore,
    NoCache,
    Private,
    MustRevalidate,
    ProxyRevalidate,
    MustUnderstand,
    Public,
    Immutable,
    MaxAge,
    SMaxage,
    StaleWhileRevalidate,
    StaleIfError,
}

use Directive::{
    Immutable, MaxAge, MustRevalidate, MustUnderstand, NoCache, NoStore, Private, ProxyRevalidate,
    Public, SMaxage, StaleIfError, StaleWhileRevalidate,
};

const NAMES: [(&[u8], Directive); 12] = [
    (b"no-store", NoStore),
    (b"no-cache", NoCache),
    (b"private", Private),
    (b"must-revalidate", MustRevalidate),
    (b"proxy-revalidate", ProxyRevalidate),
    (b"must-understand", MustUnderstand),
    (b"public", Public),
    (b"immutable", Immutable),
    (b"max-age", MaxAge),
    (b"s-maxage", SMaxage),
    (b"stale-while-revalidate", StaleWhileRevalidate),
    (b"stale-if-error", StaleIfError),
];

impl Directive {
    /// Returns all directives.
    pub fn all() -> impl Iterator<Item = Self> {
        NAMES.iter().map(|(_, directive)| *directive)
    }

    /// Returns the directive with this name, in any case.
    pub fn of(name: &[u8]) -> Option<Self> {
        NAMES
            .iter()
            .find(|(text, _)| text.eq_ignore_ascii_case(name))
            .map(|(_, directive)| *directive)
    }

    /// Returns its name in lower case.
    pub fn name(self) -> &'static [u8] {
        NAMES[self as usize].0
    }

    /// It has an argument in seconds.
    pub(crate) fn has_seconds(self) -> bool {
        matches!(self, MaxAge | SMaxage | StaleWhileRevalidate | StaleIfError)
    }

    /// It permits something that a cache must not do otherwise.
    pub(crate) fn permits(self) -> bool {
        matches!(self, Public | Immutable | MustUnderstand)
    }
}

/// Some of the directives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirectiveSet(u16);

impl DirectiveSet {
    /// Returns the directives of a list.
    pub fn of(directives: &[Directive]) -> Self {
        let mut set = Self::default();
        directives.iter().for_each(|directive| set.insert(*directive));
        set
    }

    /// Whether it contains the directive.
    pub fn has(self, directive: Directive) -> bool {
        self.0 & 1 << directive as u8 != 0
    }

    /// Whether it contains one of these.
    pub fn has_any(self, others: &[Directive]) -> bool {
        others.iter().any(|other| self.has(*other))
    }

    /// Adds a directive.
    pub fn insert(&mut self, directive: Directive) {
        self.0 |= 1 << directive as u8;
    }

    pub(crate) fn remove(&mut self, directive: Directive) {
        self.0 &= !(1 << directive as u8);
    }
}

/// The directives of a response. All times are seconds up to [`DELTA_MAX`]; None: absent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AnswerDirectives {
    /// Those present, including those with seconds.
    pub set: DirectiveSet,
    /// `max-age`.
    pub max_age_s: Option<u32>,
    /// `s-maxage`.
    pub s_maxage_s: Option<u32>,
    /// `stale-while-revalidate` (RFC 5861 §3).
    pub stale_while_revalidate_s: Option<u32>,
    /// `stale-if-error` (RFC 5861 §4).
    pub stale_if_error_s: Option<u32>,
}

impl AnswerDirectives {
    /// Adds the directives of one line of Cache-Control. Those in `ignored` count as absent.
    pub fn add_line(&mut self, line: &[u8], ignored: DirectiveSet) {
        for member in members(line) {
            let (name, argument) = split(member);
            let Some(directive) = Directive::of(name).filter(|directive| !ignored.has(*directive))
            else {
                continue;
            };
            if directive.has_seconds() {
                self.shorten(directive, argument.seconds().unwrap_or(0));
            } else if argument == Argument::None || !directive.permits() {
                self.set.insert(directive);
            }
        }
    }

    /// Keeps the smaller of the earlier value and this one.
    fn shorten(&mut self, directive: Directive, seconds: u32) {
        let smaller = self.place(directive).map_or(seconds, |before| before.min(seconds));
        self.put_seconds(directive, smaller);
    }

    /// Replaces the earlier value.
    pub(crate) fn put_seconds(&mut self, directive: Directive, seconds: u32) {
        self.set.insert(directive);
        if let Some(place) = self.place_mut(directive) {
            *place = Some(seconds);
        }
    }

    /// Removes the directive, as if it had been absent.
    pub(crate) fn take_back(&mut self, directive: Directive) {
        self.set.remove(directive);
        if let Some(place) = self.place_mut(directive) {
            *place = None;
        }
    }

    fn place(&mut self, directive: Directive) -> Option<u32> {
        self.place_mut(directive).and_then(|place| *place)
    }

    fn place_mut(&mut self, directive: Directive) -> Option<&mut Option<u32>> {
        match directive {
            MaxAge => Some(&mut self.max_age_s),
            SMaxage => Some(&mut self.s_maxage_s),
            StaleWhileRevalidate => Some(&mut self.stale_while_revalidate_s),
            StaleIfError => Some(&mut self.stale_if_error_s),
            _ => None,
        }
    }

    /// Stale responses may not be used, whatever other directives say: must-revalidate,
    /// proxy-revalidate, and s-maxage, which implies proxy-revalidate (RFC 9111 §5.2.2.10);
    /// no-cache, which needs validation even while fresh.
    pub fn forbids_stale(&self) -> bool {
        self.set.has_any(&[MustRevalidate, ProxyRevalidate, NoCache, SMaxage])
    }
}

/// The directives of a request (RFC 9111 §5.2.1). All times are seconds up to [`DELTA_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestDirectives {
    /// A stored response is to be validated first.
    pub no_cache: bool,
    /// The response is not to be stored.
    pub no_store: bool,
    /// No server is to be contacted: 504 when nothing suitable is stored.
    pub only_if_cached: bool,
    /// At most this old.
    pub max_age_s: Option<u32>,
    /// Stale for at most this long; [`DELTA_MAX`] without an argument.
    pub max_stale_s: Option<u32>,
    /// Fresh for at least this long.
    pub min_fresh_s: Option<u32>,
}

impl RequestDirectives {
    /// Adds the directives of one line of Cache-Control. An unreadable `max-age` is 0, other
    /// unreadable numbers count as absent.
    pub fn add_line(&mut self, line: &[u8]) {
        let smaller = |a: Option<u32>, b: u32| Some(a.map_or(b, |a| a.min(b)));
        for member in members(line) {
            let (name, argument) = split(member);
            let is = |text: &[u8]| name.eq_ignore_ascii_case(text);
            if is(b"no-cache") {
                self.no_cache = true;
            } else if is(b"no-store") {
                self.no_store = true;
            } else if is(b"only-if-cached") {
                self.only_if_cached = true;
            } else if is(b"max-age") {
                self.max_age_s = smaller(self.max_age_s, argument.seconds().unwrap_or(0));
            } else if is(b"max-stale") {
                let seconds =
                    if argument == Argument::None { Some(DELTA_MAX) } else { argument.seconds() };
                self.max_stale_s =
                    seconds.map_or(self.max_stale_s, |seconds| smaller(self.max_stale_s, seconds));
            } else if is(b"min-fresh") {
                let seconds = argument.seconds().unwrap_or(0);
                self.min_fresh_s =
                    Some(self.min_fresh_s.map_or(seconds, |before| before.max(seconds)));
            }
        }
    }
}

/// The text behind the name of a directive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Argument<'a> {
    None,
    /// A token, or the text between quotes.
    Text(&'a [u8]),
    /// Neither: nothing, blanks around `=`, another separator.
    Malformed,
}

impl Argument<'_> {
    fn seconds(self) -> Option<u32> {
        match self {
            Self::Text(text) => delta_seconds(text),
            Self::None | Self::Malformed => None,
        }
    }
}

/// Returns name and argument of a directive. The name is the token at the beginning, even if the
/// text behind it is malformed: `private; max-age=60` means private.
fn split(member: &[u8]) -> (&[u8], Argument<'_>) {
    let end = member.iter().position(|byte| !is_token(&[*byte])).unwrap_or(member.len());
    let (name, rest) = member.split_at(end);
    let argument = match rest {
        [] => Argument::None,
        [b'=', b'"', text @ .., b'"'] => Argument::Text(text),
        [b'=', text @ ..] if is_token(text) => Argument::Text(text),
        _ => Argument::Malformed,
    };
    (name, argument)
}

#[cfg(test)]
mod tests;
