//! Sends the requests that must be sent alone: when it is their turn ([`super::isolation`]), and on
//! which connection (stage schedule).
//!
//! A suspect gets one that has been idle for a while, so that its end is evidence. A request that
//! must be sent alone and finds no empty connection where no more can be made has one kept for it.
//! Called by [`super::schedule`], and at the end of the turn.

use super::isolation::Next;
use super::placing::Placing;
use super::pool::Pool;
use crate::base::keys::ServerIndex;
use crate::cause::Cause;
use crate::context::Context;
use crate::retry::poison;
use crate::upstream::connection::ConnState;
use crate::upstream::queue::Waiting;

impl Placing<'_> {
    /// Places the requests that are due ([`Isolation::begin`](super::isolation::Isolation::begin)).
    /// At the end of a turn, so that nothing is sent in the middle of other changes.
    pub(super) fn run_quarantine(&mut self, cx: &mut Context) {
        for upstream in 0..self.groups.len() {
            while let Some(next) = self.isolation.next(upstream, cx) {
                match next {
                    Next::Refused(ask) => cx.answer_fails(ask.id, Cause::Suspect),
                    Next::Goes(Waiting { ask, bytes }) => {
                        self.agenda.serve(ask.upstream);
                        self.place_second(ask, bytes, cx);
                    }
                }
            }
        }
    }
}

impl Pool {
    /// Returns the connection that is kept for one request: one that comes up soon, or else a new
    /// one, or the one that will be empty the soonest.
    pub(super) fn keep_one(&mut self, server: ServerIndex, cx: &mut Context) -> Option<usize> {
        if self.servers[server].kept.is_none()
            && !self.servers[server].positions.coming_any()
            && self.servers[server].may_grow(true)
        {
            self.make_connection(server, cx);
        }
        let soon_us = cx.now_us + poison::CRASH_US;
        let effort = |position: &usize| {
            let conn = self.conns.at(self.servers[server].conns[*position]);
            match conn.state() {
                ConnState::Connecting { .. } => Some((0, false, 0)),
                ConnState::Down { retry_us } if retry_us <= soon_us => Some((0, false, 0)),
                ConnState::Ready => {
                    let alone =
                        conn.entries.front().is_some_and(|entry| entry.ask.traits.goes_alone());
                    Some((
                        1,
                        alone || conn.reply.large || conn.wait.late || conn.reading.paused,
                        conn.entries.len(),
                    ))
                }
                _ => None,
            }
        };
        let kept = self.servers[server].kept.map(|position| position as usize);
        let all = 0..self.servers[server].conns.len();
        let chosen = kept
            .filter(|position| effort(position).is_some())
            .or_else(|| all.filter(|at| effort(at).is_some()).min_by_key(effort))?;
        if kept != Some(chosen) {
            self.servers[server].kept = Some(chosen as u32);
            for position in kept.into_iter().chain([chosen]) {
                let index = self.servers[server].conns[position];
                self.pair(index).refresh(cx);
            }
        }
        Some(chosen)
    }

    /// Gives the kept connection back to all requests, unless one waits for it.
    #[cold]
    pub(super) fn end_keeping(&mut self, server: ServerIndex, cx: &Context) {
        let machine = &mut self.servers[server];
        if machine.waiting.line(true).is_empty()
            && let Some(position) = machine.kept.take()
        {
            let index = machine.conns[position as usize];
            self.pair(index).refresh(cx);
        }
    }
}
