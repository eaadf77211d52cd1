//! Puts requests in the places that were chosen for them: new requests, waiting ones, those that
//! try a suspended server and those that must be sent alone (stage schedule). [`super::choose`] and
//! [`super::pick`] determine the place and change nothing; the changes are made here.
//!
//! [`Placing`] has what requests wait in and are sent on: the pool, the upstreams, the clients' own
//! connections, the isolation, and the bytes to be sent. It puts a request into a line or onto a
//! connection, and can request a new connection; it neither ends one nor sees responses. Where an
//! idle connection has to end before a request gets a place, because its server may be about to
//! close it and no other can be made, it notes that in the [`Agenda`], and the caller does it.
//! docs/connections.md, docs/retries.md.

use super::agenda::{Agenda, Ending};
use super::choose::{Purpose, Way};
use super::groups::Groups;
use super::isolation::Isolation;
use super::load::settle_permits;
use super::pick::Pick;
use super::pool::Pool;
use super::private_pool::PrivatePools;
use super::send::Outbox;
use super::view::View;
use crate::base::keys::{ConnKey, ServerIndex};
use crate::cause::Cause;
use crate::context::Context;
use crate::ending::UpstreamEnd;
use crate::request::pending_request::{NOBODY, PendingRequest, RequestFlags};
use crate::retry::poison::Verdict;
use crate::upstream::health::TRIAL_PATIENCE_US;
use crate::upstream::queue::Waiting;
use crate::upstream::server::Reach;

/// Where a request is put now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Onto this connection.
    Conn(ConnKey),
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

/// See the module.
#[derive(Debug)]
pub(super) struct Placing<'a> {
    pub(super) pool: &'a mut Pool,
    pub(super) groups: &'a mut Groups,
    pub(super) private: &'a mut PrivatePools,
    pub(super) isolation: &'a mut Isolation,
    pub(super) outbox: &'a mut Outbox,
    /// Has a connection that was found and is not good for the request: it has to end, and another
    /// one is made in its place.
    pub(super) agenda: &'a mut Agenda,
}

impl Placing<'_> {
    #[inline]
    fn view<'b>(&'b self, cx: &'b Context) -> View<'b> {
        self.groups.view(self.pool, cx)
    }

    /// Chooses the server, then what happens there. None: call it again when the stale connection
    /// has ended.
    #[inline]
    pub(super) fn place(&mut self, ask: &mut PendingRequest, cx: &mut Context) -> Option<Place> {
        if cx.is_private(ask.upstream)
            && let Some(place) = self.place_on_own(ask, cx)
        {
            return Some(place);
        }
        if self.groups[usize::from(ask.upstream)].suspended > 0 {
            let place = self.place_trial(ask, cx);
            if place.is_some() || self.agenda.has_ends() {
                return place;
            }
        }
        let chosen = match self.groups.choose(ask, Purpose::New, self.pool, cx) {
            Ok(chosen) => chosen,
            Err(cause) => return Some(Place::Refused(cause)),
        };
        ask.server = chosen.server;
        let server = self.groups.server_of(ask);
        self.pool.servers[server].set_apart(ask);
        if self.goes_fresh(server, ask, cx) {
            return Some(Place::Private(server));
        }
        Some(self.place_at(server, chosen.way, ask, cx))
    }

    /// Servers have died of such requests: this request takes the next turn of the quarantine.
    pub(super) fn place_suspect(&self, ask: &mut PendingRequest) -> Place {
        let group = &self.groups[usize::from(ask.upstream)];
        let any = (ask.serial % group.servers.len() as u64) as u16;
        ask.server = if ask.bound == NOBODY { any } else { ask.bound };
        if self.isolation.is_full(ask.upstream) {
            Place::Refused(Cause::QueueFull)
        } else {
            Place::Quarantine
        }
    }

    /// The client's own connection for a request, if it has one that is good for it.
    fn place_on_own(&mut self, ask: &mut PendingRequest, cx: &Context) -> Option<Place> {
        let index = self.private.conn_for(ask, cx)?;
        let conn = self.pool.conns.at(index);
        let free = conn.is_ready() && conn.reply.persist && conn.entries.is_empty();
        let machine = &self.pool.servers[conn.server];
        if !free || !machine.standing.accepts_bound() {
            return None;
        }
        // A session that is bound elsewhere is served there: its new connection replaces this
        // connection.
        let bound_here = ask.bound == NOBODY || ask.bound == machine.index;
        if !bound_here
            && (ask.traits.has(RequestFlags::BOUND) || self.view(cx).is_bound_usable(ask))
        {
            return None;
        }
        ask.server = machine.index;
        self.private.touch(ask.client.slot(), index);
        Some(Place::Conn(index))
    }

    /// Returns the place of a request that is to show whether a suspended server works again, when
    /// a trial is due and may be this request.
    fn place_trial(&mut self, ask: &mut PendingRequest, cx: &mut Context) -> Option<Place> {
        let trial = PendingRequest {
            traits: ask.traits.with(RequestFlags::TRIAL, true).with(RequestFlags::ALONE, true),
            ..*ask
        };
        let mut from = 0;
        while let Ok(chosen) =
            self.view(cx).choose(&trial, Purpose::Trial { from }, None, &mut Vec::new())
        {
            let server = self.groups[usize::from(ask.upstream)].server(chosen.server);
            from = chosen.server + 1;
            let place = self.trial_place(server, chosen.way, &trial, cx);
            if self.agenda.has_ends() {
                return None;
            }
            if let Some(place) = place
                && self.pool.hints.take_trial(server, cx.now_us, cx.now_us + TRIAL_PATIENCE_US)
            {
                cx.counters.trials.add(1);
                self.pool.servers[server].stats.trials.add(1);
                *ask = PendingRequest { server: chosen.server, ..trial };
                return Some(place);
            }
            settle_permits(server, self.pool, cx);
        }
        None
    }

    /// A connection with nothing else on it, here or at another worker. None: not yet; one is made
    /// if need be, because a request that must not be noticed doesn't wait for it.
    fn trial_place(
        &mut self,
        server: ServerIndex,
        way: Way,
        trial: &PendingRequest,
        cx: &mut Context,
    ) -> Option<Place> {
        match way {
            Way::Private => return Some(Place::Private(server)),
            Way::Worker(worker) => return Some(Place::Mail(worker)),
            Way::Here => {}
        }
        if let Some(position) = self.pick(server, trial, cx) {
            return Some(Place::Conn(self.pool.servers[server].conns[position]));
        }
        let machine = &self.pool.servers[server];
        if !self.agenda.has_ends() && !machine.positions.coming_any() && machine.may_grow(true) {
            self.pool.make_connection(server, cx);
        }
        None
    }

    /// Returns where at a server a request is put that gets there by this way.
    #[inline]
    fn place_at(
        &mut self,
        server: ServerIndex,
        way: Way,
        ask: &PendingRequest,
        cx: &mut Context,
    ) -> Place {
        match way {
            Way::Here => self.place_here(server, ask, cx),
            Way::Private => Place::Private(server),
            Way::Worker(worker) => {
                self.prepare_own(server, worker, cx);
                Place::Mail(worker)
            }
        }
    }

    /// A request that came by mail is put onto this worker's own connections to a server, or
    /// nowhere.
    pub(super) fn place_mailed(
        &mut self,
        server: ServerIndex,
        ask: &mut PendingRequest,
        cx: &mut Context,
    ) -> Place {
        self.pool.servers[server].set_apart(ask);
        match self.view(cx).way(server, ask) {
            Some(way) => self.place_at(server, way, ask, cx),
            None => Place::Refused(Cause::QueueFull),
        }
    }

    /// Onto a connection of this worker, or in line for one.
    #[inline]
    fn place_here(&mut self, server: ServerIndex, ask: &PendingRequest, cx: &mut Context) -> Place {
        // A request in quarantine needs a special connection.
        let machine = &self.pool.servers[server];
        if machine.waiting.line(ask.traits.goes_alone()).is_empty()
            && !ask.traits.has(RequestFlags::QUARANTINED)
            && !machine.must_park(ask)
            && let Some(position) = self.pick(server, ask, cx)
        {
            return Place::Conn(self.pool.servers[server].conns[position]);
        }
        self.place_in_line(server, ask, cx)
    }

    /// In the queue of a server, if it may come up.
    #[inline]
    pub(super) fn place_in_line(
        &self,
        server: ServerIndex,
        ask: &PendingRequest,
        cx: &Context,
    ) -> Place {
        if self.pool.servers[server].ready == 0
            && !self.view(cx).may_come_up_for(server, ask.received_us)
        {
            return Place::Refused(self.view(cx).refusal(ask));
        }
        Place::Queue(server)
    }

    /// Another worker's connections serve the requests of this worker: later requests get one of
    /// this worker's own, if the server keeps connections for more than one response, or if the
    /// other worker has used up half of its part.
    fn prepare_own(&mut self, server: ServerIndex, other: u16, cx: &mut Context) {
        let machine = &self.pool.servers[server];
        if machine.limits.shared == 0 || machine.made() > 0 {
            return;
        }
        let busy = self.pool.hints.ready(server, usize::from(other)) >= machine.limits.all / 2;
        if (machine.learned.lasting.is_kept() || busy && !machine.is_one_shot())
            && machine.contact.reach != Reach::Doubtful
            && machine.may_grow(false)
        {
            self.pool.make_connection(server, cx);
        }
    }

    // ---- which connection ----

    /// Returns the position of the connection for the request that waits at a place in a line, if
    /// it may leave that.
    pub(super) fn pick_waiting(
        &mut self,
        server: ServerIndex,
        ask: &PendingRequest,
        alone: bool,
        at: usize,
        cx: &mut Context,
    ) -> Option<usize> {
        if ask.traits.has(RequestFlags::QUARANTINED) {
            let found = self.pick_quarantined(server, at, cx);
            return found.filter(|_| self.pool.servers[server].admits(1));
        }
        let picked = self.pick(server, ask, cx);
        let is_busy = self.pool.servers[server].is_busy();
        // The connection that replaces a stale one is waited for.
        if picked.is_none() && alone && !is_busy && !self.agenda.has_ends() {
            let found = self.pick_kept(server, ask, cx);
            found.filter(|_| self.pool.servers[server].admits(1))
        } else {
            picked
        }
    }

    /// Returns the position of the connection that takes this request now, if any does; the
    /// necessary preparations are made, or noted.
    #[inline]
    pub(super) fn pick(
        &mut self,
        server: ServerIndex,
        ask: &PendingRequest,
        cx: &mut Context,
    ) -> Option<usize> {
        loop {
            match self.view(cx).pick(server, ask) {
                Pick::At(position) => return Some(position),
                Pick::Late(index) => self.pool.mark_late(index, cx),
                Pick::Rests(index, until_us) => {
                    if std::mem::replace(&mut self.pool.servers[server].rested_due_us, until_us)
                        != until_us
                    {
                        self.pool.arm_conn(index, until_us, cx);
                    }
                    return None;
                }
                Pick::Stale(index) => {
                    self.agenda.end(index, Ending::ours(UpstreamEnd::Rested), self.pool);
                    return None;
                }
                Pick::Nothing => return None,
            }
        }
    }

    /// Returns the connection for the request in quarantine that waits at a place in a server's
    /// line. For a suspect an existing one is replaced if need be. None: one is kept for it until
    /// it is good.
    fn pick_quarantined(
        &mut self,
        server: ServerIndex,
        at: usize,
        cx: &mut Context,
    ) -> Option<usize> {
        let Waiting { ask, bytes } = self.pool.servers[server].waiting.line(true).get(at)?;
        let (ask, suspect) = (*ask, self.isolation.verdict(ask, bytes, cx) != Verdict::Free);
        let found = self.view(cx).pick_quarantined(server, &ask, suspect);
        found.or_else(|| self.take_kept(server, &ask, suspect, cx))
    }

    /// The connection that is kept for a request that must be sent alone and can't get another one,
    /// where no more can be made: once it is empty.
    fn pick_kept(
        &mut self,
        server: ServerIndex,
        ask: &PendingRequest,
        cx: &mut Context,
    ) -> Option<usize> {
        let machine = &self.pool.servers[server];
        match machine.positions.coming_any() || machine.may_grow(true) {
            true => None,
            false => self.take_kept(server, ask, false, cx),
        }
    }

    /// The kept connection, once it was seen empty. One that is not good for this request is
    /// replaced; `rests`: it must have been idle for a while.
    fn take_kept(
        &mut self,
        server: ServerIndex,
        ask: &PendingRequest,
        rests: bool,
        cx: &mut Context,
    ) -> Option<usize> {
        let position = self.pool.keep_one(server, cx)?;
        let index = self.pool.servers[server].conns[position];
        let conn = self.pool.conns.at(index);
        if !conn.is_vacant() {
            return None;
        }
        if rests && !conn.is_rested(cx.now_us) || !self.view(cx).is_fresh(index, ask) {
            let quarantined = ask.traits.has(RequestFlags::QUARANTINED);
            let why = if quarantined { UpstreamEnd::Quarantine } else { UpstreamEnd::Rested };
            self.agenda.end(index, Ending::ours(why), self.pool);
            return None;
        }
        Some(position)
    }
}
