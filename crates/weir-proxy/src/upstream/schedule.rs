//! Which server and which connection a request goes to (stages schedule and forward).

use super::Upstreams;
use super::loss::Loss;
use super::pool::Pool;
use crate::base::keys::{ConnKey, Key, ServerIndex};
use crate::cause::Cause;
use crate::context::Context;
use crate::cross::asked::{Asked, Private};
use crate::cross::mail::{Fate, Mail};
use crate::ending::UpstreamEnd;
use crate::observe::access::Placed;
use crate::request::pending_request::{ClientName, ExchangeId, NOBODY, PendingRequest, RequestFlags};
use crate::upstream::connection::UpstreamConn;
use crate::upstream::queue::Waiting;
use crate::upstream::server::Reach;

/// How often a server is chosen while other workers' connections go away under the choice.
const CHOICES_MAX: usize = 4;

/// Where a request goes now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Onto this connection.
    Link(ConnKey),
    /// Into the queue of this server.
    Queue(ServerIndex),
    /// Onto a new connection to this server, which belongs to the client or the request.
    Private(ServerIndex),
    /// To this worker.
    Mail(u16),
    /// Into the quarantine of its upstream.
    Quarantine,
    /// Nowhere.
    Refused(Cause),
}

impl Upstreams {
    /// A request was put on a connection of this worker.
    pub(super) fn note_placed(&mut self, id: ExchangeId, index: ConnKey, cx: &mut Context) {
        if !cx.logs {
            return;
        }
        let link = self.pool.links.at(index);
        let placed = Placed {
            link: self.pool.link_id(index, cx),
            server: link.server.number(),
            sent_us: cx.now_us,
            connected_us: link.contact.connected_us,
            address: link.address,
            // A tunnel has no request on its connection.
            before: (link.history.answers + link.entries.len() as u64).saturating_sub(1),
        };
        cx.post(id.worker, Mail::Placed { id, placed });
    }

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
        self.begin_private(ask.client, private);
        let place = if isolated { self.place_suspect(ask) } else { self.place(ask, cx) };
        self.put(place, *ask, write, cx)
    }

    /// The same for one that wants a tunnel.
    pub(crate) fn ask_tunnel(&mut self, ask: PendingRequest, private: Option<Private>, cx: &mut Context) -> Asked {
        self.begin_private(ask.client, private);
        let server = self.server_index(&ask);
        if !self.pool.servers[server].standing.takes_new() {
            return Asked::Refused(Cause::NoHealthyServer);
        }
        self.approach(server, Waiting { ask, bytes: Vec::new() }, cx);
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
            Place::Private(server) => self.approach(server, Waiting { ask, bytes: serialised(write) }, cx),
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
        let server = self.server_index(&ask);
        if ask.traits.has(RequestFlags::TRIAL) && self.pick(server, &ask, cx).is_none() {
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
                self.mail_back(ask, Fate::Unserved, bytes, cx);
            } else {
                self.place_again(ask, bytes.to_vec(), cx);
                self.dispatch_group(server, cx);
            }
            return;
        }
        self.pool.publish_response(server, cx);
        let place = self.place_here(server, &ask, cx).unwrap_or(Place::Refused(Cause::QueueFull));
        match self.put(place, ask, |out| out.extend_from_slice(bytes), cx) {
            Asked::Here(Some(link)) => cx.assigned(&ask, link),
            Asked::Refused(cause) => cx.answer_fails(ask.id, cause),
            Asked::Here(None) | Asked::Elsewhere { .. } => {}
        }
    }

    pub(super) fn server_index(&self, ask: &PendingRequest) -> ServerIndex {
        self.groups[usize::from(ask.upstream)].server(ask.server)
    }

    /// Servers have died of requests like this one: the next turn of the quarantine is for it.
    fn place_suspect(&mut self, ask: &mut PendingRequest) -> Place {
        let group = &self.groups[usize::from(ask.upstream)];
        let any = (ask.serial % group.servers.len() as u64) as u16;
        ask.server = if ask.bound == NOBODY { any } else { ask.bound };
        if self.isolation.is_full(ask.upstream) { Place::Refused(Cause::QueueFull) } else { Place::Quarantine }
    }

    /// Chooses the server, then what happens there.
    fn place(&mut self, ask: &mut PendingRequest, cx: &mut Context) -> Place {
        if cx.is_private(ask.upstream)
            && let Some(place) = self.place_on_own(ask, cx)
        {
            return place;
        }
        if self.groups[usize::from(ask.upstream)].suspended > 0
            && let Some(place) = self.place_trial(ask, cx)
        {
            return place;
        }
        for _ in 0..CHOICES_MAX {
            let Some(index) = self.choose(ask, cx) else { return Place::Refused(self.view(cx).refusal(ask)) };
            ask.server = index;
            let server = self.server_index(ask);
            if let Some(place) = self.place_here(server, ask, cx) {
                return place;
            }
            if let Some(worker) = self.view(cx).able_elsewhere(server).or_else(|| self.view(cx).owner_elsewhere(server))
            {
                return Place::Mail(worker);
            }
            if self.pool.servers[server].is_full() {
                break;
            }
            // Another worker lost its last connection since it was asked for one: choose again, knowing that.
        }
        Place::Refused(self.view(cx).why_not(ask.upstream))
    }

    /// What this worker's own connections to a server can do for a request; None: ask another worker.
    fn place_here(&mut self, server: ServerIndex, ask: &PendingRequest, cx: &mut Context) -> Option<Place> {
        let machine = &self.pool.servers[server];
        if machine.mode.private {
            return Some(Place::Private(server));
        }
        if machine.limits.shared == 0 {
            return None;
        }
        if machine.ready == 0 && !ask.traits.has(RequestFlags::MAILED) {
            let hopeful = self.view(cx).is_hopeful(server);
            let elsewhere =
                if hopeful { self.view(cx).ready_elsewhere(server) } else { self.view(cx).able_elsewhere(server) };
            // A connection that ends with each answer is made where it is needed.
            let own = machine.is_one_shot() && (hopeful || machine.contact.reach == Reach::Unknown);
            if let Some(other) = elsewhere.filter(|_| !own) {
                self.prepare_own(server, other, cx);
                return None;
            }
        }
        if machine.is_full() {
            return None;
        }
        // What is in quarantine needs a connection of its own kind.
        if machine.waiting.line(ask.traits.goes_alone()).is_empty()
            && !ask.traits.has(RequestFlags::QUARANTINED)
            && let Some(position) = self.pick(server, ask, cx)
        {
            return Some(Place::Link(self.pool.servers[server].links[position]));
        }
        let machine = &self.pool.servers[server];
        if machine.ready == 0 && !self.view(cx).may_come_up(server) {
            return Some(Place::Refused(self.view(cx).refusal(ask)));
        }
        Some(Place::Queue(server))
    }

    /// Another worker's connections serve what is asked here: the next requests have one of this worker's own, if the server keeps
    /// connections for more than one answer, or if the other one has used up half of its part.
    fn prepare_own(&mut self, server: ServerIndex, other: u16, cx: &mut Context) {
        let machine = &self.pool.servers[server];
        let busy = self.pool.hints.ready(server, usize::from(other)) >= machine.limits.all / 2;
        if machine.made() == 0
            && (machine.learned.lasting.is_kept() || busy && !machine.is_one_shot())
            && machine.contact.reach != Reach::Doubtful
            && machine.may_grow(false)
        {
            self.pool.make_connection(server, cx);
        }
    }

    /// The position of the connection that takes this request now, if there is one.
    pub(super) fn pick(&mut self, server: ServerIndex, ask: &PendingRequest, cx: &mut Context) -> Option<usize> {
        loop {
            let machine = &self.pool.servers[server];
            let mut position = machine.pick(ask, |link| self.pool.links.at(link).tail_client())?;
            if machine.positions.is_resting(position) && machine.keeps_apart() {
                if self.may_wait_for_rest(server, ask, cx) {
                    return None;
                }
                position = self.pool.longest_empty(server).unwrap_or(position);
            }
            let machine = &self.pool.servers[server];
            let index = machine.links[position];
            if ask.traits.goes_alone() {
                return self.pick_fresh(server, ask, position, cx);
            }
            if !self.pool.is_overdue(index, cx) {
                return Some(position);
            }
            self.mark_late(index, cx);
        }
    }

    /// Where clients are kept apart and all empty connections rest: whether the request waits for another one to be made, or for the end
    /// of a rest, whichever comes first. Not where nobody knows that the server works on more than one connection at a time.
    fn may_wait_for_rest(&mut self, server: ServerIndex, ask: &PendingRequest, cx: &mut Context) -> bool {
        let machine = &self.pool.servers[server];
        let comes = machine.positions.is_coming() || machine.may_grow(ask.traits.goes_alone());
        if !comes || !self.view(cx).is_hopeful(server) {
            return false;
        }
        let links = || machine.links.iter().map(|index| self.pool.links.at(*index));
        let several = links().filter(|link| link.is_ready() && link.history.answers > 0).nth(1).is_some();
        let resting = machine.positions.resting().map(|position| machine.links[position]);
        let next = resting.map(|index| (self.pool.links.at(index).rest.until_us, index)).min().filter(|_| several);
        let Some((until_us, index)) = next else { return false };
        if std::mem::replace(&mut self.pool.servers[server].rested_due_us, until_us) != until_us {
            self.pool.arm_link(index, until_us, cx);
        }
        true
    }

    /// An idle connection for a request that goes alone, `first` if that is good. What can't be sent again is not put on one that
    /// its server may be about to close: one of those is made anew.
    fn pick_fresh(
        &mut self,
        server: ServerIndex,
        ask: &PendingRequest,
        first: usize,
        cx: &mut Context,
    ) -> Option<usize> {
        let machine = &self.pool.servers[server];
        let idle = (0..machine.links.len()).filter(|position| machine.positions.is_empty_at(*position));
        let found =
            [first].into_iter().chain(idle).find(|position| self.view(cx).is_fresh(machine.links[*position], ask));
        // Where another one may be made, the request waits for that.
        if found.is_none() && !machine.positions.coming_any() && !machine.may_grow(true) {
            self.lose_link(machine.links[first], Loss::Ours, UpstreamEnd::Rested, cx);
        }
        found
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
        self.note_placed(ask.id, index, cx);
    }

    /// Counts it, and has its bytes sent.
    #[inline(always)]
    pub(super) fn add_entry(&mut self, index: ConnKey, ask: PendingRequest, start: u64, cx: &Context) {
        self.pool.push(index, ask, start, cx);
        self.charge_link(index);
        self.mark_link(index);
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
                let Some(waiting) = self.take_waiting(server, alone, at, cx) else { return false };
                self.isolation.enter(ask, waiting.bytes, cx);
                return true;
            }
            let quarantined = ask.traits.has(RequestFlags::QUARANTINED);
            let picked = match quarantined {
                true => self.pick_quarantined(server, at, cx),
                false => {
                    self.pick(server, &ask, cx).or_else(|| if alone { self.pick_kept(server, &ask, cx) } else { None })
                }
            };
            let position = match picked {
                Some(position) => position,
                None if quarantined => {
                    at += 1;
                    continue;
                }
                None => return false,
            };
            let link = self.pool.servers[server].links[position];
            let Some(waiting) = self.take_waiting(server, alone, at, cx) else { return false };
            let log = &mut self.pool.links.at_mut(link).log;
            let start = log.end();
            log.pending().extend_from_slice(&waiting.bytes);
            self.push_to_link(link, ask, start, cx);
            cx.assigned(&ask, self.pool.link_id(link, cx));
            return true;
        }
    }

    fn take_waiting(&mut self, server: ServerIndex, alone: bool, at: usize, cx: &Context) -> Option<Waiting> {
        let waiting = self.pool.servers[server].waiting.line_mut(alone).remove(at)?;
        cx.counters.queue_waiting.sub(1);
        Some(waiting)
    }

    /// What a connection carries from now on is charged to whom its client's request is.
    pub(super) fn charge_link(&mut self, index: ConnKey) {
        let Some(owner) = self.pool.links.at(index).owner else { return };
        if let Some(pool) = self.private.get(owner.client) {
            self.pool.links.at_mut(index).account = pool.account;
        }
    }
}

/// A request by itself.
fn serialised(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes);
    bytes
}

impl Pool {
    /// Of the connections that rest the one that has been empty for longest.
    fn longest_empty(&self, server: ServerIndex) -> Option<usize> {
        let machine = &self.servers[server];
        machine.positions.resting().min_by_key(|position| self.links.at(machine.links[*position]).history.answered_us)
    }
}

impl UpstreamConn {
    /// The client of the last request on a connection.
    fn tail_client(&self) -> Option<ClientName> {
        self.entries.back().map(|entry| entry.ask.client)
    }
}
