//! Responses of a thread: the received bytes, and what they say of the oldest request.
//!
//! Called by the parent with received bytes.

use std::cmp::Reverse;

use weir_io::{Class as Buffers, Driver, Receive, RecvBuf};

use super::{Asked, Connection, Generator, Phase, Timer};
use crate::bomb::class::{Behaviour, Class, Ending};
use crate::bomb::count::{End, Outcome, has_failed, turns_away};
use crate::bomb::reply::{Reply, Step};

/// A response with more to come than this moves its connection to large buffers.
const LARGE_BYTES: u64 = 16 * 1024;
/// Time between two reads of a slow reader.
const SLOW_READ_US: u64 = 1_000_000;

impl<D: Driver> Generator<'_, D> {
    pub(super) fn received(&mut self, index: u32, buffer: RecvBuf) {
        let class = self.class(index);
        if self.counts(self.driver.now_us()) {
            self.share(index).slice.counts.bytes_in += buffer.len() as u64;
        }
        let life = self.connections[index as usize].life;
        if self.connections[index as usize].http2.is_some() {
            self.hear_streams(index, &buffer);
        } else {
            self.hear_replies(index, &buffer);
        }
        self.driver.recycle(buffer);
        if self.connections[index as usize].life == life {
            self.go_on_reading(index, class);
        }
    }

    /// Handles bytes received by HTTP/1.1: responses in the order of the requests.
    fn hear_replies(&mut self, index: u32, bytes: &[u8]) {
        let class = self.class(index);
        let life = self.connections[index as usize].life;
        let mut rest = bytes;
        while !rest.is_empty() && self.connections[index as usize].life == life {
            let connection = &mut self.connections[index as usize];
            let Some(front) = connection.asked.front() else {
                // Unsolicited bytes.
                self.broken(index, Outcome::NotHttp, Outcome::NotHttp, End::Idle);
                break;
            };
            let head = class.mix.requests()[usize::from(front.request)].is_head;
            match connection.reader.step(rest, head, &self.limits, &mut self.fields) {
                Step::More => break,
                Step::Reply(reply, taken) => {
                    rest = &rest[taken..];
                    self.answered(index, &reply);
                }
                Step::NotHttp => self.broken(index, Outcome::NotHttp, Outcome::Closed, End::Busy),
            }
        }
    }

    pub(super) fn go_on_reading(&mut self, index: u32, class: &Class) {
        let now_us = self.driver.now_us();
        let connection = &mut self.connections[index as usize];
        let Some(socket) = connection.socket else { return };
        if class.behaviour == Behaviour::SlowReader {
            self.timers.push(Reverse((now_us + SLOW_READ_US, index, connection.life, Timer::Read)));
        } else if !connection.large && connection.expects() > LARGE_BYTES {
            connection.large = true;
            self.driver.receive(socket, Receive::Many(Buffers::Large));
        }
    }

    /// The oldest request has its response.
    pub(super) fn answered(&mut self, index: u32, reply: &Reply) {
        let Some(asked) = self.connections[index as usize].asked.pop_front() else { return };
        self.count_answer(index, &asked, reply);
        if reply.persist && asked.last && self.class(index).ending != Ending::Announced {
            return self.ended(index, End::Ours);
        }
        if !reply.persist || asked.last {
            return self.last_answered(index, self.driver.now_us());
        }
        self.offer(index);
    }

    /// Counts a request that has its response.
    pub(super) fn count_answer(&mut self, index: u32, asked: &Asked, reply: &Reply) {
        let now_us = self.driver.now_us();
        let (late_us, paced) = (self.plan.late_us, self.class(index).rate.is_some());
        let counted_us = self.counted_us;
        if !self.counts(asked.due_us) {
            return;
        }
        let good = self.is_right(index, asked.request, reply);
        let slice = &mut self.share(index).slice;
        slice.counts.outcome(if good { Outcome::Answered } else { Outcome::WrongBody });
        slice.counts.status(reply.status);
        slice.record(now_us - asked.sent_us, paced.then(|| now_us - asked.due_us));
        slice.counts.late += u64::from(now_us - asked.due_us > late_us);
        if !good || has_failed(reply.status) {
            slice.fail(now_us - counted_us);
        }
        if turns_away(reply.status) {
            slice.block(now_us - counted_us);
        }
    }

    /// Whether a successful body is the one that came first for the same request.
    fn is_right(&self, index: u32, request: u16, reply: &Reply) -> bool {
        if !self.plan.same_body || !(200..300).contains(&reply.status) {
            return true;
        }
        let class = usize::from(self.connections[index as usize].class);
        let body = (reply.sum, reply.length);
        *self.bodies[class][usize::from(request)].get_or_init(|| body) == body
    }

    /// Nothing follows on this connection; the server closes it.
    pub(super) fn last_answered(&mut self, index: u32, now_us: u64) {
        let connection = &mut self.connections[index as usize];
        connection.phase = Phase::Ending;
        connection.since_us = now_us;
        // Requests after it will get no response: a pipelining client sends them again, but here it
        // is an outcome.
        self.fail_asked(index, Outcome::Closed, Outcome::Closed);
    }
}

impl Connection {
    /// Returns the bytes of body that are likely to come: what is announced, or with HTTP/2 the
    /// most that an open stream has had.
    fn expects(&self) -> u64 {
        self.http2.as_ref().map_or_else(|| self.reader.bytes_left(), |streams| streams.longest())
    }
}
