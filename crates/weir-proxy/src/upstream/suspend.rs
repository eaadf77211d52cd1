//! Evidence against a server, and the consequences when it is suspended, comes back, or is tried
//! (docs/failover.md).
//!
//! Where no probes are configured a suspended server comes back through a trial: after a pause one
//! request of a client is sent to it, alone on a connection. When its response is bad as well, the
//! request is sent elsewhere, and the next pause is longer. [`Health`] changes the standing of a
//! server and informs the other workers; if a standing has become worse, it returns that
//! ([`Worse`]) for the owner of the requests that wait there.

use super::Upstreams;
use super::cancel::Cancelled;
use super::groups::Groups;
use super::judge::{Health, judge_of};
use super::pool::Pool;
use super::timers::Then;
use crate::base::keys::{ConnKey, ServerIndex};
use crate::context::Context;
use crate::cross::mail::{HealthNews, Mail};
use crate::cross::standing::{Suspension, SuspensionCause};
use crate::observe::server_event::What;
use crate::request::pending_request::{PendingRequest, RequestFlags};
use crate::upstream::health::Symptom;

/// A server with a standing that has become worse: requests that wait there are to leave
/// ([`Placing::stand_down`](super::placing::Placing::stand_down)).
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Worse(pub(super) ServerIndex);

impl From<Option<Worse>> for Then {
    fn from(worse: Option<Worse>) -> Then {
        worse.map_or(Then::Nothing, |Worse(server)| Then::StandDown(server))
    }
}

impl Health {
    // ---- evidence against a server ----

    /// The final response to the oldest request of a connection, which is to this server, has a
    /// status that health is interested in. Also returns whether the request is to be sent
    /// elsewhere.
    pub(super) fn on_notable_answer(
        &mut self,
        server: ServerIndex,
        ask: &PendingRequest,
        status: u16,
        pool: &mut Pool,
        groups: &mut Groups,
        cx: &mut Context,
    ) -> (Option<Worse>, bool) {
        let rules = &cx.plan.upstreams[usize::from(ask.upstream)].failover;
        let rule = rules
            .iter()
            .position(|rule| rule.symptom.codes().is_some_and(|codes| codes.contain(status)));
        if ask.traits.has(RequestFlags::TRIAL) {
            let good = rule.is_none() && status < 500;
            self.trial_ended(server, good, pool, groups, cx);
            return (None, !good);
        }
        if let Some(rule) = rule
            && pool.servers[server].standing.suspension().is_none()
        {
            return (self.fault(server, rule as u8, pool, groups, cx), false);
        }
        if ask.traits.has(RequestFlags::LIKE_PROBE) && rule.is_none() {
            self.prove(server, &cx.plan.upstreams[usize::from(ask.upstream)], status, cx.now_us);
        }
        (None, false)
    }

    /// A connection with a request on it was lost because of the server.
    pub(super) fn on_loss(
        &mut self,
        server: ServerIndex,
        pool: &mut Pool,
        groups: &mut Groups,
        cx: &mut Context,
    ) -> Option<Worse> {
        let machine = &pool.servers[server];
        let rules = &cx.plan.upstreams[usize::from(machine.upstream)].failover;
        let rule = rules.iter().position(|rule| rule.symptom == Symptom::Lost);
        let rule = rule.filter(|_| machine.standing.suspension().is_none())?;
        self.fault(server, rule as u8, pool, groups, cx)
    }

    /// A server did something that a rule counts.
    fn fault(
        &mut self,
        server: ServerIndex,
        rule: u8,
        pool: &mut Pool,
        groups: &mut Groups,
        cx: &mut Context,
    ) -> Option<Worse> {
        let judge = judge_of(server, cx);
        if judge == cx.worker {
            return self.count_fault(server, rule, pool, groups, cx);
        }
        cx.post(judge, Mail::Health { server, news: HealthNews::Fault { rule } });
        None
    }

    /// Counts it, as the judge.
    fn count_fault(
        &mut self,
        server: ServerIndex,
        rule: u8,
        pool: &mut Pool,
        groups: &mut Groups,
        cx: &mut Context,
    ) -> Option<Worse> {
        let cause = self.on_fault(server, rule, &pool.servers[server], cx)?;
        self.suspend(server, cause, pool, groups, cx)
    }

    // ---- decisions of the judge ----

    pub(super) fn suspend(
        &mut self,
        server: ServerIndex,
        cause: SuspensionCause,
        pool: &mut Pool,
        groups: &mut Groups,
        cx: &mut Context,
    ) -> Option<Worse> {
        let suspension = self.begin_suspension(server, cause, &pool.servers[server], cx);
        pool.events.note(server, What::Suspended(cause), cx);
        cx.tell_all(|| Mail::Health { server, news: HealthNews::Suspended(suspension) });
        suspended(server, suspension, pool, groups)
    }

    /// The server works again.
    pub(super) fn resume(
        &mut self,
        server: ServerIndex,
        pool: &mut Pool,
        groups: &mut Groups,
        cx: &mut Context,
    ) {
        self.end_suspension(server, &pool.servers[server], cx);
        pool.events.note(server, What::Recovered, cx);
        resumed(server, pool, groups, cx);
        cx.tell_all(|| Mail::Health { server, news: HealthNews::Resumed });
    }

    /// A trial has shown that a server works, or that it does not.
    pub(super) fn trial_ended(
        &mut self,
        server: ServerIndex,
        good: bool,
        pool: &mut Pool,
        groups: &mut Groups,
        cx: &mut Context,
    ) {
        let judge = judge_of(server, cx);
        if judge == cx.worker {
            self.count_trial(server, good, pool, groups, cx);
        } else {
            cx.post(judge, Mail::Health { server, news: HealthNews::TrialEnded { good } });
        }
    }

    /// A trial of a suspended server has failed, if this request was one.
    pub(super) fn end_trial(
        &mut self,
        ask: &PendingRequest,
        pool: &mut Pool,
        groups: &mut Groups,
        cx: &mut Context,
    ) {
        if ask.traits.has(RequestFlags::TRIAL) {
            self.trial_ended(groups.server_of(ask), false, pool, groups, cx);
        }
    }

    /// Draws the consequence, as the judge.
    fn count_trial(
        &mut self,
        server: ServerIndex,
        good: bool,
        pool: &mut Pool,
        groups: &mut Groups,
        cx: &mut Context,
    ) {
        if pool.servers[server].standing.suspension().is_none() {
            return;
        }
        if good { self.resume(server, pool, groups, cx) } else { self.on_bad_trial(server, cx) }
    }

    /// Another worker reports something about a server.
    fn on_news(
        &mut self,
        server: ServerIndex,
        news: HealthNews,
        pool: &mut Pool,
        groups: &mut Groups,
        cx: &mut Context,
    ) -> Option<Worse> {
        match news {
            HealthNews::Fault { rule } => return self.count_fault(server, rule, pool, groups, cx),
            HealthNews::TrialEnded { good } => self.count_trial(server, good, pool, groups, cx),
            HealthNews::Suspended(suspension) => {
                return suspended(server, suspension, pool, groups);
            }
            HealthNews::Resumed => resumed(server, pool, groups, cx),
        }
        None
    }
}

/// A server is suspended, by decision of its judge.
fn suspended(
    server: ServerIndex,
    suspension: Suspension,
    pool: &mut Pool,
    groups: &mut Groups,
) -> Option<Worse> {
    let machine = &mut pool.servers[server];
    if !machine.standing.suspend(suspension) {
        return None;
    }
    // The response to a trial is of interest whatever it is.
    machine.notable_from = 0;
    groups[usize::from(machine.upstream)].suspended += 1;
    Some(Worse(server))
}

/// A server is taken back, by decision of its judge.
fn resumed(server: ServerIndex, pool: &mut Pool, groups: &mut Groups, cx: &mut Context) {
    let machine = &mut pool.servers[server];
    if machine.standing.resume() {
        let upstream = usize::from(machine.upstream);
        machine.notable_from = cx.plan.upstreams[upstream].notable_from();
        machine.recovered(cx.now_us);
        groups[upstream].suspended -= 1;
        pool.connect_at_once(server, cx);
    }
}

impl Pool {
    /// A worker that has restarted learns what health has found.
    pub(crate) fn tell_suspensions(&self, worker: u16, cx: &mut Context) {
        for server in self.servers.keys().iter() {
            if let Some(suspension) = self.servers[server].standing.suspension() {
                cx.post(worker, Mail::Health { server, news: HealthNews::Suspended(suspension) });
            }
        }
    }
}

impl Upstreams {
    /// Another worker reports something about a server.
    pub(crate) fn on_health(&mut self, server: ServerIndex, news: HealthNews, cx: &mut Context) {
        let worse = self.health.on_news(server, news, &mut self.pool, &mut self.groups, cx);
        self.act(worse, cx);
    }

    /// The final response to the oldest request of a connection has a status that health is
    /// interested in.
    #[cold]
    pub(super) fn on_notable_answer(
        &mut self,
        index: ConnKey,
        ask: &PendingRequest,
        status: u16,
        cx: &mut Context,
    ) {
        let Upstreams { health, pool, groups, cancelled, .. } = self;
        let server = pool.conns.at(index).server;
        let (worse, elsewhere) = health.on_notable_answer(server, ask, status, pool, groups, cx);
        let then = if elsewhere {
            ask_elsewhere(index, pool, groups, cancelled, cx)
        } else {
            Then::Nothing
        };
        self.act(worse, cx);
        self.act(then, cx);
    }
}

/// The oldest request of a connection is sent to another server, and the response here is not used,
/// if another server is usable and the request may be repeated.
fn ask_elsewhere(
    index: ConnKey,
    pool: &mut Pool,
    groups: &Groups,
    cancelled: &Cancelled,
    cx: &Context,
) -> Then {
    let conn = pool.conns.at(index);
    let server = conn.server;
    let Some(entry) = conn.entries.front() else { return Then::Nothing };
    let mut ask = entry.ask;
    if cancelled.is_unwanted(entry)
        || !ask.traits.has(RequestFlags::RETRIABLE)
        || ask.traits.has(RequestFlags::STREAMING)
        || !groups.view(pool, cx).has_other(server)
    {
        return Then::Nothing;
    }
    let bytes = conn.log.copy(entry.start, entry.len as usize);
    if let Some(entry) = pool.conns.at_mut(index).entries.front_mut() {
        entry.cancelled = true;
    }
    ask.traits = ask.traits.without(RequestFlags::TRIAL);
    cx.counters.resends.add(1);
    pool.servers[server].stats.resends.add(1);
    Then::Move(server, vec![(ask, bytes)])
}
