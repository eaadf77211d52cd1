//! Streams of a thread: the bytes received by HTTP/2, and what they say of the requests on them.
//!
//! Called by the parent and its other parts with received bytes, and to send output. Bound: all
//! received bytes of a connection are processed before it sends further requests, so that these
//! leave together.

use bytes::Bytes;
use weir_io::Driver;

use super::{Asked, Generator, Phase};
use crate::bomb::count::{End, Outcome};
use crate::bomb::http2::Heard;
use crate::bomb::reply::Reply;

impl<D: Driver> Generator<'_, D> {
    /// Sends the pending output of an HTTP/2 connection, unless a send is in flight.
    pub(super) fn flush(&mut self, index: u32) {
        let connection = &mut self.connections[index as usize];
        let (Some(streams), Some(socket), false) =
            (&mut connection.http2, connection.socket, connection.sending)
        else {
            return;
        };
        if let Some(out) = streams.take_out() {
            self.put(index, socket, vec![Bytes::from(out)]);
        }
    }

    /// Handles received bytes: frames.
    pub(super) fn hear_streams(&mut self, index: u32, bytes: &[u8]) {
        let mut at = 0;
        loop {
            let Some(streams) = &mut self.connections[index as usize].http2 else { return };
            match streams.hear(bytes, &mut at) {
                Heard::Nothing => break,
                Heard::More => {}
                Heard::Answer(stream, reply) => self.stream_answered(index, stream, &reply),
                Heard::Reset { stream, code, has_begun } => {
                    if self.counts(self.driver.now_us()) {
                        self.share(index).slice.counts.reset(code);
                    }
                    let outcome = if has_begun { Outcome::Truncated } else { Outcome::Reset };
                    self.stream_failed(index, stream, outcome);
                }
                Heard::Malformed(stream) => self.stream_failed(index, stream, Outcome::NotHttp),
                Heard::Leaving { last, code } => {
                    if let Some(code) = code.filter(|_| self.counts(self.driver.now_us())) {
                        self.share(index).slice.counts.goaway(code);
                    }
                    while let Some(asked) =
                        self.connections[index as usize].asked.pop_back_if(|it| it.stream > last)
                    {
                        self.fail(index, &asked, Outcome::NotTaken);
                    }
                }
                Heard::NotHttp => {
                    return self.broken(index, Outcome::NotHttp, Outcome::Closed, End::Busy);
                }
            }
        }
        self.go_on_asking(index);
    }

    /// Sends further requests, or ends a connection on which there are no more to send.
    fn go_on_asking(&mut self, index: u32) {
        let class = self.class(index);
        let connection = &self.connections[index as usize];
        let left = connection.http2.as_ref().is_some_and(|streams| streams.is_leaving());
        let used_up = class.close_every.is_some_and(|most| connection.begun >= most);
        if connection.asked.is_empty() && connection.phase == Phase::Open && (left || used_up) {
            // A server that shuts down has announced it; a client of HTTP/2 may close without a
            // word.
            return self.ended(index, if left { End::Announced } else { End::Ours });
        }
        self.offer(index);
        self.flush(index);
    }

    /// Removes the request on a stream from those under way.
    fn take_asked(&mut self, index: u32, stream: u32) -> Option<Asked> {
        let asked = &mut self.connections[index as usize].asked;
        let place = asked.binary_search_by_key(&stream, |it| it.stream).ok()?;
        asked.remove(place)
    }

    fn stream_answered(&mut self, index: u32, stream: u32, reply: &Reply) {
        if let Some(asked) = self.take_asked(index, stream) {
            self.count_answer(index, &asked, reply);
        }
    }

    fn stream_failed(&mut self, index: u32, stream: u32, outcome: Outcome) {
        if let Some(asked) = self.take_asked(index, stream) {
            self.fail(index, &asked, outcome);
        }
    }

    /// Gives up requests that have waited too long; the connection remains in use if its server
    /// reads.
    pub(super) fn cancel_late(&mut self, index: u32, now_us: u64) {
        let timeout_us = self.plan.timeout_us;
        loop {
            let connection = &mut self.connections[index as usize];
            let Some(asked) =
                connection.asked.pop_front_if(|asked| now_us - asked.sent_us > timeout_us)
            else {
                break;
            };
            if let Some(streams) = &mut connection.http2 {
                streams.cancel(asked.stream);
            }
            self.fail(index, &asked, Outcome::TimedOut);
        }
        let connection = &self.connections[index as usize];
        if connection.sending && connection.asked.is_empty() {
            // Its server reads nothing any more: not even that streams are cancelled.
            return self.broken(index, Outcome::TimedOut, Outcome::TimedOut, End::Ours);
        }
        self.go_on_asking(index);
    }
}
