//! Loads that answer "how fast and at what cost": wrk in a closed loop, and the harness's own generator at a fixed rate.
//!
//! Called by `mod.rs` for each run. A run is bounded by its seconds; it reads the processes of proxy and origin before and
//! after, so what is measured is exactly the window of the generator.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::process::{self, Machine};
use super::record::{Errors, Latency, Record};
use super::stage::{Running, Stage};
use crate::bomb::{self, Behaviour, Class, Mix, Outcome, Plan, Rate, Request, Spelling, Summary};
use crate::target::Target;

/// Time in which connections are made before anything counts, microseconds.
const CONNECTING_US: u64 = 200_000;
/// How long an answer may take, as with wrk.
const TIMEOUT_US: u64 = 10_000_000;

/// What the generator does for one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Closed {
    /// Client connections.
    pub(super) connections: u32,
    /// Target of each request.
    pub(super) target: &'static str,
    /// Words for wrk.lua: `browser`, `close`.
    pub(super) words: &'static [&'static str],
}

/// The line that wrk.lua prints.
#[derive(Debug, Deserialize)]
struct WrkResult {
    requests: u64,
    bytes: u64,
    duration_us: u64,
    p50_us: u64,
    p95_us: u64,
    p99_us: u64,
    p999_us: u64,
    max_us: u64,
    errors: Errors,
}

/// Set by SIGINT and SIGTERM; looked at in every wait.
pub(super) fn interrupted() -> &'static Arc<AtomicBool> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    FLAG.get_or_init(|| Arc::new(AtomicBool::new(false)))
}

/// An error once the user wants to end.
///
/// # Errors
/// [`io::ErrorKind::Interrupted`].
pub(super) fn check_interrupt() -> io::Result<()> {
    if interrupted().load(Ordering::Relaxed) {
        return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
    }
    Ok(())
}

/// Sleeps, but not beyond an interrupt.
///
/// # Errors
/// As [`check_interrupt`].
pub(super) fn pause(time: Duration) -> io::Result<()> {
    let deadline = Instant::now() + time;
    while Instant::now() < deadline {
        check_interrupt()?;
        std::thread::sleep(Duration::from_millis(20).min(deadline - Instant::now()));
    }
    Ok(())
}

/// What is read before and after a run.
struct Readings {
    machine: Machine,
    proxy_pids: Vec<u32>,
    origin_pids: Vec<u32>,
    proxy_us: u64,
    origin_us: u64,
    own_us: u64,
    reaped_us: u64,
    accepts: u64,
    at: Instant,
}

impl Readings {
    fn take(stage: &Stage, running: &Running) -> io::Result<Readings> {
        let accepts = stage.origin_accepts()?;
        let (proxy_pids, origin_pids) = (running.pids(), stage.origin_pids());
        Ok(Readings {
            machine: Machine::now(),
            proxy_us: process::cpu_us(&proxy_pids),
            origin_us: process::cpu_us(&origin_pids),
            proxy_pids,
            origin_pids,
            own_us: process::own_cpu_us(),
            reaped_us: process::reaped_cpu_us(),
            accepts,
            at: Instant::now(),
        })
    }

    /// What happened since, in a record that lacks only what the generator saw.
    fn finish(&self, stage: &Stage, generator_is_own: bool) -> io::Result<Record> {
        let wall_us = self.at.elapsed().as_micros() as f64;
        let (idle, stolen) = Machine::now().shares_since(self.machine);
        let proxy_us = process::cpu_us(&self.proxy_pids) - self.proxy_us;
        let origin_us = process::cpu_us(&self.origin_pids) - self.origin_us;
        let generator_us = if generator_is_own {
            process::own_cpu_us() - self.own_us
        } else {
            process::reaped_cpu_us() - self.reaped_us
        };
        Ok(Record {
            wall_us,
            proxy_us: proxy_us as f64,
            origin_us: origin_us as f64,
            generator_us: generator_us as f64,
            idle,
            stolen,
            pss_bytes: process::pss_bytes(&self.proxy_pids),
            // The second look is itself a connection.
            upstream_connections: (stage.origin_accepts()? - self.accepts).saturating_sub(1),
            ..Record::default()
        })
    }
}

/// One run of wrk against a contender.
///
/// # Errors
/// wrk is missing or fails, a process can't be read, or the user interrupts.
pub(super) fn closed(stage: &Stage, running: &Running, load: Closed, seconds: u32) -> io::Result<Record> {
    let before = Readings::take(stage, running)?;
    let result = wrk(&stage.script(), running, load, seconds)?;
    let mut record = before.finish(stage, false)?;
    record.requests = result.requests;
    record.rate = result.requests as f64 / (result.duration_us.max(1) as f64 / 1e6);
    record.bytes = result.bytes;
    record.errors = result.errors;
    record.latency = Latency {
        p50_us: result.p50_us,
        p95_us: result.p95_us,
        p99_us: result.p99_us,
        p999_us: result.p999_us,
        max_us: result.max_us,
    };
    Ok(record)
}

fn wrk(script: &Path, running: &Running, load: Closed, seconds: u32) -> io::Result<WrkResult> {
    let threads = load.connections.min(2);
    let mut child = process::bound_command(&PathBuf::from("wrk"))
        .args([format!("-t{threads}"), format!("-c{}", load.connections), format!("-d{seconds}s")])
        .args(["--timeout", "10s", "-s"])
        .arg(script)
        .arg(format!("http://{}{}", running.address, load.target))
        .arg("--")
        .args(load.words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().ok_or_else(|| io::Error::other("wrk has no output"))?;
    // wrk writes a few lines only at its end: they fit into the pipe, so waiting first can't block it.
    let deadline = Instant::now() + Duration::from_secs(u64::from(seconds) + 30);
    loop {
        if child.try_wait()?.is_some() {
            break;
        }
        if Instant::now() > deadline || check_interrupt().is_err() {
            child.kill()?;
            child.wait()?;
            check_interrupt()?;
            return Err(io::Error::other("wrk didn't end in time"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    for line in BufReader::new(output).lines() {
        if let Some(json) = line?.strip_prefix("result ") {
            return serde_json::from_str(json).map_err(io::Error::other);
        }
    }
    Err(io::Error::other("wrk printed no result"))
}

/// One run at a fixed rate (requests a second, for so many seconds) against a contender.
///
/// # Errors
/// The generator can't run, a process can't be read, or the user interrupts.
pub(super) fn open(
    stage: &Stage,
    running: &Running,
    connections: u32,
    (rate, seconds): (f64, f64),
    target: &str,
) -> io::Result<Record> {
    let before = Readings::take(stage, running)?;
    let plan = open_plan(running, connections, (rate, seconds), target)?;
    let summary = Summary::of(&bomb::run(&plan, |_, _| {})?);
    check_interrupt()?;
    let mut record = before.finish(stage, true)?;
    let (total, counts) = (&summary.total, summary.total.counted());
    record.requests = counts.answered();
    record.rate = total.answered_per_second;
    record.errors = Errors {
        read: counts.failed() - counts.outcomes(Outcome::TimedOut),
        status: counts.answered() - counts.status_class(2),
        timeout: counts.outcomes(Outcome::TimedOut)
            + counts.outcomes(Outcome::Unfinished)
            + counts.outcomes(Outcome::Unsent),
        ..Errors::default()
    };
    let latency = total.corrected.ok_or_else(|| io::Error::other("nothing was answered"))?;
    record.latency = Latency {
        p50_us: latency.p50_us,
        p95_us: latency.p95_us,
        p99_us: latency.p99_us,
        p999_us: latency.p999_us,
        max_us: latency.max_us,
    };
    Ok(record)
}

/// One thread, which is enough for half of a proxy's rate and leaves it the rest of the machine.
fn open_plan(running: &Running, connections: u32, (rate, seconds): (f64, f64), path: &str) -> io::Result<Plan> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
    let target = Target { address: running.address, host: running.address.to_string(), path: path.to_owned() };
    let request = Request::new(&target.host, path, 1, &Spelling::default()).map_err(invalid)?;
    let class = Class {
        name: "all".to_owned(),
        target,
        connections,
        rate: Some(Rate::parse(&format!("{rate:.3}")).map_err(invalid)?),
        poisson: false,
        behaviour: Behaviour::Normal,
        sources: None,
        mix: Mix::new(vec![request]).map_err(invalid)?,
        depth: 1,
        close_every: None,
        drip: None,
    };
    Ok(Plan {
        classes: vec![class],
        threads: 1,
        own: 0..1,
        io: weir_io::IoChoice::Auto,
        duration_us: Some((seconds * 1e6) as u64),
        requests: None,
        warm_up_us: CONNECTING_US,
        connect_timeout_us: TIMEOUT_US,
        timeout_us: TIMEOUT_US,
        late_us: TIMEOUT_US,
        same_body: false,
        seed: 1,
        stop: Arc::clone(interrupted()),
    })
}
