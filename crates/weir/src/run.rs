//! `weir run`, and what `weir reverse` shares with it: starts the workers, waits for signals, ends the workers.
//!
//! SIGTERM and SIGQUIT have it leave in peace ([`crate::leaving`]). A second one, or
//! SIGINT at any time, ends at once. SIGUSR1 opens the access log anew. SIGHUP reads the configuration anew, on a thread of its own
//! ([`crate::reload`]). SIGUSR2, which means upgrade to other servers, is answered with a line that says that weir can't do that. Workers
//! are told through their control; the service manager by `notify`.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use weir_config::{AdminChoice, Config, Experts, find_path, load};
use weir_http::Pseudonym;
use weir_proxy::observe::server_stats::ServerStats;
use weir_proxy::plan::{Plan, SERVERS_SPARE};
use weir_worker::{Running, Setup, StartError, Watchdog};

use crate::admin::{Doors, Facts};
use crate::cli::{EngineArgs, Io, RunArgs};
use crate::discovery::{Discovery, START_PATIENCE};
use crate::failure::Failure;
use crate::journal::Journal;
use crate::leaving::Leaving;
use crate::notify;
use crate::reload::{Answer, Desk, Fixed, Job, Read, Reloader, Workers, Written};
use crate::terminal::{alarm, tell, warn};
use crate::{admin, certificates, machine, side};

/// How long a port that is taken is tried again, and how often.
const BIND_MAX: Duration = Duration::from_secs(2);
const BIND_EVERY: Duration = Duration::from_millis(20);

/// How often the workers are looked at; signals are noticed at once.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Who looks into files for whoever runs.
pub(crate) const EXPERTS: Experts<'static> =
    Experts { users: &side::users::check, tls: &certificates::check_to_run, ..Experts::NOBODY };

/// What a running proxy reacts to.
const SIGNALS: [i32; 6] = [SIGTERM, SIGQUIT, SIGINT, SIGUSR1, SIGHUP, SIGUSR2];

/// Does the verb; returns when the proxy has ended.
///
/// # Errors
/// What is wrong with the configuration, or what [`serve`] says.
pub(crate) fn run(arguments: &RunArgs) -> Result<(), Failure> {
    let path = find_path(arguments.config.path())?;
    // The working directory stays what it is, but its name may go.
    let path = std::path::absolute(&path).unwrap_or(path);
    let config = read(&path, &arguments.engine)?;
    let engine = arguments.engine.clone();
    serve_from(config, Some(Box::new(move || read(&path, &engine))))
}

/// The configuration as it is in its file now, with what the command line says over it.
fn read(path: &Path, engine: &EngineArgs) -> Result<Config, Failure> {
    let mut config = load(path, EXPERTS)?;
    let EngineArgs { workers, io, admin, metrics } = engine;
    config.workers = workers.or(config.workers);
    config.io = io.map_or(config.io, Into::into);
    // The command line has been checked already.
    config.admin = admin.as_ref().and_then(|text| AdminChoice::read(text).ok()).unwrap_or(config.admin);
    config.metrics = metrics.or(config.metrics);
    Ok(config)
}

/// Runs a configuration that is in no file until a signal ends it.
///
/// # Errors
/// A listener that can't be bound, a driver that doesn't work here, a worker that failed.
pub(crate) fn serve(config: Config) -> Result<(), Failure> {
    serve_from(config, None)
}

/// The same; `again` reads the configuration anew.
fn serve_from(mut config: Config, again: Option<Read>) -> Result<(), Failure> {
    // Before anything else, so that a signal during the start is not lost.
    let signals = watch_signals(&SIGNALS).map_err(|error| failed("signals", &error))?;
    machine::raise_descriptors();
    let probe = weir_io::choose(io_choice(config.io)).map_err(|text| Failure::Running(format!("weir: {text}\n")))?;
    for listener in &config.plan.listeners {
        patiently(|| check_free(listener.address)).map_err(|error| Failure::binding(&error))?;
    }
    if let Some(forward) = &mut config.plan.forward {
        let local = weir_io::local_addresses();
        forward.policy.add_local(&local.map_err(|error| failed("can't list the addresses of this machine", &error))?);
    }
    let client = &mut config.plan.client;
    client.head.pseudonym = client.via_name.unwrap_or_else(random_name);
    let fixed = Fixed::of(&config);
    let doors = Doors::open(&config.admin, config.metrics).map_err(|error| Failure::binding(&error))?;
    let workers = config.workers.unwrap_or_else(machine::workers);
    let (discovery, plan) = find(&config.plan)?;
    let opened = plan.forward.as_ref().map(side::open).transpose()?;
    let certificates = certificates::open(&plan)?;
    let setup = Setup {
        plan: Arc::clone(&plan),
        workers: u16::try_from(workers).unwrap_or(u16::MAX),
        driver: probe.driver,
        pin: true,
        seed: seed(),
        errands: opened.as_ref().map(side::Opened::errands),
        seals: certificates.seals(),
        server_seals: certificates.server_seals(),
    };
    let running = weir_worker::start(&setup).map_err(|error| match error {
        StartError::Listen { error, .. } => Failure::binding(&error),
        StartError::AccessLog(error) => failed("can't open the access log", &error),
        StartError::Driver(error) => failed("can't start a worker", &error),
    })?;
    let noun = if workers == 1 { "worker" } else { "workers" };
    tell(format_args!("{probe}; {workers} {noun}; listening on {}", list(running.addresses())));
    if let Some(warnings) = &config.warnings {
        warnings.to_string().lines().for_each(warn);
    }
    let notes = [&doors.note, opened.as_ref().map_or(&None, |opened| &opened.note)];
    for note in notes.into_iter().flatten() {
        warn(note);
    }
    let side = opened.map(|opened| opened.start(running.handle())).transpose();
    let _side = side.map_err(|error| {
        running.stop();
        failed("can't start the thread for names and passwords", &error)
    })?;
    let facts = Facts { certificates: certificates.board(), names: discovery.board(), ..Facts::of(&probe) };
    let seals = certificates.server_seals();
    let certificates = certificates.start().map_err(|error| {
        running.stop();
        failed("can't start the thread for certificates", &error)
    })?;
    let reloader = Reloader::new(Arc::clone(&plan), servers(&running), running.addresses().to_vec());
    let desk = reloader.desk();
    let workers = Workers::new(running.handle(), plan.servers() + SERVERS_SPARE, seals, certificates.watcher());
    let written = Written { tree: config.tree, plan: config.plan, discovery };
    reloader.start(written, fixed, again, workers).map_err(|error| {
        running.stop();
        failed("can't start the thread for reloads", &error)
    })?;
    // Without it the proxy runs as well; its socket goes when this function ends.
    let _admin = admin::start(doors, plan, running.handle(), facts, desk.clone()).unwrap_or_else(|error| {
        warn(format_args!("no admin socket and no metrics: {error}"));
        None
    });
    supervise(running, &signals, Journal::new(setup.plan), &desk)
}

/// Looks servers up by their names; with what is known of them then, the plan that workers begin with.
fn find(written: &Plan) -> Result<(Discovery, Arc<Plan>), Failure> {
    let mut discovery = Discovery::default();
    let done = discovery.want(&[written], START_PATIENCE);
    done.map_err(|error| failed("can't start the thread for names", &error))?;
    let plan = Arc::new(written.located(&discovery.known()));
    Ok((discovery, plan))
}

/// What the workers count of each server.
pub(crate) fn servers(running: &Running) -> Vec<Vec<Arc<ServerStats>>> {
    running.views().iter().map(|view| view.servers.clone()).collect()
}

/// These signals as messages.
pub(crate) fn watch_signals(which: &[i32]) -> io::Result<Receiver<i32>> {
    let mut signals = Signals::new(which)?;
    let (sender, receiver) = channel();
    std::thread::Builder::new().name("weir-signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            // Nobody listens when the process is about to end anyway.
            let _ = sender.send(signal);
        }
    })?;
    Ok(receiver)
}

/// Tries again for a while when a port is taken: the kernel may still be tidying up after a program that has just been killed, and
/// one that drains keeps its port a moment longer. Says so, since whoever waits wants to know what for.
pub(crate) fn patiently<T>(mut bind: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut until: Option<Instant> = None;
    loop {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => match until {
                None => {
                    warn(format_args!("{error}; trying again for {} s", BIND_MAX.as_secs()));
                    until = Some(Instant::now() + BIND_MAX);
                }
                Some(until) if Instant::now() >= until => return Err(error),
                Some(_) => std::thread::sleep(BIND_EVERY),
            },
            done => return done,
        }
    }
}

/// A listener is shared with other sockets of the same user (SO_REUSEPORT), so a second weir would silently take half of
/// the connections of a first. Binding once without sharing finds out.
pub(crate) fn check_free(address: SocketAddr) -> io::Result<()> {
    if address.port() == 0 {
        return Ok(());
    }
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    match socket.bind(&address.into()) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let text = format!("cannot listen on {address}: the port is taken by another program");
            Err(io::Error::new(io::ErrorKind::AddrInUse, text))
        }
        // All other causes have their text where the real listener is made.
        _ => Ok(()),
    }
}

/// What weir's own bugs did to the workers, so far.
struct Bugs {
    watchdog: Watchdog,
    /// By worker.
    rebirths: Vec<u64>,
}

impl Bugs {
    fn new(running: &Running) -> Bugs {
        Bugs { watchdog: running.watchdog(), rebirths: vec![0; running.views().len()] }
    }

    /// Tells of workers that began anew, and ends the process when one is stuck: its clients would wait for ever.
    fn look(&mut self, running: &Running) {
        for (worker, (view, before)) in running.views().iter().zip(&mut self.rebirths).enumerate() {
            let rebirths = view.counters.rebirths.get();
            if std::mem::replace(before, rebirths) != rebirths {
                alarm(format_args!(
                    "worker {worker} panicked, which is a bug in weir (please report the lines above); its connections are closed, and it serves again"
                ));
            }
        }
        if let Some(worker) = self.watchdog.look(|worker| running.views()[worker].counters.turns.get()) {
            let step = running.views()[worker].doing.step().words();
            alarm(format_args!(
                "worker {worker} does not come back from a turn: it is {step}; this is a bug in weir (please report it); aborting"
            ));
            std::process::abort();
        }
    }
}

/// Waits for the end, by signal or by failure.
fn supervise(running: Running, signals: &Receiver<i32>, mut journal: Journal, desk: &Desk) -> Result<(), Failure> {
    notify::ready();
    let mut reload: Option<u64> = None;
    let mut leaving = Leaving::default();
    let mut bugs = Bugs::new(&running);
    let mut scheduling = running.scheduling();
    while !running.is_finished() {
        // What a worker owned, its clients and its share of the upstream connections, went with it; the others can't
        // stand in for it, a service manager's restart can.
        if running.has_ended() && !leaving.has_begun() {
            alarm("a worker ended by itself; ending the others");
            leaving.end(&running);
        }
        bugs.look(&running);
        scheduling.look();
        journal.follow(desk);
        journal.write(running.events().into_iter());
        if reload.is_some_and(|number| desk.answer(number) != Answer::Open) {
            reload = None;
            notify::ready();
        }
        match signals.recv_timeout(LOOK_EVERY) {
            Ok(SIGTERM | SIGQUIT) if !leaving.has_begun() => leaving.begin(&running, &journal.plan().shutdown),
            Ok(SIGUSR1) => running.reopen_log(),
            Ok(SIGHUP) => {
                notify::reloading();
                reload = desk.ask(Job::Reload);
                if reload.is_none() {
                    warn("SIGHUP: too many reloads wait already");
                    notify::ready();
                }
            }
            Ok(SIGUSR2) => warn("SIGUSR2: a running weir can't hand over to a new one yet; it goes on as before"),
            Ok(_) => leaving.end(&running),
            // A timeout; the sender lives as long as the process.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        leaving.go_on(&running);
    }
    let ended = running.join().map_err(|error| failed("a worker failed", &error));
    leaving.is_over();
    ended
}

/// The driver's word for what the configuration says.
pub(crate) fn io_choice(io: weir_config::IoChoice) -> weir_io::IoChoice {
    match io {
        weir_config::IoChoice::Auto => weir_io::IoChoice::Auto,
        weir_config::IoChoice::Uring => weir_io::IoChoice::Uring,
        weir_config::IoChoice::Epoll => weir_io::IoChoice::Epoll,
    }
}

/// A failure of something that should work.
pub(crate) fn failed(what: &str, error: &io::Error) -> Failure {
    Failure::Running(format!("weir: {what}: {error}\n"))
}

impl From<Io> for weir_config::IoChoice {
    fn from(io: Io) -> weir_config::IoChoice {
        match io {
            Io::Auto => weir_config::IoChoice::Auto,
            Io::Uring => weir_config::IoChoice::Uring,
            Io::Epoll => weir_config::IoChoice::Epoll,
        }
    }
}

/// Differs between runs; nothing secret depends on it.
pub(crate) fn seed() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 ^ (u64::from(std::process::id()) << 32)
}

/// A name in Via that no other proxy has (RFC 9110 §7.6.3).
fn random_name() -> Pseudonym {
    let mixed = seed().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Pseudonym::new(&format!("weir-{:08x}", mixed >> 32)).unwrap_or_default()
}

fn list(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
