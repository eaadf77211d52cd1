//! Messages from and to the servers' side, besides requests.

use weir_http::Trailers;

use super::answer::Answers;
use super::cache::{self, fetched};
use super::uploads::may_send_body;
use crate::base::keys::ExchangeKey;
use crate::base::piece::Piece;
use crate::cause::Cause;
use crate::client::connection::{NO_WORKER, Phase, Reading};
use crate::context::Context;
use crate::cross::answer::{AnswerHead, Source, Stop};
use crate::cross::retry_copy::RetryCopy;
use crate::ending::ClientEnd;
use crate::observe::access::Placed;
use crate::request::pending_request::{ConnId, ExchangeId, PendingRequest};

impl Answers {
    /// A request is back from another worker.
    pub(crate) fn take_back(&mut self, slot: ExchangeKey, cx: &Context) {
        let exchange = self.conns.exchange_mut(slot);
        (exchange.asked, exchange.server_conn) = (cx.worker, None);
        self.release_copy(slot);
    }

    /// The head of a response has arrived.
    pub(crate) fn on_answer_head(
        &mut self,
        id: ExchangeId,
        from: ConnId,
        head: &AnswerHead<'_>,
        cx: &mut Context,
    ) {
        let slot = id.index;
        if !self.conns.is_in(id, Phase::Waiting) {
            return;
        }
        if self.conns.exchange(slot).is_fetch() {
            return fetched::on_head(self, slot, from, head, cx);
        }
        let index = self.conns.exchange(slot).conn;
        if self.conns.at(index).is_given_up() {
            if head.parts.status < 200 {
                return;
            }
            // The server has finished its work: only the rest of the response is still under way.
            self.conns.throw_away(id, from, cx);
            return self.end_given_up(slot, cx);
        }
        match (head.parts.status, head.upgrade) {
            (101, Some(_)) => self.answer_switch(slot, from, head, cx),
            (100..200, _) => self.answer_interim(slot, &head.parts, cx),
            _ => cache::begin(self, slot, Source::Server(from), head, cx),
        }
    }

    /// Takes a piece of a response body or of a tunnel.
    #[inline]
    pub(crate) fn on_answer_piece(
        &mut self,
        id: ExchangeId,
        piece: Piece<'_>,
        cx: &mut Context,
    ) -> Option<Stop> {
        match self.conns.is_in(id, Phase::Answering) {
            true if self.conns.exchange(id.index).is_fetch() => {
                fetched::on_piece(self, id.index, piece, cx)
            }
            true => self.answer_body(id.index, piece, cx),
            false => None,
        }
    }

    /// A response is complete, or a tunnel's server has closed its direction.
    #[inline]
    pub(crate) fn on_answer_end(
        &mut self,
        id: ExchangeId,
        trailers: Trailers<'_>,
        cx: &mut Context,
    ) {
        if !self.conns.is_in(id, Phase::Answering) {
            return;
        }
        if self.conns.exchange(id.index).is_fetch() {
            return fetched::on_end(self, id.index, trailers, cx);
        }
        let index = self.conns.exchange(id.index).conn;
        if self.conns.at(index).reading() == Reading::Tunnel {
            self.tunnel_answer_ended(index);
        } else {
            self.answer_end(id.index, trailers, cx);
        }
    }

    /// A response, or the rest of it, will not come.
    pub(crate) fn on_answer_fails(&mut self, id: ExchangeId, cause: Cause, cx: &mut Context) {
        if self.conns.holds(id)
            && !matches!(self.conns.exchange(id.index).phase(), Phase::Encoding | Phase::Done)
        {
            self.answer_failed(id.index, cause, cx);
        }
    }

    /// A request comes back to be sent to another server. False: it is no longer wanted, or its
    /// client has seen some of the response.
    pub(crate) fn on_again(&mut self, ask: &PendingRequest, cx: &mut Context) -> bool {
        let slot = ask.id.index;
        if !self.conns.holds(ask.id) {
            return false;
        }
        if fetched::end_given_up(self, slot, cx) {
            return false;
        }
        let phase = self.conns.exchange(slot).phase();
        match phase {
            Phase::Waiting if self.conns.at(self.conns.exchange(slot).conn).is_given_up() => {
                self.end_given_up(slot, cx);
                return false;
            }
            Phase::Waiting => {}
            Phase::Answering if self.forget_beginning(slot, cx) => {}
            Phase::Answering => {
                self.answer_failed(slot, Cause::Truncated, cx);
                return false;
            }
            Phase::Reading | Phase::Encoding | Phase::Done => return false,
        }
        self.take_back(slot, cx);
        true
    }

    /// Moves a request to another worker's connections. False: it is no longer wanted.
    pub(crate) fn on_move(
        &mut self,
        worker: u16,
        ask: PendingRequest,
        bytes: &[u8],
        cx: &mut Context,
    ) -> bool {
        if !self.conns.holds(ask.id) || fetched::end_given_up(self, ask.id.index, cx) {
            return false;
        }
        if self.conns.at(self.conns.exchange(ask.id.index).conn).is_given_up() {
            self.end_given_up(ask.id.index, cx);
            return false;
        }
        self.note_away(worker, &ask, bytes);
        true
    }

    /// A request that was given up is no longer with any server.
    pub(crate) fn on_withdrawn(&mut self, id: ExchangeId, cx: &mut Context) {
        if self.conns.is_in(id, Phase::Waiting) && self.conns.exchange(id.index).is_fetch() {
            return fetched::withdrawn(self, id.index, cx);
        }
        if self.conns.is_in(id, Phase::Waiting)
            && self.conns.at(self.conns.exchange(id.index).conn).is_given_up()
        {
            self.end_given_up(id.index, cx);
        }
    }

    /// A request that was given up is with no server: its stream is over, and no longer counts.
    pub(super) fn end_given_up(&mut self, slot: ExchangeKey, cx: &mut Context) {
        let exchange = self.conns.exchange_mut(slot);
        (exchange.server_conn, exchange.asked) = (None, NO_WORKER);
        let index = exchange.conn;
        self.close_conn(index, ClientEnd::ClientReset, cx);
    }

    /// The connection for a CONNECT is ready.
    pub(crate) fn on_joined(&mut self, id: ExchangeId, server_conn: ConnId, cx: &mut Context) {
        if self.conns.holds(id) {
            self.answer_connect(id.index, server_conn, cx);
        }
    }

    /// Takes the copy of a request that another worker had, if the client has nothing of the
    /// response; None: it has no copy, or is no longer wanted.
    pub(crate) fn take_copy(&mut self, id: ExchangeId, cx: &Context) -> Option<Box<RetryCopy>> {
        let kept =
            if self.conns.holds(id) { self.conns.exchange_mut(id.index).kept.take() } else { None };
        if kept.is_some() {
            self.forget_beginning(id.index, cx);
        }
        kept
    }

    /// A request was put on a connection.
    pub(crate) fn on_placed(&mut self, id: ExchangeId, placed: Placed) {
        if self.conns.holds(id) {
            self.records.placed(cache::reader_of(&self.conns, id.index), placed);
        }
    }

    /// Holds back the body of a request, or lets it continue.
    pub(crate) fn on_body_flow(&mut self, id: ExchangeId, pause: bool, cx: &mut Context) {
        if !self.conns.holds(id) {
            return;
        }
        if let Some(upload) = self.conns.exchange_mut(id.index).upload.as_mut() {
            // While weir does not read it, the client is not responsible for its rate.
            upload.begin_window(cx.now_us);
        }
        let_body_flow(self, id, pause, cx);
    }

    /// A request of a stream, or with a streaming body, has its connection: the rest of its body
    /// may come.
    pub(crate) fn on_assigned(&mut self, id: ExchangeId, server_conn: ConnId, cx: &mut Context) {
        if !self.conns.holds(id) {
            return;
        }
        self.conns.exchange_mut(id.index).server_conn = Some(server_conn);
        if self.conns.at(self.conns.exchange(id.index).conn).is_given_up() {
            // The message was on its way when the client gave the request up.
            self.conns.withdraw(id.index, cx);
        } else {
            may_send_body(self, id, false, cx);
        }
    }
}

/// Holds back the body of a request that is known to exist, or lets it continue; its rate is still
/// measured.
pub(super) fn let_body_flow(answers: &mut Answers, id: ExchangeId, pause: bool, cx: &mut Context) {
    let now_us = cx.now_us;
    let index = answers.conns.exchange(id.index).conn;
    let is_tunnel = answers.conns.at(index).reading() == Reading::Tunnel;
    let exchange = answers.conns.exchange_mut(id.index);
    if exchange.upload.is_none() && !is_tunnel {
        // The message crossed the end of its body.
        return;
    }
    exchange.held_back = pause;
    if let Some(upload) = exchange.upload.as_mut().filter(|upload| upload.awaits_continue) {
        exchange.held_back = true;
        // It has lost its connection: the time for its server begins with the next connection.
        upload.pass_on_us = if pause { u64::MAX } else { upload.pass_on_us };
    }
    let pause = exchange.held_back;
    let conn = answers.conns.at_mut(index);
    conn.since_us = now_us;
    if !pause && (conn.has_waiting_input() || conn.flags.ended) {
        answers.conns.look_again(index);
    }
    answers.conns.update_receive(index, cx);
    answers.conns.arm(index, cx);
}
