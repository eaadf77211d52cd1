//! Requests whose answer nobody wants any more: clients that leave, time-outs, uploads that fail.
//!
//! Called by mail, from a client of this worker or of another one. Thousands of requests may be cancelled in one turn, so nothing is
//! searched for each: what waits is found by its name ([`crate::upstream::queue`]), and what is on a connection that its client's side
//! does not know is looked for at the end of the turn, all of it in one pass over the connections
//! ([`Upstreams::is_unwanted_entry`] knows it before).

use super::Upstreams;
use crate::base::keys::ConnKey;
use crate::context::Context;
use crate::request::pending_request::{ClientName, ExchangeId, LinkId};
use crate::upstream::connection::{LinkState, UpstreamConn};
use crate::upstream::entry::Entry;
use crate::upstream::queue::Queue;

impl Upstreams {
    /// Nobody wants the answer of this exchange any more. `hard`: a connection that carries it must end. `link`: the one that it
    /// is on, as far as its client's side knows.
    pub(crate) fn cancel_here(
        &mut self,
        id: ExchangeId,
        client: ClientName,
        hard: bool,
        link: Option<LinkId>,
        cx: &mut Context,
    ) {
        if self.cancel_approach(id, client, cx) || self.cancel_waiting(id, cx) {
            return;
        }
        match self.known_carrier(id, client, link, cx) {
            Some(index) => self.cancel_on(index, id, hard, cx),
            None => *self.cancelled.entry(id).or_default() |= hard,
        }
    }

    /// Whether nobody wants the answer to a request on a connection any more, though what was cancelled in this turn was not looked for
    /// yet.
    #[inline]
    pub(super) fn is_unwanted_entry(&self, entry: &Entry) -> bool {
        entry.cancelled || self.cancelled.contains_key(&entry.ask.id)
    }

    /// Takes a request out that waits for a connection. False: none of this name does.
    fn cancel_waiting(&mut self, id: ExchangeId, cx: &Context) -> bool {
        let found = self.queues().find_map(|queue| queue.cancel(id)).is_some();
        cx.counters.queue_waiting.sub(found.into());
        found
    }

    /// All lines in which requests wait.
    pub(super) fn queues(&mut self) -> impl Iterator<Item = &mut Queue> {
        self.pool.servers.iter_mut().flat_map(|server| server.waiting.queues()).chain(self.isolation.queues())
    }

    /// The connection that carries a request, where that is known: to its client's side, or because it is the client's own.
    fn known_carrier(&self, id: ExchangeId, client: ClientName, link: Option<LinkId>, cx: &Context) -> Option<ConnKey> {
        let named = link.filter(|link| self.pool.links.holds(link.index, link.generation)).map(|link| link.index);
        let own = self.private.get(client.slot()).filter(|_| id.worker == cx.worker);
        let own = own.map_or(&[][..], |own| &own.links);
        let mut all = named.into_iter().chain(own.iter().map(|link| link.index));
        all.find(|index| carries(self.pool.links.at(*index), id))
    }

    /// Finds what was cancelled in this turn among what connections carry.
    pub(super) fn find_cancelled(&mut self, cx: &mut Context) {
        let mut all = std::mem::take(&mut self.cancelled);
        // Its connection may have ended meanwhile.
        all.retain(|id, _| !self.cancel_waiting(*id, cx));
        let mut hard = Vec::new();
        for index in self.pool.links.keys().collect::<Vec<_>>() {
            let link = self.pool.links.at_mut(index);
            let of_tunnel = link.tunnel.peer.into_iter().filter_map(|id| Some((id, *all.get(&id)?)));
            hard.extend(of_tunnel.map(|(id, hard)| (index, id, hard)));
            for entry in link.entries.iter_mut().filter(|entry| !entry.cancelled) {
                match all.get(&entry.ask.id) {
                    Some(true) => hard.push((index, entry.ask.id, true)),
                    Some(false) => entry.cancelled = true,
                    None => {}
                }
            }
        }
        for (index, id, hard) in hard {
            self.cancel_on(index, id, hard, cx);
        }
    }

    /// The same for a request on this connection.
    fn cancel_on(&mut self, index: ConnKey, id: ExchangeId, hard: bool, cx: &mut Context) {
        let link = self.pool.links.at_mut(index);
        if link.state() == LinkState::Tunnel {
            self.leave_tunnel(index, cx);
            return;
        }
        if let Some(entry) = link.entries.iter_mut().find(|entry| entry.ask.id == id && !entry.cancelled) {
            entry.cancelled = true;
        }
        // What stands in front is answered first: its clients have nothing to do with this one.
        let in_front = self.pool.links.at(index).entries.iter().take_while(|entry| entry.ask.id != id);
        let wanted = in_front.filter(|entry| !entry.cancelled).count();
        if hard && wanted == 0 {
            // Later, because this may be called from the middle of another change.
            self.doomed.push((index, self.pool.links.generation(index)));
        }
    }
}

/// Whether a request is on this connection, or its tunnel is. One that was set aside may have it too, cancelled when it moved.
fn carries(link: &UpstreamConn, id: ExchangeId) -> bool {
    link.tunnel.peer == Some(id) || link.entries.iter().any(|entry| entry.ask.id == id && !entry.cancelled)
}
