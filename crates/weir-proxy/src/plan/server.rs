//! One server of an upstream: where it is, and what it gets.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

/// What the path of a unix socket is written behind.
pub const UNIX: &str = "unix:";

/// The server that is where its client has connected to.
pub const ORIGINAL_DESTINATION: &str = "original-destination";

/// The address of a server whose name has none yet. Nobody connects to it.
pub const UNLOCATED: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);

/// Where a server is, or where clients are listened for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Location {
    /// At an address and a port of TCP.
    Network(SocketAddr),
    /// Of a server: where its client has connected to ([`Entrance::destination`](super::Entrance::destination)).
    Destination,
    /// On this machine, at the path of a unix socket (unix(7)), of at most 107 bytes.
    Unix(Arc<Path>),
}

impl Location {
    /// The place that is written so: `address:port`, or [`UNIX`] and a path; None: it is none.
    pub fn read(written: &str) -> Option<Location> {
        match written.strip_prefix(UNIX) {
            Some(path) => Some(Location::Unix(Path::new(path).into())),
            None => written.parse().ok().map(Location::Network),
        }
    }

    /// Its address; None: it is a path.
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

/// An address of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// With its port.
    pub address: SocketAddr,
    /// Percent of the weight that is written, 1-100.
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
    /// What it is called: as written, or where that is the name of several, `host@address:port`.
    pub name: String,
    /// As written: `host:port`, the name of a service (RFC 2782), `_http._tcp.host`, or `unix:` with a path.
    pub written: String,
    /// It is not written in the configuration itself: an address of a name, out of a file, or temporary. Default false.
    pub found: bool,
    /// An operator has added it while weir runs; it is written nowhere. Default false.
    pub temporary: bool,
    /// Where it is; [`UNLOCATED`] in a plan that was just compiled, when a name is written.
    pub address: Location,
    /// Connections kept established also without traffic, in total over all workers, 0 to `connections`. Default 1. As many as
    /// `connections`: all are made at start, and remade at once. None of the three means anything for a private one
    /// ([`super::Pool::is_private`]).
    pub connections_min: u32,
    /// Connections made for what shares them, in total over all workers, 1-65,535: how many requests the server may have to work
    /// on at once while nothing holds a connection. Default 32.
    pub connections: u32,
    /// Connections made when others are held by what does not share, in total over all workers, `connections` to 65,535: uploads
    /// that are not complete, answers that are large, late or endless, non-idempotent requests, tunnels, slow readers. Default 1024.
    pub connections_max: u32,
    /// Connections of `tcp` to it, in total over all workers, 1-1,000,000; with more another server is chosen. None, the default: any number.
    pub tcp_connections_max: Option<u32>,
    /// Share of requests relative to the other servers, 1-100. Default 50.
    pub weight: u32,
    /// What an operator ordered instead of `weight`, 1-100. None, the default: nothing.
    pub weight_ordered: Option<u32>,
    /// Used only when no other server can be. Default false.
    pub backup: bool,
    /// Its upstream has it no more in the configuration: it gets nothing new. Default false.
    pub retired: bool,
    /// The configuration has its upstream no more: no route leads there, what was routed before is finished. Default false.
    pub orphaned: bool,
}

impl ServerPlan {
    /// A server with the default connections and weight.
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
            tcp_connections_max: None,
            weight: 50,
            weight_ordered: None,
            backup: false,
            retired: false,
            orphaned: false,
        }
    }

    /// The server that is written as a [place](Location::read); None: it is written as a name.
    pub fn read(written: &str) -> Option<ServerPlan> {
        let address = match written {
            ORIGINAL_DESTINATION => Location::Destination,
            _ => Location::read(written)?,
        };
        Some(ServerPlan { address, ..ServerPlan::new(written, UNLOCATED) })
    }

    /// The host as written: without the port, or without the two labels that name a service. That of a unix socket is `localhost`.
    pub fn host(&self) -> &str {
        if matches!(self.address, Location::Unix(_)) {
            return "localhost";
        }
        if self.is_service() {
            return self.written.splitn(3, '.').last().unwrap_or_default();
        }
        self.written.rsplit_once(':').map_or(self.written.as_str(), |(host, _)| host)
    }

    /// What a request for it calls it: host and port as written, or the host alone of a service or a unix socket.
    pub fn authority(&self) -> &str {
        let has_port = !self.is_service() && matches!(self.address, Location::Network(_));
        if has_port { &self.written } else { self.host() }
    }

    /// Whether it is written as a service.
    pub fn is_service(&self) -> bool {
        self.written.starts_with('_') && !self.written.contains(':')
    }

    /// Whether a name is written whose addresses are not put in yet.
    pub fn is_name(&self) -> bool {
        self.address == Location::Network(UNLOCATED)
    }

    /// This one at one of the places of its name.
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
    //! Proves: what a server is called, whatever is written. How: examples.

    use super::*;

    #[test]
    fn names_hosts_and_authorities() {
        let place = Place { share: 33, backup: true, ..SocketAddr::from(([10, 0, 0, 1], 80)).into() };
        for (written, host, authority, name) in [
            ("app.test:8080", "app.test", "app.test:8080", "app.test@10.0.0.1:80"),
            ("[::1]:80", "[::1]", "[::1]:80", "[::1]@10.0.0.1:80"),
            ("_http._tcp.app.test", "app.test", "app.test", "_http._tcp.app.test@10.0.0.1:80"),
            ("_odd._host.test:80", "_odd._host.test", "_odd._host.test:80", "_odd._host.test@10.0.0.1:80"),
        ] {
            let server = ServerPlan { weight: 60, ..ServerPlan::new(written, UNLOCATED) };
            let at = server.at(&place);
            assert_eq!((server.host(), server.authority(), &*at.name), (host, authority, name));
            assert_eq!((at.weight, at.backup, at.found, at.is_name(), &*at.written), (20, true, true, false, written));
            assert!(server.is_name());
        }
        let unix = ServerPlan::read("unix:/run/a_b:1.sock").expect("a unix socket");
        assert_eq!((unix.host(), unix.authority(), &*unix.name), ("localhost", "localhost", "unix:/run/a_b:1.sock"));
        assert_eq!((unix.address.to_string(), unix.is_name()), (unix.name, false));
        assert!(ServerPlan::read("/run/a.sock").is_none());
        let least = ServerPlan { weight: 1, ..ServerPlan::new("a:1", UNLOCATED) };
        assert_eq!(least.at(&place).weight, 1);
    }
}
