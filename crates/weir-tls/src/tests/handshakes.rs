//! Proves: a connection is reported when its handshake is complete, and a failed one is closed,
//! counted under its reason and forgotten. How: paper clients in the simulation, in which the clock
//! runs as fast as it likes.

use weir_io::conformance::Bench;
use weir_io::{Class, Completion, Driver, Event, Receive};

use super::subject::{Client, GREETING, Served, accepted, failures, finish, knock, put};
use crate::cipher::HANDSHAKE_RECORD;
use crate::paper::{CLOSE_NOTIFY, HEADER, NO_CERTIFICATE, TAG};
use crate::records::{REST_US, SHORT_BYTES, SHORT_RECORD_BYTES};
use crate::sealed::{CLOSE_US, HANDSHAKES_MAX, REST_BYTES_MAX};

#[test]
fn bytes_that_come_with_the_last_message_wait_for_their_reader() {
    let subject = Served::default();
    let mut bench = Bench::new(&subject);
    let near = knock(&mut bench);
    let mut client = Client::default();
    let bytes = [client.handshake(), client.data(b"early "), client.data(b"bird")].concat();
    put(&mut bench, near, &bytes);
    let far = accepted(&mut bench);
    (0..3).for_each(|_| bench.turn(0));
    assert_eq!(bench.of(far).received, b"");
    bench.receive(far, Receive::Once(Class::Small));
    bench.expect(far, b"early bird");
    assert_eq!(bench.of(far).pieces, 1);
    put(&mut bench, near, &client.data(b"!"));
    bench.receive(far, Receive::Many(Class::Small));
    bench.expect(far, b"early bird!");
    let tally = bench.driver.take_tally().unwrap();
    assert_eq!((tally.completed, tally.resumed, bench.driver.unfinished()), (1, 0, 0));
    assert_eq!(bench.driver.take_facts(far).unwrap().version, "Paper");
    assert_eq!((bench.driver.take_facts(far), bench.driver.take_facts(near)), (None, None));
    finish(bench);
}

#[test]
fn what_is_no_tls_is_closed_at_its_first_byte() {
    let subject = Served::default();
    let mut bench = Bench::new(&subject);
    let near = knock(&mut bench);
    put(&mut bench, near, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    bench.until("the end", |bench| bench.of(near).is_over());
    assert_eq!(bench.of(near).received, b"");
    assert_eq!(failures(bench.driver.take_tally()), [("not-tls", 1)]);
    assert!(bench.accepted.is_empty() && bench.driver.unfinished() == 0);
    bench.close(near);
    assert_eq!(bench.driver.streams(), []);
}

#[test]
fn who_says_nothing_or_too_little_is_closed_in_time() {
    let subject = Served::default();
    let mut bench = Bench::new(&subject);
    let begun_us = bench.driver.now_us();
    let (silent, slow) = (knock(&mut bench), knock(&mut bench));
    let hello = Client::default().handshake();
    put(&mut bench, slow, &hello[..hello.len() - 1]);
    bench.until("both ends", |bench| bench.of(silent).is_over() && bench.of(slow).is_over());
    assert!(bench.driver.now_us() >= begun_us + 10_000_000);
    assert_eq!(failures(bench.driver.take_tally()), [("timeout", 2)]);
    assert_eq!(bench.driver.unfinished(), 0);
    bench.close(silent);
    bench.close(slow);
}

#[test]
fn who_leaves_is_forgotten() {
    let subject = Served::default();
    let mut bench = Bench::new(&subject);
    let hello = Client::default().handshake();
    for (reset, bytes) in [(false, 0), (true, 0), (false, 20), (true, hello.len() - 1)] {
        let near = knock(&mut bench);
        put(&mut bench, near, &hello[..bytes]);
        bench.until("it is known", |bench| bench.driver.unfinished() == 1);
        if reset {
            bench.reset(near)
        } else {
            bench.close(near)
        }
        bench.until("it is forgotten", |bench| bench.driver.unfinished() == 0);
        assert_eq!(failures(bench.driver.take_tally()), [("left", 1)]);
    }
    assert!(bench.accepted.is_empty());
    finish(bench);
}

#[test]
fn unfinished_handshakes_have_a_limit_and_the_oldest_make_room() {
    let subject = Served::default();
    let mut bench = Bench::new(&subject);
    let clients: Vec<_> = (0..HANDSHAKES_MAX + 5).map(|_| knock(&mut bench)).collect();
    bench.until("those too many", |bench| {
        clients.iter().filter(|near| bench.of(**near).is_over()).count() == 5
    });
    assert!(clients[..5].iter().all(|near| bench.of(*near).is_over()), "the oldest");
    assert_eq!(failures(bench.driver.take_tally()), [("too-many", 5)]);
    let listener = bench.listener;
    let queue = bench.driver.accept_queue(listener).unwrap_or_default();
    assert_eq!(bench.driver.unfinished(), HANDSHAKES_MAX);
    assert!(queue.waiting == 0 || queue.waiting >= HANDSHAKES_MAX);
    // A client that comes to speak is served, however many others are silent.
    let speaks = knock(&mut bench);
    put(&mut bench, speaks, &Client::default().handshake());
    let far = accepted(&mut bench);
    assert_eq!(failures(bench.driver.take_tally()), [("too-many", 1)]);
    bench.close(far);
    // Closing the listener also ends the connections that it has not handed out.
    bench.driver.close(listener);
    bench.until("all ends", |bench| clients.iter().all(|near| bench.of(*near).is_over()));
    assert_eq!(bench.driver.unfinished(), 0);
}

/// When descriptors are scarce, silent clients make room before the caller hears that clients have
/// to.
#[test]
fn old_handshakes_make_room_where_descriptors_are_scarce() {
    let subject = Served::default();
    let mut bench = Bench::new(&subject);
    let clients: Vec<_> = (0..20).map(|_| knock(&mut bench)).collect();
    bench.until("all are known", |bench| bench.driver.unfinished() == 20);
    let listener = bench.listener;
    let is_told = |bench: &mut Bench<'_, Served>| {
        let event = Event::AcceptFailed(std::io::ErrorKind::OutOfMemory.into());
        bench.driver.pass(&mut Completion { token: 1, socket: listener, event }, &mut Vec::new())
    };
    let begun_us = bench.driver.now_us();
    assert!(is_told(&mut bench), "they may speak in a moment");
    bench.until("they are silent", |bench| bench.driver.now_us() >= begun_us + 200_000);
    assert!(
        !is_told(&mut bench) && bench.driver.unfinished() == 20,
        "they are old enough in a moment"
    );
    bench.until("they are old", |bench| bench.driver.now_us() >= begun_us + 1_100_000);
    assert!(!is_told(&mut bench));
    assert_eq!(bench.driver.unfinished(), 18, "not more of them than there have to be");
    let speaks = knock(&mut bench);
    put(&mut bench, speaks, &Client::default().handshake()[..10]);
    while bench.driver.unfinished() > 1 {
        assert!(!is_told(&mut bench));
        bench.turn(0);
    }
    bench.until("the ends", |bench| clients.iter().all(|near| bench.of(*near).is_over()));
    assert!(
        is_told(&mut bench) && !bench.of(speaks).is_over(),
        "who has begun keeps nobody from being told"
    );
    assert_eq!(failures(bench.driver.take_tally()), [("too-many", 20)]);
    bench.close(speaks);
    bench.until("nobody is left", |bench| bench.driver.unfinished() == 0);
    assert!(is_told(&mut bench));
}

/// A client has finished before its certificate is judged (RFC 8446 §4.4.4): bytes that it sends
/// meanwhile must not cost it the alert.
#[test]
fn who_is_refused_hears_why_although_it_goes_on_sending() {
    for ends in [true, false] {
        let subject = Served::default();
        let mut bench = Bench::new(&subject);
        let (near, mut client) = (knock(&mut bench), Client::default());
        put(
            &mut bench,
            near,
            &[client.record(HANDSHAKE_RECORD, b"nobody"), client.data(b"a request")].concat(),
        );
        put(&mut bench, near, &client.data(&[b'x'; 5000]));
        let alert = [0x15, 3, 3, 0, (1 + TAG) as u8, NO_CERTIFICATE];
        bench.until("the alert, and an end behind it", |bench| bench.of(near).is_over());
        assert!(bench.of(near).ended && bench.of(near).received.starts_with(&alert));
        put(&mut bench, near, &client.data(b"more"));
        assert_eq!(bench.driver.unfinished(), 0);
        let begun_us = bench.driver.now_us();
        if ends {
            bench.close(near);
        }
        bench.until("it is forgotten", |bench| {
            bench.driver.inner().streams().len() == usize::from(!ends)
        });
        assert!(bench.driver.now_us() <= begun_us + CLOSE_US + 100_000);
        assert_eq!(failures(bench.driver.take_tally()), [("no-certificate", 1)]);
        assert!(bench.accepted.is_empty());
        finish(bench);
    }
}

/// A draining listener waits for clients that are about to complete, and not for silent ones.
#[test]
fn who_has_begun_is_waited_for() {
    let subject = Served::default();
    let mut bench = Bench::new(&subject);
    let listener = bench.listener;
    let (silent, speaks) = (knock(&mut bench), knock(&mut bench));
    bench.until("both are known", |bench| bench.driver.unfinished() == 2);
    assert!(!bench.driver.is_awaited(listener));
    let hello = Client::default().handshake();
    put(&mut bench, speaks, &hello[..hello.len() - 1]);
    bench.until("it has begun", |bench| bench.driver.is_awaited(listener));
    put(&mut bench, speaks, &hello[hello.len() - 1..]);
    accepted(&mut bench);
    assert!(!bench.driver.is_awaited(listener) && bench.driver.unfinished() == 1);
    bench.close(silent);
}

/// A worker must not end before the close_notify is with the network.
#[test]
fn a_close_goes_on_until_its_last_byte_is_sent() {
    let subject = Served::default();
    let mut bench = Bench::new(&subject);
    let near = knock(&mut bench);
    put(&mut bench, near, &Client::default().handshake());
    let far = accepted(&mut bench);
    bench.send_all(far, b"answer");
    assert!(!bench.driver.is_closing());
    bench.close(far);
    assert!(bench.driver.is_closing(), "nothing of it can be sent without a turn");
    bench.until("it is sent", |bench| !bench.driver.is_closing());
    bench.until("the end", |bench| bench.of(near).is_over());
    let last = [&[0x15, 3, 3, 0, (1 + TAG) as u8, CLOSE_NOTIFY][..], &[3; TAG]].concat();
    assert!(bench.of(near).ended && bench.of(near).received.ends_with(&last));
}

/// The first bytes, and the first bytes after a pause, come in short records; the byte at which
/// that changes is in the middle of a payload.
#[test]
fn records_are_short_at_first_and_after_a_rest() {
    let subject = Served::default();
    let mut bench = Bench::new(&subject);
    let near = knock(&mut bench);
    put(&mut bench, near, &Client::default().handshake());
    let far = accepted(&mut bench);
    let mut seen = GREETING;
    let mut lengths = |bench: &mut Bench<'_, Served>, bytes: usize| {
        bench.send_all(far, &vec![b'x'; bytes]);
        let (from, mut left, mut lengths) = (seen, bytes, Vec::new());
        let mut at = from;
        while left > 0 {
            bench.until("a record", |bench| bench.of(near).received.len() >= at + HEADER);
            let head = &bench.of(near).received[at..at + HEADER];
            let len = usize::from(u16::from_be_bytes([head[3], head[4]]));
            bench.until("all of it", |bench| bench.of(near).received.len() >= at + HEADER + len);
            lengths.push(len - TAG);
            (at, left) = (at + HEADER + len, left - (len - TAG));
        }
        seen = at;
        lengths
    };
    let short = SHORT_BYTES / SHORT_RECORD_BYTES;
    let first = lengths(&mut bench, SHORT_BYTES + 20_000);
    assert_eq!(first, [vec![SHORT_RECORD_BYTES; short], vec![16_384, 20_000 - 16_384]].concat());
    assert_eq!(lengths(&mut bench, 5000), [5000]);
    let begun_us = bench.driver.now_us();
    while bench.driver.now_us() < begun_us + REST_US {
        bench.turn(100_000);
    }
    assert_eq!(lengths(&mut bench, 5000), [SHORT_RECORD_BYTES, 5000 - SHORT_RECORD_BYTES]);
    finish(bench);
}

/// A message in ever more records that is never complete is held only up to a limit.
#[test]
fn what_a_library_does_not_use_is_bounded() {
    let subject = Served::default();
    let mut bench = Bench::new(&subject);
    let near = knock(&mut bench);
    let mut client = Client::default();
    put(
        &mut bench,
        near,
        &[client.handshake(), client.record(HANDSHAKE_RECORD, b"hoard")].concat(),
    );
    let far = accepted(&mut bench);
    bench.receive(far, Receive::Many(Class::Large));
    for _ in 0..REST_BYTES_MAX / 1024 + 2 {
        let record = client.data(&[b'x'; 1024]);
        if !bench.of(far).is_over() {
            put(&mut bench, near, &record);
        }
    }
    bench.until("it is given up", |bench| bench.of(far).is_over());
    assert_eq!(failures(bench.driver.take_tally()), [("misbehaved", 1)]);
}

/// A library that panics ends its connection, and the others continue.
#[test]
fn a_panic_of_the_library_costs_one_connection() {
    let subject = Served::default();
    let mut bench = Bench::new(&subject);
    for during in [true, false] {
        let near = knock(&mut bench);
        let mut client = Client::default();
        if during {
            put(&mut bench, near, &client.record(HANDSHAKE_RECORD, b"panic"));
            bench.until("its end", |bench| bench.of(near).is_over());
        } else {
            put(&mut bench, near, &client.handshake());
            let far = accepted(&mut bench);
            bench.receive(far, Receive::Many(Class::Small));
            put(&mut bench, near, &client.record(HANDSHAKE_RECORD, b"panic"));
            bench.until("it is told", |bench| bench.of(far).is_over());
        }
        assert_eq!(failures(bench.driver.take_tally()), [("internal", 1)], "{during}");
    }
}
