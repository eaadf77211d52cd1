//! Proves: a gate is asked about each client before any state for it exists and before each step
//! that may be expensive, and it learns the outcome; its pass is dropped with the connection. How:
//! paper clients in the simulation, and a gate that records its calls.

use std::any::Any;
use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use weir_io::conformance::Bench;

use super::subject::{Client, Served, accepted, failures, finish, knock, put};
use crate::cipher::HANDSHAKE_RECORD;
use crate::gate::{Gate, Pass, Refusal};
use crate::paper::HELLO_AGAIN;

#[derive(Default)]
struct Book {
    said: Vec<&'static str>,
    /// New clients are not admitted, or may not work.
    refuses: Option<Refusal>,
    refuses_work: Option<Refusal>,
    /// Clients are admitted, and the gate hears nothing about them.
    exempts: bool,
    passes: Rc<()>,
}

struct Porter(Rc<RefCell<Book>>);

impl Gate for Porter {
    fn admit(&mut self, client: IpAddr, _: u64) -> Result<Option<Pass>, Refusal> {
        let mut book = self.0.borrow_mut();
        assert!(client.is_loopback() || client.is_ipv4());
        book.said.push("admit");
        let pass: Box<dyn Any> = Box::new(Rc::clone(&book.passes));
        book.refuses.map_or_else(|| Ok((!book.exempts).then_some(pass)), Err)
    }

    fn charge(&mut self, _: IpAddr, pass: &mut Pass, _: u64) -> Result<(), Refusal> {
        assert!(pass.is::<Rc<()>>());
        self.0.borrow_mut().said.push("charge");
        self.0.borrow().refuses_work.map_or(Ok(()), Err)
    }

    fn settle(&mut self, _: IpAddr, _: &mut Pass, worked: bool, _: u64) {
        self.0.borrow_mut().said.push(if worked { "worked" } else { "cheap" });
    }

    fn failed(&mut self, _: IpAddr, _: &mut Pass, _: u64) {
        self.0.borrow_mut().said.push("failed");
    }
}

/// A gate, and the calls that it has seen since this was last asked.
fn gated(bench: &mut Bench<'_, Served>, change: impl FnOnce(&mut Book)) -> Rc<RefCell<Book>> {
    let book = Rc::new(RefCell::new(Book::default()));
    change(&mut book.borrow_mut());
    bench.driver.set_gate(Box::new(Porter(Rc::clone(&book))));
    book
}

/// The calls that it has seen, and the number of passes that exist.
fn said(book: &Rc<RefCell<Book>>) -> (Vec<&'static str>, usize) {
    let mut book = book.borrow_mut();
    (std::mem::take(&mut book.said), Rc::strong_count(&book.passes) - 1)
}

#[test]
fn who_is_not_wanted_costs_nothing() {
    for (refusal, ended) in [(Refusal::Close, true), (Refusal::Reset, false)] {
        let subject = Served::default();
        let mut bench = Bench::new(&subject);
        let book = gated(&mut bench, |book| book.refuses = Some(refusal));
        let near = knock(&mut bench);
        bench.until("the end", |bench| bench.of(near).is_over());
        assert_eq!((bench.of(near).ended, said(&book)), (ended, (vec!["admit"], 0)), "{refusal:?}");
        assert_eq!((bench.driver.unfinished(), bench.driver.take_tally()), (0, None));
        bench.close(near);
        finish(bench);
    }
}

#[test]
fn a_handshake_is_charged_in_front_of_its_work_once() {
    for (hello, expected) in [(&b"hello"[..], "worked"), (HELLO_AGAIN, "cheap")] {
        let subject = Served::default();
        let mut bench = Bench::new(&subject);
        let book = gated(&mut bench, |_| ());
        let (near, mut client) = (knock(&mut bench), Client::default());
        let hello = client.record(HANDSHAKE_RECORD, hello);
        put(&mut bench, near, &hello[..9]);
        bench.until("a step", |_| book.borrow().said.len() == 3);
        assert_eq!(
            said(&book),
            (vec!["admit", "charge", "cheap"], 1),
            "nothing is known of a part of a hello"
        );
        put(&mut bench, near, &hello[9..]);
        bench.until("a step", |_| book.borrow().said.len() == 2);
        assert_eq!(said(&book).0, ["charge", expected]);
        put(&mut bench, near, &client.record(HANDSHAKE_RECORD, b"confirm"));
        let far = accepted(&mut bench);
        assert_eq!(said(&book), (vec![], 1), "the rest costs nothing");
        let pass = bench.driver.take_pass(far).expect("it is there");
        assert!(bench.driver.take_pass(far).is_none() && pass.is::<Rc<()>>());
        drop(pass);
        assert_eq!(said(&book).1, 0);
        finish(bench);
    }
}

#[test]
fn who_may_not_work_is_refused_in_front_of_it() {
    for (refusal, ended) in [(Refusal::Close, true), (Refusal::Reset, false)] {
        let subject = Served::default();
        let mut bench = Bench::new(&subject);
        let book = gated(&mut bench, |book| book.refuses_work = Some(refusal));
        let near = knock(&mut bench);
        put(&mut bench, near, &Client::default().handshake());
        bench.until("the end", |bench| bench.of(near).is_over());
        assert_eq!(
            (bench.of(near).ended, bench.of(near).received.len()),
            (ended, 0),
            "{refusal:?}"
        );
        assert_eq!(said(&book), (vec!["admit", "charge"], 0));
        assert_eq!((failures(bench.driver.take_tally()), bench.driver.unfinished()), (vec![], 0));
        bench.close(near);
        finish(bench);
    }
}

#[test]
fn what_comes_to_nothing_is_told_and_its_pass_goes() {
    let hello = Client::default().handshake();
    for (bytes, expected) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], &["admit", "failed"][..]),
        (&hello[..hello.len() - 1], &["admit", "charge", "worked", "failed"]),
        (b"", &["admit", "failed"]),
    ] {
        // By the time limit, and because it leaves.
        for leaves in [false, true] {
            let subject = Served::default();
            let mut bench = Bench::new(&subject);
            let book = gated(&mut bench, |_| ());
            let near = knock(&mut bench);
            put(&mut bench, near, bytes);
            bench.until("what is said before", |_| book.borrow().said.len() >= expected.len() - 1);
            if leaves && !bench.of(near).is_over() {
                bench.close(near);
            }
            bench.until("it is given up", |_| book.borrow().said.len() == expected.len());
            assert_eq!(said(&book), (expected.to_vec(), 0), "{leaves}");
            if !leaves {
                bench.close(near);
            }
            finish(bench);
        }
    }
}

#[test]
fn of_who_has_no_pass_nothing_is_said() {
    let subject = Served::default();
    let mut bench = Bench::new(&subject);
    let book = gated(&mut bench, |book| book.exempts = true);
    let near = knock(&mut bench);
    put(&mut bench, near, &Client::default().handshake());
    let far = accepted(&mut bench);
    assert!(bench.driver.take_pass(far).is_none());
    let other = knock(&mut bench);
    put(&mut bench, other, b"GET /");
    bench.until("its end", |bench| bench.of(other).is_over());
    assert_eq!(said(&book), (vec!["admit"; 2], 0));
    bench.close(other);
    finish(bench);
}
