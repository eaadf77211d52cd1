//! Memory of idle encoders, for new responses: so that a client that reads nothing does not keep
//! other responses from being compressed (stage reply). docs/compression.md.
//!
//! An encoder whose client takes nothing, or whose server sends nothing, is idle. When memory for
//! another encoder is short, the encoders that have been idle longest are freed. Their responses
//! continue uncompressed in the same coding
//! ([`Encoder::store`](crate::base::encoder::Encoder::store)). Bound: one scan of all requests in
//! [`LOOK_US`].

use crate::base::keys::ExchangeKey;
use crate::client::answer::Answers;
use crate::client::connection::Exchange;
use crate::client::connections::Connections;
use crate::context::Context;
use crate::forward::shares::Lane;
use crate::plan::NO_ADDRESS;

/// How long an encoder must have been idle.
const IDLE_US_MIN: u64 = 1_000_000;
/// Between two scans; with many requests a microsecond for each.
const LOOK_US: u64 = 100_000;

/// A response begins that may be compressed: makes room for its encoder, if memory is short and
/// others are idle. Returns the client whose share of the memory it uses; None: the client is
/// unknown, or the response is not compressed.
#[inline]
pub(in crate::client) fn encoding_for(
    answers: &mut Answers,
    slot: ExchangeKey,
    cx: &mut Context,
) -> Option<Lane> {
    answers.conns.exchange(slot).ruled.as_deref()?.compress()?;
    let client = client_of(&answers.conns, slot, cx);
    if answers.encoders.is_short(client, cx.plan.client.compress_bytes_max)
        && cx.now_us >= answers.encoders.look_us
    {
        reclaim(answers, client, cx);
    }
    client
}

/// The client of a response; None: unknown, because other clients may be behind it.
fn client_of(conns: &Connections, slot: ExchangeKey, cx: &Context) -> Option<Lane> {
    let peer = conns.at(conns.exchange(slot).conn).peer;
    (peer != NO_ADDRESS && !cx.plan.client.trusts(peer)).then(|| Lane::of(peer))
}

#[cold]
fn reclaim(answers: &mut Answers, client: Option<Lane>, cx: &mut Context) {
    let (conns, bytes_max) = (&answers.conns, cx.plan.client.compress_bytes_max);
    // A client that has used up its share gets memory from its own encoders.
    let only = client.filter(|_| answers.encoders.has_free(bytes_max));
    let idle = |slot| Some((idle_since(conns.exchange(slot), cx.now_us)?, slot));
    let is_one =
        |(_, slot): &(u64, ExchangeKey)| only.is_none() || client_of(conns, *slot, cx) == only;
    let mut idle: Vec<(u64, ExchangeKey)> =
        conns.exchanges.keys().filter_map(idle).filter(is_one).collect();
    answers.encoders.look_us = cx.now_us + LOOK_US.max(conns.exchanges.len() as u64);
    idle.sort_unstable();
    for (_, slot) in idle {
        if !answers.encoders.is_short(client, bytes_max) {
            return;
        }
        store_rest(answers, slot, cx);
    }
}

/// Takes the encoder from a response.
fn store_rest(answers: &mut Answers, slot: ExchangeKey, cx: &mut Context) {
    let (mut codec, exchange) = answers.conns.codec(slot);
    let Some(compressing) = exchange.compressing.as_mut() else { return };
    let piece = compressing.give_up_memory(&cx.counters);
    cx.counters.compressions_reclaimed.add(1);
    if !piece.is_empty() {
        codec.body(slot, exchange, piece, &mut cx.spare);
    }
    let index = exchange.conn;
    answers.await_client(index, cx);
    answers.conns.mark(index);
}

/// Since when the encoder of a request's response has been idle, if that is long enough.
fn idle_since(exchange: &Exchange, now_us: u64) -> Option<u64> {
    let compressing =
        exchange.compressing.as_ref().filter(|compressing| compressing.has_idle_memory())?;
    (compressing.worked_us + IDLE_US_MIN <= now_us).then_some(compressing.worked_us)
}
