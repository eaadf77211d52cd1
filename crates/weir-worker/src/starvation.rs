//! Measures how much workers are starved of their cores: the share of time in which a worker wanted
//! to run and something else ran in its place.
//!
//! The kernel counts it for each thread (its run delay, /proc/PID/task/TID/schedstat,
//! Documentation/scheduler/sched-stats.rst). It counts a delay when it ends, and ignores time that
//! a hypervisor takes. Called by the main thread at each of its looks, because a starved worker
//! can't do that itself. Costs one read for each worker; its file is kept open.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use weir_io::Board;

/// How long a delay counts, roughly, in nanoseconds.
const MEMORY_NS: u128 = 200_000_000;
/// Longer than any line of the kernel's.
const LINE_BYTES_MAX: usize = 96;

/// Looks at the workers' threads.
#[derive(Debug)]
pub(crate) struct Starvation {
    threads: Vec<Thread>,
    looked: Instant,
}

#[derive(Debug)]
struct Thread {
    /// None: the kernel, or a sandbox, hides it.
    file: Option<File>,
    delay_ns: Option<u64>,
    permille: u32,
}

impl Starvation {
    /// For threads with these numbers (gettid), by worker.
    pub(crate) fn new(numbers: &[i32]) -> Starvation {
        let open = |number: &i32| File::open(format!("/proc/self/task/{number}/schedstat")).ok();
        let thread = |number| Thread { file: open(number), delay_ns: None, permille: 0 };
        Starvation { threads: numbers.iter().map(thread).collect(), looked: Instant::now() }
    }

    /// Looks, and writes the findings into the lines of the board.
    pub(crate) fn look(&mut self, board: &Board) {
        let now = Instant::now();
        let elapsed = now.saturating_duration_since(std::mem::replace(&mut self.looked, now));
        for (thread, line) in self.threads.iter_mut().zip(board.lines()) {
            let delay_ns = thread.file.as_ref().and_then(delay_in);
            thread.on_look(delay_ns, elapsed);
            line.starved_permille.store(thread.permille, Relaxed);
        }
    }
}

impl Thread {
    /// Adds the kernel's count, `elapsed` after the look before; None: nothing, for example because
    /// the thread has ended.
    fn on_look(&mut self, delay_ns: Option<u64>, elapsed: Duration) {
        let before = std::mem::replace(&mut self.delay_ns, delay_ns);
        self.permille = match before.zip(delay_ns) {
            Some((before, now)) => averaged(self.permille, now.saturating_sub(before), elapsed),
            None => 0,
        };
    }
}

/// The average with the starved time within `elapsed` included; older time counts less.
fn averaged(before: u32, starved_ns: u64, elapsed: Duration) -> u32 {
    // A delay that ends now may have begun before the last look, and be longer than the elapsed
    // time.
    let sum = u128::from(before) * MEMORY_NS + 1000 * u128::from(starved_ns);
    u32::try_from(sum / (MEMORY_NS + elapsed.as_nanos())).unwrap_or(u32::MAX).min(1000)
}

fn delay_in(file: &File) -> Option<u64> {
    let mut line = [0; LINE_BYTES_MAX];
    let length = file.read_at(&mut line, 0).ok()?;
    delay_of(std::str::from_utf8(&line[..length]).ok()?)
}

/// The second number of three: time on a core, time spent waiting for one, in nanoseconds, and how
/// often it ran.
fn delay_of(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    //! Proves: the share is that of time without a core, over the last moments. How: texts of the
    //! kernel, chosen times, and threads that want one core.

    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn the_delay_is_the_second_number() {
        assert_eq!(delay_of("1234567 890 12\n"), Some(890));
        assert_eq!(delay_of(&format!("1 {} 2", u64::MAX)), Some(u64::MAX));
        for text in ["", "\n", "12", "12 x 3", "12 -3 4", "12 18446744073709551616 4"] {
            assert_eq!(delay_of(text), None, "{text}");
        }
    }

    const LOOK: Duration = Duration::from_millis(50);

    fn shares(starved_ms: impl IntoIterator<Item = u64>) -> Vec<u32> {
        let mut thread = Thread { file: None, delay_ns: None, permille: 0 };
        let mut sum_ns = 7;
        thread.on_look(Some(sum_ns), LOOK);
        let look = |ms: u64| {
            sum_ns += ms * 1_000_000;
            thread.on_look(Some(sum_ns), LOOK);
            thread.permille
        };
        starved_ms.into_iter().map(look).collect()
    }

    #[test]
    fn a_share_is_of_the_last_moments() {
        assert_eq!(shares([0, 0]), [0, 0]);
        assert_eq!(shares([50, 50, 0]), [200, 360, 288]);
        // 25 ms, 14 times a second, between looks of 50 ms.
        let some = shares((0..100).map(|look| if look % 10 < 7 { 25 } else { 0 }));
        assert!(some[20..].iter().all(|share| (200..=500).contains(share)), "{some:?}");
        let all = shares([50; 60]);
        assert!(all.last().is_some_and(|share| *share > 990), "{all:?}");
        let over = shares(std::iter::once(50).chain([0; 40]));
        assert_eq!(over.last(), Some(&0), "{over:?}");
    }

    #[test]
    fn no_figure_passes_the_whole() {
        for (before, starved_ns, elapsed) in [
            (u32::MAX, u64::MAX, Duration::MAX),
            (1000, u64::MAX, Duration::ZERO),
            (0, u64::MAX, LOOK),
        ] {
            assert!(averaged(before, starved_ns, elapsed) <= 1000);
        }
        let mut thread = Thread { file: None, delay_ns: Some(9), permille: 500 };
        thread.on_look(Some(3), LOOK);
        assert_eq!(thread.permille, 400, "numbers that go back are no delay");
        thread.on_look(None, LOOK);
        assert_eq!(thread.permille, 0, "the thread has ended");
    }

    #[test]
    fn threads_that_want_one_core_are_starved_and_one_that_sleeps_is_not() {
        let core = weir_io::available_cores()[0];
        let over = AtomicBool::new(false);
        let (number, numbers) = mpsc::channel();
        let (alarm, sleep) = mpsc::channel::<()>();
        let say = || number.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("heard");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                say();
                // Until the other end is dropped.
                let _ = sleep.into_iter().next();
            });
            let sleeper = numbers.recv().expect("a number");
            for _ in 0..3 {
                scope.spawn(|| {
                    weir_io::pin_to(core);
                    say();
                    while !over.load(Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let one = numbers.recv().expect("a number");
            let (mut starvation, board) = (Starvation::new(&[sleeper, one]), Board::new(2));
            let share = |worker| board.line(worker).starved_permille.load(Relaxed);
            let is_told = || share(0) < 100 && share(1) >= 300;
            let begun = Instant::now();
            while !is_told() && begun.elapsed() < Duration::from_secs(60) {
                starvation.look(&board);
                std::thread::yield_now();
            }
            let (told, shares) = (is_told(), (share(0), share(1)));
            over.store(true, Relaxed);
            drop(alarm);
            assert!(told, "{shares:?}");
        });
    }
}
