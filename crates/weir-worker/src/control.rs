//! The commands that a running worker gets from outside: to end, orders of operators, and results
//! of its errands.
//!
//! Bound: [`COMMANDS_MAX`] commands that were not carried out; at most one news for each open
//! errand of the worker.

use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_proxy::cross::standing::Order;
use weir_proxy::cross::verdict::Verdict;
use weir_proxy::forward::lookup::News;
use weir_proxy::observe::server_stats::ServerStats;
use weir_proxy::plan::{Location, Plan};
use weir_proxy::shield::bans::BanSet;

use crate::hand_over::Lending;
use crate::listeners::ListenerChange;
use crate::opening::Opening;
use crate::start::ServerSeals;

/// Commands that one worker may have before it carries them out.
const COMMANDS_MAX: usize = 1024;

/// An operator's command to running workers. Each of them must get it.
#[derive(Debug, Clone)]
pub enum Command {
    /// An order for a server, named by its index over all upstreams of the plan.
    Order {
        /// Which server.
        server: u32,
        /// The order.
        order: Order,
    },
    /// Forget that a server sent surplus responses, or did not cope with pipelining: it may earn
    /// trust again.
    Clear {
        /// Which server.
        server: u32,
    },
    /// Forget which requests were in flight when servers died: none remains a suspect.
    Forgive,
    /// From now on exactly these clients are banned.
    Ban(Arc<BanSet>),
    /// These verdicts on servers, named by their indices over all upstreams of the plan, were
    /// restored.
    Judge(Arc<[(u32, Verdict)]>),
    /// From now on this plan is in force.
    Adopt(Arc<Adoption>),
    /// Accept on the listeners of the plan.
    Open(Arc<Opening>),
    /// Lend the listening sockets, to be given to another process.
    Lend(Arc<Lending>),
    /// Give idle client connections to another worker. Sent to one worker only.
    Shed {
        /// Which worker.
        to: u16,
        /// The maximum number of connections.
        most: u32,
    },
}

/// A plan that takes the place of the one in force ([`weir_proxy::engine::Engine::adopt`]).
#[derive(Debug)]
pub struct Adoption {
    /// The successor, or the step before it.
    pub plan: Arc<Plan>,
    /// By worker: its counters of each server, by slot.
    pub servers: Vec<Vec<Arc<ServerStats>>>,
    /// Makes connections to servers speak TLS.
    pub server_seals: ServerSeals,
    /// Restored verdicts on servers that are new in it, named by their slots.
    pub verdicts: Vec<(u32, Verdict)>,
    /// By listener of the plan: how it changes. None: all remain as they are.
    pub listeners: Option<Vec<ListenerChange>>,
    /// Why workers could not accept on listeners.
    failed: Mutex<Vec<io::Error>>,
}

impl Adoption {
    /// For a plan that has the same listeners as the one in force.
    pub fn new(
        plan: Arc<Plan>,
        servers: Vec<Vec<Arc<ServerStats>>>,
        server_seals: ServerSeals,
    ) -> Adoption {
        Adoption {
            plan,
            servers,
            server_seals,
            verdicts: Vec::new(),
            listeners: None,
            failed: Mutex::default(),
        }
    }

    /// The same with changes of the listeners.
    pub fn with_listeners(self, listeners: Option<Vec<ListenerChange>>) -> Adoption {
        Adoption { listeners, ..self }
    }

    /// The same with verdicts on servers that are new in it.
    pub fn with_verdicts(self, verdicts: Vec<(u32, Verdict)>) -> Adoption {
        Adoption { verdicts, ..self }
    }

    /// Why workers could not accept on listeners. Ask when all workers have carried it out.
    pub fn take_failed(&self) -> Vec<io::Error> {
        std::mem::take(&mut self.failed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn tell_failed(&self, errors: Vec<io::Error>) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).extend(errors);
    }
}

/// A worker still has too many commands to carry out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy;

/// Commands to a worker from outside, which it reads after it was woken. Checked once a turn: one
/// load. Commands are rare, so they are behind a lock that a worker takes only when a flag says so.
#[derive(Debug, Default)]
pub struct Control {
    told: AtomicU8,
    commands: Mutex<Vec<Command>>,
    /// At most one for each open errand.
    news: Mutex<Vec<News>>,
    /// Listeners that another process has taken over when this worker is to drain.
    taken: Mutex<Vec<Location>>,
}

pub(crate) const DRAIN: u8 = 1;
pub(crate) const STOP: u8 = 2;
pub(crate) const COMMANDS: u8 = 4;
pub(crate) const NEWS: u8 = 8;
pub(crate) const TUNNELS_ONLY: u8 = 16;
pub(crate) const HAND_OVER: u8 = 32;

impl Control {
    /// Finish what is under way, take nothing new, then end.
    pub fn drain(&self) {
        self.told.fetch_or(DRAIN, Ordering::Release);
    }

    /// The same while another process accepts on these listeners, named as the plan names them.
    pub fn hand_over(&self, taken: &[Location]) {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = taken.to_vec();
        self.told.fetch_or(HAND_OVER | DRAIN, Ordering::Release);
    }

    pub(crate) fn taken(&self) -> Vec<Location> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// In a drain: end all clients except tunnels.
    pub fn keep_tunnels_only(&self) {
        self.told.fetch_or(TUNNELS_ONLY, Ordering::Release);
    }

    /// End now.
    pub fn stop(&self) {
        self.told.fetch_or(STOP, Ordering::Release);
    }

    /// Whether it got the command to drain or to end.
    pub fn is_ending(&self) -> bool {
        self.told() & (DRAIN | STOP) != 0
    }

    /// Queues a command behind all earlier ones.
    ///
    /// # Errors
    /// [`Busy`]; the command was not queued then.
    pub fn command(&self, command: Command) -> Result<(), Busy> {
        let mut commands = self.commands();
        if commands.len() >= COMMANDS_MAX {
            return Err(Busy);
        }
        commands.push(command);
        self.told.fetch_or(COMMANDS, Ordering::Release);
        Ok(())
    }

    /// Whether another command has room.
    pub fn has_room(&self) -> bool {
        self.commands().len() < COMMANDS_MAX
    }

    /// The answer to an errand of this worker.
    pub fn news(&self, news: News) {
        self.news.lock().unwrap_or_else(PoisonError::into_inner).push(news);
        self.told.fetch_or(NEWS, Ordering::Release);
    }

    pub(crate) fn take_news(&self) -> Vec<News> {
        let mut news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        self.told.fetch_and(!NEWS, Ordering::AcqRel);
        std::mem::take(&mut news)
    }

    pub(crate) fn told(&self) -> u8 {
        self.told.load(Ordering::Acquire)
    }

    pub(crate) fn take_commands(&self) -> Vec<Command> {
        let mut commands = self.commands();
        self.told.fetch_and(!COMMANDS, Ordering::AcqRel);
        std::mem::take(&mut commands)
    }

    fn commands(&self) -> MutexGuard<'_, Vec<Command>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
