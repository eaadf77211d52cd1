//! Runs a scenario to its end and judges it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;

use weir_io::sim::{Actor, Faults, Ledger, Rng, SimWorld};

use weir_proxy::observe::counters::{Counters, Kind as CounterKind};
use weir_proxy::observe::server_stats::ServerStats;
use weir_proxy::plan::{PipelineMode, Pool, ServerPlan, UpstreamPlan};
use weir_proxy::shield::bans::Offence;

use super::book::{Book, Entry, Outcome, SharedBook, Traffic};
use super::client::Client;
use super::dials;
use super::http2::{Http2Client, MISDIRECTED};
use super::node::{Fault, Node, nodes};
use super::operator::Operator;
use super::relay::Relay;
use super::scenario::{
    Kind, Scenario, Sealed, listen_address, relay_address, server_address, server_relay_address,
};
use super::server::Server;
use super::through::Journeys;
use super::watch::Watch;

/// Virtual time in which every client must have come to its end, microseconds. weir's limits end
/// what hangs: a minute for a response to begin, a minute of silence within one of a hostile
/// server, a minute for a send to be taken. A client may send thirty requests.
const CLIENTS_US_MAX: u64 = 3_600_000_000;
/// The default of `forward-retries`: enough for whatever happens in [`Kind::Outages`].
const RETRIES: u32 = 5;
/// Steps after which an unfinished run counts as endless.
const STEPS_MAX: u64 = 20_000_000;
/// Time after the last client for everything to calm down: more than the longest timeout of weir, a
/// minute.
const QUIET_US: u64 = 100_000_000;

/// The outcomes of a run, for tests that look at many.
pub struct Summary {
    pub answered: usize,
    pub refused: usize,
    pub cut: usize,
    pub rebirths: u64,
    pub depth_max: usize,
    pub suspensions: u64,
    pub trials: u64,
    pub probes: u64,
    /// Connections that went from one worker to another.
    pub moved: u64,
    /// Requests of sessions, and requests that backups got.
    pub bound: usize,
    pub backed_up: u64,
    pub trace_hash: u64,
}

/// Panics still to come: `left` of them, each within `within` commands of a driver after the one
/// before, or sooner.
struct Panics {
    left: u32,
    within: u64,
    rng: Rng,
}

impl Panics {
    fn draw(&mut self, scenario: &Scenario) -> Fault {
        // The TLS layer issues its own commands, between two events of a worker; a driver does not
        // panic.
        let is_sealed = scenario.sealed != Sealed::default();
        match self.rng.below(if scenario.workers > 1 { 4 } else { 3 }) {
            3 => Fault::Mail,
            0 => Fault::Event(self.rng.below(1 << 20)),
            _ if is_sealed => Fault::Event(self.rng.below(1 << 20)),
            _ => Fault::Command(self.rng.between(1, self.within)),
        }
    }
}

/// A run in progress.
pub struct Run {
    pub scenario: Scenario,
    pub world: SimWorld,
    pub book: SharedBook,
    nodes: Rc<RefCell<Vec<Node>>>,
    /// Clients besides those of the scenario.
    added: Cell<usize>,
    draining: Cell<bool>,
    panics: RefCell<Panics>,
    watch: RefCell<Watch>,
    /// Draws which worker gives connections away.
    moves: RefCell<Rng>,
}

impl Run {
    pub fn new(scenario: Scenario) -> Run {
        let world = SimWorld::new(scenario.seed, scenario.settings.clone());
        if std::env::var_os("WEIR_SIM_TRACE").is_some() {
            world.keep_lines();
        }
        let book = SharedBook::default();
        // Elsewhere connections also end for reasons that don't count as tries.
        let judged = matches!(scenario.kind, Kind::Breaking | Kind::Outages);
        let upstream = &scenario.plan.upstreams[0];
        {
            let book = &mut *book.borrow_mut();
            book.tries_max = judged.then_some(upstream.retry.per_request_max);
            book.cookies = cookies(upstream);
            book.keeps_sessions = scenario.is_tied() || scenario.is_always_up();
            book.repeats_all = upstream.retry.nonidempotent;
        }
        for (index, style) in scenario.styles.iter().enumerate() {
            world.actor(Server::new(scenario.server_address(index), &book, style.clone()));
        }
        if scenario.is_between {
            let servers = (0..scenario.styles.len()).map(|server| scenario.server_address(server));
            servers.for_each(|server| world.lead(server, listen_address()));
            let keeps_ports =
                scenario.plan.upstreams[0].is_tcp() && scenario.settings.faults.port_taken == 0;
            book.borrow_mut().journeys = Some(Journeys::new(keeps_ports));
        }
        add_relays(&world, &scenario);
        let nodes = nodes(&world, &scenario);
        if !scenario.orders.is_empty() {
            let controls = nodes.iter().map(Node::control).collect();
            let servers = nodes.iter().map(|node| node.servers().to_vec()).collect();
            let plan = Arc::clone(&scenario.plan);
            world.actor(Operator { orders: scenario.orders.clone(), controls, plan, servers });
        }
        let watch = RefCell::new(Watch::new(&scenario));
        let moves = RefCell::new(Rng::new(scenario.seed ^ 0x90fe));
        let run = Run {
            scenario,
            world,
            book,
            nodes: Rc::new(RefCell::new(nodes)),
            added: Cell::new(0),
            draining: Cell::new(false),
            panics: RefCell::new(Panics { left: 0, within: 0, rng: Rng::new(0) }),
            watch,
            moves,
        };
        run.add_clients();
        run
    }

    fn add_clients(&self) {
        let rng = &mut Rng::new(self.scenario.seed ^ 0xc11e);
        let spread_us = *rng.pick(&[1, 10_000, 5_000_000]);
        for number in 0..self.scenario.clients {
            let start_us = rng.below(spread_us);
            let Scenario { manners, http2, .. } = &self.scenario;
            if *http2 > 0 && rng.chance(*http2) {
                self.world.actor(Http2Client::random(
                    number,
                    self.scenario.door(true),
                    start_us,
                    &self.book,
                    manners,
                    rng,
                ));
            } else {
                let door = self.scenario.door_of(number);
                self.world.actor(Client::random(number, door, start_us, &self.book, manners, rng));
            }
        }
    }

    /// Adds a client to those of the scenario.
    pub fn add<A: Actor + 'static>(&self, make: impl FnOnce(&SharedBook) -> A) {
        self.added.set(self.added.get() + 1);
        self.world.actor(make(&self.book));
    }

    /// Lets the workers panic `times` times in all, each within `within` commands after the one
    /// before.
    pub fn panic(&self, times: u32, within: u64) {
        *self.panics.borrow_mut() =
            Panics { left: times, within, rng: Rng::new(self.scenario.seed ^ 0xb0b) };
    }

    /// Lets time pass until `done`, at most `time_us`.
    pub fn pass(&self, time_us: u64, done: impl FnMut() -> bool) -> bool {
        let until_us = self.world.now_us() + time_us;
        let turn = |index: usize| {
            let node = &mut self.nodes.borrow_mut()[index];
            let panics = &mut *self.panics.borrow_mut();
            if panics.left > 0 && !node.is_faulty() {
                panics.left -= 1;
                node.set_fault(panics.draw(&self.scenario));
            }
            let moves = &mut *self.moves.borrow_mut();
            if self.scenario.moves > 0 && moves.chance(self.scenario.moves) {
                node.shed(
                    moves.index(usize::from(self.scenario.workers)) as u16,
                    moves.between(1, 4) as u32,
                );
            }
            node.turn();
            if let Err(text) = node.engine().audit().and_then(|()| node.engine().audit_bytes()) {
                self.fail(&format!("worker {index}: {text}"));
            }
            if let Err(text) = self.watch.borrow_mut().turned(index, node) {
                self.fail(&format!("worker {index}: {text}"));
            }
        };
        self.world.run(until_us, STEPS_MAX, turn, done)
    }

    /// Lets time pass until every client has come to its end. False: not all did in
    /// [`CLIENTS_US_MAX`].
    pub fn pass_clients(&self) -> bool {
        let all = self.scenario.clients + self.added.get();
        self.pass(CLIENTS_US_MAX, || self.book.borrow().clients_done == all)
    }

    /// Runs from the first client to the last descriptor.
    pub fn finish(self) -> Summary {
        self.finish_with(|_| Ok(()))
    }

    /// The same; returns the counters of its workers.
    pub fn finish_counting(self, count: impl Fn(&Counters) -> (u64, u64, u64)) -> (u64, u64, u64) {
        let nodes = Rc::clone(&self.nodes);
        self.finish();
        let counts = nodes.borrow().iter().map(|node| count(node.counters())).collect::<Vec<_>>();
        counts.into_iter().fold((0, 0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1, sum.2 + of.2))
    }

    /// The same, with a judge of the outcomes.
    pub fn finish_with(self, judge: impl FnOnce(&Book) -> Result<(), String>) -> Summary {
        let all = self.scenario.clients + self.added.get();
        if !self.pass_clients() {
            let book = self.book.borrow();
            let waiting =
                book.entries.iter().filter(|(_, entry)| entry.outcome == Outcome::Waiting);
            let waiting: Vec<String> =
                waiting.take(8).map(|(nonce, entry)| waiting_text(nonce, entry)).collect();
            let text = format!(
                "{} of {all} clients came to an end; waiting: {waiting:?}",
                book.clients_done
            );
            drop(book);
            self.fail(&text);
        }
        self.panics.borrow_mut().left = 0;
        self.nodes.borrow().iter().for_each(|node| node.set_fault(Fault::None));
        self.world.set_faults(Faults { latency_us: 50, ..Faults::none() });
        self.pass(QUIET_US, || false);
        self.check_panics();
        self.check_book();
        self.check_requests();
        self.check_cuts();
        let verdict = judge(&self.book.borrow());
        if let Err(text) = verdict {
            self.fail(&text);
        }
        self.check_traffic();
        self.check_at_rest();
        let summary = self.summary();
        self.check_drained();
        summary
    }

    /// A sum over all workers.
    pub fn count(&self, count: impl Fn(&Counters) -> u64) -> u64 {
        self.nodes.borrow().iter().map(|node| count(node.counters())).sum()
    }

    /// The clients that the workers want banned since the last call.
    pub fn offences(&self) -> Vec<Offence> {
        self.nodes.borrow().iter().flat_map(Node::offences).collect()
    }

    fn check_book(&self) {
        let book = self.book.borrow();
        if !book.violations.is_empty() {
            let text = book.violations.join("\n  ");
            drop(book);
            self.fail(&format!("promises were broken:\n  {text}"));
        }
        if book.cut_frames > 0 && self.scenario.kind == Kind::Calm {
            drop(book);
            self.fail("a connection was ended in order, but within a frame");
        }
        let faults: Vec<u32> = book.goaways.iter().copied().filter(|code| *code != 0).collect();
        if !(faults.is_empty() || book.has_offenders) {
            drop(book);
            self.fail(&format!("GOAWAY with {faults:?} to clients that did nothing wrong"));
        }
        let upstream = &self.scenario.plan.upstreams[0];
        let most = match upstream.pipeline {
            // Everything that clients send passes.
            _ if upstream.is_tcp() => usize::MAX,
            _ if !Pool::PIPELINED.contains(&upstream.pool) => 1,
            PipelineMode::Off => 1,
            PipelineMode::Depth(depth) => depth as usize,
            PipelineMode::Adaptive if upstream.sharing.rehearse.is_some() => usize::MAX,
            // Each target is requested once, so that a server can't be rehearsed.
            PipelineMode::Adaptive => 1,
        };
        if book.depth_max > most {
            let depth = book.depth_max;
            drop(book);
            self.fail(&format!("{depth} requests unanswered on one connection, {most} allowed"));
        }
        let mut wrong = String::new();
        let fewer_tries = self.scenario.plan.upstreams[0].retry.per_request_max < RETRIES;
        let mut exceeded = if fewer_tries {
            self.count(|counters| counters.refusals.get("retries-exceeded"))
        } else {
            0
        };
        // The nonces are in the order of each client's requests.
        let mut excused = None;
        for (nonce, entry) in &book.entries {
            let client = &nonce[..4];
            let is_excused = excused == Some(client) && entry.outcome == Outcome::Cut;
            let was_cut = self.scenario.kind == Kind::Outages && entry.outcome == Outcome::Cut;
            // A body of any length may be forwarded as it comes; when it is lost, the client's
            // connection ends.
            if was_cut
                || !entry.asked.body.is_empty() && matches!(entry.outcome, Outcome::Refused(_))
            {
                excused = Some(client);
            }
            let acceptable = is_excused || self.is_acceptable(&book, nonce);
            if !acceptable && exceeded > 0 && entry.outcome == Outcome::Refused(502) {
                exceeded -= 1;
            } else if !acceptable && wrong.len() < 2_000 {
                let arrivals = entry.arrivals.len();
                let _ = write!(
                    wrong,
                    "\n  {} {nonce}: {:?}, {arrivals} arrivals",
                    entry.asked.method, entry.outcome
                );
            }
        }
        drop(book);
        if !wrong.is_empty() {
            self.fail(&format!("outcomes that nothing excuses:{wrong}"));
        }
    }

    /// Whether this outcome is allowed, given the faults of the run.
    fn is_acceptable(&self, book: &Book, nonce: &str) -> bool {
        let entry = &book.entries[nonce];
        let upstream = &self.scenario.plan.upstreams[0];
        let repeatable =
            (entry.asked.is_idempotent() || book.repeats_all) && !entry.asked.is_streamed();
        if self.is_for_want_of_servers(entry) {
            return true;
        }
        match (self.scenario.kind, &entry.outcome) {
            (_, Outcome::Waiting) => false,
            (_, Outcome::Answered | Outcome::GivenUp) => true,
            // Private connections of a client are not for streams.
            (_, Outcome::Refused(MISDIRECTED)) => {
                self.scenario.http2 > 0 && upstream.pool.is_private()
            }
            (Kind::Hostile, _) => true,
            // Behind a response that ends by close it is unknown whether the request was processed.
            (Kind::Calm, outcome) => {
                *outcome == Outcome::Refused(502) && !repeatable && self.may_end_by_close()
            }
            (Kind::Closing, outcome) => *outcome == Outcome::Refused(502) && !repeatable,
            (Kind::Breaking, outcome) => matches!(outcome, Outcome::Refused(502) | Outcome::Cut),
            (Kind::Outages, Outcome::Cut) => entry.delivered,
            (Kind::Outages, outcome) => *outcome == Outcome::Refused(502) && !repeatable,
            // Clients of the worker lose their connections; requests of others there may be
            // processed or not. But repeatable requests are repeated, once.
            (Kind::Panicking, Outcome::Refused(502)) => {
                !repeatable || self.count(|counters| counters.rebirths.get()) > 1
            }
            (Kind::Panicking, outcome) => matches!(outcome, Outcome::Refused(503) | Outcome::Cut),
            (Kind::Rough, outcome) => {
                matches!(outcome, Outcome::Refused(400 | 408 | 502 | 503 | 504) | Outcome::Cut)
            }
        }
    }

    /// Whether all servers were out when it was refused, or the server to which it was bound.
    fn is_for_want_of_servers(&self, entry: &Entry) -> bool {
        let tied = self.scenario.is_tied() && entry.bound.is_some();
        let out = self.scenario.has_judges() || self.scenario.kind == Kind::Outages;
        match entry.outcome {
            Outcome::Refused(503) => self.watch.borrow().none_left || tied && out,
            Outcome::Refused(502) => tied && out,
            _ => false,
        }
    }

    fn may_end_by_close(&self) -> bool {
        self.scenario.styles.iter().any(|style| style.until_close > 0)
    }

    /// Checks that weir has counted the bytes that the others sent and received, where nothing is
    /// lost on the way.
    fn check_traffic(&self) {
        if self.scenario.kind != Kind::Calm {
            return;
        }
        let mut seen = Traffic::default();
        for node in self.nodes.borrow().iter() {
            let counters = node.counters();
            seen.clients_sent += counters.client_bytes_in.get();
            seen.clients_got += counters.client_bytes_out.get();
            seen.servers_sent += counters.upstream_bytes_in.get();
            seen.servers_got += counters.upstream_bytes_out.get();
        }
        let expected = self.book.borrow().traffic;
        // Or a response was not read to its end, because its request was sent elsewhere.
        let closes = |why| self.count(|counters| counters.upstream_closes.get(why));
        let unwanted = closes("client-gone") + closes("cancelled") + closes("overlooked") > 0;
        let was_set_aside = unwanted || self.count(|counters| counters.set_aside.get()) > 0;
        if was_set_aside || self.may_end_by_close() {
            // A server need not read requests behind a response that ended by close, or requests
            // that move elsewhere.
            seen.servers_got -= seen.servers_got.saturating_sub(expected.servers_got);
        }
        if was_set_aside {
            // weir ends such a connection with responses on the way, and gets those elsewhere.
            seen.servers_sent += expected.servers_sent.saturating_sub(seen.servers_sent);
        }
        if seen != expected {
            self.fail(&format!("weir counted {seen:?}, the others {expected:?}"));
        }
    }

    /// Checks the clients that were cut off. A worker that panics takes its own clients with it. It
    /// may also cut off a response of others that had begun, or the body of a request.
    fn check_cuts(&self) {
        let book = self.book.borrow();
        let mut firsts = BTreeMap::new();
        let is_missing =
            |entry: &Entry| !matches!(entry.outcome, Outcome::Answered | Outcome::GivenUp);
        for (nonce, entry) in book.entries.iter().filter(|(_, entry)| is_missing(entry)) {
            firsts.entry(&nonce[..4]).or_insert(entry);
        }
        let cut = firsts
            .values()
            .filter(|entry| entry.outcome == Outcome::Cut && !entry.delivered)
            .count() as u64;
        drop(firsts);
        let clients = self.nodes.borrow().iter().map(Node::clients_lost).sum();
        drop(book);
        if self.scenario.kind == Kind::Panicking && cut > clients {
            self.fail(&format!(
                "{cut} clients were cut off, {clients} were connected to workers that panicked"
            ));
        }
    }

    /// Checks the requests that weir counts for servers: all client requests where no connection
    /// ended, and no probe.
    fn check_requests(&self) {
        let (book, nodes) = (self.book.borrow(), self.nodes.borrow());
        let mut wrong = Vec::new();
        // A forward proxy has one for all destinations.
        let servers = self
            .scenario
            .plan
            .upstreams
            .iter()
            .map(|upstream| upstream.servers.len())
            .sum::<usize>();
        for server in 0..servers {
            let sum = |count: fn(&ServerStats) -> u64| {
                nodes.iter().map(|node| count(&node.servers()[server])).sum::<u64>()
            };
            let is_here = |at: &usize| *at.min(&(servers - 1)) == server;
            let seen = |counts: &BTreeMap<usize, u64>| -> u64 {
                counts.iter().filter(|(at, _)| is_here(at)).map(|(_, count)| count).sum()
            };
            let (requests, arrivals) = (sum(|stats| stats.requests.get()), seen(&book.arrivals));
            let whole = sum(|stats| stats.closes.sum()) == 0 && self.scenario.kind == Kind::Calm;
            // For plain TCP, connections are counted.
            let requests =
                if self.scenario.plan.upstreams[0].is_tcp() { u64::MAX } else { requests };
            let whole = whole && requests < u64::MAX;
            if arrivals > requests || whole && arrivals != requests {
                wrong.push(format!(
                    "server {server} got {arrivals} requests, weir counted {requests}"
                ));
            }
            let (probes, seen) = (sum(|stats| stats.probes.get()), seen(&book.probes));
            if seen > probes {
                wrong.push(format!("server {server} got {seen} probes, weir counted {probes}"));
            }
        }
        drop((book, nodes));
        if !wrong.is_empty() {
            self.fail(&wrong.join("\n"));
        }
    }

    /// Checks for panics: a bug that the workers survive is still a bug.
    fn check_panics(&self) {
        let panics = self.count(|counters| counters.rebirths.get());
        if panics > 0 && self.scenario.kind != Kind::Panicking {
            self.fail(&format!("{panics} panics"));
        }
        let given = self.count(|counters| counters.connections_given.get());
        let taken = self.count(|counters| counters.connections_taken.get());
        if panics == 0 && given != taken {
            self.fail(&format!("{given} connections were given to other workers, {taken} arrived"));
        }
    }

    /// Checks that nothing is held after the clients have left but the pool of upstream
    /// connections.
    fn check_at_rest(&self) {
        self.await_probes();
        for (index, node) in self.nodes.borrow().iter().enumerate() {
            let (sessions, exchanges) = (node.engine().clients(), node.engine().exchanges());
            if (sessions, exchanges) != (0, 0) {
                self.fail(&format!(
                    "worker {index} holds {sessions} clients and {exchanges} \
                    requests after all left"
                ));
            }
        }
        let ledgers: Vec<Ledger> =
            (0..usize::from(self.scenario.workers)).map(|index| self.world.ledger(index)).collect();
        let streams: u32 = ledgers.iter().map(|ledger| ledger.streams).sum();
        let (least, most) = (self.connections(true), self.connections(false));
        let full = self.scenario.kind != Kind::Rough && !self.draining.get();
        if streams > most || (full && streams < least) {
            let nodes = self.nodes.borrow();
            let reports = nodes.iter().flat_map(|node| node.engine().report().servers);
            let rows: Vec<_> = reports.map(|server| server.connections).collect();
            self.fail(&format!(
                "{streams} sockets open at rest, {least} to {most} configured: {rows:?}"
            ));
        }
        for (index, node) in self.nodes.borrow().iter().enumerate() {
            node.counters().each(|sample| {
                // A request whose client left waits on a dead server's connection until the next
                // turn sweeps it.
                let may_stay = match sample.name {
                    "upstream_connections" => true,
                    "in_flight" => self.scenario.kind == Kind::Rough,
                    _ => false,
                };
                if sample.kind == CounterKind::Gauge && sample.value != 0 && !may_stay {
                    self.fail(&format!(
                        "worker {index} at rest counts {} {}",
                        sample.value, sample.name
                    ));
                }
            });
        }
        if let Some(open) =
            self.scenario.plan.shield.as_ref().map(|shield| shield.seed.table().open_sum())
            && open > 0
        {
            self.fail(&format!("accounts of `shield` have {open} open at rest"));
        }
        for ledger in ledgers {
            let held = Ledger { streams: 0, listeners: 0, ..ledger };
            if held != Ledger::default() {
                self.fail(&format!("held at rest: {held:?}"));
            }
        }
    }

    /// Waits until no probe is under way.
    fn await_probes(&self) {
        if self.scenario.plan.upstreams[0].health.is_some() {
            let workers = 0..usize::from(self.scenario.workers);
            let streams =
                || workers.clone().map(|index| self.world.ledger(index).streams).sum::<u32>();
            let held = || {
                workers.clone().any(|index| {
                    let ledger = self.world.ledger(index);
                    (ledger.sends, ledger.completions) != (0, 0)
                })
            };
            self.pass(QUIET_US, || streams() <= self.connections(false) && !held());
        }
    }

    /// Upstream connections that exist without any client, once unneeded ones are closed: at least,
    /// where an exact number is kept, or at most.
    fn connections(&self, least: bool) -> u32 {
        let pools =
            self.scenario.plan.upstreams.iter().filter(|upstream| !upstream.pool.is_private());
        let servers = pools.flat_map(|upstream| &upstream.servers);
        let exact = |server: &&ServerPlan| server.connections_min == server.connections;
        servers.filter(|server| !least || exact(server)).map(|server| server.connections_min).sum()
    }

    /// Stops accepting; requests that were already sent are answered.
    pub fn drain(&self) {
        self.draining.set(true);
        self.nodes.borrow_mut().iter_mut().for_each(Node::drain);
    }

    fn check_drained(self) {
        self.drain();
        self.pass(QUIET_US, || false);
        let drained = self.nodes.borrow().iter().all(|node| node.is_drained());
        if !drained {
            self.fail("draining without clients does not end");
        }
    }

    fn summary(&self) -> Summary {
        let book = self.book.borrow();
        let servers = &self.scenario.plan.upstreams[0].servers;
        let count = |wanted: fn(&Outcome) -> bool| {
            book.entries.values().filter(|entry| wanted(&entry.outcome)).count()
        };
        Summary {
            answered: count(|outcome| *outcome == Outcome::Answered),
            refused: count(|outcome| matches!(outcome, Outcome::Refused(_))),
            cut: count(|outcome| *outcome == Outcome::Cut),
            rebirths: self.count(|counters| counters.rebirths.get()),
            depth_max: book.depth_max,
            suspensions: self.count(|counters| counters.suspensions.get()),
            trials: self.count(|counters| counters.trials.get()),
            probes: self.count(|counters| counters.probes.get()),
            moved: self.count(|counters| counters.connections_taken.get()),
            bound: book.entries.values().filter(|entry| entry.bound.is_some()).count(),
            backed_up: book
                .arrivals
                .iter()
                .filter(|(at, _)| servers.get(**at).is_some_and(|server| server.backup))
                .map(|(_, count)| count)
                .sum(),
            trace_hash: self.world.trace_hash(),
        }
    }

    pub fn fail(&self, what: &str) -> ! {
        let Scenario { name, seed, kind, workers, .. } = &self.scenario;
        self.world.fail(&format!(
            "{name}, {kind:?}, {workers} workers: {what}\n{}\n\
                replay: WEIR_SIM_SEED={seed} WEIR_SIM_TRACE=1 cargo test -p weir-worker --test sim",
            dials::told(&self.scenario.plan.upstreams[0])
        ))
    }
}

/// Adds the actors that speak TLS for clients and servers.
fn add_relays(world: &SimWorld, scenario: &Scenario) {
    let Scenario { sealed, mischief, seed, .. } = scenario;
    for http2 in [false, true].into_iter().filter(|_| sealed.clients) {
        world.actor(Relay::of_clients(relay_address(http2), listen_address(), http2, *mischief));
    }
    for index in (0..scenario.styles.len()).filter(|_| sealed.servers) {
        let flight = Rng::new(*seed ^ 0xf11).index(8_000);
        world.actor(Relay::of_server(
            server_relay_address(index),
            server_address(index),
            flight,
            *mischief,
        ));
    }
}

/// By server: the cookie that binds a session to it.
fn cookies(upstream: &UpstreamPlan) -> Vec<String> {
    let cookie = |server| {
        Some(String::from_utf8_lossy(upstream.sticky.as_ref()?.cookie(server)?).into_owned())
    };
    let cookies = (0..upstream.servers.len() as u16).filter_map(cookie);
    cookies.filter_map(|cookie| cookie.split(['=', ';']).nth(1).map(str::to_owned)).collect()
}

fn waiting_text(nonce: &str, entry: &Entry) -> String {
    let (method, bytes) = (entry.asked.method, entry.asked.body.len());
    format!(
        "{method} {nonce} body {bytes} B, arrivals {}, delivered {}",
        entry.arrivals.len(),
        entry.delivered
    )
}
