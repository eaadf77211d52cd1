//! How a request goes that has to go alone: when it is its turn ([`super::isolation`]), and on which connection (stage schedule).
//!
//! A suspect gets one that has rested, so that its end is evidence. What goes alone and finds no empty connection where no more can be
//! made has one kept for it. Called by [`super::schedule`], and at the end of the turn.

use super::Upstreams;
use super::isolation::Next;
use super::loss::Loss;
use super::pool::Pool;
use crate::base::keys::ServerIndex;
use crate::cause::Cause;
use crate::context::Context;
use crate::ending::UpstreamEnd;
use crate::request::pending_request::{PendingRequest, RequestFlags};
use crate::retry::poison::{self, Verdict};
use crate::upstream::connection::LinkState;
use crate::upstream::queue::Waiting;

impl Upstreams {
    /// Sends what is due. At the end of a turn, so that nothing is sent from the midst of other changes.
    pub(super) fn run_quarantine(&mut self, cx: &mut Context) {
        if !self.isolation.begin(cx) {
            return;
        }
        for upstream in 0..self.groups.len() {
            while let Some(next) = self.isolation.next(upstream, cx) {
                self.carry_out(next, cx);
            }
        }
    }

    fn carry_out(&mut self, next: Next, cx: &mut Context) {
        match next {
            Next::Refused(ask) => cx.answer_fails(ask.id, Cause::Suspect),
            Next::Goes(Waiting { ask, bytes }) => {
                let server = self.server_index(&ask);
                self.place_second(ask, bytes, cx);
                self.dispatch_group(server, cx);
            }
        }
    }

    /// The connection for the request in quarantine that waits at a place in a server's line: an idle one that has rested. A suspect
    /// gets no other, so that its end is evidence: one is made anew for it. None: one is kept for it until it is good.
    pub(super) fn pick_quarantined(&mut self, server: ServerIndex, at: usize, cx: &mut Context) -> Option<usize> {
        let machine = &self.pool.servers[server];
        let Waiting { ask, bytes } = machine.waiting.line(true).get(at)?;
        let (ask, suspect) = (*ask, self.isolation.verdict(ask, bytes, cx) != Verdict::Free);
        let rested = |position: &usize| self.pool.links.at(machine.links[*position]).is_rested(cx.now_us);
        let fresh = |position: &usize| self.view(cx).is_fresh(machine.links[*position], &ask);
        let mut idle = (0..machine.links.len()).filter(|position| machine.positions.is_idle(*position)).filter(fresh);
        if let Some(position) = idle.clone().find(rested).or_else(|| idle.next().filter(|_| !suspect)) {
            return Some(position);
        }
        self.take_kept(server, &ask, suspect, cx)
    }

    /// The connection that is kept for what goes alone and waits in vain, where no more can be made: once it is empty.
    pub(super) fn pick_kept(&mut self, server: ServerIndex, ask: &PendingRequest, cx: &mut Context) -> Option<usize> {
        let machine = &self.pool.servers[server];
        match machine.positions.coming_any() || machine.may_grow(true) {
            true => None,
            false => self.take_kept(server, ask, false, cx),
        }
    }

    /// The kept connection, once it was seen empty. One that is not good for this request is made anew; `rests`: it has to have rested.
    fn take_kept(&mut self, server: ServerIndex, ask: &PendingRequest, rests: bool, cx: &mut Context) -> Option<usize> {
        let position = self.pool.keep_one(server, cx)?;
        let index = self.pool.servers[server].links[position];
        let link = self.pool.links.at(index);
        if !link.is_vacant() {
            return None;
        }
        if rests && !link.is_rested(cx.now_us) || !self.view(cx).is_fresh(index, ask) {
            let quarantined = ask.traits.has(RequestFlags::QUARANTINED);
            self.lose_link(
                index,
                Loss::Ours,
                if quarantined { UpstreamEnd::Quarantine } else { UpstreamEnd::Rested },
                cx,
            );
            return None;
        }
        Some(position)
    }
}

impl Pool {
    /// The connection that is kept for one request: one that comes up soon, or else a new one, or the one that will be empty the
    /// soonest.
    fn keep_one(&mut self, server: ServerIndex, cx: &mut Context) -> Option<usize> {
        if self.servers[server].kept.is_none()
            && !self.servers[server].positions.coming_any()
            && self.servers[server].may_grow(true)
        {
            self.make_connection(server, cx);
        }
        let soon_us = cx.now_us + poison::CRASH_US;
        let effort = |position: &usize| {
            let link = self.links.at(self.servers[server].links[*position]);
            match link.state() {
                LinkState::Connecting { .. } => Some((0, false, 0)),
                LinkState::Down { retry_us } if retry_us <= soon_us => Some((0, false, 0)),
                LinkState::Ready => {
                    let alone = link.entries.front().is_some_and(|entry| entry.ask.traits.goes_alone());
                    Some((1, alone || link.reply.large || link.wait.late || link.reading.paused, link.entries.len()))
                }
                _ => None,
            }
        };
        let kept = self.servers[server].kept.map(|position| position as usize);
        let all = 0..self.servers[server].links.len();
        let chosen = kept
            .filter(|position| effort(position).is_some())
            .or_else(|| all.filter(|at| effort(at).is_some()).min_by_key(effort))?;
        if kept != Some(chosen) {
            self.servers[server].kept = Some(chosen as u32);
            kept.into_iter().chain([chosen]).for_each(|position| self.refresh_position(server, position, cx));
        }
        Some(chosen)
    }

    /// Gives the kept connection back to everybody, unless something waits for it.
    #[cold]
    pub(super) fn end_keeping(&mut self, server: ServerIndex, cx: &Context) {
        let machine = &mut self.servers[server];
        if machine.waiting.line(true).is_empty()
            && let Some(position) = machine.kept.take()
        {
            self.refresh_position(server, position as usize, cx);
        }
    }

    fn refresh_position(&mut self, server: ServerIndex, position: usize, cx: &Context) {
        let machine = &mut self.servers[server];
        machine.refresh(self.links.at_mut(machine.links[position]), cx.now_us);
    }
}
