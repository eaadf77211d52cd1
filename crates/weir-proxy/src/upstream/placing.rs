//! Which place a request gets: one routine for what is new, what waits, what tries a suspended server and what goes alone (stage
//! schedule). They differ in which servers and connections come into question, not in how one is found.
//!
//! [`Placing`] has what requests wait in and go onto: the pool, the upstreams, what belongs to clients, who is isolated, and what is to be
//! sent. It puts a request into a line or onto a connection, and can have one made; it neither ends one nor knows what was answered. Where an
//! idle connection has to end before a request gets a place, because its server may be about to close it and no other can be made, it notes
//! that in the [`Agenda`], and whoever asked sees to that. docs/semantics.md §3, §4.

use super::agenda::{Agenda, Ending};
use super::groups::Groups;
use super::isolation::Isolation;
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
use crate::upstream::health::{TRIAL_CHOICE_US, TRIAL_PATIENCE_US};
use crate::upstream::queue::Waiting;
use crate::upstream::server::Reach;

/// How often a server is chosen while other workers' connections go away under the choice.
const CHOICES_MAX: usize = 4;

/// Where a request goes now.
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
    /// Has a connection that was found and is not good for the request: it has to end, and another one is made in its place.
    pub(super) agenda: &'a mut Agenda,
}

impl Placing<'_> {
    #[inline]
    fn view<'b>(&'b self, cx: &'b Context) -> View<'b> {
        self.groups.view(self.pool, cx)
    }

    /// Chooses the server, then what happens there. None: again, when the stale connection has ended.
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
        for _ in 0..CHOICES_MAX {
            let Some(index) = self.groups.choose(ask, self.pool, cx) else {
                return Some(Place::Refused(self.view(cx).refusal(ask)));
            };
            ask.server = index;
            let server = self.groups.server_of(ask);
            let place = self.place_here(server, ask, cx);
            if place.is_some() {
                return place;
            }
            let view = self.view(cx);
            if let Some(worker) = view.able_elsewhere(server).or_else(|| view.owner_elsewhere(server)) {
                return Some(Place::Mail(worker));
            }
            if self.pool.servers[server].is_full() {
                break;
            }
            // Another worker lost its last connection since it was asked for one: choose again, knowing that.
        }
        Some(Place::Refused(self.view(cx).why_not(ask.upstream)))
    }

    /// Servers have died of requests like this one: the next turn of the quarantine is for it.
    pub(super) fn place_suspect(&self, ask: &mut PendingRequest) -> Place {
        let group = &self.groups[usize::from(ask.upstream)];
        let any = (ask.serial % group.servers.len() as u64) as u16;
        ask.server = if ask.bound == NOBODY { any } else { ask.bound };
        if self.isolation.is_full(ask.upstream) { Place::Refused(Cause::QueueFull) } else { Place::Quarantine }
    }

    /// The client's own connection for a request, if there is one that is good for it.
    fn place_on_own(&mut self, ask: &mut PendingRequest, cx: &Context) -> Option<Place> {
        let index = self.private.conn_for(ask, cx)?;
        let conn = self.pool.conns.at(index);
        let free = conn.is_ready() && conn.reply.persist && conn.entries.is_empty();
        let machine = &self.pool.servers[conn.server];
        if !free || !machine.standing.accepts_bound() {
            return None;
        }
        // A session that is bound elsewhere goes there: the connection that is made for it takes the place of this one.
        let bound_here = ask.bound == NOBODY || ask.bound == machine.index;
        if !bound_here && (ask.traits.has(RequestFlags::BOUND) || self.view(cx).is_bound_usable(ask)) {
            return None;
        }
        ask.server = machine.index;
        self.private.touch(ask.client.slot(), index);
        Some(Place::Conn(index))
    }

    /// The place of a request that is to show whether a suspended server works again, when one is due and this may be it.
    fn place_trial(&mut self, ask: &mut PendingRequest, cx: &mut Context) -> Option<Place> {
        let group = self.groups[usize::from(ask.upstream)].servers.clone();
        let trial = PendingRequest {
            traits: ask.traits.with(RequestFlags::TRIAL, true).with(RequestFlags::ALONE, true),
            ..*ask
        };
        for server in group.iter() {
            let (standing, index) = (&self.pool.servers[server].standing, self.pool.servers[server].index);
            let due_us = self.pool.hints.trial_us(server);
            let bound_elsewhere = ask.bound != NOBODY && ask.bound != index;
            if bound_elsewhere
                || !standing.may_be_tried()
                || !may_be_trial(ask.traits, cx.now_us.saturating_sub(due_us))
                || cx.now_us < due_us
            {
                continue;
            }
            let place = self.trial_place(server, &trial, cx);
            if self.agenda.has_ends() {
                return None;
            }
            if let Some(place) = place
                && self.pool.hints.take_trial(server, due_us, cx.now_us + TRIAL_PATIENCE_US)
            {
                cx.counters.trials.add(1);
                self.pool.servers[server].stats.trials.add(1);
                *ask = PendingRequest { server: index, ..trial };
                return Some(place);
            }
        }
        None
    }

    /// A connection with nothing else on it, here or at another worker. None: not yet; one is made if need be, because a request
    /// that must not be noticed doesn't wait for it.
    fn trial_place(&mut self, server: ServerIndex, trial: &PendingRequest, cx: &mut Context) -> Option<Place> {
        if self.pool.servers[server].mode.private {
            return Some(Place::Private(server));
        }
        if let Some(position) = self.pick(server, trial, cx) {
            return Some(Place::Conn(self.pool.servers[server].conns[position]));
        }
        let machine = &self.pool.servers[server];
        if machine.ready == 0
            && let Some(worker) = self.view(cx).ready_elsewhere(server)
        {
            return Some(Place::Mail(worker));
        }
        if !self.agenda.has_ends() && !machine.positions.coming_any() && machine.may_grow(true) {
            self.pool.make_connection(server, cx);
        }
        None
    }

    /// What this worker's own connections to a server can do for a request; None: ask another worker.
    #[inline]
    pub(super) fn place_here(&mut self, server: ServerIndex, ask: &PendingRequest, cx: &mut Context) -> Option<Place> {
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
            return Some(Place::Conn(self.pool.servers[server].conns[position]));
        }
        Some(self.place_in_line(server, ask, cx))
    }

    /// In the queue of a server, if it may come up.
    #[inline]
    pub(super) fn place_in_line(&self, server: ServerIndex, ask: &PendingRequest, cx: &Context) -> Place {
        if self.pool.servers[server].ready == 0 && !self.view(cx).may_come_up(server) {
            return Place::Refused(self.view(cx).refusal(ask));
        }
        Place::Queue(server)
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

    // ---- which connection ----

    /// The position of the connection for the request that waits at a place in a line, if it may leave that.
    pub(super) fn pick_waiting(
        &mut self,
        server: ServerIndex,
        ask: &PendingRequest,
        alone: bool,
        at: usize,
        cx: &mut Context,
    ) -> Option<usize> {
        if ask.traits.has(RequestFlags::QUARANTINED) {
            return self.pick_quarantined(server, at, cx);
        }
        let picked = self.pick(server, ask, cx);
        // The one that is made anew in place of a stale one is waited for.
        if picked.is_none() && alone && !self.agenda.has_ends() { self.pick_kept(server, ask, cx) } else { picked }
    }

    /// The position of the connection that takes this request now, if there is one.
    #[inline]
    pub(super) fn pick(&mut self, server: ServerIndex, ask: &PendingRequest, cx: &mut Context) -> Option<usize> {
        loop {
            let machine = &self.pool.servers[server];
            let mut position = machine.pick(ask, |conn| self.pool.conns.at(conn).tail_client())?;
            if machine.positions.is_resting(position) && machine.keeps_apart() {
                if self.may_wait_for_rest(server, ask, cx) {
                    return None;
                }
                position = self.pool.longest_empty(server).unwrap_or(position);
            }
            let machine = &self.pool.servers[server];
            let index = machine.conns[position];
            if ask.traits.goes_alone() {
                return self.pick_fresh(server, ask, position, cx);
            }
            if !self.pool.pair(index).is_overdue(cx) {
                return Some(position);
            }
            self.pool.mark_late(index, cx);
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
        let conns = || machine.conns.iter().map(|index| self.pool.conns.at(*index));
        let several = conns().filter(|conn| conn.is_ready() && conn.history.answers > 0).nth(1).is_some();
        let resting = machine.positions.resting().map(|position| machine.conns[position]);
        let next = resting.map(|index| (self.pool.conns.at(index).rest.until_us, index)).min().filter(|_| several);
        let Some((until_us, index)) = next else { return false };
        if std::mem::replace(&mut self.pool.servers[server].rested_due_us, until_us) != until_us {
            self.pool.arm_conn(index, until_us, cx);
        }
        true
    }

    /// An idle connection for a request that goes alone, `first` if that is good. What can't be sent again is not put on one that
    /// its server may be about to close: one of those is made anew.
    fn pick_fresh(&mut self, server: ServerIndex, ask: &PendingRequest, first: usize, cx: &Context) -> Option<usize> {
        let machine = &self.pool.servers[server];
        let idle = (0..machine.conns.len()).filter(|position| machine.positions.is_empty_at(*position));
        let view = self.view(cx);
        let found = [first].into_iter().chain(idle).find(|position| view.is_fresh(machine.conns[*position], ask));
        // Where another one may be made, the request waits for that.
        if found.is_none() && !machine.positions.coming_any() && !machine.may_grow(true) {
            self.agenda.end(machine.conns[first], Ending::ours(UpstreamEnd::Rested), self.pool);
        }
        found
    }

    /// The connection for the request in quarantine that waits at a place in a server's line: an idle one that has rested. A suspect
    /// gets no other, so that its end is evidence: one is made anew for it. None: one is kept for it until it is good.
    fn pick_quarantined(&mut self, server: ServerIndex, at: usize, cx: &mut Context) -> Option<usize> {
        let machine = &self.pool.servers[server];
        let Waiting { ask, bytes } = machine.waiting.line(true).get(at)?;
        let (ask, suspect) = (*ask, self.isolation.verdict(ask, bytes, cx) != Verdict::Free);
        let rested = |position: &usize| self.pool.conns.at(machine.conns[*position]).is_rested(cx.now_us);
        let fresh = |position: &usize| self.view(cx).is_fresh(machine.conns[*position], &ask);
        let all = 0..machine.conns.len();
        let mut idle = all.filter(|position| machine.positions.is_idle(*position)).filter(fresh);
        if let Some(position) = idle.clone().find(rested).or_else(|| idle.next().filter(|_| !suspect)) {
            return Some(position);
        }
        self.take_kept(server, &ask, suspect, cx)
    }

    /// The connection that is kept for what goes alone and waits in vain, where no more can be made: once it is empty.
    fn pick_kept(&mut self, server: ServerIndex, ask: &PendingRequest, cx: &mut Context) -> Option<usize> {
        let machine = &self.pool.servers[server];
        match machine.positions.coming_any() || machine.may_grow(true) {
            true => None,
            false => self.take_kept(server, ask, false, cx),
        }
    }

    /// The kept connection, once it was seen empty. One that is not good for this request is made anew; `rests`: it has to have rested.
    fn take_kept(&mut self, server: ServerIndex, ask: &PendingRequest, rests: bool, cx: &mut Context) -> Option<usize> {
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

/// Whether a request is fit for a trial that has been due for so long.
fn may_be_trial(traits: RequestFlags, overdue_us: u64) -> bool {
    let safe = traits.has(RequestFlags::PIPELINABLE) && traits.has(RequestFlags::RETRIABLE);
    let whole = !traits.has(RequestFlags::STREAMING) && !traits.has(RequestFlags::UPGRADE);
    safe || whole && overdue_us >= TRIAL_CHOICE_US
}
