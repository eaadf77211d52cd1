//! Where servers are: their names are looked up when weir starts, at each reload, and whenever their time is over; files with lists of them are
//! looked at then and every [`LOOK_EVERY`]. docs/semantics.md §15.
//!
//! A thread of its own asks name servers; nobody waits for it but the start ([`START_PATIENCE`]) and reloads, which do so for a moment.
//! What it knows lies on the [`Board`]. When that has changed it puts a job on the desk of the reloads ([`Job::Found`]), where it becomes
//! another plan: so a reload and a discovery never cross. Bounds: [`ASKED_MAX`] look-ups at once, one a name.

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
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, WeakUnboundedSender, unbounded_channel};
use tokio::task::{JoinSet, LocalSet};
use weir_proxy::plan::{DiscoveryPlan, Known, Plan};

use crate::reload::{Desk, Job};
use crate::terminal::{tell, warn};
pub(crate) use ledger::Shown;
use ledger::{Answer, Ledger, News, Trouble};
pub(crate) use lists::ListShown;
use lists::Lists;
use lookup::Asker;

/// How long the start waits for first answers. What comes later is found while weir runs.
pub(crate) const START_PATIENCE: Duration = Duration::from_secs(2);
/// The same of a reload.
pub(crate) const RELOAD_PATIENCE: Duration = Duration::from_secs(2);
/// Names that are asked for at once.
const ASKED_MAX: usize = 64;
/// How often files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// When what could not be taken into force is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// What of these names (`host:port`) can't be looked up, and why: for `weir check`.
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
                let (asker, name, at) = (Rc::clone(&asker), (*name).to_owned(), first * ASKED_MAX + at);
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

/// Where what is known is to be seen.
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
    /// Of the last wish all of whose names were looked up.
    settled: u64,
    /// Who has to hear of changes.
    desk: Option<Desk>,
}

impl Board {
    /// How names are doing.
    pub(crate) fn shown(&self) -> Vec<Shown> {
        self.lock().shown.clone()
    }

    /// How files are doing.
    pub(crate) fn lists(&self) -> Vec<ListShown> {
        self.lock().lists.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the thread hears.
#[derive(Debug)]
enum Event {
    Wanted {
        number: u64,
        names: BTreeSet<String>,
        files: BTreeSet<PathBuf>,
        plan: DiscoveryPlan,
        /// Whatever is known of them.
        anew: bool,
    },
    LookedUp(String, Result<Answer, Trouble>),
    /// There is a desk now.
    Desk,
    /// What is known could not be taken into force.
    Again,
}

/// Says what is wanted of the thread, which begins when a first name or file is.
#[derive(Debug, Default)]
pub(crate) struct Discovery {
    board: Arc<Board>,
    thread: Option<UnboundedSender<Event>>,
    wishes: u64,
}

impl Discovery {
    /// Has the names of these plans, which were just compiled, looked up and their files read, from now on and no others, as the last of
    /// them says. Returns when each was, or after `patience`.
    ///
    /// # Errors
    /// There can be no thread.
    pub(crate) fn want(&mut self, plans: &[&Plan], patience: Duration) -> io::Result<()> {
        self.wish(plans, true)?;
        let open = |state: &mut State| self.thread.is_some() && state.settled < self.wishes;
        // What is not known then comes later.
        let waited = self.board.changed.wait_timeout_while(self.board.lock(), patience, open);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }

    /// From now on only the names and files of this plan are wanted, which were before.
    ///
    /// # Errors
    /// As [`Discovery::want`].
    pub(crate) fn keep(&mut self, plan: &Plan) -> io::Result<()> {
        self.wish(&[plan], false)
    }

    fn wish(&mut self, plans: &[&Plan], anew: bool) -> io::Result<()> {
        let names: BTreeSet<String> = plans.iter().flat_map(|plan| plan.names()).map(str::to_owned).collect();
        let files: BTreeSet<PathBuf> = plans.iter().flat_map(|plan| plan.discovery.files.values()).cloned().collect();
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

    /// What is known.
    pub(crate) fn known(&self) -> Known {
        self.board.lock().known.clone()
    }

    /// Where that is to be seen.
    pub(crate) fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    /// From now on there is a desk for jobs.
    pub(crate) fn tell(&self, desk: Desk) {
        self.board.lock().desk = Some(desk);
        self.send(Event::Desk);
    }

    /// What is known could not be taken into force: it is told again in a while.
    pub(crate) fn again(&self) {
        self.send(Event::Again);
    }

    fn send(&self, event: Event) {
        if let Some(thread) = &self.thread {
            // It ends with its sender only.
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

/// The thread.
struct Finder {
    board: Arc<Board>,
    answers: WeakUnboundedSender<Event>,
    /// None: there is nobody to be asked.
    asker: Option<Rc<Asker>>,
    ledger: Ledger,
    lists: Lists,
    /// When they were.
    looked: Instant,
    /// Those that are written in the configuration.
    names: BTreeSet<String>,
    /// Number of the last wish.
    wish: u64,
    /// Look-ups under way.
    asked: usize,
    /// What is known is to be told, and not before this.
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
            // What is due to be told and is not waits for a desk.
            let next = next.into_iter().chain(self.untold.filter(|due| *due > now));
            let next = next.chain((!self.lists.is_empty()).then(|| self.looked + LOOK_EVERY)).min();
            let heard = match next {
                Some(next) => tokio::time::timeout_at(next.into(), events.recv()).await.ok(),
                None => Some(events.recv().await),
            };
            match heard {
                Some(Some(event)) => self.hear(event),
                // Nobody wants anything any more.
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
                self.asker = asker.map_err(|why| warn(format_args!("no name servers: {why}"))).ok();
                self.lists.want(files);
                self.look(now);
                self.ledger.set_plan(plan);
                if anew {
                    self.ledger.refresh(now);
                }
            }
            Event::LookedUp(name, answer) => {
                self.asked -= 1;
                self.ledger.learn(&name, answer, now).into_iter().for_each(say);
            }
            Event::Desk => {}
            Event::Again => self.untold = Some(now + AGAIN),
        }
    }

    /// Reads files that have changed. Whatever names are in them are wanted.
    fn look(&mut self, now: Instant) {
        self.looked = now;
        self.lists.look().into_iter().for_each(say);
        let names = self.names.iter().cloned().chain(self.lists.names().map(str::to_owned)).collect();
        self.ledger.want(&names, now);
    }

    fn ask(&mut self, name: String) {
        self.asked += 1;
        let looking = Looking { name, answer: Err(Trouble::Failed("the look-up broke off")), to: self.answers.clone() };
        let asker = self.asker.clone();
        tokio::task::spawn_local(async move {
            let mut looking = looking;
            looking.answer = match asker {
                Some(asker) => asker.look_up(&looking.name).await,
                None => Err(Trouble::Failed("there are no name servers")),
            };
        });
    }

    /// Puts on the board what is known, and has it taken into force if it is new.
    fn publish(&mut self, now: Instant) {
        let mut state = self.board.lock();
        (state.shown, state.lists) = (self.ledger.shown(), self.lists.shown());
        let known = Known { names: self.ledger.known(), files: self.lists.known(), ..Known::default() };
        if known != state.known {
            state.known = known;
            self.untold = Some(now);
        }
        if self.ledger.is_settled() {
            state.settled = self.wish;
            self.board.changed.notify_all();
        }
        let Some(desk) = state.desk.clone().filter(|_| self.untold.is_some_and(|due| due <= now)) else { return };
        drop(state);
        // Too many jobs: later.
        self.untold = desk.ask(Job::Found).is_err().then_some(now + AGAIN);
    }
}

fn say(news: News) {
    match news {
        News::Lost(text) => warn(text),
        News::Back(text) => tell(text),
    }
}

/// A look-up. Its end is told, also when it breaks off.
struct Looking {
    name: String,
    answer: Result<Answer, Trouble>,
    to: WeakUnboundedSender<Event>,
}

impl Drop for Looking {
    fn drop(&mut self) {
        let answer = std::mem::replace(&mut self.answer, Err(Trouble::Failed("")));
        if let Some(to) = self.to.upgrade() {
            // The thread ends when nobody is left.
            let _ = to.send(Event::LookedUp(std::mem::take(&mut self.name), answer));
        }
    }
}
