//! The suite of `weir-io` on [`Sealed`]: around each driver with nothing sealed, and with both ends
//! of each connection sealed, in paper and by the library of the product. Tests of the suite that
//! expect behavior of the kernel itself are skipped for sealed sockets, each with the reason.

use std::net::SocketAddr;
use std::sync::Arc;

use weir_io::conformance::{
    self, Bench, EpollSubject, SimSubject, Subject, Test, TinyUringSubject, UringSubject,
};
use weir_io::{Class, Driver, DriverKind, Options, Receive};

use super::files::Scratch;
use super::wire;
use crate::cipher::{RECORD_BYTES_MAX, Seal};
use crate::pairs::Pair;
use crate::paper::{ClientPapers, Papers};
use crate::sealed::Sealed;
use crate::servers::{PeerName, Roots, ServerSeal, ServerTerms, Trust, WantedOfServers};
use crate::terms::provider;

/// A driver of this kind, wrapped, with nothing sealed.
#[derive(Default)]
struct Plain<S>(S);

impl<S: Subject> Subject for Plain<S> {
    type Driver = Sealed<S::Driver>;

    fn driver(&self, options: Options) -> Sealed<S::Driver> {
        Sealed::new(self.0.driver(options))
    }

    fn another(&self, options: Options) -> Sealed<S::Driver> {
        Sealed::new(self.0.another(options))
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

/// A driver of this kind with all listeners and connects sealed.
#[derive(Default)]
struct InPaper<S>(S);

impl<S: Subject> Subject for InPaper<S> {
    type Driver = Sealed<S::Driver>;

    fn driver(&self, options: Options) -> Sealed<S::Driver> {
        let mut driver = Sealed::new(self.0.driver(options));
        driver.connects = Some(Arc::new(ClientPapers::default()));
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

/// A driver of this kind with all listeners and connects sealed by the library of the product, with
/// one certificate.
struct InRustls<S> {
    inner: S,
    listens: Arc<dyn Seal>,
    connects: Arc<dyn Seal>,
    _files: Scratch,
}

impl<S> InRustls<S> {
    fn around(inner: S) -> InRustls<S> {
        let scratch = Scratch::new();
        let ca = scratch.ca("ca");
        let files = scratch.signed(&ca, "leaf", "subjectAltName=DNS:a.example", 30);
        let pair = Pair::read(&files, &provider()).unwrap();
        let wanted = WantedOfServers { trust: Trust::File(ca.certificate), files: None };
        let roots = Roots::read(&wanted.trust).unwrap();
        let names = [PeerName::new("a.example").unwrap()];
        let servers = ServerTerms::new(wanted, &names, &roots, None, provider()).unwrap();
        let listens = Arc::new(wire::terms(&[pair], |_| ()));
        InRustls {
            inner,
            listens,
            connects: Arc::<ServerSeal>::clone(&servers.seals()[0]),
            _files: scratch,
        }
    }
}

impl<S: Subject> Subject for InRustls<S> {
    type Driver = Sealed<S::Driver>;

    fn driver(&self, options: Options) -> Sealed<S::Driver> {
        let mut driver = Sealed::new(self.inner.driver(options));
        driver.connects = Some(Arc::clone(&self.connects));
        driver.listens = Some(Arc::clone(&self.listens));
        driver
    }

    fn advance(&self) {
        self.inner.advance();
    }

    fn slack(&self) -> u32 {
        RECORD_BYTES_MAX as u32
    }

    fn pipes_in_use(&self, driver: &Sealed<S::Driver>) -> usize {
        self.inner.pipes_in_use(driver.inner())
    }

    fn may_be_client(&self, address: SocketAddr) -> bool {
        self.inner.may_be_client(address)
    }
}

fn simulated<S: Subject>() -> Vec<Test<S>> {
    let tests =
        [conformance::flow::tests(), conformance::later::tests(), conformance::faults::tests()];
    [
        tests.concat(),
        conformance::chaos::tests(),
        conformance::relay::tests(),
        conformance::release::tests(),
    ]
    .concat()
}

/// A connection that speaks TLS is not released, and continues.
#[test]
fn sealed_connections_stay() {
    let subject = InPaper(EpollSubject);
    let mut bench = Bench::new(&subject);
    let (near, far) = bench.pair();
    bench.receive(far, Receive::Many(Class::Small));
    assert!(!bench.driver.release(near) && !bench.driver.release(far));
    bench.send_all(near, b"sealed");
    bench.expect(far, b"sealed");
    bench.finish();
}

fn run<S: Subject>(subject: &S, tests: Vec<Test<S>>) {
    for (name, test) in tests {
        println!("{name}");
        test(subject);
    }
}

/// Tests that a sealed socket can't pass, and why.
const NOT_SEALED: &[(&str, &str)] = &[(
    "reset",
    "a close with unread bytes resets a connection, but the close_notify is read before that",
)];

fn sealed<S: Subject>() -> Vec<Test<S>> {
    let tests =
        [conformance::flow::tests(), conformance::later::tests(), conformance::faults::tests()];
    let tests = [tests.concat(), conformance::chaos::tests()].concat();
    tests.into_iter().filter(|(name, _)| !NOT_SEALED.iter().any(|(not, _)| not == name)).collect()
}

fn has_uring() -> bool {
    weir_io::probe().driver == DriverKind::Uring
}

#[test]
fn plain_epoll() {
    run(
        &Plain(EpollSubject),
        [simulated(), conformance::real::tests(), conformance::begun::tests()].concat(),
    );
}

#[test]
fn plain_uring() {
    if has_uring() {
        run(
            &Plain(UringSubject),
            [simulated(), conformance::real::tests(), conformance::begun::tests()].concat(),
        );
        run(
            &Plain(TinyUringSubject),
            [simulated(), conformance::real::tests(), conformance::begun::tests()].concat(),
        );
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
fn in_rustls_on_epoll() {
    run(&InRustls::around(EpollSubject), sealed());
}

#[test]
fn in_rustls_on_uring() {
    if has_uring() {
        run(&InRustls::around(UringSubject), sealed());
        run(&InRustls::around(TinyUringSubject), sealed());
    }
}

#[test]
fn in_paper_on_sim() {
    // Plaintext is opened into separate memory, while tests that count the buffers of the
    // simulation expect it in those.
    let own = ["buffers_run_out", "k2_starving_sockets_may_leave", "buffers_are_shared_fairly"];
    let tests = sealed().into_iter().filter(|(name, _)| !own.contains(name)).collect();
    run(&InPaper::<SimSubject>::default(), tests);
}
