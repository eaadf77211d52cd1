//! Relays: the bytes that one outer end sends arrive at the other, whatever happens in between.
//! Each test runs on each driver.
//!
//! ```text
//!   left --- a === relay === b --- right
//! ```
//! Both connections belong to the driver under test; [`Bench`] checks that a relayed socket reports
//! nothing but its sends and, once, the end.

use super::{Bench, Subject, pattern, suite};
use crate::{Class, Driver, Options, Payload, Receive, RelayEnd, Relayed, Socket};

/// More than all kernel buffers of two loopback connections and a pipe hold.
const HUGE: usize = 32 << 20;

/// Two connections with inner ends that are to be relayed.
#[derive(Clone, Copy)]
struct Line {
    left: Socket,
    a: Socket,
    b: Socket,
    right: Socket,
}

impl Line {
    fn new<S: Subject>(bench: &mut Bench<'_, S>) -> Line {
        let ((left, a), (b, right)) = (bench.pair(), bench.pair());
        bench.driver.set_token(b, 3);
        Line { left, a, b, right }
    }

    fn relayed<S: Subject>(bench: &mut Bench<'_, S>) -> Line {
        let line = Line::new(bench);
        bench.relay(line.a, line.b);
        line
    }

    fn read<S: Subject>(self, bench: &mut Bench<'_, S>) {
        bench.receive(self.left, Receive::Many(Class::Large));
        bench.receive(self.right, Receive::Many(Class::Large));
    }

    /// Waits for the end of the relay, which must be orderly.
    fn complete<S: Subject>(self, bench: &mut Bench<'_, S>, moved: Relayed) {
        bench.until("the end of the relay", |bench| bench.of(self.a).relay_end.is_some());
        let (counted, how) = bench.of(self.a).relay_end.as_ref().expect("just seen");
        assert!(matches!(how, RelayEnd::Complete), "{how:?}");
        assert_eq!(*counted, moved);
        assert_eq!(bench.of(self.a).token, 2);
        assert_eq!((bench.driver.relayed(self.a), bench.driver.relayed(self.b)), (None, None));
        assert!(bench.of(self.b).relay_end.is_none(), "it is told once");
    }
}

fn moved(a_to_b: usize, b_to_a: usize) -> Relayed {
    Relayed { a_to_b: a_to_b as u64, b_to_a: b_to_a as u64, half_closed: false }
}

/// Megabytes both ways at once, with either side ending first: each byte once and in order, each
/// end behind the last byte.
pub fn relay_both_ways<S: Subject>(subject: &S) {
    for left_first in [true, false] {
        let mut bench = Bench::new(subject);
        let line = Line::relayed(&mut bench);
        let (there, back) = (pattern(7_000_001, 1), pattern(5_000_003, 2));
        line.read(&mut bench);
        bench.send(line.left, &there);
        bench.send(line.right, &back);
        bench.expect(line.right, &there);
        bench.expect(line.left, &back);
        assert_eq!(bench.driver.relayed(line.a), Some(moved(there.len(), back.len())));
        assert_eq!(bench.driver.relayed(line.b), bench.driver.relayed(line.a));
        let (first, second) =
            if left_first { (line.left, line.right) } else { (line.right, line.left) };
        bench.until("both sends", |bench| {
            bench.of(first).sent.len() + bench.of(second).sent.len() == 2
        });
        bench.driver.shutdown_write(first);
        bench.until("the first end", |bench| bench.of(second).ended);
        assert!(!bench.of(first).is_over());
        assert!(
            bench.driver.relayed(line.a).is_some_and(|moved| moved.half_closed),
            "one side has ended"
        );
        // The other direction continues.
        bench.send_all(second, b"and one more thing");
        bench.until("what came late", |bench| {
            bench.of(first).received.ends_with(b"and one more thing")
        });
        assert!(bench.of(line.a).relay_end.is_none());
        bench.driver.shutdown_write(second);
        bench.until("the second end", |bench| bench.of(first).ended);
        let more = if left_first { (0, 18) } else { (18, 0) };
        line.complete(&mut bench, moved(there.len() + more.0, back.len() + more.1));
        bench.finish();
    }
}

/// Ends that come right behind the bytes, or without any, from both sides at once.
pub fn relay_of_few_bytes<S: Subject>(subject: &S) {
    for (there, back) in [(0, 0), (1, 0), (0, 1), (1, 1), (70_000, 3), (65_536, 131_072)] {
        let mut bench = Bench::new(subject);
        let line = Line::relayed(&mut bench);
        line.read(&mut bench);
        for (from, bytes) in [(line.left, there), (line.right, back)] {
            bench.send_all(from, &pattern(bytes, bytes));
            bench.driver.shutdown_write(from);
        }
        line.complete(&mut bench, moved(there, back));
        bench.expect(line.right, &pattern(there, there));
        bench.expect(line.left, &pattern(back, back));
        bench.until("both ends", |bench| bench.of(line.left).ended && bench.of(line.right).ended);
        bench.finish();
    }
}

/// Many short messages, each answered: bytes are forwarded at once, and no pipe is needed for that.
pub fn relay_of_a_conversation<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let line = Line::relayed(&mut bench);
    line.read(&mut bench);
    let (mut there, mut back) = (Vec::new(), Vec::new());
    for round in 0..200 {
        let (question, answer) = (pattern(1 + round * 7, round), pattern(1 + round * 3, round));
        there.extend_from_slice(&question);
        back.extend_from_slice(&answer);
        bench.send_all(line.left, &question);
        bench.expect(line.right, &there);
        bench.send_all(line.right, &answer);
        bench.expect(line.left, &back);
    }
    assert_eq!(bench.driver.stats().relay_spliced, 0);
    bench.finish();
}

/// Receives and sends are armed, in flight, finished or ended when the relay begins: the sends come
/// first, then the bytes that were not handed out.
pub fn relay_from_any_state<S: Subject>(subject: &S) {
    for round in 0..96 {
        let mut bench = Bench::new(subject);
        let line = Line::new(&mut bench);
        let armed = [
            Receive::Off,
            Receive::Once(Class::Small),
            Receive::Many(Class::Small),
            Receive::Many(Class::Large),
        ];
        bench.receive(line.a, armed[round % 4]);
        bench.receive(line.b, armed[round / 4 % 4]);
        let (first, second, third) = (pattern(3_000, 1), pattern(20_000, 2), pattern(300_000, 3));
        // From before the relay: given to the caller, then in flight while the relay begins.
        bench.send(line.b, &first);
        bench.send(line.left, &second);
        bench.send(line.right, &second);
        for _ in 0..round % 6 {
            bench.turn(0);
        }
        // Bytes that were handed out are the caller's to forward.
        let (from_a, from_b) =
            (bench.of(line.a).received.clone(), bench.of(line.b).received.clone());
        bench.until("the send of the time before", |bench| !bench.of(line.b).sent.is_empty());
        let late_a = bench.of(line.a).received[from_a.len()..].to_vec();
        let late_b = bench.of(line.b).received[from_b.len()..].to_vec();
        bench.send(line.b, &[&from_a[..], &late_a[..]].concat());
        bench.send(line.a, &[&from_b[..], &late_b[..]].concat());
        bench.relay(line.a, line.b);
        line.read(&mut bench);
        bench.until("both sends", |bench| {
            bench.of(line.left).sent.len() + bench.of(line.right).sent.len() == 2
        });
        bench.send(line.left, &third);
        bench.send(line.right, &third);
        bench.expect(line.right, &[&first[..], &second[..], &third[..]].concat());
        bench.expect(line.left, &[&second[..], &third[..]].concat());
        bench.until("the sends", |bench| {
            bench.of(line.a).sent.len() == 1 && bench.of(line.b).sent.len() == 2
        });
        bench.driver.shutdown_write(line.left);
        bench.driver.shutdown_write(line.right);
        let told = (from_a.len() + late_a.len(), from_b.len() + late_b.len());
        let all = second.len() + third.len();
        line.complete(&mut bench, moved(all - told.0, all - told.1));
        bench.finish();
    }
}

/// Among busy sockets with completions that may delay those of a relayed one: the bytes of an
/// earlier receive come before those that the relay reads itself.
pub fn k2_relay_among_busy_sockets<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let noise: Vec<_> = (0..8).map(|_| bench.pair()).collect();
    noise.iter().for_each(|&(_, far)| bench.receive(far, Receive::Many(Class::Small)));
    for round in 0..60 {
        let line = Line::new(&mut bench);
        let (first, second) = (pattern(900, round), pattern(700, round + 1));
        bench.receive(line.a, Receive::Many(Class::Small));
        noise[..4].iter().for_each(|&(near, _)| bench.send(near, b"noise"));
        bench.send(line.left, &first);
        noise[4..].iter().for_each(|&(near, _)| bench.send(near, b"noise"));
        for _ in 0..round % 12 {
            bench.turn(0);
        }
        let given = bench.of(line.a).received.clone();
        bench.send(line.b, &given);
        let early = !bench.of(line.left).sent.is_empty();
        if early {
            bench.send(line.left, &second);
        }
        bench.relay(line.a, line.b);
        bench.until("the first send", |bench| !bench.of(line.left).sent.is_empty());
        if !early {
            bench.send(line.left, &second);
        }
        bench.receive(line.right, Receive::Many(Class::Small));
        bench.expect(line.right, &[first, second].concat());
        bench.until("the noise", |bench| {
            noise.iter().all(|&(near, _)| bench.of(near).sent.len() == round + 1)
        });
        [line.left, line.a, line.b, line.right].into_iter().for_each(|socket| bench.close(socket));
    }
    bench.finish();
}

/// The caller forwards the bytes of a tunnel until, in full flight, it hands the two sockets over.
pub fn k2_relay_in_mid_tunnel<S: Subject>(subject: &S) {
    for round in 0..20 {
        let options = Options {
            small_count: 8,
            small_armed: 4,
            large_count: 8,
            large_armed: 4,
            ..Options::default()
        };
        let mut bench = Bench::with(subject, options);
        let line = Line::new(&mut bench);
        let (there, back) = (pattern(2_000_000, round), pattern(1_500_000, round + 1));
        line.read(&mut bench);
        bench.receive(line.a, Receive::Many(Class::Small));
        bench.receive(line.b, Receive::Many(Class::Large));
        bench.send(line.left, &there);
        bench.send(line.right, &back);
        let (mut passed, mut sends) = ([0, 0], [0, 0]);
        let mut turns = 0;
        loop {
            let mut given = true;
            for (at, (from, to)) in [(line.a, line.b), (line.b, line.a)].into_iter().enumerate() {
                let new = bench.of(from).received[passed[at]..].to_vec();
                let free = bench.of(to).sent.len() == sends[at];
                if free && !new.is_empty() {
                    bench.send(to, &new);
                    passed[at] += new.len();
                    sends[at] += 1;
                }
                given &= free || new.is_empty();
            }
            if given && turns >= 3 * round {
                break;
            }
            turns += 1;
            bench.turn(1_000);
        }
        bench.relay(line.a, line.b);
        bench.expect(line.right, &there);
        bench.expect(line.left, &back);
        bench.driver.shutdown_write(line.left);
        bench.driver.shutdown_write(line.right);
        line.complete(&mut bench, moved(there.len() - passed[0], back.len() - passed[1]));
        bench.finish();
    }
}

/// A side that reads nothing before it has sent everything: the send that waits for it does not
/// stop the other direction.
pub fn relay_while_a_send_is_blocked<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let line = Line::new(&mut bench);
    bench.send(line.b, &pattern(HUGE, 1));
    bench.fence();
    assert!(bench.of(line.b).sent.is_empty());
    bench.relay(line.a, line.b);
    bench.receive(line.left, Receive::Many(Class::Large));
    let speech = pattern(HUGE, 2);
    bench.send(line.right, &speech);
    bench.expect(line.left, &speech);
    bench.send_all(line.left, b"behind it");
    assert!(bench.of(line.b).sent.is_empty());
    bench.receive(line.right, Receive::Many(Class::Large));
    bench.expect(line.right, &[&pattern(HUGE, 1)[..], b"behind it"].concat());
    bench.finish();
}

/// An end that was handed out before, and one that was not.
pub fn relay_of_an_ended_side<S: Subject>(subject: &S) {
    for handed_out in [true, false] {
        let mut bench = Bench::new(subject);
        let line = Line::new(&mut bench);
        bench.receive(line.a, if handed_out { Receive::Many(Class::Small) } else { Receive::Off });
        bench.driver.shutdown_write(line.left);
        bench.fence();
        if handed_out {
            bench.until("the end", |bench| bench.of(line.a).ended);
        }
        bench.relay(line.a, line.b);
        line.read(&mut bench);
        bench.until("the end", |bench| bench.of(line.right).ended);
        bench.send_all(line.right, b"still here");
        bench.expect(line.left, b"still here");
        bench.close(line.right);
        bench.until("the other end", |bench| bench.of(line.left).ended);
        line.complete(&mut bench, moved(0, 10));
        bench.finish();
    }
}

/// Without a reader the writer stops and little waits in between; everything continues when the
/// reader resumes.
pub fn relay_to_a_stalled_reader<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let line = Line::relayed(&mut bench);
    bench.receive(line.left, Receive::Many(Class::Large));
    let bytes = pattern(HUGE, 3);
    bench.send(line.left, &bytes);
    bench.fence();
    let mut before = None;
    bench.until("a standstill", |bench| {
        let now = bench.driver.relayed(line.a);
        now == std::mem::replace(&mut before, now)
    });
    assert!(bench.of(line.left).sent.is_empty(), "the writer waits");
    // The other direction doesn't.
    bench.send_all(line.right, b"slow down");
    bench.expect(line.left, b"slow down");
    bench.receive(line.right, Receive::Once(Class::Large));
    bench.until("a piece", |bench| bench.of(line.right).pieces == 1);
    bench.receive(line.right, Receive::Many(Class::Large));
    bench.expect(line.right, &bytes);
    bench.driver.shutdown_write(line.left);
    bench.driver.shutdown_write(line.right);
    line.complete(&mut bench, moved(bytes.len(), 9));
    bench.finish();
}

/// A reset from either side, in the middle of everything: the received bytes are a true prefix, and
/// the end says which side failed.
pub fn relay_and_reset<S: Subject>(subject: &S) {
    for left_fails in [true, false] {
        for busy in [true, false] {
            let mut bench = Bench::new(subject);
            let line = Line::relayed(&mut bench);
            let (lost, kept) =
                if left_fails { (line.left, line.right) } else { (line.right, line.left) };
            bench.receive(kept, Receive::Many(Class::Large));
            let bytes = pattern(HUGE, 4);
            if busy {
                // One direction is stalled, the other runs.
                bench.send(kept, &bytes);
                bench.send(lost, &bytes);
                bench.until("some bytes", |bench| bench.of(kept).received.len() > 1 << 20);
            } else {
                bench.send_all(lost, b"last words");
                bench.expect(kept, b"last words");
            }
            bench.reset(lost);
            bench.until("the end of the relay", |bench| bench.of(line.a).relay_end.is_some());
            let (counted, how) = bench.of(line.a).relay_end.take().expect("just seen");
            let error = match how {
                RelayEnd::FailedA(error) if left_fails => error,
                RelayEnd::FailedB(error) if !left_fails => error,
                other => panic!("{other:?}"),
            };
            assert!(
                matches!(error.raw_os_error(), Some(libc::ECONNRESET | libc::EPIPE)),
                "{error}"
            );
            let delivered = if left_fails { counted.a_to_b } else { counted.b_to_a } as usize;
            bench.until("what was delivered", |bench| bench.of(kept).received.len() >= delivered);
            let said = if busy { &bytes[..] } else { b"last words" };
            assert!(
                bench.of(kept).received == said[..delivered],
                "a true beginning, as long as was counted"
            );
            bench.fence();
            assert!(
                !bench.of(kept).is_over(),
                "what becomes of the other one is the caller's decision"
            );
            bench.reset(line.b);
            bench.close(line.a);
            bench.until("the end", |bench| bench.of(kept).is_over());
            bench.finish();
        }
    }
}

/// Bytes that a server sent before it reset the connection are delivered, even when the client
/// reads late.
pub fn relay_delivers_what_came_before_a_reset<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let line = Line::relayed(&mut bench);
    let bytes = pattern(HUGE, 5);
    bench.send(line.right, &bytes);
    let mut before = None;
    bench.until("a standstill", |bench| {
        bench.fence();
        let now = bench.driver.relayed(line.a);
        now == std::mem::replace(&mut before, now)
    });
    bench.reset(line.right);
    bench.fence();
    let counted = bench.driver.relayed(line.a).expect("something waits").b_to_a as usize;
    bench.receive(line.left, Receive::Many(Class::Large));
    bench.until("the end of the relay", |bench| bench.of(line.a).relay_end.is_some());
    let (total, how) = bench.of(line.a).relay_end.take().expect("just seen");
    assert!(matches!(how, RelayEnd::FailedB(_)), "{how:?}");
    assert!(total.b_to_a as usize > counted, "what waited was delivered");
    bench.expect(line.left, &bytes[..total.b_to_a as usize]);
    bench.finish();
}

/// Closing and resetting either side at any moment, with bytes in between: nothing is reported, the
/// other outer end sees its connection only when it is closed as well, and no pipe and no buffer is
/// lost.
pub fn k2_close_a_relay<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    for round in 0..48 {
        let line = Line::new(&mut bench);
        if round % 2 == 0 {
            bench.receive(line.a, Receive::Many(Class::Large));
        }
        let bytes = pattern([100, 400_000, 4_000_000][round % 3], round);
        bench.send(line.left, &bytes);
        bench.send(line.right, &bytes);
        if round % 5 == 0 {
            bench.send(line.b, b"in flight");
        }
        bench.relay(line.a, line.b);
        for _ in 0..round % 7 {
            bench.turn(0);
        }
        let (first, second) = if round % 4 < 2 { (line.a, line.b) } else { (line.b, line.a) };
        if round % 8 < 4 {
            bench.reset(first)
        } else {
            bench.close(first)
        }
        assert_eq!((bench.driver.relayed(line.a), bench.driver.relayed(line.b)), (None, None));
        bench.turn(0);
        // Commands for the rest of it have no effect.
        bench.driver.relay(line.a, line.b);
        bench.driver.receive(second, Receive::Many(Class::Small));
        bench.driver.send(second, Payload::Owned(b"too late".to_vec()));
        bench.turn(0);
        bench.close(second);
        bench.close(line.left);
        bench.close(line.right);
    }
    bench.finish();
}

/// A relay that is always full moves only its share in a turn, and others are served in between.
pub fn relay_shares_the_turn<S: Subject>(subject: &S) {
    let options = Options {
        relay_bytes_per_turn: 128 << 10,
        relay_pipe_bytes: 256 << 10,
        ..Options::default()
    };
    let mut bench = Bench::with(subject, options);
    let lines = [(); 3].map(|()| Line::relayed(&mut bench));
    let (near, far) = bench.pair();
    bench.receive(far, Receive::Many(Class::Small));
    bench.receive(near, Receive::Many(Class::Small));
    for line in lines {
        line.read(&mut bench);
        bench.send(line.left, &pattern(HUGE, 6));
    }
    let total = |bench: &Bench<'_, S>| {
        lines
            .iter()
            .filter_map(|line| bench.driver.relayed(line.a))
            .map(|moved| moved.a_to_b)
            .sum::<u64>()
    };
    let mut rounds = 0;
    while lines.iter().any(|line| bench.of(line.right).received.len() < HUGE) {
        let before = total(&bench);
        bench.turn(0);
        let moved = total(&bench) - before;
        assert!(moved <= (128 << 10) + 3 * (256 << 10), "{moved} bytes in one turn");
        if bench.of(near).received.len() == rounds && rounds < 50 {
            bench.send(near, b"?");
            let text = vec![b'?'; rounds + 1];
            bench.expect(far, &text);
            bench.send(far, b"!");
            bench.until("an answer", |bench| bench.of(near).received.len() > rounds);
            rounds += 1;
        }
    }
    assert!(rounds >= 50, "{rounds}");
    for line in lines {
        assert!(bench.of(line.right).received == pattern(HUGE, 6), "other bytes than were sent");
        assert!(bench.driver.relayed(line.a).is_some_and(|moved| moved.a_to_b == HUGE as u64));
    }
    bench.finish();
}

/// The end carries one token, the one that the first socket has then.
pub fn relay_tells_its_token<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let line = Line::relayed(&mut bench);
    bench.driver.set_token(line.a, 41);
    bench.driver.set_token(line.b, 42);
    bench.close(line.left);
    bench.close(line.right);
    bench.until("the end of the relay", |bench| bench.of(line.a).relay_end.is_some());
    assert_eq!(bench.of(line.a).token, 41);
    bench.finish();
}

/// A relay with a closed socket does not start, nor one with a socket that already has a relay.
pub fn relay_needs_two_free_sockets<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (line, other) = (Line::relayed(&mut bench), Line::new(&mut bench));
    bench.driver.relay(other.a, line.a);
    bench.driver.relay(line.b, other.b);
    assert_eq!((bench.driver.relayed(other.a), bench.driver.relayed(other.b)), (None, None));
    bench.close(other.b);
    bench.driver.relay(other.a, other.b);
    assert_eq!(bench.driver.relayed(other.a), None);
    // The connection is unchanged.
    bench.receive(other.a, Receive::Many(Class::Small));
    bench.send_all(other.left, b"hello");
    bench.expect(other.a, b"hello");
    assert!(bench.driver.relayed(line.a).is_some());
    bench.finish();
}

/// A thousand relays at a time, each with its own text and its own end.
pub fn a_thousand_relays<S: Subject>(subject: &S) {
    let count = 1000.min(super::real::descriptors_to_spare() / 4);
    let mut bench = Bench::new(subject);
    let lines: Vec<Line> = (0..count).map(|_| Line::relayed(&mut bench)).collect();
    for (at, line) in lines.iter().enumerate() {
        bench.send(line.left, format!("<{at}>").as_bytes());
        line.read(&mut bench);
    }
    for (at, line) in lines.iter().enumerate() {
        bench.expect(line.right, format!("<{at}>").as_bytes());
        bench.close(if at % 2 == 0 { line.left } else { line.right });
    }
    for line in &lines {
        let other = if bench.is_closed(line.left) { line.right } else { line.left };
        bench.until("an end", |bench| bench.of(other).ended);
        bench.close(other);
        bench.until("the end of the relay", |bench| bench.of(line.a).relay_end.is_some());
        bench.close(line.a);
        bench.close(line.b);
    }
    bench.finish();
}

/// A deferred socket is no longer deferred in a relay.
pub fn of_deferred<S: Subject>(subject: &S) {
    let mut bench = Bench::new(subject);
    let (left, right) = (bench.pair(), bench.pair());
    for socket in [left.1, right.1] {
        bench.receive(socket, Receive::Many(Class::Small));
        bench.driver.defer(socket, true);
    }
    bench.relay(left.1, right.1);
    bench.receive(right.0, Receive::Many(Class::Large));
    bench.send_all(left.0, b"by relay");
    bench.expect(right.0, b"by relay");
    bench.send_all(right.0, b"and back");
    bench.receive(left.0, Receive::Many(Class::Small));
    bench.expect(left.0, b"and back");
    bench.finish();
}

suite!(
    simulated:
    of_deferred,
    relay_both_ways,
    relay_of_few_bytes,
    relay_of_a_conversation,
    relay_from_any_state,
    k2_relay_among_busy_sockets,
    k2_relay_in_mid_tunnel,
    relay_while_a_send_is_blocked,
    relay_of_an_ended_side,
    relay_to_a_stalled_reader,
    relay_and_reset,
    relay_delivers_what_came_before_a_reset,
    k2_close_a_relay,
    relay_shares_the_turn,
    relay_tells_its_token,
    relay_needs_two_free_sockets,
    a_thousand_relays,
);
