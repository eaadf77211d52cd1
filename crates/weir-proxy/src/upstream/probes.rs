//! Active health: when a server is probed, on which connection, and what follows (docs/semantics.md §6).
//!
//! The worker that judges a server probes it, nobody else. A probe is not made while requests of clients to the same target have
//! succeeded within the interval. A server starts as one that works. Bound: one connection a server at a time, for at most
//! the time-out. The answer is judged by [`crate::upstream::probe`].

use std::sync::Arc;

use super::Upstreams;
use crate::action::Action;
use crate::base::keys::{Key, ServerIndex};
use crate::base::output::Out;
use crate::base::piece::Input;
use crate::base::stamp::mix;
use crate::base::token::{ShortGeneration, Token};
use crate::context::Context;
use crate::plan::HealthPlan;
use crate::upstream::probe::{Probe, ProbeFault, Streak, Verdict, request};
use crate::upstream::server_state::SuspensionCause;

/// While the next probe may bring a change, it comes after at most this long.
const SOON_US: u64 = 1_000_000;

/// The probes of one server.
#[derive(Debug)]
pub(super) struct Prober {
    /// Grows with each probe and each pause, so that what is late is recognised.
    generation: u32,
    streak: Streak,
    /// The one under way.
    probe: Option<Probe>,
    socket: Option<u64>,
    /// When it began.
    begun_us: u64,
}

impl Prober {
    /// Names the probe or the pause under way towards the worker and the timers.
    fn token(&self, server: ServerIndex) -> u64 {
        Token::Probe { server, generation: ShortGeneration::of(self.generation) }.pack()
    }
}

impl Upstreams {
    /// Begins to probe the servers that this worker judges, not all in the same moment.
    pub(super) fn begin_probing(&mut self, cx: &mut Context) {
        for server in self.servers.keys().iter() {
            let judged = self.judge_of(server, cx) == cx.worker;
            let prober = Prober { generation: 0, streak: Streak::default(), probe: None, socket: None, begun_us: 0 };
            self.probers.push((judged && self.health_of(server, cx).is_some()).then_some(prober));
            if let Some(interval_us) = self.health_of(server, cx).map(|plan| plan.interval_us) {
                let delay_us = mix(self.seed ^ u64::from(server.number())) % interval_us.min(SOON_US);
                self.arm_prober(server, cx.now_us + delay_us, cx);
            }
        }
    }

    fn health_of<'a>(&self, server: ServerIndex, cx: &'a Context) -> Option<&'a HealthPlan> {
        let upstream = usize::from(self.servers[server].upstream);
        cx.plan.upstreams[upstream].health.as_ref()
    }

    fn prober(&mut self, server: ServerIndex) -> Option<&mut Prober> {
        self.probers.get_mut(server).and_then(Option::as_mut)
    }

    /// The server of a probe that is still meant.
    fn server_of(&self, token: u64) -> Option<ServerIndex> {
        let Some(Token::Probe { server, generation }) = Token::unpack(token) else { return None };
        let prober = self.probers.get(server)?.as_ref()?;
        (ShortGeneration::of(prober.generation) == generation).then_some(server)
    }

    /// Sets the only timer of a prober.
    fn arm_prober(&mut self, server: ServerIndex, due_us: u64, cx: &mut Context) {
        let Some(prober) = self.prober(server) else { return };
        prober.generation = prober.generation.wrapping_add(1);
        let token = prober.token(server);
        cx.wheel.insert(token, due_us);
    }

    /// The pause is over, or the patience with a probe is.
    pub(super) fn probe_timer(&mut self, token: u64, cx: &mut Context) {
        let Some(server) = self.server_of(token) else { return };
        let begun_us = self.prober(server).filter(|prober| prober.probe.is_some()).map(|prober| prober.begun_us);
        let timeout_us = self.health_of(server, cx).map_or(0, |plan| plan.timeout_us);
        if let Some(begun_us) = begun_us.filter(|begun_us| cx.now_us < begun_us + timeout_us) {
            let again_us = self.on_late_first(server, cx.now_us - begun_us, cx);
            cx.wheel.insert(token, (cx.now_us + again_us).min(begun_us + timeout_us));
        } else if begun_us.is_some() {
            self.probe_done(server, Err(ProbeFault::Timeout), cx);
        } else if !self.servers[server].standing.keeps_connections() {
            // Left alone by order: nothing is learnt about it.
            self.pause_prober(server, cx);
        } else if self.is_proved(server, cx) {
            cx.counters.probes_skipped.add(1);
            self.note_probe(server, Ok(()), cx);
        } else {
            self.begin_probe(server, cx);
        }
    }

    /// Whether clients have just had good answers to what a probe would ask.
    fn is_proved(&self, server: ServerIndex, cx: &Context) -> bool {
        let suspended = self.servers[server].standing.suspension().is_some();
        let proved_us = self.hints.proved_us(server);
        let fresh = |plan: &HealthPlan| proved_us > 0 && cx.now_us.saturating_sub(proved_us) < plan.interval_us;
        !suspended && self.health_of(server, cx).is_some_and(fresh)
    }

    fn begin_probe(&mut self, server: ServerIndex, cx: &mut Context) {
        let Some(timeout_us) = self.health_of(server, cx).map(|plan| plan.timeout_us) else { return };
        cx.counters.probes.add(1);
        self.servers[server].stats.probes.add(1);
        let now_us = cx.now_us;
        let patience_us = self.probe_patience_us(server, cx).min(timeout_us);
        self.arm_prober(server, now_us + patience_us, cx);
        let Some(prober) = self.prober(server) else { return };
        (prober.probe, prober.begun_us) = (Some(Probe::default()), now_us);
        let token = prober.token(server);
        let machine = &self.servers[server];
        let address = cx.plan.upstreams[usize::from(machine.upstream)].servers[usize::from(machine.index)].address;
        cx.actions.push_back(Action::Connect { token, address });
    }

    /// As [`Engine::link_started`](crate::engine::Engine::link_started).
    pub(super) fn probe_started(&mut self, token: u64, socket: u64) -> bool {
        let Some(server) = self.server_of(token) else { return false };
        let Some(prober) = self.prober(server).filter(|prober| prober.probe.is_some()) else { return false };
        prober.socket = Some(socket);
        true
    }

    /// As [`Engine::link_connected`](crate::engine::Engine::link_connected).
    pub(super) fn probe_connected(&mut self, token: u64, ok: bool, cx: &mut Context) {
        let Some(server) = self.server_of(token) else { return };
        let socket = self.prober(server).and_then(|prober| prober.socket);
        match (ok, socket, self.health_of(server, cx)) {
            (true, Some(socket), Some(plan)) => {
                let machine = &self.servers[server];
                let servers = &cx.plan.upstreams[usize::from(machine.upstream)].servers;
                let out = Out::Owned(request(plan, &servers[usize::from(machine.index)].name));
                cx.actions.push_back(Action::SendLink { socket, out });
                cx.actions.push_back(Action::ReceiveLink { socket });
            }
            _ => self.probe_done(server, Err(ProbeFault::Connect), cx),
        }
    }

    /// As [`Engine::link_received`](crate::engine::Engine::link_received).
    pub(super) fn probe_received(&mut self, token: u64, input: &Input<'_>, cx: &mut Context) {
        let Some(server) = self.server_of(token) else { return };
        let plan = std::sync::Arc::clone(&cx.plan);
        let upstream = &plan.upstreams[usize::from(self.servers[server].upstream)];
        let Some(health) = &upstream.health else { return };
        let Some(prober) = self.prober(server) else { return };
        let verdict = prober.probe.as_mut().and_then(|probe| probe.feed(input.bytes, health, &upstream.head));
        let (socket, begun_us) = (prober.socket, prober.begun_us);
        match (verdict, socket) {
            (Some(verdict), _) => {
                self.on_first_answer(server, begun_us, cx);
                self.probe_done(server, verdict, cx);
            }
            (None, Some(socket)) => cx.actions.push_back(Action::ReceiveLink { socket }),
            (None, None) => {}
        }
    }

    /// As [`Engine::link_ended`](crate::engine::Engine::link_ended) and, with `broken`, [`Engine::link_failed`](crate::engine::Engine::link_failed).
    pub(super) fn probe_ended(&mut self, token: u64, broken: bool, cx: &mut Context) {
        let Some(server) = self.server_of(token) else { return };
        let upstream = usize::from(self.servers[server].upstream);
        let plan = Arc::clone(&cx.plan);
        let probe = self.prober(server).and_then(|prober| prober.probe.as_ref()).filter(|_| !broken);
        let verdict = probe.zip(plan.upstreams[upstream].health.as_ref()).map(|(probe, health)| probe.ended(health));
        self.probe_done(server, verdict.unwrap_or(Err(ProbeFault::Closed)), cx);
    }

    fn probe_done(&mut self, server: ServerIndex, result: Result<(), ProbeFault>, cx: &mut Context) {
        let Some(prober) = self.prober(server) else { return };
        prober.probe = None;
        if let Some(socket) = prober.socket.take() {
            cx.actions.push_back(Action::CloseLink { socket });
        }
        cx.counters.probe_failures.add(u64::from(result.is_err()));
        self.servers[server].stats.probe_failures.add(u64::from(result.is_err()));
        self.note_probe(server, result, cx);
    }

    /// Counts a result and draws the consequence.
    fn note_probe(&mut self, server: ServerIndex, result: Result<(), ProbeFault>, cx: &mut Context) {
        let suspended = self.servers[server].standing.suspension().is_some();
        let upstream = usize::from(self.servers[server].upstream);
        let Some(health) = &cx.plan.upstreams[upstream].health else { return };
        let kept_out = suspended && cx.now_us < self.servers[server].kept_out_until_us;
        let Some(prober) = self.probers[server].as_mut() else { return };
        if kept_out && result.is_ok() {
            // Clients have found it bad although probes like it, and not for the first time.
            return self.pause_prober(server, cx);
        }
        match (prober.streak.note(result.is_ok(), suspended, health), result) {
            (Some(Verdict::Fallen), Err(fault)) => self.suspend(server, SuspensionCause::Probe { fault }, cx),
            (Some(Verdict::Risen), _) => self.resume(server, cx),
            _ => {}
        }
        self.pause_prober(server, cx);
    }

    /// What probes have shown so far was about another standing.
    pub(super) fn forget_streak(&mut self, server: ServerIndex) {
        if let Some(prober) = self.prober(server) {
            prober.streak = Streak::default();
        }
    }

    fn pause_prober(&mut self, server: ServerIndex, cx: &mut Context) {
        let Some(interval_us) = self.health_of(server, cx).map(|plan| plan.interval_us) else { return };
        let seed = self.seed ^ cx.now_us;
        let soon = self.prober(server).is_some_and(|prober| prober.streak.is_open());
        let pause_us = if soon { interval_us.min(SOON_US) } else { interval_us };
        // A tenth less or more, so that the proxies of one server don't come in step.
        let jitter_us = mix(seed) % (pause_us / 5 + 1);
        self.arm_prober(server, cx.now_us + pause_us - pause_us / 10 + jitter_us, cx);
    }

    /// A server that could not be reached can be again: what a probe says now is worth more than what one said before.
    pub(super) fn probe_soon(&mut self, server: ServerIndex, cx: &mut Context) {
        let suspended = self.servers[server].standing.suspension().is_some();
        if suspended && self.prober(server).is_some_and(|prober| prober.probe.is_none()) {
            self.arm_prober(server, cx.now_us, cx);
        }
    }
}
