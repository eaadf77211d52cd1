//! A world in memory for the engine: clients, servers, other workers and a clock that stands still until told.
//!
//! Every byte towards a server goes through the judge of requests, every byte towards a client through the judge of
//! replies; commands that a driver forbids (two sends at a time, sends on closed connections) fail the test. One turn
//! of an engine is what the worker's loop does with a driver.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use weir_check::{End, Reply, Request, Rules, StrictReplies, StrictRequests};
use weir_proxy::counters::Counters;
use weir_proxy::engine::{Action, Engine, Hints, Input, Parts};
use weir_proxy::histogram::Histogram;
use weir_proxy::mail::Post;
use weir_proxy::output::Out;
use weir_proxy::plan::{Plan, ServerPlan, UpstreamPlan};
use weir_proxy::route::{HostMatch, Route, RouteTable};

/// Port of server 0; server n listens on the n-th port behind it.
const PORT: u16 = 9000;
/// Turns without progress in time after which a test is stuck.
const TURNS_MAX: usize = 200_000;
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

/// What a server does next on one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Do {
    /// Writes bytes; the oldest unanswered request has its final answer with them.
    Answer(Vec<u8>),
    /// Writes bytes that answer nothing (yet).
    Bytes(Vec<u8>),
    /// Answers with 101 and speaks another protocol from here on.
    Switch(Vec<u8>),
    /// Lets time pass.
    Delay(u64),
    /// Waits until this client has a reply, or at least the beginning of one.
    AwaitReply(usize),
    Fin,
    Rst,
    /// Never does anything again.
    Silence,
}

/// A request as a server sees it: complete, or its head and the body so far.
#[derive(Debug)]
pub struct Seen<'a> {
    pub conn: usize,
    /// How many came before it on this connection.
    pub nth: usize,
    pub request: &'a Request,
    pub complete: bool,
}

/// A server's answer to a request; None while it wants to see more of it (or never answers).
pub type Serve = Box<dyn FnMut(&Seen<'_>) -> Option<Vec<Do>>>;

/// How a server meets connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    Open,
    Refuses,
    /// Connects are not answered at all.
    Mute,
}

pub struct Server {
    pub door: Door,
    pub serve: Serve,
    /// Does not read: sends towards it never end.
    pub deaf: bool,
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
    connected: bool,
    /// weir closed it.
    pub closed: bool,
    /// weir ended its sending direction.
    pub fin: bool,
    pub judge: StrictRequests,
    /// Complete requests so far.
    pub requests: Vec<Request>,
    /// Most unanswered requests at a time since this was last set to 0.
    pub depth: usize,
    /// Bytes of a tunnel that arrived.
    pub tunnel: Vec<u8>,
    tunnelling: bool,
    script: VecDeque<Do>,
    wait_until_us: u64,
    incoming: VecDeque<Incoming>,
    receiving: bool,
    /// Receives were asked for and not answered, for tests of back-pressure.
    pub sending: bool,
    sent_ok: bool,
    head_answered: bool,
    deaf_send: bool,
}

impl Conn {
    /// Whether weir wants to read it.
    pub fn is_read(&self) -> bool {
        self.receiving
    }

    /// Bytes that weir has not taken.
    pub fn unread(&self) -> usize {
        let len = |incoming: &Incoming| if let Incoming::Bytes(bytes) = incoming { bytes.len() } else { 0 };
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
    token: u64,
    pending: VecDeque<Incoming>,
    receiving: bool,
    judge: StrictReplies,
    pub replies: Vec<Reply>,
    /// How weir ended it, if it did.
    pub end: Option<End>,
    /// weir closed it (not only its sending direction).
    pub closed: bool,
    /// weir closed it with a reset.
    pub was_reset: bool,
    /// Left by itself.
    pub gone: bool,
    /// Resets when the first bytes of a reply arrive.
    pub leaves: bool,
    stalled: bool,
    sending: Option<Out>,
    /// Bytes behind a 101.
    pub tunnel: Vec<u8>,
    /// All bytes that weir has handed over.
    pub taken: u64,
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

    /// Whether weir reads it.
    pub fn is_read(&self) -> bool {
        self.receiving
    }

    /// Bytes it has sent that weir has not taken.
    pub fn unread(&self) -> usize {
        let len = |incoming: &Incoming| if let Incoming::Bytes(bytes) = incoming { bytes.len() } else { 0 };
        self.pending.iter().map(len).sum()
    }
}

enum Event {
    Connected(usize, bool),
    LinkSent(usize, bool),
    ClientSent(usize, Option<Vec<u8>>),
}

pub struct Node {
    pub engine: Engine,
    pub counters: Arc<Counters>,
    events: VecDeque<Event>,
    inbox: VecDeque<Post>,
    /// Posts for this worker are held back.
    pub mail_stopped: bool,
}

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

/// All of it.
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
    /// Pass large pieces by reference.
    pub shared: bool,
    timers: BTreeMap<u64, ()>,
}

/// A plan with one upstream of so many servers, with so many connections each.
pub fn plan(servers: usize, connections: u32) -> Plan {
    let servers = (0..servers)
        .map(|n| {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT + n as u16));
            ServerPlan { connections, ..ServerPlan::new("origin.test:9000", address) }
        })
        .collect();
    let route = Route { host: HostMatch::Any, path: "/".to_owned(), methods: None, target: 0 };
    Plan {
        upstreams: vec![UpstreamPlan { name: "app".to_owned(), servers, ..UpstreamPlan::default() }],
        routes: RouteTable::new(vec![route]),
        ..Plan::default()
    }
}

impl World {
    /// Engines for this plan; servers answer honestly until told otherwise.
    pub fn new(plan: Plan, workers: u16, seed: u64) -> World {
        let plan = Arc::new(plan);
        let servers: usize = plan.upstreams.iter().map(|upstream| upstream.servers.len()).sum();
        let hints = Arc::new(Hints::new(servers, usize::from(workers)));
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
                };
                let engine = Engine::new(parts, now_us);
                Node { engine, counters, events: VecDeque::new(), inbox: VecDeque::new(), mail_stopped: false }
            })
            .collect();
        let servers = (0..servers).map(|_| Server { door: Door::Open, serve: Box::new(honest), deaf: false }).collect();
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
            shared: true,
            timers: BTreeMap::new(),
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

    /// What all servers do.
    pub fn serve(&mut self, serve: impl FnMut(&Seen<'_>) -> Option<Vec<Do>> + 'static) {
        self.servers[0].serve = Box::new(serve);
    }

    // ---- clients ----

    /// A new client of an engine.
    pub fn client_of(&mut self, node: usize) -> usize {
        let number = self.clients.len();
        let peer = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 40_000);
        let token = self.nodes[node].engine.accepted(CLIENT_SOCKETS + number as u64, peer).expect("accepted");
        self.clients.push(Client {
            node,
            token,
            pending: VecDeque::new(),
            receiving: true,
            judge: StrictReplies::new(),
            replies: Vec::new(),
            end: None,
            closed: false,
            was_reset: false,
            gone: false,
            leaves: false,
            stalled: false,
            sending: None,
            tunnel: Vec::new(),
            taken: 0,
        });
        number
    }

    pub fn client(&mut self) -> usize {
        self.client_of(0)
    }

    /// Tells the judge of a request that bytes sent later contain.
    pub fn expect(&mut self, client: usize, method: &str, old: bool, upgrade: bool) {
        self.clients[client].judge.ask(method, old, upgrade);
    }

    /// Queues bytes of a client as one segment.
    pub fn send(&mut self, client: usize, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.clients[client].pending.push_back(Incoming::Bytes(bytes.to_vec()));
        }
    }

    /// Queues bytes of a client, cut.
    pub fn send_cut(&mut self, client: usize, bytes: &[u8], cut: Cut) {
        for piece in pieces(bytes, cut, &mut self.rng) {
            self.send(client, &piece);
        }
    }

    /// A GET with a nonce.
    pub fn get(&mut self, client: usize, nonce: &str) {
        self.ask(client, "GET", &format!("/v?n={nonce}"), "");
    }

    /// A request without a body; `fields` are complete lines.
    pub fn ask(&mut self, client: usize, method: &str, target: &str, fields: &str) {
        self.expect(client, method, false, fields.contains("Upgrade"));
        let text = format!("{method} {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        self.send(client, text.as_bytes());
    }

    /// A POST whose complete body is in the same segment.
    pub fn post(&mut self, client: usize, nonce: &str, body: &[u8]) {
        self.expect(client, "POST", false, false);
        let head = format!("POST /p?n={nonce} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len());
        self.send(client, &[head.as_bytes(), body].concat());
    }

    /// The client ends its sending direction.
    pub fn half_close(&mut self, client: usize) {
        self.clients[client].pending.push_back(Incoming::Fin);
    }

    /// The client resets.
    pub fn reset(&mut self, client: usize) {
        self.clients[client].pending.clear();
        self.clients[client].pending.push_back(Incoming::Rst);
        self.clients[client].receiving = true;
    }

    /// The client reads nothing, or all again.
    pub fn stall(&mut self, client: usize, stalled: bool) {
        self.clients[client].stalled = stalled;
        if !stalled && let Some(out) = self.clients[client].sending.take() {
            self.hand_over(client, out);
        }
    }

    /// Lets a stalled client take one send.
    pub fn sip(&mut self, client: usize) {
        if let Some(out) = self.clients[client].sending.take() {
            self.hand_over(client, out);
        }
    }

    fn hand_over(&mut self, client: usize, out: Out) {
        let machine = &mut self.clients[client];
        let bytes = out.to_vec();
        machine.taken += bytes.len() as u64;
        if !machine.gone {
            machine.judge.feed(&bytes).unwrap_or_else(|fault| panic!("client {client}: {fault:?}"));
        }
        machine.replies.extend(std::iter::from_fn(|| machine.judge.poll_reply()));
        machine.tunnel.extend(machine.judge.take_tunnel());
        if machine.leaves {
            machine.pending = VecDeque::from([Incoming::Rst]);
            machine.receiving = true;
            machine.leaves = false;
        }
        let spare = if let Out::Owned(buffer) = out { Some(buffer) } else { None };
        self.nodes[machine.node].events.push_back(Event::ClientSent(client, spare));
    }

    fn client_end(&mut self, client: usize) {
        let machine = &mut self.clients[client];
        if machine.end.is_none() {
            machine.end = Some(machine.judge.end());
            machine.replies.extend(std::iter::from_fn(|| machine.judge.poll_reply()));
        }
    }

    // ---- servers ----

    /// A server says something on a connection without being asked.
    pub fn say(&mut self, conn: usize, what: Do) {
        self.conns[conn].script.push_back(what);
    }

    /// Open upstream connections.
    pub fn open_conns(&self) -> Vec<usize> {
        (0..self.conns.len()).filter(|&conn| self.conns[conn].is_open()).collect()
    }

    /// Complete requests that reached servers, in the order in which they did.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.arrivals.iter().map(|(conn, position)| &self.conns[*conn].requests[*position])
    }

    /// How often a request with this nonce reached a server completely.
    pub fn times_served(&self, nonce: &str) -> usize {
        self.requests().filter(|request| request.nonce() == nonce).count()
    }

    /// From here on `depth` of connections is measured anew.
    pub fn measure_depth(&mut self) {
        self.conns.iter_mut().for_each(|conn| conn.depth = conn.judge.unanswered());
    }

    /// Most unanswered requests on one connection since [`World::measure_depth`].
    pub fn depth(&self) -> usize {
        self.conns.iter().map(|conn| conn.depth).max().unwrap_or_default()
    }

    /// Plays what servers have to do now. True when something happened.
    fn play(&mut self) -> bool {
        let mut acted = false;
        for conn in 0..self.conns.len() {
            while self.play_one(conn) {
                acted = true;
            }
        }
        acted
    }

    fn play_one(&mut self, number: usize) -> bool {
        let conn = &mut self.conns[number];
        if self.now_us < conn.wait_until_us {
            return false;
        }
        let Some(next) = conn.script.front() else { return false };
        if let Do::AwaitReply(client) = next {
            let client = &self.clients[*client];
            let has = !client.replies.is_empty() || client.judge.current().is_some() || client.gone;
            if !has {
                return false;
            }
        }
        if *next == Do::Silence {
            return false;
        }
        let Some(next) = conn.script.pop_front() else { return false };
        let bytes = match next {
            Do::Delay(us) => {
                conn.wait_until_us = self.now_us + us;
                self.timers.insert(conn.wait_until_us, ());
                return true;
            }
            Do::Fin => {
                conn.incoming.push_back(Incoming::Fin);
                return true;
            }
            Do::Rst => {
                conn.incoming.push_back(Incoming::Rst);
                conn.sent_ok = false;
                conn.script.clear();
                return true;
            }
            Do::Answer(bytes) => {
                conn.judge.answered();
                bytes
            }
            Do::Switch(bytes) => {
                conn.judge.upgraded();
                conn.tunnelling = true;
                bytes
            }
            Do::Bytes(bytes) => bytes,
            Do::AwaitReply(_) | Do::Silence => return true,
        };
        for piece in pieces(&bytes, self.cut_upstream, &mut self.rng) {
            self.conns[number].incoming.push_back(Incoming::Bytes(piece));
        }
        true
    }

    /// weir sent bytes to a server.
    fn arrive(&mut self, number: usize, bytes: &[u8]) {
        let conn = &mut self.conns[number];
        assert!(!conn.fin, "conn {number}: bytes behind the end");
        conn.judge.feed(bytes).unwrap_or_else(|fault| panic!("conn {number}: {fault:?}"));
        conn.depth = conn.depth.max(conn.judge.unanswered());
        if conn.tunnelling {
            conn.tunnel.extend(conn.judge.take_tunnel());
            return;
        }
        let serve = &mut self.servers[conn.server].serve;
        while let Some(request) = conn.judge.poll_request() {
            let seen = Seen { conn: number, nth: conn.requests.len(), request: &request, complete: true };
            if !std::mem::take(&mut conn.head_answered) {
                conn.script.extend(serve(&seen).unwrap_or_else(|| vec![Do::Silence]));
            }
            self.arrivals.push((number, conn.requests.len()));
            conn.requests.push(request);
        }
        if let Some(request) = conn.judge.current()
            && !conn.head_answered
        {
            let seen = Seen { conn: number, nth: conn.requests.len(), request, complete: false };
            if let Some(script) = serve(&seen) {
                conn.head_answered = true;
                conn.script.extend(script);
            }
        }
    }

    // ---- time ----

    /// Runs until nothing happens any more at this time.
    pub fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            let mut acted = self.play();
            for node in 0..self.nodes.len() {
                acted |= self.turn(node);
            }
            if !acted {
                return;
            }
        }
        panic!("never comes to rest");
    }

    /// One turn of everything.
    pub fn settle_once(&mut self) {
        self.play();
        for node in 0..self.nodes.len() {
            self.turn(node);
        }
    }

    /// Lets this much time pass, with everything that is due in it.
    pub fn run_for(&mut self, us: u64) {
        let end_us = self.now_us + us;
        self.settle();
        while let Some(next_us) = self.next_us().filter(|next_us| *next_us <= end_us) {
            self.now_us = self.now_us.max(next_us);
            self.timers.retain(|due_us, ()| *due_us > self.now_us);
            // A turn for each engine even when nothing else happens: timers.
            for node in 0..self.nodes.len() {
                self.force_turn(node);
            }
            self.settle();
        }
        self.now_us = end_us;
        for node in 0..self.nodes.len() {
            self.force_turn(node);
        }
        self.settle();
    }

    fn next_us(&self) -> Option<u64> {
        let engines = self.nodes.iter().filter_map(|node| node.engine.next_deadline());
        let servers = self.timers.keys().copied().filter(|due_us| *due_us > self.now_us);
        engines.chain(servers).min()
    }

    /// One turn of an engine if anything is there for it. True when there was.
    fn turn(&mut self, node: usize) -> bool {
        let inputs = self.inputs(node);
        let machine = &self.nodes[node];
        let due = machine.engine.next_deadline().is_some_and(|due_us| due_us <= self.now_us);
        let mail = !machine.inbox.is_empty() && !machine.mail_stopped;
        if inputs.is_empty() && machine.events.is_empty() && !mail && !due {
            return false;
        }
        self.perform_turn(node, &inputs);
        true
    }

    fn force_turn(&mut self, node: usize) {
        let inputs = self.inputs(node);
        self.perform_turn(node, &inputs);
    }

    /// Clients (true) and connections (false) whose input would be delivered now.
    fn inputs(&mut self, node: usize) -> Vec<(bool, usize)> {
        let clients = self.clients.iter().enumerate();
        let clients = clients
            .filter(|(_, client)| client.node == node && client.receiving && !client.closed && !client.gone)
            .filter(|(_, client)| !client.pending.is_empty())
            .map(|(number, _)| (true, number));
        let conns = self.conns.iter().enumerate();
        let conns = conns
            .filter(|(_, conn)| conn.node == node && conn.is_open() && conn.receiving && !conn.incoming.is_empty())
            .map(|(number, _)| (false, number));
        let mut all: Vec<(bool, usize)> = clients.chain(conns).collect();
        if self.shuffled && all.len() > 1 {
            for at in (1..all.len()).rev() {
                all.swap(at, self.rng.below(at as u64 + 1) as usize);
            }
            let count = 1 + self.rng.below(all.len() as u64) as usize;
            all.truncate(count);
        }
        all
    }

    fn perform_turn(&mut self, node: usize, inputs: &[(bool, usize)]) {
        self.nodes[node].engine.begin_turn(self.now_us);
        let events = std::mem::take(&mut self.nodes[node].events);
        for event in events {
            self.deliver_event(node, event);
        }
        for (is_client, number) in inputs {
            if *is_client { self.feed_client(*number) } else { self.feed_conn(*number) }
        }
        if !self.nodes[node].mail_stopped {
            while let Some(post) = self.nodes[node].inbox.pop_front() {
                self.nodes[node].engine.deliver(post);
            }
        }
        self.nodes[node].engine.settle();
        self.act(node);
    }

    fn deliver_event(&mut self, node: usize, event: Event) {
        let engine = &mut self.nodes[node].engine;
        match event {
            Event::Connected(conn, ok) => {
                let conn = &mut self.conns[conn];
                if !conn.closed {
                    conn.connected = ok;
                    engine.link_connected(conn.token, ok);
                }
            }
            Event::LinkSent(conn, ok) => {
                let conn = &mut self.conns[conn];
                conn.sending = !ok;
                if !conn.closed {
                    engine.link_sent(conn.token, ok);
                }
            }
            Event::ClientSent(client, spare) => {
                let client = &mut self.clients[client];
                if !client.closed && !client.gone {
                    engine.client_sent(client.token, spare, true);
                }
            }
        }
    }

    fn feed_client(&mut self, number: usize) {
        let client = &mut self.clients[number];
        if client.closed || !client.receiving {
            return;
        }
        let engine = &mut self.nodes[client.node].engine;
        match client.pending.pop_front() {
            Some(Incoming::Bytes(bytes)) => engine.client_received(client.token, &Input::borrowed(&bytes)),
            Some(Incoming::Fin) => engine.client_ended(client.token),
            Some(Incoming::Rst) => {
                client.gone = true;
                engine.client_failed(client.token);
            }
            None => {}
        }
    }

    fn feed_conn(&mut self, number: usize) {
        let conn = &mut self.conns[number];
        if conn.closed || !conn.receiving {
            return;
        }
        let engine = &mut self.nodes[conn.node].engine;
        conn.receiving = false;
        match conn.incoming.pop_front() {
            Some(Incoming::Bytes(bytes)) if self.shared => {
                engine.link_received(conn.token, &Input::shared(&Bytes::from(bytes)));
            }
            Some(Incoming::Bytes(bytes)) => engine.link_received(conn.token, &Input::borrowed(&bytes)),
            Some(Incoming::Fin) => engine.link_ended(conn.token),
            Some(Incoming::Rst) => engine.link_failed(conn.token),
            None => {}
        }
    }

    fn act(&mut self, node: usize) {
        while let Some(action) = self.nodes[node].engine.poll_action() {
            self.perform(node, action);
        }
        for to in 0..self.nodes.len() {
            if let Some(post) = self.nodes[node].engine.take_post(to as u16) {
                assert_ne!(to, node, "mail to itself");
                self.nodes[to].inbox.push_back(post);
            }
        }
    }

    fn perform(&mut self, node: usize, action: Action) {
        match action {
            Action::SendClient { socket, out } => {
                let number = (socket - CLIENT_SOCKETS) as usize;
                let client = &mut self.clients[number];
                assert!(!client.closed && client.end.is_none(), "client {number}: a send behind the end");
                assert!(client.sending.is_none() && !out.is_empty());
                if client.stalled {
                    client.sending = Some(out);
                } else {
                    self.hand_over(number, out);
                }
            }
            Action::ReceiveClient { socket, on } => self.clients[(socket - CLIENT_SOCKETS) as usize].receiving = on,
            Action::ShutdownClient { socket } => {
                let number = (socket - CLIENT_SOCKETS) as usize;
                assert!(self.clients[number].sending.is_none(), "client {number}: its end overtakes a send");
                self.client_end(number);
            }
            Action::CloseClient { socket, reset } => {
                let number = (socket - CLIENT_SOCKETS) as usize;
                assert!(!self.clients[number].closed, "client {number}: closed twice");
                self.clients[number].closed = true;
                self.clients[number].was_reset = reset;
                self.client_end(number);
            }
            Action::Connect { token, address } => self.connect(node, token, address),
            Action::SendLink { socket, out } => self.send_link(socket as usize, &out),
            Action::ReceiveLink { socket } => {
                let conn = &mut self.conns[socket as usize];
                assert!(!conn.closed && !conn.receiving, "conn {socket}: receive armed twice");
                conn.receiving = true;
            }
            Action::ShutdownLink { socket } => {
                let conn = &mut self.conns[socket as usize];
                assert!(!conn.sending && !conn.closed, "conn {socket}: its end overtakes a send");
                conn.fin = true;
            }
            Action::CloseLink { socket } => {
                let conn = &mut self.conns[socket as usize];
                assert!(!conn.closed, "conn {socket}: closed twice");
                conn.closed = true;
            }
        }
    }

    fn send_link(&mut self, number: usize, out: &Out) {
        let conn = &mut self.conns[number];
        assert!(conn.is_open() && !conn.sending, "conn {number}: a send that is not allowed");
        assert!(!out.is_empty());
        conn.sending = true;
        let (node, ok, deaf) = (conn.node, conn.sent_ok, self.servers[conn.server].deaf);
        if deaf {
            conn.deaf_send = true;
        } else {
            if ok {
                self.arrive(number, &out.to_vec());
            }
            self.nodes[node].events.push_back(Event::LinkSent(number, ok));
        }
    }

    /// A deaf server takes the send that waits.
    pub fn swallow(&mut self, number: usize) {
        let conn = &mut self.conns[number];
        if std::mem::take(&mut conn.deaf_send) {
            self.nodes[conn.node].events.push_back(Event::LinkSent(number, true));
        }
    }

    fn connect(&mut self, node: usize, token: u64, address: SocketAddr) {
        let server = usize::from(address.port() - PORT);
        let number = self.conns.len();
        self.conns.push(Conn {
            node,
            server,
            token,
            connected: false,
            closed: false,
            fin: false,
            judge: StrictRequests::new(Rules::default()),
            requests: Vec::new(),
            depth: 0,
            tunnel: Vec::new(),
            tunnelling: false,
            script: VecDeque::new(),
            wait_until_us: 0,
            incoming: VecDeque::new(),
            receiving: false,
            sending: false,
            sent_ok: true,
            head_answered: false,
            deaf_send: false,
        });
        if !self.nodes[node].engine.link_started(token, number as u64) {
            self.conns[number].closed = true;
            return;
        }
        match self.servers[server].door {
            Door::Open => self.nodes[node].events.push_back(Event::Connected(number, true)),
            Door::Refuses => self.nodes[node].events.push_back(Event::Connected(number, false)),
            Door::Mute => {}
        }
    }

    // ---- judging ----

    /// Sum of a counter over all engines.
    pub fn count(&self, of: impl Fn(&Counters) -> u64) -> u64 {
        self.nodes.iter().map(|node| of(&node.counters)).sum()
    }

    /// All clients leave; nothing may be left behind.
    pub fn finish(mut self) {
        for client in 0..self.clients.len() {
            if !self.clients[client].closed && !self.clients[client].gone {
                self.reset(client);
            }
        }
        self.settle();
        for node in &self.nodes {
            assert_eq!((node.engine.sessions(), node.engine.exchanges()), (0, 0), "sessions and exchanges left");
        }
        assert_eq!(self.count(|counters| counters.client_connections.get()), 0, "client_connections");
        assert_eq!(self.count(|counters| counters.tunnels.get()), 0, "tunnels");
        // What waited for answers that nobody wants goes at the latest when the next answer or its end comes.
        assert!(self.count(|counters| counters.in_flight.get()) < 1 << 60, "in_flight below zero");
        assert_eq!(self.count(|counters| counters.queue_waiting.get()), 0, "queue_waiting");
    }
}

/// The honest answer to any request.
pub fn honest(seen: &Seen<'_>) -> Option<Vec<Do>> {
    seen.complete.then(|| vec![Do::Answer(answer(seen.request))])
}

/// What an honest server says: to HEAD without the body.
pub fn answer(request: &Request) -> Vec<u8> {
    let mut bytes = weir_check::upstreams::honest_answer(request.nonce());
    if request.method == "HEAD" {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").map_or(bytes.len(), |at| at + 4);
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
