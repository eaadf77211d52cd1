//! Requests by the clock while another thread takes a core now and then: it belongs to the harness
//! and has the core to itself for a while, at moments that are the same for all contenders of a
//! round.
//!
//! Called by `rounds.rs` for each run of the experiment `taken-core`. Generator and server never
//! run on that core, so that only the contender is late. Bounds: the seconds given; the core is
//! free again when the run is over, however it ends.

use std::io;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::setpriority_process;
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use weir_io::{available_cores, pin_to};

use super::even_settings;
use super::load::{self, Times};
use super::ports::free_address;
use super::stage::{Running, Stage, start_origin};
use crate::bench::experiment::cells::{Cell, Load, SMALL};
use crate::bench::experiment::contenders::{Contender, What};
use crate::bench::experiment::even::{BESIDE, TAKEN_US, Takings};
use crate::bench::record::even::Taken;
use crate::bench::record::outcome::Record;

/// Before anything counts, seconds: a program that can leave the core has time to see that it is
/// taken.
const WARM_UP: f64 = 2.0;
/// Of SCHED_FIFO; any value is above everything that is not real-time, and this value is below the
/// kernel's own threads for interrupts.
const PRIORITY: &str = "40";
/// The largest share of a core that a thread without real-time priority can get.
const NICE: i32 = -20;

/// Returns what prevents this experiment, if anything.
pub(super) fn obstacle(cell: &Cell) -> Option<String> {
    if cell.load != Load::Taken {
        return None;
    }
    if available_cores().len() < 2 {
        return Some(
            "needs two cores: one to take away, and one for clients and server".to_owned(),
        );
    }
    let tried = std::thread::spawn(take_precedence)
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    tried
        .err()
        .map(|error| format!("cannot take a core from other programs here ({error}): needs root"))
}

/// Does one run of this many seconds. The moments are those of the round.
///
/// # Errors
/// Something can't be started, the generator fails, or the user interrupts.
pub(super) fn run(
    stage: &Stage,
    contender: Contender,
    (round, seconds): (u32, u32),
) -> io::Result<(Running, Record)> {
    let cores = available_cores();
    let Some((core, others)) = cores.split_first() else {
        return Err(io::Error::other("no core is known"));
    };
    let (to, log) = (free_address()?, stage.scratch("taken-origin.log"));
    let mut server =
        Aside::go(others)?.within(|| start_origin(stage.weir(), to, others.len(), &[], &log))?;
    server.await_listening(to)?;
    let running = if contender.what == What::Direct {
        Running::origin_alone((server, to))
    } else {
        let listen = free_address()?;
        let text = even_settings::text(stage, contender, [listen, to], stage.cores(), None)?;
        stage.start_with(contender, listen, &text)?.before((server, to))
    };
    let taker = Taker::start(*core, u64::from(round));
    let (connections, rate) = BESIDE;
    let times = Times { warm_up: WARM_UP, seconds: f64::from(seconds) };
    let asked = Aside::go(others)?
        .within(|| load::open(stage, &running, connections, (f64::from(rate), SMALL), times));
    let taken = taker.end()?;
    let mut record = asked?;
    record.special.taken = Some(taken);
    Ok((running, record))
}

/// While this exists, the thread that made it, and whatever it starts, runs on some cores only.
struct Aside(CpuSet);

impl Aside {
    fn go(cores: &[usize]) -> io::Result<Aside> {
        let usual = sched_getaffinity(None)?;
        let mut set = CpuSet::new();
        cores.iter().for_each(|core| set.set(*core));
        sched_setaffinity(None, &set)?;
        Ok(Aside(usual))
    }

    /// Runs a closure there, and restores the affinity.
    fn within<T>(self, what: impl FnOnce() -> T) -> T {
        what()
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // The thread may run again where it ran before.
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// The thread that takes the core.
struct Taker {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<Taken>>>,
}

impl Taker {
    fn start(core: usize, seed: u64) -> Taker {
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        Taker { ends, thread: Some(std::thread::spawn(move || take(core, seed, &told))) }
    }

    /// Ends it and returns what it took.
    fn end(mut self) -> io::Result<Taken> {
        self.join()
            .unwrap_or_else(|| Err(io::Error::other("the program that takes the core had ended")))
    }

    fn join(&mut self) -> Option<io::Result<Taken>> {
        let thread = self.thread.take()?;
        self.ends.store(true, Ordering::Relaxed);
        thread.thread().unpark();
        Some(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        // In a run that failed, this figure is meaningless.
        drop(self.join());
    }
}

/// Takes the core when it is time to, until `ends` is set.
fn take(core: usize, seed: u64, ends: &AtomicBool) -> io::Result<Taken> {
    if !pin_to(core) {
        return Err(io::Error::other(format!("cannot take core {core}")));
    }
    let is_realtime = take_precedence()?;
    let (begin, cpu) = (Instant::now(), own_cpu());
    let mut times = 0;
    for at_us in Takings::new(seed) {
        let at = begin + Duration::from_micros(at_us);
        while let Some(early) =
            at.checked_duration_since(Instant::now()).filter(|early| !early.is_zero())
        {
            if ends.load(Ordering::Relaxed) {
                break;
            }
            std::thread::park_timeout(early);
        }
        if ends.load(Ordering::Relaxed) {
            break;
        }
        let free = Instant::now() + Duration::from_micros(TAKEN_US);
        while Instant::now() < free {
            std::hint::spin_loop();
        }
        times += 1;
    }
    let share = (own_cpu() - cpu).as_secs_f64() / begin.elapsed().as_secs_f64();
    Ok(Taken { is_realtime, times, share })
}

/// Makes the calling thread real-time, so that nothing else runs on its core while it does (true).
/// Failing that, gives it the highest priority of a thread that is not real-time (false).
fn take_precedence() -> io::Result<bool> {
    let thread = gettid();
    // Part of util-linux, like setpriv.
    let mut command = Command::new("chrt");
    command.args(["--fifo", "--pid", PRIORITY, &thread.as_raw_nonzero().to_string()]);
    let became = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if became.is_ok_and(|status| status.success()) {
        return Ok(true);
    }
    setpriority_process(Some(thread), NICE)?;
    Ok(false)
}

/// Returns the processor time of the calling thread.
fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_goes_aside_comes_back() {
        // Affinity is the thread's: the other tests keep theirs.
        let cores = available_cores();
        let there = Aside::go(&cores[..1]).unwrap().within(available_cores);
        assert_eq!(there, cores[..1]);
        assert_eq!(available_cores(), cores);
    }

    #[test]
    fn a_core_is_taken_until_that_is_to_end() {
        let taker = Taker::start(available_cores()[0], 1);
        match taker.end() {
            Ok(taken) => assert!((0.0..=1.01).contains(&taken.share), "{taken:?}"),
            Err(error) => {
                eprintln!("skipped: who is not root may take no core from others ({error})")
            }
        }
    }
}
