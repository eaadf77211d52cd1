//! PURGE over HTTP: lets authorised clients purge the responses of a URL (stage cache). Called
//! where a request would be forwarded. docs/cache-rules.md.
//!
//! PURGE is a method that no RFC defines and all caches know. It works only where a route lists the
//! clients that may use it (`purge-from`); elsewhere it is a method like any other. The client is
//! the same as for limits: behind a trusted proxy, the client that the proxy names, so that its
//! proxy's address authorises no client. When the response is made, the purge holds for all workers
//! and for running fetches.

use std::sync::Arc;

use bytes::Bytes;
use weir_cache::{Place, Request, url};
use weir_http::{Fields, RequestHead};

use super::consult::{place_of, told_of};
use crate::base::keys::ExchangeKey;
use crate::cause::{Cause, Local};
use crate::client::answer::Answers;
use crate::context::Context;
use crate::request::client_address::client_address;
use crate::request::own_answer::Fixed;
use crate::request::rules::Ruled;

/// The method. Methods are case-sensitive (RFC 9110 §9.1).
const PURGE: &[u8] = b"PURGE";

/// Carries out a PURGE and returns the response to its client. None: the request is not a PURGE, or
/// this route does not know the method.
pub(in crate::client) fn purge(
    answers: &Answers,
    slot: ExchangeKey,
    upstream: usize,
    came: (&RequestHead, &Fields, &[u8]),
    cx: &Context,
) -> Option<Local> {
    let (head, fields, bytes) = came;
    let exchange = answers.conns.exchange(slot);
    let rules = exchange
        .ruled
        .as_deref()
        .and_then(Ruled::cache)
        .filter(|rules| !rules.purge_from.is_empty())?;
    if head.method_span.of(bytes) != PURGE {
        return None;
    }
    let store = cx.cache.as_ref()?;
    let client =
        client_address(answers.conns.at(exchange.conn).peer, fields, bytes, &cx.plan.client);
    // A trusted proxy that names no client may speak for any.
    if cx.plan.client.trusts(client)
        || !rules.purge_from.iter().any(|network| network.has_client(client))
    {
        return Some(Cause::PurgeDenied.into());
    }
    let (place, _) = place_of(answers, slot, upstream, came, &cx.plan);
    let mut count = 0;
    // Purges from within the network often come without TLS, and mean the page.
    for scheme in [&b"http"[..], b"https"] {
        let place = Place { scheme, ..place };
        let mut key = Vec::new();
        told_of(answers, slot).put_key(
            &mut key,
            place,
            &rules.keys,
            Request { input: bytes, head, fields },
        );
        count += store.variants(&key, cx.now_us).len();
        store.invalidate(&url(place, &rules.keys));
    }
    let noun = if count == 1 { "response" } else { "responses" };
    let content = Bytes::from(format!("purged {count} {noun}\n"));
    Some(Local::Fixed(Arc::new(Fixed {
        status: 200,
        media_type: Some((*b"text/plain").into()),
        content,
    })))
}
