//! Rules of a route: whose requests it takes, and what is changed in them and in their answers.
//!
//! Compiled by weir-config; held by the route, and by each request ([`Ruled`]) from when it was routed until it is answered, so that it is
//! finished by the rules that it began with. All texts are made when it is routed; [`Outgoing`](crate::request::outgoing::Outgoing) writes
//! those of requests, `Answers::answer_begin` (`client/answer.rs`) those of answers. Pure: functions of the rules and of the bytes of a head. The order in which they are applied is
//! fixed: docs/semantics.md §14. Bound: [`RENDERED_BYTES_MAX`] of text a request.

pub mod access;
pub mod basic_auth;
pub mod buffering;
pub mod compress;
pub mod edits;
pub mod location;
pub mod matching;
pub mod path;
pub mod requirements;
pub mod split;
pub mod text;

use std::net::IpAddr;
use std::sync::Arc;

use weir_http::{Fields, ReplyParts, RequestHead};

use crate::cause::Cause;
use crate::forward::lookup::User;
use crate::plan::{CacheRules, ClientPlan};
use crate::request::identity::Identity;
use crate::request::line_end::carries_line_end;
use crate::request::own_answer::ErrorPage;
use access::Access;
use basic_auth::BasicAuth;
use buffering::Buffering;
use compress::{Accepted, Compress};
use edits::{FieldEdits, Rendered};
use path::PathRules;
use requirements::Requirements;

/// Bytes of all that rules write for one request, and for its answer; with more the request is refused.
pub const RENDERED_BYTES_MAX: usize = 64 * 1024;

/// What is for weir itself where a route has `users` (RFC 9110 §11.6.2).
const AUTHORIZATION: &[u8] = b"authorization";

/// Whom a route refuses, and what it changes. The default is nobody and nothing.
#[derive(Debug, Clone, Default)]
pub struct RouteRules {
    /// Whose requests it takes.
    pub access: Access,
    /// What it requires of them.
    pub requirements: Requirements,
    /// Who may use it, by name and password; None: everybody.
    pub users: Option<BasicAuth>,
    /// The path that its server sees.
    pub path: PathRules,
    /// The Host that its server sees; None: the client's.
    pub host: Option<Box<[u8]>>,
    /// Fields of requests.
    pub request: FieldEdits,
    /// Fields of final answers.
    pub answer: FieldEdits,
    /// Pages for errors; the first counts that has the status.
    pub pages: Vec<Arc<ErrorPage>>,
    /// How its answers are compressed; None: they are not.
    pub compress: Option<Compress>,
    /// How its answers are stored and served; None: they are not.
    pub cache: Option<Arc<CacheRules>>,
    /// When requests go to servers whose bodies are not complete.
    pub buffering: Buffering,
}

/// What is known of a request when rules are applied. Spans of `head` and `fields` point into `bytes`.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// Its head.
    pub head: &'a RequestHead,
    /// Its fields.
    pub fields: &'a Fields,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// The client, as trusted proxies have told it.
    pub client: IpAddr,
    /// The other end of its connection.
    pub peer: IpAddr,
    /// It speaks TLS.
    pub sealed: bool,
    /// What it is called; None: nothing.
    pub identity: Option<&'a Identity>,
    /// Name of the upstream that it goes to; empty: weir answers it.
    pub upstream: &'a str,
    /// Who has shown to be the client; None: nobody was asked for.
    pub user: Option<&'a Arc<User>>,
}

/// Why rules can't be applied to a request. It is refused: what they would make of it is not what anybody has asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleFault {
    /// Its path can't be changed without doubt about what it would mean.
    Path,
    /// More than [`RENDERED_BYTES_MAX`].
    TooLarge,
    /// The host that it asks for can't stand in a redirect, or it asks for none.
    Host,
}

impl RouteRules {
    /// Whether nobody is refused, and nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.access.is_empty() && self.requirements.is_empty() && self.changes_nothing()
    }

    /// Why a request of this client is refused before anybody is asked who he is. Spans of `head` and `fields` point into `bytes`.
    pub(crate) fn refusal(&self, client: IpAddr, head: &RequestHead, fields: &Fields, bytes: &[u8]) -> Option<Cause> {
        if !self.access.admits(client) {
            return Some(Cause::AddressDenied);
        }
        self.requirements.unmet(head, fields, bytes)
    }

    /// Whether nothing is changed.
    pub(crate) fn changes_nothing(&self) -> bool {
        self.users.is_none()
            && self.path.is_empty()
            && self.host.is_none()
            && self.request.is_empty()
            && self.answer.is_empty()
            && self.pages.is_empty()
            && self.compress.is_none()
            && self.cache.is_none()
            && self.buffering == Buffering::default()
    }
}

impl From<RuleFault> for Cause {
    fn from(fault: RuleFault) -> Cause {
        match fault {
            RuleFault::Path => Cause::Path,
            RuleFault::TooLarge => Cause::RulesTooLarge,
            RuleFault::Host => Cause::RedirectHost,
        }
    }
}

/// The rules of a request's route, and what they make of it, and what it is called: from when it is routed until it is answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ruled {
    rules: Arc<RouteRules>,
    /// What it is called; None: nothing.
    identity: Option<Identity>,
    /// Who has shown to be its client; None: nobody.
    user: Option<Arc<User>>,
    /// Path and query for the server; None: as they came.
    path: Option<Vec<u8>>,
    /// Values of fields of the request.
    request: Rendered,
    /// Values of fields of its answer.
    answer: Rendered,
    /// Which coding its client takes, where its route has some.
    accepted: Option<Accepted>,
    /// What is asked for is for the store: how that differs from what a client has asked.
    fetch: Option<Box<Fetching>>,
}

/// How a request that fetches something for the store differs from the one it is made of (RFC 9111 §4.3.1).
#[derive(Debug, Clone, Default)]
pub(crate) struct Fetching {
    /// Names of fields by which one client would shape what all get.
    pub removed: Vec<Vec<u8>>,
    /// Fields in place of those.
    pub added: Vec<(&'static [u8], Vec<u8>)>,
    /// It asks whether what is stored is still the same.
    pub is_conditional: bool,
    /// Path and query, if they are others than the route makes of them.
    pub path: Option<Vec<u8>>,
}

impl Ruled {
    /// What rules make of a request.
    ///
    /// # Errors
    /// The client's fault: [`RuleFault`].
    pub(crate) fn new(rules: &Arc<RouteRules>, known: &Known<'_>) -> Result<Box<Ruled>, RuleFault> {
        let path = rules.path.apply(known.head.path.of(known.bytes))?;
        let (request, answer) = (rules.request.render(known)?, rules.answer.render(known)?);
        if path.as_ref().is_some_and(|path| path.len() > RENDERED_BYTES_MAX) {
            return Err(RuleFault::TooLarge);
        }
        let accepted = rules.compress.as_ref().map(|rule| rule.accepted(known.fields, known.bytes));
        let (rules, user) = (Arc::clone(rules), known.user.cloned());
        Ok(Box::new(Ruled { rules, identity: None, user, path, request, answer, accepted, fetch: None }))
    }

    /// No rules, but a name.
    pub(crate) fn only_named(identity: Identity) -> Box<Ruled> {
        Box::new(Ruled { identity: Some(identity), ..Ruled::default() })
    }

    /// The same request, called so.
    pub(crate) fn named(mut self: Box<Self>, identity: Option<Identity>) -> Box<Ruled> {
        self.identity = identity;
        self
    }

    /// What it is called.
    pub(crate) fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// Who has shown to be its client.
    pub(crate) fn user(&self) -> Option<&User> {
        self.user.as_deref()
    }

    /// How its client is asked for name and password.
    pub(crate) fn challenge(&self) -> Option<String> {
        self.rules.users.as_ref().map(BasicAuth::challenge)
    }

    /// Path and query for the server, if they are not those that came.
    pub(crate) fn path(&self) -> Option<&[u8]> {
        self.path.as_deref()
    }

    /// Host for the server, if it is not that of the client.
    pub(crate) fn host(&self) -> Option<&[u8]> {
        self.rules.host.as_deref()
    }

    /// Whether a line end is encoded in what was written (docs/hostile.md E21): it may have been put together here.
    pub(crate) fn carries_line_end(&self) -> bool {
        self.path.as_deref().is_some_and(carries_line_end) || carries_line_end(self.request.as_bytes())
    }

    /// Names of the request's fields that don't pass, and fields that come on top.
    pub(crate) fn request_fields<'a>(&'a self, plan: &'a ClientPlan) -> Changes<'a> {
        let (mut removed, mut lines) = self.route_edits();
        removed.extend(self.rules.users.as_ref().filter(|users| !users.passes_on).map(|_| AUTHORIZATION));
        if let Some(fetch) = self.fetch.as_deref() {
            removed.extend(fetch.removed.iter().map(Vec::as_slice));
            lines.retain(|(name, _)| !fetch.removed.iter().any(|removed| removed.eq_ignore_ascii_case(name)));
            lines.extend(fetch.added.iter().map(|(name, value)| (*name, value.as_slice())));
        }
        let Some(identity) = &self.identity else { return (removed, lines) };
        removed.extend(identity.removed(plan));
        (removed, identity.lines(plan).chain(lines).collect())
    }

    /// Bytes of the lines that come on top, at most.
    pub(crate) fn added_bytes(&self, plan: &ClientPlan) -> usize {
        let bytes = |(name, value): (&[u8], &[u8])| name.len() + value.len() + b": \r\n".len();
        let lines = self.rules.request.lines(&self.request).chain(self.identity.iter().flat_map(|it| it.lines(plan)));
        let fetched = self.fetch.iter().flat_map(|fetch| fetch.added.iter().map(|(name, value)| (*name, &value[..])));
        lines.chain(fetched).map(bytes).sum()
    }

    /// The same, as far as its route edits them. Credentials that stay here are not among those that don't pass: the server may be told whose
    /// they are.
    pub(crate) fn route_edits(&self) -> Changes<'_> {
        (self.rules.request.removed(), self.rules.request.lines(&self.request).collect())
    }

    /// Names of fields that its route takes away from the client's.
    pub(crate) fn removed_fields(&self) -> impl Iterator<Item = &[u8]> {
        self.rules.request.removed().into_iter()
    }

    /// Fields that its route adds, as a key of the cache has them: servers may answer clients differently by them.
    pub(crate) fn told_fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.rules.request.key_lines(&self.request)
    }

    /// When it goes to its server if its body is not complete.
    pub(crate) fn buffering(&self) -> Buffering {
        self.rules.buffering
    }

    /// How its answer is stored and served; None: it is not.
    #[inline]
    pub(crate) fn cache(&self) -> Option<&Arc<CacheRules>> {
        self.rules.cache.as_ref()
    }

    /// The same for a request that fetches for the store.
    pub(crate) fn fetching(&self, mut fetch: Fetching) -> Box<Ruled> {
        let path = fetch.path.take().or_else(|| self.path.clone());
        Box::new(Ruled { fetch: Some(Box::new(fetch)), path, ..self.clone() })
    }

    /// Whether it asks on conditions; None: as its client has asked.
    pub(crate) fn is_conditional(&self) -> Option<bool> {
        self.fetch.as_ref().map(|fetch| fetch.is_conditional)
    }

    /// What its client sees of an error with this status; None: weir's own text.
    pub(crate) fn page(&self, status: u16) -> Option<&Arc<ErrorPage>> {
        self.rules.pages.iter().find(|page| page.statuses.iter().any(|codes| codes.contain(status)))
    }

    /// How its answer may be compressed, and what its client takes; None: it stays as it is.
    pub(crate) fn compress(&self) -> Option<(&Compress, Accepted)> {
        self.rules.compress.as_ref().zip(self.accepted)
    }

    /// The request was written: only its answer needs rules now.
    pub(crate) fn forget_request(&mut self) {
        (self.path, self.request) = Default::default();
    }

    /// Gives out an answer's head with its fields as they are for the client. What weir has added counts as received.
    pub(crate) fn with_answer<R>(&self, parts: &ReplyParts<'_>, then: impl FnOnce(ReplyParts<'_>) -> R) -> R {
        if self.rules.answer.is_empty() {
            return then(*parts);
        }
        let mut removed = self.rules.answer.removed();
        let stays = |name: &[u8]| !removed.iter().any(|removed| removed.eq_ignore_ascii_case(name));
        let added = parts.added.iter().copied().filter(|(name, _)| stays(name));
        let added: Vec<_> = added.chain(self.rules.answer.lines(&self.answer)).collect();
        // Of these names what was received is gone, and not what weir has put in its place.
        removed.extend(parts.removed);
        then(parts.without(&removed).with(&added))
    }
}

/// Names of fields that don't pass, and fields that come on top.
pub(crate) type Changes<'a> = (Vec<&'a [u8]>, Vec<(&'a [u8], &'a [u8])>);
