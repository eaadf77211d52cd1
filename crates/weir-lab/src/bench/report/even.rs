//! The tables of the experiments `ladder`, `taken-core` and `reload`, their lines of progress, and
//! how they are measured.
//!
//! Called by `figures.rs` and `progress.rs`.

use super::limits::limit;
use super::numbers::{error_text, microseconds, ms, number};
use crate::bench::experiment::even::{
    ASKS_EVERY_MS, BESIDE, BURST, CLIENTS, OPENED_A_SECOND, TAKEN_A_SECOND, TAKEN_US,
};
use crate::bench::experiment::metric::Metric;
use crate::bench::experiment::reload::{BURST as OPENED_AT_A_TIME, EVERY_MS, PAUSE_MS, THREADS};
use crate::bench::record::answers::Errors;
use crate::bench::record::even::{Laddered, Reloads, deviation};
use crate::bench::record::outcome::Record;
use crate::bench::record::statistics::{Spread, middle};

/// Heads of the table of a ladder, without the first.
pub(super) const LADDER: &[&str] = &[
    "connections: most / least",
    "standard deviation",
    "of each worker, first round",
    "CPU: most / least",
    "standard deviation",
    "% of a core of each worker",
    "answers /s",
    "CPU µs",
    "errors",
    "idle",
    "limit",
];

/// Figures of a ladder whose medians are in the raw data.
pub(super) const MEDIANS: &[(&str, Metric)] = &[
    ("connections_most_to_least", Metric::ConnectionsLadder),
    ("cpu_most_to_least", Metric::CpuLadder),
    ("cpu_us_per_request", Metric::Cpu),
];

/// Heads of the table of a core that is taken.
pub(super) const TAKEN: &[&str] = &[
    "p50",
    "p99",
    "p99.9",
    "max, ms",
    "rate /s",
    "errors",
    "CPU µs",
    "core taken",
    "by",
    "idle",
    "limit",
];

/// Heads of the table of reloads.
pub(super) const RELOADED: &[&str] =
    &["reloads", "connections", "connections /s", "refused, reset or not answered", "idle"];

/// Returns a contender's row in the table of a ladder. Workers are in the order of their numbers,
/// in both lists.
pub(super) fn ladder_row(own: &[&Record]) -> Vec<String> {
    let spread = |metric| {
        let spread = Spread::of(own.iter().map(|record| record.figure(metric)));
        spread.map_or("-".to_owned(), |Spread { low, median, high }| {
            format!("{median:.2} ({low:.2}-{high:.2})")
        })
    };
    let share = |of: fn(&Laddered) -> &[u64]| {
        let percent = |record: &Record| {
            record.special.ladder.as_ref().map_or(f64::NAN, |ladder| deviation(of(ladder)))
        };
        format!("{} %", number(middle(own, &percent) * 100.0, 1))
    };
    let first =
        own.iter().find_map(|record| Some((record.special.ladder.as_ref()?, record.wall_us)));
    let each = |text: &dyn Fn(&Laddered, f64) -> Vec<String>| {
        first.map_or("-".to_owned(), |(ladder, wall_us)| text(ladder, wall_us).join(" "))
    };
    vec![
        spread(Metric::ConnectionsLadder),
        share(|ladder| &ladder.connections),
        each(&|ladder, _| ladder.connections.iter().map(u64::to_string).collect()),
        spread(Metric::CpuLadder),
        share(|ladder| &ladder.cpu_us),
        each(&|ladder, wall_us| {
            ladder.cpu_us.iter().map(|us| number(*us as f64 / wall_us * 100.0, 2)).collect()
        }),
        number(middle(own, &|record| record.rate), 0),
        microseconds(middle(own, &Record::proxy_us_per_request)),
        errors(own),
        format!("{} %", number(middle(own, &|record| record.idle) * 100.0, 0)),
        limit(own),
    ]
}

/// Returns a contender's row in the table of a core that is taken.
pub(super) fn taken_row(own: &[&Record]) -> Vec<String> {
    let of = |read: &dyn Fn(&Record) -> f64| middle(own, read);
    let taken: Vec<_> = own.iter().filter_map(|record| record.special.taken).collect();
    let is_realtime = !taken.is_empty() && taken.iter().all(|taken| taken.is_realtime);
    let share = of(&|record| record.special.taken.map_or(f64::NAN, |taken| taken.share));
    vec![
        ms(of(&|record| record.latency_us(|latency| latency.p50_us))),
        ms(of(&|record| record.latency_us(|latency| latency.p99_us))),
        ms(of(&|record| record.latency_us(|latency| latency.p999_us))),
        ms(of(&|record| record.latency_us(|latency| latency.max_us))),
        number(of(&|record| record.rate), 0),
        errors(own),
        microseconds(of(&Record::proxy_us_per_request)),
        format!("{} %", number(share * 100.0, 0)),
        if is_realtime { "SCHED_FIFO" } else { "nice -20" }.to_owned(),
        format!("{} %", number(of(&|record| record.idle) * 100.0, 0)),
        // The harness itself takes the core.
        super::limits::generator_limit(own)
            .map_or_else(String::new, |cause| format!("**the generator**: {cause}")),
    ]
}

/// Returns a contender's row in the table of reloads.
pub(super) fn reload_row(own: &[&Record]) -> Vec<String> {
    let sum = |of: fn(&Reloads) -> u64| {
        own.iter().filter_map(|record| record.special.reloads.as_ref()).map(of).sum()
    };
    let count = |value: u64| number(value as f64, 0);
    vec![
        count(sum(|reloads| u64::from(reloads.times))),
        count(sum(|reloads| reloads.connections)),
        number(middle(own, &|record| record.rate), 0),
        errors(own),
        format!("{} %", number(middle(own, &|record| record.idle) * 100.0, 0)),
    ]
}

fn errors(own: &[&Record]) -> String {
    let mut errors = Errors::default();
    own.iter().flat_map(|record| &record.errors).for_each(|(kind, count)| {
        *errors.entry(kind.clone()).or_default() += count;
    });
    error_text(&errors)
}

/// Returns the line of progress of a ladder.
pub(super) fn ladder_progress(record: &Record) -> String {
    let connections = record.special.ladder.as_ref().map_or(&[][..], |ladder| &ladder.connections);
    let each: Vec<String> = connections.iter().map(u64::to_string).collect();
    format!(
        "connections {} ({}), CPU {}, {:>5.0}/s, {} errors",
        number(record.figure(Metric::ConnectionsLadder), 2),
        each.join(" "),
        number(record.figure(Metric::CpuLadder), 2),
        record.rate,
        record.errors.values().sum::<u64>()
    )
}

/// Returns the line of progress of a core that is taken.
pub(super) fn taken_progress(record: &Record) -> String {
    let taken = record.special.taken.unwrap_or_default();
    format!(
        "p50 {:>6}, p99 {:>6}, p99.9 {:>6} ms, core taken {} times ({:.0} %), {} errors",
        ms(record.latency_us(|latency| latency.p50_us)),
        ms(record.latency_us(|latency| latency.p99_us)),
        ms(record.latency_us(|latency| latency.p999_us)),
        taken.times,
        taken.share * 100.0,
        record.errors.values().sum::<u64>()
    )
}

/// Returns the line of progress of reloads.
pub(super) fn reload_progress(record: &Record) -> String {
    let reloads = record.special.reloads.unwrap_or_default();
    format!(
        "{} reloads, {} connections, {:>5.0}/s, refused, reset or not answered: {}",
        reloads.times,
        reloads.connections,
        record.rate,
        errors(&[record])
    )
}

/// Returns the text for the last section of the report on ladders.
pub(super) fn ladder_method() -> String {
    format!(
        "Contenders take turns within each round (A B C A B C ...), each freshly started.
{CLIENTS} clients connect, {OPENED_A_SECOND} per second: one by one, or {BURST} at a time. Each
client sends a request at once and then every {ASKS_EVERY_MS} ms, up to half of that more or less
each time, and stays connected. Responses are a few bytes from `weir origin` with one thread,
which is as far from one worker as from another.

When all clients are connected, the CPU time of each worker is counted for the seconds of the
run, and then its client connections. No client sends more requests than another, so the only
difference is which clients each worker has.

Connections come from `/proc` for the processes of nginx, and from `show fd` for the threads of
HAProxy. For the workers of weir, they come from `clients` in its status. `most / least` counts a
worker with no connection as one with a single connection, and a worker with no CPU time as one
with a microsecond. Standard deviations are shares of the mean. The lists of the first round have
the workers in one order.

nginx has one worker per core or as many as the cell says, pinned, without a log. `nginx` has a
socket for each of them (`reuseport`) and takes all waiting connections at a time (`multi_accept
on`). `nginx-shared` has one socket for all, and its default `multi_accept off`. `haproxy` has
`shards by-thread` and `tune.maxaccept 500`. `haproxy-shared` has neither, which is its default:
a thread that accepts gives the connection to one that has fewer. Threads are pinned if there is
one per core. `weir` has its defaults, and `weir-hash` has `accept-by \"hash\"`.
"
    )
}

/// Returns the text for that of a core that is taken.
pub(super) fn taken_method() -> String {
    let (connections, rate) = BESIDE;
    let ms = TAKEN_US / 1000;
    format!(
        "Contenders take turns within each round (A B C A B C ...), each freshly started. A
thread of the harness takes the first core for {ms} ms {TAKEN_A_SECOND} times a second, and spins
there. The moments are random (Poisson), and the same for all contenders of a round. The thread
is real-time (SCHED_FIFO), so that no other program runs there meanwhile. If it may not be, it
has a nice value of -20. The table shows which, and the share of the time that it had. That is
about 35 %, and below the limit of the kernel for real-time threads (`sched_rt_runtime_us`, 95 %
of a second).

{connections} kept connections send {rate} requests per second on schedule, and latency counts
from when a request was due. Generator and server run only on the other cores, so that only the
contender is late. `direct` shows the lateness without a contender. Contenders have two seconds
to leave the core before counting starts.

`nginx` and `haproxy` have one worker per core, each pinned to one (`worker_cpu_affinity auto`,
`cpu-map`), as guides to fast proxies recommend. `-unpinned` have the same without pinning.
`weir` has its defaults (`accept-by \"even\"`, `pinning \"soft\"`). `weir-hash-hard` has `accept-by
\"hash\"` and `pinning \"hard\"`, so no part of it considers lateness.
"
    )
}

/// Returns the text for that of reloads.
pub(super) fn reload_method() -> String {
    format!(
        "Contenders take turns within each round (A B C A B C ...), each freshly started with one
worker per core, at least two. {THREADS} threads open {OPENED_AT_A_TIME} connections each, and
send a request on each with `Connection: close`. They read the responses, and repeat that after
{PAUSE_MS} ms, so some connections always wait to be accepted.

Every {EVERY_MS} ms a configuration with one worker less than before, or one more, takes effect.
If each worker has its own listening socket, one of these is closed or opened. nginx gets SIGHUP,
and HAProxy (`-W`) gets SIGUSR2. weir gets `weir upgrade`, which starts the new program. Each
reloads in its own way.

A refused connection was not made, a reset one ended with an error, and a closed one ended
without a response. A connection is cut off if its response was incomplete, and late if it has no
response after ten seconds. The figures are sums over all rounds.

`nginx` has a socket for each worker (`reuseport`), and `nginx-shared` has one for all. `haproxy`
has `shards by-thread`. `weir` has its defaults, where eBPF gives connections of a socket that
closes to another one. `weir-hash` has `accept-by \"hash\"`.
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::even::Taken;

    #[test]
    fn rows_have_a_figure_for_each_column() {
        let mut record = Record { wall_us: 1e6, requests: 10, ..Record::default() };
        record.special.ladder =
            Some(Laddered { connections: vec![300, 100], cpu_us: vec![20_000, 10_000] });
        record.special.reloads = Some(Reloads { times: 9, connections: 20_000 });
        record.errors.insert("reset".to_owned(), 2);
        let reload = reload_row(&[&record]);
        assert_eq!(reload.len(), RELOADED.len());
        assert_eq!(reload[..2], ["9", "20000"]);
        record.special.taken = Some(Taken { is_realtime: true, times: 3, share: 0.35 });
        let (ladder, taken) = (ladder_row(&[&record]), taken_row(&[&record]));
        assert_eq!((ladder.len(), taken.len()), (LADDER.len(), TAKEN.len()));
        assert_eq!(ladder[..3], ["3.00 (3.00-3.00)", "50.0 %", "300 100"]);
        assert_eq!(ladder[3..6], ["2.00 (2.00-2.00)", "33.3 %", "2.00 1.00"]);
        assert_eq!(taken[7..9], ["35 %", "SCHED_FIFO"]);
    }
}
