//! docs/intercept.md, `--connect syn` and `first`: connections to servers that begin before
//! their clients are accepted, and not by the worker that accepts them. However these are joined,
//! clients and servers understand each other; a client sees how its server behaves; nothing is left
//! behind, not even for clients that never come.
//!
//! Workers and their table of begun connections ([`Prepared`]) are those of the product. The reader
//! of first packets, a thread in the product, is an actor here ([`Reader`]). Its packets come late,
//! or before a client's own packet is lost; at times it gives up, and at other times it has no
//! packets.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use rustix::io::Errno;
use weir_io::sim::{Actor, Conn, Faults, Firsts, Net, Rng, START_US};
use weir_proxy::observe::counters::Counters;
use weir_proxy::plan::Pool;
use weir_worker::{Begun, Pair, Prepared};

use super::book::{Entry, Outcome};
use super::run::{Run, Summary};
use super::scenario::{Kind, Scenario, listen_address};
use super::through::lead;
use super::{each_seed, seeds, seeds_of, tcp};

const SECOND_US: u64 = 1_000_000;
/// As in the product (`weir/src/intercept/ahead.rs`): how long a client may take to come, and how
/// often times are checked.
const CLIENT_PATIENCE_US: u64 = 10 * SECOND_US;
const TICK_US: u64 = SECOND_US / 10;
/// How long a server may be silent while its client is held (`weir/src/intercept/first/ledger.rs`).
const PATIENCE_US: u64 = 30 * SECOND_US;
/// The timer for that; others are positions in [`Reader::again`].
const TICK: u64 = u64::MAX;

/// When the connection to a server begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Connect {
    /// While its client is accepted.
    Syn,
    /// Before its client is accepted.
    First,
}

/// Further behaviour of a reader.
#[derive(Debug, Clone, Copy, Default)]
struct Habits {
    /// How first packets come to it.
    firsts: Firsts,
    /// Thousandths of packets with a second copy within three seconds, as if the reply to the first
    /// one was lost.
    again: u32,
    /// Thousandths of ticks at which it begins to have clients accepted first, or stops doing so.
    turns: u32,
}

/// A first packet that is held.
struct Held {
    first: Conn,
    pair: Pair,
    until_us: u64,
    begun: OwnedFd,
}

/// Reads first packets, and begins connections to servers.
struct Reader {
    connect: Connect,
    prepared: Arc<Prepared>,
    habits: Habits,
    lets_through: bool,
    held: BTreeMap<u64, Held>,
    /// The name of the next connect.
    next: u64,
    again: Vec<Pair>,
    /// Connections that were established when they were put where workers look for them.
    stood: Rc<Cell<u64>>,
}

impl Reader {
    fn times(net: &Net<'_>) -> (u64, u64) {
        (net.now_us(), net.now_us() + CLIENT_PATIENCE_US)
    }

    /// Switches as the thread does: until the switch is certain, packets may come after their
    /// clients.
    fn let_through(&mut self, net: &mut Net<'_>, on: bool) {
        self.prepared.set_lets_through(false);
        net.watch_firsts((!on).then_some(self.habits.firsts));
        self.lets_through = on;
        self.prepared.set_lets_through(on);
    }

    fn begin(&mut self, net: &mut Net<'_>, pair: Pair) -> Begun {
        self.next += 1;
        let (prepared, name) = (&self.prepared, self.next);
        prepared.begin(
            pair,
            Reader::times(net),
            || net.begin(name, pair.client(), pair.server()),
            Ok,
        )
    }

    /// Holds a first packet until its server has answered. Passes it on if it can't be held.
    fn hold(&mut self, net: &mut Net<'_>, first: Conn, pair: Pair) {
        if self.prepared.has(&pair) {
            return net.pass_on(first);
        }
        self.next += 1;
        let client = pair.client();
        let any_port = SocketAddr::new(client.ip(), 0);
        let begun =
            net.begin(self.next, client, pair.server()).or_else(
                |error| match Errno::from_io_error(&error) {
                    Some(Errno::ADDRNOTAVAIL) => net.begin(self.next, any_port, pair.server()),
                    _ => Err(error),
                },
            );
        let Ok(begun) = begun else { return net.pass_on(first) };
        self.held
            .insert(self.next, Held { first, pair, until_us: net.now_us() + PATIENCE_US, begun });
    }

    fn look(&mut self, net: &mut Net<'_>) {
        let (now_us, is_over) = (net.now_us(), self.prepared.is_over());
        let silent: Vec<u64> = self
            .held
            .iter()
            .filter(|(_, held)| is_over || held.until_us <= now_us)
            .map(|(name, _)| *name)
            .collect();
        for Held { first, .. } in silent.iter().filter_map(|name| self.held.remove(name)) {
            net.refuse(first, Errno::TIMEDOUT.raw_os_error());
        }
        self.prepared.expire(if is_over { u64::MAX } else { now_us });
        if net.rng().chance(self.habits.turns) {
            self.let_through(net, !self.lets_through);
        }
    }
}

impl Actor for Reader {
    fn on_start(&mut self, net: &mut Net<'_>) {
        self.let_through(net, false);
        net.timer(TICK_US, TICK);
    }

    fn on_first(
        &mut self,
        net: &mut Net<'_>,
        first: Conn,
        (client, server): (SocketAddr, SocketAddr),
    ) {
        let pair = Pair::new(client, server);
        if self.connect == Connect::First {
            return self.hold(net, first, pair);
        }
        self.begin(net, pair);
        if net.rng().chance(self.habits.again) {
            let after_us = net.rng().between(SECOND_US, 3 * SECOND_US);
            net.timer(after_us, self.again.len() as u64);
            self.again.push(pair);
        }
    }

    fn on_begun(&mut self, net: &mut Net<'_>, name: u64, result: std::io::Result<()>) {
        // Connects of `--connect syn` have no client that waits for them here.
        let Some(Held { first, pair, begun, .. }) = self.held.remove(&name) else { return };
        match result.map_err(|error| error.raw_os_error()) {
            Ok(()) => {
                self.stood.set(self.stood.get() + 1);
                self.prepared.put(pair, begun, Reader::times(net));
                net.pass_on(first);
            }
            Err(errno) => net.refuse(first, errno.unwrap_or(Errno::TIMEDOUT.raw_os_error())),
        }
    }

    fn on_timer(&mut self, net: &mut Net<'_>, id: u64) {
        if id == TICK {
            self.look(net);
            net.timer(TICK_US, TICK);
        } else if !self.prepared.is_over() {
            let pair = self.again[id as usize];
            self.begin(net, pair);
        }
    }

    fn on_data(&mut self, _: &mut Net<'_>, _: Conn, _: &[u8]) {}
}

/// A run with a reader of first packets.
struct Joins {
    run: Run,
    prepared: Arc<Prepared>,
    stood: Rc<Cell<u64>>,
}

/// How clients reached their servers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Tally {
    joined: u64,
    let_through: u64,
    abandoned: u64,
    trace_hash: u64,
}

impl Joins {
    fn new(mut scenario: Scenario, connect: Connect, habits: Habits) -> Joins {
        let prepared =
            Arc::new(if connect == Connect::Syn { Prepared::early() } else { Prepared::default() });
        scenario.prepared = Some(Arc::clone(&prepared));
        scenario.name = if connect == Connect::Syn { "syn" } else { "first" };
        let run = Run::new(scenario);
        let stood = Rc::default();
        run.world.actor(Reader {
            connect,
            prepared: Arc::clone(&prepared),
            habits,
            lets_through: false,
            held: BTreeMap::new(),
            next: 0,
            again: Vec::new(),
            stood: Rc::clone(&stood),
        });
        Joins { run, prepared, stood }
    }

    /// Runs to its end, when nothing waits any more.
    fn finish(self, lost: impl FnOnce(&BTreeMap<String, Entry>) -> Option<String>) -> Tally {
        let Joins { run, prepared, stood } = self;
        let world = run.world.clone();
        let Summary { trace_hash, .. } = run.finish_with(|book| {
            let (begun, waiting) = (world.begun(), prepared.waiting());
            if (begun, waiting) != (0, 0) {
                return Err(format!(
                    "{begun} connects are nobody's, {waiting} wait for their clients"
                ));
            }
            lost(&book.entries).map_or(Ok(()), Err)
        });
        let counters = Counters::default();
        prepared.tell(&counters, 1);
        let of = |word| counters.tcp_held.get(word);
        let abandoned = of("abandoned");
        // For `first` the thread reports them, because it knows that they are established.
        let joined = of("early") + stood.get().saturating_sub(abandoned);
        Tally { joined, let_through: of("let-through"), abandoned, trace_hash }
    }
}

fn scenario(seed: u64, kind: Kind) -> Scenario {
    let faults = if kind == Kind::Hostile { Faults::harmless(seed) } else { Faults::random(seed) };
    let mut scenario = tcp::scenario(seed, kind, faults);
    scenario.settings.faults.port_taken = if seed.is_multiple_of(3) { 300 } else { 0 };
    lead(scenario, Pool::Tcp)
}

fn habits(seed: u64, connect: Connect) -> Habits {
    let rng = &mut Rng::new(seed ^ 0x301e);
    let firsts = Firsts {
        late_us: *rng.pick(&[0, 0, 1_000, 100_000]),
        lost: *rng.pick(&[0, 0, 300]),
        held: connect == Connect::First,
    };
    Habits { firsts, again: *rng.pick(&[0, 200]), turns: *rng.pick(&[0, 0, 300]) }
}

fn connect_of(seed: u64) -> Connect {
    if seed.is_multiple_of(2) { Connect::Syn } else { Connect::First }
}

/// Nothing breaks: all requests are answered, and connections are joined.
#[test]
fn parties_understand_each_other_however_they_meet() {
    let sum = RefCell::new([Tally::default(); 2]);
    let all = seeds();
    let runs = all.len();
    each_seed(all, |seed| {
        let connect = connect_of(seed / 2);
        let (scenario, habits) = (scenario(seed, Kind::Hostile), habits(seed, connect));
        let clients = scenario.clients as u64;
        let joins = Joins::new(scenario, connect, habits);
        let tally = joins.finish(|entries| {
            let lost = entries.values().find(|entry| entry.outcome != Outcome::Answered);
            lost.map(|entry| format!("a request was not answered: {:?}", entry.outcome))
        });
        assert_eq!(
            tally.joined + tally.let_through,
            clients,
            "each comes to its server once: {tally:?}"
        );
        if connect == Connect::First && habits.turns == 0 {
            assert_eq!((tally.let_through, tally.abandoned), (0, 0), "who is held is joined");
        }
        let sum = &mut sum.borrow_mut()[usize::from(connect == Connect::First)];
        sum.joined += tally.joined;
        sum.let_through += tally.let_through;
        sum.abandoned += tally.abandoned;
    });
    let [syn, first] = *sum.borrow();
    // The checks are worth something only where these things happen.
    let is_tried =
        syn.joined > 50 && syn.let_through > 20 && syn.abandoned > 2 && first.joined > 50;
    assert!(runs < 100 || is_tried, "syn: {syn:?}, first: {first:?}");
}

#[test]
fn the_same_seed_gives_the_same_joins() {
    for seed in 0..8 {
        let connect = connect_of(seed);
        let run = || {
            Joins::new(scenario(seed, Kind::Rough), connect, habits(seed, connect)).finish(|_| None)
        };
        assert_eq!(run(), run(), "seed {seed}");
    }
}

/// Everything may break: each request has a definite outcome, and nothing is left behind.
#[test]
fn what_breaks_between_them_leaves_nothing_behind() {
    each_seed(seeds(), |seed| {
        let connect = connect_of(seed / 2);
        let mut scenario = scenario(seed, Kind::Rough);
        scenario.manners.abort = 100;
        Joins::new(scenario, connect, habits(seed, connect)).finish(|_| None);
    });
}

/// A worker that restarts gives up its joined connections, and its successor continues to join.
#[test]
fn workers_that_begin_anew_go_on_joining() {
    each_seed(seeds(), |seed| {
        let connect = connect_of(seed / 2);
        let mut scenario = scenario(seed, Kind::Panicking);
        scenario.settings.faults = Faults::harmless(seed);
        let joins = Joins::new(scenario, connect, habits(seed, connect));
        joins.run.panic(4, 40);
        joins.finish(|_| None);
    });
}

/// A server, and how it treats its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    /// No server listens there.
    Absent,
    /// It sends something, and ends the connection.
    SaysBye,
    /// It resets the connection as soon as it has come.
    Resets,
    /// It resets the first connection, and sends something on later ones.
    Begins,
    /// It sends back all that it received once that is complete, and then ends its direction.
    Repeats,
    /// It answers no connect.
    Silent,
}

const SERVERS: [Server; 6] = [
    Server::Absent,
    Server::SaysBye,
    Server::Resets,
    Server::Begins,
    Server::Repeats,
    Server::Silent,
];

fn said() -> Vec<u8> {
    (0..20_000u32).map(|at| (at * 7 % 251) as u8).collect()
}

struct Host {
    how: Server,
    at: SocketAddr,
    told: Vec<u8>,
    accepted: u32,
}

impl Actor for Host {
    fn on_start(&mut self, net: &mut Net<'_>) {
        net.listen(self.at);
    }

    fn on_accepted(&mut self, net: &mut Net<'_>, conn: Conn, _: SocketAddr) {
        self.accepted += 1;
        match self.how {
            Server::Begins if self.accepted == 1 => net.reset(conn),
            Server::SaysBye | Server::Begins => {
                net.send(conn, &said());
                net.close(conn);
            }
            Server::Resets => net.reset(conn),
            _ => self.told.clear(),
        }
    }

    fn on_data(&mut self, _: &mut Net<'_>, _: Conn, data: &[u8]) {
        self.told.extend_from_slice(data);
    }

    fn on_end(&mut self, net: &mut Net<'_>, conn: Conn) {
        net.send(conn, &std::mem::take(&mut self.told));
        net.close(conn);
    }
}

/// Everything that a client has seen.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    connected: Option<Result<(), Errno>>,
    bytes: Vec<u8>,
    ended: bool,
    reset: bool,
    at_us: u64,
}

impl Seen {
    fn is_over(&self) -> bool {
        self.ended || self.reset || matches!(self.connected, Some(Err(_)))
    }
}

/// Connects; if it speaks, it sends something and ends its direction.
struct Caller {
    to: SocketAddr,
    speaks: bool,
    seen: Rc<RefCell<Seen>>,
}

impl Actor for Caller {
    fn on_start(&mut self, net: &mut Net<'_>) {
        net.connect(self.to);
    }

    fn on_connected(&mut self, net: &mut Net<'_>, conn: Conn, result: std::io::Result<()>) {
        let mut seen = self.seen.borrow_mut();
        (seen.connected, seen.at_us) = (
            Some(result.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))),
            net.now_us(),
        );
        if self.speaks && seen.connected == Some(Ok(())) {
            net.send(conn, &said());
            net.finish(conn);
        }
    }

    fn on_data(&mut self, _: &mut Net<'_>, _: Conn, data: &[u8]) {
        self.seen.borrow_mut().bytes.extend_from_slice(data);
    }

    fn on_end(&mut self, net: &mut Net<'_>, conn: Conn) {
        self.seen.borrow_mut().ended = true;
        net.close(conn);
    }

    fn on_reset(&mut self, _: &mut Net<'_>, _: Conn) {
        self.seen.borrow_mut().reset = true;
    }
}

/// Each server, with each way of joining. A client that is accepted first gets a reset if no server
/// exists; a client that is held gets exactly the outcome of its server. A client whose own packet
/// was lost does not see an outcome that is long past.
#[test]
fn a_client_hears_what_its_server_does() {
    each_seed(seeds_of(120), |seed| {
        let how = SERVERS[(seed % 6) as usize];
        let connect = connect_of(seed / 6);
        let mut scenario = scenario(seed, Kind::Hostile);
        scenario.clients = 0;
        if how == Server::Begins {
            // The connect begins as soon as the first packet comes, whether that is lost or not.
            scenario.settings.faults.port_taken = 0;
        }
        scenario.settings.faults.connect_lost = if how == Server::Silent { 1000 } else { 0 };
        let at = SocketAddr::from(([240, 0, 1, 1], 9090));
        let mut habits = Habits { turns: 0, ..habits(seed, connect) };
        if how == Server::Begins {
            habits.firsts.lost = 300;
        }
        let joins = Joins::new(scenario, connect, habits);
        joins.run.world.lead(at, listen_address());
        if how != Server::Absent {
            joins.run.world.actor(Host { how, at, told: Vec::new(), accepted: 0 });
        }
        let seen = Rc::new(RefCell::new(Seen::default()));
        joins.run.world.actor(Caller {
            to: at,
            speaks: how == Server::Repeats,
            seen: Rc::clone(&seen),
        });
        joins.run.pass(100 * SECOND_US, || seen.borrow().is_over());
        {
            let seen = seen.borrow();
            let is_whole = seen.ended && !seen.reset && seen.bytes == said();
            // The first packet, which was lost, had begun the connect.
            let is_late = seen.at_us >= START_US + SECOND_US;
            let as_expected = match (how, connect) {
                (Server::Begins, _) if is_late => is_whole,
                (Server::SaysBye | Server::Repeats, _) => {
                    seen.connected == Some(Ok(())) && is_whole
                }
                (Server::Absent, Connect::First) => seen.connected == Some(Err(Errno::CONNREFUSED)),
                (Server::Silent, Connect::First) => seen.connected == Some(Err(Errno::TIMEDOUT)),
                _ => {
                    seen.connected == Some(Ok(()))
                        && seen.reset
                        && !seen.ended
                        && seen.bytes.is_empty()
                }
            };
            if !as_expected {
                let Seen { connected, ref bytes, ended, reset, .. } = *seen;
                let told = format!(
                    "connected {connected:?}, {} B, ended {ended}, reset {reset}",
                    bytes.len()
                );
                joins.run.fail(&format!("{how:?} {connect:?} {habits:?}: {told}"));
            }
        }
        joins.finish(|_| None);
    });
}
