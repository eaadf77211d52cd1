//! The state that belongs to one client connection alone: its upstream connections, and the request
//! that waits for a new one.
//!
//! Used with `pool` pinned and per-request and by the forward proxy. A client connection without
//! any of it uses none of this memory. [`PrivatePools`] owns it for all clients, and makes such
//! connections: where a server has several addresses they are raced (RFC 8305 §5), and where all
//! servers failed a request they are tried again after a while. [`super::private`] decides what the
//! making or loss of a connection means for requests. Invariants: `parked` is the number of
//! requests that wait for another round; each connection of a client that is no tunnel is in its
//! `conns` or its attempts. Bounds: [`PrivatePool::conns`] by the number of upstreams, or by
//! `destinations`; one request at a time waits. docs/pools.md, docs/forward.md.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use super::fresh::{PATIENCE_US, count_coming, count_open};
use super::pool::{Event, Pool};
use crate::action::Action;
use crate::base::keys::{ClientKey, ConnKey, Key, ServerIndex};
use crate::base::piece::Piece;
use crate::base::side_table::SideTable;
use crate::base::table::Members;
use crate::base::token::Token;
use crate::context::Context;
use crate::cross::asked::Private;
use crate::ending::UpstreamEnd;
use crate::observe::accounting::Account;
use crate::plan::{self, Announcement, Location, Whose};
use crate::request::destination::Destination;
use crate::request::pending_request::{ClientName, ExchangeId, PendingRequest, RequestFlags};
use crate::upstream::backoff::Backoff;
use crate::upstream::connection::{ConnState, UpstreamConn};
use crate::upstream::queue::Waiting;

/// How long one address is waited for before the next one is tried in parallel (Connection Attempt
/// Delay, RFC 8305 §8).
const NEXT_ADDRESS_US: u64 = 250_000;

/// The state of one client connection.
#[derive(Debug, Default)]
pub(crate) struct PrivatePool {
    /// Upstream connections that its requests use, the least recently used one first.
    pub conns: Vec<PrivateConn>,
    /// The request for which a connection is being made; one at a time.
    pub approach: Option<Box<ConnectAttempt>>,
    /// The destination of its present request, where the upstream doesn't determine that.
    pub destination: Option<Arc<Destination>>,
    /// The account that is charged for that.
    pub account: Account,
    /// The identity that servers are given or see for the connection of its present request.
    pub whose: Option<Whose>,
    /// One connection was asked to use the client's port; later ones use others.
    pub had_port: bool,
}

/// The owner of a connection that belongs to no pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    /// Slot of the client; it keeps that until its connections have ended.
    pub client: ClientKey,
    /// For one request, not for the client's next ones.
    pub once: bool,
}

/// An upstream connection of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PrivateConn {
    /// Slot in the table of connections.
    pub index: ConnKey,
    /// Occupant of the slot.
    pub generation: u32,
    /// Index of its upstream in the plan.
    pub upstream: u16,
    /// Its destination, as [`Destination::name`]; empty where the upstream determines that.
    pub destination: Box<str>,
    /// The identity that it was made for.
    pub whose: Option<Whose>,
}

/// A request for which a connection is being made, to one of several addresses.
#[derive(Debug)]
pub(crate) struct ConnectAttempt {
    /// The request.
    pub waiting: Waiting,
    /// The server.
    pub server: ServerIndex,
    /// Addresses that were not tried yet.
    pub more: VecDeque<Location>,
    /// Connects under way, the oldest first: slot and occupant.
    pub attempts: Vec<(ConnKey, u32)>,
    /// Which of them is from the client's port.
    pub from_port: Option<ConnKey>,
    /// A connect was not answered in time.
    pub timed_out: bool,
    /// Servers that could not be reached for it.
    pub tried: Tried,
    /// When servers are tried again; `u64::MAX`: connects are under way.
    pub retry_us: u64,
}

/// Servers that could not be reached for a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tried {
    /// How many, each as often as it was tried.
    pub servers: u32,
    /// How often all had been tried, and how long to wait then.
    pub rounds: Backoff,
}

impl PrivatePool {
    /// Whether nothing is in it.
    fn is_empty(&self) -> bool {
        self.conns.is_empty() && self.approach.is_none()
    }

    /// Takes a connection out of those that may be used again.
    fn forget(&mut self, index: ConnKey) {
        self.conns.retain(|conn| conn.index != index);
    }

    /// Notes that a connection is the one that was used last.
    fn touch(&mut self, index: ConnKey) {
        if let Some(position) = self.conns.iter().position(|conn| conn.index == index) {
            let conn = self.conns.remove(position);
            self.conns.push(conn);
        }
    }
}

/// What happens to a request whose server can't be reached.
#[derive(Debug, Clone, Copy)]
pub(super) enum Unreached {
    /// No server can be.
    Over(ExchangeId),
    /// Another server is tried.
    Now,
    /// Another round comes after a while.
    Later,
}

/// What happens to a request after one connect for it has failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// Another connect is under way, or no request waits any more.
    Waits,
    /// All addresses of the destination of a request have failed, one of them by its timeout if
    /// `timed_out`.
    NoAddress { request: ExchangeId, timed_out: bool },
    /// All addresses of this server have failed, for this client.
    NoServer(ServerIndex, ClientKey),
}

/// The state of single clients. See the module.
#[derive(Debug, Default)]
pub(crate) struct PrivatePools {
    by_client: SideTable<ClientKey, Box<PrivatePool>>,
    /// Requests for which no private connection could be made and that wait for the next round.
    parked: u32,
}

impl PrivatePools {
    /// A client has a request; it gets private connections if their destination or identity is
    /// given.
    #[inline]
    pub(super) fn begin(&mut self, client: ClientName, private: Option<Private>) {
        let Some(private) = private else { return };
        let pool = self.by_client.get_or_default(client.slot());
        (pool.destination, pool.account, pool.whose) =
            (private.destination, private.account, private.whose);
    }

    /// Whether a client has any of this.
    pub(super) fn has(&self, client: ClientKey) -> bool {
        self.by_client.get(client).is_some()
    }

    /// Returns the clients that have.
    pub(crate) fn clients(&self) -> impl Iterator<Item = ClientKey> {
        self.by_client.iter().map(|(client, _)| client)
    }

    /// The connections of a client, the least recently used one first.
    #[inline]
    pub(super) fn conns_of(&self, client: ClientKey) -> &[PrivateConn] {
        self.by_client.get(client).map_or(&[], |pool| &pool.conns)
    }

    /// Returns a client's own connection to the destination of its request, made for the same
    /// identity as the request: a proxy may act for several clients on one connection.
    pub(super) fn conn_for(&self, ask: &PendingRequest, cx: &Context) -> Option<ConnKey> {
        let own = self.by_client.get(ask.client.slot())?;
        let name = match cx.is_anywhere(ask.upstream) {
            true => &*own.destination.as_deref()?.name,
            false => "",
        };
        let is_good = |conn: &&PrivateConn| {
            conn.upstream == ask.upstream && *conn.destination == *name && conn.whose == own.whose
        };
        own.conns.iter().find(is_good).map(|conn| conn.index)
    }

    /// A client's connection was the last to be used.
    pub(super) fn touch(&mut self, client: ClientKey, index: ConnKey) {
        if let Some(own) = self.by_client.get_mut(client) {
            own.touch(index);
        }
    }

    /// The bytes of a connection are charged to the account of its client's request from now on.
    #[inline]
    pub(super) fn charge(&self, conn: &mut UpstreamConn) {
        if let Some(owner) = conn.owner
            && let Some(pool) = self.by_client.get(owner.client)
        {
            conn.account = pool.account;
        }
    }

    /// The connection belongs to the client, also for its next requests unless it is for one
    /// request only. Returns which connection must end for it, and why.
    ///
    /// It takes the place of an idle one to the same upstream and destination, even if that was
    /// made for another identity: a proxy that acts for many clients would hold one for each.
    pub(super) fn keep(
        &mut self,
        client: ClientKey,
        index: ConnKey,
        upstream: u16,
        pool: &Pool,
        cx: &Context,
    ) -> Option<(ConnKey, UpstreamEnd)> {
        let generation = pool.conns.generation(index);
        let own = self.by_client.get_or_default(client);
        let forward =
            cx.plan.forward.as_ref().filter(|forward| forward.upstream == usize::from(upstream));
        let max = forward.map_or(usize::MAX, |forward| forward.destinations_max as usize);
        let destination = own.destination.as_deref().filter(|_| cx.is_anywhere(upstream));
        let destination = destination.map_or(Box::from(""), |to| to.name.clone());
        let same = own
            .conns
            .iter()
            .find(|conn| conn.upstream == upstream && conn.destination == destination);
        let replaced =
            same.map(|conn| conn.index).filter(|conn| pool.conns.at(*conn).entries.is_empty());
        own.conns.push(PrivateConn { index, generation, upstream, destination, whose: own.whose });
        // The last element is the one that is kept now.
        let oldest = own.conns.iter().find(|_| own.conns.len() > max).map(|conn| conn.index);
        let replaced = replaced.map(|conn| (conn, UpstreamEnd::Replaced));
        replaced.or(oldest.map(|conn| (conn, UpstreamEnd::LeastRecentlyUsed)))
    }

    /// A client leaves: returns its connections, and abandons the connects for it.
    pub(super) fn leave(
        &mut self,
        client: ClientKey,
        pool: &mut Pool,
        cx: &mut Context,
    ) -> Vec<PrivateConn> {
        self.take_attempt(client, None, pool, cx);
        self.by_client.take(client).map(|own| own.conns).unwrap_or_default()
    }

    /// Returns the identity that a client's connections are made for.
    pub(super) fn whose(&self, client: ClientKey) -> Option<Whose> {
        self.by_client.get(client).and_then(|own| own.whose)
    }

    /// Forgets the state of a client whose only connection was given away, if it has nothing else.
    pub(super) fn forget_empty(&mut self, client: ClientKey) {
        if self.by_client.get(client).is_some_and(|pool| pool.is_empty()) {
            self.by_client.take(client);
        }
    }

    /// A connection does not belong to its client any more, because it became a tunnel or ended.
    pub(super) fn disown(&mut self, owner: Owner, index: ConnKey) {
        if let Some(own) = self.by_client.get_mut(owner.client) {
            own.forget(index);
        }
    }

    /// Takes a connection of one client out of the table.
    pub(super) fn remove(&mut self, index: ConnKey, pool: &mut Pool, cx: &mut Context) {
        count_open(index, false, pool);
        let conn = pool.conns.remove(index);
        if let Some(socket) = conn.socket {
            cx.actions.push_back(Action::CloseUpstream { socket });
        }
        if let Some(owner) = conn.owner {
            self.disown(owner, index);
        }
    }

    // ---- connections that are being made ----

    /// Returns the requests for which connections are being made.
    pub(super) fn attempts(&self) -> impl Iterator<Item = &ConnectAttempt> {
        self.by_client.iter().filter_map(|(_, pool)| pool.approach.as_deref())
    }

    /// Requests that wait for another round.
    pub(super) fn parked(&self) -> u32 {
        self.parked
    }

    /// Whether a connection is being made for a request of a client.
    pub(super) fn is_approaching(&self, client: ClientKey) -> bool {
        self.by_client.get(client).is_some_and(|own| own.approach.is_some())
    }

    /// The request for which a connection of a client is being made.
    pub(super) fn attempt_of(&mut self, client: ClientKey) -> Option<&mut ConnectAttempt> {
        self.by_client.get_mut(client)?.approach.as_deref_mut()
    }

    /// The connection that is being made for a request, if one is.
    pub(super) fn attempt_for(
        &mut self,
        id: ExchangeId,
        client: ClientName,
        cx: &Context,
    ) -> Option<&mut ConnectAttempt> {
        let attempt = self.attempt_of(client.slot()).filter(|_| id.worker == cx.worker)?;
        (attempt.waiting.ask.id == id).then_some(attempt)
    }

    /// Starts making a connection to a server for a request, after the servers that were tried for
    /// it.
    pub(super) fn approach(
        &mut self,
        server: ServerIndex,
        waiting: Waiting,
        tried: Tried,
        pool: &mut Pool,
        cx: &mut Context,
    ) {
        let machine = &pool.servers[server];
        let plan = &cx.plan.upstreams[usize::from(machine.upstream)];
        let client = waiting.ask.client.slot();
        let own = self.by_client.get_or_default(client);
        let more: VecDeque<Location> = match machine.mode.anywhere {
            true => own
                .destination
                .iter()
                .flat_map(|to| to.addresses.iter().copied().map(Location::Network))
                .collect(),
            false => [plan.servers[usize::from(machine.index)].address.clone()].into(),
        };
        let attempt = ConnectAttempt {
            waiting,
            server,
            more,
            attempts: Vec::new(),
            from_port: None,
            timed_out: false,
            tried,
            retry_us: u64::MAX,
        };
        cx.counters.queue_waiting.add(1);
        own.approach = Some(Box::new(attempt));
        count_coming(server, true, pool);
        self.try_address(client, pool, cx);
    }

    /// Begins a connect to the next address for the request of a client. False: it has no further
    /// address.
    fn try_address(&mut self, client: ClientKey, pool: &mut Pool, cx: &mut Context) -> bool {
        let Some(own) = self.by_client.get_mut(client) else { return false };
        let (whose, has_port) = (own.whose, !own.had_port);
        let Some(attempt) = own.approach.as_deref_mut() else { return false };
        let Some(address) = attempt.more.pop_front() else { return false };
        let (server, last) = (attempt.server, attempt.more.is_empty());
        let machine = &pool.servers[server];
        let upstream = &cx.plan.upstreams[usize::from(machine.upstream)];
        let patience_us = if machine.fresh.is_some() { PATIENCE_US } else { u64::MAX };
        let deadline_us = cx.now_us + upstream.connect_timeout_us.min(patience_us);
        let owner = Owner { client, once: upstream.pool != plan::Pool::Pinned };
        machine.stats.connects.add(1);
        cx.counters.upstream_connects.add(1);
        let mut conn = UpstreamConn::of_owner(server, owner, cx.now_us);
        conn.address = match &address {
            Location::Network(address) if machine.mode.anywhere => Some(*address),
            _ => None,
        };
        let name = pool.conns.insert(conn);
        let index = name.0;
        count_open(index, true, pool);
        pool.transition(index, Event::Connects { deadline_us }, cx);
        attempt.attempts.push(name);
        let look_us = if last { deadline_us } else { deadline_us.min(cx.now_us + NEXT_ADDRESS_US) };
        pool.arm_conn(index, look_us, cx);
        if dial(index, address, (whose, has_port), pool, cx) {
            own.had_port = true;
            attempt.from_port = Some(index);
        }
        true
    }

    /// A connect can't use its source address. If that was because of the client's port, the
    /// connect is made again from another port; otherwise returns false.
    pub(super) fn dial_by_any_port(
        &mut self,
        index: ConnKey,
        pool: &mut Pool,
        cx: &mut Context,
    ) -> bool {
        let owner = pool.conns.at(index).owner;
        let Some(own) = owner.and_then(|owner| self.by_client.get_mut(owner.client)) else {
            return false;
        };
        let whose = own.whose;
        let Some(attempt) = own.approach.as_deref_mut().filter(|one| one.from_port == Some(index))
        else {
            return false;
        };
        attempt.from_port = None;
        let conn = pool.conns.at_mut(index);
        let server = &pool.servers[conn.server];
        let written = &cx.plan.upstreams[usize::from(server.upstream)].servers
            [usize::from(server.index)]
        .address;
        let address = conn.address.map_or_else(|| written.clone(), Location::Network);
        if let Some(socket) = conn.socket.take() {
            cx.actions.push_back(Action::CloseUpstream { socket });
        }
        cx.counters.tcp_ports_changed.add(1);
        dial(index, address, (whose, false), pool, cx);
        true
    }

    /// A connect takes its time: the next address is tried in parallel, once.
    pub(super) fn try_next_address(&mut self, index: ConnKey, pool: &mut Pool, cx: &mut Context) {
        let (conn, name) = (pool.conns.at(index), (index, pool.conns.generation(index)));
        let late = cx.now_us >= conn.contact.since_us + NEXT_ADDRESS_US;
        let Some(owner) = conn.owner.filter(|_| late) else { return };
        let is_newest = |attempt: &mut ConnectAttempt| attempt.attempts.last() == Some(&name);
        if self.attempt_of(owner.client).is_some_and(is_newest) {
            self.try_address(owner.client, pool, cx);
        }
    }

    /// Removes the request that waits for a connection, and ends all connects for it but `winner`.
    pub(super) fn take_attempt(
        &mut self,
        client: ClientKey,
        winner: Option<ConnKey>,
        pool: &mut Pool,
        cx: &mut Context,
    ) -> Option<ConnectAttempt> {
        let attempt = self.by_client.get_mut(client)?.approach.take()?;
        cx.counters.queue_waiting.sub(1);
        count_coming(attempt.server, false, pool);
        self.parked -= u32::from(attempt.retry_us != u64::MAX);
        let why = if winner.is_some() { UpstreamEnd::LostRace } else { UpstreamEnd::Cancelled };
        for (index, generation) in &attempt.attempts {
            if Some(*index) != winner && pool.conns.holds(*index, *generation) {
                cx.counters.upstream_closes.count(why);
                pool.servers[pool.conns.at(*index).server].stats.closes.count(why);
                self.remove(*index, pool, cx);
            }
        }
        Some(*attempt)
    }

    /// A connect for one client has failed, and is gone: the next address is tried, if any is left.
    pub(super) fn connect_failed(
        &mut self,
        index: ConnKey,
        pool: &mut Pool,
        cx: &mut Context,
    ) -> Failed {
        let name = (index, pool.conns.generation(index));
        let conn = pool.conns.at(index);
        let (owner, server) = (conn.owner, conn.server);
        let timed_out = matches!(
            conn.state(),
            ConnState::Connecting { deadline_us } if deadline_us <= cx.now_us
        );
        self.remove(index, pool, cx);
        let Some(client) = owner.map(|owner| owner.client) else { return Failed::Waits };
        let Some(attempt) = self.attempt_of(client) else { return Failed::Waits };
        attempt.attempts.retain(|attempt| *attempt != name);
        attempt.timed_out |= timed_out;
        let waits = !attempt.attempts.is_empty();
        if self.try_address(client, pool, cx) || waits {
            return Failed::Waits;
        }
        match pool.servers[server].mode.anywhere {
            true => self.take_attempt(client, None, pool, cx).map_or(Failed::Waits, |attempt| {
                Failed::NoAddress { request: attempt.waiting.ask.id, timed_out: attempt.timed_out }
            }),
            false => Failed::NoServer(server, client),
        }
    }

    /// A server of the configuration can't be reached for the request of a client. Nothing was
    /// sent, so the next step is no retry: another server, and when each has been tried all of them
    /// later. `is_servers`: the cause is not the client's own address, which says nothing about the
    /// server and will be no better later.
    pub(super) fn unreached(
        &mut self,
        client: ClientKey,
        (server, is_servers): (ServerIndex, bool),
        servers: &Members<ServerIndex>,
        pool: &mut Pool,
        cx: &mut Context,
    ) -> Unreached {
        let Some(attempt) = self.attempt_of(client) else { return Unreached::Later };
        let ask = &mut attempt.waiting.ask;
        ask.traits = ask.traits.without(RequestFlags::TRIAL);
        let (id, tried) = (ask.id, &mut attempt.tried);
        tried.servers += 1;
        let machine = &mut pool.servers[server];
        if is_servers {
            machine.contact.failures = machine.contact.failures.max(tried.rounds.attempts() + 1);
        }
        let retries = cx.plan.upstreams[usize::from(ask.upstream)].connects_failed_max();
        let is_over = tried.servers.is_multiple_of(servers.len() as u32);
        // One that was in use a moment ago may be restarting. Others may have found out already
        // that it is of no use.
        let may_come = |server: &ServerIndex| {
            let machine = &pool.servers[*server];
            machine.standing.takes_new() && machine.contact.failures < retries
        };
        let until_us =
            servers.iter().filter(may_come).map(|server| pool.hints.awaited_until_us(server)).max();
        let left_us = until_us.unwrap_or(0).saturating_sub(cx.now_us);
        let is_hopeless = left_us == 0;
        let delay_us =
            if is_over { tried.rounds.next_delay_us(ask.serial).min(left_us) } else { 0 };
        if is_over && (!is_servers || is_hopeless || tried.rounds.attempts() >= retries) {
            self.take_attempt(client, None, pool, cx);
            return Unreached::Over(id);
        }
        if delay_us == 0 {
            return Unreached::Now;
        }
        attempt.retry_us = cx.now_us + delay_us;
        cx.wheel.insert(Token::Retry { key: client }.pack(), attempt.retry_us);
        self.parked += 1;
        Unreached::Later
    }

    /// A server is back: requests that wait for the next round try at once.
    pub(super) fn retry_all(&mut self, cx: &mut Context) {
        if self.parked == 0 {
            return;
        }
        let waits = |pool: &PrivatePool| {
            pool.approach.as_ref().is_some_and(|attempt| attempt.retry_us != u64::MAX)
        };
        let parked = self.by_client.iter().filter(|(_, pool)| waits(pool));
        for client in parked.map(|(client, _)| client).collect::<Vec<_>>() {
            if let Some(attempt) = self.attempt_of(client) {
                attempt.retry_us = cx.now_us;
            }
            cx.wheel.insert(Token::Retry { key: client }.pack(), cx.now_us);
        }
    }

    /// A piece of the body of a request for which a connection is being made. False: none is.
    pub(super) fn body(
        &mut self,
        id: ExchangeId,
        client: ClientName,
        piece: &Piece<'_>,
        end: bool,
        cx: &Context,
    ) -> bool {
        let Some(attempt) = self.attempt_for(id, client, cx) else { return false };
        attempt.waiting.add_body(piece, end);
        true
    }

    /// Whether a client knows this connection: as its own, or as one that is made for it.
    pub(super) fn knows(&self, client: ClientKey, name: (ConnKey, u32)) -> bool {
        let kept = self.conns_of(client).iter().any(|conn| (conn.index, conn.generation) == name);
        let own = self.by_client.get(client);
        kept || own
            .and_then(|own| own.approach.as_ref())
            .is_some_and(|one| one.attempts.contains(&name))
    }
}

/// Starts a connect for a client, with the client's identity, and with its port if it may use that.
/// Returns whether it uses that port.
fn dial(
    index: ConnKey,
    address: Location,
    (whose, has_port): (Option<Whose>, bool),
    pool: &Pool,
    cx: &mut Context,
) -> bool {
    let server = pool.conns.at(index).server;
    let dial = &cx.plan.upstreams[usize::from(pool.servers[server].upstream)].dial;
    let client = whose.and_then(Whose::address);
    let way = dial.way(
        client.map(|client| SocketAddr::new(client.ip(), if has_port { client.port() } else { 0 })),
    );
    let announcement =
        dial.proxy_protocol.zip(whose).map(|(version, whose)| Announcement { version, whose });
    let is_from_port = way
        .as_ref()
        .is_some_and(|way| way.is_client && way.from.is_some_and(|from| from.port() != 0));
    let token = pool.conn_token(index);
    cx.actions.push_back(Action::Connect {
        token,
        address,
        server: server.number(),
        announcement,
        way,
    });
    is_from_port
}
