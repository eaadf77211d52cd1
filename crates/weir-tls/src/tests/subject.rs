//! A driver, mostly the simulated one, with listeners that are sealed in paper, while its own
//! connects are plain: tests write the records of clients byte by byte.

use std::sync::Arc;

use weir_io::conformance::{Bench, SimSubject, Subject};
use weir_io::sim::SimDriver;
use weir_io::{Class, Options, Payload, Receive, Socket};

use crate::cipher::{Failure, HANDSHAKE_RECORD, RECORD_BYTES_MAX, Tally};
use crate::paper::{self, ClientPapers, HEADER, Papers, TAG};
use crate::sealed::Sealed;

/// Bytes of the server's flight.
pub(super) const FLIGHT: usize = 700;

#[derive(Default)]
pub(super) struct ServedOn<S>(pub(super) S);

pub(super) type Served = ServedOn<SimSubject>;

impl<S: Subject> Subject for ServedOn<S> {
    type Driver = Sealed<S::Driver>;

    fn driver(&self, options: Options) -> Sealed<S::Driver> {
        let mut driver = Sealed::new(self.0.driver(options));
        driver.listens = Some(Arc::new(Papers(FLIGHT)));
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

    fn may_be_client(&self, _: std::net::SocketAddr) -> bool {
        true
    }
}

/// A simulated driver with connects that are sealed in paper, while its listeners are plain: tests
/// write the records of servers byte by byte.
#[derive(Default)]
pub(super) struct Asking(SimSubject);

impl Subject for Asking {
    type Driver = Sealed<SimDriver>;

    fn driver(&self, options: Options) -> Sealed<SimDriver> {
        let mut driver = Sealed::new(self.0.driver(options));
        driver.connects = Some(Arc::new(ClientPapers::default()));
        driver
    }

    fn advance(&self) {
        self.0.advance();
    }

    fn slack(&self) -> u32 {
        RECORD_BYTES_MAX as u32
    }

    fn pipes_in_use(&self, driver: &Sealed<SimDriver>) -> usize {
        self.0.pipes_in_use(driver.inner())
    }

    fn may_be_client(&self, _: std::net::SocketAddr) -> bool {
        true
    }
}

/// Writes the records of one end.
#[derive(Default)]
pub(super) struct Client(u8);

impl Client {
    pub(super) fn record(&mut self, kind: u8, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        paper::record(kind, self.0, &[body], &mut out);
        self.0 += 1;
        out
    }

    /// The server's messages until the client may send.
    pub(super) fn flight(&mut self) -> Vec<u8> {
        self.record(HANDSHAKE_RECORD, &[b'f'; FLIGHT])
    }

    /// Both messages of a client.
    pub(super) fn handshake(&mut self) -> Vec<u8> {
        [self.record(HANDSHAKE_RECORD, b"hello"), self.record(HANDSHAKE_RECORD, b"confirm")]
            .concat()
    }

    pub(super) fn data(&mut self, body: &[u8]) -> Vec<u8> {
        self.record(0x17, body)
    }

    pub(super) fn alert(&mut self, what: u8) -> Vec<u8> {
        self.record(0x15, &[what])
    }
}

/// Bytes of the server's handshake: its flight and its ticket.
pub(super) const GREETING: usize = HEADER + FLIGHT + TAG + HEADER + 6 + TAG;

/// The entries of the table of failures that are not 0.
pub(super) fn failures(tally: Option<Tally>) -> Vec<(&'static str, u64)> {
    let tally = tally.unwrap_or_default();
    let all = Failure::ALL.iter().zip(tally.failed).map(|(why, count)| (why.word(), count));
    all.filter(|(_, count)| *count > 0).collect()
}

/// A client that is connected and says nothing yet.
pub(super) fn knock<S: Subject>(bench: &mut Bench<'_, S>) -> Socket {
    let near = bench.connect(bench.address);
    bench.until("a connect", |bench| bench.of(near).connected.is_some());
    bench.receive(near, Receive::Many(Class::Large));
    near
}

/// Sends bytes of the client as they are.
pub(super) fn put<S: Subject>(bench: &mut Bench<'_, S>, near: Socket, bytes: &[u8]) {
    use weir_io::Driver as _;
    let before = bench.of(near).sent.len();
    bench.driver.send(near, Payload::Owned(bytes.to_vec()));
    bench.until("a send", |bench| bench.of(near).sent.len() > before);
}

/// Waits for the accepted end of a connection.
pub(super) fn accepted<S: Subject>(bench: &mut Bench<'_, S>) -> Socket {
    use weir_io::Driver as _;
    bench.until("an accept", |bench| !bench.accepted.is_empty());
    let far = bench.accepted.remove(0).0;
    bench.driver.set_token(far, 2);
    far
}

/// Closes everything; every buffer must come back, and no session may remain.
pub(super) fn finish<S: Subject<Driver = Sealed<SimDriver>>>(mut bench: Bench<'_, S>) {
    use weir_io::Driver as _;
    for socket in bench.driver.streams() {
        bench.close(socket);
    }
    bench.until("all buffers", |bench| {
        let buffers = [Class::Small, Class::Large].map(|class| bench.driver.buffers(class));
        buffers.iter().all(|(free, total)| free == total)
            && bench.driver.inner().streams().is_empty()
    });
    assert_eq!((bench.driver.unfinished(), bench.driver.streams()), (0, Vec::new()));
}
