//! The public state of a working worker: its line of the load board, for distributing work; how
//! long things took, for observers; and the step of its turn, for the watchdog.
//!
//! Called by the worker's loop around each turn; costs some relaxed stores to its own cache lines,
//! a look at the clock without a system call, and two system calls: one in [`SAMPLE_US`], one for
//! each of [`RECEIVES`] receives.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rustix::time::{ClockId, clock_gettime};
use weir_io::board::{ACCEPTS, DRAINS, Line};
use weir_io::{Board, Courtesy, Driver, Socket, clock_us};
use weir_proxy::base::token::Token;
use weir_proxy::observe::histogram::Histogram;

use crate::doing::{Doing, Step};
use crate::start::View;
use crate::worker::Worker;

/// How often the worker checks the cost of requests, in microseconds.
const SAMPLE_US: u64 = 10_000;
/// The newest sample has a share of one in this number in the average.
const SHARE: u64 = 4;

/// One in this number of receives from clients is checked for how long its bytes have waited.
const RECEIVES: u32 = 64;

/// How long things took on one worker.
#[derive(Debug, Default)]
pub struct Times {
    /// Its turns: from receiving events from the driver until asking for more, microseconds.
    pub turn: Histogram,
    /// From the arrival of a client's bytes in the kernel to their pick-up, microseconds in ticks
    /// of the kernel (1 to 10 ms), of one receive in 64.
    pub kernel_wait: Histogram,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    doing: Arc<Doing>,
    /// None: the board is not read.
    line: Option<OwnLine>,
}

impl Presence {
    /// For the worker with this number, for which the board must have a line.
    pub(crate) fn new(view: &View, board: Arc<Board>, worker: u16) -> Presence {
        let times = Arc::clone(&view.times);
        let line = OwnLine {
            board,
            worker: worker.into(),
            times,
            began_us: 0,
            receives: 0,
            sampled_us: 0,
            used: Used::default(),
        };
        Presence { doing: Arc::clone(&view.doing), line: Some(line) }
    }

    /// What its driver has to know about the other workers.
    pub(crate) fn courtesy(&self) -> Courtesy {
        let of = |own: &OwnLine| Courtesy::new(Arc::clone(&own.board), own.worker);
        self.line.as_ref().map(of).unwrap_or_default()
    }

    /// The worker begins a step.
    #[inline]
    pub(crate) fn step(&self, step: Step) {
        self.doing.set(step);
    }

    /// Whether the step under way was found to take too long.
    #[inline]
    pub(crate) fn is_blamed(&self) -> bool {
        self.doing.is_blamed()
    }

    /// The turn is over: the worker is about to ask the driver for events. Returns the time, if a
    /// turn was measured.
    pub(crate) fn rest(&mut self, load: &Load) -> Option<u64> {
        self.doing.set(Step::Driving);
        let own = self.line.as_mut()?;
        load.show(own.line());
        own.line().turn_began_us.store(0, Relaxed);
        if own.began_us == 0 {
            return None;
        }
        let now_us = clock_us();
        own.times.turn.record(now_us.saturating_sub(own.began_us));
        Some(now_us)
    }

    /// Events have come. `requests` is how many were begun so far; `now_us` is of the driver's
    /// clock, which is CLOCK_MONOTONIC except in the simulation.
    pub(crate) fn begin_turn(&mut self, now_us: u64, requests: u64) {
        let Some(own) = &mut self.line else { return };
        own.began_us = now_us.max(1);
        let line = own.board.line(own.worker);
        line.turn_began_us.store(own.began_us, Relaxed);
        line.turns.store(line.turns.load(Relaxed).wrapping_add(1), Relaxed);
        line.assigned.store(0, Relaxed);
        if now_us.saturating_sub(own.sampled_us) >= SAMPLE_US {
            own.sampled_us = now_us;
            own.sample(Used { cpu_ns: cpu_ns(), requests });
        }
    }

    /// Whether to ask how long the bytes of a client's receive have waited.
    fn samples_wait(&mut self) -> bool {
        let Some(own) = &mut self.line else { return false };
        own.receives = own.receives.wrapping_add(1);
        own.receives.is_multiple_of(RECEIVES)
    }

    /// Updates the board in the middle of a turn.
    pub(crate) fn show(&self, load: &Load) {
        if let Some(own) = &self.line {
            load.show(own.line());
        }
    }
}

/// A worker's load.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Load {
    /// Client connections.
    pub(crate) sessions: usize,
    /// Requests without a complete response.
    pub(crate) open_requests: usize,
    /// [`ACCEPTS`] and [`DRAINS`].
    pub(crate) flags: u32,
}

impl Load {
    fn show(&self, line: &Line) {
        let bounded = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        line.sessions.store(bounded(self.sessions), Relaxed);
        line.open_requests.store(bounded(self.open_requests), Relaxed);
        line.flags.store(self.flags, Relaxed);
    }
}

impl<D: Driver> Worker<D> {
    /// The present load.
    pub(crate) fn load(&self) -> Load {
        let flags = if self.listeners.accept() { ACCEPTS } else { 0 }
            | if self.draining { DRAINS } else { 0 };
        Load { sessions: self.engine.clients(), open_requests: self.engine.exchanges(), flags }
    }

    /// Something was received, which may be a sample of how long bytes of clients wait.
    #[inline]
    pub(crate) fn sample_wait(&mut self, token: u64, socket: Socket) {
        if !Token::is_upstream(token)
            && self.presence.samples_wait()
            && let Some(path) = self.driver.path(socket)
            && let Some(own) = &self.presence.line
        {
            own.times.kernel_wait.record(path.received_ago_us.into());
        }
    }
}

/// Totals of what a worker has used and done since it was started.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    cpu_ns: u64,
    requests: u64,
}

#[derive(Debug)]
struct OwnLine {
    board: Arc<Board>,
    worker: usize,
    times: Arc<Times>,
    /// When its turn began, the last one if it is over; 0: none has.
    began_us: u64,
    /// From clients.
    receives: u32,
    /// When the cost of requests was last checked; 0: never.
    sampled_us: u64,
    used: Used,
}

impl OwnLine {
    fn line(&self) -> &Line {
        self.board.line(self.worker)
    }

    fn sample(&mut self, now: Used) {
        let before = std::mem::replace(&mut self.used, now);
        let requests = now.requests.saturating_sub(before.requests);
        // The cost of starting belongs to no request.
        let Some(cost_ns) = now.cpu_ns.saturating_sub(before.cpu_ns).checked_div(requests) else {
            return;
        };
        if before.cpu_ns > 0 {
            let service_ns = &self.line().service_ns;
            service_ns.store(averaged(service_ns.load(Relaxed), cost_ns), Relaxed);
        }
    }
}

impl Drop for OwnLine {
    /// The worker has ended: it takes no clients, and has no load.
    fn drop(&mut self) {
        Load::default().show(self.line());
        self.line().turn_began_us.store(0, Relaxed);
    }
}

/// The average with one more sample in it; 0: there was none.
fn averaged(before_ns: u32, sample_ns: u64) -> u32 {
    let before = u64::from(before_ns);
    let average = if before == 0 {
        sample_ns
    } else {
        (before * (SHARE - 1)).saturating_add(sample_ns) / SHARE
    };
    u32::try_from(average).unwrap_or(u32::MAX).max(1)
}

/// Processor time of the calling thread.
fn cpu_ns() -> u64 {
    let cpu = clock_gettime(ClockId::ThreadCPUTime);
    cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    //! Proves: the board shows what the worker did, and nothing of one that has ended. How: turns
    //! with chosen times.

    use super::*;

    fn presence() -> (Presence, Arc<Board>) {
        let board = Arc::new(Board::new(2));
        (Presence::new(&View::default(), Arc::clone(&board), 1), board)
    }

    #[test]
    fn a_turn_is_seen_while_it_lasts() {
        let (mut presence, board) = presence();
        board.line(1).assigned.store(3, Relaxed);
        presence.begin_turn(1_000_000, 0);
        let line = board.line(1);
        assert_eq!(
            (line.turn_us(1_000_300), line.turns.load(Relaxed), line.assigned.load(Relaxed)),
            (300, 1, 0)
        );
        presence.rest(&Load { sessions: 7, open_requests: 2, flags: ACCEPTS });
        let loads =
            [&line.sessions, &line.open_requests, &line.turns].map(|count| count.load(Relaxed));
        assert_eq!((line.turn_us(1_000_400), loads, line.accepts()), (0, [7, 2, 1], true));
        presence.show(&Load { sessions: usize::MAX, open_requests: 0, flags: ACCEPTS | DRAINS });
        assert_eq!((line.sessions.load(Relaxed), line.accepts()), (u32::MAX, false));
        // A clock that begins at 0 does not count as waiting.
        presence.begin_turn(0, 0);
        assert_eq!(line.turn_us(51), 50);
        assert_eq!(board.line(0).turns.load(Relaxed), 0);
    }

    #[test]
    fn turns_are_timed_and_receives_sampled() {
        let view = View::default();
        let mut presence = Presence::new(&view, Arc::new(Board::new(1)), 0);
        presence.rest(&Load::default());
        assert_eq!(view.times.turn.snapshot().count(), 0, "there was no turn");
        for ago_us in [2_000, 30_000] {
            presence.begin_turn(clock_us() - ago_us, 0);
            presence.rest(&Load::default());
        }
        let turns = view.times.turn.snapshot();
        assert!(turns.count() == 2 && turns.sum_us() >= 32_000, "{turns:?}");
        let sampled = (0..10 * RECEIVES).filter(|_| presence.samples_wait()).count();
        assert_eq!(sampled, 10);
        assert!(!(0..10 * RECEIVES).any(|_| Presence::default().samples_wait()), "nobody looks");
    }

    #[test]
    fn a_worker_that_has_ended_takes_nobody() {
        let (mut presence, board) = presence();
        presence.begin_turn(5, 0);
        presence.show(&Load { sessions: 1, open_requests: 1, flags: ACCEPTS });
        drop(presence);
        let line = board.line(1);
        let loads =
            [&line.sessions, &line.open_requests, &line.flags].map(|count| count.load(Relaxed));
        assert_eq!((loads, line.turn_us(9_000)), ([0; 3], 0));
    }

    #[test]
    fn requests_cost_what_the_core_spent_on_them() {
        let (mut presence, board) = presence();
        let own = presence.line.as_mut().expect("a line");
        let service = || board.line(1).service_ns.load(Relaxed);
        let mut sample = |cpu_ns, requests| {
            own.sample(Used { cpu_ns, requests });
            service()
        };
        assert_eq!(sample(5_000_000, 100), 0, "what starting has cost");
        assert_eq!(sample(5_080_000, 110), 8_000);
        assert_eq!(sample(9_080_000, 110), 8_000, "no request");
        assert_eq!(sample(9_160_000, 114), 11_000, "a quarter of the way to 20,000");
        assert_eq!(averaged(u32::MAX, u64::MAX), u32::MAX);
        assert_eq!(averaged(0, 0), 1);
    }

    #[test]
    fn it_is_looked_what_requests_cost_after_a_while_only() {
        let (mut presence, board) = presence();
        let spin = || (0..200_000_u64).fold(0, |sum, value| std::hint::black_box(sum ^ value));
        presence.begin_turn(SAMPLE_US, 0);
        spin();
        presence.begin_turn(2 * SAMPLE_US - 1, 1);
        assert_eq!(board.line(1).service_ns.load(Relaxed), 0, "too early");
        presence.begin_turn(2 * SAMPLE_US, 1);
        assert!(board.line(1).service_ns.load(Relaxed) > 0);
    }
}
