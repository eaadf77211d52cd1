//! What workers must not wait for: names are resolved and passwords verified on a thread beside them. docs/semantics.md §9.
//!
//! `run::serve` opens the services before the workers start, so that a bad file of users is told at once, and starts them
//! when the workers run. A worker hands over an [`Errand`] without waiting, and is told [`News`] through its control. Bounds:
//! each worker has at most so many errands open at once (`weir-worker`), and each service has its own.

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

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use weir_proxy::forward::lookup::{Errand, News, Unverified};
use weir_proxy::plan::ForwardPlan;
use weir_worker::{Errands, Handle};

use crate::failure::Failure;
use crate::machine;
use dns::Dns;
use hosts::{HOSTS, Hosts};
use names::{Limits, Names};
use users::Source;
use verify::{Times, Verifier};

/// Tells a worker what it asked for.
pub(crate) type Tell = Rc<dyn Fn(u16, News)>;

/// Cores for each thread that compares passwords.
const CORES_EACH: usize = 4;
/// Descriptors that a name takes while nobody answers: two kinds of addresses, each asked of two name servers three times.
const DESCRIPTORS_EACH: u64 = 12;

/// What is needed to start, before anything runs.
#[derive(Debug)]
pub(crate) struct Opened {
    desk: Arc<Desk>,
    errands: UnboundedReceiver<(u16, Errand)>,
    source: Option<Source>,
    /// Key of the marks of good credentials.
    key: [u8; 32],
    threads: usize,
    runtime: Runtime,
    dns: Dns,
    /// What the operator should know.
    pub(crate) note: Option<String>,
    has_hosts: bool,
}

/// Where workers hand over errands.
#[derive(Debug)]
struct Desk(UnboundedSender<(u16, Errand)>);

impl Errands for Desk {
    fn run(&self, worker: u16, errand: Errand) -> Result<(), Errand> {
        self.0.send((worker, errand)).map_err(|refused| refused.0.1)
    }
}

/// Running. Ends with its drop.
#[derive(Debug)]
pub(crate) struct Side {
    /// Dropped: the end.
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Reads the users, and makes what workers need to be started with.
///
/// # Errors
/// The file of users is bad: a matter of configuration. What the operating system refuses.
pub(crate) fn open(plan: &ForwardPlan) -> Result<Opened, Failure> {
    let source = plan.users.as_deref().map(Source::open).transpose();
    let source = source.map_err(|bad| Failure::Configuration(bad.to_string()))?;
    let note = plan.users.as_ref().zip(source.as_ref()).filter(|(_, source)| source.now.is_open).map(|(path, _)| {
        let path = path.display();
        format!("everybody on this host may read the hashed passwords in {path}; `chmod o= {path}` ends that")
    });
    let threads = std::thread::available_parallelism().map_or(1, usize::from).div_ceil(CORES_EACH);
    let runtime = Builder::new_current_thread()
        .enable_io()
        .enable_time()
        // One more looks at the file of users.
        .max_blocking_threads(threads + 1)
        .build()
        .map_err(|error| Failure::Running(format!("weir: no thread for names and passwords: {error}\n")))?;
    let dns = {
        let _context = runtime.enter();
        Dns::new(&plan.resolvers).map_err(|error| Failure::Running(format!("weir: no name servers: {error}\n")))?
    };
    let key = key().map_err(|error| Failure::Running(format!("weir: no randomness: {error}\n")))?;
    let (sender, errands) = unbounded_channel();
    let has_hosts = plan.resolvers.is_empty();
    Ok(Opened { desk: Arc::new(Desk(sender)), errands, source, key, threads, runtime, dns, note, has_hosts })
}

impl Opened {
    /// Where workers hand over errands. What comes before the start waits for it.
    pub(crate) fn errands(&self) -> Arc<dyn Errands> {
        Arc::clone(&self.desk) as Arc<dyn Errands>
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn start(self, handle: Handle) -> io::Result<Side> {
        let (end, ended) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("weir-side".to_owned()).spawn(move || {
            let Opened { errands, source, key, threads, runtime, dns, has_hosts, .. } = self;
            let tell: Tell = Rc::new(move |worker, news| handle.tell(worker, news));
            let hosts = has_hosts.then(|| Hosts::new(HOSTS));
            let names = Names::new(dns, hosts, limits(machine::raise_descriptors()), Rc::clone(&tell));
            let verifier = source.map(|source| Verifier::new(source, key, threads, Times::default(), Rc::clone(&tell)));
            LocalSet::new().block_on(&runtime, async move {
                if let Some(verifier) = &verifier {
                    tokio::task::spawn_local(Rc::clone(verifier).watch());
                }
                tokio::task::spawn_local(work(errands, names, verifier, tell));
                // An error: the other end was dropped.
                let _ = ended.await;
            });
            // A comparison that is under way is of no use to anybody.
            runtime.shutdown_background();
        })?;
        Ok(Side { end: Some(end), thread: Some(thread) })
    }
}

/// Takes errands until nobody can send any.
async fn work(
    mut errands: UnboundedReceiver<(u16, Errand)>,
    names: Rc<Names>,
    verifier: Option<Rc<Verifier>>,
    tell: Tell,
) {
    while let Some((worker, errand)) = errands.recv().await {
        match (errand, &verifier) {
            (Errand::Resolve { name, asker }, _) => names.ask(worker, asker, name),
            (Errand::Verify { token, client, credentials }, Some(verifier)) => {
                verifier.ask(worker, token, client, credentials);
            }
            (Errand::Verify { token, client, .. }, None) => {
                tell(worker, News::Verified { token, client, user: Err(Unverified::NoRoom) })
            }
        }
    }
}

/// Names take at most a quarter of the descriptors (None: there are any number).
fn limits(descriptors: Option<u64>) -> Limits {
    let usual = Limits::default();
    let fit = descriptors.map_or(usual.asked_max as u64, |all| (all / 4 / DESCRIPTORS_EACH).max(1));
    Limits { asked_max: usual.asked_max.min(fit as usize), ..usual }
}

/// Numbers that nobody can guess.
fn key() -> io::Result<[u8; 32]> {
    let mut key = [0; 32];
    let filled = rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
    if filled < key.len() {
        return Err(io::Error::other("the operating system has too little of it"));
    }
    Ok(key)
}

impl Drop for Side {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // Its panic would be told on standard error.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: what is wrong is told before anything runs, and the thread ends when it is dropped, whatever is under way. How:
    //! real files, no workers.

    use super::*;
    use std::path::{Path, PathBuf};
    use std::time::{Duration, Instant};

    use weir_proxy::forward::lookup::Credentials;
    use weir_proxy::forward::policy::Policy;
    use weir_proxy::forward::shares::{Asker, Lane};

    fn plan(users: Option<&Path>, resolvers: &[&str]) -> ForwardPlan {
        ForwardPlan {
            upstream: 0,
            policy: Policy::default(),
            users: users.map(Path::to_path_buf),
            realm: "weir".to_owned(),
            destinations_max: 16,
            user_connections_max: None,
            user_rate_max: None,
            resolvers: resolvers.iter().map(|text| text.parse().unwrap()).collect(),
            pac: None,
        }
    }

    fn file(name: &str, text: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("weir-side-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        path
    }

    #[test]
    fn a_bad_file_of_users_is_a_bad_configuration() {
        let path = file("bad", "ann:secret\n");
        let Err(Failure::Configuration(text)) = open(&plan(Some(&path), &[])) else { panic!("it was taken") };
        assert!(text.contains(":1: ") && text.contains("weir passwd"), "{text}");
        std::fs::remove_file(&path).unwrap();
        let Err(Failure::Configuration(text)) = open(&plan(Some(&path), &[])) else { panic!("it was taken") };
        assert!(text.contains("No such file"), "{text}");
    }

    #[test]
    fn who_may_read_the_file_is_noted() {
        use std::os::unix::fs::PermissionsExt as _;
        let path = file("open", "");
        for (mode, noted) in [(0o604, true), (0o640, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let opened = open(&plan(Some(&path), &[])).unwrap();
            assert_eq!(opened.note.is_some_and(|note| note.contains("chmod o=")), noted);
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn it_ends_with_its_drop_and_takes_nothing_then() {
        // Nobody answers there.
        let opened = open(&plan(None, &["127.0.0.1:9"])).unwrap();
        let errands = opened.errands();
        let asker = Asker::of(None, [127, 0, 0, 1].into());
        let resolve = |name: &str| Errand::Resolve { name: name.into(), asker: asker.clone() };
        errands.run(0, resolve("before.test")).unwrap();
        let side = opened.start(Handle::default()).unwrap();
        errands.run(0, resolve("after.test")).unwrap();
        let credentials = Credentials { name: "ann".into(), password: Box::default() };
        errands.run(0, Errand::Verify { token: 1, client: Lane::of([127, 0, 0, 1].into()), credentials }).unwrap();
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
