//! The certificates of a running weir: read before it starts, looked at again every [`LOOK_EVERY`] on a thread of their own, exchanged
//! without touching a connection. docs/semantics.md §10.
//!
//! `run::serve` opens them before anything is listened on and starts the thread when the workers run; status and metrics read the
//! [`Board`]. A file that has become bad leaves the certificate in force that was read before it. Bound: two looks at
//! metadata a certificate and look.

pub(crate) mod servers;

use std::io;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use weir_proxy::plan::{ListenerPlan, Plan, TlsPlan};
use weir_tls::{EXPIRES_SOON_S, Files, Pair, Terms, Wanted, provider};
use weir_worker::{Sealing, ServerSeals};

use crate::failure::Failure;
use crate::side::stamp::Stamp;
use crate::terminal::tell;

use self::servers::Servers;

/// How often files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What the operator should know of a certificate before it is used. One that is out of time is an error: see [`check_to_run`].
///
/// # Errors
/// What is wrong with it or its key.
pub(crate) fn check(certificate: &Path, key: &Path) -> Result<Vec<String>, String> {
    let pair = read(certificate, key)?;
    let now = now();
    pair.out_of_time(now).map_or_else(|| Ok(pair.warnings(now)), Err)
}

/// The same for whoever is about to run: one that is out of time must not keep the others from being served.
///
/// # Errors
/// As [`check`].
pub(crate) fn check_to_run(certificate: &Path, key: &Path) -> Result<Vec<String>, String> {
    let (pair, now) = (read(certificate, key)?, now());
    Ok(pair.out_of_time(now).into_iter().chain(pair.warnings(now)).collect())
}

fn read(certificate: &Path, key: &Path) -> Result<Pair, String> {
    let files = Files { certificate: certificate.into(), key: key.into() };
    Pair::read(&files, &provider()).map_err(|bad| bad.to_string())
}

/// Seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Both files of a certificate as they were at some time; None: one is not there.
type Stamps = [Option<Stamp>; 2];

fn stamps(files: &Files) -> Stamps {
    [&files.certificate, &files.key].map(|path| Stamp::at(path).ok())
}

/// How far a certificate is from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Age {
    Fine,
    Soon,
    Over,
}

/// A certificate that is in force, and its files.
#[derive(Debug)]
struct Kept {
    pair: Pair,
    /// Of the files that it was read from.
    read: Stamps,
    /// Of files that could not be used, and whether that was told.
    bad: Option<(Stamps, bool)>,
    /// What is wrong with the files now.
    problem: Option<String>,
    /// What was told of its age.
    age: Age,
}

impl Kept {
    fn open(files: &Files) -> Result<Kept, String> {
        let read = stamps(files);
        let pair = Pair::read(files, &provider()).map_err(|bad| bad.to_string())?;
        let mut kept = Kept { pair, read, bad: None, problem: None, age: Age::Fine };
        kept.age = kept.age_at(now());
        Ok(kept)
    }

    fn age_at(&self, now: i64) -> Age {
        match self.pair.not_after - now {
            ..0 => Age::Over,
            0..EXPIRES_SOON_S => Age::Soon,
            _ => Age::Fine,
        }
    }

    /// Reads the files again if they have changed. True: it is another certificate now.
    ///
    /// Both files are seldom exchanged at once: what does not fit is told when it is still so at the next look.
    fn look(&mut self, tell: &mut dyn FnMut(String)) -> bool {
        let found = stamps(&self.pair.files);
        if found == self.read {
            (self.bad, self.problem) = (None, None);
            return false;
        }
        let was_told = match self.bad {
            Some((before, true)) if before == found => return false,
            Some((before, _)) if before == found => Some(false),
            _ => None,
        };
        match Pair::read(&self.pair.files, &provider()) {
            Ok(pair) => {
                let (file, day) = (pair.files.certificate.display(), weir_tls::day_text(pair.not_after));
                tell(format!("read the certificate in {file} again; it expires on {day}"));
                (self.pair, self.read, self.bad, self.problem) = (pair, found, None, None);
                self.age = Age::Fine;
                true
            }
            Err(bad) => {
                if was_told.is_some() {
                    tell(format!("{bad}; the certificate stays as it was before"));
                    self.problem = Some(bad.to_string());
                }
                self.bad = Some((found, was_told.is_some()));
                false
            }
        }
    }

    /// Tells once when its end comes near, and when it is there.
    fn grow_older(&mut self, now: i64, tell: &mut dyn FnMut(String)) {
        let age = self.age_at(now);
        if age > self.age {
            let text = self.pair.out_of_time(now).or_else(|| self.pair.warnings(now).into_iter().next());
            text.into_iter().for_each(tell);
        }
        self.age = age;
    }
}

/// A listener with its certificates.
#[derive(Debug)]
struct Listener {
    terms: Arc<Terms>,
    kept: Vec<Kept>,
}

/// A certificate as status and metrics show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Its file.
    pub(crate) file: String,
    /// Names that it is for.
    pub(crate) names: Vec<String>,
    /// The end of its validity, seconds since 1970.
    pub(crate) not_after: i64,
    /// Why the file as it is now is not what is in force.
    pub(crate) problem: Option<String>,
}

/// What is in force, for whoever looks.
#[derive(Debug, Default)]
pub(crate) struct Board(Mutex<Vec<Shown>>);

impl Board {
    /// Each file once, in the order of the configuration.
    pub(crate) fn shown(&self) -> Vec<Shown> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Shown>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, listeners: &[Listener], upstreams: &[Servers]) {
        let mut all: Vec<Shown> = Vec::new();
        let shown = upstreams.iter().filter_map(|upstream| upstream.shown.as_ref());
        for kept in listeners.iter().flat_map(|listener| &listener.kept).chain(shown) {
            let shown = Shown {
                file: kept.pair.files.certificate.display().to_string(),
                names: kept.pair.names.iter().map(ToString::to_string).collect(),
                not_after: kept.pair.not_after,
                problem: kept.problem.clone(),
            };
            if !all.iter().any(|other| other.file == shown.file) {
                all.push(shown);
            }
        }
        *self.lock() = all;
    }
}

/// Certificates that were read, before anything runs.
#[derive(Debug, Default)]
pub(crate) struct Certificates {
    listeners: Vec<Listener>,
    upstreams: Vec<Servers>,
    /// By listener of the plan.
    seals: Vec<Option<Sealing>>,
    /// By server over all upstreams of the plan.
    server_seals: ServerSeals,
    board: Arc<Board>,
}

/// The thread that looks at files. Ends with its drop.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Dropped: the end.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Reads the certificates of all listeners, and what connections to servers need.
///
/// # Errors
/// One is bad: a matter of configuration.
pub(crate) fn open(plan: &Plan) -> Result<Certificates, Failure> {
    let mut all = Certificates::default();
    for ListenerPlan { tls, .. } in &plan.listeners {
        let Some(tls) = tls else {
            all.seals.push(None);
            continue;
        };
        let listener = Listener::open(tls).map_err(|text| Failure::Configuration(format!("weir: {text}\n")))?;
        let seal = Arc::clone(&listener.terms);
        all.seals.push(Some(Sealing { seal, handshake_timeout_us: tls.handshake_timeout_us }));
        all.listeners.push(listener);
    }
    for upstream in &plan.upstreams {
        let Some(tls) = &upstream.tls else {
            all.server_seals.extend(upstream.servers.iter().map(|_| None));
            continue;
        };
        let servers = Servers::open(upstream, tls).map_err(|text| Failure::Configuration(format!("weir: {text}\n")))?;
        all.server_seals.extend(servers.seals());
        all.upstreams.push(servers);
    }
    all.board.write(&all.listeners, &all.upstreams);
    Ok(all)
}

impl Listener {
    fn open(tls: &TlsPlan) -> Result<Listener, String> {
        let files = |plan: &weir_proxy::plan::CertificatePlan| Files {
            certificate: plan.certificate.clone(),
            key: plan.key.clone(),
        };
        let files: Vec<Files> = tls.certificates.iter().map(files).collect();
        let kept = files.iter().map(Kept::open).collect::<Result<Vec<_>, _>>()?;
        let wanted = Wanted { files, only_tls13: tls.only_tls13, strict_names: tls.strict_sni, tickets: tls.tickets };
        let pairs: Vec<Pair> = kept.iter().map(|kept| kept.pair.clone()).collect();
        let terms = Terms::new(wanted, &pairs, provider()).map_err(|bad| bad.to_string())?;
        Ok(Listener { terms: Arc::new(terms), kept })
    }

    fn look(&mut self, now: i64, tell: &mut dyn FnMut(String)) {
        let mut is_new = false;
        for kept in &mut self.kept {
            is_new |= kept.look(tell);
            kept.grow_older(now, tell);
        }
        if is_new {
            let pairs: Vec<Pair> = self.kept.iter().map(|kept| kept.pair.clone()).collect();
            if let Err(bad) = self.terms.renew(&pairs) {
                tell(format!("{bad}; certificates stay as they were before"));
            }
        }
    }
}

impl Certificates {
    /// For the workers, by listener.
    pub(crate) fn seals(&self) -> Vec<Option<Sealing>> {
        self.seals.clone()
    }

    /// For the workers, by server.
    pub(crate) fn server_seals(&self) -> ServerSeals {
        self.server_seals.clone()
    }

    /// Where to look.
    pub(crate) fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    /// Starts the thread, if there is anything to look at.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn start(mut self) -> io::Result<Option<Watch>> {
        if self.listeners.is_empty() && self.upstreams.is_empty() {
            return Ok(None);
        }
        let (end, ended) = channel::<()>();
        let thread = std::thread::Builder::new().name("weir-tls".to_owned()).spawn(move || {
            while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                self.look(now(), &mut |line| tell(line));
            }
        })?;
        Ok(Some(Watch { end: Some(end), thread: Some(thread) }))
    }

    fn look(&mut self, now: i64, tell: &mut dyn FnMut(String)) {
        for listener in &mut self.listeners {
            listener.look(now, tell);
        }
        for upstream in &mut self.upstreams {
            upstream.look(now, tell);
        }
        self.board.write(&self.listeners, &self.upstreams);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // Its panic would be told on standard error.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
