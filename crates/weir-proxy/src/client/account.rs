//! What the access log learns of each exchange, from accept to the last byte (stage account).
//!
//! Called where things happen. Without a log each call is one branch: facts that only a log needs
//! are passed as closures. The worker that owns the client has the record; facts known to the
//! worker of the upstream connection reach it with
//! [`Mail::Placed`](crate::cross::mail::Mail::Placed).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use weir_cache::Served;
use weir_http::{Fields, RequestHead};

use super::connections::Connections;
use crate::base::encoder::Coding;
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::cause::Cause;
use crate::client::connection::{Phase, Reading};
use crate::context::Context;
use crate::ending::ClientEnd;
use crate::forward::lookup::User;
use crate::observe::access::{Access, Blame, Compressed, FlowLine, Placed, Record, Stage};
use crate::observe::secured::Secured;
use crate::plan::{ClientPlan, Plan};
use crate::request::client_address::{client_address, client_scheme};
use crate::request::rules::Ruled;

/// The records of exchanges under way, if there is an access log.
#[derive(Debug)]
pub(crate) struct Records {
    access: Option<Box<Access>>,
}

/// The state of an exchange, as far as its record does not contain it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    phase: Phase,
    is_tunnel: bool,
}

/// The facts about a connection that belong in the record of its first exchange when that ends.
#[derive(Debug)]
pub(super) struct Ending {
    slot: ExchangeKey,
    standing: Standing,
    /// Bytes that the client has not taken.
    unsent: usize,
    glitches: u32,
    /// The connection ends with this exchange, because of its glitches.
    is_last_by_glitches: bool,
    /// Bytes received of a body that is not complete.
    received: Option<u64>,
}

impl Connections {
    /// The state of an exchange.
    pub(super) fn standing(&self, slot: ExchangeKey) -> Standing {
        let exchange = self.exchange(slot);
        Standing {
            phase: exchange.phase(),
            is_tunnel: self.at(exchange.conn).reading() == Reading::Tunnel,
        }
    }

    /// The facts that a record needs when the current exchange of a connection ends.
    pub(super) fn ending(&self, index: ClientKey, slot: ExchangeKey, plan: &ClientPlan) -> Ending {
        let conn = self.at(index);
        Ending {
            slot,
            standing: self.standing(slot),
            unsent: conn.outgoing(),
            glitches: conn.glitches,
            is_last_by_glitches: conn.ends_by_glitches(plan) && self.exchange(slot).want.close,
            received: self.exchange(slot).upload.as_ref().map(|upload| upload.received),
        }
    }
}

impl Standing {
    /// The stage in the words of the log; `unsent`: the stage of a waiting request that was not
    /// sent yet.
    fn stage(self, record: &Record, unsent: Stage) -> Stage {
        match self.phase {
            Phase::Reading if record.has_body => Stage::Body,
            Phase::Reading => Stage::Head,
            // A body that streams fails after it was forwarded.
            Phase::Waiting if unsent == Stage::Body => Stage::Body,
            Phase::Waiting if record.tries > 0 => Stage::Wait,
            Phase::Waiting => unsent,
            Phase::Answering if self.is_tunnel => Stage::Tunnel,
            Phase::Answering | Phase::Encoding => Stage::Answer,
            Phase::Done => Stage::Deliver,
        }
    }
}

impl Ending {
    /// Records how many glitches the client had, and whether its connection ends with this exchange
    /// because of them.
    fn keep_glitches(&self, record: &mut Record) {
        record.glitches = self.glitches;
        record.last_because =
            if self.is_last_by_glitches { ClientEnd::Glitches.into() } else { Blame::default() };
    }
}

impl Records {
    /// Creates it without records.
    pub(super) fn new(plan: &Arc<Plan>, worker: u16) -> Records {
        Records { access: Access::new(plan, worker) }
    }

    /// Adopts a new plan, which has a log if the previous plan had one.
    pub(super) fn adopt(&mut self, plan: &Arc<Plan>) {
        if let Some(access) = &mut self.access {
            access.adopt(plan);
        }
    }

    /// Gives out the lines of the access log since the last call and their number, if there are
    /// any.
    pub(crate) fn take_lines(&mut self, to: impl FnOnce(&[u8], u64)) {
        if let Some(access) = &mut self.access {
            access.take_lines(to);
        }
    }

    /// Whether there is an access log.
    #[inline]
    pub(crate) fn are_kept(&self) -> bool {
        self.access.is_some()
    }

    /// Sets the wall clock: see [`Engine::set_wall`](crate::engine::Engine::set_wall).
    pub(crate) fn set_wall(&mut self, offset_us: i64, zone_s: i32) {
        if let Some(access) = &mut self.access {
            access.set_wall(offset_us, zone_s);
        }
    }

    #[inline]
    fn of(&mut self, slot: ExchangeKey) -> Option<&mut Record> {
        self.access.as_mut()?.record(slot)
    }

    /// A client was accepted.
    pub(super) fn accepted(&mut self, index: ClientKey, peer: SocketAddr) {
        if let Some(access) = &mut self.access {
            access.accepted(index, peer);
        }
    }

    /// A stream of a connection was opened.
    pub(super) fn stream_opened(&mut self, index: ClientKey, carrier: ClientKey) {
        if let Some(access) = &mut self.access {
            access.stream_opened(index, carrier);
        }
    }

    /// A client that was accepted speaks TLS.
    pub(super) fn sealed(&mut self, index: ClientKey, secured: Secured) {
        if let Some(access) = &mut self.access {
            access.sealed(index, secured);
        }
    }

    /// A request has begun. `peer`: the other end of its connection, which may be a trusted proxy,
    /// and whether it speaks TLS.
    #[inline]
    pub(super) fn begin(
        &mut self,
        slot: ExchangeKey,
        peer: Option<(IpAddr, bool)>,
        head: &RequestHead,
        fields: &Fields,
        bytes: &[u8],
        cx: &Context,
    ) {
        if let Some(access) = &mut self.access {
            let (record, names) = access.begin(slot, cx.now_us);
            record.keep_request(bytes, head, fields, names);
            let Some((peer, sealed)) = peer else { return };
            let client = client_address(peer, fields, bytes, &cx.plan.client);
            if client != peer {
                record.keep_client(client);
            }
            let spoken = client_scheme(peer, sealed, fields, bytes, &cx.plan.client);
            if spoken.sealed != sealed {
                record.keep_scheme(spoken.sealed);
            }
        }
    }

    /// Records the identifier of a request, and its user where that was verified.
    pub(super) fn ruled(&mut self, slot: ExchangeKey, ruled: &Ruled) {
        if let (Some(record), Some(identity)) = (self.of(slot), ruled.identity()) {
            record.keep_identity(identity);
        }
        if let Some(user) = ruled.user() {
            self.asked_by(slot, user);
        }
    }

    /// Records the verified user.
    pub(super) fn asked_by(&mut self, slot: ExchangeKey, user: &User) {
        if let Some(record) = self.of(slot) {
            record.keep_user(user.name.as_bytes());
        }
    }

    /// Something was refused before it was a request: `bytes` are its beginning, and the first of
    /// them arrived at `since_us`.
    pub(super) fn begin_refused(&mut self, slot: ExchangeKey, bytes: &[u8], since_us: u64) {
        if let Some(access) = &mut self.access {
            access.begin(slot, since_us).0.keep_refused(bytes);
        }
    }

    /// The request has a body.
    pub(super) fn has_body(&mut self, slot: ExchangeKey) {
        if let Some(record) = self.of(slot) {
            record.has_body = true;
        }
    }

    /// This many bytes of the body arrived; `complete`: the body is complete.
    pub(super) fn body(&mut self, slot: ExchangeKey, bytes: u64, complete: bool, cx: &Context) {
        if let Some(record) = self.of(slot) {
            record.request_bytes += bytes;
            record.body_us = complete.then_some(cx.now_us);
        }
    }

    /// It is forwarded to an upstream; `to`: the address that its client connected to, if the
    /// upstream leads there.
    #[inline]
    pub(super) fn forwarded(
        &mut self,
        slot: ExchangeKey,
        upstream: usize,
        to: impl FnOnce() -> Option<SocketAddr>,
        cx: &Context,
    ) {
        if let Some(record) = self.of(slot) {
            record.upstream = Some(upstream as u16);
            record.keep_destination(to());
            record.forwarded_us = Some(cx.now_us);
        }
    }

    /// It was put on a connection.
    pub(super) fn placed(&mut self, slot: ExchangeKey, placed: Placed) {
        if let Some(record) = self.of(slot) {
            record.first_sent_us.get_or_insert(placed.sent_us);
            record.first_connected_us.get_or_insert(placed.connected_us);
            record.placed = Some(placed);
            record.tries += 1;
        }
    }

    /// The head of the final response was written.
    #[inline]
    pub(super) fn begun(&mut self, slot: ExchangeKey, status: u16, bytes: usize, cx: &Context) {
        if let Some(record) = self.of(slot) {
            record.status = status;
            record.begun_us = Some(cx.now_us);
            record.head_bytes += bytes as u64;
        }
    }

    /// An interim response was written.
    pub(super) fn interim(&mut self, slot: ExchangeKey, bytes: usize) {
        if let Some(record) = self.of(slot) {
            record.head_bytes += bytes as u64;
        }
    }

    /// The client gets nothing of the response that had begun.
    pub(super) fn taken_back(&mut self, slot: ExchangeKey) {
        if let Some(record) = self.of(slot) {
            (record.status, record.begun_us, record.head_bytes) = (0, None, 0);
        }
    }

    /// The response was compressed: bytes that went in and came out.
    pub(super) fn compressed(&mut self, slot: ExchangeKey, coding: Coding, taken: u64, given: u64) {
        if let Some(record) = self.of(slot) {
            record.content.compressed = Some(Compressed { coding, taken, given });
        }
    }

    /// What it got on a route with `cache`: the last call wins.
    #[inline]
    pub(super) fn served(&mut self, slot: ExchangeKey, served: Served) {
        if let Some(record) = self.of(slot) {
            record.content.served = Some(served);
        }
    }

    /// Nothing more comes from the server.
    #[inline]
    pub(super) fn ended(&mut self, slot: ExchangeKey, cx: &Context) {
        if let Some(record) = self.of(slot) {
            record.ended_us = Some(cx.now_us);
        }
    }

    /// Weir made the response itself; its head has this many bytes.
    pub(super) fn made_here(
        &mut self,
        slot: ExchangeKey,
        status: u16,
        head_bytes: usize,
        cx: &Context,
    ) {
        if let Some(record) = self.of(slot) {
            record.status = status;
            record.head_bytes += head_bytes as u64;
            record.ended_us = Some(cx.now_us);
        }
    }

    /// Why the exchange will not be completed.
    pub(super) fn blame(
        &mut self,
        slot: ExchangeKey,
        cause: Cause,
        standing: impl FnOnce() -> Standing,
    ) {
        if let Some(record) = self.of(slot) {
            let stage = standing().stage(record, cause.stage());
            record.blame(cause.into(), stage);
        }
    }

    /// The kernel took this many more bytes for a client.
    #[inline]
    pub(super) fn delivered(&mut self, index: ClientKey, bytes: u64, cx: &Context) {
        if let Some(access) = &mut self.access {
            access.delivered(index, bytes, cx.now_us);
        }
    }

    /// The first response of a connection is complete, and all of it is in the connection's output.
    #[inline]
    pub(super) fn complete(
        &mut self,
        index: ClientKey,
        ending: impl FnOnce() -> Ending,
        cx: &Context,
    ) {
        let Some(access) = &mut self.access else { return };
        let ending = ending();
        if let Some(record) = access.record(ending.slot) {
            ending.keep_glitches(record);
        }
        let stream_bytes = access.delivered_bytes(index) + ending.unsent as u64;
        access.complete(index, ending.slot, stream_bytes, cx.now_us);
    }

    /// The connection ends, and with it responses that are complete but not sent.
    pub(super) fn closed(&mut self, index: ClientKey, why: ClientEnd, cx: &Context) {
        if let Some(access) = &mut self.access {
            access.close(index, why.into(), cx.now_us);
        }
    }

    /// A connection of `tcp` has ended.
    pub(crate) fn flow_ended(&mut self, cx: &Context, line: impl FnOnce(u64) -> FlowLine) {
        if let Some(access) = &mut self.access {
            access.flow_ended(line(cx.now_us));
        }
    }

    /// The first exchange of a connection will not be completed.
    pub(super) fn abandoned(
        &mut self,
        index: ClientKey,
        why: ClientEnd,
        ending: impl FnOnce() -> Ending,
        cx: &Context,
    ) {
        let Some(access) = &mut self.access else { return };
        let ending = ending();
        let mut stage = Stage::Done;
        if let Some(record) = access.record(ending.slot) {
            if let Some(received) = ending.received {
                record.request_bytes += received;
                record.body_us = None;
            }
            ending.keep_glitches(record);
            stage = ending.standing.stage(record, Stage::Queue);
            if stage == Stage::Tunnel {
                record.ended_us = Some(cx.now_us);
            }
        }
        access.abandon(index, ending.slot, why.into(), stage, cx.now_us);
    }
}
