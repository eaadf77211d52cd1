//! The counters of one worker for one server: responses by status, response times, repetitions,
//! connects, ends.
//!
//! Written by the worker where things happen, read by any thread at any time, as
//! [`crate::observe::counters`] are. Only facts that cannot be reported later are counted here. The
//! current state of a server and its connections is reported on request
//! ([`crate::observe::report`]), so that a request never pays for it. An up-to-date gauge of each
//! connection would cost about as many stores a request as all of this. Bounds: 10 KB for each
//! server and worker. docs/semantics.md#what-you-can-observe.

use std::sync::Arc;

use crate::cross::doubt::Doubt;
use crate::ending::UpstreamEnd;
use crate::observe::counters::{Counter, Kind, Sample, counters};
use crate::observe::glitch::UpstreamGlitch;
use crate::observe::histogram::Histogram;
use crate::observe::kinds::CountByKind;
use crate::plan::Plan;

/// Lowest status with a separate count.
const STATUS_MIN: u16 = 100;
/// Statuses that are counted: 100 to 599.
const STATUSES: usize = 500;

counters! {
    /// All counters of one worker for one server.
    struct ServerStats;
    /// Requests that weir assigned to a connection, including resent ones.
    requests: Total,
    /// Requests that weir moved to another connection before it had sent any part of them.
    moves: Total,
    /// Requests that weir sent again, because a connection closed on purpose after another
    /// response.
    resends: Total,
    /// Requests that weir sent again on another connection because the response in front of theirs
    /// was late, or once more alone because the server seems to overlook them.
    escapes: Total,
    /// Requests that weir sent again after a failure.
    retries: Total,
    /// Requests that weir assigned to a connection opened for them (`pool "fresh"`).
    fresh_requests: Total,
    /// Connections for one request that weir could not open, or that ended before the response.
    fresh_failures: Total,
    /// Times that weir found kept connections to be worse, so that each request got a new one.
    fresh_turns: Total,
    /// Started connects.
    connects: Total,
    /// Failed connects.
    connect_failures: Total,
    /// Requests that had a connection to themselves, because the server is not trusted with several
    /// at once.
    apart_untrusted: Total,
    /// Requests that had a connection to themselves, because requests of their kind are not known
    /// to be as quick as others.
    apart_unlike: Total,
    /// Requests that had a connection to themselves, because sharing a connection costs time at the
    /// server.
    apart_costly: Total,
    /// Requests that waited, because all allowed connections (`connections-max`) were in use.
    connection_waits: Total,
    /// Requests that waited, because the server sends fewer responses per second when it has more
    /// requests at once.
    limit_waits: Total,
    /// Requests that waited, because the server works on as many as it may (`concurrency`).
    concurrency_waits: Total,
    /// Connections with which no request would have waited: the peak of the last minute in which
    /// requests waited.
    connections_wanted: Gauge,
    /// Times that weir tested the server with several requests of its own before it pipelined to
    /// it.
    rehearsals: Total,
    /// Times that weir put the server back to depth 1.
    demotions: Total,
    /// Surplus responses, found at a sync point or otherwise.
    surplus: Total,
    /// Times that weir suspended the server because of its health.
    suspensions: Total,
    /// Times that the server returned from a suspension.
    recoveries: Total,
    /// Probes that weir sent.
    probes: Total,
    /// Probes that failed.
    probe_failures: Total,
    /// Requests that weir sent to the suspended server to test whether it works again.
    trials: Total,
    /// Bytes received from it.
    bytes_in: Total,
    /// Bytes sent to it.
    bytes_out: Total,
    and
    /// Final responses (and 101) by status.
    statuses: Statuses,
    /// Doubts about its connections, by [`Doubt`].
    doubts: [Counter; Doubt::ALL.len()],
    /// Glitches on its connections, by [`UpstreamGlitch`].
    glitches: [Counter; UpstreamGlitch::COUNT],
    /// Ends of connections and of attempts to connect, by reason.
    closes: CountByKind<UpstreamEnd>,
    /// Response time in microseconds: from the assignment of a request to its connection to the end
    /// of its response. With pipelining that includes the wait for the responses in front.
    latency: Histogram,
}

/// Counts by status.
pub struct Statuses(Box<[Counter; STATUSES]>);

impl Default for Statuses {
    fn default() -> Statuses {
        Statuses(Box::new([const { Counter::new() }; STATUSES]))
    }
}

impl std::fmt::Debug for Statuses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Statuses {
    /// Counts a response. Only the owner may call it. A status outside of 100 to 599 counts as the
    /// nearest.
    #[inline]
    pub fn count(&self, status: u16) {
        self.0[usize::from(status.saturating_sub(STATUS_MIN)).min(STATUSES - 1)].increment();
    }

    /// Returns statuses that occurred and how often, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (u16, u64)> {
        let counts = (STATUS_MIN..).zip(self.0.iter().map(Counter::get));
        counts.filter(|(_, count)| *count > 0)
    }
}

impl ServerStats {
    /// Returns one for each slot of a plan: the order of servers everywhere in weir.
    pub fn for_plan(plan: &Plan) -> Vec<Arc<ServerStats>> {
        (0..plan.servers()).map(|_| Arc::default()).collect()
    }

    /// Counts a doubt. Only the owner may call it.
    pub fn doubt(&self, doubt: Doubt) {
        self.doubts[doubt as usize].increment();
    }

    /// Returns final responses by class, from 1xx (101 only) to 5xx.
    pub fn classes(&self) -> [u64; 5] {
        let mut classes = [0; 5];
        for (status, count) in self.statuses.iter() {
            classes[usize::from(status / 100) - 1] += count;
        }
        classes
    }

    fn each_labelled(&self, visit: &mut impl FnMut(Sample)) {
        let mut one = |name, label, value, help, counted| {
            visit(Sample {
                name,
                label: Some((label, value)),
                kind: Kind::Total,
                help,
                value: counted,
            });
        };
        for (class, count) in ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().zip(self.classes()) {
            one("answers", "class", class, "Final responses of the server.", count);
        }
        for (doubt, counter) in Doubt::ALL.into_iter().zip(&self.doubts) {
            one(
                "doubts",
                "kind",
                doubt.word(),
                "Doubts about connections to the server.",
                counter.get(),
            );
        }
        for ((_, word, _), counter) in UpstreamGlitch::ALL.iter().zip(&self.glitches) {
            one(
                "glitches",
                "kind",
                word,
                "Unusual but legal events on connections to the server.",
                counter.get(),
            );
        }
        self.closes.each(
            "closes",
            "Ends of connections to the server, and of attempts to connect.",
            visit,
        );
    }
}

#[cfg(test)]
mod tests {
    //! Proves: every status has its own count, odd ones the nearest, classes are their sums, and
    //! all are listed once. How: each status as often as its number says.

    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_status_is_counted_by_itself() {
        let stats = ServerStats::default();
        for status in 100..600 {
            (0..status % 7).for_each(|_| stats.statuses.count(status));
        }
        let expected: Vec<_> = (100..600)
            .map(|status| (status, u64::from(status % 7)))
            .filter(|(_, n)| *n > 0)
            .collect();
        assert_eq!(stats.statuses.iter().collect::<Vec<_>>(), expected);
        let class =
            |class: u16| (class * 100..class * 100 + 100).map(|status| u64::from(status % 7)).sum();
        assert_eq!(stats.classes(), [class(1), class(2), class(3), class(4), class(5)]);
    }

    #[test]
    fn a_status_that_cannot_be_counts_as_the_nearest() {
        let stats = ServerStats::default();
        [0, 99, 600, u16::MAX].into_iter().for_each(|status| stats.statuses.count(status));
        assert_eq!(stats.statuses.iter().collect::<Vec<_>>(), [(100, 2), (599, 2)]);
    }

    #[test]
    fn everything_is_listed_once() {
        let stats = ServerStats::default();
        stats.doubt(Doubt::Garbage);
        stats.closes.count(UpstreamEnd::Reset);
        stats.statuses.count(404);
        let mut seen = BTreeSet::new();
        stats.each(|sample| {
            assert!(seen.insert((sample.name, sample.label)), "{sample:?}");
            let counted = matches!(sample.label, Some((_, "garbage" | "reset" | "4xx")));
            assert_eq!(sample.value, u64::from(counted), "{sample:?}");
        });
        assert!(seen.contains(&("closes", Some(("word", "reset")))));
    }
}
