//! Proves: a connect is reported when its handshake is complete, or with the reason why it failed,
//! wherever the network cuts the server's bytes; and an unannounced end is one that may have
//! truncated something. How: paper servers in the simulation.

use weir_io::conformance::Bench;
use weir_io::{Class, Driver, Receive, Socket};

use super::subject::{Asking, Client as Server, accepted, failures, finish, put};
use crate::cipher::Failure;
use crate::paper::{CLOSE_NOTIFY, HEADER, TAG};
use crate::sealed::FLIGHT_BYTES_MAX;

/// Bytes of the client's hello and of its second message.
const HELLO: usize = HEADER + 5 + TAG;
const CONFIRM: usize = HEADER + 7 + TAG;

/// A connect with a received hello: the client's end and the server's.
fn called(bench: &mut Bench<'_, Asking>) -> (Socket, Socket) {
    let near = bench.connect(bench.address);
    let far = accepted(bench);
    bench.receive(far, Receive::Many(Class::Small));
    bench.until("a hello", |bench| bench.of(far).received.len() == HELLO);
    (near, far)
}

/// How a connect ended; None: it has not.
fn outcome(bench: &mut Bench<'_, Asking>, near: Socket) -> Option<bool> {
    bench.of(near).connected.as_ref().map(|result| result.is_ok())
}

fn said(bench: &mut Bench<'_, Asking>) -> Vec<(&'static str, u64)> {
    failures(bench.driver.take_connects_tally())
}

/// Sends the server's bytes in pieces that end at `cuts`.
fn answer_in_pieces(cuts: &[usize], how: Receive) {
    let subject = Asking::default();
    let mut bench = Bench::new(&subject);
    let mut server = Server::default();
    let flight = server.flight();
    let records = [
        server.record(0x16, b"ticket"),
        server.data(b"one"),
        server.data(b" and two"),
        server.alert(CLOSE_NOTIFY),
    ];
    let bytes = [flight.clone(), records.concat()].concat();
    let (near, far) = called(&mut bench);
    let mut from = 0;
    for &to in cuts.iter().chain([&bytes.len()]) {
        let told = outcome(&mut bench, near).is_some();
        assert!(!told || from >= flight.len(), "told before the handshake was complete");
        put(&mut bench, far, &bytes[from..to]);
        from = to;
        for _ in 0..4 {
            bench.turn(0);
            if outcome(&mut bench, near).is_some() {
                bench.receive(near, how);
            }
        }
    }
    bench.until("the end", |bench| {
        if outcome(bench, near).is_some() {
            bench.receive(near, how);
        }
        bench.of(near).is_over()
    });
    assert_eq!(outcome(&mut bench, near), Some(true));
    assert!(bench.of(near).ended && bench.of(near).received == b"one and two", "{cuts:?}");
    assert!(!bench.driver.is_cut(near));
    // The other direction continues.
    bench.send_all(near, b"more");
    bench.until("it", |bench| bench.of(far).received.len() == HELLO + CONFIRM + HEADER + 4 + TAG);
    assert_eq!(bench.driver.take_tally(), None);
    let tally = bench.driver.take_connects_tally().unwrap_or_default();
    assert_eq!((tally.completed, failures(Some(tally))), (1, vec![]));
    finish(bench);
}

#[test]
fn each_cut_of_what_a_server_says() {
    for cut in 1..HEADER + 700 + TAG + 100 {
        answer_in_pieces(
            &[cut],
            if cut % 2 == 0 { Receive::Many(Class::Large) } else { Receive::Once(Class::Large) },
        );
    }
    for how in [Receive::Many(Class::Large), Receive::Once(Class::Small)] {
        answer_in_pieces(&(1..800).collect::<Vec<_>>(), how);
        answer_in_pieces(&[], how);
    }
}

#[test]
fn what_comes_to_nothing_is_told_with_its_reason() {
    let subject = Asking::default();
    let mut bench = Bench::new(&subject);
    let mut wrong = Server::default().flight();
    *wrong.last_mut().unwrap() ^= 1;
    let half = Server::default().flight()[..50].to_vec();
    for (bytes, ends, why) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], false, "not-tls"),
        (&Server::default().alert(40), false, "alert"),
        (&wrong, false, "misbehaved"),
        (&half, true, "left"),
        (b"", true, "left"),
        (&[0x16; FLIGHT_BYTES_MAX + 5], false, "misbehaved"),
    ] {
        let (near, far) = called(&mut bench);
        if !bytes.is_empty() {
            put(&mut bench, far, bytes);
        }
        if ends {
            bench.close(far);
        }
        bench.until("a verdict", |bench| outcome(bench, near).is_some());
        assert_eq!(
            (outcome(&mut bench, near), said(&mut bench)),
            (Some(false), vec![(why, 1)]),
            "{why}"
        );
        let error = bench
            .of(near)
            .connected
            .as_ref()
            .and_then(|result| result.as_ref().err())
            .and_then(|e| e.get_ref());
        assert_eq!(
            error.and_then(|error| error.downcast_ref::<Failure>()).map(|why| why.word()),
            Some(why)
        );
        if !ends {
            bench.until("the end", |bench| bench.of(far).is_over());
            bench.close(far);
        }
    }
    assert_eq!(bench.driver.take_tally(), None);
    finish(bench);
}

/// The caller limits how long a handshake may take: the connect is not over, and a close ends it.
#[test]
fn a_handshake_that_hangs_ends_with_its_close() {
    let subject = Asking::default();
    let mut bench = Bench::new(&subject);
    let (near, far) = called(&mut bench);
    put(&mut bench, far, &Server::default().flight()[..100]);
    (0..50).for_each(|_| bench.turn(1_000_000));
    assert_eq!(outcome(&mut bench, near), None);
    assert!(bench.driver.streams().contains(&near), "the caller knows it");
    bench.close(near);
    bench.until("the end", |bench| bench.of(far).is_over());
    assert_eq!(said(&mut bench), []);
    finish(bench);
}

#[test]
fn an_end_that_was_not_said_may_have_cut_something() {
    let subject = Asking::default();
    for says_so in [true, false] {
        let mut bench = Bench::new(&subject);
        let (near, far) = called(&mut bench);
        let mut server = Server::default();
        put(&mut bench, far, &server.flight());
        bench.until("a connect", |bench| outcome(bench, near) == Some(true));
        bench.receive(near, Receive::Many(Class::Large));
        put(&mut bench, far, &server.data(b"half an answer"));
        if says_so {
            put(&mut bench, far, &server.alert(CLOSE_NOTIFY));
        }
        bench.close(far);
        bench.until("the end", |bench| bench.of(near).is_over());
        assert!(bench.of(near).received == b"half an answer" && bench.of(near).ended);
        assert_eq!(bench.driver.is_cut(near), !says_so);
        finish(bench);
    }
}

/// A server that rejects the client's certificate says so when the client has already finished (RFC
/// 8446 §4.4.2.4).
#[test]
fn an_alert_behind_the_handshake_is_counted() {
    let subject = Asking::default();
    let mut bench = Bench::new(&subject);
    let (near, far) = called(&mut bench);
    let mut server = Server::default();
    put(&mut bench, far, &[server.flight(), server.alert(116)].concat());
    bench.until("a verdict", |bench| outcome(bench, near).is_some());
    assert_eq!((outcome(&mut bench, near), said(&mut bench)), (Some(false), vec![("alert", 1)]));
    bench.close(far);

    let (near, far) = called(&mut bench);
    let mut server = Server::default();
    put(&mut bench, far, &server.flight());
    bench.until("a connect", |bench| outcome(bench, near) == Some(true));
    bench.receive(near, Receive::Once(Class::Large));
    put(&mut bench, far, &server.alert(116));
    bench.until("the end", |bench| bench.of(near).is_over());
    assert!(bench.of(near).failed.is_some());
    assert_eq!(said(&mut bench), [("alert", 1)]);
    bench.close(far);
    finish(bench);
}
