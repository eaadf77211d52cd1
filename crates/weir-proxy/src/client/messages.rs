//! What comes from the servers' side and goes there, besides requests.

use super::Clients;
use super::answer::{Lines, Stop};
use crate::base::keys::ExchangeKey;
use crate::base::piece::Piece;
use crate::cause::Cause;
use crate::client::connection::{Phase, Reading};
use crate::context::Context;
use crate::cross::mail::{AnswerHead, Mail};
use crate::cross::retry_copy::RetryCopy;
use crate::cross::router::Requests;
use crate::request::pending_request::{ClientName, ExchangeId, LinkId, PendingRequest};

impl Clients {
    /// A request is here again.
    pub(crate) fn take_back(&mut self, slot: ExchangeKey, cx: &Context) {
        let exchange = self.exchanges.at_mut(slot);
        (exchange.asked, exchange.link) = (cx.worker, None);
        self.release(slot);
    }

    /// The copy of a request is not needed any more.
    #[inline]
    pub(super) fn release(&mut self, slot: ExchangeKey) {
        if let Some(kept) = self.exchanges.at_mut(slot).kept.take() {
            self.shelf.give_back(kept);
        }
    }

    /// The head of an answer has come.
    pub(crate) fn on_answer_head(
        &mut self,
        id: ExchangeId,
        from: LinkId,
        head: AnswerHead,
        upgrade: Option<&[u8]>,
        lines: Lines<'_>,
        cx: &mut Context,
    ) {
        let slot = id.index;
        if !self.is_in(id, Phase::Waiting) {
            return;
        }
        match (head.status, upgrade) {
            (101, Some(upgrade)) => self.answer_switch(slot, from, upgrade, lines, cx),
            (100..200, _) => self.answer_interim(slot, head.status, lines, cx),
            _ => self.answer_begin(slot, from, head, lines, cx),
        }
    }

    /// Whether somebody waits for an answer, and it stands there.
    #[inline]
    fn is_in(&self, id: ExchangeId, phase: Phase) -> bool {
        self.holds(id) && self.exchanges.at(id.index).phase == phase
    }

    /// Whether somebody still waits for an answer.
    pub(crate) fn holds(&self, id: ExchangeId) -> bool {
        self.exchanges.holds(id.index, id.generation)
    }

    /// A piece of an answer's body or of a tunnel.
    #[inline]
    pub(crate) fn on_answer_piece(&mut self, id: ExchangeId, piece: Piece<'_>, cx: &mut Context) -> Option<Stop> {
        if self.is_in(id, Phase::Answering) { self.answer_body(id.index, piece, cx) } else { None }
    }

    /// An answer is complete, or a tunnel's server has closed its direction.
    #[inline]
    pub(crate) fn on_answer_end(&mut self, id: ExchangeId, trailers: &[u8], cx: &mut Context) {
        if !self.is_in(id, Phase::Answering) {
            return;
        }
        let index = self.exchanges.at(id.index).session;
        if self.sessions.at(index).reading == Reading::Tunnel {
            self.tunnel_answer_ended(index);
        } else {
            self.answer_end(id.index, trailers, cx);
        }
    }

    /// There is no answer, or no rest of it.
    pub(crate) fn on_answer_fails(&mut self, id: ExchangeId, cause: Cause, cx: &mut Context) {
        if self.holds(id) && self.exchanges.at(id.index).phase != Phase::Done {
            self.answer_failed(id.index, cause, cx);
        }
    }

    /// A request comes back to be served by another server. False: nobody wants it any more, or its client has seen some of the answer.
    pub(crate) fn on_again(&mut self, ask: &PendingRequest, cx: &mut Context) -> bool {
        let slot = ask.id.index;
        if !self.holds(ask.id) {
            return false;
        }
        let phase = self.exchanges.at(slot).phase;
        match phase {
            Phase::Waiting => {}
            Phase::Answering if self.forget_beginning(slot, cx) => {}
            Phase::Answering => {
                self.answer_failed(slot, Cause::Truncated, cx);
                return false;
            }
            Phase::Reading | Phase::Done => return false,
        }
        self.take_back(slot, cx);
        true
    }

    /// A request goes to another worker's connections. False: nobody wants it any more.
    pub(crate) fn on_move(&mut self, worker: u16, ask: PendingRequest, bytes: &[u8]) -> bool {
        let wanted = self.holds(ask.id);
        if wanted {
            self.note_away(worker, &ask, bytes);
        }
        wanted
    }

    /// The connection that CONNECT wants is there.
    pub(crate) fn on_joined(&mut self, id: ExchangeId, link: LinkId, cx: &mut Context) {
        if self.holds(id) {
            self.answer_connect(id.index, link, cx);
        }
    }

    /// Requests of clients here that another worker has, answered in part or not at all.
    pub(crate) fn asked_of(&self, worker: u16, cx: &Context) -> Vec<ExchangeId> {
        let owed = |slot: &ExchangeKey| {
            let exchange = self.exchanges.at(*slot);
            let at = exchange.link.map_or(exchange.asked, |link| link.worker);
            at == worker && matches!(exchange.phase, Phase::Waiting | Phase::Answering)
        };
        self.exchanges.keys().filter(owed).map(|slot| self.exchange_id(slot, cx)).collect()
    }

    /// The copy of a request that another worker had, of whose answer the client has nothing; None: there is no copy, or nobody waits any
    /// more.
    pub(crate) fn take_copy(&mut self, id: ExchangeId, cx: &Context) -> Option<Box<RetryCopy>> {
        let kept = if self.holds(id) { self.exchanges.at_mut(id.index).kept.take() } else { None };
        if kept.is_some() {
            self.forget_beginning(id.index, cx);
        }
        kept
    }

    /// Holds the body of a request back, or goes on.
    pub(crate) fn on_body_flow(&mut self, id: ExchangeId, pause: bool, cx: &mut Context) {
        if !self.exchanges.holds(id.index, id.generation) {
            return;
        }
        let index = self.exchanges.at(id.index).session;
        let now_us = cx.now_us;
        let session = self.sessions.at_mut(index);
        let uploading = session.upload.as_ref().is_some_and(|upload| upload.exchange == id.index);
        if !uploading && session.reading != Reading::Tunnel {
            // It crossed the end of its body; the next body of this client is not meant.
            return;
        }
        session.flags.body_paused = pause;
        session.since_us = now_us;
        if let Some(upload) = session.upload.as_mut() {
            // While weir does not read it, its rate is not its client's affair.
            upload.begin_window(now_us);
        }
        let generation = self.sessions.generation(index);
        if !pause && self.sessions.at(index).stash.is_some() {
            self.to_parse.push_back((index, generation));
        }
        self.update_receive(index, cx);
        self.arm_session(index, cx);
    }

    /// A streaming request has its connection: the rest of its body may come.
    pub(crate) fn on_assigned(&mut self, id: ExchangeId, link: LinkId, cx: &mut Context) {
        if self.exchanges.holds(id.index, id.generation) {
            self.exchanges.at_mut(id.index).link = Some(link);
            self.on_body_flow(id, false, cx);
        }
    }

    // ---- towards the servers' side ----

    /// A source of answers that was stopped for a client may go on.
    pub(super) fn resume_source(&mut self, link: LinkId, client: ClientName, cx: &mut Context) {
        cx.post(link.worker, Mail::Flow { link, client, pause: false });
    }

    /// A piece of a request body or of a tunnel.
    pub(super) fn body_to_link(
        &mut self,
        slot: ExchangeKey,
        piece: Piece<'_>,
        end: bool,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) {
        let exchange = self.exchanges.at(slot);
        let Some(link) = exchange.link else { return };
        let client = self.client_name(exchange.session, cx);
        to.body(self.exchange_id(slot, cx), client, link, piece, end, cx);
    }

    /// Tells whoever was asked that the answer is not wanted any more. `hard`: a connection that carries it has to end.
    pub(super) fn cancel_upstream(&mut self, slot: ExchangeKey, hard: bool, cx: &mut Context) {
        let exchange = self.exchanges.at(slot);
        if !matches!(exchange.phase, Phase::Waiting | Phase::Answering) {
            return;
        }
        let link = exchange.link;
        let worker = link.map_or(exchange.asked, |link| link.worker);
        let (id, client) = (self.exchange_id(slot, cx), self.client_name(exchange.session, cx));
        cx.post(worker, Mail::Cancel { id, hard, client, link });
    }
}
