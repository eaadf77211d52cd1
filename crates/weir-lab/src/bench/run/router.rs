//! Three network namespaces in a row: clients, a router, and a server.
//!
//! Called by `pep.rs`. They have no names, belong to this process alone, and are gone with it and
//! the programs in them. The machine's own network remains untouched. The addresses are in
//! `router_addresses.rs`. Needs root.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use weir_io::Namespace;

use super::process::Process;
use super::router_addresses::{Addresses, IPV4, IPV6};
use super::slow_link::why;
use crate::bench::experiment::pep::{FAR_CLIENTS_MS, FAR_SERVER_MS, Way};
use crate::link::{self, End, Link, LinkOptions, QUEUE_DEFAULT, Terms};

/// The router's interfaces, towards clients and towards the server.
pub(super) const INTERFACES: [&str; 2] = ["clients", "servers"];

/// With long paths, links have addresses already, and one more hop is in front of the server.
const OF_ROUTER_FAR: &str = "link set lo up
addr add 198.19.1.1/24 dev servers
link set servers up
route add 198.18.1.0/24 via 198.18.0.2
route add 198.19.0.0/24 via 198.19.1.2
";
const OF_HOP: &str = "addr add 198.19.1.2/24 dev router
link set router up
route add default via 198.19.1.1
";
const ROUTES_OF_SERVER: &str = "link set lo up
route add default via 198.19.0.1
";
/// Leads connections to the program that listens on the router, where nftables marks the packets.
const LEADING_MARKED: &str = "route add local default dev lo table 100
rule add fwmark 1 lookup 100
";
/// The port to which it leads connections: unneeded if that were the port that they are for.
const TPROXY_PORT: u16 = 1234;
/// A chain at each hook; the one rule makes the kernel track connections, and matches none.
const HOOKS: &str = "table ip hooks {
    chain prerouting { type filter hook prerouting priority filter; ct state untracked counter; }
    chain input { type filter hook input priority filter; }
    chain forward { type filter hook forward priority filter; }
    chain output { type filter hook output priority filter; }
    chain postrouting { type filter hook postrouting priority filter; }
}
";
/// As in docs/transparent.md.
const TPROXY: &str = "table ip weir {
    chain prerouting {
        type filter hook prerouting priority mangle;
        meta l4proto { tcp, icmp } socket transparent 1 meta mark set 1 accept
        iifname clients tcp dport 8080 tcp flags & (syn | ack) == syn \
        tproxy to :1234 meta mark set 1 accept
    }
}
";

/// How long a new link may take to be ready, and the pause between two tries.
const PATH_PATIENCE: Duration = Duration::from_secs(20);
const PATH_PAUSE: Duration = Duration::from_millis(20);

/// One of the three.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The load generator's.
    Clients,
    /// The router between them.
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
    way: Way,
    /// Carry packets as long as they exist.
    links: Vec<Link>,
}

impl Row {
    /// Makes them, with forwarding; the output of ip(8) goes to the directory.
    ///
    /// # Errors
    /// Not root, or the kernel refuses, or has no IPv6 where the path needs it.
    pub(super) fn make(directory: &Path, way: Way) -> io::Result<Row> {
        let [clients, router, server] =
            [Namespace::create()?, Namespace::create()?, Namespace::create()?];
        let mut row = Row { clients, router, server, way, links: Vec::new() };
        if way == Way::Ipv6 {
            row.have_ipv6()?;
        }
        match way {
            Way::Far => row.join_bylinks(directory)?,
            _ => row.join(directory)?,
        }
        row.configure(Place::Clients, row.addresses().routes_of_clients, directory)?;
        for place in [Place::Clients, Place::Router, Place::Server] {
            row.set(place, "ipv4/ip_local_port_range", "1024 65535")?;
        }
        row.set(Place::Router, "ipv4/ip_forward", "1")?;
        // Without IPv6 there is no such packet to forward.
        let _ = row.set(Place::Router, "ipv6/conf/all/forwarding", "1");
        if way == Way::Hooks {
            row.filter(HOOKS, directory)?;
            // Connections come faster than their entries would expire.
            row.set(Place::Router, "netfilter/nf_conntrack_tcp_timeout_time_wait", "1")?;
        }
        if way == Way::Ipv6 {
            row.await_path()?;
        }
        Ok(row)
    }

    /// Returns the addresses in use.
    pub(super) fn addresses(&self) -> &'static Addresses {
        if self.way == Way::Ipv6 { &IPV6 } else { &IPV4 }
    }

    /// Sets what IPv6 needs before there are links: no side probes for duplicate addresses first,
    /// and clients may use any address that is local.
    fn have_ipv6(&self) -> io::Result<()> {
        if !Path::new("/proc/sys/net/ipv6").exists() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel has no IPv6 (ipv6.disable=0)",
            ));
        }
        for place in [Place::Clients, Place::Router, Place::Server] {
            self.set(place, "ipv6/conf/default/accept_dad", "0")?;
        }
        self.set(Place::Router, "ipv6/conf/all/forwarding", "1")?;
        self.set(Place::Clients, "ipv6/ip_nonlocal_bind", "1")
    }

    /// Waits until packets go from clients to the server and back: a link of IPv6 is ready some
    /// time after it is up. Nothing listens yet, so a connection is refused.
    fn await_path(&self) -> io::Result<()> {
        let (server, end) = (self.addresses().server, Instant::now() + PATH_PATIENCE);
        loop {
            let tried =
                self.clients.enter(|| TcpStream::connect_timeout(&server, PATH_PATIENCE))?;
            match tried.err() {
                Some(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(()),
                Some(error) if Instant::now() >= end => {
                    let why = format!("the router forwards nothing to {server}: {error}");
                    return Err(io::Error::new(error.kind(), why));
                }
                _ => thread::sleep(PATH_PAUSE),
            }
        }
    }

    fn join(&self, directory: &Path) -> io::Result<()> {
        let pairs: String = [(INTERFACES[0], Place::Clients), (INTERFACES[1], Place::Server)]
            .map(|(name, far)| {
                format!("link add {name} type veth peer name router netns {}\n", self.entrance(far))
            })
            .concat();
        self.configure(Place::Router, &pairs, directory)?;
        let Addresses { of_clients, of_router, of_server, .. } = *self.addresses();
        let lines =
            [(Place::Clients, of_clients), (Place::Router, of_router), (Place::Server, of_server)];
        lines.into_iter().try_for_each(|(place, lines)| self.configure(place, lines, directory))
    }

    /// The router's side of servers has to be Ethernet, so the long path begins behind one.
    fn join_bylinks(&mut self, directory: &Path) -> io::Result<()> {
        let hop = Namespace::create()?;
        let pair =
            format!("link add servers type veth peer name router netns {}\n", entrance(&hop));
        self.configure(Place::Router, &pair, directory)?;
        let near =
            [(&self.router, "clients", "198.18.0.1"), (&self.clients, "router", "198.18.0.2")];
        let far = [(&hop, "server", "198.19.0.1"), (&self.server, "router", "198.19.0.2")];
        let links = [link(near, FAR_CLIENTS_MS)?, link(far, FAR_SERVER_MS)?];
        self.links.extend(links);
        self.configure(Place::Router, OF_ROUTER_FAR, directory)?;
        self.configure(Place::Server, ROUTES_OF_SERVER, directory)?;
        run_in(&hop, "ip", &["-batch"], OF_HOP, directory)?;
        hop.enter(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1"))?
    }

    /// Leads connections to the program that listens on the router.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(super) fn lead(&self, directory: &Path) -> io::Result<()> {
        if self.way == Way::Tproxy {
            self.filter(TPROXY, directory)?;
            return self.configure(Place::Router, LEADING_MARKED, directory);
        }
        self.configure(Place::Router, self.addresses().leading, directory)
    }

    /// Returns the address on which that program listens.
    pub(super) fn any(&self) -> SocketAddr {
        SocketAddr::new(self.addresses().any, self.port())
    }

    fn port(&self) -> u16 {
        if self.way == Way::Tproxy { TPROXY_PORT } else { self.addresses().server.port() }
    }

    /// Loads these tables into the router's nftables.
    fn filter(&self, tables: &str, directory: &Path) -> io::Result<()> {
        run_in(&self.router, "nft", &["-f"], tables, directory)
    }

    fn namespace(&self, place: Place) -> &Namespace {
        match place {
            Place::Clients => &self.clients,
            Place::Router => &self.router,
            Place::Server => &self.server,
        }
    }

    /// Returns a path to its namespace.
    fn entrance(&self, place: Place) -> String {
        entrance(self.namespace(place))
    }

    /// Returns the words that run a program there.
    pub(super) fn words(&self, place: Place, program: &Path) -> [String; 3] {
        let entrance = format!("--net={}", self.entrance(place));
        ["nsenter".to_owned(), entrance, program.to_string_lossy().into_owned()]
    }

    /// Starts a program there.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub(super) fn start(
        &self,
        place: Place,
        program: &Path,
        arguments: &[&str],
        log: &Path,
    ) -> io::Result<Process> {
        let words = self.words(place, program);
        let words: Vec<&str> =
            words[1..].iter().map(String::as_str).chain(arguments.iter().copied()).collect();
        Process::start(Path::new("nsenter"), &words, log)
    }

    /// Waits until a process there listens on this port. It makes no connection for that: a program
    /// that continues connections to their original destination would connect to itself in a
    /// circle.
    ///
    /// # Errors
    /// As [`Process::await_that`].
    pub(super) fn await_listening(
        &self,
        place: Place,
        port: u16,
        process: &mut Process,
    ) -> io::Result<()> {
        let namespace = self.namespace(place);
        let sockets = self.addresses().sockets;
        let look = || namespace.enter(|| fs::read_to_string(sockets)).ok()?.ok();
        let is_there = || look().is_some_and(|sockets| is_listening(&sockets, port));
        process.await_that(&format!("listen on port {port}"), is_there)
    }

    /// Runs all these lines with ip(8) there.
    fn configure(&self, place: Place, lines: &str, directory: &Path) -> io::Result<()> {
        run_in(self.namespace(place), "ip", &[self.addresses().family, "-batch"], lines, directory)
    }

    fn set(&self, place: Place, name: &str, value: &str) -> io::Result<()> {
        let path = format!("/proc/sys/net/{name}");
        let set = self.namespace(place).enter(|| fs::write(&path, value))?;
        set.map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))
    }
}

/// Returns a path to a namespace.
fn entrance(namespace: &Namespace) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_fd().as_raw_fd())
}

/// Lets a program execute these lines, in a namespace; its output goes to the directory.
fn run_in(
    at: &Namespace,
    program: &str,
    options: &[&str],
    lines: &str,
    directory: &Path,
) -> io::Result<()> {
    let file = directory.join(format!("router.{program}"));
    fs::write(&file, lines)?;
    let (place, file) = (format!("--net={}", entrance(at)), file.to_string_lossy());
    let words = [&[place.as_str(), program], options, &[&file]].concat();
    Process::start(Path::new("nsenter"), &words, &directory.join(format!("router-{program}.log")))?
        .await_success()
}

/// Makes a link with this round-trip time between two namespaces; `ends` has the names of its ends,
/// and their addresses.
fn link(ends: [(&Namespace, &str, &str); 2], rtt_ms: u32) -> io::Result<Link> {
    let end = |(at, name, address): (&Namespace, &str, &str)| -> io::Result<End> {
        let address = address.parse().map_err(io::Error::other)?;
        let (path, name) = (entrance(at), name.to_owned());
        Ok(End {
            name,
            place: link::Place::At(path.clone().into(), path),
            addresses: vec![(address, 24)],
        })
    };
    let way = Terms {
        rate: None,
        queue: QUEUE_DEFAULT,
        loss: 0.0,
        burst: None,
        delay_ns: u64::from(rtt_ms) * 1_000_000 / 2,
        jitter_ns: 0,
        reorder: 0.0,
        reorder_ns: 0,
    };
    let [a, b] = ends.map(end);
    let options = LinkOptions { ends: [a?, b?], ways: [way; 2], seed: 0, mtu: 1500 };
    Link::spawn(&options).map_err(|obstacle| io::Error::other(why(obstacle)))
}

/// Whether a line of /proc/net/tcp or tcp6 (proc_net(5)) is a listener of this port.
fn is_listening(sockets: &str, port: u16) -> bool {
    let is_it = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().and_then(|local| local.rsplit_once(':'));
        local.is_some_and(|(_, hex)| u16::from_str_radix(hex, 16) == Ok(port))
            && fields.nth(1) == Some("0A")
    };
    sockets.lines().any(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_by_its_port_and_state() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   \
            uid  timeout inode\n";
        let line = |port: u16, state: &str| {
            format!(
                "{head}   0: 00000000:{port:04X} 00000000:0000 {state} 00000000:00000000 \
                    00:00000000 00000000     0        0 1\n"
            )
        };
        assert!(is_listening(&line(8080, "0A"), 8080));
        assert!(!is_listening(&line(8080, "01"), 8080) && !is_listening(&line(8081, "0A"), 8080));
        assert!(!is_listening(head, 8080));
    }
}
