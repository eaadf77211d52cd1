//! Connections of a thread: how they begin and end, and what that means for the requests on them.
//!
//! Called by the parent for the driver's events and timers. Bound: one socket for each connection.

use std::cmp::Reverse;
use std::io;

use rustix::io::Errno;
use weir_io::{Class as Buffers, Driver, Outbound, Receive};
use weir_tls::Failure;

use super::{Asked, Connection, Generator, Phase, Timer};
use crate::bomb::class::{Behaviour, Ending};
use crate::bomb::count::{Connect, End, Handshake, Outcome};
use crate::bomb::http2::Streams;
use crate::tls::Caller;

/// Pause after an attempt to connect that failed.
const PAUSE_US: u64 = 10_000;

impl<D: Driver> Generator<'_, D> {
    pub(super) fn connect(&mut self, index: u32) {
        let class = self.class(index);
        let now_us = self.driver.now_us();
        let threads = self.plan.threads as u32;
        let share = self.share(index);
        if class.behaviour == Behaviour::ConnectFlood {
            // A connection counts like the others' requests; with a rate it is made when one is
            // due.
            if share.left == 0 {
                return;
            }
            share.left -= 1;
        }
        let from =
            class.sources.as_ref().map(|sources| Outbound::from_address(sources.nth(share.made)));
        let way = from.unwrap_or_default();
        share.made = share.made.wrapping_add(threads);
        let (to, token) = (class.target.address, u64::from(index));
        let cipher = share.caller.as_ref().map(Caller::cipher);
        let made = match cipher {
            None => self.driver.connect_by(way, to, token),
            Some(cipher) => self.driver.connect_sealed(way, to, token, cipher),
        };
        let connection = &mut self.connections[index as usize];
        connection.since_us = now_us;
        match made {
            Ok(socket) => {
                connection.socket = Some(socket);
                connection.phase = Phase::Connecting;
            }
            Err(_) => self.unconnected(index, Connect::NoneLeft),
        }
    }

    /// An attempt to connect failed, or the handshake on it.
    pub(super) fn refused(&mut self, index: u32, error: &io::Error) {
        if is_reset(error) && self.class(index).tls.is_none() {
            return self.reset_at_once(index);
        }
        let Some(why) = failure(error) else { return self.unconnected(index, why(error)) };
        if self.counts(self.connections[index as usize].since_us) {
            self.share(index).slice.counts.handshake(Handshake::Failed(why));
        }
        self.unconnected(index, Connect::NoTls);
    }

    /// An attempt failed to produce a connection: it is made again after a pause.
    pub(super) fn unconnected(&mut self, index: u32, why: Connect) {
        let (now_us, since_us) = (self.driver.now_us(), self.connections[index as usize].since_us);
        let counted_us = self.counted_us;
        let class = self.class(index);
        let due_us = self.connections[index as usize].due_us.take();
        let share = self.share(index);
        if let Some(due_us) = due_us {
            // A user would retry, and has waited that long already.
            share.connecting -= 1;
            share.waiting.push_front(due_us);
        }
        if class.rate.is_none() && class.behaviour != Behaviour::ConnectFlood {
            // Otherwise a number of requests would never be reached when nothing listens.
            share.left = share.left.saturating_sub(1);
        }
        if self.counts(since_us) {
            let slice = &mut self.share(index).slice;
            slice.counts.connect(why);
            slice.fail(now_us - counted_us);
            if why.blocks() {
                slice.block(now_us - counted_us);
            }
        }
        self.drop_socket(index);
        self.connect_later(index, now_us + PAUSE_US);
    }

    /// The connection was established, and reset before any request could be sent: a server that
    /// refuses a connection answers its first packet with a reset, which is another error
    /// (connect(2)). The request that it was made for is not sent again.
    fn reset_at_once(&mut self, index: u32) {
        let (now_us, since_us) = (self.driver.now_us(), self.connections[index as usize].since_us);
        let class = self.class(index);
        let is_flood = class.behaviour == Behaviour::ConnectFlood;
        let asks_at_once = class.rate.is_none() && !is_flood && class.behaviour != Behaviour::Hold;
        let counts = self.counts(since_us);
        if counts {
            let slice = &mut self.share(index).slice;
            slice.counts.connect(Connect::Established);
            slice.record_connect(now_us - since_us);
            if is_flood {
                slice.counts.outcome(Outcome::Connected);
            }
        }
        let due_us = self.connections[index as usize].due_us.take();
        self.share(index).connecting -= u64::from(due_us.is_some());
        // Other connections may have sent all requests while this one connected.
        let asks_at_once = asks_at_once && self.share(index).left > 0;
        let due_us = due_us.or(asks_at_once.then_some(now_us));
        if let Some(due_us) = due_us {
            let share = self.share(index);
            share.left = share.left.saturating_sub(1);
            let asked = Asked { due_us, sent_us: now_us, request: 0, last: false, stream: 0 };
            self.fail(index, &asked, Outcome::Reset);
        }
        if self.counts(now_us) {
            self.share(index).slice.counts.end(if due_us.is_some() {
                End::Busy
            } else {
                End::IdleReset
            });
        }
        self.drop_socket(index);
        self.connect_later(index, now_us + PAUSE_US);
    }

    pub(super) fn connect_later(&mut self, index: u32, at_us: u64) {
        let life = self.connections[index as usize].life;
        self.timers.push(Reverse((at_us, index, life, Timer::Connect)));
    }

    pub(super) fn drop_socket(&mut self, index: u32) {
        let ending = self.class(index).ending;
        let connection = &mut self.connections[index as usize];
        if let Some(socket) = connection.socket.take() {
            if connection.phase == Phase::Open && ending == Ending::Rst {
                self.driver.reset(socket);
            } else {
                self.driver.close(socket);
            }
        }
        *connection = Connection {
            life: connection.life.wrapping_add(1),
            free: connection.free,
            ..Connection::new(connection.class, self.plan.same_body)
        };
    }

    /// An established connection ended.
    pub(super) fn ended(&mut self, index: u32, end: End) {
        if self.counts(self.driver.now_us()) {
            self.share(index).slice.counts.end(end);
        }
        self.drop_socket(index);
        self.connect_again(index);
    }

    pub(super) fn connect_again(&mut self, index: u32) {
        if self.class(index).connects_when_due() {
            self.offer(index);
        } else if !self.stopping && self.share(index).left > 0 {
            self.connect(index);
        }
    }

    pub(super) fn connected(&mut self, index: u32) {
        let now_us = self.driver.now_us();
        let class = self.class(index);
        let connection = &mut self.connections[index as usize];
        let since_us = std::mem::replace(&mut connection.since_us, now_us);
        connection.phase = Phase::Open;
        let socket = connection.socket;
        let facts = socket.and_then(|socket| self.driver.take_facts(socket));
        if class.http2 && facts.as_ref().is_some_and(|facts| !facts.http2) {
            self.connections[index as usize].since_us = since_us;
            return self.unconnected(index, Connect::NoHttp2);
        }
        if self.counts(since_us) {
            let slice = &mut self.share(index).slice;
            if let Some(facts) = facts {
                slice.counts.handshake(if facts.resumed {
                    Handshake::Resumed
                } else {
                    Handshake::Full
                });
            }
            slice.counts.connect(Connect::Established);
            slice.record_connect(now_us - since_us);
        }
        match class.behaviour {
            Behaviour::ConnectFlood => {
                if self.counts(since_us) {
                    self.share(index).slice.counts.outcome(Outcome::Connected);
                }
                return self.ended(index, End::Ours);
            }
            Behaviour::Hold => {
                let due_us = self.connections[index as usize].due_us.take();
                let share = self.share(index);
                share.connecting -= u64::from(due_us.is_some());
                share.left = share.left.saturating_sub(u64::from(due_us.is_some()));
                let due_us = due_us.unwrap_or(now_us);
                let held = Asked { due_us, sent_us: now_us, request: 0, last: false, stream: 0 };
                self.connections[index as usize].asked.push_back(held);
            }
            _ if class.http2 => {
                let streams = Streams::new(class, self.plan.same_body);
                self.connections[index as usize].http2 = Some(Box::new(streams));
            }
            _ => {}
        }
        if let Some(due_us) = self.connections[index as usize].due_us.take() {
            self.share(index).connecting -= 1;
            self.begin_requests(index, &[due_us]);
        }
        if let Some(socket) = socket {
            let slowly = class.behaviour == Behaviour::SlowReader;
            self.driver.receive(
                socket,
                if slowly { Receive::Once(Buffers::Small) } else { Receive::Many(Buffers::Small) },
            );
        }
        self.offer(index);
        // Where nothing is due, it sends only the greeting.
        self.flush(index);
    }

    /// The server ended the connection. `is_cut`: only the network says so, and a response that
    /// ends with it may be incomplete.
    pub(super) fn server_ended(&mut self, index: u32, reset: bool, is_cut: bool) {
        if !is_cut && let Some(reply) = self.connections[index as usize].reader.end() {
            self.answered(index, &reply);
        }
        let connection = &self.connections[index as usize];
        let reset = reset || connection.was_reset;
        let end = match (connection.phase, reset) {
            (Phase::Ending, _) => End::Announced,
            _ if !connection.asked.is_empty() => End::Busy,
            (_, true) => End::IdleReset,
            _ => End::Idle,
        };
        let without = if reset { Outcome::Reset } else { Outcome::Closed };
        let first = if connection.reader.is_within() { Outcome::Truncated } else { without };
        self.broken(index, first, without, end);
    }

    /// Gives up a connection with the outcome of its oldest request, and that of the later ones.
    pub(super) fn broken(&mut self, index: u32, first: Outcome, others: Outcome, end: End) {
        self.fail_asked(index, first, others);
        self.ended(index, end);
    }

    pub(super) fn fail_asked(&mut self, index: u32, first: Outcome, others: Outcome) {
        let mut outcome = first;
        while let Some(asked) = self.connections[index as usize].asked.pop_front() {
            let streams = self.connections[index as usize].http2.as_ref();
            let has_begun = streams.is_some_and(|streams| streams.has_begun(asked.stream));
            let is_cut = has_begun && matches!(outcome, Outcome::Reset | Outcome::Closed);
            self.fail(index, &asked, if is_cut { Outcome::Truncated } else { outcome });
            outcome = others;
        }
    }

    /// Counts a request without a response.
    pub(super) fn fail(&mut self, index: u32, asked: &Asked, outcome: Outcome) {
        let (now_us, counted_us) = (self.driver.now_us(), self.counted_us);
        let expected = self.class(index).answers();
        if asked.due_us >= counted_us {
            let slice = &mut self.share(index).slice;
            slice.counts.outcome(outcome);
            if outcome != Outcome::NotTaken && (expected || outcome != Outcome::Unfinished) {
                slice.fail(now_us - counted_us);
            }
            if outcome.blocks() {
                slice.block(now_us - counted_us);
            }
        }
    }
}

/// Returns why a handshake failed, if that is what failed.
fn failure(error: &io::Error) -> Option<Failure> {
    error.get_ref()?.downcast_ref().copied()
}

/// Whether the other side has reset an established connection.
pub(super) fn is_reset(error: &io::Error) -> bool {
    error.raw_os_error().map(Errno::from_raw_os_error) == Some(Errno::CONNRESET)
}

/// Returns the meaning of an error of connect(2).
fn why(error: &io::Error) -> Connect {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::CONNREFUSED | Errno::CONNRESET) => Connect::Refused,
        Some(Errno::TIMEDOUT) => Connect::TimedOut,
        Some(Errno::ADDRNOTAVAIL | Errno::MFILE | Errno::NFILE) => Connect::NoneLeft,
        _ => Connect::Unreachable,
    }
}
