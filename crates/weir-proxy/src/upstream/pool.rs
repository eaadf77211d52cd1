//! The servers of a worker and its connections to them, and the only writer of a connection's
//! state.
//!
//! All other code reports what happened ([`Event`]). From that this module derives the state, how
//! many connections are up and how many requests are on them (of the server and in the counters),
//! what the connection may take, and what it publishes to other workers.
//!
//! Invariants: a server's `ready` is the number of its connections that are up, `inflight` that of
//! the entries on its connections, and the gauges are the sums of both
//! ([`super::Upstreams::audit`]).

use std::collections::VecDeque;
use std::sync::Arc;

use crate::base::keys::{ConnKey, Key, ServerIndex};
use crate::base::slab::Slab;
use crate::base::table::Table;
use crate::context::Context;
use crate::cross::hints::Hints;
use crate::observe::server_event::{self, EVENTS_MAX, What};
use crate::request::pending_request::{ExchangeId, PendingRequest};
use crate::upstream::class::Answered;
use crate::upstream::connection::{ConnState, UpstreamConn};
use crate::upstream::entry::{Entry, Silence};
use crate::upstream::server::Server;

/// The state of a connection. Only [`Pool::transition`] gives it another value than the first.
#[derive(Debug, Default)]
pub(crate) struct Standing(ConnState);

impl Standing {
    #[inline]
    pub(crate) fn get(&self) -> ConnState {
        self.0
    }

    #[cfg(test)]
    pub(crate) fn of(state: ConnState) -> Standing {
        Standing(state)
    }
}

/// What has happened to a connection, or is decided about it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event {
    /// It is to be made at this time; `u64::MAX`: when a request needs it, or an operator says so.
    Due { retry_us: u64 },
    /// Its connect begins, and is waited for until then.
    Connects { deadline_us: u64 },
    /// It is established.
    Connected,
    /// It is joined with the client of this exchange, and leaves its place.
    Joined(ExchangeId),
    /// It is no longer up. It is replaced or removed next.
    Ended,
    /// Nothing is left of it, and its replacement is due at this time, if it is to be made.
    Gone { due_us: u64 },
}

/// What has happened to servers in this turn, for the log. At most [`EVENTS_MAX`].
#[derive(Debug, Default)]
pub(super) struct Events(VecDeque<server_event::Event>);

impl Events {
    /// Notes one; if it finds no room, it is only counted.
    pub(super) fn note(&mut self, server: ServerIndex, what: What, cx: &Context) {
        if self.0.len() < EVENTS_MAX {
            self.0.push_back(server_event::Event { server: server.number(), what });
        } else {
            cx.counters.events_lost.add(1);
        }
    }

    /// Takes the oldest.
    pub(super) fn take(&mut self) -> Option<server_event::Event> {
        self.0.pop_front()
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(super) conns: Slab<ConnKey, UpstreamConn>,
    pub(super) servers: Table<ServerIndex, Server>,
    pub(super) hints: Arc<Hints>,
    pub(super) seed: u64,
    /// What has happened to servers, for the log.
    pub(super) events: Events,
}

impl Pool {
    /// Returns a pool without servers.
    pub(super) fn new(hints: Arc<Hints>, seed: u64) -> Pool {
        Pool {
            conns: Slab::default(),
            servers: Table::default(),
            hints,
            seed,
            events: Events::default(),
        }
    }

    /// Returns what is worth a line in the log, oldest first. Call until None after each turn.
    pub(crate) fn take_event(&mut self) -> Option<server_event::Event> {
        self.events.take()
    }

    /// A connection, and its server.
    #[inline]
    pub(super) fn pair(&mut self, index: ConnKey) -> Pair<'_> {
        let conn = self.conns.at_mut(index);
        let server = &mut self.servers[conn.server];
        Pair { conn, server }
    }

    /// Something has happened to a connection.
    pub(super) fn transition(&mut self, index: ConnKey, event: Event, cx: &Context) {
        let conn = self.conns.at_mut(index);
        let at = conn.server;
        let server = &mut self.servers[at];
        let was_ready = conn.is_ready();
        let state = match event {
            Event::Due { retry_us } => ConnState::Down { retry_us },
            Event::Connects { deadline_us } => ConnState::Connecting { deadline_us },
            Event::Connected => {
                (conn.contact.connected_us, conn.contact.since_us) = (cx.now_us, cx.now_us);
                ConnState::Ready
            }
            Event::Joined(client) => {
                conn.join(client);
                ConnState::Tunnel
            }
            Event::Ended => ConnState::default(),
            Event::Gone { due_us } => {
                conn.reset(cx.now_us);
                conn.contact.due_us = due_us;
                ConnState::default()
            }
        };
        conn.state = Standing(state);
        if was_ready && !conn.is_ready() && std::mem::take(&mut conn.room.served) {
            server.learned.load.served -= 1;
        }
        let ready = match server.fresh.as_deref_mut() {
            Some(fresh) if conn.owner.is_some() => &mut fresh.ready,
            _ => &mut server.ready,
        };
        match (was_ready, conn.is_ready()) {
            (false, true) => {
                *ready += 1;
                cx.counters.upstream_connections.add(1);
            }
            (true, false) => {
                *ready -= 1;
                cx.counters.upstream_connections.sub(1);
            }
            _ => {}
        }
        // A connection that leaves its place says nothing about it any more.
        if !matches!(event, Event::Joined(_) | Event::Ended) {
            server.refresh(conn, cx.now_us);
        }
        if was_ready != conn.is_ready() || matches!(event, Event::Gone { .. }) {
            self.publish(at, cx);
        }
    }

    /// Publishes to the other workers how many connections to a server are up here, and whether one
    /// can be made. Called by [`Pool::transition`], and when the connections or the reach of a
    /// server have changed otherwise.
    pub(super) fn publish(&self, server: ServerIndex, cx: &Context) {
        let machine = &self.servers[server];
        // No other worker may use private ones.
        if !machine.mode.private {
            let worker = usize::from(cx.worker);
            self.hints.set_ready(server, worker, machine.ready, machine.is_hopeful());
            self.hints.set_served(server, worker, machine.learned.load.served);
        }
    }

    /// Notes a request on a connection with its bytes already in the log from `start` on. Always
    /// inlined: a request is large, and each call copies it.
    #[inline(always)]
    pub(super) fn push(&mut self, index: ConnKey, ask: PendingRequest, start: u64, cx: &Context) {
        let conn = self.conns.at_mut(index);
        let server = &mut self.servers[conn.server];
        if conn.entries.is_empty() {
            conn.wait.mark = server.mark();
        } else {
            cx.counters.pipelined.add(1);
        }
        conn.push(ask, start, cx.now_us);
        server.inflight += 1;
        server.refresh(conn, cx.now_us);
        cx.counters.in_flight.add(1);
    }
}

/// A connection and its server, for operations that need both.
#[derive(Debug)]
pub(super) struct Pair<'a> {
    pub(super) conn: &'a mut UpstreamConn,
    pub(super) server: &'a mut Server,
}

impl Pair<'_> {
    /// Recomputes what the connection may take. Call it after anything about it has changed.
    #[inline]
    pub(super) fn refresh(&mut self, cx: &Context) {
        self.server.refresh(self.conn, cx.now_us);
    }
}

/// The response to the oldest request of a connection to this server is complete: takes the request
/// out.
#[inline]
pub(super) fn finish(conn: &mut UpstreamConn, server: &mut Server, cx: &Context) -> Option<Entry> {
    let (since_us, since, bytes) = (conn.next_since_us(), conn.wait.mark, conn.reply.body_bytes);
    // If its client was slow to read, the time that the response took says nothing about the
    // request.
    let tells = conn.owner.is_none() && conn.wait.silence != Silence::Unread;
    let entry = conn.finish_answer(cx.now_us);
    let answered = u32::from(entry.is_some());
    server.answers += u64::from(answered);
    if let Some(entry) = entry.as_ref().filter(|_| tells) {
        let elapsed_us = cx.now_us.saturating_sub(since_us);
        let answered =
            Answered { since, answers: server.answers, elapsed_us, first: !entry.behind, bytes };
        let class = entry.ask.class;
        if server.learned.classes.on_answer(class, &answered) {
            server.learned.classes.on_new(class, &conn.log.copy(entry.start, entry.len as usize));
        }
    }
    conn.wait.mark = server.mark();
    server.inflight -= answered;
    server.moved -= u32::from(entry.as_ref().is_some_and(|entry| entry.moved));
    cx.counters.in_flight.sub(answered.into());
    entry
}

/// A connection to this server ends, or becomes a tunnel: takes out its requests.
pub(super) fn take_requests(
    conn: &mut UpstreamConn,
    server: &mut Server,
    cx: &Context,
) -> VecDeque<Entry> {
    let entries = std::mem::take(&mut conn.entries);
    server.inflight -= entries.len() as u32;
    server.moved -= entries.iter().filter(|entry| entry.moved).count() as u32;
    cx.counters.in_flight.sub(entries.len() as u64);
    entries
}
