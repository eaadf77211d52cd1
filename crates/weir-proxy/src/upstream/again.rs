//! Requests that are sent again after a loss: counted, bounded, and given another server when
//! possible (stage schedule).
//!
//! Called by [`super::close`] for requests that a connection had not answered, by
//! [`super::connect`] for those that wait for a server that can't be reached, and by mail for those
//! that another worker has no connection for. Bounds: `forward-retries`, `retry-budget`.
//! docs/retries.md.

use super::Upstreams;
use super::cancel::queues;
use super::choose::{Placement, Purpose, Way};
use super::orders::retire;
use super::placing::Placing;
use super::private_pool::Tried;
use super::queue_timeout::watch_wait;
use crate::base::keys::ServerIndex;
use crate::base::piece::Piece;
use crate::context::Context;
use crate::cross::mail::Fate;
use crate::request::pending_request::{ClientName, ExchangeId, PendingRequest, RequestFlags};
use crate::upstream::queue::Waiting;

impl Upstreams {
    /// A request of a client here comes back, to be served elsewhere: it was with another worker,
    /// or the beginning of its response had come.
    pub(crate) fn place_back(
        &mut self,
        mut ask: PendingRequest,
        fate: Fate,
        bytes: &[u8],
        cx: &mut Context,
    ) {
        ask.traits = ask.traits.without(RequestFlags::MAILED);
        if let Err(cause) = self.groups.count_fate(&mut ask, fate, &self.pool, cx) {
            return cx.answer_fails(ask.id, cause);
        }
        self.placing().place_again(ask, bytes.to_vec(), cx);
        self.work_off(cx);
    }
}

/// How many servers of an upstream are looked at for a request that waits.
const LOOK_MAX: usize = 16;

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
        let Some(waiting) =
            found.take_if(|waiting| waiting.ask.traits.has(RequestFlags::STREAMING))
        else {
            return;
        };
        waiting.add_body(piece, end);
    }

    /// A request is sent again after its connection was lost, or because its server can't be
    /// reached: first in line. The waiting requests of its upstream are given out next.
    pub(super) fn place_again(&mut self, ask: PendingRequest, bytes: Vec<u8>, cx: &mut Context) {
        self.agenda.serve(ask.upstream);
        if cx.is_private(ask.upstream) {
            if self.private.has(ask.client.slot()) {
                self.private.approach_chosen(
                    Waiting { ask, bytes },
                    Tried::default(),
                    self.pool,
                    self.groups,
                    cx,
                );
            }
        } else if ask.traits.has(RequestFlags::QUARANTINED) {
            self.isolation.enter(ask, bytes, cx);
        } else {
            self.place_second(ask, bytes, cx);
        }
    }

    /// The same for one whose turn it is, if it must be sent alone.
    pub(super) fn place_second(
        &mut self,
        mut ask: PendingRequest,
        bytes: Vec<u8>,
        cx: &mut Context,
    ) {
        match self.groups.choose(&ask, Purpose::Again, self.pool, cx) {
            Ok(Placement { server, way: Way::Worker(worker), .. }) => {
                if ask.id.worker == cx.worker {
                    ask.server = server;
                }
                self.isolation.send_on(worker, ask, &bytes, cx);
            }
            Ok(Placement { server, way: Way::Here | Way::Private, .. }) => {
                ask.server = server;
                let server = self.groups.server_of(&ask);
                self.pool.servers[server].set_apart(&mut ask);
                self.pool.servers[server].waiting.push_front(Waiting { ask, bytes });
                cx.counters.queue_waiting.add(1);
                watch_wait(server, &ask, self.pool, cx);
            }
            Err(cause) => {
                self.isolation.leave(&ask, cx);
                cx.answer_fails(ask.id, cause);
            }
        }
    }

    /// The server can't be reached or is to get nothing more: requests that wait for it move
    /// elsewhere, or fail.
    pub(super) fn evacuate(&mut self, server: ServerIndex, cx: &mut Context) {
        let machine = &mut self.pool.servers[server];
        let waiting = machine.waiting.take_all();
        self.agenda.serve(machine.upstream);
        cx.counters.queue_waiting.sub(waiting.len() as u64);
        for Waiting { ask, bytes } in waiting.into_iter().rev() {
            self.place_again(ask, bytes, cx);
        }
    }

    /// Call it after a response of a server with `concurrency`. If no request waits for that
    /// server, it takes over one request that waits for a busy server of the same upstream. One
    /// request for each response keeps the cost constant.
    pub(super) fn relieve_others(&mut self, server: ServerIndex, cx: &mut Context) {
        let machine = &self.pool.servers[server];
        let is_limited = machine.mode.several && machine.learned.load.permits.is_some();
        if !is_limited || !machine.waiting.is_calm() || !machine.has_room() {
            return;
        }
        if self.groups.view(self.pool, cx).is_backup(server) {
            return;
        }
        let group = &self.groups[usize::from(machine.upstream)];
        let (len, index) = (group.servers.len(), usize::from(machine.index));
        let mut others = (1..len.min(LOOK_MAX)).map(|n| group.server(((index + n) % len) as u16));
        let found = others.find_map(|other| {
            let machine = &self.pool.servers[other];
            let alone = machine.waiting.oldest().filter(|_| machine.is_busy())?;
            let line = machine.waiting.line(alone);
            let at = line.next(0)?;
            line.get(at).filter(|waiting| waiting.ask.may_go_anywhere()).map(|_| (other, alone, at))
        });
        let Some((other, alone, at)) = found else { return };
        if let Some(Waiting { ask, bytes }) = self.pool.take_waiting(other, alone, at, cx) {
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
