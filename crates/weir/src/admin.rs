//! The control plane of a running weir: the admin socket and the metrics listener, on one thread of their own.
//!
//! Called by `run::serve`. The thread is not pinned and no worker waits for it: it reads what workers count, and asks them
//! what they are doing ([`reading`]). What goes wrong here after the start never ends the proxy.

pub(crate) mod document;
mod exposition;
mod history;
mod live;
mod metrics;
mod page;
pub(crate) mod place;
mod reading;
mod routes;
mod serve;
mod status;
mod usage;
mod window;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use weir_config::AdminChoice;
use weir_proxy::plan::Plan;
use weir_worker::Handle;

use crate::reload::Desk;
use crate::run;
use place::Place;
use reading::{MARK, Reader, TICK};
use routes::{Door, Routes};
pub(crate) use status::Facts;

/// What is listened on, before anything runs.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    admin: Option<(UnixListener, Place)>,
    metrics: Option<TcpListener>,
    /// What the operator should know.
    pub(crate) note: Option<String>,
}

/// Running. Ends with its drop, and its socket with it.
#[derive(Debug)]
pub(crate) struct Admin {
    place: Option<Place>,
    /// Dropped: the end.
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Doors {
    /// Opens what the configuration wants. A default place that can't be had is noted, one that was asked for is an error.
    ///
    /// # Errors
    /// What can't be listened on, with the way out.
    pub(crate) fn open(admin: &AdminChoice, metrics: Option<SocketAddr>) -> Result<Doors, io::Error> {
        let mut doors = Doors::default();
        match place::bind(admin) {
            Ok(bound) => doors.admin = bound,
            Err(place::Refused(text)) if *admin == AdminChoice::Auto => {
                doors.note = Some(format!("no admin socket, `weir status` won't work: {text}"));
            }
            Err(place::Refused(text)) => return Err(io::Error::other(format!("no admin socket: {text}"))),
        }
        if let Some(address) = metrics {
            let failed = |error: io::Error| {
                let why = match error.kind() {
                    io::ErrorKind::AddrInUse => "the port is taken by another program".to_owned(),
                    io::ErrorKind::PermissionDenied => format!("{error}; ports below 1024 need CAP_NET_BIND_SERVICE"),
                    _ => error.to_string(),
                };
                io::Error::new(error.kind(), format!("cannot serve metrics on {address}: {why}"))
            };
            let listener = run::patiently(|| TcpListener::bind(address).map_err(failed))?;
            listener.set_nonblocking(true).map_err(failed)?;
            doors.metrics = Some(listener);
        }
        Ok(doors)
    }

    /// Where metrics are served, with the real port where 0 was asked.
    pub(crate) fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(|listener| listener.local_addr().ok())
    }
}

/// Starts the control thread. None: nothing is listened on.
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
    let facts =
        Facts { pid: std::process::id(), metrics: doors.metrics_address().map(|address| address.to_string()), ..facts };
    if doors.admin.is_none() && doors.metrics.is_none() {
        return Ok(None);
    }
    let (listener, place) = doors.admin.unzip();
    let (end, ended) = oneshot::channel();
    let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
    let started = Instant::now();
    let thread = std::thread::Builder::new().name("weir-admin".to_owned()).spawn(move || {
        let routes = Routes::new(Reader::new(plan, handle), facts, desk, started);
        LocalSet::new().block_on(&runtime, work(listener, doors.metrics, &routes, ended));
    })?;
    Ok(Some(Admin { place, end: Some(end), thread: Some(thread) }))
}

/// Until the other end of `ended` is dropped.
async fn work(
    admin: Option<UnixListener>,
    metrics: Option<TcpListener>,
    routes: &Rc<Routes>,
    ended: oneshot::Receiver<()>,
) {
    let respond = |door| -> Rc<serve::Respond> {
        let routes = Rc::clone(routes);
        Rc::new(move |request| routes.respond(door, request))
    };
    // Both are non-blocking, so tokio takes them; if it doesn't, there is no control plane and the proxy goes on.
    if let Some(listener) = admin.and_then(|listener| tokio::net::UnixListener::from_std(listener).ok()) {
        tokio::task::spawn_local(serve::serve(listener, respond(Door::Admin)));
    }
    if let Some(listener) = metrics.and_then(|listener| tokio::net::TcpListener::from_std(listener).ok()) {
        tokio::task::spawn_local(serve::serve(listener, respond(Door::Metrics)));
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

impl Admin {
    /// Whether there is a socket for `weir status`.
    pub(crate) fn has_socket(&self) -> bool {
        self.place.is_some()
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        // What comes next may have the name at once.
        drop(self.place.take());
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // Its panic would be told on standard error; the proxy has ended well all the same.
            let _ = thread.join();
        }
    }
}
