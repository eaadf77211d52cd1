//! Deferred receives: the bytes come, and not at once. Each test runs on each driver.

use super::{Bench, Subject, pattern, suite};
use crate::later::LATER_US;
use crate::{Class, Driver, Options, Receive};

/// More than both kernel buffers of a loopback connection hold.
const HUGE: usize = 24 << 20;

/// Deferred bytes come whole and in order, together with those that were there before, behind sends
/// that have to wait, and with their end.
pub fn deferred<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    bench.receive(far, Receive::Many(Class::Small));
    bench.send_all(near, b"at once");
    bench.expect(far, b"at once");
    bench.driver.defer(far, true);
    bench.driver.defer(far, true);
    let mut expected = b"at once".to_vec();
    for round in 0..5 {
        let bytes = pattern(10_000 * round + 1, round);
        bench.send_all(near, &bytes);
        expected.extend(bytes);
        bench.expect(far, &expected);
    }
    // Turned on and off while bytes are coming.
    let bytes = pattern(200_000, 9);
    bench.receive(near, Receive::Many(Class::Large));
    bench.send(near, &bytes);
    for at in 0..20 {
        bench.driver.defer(far, at % 2 == 0);
        bench.turn(0);
    }
    expected.extend(&bytes);
    bench.driver.defer(far, true);
    bench.expect(far, &expected);
    // A send that the other side does not take at once.
    bench.receive(near, Receive::Off);
    bench.fence();
    let huge = pattern(HUGE, 4);
    bench.send(far, &huge);
    bench.fence();
    bench.receive(near, Receive::Many(Class::Large));
    bench.expect(near, &huge);
    bench.driver.shutdown_write(near);
    bench.until("the end", |bench| bench.of(far).ended);
    bench.driver.defer(far, false);
    let (_, gone) = bench.pair();
    bench.driver.defer(gone, true);
    bench.close(gone);
    bench.driver.defer(gone, false);
    bench.finish();
}

suite!(
    simulated:
    deferred,
);

/// For drivers on a real kernel.
pub mod real {
    use super::*;

    /// Bytes that have come are not handed out at once.
    pub fn deferred_wakes_nobody<S: Subject>(subject: &S) {
        let mut bench = Bench::new(subject);
        let (near, far) = bench.pair();
        bench.receive(far, Receive::Many(Class::Small));
        bench.driver.defer(far, true);
        bench.fence();
        let (mut expected, mut late) = (Vec::new(), 0);
        for round in 0..20 {
            bench.send_all(near, &[round]);
            bench.turn(0);
            late += usize::from(bench.of(far).received == expected);
            expected.push(round);
            bench.expect(far, &expected);
        }
        // A look may happen just then, and on a busy machine some do.
        assert!(late > 0, "all came at once");
        bench.finish();
    }

    /// More sockets than available buffers are received in one look.
    pub fn deferred_outnumber_buffers<S: Subject>(subject: &S) {
        const PAIRS: usize = 40;
        let mut bench = Bench::with(subject, Options { small_armed: 4, ..Options::default() });
        let pairs: Vec<_> = (0..PAIRS).map(|_| bench.pair()).collect();
        for (_, far) in &pairs {
            bench.receive(*far, Receive::Many(Class::Small));
            bench.driver.defer(*far, true);
        }
        bench.fence();
        let has = |bench: &mut Bench<'_, S>, round| {
            pairs.iter().filter(|(_, far)| bench.of(*far).received.len() == round).count()
        };
        // One look brings them all: less than half of the time between two looks passes from the
        // first to the last, at least once, even on a busy machine.
        let is_one_look = (1..=20).any(|round| {
            pairs.iter().for_each(|(near, _)| bench.send(*near, b"x"));
            bench.until("one of them", |bench| has(bench, round) > 0);
            let first_us = bench.driver.now_us();
            bench.until("all of them", |bench| has(bench, round) == PAIRS);
            bench.driver.now_us() - first_us < LATER_US / 2
        });
        assert!(is_one_look, "each look brought some");
        bench.finish();
    }

    /// More bytes than a buffer holds come in one look as well.
    pub fn deferred_has_much<S: Subject>(subject: &S) {
        let mut bench = Bench::new(subject);
        let (near, far) = bench.pair();
        bench.receive(far, Receive::Many(Class::Small));
        bench.driver.defer(far, true);
        bench.fence();
        let (bytes, mut expected) = (pattern(40_000, 1), 0);
        let is_one_look = (0..20).any(|_| {
            bench.send_all(near, &bytes);
            bench.until("the first of it", |bench| bench.of(far).received.len() > expected);
            let first_us = bench.driver.now_us();
            expected += bytes.len();
            bench.until("all of it", |bench| bench.of(far).received.len() == expected);
            bench.driver.now_us() - first_us < LATER_US / 2
        });
        assert!(is_one_look, "each look brought a part");
        bench.finish();
    }

    suite!(deferred_wakes_nobody, deferred_outnumber_buffers, deferred_has_much);
}
