//! Rules of a route: the clients that may use it, and the changes to their requests and the
//! responses.
//!
//! Compiled by weir-config; held by the route, and by each request ([`Ruled`]) from routing until
//! its response is complete, so that it finishes with the rules that it began with. All texts are
//! made when it is routed; [`Outgoing`](crate::request::outgoing::Outgoing) writes those of
//! requests, `Answers::answer_begin` (`client/answer.rs`) those of responses. Pure: functions of
//! the rules and of the bytes of a head. The order in which they are applied is fixed:
//! docs/routes.md. Bound: [`RENDERED_BYTES_MAX`] of text a request.

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

/// Bytes of everything that rules write for one request, and for its response; with more the
/// request is refused.
pub const RENDERED_BYTES_MAX: usize = 64 * 1024;

/// The field that is for weir itself where a route has `users` (RFC 9110 §11.6.2).
const AUTHORIZATION: &[u8] = b"authorization";

/// The refusals and changes of a route. The default has none.
#[derive(Debug, Clone, Default)]
pub struct RouteRules {
    /// The clients that may use it.
    pub access: Access,
    /// Its requirements for their requests.
    pub requirements: Requirements,
    /// The users that may use it, by name and password; None: no user is required.
    pub users: Option<BasicAuth>,
    /// The path that its server gets.
    pub path: PathRules,
    /// The Host that its server gets; None: the client's.
    pub host: Option<Box<[u8]>>,
    /// Fields of requests.
    pub request: FieldEdits,
    /// Fields of final responses.
    pub answer: FieldEdits,
    /// Pages for errors; the first with the status counts.
    pub pages: Vec<Arc<ErrorPage>>,
    /// How its responses are compressed; None: they are not.
    pub compress: Option<Compress>,
    /// How its responses are stored and served; None: they are not.
    pub cache: Option<Arc<CacheRules>>,
    /// When requests with incomplete bodies are forwarded.
    pub buffering: Buffering,
}

/// The facts about a request when rules are applied. Spans of `head` and `fields` point into
/// `bytes`.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// Its head.
    pub head: &'a RequestHead,
    /// Its fields.
    pub fields: &'a Fields,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// The client, as trusted proxies name it.
    pub client: IpAddr,
    /// The other end of its connection.
    pub peer: IpAddr,
    /// It speaks TLS.
    pub sealed: bool,
    /// Its identity; None: it has none.
    pub identity: Option<&'a Identity>,
    /// Name of its upstream; empty: weir answers it.
    pub upstream: &'a str,
    /// The verified user; None: no user was required.
    pub user: Option<&'a Arc<User>>,
}

/// Why rules can't be applied to a request. The request is refused, because the result would not be
/// what the rules intend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleFault {
    /// The changed path would be ambiguous.
    Path,
    /// More than [`RENDERED_BYTES_MAX`].
    TooLarge,
    /// Its Host is not valid in a redirect, or it has none.
    Host,
}

impl RouteRules {
    /// Whether it refuses and changes nothing.
    pub fn is_empty(&self) -> bool {
        self.access.is_empty() && self.requirements.is_empty() && self.changes_nothing()
    }

    /// The reason to refuse a request of this client before credentials are checked. Spans of
    /// `head` and `fields` point into `bytes`.
    pub(crate) fn refusal(
        &self,
        client: IpAddr,
        head: &RequestHead,
        fields: &Fields,
        bytes: &[u8],
    ) -> Option<Cause> {
        if !self.access.admits(client) {
            return Some(Cause::AddressDenied);
        }
        self.requirements.unmet(head, fields, bytes)
    }

    /// Whether it changes nothing.
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

/// The rules of a request's route, their results, and the request's identity: from routing until
/// the response is complete.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ruled {
    rules: Arc<RouteRules>,
    /// Its identity; None: it has none.
    identity: Option<Identity>,
    /// The verified user; None: none.
    user: Option<Arc<User>>,
    /// Path and query for the server; None: as they came.
    path: Option<Vec<u8>>,
    /// Values of fields of the request.
    request: Rendered,
    /// Values of fields of its response.
    answer: Rendered,
    /// The coding that its client accepts, if its route has any.
    accepted: Option<Accepted>,
    /// For a fetch for the store: how it differs from the client's request.
    fetch: Option<Box<Fetching>>,
}

/// How a request that fetches something for the store differs from the client's request
/// (RFC 9111 §4.3.1).
#[derive(Debug, Clone, Default)]
pub(crate) struct Fetching {
    /// Names of fields by which one client would shape the response for all.
    pub removed: Vec<Vec<u8>>,
    /// Replacements for those fields.
    pub added: Vec<(&'static [u8], Vec<u8>)>,
    /// It validates a stored response.
    pub is_conditional: bool,
    /// Path and query, if they differ from those that the route makes.
    pub path: Option<Vec<u8>>,
}

impl Ruled {
    /// Applies rules to a request.
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
        Ok(Box::new(Ruled {
            rules,
            identity: None,
            user,
            path,
            request,
            answer,
            accepted,
            fetch: None,
        }))
    }

    /// Without rules, but with an identity.
    pub(crate) fn only_named(identity: Identity) -> Box<Ruled> {
        Box::new(Ruled { identity: Some(identity), ..Ruled::default() })
    }

    /// The same request, with this identity.
    pub(crate) fn named(mut self: Box<Self>, identity: Option<Identity>) -> Box<Ruled> {
        self.identity = identity;
        self
    }

    /// Its identity.
    pub(crate) fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// The verified user.
    pub(crate) fn user(&self) -> Option<&User> {
        self.user.as_deref()
    }

    /// The challenge that asks its client for name and password.
    pub(crate) fn challenge(&self) -> Option<String> {
        self.rules.users.as_ref().map(BasicAuth::challenge)
    }

    /// Path and query for the server, if they differ from those received.
    pub(crate) fn path(&self) -> Option<&[u8]> {
        self.path.as_deref()
    }

    /// Host for the server, if it is not that of the client.
    pub(crate) fn host(&self) -> Option<&[u8]> {
        self.rules.host.as_deref()
    }

    /// Whether the written text encodes a line end (docs/hostile.md E21), which may have been put
    /// together here.
    pub(crate) fn carries_line_end(&self) -> bool {
        self.path.as_deref().is_some_and(carries_line_end)
            || carries_line_end(self.request.as_bytes())
    }

    /// Names of the request's fields that are not forwarded, and fields that are added.
    pub(crate) fn request_fields<'a>(&'a self, plan: &'a ClientPlan) -> Changes<'a> {
        let (mut removed, mut lines) = self.route_edits();
        removed.extend(
            self.rules.users.as_ref().filter(|users| !users.passes_on).map(|_| AUTHORIZATION),
        );
        if let Some(fetch) = self.fetch.as_deref() {
            removed.extend(fetch.removed.iter().map(Vec::as_slice));
            lines.retain(|(name, _)| {
                !fetch.removed.iter().any(|removed| removed.eq_ignore_ascii_case(name))
            });
            lines.extend(fetch.added.iter().map(|(name, value)| (*name, value.as_slice())));
        }
        let Some(identity) = &self.identity else { return (removed, lines) };
        removed.extend(identity.removed(plan));
        (removed, identity.lines(plan).chain(lines).collect())
    }

    /// Most bytes of the added lines.
    pub(crate) fn added_bytes(&self, plan: &ClientPlan) -> usize {
        let bytes = |(name, value): (&[u8], &[u8])| name.len() + value.len() + b": \r\n".len();
        let lines = self
            .rules
            .request
            .lines(&self.request)
            .chain(self.identity.iter().flat_map(|it| it.lines(plan)));
        let fetched = self
            .fetch
            .iter()
            .flat_map(|fetch| fetch.added.iter().map(|(name, value)| (*name, &value[..])));
        lines.chain(fetched).map(bytes).sum()
    }

    /// The same, as far as its route edits them. Credentials that remain here do not count as
    /// removed: the server may learn the user.
    pub(crate) fn route_edits(&self) -> Changes<'_> {
        (self.rules.request.removed(), self.rules.request.lines(&self.request).collect())
    }

    /// Names of fields that its route removes from the client's.
    pub(crate) fn removed_fields(&self) -> impl Iterator<Item = &[u8]> {
        self.rules.request.removed().into_iter()
    }

    /// Fields that its route adds, as they appear in a cache key: servers may answer clients
    /// differently by them.
    pub(crate) fn told_fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.rules.request.key_lines(&self.request)
    }

    /// When it is forwarded if its body is not complete.
    pub(crate) fn buffering(&self) -> Buffering {
        self.rules.buffering
    }

    /// How its response is stored and served; None: it is not.
    #[inline]
    pub(crate) fn cache(&self) -> Option<&Arc<CacheRules>> {
        self.rules.cache.as_ref()
    }

    /// The same for a request that fetches for the store.
    pub(crate) fn fetching(&self, mut fetch: Fetching) -> Box<Ruled> {
        let path = fetch.path.take().or_else(|| self.path.clone());
        Box::new(Ruled { fetch: Some(Box::new(fetch)), path, ..self.clone() })
    }

    /// Whether it is conditional; None: as its client has sent it.
    pub(crate) fn is_conditional(&self) -> Option<bool> {
        self.fetch.as_ref().map(|fetch| fetch.is_conditional)
    }

    /// The page that its client gets for an error with this status; None: weir's own text.
    pub(crate) fn page(&self, status: u16) -> Option<&Arc<ErrorPage>> {
        self.rules.pages.iter().find(|page| page.statuses.iter().any(|codes| codes.contain(status)))
    }

    /// How its response may be compressed, and the coding that its client accepts; None: it is not
    /// compressed.
    pub(crate) fn compress(&self) -> Option<(&Compress, Accepted)> {
        self.rules.compress.as_ref().zip(self.accepted)
    }

    /// The request was written: only its response needs rules now.
    pub(crate) fn forget_request(&mut self) {
        (self.path, self.request) = Default::default();
    }

    /// Passes on a response head with its fields as they are for the client. Fields that weir has
    /// added count as received.
    pub(crate) fn with_answer<R>(
        &self,
        parts: &ReplyParts<'_>,
        then: impl FnOnce(ReplyParts<'_>) -> R,
    ) -> R {
        if self.rules.answer.is_empty() {
            return then(*parts);
        }
        let mut removed = self.rules.answer.removed();
        let stays = |name: &[u8]| !removed.iter().any(|removed| removed.eq_ignore_ascii_case(name));
        let added = parts.added.iter().copied().filter(|(name, _)| stays(name));
        let added: Vec<_> = added.chain(self.rules.answer.lines(&self.answer)).collect();
        // Of these names, the received lines are gone, but not those that weir has put in their
        // place.
        removed.extend(parts.removed);
        then(parts.without(&removed).with(&added))
    }
}

/// Names of fields that are not forwarded, and fields that are added.
pub(crate) type Changes<'a> = (Vec<&'a [u8]>, Vec<(&'a [u8], &'a [u8])>);
