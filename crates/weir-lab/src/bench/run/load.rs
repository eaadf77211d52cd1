//! Loads that answer "how fast and at what cost": `weir bomb` as a separate process, and wrk where
//! the two are compared.
//!
//! Called by `rounds.rs` for each run. A run is bounded by its seconds. The processes of proxy and
//! origin are read when the warm-up is over and when the time is, so the measurement covers the
//! window in which the generator counts.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use super::process::{self, Machine};
use super::stage::{Generator, Running, Stage};
use crate::bench::experiment::cells::{
    Closed, RequestKind, STALL_ANSWER_MS, STALL_CONNECTIONS, STALL_RATE, STALL_SECONDS,
};
use crate::bench::record::answers::{Errors, Latency};
use crate::bench::record::histogram::Histogram;
use crate::bench::record::outcome::Record;
use crate::bench::record::tls::Handshakes;
use crate::bomb::{self, Handshake, Percentiles, Summary};

/// How long a response may take, for both generators.
const TIMEOUT: &str = "10s";
/// How long after its time a generator may go on: it waits for responses, and writes its results.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a contender may continue with the rest of a run, and how long it has to be quiet (a
/// twentieth of a core) to be done with it.
const SETTLING: Duration = Duration::from_secs(10);
const SETTLED: Duration = Duration::from_millis(100);

/// Times of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Times {
    /// Before anything counts, seconds.
    pub(super) warm_up: f64,
    /// Counted time, seconds.
    pub(super) seconds: f64,
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

/// Returns the flag that SIGINT and SIGTERM set; it is checked in every wait.
pub(crate) fn interrupted() -> &'static Arc<AtomicBool> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    FLAG.get_or_init(|| Arc::new(AtomicBool::new(false)))
}

/// Returns an error once the user wants to end.
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

/// Waits until a contender has finished what the last run left to do, but not for ever.
///
/// # Errors
/// As [`check_interrupt`].
pub(super) fn settle(running: &Running) -> io::Result<()> {
    let pids = running.pids();
    let deadline = Instant::now() + SETTLING;
    let mut before = process::cpu_us(&pids);
    loop {
        pause(SETTLED)?;
        let now = process::cpu_us(&pids);
        if now.saturating_sub(before) * 20 < SETTLED.as_micros() as u64 || Instant::now() > deadline
        {
            return Ok(());
        }
        before = now;
    }
}

/// Values that are read at both ends of the counted time.
pub(super) struct Readings {
    machine: Machine,
    proxy_pids: Vec<u32>,
    origin_pids: Vec<u32>,
    proxy_us: u64,
    origin_us: u64,
    at: Instant,
}

impl Readings {
    pub(super) fn take(stage: &Stage, running: &Running) -> Readings {
        let (proxy_pids, origin_pids) = (running.pids(), stage.origin_pids(running));
        Readings {
            machine: Machine::now(),
            proxy_us: process::cpu_us(&proxy_pids),
            origin_us: process::cpu_us(&origin_pids),
            proxy_pids,
            origin_pids,
            at: Instant::now(),
        }
    }

    /// Returns what happened since, in a record that lacks only the generator's results.
    pub(super) fn finish(&self) -> Record {
        let (idle, stolen) = Machine::now().shares_since(self.machine);
        Record {
            wall_us: self.at.elapsed().as_micros() as f64,
            proxy_us: process::cpu_us(&self.proxy_pids).saturating_sub(self.proxy_us) as f64,
            origin_us: process::cpu_us(&self.origin_pids).saturating_sub(self.origin_us) as f64,
            idle,
            stolen,
            pss_bytes: process::pss_bytes(&self.proxy_pids),
            ..Record::default()
        }
    }
}

/// Does one run in a closed loop against a contender.
///
/// # Errors
/// The generator is missing or fails, a process can't be read, or the user interrupts.
pub(super) fn closed(
    stage: &Stage,
    running: &Running,
    load: Closed,
    times: Times,
) -> io::Result<Record> {
    let asked = running.destination.unwrap_or(running.address());
    let url = format!("{}{asked}{}", running.scheme(), stage.path(load.body));
    if running.generator == Generator::Wrk {
        return with_wrk(stage, running, &url, load, times);
    }
    let mut words = connections(running, load.connections);
    if running.destination.is_some() {
        words.push(format!("--proxy={}", running.address()));
    }
    match load.kind {
        RequestKind::Minimal => {}
        RequestKind::Browser => words.push("--preset=browser".to_owned()),
        RequestKind::Close => words.push("--close-every=1".to_owned()),
    }
    with_bomb(stage, running, &url, &words, times)
}

/// Returns the arguments for the number of connections, their addresses, and their sources.
fn connections(running: &Running, connections: u32) -> Vec<String> {
    let addresses = running.addresses.len() as u32;
    let mut words = vec![format!("-c{connections}")];
    if addresses > 1 {
        let classes = running.addresses.iter().zip(0..).map(|(to, at)| {
            let share = connections / addresses + u32::from(at < connections % addresses);
            format!("--class=p{at}: to={to}, connections={share}")
        });
        words = classes.collect();
    }
    words
}

/// Does one run at a fixed rate, requests a second, by the clock. One thread is enough for half of
/// a proxy's rate, and leaves it the rest of the machine.
///
/// # Errors
/// As [`closed`].
pub(super) fn open(
    stage: &Stage,
    running: &Running,
    connections: u32,
    (rate, path): (f64, &str),
    times: Times,
) -> io::Result<Record> {
    let words = [format!("-c{connections}"), format!("-R{rate:.3}"), "-t1".to_owned()];
    let url = format!("{}{}{path}", running.scheme(), running.address());
    with_bomb(stage, running, &url, &words, times)
}

/// Runs ten seconds at 1,000 requests a second against an origin that responds in 10 ms and pauses
/// for a second. wrk has no option for a rate: ten connections make it about that many, or a little
/// fewer.
///
/// # Errors
/// As [`closed`].
pub(super) fn stall(stage: &Stage, running: &Running) -> io::Result<Record> {
    let url = format!("http://{}/?delay={STALL_ANSWER_MS}", running.address());
    let times = Times { warm_up: 0.0, seconds: f64::from(STALL_SECONDS) };
    if running.generator == Generator::Wrk {
        let load = Closed {
            connections: STALL_RATE * STALL_ANSWER_MS / 1000,
            body: 3,
            kind: RequestKind::Minimal,
        };
        return with_wrk(stage, running, &url, load, times);
    }
    let words = [format!("-c{STALL_CONNECTIONS}"), format!("-R{STALL_RATE}"), "-t1".to_owned()];
    with_bomb(stage, running, &url, &words, times)
}

/// Runs `weir bomb` and reads its output.
fn with_bomb(
    stage: &Stage,
    running: &Running,
    url: &str,
    words: &[String],
    times: Times,
) -> io::Result<Record> {
    let is_measured = matches!(running.generator, Generator::MeasuredBomb(_));
    // A run that is compared with wrk, which has no warm-up, is counted from its first connection
    // on.
    let warm_up = if is_measured { 0.0 } else { times.warm_up };
    let out = stage.scratch("bomb.jsonl");
    let mut command = process::bound_command(stage.weir());
    command
        .args(["bomb", url, "--timeout", TIMEOUT, "--late", TIMEOUT])
        .args(words)
        .args(running.tls_words());
    command.args(running.http2_words());
    command.args([
        format!("-d{}ms", (times.seconds * 1e3) as u64),
        format!("--warm-up={}ms", (warm_up * 1e3) as u64),
    ]);
    if let Generator::MeasuredBomb(io) = running.generator {
        command.args(["--io", io]);
    }
    command.arg("--out").arg(&out);
    let (mut record, _) = watch(stage, running, &mut command, warm_up, times.seconds)?;
    let summary = read_bomb(&mut record, &fs::read_to_string(&out)?)?;
    let total = &summary.total;
    if running.secure.is_some() {
        let of = |handshake| total.counted().handshakes(handshake);
        let (full, resumed) = (of(Handshake::Full), of(Handshake::Resumed));
        record.special.handshakes = Some(Handshakes { full, resumed, flood_per_second: None });
        // Handshakes take so long that the end of a run always cuts some off.
        record.errors.remove("unconnected");
    }
    // Clients resend requests that a server that ends a connection has not processed.
    record.errors.remove("not_taken");
    if record.requests == 0 {
        // Requests that began before the counted time and are not over at its end are counted
        // nowhere.
        record.errors.entry("nothing_answered".to_owned()).or_insert(1);
    }
    if !is_measured {
        record.generator_us =
            summary.generator.cpu_us_per_request.unwrap_or(0.0) * record.requests as f64;
    }
    Ok(record)
}

/// Puts the output of `weir bomb` into a record and returns all of it.
///
/// # Errors
/// It is not output of `weir bomb`.
pub(super) fn read_bomb(record: &mut Record, text: &str) -> io::Result<Summary> {
    let summary = Summary::of(&bomb::Record::read(text).map_err(io::Error::other)?);
    let total = &summary.total;
    record.requests = total.counted().answered();
    record.rate = total.answered_per_second;
    record.bytes = total.counted().bytes_in;
    record.errors = total.counted().troubles();
    record.generator_limit = summary.generator.limit.clone();
    record.latency = total.corrected.or(total.raw).as_ref().map(latency);
    record.special.histogram =
        Histogram::of(total.times().into_iter().flat_map(|times| bomb::pairs(times.latency())));
    record.sent = total.corrected.and(total.raw).map(|percentiles| latency(&percentiles));
    Ok(summary)
}

pub(super) fn latency(of: &Percentiles) -> Latency {
    Latency {
        p50_us: of.p50_us,
        p95_us: of.p95_us,
        p99_us: of.p99_us,
        p999_us: of.p999_us,
        max_us: of.max_us,
    }
}

fn with_wrk(
    stage: &Stage,
    running: &Running,
    url: &str,
    load: Closed,
    times: Times,
) -> io::Result<Record> {
    let threads = load.connections.min(stage.cores() as u32);
    let seconds = times.seconds.ceil();
    let missing = || {
        io::Error::new(io::ErrorKind::NotFound, "wrk is not installed (scripts/setup installs it)")
    };
    let mut command = process::bound_command(&stage.programs().path("wrk").ok_or_else(missing)?);
    command
        .args([format!("-t{threads}"), format!("-c{}", load.connections), format!("-d{seconds}s")])
        .args(["--timeout", TIMEOUT, "-s"])
        .arg(stage.scratch("wrk.lua"))
        .args([url, "--"]);
    match load.kind {
        RequestKind::Minimal => {}
        RequestKind::Browser | RequestKind::Close => drop(command.arg(load.kind.name())),
    }
    let (mut record, lines) = watch(stage, running, &mut command, 0.0, seconds)?;
    let json = lines.iter().find_map(|line| line.strip_prefix("result "));
    let json = json.ok_or_else(|| io::Error::other("wrk printed no result"))?;
    let result: WrkResult = serde_json::from_str(json).map_err(io::Error::other)?;
    record.requests = result.requests;
    record.rate = result.requests as f64 / (result.duration_us.max(1) as f64 / 1e6);
    record.bytes = result.bytes;
    record.errors = result.errors.into_iter().filter(|(_, count)| *count > 0).collect();
    record.latency = (result.requests > 0).then_some(Latency {
        p50_us: result.p50_us,
        p95_us: result.p95_us,
        p99_us: result.p99_us,
        p999_us: result.p999_us,
        max_us: result.max_us,
    });
    Ok(record)
}

/// Runs a generator, reads the other processes at both ends of the time that it counts, and returns
/// its output lines. Its own processor time is that of the whole process.
fn watch(
    stage: &Stage,
    running: &Running,
    command: &mut Command,
    warm_up: f64,
    seconds: f64,
) -> io::Result<(Record, Vec<String>)> {
    let (accepts, reaped_us) = (stage.origin_accepts(running)?, process::reaped_cpu_us());
    let mut child = Bound::start(command)?;
    pause(Duration::from_secs_f64(warm_up))?;
    let before = Readings::take(stage, running);
    pause(Duration::from_secs_f64(seconds))?;
    let mut record = before.finish();
    let lines = child.finish()?;
    record.special.generator = process::command_line(&process::words(command));
    record.generator_us = (process::reaped_cpu_us() - reaped_us) as f64;
    // The second look is itself a connection.
    record.upstream_connections = (stage.origin_accepts(running)? - accepts).saturating_sub(1);
    Ok((record, lines))
}

/// A running generator; it is ended and waited for when this is dropped.
pub(super) struct Bound(Child);

impl Bound {
    /// Starts it; its output is read at its end and has to fit into a pipe.
    pub(super) fn start(command: &mut Command) -> io::Result<Bound> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map(Bound)
    }

    /// Starts it; its standard output goes to a file.
    pub(super) fn writing(command: &mut Command, file: &Path) -> io::Result<Bound> {
        let output = fs::File::create(file)?;
        command.stdin(Stdio::null()).stdout(output).stderr(Stdio::piped()).spawn().map(Bound)
    }

    /// Asks it to end, which gives the results so far.
    pub(super) fn interrupt(&self) {
        // A child that is not waited for keeps its number; one that has ended needs no signal.
        let _ = kill_process(Pid::from_child(&self.0), Signal::INT);
    }

    /// Waits for its end; None when it takes longer than this.
    ///
    /// # Errors
    /// The user interrupts.
    pub(super) fn wait(&mut self, patience: Duration) -> io::Result<Option<ExitStatus>> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Some(status));
            }
            check_interrupt()?;
            if begin.elapsed() > patience {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns its standard error; call this when it has ended.
    pub(super) fn said(&mut self) -> String {
        self.0.stderr.take().and_then(|stderr| io::read_to_string(stderr).ok()).unwrap_or_default()
    }

    /// Waits for its end and returns the lines of its output.
    ///
    /// # Errors
    /// It failed, it takes too long, or the user interrupts.
    pub(super) fn finish(&mut self) -> io::Result<Vec<String>> {
        let late = || io::Error::other("the generator did not end in time");
        let status = self.wait(PATIENCE)?.ok_or_else(late)?;
        if !status.success() {
            return Err(io::Error::other(format!(
                "the generator failed ({status}): {}",
                self.said().trim()
            )));
        }
        self.0
            .stdout
            .take()
            .map_or(Ok(Vec::new()), |output| BufReader::new(output).lines().collect())
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // A process that has ended can't be killed, which is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
