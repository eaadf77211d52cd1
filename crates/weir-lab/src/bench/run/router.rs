//! Three network namespaces in a row: clients, a router, and a server.
//!
//! Called by `pep.rs`. They have no names, belong to this process alone, and are gone with it and the programs in them. Nothing of the machine's own network is
//! touched. Addresses are those that RFC 2544 §C.2.2 leaves to benchmarks. Needs root.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;

use weir_io::Namespace;

use super::process::Process;

/// Where the server listens, and whoever stands in the middle: routes change no port.
pub(super) const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 19, 0, 2)), 8080);
/// Addresses of clients.
pub(super) const SOURCES: &str = "198.18.1.0/26";
/// The router's interfaces, towards clients and towards the server.
pub(super) const INTERFACES: [&str; 2] = ["clients", "servers"];

const OF_CLIENTS: &str = "link set lo up
addr add 198.18.0.2/24 dev router
link set router up
route add local 198.18.1.0/24 dev lo
route add default via 198.18.0.1
";
const OF_ROUTER: &str = "link set lo up
addr add 198.18.0.1/24 dev clients
addr add 198.19.0.1/24 dev servers
link set clients up
link set servers up
route add 198.18.1.0/24 via 198.18.0.2
";
const OF_SERVER: &str = "link set lo up
addr add 198.19.0.2/24 dev router
link set router up
route add default via 198.19.0.1
";
/// What leads connections to whoever listens on the router, and the answers of their servers.
const LEADING: &str = "route add local default dev lo table 100
rule add iif clients ipproto tcp dport 8080 lookup 100
rule add iif servers ipproto tcp sport 8080 lookup 100
";

/// One of the three.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The load generator's.
    Clients,
    /// What is between.
    Router,
    /// The origin's.
    Server,
}

/// All three.
#[derive(Debug)]
pub(super) struct Row {
    clients: Namespace,
    router: Namespace,
    server: Namespace,
}

impl Row {
    /// Makes them, with forwarding; what ip(8) says goes to the directory.
    ///
    /// # Errors
    /// Not root, or the kernel refuses.
    pub(super) fn make(directory: &Path) -> io::Result<Row> {
        let row = Row { clients: Namespace::create()?, router: Namespace::create()?, server: Namespace::create()? };
        let pairs: String = [(INTERFACES[0], Place::Clients), (INTERFACES[1], Place::Server)]
            .map(|(name, far)| format!("link add {name} type veth peer name router netns {}\n", row.entrance(far)))
            .concat();
        row.configure(Place::Router, &pairs, directory)?;
        for (place, lines) in [(Place::Clients, OF_CLIENTS), (Place::Router, OF_ROUTER), (Place::Server, OF_SERVER)] {
            row.configure(place, lines, directory)?;
            row.set(place, "ipv4/ip_local_port_range", "1024 65535")?;
        }
        row.set(Place::Router, "ipv4/ip_forward", "1")?;
        // Where there is no IPv6 none of it has to pass.
        let _ = row.set(Place::Router, "ipv6/conf/all/forwarding", "1");
        Ok(row)
    }

    /// Leads connections to whoever listens on the router.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn lead(&self, directory: &Path) -> io::Result<()> {
        self.configure(Place::Router, LEADING, directory)
    }

    fn namespace(&self, place: Place) -> &Namespace {
        match place {
            Place::Clients => &self.clients,
            Place::Router => &self.router,
            Place::Server => &self.server,
        }
    }

    /// A path to it.
    fn entrance(&self, place: Place) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespace(place).as_fd().as_raw_fd())
    }

    /// The words that run a program there.
    pub(super) fn words(&self, place: Place, program: &Path) -> [String; 3] {
        let entrance = format!("--net={}", self.entrance(place));
        ["nsenter".to_owned(), entrance, program.to_string_lossy().into_owned()]
    }

    /// Starts a program there.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub(super) fn start(&self, place: Place, program: &Path, arguments: &[&str], log: &Path) -> io::Result<Process> {
        let words = self.words(place, program);
        let words: Vec<&str> = words[1..].iter().map(String::as_str).chain(arguments.iter().copied()).collect();
        Process::start(Path::new("nsenter"), &words, log)
    }

    /// Waits until a process there listens on the server's port. Nothing connects for that: who continues connections where they were going would be led in a circle.
    ///
    /// # Errors
    /// As [`Process::await_that`].
    pub(super) fn await_listening(&self, place: Place, process: &mut Process) -> io::Result<()> {
        let namespace = self.namespace(place);
        let look = || namespace.enter(|| fs::read_to_string("/proc/thread-self/net/tcp")).ok()?.ok();
        process.await_that(&format!("listen on port {}", SERVER.port()), || {
            look().is_some_and(|sockets| is_listening(&sockets, SERVER.port()))
        })
    }

    /// Has ip(8) do all these lines there.
    fn configure(&self, place: Place, lines: &str, directory: &Path) -> io::Result<()> {
        let file = directory.join("router.ip");
        fs::write(&file, lines)?;
        let words = ["-batch", &file.to_string_lossy()];
        self.start(place, Path::new("ip"), &words, &directory.join("router-ip.log"))?.await_success()
    }

    fn set(&self, place: Place, name: &str, value: &str) -> io::Result<()> {
        let path = format!("/proc/sys/net/{name}");
        let set = self.namespace(place).enter(|| fs::write(&path, value))?;
        set.map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))
    }
}

/// Whether a line of /proc/net/tcp (proc_net(5)) is a listener of this port.
fn is_listening(sockets: &str, port: u16) -> bool {
    let is_it = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().and_then(|local| local.rsplit_once(':'));
        local.is_some_and(|(_, hex)| u16::from_str_radix(hex, 16) == Ok(port)) && fields.nth(1) == Some("0A")
    };
    sockets.lines().any(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_by_its_port_and_state() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        let line = |port: u16, state: &str| {
            format!(
                "{head}   0: 00000000:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 1\n"
            )
        };
        assert!(is_listening(&line(8080, "0A"), 8080));
        assert!(!is_listening(&line(8080, "01"), 8080) && !is_listening(&line(8081, "0A"), 8080));
        assert!(!is_listening(head, 8080));
    }

    #[test]
    fn sources_are_as_many_as_reports_say() {
        assert_eq!(crate::bomb::Sources::parse(SOURCES).unwrap().count(), crate::bench::experiment::pep::SOURCES);
    }
}
