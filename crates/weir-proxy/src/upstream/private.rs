//! Connections of one client or one request: `pool` pinned and per-request (stages schedule and
//! forward). docs/pools.md.
//!
//! They are made when a request needs one and belong to the client's worker. A pinned one lives as
//! long as its client: both end together, and if its server ends it between requests, the next
//! request replaces it. Requests on them follow the same rules as on any other connection.
//! [`PrivatePools`](super::private_pool::PrivatePools) makes them; this module handles the requests
//! when a connection is up, or can't be made.

use super::Upstreams;
use super::agenda::Ending;
use super::choose::Purpose;
use super::connect::tell_unreachable;
use super::fresh::fresh_failed;
use super::groups::Groups;
use super::judge::Health;
use super::pool::{Event, Pool};
use super::private_pool::{ConnectAttempt, Failed, PrivateConn, PrivatePools, Tried, Unreached};
use crate::action::Action;
use crate::base::keys::{ClientKey, ConnKey, ServerIndex};
use crate::cause::Cause;
use crate::context::Context;
use crate::cross::mail::Mail;
use crate::ending::{ServerTlsFailure, UpstreamEnd};
use crate::observe::server_event::What;
use crate::plan::{Location, Source, Whose};
use crate::request::pending_request::{ExchangeId, RequestFlags};
use crate::upstream::queue::Waiting;

/// How long a server that refused a connection is not chosen while another one can be.
pub(super) const AWAY_US: u64 = 1_000_000;

impl Upstreams {
    /// A connection of one client is established.
    pub(super) fn own_connected(&mut self, index: ConnKey, cx: &mut Context) {
        let conn = self.pool.conns.at_mut(index);
        let (Some(owner), Some(socket)) = (conn.owner, conn.socket) else { return };
        conn.reading.receiving = true;
        let server = conn.server;
        cx.actions.push_back(Action::ReceiveUpstream { socket });
        self.pool.transition(index, Event::Connected, cx);
        let machine = &mut self.pool.servers[server];
        // Pooled connections show whether others can be made.
        let revived = machine.fresh.is_none() && machine.contact.on_private_connected();
        if machine.fresh.is_none() && machine.contact.take_told() {
            self.pool.events.note(server, What::Reachable, cx);
        }
        let attempt = self.private.take_attempt(owner.client, Some(index), &mut self.pool, cx);
        if revived {
            self.private.retry_all(cx);
        }
        let Some(ConnectAttempt { waiting, .. }) = attempt else {
            return self.end(index, Ending::ours(UpstreamEnd::Cancelled), cx);
        };
        if waiting.ask.traits.has(RequestFlags::TUNNEL) {
            return self.private.begin_tunnel(index, waiting.ask.id, &mut self.pool, cx);
        }
        if let Some((other, why)) =
            self.private.keep(owner.client, index, waiting.ask.upstream, &self.pool, cx)
        {
            self.end(other, Ending::ours(why), cx);
        }
        self.placing().send_waiting(index, waiting, cx);
    }

    /// A connect for one client has failed: the next address, another server, or an error.
    /// `is_servers`: it was the server that could not be reached, and not the client's address that
    /// could not be used.
    pub(super) fn own_failed(
        &mut self,
        index: ConnKey,
        tls: Option<ServerTlsFailure>,
        is_servers: bool,
        cx: &mut Context,
    ) {
        cx.counters.upstream_connect_failures.add(1);
        let machine = &self.pool.servers[self.pool.conns.at(index).server];
        machine.stats.connect_failures.add(1);
        machine.stats.closes.count(tls.map_or(UpstreamEnd::ConnectFailed, UpstreamEnd::Tls));
        if machine.fresh.is_some() {
            return fresh_failed(self, index, cx);
        }
        match self.private.connect_failed(index, &mut self.pool, cx) {
            Failed::Waits => {}
            Failed::NoAddress { request, timed_out } => {
                let cause = if timed_out { Cause::ConnectTimeout } else { Cause::ConnectFailed };
                cx.answer_fails(request, cause);
            }
            Failed::NoServer(server, client) => {
                let Upstreams { pool, groups, health, private, .. } = self;
                let is_servers =
                    is_servers && !private.is_of_other_family(client, server, pool, cx);
                if is_servers {
                    let machine = &mut pool.servers[server];
                    machine.contact.away_until_us = cx.now_us + AWAY_US;
                    machine.contact.unreachable = machine.ready == 0;
                    tell_unreachable(server, tls, pool, groups, cx);
                }
                private.server_unreached((server, is_servers), client, pool, groups, health, cx);
            }
        }
    }

    /// A client leaves: its connections end with it.
    pub(crate) fn end_own(&mut self, client: ClientKey, cx: &mut Context) {
        for PrivateConn { index, generation, .. } in self.private.leave(client, &mut self.pool, cx)
        {
            if self.pool.conns.holds(index, generation) {
                self.end(index, Ending::ours(UpstreamEnd::ClientGone), cx);
            }
        }
    }
}

/// A connect can't use its source address: it is made from another port, or it has failed.
pub(crate) fn port_taken(all: &mut Upstreams, token: u64, cx: &mut Context) {
    let Some(index) = all.pool.conn_of(token) else { return };
    if all.private.dial_by_any_port(index, &mut all.pool, cx) {
        return;
    }
    if all.pool.conns.at(index).owner.is_some() {
        return all.own_failed(index, None, false, cx);
    }
    all.upstream_connected(token, Err(None), cx);
}

impl PrivatePools {
    /// Whether a server can't be reached from a client's own address, which says nothing about the
    /// server.
    fn is_of_other_family(
        &self,
        client: ClientKey,
        server: ServerIndex,
        pool: &Pool,
        cx: &Context,
    ) -> bool {
        let machine = &pool.servers[server];
        let plan = &cx.plan.upstreams[usize::from(machine.upstream)];
        let own = self
            .whose(client)
            .and_then(Whose::address)
            .filter(|_| plan.dial.source == Source::Client);
        match (&plan.servers[usize::from(machine.index)].address, own) {
            (Location::Network(address), Some(own)) => own.is_ipv4() != address.is_ipv4(),
            _ => false,
        }
    }

    /// The connection of a tunnel is established.
    fn begin_tunnel(&self, index: ConnKey, id: ExchangeId, pool: &mut Pool, cx: &mut Context) {
        pool.transition(index, Event::Joined(id), cx);
        let conn = pool.conns.at_mut(index);
        pool.servers[conn.server].stats.requests.add(1);
        self.charge(conn);
        pool.note_placed(id, index, cx);
        cx.post(id.worker, Mail::Joined { id, conn: pool.conn_id(index, cx) });
    }

    /// The next round for the request of a client, if that is due: its slot may be another's by
    /// now.
    pub(super) fn retry(
        &mut self,
        client: ClientKey,
        pool: &mut Pool,
        groups: &mut Groups,
        cx: &mut Context,
    ) {
        if self.attempt_of(client).is_some_and(|attempt| attempt.retry_us <= cx.now_us) {
            self.ask_servers_again(client, pool, groups, cx);
        }
    }

    fn ask_servers_again(
        &mut self,
        client: ClientKey,
        pool: &mut Pool,
        groups: &mut Groups,
        cx: &mut Context,
    ) {
        let attempt = self.take_attempt(client, None, pool, cx);
        if let Some(ConnectAttempt { waiting, tried, .. }) = attempt {
            self.approach_chosen(waiting, tried, pool, groups, cx);
        }
    }

    /// A request that lost its connection, or could have none, gets another connection, if its
    /// client is still there.
    pub(super) fn approach_chosen(
        &mut self,
        mut waiting: Waiting,
        tried: Tried,
        pool: &mut Pool,
        groups: &mut Groups,
        cx: &mut Context,
    ) {
        match groups.choose(&waiting.ask, Purpose::New, pool, cx) {
            Ok(chosen) => {
                waiting.ask.server = chosen.server;
                self.approach(groups.server_of(&waiting.ask), waiting, tried, pool, cx);
            }
            Err(cause) => cx.answer_fails(waiting.ask.id, cause),
        }
    }

    /// A server of the configuration can't be reached for the request of a client.
    fn server_unreached(
        &mut self,
        (server, is_servers): (ServerIndex, bool),
        client: ClientKey,
        pool: &mut Pool,
        groups: &mut Groups,
        health: &mut Health,
        cx: &mut Context,
    ) {
        let Some(ask) = self.attempt_of(client).map(|attempt| attempt.waiting.ask) else { return };
        health.end_trial(&ask, pool, groups, cx);
        let servers = &groups[usize::from(ask.upstream)].servers;
        match self.unreached(client, (server, is_servers), servers, pool, cx) {
            Unreached::Over(id) => cx.answer_fails(id, Cause::NoServer),
            Unreached::Now => self.ask_servers_again(client, pool, groups, cx),
            Unreached::Later => {}
        }
    }
}
