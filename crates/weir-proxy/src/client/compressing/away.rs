//! When encoders flush, move to another thread and come back, and when compressed responses end
//! (stage reply). docs/compression.md.
//!
//! At the end of a turn, all received input of a large response leaves with its encoder as one
//! [`Job`](crate::request::encoding::Job); input that arrives meanwhile is the next job, as soon as
//! the encoder is back. So nothing is delayed, and each response has at most one job away. A job
//! that comes back late, for a response that is no longer wanted or for machines that have been
//! replaced, is dropped.

use weir_http::Trailers;

use crate::action::Action;
use crate::base::keys::ExchangeKey;
use crate::cause::Cause;
use crate::client::answer::Answers;
use crate::client::compressing::Compressing;
use crate::client::connection::Phase;
use crate::client::stalls::carrier_of;
use crate::context::Context;
use crate::cross::answer::ASIDE_CLIENT_MAX;
use crate::request::encoding::Encoded;
use crate::request::pending_request::ExchangeId;
use crate::request::rules::compress::is_of_bytes;

/// Fewer bytes are encoded here, whatever the response: an event of a stream is done before another
/// thread is awake.
const AWAY_BYTES_MIN: usize = 4096;

impl Answers {
    /// The input that an encoder has taken, or that waits for it, has to leave with this turn's
    /// sends.
    pub(in crate::client) fn note_unflushed(&mut self, slot: ExchangeKey, cx: &Context) {
        let id = self.conns.exchange_id(slot, cx);
        if let Some(compressing) = &mut self.conns.exchange_mut(slot).compressing
            && !std::mem::replace(&mut compressing.keeps, true)
        {
            self.encoders.unflushed.push(id);
        }
    }

    /// Flushes encoders to their clients, and sends waiting input to other threads, unless its
    /// response is gone.
    pub(in crate::client) fn flush_encoders(&mut self, cx: &mut Context) {
        let mut unflushed = std::mem::take(&mut self.encoders.unflushed);
        for id in unflushed.drain(..) {
            if self.conns.is_in(id, Phase::Answering) || self.conns.is_in(id, Phase::Encoding) {
                self.flush_encoder(id, cx);
            }
        }
        // Keeps the entries added meanwhile.
        std::mem::swap(&mut unflushed, &mut self.encoders.unflushed);
        self.encoders.unflushed.append(&mut unflushed);
    }

    fn flush_encoder(&mut self, id: ExchangeId, cx: &mut Context) {
        let (mut codec, exchange) = self.conns.codec(id.index);
        let Some(compressing) =
            exchange.compressing.as_mut().filter(|compressing| compressing.keeps)
        else {
            return;
        };
        if !compressing.waiting.is_empty() {
            compressing.keeps = false;
            return self.send_encoder(id, cx);
        }
        let piece = compressing.flush(&cx.counters);
        if !piece.is_empty() {
            codec.body(id.index, exchange, piece, &mut cx.spare);
            let index = exchange.conn;
            self.await_client(index, cx);
            self.conns.mark(index);
        }
    }

    /// Encodes the waiting input of an encoder, unless the encoder is away: then that happens on
    /// its return.
    fn send_encoder(&mut self, id: ExchangeId, cx: &mut Context) {
        let compressing = self.conns.exchange_mut(id.index).compressing.as_mut();
        let Some(job) = compressing.and_then(|compressing| compressing.leave(id)) else { return };
        if job.bytes() < AWAY_BYTES_MIN {
            return self.take_encoded(*job.run(), cx);
        }
        cx.counters.compressions_away.add(1);
        cx.actions.push_back(Action::Encode(job));
    }

    /// A job that was away is back. It is dropped if its machines are gone.
    pub(in crate::client) fn on_encoded(&mut self, encoded: Encoded, cx: &mut Context) {
        if encoded.share.is_of(&self.encoders.bytes) {
            cx.counters.compressions_away.sub(1);
            self.take_encoded(encoded, cx);
        }
    }

    fn take_encoded(&mut self, encoded: Encoded, cx: &mut Context) {
        let label = encoded.label;
        let (id, slot) = (label.id, label.id.index);
        if !self.conns.holds(id) {
            return;
        }
        let (mut codec, exchange) = self.conns.codec(slot);
        let Some(compressing) =
            exchange.compressing.as_mut().filter(|one| one.number == label.number)
        else {
            return;
        };
        compressing.worked_us = cx.now_us;
        let piece = compressing.come_back(encoded, &cx.counters);
        let (coding_bytes, is_busy) = (compressing.coding_bytes(), compressing.is_busy());
        codec.set_coding(slot, exchange, coding_bytes);
        if !piece.is_empty() {
            codec.body(slot, exchange, piece, &mut cx.spare);
        }
        let index = exchange.conn;
        if exchange.phase() == Phase::Encoding && !is_busy {
            let Some(mut compressing) = exchange.compressing.take() else { return };
            let lines = compressing.end.take().unwrap_or_default();
            return self.end_compressed(slot, compressing, Trailers::kept(&lines), cx);
        }
        self.await_client(index, cx);
        self.conns.mark(index);
        // Fewer bytes count than before the encoding, and neither side was late until here.
        self.conns.relieve(index, cx);
        self.conns.arm_awaited(index, cx);
        self.give_up_asides(carrier_of(&self.conns, index), ASIDE_CLIENT_MAX, cx);
        if self.conns.holds(id) {
            self.send_encoder(id, cx);
        }
    }

    /// All of a compressed response has arrived. It is complete, can't be completed, or will be
    /// once all of it is encoded.
    pub(in crate::client) fn end_compressed(
        &mut self,
        slot: ExchangeKey,
        mut compressing: Box<Compressing>,
        trailers: Trailers<'_>,
        cx: &mut Context,
    ) {
        let mut lines = Vec::new();
        for (name, value) in trailers.fields().filter(|(name, _)| !is_of_bytes(name)) {
            lines.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
        }
        if compressing.is_busy() {
            compressing.end = Some(lines);
            return self.await_encoder(slot, compressing, cx);
        }
        let Some(rest) = compressing.finish(&cx.counters) else {
            return self.answer_failed(slot, Cause::Truncated, cx);
        };
        let [taken, given] = compressing.bytes;
        self.records.compressed(slot, compressing.coding, taken, given);
        let (mut codec, exchange) = self.conns.codec(slot);
        if !rest.is_empty() {
            codec.body(slot, exchange, rest, &mut cx.spare);
        }
        self.await_client(self.conns.exchange(slot).conn, cx);
        self.answer_ends(slot, Trailers::kept(&lines), cx);
    }

    /// A response has arrived, and is not encoded yet: no server is involved any more.
    fn await_encoder(
        &mut self,
        slot: ExchangeKey,
        compressing: Box<Compressing>,
        cx: &mut Context,
    ) {
        let exchange = self.conns.exchange_mut(slot);
        exchange.compressing = Some(compressing);
        exchange.enter(Phase::Encoding);
        let body_open = exchange.want.body_open;
        self.release(slot);
        if body_open {
            self.abandon_upload(slot, cx);
        }
    }
}
