//! A thread outside the namespace. It signals the programs that weir runs. It also lets new
//! connections pass by when a worker hangs, when descriptors are scarce, or when more connections
//! begin than weir can accept. At the end it removes everything. It starts before the process
//! enters the namespace, and drops privileges with the other threads.

use std::fs;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};
use weir_bpf::{Intercept, Taken};
use weir_io::Interfaces;

use super::beside::Beside;
use super::flood::{self, Flood};
use super::place::failed;
use super::watch::Watch;
use crate::failure::Failure;
use crate::log::Event;

/// How often it checks for floods and reads counters, and its pause when more than half of the
/// descriptors are used.
const LOOK: Duration = Duration::from_millis(100);
const LOOK_CLOSELY: Duration = Duration::from_millis(5);
/// How often it signals the programs that weir runs, and how long the signal is valid. After a stop
/// of weir, later connections pass by.
const BEAT: Duration = Duration::from_millis(50);
const BELIEVED: Duration = Duration::from_millis(500);
/// A worker whose turn lasts longer hangs, in microseconds: it accepts nothing that the kernel
/// gives it. Its watchdog ends a worker that remains in that state.
const TURN_US_MAX: u64 = 1_000_000;
/// Percentage of used descriptors from which connections pass by, and below which they are taken
/// again.
const FULL_PERCENT: u64 = 90;
const ROOM_PERCENT: u64 = 80;

/// How long data in flight may take at the end.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// Everything that leads connections inside.
pub(super) struct Way {
    /// The programs.
    pub(super) intercept: Intercept,
    /// The interfaces outside.
    pub(super) interfaces: Interfaces,
    /// The index of the interface that leads inside.
    pub(super) index: u32,
    /// Interfaces inside that lie on top of the outer ones (macvlan).
    pub(super) beside: Beside,
}

/// Why new connections pass by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Descriptors are scarce.
    Full,
    /// More begin than weir can accept.
    Flooded,
    /// A worker does not finish a turn.
    Stuck,
}

impl Why {
    fn word(self) -> &'static str {
        match self {
            Why::Full => "descriptors are nearly used up",
            Why::Flooded => "more begin than are completed and accepted",
            Why::Stuck => "a worker hangs",
        }
    }
}

/// The thread. Connections are led inside until this [ends](Keeper::end), or the process does.
pub(super) struct Keeper {
    end: SyncSender<()>,
    thread: JoinHandle<()>,
}

impl Keeper {
    /// Stops leading connections inside once finished ones have delivered everything, and reports
    /// totals.
    pub(super) fn end(self) {
        drop(self.end);
        // The thread has reported everything.
        let _ = self.thread.join();
    }
}

/// Starts the thread; its namespace is the outer one. Also returns its figures.
///
/// # Errors
/// No thread.
pub(super) fn start(way: Way) -> Result<(Keeper, Watch), Failure> {
    let (end, ended) = sync_channel(0);
    let watch = Watch::default();
    let seen = watch.clone();
    let thread =
        thread::Builder::new().name("intercept".to_owned()).spawn(move || keep(way, &seen, &ended));
    let thread = thread.map_err(|error| failed("no thread", &error))?;
    Ok((Keeper { end, thread }, watch))
}

fn keep(way: Way, watch: &Watch, ended: &Receiver<()>) {
    let Way { mut intercept, mut interfaces, index, beside } = way;
    let (mut is_full, mut is_flooded, mut passes, mut look) = (false, false, None, BEAT);
    let (mut flood, mut seen) = (Flood::default(), Instant::now());
    // A failed signal is repeated; until then connections pass by.
    let _ = intercept.runs_for(BELIEVED);
    while ended.recv_timeout(look) == Err(RecvTimeoutError::Timeout) {
        let _ = intercept.runs_for(BELIEVED);
        let most = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let used = descriptors();
        is_full = is_used_up(used, most, is_full);
        look = if used > most / 2 { LOOK_CLOSELY } else { BEAT };
        if seen.elapsed() >= LOOK {
            seen = Instant::now();
            is_flooded = flood.is_on(flood::dropped(), seen);
            if let Ok(taken) = intercept.taken() {
                watch.set(taken, passes.map(Why::word));
            }
        }
        let is_stuck = watch.longest_turn_us() > TURN_US_MAX;
        let whys = [(is_stuck, Why::Stuck), (is_full, Why::Full), (is_flooded, Why::Flooded)];
        let why = whys.into_iter().find_map(|(is_so, why)| is_so.then_some(why));
        if why == passes || intercept.pass_by(why.is_some()).is_err() {
            continue;
        }
        passes = why;
        match why {
            Some(Why::Full) => bypass(format_args!("{most} {}", Why::Full.word())),
            Some(Why::Flooded) => {
                bypass(format_args!("for a while, {} (ListenDrops)", Why::Flooded.word()));
            }
            Some(Why::Stuck) => bypass(format_args!("{}", Why::Stuck.word())),
            None => Event::InterceptResumed.says("weir intercepts new connections again").log(),
        }
    }
    let until = Instant::now() + LAST_PATIENCE;
    while sockets_inside() > 0 && Instant::now() < until {
        thread::sleep(LOOK_CLOSELY);
    }
    if let Ok(Taken { taken, passed_by, with_options, changed, unserved }) = intercept.taken() {
        Event::Intercepted
            .says("others bypassed weir, for their options, for NAT, or because weir did not run")
            .with("connections", taken)
            .with("bypassed", passed_by)
            .with("options", with_options)
            .with("nat", changed)
            .with("unserved", unserved)
            .log();
    }
    drop(intercept);
    beside.remove();
    // A user has no right to do this; then it disappears with the namespace.
    let _ = interfaces.remove(index);
}

/// Logs that new connections bypass weir.
fn bypass(why: std::fmt::Arguments<'_>) {
    Event::InterceptBypass.says(format_args!("new connections bypass weir: {why}")).log();
}

/// Whether connections pass by with this many descriptors in use.
fn is_used_up(used: u64, most: u64, is_full: bool) -> bool {
    let percent = if is_full { ROOM_PERCENT } else { FULL_PERCENT };
    u128::from(used) * 100 >= u128::from(most) * u128::from(percent)
}

/// Returns this process's number of descriptors, which Linux reports as the size of the folder
/// (proc_pid_fd(5)).
fn descriptors() -> u64 {
    fs::metadata("/proc/self/fd").map_or(0, |folder| folder.len())
}

/// Returns the TCP sockets in the process's namespace, which this thread is not in.
fn sockets_inside() -> u64 {
    let all = ["/proc/self/net/sockstat", "/proc/self/net/sockstat6"].map(fs::read_to_string);
    all.iter().flatten().map(|text| in_use(text)).sum()
}

/// Returns the TCP sockets in a file of statistics (proc_pid_net(5)).
fn in_use(text: &str) -> u64 {
    let line = text.lines().find_map(|line| {
        line.strip_prefix("TCP: inuse ").or_else(|| line.strip_prefix("TCP6: inuse "))
    });
    line.and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    //! Proves: sockets are counted as the kernel reports them, and connections pass by until there
    //! is clearly room again. How: examples.

    use super::*;

    #[test]
    fn sockets_are_counted() {
        let four =
            "sockets: used 161\nTCP: inuse 27 orphan 0 tw 4 alloc 30 mem 1\nUDP: inuse 2 mem 0\n";
        let six = "TCP6: inuse 5\nUDP6: inuse 1\n";
        assert_eq!((in_use(four), in_use(six), in_use("")), (27, 5, 0));
        assert!(sockets_inside() < 1_000_000);
    }

    #[test]
    fn there_is_room_again_when_there_is_clearly_some() {
        let limits =
            [(899, false, false), (900, false, true), (800, true, true), (799, true, false)];
        for (used, is_full, becomes) in limits {
            assert_eq!(is_used_up(used, 1000, is_full), becomes, "{used}");
        }
        assert!(!is_used_up(1 << 40, u64::MAX, false));
        // Few descriptors: not all of them are too many.
        assert!(!is_used_up(10, 90, false) && is_used_up(90, 90, false));
    }

    #[test]
    fn descriptors_are_counted() {
        let before = descriptors();
        let more: Vec<_> =
            (0..100).map(|_| fs::File::open("/dev/null").expect("a descriptor")).collect();
        assert!(before == 0 || descriptors() >= more.len() as u64, "{before}");
    }
}
