//! Proves: if packets are led to weir, by routes or by TPROXY, connections go on to their original
//! destinations, from the address and port of their client, with a congestion control on each side.
//! weir does not connect to itself for a client that means weir; without the right to it weir does
//! not start, and says why. How: the real binary between two networks of the test. Needs root.
//! docs/transparent.md.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::io::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::destinations::destination;
use crate::intercept::echoes;
use crate::kit::{
    Io, Neighbour, Scratch, Weir, bounded, eventually, finish_without_rights,
    in_own_network_as_root, ip, on_both_drivers, patience_now, received, run, status,
};

on_both_drivers!(
    by_routes,
    by_tproxy,
    where_connections_are_tracked,
    without_the_right_weir_says_so;
    alone:
    who_reads_nothing_pins_little,
);

/// Clients and servers, and this machine between them.
pub(crate) struct Between {
    pub(crate) clients: Neighbour,
    pub(crate) servers: Neighbour,
}

pub(crate) const CLIENT: [&str; 2] = ["198.18.1.2", "fd00:1::2"];
pub(crate) const SERVER: [&str; 2] = ["198.18.2.2", "fd00:2::2"];

impl Between {
    pub(crate) fn new() -> Between {
        let between =
            Between { clients: Neighbour::new("pc", "c"), servers: Neighbour::new("ps", "s") };
        for (own, far, neighbour, net) in
            [("pc", "c", &between.clients, 1), ("ps", "s", &between.servers, 2)]
        {
            ip(&format!("addr add 198.18.{net}.1/24 dev {own}"));
            ip(&format!("addr add fd00:{net}::1/64 dev {own} nodad"));
            ip(&format!("link set {own} up"));
            neighbour.ip(&format!("addr add 198.18.{net}.2/24 dev {far}"));
            neighbour.ip(&format!("addr add fd00:{net}::2/64 dev {far} nodad"));
            neighbour.ip(&format!("link set {far} up"));
            neighbour.ip(&format!("route add default via 198.18.{net}.1"));
            neighbour.ip(&format!("-6 route add default via fd00:{net}::1"));
        }
        for name in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            std::fs::write(format!("/proc/sys/{name}"), "1").expect("root may");
        }
        for family in ["-4", "-6"] {
            ip(&format!("{family} route add local default dev lo table 100"));
        }
        between.meet();
        between
    }

    /// Waits until clients reach the servers' machine, which refuses ports that it does not serve:
    /// neighbours of IPv6 find each other only when interfaces have addresses.
    pub(crate) fn meet(&self) {
        const NOBODY: u16 = 9;
        for (from, to) in CLIENT.into_iter().zip(SERVER) {
            let is_refused = || {
                self.ask(from, 0, to, NOBODY)
                    .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
            };
            eventually("clients reach their servers", is_refused);
        }
    }

    /// Starts a server that reports its client's address, then echoes.
    pub(crate) fn serve(&self, host: &str, port: u16) {
        let at = SocketAddr::new(host.parse().expect("an address"), port);
        let listener = self.servers.inside(|| TcpListener::bind(at)).expect("a free port");
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || {
                    let peer = stream.peer_addr()?;
                    writeln!(stream, "{peer} to {}", stream.local_addr()?)?;
                    let mut buffer = [0; 4096];
                    while let n @ 1.. = stream.read(&mut buffer)? {
                        stream.write_all(&buffer[..n])?;
                    }
                    Ok::<_, std::io::Error>(())
                });
            }
        });
    }

    /// Connects a client there, from a port of its choice. Returns it with the server's report.
    pub(crate) fn ask(
        &self,
        from: &str,
        port: u16,
        to: &str,
        to_port: u16,
    ) -> std::io::Result<(TcpStream, String)> {
        self.ask_by(Protocol::TCP, (from, port), (to, to_port))
    }

    /// The same by this protocol.
    pub(crate) fn ask_by(
        &self,
        protocol: Protocol,
        from: (&str, u16),
        to: (&str, u16),
    ) -> std::io::Result<(TcpStream, String)> {
        let [from, to] =
            [from, to].map(|(host, port)| SocketAddr::new(host.parse().expect("an address"), port));
        self.clients.inside(|| {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(protocol))?;
            socket.set_reuse_address(true)?;
            socket.bind(&from.into())?;
            socket.connect_timeout(&to.into(), patience_now())?;
            let mut stream = TcpStream::from(socket);
            bounded(&stream);
            let mut told = Vec::new();
            while !told.ends_with(b"\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte)?;
                told.push(byte[0]);
            }
            Ok((stream, String::from_utf8_lossy(told.trim_ascii_end()).into_owned()))
        })
    }

    /// Checks that a client that would use several paths gets through, if the kernel supports that.
    pub(crate) fn ask_by_paths(&self, port: u16) {
        match self.ask_by(Protocol::MPTCP, (CLIENT[0], port), (SERVER[0], 8080)) {
            Ok((mut stream, _)) => echoes(&mut stream),
            Err(error)
                if matches!(
                    Errno::from_io_error(&error),
                    Some(Errno::PROTONOSUPPORT | Errno::NOPROTOOPT)
                ) =>
            {
                eprintln!("not tested: this kernel has no Multipath TCP");
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Checks that both families get through with their addresses.
    fn gets_through(&self, weir: &Weir) {
        for (at, (from, to)) in CLIENT.into_iter().zip(SERVER).enumerate() {
            for round in 0..3 {
                let before = total(weir, "tcp_connections");
                let (mut stream, told) =
                    self.ask(from, 4000 + round, to, 8080).expect("it gets through");
                let show = |host: &str, port: u16| {
                    SocketAddr::new(host.parse().expect("an address"), port)
                };
                assert_eq!(told, format!("{} to {}", show(from, 4000 + round), show(to, 8080)));
                assert_eq!(total(weir, "tcp_connections"), before + 1, "by weir");
                stream.write_all(b"ping").expect("open");
                let mut back = [0; 4];
                stream.read_exact(&mut back).expect("what was said");
                assert_eq!(&back, b"ping", "family {at}");
                SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("an option");
            }
        }
    }
}

fn total(weir: &Weir, name: &str) -> u64 {
    status(weir)["totals"][name].as_u64().unwrap_or(0)
}

fn in_network(test: &str, io: Io, body: impl FnOnce()) {
    in_own_network_as_root(&format!("transparent::{}::{test}", io.word()), body);
}

pub(crate) fn passing(port: u16, scratch: &Scratch) -> String {
    let listen =
        |host: &str| format!("listen \"{host}:{port}\" transparent=#true congestion=\"reno\"; ");
    format!(
        "access-log \"{}\" format=\"$remote_addr $remote_port $upstream_addr $reason\"\n\
         tcp {{ {}{} proxy \"through\"; }}\n\
         upstream \"through\" {{ server \"original-destination\"; source \"client\"; congestion \
         \"reno\"; }}\n\
         route {{ respond 204; }}\n",
        scratch.path("access.log").display(),
        listen("0.0.0.0"),
        listen("[::]"),
    )
}

/// Returns the congestion controls of established connections here from or to this port (ss(8)).
fn congestion(port: u16) -> Vec<String> {
    let filter = format!("( sport = :{port} or dport = :{port} )");
    let shown = run("ss", &["-Htin", "state", "established", &filter]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let known = ["reno", "cubic", "bbr"];
    shown.split_whitespace().filter(|word| known.contains(word)).map(str::to_owned).collect()
}

/// Leads packets to weir by the port that clients connect to.
pub(crate) fn lead_by_routes() {
    for family in ["-4", "-6"] {
        ip(&format!("{family} rule add iif pc ipproto tcp dport 8080 lookup 100"));
        ip(&format!("{family} rule add iif ps ipproto tcp sport 8080 lookup 100"));
    }
}

fn by_routes(io: Io) {
    in_network("by_routes", io, || {
        let (between, scratch) = (Between::new(), Scratch::new());
        lead_by_routes();
        SERVER.iter().for_each(|host| between.serve(host, 8080));
        let weir = Weir::start(io, 2, &passing(8080, &scratch));
        between.gets_through(&weir);
        let (open, _) = between.ask(CLIENT[0], 4100, SERVER[0], 8080).expect("it gets through");
        assert_eq!(congestion(8080), ["reno", "reno"], "both sides");
        drop(open);
        // A destination that refuses, and this machine as a destination.
        let refused =
            between.ask(CLIENT[0], 0, "198.18.2.1", 8080).expect_err("it is weir's own address");
        assert_eq!(refused.kind(), ErrorKind::ConnectionReset);
        let own = || status(&weir)["totals"]["tcp_closes"]["own-destination"].as_u64();
        eventually("it is counted", || own() >= Some(1));
        let row = || destination(&status(&weir), "198.18.2.1:8080");
        eventually("it is counted where it wanted to", || {
            row()["refusals"]["own-destination"].as_u64() >= Some(1)
        });
        let lines = || std::fs::read_to_string(scratch.path("access.log")).unwrap_or_default();
        eventually("lines say where to", || {
            lines().contains("198.18.1.2 4000 198.18.2.2:8080 ")
                && lines().contains("fd00:1::2 4000 [fd00:2::2]:8080 ")
                && lines().contains(" - own-destination\n")
        });
        weir.stop();
    });
}

fn by_tproxy(io: Io) {
    in_network("by_tproxy", io, || {
        let (between, scratch) = (Between::new(), Scratch::new());
        for family in ["-4", "-6"] {
            ip(&format!("{family} rule add fwmark 1 lookup 100"));
        }
        let rules = scratch.write(
            "rules.nft",
            b"table inet weir {
                chain prerouting {
                    type filter hook prerouting priority mangle;
                    meta l4proto { tcp, icmp, icmpv6 } socket transparent 1 meta mark set 1 accept
                    tcp option md5sig exists accept
                    tcp option 29 exists accept
                    tcp option mptcp exists accept
                    iifname pc tcp dport 8080 tcp flags & (syn | ack) == syn \
                    meta nfproto ipv4 tproxy ip to :1234 meta mark set 1 accept
                    iifname pc tcp dport 8080 tcp flags & (syn | ack) == syn \
                    meta nfproto ipv6 tproxy ip6 to :1234 meta mark set 1 accept
                }
            }\n",
        );
        let loaded = run("nft", &["-f", &rules.display().to_string()]);
        if !loaded.status.success() {
            return eprintln!(
                "not tested: no TPROXY here: {}",
                String::from_utf8_lossy(&loaded.stderr)
            );
        }
        SERVER.iter().for_each(|host| between.serve(host, 8080));
        // Without a listener packets pass as without rules.
        let (mut before, _) =
            between.ask(CLIENT[0], 3999, SERVER[0], 8080).expect("nobody is between");
        let weir = Weir::start(io, 2, &passing(1234, &scratch));
        between.gets_through(&weir);
        // Earlier connections continue, and connections that a second one could not copy pass by.
        echoes(&mut before);
        let taken = total(&weir, "tcp_connections");
        between.ask_by_paths(3997);
        assert_eq!(total(&weir, "tcp_connections"), taken);
        weir.stop();
        between.ask(CLIENT[0], 3998, SERVER[0], 8080).expect("nobody is between any more");
    });
}

/// For conntrack, both legs are one connection, by addresses and ports. A firewall that accepts
/// what it knows, and nothing that looks wrong, harms neither.
fn where_connections_are_tracked(io: Io) {
    in_network("where_connections_are_tracked", io, || {
        let (between, scratch) = (Between::new(), Scratch::new());
        lead_by_routes();
        let chain = |hook: &str| {
            format!(
                "chain {hook} {{ type filter hook {hook} priority filter; policy drop;
                    ct state invalid counter name wrong drop
                    ct state established counter name known accept
                    meta l4proto {{ icmp, icmpv6 }} accept
                    ct state new tcp dport 8080 accept
                    iifname lo accept; oifname lo accept }}"
            )
        };
        let counters = "counter wrong {} counter known {}";
        let rules =
            format!("table inet guard {{ {counters}\n{}\n{} }}\n", chain("input"), chain("output"));
        let rules = scratch.write("rules.nft", rules.as_bytes());
        let loaded = run("nft", &["-f", &rules.display().to_string()]);
        if !loaded.status.success() {
            return eprintln!(
                "not tested: no conntrack here: {}",
                String::from_utf8_lossy(&loaded.stderr)
            );
        }
        SERVER.iter().for_each(|host| between.serve(host, 8080));
        let weir = Weir::start(io, 2, &passing(8080, &scratch));
        between.gets_through(&weir);
        // A lot, both ways at a time.
        let (stream, _) = between.ask(CLIENT[0], 4200, SERVER[0], 8080).expect("it gets through");
        let sent: Vec<u8> = (0..4_000_000_u32).map(|at| (at / 7) as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| (&stream).write_all(&sent).expect("open"));
            let mut back = vec![0; sent.len()];
            (&stream).read_exact(&mut back).expect("what was said");
            assert!(back == sent);
        });
        let counted = |name: &str| {
            let shown = run("nft", &["list", "counter", "inet", "guard", name]);
            let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
            let packets =
                shown.split_once("packets ").and_then(|(_, rest)| rest.split_whitespace().next());
            packets
                .and_then(|packets| packets.parse::<u64>().ok())
                .unwrap_or_else(|| panic!("{name}: {shown}"))
        };
        assert!(counted("known") > 100, "it tracks");
        assert_eq!(counted("wrong"), 0);
        weir.stop();
    });
}

fn who_reads_nothing_pins_little(io: Io) {
    in_network("alone::who_reads_nothing_pins_little", io, || {
        let (between, scratch) = (Between::new(), Scratch::new());
        lead_by_routes();
        let weir = Weir::start(io, 1, &passing(8080, &scratch));
        who_reads_nothing(&between);
        weir.stop();
    });
}

/// A server that has 300 MB for a client that does not read can send what the kernel's sockets and
/// a pipe hold, and the client gets all of it later.
pub(crate) fn who_reads_nothing(between: &Between) {
    const ALL: usize = 300_000_000;
    let at = SocketAddr::new(SERVER[0].parse().expect("an address"), 8080);
    let listener = between.servers.inside(|| TcpListener::bind(at)).expect("a free port");
    let (stalls, stalled) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().expect("weir comes");
            stream.write_all(b"ready\n").expect("open");
            let text: Vec<u8> = (0..1_u32 << 20).map(|at| (at / 3) as u8).collect();
            let mut sent = 0;
            // A stalled stream can only be recognized by a long wait.
            stream.set_write_timeout(Some(Duration::from_secs(1))).expect("an option");
            while sent < ALL {
                let from = sent % text.len();
                match stream.write(&text[from..text.len().min(from + ALL - sent)]) {
                    Ok(bytes) => sent += bytes,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => drop(stalls.send(sent)),
                    Err(error) => panic!("behind {sent}: {error}"),
                }
            }
        });
        let (mut client, told) =
            between.ask(CLIENT[0], 4300, SERVER[0], 8080).expect("it gets through");
        assert_eq!(told, "ready");
        let most = |name: &str| -> usize {
            let limits = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"))
                .expect("every Linux has it");
            limits
                .split_whitespace()
                .last()
                .and_then(|most| most.parse().ok())
                .expect("three numbers")
        };
        // Two connections, each with a sender and a receiver, and a pipe between them.
        let bound = 2 * (most("tcp_rmem") + most("tcp_wmem")) + (1 << 20) + (64 << 10);
        assert!(bound < ALL / 2, "this kernel holds too much for this test");
        let held = received(&stalled).expect("it comes to a standstill");
        assert!(held < bound, "{held} of {bound} bytes were taken");
        let (mut at, mut buffer) = (0, vec![0; 1 << 20]);
        while at < ALL {
            let n = client.read(&mut buffer).expect("all of it comes");
            assert!(n > 0, "it ends behind {at}");
            for (offset, byte) in buffer[..n].iter().enumerate() {
                assert!(*byte == ((at + offset) % (1 << 20) / 3) as u8, "at {}", at + offset);
            }
            at += n;
        }
    });
}

fn without_the_right_weir_says_so(io: Io) {
    in_network("without_the_right_weir_says_so", io, || {
        let scratch = Scratch::new();
        let start = |text: &str| {
            finish_without_rights(io, &scratch, &format!("listen \"127.0.0.1:8080\"\n{text}"))
        };
        let (code, said) = start(&passing(1234, &scratch));
        assert_eq!(code, Some(77), "{said}");
        assert!(
            said.contains("cannot listen on 0.0.0.0:1234") && said.contains("CAP_NET_RAW"),
            "{said}"
        );
        let upstream =
            "upstream \"a\" { server \"127.0.0.1:9\"; source \"client\"; }\nroute { respond 204; }";
        let (code, said) =
            start(&format!("tcp {{ listen \"127.0.0.1:1234\"; proxy \"a\"; }}\n{upstream}\n"));
        assert_eq!(code, Some(77), "{said}");
        assert!(
            said.contains("`source \"client\"`") && said.contains("help: start weir as root"),
            "{said}"
        );
        let upstream = "upstream \"a\" { server \"127.0.0.1:9\"; congestion \"warp\"; }";
        let (code, said) = start(&format!("route {{ proxy \"a\"; }}\n{upstream}\n"));
        assert_ne!(code, Some(0));
        assert!(
            said.contains("congestion control `warp`: this kernel has no such congestion control"),
            "{said}"
        );
    });
}
