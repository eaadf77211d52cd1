//! Connections that fail, end at the wrong moment, or want more resources than exist. Each test
//! runs on each driver.

use std::io;

use super::{Bench, Subject, pattern, suite};
use crate::{Class, Driver, Options, Payload, Receive, Socket};

/// More than both kernel buffers of a loopback connection hold.
const HUGE: usize = 24 << 20;

/// No socket listens there.
pub fn connect_refused<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let nobody = super::local_listener();
    let address = nobody.local_addr().expect("an address");
    drop(nobody);
    for _ in 0..10 {
        let socket = bench.connect(address);
        bench.until("the refusal", |bench| bench.of(socket).connected.is_some());
        let outcome = bench.of(socket).connected.take().expect("just seen");
        assert_eq!(outcome.expect_err("nobody listens").kind(), io::ErrorKind::ConnectionRefused);
        bench.close(socket);
    }
    bench.finish();
}

/// A connect that is given up at once leaves nothing behind.
pub fn connect_then_close<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    for _ in 0..50 {
        let socket = bench.connect(bench.address);
        bench.close(socket);
    }
    bench.fence_behind_strangers();
    bench.finish();
}

/// Closing with unread bytes resets the connection: the other end sees an error, once, and its
/// sends fail.
pub fn reset<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    bench.receive(far, Receive::Many(Class::Small));
    bench.send_all(far, b"never read");
    bench.fence();
    bench.close(near);
    bench.until("the reset", |bench| bench.of(far).is_over());
    let error = bench.of(far).failed.take().expect("an error and no end");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    bench.of(far).ended = true;
    bench.send(far, b"into the void");
    bench.until("the failed send", |bench| bench.of(far).sent.len() == 2);
    assert!(bench.of(far).sent[1].1.is_err());
    assert!(matches!(&bench.of(far).sent[1].0, Payload::Owned(back) if back == b"into the void"));
    bench.finish();
}

/// A deliberate reset is an error for the other end, not an end, even when nothing is unread.
pub fn reset_on_purpose<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    bench.receive(far, Receive::Many(Class::Small));
    bench.fence();
    bench.reset(near);
    bench.until("the reset", |bench| bench.of(far).is_over());
    let error = bench.of(far).failed.take().expect("an error and no end");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    bench.close(far);
    bench.finish();
}

/// A reset while a send waits for room ends the send with an error.
pub fn reset_under_a_blocked_send<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    bench.send(far, &pattern(HUGE, 1));
    bench.fence();
    assert!(bench.of(far).sent.is_empty());
    bench.close(near);
    bench.until("the failed send", |bench| bench.of(far).sent.len() == 1);
    assert!(bench.of(far).sent[0].1.is_err());
    bench.finish();
}

/// Clients that connect and vanish at once, some with a reset: each is handled, and the listener
/// lives.
pub fn accept_then_instant_close<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    for round in 0..200 {
        let near = bench.connect(bench.address);
        bench.until("a connect", |bench| bench.of(near).connected.is_some());
        if round % 3 == 1 {
            bench.send(near, b"half a requ");
        }
        bench.close(near);
        bench.answer_strangers(Receive::Many(Class::Small));
    }
    bench.fence_behind_strangers();
    bench.finish();
}

/// Closing at any moment of a receive: nothing is delivered afterwards, and every buffer comes
/// back.
pub fn k2_close_while_data_is_in_flight<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    for round in 0..100 {
        let (near, far) = bench.pair();
        bench.receive(far, [Receive::Many(Class::Small), Receive::Once(Class::Large)][round % 2]);
        bench.send(near, &pattern(1000 * round, round));
        for _ in 0..round % 4 {
            bench.turn(0);
        }
        if round % 3 == 0 {
            bench.receive(far, Receive::Off);
        }
        bench.close(far);
        bench.turn(0);
        bench.close(near);
    }
    bench.finish();
}

/// Closing under a send that waits for room: no outcome is reported, and the reader sees the end of
/// the connection.
pub fn close_while_a_send_is_in_flight<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    for round in 0..4 {
        let (near, far) = bench.pair();
        let bytes = pattern(HUGE, round);
        bench.send(near, &bytes);
        if round % 2 == 0 {
            bench.fence();
        }
        bench.close(near);
        bench.receive(far, Receive::Many(Class::Large));
        bench.until("the end", |bench| bench.of(far).is_over());
        let received = &bench.of(far).received;
        assert!(received.len() < bytes.len() && bytes.starts_with(received), "a true beginning");
        bench.close(far);
    }
    bench.finish();
}

/// Bytes that were sent completely before the close are delivered.
pub fn close_after_send_delivers<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    for _ in 0..20 {
        let (near, far) = bench.pair();
        bench.send_all(near, b"goodbye");
        bench.close(near);
        bench.receive(far, Receive::Many(Class::Small));
        bench.until("the end", |bench| bench.of(far).is_over());
        assert!(bench.of(far).ended && bench.of(far).received == b"goodbye");
        bench.close(far);
    }
    bench.finish();
}

/// Slots and descriptors are reused; old names and late completions reach no new socket.
pub fn k2_names_of_closed_sockets_mean_nothing<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let mut old: Vec<Socket> = Vec::new();
    for round in 0..100 {
        let (near, far) = bench.pair();
        bench.receive(far, Receive::Many(Class::Small));
        // Everything that an old name could be used for.
        for &socket in &old {
            bench.driver.receive(socket, Receive::Many(Class::Small));
            bench.driver.send(socket, Payload::Owned(b"to the wrong one".to_vec()));
            bench.driver.shutdown_write(socket);
            bench.driver.set_token(socket, 1_000_000);
            bench.driver.close(socket);
        }
        let text = pattern(100, round);
        bench.send_all(near, &text);
        bench.expect(far, &text);
        assert_eq!(bench.of(far).token, 2);
        // Leave with a receive armed and a send under way.
        bench.send(far, b"late");
        bench.close(far);
        bench.close(near);
        old = vec![near, far];
    }
    bench.finish();
}

/// Without free buffers nothing is received, nothing is lost, and a waiting socket gets one when it
/// comes back.
pub fn buffers_run_out<S: Subject>(subject: &S) {
    for class in [Class::Small, Class::Large] {
        let options = Options {
            small_count: 4,
            large_count: 4,
            small_armed: 2,
            large_armed: 4,
            ..Options::default()
        };
        let mut bench = Bench::with(subject, options);
        let pairs: Vec<_> = (0..12).map(|_| bench.pair()).collect();
        bench.hold = true;
        for (at, &(near, far)) in pairs.iter().enumerate() {
            bench.receive(
                far,
                if at % 2 == 0 { Receive::Many(class) } else { Receive::Once(class) },
            );
            bench.send_all(near, &pattern(100, at));
        }
        bench.until("all buffers to be lent", |bench| bench.held.len() == 4);
        bench.turn(0);
        bench.turn(0);
        assert_eq!((bench.held.len(), bench.driver.buffers(class)), (4, (0, 4)));
        assert!(bench.driver.stats().starved > 0);
        let mut served = 0;
        while served < 12 {
            bench.until("a buffer to be filled", |bench| !bench.held.is_empty());
            let (_, buffer) = bench.held.remove(0);
            bench.driver.recycle(buffer);
            served += 1;
        }
        for (at, &(_, far)) in pairs.iter().enumerate() {
            assert_eq!(bench.of(far).received, pattern(100, at));
        }
        bench.hold = false;
        // Sockets that starved are as good as others afterwards, and closing a starving one harms
        // no other.
        bench.finish();
    }
}

/// A socket that is closed, switched off or ended while it waits for a buffer.
pub fn k2_starving_sockets_may_leave<S: Subject>(subject: &S) {
    let options = Options { small_count: 1, small_armed: 1, ..Options::default() };
    let mut bench = Bench::with(subject, options);
    let pairs: Vec<_> = (0..4).map(|_| bench.pair()).collect();
    bench.hold = true;
    bench.receive(pairs[0].1, Receive::Many(Class::Small));
    bench.send_all(pairs[0].0, b"takes the only buffer");
    bench.until("it is taken", |bench| bench.held.len() == 1);
    for &(near, far) in &pairs[1..] {
        bench.receive(far, Receive::Many(Class::Small));
        bench.send_all(near, b"hungry");
    }
    bench.turn(0);
    bench.receive(pairs[1].1, Receive::Off);
    bench.close(pairs[2].1);
    bench.hold = false;
    let (_, buffer) = bench.held.remove(0);
    bench.driver.recycle(buffer);
    bench.expect(pairs[3].1, b"hungry");
    assert!(bench.of(pairs[1].1).received.is_empty());
    bench.receive(pairs[1].1, Receive::Many(Class::Small));
    bench.expect(pairs[1].1, b"hungry");
    bench.finish();
}

/// Few buffers and a sender that could fill them all, call after call: the others get theirs in
/// between.
pub fn buffers_are_shared_fairly<S: Subject>(subject: &S) {
    let options = Options { large_count: 4, large_armed: 4, ..Options::default() };
    let mut bench = Bench::with(subject, options);
    let pairs: Vec<_> = (0..4).map(|_| bench.pair()).collect();
    let sizes = [HUGE, 1 << 20, 1 << 20, 1 << 20];
    for (&(near, _), size) in pairs.iter().zip(sizes) {
        bench.send(near, &pattern(size, size));
    }
    bench.fence();
    for &(_, far) in &pairs {
        bench.receive(far, Receive::Many(Class::Large));
    }
    let whole =
        |bench: &mut Bench<'_, S>, at: usize| bench.of(pairs[at].1).received.len() == sizes[at];
    bench.until("the small ones", |bench| (1..4).all(|at| whole(bench, at)));
    assert!(!whole(&mut bench, 0), "the large one did not go first");
    bench.until("the large one", |bench| whole(bench, 0));
    bench.finish();
}

/// Senders that are switched on again in each turn take all buffers, turn after turn, as sockets do
/// that are only read when there is room. A socket that is always read, and has few bytes to
/// receive, is received within a few turns all the same.
pub fn scarce_buffers_go_round<S: Subject>(subject: &S) {
    const GREEDY: usize = 6;
    const GREED: usize = 8 << 20;
    const PIECES: usize = 8;
    /// Two TLS records: 100 turns of the smallest driver bring each greedy sender more than twice
    /// that.
    const FAIR: usize = 32 << 10;
    // Some of the drivers give the kernel fewer of them.
    let options = Options { small_count: 8, small_armed: 8, ..Options::default() };
    let mut bench = Bench::with(subject, options);
    let greedy: Vec<_> = (0..GREEDY).map(|_| bench.pair()).collect();
    let modest: Vec<_> = (0..3).map(|_| bench.pair()).collect();
    for &(_, far) in &modest {
        bench.receive(far, Receive::Many(Class::Small));
    }
    for &(near, _) in &greedy {
        bench.send(near, &pattern(GREED, 1));
    }
    bench.fence();
    let sent = |round: usize| pattern(100 * (round + 1), 5);
    for round in 0..PIECES {
        for &(near, _) in &modest {
            bench.send(near, &sent(round)[100 * round..]);
        }
        bench.until_in_turn(&greedy, |bench| {
            let got = counts(bench, &modest);
            (got.iter().all(|count| *count == 100 * (round + 1)), got)
        });
    }
    for &(_, far) in &modest {
        assert!(bench.of(far).received == sent(PIECES - 1));
    }
    // weir receives from each greedy sender as well, and not just once.
    bench.until_in_turn(&greedy, |bench| {
        let got = counts(bench, &greedy);
        assert!(got.iter().all(|count| *count < GREED), "they have more to say");
        (got.iter().all(|count| *count >= FAIR), got)
    });
    bench.finish();
}

/// Idle sockets are switched on while buffers are scarce, in front of one that has something to
/// receive: it gets its buffer all the same.
pub fn idle_sockets_keep_nobody_waiting<S: Subject>(subject: &S) {
    let options = Options { small_count: 4, small_armed: 4, ..Options::default() };
    let mut bench = Bench::with(subject, options);
    let (near, far) = bench.pair();
    let idle: Vec<_> = (0..12).map(|_| bench.pair()).collect();
    let (last_near, last_far) = bench.pair();
    bench.send_all(near, &pattern(40_000, 1));
    bench.send_all(last_near, b"here");
    bench.fence();
    bench.receive(far, Receive::Many(Class::Small));
    bench.turn(0);
    for &(_, far) in &idle {
        bench.receive(far, Receive::Many(Class::Small));
    }
    bench.receive(last_far, Receive::Many(Class::Small));
    bench.receive(far, Receive::Off);
    bench.expect(last_far, b"here");
    bench.receive(far, Receive::Many(Class::Small));
    bench.expect(far, &pattern(40_000, 1));
    bench.finish();
}

/// Bytes that the second socket of each pair has received.
pub(super) fn counts<S: Subject>(
    bench: &mut Bench<'_, S>,
    pairs: &[(Socket, Socket)],
) -> Vec<usize> {
    pairs.iter().map(|&(_, far)| bench.of(far).received.len()).collect()
}

/// A closed listener refuses, and connections that it accepted live on.
pub fn closing_the_listener<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    let (listener, address) = (bench.listener, bench.address);
    bench.driver.close(listener);
    bench.turn(0);
    // A connection that the kernel made before the listener was gone is reset instead.
    bench.until("a refusal", |bench| {
        let socket = bench.connect(address);
        bench.until("an outcome", |bench| bench.of(socket).connected.is_some());
        let refused = bench.of(socket).connected.take().is_some_and(|outcome| outcome.is_err());
        bench.close(socket);
        refused
    });
    bench.receive(far, Receive::Many(Class::Small));
    bench.send_all(near, b"still here");
    bench.expect(far, b"still here");
    assert!(bench.accepted.is_empty());
}

impl<S: Subject> Bench<'_, S> {
    /// Takes turns, with one half of these pairs switched on and the other half off, until it is
    /// `done`, for at most 100 turns.
    fn until_in_turn(
        &mut self,
        pairs: &[(Socket, Socket)],
        mut done: impl FnMut(&mut Self) -> (bool, Vec<usize>),
    ) {
        for turn in 0..100 {
            for (at, &(_, far)) in pairs.iter().enumerate() {
                let how =
                    if at % 2 == turn % 2 { Receive::Many(Class::Small) } else { Receive::Off };
                self.receive(far, how);
            }
            self.turn(1000);
            if done(self).0 {
                return;
            }
        }
        panic!("in 100 turns they got {:?}", done(self).1);
    }

    /// Reads accepted connections that no test took, and closes those that are over.
    fn answer_strangers(&mut self, how: Receive) {
        for (socket, _) in std::mem::take(&mut self.accepted) {
            self.receive(socket, how);
            self.strangers.push(socket);
        }
        for socket in std::mem::take(&mut self.strangers) {
            if self.of(socket).is_over() {
                self.close(socket);
            } else {
                self.strangers.push(socket);
            }
        }
    }

    /// Waits until all strangers are gone; the listener must still work.
    fn fence_behind_strangers(&mut self) {
        let near = self.connect(self.address);
        let text = b"the last in the queue";
        self.until("the queue", |bench| {
            if bench.of(near).connected.is_some()
                && bench.of(near).sent.is_empty()
                && bench.of(near).token == 1
            {
                bench.of(near).token = 0;
                bench.send(near, text);
            }
            bench.answer_strangers(Receive::Many(Class::Small));
            let waiting: Vec<Socket> = bench.strangers.clone();
            matches!(waiting[..], [last] if bench.of(last).received == text)
        });
        self.strangers.clear();
    }
}

suite!(
    simulated:
    connect_refused,
    connect_then_close,
    reset,
    reset_on_purpose,
    reset_under_a_blocked_send,
    accept_then_instant_close,
    k2_close_while_data_is_in_flight,
    close_while_a_send_is_in_flight,
    close_after_send_delivers,
    k2_names_of_closed_sockets_mean_nothing,
    buffers_run_out,
    k2_starving_sockets_may_leave,
    buffers_are_shared_fairly,
    scarce_buffers_go_round,
    idle_sockets_keep_nobody_waiting,
    closing_the_listener,
);
