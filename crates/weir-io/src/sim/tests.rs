//! The simulated network keeps its promises: each test looks at one promise from both sides of a
//! connection, a driver's and an actor's; the last ones run a whole echo program over random
//! networks.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;

use super::{Actor, Conn, Faults, Ledger, Net, Settings, SimDriver, SimWorld, Step};
use crate::{Class, Completion, Driver, Event, Payload, Receive, Relayed, Socket};

const SERVER: &str = "192.0.2.1:80";
const SECOND: u64 = 1_000_000;

fn server() -> SocketAddr {
    SERVER.parse().expect("an address")
}

/// The events that an actor saw and the action that it has to take, shared with the test.
#[derive(Default)]
struct Shared {
    received: Vec<u8>,
    connected: Option<bool>,
    conn: Option<Conn>,
    ended: bool,
    reset: bool,
    drained: u32,
}

type Log = Rc<RefCell<Shared>>;
type Script = Box<dyn FnMut(&mut Net<'_>, Conn)>;

/// An actor that does one thing when it is connected or accepted, and logs.
struct Scripted {
    log: Log,
    listen: bool,
    script: Script,
    on_timer: Script,
}

impl Scripted {
    fn new(script: impl FnMut(&mut Net<'_>, Conn) + 'static) -> (Scripted, Log) {
        let log = Log::default();
        let actor = Scripted {
            log: log.clone(),
            listen: false,
            script: Box::new(script),
            on_timer: Box::new(|_, _| {}),
        };
        (actor, log)
    }

    fn listening(mut self) -> Scripted {
        self.listen = true;
        self
    }

    fn on_timer(mut self, run: impl FnMut(&mut Net<'_>, Conn) + 'static) -> Scripted {
        self.on_timer = Box::new(run);
        self
    }
}

impl Actor for Scripted {
    fn on_start(&mut self, net: &mut Net<'_>) {
        if self.listen {
            net.listen(server());
        } else {
            net.connect(server());
        }
    }

    fn on_accepted(&mut self, net: &mut Net<'_>, conn: Conn, _: SocketAddr) {
        self.log.borrow_mut().conn = Some(conn);
        (self.script)(net, conn);
    }

    fn on_connected(&mut self, net: &mut Net<'_>, conn: Conn, result: std::io::Result<()>) {
        self.log.borrow_mut().connected = Some(result.is_ok());
        self.log.borrow_mut().conn = Some(conn);
        if result.is_ok() {
            (self.script)(net, conn);
        }
    }

    fn on_data(&mut self, _: &mut Net<'_>, _: Conn, data: &[u8]) {
        self.log.borrow_mut().received.extend_from_slice(data);
    }

    fn on_end(&mut self, _: &mut Net<'_>, _: Conn) {
        self.log.borrow_mut().ended = true;
    }

    fn on_reset(&mut self, _: &mut Net<'_>, _: Conn) {
        self.log.borrow_mut().reset = true;
    }

    fn on_drained(&mut self, _: &mut Net<'_>, _: Conn) {
        self.log.borrow_mut().drained += 1;
    }

    fn on_timer(&mut self, net: &mut Net<'_>, _: u64) {
        if let Some(conn) = self.log.borrow().conn {
            (self.on_timer)(net, conn);
        }
    }
}

/// One driver turned by hand.
struct Bench {
    world: SimWorld,
    driver: SimDriver,
}

impl Bench {
    fn new(settings: Settings) -> Bench {
        let world = SimWorld::new(1, settings);
        let driver = world.driver();
        Bench { world, driver }
    }

    /// Lets everything happen that happens without the test, and returns the completions.
    fn settle(&mut self) -> Vec<Completion> {
        self.run_for(3600 * SECOND)
    }

    fn run_for(&mut self, time_us: u64) -> Vec<Completion> {
        let until_us = self.world.now_us() + time_us;
        let mut all = Vec::new();
        loop {
            match self.world.step_until(until_us) {
                Step::Event => {}
                Step::Turn(_) => self.driver.turn(None, &mut all).expect("never fails"),
                Step::Idle => break,
            }
        }
        all
    }

    fn accept_one(&mut self) -> Socket {
        self.driver.listen_at(server(), 7);
        let got = self.settle();
        let [Completion { token: 7, event: Event::Accepted { socket, .. }, .. }] = got[..] else {
            panic!("{got:?}");
        };
        self.driver.set_token(socket, 9);
        socket
    }
}

fn shape(completions: &[Completion]) -> String {
    let word = |completion: &Completion| match &completion.event {
        Event::Accepted { .. } => "accepted".to_owned(),
        Event::AcceptFailed(_) => "accept-failed".to_owned(),
        Event::Connected(Ok(())) => "connected".to_owned(),
        Event::Connected(Err(error)) => format!("connect:{:?}", error.kind()),
        Event::Received(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Event::Ended => "END".to_owned(),
        Event::ReceiveFailed(error) => format!("failed:{:?}", error.kind()),
        Event::Sent { result: Ok(()), .. } => "sent".to_owned(),
        Event::Sent { result: Err(error), .. } => format!("send:{:?}", error.kind()),
        Event::RelayEnded { moved: Relayed { a_to_b, b_to_a, .. }, how } => {
            format!("{how:?}:{a_to_b},{b_to_a}")
        }
        Event::Released(released) => format!("released:{}", released.rest.len()),
        Event::Woken => "woken".to_owned(),
    };
    completions.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn both_styles(test: impl Fn(Settings)) {
    test(Settings::calm());
    test(Settings { lazy: true, ..Settings::calm() });
}

#[test]
fn bytes_and_ends_go_both_ways() {
    both_styles(|settings| {
        let (client, log) = Scripted::new(|net, conn| {
            net.send(conn, b"hello");
            net.finish(conn);
        });
        let mut bench = Bench::new(settings);
        bench.world.actor(client);
        let socket = bench.accept_one();
        bench.driver.receive(socket, Receive::Many(Class::Small));
        let got = bench.settle();
        assert_eq!(shape(&got), "hello END");
        assert!(got.iter().all(|completion| completion.token == 9 && completion.socket == socket));
        // After its FIN the client still receives.
        let slices = vec![Bytes::from_static(b"wo"), Bytes::new(), Bytes::from_static(b"rld")];
        bench.driver.send(socket, Payload::Vectored(slices));
        assert_eq!(shape(&bench.settle()), "sent");
        bench.driver.shutdown_write(socket);
        bench.settle();
        assert_eq!(log.borrow().received, b"world");
        assert!(log.borrow().ended && !log.borrow().reset);
        bench.driver.close(socket);
        drop(got);
        assert_eq!(bench.driver.ledger(), Ledger { listeners: 1, ..Ledger::default() });
    });
}

#[test]
fn once_gives_exactly_one_and_off_gives_none() {
    both_styles(|settings| {
        let (client, _) = Scripted::new(|net, conn| {
            net.send(conn, &[b'x'; 10_000]);
            net.timer(SECOND, 0);
        });
        let mut bench = Bench::new(settings);
        bench.world.actor(client.on_timer(|net, conn| net.finish(conn)));
        let socket = bench.accept_one();
        assert_eq!(bench.settle().len(), 0, "nothing is received before it is asked for");
        for expected in [4096, 4096, 1808] {
            bench.driver.receive(socket, Receive::Once(Class::Small));
            let got = bench.settle();
            let [Completion { event: Event::Received(bytes), .. }] = &got[..] else {
                panic!("{got:?}")
            };
            assert_eq!(bytes.len(), expected);
        }
        bench.driver.receive(socket, Receive::Once(Class::Small));
        assert_eq!(shape(&bench.settle()), "END");
    });
}

#[test]
fn a_reader_that_pauses_holds_the_sender_back() {
    both_styles(|settings| {
        let (client, log) = Scripted::new(|net, conn| {
            net.pause(conn);
            net.timer(10 * SECOND, 0);
        });
        let mut bench = Bench::new(Settings { window_bytes: 1000, ..settings });
        bench.world.actor(client.on_timer(|net, conn| net.resume(conn)));
        let socket = bench.accept_one_within(SECOND);
        let body: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
        bench.driver.send(socket, Payload::Owned(body.clone()));
        assert_eq!(bench.run_for(5 * SECOND).len(), 0, "not taken while nobody reads");
        let got = bench.settle();
        let [
            Completion {
                event: Event::Sent { payload: Payload::Owned(back), result: Ok(()) }, ..
            },
        ] = &got[..]
        else {
            panic!("{got:?}");
        };
        assert_eq!((back, &log.borrow().received), (&body, &body));
    });
}

impl Bench {
    fn accept_one_within(&mut self, time_us: u64) -> Socket {
        self.driver.listen_at(server(), 7);
        let got = self.run_for(time_us);
        let [Completion { event: Event::Accepted { socket, .. }, .. }] = got[..] else {
            panic!("{got:?}")
        };
        socket
    }
}

#[test]
fn after_a_reset_what_was_received_comes_first_and_the_error_once() {
    both_styles(|settings| {
        let script = |net: &mut Net<'_>, conn| {
            net.send(conn, b"last words");
            net.reset(conn);
        };
        let mut bench = Bench::new(settings.clone());
        bench.world.actor(Scripted::new(script).0);
        let socket = bench.accept_one();
        bench.driver.receive(socket, Receive::Many(Class::Small));
        assert_eq!(shape(&bench.settle()), "last words failed:ConnectionReset");
        bench.driver.send(socket, Payload::Owned(b"x".to_vec()));
        assert_eq!(shape(&bench.settle()), "send:BrokenPipe");

        // A send that meets the error first takes it: the receive then just ends.
        let mut bench = Bench::new(settings);
        bench.world.actor(Scripted::new(script).0);
        let socket = bench.accept_one();
        bench.driver.send(socket, Payload::Owned(b"x".to_vec()));
        assert_eq!(shape(&bench.settle()), "send:ConnectionReset");
        bench.driver.receive(socket, Receive::Many(Class::Small));
        assert_eq!(shape(&bench.settle()), "last words END");
    });
}

#[test]
fn closing_with_unread_bytes_resets_and_otherwise_ends() {
    both_styles(|settings| {
        for unread in [true, false] {
            let (client, log) = Scripted::new(move |net, conn| {
                if unread {
                    net.send(conn, b"never read");
                }
            });
            let mut bench = Bench::new(settings.clone());
            bench.world.actor(client);
            let socket = bench.accept_one();
            bench.driver.send(socket, Payload::Shared(Bytes::from_static(b"bye")));
            bench.settle();
            bench.driver.close(socket);
            bench.settle();
            assert_eq!((log.borrow().reset, log.borrow().ended), (unread, !unread));
            assert_eq!(log.borrow().received, b"bye");
        }
    });
}

#[test]
fn bytes_for_a_closed_socket_are_answered_with_a_reset() {
    let (client, log) = Scripted::new(|net, _| net.timer(SECOND, 0));
    let mut bench = Bench::new(Settings::calm());
    bench.world.actor(client.on_timer(|net, conn| net.send(conn, b"anybody?")));
    let socket = bench.accept_one_within(SECOND / 2);
    bench.driver.close(socket);
    bench.settle();
    assert!(log.borrow().ended && log.borrow().reset);
}

#[test]
fn without_buffers_receiving_waits_until_one_comes_back() {
    both_styles(|settings| {
        let (client, _) = Scripted::new(|net, conn| net.send(conn, &[b'y'; 12_288]));
        let mut bench = Bench::new(Settings { small_buffers: 2, ..settings });
        bench.world.actor(client);
        let socket = bench.accept_one();
        assert_eq!(bench.driver.buffers(Class::Small), (2, 2));
        bench.driver.receive(socket, Receive::Many(Class::Small));
        let mut got = bench.settle();
        assert_eq!((got.len(), bench.driver.buffers(Class::Small)), (2, (0, 2)));
        let Some(Completion { event: Event::Received(buffer), .. }) = got.pop() else {
            panic!("{got:?}")
        };
        let kept = buffer.into_bytes();
        assert_eq!(bench.settle().len(), 0, "a shared slice still holds the buffer");
        drop(kept);
        assert_eq!(bench.settle().len(), 1);
        drop(got);
        bench.driver.close(socket);
        assert_eq!(bench.driver.buffers(Class::Small), (2, 2));
    });
}

#[test]
fn nothing_comes_after_close_and_late_names_hit_nothing() {
    both_styles(|settings| {
        let (client, _) = Scripted::new(|net, conn| net.send(conn, b"data"));
        let mut bench = Bench::new(settings);
        bench.world.actor(client);
        let old = bench.accept_one();
        bench.driver.receive(old, Receive::Many(Class::Small));
        bench.driver.send(old, Payload::Owned(vec![0; 100]));
        bench.driver.close(old);
        assert_eq!(bench.settle().len(), 0);
        bench.world.actor(Scripted::new(|_, _| {}).0);
        let got = bench.settle();
        let [Completion { event: Event::Accepted { socket: new, .. }, .. }] = got[..] else {
            panic!("{got:?}")
        };
        assert_eq!(new.index, old.index);
        assert_ne!(new.generation, old.generation);
        bench.driver.close(old);
        bench.driver.send(old, Payload::Owned(vec![1]));
        bench.driver.shutdown_write(old);
        assert_eq!(bench.settle().len(), 0);
        assert_eq!(bench.driver.ledger(), Ledger { streams: 1, listeners: 1, ..Ledger::default() });
    });
}

#[test]
fn connects_succeed_are_refused_or_lost() {
    let mut bench = Bench::new(Settings::calm());
    bench.driver.connect(server(), 3).expect("a descriptor");
    assert_eq!(shape(&bench.settle()), "connect:ConnectionRefused");
    let (origin, _) = Scripted::new(|net, conn| net.send(conn, b"welcome"));
    bench.world.actor(origin.listening());
    bench.settle();
    let socket = bench.driver.connect(server(), 4).expect("a descriptor");
    bench.driver.receive(socket, Receive::Many(Class::Large));
    assert_eq!(shape(&bench.settle()), "connected welcome");
    bench.world.set_faults(Faults { connect_lost: 1000, ..Faults::none() });
    let before = bench.world.now_us();
    bench.driver.connect(server(), 5).expect("a descriptor");
    assert_eq!(shape(&bench.settle()), "connect:TimedOut");
    assert!(bench.world.now_us() - before >= 127 * SECOND);
    bench.world.set_faults(Faults { connect_failed: 1000, ..Faults::none() });
    assert!(bench.driver.connect(server(), 6).is_err());
}

#[test]
fn a_failed_accept_is_tried_again_later() {
    let mut bench = Bench::new(Settings { sockets_max: 2, ..Settings::calm() });
    for _ in 0..2 {
        bench.world.actor(Scripted::new(|_, _| {}).0);
    }
    bench.driver.listen_at(server(), 7);
    let got = bench.run_for(SECOND);
    let [Completion { event: Event::Accepted { socket, .. }, .. }, failed @ ..] = &got[..] else {
        panic!("{got:?}")
    };
    assert!((5..200).contains(&failed.len()), "tried again, without spinning: {}", failed.len());
    assert!(failed.iter().all(|completion| matches!(completion.event, Event::AcceptFailed(_))));
    bench.driver.close(*socket);
    let got = bench.run_for(SECOND);
    assert!(matches!(got[..], [.., Completion { event: Event::Accepted { .. }, .. }]), "{got:?}");
}

#[test]
fn a_turn_comes_at_the_deadline_that_was_asked_for_or_when_woken() {
    let world = SimWorld::new(1, Settings::calm());
    let mut driver = world.driver();
    let mut got = Vec::new();
    assert_eq!(world.step(), Step::Turn(0));
    let asked_us = driver.now_us();
    driver.turn(Some(5 * SECOND), &mut got).expect("never fails");
    assert_eq!(world.step(), Step::Turn(0), "the time is up, counted from what the caller knew");
    assert_eq!(world.now_us(), asked_us + 5 * SECOND);
    driver.turn(Some(5 * SECOND), &mut got).expect("never fails");
    assert_eq!(
        world.step(),
        Step::Turn(0),
        "what waited for this time may want something else now"
    );
    driver.turn(None, &mut got).expect("never fails");
    assert_eq!(world.step(), Step::Idle);
    driver.waker().wake();
    assert_eq!(world.step(), Step::Turn(0));
    driver.turn(None, &mut got).expect("never fails");
    assert_eq!(shape(&got), "woken");
    assert_eq!(world.step(), Step::Turn(0), "it got something, so it may have something to ask");
    driver.turn(None, &mut got).expect("never fails");
    assert_eq!(world.step(), Step::Idle);
}

#[test]
fn a_listener_of_the_machine_stands_for_a_simulated_address_and_drivers_share_it() {
    let world = SimWorld::new(3, Settings::calm());
    let mut drivers = [world.driver(), world.driver()];
    for driver in &mut drivers {
        let listener = world.listener(server()).expect("a socket of the machine");
        driver.listen(listener, 1).expect("a listener");
    }
    for _ in 0..40 {
        world.actor(Scripted::new(|_, _| {}).0);
    }
    let mut got = [Vec::new(), Vec::new()];
    world.run(
        60 * SECOND,
        10_000,
        |index| drivers[index].turn(None, &mut got[index]).expect("ok"),
        || false,
    );
    assert_eq!(got[0].len() + got[1].len(), 40);
    assert!(got.iter().all(|of_one| of_one.len() >= 10), "shared evenly enough");
}

#[test]
#[should_panic(expected = "simulation with seed 1, at")]
fn a_second_send_in_flight_is_misuse() {
    let mut bench = Bench::new(Settings::calm());
    bench.world.actor(Scripted::new(|_, _| {}).0);
    let socket = bench.accept_one();
    bench.driver.send(socket, Payload::Owned(vec![1]));
    bench.driver.send(socket, Payload::Owned(vec![2]));
}

#[test]
#[should_panic(expected = "spins")]
fn spinning_is_misuse() {
    let mut bench = Bench::new(Settings::calm());
    for _ in 0..2_000 {
        bench.driver.turn(Some(0), &mut Vec::new()).expect("never fails");
    }
}

/// Echoes bytes, as a worker would: bounded, one send at a time, FIN answered with FIN.
struct Echo {
    driver: SimDriver,
    streams: BTreeMap<u64, Stream>,
    next: u64,
    got: Vec<Completion>,
}

struct Stream {
    socket: Socket,
    pending: Vec<u8>,
    sending: bool,
    ended: bool,
}

/// More than this waiting stops the reading.
const PENDING_BYTES_MAX: usize = 20_000;

impl Echo {
    fn new(world: &SimWorld) -> Echo {
        let mut driver = world.driver();
        driver.listen_at(server(), 0);
        Echo { driver, streams: BTreeMap::new(), next: 1, got: Vec::new() }
    }

    fn turn(&mut self) {
        let mut got = std::mem::take(&mut self.got);
        self.driver.turn(None, &mut got).expect("never fails");
        for completion in got.drain(..) {
            self.handle(completion);
        }
        self.got = got;
    }

    fn handle(&mut self, completion: Completion) {
        let Completion { token, socket, event } = completion;
        if let Event::Accepted { socket, .. } = event {
            let stream = Stream { socket, pending: Vec::new(), sending: false, ended: false };
            self.streams.insert(self.next, stream);
            self.driver.set_token(socket, self.next);
            self.driver.receive(socket, Receive::Many(Class::Small));
            self.next += 1;
            return;
        }
        // A socket closed earlier in this batch may have more in it.
        let Some(stream) = self.streams.get_mut(&token) else { return };
        assert_eq!(stream.socket, socket);
        match event {
            Event::Received(bytes) => {
                stream.pending.extend_from_slice(&bytes);
                self.driver.recycle(bytes);
            }
            Event::Ended => stream.ended = true,
            Event::Sent { result: Ok(()), .. } => stream.sending = false,
            Event::Sent { .. } | Event::ReceiveFailed(_) => return self.end(token),
            other => panic!("{other:?}"),
        }
        self.go_on(token);
    }

    fn go_on(&mut self, token: u64) {
        let Some(stream) = self.streams.get_mut(&token) else { return };
        if !stream.sending && !stream.pending.is_empty() {
            stream.sending = true;
            self.driver.send(stream.socket, Payload::Owned(std::mem::take(&mut stream.pending)));
        }
        let full = stream.pending.len() > PENDING_BYTES_MAX;
        self.driver
            .receive(stream.socket, if full { Receive::Off } else { Receive::Many(Class::Small) });
        if stream.ended && !stream.sending {
            self.end(token);
        }
    }

    fn end(&mut self, token: u64) {
        if let Some(stream) = self.streams.remove(&token) {
            self.driver.close(stream.socket);
        }
    }
}

/// Sends bytes that reveal their position, reads at times, and checks that they come back.
struct EchoClient {
    total: usize,
    sent: usize,
    log: Log,
}

fn pattern(from: usize, to: usize) -> Vec<u8> {
    (from..to).map(|position| (position * 31 + (position >> 8)) as u8).collect()
}

impl Actor for EchoClient {
    fn on_start(&mut self, net: &mut Net<'_>) {
        let after_us = net.rng().below(SECOND);
        net.timer(after_us, 0);
    }

    fn on_timer(&mut self, net: &mut Net<'_>, _: u64) {
        let conn = self.log.borrow().conn;
        match conn {
            None => {
                let conn = net.connect(server());
                self.log.borrow_mut().conn = Some(conn);
            }
            Some(conn) => net.resume(conn),
        }
    }

    fn on_connected(&mut self, net: &mut Net<'_>, conn: Conn, _: std::io::Result<()>) {
        self.on_drained(net, conn);
    }

    fn on_drained(&mut self, net: &mut Net<'_>, conn: Conn) {
        let take = 1 + net.rng().index(9_000);
        let stop = self.total.min(self.sent + take);
        net.send(conn, &pattern(self.sent, stop));
        self.sent = stop;
        if stop == self.total {
            net.finish(conn);
        }
        if net.rng().chance(100) {
            net.pause(conn);
            net.timer(50_000, 0);
        }
    }

    fn on_data(&mut self, _: &mut Net<'_>, _: Conn, data: &[u8]) {
        let log = &mut *self.log.borrow_mut();
        let from = log.received.len();
        assert_eq!(data, pattern(from, from + data.len()), "bytes come back in order");
        log.received.extend_from_slice(data);
    }

    fn on_end(&mut self, net: &mut Net<'_>, conn: Conn) {
        self.log.borrow_mut().ended = true;
        net.close(conn);
    }

    fn on_reset(&mut self, _: &mut Net<'_>, _: Conn) {
        self.log.borrow_mut().reset = true;
    }
}

/// Runs two echo programs with a handful of clients; returns the trace and whether each client got
/// everything.
fn run_echo(seed: u64, faults: Faults) -> (u64, Vec<bool>) {
    let world = SimWorld::new(seed, Settings::random(seed, faults));
    let mut workers = [Echo::new(&world), Echo::new(&world)];
    let clients: Vec<(usize, Log)> = (0..6).map(|n| (1 + 7_000 * n * n, Log::default())).collect();
    for (total, log) in &clients {
        world.actor(EchoClient { total: *total, sent: 0, log: log.clone() });
    }
    world.run(600 * SECOND, 5_000_000, |index| workers[index].turn(), || false);
    for worker in &mut workers {
        // A client whose connection vanished in silence leaves a stream behind; everything else is
        // gone.
        for token in worker.streams.keys().copied().collect::<Vec<_>>() {
            worker.end(token);
        }
        assert_eq!(
            worker.driver.ledger(),
            Ledger { listeners: 1, ..Ledger::default() },
            "seed {seed}"
        );
    }
    let complete = |(total, log): &(usize, Log)| log.borrow().received.len() == *total;
    (world.trace_hash(), clients.iter().map(complete).collect())
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..10 {
        assert_eq!(
            run_echo(seed, Faults::random(seed)),
            run_echo(seed, Faults::random(seed)),
            "seed {seed}"
        );
    }
    assert_ne!(run_echo(1, Faults::random(1)).0, run_echo(2, Faults::random(2)).0);
}

#[test]
fn harmless_faults_lose_nothing() {
    for seed in 0..60 {
        let (_, complete) = run_echo(seed, Faults::harmless(seed));
        assert_eq!(complete, [true; 6], "seed {seed}");
    }
}

#[test]
fn random_faults_harm_some_and_leak_nothing() {
    let runs: Vec<Vec<bool>> = (0..60).map(|seed| run_echo(seed, Faults::random(seed)).1).collect();
    let complete = runs.iter().flatten().filter(|complete| **complete).count();
    assert!((100..360).contains(&complete), "{complete} of 360");
}
