//! One worker of a run, on its driver of the simulated world: exactly the worker that runs on sockets.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;

use weir_io::sim::{SimDriver, SimWorld};
use weir_io::{AcceptQueue, Class, Completion, Driver, DriverStats, Payload, Receive, RecvBuf, Socket, Token, Waker};
use weir_proxy::counters::Counters;
use weir_proxy::engine::{Engine, Hints, Parts};
use weir_proxy::histogram::Histogram;
use weir_proxy::plan::Plan;
use weir_proxy::stats::ServerStats;
use weir_worker::{Control, Worker, mailboxes_of};

/// Commands until one panics: that is a bug of weir's, in the middle of whatever its machines are doing.
pub type Fuse = Rc<Cell<u64>>;

/// What such a panic says.
pub const FAULT: &str = "a fault point";

/// A driver whose commands are fault points.
struct Fused {
    inner: SimDriver,
    fuse: Fuse,
}

impl Fused {
    fn point(&self) {
        match self.fuse.get() {
            0 => {}
            1 => {
                self.fuse.set(0);
                // Without the message of the panic hook.
                std::panic::resume_unwind(Box::new(FAULT));
            }
            left => self.fuse.set(left - 1),
        }
    }
}

impl Driver for Fused {
    fn now_us(&self) -> u64 {
        self.inner.now_us()
    }

    fn listen(&mut self, listener: TcpListener, token: Token) -> io::Result<Socket> {
        self.inner.listen(listener, token)
    }

    fn connect_from(&mut self, from: Option<IpAddr>, to: SocketAddr, token: Token) -> io::Result<Socket> {
        self.point();
        self.inner.connect_from(from, to, token)
    }

    fn set_token(&mut self, socket: Socket, token: Token) {
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

    fn acknowledge(&mut self, socket: Socket) {
        self.point();
        self.inner.acknowledge(socket);
    }

    fn close(&mut self, socket: Socket) {
        self.point();
        self.inner.close(socket);
    }

    fn reset(&mut self, socket: Socket) {
        self.point();
        self.inner.reset(socket);
    }

    fn streams(&self) -> Vec<Socket> {
        self.inner.streams()
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

    fn receiving_core(&mut self, socket: Socket) -> Option<u32> {
        self.inner.receiving_core(socket)
    }

    fn turn(&mut self, wait_us: Option<u64>, into: &mut Vec<Completion>) -> io::Result<()> {
        self.inner.turn(wait_us, into)
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.inner.waker()
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
}

/// So many workers with one configuration, joined by mailboxes. Worker n uses driver n.
/// `posts_max`: what their mailboxes hold.
pub fn nodes(world: &SimWorld, plan: &Arc<Plan>, workers: u16, posts_max: usize, seed: u64) -> Vec<Node> {
    let servers = plan.upstreams.iter().map(|upstream| upstream.servers.len()).sum();
    let hints = Arc::new(Hints::new(servers, usize::from(workers)));
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
            servers: servers.clone(),
        };
        let listen = |listener: &weir_proxy::plan::ListenerPlan| world.listener(listener.address).expect("a socket");
        let listeners = plan.listeners.iter().map(listen).collect();
        let driver = Fused { inner: world.driver(), fuse: Rc::clone(&fuse) };
        let waker = driver.waker();
        let worker = Worker::new(driver, parts, listeners, mailbox).expect("a worker");
        Node { worker, counters, servers, control: Arc::default(), waker, fuse }
    };
    (0..workers).zip(mailboxes_of(workers, posts_max)).map(make).collect()
}

impl Node {
    pub fn turn(&mut self) {
        self.worker.obey(&self.control);
        self.worker.turn(None).expect("the simulated driver never fails");
    }

    pub fn engine(&self) -> &Engine {
        self.worker.engine()
    }

    /// The command after so many that panics; 0 for none.
    pub fn set_fuse(&self, commands: u64) {
        self.fuse.set(commands);
    }

    /// Whether the fuse is still burning.
    pub fn is_fused(&self) -> bool {
        self.fuse.get() > 0
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What it counts of each server.
    pub fn servers(&self) -> &[Arc<ServerStats>] {
        &self.servers
    }

    /// Where it is told what an operator wants, and what makes it look.
    pub fn control(&self) -> (Arc<Control>, Arc<dyn Waker>) {
        (Arc::clone(&self.control), Arc::clone(&self.waker))
    }

    pub fn drain(&mut self) {
        self.worker.drain();
    }
}
