//! Request bodies: gathered until complete or large, then forwarded in one piece or streamed (RFC 9112 §6-7).
//!
//! A server is only asked when the body is complete or more than [`GATHER_BYTES_MAX`] of it is here, so that a client that
//! dribbles costs no upstream connection. Small bodies of requests that weir answers by itself are thrown away here. Bound: that many
//! bytes before, [`HIGH_BYTES`](crate::base::output::HIGH_BYTES) and a receive after.

use weir_http::{BodyPart, BodyReader, Framing, RequestBody, RequestHead};

use super::Clients;
use super::answer::Answers;
use super::ask::send_body;
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::base::piece::{Input, Piece};
use crate::cause::{Cause, Local};
use crate::client::connection::{ClientConn, KeptRequest, Phase, Reading, RequestBodyReader};
use crate::context::Context;
use crate::cross::router::Requests;

/// Body bytes gathered before the request is forwarded anyway.
pub(super) const GATHER_BYTES_MAX: usize = 64 * 1024;
/// Longest announced body that is read and thrown away before weir answers by itself, so that its client keeps the connection.
const DRAIN_BYTES_MAX: u64 = 64 * 1024;

impl ClientConn {
    /// Whether a body is read although weir answers its request by itself: one that is sure to come and small, on a connection that is
    /// worth it. `here`: some of it is.
    pub(super) fn drains(&self, head: &RequestHead, here: bool, local: &Local) -> bool {
        let is_small = matches!(head.body, RequestBody::Length(length) if length <= DRAIN_BYTES_MAX);
        let is_coming = !head.expect_continue || here;
        // Of what a forward proxy refuses only that which lacks credentials comes again.
        let is_worth_it = !self.flags.proxied || matches!(local, Local::Refused(cause) if cause.status() == 407);
        let goes_on = head.persist && self.stream.is_none() && !self.flags.leaves && is_worth_it;
        is_small && is_coming && goes_on && !matches!(local, Local::Refused(cause) if cause.ends_connection())
    }
}

impl Clients {
    /// From now on a body is read: of a request that is forwarded, or of one that weir answers so. `here`: some of it is.
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
        let upload = RequestBodyReader {
            request,
            answer,
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
        if head.expect_continue && !here {
            self.answers.invite_body(exchange, cx);
        }
        let conn = self.conn_mut(index);
        if conn.judge_upload(head.method, head.expect_continue && here, cx) {
            self.answers.conns.limit(index, cx);
        }
    }

    /// Body bytes at `input[at..]`; returns how many were used.
    pub(super) fn upload_received(
        &mut self,
        index: ClientKey,
        input: &Input<'_>,
        at: usize,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) -> usize {
        let now_us = cx.now_us;
        self.conn_mut(index).since_us = now_us;
        let Some((_, upload)) = self.answers.conns.upload(index) else { return 0 };
        upload.note_read(now_us);
        let mut end = at;
        let part = upload.framing.read(input.bytes, &mut end);
        if let Some(odd) = upload.framing.take_oddities() {
            self.odd_upload(index, odd, cx);
        }
        match part {
            Ok(BodyPart::More) => {}
            Ok(BodyPart::Data { start, end }) => self.upload_piece(index, input.piece(start..end), to, cx),
            Ok(BodyPart::End) => self.upload_complete(index, to, cx),
            Err(_) => {
                self.answers.upload_failed(index, Cause::BadChunk, cx);
                return 0;
            }
        }
        if self.is_there(index) {
            self.answers.consumed(index, end - at);
        }
        end - at
    }

    /// No more of a body comes: it is complete, or cut.
    pub(super) fn body_ended(&mut self, index: ClientKey, to: &mut Requests<'_>, cx: &mut Context) {
        let is_complete = self.answers.conns.upload(index).is_some_and(|(_, upload)| upload.framing.ends_by_close());
        if is_complete {
            self.upload_complete(index, to, cx);
        } else {
            self.answers.upload_failed(index, Cause::BodyTruncated, cx);
        }
    }

    fn upload_piece(&mut self, index: ClientKey, piece: Piece<'_>, to: &mut Requests<'_>, cx: &mut Context) {
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

    /// A piece of a body whose request is already forwarded.
    fn stream_piece(&mut self, index: ClientKey, piece: Piece<'_>, to: &mut Requests<'_>, cx: &mut Context) {
        let Some((exchange, upload)) = self.answers.conns.upload(index) else { return };
        if piece.is_empty() {
            return;
        }
        let chunked = upload.chunked_out;
        // The wait for the answer begins anew with each piece of the body.
        self.answers.conns.exchange_mut(exchange).await_more(cx.now_us);
        if chunked {
            let mut head = Vec::with_capacity(20);
            weir_http::encode_chunk_head(&mut head, piece.len());
            send_body(&self.answers.conns, exchange, Piece::Borrowed(&head), false, to, cx);
            send_body(&self.answers.conns, exchange, piece, false, to, cx);
            send_body(&self.answers.conns, exchange, Piece::Borrowed(weir_http::CHUNK_TAIL), false, to, cx);
        } else {
            send_body(&self.answers.conns, exchange, piece, false, to, cx);
        }
    }

    /// Forwards a request whose body is large: the head and what is here now, the rest as it comes.
    fn begin_streaming(&mut self, index: ClientKey, to: &mut Requests<'_>, cx: &mut Context) {
        let Some((exchange, upload)) = self.answers.conns.upload(index) else { return };
        upload.streaming = true;
        let body = std::mem::take(&mut upload.body);
        let Some(request) = upload.request.take() else { return };
        let framing = upload.framing.left().map_or(Framing::Chunked, |left| Framing::Length(left + body.len() as u64));
        self.answers.conns.exchange_mut(exchange).held_back = true;
        self.answers.passes_body_on(index);
        self.forward_kept(exchange, &request, &body, framing, true, to, cx);
        if self.is_there(index) {
            self.answers.conns.update_receive(index, cx);
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
            // The wait for the answer begins anew with each piece of the body.
            self.answers.conns.exchange_mut(exchange).await_more(cx.now_us);
            let end: &[u8] = if upload.chunked_out { b"0\r\n\r\n" } else { b"" };
            send_body(&self.answers.conns, exchange, Piece::Borrowed(end), true, to, cx);
        } else if let Some(local) = upload.answer {
            self.answers.answer_local(exchange, local, cx);
        } else if let Some(request) = upload.request {
            let framing = Framing::Length(upload.body.len() as u64);
            self.forward_kept(exchange, &request, &upload.body, framing, false, to, cx);
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
        framing: Framing,
        streaming: bool,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) {
        let KeptRequest { head, fields, bytes, upstream } = request;
        let upload = Some((framing, streaming));
        self.asks.forward(&mut self.answers, exchange, *upstream, head, fields, bytes, body, upload, to, cx);
    }
}

impl Answers {
    /// The body can't be had or is not wanted: its request is answered with an error, if not answered yet, and the connection ends.
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

    /// The request was answered before its body was here: what still comes is thrown away, and the connection ends.
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
