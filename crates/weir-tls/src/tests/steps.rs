//! Proves: between two checks for events of established connections at most one handshake step is
//! made, those events are reported before it, and handshakes make progress all the same; those with
//! servers come before those with clients. How: a paper cipher that counts; steps are counted in
//! each turn, and no time is measured. Only a kernel lets a whole flood arrive at once, so one test
//! is on epoll.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_check::waiting::Waiting;
use weir_io::conformance::{Bench, EpollSubject, Seen, Subject};
use weir_io::{Class, Driver, Payload, Receive, Socket};

use super::subject::{Client, FLIGHT, Served, ServedOn, accepted, finish, knock, put};
use crate::cipher::{Cipher, Facts, Failure, Opened, Seal, State};
use crate::paper::{ClientPapers, Papers};

/// Counts the steps of all handshakes that it makes one end of.
#[derive(Debug)]
struct Counting<S> {
    papers: S,
    steps: Arc<AtomicUsize>,
}

impl<S: Seal> Counting<S> {
    fn new(papers: S) -> Arc<Counting<S>> {
        Arc::new(Counting { papers, steps: Arc::default() })
    }

    fn steps(&self) -> usize {
        self.steps.load(Ordering::Relaxed)
    }
}

impl<S: Seal> Seal for Counting<S> {
    fn cipher(&self) -> Box<dyn Cipher> {
        Box::new(Counted {
            inner: self.papers.cipher(),
            is_open: false,
            steps: Arc::clone(&self.steps),
        })
    }
}

struct Counted {
    inner: Box<dyn Cipher>,
    is_open: bool,
    steps: Arc<AtomicUsize>,
}

impl Cipher for Counted {
    fn open(&mut self, bytes: &mut [u8], plain: &mut Vec<u8>, out: &mut Vec<u8>) -> Opened {
        self.steps.fetch_add(usize::from(!self.is_open), Ordering::Relaxed);
        let opened = self.inner.open(bytes, plain, out);
        self.is_open = opened.state == Ok(State::Open);
        opened
    }

    fn seal(
        &mut self,
        rest: &mut [u8],
        parts: &[&[u8]],
        record_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        self.inner.seal(rest, parts, record_max, out)
    }

    fn close(&mut self, rest: &mut [u8], out: &mut Vec<u8>) {
        self.inner.close(rest, out);
    }

    fn facts(&self) -> Facts {
        self.inner.facts()
    }

    fn has_worked(&self) -> Option<bool> {
        self.inner.has_worked()
    }
}

/// Clients that all say hello at once.
fn flood<S: Subject>(bench: &mut Bench<'_, S>, clients: usize) {
    let flood: Vec<Socket> = (0..clients).map(|_| knock(bench)).collect();
    for near in flood {
        bench.driver.send(near, Payload::Owned(Client::default().handshake()));
    }
}

#[test]
fn others_are_told_before_a_step_and_steps_are_made_all_the_same() {
    const CLIENTS: usize = 40;
    for busy in [true, false] {
        let (subject, counting) = (Served::default(), Counting::new(Papers(FLIGHT)));
        let mut bench = Bench::new(&subject);
        let listener = bench.listener;
        bench.driver.seal(listener, counting.clone(), 10_000_000);
        let (near, mut client) = (knock(&mut bench), Client::default());
        put(&mut bench, near, &client.handshake());
        let far = accepted(&mut bench);
        bench.receive(far, Receive::Many(Class::Small));
        flood(&mut bench, CLIENTS);
        let told = |bench: &mut Bench<'_, Served>| {
            bench.seen.values().map(|seen| seen.pieces + seen.sent.len()).sum::<usize>()
        };
        let (mut turns, mut sends, mut was_told_alone) = (0, bench.of(near).sent.len(), false);
        while bench.accepted.len() < CLIENTS {
            if busy && bench.of(near).sent.len() == sends {
                bench.driver.send(near, Payload::Owned(client.data(b"x")));
                sends += 1;
            }
            let (steps, told_before) = (counting.steps(), told(&mut bench));
            bench.turn(0);
            let (steps, told) = (counting.steps() - steps, told(&mut bench) > told_before);
            assert!(steps <= 1, "{steps} steps in one turn");
            assert!(steps == 0 || !told || was_told_alone, "a step before others were told");
            was_told_alone = told && steps == 0;
            turns += 1;
            assert!(turns <= 4 * CLIENTS, "handshakes stand still");
        }
        let heard = bench.of(far).received.len();
        assert!(heard > CLIENTS / 4 || !busy, "{heard} bytes beside the flood");
        finish(bench);
    }
}

/// Waits until no connection of an IPv4 port exists any more (proc_pid_net(5): a column for the
/// local address, and the third for its state).
fn resets_have_come(port: u16) {
    let (port, mut waiting) = (format!(":{port:04X}"), Waiting::begin());
    let stands = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&port)) && words.nth(1) == Some("01")
    };
    while std::fs::read_to_string("/proc/thread-self/net/tcp")
        .expect("every Linux has it")
        .lines()
        .any(stands)
    {
        assert!(waiting.goes_on(), "resets have not come; {}", waiting.story());
        std::thread::yield_now();
    }
}

/// Clients that have said hello and left cost no step, and the remaining ones don't wait for them.
#[test]
fn who_has_left_costs_nothing() {
    const CLIENTS: usize = 200;
    let (subject, counting) = (ServedOn(EpollSubject), Counting::new(Papers(FLIGHT)));
    let mut bench = Bench::new(&subject);
    let listener = bench.listener;
    bench.driver.seal(listener, counting.clone(), 10_000_000);
    flood(&mut bench, CLIENTS);
    bench.until("the flood", |bench| bench.driver.work.len() > CLIENTS / 2);
    let (waiting, steps) = (bench.driver.work.len(), counting.steps());
    let clients: Vec<Socket> = bench.seen.keys().copied().collect();
    clients.into_iter().for_each(|near| bench.driver.reset(near));
    // The kernel of a busy machine takes its time with resets.
    resets_have_come(bench.address.port());
    bench.until("nobody waits", |bench| bench.driver.work.is_empty());
    let more = counting.steps() - steps;
    assert!(more <= 2, "{more} steps for {waiting} who have left");
    let failed: u64 = bench.driver.take_tally().map_or(0, |tally| tally.failed.iter().sum());
    assert!(failed >= waiting as u64 - 2, "{failed} of {waiting} are counted");
}

#[test]
fn handshakes_with_servers_come_before_those_of_clients() {
    const CLIENTS: usize = 40;
    let (subject, clients, server) = (
        ServedOn(EpollSubject),
        Counting::new(Papers(FLIGHT)),
        Counting::new(ClientPapers::default()),
    );
    let mut bench = Bench::new(&subject);
    let listener = bench.listener;
    bench.driver.seal(listener, clients.clone(), 10_000_000);
    flood(&mut bench, CLIENTS);
    bench.until("the flood", |bench| bench.driver.work.len() > CLIENTS / 2);
    let address = bench.address;
    let near = bench
        .driver
        .connect_sealed(weir_io::Outbound::default(), address, 3, server.cipher())
        .expect("a socket");
    bench.seen.insert(near, Seen::default());
    let before = clients.steps();
    while server.steps() == 0 {
        bench.turn(0);
    }
    assert!(
        clients.steps() - before <= 3,
        "the hello waits for {} steps of clients",
        clients.steps() - before
    );
    bench.until("the connect", |bench| bench.of(near).connected.is_some());
    assert!(bench.of(near).connected.as_ref().is_some_and(Result::is_ok));
}
