//! Rules of a route: what is changed in its requests and in their answers.
//!
//! Compiled by weir-config; held by the route, and by each request ([`Ruled`]) from when it was routed until it is answered, so that it is
//! finished by the rules that it began with. All texts are made when it is routed; [`Outgoing`](crate::request::outgoing::Outgoing) writes
//! those of requests, `Answers::answer_begin` (`client/answer.rs`) those of answers. Pure: functions of the rules and of the bytes of a head. The order in which they are applied is
//! fixed: docs/semantics.md §14. Bound: [`RENDERED_BYTES_MAX`] of text a request.

pub mod edits;
pub mod matching;
pub mod path;
pub mod text;

use std::net::IpAddr;
use std::sync::Arc;

use weir_http::{Fields, ReplyParts, RequestHead};

use crate::cause::Cause;
use crate::request::line_end::carries_line_end;
use edits::{FieldEdits, Rendered};
use path::PathRules;

/// Bytes of all that rules write for one request, and for its answer; with more the request is refused.
pub const RENDERED_BYTES_MAX: usize = 64 * 1024;

/// What a route changes. The default is nothing.
#[derive(Debug, Clone, Default)]
pub struct RouteRules {
    /// The path that its server sees.
    pub path: PathRules,
    /// The Host that its server sees; None: the client's.
    pub host: Option<Box<[u8]>>,
    /// Fields of requests.
    pub request: FieldEdits,
    /// Fields of final answers.
    pub answer: FieldEdits,
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
    /// The client.
    pub client: IpAddr,
    /// It speaks TLS.
    pub sealed: bool,
    /// Name of the upstream that it goes to.
    pub upstream: &'a str,
}

/// Why rules can't be applied to a request. It is refused: what they would make of it is not what anybody has asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleFault {
    /// Its path can't be changed without doubt about what it would mean.
    Path,
    /// More than [`RENDERED_BYTES_MAX`].
    TooLarge,
}

impl RouteRules {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.path.is_empty() && self.host.is_none() && self.request.is_empty() && self.answer.is_empty()
    }
}

impl From<RuleFault> for Cause {
    fn from(fault: RuleFault) -> Cause {
        match fault {
            RuleFault::Path => Cause::Path,
            RuleFault::TooLarge => Cause::RulesTooLarge,
        }
    }
}

/// The rules of a request's route, and what they make of it: from when it is routed until it is answered.
#[derive(Debug)]
pub(crate) struct Ruled {
    rules: Arc<RouteRules>,
    /// Path and query for the server; None: as they came.
    path: Option<Vec<u8>>,
    /// Values of fields of the request.
    request: Rendered,
    /// Values of fields of its answer.
    answer: Rendered,
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
        Ok(Box::new(Ruled { rules: Arc::clone(rules), path, request, answer }))
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
    pub(crate) fn request_fields(&self) -> Changes<'_> {
        (self.rules.request.removed(), self.rules.request.lines(&self.request).collect())
    }

    /// The request was written: only its answer needs rules now.
    pub(crate) fn forget_request(&mut self) {
        (self.path, self.request) = Default::default();
    }

    /// Gives out an answer's head with its fields as they are for the client. What weir has added counts as received.
    pub(crate) fn with_answer<R>(&self, parts: &ReplyParts<'_>, then: impl FnOnce(ReplyParts<'_>) -> R) -> R {
        let removed = self.rules.answer.removed();
        let stays = |name: &[u8]| !removed.iter().any(|removed| removed.eq_ignore_ascii_case(name));
        let added = parts.added.iter().copied().filter(|(name, _)| stays(name));
        let added: Vec<_> = added.chain(self.rules.answer.lines(&self.answer)).collect();
        then(parts.without(&removed).with(&added))
    }
}

/// Names of fields that don't pass, and fields that come on top.
pub(crate) type Changes<'a> = (Vec<&'a [u8]>, Vec<(&'a [u8], &'a [u8])>);
