//! Changes of the configuration while weir runs: `weir reload`, SIGHUP, `weir server weight`, `add`
//! and `remove` (docs/reload.md), and new addresses of server names (docs/discovery.md). An upgrade
//! is also a job here, so that nothing else happens meanwhile: [`Upgrader`].
//!
//! One thread does one job after another. It reads and checks the whole file, compares it with the
//! configuration in force, asks [`restart`] whether a running weir can change that, and has
//! [`hand_over`] inform the workers. If anything fails, the previous configuration stays in force.
//! `run` (signals) and the control thread put jobs on the [`Desk`] and look there for the outcomes;
//! they never wait for this thread. Bounds: [`JOBS_MAX`] waiting jobs, [`OUTCOMES_MAX`] remembered
//! outcomes.

mod found;
mod hand_over;
mod listeners;
mod restart;
mod temporary;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use weir_config::{Config, Tree};
use weir_proxy::cross::standing::Order;
use weir_proxy::observe::server_stats::ServerStats;
use weir_proxy::plan::{Known, Location, Plan};
use weir_worker::Command;

use crate::discovery::{Discovery, RELOAD_PATIENCE};
use crate::failure::Failure;
use crate::log::Event;
use crate::names::meant;
use crate::privileges;
use crate::run;
use crate::upgrade::{Handed, Upgrader};
use crate::ways;
pub(crate) use hand_over::Workers;
pub(crate) use restart::Fixed;
pub(crate) use temporary::{Added, Temporary, known_upstream};

/// Largest number of waiting jobs; further ones are rejected.
const JOBS_MAX: usize = 16;
/// Largest number of outcomes kept for later questions.
const OUTCOMES_MAX: usize = 64;
/// How long the main thread may take to stop accepting.
const HAND_OVER_MAX: Duration = Duration::from_secs(5);
/// Lines of a difference that go to the log.
const LINES_MAX: usize = 50;

/// A job for the thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Job {
    /// Read the configuration again and put it in force.
    Reload,
    /// Show what would change.
    DryRun,
    /// Put new addresses of server names in force.
    Found,
    /// Have a new program take over.
    Upgrade,
    /// Give a server another weight, 1-100; None: that of the configuration.
    Weigh {
        /// Its upstream.
        upstream: String,
        /// Its name.
        server: String,
        /// The new weight.
        weight: Option<u32>,
    },
    /// Add a temporary server.
    Add {
        /// The upstream that gets it.
        upstream: String,
        /// The server and its address.
        server: Box<Added>,
    },
    /// Remove a temporary server.
    Remove {
        /// Its upstream.
        upstream: String,
        /// Its name.
        server: String,
    },
}

/// The outcome of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The exit code for the caller ([`Failure::code`]); 0: success.
    pub(crate) code: u8,
    /// For standard output or standard error: lines, or nothing.
    pub(crate) text: String,
}

/// The configuration in force.
#[derive(Debug, Clone)]
pub(crate) struct Current {
    /// Differs after each change.
    pub(crate) number: u64,
    pub(crate) plan: Arc<Plan>,
    /// By worker, by slot: the counters of servers.
    pub(crate) servers: Vec<Vec<Arc<ServerStats>>>,
}

/// The outcome of the last reload.
#[derive(Debug, Clone)]
pub(crate) struct Last {
    pub(crate) at: SystemTime,
    /// The error; None: success.
    pub(crate) error: Option<String>,
}

/// Facts about reloads for the status.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    /// Number of configurations in force since the start: 1 is the first.
    pub(crate) generation: u64,
    /// None: no reload yet.
    pub(crate) last: Option<Last>,
    /// Addresses that listen for clients, with the real port where port 0 was configured.
    pub(crate) listeners: Vec<Location>,
}

#[derive(Debug)]
struct State {
    current: Current,
    told: Told,
    asked: u64,
    outcomes: VecDeque<(u64, Outcome)>,
    /// The last job, waiting or done: no job is taken behind it.
    upgrade: Option<u64>,
    /// The new program may accept clients: from now on it owns the listeners.
    is_committed: bool,
    /// This program ends: no new one may take over.
    is_ending: bool,
    /// A new program accepts clients; the channel is for the news that this program has stopped
    /// accepting.
    handed: Option<(Handed, SyncSender<()>)>,
}

/// Why a job is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unwanted {
    /// Too many jobs wait.
    Busy,
    /// A new program takes over, or has.
    Upgrading,
}

/// Takes jobs, and keeps their outcomes.
#[derive(Debug, Clone)]
pub(crate) struct Desk {
    state: Arc<Mutex<State>>,
    jobs: SyncSender<(u64, Job)>,
}

impl Unwanted {
    /// Returns the word for programs.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Unwanted::Busy => "busy",
            Unwanted::Upgrading => "upgrading",
        }
    }
}

impl fmt::Display for Unwanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unwanted::Busy => {
                "too many reloads, weights, adds and removes of servers wait already; try again"
            }
            Unwanted::Upgrading => "a new program is taking over; ask the new program after that",
        })
    }
}

/// The state of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It waits, or is under way.
    Open,
    /// It is done, with this outcome.
    Done(Outcome),
    /// The number is unknown, or its outcome is forgotten.
    Unknown,
}

/// Reads the configuration again.
pub(crate) type Read = Box<dyn Fn() -> Result<Config, Failure> + Send>;

/// The configuration in force, as written.
pub(crate) struct Written {
    /// With all defaults.
    pub(crate) tree: Tree,
    /// Compiled, before any lookup of names.
    pub(crate) plan: Plan,
    /// Looks the names up.
    pub(crate) discovery: Discovery,
    /// What operators have added to it: as of the last job that succeeded.
    pub(crate) temporary: Temporary,
}

/// The initial state of the thread.
pub(crate) struct Reloader {
    desk: Desk,
    jobs: Receiver<(u64, Job)>,
}

impl Desk {
    /// Adds a job. Returns its number for [`Desk::answer`].
    ///
    /// # Errors
    /// Why it is rejected.
    pub(crate) fn ask(&self, job: Job) -> Result<u64, Unwanted> {
        let mut state = self.lock();
        if state.upgrade.is_some() {
            return Err(Unwanted::Upgrading);
        }
        let number = state.asked + 1;
        let is_upgrade = job == Job::Upgrade;
        self.jobs.try_send((number, job)).map_err(|_| Unwanted::Busy)?;
        state.asked = number;
        state.upgrade = is_upgrade.then_some(number);
        Ok(number)
    }

    /// Asks whether this program may end now. False: not yet, because a new one is beginning to
    /// accept clients.
    pub(crate) fn may_end(&self) -> bool {
        let mut state = self.lock();
        state.is_ending |= !state.is_committed;
        state.is_ending
    }

    /// Asks whether a new program may accept clients now. False: this program ends.
    fn may_commit(&self) -> bool {
        let mut state = self.lock();
        state.is_committed = !state.is_ending;
        state.is_committed
    }

    /// Returns what a new program has taken over, once. The caller confirms on the channel when it
    /// no longer accepts any of it.
    pub(crate) fn take_handed(&self) -> Option<(Handed, SyncSender<()>)> {
        self.lock().handed.take()
    }

    /// Has the main thread stop accepting, and waits for that.
    fn hand_over(&self, handed: Handed) {
        let (done, stopped) = sync_channel(1);
        self.lock().handed = Some((handed, done));
        // The main thread looks every 50 ms; if it does not, it is ending.
        let _ = stopped.recv_timeout(HAND_OVER_MAX);
    }

    /// Returns the state of a job.
    pub(crate) fn answer(&self, number: u64) -> Answer {
        let state = self.lock();
        let found = state.outcomes.iter().find(|(of, _)| *of == number);
        let is_older = state.outcomes.back().is_some_and(|(newest, _)| number <= *newest);
        match found {
            Some((_, outcome)) => Answer::Done(outcome.clone()),
            None if number == 0 || number > state.asked || is_older => Answer::Unknown,
            None => Answer::Open,
        }
    }

    /// Returns what is in force, unless the caller has it already, by its number.
    pub(crate) fn news(&self, number: u64) -> Option<Current> {
        let state = self.lock();
        (state.current.number != number).then(|| state.current.clone())
    }

    /// Returns facts about reloads for the status.
    pub(crate) fn told(&self) -> Told {
        self.lock().told.clone()
    }

    /// `listeners`: where weir listens for clients now; None: as before.
    fn set_current(
        &self,
        plan: Arc<Plan>,
        servers: Vec<Vec<Arc<ServerStats>>>,
        listeners: Option<Vec<Location>>,
    ) {
        let state = &mut *self.lock();
        state.current = Current { number: state.current.number + 1, plan, servers };
        if let Some(listeners) = listeners {
            state.told.listeners = listeners;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reloader {
    /// For workers that run this plan, use these counters, and listen on these addresses.
    pub(crate) fn new(
        plan: Arc<Plan>,
        servers: Vec<Vec<Arc<ServerStats>>>,
        listeners: Vec<Location>,
    ) -> Reloader {
        let (sender, jobs) = sync_channel(JOBS_MAX);
        let told = Told { generation: 1, last: None, listeners };
        let current = Current { number: 0, plan, servers };
        let state = State {
            current,
            told,
            asked: 0,
            outcomes: VecDeque::new(),
            upgrade: None,
            is_committed: false,
            is_ending: false,
            handed: None,
        };
        Reloader { desk: Desk { state: Arc::new(Mutex::new(state)), jobs: sender }, jobs }
    }

    /// The same for a program that took over by this job of its predecessor, so that later
    /// questions about the job find it done here.
    pub(crate) fn after(self, job: Option<u64>) -> Reloader {
        if let Some(job) = job {
            let mut state = self.desk.lock();
            state.asked = job;
            state.outcomes.push_back((job, Outcome::default()));
        }
        self
    }

    /// Returns where to put jobs.
    pub(crate) fn desk(&self) -> Desk {
        self.desk.clone()
    }

    /// Starts the thread, which lives as long as the process. `written` is the configuration in
    /// force. `read` is None if that is not from a file, `upgrader` if no new program can take
    /// over.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn start(
        self,
        written: Written,
        fixed: Fixed,
        read: Option<Read>,
        workers: Workers,
        upgrader: Option<Upgrader>,
    ) -> io::Result<()> {
        let Reloader { desk, jobs } = self;
        written.discovery.tell(desk.clone());
        let mut clerk =
            Clerk { desk, written, fixed, read, workers, not_found: String::new(), upgrader };
        std::thread::Builder::new().name("weir-reload".to_owned()).spawn(move || {
            for (number, job) in jobs {
                clerk.work(number, &job);
            }
        })?;
        Ok(())
    }
}

/// The thread.
struct Clerk {
    desk: Desk,
    written: Written,
    fixed: Fixed,
    /// None if the configuration is not from a file.
    read: Option<Read>,
    workers: Workers,
    /// Why the addresses found last could not be put in force; empty: they are in force.
    not_found: String,
    upgrader: Option<Upgrader>,
}

impl Clerk {
    fn work(&mut self, number: u64, job: &Job) {
        let done = match job {
            Job::Reload => self.reload(),
            Job::DryRun => {
                self.look().map(|(_, lines)| text(&lines)).map_err(privileges::explained)
            }
            Job::Found => self.found(),
            Job::Upgrade => self.upgrade(number),
            Job::Weigh { upstream, server, weight } => self.weigh(upstream, server, *weight),
            Job::Add { upstream, server } => self.add(upstream, server),
            Job::Remove { upstream, server } => self.remove(upstream, server),
        };
        let outcome = match done {
            Ok(text) => Outcome { code: 0, text },
            Err(failure) => Outcome { code: failure.code(), text: failure.to_string() },
        };
        let mut state = self.desk.lock();
        if *job == Job::Reload {
            let error = (outcome.code != 0).then(|| outcome.text.clone());
            state.told.generation += u64::from(error.is_none());
            state.told.last = Some(Last { at: SystemTime::now(), error });
        }
        if state.upgrade == Some(number) && outcome.code != 0 {
            (state.upgrade, state.is_committed) = (None, false);
        }
        state.outcomes.push_back((number, outcome));
        if state.outcomes.len() > OUTCOMES_MAX {
            state.outcomes.pop_front();
        }
    }

    /// Returns the configuration of the file and its differences, if it can replace the one in
    /// force.
    fn look(&self) -> Result<(Config, Vec<String>), Failure> {
        let Some(read) = &self.read else {
            let text =
                "weir: this weir runs without a configuration file; it has nothing to reload\n";
            return Err(Failure::Running(text.to_owned()));
        };
        let config = read()?;
        let plan = self.plan();
        let refused = self.fixed.refused(&config, &plan);
        if !refused.is_empty() {
            return Err(Failure::Configuration(restart::report(&refused)));
        }
        listeners::check(&plan.listeners, &config.plan.listeners)?;
        ways::check(&config.plan)?;
        let wanted = config.plan.located(&self.known());
        let mut lines = self.written.tree.difference(&config.tree);
        lines.extend(temporary::lines(&plan, &wanted));
        // Checks that there is room for it.
        self.workers.merged(&plan, wanted)?;
        Ok((config, lines))
    }

    fn reload(&mut self) -> Result<String, Failure> {
        // weir would check these files soon anyway, whether or not the reload succeeds.
        self.workers.look_at_files();
        let done = self.look().and_then(|(config, mut lines)| {
            lines.extend(self.apply(config)?);
            Ok(lines)
        });
        let done = done.map_err(privileges::explained);
        match &done {
            Ok(lines) => {
                Event::Reloaded
                    .says("the new configuration is in force")
                    .with("changes", lines.len())
                    .log();
                tell_lines(lines);
            }
            Err(failure) => {
                Event::ReloadFailed.says("keeping the previous configuration").log();
                let report = failure.to_string();
                Event::ReloadError.report(&report).for_each(|line| line.log());
            }
        }
        done.map(|_| String::new())
    }

    /// Puts a configuration in force. Returns the changes that come from names.
    fn apply(&mut self, mut config: Config) -> Result<Vec<String>, Failure> {
        if let Some(forward) = &mut config.plan.forward {
            forward.policy.set_local(run::own_addresses()?);
        }
        let failed = |error| run::failed("cannot resolve names", &error);
        // weir forgets nothing that is still in force.
        self.written
            .discovery
            .want(&[&self.written.plan, &config.plan], RELOAD_PATIENCE)
            .map_err(failed)?;
        let (plan, wanted) = (self.plan(), config.plan.located(&self.known()));
        let lines = found::lines(&plan, &wanted);
        let done = self.take_over(&plan, wanted);
        if done.is_ok() {
            (self.written.tree, self.written.plan) = (config.tree, config.plan);
        }
        self.written.discovery.keep(&self.written.plan).map_err(failed)?;
        done.map(|()| lines)
    }

    /// Puts new addresses of names in force.
    fn found(&mut self) -> Result<String, Failure> {
        let (plan, wanted) = (self.plan(), self.wanted());
        let mut lines = found::lines(&plan, &wanted);
        lines.extend(temporary::lines(&plan, &wanted));
        if lines.is_empty() {
            // An earlier job has done that.
            return Ok(String::new());
        }
        let done = self.take_over(&plan, wanted);
        let why = done.as_ref().err().map_or_else(String::new, ToString::to_string);
        match &done {
            Ok(()) => tell_lines(&lines),
            Err(_) => self.written.discovery.again(),
        }
        if !why.is_empty() && why != self.not_found {
            Event::ServersNotInForce.says("some discovered servers are not in use").log();
            Event::ReloadError.report(&why).for_each(|line| line.log());
        }
        self.not_found = why;
        done.map(|()| String::new())
    }

    /// Puts `wanted` in force after this plan. The temporary servers are then those of `wanted`.
    fn take_over(&mut self, plan: &Plan, wanted: Plan) -> Result<(), Failure> {
        let temporary = wanted.temporary();
        let next = self.workers.merged(plan, wanted)?;
        self.workers.hand_over(&self.desk, next)?;
        self.written.temporary = temporary;
        Ok(())
    }

    fn upgrade(&mut self, number: u64) -> Result<String, Failure> {
        let plan = self.plan();
        let Some(upgrader) = &mut self.upgrader else {
            return Err(Failure::Running(
                "weir: upgrade failed: no new program can take over from this one\n".to_owned(),
            ));
        };
        let (desk, workers) = (&self.desk, self.workers.handle());
        let done = upgrader.upgrade(
            number,
            workers,
            &plan,
            || desk.may_commit(),
            |handed| desk.hand_over(handed),
        );
        if let Err(failure) = &done {
            Event::UpgradeFailed.says("this program continues").log();
            let report = failure.to_string();
            Event::UpgradeError.report(&report).for_each(|line| line.log());
        }
        done.map(|()| String::new())
    }

    fn weigh(
        &mut self,
        upstream: &str,
        server: &str,
        weight: Option<u32>,
    ) -> Result<String, Failure> {
        let plan = self.plan();
        let slot = slot(&plan, upstream, server).map_err(|(_, message)| ordered(&message))?;
        self.workers.hand_over(&self.desk, plan.weighted(slot, weight))?;
        let said = weight.map_or_else(|| "as configured".to_owned(), |weight| weight.to_string());
        Event::ServerWeight
            .says("by command")
            .with("upstream", upstream)
            .with("server", server)
            .with("weight", said)
            .log();
        Ok(String::new())
    }

    fn add(&mut self, upstream: &str, added: &Added) -> Result<String, Failure> {
        let plan = self.plan();
        self.change(
            &plan,
            temporary::with(&self.wanted(), upstream, added).map_err(|why| ordered(&why))?,
        )?;
        // A server that was drained before its last removal is enabled now.
        let (plan, workers) = (self.plan(), self.workers.handle());
        let is_it = |slot: &usize| {
            let found = plan.server(*slot).filter(|_| !plan.is_retired(*slot));
            found.is_some_and(|(of, one)| {
                of.written_name() == upstream && one.name == added.server.name
            })
        };
        for slot in (0..plan.servers()).filter(is_it) {
            let told =
                workers.command(&Command::Order { server: slot as u32, order: Order::Enable });
            told.map_err(|weir_worker::Busy| {
                ordered("it is added, but may still be drained; enable it")
            })?;
        }
        Ok(String::new())
    }

    fn remove(&mut self, upstream: &str, server: &str) -> Result<String, Failure> {
        let plan = self.plan();
        self.change(
            &plan,
            temporary::without([&plan, &self.wanted()], upstream, server)
                .map_err(|why| ordered(&why))?,
        )?;
        Ok(String::new())
    }

    /// Changes the temporary servers of the plan in force.
    fn change(&mut self, plan: &Plan, temporary: Temporary) -> Result<(), Failure> {
        let wanted = self.written.plan.located(&Known { temporary, ..self.known() });
        let lines = found::lines(plan, &wanted);
        self.take_over(plan, wanted)?;
        tell_lines(&lines);
        Ok(())
    }

    /// Returns the plan with everything that is known now: a file may list a server that was added.
    fn wanted(&self) -> Plan {
        self.written.plan.located(&self.known())
    }

    /// Returns what is known of servers that the configuration does not give as addresses.
    fn known(&self) -> Known {
        Known { temporary: self.written.temporary.clone(), ..self.written.discovery.known() }
    }

    fn plan(&self) -> Arc<Plan> {
        Arc::clone(&self.desk.lock().current.plan)
    }
}

/// Why an order failed.
fn ordered(why: &str) -> Failure {
    Failure::Running(format!("weir: {why}\n"))
}

/// Returns the slot of a server of the configuration.
///
/// # Errors
/// The server does not exist: a word for that, and a suggestion.
pub(crate) fn slot(
    plan: &Plan,
    upstream: &str,
    server: &str,
) -> Result<usize, (&'static str, String)> {
    let upstreams = || plan.upstreams.iter().filter(|plan| !plan.is_retired());
    let Some(found) = upstreams().find(|plan| plan.name == upstream) else {
        return Err((
            "unknown-upstream",
            meant("upstream", upstream, upstreams().map(|plan| plan.name.as_str())),
        ));
    };
    let is_it = |slot: &usize| {
        let (of, one) = plan.server(*slot).unwrap_or((found, &found.servers[0]));
        std::ptr::eq(of, found) && one.name == server && !one.retired
    };
    let slot = (0..plan.servers()).find(is_it);
    slot.ok_or_else(|| {
        ("unknown-server", meant("server", server, found.present().map(|plan| plan.name.as_str())))
    })
}

fn tell_lines(lines: &[String]) {
    let log = |line: &str| Event::ConfigurationChange.says(line).log();
    lines.iter().take(LINES_MAX).for_each(|line| log(line));
    if lines.len() > LINES_MAX {
        log(&format!("and {} more", lines.len() - LINES_MAX));
    }
}

fn text(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}
