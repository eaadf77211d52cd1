//! A request as the cache sees it: with the fields that its server gets, as far as these determine
//! the response (stage cache).
//!
//! Most requests are seen as they arrived, by reference. Only where a route changes fields, or
//! where an untrusted client sends fields that only trusted proxies may send, the lines are
//! rewritten and parsed again: the server does not get such fields from an untrusted client, and
//! the server may vary by the fields that a route sets. Bound: the head's limit and
//! [`RENDERED_BYTES_MAX`](crate::request::rules::RENDERED_BYTES_MAX).

use weir_cache::Request;
use weir_http::{FieldName, Fields, Limits, RequestHead};

use crate::client::connection::KeptRequest;
use crate::request::rules::Ruled;

/// The request that a server would see is unknown.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unclear;

/// A separate head, with the bytes that it refers to.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    head: RequestHead,
    fields: Fields,
    bytes: Vec<u8>,
}

impl Seen {
    /// Returns the request as its server gets it; None: as it arrived. `is_trusted`: its client may
    /// name the client that it speaks for.
    ///
    /// # Errors
    /// The request can't be parsed with the changes of its route, so nothing is known of the
    /// server's view.
    pub(super) fn of(
        ruled: Option<&Ruled>,
        is_trusted: bool,
        (head, fields, bytes): (&RequestHead, &Fields, &[u8]),
    ) -> Result<Option<Box<Seen>>, Unclear> {
        let (removed, added) = ruled.map(Ruled::route_edits).unwrap_or_default();
        let is_vain = |known: FieldName| !is_trusted && known.is_forwarding();
        let is_changed = !removed.is_empty() || !added.is_empty();
        // Fields that Connection names do not reach the server either.
        if !is_changed
            && !fields.as_slice().iter().any(|field| field.listed || is_vain(field.known))
        {
            return Ok(None);
        }
        let mut text = Vec::with_capacity(head.bytes + 256);
        text.extend_from_slice(head.method_span.of(bytes));
        text.extend_from_slice(b" / HTTP/1.1\r\n");
        put_line(&mut text, b"Host", head.authority.of(bytes));
        for field in fields.as_slice().iter().filter(|field| !field.listed && !is_vain(field.known))
        {
            let (name, value) = (field.name.of(bytes), field.value.of(bytes));
            let is_written = field.known == FieldName::Host || field.known.is_hop_by_hop();
            if !is_written && !removed.iter().any(|removed| removed.eq_ignore_ascii_case(name)) {
                put_line(&mut text, name, value);
            }
        }
        added.iter().for_each(|(name, value)| put_line(&mut text, name, value));
        text.extend_from_slice(b"\r\n");
        // The received fields have passed their limits, and the route's additions have separate
        // limits.
        let limits = Limits {
            line_bytes_max: text.len(),
            head_bytes_max: text.len(),
            fields_max: fields.len() + added.len() + 1,
            ..Limits::default()
        };
        let mut fields = Fields::default();
        let Ok(Some(parsed)) = weir_http::parse_request(&text, &limits, &mut fields) else {
            return Err(Unclear);
        };
        // The body framing comes from the original head, and so does the upgrade, of which only the
        // presence matters.
        let head = RequestHead { body: head.body, upgrade: head.upgrade, ..parsed };
        Ok(Some(Box::new(Seen { head, fields, bytes: text })))
    }

    pub(super) fn request(&self) -> Request<'_> {
        Request { input: &self.bytes, head: &self.head, fields: &self.fields }
    }
}

fn put_line(text: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    text.extend_from_slice(name);
    text.extend_from_slice(b": ");
    text.extend_from_slice(value);
    text.extend_from_slice(b"\r\n");
}

/// A waiting request, and how the cache sees it.
#[derive(Debug)]
pub(super) struct Asked {
    /// As it arrived.
    pub(super) kept: KeptRequest,
    /// As its server gets it, where that differs.
    pub(super) seen: Option<Box<Seen>>,
}

impl Asked {
    pub(super) fn request(&self) -> Request<'_> {
        let KeptRequest { head, fields, bytes, .. } = &self.kept;
        self.seen.as_deref().map_or(Request { input: bytes, head, fields }, Seen::request)
    }
}
