//! Bytes arrive as they were sent, however they are sent and read. Each test runs on each driver.

use std::collections::HashSet;

use bytes::Bytes;

use super::{Bench, Subject, pattern, suite};
use crate::{Class, Departure, Driver, Payload, Receive, Socket};

/// More than both kernel buffers of a loopback connection hold.
const HUGE: usize = 24 << 20;

/// A short text is echoed, and tokens follow their socket.
pub fn echo<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    bench.receive(far, Receive::Many(Class::Small));
    bench.receive(near, Receive::Many(Class::Large));
    bench.send_all(near, b"hello");
    bench.expect(far, b"hello");
    assert_eq!(bench.of(far).token, 2);
    bench.driver.set_token(near, 99);
    bench.send_all(far, b"world");
    bench.expect(near, b"world");
    assert_eq!(bench.of(near).token, 99);
    assert_eq!(bench.of(far).received, b"hello", "nothing comes twice");
    bench.finish();
}

/// All open connections are listed, and nothing else.
pub fn streams_are_listed<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    assert_eq!(bench.driver.streams(), []);
    let (near, far) = bench.pair();
    let (other, _) = bench.pair();
    let listed =
        |bench: &Bench<'_, S>| bench.driver.streams().into_iter().collect::<HashSet<Socket>>();
    assert_eq!(listed(&bench).len(), 4);
    assert!([near, far, other].iter().all(|socket| listed(&bench).contains(socket)));
    bench.close(near);
    bench.reset(other);
    assert!(listed(&bench).contains(&far) && listed(&bench).len() == 2);
    bench.finish();
}

/// Of several changes between two turns only the last one counts, even if bytes wait that the first
/// one would have received.
pub fn only_the_last_change_counts<S: Subject>(subject: &S) {
    let many = Receive::Many(Class::Small);
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    let bytes = pattern(20_000, 3);
    bench.send_all(near, &bytes);
    bench.fence();
    for changes in [
        &[many, Receive::Off][..],
        &[Receive::Once(Class::Small), Receive::Off, many, Receive::Off],
    ] {
        changes.iter().for_each(|how| bench.receive(far, *how));
        (0..4).for_each(|_| bench.turn(0));
        bench.fence();
        assert_eq!(bench.of(far).received.len(), 0, "nothing was wanted in the end: {changes:?}");
    }
    // In the other order all bytes are received, once.
    [many, Receive::Off, many].iter().for_each(|how| bench.receive(far, *how));
    bench.expect(far, &bytes);
    // Switched off and on again while a receive is armed: it continues.
    [Receive::Off, many, Receive::Off, many].iter().for_each(|how| bench.receive(far, *how));
    bench.send_all(near, b"more");
    bench.expect(far, &[&bytes[..], b"more"].concat());
    // And switched off means off.
    [many, Receive::Off].iter().for_each(|how| bench.receive(far, *how));
    bench.turn(0);
    bench.send_all(near, b"late");
    bench.fence();
    assert_eq!(bench.of(far).received.len(), bytes.len() + 4);
    bench.receive(far, many);
    bench.expect(far, &[&bytes[..], b"morelate"].concat());
    bench.finish();
}

/// One armed receive delivers hundreds of pieces in order.
pub fn many_small_writes<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    bench.receive(far, Receive::Many(Class::Small));
    let bytes = pattern(50_000, 1);
    for piece in bytes.chunks(100) {
        bench.send_all(near, piece);
    }
    bench.expect(far, &bytes);
    assert!(bench.of(far).pieces > 1);
    bench.finish();
}

/// `Once` means one piece, then silence until it is repeated.
pub fn once_is_once<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    for (round, class) in [Class::Small, Class::Large, Class::Small].into_iter().enumerate() {
        let text = pattern(10, round);
        let before = bench.of(far).received.clone();
        bench.send_all(near, &text);
        bench.fence();
        assert_eq!(bench.of(far).received, before, "nothing is read without being asked for");
        bench.receive(far, Receive::Once(class));
        bench.expect(far, &[before, text].concat());
        assert_eq!(bench.of(far).pieces, round + 1);
    }
    bench.finish();
}

/// `Once` that is armed before the bytes come takes one piece of many.
pub fn once_leaves_the_rest<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    let bytes = pattern(20_000, 3);
    bench.receive(far, Receive::Once(Class::Small));
    bench.send_all(near, &bytes);
    bench.until("a piece", |bench| bench.of(far).pieces == 1);
    bench.fence();
    assert_eq!(bench.of(far).pieces, 1);
    while bench.of(far).received.len() < bytes.len() {
        let before = bench.of(far).pieces;
        bench.receive(far, Receive::Once(Class::Small));
        bench.until("one more piece", |bench| bench.of(far).pieces > before);
        bench.turn(0);
        assert_eq!(bench.of(far).pieces, before + 1);
    }
    bench.expect(far, &bytes);
    bench.finish();
}

/// Reading stops when it is switched off, and nothing is lost when it resumes.
pub fn off_then_on<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    bench.receive(far, Receive::Many(Class::Small));
    bench.send_all(near, b"one ");
    bench.expect(far, b"one ");
    bench.receive(far, Receive::Off);
    // Bytes that raced with the switch may still come, so let it take effect first.
    bench.fence();
    bench.send_all(near, b"two ");
    bench.fence();
    assert_eq!(bench.of(far).received, b"one ");
    bench.receive(far, Receive::Many(Class::Small));
    bench.expect(far, b"one two ");
    // Off and on within one turn is as if nothing had happened.
    bench.receive(far, Receive::Off);
    bench.receive(far, Receive::Many(Class::Small));
    bench.send_all(near, b"three");
    bench.expect(far, b"one two three");
    bench.finish();
}

/// Switching in every order while bytes are on their way neither loses nor repeats nor swaps any.
pub fn switching_under_fire<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    let modes = [
        Receive::Many(Class::Small),
        Receive::Off,
        Receive::Once(Class::Large),
        Receive::Many(Class::Large),
        Receive::Once(Class::Small),
        Receive::Off,
        Receive::Off,
    ];
    let bytes = pattern(400 * 700, 5);
    let mut dice = 12345u32;
    for piece in bytes.chunks(700) {
        bench.send_all(near, piece);
        for _ in 0..3 {
            dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            bench.receive(far, modes[(dice >> 16) as usize % modes.len()]);
            if dice & 0x100 == 0 {
                bench.turn(0);
            }
        }
    }
    bench.receive(far, Receive::Many(Class::Large));
    bench.expect(far, &bytes);
    bench.finish();
}

/// A payload larger than all kernel buffers waits for its reader, arrives whole, and comes back.
pub fn large_send_to_a_slow_reader<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    let bytes = pattern(HUGE, 7);
    bench.send(near, &bytes);
    bench.fence();
    assert!(bench.of(near).sent.is_empty(), "nobody has read it yet");
    // Slowly at first, one piece at a time, then at once.
    for pieces in 1..20 {
        bench.receive(far, Receive::Once(Class::Large));
        bench.until("a piece", |bench| bench.of(far).pieces == pieces);
    }
    bench.receive(far, Receive::Many(Class::Large));
    bench.expect(far, &bytes);
    bench.until("the payload", |bench| !bench.of(near).sent.is_empty());
    let (payload, result) = bench.of(near).sent.remove(0);
    assert!(result.is_ok() && matches!(payload, Payload::Owned(back) if back == bytes));
    bench.finish();
}

/// Slices of all sizes, more than one call takes, some empty, arrive in order.
pub fn vectored<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    bench.receive(far, Receive::Many(Class::Large));
    let slices: Vec<Bytes> =
        (0..300).map(|at| Bytes::from(pattern([0, 1, 17, 4096, 70_000][at % 5], at))).collect();
    let whole = slices.concat();
    bench.driver.send(near, Payload::Vectored(slices.clone()));
    bench.expect(far, &whole);
    bench.until("the payload", |bench| !bench.of(near).sent.is_empty());
    let (payload, result) = bench.of(near).sent.remove(0);
    assert!(result.is_ok() && matches!(payload, Payload::Vectored(back) if back == slices));
    let shared = Bytes::from(pattern(1000, 9));
    bench.driver.send(near, Payload::Shared(shared.clone()));
    bench.expect(far, &[&whole[..], &shared[..]].concat());
    bench.finish();
}

/// A vectored payload that fills the kernel's buffers is taken up again in the middle of a slice.
pub fn vectored_to_a_slow_reader<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    let slices: Vec<Bytes> =
        (0..200).map(|at| Bytes::from(pattern(HUGE / 200 + at * 7, at))).collect();
    let whole = slices.concat();
    bench.driver.send(near, Payload::Vectored(slices));
    bench.fence();
    assert!(bench.of(near).sent.is_empty(), "nobody has read it yet");
    bench.receive(far, Receive::Many(Class::Large));
    bench.expect(far, &whole);
    bench.until("the payload", |bench| bench.of(near).sent.len() == 1);
    assert!(bench.of(near).sent[0].1.is_ok());
    bench.finish();
}

/// An empty payload is sent at once.
pub fn empty_payloads<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    let payloads = [
        Payload::Owned(Vec::new()),
        Payload::Shared(Bytes::new()),
        Payload::Vectored(Vec::new()),
        Payload::Vectored(vec![Bytes::new(); 3]),
    ];
    for (at, payload) in payloads.into_iter().enumerate() {
        bench.driver.send(near, payload);
        bench.until("nothing to be sent", |bench| bench.of(near).sent.len() == at + 1);
        assert!(bench.of(near).sent[at].1.is_ok());
    }
    bench.receive(far, Receive::Many(Class::Small));
    bench.send_all(near, b"x");
    bench.expect(far, b"x");
    bench.finish();
}

/// The end of one direction is seen behind its last byte, and the other direction continues.
pub fn half_close<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (near, far) = bench.pair();
    bench.receive(far, Receive::Many(Class::Small));
    bench.receive(near, Receive::Many(Class::Small));
    bench.send_all(near, b"request");
    bench.driver.shutdown_write(near);
    bench.until("the end", |bench| bench.of(far).ended);
    assert_eq!(bench.of(far).received, b"request");
    let reply = pattern(100_000, 11);
    bench.send(far, &reply);
    bench.expect(near, &reply);
    assert!(!bench.of(near).is_over());
    bench.until("the payload", |bench| bench.of(far).sent.len() == 1);
    bench.close(far);
    bench.until("the other end", |bench| bench.of(near).ended);
    bench.finish();
}

/// Bytes and the end that come while the socket is not read are found later, in that order.
pub fn end_before_the_first_read<S: Subject>(subject: &S) {
    for how in
        [Receive::Many(Class::Small), Receive::Once(Class::Small), Receive::Many(Class::Large)]
    {
        let mut bench = Bench::new(subject);
        let (near, far) = bench.pair();
        bench.send_all(near, b"last words");
        bench.close(near);
        bench.fence();
        bench.receive(far, how);
        bench.expect(far, b"last words");
        bench.receive(far, how);
        bench.until("the end", |bench| bench.of(far).ended);
        // Further commands do nothing.
        bench.receive(far, how);
        bench.fence();
        bench.finish();
    }
}

/// An end or a reset by the other side is known while nothing is received, even with unread bytes.
pub fn who_has_left<S: Subject>(subject: &S) {
    for resets in [false, true] {
        let mut bench = Bench::new(subject);
        let (near, far) = bench.pair();
        bench.send_all(near, b"last words");
        bench.fence();
        assert_eq!([far, near].map(|end| bench.driver.departure(end)), [Departure::Stays; 2]);
        match resets {
            true => bench.reset(near),
            false => bench.driver.shutdown_write(near),
        }
        let expected = if resets { Departure::Broken } else { Departure::Ended };
        bench.until("it is known", |bench| bench.driver.departure(far) == expected);
        bench.close(far);
        assert_eq!(bench.driver.departure(far), Departure::Broken, "it is closed");
        if !resets {
            bench.close(near);
        }
        bench.finish();
    }
}

/// Two thousand connections at a time, each with its own text.
pub fn two_thousand_connections<S: Subject>(subject: &S) {
    let count = 2000.min(super::real::descriptors_to_spare() / 2);
    let mut bench = Bench::new(subject);
    let clients: Vec<_> = (0..count).map(|_| bench.connect(bench.address)).collect();
    bench.until("all connections", |bench| bench.accepted.len() == count);
    let servers: Vec<_> =
        std::mem::take(&mut bench.accepted).into_iter().map(|(socket, _)| socket).collect();
    for (at, &client) in clients.iter().enumerate() {
        bench.until("a connect", |bench| bench.of(client).connected.is_some());
        bench.send(client, format!("<{at}>").as_bytes());
        bench.receive(client, Receive::Many(Class::Small));
    }
    for &server in &servers {
        bench.receive(server, Receive::Many(Class::Small));
    }
    for &server in &servers {
        bench.until("a text", |bench| bench.of(server).received.ends_with(b">"));
        let text = bench.of(server).received.clone();
        bench.send(server, &text);
    }
    for (at, &client) in clients.iter().enumerate() {
        bench.expect(client, format!("<{at}>").as_bytes());
    }
    bench.finish();
}

/// The address that a client has connected to is known, for as long as the socket is open.
pub fn destinations<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (_, far) = bench.pair();
    assert_eq!(bench.driver.destination(far), Some(bench.address));
    bench.driver.close(far);
    assert_eq!(bench.driver.destination(far), None);
    bench.finish();
}

suite!(
    simulated:
    echo,
    only_the_last_change_counts,
    streams_are_listed,
    destinations,
    many_small_writes,
    once_is_once,
    once_leaves_the_rest,
    off_then_on,
    switching_under_fire,
    large_send_to_a_slow_reader,
    vectored,
    vectored_to_a_slow_reader,
    empty_payloads,
    half_close,
    end_before_the_first_read,
    who_has_left,
    two_thousand_connections,
);
