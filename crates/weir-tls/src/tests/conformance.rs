//! The suite of `weir-io` on [`Sealed`]: around each driver with nothing sealed, and with both ends of each connection sealed in
//! paper. What a test of the suite expects of the kernel's own doing is left out for sealed ones, each with the reason.

use std::net::SocketAddr;
use std::sync::Arc;

use weir_io::conformance::{self, EpollSubject, SimSubject, Subject, Test, TinyUringSubject, UringSubject};
use weir_io::{DriverKind, Options};

use crate::cipher::RECORD_BYTES_MAX;
use crate::paper::{self, Papers};
use crate::sealed::Sealed;

/// A driver of this kind, around which nothing is sealed.
#[derive(Default)]
struct Plain<S>(S);

impl<S: Subject> Subject for Plain<S> {
    type Driver = Sealed<S::Driver>;

    fn driver(&self, options: Options) -> Sealed<S::Driver> {
        Sealed::new(self.0.driver(options))
    }

    fn advance(&self) {
        self.0.advance();
    }

    fn pipes_in_use(&self, driver: &Sealed<S::Driver>) -> usize {
        self.0.pipes_in_use(driver.inner())
    }

    fn may_be_client(&self, address: SocketAddr) -> bool {
        self.0.may_be_client(address)
    }
}

/// A driver of this kind whose listeners and connects are all sealed.
#[derive(Default)]
struct InPaper<S>(S);

impl<S: Subject> Subject for InPaper<S> {
    type Driver = Sealed<S::Driver>;

    fn driver(&self, options: Options) -> Sealed<S::Driver> {
        let mut driver = Sealed::new(self.0.driver(options));
        driver.connects = Some(paper::client);
        driver.listens = Some(Arc::new(Papers(5_000)));
        driver
    }

    fn advance(&self) {
        self.0.advance();
    }

    fn slack(&self) -> u32 {
        RECORD_BYTES_MAX as u32
    }

    fn pipes_in_use(&self, driver: &Sealed<S::Driver>) -> usize {
        self.0.pipes_in_use(driver.inner())
    }

    fn may_be_client(&self, address: SocketAddr) -> bool {
        self.0.may_be_client(address)
    }
}

fn simulated<S: Subject>() -> Vec<Test<S>> {
    [conformance::flow::tests(), conformance::faults::tests(), conformance::chaos::tests(), conformance::relay::tests()]
        .concat()
}

fn run<S: Subject>(subject: &S, tests: Vec<Test<S>>) {
    for (name, test) in tests {
        println!("{name}");
        test(subject);
    }
}

/// Tests that a sealed socket can't pass, and why.
const NOT_SEALED: &[(&str, &str)] =
    &[("reset", "a close with unread bytes resets a connection, but the close_notify is read before that")];

fn sealed<S: Subject>() -> Vec<Test<S>> {
    let tests = [conformance::flow::tests(), conformance::faults::tests(), conformance::chaos::tests()].concat();
    tests.into_iter().filter(|(name, _)| !NOT_SEALED.iter().any(|(not, _)| not == name)).collect()
}

fn has_uring() -> bool {
    weir_io::probe().driver == DriverKind::Uring
}

#[test]
fn plain_epoll() {
    run(&Plain(EpollSubject), [simulated(), conformance::real::tests()].concat());
}

#[test]
fn plain_uring() {
    if has_uring() {
        run(&Plain(UringSubject), [simulated(), conformance::real::tests()].concat());
        run(&Plain(TinyUringSubject), [simulated(), conformance::real::tests()].concat());
    }
}

#[test]
fn plain_sim() {
    run(&Plain::<SimSubject>::default(), simulated());
}

#[test]
fn in_paper_on_epoll() {
    run(&InPaper(EpollSubject), sealed());
}

#[test]
fn in_paper_on_uring() {
    if has_uring() {
        run(&InPaper(UringSubject), sealed());
        run(&InPaper(TinyUringSubject), sealed());
    }
}

#[test]
fn in_paper_on_sim() {
    // What is opened there lies in memory of its own: buffers of the simulation are shared with whoever counts them.
    let own = ["buffers_run_out", "k2_starving_sockets_may_leave", "buffers_are_shared_fairly"];
    let tests = sealed().into_iter().filter(|(name, _)| !own.contains(name)).collect();
    run(&InPaper::<SimSubject>::default(), tests);
}
