//! Proves: ICMP errors about replies to first packets are kept outside, so they cannot be used to
//! make connections pass by. A first packet that is retransmitted while others pass by reaches the
//! connection that it belongs to.
//!
//! How: `weir intercept` between two networks of the test; a clients' machine that says of an
//! address that it is not there, although first packets come from it; and replies that are lost.
//! Needs root. docs/intercept.md.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use socket2::{Domain, Protocol, Socket, Type};

use crate::intercept::{Intercept, in_network_with_programs};
use crate::intercept_first::{begin, between, has_ended, sent_again};
use crate::intercept_syn::{LATE, find_answers, lose_answers};
use crate::kit::{Io, bounded, eventually, ip, on_both_drivers};
use crate::transparent::{Between, CLIENT, SERVER};

on_both_drivers!(errors_about_handshakes_stay_outside, what_comes_again_is_not_new);

fn in_network(test: &str, io: Io, body: impl FnOnce()) {
    in_network_with_programs("intercept_astray", test, io, body);
}

/// Addresses behind the clients' machine, which reports them as unreachable, in the words that the
/// kernel takes for the end of a handshake.
const NOWHERE: [(&str, &str); 2] = [("198.18.6.1", "unreachable"), ("fd00:6::1", "prohibit")];

/// Returns the value of a name in a file with two lines per group, one of names and one of numbers
/// (proc_pid_net(5)).
fn number(text: &str, group: &str, name: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group)?.strip_prefix(": "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut both = names.split(' ').zip(values.split(' '));
    both.find(|(known, _)| *known == name)
        .and_then(|(_, value)| value.parse().ok())
        .expect("a number")
}

/// Returns how many "unreachable" errors have reached the servers' machine, for each family.
fn errors(between: &Between) -> [u64; 2] {
    let read = |name: &str| {
        std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).expect("a file")
    };
    let [four, six] = between.servers.inside(|| ["snmp", "snmp6"].map(read));
    let six =
        six.lines().find_map(|line| line.strip_prefix("Icmp6InDestUnreachs")?.trim().parse().ok());
    [number(&four, "Icmp", "InDestUnreachs"), six.expect("a number")]
}

/// Begins a connect from an address that its machine does not have, and leaves it under way.
fn begin_from_nowhere(between: &Between, from: &str, to: &str) -> Socket {
    let [from, to] = [(from, 0), (to, 8080)]
        .map(|(host, port)| SocketAddr::new(host.parse().expect("an address"), port));
    between.clients.inside(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).expect("a socket");
        match from {
            SocketAddr::V4(_) => socket.set_ip_transparent_v4(true),
            SocketAddr::V6(_) => socket.set_ip_transparent_v6(true),
        }
        .expect("root may");
        socket.set_nonblocking(true).expect("an option");
        socket.bind(&from.into()).expect("it is transparent");
        socket.connect(&to.into()).expect_err("it takes time");
        socket
    })
}

fn errors_about_handshakes_stay_outside(io: Io) {
    in_network("errors_about_handshakes_stay_outside", io, || {
        let between = between();
        between.clients.inside(|| {
            for (name, value) in [
                ("ipv4/ip_forward", "1"),
                ("ipv6/conf/all/forwarding", "1"),
                ("ipv4/icmp_ratelimit", "0"),
                ("ipv6/icmp/ratelimit", "0"),
            ] {
                std::fs::write(format!("/proc/sys/net/{name}"), value).expect("root may");
            }
        });
        for ((family, (host, kind)), via) in ["-4", "-6"].into_iter().zip(NOWHERE).zip(CLIENT) {
            between.clients.ip(&format!("{family} route add {kind} {host}"));
            ip(&format!("{family} route add {host} via {via}"));
        }
        let weir = Intercept::start(io, &[]);
        let before = errors(&between);
        let begun = NOWHERE
            .iter()
            .zip(SERVER)
            .map(|((from, _), to)| begin_from_nowhere(&between, from, to));
        let begun: Vec<_> = begun.collect();
        // weir keeps these errors from the kernel inside, and they go on to the address in whose
        // name it has replied.
        eventually("errors about both have passed", || {
            errors(&between).iter().zip(before).all(|(now, before)| *now > before)
        });
        let netstat = std::fs::read_to_string(format!("/proc/{}/net/netstat", weir.process()))
            .expect("a file");
        assert_eq!(number(&netstat, "TcpExt", "ListenDrops"), 0);
        let of = |name: &str| weir.status()["interception"][name].clone();
        eventually("both are taken", || of("taken").as_u64() >= Some(2));
        assert!(of("passing").is_null() && of("passed_by") == 0);
        assert!(!begun.iter().any(has_ended));
        between.ask(CLIENT[0], 0, SERVER[0], 8080).expect("it gets through");
        assert_eq!(weir.total("tcp_connections"), 1);
        weir.end("-TERM");
    });
}

/// Receives all TCP packets that come to a server from there.
fn hears(between: &Between, from: &str, to: &str) -> Socket {
    let [from, to] = [from, to].map(|host| SocketAddr::new(host.parse().expect("an address"), 0));
    between.servers.inside(|| {
        let socket =
            Socket::new(Domain::for_address(to), Type::RAW, Some(Protocol::TCP)).expect("root may");
        socket.bind(&to.into()).expect("it is there");
        socket.connect(&from.into()).expect("there is a route");
        socket.set_nonblocking(true).expect("an option");
        socket
    })
}

fn what_comes_again_is_not_new(io: Io) {
    in_network("what_comes_again_is_not_new", io, || {
        let between = between();
        lose_answers(&between);
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -n 400; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_weir")]);
        let weir = Intercept::start_by(shell, io, &[]);
        let taken = || weir.status()["interception"]["taken"].as_u64();
        let late: Vec<_> = LATE
            .into_iter()
            .zip(SERVER)
            .map(|(from, to)| begin(&between, (from, 0), (to, 8080)))
            .collect();
        eventually("both are taken", || taken() >= Some(2));
        let mut open = Vec::new();
        eventually("there is no room", || {
            open.push(between.ask(CLIENT[0], 0, SERVER[0], 8080).expect("it gets through"));
            weir.said().contains("new connections bypass weir: 400 descriptors are nearly used up")
        });
        let known = weir.total("tcp_connections");
        let heard = LATE.into_iter().zip(SERVER).map(|(from, to)| hears(&between, from, to));
        let mut heard: Vec<_> = heard.collect();
        let before = sent_again(&between);
        eventually("both have sent it again", || sent_again(&between) >= before + 2);
        for server in &mut heard {
            assert_eq!(
                server.read(&mut [0; 256]).expect_err("nobody comes").kind(),
                ErrorKind::WouldBlock
            );
        }
        find_answers();
        for client in late {
            eventually("it is accepted", || has_ended(&client));
            client.set_nonblocking(false).expect("an option");
            let mut client = TcpStream::from(client);
            bounded(&client);
            let greeting = format!(
                "{} to {}\n",
                client.local_addr().expect("bound"),
                client.peer_addr().expect("open")
            );
            client.write_all(b"ping").expect("open");
            let mut told = vec![0; greeting.len() + 4];
            client.read_exact(&mut told).expect("what was said");
            assert_eq!(String::from_utf8_lossy(&told), format!("{greeting}ping"));
        }
        assert!(
            heard.iter_mut().all(|server| server.read(&mut [0; 256]).is_ok()),
            "they hear what weir begins"
        );
        assert_eq!(weir.total("tcp_connections"), known + 2);
        // Other connections do pass by.
        between.ask(CLIENT[0], 0, SERVER[0], 8080).expect("nobody is between");
        assert_eq!(weir.total("tcp_connections"), known + 2);
        weir.end("-INT");
    });
}
