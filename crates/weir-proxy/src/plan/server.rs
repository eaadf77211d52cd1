//! One server of an upstream: its address, and its share.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

/// The prefix of a written unix socket path.
pub const UNIX: &str = "unix:";

/// The server at the original destination of each client.
pub const ORIGINAL_DESTINATION: &str = "original-destination";

/// The address of a server whose name has none yet. No connection is made to it.
pub const UNLOCATED: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

/// The location of a server, or of a listener.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Location {
    /// At an address and a port of TCP.
    Network(SocketAddr),
    /// Of a server: the original destination of its client
    /// ([`Entrance::destination`](super::Entrance::destination)).
    Destination,
    /// On this machine, at the path of a unix socket (unix(7)), of at most 107 bytes.
    Unix(Arc<Path>),
}

impl Location {
    /// Parses `address:port`, or [`UNIX`] and a path; None: it is neither.
    pub fn read(written: &str) -> Option<Location> {
        match written.strip_prefix(UNIX) {
            Some(path) => Some(Location::Unix(Path::new(path).into())),
            None => written.parse().ok().map(Location::Network),
        }
    }

    /// Returns its address; None: it is a path.
    pub fn network(&self) -> Option<SocketAddr> {
        if let Location::Network(address) = self { Some(*address) } else { None }
    }
}

impl From<SocketAddr> for Location {
    fn from(address: SocketAddr) -> Location {
        Location::Network(address)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Network(address) => address.fmt(f),
            Location::Destination => f.write_str(ORIGINAL_DESTINATION),
            Location::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// One address of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The address with its port.
    pub address: SocketAddr,
    /// Percent of the written weight, 1-100.
    pub share: u32,
    /// Used only when no other can be.
    pub backup: bool,
}

impl From<SocketAddr> for Place {
    fn from(address: SocketAddr) -> Place {
        Place { address, share: 100, backup: false }
    }
}

/// One upstream address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerPlan {
    /// Its name: as written, or, if that is the name of several, `host@address:port`.
    pub name: String,
    /// As written: `host:port`, the name of a service (RFC 2782), `_http._tcp.host`, or `unix:`
    /// with a path.
    pub written: String,
    /// It is not written in the configuration itself: an address of a name, out of a file, or
    /// temporary. Default false.
    pub found: bool,
    /// An operator has added it while weir runs; it is in no file. Default false.
    pub temporary: bool,
    /// Its location; [`UNLOCATED`] in a plan that was just compiled, if it is written as a name.
    pub address: Location,
    /// Connections kept established also without traffic, in total over all workers, 0 to
    /// `connections`. Default 1. If equal to `connections`, all are made at start, and remade at
    /// once. None of the three has a meaning for private connections ([`super::Pool::is_private`]).
    pub connections_min: u32,
    /// Connections made for requests that share them, in total over all workers, 1-65,535. Default
    /// 32.
    pub connections: u32,
    /// Connections in all, with those that one request has to itself, in total over all workers,
    /// `connections` to 65,535. Default 1024.
    pub connections_max: u32,
    /// Requests that it works on at once, in total over all workers, 1-65,535, whatever connections
    /// they are on; the others wait. Those whose clients do not take the response do not count.
    /// None, the default: as many as its connections take.
    pub concurrency: Option<u32>,
    /// Connections of `tcp` to it, in total over all workers, 1-1,000,000; above that another
    /// server is chosen. None, the default: any number.
    pub tcp_connections_max: Option<u32>,
    /// Share of requests relative to the other servers, 1-100. Default 50.
    pub weight: u32,
    /// The weight that an operator ordered in place of `weight`, 1-100. None, the default: no
    /// order.
    pub weight_ordered: Option<u32>,
    /// Used only when no other server can be. Default false.
    pub backup: bool,
    /// Its upstream no longer has it in the configuration: it gets nothing new. Default false.
    pub retired: bool,
    /// The configuration no longer has its upstream: no route leads there, and requests that were
    /// routed before are finished. Default false.
    pub orphaned: bool,
}

impl ServerPlan {
    /// Returns a server with the default connections and weight.
    pub fn new(name: &str, address: SocketAddr) -> ServerPlan {
        ServerPlan {
            name: name.to_owned(),
            written: name.to_owned(),
            found: false,
            temporary: false,
            address: address.into(),
            connections_min: 1,
            connections: 32,
            connections_max: 1024,
            concurrency: None,
            tcp_connections_max: None,
            weight: 50,
            weight_ordered: None,
            backup: false,
            retired: false,
            orphaned: false,
        }
    }

    /// Parses a server that is written as a [place](Location::read); None: it is written as a name.
    pub fn read(written: &str) -> Option<ServerPlan> {
        let address = match written {
            ORIGINAL_DESTINATION => Location::Destination,
            _ => Location::read(written)?,
        };
        Some(ServerPlan { address, ..ServerPlan::new(written, UNLOCATED) })
    }

    /// Returns the host as written: without the port, or without the two labels that name a
    /// service. For a unix socket it is `localhost`.
    pub fn host(&self) -> &str {
        if matches!(self.address, Location::Unix(_)) {
            return "localhost";
        }
        if self.is_service() {
            return self.written.splitn(3, '.').last().unwrap_or_default();
        }
        self.written.rsplit_once(':').map_or(self.written.as_str(), |(host, _)| host)
    }

    /// Returns the authority for requests to it: host and port as written, or the host alone for a
    /// service or a unix socket.
    pub fn authority(&self) -> &str {
        let has_port = !self.is_service() && matches!(self.address, Location::Network(_));
        if has_port { &self.written } else { self.host() }
    }

    /// Whether it is written as a service.
    pub fn is_service(&self) -> bool {
        self.written.starts_with('_') && !self.written.contains(':')
    }

    /// Whether it is written as a name without known addresses.
    pub fn is_name(&self) -> bool {
        self.address == Location::Network(UNLOCATED)
    }

    /// Returns this server at one of the places of its name.
    pub(super) fn at(&self, place: &Place) -> ServerPlan {
        let name = if self.is_service() { &self.written } else { self.host() };
        ServerPlan {
            name: format!("{name}@{}", place.address),
            address: place.address.into(),
            weight: ((self.weight * place.share + 50) / 100).max(1),
            backup: self.backup || place.backup,
            found: true,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: how a server is named, for each way to write it. How: examples.

    use super::*;

    #[test]
    fn names_hosts_and_authorities() {
        let place =
            Place { share: 33, backup: true, ..SocketAddr::from(([10, 0, 0, 1], 80)).into() };
        for (written, host, authority, name) in [
            ("app.test:8080", "app.test", "app.test:8080", "app.test@10.0.0.1:80"),
            ("[::1]:80", "[::1]", "[::1]:80", "[::1]@10.0.0.1:80"),
            ("_http._tcp.app.test", "app.test", "app.test", "_http._tcp.app.test@10.0.0.1:80"),
            (
                "_odd._host.test:80",
                "_odd._host.test",
                "_odd._host.test:80",
                "_odd._host.test@10.0.0.1:80",
            ),
        ] {
            let server = ServerPlan { weight: 60, ..ServerPlan::new(written, UNLOCATED) };
            let at = server.at(&place);
            assert_eq!((server.host(), server.authority(), &*at.name), (host, authority, name));
            assert_eq!(
                (at.weight, at.backup, at.found, at.is_name(), &*at.written),
                (20, true, true, false, written)
            );
            assert!(server.is_name());
        }
        let unix = ServerPlan::read("unix:/run/a_b:1.sock").expect("a unix socket");
        assert_eq!(
            (unix.host(), unix.authority(), &*unix.name),
            ("localhost", "localhost", "unix:/run/a_b:1.sock")
        );
        assert_eq!((unix.address.to_string(), unix.is_name()), (unix.name, false));
        assert!(ServerPlan::read("/run/a.sock").is_none());
        let least = ServerPlan { weight: 1, ..ServerPlan::new("a:1", UNLOCATED) };
        assert_eq!(least.at(&place).weight, 1);
    }
}
