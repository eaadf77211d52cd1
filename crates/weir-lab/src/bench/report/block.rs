//! The tables of the experiment `block`, its line of progress, and how it is measured.
//!
//! Called by `figures.rs` and `progress.rs`.

use super::numbers::{error_text, microseconds, ms, number};
use crate::bench::experiment::block::{
    ATTACKERS, BAN_SECONDS, BURST, OPEN, Program, RATE, RETRY_MS, USERS,
};
use crate::bench::experiment::contenders::{What, contender};
use crate::bench::experiment::metric::Metric;
use crate::bench::record::answers::Errors;
use crate::bench::record::block::Blocked;
use crate::bench::record::outcome::Record;
use crate::bench::record::statistics::{Spread, median};

/// Heads of the table, without the first.
pub(super) const COLUMNS: &[&str] = &[
    "attempts /s",
    "blocked",
    "how",
    "neither",
    "false blocks",
    "over-service",
    "CPU µs an attempt",
    "against one served",
    "µs of the proxy's own",
    "users' p50, ms: alone",
    "attacked",
    "users' p99, ms: alone",
    "attacked",
    "p99 attacked / alone",
    "p99 to block, ms",
    "users' errors",
    "core busy: alone",
    "attacked",
    "generator's",
    "limit",
];

/// Figures whose medians are kept beside the raw data.
pub(super) const MEDIANS: &[(&str, Metric)] = &[
    ("cpu_us_per_attempt", Metric::AttemptCpu),
    ("users_p99_attacked_by_alone", Metric::UsersP99),
    ("false_blocks", Metric::FalseBlocks),
    ("over_service_percent", Metric::OverService),
    ("time_to_block_p99_ms", Metric::TimeToBlock),
    ("ban_mb", Metric::BanMb),
    ("recovery_ms", Metric::RecoveryMs),
];

/// A contender's row: sums of counts, medians of times.
pub(super) fn row(records: &[&Record], name: &str) -> Vec<String> {
    let own: Vec<&Record> =
        records.iter().copied().filter(|record| record.contender == name).collect();
    let runs: Vec<&Blocked> =
        own.iter().filter_map(|record| record.special.blocked.as_ref()).collect();
    let sum = |read: fn(&Blocked) -> u64| runs.iter().map(|run| read(run)).sum::<u64>();
    let of = |read: &dyn Fn(&Blocked) -> f64| median(runs.iter().map(|run| read(run)).collect());
    let metric = |metric| median(own.iter().map(|record| record.figure(metric)).collect());
    let users =
        |read: fn(&Record) -> f64| ms(median(own.iter().map(|record| read(record)).collect()));
    let attempts = sum(|run| run.attempts);
    let errors = kinds(own.iter().map(|record| &record.errors));
    vec![
        number(of(&|run| run.attempts_per_second), 0),
        percent(sum(Blocked::all_blocked) as f64 / attempts as f64 * 100.0, 1),
        shares(&kinds(runs.iter().map(|run| &run.blocked)), attempts),
        error_text(&kinds(runs.iter().map(|run| &run.neither))),
        sum(|run| run.users_blocked).to_string(),
        percent(metric(Metric::OverService), 2),
        microseconds(metric(Metric::AttemptCpu)),
        against_served(records, name),
        microseconds(of(&Blocked::attempt_own_us)),
        ms(of(&|run| run.alone.p50_us as f64)),
        users(|record| record.latency_us(|latency| latency.p50_us)),
        ms(of(&|run| run.alone.p99_us as f64)),
        users(|record| record.latency_us(|latency| latency.p99_us)),
        spread(Spread::of(own.iter().map(|record| record.figure(Metric::UsersP99)))),
        number(metric(Metric::TimeToBlock), 1),
        error_text(&errors),
        share(of(&|run| run.alone_core.busy)),
        share(of(&|run| run.attacked_core.busy)),
        share(of(&|run| run.generator_busy)),
        limit(&own, &runs),
    ]
}

/// Other programs with more of the proxy's core than this disturb the figures.
const OTHERS_MAX: f64 = 0.1;

fn others(runs: &[&Blocked]) -> f64 {
    median(runs.iter().map(|run| run.alone_core.others()).collect())
}

/// Whether other programs used too much of the proxy's core to determine the cost of an attempt.
pub(super) fn is_disturbed(own: &[&Record]) -> bool {
    let runs: Vec<&Blocked> =
        own.iter().filter_map(|record| record.special.blocked.as_ref()).collect();
    others(&runs) > OTHERS_MAX
}

/// A generator whose core is busier than this is late.
const GENERATOR_MAX: f64 = 0.9;

/// Returns what distorts the proxy's figures.
fn limit(own: &[&Record], runs: &[&Blocked]) -> String {
    let of = |read: fn(&Blocked) -> f64| median(runs.iter().map(|run| read(run)).collect());
    let (busy, others) = (of(|run| run.generator_busy), others(runs));
    let late = own.iter().find_map(|record| record.generator_limit.as_deref());
    let causes = [
        late.map(|cause| format!("**the generator**: {cause}")),
        (busy > GENERATOR_MAX)
            .then(|| format!("**the generator's core** was {} busy", share(busy))),
        (others > OTHERS_MAX).then(|| {
            format!("**not quiet: {} of the proxy's core went to other programs**", share(others))
        }),
    ];
    causes.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Returns the cost of an attempt as a share of one that the same program serves, in the same
/// round.
fn against_served(records: &[&Record], name: &str) -> String {
    let program = match contender(name).map(|contender| contender.what) {
        Some(What::Limiting(limiting)) => limiting.program,
        _ => return "-".to_owned(),
    };
    spread(Spread::of_ratios(records, Metric::AttemptCpu, name, Program::without_limit(program)))
}

fn spread(spread: Option<Spread>) -> String {
    spread.map_or_else(
        || "-".to_owned(),
        |of| format!("{:.2} ({:.2}-{:.2})", of.median, of.low, of.high),
    )
}

fn percent(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$} %") } else { "-".to_owned() }
}

fn share(of_one: f64) -> String {
    percent(of_one * 100.0, 0)
}

/// Counts of all rounds together.
fn kinds<'a>(all: impl Iterator<Item = &'a Errors>) -> Errors {
    let mut sum = Errors::default();
    all.flatten().for_each(|(kind, count)| *sum.entry(kind.clone()).or_default() += count);
    sum
}

/// Each kind as a share of all attempts.
fn shares(kinds: &Errors, attempts: u64) -> String {
    let of = |(kind, count): (&String, &u64)| {
        format!("{kind} {}", percent(*count as f64 / attempts as f64 * 100.0, 1))
    };
    let all: Vec<String> = kinds.iter().map(of).collect();
    if all.is_empty() { "-".to_owned() } else { all.join(", ") }
}

/// Returns the line of progress.
pub(super) fn progress(record: &Record) -> String {
    let Some(run) = &record.special.blocked else { return String::new() };
    format!(
        "{:>5.1} % blocked, CPU {:>6} µs an attempt, users' p99 {} -> {} ms, {} false blocks, {} \
            of their requests failed",
        run.percent(run.all_blocked()),
        microseconds(run.attempt_us()),
        ms(run.alone.p99_us as f64),
        ms(record.latency_us(|latency| latency.p99_us)),
        run.users_blocked,
        record.errors.values().sum::<u64>(),
    )
}

/// Returns the text for the last section of the report.
pub(super) fn method() -> String {
    format!(
        "Contenders take turns within each round (A B C A B C ...), each freshly started. The
load generator is in a separate network namespace, and proxy and origin (weir's) are in another
one. A pair of virtual interfaces joins them. The generator has one core and the proxy another
(one worker, one thread). The origin has a third core if there is one, or shares that of the
generator. The core of the side that packets go to receives them (receive packet steering). On
loopback, the attacker would pay for what a proxy drops.

{USERS} users, each with an address and a connection, send requests by the clock (Poisson) all
the time. In the second half of a run, {ATTACKERS} attackers, each with an address, make ten
times as many attempts. Those are evenly spaced by the clock, in an open loop: a rejected
attacker returns when its next attempt is due.

Every contender with a limit has the same: {BURST} attempts of a client at once and {RATE} per
second. Users need less than half of that. weir has `count=\"requests\"`, with `reset` also
`count=\"connections\"`. nginx has `limit_req` with `burst={}`, which does not count the first
attempt, and `nodelay`. HAProxy has a stick table with the rate of requests, for `reject` also of
connections, in {} s. `haproxy-nft` has no limit; a table of nft(8) drops all packets of the
attackers from the beginning. All other settings are those of the other experiments.

Blocked counts rejected attempts, by kind, of all attempts. `neither` counts attempts that were
neither served nor rejected, in all rounds. False blocks are rejected requests of users.
Over-service is what each single attacker was served beyond burst + rate x time, as a share of
what that allows. Latency counts from when a request was due.

CPU of an attempt is how much busier the core of the proxy was than before the attack, for each
attempt. It includes the proxy, the kernel, and any other program, so the machine has to be
quiet. `the proxy's own` is the part of its processes. The few served attempts are included.
`against one served` is the ratio to the same program without a limit, in the same round. In
`requests` it compares a rejection on a kept connection with a response. In `connections` it
compares a rejected connection with one that has a response.

Time to block is the time from an attacker's first attempt beyond burst and rate to the first
rejected one. With these few attackers, the 99th percentile is the slowest.

Cells other than `requests` and `connections` have other attackers, once. A contender there has
all limits for a client that it supports. Those of connections and requests are the same as
above, and {OPEN} connections may be open at a time. Attackers begin by the clock. An attempt
that is neither answered nor ended when the run ends is `unfinished`. These cells do not judge
what attackers may get, nor the time to a block, and users send 200 requests per second.

In `memory` weir starts with a file of that many bans, of unused addresses. Its resident memory
is read when all are in force. Memory of the kernel is the growth of its part that cannot be
reclaimed (SUnreclaim in /proc/meminfo), since before weir started. That is of the whole machine,
so other programs change it. The row of a weir whose kernel drops nothing shows by how much. In
`recovery` {ATTACKERS} clients are banned by command for {BAN_SECONDS} s, and connect again
{RETRY_MS} ms after each rejection. Time counts from the second at which the ban ends according
to weir.
",
        BURST - 1,
        BURST / RATE,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::block::Core;

    #[test]
    fn a_core_that_others_have_says_so() {
        let record = |busy| {
            let alone_core = Core { busy, softirq: 0.05, proxy: 0.1 };
            let mut record = Record::default();
            record.special.blocked = Some(Blocked { alone_core, ..Blocked::default() });
            record
        };
        let (quiet, loud) = (record(0.2), record(1.0));
        assert!(!is_disturbed(&[&quiet]) && is_disturbed(&[&loud]));
        assert!(!is_disturbed(&[&loud, &quiet, &quiet]), "the median of the rounds decides");
        assert!(!is_disturbed(&[]), "what was not run was not disturbed");
    }
}
