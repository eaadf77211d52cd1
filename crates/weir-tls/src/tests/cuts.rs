//! Proves: wherever the network cuts the bytes of a client, and however many records come at once,
//! the same plain bytes come out, once and in order. How: records of paper in the simulation, each
//! cut of them.

use weir_io::conformance::Bench;
use weir_io::{Class, Driver, Receive};

use super::subject::{Client, GREETING, Served, accepted, failures, finish, knock, put};
use crate::paper::{BAD_RECORD, CLOSE_NOTIFY, HEADER, TAG};

/// All bytes that a client sends, and their plaintext.
fn conversation() -> (Vec<u8>, &'static [u8]) {
    let mut client = Client::default();
    let records = [
        client.handshake(),
        client.data(b"one"),
        client.data(b" and two"),
        client.alert(CLOSE_NOTIFY),
    ];
    (records.concat(), b"one and two")
}

/// Sends the conversation in pieces that end at `cuts`, each in its own receive.
fn say_in_pieces(cuts: &[usize], how: Receive) {
    let subject = Served::default();
    let mut bench = Bench::new(&subject);
    let (bytes, plain) = conversation();
    let near = knock(&mut bench);
    let mut from = 0;
    let mut far = None;
    for &to in cuts.iter().chain([&bytes.len()]) {
        put(&mut bench, near, &bytes[from..to]);
        from = to;
        // The accepting side reads as soon as it can.
        for _ in 0..4 {
            bench.turn(0);
            if far.is_none() && !bench.accepted.is_empty() {
                far = Some(accepted(&mut bench));
            }
            far.into_iter().for_each(|far| bench.receive(far, how));
        }
    }
    let far = far.unwrap_or_else(|| accepted(&mut bench));
    bench.until("the end", |bench| {
        bench.receive(far, how);
        bench.of(far).is_over()
    });
    assert!(
        bench.of(far).ended && bench.of(far).received == plain,
        "{cuts:?}: {:?}",
        bench.of(far).received
    );
    // The other direction continues.
    bench.send_all(far, b"answer");
    bench.until("the answer", |bench| bench.of(near).received.len() >= GREETING + HEADER + 6 + TAG);
    assert_eq!(&bench.of(near).received[GREETING + HEADER..][..6], b"answer");
    assert_eq!(failures(bench.driver.take_tally()), []);
    finish(bench);
}

#[test]
fn each_cut() {
    for cut in 1..conversation().0.len() {
        say_in_pieces(&[cut], Receive::Many(Class::Small));
        say_in_pieces(&[cut], Receive::Once(Class::Small));
    }
}

#[test]
fn byte_by_byte_and_all_at_once() {
    let all: Vec<usize> = (1..conversation().0.len()).collect();
    for how in [Receive::Many(Class::Small), Receive::Once(Class::Large)] {
        say_in_pieces(&all, how);
        say_in_pieces(&[], how);
    }
}

#[test]
fn an_alert_answers_a_record_that_was_changed_and_what_came_before_counts() {
    let subject = Served::default();
    let mut bench = Bench::new(&subject);
    let near = knock(&mut bench);
    let mut client = Client::default();
    let mut bytes = [client.handshake(), client.data(b"good")].concat();
    let mut bad = client.data(b"evil");
    *bad.last_mut().unwrap() ^= 1;
    bytes.extend_from_slice(&bad);
    bytes.extend_from_slice(&client.data(b"later"));
    put(&mut bench, near, &bytes);
    // The bad record came with the handshake. So it ends there, because no connection was reported
    // yet.
    bench.until("the alert", |bench| bench.of(near).is_over());
    let received = bench.of(near).received.clone();
    assert_eq!(received[GREETING..][HEADER..][..1], [BAD_RECORD]);
    assert_eq!(failures(bench.driver.take_tally()), [("misbehaved", 1)]);
    assert!(bench.accepted.is_empty());

    let near = knock(&mut bench);
    let mut client = Client::default();
    put(&mut bench, near, &client.handshake());
    let far = accepted(&mut bench);
    bench.receive(far, Receive::Many(Class::Small));
    let (good, mut bad) = (client.data(b"good"), client.data(b"evil"));
    bad[HEADER] = b'E';
    *bad.last_mut().unwrap() ^= 1;
    put(&mut bench, near, &[good, bad].concat());
    bench.until("the failure", |bench| bench.of(far).is_over());
    assert!(bench.of(far).received == b"good" && bench.of(far).failed.is_some());
    bench.until("the alert", |bench| bench.of(near).received.len() == GREETING + HEADER + 1 + TAG);
    assert_eq!(failures(bench.driver.take_tally()), [("misbehaved", 1)]);
    bench.close(far);
    finish(bench);
}

#[test]
fn a_close_says_so_and_a_reset_does_not() {
    let subject = Served::default();
    for close in [true, false] {
        let mut bench = Bench::new(&subject);
        let near = knock(&mut bench);
        put(&mut bench, near, &Client::default().handshake());
        let far = accepted(&mut bench);
        bench.send_all(far, b"half an answer");
        if close {
            bench.close(far);
            // From here on this name is unused.
            assert!(!bench.driver.streams().contains(&far));
            bench.driver.receive(far, Receive::Many(Class::Small));
            bench.driver.shutdown_write(far);
        } else {
            bench.until("what was sent", |bench| {
                bench.of(near).received.len() >= GREETING + HEADER + 14 + TAG
            });
            bench.reset(far);
        }
        bench.until("the end", |bench| bench.of(near).is_over());
        let answer = bench.of(near).received[GREETING..].to_vec();
        let notified =
            answer.get(HEADER + 14 + TAG..).is_some_and(|rest| rest.len() == HEADER + 1 + TAG);
        assert_eq!((notified, bench.of(near).ended), (close, close));
        finish(bench);
    }
}
