//! Two network namespaces, joined by a pair of virtual interfaces (veth): clients in one, proxy and
//! origin in the other, each on a separate core.
//!
//! Called by `block.rs` and `bans.rs`. On loopback a packet is received in the context of its
//! sender, so the processor time that a proxy spends on an attack would be the attacker's. Here
//! packets are received on the core of the side that they go to (receive packet steering).
//!
//! Both belong to a process each and have no names: they are gone when their last process is,
//! however the harness ends. The machine's own network remains untouched. Addresses are those that
//! RFC 2544 §C.2.2 reserves for benchmarks.

use std::fs;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use rustix::process::geteuid;
use rustix::thread::{CpuSet, sched_getaffinity};
use weir_io::Namespace;

use super::process::Process;
use super::programs::Programs;

/// Where the proxy listens.
pub(super) const PROXY: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)), 8080);
/// Local addresses of attackers are 198.18.1.1 and so on.
pub(super) fn attacker(nth: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 1, 1)) + nth)
}
/// Local addresses of attackers that each come once: 100,000.
pub(super) const MANY: &str = "198.18.16.0-198.19.150.159";
/// Local addresses of users: more than there are.
pub(super) const USERS: &str = "198.18.2.0/23";

/// The proxy's interface, and its namespace's routes to all clients.
const PROXY_SIDE: &str = "link set lo up
addr add 198.18.0.1/24 dev proxy
link set proxy up
route add 198.18.1.0/24 via 198.18.0.2
route add 198.18.2.0/23 via 198.18.0.2
route add 198.18.16.0/20 via 198.18.0.2
route add 198.18.32.0/19 via 198.18.0.2
route add 198.18.64.0/18 via 198.18.0.2
route add 198.18.128.0/17 via 198.18.0.2
route add 198.19.0.0/16 via 198.18.0.2
";
/// The clients' interface. All addresses of the networks are local there without being configured
/// one by one.
const CLIENT_SIDE: &str = "link set lo up
addr add 198.18.0.2/24 dev clients
link set clients up
route add local 198.18.1.0/24 dev lo
route add local 198.18.2.0/23 dev lo
route add local 198.18.16.0/20 dev lo
route add local 198.18.32.0/19 dev lo
route add local 198.18.64.0/18 dev lo
route add local 198.18.128.0/17 dev lo
route add local 198.19.0.0/16 dev lo
";
/// Programs that make them.
const TOOLS: [&str; 5] = ["ip", "nsenter", "unshare", "taskset", "setpriv"];

/// The side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The load generator's.
    Clients,
    /// That of proxy and origin.
    Proxy,
}

impl Side {
    /// The name of its interface.
    fn interface(self) -> &'static str {
        match self {
            Side::Clients => "clients",
            Side::Proxy => "proxy",
        }
    }
}

/// The core of each program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cores {
    /// The load generator.
    pub(super) clients: usize,
    /// The proxy.
    pub(super) proxy: usize,
    /// The origin: a separate one if there are three, else the generator's.
    pub(super) origin: usize,
}

impl Cores {
    /// Picks cores that this process may use; None: there is only one.
    fn new() -> Option<Cores> {
        let allowed = sched_getaffinity(None).ok()?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        let (clients, proxy) = (cores.next()?, cores.next()?);
        Some(Cores { clients, proxy, origin: cores.next().unwrap_or(clients) })
    }
}

/// The namespaces. They go away when this is dropped and nothing runs in them any more.
#[derive(Debug)]
pub(super) struct Nets {
    clients: Process,
    proxy: Process,
    pub(super) cores: Cores,
}

impl Nets {
    /// Returns what prevents making them on this machine, if anything. It is tried once.
    pub(super) fn obstacle(programs: &Programs, directory: &Path) -> Option<String> {
        static OBSTACLE: OnceLock<Option<String>> = OnceLock::new();
        let look = || {
            if !geteuid().is_root() {
                return Some("only root may make network namespaces".to_owned());
            }
            if let Some(missing) = TOOLS.into_iter().find(|tool| programs.path(tool).is_none()) {
                return Some(format!("{missing} is not installed, which makes network namespaces"));
            }
            Nets::make(directory).err().map(|error| error.to_string())
        };
        OBSTACLE.get_or_init(look).clone()
    }

    /// Makes both, joins them, and arranges for packets to be received on the core of their side.
    /// Logs go to the directory.
    ///
    /// # Errors
    /// The machine has one core, or does not permit one of these.
    pub(super) fn make(directory: &Path) -> io::Result<Nets> {
        let cores =
            Cores::new().ok_or_else(|| io::Error::other("generator and proxy need a core each"))?;
        let nets = Nets {
            clients: namespace(Side::Clients, directory)?,
            proxy: namespace(Side::Proxy, directory)?,
            cores,
        };
        let pair =
            format!("link add clients type veth peer name proxy netns {}\n", nets.proxy.id());
        nets.configure(Side::Clients, &pair)?;
        nets.configure(Side::Proxy, PROXY_SIDE)?;
        nets.configure(Side::Clients, CLIENT_SIDE)?;
        nets.steer(Side::Clients, cores.clients)?;
        nets.steer(Side::Proxy, cores.proxy)?;
        Ok(nets)
    }

    fn holder(&self, side: Side) -> &Process {
        match side {
            Side::Clients => &self.clients,
            Side::Proxy => &self.proxy,
        }
    }

    /// Returns the words that run a program on this side and core.
    pub(super) fn words(&self, side: Side, core: usize, program: &Path) -> Vec<String> {
        let words = [
            "nsenter",
            &format!("--net={}", self.link(side).display()),
            "taskset",
            "-c",
            &core.to_string(),
        ];
        words
            .into_iter()
            .map(str::to_owned)
            .chain([program.to_string_lossy().into_owned()])
            .collect()
    }

    /// Starts a program on this side and core.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub(super) fn start(
        &self,
        (side, core): (Side, usize),
        program: &Path,
        arguments: &[&str],
        log: &Path,
    ) -> io::Result<Process> {
        let words = self.words(side, core, program);
        let words: Vec<&str> =
            words.iter().map(String::as_str).chain(arguments.iter().copied()).collect();
        Process::start(Path::new(words[0]), &words[1..], log)
    }

    /// Waits until a process of this side listens there.
    ///
    /// # Errors
    /// As [`Process::await_listening`], or this side can't be entered.
    pub(super) fn await_listening(
        &self,
        side: Side,
        process: &mut Process,
        address: SocketAddr,
    ) -> io::Result<()> {
        self.within(side, || process.await_listening(address))
    }

    /// Calls `act` on this side, in a separate thread.
    ///
    /// # Errors
    /// As those of `act`, or this side can't be entered.
    pub(super) fn within<T: Send>(
        &self,
        side: Side,
        act: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        Namespace::open(&self.link(side))?.enter(act)?
    }

    /// Returns the link that represents the namespace.
    fn link(&self, side: Side) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.holder(side).id()))
    }

    /// Runs all these lines with ip(8) on this side.
    fn configure(&self, side: Side, lines: &str) -> io::Result<()> {
        self.tell(side, &["ip", "-batch", "-"], lines)
    }

    /// Loads a table with nft(8) on this side.
    ///
    /// # Errors
    /// It is not installed, or rejects the table.
    pub(super) fn filter(&self, side: Side, table: &str) -> io::Result<()> {
        self.tell(side, &["nft", "-f", "-"], table)
    }

    /// Gives a program these lines on this side.
    fn tell(&self, side: Side, words: &[&str], lines: &str) -> io::Result<()> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.link(side).display())).args(words);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        if let Some(mut input) = child.stdin.take() {
            // The program reports unread input itself.
            let _ = input.write_all(lines.as_bytes());
        }
        let output = child.wait_with_output()?;
        let why = || {
            format!(
                "network namespaces can't be set up: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            )
        };
        if output.status.success() { Ok(()) } else { Err(io::Error::other(why())) }
    }

    /// Makes that core handle what arrives on this side.
    fn steer(&self, side: Side, core: usize) -> io::Result<()> {
        // The files of a namespace's interfaces are in that namespace's /sys.
        let (pid, interface) = (self.holder(side).id(), side.interface());
        let file = format!("/proc/{pid}/root/sys/class/net/{interface}/queues/rx-0/rps_cpus");
        fs::write(file, mask(core)).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("the kernel doesn't hand packets to other cores: {error}"),
            )
        })
    }
}

/// Starts a process that does nothing but hold a namespace, and /sys as seen from it.
fn namespace(side: Side, directory: &Path) -> io::Result<Process> {
    let log = directory.join(format!("{}-namespace.log", side.interface()));
    let words =
        ["--net", "--mount", "sh", "-c", "mount -t sysfs sysfs /sys && exec sleep infinity"];
    let mut holder = Process::start(Path::new("unshare"), &words, &log)?;
    let name = PathBuf::from(format!("/proc/{}/comm", holder.id()));
    let is_there = || fs::read_to_string(&name).is_ok_and(|name| name.trim_end() == "sleep");
    holder.await_that("have a network namespace", is_there)?;
    Ok(holder)
}

/// A set with one core, as the kernel reads it: words of 32 bits, the highest first.
fn mask(core: usize) -> String {
    format!("{:x}{}", 1u32 << (core % 32), ",00000000".repeat(core / 32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_one_bit_of_a_set() {
        assert_eq!([0, 1, 31, 33].map(mask), ["1", "2", "80000000", "2,00000000"]);
    }

    #[test]
    fn nothing_is_left_of_namespaces() {
        if !geteuid().is_root() {
            eprintln!("skipped: only root may make network namespaces");
            return;
        }
        let directory = std::env::temp_dir().join(format!("weir-lab-nets-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let obstacle = Nets::obstacle(&Programs::new(&[]), &directory);
        let made = Nets::make(&directory);
        let why = made.as_ref().err().map(ToString::to_string);
        assert_eq!(why, obstacle, "what is said to be in the way is");
        if let Ok(nets) = made {
            let links =
                [Side::Clients, Side::Proxy].map(|side| fs::read_link(nets.link(side)).unwrap());
            assert!(
                links[0] != links[1]
                    && !links.contains(&fs::read_link("/proc/self/ns/net").unwrap()),
                "{links:?}"
            );
            let holders = [nets.clients.id(), nets.proxy.id()];
            drop(nets);
            assert!(
                holders.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists()),
                "{holders:?}"
            );
        }
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn attackers_have_an_address_each_and_users_others() {
        assert_eq!([0, 19].map(|nth| attacker(nth).to_string()), ["198.18.1.1", "198.18.1.20"]);
        let users = crate::bomb::Sources::parse(USERS).unwrap();
        assert!(users.count() >= crate::bench::experiment::block::USERS);
        assert_eq!(crate::bomb::Sources::parse(MANY).unwrap().count(), 100_000);
    }
}
