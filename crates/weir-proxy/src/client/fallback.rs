//! Fall-back upstreams: when no server of an upstream can take a request, the request is sent to
//! the fall-back upstream (stage forward).
//!
//! A request is handed to the other upstream as if it had been routed there: the options of that
//! upstream hold then, and the request is written again. This happens where weir would fail a
//! request for want of a server ([`Cause::is_want_of_servers`]): at once, or when a waiting request
//! is given up. For the latter a copy is kept ([`Spare`]) until the response begins. For a request
//! that has been sent, this only happens where it may be retried, so no other request is sent
//! twice. No fall-back exists for a session that may have no other server, and for a suspect. Nor
//! does it for a body that streams and has got a connection, or is too large. Bound: a copy for
//! each unanswered request, with at most `GATHER_BYTES_MAX` of body.
//! docs/failover.md#fallback-upstream.

use weir_http::{Fields, RequestHead};

use super::Clients;
use super::cache::fetch::note_elsewhere;
use crate::cause::Cause;
use crate::client::connection::{KeptRequest, Phase};
use crate::context::Context;
use crate::cross::router::Requests;
use crate::request::outgoing::Upload;
use crate::request::pending_request::ExchangeId;

/// A request that may still be sent to another upstream.
#[derive(Debug)]
pub(super) struct Spare {
    /// With the upstream that has it now.
    request: KeptRequest,
    body: Vec<u8>,
    upload: Option<Upload>,
}

impl Spare {
    /// Of a request that was sent to this upstream; `upload`: how its body leaves, if not as in its
    /// head. `body` is the part of the body that is here.
    pub(super) fn of(
        upstream: usize,
        head: &RequestHead,
        fields: &Fields,
        bytes: &[u8],
        body: &[u8],
        upload: Option<Upload>,
    ) -> Box<Spare> {
        let bytes = bytes[..head.bytes].to_vec();
        let request = KeptRequest { head: *head, fields: fields.clone(), bytes, upstream };
        Box::new(Spare { request, body: body.to_vec(), upload })
    }
}

/// The fall-back of the upstream where a request fails.
pub(super) fn fallback(upstream: usize, cause: Cause, cx: &Context) -> Option<usize> {
    cx.plan.upstreams.get(upstream)?.fallback().filter(|_| cause.is_want_of_servers())
}

/// A request gets no response. Returns whether it was sent to another upstream.
pub(crate) fn falls_back(
    clients: &mut Clients,
    id: ExchangeId,
    cause: Cause,
    to: &mut Requests<'_>,
    cx: &mut Context,
) -> bool {
    let conns = &mut clients.answers.conns;
    if !conns.is_in(id, Phase::Waiting) || conns.at(conns.exchange(id.index).conn).is_given_up() {
        return false;
    }
    let exchange = conns.exchange_mut(id.index);
    let index = exchange.conn;
    let next =
        exchange.spare.as_ref().and_then(|spare| fallback(spare.request.upstream, cause, cx));
    let (Some(next), Some(spare)) = (next, exchange.spare.take()) else { return false };
    clients.answers.take_back(id.index, cx);
    note_elsewhere(&mut clients.answers.conns, id.index);
    cx.counters.fallbacks.add(1);
    let Spare { request: KeptRequest { head, fields, bytes, .. }, body, upload } = *spare;
    clients.asks.forward(
        &mut clients.answers,
        id.index,
        next,
        &head,
        &fields,
        &bytes,
        &body,
        upload,
        to,
        cx,
    );
    if clients.is_there(index) {
        clients.answers.conns.arm(index, cx);
    }
    true
}
