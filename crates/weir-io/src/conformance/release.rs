//! Connections that are released and taken in: each byte, end and failure is reported to exactly
//! one of both drivers. Each test runs on each driver.

use super::{Bench, Patience, Subject, local_listener, pattern, suite};
use crate::sim::Rng;
use crate::{Class, Driver, Event, Loose, Options, Payload, Receive, Released, Socket};

/// Nothing was on the way: it continues under another name, and the old name is void.
pub fn an_idle_one<S: Subject>(subject: &S) {
    for how in [
        Receive::Off,
        Receive::Once(Class::Small),
        Receive::Many(Class::Small),
        Receive::Many(Class::Large),
    ] {
        let mut bench = Bench::new(subject);
        let (near, far) = bench.pair();
        bench.receive(near, Receive::Many(Class::Small));
        bench.receive(far, how);
        if matches!(how, Receive::Many(_)) {
            bench.send_all(near, b"before");
            bench.expect(far, b"before");
        }
        let Released { connection, rest, ended, error } = bench.release(far);
        assert!(rest.is_empty() && !ended && error.is_none(), "{rest:?} {ended} {error:?}");
        assert_eq!(bench.of(far).token, 2);
        let again = bench.take_in(connection);
        // None of these does anything.
        bench.driver.receive(far, Receive::Many(Class::Small));
        bench.driver.close(far);
        bench.driver.reset(far);
        assert!(!bench.driver.release(far));
        bench.receive(again, Receive::Many(Class::Small));
        bench.send_all(near, b"a question");
        bench.expect(again, b"a question");
        bench.send_all(again, b"an answer");
        bench.expect(near, b"an answer");
        assert_eq!(bench.of(again).token, 3);
        bench.close(near);
        bench.until("the end", |bench| bench.of(again).ended);
        bench.finish();
    }
}

/// Bytes that come at any time are handed out before, come with the connection, or are received
/// afterwards.
pub fn bytes_on_the_way<S: Subject>(subject: &S) {
    for (at, len) in [1, 100, 4096, 5000, 20_000, 200_000].into_iter().enumerate() {
        for turns in 0..4 {
            let mut bench = Bench::new(subject);
            let (near, far) = bench.pair();
            bench
                .receive(far, Receive::Many(if at % 2 == 0 { Class::Small } else { Class::Large }));
            let bytes = pattern(len, at);
            bench.send(near, &bytes);
            (0..turns).for_each(|_| bench.turn(0));
            let mut whole = bench.of(far).received.clone();
            let released = bench.release(far);
            // Bytes were handed out only with the release.
            whole.extend(&released.rest);
            assert!(!released.ended && released.error.is_none());
            let again = bench.take_in(released.connection);
            bench.receive(again, Receive::Many(Class::Large));
            bench.until("the rest", |bench| whole.len() + bench.of(again).received.len() >= len);
            whole.extend(&bench.of(again).received);
            assert!(whole == bytes, "other bytes than were sent");
            bench.finish();
        }
    }
}

/// The end of the other side is reported to the final owner of the connection, behind its last
/// bytes, even when it was reported before.
pub fn an_end_on_the_way<S: Subject>(subject: &S) {
    for turns in 0..4 {
        let mut bench = Bench::new(subject);
        let (near, far) = bench.pair();
        bench.receive(far, Receive::Many(Class::Small));
        bench.send_all(near, b"last words");
        bench.driver.shutdown_write(near);
        (0..turns).for_each(|_| bench.turn(0));
        let mut whole = bench.of(far).received.clone();
        let released = bench.release(far);
        whole.extend(&released.rest);
        let again = bench.take_in(released.connection);
        bench.receive(again, Receive::Many(Class::Small));
        bench.until("the end", |bench| bench.of(again).ended);
        whole.extend(&bench.of(again).received);
        assert_eq!(whole, b"last words");
        // The other direction is unchanged.
        bench.receive(near, Receive::Many(Class::Small));
        bench.send_all(again, b"farewell");
        bench.expect(near, b"farewell");
        bench.finish();
    }
}

/// A reset is reported as a failure to one of both; the other owner finds an end.
pub fn a_reset_on_the_way<S: Subject>(subject: &S) {
    for turns in 0..4 {
        let mut bench = Bench::new(subject);
        let (near, far) = bench.pair();
        bench.receive(far, Receive::Many(Class::Small));
        bench.fence();
        bench.reset(near);
        (0..turns).for_each(|_| bench.turn(0));
        let told = bench.of(far).failed.is_some();
        let released = bench.release(far);
        let again = bench.take_in(released.connection);
        bench.receive(again, Receive::Many(Class::Small));
        bench.until("the end", |bench| bench.of(again).is_over());
        let failures = [told, released.error.is_some(), bench.of(again).failed.is_some()];
        assert_eq!(failures.iter().filter(|told| **told).count(), 1, "{failures:?}");
        bench.finish();
    }
}

/// Closing a connection while it is being released closes it, and nothing is reported; the same
/// with a reset, and with one that is dropped.
pub fn closed_meanwhile<S: Subject>(subject: &S) {
    for way in 0..6 {
        let mut bench = Bench::new(subject);
        let (near, far) = bench.pair();
        bench.receive(near, Receive::Many(Class::Small));
        bench.receive(far, Receive::Many(Class::Small));
        match way % 3 {
            0 => {
                assert!(bench.driver.release(far));
                bench.close(far);
            }
            1 => {
                assert!(bench.driver.release(far));
                bench.reset(far);
            }
            _ if way > 2 => drop(bench.release(far)),
            _ => {
                let released = bench.release(far);
                let again = bench.take_in(released.connection);
                bench.close(again);
            }
        }
        bench.until("the other side's end", |bench| bench.of(near).is_over());
        assert_eq!(bench.of(near).failed.is_some(), way % 3 == 1);
        bench.finish();
    }
}

/// Only an idle stream is released; anything else continues as before.
pub fn what_stays<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    assert!(!bench.driver.release(bench.listener));
    let connecting = bench.connect(bench.address);
    assert!(!bench.driver.release(connecting));
    bench.until("a connection", |bench| {
        bench.of(connecting).connected.is_some() && !bench.accepted.is_empty()
    });
    let (far, _) = bench.accepted.remove(0);
    bench.driver.set_token(far, 2);
    bench.receive(far, Receive::Many(Class::Large));
    let huge = pattern(300_000, 7);
    bench.send(connecting, &huge);
    assert!(!bench.driver.release(connecting), "a send is in flight");
    bench.expect(far, &huge);
    bench.until("the send", |bench| bench.of(connecting).sent.len() == 1);
    bench.close(far);
    assert!(!bench.driver.release(far), "closed");
    // Twice.
    let (near, far) = bench.pair();
    assert!(bench.driver.release(far));
    assert!(!bench.driver.release(far));
    bench.until("a release", |bench| bench.of(far).released.is_some());
    let _ = near;
    bench.finish();
}

/// Tunnels are not released.
pub fn relays_stay<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, a) = bench.pair();
    let (b, far) = bench.pair();
    bench.relay(a, b);
    assert!(!bench.driver.release(a) && !bench.driver.release(b));
    bench.receive(far, Receive::Many(Class::Small));
    bench.send_all(near, b"through");
    bench.expect(far, b"through");
    bench.finish();
}

/// A socket that is deferred, or that waits for a buffer, is released like any other.
pub fn one_that_waits<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    bench.receive(far, Receive::Many(Class::Small));
    bench.driver.defer(far, true);
    bench.send_all(near, b"no haste");
    let released = bench.release(far);
    let mut whole = released.rest;
    let again = bench.take_in(released.connection);
    bench.receive(again, Receive::Many(Class::Small));
    bench.until("the bytes", |bench| whole.len() + bench.of(again).received.len() >= 8);
    whole.extend(&bench.of(again).received);
    assert_eq!(whole, b"no haste");
    bench.finish();

    let options = Options { small_count: 2, small_armed: 2, ..Options::default() };
    let mut bench = Bench::with(subject, options);
    let (near, far) = bench.pair();
    bench.hold = true;
    bench.receive(far, Receive::Many(Class::Small));
    let bytes = pattern(40_000, 3);
    bench.send(near, &bytes);
    bench.until("no buffer", |bench| bench.driver.stats().starved > 0);
    let mut whole = bench.of(far).received.clone();
    let released = bench.release(far);
    whole.extend(bench.of(far).received.split_off(whole.len()));
    whole.extend(&released.rest);
    bench.hold = false;
    for (_, buffer) in std::mem::take(&mut bench.held) {
        bench.driver.recycle(buffer);
    }
    let again = bench.take_in(released.connection);
    bench.receive(again, Receive::Many(Class::Small));
    bench.until("the rest", |bench| whole.len() + bench.of(again).received.len() >= bytes.len());
    whole.extend(&bench.of(again).received);
    assert!(whole == bytes, "other bytes than were sent");
    bench.finish();
}

/// Two drivers, and the present owner of a connection.
struct Two<'a, S: Subject> {
    subject: &'a S,
    drivers: [S::Driver; 2],
    /// Which driver has it, and its name there; None: it is released.
    owner: Option<(usize, Socket)>,
    loose: Option<(usize, Released)>,
    /// All bytes that it brought, to either driver.
    whole: Vec<u8>,
    over: bool,
    /// Its client sends.
    sending: bool,
    accepted: Vec<Socket>,
    connected: Vec<Socket>,
}

impl<S: Subject> Two<'_, S> {
    fn turn(&mut self) {
        for (number, driver) in self.drivers.iter_mut().enumerate() {
            self.subject.advance();
            let mut completions = Vec::new();
            driver.turn(Some(0), &mut completions).expect("a turn");
            for completion in completions {
                match completion.event {
                    Event::Accepted { socket, .. } => self.accepted.push(socket),
                    Event::Connected(result) => {
                        result.expect("a connection");
                        self.connected.push(completion.socket);
                    }
                    Event::Received(bytes) => {
                        assert_eq!(self.owner, Some((number, completion.socket)), "of who has it");
                        self.whole.extend_from_slice(&bytes);
                        driver.recycle(bytes);
                    }
                    Event::Ended | Event::ReceiveFailed(_) => {
                        assert_eq!(self.owner, Some((number, completion.socket)), "of who has it");
                        self.over = true;
                    }
                    Event::Released(released) => {
                        assert_eq!(
                            self.owner.take(),
                            Some((number, completion.socket)),
                            "of who has it"
                        );
                        self.whole.extend_from_slice(&released.rest);
                        self.loose = Some((number, *released));
                    }
                    Event::Sent { result, .. } => {
                        result.expect("an open connection");
                        self.sending = false;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn give(&mut self, number: usize, connection: Loose) {
        let socket = self.drivers[number].take_in(connection, 4).expect("one of the same kind");
        self.drivers[number].receive(socket, Receive::Many(Class::Small));
        self.owner = Some((number, socket));
    }
}

/// A connection moves to and fro between two drivers, at any time, while its client sends and
/// leaves: nothing is lost or reported twice.
pub fn to_and_fro<S: Subject>(subject: &S) {
    for seed in 0..30 {
        let rng = &mut Rng::new(seed);
        let mut first = subject.driver(Options::default());
        let second = subject.another(Options::default());
        let listener = local_listener();
        let address = listener.local_addr().expect("an address");
        first.listen(listener, 1).expect("listening");
        let near = first.connect(address, 2).expect("a socket");
        let (accepted, connected) = (Vec::new(), Vec::new());
        let drivers = [first, second];
        let mut two = Two {
            subject,
            drivers,
            owner: None,
            loose: None,
            whole: Vec::new(),
            over: false,
            sending: false,
            accepted,
            connected,
        };
        while two.accepted.is_empty() || two.connected.is_empty() {
            two.turn();
        }
        let far = two.accepted[0];
        two.drivers[0].set_token(far, 3);
        two.drivers[0].receive(far, Receive::Many(Class::Small));
        two.owner = Some((0, far));
        let bytes = pattern(60_000, seed as usize);
        let (mut sent, mut moves) = (0, 0);
        let mut patience = Patience::new(two.drivers[0].now_us());
        while !two.over {
            patience.check(two.drivers[0].now_us(), &format!("seed {seed}: it ends"));
            if two.sending {
                // One at a time.
            } else if sent < bytes.len() && rng.chance(300) {
                let len = 1 + rng.index((bytes.len() - sent).min(9_000));
                two.drivers[0].send(near, Payload::Owned(bytes[sent..sent + len].to_vec()));
                two.sending = true;
                sent += len;
            } else if sent == bytes.len() && moves > 5 {
                two.drivers[0].shutdown_write(near);
                sent += 1;
            }
            if let Some((number, socket)) = two.owner
                && rng.chance(500)
            {
                two.drivers[number].release(socket);
            }
            two.turn();
            if let Some((number, released)) = two.loose.take() {
                moves += 1;
                two.give(if rng.chance(700) { 1 - number } else { number }, released.connection);
            }
        }
        assert!(two.whole == bytes, "seed {seed}: {} of {} bytes", two.whole.len(), bytes.len());
    }
}

suite!(
    simulated:
    an_idle_one,
    bytes_on_the_way,
    an_end_on_the_way,
    a_reset_on_the_way,
    closed_meanwhile,
    what_stays,
    relays_stay,
    one_that_waits,
    to_and_fro,
);
