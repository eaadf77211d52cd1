//! Cache-Control of answers and requests (RFC 9111 §5.2; RFC 5861; RFC 8246).
//!
//! Broken text never makes an answer last longer: what forbids counts also where its argument or what follows it is malformed, what
//! permits only where it is exact, and a lifetime that can't be read is 0. Of several different lifetimes the smallest counts.

use weir_http::is_token;

use crate::list::{DELTA_MAX, delta_seconds, members};

/// A directive of an answer that is there or not.
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
    Immutable, MaxAge, MustRevalidate, MustUnderstand, NoCache, NoStore, Private, ProxyRevalidate, Public, SMaxage,
    StaleIfError, StaleWhileRevalidate,
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
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        NAMES.iter().map(|(_, directive)| *directive)
    }

    /// The directive of this name, whatever its case.
    pub fn of(name: &[u8]) -> Option<Self> {
        NAMES.iter().find(|(text, _)| text.eq_ignore_ascii_case(name)).map(|(_, directive)| *directive)
    }

    /// Its name in lower case.
    pub fn name(self) -> &'static [u8] {
        NAMES[self as usize].0
    }

    /// It has an argument in seconds.
    pub(crate) fn has_seconds(self) -> bool {
        matches!(self, MaxAge | SMaxage | StaleWhileRevalidate | StaleIfError)
    }

    /// It lets a cache do what it must not do otherwise.
    pub(crate) fn permits(self) -> bool {
        matches!(self, Public | Immutable | MustUnderstand)
    }
}

/// Some of the directives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirectiveSet(u16);

impl DirectiveSet {
    /// Those of a list.
    pub fn of(directives: &[Directive]) -> Self {
        let mut set = Self::default();
        directives.iter().for_each(|directive| set.insert(*directive));
        set
    }

    /// Is it one of them?
    pub fn has(self, directive: Directive) -> bool {
        self.0 & 1 << directive as u8 != 0
    }

    /// One of these is there, too.
    pub fn has_any(self, others: &[Directive]) -> bool {
        others.iter().any(|other| self.has(*other))
    }

    /// Adds one.
    pub fn insert(&mut self, directive: Directive) {
        self.0 |= 1 << directive as u8;
    }

    pub(crate) fn remove(&mut self, directive: Directive) {
        self.0 &= !(1 << directive as u8);
    }
}

/// What an answer says to caches. All times are seconds up to [`DELTA_MAX`]; None: not said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AnswerDirectives {
    /// What is there, those with seconds included.
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
    /// Adds what one line of Cache-Control says. Directives of `ignored` count as not there.
    pub fn add_line(&mut self, line: &[u8], ignored: DirectiveSet) {
        for member in members(line) {
            let (name, argument) = split(member);
            let Some(directive) = Directive::of(name).filter(|directive| !ignored.has(*directive)) else { continue };
            if directive.has_seconds() {
                self.shorten(directive, argument.seconds().unwrap_or(0));
            } else if argument == Argument::None || !directive.permits() {
                self.set.insert(directive);
            }
        }
    }

    /// The smaller one of what was said and this.
    fn shorten(&mut self, directive: Directive, seconds: u32) {
        let smaller = self.place(directive).map_or(seconds, |before| before.min(seconds));
        self.put_seconds(directive, smaller);
    }

    /// In place of what was said before.
    pub(crate) fn put_seconds(&mut self, directive: Directive, seconds: u32) {
        self.set.insert(directive);
        if let Some(place) = self.place_mut(directive) {
            *place = Some(seconds);
        }
    }

    /// As if it had not been said.
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

    /// Stale answers may not be used, whatever else is said: must-revalidate, proxy-revalidate, and s-maxage, which means
    /// proxy-revalidate, too (RFC 9111 §5.2.2.10); no-cache, which needs validation also while it is fresh.
    pub fn forbids_stale(&self) -> bool {
        self.set.has_any(&[MustRevalidate, ProxyRevalidate, NoCache, SMaxage])
    }
}

/// What a request says to caches (RFC 9111 §5.2.1). All times are seconds up to [`DELTA_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestDirectives {
    /// A stored answer is to be validated first.
    pub no_cache: bool,
    /// The answer is not to be stored.
    pub no_store: bool,
    /// Nobody is to be asked: 504 when nothing suitable is stored.
    pub only_if_cached: bool,
    /// At most this old.
    pub max_age_s: Option<u32>,
    /// Stale for at most this long; [`DELTA_MAX`] where it has no argument.
    pub max_stale_s: Option<u32>,
    /// Fresh for at least as long.
    pub min_fresh_s: Option<u32>,
}

impl RequestDirectives {
    /// Adds what one line of Cache-Control says. A `max-age` that can't be read is 0, other numbers that can't be read are not there.
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
                let seconds = if argument == Argument::None { Some(DELTA_MAX) } else { argument.seconds() };
                self.max_stale_s = seconds.map_or(self.max_stale_s, |seconds| smaller(self.max_stale_s, seconds));
            } else if is(b"min-fresh") {
                let seconds = argument.seconds().unwrap_or(0);
                self.min_fresh_s = Some(self.min_fresh_s.map_or(seconds, |before| before.max(seconds)));
            }
        }
    }
}

/// What follows the name of a directive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Argument<'a> {
    None,
    /// A token, or what is between quotes.
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

/// Name and argument of a directive. The name is the token at the beginning, also where what follows is malformed: who writes
/// `private; max-age=60` means private.
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
