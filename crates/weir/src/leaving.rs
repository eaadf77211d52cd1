//! How a running weir ends: it reports that it is not ready, then stops accepting, then answers the
//! requests it has. With a successor, that one accepts new clients, and tunnels may last longer.
//! Called by `run`, which passes signals and calls regularly. Bounds: `delay` and `drain` of
//! `shutdown` (docs/running.md), `tunnels` of `upgrade` (docs/upgrade.md).

use std::time::{Duration, Instant};

use weir_proxy::plan::{Plan, ShutdownPlan};
use weir_worker::Running;

use crate::log::Event;
use crate::notify;
use crate::upgrade::Handed;

/// The present step.
#[derive(Debug, Default)]
pub(crate) struct Leaving(Step);

#[derive(Debug, Default)]
enum Step {
    /// Not ending.
    #[default]
    No,
    /// Until then balancers may notice that weir is not ready.
    Delay { until: Instant, drain: Duration },
    /// Until then weir answers the requests it has.
    Drain { since: Instant, until: Instant },
    /// The same beside a successor; tunnels have more time.
    Beside { since: Instant, until: Instant, tunnels_until: Instant },
    /// Until then only tunnels are left.
    Tunnels { since: Instant, until: Instant },
    /// At once.
    End,
}

impl Leaving {
    /// Whether it has begun.
    pub(crate) fn has_begun(&self) -> bool {
        !matches!(self.0, Step::No)
    }

    /// Whether a successor exists.
    pub(crate) fn is_beside(&self) -> bool {
        matches!(self.0, Step::Beside { .. } | Step::Tunnels { .. })
    }

    /// A successor accepts clients.
    pub(crate) fn hand_over(&mut self, running: &Running, plan: &Plan, handed: &Handed) {
        let now = Instant::now();
        let (drain, tunnels) = (plan.shutdown.drain_us, plan.upgrade.tunnels_us);
        let [drain, tunnels] = [drain, tunnels].map(Duration::from_micros);
        let (pid, clients) = (handed.pid, clients(running));
        let sentence = format_args!(
            "the new process accepts new clients; waiting here up to {drain:?} for clients, \
                {tunnels:?} for tunnels"
        );
        Event::Upgraded.says(sentence).with("pid", pid).with("clients", clients).log();
        self.0 = Step::Beside { since: now, until: now + drain, tunnels_until: now + tunnels };
        running.leave_soon();
        running.hand_over(&handed.listeners);
    }

    /// Begins.
    pub(crate) fn begin(&mut self, running: &Running, plan: &ShutdownPlan) {
        if self.is_beside() {
            let (now, drain) = (Instant::now(), Duration::from_micros(plan.drain_us));
            Event::ShuttingDown
                .says("waiting for clients and tunnels")
                .with("seconds", drain.as_secs_f64())
                .log();
            self.0 = Step::Drain { since: now, until: now + drain };
            return;
        }
        notify::stopping();
        running.leave_soon();
        let delay = Duration::from_micros(plan.delay_us);
        let drain = Duration::from_micros(plan.drain_us);
        if !delay.is_zero() {
            Event::ShuttingDown
                .says("not ready from now on, still accepting new clients")
                .with("seconds", delay.as_secs_f64())
                .log();
        }
        self.0 = Step::Delay { until: Instant::now() + delay, drain };
        self.go_on(running);
    }

    /// Does what is due by now.
    pub(crate) fn go_on(&mut self, running: &Running) {
        let now = Instant::now();
        match self.0 {
            Step::Delay { until, drain } if now >= until => {
                Event::Draining
                    .says("accepting no new clients, waiting for those that are connected")
                    .with("seconds", drain.as_secs_f64())
                    .with("clients", clients(running))
                    .log();
                self.0 = Step::Drain { since: now, until: now + drain };
                running.drain();
            }
            Step::Drain { until, since } if now >= until => {
                Event::DrainTimeout
                    .says("clients are still connected; closing them")
                    .with("seconds", (until - since).as_secs_f64())
                    .with("clients", clients(running))
                    .log();
                self.end(running);
            }
            Step::Beside { since, until, tunnels_until } if now >= until => {
                Event::TunnelsOnly
                    .says("closing clients that are still connected, except tunnels")
                    .with("seconds", (until - since).as_secs_f64())
                    .log();
                running.keep_tunnels_only();
                self.0 = Step::Tunnels { since, until: tunnels_until.max(now) };
            }
            Step::Tunnels { until, since } if now >= until => {
                Event::DrainTimeout
                    .says("tunnels are still open; closing them")
                    .with("seconds", (until - since).as_secs_f64())
                    .log();
                self.end(running);
            }
            _ => {}
        }
    }

    /// Ends at once.
    pub(crate) fn end(&mut self, running: &Running) {
        self.0 = Step::End;
        running.stop();
    }

    /// Reports that the workers have ended.
    pub(crate) fn is_over(&self) {
        if let Step::Drain { since, .. }
        | Step::Beside { since, .. }
        | Step::Tunnels { since, .. } = self.0
        {
            let seconds = format_args!("{:.1}", since.elapsed().as_secs_f64());
            Event::Drained.says("ended after all clients").with("seconds", seconds).log();
        }
    }
}

/// Returns the number of connected clients.
fn clients(running: &Running) -> u64 {
    running.views().iter().map(|view| view.counters.client_connections.get()).sum()
}
