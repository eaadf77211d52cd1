//! What clients see while servers die: three servers, a proxy in front, load by the clock, and a
//! fault at known times.
//!
//! Called by `rounds.rs` for each run of the experiment `failover`. Each run starts new servers and
//! a new proxy. There are enough clients that none waits for the slow response of another. POSTs
//! carry numbers, and servers log what they get, so duplicates are known exactly.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use super::failover_settings as settings;
use super::load::{Bound, latency, pause};
use super::ports::free_address;
use super::process::{self, Machine, bound_command};
use super::servers::Servers;
use super::stage::{Running, Stage};
use crate::bench::experiment::contenders::{Contender, What};
use crate::bench::experiment::failover::{Fault, READS, SERVERS, WRITES};
use crate::bench::record::failover::{Event, Failover, Requests, Second};
use crate::bench::record::outcome::Record;
use crate::bomb::{self, ClassSummary, Slice, Summary};

/// Between the first request and the first that counts.
const WARM_UP: Duration = Duration::from_secs(1);

/// Does one run, for this many seconds.
///
/// # Errors
/// Something can't be started or signalled, the generator fails, or the user interrupts.
pub(super) fn run(
    stage: &Stage,
    contender: Contender,
    fault: Fault,
    seconds: u32,
) -> io::Result<(Running, Record)> {
    let mut servers = Servers::start(stage, SERVERS)?;
    let running = start_proxy(stage, contender, &servers)?;
    let out = stage.scratch("failover.jsonl");
    let mut command = bound_command(stage.weir());
    command
        .args([
            "bomb",
            &format!("http://{}/", running.address()),
            "-t1",
            "--timeout",
            "10s",
            "--out",
        ])
        .arg(&out);
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
    pause(
        (begin + Duration::from_secs(u64::from(seconds))).saturating_duration_since(Instant::now()),
    )?;
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
    record.special.generator = process::command_line(&process::words(&command));
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
fn play(
    servers: &mut Servers,
    fault: Fault,
    begin: Instant,
    seconds: f64,
) -> io::Result<Vec<Event>> {
    let mut events = Vec::new();
    for (share, nth, deed) in fault.script() {
        pause(
            (begin + Duration::from_secs_f64(share * seconds))
                .saturating_duration_since(Instant::now()),
        )?;
        let at_s = begin.elapsed().as_secs_f64();
        let process = servers.act(nth, deed)?;
        events.push(Event { at_s, server: nth + 1, what: deed.word(), process });
    }
    Ok(events)
}

fn fill(
    record: &mut Record,
    bombed: &bomb::Record,
    events: Vec<Event>,
    servers: &Servers,
) -> io::Result<()> {
    let summary = Summary::of(bombed);
    let class = |name: &str| {
        summary
            .class(name)
            .ok_or_else(|| io::Error::other(format!("no class {name} in the results")))
    };
    let (reads, writes) = (class("reads")?, class("writes")?);
    let posts = servers.requests("POST")?;
    let timeline = timeline(bombed);
    let fault_s = events.first().map_or(0.0, |event| event.at_s);
    let last =
        reads.last_failure_seconds.into_iter().chain(writes.last_failure_seconds).reduce(f64::max);
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
    record.special.failover = Some(failover);
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
