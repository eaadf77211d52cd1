//! How a running weir ends: it is not ready any more, then takes nobody new, then what was asked is answered. Called by `run`, which
//! brings signals and looks again and again. Bounds: `delay` and `drain` of `shutdown` (docs/semantics.md §12).

use std::time::{Duration, Instant};

use weir_proxy::plan::ShutdownPlan;
use weir_worker::Running;

use crate::notify;
use crate::terminal::{tell, warn};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Leaving(Step);

#[derive(Debug, Default)]
enum Step {
    /// Nobody wants it to.
    #[default]
    No,
    /// Balancers are to look away until then.
    Delay { until: Instant, drain: Duration },
    /// What was asked is answered, until then.
    Drain { since: Instant, until: Instant },
    /// At once.
    End,
}

impl Leaving {
    /// It has begun.
    pub(crate) fn has_begun(&self) -> bool {
        !matches!(self.0, Step::No)
    }

    /// Begins.
    pub(crate) fn begin(&mut self, running: &Running, plan: &ShutdownPlan) {
        notify::stopping();
        running.leave_soon();
        let delay = Duration::from_micros(plan.delay_us);
        let drain = Duration::from_micros(plan.drain_us);
        if !delay.is_zero() {
            tell(format_args!("leaving: not ready from now on; clients that come are taken for {delay:?} still"));
        }
        self.0 = Step::Delay { until: Instant::now() + delay, drain };
        self.go_on(running);
    }

    /// What is due by now.
    pub(crate) fn go_on(&mut self, running: &Running) {
        let now = Instant::now();
        match self.0 {
            Step::Delay { until, drain } if now >= until => {
                tell(format_args!(
                    "draining: nobody new is taken, clients have {drain:?} ({} connected)",
                    clients(running)
                ));
                self.0 = Step::Drain { since: now, until: now + drain };
                running.drain();
            }
            Step::Drain { until, since } if now >= until => {
                let time = until - since;
                warn(format_args!(
                    "clients are still there after {time:?} ({} connected); ending them",
                    clients(running)
                ));
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

    /// The workers have ended.
    pub(crate) fn is_over(&self) {
        if let Step::Drain { since, .. } = self.0 {
            tell(format_args!("drained in {:.1?}; ended", since.elapsed()));
        }
    }
}

/// Clients that are connected.
fn clients(running: &Running) -> u64 {
    running.views().iter().map(|view| view.counters.client_connections.get()).sum()
}
