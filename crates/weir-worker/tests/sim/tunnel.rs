//! docs/hostile.md F4: after 101 the two connections are a tunnel: every byte both ways, ends of
//! each direction, nothing left behind.

use std::net::SocketAddr;
use std::sync::Arc;

use weir_io::sim::{Actor, Conn, Faults, Net, Rng, Settings};

use super::book::SharedBook;
use super::each_seed;
use super::run::Run;
use super::scenario::{Kind, Scenario, listen_address};
use super::seeds;
use super::server::Style;

/// Requests an upgrade, sends its bytes, ends its direction, and expects each byte back one higher.
struct TunnelClient {
    book: SharedBook,
    /// How many bytes it sends.
    total: usize,
    said: usize,
    /// The response's head, so far; None after it.
    head: Option<Vec<u8>>,
    heard: usize,
    /// Bytes sent together with the request, before it is answered.
    early: usize,
    /// No fault of the network excuses a missing byte.
    strict: bool,
    start_us: u64,
    conn: Option<Conn>,
    /// The destination that it first connects to with CONNECT.
    through: Option<SocketAddr>,
    done: bool,
}

fn said(from: usize, to: usize) -> Vec<u8> {
    (from..to).map(|at| (at * 7 + (at >> 8)) as u8).collect()
}

impl TunnelClient {
    fn send(&self, net: &mut Net<'_>, conn: Conn, bytes: &[u8]) {
        self.book.borrow_mut().traffic.clients_sent += bytes.len() as u64;
        net.send(conn, bytes);
    }

    /// Sends the request to the server itself.
    fn ask(&mut self, net: &mut Net<'_>, conn: Conn, through: bool) {
        // Servers check for Via, which weir can't add within CONNECT.
        let via = if through { "Via: 1.1 weir\r\n" } else { "" };
        let head = format!(
            "GET /ws HTTP/1.1\r\nHost: weir.test\r\n{via}Connection: Upgrade\r\n\
                Upgrade: websocket\r\n\r\n"
        );
        self.send(net, conn, head.as_bytes());
        if !through {
            self.send(net, conn, &said(0, self.early));
            self.said = self.early;
        }
    }

    fn say(&mut self, net: &mut Net<'_>, conn: Conn) {
        let take = 1 + net.rng().index(20_000);
        let stop = self.total.min(self.said + take);
        self.send(net, conn, &said(self.said, stop));
        self.said = stop;
        if stop == self.total {
            net.finish(conn);
        } else {
            let after_us = net.rng().below(20_000);
            net.timer(after_us, 1);
        }
    }

    fn hear(&mut self, data: &[u8]) {
        let expected = said(self.heard, self.heard + data.len());
        let back: Vec<u8> = expected.iter().map(|byte| byte.wrapping_add(1)).collect();
        if data != back {
            self.book
                .borrow_mut()
                .violation(format!("other bytes behind byte {} of a tunnel", self.heard));
        }
        self.heard += data.len();
    }

    fn over(&mut self, how: &str) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        let book = &mut *self.book.borrow_mut();
        book.clients_done += 1;
        if self.strict && (self.heard != self.total || how != "end") {
            book.violation(format!(
                "a tunnel gave {} of {} B back, then {how}",
                self.heard, self.total
            ));
        }
    }

    /// The upgrade was rejected, or the response is not as it must be.
    fn refused(&mut self, net: &mut Net<'_>, conn: Conn, head: &[u8]) {
        if self.strict {
            self.book.borrow_mut().violation(format!("an upgrade got {}", head.escape_ascii()));
        }
        net.reset(conn);
        self.over("refused");
    }
}

impl Actor for TunnelClient {
    fn on_start(&mut self, net: &mut Net<'_>) {
        net.timer(self.start_us, 0);
    }

    fn on_timer(&mut self, net: &mut Net<'_>, id: u64) {
        match (id, self.conn) {
            (0, _) => self.conn = Some(net.connect(listen_address())),
            (1, Some(conn)) => self.say(net, conn),
            (_, conn) => conn.into_iter().for_each(|conn| net.resume(conn)),
        }
    }

    fn on_connected(&mut self, net: &mut Net<'_>, conn: Conn, _: std::io::Result<()>) {
        if let Some(to) = self.through {
            self.send(net, conn, format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes());
        }
        if self.through.is_none() || self.early > 0 {
            self.ask(net, conn, self.through.is_some());
        }
    }

    fn on_data(&mut self, net: &mut Net<'_>, conn: Conn, data: &[u8]) {
        self.book.borrow_mut().traffic.clients_got += data.len() as u64;
        let Some(head) = &mut self.head else {
            self.hear(data);
            if net.rng().chance(20) {
                net.pause(conn);
                net.timer(300_000, 2);
            }
            return;
        };
        head.extend_from_slice(data);
        let Some(mut end) = head.windows(4).position(|four| four == b"\r\n\r\n") else { return };
        let mut head = self.head.take().unwrap_or_default();
        if self.through.is_some() {
            if !head.starts_with(b"HTTP/1.1 200 ") {
                return self.refused(net, conn, &head);
            }
            self.through = None;
            if self.early == 0 {
                self.ask(net, conn, true);
            }
            head.drain(..end + 4);
            match head.windows(4).position(|four| four == b"\r\n\r\n") {
                Some(at) => end = at,
                None => return self.head = Some(head),
            }
        }
        if !head.starts_with(b"HTTP/1.1 101 ") {
            return self.refused(net, conn, &head);
        }
        self.hear(&head[end + 4..]);
        self.say(net, conn);
    }

    fn on_end(&mut self, net: &mut Net<'_>, conn: Conn) {
        net.close(conn);
        self.over("end");
    }

    fn on_reset(&mut self, _: &mut Net<'_>, _: Conn) {
        self.over("reset");
    }
}

#[test]
fn tunnels_carry_every_byte_and_end() {
    each_seed(seeds(), |seed| play(seed, true));
}

/// Whatever breaks: all bytes that came through are right, both ends close, and nothing is left
/// behind.
#[test]
fn broken_tunnels_leave_nothing_behind() {
    each_seed(seeds(), |seed| play(seed, false));
}

fn play(seed: u64, strict: bool) {
    let rng = &mut Rng::new(seed ^ 0x7e);
    let mut scenario = Scenario::of(Kind::Hostile, seed, 1 + (seed % 2) as u16);
    scenario.name = "tunnels";
    scenario.kind = if strict { Kind::Calm } else { Kind::Rough };
    let faults = if strict { Faults::harmless(seed) } else { Faults::random(seed) };
    scenario.settings = Settings::random(seed, faults);
    scenario.settings.window_bytes = 1 << rng.between(12, 18);
    scenario.styles =
        scenario.styles.iter().map(|style| Style { echo: style.echo, ..Style::honest() }).collect();
    scenario.manners.abort = 0;
    scenario.manners.requests = 5;
    scenario.clients = rng.index(4);
    let plan = Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet");
    plan.upstreams[0].forward_timeout_us = 600_000_000;
    plan.client.tunnel_timeout_us = 30_000_000;
    let run = Run::new(scenario);
    add_tunnels(&run, rng, strict, |_| None);
    run.finish();
}

/// Adds clients of tunnels; `through` chooses the CONNECT destination of each.
pub fn add_tunnels(
    run: &Run,
    rng: &mut Rng,
    strict: bool,
    through: impl Fn(&mut Rng) -> Option<SocketAddr>,
) {
    for _ in 0..1 + rng.index(5) {
        let shift = rng.below(8);
        let total = 2_000 + rng.index(300_000 >> shift);
        let (early, start_us) = (*rng.pick(&[0, 0, 1, 1_000]), rng.below(500_000));
        let through = through(rng);
        run.add(|book| TunnelClient {
            book: book.clone(),
            total,
            said: 0,
            head: Some(Vec::new()),
            heard: 0,
            early,
            strict,
            start_us,
            conn: None,
            through,
            done: false,
        });
    }
}
