//! Active health: when a server is probed, on which connection, and what follows
//! (docs/failover.md#probe-servers).
//!
//! Only the worker that judges a server probes it; [`Health`] has its probes, and decides what
//! follows from them. A probe is not made while requests of clients to the same target have
//! succeeded within the interval. A server is assumed to work at first. Bound: one connection a
//! server at a time, for at most the time-out. The response is judged by
//! [`crate::upstream::probe`].

use std::sync::Arc;

use super::crowded::on_late_first;
use super::groups::Groups;
use super::judge::{Health, judge_of};
use super::pool::Pool;
use super::suspend::Worse;
use super::timers::Then;
use crate::action::Action;
use crate::base::keys::{Key, ServerIndex};
use crate::base::output::Out;
use crate::base::piece::Input;
use crate::base::stamp::mix;
use crate::base::token::{ShortGeneration, Token};
use crate::context::Context;
use crate::cross::standing::ProbeFault;
use crate::cross::standing::SuspensionCause;
use crate::ending::{ServerTlsFailure, UpstreamEnd};
use crate::plan::{Announcement, HealthPlan, Whose};
use crate::upstream::probe::{Probe, Streak, Verdict, request};
use crate::upstream::server::Server;

/// While the next probe may bring a change, it comes after at most this long.
const SOON_US: u64 = 1_000_000;

/// The probes of one server.
#[derive(Debug)]
pub(super) struct Prober {
    /// Grows with each probe and each pause, so that late events are recognised.
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

    /// Earlier probes were about another standing.
    pub(super) fn forget_streak(&mut self) {
        self.streak = Streak::default();
    }
}

/// What is to be done now that the timer of a server's probes has come.
#[derive(Debug, Clone, Copy)]
enum Due {
    /// The response to the probe of this time may be waited for until then; but others make room
    /// for it.
    Late { begun_us: u64, until_us: u64 },
    /// A probe is made.
    Probe,
    /// The outcome of the last probe, or of its substitute.
    Over(Result<(), ProbeFault>),
    /// Nothing.
    Nothing,
}

/// What probes have shown.
#[derive(Debug, Clone, Copy)]
enum Shown {
    /// The server is suspended for this.
    Bad(ProbeFault),
    /// It is taken back.
    Good,
    /// Nothing new.
    Nothing,
}

impl Health {
    /// Begins to probe a server, if this worker does that: not all in the same moment.
    fn begin_probing(&mut self, server: ServerIndex, plan: &HealthPlan, cx: &mut Context) {
        let prober = Prober {
            generation: 0,
            streak: Streak::default(),
            probe: None,
            socket: None,
            begun_us: 0,
        };
        if judge_of(server, cx) == cx.worker {
            // The old server's probe continues, so that no late event is taken for a timer or
            // response of the new one.
            self.judged[server].prober.get_or_insert(prober).forget_streak();
        }
        let delay_us = mix(self.seed ^ u64::from(server.number())) % plan.interval_us.min(SOON_US);
        self.arm_prober(server, cx.now_us + delay_us, cx);
    }

    fn prober(&mut self, server: ServerIndex) -> Option<&mut Prober> {
        self.judged.get_mut(server).and_then(|judged| judged.prober.as_mut())
    }

    /// Returns the server of a probe that is still current.
    fn server_of(&self, token: u64) -> Option<ServerIndex> {
        let Some(Token::Probe { server, generation }) = Token::unpack(token) else { return None };
        let prober = self.judged.get(server)?.prober.as_ref()?;
        (ShortGeneration::of(prober.generation) == generation).then_some(server)
    }

    /// Sets the only timer of a prober.
    fn arm_prober(&mut self, server: ServerIndex, due_us: u64, cx: &mut Context) {
        let Some(prober) = self.prober(server) else { return };
        prober.generation = prober.generation.wrapping_add(1);
        let token = prober.token(server);
        cx.wheel.insert(token, due_us);
    }

    /// The timer of a server's probes has fired: the pause is over, or the patience with one is.
    fn due(&mut self, server: ServerIndex, machine: &Server, cx: &Context) -> Due {
        let plan = health_of(machine, cx);
        let begun_us = self
            .prober(server)
            .filter(|prober| prober.probe.is_some())
            .map(|prober| prober.begun_us);
        let timeout_us = plan.map_or(0, |plan| plan.timeout_us);
        match begun_us {
            Some(begun_us) if cx.now_us < begun_us + timeout_us => {
                Due::Late { begun_us, until_us: begun_us + timeout_us }
            }
            Some(_) => Due::Over(Err(ProbeFault::Timeout)),
            // Left alone by order, or no longer in the configuration: nothing is learnt about it.
            None if !machine.standing.keeps_connections() || machine.contact.retired => {
                Due::Nothing
            }
            None if plan.is_some_and(|plan| self.is_proved(server, machine, plan, cx)) => {
                cx.counters.probes_skipped.add(1);
                Due::Over(Ok(()))
            }
            None => Due::Probe,
        }
    }

    /// Whether clients have just had good responses to what a probe would request.
    fn is_proved(
        &self,
        server: ServerIndex,
        machine: &Server,
        plan: &HealthPlan,
        cx: &Context,
    ) -> bool {
        let proved_us = self.hints.proved_us(server);
        let fresh = proved_us > 0 && cx.now_us.saturating_sub(proved_us) < plan.interval_us;
        machine.standing.suspension().is_none() && fresh
    }

    /// `patience_us`: after how long others make room for its response.
    fn begin_probe(
        &mut self,
        server: ServerIndex,
        machine: &Server,
        patience_us: u64,
        cx: &mut Context,
    ) {
        let Some(timeout_us) = health_of(machine, cx).map(|plan| plan.timeout_us) else { return };
        cx.counters.probes.add(1);
        machine.stats.probes.add(1);
        let now_us = cx.now_us;
        self.arm_prober(server, now_us + patience_us.min(timeout_us), cx);
        let Some(prober) = self.prober(server) else { return };
        (prober.probe, prober.begun_us) = (Some(Probe::default()), now_us);
        let token = prober.token(server);
        let upstream = &cx.plan.upstreams[usize::from(machine.upstream)];
        let address = upstream.servers[usize::from(machine.index)].address.clone();
        let announcement =
            upstream.dial.proxy_protocol.map(|version| Announcement { version, whose: Whose::Own });
        let way = upstream.dial.way(None);
        cx.actions.push_back(Action::Connect {
            token,
            address,
            server: server.number(),
            announcement,
            way,
        });
    }

    /// As [`Engine::upstream_started`](crate::engine::Engine::upstream_started).
    pub(super) fn probe_started(&mut self, token: u64, socket: u64) -> bool {
        let Some(server) = self.server_of(token) else { return false };
        let Some(prober) = self.prober(server).filter(|prober| prober.probe.is_some()) else {
            return false;
        };
        prober.socket = Some(socket);
        true
    }

    /// The connection of a probe is up. False: it is of no use.
    fn ask(&mut self, server: ServerIndex, machine: &Server, cx: &mut Context) -> bool {
        let socket = self.prober(server).and_then(|prober| prober.socket);
        let (Some(socket), Some(plan)) = (socket, health_of(machine, cx)) else { return false };
        let servers = &cx.plan.upstreams[usize::from(machine.upstream)].servers;
        let out = Out::Owned(request(plan, servers[usize::from(machine.index)].authority()));
        cx.actions.push_back(Action::SendUpstream { socket, out });
        cx.actions.push_back(Action::ReceiveUpstream { socket });
        true
    }

    /// The server sent bytes: returns when the probe began, and its result if they are complete.
    fn read(
        &mut self,
        server: ServerIndex,
        machine: &Server,
        input: &Input<'_>,
        cx: &mut Context,
    ) -> Option<(u64, Result<(), ProbeFault>)> {
        let upstream = &cx.plan.upstreams[usize::from(machine.upstream)];
        let health = upstream.health.as_ref()?;
        let prober = self.prober(server)?;
        let verdict =
            prober.probe.as_mut().and_then(|probe| probe.feed(input.bytes, health, &upstream.head));
        if let (None, Some(socket)) = (&verdict, prober.socket) {
            cx.actions.push_back(Action::ReceiveUpstream { socket });
        }
        Some((prober.begun_us, verdict?))
    }

    /// Returns the result of a probe whose connection has ended in order.
    fn read_end(
        &mut self,
        server: ServerIndex,
        machine: &Server,
        cx: &Context,
    ) -> Result<(), ProbeFault> {
        let probe = self.prober(server).and_then(|prober| prober.probe.as_ref());
        let verdict = probe.zip(health_of(machine, cx)).map(|(probe, health)| probe.ended(health));
        verdict.unwrap_or(Err(ProbeFault::Closed))
    }

    /// A probe has come to its end. False: none was under way.
    fn end_probe(
        &mut self,
        server: ServerIndex,
        machine: &Server,
        result: Result<(), ProbeFault>,
        cx: &mut Context,
    ) -> bool {
        let Some(prober) = self.prober(server) else { return false };
        prober.probe = None;
        if let Some(socket) = prober.socket.take() {
            cx.actions.push_back(Action::CloseUpstream { socket });
        }
        cx.counters.probe_failures.add(u64::from(result.is_err()));
        machine.stats.probe_failures.add(u64::from(result.is_err()));
        true
    }

    /// Counts a result. The next pause comes after its consequences.
    fn note(
        &mut self,
        server: ServerIndex,
        machine: &Server,
        result: Result<(), ProbeFault>,
        cx: &Context,
    ) -> Shown {
        let suspended = machine.standing.suspension().is_some();
        let kept_out = suspended && cx.now_us < self.judged[server].kept_out_until_us;
        let (Some(health), Some(prober)) = (health_of(machine, cx), self.prober(server)) else {
            return Shown::Nothing;
        };
        if kept_out && result.is_ok() {
            // Clients have found it bad although probes succeed, and not for the first time.
            return Shown::Nothing;
        }
        match (prober.streak.note(result.is_ok(), suspended, health), result) {
            (Some(Verdict::Fallen), Err(fault)) => Shown::Bad(fault),
            (Some(Verdict::Risen), _) => Shown::Good,
            _ => Shown::Nothing,
        }
    }

    fn pause_prober(&mut self, server: ServerIndex, machine: &Server, cx: &mut Context) {
        let Some(interval_us) = health_of(machine, cx).map(|plan| plan.interval_us) else { return };
        let seed = self.seed ^ cx.now_us;
        let soon = self.prober(server).is_some_and(|prober| prober.streak.is_open());
        let pause_us = if soon { interval_us.min(SOON_US) } else { interval_us };
        // A tenth less or more, so that the proxies of one server don't come in step.
        let jitter_us = mix(seed) % (pause_us / 5 + 1);
        self.arm_prober(server, cx.now_us + pause_us - pause_us / 10 + jitter_us, cx);
    }

    /// A server that could not be reached can be again: the result of a probe now is worth more
    /// than that of an earlier one.
    pub(super) fn probe_soon(&mut self, server: ServerIndex, machine: &Server, cx: &mut Context) {
        let suspended = machine.standing.suspension().is_some();
        if suspended && self.prober(server).is_some_and(|prober| prober.probe.is_none()) {
            self.arm_prober(server, cx.now_us, cx);
        }
    }
}

impl Health {
    /// Whether a probe of a server is under way.
    pub(super) fn is_probing(&self, server: ServerIndex) -> bool {
        self.judged[server].prober.as_ref().is_some_and(|prober| prober.probe.is_some())
    }

    /// Another server replaces this server.
    pub(super) fn renew(&mut self, server: ServerIndex, pool: &Pool, cx: &mut Context) {
        let plan = Arc::clone(&cx.plan);
        self.forget(server, &plan.upstreams[usize::from(pool.servers[server].upstream)]);
        self.begin(server, pool, cx);
    }

    /// Begins to probe a server, if this worker judges it.
    pub(super) fn begin(&mut self, server: ServerIndex, pool: &Pool, cx: &mut Context) {
        let plan = Arc::clone(&cx.plan);
        if let Some(health) = &plan.upstreams[usize::from(pool.servers[server].upstream)].health {
            self.begin_probing(server, health, cx);
        }
    }

    /// As [`Engine::upstream_connected`](crate::engine::Engine::upstream_connected).
    pub(super) fn probe_connected(
        &mut self,
        token: u64,
        result: Result<(), Option<ServerTlsFailure>>,
        pool: &mut Pool,
        groups: &mut Groups,
        cx: &mut Context,
    ) -> Option<Worse> {
        let server = self.server_of(token)?;
        let machine = &pool.servers[server];
        if result.is_ok() && cx.plan.upstreams[usize::from(machine.upstream)].is_tcp() {
            // It is unknown what else its servers understand.
            return self.probe_done(server, Ok(()), pool, groups, cx);
        }
        if result.is_ok() && self.ask(server, machine, cx) {
            return None;
        }
        let tls = result.err().flatten();
        self.probe_done(
            server,
            Err(tls.map_or(ProbeFault::Connect, ProbeFault::Tls)),
            pool,
            groups,
            cx,
        )
    }

    /// As [`Engine::upstream_received`](crate::engine::Engine::upstream_received).
    pub(super) fn probe_received(
        &mut self,
        token: u64,
        input: &Input<'_>,
        pool: &mut Pool,
        groups: &mut Groups,
        cx: &mut Context,
    ) -> Option<Worse> {
        let server = self.server_of(token)?;
        let (begun_us, verdict) = self.read(server, &pool.servers[server], input, cx)?;
        pool.hints.places(server).on_first_answer(cx.now_us, begun_us);
        self.probe_done(server, verdict, pool, groups, cx)
    }

    /// As [`Engine::upstream_ended`](crate::engine::Engine::upstream_ended), or with how else it
    /// has ended [`Engine::upstream_failed`](crate::engine::Engine::upstream_failed).
    pub(super) fn probe_ended(
        &mut self,
        token: u64,
        broken: Option<UpstreamEnd>,
        pool: &mut Pool,
        groups: &mut Groups,
        cx: &mut Context,
    ) -> Option<Worse> {
        let server = self.server_of(token)?;
        let result = match broken {
            None => self.read_end(server, &pool.servers[server], cx),
            Some(UpstreamEnd::Tls(why)) => Err(ProbeFault::Tls(why)),
            Some(_) => Err(ProbeFault::Closed),
        };
        self.probe_done(server, result, pool, groups, cx)
    }

    /// The pause is over, or the patience with a probe is.
    pub(super) fn on_timer(
        &mut self,
        token: u64,
        pool: &mut Pool,
        groups: &mut Groups,
        cx: &mut Context,
    ) -> Then {
        let Some(server) = self.server_of(token) else { return Then::Nothing };
        match self.due(server, &pool.servers[server], cx) {
            Due::Late { begun_us, until_us } => {
                let (again_us, then) =
                    on_late_first(server, cx.now_us - begun_us, pool, groups, cx);
                cx.wheel.insert(token, (cx.now_us + again_us).min(until_us));
                then
            }
            Due::Probe => {
                let patience_us = groups.view(pool, cx).probe_patience_us(server);
                self.begin_probe(server, &pool.servers[server], patience_us, cx);
                Then::Nothing
            }
            Due::Over(Err(fault)) => self.probe_done(server, Err(fault), pool, groups, cx).into(),
            Due::Over(Ok(())) => self.note_probe(server, Ok(()), pool, groups, cx).into(),
            Due::Nothing => {
                self.pause_prober(server, &pool.servers[server], cx);
                Then::Nothing
            }
        }
    }

    fn probe_done(
        &mut self,
        server: ServerIndex,
        result: Result<(), ProbeFault>,
        pool: &mut Pool,
        groups: &mut Groups,
        cx: &mut Context,
    ) -> Option<Worse> {
        let is_there = self.end_probe(server, &pool.servers[server], result, cx);
        if is_there { self.note_probe(server, result, pool, groups, cx) } else { None }
    }

    /// Counts a result and draws the consequence.
    fn note_probe(
        &mut self,
        server: ServerIndex,
        result: Result<(), ProbeFault>,
        pool: &mut Pool,
        groups: &mut Groups,
        cx: &mut Context,
    ) -> Option<Worse> {
        let worse = match self.note(server, &pool.servers[server], result, cx) {
            Shown::Bad(fault) => {
                self.suspend(server, SuspensionCause::Probe { fault }, pool, groups, cx)
            }
            Shown::Good => {
                self.resume(server, pool, groups, cx);
                None
            }
            Shown::Nothing => None,
        };
        self.pause_prober(server, &pool.servers[server], cx);
        worse
    }
}

/// How a server is probed, if it is.
fn health_of<'a>(machine: &Server, cx: &'a Context) -> Option<&'a HealthPlan> {
    cx.plan.upstreams[usize::from(machine.upstream)].health.as_ref()
}
