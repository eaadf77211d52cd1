//! Responses that a route has instead of an upstream: a redirect, or a text or file from the
//! configuration; and pages for errors.
//!
//! Compiled by weir-config, held by the route. `Clients::request_parsed` (`client/receive.rs`)
//! takes the response, which leaves like all responses that weir makes (`Answers::answer_local`);
//! pages are rules of a route, looked up when it fails (`Answers::fail_exchange`). Bound:
//! [`CONTENT_BYTES_MAX`], which all clients share. docs/routes.md.

use std::sync::Arc;

use bytes::Bytes;

use crate::cause::{Cause, Local};
use crate::request::rules::Known;
use crate::request::rules::location::Location;
use crate::upstream::health::Codes;

/// Longest content.
pub const CONTENT_BYTES_MAX: usize = 1024 * 1024;

/// Statuses of redirects: RFC 9110 §15.4, without those that have another meaning.
pub const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

/// A response of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnAnswer {
    /// Sends the client elsewhere.
    Redirect {
        /// One of [`REDIRECTS`].
        status: u16,
        /// The target.
        to: Location,
    },
    /// The same response for all clients.
    Fixed(Arc<Fixed>),
}

/// A complete response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fixed {
    /// 200 to 599, without 206.
    pub status: u16,
    /// Content-Type of the content; None: the field is not sent.
    pub media_type: Option<Box<[u8]>>,
    /// Empty where [`has_content`] says no; at most [`CONTENT_BYTES_MAX`].
    pub content: Bytes,
}

/// The page for errors of weir, in place of weir's line of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorPage {
    /// The statuses that it is for.
    pub statuses: Vec<Codes>,
    /// Content-Type.
    pub media_type: Box<[u8]>,
    /// At most [`CONTENT_BYTES_MAX`].
    pub content: Bytes,
}

/// Whether a response with this status has content (RFC 9110 §6.4.1, §15.3.6).
pub fn has_content(status: u16) -> bool {
    !matches!(status, 204 | 205 | 304)
}

impl OwnAnswer {
    /// Makes the response to a request. `path` is path and query after the path rules; None: as
    /// they arrived.
    pub(crate) fn local(&self, known: &Known<'_>, path: Option<&[u8]>) -> Local {
        match self {
            OwnAnswer::Redirect { status, to } => match to.render(known, path) {
                Ok(to) => Local::Redirect(*status, to),
                Err(fault) => Cause::from(fault).into(),
            },
            OwnAnswer::Fixed(fixed) => Local::Fixed(Arc::clone(fixed)),
        }
    }
}
