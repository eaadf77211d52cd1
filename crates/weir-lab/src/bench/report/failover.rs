//! The table of the experiment `failover`, its line of progress, and how it is measured.
//!
//! Called by `figures.rs` and `progress.rs`.

use super::numbers::{error_text, microseconds, ms};
use crate::bench::experiment::failover::{READS, WRITES};
use crate::bench::record::answers::{Errors, Latency};
use crate::bench::record::failover::{Failover, Requests};
use crate::bench::record::outcome::Record;
use crate::bench::record::statistics::median;
use crate::units::grouped;

/// Heads of the table, without the first.
pub(super) const COLUMNS: &[&str] = &[
    "GETs answered 2xx",
    "failed",
    "p50",
    "p99",
    "p99.9",
    "longest, ms",
    "POSTs answered 2xx",
    "failed",
    "p99",
    "longest, ms",
    "came twice",
    "seconds with failures",
    "last failure after, s",
    "CPU µs",
    "idle",
    "limit",
];

/// A contender's row: medians of times, sums of what failed, the worst of the rest.
pub(super) fn row(own: &[&Record]) -> Vec<String> {
    let runs: Vec<&Failover> =
        own.iter().filter_map(|record| record.special.failover.as_ref()).collect();
    let (reads, writes): (Vec<&Requests>, Vec<&Requests>) =
        runs.iter().map(|run| (&run.reads, &run.writes)).unzip();
    let longest =
        |of: &[&Requests]| ms(of.iter().map(|run| run.latency.max_us).max().unwrap_or(0) as f64);
    let last = runs.iter().filter_map(|run| run.last_failure_s).reduce(f64::max);
    let limit = own.iter().find_map(|record| record.generator_limit.as_ref());
    vec![
        share(&reads),
        failed(&reads),
        typical(&reads, |latency| latency.p50_us),
        typical(&reads, |latency| latency.p99_us),
        typical(&reads, |latency| latency.p999_us),
        longest(&reads),
        share(&writes),
        failed(&writes),
        typical(&writes, |latency| latency.p99_us),
        longest(&writes),
        runs.iter().map(|run| run.writes_twice).sum::<u64>().to_string(),
        runs.iter().map(|run| run.seconds_failed).max().unwrap_or(0).to_string(),
        last.map_or_else(|| "-".to_owned(), |last| format!("{last:.2}")),
        microseconds(median(own.iter().map(|record| record.proxy_us_per_request()).collect())),
        format!("{:.0} %", median(own.iter().map(|record| record.idle * 100.0).collect())),
        limit.map_or_else(String::new, |cause| format!("**the generator**: {cause}")),
    ]
}

fn typical(runs: &[&Requests], time: fn(&Latency) -> u64) -> String {
    ms(median(runs.iter().map(|run| time(&run.latency) as f64).collect()))
}

/// Returns the percentage of 2xx responses over all rounds; 100 only when it was all.
fn share(runs: &[&Requests]) -> String {
    let (good, offered) =
        runs.iter().fold((0, 0), |(good, offered), run| (good + run.good, offered + run.offered));
    if good == offered {
        return "all".to_owned();
    }
    // Rounded down, so that a shortfall shows.
    format!("{:.2} %", (good as f64 / offered as f64 * 1e4).floor() / 1e2)
}

fn failed(runs: &[&Requests]) -> String {
    let mut all = Errors::new();
    for (kind, count) in runs.iter().flat_map(|run| &run.failed) {
        *all.entry(kind.clone()).or_default() += count;
    }
    error_text(&all)
}

/// Returns the line of progress.
pub(super) fn progress(record: &Record) -> String {
    let Some(run) = &record.special.failover else { return String::new() };
    let one = |requests: &Requests| {
        let failed = requests.offered - requests.good;
        format!(
            "{failed:>4} of {:>6} failed, p99 {:>7} ms",
            requests.offered,
            ms(requests.latency.p99_us as f64)
        )
    };
    format!("GET {}; POST {}, {} twice", one(&run.reads), one(&run.writes), run.writes_twice)
}

/// Returns the text for the last section of the report.
pub(super) fn method() -> String {
    let ((reads, readers), (writes, writers)) = (READS, WRITES);
    format!(
        "Clients send requests by the clock: {} GETs per second on {} connections, and {writes}
POSTs per second on {writers}. These are so many connections that none waits for the slow
response of another. `failed` is everything except a response with 2xx, by kind, summed over the
rounds. Times are medians over the rounds and count from when a request was due, including
requests that failed with a status. The longest time, and the times of failures, are those of the
worst round. `came twice` are POSTs that servers got once too often. The numbers that POSTs carry
show that, because servers write each down before they respond. The fault begins after a quarter
of the run.

All proxies have the same timeouts: 1 s for a connect, 2 s for a response, and three tries (weir:
6 s in total). None may send a POST twice. nginx has `proxy_next_upstream error timeout http_502
http_503 http_504` and `max_fails=3 fail_timeout=1s`, shared by a zone. HAProxy has `option
redispatch 1`, `retries 2`, and, except for POST, `retry-on conn-failure empty-response
response-timeout 502 503 504`. It also has probes each second (`fall 2 rise 2`) and `observe
layer7 error-limit 10 on-error mark-down`. weir has probes each second (`fall=2 rise=2`),
`failover \"5xx\"`, `forward-timeout \"6s\"`, and otherwise its defaults.
",
        grouped(u64::from(reads)),
        grouped(u64::from(readers))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_never_rounded_up_to_all() {
        let run = |good, offered| Requests { good, offered, ..Requests::default() };
        assert_eq!(share(&[&run(10, 10), &run(5, 5)]), "all");
        assert_eq!(share(&[&run(99_999, 100_000)]), "99.99 %");
    }
}
