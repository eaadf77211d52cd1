//! Request bodies: gathered for a moment, then forwarded in one piece if they are complete,
//! otherwise streamed (RFC 9112 §6-7).
//!
//! A body that is complete soon leaves in one send and can be retried. Its route decides when an
//! incomplete request is forwarded ([`Buffering`](crate::request::rules::buffering::Buffering)),
//! but never with more than [`GATHER_BYTES_MAX`] gathered. A client that waits for 100 (Continue)
//! gets it from its server, or from weir when the server is silent for [`CONTINUE_US`]
//! (RFC 9110 §10.1.1). Small bodies of requests that weir itself answers are discarded here. Bound:
//! that many bytes before, [`HIGH_BYTES`](crate::base::output::HIGH_BYTES) and a receive after.

use weir_http::{BodyPart, BodyReader, Framing, RequestBody, RequestHead};

use super::Clients;
use super::answer::Answers;
use super::ask::send_body;
use super::messages::let_body_flow;
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::base::piece::{Input, Piece};
use crate::cause::{Cause, Local};
use crate::client::connection::{ClientConn, KeptRequest, Phase, Reading, RequestBodyReader};
use crate::client::connections::Connections;
use crate::context::Context;
use crate::cross::router::Requests;
use crate::request::outgoing::Upload;
use crate::request::pending_request::ExchangeId;

/// Body bytes gathered before the request is forwarded anyway.
pub(super) const GATHER_BYTES_MAX: usize = 64 * 1024;
/// Longest announced body that is read and discarded before weir itself answers, so that its client
/// keeps the connection.
const DRAIN_BYTES_MAX: u64 = 64 * 1024;
/// How long a server has to say whether it wants a body, from when it has the head: as long as
/// widely used clients wait themselves.
const CONTINUE_US: u64 = 1_000_000;

/// Whether the request whose body is being read is to be forwarded as it is.
pub(super) fn is_to_pass_on(conns: &mut Connections, index: ClientKey) -> bool {
    conns.upload(index).is_some_and(|(_, upload)| upload.is_due)
}

/// A body has been gathered for long enough, or its server has had its time to say whether it wants
/// the body. False: neither.
pub(super) fn pass_on_is_due(clients: &mut Clients, index: ClientKey, cx: &mut Context) -> bool {
    let conns = &mut clients.answers.conns;
    let Some((exchange, upload)) = conns.upload(index) else { return false };
    if upload.pass_on_us > cx.now_us {
        return false;
    }
    upload.pass_on_us = u64::MAX;
    if upload.streaming {
        go_on_with_body(&mut clients.answers, exchange, cx);
    } else {
        upload.is_due = true;
        conns.look_again(index);
    }
    true
}

/// A request with a body to follow is on a connection: the rest of the body may come, unless its
/// client waits until the server wants it. `at_once`: the request has not waited for a connection.
pub(super) fn may_send_body(
    answers: &mut Answers,
    id: ExchangeId,
    at_once: bool,
    cx: &mut Context,
) {
    let exchange = answers.conns.exchange_mut(id.index);
    // The part of a body that is passed on from here on is in no copy.
    exchange.spare = exchange.spare.take().filter(|_| exchange.upload.is_none());
    if let Some(upload) = exchange.upload.as_mut().filter(|upload| upload.awaits_continue) {
        upload.pass_on_us = cx.now_us + CONTINUE_US;
    }
    match at_once {
        true => let_body_flow(answers, id, false, cx),
        false => answers.on_body_flow(id, false, cx),
    }
}

/// Sends 100 Continue: the server wants the body that its client holds back, or has not said so in
/// time.
pub(super) fn go_on_with_body(answers: &mut Answers, slot: ExchangeKey, cx: &mut Context) {
    let exchange = answers.conns.exchange_mut(slot);
    let is_waiting = exchange.phase() == Phase::Waiting;
    let Some(upload) = exchange.upload.as_mut().filter(|upload| upload.awaits_continue) else {
        return;
    };
    upload.pass_on_us = u64::MAX;
    // Otherwise it has got its response instead.
    if is_waiting {
        upload.awaits_continue = false;
        answers.invite_body(slot, cx);
        answers.on_body_flow(answers.conns.exchange_id(slot, cx), false, cx);
    }
}

impl ClientConn {
    /// Whether a body is read although weir itself answers its request: a small body that is sure
    /// to come, on a connection that is worth it. `here`: some of it has arrived.
    pub(super) fn drains(&self, head: &RequestHead, here: bool, local: &Local) -> bool {
        let is_small =
            matches!(head.body, RequestBody::Length(length) if length <= DRAIN_BYTES_MAX);
        let is_coming = !head.expect_continue || here;
        // Of the requests that a forward proxy refuses, only those that lack credentials come
        // again.
        let is_worth_it =
            !self.flags.proxied || matches!(local, Local::Refused(cause) if cause.status() == 407);
        let goes_on = head.persist && self.stream.is_none() && !self.flags.leaves && is_worth_it;
        is_small
            && is_coming
            && goes_on
            && !matches!(local, Local::Refused(cause) if cause.ends_connection())
    }
}

impl Clients {
    /// Reads a body from now on: of a request that is forwarded, or of one with this response of
    /// weir. `here`: some of it has arrived.
    pub(super) fn read_body(
        &mut self,
        index: ClientKey,
        exchange: ExchangeKey,
        head: &RequestHead,
        here: bool,
        goal: Result<KeptRequest, Local>,
        cx: &mut Context,
    ) {
        let framing = match head.body {
            RequestBody::None => return,
            RequestBody::Length(length) => BodyReader::length(length),
            RequestBody::Chunked => BodyReader::chunked(false),
            RequestBody::Open => BodyReader::until_close(),
        };
        let (request, answer) = match goal {
            Ok(request) => (Some(request), None),
            Err(local) => (None, Some(local)),
        };
        let expects = head.expect_continue && !here;
        let pass_on_us = match request {
            Some(_) => {
                self.answers.conns.exchange(exchange).buffering().pass_on_us(expects, cx.now_us)
            }
            None => u64::MAX,
        };
        let is_due = pass_on_us <= cx.now_us;
        let upload = RequestBodyReader {
            request,
            answer,
            pass_on_us: if is_due { u64::MAX } else { pass_on_us },
            is_due,
            awaits_continue: expects && is_due,
            body: Vec::new(),
            received: 0,
            bytes_max: cx.plan.client.body_bytes_max,
            window_us: cx.now_us,
            window_bytes: 0,
            window_read: false,
            streaming: false,
            chunked_out: framing.left().is_none(),
            framing,
        };
        let slot = self.answers.conns.exchange_mut(exchange);
        slot.want.body_open = true;
        slot.upload = Some(Box::new(upload));
        self.answers.records.has_body(exchange);
        let now_us = cx.now_us;
        let conn = self.conn_mut(index);
        conn.read_as(Reading::Body);
        conn.since_us = now_us;
        if is_due {
            // Behind the bytes that came with it, which may be all.
            self.answers.conns.look_again(index);
        } else if expects {
            self.answers.invite_body(exchange, cx);
        }
        let conn = self.conn_mut(index);
        if conn.judge_upload(head.method, head.expect_continue && here, cx) {
            self.answers.conns.limit(index, cx);
        }
    }

    /// Takes body bytes at `input[at..]`; returns how many were used.
    pub(super) fn upload_received(
        &mut self,
        index: ClientKey,
        input: &Input<'_>,
        at: usize,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) -> usize {
        let now_us = cx.now_us;
        let Some((_, upload)) = self.answers.conns.upload(index) else { return 0 };
        upload.note_read(now_us);
        let mut end = at;
        let part = upload.framing.read(input.bytes, &mut end);
        // Without a rate only body bytes extend the time.
        let counts = upload.has_rate() || !matches!(part, Ok(BodyPart::More));
        let odd = upload.framing.take_oddities();
        if counts {
            self.conn_mut(index).since_us = now_us;
        }
        if let Some(odd) = odd {
            self.odd_upload(index, odd, cx);
        }
        match part {
            Ok(BodyPart::More) => {}
            Ok(BodyPart::Data { start, end }) => {
                self.upload_piece(index, input.piece(start..end), to, cx)
            }
            Ok(BodyPart::End) => self.upload_complete(index, to, cx),
            Err(_) => {
                self.answers.upload_failed(index, Cause::BadChunk, cx);
                return 0;
            }
        }
        if self.is_there(index) {
            self.answers.consumed(index, end - at);
            if self.conn(index).reading() == Reading::Body {
                self.answers.conns.arm(index, cx);
            }
        }
        end - at
    }

    /// A body ends: it is complete, or cut off.
    pub(super) fn body_ended(&mut self, index: ClientKey, to: &mut Requests<'_>, cx: &mut Context) {
        let is_complete = self
            .answers
            .conns
            .upload(index)
            .is_some_and(|(_, upload)| upload.framing.ends_by_close());
        if is_complete {
            self.upload_complete(index, to, cx);
        } else {
            self.answers.upload_failed(index, Cause::BodyTruncated, cx);
        }
    }

    fn upload_piece(
        &mut self,
        index: ClientKey,
        piece: Piece<'_>,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) {
        let Some((_, upload)) = self.answers.conns.upload(index) else { return };
        upload.received += piece.len() as u64;
        if upload.bytes_max.is_some_and(|max| upload.received > max) {
            self.answers.upload_failed(index, Cause::BodyTooLarge, cx);
            return;
        }
        let complete = upload.framing.is_complete();
        if upload.streaming {
            self.stream_piece(index, piece, to, cx);
        } else if upload.answer.is_none() {
            match piece {
                Piece::Borrowed(bytes) => upload.body.extend_from_slice(bytes),
                Piece::Kept(bytes) => upload.body.extend_from_slice(&bytes),
            }
            if !complete && upload.body.len() >= GATHER_BYTES_MAX {
                self.begin_streaming(index, to, cx);
            }
        }
        if complete && self.is_there(index) {
            self.upload_complete(index, to, cx);
        }
    }

    /// Forwards a piece of a body after its request.
    fn stream_piece(
        &mut self,
        index: ClientKey,
        piece: Piece<'_>,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) {
        let Some((exchange, upload)) = self.answers.conns.upload(index) else { return };
        if piece.is_empty() {
            return;
        }
        let chunked = upload.chunked_out;
        // The wait for the response starts over with each piece of the body.
        self.answers.conns.exchange_mut(exchange).await_more(cx.now_us);
        if chunked {
            let mut head = Vec::with_capacity(20);
            weir_http::encode_chunk_head(&mut head, piece.len());
            send_body(&self.answers.conns, exchange, Piece::Borrowed(&head), false, to, cx);
            send_body(&self.answers.conns, exchange, piece, false, to, cx);
            send_body(
                &self.answers.conns,
                exchange,
                Piece::Borrowed(weir_http::CHUNK_TAIL),
                false,
                to,
                cx,
            );
        } else {
            send_body(&self.answers.conns, exchange, piece, false, to, cx);
        }
    }

    /// Forwards a request with an incomplete body: the head and the bytes here now, the rest as it
    /// comes.
    pub(super) fn begin_streaming(
        &mut self,
        index: ClientKey,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) {
        let Some((exchange, upload)) = self.answers.conns.upload(index) else { return };
        (upload.streaming, upload.is_due, upload.pass_on_us) = (true, false, u64::MAX);
        let body = std::mem::take(&mut upload.body);
        // A client that has sent some of the body does not wait.
        upload.awaits_continue &= body.is_empty();
        let expects = upload.awaits_continue;
        let Some(request) = upload.request.take() else { return };
        let framing = upload
            .framing
            .left()
            .map_or(Framing::Chunked, |left| Framing::Length(left + body.len() as u64));
        self.answers.conns.exchange_mut(exchange).held_back = true;
        self.answers.passes_body_on(index);
        self.forward_kept(
            exchange,
            &request,
            &body,
            Upload { framing, streaming: true, expects },
            to,
            cx,
        );
        if self.is_there(index) {
            self.answers.conns.update_receive(index, cx);
            self.answers.conns.arm(index, cx);
        }
    }

    fn upload_complete(&mut self, index: ClientKey, to: &mut Requests<'_>, cx: &mut Context) {
        let Some((exchange, upload)) = self.answers.conns.take_upload(index) else { return };
        let conn = self.conn_mut(index);
        conn.read_as(if conn.flags.close { Reading::Closing } else { Reading::Head });
        let close = self.answers.conns.exchange(exchange).want.close;
        self.answers.conns.exchange_mut(exchange).want.body_open = false;
        self.answers.records.body(exchange, upload.received, true, cx);
        if close {
            self.conn_mut(index).read_as(Reading::Closing);
        }
        if upload.streaming {
            // The wait for the response starts over with each piece of the body.
            self.answers.conns.exchange_mut(exchange).await_more(cx.now_us);
            let end: &[u8] = if upload.chunked_out { b"0\r\n\r\n" } else { b"" };
            send_body(&self.answers.conns, exchange, Piece::Borrowed(end), true, to, cx);
        } else if let Some(local) = upload.answer {
            self.answers.answer_local(exchange, local, cx);
        } else if let Some(request) = upload.request {
            let whole = Upload::whole(Framing::Length(upload.body.len() as u64));
            self.forward_kept(exchange, &request, &upload.body, whole, to, cx);
        }
        if self.is_there(index) {
            self.answers.conns.arm(index, cx);
        }
    }

    /// Forwards a request that was kept.
    fn forward_kept(
        &mut self,
        exchange: ExchangeKey,
        request: &KeptRequest,
        body: &[u8],
        upload: Upload,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) {
        let KeptRequest { head, fields, bytes, upstream } = request;
        self.asks.forward(
            &mut self.answers,
            exchange,
            *upstream,
            head,
            fields,
            bytes,
            body,
            Some(upload),
            to,
            cx,
        );
    }
}

impl Answers {
    /// The body is invalid, incomplete or not wanted: its request gets an error, unless it has a
    /// response already, and the connection ends.
    pub(super) fn upload_failed(&mut self, index: ClientKey, cause: Cause, cx: &mut Context) {
        self.conns.at_mut(index).flags.unread = true;
        let Some((exchange, upload)) = self.conns.take_upload(index) else { return };
        self.conns.at_mut(index).read_as(Reading::Closing);
        self.records.body(exchange, upload.received, false, cx);
        self.records.blame(exchange, cause, || self.conns.standing(exchange));
        if upload.streaming {
            self.conns.cancel(exchange, true, cx);
        }
        if matches!(self.conns.exchange(exchange).phase(), Phase::Answering | Phase::Encoding) {
            self.answer_failed(exchange, Cause::Truncated, cx);
        } else {
            self.fail_exchange(exchange, cause, cx);
        }
    }

    /// The request had its response before its body was complete: the rest is discarded, and the
    /// connection ends.
    pub(super) fn abandon_upload(&mut self, exchange: ExchangeKey, cx: &mut Context) {
        let slot = self.conns.exchange_mut(exchange);
        let (index, upload) = (slot.conn, slot.upload.take());
        slot.held_back = false;
        let conn = self.conns.at_mut(index);
        conn.flags.unread = true;
        if let Some(upload) = upload {
            conn.read_as(Reading::Closing);
            self.records.body(exchange, upload.received, false, cx);
        }
        self.conns.update_receive(index, cx);
    }
}
