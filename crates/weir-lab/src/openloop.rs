//! A load generator in an open loop: requests are due by the clock, evenly spaced, whatever the server does, and latency
//! counts from the moment a request was due. Waiting for a free connection is part of it, so a server that stalls can't
//! hide that (no coordinated omission).
//!
//! Called by the benchmark harness. Bounds: one thread, `connections` sockets with one request in flight each, and an end
//! at `seconds` plus [`GRACE_US`].

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hdrhistogram::Histogram;
use weir_http::{Chunk, ChunkedDecoder, Fields, Limits, ReplyBody, ReplyContext, parse_reply};
use weir_io::{Class, Completion, Driver, Event, IoChoice, Options, Payload, Receive, Socket};

use crate::io::{UseDriver, with_driver};

/// How long answers may still come after the last request was due.
const GRACE_US: u64 = 2_000_000;
/// How long all connections together may take to be established.
const CONNECT_US: u64 = 5_000_000;
/// Longest latency that is told apart; longer ones count as this.
const LATENCY_US_MAX: u64 = 60_000_000;
/// Latencies are exact to three digits.
const DIGITS: u8 = 3;
/// Broken connections are replaced this often in all.
const RECONNECTS_MAX: u64 = 10_000;

/// What to do.
#[derive(Debug, Clone)]
pub struct OpenLoopOptions {
    /// Whom to ask.
    pub to: SocketAddr,
    /// Target of each request.
    pub target: String,
    /// Connections, established before the first request is due.
    pub connections: u32,
    /// Requests a second.
    pub rate: f64,
    /// How long requests become due.
    pub seconds: f64,
    /// On which driver.
    pub io: IoChoice,
    /// Set it to end early.
    pub stop: Arc<AtomicBool>,
}

/// What came of it.
#[derive(Debug)]
pub struct OpenLoopResult {
    /// From due to the last byte of the reply, of all answered requests, microseconds.
    pub latency_us: Histogram<u64>,
    /// From the first due time to the last reply.
    pub seconds: f64,
    /// Complete replies.
    pub answered: u64,
    /// Among them those with another status than 200.
    pub bad_status: u64,
    /// Requests whose connection broke before the reply was complete.
    pub broken: u64,
    /// Requests that were due and not answered by the end of the grace.
    pub unanswered: u64,
}

/// Runs it on this thread.
///
/// # Errors
/// No driver, or the connections can't be established.
pub fn run(options: &OpenLoopOptions) -> io::Result<OpenLoopResult> {
    let sizes = Options { large_count: 4, large_armed: 4, ..Options::default() };
    with_driver(options.io, sizes, Start(options))
}

struct Start<'a>(&'a OpenLoopOptions);

impl UseDriver for Start<'_> {
    type Output = io::Result<OpenLoopResult>;

    fn run<D: Driver>(self, driver: D) -> Self::Output {
        Generator::new(driver, self.0)?.run()
    }

    fn failed(self, error: io::Error) -> Self::Output {
        Err(error)
    }
}

/// What of the current reply is still to come.
enum Stage {
    /// No request in flight.
    Free,
    /// The head, or its rest.
    Head,
    /// This many bytes.
    Sized(u64),
    /// Chunks.
    Chunked(ChunkedDecoder),
}

struct Connection {
    socket: Socket,
    stage: Stage,
    due_us: u64,
    /// The beginning of a head that is not complete.
    input: Vec<u8>,
    /// Reused for each send.
    request: Vec<u8>,
    status: u16,
    /// The send is not reported yet, although the reply may have come.
    sending: bool,
}

struct Generator<'a, D: Driver> {
    driver: D,
    options: &'a OpenLoopOptions,
    request: Vec<u8>,
    connections: Vec<Connection>,
    free: VecDeque<usize>,
    /// Due times of requests that found no free connection.
    waiting: VecDeque<u64>,
    fields: Fields,
    limits: Limits,
    result: OpenLoopResult,
    reconnects: u64,
    last_us: u64,
}

impl<'a, D: Driver> Generator<'a, D> {
    fn new(mut driver: D, options: &'a OpenLoopOptions) -> io::Result<Generator<'a, D>> {
        let request = format!("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", options.target, options.to).into_bytes();
        let mut connections = Vec::new();
        for index in 0..options.connections {
            let socket = driver.connect(options.to, u64::from(index))?;
            connections.push(Connection::new(socket, request.clone()));
        }
        let latency_us = Histogram::new_with_bounds(1, LATENCY_US_MAX, DIGITS).map_err(io::Error::other)?;
        let result = OpenLoopResult { latency_us, seconds: 0.0, answered: 0, bad_status: 0, broken: 0, unanswered: 0 };
        Ok(Generator {
            driver,
            options,
            request,
            connections,
            free: VecDeque::new(),
            waiting: VecDeque::new(),
            fields: Fields::default(),
            limits: Limits::default(),
            result,
            reconnects: 0,
            last_us: 0,
        })
    }

    fn run(mut self) -> io::Result<OpenLoopResult> {
        let mut completions = Vec::new();
        self.establish(&mut completions)?;
        let start_us = self.driver.now_us();
        let count = (self.options.rate * self.options.seconds) as u64;
        let due_us = |number: u64| start_us + (number as f64 * 1e6 / self.options.rate) as u64;
        let end_us = due_us(count) + GRACE_US;
        let mut number = 0;
        while !self.options.stop.load(Ordering::Relaxed) {
            let now_us = self.driver.now_us();
            while number < count && due_us(number) <= now_us {
                self.waiting.push_back(due_us(number));
                number += 1;
            }
            self.send_waiting();
            let finished = self.result.answered + self.result.broken;
            if (number == count && finished == count) || now_us >= end_us {
                break;
            }
            let next_us = if number < count { due_us(number) } else { end_us };
            self.turn(next_us.saturating_sub(now_us), &mut completions)?;
        }
        self.result.unanswered = number - self.result.answered - self.result.broken;
        self.result.seconds = (self.last_us.max(start_us + 1) - start_us) as f64 / 1e6;
        Ok(self.result)
    }

    /// Waits until all connections are there.
    fn establish(&mut self, completions: &mut Vec<Completion>) -> io::Result<()> {
        self.driver.turn(Some(0), completions)?;
        let deadline_us = self.driver.now_us() + CONNECT_US;
        loop {
            for completion in completions.drain(..) {
                self.handle(completion)?;
            }
            if self.free.len() == self.connections.len() {
                return Ok(());
            }
            if self.driver.now_us() > deadline_us {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "connections can't be established"));
            }
            self.driver.turn(Some(100_000), completions)?;
        }
    }

    fn turn(&mut self, wait_us: u64, completions: &mut Vec<Completion>) -> io::Result<()> {
        self.driver.turn(Some(wait_us), completions)?;
        for completion in completions.drain(..) {
            self.handle(completion)?;
        }
        Ok(())
    }

    fn send_waiting(&mut self) {
        while let Some(due_us) = self.waiting.front().copied() {
            let Some(index) = self.free.pop_front() else { return };
            self.waiting.pop_front();
            let connection = &mut self.connections[index];
            connection.due_us = due_us;
            connection.stage = Stage::Head;
            connection.sending = true;
            let request = std::mem::take(&mut connection.request);
            self.driver.send(connection.socket, Payload::Owned(request));
        }
    }

    fn handle(&mut self, completion: Completion) -> io::Result<()> {
        let Ok(index) = usize::try_from(completion.token) else { return Ok(()) };
        if self.connections.get(index).is_none_or(|connection| connection.socket != completion.socket) {
            return Ok(());
        }
        match completion.event {
            Event::Connected(result) => {
                result?;
                self.driver.receive(completion.socket, Receive::Many(Class::Small));
                self.free.push_back(index);
            }
            Event::Received(buffer) => {
                if !self.read(index, &buffer) {
                    self.broken(index)?;
                }
                self.driver.recycle(buffer);
            }
            Event::Ended | Event::ReceiveFailed(_) => self.broken(index)?,
            Event::Sent { payload: Payload::Owned(request), result: Ok(()) } => {
                let connection = &mut self.connections[index];
                connection.request = request;
                connection.sending = false;
                if matches!(connection.stage, Stage::Free) {
                    self.free.push_back(index);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes received bytes; false when they aren't an answer.
    fn read(&mut self, index: usize, bytes: &[u8]) -> bool {
        let connection = &mut self.connections[index];
        let mut joined = std::mem::take(&mut connection.input);
        let mut rest = if joined.is_empty() {
            bytes
        } else {
            joined.extend_from_slice(bytes);
            &joined
        };
        while !rest.is_empty() {
            let Some(taken) = connection.step(rest, &self.limits, &mut self.fields) else { return false };
            if taken == 0 {
                connection.input.extend_from_slice(rest);
                return true;
            }
            rest = &rest[taken..];
        }
        if matches!(connection.stage, Stage::Sized(0)) {
            connection.stage = Stage::Free;
            let now_us = self.driver.now_us();
            self.result.latency_us.saturating_record(now_us.saturating_sub(connection.due_us).max(1));
            self.result.answered += 1;
            self.result.bad_status += u64::from(connection.status != 200);
            self.last_us = now_us;
            if !connection.sending {
                self.free.push_back(index);
            }
        }
        true
    }

    /// Replaces a connection. Its request, if any, is lost.
    fn broken(&mut self, index: usize) -> io::Result<()> {
        let connection = &mut self.connections[index];
        if matches!(connection.stage, Stage::Free) {
            self.free.retain(|free| *free != index);
        } else {
            self.result.broken += 1;
        }
        self.reconnects += 1;
        if self.reconnects > RECONNECTS_MAX {
            return Err(io::Error::other("connections break all the time"));
        }
        self.driver.close(connection.socket);
        let socket = self.driver.connect(self.options.to, index as u64)?;
        self.connections[index] = Connection::new(socket, self.request.clone());
        Ok(())
    }
}

impl Connection {
    fn new(socket: Socket, request: Vec<u8>) -> Connection {
        let stage = Stage::Free;
        Connection { socket, stage, due_us: 0, input: Vec::new(), request, status: 0, sending: false }
    }

    /// Consumes some of a reply: how much, 0 when more is needed, None when it isn't an answer. A complete reply is
    /// left as `Sized(0)`.
    fn step(&mut self, rest: &[u8], limits: &Limits, fields: &mut Fields) -> Option<usize> {
        match &mut self.stage {
            Stage::Head => {
                let Some(head) = parse_reply(rest, limits, ReplyContext { head: false }, fields).ok()? else {
                    return Some(0);
                };
                self.status = head.status;
                self.stage = match head.body {
                    ReplyBody::None => Stage::Sized(0),
                    ReplyBody::Length(length) => Stage::Sized(length),
                    ReplyBody::Chunked => Stage::Chunked(ChunkedDecoder::new(false)),
                    ReplyBody::UntilClose => return None,
                };
                Some(head.bytes)
            }
            Stage::Sized(left) if *left > 0 => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                *left -= taken as u64;
                Some(taken)
            }
            Stage::Chunked(decoder) => match decoder.decode(rest).ok()? {
                Chunk::More => Some(rest.len()),
                Chunk::Data { end, .. } => Some(end),
                Chunk::End { consumed } => {
                    self.stage = Stage::Sized(0);
                    Some(consumed)
                }
            },
            // Nothing was asked, or more came than was asked for.
            Stage::Free | Stage::Sized(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::origin::{self, OriginOptions};

    fn ask(target: &str, connections: u32, rate: f64, seconds: f64) -> OpenLoopResult {
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let server = origin::spawn(OriginOptions { listen, threads: 1, io: IoChoice::Epoll }).unwrap();
        let options = OpenLoopOptions {
            to: server.local_addr(),
            target: target.to_owned(),
            connections,
            rate,
            seconds,
            io: IoChoice::Epoll,
            stop: Arc::default(),
        };
        run(&options).unwrap()
    }

    #[test]
    fn every_due_request_is_answered_once() {
        for (target, bad) in [("/?size=9000", 0), ("/?size=9&chunked=1", 0), ("/?status=404", 200)] {
            let result = ask(target, 4, 1000.0, 0.2);
            assert_eq!((result.answered, result.bad_status, result.broken, result.unanswered), (200, bad, 0, 0));
            assert_eq!(result.latency_us.len(), 200);
        }
    }

    #[test]
    fn waiting_for_a_free_connection_counts() {
        // One request takes 20 ms and one is due each 10 ms: the last of 20 ends at 400 ms at the earliest, and was due at 190.
        let result = ask("/?delay=20", 1, 100.0, 0.2);
        assert_eq!(result.answered, 20);
        assert!(result.latency_us.max() >= 205_000, "{}", result.latency_us.max());
    }

    #[test]
    fn broken_connections_are_counted_and_replaced() {
        let result = ask("/?close=1", 2, 500.0, 0.1);
        assert_eq!(result.answered + result.broken + result.unanswered, 50);
        assert!(result.answered >= 2, "each connection answers at least once: {result:?}");
    }
}
