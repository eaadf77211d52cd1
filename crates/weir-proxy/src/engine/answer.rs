//! Answers on their way to the client: framing for this client, order, end (stages order and reply).

use weir_http::{Fields, Framing, Persistence, Pseudonym, ReplyBody, ReplyHead};

use super::account::head_len;
use super::{Engine, HIGH_BYTES, Piece};
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::base::output::Output;
use crate::base::slab::Slab;
use crate::cause::{Cause, Local};
use crate::client::connection::{AnswerFraming, ClientConn, Exchange, Phase, Reading};
use crate::cross::mail::AnswerHead;
use crate::ending::ClientEnd;
use crate::request::pending_request::LinkId;

/// Media type of the file that tells browsers how to use the proxy.
const PAC_TYPE: &str = "application/x-ns-proxy-autoconfig";

/// With 405 (RFC 9110 §15.5.6): what may be asked of anything here, as far as weir is concerned.
const ALLOW: &[u8] = b"Allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n";

/// Status line and end-to-end fields of an answer.
#[derive(Clone, Copy)]
pub(super) enum Lines<'a> {
    /// As parsed here; `binding` is a field that comes on top, `date` what Date says where the answer has none.
    Parsed { input: &'a [u8], head: &'a ReplyHead, fields: &'a Fields, binding: &'a [u8], date: Option<[u8; 29]> },
    /// As serialised by another worker.
    Raw(&'a [u8]),
}

impl Lines<'_> {
    pub(super) fn write(self, out: &mut Vec<u8>, via: Option<Pseudonym>) {
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

/// Where an exchange's answer goes: to the client when it is first, else into keeping.
fn output_of<'a>(
    sessions: &'a mut Slab<ClientKey, ClientConn>,
    exchanges: &'a mut Slab<ExchangeKey, Exchange>,
    slot: ExchangeKey,
) -> &'a mut Output {
    let session = sessions.at_mut(exchanges.at(slot).session);
    if session.first == slot { &mut session.output } else { &mut exchanges.at_mut(slot).held }
}

impl Engine {
    fn account_held(&mut self, slot: ExchangeKey, before: usize) {
        let exchange = self.exchanges.at(slot);
        let session = self.sessions.at_mut(exchange.session);
        if session.first != slot {
            session.held_bytes += (exchange.held.len() - before) as u32;
        }
    }

    fn held_len(&self, slot: ExchangeKey) -> usize {
        self.exchanges.at(slot).held.len()
    }

    /// 100 Continue for a request whose body this worker is going to read (RFC 9110 §10.1.1).
    pub(super) fn invite_body(&mut self, slot: ExchangeKey) {
        let before = self.held_len(slot);
        let out = output_of(&mut self.sessions, &mut self.exchanges, slot).tail(&mut self.spare);
        out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        self.note_interim(slot, b"HTTP/1.1 100 Continue\r\n\r\n".len());
        self.account_held(slot, before);
        let session = self.exchanges.at(slot).session;
        self.mark_session(session);
    }

    /// An interim answer: 102 and 103 pass on to clients that can read them; 100 was answered here.
    pub(super) fn answer_interim(&mut self, slot: ExchangeKey, status: u16, lines: Lines<'_>) {
        if status == 100 || self.exchanges.at(slot).want.old {
            return;
        }
        self.counters.interim.add(1);
        let before = self.held_len(slot);
        let via = self.plan.client.pseudonym();
        let out = output_of(&mut self.sessions, &mut self.exchanges, slot).tail(&mut self.spare);
        let start = out.len();
        lines.write(out, via);
        out.extend_from_slice(b"\r\n");
        let bytes = out.len() - start;
        self.note_interim(slot, bytes);
        self.account_held(slot, before);
        let session = self.exchanges.at(slot).session;
        self.mark_session(session);
    }

    /// The head of the final answer.
    pub(super) fn answer_begin(&mut self, slot: ExchangeKey, link: LinkId, head: AnswerHead, lines: Lines<'_>) {
        // While the client has nothing of it, the request may still be asked again.
        if self.sessions.at(self.exchanges.at(slot).session).first == slot {
            self.release(slot);
        }
        self.counters.answer(head.status);
        let now_us = self.now_us;
        let draining = self.is_draining();
        let exchange = self.exchanges.at_mut(slot);
        exchange.phase = Phase::Answering;
        exchange.link = Some(link);
        exchange.deadline_us = now_us.saturating_add(exchange.patience_us);
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
        let before = exchange.held.len();
        let via = self.plan.client.pseudonym();
        let out = output_of(&mut self.sessions, &mut self.exchanges, slot).tail(&mut self.spare);
        let start = out.len();
        lines.write(out, via);
        weir_http::finish_reply_head(out, framing, persistence);
        let bytes = out.len() - start;
        self.note_begun(slot, head.status, bytes);
        self.account_held(slot, before);
        let index = self.exchanges.at(slot).session;
        let session = self.sessions.at_mut(index);
        if persistence == Persistence::Close && session.reading == Reading::Head {
            // Nobody could get the answer to what follows.
            session.reading = Reading::Closing;
        }
        self.mark_session(index);
    }

    /// 101: from here on the two connections are one tunnel (RFC 9110 §7.8).
    pub(super) fn answer_switch(&mut self, slot: ExchangeKey, link: LinkId, upgrade: &[u8], lines: Lines<'_>) {
        let via = self.plan.client.pseudonym();
        self.join_tunnel(slot, link, 101, |out| {
            lines.write(out, via);
            weir_http::finish_reply_head(out, Framing::None, Persistence::Upgrade(upgrade));
        });
    }

    /// The connection that CONNECT wants is there: the two are one tunnel (RFC 9110 §9.3.6).
    pub(super) fn answer_connect(&mut self, slot: ExchangeKey, link: LinkId) {
        let line = b"HTTP/1.1 200 Connection established\r\n\r\n";
        self.join_tunnel(slot, link, 200, |out| out.extend_from_slice(line));
    }

    fn join_tunnel(&mut self, slot: ExchangeKey, link: LinkId, status: u16, write: impl FnOnce(&mut Vec<u8>)) {
        self.release(slot);
        self.counters.answer(status);
        self.counters.tunnels.add(1);
        self.counters.tunnels_opened.add(1);
        let exchange = self.exchanges.at_mut(slot);
        exchange.phase = Phase::Answering;
        exchange.link = Some(link);
        let index = exchange.session;
        let out = output_of(&mut self.sessions, &mut self.exchanges, slot).tail(&mut self.spare);
        let start = out.len();
        write(out);
        let bytes = out.len() - start;
        self.note_begun(slot, status, bytes);
        let now_us = self.now_us;
        let session = self.sessions.at_mut(index);
        session.reading = Reading::Tunnel;
        session.since_us = now_us;
        let waiting = session.stash.is_some();
        let ended = session.flags.ended;
        if waiting {
            self.parse_stash(index);
        }
        if ended {
            self.tunnel_client_ended(index);
        }
        self.mark_session(index);
        self.arm_session(index);
        self.update_receive(index);
        self.want_relay(index);
    }

    /// A piece of the answer's body. Tells the source to stop when this client has too much unsent.
    pub(super) fn answer_body(&mut self, slot: ExchangeKey, piece: Piece<'_>) {
        if piece.len() == 0 {
            return;
        }
        let now_us = self.now_us;
        let exchange = self.exchanges.at_mut(slot);
        exchange.deadline_us = now_us.saturating_add(exchange.patience_us);
        let (framing, index, link) = (exchange.framing, exchange.session, exchange.link);
        let before = exchange.held.len();
        let out = output_of(&mut self.sessions, &mut self.exchanges, slot);
        if framing == AnswerFraming::Chunked {
            weir_http::encode_chunk_head(out.tail(&mut self.spare), piece.len());
        }
        piece.push_to(out, &mut self.spare);
        if framing == AnswerFraming::Chunked {
            out.tail(&mut self.spare).extend_from_slice(weir_http::CHUNK_TAIL);
        }
        self.account_held(slot, before);
        let session = self.sessions.at_mut(index);
        if session.reading == Reading::Tunnel {
            session.since_us = self.now_us;
        }
        // The first answer must not wait for the later ones, which wait for it.
        let load = if session.first == slot { session.unsent_first() } else { session.unsent() };
        if load >= HIGH_BYTES
            && let Some(link) = link
        {
            self.stop_source(index, link);
        }
        self.mark_session(index);
    }

    /// Tells a connection not to bring more. Each time, because it goes on by itself to answers for other clients.
    fn stop_source(&mut self, index: ClientKey, link: LinkId) {
        let stopped = &mut self.sessions.at_mut(index).paused.get_or_insert_default().links;
        if !stopped.contains(&link) {
            stopped.push(link);
        }
        let client = self.client_name(index);
        self.flow(link, client, true);
    }

    /// The answer is complete.
    pub(super) fn answer_end(&mut self, slot: ExchangeKey, trailers: &[u8]) {
        self.note_ended(slot);
        self.release(slot);
        let exchange = self.exchanges.at_mut(slot);
        let index = exchange.session;
        exchange.phase = Phase::Done;
        self.latency.record(self.now_us.saturating_sub(exchange.received_us));
        if exchange.framing == AnswerFraming::Chunked {
            let trailers = if exchange.want.trailers { trailers } else { &[] };
            let before = exchange.held.len();
            let out = output_of(&mut self.sessions, &mut self.exchanges, slot);
            weir_http::encode_last_chunk(out.tail(&mut self.spare), trailers);
            self.account_held(slot, before);
        }
        if self.exchanges.at(slot).want.body_open {
            self.abandon_upload(slot);
        }
        self.advance(index);
    }

    /// The request gets an error made here.
    pub(super) fn fail_exchange(&mut self, slot: ExchangeKey, cause: Cause) {
        self.fail_exchange_for(slot, cause, cause.retry_after_s());
    }

    /// The same, and the client may come again after so many seconds.
    pub(super) fn fail_exchange_for(&mut self, slot: ExchangeKey, cause: Cause, retry_after_s: Option<u32>) {
        self.count_refusal(slot, cause);
        self.note_blame(slot, cause);
        let exchange = self.exchanges.at_mut(slot);
        exchange.want.close |= cause.ends_connection();
        let mut extra = self.proxy_lines(self.exchanges.at(slot).session, cause);
        put_date(&mut extra, self.date());
        if cause.status() == 405 {
            extra.extend_from_slice(ALLOW);
        }
        self.answer_here(slot, cause.status(), |out, close, head| {
            weir_http::encode_error_reply(out, cause.status(), cause.word(), close, head, retry_after_s, &extra);
        });
    }

    /// The request gets an answer of weir's own.
    pub(super) fn answer_local(&mut self, slot: ExchangeKey, local: Local) {
        let mut extra = Vec::new();
        match local {
            Local::Refused(cause) => self.fail_exchange(slot, cause),
            Local::Options => {
                put_date(&mut extra, self.date());
                self.answer_here(slot, 200, |out, close, head| {
                    weir_http::encode_error_reply(out, 200, "options", close, head, None, &extra);
                });
            }
            Local::Pac => {
                let pac = self.plan.forward.as_ref().and_then(|forward| forward.pac.clone());
                let Some(pac) = pac else { return self.fail_exchange(slot, Cause::NoPac) };
                put_date(&mut extra, self.date());
                self.answer_here(slot, 200, |out, close, head| {
                    weir_http::encode_content_reply(out, PAC_TYPE, &pac, close, head, &extra);
                });
            }
        }
    }

    /// The request gets a whole answer made here. `encode` is told whether the connection ends with it, and whether it has no body.
    fn answer_here(&mut self, slot: ExchangeKey, status: u16, encode: impl FnOnce(&mut Vec<u8>, bool, bool)) {
        self.release(slot);
        self.counters.answer(status);
        let draining = self.is_draining();
        let exchange = self.exchanges.at_mut(slot);
        // It says nothing of keep-alive, without which HTTP/1.0 ends here.
        let draining = draining && exchange.next == ExchangeKey::NONE;
        exchange.want.close |= exchange.want.body_open || exchange.want.old || exchange.want.connect || draining;
        exchange.framing = AnswerFraming::Plain;
        let (close, head, index) = (exchange.want.close, exchange.want.head, exchange.session);
        let before = self.held_len(slot);
        let out = output_of(&mut self.sessions, &mut self.exchanges, slot).tail(&mut self.spare);
        let start = out.len();
        encode(out, close, head);
        let head_bytes = if self.access.is_some() { head_len(&out[start..]) } else { 0 };
        self.note_local(slot, status, head_bytes);
        self.exchanges.at_mut(slot).phase = Phase::Done;
        self.account_held(slot, before);
        let session = self.sessions.at_mut(index);
        if close && session.reading == Reading::Head {
            // At once: with answers in front of this one, parsing would go on.
            session.reading = Reading::Closing;
        }
        if self.exchanges.at(slot).want.body_open {
            self.abandon_upload(slot);
        }
        self.advance(index);
    }

    /// No server answered, or not to the end.
    pub(super) fn answer_failed(&mut self, slot: ExchangeKey, cause: Cause) {
        if self.exchanges.at(slot).phase == Phase::Answering && !self.forget_beginning(slot) {
            self.count_refusal(slot, cause);
            self.note_blame(slot, cause);
            self.note_ended(slot);
            self.truncate(slot);
            return;
        }
        self.fail_exchange(slot, cause);
    }

    /// Forgets what has come of an answer, if the client has nothing of it because it waits for its turn.
    pub(super) fn forget_beginning(&mut self, slot: ExchangeKey) -> bool {
        let exchange = self.exchanges.at_mut(slot);
        let session = self.sessions.at_mut(exchange.session);
        if session.first == slot || exchange.phase != Phase::Answering {
            return false;
        }
        session.held_bytes -= std::mem::take(&mut exchange.held).len() as u32;
        exchange.phase = Phase::Waiting;
        self.take_back(slot);
        self.note_taken_back(slot);
        true
    }

    /// The rest of a begun answer will not come: the connection ends behind what there is, so that the client notices.
    fn truncate(&mut self, slot: ExchangeKey) {
        let exchange = self.exchanges.at_mut(slot);
        let index = exchange.session;
        exchange.phase = Phase::Done;
        exchange.want.close = true;
        exchange.want.cut = exchange.framing == AnswerFraming::UntilClose;
        if self.sessions.at(index).reading == Reading::Tunnel {
            self.break_tunnel(index);
            return;
        }
        if self.exchanges.at(slot).want.body_open {
            self.abandon_upload(slot);
        }
        self.advance(index);
    }

    /// Lets answers go that are complete and first; all contiguous ready ones leave in one send.
    fn advance(&mut self, index: ClientKey) {
        let mut closing = false;
        while !closing {
            let first = self.sessions.at(index).first;
            if first == ExchangeKey::NONE || self.exchanges.at(first).phase != Phase::Done {
                break;
            }
            self.note_complete(index);
            let done = self.pop_exchange(index);
            closing = done.want.close;
            let session = self.sessions.at_mut(index);
            session.flags.reset |= done.want.cut;
            if session.first == ExchangeKey::NONE && session.reading == Reading::Await {
                // An upgrade was refused, or one that waits for its turn may be parsed now. That it waited was not its client's doing.
                (session.reading, session.since_us) = (Reading::Head, self.now_us);
            }
            if session.first != ExchangeKey::NONE && !closing {
                let next = session.first;
                let exchange = self.exchanges.at_mut(next);
                let held = std::mem::take(&mut exchange.held);
                session.held_bytes -= held.len() as u32;
                session.output.append(held, &mut self.spare);
                if exchange.phase == Phase::Answering {
                    self.release(next);
                }
            }
        }
        if closing {
            self.drop_exchanges(index, ClientEnd::Closed);
            let session = self.sessions.at_mut(index);
            session.held_bytes = 0;
            session.flags.close = true;
            // An upload belonged to one of the requests that were dropped.
            let upload = session.upload.take();
            session.flags.unread |= session.stash.take().is_some() || upload.is_some();
            session.flags.body_paused = false;
            session.reading = Reading::Closing;
            let paused = session.paused.take();
            let client = self.client_name(index);
            for link in paused.map_or_else(Vec::new, |paused| paused.links) {
                self.flow(link, client, false);
            }
            self.update_receive(index);
        } else {
            self.relieve(index);
            self.await_next(index);
        }
        self.mark_session(index);
    }

    /// A request that is the first one now may have less patience left than the one before was given.
    fn await_next(&mut self, index: ClientKey) {
        let session = self.sessions.at(index);
        if session.first != ExchangeKey::NONE && self.exchanges.at(session.first).deadline_us < session.armed_us {
            self.arm_session(index);
        }
    }
}
