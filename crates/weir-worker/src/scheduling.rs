//! Lets workers be woken in batches while their cores have no time left.
//!
//! A proxy may share its cores with its peers. A server is about to send twenty responses; its
//! first one wakes the worker, which takes the core from the server to forward that response, and
//! so on. Each request costs the switches that twenty could share. Between services that the kernel
//! schedules as groups (sessions, cgroups) this is the rule: on two full cores 28,000 requests a
//! second at 35 µs where 77,000 at 7.5 µs are possible.
//!
//! Under SCHED_BATCH a worker waits until the other process stops, and finds more to do. With idle
//! time around that would only cost latency, so the policy applies only while cores have none. Time
//! that programs of lower priority (nice) take counts as idle: a worker that is woken takes the
//! core from them at once. Under SCHED_BATCH it would take it only at a tick, 4 ms later at worst
//! and for each time that a request needs it. sched(7).
//!
//! Called by the main thread some times a second. Bound: one read of /proc/stat in [`PERIOD`],
//! which costs the kernel a millisecond on a large machine, and none while workers have next to
//! nothing to do.

use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, Pid};
use weir_io::{Policy, cpu_time_of, policy_of, set_policy};

/// Time between two looks.
const PERIOD: Duration = Duration::from_millis(250);
/// A core that is idle for less than this share of its time is full, in thousandths.
const FULL: u64 = 80;
/// A core that is idle for more than this has time again.
const FREE: u64 = 160;

/// A worker that uses less of its core than this has nothing to gain, in thousandths.
const AT_WORK: u32 = 30;

/// The workers' threads and what their cores have been doing.
#[derive(Debug)]
pub struct Scheduling {
    threads: Vec<Thread>,
    looked: Instant,
}

#[derive(Debug)]
struct Thread {
    number: i32,
    /// None: it may run on several.
    core: Option<usize>,
    use_of_core: Use,
    /// Processor time it has used.
    used: Duration,
}

impl Thread {
    /// Whether its policy may have to change, `elapsed` after the last look.
    fn is_of_interest(&mut self, elapsed: Duration) -> bool {
        let before = self.used;
        // Where a sandbox hides the time, each look counts.
        let Some(used) = cpu_time_of(self.number) else { return true };
        self.used = used;
        self.use_of_core.full || used.saturating_sub(before) * 1000 >= elapsed * AT_WORK
    }
}

impl Scheduling {
    /// For threads with these numbers (gettid). A thread with a policy that was set from outside
    /// keeps it.
    pub fn new(numbers: &[i32]) -> Scheduling {
        let ours = |number: &&i32| matches!(policy_of(**number), Ok(Some(Policy::Normal)));
        let thread = |number: &i32| Thread {
            number: *number,
            core: core_of(*number),
            use_of_core: Use::default(),
            used: Duration::ZERO,
        };
        Scheduling {
            threads: numbers.iter().filter(ours).map(thread).collect(),
            looked: Instant::now(),
        }
    }

    /// Looks, if it is time to, and changes the policy of threads whose cores have become full or
    /// have time again.
    pub fn look(&mut self) {
        let elapsed = self.looked.elapsed();
        if self.threads.is_empty() || elapsed < PERIOD {
            return;
        }
        self.looked = Instant::now();
        // Reads all of them, so that what each has used counts from this look.
        let of_interest =
            self.threads.iter_mut().fold(false, |any, thread| thread.is_of_interest(elapsed) | any);
        if !of_interest {
            return;
        }
        match std::fs::read_to_string("/proc/stat") {
            Ok(text) => self.on_look(&text),
            // Where the kernel hides its counts, nothing is changed.
            Err(_) => self.threads.clear(),
        }
    }

    /// From now on a thread is bound to this core, or may run on several (None).
    pub(crate) fn set_core(&mut self, number: i32, core: Option<usize>) {
        for thread in self.threads.iter_mut().filter(|thread| thread.number == number) {
            thread.core = core;
            // The earlier counts were another core's.
            thread.use_of_core.seen = None;
        }
    }

    fn on_look(&mut self, stat: &str) {
        self.threads.retain_mut(|thread| {
            let Some(ticks) = ticks_of(stat, thread.core) else { return false };
            let policy = thread.use_of_core.on_look(ticks);
            policy.is_none_or(|policy| set_policy(thread.number, policy).is_ok())
        });
    }
}

/// The only core that a thread may use.
pub(crate) fn core_of(thread: i32) -> Option<usize> {
    let set = rustix::thread::sched_getaffinity(Pid::from_raw(thread)).ok()?;
    (set.count() == 1).then(|| (0..CpuSet::MAX_CPU).find(|core| set.is_set(*core))).flatten()
}

/// Time since the machine was started, in the kernel's ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ticks {
    /// Time that was available to a worker: the core was idle, or with programs of lower priority.
    idle: u64,
    all: u64,
}

impl Ticks {
    /// How much of the time since an earlier look was available to a worker, in thousandths; None:
    /// no time has passed.
    pub(crate) fn idle_since(self, before: Ticks) -> Option<u64> {
        // The kernel's numbers may decrease a little.
        let (idle, all) =
            (self.idle.saturating_sub(before.idle), self.all.saturating_sub(before.all));
        (idle * 1000).checked_div(all)
    }
}

/// For one core, or for all of them together. proc_stat(5); waiting for input and output is idle
/// time, and io_uring waits in this state.
pub(crate) fn ticks_of(stat: &str, core: Option<usize>) -> Option<Ticks> {
    let name = core.map_or("cpu".to_owned(), |core| format!("cpu{core}"));
    let line = stat.lines().find(|line| line.split_ascii_whitespace().next() == Some(&name))?;
    // user nice system idle iowait irq softirq steal; the later fields are contained in these.
    let numbers: Vec<u64> =
        line.split_ascii_whitespace().skip(1).take(8).map_while(|word| word.parse().ok()).collect();
    let idle = numbers.get(1)? + numbers.get(3)? + numbers.get(4)?;
    Some(Ticks { idle, all: numbers.iter().sum() })
}

/// How much of a core is used, and which policy follows from it.
#[derive(Debug, Default)]
struct Use {
    seen: Option<Ticks>,
    full: bool,
}

impl Use {
    /// The policy, if it changes.
    fn on_look(&mut self, now: Ticks) -> Option<Policy> {
        let before = self.seen.replace(now)?;
        let limit = if self.full { FREE } else { FULL };
        let full = now.idle_since(before).is_some_and(|idle| idle <= limit);
        let changed = std::mem::replace(&mut self.full, full) != full;
        changed.then_some(if full { Policy::Batch } else { Policy::Normal })
    }
}

#[cfg(test)]
mod tests {
    //! Proves: batches are for full cores only, which nice programs don't make full; each worker is
    //! judged by its own core, and a policy that was set from outside is kept. How: texts of
    //! /proc/stat, and a thread of this process whose policy the kernel tells.

    use super::*;

    fn use_after(shares: &[u64]) -> Vec<Option<Policy>> {
        let (mut use_of_core, mut ticks) = (Use::default(), Ticks::default());
        let mut look = |share: u64| {
            ticks = Ticks { idle: ticks.idle + share, all: ticks.all + 1000 };
            use_of_core.on_look(ticks)
        };
        shares.iter().map(|share| look(*share)).collect()
    }

    #[test]
    fn a_core_is_full_until_it_clearly_has_time() {
        let (batch, normal) = (Some(Policy::Batch), Some(Policy::Normal));
        assert_eq!(use_after(&[0, 1000, 500, FULL + 1]), [None; 4], "the first look says nothing");
        assert_eq!(
            use_after(&[0, 0, 0, FREE, FREE + 1, FULL + 1, FULL]),
            [None, batch, None, None, normal, None, batch]
        );
    }

    #[test]
    fn numbers_that_go_back_or_stand_still_change_nothing() {
        let mut use_of_core = Use::default();
        use_of_core.on_look(Ticks { idle: 10, all: 20 });
        assert_eq!(use_of_core.on_look(Ticks { idle: 10, all: 20 }), None);
        assert_eq!(use_of_core.on_look(Ticks { idle: 9, all: 19 }), None);
    }

    const STAT: &str = "cpu  10 1 10 100 20 1 1 1 5 5\ncpu1 5 1 5 50 10 0 1 0 0 0\n\
        cpu10 5 0 5 50 10 1 0 1 0 0\nintr 7 0\n";

    #[test]
    fn ticks_are_read_by_core() {
        assert_eq!(ticks_of(STAT, None), Some(Ticks { idle: 121, all: 144 }));
        assert_eq!(ticks_of(STAT, Some(1)), Some(Ticks { idle: 61, all: 72 }));
        assert_eq!(ticks_of(STAT, Some(10)), Some(Ticks { idle: 60, all: 72 }));
        for (text, core) in
            [(STAT, Some(0)), ("", None), ("cpu 1 2 3\n", None), ("cpu a b c d e\n", None)]
        {
            assert_eq!(ticks_of(text, core), None, "{text}");
        }
    }

    #[test]
    fn a_worker_that_rests_is_of_no_interest_unless_its_core_was_full() {
        let mut thread = Thread {
            number: i32::MAX,
            core: None,
            use_of_core: Use::default(),
            used: Duration::ZERO,
        };
        assert!(thread.is_of_interest(PERIOD), "nobody tells what it uses");
        thread.number = rustix::thread::gettid().as_raw_nonzero().get();
        thread.used = cpu_time_of(thread.number).unwrap();
        assert!(
            !thread.is_of_interest(Duration::from_hours(10_000)),
            "this thread does not run for so long"
        );
        thread.used = Duration::ZERO;
        assert!(thread.is_of_interest(Duration::from_nanos(1)));
        thread.use_of_core.full = true;
        assert!(
            thread.is_of_interest(Duration::from_hours(10_000)),
            "it has to be told when its core has time again"
        );
    }

    #[test]
    fn a_thread_that_is_let_go_is_judged_by_all_cores() {
        let number = rustix::thread::gettid().as_raw_nonzero().get();
        let use_of_core = Use { seen: Some(Ticks { idle: 50, all: 60 }), full: true };
        let thread = Thread { number, core: Some(1), use_of_core, used: Duration::ZERO };
        let mut scheduling = Scheduling { threads: vec![thread], looked: Instant::now() };
        scheduling.set_core(number + 1, None);
        assert_eq!(scheduling.threads[0].core, Some(1), "another thread");
        scheduling.set_core(number, None);
        scheduling.on_look(STAT);
        let Thread { core, use_of_core: Use { seen, full }, .. } = &scheduling.threads[0];
        assert_eq!((*core, *seen, *full), (None, Some(Ticks { idle: 121, all: 144 }), true));
    }

    #[test]
    fn the_kernel_is_told_and_a_chosen_policy_stays() {
        let number = rustix::thread::gettid().as_raw_nonzero().get();
        let mut scheduling = Scheduling::new(&[number]);
        scheduling.threads[0].core = None;
        let mut look = |text: &str, expected| {
            scheduling.on_look(text);
            assert_eq!(policy_of(number).unwrap(), Some(expected), "{text}");
        };
        look("cpu 0 0 0 0 0 0 0 0", Policy::Normal);
        look("cpu 900 100 0 0 0 0 0 0", Policy::Normal);
        look("cpu 1900 100 0 0 0 0 0 0", Policy::Batch);
        assert!(Scheduling::new(&[number]).threads.is_empty(), "somebody else's choice");
        look("cpu 1900 1100 0 0 0 0 0 0", Policy::Normal);
    }
}
