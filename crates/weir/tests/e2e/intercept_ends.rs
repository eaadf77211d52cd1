//! Proves: through `weir intercept` each direction ends separately, in either order. An abort on
//! one side aborts the other, and loses no earlier data. While weir is stopped new connections pass
//! by. A client that reads nothing pins no more than docs/buffers.md says. A firewall that tracks
//! connections does no harm, even if a client's port is reused at once. How: the real binary
//! between two networks of the test, with clients and servers that do each. Needs root.
//! docs/intercept.md.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::SockRef;

use crate::intercept::{Intercept, echoes, in_network_with_programs};
use crate::intercept_first::{begin, between, has_ended};
use crate::kit::{Io, Scratch, bounded, eventually, on_both_drivers, run};
use crate::transparent::{Between, CLIENT, SERVER, who_reads_nothing};

on_both_drivers!(
    either_direction_ends_first,
    an_abort_is_one,
    where_connections_are_tracked,
    a_stopped_weir_is_passed_by;
    alone:
    who_reads_nothing_pins_little,
);

fn in_network(test: &str, io: Io, body: impl FnOnce()) {
    in_network_with_programs("intercept_ends", test, io, body);
}

/// Both ends of connections of either family, the client's first.
struct Pairs {
    between: Between,
    servers: [TcpListener; 2],
}

impl Pairs {
    fn new() -> Pairs {
        let between = Between::new();
        let servers = SERVER.map(|host| {
            let at = SocketAddr::new(host.parse().expect("an address"), 8080);
            between.servers.inside(|| TcpListener::bind(at)).expect("a free port")
        });
        Pairs { between, servers }
    }

    fn pair(&self, family: usize) -> [TcpStream; 2] {
        let client = begin(&self.between, (CLIENT[family], 0), (SERVER[family], 8080));
        let (server, _) = self.servers[family].accept().expect("weir comes");
        eventually("it is accepted", || has_ended(&client));
        client.set_nonblocking(false).expect("an option");
        let pair = [TcpStream::from(client), server];
        for one in &pair {
            bounded(one);
        }
        pair
    }
}

fn tells(from: &mut TcpStream, to: &mut TcpStream) {
    from.write_all(b"so far").expect("open");
    let mut told = [0; 6];
    to.read_exact(&mut told).expect("what was said");
    assert_eq!(&told, b"so far");
}

fn either_direction_ends_first(io: Io) {
    in_network("either_direction_ends_first", io, || {
        let pairs = Pairs::new();
        let weir = Intercept::start(io, &[]);
        let much: Vec<u8> = (0..2_000_000_u32).map(|at| (at / 7) as u8).collect();
        for (family, is_client) in [(0, true), (0, false), (1, true), (1, false)] {
            let [client, server] = pairs.pair(family);
            let (mut first, mut last) = if is_client { (client, server) } else { (server, client) };
            first.write_all(b"that is all").expect("open");
            first.shutdown(Shutdown::Write).expect("open");
            let mut told = String::new();
            last.read_to_string(&mut told).expect("an end in order");
            assert_eq!(told, "that is all");
            // The other direction continues.
            let mut back = Vec::new();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    last.write_all(&much).expect("open");
                    last.shutdown(Shutdown::Write).expect("open");
                });
                first.read_to_end(&mut back).expect("an end in order");
            });
            assert!(back == much, "{} bytes", back.len());
            eventually("it is over", || weir.total("client_connections") == 0);
        }
        assert_eq!(weir.total("tcp_connections"), 4);
        weir.end("-TERM");
    });
}

fn an_abort_is_one(io: Io) {
    in_network("an_abort_is_one", io, || {
        let pairs = Pairs::new();
        let weir = Intercept::start(io, &[]);
        for family in [0, 1] {
            for (is_client, is_half_closed) in
                [(true, false), (false, false), (true, true), (false, true)]
            {
                let [client, server] = pairs.pair(family);
                let (mut one, mut other) =
                    if is_client { (client, server) } else { (server, client) };
                tells(&mut other, &mut one);
                tells(&mut one, &mut other);
                if is_half_closed {
                    other.shutdown(Shutdown::Write).expect("open");
                    assert_eq!(one.read(&mut [0; 4]).expect("an end in order"), 0);
                    tells(&mut one, &mut other);
                }
                SockRef::from(&one).set_linger(Some(Duration::ZERO)).expect("an option");
                drop(one);
                let end = other.read(&mut [0; 4]).expect_err("it does not look whole");
                assert_eq!(
                    end.kind(),
                    ErrorKind::ConnectionReset,
                    "client {is_client}, half {is_half_closed}"
                );
                eventually("it is over", || weir.total("client_connections") == 0);
            }
        }
        assert_eq!(weir.total("tcp_connections"), 8);
        weir.end("-TERM");
    });
}

fn who_reads_nothing_pins_little(io: Io) {
    in_network("alone::who_reads_nothing_pins_little", io, || {
        let between = Between::new();
        let weir = Intercept::start(io, &[]);
        who_reads_nothing(&between);
        assert_eq!(weir.total("tcp_connections"), 1);
        weir.end("-TERM");
    });
}

/// Whether a server greets a new client soon.
fn is_served(between: &Between, from: &str, to: &str) -> bool {
    let client = begin(between, (from, 0), (to, 8080));
    client.set_nonblocking(false).expect("an option");
    client.set_read_timeout(Some(Duration::from_millis(300))).expect("an option");
    (&client).read(&mut [0; 4]).is_ok_and(|read| read > 0)
}

/// A signal that stops the process also stops every thread that could report that.
fn a_stopped_weir_is_passed_by(io: Io) {
    in_network("a_stopped_weir_is_passed_by", io, || {
        let (between, weir) = (between(), Intercept::start(io, &[]));
        let (mut before, _) = between.ask(CLIENT[0], 0, SERVER[0], 8080).expect("it gets through");
        echoes(&mut before);
        eventually("it is taken", || weir.total("tcp_connections") == 1);
        weir.signal("-STOP");
        for (from, to) in CLIENT.into_iter().zip(SERVER) {
            // Connections that begin before it is noticed wait until weir continues.
            eventually("new connections pass by", || is_served(&between, from, to));
        }
        weir.signal("-CONT");
        echoes(&mut before);
        eventually("weir intercepts new connections again", || {
            let taken = weir.total("tcp_connections");
            let (mut stream, _) =
                between.ask(CLIENT[0], 0, SERVER[0], 8080).expect("it gets through");
            echoes(&mut stream);
            weir.total("tcp_connections") > taken
        });
        assert!(weir.status()["interception"]["unserved"].as_u64().is_some_and(|count| count >= 2));
        weir.end("-TERM");
    });
}

/// Rules that accept what conntrack knows and new connections to servers, and nothing that looks
/// wrong: on the router, and in the namespace of weir's sockets.
fn where_connections_are_tracked(io: Io) {
    in_network("where_connections_are_tracked", io, || {
        let (between, scratch) = (between(), Scratch::new());
        let chain = |hook: &str| {
            format!(
                "chain {hook} {{ type filter hook {hook} priority filter; policy drop;
                    ct state invalid counter name wrong drop
                    ct state established counter name known accept
                    meta l4proto {{ icmp, icmpv6 }} accept
                    ct state new tcp dport 8080 counter name begun accept }}\n"
            )
        };
        let counters = "counter wrong {}\ncounter known {}\ncounter begun {}\n";
        let rules = format!(
            "table inet guard {{ {counters}{} }}\n",
            ["input", "output", "forward"].map(chain).concat()
        );
        let rules = scratch.write("rules.nft", rules.as_bytes()).display().to_string();
        let loaded = run("nft", &["-f", &rules]);
        if !loaded.status.success() {
            return eprintln!(
                "not tested: no conntrack here: {}",
                String::from_utf8_lossy(&loaded.stderr)
            );
        }
        let weir = Intercept::start(io, &[]);
        let process = weir.process().to_string();
        let inside =
            |command: &[&str]| run("nsenter", &[&["-t", &process, "-n"], command].concat());
        assert!(inside(&["nft", "-f", &rules]).status.success());
        let much: Vec<u8> = (0..2_000_000_u32).map(|at| (at / 7) as u8).collect();
        for (from, to) in CLIENT.into_iter().zip(SERVER) {
            for _ in 0..3 {
                let (mut stream, told) =
                    between.ask(from, 4000, to, 8080).expect("it gets through");
                assert!(told.contains("4000 to ") && told.contains(from), "{told}");
                std::thread::scope(|scope| {
                    let (mut writer, much) = (&stream, &much);
                    scope.spawn(move || writer.write_all(much).expect("open"));
                    let mut back = vec![0; much.len()];
                    (&stream).read_exact(&mut back).expect("what was said");
                    assert!(back == *much);
                });
                echoes(&mut stream);
                SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("an option");
            }
        }
        assert_eq!((weir.total("tcp_connections"), weir.total("tcp_ports_changed")), (6, 0));
        let counted = |name: &str, is_inside: bool| {
            let list = ["nft", "list", "counter", "inet", "guard", name];
            let shown = if is_inside { inside(&list) } else { run(list[0], &list[1..]) };
            let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
            let packets =
                shown.split_once("packets ").and_then(|(_, rest)| rest.split_whitespace().next());
            packets
                .and_then(|packets| packets.parse::<u64>().ok())
                .unwrap_or_else(|| panic!("{name}: {shown}"))
        };
        assert!(counted("known", true) > 100 && counted("begun", false) >= 6, "both track");
        assert_eq!((counted("wrong", true), counted("wrong", false)), (0, 0));
        weir.end("-TERM");
    });
}
