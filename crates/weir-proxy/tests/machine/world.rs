//! A world in memory for the engine: clients, servers, other workers and a clock that only moves on
//! request.
//!
//! Every byte towards a server passes through the judge of requests, every byte towards a client
//! through the judge of replies; commands that a driver forbids (two sends at a time, sends on
//! closed connections) fail the test. One turn of an engine does the same as the worker's loop with
//! a driver.

mod clients;
pub mod http2;
mod servers;
mod turns;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use weir_check::{End, Reply, Request, StrictReplies, StrictRequests};
use weir_proxy::base::output::Out;
use weir_proxy::cross::mail::Post;
use weir_proxy::engine::{
    Delivery, Encoded, Engine, FlowEvent, Hints, Job, Over, Parts, divided, on_flow,
};
use weir_proxy::forward::lookup::{Errand, News};
use weir_proxy::observe::access::{AccessPlan, Destination, Escape, Template};
use weir_proxy::observe::accounting::Use;
use weir_proxy::observe::counters::Counters;
use weir_proxy::observe::histogram::Histogram;
use weir_proxy::observe::report::ServerReport;
use weir_proxy::observe::server_stats::ServerStats;
use weir_proxy::plan::{Announcement, Plan, ServerPlan, Serves, UpstreamPlan, Way};
use weir_proxy::request::route::{Route, RouteTable};

/// Port of server 0; server n listens on the n-th port behind it.
pub const PORT: u16 = 9000;
/// Turns without progress in time after which a test is stuck.
const TURNS_MAX: usize = 200_000;
/// Servers that may be added.
const SPARE: usize = 64;
/// Names of client sockets begin here, those of upstream connections at 0.
const CLIENT_SOCKETS: u64 = 1 << 32;

/// Small deterministic randomness (splitmix64).
#[derive(Debug, Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// The next action of a server on one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Do {
    /// Writes bytes that contain the final response to the oldest unanswered request.
    Answer(Vec<u8>),
    /// Writes bytes that answer nothing (yet).
    Bytes(Vec<u8>),
    /// Responds with 101 and speaks another protocol from here on.
    Switch(Vec<u8>),
    /// Lets time pass.
    Delay(u64),
    /// Waits until this client has a reply, or at least the beginning of one.
    AwaitReply(usize),
    /// Waits until this many arrivals on the connection.
    AwaitArrival(usize),
    Fin,
    Rst,
    /// Never does anything again.
    Silence,
}

/// A request as a server sees it: complete, or its head and the body so far.
#[derive(Debug)]
pub struct Seen<'a> {
    pub conn: usize,
    pub request: &'a Request,
    pub complete: bool,
    /// Actions for earlier requests on the connection are still pending.
    pub behind: bool,
    pub now_us: u64,
    /// The number of arrivals on the connection, including this.
    pub arrival: usize,
}

/// A server's response to a request; None while it wants to see more of it (or never responds).
pub type Serve = Box<dyn FnMut(&Seen<'_>) -> Option<Vec<Do>>>;

/// How a server handles connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    Open,
    Refuses,
    /// Connects are not answered at all.
    Mute,
    /// Accepts and closes at once.
    Slams,
    /// Connects cannot even begin: its address family is not available.
    Absent,
}

pub struct Server {
    pub door: Door,
    pub serve: Serve,
    /// Does not read: sends towards it never end.
    pub deaf: bool,
    /// How many connections it serves at a time, in the order in which they were made, each until
    /// it ends.
    pub places: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Incoming {
    Bytes(Vec<u8>),
    Fin,
    Rst,
}

/// One upstream connection.
pub struct Conn {
    pub node: usize,
    pub server: usize,
    token: u64,
    /// The announcement that it began with.
    pub announcement: Option<Announcement>,
    connected: bool,
    /// weir closed it.
    pub closed: bool,
    /// weir closed it with a reset.
    pub was_reset: bool,
    /// weir ended its sending direction.
    pub fin: bool,
    pub judge: StrictRequests,
    /// Complete requests so far.
    pub requests: Vec<Request>,
    /// Most unanswered requests at a time since the last reset to 0.
    pub depth: usize,
    /// The number of arrivals.
    arrivals: usize,
    /// Bytes of a tunnel that arrived.
    pub tunnel: Vec<u8>,
    tunnelling: bool,
    script: VecDeque<Do>,
    wait_until_us: u64,
    incoming: VecDeque<Incoming>,
    receiving: bool,
    /// Receives were asked for and not answered, for tests of back-pressure.
    pub sending: bool,
    /// Times that weir acknowledged at once.
    pub acknowledged: usize,
    /// The fate of weir's sends on it; unheard ones do not arrive.
    pub delivery: Delivery,
    /// Times that weir examined them.
    pub examined: usize,
    sent_ok: bool,
    head_answered: bool,
    deaf_send: bool,
    /// The server has ended it.
    left: bool,
}

impl Conn {
    /// Bytes that weir has not taken.
    pub fn unread(&self) -> usize {
        let len = |incoming: &Incoming| {
            if let Incoming::Bytes(bytes) = incoming { bytes.len() } else { 0 }
        };
        self.incoming.iter().map(len).sum()
    }

    /// Connected and not closed by weir.
    pub fn is_open(&self) -> bool {
        self.connected && !self.closed
    }
}

/// One client connection.
pub struct Client {
    pub node: usize,
    /// Its source port.
    pub port: u16,
    token: u64,
    pending: VecDeque<Incoming>,
    /// Its input may be deferred.
    pub deferred: bool,
    receiving: bool,
    /// Segments that arrive whatever weir wants by then: from [`World::takes_at_once`].
    taken_at_once: usize,
    judge: StrictReplies,
    /// For a client of HTTP/2 that is judged here.
    pub frames: Option<http2::Frames>,
    pub replies: Vec<Reply>,
    /// How weir ended it, if it did.
    pub end: Option<End>,
    /// weir closed it (not only its sending direction).
    pub closed: bool,
    /// weir closed it with a reset.
    pub was_reset: bool,
    /// It left.
    pub gone: bool,
    /// Resets when the first bytes of a reply arrive.
    pub leaves: bool,
    stalled: bool,
    sending: Option<Out>,
    /// Bytes behind a 101.
    pub tunnel: Vec<u8>,
    /// The received bytes of an HTTP/2 client that is judged by its test, which the test has not
    /// taken.
    pub raw: Option<Vec<u8>>,
    /// All bytes that weir has handed over.
    pub taken: u64,
    /// The bytes that it has acknowledged, if the kernel knows.
    pub acked: Option<u64>,
    /// The kernel has something for it that it has not acknowledged.
    pub is_taking: bool,
}

impl Client {
    pub fn statuses(&self) -> Vec<u16> {
        self.replies.iter().map(|reply| reply.status).collect()
    }

    /// The reply that is not complete yet.
    pub fn current(&self) -> Option<&Reply> {
        self.judge.current()
    }

    /// Interim replies since the last final one.
    pub fn interim(&self) -> &[u16] {
        self.judge.interim()
    }

    /// Returns its name in the engine.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Bytes it has sent that weir has not taken.
    pub fn unread(&self) -> usize {
        let len = |incoming: &Incoming| {
            if let Incoming::Bytes(bytes) = incoming { bytes.len() } else { 0 }
        };
        self.pending.iter().map(len).sum()
    }
}

enum Event {
    Connected(usize, bool),
    UpstreamSent(usize, bool),
    ClientSent(usize, Option<Vec<u8>>),
}

pub struct Node {
    pub engine: Engine,
    pub counters: Arc<Counters>,
    events: VecDeque<Event>,
    inbox: VecDeque<(u16, Post)>,
    /// Posts for this worker are held back.
    pub mail_stopped: bool,
    /// It has no room for posts: they remain with their senders.
    pub mail_full: bool,
    pub parts: Parts,
    lives: u32,
}

/// See [`World::takes_at_once`].
pub const AT_ONCE: usize = 33;

/// How bytes arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// As they were sent.
    Whole,
    /// In pieces of this many bytes.
    Each(usize),
    /// In pieces of random size.
    Random,
}

/// The whole world.
pub struct World {
    pub now_us: u64,
    pub rng: Rng,
    pub nodes: Vec<Node>,
    pub clients: Vec<Client>,
    pub conns: Vec<Conn>,
    pub servers: Vec<Server>,
    /// Connection and position of each complete request, as they arrived.
    arrivals: Vec<(usize, usize)>,
    pub cut_upstream: Cut,
    /// Deliver the input of clients and servers in random order and portions.
    pub shuffled: bool,
    /// A receive that is switched on takes up to [`AT_ONCE`] available segments, even if it is
    /// switched off in the same turn.
    pub takes_at_once: bool,
    /// Pass large pieces by reference.
    pub shared: bool,
    /// Whether the worker's core receives the packets of a connection (by number). Unknown unless
    /// this is set.
    pub near: Option<fn(usize) -> bool>,
    timers: BTreeMap<u64, ()>,
    /// Tunnels that the driver has: client and connection.
    pub relays: Vec<(usize, usize)>,
    /// Those whose cores were compared.
    pub compared: Vec<(usize, usize)>,
    /// How often a relay was looked at.
    pub looks: usize,
    /// Connections of flows that the kernel was told to probe, in order.
    pub kept_alive: Vec<usize>,
    /// The bytes that each of them is reported to have moved.
    pub moved: (u64, u64),
    /// Number of connects that can begin; None: any.
    pub descriptors: Option<usize>,
    /// Whether one of both sides is reported to have ended.
    pub half_closed: bool,
    /// The destinations of connects, in order.
    pub connects: Vec<SocketAddr>,
    /// Their sources.
    pub ways: Vec<Option<Way>>,
    /// An address that connects cannot come from; true: this is found out when they are made.
    pub taken: Option<(SocketAddr, bool)>,
    /// The original destination of new clients, if that is not weir.
    pub destination: Option<SocketAddr>,
    /// The destination is weir after all.
    pub is_own: bool,
    /// Errands of engines for the side thread that no test has taken.
    pub errands: Vec<(usize, Errand)>,
    /// Encodings on another thread remain in `jobs`, until a test has them done.
    pub encodes_elsewhere: bool,
    pub jobs: VecDeque<(usize, Box<Job>)>,
    /// Servers do not speak HTTP from the beginning on: received bytes are in [`Conn::tunnel`].
    pub raw: bool,
    /// What the listener of new clients serves.
    pub serves: Serves,
    /// Its number.
    pub listener: u32,
    /// The address of new clients.
    pub peer: IpAddr,
    /// The access log, by line.
    pub lines: Vec<String>,
}

/// The format of the access log unless a test sets another; [`World::finish`] judges the lines.
pub const LINE: &str = "$realip_remote_port $request_method $request_uri $status $bytes_sent \
    $ended_by $phase $reason $tries";

/// An access log of this format.
pub fn access_log(format: &str) -> AccessPlan {
    let template = Template::compile(format, Escape::Default).expect("a format");
    AccessPlan { destination: Destination::Stdout, template }
}

/// A plan with one upstream of this many servers, with this many connections each, made in advance.
pub fn plan(servers: usize, connections: u32) -> Plan {
    let servers = (0..servers)
        .map(|n| {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT + n as u16));
            let origin = ServerPlan::new("origin.test:9000", address);
            ServerPlan {
                connections_min: connections,
                connections,
                connections_max: connections,
                ..origin
            }
        })
        .collect();
    let route = Route::default();
    Plan {
        upstreams: vec![UpstreamPlan {
            name: "app".to_owned(),
            servers,
            ..UpstreamPlan::default()
        }],
        routes: RouteTable::new(vec![route]),
        access_log: Some(access_log(LINE)),
        ..Plan::default()
    }
}

impl Node {
    /// Returns its counters for servers.
    pub fn stats(&self) -> &[Arc<ServerStats>] {
        &self.parts.servers
    }
}

impl World {
    /// Engines for this plan; servers respond honestly until the test changes that.
    pub fn new(mut plan: Plan, workers: u16, seed: u64) -> World {
        if let Some(cache) = &mut plan.cache {
            cache.open([seed, 7], usize::from(workers));
        }
        let plan = Arc::new(plan);
        let servers: usize = plan.upstreams.iter().map(|upstream| upstream.servers.len()).sum();
        let hints = Arc::new(Hints::new(servers + SPARE, usize::from(workers)));
        let now_us = 5_000_000;
        let nodes = (0..workers)
            .map(|worker| {
                let counters = Arc::new(Counters::default());
                let parts = Parts {
                    plan: Arc::clone(&plan),
                    worker,
                    workers,
                    seed,
                    secret: [seed, u64::from(worker)],
                    hints: Arc::clone(&hints),
                    counters: Arc::clone(&counters),
                    latency: Arc::new(Histogram::default()),
                    hits: Arc::default(),
                    servers: ServerStats::for_plan(&plan),
                    relays: false,
                };
                Node {
                    engine: Engine::new(parts.clone(), now_us),
                    counters,
                    events: VecDeque::new(),
                    inbox: VecDeque::new(),
                    mail_stopped: false,
                    mail_full: false,
                    parts,
                    lives: 0,
                }
            })
            .collect();
        let servers = (0..servers)
            .map(|_| Server {
                door: Door::Open,
                serve: Box::new(honest),
                deaf: false,
                places: usize::MAX,
            })
            .collect();
        World {
            now_us,
            rng: Rng(seed),
            nodes,
            clients: Vec::new(),
            conns: Vec::new(),
            servers,
            arrivals: Vec::new(),
            cut_upstream: Cut::Whole,
            shuffled: false,
            takes_at_once: false,
            shared: true,
            near: None,
            timers: BTreeMap::new(),
            relays: Vec::new(),
            compared: Vec::new(),
            looks: 0,
            kept_alive: Vec::new(),
            moved: (0, 0),
            half_closed: false,
            descriptors: None,
            connects: Vec::new(),
            ways: Vec::new(),
            taken: None,
            destination: None,
            is_own: false,
            errands: Vec::new(),
            encodes_elsewhere: false,
            jobs: VecDeque::new(),
            raw: false,
            serves: Serves::Reverse,
            listener: 0,
            peer: IpAddr::from([192, 0, 2, 1]),
            lines: Vec::new(),
        }
    }

    /// One engine, one server, connected; the usual start of a test.
    pub fn simple(connections: u32) -> World {
        World::started(plan(1, connections), 1, 1)
    }

    /// As [`World::new`], with its connections made.
    pub fn started(plan: Plan, workers: u16, seed: u64) -> World {
        let mut world = World::new(plan, workers, seed);
        world.run_for(100_000);
        world
    }

    /// Drivers move the bytes of tunnels: has to be called first.
    pub fn let_relay(&mut self) {
        for node in &mut self.nodes {
            node.parts.relays = true;
            node.engine = Engine::new(node.parts.clone(), self.now_us);
        }
    }

    /// The driver reports that a tunnel is over.
    pub fn end_relay(&mut self, client: usize, by_client: bool) {
        let (node, token, moved) =
            (self.clients[client].node, self.clients[client].token, self.moved);
        let engine = &mut self.nodes[node].engine;
        engine.begin_turn(self.now_us);
        engine.relay_ended(token, moved.0, moved.1, by_client);
        engine.settle();
        self.act(node);
    }

    /// The driver reports that the relay of a client of `tcp` is over.
    pub fn end_flow(&mut self, client: usize, over: Over) {
        let (node, token, moved) =
            (self.clients[client].node, self.clients[client].token, self.moved);
        let engine = &mut self.nodes[node].engine;
        engine.begin_turn(self.now_us);
        on_flow(engine, token, FlowEvent::RelayEnded { moved, over });
        engine.settle();
        self.act(node);
    }

    /// A client of `tcp` has this one of several congestion controls.
    pub fn divide(&mut self, client: usize, name: &str) {
        let Client { node, token, .. } = self.clients[client];
        divided(&mut self.nodes[node].engine, token, &name.into());
    }

    /// An engine is lost with everything that it had, and another one takes its place.
    pub fn begin_anew(&mut self, node: usize) {
        for number in (0..self.clients.len())
            .filter(|number| self.clients[*number].node == node)
            .collect::<Vec<_>>()
        {
            self.clients[number].closed = true;
            self.clients[number].pending.clear();
            self.client_end(number);
        }
        self.conns.iter_mut().filter(|conn| conn.node == node).for_each(|conn| conn.closed = true);
        let machine = &mut self.nodes[node];
        machine.events.clear();
        machine.lives += 1;
        machine.engine = Engine::reborn(machine.parts.clone(), self.now_us, machine.lives);
        self.act(node);
    }

    /// Likewise in the middle of a turn: it has read its mail, and its pending messages about it
    /// are lost as well.
    pub fn begin_anew_after_mail(&mut self, node: usize) {
        while let Some((from, post)) = self.nodes[node].inbox.pop_front() {
            self.nodes[node].engine.deliver(from, post);
        }
        self.begin_anew(node);
    }

    /// Reports the result of an errand to an engine.
    pub fn news(&mut self, node: usize, news: News) {
        self.nodes[node].engine.begin_turn(self.now_us);
        self.nodes[node].engine.on_news(news);
        self.nodes[node].engine.settle();
        self.act(node);
    }

    /// The oldest job is done elsewhere, and its engine gets the result.
    pub fn encode(&mut self) {
        let (node, job) = self.jobs.pop_front().expect("a job");
        self.give_back(node, job.run());
    }

    /// All jobs are done, and those that follow from them.
    pub fn encode_all(&mut self) {
        while !self.jobs.is_empty() {
            self.encode();
            self.settle();
        }
    }

    /// An engine gets the result of a job.
    pub fn give_back(&mut self, node: usize, encoded: Box<Encoded>) {
        self.news(node, News::Encoded(encoded));
    }

    /// Sets the behaviour of all servers.
    pub fn serve(&mut self, serve: impl FnMut(&Seen<'_>) -> Option<Vec<Do>> + 'static) {
        self.servers[0].serve = Box::new(serve);
    }

    /// Sum of a counter over all engines.
    pub fn count(&self, of: impl Fn(&Counters) -> u64) -> u64 {
        self.nodes.iter().map(|node| of(&node.counters)).sum()
    }

    /// Returns the sum of a counter of all engines for a server.
    pub fn count_of(&self, server: usize, of: impl Fn(&ServerStats) -> u64) -> u64 {
        self.nodes.iter().map(|node| of(&node.parts.servers[server])).sum()
    }

    /// Checks that counts by server add up to the totals, and that reports agree with the gauges.
    fn check_figures(&self) {
        type Pair = (fn(&Counters) -> u64, fn(&ServerStats) -> u64);
        let pairs: [Pair; 18] = [
            (|all| all.moves.get(), |server| server.moves.get()),
            (|all| all.resends.get(), |server| server.resends.get()),
            (|all| all.escapes.get(), |server| server.escapes.get()),
            (|all| all.retries.get(), |server| server.retries.get()),
            (|all| all.upstream_connects.get(), |server| server.connects.get()),
            (|all| all.upstream_connect_failures.get(), |server| server.connect_failures.get()),
            (|all| all.demotions.get(), |server| server.demotions.get()),
            (|all| all.surplus.get(), |server| server.surplus.get()),
            (|all| all.suspensions.get(), |server| server.suspensions.get()),
            (|all| all.recoveries.get(), |server| server.recoveries.get()),
            (|all| all.probes.get(), |server| server.probes.get()),
            (|all| all.probe_failures.get(), |server| server.probe_failures.get()),
            (|all| all.trials.get(), |server| server.trials.get()),
            (|all| all.upstream_bytes_in.get(), |server| server.bytes_in.get()),
            (|all| all.upstream_bytes_out.get(), |server| server.bytes_out.get()),
            (
                |all| all.upstream_closes.sum(),
                |server| server.closes.sum() - server.closes.get("connect-failed"),
            ),
            (
                |all| all.doubts.iter().map(|n| n.get()).sum(),
                |server| server.doubts.iter().map(|n| n.get()).sum(),
            ),
            (
                |all| all.upstream_glitches.iter().map(|n| n.get()).sum(),
                |server| server.glitches.iter().map(|n| n.get()).sum(),
            ),
        ];
        for (number, (all, of_server)) in pairs.into_iter().enumerate() {
            let slots = self.nodes[0].parts.plan.servers();
            let sum: u64 = (0..slots).map(|slot| self.count_of(slot, of_server)).sum();
            assert_eq!(sum, self.count(all), "pair {number}");
        }
        for stats in self.nodes.iter().flat_map(|node| &node.parts.servers) {
            let apart =
                stats.apart_untrusted.get() + stats.apart_unlike.get() + stats.apart_costly.get();
            assert!(apart <= stats.requests.get(), "{apart} of {}", stats.requests.get());
        }
        let reports: Vec<_> = self.nodes.iter().map(|node| node.engine.report()).collect();
        let sum = |of: fn(&ServerReport) -> u32| -> u64 {
            reports
                .iter()
                .flat_map(|report| &report.servers)
                .map(|server| u64::from(of(server)))
                .sum()
        };
        assert_eq!(
            sum(|server| server.unanswered),
            self.count(|all| all.in_flight.get()),
            "in_flight"
        );
        assert_eq!(
            sum(|server| server.waiting),
            self.count(|all| all.queue_waiting.get()),
            "queue_waiting"
        );
        assert_eq!(
            sum(|server| server.ready),
            self.count(|all| all.upstream_connections.get()),
            "upstream_connections"
        );
        // The bytes of servers whose upstreams lead anywhere equal those of their destinations.
        let usage: Vec<_> = reports.iter().filter_map(|report| report.usage.as_ref()).collect();
        let bytes = |of: fn(&Use) -> u64| -> u64 {
            let tables = || usage.iter().map(|usage| &usage.destinations);
            let rows = tables().flat_map(|table| &table.rows).map(|row| of(&row.used));
            rows.chain(tables().map(|table| of(&table.others))).sum()
        };
        if !usage.is_empty() {
            let plan = &self.nodes[0].parts.plan;
            let of_forward = plan.forward.as_ref().map(|forward| forward.upstream);
            let upstreams = plan.upstreams.iter().enumerate();
            let anywhere = upstreams.flat_map(|(number, upstream)| {
                let is_anywhere = of_forward == Some(number) || upstream.is_destination();
                std::iter::repeat_n(is_anywhere, upstream.servers.len())
            });
            let anywhere: Vec<usize> =
                anywhere.enumerate().filter_map(|(slot, is)| is.then_some(slot)).collect();
            let moved = |of: fn(&ServerStats) -> u64| -> u64 {
                anywhere.iter().map(|slot| self.count_of(*slot, of)).sum()
            };
            assert_eq!(bytes(|used| used.bytes_in), moved(|server| server.bytes_in.get()));
            assert_eq!(bytes(|used| used.bytes_out), moved(|server| server.bytes_out.get()));
        }
    }

    /// All clients leave; nothing may be left behind.
    pub fn finish(mut self) {
        self.settle();
        self.encode_all();
        assert_eq!(self.count(|counters| counters.compressions_away.get()), 0, "compressions_away");
        self.judge_delivered();
        for client in 0..self.clients.len() {
            if !self.clients[client].closed && !self.clients[client].gone {
                self.reset(client);
            }
        }
        self.settle();
        for node in &self.nodes {
            assert_eq!(
                (node.engine.clients(), node.engine.exchanges()),
                (0, 0),
                "sessions and exchanges left"
            );
        }
        assert_eq!(
            self.count(|counters| counters.client_connections.get()),
            0,
            "client_connections"
        );
        assert_eq!(self.count(|counters| counters.tunnels.get()), 0, "tunnels");
        self.judge_lines();
        // Requests that wait for unwanted responses end at the latest when the next response or its
        // end comes.
        assert!(self.count(|counters| counters.in_flight.get()) < 1 << 60, "in_flight below zero");
        assert_eq!(self.count(|counters| counters.queue_waiting.get()), 0, "queue_waiting");
        self.check_figures();
    }
}

/// Checks of the access log, in a world whose lines are like [`LINE`].
impl World {
    fn says_line(&self) -> bool {
        let as_usual = |node: &Node| node.parts.plan.access_log == Some(access_log(LINE));
        self.nodes.iter().all(as_usual) && self.nodes.iter().all(|node| node.lives == 0)
    }

    /// Clients that have all their answers have as many bytes as their lines say.
    fn judge_delivered(&self) {
        let quiet = |client: &&Client| {
            client.frames.is_none()
                && client.raw.is_none()
                && !client.gone
                && client.current().is_none()
                && client.interim().is_empty()
                && client.tunnel.is_empty()
        };
        for client in self.clients.iter().filter(quiet).filter(|_| self.says_line()) {
            let port = client.port.to_string();
            let own = self
                .lines
                .iter()
                .map(|line| line.split(' ').collect::<Vec<_>>())
                .filter(|line| line[0] == port);
            let (mut told, mut tunnels) = (0, 0);
            for line in own {
                told += line[4].parse::<u64>().expect("a number of bytes");
                tunnels += usize::from(line[3] == "101" || line[1] == "CONNECT");
            }
            let expected = client.taken;
            // A tunnel has its line when it ends.
            let tunnelled = client.statuses().contains(&101) || self.serves == Serves::Forward;
            let open = tunnelled && tunnels == 0;
            assert!(
                open || told == expected,
                "client {port} took {expected} bytes, its lines say {told}"
            );
        }
    }

    /// Each request has its line.
    fn judge_lines(&self) {
        if self.says_line() {
            let understood =
                self.lines.iter().filter(|line| line.split(' ').nth(1) != Some("-")).count();
            assert_eq!(
                understood as u64,
                self.count(|counters| counters.requests.get()),
                "lines of the access log"
            );
        }
    }
}

/// The honest response to any request.
pub fn honest(seen: &Seen<'_>) -> Option<Vec<Do>> {
    seen.complete.then(|| vec![Do::Answer(answer(seen.request))])
}

/// The response of an honest server: to HEAD without the body.
pub fn answer(request: &Request) -> Vec<u8> {
    let mut bytes = weir_check::upstreams::honest_answer(request.nonce());
    if request.method == "HEAD" {
        let end = bytes
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
            .map_or(bytes.len(), |at| at + 4);
        bytes.truncate(end);
    }
    bytes
}

/// Bytes in pieces.
pub fn pieces(bytes: &[u8], cut: Cut, rng: &mut Rng) -> Vec<Vec<u8>> {
    match cut {
        Cut::Whole if bytes.is_empty() => Vec::new(),
        Cut::Whole => vec![bytes.to_vec()],
        Cut::Each(size) => bytes.chunks(size).map(<[u8]>::to_vec).collect(),
        Cut::Random => {
            let (mut rest, mut all) = (bytes, Vec::new());
            while !rest.is_empty() {
                let longest = if rng.one_in(3) { 8 } else { rest.len() as u64 };
                let size = (1 + rng.below(longest) as usize).min(rest.len());
                all.push(rest[..size].to_vec());
                rest = &rest[size..];
            }
            all
        }
    }
}
