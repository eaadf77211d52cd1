//! Responses on their way to clients: how their parts change exchanges and connections (stage
//! reply). The codec ([`Http1`](super::http1::Http1)) decides order and text.

use std::sync::Arc;

use weir_http::{ReplyBody, ReplyParts, SERVER, Trailers};

use super::account::Records;
use super::cache::{self, fetch, fetched};
use super::compressing::{self, Encoders};
use super::connections::Connections;
use super::grpc;
use super::http1::Additions;
use super::stalls;
use super::unsent::{unsent, unsent_first};
use super::uploads::go_on_with_body;
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::base::output::LOW_BYTES;
use crate::base::piece::Piece;
use crate::cause::{Cause, Local};
use crate::client::connection::{Phase, Reading, ReplyConstraints};
use crate::context::Context;
use crate::cross::answer::{AnswerHead, Source, Stop};
use crate::cross::retry_copy::RetryCopies;
use crate::ending::ClientEnd;
use crate::forward::decide::proxy_fields;
use crate::observe::histogram::Histogram;
use crate::observe::hits::Hits;
use crate::request::destination::Original;
use crate::request::pending_request::{ConnId, PendingRequest, RequestFlags};
use crate::request::rules::Ruled;

/// Media type of the file that tells browsers how to use the proxy.
const PAC_TYPE: &[u8] = b"application/x-ns-proxy-autoconfig";

/// The media type of errors, each a line of text.
const TEXT: (&[u8], &[u8]) = (b"Content-Type", b"text/plain");

/// With 405 (RFC 9110 §15.5.6): the methods that weir itself allows for any resource.
const ALLOW: (&[u8], &[u8]) = (b"Allow", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");

/// The output to clients: the responses to their requests in request order, and the ends of their
/// connections.
///
/// Owns the tables, and reports changes in them to the access log. No code here can send a request
/// to a server: news for the servers' side (a response is no longer wanted, read on) is mail.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(super) conns: Connections,
    pub(super) records: Records,
    pub(super) encoders: Encoders,
    /// Copies of requests that other workers handle.
    copies: RetryCopies,
    /// Time from the receipt of a request to the end of its response, microseconds.
    latency: Arc<Histogram>,
    /// The same for responses from the store.
    pub(crate) hits: Hits,
}

impl Answers {
    /// Creates it without clients. Takes the histograms for responses of servers and of the store.
    pub(super) fn new((latency, hits): (Arc<Histogram>, Arc<Histogram>), cx: &Context) -> Answers {
        Answers {
            conns: Connections::new(cx),
            records: Records::new(&cx.plan, cx.worker),
            encoders: Encoders::default(),
            copies: RetryCopies::default(),
            latency,
            hits: Hits::new(hits),
        }
    }

    /// The copy of a request is no longer needed.
    #[inline]
    pub(super) fn release(&mut self, slot: ExchangeKey) {
        self.conns.exchange_mut(slot).spare = None;
        self.release_copy(slot);
    }

    /// The copy of a request that another worker handled is no longer needed.
    pub(super) fn release_copy(&mut self, slot: ExchangeKey) {
        if let Some(kept) = self.conns.exchange_mut(slot).kept.take() {
            self.copies.give_back(kept);
        }
    }

    /// Another worker handles a request.
    pub(super) fn note_away(&mut self, worker: u16, ask: &PendingRequest, bytes: &[u8]) {
        let exchange = self.conns.exchange_mut(ask.id.index);
        (exchange.asked, exchange.server_conn) = (worker, None);
        if ask.traits.has(RequestFlags::RETRIABLE) && !ask.traits.has(RequestFlags::STREAMING) {
            exchange.kept = Some(self.copies.keep(*ask, bytes));
        }
    }

    /// Answers with an error after everything requested before, and closes. `bytes` is the part of
    /// the request received since `since_us`.
    pub(super) fn refuse(
        &mut self,
        index: ClientKey,
        cause: Cause,
        bytes: &[u8],
        since_us: u64,
        cx: &mut Context,
    ) {
        let conn = self.conns.at_mut(index);
        conn.flags.unread = true;
        conn.read_as(Reading::Closing);
        let want = ReplyConstraints { close: true, body_open: true, ..ReplyConstraints::default() };
        let exchange = self.conns.push(index, want, cx);
        self.records.begin_refused(exchange, bytes, since_us);
        self.fail_exchange(exchange, cause, cx);
    }

    /// Sends 100 Continue for a request whose body this worker is going to read (RFC 9110 §10.1.1).
    pub(super) fn invite_body(&mut self, slot: ExchangeKey, cx: &mut Context) {
        let (mut codec, exchange) = self.conns.codec(slot);
        let bytes = codec.invite_body(slot, exchange, &mut cx.spare);
        let conn = exchange.conn;
        self.records.interim(slot, bytes);
        self.head_left(conn, bytes, cx);
        self.conns.mark(conn);
    }

    /// A head of this many bytes was written: on a stream it has become frames at once.
    fn head_left(&mut self, index: ClientKey, bytes: usize, cx: &Context) {
        if self.conns.at(index).stream.is_some() {
            self.records.delivered(index, bytes as u64, cx);
        }
    }

    /// Handles an interim response: 102 and 103 pass to clients that can read them, 100 to a client
    /// that waits for it.
    pub(super) fn answer_interim(
        &mut self,
        slot: ExchangeKey,
        parts: &ReplyParts<'_>,
        cx: &mut Context,
    ) {
        if parts.status == 100 {
            return go_on_with_body(self, slot, cx);
        }
        if self.conns.exchange(slot).want.old {
            return;
        }
        cx.counters.interim.add(1);
        let (mut codec, exchange) = self.conns.codec(slot);
        let bytes = codec.interim(slot, exchange, parts, cx.plan.client.pseudonym(), &mut cx.spare);
        let conn = exchange.conn;
        self.records.interim(slot, bytes);
        self.head_left(conn, bytes, cx);
        self.conns.mark(conn);
    }

    /// Handles the head of the final response, whatever the cache does with it.
    pub(super) fn answer_begin(
        &mut self,
        slot: ExchangeKey,
        source: Source,
        head: &AnswerHead<'_>,
        cx: &mut Context,
    ) {
        let status = head.parts.status;
        cx.counters.answer(status);
        if let Some(guard) = &mut self.conns.guard {
            guard.answered(slot, status, cx);
        }
        let goes = self.conns.at(self.conns.exchange(slot).conn).flags.leaves;
        // RFC 9110 §6.6.1: a proxy that forwards a response without a Date adds the time of
        // receipt.
        let date = if head.parts.has_date { None } else { cx.date() };
        let additions = Additions { via: cx.plan.client.pseudonym(), date };
        let client = compressing::encoding_for(self, slot, cx);
        let (mut codec, exchange) = self.conns.codec(slot);
        exchange.enter(Phase::Answering);
        exchange.server_conn = source.conn();
        exchange.await_more(cx.now_us);
        // Requests behind it get their responses before the connection is closed.
        exchange.want.close |= goes && codec.newest() == Some(slot);
        let has_trailers = exchange.want.trailers && head.body == ReplyBody::Chunked;
        let head = &AnswerHead {
            parts: if has_trailers { head.parts.announcing() } else { head.parts },
            ..*head
        };
        let ruled = exchange.ruled.take();
        let begun = match &ruled {
            None => codec.begin(slot, exchange, head, &additions, &mut cx.spare),
            Some(ruled) => {
                let (is_head, counters) = (exchange.want.head, &cx.counters);
                let encoders = (&mut self.encoders, client, cx.plan.client.compress_bytes_max);
                let write = |head: &AnswerHead<'_>| {
                    codec.begin(slot, exchange, head, &additions, &mut cx.spare)
                };
                let (begun, compressing) = ruled.with_answer(&head.parts, |parts| {
                    compressing::begin(
                        ruled,
                        &AnswerHead { parts, ..*head },
                        is_head,
                        encoders,
                        counters,
                        write,
                    )
                });
                exchange.compressing = compressing.map(|compressing| compressing.at(cx.now_us));
                begun
            }
        };
        // The request may be retried.
        exchange.ruled = ruled;
        let (index, leaves) = (exchange.conn, codec.leaves(slot));
        // While the client has received nothing of the response, the request may still be retried.
        if leaves {
            self.release(slot);
        }
        self.head_left(index, begun.bytes, cx);
        match source {
            Source::Server(_) => self.records.begun(slot, status, begun.bytes, cx),
            Source::Here => self.records.made_here(slot, status, begun.bytes, cx),
        }
        if begun.closes {
            // At once: no response to a later request could be delivered, and while earlier
            // responses are pending, parsing would continue.
            self.conns.at_mut(index).take_no_more();
        }
        if self.conns.at(index).stream.is_some() {
            // A connection is checked when its send is over, which says nothing of a single stream.
            self.conns.arm_awaited(index, cx);
        }
        self.conns.mark(index);
    }

    /// Handles 101: from here on the two connections are one tunnel (RFC 9110 §7.8).
    pub(super) fn answer_switch(
        &mut self,
        slot: ExchangeKey,
        server_conn: ConnId,
        head: &AnswerHead<'_>,
        cx: &mut Context,
    ) {
        let (mut codec, exchange) = self.conns.codec(slot);
        let bytes = codec.switch(slot, exchange, head, cx.plan.client.pseudonym(), &mut cx.spare);
        self.join_tunnel(slot, server_conn, 101, bytes, cx);
    }

    /// The connection for a CONNECT is ready: the two are one tunnel (RFC 9110 §9.3.6).
    pub(super) fn answer_connect(
        &mut self,
        slot: ExchangeKey,
        server_conn: ConnId,
        cx: &mut Context,
    ) {
        let (mut codec, exchange) = self.conns.codec(slot);
        let bytes = codec.connected(slot, exchange, &mut cx.spare);
        self.join_tunnel(slot, server_conn, 200, bytes, cx);
    }

    /// Begins a tunnel behind the head of its response, which has this many bytes.
    fn join_tunnel(
        &mut self,
        slot: ExchangeKey,
        server_conn: ConnId,
        status: u16,
        bytes: usize,
        cx: &mut Context,
    ) {
        self.release(slot);
        cx.counters.answer(status);
        cx.counters.tunnels.add(1);
        cx.counters.tunnels_opened.add(1);
        let exchange = self.conns.exchange_mut(slot);
        exchange.enter(Phase::Answering);
        exchange.server_conn = Some(server_conn);
        let index = exchange.conn;
        self.records.begun(slot, status, bytes, cx);
        let now_us = cx.now_us;
        let conn = self.conns.at_mut(index);
        conn.read_as(Reading::Tunnel);
        conn.since_us = now_us;
        if conn.stash.is_some() || conn.flags.ended {
            // The data behind the request is for the tunnel.
            self.conns.look_again(index);
        }
        self.conns.mark(index);
        self.conns.arm(index, cx);
        self.conns.update_receive(index, cx);
        self.conns.want_relay(index, cx);
    }

    /// Handles a piece of the response body. Returns whether its source has to stop.
    pub(super) fn answer_body(
        &mut self,
        slot: ExchangeKey,
        piece: Piece<'_>,
        cx: &mut Context,
    ) -> Option<Stop> {
        if piece.is_empty() {
            return None;
        }
        let (mut codec, exchange) = self.conns.codec(slot);
        exchange.await_more(cx.now_us);
        let is_coded = exchange.compressing.is_some();
        let piece = if is_coded {
            compressing::encode(&mut codec, slot, exchange, piece, cx)
        } else {
            piece
        };
        if !piece.is_empty() {
            codec.body(slot, exchange, piece, &mut cx.spare);
        }
        let (index, server_conn) = (exchange.conn, exchange.server_conn);
        if is_coded {
            self.note_unflushed(slot, cx);
        }
        let high_bytes = self.conns.carriers.high_bytes(self.conns.at(index));
        let conn = self.conns.at_mut(index);
        if conn.reading() == Reading::Tunnel {
            conn.since_us = cx.now_us;
        }
        let (leaves, reserved) = (conn.codec.leaves(slot), conn.reserved());
        // The first response must not wait for the later ones, which wait for it.
        let load =
            if leaves { unsent_first(&self.conns, index) } else { unsent(&self.conns, index) };
        let stop = server_conn
            .filter(|_| load >= high_bytes && load > reserved)
            .map(|server_conn| stalls::stop_source(&mut self.conns, slot, server_conn, cx));
        self.await_client(index, cx);
        self.conns.mark(index);
        stop
    }

    /// The response is complete.
    pub(super) fn answer_end(
        &mut self,
        slot: ExchangeKey,
        trailers: Trailers<'_>,
        cx: &mut Context,
    ) {
        match self.conns.exchange_mut(slot).compressing.take() {
            None => self.answer_ends(slot, trailers, cx),
            Some(compressing) => self.end_compressed(slot, compressing, trailers, cx),
        }
    }

    /// The codec has all of the response.
    pub(super) fn answer_ends(
        &mut self,
        slot: ExchangeKey,
        trailers: Trailers<'_>,
        cx: &mut Context,
    ) {
        self.records.ended(slot, cx);
        self.release(slot);
        let (mut codec, exchange) = self.conns.codec(slot);
        exchange.enter(Phase::Done);
        codec.end(slot, exchange, trailers, &mut cx.spare);
        let (index, body_open) = (exchange.conn, exchange.want.body_open);
        if exchange.server_conn.is_some() {
            self.latency.record(cx.now_us.saturating_sub(exchange.received_us));
        } else if exchange.is_hit {
            self.hits.ended(exchange.received_us, cx.now_us);
        }
        if body_open {
            self.abandon_upload(slot, cx);
        }
        self.advance(index, cx);
    }

    /// Answers the request with an error made here.
    pub(super) fn fail_exchange(&mut self, slot: ExchangeKey, cause: Cause, cx: &mut Context) {
        self.fail_exchange_for(slot, cause, cause.retry_after_s(), cx);
    }

    /// The same; tells the client to retry after this many seconds.
    pub(super) fn fail_exchange_for(
        &mut self,
        slot: ExchangeKey,
        cause: Cause,
        retry_after_s: Option<u32>,
        cx: &mut Context,
    ) {
        self.fail_exchange_with(slot, cause, cause.status(), retry_after_s, cx);
    }

    /// The same with this status.
    fn fail_exchange_with(
        &mut self,
        slot: ExchangeKey,
        cause: Cause,
        status: u16,
        retry_after_s: Option<u32>,
        cx: &mut Context,
    ) {
        if self.conns.exchange(slot).is_fetch() {
            return fetched::fail(self, slot, cause, retry_after_s, cx);
        }
        fetch::on_dropped(self, slot, false, cx);
        self.count_refusal(slot, cause, cx);
        self.records.blame(slot, cause, || self.conns.standing(slot));
        let exchange = self.conns.exchange_mut(slot);
        exchange.want.close |= cause.ends_connection();
        if exchange.want.grpc {
            return grpc::fail(self, slot, cause, status, cx);
        }
        let proxied = self.conns.at(self.conns.exchange(slot).conn).flags.proxied;
        let proxy_fields = if proxied { proxy_fields(cause, &cx.plan) } else { Vec::new() };
        let seconds = retry_after_s.map(|seconds| seconds.to_string());
        let ruled = self.conns.exchange(slot).ruled.as_deref();
        let page = ruled.and_then(|ruled| ruled.page(status)).map(Arc::clone);
        let challenge = ruled.filter(|_| status == 401).and_then(Ruled::challenge);
        let media_type = page.as_ref().map_or(TEXT.1, |page| &page.media_type);
        let mut fields = vec![SERVER, (TEXT.0, media_type)];
        fields.extend(seconds.iter().map(|seconds| (&b"Retry-After"[..], seconds.as_bytes())));
        fields.extend(proxy_fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())));
        fields.extend(
            challenge.iter().map(|challenge| (&b"WWW-Authenticate"[..], challenge.as_bytes())),
        );
        fields.extend((status == 405).then_some(ALLOW));
        let text = weir_http::error_text(status, cause.word());
        let content =
            page.as_ref().map_or(Piece::Borrowed(&text), |page| Piece::Kept(page.content.clone()));
        self.answer_here(slot, status, &fields, content, cx);
    }

    /// Answers the request with a response of weir itself.
    pub(super) fn answer_local(&mut self, slot: ExchangeKey, local: Local, cx: &mut Context) {
        match local {
            Local::Refused(cause) => self.fail_exchange(slot, cause, cx),
            Local::OverLimit { status, retry_after_s } => {
                self.fail_exchange_with(slot, Cause::OverLimit, status, Some(retry_after_s), cx);
            }
            Local::Options => {
                let text = weir_http::error_text(200, "options");
                self.answer_here(slot, 200, &[SERVER, TEXT], Piece::Borrowed(&text), cx);
            }
            Local::Pac => {
                let pac = cx.plan.forward.as_ref().and_then(|forward| forward.pac.clone());
                let Some(pac) = pac else { return self.fail_exchange(slot, Cause::NoPac, cx) };
                self.answer_here(
                    slot,
                    200,
                    &[SERVER, (b"Content-Type", PAC_TYPE)],
                    Piece::Kept(pac),
                    cx,
                );
            }
            Local::Redirect(status, to) => {
                self.answer_here(
                    slot,
                    status,
                    &[SERVER, (b"Location", &to)],
                    Piece::Borrowed(b""),
                    cx,
                );
            }
            Local::Fixed(fixed) => {
                let media_type = fixed
                    .media_type
                    .as_deref()
                    .map(|media_type| (&b"Content-Type"[..], media_type));
                let fields: Vec<_> = std::iter::once(SERVER).chain(media_type).collect();
                self.answer_here(
                    slot,
                    fixed.status,
                    &fields,
                    Piece::Kept(fixed.content.clone()),
                    cx,
                );
            }
        }
    }

    /// Answers the request with a complete response made here; its parts take the path of all
    /// responses.
    fn answer_here(
        &mut self,
        slot: ExchangeKey,
        status: u16,
        fields: &[(&[u8], &[u8])],
        content: Piece<'_>,
        cx: &mut Context,
    ) {
        let exchange = self.conns.exchange_mut(slot);
        // Its fields say nothing of keep-alive, so with HTTP/1.0 the connection ends here.
        exchange.want.close |= exchange.want.old || exchange.want.connect;
        let length = content.len() as u64;
        // RFC 9110 §8.6: 204 has no Content-Length; neither has 304, because its length would be
        // that of a 200.
        let has_length = !matches!(status, 204 | 304);
        let is_bodyless = exchange.want.head || !has_length;
        let head = AnswerHead {
            parts: ReplyParts::made(status, fields),
            body: if is_bodyless { ReplyBody::None } else { ReplyBody::Length(length) },
            declared_length: has_length.then_some(length),
            upgrade: None,
        };
        cache::begin(self, slot, Source::Here, &head, cx);
        if !is_bodyless {
            // The content is complete already, so no source has to stop.
            self.answer_body(slot, content, cx);
        }
        self.answer_end(slot, Trailers::default(), cx);
    }

    /// The request of an exchange got a response of weir itself, or only part of its response.
    pub(super) fn count_refusal(&mut self, slot: ExchangeKey, cause: Cause, cx: &mut Context) {
        cx.counters.refusals.count(cause);
        let conn = self.conns.at(self.conns.exchange(slot).conn);
        if conn.flags.proxied {
            cx.usage.refused(conn.account(), cause.word());
        } else if self.conns.exchange(slot).want.original {
            let index = self.conns.exchange(slot).conn;
            let account = self.conns.destinations.get(index).map(Original::account);
            cx.usage.refused(account.unwrap_or_default(), cause.word());
        }
    }

    /// No server answered, or the response is incomplete.
    pub(super) fn answer_failed(&mut self, slot: ExchangeKey, cause: Cause, cx: &mut Context) {
        if self.conns.exchange(slot).is_fetch() {
            return fetched::fail(self, slot, cause, cause.retry_after_s(), cx);
        }
        fetch::on_dropped(self, slot, true, cx);
        let has_begun =
            matches!(self.conns.exchange(slot).phase(), Phase::Answering | Phase::Encoding);
        if has_begun && !self.forget_beginning(slot, cx) {
            self.count_refusal(slot, cause, cx);
            self.records.blame(slot, cause, || self.conns.standing(slot));
            self.records.ended(slot, cx);
            stalls::forget_source(&mut self.conns, slot);
            self.truncate(slot, cx);
            return;
        }
        self.fail_exchange(slot, cause, cx);
    }

    /// Discards the received part of a response if the client has nothing of it because the
    /// response waits for its turn.
    pub(super) fn forget_beginning(&mut self, slot: ExchangeKey, cx: &Context) -> bool {
        if !self.conns.forget_beginning(slot) {
            return false;
        }
        // From here on the exchange waits for the beginning of a response again.
        self.conns.exchange_mut(slot).await_more(cx.now_us);
        stalls::forget_source(&mut self.conns, slot);
        let index = self.conns.exchange(slot).conn;
        stalls::give_back(&mut self.conns, index, LOW_BYTES, cx);
        self.take_back(slot, cx);
        self.records.taken_back(slot);
        true
    }

    /// The rest of a partly sent response will not come: ends the connection behind what was sent,
    /// so that the client notices.
    fn truncate(&mut self, slot: ExchangeKey, cx: &mut Context) {
        compressing::give_up(&mut self.conns, slot);
        let (mut codec, exchange) = self.conns.codec(slot);
        exchange.enter(Phase::Done);
        codec.cut(exchange);
        let index = exchange.conn;
        if self.conns.at(index).reading() == Reading::Tunnel {
            self.break_tunnel(index, cx);
            return;
        }
        if self.conns.exchange(slot).want.body_open {
            self.abandon_upload(slot, cx);
        }
        self.advance(index, cx);
    }

    /// Completes the current exchange of a connection: all of its response is in the output.
    pub(super) fn complete(&mut self, index: ClientKey, cx: &Context) -> Option<ReplyConstraints> {
        let slot = self.conns.at(index).codec.current()?;
        self.records.complete(index, || self.conns.ending(index, slot, &cx.plan.client), cx);
        Some(self.conns.pop(index))
    }

    /// Releases complete responses in turn; all contiguous ready ones leave in one send.
    fn advance(&mut self, index: ClientKey, cx: &mut Context) {
        let mut closing = false;
        while !closing && self.conns.may_go_on(index) {
            let Some(done) = self.complete(index, cx) else { break };
            closing = done.close;
            let conn = self.conns.at_mut(index);
            conn.flags.reset |= done.cut;
            let next = conn.codec.current();
            if next.is_none() && conn.reading() == Reading::Await {
                // An upgrade was refused, or one that waits for its turn may be parsed now. The
                // client did not cause that wait.
                conn.read_as(Reading::Head);
                conn.since_us = cx.now_us;
            }
            if let Some(next) = next.filter(|_| !closing) {
                let (mut codec, exchange) = self.conns.codec(next);
                codec.give_held(exchange, &mut cx.spare);
                if exchange.phase() == Phase::Answering {
                    self.release(next);
                }
            }
        }
        if closing {
            self.drop_exchanges(index, ClientEnd::Closed, cx);
            let conn = self.conns.at_mut(index);
            conn.flags.close = true;
            // A body that is being read belonged to one of the dropped requests.
            conn.flags.unread |= conn.stash.take().is_some() || conn.reading() == Reading::Body;
            conn.read_as(Reading::Closing);
            stalls::resume_sources(&mut self.conns, index, cx);
            stalls::give_back(&mut self.conns, index, 0, cx);
            self.conns.update_receive(index, cx);
        } else {
            self.conns.relieve(index, cx);
            self.conns.arm_awaited(index, cx);
        }
        self.conns.mark(index);
    }
}
