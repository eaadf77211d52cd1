//! The tables of the experiment `mixed`, its line of progress, and how it is measured.
//!
//! Called by `figures.rs` and `progress.rs`.

use super::limits::limit;
use super::numbers::{error_text, microseconds, ms, number};
use crate::bench::experiment::metric::Metric;
use crate::bench::experiment::mixed::LATE_US;
use crate::bench::record::answers::Errors;
use crate::bench::record::mixed::Mixed;
use crate::bench::record::outcome::Record;
use crate::bench::record::statistics::middle;

/// Heads of the table, without the first.
pub(super) const COLUMNS: &[&str] = &[
    "rate /s",
    "p50",
    "p99",
    "p99.9",
    "max, ms",
    "over 8 ms",
    "executed twice",
    "beside: rate /s",
    "beside: p99",
    "errors",
    "connections for 1,000 requests",
    "CPU µs: proxy",
    "idle",
    "limit",
];

/// Figures whose medians are in the raw data besides the usual ones.
pub(super) const MEDIANS: &[(&str, Metric)] = &[
    ("p999_us", Metric::P999),
    ("late_percent", Metric::LatePercent),
    ("executed_twice", Metric::Twice),
    ("connects_per_1000_requests", Metric::ConnectsPerThousand),
];

/// Returns a contender's row: medians, and the requests executed twice in all rounds.
pub(super) fn row(own: &[&Record]) -> Vec<String> {
    let of = |read: &dyn Fn(&Record) -> f64| middle(own, read);
    let seen = || own.iter().filter_map(|record| record.special.mixed.as_ref());
    let slowest = |run: &Mixed| run.beside.first().and_then(|beside| beside.latency);
    let beside =
        |read: &dyn Fn(&Mixed) -> f64| of(&|r| r.special.mixed.as_ref().map_or(f64::NAN, read));
    let mut errors = Errors::default();
    own.iter().flat_map(|record| &record.errors).for_each(|(kind, count)| {
        *errors.entry(kind.clone()).or_default() += count;
    });
    vec![
        number(of(&|r| r.rate), 0),
        ms(of(&|r| r.latency_us(|latency| latency.p50_us))),
        ms(of(&|r| r.latency_us(|latency| latency.p99_us))),
        ms(of(&|r| r.latency_us(|latency| latency.p999_us))),
        ms(of(&|r| r.latency_us(|latency| latency.max_us))),
        format!("{} %", number(of(&|r| r.figure(Metric::LatePercent)), 2)),
        twice(seen()),
        number(beside(&|run| run.beside.first().map_or(f64::NAN, |beside| beside.rate)), 0),
        ms(beside(&|run| slowest(run).map_or(f64::NAN, |latency| latency.p99_us as f64))),
        error_text(&errors),
        number(of(&|r| r.figure(Metric::ConnectsPerThousand)), 2),
        microseconds(of(&Record::proxy_us_per_request)),
        format!("{} %", number(of(&|r| r.idle) * 100.0, 0)),
        limit(own),
    ]
}

/// `3 of 20,000`; `-` where requests have no numbers.
fn twice<'a>(seen: impl Iterator<Item = &'a Mixed>) -> String {
    let counted: Vec<(u64, u64)> =
        seen.filter_map(|run| Some((run.twice?, run.numbered?))).collect();
    let sum = |read: fn(&(u64, u64)) -> u64| counted.iter().map(read).sum::<u64>();
    if counted.is_empty() {
        "-".to_owned()
    } else {
        format!("{} of {}", sum(|it| it.0), sum(|it| it.1))
    }
}

/// Returns the line of progress.
pub(super) fn progress(record: &Record) -> String {
    let seen = record.special.mixed.as_ref();
    let repeats = twice(seen.into_iter());
    format!(
        "{:>6.0}/s, p50 {:>7}, p99 {:>7}, p99.9 {:>7} ms, {} % over 8 ms, {} connections{}, {} \
            errors",
        record.rate,
        ms(record.latency_us(|latency| latency.p50_us)),
        ms(record.latency_us(|latency| latency.p99_us)),
        ms(record.latency_us(|latency| latency.p999_us)),
        number(record.figure(Metric::LatePercent), 2),
        record.upstream_connections,
        if repeats == "-" { String::new() } else { format!(", executed twice {repeats}") },
        record.errors.values().sum::<u64>()
    )
}

/// Returns the text for the last section of the report.
pub(super) fn method() -> String {
    let late_ms = LATE_US / 1000;
    format!(
        "Contenders take turns within each round (A B C A B C ...). Each run starts `weir origin`
and the contender, so no run profits from what another has learned. One process of `weir bomb`
makes all requests of a cell, with a class for each kind of clients. It connects and warms up
before anything counts. Ratios are taken within a round.

A row shows the clients that the title of the cell names. By the clock, latency counts from when
a request was due; in a loop, from when it was sent. `rate` counts responses with 2xx. `over 8
ms` is the share of their responses that took more than {late_ms} ms. `beside` shows the first of
the other clients. `CPU` is the CPU time of the proxy for each response to any client.
Connections are those that the origin accepted in the whole run, including the warm-up.

Clients that pause are requests at random moments (Poisson). N clients whose responses take 25 ms
and that pause for 25 ms on average send N x 20 per second on N connections. All requests of
`late` have one shape, so slow and fast ones differ only in their query. In `twice` each request
except the `/fast` ones has a number, and the origin logs what it gets. `executed twice` counts
repeated numbers over all rounds. The server closes no connection there, so no request needs a
repetition.

In `lock` a request takes 20 ms while at most 32 are in progress, and longer by the square of the
excess beyond. So with 64 the server finishes half as many per second. In `prefork` the origin
has 16 threads that accept one connection each. Further connections wait until one is closed, and
the origin closes a connection after 5 s without a request.

nginx has a worker for each core and up to 4,096 kept upstream connections for each worker.
HAProxy has a thread for each core, `http-reuse always`, and keeps its upstream connections.
`haproxy-32` has `maxconn 32` for its server and queues the others. `weir` has its defaults, and
`weir-off` has `pipeline off`.
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::answers::Latency;
    use crate::bench::record::mixed::Beside;

    #[test]
    fn a_row_has_a_figure_for_each_column_and_sums_what_was_executed_twice() {
        let run = |twice| {
            let latency = Some(Latency { p99_us: 26_000, ..Latency::default() });
            let beside = vec![Beside { path: "/slow".to_owned(), rate: 160.0, latency }];
            let mut record = Record {
                requests: 2000,
                upstream_connections: 20,
                rate: 999.6,
                ..Record::default()
            };
            record.special.mixed =
                Some(Mixed { answered: 1000, late: 5, beside, numbered: Some(700), twice });
            record
        };
        let [first, second] = [Some(2), Some(0)].map(run);
        let cells = row(&[&first, &second]);
        assert_eq!(cells.len(), COLUMNS.len());
        assert_eq!(
            (&*cells[0], &cells[5..11]),
            ("1000", &["0.50 %", "2 of 1400", "160", "26", "0", "10.00"].map(str::to_owned)[..])
        );
        assert!(
            progress(&first)
                .contains("0.50 % over 8 ms, 20 connections, executed twice 2 of 700, 0 errors"),
            "{}",
            progress(&first)
        );
        let unnumbered = run(None);
        assert_eq!(row(&[&unnumbered])[6], "-");
        assert!(!progress(&unnumbered).contains("executed"));
    }
}
