//! Connections of one client or one request: `pool` pinned and per-request (stages schedule and forward). docs/semantics.md §8.
//!
//! They are made when a request needs one and belong to the client's worker. A pinned one lives as long as its client: both end
//! together, and one that its server ends between requests is made anew by the next request. Requests on them follow the same rules
//! as on any other connection. Where a server has several addresses they are raced (RFC 8305 §5).

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::loss::Loss;
use super::schedule::Place;
use super::{Action, Engine, Piece};
use crate::base::keys::{ClientKey, ConnKey, ServerIndex};
use crate::cause::Cause;
use crate::ending::UpstreamEnd;
use crate::plan::Pool;
use crate::request::pending_request::{ExchangeId, NOBODY, PendingRequest, RequestFlags};
use crate::upstream::connection::{LinkState, UpstreamConn};
use crate::upstream::private_pool::{ConnectAttempt, Owner, PrivateConn, Tried};
use crate::upstream::queue::Waiting;

/// How long one address is waited for before the next one is tried beside it (Connection Attempt Delay, RFC 8305 §8).
const NEXT_ADDRESS_US: u64 = 250_000;
/// How long a server that refused a connection is not chosen while another one can be.
const AWAY_US: u64 = 1_000_000;

impl Engine {
    /// Whether the connections of an upstream belong to clients or requests.
    pub(super) fn is_private(&self, upstream: u16) -> bool {
        self.has_private && self.plan.upstreams[usize::from(upstream)].pool.is_private()
    }

    /// The client's own connection for a request, if there is one that is good for it.
    pub(super) fn place_on_own(&mut self, ask: &mut PendingRequest) -> Option<Place> {
        let session = self.exchanges.at(ask.id.index).session;
        let own = self.sessions.at(session).own.as_deref()?;
        let name = match self.is_anywhere(ask.upstream) {
            true => &*self.destination(session)?.name,
            false => "",
        };
        let is_good = |own: &PrivateConn| own.upstream == ask.upstream && *own.destination == *name;
        let position = own.links.iter().position(is_good)?;
        let index = own.links[position].index;
        let link = self.links.at(index);
        let (server, free) = (link.server, link.is_ready() && link.persist && link.entries.is_empty());
        if !free || !self.servers[server].standing.accepts_bound() {
            return None;
        }
        // A session that is bound elsewhere goes there: the connection that is made for it takes the place of this one.
        let bound_here = ask.bound == NOBODY || ask.bound == self.servers[server].index;
        if !bound_here && (ask.traits.has(RequestFlags::BOUND) || self.is_bound_usable(ask)) {
            return None;
        }
        ask.server = self.servers[server].index;
        if let Some(own) = &mut self.sessions.at_mut(session).own {
            own.touch(position);
        }
        Some(Place::Link(index))
    }

    /// Has a connection to a server made for a request.
    pub(super) fn approach(&mut self, server: ServerIndex, waiting: Waiting) {
        self.approach_after(server, waiting, Tried::default());
    }

    /// The same after servers could not be reached.
    fn approach_after(&mut self, server: ServerIndex, waiting: Waiting, tried: Tried) {
        let machine = &self.servers[server];
        let plan = &self.plan.upstreams[usize::from(machine.upstream)];
        let session = self.exchanges.at(waiting.ask.id.index).session;
        let more: VecDeque<SocketAddr> = match machine.anywhere {
            true => self.destination(session).map_or_else(VecDeque::new, |to| to.addresses.iter().copied().collect()),
            false => [plan.servers[usize::from(machine.index)].address].into(),
        };
        let approach =
            ConnectAttempt { waiting, server, more, attempts: Vec::new(), timed_out: false, tried, retry_us: u64::MAX };
        self.counters.queue_waiting.add(1);
        self.sessions.at_mut(session).own.get_or_insert_default().approach = Some(Box::new(approach));
        self.try_address(session);
    }

    /// Begins a connect to the next address of what a client waits for. False: there is none.
    fn try_address(&mut self, session: ClientKey) -> bool {
        let generation = self.sessions.generation(session);
        let Some(approach) = self.approach_of(session) else { return false };
        let Some(address) = approach.more.pop_front() else { return false };
        let (server, last) = (approach.server, approach.more.is_empty());
        let machine = &self.servers[server];
        let upstream = &self.plan.upstreams[usize::from(machine.upstream)];
        let deadline_us = self.now_us + upstream.connect_timeout_us;
        let owner = Owner { session, generation, once: upstream.pool == Pool::PerRequest };
        machine.stats.connects.add(1);
        self.counters.upstream_connects.add(1);
        let mut link = UpstreamConn::of_owner(server, owner, deadline_us, self.now_us);
        link.address = self.servers[server].anywhere.then_some(address);
        let (index, generation) = self.links.insert(link);
        if let Some(approach) = self.approach_of(session) {
            approach.attempts.push((index, generation));
        }
        let look_us = if last { deadline_us } else { deadline_us.min(self.now_us + NEXT_ADDRESS_US) };
        self.arm_link(index, look_us);
        self.actions.push_back(Action::Connect { token: self.link_token(index), address });
        true
    }

    /// A connect takes its time: the next address is tried beside it, once.
    pub(super) fn try_next_address(&mut self, index: ConnKey) {
        let (link, generation) = (self.links.at(index), self.links.generation(index));
        let late = self.now_us >= link.since_us + NEXT_ADDRESS_US;
        let Some(owner) = link.owner.filter(|_| late) else { return };
        let is_newest = |approach: &mut ConnectAttempt| approach.attempts.last() == Some(&(index, generation));
        if self.approach_of(owner.session).is_some_and(is_newest) {
            self.try_address(owner.session);
        }
    }

    /// Requests for which connections are being made.
    pub(super) fn approaches(&self) -> impl Iterator<Item = &ConnectAttempt> {
        self.sessions.keys().filter_map(|index| self.sessions.at(index).own.as_deref()?.approach.as_deref())
    }

    fn approach_of(&mut self, session: ClientKey) -> Option<&mut ConnectAttempt> {
        self.sessions.at_mut(session).own.as_deref_mut()?.approach.as_deref_mut()
    }

    /// Takes the request out that waits for a connection, and ends all connects for it but `winner`.
    fn take_approach(&mut self, session: ClientKey, winner: Option<ConnKey>) -> Option<ConnectAttempt> {
        let approach = self.sessions.at_mut(session).own.as_deref_mut()?.approach.take()?;
        self.counters.queue_waiting.sub(1);
        self.parked -= u32::from(approach.retry_us != u64::MAX);
        for (index, generation) in &approach.attempts {
            if Some(*index) != winner && self.links.holds(*index, *generation) {
                self.close_own(*index, if winner.is_some() { UpstreamEnd::LostRace } else { UpstreamEnd::Cancelled });
            }
        }
        Some(*approach)
    }

    /// A connection of one client is established.
    pub(super) fn own_connected(&mut self, index: ConnKey) {
        let now_us = self.now_us;
        let link = self.links.at_mut(index);
        let (Some(owner), Some(socket)) = (link.owner, link.socket) else { return };
        link.state = LinkState::Ready;
        (link.connected_us, link.since_us) = (now_us, now_us);
        link.receiving = true;
        let server = link.server;
        self.actions.push_back(Action::ReceiveLink { socket });
        self.counters.upstream_connections.add(1);
        let machine = &mut self.servers[server];
        machine.ready += 1;
        let revived = std::mem::take(&mut machine.failures) > 0;
        (machine.unreachable, machine.away_until_us) = (false, 0);
        if std::mem::take(&mut machine.told_unreachable) {
            self.note_event(server, crate::observe::server_event::What::Reachable);
        }
        let approach = self.take_approach(owner.session, Some(index));
        if revived {
            self.retry_all_approaches();
        }
        let Some(ConnectAttempt { waiting, .. }) = approach else {
            self.lose_link(index, Loss::Ours, UpstreamEnd::Cancelled);
            return;
        };
        if waiting.ask.traits.has(RequestFlags::TUNNEL) {
            return self.own_tunnel(index, waiting.ask.id);
        }
        self.keep_own(owner.session, index, waiting.ask.upstream);
        let link = self.links.at_mut(index);
        let start = link.log.end();
        link.log.pending().extend_from_slice(&waiting.bytes);
        self.push_to_link(index, waiting.ask, start);
    }

    /// The connection of a tunnel is established.
    fn own_tunnel(&mut self, index: ConnKey, id: ExchangeId) {
        let link = self.links.at_mut(index);
        link.join(id);
        let server = link.server;
        self.servers[server].ready -= 1;
        self.servers[server].stats.requests.add(1);
        self.counters.upstream_connections.sub(1);
        self.charge_link(index);
        self.note_placed(id, index);
        self.answer_connect(id.index, self.link_id(index));
    }

    /// The connection is the client's, for its next requests too unless it is for one only.
    fn keep_own(&mut self, session: ClientKey, index: ConnKey, upstream: u16) {
        let generation = self.links.generation(index);
        let (mut destination, mut max) = (Box::from(""), usize::MAX);
        if let Some(forward) = self.plan.forward.as_ref().filter(|forward| forward.upstream == usize::from(upstream)) {
            destination = self.destination(session).map_or(destination, |to| to.name.clone());
            max = forward.destinations_max as usize;
        }
        let own = self.sessions.at_mut(session).own.get_or_insert_default();
        let same = own.links.iter().find(|link| link.upstream == upstream && link.destination == destination);
        let replaced = same.map(|link| link.index).filter(|link| self.links.at(*link).entries.is_empty());
        own.links.push(PrivateConn { index, generation, upstream, destination });
        // The one that is kept now is the last.
        let oldest = own.links.iter().find(|_| own.links.len() > max).map(|link| link.index);
        if let Some(replaced) = replaced {
            self.lose_link(replaced, Loss::Ours, UpstreamEnd::Replaced);
        } else if let Some(oldest) = oldest {
            self.lose_link(oldest, Loss::Ours, UpstreamEnd::LeastRecentlyUsed);
        }
    }

    /// A connect for one client has failed: the next address, another server, or an error.
    pub(super) fn own_failed(&mut self, index: ConnKey) {
        self.counters.upstream_connect_failures.add(1);
        let generation = self.links.generation(index);
        let link = self.links.at(index);
        let (owner, server) = (link.owner, link.server);
        let timed_out = matches!(link.state, LinkState::Connecting { deadline_us } if deadline_us <= self.now_us);
        self.servers[server].stats.connect_failures.add(1);
        self.servers[server].stats.closes.count(UpstreamEnd::ConnectFailed);
        self.remove_own(index);
        let Some(session) = owner.map(|owner| owner.session) else { return };
        let Some(approach) = self.approach_of(session) else { return };
        approach.attempts.retain(|attempt| *attempt != (index, generation));
        approach.timed_out |= timed_out;
        let waits = !approach.attempts.is_empty();
        if self.try_address(session) || waits {
            return;
        }
        if self.servers[server].anywhere {
            let Some(ConnectAttempt { waiting, timed_out, .. }) = self.take_approach(session, None) else { return };
            let cause = if timed_out { Cause::ConnectTimeout } else { Cause::ConnectFailed };
            return self.answer_fails(waiting.ask.id, cause);
        }
        self.server_unreached(server, session);
    }

    /// A server of the configuration can't be reached for what a client waits for. Nothing was sent, so what follows is no retry:
    /// another server, and when each has had its turn all of them later.
    fn server_unreached(&mut self, server: ServerIndex, session: ClientKey) {
        let machine = &mut self.servers[server];
        machine.away_until_us = self.now_us + AWAY_US;
        machine.unreachable = machine.ready == 0;
        self.tell_unreachable(server);
        let Some(approach) = self.approach_of(session) else { return };
        let (mut ask, mut tried) = (approach.waiting.ask, approach.tried);
        self.end_trial(&ask);
        ask.traits = ask.traits.without(RequestFlags::TRIAL);
        tried.servers += 1;
        let machine = &mut self.servers[server];
        machine.failures = machine.failures.max(tried.rounds.attempts() + 1);
        let retries = self.plan.upstreams[usize::from(ask.upstream)].connect_retries.max(1);
        let servers = self.groups[usize::from(ask.upstream)].servers;
        let is_over = tried.servers.is_multiple_of(servers.len() as u32);
        let delay_us = if is_over { tried.rounds.next_delay_us(ask.serial) } else { 0 };
        // Others may have found out already that none is of use.
        let mut usable =
            servers.iter().map(|server| &self.servers[server]).filter(|server| server.standing.takes_new());
        let is_known = usable.all(|server| server.failures >= retries);
        let is_hopeless = is_over && (is_known || tried.rounds.attempts() >= retries);
        let retry_us = if is_hopeless || delay_us == 0 { u64::MAX } else { self.now_us + delay_us };
        if let Some(approach) = self.approach_of(session) {
            (approach.waiting.ask, approach.tried, approach.retry_us) = (ask, tried, retry_us);
        }
        if is_hopeless {
            self.take_approach(session, None);
            self.answer_fails(ask.id, Cause::NoServer);
        } else if delay_us == 0 {
            self.ask_servers_again(session);
        } else {
            self.parked += 1;
            self.arm_session(session);
        }
    }

    /// A server is back: who waits for the next round tries at once.
    fn retry_all_approaches(&mut self) {
        if self.parked == 0 {
            return;
        }
        let now_us = self.now_us;
        let waits = |index: &ClientKey| {
            let own = self.sessions.at(*index).own.as_deref();
            own.and_then(|own| own.approach.as_deref()).is_some_and(|approach| approach.retry_us != u64::MAX)
        };
        for index in self.sessions.keys().filter(waits).collect::<Vec<_>>() {
            if let Some(approach) = self.approach_of(index) {
                approach.retry_us = now_us;
            }
            self.arm_session(index);
        }
    }

    /// The next round for what a client waits for, if that is due. False: it is not.
    pub(super) fn retry_approach(&mut self, session: ClientKey) -> bool {
        let now_us = self.now_us;
        let is_due = self.approach_of(session).is_some_and(|approach| approach.retry_us <= now_us);
        if is_due {
            self.ask_servers_again(session);
        }
        is_due
    }

    fn ask_servers_again(&mut self, session: ClientKey) {
        let Some(ConnectAttempt { waiting: Waiting { mut ask, bytes }, tried, .. }) = self.take_approach(session, None)
        else {
            return;
        };
        match self.choose(&ask) {
            Some(server) => {
                ask.server = server;
                self.approach_after(self.server_index(&ask), Waiting { ask, bytes }, tried);
            }
            None => self.answer_fails(ask.id, self.refusal(&ask)),
        }
    }

    /// A request that lost its connection, or could have none, gets another one.
    pub(super) fn approach_again(&mut self, mut ask: PendingRequest, bytes: Vec<u8>) {
        if !self.is_wanted(ask.id) {
            return;
        }
        match self.choose(&ask) {
            Some(server) => {
                ask.server = server;
                self.approach(self.server_index(&ask), Waiting { ask, bytes });
            }
            None => self.answer_fails(ask.id, self.refusal(&ask)),
        }
    }

    /// A trial of a suspended server has come to nothing.
    fn end_trial(&mut self, ask: &PendingRequest) {
        if ask.traits.has(RequestFlags::TRIAL) {
            self.trial_ended(self.server_index(ask), false);
        }
    }

    /// An answer on a connection of one client is complete.
    pub(super) fn own_answered(&mut self, index: ConnKey, server: ServerIndex) {
        let idle = self.links.at(index).entries.is_empty();
        if idle && !self.servers[server].standing.keeps_connections() {
            self.lose_link(index, Loss::Ours, UpstreamEnd::Disabled);
        }
    }

    /// Nobody wants the answer any more for which a connection is being made. False: none is.
    pub(super) fn cancel_approach(&mut self, id: ExchangeId) -> bool {
        if !self.has_private || id.worker != self.worker || !self.exchanges.holds(id.index, id.generation) {
            return false;
        }
        let session = self.exchanges.at(id.index).session;
        if !self.approach_of(session).is_some_and(|approach| approach.waiting.ask.id == id) {
            return false;
        }
        let approach = self.take_approach(session, None);
        approach.iter().for_each(|approach| self.end_trial(&approach.waiting.ask));
        true
    }

    /// A piece of the body of a request for which a connection is being made. False: none is.
    pub(super) fn body_to_approach(&mut self, id: ExchangeId, piece: &Piece<'_>, end: bool) -> bool {
        if !self.has_private || id.worker != self.worker || !self.exchanges.holds(id.index, id.generation) {
            return false;
        }
        let session = self.exchanges.at(id.index).session;
        let Some(approach) = self.approach_of(session).filter(|approach| approach.waiting.ask.id == id) else {
            return false;
        };
        let waiting = &mut approach.waiting;
        waiting.bytes.extend_from_slice(piece.bytes());
        if end {
            waiting.ask.traits = waiting.ask.traits.without(RequestFlags::STREAMING);
        }
        true
    }

    /// A client leaves: its connections end with it.
    pub(super) fn end_own(&mut self, session: ClientKey) {
        if self.sessions.at(session).own.is_none() {
            return;
        }
        self.take_approach(session, None);
        let own = self.sessions.at_mut(session).own.take().unwrap_or_default();
        for PrivateConn { index, generation, .. } in own.links {
            if self.links.holds(index, generation) {
                self.lose_link(index, Loss::Ours, UpstreamEnd::ClientGone);
            }
        }
    }

    /// A connection is not its client's any more, because it became a tunnel or ended.
    pub(super) fn disown(&mut self, owner: Owner, index: ConnKey) {
        if self.sessions.holds(owner.session, owner.generation)
            && let Some(own) = &mut self.sessions.at_mut(owner.session).own
        {
            own.forget(index);
        }
    }

    /// Ends a connection of one client that was never established.
    fn close_own(&mut self, index: ConnKey, why: UpstreamEnd) {
        let server = self.links.at(index).server;
        self.counters.upstream_closes.count(why);
        self.servers[server].stats.closes.count(why);
        self.remove_own(index);
    }

    /// Takes a connection of one client out of the table.
    pub(super) fn remove_own(&mut self, index: ConnKey) {
        let link = self.links.remove(index);
        if let Some(socket) = link.socket {
            self.actions.push_back(Action::CloseLink { socket });
        }
        if let Some(owner) = link.owner {
            self.disown(owner, index);
        }
    }
}
