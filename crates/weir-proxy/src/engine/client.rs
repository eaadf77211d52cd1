//! The client's side: accept, parse, refuse, send, close (stages accept, parse and reply).

use std::net::SocketAddr;

use bytes::Bytes;
use weir_http::{Fields, Method, RequestBody, RequestError, RequestHead, TargetForm, Version};

use super::{Action, Engine, HIGH_BYTES, Input, LOW_BYTES};
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::base::output::{Out, Output};
use crate::cause::{Cause, Local};
use crate::client::connection::{AnswerFraming, ClientConn, Exchange, Phase, ReadBuffer, Reading, ReplyConstraints};
use crate::ending::ClientEnd;
use crate::plan::Serves;

/// Unparsed bytes of one client above which it is not read.
const STASH_BYTES_MAX: usize = 64 * 1024;

impl Engine {
    /// A client connected to a listener that serves this. Returns the token that names it, or None when it is not wanted (then close it).
    pub fn accepted(&mut self, socket: u64, peer: SocketAddr, serves: Serves) -> Option<u64> {
        let full = self.plan.client.connections_max.is_some_and(|max| self.sessions.len() >= max as usize);
        if full {
            self.counters.connections_refused.add(1);
            return None;
        }
        // It connected before draining began: it may ask once.
        if let Some(since_us) = &mut self.draining_us {
            *since_us = self.now_us;
        }
        self.counters.accepted.add(1);
        self.counters.client_connections.add(1);
        let (index, _) = self.sessions.insert(ClientConn::new(socket, peer, self.now_us));
        self.sessions.at_mut(index).flags.proxied = serves == Serves::Forward;
        self.note_client(index, peer);
        self.arm_session(index);
        Some(self.client_token(index))
    }

    /// A client could not be accepted (descriptors or memory ran out).
    pub fn accept_failed(&mut self) {
        self.counters.accept_failures.add(1);
    }

    /// A client sent bytes.
    pub fn client_received(&mut self, token: u64, input: &Input<'_>) {
        let Some(index) = self.session_of(token) else { return };
        self.counters.client_bytes_in.add(input.bytes.len() as u64);
        let session = self.sessions.at_mut(index);
        match session.reading {
            Reading::Tunnel => self.tunnel_from_client(index, input.piece(0..input.bytes.len())),
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
                    session.since_us = self.now_us;
                }
                self.parse_stash(index);
                if in_pieces && self.session_alive(index) {
                    self.head_in_pieces(index);
                }
            }
            _ => {
                let used = self.parse(index, input);
                self.keep_rest(index, &input.bytes[used..]);
            }
        }
        if self.session_alive(index) {
            self.update_receive(index);
        }
    }

    /// Keeps what can't be parsed yet.
    fn keep_rest(&mut self, index: ClientKey, rest: &[u8]) {
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
            session.since_us = self.now_us;
            self.arm_session(index);
        }
    }

    /// Parses what waits, as far as it goes.
    pub(super) fn parse_stash(&mut self, index: ClientKey) {
        let Some(mut stash) = self.sessions.at_mut(index).stash.take() else { return };
        if self.sessions.at(index).reading == Reading::Tunnel {
            let rest = Bytes::from(stash.bytes).slice(stash.start..);
            self.tunnel_from_client(index, super::Piece::Kept(rest));
            return;
        }
        let mut progress = false;
        if self.head_is_whole(index, &mut stash) {
            let used = self.parse(index, &Input::borrowed(&stash.bytes[stash.start..]));
            progress = used > 0;
            stash.start += used;
            // Also when nothing could be taken: a scan that has found an end would go on to the next head.
            stash.begin_head();
        }
        if !self.session_alive(index) {
            return;
        }
        if stash.start < stash.bytes.len() {
            self.keep_stash(index, stash, progress);
        }
        if self.sessions.at(index).flags.ended {
            self.input_ended(index);
        }
        if self.session_alive(index) {
            self.update_receive(index);
        }
    }

    /// Puts back what could not be parsed yet. `progress`: something was, so that a new head begins here.
    fn keep_stash(&mut self, index: ClientKey, stash: Box<ReadBuffer>, progress: bool) {
        let since_us = self.now_us;
        let session = self.sessions.at_mut(index);
        if matches!(session.reading, Reading::Closing | Reading::Linger) {
            session.flags.unread = true;
            return;
        }
        if progress && session.reading == Reading::Head {
            session.since_us = since_us;
        }
        session.stash = Some(stash);
        self.arm_session(index);
    }

    /// Looks for the end of a head that comes in pieces, each byte once. An error is answered here.
    fn head_is_whole(&mut self, index: ClientKey, stash: &mut ReadBuffer) -> bool {
        if self.sessions.at(index).reading != Reading::Head {
            return true;
        }
        match stash.scan.find(&stash.bytes[stash.start..], &self.plan.client.head) {
            Ok(found) => found.is_some(),
            Err(error) => {
                self.refuse_head(index, error, &stash.bytes[stash.start..]);
                false
            }
        }
    }

    /// Reads requests from the start of `input` until it is used up or nothing more may be taken. Returns the bytes used.
    fn parse(&mut self, index: ClientKey, input: &Input<'_>) -> usize {
        let mut at = 0;
        while at < input.bytes.len() && self.session_alive(index) {
            let session = self.sessions.at(index);
            let used = match session.reading {
                Reading::Head if self.may_take_request(session) => self.parse_head(index, input, at),
                Reading::Body if !session.flags.body_paused => self.upload_received(index, input, at),
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
    fn may_take_request(&self, session: &ClientConn) -> bool {
        session.queued < self.plan.client.requests_queued_max && session.unsent() < HIGH_BYTES
    }

    fn parse_head(&mut self, index: ClientKey, input: &Input<'_>, at: usize) -> usize {
        let rest = &input.bytes[at..];
        let mut fields = std::mem::take(&mut self.fields);
        let parsed = weir_http::parse_request(rest, &self.plan.client.head, &mut fields);
        let used = match parsed {
            Err(RequestError::TargetRaw) => self.parse_raw_head(index, &mut fields, rest),
            parsed => self.take_head(index, parsed, &fields, input, at),
        };
        self.fields = fields;
        used
    }

    /// A head whose target has raw UTF-8: it is taken as if the client had encoded that.
    #[cold]
    fn parse_raw_head(&mut self, index: ClientKey, fields: &mut Fields, rest: &[u8]) -> usize {
        let encoded = match weir_http::encode_target(rest, &self.plan.client.head) {
            Ok(Some(encoded)) => encoded,
            Ok(None) => return 0,
            Err(error) => {
                self.refuse_head(index, error, rest);
                return 0;
            }
        };
        let parsed = weir_http::parse_request(&encoded.bytes, &self.plan.client.head, fields);
        let used = self.take_head(index, parsed, fields, &Input::borrowed(&encoded.bytes), 0);
        if used > 0 && self.session_alive(index) {
            self.odd_target(index);
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
    ) -> usize {
        let rest = &input.bytes[at..];
        match parsed {
            Ok(None) => 0,
            Ok(Some(head)) if self.must_wait(index, &head, fields, rest) => {
                let session = self.sessions.at_mut(index);
                (session.reading, session.since_us) = (Reading::Await, self.now_us);
                self.arm_session(index);
                0
            }
            Ok(Some(head)) => {
                self.request_parsed(index, &head, fields, input, at);
                head.bytes
            }
            Err(error) => {
                self.refuse_head(index, error, rest);
                0
            }
        }
    }

    /// Whether everything asked before is answered first, because the answer to this request may make a tunnel of the connection, or
    /// what serves it has one request of a client at a time; or something has to be known first of a client of the forward proxy.
    fn must_wait(&mut self, index: ClientKey, head: &RequestHead, fields: &Fields, bytes: &[u8]) -> bool {
        let session = self.sessions.at(index);
        match (session.first == ExchangeKey::NONE, session.flags.proxied) {
            (true, true) => !self.decide(index, head, fields, bytes),
            (false, true) => true,
            (true, false) => false,
            (false, false) => {
                let to = if self.has_private { self.route(index, head, bytes).ok() } else { None };
                head.upgrade.is_some() || to.is_some_and(|to| self.is_private(to as u16))
            }
        }
    }

    fn refuse_head(&mut self, index: ClientKey, error: RequestError, bytes: &[u8]) {
        self.refuse(index, error.into(), bytes, self.now_us);
    }

    /// Decides what becomes of a request: answered here, forwarded at once, or read on for its body.
    fn request_parsed(&mut self, index: ClientKey, head: &RequestHead, fields: &Fields, input: &Input<'_>, at: usize) {
        self.counters.requests.add(1);
        let bytes = &input.bytes[at..];
        let upstream = match self.route(index, head, bytes) {
            Ok(upstream) => upstream,
            Err(local) => return self.answer_locally(index, head, fields, bytes, local),
        };
        let exchange = self.add_exchange(index, head, fields, bytes);
        if self.sessions.at(index).flags.proxied {
            self.count_use(index, head.method == Method::Connect);
        }
        if head.method == Method::Connect {
            self.sessions.at_mut(index).reading = Reading::Await;
            self.open_tunnel(exchange, upstream);
            self.arm_session(index);
            return;
        }
        match head.body {
            RequestBody::None | RequestBody::Length(0) => {
                if head.upgrade.is_some() {
                    // Before it is forwarded: it may be answered at once.
                    self.sessions.at_mut(index).reading = Reading::Await;
                }
                self.forward(exchange, upstream, head, fields, bytes, &[], None);
            }
            RequestBody::Length(length) => self.begin_upload(index, exchange, head, bytes, Some(length)),
            RequestBody::Chunked => self.begin_upload(index, exchange, head, bytes, None),
        }
        if self.session_alive(index) {
            self.arm_session(index);
        }
    }

    /// The upstream for a request, or what weir answers by itself.
    pub(super) fn route(&mut self, session: ClientKey, head: &RequestHead, bytes: &[u8]) -> Result<usize, Local> {
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
        if let (RequestBody::Length(length), Some(max)) = (head.body, self.plan.client.body_bytes_max)
            && length > max
        {
            return Err(Cause::BodyTooLarge.into());
        }
        if proxied {
            return self.decided(session);
        }
        let path = head.path.of(bytes);
        let path = if path.is_empty() { b"/" } else { path };
        let found = self.plan.routes.find(head.authority.of(bytes), path, head.method_span.of(bytes), &mut self.path);
        match found {
            Ok(Some(upstream)) => Ok(upstream),
            Ok(None) => Err(Cause::NoRoute.into()),
            Err(_) => Err(Cause::Path.into()),
        }
    }

    /// Answers a request without an upstream. A body that is still to come ends the connection, so it is never parsed.
    fn answer_locally(&mut self, index: ClientKey, head: &RequestHead, fields: &Fields, bytes: &[u8], local: Local) {
        let exchange = self.add_exchange(index, head, fields, bytes);
        let has_more = !head.body.is_empty() || head.method == Method::Connect;
        let slot = self.exchanges.at_mut(exchange);
        slot.want.close |= has_more;
        slot.want.body_open = has_more;
        if has_more {
            // At once: with answers in front of this one, parsing would go on.
            self.sessions.at_mut(index).reading = Reading::Closing;
        }
        self.answer_local(exchange, local);
    }

    /// Appends an exchange for a request to its session's list.
    fn add_exchange(&mut self, index: ClientKey, head: &RequestHead, fields: &Fields, bytes: &[u8]) -> ExchangeKey {
        let want = ReplyConstraints {
            head: head.method == Method::Head,
            old: head.version == Version::Http10,
            close: !head.persist || self.is_draining(),
            trailers: head.te_trailers,
            connect: head.method == Method::Connect,
            ..ReplyConstraints::default()
        };
        let exchange = self.push_exchange(index, want);
        self.note_request(exchange, head, fields, bytes);
        if self.sessions.at(index).flags.proxied {
            self.note_user(exchange);
        }
        if !fields.oddities().is_empty() {
            self.odd_request(index, fields.oddities());
        }
        if want.close {
            self.sessions.at_mut(index).reading = Reading::Closing;
        }
        exchange
    }

    fn push_exchange(&mut self, index: ClientKey, want: ReplyConstraints) -> ExchangeKey {
        let exchange = Exchange {
            session: index,
            next: ExchangeKey::NONE,
            phase: Phase::Reading,
            framing: AnswerFraming::Plain,
            received_us: self.now_us,
            deadline_us: u64::MAX,
            patience_us: u64::MAX,
            held: Output::default(),
            link: None,
            asked: self.worker,
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
    pub(super) fn refuse(&mut self, index: ClientKey, cause: Cause, bytes: &[u8], since_us: u64) {
        let session = self.sessions.at_mut(index);
        session.flags.unread = true;
        session.reading = Reading::Closing;
        let want = ReplyConstraints { close: true, body_open: true, ..ReplyConstraints::default() };
        let exchange = self.push_exchange(index, want);
        self.note_refused(exchange, bytes, since_us);
        self.fail_exchange(exchange, cause);
    }

    /// Stops or resumes reading a client, as its queues demand.
    pub(super) fn update_receive(&mut self, index: ClientKey) {
        let session = self.sessions.at(index);
        let stashed = session.stash.as_ref().map_or(0, |stash| stash.bytes.len() - stash.start);
        let wanted = match session.reading {
            Reading::Head | Reading::Await => {
                stashed < STASH_BYTES_MAX
                    && (session.reading == Reading::Await || stashed == 0 || self.may_take_request(session))
            }
            Reading::Body | Reading::Tunnel => !session.flags.body_paused,
            Reading::Closing | Reading::Linger => true,
        };
        if wanted == session.flags.stopped && !session.flags.ended {
            let action = Action::ReceiveClient { socket: session.socket, on: wanted };
            let now_us = self.now_us;
            let session = self.sessions.at_mut(index);
            session.flags.stopped = !wanted;
            if wanted && session.reading == Reading::Head && session.has_begun_request() {
                // The patience with the rest of a head begins only now that it may come.
                session.since_us = now_us;
                self.arm_session(index);
            }
            self.actions.push_back(action);
        }
    }

    /// A client closed its sending direction. What it sent before that and waits is still served.
    pub fn client_ended(&mut self, token: u64) {
        let Some(index) = self.session_of(token) else { return };
        let session = self.sessions.at_mut(index);
        session.flags.ended = true;
        if session.stash.is_some() && matches!(session.reading, Reading::Head | Reading::Body) {
            self.parse_stash(index);
        } else {
            self.input_ended(index);
        }
    }

    /// Nothing follows what was received: draws the consequences as far as that is parsed.
    fn input_ended(&mut self, index: ClientKey) {
        let session = self.sessions.at_mut(index);
        match session.reading {
            Reading::Tunnel => self.tunnel_client_ended(index),
            Reading::Linger => self.close_session(index, self.orderly_end(index)),
            Reading::Body if session.stash.is_none() => self.upload_failed(index, Cause::BodyTruncated),
            Reading::Body | Reading::Await => {}
            Reading::Head | Reading::Closing => {
                let waits = session.stash.is_some() && !self.may_take_request(self.sessions.at(index));
                let session = self.sessions.at_mut(index);
                if session.first == ExchangeKey::NONE && session.output.is_empty() && !session.flags.sending {
                    self.close_session(index, ClientEnd::ClientClosed);
                } else if !waits {
                    session.reading = Reading::Closing;
                    session.stash = None;
                    session.flags.close = true;
                }
            }
        }
    }

    /// A client's connection broke.
    pub fn client_failed(&mut self, token: u64) {
        if let Some(index) = self.session_of(token) {
            self.close_session(index, ClientEnd::ClientReset);
        }
    }

    /// What was sent to a client was taken (`ok`) or not. `spare` is the buffer, for reuse.
    pub fn client_sent(&mut self, token: u64, spare: Option<Vec<u8>>, ok: bool) {
        if let Some(buffer) = spare {
            self.spare.give(buffer);
        }
        let Some(index) = self.session_of(token) else { return };
        if !ok {
            self.close_session(index, ClientEnd::ClientReset);
            return;
        }
        let session = self.sessions.at_mut(index);
        session.flags.sending = false;
        let tunnel = session.reading == Reading::Tunnel;
        let taken = std::mem::take(&mut session.inflight);
        if let Some(access) = &mut self.access {
            access.delivered(index, taken.into(), self.now_us);
        }
        if !session.output.is_empty() {
            self.mark_session(index);
        } else if session.first == ExchangeKey::NONE || session.flags.tunnel_ended {
            self.session_is_idle(index);
        }
        if self.session_alive(index) {
            self.relieve(index);
            self.arm_awaited(index);
        }
        if tunnel && self.session_alive(index) {
            self.want_relay(index);
        }
    }

    /// From here on a client waits for its server, whose time may be over sooner than the timer comes that was set for the send.
    fn arm_awaited(&mut self, index: ClientKey) {
        let session = self.sessions.at(index);
        if session.first != ExchangeKey::NONE && self.exchanges.at(session.first).deadline_us < session.armed_us {
            self.arm_session(index);
        }
    }

    /// Lets sources go on when the client has taken enough, or another answer has become the first.
    pub(super) fn relieve(&mut self, index: ClientKey) {
        let client = self.client_name(index);
        let session = self.sessions.at_mut(index);
        let first = session.first;
        let first_waits = first != ExchangeKey::NONE && self.exchanges.at(first).phase == Phase::Waiting;
        if session.unsent() <= LOW_BYTES || session.unsent_first() <= LOW_BYTES && first_waits {
            // The first answer may be next on any of them.
            for link in session.paused.take().map_or_else(Vec::new, |paused| paused.links) {
                self.flow(link, client, false);
            }
        } else if session.unsent_first() <= LOW_BYTES && first != ExchangeKey::NONE {
            let source = self.exchanges.at(first).link;
            if let Some(paused) = session.paused.as_mut()
                && let Some(position) = paused.links.iter().position(|link| Some(*link) == source)
            {
                let link = paused.links.swap_remove(position);
                self.flow(link, client, false);
            }
        }
        let now_us = self.now_us;
        if first != ExchangeKey::NONE {
            // The wait for its next piece begins now: until here the client was to blame.
            let exchange = self.exchanges.at_mut(first);
            if exchange.phase == Phase::Answering {
                exchange.deadline_us = now_us.saturating_add(exchange.patience_us);
            }
        }
        if self.sessions.at(index).stash.is_some() {
            self.to_parse.push_back((index, self.sessions.generation(index)));
        }
        self.update_receive(index);
    }

    /// Everything asked is answered and sent.
    fn session_is_idle(&mut self, index: ClientKey) {
        let now_us = self.now_us;
        let session = self.sessions.at_mut(index);
        if session.flags.tunnel_ended {
            if !session.flags.shut {
                session.flags.shut = true;
                self.actions.push_back(Action::ShutdownClient { socket: session.socket });
            }
            if self.sessions.at(index).flags.ended {
                self.close_session(index, ClientEnd::TunnelEnded);
            }
            return;
        }
        // What a client sent before it ended its direction and was not parsed yet comes next.
        let more = session.flags.ended && session.stash.is_some() && !session.flags.close;
        if more || !session.flags.close && !session.flags.ended {
            if session.reading == Reading::Head && !session.has_begun_request() {
                session.since_us = now_us;
                // The patience with a server may be longer than the one with an idle client.
                if session.armed_us > now_us.saturating_add(self.plan.client.idle_timeout_us) {
                    self.arm_session(index);
                }
            }
            return;
        }
        if session.flags.ended || session.flags.reset || !(session.flags.unread || session.upload.is_some()) {
            self.close_session(index, self.orderly_end(index));
        } else if session.reading != Reading::Linger {
            session.reading = Reading::Linger;
            session.since_us = now_us;
            session.upload = None;
            session.flags.shut = true;
            self.actions.push_back(Action::ShutdownClient { socket: session.socket });
            self.update_receive(index);
            self.arm_session(index);
        }
    }

    pub(super) fn mark_session(&mut self, index: ClientKey) {
        let session = self.sessions.at_mut(index);
        if !session.flags.dirty {
            session.flags.dirty = true;
            self.dirty_sessions.push(index);
        }
    }

    /// The send that a session wants, if any.
    pub(super) fn flush_session(&mut self, index: ClientKey) -> Option<Action> {
        if !self.session_alive(index) {
            return None;
        }
        let now_us = self.now_us;
        let session = self.sessions.at_mut(index);
        session.flags.dirty = false;
        if session.flags.sending {
            return None;
        }
        let Some(out) = session.output.take() else {
            if session.first == ExchangeKey::NONE || session.flags.tunnel_ended {
                self.session_is_idle(index);
            }
            return self.actions.pop_front();
        };
        session.flags.sending = true;
        session.send_us = now_us;
        session.inflight = out.len() as u32;
        let socket = session.socket;
        self.counters.client_bytes_out.add(out.len() as u64);
        self.note_send(index, &out);
        Some(Action::SendClient { socket, out })
    }

    /// Large sends get a deadline of their own; a small one is covered by the timer that is set anyway.
    fn note_send(&mut self, index: ClientKey, out: &Out) {
        if !matches!(out, Out::Owned(_)) || self.sessions.at(index).armed_us == u64::MAX {
            self.arm_session(index);
        }
    }

    /// Ends a client's connection now. What it asked and was not answered is cancelled.
    pub(super) fn close_session(&mut self, index: ClientKey, why: ClientEnd) {
        self.note_closed(index, why);
        self.drop_exchanges(index, why);
        let client = self.client_name(index);
        self.end_own(index);
        let session = self.sessions.remove(index);
        session.relay.iter().for_each(|relay| self.end_relay(relay));
        for link in session.paused.map_or_else(Vec::new, |paused| paused.links) {
            self.flow(link, client, false);
        }
        self.counters.client_connections.sub(1);
        if session.reading == Reading::Tunnel {
            self.counters.tunnels.sub(1);
        }
        self.counters.client_closes.count(why);
        self.actions.push_back(Action::CloseClient { socket: session.socket, reset: session.flags.reset });
    }

    /// Forgets all exchanges of a session; those under way upstream are told.
    pub(super) fn drop_exchanges(&mut self, index: ClientKey, why: ClientEnd) {
        loop {
            let first = self.sessions.at(index).first;
            if first == ExchangeKey::NONE {
                break;
            }
            let exchange = self.exchanges.at(first);
            let hard = exchange.want.body_open || self.sessions.at(index).reading == Reading::Tunnel;
            if matches!(exchange.phase, Phase::Reading | Phase::Waiting) {
                self.counters.requests_abandoned.add(1);
            }
            if self.sessions.at(index).relay.is_none() {
                self.cancel_upstream(first, hard);
            }
            self.note_abandoned(index, why);
            self.pop_exchange(index);
        }
    }

    /// Takes the first exchange out of its session's list.
    pub(super) fn pop_exchange(&mut self, index: ClientKey) -> Exchange {
        let session = self.sessions.at_mut(index);
        let exchange = self.exchanges.remove(session.first);
        session.first = exchange.next;
        session.queued -= 1;
        if session.first == ExchangeKey::NONE {
            session.last = ExchangeKey::NONE;
        }
        exchange
    }

    /// When draining: a client is closed after what it asked, an idle one soon (`DRAIN_IDLE_US`).
    pub(super) fn drain_session(&mut self, index: ClientKey) {
        let session = self.sessions.at_mut(index);
        if session.reading == Reading::Tunnel {
            return;
        }
        let begun = session.has_begun_request();
        if session.first == ExchangeKey::NONE && session.output.is_empty() && !session.flags.sending && !begun {
            self.arm_session(index);
        } else if session.last != ExchangeKey::NONE {
            let last = session.last;
            if session.reading == Reading::Head {
                session.reading = Reading::Closing;
            }
            self.exchanges.at_mut(last).want.close = true;
        } else if session.first == ExchangeKey::NONE && !begun {
            session.flags.close = true;
        }
    }
}
