//! The old program's part of an upgrade: starts the new program, gives it the listening sockets,
//! waits until it is ready, and lets it go.
//!
//! Called by the thread that does reloads (`reload`), one job after another. Until the new program
//! accepts clients nothing in the old one changes, so a failure costs nothing: dropping
//! [`Newcomer`] ends the new program. Bounds: `timeout` of `upgrade`, [`GO_MAX`], [`START_MAX`].

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use weir_proxy::plan::{Location, Plan};
use weir_worker::{Handle, Lent};

use super::orders::{self, Ordered};
use super::wire::{Channel, DESCRIPTORS_MAX, Heard, ToNew, ToOld, VERSION};
use super::{CHANNEL, Program, VARIABLE_START};
use crate::admin::Lent as LentDoors;
use crate::failure::Failure;
use crate::snapshot::Snapshots;

/// How long a new program that is ready may take to accept clients, or an old one to stop.
pub(super) const GO_MAX: Duration = Duration::from_secs(10);
/// How long the first of the two processes that make a new program may take to end after the second
/// has sent a message.
const START_MAX: Duration = Duration::from_secs(5);
/// How often to check whether the old program is asked to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Why an upgrade is cancelled although nothing is wrong with the new program.
const TOLD_TO_END: &str = "this weir is shutting down";

/// Starts new programs that replace this program.
#[derive(Debug)]
pub(crate) struct Upgrader {
    program: Program,
    /// The sockets besides those of the workers.
    doors: LentDoors,
    snapshots: Snapshots,
}

/// What a new program has taken over.
#[derive(Debug, Clone)]
pub(crate) struct Handed {
    /// Its process number.
    pub(crate) pid: u32,
    /// Listeners, by their names in the configuration.
    pub(crate) listeners: Vec<Location>,
    /// The metrics listener.
    pub(crate) metrics: bool,
    /// The admin socket.
    pub(crate) admin: bool,
}

impl Upgrader {
    /// For a weir that was started like this.
    pub(crate) fn new(program: Program, doors: LentDoors, snapshots: Snapshots) -> Upgrader {
        Upgrader { program, doors, snapshots }
    }

    /// Has a new program take over. `may_commit` is called when the new program is ready. It
    /// returns false if this program is ending, because its end would remove files of sockets that
    /// both have. `hand_over` is called when the new program accepts clients, and returns when this
    /// program no longer does.
    ///
    /// # Errors
    /// Why the upgrade failed; this program still has everything.
    pub(crate) fn upgrade(
        &mut self,
        job: u64,
        workers: &Handle,
        plan: &Plan,
        may_commit: impl FnOnce() -> bool,
        hand_over: impl FnOnce(Handed),
    ) -> Result<(), Failure> {
        if std::process::id() == 1 {
            let why = "it is process 1 of its container, which ends when this process does; start \
                another container";
            return Err(failed(why));
        }
        self.snapshots.write_before_upgrade();
        let timeout = Duration::from_micros(plan.upgrade.timeout_us);
        let end = Instant::now() + timeout;
        let unknown = || failed("no worker reports which servers are drained or disabled");
        let orders = orders::read(plan, workers).ok_or_else(unknown)?;
        let lent = workers
            .lend()
            .map_err(|error| failed(&format!("cannot lend the listeners: {error}")))?;
        let mut newcomer = Newcomer::start(&self.program)?;
        newcomer
            .give(job, (workers, &lent), &self.doors, orders, timeout)
            .map_err(|error| newcomer.why_not(&error))?;
        drop(lent);
        let handed = newcomer.wait_until_ready(workers, timeout, end)?;
        if !may_commit() {
            return Err(failed(TOLD_TO_END));
        }
        self.snapshots.set_successor(true);
        newcomer.accept().inspect_err(|_| self.snapshots.set_successor(false))?;
        self.doors = LentDoors::default();
        hand_over(handed);
        newcomer.let_go();
        Ok(())
    }
}

/// A new program that is not in charge yet. Dropping this ends it.
struct Newcomer {
    channel: Channel,
    /// The process that starts the program and then ends. So the program becomes a child of the
    /// service manager, which notices when it ends.
    starter: Child,
    /// A handle to end the program; None: unknown.
    itself: Option<OwnedFd>,
    is_free: bool,
}

impl Newcomer {
    fn start(program: &Program) -> Result<Newcomer, Failure> {
        let (channel, theirs) = Channel::pair().map_err(|error| failed(&error.to_string()))?;
        let mut command = Command::new(&program.path);
        command.args(&program.arguments).env(CHANNEL, VARIABLE_START).stdin(Stdio::from(theirs));
        for of_this_process in ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"] {
            command.env_remove(of_this_process);
        }
        let starter = command.spawn();
        let starter = starter.map_err(|error| {
            failed(&format!("cannot start {}: {error}", program.path.display()))
        })?;
        Ok(Newcomer { channel, starter, itself: None, is_free: false })
    }

    /// Gives the program everything that it may take over.
    fn give(
        &self,
        job: u64,
        (workers, lent): (&Handle, &[Lent]),
        doors: &LentDoors,
        orders: Vec<Ordered>,
        timeout: Duration,
    ) -> io::Result<()> {
        self.channel.set_patience(timeout)?;
        self.channel.say(&ToNew::Begin { version: VERSION, pid: std::process::id(), job }, &[])?;
        let mut seen = HashSet::new();
        let mut listeners: Vec<(&Location, bool, Vec<BorrowedFd<'_>>)> = Vec::new();
        for Lent { address, stays_open, socket } in lent {
            // Several workers may share a socket.
            if !seen.insert(rustix::fs::fstat(socket)?.st_ino) {
                continue;
            }
            match listeners.iter_mut().find(|(of, ..)| *of == address) {
                Some((.., sockets)) => sockets.push(socket.as_fd()),
                None => listeners.push((address, *stays_open, vec![socket.as_fd()])),
            }
        }
        for (address, stays_open, sockets) in listeners {
            let file = match address {
                Location::Unix(path) => workers.file_at(path),
                Location::Network(_) | Location::Destination => None,
            };
            for sockets in sockets.chunks(DESCRIPTORS_MAX) {
                self.channel.say(
                    &ToNew::Listener { address: address.to_string(), stays_open, file },
                    sockets,
                )?;
            }
        }
        if let Some((address, socket)) = &doors.metrics {
            self.channel.say(&ToNew::Metrics { address: *address }, &[socket.as_fd()])?;
        }
        if let Some((path, socket)) = &doors.admin {
            self.channel.say(&ToNew::Admin { path: path.clone() }, &[socket.as_fd()])?;
        }
        for ordered in orders {
            self.channel.say(&ToNew::Ordered(ordered), &[])?;
        }
        self.channel.say(&ToNew::All, &[])
    }

    /// Waits until the program is ready, and returns what it will take over.
    fn wait_until_ready(
        &mut self,
        workers: &Handle,
        timeout: Duration,
        end: Instant,
    ) -> Result<Handed, Failure> {
        let mut why = None;
        let mut listeners = Vec::new();
        loop {
            if workers.is_leaving() || workers.is_ending() {
                return Err(failed(TOLD_TO_END));
            }
            let Some(left) = end.checked_duration_since(Instant::now()) else {
                let why = why.map_or_else(String::new, |why| format!(": {why}"));
                let text =
                    format!("the new program was not ready within {timeout:?}{why}; weir ended it");
                return Err(failed(&text));
            };
            match self.hear(left.min(LOOK_EVERY))? {
                None | Some(ToOld::Accepts) => {}
                Some(ToOld::Started { pid }) => self.know(pid),
                Some(ToOld::Takes { address }) => listeners.extend(Location::read(&address)),
                Some(ToOld::Waits { why: reason }) => why = Some(reason),
                Some(ToOld::Ready { pid, metrics, admin }) => {
                    self.know(pid);
                    return Ok(Handed { pid, listeners, metrics, admin });
                }
                Some(ToOld::Fails { code, text }) => return Err(Failure::of(code, text)),
            }
        }
    }

    /// Notes the process number of the program.
    fn know(&mut self, pid: u32) {
        let pid = Pid::from_raw(pid.cast_signed()).filter(|_| self.itself.is_none());
        // A program that has ended already needs no handle.
        self.itself = self.itself.take().or_else(|| pidfd_open(pid?, PidfdFlags::empty()).ok());
    }

    /// Lets the program accept clients, and waits for that.
    fn accept(&mut self) -> Result<(), Failure> {
        self.channel.say(&ToNew::Go, &[]).map_err(|error| self.why_not(&error))?;
        let end = Instant::now() + GO_MAX;
        while Instant::now() < end {
            match self.hear(LOOK_EVERY)? {
                Some(ToOld::Accepts) => return Ok(()),
                Some(ToOld::Fails { code, text }) => return Err(Failure::of(code, text)),
                _ => {}
            }
        }
        Err(failed("the new program was ready and did not accept clients; weir ended it"))
    }

    /// Puts the program in charge.
    fn let_go(mut self) {
        self.is_free = true;
        // It may have ended already, which is up to its service manager now.
        let _ = self.channel.say(&ToNew::Yours, &[]);
    }

    /// Returns the next message of the program; None: no message within `patience`.
    fn hear(&mut self, patience: Duration) -> Result<Option<ToOld>, Failure> {
        match self.channel.hear(patience) {
            Ok(Heard::Message(message, _)) => Ok(Some(message)),
            Ok(Heard::Nothing) => Ok(None),
            Ok(Heard::Ended) => Err(self.ended()),
            Err(error) => {
                Err(failed(&format!("cannot parse the messages of the new program: {error}")))
            }
        }
    }

    /// Returns the reason that the program gave before the channel failed.
    fn why_not(&mut self, error: &io::Error) -> Failure {
        if error.kind() == io::ErrorKind::WouldBlock {
            return failed("the new program does not accept the handed-over state; weir ended it");
        }
        while let Ok(Heard::Message(message, _)) = self.channel.hear(Duration::ZERO) {
            if let ToOld::Fails { code, text } = message {
                return Failure::of(code, text);
            }
        }
        self.ended()
    }

    fn ended(&mut self) -> Failure {
        let how = match self.wait_for_starter(START_MAX) {
            Some(status) if !status.success() => format!(" ({status})"),
            _ => String::new(),
        };
        failed(&format!(
            "the new program ended before it was ready{how}\n  help: see its messages in the log \
                of this weir"
        ))
    }

    fn wait_for_starter(&mut self, patience: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + patience;
        loop {
            match self.starter.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
                _ => return None,
            }
        }
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        if !self.is_free {
            // The number may be in an unread message.
            while let Ok(Heard::Message(message, _)) = self.channel.hear(Duration::ZERO) {
                if let ToOld::Started { pid } = message {
                    self.know(pid);
                }
            }
            // An unknown program notices the failure on its side: see `Predecessor::is_gone`.
            let _ = self.itself.as_ref().map(|handle| pidfd_send_signal(handle, Signal::KILL));
        }
        // It has ended, or is itself the program: one that does not know this way of starting.
        if self.wait_for_starter(if self.is_free { START_MAX } else { Duration::ZERO }).is_none() {
            let _ = self.starter.kill();
            let _ = self.starter.wait();
        }
    }
}

/// Reports the failure to the log and the caller.
fn failed(why: &str) -> Failure {
    Failure::Running(format!("weir: upgrade failed: {why}\n"))
}
