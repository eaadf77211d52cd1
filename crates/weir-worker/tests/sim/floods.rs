//! Clients that send requests as fast as the network takes them, which weir answers itself. The
//! memory that weir uses for each is bounded, each gets all its responses, no turn takes more
//! requests than it may. Other clients are served in between (docs/hostile.md H10).

use std::net::SocketAddr;
use std::sync::Arc;

use weir_io::sim::{Actor, Conn, Faults, Net, Settings};
use weir_proxy::request::own_answer::{Fixed, OwnAnswer};
use weir_proxy::request::route::{Route, RouteTable, Target};

use super::book::{Outcome, SharedBook};
use super::client::Manners;
use super::run::Run;
use super::scenario::{Kind, Scenario, listen_address};
use super::server::Style;
use super::{each_seed, seeds_of};

/// Bytes that a client sends in all: several times the bytes that weir keeps of one client.
const SENT: usize = 6 << 20;
/// Bytes of one request: shorter than its response, so that more comes in than can leave.
const REQUEST: usize = 48;
/// Bytes that the network gets at a time.
const AT_A_TIME: usize = 1 << 20;
/// The path that they request.
const PATH: &str = "/flood";
/// The beginning of weir's response.
const ANSWER: &[u8] = b"HTTP/1.1 410 ";

/// Sends requests that weir answers itself, reads all responses, and leaves.
struct Flooder {
    to: SocketAddr,
    book: SharedBook,
    left: usize,
    /// Bytes at the end of the received data that may begin a response.
    tail: Vec<u8>,
    answers: usize,
    /// Stops reading once, for a second.
    is_late: bool,
    paused: Option<Conn>,
}

impl Flooder {
    fn new(book: &SharedBook, is_late: bool) -> Flooder {
        Flooder {
            to: listen_address(),
            book: book.clone(),
            left: SENT / REQUEST,
            tail: Vec::new(),
            answers: 0,
            is_late,
            paused: None,
        }
    }

    fn send_some(&mut self, net: &mut Net<'_>, conn: Conn) {
        let count = self.left.min(AT_A_TIME / REQUEST);
        self.left -= count;
        const END: &[u8] = b" HTTP/1.1\r\nHost: weir.test\r\n\r\n";
        let mut request = format!("GET {PATH}/").into_bytes();
        request.resize(REQUEST - END.len(), b'x');
        request.extend_from_slice(END);
        net.send(conn, &request.repeat(count));
    }

    fn is_over(&mut self, what: Option<&str>) {
        let book = &mut *self.book.borrow_mut();
        book.clients_done += 1;
        book.violations
            .extend(what.map(|what| format!("a flood {what} after {} answers", self.answers)));
    }
}

impl Actor for Flooder {
    fn on_start(&mut self, net: &mut Net<'_>) {
        net.connect(self.to);
    }

    fn on_connected(&mut self, net: &mut Net<'_>, conn: Conn, result: std::io::Result<()>) {
        match result {
            Ok(()) => self.send_some(net, conn),
            Err(_) => self.is_over(Some("did not connect")),
        }
    }

    fn on_drained(&mut self, net: &mut Net<'_>, conn: Conn) {
        self.send_some(net, conn);
    }

    fn on_data(&mut self, net: &mut Net<'_>, conn: Conn, data: &[u8]) {
        self.tail.extend_from_slice(data);
        self.answers += self.tail.windows(ANSWER.len()).filter(|text| *text == ANSWER).count();
        let kept = self.tail.len().min(ANSWER.len() - 1);
        self.tail.drain(..self.tail.len() - kept);
        if self.answers == SENT / REQUEST {
            net.close(conn);
            self.is_over(None);
        } else if std::mem::take(&mut self.is_late) {
            net.pause(conn);
            net.timer(1_000_000, 0);
            self.paused = Some(conn);
        }
    }

    fn on_timer(&mut self, net: &mut Net<'_>, _: u64) {
        if let Some(conn) = self.paused.take() {
            net.resume(conn);
        }
    }

    fn on_end(&mut self, net: &mut Net<'_>, conn: Conn) {
        net.close(conn);
        self.is_over(Some("was closed"));
    }

    fn on_reset(&mut self, _: &mut Net<'_>, _: Conn) {
        self.is_over(Some("was reset"));
    }
}

fn scenario(seed: u64) -> Scenario {
    let mut scenario = Scenario::of(Kind::Hostile, seed, 1 + (seed % 2) as u16);
    scenario.name = "floods";
    scenario.settings = Settings::random(seed, Faults::harmless(seed));
    // Pieces of a few bytes are for the other tests: here there would be millions.
    (scenario.settings.faults.split, scenario.settings.faults.short_read) = (0, 0);
    scenario.settings.faults.short_write = 0;
    // A client that is read too often can then bring far more than is kept, and one receive can't.
    scenario.settings.window_bytes = 1 << 20;
    scenario.settings.small_buffers = 128;
    scenario.styles = vec![Style::honest()];
    scenario.clients = 4;
    scenario.manners = Manners { burst: 4, ..Manners::quiet(20) };
    let plan = scenario.plan_mut();
    plan.upstreams[0].servers.truncate(1);
    plan.upstreams[0].echo = None;
    let gone = OwnAnswer::Fixed(Arc::new(Fixed {
        status: 410,
        media_type: None,
        content: b""[..].into(),
    }));
    let flood =
        Route { path: PATH.to_owned(), target: Target::Here(Arc::new(gone)), ..Route::default() };
    plan.routes = RouteTable::new(vec![flood, Route::default()]);
    scenario
}

#[test]
fn floods_are_bounded_and_hold_nobody_up() {
    each_seed(seeds_of(8), |seed| {
        let run = Run::new(scenario(seed));
        for flooder in 0..1 + seed % 3 {
            run.add(|book| Flooder::new(book, flooder == 1));
        }
        run.finish_with(|book| {
            match book.entries.values().find(|entry| entry.outcome != Outcome::Answered) {
                Some(entry) => Err(format!("{} got {:?}", entry.asked.nonce, entry.outcome)),
                None => Ok(()),
            }
        });
    });
}
