//! Proves: what an interception sends leaves its router without being received there once more, on
//! each side independently. The interfaces for that listen to no other host.
//!
//! How: the real binary on a router between two networks of the test. One side becomes an interface
//! that can have no such interface beside it. Needs root and Linux 6.6. docs/intercept.md.

use std::io::{ErrorKind, Read};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, TcpStream};

use socket2::{Domain, Protocol, Socket, Type};

use crate::intercept::{Intercept, echoes, in_network_with_programs};
use crate::kit::{Io, bounded, eventually, ip, on_both_drivers, run};
use crate::transparent::{Between, CLIENT, SERVER};

on_both_drivers!(the_way_out_is_short_where_it_can_be);

fn in_network(test: &str, io: Io, body: impl FnOnce()) {
    in_network_with_programs("intercept_out", test, io, body);
}

/// This machine receives once more what weir sends only where a side can have no interface beside
/// it. Those interfaces hear nothing of what routers announce, and clients are told of the end
/// although the servers' side is down.
fn the_way_out_is_short_where_it_can_be(io: Io) {
    in_network("the_way_out_is_short_where_it_can_be", io, || {
        let between = Between::new();
        SERVER.iter().for_each(|host| between.serve(host, 8080));
        for is_short in [true, false] {
            if !is_short {
                servers_side_is_a_macvlan();
            }
            between.meet();
            let weir = Intercept::start(io, &["--client-congestion", "reno"]);
            announce_router(&between);
            let ask = |(from, to)| between.ask(from, 0, to, 8080).expect("it gets through").0;
            let mut streams: Vec<TcpStream> = CLIENT.into_iter().zip(SERVER).map(ask).collect();
            streams.iter_mut().for_each(echoes);
            assert_eq!(weir.total("tcp_connections"), 2);
            let received = received(&format!("weir{}", weir.process()));
            let process = weir.process().to_string();
            let inside = run(
                "nsenter",
                &["-t", &process, "-n", "ip", "-6", "-o", "addr", "show", "scope", "global"],
            )
            .stdout;
            assert_eq!(String::from_utf8_lossy(&inside), "", "routers announce addresses");
            ip("link set ps down");
            let said = weir.end("-INT");
            for stream in &mut streams {
                bounded(stream);
                let end = stream.read(&mut [0; 4]).map_err(|error| error.kind());
                assert!(matches!(end, Ok(0) | Err(ErrorKind::ConnectionReset)), "{end:?}");
            }
            ip("link set ps up");
            let why: Vec<_> =
                said.lines().filter(|line| line.contains("pass through the stack twice")).collect();
            assert_eq!(received == 0, why.is_empty(), "{received} {said}");
            if is_short {
                let elsewhere =
                    |line: &&str| line.contains("CVE-2025-40183") || line.contains("not supported");
                assert!(why.iter().all(elsewhere), "{said}");
                why.iter().for_each(|why| eprintln!("not tested, on this machine: {why}"));
            } else {
                assert!(why.iter().any(|line| line.contains("ps: ")), "{said}");
            }
        }
    });
}

/// Replaces the interface towards the servers by a macvlan.
fn servers_side_is_a_macvlan() {
    let lines = [
        "set ps down",
        "set ps name below",
        "set below up",
        "add link below name ps type macvlan mode bridge",
    ];
    lines.iter().for_each(|line| ip(&format!("link {line}")));
    ip("addr flush dev below");
    ip("addr add 198.18.2.1/24 dev ps");
    ip("addr add fd00:2::1/64 dev ps nodad");
    ip("link set ps up");
}

/// Announces the servers' machine as a router for a network in which every host may give itself an
/// address (RFC 4861 section 4.2, RFC 4862).
fn announce_router(between: &Between) {
    let mut message = vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    message.extend([3, 4, 64, 0xc0, 0, 0, 14, 16, 0, 0, 14, 16, 0, 0, 0, 0]);
    message.extend(Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 0).octets());
    between.servers.inside(|| {
        let socket =
            Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6)).expect("root may");
        socket.set_multicast_hops_v6(255).expect("an option");
        // A line is an address, the number of the interface in hexadecimal, three more words, and
        // the name of the interface.
        let addresses = std::fs::read_to_string("/proc/thread-self/net/if_inet6").expect("a file");
        let words = addresses.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let index =
            words.into_iter().find(|words| words.last() == Some(&"s")).expect("it has addresses")
                [1]
            .to_owned();
        let index = u32::from_str_radix(&index, 16).expect("a number");
        let all = SocketAddrV6::new("ff02::1".parse().expect("an address"), 0, 0, index);
        eventually("it has an address of its link", || {
            socket.send_to(&message, &SocketAddr::V6(all).into()).is_ok()
        });
    });
}

/// Returns the packets that an interface of this machine has received.
fn received(name: &str) -> u64 {
    let counts = std::fs::read_to_string("/proc/thread-self/net/dev").expect("a file");
    let mut lines =
        counts.lines().filter_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
    let packets = lines.next().and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    packets.expect("it is there")
}
