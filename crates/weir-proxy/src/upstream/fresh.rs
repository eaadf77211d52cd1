//! `pool "fresh"`: which requests get a connection made for them beside the pool, and the handling
//! of those for which none can be made (stage schedule). docs/pools.md#kept-or-fresh.
//!
//! [`Comparison`](super::comparison) decides whether that is better;
//! [`PrivatePools`](super::private_pool::PrivatePools) makes such connections, as with `pool
//! "per-request"`. A server is not blamed for one that can't be made: the request uses a kept
//! connection, and so does one that loses the connection that was made for it. Invariants, of each
//! server: `open` is the number of these connections, connects included, `ready` of those that are
//! up, `coming` of requests for which one is being made ([`super::Upstreams::audit`]). Bound: as
//! many as `connections-max` allows of kept ones.

use super::Upstreams;
use super::comparison::{Comparison, Kind};
use super::placing::Placing;
use super::pool::{Pair, Pool};
use super::private_pool::ConnectAttempt;
use crate::base::keys::{ConnKey, ServerIndex};
use crate::context::Context;
use crate::observe::report::FreshReport;
use crate::request::pending_request::{PendingRequest, RequestFlags};
use crate::upstream::connection::UpstreamConn;
use crate::upstream::entry::Entry;

/// How long a connection for one request is waited for before the request uses a kept one: as long
/// as it takes to send a lost SYN again (RFC 6298 §2.1), or `connect-timeout`, if that is less.
pub(super) const PATIENCE_US: u64 = 1_000_000;

/// State of a server with this pool besides its kept connections.
#[derive(Debug)]
pub(crate) struct Fresh {
    /// What is known of both kinds.
    pub comparison: Comparison,
    /// Connections for one request, including those that are being made.
    pub open: u32,
    /// Those of them that are up.
    pub ready: u32,
    /// Requests for which one is being made.
    pub coming: u32,
}

impl Fresh {
    /// Starts without connections, and without knowledge.
    pub(super) fn new(now_us: u64) -> Fresh {
        Fresh { comparison: Comparison::new(now_us), open: 0, ready: 0, coming: 0 }
    }

    /// For status and metrics.
    pub(super) fn report(&self) -> FreshReport {
        let [kept_p99_us, fresh_p99_us] = self.comparison.p99s_us();
        FreshReport {
            in_force: self.comparison.is_in_force(),
            connections: self.open,
            kept_p99_us,
            fresh_p99_us,
        }
    }
}

/// Whether a request may have a connection made for it: all of it is here, and it needs no special
/// treatment.
fn is_eligible(traits: RequestFlags) -> bool {
    let special = [
        RequestFlags::STREAMING,
        RequestFlags::UPGRADE,
        RequestFlags::TUNNEL,
        RequestFlags::MAILED,
        RequestFlags::TRIAL,
        RequestFlags::QUARANTINED,
    ];
    !special.iter().any(|one| traits.has(*one))
}

/// Whether the wait for the response to the oldest request of a connection measures its server: it
/// was sent as soon as it had arrived, once, and on a kept connection that was up by then.
fn is_measured(entry: &Entry, conn: &UpstreamConn) -> bool {
    let PendingRequest { traits, tries, passed, received_us, .. } = entry.ask;
    let asked_at_once = traits.has(RequestFlags::PIPELINABLE);
    let special = [
        RequestFlags::UPGRADE,
        RequestFlags::TRIAL,
        RequestFlags::QUARANTINED,
        RequestFlags::DETOURED,
    ];
    let is_usual = !entry.moved && !entry.is_copy && !special.iter().any(|one| traits.has(*one));
    let was_there = conn.owner.is_some() || conn.contact.connected_us <= received_us;
    asked_at_once && tries == 0 && passed == 0 && is_usual && was_there
}

impl Placing<'_> {
    /// Whether a new request, for which this server was chosen, has a connection made for it.
    #[inline]
    pub(super) fn goes_fresh(
        &mut self,
        server: ServerIndex,
        ask: &PendingRequest,
        cx: &Context,
    ) -> bool {
        self.pool.servers[server].fresh.is_some() && self.asks_fresh(server, ask, cx)
    }

    fn asks_fresh(&mut self, server: ServerIndex, ask: &PendingRequest, cx: &Context) -> bool {
        let machine = &mut self.pool.servers[server];
        // Permits are for kept connections.
        let is_full = machine.is_full() || machine.learned.load.permits.is_some();
        let is_up = machine.contact.failures == 0;
        let all = machine.limits.all;
        let Some(fresh) = machine.fresh.as_deref_mut() else { return false };
        // A client may have several requests here at a time, but only one for which a connection is
        // being made.
        let is_able = is_up
            && !is_full
            && fresh.open < all
            && !self.private.is_approaching(ask.client.slot());
        if !is_able || !is_eligible(ask.traits) {
            return false;
        }
        let measured =
            ask.traits.has(RequestFlags::PIPELINABLE) && ask.traits.has(RequestFlags::RETRIABLE);
        fresh.comparison.next(cx.now_us, measured) == Kind::Fresh
    }
}

/// No connection could be made for a request that can have a kept one: it uses that. Nothing of it
/// was sent.
pub(super) fn fresh_failed(all: &mut Upstreams, index: ConnKey, cx: &mut Context) {
    let conn = all.pool.conns.at(index);
    let (owner, server) = (conn.owner, conn.server);
    note_failure(server, &mut all.pool, cx);
    all.private.remove(index, &mut all.pool, cx);
    let Some(owner) = owner else { return };
    let attempt = all.private.take_attempt(owner.client, None, &mut all.pool, cx);
    if let Some(ConnectAttempt { mut waiting, .. }) = attempt {
        waiting.ask.traits = waiting.ask.traits.with(RequestFlags::DETOURED, true);
        all.placing().place_again(waiting.ask, waiting.bytes, cx);
    }
    all.work_off(cx);
}

/// A connection for one request could not be made, or ended before its response began.
pub(super) fn note_failure(server: ServerIndex, pool: &mut Pool, cx: &Context) {
    let machine = &mut pool.servers[server];
    if let Some(fresh) = machine.fresh.as_deref_mut() {
        machine.stats.fresh_failures.add(1);
        fresh.comparison.on_failure(cx.now_us);
    }
}

/// A connection of one request is counted in, or out.
pub(super) fn count_open(index: ConnKey, is_more: bool, pool: &mut Pool) {
    let conn = pool.conns.at(index);
    if let Some(fresh) =
        pool.servers[conn.server].fresh.as_deref_mut().filter(|_| conn.owner.is_some())
    {
        fresh.open = if is_more { fresh.open + 1 } else { fresh.open - 1 };
    }
}

/// A request waits for one, or not any more.
pub(super) fn count_coming(server: ServerIndex, is_more: bool, pool: &mut Pool) {
    if let Some(fresh) = pool.servers[server].fresh.as_deref_mut() {
        fresh.coming = if is_more { fresh.coming + 1 } else { fresh.coming - 1 };
    }
}

impl Pair<'_> {
    /// The response to the oldest request of a connection begins: notes how long that has taken,
    /// where connections are compared.
    #[inline]
    pub(super) fn compare(&mut self, cx: &Context) {
        if let Some(fresh) = self.server.fresh.as_deref_mut()
            && let Some(entry) =
                self.conn.entries.front().filter(|entry| is_measured(entry, self.conn))
        {
            let kind = if self.conn.owner.is_some() { Kind::Fresh } else { Kind::Kept };
            let waited_us = cx.now_us.saturating_sub(entry.ask.received_us);
            let begun = fresh.comparison.record(kind, cx.now_us, waited_us);
            self.server.stats.fresh_turns.add(u64::from(begun));
        }
    }
}

impl UpstreamConn {
    /// Whether its server has answered here, or begun to.
    pub(super) fn has_served(&self) -> bool {
        self.history.answers > 0 || self.reply.begun
    }

    /// Whether it was made for one request, and ends before the response to that has begun.
    pub(super) fn is_fruitless(&self) -> bool {
        self.owner.is_some() && !self.has_served()
    }
}
