//! Finds a worker that makes no progress: it uses its core, and the step that it is in does not
//! end. docs/hostile.md K3.
//!
//! Checked from the main thread. The measure is the processor time of the worker's thread, not
//! wall-clock time: a worker that waits, or that a busy machine does not let run, is not stuck. A
//! step is one event of one connection, or a part of a turn besides events ([`Step`](crate::Step)):
//! a turn with thousands of events makes progress with each of them. An event that takes long costs
//! its client the connection ([`Finding::Slow`]). Against one that does not end at all the process
//! can do nothing but end itself ([`Finding::Stuck`]).

use std::time::Duration;

use weir_io::cpu_time_of;

/// Processor time that a step may take before its client is blamed. A step's work is bounded to
/// some milliseconds.
const SLOW_CPU: Duration = Duration::from_millis(300);
/// Processor time after which a step counts as one that does not end.
const STUCK_CPU: Duration = Duration::from_millis(1_000);

/// Finds workers that make no progress.
#[derive(Debug)]
pub struct Watchdog {
    seen: Vec<Seen>,
}

/// A finding about the worker with this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// Its step takes too long. Reported once for each step.
    Slow {
        /// The worker.
        worker: usize,
        /// The step, by its count.
        step: u64,
    },
    /// Its step does not end.
    Stuck {
        /// The worker.
        worker: usize,
    },
}

/// A worker as it was when its count of steps last changed.
#[derive(Debug)]
struct Seen {
    /// The worker's thread.
    thread: i32,
    steps: u64,
    cpu: Option<Duration>,
    /// This step was reported as slow.
    is_told: bool,
}

impl Seen {
    /// Checks whether the worker, which has begun this number of steps, makes progress.
    fn look(&mut self, worker: usize, steps: u64) -> Option<Finding> {
        // Where a sandbox hides the time, nothing is ever stuck.
        let cpu = cpu_time_of(self.thread);
        if steps != self.steps {
            (self.steps, self.cpu, self.is_told) = (steps, cpu, false);
        }
        let used = cpu?.saturating_sub(self.cpu?);
        if used >= STUCK_CPU && self.is_told {
            return Some(Finding::Stuck { worker });
        }
        let is_news = used >= SLOW_CPU && !std::mem::replace(&mut self.is_told, used >= SLOW_CPU);
        is_news.then_some(Finding::Slow { worker, step: steps })
    }
}

impl Watchdog {
    /// For workers whose threads have these numbers (gettid).
    pub fn new(threads: &[i32]) -> Watchdog {
        let seen =
            |thread: &i32| Seen { thread: *thread, steps: u64::MAX, cpu: None, is_told: false };
        Watchdog { seen: threads.iter().map(seen).collect() }
    }

    /// The first worker that makes no progress. `steps` tells how many steps a worker has begun.
    /// Call it some times a second.
    pub fn look(&mut self, steps: impl Fn(usize) -> u64) -> Option<Finding> {
        self.seen.iter_mut().enumerate().find_map(|(worker, seen)| seen.look(worker, steps(worker)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;

    /// docs/hostile.md K3. Of a worker that waits, one that works, and one that spins in a turn,
    /// the last is found.
    #[test]
    fn k3_only_a_worker_that_spins_is_stuck() {
        let (over, works) = (AtomicBool::new(false), AtomicU64::new(0));
        let (thread, threads) = channel();
        let (alarm, sleep) = channel::<()>();
        let say = |place: usize| {
            thread.send((place, rustix::thread::gettid().as_raw_nonzero().get())).expect("heard")
        };
        let (say, spinning, working) = (&say, &over, &works);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                say(0);
                // Until the other end is dropped.
                let _ = sleep.recv();
            });
            scope.spawn(move || {
                say(1);
                while !spinning.load(Ordering::Relaxed) {
                    working.fetch_add(1, Ordering::Relaxed);
                }
            });
            scope.spawn(move || {
                say(2);
                while !spinning.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let mut numbers: Vec<(usize, i32)> = threads.iter().take(3).collect();
            numbers.sort_unstable();
            let numbers: Vec<i32> = numbers.into_iter().map(|(_, number)| number).collect();
            let mut dog = Watchdog::new(&numbers);
            let start = Instant::now();
            let mut found = Vec::new();
            while found.len() < 2 && start.elapsed() < Duration::from_secs(60) {
                found.extend(
                    dog.look(|worker| if worker == 1 { works.load(Ordering::Relaxed) } else { 7 }),
                );
                std::thread::yield_now();
            }
            over.store(true, Ordering::Relaxed);
            drop(alarm);
            // First that it is slow, once, so that it may be helped; then that it does not end.
            assert_eq!(found, [Finding::Slow { worker: 2, step: 7 }, Finding::Stuck { worker: 2 }]);
        });
    }
}
