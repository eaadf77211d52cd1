//! Which server and which connection a request goes to (stages schedule and forward).

use super::Upstreams;
use super::loss::Loss;
use super::placing::{Place, Placing};
use super::pool::Pool;
use super::private_pool::Tried;
use crate::base::keys::{ConnKey, Key, ServerIndex};
use crate::cause::Cause;
use crate::context::Context;
use crate::cross::asked::{Asked, Private};
use crate::cross::mail::{Fate, Mail};
use crate::ending::UpstreamEnd;
use crate::observe::access::Placed;
use crate::request::pending_request::{ClientName, ExchangeId, PendingRequest, RequestFlags};
use crate::upstream::connection::UpstreamConn;
use crate::upstream::queue::Waiting;

impl Upstreams {
    /// A request of a client of this worker, for which a server is chosen. `isolated`: servers have died of requests like it. `private`: its client's connections are
    /// its own.
    pub(crate) fn ask(
        &mut self,
        ask: &mut PendingRequest,
        isolated: bool,
        private: Option<Private>,
        write: impl FnOnce(&mut Vec<u8>),
        cx: &mut Context,
    ) -> Asked {
        self.private.begin(ask.client, private);
        let place = if isolated { self.placing().place_suspect(ask) } else { self.place(ask, cx) };
        self.put(place, *ask, write, cx)
    }

    /// The same for one that wants a tunnel.
    pub(crate) fn ask_tunnel(&mut self, ask: PendingRequest, private: Option<Private>, cx: &mut Context) -> Asked {
        self.private.begin(ask.client, private);
        let server = self.groups.server_of(&ask);
        if !self.pool.servers[server].standing.takes_new() {
            return Asked::Refused(Cause::NoHealthyServer);
        }
        self.private.approach(server, Waiting { ask, bytes: Vec::new() }, Tried::default(), &mut self.pool, cx);
        Asked::Here(None)
    }

    /// Serialises a request to where it goes.
    fn put(&mut self, place: Place, ask: PendingRequest, write: impl FnOnce(&mut Vec<u8>), cx: &mut Context) -> Asked {
        match place {
            Place::Link(link) => {
                let log = &mut self.pool.links.at_mut(link).log;
                let start = log.end();
                write(log.pending());
                self.push_to_link(link, ask, start, cx);
                return Asked::Here(Some(self.pool.link_id(link, cx)));
            }
            Place::Queue(server) => {
                self.pool.servers[server].waiting.push_back(Waiting { ask, bytes: serialised(write) });
                cx.counters.queue_waiting.add(1);
                self.dispatch(server, cx);
            }
            Place::Private(server) => {
                let waiting = Waiting { ask, bytes: serialised(write) };
                self.private.approach(server, waiting, Tried::default(), &mut self.pool, cx);
            }
            Place::Mail(worker) => {
                let post = &mut cx.posts[usize::from(worker)];
                let start = post.bytes.len();
                write(&mut post.bytes);
                let bytes = start..post.bytes.len();
                cx.post(worker, Mail::Ask { ask, bytes: bytes.clone() });
                return Asked::Elsewhere { worker, bytes };
            }
            Place::Quarantine => self.isolation.enter(ask, serialised(write), cx),
            Place::Refused(cause) => return Asked::Refused(cause),
        }
        Asked::Here(None)
    }

    /// A request that came by mail: it stays with this worker's connections.
    pub(crate) fn accept_mailed(&mut self, mut ask: PendingRequest, bytes: &[u8], cx: &mut Context) {
        ask.traits = ask.traits.with(RequestFlags::MAILED, true);
        let server = self.groups.server_of(&ask);
        if ask.traits.has(RequestFlags::TRIAL) && self.pick(cx, |it, cx| it.pick(server, &ask, cx)).is_none() {
            // Another time: a request that must not be noticed doesn't wait for a connection to a server in doubt.
            ask.traits = ask.traits.without(RequestFlags::TRIAL);
        }
        let machine = &self.pool.servers[server];
        let unwanted = !machine.standing.keeps_waiting() && !ask.traits.has(RequestFlags::TRIAL);
        let gone = machine.ready == 0 && !machine.is_full() && !self.view(cx).may_come_up(server);
        let returns = gone && !ask.traits.has(RequestFlags::RETURNED);
        if returns || unwanted && self.view(cx).has_other(server) {
            // Its asker did not know yet.
            ask.traits = ask.traits.with(RequestFlags::RETURNED, gone);
            if ask.traits.has(RequestFlags::QUARANTINED) {
                self.isolation.send_home(ask, Fate::Unserved, bytes, cx);
            } else {
                self.place_again(ask, bytes.to_vec(), cx);
                self.dispatch_group(server, cx);
            }
            return;
        }
        self.pool.publish_response(server, cx);
        let place = self.place_at(server, &ask, cx).unwrap_or(Place::Refused(Cause::QueueFull));
        match self.put(place, ask, |out| out.extend_from_slice(bytes), cx) {
            Asked::Here(Some(link)) => cx.assigned(&ask, link),
            Asked::Refused(cause) => cx.answer_fails(ask.id, cause),
            Asked::Here(None) | Asked::Elsewhere { .. } => {}
        }
    }

    /// What a request gets a place by.
    #[inline]
    fn placing(&mut self) -> Placing<'_> {
        let Upstreams { pool, groups, private, isolation, .. } = self;
        Placing { pool, groups, private, isolation, stale: None }
    }

    /// Chooses the server, then what happens there. Each time round a connection has ended.
    #[inline]
    fn place(&mut self, ask: &mut PendingRequest, cx: &mut Context) -> Place {
        loop {
            let mut placing = self.placing();
            let (place, stale) = (placing.place(ask, cx), placing.stale);
            match (self.end_stale(stale, cx), place) {
                (true, Some(Place::Queue(server))) => return self.placing().place_in_line(server, ask, cx),
                (_, Some(place)) => return place,
                (true, None) => {}
                (false, None) => return Place::Refused(Cause::NoServer),
            }
        }
    }

    /// The same where the server is known. None: its connections are another worker's, or it is full.
    fn place_at(&mut self, server: ServerIndex, ask: &PendingRequest, cx: &mut Context) -> Option<Place> {
        let mut placing = self.placing();
        let (place, stale) = (placing.place_here(server, ask, cx), placing.stale);
        if self.end_stale(stale, cx) && place == Some(Place::Queue(server)) {
            return Some(self.placing().place_in_line(server, ask, cx));
        }
        place
    }

    /// What is found so, after which a connection that is not good any more ends.
    fn pick(
        &mut self,
        cx: &mut Context,
        find: impl FnOnce(&mut Placing<'_>, &mut Context) -> Option<usize>,
    ) -> Option<usize> {
        let mut placing = self.placing();
        let (found, stale) = (find(&mut placing, cx), placing.stale);
        self.end_stale(stale, cx);
        found
    }

    /// Ends a connection that is not good for a request any more, if there is one.
    #[inline]
    fn end_stale(&mut self, stale: Option<(ConnKey, UpstreamEnd)>, cx: &mut Context) -> bool {
        if let Some((index, why)) = stale {
            self.lose_link(index, Loss::Ours, why, cx);
        }
        stale.is_some()
    }

    /// Notes a request on a connection whose log already has its bytes from `start` on.
    pub(super) fn push_to_link(&mut self, index: ConnKey, ask: PendingRequest, start: u64, cx: &mut Context) {
        self.add_entry(index, ask, start, cx);
        let link = self.pool.links.at(index);
        if link.entries.len() == 2 || self.pool.servers[link.server].watched {
            self.pool.watch_late(index, cx);
        }
        let link = self.pool.links.at(index);
        if link.history.answers == 0 && link.entries.len() == 1 && link.owner.is_none() {
            self.watch_first(index, cx);
        }
        self.groups[usize::from(ask.upstream)].budget.on_sent(ask.tries == 0);
        self.pool.note_placed(ask.id, index, cx);
    }

    /// Counts it, and has its bytes sent.
    #[inline(always)]
    pub(super) fn add_entry(&mut self, index: ConnKey, ask: PendingRequest, start: u64, cx: &Context) {
        self.pool.push(index, ask, start, cx);
        let link = self.pool.links.at_mut(index);
        self.private.charge(link);
        self.outbox.mark(index, link);
    }

    /// Gives waiting requests to connections as far as there is room, and has more made for the others.
    pub(super) fn dispatch(&mut self, server: ServerIndex, cx: &mut Context) {
        if self.pool.servers[server].kept.is_some() {
            self.pool.end_keeping(server, cx);
        }
        // The one that has waited for longer has the first choice.
        while let Some(alone) = self.pool.servers[server].waiting.oldest() {
            if !self.dispatch_one(server, alone, cx) && !self.dispatch_one(server, !alone, cx) {
                break;
            }
        }
        self.pool.grow(server, cx);
    }

    /// Gives the next request of a line to a connection, or away. False: it has to wait. Only what is in quarantine may wait while
    /// others of its line go on.
    fn dispatch_one(&mut self, server: ServerIndex, alone: bool, cx: &mut Context) -> bool {
        let mut at = 0;
        loop {
            let waiting = self.pool.servers[server].waiting.line(alone);
            at = waiting.next(at).unwrap_or(at);
            let Some(next) = waiting.get(at) else { return false };
            let ask = next.ask;
            if self.isolation.wants(&ask, &next.bytes, cx) {
                let Some(waiting) = self.pool.take_waiting(server, alone, at, cx) else { return false };
                self.isolation.enter(ask, waiting.bytes, cx);
                return true;
            }
            let quarantined = ask.traits.has(RequestFlags::QUARANTINED);
            let picked = self.pick(cx, |it, cx| it.pick_waiting(server, &ask, alone, at, cx));
            let position = match picked {
                Some(position) => position,
                None if quarantined => {
                    at += 1;
                    continue;
                }
                None => return false,
            };
            let link = self.pool.servers[server].links[position];
            let Some(waiting) = self.pool.take_waiting(server, alone, at, cx) else { return false };
            self.send_waiting(link, waiting, cx);
            return true;
        }
    }

    /// Puts a request that has waited on its connection.
    pub(super) fn send_waiting(&mut self, index: ConnKey, waiting: Waiting, cx: &mut Context) {
        let Waiting { ask, bytes } = waiting;
        let log = &mut self.pool.links.at_mut(index).log;
        let start = log.end();
        log.pending().extend_from_slice(&bytes);
        self.push_to_link(index, ask, start, cx);
        cx.assigned(&ask, self.pool.link_id(index, cx));
    }
}

/// A request by itself.
fn serialised(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes);
    bytes
}

impl Pool {
    /// Takes a request from its place in a line.
    #[inline]
    fn take_waiting(&mut self, server: ServerIndex, alone: bool, at: usize, cx: &Context) -> Option<Waiting> {
        let waiting = self.servers[server].waiting.line_mut(alone).remove(at)?;
        cx.counters.queue_waiting.sub(1);
        Some(waiting)
    }

    /// A request was put on a connection of this worker.
    #[inline]
    pub(super) fn note_placed(&self, id: ExchangeId, index: ConnKey, cx: &mut Context) {
        if !cx.logs {
            return;
        }
        let link = self.links.at(index);
        let placed = Placed {
            link: self.link_id(index, cx),
            server: link.server.number(),
            sent_us: cx.now_us,
            connected_us: link.contact.connected_us,
            address: link.address,
            // A tunnel has no request on its connection.
            before: (link.history.answers + link.entries.len() as u64).saturating_sub(1),
        };
        cx.post(id.worker, Mail::Placed { id, placed });
    }

    /// Of the connections that rest the one that has been empty for longest.
    pub(super) fn longest_empty(&self, server: ServerIndex) -> Option<usize> {
        let machine = &self.servers[server];
        machine.positions.resting().min_by_key(|position| self.links.at(machine.links[*position]).history.answered_us)
    }
}

impl UpstreamConn {
    /// The client of the last request on a connection.
    pub(super) fn tail_client(&self) -> Option<ClientName> {
        self.entries.back().map(|entry| entry.ask.client)
    }
}
