//! Servers that are killed, frozen and restarted, as operators and accidents do it.
//!
//! The process behind a server's address dies: all its connections end at once, and connects are
//! refused until another process listens. Or it stops for a while (SIGSTOP: the kernel still
//! accepts and buffers). Or it is replaced in order: the last response on each connection says
//! `Connection: close`, and idle connections are closed. Or its application is ill: it answers 503.

use weir_check::Request;
use weir_io::sim::{Conn, Net, Rng};

use super::server::{Due, Server};

/// How a server is out of service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    Killed,
    Frozen,
    Replaced,
    /// It answers everything with 503.
    Ill,
}

/// One time out of service.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    pub how: How,
    /// Microseconds after the start.
    pub at_us: u64,
    pub for_us: u64,
}

/// Longest outage. A frozen server keeps the bytes sent to it for as long.
const OUTAGE_US_MAX: u64 = 3_000_000;
/// From the end of an outage to the next one: a server that accepts again gets traffic within a
/// second.
const GAP_US: u64 = 2_000_000;

/// Draws outages for `servers` servers, within about `time_us`: one group after the other, never
/// all at a time.
pub fn outages(servers: usize, time_us: u64, rng: &mut Rng) -> Vec<Vec<Outage>> {
    let mut all = vec![Vec::new(); servers];
    let mut at_us = rng.below(1_000_000);
    while at_us < time_us && servers > 1 {
        let (first, count) = (rng.index(servers), 1 + rng.index(servers - 1));
        let longest_us = rng.between(1_000, OUTAGE_US_MAX);
        for step in 0..count {
            let how = *rng.pick(&[How::Killed, How::Killed, How::Frozen, How::Replaced]);
            let outage =
                Outage { how, at_us: at_us + rng.below(2_000), for_us: 1 + rng.below(longest_us) };
            all[(first + step) % servers].push(outage);
        }
        at_us += longest_us + GAP_US + rng.below(1_000_000);
    }
    all
}

impl Server {
    /// Sets the timers of all its outages.
    pub(super) fn plan_outages(&mut self, net: &mut Net<'_>) {
        for (index, outage) in self.style.outages.clone().iter().enumerate() {
            self.timer(net, outage.at_us, Due::Down(index));
            self.timer(net, outage.at_us + outage.for_us, Due::Back(index));
        }
    }

    pub(super) fn go_down(&mut self, net: &mut Net<'_>, index: usize) {
        match self.style.outages[index].how {
            How::Killed => self.die(net),
            How::Frozen => self.freeze(net),
            How::Replaced => self.retire(net),
            How::Ill => self.ill += 1,
        }
    }

    pub(super) fn come_back(&mut self, net: &mut Net<'_>, index: usize) {
        match self.style.outages[index].how {
            How::Killed => net.listen(self.address),
            How::Frozen => self.thaw(net),
            How::Replaced => {
                self.retiring = false;
                net.listen(self.address);
            }
            How::Ill => self.ill -= 1,
        }
    }

    /// SIGKILL.
    pub(super) fn die(&mut self, net: &mut Net<'_>) {
        net.unlisten(self.address);
        self.book.borrow_mut().plays("killed", false);
        for (conn, _) in std::mem::take(&mut self.conns) {
            net.kill(conn);
        }
    }

    fn freeze(&mut self, net: &mut Net<'_>) {
        self.frozen = Some(Vec::new());
        self.book.borrow_mut().plays("frozen", false);
        self.conns.keys().for_each(|conn| net.pause(*conn));
    }

    fn thaw(&mut self, net: &mut Net<'_>) {
        let missed = self.frozen.take().unwrap_or_default();
        self.conns.keys().for_each(|conn| net.resume(*conn));
        missed.into_iter().for_each(|due| self.act(net, due));
    }

    /// Takes no new connections and lets existing ones end in order.
    fn retire(&mut self, net: &mut Net<'_>) {
        net.unlisten(self.address);
        self.retiring = true;
        self.book.borrow_mut().plays("replaced", false);
        let idle: Vec<Conn> =
            self.conns.iter().filter(|(_, conn)| conn.is_idle()).map(|(conn, _)| *conn).collect();
        for conn in idle {
            self.conns.remove(&conn);
            net.close(conn);
        }
    }

    /// Records that all unanswered requests of a connection are lost with it.
    pub(super) fn note_broken(&self, conn: Conn) {
        if let Some(connection) = self.conns.get(&conn) {
            let unanswered =
                connection.queue.iter().map(Request::nonce).chain(connection.open_nonce.as_deref());
            self.book.borrow_mut().broke(unanswered);
        }
    }
}
