//! Suspension and recovery carried out, as health decided ([`super::judge`]): what comes of it for connections and for what waits, and how
//! a server is tried (docs/semantics.md §6).
//!
//! Where no probes are configured a suspended server comes back through a trial: after a pause one request of a client goes to it, alone
//! on a connection. When its answer is bad too, it is asked elsewhere, and the next pause is longer.

use super::Upstreams;
use super::judge::judge_of;
use crate::base::keys::{ConnKey, ServerIndex};
use crate::context::Context;
use crate::cross::mail::Mail;
use crate::observe::server_event::What;
use crate::request::pending_request::{PendingRequest, RequestFlags};
use crate::upstream::health::Symptom;
use crate::upstream::server_state::{Suspension, SuspensionCause};

impl Upstreams {
    // ---- what speaks against a server ----

    /// The final answer to the oldest request of a connection has a status that health wants to know of.
    pub(super) fn on_notable_answer(&mut self, index: ConnKey, ask: &PendingRequest, status: u16, cx: &mut Context) {
        let server = self.pool.links.at(index).server;
        let rules = &cx.plan.upstreams[usize::from(ask.upstream)].failover;
        let rule = rules.iter().position(|rule| rule.symptom.codes().is_some_and(|codes| codes.contain(status)));
        if ask.traits.has(RequestFlags::TRIAL) {
            let good = rule.is_none() && status < 500;
            self.trial_ended(server, good, cx);
            if !good {
                self.ask_elsewhere(index, cx);
            }
        } else if let Some(rule) = rule
            && self.pool.servers[server].standing.suspension().is_none()
        {
            self.fault(server, rule as u8, cx);
        } else if ask.traits.has(RequestFlags::LIKE_PROBE) && rule.is_none() {
            self.health.prove(server, &cx.plan.upstreams[usize::from(ask.upstream)], status, cx.now_us);
        }
    }

    /// A connection with a request on it was lost through the server's doing.
    pub(super) fn note_loss(&mut self, server: ServerIndex, cx: &mut Context) {
        let rules = &cx.plan.upstreams[usize::from(self.pool.servers[server].upstream)].failover;
        if let Some(rule) = rules.iter().position(|rule| rule.symptom == Symptom::Lost)
            && self.pool.servers[server].standing.suspension().is_none()
        {
            self.fault(server, rule as u8, cx);
        }
    }

    /// A server did what a rule counts.
    fn fault(&mut self, server: ServerIndex, rule: u8, cx: &mut Context) {
        let judge = judge_of(server, cx);
        if judge == cx.worker { self.on_fault(server, rule, cx) } else { cx.post(judge, Mail::Fault { server, rule }) }
    }

    /// Counts it, as the judge.
    pub(crate) fn on_fault(&mut self, server: ServerIndex, rule: u8, cx: &mut Context) {
        if let Some(cause) = self.health.on_fault(server, rule, &self.pool.servers[server], cx) {
            self.suspend(server, cause, cx);
        }
    }

    // ---- what the judge decided ----

    pub(super) fn suspend(&mut self, server: ServerIndex, cause: SuspensionCause, cx: &mut Context) {
        let suspension = self.health.suspend(server, cause, &self.pool.servers[server], cx);
        self.pool.events.note(server, What::Suspended(cause), cx);
        self.on_suspended(server, suspension, cx);
        cx.tell_all(|| Mail::Suspended { server, suspension });
    }

    /// The server works again.
    pub(super) fn resume(&mut self, server: ServerIndex, cx: &mut Context) {
        self.health.resume(server, &self.pool.servers[server], cx);
        self.pool.events.note(server, What::Recovered, cx);
        self.on_resumed(server, cx);
        cx.tell_all(|| Mail::Resumed { server });
    }

    pub(crate) fn on_suspended(&mut self, server: ServerIndex, suspension: Suspension, cx: &mut Context) {
        let machine = &mut self.pool.servers[server];
        if machine.standing.suspend(suspension) {
            // The answer to a trial is of interest whatever it is.
            machine.notable_from = 0;
            self.groups[usize::from(machine.upstream)].suspended += 1;
            self.stand_down(server, cx);
        }
    }

    pub(crate) fn on_resumed(&mut self, server: ServerIndex, cx: &mut Context) {
        let now_us = cx.now_us;
        let machine = &mut self.pool.servers[server];
        if machine.standing.resume() {
            let upstream = usize::from(machine.upstream);
            machine.notable_from = cx.plan.upstreams[upstream].notable_from();
            machine.recovered(now_us);
            self.groups[upstream].suspended -= 1;
            self.pool.connect_at_once(server, cx);
        }
    }

    /// A worker that has begun anew learns what health has found.
    pub(crate) fn tell_suspensions(&mut self, worker: u16, cx: &mut Context) {
        for server in self.pool.servers.keys().iter() {
            if let Some(suspension) = self.pool.servers[server].standing.suspension() {
                cx.post(worker, Mail::Suspended { server, suspension });
            }
        }
    }

    // ---- trials ----

    /// A trial has shown that a server works, or that it does not.
    pub(super) fn trial_ended(&mut self, server: ServerIndex, good: bool, cx: &mut Context) {
        let judge = judge_of(server, cx);
        if judge == cx.worker {
            self.on_trial_ended(server, good, cx);
        } else {
            cx.post(judge, Mail::TrialEnded { server, good });
        }
    }

    pub(crate) fn on_trial_ended(&mut self, server: ServerIndex, good: bool, cx: &mut Context) {
        if self.pool.servers[server].standing.suspension().is_none() {
            return;
        }
        if good { self.resume(server, cx) } else { self.health.on_bad_trial(server, cx) }
    }

    /// The oldest request of a connection is asked at another server, and what comes here is not used, if there is such a server
    /// and the request may be repeated.
    fn ask_elsewhere(&mut self, index: ConnKey, cx: &mut Context) {
        let link = self.pool.links.at(index);
        let server = link.server;
        let Some(entry) = link.entries.front() else { return };
        let mut ask = entry.ask;
        if self.cancelled.is_unwanted(entry)
            || !ask.traits.has(RequestFlags::RETRIABLE)
            || !self.view(cx).has_other(server)
        {
            return;
        }
        let bytes = link.log.copy(entry.start, entry.len as usize);
        if let Some(entry) = self.pool.links.at_mut(index).entries.front_mut() {
            entry.cancelled = true;
        }
        ask.traits = ask.traits.without(RequestFlags::TRIAL);
        cx.counters.resends.add(1);
        self.pool.servers[server].stats.resends.add(1);
        self.place_again(ask, bytes, cx);
        self.dispatch_group(server, cx);
    }
}
