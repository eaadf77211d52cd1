//! One thread of the generator: joins a driver with its share of each class's connections.
//!
//! Called by `mod.rs`. Bounds: one send in flight a connection, `depth` requests unanswered on it,
//! requests that wait for a connection only as long as a time-out, and an end at the run's time
//! plus [`GRACE_US`].
//!
//! In a closed loop a connection sends its next request when it has its response. With a rate,
//! requests are due by the clock. A request that finds no free connection waits, and its latency
//! counts from when it was due, so that a server that stalls can't hide it. With HTTP/2 the
//! requests on a connection are distinguished by streams, and answered in any order; all else is
//! the same.

mod asking;
mod connecting;
mod hearing;
mod streams;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use weir_http::{Fields, Limits};
use weir_io::{
    Class as Buffers, Completion, Driver, Event, Policy, Receive, Socket, policy_of, set_policy,
};
use weir_tls::Sealed;

use super::class::{Behaviour, Class};
use super::count::{Connect, End, Outcome};
use super::http2::Streams;
use super::reply::Reader;
use super::schedule::Schedule;
use super::slice::Slice;
use super::{Finished, News, Plan};
use crate::io::UseDriver;
use crate::random::Random;
use crate::tls::Caller;

/// How long responses may come after the last request was due.
const GRACE_US: u64 = 2_000_000;
/// How long a server may take to close when that was announced.
const CLOSE_US: u64 = 1_000_000;
/// The interval of checks for time-outs.
const LOOK_US: u64 = 20_000;

/// A second of the run, microseconds.
const SECOND_US: u64 = 1_000_000;

/// What a timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// Connect again.
    Connect,
    /// Send the next piece.
    Piece,
    /// Read the next piece.
    Read,
}

/// A request without a response yet.
#[derive(Debug, Clone, Copy)]
struct Asked {
    due_us: u64,
    sent_us: u64,
    request: u16,
    /// The last on its connection.
    last: bool,
    /// Its stream of HTTP/2; 0 with HTTP/1.1.
    stream: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No socket.
    Down,
    Connecting,
    Open,
    /// The end was announced and is awaited.
    Ending,
}

struct Connection {
    class: u16,
    phase: Phase,
    socket: Option<Socket>,
    /// Differs for each socket that it had, so that late timers are recognised.
    life: u32,
    /// When the phase began, microseconds.
    since_us: u64,
    /// In the order in which they were sent, so the oldest first, and streams by their numbers.
    asked: VecDeque<Asked>,
    /// The due time of the request for which it connects.
    due_us: Option<u64>,
    reader: Reader,
    /// HTTP/2, where that is used and the connection is open.
    http2: Option<Box<Streams>>,
    /// Requests begun on this socket.
    begun: u32,
    sending: bool,
    /// A send has found that it was reset; the receive then finds a mere end.
    was_reset: bool,
    /// It is in the class's list of free connections.
    free: bool,
    large: bool,
    /// The rest of a request that is sent in pieces.
    rest: Bytes,
}

/// What a thread knows of a class.
struct Share {
    schedule: Option<Schedule>,
    /// When the next request is due, from the start of the run.
    next_us: Option<u64>,
    /// Connections that can take a request. Late entries are recognised.
    free: VecDeque<u32>,
    /// Due times of requests that wait for a connection.
    waiting: VecDeque<u64>,
    /// Requests that wait for the connection that is made for them.
    connecting: u64,
    /// Requests that may still be begun.
    left: u64,
    random: Random,
    /// Connections made so far, to take source addresses in turn.
    made: u32,
    /// How clients use TLS, where they do.
    caller: Option<Caller>,
    slice: Slice,
}

/// Checksum and length of the first successful body, by class and request; shared by all threads.
pub(super) type Bodies = Vec<Vec<OnceLock<(u64, u64)>>>;

/// One thread.
pub(super) struct Thread<'a> {
    pub(super) plan: &'a Plan,
    pub(super) number: usize,
    pub(super) bodies: &'a Bodies,
    pub(super) news: std::sync::mpsc::Sender<std::io::Result<News>>,
}

impl UseDriver for Thread<'_> {
    type Output = io::Result<()>;

    fn run<D: Driver>(self, driver: D) -> io::Result<()> {
        Generator::new(Sealed::new(driver), self).run()
    }

    fn failed(self, error: io::Error) -> io::Result<()> {
        Err(error)
    }
}

struct Generator<'a, D: Driver> {
    driver: Sealed<D>,
    plan: &'a Plan,
    number: usize,
    bodies: &'a Bodies,
    news: std::sync::mpsc::Sender<std::io::Result<News>>,
    shares: Vec<Share>,
    connections: Vec<Connection>,
    timers: BinaryHeap<Reverse<(u64, u32, u32, Timer)>>,
    fields: Fields,
    limits: Limits,
    start_us: u64,
    /// Events that were due or began before this are not counted.
    counted_us: u64,
    /// Processor time that the thread had used by then.
    before_us: Option<u64>,
    /// Nothing becomes due from then on.
    stop_us: u64,
    /// The second that slices are filled for.
    second: u32,
    look_us: u64,
    /// The last number given to a request that wants one.
    serial: u64,
    stopping: bool,
}

impl<'a, D: Driver> Generator<'a, D> {
    fn new(driver: Sealed<D>, thread: Thread<'a>) -> Generator<'a, D> {
        let Thread { plan, number, bodies, news } = thread;
        let shares = plan
            .classes
            .iter()
            .zip(0..)
            .map(|(class, at)| Share::new(class, at, plan, number))
            .collect();
        Generator {
            driver,
            plan,
            number,
            bodies,
            news,
            shares,
            connections: Vec::new(),
            timers: BinaryHeap::new(),
            fields: Fields::default(),
            limits: Limits::default(),
            start_us: 0,
            counted_us: 0,
            before_us: None,
            stop_us: 0,
            second: 0,
            serial: 0,
            look_us: 0,
            stopping: false,
        }
    }

    fn run(mut self) -> io::Result<()> {
        self.yield_to_servers();
        let mut completions = Vec::new();
        self.driver.turn(Some(0), &mut completions)?;
        self.start_us = self.driver.now_us();
        self.counted_us = self.start_us + self.plan.warm_up_us;
        self.stop_us = self.plan.duration_us.map_or(u64::MAX, |us| self.counted_us + us);
        self.begin();
        while !self.is_over() {
            self.driver.turn(Some(self.wait_us()), &mut completions)?;
            if self.plan.stop.load(Ordering::Relaxed) {
                self.stop_us = self.stop_us.min(self.driver.now_us());
            }
            self.turn_second();
            for completion in completions.drain(..) {
                self.handle(completion);
            }
            self.fire_timers();
            self.send_due();
            self.look();
        }
        self.finish();
        let now_us = self.driver.now_us();
        let before_us = self.before_us.unwrap_or_else(thread_cpu_us);
        let finished = Finished {
            thread: self.number as u32,
            busy_us: thread_cpu_us() - before_us,
            wall_us: now_us.saturating_sub(self.counted_us),
            counted_us: now_us.min(self.stop_us).saturating_sub(self.counted_us),
            driver: self.driver.name(),
        };
        // The receiver is gone when another thread has failed, which is reported there.
        let _ = self.news.send(Ok(News::Finished(finished)));
        Ok(())
    }

    /// In a closed loop a request is always waiting: on a full core this thread does not take the
    /// core from the server for one response at a time (sched(7)). By the clock it would be late
    /// for due requests. Where that is forbidden it only costs more.
    fn yield_to_servers(&self) {
        let closed = self.plan.classes.iter().all(|class| class.rate.is_none());
        if closed && policy_of(0).is_ok_and(|policy| policy == Some(Policy::Normal)) {
            let _ = set_policy(0, Policy::Batch);
        }
    }

    /// Makes all connections.
    fn begin(&mut self) {
        let threads = self.plan.threads;
        for (class, its) in self.plan.classes.iter().enumerate() {
            let share = (0..its.connections as usize).skip(self.number).step_by(threads).count();
            for _ in 0..share {
                let index = self.connections.len() as u32;
                self.connections.push(Connection::new(class as u16, self.plan.same_body));
                self.connect_again(index);
            }
        }
    }

    fn is_over(&self) -> bool {
        let now_us = self.driver.now_us();
        if now_us >= self.stop_us.saturating_add(GRACE_US)
            || (self.stopping && self.plan.stop.load(Ordering::Relaxed))
        {
            return true;
        }
        let under_way = || {
            self.connections.iter().any(|it| {
                !it.asked.is_empty() && self.plan.classes[usize::from(it.class)].answers()
            })
        };
        let waiting =
            || self.shares.iter().any(|share| !share.waiting.is_empty() || share.connecting > 0);
        // With connections alone, the number is complete when the last one is made.
        let flooding = || {
            let is_flood = |it: &Connection| {
                self.plan.classes[usize::from(it.class)].behaviour == Behaviour::ConnectFlood
            };
            now_us < self.stop_us
                && self.connections.iter().any(|it| it.phase == Phase::Connecting && is_flood(it))
        };
        let nothing_left =
            now_us >= self.stop_us || self.shares.iter().all(|share| share.left == 0);
        nothing_left && !waiting() && !under_way() && !flooding()
    }

    fn wait_us(&self) -> u64 {
        let now_us = self.driver.now_us();
        let timer_us = self.timers.peek().map_or(u64::MAX, |Reverse((due_us, ..))| *due_us);
        let due_us = self.shares.iter().filter_map(|share| share.next_us).min();
        let due_us = due_us.map_or(u64::MAX, |us| self.start_us + us);
        timer_us.min(due_us).min(self.look_us).saturating_sub(now_us)
    }

    fn class(&self, index: u32) -> &'a Class {
        &self.plan.classes[usize::from(self.connections[index as usize].class)]
    }

    fn share(&mut self, index: u32) -> &mut Share {
        let class = usize::from(self.connections[index as usize].class);
        &mut self.shares[class]
    }

    /// Whether an event that began then belongs to the results.
    fn counts(&self, since_us: u64) -> bool {
        since_us >= self.counted_us
    }

    /// Hands over the results of the last second.
    fn turn_second(&mut self) {
        let now_us = self.driver.now_us();
        if self.counts(now_us) {
            self.before_us.get_or_insert_with(thread_cpu_us);
        }
        let second = (now_us.saturating_sub(self.counted_us) / SECOND_US) as u32;
        if second > self.second {
            self.hand_over();
            self.second = second;
        }
        self.stopping = now_us >= self.stop_us;
    }

    fn hand_over(&mut self) {
        for (class, share) in self.shares.iter_mut().enumerate() {
            if let Some(slice) = share.slice.take() {
                let news = News::Second {
                    second: self.second,
                    class: class as u16,
                    slice: Box::new(slice),
                };
                let _ = self.news.send(Ok(news));
            }
        }
    }

    fn handle(&mut self, completion: Completion) {
        let index = completion.token as u32;
        let Some(connection) = self.connections.get(index as usize) else { return };
        if connection.socket != Some(completion.socket) {
            if let Event::Received(buffer) = completion.event {
                self.driver.recycle(buffer);
            }
            return;
        }
        match completion.event {
            Event::Connected(Ok(())) => self.connected(index),
            Event::Connected(Err(error)) => self.refused(index, &error),
            Event::Received(buffer) => self.received(index, buffer),
            Event::Ended => {
                let is_cut = self.driver.is_cut(completion.socket);
                self.server_ended(index, false, is_cut);
            }
            Event::ReceiveFailed(_) => self.server_ended(index, true, true),
            Event::Sent { result, .. } => self.sent(index, &result),
            Event::Accepted { .. }
            | Event::AcceptFailed(_)
            | Event::RelayEnded { .. }
            | Event::Released(_)
            | Event::Woken => {}
        }
    }

    fn fire_timers(&mut self) {
        let now_us = self.driver.now_us();
        while let Some(Reverse((due_us, index, life, timer))) = self.timers.peek().copied() {
            if due_us > now_us {
                break;
            }
            self.timers.pop();
            let connection = &self.connections[index as usize];
            if connection.life != life {
                continue;
            }
            match (timer, connection.socket) {
                (Timer::Connect, None) => self.connect_again(index),
                (Timer::Piece, _) => self.next_piece(index),
                (Timer::Read, Some(socket)) => {
                    self.driver.receive(socket, Receive::Once(Buffers::Small))
                }
                _ => {}
            }
        }
    }

    /// Checks time-outs: of connects, of requests, of requests that wait, of announced ends.
    fn look(&mut self) {
        let now_us = self.driver.now_us();
        if now_us < self.look_us {
            return;
        }
        self.look_us = now_us + LOOK_US;
        for index in 0..self.connections.len() as u32 {
            let connection = &self.connections[index as usize];
            let age_us = now_us - connection.since_us;
            let asked_us = connection.asked.front().map_or(0, |asked| now_us - asked.sent_us);
            match connection.phase {
                Phase::Connecting if age_us > self.plan.connect_timeout_us => {
                    self.unconnected(index, Connect::TimedOut)
                }
                Phase::Ending if age_us > CLOSE_US => self.ended(index, End::Announced),
                Phase::Open if asked_us > self.plan.timeout_us && self.class(index).answers() => {
                    if connection.http2.is_some() {
                        self.cancel_late(index, now_us);
                        continue;
                    }
                    self.broken(index, Outcome::TimedOut, Outcome::TimedOut, End::Ours);
                }
                _ => {}
            }
        }
        let oldest_us = now_us.saturating_sub(self.plan.timeout_us);
        for share in &mut self.shares {
            share.give_up(now_us, oldest_us, self.counted_us);
        }
    }

    /// Ends the run: requests without a response are counted.
    fn finish(&mut self) {
        let now_us = self.driver.now_us();
        for index in 0..self.connections.len() as u32 {
            let phase = self.connections[index as usize].phase;
            if let Some(due_us) = self.connections[index as usize].due_us.take() {
                self.share(index).waiting.push_front(due_us);
            }
            self.fail_asked(index, Outcome::Unfinished, Outcome::Unfinished);
            if phase == Phase::Connecting && self.counts(self.connections[index as usize].since_us)
            {
                self.share(index).slice.counts.connect(Connect::Unfinished);
            }
            if matches!(phase, Phase::Open | Phase::Ending) {
                self.share(index).slice.counts.end(End::Ours);
            }
        }
        for share in &mut self.shares {
            share.give_up(now_us, u64::MAX, self.counted_us);
        }
        self.hand_over();
    }
}

impl Share {
    fn new(class: &Class, at: u64, plan: &Plan, number: usize) -> Share {
        let seed = class.poisson.then_some(seed_of(plan.seed, at));
        let mut schedule =
            class.rate.as_ref().map(|rate| Schedule::new(rate, number, plan.threads, seed));
        let next_us = schedule.as_mut().and_then(Schedule::next_us);
        let left = plan.requests.map_or(u64::MAX, |all| {
            let (threads, number) = (plan.threads as u64, number as u64);
            all / threads + u64::from(number < all % threads)
        });
        Share {
            schedule,
            next_us,
            free: VecDeque::new(),
            waiting: VecDeque::new(),
            connecting: 0,
            left,
            random: draws_of(plan.seed, at, number),
            made: number as u32,
            caller: class.tls.as_ref().map(Caller::fork),
            slice: Slice::default(),
        }
    }

    /// Drops requests that were due before `oldest_us` and found no connection; they are not sent
    /// any more.
    fn give_up(&mut self, now_us: u64, oldest_us: u64, counted_us: u64) {
        while let Some(due_us) = self.waiting.front().copied().filter(|due_us| *due_us <= oldest_us)
        {
            self.waiting.pop_front();
            self.left = self.left.saturating_sub(1);
            if due_us >= counted_us {
                self.slice.counts.outcome(Outcome::Unsent);
                self.slice.fail(now_us - counted_us);
            }
        }
    }
}

impl Connection {
    fn new(class: u16, hashing: bool) -> Connection {
        Connection {
            class,
            phase: Phase::Down,
            socket: None,
            life: 0,
            since_us: 0,
            asked: VecDeque::new(),
            due_us: None,
            reader: Reader::new(hashing),
            http2: None,
            begun: 0,
            sending: false,
            was_reset: false,
            free: false,
            large: false,
            rest: Bytes::new(),
        }
    }
}

/// Returns the seed for the moments of the class with this index, so that classes of the same rate
/// are not due together. Threads count on from it.
fn seed_of(seed: u64, class: u64) -> u64 {
    seed.wrapping_add(class << 32)
}

/// Returns the source from which a thread draws the requests of a class. Its numbers differ from
/// those of any other thread, and are not the same ones shifted by one place, as those of the next
/// seed are. Otherwise one thread would request what another has just requested, and a cache would
/// look better than it is.
fn draws_of(seed: u64, class: u64, thread: usize) -> Random {
    Random::new(seed).fork((class << 32).wrapping_add(thread as u64))
}

/// Processor time of this thread, microseconds.
fn thread_cpu_us() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_thread_draws_what_another_one_does() {
        let draws = |(class, thread)| {
            let mut random = draws_of(1, class, thread);
            std::iter::repeat_with(move || random.next()).take(100)
        };
        let all: std::collections::HashSet<u64> =
            [(0, 0), (0, 1), (0, 2), (1, 0)].into_iter().flat_map(draws).collect();
        assert_eq!(all.len(), 400);
    }

    #[test]
    fn classes_of_the_same_rate_are_not_due_together() {
        let [one, other] = [0, 1].map(|at| {
            let seed = Some(seed_of(7, at));
            Schedule::new(&crate::bomb::Rate::parse("100").unwrap(), 0, 1, seed).next_us()
        });
        assert!(one.is_some() && one != other);
    }
}
