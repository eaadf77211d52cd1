//! Proves: with the right to it the kernel drops packets of banned clients before there is a
//! connection, only to weir's ports, of both families, until the ban ends. A reload changes what is
//! dropped, and nothing remains after weir, however it ends. Without the right weir says so and
//! rejects the clients itself; only one thread has the right. How: the real binary in a network
//! namespace of the test, and clients of addresses that it routes to itself. docs/bans.md.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::Command;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::{set_ip_freebind, socket_error};
use socket2::{Domain, Socket, Type};

use crate::kit::{
    Client, Honest, Io, Server, Weir, app, eventually, free_port, in_own_network, on_both_drivers,
    request, run, status,
};

on_both_drivers!(packets_of_the_banned_are_dropped, without_the_right_weir_does_it);

/// weir's addresses, and those of clients.
const NETWORK: [&str; 4] = [
    "addr add 198.18.0.1/24 dev lo",
    "route add local 198.18.1.0/24 dev lo",
    "addr add fd00:1::1/64 dev lo nodad",
    "route add local fd00:2::/48 dev lo",
];

fn in_network(test: &str, io: Io, body: impl FnOnce()) {
    in_own_network(&format!("bans_kernel::{}::{test}", io.word()), || {
        for line in NETWORK {
            let done = run("ip", &line.split(' ').collect::<Vec<_>>());
            assert!(done.status.success(), "ip {line}: {}", String::from_utf8_lossy(&done.stderr));
        }
        body();
    });
}

pub(crate) fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Begins to connect.
pub(crate) fn knock(from: &str, to: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).expect("a descriptor");
    // IPv6 binds only to its own addresses.
    set_ip_freebind(&socket, true).expect("a socket option");
    socket.bind(&SocketAddr::new(address(from), 0).into()).expect("it is routed to here");
    socket.set_nonblocking(true).expect("a socket option");
    let _ = socket.connect(&to.into());
    socket
}

/// Returns the number of packets of banned clients that the kernel has dropped.
fn dropped(weir: &Weir) -> u64 {
    status(weir)["bans"]["packets_dropped"].as_u64().expect("a number")
}

/// Whether a client of this address is accepted: neither dropped nor refused.
fn is_let_in(weir: &Weir, from: &str, to: SocketAddr) -> bool {
    lets_in(weir, || knock(from, to))
}

/// The same for a client that connects by `knock`.
pub(crate) fn lets_in(weir: &Weir, knock: impl FnOnce() -> Socket) -> bool {
    let (before, socket) = (dropped(weir), knock());
    let mut is_let_in = None;
    eventually("it is let in or dropped", || {
        let is_over = poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&Default::default()))
            .expect("poll")
            > 0;
        if is_over {
            is_let_in = Some(socket_error(&socket).expect("a socket option").is_ok());
        } else if dropped(weir) > before {
            is_let_in = Some(false);
        }
        is_let_in.is_some()
    });
    is_let_in == Some(true)
}

/// Returns the tables of nftables. None: the program that lists them is missing.
fn tables() -> Option<String> {
    let listed = Command::new("nft").args(["list", "tables"]).output().ok()?;
    Some(String::from_utf8_lossy(&listed.stdout).into_owned())
}

pub(crate) fn knows(weir: &Weir, bans: u64) {
    eventually("the kernel knows them", || {
        status(weir)["bans"]["in_kernel"].as_u64() == Some(bans)
    });
}

fn packets_of_the_banned_are_dropped(io: Io) {
    in_network("packets_of_the_banned_are_dropped", io, || {
        let server = Server::start(Honest);
        let at = |host: &str| SocketAddr::new(address(host), free_port());
        let (four, six, later) = (at("198.18.0.1"), at("fd00:1::1"), at("198.18.0.1"));
        let other = TcpListener::bind("198.18.0.1:0")
            .expect("a free port")
            .local_addr()
            .expect("it is bound");
        let _other = TcpListener::bind(other).expect("the same port");
        let rest = format!("listen \"{four}\"\nlisten \"{six}\"\n{}", app(&server, 1, ""));
        let weir = Weir::start(io, 1, &rest);
        eventually("it listens", || {
            is_let_in(&weir, "198.18.1.5", four) && is_let_in(&weir, "fd00:2::5", six)
        });
        assert!(!weir.said().contains("nftables"), "nobody is banned: {}", weir.said());
        let mut open = Client::connect_from(address("198.18.1.5"), four);
        request(&mut open);
        weir.answer(&["ban", "add", "198.18.1.5", "--for", "1h"]);
        weir.answer(&["ban", "add", "198.18.1.64/26", "--for", "1h"]);
        weir.answer(&["ban", "add", "fd00:2::5", "--for", "1h"]);
        knows(&weir, 3);
        assert!(open.end().reset, "what he had open");
        assert!(
            weir.said().contains("the kernel drops packets of banned clients: table inet weir-"),
            "{}",
            weir.said()
        );
        for (from, to, is_in) in [
            ("198.18.1.5", four, false),
            ("198.18.1.6", four, true),
            ("198.18.1.64", four, false),
            ("198.18.1.127", four, false),
            ("198.18.1.128", four, true),
            ("fd00:2::7", six, false),
            ("fd00:2:0:1::7", six, true),
            ("198.18.1.5", other, true),
        ] {
            assert_eq!(is_let_in(&weir, from, to), is_in, "{from} to {to}");
        }
        assert!(weir.answer(&["status"]).contains("3 in force (3 in the kernel, nftables)"));
        // Another listener, and addresses that are exempt from now on.
        weir.rewrite(&format!(
            "listen \"{later}\"\n{rest}shield {{ allow \"198.18.1.64/30\"; limit \"o\" \
                count=\"open\" max=1000; }}\n"
        ));
        assert_eq!(weir.answer(&["reload"]), "");
        eventually("the network with him in it is not banned", || {
            status(&weir)["bans"]["in_kernel"] == 2
        });
        assert!(!is_let_in(&weir, "198.18.1.5", later) && is_let_in(&weir, "198.18.1.64", later));
        weir.answer(&["ban", "remove", "198.18.1.5"]);
        knows(&weir, 1);
        assert!(is_let_in(&weir, "198.18.1.5", four));
        weir.answer(&["ban", "add", "198.18.1.5", "--for", "1s"]);
        eventually("it ends by itself", || is_let_in(&weir, "198.18.1.5", four));
        // The program that takes over has a separate table.
        weir.upgrade();
        assert_eq!(
            weir.answer(&["ban", "list"]),
            "no client is banned\n",
            "nothing is kept without a file"
        );
        eventually("the old one's table is gone", || is_let_in(&weir, "fd00:2::5", six));
        weir.answer(&["ban", "add", "198.18.1.5", "--for", "1h"]);
        knows(&weir, 1);
        assert!(!is_let_in(&weir, "198.18.1.5", four));
        let is_there = |name: &str| tables().is_none_or(|tables| tables.contains(name));
        assert!(is_there("inet weir-"), "{:?}", tables());
        weir.signal("KILL");
        eventually("nothing is left", || tables().is_none_or(|tables| tables.is_empty()));
        server.finish();
    });
}

fn without_the_right_weir_does_it(io: Io) {
    in_network("without_the_right_weir_does_it", io, || {
        let server = Server::start(Honest);
        let four = SocketAddr::new(address("198.18.0.1"), free_port());
        let mut command = Command::new("setpriv");
        command.args([
            "--bounding-set=-net_admin",
            "--inh-caps=-net_admin",
            env!("CARGO_BIN_EXE_weir"),
        ]);
        let weir =
            Weir::start_by(io, 1, &format!("listen \"{four}\"\n{}", app(&server, 1, "")), command);
        eventually("it listens", || is_let_in(&weir, "198.18.1.6", four));
        weir.answer(&["ban", "add", "198.18.1.5", "--for", "1h"]);
        weir.answer(&["ban", "add", "198.18.1.4", "--for", "1h"]);
        let why = "weir has no CAP_NET_ADMIN";
        eventually("it is told", || weir.said().contains(why));
        let told = status(&weir)["bans"].clone();
        assert_eq!(
            (&told["in_kernel"], &told["kernel_problem"]),
            (&serde_json::Value::Null, &why.into()),
            "{told}"
        );
        for from in ["198.18.1.5", "198.18.1.4"] {
            let mut banned = Client::connect_from(address(from), four);
            assert!(banned.end().reset, "{from}");
        }
        request(&mut Client::connect_from(address("198.18.1.6"), four));
        assert_eq!(weir.said().matches(why).count(), 1, "{}", weir.said());
        weir.stop();
        server.finish();
    });
}
