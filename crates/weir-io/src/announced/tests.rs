//! Proves: however a header and the bytes behind it come, the caller sees one connection of the
//! client that it names, and exactly the bytes behind it. A peer that is no balancer, sends
//! something else or takes too long is closed and never seen; and nothing is left of any of them.
//! How: clients of the simulated network that send pieces in their own time, over networks of many
//! seeds.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::*;
use crate::sim::{Actor, Conn, Faults, Ledger, Net, Rng, Settings, SimDriver, SimWorld, Step};

const HEADER: &[u8] = b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n";
const LISTENER: Token = 7;
/// Between two pieces.
const PAUSE_US: u64 = 1_000;

fn server() -> SocketAddr {
    "192.0.2.1:80".parse().expect("an address")
}

/// A client that sends these pieces one after the other, and ends its direction then if it is
/// `brief`.
struct Pieces {
    pieces: Vec<Vec<u8>>,
    brief: bool,
    conn: Option<Conn>,
    /// Whether the other side has ended the connection.
    over: Rc<RefCell<bool>>,
}

impl Actor for Pieces {
    fn on_start(&mut self, net: &mut Net<'_>) {
        self.conn = Some(net.connect(server()));
    }

    fn on_connected(&mut self, net: &mut Net<'_>, _: Conn, _: io::Result<()>) {
        net.timer(PAUSE_US, 0);
    }

    fn on_timer(&mut self, net: &mut Net<'_>, at: u64) {
        let Some(conn) = self.conn else { return };
        match self.pieces.get(at as usize) {
            Some(piece) => {
                net.send(conn, piece);
                net.timer(PAUSE_US, at + 1);
            }
            None if self.brief => net.finish(conn),
            None => {}
        }
    }

    fn on_data(&mut self, _: &mut Net<'_>, _: Conn, _: &[u8]) {}

    fn on_end(&mut self, net: &mut Net<'_>, conn: Conn) {
        *self.over.borrow_mut() = true;
        net.close(conn);
    }

    fn on_reset(&mut self, _: &mut Net<'_>, _: Conn) {
        *self.over.borrow_mut() = true;
    }
}

/// What the caller sees of one connection.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    peer: Option<SocketAddr>,
    bytes: Vec<u8>,
    ended: bool,
}

/// A driver with one announced listener, and a caller that reads all.
struct Bench {
    world: SimWorld,
    driver: Announced<SimDriver>,
    listener: Socket,
    seen: BTreeMap<u32, Seen>,
}

impl Bench {
    fn new(seed: u64, settings: Settings, trusts: bool) -> Bench {
        let world = SimWorld::new(seed, settings);
        let mut driver = Announced::new(world.driver());
        let listener = driver
            .listen(world.listener(server()).expect("a socket"), LISTENER)
            .expect("it listens");
        driver.announce(listener, Some(Arc::new(move |_| trusts)));
        Bench { world, driver, listener, seen: BTreeMap::new() }
    }

    /// A client. The returned flag says whether its connection is over, when the rest has run.
    fn client(&self, pieces: &[&[u8]], brief: bool) -> Rc<RefCell<bool>> {
        let over = Rc::default();
        let pieces = pieces.iter().map(|piece| piece.to_vec()).collect();
        self.world.actor(Pieces { pieces, brief, conn: None, over: Rc::clone(&over) });
        over
    }

    fn run(&mut self, time_us: u64) {
        let until_us = self.world.now_us() + time_us;
        loop {
            let mut all = Vec::new();
            match self.world.step_until(until_us) {
                Step::Event => {}
                Step::Turn(_) => self.driver.turn(None, &mut all).expect("never fails"),
                Step::Idle => break,
            }
            all.into_iter().for_each(|completion| self.take(completion));
        }
    }

    fn take(&mut self, Completion { token, socket, event }: Completion) {
        match event {
            Event::Accepted { socket: new, peer } => {
                assert_eq!((token, socket), (LISTENER, self.listener));
                let told = SocketAddr::from(([198, 51, 100, 1], 443));
                let is_named = peer.ip().to_string() == "192.0.2.7";
                assert_eq!(
                    self.driver.destination(new),
                    Some(if is_named { told } else { server() })
                );
                self.driver.set_token(new, 9);
                // Only one in two reads continuously; the others ask for each piece.
                let how = if new.index % 2 == 0 {
                    Receive::Many(Class::Small)
                } else {
                    Receive::Once(Class::Small)
                };
                self.driver.receive(new, how);
                let before =
                    self.seen.insert(new.index, Seen { peer: Some(peer), ..Seen::default() });
                assert!(before.is_none(), "it is told once");
            }
            Event::Received(bytes) => {
                assert_eq!(token, 9);
                self.seen
                    .get_mut(&socket.index)
                    .expect("it was accepted")
                    .bytes
                    .extend_from_slice(&bytes);
                self.driver.recycle(bytes);
                if socket.index % 2 == 1 {
                    self.driver.receive(socket, Receive::Once(Class::Small));
                }
            }
            Event::Ended => {
                self.seen.get_mut(&socket.index).expect("it was accepted").ended = true;
                self.driver.close(socket);
            }
            Event::ReceiveFailed(error) => panic!("{error}"),
            _ => {}
        }
    }

    /// Nothing is left but the listener.
    fn is_clean(&mut self) {
        self.run(1_000_000);
        assert!(
            self.driver.waiting.is_empty()
                && self.driver.deadlines.is_empty()
                && self.driver.ready.is_empty()
        );
        assert!(self.driver.destinations.is_empty());
        assert_eq!(self.driver.inner().ledger(), Ledger { listeners: 1, ..Ledger::default() });
    }
}

#[test]
fn a_header_in_any_pieces() {
    for seed in 0..200 {
        let rng = &mut Rng::new(seed);
        let mut bench = Bench::new(seed, Settings::random(seed, Faults::harmless(seed)), true);
        let rest: Vec<u8> = (0..rng.below(10_000)).map(|at| at as u8).collect();
        let all = [HEADER, &rest].concat();
        for _ in 0..1 + rng.below(4) {
            let mut cuts: Vec<usize> =
                (0..rng.below(5)).map(|_| rng.index(HEADER.len() + 20).min(all.len())).collect();
            cuts.extend([0, all.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &all[pair[0]..pair[1]]).collect();
            let pieces: Vec<&[u8]> = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
            bench.client(&pieces, true);
            bench.run(60_000_000);
            let seen = bench.seen.pop_first().map(|(_, seen)| seen);
            let peer = Some("192.0.2.7:4711".parse().expect("an address"));
            assert_eq!(seen, Some(Seen { peer, bytes: rest.clone(), ended: true }), "seed {seed}");
        }
        assert_eq!(bench.driver.take_refused(), 0);
        bench.is_clean();
    }
}

#[test]
fn c11_who_is_not_announced_is_never_seen() {
    let long = [b'x'; 200];
    // Whether it is trusted, what it sends, whether it ends then, and whether it is closed only
    // when its time is over.
    let cases: [(bool, &[&[u8]], bool, bool); 7] = [
        (false, &[HEADER, b"GET"], false, false),
        (true, &[b"GET / HTTP/1.1\r\n"], false, false),
        (true, &[b"PROXY ", b"TCP4 a b 1 2\r\n"], false, false),
        (true, &[b"PROXY UNKNOWN ", &long], false, false),
        (true, &[&HEADER[..20]], false, true),
        (true, &[], false, true),
        // It leaves in the middle: not counted as a fault.
        (true, &[&HEADER[..20]], true, false),
    ];
    for (trusts, pieces, brief, is_slow) in cases {
        let mut bench = Bench::new(1, Settings::calm(), trusts);
        let over = bench.client(pieces, brief);
        bench.run(HEADER_US - 1_000_000);
        assert_eq!(*over.borrow(), !is_slow, "{pieces:?}");
        bench.run(2_000_000);
        assert!(*over.borrow() && bench.seen.is_empty());
        assert_eq!(bench.driver.take_refused(), u64::from(!brief), "{pieces:?}");
        bench.is_clean();
    }
}

/// Closing its listener also closes a connection that waits for the rest of a header; without
/// announcements clients connect directly.
#[test]
fn listeners_change_and_go() {
    let mut bench = Bench::new(1, Settings::calm(), true);
    let over = bench.client(&[&HEADER[..20]], false);
    bench.run(1_000_000);
    assert_eq!((bench.driver.streams().len(), bench.driver.inner().streams().len()), (0, 1));
    bench.driver.announce(bench.listener, None);
    bench.client(&[b"plain"], true);
    bench.run(1_000_000);
    let seen = bench.seen.pop_first().map(|(_, seen)| seen.bytes);
    assert_eq!((seen, *over.borrow()), (Some(b"plain".to_vec()), false));
    let listener = bench.listener;
    bench.driver.close(listener);
    bench.run(1_000_000);
    assert!(*over.borrow() && bench.seen.is_empty());
    assert_eq!(bench.driver.inner().ledger(), Ledger::default());
}

/// A server that accepts everything.
struct Origin {
    received: Rc<RefCell<Vec<u8>>>,
}

impl Actor for Origin {
    fn on_start(&mut self, net: &mut Net<'_>) {
        net.listen(origin());
    }

    fn on_data(&mut self, _: &mut Net<'_>, _: Conn, bytes: &[u8]) {
        self.received.borrow_mut().extend_from_slice(bytes);
    }

    fn on_end(&mut self, net: &mut Net<'_>, conn: Conn) {
        net.close(conn);
    }
}

fn origin() -> SocketAddr {
    "192.0.2.9:80".parse().expect("an address")
}

/// A connection that begins with a header is reported as connected once, and bytes sent then come
/// behind it; other connections are unchanged.
#[test]
fn a_header_comes_first() {
    for seed in 0..200 {
        let settings = Settings::random(seed, Faults::harmless(seed));
        let world = SimWorld::new(seed, settings);
        let mut driver = Announced::new(world.driver());
        let received = Rc::<RefCell<Vec<u8>>>::default();
        let (is_preceded, is_there) = (seed % 2 == 0, seed % 3 > 0);
        if is_there {
            world.actor(Origin { received: Rc::clone(&received) });
        }
        while world.step() == Step::Event {}
        let socket = driver.connect(origin(), 4).expect("no fault");
        if is_preceded {
            driver.precede(socket, HEADER.to_vec());
        }
        let mut events = Vec::new();
        loop {
            let mut all = Vec::new();
            match world.step_until(60_000_000) {
                Step::Event => {}
                Step::Turn(_) => driver.turn(None, &mut all).expect("never fails"),
                Step::Idle => break,
            }
            for Completion { token, event, .. } in all {
                assert_eq!(token, 4);
                if matches!(event, Event::Connected(Ok(()))) {
                    driver.send(socket, Payload::Owned(b"rest".to_vec()));
                }
                events.push(event);
            }
        }
        driver.close(socket);
        assert!(driver.waiting.is_empty());
        match (&events[..], is_there) {
            ([Event::Connected(Ok(())), Event::Sent { result: Ok(()), .. }], true) => {}
            ([Event::Connected(Err(_))], false) => {}
            _ => panic!("seed {seed}: {events:?}"),
        }
        let expected = [if is_preceded { HEADER } else { b"" }, b"rest"].concat();
        assert_eq!(*received.borrow(), if is_there { expected } else { Vec::new() }, "seed {seed}");
    }
}

/// A connection that is given up leaves nothing, whether it is connected, or its header is on its
/// way.
#[test]
fn a_preceded_connection_may_be_closed() {
    for turns in 0..8 {
        let world = SimWorld::new(1, Settings::calm());
        let mut driver = Announced::new(world.driver());
        world.actor(Origin { received: Rc::default() });
        while world.step() == Step::Event {}
        let socket = driver.connect(origin(), 4).expect("no fault");
        driver.precede(socket, HEADER.to_vec());
        assert_eq!(driver.streams(), [socket]);
        let mut all = Vec::new();
        for _ in 0..turns {
            match world.step_until(60_000_000) {
                Step::Turn(_) => driver.turn(Some(1_000), &mut all).expect("never fails"),
                Step::Event | Step::Idle => {}
            }
        }
        driver.close(socket);
        assert!(driver.waiting.is_empty());
        for _ in 0..20 {
            if let Step::Turn(_) = world.step_until(60_000_000) {
                driver.turn(Some(1_000), &mut all).expect("never fails");
            }
        }
        assert_eq!(driver.inner().ledger(), Ledger::default());
    }
}
