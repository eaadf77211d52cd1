//! Relays in a network where everything fails: a client talks to an echoing origin through a
//! program that forwards bytes itself until, at a point drawn from the seed, it hands both sockets
//! to its driver. The echoed bytes are the sent ones, or a prefix of them where connections are
//! harmed; nothing is left behind; a seed repeats its run.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;

use super::super::{Actor, Conn, Faults, Ledger, Net, Rng, Settings, SimDriver, SimWorld};
use crate::{Class, Completion, Driver, Event, Payload, Receive, RelayEnd, Socket};

const SECOND: u64 = 1_000_000;

fn tunnel() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 80))
}

fn origin() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 2], 80))
}

fn pattern(from: usize, to: usize) -> Vec<u8> {
    (from..to).map(|position| (position * 31 + (position >> 8)) as u8).collect()
}

/// Echoes bytes, and answers an end with an end.
struct Origin;

impl Actor for Origin {
    fn on_start(&mut self, net: &mut Net<'_>) {
        net.listen(origin());
    }

    fn on_data(&mut self, net: &mut Net<'_>, conn: Conn, data: &[u8]) {
        net.send(conn, data);
    }

    fn on_end(&mut self, net: &mut Net<'_>, conn: Conn) {
        net.finish(conn);
    }
}

#[derive(Default)]
struct Heard {
    bytes: usize,
    ended: bool,
    reset: bool,
}

/// Sends something, then ends, and listens until the other side has ended, with pauses.
struct Client {
    total: usize,
    sent: usize,
    conn: Option<Conn>,
    heard: Rc<RefCell<Heard>>,
}

impl Actor for Client {
    fn on_start(&mut self, net: &mut Net<'_>) {
        self.conn = Some(net.connect(tunnel()));
    }

    fn on_connected(&mut self, net: &mut Net<'_>, conn: Conn, _: std::io::Result<()>) {
        self.on_drained(net, conn);
    }

    fn on_drained(&mut self, net: &mut Net<'_>, conn: Conn) {
        if self.sent == self.total {
            return net.finish(conn);
        }
        let stop = self.total.min(self.sent + 1 + net.rng().index(40_000));
        net.send(conn, &pattern(self.sent, stop));
        self.sent = stop;
        if net.rng().chance(50) {
            net.pause(conn);
            net.timer(20_000, 0);
        }
    }

    fn on_timer(&mut self, net: &mut Net<'_>, _: u64) {
        if let Some(conn) = self.conn {
            net.resume(conn);
        }
    }

    fn on_data(&mut self, _: &mut Net<'_>, _: Conn, data: &[u8]) {
        let heard = &mut *self.heard.borrow_mut();
        assert_eq!(
            data,
            pattern(heard.bytes, heard.bytes + data.len()),
            "bytes come back in order"
        );
        heard.bytes += data.len();
    }

    fn on_end(&mut self, net: &mut Net<'_>, conn: Conn) {
        self.heard.borrow_mut().ended = true;
        if self.sent == self.total {
            net.close(conn);
        }
    }

    fn on_reset(&mut self, _: &mut Net<'_>, _: Conn) {
        self.heard.borrow_mut().reset = true;
    }
}

/// One side of a pair before it is relayed.
#[derive(Default)]
struct Side {
    peer: Option<Socket>,
    waiting: VecDeque<Bytes>,
    sending: bool,
    /// The other side has ended.
    finish: bool,
    shut: bool,
}

/// The program in the middle.
struct Tunnel {
    driver: SimDriver,
    sides: BTreeMap<(u32, u32), Side>,
    rng: Rng,
    relays: usize,
    complete: usize,
}

fn key(socket: Socket) -> (u32, u32) {
    (socket.index, socket.generation)
}

impl Tunnel {
    fn new(world: &SimWorld, seed: u64) -> Tunnel {
        let mut driver = world.driver();
        driver.listen_at(tunnel(), 0);
        Tunnel {
            driver,
            sides: BTreeMap::new(),
            rng: Rng::new(seed ^ 0x7e1a),
            relays: 0,
            complete: 0,
        }
    }

    fn turn(&mut self) {
        let mut got = Vec::new();
        self.driver.turn(None, &mut got).expect("never fails");
        let mut touched = Vec::new();
        for completion in got {
            touched.push(completion.socket);
            self.handle(completion);
        }
        // Only now: other bytes that the turn brought were handed out and have to be forwarded
        // first.
        for socket in touched {
            if self.rng.chance(100) {
                self.hand_over(socket);
            }
        }
    }

    fn handle(&mut self, completion: Completion) {
        let socket = completion.socket;
        match completion.event {
            Event::Accepted { socket, .. } => {
                let Ok(other) = self.driver.connect(origin(), 1) else {
                    return self.driver.close(socket);
                };
                for (socket, peer) in [(socket, other), (other, socket)] {
                    self.sides.insert(key(socket), Side { peer: Some(peer), ..Side::default() });
                }
            }
            Event::Connected(Ok(())) => {
                let Some(peer) = self.peer(socket) else { return };
                self.driver.receive(socket, Receive::Many(Class::Large));
                self.driver.receive(peer, Receive::Many(Class::Small));
            }
            Event::Received(bytes) => {
                let bytes = bytes.into_bytes();
                self.change_peer(socket, |side| side.waiting.push_back(bytes));
            }
            Event::Ended => self.change_peer(socket, |side| side.finish = true),
            Event::Sent { result: Ok(()), .. } => {
                if let Some(side) = self.sides.get_mut(&key(socket)) {
                    side.sending = false;
                }
                self.flush(socket);
            }
            Event::RelayEnded { how, .. } => {
                self.complete += usize::from(matches!(how, RelayEnd::Complete));
                self.end(socket, !matches!(how, RelayEnd::Complete));
            }
            Event::Connected(Err(_)) | Event::Sent { .. } | Event::ReceiveFailed(_) => {
                self.end(socket, true)
            }
            Event::AcceptFailed(_) => {}
            Event::Released(_) | Event::Woken => panic!("nobody asks for it"),
        }
    }

    fn peer(&self, socket: Socket) -> Option<Socket> {
        self.sides.get(&key(socket))?.peer
    }

    fn change_peer(&mut self, from: Socket, change: impl FnOnce(&mut Side)) {
        let Some(peer) = self.peer(from) else { return };
        if let Some(side) = self.sides.get_mut(&key(peer)) {
            change(side);
        }
        self.flush(peer);
    }

    fn flush(&mut self, socket: Socket) {
        let Some(side) = self.sides.get_mut(&key(socket)) else { return };
        if side.sending || self.driver.relayed(socket).is_some() {
            return;
        }
        if !side.waiting.is_empty() {
            side.sending = true;
            self.driver.send(socket, Payload::Vectored(side.waiting.drain(..).collect()));
        } else if side.finish && !side.shut {
            side.shut = true;
            self.driver.shutdown_write(socket);
            let peer = side.peer;
            if peer.and_then(|peer| self.sides.get(&key(peer))).is_some_and(|side| side.shut) {
                self.end(socket, false);
            }
        }
    }

    /// When all handed-out bytes are on their way.
    fn hand_over(&mut self, socket: Socket) {
        let Some(peer) = self.peer(socket) else { return };
        let given =
            [socket, peer].iter().all(|socket| self.sides[&key(*socket)].waiting.is_empty());
        if given && self.driver.relayed(socket).is_none() {
            self.driver.relay(socket, peer);
            self.relays += usize::from(self.driver.relayed(socket).is_some());
        }
    }

    fn end(&mut self, socket: Socket, failed: bool) {
        for socket in [Some(socket), self.peer(socket)].into_iter().flatten() {
            self.sides.remove(&key(socket));
            if failed { self.driver.reset(socket) } else { self.driver.close(socket) }
        }
    }
}

/// The outcome of one run.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    trace: u64,
    relays: usize,
    complete: usize,
    /// Clients that received everything and the end.
    content: usize,
}

const CLIENTS: usize = 6;

fn run(seed: u64, faults: Faults) -> Outcome {
    let world = SimWorld::new(seed, Settings::random(seed, faults));
    world.actor(Origin);
    let mut tunnel = Tunnel::new(&world, seed);
    let clients: Vec<_> =
        (0..CLIENTS).map(|n| (20_000 * n * n, Rc::new(RefCell::new(Heard::default())))).collect();
    for (total, heard) in &clients {
        world.actor(Client { total: *total, sent: 0, conn: None, heard: heard.clone() });
    }
    world.run(600 * SECOND, 5_000_000, |_| tunnel.turn(), || false);
    // A connection that vanished silently leaves its pair behind.
    while let Some(&(index, generation)) = tunnel.sides.keys().next() {
        tunnel.end(Socket { index, generation }, true);
    }
    assert_eq!(tunnel.driver.ledger(), Ledger { listeners: 1, ..Ledger::default() }, "seed {seed}");
    let content = clients.iter().filter(|(total, heard)| {
        let heard = heard.borrow();
        heard.ended && !heard.reset && heard.bytes == *total
    });
    let content = content.count();
    Outcome { trace: world.trace_hash(), relays: tunnel.relays, complete: tunnel.complete, content }
}

#[test]
fn harmless_faults_lose_nothing() {
    let mut relays = 0;
    for seed in 0..60 {
        let outcome = run(seed, Faults::harmless(seed));
        assert_eq!(outcome.content, CLIENTS, "seed {seed}");
        assert_eq!(outcome.complete, outcome.relays, "seed {seed}");
        relays += outcome.relays;
    }
    assert!(relays > 150, "{relays} of 360 tunnels were handed over");
}

#[test]
fn random_faults_harm_some_and_leak_nothing() {
    let outcomes: Vec<Outcome> = (0..80).map(|seed| run(seed, Faults::random(seed))).collect();
    let (relays, complete) =
        outcomes.iter().fold((0, 0), |sum, one| (sum.0 + one.relays, sum.1 + one.complete));
    assert!(complete > 20 && complete < relays, "{complete} of {relays}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..10 {
        assert_eq!(run(seed, Faults::random(seed)), run(seed, Faults::random(seed)), "seed {seed}");
    }
}

#[test]
#[should_panic(expected = "not connected")]
fn relaying_before_the_connect_has_ended_is_misuse() {
    let world = SimWorld::new(1, Settings::calm());
    let mut driver = world.driver();
    let [a, b] = [2, 3].map(|token| driver.connect(origin(), token).expect("a socket"));
    driver.relay(a, b);
}
