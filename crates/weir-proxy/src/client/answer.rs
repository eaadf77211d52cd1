//! Answers on their way to the client: framing for this client, order, end (stages order and reply).

use std::sync::Arc;

use weir_http::{Fields, Framing, Persistence, Pseudonym, ReplyBody, ReplyHead};

use super::account::{Records, head_len};
use super::connections::Connections;
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::base::output::HIGH_BYTES;
use crate::base::piece::Piece;
use crate::cause::{Cause, Local};
use crate::client::connection::{AnswerFraming, Phase, Reading, ReplyConstraints};
use crate::context::Context;
use crate::cross::mail::AnswerHead;
use crate::cross::retry_copy::RetryCopies;
use crate::ending::ClientEnd;
use crate::forward::decide::proxy_lines;
use crate::observe::histogram::Histogram;
use crate::request::pending_request::{ClientName, LinkId, PendingRequest, RequestFlags};

/// Media type of the file that tells browsers how to use the proxy.
const PAC_TYPE: &str = "application/x-ns-proxy-autoconfig";

/// With 405 (RFC 9110 §15.5.6): what may be asked of anything here, as far as weir is concerned.
const ALLOW: &[u8] = b"Allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n";

/// Status line and end-to-end fields of an answer.
#[derive(Clone, Copy)]
pub(crate) enum Lines<'a> {
    /// As parsed here; `binding` is a field that comes on top, `date` what Date says where the answer has none.
    Parsed { input: &'a [u8], head: &'a ReplyHead, fields: &'a Fields, binding: &'a [u8], date: Option<[u8; 29]> },
    /// As serialised by another worker.
    Raw(&'a [u8]),
}

impl Lines<'_> {
    pub(crate) fn write(self, out: &mut Vec<u8>, via: Option<Pseudonym>) {
        match self {
            Lines::Parsed { input, head, fields, binding, date } => {
                weir_http::encode_reply_head(out, input, head, fields, via);
                out.extend_from_slice(binding);
                put_date(out, date);
            }
            Lines::Raw(bytes) => out.extend_from_slice(bytes),
        }
    }
}

/// The field Date (RFC 9110 §6.6.1).
fn put_date(out: &mut Vec<u8>, date: Option<[u8; 29]>) {
    if let Some(date) = date {
        out.extend_from_slice(b"Date: ");
        out.extend_from_slice(&date);
        out.extend_from_slice(b"\r\n");
    }
}

/// The source of an answer has to stop, because its client has more unsent than it may.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop {
    /// Which connection.
    pub link: LinkId,
    /// Whose answers.
    pub client: ClientName,
}

/// What clients are told: the answers to their requests in the order of those, and the ends of their connections.
///
/// Owns the tables, and says what happens in them to the access log. Nothing here can ask a server for anything: what has to be known there
/// (nobody wants this any more, go on) is mail.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(super) conns: Connections,
    pub(super) records: Records,
    /// Copies of requests that are with other workers.
    copies: RetryCopies,
    /// Time from the receipt of a request to the end of its answer, microseconds.
    latency: Arc<Histogram>,
}

impl Answers {
    /// None yet.
    pub(super) fn new(latency: Arc<Histogram>, cx: &Context) -> Answers {
        Answers {
            conns: Connections::default(),
            records: Records::new(&cx.plan, cx.worker),
            copies: RetryCopies::default(),
            latency,
        }
    }

    /// The copy of a request is not needed any more.
    #[inline]
    pub(super) fn release(&mut self, slot: ExchangeKey) {
        if let Some(kept) = self.conns.exchange_mut(slot).kept.take() {
            self.copies.give_back(kept);
        }
    }

    /// A request is with another worker.
    pub(super) fn note_away(&mut self, worker: u16, ask: &PendingRequest, bytes: &[u8]) {
        let exchange = self.conns.exchange_mut(ask.id.index);
        (exchange.asked, exchange.link) = (worker, None);
        if ask.traits.has(RequestFlags::RETRIABLE) && !ask.traits.has(RequestFlags::STREAMING) {
            exchange.kept = Some(self.copies.keep(*ask, bytes));
        }
    }

    /// Answers with an error behind everything that was asked before, and closes. `bytes` is what came of the request, from
    /// `since_us` on.
    pub(super) fn refuse(&mut self, index: ClientKey, cause: Cause, bytes: &[u8], since_us: u64, cx: &mut Context) {
        let session = self.conns.at_mut(index);
        session.flags.unread = true;
        session.read_as(Reading::Closing);
        let want = ReplyConstraints { close: true, body_open: true, ..ReplyConstraints::default() };
        let exchange = self.conns.push(index, want, cx);
        self.records.begin_refused(exchange, bytes, since_us);
        self.fail_exchange(exchange, cause, cx);
    }

    /// 100 Continue for a request whose body this worker is going to read (RFC 9110 §10.1.1).
    pub(super) fn invite_body(&mut self, slot: ExchangeKey, cx: &mut Context) {
        const LINE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
        self.conns.write(slot, |out| out.tail(&mut cx.spare).extend_from_slice(LINE));
        self.records.interim(slot, LINE.len());
        let session = self.conns.exchange(slot).session;
        self.conns.mark(session);
    }

    /// An interim answer: 102 and 103 pass on to clients that can read them; 100 was answered here.
    pub(super) fn answer_interim(&mut self, slot: ExchangeKey, status: u16, lines: Lines<'_>, cx: &mut Context) {
        if status == 100 || self.conns.exchange(slot).want.old {
            return;
        }
        cx.counters.interim.add(1);
        let via = cx.plan.client.pseudonym();
        let bytes = self.conns.write(slot, |out| {
            let out = out.tail(&mut cx.spare);
            let start = out.len();
            lines.write(out, via);
            out.extend_from_slice(b"\r\n");
            out.len() - start
        });
        self.records.interim(slot, bytes);
        let session = self.conns.exchange(slot).session;
        self.conns.mark(session);
    }

    /// The head of the final answer.
    pub(super) fn answer_begin(
        &mut self,
        slot: ExchangeKey,
        link: LinkId,
        head: AnswerHead,
        lines: Lines<'_>,
        cx: &mut Context,
    ) {
        // While the client has nothing of it, the request may still be asked again.
        if self.conns.at(self.conns.exchange(slot).session).first == slot {
            self.release(slot);
        }
        cx.counters.answer(head.status);
        let draining = self.conns.is_draining();
        let exchange = self.conns.exchange_mut(slot);
        exchange.enter(Phase::Answering);
        exchange.link = Some(link);
        exchange.await_more(cx.now_us);
        // What was asked behind it is answered before a drain closes the connection.
        let draining = draining && exchange.next == ExchangeKey::NONE;
        let unframed = matches!(head.body, ReplyBody::Chunked | ReplyBody::UntilClose);
        exchange.framing = match (unframed, exchange.want.old) {
            (false, _) => AnswerFraming::Plain,
            (true, false) => AnswerFraming::Chunked,
            (true, true) => AnswerFraming::UntilClose,
        };
        exchange.want.close |= draining || exchange.want.body_open || exchange.framing == AnswerFraming::UntilClose;
        let framing = match (head.body, exchange.framing) {
            (ReplyBody::None, _) if head.status == 204 || head.status < 200 => Framing::None,
            (ReplyBody::None, _) => head.declared_length.map_or(Framing::None, Framing::Length),
            (ReplyBody::Length(length), _) => Framing::Length(length),
            (_, AnswerFraming::Chunked) => Framing::Chunked,
            _ => Framing::None,
        };
        let persistence = match (exchange.want.close, exchange.want.old) {
            (true, _) => Persistence::Close,
            (false, true) => Persistence::KeepAlive,
            (false, false) => Persistence::Implied,
        };
        let via = cx.plan.client.pseudonym();
        let bytes = self.conns.write(slot, |out| {
            let out = out.tail(&mut cx.spare);
            let start = out.len();
            lines.write(out, via);
            weir_http::finish_reply_head(out, framing, persistence);
            out.len() - start
        });
        self.records.begun(slot, head.status, bytes, cx);
        let index = self.conns.exchange(slot).session;
        let session = self.conns.at_mut(index);
        if persistence == Persistence::Close {
            // Nobody could get the answer to what follows.
            session.take_no_more();
        }
        self.conns.mark(index);
    }

    /// 101: from here on the two connections are one tunnel (RFC 9110 §7.8).
    pub(super) fn answer_switch(
        &mut self,
        slot: ExchangeKey,
        link: LinkId,
        upgrade: &[u8],
        lines: Lines<'_>,
        cx: &mut Context,
    ) {
        let via = cx.plan.client.pseudonym();
        self.join_tunnel(
            slot,
            link,
            101,
            |out| {
                lines.write(out, via);
                weir_http::finish_reply_head(out, Framing::None, Persistence::Upgrade(upgrade));
            },
            cx,
        );
    }

    /// The connection that CONNECT wants is there: the two are one tunnel (RFC 9110 §9.3.6).
    pub(super) fn answer_connect(&mut self, slot: ExchangeKey, link: LinkId, cx: &mut Context) {
        let line = b"HTTP/1.1 200 Connection established\r\n\r\n";
        self.join_tunnel(slot, link, 200, |out| out.extend_from_slice(line), cx);
    }

    fn join_tunnel(
        &mut self,
        slot: ExchangeKey,
        link: LinkId,
        status: u16,
        write: impl FnOnce(&mut Vec<u8>),
        cx: &mut Context,
    ) {
        self.release(slot);
        cx.counters.answer(status);
        cx.counters.tunnels.add(1);
        cx.counters.tunnels_opened.add(1);
        let exchange = self.conns.exchange_mut(slot);
        exchange.enter(Phase::Answering);
        exchange.link = Some(link);
        let index = exchange.session;
        let bytes = self.conns.write(slot, |out| {
            let out = out.tail(&mut cx.spare);
            let start = out.len();
            write(out);
            out.len() - start
        });
        self.records.begun(slot, status, bytes, cx);
        let now_us = cx.now_us;
        let session = self.conns.at_mut(index);
        session.read_as(Reading::Tunnel);
        session.since_us = now_us;
        if session.stash.is_some() || session.flags.ended {
            // What came behind the request is for the tunnel.
            self.conns.look_again(index);
        }
        self.conns.mark(index);
        self.conns.arm(index, cx);
        self.conns.update_receive(index, cx);
        self.conns.want_relay(index, cx);
    }

    /// A piece of the answer's body. Whether its source has to stop.
    pub(super) fn answer_body(&mut self, slot: ExchangeKey, piece: Piece<'_>, cx: &mut Context) -> Option<Stop> {
        if piece.len() == 0 {
            return None;
        }
        let exchange = self.conns.exchange_mut(slot);
        exchange.await_more(cx.now_us);
        let (framing, index, link) = (exchange.framing, exchange.session, exchange.link);
        self.conns.write(slot, |out| {
            if framing == AnswerFraming::Chunked {
                weir_http::encode_chunk_head(out.tail(&mut cx.spare), piece.len());
            }
            piece.push_to(out, &mut cx.spare);
            if framing == AnswerFraming::Chunked {
                out.tail(&mut cx.spare).extend_from_slice(weir_http::CHUNK_TAIL);
            }
        });
        let session = self.conns.at_mut(index);
        if session.reading() == Reading::Tunnel {
            session.since_us = cx.now_us;
        }
        // The first answer must not wait for the later ones, which wait for it.
        let load = if session.first == slot { session.unsent_first() } else { session.unsent() };
        let stop = link.filter(|_| load >= HIGH_BYTES).map(|link| self.conns.stop_source(index, link, cx));
        self.conns.mark(index);
        stop
    }

    /// The answer is complete.
    pub(super) fn answer_end(&mut self, slot: ExchangeKey, trailers: &[u8], cx: &mut Context) {
        self.records.ended(slot, cx);
        self.release(slot);
        let exchange = self.conns.exchange_mut(slot);
        let index = exchange.session;
        exchange.enter(Phase::Done);
        self.latency.record(cx.now_us.saturating_sub(exchange.received_us));
        if exchange.framing == AnswerFraming::Chunked {
            let trailers = if exchange.want.trailers { trailers } else { &[] };
            self.conns.write(slot, |out| weir_http::encode_last_chunk(out.tail(&mut cx.spare), trailers));
        }
        if self.conns.exchange(slot).want.body_open {
            self.abandon_upload(slot, cx);
        }
        self.advance(index, cx);
    }

    /// The request gets an error made here.
    pub(super) fn fail_exchange(&mut self, slot: ExchangeKey, cause: Cause, cx: &mut Context) {
        self.fail_exchange_for(slot, cause, cause.retry_after_s(), cx);
    }

    /// The same, and the client may come again after so many seconds.
    pub(super) fn fail_exchange_for(
        &mut self,
        slot: ExchangeKey,
        cause: Cause,
        retry_after_s: Option<u32>,
        cx: &mut Context,
    ) {
        self.count_refusal(slot, cause, cx);
        self.records.blame(slot, cause, || self.conns.standing(slot));
        let exchange = self.conns.exchange_mut(slot);
        exchange.want.close |= cause.ends_connection();
        let proxied = self.conns.at(self.conns.exchange(slot).session).flags.proxied;
        let mut extra = if proxied { proxy_lines(cause, &cx.plan) } else { Vec::new() };
        put_date(&mut extra, cx.date());
        if cause.status() == 405 {
            extra.extend_from_slice(ALLOW);
        }
        self.answer_here(
            slot,
            cause.status(),
            |out, close, head| {
                weir_http::encode_error_reply(out, cause.status(), cause.word(), close, head, retry_after_s, &extra);
            },
            cx,
        );
    }

    /// The request gets an answer of weir's own.
    pub(super) fn answer_local(&mut self, slot: ExchangeKey, local: Local, cx: &mut Context) {
        let mut extra = Vec::new();
        match local {
            Local::Refused(cause) => self.fail_exchange(slot, cause, cx),
            Local::Options => {
                put_date(&mut extra, cx.date());
                self.answer_here(
                    slot,
                    200,
                    |out, close, head| {
                        weir_http::encode_error_reply(out, 200, "options", close, head, None, &extra);
                    },
                    cx,
                );
            }
            Local::Pac => {
                let pac = cx.plan.forward.as_ref().and_then(|forward| forward.pac.clone());
                let Some(pac) = pac else { return self.fail_exchange(slot, Cause::NoPac, cx) };
                put_date(&mut extra, cx.date());
                self.answer_here(
                    slot,
                    200,
                    |out, close, head| {
                        weir_http::encode_content_reply(out, PAC_TYPE, &pac, close, head, &extra);
                    },
                    cx,
                );
            }
        }
    }

    /// The request gets a whole answer made here. `encode` is told whether the connection ends with it, and whether it has no body.
    fn answer_here(
        &mut self,
        slot: ExchangeKey,
        status: u16,
        encode: impl FnOnce(&mut Vec<u8>, bool, bool),
        cx: &mut Context,
    ) {
        self.release(slot);
        cx.counters.answer(status);
        let draining = self.conns.is_draining();
        let exchange = self.conns.exchange_mut(slot);
        // It says nothing of keep-alive, without which HTTP/1.0 ends here.
        let draining = draining && exchange.next == ExchangeKey::NONE;
        exchange.want.close |= exchange.want.body_open || exchange.want.old || exchange.want.connect || draining;
        exchange.framing = AnswerFraming::Plain;
        let (close, head, index) = (exchange.want.close, exchange.want.head, exchange.session);
        let logs = self.records.are_kept();
        let head_bytes = self.conns.write(slot, |out| {
            let out = out.tail(&mut cx.spare);
            let start = out.len();
            encode(out, close, head);
            if logs { head_len(&out[start..]) } else { 0 }
        });
        self.records.made_here(slot, status, head_bytes, cx);
        self.conns.exchange_mut(slot).enter(Phase::Done);
        let session = self.conns.at_mut(index);
        if close {
            // At once: with answers in front of this one, parsing would go on.
            session.take_no_more();
        }
        if self.conns.exchange(slot).want.body_open {
            self.abandon_upload(slot, cx);
        }
        self.advance(index, cx);
    }

    /// The request of an exchange got an answer of weir's own, or not all of its answer.
    fn count_refusal(&mut self, slot: ExchangeKey, cause: Cause, cx: &mut Context) {
        cx.counters.refusals.count(cause);
        let session = self.conns.at(self.conns.exchange(slot).session);
        if session.flags.proxied {
            cx.usage.refused(session.account(), cause.word());
        }
    }

    /// No server answered, or not to the end.
    pub(super) fn answer_failed(&mut self, slot: ExchangeKey, cause: Cause, cx: &mut Context) {
        if self.conns.exchange(slot).phase() == Phase::Answering && !self.forget_beginning(slot, cx) {
            self.count_refusal(slot, cause, cx);
            self.records.blame(slot, cause, || self.conns.standing(slot));
            self.records.ended(slot, cx);
            self.truncate(slot, cx);
            return;
        }
        self.fail_exchange(slot, cause, cx);
    }

    /// Forgets what has come of an answer, if the client has nothing of it because it waits for its turn.
    pub(super) fn forget_beginning(&mut self, slot: ExchangeKey, cx: &Context) -> bool {
        if !self.conns.forget_beginning(slot) {
            return false;
        }
        self.take_back(slot, cx);
        self.records.taken_back(slot);
        true
    }

    /// The rest of a begun answer will not come: the connection ends behind what there is, so that the client notices.
    fn truncate(&mut self, slot: ExchangeKey, cx: &mut Context) {
        let exchange = self.conns.exchange_mut(slot);
        let index = exchange.session;
        exchange.enter(Phase::Done);
        exchange.want.close = true;
        exchange.want.cut = exchange.framing == AnswerFraming::UntilClose;
        if self.conns.at(index).reading() == Reading::Tunnel {
            self.break_tunnel(index, cx);
            return;
        }
        if self.conns.exchange(slot).want.body_open {
            self.abandon_upload(slot, cx);
        }
        self.advance(index, cx);
    }

    /// Lets answers go that are complete and first; all contiguous ready ones leave in one send.
    fn advance(&mut self, index: ClientKey, cx: &mut Context) {
        let mut closing = false;
        while !closing {
            let first = self.conns.at(index).first;
            if first == ExchangeKey::NONE || self.conns.exchange(first).phase() != Phase::Done {
                break;
            }
            self.records.complete(index, || self.conns.ending(index, &cx.plan.client), cx);
            let done = self.conns.pop(index);
            closing = done.want.close;
            let session = self.conns.at_mut(index);
            session.flags.reset |= done.want.cut;
            if session.first == ExchangeKey::NONE && session.reading() == Reading::Await {
                // An upgrade was refused, or one that waits for its turn may be parsed now. That it waited was not its client's doing.
                session.read_as(Reading::Head);
                session.since_us = cx.now_us;
            }
            if session.first != ExchangeKey::NONE && !closing {
                let next = session.first;
                self.conns.give_held(index, &mut cx.spare);
                if self.conns.exchange(next).phase() == Phase::Answering {
                    self.release(next);
                }
            }
        }
        if closing {
            self.drop_exchanges(index, ClientEnd::Closed, cx);
            let client = self.conns.name(index, cx);
            let session = self.conns.at_mut(index);
            session.held_bytes = 0;
            session.flags.close = true;
            // An upload belonged to one of the requests that were dropped.
            let upload = session.upload.take();
            session.flags.unread |= session.stash.take().is_some() || upload.is_some();
            session.flags.body_paused = false;
            session.read_as(Reading::Closing);
            session.resume_sources(client, cx);
            self.conns.update_receive(index, cx);
        } else {
            self.conns.relieve(index, cx);
            self.conns.arm_awaited(index, cx);
        }
        self.conns.mark(index);
    }
}
