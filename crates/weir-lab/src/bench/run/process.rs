//! Processes of a benchmark: started so that they end with us, ended by their pid, and read through
//! /proc.
//!
//! Called by everything that starts a process or reads one. Bound: nothing outlives its
//! [`Process`], and the kernel ends what we can't (when the harness itself is killed) through the
//! parent-death signal that `setpriv` sets.

use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process};

pub(super) use crate::machine::command_line;

/// How long a process may take to listen, and to end: long, because other programs may use the
/// machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(10);
/// Clock ticks a second in /proc (USER_HZ): fixed at 100 on all Linux architectures that Rust runs
/// on.
const TICK_US: u64 = 10_000;

/// A child process that ends when this is dropped.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    name: String,
    /// The program and its arguments.
    words: Vec<String>,
    log: PathBuf,
}

impl Process {
    /// Starts a program; both of its outputs go to `log`.
    ///
    /// # Errors
    /// The program isn't there, or the log can't be written.
    pub(super) fn start(program: &Path, arguments: &[&str], log: &Path) -> io::Result<Process> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let output = File::create(log)?;
        let mut command = bound_command(program);
        command.args(arguments);
        let words = words(&command);
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
        Ok(Process { child, name, words, log: log.to_owned() })
    }

    /// Waits until something listens on the address.
    ///
    /// # Errors
    /// The process ended (with its output), or nothing listens within 60 s.
    pub(super) fn await_listening(&mut self, address: SocketAddr) -> io::Result<()> {
        self.await_that(&format!("listen on {address}"), || {
            TcpStream::connect_timeout(&address, LOOK).is_ok()
        })
    }

    /// Waits until `is_so` holds. `what` completes "it doesn't ...".
    ///
    /// # Errors
    /// The process ended (with its output), or it isn't so within 60 s.
    pub(super) fn await_that(&mut self, what: &str, is_so: impl Fn() -> bool) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!(
                    "{} ended at its start ({status}): {}",
                    self.name,
                    self.said()
                )));
            }
            if is_so() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(io::Error::other(format!("{} doesn't {what}", self.name)));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until it has done what it was started for.
    ///
    /// # Errors
    /// It failed (with its output), or is not done within 60 s.
    pub(super) fn await_success(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    let line = self.command_line();
                    return Err(io::Error::other(format!(
                        "{line} failed ({status}): {}",
                        self.said().trim()
                    )));
                }
                None if Instant::now() > deadline => {
                    return Err(io::Error::other(format!("{} doesn't end", self.command_line())));
                }
                None => std::thread::sleep(LOOK),
            }
        }
    }

    /// Returns its output.
    pub(super) fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns its command line, as it would be typed.
    pub(super) fn command_line(&self) -> String {
        command_line(&self.words)
    }

    /// Returns the configuration that it was started with; None: there is none.
    pub(super) fn configuration(&self) -> Option<String> {
        let is_configuration =
            |word: &&String| [".conf", ".json", ".kdl"].iter().any(|ending| word.ends_with(ending));
        fs::read_to_string(self.words.iter().find(is_configuration)?).ok()
    }

    /// Its process number.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Process numbers of it and all its descendants.
    pub(super) fn family(&self) -> Vec<u32> {
        family(self.id())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A child that is not reaped yet keeps its number, so this can't hit another process.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(LOOK);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the number of descriptors that a process may have.
pub(super) fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20)
}

/// Returns a command whose process gets SIGTERM when we die, however we die.
pub(super) fn bound_command(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(program);
    command
}

/// Returns the program of a [`bound_command`] and its arguments.
pub(super) fn words(command: &Command) -> Vec<String> {
    let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
    words.skip_while(|word| word != "--").skip(1).collect()
}

/// `pid` and its descendants. nginx's workers are children of its master.
fn family(pid: u32) -> Vec<u32> {
    let pairs: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: u32| Some((pid, stat_field(&pid.to_string(), 4)?.try_into().ok()?)))
        .collect();
    let mut members = vec![pid];
    let mut at = 0;
    while at < members.len() {
        let parent = members[at];
        members.extend(pairs.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    members
}

/// A field of /proc/PID/stat by its number in proc(5), 4 or more.
fn stat_field(pid: &str, number: usize) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain spaces; the third field follows the last parenthesis.
    let (_, rest) = text.rsplit_once(") ")?;
    rest.split(' ').nth(number - 3)?.parse().ok()
}

/// User and system time of all threads of the processes, microseconds.
///
/// The scheduler's own count of each thread is exact to the nanosecond; the ticks of `stat` are
/// used where the kernel keeps no such count. The former misses threads that ended in between: none
/// of ours do.
pub(super) fn cpu_us(pids: &[u32]) -> u64 {
    pids.iter()
        .map(|pid| exact_cpu_us(*pid).filter(|us| *us > 0).unwrap_or_else(|| tick_cpu_us(*pid)))
        .sum()
}

fn exact_cpu_us(pid: u32) -> Option<u64> {
    let mut total_ns = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        total_ns += text.split(' ').next()?.parse::<u64>().ok()?;
    }
    Some(total_ns / 1000)
}

/// Returns the user and system time of each thread whose name begins with `name`, microseconds, in
/// the order of their names.
pub(super) fn threads_us(pid: u32, name: &str) -> Vec<u64> {
    let thread = |task: fs::DirEntry| {
        let its = fs::read_to_string(task.path().join("comm"))
            .ok()
            .filter(|its| its.starts_with(name))?;
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        Some((its, text.split(' ').next()?.parse::<u64>().ok()? / 1000))
    };
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut threads: Vec<(String, u64)> = tasks.filter_map(thread).collect();
    threads.sort();
    threads.into_iter().map(|(_, us)| us).collect()
}

fn tick_cpu_us(pid: u32) -> u64 {
    let pid = pid.to_string();
    let ticks = stat_field(&pid, 14).unwrap_or(0) + stat_field(&pid, 15).unwrap_or(0);
    ticks * TICK_US
}

/// User and system time of children that ended and were waited for, microseconds.
pub(super) fn reaped_cpu_us() -> u64 {
    (stat_field("self", 16).unwrap_or(0) + stat_field("self", 17).unwrap_or(0)) * TICK_US
}

/// Proportional set size of the processes in bytes: private memory, and a fair share of what is
/// shared.
pub(super) fn pss_bytes(pids: &[u32]) -> u64 {
    pids.iter().map(|pid| kib_line(&format!("/proc/{pid}/smaps_rollup"), "Pss:") * 1024).sum()
}

/// Returns the part of [`pss_bytes`] that is not mapped from a file, in bytes: the memory that the
/// processes have allocated. The rest is mostly the text of the program, and their share of it
/// changes when the same program is started or ended elsewhere.
pub(super) fn own_bytes(pids: &[u32]) -> u64 {
    let of = |pid: &u32, key: &str| kib_line(&format!("/proc/{pid}/smaps_rollup"), key) * 1024;
    pids.iter().map(|pid| of(pid, "Pss_Anon:") + of(pid, "Pss_Shmem:")).sum()
}

/// Resident set size of the processes in bytes.
pub(super) fn resident_bytes(pids: &[u32]) -> u64 {
    pids.iter().map(|pid| kib_line(&format!("/proc/{pid}/status"), "VmRSS:") * 1024).sum()
}

/// The highest resident set size that the processes have had, added up, in bytes.
pub(super) fn peak_bytes(pids: &[u32]) -> u64 {
    pids.iter().map(|pid| kib_line(&format!("/proc/{pid}/status"), "VmHWM:") * 1024).sum()
}

/// Returns unreclaimable memory of the kernel, of the whole machine, whatever uses it
/// (`SUnreclaim`, proc_meminfo(5)), in bytes.
pub(super) fn kernel_bytes() -> u64 {
    kib_line("/proc/meminfo", "SUnreclaim:") * 1024
}

/// The number of a `Key:   123 kB` line; 0 when it isn't there.
fn kib_line(path: &str, key: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Ticks of all cores since boot.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Machine {
    total: u64,
    idle: u64,
    stolen: u64,
}

impl Machine {
    /// Reads /proc/stat.
    pub(super) fn now() -> Machine {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let ticks: Vec<u64> =
            line.split_whitespace().skip(1).filter_map(|number| number.parse().ok()).collect();
        let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
        // user nice system idle iowait irq softirq steal; guest time is within user.
        Machine { total: (0..8).map(at).sum(), idle: at(3) + at(4), stolen: at(7) }
    }

    /// Returns the time since `earlier` in which cores were neither idle nor taken by the host,
    /// microseconds: of all cores together.
    pub(super) fn busy_us_since(self, earlier: Machine) -> f64 {
        let of = |read: fn(&Machine) -> u64| read(&self).saturating_sub(read(&earlier));
        let idle = of(|machine| machine.idle) + of(|machine| machine.stolen);
        (of(|machine| machine.total).saturating_sub(idle) * TICK_US) as f64
    }

    /// Shares of the time since `earlier` that all cores together were idle, and that the host took
    /// away.
    pub(super) fn shares_since(self, earlier: Machine) -> (f64, f64) {
        let total = (self.total - earlier.total).max(1) as f64;
        ((self.idle - earlier.idle) as f64 / total, (self.stolen - earlier.stolen) as f64 / total)
    }
}

/// Ticks of a core since boot. Idle time is exact, the rest is sampled.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CoreTicks {
    idle: u64,
    softirq: u64,
    stolen: u64,
}

impl CoreTicks {
    /// Reads /proc/stat.
    pub(super) fn now(core: usize) -> CoreTicks {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let name = format!("cpu{core} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or_default();
        let ticks: Vec<u64> =
            line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
        CoreTicks { idle: at(3) + at(4), softirq: at(5) + at(6), stolen: at(7) }
    }

    /// Returns the shares of `time`, the time since `earlier`, in which the core was neither idle
    /// nor taken by the host, and in which it handled interrupts.
    pub(super) fn shares_since(self, earlier: CoreTicks, time: Duration) -> (f64, f64) {
        let share = |of: fn(&CoreTicks) -> u64| {
            (of(&self).saturating_sub(of(&earlier)) * TICK_US) as f64 / time.as_micros() as f64
        };
        (
            (1.0 - share(|core| core.idle) - share(|core| core.stolen)).max(0.0),
            share(|core| core.softirq),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_and_ended_with_its_family() {
        let log = std::env::temp_dir().join(format!("weir-lab-process-{}", std::process::id()));
        let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 60 & wait";
        let process = Process::start(Path::new("/bin/sh"), &["-c", script], &log).unwrap();
        let deadline = Instant::now() + PATIENCE;
        let family = loop {
            let family = process.family();
            if family.len() >= 2 || Instant::now() > deadline {
                break family;
            }
            std::thread::yield_now();
        };
        assert_eq!(family.len(), 2, "the shell and its child");
        assert!(cpu_us(&family) > 0, "counting to 20,000 takes time");
        assert!(own_bytes(&family) > 0 && own_bytes(&family[..1]) < pss_bytes(&family[..1]));
        assert!(pss_bytes(&family) > 0 && resident_bytes(&family) >= pss_bytes(&family[..1]));
        let shell = family[0];
        drop(process);
        assert!(!Path::new(&format!("/proc/{shell}")).exists(), "ended and reaped");
        let _ = fs::remove_file(log);
        // The sleeping grandchild is not our child, so we cannot wait for it; it gets our signal
        // here.
        let sleeper = i32::try_from(family[1]).ok().and_then(Pid::from_raw);
        let _ = kill_process(sleeper.unwrap(), Signal::TERM);
    }

    #[test]
    fn a_command_line_can_be_typed_again() {
        let mut command = bound_command(Path::new("weir"));
        command.args(["bomb", "--class=a: to=127.0.0.1:80", "it's", ""]);
        assert_eq!(
            command_line(&words(&command)),
            r"weir bomb '--class=a: to=127.0.0.1:80' 'it'\''s' ''"
        );
    }

    #[test]
    fn what_a_core_was_not_idle_it_was_busy() {
        let (earlier, later) = (
            CoreTicks { idle: 100, ..CoreTicks::default() },
            CoreTicks { idle: 150, softirq: 10, stolen: 20 },
        );
        let (busy, softirq) = later.shares_since(earlier, Duration::from_secs(1));
        assert!((busy - 0.3).abs() < 1e-9 && (softirq - 0.1).abs() < 1e-9, "{busy} {softirq}");
    }

    #[test]
    fn what_all_cores_were_not_idle_they_were_busy() {
        let (earlier, later) = (
            Machine { total: 100, idle: 50, stolen: 0 },
            Machine { total: 300, idle: 150, stolen: 20 },
        );
        assert_eq!(later.busy_us_since(earlier), 800_000.0);
    }

    #[test]
    fn the_machine_has_done_something() {
        let (idle, stolen) = Machine::now().shares_since(Machine::default());
        assert!((0.0..=1.0).contains(&idle) && (0.0..=1.0).contains(&stolen));
    }
}
