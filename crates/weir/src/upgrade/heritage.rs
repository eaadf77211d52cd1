//! The new program's part of an upgrade: the sockets from its predecessor or a service manager, and
//! its messages to the predecessor.
//!
//! Called by `main` and `run`. A new program is started twice: the first process ([`start_again`])
//! starts the second one and ends, so that the second one becomes a child of the service manager.
//! If the predecessor ends before it has handed over, the new program serves alone. If the
//! predecessor lives but closes the channel, it has abandoned the new program. Bounds:
//! [`BEGIN_MAX`], and the patience of the predecessor.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use weir_config::is_same_place;
use weir_io::{adopt_listener, take_inherited};
use weir_proxy::plan::{ListenerPlan, Location, Plan, ServerPlan};
use weir_worker::{Handle, Inherited};

use super::orders::{self, Ordered};
use super::successor::GO_MAX;
use super::wire::{Channel, Heard, MESSAGE_BYTES_MAX, ToNew, ToOld, VERSION};
use super::{CHANNEL, VARIABLE_GO, VARIABLE_START};
use crate::admin::Lent;
use crate::failure::Failure;
use crate::log::Event;

/// How long the old program may take to send everything.
const BEGIN_MAX: Duration = Duration::from_secs(60);
/// How long a process may take to end after it has closed its descriptors.
const END_MAX: Duration = Duration::from_secs(2);
/// How often to check whether the new program is ready.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Listening sockets that were opened before this program started.
#[derive(Debug, Default)]
pub(crate) struct Heritage {
    listeners: Vec<Sockets>,
    /// The metrics listener, with its name in the configuration.
    pub(crate) metrics: Option<(SocketAddr, OwnedFd)>,
    /// The admin socket and its place.
    pub(crate) admin: Option<(PathBuf, UnixListener)>,
    /// Orders of operators for servers.
    orders: Vec<Ordered>,
    /// The sender; None: a service manager, or there were no sockets.
    pub(crate) predecessor: Option<Predecessor>,
}

/// The sockets of one listener.
#[derive(Debug)]
struct Sockets {
    address: Location,
    stays_open: bool,
    file: Option<(u64, u64)>,
    sockets: Vec<OwnedFd>,
}

/// The weir that this program takes over from.
#[derive(Debug, Clone)]
pub(crate) struct Predecessor {
    /// Its process number.
    pub(crate) pid: u32,
    /// The job there that started this program.
    pub(crate) job: u64,
    /// Signals when it ends; None: it ended before this program began.
    process: Arc<Option<OwnedFd>>,
    /// None: the predecessor needs no more messages.
    channel: Arc<Mutex<Option<Channel>>>,
}

/// The predecessor's addresses besides those for clients.
#[derive(Debug)]
pub(crate) struct Given {
    admin: Option<PathBuf>,
    metrics: Option<SocketAddr>,
}

/// Which of these addresses this program takes over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken {
    admin: bool,
    metrics: bool,
}

impl Given {
    /// Returns which of them are among these.
    pub(crate) fn of(&self, doors: &Lent) -> Taken {
        let is_same = |path: &PathBuf| doors.admin.as_ref().is_some_and(|(of, _)| of == path);
        Taken {
            admin: self.admin.as_ref().is_some_and(is_same),
            metrics: self.metrics.is_some_and(|address| {
                doors.metrics.as_ref().is_some_and(|(of, _)| *of == address)
            }),
        }
    }
}

/// Starts the second process if this is the first of the two processes of a new program. Returns
/// its exit code then.
pub(crate) fn start_again() -> Option<ExitCode> {
    let channel = given(VARIABLE_START)?;
    let mut command =
        Command::new(std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into()));
    let mut words = std::env::args_os();
    command.arg0(words.next().unwrap_or_default()).args(words).env(CHANNEL, VARIABLE_GO);
    let (message, code) = match command.spawn() {
        Ok(child) => (ToOld::Started { pid: child.id() }, ExitCode::SUCCESS),
        Err(error) => {
            let text =
                format!("weir: upgrade failed: the new program cannot start itself: {error}\n");
            (ToOld::Fails { code: 1, text }, ExitCode::FAILURE)
        }
    };
    // A predecessor that has ended does not wait for it.
    let _ = channel.say(&message, &[]);
    Some(code)
}

/// Returns the channel on standard input, if the environment says so.
fn given(word: &str) -> Option<Channel> {
    if std::env::var_os(CHANNEL).is_none_or(|value| value != word) {
        return None;
    }
    Channel::given(rustix::stdio::stdin().try_clone_to_owned().ok()?)
}

impl Heritage {
    /// Receives the sockets that this process inherits.
    ///
    /// # Errors
    /// The old program sends something unknown.
    pub(crate) fn receive() -> Result<Heritage, Failure> {
        let Some(channel) = given(VARIABLE_GO) else { return Ok(Heritage::of_service_manager()) };
        // The channel has another descriptor now, so that it is not mistaken for input.
        if let Ok(nothing) = std::fs::File::open("/dev/null") {
            let _ = rustix::stdio::dup2_stdin(&nothing);
        }
        let mut heritage = Heritage::default();
        let mut begun = None;
        let end = Instant::now() + BEGIN_MAX;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            let heard = channel.hear(left).map_err(|error| strange(&error.to_string()))?;
            let Heard::Message(message, mut descriptors) = heard else { break };
            match message {
                ToNew::Begin { version: VERSION, pid, job } => begun = Some((pid, job)),
                ToNew::Begin { version, .. } => {
                    return Err(strange(&format!("it uses protocol version {version}")));
                }
                ToNew::Listener { address, stays_open, file } => match Location::read(&address) {
                    Some(address) => heritage.add(address, (stays_open, file), descriptors),
                    None => return Err(strange(&format!("it listens on `{address}`"))),
                },
                ToNew::Metrics { address } => {
                    heritage.metrics = descriptors.pop().map(|socket| (address, socket))
                }
                ToNew::Admin { path } => {
                    heritage.admin = descriptors.pop().map(|socket| (path, socket.into()))
                }
                ToNew::Ordered(ordered) => heritage.orders.push(ordered),
                ToNew::All | ToNew::Go | ToNew::Yours => {
                    let (pid, job) = begun.ok_or_else(|| strange("it did not identify itself"))?;
                    let process = Pid::from_raw(pid.cast_signed());
                    let process = process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
                    let (process, channel) =
                        (Arc::new(process), Arc::new(Mutex::new(Some(channel))));
                    heritage.predecessor = Some(Predecessor { pid, job, process, channel });
                    return Ok(heritage);
                }
            }
        }
        Err(strange("it stopped responding"))
    }

    /// Takes the sockets of a service manager, which keeps them open.
    fn of_service_manager() -> Heritage {
        let mut heritage = Heritage::default();
        for socket in take_inherited() {
            match place_of(&socket) {
                Some(address) => heritage.add(address, (true, None), vec![socket]),
                None => Event::SocketUnused
                    .says(
                        "a socket of the service manager is neither a TCP socket nor a Unix \
                            socket with a path; closing it",
                    )
                    .log(),
            }
        }
        heritage
    }

    fn add(
        &mut self,
        address: Location,
        (stays_open, file): (bool, Option<(u64, u64)>),
        more: Vec<OwnedFd>,
    ) {
        match self.listeners.iter_mut().find(|listener| listener.address == address) {
            Some(listener) => listener.sockets.extend(more),
            None => self.listeners.push(Sockets { address, stays_open, file, sockets: more }),
        }
    }

    /// Returns the predecessor's addresses besides listeners.
    pub(crate) fn doors(&self) -> Given {
        Given {
            admin: self.admin.as_ref().map(|(path, _)| path.clone()),
            metrics: self.metrics.as_ref().map(|(address, _)| *address),
        }
    }

    /// Returns the servers that were added to the upstreams of this plan, which was just compiled.
    /// Warns about those that cannot be added, with the reason.
    pub(crate) fn temporary(&self, written: &Plan) -> BTreeMap<String, Vec<ServerPlan>> {
        let (all, lost) = orders::temporary(written, &self.orders);
        lost.iter().for_each(|lost| Event::OrderLost.says(lost).log());
        all
    }

    /// Returns the plan with the weights that operators ordered.
    pub(crate) fn weigh(&self, plan: Plan) -> Plan {
        orders::weigh(plan, &self.orders)
    }

    /// Gives workers the other orders.
    pub(crate) fn carry_out_orders(&self, plan: &Plan, workers: &Handle) {
        orders::carry_out(plan, workers, &self.orders);
    }

    /// Whether there are sockets already for this address, so that its port cannot be free.
    pub(crate) fn covers(&self, address: &Location) -> bool {
        let covers = |listener: &Sockets| {
            listener.address == *address || is_same_place(&listener.address, address)
        };
        self.listeners.iter().any(covers)
    }

    /// Returns the sockets for these listeners, and reports them to the old program. Closes the
    /// others, with a warning if they are from the service manager.
    ///
    /// # Errors
    /// A socket of the wrong kind.
    pub(crate) fn take_listeners(
        &mut self,
        plans: &[ListenerPlan],
    ) -> Result<Vec<Inherited>, Failure> {
        let mut inherited = Vec::new();
        for Sockets { address, stays_open, file, sockets } in self.listeners.drain(..) {
            let Some(plan) = plans.iter().find(|plan| plan.address == address) else {
                if stays_open {
                    let sentence = format_args!(
                        "no `listen \"{address}\"`: the socket of the service manager there is \
                            unused"
                    );
                    Event::SocketUnused.says(sentence).with("listen", &address).log();
                }
                continue;
            };
            let failed = |error| {
                Failure::Running(format!(
                    "weir: the socket that was opened for {address}: {error}\n"
                ))
            };
            let sockets = sockets
                .into_iter()
                .map(|socket| adopt_listener(socket, plan.backlog).map_err(failed));
            if let Some(predecessor) = &self.predecessor {
                predecessor.say(&ToOld::Takes { address: address.to_string() });
            }
            let sockets = sockets.collect::<Result<_, _>>()?;
            inherited.push(Inherited { address, sockets, stays_open, file });
        }
        Ok(inherited)
    }
}

impl Predecessor {
    /// Reports why the upgrade fails.
    pub(crate) fn tell_failed(&self, failure: &Failure) {
        let mut text = failure.to_string();
        // Leaves room for the escapes of JSON.
        text.truncate(text.floor_char_boundary(MESSAGE_BYTES_MAX / 8));
        self.say(&ToOld::Fails { code: failure.code(), text });
    }

    /// Waits until this program is ready (`unready`: why not; None: it is), and until it may accept
    /// clients. The old program ends it if that takes too long.
    ///
    /// # Errors
    /// The old program has abandoned this one.
    pub(crate) fn wait_for_turn(
        &self,
        Taken { admin, metrics }: Taken,
        mut unready: impl FnMut() -> Option<String>,
    ) -> Result<(), Failure> {
        let mut said = None;
        while let Some(why) = unready() {
            if said.as_ref() != Some(&why) {
                self.say(&ToOld::Waits { why: why.clone() });
                said = Some(why);
            }
            if !matches!(self.hear(LOOK_EVERY), Some(Heard::Nothing)) {
                return self.is_gone();
            }
        }
        self.say(&ToOld::Ready { pid: std::process::id(), metrics, admin });
        loop {
            match self.hear(GO_MAX) {
                Some(Heard::Nothing) => {}
                Some(Heard::Message(..)) => return Ok(()),
                _ => return self.is_gone(),
            }
        }
    }

    /// Reports that this program accepts clients; waits until the old program no longer does and
    /// needs nothing more.
    ///
    /// # Errors
    /// As before.
    pub(crate) fn take_over(&self) -> Result<(), Failure> {
        self.say(&ToOld::Accepts);
        match self.hear(GO_MAX) {
            Some(Heard::Message(..)) => {}
            _ => self.is_gone()?,
        }
        *self.lock() = None;
        Ok(())
    }

    /// Handles a closed channel: the old program has ended.
    ///
    /// # Errors
    /// It lives.
    fn is_gone(&self) -> Result<(), Failure> {
        let Some(process) = &*self.process else { return Ok(()) };
        let patience = Timespec::try_from(END_MAX).ok();
        match poll(&mut [PollFd::new(process, PollFlags::IN)], patience.as_ref()) {
            Ok(1..) => Ok(()),
            _ => Err(strange("it has abandoned this program")),
        }
    }

    fn say(&self, message: &ToOld) {
        if let Some(channel) = &*self.lock() {
            // A program that has ended needs no message.
            let _ = channel.say(message, &[]);
        }
    }

    /// None: the channel is closed.
    fn hear(&self, patience: Duration) -> Option<Heard<ToNew>> {
        self.lock().as_ref().and_then(|channel| channel.hear(patience).ok())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Channel>> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns where a socket listens.
fn place_of(socket: &OwnedFd) -> Option<Location> {
    let address = socket2::SockRef::from(socket).local_addr().ok()?;
    let at_path = || Some(Location::Unix(address.as_pathname()?.into()));
    address.as_socket().map(Location::Network).or_else(at_path)
}

fn strange(why: &str) -> Failure {
    Failure::Running(format!(
        "weir: upgrade failed: cannot take over from the old program: {why}\n"
    ))
}
