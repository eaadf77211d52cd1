//! Connections of one client or one request: `pool` pinned and per-request (stages schedule and forward). docs/semantics.md §8.
//!
//! They are made when a request needs one and belong to the client's worker. A pinned one lives as long as its client: both end
//! together, and one that its server ends between requests is made anew by the next request. Requests on them follow the same rules
//! as on any other connection. Where a server has several addresses they are raced (RFC 8305 §5).

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::Upstreams;
use super::loss::Loss;
use super::pool::Event;
use super::schedule::Place;
use crate::action::Action;
use crate::base::keys::{ClientKey, ConnKey, Key, ServerIndex};
use crate::base::piece::Piece;
use crate::base::token::Token;
use crate::cause::Cause;
use crate::context::Context;
use crate::cross::asked::Private;
use crate::cross::mail::Mail;
use crate::ending::{ServerTlsFailure, UpstreamEnd};
use crate::observe::server_event::What;
use crate::plan::Pool;
use crate::request::pending_request::{ClientName, ExchangeId, NOBODY, PendingRequest, RequestFlags};
use crate::upstream::connection::{LinkState, UpstreamConn};
use crate::upstream::private_pool::{ConnectAttempt, Owner, PrivateConn, PrivatePool, Tried};
use crate::upstream::queue::Waiting;

/// How long one address is waited for before the next one is tried beside it (Connection Attempt Delay, RFC 8305 §8).
const NEXT_ADDRESS_US: u64 = 250_000;
/// How long a server that refused a connection is not chosen while another one can be.
const AWAY_US: u64 = 1_000_000;

impl Upstreams {
    /// A client has a request, for connections of its own if something is told of them.
    #[inline]
    pub(super) fn begin_private(&mut self, client: ClientName, private: Option<Private>) {
        let Some(private) = private else { return };
        let pool = self.private.get_or_default(client.slot());
        (pool.destination, pool.account) = (private.destination, private.account);
    }

    /// The client's own connection for a request, if there is one that is good for it.
    pub(super) fn place_on_own(&mut self, ask: &mut PendingRequest, cx: &Context) -> Option<Place> {
        let client = ask.client.slot();
        let own = self.private.get(client)?;
        let name = match cx.is_anywhere(ask.upstream) {
            true => &*own.destination.as_deref()?.name,
            false => "",
        };
        let is_good = |own: &PrivateConn| own.upstream == ask.upstream && *own.destination == *name;
        let position = own.links.iter().position(is_good)?;
        let index = own.links[position].index;
        let link = self.pool.links.at(index);
        let (server, free) = (link.server, link.is_ready() && link.reply.persist && link.entries.is_empty());
        if !free || !self.pool.servers[server].standing.accepts_bound() {
            return None;
        }
        // A session that is bound elsewhere goes there: the connection that is made for it takes the place of this one.
        let bound_here = ask.bound == NOBODY || ask.bound == self.pool.servers[server].index;
        if !bound_here && (ask.traits.has(RequestFlags::BOUND) || self.view(cx).is_bound_usable(ask)) {
            return None;
        }
        ask.server = self.pool.servers[server].index;
        if let Some(own) = self.private.get_mut(client) {
            own.touch(position);
        }
        Some(Place::Link(index))
    }

    /// Has a connection to a server made for a request.
    pub(super) fn approach(&mut self, server: ServerIndex, waiting: Waiting, cx: &mut Context) {
        self.approach_after(server, waiting, Tried::default(), cx);
    }

    /// The same after servers could not be reached.
    fn approach_after(&mut self, server: ServerIndex, waiting: Waiting, tried: Tried, cx: &mut Context) {
        let machine = &self.pool.servers[server];
        let plan = &cx.plan.upstreams[usize::from(machine.upstream)];
        let client = waiting.ask.client.slot();
        let pool = self.private.get_or_default(client);
        let more: VecDeque<SocketAddr> = match machine.mode.anywhere {
            true => pool.destination.iter().flat_map(|to| to.addresses.iter().copied()).collect(),
            false => [plan.servers[usize::from(machine.index)].address].into(),
        };
        let approach =
            ConnectAttempt { waiting, server, more, attempts: Vec::new(), timed_out: false, tried, retry_us: u64::MAX };
        cx.counters.queue_waiting.add(1);
        pool.approach = Some(Box::new(approach));
        self.try_address(client, cx);
    }

    /// Begins a connect to the next address of what a client waits for. False: there is none.
    fn try_address(&mut self, client: ClientKey, cx: &mut Context) -> bool {
        let Some(approach) = self.approach_of(client) else { return false };
        let Some(address) = approach.more.pop_front() else { return false };
        let (server, last) = (approach.server, approach.more.is_empty());
        let machine = &self.pool.servers[server];
        let upstream = &cx.plan.upstreams[usize::from(machine.upstream)];
        let deadline_us = cx.now_us + upstream.connect_timeout_us;
        let owner = Owner { client, once: upstream.pool == Pool::PerRequest };
        machine.stats.connects.add(1);
        cx.counters.upstream_connects.add(1);
        let mut link = UpstreamConn::of_owner(server, owner, cx.now_us);
        link.address = self.pool.servers[server].mode.anywhere.then_some(address);
        let (index, generation) = self.pool.links.insert(link);
        self.pool.transition(index, Event::Connects { deadline_us }, cx);
        if let Some(approach) = self.approach_of(client) {
            approach.attempts.push((index, generation));
        }
        let look_us = if last { deadline_us } else { deadline_us.min(cx.now_us + NEXT_ADDRESS_US) };
        self.pool.arm_link(index, look_us, cx);
        let token = self.pool.link_token(index);
        cx.actions.push_back(Action::Connect { token, address, server: server.number() });
        true
    }

    /// A connect takes its time: the next address is tried beside it, once.
    pub(super) fn try_next_address(&mut self, index: ConnKey, cx: &mut Context) {
        let (link, generation) = (self.pool.links.at(index), self.pool.links.generation(index));
        let late = cx.now_us >= link.contact.since_us + NEXT_ADDRESS_US;
        let Some(owner) = link.owner.filter(|_| late) else { return };
        let is_newest = |approach: &mut ConnectAttempt| approach.attempts.last() == Some(&(index, generation));
        if self.approach_of(owner.client).is_some_and(is_newest) {
            self.try_address(owner.client, cx);
        }
    }

    /// Requests for which connections are being made.
    pub(super) fn approaches(&self) -> impl Iterator<Item = &ConnectAttempt> {
        self.private.iter().filter_map(|(_, pool)| pool.approach.as_deref())
    }

    fn approach_of(&mut self, client: ClientKey) -> Option<&mut ConnectAttempt> {
        self.private.get_mut(client)?.approach.as_deref_mut()
    }

    /// Takes the request out that waits for a connection, and ends all connects for it but `winner`.
    fn take_approach(
        &mut self,
        client: ClientKey,
        winner: Option<ConnKey>,
        cx: &mut Context,
    ) -> Option<ConnectAttempt> {
        let approach = self.private.get_mut(client)?.approach.take()?;
        cx.counters.queue_waiting.sub(1);
        self.parked -= u32::from(approach.retry_us != u64::MAX);
        for (index, generation) in &approach.attempts {
            if Some(*index) != winner && self.pool.links.holds(*index, *generation) {
                self.close_own(
                    *index,
                    if winner.is_some() { UpstreamEnd::LostRace } else { UpstreamEnd::Cancelled },
                    cx,
                );
            }
        }
        Some(*approach)
    }

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
        let approach = self.take_approach(owner.client, Some(index), cx);
        if revived {
            self.retry_all_approaches(cx);
        }
        let Some(ConnectAttempt { waiting, .. }) = approach else {
            self.lose_link(index, Loss::Ours, UpstreamEnd::Cancelled, cx);
            return;
        };
        if waiting.ask.traits.has(RequestFlags::TUNNEL) {
            return self.own_tunnel(index, waiting.ask.id, cx);
        }
        self.keep_own(owner.client, index, waiting.ask.upstream, cx);
        let link = self.pool.links.at_mut(index);
        let start = link.log.end();
        link.log.pending().extend_from_slice(&waiting.bytes);
        self.push_to_link(index, waiting.ask, start, cx);
        cx.assigned(&waiting.ask, self.pool.link_id(index, cx));
    }

    /// The connection of a tunnel is established.
    fn own_tunnel(&mut self, index: ConnKey, id: ExchangeId, cx: &mut Context) {
        self.pool.transition(index, Event::Joined(id), cx);
        self.pool.servers[self.pool.links.at(index).server].stats.requests.add(1);
        self.charge_link(index);
        self.note_placed(id, index, cx);
        cx.post(id.worker, Mail::Joined { id, link: self.pool.link_id(index, cx) });
    }

    /// The connection is the client's, for its next requests too unless it is for one only.
    fn keep_own(&mut self, client: ClientKey, index: ConnKey, upstream: u16, cx: &mut Context) {
        let generation = self.pool.links.generation(index);
        let (mut destination, mut max) = (Box::from(""), usize::MAX);
        if let Some(forward) = cx.plan.forward.as_ref().filter(|forward| forward.upstream == usize::from(upstream)) {
            let to = self.private.get(client).and_then(|pool| pool.destination.as_deref());
            destination = to.map_or(destination, |to| to.name.clone());
            max = forward.destinations_max as usize;
        }
        let own = self.private.get_or_default(client);
        let same = own.links.iter().find(|link| link.upstream == upstream && link.destination == destination);
        let replaced = same.map(|link| link.index).filter(|link| self.pool.links.at(*link).entries.is_empty());
        own.links.push(PrivateConn { index, generation, upstream, destination });
        // The one that is kept now is the last.
        let oldest = own.links.iter().find(|_| own.links.len() > max).map(|link| link.index);
        if let Some(replaced) = replaced {
            self.lose_link(replaced, Loss::Ours, UpstreamEnd::Replaced, cx);
        } else if let Some(oldest) = oldest {
            self.lose_link(oldest, Loss::Ours, UpstreamEnd::LeastRecentlyUsed, cx);
        }
    }

    /// A connect for one client has failed: the next address, another server, or an error.
    pub(super) fn own_failed(&mut self, index: ConnKey, tls: Option<ServerTlsFailure>, cx: &mut Context) {
        cx.counters.upstream_connect_failures.add(1);
        let generation = self.pool.links.generation(index);
        let link = self.pool.links.at(index);
        let (owner, server) = (link.owner, link.server);
        let timed_out = matches!(link.state(), LinkState::Connecting { deadline_us } if deadline_us <= cx.now_us);
        self.pool.servers[server].stats.connect_failures.add(1);
        let why = tls.map_or(UpstreamEnd::ConnectFailed, UpstreamEnd::Tls);
        self.pool.servers[server].stats.closes.count(why);
        self.remove_own(index, cx);
        let Some(client) = owner.map(|owner| owner.client) else { return };
        let Some(approach) = self.approach_of(client) else { return };
        approach.attempts.retain(|attempt| *attempt != (index, generation));
        approach.timed_out |= timed_out;
        let waits = !approach.attempts.is_empty();
        if self.try_address(client, cx) || waits {
            return;
        }
        if self.pool.servers[server].mode.anywhere {
            let Some(ConnectAttempt { waiting, timed_out, .. }) = self.take_approach(client, None, cx) else { return };
            let cause = if timed_out { Cause::ConnectTimeout } else { Cause::ConnectFailed };
            return cx.answer_fails(waiting.ask.id, cause);
        }
        self.server_unreached(server, tls, client, cx);
    }

    /// A server of the configuration can't be reached for what a client waits for. Nothing was sent, so what follows is no retry:
    /// another server, and when each has had its turn all of them later.
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
        let Some(approach) = self.approach_of(client) else { return };
        let (mut ask, mut tried) = (approach.waiting.ask, approach.tried);
        self.end_trial(&ask, cx);
        ask.traits = ask.traits.without(RequestFlags::TRIAL);
        tried.servers += 1;
        let machine = &mut self.pool.servers[server];
        machine.contact.failures = machine.contact.failures.max(tried.rounds.attempts() + 1);
        let retries = cx.plan.upstreams[usize::from(ask.upstream)].connect_retries.max(1);
        let servers = self.groups[usize::from(ask.upstream)].servers;
        let is_over = tried.servers.is_multiple_of(servers.len() as u32);
        let delay_us = if is_over { tried.rounds.next_delay_us(ask.serial) } else { 0 };
        // Others may have found out already that none is of use.
        let mut usable =
            servers.iter().map(|server| &self.pool.servers[server]).filter(|server| server.standing.takes_new());
        let is_known = usable.all(|server| server.contact.failures >= retries);
        let is_hopeless = is_over && (is_known || tried.rounds.attempts() >= retries);
        let retry_us = if is_hopeless || delay_us == 0 { u64::MAX } else { cx.now_us + delay_us };
        if let Some(approach) = self.approach_of(client) {
            (approach.waiting.ask, approach.tried, approach.retry_us) = (ask, tried, retry_us);
        }
        if is_hopeless {
            self.take_approach(client, None, cx);
            cx.answer_fails(ask.id, Cause::NoServer);
        } else if delay_us == 0 {
            self.ask_servers_again(client, cx);
        } else {
            self.parked += 1;
            cx.wheel.insert(Token::Retry { key: client }.pack(), retry_us);
        }
    }

    /// A server is back: who waits for the next round tries at once.
    fn retry_all_approaches(&mut self, cx: &mut Context) {
        if self.parked == 0 {
            return;
        }
        let waits = |pool: &PrivatePool| pool.approach.as_ref().is_some_and(|approach| approach.retry_us != u64::MAX);
        let parked = self.private.iter().filter(|(_, pool)| waits(pool));
        for client in parked.map(|(client, _)| client).collect::<Vec<_>>() {
            if let Some(approach) = self.approach_of(client) {
                approach.retry_us = cx.now_us;
            }
            cx.wheel.insert(Token::Retry { key: client }.pack(), cx.now_us);
        }
    }

    /// The next round for what a client waits for, if that is due: its slot may be another's by now.
    pub(super) fn retry_approach(&mut self, client: ClientKey, cx: &mut Context) {
        if self.approach_of(client).is_some_and(|approach| approach.retry_us <= cx.now_us) {
            self.ask_servers_again(client, cx);
        }
    }

    fn ask_servers_again(&mut self, client: ClientKey, cx: &mut Context) {
        let Some(ConnectAttempt { waiting: Waiting { mut ask, bytes }, tried, .. }) =
            self.take_approach(client, None, cx)
        else {
            return;
        };
        match self.choose(&ask, cx) {
            Some(server) => {
                ask.server = server;
                self.approach_after(self.server_index(&ask), Waiting { ask, bytes }, tried, cx);
            }
            None => cx.answer_fails(ask.id, self.view(cx).refusal(&ask)),
        }
    }

    /// A request that lost its connection, or could have none, gets another one.
    pub(super) fn approach_again(&mut self, mut ask: PendingRequest, bytes: Vec<u8>, cx: &mut Context) {
        if self.private.get(ask.client.slot()).is_none() {
            // Its client is gone.
            return;
        }
        match self.choose(&ask, cx) {
            Some(server) => {
                ask.server = server;
                self.approach(self.server_index(&ask), Waiting { ask, bytes }, cx);
            }
            None => cx.answer_fails(ask.id, self.view(cx).refusal(&ask)),
        }
    }

    /// A trial of a suspended server has come to nothing.
    fn end_trial(&mut self, ask: &PendingRequest, cx: &mut Context) {
        if ask.traits.has(RequestFlags::TRIAL) {
            self.trial_ended(self.server_index(ask), false, cx);
        }
    }

    /// An answer on a connection of one client is complete.
    pub(super) fn own_answered(&mut self, index: ConnKey, server: ServerIndex, cx: &mut Context) {
        let idle = self.pool.links.at(index).entries.is_empty();
        if idle && !self.pool.servers[server].standing.keeps_connections() {
            self.lose_link(index, Loss::Ours, UpstreamEnd::Disabled, cx);
        }
    }

    /// Nobody wants the answer any more for which a connection is being made. False: none is.
    pub(super) fn cancel_approach(&mut self, id: ExchangeId, client: ClientName, cx: &mut Context) -> bool {
        if self.approach_for(id, client, cx).is_none() {
            return false;
        }
        let approach = self.take_approach(client.slot(), None, cx);
        approach.iter().for_each(|approach| self.end_trial(&approach.waiting.ask, cx));
        true
    }

    /// The connection that is being made for a request, if one is.
    fn approach_for(&mut self, id: ExchangeId, client: ClientName, cx: &Context) -> Option<&mut ConnectAttempt> {
        let approach = self.approach_of(client.slot()).filter(|_| id.worker == cx.worker)?;
        (approach.waiting.ask.id == id).then_some(approach)
    }

    /// A piece of the body of a request for which a connection is being made. False: none is.
    pub(super) fn body_to_approach(
        &mut self,
        id: ExchangeId,
        client: ClientName,
        piece: &Piece<'_>,
        end: bool,
        cx: &Context,
    ) -> bool {
        let Some(approach) = self.approach_for(id, client, cx) else { return false };
        let waiting = &mut approach.waiting;
        waiting.bytes.extend_from_slice(piece.bytes());
        if end {
            waiting.ask.traits = waiting.ask.traits.without(RequestFlags::STREAMING);
        }
        true
    }

    /// A client leaves: its connections end with it.
    pub(crate) fn end_own(&mut self, client: ClientKey, cx: &mut Context) {
        self.take_approach(client, None, cx);
        let own = self.private.take(client).unwrap_or_default();
        for PrivateConn { index, generation, .. } in own.links {
            if self.pool.links.holds(index, generation) {
                self.lose_link(index, Loss::Ours, UpstreamEnd::ClientGone, cx);
            }
        }
    }

    /// A connection is not its client's any more, because it became a tunnel or ended.
    pub(super) fn disown(&mut self, owner: Owner, index: ConnKey) {
        if let Some(own) = self.private.get_mut(owner.client) {
            own.forget(index);
        }
    }

    /// Ends a connection of one client that was never established.
    fn close_own(&mut self, index: ConnKey, why: UpstreamEnd, cx: &mut Context) {
        let server = self.pool.links.at(index).server;
        cx.counters.upstream_closes.count(why);
        self.pool.servers[server].stats.closes.count(why);
        self.remove_own(index, cx);
    }

    /// Takes a connection of one client out of the table.
    pub(super) fn remove_own(&mut self, index: ConnKey, cx: &mut Context) {
        let link = self.pool.links.remove(index);
        if let Some(socket) = link.socket {
            cx.actions.push_back(Action::CloseLink { socket });
        }
        if let Some(owner) = link.owner {
            self.disown(owner, index);
        }
    }
}
