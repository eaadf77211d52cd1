//! Suspension and recovery: who judges a server, what speaks against it, and how it comes back (docs/semantics.md §6).
//!
//! One worker judges a server, so that all workers together count once: the one that owns its connection 0. The others
//! send it what they see, which is rare unless the server fails, and it tells all what it decides. Where no probes are
//! configured a suspended server comes back through a trial: after a pause one request of a client goes to it, alone on a
//! connection. When its answer is bad too, it is asked elsewhere, and the next pause is longer. So it is when the server fails
//! again soon after it was taken back: a request or a probe can go well at a server that fails one in a hundred.

use super::Upstreams;
use super::orders::NEVER_US;
use super::schedule::Place;
use crate::base::keys::{ConnKey, Key, ServerIndex};
use crate::context::Context;
use crate::cross::mail::Mail;
use crate::observe::server_event::What;
use crate::plan::AllDown;
use crate::request::pending_request::{NOBODY, PendingRequest, RequestFlags};
use crate::upstream::health::{Symptom, TRIAL_CHOICE_US, TRIAL_PATIENCE_US, calm_us, pause_us};
use crate::upstream::server_state::{Suspension, SuspensionCause};

/// How exactly it is known when a client last proved that a server works.
const PROVED_STEP_US: u64 = 50_000;

impl Upstreams {
    /// The worker that judges a server.
    pub(super) fn judge_of(&self, server: ServerIndex, cx: &Context) -> u16 {
        (server.number() % u32::from(cx.workers)) as u16
    }

    // ---- what speaks against a server ----

    /// The final answer to the oldest request of a connection has a status that health wants to know of.
    pub(super) fn on_notable_answer(&mut self, index: ConnKey, ask: &PendingRequest, status: u16, cx: &mut Context) {
        let server = self.links.at(index).server;
        let rules = &cx.plan.upstreams[usize::from(ask.upstream)].failover;
        let rule = rules.iter().position(|rule| rule.symptom.codes().is_some_and(|codes| codes.contain(status)));
        if ask.traits.has(RequestFlags::TRIAL) {
            let good = rule.is_none() && status < 500;
            self.trial_ended(server, good, cx);
            if !good {
                self.ask_elsewhere(index, cx);
            }
        } else if let Some(rule) = rule
            && self.servers[server].standing.suspension().is_none()
        {
            self.fault(server, rule as u8, cx);
        } else if ask.traits.has(RequestFlags::LIKE_PROBE) && rule.is_none() {
            self.prove(server, status, cx);
        }
    }

    /// A client got what a probe would have got.
    fn prove(&self, server: ServerIndex, status: u16, cx: &Context) {
        let health = &cx.plan.upstreams[usize::from(self.servers[server].upstream)].health;
        let good = health.as_ref().is_some_and(|health| health.expect_status.contain(status));
        // Not at each answer: other workers write to the same place.
        if good && cx.now_us >= self.hints.proved_us(server) + PROVED_STEP_US {
            self.hints.set_proved(server, cx.now_us);
        }
    }

    /// A connection with a request on it was lost through the server's doing.
    pub(super) fn note_loss(&mut self, server: ServerIndex, cx: &mut Context) {
        let rules = &cx.plan.upstreams[usize::from(self.servers[server].upstream)].failover;
        if let Some(rule) = rules.iter().position(|rule| rule.symptom == Symptom::Lost)
            && self.servers[server].standing.suspension().is_none()
        {
            self.fault(server, rule as u8, cx);
        }
    }

    /// A server did what a rule counts.
    fn fault(&mut self, server: ServerIndex, rule: u8, cx: &mut Context) {
        let judge = self.judge_of(server, cx);
        if judge == cx.worker { self.on_fault(server, rule, cx) } else { cx.post(judge, Mail::Fault { server, rule }) }
    }

    /// Counts it, as the judge.
    pub(crate) fn on_fault(&mut self, server: ServerIndex, rule: u8, cx: &mut Context) {
        let now_us = cx.now_us;
        let machine = &mut self.servers[server];
        let full = machine.windows.get_mut(usize::from(rule)).is_some_and(|window| window.note(now_us));
        if full && machine.standing.suspension().is_none() {
            let upstream = usize::from(self.servers[server].upstream);
            let symptom = cx.plan.upstreams[upstream].failover.get(usize::from(rule)).map(|rule| rule.symptom);
            let lost = symptom == Some(Symptom::Lost);
            self.suspend(
                server,
                if lost { SuspensionCause::Losses { rule } } else { SuspensionCause::Answers { rule } },
                cx,
            );
        }
    }

    // ---- what the judge decides ----

    pub(super) fn suspend(&mut self, server: ServerIndex, cause: SuspensionCause, cx: &mut Context) {
        let suspension = Suspension { cause, since_us: cx.now_us };
        let relapses = self.relapses(server, cause, cx);
        self.forget_streak(server);
        let machine = &mut self.servers[server];
        machine.trials = relapses;
        let probed = cx.plan.upstreams[usize::from(machine.upstream)].health.is_some();
        let pause_us = pause_us(relapses, self.seed ^ u64::from(server.number()));
        machine.kept_out_until_us = if relapses > 0 { cx.now_us + pause_us } else { 0 };
        self.hints.set_trial(server, if probed { NEVER_US } else { cx.now_us + pause_us });
        cx.counters.suspensions.add(1);
        self.servers[server].stats.suspensions.add(1);
        self.note_event(server, What::Suspended(cause), cx);
        self.on_suspended(server, suspension, cx);
        cx.tell_all(|| Mail::Suspended { server, suspension });
    }

    /// How often a rule has now found the same server bad again soon after it was taken back.
    fn relapses(&self, server: ServerIndex, cause: SuspensionCause, cx: &Context) -> u32 {
        let machine = &self.servers[server];
        let (SuspensionCause::Answers { rule } | SuspensionCause::Losses { rule }) = cause else { return 0 };
        let rules = &cx.plan.upstreams[usize::from(machine.upstream)].failover;
        let window_us = rules.get(usize::from(rule)).map_or(0, |rule| rule.window_us);
        let well_us = cx.now_us.saturating_sub(machine.resumed_us);
        let again = machine.resumed_us > 0 && well_us < calm_us(machine.trials, window_us);
        if again { machine.trials.saturating_add(1) } else { 0 }
    }

    /// The server works again.
    pub(super) fn resume(&mut self, server: ServerIndex, cx: &mut Context) {
        self.servers[server].resumed_us = cx.now_us;
        cx.counters.recoveries.add(1);
        self.servers[server].stats.recoveries.add(1);
        self.note_event(server, What::Recovered, cx);
        self.on_resumed(server, cx);
        cx.tell_all(|| Mail::Resumed { server });
    }

    pub(crate) fn on_suspended(&mut self, server: ServerIndex, suspension: Suspension, cx: &mut Context) {
        let machine = &mut self.servers[server];
        if machine.standing.suspend(suspension) {
            // The answer to a trial is of interest whatever it is.
            machine.notable_from = 0;
            self.groups[usize::from(machine.upstream)].suspended += 1;
            self.stand_down(server, cx);
        }
    }

    pub(crate) fn on_resumed(&mut self, server: ServerIndex, cx: &mut Context) {
        let now_us = cx.now_us;
        let machine = &mut self.servers[server];
        if machine.standing.resume() {
            let upstream = usize::from(machine.upstream);
            machine.notable_from = cx.plan.upstreams[upstream].notable_from();
            machine.recovered(now_us);
            self.groups[upstream].suspended -= 1;
            self.connect_at_once(server, cx);
        }
    }

    /// A worker that has begun anew learns what health has found.
    pub(crate) fn tell_suspensions(&mut self, worker: u16, cx: &mut Context) {
        for server in self.servers.keys().iter() {
            if let Some(suspension) = self.servers[server].standing.suspension() {
                cx.post(worker, Mail::Suspended { server, suspension });
            }
        }
    }

    // ---- trials ----

    /// The place of a request that is to show whether a suspended server works again, when one is due and this may be it.
    pub(super) fn place_trial(&mut self, ask: &mut PendingRequest, cx: &mut Context) -> Option<Place> {
        let group = self.groups[usize::from(ask.upstream)].servers;
        let trial = PendingRequest {
            traits: ask.traits.with(RequestFlags::TRIAL, true).with(RequestFlags::ALONE, true),
            ..*ask
        };
        for server in group.iter() {
            let (standing, index) = (&self.servers[server].standing, self.servers[server].index);
            let due_us = self.hints.trial_us(server);
            let bound_elsewhere = ask.bound != NOBODY && ask.bound != index;
            if bound_elsewhere
                || !standing.may_be_tried()
                || !may_be_trial(ask.traits, cx.now_us.saturating_sub(due_us))
            {
                continue;
            }
            if cx.now_us >= due_us
                && let Some(place) = self.trial_place(server, &trial, cx)
                && self.hints.take_trial(server, due_us, cx.now_us + TRIAL_PATIENCE_US)
            {
                cx.counters.trials.add(1);
                self.servers[server].stats.trials.add(1);
                *ask = PendingRequest { server: index, ..trial };
                return Some(place);
            }
        }
        None
    }

    /// A connection with nothing else on it, here or at another worker. None: not yet; one is made if need be, because a request
    /// that must not be noticed doesn't wait for it.
    fn trial_place(&mut self, server: ServerIndex, trial: &PendingRequest, cx: &mut Context) -> Option<Place> {
        if self.servers[server].private {
            return Some(Place::Private(server));
        }
        if let Some(position) = self.pick(server, trial, cx) {
            return Some(Place::Link(self.servers[server].links[position]));
        }
        if self.servers[server].ready == 0
            && let Some(worker) = self.ready_elsewhere(server, cx)
        {
            return Some(Place::Mail(worker));
        }
        let machine = &self.servers[server];
        if !machine.coming_any() && machine.may_grow(true) {
            self.make_connection(server, cx);
        }
        None
    }

    /// A trial has shown that a server works, or that it does not.
    pub(super) fn trial_ended(&mut self, server: ServerIndex, good: bool, cx: &mut Context) {
        let judge = self.judge_of(server, cx);
        if judge == cx.worker {
            self.on_trial_ended(server, good, cx);
        } else {
            cx.post(judge, Mail::TrialEnded { server, good });
        }
    }

    pub(crate) fn on_trial_ended(&mut self, server: ServerIndex, good: bool, cx: &mut Context) {
        let machine = &mut self.servers[server];
        if machine.standing.suspension().is_none() {
            return;
        }
        if good {
            self.resume(server, cx);
        } else {
            machine.trials = machine.trials.saturating_add(1);
            let pause_us = pause_us(machine.trials, self.seed ^ u64::from(server.number()));
            self.hints.set_trial(server, cx.now_us + pause_us);
        }
    }

    /// The oldest request of a connection is asked at another server, and what comes here is not used, if there is such a server
    /// and the request may be repeated.
    fn ask_elsewhere(&mut self, index: ConnKey, cx: &mut Context) {
        let link = self.links.at(index);
        let server = link.server;
        let Some(entry) = link.entries.front() else { return };
        let mut ask = entry.ask;
        if self.is_unwanted_entry(entry) || !ask.traits.has(RequestFlags::RETRIABLE) || !self.has_other(server, cx) {
            return;
        }
        let bytes = link.log.copy(entry.start, entry.len as usize);
        if let Some(entry) = self.links.at_mut(index).entries.front_mut() {
            entry.cancelled = true;
        }
        ask.traits = ask.traits.without(RequestFlags::TRIAL);
        cx.counters.resends.add(1);
        self.servers[server].stats.resends.add(1);
        self.place_again(ask, bytes, cx);
        self.dispatch_group(server, cx);
    }

    /// Whether one of this worker's connections to another server of the upstream may have a request of this one.
    pub(super) fn has_other(&self, server: ServerIndex, cx: &Context) -> bool {
        let group = self.groups[usize::from(self.servers[server].upstream)].servers;
        group.iter().any(|other| other != server && self.may_take(other, cx))
    }

    /// Whether requests go to this suspended server for want of a better one.
    pub(super) fn is_last_resort(&self, server: ServerIndex, cx: &Context) -> bool {
        let machine = &self.servers[server];
        machine.standing.may_be_tried() && cx.plan.upstreams[usize::from(machine.upstream)].all_down == AllDown::TryAll
    }
}

/// Whether a request is fit for a trial that has been due for so long.
fn may_be_trial(traits: RequestFlags, overdue_us: u64) -> bool {
    let safe = traits.has(RequestFlags::PIPELINABLE) && traits.has(RequestFlags::RETRIABLE);
    let whole = !traits.has(RequestFlags::STREAMING) && !traits.has(RequestFlags::UPGRADE);
    safe || whole && overdue_us >= TRIAL_CHOICE_US
}
