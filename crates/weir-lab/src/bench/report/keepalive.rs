//! The table of the experiment `keepalive`, its line of progress, and how it is measured.
//!
//! Called by `figures.rs` and `progress.rs`.

use super::limits::limit;
use super::numbers::{microseconds, ms};
use crate::bench::experiment::keepalive::{
    BLOCK_MS, BURN_MS, BURNS, CONNECTIONS, WORKERS, WORKERS_BLOCKED,
};
use crate::bench::record::keepalive::{Part, Probed};
use crate::bench::record::outcome::Record;
use crate::bench::record::statistics::median;

/// Heads of the table, without the first.
pub(super) const COLUMNS: &[&str] = &[
    "slower than 20 ms, of 10,000",
    "of",
    "first on its connection",
    "kept",
    "failed",
    "p50",
    "p99",
    "p99.9",
    "longest, ms",
    "first byte p99.9",
    "workers busy",
    "load answered",
    "not",
    "CPU µs",
    "idle",
    "limit",
];

/// A contender's row: sums of counts, medians of times, the longest of all rounds.
pub(super) fn row(own: &[&Record]) -> Vec<String> {
    let of =
        |read: &dyn Fn(&Record) -> f64| median(own.iter().map(|record| read(record)).collect());
    let probed: Vec<&Probed> =
        own.iter().filter_map(|record| record.special.probed.as_ref()).collect();
    let sum = |read: fn(&Probed) -> u64| probed.iter().map(|run| read(run)).sum::<u64>();
    let (slow, requests) = (sum(|run| run.slow), sum(|run| run.requests));
    let busy = |pick: fn(&[f64]) -> Option<&f64>| {
        median(probed.iter().filter_map(|run| pick(&run.busy)).map(|share| share * 100.0).collect())
    };
    let first_byte = |record: &Record| {
        let latency = record.special.probed.as_ref().and_then(|run| run.first_byte);
        latency.map_or(f64::NAN, |latency| latency.p999_us as f64)
    };
    vec![
        format!("{:.1}", slow as f64 / requests.max(1) as f64 * 1e4),
        format!("{slow} of {requests}"),
        part(&probed, |run| run.first),
        part(&probed, |run| run.kept),
        sum(|run| run.failed).to_string(),
        ms(of(&|record| record.latency_us(|latency| latency.p50_us))),
        ms(of(&|record| record.latency_us(|latency| latency.p99_us))),
        ms(of(&|record| record.latency_us(|latency| latency.p999_us))),
        ms(own
            .iter()
            .map(|record| record.latency_us(|latency| latency.max_us))
            .fold(f64::NAN, f64::max)),
        ms(of(&first_byte)),
        format!("{:.0} and {:.0} %", busy(<[f64]>::first), busy(<[f64]>::last)),
        sum(|run| run.load_answered).to_string(),
        sum(|run| run.load_failed).to_string(),
        microseconds(of(&Record::proxy_us_per_request)),
        format!("{:.0} %", of(&|record| record.idle) * 100.0),
        limit(own),
    ]
}

/// Returns the slow responses of 10,000 of one kind, over all rounds.
fn part(probed: &[&Probed], of: fn(&Probed) -> Option<Part>) -> String {
    let parts = || probed.iter().filter_map(|run| of(run));
    let (slow, answered) = (
        parts().map(|part| part.slow).sum::<u64>(),
        parts().map(|part| part.answered).sum::<u64>(),
    );
    if answered == 0 {
        "-".to_owned()
    } else {
        format!("{:.1}", slow as f64 / answered as f64 * 1e4)
    }
}

/// Returns the line of progress.
pub(super) fn progress(record: &Record) -> String {
    let Some(run) = &record.special.probed else { return String::new() };
    let ends = [run.busy.first(), run.busy.last()].into_iter().flatten();
    let busy: Vec<String> = ends.map(|share| format!("{:.0} %", share * 100.0)).collect();
    format!(
        "{:>4} of {} slow, {} failed, p99 {:>7} ms, workers busy {}",
        run.slow,
        run.requests,
        run.failed,
        ms(record.latency_us(|latency| latency.p99_us)),
        busy.join(" and ")
    )
}

/// Returns the text for the last section of the report.
pub(super) fn method() -> String {
    format!(
        "`weir probe` sends one request at a time and pauses 5 ms after each response. The server
has {WORKERS} workers that share a listening socket, so that an idle one takes a new connection.
Other requests keep them busy: each costs a worker {BURN_MS} ms of CPU time. {BURNS} of them per
second arrive at random times (Poisson) on {CONNECTIONS} kept connections. They go directly to
the server, half of them to each worker. In the last cell they go through the contender, whose
connections then decide the load of each worker.

Counts of slow responses are sums over the rounds, and times are medians. The longest time is
that of all rounds. Proxies keep connections to the server, whatever their client does. `workers
busy` is the CPU time of the less and of the more busy worker. `CPU` is that of the proxy for a
response to the probe, and in the last cell also for the load. Slow responses in the first cell
are noise of the machine.

In the cells `blocked` and `unix` the server has {WORKERS_BLOCKED} workers that sleep for
{BLOCK_MS} ms instead of computing. So they do not need the cores of the machine. Each has its
own connection past the proxy, on which such requests arrive at random times. A worker that has
accepted a connection waits for its request before it serves another connection (for 5 ms at
most). Workers that read what they accept do that.

There 16 clients send requests through the proxy before the probe. They do so for two seconds, or
until the status of weir shows `fresh` in force on all of its workers. The harness also checks
whether it still is at the end. `first on its connection` and `kept` are slow responses of 10,000
requests of that kind, by the client's connection.
"
    )
}
