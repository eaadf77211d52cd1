//! `weir run`, and what `weir reverse` shares with it: starts the workers, waits for signals, ends
//! the workers.
//!
//! SIGTERM and SIGQUIT drain and end weir ([`crate::leaving`]). A second one, or SIGINT at any
//! time, ends it at once. SIGUSR1 reopens the access log. SIGHUP reads the configuration again, on
//! a separate thread ([`crate::reload`]). SIGUSR2 starts a new program that takes over
//! ([`crate::upgrade`]); that program begins here, too. The control of the workers informs them,
//! `notify` the service manager.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use weir_config::{AdminChoice, Config, Errors, Experts, PinningChoice, find_path, load};
use weir_http::Pseudonym;
use weir_io::{Board, LocalRoutes, Probe};
use weir_proxy::forward::policy::IsLocal;
use weir_proxy::observe::server_stats::ServerStats;
use weir_proxy::plan::{Known, ListenerPlan, Location, Plan, SERVERS_SPARE};
use weir_worker::{Finding, Handle, Running, Setup, StartError, Step, Watchdog};

use crate::admin::{Admin, Doors, Facts};
use crate::cli::{EngineArgs, Io, RunArgs};
use crate::cores::Caretaker;
use crate::discovery::{Discovery, START_PATIENCE};
use crate::failure::Failure;
use crate::intercept::{Ahead, Watch};
use crate::journal::Journal;
use crate::lasting::Lasting;
use crate::leaving::Leaving;
use crate::log::{self, Event};
use crate::notify;
use crate::privileges::NewUser;
use crate::reload::{Answer, Desk, Fixed, Job, Read, Reloader, Workers, Written};
use crate::scarcity::Scarcity;
use crate::side::Side;
use crate::spreading::Spreading;
use crate::upgrade::{Heritage, Predecessor, Program, Taken, Upgrader};
use crate::{admin, arrival, certificates, machine, privileges, side, ways};

/// How long and how often weir tries again to bind a port that is in use.
const BIND_MAX: Duration = Duration::from_secs(2);
const BIND_EVERY: Duration = Duration::from_millis(20);

/// How often the main thread checks the workers; it notices signals at once.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Check the files that a configuration names, for a weir that is about to run.
pub(crate) const EXPERTS: Experts<'static> = Experts {
    users: &side::users::check,
    tls: &certificates::check_to_run,
    account: &privileges::check,
    group: &privileges::group,
    arrival: &arrival::look,
    ..Experts::NOBODY
};

/// Signals that a running proxy handles.
const SIGNALS: [i32; 6] = [SIGTERM, SIGQUIT, SIGINT, SIGUSR1, SIGHUP, SIGUSR2];

/// Runs the verb; returns when the proxy has ended.
///
/// # Errors
/// What is wrong with the configuration, or the errors of [`serve`].
pub(crate) fn run(arguments: &RunArgs, heritage: Heritage) -> Result<(), Failure> {
    let path = find_path(arguments.config.path())?;
    // The working directory remains the same, but its name may disappear.
    let path = std::path::absolute(&path).unwrap_or(path);
    let config = read(&path, &arguments.engine)?;
    let engine = arguments.engine.clone();
    let file = path.clone();
    let again: Read = Box::new(move || read(&path, &engine));
    serve_from(
        config,
        Source { file: Some(file), again: Some(again), ..Source::default() },
        heritage,
    )
}

/// Reads the configuration from its file; options of the command line override it.
fn read(path: &Path, engine: &EngineArgs) -> Result<Config, Failure> {
    let mut config = load(path, EXPERTS)?;
    let EngineArgs { workers, io, admin, metrics } = engine;
    config.workers = workers.or(config.workers);
    config.io = io.map_or(config.io, Into::into);
    // The command line has been checked already.
    config.admin =
        admin.as_ref().and_then(|text| AdminChoice::read(text).ok()).unwrap_or(config.admin);
    config.metrics = metrics.or(config.metrics);
    Ok(config)
}

/// Runs a configuration without a file until a signal ends it, with the sockets that this process
/// inherited.
///
/// # Errors
/// A listener that cannot be bound, a driver that does not work here, a worker that failed.
pub(crate) fn serve(config: Config, heritage: Heritage) -> Result<(), Failure> {
    serve_from(config, Source::default(), heritage)
}

/// The same for an interception. `ahead` connects to servers before accepting, `weir status` shows
/// `interception`.
///
/// # Errors
/// As [`serve`].
pub(crate) fn serve_ahead(
    config: Config,
    heritage: Heritage,
    ahead: Option<Ahead>,
    interception: Watch,
) -> Result<(), Failure> {
    serve_from(
        config,
        Source { ahead, interception: Some(interception), ..Source::default() },
        heritage,
    )
}

/// What accompanies a configuration.
#[derive(Default)]
struct Source {
    /// Its file, and the function that reads it again.
    file: Option<PathBuf>,
    again: Option<Read>,
    /// Connects to servers before weir accepts clients.
    ahead: Option<Ahead>,
    /// What `weir status` shows of an interception.
    interception: Option<Watch>,
}

/// The same, with what accompanies the configuration.
fn serve_from(mut config: Config, source: Source, mut heritage: Heritage) -> Result<(), Failure> {
    let program = Program::of_this();
    // Before anything else, so that a signal during the start is not lost.
    let signals = Signals::new(SIGNALS).map_err(|error| failed("signals", &error))?;
    machine::raise_descriptors();
    let workers = config.workers.unwrap_or_else(machine::workers);
    let given = heritage.doors();
    let opened = open(&mut config, source.file.as_deref(), &mut heritage, workers)?;
    let Opened { doors, side, notes, certificates, listeners, spreading, load_board, user } =
        opened;
    // From here on with the rights of `user`, and with threads.
    let signals = deliver(signals).map_err(|error| failed("signals", &error))?;
    let probe = weir_io::choose(io_choice(config.io))
        .map_err(|text| Failure::Running(format!("weir: {text}\n")))?;
    let fixed = Fixed::of(&config);
    let lent = doors.lend().map_err(|error| failed("cannot keep the admin socket", &error))?;
    let takes = given.of(&lent);
    let (discovery, plan) = find(&config.plan, &heritage)?;
    let plan = Arc::new(heritage.weigh(plan));
    let certificates = certificates.with_servers(&plan)?;
    let lasting = Lasting::open(&plan, heritage.predecessor.is_some());
    let setup = Setup {
        plan: Arc::clone(&plan),
        workers: u16::try_from(workers).unwrap_or(u16::MAX),
        driver: probe.driver,
        pin: config.pinning != PinningChoice::None,
        seed: seed(),
        errands: Some(side.errands()),
        seals: certificates.seals(),
        server_seals: certificates.server_seals(),
        prepared: source.ahead.map(Ahead::begin).transpose()?,
        board: load_board,
        complain: log::of_access_log,
    };
    let running = weir_worker::prepare(&setup, listeners).map_err(not_started);
    let mut running = running.map_err(|failure| user.explained(failure, &config))?;
    tell_start(&probe, workers, &running, &user);
    let as_root =
        (source.again.is_some() && heritage.predecessor.is_none()).then(|| user.note()).flatten();
    warn_of(config.warnings.as_ref(), doors.note.iter().chain(&notes).chain(&as_root));
    side.start(&plan, &running.handle()).inspect_err(|_| running.stop())?;
    let (board, names, seals) =
        (certificates.board(), discovery.board(), certificates.server_seals());
    let interception =
        source.interception.inspect(|watch| watch.set_workers(running.handle().board()));
    let facts =
        Facts { certificates: board, names, interception, ..lasting.facts(&probe, &spreading) };
    let certificates =
        certificates.start().map_err(|error| no_thread(&running, "certificates", &error))?;
    heritage.carry_out_orders(&plan, &running.handle());
    let predecessor = heritage.predecessor;
    let reloader =
        Reloader::new(Arc::clone(&plan), servers(&running), running.addresses().to_vec());
    let reloader = reloader.after(predecessor.as_ref().map(|predecessor| predecessor.job));
    let desk = reloader.desk();
    let slots_max = plan.servers() + SERVERS_SPARE;
    let workers =
        Workers::new(running.handle(), slots_max, seals, certificates.watcher(), side.registry());
    let workers = workers.with_spreading(spreading.clone()).with_verdicts(lasting.verdicts.clone());
    let written =
        Written { tree: config.tree, temporary: plan.temporary(), plan: config.plan, discovery };
    let upgrader = Upgrader::new(program, lent, lasting.snapshots.clone());
    let reloads = reloader.start(written, fixed, source.again, workers, Some(upgrader));
    reloads.map_err(|error| no_thread(&running, "reloads", &error))?;
    let keepers = lasting
        .start(&mut running, &desk)
        .map_err(|error| no_thread(&running, "stored files", &error))?;
    accept(&mut running, predecessor.as_ref(), takes, &plan).inspect_err(|_| {
        // Files that do not belong to this program remain.
        running.handle().remove_files(|_| false);
    })?;
    lasting.enter();
    // The proxy also runs without it; its socket is removed when this function returns.
    let admin = admin::start(doors, plan, running.handle(), facts, desk.clone());
    let admin = admin.unwrap_or_else(|error| without_admin(&error));
    if predecessor.is_none() {
        notify::ready();
    }
    let eyes = (admin, &lasting, config.pinning, &spreading);
    let ended = supervise(running, &signals, Journal::new(setup.plan), &desk, eyes);
    keepers.finish(&signals);
    ended
}

/// Logs what runs, and where it listens.
fn tell_start(probe: &Probe, workers: u32, running: &Running, user: &NewUser) {
    let addresses = list(running.addresses());
    let suffix = user.suffix();
    Event::Started
        .says(format_args!("{probe}; listening on {addresses}{suffix}"))
        .with("workers", workers)
        .log();
}

/// Reports that the control plane is missing.
fn without_admin(error: &io::Error) -> Option<Admin> {
    Event::AdminUnavailable.says("no admin socket and no metrics").with("error", error).log();
    None
}

/// Reports that a thread cannot be started, and ends the proxy.
fn no_thread(running: &Running, what: &str, error: &std::io::Error) -> Failure {
    running.stop();
    failed(&format!("cannot start the thread for {what}"), error)
}

/// Everything that needs rights which weir then gives up.
struct Opened {
    doors: Doors,
    side: Side,
    /// What the operator should know of files of users.
    notes: Vec<String>,
    certificates: certificates::Opened,
    listeners: weir_worker::Opened,
    spreading: Spreading,
    /// The load of the workers for the kernel to read, if it does.
    load_board: Option<Arc<Board>>,
    user: NewUser,
}

/// Binds and reads files with all rights of this process, then drops those it should. No thread may
/// run before.
fn open(
    config: &mut Config,
    file: Option<&Path>,
    heritage: &mut Heritage,
    workers: u32,
) -> Result<Opened, Failure> {
    let user = NewUser::of(config)?;
    for listener in
        config.plan.listeners.iter().filter(|listener| !heritage.covers(&listener.address))
    {
        patiently(|| check_free(&listener.address, listener.device()))
            .map_err(|error| Failure::binding(&error))?;
    }
    let workers = usize::try_from(workers).unwrap_or(usize::MAX).max(1);
    complete(&mut config.plan, workers)?;
    let mut metrics =
        Doors::listen(config.metrics, heritage).map_err(|error| Failure::binding(&error))?;
    // A client that can connect can then use the admin socket as well, unless that has to belong to
    // `user`.
    let mut open_doors = |heritage: &mut Heritage| {
        Doors::open(&config.admin, metrics.take(), heritage)
            .map_err(|error| Failure::binding(&error))
    };
    let early = if user.is_a_change() { None } else { Some(open_doors(heritage)?) };
    let plan = &config.plan;
    let (side, notes) = side::open(plan)?;
    let certificates = certificates::open(plan)?;
    let inherited = heritage.take_listeners(&plan.listeners)?;
    let listeners =
        weir_worker::Opened::new(&plan.listeners, workers, inherited).map_err(not_started)?;
    let (spreading, load_board) =
        Spreading::prepare(config.accept_by, workers, config.pinning != PinningChoice::None);
    spreading.take(listeners.ports().map_err(|error| failed("listeners", &error))?, workers);
    user.carry_out(config, &listeners)?;
    weir_io::set_network_aside().map_err(|error| failed("capabilities", &error))?;
    ways::check(plan)?;
    let doors = early.map_or_else(|| open_doors(heritage), Ok)?;
    let users = plan.users.iter().map(AsRef::as_ref);
    user.warn(config, file.into_iter().chain(certificates.paths()).chain(users));
    Ok(Opened { doors, side, notes, certificates, listeners, spreading, load_board, user })
}

/// Completes a plan with what is known only where it runs.
fn complete(plan: &mut Plan, workers: usize) -> Result<(), Failure> {
    if let Some(forward) = &mut plan.forward {
        forward.policy.set_local(own_addresses()?);
    }
    plan.client.head.pseudonym = plan.client.via_name.unwrap_or_else(random_name);
    key_shield(plan)?;
    open_cache(plan, workers)
}

/// Returns a function that knows the current addresses of this machine.
pub(crate) fn own_addresses() -> Result<IsLocal, Failure> {
    let routes = LocalRoutes::here();
    let routes =
        routes.map_err(|error| failed("cannot list the addresses of this machine", &error))?;
    Ok(Arc::new(move |address| routes.has(address)))
}

/// Gives the accounts of `shield` an unpredictable key. A later plan keeps the accounts.
pub(crate) fn key_shield(plan: &mut Plan) -> Result<(), Failure> {
    if let Some(shield) = &mut plan.shield {
        shield.set_key(unpredictable("`shield`")?);
    }
    Ok(())
}

/// Makes the store of a plan with `cache`. A later plan keeps it.
pub(crate) fn open_cache(plan: &mut Plan, workers: usize) -> Result<(), Failure> {
    if let Some(cache) = &mut plan.cache {
        cache.open(unpredictable("`cache`")?, workers);
    }
    Ok(())
}

/// Returns an unpredictable key.
fn unpredictable(what: &str) -> Result<[u64; 2], Failure> {
    let mut bytes = [0; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    if filled.is_ok_and(|filled| filled == bytes.len()) {
        let key = u128::from_ne_bytes(bytes);
        return Ok([key as u64, (key >> 64) as u64]);
    }
    let error = io::Error::other("the operating system has no randomness");
    Err(failed(&format!("no key for {what}"), &error))
}

/// Prints warnings for the operator.
fn warn_of<'a>(warnings: Option<&Errors>, notes: impl Iterator<Item = &'a String>) {
    if let Some(warnings) = warnings {
        let text = warnings.to_string();
        Event::ConfigurationWarning.report(&text).for_each(|line| line.log());
    }
    notes.for_each(|note| Event::Advice.says(note).log());
}

/// Lets workers that are ready accept clients; after an upgrade only when the predecessor allows
/// it.
fn accept(
    running: &mut Running,
    predecessor: Option<&Predecessor>,
    takes: Taken,
    plan: &Arc<Plan>,
) -> Result<(), Failure> {
    if let Some(predecessor) = predecessor {
        let handle = running.handle();
        predecessor.wait_for_turn(takes, || admin::unready(plan, &handle))?;
    }
    running.accept().map_err(not_started)?;
    if let Some(predecessor) = predecessor {
        predecessor.take_over()?;
        running.answer_for_files();
        set_rights(&running.handle(), &plan.listeners);
        Event::TookOver
            .says("the old process has handed over its listeners")
            .with("pid", predecessor.pid)
            .log();
    }
    Ok(())
}

/// Sets the configured rights of these listeners on the files of unix sockets, as far as they
/// belong to this process.
pub(crate) fn set_rights<'a>(
    workers: &Handle,
    listeners: impl IntoIterator<Item = &'a ListenerPlan>,
) {
    for plan in listeners {
        if let Location::Unix(path) = &plan.address
            && let Err(error) = workers.set_rights(path, plan.mode, plan.group)
        {
            Event::SocketRights
                .says("the rights of a listener are not as configured")
                .with("error", error)
                .log();
        }
    }
}

/// Explains why workers did not start.
pub(crate) fn not_started(error: StartError) -> Failure {
    match error {
        StartError::Listen { error, .. } => Failure::binding(&error),
        StartError::AccessLog(error) => failed("can't open the access log", &error),
        StartError::Driver(error) => failed("cannot start a worker", &error),
    }
}

/// Looks server names up. Returns the plan for the workers to begin with, from the results and the
/// servers added to a predecessor.
fn find(written: &Plan, heritage: &Heritage) -> Result<(Discovery, Plan), Failure> {
    let mut discovery = Discovery::default();
    let done = discovery.want(&[written], START_PATIENCE);
    done.map_err(|error| failed("cannot start the thread for names", &error))?;
    let plan =
        written.located(&Known { temporary: heritage.temporary(written), ..discovery.known() });
    Ok((discovery, plan))
}

/// Returns the counters of each server in the workers.
pub(crate) fn servers(running: &Running) -> Vec<Vec<Arc<ServerStats>>> {
    running.views().iter().map(|view| view.servers.clone()).collect()
}

/// Delivers these signals as messages.
pub(crate) fn watch_signals(which: &[i32]) -> io::Result<Receiver<i32>> {
    deliver(Signals::new(which)?)
}

/// Delivers signals that are caught already.
fn deliver(mut signals: Signals) -> io::Result<Receiver<i32>> {
    let (sender, receiver) = channel();
    std::thread::Builder::new().name("weir-signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            // The receiver is gone only when the process is about to end anyway.
            let _ = sender.send(signal);
        }
    })?;
    Ok(receiver)
}

/// Tries again for a while when a port is in use: the kernel may still be cleaning up after a
/// killed program, and a program that drains keeps its port a moment longer. Says so, to explain
/// the wait.
pub(crate) fn patiently<T>(mut bind: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut until: Option<Instant> = None;
    loop {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => match until {
                None => {
                    let seconds = BIND_MAX.as_secs();
                    Event::BindRetry
                        .says(format_args!("{error}; retrying"))
                        .with("seconds", seconds)
                        .log();
                    until = Some(Instant::now() + BIND_MAX);
                }
                Some(until) if Instant::now() >= until => return Err(error),
                Some(_) => std::thread::sleep(BIND_EVERY),
            },
            done => return done,
        }
    }
}

/// A listener is shared with other sockets of the same user (SO_REUSEPORT), so a second weir would
/// silently take half of the connections of a first. Binding once without sharing detects that.
pub(crate) fn check_free(place: &Location, device: Option<&str>) -> io::Result<()> {
    let address = match place {
        Location::Network(address) if address.port() == 0 => return Ok(()),
        Location::Network(address) => *address,
        Location::Unix(path) => return weir_io::check_unix_free(path),
        Location::Destination => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let socket =
        socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // Another program may listen there on another interface. The real listener reports why binding
    // fails.
    if device.is_some_and(|device| socket.bind_device(Some(device.as_bytes())).is_err()) {
        return Ok(());
    }
    match socket.bind(&address.into()) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let text = format!("cannot listen on {address}: another program uses this port");
            Err(io::Error::new(io::ErrorKind::AddrInUse, text))
        }
        // All other causes are reported where the real listener is made.
        _ => Ok(()),
    }
}

/// Effects of weir's own bugs on the workers so far.
struct Bugs {
    watchdog: Watchdog,
    /// By worker.
    rebirths: Vec<u64>,
}

impl Bugs {
    fn new(running: &Running) -> Bugs {
        Bugs { watchdog: running.watchdog(), rebirths: vec![0; running.views().len()] }
    }

    /// Reports workers that restarted, and aborts the process when one is stuck: its clients would
    /// wait for ever.
    fn look(&mut self, running: &Running) {
        for (worker, (view, before)) in running.views().iter().zip(&mut self.rebirths).enumerate() {
            let rebirths = view.counters.rebirths.get();
            if std::mem::replace(before, rebirths) != rebirths {
                let sentence = "it panicked, which is a bug in weir (please report the lines \
                                above); its connections are closed, and it serves again";
                Event::WorkerRestarted.says(sentence).with("worker", worker).log();
            }
        }
        match self.watchdog.look(|worker| running.views()[worker].doing.steps()) {
            Some(Finding::Slow { worker, step }) => {
                let doing = &running.views()[worker].doing;
                doing.blame(step);
                let (step, then) = match doing.step() {
                    Step::Client => (Step::Client, "; weir ends that client"),
                    step => (step, ""),
                };
                let sentence = format_args!(
                    "it makes no progress: it is {}{then}; this is a bug in weir (please report \
                        it)",
                    step.words()
                );
                Event::WorkerSlow.says(sentence).with("worker", worker).log();
            }
            Some(Finding::Stuck { worker }) => {
                let step = running.views()[worker].doing.step().words();
                let sentence = format_args!(
                    "it is stuck in a turn: it is {step}; this is a bug in weir (please report \
                        it); aborting"
                );
                Event::WorkerStuck.says(sentence).with("worker", worker).log();
                std::process::abort();
            }
            None => {}
        }
    }
}

/// Waits for the end, by signal or by failure.
fn supervise(
    running: Running,
    signals: &Receiver<i32>,
    mut journal: Journal,
    desk: &Desk,
    (mut admin, lasting, pinning, spreading): (Option<Admin>, &Lasting, PinningChoice, &Spreading),
) -> Result<(), Failure> {
    let (mut reload, mut leaving): (Option<u64>, Leaving) = (None, Leaving::default());
    // A signal asks the process to end.
    let mut ends = false;
    let (mut bugs, mut scarcity) = (Bugs::new(&running), Scarcity::new());
    let mut cores = Caretaker::new(&running, pinning);
    let mut shedder = running.handle().shedder();
    while !running.is_finished() {
        // The worker's clients and its share of the upstream connections are lost. The other
        // workers cannot replace it; a restart by the service manager can.
        if running.has_ended() && !leaving.has_begun() {
            Event::WorkerEnded.says("a worker ended unexpectedly; ending the others").log();
            leaving.end(&running);
        }
        bugs.look(&running);
        scarcity.look(&running, journal.plan());
        cores.look();
        spreading.look(&running.handle());
        journal.follow(desk);
        hear(&running, &mut journal, lasting);
        if reload.is_some_and(|number| desk.answer(number) != Answer::Open) {
            reload = None;
            notify::ready();
        }
        if let Some((handed, done)) = desk.take_handed() {
            spreading.let_go();
            leaving.hand_over(&running, journal.plan(), &handed);
            lasting.leave();
            if let Some(admin) = &mut admin {
                admin.hand_over(handed.admin, handed.metrics);
            }
            notify::succeeded_by(handed.pid);
            // The waiting thread may have lost patience.
            let _ = done.try_send(());
        }
        match signals.recv_timeout(shedder.look(journal.plan()).unwrap_or(LOOK_EVERY)) {
            Ok(SIGTERM | SIGQUIT) if !leaving.has_begun() || leaving.is_beside() => ends = true,
            Ok(SIGUSR1) => running.reopen_log(),
            Ok(SIGHUP) => {
                notify::reloading();
                match desk.ask(Job::Reload) {
                    Ok(job) => reload = Some(job),
                    Err(unwanted) => {
                        Event::SignalIgnored.says(unwanted).with("signal", "SIGHUP").log();
                        notify::ready();
                    }
                }
            }
            Ok(SIGUSR2) => begin_upgrade(desk),
            Ok(_) => lasting.end_at_once(&mut leaving, &running),
            // A timeout; the sender lives as long as the process.
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        if ends && (leaving.is_beside() || desk.may_end()) {
            ends = false;
            leaving.begin(&running, &journal.plan().shutdown);
        }
        leaving.go_on(&running);
    }
    hear(&running, &mut journal, lasting);
    let ended = running.join().map_err(|error| failed("a worker failed", &error));
    leaving.is_over();
    ended
}

/// Logs events of servers, and keeps verdicts on them.
fn hear(running: &Running, journal: &mut Journal, lasting: &Lasting) {
    let events = running.events();
    lasting.verdicts.note(journal.plan(), &events);
    journal.write(events.into_iter());
}

/// Starts an upgrade, as SIGUSR2 requests.
fn begin_upgrade(desk: &Desk) {
    if let Err(unwanted) = desk.ask(Job::Upgrade) {
        Event::SignalIgnored.says(unwanted).with("signal", "SIGUSR2").log();
    }
}

/// Translates the configured driver.
pub(crate) fn io_choice(io: weir_config::IoChoice) -> weir_io::IoChoice {
    match io {
        weir_config::IoChoice::Auto => weir_io::IoChoice::Auto,
        weir_config::IoChoice::Uring => weir_io::IoChoice::Uring,
        weir_config::IoChoice::Epoll => weir_io::IoChoice::Epoll,
    }
}

/// Reports the failure of something that should work.
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

/// Returns a name for Via that no other proxy has (RFC 9110 §7.6.3).
fn random_name() -> Pseudonym {
    let mixed = seed().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Pseudonym::new(&format!("weir-{:08x}", mixed >> 32)).unwrap_or_default()
}

fn list(addresses: &[Location]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
