//! The client's side: accept, parse, refuse, send, close (stages accept, parse and reply).

use std::net::SocketAddr;

use bytes::Bytes;
use weir_http::{Fields, Method, RequestBody, RequestError, RequestHead, TargetForm, Version};

use super::Clients;
use crate::action::Action;
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::base::output::{HIGH_BYTES, Output};
use crate::base::piece::{Input, Piece};
use crate::base::token::{ShortGeneration, Token};
use crate::cause::{Cause, Local};
use crate::client::connection::{AnswerFraming, ClientConn, Exchange, Phase, ReadBuffer, Reading, ReplyConstraints};
use crate::context::Context;
use crate::cross::router::Requests;
use crate::ending::ClientEnd;
use crate::observe::secured::Secured;
use crate::plan::Serves;
use crate::request::pending_request::ExchangeId;

/// Unparsed bytes of one client above which it is not read.
const STASH_BYTES_MAX: usize = 64 * 1024;

impl Clients {
    /// Whether clients are closed as soon as they have what they asked for.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining_us.is_some()
    }

    pub(super) fn exchange_id(&self, index: ExchangeKey, cx: &Context) -> ExchangeId {
        ExchangeId { worker: cx.worker, index, generation: self.exchanges.generation(index) }
    }

    /// Connections.
    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Requests without a complete answer.
    pub(crate) fn exchanges(&self) -> usize {
        self.exchanges.len()
    }

    /// Finishes what is under way: see [`Engine::drain`](crate::engine::Engine::drain).
    pub(crate) fn drain(&mut self, cx: &mut Context) {
        self.draining_us.get_or_insert(cx.now_us);
        let all: Vec<ClientKey> = self.sessions.keys().collect();
        for index in all {
            self.drain_session(index, cx);
        }
    }

    /// Whether some input is to be looked at again.
    #[inline]
    pub(crate) fn is_to_read_on(&self) -> bool {
        !self.to_parse.is_empty()
    }

    /// A client connected to a listener that serves this. Returns the token that names it, or None when it is not wanted (then close it).
    pub(crate) fn accepted(&mut self, socket: u64, peer: SocketAddr, serves: Serves, cx: &mut Context) -> Option<u64> {
        let full = cx.plan.client.connections_max.is_some_and(|max| self.sessions.len() >= max as usize);
        if full {
            cx.counters.connections_refused.add(1);
            return None;
        }
        // It connected before draining began: it may ask once.
        if let Some(since_us) = &mut self.draining_us {
            *since_us = cx.now_us;
        }
        cx.counters.accepted.add(1);
        cx.counters.client_connections.add(1);
        let (index, _) = self.sessions.insert(ClientConn::new(socket, peer, cx.now_us));
        self.sessions.at_mut(index).flags.proxied = serves == Serves::Forward;
        self.note_client(index, peer);
        self.arm_session(index, cx);
        Some(self.client_token(index))
    }

    /// A client that was just accepted speaks TLS.
    pub(crate) fn client_sealed(&mut self, token: u64, secured: Secured) {
        let Some(index) = self.session_of(token) else { return };
        self.sessions.at_mut(index).flags.sealed = true;
        if let Some(access) = &mut self.access {
            access.sealed(index, secured);
        }
    }

    /// A client sent bytes.
    pub(crate) fn client_received(&mut self, token: u64, input: &Input<'_>, to: &mut Requests<'_>, cx: &mut Context) {
        let Some(index) = self.session_of(token) else { return };
        cx.counters.client_bytes_in.add(input.bytes.len() as u64);
        let session = self.sessions.at_mut(index);
        match session.reading {
            // Behind what came with the request, which is passed on soon.
            Reading::Tunnel if session.stash.is_some() => {
                session.stash.get_or_insert_default().bytes.extend_from_slice(input.bytes);
            }
            Reading::Tunnel => self.tunnel_from_client(index, input.piece(0..input.bytes.len()), to, cx),
            Reading::Closing | Reading::Linger => session.flags.unread = true,
            _ if session.stash.is_some() => {
                let idle = session.reading == Reading::Head && !session.has_begun_request();
                let stash = session.stash.get_or_insert_default();
                if stash.start > 0 && stash.start >= stash.bytes.len() / 2 {
                    stash.bytes.drain(..stash.start);
                    stash.start = 0;
                }
                let in_pieces = stash.add(input.bytes) && session.reading == Reading::Head;
                if idle && session.has_begun_request() {
                    session.since_us = cx.now_us;
                }
                self.parse_stash(index, to, cx);
                if in_pieces && self.session_alive(index) {
                    self.head_in_pieces(index, cx);
                }
            }
            _ => {
                let used = self.parse(index, input, to, cx);
                self.keep_rest(index, &input.bytes[used..], cx);
            }
        }
        if self.session_alive(index) {
            self.update_receive(index, cx);
        }
    }

    /// Keeps what can't be parsed yet.
    fn keep_rest(&mut self, index: ClientKey, rest: &[u8], cx: &mut Context) {
        if rest.is_empty() || !self.session_alive(index) {
            return;
        }
        let session = self.sessions.at_mut(index);
        if matches!(session.reading, Reading::Closing | Reading::Linger) {
            session.flags.unread = true;
            return;
        }
        let stash = session.stash.get_or_insert_default();
        stash.bytes.extend_from_slice(rest);
        if session.reading == Reading::Head {
            session.since_us = cx.now_us;
            self.arm_session(index, cx);
        }
    }

    /// Looks again at what waits of the input of a connection, if there is any: at all of it that is due.
    pub(crate) fn read_on(&mut self, to: &mut Requests<'_>, cx: &mut Context) -> bool {
        let Some((index, generation)) = self.to_parse.pop_front() else { return false };
        if !self.sessions.holds(index, generation) {
            return true;
        }
        let session = self.sessions.at(index);
        if session.stash.is_none() && session.flags.ended && session.reading == Reading::Tunnel {
            self.tunnel_client_ended(index, to, cx);
        } else {
            self.parse_stash(index, to, cx);
        }
        true
    }

    /// Parses what waits, as far as it goes.
    pub(super) fn parse_stash(&mut self, index: ClientKey, to: &mut Requests<'_>, cx: &mut Context) {
        let Some(mut stash) = self.sessions.at_mut(index).stash.take() else { return };
        if self.sessions.at(index).reading == Reading::Tunnel {
            let rest = Bytes::from(stash.bytes).slice(stash.start..);
            self.tunnel_from_client(index, Piece::Kept(rest), to, cx);
            if self.sessions.at(index).flags.ended {
                self.tunnel_client_ended(index, to, cx);
            }
            return;
        }
        let mut progress = false;
        if self.head_is_whole(index, &mut stash, cx) {
            let used = self.parse(index, &Input::borrowed(&stash.bytes[stash.start..]), to, cx);
            progress = used > 0;
            stash.start += used;
            // Also when nothing could be taken: a scan that has found an end would go on to the next head.
            stash.begin_head();
        }
        if !self.session_alive(index) {
            return;
        }
        if stash.start < stash.bytes.len() {
            self.keep_stash(index, stash, progress, cx);
        }
        if self.sessions.at(index).flags.ended {
            self.input_ended(index, to, cx);
        }
        if self.session_alive(index) {
            self.update_receive(index, cx);
        }
    }

    /// Puts back what could not be parsed yet. `progress`: something was, so that a new head begins here.
    fn keep_stash(&mut self, index: ClientKey, stash: Box<ReadBuffer>, progress: bool, cx: &mut Context) {
        let since_us = cx.now_us;
        let session = self.sessions.at_mut(index);
        if matches!(session.reading, Reading::Closing | Reading::Linger) {
            session.flags.unread = true;
            return;
        }
        if progress && session.reading == Reading::Head {
            session.since_us = since_us;
        }
        session.stash = Some(stash);
        self.arm_session(index, cx);
    }

    /// Looks for the end of a head that comes in pieces, each byte once. An error is answered here.
    fn head_is_whole(&mut self, index: ClientKey, stash: &mut ReadBuffer, cx: &mut Context) -> bool {
        if self.sessions.at(index).reading != Reading::Head {
            return true;
        }
        match stash.scan.find(&stash.bytes[stash.start..], &cx.plan.client.head) {
            Ok(found) => found.is_some(),
            Err(error) => {
                self.refuse_head(index, error, &stash.bytes[stash.start..], cx);
                false
            }
        }
    }

    /// Reads requests from the start of `input` until it is used up or nothing more may be taken. Returns the bytes used.
    fn parse(&mut self, index: ClientKey, input: &Input<'_>, to: &mut Requests<'_>, cx: &mut Context) -> usize {
        let mut at = 0;
        while at < input.bytes.len() && self.session_alive(index) {
            let session = self.sessions.at(index);
            let used = match session.reading {
                Reading::Head if self.may_take_request(session, cx) => self.parse_head(index, input, at, to, cx),
                Reading::Body if !session.flags.body_paused => self.upload_received(index, input, at, to, cx),
                _ => break,
            };
            if used == 0 {
                break;
            }
            at += used;
        }
        at
    }

    /// Whether another request of this client may be taken now.
    fn may_take_request(&self, session: &ClientConn, cx: &Context) -> bool {
        session.queued < cx.plan.client.requests_queued_max && session.unsent() < HIGH_BYTES
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

    /// A head whose target has raw UTF-8: it is taken as if the client had encoded that.
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
                self.refuse_head(index, error, rest, cx);
                return 0;
            }
        };
        let parsed = weir_http::parse_request(&encoded.bytes, &cx.plan.client.head, fields);
        let used = self.take_head(index, parsed, fields, &Input::borrowed(&encoded.bytes), 0, to, cx);
        if used > 0 && self.session_alive(index) {
            self.odd_target(index, cx);
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
                let session = self.sessions.at_mut(index);
                (session.reading, session.since_us) = (Reading::Await, cx.now_us);
                self.arm_session(index, cx);
                0
            }
            Ok(Some(head)) => {
                self.request_parsed(index, &head, fields, input, at, to, cx);
                head.bytes
            }
            Err(error) => {
                self.refuse_head(index, error, rest, cx);
                0
            }
        }
    }

    /// Whether everything asked before is answered first, because the answer to this request may make a tunnel of the connection, or
    /// what serves it has one request of a client at a time; or something has to be known first of a client of the forward proxy.
    fn must_wait(
        &mut self,
        index: ClientKey,
        head: &RequestHead,
        fields: &Fields,
        bytes: &[u8],
        cx: &mut Context,
    ) -> bool {
        let session = self.sessions.at(index);
        match (session.first == ExchangeKey::NONE, session.flags.proxied) {
            (true, true) => !self.decide(index, head, fields, bytes, cx),
            (false, true) => true,
            (true, false) => false,
            (false, false) => {
                let to = if cx.has_private { self.route(index, head, bytes, cx).ok() } else { None };
                head.upgrade.is_some() || to.is_some_and(|to| cx.is_private(to as u16))
            }
        }
    }

    fn refuse_head(&mut self, index: ClientKey, error: RequestError, bytes: &[u8], cx: &mut Context) {
        self.refuse(index, error.into(), bytes, cx.now_us, cx);
    }

    /// Decides what becomes of a request: answered here, forwarded at once, or read on for its body.
    fn request_parsed(
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
        let upstream = match self.route(index, head, bytes, cx) {
            Ok(upstream) => upstream,
            Err(local) => return self.answer_locally(index, head, fields, bytes, local, cx),
        };
        let exchange = self.add_exchange(index, head, fields, bytes, cx);
        if self.sessions.at(index).flags.proxied {
            self.count_use(index, head.method == Method::Connect, cx);
        }
        if head.method == Method::Connect {
            self.sessions.at_mut(index).reading = Reading::Await;
            self.open_tunnel(exchange, upstream, to, cx);
            self.arm_session(index, cx);
            return;
        }
        match head.body {
            RequestBody::None | RequestBody::Length(0) => {
                if head.upgrade.is_some() {
                    // Before it is forwarded: it may be answered at once.
                    self.sessions.at_mut(index).reading = Reading::Await;
                }
                self.forward(exchange, upstream, head, fields, bytes, &[], None, to, cx);
            }
            RequestBody::Length(length) => self.begin_upload(index, exchange, head, bytes, Some(length), cx),
            RequestBody::Chunked => self.begin_upload(index, exchange, head, bytes, None, cx),
        }
        if self.session_alive(index) {
            self.arm_session(index, cx);
        }
    }

    /// The upstream for a request, or what weir answers by itself.
    pub(super) fn route(
        &mut self,
        session: ClientKey,
        head: &RequestHead,
        bytes: &[u8],
        cx: &Context,
    ) -> Result<usize, Local> {
        let proxied = self.sessions.at(session).flags.proxied;
        if head.via_loop {
            return Err(Cause::Loop.into());
        }
        if !proxied && (head.method == Method::Connect || head.form == TargetForm::Authority) {
            return Err(Cause::ConnectRefused.into());
        }
        if head.max_forwards == Some(0) && matches!(head.method, Method::Trace | Method::Options) {
            return Err(if head.method == Method::Trace { Cause::MaxForwards.into() } else { Local::Options });
        }
        if let (RequestBody::Length(length), Some(max)) = (head.body, cx.plan.client.body_bytes_max)
            && length > max
        {
            return Err(Cause::BodyTooLarge.into());
        }
        if proxied {
            return self.decided(session, cx);
        }
        let path = head.path.of(bytes);
        let path = if path.is_empty() { b"/" } else { path };
        let found = cx.plan.routes.find(head.authority.of(bytes), path, head.method_span.of(bytes), &mut self.path);
        match found {
            Ok(Some(upstream)) => Ok(upstream),
            Ok(None) => Err(Cause::NoRoute.into()),
            Err(_) => Err(Cause::Path.into()),
        }
    }

    /// Answers a request without an upstream. A body that is still to come ends the connection, so it is never parsed.
    fn answer_locally(
        &mut self,
        index: ClientKey,
        head: &RequestHead,
        fields: &Fields,
        bytes: &[u8],
        local: Local,
        cx: &mut Context,
    ) {
        let exchange = self.add_exchange(index, head, fields, bytes, cx);
        let has_more = !head.body.is_empty() || head.method == Method::Connect;
        let slot = self.exchanges.at_mut(exchange);
        slot.want.close |= has_more;
        slot.want.body_open = has_more;
        if has_more {
            // At once: with answers in front of this one, parsing would go on.
            self.sessions.at_mut(index).reading = Reading::Closing;
        }
        self.answer_local(exchange, local, cx);
    }

    /// Appends an exchange for a request to its session's list.
    fn add_exchange(
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
            close: !head.persist || self.is_draining(),
            trailers: head.te_trailers,
            connect: head.method == Method::Connect,
            ..ReplyConstraints::default()
        };
        let exchange = self.push_exchange(index, want, cx);
        self.note_request(exchange, head, fields, bytes, cx);
        if self.sessions.at(index).flags.proxied {
            self.note_user(exchange);
        }
        if !fields.oddities().is_empty() {
            self.odd_request(index, fields.oddities(), cx);
        }
        if want.close {
            self.sessions.at_mut(index).reading = Reading::Closing;
        }
        exchange
    }

    #[inline]
    fn push_exchange(&mut self, index: ClientKey, want: ReplyConstraints, cx: &Context) -> ExchangeKey {
        let exchange = Exchange {
            session: index,
            next: ExchangeKey::NONE,
            phase: Phase::Reading,
            framing: AnswerFraming::Plain,
            received_us: cx.now_us,
            deadline_us: u64::MAX,
            patience_us: u64::MAX,
            held: Output::default(),
            link: None,
            asked: cx.worker,
            kept: None,
            want,
        };
        let (slot, _) = self.exchanges.insert(exchange);
        let session = self.sessions.at_mut(index);
        if session.last == ExchangeKey::NONE {
            session.first = slot;
        } else {
            self.exchanges.at_mut(session.last).next = slot;
        }
        session.last = slot;
        session.queued += 1;
        slot
    }

    /// Answers with an error behind everything that was asked before, and closes. `bytes` is what came of the request, from
    /// `since_us` on.
    pub(super) fn refuse(&mut self, index: ClientKey, cause: Cause, bytes: &[u8], since_us: u64, cx: &mut Context) {
        let session = self.sessions.at_mut(index);
        session.flags.unread = true;
        session.reading = Reading::Closing;
        let want = ReplyConstraints { close: true, body_open: true, ..ReplyConstraints::default() };
        let exchange = self.push_exchange(index, want, cx);
        self.note_refused(exchange, bytes, since_us);
        self.fail_exchange(exchange, cause, cx);
    }

    /// Stops or resumes reading a client, as its queues demand.
    pub(super) fn update_receive(&mut self, index: ClientKey, cx: &mut Context) {
        let session = self.sessions.at(index);
        let stashed = session.stash.as_ref().map_or(0, |stash| stash.bytes.len() - stash.start);
        let wanted = match session.reading {
            Reading::Head | Reading::Await => {
                stashed < STASH_BYTES_MAX
                    && (session.reading == Reading::Await || stashed == 0 || self.may_take_request(session, cx))
            }
            Reading::Body | Reading::Tunnel => !session.flags.body_paused,
            Reading::Closing | Reading::Linger => true,
        };
        if wanted == session.flags.stopped && !session.flags.ended {
            let action = Action::ReceiveClient { socket: session.socket, on: wanted };
            let now_us = cx.now_us;
            let session = self.sessions.at_mut(index);
            session.flags.stopped = !wanted;
            if wanted && session.reading == Reading::Head && session.has_begun_request() {
                // The patience with the rest of a head begins only now that it may come.
                session.since_us = now_us;
                self.arm_session(index, cx);
            }
            cx.actions.push_back(action);
        }
    }

    /// A client closed its sending direction. What it sent before that and waits is still served.
    pub(crate) fn client_ended(&mut self, token: u64, to: &mut Requests<'_>, cx: &mut Context) {
        let Some(index) = self.session_of(token) else { return };
        let session = self.sessions.at_mut(index);
        session.flags.ended = true;
        if session.stash.is_some() && matches!(session.reading, Reading::Head | Reading::Body | Reading::Tunnel) {
            self.parse_stash(index, to, cx);
        } else {
            self.input_ended(index, to, cx);
        }
    }

    /// Nothing follows what was received: draws the consequences as far as that is parsed.
    fn input_ended(&mut self, index: ClientKey, to: &mut Requests<'_>, cx: &mut Context) {
        let session = self.sessions.at_mut(index);
        match session.reading {
            Reading::Tunnel => self.tunnel_client_ended(index, to, cx),
            Reading::Linger => self.close_session(index, self.orderly_end(index, cx), cx),
            Reading::Body if session.stash.is_none() => self.upload_failed(index, Cause::BodyTruncated, cx),
            Reading::Body | Reading::Await => {}
            Reading::Head | Reading::Closing => {
                let waits = session.stash.is_some() && !self.may_take_request(self.sessions.at(index), cx);
                let session = self.sessions.at_mut(index);
                if session.first == ExchangeKey::NONE && session.output.is_empty() && !session.flags.sending {
                    self.close_session(index, ClientEnd::ClientClosed, cx);
                } else if !waits {
                    session.reading = Reading::Closing;
                    session.stash = None;
                    session.flags.close = true;
                }
            }
        }
    }

    /// A client's connection broke.
    pub(crate) fn client_failed(&mut self, token: u64, cx: &mut Context) {
        if let Some(index) = self.session_of(token) {
            self.close_session(index, ClientEnd::ClientReset, cx);
        }
    }

    /// Names a client's connection towards the worker and the timers.
    pub(super) fn client_token(&self, index: ClientKey) -> u64 {
        let generation = ShortGeneration::of(self.sessions.generation(index));
        Token::Client { key: index, generation }.pack()
    }

    /// The session that a token names, if it is still there.
    #[inline]
    pub(super) fn session_of(&self, token: u64) -> Option<ClientKey> {
        match Token::unpack(token)? {
            Token::Client { key, generation } => self.sessions.holds_short(key, generation).then_some(key),
            _ => None,
        }
    }
}
