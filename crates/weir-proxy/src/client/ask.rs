//! Requests on their way to the servers' side: the facts that balancing needs, and the outcome
//! there (stage forward).
//!
//! The bytes are written once, to the place that they are sent from: onto a connection of this
//! worker, into a queue, or into another worker's mail.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use weir_http::{Fields, RequestHead};

use super::answer::Answers;
use super::cache::fetch::note_elsewhere;
use super::connections::Connections;
use super::fallback::{Spare, fallback};
use super::stalls::carrier_of;
use super::uploads::{GATHER_BYTES_MAX, may_send_body};
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::base::piece::Piece;
use crate::base::stamp::Stamper;
use crate::cause::Cause;
use crate::client::connection::{ClientConn, Phase};
use crate::context::Context;
use crate::cross::asked::{Asked, Private};
use crate::cross::router::Requests;
use crate::forward::state::ForwardState;
use crate::observe::accounting::Account;
use crate::placement::balance::{Key, Method, hash_key};
use crate::placement::cookie;
use crate::plan::{ClientPlan, NO_ADDRESS, Plan, Pool, UpstreamPlan, Whose};
use crate::request::client_address::{client_address, client_scheme, client_socket_address};
use crate::request::destination::{Destination, Original};
use crate::request::outgoing::{From, Outgoing, Upload};
use crate::request::pending_request::{NOBODY, PendingRequest, RequestFlags};
use crate::retry::poison::Verdict;

/// Forwards requests, and gives each its identifiers.
#[derive(Debug)]
pub(crate) struct Asks {
    /// Makes identifiers for `echo`.
    stamper: Stamper,
    /// The number of requests so far.
    serial: u64,
}

impl Asks {
    /// Creates it without requests. `secret`: see [`Parts`](crate::engine::Parts).
    pub(super) fn new(secret: [u64; 2]) -> Asks {
        Asks { stamper: Stamper::new(secret), serial: 0 }
    }

    /// Opens a tunnel: makes its connection, and sends nothing before that is ready.
    pub(super) fn open_tunnel(
        &mut self,
        answers: &mut Answers,
        slot: ExchangeKey,
        upstream: usize,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) {
        let ask = self.begin_asking(answers, slot, upstream, RequestFlags::TUNNEL, cx);
        let private = private_of(&mut answers.conns, slot, upstream, None, cx);
        let asked = to.tunnel(ask, private, cx);
        on_asked(answers, &ask, asked, cx);
    }

    /// Forwards a request. `body` is the part of its body that is here; `upload` is how the body
    /// leaves. If no server can take it, a server of the fall-back upstream may.
    #[inline]
    pub(super) fn forward(
        &mut self,
        answers: &mut Answers,
        slot: ExchangeKey,
        upstream: usize,
        head: &RequestHead,
        fields: &Fields,
        bytes: &[u8],
        body: &[u8],
        upload: Option<Upload>,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) {
        let mut upstream = upstream;
        // Chains of fall-backs are finite.
        while let Some(next) =
            self.forward_to(answers, slot, upstream, head, fields, bytes, body, upload, to, cx)
        {
            cx.counters.fallbacks.add(1);
            note_elsewhere(&mut answers.conns, slot);
            upstream = next;
        }
    }

    /// Forwards a request to an upstream. None: the upstream has it, or it has failed; otherwise
    /// returns the upstream that gets it instead.
    #[inline]
    fn forward_to(
        &mut self,
        answers: &mut Answers,
        slot: ExchangeKey,
        upstream: usize,
        head: &RequestHead,
        fields: &Fields,
        bytes: &[u8],
        body: &[u8],
        upload: Option<Upload>,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) -> Option<usize> {
        let plan = Arc::clone(&cx.plan);
        let upstream_plan = &plan.upstreams[upstream];
        let conn = answers.conns.exchange(slot).conn;
        let anywhere = destination_name(&answers.conns, conn, upstream, head, cx);
        let mut ruled = answers.conns.exchange_mut(slot).ruled.take();
        let rules = ruled.as_deref();
        let request = Outgoing::new(
            &plan.client,
            upstream_plan,
            anywhere.as_deref(),
            head,
            fields,
            bytes,
            body,
            upload,
            rules,
        );
        let client = answers.conns.at(conn);
        let (peer, traits) = (client.peer, request.traits());
        let sealed = client_scheme(peer, client.flags.sealed, fields, bytes, &plan.client).sealed;
        let from = From { peer, sealed, shown: client.shown.as_deref() };
        let verdict = verdict_of(upstream, upstream_plan, &request, traits, from, to, cx);
        if let Verdict::Refused { left_us } = verdict {
            answers.conns.exchange_mut(slot).ruled = ruled;
            let left_s = left_us.div_ceil(1_000_000) as u32;
            answers.fail_exchange_for(slot, Cause::Suspect, Some(left_s), cx);
            return None;
        }
        let mut ask = self.begin_asking(answers, slot, upstream, traits, cx);
        ask.class = request.class();
        ask.key = balance_key(upstream, peer, head, fields, bytes, &plan).unwrap_or(0);
        if upstream_plan.echo.is_some() {
            ask.echo = self.stamper.stamp();
        }
        if let Some(sticky) = &upstream_plan.sticky {
            ask.bound = sticky.server(fields, bytes).unwrap_or(NOBODY);
            ask.traits =
                ask.traits.with(RequestFlags::BOUND, ask.bound != NOBODY && !sticky.allow_failover);
        }
        let whose = whose(upstream_plan, answers.conns.at(conn), fields, bytes, &plan.client);
        let private = private_of(&mut answers.conns, slot, upstream, whose, cx);
        let isolated = verdict != Verdict::Free;
        let echo = ask.echo;
        let from = From { peer, sealed, shown: answers.conns.at(conn).shown.as_deref() };
        let may_be_refused =
            ask.traits.has(RequestFlags::PIPELINABLE) && request.may_be_refused(from, &echo);
        ask.traits = ask.traits.with(RequestFlags::ALONE, may_be_refused);
        let asked = to.ask(&mut ask, isolated, private, |out| request.write(out, from, &echo), cx);
        let may_leave =
            upstream_plan.fallback().is_some() && !isolated && !ask.traits.has(RequestFlags::BOUND);
        let refused = if let Asked::Refused(cause) = asked { Some(cause) } else { None };
        let next = refused.filter(|_| may_leave).and_then(|cause| fallback(upstream, cause, cx));
        let exchange = answers.conns.exchange_mut(slot);
        let is_here = matches!(asked, Asked::Here(Some(_)));
        let is_streaming = ask.traits.has(RequestFlags::STREAMING);
        // The part of a streaming body that follows once the request is on a connection is in no
        // copy.
        let is_whole = !is_streaming || !is_here && body.len() < GATHER_BYTES_MAX;
        if may_leave && next.is_none() && is_whole {
            exchange.spare = Some(Spare::of(upstream, head, fields, bytes, body, upload));
        }
        if let Some(ruled) = ruled.as_mut().filter(|_| !may_leave) {
            ruled.forget_request();
        }
        exchange.ruled = ruled;
        if next.is_none() {
            on_asked(answers, &ask, asked, cx);
        }
        next
    }

    /// From now on an exchange waits for a response of an upstream to this request, which has no
    /// key and is bound to no server. Always inlined: a request is large, and each call copies it.
    #[inline(always)]
    pub(super) fn begin_asking(
        &mut self,
        answers: &mut Answers,
        slot: ExchangeKey,
        upstream: usize,
        traits: RequestFlags,
        cx: &Context,
    ) -> PendingRequest {
        let patience_us = cx.plan.upstreams[upstream].forward_timeout_us;
        let deadline_us = cx.now_us + patience_us;
        let exchange = answers.conns.exchange_mut(slot);
        exchange.enter(Phase::Waiting);
        (exchange.patience_us, exchange.deadline_us) = (patience_us, deadline_us);
        exchange.pause_us = cx.plan.upstreams[upstream].answer_timeout_us;
        let (conn, received_us) = (exchange.conn, exchange.received_us);
        let original = || Some(original(&answers.conns, conn, upstream, cx)?.addresses[0]);
        answers.records.forwarded(slot, upstream, original, cx);
        self.serial += 1;
        let client = answers.conns.name(conn, cx);
        let carrier = carrier_of(&answers.conns, conn);
        PendingRequest {
            id: answers.conns.exchange_id(slot, cx),
            client,
            carrier: if carrier == conn { client } else { answers.conns.name(carrier, cx) },
            serial: self.serial,
            upstream: upstream as u16,
            server: 0,
            key: 0,
            bound: NOBODY,
            tries: 0,
            passed: 0,
            barren: 0,
            class: Default::default(),
            traits,
            received_us,
            asked_us: cx.now_us,
            echo: Default::default(),
        }
    }
}

/// Returns whether servers have died of requests of this kind.
#[inline]
fn verdict_of(
    upstream: usize,
    plan: &UpstreamPlan,
    request: &Outgoing<'_>,
    traits: RequestFlags,
    from: From<'_>,
    to: &Requests<'_>,
    cx: &Context,
) -> Verdict {
    if plan.pool.is_private() {
        return Verdict::Free;
    }
    let whole = !traits.has(RequestFlags::PIECEMEAL);
    to.verdict(
        upstream,
        request.lines(),
        whole,
        |out| request.write(out, from, &Default::default()),
        cx,
    )
}

/// Returns the name of a request's destination if the request does not name one itself (HTTP/1.0).
/// None: it is for a server of the configuration.
#[inline]
fn destination_name(
    conns: &Connections,
    client: ClientKey,
    upstream: usize,
    head: &RequestHead,
    cx: &Context,
) -> Option<String> {
    let is_named = head.authority.start < head.authority.end;
    let name = |to: &Destination| match to.addresses[0] {
        address if address.port() == 80 && address.is_ipv4() => address.ip().to_string(),
        address if address.port() == 80 => format!("[{}]", address.ip()),
        address => address.to_string(),
    };
    let to = || conns.destinations.get(client).and_then(Original::to);
    let original = || to().filter(|_| !is_named).map_or(String::new(), |to| name(to));
    cx.is_anywhere(upstream as u16).then(original)
}

/// Returns the client that a connection for a request is attributed to, where servers learn the
/// client or see its address as the source.
fn whose(
    upstream: &UpstreamPlan,
    conn: &ClientConn,
    fields: &Fields,
    bytes: &[u8],
    plan: &ClientPlan,
) -> Option<Whose> {
    if !upstream.dial.names_client() {
        return None;
    }
    let address = client_socket_address(SocketAddr::new(conn.peer, conn.port), fields, bytes, plan);
    Some(match address.ip() {
        NO_ADDRESS => Whose::Unknown,
        _ => Whose::Client { address, socket: conn.socket },
    })
}

/// Returns the address that a client connected to, if that is another machine and an upstream leads
/// there.
fn original<'a>(
    conns: &'a Connections,
    client: ClientKey,
    upstream: usize,
    cx: &Context,
) -> Option<&'a Arc<Destination>> {
    conns
        .destinations
        .get(client)
        .and_then(Original::to)
        .filter(|_| cx.plan.upstreams[upstream].is_destination())
}

/// Returns whether an upstream leads to the address that the client of a request connected to, and
/// that is this machine.
#[inline]
pub(super) fn leads_home(
    conns: &mut Connections,
    slot: ExchangeKey,
    upstream: usize,
    cx: &mut Context,
) -> bool {
    cx.has_private && cx.plan.upstreams[upstream].is_destination() && is_own(conns, slot, cx)
}

/// Returns whether the client of a request has connected to this machine, although the request was
/// to be passed on: that is charged to the address, where it is known.
fn is_own(conns: &mut Connections, slot: ExchangeKey, cx: &mut Context) -> bool {
    let index = conns.exchange(slot).conn;
    let Some(original) = conns.destinations.get_mut(index) else { return true };
    if original.to().is_some() {
        return false;
    }
    original.charge(&mut cx.usage);
    conns.exchange_mut(slot).want.original = true;
    true
}

/// Sends a request to the address that its client connected to, or elsewhere; None: elsewhere.
/// Counts it and charges it to the returned account.
fn set_out(
    conns: &mut Connections,
    slot: ExchangeKey,
    upstream: usize,
    cx: &mut Context,
) -> Option<Account> {
    let is_destination = cx.plan.upstreams[upstream].is_destination();
    let exchange = conns.exchange_mut(slot);
    exchange.want.original = is_destination;
    let index = exchange.conn;
    let original = conns
        .destinations
        .get_mut(index)
        .filter(|original| is_destination && original.to().is_some())?;
    let account = original.charge(&mut cx.usage);
    cx.usage.requested(account, false);
    Some(account)
}

/// Returns what the servers' side has to know of a client that has private connections; None: it
/// has none. `whose`: what its servers learn of it.
#[inline]
fn private_of(
    conns: &mut Connections,
    slot: ExchangeKey,
    upstream: usize,
    whose: Option<Whose>,
    cx: &mut Context,
) -> Option<Private> {
    let index = conns.exchange(slot).conn;
    if !cx.is_private(upstream as u16) {
        // A request may have a private connection, which ends with its client.
        conns.at_mut(index).flags.has_pool |= cx.plan.upstreams[upstream].pool == Pool::Fresh;
        conns.exchange_mut(slot).want.original = false;
        return None;
    }
    let charged = set_out(conns, slot, upstream, cx);
    let original = original(conns, index, upstream, cx).cloned();
    let conn = conns.at_mut(index);
    conn.flags.has_pool = true;
    let destination = conn.proxied.as_deref().and_then(ForwardState::destination).or(original);
    Some(Private { destination, account: charged.unwrap_or_else(|| conn.account()), whose })
}

/// Handles the outcome of a request on the servers' side.
#[inline]
fn on_asked(answers: &mut Answers, ask: &PendingRequest, asked: Asked, cx: &mut Context) {
    match asked {
        Asked::Here(None) => {}
        Asked::Here(Some(server_conn)) => {
            answers.conns.exchange_mut(ask.id.index).server_conn = Some(server_conn);
            if ask.traits.has(RequestFlags::STREAMING) {
                may_send_body(answers, ask.id, true, cx);
            }
        }
        Asked::Elsewhere { worker, bytes } => {
            answers.note_away(worker, ask, &cx.posts[usize::from(worker)].bytes[bytes]);
        }
        Asked::Refused(cause) => answers.fail_exchange(ask.id.index, cause, cx),
    }
}

/// Sends a piece of a request body or of a tunnel.
pub(super) fn send_body(
    conns: &Connections,
    slot: ExchangeKey,
    piece: Piece<'_>,
    end: bool,
    to: &mut Requests<'_>,
    cx: &mut Context,
) {
    let exchange = conns.exchange(slot);
    let Some(server_conn) = exchange.server_conn else { return };
    let client = conns.name(exchange.conn, cx);
    to.body(conns.exchange_id(slot, cx), client, server_conn, piece, end, cx);
}

/// Returns the hash of the key that the balancing method uses; None: the request has no such key,
/// or no hash is needed.
fn balance_key(
    upstream: usize,
    peer: IpAddr,
    head: &RequestHead,
    fields: &Fields,
    bytes: &[u8],
    plan: &Plan,
) -> Option<u64> {
    let Method::Hash(key) = &plan.upstreams[upstream].balance else { return None };
    key_of(key, peer, head, fields, bytes, &plan.client)
}

/// Returns the hash of a key of a request; None: it has no such key.
pub(super) fn key_of(
    key: &Key,
    peer: IpAddr,
    head: &RequestHead,
    fields: &Fields,
    bytes: &[u8],
    plan: &ClientPlan,
) -> Option<u64> {
    match key {
        Key::Uri => Some(hash_key(head.path.of(bytes))),
        Key::ClientIp => match client_address(peer, fields, bytes, plan) {
            IpAddr::V4(address) => Some(hash_key(&address.octets())),
            IpAddr::V6(address) => Some(hash_key(&address.octets())),
        },
        Key::Header(name) => fields.get(bytes, name.as_bytes()).map(hash_key),
        Key::Cookie(name) => cookie::values(fields, bytes, name.as_bytes()).next().map(hash_key),
    }
}
