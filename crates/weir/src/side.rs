//! Work that workers must not wait for: a separate thread resolves names and verifies passwords.
//! docs/forward.md, docs/basic-auth.md.
//!
//! `run::serve` reads files of users before the workers start, so that it reports a bad one at
//! once. It starts the thread when the workers run, if there is a forward proxy or a route with
//! `users`. Otherwise the first reload that brings one starts it ([`Registry`]). A worker hands
//! over an [`Errand`] without waiting, and gets [`News`] through its control. Bounds: each worker
//! has a limited number of open errands (`weir-worker`), and each service has its own limits.

pub(crate) mod hash;
pub(crate) mod stamp;
pub(crate) mod users;

pub(crate) mod dns;
pub(crate) mod hosts;
pub(crate) mod order;

mod cache;
mod lanes;
mod names;
mod turns;
mod verify;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tokio::runtime::Builder;
use tokio::sync::mpsc::error::SendError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use weir_proxy::forward::lookup::{Errand, News, Unresolved, Unverified};
use weir_proxy::plan::Plan;
use weir_worker::{Errands, Handle};

use crate::failure::Failure;
use crate::log::Event;
use crate::machine;
use dns::Dns;
use hosts::{HOSTS, Hosts};
use names::{Limits, Names};
use users::Source;
use verify::{Room, Times, Verifier};

/// Sends a reply to a worker.
pub(crate) type Tell = Rc<dyn Fn(u16, News)>;

/// Cores for each thread that compares passwords.
const CORES_EACH: usize = 4;
/// Descriptors that a name takes while no name server replies: queries for two address types, three
/// for each to each of two name servers.
const DESCRIPTORS_EACH: u64 = 12;

/// An order for the thread.
enum Order {
    /// An errand of a worker.
    Run(u16, Errand),
    /// Add these files of users, and of all others keep only these.
    Users(Vec<Source>, Vec<Arc<Path>>),
    /// Check all files of users now. The end of the channel signals that it is done.
    Look(std::sync::mpsc::Sender<()>),
}

/// Where workers hand over errands.
#[derive(Debug)]
struct Desk(UnboundedSender<Order>);

impl Errands for Desk {
    fn run(&self, worker: u16, errand: Errand) -> Result<(), Errand> {
        match self.0.send(Order::Run(worker, errand)) {
            Err(SendError(Order::Run(_, errand))) => Err(errand),
            _ => Ok(()),
        }
    }
}

/// The initial state of the thread. Orders sent before it runs wait.
struct Beginning {
    orders: UnboundedReceiver<Order>,
    /// Key of the marks of good credentials.
    key: [u8; 32],
    /// Name servers of a forward proxy; None: no forward proxy, so no names to resolve.
    resolvers: Option<Vec<SocketAddr>>,
}

/// The thread, which starts when it is first needed.
#[derive(Default)]
enum State {
    Idle(Box<Beginning>),
    Runs {
        /// Dropping it ends the thread.
        end: oneshot::Sender<()>,
        thread: JoinHandle<()>,
    },
    #[default]
    Ended,
}

/// Registers the files of users of another configuration.
#[derive(Clone, Default)]
pub(crate) struct Registry(Option<Inner>);

#[derive(Clone)]
struct Inner {
    desk: Arc<Desk>,
    state: Arc<Mutex<State>>,
}

/// Owns the thread, and ends it when dropped.
pub(crate) struct Side(Inner);

/// Reads the files of users, and makes what workers need to start.
///
/// # Errors
/// A file of users is bad, which is an error in the configuration; or the operating system's.
pub(crate) fn open(plan: &Plan) -> Result<(Side, Vec<String>), Failure> {
    let sources = read(&plan.users)?;
    let notes = sources.iter().filter_map(Source::note).collect();
    let key = key().map_err(|error| Failure::Running(format!("weir: no randomness: {error}\n")))?;
    let (sender, orders) = unbounded_channel();
    // The order waits for the thread.
    let _ = sender.send(Order::Users(sources, plan.users.clone()));
    let resolvers = plan.forward.as_ref().map(|forward| forward.resolvers.clone());
    let state = State::Idle(Box::new(Beginning { orders, key, resolvers }));
    let inner = Inner { desk: Arc::new(Desk(sender)), state: Arc::new(Mutex::new(state)) };
    Ok((Side(inner), notes))
}

/// Reads files of users for the first time.
fn read(files: &[Arc<Path>]) -> Result<Vec<Source>, Failure> {
    let open = |path: &Arc<Path>| {
        Source::open(path).map_err(|bad| Failure::Configuration(bad.to_string()))
    };
    files.iter().map(open).collect()
}

impl Side {
    /// Returns where workers hand over errands. Errands wait for the start of the thread.
    pub(crate) fn errands(&self) -> Arc<dyn Errands> {
        Arc::clone(&self.0.desk) as Arc<dyn Errands>
    }

    /// Returns the registry of files of users.
    pub(crate) fn registry(&self) -> Registry {
        Registry(Some(self.0.clone()))
    }

    /// Starts the thread, if this plan needs it.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn start(&self, plan: &Plan, handle: &Handle) -> Result<(), Failure> {
        if plan.forward.is_some() || !plan.users.is_empty() { self.0.start(handle) } else { Ok(()) }
    }
}

impl Registry {
    /// Prepares the files of users of a plan that will follow another: reads the new ones, and
    /// verifies by them from now on. Whether or not the plan succeeds, the files of the old plan
    /// remain until the next call.
    ///
    /// # Errors
    /// A new file is bad, and nothing has changed; or the operating system refuses a thread.
    pub(crate) fn follow(&self, old: &Plan, next: &Plan, handle: &Handle) -> Result<(), Failure> {
        let Some(inner) = &self.0 else { return Ok(()) };
        if old.users.is_empty() && next.users.is_empty() {
            return Ok(());
        }
        let new: Vec<_> =
            next.users.iter().filter(|path| !old.users.contains(path)).cloned().collect();
        let sources = read(&new)?;
        let notes = sources.iter().filter_map(Source::note);
        notes.for_each(|note| Event::UsersBad.says(note).log());
        inner.start(handle)?;
        let all = old.users.iter().cloned().chain(new).collect();
        // An error: the program is ending.
        let _ = inner.desk.0.send(Order::Users(sources, all));
        Ok(())
    }

    /// Has all files of users checked; returns when their changes are in force.
    pub(crate) fn look(&self) {
        let Some(inner) = &self.0 else { return };
        if !matches!(*inner.lock(), State::Runs { .. }) {
            return;
        }
        let (done, ended) = std::sync::mpsc::channel();
        if inner.desk.0.send(Order::Look(done)).is_ok() {
            // The channel carries no message; it closes.
            let _ = ended.recv();
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread, unless it runs.
    fn start(&self, handle: &Handle) -> Result<(), Failure> {
        let mut state = self.lock();
        match std::mem::take(&mut *state) {
            State::Idle(beginning) => *state = beginning.start(handle.clone())?,
            other => *state = other,
        }
        Ok(())
    }
}

impl Beginning {
    fn start(self, handle: Handle) -> Result<State, Failure> {
        let failed =
            |what: &str, error: io::Error| Failure::Running(format!("weir: {what}: {error}\n"));
        let threads =
            std::thread::available_parallelism().map_or(1, usize::from).div_ceil(CORES_EACH);
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            // One more thread checks files of users.
            .max_blocking_threads(threads + 1)
            .build()
            .map_err(|error| failed("no thread for names and passwords", error))?;
        let dns = {
            let _context = runtime.enter();
            self.resolvers.as_ref().map(|resolvers| Dns::new(resolvers)).transpose()
        };
        let dns =
            dns.map_err(|error| failed("no name servers", io::Error::other(error.to_string())))?;
        let has_hosts = self.resolvers.is_some_and(|resolvers| resolvers.is_empty());
        let (orders, key) = (self.orders, self.key);
        let (end, ended) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("weir-side".to_owned()).spawn(move || {
            let tell: Tell = Rc::new(move |worker, news| handle.tell(worker, news));
            let hosts = has_hosts.then(|| Hosts::new(HOSTS));
            let limits = limits(machine::raise_descriptors());
            let names = dns.map(|dns| Names::new(dns, hosts, limits, Rc::clone(&tell)));
            LocalSet::new().block_on(&runtime, async move {
                let clerk =
                    Clerk { names, verifiers: HashMap::new(), key, room: Room::new(threads), tell };
                tokio::task::spawn_local(clerk.work(orders));
                // An error: the other end was dropped.
                let _ = ended.await;
            });
            // No client needs the result of a comparison that is under way.
            runtime.shutdown_background();
        });
        let thread = thread
            .map_err(|error| failed("cannot start the thread for names and passwords", error))?;
        Ok(State::Runs { end, thread })
    }
}

/// The state of the running thread.
struct Clerk {
    /// None: no forward proxy, so no names to resolve.
    names: Option<Rc<Names>>,
    verifiers: HashMap<Arc<Path>, Rc<Verifier>>,
    key: [u8; 32],
    room: Rc<Room>,
    tell: Tell,
}

impl Clerk {
    /// Carries out orders until all senders are gone.
    async fn work(mut self, mut orders: UnboundedReceiver<Order>) {
        while let Some(order) = orders.recv().await {
            match order {
                Order::Run(worker, errand) => self.run(worker, errand),
                Order::Users(sources, all) => self.keep(sources, &all),
                Order::Look(done) => {
                    let all: Vec<_> = self.verifiers.values().cloned().collect();
                    tokio::task::spawn_local(async move {
                        for verifier in all {
                            verifier.look_now().await;
                        }
                        drop(done);
                    });
                }
            }
        }
    }

    fn run(&self, worker: u16, errand: Errand) {
        match errand {
            Errand::Resolve { name, asker } => match &self.names {
                Some(names) => names.ask(worker, asker, name),
                None => (self.tell)(
                    worker,
                    News::Resolved { name, asker, answer: Err(Unresolved::Failed) },
                ),
            },
            Errand::Verify { question, client, users, credentials } => {
                match self.verifiers.get(&users) {
                    Some(verifier) => verifier.ask(worker, question, client, credentials),
                    None => (self.tell)(
                        worker,
                        News::Verified { question, client, user: Err(Unverified::NoRoom) },
                    ),
                }
            }
        }
    }

    /// Adds these files, and keeps only those in `all`.
    fn keep(&mut self, sources: Vec<Source>, all: &[Arc<Path>]) {
        self.verifiers.retain(|path, verifier| {
            let stays = all.contains(path);
            if !stays {
                verifier.retire();
            }
            stays
        });
        for source in sources {
            let path = Arc::clone(&source.path);
            self.verifiers.entry(path).or_insert_with(|| {
                let (room, tell) = (Rc::clone(&self.room), Rc::clone(&self.tell));
                let verifier = Verifier::new(source, self.key, room, Times::default(), tell);
                let every = verifier.looks_every();
                tokio::task::spawn_local(Verifier::watch(Rc::downgrade(&verifier), every));
                verifier
            });
        }
    }
}

/// Limits names to a quarter of the descriptors (None: unlimited descriptors).
fn limits(descriptors: Option<u64>) -> Limits {
    let usual = Limits::default();
    let fit = descriptors.map_or(usual.asked_max as u64, |all| (all / 4 / DESCRIPTORS_EACH).max(1));
    Limits { asked_max: usual.asked_max.min(fit as usize), ..usual }
}

/// Returns unpredictable bytes.
fn key() -> io::Result<[u8; 32]> {
    let mut key = [0; 32];
    let filled = rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
    if filled < key.len() {
        return Err(io::Error::other("the operating system has not enough of it"));
    }
    Ok(key)
}

impl Drop for Side {
    fn drop(&mut self) {
        // The lock must be free while the thread ends.
        let state = std::mem::take(&mut *self.0.lock());
        if let State::Runs { end, thread } = state {
            drop(end);
            // A panic of the thread is already on standard error.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: errors are reported before anything runs, and the thread ends when it is dropped,
    //! whatever is under way. How: real files, no workers.

    use super::*;
    use std::path::PathBuf;
    use std::time::{Duration, Instant};

    use weir_proxy::forward::lookup::{Credentials, Question};
    use weir_proxy::forward::policy::Policy;
    use weir_proxy::forward::shares::{Asker, Lane};
    use weir_proxy::plan::ForwardPlan;

    fn plan(users: Option<&Path>, resolvers: &[&str]) -> Plan {
        let users = users.map(Arc::from);
        let forward = ForwardPlan {
            upstream: 0,
            policy: Policy::default(),
            users: users.clone(),
            realm: "weir".to_owned(),
            destinations_max: 16,
            user_connections_max: None,
            user_rate_max: None,
            resolvers: resolvers.iter().map(|text| text.parse().unwrap()).collect(),
            pac: None,
        };
        Plan { forward: Some(forward), users: users.into_iter().collect(), ..Plan::default() }
    }

    fn file(name: &str, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("weir-side-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn a_bad_file_of_users_is_a_bad_configuration() {
        let path = file("bad", "ann:secret\n");
        let Err(Failure::Configuration(text)) = open(&plan(Some(&path), &[])) else {
            panic!("it was taken")
        };
        assert!(text.contains(":1: ") && text.contains("weir passwd"), "{text}");
        std::fs::remove_file(&path).unwrap();
        let Err(Failure::Configuration(text)) = open(&plan(Some(&path), &[])) else {
            panic!("it was taken")
        };
        assert!(text.contains("No such file"), "{text}");
    }

    #[test]
    fn who_may_read_the_file_is_noted() {
        use std::os::unix::fs::PermissionsExt as _;
        let path = file("open", "");
        for (mode, noted) in [(0o604, true), (0o640, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let (_side, notes) = open(&plan(Some(&path), &[])).unwrap();
            assert_eq!(notes.first().is_some_and(|note| note.contains("chmod o=")), noted);
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn it_ends_with_its_drop_and_takes_nothing_then() {
        // No name server replies there.
        let plan = plan(None, &["127.0.0.1:9"]);
        let (side, _) = open(&plan).unwrap();
        let errands = side.errands();
        let asker = Asker::of(None, [127, 0, 0, 1].into());
        let resolve = |name: &str| Errand::Resolve { name: name.into(), asker: asker.clone() };
        errands.run(0, resolve("before.test")).unwrap();
        side.start(&plan, &Handle::default()).unwrap();
        errands.run(0, resolve("after.test")).unwrap();
        let credentials = Credentials { name: "ann".into(), password: Box::default() };
        let (client, users) = (Lane::of([127, 0, 0, 1].into()), Path::new("users").into());
        errands
            .run(
                0,
                Errand::Verify {
                    question: Question { token: 1, serial: 1 },
                    client,
                    users,
                    credentials,
                },
            )
            .unwrap();
        let start = Instant::now();
        drop(side);
        assert!(start.elapsed() < Duration::from_secs(5));
        assert_eq!(errands.run(0, resolve("late.test")), Err(resolve("late.test")));
    }

    #[test]
    fn few_descriptors_make_few_names() {
        let asked = |descriptors| limits(descriptors).asked_max;
        assert_eq!([None, Some(1 << 20), Some(1024), Some(10)].map(asked), [512, 512, 21, 1]);
    }
}
