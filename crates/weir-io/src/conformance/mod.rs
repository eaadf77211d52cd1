//! One test suite for all drivers: whatever the kernel does below, the world above must look the
//! same.
//!
//! Each test opens both ends of its connections on the one driver under test, so that the same text
//! runs on io_uring, epoll and the simulation. [`Bench`] turns the driver, sorts completions by
//! socket, and checks invariants on the way: nothing is delivered for a closed socket, nothing is
//! received after an end, buffers fit their class. At the end every buffer must have come back.
//! Nothing sleeps; each wait has a deadline in the driver's own time. That of a real driver is
//! extended as `weir_check::waiting` does while the machine is busy.

pub mod begun;
pub mod chaos;
pub mod faults;
pub mod flow;
pub mod later;
pub mod real;
pub mod relay;
pub mod release;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use weir_check::waiting::{DEADLINE, Waiting};

use crate::sim::{Settings, SimDriver, SimWorld, Step};
use crate::{
    Class, Completion, Driver, Event, Loose, Options, Payload, Receive, RecvBuf, RelayEnd, Relayed,
    Released, Socket,
};

/// Time after which a test gives up, microseconds of the driver; see [`Patience`].
const DEADLINE_US: u64 = 60_000_000;

/// Longest wait of one turn, microseconds.
const TURN_US: u64 = 100_000;

/// How long a test waits for one thing. A simulated driver passes through its minute in no time, so
/// that only its own clock counts; the clock of a real driver is that of the machine, which may be
/// busy.
struct Patience {
    deadline_us: u64,
    waiting: Waiting,
    begun: Instant,
}

impl Patience {
    fn new(now_us: u64) -> Patience {
        Patience {
            deadline_us: now_us + DEADLINE_US,
            waiting: Waiting::begin(),
            begun: Instant::now(),
        }
    }

    /// # Panics
    /// It has waited long enough for `what`.
    fn check(&mut self, now_us: u64, what: &str) {
        let is_real = self.begun.elapsed() >= DEADLINE / 2;
        let goes_on = self.waiting.goes_on();
        assert!(
            now_us < self.deadline_us || is_real && goes_on,
            "not in time: {what}; {}",
            self.waiting.story()
        );
    }
}

/// Makes drivers of one kind and turns them.
pub trait Subject {
    /// The driver under test.
    type Driver: Driver;

    /// A fresh driver with these sizes.
    fn driver(&self, options: Options) -> Self::Driver;

    /// A second one, which can take in what the first one releases.
    fn another(&self, options: Options) -> Self::Driver {
        self.driver(options)
    }

    /// Runs before a turn: the simulation advances its network.
    fn advance(&self) {}

    /// Bytes that one receive may bring beyond the size of its buffer.
    fn slack(&self) -> u32 {
        0
    }

    /// Pipes that relays hold.
    fn pipes_in_use(&self, driver: &Self::Driver) -> usize;

    /// Whether a connection of the driver with itself may come from this address.
    fn may_be_client(&self, address: SocketAddr) -> bool {
        address.ip().is_loopback() && address.port() != 0
    }
}

/// io_uring.
pub struct UringSubject;

impl Subject for UringSubject {
    type Driver = crate::Uring;

    fn driver(&self, options: Options) -> crate::Uring {
        crate::Uring::new(options).expect("this machine has io_uring")
    }

    fn pipes_in_use(&self, driver: &crate::Uring) -> usize {
        let (pipes, unused) = driver.relays.pipes();
        pipes - unused
    }
}

/// io_uring with hardly any room: operations are submitted early, completions overflow, buffers run
/// out all the time.
pub struct TinyUringSubject;

impl Subject for TinyUringSubject {
    type Driver = crate::Uring;

    fn driver(&self, options: Options) -> crate::Uring {
        let tiny = Options {
            queue_entries: 2,
            completion_entries: 4,
            small_armed: 2,
            large_armed: 1,
            completions_per_turn: 3,
            ..options
        };
        UringSubject.driver(tiny)
    }

    fn pipes_in_use(&self, driver: &crate::Uring) -> usize {
        UringSubject.pipes_in_use(driver)
    }
}

/// epoll.
pub struct EpollSubject;

impl Subject for EpollSubject {
    type Driver = crate::Epoll;

    fn driver(&self, options: Options) -> crate::Epoll {
        crate::Epoll::new(options).expect("a driver")
    }

    fn pipes_in_use(&self, driver: &crate::Epoll) -> usize {
        let (pipes, unused) = driver.relays.pipes();
        pipes - unused
    }
}

/// The simulation, without faults.
#[derive(Default)]
pub struct SimSubject {
    world: RefCell<Option<SimWorld>>,
}

impl Subject for SimSubject {
    type Driver = SimDriver;

    fn driver(&self, options: Options) -> SimDriver {
        let settings = Settings {
            small_buffers: options.small_count.into(),
            large_buffers: options.large_count.into(),
            ..Settings::calm()
        };
        let world = SimWorld::new(1, settings);
        let driver = world.driver();
        self.world.replace(Some(world));
        driver
    }

    fn another(&self, _: Options) -> SimDriver {
        self.world.borrow().as_ref().expect("a driver was made").driver()
    }

    fn advance(&self) {
        let world = self.world.borrow().clone().expect("a driver was made");
        while world.step() == Step::Event {}
    }

    fn pipes_in_use(&self, driver: &SimDriver) -> usize {
        driver.ledger().relays as usize
    }

    fn may_be_client(&self, _: SocketAddr) -> bool {
        true
    }
}

/// A test of the suite and its name.
pub type Test<S> = (&'static str, fn(&S));

/// Makes a test of each function for each driver; those of `real` are not for the simulation.
/// Drivers of other crates take them from `tests`.
macro_rules! suite {
    (simulated: $($test:ident),* $(,)?) => {
        $crate::conformance::suite!($($test),*);
        #[cfg(test)]
        mod sim {
            $(#[test] fn $test() { super::$test(&$crate::conformance::SimSubject::default()); })*
        }
    };
    ($($test:ident),* $(,)?) => {
        /// All tests of this file.
        pub fn tests<S: $crate::conformance::Subject>() -> Vec<$crate::conformance::Test<S>> {
            vec![$((stringify!($test), $test as fn(&S))),*]
        }

        #[cfg(test)]
        mod uring {
            $(#[test] fn $test() { if crate::probe().driver == crate::DriverKind::Uring {
                super::$test(&$crate::conformance::UringSubject);
            } })*
        }
        #[cfg(test)]
        mod uring_tiny {
            $(#[test] fn $test() { if crate::probe().driver == crate::DriverKind::Uring {
                super::$test(&$crate::conformance::TinyUringSubject);
            } })*
        }
        #[cfg(test)]
        mod epoll {
            $(#[test] fn $test() { super::$test(&$crate::conformance::EpollSubject); })*
        }
    };
}
pub(crate) use suite;

/// What happened to one socket.
#[derive(Default)]
pub struct Seen {
    /// All received bytes, in order.
    pub received: Vec<u8>,
    /// Completions that brought them.
    pub pieces: usize,
    /// FIN.
    pub ended: bool,
    /// The error that ended receiving.
    pub failed: Option<io::Error>,
    /// Outcomes of sends.
    pub sent: Vec<(Payload, io::Result<()>)>,
    /// Outcome of the connect.
    pub connected: Option<io::Result<()>>,
    /// Token of the last completion.
    pub token: u64,
    /// The end of the relay, reported for its first socket.
    pub relay_end: Option<(Relayed, RelayEnd)>,
    /// It was released.
    pub released: Option<Released>,
    relaying: bool,
    class: Option<Class>,
}

impl Seen {
    /// Receiving is over.
    pub fn is_over(&self) -> bool {
        self.ended || self.failed.is_some()
    }
}

/// A driver under test, a listener on it, and everything that was seen.
pub struct Bench<'a, S: Subject> {
    subject: &'a S,
    pub driver: S::Driver,
    pub listener: Socket,
    pub address: SocketAddr,
    pub seen: HashMap<Socket, Seen>,
    /// Accepted sockets that no test took yet, oldest first, with the client's address.
    pub accepted: Vec<(Socket, SocketAddr)>,
    pub accept_errors: usize,
    pub woken: usize,
    /// Keep received buffers in `held` instead of recycling them at once.
    pub hold: bool,
    pub held: Vec<(Socket, RecvBuf)>,
    strangers: Vec<Socket>,
    closed: HashSet<Socket>,
    options: Options,
}

const LISTENER: u64 = 77;

impl<'a, S: Subject> Bench<'a, S> {
    pub fn new(subject: &'a S) -> Bench<'a, S> {
        Bench::with(subject, Options::default())
    }

    pub fn with(subject: &'a S, options: Options) -> Bench<'a, S> {
        let mut driver = subject.driver(options);
        let listener = local_listener();
        let address = listener.local_addr().expect("an address");
        let listener = driver.listen(listener, LISTENER).expect("listening");
        Bench {
            subject,
            driver,
            listener,
            address,
            seen: HashMap::new(),
            accepted: Vec::new(),
            accept_errors: 0,
            woken: 0,
            hold: false,
            held: Vec::new(),
            strangers: Vec::new(),
            closed: HashSet::new(),
            options,
        }
    }

    /// One turn.
    pub fn turn(&mut self, wait_us: u64) {
        let mut completions = Vec::new();
        self.subject.advance();
        self.driver.turn(Some(wait_us), &mut completions).expect("a turn");
        for completion in completions {
            self.sort(completion);
        }
    }

    fn sort(&mut self, completion: Completion) {
        let Completion { token, socket, event } = completion;
        match event {
            Event::Woken => self.woken += 1,
            Event::Accepted { socket: new, peer } => {
                assert_eq!((token, socket), (LISTENER, self.listener));
                assert!(!self.seen.contains_key(&new), "a name is never used twice");
                self.seen.insert(new, Seen::default());
                self.accepted.push((new, peer));
            }
            Event::AcceptFailed(_) => {
                assert_eq!((token, socket), (LISTENER, self.listener));
                self.accept_errors += 1;
            }
            event => self.sort_stream(token, socket, event),
        }
    }

    fn sort_stream(&mut self, token: u64, socket: Socket, event: Event) {
        assert!(!self.closed.contains(&socket), "{event:?} after close");
        let seen = self.seen.get_mut(&socket).expect("a known socket");
        seen.token = token;
        if matches!(event, Event::Received(_) | Event::Ended | Event::ReceiveFailed(_)) {
            assert!(!seen.is_over(), "{event:?} after the end");
            assert!(!seen.relaying, "{event:?} of a socket that is relayed");
        }
        match event {
            Event::Received(bytes) => {
                assert!(!bytes.is_empty(), "received bytes are never empty");
                let most = if seen.class == Some(Class::Small) {
                    self.options.small_bytes
                } else {
                    self.options.large_bytes
                };
                assert!(bytes.len() <= (most + self.subject.slack()) as usize);
                seen.pieces += 1;
                seen.received.extend_from_slice(&bytes);
                if self.hold { self.held.push((socket, bytes)) } else { self.driver.recycle(bytes) }
            }
            Event::Ended => seen.ended = true,
            Event::ReceiveFailed(error) => seen.failed = Some(error),
            Event::Sent { payload, result } => seen.sent.push((payload, result)),
            Event::Connected(result) => {
                assert!(seen.connected.is_none(), "a connect ends once");
                seen.connected = Some(result);
            }
            Event::RelayEnded { moved, how } => {
                assert!(seen.relaying && seen.relay_end.is_none(), "a relay ends once");
                seen.relay_end = Some((moved, how));
            }
            Event::Released(released) => {
                seen.released = Some(*released);
                self.closed.insert(socket);
            }
            other => panic!("{other:?}"),
        }
    }

    /// Turns until `done`, with a deadline.
    ///
    /// # Panics
    /// At the deadline, with `what`.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let mut patience = Patience::new(self.driver.now_us());
        while !done(self) {
            patience.check(self.driver.now_us(), what);
            self.turn(TURN_US);
        }
    }

    /// The observations of a socket.
    pub fn of(&mut self, socket: Socket) -> &mut Seen {
        self.seen.get_mut(&socket).expect("a known socket")
    }

    /// Starts a connect.
    pub fn connect(&mut self, to: SocketAddr) -> Socket {
        let socket = self.driver.connect(to, 1).expect("a socket");
        self.seen.insert(socket, Seen::default());
        socket
    }

    /// The same to a unix socket.
    pub fn connect_unix(&mut self, path: &Path) -> Socket {
        let socket = self.driver.connect_unix(path, 1).expect("a socket");
        self.seen.insert(socket, Seen::default());
        socket
    }

    /// The same with a socket that has already begun its connect.
    pub fn adopt(&mut self, begun: OwnedFd) -> Socket {
        let socket = self.driver.adopt(begun, 1).expect("a socket");
        self.seen.insert(socket, Seen::default());
        socket
    }

    /// Takes in a released connection, under a name that was never used.
    pub fn take_in(&mut self, connection: Loose) -> Socket {
        let socket = self.driver.take_in(connection, 3).expect("a connection of this driver");
        assert!(!self.seen.contains_key(&socket), "a name is never used twice");
        self.seen.insert(socket, Seen::default());
        socket
    }

    /// Releases a connection and waits for it.
    pub fn release(&mut self, socket: Socket) -> Released {
        assert!(self.driver.release(socket), "an idle stream");
        self.until("a release", |bench| bench.of(socket).released.is_some());
        self.of(socket).released.take().expect("just seen")
    }

    /// A connection: the connecting end, the accepted end.
    pub fn pair(&mut self) -> (Socket, Socket) {
        let near = self.connect(self.address);
        self.until("a connection", |bench| {
            bench.of(near).connected.is_some() && !bench.accepted.is_empty()
        });
        assert!(self.of(near).connected.as_ref().expect("just seen").is_ok());
        let (far, peer) = self.accepted.remove(0);
        assert!(self.subject.may_be_client(peer), "{peer}");
        self.driver.set_token(far, 2);
        (near, far)
    }

    /// Changes how a socket is read; the classes of later buffers are checked.
    pub fn receive(&mut self, socket: Socket, how: Receive) {
        let seen = self.of(socket);
        // A racing completion may still be of the earlier class: no check once classes were mixed.
        seen.class = match (how, seen.class, seen.pieces) {
            (Receive::Once(class) | Receive::Many(class), None, 0) => Some(class),
            (Receive::Once(class) | Receive::Many(class), Some(before), _) if class == before => {
                Some(class)
            }
            (Receive::Off, class, _) => class,
            _ => Some(Class::Large),
        };
        self.driver.receive(socket, how);
    }

    pub fn send(&mut self, socket: Socket, bytes: &[u8]) {
        self.driver.send(socket, Payload::Owned(bytes.to_vec()));
    }

    /// Sends and waits for the outcome, which must be good.
    pub fn send_all(&mut self, socket: Socket, bytes: &[u8]) {
        let before = self.of(socket).sent.len();
        self.send(socket, bytes);
        self.until("a send", |bench| bench.of(socket).sent.len() > before);
        let (payload, result) = &self.of(socket).sent[before];
        assert!(matches!(payload, Payload::Owned(back) if back == bytes), "the payload comes back");
        assert!(result.is_ok(), "{result:?}");
    }

    /// Waits until a socket has received exactly these bytes in all.
    pub fn expect(&mut self, socket: Socket, bytes: &[u8]) {
        self.until("bytes", |bench| bench.of(socket).received.len() >= bytes.len());
        assert!(self.of(socket).received == bytes, "other bytes than were sent");
    }

    /// Starts a relay; from here on the two sockets must report nothing else.
    pub fn relay(&mut self, a: Socket, b: Socket) {
        self.of(a).relaying = true;
        self.of(b).relaying = true;
        self.driver.relay(a, b);
    }

    pub fn is_closed(&self, socket: Socket) -> bool {
        self.closed.contains(&socket)
    }

    pub fn close(&mut self, socket: Socket) {
        self.driver.close(socket);
        self.closed.insert(socket);
    }

    pub fn reset(&mut self, socket: Socket) {
        self.driver.reset(socket);
        self.closed.insert(socket);
    }

    /// A round trip on a separate connection: everything sent before it has arrived after it.
    pub fn fence(&mut self) {
        let (near, far) = self.pair();
        self.receive(far, Receive::Many(Class::Small));
        self.send_all(near, b"fence");
        self.expect(far, b"fence");
        self.close(near);
        self.close(far);
    }

    /// Closes everything; every buffer must come back.
    pub fn finish(mut self) {
        for (_, buffer) in std::mem::take(&mut self.held) {
            self.driver.recycle(buffer);
        }
        let open: Vec<Socket> =
            self.seen.keys().filter(|socket| !self.closed.contains(socket)).copied().collect();
        open.into_iter().for_each(|socket| self.close(socket));
        assert_eq!(self.subject.pipes_in_use(&self.driver), 0, "pipes of relays that are gone");
        self.until("all buffers", |bench| {
            let (small, large) =
                (bench.driver.buffers(Class::Small), bench.driver.buffers(Class::Large));
            small.0 == small.1 && large.0 == large.1
        });
        self.fence();
        let stats = self.driver.stats();
        assert!(stats.turns > 0 && stats.accepts > 0 && stats.completions > 0, "{stats:?}");
    }
}

/// A listener on a port of the kernel's choice.
pub fn local_listener() -> TcpListener {
    crate::bind_listener("127.0.0.1:0".parse().expect("an address"), 4096).expect("a listener")
}

/// Bytes that reveal their position by their value.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed).wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}
