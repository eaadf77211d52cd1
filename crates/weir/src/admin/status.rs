//! Reading -> the JSON document of `document`. Called by `routes`; pure.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};
use weir_proxy::observe::counters::{Sample, Totals};
use weir_proxy::observe::histogram::Snapshot;
use weir_proxy::observe::report::{ClassReport, ConnectionReport, LearnedLimit};
use weir_proxy::plan::{Plan, ShieldPlan};
use weir_proxy::shield::survey::{Standing, Survey, survey};
use weir_proxy::shield::tally::Outcome;
use weir_proxy::upstream::server_state::State;
use weir_worker::WorkerReport;

use super::document::{
    Accepting, Bans, Certificate, Class, Clients, ConcurrencyLimit, Connections, Fresh, Io,
    Latency, Limit, Name, Problem, Reload, Row, Server, ServerBounds, ServerFile, ServerStatus,
    Shield, ShieldClient, Status, Suspect, TlsFile, Upstream, VERSION, Window, Worker,
};
use crate::bans::{self, Figures, wall_us};
use crate::certificates::{Board, FileShown, Shown};
use crate::discovery;
use crate::intercept::Watch;
use crate::reload::Told;
use crate::snapshot::Snapshots;
use crate::spreading::Spreading;
use crate::verdicts::Verdicts;

use super::reading::{FreshNow, Lately, Now, Reading, ServerReading, WorkerReading};
use super::window::{Counts, WINDOW};
use super::{arms, cache, usage};

/// Facts that are constant while weir runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// Its process.
    pub(crate) pid: u32,
    /// The driver.
    pub(crate) driver: String,
    /// Why this driver.
    pub(crate) driver_reason: String,
    /// Address for metrics.
    pub(crate) metrics: Option<String>,
    /// Publishes the certificates in force.
    pub(crate) certificates: Arc<Board>,
    /// Publishes the names of servers.
    pub(crate) names: Arc<discovery::Board>,
    /// The bans.
    pub(crate) bans: bans::Bans,
    /// Servers that are not pipelined until an operator clears them.
    pub(crate) verdicts: Verdicts,
    /// How new connections are spread over the workers.
    pub(crate) spreading: Spreading,
    /// Keeps the store over a restart.
    pub(crate) snapshots: Snapshots,
    /// What an interception does; None: not an interception.
    pub(crate) interception: Option<Watch>,
}

impl Facts {
    /// For workers that run, before any listener is bound.
    pub(crate) fn of(probe: &weir_io::Probe) -> Facts {
        Facts {
            driver: probe.driver.word().to_owned(),
            driver_reason: probe.reason.clone(),
            ..Facts::default()
        }
    }
}

/// Returns the whole status.
pub(crate) fn status(
    reading: &Reading,
    plan: &Plan,
    facts: &Facts,
    told: &Told,
    uptime: Duration,
) -> Status {
    let unready = reading.unready(plan);
    let of_upstreams = reading.by_upstream(plan);
    let upstream =
        |(plan, readings): (&weir_proxy::plan::UpstreamPlan, &Vec<&ServerReading>)| Upstream {
            name: plan.name.clone(),
            usable: readings.iter().any(|server| server.is_usable()),
            servers: readings
                .iter()
                .map(|reading| server(reading, &plan.servers[reading.index]))
                .collect(),
        };
    Status {
        version: VERSION,
        weir: env!("CARGO_PKG_VERSION").to_owned(),
        pid: facts.pid,
        uptime_seconds: seconds(uptime),
        state: overall(reading).to_owned(),
        ready: unready.is_none(),
        unready: unready.map(|(word, what)| format!("{word} {what}").trim_end().to_owned()),
        io: io(facts),
        listeners: told.listeners.iter().map(ToString::to_string).collect(),
        certificates: certificates(facts),
        tls_files: facts.certificates.files().into_iter().map(tls_file).collect(),
        names: facts.names.shown().into_iter().map(name).collect(),
        server_files: facts.names.lists().into_iter().map(server_file).collect(),
        bans: bans(facts),
        reload: reload(told, reading.leaving()),
        window_seconds: WINDOW.as_secs(),
        clients: clients(reading),
        workers: reading.workers.iter().enumerate().map(worker).collect(),
        upstreams: plan
            .upstreams
            .iter()
            .zip(&of_upstreams)
            .filter(|(plan, _)| !plan.is_retired())
            .map(upstream)
            .collect(),
        suspects: suspects(reading, plan),
        limits: limits(plan),
        cache: cache::figures(plan, &reading.hits),
        usage: usage::usage(reports(reading).filter_map(|report| report.machines.usage.as_ref())),
        congestion: arms::shown(&arms::merged(reading)),
        totals: totals(&reading.totals),
    }
}

fn io(facts: &Facts) -> Io {
    let accepting = facts.spreading.shown().into_iter().map(Accepting::from).collect();
    let interception = facts.interception.as_ref().map(Watch::shown);
    let Facts { driver, driver_reason, metrics, .. } = facts;
    Io {
        driver: driver.clone(),
        driver_reason: driver_reason.clone(),
        metrics: metrics.clone(),
        accepting,
        interception,
    }
}

fn overall(reading: &Reading) -> &'static str {
    match (reading.draining, reading.leaving_soon) {
        (true, _) => "draining",
        (false, true) => "leaving",
        (false, false) => "running",
    }
}

/// Returns what limits do, and the use of them by clients.
pub(crate) fn shield(
    plan: &Plan,
    shield: &ShieldPlan,
    facts: &Facts,
    limit: Option<&str>,
    most: usize,
) -> Shield {
    let now_us = wall_us().saturating_add_signed(weir_worker::wall_offset_us().saturating_neg());
    let Survey { accounts, used, top } = survey(shield, limit, most, now_us);
    let client = |one: Standing| ShieldClient {
        who: one.who,
        limit: one.limit.into_string(),
        used: one.share,
        open: one.open.into(),
        refused: one.refused.into(),
        refused_seconds: one.refused_us.map(|us| us as f64 / 1e6),
    };
    Shield {
        version: VERSION,
        observes: shield.observe,
        accounts: accounts as u64,
        used: used as u64,
        limits: limits(plan),
        bans: bans(facts),
        top: top.into_iter().map(client).collect(),
    }
}

/// Returns numbers about bans.
fn bans(facts: &Facts) -> Bans {
    let Figures { in_force, total, displaced, file, problem, kernel } = facts.bans.figures();
    Bans {
        in_force,
        total,
        displaced,
        file,
        problem,
        in_kernel: kernel.bans,
        kernel_tier: kernel.tier.map(str::to_owned),
        kernel_refused: kernel.refused,
        kernel_problem: kernel.problem,
        packets_dropped: kernel.packets,
    }
}

/// Returns the history of the configuration.
fn reload(told: &Told, leaving: u64) -> Reload {
    let last = told.last.as_ref();
    Reload {
        generation: told.generation,
        ok: last.map(|last| last.error.is_none()),
        at_seconds: last.map(|last| seconds_of(last.at)),
        error: last.and_then(|last| last.error.clone()),
        leaving,
    }
}

/// Returns seconds since 1970.
pub(crate) fn seconds_of(at: SystemTime) -> f64 {
    seconds(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

fn certificates(facts: &Facts) -> Vec<Certificate> {
    let now =
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let certificate = |shown: Shown| Certificate {
        file: shown.file,
        names: shown.names,
        not_after_seconds: shown.not_after,
        left_seconds: shown.not_after.saturating_sub_unsigned(now),
        problem: shown.problem,
    };
    facts.certificates.shown().into_iter().map(certificate).collect()
}

fn tls_file(shown: FileShown) -> TlsFile {
    TlsFile { file: shown.file, problem: shown.problem }
}

fn name(shown: discovery::Shown) -> Name {
    let addresses = shown.addresses.iter().map(ToString::to_string).collect();
    Name { name: shown.name, addresses, problem: shown.problem.map(str::to_owned) }
}

fn server_file(shown: discovery::ListShown) -> ServerFile {
    ServerFile { file: shown.file, servers: shown.servers, problem: shown.problem }
}

/// Returns everything about one server.
pub(crate) fn server_status(reading: &ServerReading, plan: &Plan) -> ServerStatus {
    let (upstream, server) = reading.plan(plan);
    ServerStatus {
        version: VERSION,
        upstream: upstream.name.clone(),
        server: self::server(reading, server),
        statuses: reading.statuses.clone(),
        classes: reading.classes.iter().map(class).collect(),
        rows: reading
            .connections
            .iter()
            .map(|(worker, connection)| row(*worker, connection))
            .collect(),
    }
}

fn class(report: &ClassReport) -> Class {
    let ClassReport { shape, time_us, sharing } = report;
    let (word, missing) = (sharing.word().to_owned(), sharing.answers());
    Class { shape: shape.clone(), usual_us: *time_us, sharing: word, missing }
}

fn clients(reading: &Reading) -> Clients {
    let get = |name| gauge(reading.totals.get(name, None));
    Clients {
        connections: get("client_connections"),
        requests: get("requests"),
        in_flight: get("in_flight"),
        waiting: get("queue_waiting"),
        answers: Counts::of(&reading.totals).answers.into(),
        window: window(&reading.lately),
    }
}

fn reports(reading: &Reading) -> impl Iterator<Item = &WorkerReport> {
    reading.workers.iter().filter_map(|worker| worker.report.as_deref())
}

/// Returns the knowledge of all workers; they share only the worse suspects with each other.
fn suspects(reading: &Reading, plan: &Plan) -> Vec<Suspect> {
    let mut all: BTreeMap<_, Suspect> = BTreeMap::new();
    for known in reports(reading).flat_map(|report| &report.machines.suspects) {
        let upstream =
            plan.upstreams.get(usize::from(known.upstream)).map_or("", |plan| &plan.name);
        let key = (known.upstream, &known.method, &known.host, &known.path);
        let suspect = all.entry(key).or_default();
        if (known.left_us, u32::from(known.deaths)) >= (suspect.left_us, suspect.deaths) {
            *suspect = Suspect {
                upstream: upstream.to_owned(),
                method: known.method.clone(),
                host: known.host.clone(),
                path: known.path.clone(),
                deaths: known.deaths.into(),
                state: known.state.to_owned(),
                left_us: known.left_us,
            };
        }
    }
    all.into_values().collect()
}

fn limits(plan: &Plan) -> Vec<Limit> {
    let all = plan
        .shield
        .iter()
        .flat_map(|shield| shield.limits.iter().map(move |limit| (shield, limit)));
    let shown = all.map(|(shield, limit)| Limit {
        name: limit.name.to_string(),
        count: limit.terms.word().to_owned(),
        observes: shield.observe || limit.observe,
        passed: limit.tally.get(Outcome::Passed),
        refused: limit.tally.get(Outcome::Refused),
        observed: limit.tally.get(Outcome::Observed),
        untracked: limit.tally.get(Outcome::Untracked),
        shared: limit.tally.get(Outcome::Shared),
    });
    shown.collect()
}

/// Returns 0 for a sum below zero. Workers are read one after another, so a sum of gauges may be
/// negative for a moment.
pub(crate) fn gauge(value: u64) -> u64 {
    if value > u64::MAX / 2 { 0 } else { value }
}

fn worker((number, reading): (usize, &WorkerReading)) -> Worker {
    let counters = &reading.view.counters;
    let report = reading.report.as_ref();
    Worker {
        number,
        responsive: report.is_some(),
        ended: reading.view.enquiry.is_over(),
        driver: report.map(|report| report.driver.to_owned()),
        clients: report.map(|report| report.machines.clients),
        cpu_us: report.map(|report| report.cpu_us),
        accept_queue: report
            .map(|report| report.accept_queues.iter().map(|(_, queue)| queue.waiting).sum()),
        turns: counters.turns.get(),
        mail_delayed: counters.mail_delayed.get(),
        given: counters.connections_given.get(),
        taken: counters.connections_taken.get(),
        rebirths: counters.rebirths.get(),
        open_requests: reading.present.open_requests.into(),
        starved_permille: reading.present.starved_permille,
        pinning: reading.view.place.word().to_owned(),
        let_go: reading.view.place.times_let_go(),
        turn_now_us: reading.present.turn_us,
        turn: latency(&reading.lately.turn),
        kernel_wait: latency(&reading.lately.kernel_wait),
    }
}

fn server(reading: &ServerReading, plan: &weir_proxy::plan::ServerPlan) -> Server {
    let now = reading.now.as_ref();
    let number = |of: fn(&Now) -> u32| now.map_or(0, |now| u64::from(of(now)));
    let (state, why) = state(reading);
    Server {
        name: plan.name.clone(),
        address: plan.address.to_string(),
        weight: plan.weight_now(),
        weight_configured: plan.weight,
        backup: plan.backup,
        temporary: plan.temporary,
        state: state.to_owned(),
        why,
        usable: reading.is_usable(),
        suspended_us: now.map_or(0, |now| now.suspended_us),
        connections: Connections {
            up: up(reading),
            configured: plan.connections,
            aside: now.map_or(0, |now| now.aside),
            tunnels: now.map_or(0, |now| now.tunnels),
        },
        in_flight: number(|now| now.unanswered),
        waiting: number(|now| now.waiting),
        capacity: number(|now| now.capacity),
        trust: now.map_or("unknown", |now| now.trust.word()).to_owned(),
        penalty_us: now.map_or(0, |now| now.penalty_us),
        penalty_for: now.and_then(|now| now.penalty_for).map(|doubt| doubt.word().to_owned()),
        depth: now.map_or(0, |now| now.depth),
        fresh: now.and_then(|now| now.fresh).map(fresh),
        bounds: ServerBounds {
            concurrency: plan.concurrency,
            limit: now.and_then(|now| now.limit).map(limit),
            places: now.and_then(|now| now.places).map(NonZeroU32::get),
        },
        answers: Counts::of(&reading.totals).answers.into(),
        totals: totals(&reading.totals),
        window: window(&reading.lately),
        last_problem: last_problem(reading),
    }
}

fn fresh(now: FreshNow) -> Fresh {
    let FreshNow { workers, in_force, connections, kept_p99_us, fresh_p99_us } = now;
    Fresh { in_force, workers, connections, kept_p99_us, fresh_p99_us }
}

fn limit(LearnedLimit { limit: requests, before, gain_percent }: LearnedLimit) -> ConcurrencyLimit {
    ConcurrencyLimit { requests, before, gain_percent }
}

/// Returns the number of established connections.
pub(crate) fn up(reading: &ServerReading) -> u32 {
    match (&reading.now, reading.connections.is_empty()) {
        // Connections of single clients have no rows.
        (Some(now), true) => now.ready,
        _ => reading.connections.iter().filter(|(_, connection)| connection.state.is_up()).count()
            as u32,
    }
}

/// Returns the state in a word, and why.
pub(crate) fn state(reading: &ServerReading) -> (&'static str, Option<String>) {
    let Some(now) = &reading.now else { return ("unknown", Some("no worker responds".to_owned())) };
    match now.standing {
        State::Suspended(suspension) => ("suspended", Some(suspension.cause.word().to_owned())),
        State::Draining => ("draining", Some("ordered".to_owned())),
        State::Disabled => ("disabled", Some("ordered".to_owned())),
        // For the moment between two checks for a new plan.
        State::Leaving => ("disabled", Some("no longer in the configuration".to_owned())),
        State::Active if !now.reachable => {
            let why = last_problem(reading).map(|problem| problem.word);
            ("down", Some(why.unwrap_or_else(|| "not connected yet".to_owned())))
        }
        State::Active => ("up", None),
    }
}

/// Returns the latest end of a connection that reveals something about the server.
fn last_problem(reading: &ServerReading) -> Option<Problem> {
    let telling = |connection: &ConnectionReport| {
        let word = connection.closed_why.filter(|why| why.tells())?.word().to_owned();
        Some((connection.since_us, word))
    };
    let ends = reading.connections.iter().filter_map(|(_, connection)| telling(connection));
    let (ago_us, word) = ends.min_by_key(|(since_us, _)| *since_us)?;
    Some(Problem { word, ago_us })
}

fn row(worker: usize, connection: &ConnectionReport) -> Row {
    Row {
        number: connection.number,
        worker,
        state: connection.state.word().to_owned(),
        since_us: connection.since_us,
        retry_us: connection.retry_us,
        in_flight: connection.in_flight,
        queued: connection.queued,
        answers: connection.answers,
        closes: connection.closes,
        closed_why: connection.closed_why.map(|why| why.word().to_owned()),
        glitches: connection.glitches,
    }
}

fn window(lately: &Lately) -> Window {
    let seconds = seconds(lately.covered);
    let answers: u64 = lately.counts.answers.iter().sum();
    Window {
        seconds,
        requests_per_second: if seconds > 0.0 {
            thousandths(answers as f64 / seconds)
        } else {
            0.0
        },
        requests_per_second_now: thousandths(lately.answers_per_second),
        answers: lately.counts.answers.into(),
        retries: lately.counts.retries,
        latency: latency(&lately.latency),
    }
}

fn seconds(duration: Duration) -> f64 {
    thousandths(duration.as_secs_f64())
}

/// Rounds to three decimal places, which are enough for people and programs.
pub(crate) fn thousandths(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

pub(super) fn latency(snapshot: &Snapshot) -> Latency {
    let percentile = |of_10_000| snapshot.percentile(of_10_000);
    Latency {
        count: snapshot.count(),
        min_us: snapshot.min_us(),
        mean_us: snapshot.mean_us(),
        max_us: snapshot.max_us(),
        p50_us: percentile(5000),
        p75_us: percentile(7500),
        p90_us: percentile(9000),
        p95_us: percentile(9500),
        p99_us: percentile(9900),
        p999_us: percentile(9990),
    }
}

/// Returns each count by name; those with labels as objects.
fn totals(totals: &Totals) -> BTreeMap<String, Value> {
    let mut all: BTreeMap<String, Value> = BTreeMap::new();
    for Sample { name, label, value, .. } in totals.samples() {
        match label {
            None => {
                all.insert(name.to_owned(), gauge(value).into());
            }
            Some((_, label)) => {
                let inner = all.entry(name.to_owned()).or_insert_with(|| Value::Object(Map::new()));
                // Labels that never occurred are left out.
                if let Some(inner) = inner.as_object_mut().filter(|_| value > 0) {
                    inner.insert(label.to_owned(), value.into());
                }
            }
        }
    }
    all
}
