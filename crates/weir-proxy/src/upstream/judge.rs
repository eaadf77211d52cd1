//! Decisions of health: which worker judges a server, the evidence against it, and when it may come
//! back (docs/failover.md).
//!
//! One worker judges a server, so that all workers together count once: the one that owns its
//! connection 0. The others send it their observations, which is rare unless the server fails, and
//! it sends its decisions to all. [`Health`] owns the judge's counts, and the probes
//! ([`super::probes`]); [`super::suspend`] carries out the consequences for the server. A server
//! that fails again soon after it was taken back is left alone for longer each time: a request or a
//! probe can succeed at a server that fails one in a hundred.

use std::sync::Arc;

use super::orders::NEVER_US;
use super::probes::Prober;
use crate::base::keys::{Key, ServerIndex};
use crate::base::table::Table;
use crate::context::Context;
use crate::cross::hints::Hints;
use crate::cross::standing::{Suspension, SuspensionCause};
use crate::plan::UpstreamPlan;
use crate::upstream::health::{Symptom, Window, calm_us, pause_us};
use crate::upstream::server::Server;

/// How exactly it is known when a client last proved that a server works.
const PROVED_STEP_US: u64 = 50_000;

/// The worker that judges a server.
pub(super) fn judge_of(server: ServerIndex, cx: &Context) -> u16 {
    (server.number() % u32::from(cx.workers)) as u16
}

/// See the module.
#[derive(Debug)]
pub(super) struct Health {
    pub(super) judged: Table<ServerIndex, Judged>,
    pub(super) hints: Arc<Hints>,
    pub(super) seed: u64,
}

/// The judge's knowledge of a server; another worker has it and doesn't use it.
#[derive(Debug)]
pub(super) struct Judged {
    /// By `failover` rule: the events that it counted.
    windows: Vec<Window>,
    /// Failed trials since the server was suspended, and suspensions that followed each other
    /// closely.
    trials: u32,
    /// When it was last taken back after a suspension. 0: never.
    resumed_us: u64,
    /// Before this probes don't end the present suspension. 0: they do at once.
    pub(super) kept_out_until_us: u64,
    /// Its probes, where this worker makes them.
    pub(super) prober: Option<Prober>,
}

impl Health {
    /// Returns one without servers.
    pub(super) fn new(hints: Arc<Hints>, seed: u64) -> Health {
        Health { judged: Table::default(), hints, seed }
    }

    /// One more server, of this upstream.
    pub(super) fn add_server(&mut self, plan: &UpstreamPlan) {
        self.judged.push(Judged::new(plan));
    }

    /// Another server replaces this server.
    pub(super) fn forget(&mut self, server: ServerIndex, plan: &UpstreamPlan) {
        let prober = self.judged[server].prober.take();
        self.judged[server] = Judged { prober, ..Judged::new(plan) };
    }

    /// A client got what a probe would have got.
    pub(super) fn prove(&self, server: ServerIndex, plan: &UpstreamPlan, status: u16, now_us: u64) {
        let good = plan.health.as_ref().is_some_and(|health| health.expect_status.contain(status));
        // Not at each response: other workers write to the same place.
        if good && now_us >= self.hints.proved_us(server) + PROVED_STEP_US {
            self.hints.set_proved(server, now_us);
        }
    }

    /// A server did something that a rule counts. Returns why it is suspended, if that was once too
    /// often.
    pub(super) fn on_fault(
        &mut self,
        server: ServerIndex,
        rule: u8,
        machine: &Server,
        cx: &Context,
    ) -> Option<SuspensionCause> {
        let window = self.judged[server].windows.get_mut(usize::from(rule))?;
        if !window.note(cx.now_us) || machine.standing.suspension().is_some() {
            return None;
        }
        let rules = &cx.plan.upstreams[usize::from(machine.upstream)].failover;
        let symptom = rules.get(usize::from(rule)).map(|rule| rule.symptom);
        let lost = symptom == Some(Symptom::Lost);
        Some(if lost {
            SuspensionCause::Losses { rule }
        } else {
            SuspensionCause::Answers { rule }
        })
    }

    /// A server is suspended: determines for how long at least, or until the first trial.
    pub(super) fn begin_suspension(
        &mut self,
        server: ServerIndex,
        cause: SuspensionCause,
        machine: &Server,
        cx: &Context,
    ) -> Suspension {
        let plan = &cx.plan.upstreams[usize::from(machine.upstream)];
        let judged = &mut self.judged[server];
        let relapses = judged.relapses(cause, plan, cx.now_us);
        if let Some(prober) = &mut judged.prober {
            prober.forget_streak();
        }
        judged.trials = relapses;
        let pause_us = pause_us(relapses, self.seed ^ u64::from(server.number()));
        judged.kept_out_until_us = if relapses > 0 { cx.now_us + pause_us } else { 0 };
        self.hints
            .set_trial(server, if plan.health.is_some() { NEVER_US } else { cx.now_us + pause_us });
        cx.counters.suspensions.add(1);
        machine.stats.suspensions.add(1);
        Suspension { cause, since_us: cx.now_us }
    }

    /// A server is taken back.
    pub(super) fn end_suspension(&mut self, server: ServerIndex, machine: &Server, cx: &Context) {
        self.judged[server].resumed_us = cx.now_us;
        cx.counters.recoveries.add(1);
        machine.stats.recoveries.add(1);
    }

    /// A trial has shown that a server still does not work: the next one comes later.
    pub(super) fn on_bad_trial(&mut self, server: ServerIndex, cx: &Context) {
        let judged = &mut self.judged[server];
        judged.trials = judged.trials.saturating_add(1);
        let pause_us = pause_us(judged.trials, self.seed ^ u64::from(server.number()));
        self.hints.set_trial(server, cx.now_us + pause_us);
    }
}

impl Judged {
    /// Nothing speaks against it, by the rules of its upstream.
    fn new(plan: &UpstreamPlan) -> Judged {
        let windows =
            plan.failover.iter().map(|rule| Window::new(rule.limit, rule.window_us)).collect();
        Judged { windows, trials: 0, resumed_us: 0, kept_out_until_us: 0, prober: None }
    }

    /// How often a rule has now found the same server bad again soon after it was taken back.
    fn relapses(&self, cause: SuspensionCause, plan: &UpstreamPlan, now_us: u64) -> u32 {
        let (SuspensionCause::Answers { rule } | SuspensionCause::Losses { rule }) = cause else {
            return 0;
        };
        let window_us = plan.failover.get(usize::from(rule)).map_or(0, |rule| rule.window_us);
        let well_us = now_us.saturating_sub(self.resumed_us);
        let again = self.resumed_us > 0 && well_us < calm_us(self.trials, window_us);
        if again { self.trials.saturating_add(1) } else { 0 }
    }
}
