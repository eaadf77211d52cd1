//! The state of the running workers at one moment, added up over them.
//!
//! Made by the control thread for status and metrics. It reads counters and histograms without the
//! workers' help. Each worker reports its servers and connections between two turns, so a stuck
//! worker costs the reader [`PATIENCE`] and counts as silent. Bounds: one visit to each counter and
//! connection. Public requests are answered from the last reading for [`FRESH`], so that even many
//! of them cost the workers at most ten readings a second.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_proxy::cross::doubt::Doubt;
use weir_proxy::observe::counters::Totals;
use weir_proxy::observe::histogram::Snapshot;
use weir_proxy::observe::report::{
    ClassReport, ConnectionReport, FreshReport, LearnedLimit, ServerReport, Sharing,
};
use weir_proxy::plan::{Plan, ServerPlan, UpstreamPlan};
use weir_proxy::upstream::server_state::State;
use weir_proxy::upstream::trust::TrustState;
use weir_worker::{Handle, View, WorkerReport};

use super::history::{History, Sample};
use super::window::{Counts, Past};
use super::workers::{Present, Took, WorkerPast};
use crate::reload::Desk;

/// How long a worker may take to report.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a reading is reused.
const FRESH: Duration = Duration::from_millis(100);
/// How often the past is recorded.
pub(crate) const TICK: Duration = Duration::from_secs(10);
/// How often seconds are marked, for the present rates.
pub(crate) const MARK: Duration = Duration::from_secs(1);

/// The state at one moment.
#[derive(Debug)]
pub(crate) struct Reading {
    at: Instant,
    /// weir accepts nothing new.
    pub(crate) draining: bool,
    /// weir will soon stop accepting.
    pub(crate) leaving_soon: bool,
    /// Counters of all workers.
    pub(crate) totals: Totals,
    /// From the receipt of a request to the end of its response, since the start.
    pub(crate) latency: Snapshot,
    /// The same for responses from the store.
    pub(crate) hits: Snapshot,
    /// By worker.
    pub(crate) workers: Vec<WorkerReading>,
    /// Servers of the configuration, by slot.
    pub(crate) servers: Vec<ServerReading>,
    /// Servers that have left the configuration, by slot.
    gone: Vec<ServerReading>,
    /// Recent activity of all of weir.
    pub(crate) lately: Lately,
}

/// One worker.
#[derive(Debug)]
pub(crate) struct WorkerReading {
    /// Its counters.
    pub(crate) view: View,
    /// Its report; None: not in time.
    pub(crate) report: Option<Arc<WorkerReport>>,
    /// Its state on the load board.
    pub(crate) present: Present,
    /// Durations in the sliding window.
    pub(crate) lately: Took,
}

/// Activity in the sliding window.
#[derive(Debug, Default)]
pub(crate) struct Lately {
    /// The elapsed part of the window.
    pub(crate) covered: Duration,
    /// Responses a second in the last two to three seconds.
    pub(crate) answers_per_second: f64,
    /// Responses and retries.
    pub(crate) counts: Counts,
    /// Response times.
    pub(crate) latency: Snapshot,
}

/// One server, over all workers.
#[derive(Debug)]
pub(crate) struct ServerReading {
    /// Its number over all upstreams.
    pub(crate) slot: usize,
    /// Index of its upstream.
    pub(crate) upstream: usize,
    /// Index in its upstream.
    pub(crate) index: usize,
    /// Its counters.
    pub(crate) totals: Totals,
    /// Its responses by status.
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// Its response times since the start.
    pub(crate) latency: Snapshot,
    /// Recent activity.
    pub(crate) lately: Lately,
    /// Its present state; None: no worker has reported.
    pub(crate) now: Option<Now>,
    /// Classes of requests that are known to be alike, by shape.
    pub(crate) classes: Vec<ClassReport>,
    /// Its connections with the number of their worker, by number.
    pub(crate) connections: Vec<(usize, ConnectionReport)>,
}

/// The present state of a server.
#[derive(Debug)]
pub(crate) struct Now {
    /// The worst standing on any worker.
    pub(crate) standing: State,
    /// How long it has been suspended, microseconds.
    pub(crate) suspended_us: u64,
    /// Connections that take requests, over all workers.
    pub(crate) ready: u32,
    /// Requests can go there.
    pub(crate) reachable: bool,
    /// Requests that wait for a connection.
    pub(crate) waiting: u32,
    /// Requests on connections, without a response yet.
    pub(crate) unanswered: u32,
    /// Requests that may wait or be unanswered.
    pub(crate) capacity: u32,
    /// Connections that left the pool because their clients are slow.
    pub(crate) aside: u32,
    /// Connections joined with a client.
    pub(crate) tunnels: u32,
    /// Failed connects in a row, on the worker with the most.
    pub(crate) failures: u32,
    /// The lowest trust of any worker.
    pub(crate) trust: TrustState,
    /// How long a penalty lasts, microseconds.
    pub(crate) penalty_us: u64,
    /// The reason for it.
    pub(crate) penalty_for: Option<Doubt>,
    /// Unanswered requests that a connection may have, on the worker that allows most.
    pub(crate) depth: u32,
    /// With `pool "fresh"`.
    pub(crate) fresh: Option<FreshNow>,
    /// Requests at once, if weir has learned that more are worse.
    pub(crate) limit: Option<LearnedLimit>,
    /// Connections that it serves at a time, if weir has learned that.
    pub(crate) places: Option<NonZeroU32>,
}

/// Kept connections compared with connections made for one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FreshNow {
    /// Workers with a report, and those of them that make a connection for each request.
    pub(crate) workers: u32,
    /// See above.
    pub(crate) in_force: u32,
    /// Such connections.
    pub(crate) connections: u32,
    /// From a request to the beginning of its response, 99th percentile of the worker where that is
    /// highest.
    pub(crate) kept_p99_us: Option<u64>,
    /// See above.
    pub(crate) fresh_p99_us: Option<u64>,
}

/// Makes readings, and remembers the past.
#[derive(Debug)]
pub(crate) struct Reader {
    plan: Arc<Plan>,
    /// Of the plan in force: see [`Desk::news`].
    number: u64,
    handle: Handle,
    last: Option<Arc<Reading>>,
    all: Past,
    servers: Vec<Past>,
    workers: Vec<WorkerPast>,
    history: History,
}

impl Reader {
    /// For workers that have just started.
    pub(crate) fn new(plan: Arc<Plan>, handle: Handle) -> Reader {
        let now = Instant::now();
        let servers = (0..plan.servers()).map(|_| Past::new(now)).collect();
        let workers = handle.views().iter().map(|_| WorkerPast::new(now)).collect();
        let (all, history) = (Past::new(now), History::new(now));
        Reader { plan, number: 0, handle, last: None, all, servers, workers, history }
    }

    /// Follows the plan in force, if this reader does not know it yet.
    pub(crate) fn follow(&mut self, desk: &Desk) {
        let Some(current) = desk.news(self.number) else { return };
        self.number = current.number;
        let old = std::mem::replace(&mut self.plan, current.plan);
        self.handle = self.handle.with_servers(&current.servers);
        let now = Instant::now();
        for at in (0..self.servers.len()).filter(|at| old.is_given_away(*at, &self.plan)) {
            self.servers[at] = Past::new(now);
        }
        for at in self.servers.len()..self.plan.servers() {
            // A server that took over another's name has old counts, which are not recent activity.
            let (totals, latency) = of_server(self.handle.views(), at);
            let mut past = Past::new(now);
            past.begin(Counts::of(&totals), latency);
            self.servers.push(past);
        }
        self.last = None;
    }

    /// Returns the last seconds.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        self.history.samples()
    }

    /// Returns the configuration.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the workers.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns the present state.
    pub(crate) fn read(&mut self) -> Arc<Reading> {
        self.read_in(PATIENCE)
    }

    /// Returns the state at present or a moment ago.
    pub(crate) fn recent(&mut self) -> Arc<Reading> {
        match self.last.as_ref().filter(|last| last.at.elapsed() < FRESH) {
            Some(last) => Arc::clone(last),
            None => self.read(),
        }
    }

    /// Returns the present state; workers that do not report within `patience` count as silent.
    pub(crate) fn read_in(&mut self, patience: Duration) -> Arc<Reading> {
        let reading = Arc::new(self.look(patience));
        self.last = Some(Arc::clone(&reading));
        reading
    }

    /// Records the past. Call it every [`TICK`].
    pub(crate) fn tick(&mut self) {
        let now = Instant::now();
        let views = self.handle.views();
        let (totals, latency) = of_clients(views);
        self.all.note(now, Counts::of(&totals), &latency);
        for (at, past) in self.servers.iter_mut().enumerate() {
            let (totals, latency) = of_server(views, at);
            past.note(now, Counts::of(&totals), &latency);
        }
        self.workers.iter_mut().zip(views).for_each(|(past, view)| past.note(now, view));
    }

    /// Marks a second. Call it every [`MARK`].
    pub(crate) fn mark(&mut self) {
        let now = Instant::now();
        let views = self.handle.views();
        let (totals, latency) = of_clients(views);
        self.all.mark(now, Counts::of(&totals));
        self.history.add(now, &totals, latency);
        for (at, past) in self.servers.iter_mut().enumerate() {
            past.mark(now, Counts::of(&totals_of_server(views, at)));
        }
    }

    fn look(&self, patience: Duration) -> Reading {
        let at = Instant::now();
        let views = self.handle.views();
        let reports = self.handle.enquire(patience);
        let (totals, latency) = of_clients(views);
        let lately = self.all.lately(at, Counts::of(&totals), &latency);
        let told = views.iter().zip(reports).zip(&self.workers).zip(Present::of(&self.handle));
        let worker = |(((view, report), past), present): (((&View, _), &WorkerPast), _)| {
            let lately = past.lately(at, view);
            WorkerReading { view: view.clone(), report, present, lately }
        };
        let workers: Vec<_> = told.map(worker).collect();
        let mut servers = Vec::new();
        let mut gone = Vec::new();
        for (slot, (upstream, index)) in self.plan.places().into_iter().enumerate() {
            let server = self.server(slot, usize::from(upstream), usize::from(index), at, &workers);
            if self.plan.is_retired(slot) {
                gone.push(server);
            } else {
                servers.push(server);
            }
        }
        let (draining, leaving_soon) = (self.handle.is_ending(), self.handle.is_leaving());
        let hits = of_hits(views);
        Reading {
            at,
            draining,
            leaving_soon,
            totals,
            latency,
            hits,
            workers,
            servers,
            gone,
            lately,
        }
    }

    fn server(
        &self,
        at: usize,
        upstream: usize,
        index: usize,
        now: Instant,
        workers: &[WorkerReading],
    ) -> ServerReading {
        let (totals, latency) = of_server(self.handle.views(), at);
        let lately = self.servers[at].lately(now, Counts::of(&totals), &latency);
        let mut statuses = BTreeMap::new();
        for (status, count) in workers
            .iter()
            .filter_map(|worker| worker.view.servers.get(at))
            .flat_map(|s| s.statuses.iter())
        {
            *statuses.entry(status).or_insert(0) += count;
        }
        let told = |worker: &WorkerReading| Some(Arc::clone(worker.report.as_ref()?));
        let (mut connections, mut classes) = (Vec::new(), Vec::new());
        let mut merged: Option<Now> = None;
        for (number, report) in
            workers.iter().enumerate().filter_map(|(number, worker)| Some((number, told(worker)?)))
        {
            let Some(report) = report.machines.servers.get(at) else { continue };
            report.classes.iter().for_each(|class| merge_class(&mut classes, class));
            connections
                .extend(report.connections.iter().map(|connection| (number, connection.clone())));
            match &mut merged {
                None => merged = Some(Now::of(report)),
                Some(merged) => merged.merge(&Now::of(report)),
            }
        }
        connections.sort_by_key(|(_, connection)| connection.number);
        ServerReading {
            slot: at,
            upstream,
            index,
            totals,
            statuses,
            latency,
            lately,
            now: merged,
            classes,
            connections,
        }
    }
}

/// Adds the report of one worker about a class. The worker that knows most about it decides.
fn merge_class(classes: &mut Vec<ClassReport>, class: &ClassReport) {
    let known_of = |sharing| match sharing {
        Sharing::New { .. } => 0,
        Sharing::Alike => 1,
        Sharing::Long => 2,
        Sharing::Slower => 3,
        Sharing::Overtaken { .. } => 4,
    };
    match classes.iter_mut().find(|known| known.shape == class.shape) {
        None => classes.push(class.clone()),
        Some(known) => {
            known.time_us = known.time_us.max(class.time_us);
            if known_of(class.sharing) > known_of(known.sharing) {
                known.sharing = class.sharing;
            }
        }
    }
}

/// Returns the counts and times of clients, over all workers.
fn of_clients(views: &[View]) -> (Totals, Snapshot) {
    let mut latency = Snapshot::default();
    views.iter().for_each(|view| latency.merge(&view.latency.snapshot()));
    let mut totals = Totals::default();
    views.iter().for_each(|view| totals.add(&view.counters));
    (totals, latency)
}

/// Returns the times of responses from the store, over all workers.
pub(crate) fn of_hits(views: &[View]) -> Snapshot {
    let mut hits = Snapshot::default();
    views.iter().for_each(|view| hits.merge(&view.hits.snapshot()));
    hits
}

/// Returns the counts and times of one server, over all workers.
fn of_server(views: &[View], at: usize) -> (Totals, Snapshot) {
    let mut latency = Snapshot::default();
    let stats = views.iter().filter_map(|view| view.servers.get(at));
    stats.for_each(|stats| latency.merge(&stats.latency.snapshot()));
    (totals_of_server(views, at), latency)
}

fn totals_of_server(views: &[View], at: usize) -> Totals {
    let mut totals = Totals::default();
    let stats = views.iter().filter_map(|view| view.servers.get(at));
    stats.for_each(|stats| stats.each(|sample| totals.add_sample(sample)));
    totals
}

impl Now {
    fn of(report: &ServerReport) -> Now {
        Now {
            standing: report.standing,
            suspended_us: report.suspended_us,
            ready: report.ready,
            reachable: report.reachable,
            waiting: report.waiting,
            unanswered: report.unanswered,
            capacity: report.capacity,
            aside: report.aside,
            tunnels: report.tunnels,
            failures: report.failures,
            trust: report.trust,
            penalty_us: report.penalty_us,
            penalty_for: report.penalty_for,
            depth: report.depth,
            fresh: report.fresh.map(FreshNow::of),
            limit: report.limit,
            places: report.places,
        }
    }

    fn merge(&mut self, other: &Now) {
        if badness(&other.standing) > badness(&self.standing) {
            self.standing = other.standing;
        }
        // Together with its reason: that of another worker's penalty does not explain a surplus.
        match trust_rank(&other.trust).cmp(&trust_rank(&self.trust)) {
            Ordering::Less => (self.trust, self.penalty_for) = (other.trust, other.penalty_for),
            Ordering::Equal => self.penalty_for = self.penalty_for.or(other.penalty_for),
            Ordering::Greater => {}
        }
        self.ready += other.ready;
        self.reachable |= other.reachable;
        self.waiting += other.waiting;
        self.unanswered += other.unanswered;
        self.capacity = self.capacity.saturating_add(other.capacity);
        self.aside += other.aside;
        self.tunnels += other.tunnels;
        self.suspended_us = self.suspended_us.max(other.suspended_us);
        self.failures = self.failures.max(other.failures);
        self.penalty_us = self.penalty_us.max(other.penalty_us);
        self.depth = self.depth.max(other.depth);
        self.limit = self.limit.or(other.limit);
        self.places = self.places.or(other.places);
        self.fresh = match (self.fresh, other.fresh) {
            (Some(one), Some(other)) => Some(one.merged(other)),
            (one, other) => one.or(other),
        };
    }

    /// Whether requests can go there.
    pub(crate) fn is_usable(&self) -> bool {
        self.reachable && matches!(self.standing, State::Active)
    }
}

impl FreshNow {
    fn of(report: FreshReport) -> FreshNow {
        let FreshReport { in_force, connections, kept_p99_us, fresh_p99_us } = report;
        FreshNow {
            workers: 1,
            in_force: u32::from(in_force),
            connections,
            kept_p99_us,
            fresh_p99_us,
        }
    }

    fn merged(self, other: FreshNow) -> FreshNow {
        FreshNow {
            workers: self.workers + other.workers,
            in_force: self.in_force + other.in_force,
            connections: self.connections + other.connections,
            kept_p99_us: self.kept_p99_us.max(other.kept_p99_us),
            fresh_p99_us: self.fresh_p99_us.max(other.fresh_p99_us),
        }
    }
}

fn badness(state: &State) -> u8 {
    match state {
        State::Active => 0,
        State::Suspended(_) => 1,
        State::Draining => 2,
        State::Disabled => 3,
        State::Leaving => 4,
    }
}

fn trust_rank(trust: &TrustState) -> u8 {
    match trust {
        TrustState::Surplus => 0,
        TrustState::Unfit => 1,
        TrustState::Penalty { .. } => 2,
        TrustState::Earning { .. } => 3,
        TrustState::Clean => 4,
        TrustState::Trusted => 5,
    }
}

impl ServerReading {
    /// Returns its part of the configuration.
    pub(crate) fn plan<'a>(&self, plan: &'a Plan) -> (&'a UpstreamPlan, &'a ServerPlan) {
        let upstream = &plan.upstreams[self.upstream];
        (upstream, &upstream.servers[self.index])
    }

    /// Returns the requests there, and tunnels.
    fn left(&self) -> u64 {
        self.now.as_ref().map_or(0, |now| u64::from(now.unanswered + now.waiting + now.tunnels))
    }

    /// Whether requests can go there.
    pub(crate) fn is_usable(&self) -> bool {
        self.now.as_ref().is_some_and(Now::is_usable)
    }
}

impl Reading {
    /// Returns the requests at servers that have left the configuration, and tunnels to them.
    pub(crate) fn leaving(&self) -> u64 {
        self.gone.iter().map(ServerReading::left).sum()
    }

    /// Returns the same for one server, in whatever `pool`. None: a worker has not reported.
    pub(crate) fn leaving_of(&self, upstream: &str, server: &str, plan: &Plan) -> Option<u64> {
        let is_it = |reading: &&ServerReading| {
            let (of, one) = reading.plan(plan);
            of.written_name() == upstream && one.name == server
        };
        let is_known = self.workers.iter().all(|worker| worker.report.is_some());
        is_known.then(|| self.gone.iter().filter(is_it).map(ServerReading::left).sum())
    }

    /// Returns the servers of the configuration, by upstream of the plan.
    pub(crate) fn by_upstream(&self, plan: &Plan) -> Vec<Vec<&ServerReading>> {
        let mut all = vec![Vec::new(); plan.upstreams.len()];
        self.servers.iter().for_each(|server| all[server.upstream].push(server));
        all
    }

    /// Returns why weir should get no traffic: a word, and its object. None: it should.
    pub(crate) fn unready(&self, plan: &Plan) -> Option<(&'static str, String)> {
        if self.draining {
            return Some(("draining", String::new()));
        }
        if self.leaving_soon {
            return Some(("leaving", String::new()));
        }
        let of_upstreams = self.by_upstream(plan);
        let dead = |(plan, servers): &(&UpstreamPlan, &Vec<&ServerReading>)| {
            plan.required && !plan.is_retired() && !servers.iter().any(|server| server.is_usable())
        };
        let (upstream, _) = plan.upstreams.iter().zip(&of_upstreams).find(dead)?;
        Some(("no-server", upstream.name.clone()))
    }
}

#[cfg(test)]
mod tests {
    //! Proves: the most advanced knowledge of any worker about a class is shown, whatever the
    //! order. How: all pairs.

    use super::*;

    #[test]
    fn the_worker_that_knows_most_decides() {
        let all = [
            Sharing::New { answers: 3 },
            Sharing::Alike,
            Sharing::Long,
            Sharing::Slower,
            Sharing::Overtaken { answers: 256 },
        ];
        for (one, other) in
            (0..all.len()).flat_map(|one| (0..all.len()).map(move |other| (one, other)))
        {
            let mut classes = Vec::new();
            for (sharing, time_us) in [(all[one], 200), (all[other], 100)] {
                merge_class(
                    &mut classes,
                    &ClassReport { shape: "GET /".to_owned(), time_us, sharing },
                );
            }
            assert_eq!(
                classes,
                [ClassReport {
                    shape: "GET /".to_owned(),
                    time_us: 200,
                    sharing: all[one.max(other)]
                }]
            );
        }
    }
}
