//! The load board: the state of each worker, where others can read it. The workers write their own
//! lines with relaxed stores at the begin and end of each turn; the main thread, other workers, the
//! status page and eBPF programs read them.
//!
//! A line is one cache line, so that a worker that writes its own does not take others' from the
//! cores that read them. Its layout is fixed, since programs in the kernel read it as an array of
//! values of 64 bytes (`struct board_line` in weir-bpf's C sources):
//!
//! | bytes | field | written by |
//! |---|---|---|
//! | 0-7 | `turn_began_us` | the worker |
//! | 8-11 | `turns` | the worker |
//! | 12-15 | `open_requests` | the worker |
//! | 16-19 | `sessions` | the worker |
//! | 20-23 | `assigned` | the kernel's program adds, the worker clears |
//! | 24-27 | `service_ns` | the worker |
//! | 28-31 | `starved_permille` | the main thread |
//! | 32-35 | `flags` | the worker |
//! | 36-63 | unused | |

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The worker takes new clients.
pub const ACCEPTS: u32 = 1;
/// The worker finishes what it has, and takes nothing new.
pub const DRAINS: u32 = 2;

/// A turn that lasts longer than this makes a worker late, in microseconds.
pub const LATE_TURN_US: u64 = 5_000;
/// The cost of a connection that was assigned and not yet accepted, in nanoseconds: about what
/// accepting one takes.
const ASSIGNED_NS: u64 = 10_000;
/// A turn that lasts for less than this says nothing about how long it will last, in microseconds.
const SHORT_TURN_US: u64 = 200;
/// A worker that wants its core and does not get it for less than this share of the time is as good
/// as others, in thousandths. Where clients or servers share the machine, all workers are starved a
/// little, and one a little more than another for no lasting reason.
pub const STARVED_PERMILLE: u32 = 200;
/// The cost of a worker that never gets its core when it wants it, in nanoseconds: about a time
/// slice of the kernel's scheduler.
const STARVED_NS: u64 = 4_000_000;

/// The report of one worker. All of it is advice: nothing that has to be exact may depend on it.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Line {
    /// When its turn began, in microseconds of CLOCK_MONOTONIC; 0 while it waits in the kernel.
    pub turn_began_us: AtomicU64,
    /// Turns it has begun; wraps.
    pub turns: AtomicU32,
    /// Requests that it has begun to serve and not finished.
    pub open_requests: AtomicU32,
    /// Client connections that it holds.
    pub sessions: AtomicU32,
    /// New connections that a program in the kernel has given to its listeners since its turn
    /// began.
    pub assigned: AtomicU32,
    /// The cost of a request in time of its core, in nanoseconds; a moving average.
    pub service_ns: AtomicU32,
    /// Share of the last moments in which it wanted its core and did not have it, in thousandths.
    pub starved_permille: AtomicU32,
    /// [`ACCEPTS`] and [`DRAINS`].
    pub flags: AtomicU32,
    unused: [u32; 7],
}

const _: () = assert!(
    size_of::<Line>() == 64 && align_of::<Line>() == 64,
    "one cache line, as programs in the kernel read it"
);

impl Line {
    /// How long its turn has lasted at `now_us` (microseconds of CLOCK_MONOTONIC); 0 while it
    /// waits.
    pub fn turn_us(&self, now_us: u64) -> u64 {
        match self.turn_began_us.load(Relaxed) {
            0 => 0,
            began => now_us.saturating_sub(began),
        }
    }

    /// Whether its turn has lasted for more than [`LATE_TURN_US`] at `now_us`.
    pub fn is_late(&self, now_us: u64) -> bool {
        self.turn_us(now_us) > LATE_TURN_US
    }

    /// Whether it takes new clients.
    pub fn accepts(&self) -> bool {
        self.flags.load(Relaxed) & (ACCEPTS | DRAINS) == ACCEPTS
    }

    /// An estimate of how long something new would wait for this worker, in nanoseconds.
    pub fn cost(&self, now_us: u64) -> u64 {
        let requests = u64::from(self.open_requests.load(Relaxed))
            .saturating_mul(self.service_ns.load(Relaxed).into());
        let turn_us = self.turn_us(now_us);
        let turn = if turn_us > SHORT_TURN_US { turn_us.saturating_mul(1000) } else { 0 };
        let starved = self.starved_permille.load(Relaxed);
        let starved = if starved < STARVED_PERMILLE {
            0
        } else {
            u64::from(starved).min(1000) * STARVED_NS / 1000
        };
        let assigned = u64::from(self.assigned.load(Relaxed)).saturating_mul(ASSIGNED_NS);
        requests.saturating_add(turn).saturating_add(starved).saturating_add(assigned)
    }
}

/// Lines of all workers.
pub struct Board {
    lines: NonNull<Line>,
    workers: usize,
    /// The owner of the memory.
    _keep: Box<dyn Send + Sync>,
}

// SAFETY: the lines are atomics in memory that lives as long as `_keep`, which may be shared and
// sent.
unsafe impl Send for Board {}
// SAFETY: as above; all access is by shared references to atomics.
unsafe impl Sync for Board {}

impl Board {
    /// For this number of workers, in memory of this process.
    pub fn new(workers: usize) -> Board {
        let lines: Arc<[Line]> = (0..workers).map(|_| Line::default()).collect();
        Board { lines: NonNull::from(&*lines).cast(), workers, _keep: Box::new(lines) }
    }

    /// Over memory that others see as well, such as an eBPF array map; all zeroes are a line of a
    /// worker that was never there. Gives None if `bytes` are too few for the workers or `start` is
    /// not at a multiple of 64.
    ///
    /// # Safety
    /// `bytes` from `start` are mapped, readable and writable, until `keep` is dropped, and all
    /// accesses to them are atomic.
    pub unsafe fn over(
        start: NonNull<u8>,
        bytes: usize,
        workers: usize,
        keep: impl Send + Sync + 'static,
    ) -> Option<Board> {
        let fits = workers.checked_mul(size_of::<Line>()).is_some_and(|needed| needed <= bytes);
        let lines = start.cast::<Line>();
        (fits && lines.is_aligned()).then(|| Board { lines, workers, _keep: Box::new(keep) })
    }

    /// All lines, by the workers' numbers.
    pub fn lines(&self) -> &[Line] {
        // SAFETY: the constructors made sure that all lines are there and aligned, for as long as
        // `self` lives; any bytes are a valid line.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr(), self.workers) }
    }

    /// The line of one worker.
    ///
    /// # Panics
    /// If the worker does not exist.
    pub fn line(&self, worker: usize) -> &Line {
        &self.lines()[worker]
    }
}

impl Default for Board {
    /// For no workers.
    fn default() -> Board {
        Board::new(0)
    }
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.lines()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_layout_is_the_one_that_programs_read() {
        let offsets = [
            offset_of!(Line, turn_began_us),
            offset_of!(Line, turns),
            offset_of!(Line, open_requests),
            offset_of!(Line, sessions),
            offset_of!(Line, assigned),
            offset_of!(Line, service_ns),
            offset_of!(Line, starved_permille),
            offset_of!(Line, flags),
        ];
        assert_eq!(offsets, [0, 8, 12, 16, 20, 24, 28, 32]);
    }

    #[test]
    fn a_worker_that_waits_costs_what_it_has_to_do() {
        let board = Board::new(2);
        let line = board.line(1);
        assert_eq!(
            (line.cost(9_000_000), line.is_late(9_000_000), line.accepts()),
            (0, false, false)
        );
        line.open_requests.store(3, Relaxed);
        line.service_ns.store(7_000, Relaxed);
        line.assigned.store(2, Relaxed);
        assert_eq!(line.cost(9_000_000), 41_000);
        line.starved_permille.store(500, Relaxed);
        assert_eq!(line.cost(9_000_000), 2_041_000);
        assert_eq!(board.line(0).cost(9_000_000), 0);
    }

    #[test]
    fn a_long_turn_costs_and_is_late() {
        let board = Board::new(1);
        let line = board.line(0);
        line.turn_began_us.store(1_000_000, Relaxed);
        let seen = |now: u64| (line.turn_us(now), line.cost(now), line.is_late(now));
        assert_eq!(seen(1_000_200), (200, 0, false));
        assert_eq!(seen(1_000_201), (201, 201_000, false));
        assert_eq!(seen(1_005_001), (5_001, 5_001_000, true));
        // A clock that was read before the turn began.
        assert_eq!(seen(999_999), (0, 0, false));
    }

    #[test]
    fn only_one_that_accepts_and_does_not_drain_takes_clients() {
        let line = Line::default();
        for (flags, takes) in
            [(0, false), (ACCEPTS, true), (DRAINS, false), (ACCEPTS | DRAINS, false)]
        {
            line.flags.store(flags, Relaxed);
            assert_eq!(line.accepts(), takes, "{flags}");
        }
    }

    #[test]
    fn no_figure_overflows() {
        let line = Line::default();
        for field in [&line.open_requests, &line.service_ns, &line.assigned, &line.starved_permille]
        {
            field.store(u32::MAX, Relaxed);
        }
        line.turn_began_us.store(1, Relaxed);
        assert_eq!(line.cost(u64::MAX), u64::MAX);
    }

    #[test]
    fn memory_of_others_has_to_be_large_enough_and_aligned() {
        let mut lines: Box<[Line]> = (0..2).map(|_| Line::default()).collect();
        let start = NonNull::from(&mut *lines).cast::<u8>();
        // SAFETY: the memory lives until the end of this test, and is accessed by the boards only.
        let over = |start, workers| unsafe { Board::over(start, 128, workers, ()) };
        assert!(over(start, 3).is_none() && over(start, usize::MAX).is_none());
        // SAFETY: within the allocation.
        assert!(over(unsafe { start.add(8) }, 1).is_none());
        let (one, other) = (over(start, 2).expect("fits"), over(start, 2).expect("fits"));
        one.line(1).sessions.store(5, Relaxed);
        assert_eq!(other.line(1).sessions.load(Relaxed), 5);
    }
}
