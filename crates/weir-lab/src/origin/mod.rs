//! An embedded HTTP/1.1 test origin on weir's own drivers: fast enough not to be the limit of a
//! benchmark, and able to misbehave on request. Clients use TLS where [`Conduct::seal`] says how.
//!
//! Called by `weir origin`, `weir demo`, the benchmark harness and end-to-end tests. Its responses:
//!
//! | target | answer |
//! |---|---|
//! | `/` | three bytes, `ok\n`; the demo's page when a browser asks |
//! | `/?KEY=VALUE&…` | what is asked for, any combination; unknown keys are ignored |
//! | `/echo` | the request as it came: request line, fields, empty line, decoded body (to 16 MiB) |
//! | `/sum` | length and FNV-1a of the request's decoded body, of any length |
//! | `/page` | the demo's page |
//! | `/__stats` | [`OriginStats`] as JSON |
//!
//! The keys and their values: `size=BYTES`, `status=CODE`, `delay=TIME`, `beyond=N`, `burn=MS`,
//! `block=MS`, `every=N`, `chunked=1`, `close=1`, `private=1`, `tag=N`.
//!
//! TIME is `5` or `5ms`; `100ms..600ms`: at random between these; or `lognormal:2ms:1.5`: median,
//! and deviation of the logarithm. With `beyond=32` delayed responses take longer while more than
//! 32 of them are under way, as if all waited for one lock.
//!
//! Any other path gets the same response as `/`. `/echo`, `/sum` and the others take the same keys.
//! Pipelined requests are answered in order, and all responses to the requests of one receive leave
//! in one send. A connection is closed only when the client says so (its `Connection` field,
//! HTTP/1.0, its end), by `close=1`, or after a request that isn't HTTP. [`Misbehaviours`] change
//! that; on a connection that was accepted `/__stats` always gets a proper response.

mod badly;
mod burn;
mod connection;
mod misbehave;
mod mischief;
mod plan;
mod reply;
mod server;
mod stats;
mod wanted;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use weir_io::{
    Driver, IoChoice, Options, SocketFile, Waker, available_cores, bind_listener, bind_unix, pin_to,
};
use weir_tls::{Seal, Sealed};

pub use misbehave::{Kind, Misbehaviours, help as misbehaviours_help};
pub use reply::pattern_byte;
pub use stats::{Misbehaved, OriginStats};

use crate::io::{UseDriver, with_driver};
use mischief::Mischief;
use server::Server;
use stats::ThreadStats;

/// Length of the accept queue requested from the kernel (which caps it at net.core.somaxconn).
const BACKLOG: u32 = 65_535;
/// Permissions of the path: every user may connect, as at its address.
const UNIX_MODE: u32 = 0o666;

/// Which thread gets a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Accept {
    /// Each has a separate listener, and the kernel chooses by a hash of the addresses
    /// (SO_REUSEPORT), busy or not.
    #[default]
    Spread,
    /// All have the same listener, and an idle thread takes the connection, as with servers that
    /// fork workers, and reads its first request before anything else.
    Shared,
    /// All have the same listener, and each accepts one connection at a time, as the processes of a
    /// forking server do. A thread closes its connection after 5 s without a request. At the path
    /// ([`Conduct::unix`]) threads accept any number.
    One,
}

/// How to serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OriginOptions {
    /// Where to accept connections; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Threads, each with its own driver; at least 1.
    pub threads: usize,
    /// Which driver to run on.
    pub io: IoChoice,
}

/// How it behaves; by default well, and without a log.
#[derive(Debug, Default)]
pub struct Conduct {
    /// Its misbehaviours.
    pub misbehaviours: Misbehaviours,
    /// Which thread gets a new connection.
    pub accept: Accept,
    /// A path at which it listens as well; all threads share that listener, since there is no
    /// alternative.
    pub unix: Option<PathBuf>,
    /// Receives the first line of each request before that is answered: a line in it means that the
    /// request was received, even if the process is killed the next moment.
    pub log: Option<File>,
    /// How clients use TLS; None: they don't.
    pub seal: Option<Arc<dyn Seal>>,
}

/// What the threads share.
struct Shared {
    stop: AtomicBool,
    threads: Vec<ThreadStats>,
    mischief: Option<Mischief>,
    log: Option<File>,
    seal: Option<Arc<dyn Seal>>,
    /// Delayed replies under way that slow each other down.
    at_work: Arc<AtomicU64>,
}

impl Shared {
    fn stats(&self) -> OriginStats {
        let asked_for = self.mischief.as_ref().map(|mischief| *mischief.rules());
        stats::total(&self.threads, asked_for.unwrap_or_default())
    }
}

/// A running origin. Dropping it stops it.
pub struct OriginHandle {
    local: SocketAddr,
    driver: &'static str,
    shared: Arc<Shared>,
    wakers: Vec<Arc<dyn Waker>>,
    joins: Vec<JoinHandle<io::Result<()>>>,
    /// The path at which it listens, removed on drop.
    _file: Option<SocketFile>,
}

/// The listeners of one thread.
struct Listeners {
    tcp: TcpListener,
    unix: Option<OwnedFd>,
}

/// What a thread reports once it serves: how to wake it and the driver's name.
type Started = io::Result<(Arc<dyn Waker>, &'static str)>;

/// Starts the threads and returns when all of them listen.
///
/// # Errors
/// The address can't be bound, or the driver can't be made.
pub fn spawn(options: OriginOptions) -> io::Result<OriginHandle> {
    spawn_misbehaving(options, Misbehaviours::default())
}

/// Does the same, with misbehaviours.
///
/// # Errors
/// As [`spawn`].
pub fn spawn_misbehaving(
    options: OriginOptions,
    misbehaviours: Misbehaviours,
) -> io::Result<OriginHandle> {
    spawn_with(options, Conduct { misbehaviours, ..Conduct::default() })
}

/// Does the same, with a complete description of its conduct.
///
/// # Errors
/// As [`spawn`].
pub fn spawn_with(options: OriginOptions, conduct: Conduct) -> io::Result<OriginHandle> {
    let Conduct { misbehaviours, accept, unix, log, seal } = conduct;
    let count = options.threads.max(1);
    let first = bind_listener(options.listen, BACKLOG)?;
    let local = first.local_addr()?;
    let mut listeners = vec![first];
    while listeners.len() < count {
        listeners.push(match accept {
            Accept::Spread => bind_listener(local, BACKLOG)?,
            Accept::Shared | Accept::One => listeners[0].try_clone()?,
        });
    }
    let (unix, file) =
        unix.map(|path| bind_unix(&path, BACKLOG, UNIX_MODE, None)).transpose()?.unzip();
    let threads = (0..count).map(|_| ThreadStats::default()).collect();
    let mischief = Mischief::new(misbehaviours);
    let shared = Arc::new(Shared {
        stop: AtomicBool::new(false),
        threads,
        mischief,
        log,
        seal,
        at_work: Arc::default(),
    });
    let mut handle = OriginHandle {
        local,
        driver: "",
        shared,
        wakers: Vec::new(),
        joins: Vec::new(),
        _file: file,
    };
    let cores = accept.cores(count);
    for (thread, listener) in listeners.into_iter().enumerate() {
        let unix = unix.as_ref().map(OwnedFd::try_clone).transpose()?;
        handle.start(
            options.io,
            accept,
            (thread, cores.get(thread).copied()),
            Listeners { tcp: listener, unix },
        )?;
    }
    Ok(handle)
}

impl Accept {
    /// A shared listener is emptied by one connection a turn, so that other threads get the rest.
    fn driver_options(self) -> Options {
        match self {
            Accept::Spread => Options::default(),
            Accept::Shared | Accept::One => {
                Options { shared_listeners: true, accepts_per_turn: 1, ..Options::default() }
            }
        }
    }

    /// Returns each thread's core, when there is one for each: threads that the kernel moves
    /// sometimes share one, while another is idle. Threads that share a listener run where the
    /// kernel puts them, as the workers of a forking server do.
    fn cores(self, threads: usize) -> Vec<usize> {
        let cores = available_cores();
        if self == Accept::Spread && cores.len() == threads { cores } else { Vec::new() }
    }
}

impl OriginHandle {
    /// Returns the address on which it actually listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the name of its driver.
    pub fn driver(&self) -> &'static str {
        self.driver
    }

    /// Returns its counts so far; at most one turn of a thread behind.
    pub fn stats(&self) -> OriginStats {
        self.shared.stats()
    }

    /// Whether a thread has ended on its own, which it does only on an error;
    /// [`OriginHandle::stop`] then returns that error.
    pub fn has_failed(&self) -> bool {
        self.joins.iter().any(JoinHandle::is_finished)
    }

    /// Ends all threads at once, open connections with them. The counts afterwards are complete.
    ///
    /// # Errors
    /// The error that ended a thread before.
    pub fn stop(mut self) -> io::Result<OriginStats> {
        self.halt()?;
        Ok(self.stats())
    }

    /// Waits until the threads end, which they do only on an error.
    ///
    /// # Errors
    /// The error that ended a thread.
    pub fn wait(mut self) -> io::Result<()> {
        self.join()
    }

    fn start(
        &mut self,
        io: IoChoice,
        accept: Accept,
        (thread, core): (usize, Option<usize>),
        listeners: Listeners,
    ) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let (report, reported) = mpsc::sync_channel::<Started>(1);
        let join =
            std::thread::Builder::new().name(format!("origin-{thread}")).spawn(move || {
                core.map(pin_to);
                let user = Thread { shared, thread, accept, listeners, report };
                with_driver(io, accept.driver_options(), user)
            })?;
        self.joins.push(join);
        match reported.recv() {
            Ok(Ok((waker, driver))) => {
                self.wakers.push(waker);
                self.driver = driver;
                Ok(())
            }
            Ok(Err(error)) => Err(error),
            // The thread ended before it could report: its result says why.
            Err(_) => self.join().and(Err(io::Error::other("an origin thread ended at its start"))),
        }
    }

    fn halt(&mut self) -> io::Result<()> {
        self.shared.stop.store(true, Ordering::Release);
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
        self.join()
    }

    fn join(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        for join in self.joins.drain(..) {
            let ended =
                join.join().unwrap_or_else(|_| Err(io::Error::other("an origin thread panicked")));
            result = result.and(ended);
        }
        result
    }
}

impl Drop for OriginHandle {
    fn drop(&mut self) {
        if let Err(error) = self.halt() {
            eprintln!("origin: {error}");
        }
    }
}

/// What one thread needs.
struct Thread {
    shared: Arc<Shared>,
    thread: usize,
    accept: Accept,
    listeners: Listeners,
    report: mpsc::SyncSender<Started>,
}

impl UseDriver for Thread {
    type Output = io::Result<()>;

    fn run<D: Driver>(self, driver: D) -> io::Result<()> {
        // The receiver waits for exactly this message; it can't be gone.
        let _ = self.report.send(Ok((driver.waker(), driver.name())));
        Server::new(Sealed::new(driver), self.shared, self.thread, self.accept).run(self.listeners)
    }

    fn failed(self, error: io::Error) -> io::Result<()> {
        let copy = io::Error::new(error.kind(), error.to_string());
        let _ = self.report.send(Err(copy));
        Err(error)
    }
}
