//! The addresses of clients, router and server, in IPv4 and in IPv6, and the commands of ip(8) for
//! each of their namespaces.
//!
//! Used by `router.rs`. Addresses are those that RFC 2544 §C.2.2 and RFC 5180 §8 (with its erratum
//! 1752) reserve for benchmarks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The port of the server.
const PORT: u16 = 8080;

/// The row in one of both families.
#[derive(Debug)]
pub(super) struct Addresses {
    /// Where the server and the program in the middle, if any, listen: routes change no port.
    pub(super) server: SocketAddr,
    /// Where the program in the middle listens: any address, since connections that come there are
    /// for the server's.
    pub(super) any: IpAddr,
    /// Addresses of clients, in the generator's syntax.
    pub(super) sources: &'static str,
    /// Commands of ip(8) where clients are: their link, and with that their routes.
    pub(super) of_clients: &'static str,
    pub(super) routes_of_clients: &'static str,
    /// Commands on the router, with both links.
    pub(super) of_router: &'static str,
    /// Commands where the server is.
    pub(super) of_server: &'static str,
    /// Commands that lead connections to the program that listens on the router, and the responses
    /// of their servers.
    pub(super) leading: &'static str,
    /// The option of ip(8) for the family, for lines without an address.
    pub(super) family: &'static str,
    /// The sockets of a namespace, in /proc (proc_net(5)).
    pub(super) sockets: &'static str,
}

/// Those of IPv4.
pub(super) const IPV4: Addresses = Addresses {
    server: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 19, 0, 2)), PORT),
    any: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    sources: "198.18.1.0/26",
    of_clients: "link set lo up
addr add 198.18.0.2/24 dev router
link set router up
",
    routes_of_clients: "route add local 198.18.1.0/24 dev lo
route add default via 198.18.0.1
",
    of_router: "link set lo up
addr add 198.18.0.1/24 dev clients
addr add 198.19.0.1/24 dev servers
link set clients up
link set servers up
route add 198.18.1.0/24 via 198.18.0.2
",
    of_server: "link set lo up
addr add 198.19.0.2/24 dev router
link set router up
route add default via 198.19.0.1
",
    leading: "route add local default dev lo table 100
rule add iif clients ipproto tcp dport 8080 lookup 100
rule add iif servers ipproto tcp sport 8080 lookup 100
",
    family: "-4",
    sockets: "/proc/thread-self/net/tcp",
};

/// Those of IPv6.
pub(super) const IPV6: Addresses = Addresses {
    server: SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 2, 0, 0, 0, 2)), PORT),
    any: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    sources: "2001:2:0:11::1-2001:2:0:11::3e",
    of_clients: "link set lo up
addr add 2001:2:0:1::2/64 dev router
link set router up
",
    routes_of_clients: "route add local 2001:2:0:11::/64 dev lo
route add default via 2001:2:0:1::1
",
    of_router: "link set lo up
addr add 2001:2:0:1::1/64 dev clients
addr add 2001:2:0:2::1/64 dev servers
link set clients up
link set servers up
route add 2001:2:0:11::/64 via 2001:2:0:1::2
",
    of_server: "link set lo up
addr add 2001:2:0:2::2/64 dev router
link set router up
route add default via 2001:2:0:2::1
",
    leading: "route add local default dev lo table 100
rule add iif clients ipproto tcp dport 8080 lookup 100
rule add iif servers ipproto tcp sport 8080 lookup 100
",
    family: "-6",
    sockets: "/proc/thread-self/net/tcp6",
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bomb::Sources;

    #[test]
    fn sources_are_as_many_as_reports_say() {
        for Addresses { server, any, sources, of_server, .. } in [IPV4, IPV6] {
            let sources = Sources::parse(sources).unwrap();
            assert_eq!(sources.count(), crate::bench::experiment::pep::SOURCES);
            assert!([any.is_ipv4(), sources.first().is_ipv4()] == [server.is_ipv4(); 2]);
            assert!(of_server.contains(&format!(" {}/", server.ip())), "{of_server}");
        }
    }
}
