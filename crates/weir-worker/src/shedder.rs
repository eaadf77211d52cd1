//! Lets workers with too much to do give idle client connections to others, as [`Shedding`] decides
//! from the load board.
//!
//! Called by the main thread some times a second, and more often while a worker is costly. Nothing
//! is done with one worker, in a drain, or where connections to servers come from their clients'
//! addresses, because their packets are led to one worker.

use std::time::Duration;

use weir_io::clock_us;
use weir_proxy::plan::{Plan, Source};

use crate::shedding::{Load, Shedding};
use crate::start::Handle;

/// How soon to look again while a worker is costly.
const SOON: Duration = Duration::from_millis(20);
/// A worker with more than this share of the connections that it may have is given none, in
/// percent.
const FULL: u64 = 90;

/// See the module.
#[derive(Debug)]
pub struct Shedder {
    handle: Handle,
    shedding: Shedding,
}

impl Shedder {
    pub(crate) fn new(handle: Handle) -> Shedder {
        let shedding = Shedding::new(handle.board().lines().len());
        Shedder { handle, shedding }
    }

    /// Checks the workers, and tells them to give connections away if necessary. `plan`: the plan
    /// in force. Returns how soon to look again, if soon.
    pub fn look(&mut self, plan: &Plan) -> Option<Duration> {
        let is_led =
            |upstream: &weir_proxy::plan::UpstreamPlan| upstream.dial.source == Source::Client;
        if self.handle.board().lines().len() < 2
            || self.handle.is_ending()
            || plan.upstreams.iter().any(is_led)
        {
            return None;
        }
        let now_us = clock_us();
        let most =
            plan.client.connections_max.map_or(u64::MAX, |most| u64::from(most) * FULL / 100);
        let loads: Vec<Load> = (self.handle.board().lines().iter())
            .map(|line| {
                let sessions = line.sessions.load(std::sync::atomic::Ordering::Relaxed);
                let takes = line.accepts() && !line.is_late(now_us) && u64::from(sessions) < most;
                Load { cost_ns: line.cost(now_us), sessions, takes }
            })
            .collect();
        for step in self.shedding.look(Duration::from_micros(now_us), &loads) {
            // A worker that still has many commands to carry out gets this one at another look.
            let _ = self.handle.shed(step.from, step.to as u16, step.most);
        }
        self.shedding.is_on_watch().then_some(SOON)
    }
}
