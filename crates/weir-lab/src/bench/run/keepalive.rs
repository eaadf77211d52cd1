//! Slow requests due to kept connections: the probe sends requests to a server whose workers are
//! busy, one at a time.
//!
//! Called by `rounds.rs` for each run of the experiment `keepalive`. A kept connection stays with
//! its worker, even when that is busy; a new one is taken by a worker that is idle. The server
//! accepts in this way (`weir origin --accept shared`). Each run starts a new server and a new
//! proxy, since it is random which worker has which connections.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::blocked::{Place, Scene, Seen, proxy_text};
use super::get::get;
use super::load::{Bound, pause};
use super::ports::free_address;
use super::process::{self, Machine, Process, bound_command};
use super::stage::{Running, Stage, start_origin};
use crate::bench::experiment::contenders::{Contender, What};
use crate::bench::experiment::keepalive::{
    BURN_MS, BURNS, Blocked, Busy, CONNECTIONS, Probing, TIMES_BLOCKED, WORKERS,
};
use crate::bench::record::answers::Latency;
use crate::bench::record::keepalive::{Part, Probed};
use crate::bench::record::outcome::Record;

/// Processor time that keeps one worker busy while the load of the other connects, milliseconds.
const OCCUPY_MS: u64 = 500;
/// Between two checks whether it has.
const LOOK: Duration = Duration::from_millis(20);
/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Requests of the probe for each second of the run: a pause of 5 ms, and a response.
const PROBES_A_SECOND: u64 = 190;
/// The probe is ended after this many times that duration.
const SECONDS_MAX: u64 = 3;
/// The limit above which a response is slow, as an argument of the probe.
const THRESHOLD: &str = "20ms";
/// How long the load runs before the probe does.
const WARM_UP: Duration = Duration::from_millis(500);
/// Longest run of the load, which is ended when the probe is.
const LOAD_MAX: &str = "1h";

/// The last line of `weir probe --json`.
#[derive(Debug, Deserialize)]
struct Told {
    requests: u64,
    slow: u64,
    failed: u64,
    seconds: f64,
    answered: u64,
    first: Part,
    kept: Part,
    latency: Phases,
}

#[derive(Debug, Default, Deserialize)]
struct Phases {
    connect: Option<Phase>,
    first_byte: Option<Phase>,
    total: Option<Phase>,
}

#[derive(Debug, Deserialize)]
struct Phase {
    p50_us: f64,
    p99_us: f64,
    p99_9_us: f64,
    max_us: f64,
}

impl Phase {
    fn latency(&self) -> Latency {
        Latency {
            p50_us: self.p50_us as u64,
            p95_us: 0,
            p99_us: self.p99_us as u64,
            p999_us: self.p99_9_us as u64,
            max_us: self.max_us as u64,
        }
    }
}

/// Does one run of about this many seconds.
///
/// # Errors
/// Something can't be started, the probe or the load fails, or the user interrupts.
pub(super) fn run(
    stage: &Stage,
    contender: Contender,
    probing: Probing,
    seconds: u32,
) -> io::Result<(Running, Record)> {
    if let Busy::Blocked(blocked) = probing.busy {
        return run_blocked(stage, contender, (probing, blocked), seconds * TIMES_BLOCKED);
    }
    let address = free_address()?;
    let log = stage.scratch("busy.log");
    let mut server = start_origin(stage.weir(), address, WORKERS, &["--accept", "shared"], &log)?;
    server.await_listening(address)?;
    let running = start_proxy(stage, contender, address)?;
    let load = match probing.busy {
        Busy::No => None,
        Busy::Through if running.address() != address => {
            Some(Burning::start(stage, running.address())?)
        }
        Busy::Through | Busy::Beside => Some(Burning::start_evenly(stage, address)?),
        Busy::Blocked(_) => None,
    };
    pause(WARM_UP)?;
    let (begin, busy_us) = (Begin::now(&running), workers_us(&server));
    let told = probe(stage, &at(&running), probing, u64::from(seconds))?;
    let mut record = begin.record(&running);
    let wall_us = record.wall_us;
    let mut busy: Vec<f64> = workers_us(&server)
        .iter()
        .zip(&busy_us)
        .map(|(after, before)| (after - before) as f64 / wall_us)
        .collect();
    busy.sort_by(f64::total_cmp);
    record.origin_us = busy.iter().sum::<f64>() * wall_us;
    let load = load.map_or(Ok((0, 0)), Burning::end)?;
    note(&mut record, &told, Seen { busy, load, is_in_force: None });
    Ok((running, record))
}

/// The same where workers sleep.
fn run_blocked(
    stage: &Stage,
    contender: Contender,
    (probing, blocked): (Probing, Blocked),
    seconds: u32,
) -> io::Result<(Running, Record)> {
    let scene = Scene::start(stage, contender, blocked)?;
    let place = match &scene.at {
        Place::Unix(path) if contender.what == What::Direct => {
            vec!["http://a/".to_owned(), "--unix".to_owned(), path.to_string_lossy().into_owned()]
        }
        _ => at(&scene.running),
    };
    scene.begin();
    let begin = Begin::now(&scene.running);
    let told = probe(stage, &place, probing, u64::from(seconds))?;
    let mut record = begin.record(&scene.running);
    let (running, seen) = scene.end(record.wall_us)?;
    if seen.is_in_force == Some(false) {
        record.errors.insert("not in force".to_owned(), 1);
    }
    note(&mut record, &told, seen);
    Ok((running, record))
}

/// The state when the probe began.
struct Begin {
    machine: Machine,
    at: Instant,
    cpu_us: u64,
}

impl Begin {
    fn now(running: &Running) -> Begin {
        Begin {
            machine: Machine::now(),
            at: Instant::now(),
            cpu_us: process::cpu_us(&running.pids()),
        }
    }

    /// Returns what machine and proxy did since then.
    fn record(self, running: &Running) -> Record {
        let pids = running.pids();
        let (idle, stolen) = Machine::now().shares_since(self.machine);
        Record {
            wall_us: self.at.elapsed().as_micros() as f64,
            proxy_us: process::cpu_us(&pids).saturating_sub(self.cpu_us) as f64,
            idle,
            stolen,
            pss_bytes: process::pss_bytes(&pids),
            ..Record::default()
        }
    }
}

/// Records the results of the probe, and the others.
fn note(record: &mut Record, told: &Told, seen: Seen) {
    let Seen { busy, load: (load_answered, load_failed), is_in_force } = seen;
    record.requests = told.answered;
    record.rate = told.requests as f64 / told.seconds.max(1e-6);
    record.latency = told.latency.total.as_ref().map(Phase::latency);
    if told.failed > 0 {
        record.errors.insert("failed".to_owned(), told.failed);
    }
    record.special.probed = Some(Probed {
        requests: told.requests,
        slow: told.slow,
        failed: told.failed,
        busy,
        connect: told.latency.connect.as_ref().map(Phase::latency),
        first_byte: told.latency.first_byte.as_ref().map(Phase::latency),
        first: Some(told.first).filter(|part| part.answered > 0),
        kept: Some(told.kept).filter(|part| part.answered > 0),
        is_in_force,
        load_answered,
        load_failed,
    });
}

fn start_proxy(stage: &Stage, contender: Contender, to: SocketAddr) -> io::Result<Running> {
    if contender.what == What::Direct {
        return Ok(Running::direct(to));
    }
    let listen = free_address()?;
    stage.start_with(contender, listen, &proxy_text(stage, contender.what, listen, &to.to_string()))
}

/// Returns the address that the probe connects to.
fn at(running: &Running) -> Vec<String> {
    vec![format!("http://{}/", running.address())]
}

/// Processor time of each worker of the server so far, microseconds.
fn workers_us(server: &Process) -> Vec<u64> {
    server.family().iter().flat_map(|pid| process::threads_us(*pid, "origin-")).collect()
}

/// The requests that keep the workers busy.
struct Burning {
    bombs: Vec<Bound>,
}

impl Burning {
    /// Starts one load for whichever worker gets it.
    fn start(stage: &Stage, to: SocketAddr) -> io::Result<Burning> {
        Ok(Burning { bombs: vec![bomb(stage, to, (CONNECTIONS, BURNS), 1)?] })
    }

    /// Starts half of the load for each worker: its connections are made while the other worker is
    /// too busy to accept them. On their own, idle workers don't share evenly: nearly always the
    /// same one is the first to accept.
    fn start_evenly(stage: &Stage, to: SocketAddr) -> io::Result<Burning> {
        let half = (CONNECTIONS / 2, BURNS / 2);
        let mut one = TcpStream::connect(to)?;
        occupy(&mut one, to)?;
        let mut other = TcpStream::connect(to)?;
        let first = connected(stage, to, half, 1)?;
        freed(&mut one)?;
        occupy(&mut other, to)?;
        let second = connected(stage, to, half, 2)?;
        freed(&mut other)?;
        Ok(Burning { bombs: vec![first, second] })
    }

    /// Ends it. Returns how many requests got a response, and how many did not.
    fn end(mut self) -> io::Result<(u64, u64)> {
        self.bombs.iter().for_each(Bound::interrupt);
        let mut sums = (0, 0);
        for bomb in &mut self.bombs {
            let text = bomb.finish()?.join("\n");
            let summary: serde_json::Value =
                serde_json::from_str(&text).map_err(io::Error::other)?;
            let kinds = summary["total"]["requests"].as_object().into_iter().flatten();
            for (kind, count) in
                kinds.map(|(kind, count)| (kind.as_str(), count.as_u64().unwrap_or(0)))
            {
                match kind {
                    "answered" => sums.0 += count,
                    // Requests in progress when it ended count as neither.
                    "unfinished" => {}
                    _ => sums.1 += count,
                }
            }
        }
        Ok(sums)
    }
}

fn bomb(
    stage: &Stage,
    to: SocketAddr,
    (connections, rate): (u32, u32),
    seed: u32,
) -> io::Result<Bound> {
    let mut command = bound_command(stage.weir());
    command.args([
        "bomb",
        &format!("http://{to}/?burn={BURN_MS}"),
        "-t1",
        "--arrivals",
        "poisson",
        "--json",
    ]);
    command.args([
        format!("-c{connections}"),
        format!("-R{rate}"),
        format!("--seed={seed}"),
        format!("-d{LOAD_MAX}"),
    ]);
    Bound::start(&mut command)
}

/// Starts such a load and returns once all its connections are made.
fn connected(stage: &Stage, to: SocketAddr, half: (u32, u32), seed: u32) -> io::Result<Bound> {
    let before = connects(to)?;
    let bomb = bomb(stage, to, half, seed)?;
    let deadline = Instant::now() + PATIENCE;
    for look in 1.. {
        // Each look is a connection as well.
        if connects(to)? >= before + look + u64::from(half.0) {
            break;
        }
        if Instant::now() > deadline {
            return Err(io::Error::other("the load doesn't connect"));
        }
        pause(LOOK)?;
    }
    Ok(bomb)
}

/// Connections that the server has accepted.
fn connects(to: SocketAddr) -> io::Result<u64> {
    let text = get(to, "/__stats")?;
    let digits =
        text.split("\"connects\":").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok());
    digits.ok_or_else(|| io::Error::other(format!("the server's counters can't be read: {text}")))
}

/// Makes the worker that has this connection busy.
fn occupy(stream: &mut TcpStream, to: SocketAddr) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET /?burn={OCCUPY_MS} HTTP/1.1\r\nHost: {to}\r\n\r\n")?;
    // Otherwise it might accept the next connection before it reads this.
    pause(LOOK)
}

/// Waits until the worker is done with that request.
fn freed(stream: &mut TcpStream) -> io::Result<()> {
    stream.read(&mut [0; 4096]).map(drop)
}

/// Runs the probe and returns its last line.
fn probe(stage: &Stage, at: &[String], probing: Probing, seconds: u64) -> io::Result<Told> {
    let count = seconds * PROBES_A_SECOND;
    let out = stage.scratch("probe.json");
    let close_every =
        probing.close_every.map_or_else(|| "never".to_owned(), |every| every.to_string());
    let mut command = bound_command(stage.weir());
    command.arg("probe").args(at).args(["--json", "--pause", "5ms"]);
    command.args([
        "--threshold",
        THRESHOLD,
        "--close-every",
        &close_every,
        "--count",
        &count.to_string(),
    ]);
    let mut child = Bound::writing(&mut command, &out)?;
    // Where responses are this slow, fewer of them are enough.
    if child.wait(Duration::from_secs(SECONDS_MAX * seconds))?.is_none() {
        child.interrupt();
        child.wait(PATIENCE)?;
    }
    let text = fs::read_to_string(&out)?;
    // Failed requests are part of the result, and its exit code is 1 then.
    let last = text
        .lines()
        .last()
        .ok_or_else(|| io::Error::other(format!("the probe failed: {}", child.said())))?;
    serde_json::from_str(last).map_err(io::Error::other)
}
