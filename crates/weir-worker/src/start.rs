//! Starts one worker a core, and ends them.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_io::{Board, Descriptors, DriverKind, Options, SocketFile, Waker, available_cores};
use weir_proxy::engine::{Hints, Parts};
use weir_proxy::forward::lookup::News;
use weir_proxy::observe::counters::Counters;
use weir_proxy::observe::histogram::Histogram;
use weir_proxy::observe::server_event::Event;
use weir_proxy::observe::server_stats::ServerStats;
use weir_proxy::plan::{Location, Plan, SERVERS_SPARE};
use weir_proxy::shield::bans::Offence;
use weir_tls::Seal;

use crate::control::{Busy, Command, Control};
use crate::cores::Cores;
use crate::doing::Doing;
use crate::encoding::Pool;
use crate::enquiry::{Enquiry, WorkerReport, enquire};
use crate::errands::Errands;
use crate::hand_over::{Lending, Lent};
use crate::log_sink::LogSink;
use crate::log_writer::{Complain, LogWriter};
use crate::mailbox::mailboxes;
use crate::opening::{Opened, Opening};
use crate::pinning::{Pinning, Place};
use crate::prepared::{Dialing, Prepared};
use crate::presence::{Presence, Times};
use crate::seat::Seat;
use crate::watchdog::Watchdog;

/// Changes of servers that wait to be read; further ones are lost.
const EVENTS_MAX: usize = 1024;
/// Clients to be banned that wait to be read; further ones are lost.
const OFFENCES_MAX: usize = 1024;
/// How long a worker may take to react to a command.
const PATIENCE: Duration = Duration::from_secs(10);

/// What to start.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The configuration.
    pub plan: Arc<Plan>,
    /// Threads; at least 1.
    pub workers: u16,
    /// Which driver.
    pub driver: DriverKind,
    /// Bind each worker to a core (worker n to the n-th available one). [`Cores`] may unpin it for
    /// a while.
    pub pin: bool,
    /// Makes jitter differ between runs.
    pub seed: u64,
    /// Runs errands of workers; None: they fail.
    pub errands: Option<Arc<dyn Errands>>,
    /// By listener of the plan: how its clients speak TLS. None, or no entry: they don't.
    pub seals: Vec<Option<Sealing>>,
    /// How connections to servers speak TLS.
    pub server_seals: ServerSeals,
    /// Connections to servers that are made before their clients are accepted.
    pub prepared: Option<Arc<Prepared>>,
    /// Where workers show what they are doing, a line for each of them; None: memory of this
    /// process.
    pub board: Option<Arc<Board>>,
    /// Tells the operator of problems with the access log; called by its thread.
    pub complain: Complain,
}

/// Makes connections to servers speak TLS, by server over all upstreams of the plan; no entry, or
/// None: they are plain.
pub type ServerSeals = Vec<Option<Arc<dyn Seal>>>;

/// How the clients of a listener speak TLS.
#[derive(Debug, Clone)]
pub struct Sealing {
    /// Makes this end of each connection.
    pub seal: Arc<dyn Seal>,
    /// How long a handshake may take, microseconds.
    pub handshake_timeout_us: u64,
}

/// Why starting failed.
#[derive(Debug)]
pub enum StartError {
    /// An address can't be listened on.
    Listen {
        /// The address.
        address: Location,
        /// Why.
        error: io::Error,
    },
    /// The access log can't be opened.
    AccessLog(io::Error),
    /// The driver can't be made, or a thread.
    Driver(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Listen { address, error } => {
                write!(f, "can't listen on {address}: {error}")
            }
            StartError::AccessLog(error) => write!(f, "can't open the access log: {error}"),
            StartError::Driver(error) => write!(f, "can't start a worker: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// The parts of a running worker that can be read at any time, without disturbing it.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Its counters.
    pub counters: Arc<Counters>,
    /// Its latencies: receipt of a request to the end of its response, microseconds.
    pub latency: Arc<Histogram>,
    /// The same of responses from the store, which are not in `latency`.
    pub hits: Arc<Histogram>,
    /// By server, upstream after upstream: the worker's counts for it.
    pub servers: Vec<Arc<ServerStats>>,
    /// Where to ask the worker what it is doing.
    pub enquiry: Arc<Enquiry>,
    /// The step of its turn that it is in.
    pub doing: Arc<Doing>,
    /// How long its turns and waits took.
    pub times: Arc<Times>,
    /// How it is bound to a core.
    pub place: Arc<Place>,
}

impl View {
    fn new(plan: &Plan) -> View {
        View { servers: ServerStats::for_plan(plan), ..View::default() }
    }
}

/// Another thread's access to running workers: it can look at them, and pass on commands of
/// operators.
#[derive(Clone, Default)]
pub struct Handle {
    pub(crate) controls: Vec<(Arc<Control>, Arc<dyn Waker>)>,
    views: Vec<View>,
    /// The load board of the workers.
    board: Arc<Board>,
    /// Numbers of the workers' threads (gettid).
    threads: Vec<i32>,
    /// Held while all workers get one command.
    telling: Arc<Mutex<()>>,
    /// A drain is about to begin.
    leaving: Arc<AtomicBool>,
    /// Names of unix sockets that are listened on. They are removed with their listeners.
    files: Arc<Mutex<Vec<SocketFile>>>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle {{ workers: {} }}", self.controls.len())
    }
}

impl Handle {
    /// For workers that don't run: the counters that they would use, with no worker to answer.
    pub fn of_views(plan: &Plan, workers: usize) -> Handle {
        let views = (0..workers).map(|_| View::new(plan)).collect();
        Handle { views, board: Arc::new(Board::new(workers)), ..Handle::default() }
    }

    /// The readable parts of each worker.
    pub fn views(&self) -> &[View] {
        &self.views
    }

    /// The load board, by worker.
    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// Numbers of the workers' threads (gettid), by worker.
    pub fn threads(&self) -> &[i32] {
        &self.threads
    }

    /// Whether they got the command to drain or to end.
    pub fn is_ending(&self) -> bool {
        self.controls.iter().any(|(control, _)| control.is_ending())
    }

    /// Whether that will happen soon ([`Running::leave_soon`]).
    pub fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Sends a command to all workers; what is read of them afterwards reflects it.
    ///
    /// # Errors
    /// [`Busy`]: no worker got it.
    pub fn command(&self, command: &Command) -> Result<(), Busy> {
        let _one = self.telling.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !self.controls.iter().all(|(control, _)| control.has_room()) {
            return Err(Busy);
        }
        for (control, waker) in &self.controls {
            control.command(command.clone())?;
            waker.wake();
        }
        Ok(())
    }

    /// Asks all workers what they are doing, after earlier commands: by worker; None: it did not
    /// answer in time.
    pub fn enquire(&self, patience: Duration) -> Vec<Option<Arc<WorkerReport>>> {
        let enquiries: Vec<_> = self.views.iter().map(|view| Arc::clone(&view.enquiry)).collect();
        enquire(&enquiries, patience)
    }

    /// Their listening sockets, to be given to another process.
    ///
    /// # Errors
    /// A socket can't be lent, or a worker does not react in time.
    pub fn lend(&self) -> io::Result<Vec<Lent>> {
        let lending = Arc::new(Lending::default());
        let told = self.command(&Command::Lend(Arc::clone(&lending)));
        if told.is_err() || self.enquire(PATIENCE).iter().any(Option::is_none) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "a worker did not apply it"));
        }
        lending.take()
    }

    /// Keeps names of unix sockets until [`Handle::remove_files`].
    pub fn keep_files(&self, files: impl IntoIterator<Item = SocketFile>) {
        self.files().extend(files);
    }

    /// Removes the names of the unix sockets for whose paths `stays` is false: new clients no
    /// longer find them.
    pub fn remove_files(&self, stays: impl Fn(&Path) -> bool) {
        self.files().retain(|file| stays(file.path()));
    }

    /// Gives unix sockets another mode and another group, if this process owns their names: by
    /// path.
    ///
    /// # Errors
    /// The operating system's, with the path.
    pub fn set_rights(&self, path: &Path, mode: u32, group: Option<u32>) -> io::Result<()> {
        let files = self.files();
        files
            .iter()
            .find(|file| file.path() == path)
            .map_or(Ok(()), |file| file.set_rights(mode, group))
    }

    /// Device and inode of the unix socket at this path, if this process owns its name.
    pub fn file_at(&self, path: &Path) -> Option<(u64, u64)> {
        self.files().iter().find(|file| file.path() == path).and_then(SocketFile::id)
    }

    fn files(&self) -> MutexGuard<'_, Vec<SocketFile>> {
        self.files.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Adds counters for added servers: by worker, by slot.
    pub fn with_servers(&self, servers: &[Vec<Arc<ServerStats>>]) -> Handle {
        let mut handle = self.clone();
        for (view, servers) in handle.views.iter_mut().zip(servers) {
            view.servers.clone_from(servers);
        }
        handle
    }

    /// Delivers the result of an errand to a worker; exactly once for each.
    pub fn tell(&self, worker: u16, news: News) {
        if let Some((control, waker)) = self.controls.get(usize::from(worker)) {
            control.news(news);
            waker.wake();
        }
    }
}

/// Workers that run.
pub struct Running {
    threads: Vec<JoinHandle<io::Result<()>>>,
    handle: Handle,
    addresses: Vec<Location>,
    log: Option<LogWriter>,
    /// Changes of servers.
    events: Mutex<Receiver<Event>>,
    /// Clients that are to be banned; None: the receiver was taken.
    offences: Option<Receiver<Offence>>,
    /// The sockets to accept on; None: they are accepted on already.
    opening: Option<Opening>,
    /// Encodes for the workers.
    encoders: Pool,
}

/// Binds every listener once for each worker and starts the workers. When it returns, connections
/// are accepted.
///
/// # Errors
/// See [`StartError`]; nothing is left running.
pub fn start(setup: &Setup) -> Result<Running, StartError> {
    let opened = Opened::new(&setup.plan.listeners, usize::from(setup.workers.max(1)), Vec::new())?;
    let mut running = prepare(setup, opened)?;
    running.accept()?;
    Ok(running)
}

/// The same with listeners that are open; no client is accepted before [`Running::accept`].
///
/// # Errors
/// See [`StartError`]; nothing is left running.
pub fn prepare(setup: &Setup, opened: Opened) -> Result<Running, StartError> {
    let workers = setup.workers.max(1);
    let options = Options { shared_listeners: opened.is_shared(), ..Options::default() };
    let Opened { mut opening, addresses, files, .. } = opened;
    opening.set_seals(setup.seals.clone());
    let hints = Arc::new(Hints::new(setup.plan.servers() + SERVERS_SPARE, usize::from(workers)));
    let cores = if setup.pin { available_cores() } else { Vec::new() };
    let views: Vec<View> = (0..workers).map(|_| View::new(&setup.plan)).collect();
    let (log, mut sinks) = access_log(&setup.plan, &views, setup.complain)?;
    let handle = Handle { views, board: board_of(setup, workers)?, ..Handle::default() };
    handle.keep_files(files.into_iter().map(|(file, _)| file));
    let (events_to, told) = mpsc::sync_channel(EVENTS_MAX);
    let (threads, events) = (Vec::new(), Mutex::new(told));
    let (opening, encoders) = (Some(opening), Pool::new(usize::from(workers)));
    let (offended, offences) = mpsc::sync_channel(OFFENCES_MAX);
    let mut running = Running {
        threads,
        handle,
        addresses,
        log,
        events,
        offences: Some(offences),
        opening,
        encoders,
    };
    let (ready, started) = mpsc::channel();
    let descriptors = Arc::new(Descriptors::of_process(usize::from(workers)));
    for (number, mailbox) in mailboxes(workers).into_iter().enumerate() {
        let view = &running.handle.views[number];
        let parts = Parts {
            plan: Arc::clone(&setup.plan),
            worker: number as u16,
            workers,
            seed: setup.seed ^ (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            secret: secret().map_err(StartError::Driver)?,
            hints: Arc::clone(&hints),
            counters: Arc::clone(&view.counters),
            latency: Arc::clone(&view.latency),
            hits: Arc::clone(&view.hits),
            servers: view.servers.clone(),
            relays: true,
        };
        let core = if cores.is_empty() { None } else { Some(cores[number % cores.len()]) };
        let seat = Seat {
            parts,
            mailbox,
            log: sinks.next(),
            ready: ready.clone(),
            control: Arc::default(),
            enquiry: Arc::clone(&view.enquiry),
            place: Arc::clone(&view.place),
            descriptors: Arc::clone(&descriptors),
            presence: Presence::new(view, Arc::clone(running.handle.board()), number as u16),
            events: events_to.clone(),
            offences: offended.clone(),
            errands: setup.errands.clone(),
            encoders: running.encoders.encoders(),
            dialing: Dialing::of(setup),
        };
        let control = Arc::clone(&seat.control);
        running.threads.push(seat.begin(setup.driver, options, core).map_err(StartError::Driver)?);
        match started.recv() {
            Ok(Ok((waker, number))) => {
                running.handle.controls.push((control, waker));
                running.handle.threads.push(number);
            }
            Ok(Err(error)) => {
                running.stop();
                return Err(StartError::Driver(error));
            }
            Err(_) => {
                running.stop();
                return Err(StartError::Driver(io::Error::other(
                    "the worker ended while starting",
                )));
            }
        }
    }
    running.encoders.set_handle(running.handle());
    Ok(running)
}

/// The writer of the access log, if one is configured, and a sink for each worker.
fn access_log(
    plan: &Plan,
    views: &[View],
    complain: Complain,
) -> Result<(Option<LogWriter>, std::vec::IntoIter<LogSink>), StartError> {
    let Some(log) = &plan.access_log else { return Ok((None, Vec::new().into_iter())) };
    let counters: Vec<_> = views.iter().map(|view| Arc::clone(&view.counters)).collect();
    let (writer, sinks) =
        LogWriter::start(&log.destination, &counters, complain).map_err(StartError::AccessLog)?;
    Ok((Some(writer), sinks.into_iter()))
}

/// The given board, or one of this process.
fn board_of(setup: &Setup, workers: u16) -> Result<Arc<Board>, StartError> {
    let lines = usize::from(workers);
    match &setup.board {
        None => Ok(Arc::new(Board::new(lines))),
        Some(board) if board.lines().len() >= lines => Ok(Arc::clone(board)),
        Some(_) => {
            Err(StartError::Driver(io::Error::other("the load board has no line for some worker")))
        }
    }
}

/// A key that can't be guessed.
fn secret() -> io::Result<[u64; 2]> {
    let mut bytes = [0; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if filled < bytes.len() {
        return Err(io::Error::other("the operating system has no randomness"));
    }
    let value = u128::from_ne_bytes(bytes);
    Ok([value as u64, (value >> 64) as u64])
}

impl Running {
    /// Addresses that are listened on, with the real port where 0 was configured.
    pub fn addresses(&self) -> &[Location] {
        &self.addresses
    }

    /// The readable parts of each worker.
    pub fn views(&self) -> &[View] {
        &self.handle.views
    }

    /// For a thread that looks at the workers and passes on commands of operators.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Events of servers since the last call, except the lost ones (`events_lost`).
    pub fn events(&self) -> Vec<Event> {
        let events = self.events.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        events.try_iter().collect()
    }

    /// Takes the receiver of clients that are to be banned, once.
    pub fn take_offences(&mut self) -> Option<Receiver<Offence>> {
        self.offences.take()
    }

    /// A watchdog for workers that are stuck.
    pub fn watchdog(&self) -> Watchdog {
        Watchdog::new(&self.handle.threads)
    }

    /// A supervisor for the cores of the workers.
    pub fn cores(&self, pinning: Pinning) -> Cores {
        Cores::new(&self.handle, pinning)
    }

    /// Begins to accept; when it returns, connections are accepted.
    ///
    /// # Errors
    /// [`StartError::Driver`]; then the workers got the command to end.
    pub fn accept(&mut self) -> Result<(), StartError> {
        let Some(opening) = self.opening.take().map(Arc::new) else { return Ok(()) };
        let told = self.handle.command(&Command::Open(Arc::clone(&opening)));
        let silent = told.is_err() || self.handle.enquire(PATIENCE).iter().any(Option::is_none);
        let silent = silent.then(|| io::Error::other("a worker did not take its listeners"));
        match opening.take_failed().into_iter().next().or(silent) {
            None => Ok(()),
            Some(error) => {
                self.stop();
                Err(StartError::Driver(error))
            }
        }
    }

    /// The process that these listeners were taken over from no longer has them: this process is
    /// now responsible for their names.
    pub fn answer_for_files(&self) {
        self.handle.files().iter_mut().for_each(|file| file.set_ours(true));
    }

    /// Announces, to all code that checks, that the workers will soon be told to drain. Everything
    /// continues until then.
    pub fn leave_soon(&self) {
        self.handle.leaving.store(true, Ordering::Relaxed);
    }

    /// Stops accepting; clients get the responses to their requests; then the workers end.
    pub fn drain(&self) {
        self.handle.remove_files(|_| false);
        for (control, waker) in &self.handle.controls {
            control.drain();
            waker.wake();
        }
    }

    /// The same while another process accepts on these listeners, named as the plan names them: it
    /// serves new clients.
    pub fn hand_over(&self, taken: &[Location]) {
        let is_taken = |file: &SocketFile| taken.contains(&Location::Unix(file.path().into()));
        self.handle
            .files()
            .iter_mut()
            .filter(|file| is_taken(file))
            .for_each(|file| file.set_ours(false));
        self.handle.remove_files(|_| false);
        for (control, waker) in &self.handle.controls {
            control.hand_over(taken);
            waker.wake();
        }
    }

    /// In a drain: ends all clients except tunnels.
    pub fn keep_tunnels_only(&self) {
        for (control, waker) in &self.handle.controls {
            control.keep_tunnels_only();
            waker.wake();
        }
    }

    /// Ends the workers now.
    pub fn stop(&self) {
        for (control, waker) in &self.handle.controls {
            control.stop();
            waker.wake();
        }
    }

    /// Whether a worker has ended, even unasked.
    pub fn has_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Whether every worker has ended.
    pub fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Reopens the file of the access log after it was renamed.
    pub fn reopen_log(&self) {
        if let Some(log) = &self.log {
            log.reopen();
        }
    }

    /// Waits for the workers to end, and a little for the last lines of the access log.
    ///
    /// # Errors
    /// The first error that made a worker unusable, or its panic.
    pub fn join(self) -> io::Result<()> {
        let mut outcome = Ok(());
        for thread in self.threads {
            let ended =
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a worker panicked")));
            if outcome.is_ok() {
                outcome = ended;
            }
        }
        self.handle.remove_files(|_| false);
        if let Some(log) = self.log {
            log.finish();
        }
        outcome
    }
}
