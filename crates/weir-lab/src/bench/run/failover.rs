//! What clients see while servers die: three servers, a proxy in front, load by the clock, and a fault at known times.
//!
//! Called by `mod.rs` for each run of the experiment `failover`, and by `report.rs` for its table. Each run starts servers
//! and proxy anew. Clients are many enough that none waits for the slow answer of another one. POSTs carry numbers, and
//! servers write down what they get, so what came twice is known exactly.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use super::failover_settings as settings;
use super::load::{Bound, latency, pause};
use super::process::{self, Machine, bound_command};
use super::servers::Servers;
use super::stage::{Running, Stage, free_address};
use crate::bench::experiment::contenders::{Contender, What};
use crate::bench::experiment::failover::{Fault, READS, SERVERS, WRITES};
use crate::bench::record::answers::{Errors, Latency};
use crate::bench::record::failover::{Event, Failover, Requests, Second};
use crate::bench::record::outcome::Record;
use crate::bench::record::statistics::median;
use crate::bench::report::figures::{error_text, microseconds, ms};
use crate::bomb::{self, ClassSummary, Slice, Summary};
use crate::units::grouped;

/// Between the first request and the first that counts.
const WARM_UP: Duration = Duration::from_secs(1);

/// One run, for so many seconds.
///
/// # Errors
/// Something can't be started or signalled, the generator fails, or the user interrupts.
pub(crate) fn run(stage: &Stage, contender: Contender, fault: Fault, seconds: u32) -> io::Result<(Running, Record)> {
    let mut servers = Servers::start(stage, SERVERS)?;
    let running = start_proxy(stage, contender, &servers)?;
    let out = stage.scratch("failover.jsonl");
    let mut command = bound_command(stage.weir());
    command.args(["bomb", &format!("http://{}/", running.address()), "-t1", "--timeout", "10s", "--out"]).arg(&out);
    command.args([format!("-d{seconds}s"), format!("--warm-up={}ms", WARM_UP.as_millis())]);
    command.arg("--class").arg(format!("reads: rate={}, connections={}", READS.0, READS.1));
    let (rate, connections) = WRITES;
    let post = "method=POST, path=/post?id={serial}, body=hello";
    command.arg("--class").arg(format!("writes: rate={rate}, connections={connections}, {post}"));
    let mut bomb = Bound::start(&mut command)?;
    let begin = Instant::now() + WARM_UP;
    pause(WARM_UP)?;
    let (machine, pids) = (Machine::now(), running.pids());
    let cpu_us = process::cpu_us(&pids);
    let events = play(&mut servers, fault, begin, f64::from(seconds))?;
    pause((begin + Duration::from_secs(u64::from(seconds))).saturating_duration_since(Instant::now()))?;
    let (idle, stolen) = Machine::now().shares_since(machine);
    let mut record = Record {
        wall_us: begin.elapsed().as_micros() as f64,
        proxy_us: process::cpu_us(&pids).saturating_sub(cpu_us) as f64,
        pss_bytes: process::pss_bytes(&pids),
        idle,
        stolen,
        ..Record::default()
    };
    bomb.finish()?;
    let bombed = bomb::Record::read(&fs::read_to_string(&out)?).map_err(io::Error::other)?;
    fill(&mut record, &bombed, events, &servers)?;
    Ok((running, record))
}

fn start_proxy(stage: &Stage, contender: Contender, servers: &Servers) -> io::Result<Running> {
    let (listen, to, cores) = (free_address()?, servers.addresses(), stage.cores());
    let text = match contender.what {
        What::Nginx => settings::nginx(stage.directory(), listen, &to, cores),
        What::Haproxy => settings::haproxy(listen, &to, cores),
        _ => settings::weir(listen, &to, cores),
    };
    stage.start_with(contender, listen, &text)
}

/// Plays the fault by the clock.
fn play(servers: &mut Servers, fault: Fault, begin: Instant, seconds: f64) -> io::Result<Vec<Event>> {
    let mut events = Vec::new();
    for (share, nth, deed) in fault.script() {
        pause((begin + Duration::from_secs_f64(share * seconds)).saturating_duration_since(Instant::now()))?;
        let at_s = begin.elapsed().as_secs_f64();
        let process = servers.act(nth, deed)?;
        events.push(Event { at_s, server: nth + 1, what: deed.word(), process });
    }
    Ok(events)
}

fn fill(record: &mut Record, bombed: &bomb::Record, events: Vec<Event>, servers: &Servers) -> io::Result<()> {
    let summary = Summary::of(bombed);
    let class =
        |name: &str| summary.class(name).ok_or_else(|| io::Error::other(format!("no class {name} in the results")));
    let (reads, writes) = (class("reads")?, class("writes")?);
    let posts = servers.requests("POST")?;
    let timeline = timeline(bombed);
    let fault_s = events.first().map_or(0.0, |event| event.at_s);
    let last = reads.last_failure_seconds.into_iter().chain(writes.last_failure_seconds).reduce(f64::max);
    let failover = Failover {
        writes_twice: posts.values().map(|count| count - 1).sum(),
        writes_reached: posts.len() as u64,
        seconds_failed: timeline.iter().filter(|second| second.failed > 0).count() as u32,
        last_failure_s: last.map(|last| last - fault_s),
        reads: requests(reads),
        writes: requests(writes),
        events,
        timeline,
    };
    record.requests = failover.reads.good + failover.writes.good;
    record.rate = record.requests as f64 / summary.seconds;
    record.errors = summary.total.counted().troubles();
    record.latency = Some(failover.reads.latency);
    record.generator_limit = summary.generator.limit.clone();
    record.failover = Some(failover);
    Ok(())
}

fn requests(class: &ClassSummary) -> Requests {
    let counts = class.counted();
    Requests {
        offered: counts.offered(),
        good: counts.status_class(2),
        failed: counts.troubles(),
        latency: class.corrected.as_ref().map(latency).unwrap_or_default(),
    }
}

fn timeline(bombed: &bomb::Record) -> Vec<Second> {
    let mut seconds: BTreeMap<u32, Slice> = BTreeMap::new();
    for (second, slice) in bombed.slices() {
        seconds.entry(second).or_default().add(slice);
    }
    let one = |(second, slice): (u32, Slice)| {
        let times = slice.times().map(|times| &times.corrected).filter(|times| !times.is_empty());
        let good = slice.counts.status_class(2);
        Second {
            second,
            good,
            failed: slice.counts.offered() - good,
            p99_us: times.map(|times| times.value_at_quantile(0.99)),
            max_us: times.map(hdrhistogram::Histogram::max),
        }
    };
    seconds.into_iter().map(one).collect()
}

/// Heads of the table, without the first.
pub(crate) const COLUMNS: &[&str] = &[
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
pub(crate) fn row(own: &[&Record]) -> Vec<String> {
    let runs: Vec<&Failover> = own.iter().filter_map(|record| record.failover.as_ref()).collect();
    let (reads, writes): (Vec<&Requests>, Vec<&Requests>) = runs.iter().map(|run| (&run.reads, &run.writes)).unzip();
    let longest = |of: &[&Requests]| ms(of.iter().map(|run| run.latency.max_us).max().unwrap_or(0) as f64);
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

/// Percent answered with 2xx over all rounds; 100 only when it was all.
fn share(runs: &[&Requests]) -> String {
    let (good, offered) = runs.iter().fold((0, 0), |(good, offered), run| (good + run.good, offered + run.offered));
    if good == offered {
        return "all".to_owned();
    }
    // Rounded down: what is missing shows.
    format!("{:.2} %", (good as f64 / offered as f64 * 1e4).floor() / 1e2)
}

fn failed(runs: &[&Requests]) -> String {
    let mut all = Errors::new();
    for (kind, count) in runs.iter().flat_map(|run| &run.failed) {
        *all.entry(kind.clone()).or_default() += count;
    }
    error_text(&all)
}

/// For somebody who waits.
pub(crate) fn progress(record: &Record) -> String {
    let Some(run) = &record.failover else { return String::new() };
    let one = |requests: &Requests| {
        let failed = requests.offered - requests.good;
        format!("{failed:>4} of {:>6} failed, p99 {:>7} ms", requests.offered, ms(requests.latency.p99_us as f64))
    };
    format!("GET {}; POST {}, {} twice", one(&run.reads), one(&run.writes), run.writes_twice)
}

/// For the last section of the report.
pub(crate) fn method() -> String {
    let ((reads, readers), (writes, writers)) = (READS, WRITES);
    format!(
        "Clients ask by the clock: {} GETs a second on {} connections, {writes} POSTs a second on {writers}, so many that none
waits for another one's slow answer. `failed` is everything but an answer with 2xx, by kind, summed over the rounds; times
are medians over the rounds and count from when a request was due, with what failed by a status; the longest, and the times of
failures, are those of the worst round. `came twice` are POSTs that servers got once too often, by the numbers that they carry
(servers write each down before they answer). The fault begins after a quarter of the run.

All proxies have the same patience: 1 s for a connect, 2 s for an answer, three tries (weir: 6 s in all), and none may send a POST
twice. nginx: `proxy_next_upstream error timeout http_502 http_503 http_504`, `max_fails=3 fail_timeout=1s`, shared by a zone.
HAProxy: `option redispatch 1`, `retries 2`, `retry-on conn-failure empty-response response-timeout 502 503 504` but for POST,
probes each second (`fall 2 rise 2`), `observe layer7 error-limit 10 on-error mark-down`. weir: probes each second (`fall=2
rise=2`), `failover \"5xx\"`, `forward-timeout \"6s\"`, else its defaults.
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
