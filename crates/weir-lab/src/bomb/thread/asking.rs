//! Requests of a thread: which connection may send one, when, and how.
//!
//! Called by the parent: each turn for due requests, and whenever a connection has become free.
//! Bounds: `depth` requests unanswered and one send in flight on a connection, [`TOGETHER_MAX`]
//! requests in a send.

use std::cmp::Reverse;
use std::io;

use bytes::Bytes;
use weir_io::{Driver, Payload, Socket};

use super::connecting::is_reset;
use super::{Asked, Generator, Phase, Timer};
use crate::bomb::class::{Behaviour, Ending};
use crate::bomb::requests::with_serial;
use crate::bomb::schedule::Schedule;

/// Maximum number of requests that are sent together on a connection.
const TOGETHER_MAX: usize = 64;

impl<D: Driver> Generator<'_, D> {
    /// Gives a connection something to do, or adds it to the free ones.
    pub(super) fn offer(&mut self, index: u32) {
        let class = self.class(index);
        match (&class.rate, class.behaviour) {
            (None, Behaviour::Hold) => {}
            (None, _) => self.ask(index),
            (Some(_), _) => {
                if self.can_take(index)
                    && !std::mem::replace(&mut self.connections[index as usize].free, true)
                {
                    self.share(index).free.push_back(index);
                }
            }
        }
    }

    pub(super) fn can_take(&self, index: u32) -> bool {
        let class = self.class(index);
        let connection = &self.connections[index as usize];
        if connection.phase == Phase::Down && class.connects_when_due() {
            return true;
        }
        !matches!(class.behaviour, Behaviour::ConnectFlood | Behaviour::Hold)
            && connection.phase == Phase::Open
            && !connection.sending
            && connection.rest.is_empty()
            && connection.http2.as_ref().is_none_or(|streams| streams.room() > 0)
            && connection.asked.len() < class.depth as usize
            && class.close_every.is_none_or(|most| connection.begun < most)
    }

    /// Sends as many requests as the connection takes, in a closed loop.
    pub(super) fn ask(&mut self, index: u32) {
        if !self.can_take(index) || self.stopping {
            return;
        }
        let now_us = self.driver.now_us();
        let room = (self.class(index).depth as usize
            - self.connections[index as usize].asked.len())
        .min(TOGETHER_MAX);
        let dues = [now_us; TOGETHER_MAX];
        self.begin_requests(index, &dues[..room]);
    }

    /// Sends requests that were due at `dues` on a connection that can take at least one.
    pub(super) fn begin_requests(&mut self, index: u32, dues: &[u64]) -> usize {
        let now_us = self.driver.now_us();
        let class = self.class(index);
        let most = class
            .close_every
            .map_or(usize::MAX, |most| (most - self.connections[index as usize].begun) as usize);
        let room = self.connections[index as usize]
            .http2
            .as_ref()
            .map_or(usize::MAX, |streams| streams.room());
        let share = self.share(index);
        let count =
            dues.len().min(most).min(room).min(usize::try_from(share.left).unwrap_or(usize::MAX));
        let mut parts = Vec::new();
        for due_us in &dues[..count] {
            let request = class.mix.draw(&mut self.share(index).random);
            let connection = &mut self.connections[index as usize];
            connection.begun += 1;
            let last = class.close_every == Some(connection.begun);
            let mut asked = Asked { due_us: *due_us, sent_us: now_us, request, last, stream: 0 };
            let spelled = &class.mix.requests()[usize::from(request)];
            if let (Some(streams), Some(http2)) = (&mut connection.http2, &spelled.http2) {
                self.serial += u64::from(http2.is_numbered());
                asked.stream = streams
                    .ask(http2, self.number, self.serial)
                    .expect("no more than there is room for");
                connection.asked.push_back(asked);
                continue;
            }
            connection.asked.push_back(asked);
            let is_announced = last && class.ending == Ending::Announced;
            let bytes = if is_announced { &spelled.last } else { &spelled.bytes };
            parts.push(match spelled.serial_at {
                None => bytes.clone(),
                Some(at) => {
                    self.serial += 1;
                    with_serial(bytes, at, self.number, self.serial)
                }
            });
        }
        if count == 0 {
            return 0;
        }
        // The server sets the rate of a closed loop: only requests by the clock run out by the
        // clock.
        let share = self.share(index);
        share.left -= count as u64;
        if parts.is_empty() {
            self.flush(index);
        } else {
            self.send(index, parts);
        }
        count
    }

    pub(super) fn send(&mut self, index: u32, mut parts: Vec<Bytes>) {
        let class = self.class(index);
        let now_us = self.driver.now_us();
        let connection = &mut self.connections[index as usize];
        let Some(socket) = connection.socket else { return };
        if let Some(drip) = class.drip {
            let mut whole = parts.swap_remove(0);
            // A slow body follows a head that is sent at once.
            let first = if class.behaviour == Behaviour::SlowBody {
                class.mix.requests().first().map_or(drip.bytes, |request| request.head_bytes)
            } else {
                drip.bytes
            };
            let piece = whole.split_to(first.min(whole.len()));
            connection.rest = whole;
            parts.push(piece);
            let life = connection.life;
            self.timers.push(Reverse((now_us + drip.every_us, index, life, Timer::Piece)));
        }
        self.put(index, socket, parts);
    }

    pub(super) fn put(&mut self, index: u32, socket: Socket, mut parts: Vec<Bytes>) {
        let bytes: usize = parts.iter().map(Bytes::len).sum();
        self.connections[index as usize].sending = true;
        if self.counts(self.driver.now_us()) {
            self.share(index).slice.counts.bytes_out += bytes as u64;
        }
        let payload = if parts.len() == 1 {
            Payload::Shared(parts.swap_remove(0))
        } else {
            Payload::Vectored(parts)
        };
        self.driver.send(socket, payload);
    }

    pub(super) fn sent(&mut self, index: u32, result: &io::Result<()>) {
        self.connections[index as usize].sending = false;
        match result {
            Ok(()) => {
                self.offer(index);
                self.flush(index);
            }
            // After an error the receive reports the end of the connection, and the bytes before
            // it; but an error is reported only once.
            Err(error) => self.connections[index as usize].was_reset |= is_reset(error),
        }
    }

    pub(super) fn next_piece(&mut self, index: u32) {
        let (class, now_us) = (self.class(index), self.driver.now_us());
        let Some(drip) = class.drip else { return };
        let connection = &mut self.connections[index as usize];
        let Some(socket) = connection.socket.filter(|_| !connection.rest.is_empty()) else {
            return;
        };
        let life = connection.life;
        if !connection.sending {
            let piece = connection.rest.split_to(drip.bytes.min(connection.rest.len()));
            self.put(index, socket, vec![piece]);
        }
        self.timers.push(Reverse((now_us + drip.every_us, index, life, Timer::Piece)));
    }

    /// Gives due requests of an open loop to free connections, oldest first.
    pub(super) fn send_due(&mut self) {
        let now_us = self.driver.now_us();
        for class in 0..self.shares.len() {
            let (start_us, stop_us) = (self.start_us, self.stop_us);
            let share = &mut self.shares[class];
            while let Some(next_us) = share.next_us.filter(|us| start_us + us <= now_us) {
                let due_us = start_us + next_us;
                // A request that becomes due at the stop is not sent and not counted.
                share.next_us = share.schedule.as_mut().and_then(Schedule::next_us);
                if due_us < stop_us && share.left > share.waiting.len() as u64 + share.connecting {
                    share.waiting.push_back(due_us);
                    share.slice.record_lag(now_us - due_us, due_us >= self.counted_us);
                } else {
                    share.next_us = None;
                }
            }
            self.send_waiting(class);
        }
    }

    pub(super) fn send_waiting(&mut self, class: usize) {
        let depth = self.plan.classes[class].depth as usize;
        while !self.shares[class].waiting.is_empty() {
            let Some(index) = self.shares[class].free.pop_front() else { return };
            self.connections[index as usize].free = false;
            if !self.can_take(index) {
                continue;
            }
            if self.plan.classes[class].behaviour == Behaviour::ConnectFlood {
                self.shares[class].waiting.pop_front();
                self.connect(index);
                continue;
            }
            if self.connections[index as usize].phase == Phase::Down {
                let due_us = self.shares[class].waiting.pop_front();
                self.shares[class].connecting += 1;
                self.connections[index as usize].due_us = due_us;
                self.connect(index);
                continue;
            }
            let room = (depth - self.connections[index as usize].asked.len()).min(TOGETHER_MAX);
            let dues: Vec<u64> = self.shares[class].waiting.iter().take(room).copied().collect();
            let begun = self.begin_requests(index, &dues);
            self.shares[class].waiting.drain(..begun);
            if begun == 0 {
                return;
            }
        }
    }
}
