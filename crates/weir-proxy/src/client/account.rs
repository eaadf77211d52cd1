//! What the access log learns of each exchange, from accept to the last byte (stage account).
//!
//! Called where things happen; without a log each of these is one branch. The worker that owns the client has the record;
//! what the worker of the upstream connection knows comes to it with [`Mail::Placed`](crate::cross::mail::Mail::Placed).

use std::net::SocketAddr;

use weir_http::{Fields, RequestHead};

use super::Clients;
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::cause::Cause;
use crate::client::connection::{Phase, Reading};
use crate::context::Context;
use crate::ending::ClientEnd;
use crate::observe::access::{Blame, Placed, Stage};
use crate::request::pending_request::ExchangeId;

impl Clients {
    /// Gives out the lines of the access log since the last call and how many they are, if there are any.
    pub(crate) fn take_lines(&mut self, to: impl FnOnce(&[u8], u64)) {
        if let Some(access) = &mut self.access {
            access.take_lines(to);
        }
    }

    /// Whether there is an access log.
    pub(crate) fn logs(&self) -> bool {
        self.access.is_some()
    }

    /// What the clock on the wall shows: see [`Engine::set_wall`](crate::engine::Engine::set_wall).
    pub(crate) fn set_wall(&mut self, offset_us: i64, zone_s: i32) {
        if let Some(access) = &mut self.access {
            access.set_wall(offset_us, zone_s);
        }
    }

    pub(super) fn note_client(&mut self, session: ClientKey, peer: SocketAddr) {
        if let Some(access) = &mut self.access {
            access.accepted(session, peer);
        }
    }

    pub(super) fn note_request(
        &mut self,
        slot: ExchangeKey,
        head: &RequestHead,
        fields: &Fields,
        bytes: &[u8],
        cx: &Context,
    ) {
        if let Some(access) = &mut self.access {
            let (record, names) = access.begin(slot, cx.now_us);
            record.keep_request(bytes, head, fields, names);
        }
    }

    /// Who asks, where that was verified.
    pub(super) fn note_user(&mut self, slot: ExchangeKey) {
        let session = self.conns.exchange(slot).session;
        let proxied = self.conns.at(session).proxied.as_deref();
        if let (Some(access), Some(user)) = (&mut self.access, proxied.and_then(|proxied| proxied.asker.as_ref()))
            && let Some(record) = access.record(slot)
        {
            record.keep_user(user.name.as_bytes());
        }
    }

    /// Something was refused before it was a request: `bytes` are the beginning of it, the first of them came at `since_us`.
    pub(super) fn note_refused(&mut self, slot: ExchangeKey, bytes: &[u8], since_us: u64) {
        if let Some(access) = &mut self.access {
            access.begin(slot, since_us).0.keep_refused(bytes);
        }
    }

    pub(super) fn note_upload(&mut self, slot: ExchangeKey) {
        if let Some(record) = self.access.as_mut().and_then(|access| access.record(slot)) {
            record.has_body = true;
        }
    }

    /// So many bytes of the body came; `complete`: that is all of it.
    pub(super) fn note_body(&mut self, slot: ExchangeKey, bytes: u64, complete: bool, cx: &Context) {
        if let Some(record) = self.access.as_mut().and_then(|access| access.record(slot)) {
            record.request_bytes += bytes;
            record.body_us = complete.then_some(cx.now_us);
        }
    }

    pub(super) fn note_forwarded(&mut self, slot: ExchangeKey, upstream: usize, cx: &Context) {
        if let Some(record) = self.access.as_mut().and_then(|access| access.record(slot)) {
            record.upstream = Some(upstream as u16);
            record.forwarded_us = Some(cx.now_us);
        }
    }

    pub(crate) fn on_placed(&mut self, id: ExchangeId, placed: Placed) {
        if !self.conns.holds(id) {
            return;
        }
        if let Some(record) = self.access.as_mut().and_then(|access| access.record(id.index)) {
            record.first_sent_us.get_or_insert(placed.sent_us);
            record.first_connected_us.get_or_insert(placed.connected_us);
            record.placed = Some(placed);
            record.tries += 1;
        }
    }

    /// The head of the final answer was written.
    pub(super) fn note_begun(&mut self, slot: ExchangeKey, status: u16, bytes: usize, cx: &Context) {
        if let Some(record) = self.access.as_mut().and_then(|access| access.record(slot)) {
            record.status = status;
            record.begun_us = Some(cx.now_us);
            record.head_bytes += bytes as u64;
        }
    }

    /// An interim answer was written.
    pub(super) fn note_interim(&mut self, slot: ExchangeKey, bytes: usize) {
        if let Some(record) = self.access.as_mut().and_then(|access| access.record(slot)) {
            record.head_bytes += bytes as u64;
        }
    }

    /// The client gets nothing of the answer that had begun.
    pub(super) fn note_taken_back(&mut self, slot: ExchangeKey) {
        if let Some(record) = self.access.as_mut().and_then(|access| access.record(slot)) {
            (record.status, record.begun_us, record.head_bytes) = (0, None, 0);
        }
    }

    /// Nothing more comes from the server.
    pub(super) fn note_ended(&mut self, slot: ExchangeKey, cx: &Context) {
        if let Some(record) = self.access.as_mut().and_then(|access| access.record(slot)) {
            record.ended_us = Some(cx.now_us);
        }
    }

    /// An answer was made here, whose head has so many bytes.
    pub(super) fn note_local(&mut self, slot: ExchangeKey, status: u16, head_bytes: usize, cx: &Context) {
        if let Some(record) = self.access.as_mut().and_then(|access| access.record(slot)) {
            record.status = status;
            record.head_bytes += head_bytes as u64;
            record.ended_us = Some(cx.now_us);
        }
    }

    /// Why the exchange will not be completed.
    pub(super) fn note_blame(&mut self, slot: ExchangeKey, cause: Cause) {
        let stage = self.stage(slot, cause.stage());
        if let Some(record) = self.access.as_mut().and_then(|access| access.record(slot)) {
            record.blame(cause.into(), stage);
        }
    }

    /// Where an exchange stands; `unsent`: where it does if it waits and was not sent yet.
    fn stage(&mut self, slot: ExchangeKey, unsent: Stage) -> Stage {
        let Some(record) = self.access.as_mut().and_then(|access| access.record(slot)) else { return Stage::Done };
        let exchange = self.conns.exchange(slot);
        match exchange.phase {
            Phase::Reading if record.has_body => Stage::Body,
            Phase::Reading => Stage::Head,
            // A body that streams fails after it was forwarded.
            Phase::Waiting if unsent == Stage::Body => Stage::Body,
            Phase::Waiting if record.tries > 0 => Stage::Wait,
            Phase::Waiting => unsent,
            Phase::Answering if self.conns.at(exchange.session).reading == Reading::Tunnel => Stage::Tunnel,
            Phase::Answering => Stage::Answer,
            Phase::Done => Stage::Deliver,
        }
    }

    /// The first answer of a session is complete, and all of it is in the session's output.
    pub(super) fn note_complete(&mut self, index: ClientKey, cx: &Context) {
        self.note_glitches(index, cx);
        let Some(access) = &mut self.access else { return };
        let session = self.conns.at(index);
        let stream_bytes = access.delivered_bytes(index) + session.unsent_first() as u64;
        access.complete(index, session.first, stream_bytes, cx.now_us);
    }

    /// How strange the client has been when its first exchange ends, and whether its connection ends with it for that.
    fn note_glitches(&mut self, index: ClientKey, cx: &Context) {
        if self.access.is_none() {
            return;
        }
        let session = self.conns.at(index);
        let last = session.ends_by_glitches(&cx.plan.client) && self.conns.exchange(session.first).want.close;
        let (first, glitches) = (session.first, session.glitches);
        if let Some(record) = self.access.as_mut().and_then(|access| access.record(first)) {
            record.glitches = glitches;
            record.last_because = if last { ClientEnd::Glitches.into() } else { Blame::default() };
        }
    }

    /// The connection ends, and with it answers that are complete but not sent.
    pub(super) fn note_closed(&mut self, index: ClientKey, why: ClientEnd, cx: &Context) {
        if let Some(access) = &mut self.access {
            access.close(index, why.into(), cx.now_us);
        }
    }

    /// The first exchange of a session will not be completed.
    pub(super) fn note_abandoned(&mut self, index: ClientKey, why: ClientEnd, cx: &Context) {
        if self.access.is_none() {
            return;
        }
        let slot = self.conns.at(index).first;
        self.note_body_so_far(index, slot, cx);
        self.note_glitches(index, cx);
        let stage = self.stage(slot, Stage::Queue);
        if stage == Stage::Tunnel {
            self.note_ended(slot, cx);
        }
        if let Some(access) = &mut self.access {
            access.abandon(index, slot, why.into(), stage, cx.now_us);
        }
    }

    /// Counts what came of a body that is not complete.
    fn note_body_so_far(&mut self, index: ClientKey, slot: ExchangeKey, cx: &Context) {
        let upload = self.conns.at(index).upload.as_ref().filter(|upload| upload.exchange == slot);
        if let Some(received) = upload.map(|upload| upload.received) {
            self.note_body(slot, received, false, cx);
        }
    }
}

/// Length of a message's head.
pub(super) fn head_len(message: &[u8]) -> usize {
    message.windows(4).position(|four| four == b"\r\n\r\n").map_or(message.len(), |at| at + 4)
}
