//! Finds a worker that is stuck: it uses its core, and its turn does not end. Nothing can be done about it from within the
//! process but to end it; the caller decides. docs/hostile.md K3.
//!
//! Looked at from the main thread. What counts is the processor time of the worker's thread, not the time on the clock:
//! a worker that waits, or that a busy machine does not let run, is not stuck.

use std::time::Duration;

use weir_io::cpu_time_of;

/// Processor time that one turn may take. A turn's work is bounded; thousands of completions take milliseconds.
const TURN_CPU_MAX: Duration = Duration::from_millis(700);

/// One look at each worker after another.
#[derive(Debug)]
pub struct Watchdog {
    seen: Vec<Seen>,
}

/// A worker as it was when its count of turns last changed.
#[derive(Debug)]
struct Seen {
    /// The worker's thread.
    thread: i32,
    turns: u64,
    cpu: Option<Duration>,
}

impl Watchdog {
    /// For workers whose threads have these numbers (gettid).
    pub fn new(threads: &[i32]) -> Watchdog {
        Watchdog { seen: threads.iter().map(|thread| Seen { thread: *thread, turns: u64::MAX, cpu: None }).collect() }
    }

    /// A worker that is stuck. `turns` tells how many turns a worker has begun. Call it some times a second.
    pub fn look(&mut self, turns: impl Fn(usize) -> u64) -> Option<usize> {
        let stuck = |(worker, seen): (usize, &mut Seen)| {
            // Where a sandbox does not tell, nothing is ever stuck.
            let cpu = cpu_time_of(seen.thread);
            let turns = turns(worker);
            if turns != seen.turns {
                (seen.turns, seen.cpu) = (turns, cpu);
            }
            let is_stuck = cpu?.saturating_sub(seen.cpu?) >= TURN_CPU_MAX;
            is_stuck.then_some(worker)
        };
        self.seen.iter_mut().enumerate().find_map(stuck)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;

    /// docs/hostile.md K3. Of a worker that waits, one that works, and one that spins in a turn, the last is found.
    #[test]
    fn k3_only_a_worker_that_spins_is_stuck() {
        let (over, works) = (AtomicBool::new(false), AtomicU64::new(0));
        let (thread, threads) = channel();
        let (alarm, sleep) = channel::<()>();
        let say = |place: usize| thread.send((place, rustix::thread::gettid().as_raw_nonzero().get())).expect("heard");
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
            let mut found = None;
            while found.is_none() && start.elapsed() < Duration::from_secs(60) {
                found = dog.look(|worker| if worker == 1 { works.load(Ordering::Relaxed) } else { 7 });
                std::thread::yield_now();
            }
            over.store(true, Ordering::Relaxed);
            drop(alarm);
            assert_eq!(found, Some(2));
        });
    }
}
