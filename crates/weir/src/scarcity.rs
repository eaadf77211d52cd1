//! Warns operators when clients wait because descriptors or connections to a server are scarce. The
//! main thread calls it regularly.

use std::time::{Duration, Instant};

use weir_proxy::plan::Plan;
use weir_worker::{Running, View};

use crate::log::{Event, Line};

/// Shortest time between two warnings.
const EVERY: Duration = Duration::from_secs(60);

/// Warns when weir cannot accept clients because descriptors are scarce, or when requests wait for
/// connections.
pub(crate) struct Scarcity {
    before: u64,
    /// Earliest time of the next warning.
    next: Instant,
    shortage: Shortage,
}

impl Scarcity {
    /// No warning yet.
    pub(crate) fn new() -> Scarcity {
        Scarcity { before: 0, next: Instant::now(), shortage: Shortage::new() }
    }

    /// Checks whether accepting was held back since the last warning, and whether requests waited.
    pub(crate) fn look(&mut self, running: &Running, plan: &Plan) {
        self.shortage.look(running, plan);
        let held_back: u64 =
            running.views().iter().map(|view| view.counters.accept_failures.get()).sum();
        if held_back == self.before || Instant::now() < self.next {
            return;
        }
        let times = held_back - std::mem::replace(&mut self.before, held_back);
        self.next = Instant::now() + EVERY;
        let sentence = "clients wait to be accepted, and weir closes idle ones; raise the limit \
                        (ulimit -n, LimitNOFILE=) or set `connections`";
        Event::DescriptorsScarce.says(sentence).with("held-back", times).log();
    }
}

/// Warns when requests wait for connections to a server.
struct Shortage {
    /// By server: the counts at the last check.
    before: Vec<Waits>,
    next: Instant,
}

/// Requests of a server: all, those that waited because the largest number of connections was in
/// use, and those that waited because more at once were found to be worse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Waits {
    requests: u64,
    connections: u64,
    limit: u64,
}

impl Waits {
    fn of(views: &[View], server: usize) -> Waits {
        views.iter().filter_map(|view| view.servers.get(server)).fold(
            Waits::default(),
            |sum, stats| Waits {
                requests: sum.requests + stats.requests.get(),
                connections: sum.connections + stats.connection_waits.get(),
                limit: sum.limit + stats.limit_waits.get(),
            },
        )
    }

    /// The warning for a server, if at least 1 % of its requests waited since.
    fn line(
        self,
        before: Waits,
        (upstream, server): (&str, &str),
        most: u32,
        wanted: u64,
    ) -> Option<Line> {
        let since = |now: u64, before: u64| now.saturating_sub(before);
        let requests = since(self.requests, before.requests);
        let (connections, limit) =
            (since(self.connections, before.connections), since(self.limit, before.limit));
        if (connections + limit) * 100 < requests.max(1) {
            return None;
        }
        let about = |line: Line, waited: u64| {
            let line = line.with("upstream", upstream).with("server", server);
            line.with("waited", waited).with("requests", requests)
        };
        let line = if connections >= limit {
            let sentence = "requests wait because all connections are in use; raise \
                            `connections-max` if the server can work on more at once, else add \
                            servers";
            about(Event::ConnectionsScarce.says(sentence), connections)
                .with("connections-max", most)
        } else {
            let sentence = "requests wait because the server answers fewer per second when it has \
                            more at once (`weir status server` shows the limit); add servers";
            about(Event::ServerSaturated.says(sentence), limit)
        };
        Some(line.with("needed", wanted))
    }
}

impl Shortage {
    /// No warning yet.
    fn new() -> Shortage {
        Shortage { before: Vec::new(), next: Instant::now() + EVERY }
    }

    /// Checks once a minute whether requests waited.
    fn look(&mut self, running: &Running, plan: &Plan) {
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + EVERY;
        let views = running.views();
        let places = plan.places();
        self.before.resize(places.len(), Waits::default());
        for (at, (upstream, index)) in places.into_iter().enumerate() {
            let now = Waits::of(views, at);
            let before = std::mem::replace(&mut self.before[at], now);
            let Some(upstream) = plan.upstreams.get(usize::from(upstream)) else { continue };
            let Some(server) = upstream.servers.get(usize::from(index)) else { continue };
            let wanted = views
                .iter()
                .filter_map(|view| view.servers.get(at))
                .map(|stats| stats.connections_wanted.get());
            let name = (upstream.name.as_str(), server.name.as_str());
            if let Some(line) = now.line(before, name, server.connections_max, wanted.sum()) {
                line.log();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: operators get a warning with a remedy when 1 % of the requests wait. How: a table.

    use super::*;

    #[test]
    fn one_in_a_hundred_is_told() {
        let before = Waits { requests: 1_000, connections: 50, limit: 7 };
        for (requests, connections, limit, expected) in [
            (0, 0, 0, None),
            (10_000, 99, 0, None),
            (10_000, 100, 0, Some("connections-max=64 needed=91")),
            (10_000, 60, 40, Some("raise `connections-max`")),
            (0, 1, 0, Some("waited=1 requests=0")),
            (100, 1, 5, Some("waited=5 requests=100 needed=91")),
        ] {
            let now = Waits {
                requests: 1_000 + requests,
                connections: 50 + connections,
                limit: 7 + limit,
            };
            let line = now.line(before, ("app", "a:1"), 64, 91).map(|line| line.to_string());
            match (expected, &line) {
                (None, None) => {}
                (Some(part), Some(line)) => {
                    assert!(
                        line.contains(part) && line.contains(" upstream=app server=a:1 "),
                        "{line}"
                    )
                }
                _ => panic!("{requests} {connections} {limit}: {line:?}"),
            }
        }
        // Another server takes the place of one that has left, and counts from zero.
        assert_eq!(Waits::default().line(before, ("app", "a:1"), 64, 0), None);
    }
}
