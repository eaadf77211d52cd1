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
    /// Requests put on a connection, repetitions included.
    requests: Total,
    /// Requests moved to another connection before anything of them was sent.
    moves: Total,
    /// Requests sent again because a connection closed on purpose after another answer.
    resends: Total,
    /// Requests sent again on another connection because the answer in front of them was late, or
    /// once more on their own because they seem to be overlooked.
    escapes: Total,
    /// Requests sent again after a failure.
    retries: Total,
    /// Requests put on a connection that was made for them, with `pool "fresh"`.
    fresh_requests: Total,
    /// Such connections that could not be made, or ended before their answer.
    fresh_failures: Total,
    /// Times that kept connections were found to be worse, so that requests went on such.
    fresh_turns: Total,
    /// Connects begun.
    connects: Total,
    /// Connects that failed.
    connect_failures: Total,
    /// Requests that had a connection for themselves because the server is not trusted with several
    /// at once.
    apart_untrusted: Total,
    /// The same because requests of their kind are not known to be as quick as others.
    apart_unlike: Total,
    /// The same because sharing a connection costs time at the server.
    apart_costly: Total,
    /// Requests that had to wait because as many connections as there may be (`connections-max`)
    /// were in use.
    connection_waits: Total,
    /// Requests that had to wait because the server answers fewer a second when it has more at
    /// once.
    limit_waits: Total,
    /// Connections with which no request would have waited: the peak of the last minute in which
    /// requests waited.
    connections_wanted: Gauge,
    /// Times that several requests of weir's own were tried on it before it was pipelined.
    rehearsals: Total,
    /// Times that it was put back to depth 1.
    demotions: Total,
    /// Answers too many, found at a sync point or otherwise.
    surplus: Total,
    /// Times that it was suspended by health.
    suspensions: Total,
    /// Times that it came back from that.
    recoveries: Total,
    /// Probes made.
    probes: Total,
    /// Probes that failed.
    probe_failures: Total,
    /// Requests sent to it while suspended to see whether it works again.
    trials: Total,
    /// Bytes received from it.
    bytes_in: Total,
    /// Bytes sent to it.
    bytes_out: Total,
    and
    /// Its final answers (and 101) by status.
    statuses: Statuses,
    /// Doubts about its connections, by [`Doubt`].
    doubts: [Counter; Doubt::ALL.len()],
    /// Glitches on its connections, by [`UpstreamGlitch`].
    glitches: [Counter; UpstreamGlitch::COUNT],
    /// Ends of its connections and of tries to connect, by reason.
    closes: CountByKind<UpstreamEnd>,
    /// Response time in microseconds: from when a request was put on its connection to the end of
    /// its answer. With pipelining that includes the wait for the answers in front.
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
            one("answers", "class", class, "Its final responses.", count);
        }
        for (doubt, counter) in Doubt::ALL.into_iter().zip(&self.doubts) {
            one("doubts", "kind", doubt.word(), "Doubts about its connections.", counter.get());
        }
        for ((_, word, _), counter) in UpstreamGlitch::ALL.iter().zip(&self.glitches) {
            one(
                "glitches",
                "kind",
                word,
                "Unusual but legal events on its connections.",
                counter.get(),
            );
        }
        self.closes.each("closes", "Ends of its connections and of tries to connect.", visit);
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
