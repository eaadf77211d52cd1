//! Finds servers: looks up their names when weir starts, at each reload, and whenever the results
//! expire. Checks files with lists of servers at the same times, and every [`LOOK_EVERY`].
//! docs/discovery.md.
//!
//! A separate thread queries name servers; only the start ([`START_PATIENCE`]) and reloads wait for
//! it, for a moment. It puts its results on the [`Board`]. When they have changed it puts a job on
//! the desk of the reloads ([`Job::Found`]), which makes another plan of them, so reload and
//! discovery never overlap. Bounds: [`ASKED_MAX`] lookups at once, one for each name.

mod ledger;
mod lists;
mod lookup;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{
    UnboundedReceiver, UnboundedSender, WeakUnboundedSender, unbounded_channel,
};
use tokio::task::{JoinSet, LocalSet};
use weir_proxy::plan::{DiscoveryPlan, Known, Plan};

use crate::log;
use crate::reload::{Desk, Job};
pub(crate) use ledger::Shown;
use ledger::{Answer, Ledger, Trouble};
pub(crate) use lists::ListShown;
use lists::Lists;
use lookup::Asker;

/// How long the start waits for first results. Later ones are used while weir runs.
pub(crate) const START_PATIENCE: Duration = Duration::from_secs(2);
/// How long a reload waits.
pub(crate) const RELOAD_PATIENCE: Duration = Duration::from_secs(2);
/// Largest number of names queried at once.
const ASKED_MAX: usize = 64;
/// How often files are checked.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Time before another try to put results in force.
const AGAIN: Duration = Duration::from_secs(5);

/// Returns which of these names (`host:port`) fail to resolve, and why: for `weir check`.
pub(crate) fn check(plan: &DiscoveryPlan, names: &[&str]) -> Vec<Option<String>> {
    let failed = |why: String| names.iter().map(|_| Some(why.clone())).collect();
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => return failed(error.to_string()),
    };
    LocalSet::new().block_on(&runtime, async {
        let asker = match Asker::new(plan) {
            Ok(asker) => asker,
            Err(why) => return failed(why),
        };
        let mut all = vec![None; names.len()];
        for (first, some) in names.chunks(ASKED_MAX).enumerate() {
            let mut asking = JoinSet::new();
            for (at, name) in some.iter().enumerate() {
                let (asker, name, at) =
                    (Rc::clone(&asker), (*name).to_owned(), first * ASKED_MAX + at);
                asking.spawn_local(async move { (at, asker.look_up(&name).await) });
            }
            for (at, answer) in asking.join_all().await {
                all[at] = answer.err().map(|trouble| trouble.text().to_owned());
            }
        }
        all
    })
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_io().enable_time().build()
}

/// Publishes the results.
#[derive(Debug, Default)]
pub(crate) struct Board {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    known: Known,
    shown: Vec<Shown>,
    lists: Vec<ListShown>,
    /// Number of the last wish all of whose names were looked up.
    settled: u64,
    /// Gets a job when results change.
    desk: Option<Desk>,
}

impl Board {
    /// Returns the state of the names.
    pub(crate) fn shown(&self) -> Vec<Shown> {
        self.lock().shown.clone()
    }

    /// Returns the state of the files.
    pub(crate) fn lists(&self) -> Vec<ListShown> {
        self.lock().lists.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An event for the thread.
#[derive(Debug)]
enum Event {
    Wanted {
        number: u64,
        names: BTreeSet<String>,
        files: BTreeSet<PathBuf>,
        plan: DiscoveryPlan,
        /// Look all of them up again, known or not.
        anew: bool,
    },
    LookedUp(String, Result<Answer, Trouble>),
    /// There is a desk now.
    Desk,
    /// The results could not be put in force.
    Again,
}

/// Tells the thread which names and files are wanted; the first of them starts it.
#[derive(Debug, Default)]
pub(crate) struct Discovery {
    board: Arc<Board>,
    thread: Option<UnboundedSender<Event>>,
    wishes: u64,
}

impl Discovery {
    /// Resolves the names of these plans, which were just compiled, and reads their files. From now
    /// on the thread follows only these, as the last plan says. Returns when each was looked up, or
    /// after `patience`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn want(&mut self, plans: &[&Plan], patience: Duration) -> io::Result<()> {
        self.wish(plans, true)?;
        let open = |state: &mut State| self.thread.is_some() && state.settled < self.wishes;
        // Missing results come later.
        let waited = self.board.changed.wait_timeout_while(self.board.lock(), patience, open);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }

    /// From now on only the names and files of this plan are wanted; they were wanted before.
    ///
    /// # Errors
    /// As [`Discovery::want`].
    pub(crate) fn keep(&mut self, plan: &Plan) -> io::Result<()> {
        self.wish(&[plan], false)
    }

    fn wish(&mut self, plans: &[&Plan], anew: bool) -> io::Result<()> {
        let names: BTreeSet<String> =
            plans.iter().flat_map(|plan| plan.names()).map(str::to_owned).collect();
        let files: BTreeSet<PathBuf> =
            plans.iter().flat_map(|plan| plan.discovery.files.values()).cloned().collect();
        if self.thread.is_none() && names.is_empty() && files.is_empty() {
            return Ok(());
        }
        let thread = match &self.thread {
            Some(thread) => thread,
            None => self.thread.insert(start(Arc::clone(&self.board))?),
        };
        self.wishes += 1;
        let plan = plans.last().map_or_else(DiscoveryPlan::default, |plan| plan.discovery.clone());
        let event = Event::Wanted { number: self.wishes, names, files, plan, anew };
        thread.send(event).map_err(|_| io::Error::other("the thread for names has ended"))
    }

    /// Returns the results.
    pub(crate) fn known(&self) -> Known {
        self.board.lock().known.clone()
    }

    /// Returns the board with the results.
    pub(crate) fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    /// Sets the desk for jobs.
    pub(crate) fn tell(&self, desk: Desk) {
        self.board.lock().desk = Some(desk);
        self.send(Event::Desk);
    }

    /// The results could not be put in force: the thread tries again later.
    pub(crate) fn again(&self) {
        self.send(Event::Again);
    }

    fn send(&self, event: Event) {
        if let Some(thread) = &self.thread {
            // The thread ends only when the sender is dropped.
            let _ = thread.send(event);
        }
    }
}

fn start(board: Arc<Board>) -> io::Result<UnboundedSender<Event>> {
    let (sender, events) = unbounded_channel();
    let (runtime, answers) = (runtime()?, sender.downgrade());
    std::thread::Builder::new().name("weir-names".to_owned()).spawn(move || {
        let finder = Finder {
            board,
            answers,
            asker: None,
            ledger: Ledger::default(),
            lists: Lists::default(),
            looked: Instant::now(),
            names: BTreeSet::new(),
            wish: 0,
            asked: 0,
            untold: None,
        };
        LocalSet::new().block_on(&runtime, finder.work(events));
    })?;
    Ok(sender)
}

/// The state of the thread.
struct Finder {
    board: Arc<Board>,
    answers: WeakUnboundedSender<Event>,
    /// None: name servers cannot be queried.
    asker: Option<Rc<Asker>>,
    ledger: Ledger,
    lists: Lists,
    /// The last check of the files.
    looked: Instant,
    /// Names of the configuration.
    names: BTreeSet<String>,
    /// Number of the last wish.
    wish: u64,
    /// Lookups under way.
    asked: usize,
    /// Results are unpublished, and this is the earliest time to publish them.
    untold: Option<Instant>,
}

impl Finder {
    async fn work(mut self, mut events: UnboundedReceiver<Event>) {
        loop {
            let now = Instant::now();
            if now >= self.looked + LOOK_EVERY {
                self.look(now);
            }
            self.ledger.expire(now);
            for name in self.ledger.take_due(now, ASKED_MAX - self.asked) {
                self.ask(name);
            }
            self.publish(now);
            let next = self.ledger.next().filter(|_| self.asked < ASKED_MAX);
            // Results that are already due wait for a desk.
            let next = next.into_iter().chain(self.untold.filter(|due| *due > now));
            let next = next.chain((!self.lists.is_empty()).then(|| self.looked + LOOK_EVERY)).min();
            let heard = match next {
                Some(next) => tokio::time::timeout_at(next.into(), events.recv()).await.ok(),
                None => Some(events.recv().await),
            };
            match heard {
                Some(Some(event)) => self.hear(event),
                // The discovery was dropped.
                Some(None) => return,
                None => {}
            }
        }
    }

    fn hear(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Wanted { number, names, files, plan, anew } => {
                (self.wish, self.names) = (number, names);
                let asker = Asker::new(&plan);
                let told = |why| {
                    log::Event::ResolverMissing.says("no name servers").with("error", why).log();
                };
                self.asker = asker.map_err(told).ok();
                self.lists.want(files);
                self.look(now);
                self.ledger.set_plan(plan);
                if anew {
                    self.ledger.refresh(now);
                }
            }
            Event::LookedUp(name, answer) => {
                self.asked -= 1;
                self.ledger.learn(&name, answer, now).into_iter().for_each(|line| line.log());
            }
            Event::Desk => {}
            Event::Again => self.untold = Some(now + AGAIN),
        }
    }

    /// Reads files that have changed, and adds the names in them.
    fn look(&mut self, now: Instant) {
        self.looked = now;
        self.lists.look().into_iter().for_each(|line| line.log());
        let names =
            self.names.iter().cloned().chain(self.lists.names().map(str::to_owned)).collect();
        self.ledger.want(&names, now);
    }

    fn ask(&mut self, name: String) {
        self.asked += 1;
        let looking = Looking {
            name,
            answer: Err(Trouble::Failed("the lookup was interrupted")),
            to: self.answers.clone(),
        };
        let asker = self.asker.clone();
        tokio::task::spawn_local(async move {
            let mut looking = looking;
            looking.answer = match asker {
                Some(asker) => asker.look_up(&looking.name).await,
                None => Err(Trouble::Failed("no name servers are known")),
            };
        });
    }

    /// Puts the results on the board, and requests a new plan if they have changed.
    fn publish(&mut self, now: Instant) {
        let mut state = self.board.lock();
        (state.shown, state.lists) = (self.ledger.shown(), self.lists.shown());
        let known =
            Known { names: self.ledger.known(), files: self.lists.known(), ..Known::default() };
        if known != state.known {
            state.known = known;
            self.untold = Some(now);
        }
        if self.ledger.is_settled() {
            state.settled = self.wish;
            self.board.changed.notify_all();
        }
        let Some(desk) = state.desk.clone().filter(|_| self.untold.is_some_and(|due| due <= now))
        else {
            return;
        };
        drop(state);
        // Too many jobs: later.
        self.untold = desk.ask(Job::Found).is_err().then_some(now + AGAIN);
    }
}

/// A lookup. Dropping it reports its end, even if it was aborted.
struct Looking {
    name: String,
    answer: Result<Answer, Trouble>,
    to: WeakUnboundedSender<Event>,
}

impl Drop for Looking {
    fn drop(&mut self) {
        let answer = std::mem::replace(&mut self.answer, Err(Trouble::Failed("")));
        if let Some(to) = self.to.upgrade() {
            // The thread ends when all senders are gone.
            let _ = to.send(Event::LookedUp(std::mem::take(&mut self.name), answer));
        }
    }
}
