//! The control plane of a running weir: the admin socket and the metrics listener, on one separate
//! thread.
//!
//! Called by `run::serve`. The thread is not pinned and no worker waits for it: it reads the
//! counters of the workers, and asks them for their state ([`reading`]). Failures here after the
//! start never end the proxy.

mod accepting;
mod arms;
pub(crate) mod cache;
pub(crate) mod cache_words;
pub(crate) mod document;
mod exposition;
mod history;
mod interception;
mod live;
mod metrics;
mod page;
pub(crate) mod place;
mod reading;
mod routes;
mod serve;
mod status;
mod strangers;
mod usage;
mod window;
mod workers;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::task::LocalSet;
use weir_config::AdminChoice;
use weir_proxy::plan::Plan;
use weir_worker::Handle;

use crate::reload::Desk;
use crate::run;
use crate::upgrade::Heritage;
use place::Place;
use reading::{MARK, Reader, TICK};
use routes::{Door, Routes};
pub(crate) use status::Facts;

/// How long the control thread may take to stop accepting.
const STOP_MAX: Duration = Duration::from_secs(2);

/// The metrics listener, with its name in the configuration.
pub(crate) type Metrics = (SocketAddr, TcpListener);

/// The listening sockets, before anything runs.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    admin: Option<(UnixListener, Place)>,
    metrics: Option<Metrics>,
    /// What the operator should know.
    pub(crate) note: Option<String>,
}

/// Duplicates of these sockets, for another process.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    /// The admin socket and its place.
    pub(crate) admin: Option<(PathBuf, OwnedFd)>,
    /// The metrics listener, with its name in the configuration.
    pub(crate) metrics: Option<(SocketAddr, OwnedFd)>,
}

/// The running control plane. Dropping it ends the thread and removes the socket.
#[derive(Debug)]
pub(crate) struct Admin {
    place: Option<Place>,
    /// For the admin socket and the metrics listener: signals that another process has it now.
    stops: [Option<oneshot::Sender<SyncSender<()>>>; 2],
    /// Dropping it ends the thread.
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Doors {
    /// Opens what the configuration wants, or takes it out of the heritage; metrics are already
    /// open. A default place that fails makes a note, a configured place that fails is an error.
    ///
    /// # Errors
    /// The address that cannot be bound, with a remedy.
    pub(crate) fn open(
        admin: &AdminChoice,
        metrics: Option<Metrics>,
        heritage: &mut Heritage,
    ) -> io::Result<Doors> {
        let mut doors = Doors { metrics, ..Doors::default() };
        match place::bind(admin, heritage.admin.take()) {
            Ok(bound) => doors.admin = bound,
            Err(place::Refused(text)) if *admin == AdminChoice::Auto => {
                doors.note = Some(format!("no admin socket, `weir status` won't work: {text}"));
            }
            Err(place::Refused(text)) => {
                return Err(io::Error::other(format!("no admin socket: {text}")));
            }
        }
        Ok(doors)
    }

    /// Opens the metrics listener, or takes it out of the heritage.
    ///
    /// # Errors
    /// It cannot listen there, and why.
    pub(crate) fn listen(
        metrics: Option<SocketAddr>,
        heritage: &mut Heritage,
    ) -> io::Result<Option<Metrics>> {
        let Some(address) = metrics else { return Ok(None) };
        let failed = |error: io::Error| {
            let why = match error.kind() {
                io::ErrorKind::AddrInUse => "another program uses this port".to_owned(),
                io::ErrorKind::PermissionDenied => {
                    format!("{error}; ports below 1024 need CAP_NET_BIND_SERVICE")
                }
                _ => error.to_string(),
            };
            io::Error::new(error.kind(), format!("cannot serve metrics on {address}: {why}"))
        };
        let given = heritage.metrics.take().filter(|(name, _)| *name == address);
        let listener = match given {
            Some((_, socket)) => TcpListener::from(socket),
            None => run::patiently(|| TcpListener::bind(address).map_err(failed))?,
        };
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Some((address, listener)))
    }

    /// Returns the address that serves metrics, with the real port where port 0 was configured.
    pub(crate) fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(|(_, listener)| listener.local_addr().ok())
    }

    /// Duplicates the sockets for a program that takes over.
    ///
    /// # Errors
    /// Descriptors run out.
    pub(crate) fn lend(&self) -> io::Result<Lent> {
        let admin = self.admin.as_ref().map(|(listener, place)| {
            listener.try_clone().map(|socket| (place.path().to_owned(), socket.into()))
        });
        let metrics = self.metrics.as_ref();
        let metrics = metrics
            .map(|(name, listener)| listener.try_clone().map(|socket| (*name, socket.into())));
        Ok(Lent { admin: admin.transpose()?, metrics: metrics.transpose()? })
    }
}

/// Returns why this weir should not get traffic yet: a word, and its object. None: it should.
pub(crate) fn unready(plan: &Arc<Plan>, handle: &Handle) -> Option<String> {
    let unready = Reader::new(Arc::clone(plan), handle.clone()).read().unready(plan);
    unready.map(|(word, what)| format!("{word} {what}").trim_end().to_owned())
}

/// Starts the control thread. None: nothing to listen on.
///
/// # Errors
/// The operating system's.
pub(crate) fn start(
    doors: Doors,
    plan: Arc<Plan>,
    handle: Handle,
    facts: Facts,
    desk: Desk,
) -> io::Result<Option<Admin>> {
    let facts = Facts {
        pid: std::process::id(),
        metrics: doors.metrics_address().map(|address| address.to_string()),
        ..facts
    };
    if doors.admin.is_none() && doors.metrics.is_none() {
        return Ok(None);
    }
    let (listener, place) = doors.admin.unzip();
    let (end, ended) = oneshot::channel();
    let (stop_admin, admin_stops) = oneshot::channel();
    let (stop_metrics, metrics_stops) = oneshot::channel();
    let metrics = doors.metrics.map(|(_, listener)| listener);
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    let started = Instant::now();
    let thread = std::thread::Builder::new().name("weir-admin".to_owned()).spawn(move || {
        let routes = Routes::new(Reader::new(plan, handle), facts, desk, started);
        LocalSet::new().block_on(
            &runtime,
            work((listener, admin_stops), (metrics, metrics_stops), &routes, ended),
        );
    })?;
    Ok(Some(Admin {
        place,
        stops: [Some(stop_admin), Some(stop_metrics)],
        end: Some(end),
        thread: Some(thread),
    }))
}

/// Signals that another process has a door now; the inner channel confirms that this process no
/// longer accepts there.
type Stops = oneshot::Receiver<SyncSender<()>>;

/// Works until the other end of `ended` is dropped.
async fn work(
    (admin, admin_stops): (Option<UnixListener>, Stops),
    (metrics, metrics_stops): (Option<TcpListener>, Stops),
    routes: &Rc<Routes>,
    ended: oneshot::Receiver<()>,
) {
    let respond = |door| -> Rc<serve::Respond> {
        let routes = Rc::clone(routes);
        Rc::new(move |request| routes.respond(door, request))
    };
    // Both are non-blocking, so tokio takes them. If it does not, the proxy continues without a
    // control plane.
    if let Some(listener) =
        admin.and_then(|listener| tokio::net::UnixListener::from_std(listener).ok())
    {
        stop(tokio::task::spawn_local(serve::serve(listener, respond(Door::Admin))), admin_stops);
    }
    if let Some(listener) =
        metrics.and_then(|listener| tokio::net::TcpListener::from_std(listener).ok())
    {
        stop(
            tokio::task::spawn_local(serve::serve(listener, respond(Door::Metrics))),
            metrics_stops,
        );
    }
    let ticking = Rc::clone(routes);
    tokio::task::spawn_local(async move {
        loop {
            tokio::time::sleep(TICK).await;
            ticking.tick();
        }
    });
    let marking = Rc::clone(routes);
    tokio::task::spawn_local(async move {
        loop {
            tokio::time::sleep(MARK).await;
            marking.mark();
        }
    });
    let _ = ended.await;
}

/// Ends a task on a signal. Exchanges that have begun are separate tasks.
fn stop(task: JoinHandle<()>, stops: Stops) {
    tokio::task::spawn_local(async move {
        if let Ok(told) = stops.await {
            task.abort();
            let _ = task.await;
            // The caller may have lost patience.
            let _ = told.try_send(());
        }
    });
}

impl Admin {
    /// Hands these doors over to another process: returns when this process no longer accepts
    /// there.
    pub(crate) fn hand_over(&mut self, admin: bool, metrics: bool) {
        let (told, stopped) = sync_channel(2);
        for (stop, _) in
            self.stops.iter_mut().zip([admin, metrics]).filter(|(_, is_meant)| *is_meant)
        {
            if let Some(stop) = stop.take() {
                let _ = stop.send(told.clone());
            }
        }
        drop(told);
        let end = Instant::now() + STOP_MAX;
        while stopped.recv_timeout(end.saturating_duration_since(Instant::now())).is_ok() {}
        if let Some(place) = self.place.take_if(|_| admin) {
            place.leave();
        }
    }

    /// Whether `weir status` has a socket to connect to.
    pub(crate) fn has_socket(&self) -> bool {
        self.place.is_some()
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        // The next process may have the name at once.
        drop(self.place.take());
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is already on standard error, and the proxy itself has ended
            // well.
            let _ = thread.join();
        }
    }
}
