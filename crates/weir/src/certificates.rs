//! The certificates of a running weir: read before it starts, checked again every [`LOOK_EVERY`]
//! and at each reload on a separate thread, and replaced without touching a connection.
//! docs/tls.md.
//!
//! `run::serve` opens them before it binds any listener, and starts the thread when the workers
//! run; status and metrics read the [`Board`]. If a file becomes bad, the certificate that was read
//! before stays in force. Bound: each check reads the metadata of a certificate twice.

mod check;
mod kept;
mod servers;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use weir_proxy::plan::{CertificatePlan, ListenerPlan, Plan, Serves, TlsPlan, UpstreamPlan, kept};
use weir_tls::{Files, Materials, Pair, Terms, Wanted, WantedOfClients, provider};
use weir_worker::{Sealing, ServerSeals, Speech};

use crate::failure::Failure;
use crate::log::{Event, Line};

pub(crate) use self::check::{check, check_to_run};
use self::kept::{Kept, KeyFile, OcspFile, Source};
use self::servers::{ServerFiles, Servers};

/// How often files are checked.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Returns seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// A certificate with its OCSP response.
#[derive(Debug)]
struct Certified {
    pair: Kept<Files>,
    ocsp: Option<Kept<OcspFile>>,
    /// Why clients do not get the response now.
    misfit: Option<String>,
}

impl Certified {
    fn open(plan: &CertificatePlan, now: i64) -> Result<Certified, String> {
        let files = Files { certificate: plan.certificate.clone(), key: plan.key.clone() };
        let pair = Kept::open(files, now)?;
        let ocsp = plan.ocsp.clone().map(|path| Kept::open(OcspFile(path), now)).transpose()?;
        let misfit = ocsp.as_ref().and_then(|ocsp| ocsp.value.misfit(&pair.value, now));
        Ok(Certified { pair, ocsp, misfit })
    }

    /// Returns all its files.
    fn paths(&self) -> Vec<&Path> {
        let ocsp = self.ocsp.as_ref().map(|kept| kept.source.0.as_path());
        self.pair.source.files().into_iter().chain(ocsp).collect()
    }

    /// Checks the files. Returns whether clients should get something else now.
    fn look(&mut self, now: i64, tell: &mut dyn FnMut(Line)) -> bool {
        let mut is_new = self.pair.look(now, tell);
        let Some(ocsp) = &mut self.ocsp else { return is_new };
        is_new |= ocsp.look(now, tell);
        let misfit = ocsp.value.misfit(&self.pair.value, now);
        if misfit != self.misfit {
            is_new = true;
            misfit.iter().map(|text| Event::TlsFileBad.says(text)).for_each(tell);
            self.misfit = misfit;
        }
        is_new
    }

    /// Returns what clients get.
    fn shown(&self) -> Pair {
        match (&self.ocsp, &self.misfit) {
            (Some(ocsp), None) => self.pair.value.stapled(&ocsp.value),
            _ => self.pair.value.clone(),
        }
    }

    /// Returns the file of the OCSP response, for the board.
    fn ocsp_shown(&self) -> Option<FileShown> {
        let shown = files_of(self.ocsp.as_ref()?).next()?;
        Some(FileShown { problem: shown.problem.or_else(|| self.misfit.clone()), ..shown })
    }
}

/// A listener with its certificates.
#[derive(Debug)]
struct Listener {
    terms: Arc<Terms>,
    kept: Vec<Certified>,
    /// Verifies the certificates of its clients.
    clients: Option<Kept<WantedOfClients>>,
    /// The keys for session tickets, if a file has them.
    ticket_keys: Option<Kept<KeyFile>>,
}

/// A certificate for status and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Its file.
    pub(crate) file: String,
    /// Names that it is for.
    pub(crate) names: Vec<String>,
    /// The end of its validity, seconds since 1970.
    pub(crate) not_after: i64,
    /// Why the present file is not in force.
    pub(crate) problem: Option<String>,
}

/// Another file that TLS needs, for status and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileShown {
    pub(crate) file: String,
    /// Why the present file, or one that belongs to it, is not in force.
    pub(crate) problem: Option<String>,
}

/// Publishes what is in force.
#[derive(Debug, Default)]
pub(crate) struct Board(Mutex<(Vec<Shown>, Vec<FileShown>)>);

impl Board {
    /// Returns each certificate once, in the order of the configuration.
    pub(crate) fn shown(&self) -> Vec<Shown> {
        self.lock().0.clone()
    }

    /// Returns each other file once, in the order of the configuration.
    pub(crate) fn files(&self) -> Vec<FileShown> {
        self.lock().1.clone()
    }

    fn lock(&self) -> MutexGuard<'_, (Vec<Shown>, Vec<FileShown>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, listeners: &[Listener], upstreams: &[Servers]) {
        let (mut all, mut seen) = (Vec::new(), HashSet::new());
        let shown = upstreams.iter().filter_map(|upstream| upstream.shown.as_ref());
        let certified = || listeners.iter().flat_map(|listener| &listener.kept);
        for kept in certified().map(|certified| &certified.pair).chain(shown) {
            let shown = Shown {
                file: kept.source.certificate.display().to_string(),
                names: kept.value.names.iter().map(ToString::to_string).collect(),
                not_after: kept.value.not_after,
                problem: kept.problem.clone(),
            };
            if seen.insert(shown.file.clone()) {
                all.push(shown);
            }
        }
        let of_clients =
            listeners.iter().filter_map(|listener| listener.clients.as_ref()).flat_map(files_of);
        let of_tickets = listeners
            .iter()
            .filter_map(|listener| listener.ticket_keys.as_ref())
            .flat_map(files_of);
        let of_listeners =
            certified().filter_map(Certified::ocsp_shown).chain(of_clients).chain(of_tickets);
        let (mut files, mut seen) = (Vec::new(), HashSet::new());
        for shown in
            of_listeners.chain(upstreams.iter().flat_map(|upstream| files_of(&upstream.roots)))
        {
            if seen.insert(shown.file.clone()) {
                files.push(shown);
            }
        }
        *self.lock() = (all, files);
    }
}

fn files_of<S: Source>(kept: &Kept<S>) -> impl Iterator<Item = FileShown> {
    let problem = &kept.problem;
    let shown =
        |path: &Path| FileShown { file: path.display().to_string(), problem: problem.clone() };
    kept.source.files().into_iter().map(shown)
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

/// The thread that checks files. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct Watch {
    watcher: Watcher,
    thread: Option<JoinHandle<()>>,
}

/// An order for the thread.
#[derive(Debug)]
enum Wish {
    /// Check these files as well.
    Add(Box<Servers>),
    /// Check these listeners in place of the previous ones.
    Take(Vec<Placed>),
    /// Check all files now, and then drop this.
    Look(Sender<()>),
}

/// Sends orders to the thread, until it ends.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watcher(Arc<Mutex<Option<Sender<Wish>>>>);

/// A TLS listener of another configuration.
#[derive(Debug)]
enum Placed {
    /// Unchanged: its number among the previous ones.
    Kept(usize),
    /// Read just now.
    New(Box<Listener>),
}

/// The listeners of another configuration, with all their files read.
#[derive(Debug, Default)]
pub(crate) struct Renewed {
    /// By listener: the protocol of its clients.
    pub(crate) speech: Vec<Speech>,
    placed: Vec<Placed>,
}

impl Watcher {
    /// Has all files checked now; returns when their changes are in force.
    pub(crate) fn look(&self) {
        let (done, ended) = channel();
        self.tell(Wish::Look(done));
        // The channel carries no message; it closes.
        let _ = ended.recv();
    }

    fn tell(&self, wish: Wish) {
        if let Some(sender) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // It ends only with its owner.
            let _ = sender.send(wish);
        }
    }

    /// Returns what makes connections to the servers of a plan use TLS, by slot. `seals` are those
    /// of its first servers, some of whose slots are `given` to others. All addresses of a name
    /// share one.
    ///
    /// # Errors
    /// A file is bad: the text is complete.
    pub(crate) fn seals(
        &self,
        plan: &Plan,
        mut seals: ServerSeals,
        given: &[usize],
    ) -> Result<ServerSeals, String> {
        let mut all = Vec::new();
        given.iter().for_each(|slot| seals[*slot] = None);
        let places = plan.places();
        let written = |slot: usize| {
            let (upstream, index) = *places.get(slot)?;
            Some((
                upstream,
                plan.upstreams[usize::from(upstream)].servers[usize::from(index)].written.as_str(),
            ))
        };
        let sealed = seals
            .iter()
            .enumerate()
            .rev()
            .filter_map(|(slot, seal)| Some((written(slot)?, seal.clone()?)));
        let mut twins: HashMap<_, _> = sealed.collect();
        let added = seals.len()..plan.servers();
        seals.resize(plan.servers().max(seals.len()), None);
        for slot in given.iter().copied().chain(added) {
            let Some((upstream, server)) = plan.server(slot) else { break };
            let Some(tls) = &upstream.tls else { continue };
            let Some(of) = written(slot) else { continue };
            seals[slot] = twins.get(&of).cloned();
            if seals[slot].is_none() {
                let alone = UpstreamPlan { servers: vec![server.clone()], ..upstream.clone() };
                let servers =
                    Servers::open(&alone, tls).map_err(|text| format!("weir: {text}\n"))?;
                seals[slot] = servers.seals().next().flatten();
                twins.extend(seals[slot].clone().map(|seal| (of, seal)));
                all.push(servers);
            }
        }
        all.into_iter().for_each(|servers| self.tell(Wish::Add(Box::new(servers))));
        Ok(seals)
    }

    /// Reads the files of listeners in the second plan that differ from the first.
    ///
    /// # Errors
    /// A file is bad: the text is complete.
    pub(crate) fn renewed(old: &[ListenerPlan], new: &[ListenerPlan]) -> Result<Renewed, String> {
        let mut renewed = Renewed::default();
        // By listener: how many before it use TLS.
        let sealed = old.iter().scan(0, |count, plan| {
            Some(std::mem::replace(count, *count + usize::from(plan.tls.is_some())))
        });
        let sealed: Vec<usize> = sealed.collect();
        for (plan, before) in new.iter().zip(kept(old, new)) {
            let same = before
                .filter(|at| old[*at].tls == plan.tls && old[*at].protocols == plan.protocols);
            let speech = match (&plan.tls, same) {
                (None, None) => Speech::Plain,
                (None, Some(_)) => Speech::Same,
                (Some(_), Some(at)) => {
                    renewed.placed.push(Placed::Kept(sealed[at]));
                    Speech::Same
                }
                (Some(tls), None) => {
                    let listener =
                        Listener::open(tls, plan).map_err(|text| format!("weir: {text}\n"))?;
                    let sealing = listener.sealing(tls);
                    renewed.placed.push(Placed::New(Box::new(listener)));
                    Speech::Tls(sealing)
                }
            };
            renewed.speech.push(speech);
        }
        Ok(renewed)
    }

    /// Notes that they are in force.
    pub(crate) fn take_over(&self, renewed: Renewed) {
        self.tell(Wish::Take(renewed.placed));
    }
}

/// The files that were read, while the addresses of servers are still unknown.
#[derive(Debug, Default)]
pub(crate) struct Opened {
    listeners: Vec<Listener>,
    /// By listener of the plan.
    seals: Vec<Option<Sealing>>,
    /// By upstream of the plan.
    servers: Vec<Option<ServerFiles>>,
}

/// Reads the certificates of all listeners, and what connections to servers need.
///
/// # Errors
/// A file is bad, which is an error in the configuration.
pub(crate) fn open(plan: &Plan) -> Result<Opened, Failure> {
    let mut all = Opened::default();
    for listener @ ListenerPlan { tls, .. } in &plan.listeners {
        let Some(tls) = tls else {
            all.seals.push(None);
            continue;
        };
        let listener = Listener::open(tls, listener)
            .map_err(|text| Failure::Configuration(format!("weir: {text}\n")))?;
        all.seals.push(Some(listener.sealing(tls)));
        all.listeners.push(listener);
    }
    for upstream in &plan.upstreams {
        let files = upstream.tls.as_ref().map(ServerFiles::read).transpose();
        all.servers.push(files.map_err(|text| Failure::Configuration(format!("weir: {text}\n")))?);
    }
    Ok(all)
}

impl Opened {
    /// Returns all files.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        let of_servers = self.servers.iter().flatten().flat_map(ServerFiles::paths);
        self.listeners.iter().flat_map(Listener::paths).chain(of_servers)
    }

    /// Adds the servers of this plan, which otherwise equals the plan whose files were read.
    ///
    /// # Errors
    /// The name of a server cannot be in a certificate, which is an error in the configuration.
    pub(crate) fn with_servers(self, plan: &Plan) -> Result<Certificates, Failure> {
        let mut all = Certificates {
            listeners: self.listeners,
            seals: self.seals,
            ..Certificates::default()
        };
        for (upstream, files) in plan.upstreams.iter().zip(self.servers) {
            let (Some(tls), Some(files)) = (&upstream.tls, files) else {
                all.server_seals.extend(upstream.servers.iter().map(|_| None));
                continue;
            };
            let servers = Servers::new(upstream, tls, files);
            let servers =
                servers.map_err(|text| Failure::Configuration(format!("weir: {text}\n")))?;
            all.server_seals.extend(servers.seals());
            all.upstreams.push(servers);
        }
        all.board.write(&all.listeners, &all.upstreams);
        Ok(all)
    }
}

impl Listener {
    fn open(tls: &TlsPlan, plan: &ListenerPlan) -> Result<Listener, String> {
        let now = now();
        let kept = tls
            .certificates
            .iter()
            .map(|plan| Certified::open(plan, now))
            .collect::<Result<Vec<_>, _>>()?;
        let files = kept.iter().map(|certified| certified.pair.source.clone()).collect();
        let clients = tls.clients.as_ref().map(|plan| WantedOfClients {
            authorities: plan.authorities.clone(),
            revocations: plan.revocations.clone(),
            required: plan.required,
        });
        let judged = clients.clone().map(|wanted| Kept::open(wanted, now)).transpose()?;
        let ticket_keys =
            tls.ticket_keys.clone().map(|path| Kept::open(KeyFile(path), now)).transpose()?;
        let wanted = Wanted {
            files,
            only_tls13: tls.only_tls13,
            strict_names: tls.strict_sni,
            tickets: tls.tickets,
            clients,
            ticket_keys: tls.ticket_keys.clone(),
            port: plan.address.network().map_or(0, |address| address.port()),
            role: if plan.serves == Serves::Forward { "forward" } else { "reverse" },
            http1: plan.protocols.http1,
            http2: plan.protocols.http2,
        };
        let pairs = pairs(&kept);
        let materials = materials(&pairs, judged.as_ref(), ticket_keys.as_ref());
        let terms = Terms::new(wanted, materials, provider()).map_err(|bad| bad.to_string())?;
        Ok(Listener { terms: Arc::new(terms), kept, clients: judged, ticket_keys })
    }

    /// Returns all its files.
    fn paths(&self) -> impl Iterator<Item = &Path> {
        let clients = self.clients.iter().flat_map(|kept| kept.source.files());
        let keys = self.ticket_keys.iter().flat_map(|kept| kept.source.files());
        self.kept.iter().flat_map(Certified::paths).chain(clients).chain(keys)
    }

    /// Returns its TLS settings for the workers.
    fn sealing(&self, tls: &TlsPlan) -> Sealing {
        let seal: Arc<Terms> = Arc::clone(&self.terms);
        Sealing { seal, handshake_timeout_us: tls.handshake_timeout_us }
    }

    fn look(&mut self, now: i64, tell: &mut dyn FnMut(Line)) {
        let mut is_new = false;
        for kept in &mut self.kept {
            is_new |= kept.look(now, tell);
        }
        if let Some(kept) = &mut self.clients {
            is_new |= kept.look(now, tell);
        }
        if let Some(kept) = &mut self.ticket_keys {
            is_new |= kept.look(now, tell);
        }
        if is_new {
            let pairs = pairs(&self.kept);
            let materials = materials(&pairs, self.clients.as_ref(), self.ticket_keys.as_ref());
            if let Err(bad) = self.terms.renew(materials) {
                tell(Event::TlsFileBad.says(format_args!("{bad}; TLS with clients is unchanged")));
            }
        }
    }
}

fn pairs(kept: &[Certified]) -> Vec<Pair> {
    kept.iter().map(Certified::shown).collect()
}

fn materials<'a>(
    pairs: &'a [Pair],
    clients: Option<&'a Kept<WantedOfClients>>,
    ticket_keys: Option<&'a Kept<KeyFile>>,
) -> Materials<'a> {
    Materials {
        pairs,
        clients: clients.map(|kept| &kept.value),
        ticket_keys: ticket_keys.map(|kept| &kept.value),
    }
}

impl Certificates {
    /// Returns the TLS settings for the workers, by listener.
    pub(crate) fn seals(&self) -> Vec<Option<Sealing>> {
        self.seals.clone()
    }

    /// Returns the TLS settings for the workers, by server.
    pub(crate) fn server_seals(&self) -> ServerSeals {
        self.server_seals.clone()
    }

    /// Returns the board.
    pub(crate) fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn start(mut self) -> io::Result<Watch> {
        let (sender, wishes) = channel();
        let thread = std::thread::Builder::new().name("weir-tls".to_owned()).spawn(move || {
            loop {
                // Without files it sleeps.
                let has_files = !self.listeners.is_empty() || !self.upstreams.is_empty();
                let next = if has_files {
                    wishes.recv_timeout(LOOK_EVERY)
                } else {
                    wishes.recv().map_err(Into::into)
                };
                match next {
                    Ok(Wish::Add(servers)) => {
                        self.add(*servers);
                    }
                    Ok(Wish::Take(placed)) => self.take(placed),
                    Ok(Wish::Look(done)) => {
                        self.look(now(), &mut |line| line.log());
                        drop(done);
                    }
                    Err(RecvTimeoutError::Timeout) => self.look(now(), &mut |line| line.log()),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        })?;
        let watcher = Watcher(Arc::new(Mutex::new(Some(sender))));
        Ok(Watch { watcher, thread: Some(thread) })
    }

    /// Adds further servers. Drops those whose slots were reused, so the list never exceeds the
    /// slots.
    fn add(&mut self, servers: Servers) {
        self.upstreams.retain(Servers::are_used);
        self.upstreams.push(servers);
        self.board.write(&self.listeners, &self.upstreams);
    }

    fn take(&mut self, placed: Vec<Placed>) {
        let mut before: Vec<_> = self.listeners.drain(..).map(Some).collect();
        let one = |placed| match placed {
            Placed::Kept(at) => before.get_mut(at)?.take(),
            Placed::New(listener) => Some(*listener),
        };
        self.listeners = placed.into_iter().filter_map(one).collect();
        self.board.write(&self.listeners, &self.upstreams);
    }

    fn look(&mut self, now: i64, tell: &mut dyn FnMut(Line)) {
        for listener in &mut self.listeners {
            listener.look(now, tell);
        }
        for upstream in &mut self.upstreams {
            upstream.look(now, tell);
        }
        self.board.write(&self.listeners, &self.upstreams);
    }
}

impl Watch {
    /// Returns a sender of orders to the thread.
    pub(crate) fn watcher(&self) -> Watcher {
        self.watcher.clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.watcher.0.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is already on standard error.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
