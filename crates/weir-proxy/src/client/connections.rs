//! The tables of a worker's clients: their connections, their exchanges, and the lists of those to
//! look at next.
//!
//! This module manages a connection and its exchanges, and sends nothing to a client. Invariants:
//! see [`Connections::audit`]. Bound: an exchange for each unanswered request (`queue`); in the
//! three lists a connection appears at most as often as something happened to it in a turn.

mod armed;
mod audit;
mod leaving;

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::cache::{Caches, fetch, may_pump};
use super::codec::Codec;
use super::connection::{
    ClientConn, Exchange, NO_WORKER, Phase, Reading, ReplyConstraints, RequestBodyReader,
};
use super::guard::Guard;
use super::http2::streams::Carriers;
use super::input::STASH_BYTES_MAX;
use super::pace::Pace;
use super::stalls;
use super::tarpit::Tarpit;
use super::unsent::{may_ask, unsent, unsent_first};
use super::visitors::Visitors;
use crate::action::Action;
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::base::output::LOW_BYTES;
use crate::base::side_table::SideTable;
use crate::base::slab::Slab;
use crate::base::token::{ShortGeneration, Token};
use crate::context::Context;
use crate::cross::mail::{Cancellation, Mail};
use crate::cross::relay::Relay;
use crate::forward::dns_cache::Client;
use crate::plan::{Entrance, Serves};
use crate::request::destination::Original;
use crate::request::pending_request::{ClientName, ConnId, ExchangeId};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    pub(super) conns: Slab<ClientKey, ClientConn>,
    pub(super) exchanges: Slab<ExchangeKey, Exchange>,
    /// Connections of HTTP/2.
    pub(super) carriers: Carriers,
    /// Connections with something to send.
    marked: Vec<ClientKey>,
    /// Connections with input to look at again.
    to_parse: VecDeque<(ClientKey, u32)>,
    /// Tunnels whose bytes the driver may move as soon as it has everything that came before.
    to_relay: Vec<(ClientKey, u32)>,
    /// Clients of routes with users.
    pub(super) visitors: Visitors,
    /// For clients that have connected to another machine: to which.
    pub(super) destinations: SideTable<ClientKey, Original>,
    /// For clients whose sends last: how these progress.
    pub(super) paces: SideTable<ClientKey, Pace>,
    /// Their shares in the accounts of `shield`.
    pub(super) guard: Option<Box<Guard>>,
    /// Requests with a delayed refusal.
    pub(super) tarpit: Tarpit,
    /// Fetches for the store, and the requests that wait for them.
    pub(super) caches: Caches,
    /// Bytes that all clients together have reserved to absorb responses.
    pub(super) absorbed: usize,
    /// All clients are to leave.
    draining: bool,
    /// When connections that are to leave end if they send no further request.
    leaves_us: u64,
    /// How long a connection has that becomes idle later.
    idle_us: u64,
}

/// Whether the limit of connections is reached, those of `tcp` included.
pub(super) fn is_crowded(conns: &Connections, cx: &Context) -> bool {
    cx.plan.client.connections_max.is_some_and(|max| conns.len() + cx.flows >= max as usize)
}

impl Connections {
    /// Creates it without connections.
    pub(super) fn new(cx: &Context) -> Connections {
        Connections { guard: Guard::of(&cx.plan, None), ..Connections::default() }
    }

    /// A connection.
    ///
    /// # Panics
    /// The connection does not exist: as [`Slab::at`].
    #[inline]
    pub(super) fn at(&self, index: ClientKey) -> &ClientConn {
        self.conns.at(index)
    }

    /// A connection, mutable.
    ///
    /// # Panics
    /// As [`Slab::at`].
    #[inline]
    pub(super) fn at_mut(&mut self, index: ClientKey) -> &mut ClientConn {
        self.conns.at_mut(index)
    }

    /// A request and its response.
    ///
    /// # Panics
    /// As [`Slab::at`].
    #[inline]
    pub(super) fn exchange(&self, slot: ExchangeKey) -> &Exchange {
        self.exchanges.at(slot)
    }

    /// A request and its response, mutable.
    ///
    /// # Panics
    /// As [`Slab::at`].
    #[inline]
    pub(super) fn exchange_mut(&mut self, slot: ExchangeKey) -> &mut Exchange {
        self.exchanges.at_mut(slot)
    }

    /// The request of a connection whose response the client waits for, or is getting.
    #[inline]
    pub(super) fn current(&self, conn: &ClientConn) -> Option<&Exchange> {
        conn.codec.current().map(|slot| self.exchanges.at(slot))
    }

    /// The request of a connection whose body, or tunnel, is being read. It is the newest: behind
    /// it nothing is parsed.
    #[inline]
    fn inward(&self, conn: &ClientConn) -> Option<&Exchange> {
        let is_read = matches!(conn.reading(), Reading::Body | Reading::Tunnel);
        conn.codec.newest().filter(|_| is_read).map(|slot| self.exchanges.at(slot))
    }

    /// Whether the client's input of a body or a tunnel has to wait for the servers' side.
    #[inline]
    pub(super) fn is_held_back(&self, conn: &ClientConn) -> bool {
        self.inward(conn).is_some_and(|exchange| exchange.held_back)
    }

    /// The body that is being read on a connection, and its request.
    #[inline]
    pub(super) fn upload(
        &mut self,
        index: ClientKey,
    ) -> Option<(ExchangeKey, &mut RequestBodyReader)> {
        let slot = self.conns.at(index).codec.newest()?;
        Some((slot, self.exchanges.at_mut(slot).upload.as_deref_mut()?))
    }

    /// Takes the body that is being read on a connection away from its request, and returns both.
    pub(super) fn take_upload(
        &mut self,
        index: ClientKey,
    ) -> Option<(ExchangeKey, Box<RequestBodyReader>)> {
        let slot = self.conns.at(index).codec.newest()?;
        let exchange = self.exchanges.at_mut(slot);
        let upload = exchange.upload.take()?;
        exchange.held_back = false;
        Some((slot, upload))
    }

    // ---- names ----

    /// Names a request among those of all workers.
    #[inline]
    pub(super) fn exchange_id(&self, slot: ExchangeKey, cx: &Context) -> ExchangeId {
        ExchangeId { worker: cx.worker, index: slot, generation: self.exchanges.generation(slot) }
    }

    /// Names a connection among those of all workers. The next connection in the same slot has
    /// another name.
    #[inline]
    pub(super) fn name(&self, index: ClientKey, cx: &Context) -> ClientName {
        ClientName::new(cx.worker, index, self.conns.generation(index))
    }

    /// Names a connection on this worker.
    pub(super) fn local_name(&self, index: ClientKey) -> Client {
        (index, self.conns.generation(index))
    }

    /// Names a connection towards the worker and the timers.
    pub(super) fn token(&self, index: ClientKey) -> u64 {
        let generation = ShortGeneration::of(self.conns.generation(index));
        Token::Client { key: index, generation }.pack()
    }

    /// The connection that a token names, if it is still there.
    #[inline]
    pub(super) fn of_token(&self, token: u64) -> Option<ClientKey> {
        match Token::unpack(token)? {
            Token::Client { key, generation } => {
                self.conns.holds_short(key, generation).then_some(key)
            }
            _ => None,
        }
    }

    /// Whether the slot is occupied; only for use right after the connection was known to exist.
    #[inline]
    pub(crate) fn is_there(&self, index: ClientKey) -> bool {
        self.conns.is_occupied(index)
    }

    /// Whether this very connection is still there.
    #[inline]
    pub(super) fn knows(&self, (index, generation): Client) -> bool {
        self.conns.holds(index, generation)
    }

    /// Whether the exchange still exists.
    #[inline]
    pub(crate) fn holds(&self, id: ExchangeId) -> bool {
        self.exchanges.holds(id.index, id.generation)
    }

    /// Whether the exchange still exists, and is in this phase.
    #[inline]
    pub(super) fn is_in(&self, id: ExchangeId, phase: Phase) -> bool {
        self.holds(id) && self.exchanges.at(id.index).phase() == phase
    }

    // ---- tables ----

    /// The number of connections; streams and fetches for the store do not count.
    pub(crate) fn len(&self) -> usize {
        self.conns.len() - self.carriers.streams - self.caches.fetches
    }

    /// The number of requests without a complete response.
    pub(crate) fn exchanges(&self) -> usize {
        self.exchanges.len() - self.caches.fetches
    }

    /// All connections.
    pub(super) fn all(&self) -> impl Iterator<Item = (ClientKey, &ClientConn)> {
        self.conns.keys().map(|index| (index, self.conns.at(index)))
    }

    /// Adds a client that has connected. None: it is not wanted.
    pub(super) fn accept(
        &mut self,
        socket: u64,
        peer: SocketAddr,
        entrance: Entrance,
        cx: &mut Context,
    ) -> Option<ClientKey> {
        if is_crowded(self, cx) {
            cx.counters.connections_refused.add(1);
            return None;
        }
        // It connected before that began: it may send one request.
        let leaves = self.draining || entrance.is_leaving;
        cx.counters.accepted.add(1);
        cx.counters.client_connections.add(1);
        let (index, _) = self.conns.insert(ClientConn::new(socket, peer, cx.now_us));
        let conn = self.conns.at_mut(index);
        conn.listener = entrance.listener;
        conn.flags.leaves = leaves;
        conn.flags.proxied = entrance.serves == Serves::Forward;
        if let Some(original) = Original::of(&entrance) {
            self.destinations.put(index, original);
        }
        self.arm(index, cx);
        Some(index)
    }

    /// Takes a connection whose exchanges are gone out of the table.
    pub(super) fn remove(&mut self, index: ClientKey) -> ClientConn {
        self.visitors.forget(index);
        self.paces.take(index);
        self.destinations.take(index);
        if let Some(guard) = &mut self.guard {
            guard.left(index);
        }
        self.conns.remove(index)
    }

    /// Whether all clients are closed as soon as they have all their responses.
    #[inline]
    pub(crate) fn is_draining(&self) -> bool {
        self.draining
    }

    /// Takes no more requests from a connection, and ends it after the last one.
    pub(super) fn close_behind(&mut self, index: ClientKey) {
        let conn = self.conns.at_mut(index);
        if let Some(last) = conn.codec.newest() {
            self.exchanges.at_mut(last).want.close = true;
        } else {
            conn.flags.close = true;
            self.mark(index);
        }
        self.conns.at_mut(index).take_no_more();
    }

    // ---- exchanges ----

    /// Adds a request of a connection.
    #[inline]
    pub(super) fn push(
        &mut self,
        index: ClientKey,
        want: ReplyConstraints,
        cx: &Context,
    ) -> ExchangeKey {
        let (slot, _) = self.exchanges.insert(Exchange::new(index, want, cx));
        self.conns.at_mut(index).codec.push(slot, &mut self.exchanges);
        slot
    }

    /// Ends the current exchange of a connection. Returns the constraints of its response.
    #[inline]
    pub(super) fn pop(&mut self, index: ClientKey) -> ReplyConstraints {
        let codec = &mut self.conns.at_mut(index).codec;
        if let (Some(guard), Some(slot)) = (&mut self.guard, codec.current()) {
            guard.ended(slot);
        }
        codec.pop(&mut self.exchanges)
    }

    /// Whether the current exchange of a connection is done.
    #[inline]
    pub(super) fn may_go_on(&self, index: ClientKey) -> bool {
        self.conns.at(index).codec.may_go_on(&self.exchanges)
    }

    /// The codec of an exchange's connection, and the exchange.
    #[inline]
    pub(super) fn codec(&mut self, slot: ExchangeKey) -> (Codec<'_>, &mut Exchange) {
        let exchange = self.exchanges.at_mut(slot);
        let conn = self.conns.at_mut(exchange.conn);
        let codec = match conn.stream.as_deref() {
            None => Codec::http1(&mut conn.codec),
            Some(stream) => {
                let carrier = self.carriers.get_mut(stream.carrier);
                let carrier =
                    carrier.filter(|_| !stream.is_given_up).map(|streams| (streams, stream.id));
                Codec::stream(&mut conn.codec, carrier)
            }
        };
        (codec, exchange)
    }

    /// Discards the received part of a response if the client has nothing of it because the
    /// response waits for its turn.
    pub(super) fn forget_beginning(&mut self, slot: ExchangeKey) -> bool {
        let (mut codec, exchange) = self.codec(slot);
        if codec.leaves(slot) || !matches!(exchange.phase(), Phase::Answering | Phase::Encoding) {
            return false;
        }
        codec.forget(exchange);
        exchange.compressing = None;
        exchange.enter(Phase::Waiting);
        true
    }

    /// Requests of clients here that another worker has, with a partial response or none.
    pub(crate) fn asked_of(&self, worker: u16, cx: &Context) -> Vec<ExchangeId> {
        let owed = |slot: &ExchangeKey| {
            let exchange = self.exchanges.at(*slot);
            exchange.worker() == worker
                && matches!(exchange.phase(), Phase::Waiting | Phase::Answering)
        };
        self.exchanges.keys().filter(owed).map(|slot| self.exchange_id(slot, cx)).collect()
    }

    // ---- what to look at next ----

    /// A connection may have something to send.
    #[inline]
    pub(super) fn mark(&mut self, index: ClientKey) {
        let conn = self.conns.at_mut(index);
        if let Some(stream) = conn.stream.as_deref() {
            let (carrier, is_done) = (stream.carrier, conn.flags.close);
            if is_done && let Some(streams) = self.carriers.get_mut(carrier) {
                streams.done.push(index);
            }
            return self.mark(carrier);
        }
        if !conn.flags.dirty {
            conn.flags.dirty = true;
            self.marked.push(index);
        }
    }

    /// Whether connections may have something to send.
    #[inline]
    pub(crate) fn has_marked(&self) -> bool {
        !self.marked.is_empty() || self.caches.has_to_pump()
    }

    /// The next connection that may have something to send. It may no longer exist.
    #[inline]
    pub(super) fn next_marked(&mut self) -> Option<ClientKey> {
        self.marked.pop()
    }

    /// The input of a waiting connection is to be looked at again.
    #[inline]
    pub(super) fn look_again(&mut self, index: ClientKey) {
        self.to_parse.push_back((index, self.conns.generation(index)));
    }

    /// The next connection with input to look at again. It may no longer exist.
    #[inline]
    pub(super) fn next_to_parse(&mut self) -> Option<Client> {
        self.to_parse.pop_front()
    }

    /// Whether a connection has input to look at again.
    #[inline]
    pub(crate) fn has_to_parse(&self) -> bool {
        !self.to_parse.is_empty() || self.caches.has_to_look_up()
    }

    /// Looks again at the request of a client that waited for the side thread.
    pub(super) fn resume_decision(&mut self, client: Client) {
        let (index, _) = client;
        if !self.knows(client) {
            return;
        }
        let conn = self.conns.at_mut(index);
        if conn.reading() == Reading::Await && conn.codec.is_empty() {
            conn.read_as(Reading::Head);
            self.look_again(index);
        }
    }

    /// The driver may move the bytes of a tunnel once it has everything that came before.
    pub(super) fn want_relay(&mut self, index: ClientKey, cx: &Context) {
        let conn = self.conns.at(index);
        // The driver can't move bytes that have to be decrypted.
        if cx.relays
            && !conn.flags.sealed
            && conn.reading() == Reading::Tunnel
            && conn.relay.is_none()
        {
            self.to_relay.push((index, self.conns.generation(index)));
        }
    }

    /// The next tunnel whose bytes the driver may move: this worker has its server's connection,
    /// the driver has everything that came before, and its client has not closed. None: no tunnel
    /// is ready.
    #[inline]
    pub(super) fn next_to_relay(&mut self, cx: &Context) -> Option<(ClientKey, ConnId)> {
        while let Some(client @ (index, _)) = self.to_relay.pop() {
            if self.knows(client)
                && let Some(server_conn) = self.tunnel_conn(index, cx)
            {
                let conn = self.conns.at(index);
                if conn.codec.is_sent() && conn.stash.is_none() && !conn.flags.ended {
                    return Some((index, server_conn));
                }
            }
        }
        None
    }

    /// The upstream connection of a client's tunnel, if this worker has it.
    pub(crate) fn tunnel_conn(&self, index: ClientKey, cx: &Context) -> Option<ConnId> {
        let conn = self.conns.at(index);
        if conn.reading() != Reading::Tunnel {
            return None;
        }
        self.current(conn)?.server_conn.filter(|server_conn| server_conn.worker == cx.worker)
    }

    /// All tunnels whose bytes the driver moves, with their clients.
    pub(crate) fn relays(&self) -> impl Iterator<Item = (ClientKey, &Relay)> {
        self.all().filter_map(|(index, conn)| Some((index, conn.relay.as_deref()?)))
    }

    /// The verified users of clients, each as often as it has connections.
    pub(crate) fn users(&self) -> impl Iterator<Item = &str> {
        self.all()
            .filter_map(|(_, conn)| Some(&*conn.proxied.as_deref()?.seat.as_ref()?.user().name))
    }

    // ---- flow control ----

    /// Stops or resumes reading a client, as its queues demand.
    pub(super) fn update_receive(&mut self, index: ClientKey, cx: &mut Context) {
        let conn = self.conns.at(index);
        if conn.stream.is_some() {
            // Its flow-control window limits its input.
            return;
        }
        let stashed = conn.stashed();
        // The largest permitted head fits.
        let is_head = conn.reading() == Reading::Head;
        let head_bytes_max =
            if is_head { cx.plan.client.head.head_bytes_max.saturating_add(1) } else { 0 };
        let wanted = match conn.reading() {
            Reading::Frames => stashed == 0,
            Reading::Head | Reading::Await => {
                stashed < STASH_BYTES_MAX.max(head_bytes_max)
                    && (conn.reading() == Reading::Await
                        || stashed == 0
                        || may_ask(self, index, &cx.plan.client))
            }
            Reading::Body | Reading::Tunnel => !self.is_held_back(conn),
            Reading::Closing => self.tarpit.is_read(index),
            Reading::Linger => true,
        };
        if wanted == conn.flags.stopped && !conn.flags.ended {
            let conn = self.conns.at_mut(index);
            let action = Action::ReceiveClient { socket: conn.socket, on: wanted };
            conn.flags.stopped = !wanted;
            if !wanted {
                // It is checked from time to time whether its client is still there.
                self.arm(index, cx);
            }
            let conn = self.conns.at_mut(index);
            if wanted && conn.reading() == Reading::Head && conn.has_begun_request() {
                // The time for the rest of a head begins only now that it may arrive.
                conn.since_us = cx.now_us;
                self.arm(index, cx);
            }
            cx.actions.push_back(action);
        }
    }

    /// Resumes sources when the client has taken enough, or another response has become the first.
    pub(super) fn relieve(&mut self, index: ClientKey, cx: &mut Context) {
        let conn = self.conns.at(index);
        if conn.stalls.is_none() && conn.stash.is_none() && conn.codec.current().is_none() {
            // Nothing waits for it, as after most responses.
            return self.update_receive(index, cx);
        }
        let low_bytes = LOW_BYTES.min(self.carriers.high_bytes(self.at(index)) / 2);
        stalls::give_back(self, index, low_bytes, cx);
        let conn = self.conns.at(index);
        let first = conn.codec.current();
        let first_waits =
            first.is_some_and(|first| self.exchanges.at(first).phase() == Phase::Waiting);
        let was_stopped = conn.stops_sources();
        let first_bytes = unsent_first(self, index);
        if unsent(self, index) <= low_bytes || first_bytes <= low_bytes && first_waits {
            // The first response may be next on any of them.
            stalls::resume_sources(self, index, cx);
        } else if first_bytes <= low_bytes
            && let Some(first) = first
        {
            stalls::resume_source(self, index, first, cx);
        }
        if let Some(first) = first {
            // The wait for its next piece begins now: until here the client was at fault. So does
            // the wait for its beginning, if that was held up.
            let goes_on = was_stopped && !self.conns.at(index).stops_sources();
            let exchange = self.exchanges.at_mut(first);
            if exchange.phase() == Phase::Answering || first_waits && goes_on {
                exchange.await_more(cx.now_us);
            }
        }
        may_pump(self, index);
        if self.conns.at(index).has_waiting_input() {
            // Whether more may arrive is known after that look.
            return self.look_again(index);
        }
        self.update_receive(index, cx);
    }

    /// Informs the worker that has a request that its client has given it up, and that it counts
    /// here until no server has it.
    pub(super) fn withdraw(&mut self, slot: ExchangeKey, cx: &mut Context) {
        let exchange = self.exchanges.at(slot);
        if exchange.is_with_cache() {
            return fetch::withdraw(self, slot, cx);
        }
        let (worker, conn, client) =
            (exchange.worker(), exchange.server_conn, self.name(exchange.conn, cx));
        if worker != NO_WORKER {
            let what = Cancellation::Counted { client, conn, told: true };
            cx.post(worker, Mail::Cancel { id: self.exchange_id(slot, cx), what });
        }
    }

    /// Discards the rest of a response that is no longer wanted; its server connection continues.
    pub(super) fn throw_away(&self, id: ExchangeId, from: ConnId, cx: &mut Context) {
        let client = self.name(self.exchanges.at(id.index).conn, cx);
        let what = Cancellation::Any { hard: false, client, conn: Some(from), begun: true };
        cx.post(from.worker, Mail::Cancel { id, what });
    }

    /// Informs the worker that has the request that its response is no longer wanted. `hard`: a
    /// connection that carries it has to end.
    pub(super) fn cancel(&mut self, slot: ExchangeKey, hard: bool, cx: &mut Context) {
        let exchange = self.exchanges.at(slot);
        // Requests that wait for a fetch, or get it, leave it instead.
        if !matches!(exchange.phase(), Phase::Waiting | Phase::Answering)
            || exchange.is_with_cache()
        {
            return;
        }
        let (worker, conn, begun) =
            (exchange.worker(), exchange.server_conn, exchange.phase() == Phase::Answering);
        if worker != NO_WORKER {
            let (id, client) = (self.exchange_id(slot, cx), self.name(exchange.conn, cx));
            cx.post(
                worker,
                Mail::Cancel { id, what: Cancellation::Any { hard, client, conn, begun } },
            );
        }
    }
}
