//! What must hold of clients between any two turns
//! ([`Engine::audit`](crate::engine::Engine::audit)).

use super::Connections;
use crate::base::check::{at_most, equal};
use crate::base::keys::{ClientKey, Key};
use crate::base::output::HIGH_BYTES;
use crate::client::connection::{ClientConn, Phase, Reading};
use crate::client::input::STASH_BYTES_END;
use crate::client::stalls::audit_stalls;
use crate::client::unsent::{coding, unsent};
use crate::context::Context;
use crate::request::pending_request::ExchangeId;

/// Bytes that a single receive from a server may add to a client's output, after reading from the
/// server was stopped.
const RECEIVE_BYTES_MAX: usize = 64 * 1024;

impl Connections {
    /// Looks for impossible states. `carried`: requests as often as the servers' side has them.
    ///
    /// # Errors
    /// The first broken invariant, in words.
    pub(crate) fn audit(&self, carried: &[ExchangeId], cx: &Context) -> Result<(), String> {
        let mut exchanges = 0;
        for (index, conn) in self.all() {
            if let Some(streams) = self.carriers.get(index) {
                streams
                    .audit(&self.conns, |conn| coding(self, conn))
                    .map_err(|text| format!("client {index}: {text}"))?;
            }
            exchanges += conn.codec.requests() as usize;
            self.audit_conn(index, conn, cx).map_err(|text| format!("client {index}: {text}"))?;
        }
        equal("requests of all clients", exchanges, self.exchanges() + self.caches.fetches)?;
        self.audit_carriers(carried, cx)?;
        audit_stalls(self)?;
        equal(
            "client_connections",
            cx.counters.client_connections.get() as usize,
            self.len() + cx.flows,
        )
    }

    /// Looks for queues that hold more bytes than docs/buffers.md allows.
    ///
    /// # Errors
    /// The first exceeded bound, in words.
    pub(crate) fn audit_bytes(&self, cx: &Context) -> Result<(), String> {
        // Each response to a client may come from another connection, which stops one receive late.
        let late = (cx.plan.client.requests_queued_max as usize + 4) * RECEIVE_BYTES_MAX;
        for (index, conn) in self.all() {
            at_most(
                "bytes unsent for a client",
                unsent(self, index),
                HIGH_BYTES + late + conn.reserved(),
            )?;
            let window = if conn.stream.is_some() { cx.http2.window_bytes as usize } else { 0 };
            at_most("bytes of a client unparsed", conn.stashed(), STASH_BYTES_END.max(window))?;
        }
        Ok(())
    }

    /// Every request that this worker carries for its own clients is carried once; with one worker
    /// none is forgotten either.
    fn audit_carriers(&self, carried: &[ExchangeId], cx: &Context) -> Result<(), String> {
        let mut counts = vec![0; self.exchanges.slots()];
        let mine = carried.iter().filter(|id| id.worker == cx.worker && self.holds(**id));
        mine.for_each(|id| counts[id.index.index()] += 1);
        for slot in self.exchanges.keys() {
            let exchange = self.exchanges.at(slot);
            let (phase, count) = (exchange.phase(), counts[slot.index()]);
            let conn = self.conns.at(exchange.conn);
            let unseen =
                phase == Phase::Waiting || phase == Phase::Answering && !conn.codec.leaves(slot);
            if exchange.kept.is_some() && !(unseen && exchange.asked != cx.worker) {
                return Err(format!(
                    "request {slot} ({phase:?}) is kept although no other worker has it or its \
                        client has seen some of the answer"
                ));
            }
            // A tunnel whose server has closed both directions continues until its client has
            // everything.
            let awaited = phase == Phase::Waiting
                || phase == Phase::Answering && conn.reading() != Reading::Tunnel;
            let awaited = awaited && !exchange.is_with_cache();
            let least = usize::from(awaited && cx.workers == 1);
            if count > 1 || count < least {
                return Err(format!("request {slot} ({phase:?}) is at {count} places"));
            }
        }
        Ok(())
    }

    fn audit_conn(&self, index: ClientKey, conn: &ClientConn, cx: &Context) -> Result<(), String> {
        let mut bodies = 0;
        conn.codec.audit(&self.exchanges, |exchange| {
            bodies += usize::from(exchange.upload.is_some());
            equal("its request belongs to client", exchange.conn.index(), index.index())
        })?;
        let is_read = conn.reading() == Reading::Body;
        equal("bodies that are being read", bodies, usize::from(is_read))?;
        if is_read && self.inward(conn).is_none_or(|exchange| exchange.upload.is_none()) {
            return Err("the body that is being read is not the newest request's".to_owned());
        }
        // A refusal comes on top of the maximum number of requests.
        at_most(
            "unanswered requests",
            conn.codec.requests() as usize,
            cx.plan.client.requests_queued_max as usize + 1,
        )?;
        self.audit_patience(index, conn, cx)
    }

    /// Checks that every wait has a timer. A small send sets none: the timer that is set anyway
    /// covers it.
    fn audit_patience(
        &self,
        index: ClientKey,
        conn: &ClientConn,
        cx: &Context,
    ) -> Result<(), String> {
        let due_us = self.deadline(index, cx);
        if due_us < conn.armed_us && !conn.flags.sending {
            return Err(format!(
                "its patience ends at {due_us} us, its timer comes at {} us",
                conn.armed_us
            ));
        }
        Ok(())
    }
}
