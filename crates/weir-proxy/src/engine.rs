//! All machines of one worker and how they meet: client sessions, exchanges, upstream connections, mail to other workers.
//!
//! Called by the worker's loop, which knows sockets; nothing here does. One turn is:
//!
//! 1. [`Engine::begin_turn`] with the time,
//! 2. any number of `client_*`, `link_*` and [`Engine::deliver`] calls with what happened,
//! 3. [`Engine::poll_action`] until None: what is to be done outside,
//! 4. [`Engine::take_post`] for each other worker,
//! 5. wait until [`Engine::next_deadline`] or the next event.
//!
//! Bounds: see `docs/buffers.md`. The stages of a request are the files of this module.

mod account;
mod again;
mod answer;
mod aside;
mod audit;
mod cancel;
mod choose;
mod client;
mod connect;
mod crowded;
mod errands;
mod forward;
mod glitches;
mod head;
mod health;
mod late;
mod lives;
mod loss;
mod mail;
mod near;
mod orders;
mod outgoing;
mod overlooked;
mod private;
mod probes;
mod quarantine;
mod relays;
mod report;
mod schedule;
mod timers;
mod tokens;
mod tunnels;
mod unheard;
mod uploads;
mod upstream;
mod usage;
mod watch;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use weir_http::Fields;

use crate::base::keys::{ClientKey, ConnKey, ExchangeKey, Key, ServerIndex};
use crate::base::output::{Out, Output, Spare};
use crate::base::slab::Slab;
use crate::base::stamp::Stamper;
use crate::base::table::{Run, Table};
use crate::base::timer_wheel::Wheel;
use crate::client::connection::{ClientConn, Exchange};
use crate::cross::mail::Post;
use crate::cross::retry_copy::RetryCopies;
use crate::forward::dns_cache::Names;
use crate::forward::lookup::Errand;
use crate::observe::access::Access;
use crate::observe::accounting::Usage;
use crate::observe::counters::Counters;
use crate::observe::histogram::Histogram;
use crate::observe::server_event::{EVENTS_MAX, Event, What};
use crate::observe::server_stats::ServerStats;
use crate::placement::balance::{Balance, Measure, Shared};
use crate::plan::Plan;
use crate::request::pending_request::{ExchangeId, LinkId};
use crate::retry::budget::Budget;
use crate::retry::poison::Suspects;
use crate::upstream::connection::UpstreamConn;
use crate::upstream::health::Window;
use crate::upstream::keepalive_limit::Lasting;
use crate::upstream::places::Places;
use crate::upstream::server::{Limits, Reach, Server};
use crate::upstream::server_state::{Order, ServerState};
use crate::upstream::slow_answer::SlowDetector;
pub use unheard::Delivery;

/// Unsent bytes for one client above which the source of its answer is not read further.
pub const HIGH_BYTES: usize = 128 * 1024;
/// Unsent bytes below which it is read again.
pub const LOW_BYTES: usize = 64 * 1024;

/// What the engine wants done outside.
#[derive(Debug)]
pub enum Action {
    /// Send to a client.
    SendClient {
        /// The driver's name for the connection.
        socket: u64,
        /// What.
        out: Out,
    },
    /// Read a client or stop reading it.
    ReceiveClient {
        /// The driver's name for the connection.
        socket: u64,
        /// Read.
        on: bool,
    },
    /// End the sending direction of a client's connection.
    ShutdownClient {
        /// The driver's name for the connection.
        socket: u64,
    },
    /// End a client's connection.
    CloseClient {
        /// The driver's name for the connection.
        socket: u64,
        /// With a reset, because what the client has is not all and nothing else can say so.
        reset: bool,
    },
    /// Connect to a server; answer with [`Engine::link_started`] or [`Engine::link_connected`].
    Connect {
        /// Names the connection from now on.
        token: u64,
        /// Where to.
        address: SocketAddr,
    },
    /// Send to a server.
    SendLink {
        /// The driver's name for the connection.
        socket: u64,
        /// What.
        out: Out,
    },
    /// Find out which core receives a connection's packets; answer with [`Engine::link_located`].
    LocateLink {
        /// Names the connection in the answer.
        token: u64,
        /// The driver's name for the connection.
        socket: u64,
    },
    /// Find out whether what was sent on a connection was acknowledged; answer with [`Engine::link_examined`].
    ExamineLink {
        /// Names the connection in the answer.
        token: u64,
        /// The driver's name for the connection.
        socket: u64,
    },
    /// Read a server once.
    ReceiveLink {
        /// The driver's name for the connection.
        socket: u64,
    },
    /// Acknowledge what a server sent, at once.
    AcknowledgeLink {
        /// The driver's name for the connection.
        socket: u64,
    },
    /// End the sending direction of a server's connection.
    ShutdownLink {
        /// The driver's name for the connection.
        socket: u64,
    },
    /// Let the driver move the bytes of a tunnel by itself; answer with [`Engine::relay_ended`] when it is over.
    Relay {
        /// The driver's name for the client's connection.
        client: u64,
        /// The driver's name for the server's connection.
        server: u64,
    },
    /// Find out how much a tunnel has moved; answer with [`Engine::relay_looked`].
    LookRelay {
        /// Names the client in the answer.
        token: u64,
        /// The driver's name for the client's connection.
        client: u64,
    },
    /// End a server's connection.
    CloseLink {
        /// The driver's name for the connection.
        socket: u64,
    },
}

/// Received bytes as the machines read them: a slice, and the memory behind it when that may be kept.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    bytes: &'a [u8],
    shared: Option<&'a Bytes>,
}

/// Pieces of at least this many bytes are kept by reference when possible.
const KEEP_BYTES_MIN: usize = 4096;

impl<'a> Input<'a> {
    /// Bytes that must be copied to be kept.
    pub fn borrowed(bytes: &'a [u8]) -> Input<'a> {
        Input { bytes, shared: None }
    }

    /// Bytes whose memory may be kept.
    pub fn shared(bytes: &'a Bytes) -> Input<'a> {
        Input { bytes, shared: Some(bytes) }
    }

    /// A part of the input, by reference where that is cheaper than a copy.
    pub(crate) fn piece(&self, range: Range<usize>) -> Piece<'a> {
        match self.shared {
            Some(bytes) if range.len() >= KEEP_BYTES_MIN => Piece::Kept(bytes.slice(range)),
            _ => Piece::Borrowed(&self.bytes[range]),
        }
    }
}

/// A part of a body on its way.
#[derive(Debug)]
pub(crate) enum Piece<'a> {
    /// To be copied.
    Borrowed(&'a [u8]),
    /// To be passed on.
    Kept(Bytes),
}

impl Piece<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Borrowed(bytes) => bytes,
            Piece::Kept(bytes) => bytes,
        }
    }

    fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Appends the piece to an output.
    fn push_to(self, output: &mut Output, spare: &mut Spare) {
        match self {
            Piece::Borrowed(bytes) if bytes.len() >= KEEP_BYTES_MIN => {
                output.push(Bytes::copy_from_slice(bytes), spare)
            }
            Piece::Borrowed(bytes) => output.tail(spare).extend_from_slice(bytes),
            Piece::Kept(bytes) => output.push(bytes, spare),
        }
    }
}

/// Bit of a number of connections: another one can be made, as far as is known.
const HOPEFUL: u32 = 1 << 31;

/// What workers know of each other without mail: how many connections to each server are up, and what an operator ordered.
/// Read without locks; it outlives the machines of a worker.
#[derive(Debug)]
pub struct Hints {
    ready: Vec<AtomicU32>,
    /// By server: whether its connections live for more than one answer.
    lasting: Vec<Lasting>,
    /// By server: index in [`Order::ALL`]. All workers write the same.
    orders: Vec<AtomicU8>,
    /// By server: from when on a request may be tried on it while it is suspended.
    trials_us: Vec<AtomicU64>,
    /// By the first server of an upstream: who has sent a request from the quarantine, and until when others wait; 0: nobody.
    quarantines: Vec<AtomicU64>,
    /// By server: when a client last had a good answer to what a probe would ask; 0: never.
    proved_us: Vec<AtomicU64>,
    /// By server: whether it answers few connections at a time.
    places: Vec<Places>,
    shared: Shared,
    workers: usize,
}

impl Hints {
    /// For so many servers (of all upstreams together) and workers.
    pub fn new(servers: usize, workers: usize) -> Hints {
        Hints {
            ready: (0..servers * workers).map(|_| AtomicU32::new(0)).collect(),
            lasting: (0..servers).map(|_| Lasting::default()).collect(),
            orders: (0..servers).map(|_| AtomicU8::new(Order::default() as u8)).collect(),
            trials_us: (0..servers).map(|_| AtomicU64::new(u64::MAX)).collect(),
            quarantines: (0..servers).map(|_| AtomicU64::new(0)).collect(),
            proved_us: (0..servers).map(|_| AtomicU64::new(0)).collect(),
            places: (0..servers).map(|_| Places::default()).collect(),
            shared: Shared::new(servers, workers),
            workers,
        }
    }

    /// Connections of a worker to a server that are up.
    pub fn ready(&self, server: ServerIndex, worker: usize) -> u32 {
        self.ready[server.index() * self.workers + worker].load(Ordering::Relaxed) & !HOPEFUL
    }

    /// Whether a worker has a connection to a server, or can have one as far as it knows.
    fn is_able(&self, server: ServerIndex, worker: usize) -> bool {
        self.ready[server.index() * self.workers + worker].load(Ordering::Relaxed) > 0
    }

    /// What they tell each other for balancing.
    fn shared(&self) -> &Shared {
        &self.shared
    }

    fn places(&self, server: ServerIndex) -> &Places {
        &self.places[server.index()]
    }

    fn set_ready(&self, server: ServerIndex, worker: usize, ready: u32, hopeful: bool) {
        let word = ready | if hopeful { HOPEFUL } else { 0 };
        self.ready[server.index() * self.workers + worker].store(word, Ordering::Relaxed);
    }

    /// What an operator last ordered of a server.
    pub fn order(&self, server: ServerIndex) -> Order {
        Order::ALL[usize::from(self.orders[server.index()].load(Ordering::Relaxed))]
    }

    fn set_order(&self, server: ServerIndex, order: Order) {
        self.orders[server.index()].store(order as u8, Ordering::Relaxed);
    }

    fn proved_us(&self, server: ServerIndex) -> u64 {
        self.proved_us[server.index()].load(Ordering::Relaxed)
    }

    fn set_proved(&self, server: ServerIndex, now_us: u64) {
        self.proved_us[server.index()].store(now_us, Ordering::Relaxed);
    }

    fn trial_us(&self, server: ServerIndex) -> u64 {
        self.trials_us[server.index()].load(Ordering::Relaxed)
    }

    fn set_trial(&self, server: ServerIndex, due_us: u64) {
        self.trials_us[server.index()].store(due_us, Ordering::Relaxed);
    }

    /// Takes the quarantine of an upstream for one request.
    ///
    /// # Errors
    /// Who has it: as returned by [`Hints::hold_quarantine`].
    fn take_quarantine(&self, first: ServerIndex, before: u64, hold: u64) -> Result<u64, u64> {
        self.quarantines[first.index()].compare_exchange(before, hold, Ordering::Relaxed, Ordering::Relaxed)
    }

    /// Names who has a quarantine: until when, and which worker.
    fn hold_quarantine(worker: u16, until_us: u64) -> u64 {
        until_us << 16 | u64::from(worker)
    }

    /// Takes the trial that is due: one worker gets true, and the next one comes at `next_us` if no verdict does before.
    fn take_trial(&self, server: ServerIndex, due_us: u64, next_us: u64) -> bool {
        let trial = &self.trials_us[server.index()];
        trial.compare_exchange(due_us, next_us, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// What an engine is made of from outside.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The configuration.
    pub plan: Arc<Plan>,
    /// This worker's number, below `workers`.
    pub worker: u16,
    /// Workers in all, at least 1.
    pub workers: u16,
    /// Makes jitter differ between runs and workers.
    pub seed: u64,
    /// Key of the identifiers for `echo`; unpredictable and different for each worker.
    pub secret: [u64; 2],
    /// Shared by all workers.
    pub hints: Arc<Hints>,
    /// Written by this worker only.
    pub counters: Arc<Counters>,
    /// Time from the receipt of a request to the end of its answer, microseconds; written by this worker only.
    pub latency: Arc<Histogram>,
    /// One for each server, upstream after upstream; written by this worker only. What is missing is counted for nobody.
    pub servers: Vec<Arc<ServerStats>>,
    /// The driver moves the bytes of tunnels by itself ([`Action::Relay`]).
    pub relays: bool,
}

/// The servers of one upstream.
#[derive(Debug)]
struct Group {
    servers: Run<ServerIndex>,
    /// How many of them health has suspended.
    suspended: u32,
    /// None for a single server.
    balance: Option<Box<Balance>>,
    budget: Budget,
    quarantine: quarantine::Quarantine,
}

/// All machines of one worker.
#[derive(Debug)]
pub struct Engine {
    plan: Arc<Plan>,
    worker: u16,
    workers: u16,
    hints: Arc<Hints>,
    counters: Arc<Counters>,
    latency: Arc<Histogram>,
    /// None: no log is configured.
    access: Option<Box<Access>>,
    now_us: u64,
    sessions: Slab<ClientKey, ClientConn>,
    exchanges: Slab<ExchangeKey, Exchange>,
    links: Slab<ConnKey, UpstreamConn>,
    servers: Table<ServerIndex, Server>,
    /// By server: its probes, where this worker makes them.
    probers: Table<ServerIndex, Option<probes::Prober>>,
    groups: Vec<Group>,
    fields: Fields,
    path: Vec<u8>,
    /// Servers in the order in which one request looks for a second one; kept for its memory.
    order: Vec<usize>,
    spare: Spare,
    shelf: RetryCopies,
    wheel: Wheel,
    expired: Vec<u64>,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
    dirty_sessions: Vec<ClientKey>,
    dirty_links: Vec<ConnKey>,
    to_parse: VecDeque<(ClientKey, u32)>,
    doomed: Vec<(ConnKey, u32)>,
    /// Requests that were cancelled in this turn and that some connection may carry; and whether that has to end.
    cancelled: Vec<(ExchangeId, bool)>,
    /// Connections that received answers of a pipeline in this turn, and what had been given to the driver by then.
    to_acknowledge: Vec<(ConnKey, u32, u64)>,
    synced: Vec<(ConnKey, u32)>,
    synced_before: Vec<(ConnKey, u32)>,
    /// Connections that ran empty in this turn and are to be looked at, with the number of their answers.
    emptied: Vec<(ConnKey, u32, u64)>,
    /// The same in turns before, as long as others are preferred to them.
    emptied_before: Vec<(ConnKey, u32, u64)>,
    posts: Vec<Post>,
    stamper: Stamper,
    serial: u64,
    suspects: Suspects,
    /// When the next request in quarantine may be sent; never while there is none.
    quarantine_due_us: u64,
    /// One that this worker has sent may be on another worker's connection.
    quarantined_away: bool,
    swept_us: u64,
    seed: u64,
    /// Some upstream is balanced by what all workers have at its servers.
    shares_loads: bool,
    /// Some upstream has connections of single clients or requests.
    has_private: bool,
    /// Requests for which no connection could be made and that wait for the next round.
    parked: u32,
    /// The driver moves the bytes of tunnels.
    relays: bool,
    /// Tunnels whose bytes the driver may move as soon as it has all that came before.
    to_relay: Vec<(ClientKey, u32)>,
    /// Of destinations of the forward proxy.
    names: Names,
    /// What clients of the forward proxy do.
    usage: Usage,
    /// For the side thread.
    errands: VecDeque<Errand>,
    /// The clock on the wall less the engine's time, microseconds.
    wall_offset_us: i64,
    /// The second of the clock on the wall that `date` shows; None until somebody has told the time.
    date_s: Option<i64>,
    date: [u8; 29],
    /// When draining began, or the last client was accepted after that.
    draining_us: Option<u64>,
    /// How often this worker has begun anew.
    life: u32,
    /// By worker: does not know yet of this life.
    strangers: Vec<bool>,
}

impl Engine {
    /// An engine with the upstream connections that it keeps due to be made. `now_us` is the time of the first turn.
    pub fn new(parts: Parts, now_us: u64) -> Engine {
        let plan = parts.plan;
        let mut engine = Engine {
            worker: parts.worker,
            workers: parts.workers,
            hints: parts.hints,
            counters: parts.counters,
            latency: parts.latency,
            access: Access::new(&plan, parts.worker),
            now_us,
            sessions: Slab::default(),
            exchanges: Slab::default(),
            links: Slab::default(),
            servers: Table::default(),
            probers: Table::default(),
            groups: Vec::new(),
            fields: Fields::default(),
            path: Vec::new(),
            order: Vec::new(),
            spare: Spare::default(),
            shelf: RetryCopies::default(),
            wheel: Wheel::new(now_us),
            expired: Vec::new(),
            actions: VecDeque::new(),
            events: VecDeque::new(),
            dirty_sessions: Vec::new(),
            dirty_links: Vec::new(),
            to_parse: VecDeque::new(),
            doomed: Vec::new(),
            cancelled: Vec::new(),
            to_acknowledge: Vec::new(),
            synced: Vec::new(),
            synced_before: Vec::new(),
            emptied: Vec::new(),
            emptied_before: Vec::new(),
            posts: (0..parts.workers).map(|_| Post::default()).collect(),
            stamper: Stamper::new(parts.secret),
            serial: 0,
            suspects: Suspects::new(plan.upstreams.iter().map(|upstream| upstream.servers.len()).sum()),
            quarantine_due_us: u64::MAX,
            quarantined_away: false,
            swept_us: now_us,
            seed: parts.seed,
            shares_loads: false,
            parked: 0,
            relays: parts.relays,
            to_relay: Vec::new(),
            names: Names::default(),
            usage: Usage::default(),
            errands: VecDeque::new(),
            wall_offset_us: 0,
            date_s: None,
            date: weir_http::http_date(0),
            has_private: plan.upstreams.iter().any(|upstream| upstream.pool.is_private()),
            draining_us: None,
            life: 0,
            strangers: vec![false; usize::from(parts.workers)],
            plan: Arc::clone(&plan),
        };
        let mut stats = parts.servers.into_iter();
        for index in 0..plan.upstreams.len() {
            engine.add_group(index, &mut stats);
        }
        engine.begin_probing();
        engine.shares_loads = engine.must_share_loads();
        engine
    }

    /// The servers of an upstream, each of which counts into the next one of `stats`.
    fn add_group(&mut self, index: usize, stats: &mut impl Iterator<Item = Arc<ServerStats>>) {
        let plan = Arc::clone(&self.plan);
        let upstream = &plan.upstreams[index];
        let first = self.servers.next();
        for position in 0..upstream.servers.len() {
            self.add_server(index, position, stats.next().unwrap_or_default());
        }
        let several = upstream.servers.len() > 1;
        let balance = several.then(|| Box::new(Balance::new(upstream, self.worker, self.seed)));
        let budget = Budget::new(upstream.retry_budget_percent, self.now_us);
        let quarantine = quarantine::Quarantine::default();
        let servers = Run::new(first, upstream.servers.len());
        self.groups.push(Group { servers, suspended: 0, balance, budget, quarantine });
    }

    /// A server with the connections that are kept to it.
    fn add_server(&mut self, upstream: usize, index: usize, stats: Arc<ServerStats>) {
        let plan = &self.plan.upstreams[upstream];
        let server = self.servers.next();
        let (limits, total) = match plan.pool.is_private() {
            true => (Limits::default(), 0),
            false => {
                let server_plan = &plan.servers[index];
                (Limits::of(server_plan, server, self.worker, self.workers), server_plan.connections)
            }
        };
        let mut machine = Server::new(plan, upstream as u16, index as u16, stats, limits, total);
        machine.standing = ServerState::new(self.hints.order(server));
        machine.anywhere = self.is_anywhere(upstream as u16);
        machine.usual = SlowDetector::new(plan.escape);
        machine.lasting = self.hints.lasting[server.index()].clone();
        machine.notable_from = plan.notable_from();
        machine.windows = plan.failover.iter().map(|rule| Window::new(rule.limit, rule.window_us)).collect();
        if plan.servers.len() > 1 {
            machine.measure = plan.balance.statistic().map(|by| Box::new(Measure::new(by)));
        }
        if plan.servers[index].connections_min == 0 {
            // Nobody finds out before a request needs it.
            machine.reach = Reach::Proven;
        }
        self.servers.push(machine);
        for _ in 0..limits.min {
            let link = self.add_position(server);
            // One that is disabled parks its connections when they come to be made.
            self.arm_link(link, self.now_us);
        }
        self.publish_ready(server);
    }

    /// Begins a turn at this time (microseconds, monotonic, never less than before).
    pub fn begin_turn(&mut self, now_us: u64) {
        debug_assert!(now_us >= self.now_us);
        self.now_us = now_us;
        self.counters.turns.add(1);
    }

    /// When the engine wants to be called again at the latest.
    pub fn next_deadline(&self) -> Option<u64> {
        if !self.synced.is_empty() || !self.to_parse.is_empty() || self.awaits_look() {
            return Some(self.now_us);
        }
        let holds = |link: &&(ConnKey, u32)| self.links.holds(link.0, link.1);
        let syncing = self.synced_before.iter().filter(holds).map(|link| self.links.at(link.0).rest_until_us);
        let quarantine = (self.quarantine_due_us < u64::MAX).then_some(self.quarantine_due_us);
        syncing.chain(self.wheel.next_due()).chain(quarantine).min()
    }

    /// Client connections.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Requests without a complete answer.
    pub fn exchanges(&self) -> usize {
        self.exchanges.len()
    }

    /// Finishes what is under way: clients are closed after their answers, idle ones soon. So are those that are accepted from
    /// now on, who had connected before.
    pub fn drain(&mut self) {
        self.draining_us.get_or_insert(self.now_us);
        let all: Vec<ClientKey> = self.sessions.keys().collect();
        for index in all {
            self.drain_session(index);
        }
    }

    /// Whether draining has come to its end.
    pub fn is_drained(&self) -> bool {
        self.is_draining() && self.sessions.is_empty()
    }

    /// Whether clients are closed as soon as they have what they asked for.
    fn is_draining(&self) -> bool {
        self.draining_us.is_some()
    }

    /// The next thing to do outside, or None when all is done for now.
    pub fn poll_action(&mut self) -> Option<Action> {
        loop {
            if let Some(action) = self.actions.pop_front() {
                return Some(action);
            }
            if !self.cancelled.is_empty() {
                self.find_cancelled();
                continue;
            }
            if !self.doomed.is_empty() {
                self.end_doomed();
                continue;
            }
            if let Some((index, generation)) = self.to_parse.pop_front() {
                if self.sessions.holds(index, generation) {
                    self.parse_stash(index);
                }
                continue;
            }
            if let Some(index) = self.dirty_links.pop() {
                if let Some(action) = self.flush_link(index) {
                    return Some(action);
                }
                continue;
            }
            if let Some(received) = self.to_acknowledge.pop() {
                if let Some(action) = self.acknowledge(received) {
                    return Some(action);
                }
                continue;
            }
            if let Some(index) = self.dirty_sessions.pop() {
                if let Some(action) = self.flush_session(index) {
                    return Some(action);
                }
                continue;
            }
            let (index, generation) = self.to_relay.pop()?;
            if self.sessions.holds(index, generation)
                && let Some(action) = self.begin_relay(index)
            {
                return Some(action);
            }
        }
    }

    /// Call after all events of a turn were handled, before polling actions: timers, sync points.
    pub fn settle(&mut self) {
        self.run_timers();
        self.sweep();
        self.reopen_synced();
        self.look_at_emptied();
        self.run_quarantine();
        self.publish_loads();
    }

    /// What is worth a line in the log, oldest first. Call until None after each turn.
    pub fn take_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn note_event(&mut self, server: ServerIndex, what: What) {
        if self.events.len() < EVENTS_MAX {
            self.events.push_back(Event { server: server.number(), what });
        } else {
            self.counters.events_lost.add(1);
        }
    }

    /// Mail for another worker, if there is any.
    pub fn take_post(&mut self, worker: u16) -> Option<Post> {
        let post = &mut self.posts[usize::from(worker)];
        if post.is_empty() { None } else { Some(std::mem::take(post)) }
    }

    /// Gives mail back that could not be delivered; it is kept in front of newer mail.
    pub fn return_post(&mut self, worker: u16, mut post: Post) {
        self.counters.mail_delayed.add(1);
        let newer = std::mem::take(&mut self.posts[usize::from(worker)]);
        post.append(newer);
        self.posts[usize::from(worker)] = post;
    }

    fn link_id(&self, index: ConnKey) -> LinkId {
        LinkId { worker: self.worker, index, generation: self.links.generation(index) }
    }

    fn exchange_id(&self, index: ExchangeKey) -> ExchangeId {
        ExchangeId { worker: self.worker, index, generation: self.exchanges.generation(index) }
    }
}
