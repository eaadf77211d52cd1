//! Input from clients: heads are parsed, requests are forwarded to their upstream or answered here,
//! connections end (stages parse and route).

use bytes::Bytes;
use weir_http::{Fields, Method, RequestError, RequestHead, Version};

use super::ask::leads_home;
use super::banned::is_barred;
use super::cache::{consult, look_up_again, purge};
use super::grpc::is_grpc;
use super::guard::is_over_limit;
use super::input::stop_or_go_on;
use super::ruling::{Ruling, route};
use super::settled::settle;
use super::unsent::may_ask;
use super::uploads::is_to_pass_on;
use super::visitors::{await_verdict, go_on_judged};
use super::{Clients, tarpit};
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::base::piece::{Input, Piece};
use crate::cause::{Cause, Local};
use crate::client::connection::{KeptRequest, Reading, ReplyConstraints};
use crate::context::Context;
use crate::cross::router::Requests;
use crate::ending::{ClientEnd, Farewell};
use crate::forward::decide::Asking;
use crate::observe::glitch::ClientGlitch;
use crate::request::client_address::client_scheme;
use crate::request::route::Routed;

impl Clients {
    /// Drains clients: see [`Engine::drain`](crate::engine::Engine::drain).
    pub(crate) fn drain(&mut self, who: Farewell, cx: &mut Context) {
        for index in self.answers.conns.drain(who, cx) {
            if !self.is_there(index) {
                continue;
            }
            let conn = self.conn_mut(index);
            conn.flags.reset |= conn.codec.current().is_some();
            self.answers.close_conn(index, ClientEnd::Drained, cx);
        }
        tarpit::let_leaving_go(&mut self.answers, cx);
    }

    /// Takes bytes from a client.
    pub(crate) fn client_received(
        &mut self,
        token: u64,
        input: &Input<'_>,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) {
        let Some(index) = self.answers.conns.of_token(token) else { return };
        cx.counters.client_bytes_in.add(input.bytes.len() as u64);
        let conn = self.conn_mut(index);
        match conn.reading() {
            // Behind the bytes that came with the request, which are passed on soon.
            Reading::Tunnel if conn.stash.is_some() => {
                conn.stash.get_or_insert_default().push(input.bytes)
            }
            Reading::Tunnel => {
                self.tunnel_from_client(index, input.piece(0..input.bytes.len()), to, cx)
            }
            Reading::Closing | Reading::Linger => {
                conn.flags.unread = true;
                self.answers.conns.tarpit.note_unread(index, input.bytes.len());
            }
            Reading::Frames => self.frames_received(index, input.bytes, to, cx),
            _ if conn.flags.may_be_http2 && self.is_http2(index, input.bytes, to, cx) => {}
            _ if self.conn(index).stash.is_some() => {
                let conn = self.conn_mut(index);
                let idle = conn.reading() == Reading::Head && !conn.has_begun_request();
                let stash = conn.stash.get_or_insert_default();
                let in_pieces = stash.add(input.bytes) && conn.reading() == Reading::Head;
                if idle && conn.has_begun_request() {
                    conn.since_us = cx.now_us;
                }
                self.parse_stash(index, to, cx);
                if in_pieces && self.is_there(index) {
                    self.head_in_pieces(index, cx);
                }
            }
            _ => {
                let used = self.parse(index, input, to, cx);
                self.keep_rest(index, &input.bytes[used..], cx);
            }
        }
        if self.is_there(index) {
            stop_or_go_on(&mut self.answers, index, cx);
        }
    }

    /// Keeps bytes that can't be parsed yet.
    fn keep_rest(&mut self, index: ClientKey, rest: &[u8], cx: &mut Context) {
        if rest.is_empty() || !self.is_there(index) {
            return;
        }
        let conn = self.conn_mut(index);
        if matches!(conn.reading(), Reading::Closing | Reading::Linger) {
            conn.flags.unread = true;
            return;
        }
        conn.stash.get_or_insert_default().push(rest);
        if conn.reading() == Reading::Head {
            conn.since_us = cx.now_us;
            self.answers.conns.arm(index, cx);
        }
    }

    /// Looks again at the waiting input of connections, if there is any: at all of it that is due.
    #[inline]
    pub(crate) fn read_on(&mut self, to: &mut Requests<'_>, cx: &mut Context) -> bool {
        if look_up_again(self, to, cx) {
            return true;
        }
        let Some(client @ (index, _)) = self.answers.conns.next_to_parse() else { return false };
        if !self.answers.conns.knows(client) {
            return true;
        }
        let conn = self.conn(index);
        if conn.flags.unverified {
            go_on_judged(self, index, to, cx);
        } else if conn.reading() == Reading::Frames {
            self.read_kept_frames(index, to, cx);
            if self.is_there(index) {
                self.answers.conns.update_receive(index, cx);
            }
        } else if conn.reading() == Reading::Body && is_to_pass_on(&mut self.answers.conns, index) {
            self.begin_streaming(index, to, cx);
        } else if self.conn(index).has_ended_within() {
            self.input_ended(index, to, cx);
        } else {
            self.parse_stash(index, to, cx);
        }
        true
    }

    /// Parses waiting input as far as possible.
    pub(super) fn parse_stash(
        &mut self,
        index: ClientKey,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) {
        if self.conn(index).reading() == Reading::Tunnel {
            return pass_stash_on(self, index, to, cx);
        }
        let Some(lent) = self.conn_mut(index).lend_input() else { return };
        let mut used = 0;
        if self.head_is_whole(index, lent.rest(), cx) {
            used = self.parse(index, &Input::borrowed(lent.rest()), to, cx);
            if let Some(stash) =
                self.answers.conns.conns.get_mut(index).and_then(|conn| conn.stash.as_mut())
            {
                // Even if no head could be taken: a scan that has found an end would continue with
                // the next head.
                stash.begin_head();
            }
        }
        let Some(conn) = self.answers.conns.conns.get_mut(index) else { return };
        if conn.take_input_back(lent, used) {
            if used > 0 && conn.reading() == Reading::Head {
                conn.since_us = cx.now_us;
            }
            self.answers.conns.arm(index, cx);
        }
        if self.conn(index).flags.ended && !self.answers.conns.tarpit.is_held(index) {
            self.input_ended(index, to, cx);
        }
        if self.is_there(index) {
            self.answers.conns.update_receive(index, cx);
        }
    }

    /// Looks for the end of a head that arrives in pieces, each byte once. Answers an error here.
    fn head_is_whole(&mut self, index: ClientKey, bytes: &[u8], cx: &mut Context) -> bool {
        let conn = self.conn_mut(index);
        if conn.reading() != Reading::Head {
            return true;
        }
        let Some(stash) = conn.stash.as_mut() else { return false };
        match stash.scan.find(bytes, &cx.plan.client.head) {
            Ok(found) => found.is_some(),
            Err(error) => {
                self.answers.refuse(index, error.into(), bytes, cx.now_us, cx);
                false
            }
        }
    }

    /// Parses requests from the start of `input` until it is used up or no more may be taken.
    /// Returns the bytes used.
    pub(super) fn parse(
        &mut self,
        index: ClientKey,
        input: &Input<'_>,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) -> usize {
        let mut at = 0;
        while at < input.bytes.len() && self.is_there(index) {
            let conn = self.conn(index);
            let used = match conn.reading() {
                Reading::Head if may_ask(self.conns(), index, &cx.plan.client) => {
                    self.parse_head(index, input, at, to, cx)
                }
                Reading::Body if !self.answers.conns.is_held_back(conn) => {
                    self.upload_received(index, input, at, to, cx)
                }
                _ => break,
            };
            if used == 0 {
                break;
            }
            at += used;
        }
        at
    }

    fn parse_head(
        &mut self,
        index: ClientKey,
        input: &Input<'_>,
        at: usize,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) -> usize {
        let rest = &input.bytes[at..];
        let mut fields = std::mem::take(&mut self.fields);
        let parsed = weir_http::parse_request(rest, &cx.plan.client.head, &mut fields);
        let used = match parsed {
            Err(RequestError::TargetRaw) => self.parse_raw_head(index, &mut fields, rest, to, cx),
            parsed => self.take_head(index, parsed, &fields, input, at, to, cx),
        };
        self.fields = fields;
        used
    }

    /// Takes a head whose target has raw UTF-8, or a query without a path, as if the client had
    /// encoded the target, or written the path.
    #[cold]
    fn parse_raw_head(
        &mut self,
        index: ClientKey,
        fields: &mut Fields,
        rest: &[u8],
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) -> usize {
        let encoded = match weir_http::encode_target(rest, &cx.plan.client.head) {
            Ok(Some(encoded)) => encoded,
            Ok(None) => return 0,
            Err(error) => {
                self.answers.refuse(index, error.into(), rest, cx.now_us, cx);
                return 0;
            }
        };
        let parsed = weir_http::parse_request(&encoded.bytes, &cx.plan.client.head, fields);
        let used =
            self.take_head(index, parsed, fields, &Input::borrowed(&encoded.bytes), 0, to, cx);
        if used > 0 && encoded.is_raw && self.is_there(index) {
            // The target of the request had to be encoded.
            self.conn_mut(index).count_glitch(ClientGlitch::TargetRaw, 1, cx);
            self.answers.conns.limit(index, cx);
        }
        used.saturating_sub(encoded.added)
    }

    /// Takes a head at `input[at..]`, unless it has to wait. Returns the bytes used.
    fn take_head(
        &mut self,
        index: ClientKey,
        parsed: Result<Option<RequestHead>, RequestError>,
        fields: &Fields,
        input: &Input<'_>,
        at: usize,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) -> usize {
        let rest = &input.bytes[at..];
        match parsed {
            Ok(None) => 0,
            Ok(Some(head)) if self.must_wait(index, &head, fields, rest, cx) => {
                let conn = self.conn_mut(index);
                conn.read_as(Reading::Await);
                conn.since_us = cx.now_us;
                self.answers.conns.arm(index, cx);
                0
            }
            Ok(Some(head)) => {
                self.request_parsed(index, &head, fields, input, at, to, cx);
                head.bytes
            }
            Err(error) => {
                self.answers.refuse(index, error.into(), rest, cx.now_us, cx);
                0
            }
        }
    }

    /// Whether all earlier requests must have their responses first. The response to this request
    /// may turn the connection into a tunnel; or the upstream takes one request of a client at a
    /// time; or something has to be known first of a client of the forward proxy.
    fn must_wait(
        &mut self,
        index: ClientKey,
        head: &RequestHead,
        fields: &Fields,
        bytes: &[u8],
        cx: &mut Context,
    ) -> bool {
        let conn = self.conn(index);
        match (conn.codec.is_empty(), conn.flags.proxied) {
            (true, true) => {
                let (client, token) =
                    (self.answers.conns.local_name(index), self.answers.conns.token(index));
                let conn = self.answers.conns.at_mut(index);
                let by = Asking { client, token, peer: conn.peer };
                !self.forward.decide(by, conn.forward_state(), head, fields, bytes, cx)
            }
            (false, true) => true,
            (true, false) => false,
            (false, false) => {
                let to = if cx.has_private {
                    let conn = self.answers.conns.at(index);
                    let sealed =
                        client_scheme(conn.peer, conn.flags.sealed, fields, bytes, &cx.plan.client)
                            .sealed;
                    route(conn, sealed, head, fields, bytes, cx, &mut self.path).ok()
                } else {
                    None
                };
                let is_private = |to: Routed| {
                    to.target.upstreams().any(|upstream| cx.is_private(upstream as u16))
                };
                head.upgrade.is_some() || to.is_some_and(is_private)
            }
        }
    }

    /// Decides what happens to a request: answered here, forwarded at once, or kept until more of
    /// its body is read.
    pub(super) fn request_parsed(
        &mut self,
        index: ClientKey,
        head: &RequestHead,
        fields: &Fields,
        input: &Input<'_>,
        at: usize,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) {
        cx.counters.requests.add(1);
        let bytes = &input.bytes[at..];
        let settled = settle(self.answers.conns.at(index), head, bytes, &cx.plan, &mut self.path);
        let (head, bytes) = settled.as_ref().map_or((head, bytes), |(head, bytes)| (head, bytes));
        if !cx.bans.is_empty() && is_barred(self, index, head, fields, bytes, cx) {
            return;
        }
        if cx.plan.shield.is_some() && is_over_limit(self, index, head, fields, bytes, cx) {
            return;
        }
        let ruling = match self.routed(index, head, fields, bytes, cx) {
            Ok(ruling) => ruling,
            Err(unjudged) => return await_verdict(self, index, *unjudged, head, fields, bytes, cx),
        };
        let exchange = self.add_exchange(index, head, fields, bytes, cx);
        let here = bytes.len() > head.bytes;
        go_on(self, index, exchange, ruling, head, fields, bytes, here, to, cx);
    }

    /// Answers a request without an upstream. If its body is still to come, a small one is read
    /// first; otherwise it ends the connection, so that it is never parsed. `here`: some of it has
    /// arrived.
    pub(super) fn answer_locally(
        &mut self,
        index: ClientKey,
        exchange: ExchangeKey,
        head: &RequestHead,
        here: bool,
        local: Local,
        cx: &mut Context,
    ) {
        if !head.body.is_empty() && self.conn(index).drains(head, here, &local) {
            self.read_body(index, exchange, head, here, Err(local), cx);
            if self.is_there(index) {
                self.answers.conns.arm(index, cx);
            }
            return;
        }
        // Bytes behind a CONNECT may be for a tunnel. After a CONNECT without credentials every
        // request has to have some, so bytes of a tunnel are no valid request; and clients whose
        // authentication takes several turns need the connection.
        let may_ask_again = head.persist
            && !here
            && matches!(local, Local::Refused(cause) if cause.status() == 407);
        let is_followed = head.method == Method::Connect && !may_ask_again;
        let has_more = !head.body.is_empty() || is_followed;
        let slot = self.answers.conns.exchange_mut(exchange);
        slot.want.close |= has_more;
        slot.want.body_open = has_more;
        slot.want.connect &= has_more;
        if has_more {
            // At once: while earlier responses are pending, parsing would continue.
            self.conn_mut(index).read_as(Reading::Closing);
        }
        self.answers.answer_local(exchange, local, cx);
    }

    /// Appends an exchange for a request to its connection's list.
    pub(super) fn add_exchange(
        &mut self,
        index: ClientKey,
        head: &RequestHead,
        fields: &Fields,
        bytes: &[u8],
        cx: &Context,
    ) -> ExchangeKey {
        let want = ReplyConstraints {
            head: head.method == Method::Head,
            old: head.version == Version::Http10,
            close: !head.persist
                || self.conn(index).flags.leaves
                || self.conn(index).stream.is_some(),
            trailers: head.te_trailers,
            connect: head.method == Method::Connect,
            grpc: self.conn(index).stream.is_some() && is_grpc(fields, bytes),
            ..ReplyConstraints::default()
        };
        let exchange = self.answers.conns.push(index, want, cx);
        if let Some(guard) = &mut self.answers.conns.guard {
            guard.begun(exchange);
        }
        let conn = self.answers.conns.at(index);
        // Clients of a forward proxy speak for themselves.
        let peer = Some((conn.peer, conn.flags.sealed)).filter(|_| !conn.flags.proxied);
        self.answers.records.begin(exchange, peer, head, fields, bytes, cx);
        if let Some(asker) = self
            .answers
            .conns
            .at(index)
            .proxied
            .as_deref()
            .and_then(|client| client.asker.as_deref())
        {
            self.answers.records.asked_by(exchange, asker);
        }
        if !fields.oddities().is_empty() {
            self.conn_mut(index).count_oddities(fields.oddities(), cx);
            self.answers.conns.limit(index, cx);
        }
        if want.close {
            self.conn_mut(index).read_as(Reading::Closing);
        }
        exchange
    }

    /// A client has closed its sending direction. Its earlier input that waits is still served, as
    /// long as responses come ([`left_us`](crate::client::connection::ClientConn::left_us)).
    pub(crate) fn client_ended(&mut self, token: u64, to: &mut Requests<'_>, cx: &mut Context) {
        let Some(index) = self.answers.conns.of_token(token) else { return };
        let is_held = self.answers.conns.tarpit.is_held(index);
        let now_us = cx.now_us;
        let conn = self.conn_mut(index);
        conn.flags.ended = true;
        if conn.reading() != Reading::Tunnel {
            conn.since_us = now_us;
        }
        if is_held {
            tarpit::client_left(&mut self.answers, index, cx);
        } else if conn.stash.is_some()
            && matches!(conn.reading(), Reading::Head | Reading::Body | Reading::Tunnel)
        {
            self.parse_stash(index, to, cx);
        } else {
            self.input_ended(index, to, cx);
        }
        if self.is_there(index) {
            self.answers.conns.arm(index, cx);
        }
    }

    /// Nothing follows the received input: ends what can be ended, as far as the input is parsed.
    pub(super) fn input_ended(
        &mut self,
        index: ClientKey,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) {
        let conn = self.conn(index);
        // The end of a stream's body waits like the bytes before it.
        let waits =
            conn.stash.is_some() || conn.stream.is_some() && self.answers.conns.is_held_back(conn);
        let has_sent_all = conn.has_sent_all() && !self.answers.conns.carriers.wants_write(index);
        match conn.reading() {
            Reading::Tunnel => self.tunnel_client_ended(index, to, cx),
            Reading::Linger => {
                self.answers.close_conn(index, self.conn(index).orderly_end(&cx.plan.client), cx)
            }
            Reading::Body if !waits => self.body_ended(index, to, cx),
            Reading::Body | Reading::Await => {}
            // For a stream only the body ends.
            _ if conn.stream.is_some() => {}
            // A client that sends no more opens no window either. Output on its way still leaves.
            Reading::Frames if has_sent_all => {
                self.answers.close_conn(index, ClientEnd::ClientClosed, cx)
            }
            Reading::Frames => self.answers.end_http2(index, ClientEnd::ClientClosed, cx),
            Reading::Head | Reading::Closing => {
                let waits = conn.stash.is_some() && !may_ask(self.conns(), index, &cx.plan.client);
                let conn = self.conn_mut(index);
                if has_sent_all {
                    self.answers.close_conn(index, ClientEnd::ClientClosed, cx);
                } else if !waits {
                    conn.read_as(Reading::Closing);
                    conn.stash = None;
                    conn.flags.close = true;
                }
            }
        }
    }

    /// A client's connection broke.
    pub(crate) fn client_failed(&mut self, token: u64, cx: &mut Context) {
        if let Some(index) = self.answers.conns.of_token(token) {
            self.answers.close_conn(index, ClientEnd::ClientReset, cx);
        }
    }
}

/// Passes waiting input to the server of a tunnel.
fn pass_stash_on(clients: &mut Clients, index: ClientKey, to: &mut Requests<'_>, cx: &mut Context) {
    let Some(stash) = clients.conn_mut(index).stash.take() else { return };
    let rest = Bytes::from(stash.bytes).slice(stash.start..);
    clients.tunnel_from_client(index, Piece::Kept(rest), to, cx);
    if clients.conn(index).flags.ended {
        clients.tunnel_client_ended(index, to, cx);
    }
    if clients.is_there(index) {
        clients.answers.conns.update_receive(index, cx);
    }
}

/// Carries out the decision about a request. `here`: some of its body has arrived.
#[inline]
pub(super) fn go_on(
    clients: &mut Clients,
    index: ClientKey,
    exchange: ExchangeKey,
    (goal, ruled): Ruling,
    head: &RequestHead,
    fields: &Fields,
    bytes: &[u8],
    here: bool,
    to: &mut Requests<'_>,
    cx: &mut Context,
) {
    if let Some(ruled) = ruled {
        clients.answers.records.ruled(exchange, &ruled);
        clients.answers.conns.exchange_mut(exchange).ruled = Some(ruled);
    }
    let upstream = match goal {
        Ok(_) if clients.answers.conns.exchange(exchange).want.grpc => {
            return clients.answer_locally(index, exchange, head, here, Cause::Grpc.into(), cx);
        }
        Ok(upstream) => upstream,
        Err(local) => return clients.answer_locally(index, exchange, head, here, local, cx),
    };
    if clients.answers.needs_http1(index, exchange, upstream, cx) {
        return;
    }
    if leads_home(&mut clients.answers.conns, exchange, upstream, cx) {
        let local = Cause::OwnDestination.into();
        return clients.answer_locally(index, exchange, head, here, local, cx);
    }
    if clients.conn(index).flags.proxied {
        cx.usage.requested(clients.conn(index).account(), head.method == Method::Connect);
    }
    if head.method == Method::Connect {
        clients.conn_mut(index).read_as(Reading::Await);
        clients.asks.open_tunnel(&mut clients.answers, exchange, upstream, to, cx);
        clients.answers.conns.arm(index, cx);
        return;
    }
    if head.method == Method::Other
        && let Some(local) = purge(&clients.answers, exchange, upstream, (head, fields, bytes), cx)
    {
        return clients.answer_locally(index, exchange, head, here, local, cx);
    }
    let is_done = consult(clients, exchange, upstream, head, fields, bytes, to, cx);
    if is_done {
        // It has its response, or waits for a fetch.
    } else if !head.body.is_empty() {
        let kept = KeptRequest {
            head: *head,
            fields: fields.clone(),
            bytes: bytes[..head.bytes].to_vec(),
            upstream,
        };
        clients.read_body(index, exchange, head, here, Ok(kept), cx);
        if here {
            // Nearly always the body is complete now, and needs no timer.
            return;
        }
    } else {
        if head.upgrade.is_some() {
            // Before it is forwarded: its response may come at once.
            clients.conn_mut(index).read_as(Reading::Await);
        }
        clients.asks.forward(
            &mut clients.answers,
            exchange,
            upstream,
            head,
            fields,
            bytes,
            &[],
            None,
            to,
            cx,
        );
    }
    if clients.is_there(index) {
        clients.answers.conns.arm(index, cx);
    }
}
