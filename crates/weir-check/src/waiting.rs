//! The one place where tests wait for the real machine: how long, for what, and the message of a
//! failure.
//!
//! Called by the tests of all crates that have real sockets, threads or programs; nothing here runs
//! in the product. A wait has [`DEADLINE`]. When that has passed, a look at the machine decides:
//! while it is shown to be busy (see [`Busy`]), the test waits on in slices of [`SLICE`]; [`CAP`]
//! ends every wait. So a slow machine makes a test slow and not false, and a hang on a machine that
//! has time fails soon. Bounds: [`DEADLINE`], [`SLICE`], [`CAP`].

use std::fmt::Debug;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::{Deref, DerefMut};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long one event may take on a machine that has time for it. Shorter than weir's default
/// time-outs for inactivity (30 s and more), so that a test can't mistake such an end for the
/// event.
pub const DEADLINE: Duration = Duration::from_secs(25);
/// For how long one look at the machine counts once the deadline has passed.
pub const SLICE: Duration = Duration::from_secs(5);
/// The longest that a test waits for one event, however busy the machine is.
pub const CAP: Duration = Duration::from_secs(300);
/// How long a program may run on a machine that has time for it: it may wait for several events.
/// Its cap is in proportion.
pub const PROGRAM: Duration = Duration::from_secs(120);

/// Time between two checks of the awaited event.
const POLL: Duration = Duration::from_millis(2);
/// Longest time in one blocking call.
const BLOCK: Duration = Duration::from_secs(1);

/// From which share of its time the machine counts as busy, percent.
const PRESSURE_PERCENT: u64 = 20;
/// The same for time that the host has taken, of all its cores.
const STEAL_PERCENT: u64 = 5;
/// The same for the time that threads of this process were in the run queue, of the time of one
/// core.
const QUEUE_PERCENT: u64 = 20;

/// The kernel's counts so far. A missing source gives None.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Time in which some thread had no core though it could run, microseconds (`some` of
    /// /proc/pressure/cpu).
    pub pressure_us: Option<u64>,
    /// Time that the host took, and all time, of all cores in ticks (/proc/stat).
    pub steal: Option<(u64, u64)>,
    /// Time that the threads of this process were in the run queue, nanoseconds (`schedstat` of
    /// each).
    pub queue_ns: u64,
}

impl Counts {
    /// The counts of now.
    pub fn now() -> Counts {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Counts {
            pressure_us: pressure_us(&read("/proc/pressure/cpu")),
            steal: steal(&read("/proc/stat")),
            queue_ns: queue_ns(),
        }
    }
}

fn pressure_us(text: &str) -> Option<u64> {
    text.lines().find(|line| line.starts_with("some "))?.split_once("total=")?.1.trim().parse().ok()
}

/// The eighth number of the first line is the stolen time (proc_stat(5)); guests are within the
/// time of users.
fn steal(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let numbers: Vec<u64> =
        line.split_ascii_whitespace().map_while(|word| word.parse().ok()).take(8).collect();
    Some((*numbers.get(7)?, numbers.iter().sum()))
}

fn queue_ns() -> u64 {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return 0 };
    let of_thread = |path: std::path::PathBuf| {
        let text = fs::read_to_string(path.join("schedstat")).ok()?;
        text.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
    };
    threads.flatten().filter_map(|thread| of_thread(thread.path())).sum()
}

/// How busy the machine was between two looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy {
    /// Share of the time in which some thread had to wait for a core, percent.
    pub pressure_percent: Option<u64>,
    /// Share of all cores that the host took, percent.
    pub steal_percent: Option<u64>,
    /// Time of this process in the run queue, percent of one core; 100 and more with several
    /// threads.
    pub queue_percent: u64,
}

impl Busy {
    /// Makes it from the counts at both ends of `time`.
    pub fn between(before: Counts, after: Counts, time: Duration) -> Busy {
        let time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        let since = |now: u64, then: u64| now.saturating_sub(then);
        let pressure = after
            .pressure_us
            .zip(before.pressure_us)
            .map(|(now, then)| since(now, then) * 100 / time_us);
        let steal = after.steal.zip(before.steal).map(|(now, then)| {
            let all = since(now.1, then.1).max(1);
            since(now.0, then.0) * 100 / all
        });
        let queue_percent = since(after.queue_ns, before.queue_ns) / 10 / time_us;
        Busy { pressure_percent: pressure, steal_percent: steal, queue_percent }
    }

    /// Whether a deadline that has passed proves nothing. The run queue counts where the kernel
    /// reports no pressure.
    pub fn is_shown(&self) -> bool {
        let is_pressed = match self.pressure_percent {
            Some(percent) => percent >= PRESSURE_PERCENT,
            None => self.queue_percent >= QUEUE_PERCENT,
        };
        is_pressed || self.steal_percent.is_some_and(|percent| percent >= STEAL_PERCENT)
    }

    fn text(&self) -> String {
        let of = |share: Option<u64>| {
            share.map_or_else(|| "not told".to_owned(), |percent| format!("{percent} %"))
        };
        let (pressure, steal) = (of(self.pressure_percent), of(self.steal_percent));
        format!(
            "pressure on the cores {pressure}, stolen {steal}, own run queue {} %",
            self.queue_percent
        )
    }
}

/// A wait for one event. It starts when it is made.
#[derive(Debug)]
pub struct Waiting {
    begun: Instant,
    patience: Patience,
}

impl Waiting {
    /// Begins a wait for an event.
    pub fn begin() -> Waiting {
        Waiting { begun: Instant::now(), patience: Patience::new(DEADLINE, CAP) }
    }

    /// Begins a wait for the end of a program, which may itself wait for several events.
    pub fn for_program() -> Waiting {
        Waiting { begun: Instant::now(), patience: Patience::new(PROGRAM, CAP * 3) }
    }

    /// Whether the test should continue to wait. Cheap until the deadline is near.
    pub fn goes_on(&mut self) -> bool {
        self.patience.goes_on(self.begun.elapsed(), Counts::now)
    }

    /// Returns how long a blocking call may take before the next call of [`Waiting::goes_on`].
    pub fn block(&self) -> Duration {
        BLOCK
    }

    /// How long the wait was and how busy the machine is.
    pub fn story(&self) -> String {
        self.patience.story(self.begun.elapsed())
    }
}

/// When to give up, without a clock.
#[derive(Debug)]
struct Patience {
    deadline: Duration,
    cap: Duration,
    /// The last look at the machine, and when it was.
    look: Option<(Duration, Counts)>,
    /// Until then the last look counts.
    until: Duration,
    /// The result of the last look.
    busy: Option<Busy>,
}

impl Patience {
    fn new(deadline: Duration, cap: Duration) -> Patience {
        Patience { deadline, cap, look: None, until: deadline, busy: None }
    }

    fn goes_on(&mut self, spent: Duration, counts: impl FnOnce() -> Counts) -> bool {
        let Some((since, before)) = self.look else {
            // The load of the machine just before the deadline decides.
            if spent + SLICE >= self.deadline {
                self.look = Some((spent, counts()));
                // A caller that first calls this after the deadline has measured no share of any
                // time yet.
                self.until = self.until.max(spent + SLICE);
            }
            return true;
        };
        if spent < self.until {
            return true;
        }
        let after = counts();
        let busy = Busy::between(before, after, spent.saturating_sub(since));
        self.busy = Some(busy);
        self.look = Some((spent, after));
        self.until = spent + SLICE;
        busy.is_shown() && spent < self.cap
    }

    fn story(&self, spent: Duration) -> String {
        let spent = spent.as_secs();
        match self.busy {
            Some(busy) if busy.is_shown() => {
                format!("waited for {spent} s on a busy machine ({})", busy.text())
            }
            Some(busy) => {
                format!("waited for {spent} s on a machine that had time ({})", busy.text())
            }
            None => format!("waited for {spent} s"),
        }
    }
}

/// Repeats `check` until it is true.
///
/// # Panics
/// It is not true in time.
#[track_caller]
pub fn eventually(what: &str, check: impl FnMut() -> bool) {
    eventually_or(what, check, String::new);
}

/// Does the same; a failure also reports `state`.
///
/// # Panics
/// As [`eventually`].
#[track_caller]
pub fn eventually_or(what: &str, mut check: impl FnMut() -> bool, state: impl FnOnce() -> String) {
    let mut waiting = Waiting::begin();
    while !check() {
        assert!(waiting.goes_on(), "not in time: {what}; {}\n{}", waiting.story(), state());
        std::thread::park_timeout(POLL);
    }
}

/// Returns what comes by a channel.
///
/// # Errors
/// All senders are gone, or nothing came in time.
pub fn received<T>(from: &Receiver<T>) -> Result<T, RecvTimeoutError> {
    let mut waiting = Waiting::begin();
    loop {
        match from.recv_timeout(BLOCK) {
            Err(RecvTimeoutError::Timeout) if waiting.goes_on() => {}
            done => return done,
        }
    }
}

/// A socket whose calls can be bounded in time.
pub trait Bounded: Read + Write + Debug {
    /// Bounds each read and each write.
    ///
    /// # Errors
    /// The system refuses an option.
    fn bound(&self, read: Duration, write: Duration) -> io::Result<()>;

    /// Returns what the kernel knows of its two ends.
    fn ends(&self) -> String;
}

impl Bounded for TcpStream {
    fn bound(&self, read: Duration, write: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(read))?;
        self.set_write_timeout(Some(write))
    }

    fn ends(&self) -> String {
        let (Ok(own), Ok(peer)) = (self.local_addr(), self.peer_addr()) else {
            return "not connected".to_owned();
        };
        let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
        let of =
            |from, to| socket_in(&table, from, to).unwrap_or_else(|| "no socket here".to_owned());
        format!("own end {own}: {}; other end {peer}: {}", of(own, peer), of(peer, own))
    }
}

impl Bounded for UnixStream {
    fn bound(&self, read: Duration, write: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(read))?;
        self.set_write_timeout(Some(write))
    }

    fn ends(&self) -> String {
        "a unix socket".to_owned()
    }
}

/// Returns the bound of one call that can't be repeated: [`DEADLINE`], or [`CAP`] where the machine
/// has been busy for the last ten seconds.
pub fn patience_now() -> Duration {
    let share = tenths(&fs::read_to_string("/proc/pressure/cpu").unwrap_or_default());
    if share.is_some_and(|percent| percent >= PRESSURE_PERCENT) { CAP } else { DEADLINE }
}

/// The share of the last ten seconds in which some thread had to wait for a core, percent.
fn tenths(pressure: &str) -> Option<u64> {
    let share = pressure.strip_prefix("some avg10=")?.split('.').next()?;
    share.parse().ok()
}

/// Bounds each read and write of a socket by [`patience_now`]: for tests that use it directly, or
/// pass it on.
///
/// # Panics
/// The system refuses a socket option.
pub fn bounded(socket: &impl Bounded) {
    let patience = patience_now();
    socket.bound(patience, patience).expect("options of every socket");
}

/// State and queues of the socket from here to there in a table of /proc/net/tcp (proc_net_tcp(5)).
fn socket_in(table: &str, from: SocketAddr, to: SocketAddr) -> Option<String> {
    const STATES: [&str; 12] = [
        "?",
        "established",
        "SYN sent",
        "SYN received",
        "FIN wait 1",
        "FIN wait 2",
        "time wait",
        "closed",
        "close wait",
        "last ACK",
        "listening",
        "closing",
    ];
    let (from, to) = (written(from)?, written(to)?);
    let line = table.lines().find(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        words.next() == Some(&from) && words.next() == Some(&to)
    })?;
    let mut words = line.split_ascii_whitespace().skip(3);
    let state = usize::from_str_radix(words.next()?, 16).ok()?;
    let (unsent, unread) = words.next()?.split_once(':')?;
    let [unsent, unread] =
        [unsent, unread].map(|digits| u64::from_str_radix(digits, 16).unwrap_or_default());
    let state = STATES.get(state).copied().unwrap_or("?");
    Some(format!("{state}, {unsent} bytes unacknowledged, {unread} unread"))
}

/// An IPv4 address as that table has it.
fn written(address: SocketAddr) -> Option<String> {
    let SocketAddr::V4(address) = address else { return None };
    Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port()))
}

/// A socket on which every read waits as [`Waiting`] does, and a write for [`patience_now`]. A read
/// that gives up fails with [`ErrorKind::TimedOut`] and reports how long it waited and what the
/// kernel knows of both ends.
#[derive(Debug)]
pub struct Patient<S: Bounded>(S);

/// Makes a socket patient.
///
/// # Panics
/// The system refuses a socket option.
pub fn patient<S: Bounded>(socket: S) -> Patient<S> {
    socket.bound(BLOCK, patience_now()).expect("options of every socket");
    Patient(socket)
}

impl<S: Bounded> Patient<S> {
    /// The socket; its reads are short ones.
    pub fn into_inner(self) -> S {
        self.0
    }
}

impl Patient<TcpStream> {
    /// Another descriptor of the same socket, as patient.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn try_clone(&self) -> io::Result<Patient<TcpStream>> {
        self.0.try_clone().map(Patient)
    }
}

impl<S: Bounded> Deref for Patient<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.0
    }
}

impl<S: Bounded> DerefMut for Patient<S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.0
    }
}

impl<S: Bounded> Read for Patient<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut waiting = Waiting::begin();
        loop {
            match self.0.read(into) {
                // A call with a bound is interrupted when this process was stopped and continues
                // (signal(7)).
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !waiting.goes_on() {
                        let text = format!("{}; {}", waiting.story(), self.0.ends());
                        return Err(io::Error::new(ErrorKind::TimedOut, text));
                    }
                }
                done => return done,
            }
        }
    }
}

impl<S: Bounded> Write for Patient<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests;
