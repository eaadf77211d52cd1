//! Events of servers, as lines on standard error. Called by `run` between two checks of the
//! workers.
//!
//! Bound: [`LINES_MAX`] lines a second; further ones are counted and their number is logged.
//! Workers never wait for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_proxy::cross::standing::Order;
use weir_proxy::observe::server_event::{Event, What};
use weir_proxy::plan::Plan;

use crate::log::{self, Line};
use crate::reload::Desk;

/// Lines in one second: a hundred servers that fail together are news, a thousand lines are noise.
const LINES_MAX: u32 = 20;

/// Prints events.
pub(crate) struct Journal {
    plan: Arc<Plan>,
    /// Of the plan in force: see [`Desk::news`].
    number: u64,
    /// Beginning of the current second.
    second: Instant,
    lines: u32,
    /// Lines of that second that were not printed.
    dropped: u64,
}

impl Journal {
    pub(crate) fn new(plan: Arc<Plan>) -> Journal {
        Journal { plan, number: 0, second: Instant::now(), lines: 0, dropped: 0 }
    }

    /// Follows the plan in force, to know servers that were added.
    pub(crate) fn follow(&mut self, desk: &Desk) {
        if let Some(current) = desk.news(self.number) {
            (self.plan, self.number) = (current.plan, current.number);
        }
    }

    /// Returns the plan in force.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Prints events, as far as the bound allows.
    pub(crate) fn write(&mut self, events: impl Iterator<Item = Event>) {
        for line in self.take(events, Instant::now()) {
            line.log();
        }
    }

    fn take(&mut self, events: impl Iterator<Item = Event>, now: Instant) -> Vec<Line> {
        let mut lines = Vec::new();
        if now.duration_since(self.second) >= Duration::from_secs(1) {
            if self.dropped > 0 {
                let sentence = "more changes of servers in one second are not shown";
                lines.push(log::Event::ServersHidden.says(sentence).with("count", self.dropped));
            }
            (self.second, self.lines, self.dropped) = (now, 0, 0);
        }
        for event in events {
            let Some(line) = line(event, &self.plan) else { continue };
            if self.lines < LINES_MAX {
                self.lines += 1;
                lines.push(line);
            } else {
                self.dropped += 1;
            }
        }
        lines
    }
}

/// Returns the line of an event; None: it has none.
fn line(event: Event, plan: &Plan) -> Option<Line> {
    let kind = match event.what {
        What::Suspended(_) => log::Event::ServerSuspended,
        What::Recovered => log::Event::ServerRecovered,
        What::Ordered(Order::Enable) => log::Event::ServerEnabled,
        What::Ordered(Order::Drain) => log::Event::ServerDraining,
        What::Ordered(Order::Disable) => log::Event::ServerDisabled,
        What::Unreachable(_) => log::Event::ServerUnreachable,
        What::Reachable => log::Event::ServerReachable,
        What::Demoted(_) => log::Event::ServerDoubted,
        What::Surplus => log::Event::ServerSurplus,
        What::Unfit(_) => log::Event::ServerUnfit,
        What::Judged(_) | What::Cleared => return None,
    };
    let (upstream, name) = event.place(plan)?;
    let line = kind.says(event.text(plan)?);
    Some(line.with("upstream", &upstream.name).with("server", name))
}

#[cfg(test)]
mod tests {
    //! Proves: a flood is cut to its bound, and the rest is counted. How: one.

    use super::*;
    use weir_proxy::observe::server_event::What;
    use weir_proxy::plan::{ServerPlan, UpstreamPlan};

    #[test]
    fn a_flood_is_counted() {
        let servers = vec![ServerPlan::new("a:1", ([127, 0, 0, 1], 1).into())];
        let upstream = UpstreamPlan { name: "app".to_owned(), servers, ..UpstreamPlan::default() };
        let mut journal =
            Journal::new(Arc::new(Plan { upstreams: vec![upstream], ..Plan::default() }));
        let flood = || (0..30).map(|_| Event { server: 0, what: What::Recovered });
        let start = journal.second;
        assert_eq!(journal.take(flood(), start).len(), 20);
        assert_eq!(journal.take(flood(), start).len(), 0);
        let later = journal.take(flood().take(1), start + Duration::from_secs(1));
        assert_eq!(
            later[0].to_string(),
            "servers-hidden: more changes of servers in one second are not shown count=40"
        );
        assert_eq!(
            later[1].to_string(),
            "server-recovered: a good response to one request upstream=app server=a:1"
        );
        assert_eq!(later.len(), 2);
    }
}
