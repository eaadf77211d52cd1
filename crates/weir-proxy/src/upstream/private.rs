//! Connections of one client or one request: `pool` pinned and per-request (stages schedule and forward). docs/semantics.md §8.
//!
//! They are made when a request needs one and belong to the client's worker. A pinned one lives as long as its client: both end
//! together, and one that its server ends between requests is made anew by the next request. Requests on them follow the same rules
//! as on any other connection. How they are made is [`PrivatePools`](super::private_pool::PrivatePools)' affair; here is what follows for
//! requests when one is there, or can't be.

use super::Upstreams;
use super::loss::Loss;
use super::pool::Event;
use super::private_pool::{ConnectAttempt, Failed, PrivateConn, Tried, Unreached};
use crate::action::Action;
use crate::base::keys::{ClientKey, ConnKey, ServerIndex};
use crate::cause::Cause;
use crate::context::Context;
use crate::cross::mail::Mail;
use crate::ending::{ServerTlsFailure, UpstreamEnd};
use crate::observe::server_event::What;
use crate::request::pending_request::{ClientName, ExchangeId, PendingRequest, RequestFlags};
use crate::upstream::queue::Waiting;

/// How long a server that refused a connection is not chosen while another one can be.
const AWAY_US: u64 = 1_000_000;

impl Upstreams {
    /// A connection of one client is established.
    pub(super) fn own_connected(&mut self, index: ConnKey, cx: &mut Context) {
        let link = self.pool.links.at_mut(index);
        let (Some(owner), Some(socket)) = (link.owner, link.socket) else { return };
        link.reading.receiving = true;
        let server = link.server;
        cx.actions.push_back(Action::ReceiveLink { socket });
        self.pool.transition(index, Event::Connected, cx);
        let machine = &mut self.pool.servers[server];
        let revived = machine.contact.on_private_connected();
        if machine.contact.take_told() {
            self.pool.events.note(server, What::Reachable, cx);
        }
        let attempt = self.private.take_attempt(owner.client, Some(index), &mut self.pool, cx);
        if revived {
            self.private.retry_all(cx);
        }
        let Some(ConnectAttempt { waiting, .. }) = attempt else {
            self.lose_link(index, Loss::Ours, UpstreamEnd::Cancelled, cx);
            return;
        };
        if waiting.ask.traits.has(RequestFlags::TUNNEL) {
            return self.own_tunnel(index, waiting.ask.id, cx);
        }
        if let Some((other, why)) = self.private.keep(owner.client, index, waiting.ask.upstream, &self.pool, cx) {
            self.lose_link(other, Loss::Ours, why, cx);
        }
        self.send_waiting(index, waiting, cx);
    }

    /// The connection of a tunnel is established.
    fn own_tunnel(&mut self, index: ConnKey, id: ExchangeId, cx: &mut Context) {
        self.pool.transition(index, Event::Joined(id), cx);
        let link = self.pool.links.at_mut(index);
        self.pool.servers[link.server].stats.requests.add(1);
        self.private.charge(link);
        self.pool.note_placed(id, index, cx);
        cx.post(id.worker, Mail::Joined { id, link: self.pool.link_id(index, cx) });
    }

    /// A connect for one client has failed: the next address, another server, or an error.
    pub(super) fn own_failed(&mut self, index: ConnKey, tls: Option<ServerTlsFailure>, cx: &mut Context) {
        cx.counters.upstream_connect_failures.add(1);
        let stats = &self.pool.servers[self.pool.links.at(index).server].stats;
        stats.connect_failures.add(1);
        stats.closes.count(tls.map_or(UpstreamEnd::ConnectFailed, UpstreamEnd::Tls));
        match self.private.connect_failed(index, &mut self.pool, cx) {
            Failed::Waits => {}
            Failed::NoAddress(ConnectAttempt { waiting, timed_out, .. }) => {
                let cause = if timed_out { Cause::ConnectTimeout } else { Cause::ConnectFailed };
                cx.answer_fails(waiting.ask.id, cause);
            }
            Failed::NoServer(server, client) => self.server_unreached(server, tls, client, cx),
        }
    }

    /// A server of the configuration can't be reached for what a client waits for.
    fn server_unreached(
        &mut self,
        server: ServerIndex,
        tls: Option<ServerTlsFailure>,
        client: ClientKey,
        cx: &mut Context,
    ) {
        let machine = &mut self.pool.servers[server];
        machine.contact.away_until_us = cx.now_us + AWAY_US;
        machine.contact.unreachable = machine.ready == 0;
        self.tell_unreachable(server, tls, cx);
        let Some(ask) = self.private.attempt_of(client).map(|attempt| attempt.waiting.ask) else { return };
        self.end_trial(&ask, cx);
        let servers = self.groups[usize::from(ask.upstream)].servers;
        match self.private.unreached(client, server, servers, &mut self.pool, cx) {
            Unreached::Over(id) => cx.answer_fails(id, Cause::NoServer),
            Unreached::Now => self.ask_servers_again(client, cx),
            Unreached::Later => {}
        }
    }

    /// The next round for what a client waits for, if that is due: its slot may be another's by now.
    pub(super) fn retry_approach(&mut self, client: ClientKey, cx: &mut Context) {
        if self.private.attempt_of(client).is_some_and(|attempt| attempt.retry_us <= cx.now_us) {
            self.ask_servers_again(client, cx);
        }
    }

    fn ask_servers_again(&mut self, client: ClientKey, cx: &mut Context) {
        let attempt = self.private.take_attempt(client, None, &mut self.pool, cx);
        if let Some(ConnectAttempt { waiting: Waiting { ask, bytes }, tried, .. }) = attempt {
            self.approach_chosen(ask, bytes, tried, cx);
        }
    }

    /// A request that lost its connection, or could have none, gets another one, if its client is still there.
    pub(super) fn approach_chosen(&mut self, mut ask: PendingRequest, bytes: Vec<u8>, tried: Tried, cx: &mut Context) {
        match self.groups.choose(&ask, &mut self.pool, cx) {
            Some(server) => {
                ask.server = server;
                let server = self.groups.server_of(&ask);
                self.private.approach(server, Waiting { ask, bytes }, tried, &mut self.pool, cx);
            }
            None => cx.answer_fails(ask.id, self.view(cx).refusal(&ask)),
        }
    }

    /// A trial of a suspended server has come to nothing.
    fn end_trial(&mut self, ask: &PendingRequest, cx: &mut Context) {
        if ask.traits.has(RequestFlags::TRIAL) {
            let server = self.groups.server_of(ask);
            self.health.trial_ended(server, false, &mut self.pool, &mut self.groups, cx);
        }
    }

    /// Nobody wants the answer any more for which a connection is being made. False: none is.
    pub(super) fn cancel_approach(&mut self, id: ExchangeId, client: ClientName, cx: &mut Context) -> bool {
        if self.private.attempt_for(id, client, cx).is_none() {
            return false;
        }
        let attempt = self.private.take_attempt(client.slot(), None, &mut self.pool, cx);
        attempt.iter().for_each(|attempt| self.end_trial(&attempt.waiting.ask, cx));
        true
    }

    /// A client leaves: its connections end with it.
    pub(crate) fn end_own(&mut self, client: ClientKey, cx: &mut Context) {
        for PrivateConn { index, generation, .. } in self.private.leave(client, &mut self.pool, cx) {
            if self.pool.links.holds(index, generation) {
                self.lose_link(index, Loss::Ours, UpstreamEnd::ClientGone, cx);
            }
        }
    }
}
