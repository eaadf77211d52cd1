//! Requests that go again after a loss: counted, bounded, and given another server when there is one (stage schedule).
//!
//! Called by [`super::close`] for what a connection owed, by [`super::connect`] for what waits for a server that can't be
//! reached, and by mail for what another worker has no connection for. Bounds: `forward-retries`, `retry-budget`.
//! docs/semantics.md §4.

use super::Upstreams;
use super::cancel::queues;
use super::groups::Groups;
use super::orders::retire;
use super::placing::Placing;
use super::pool::Pool;
use super::private_pool::Tried;
use super::view::View;
use crate::base::keys::ServerIndex;
use crate::base::piece::Piece;
use crate::cause::Cause;
use crate::context::Context;
use crate::cross::mail::Fate;
use crate::request::pending_request::{ClientName, ExchangeId, NOBODY, PendingRequest, RequestFlags};
use crate::upstream::queue::Waiting;

/// Where a request goes again: the server within its upstream, and the worker whose connections it takes.
#[derive(Clone, Copy)]
struct Second {
    server: u16,
    /// None: this one.
    worker: Option<u16>,
}

impl Upstreams {
    /// A request of a client here comes back, to be served elsewhere: it was with another worker, or the beginning of its answer had come.
    pub(crate) fn place_back(&mut self, mut ask: PendingRequest, fate: Fate, bytes: &[u8], cx: &mut Context) {
        ask.traits = ask.traits.without(RequestFlags::MAILED);
        if let Err(cause) = self.groups.count_fate(&mut ask, fate, &self.pool, cx) {
            return cx.answer_fails(ask.id, cause);
        }
        self.placing().place_again(ask, bytes.to_vec(), cx);
        self.work_off(cx);
    }
}

impl Placing<'_> {
    /// A piece of the body of a request that lost its connection and waits for another.
    pub(super) fn body_to_waiting(
        &mut self,
        id: ExchangeId,
        client: ClientName,
        piece: &Piece<'_>,
        end: bool,
        cx: &Context,
    ) {
        if self.private.body(id, client, piece, end, cx) {
            return;
        }
        let mut found = queues(self.pool, self.isolation).find_map(|queue| queue.find_mut(id));
        let Some(waiting) = found.take_if(|waiting| waiting.ask.traits.has(RequestFlags::STREAMING)) else { return };
        waiting.add_body(piece, end);
    }

    /// A request goes again after its connection was lost, or its server can't be reached: first in line. What waits in its upstream is
    /// given out next.
    pub(super) fn place_again(&mut self, ask: PendingRequest, bytes: Vec<u8>, cx: &mut Context) {
        self.agenda.serve(ask.upstream);
        if cx.is_private(ask.upstream) {
            if self.private.has(ask.client.slot()) {
                self.private.approach_chosen(Waiting { ask, bytes }, Tried::default(), self.pool, self.groups, cx);
            }
        } else if ask.traits.has(RequestFlags::QUARANTINED) {
            self.isolation.enter(ask, bytes, cx);
        } else {
            self.place_second(ask, bytes, cx);
        }
    }

    /// The same for one whose turn it is, if it has to go alone.
    pub(super) fn place_second(&mut self, mut ask: PendingRequest, bytes: Vec<u8>, cx: &mut Context) {
        match self.groups.second_place(&ask, self.pool, cx) {
            Ok(Second { server, worker: Some(worker) }) => {
                if ask.id.worker == cx.worker {
                    ask.server = server;
                }
                self.isolation.send_on(worker, ask, &bytes, cx);
            }
            Ok(Second { server, worker: None }) => {
                ask.server = server;
                let server = self.groups.server_of(&ask);
                self.pool.servers[server].waiting.push_front(Waiting { ask, bytes });
                cx.counters.queue_waiting.add(1);
            }
            Err(cause) => {
                self.isolation.leave(&ask, cx);
                cx.answer_fails(ask.id, cause);
            }
        }
    }

    /// The server can't be reached or is to get nothing more: what waits for it goes elsewhere, or fails.
    pub(super) fn evacuate(&mut self, server: ServerIndex, cx: &mut Context) {
        let machine = &mut self.pool.servers[server];
        let waiting = machine.waiting.take_all();
        self.agenda.serve(machine.upstream);
        cx.counters.queue_waiting.sub(waiting.len() as u64);
        for Waiting { ask, bytes } in waiting.into_iter().rev() {
            self.place_again(ask, bytes, cx);
        }
    }

    /// Draws the consequences of a standing that has become worse.
    pub(super) fn stand_down(&mut self, server: ServerIndex, cx: &mut Context) {
        let machine = &self.pool.servers[server];
        if !machine.standing.keeps_waiting() && !machine.waiting.is_empty() {
            self.evacuate(server, cx);
        }
        retire(server, self.pool, self.agenda, cx);
    }
}

impl Groups {
    /// Where a request goes again.
    fn second_place(&mut self, ask: &PendingRequest, pool: &mut Pool, cx: &Context) -> Result<Second, Cause> {
        let view = self.view(pool, cx);
        if view.stays_bound(ask) {
            return view.second_place_of_bound(ask);
        }
        let mut order = std::mem::take(&mut self.order);
        let strictly = self.order_again(ask, &mut order, pool, cx);
        let found = self.view(pool, cx).second_place_among(ask, &order, strictly);
        self.order = order;
        if let (Ok(second), Some(balance)) = (&found, &mut self.balances[usize::from(ask.upstream)]) {
            balance.note(usize::from(second.server));
        }
        found
    }
}

impl View<'_> {
    /// The first of these servers that takes requests, here or, unless the order is strict, after all that do so here, at another
    /// worker; else the same one, and if that may keep nothing, one that may come up; a suspended one rather than to wait.
    fn second_place_among(&self, ask: &PendingRequest, order: &[usize], strictly: bool) -> Result<Second, Cause> {
        let (members, old) = (&self.groups[usize::from(ask.upstream)].servers, usize::from(ask.server));
        let here = |index: usize| Second { server: index as u16, worker: None };
        let at_once = if strictly { 1 } else { order.len().max(1) };
        if let Some(found) = order.chunks(at_once).find_map(|some| self.second_up(ask, some)) {
            return Ok(found);
        }
        let machine = &self.servers[members.at(old)];
        let stays = machine.standing.keeps_waiting();
        let same = if stays { self.same_elsewhere(ask) } else { None };
        let is_up = self.able_elsewhere(members.at(old)).is_some();
        if is_up && let Some(found) = same {
            return Ok(found);
        }
        let order = order.iter().copied();
        if !stays && let Some(found) = self.second_awaited(ask, order.clone()) {
            return Ok(found);
        }
        if machine.ready == 0
            && !self.is_hopeful(members.at(old))
            && let Some(found) = self.second_burdened(ask, order)
        {
            return Ok(found);
        }
        if let Some(found) = same {
            return Ok(found);
        }
        let may_wait = machine.limits.shared > 0 && (machine.ready > 0 || self.may_come_up(members.at(old)));
        if may_wait { Ok(here(old)) } else { Err(self.why_not(ask.upstream)) }
    }

    /// The first of these servers that takes requests and may come up, here or at the worker that owns its connections.
    fn second_awaited(&self, ask: &PendingRequest, mut among: impl Iterator<Item = usize> + Clone) -> Option<Second> {
        let members = &self.groups[usize::from(ask.upstream)].servers;
        if let Some(index) = among.clone().find(|index| self.may_await(members.at(*index))) {
            return Some(Second { server: index as u16, worker: None });
        }
        if !self.may_cross(ask) {
            return None;
        }
        among.find_map(|index| {
            let server = members.at(index);
            let worker = self.owner_elsewhere(server).filter(|_| self.servers[server].standing.takes_new())?;
            Some(Second { server: index as u16, worker: Some(worker) })
        })
    }

    /// The same server for a session that is bound to it: on this worker's connections, or on another's.
    fn second_place_of_bound(&self, ask: &PendingRequest) -> Result<Second, Cause> {
        let server = self.server_index(ask);
        let machine = &self.servers[server];
        let here = Second { server: ask.server, worker: None };
        if !machine.standing.accepts_bound() {
            return Err(self.refusal(ask));
        }
        if machine.ready > 0 || self.is_hopeful(server) {
            return Ok(here);
        }
        let elsewhere = if machine.standing.keeps_waiting() { self.same_elsewhere(ask) } else { None };
        let waits = machine.limits.shared > 0 && self.may_come_up(server);
        elsewhere.or(waits.then_some(here)).ok_or_else(|| self.refusal(ask))
    }

    /// Whether one of this worker's own connections to a suspended server may have what nobody else can take.
    fn may_be_burdened(&self, server: ServerIndex) -> bool {
        let here = &self.servers[server];
        self.is_last_resort(server) && here.ready > 0 && !here.is_full()
    }

    /// The first of these servers that takes requests on connections of this worker, or of another.
    fn second_up(&self, ask: &PendingRequest, among: &[usize]) -> Option<Second> {
        let members = &self.groups[usize::from(ask.upstream)].servers;
        let mut here = among.iter().copied().filter(|index| self.may_take(members.at(*index)));
        let free = here
            .clone()
            .find(|index| !self.servers[members.at(*index)].is_held() && !self.is_backup(members.at(*index)));
        if let Some(index) = free.or_else(|| here.next()) {
            return Some(Second { server: index as u16, worker: None });
        }
        if !self.may_cross(ask) {
            return None;
        }
        let takes = |index: &&usize| self.servers[members.at(**index)].standing.takes_new();
        among.iter().filter(takes).find_map(|index| {
            let worker = self.able_elsewhere(members.at(*index))?;
            Some(Second { server: *index as u16, worker: Some(worker) })
        })
    }

    /// A suspended one of these servers, where such may have what nobody else can take: on connections of this worker, or of another.
    fn second_burdened(&self, ask: &PendingRequest, mut among: impl Iterator<Item = usize> + Clone) -> Option<Second> {
        let members = &self.groups[usize::from(ask.upstream)].servers;
        if let Some(index) = among.clone().find(|index| self.may_be_burdened(members.at(*index))) {
            return Some(Second { server: index as u16, worker: None });
        }
        if !self.may_cross(ask) {
            return None;
        }
        among.find_map(|index| {
            let worker = self.ready_elsewhere(members.at(index)).filter(|_| self.is_last_resort(members.at(index)))?;
            Some(Second { server: index as u16, worker: Some(worker) })
        })
    }

    /// Another worker that has connections to the server of a request, or owns them, when it can't be reached from here.
    fn same_elsewhere(&self, ask: &PendingRequest) -> Option<Second> {
        let server = self.server_index(ask);
        let machine = &self.servers[server];
        if !self.may_cross(ask) || machine.limits.shared > 0 && !machine.contact.unreachable {
            return None;
        }
        let worker = self.able_elsewhere(server).or_else(|| self.owner_elsewhere(server))?;
        Some(Second { server: ask.server, worker: Some(worker) })
    }

    /// Whether a request may go to another worker: not when the rest of its body arrives here, where it would be too late.
    fn may_cross(&self, ask: &PendingRequest) -> bool {
        !ask.traits.has(RequestFlags::STREAMING) || ask.id.worker == self.cx.worker
    }

    /// Whether a request that goes again stays with the server to which it is bound. One that lost two connections there is
    /// better asked elsewhere, if it may be.
    pub(super) fn stays_bound(&self, ask: &PendingRequest) -> bool {
        let tied =
            ask.traits.has(RequestFlags::BOUND) || ask.tries < 2 && ask.bound != NOBODY && self.is_bound_usable(ask);
        tied && ask.bound == ask.server
    }
}
