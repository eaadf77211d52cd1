//! Suspension and recovery: who judges a server, what speaks against it, and how it comes back (docs/semantics.md §6).
//!
//! One worker judges a server, so that all workers together count once: the one that owns its connection 0. The others
//! send it what they see, which is rare unless the server fails, and it tells all what it decides. Where no probes are
//! configured a suspended server comes back through a trial: after a pause one request of a client goes to it, alone on a
//! connection. When its answer is bad too, it is asked elsewhere, and the next pause is longer. So it is when the server fails
//! again soon after it was taken back: a request or a probe can go well at a server that fails one in a hundred.

use super::Engine;
use super::orders::NEVER_US;
use super::schedule::Place;
use crate::base::keys::{ConnKey, Key, ServerIndex};
use crate::cross::mail::Mail;
use crate::observe::server_event::What;
use crate::plan::AllDown;
use crate::request::pending_request::{NOBODY, PendingRequest, RequestFlags};
use crate::upstream::health::{Symptom, TRIAL_CHOICE_US, TRIAL_PATIENCE_US, calm_us, pause_us};
use crate::upstream::server_state::{Suspension, SuspensionCause};

/// How exactly it is known when a client last proved that a server works.
const PROVED_STEP_US: u64 = 50_000;

impl Engine {
    /// The worker that judges a server.
    pub(super) fn judge_of(&self, server: ServerIndex) -> u16 {
        (server.number() % u32::from(self.workers)) as u16
    }

    // ---- what speaks against a server ----

    /// The final answer to the oldest request of a connection has a status that health wants to know of.
    pub(super) fn on_notable_answer(&mut self, index: ConnKey, ask: &PendingRequest, status: u16) {
        let server = self.links.at(index).server;
        let rules = &self.plan.upstreams[usize::from(ask.upstream)].failover;
        let rule = rules.iter().position(|rule| rule.symptom.codes().is_some_and(|codes| codes.contain(status)));
        if ask.traits.has(RequestFlags::TRIAL) {
            let good = rule.is_none() && status < 500;
            self.trial_ended(server, good);
            if !good {
                self.ask_elsewhere(index);
            }
        } else if let Some(rule) = rule
            && self.servers[server].standing.suspension().is_none()
        {
            self.fault(server, rule as u8);
        } else if ask.traits.has(RequestFlags::LIKE_PROBE) && rule.is_none() {
            self.prove(server, status);
        }
    }

    /// A client got what a probe would have got.
    fn prove(&self, server: ServerIndex, status: u16) {
        let health = &self.plan.upstreams[usize::from(self.servers[server].upstream)].health;
        let good = health.as_ref().is_some_and(|health| health.expect_status.contain(status));
        // Not at each answer: other workers write to the same place.
        if good && self.now_us >= self.hints.proved_us(server) + PROVED_STEP_US {
            self.hints.set_proved(server, self.now_us);
        }
    }

    /// A connection with a request on it was lost through the server's doing.
    pub(super) fn note_loss(&mut self, server: ServerIndex) {
        let rules = &self.plan.upstreams[usize::from(self.servers[server].upstream)].failover;
        if let Some(rule) = rules.iter().position(|rule| rule.symptom == Symptom::Lost)
            && self.servers[server].standing.suspension().is_none()
        {
            self.fault(server, rule as u8);
        }
    }

    /// A server did what a rule counts.
    fn fault(&mut self, server: ServerIndex, rule: u8) {
        let judge = self.judge_of(server);
        if judge == self.worker { self.on_fault(server, rule) } else { self.post(judge, Mail::Fault { server, rule }) }
    }

    /// Counts it, as the judge.
    pub(super) fn on_fault(&mut self, server: ServerIndex, rule: u8) {
        let now_us = self.now_us;
        let machine = &mut self.servers[server];
        let full = machine.windows.get_mut(usize::from(rule)).is_some_and(|window| window.note(now_us));
        if full && machine.standing.suspension().is_none() {
            let upstream = usize::from(self.servers[server].upstream);
            let symptom = self.plan.upstreams[upstream].failover.get(usize::from(rule)).map(|rule| rule.symptom);
            let lost = symptom == Some(Symptom::Lost);
            self.suspend(
                server,
                if lost { SuspensionCause::Losses { rule } } else { SuspensionCause::Answers { rule } },
            );
        }
    }

    // ---- what the judge decides ----

    pub(super) fn suspend(&mut self, server: ServerIndex, cause: SuspensionCause) {
        let suspension = Suspension { cause, since_us: self.now_us };
        let relapses = self.relapses(server, cause);
        self.forget_streak(server);
        let machine = &mut self.servers[server];
        machine.trials = relapses;
        let probed = self.plan.upstreams[usize::from(machine.upstream)].health.is_some();
        let pause_us = pause_us(relapses, self.seed ^ u64::from(server.number()));
        machine.kept_out_until_us = if relapses > 0 { self.now_us + pause_us } else { 0 };
        self.hints.set_trial(server, if probed { NEVER_US } else { self.now_us + pause_us });
        self.counters.suspensions.add(1);
        self.servers[server].stats.suspensions.add(1);
        self.note_event(server, What::Suspended(cause));
        self.on_suspended(server, suspension);
        self.tell_all(|| Mail::Suspended { server, suspension });
    }

    /// How often a rule has now found the same server bad again soon after it was taken back.
    fn relapses(&self, server: ServerIndex, cause: SuspensionCause) -> u32 {
        let machine = &self.servers[server];
        let (SuspensionCause::Answers { rule } | SuspensionCause::Losses { rule }) = cause else { return 0 };
        let rules = &self.plan.upstreams[usize::from(machine.upstream)].failover;
        let window_us = rules.get(usize::from(rule)).map_or(0, |rule| rule.window_us);
        let well_us = self.now_us.saturating_sub(machine.resumed_us);
        let again = machine.resumed_us > 0 && well_us < calm_us(machine.trials, window_us);
        if again { machine.trials.saturating_add(1) } else { 0 }
    }

    /// The server works again.
    pub(super) fn resume(&mut self, server: ServerIndex) {
        self.servers[server].resumed_us = self.now_us;
        self.counters.recoveries.add(1);
        self.servers[server].stats.recoveries.add(1);
        self.note_event(server, What::Recovered);
        self.on_resumed(server);
        self.tell_all(|| Mail::Resumed { server });
    }

    pub(super) fn on_suspended(&mut self, server: ServerIndex, suspension: Suspension) {
        let machine = &mut self.servers[server];
        if machine.standing.suspend(suspension) {
            // The answer to a trial is of interest whatever it is.
            machine.notable_from = 0;
            self.groups[usize::from(machine.upstream)].suspended += 1;
            self.stand_down(server);
        }
    }

    pub(super) fn on_resumed(&mut self, server: ServerIndex) {
        let now_us = self.now_us;
        let machine = &mut self.servers[server];
        if machine.standing.resume() {
            let upstream = usize::from(machine.upstream);
            machine.notable_from = self.plan.upstreams[upstream].notable_from();
            machine.recovered(now_us);
            self.groups[upstream].suspended -= 1;
            self.connect_at_once(server);
        }
    }

    /// A worker that has begun anew learns what health has found.
    pub(super) fn tell_suspensions(&mut self, worker: u16) {
        for server in self.servers.keys().iter() {
            if let Some(suspension) = self.servers[server].standing.suspension() {
                self.post(worker, Mail::Suspended { server, suspension });
            }
        }
    }

    // ---- trials ----

    /// The place of a request that is to show whether a suspended server works again, when one is due and this may be it.
    pub(super) fn place_trial(&mut self, ask: &mut PendingRequest) -> Option<Place> {
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
                || !may_be_trial(ask.traits, self.now_us.saturating_sub(due_us))
            {
                continue;
            }
            if self.now_us >= due_us
                && let Some(place) = self.trial_place(server, &trial)
                && self.hints.take_trial(server, due_us, self.now_us + TRIAL_PATIENCE_US)
            {
                self.counters.trials.add(1);
                self.servers[server].stats.trials.add(1);
                *ask = PendingRequest { server: index, ..trial };
                return Some(place);
            }
        }
        None
    }

    /// A connection with nothing else on it, here or at another worker. None: not yet; one is made if need be, because a request
    /// that must not be noticed doesn't wait for it.
    fn trial_place(&mut self, server: ServerIndex, trial: &PendingRequest) -> Option<Place> {
        if self.servers[server].private {
            return Some(Place::Private(server));
        }
        if let Some(position) = self.pick(server, trial) {
            return Some(Place::Link(self.servers[server].links[position]));
        }
        if self.servers[server].ready == 0
            && let Some(worker) = self.ready_elsewhere(server)
        {
            return Some(Place::Mail(worker));
        }
        let machine = &self.servers[server];
        if !machine.coming_any() && machine.may_grow(true) {
            self.make_connection(server);
        }
        None
    }

    /// A trial has shown that a server works, or that it does not.
    pub(super) fn trial_ended(&mut self, server: ServerIndex, good: bool) {
        let judge = self.judge_of(server);
        if judge == self.worker {
            self.on_trial_ended(server, good);
        } else {
            self.post(judge, Mail::TrialEnded { server, good });
        }
    }

    pub(super) fn on_trial_ended(&mut self, server: ServerIndex, good: bool) {
        let machine = &mut self.servers[server];
        if machine.standing.suspension().is_none() {
            return;
        }
        if good {
            self.resume(server);
        } else {
            machine.trials = machine.trials.saturating_add(1);
            let pause_us = pause_us(machine.trials, self.seed ^ u64::from(server.number()));
            self.hints.set_trial(server, self.now_us + pause_us);
        }
    }

    /// The oldest request of a connection is asked at another server, and what comes here is not used, if there is such a server
    /// and the request may be repeated.
    fn ask_elsewhere(&mut self, index: ConnKey) {
        let link = self.links.at(index);
        let server = link.server;
        let Some(entry) = link.entries.front() else { return };
        let mut ask = entry.ask;
        let lost = entry.cancelled || self.is_gone(ask.id);
        if lost || !ask.traits.has(RequestFlags::RETRIABLE) || !self.has_other(server) {
            return;
        }
        let bytes = link.log.copy(entry.start, entry.len as usize);
        if let Some(entry) = self.links.at_mut(index).entries.front_mut() {
            entry.cancelled = true;
        }
        ask.traits = ask.traits.without(RequestFlags::TRIAL);
        self.counters.resends.add(1);
        self.servers[server].stats.resends.add(1);
        self.place_again(ask, bytes);
        self.dispatch_group(server);
    }

    /// Whether one of this worker's connections to another server of the upstream may have a request of this one.
    pub(super) fn has_other(&self, server: ServerIndex) -> bool {
        let group = self.groups[usize::from(self.servers[server].upstream)].servers;
        group.iter().any(|other| other != server && self.may_take(other))
    }

    /// Whether requests go to this suspended server for want of a better one.
    pub(super) fn is_last_resort(&self, server: ServerIndex) -> bool {
        let machine = &self.servers[server];
        machine.standing.may_be_tried()
            && self.plan.upstreams[usize::from(machine.upstream)].all_down == AllDown::TryAll
    }
}

/// Whether a request is fit for a trial that has been due for so long.
fn may_be_trial(traits: RequestFlags, overdue_us: u64) -> bool {
    let safe = traits.has(RequestFlags::PIPELINABLE) && traits.has(RequestFlags::RETRIABLE);
    let whole = !traits.has(RequestFlags::STREAMING) && !traits.has(RequestFlags::UPGRADE);
    safe || whole && overdue_us >= TRIAL_CHOICE_US
}
