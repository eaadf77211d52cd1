//! One worker of a run, on its driver of the simulated world: exactly the worker that runs on
//! sockets.

use std::cell::Cell;
use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use weir_io::sim::{Rng, SimDriver, SimWorld};
use weir_io::{
    AcceptQueue, Class, Completion, Delivery, Departure, Driver, DriverStats, Event, Loose,
    Outbound, Payload, Receive, RecvBuf, Relayed, Socket, Token, Waker,
};
use weir_proxy::base::token;
use weir_proxy::engine::{Engine, Hints, Parts};
use weir_proxy::observe::counters::Counters;
use weir_proxy::observe::histogram::Histogram;
use weir_proxy::observe::server_stats::ServerStats;
use weir_proxy::shield::bans::Offence;
use weir_tls::Seal;
use weir_tls::paper::{ClientPapers, Papers};
use weir_worker::{Command, Control, Sealing, Worker, mailboxes_of};

use super::scenario::Scenario;

/// How long a handshake with a client may take, microseconds.
const HANDSHAKE_US: u64 = 10_000_000;

/// The most offences of a worker that wait to be read.
const OFFENCES_MAX: usize = 10_000;

/// Where a worker panics next: simulates a bug in weir, in the middle of anything that its machines
/// do.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Fault {
    #[default]
    None,
    /// After this number of commands to its driver.
    Command(u64),
    /// When it handles an event: the number decides how many of the other events that its driver
    /// reports in that turn come before it, and how many after.
    Event(u64),
    /// When it has given mail to another worker, and perhaps not all of it.
    Mail,
}

type Fuse = Rc<Cell<Fault>>;

thread_local! {
    /// The worker whose turn it is panics when it wakes another.
    static WAKING_FAILS: Cell<bool> = const { Cell::new(false) };
}

/// The message of such a panic.
pub const FAULT: &str = "a fault point";

/// The socket of a client that never existed. A worker that handles it panics.
const NOBODYS: Socket = Socket { index: u32::MAX, generation: 0 };

/// A driver with fault points at its commands, events and wakes.
struct Fused {
    inner: SimDriver,
    fuse: Fuse,
    /// Sockets that don't belong to clients.
    connected: HashSet<Socket>,
    /// Clients that were connected when the worker panicked.
    clients_lost: Rc<Cell<u64>>,
    /// Connections that were released, and reported in this turn.
    loose: Cell<u64>,
}

impl Fused {
    fn point(&self) {
        match self.fuse.get() {
            Fault::Command(1) => self.burn(),
            Fault::Command(left) => self.fuse.set(Fault::Command(left - 1)),
            _ => {}
        }
    }

    fn burn(&self) -> ! {
        self.fuse.set(Fault::None);
        burn()
    }
}

fn burn() -> ! {
    // This bypasses the message of the panic hook.
    std::panic::resume_unwind(Box::new(FAULT))
}

struct FusedWaker(Arc<dyn Waker>);

impl Waker for FusedWaker {
    fn wake(&self) {
        self.0.wake();
        if WAKING_FAILS.take() {
            burn();
        }
    }
}

impl Driver for Fused {
    fn now_us(&self) -> u64 {
        self.inner.now_us()
    }

    fn listen(&mut self, listener: impl Into<OwnedFd>, token: Token) -> io::Result<Socket> {
        self.inner.listen(listener, token)
    }

    fn turn_away(&mut self, listener: Socket) {
        self.inner.turn_away(listener);
    }

    fn hand_over(&mut self, listener: Socket) {
        self.inner.hand_over(listener);
    }

    fn duplicate(&mut self, listener: Socket) -> io::Result<OwnedFd> {
        self.inner.duplicate(listener)
    }

    fn set_backlog(&mut self, listener: Socket, backlog: u32) {
        self.inner.set_backlog(listener, backlog);
    }

    fn connect_by(
        &mut self,
        way: Outbound<'_>,
        to: SocketAddr,
        token: Token,
    ) -> io::Result<Socket> {
        self.point();
        let socket = self.inner.connect_by(way, to, token)?;
        self.connected.insert(socket);
        Ok(socket)
    }

    fn connect_unix(&mut self, path: &Path, token: Token) -> io::Result<Socket> {
        self.inner.connect_unix(path, token)
    }

    fn adopt(&mut self, begun: OwnedFd, token: Token) -> io::Result<Socket> {
        self.point();
        let socket = self.inner.adopt(begun, token)?;
        self.connected.insert(socket);
        Ok(socket)
    }

    fn release(&mut self, socket: Socket) -> bool {
        self.point();
        self.inner.release(socket)
    }

    fn take_in(&mut self, connection: Loose, token: Token) -> io::Result<Socket> {
        if self.fuse.get() == Fault::Command(1) {
            // No worker has this client then.
            self.clients_lost.set(self.clients_lost.get() + 1);
        }
        self.point();
        self.inner.take_in(connection, token)
    }

    fn set_token(&mut self, socket: Socket, token: Token) {
        if socket == NOBODYS {
            self.burn();
        }
        self.point();
        self.inner.set_token(socket, token);
    }

    fn receive(&mut self, socket: Socket, how: Receive) {
        self.point();
        self.inner.receive(socket, how);
    }

    fn send(&mut self, socket: Socket, payload: Payload) {
        self.point();
        self.inner.send(socket, payload);
    }

    fn shutdown_write(&mut self, socket: Socket) {
        self.point();
        self.inner.shutdown_write(socket);
    }

    fn defer(&mut self, socket: Socket, on: bool) {
        self.point();
        self.inner.defer(socket, on);
    }

    fn acknowledge(&mut self, socket: Socket) {
        self.point();
        self.inner.acknowledge(socket);
    }

    fn relay(&mut self, a: Socket, b: Socket) {
        self.point();
        self.inner.relay(a, b);
    }

    fn relayed(&self, socket: Socket) -> Option<Relayed> {
        self.inner.relayed(socket)
    }

    fn close(&mut self, socket: Socket) {
        if socket == NOBODYS {
            self.burn();
        }
        self.point();
        self.inner.close(socket);
    }

    fn reset(&mut self, socket: Socket) {
        self.point();
        self.inner.reset(socket);
    }

    fn streams(&self) -> Vec<Socket> {
        // The worker restarts: one panic is enough.
        WAKING_FAILS.set(false);
        self.fuse.set(Fault::None);
        let streams = self.inner.streams();
        let clients =
            streams.iter().filter(|socket| !self.connected.contains(socket)).count() as u64;
        self.clients_lost.set(self.clients_lost.get() + clients + self.loose.take());
        streams
    }

    fn recycle(&mut self, buffer: RecvBuf) {
        self.point();
        self.inner.recycle(buffer);
    }

    fn buffers(&self, class: Class) -> (u32, u32) {
        self.inner.buffers(class)
    }

    fn accept_queue(&mut self, listener: Socket) -> Option<AcceptQueue> {
        self.inner.accept_queue(listener)
    }

    fn delivery(&mut self, socket: Socket) -> Delivery {
        self.inner.delivery(socket)
    }

    fn departure(&mut self, socket: Socket) -> Departure {
        self.inner.departure(socket)
    }

    fn destination(&mut self, socket: Socket) -> Option<SocketAddr> {
        self.inner.destination(socket)
    }

    fn path(&mut self, socket: Socket) -> Option<weir_io::Path> {
        self.inner.path(socket)
    }

    fn set_congestion(&mut self, socket: Socket, name: &str) {
        self.inner.set_congestion(socket, name);
    }

    fn keep_alive(&mut self, socket: Socket) {
        self.inner.keep_alive(socket);
    }

    fn receiving_core(&mut self, socket: Socket) -> Option<u32> {
        self.inner.receiving_core(socket)
    }

    fn turn(&mut self, wait_us: Option<u64>, into: &mut Vec<Completion>) -> io::Result<()> {
        WAKING_FAILS.set(self.fuse.get() == Fault::Mail);
        self.inner.turn(wait_us, into)?;
        self.loose.set(
            into.iter().filter(|completion| matches!(completion.event, Event::Released(_))).count()
                as u64,
        );
        if let Fault::Event(number) = self.fuse.get()
            && !into.is_empty()
        {
            let event =
                Event::Accepted { socket: NOBODYS, peer: SocketAddr::from(([10, 9, 9, 9], 9)) };
            let token = token::Token::Listener { index: 0 }.pack();
            into.insert(
                number as usize % (into.len() + 1),
                Completion { token, socket: NOBODYS, event },
            );
        }
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Waker> {
        Arc::new(FusedWaker(self.inner.waker()))
    }

    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn stats(&self) -> DriverStats {
        self.inner.stats()
    }
}

pub struct Node {
    worker: Worker<Fused>,
    counters: Arc<Counters>,
    servers: Vec<Arc<ServerStats>>,
    control: Arc<Control>,
    waker: Arc<dyn Waker>,
    fuse: Fuse,
    clients_lost: Rc<Cell<u64>>,
    offences: Receiver<Offence>,
}

/// Makes the workers of a scenario, joined by mailboxes. Worker n uses driver n.
pub fn nodes(world: &SimWorld, scenario: &Scenario) -> Vec<Node> {
    let &Scenario { ref plan, ref prepared, workers, posts_max, seed, sealed, .. } = scenario;
    let servers_count = plan.upstreams.iter().map(|upstream| upstream.servers.len()).sum();
    let hints = Arc::new(Hints::new(servers_count, usize::from(workers)));
    let make = |(number, mailbox)| {
        let counters = Arc::new(Counters::default());
        let fuse = Fuse::default();
        let servers = ServerStats::for_plan(plan);
        let parts = Parts {
            plan: Arc::clone(plan),
            worker: number,
            workers,
            seed: seed ^ u64::from(number),
            secret: [seed, u64::from(number)],
            hints: Arc::clone(&hints),
            counters: Arc::clone(&counters),
            latency: Arc::new(Histogram::default()),
            hits: Arc::default(),
            servers: servers.clone(),
            relays: true,
        };
        let listen = |listener: &weir_proxy::plan::ListenerPlan| {
            world.listener(listener.address.network().expect("of TCP")).expect("a socket")
        };
        let listeners = plan.listeners.iter().map(listen).collect();
        let (connected, clients_lost) = (HashSet::new(), Rc::default());
        let driver = Fused {
            inner: world.driver(),
            fuse: Rc::clone(&fuse),
            connected,
            clients_lost: Rc::clone(&clients_lost),
            loose: Cell::new(0),
        };
        let waker = driver.inner.waker();
        let mut worker = Worker::new(driver, parts, listeners, mailbox).expect("a worker");
        let (sender, offences) = sync_channel(OFFENCES_MAX);
        worker.set_offences(sender);
        prepared.iter().for_each(|prepared| worker.set_prepared(Arc::clone(prepared)));
        if sealed.clients {
            let seal = Arc::new(Papers(Rng::new(seed ^ 0xf118).index(5_000)));
            worker.seal_listeners(&[Some(Sealing { seal, handshake_timeout_us: HANDSHAKE_US })]);
        }
        if sealed.servers {
            let seal: Arc<dyn Seal> = Arc::new(ClientPapers::default());
            worker.set_server_seals(vec![Some(seal); servers_count]);
        }
        Node {
            worker,
            counters,
            servers,
            control: Arc::default(),
            waker,
            fuse,
            clients_lost,
            offences,
        }
    };
    (0..workers).zip(mailboxes_of(workers, posts_max)).map(make).collect()
}

impl Node {
    pub fn turn(&mut self) {
        self.worker.obey(&self.control);
        self.worker.turn(None).expect("the simulated driver never fails");
    }

    /// Lets it give idle connections to another worker, before anything else in its turn.
    pub fn shed(&self, to: u16, most: u32) {
        self.control.command(Command::Shed { to, most }).expect("room for it");
    }

    pub fn engine(&self) -> &Engine {
        self.worker.engine()
    }

    /// Sets where it panics next.
    pub fn set_fault(&self, fault: Fault) {
        self.fuse.set(fault);
    }

    /// Whether a panic is pending.
    pub fn is_faulty(&self) -> bool {
        self.fuse.get() != Fault::None
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Clients that were connected to it when it panicked.
    pub fn clients_lost(&self) -> u64 {
        self.clients_lost.get()
    }

    /// The clients that it wants banned since the last call.
    pub fn offences(&self) -> impl Iterator<Item = Offence> {
        self.offences.try_iter()
    }

    /// Its counters of each server.
    pub fn servers(&self) -> &[Arc<ServerStats>] {
        &self.servers
    }

    /// Where an operator's commands go, and the waker that makes the worker look at them.
    pub fn control(&self) -> (Arc<Control>, Arc<dyn Waker>) {
        (Arc::clone(&self.control), Arc::clone(&self.waker))
    }

    pub fn drain(&mut self) {
        self.worker.drain();
    }

    pub fn is_drained(&self) -> bool {
        self.worker.is_drained()
    }
}
