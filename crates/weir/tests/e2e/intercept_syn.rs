//! Proves: with `weir intercept --connect syn` weir connects to a server at its client's first
//! packet, once, even if that is repeated. An accepted client is joined with the connection begun
//! for it. Refusals and silence are as with `accept`. A client that is not accepted costs its
//! server a connection for a while, and only a limited number of them. If a client's port is taken
//! weir uses another, as with `first`. Nothing remains of what was begun. How: the real binary
//! between two networks of the test; replies to some clients are lost on the way. Needs root.
//! docs/intercept.md.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};
use weir_io::Namespace;

use crate::intercept::{Intercept, echoes, in_network_with_programs, surroundings};
use crate::intercept_first::{
    DROPPED, UNREACHABLE, ask_many, begin, between, has_ended, make_networks, sent_again,
};
use crate::kit::{Io, bounded, eventually, ip, on_both_drivers, patience_now};
use crate::transparent::{Between, CLIENT, SERVER};

on_both_drivers!(
    servers_are_asked_at_once,
    servers_that_refuse_or_are_silent,
    a_client_that_is_late_is_joined,
    many_at_once,
    who_is_not_accepted_is_given_up,
    a_flood_is_accepted_first,
    a_port_that_is_taken,
    nothing_is_left_of_what_was_begun,
);

const SYN: [&str; 2] = ["--connect", "syn"];

/// Other addresses of the clients' machine.
pub(crate) const LATE: [&str; 2] = ["198.18.1.77", "fd00:1::77"];

fn in_network(test: &str, io: Io, body: impl FnOnce()) {
    in_network_with_programs("intercept_syn", test, io, body);
}

/// Loses replies to these addresses of clients from now on; their own packets arrive.
pub(crate) fn lose_answers(between: &Between) {
    for address in LATE {
        let (length, nodad) = if address.contains(':') { (128, " nodad") } else { (32, "") };
        between.clients.ip(&format!("addr add {address}/{length} dev c{nodad}"));
        ip(&format!("neigh replace {address} lladdr 02:00:00:00:00:77 dev pc nud permanent"));
    }
}

pub(crate) fn find_answers() {
    LATE.iter().for_each(|address| ip(&format!("neigh del {address} dev pc")));
}

/// Starts a server of this test alone, beside the usual ones.
fn listen(between: &Between, host: &str) -> TcpListener {
    let at = SocketAddr::new(host.parse().expect("an address"), 8443);
    between.servers.inside(|| TcpListener::bind(at)).expect("a free port")
}

/// Begins to connect to it from there.
fn begin_late(between: &Between, from: &str, to: &str) -> Socket {
    begin(between, (from, 0), (to, 8443))
}

fn servers_are_asked_at_once(io: Io) {
    in_network("servers_are_asked_at_once", io, || {
        let between = between();
        let weir = Intercept::start(io, &["--connect", "syn", "--server-congestion", "reno"]);
        for (at, (from, to)) in (1..).zip(CLIENT.into_iter().zip(SERVER)) {
            // The same addresses and ports once more.
            for at in [2 * at - 1, 2 * at] {
                // The server speaks first.
                let (mut stream, told) =
                    between.ask(from, 4000, to, 8080).expect("it gets through");
                assert!(told.contains("4000 to ") && told.contains(from), "{told}");
                echoes(&mut stream);
                assert_eq!(weir.total("tcp_connections"), at);
                assert_eq!(weir.held("early") + weir.held("let-through"), at);
                // Reset, so that nothing remains of this connection.
                SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("an option");
                drop(stream);
                eventually("it is gone", || weir.total("client_connections") == 0);
            }
        }
        assert_eq!(
            (weir.total("tcp_holding"), weir.total("tcp_ports_changed"), weir.held("abandoned")),
            (0, 0, 0)
        );
        let said = weir.end("-TERM");
        assert!(said.contains(" connections=4 "), "{said}");
    });
}

fn servers_that_refuse_or_are_silent(io: Io) {
    in_network("servers_that_refuse_or_are_silent", io, || {
        let between = between();
        make_networks(&between);
        let weir = Intercept::start(io, &SYN);
        for (from, to) in CLIENT.into_iter().zip(SERVER) {
            let refused = between.ask(from, 0, to, 8443).expect_err("nobody is there");
            assert_eq!(refused.kind(), ErrorKind::ConnectionReset, "it was accepted");
        }
        let closes = || weir.totals()["tcp_closes"]["connect-failed"].as_u64();
        eventually("both are counted", || closes() == Some(2));
        for (from, to) in CLIENT.into_iter().zip(UNREACHABLE) {
            let told = between.ask(from, 0, to, 8080).expect_err("nobody is there");
            assert_eq!(told.kind(), ErrorKind::ConnectionReset, "{to} was accepted");
        }
        eventually("they are counted", || closes() == Some(4));
        // They are accepted, and wait.
        let silent: Vec<_> = CLIENT
            .into_iter()
            .zip(DROPPED)
            .map(|(from, to)| begin(&between, (from, 0), (to, 8080)))
            .collect();
        eventually("they are accepted", || {
            silent.iter().all(has_ended) && weir.total("client_connections") == 2
        });
        assert_eq!(
            (weir.total("tcp_holding"), weir.held("early") + weir.held("let-through")),
            (0, 6)
        );
        let (mut stream, _) = between.ask(CLIENT[0], 0, SERVER[0], 8080).expect("it gets through");
        echoes(&mut stream);
        drop(stream);
        weir.end("-INT");
    });
}

/// The server has the connection before its client is accepted, whose first packet has come twice
/// by then.
fn a_client_that_is_late_is_joined(io: Io) {
    in_network("a_client_that_is_late_is_joined", io, || {
        let between = between();
        lose_answers(&between);
        let servers = SERVER.map(|host| listen(&between, host));
        let weir = Intercept::start(io, &SYN);
        let before = sent_again(&between);
        let late: Vec<_> =
            LATE.into_iter().zip(SERVER).map(|(from, to)| begin_late(&between, from, to)).collect();
        let asked: Vec<_> =
            servers.iter().map(|server| server.accept().expect("it is asked")).collect();
        assert!(!late.iter().any(has_ended) && weir.total("tcp_connections") == 0);
        eventually("both have sent it again", || sent_again(&between) >= before + 2);
        eventually("both wait", || weir.total("tcp_holding") == 2);
        find_answers();
        for ((client, (mut server, peer)), from) in late.into_iter().zip(asked).zip(LATE) {
            assert_eq!(
                client.local_addr().ok().and_then(|own| own.as_socket()),
                Some(peer),
                "{from}"
            );
            assert_eq!(peer.ip().to_string(), from);
            eventually("it is accepted", || has_ended(&client));
            client.set_nonblocking(false).expect("an option");
            let mut client = TcpStream::from(client);
            [&client, &server].into_iter().for_each(bounded);
            for (one, other) in [(true, "hello"), (false, "there")] {
                let (from, to) =
                    if one { (&mut server, &mut client) } else { (&mut client, &mut server) };
                from.write_all(other.as_bytes()).expect("open");
                let mut told = [0; 5];
                to.read_exact(&mut told).expect("it comes");
                assert_eq!(&told, other.as_bytes());
            }
        }
        assert_eq!(
            (weir.held("early"), weir.held("let-through"), weir.total("tcp_holding")),
            (2, 0, 0)
        );
        // Each server got only one connection.
        for server in servers {
            server.set_nonblocking(true).expect("an option");
            assert_eq!(server.accept().expect_err("nobody comes").kind(), ErrorKind::WouldBlock);
        }
        weir.end("-TERM");
    });
}

fn many_at_once(io: Io) {
    in_network("many_at_once", io, || {
        let between = between();
        let weir = Intercept::start(io, &SYN);
        let all = ask_many(&between);
        assert_eq!(
            (weir.held("early") + weir.held("let-through"), weir.total("tcp_connections")),
            (all, all)
        );
        assert_eq!((weir.total("tcp_holding"), weir.total("tcp_ports_changed")), (0, 0));
        weir.end("-TERM");
    });
}

fn who_is_not_accepted_is_given_up(io: Io) {
    in_network("who_is_not_accepted_is_given_up", io, || {
        let between = between();
        lose_answers(&between);
        let servers = SERVER.map(|host| listen(&between, host));
        let weir = Intercept::start(io, &SYN);
        let late: Vec<_> =
            LATE.into_iter().zip(SERVER).map(|(from, to)| begin_late(&between, from, to)).collect();
        for server in &servers {
            let (mut asked, _) = server.accept().expect("it is asked");
            bounded(&asked);
            let over = asked.read(&mut [0; 4]).expect_err("nobody has come");
            assert_eq!(over.kind(), ErrorKind::ConnectionReset);
        }
        eventually("they are counted", || weir.held("abandoned") >= 2);
        assert_eq!(weir.total("tcp_connections"), 0);
        drop(late);
        weir.end("-TERM");
    });
}

fn a_flood_is_accepted_first(io: Io) {
    in_network("a_flood_is_accepted_first", io, || {
        let between = &between();
        lose_answers(between);
        // A quarter of the descriptors may wait.
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -n 400; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_weir")]);
        let weir = Intercept::start_by(shell, io, &SYN);
        let flood = |count, family: usize| {
            (0..count).map(move |_| begin(between, (LATE[family], 0), (SERVER[family], 8080)))
        };
        let mut late: Vec<_> = flood(100, 0).chain(flood(10, 1)).collect();
        eventually("there is no room", || weir.total("tcp_holding") >= 100);
        // It continues until a client is accepted first: connections that wait for long are dropped
        // meanwhile.
        let port = std::cell::Cell::new(4000);
        let ask = || {
            port.set(port.get() + 1);
            let (mut stream, told) =
                between.ask(CLIENT[0], port.get(), SERVER[0], 8080).expect("it gets through");
            assert!(told.starts_with(&format!("198.18.1.2:{} to ", port.get())), "{told}");
            echoes(&mut stream);
        };
        eventually("one is accepted first", || {
            late.extend(flood(10, 1));
            ask();
            weir.held("let-through") > 0
        });
        assert!(weir.total("tcp_holding") <= 100);
        // There is room again when they have been dropped.
        drop(late);
        let before = weir.held("early");
        eventually("one is asked early again", || {
            ask();
            weir.held("early") > before
        });
        weir.end("-TERM");
    });
}

/// A program in weir's network has a connection between a client's address and port and its
/// server's: servers see another port, in each mode.
fn a_port_that_is_taken(io: Io) {
    in_network("a_port_that_is_taken", io, || {
        let between = between();
        for connect in ["syn", "first", "accept"] {
            let weir = Intercept::start(io, &["--connect", connect]);
            let place = Namespace::open(format!("/proc/{}/ns/net", weir.process()).as_ref())
                .expect("its namespace");
            for (at, (from, to)) in (1..).zip(CLIENT.into_iter().zip(SERVER)) {
                let take = || {
                    let [from, to] = [(from, 4000), (to, 8080)].map(|(host, port)| {
                        SocketAddr::new(host.parse().expect("an address"), port)
                    });
                    let socket =
                        Socket::new(Domain::for_address(to), Type::STREAM, None).expect("a socket");
                    match from {
                        SocketAddr::V4(_) => socket.set_ip_transparent_v4(true),
                        SocketAddr::V6(_) => socket.set_ip_transparent_v6(true),
                    }
                    .expect("an option");
                    socket.set_reuse_address(true).expect("an option");
                    socket.bind(&from.into()).expect("it is transparent");
                    socket.connect_timeout(&to.into(), patience_now()).expect("it gets through");
                    socket
                };
                let taken = place.enter(take).expect("root may");
                let (mut stream, told) =
                    between.ask(from, 4000, to, 8080).expect("it gets through");
                assert!(told.contains(from) && !told.contains("4000 to "), "{connect}: {told}");
                echoes(&mut stream);
                assert_eq!(
                    (weir.total("tcp_ports_changed"), weir.total("tcp_connections")),
                    (at, at),
                    "{connect}"
                );
                assert_eq!(weir.held("abandoned"), 0);
                // Both are reset, so that nothing remains of this connection.
                let both = [taken, Socket::from(stream)];
                both.iter()
                    .for_each(|one| one.set_linger(Some(Duration::ZERO)).expect("an option"));
                drop(both);
                eventually("it is gone", || weir.total("client_connections") == 0);
            }
            weir.end("-TERM");
        }
    });
}

fn nothing_is_left_of_what_was_begun(io: Io) {
    in_network("nothing_is_left_of_what_was_begun", io, || {
        let between = between();
        lose_answers(&between);
        let before = surroundings();
        for signal in ["-INT", "-KILL"] {
            let server = listen(&between, SERVER[1]);
            let weir = Intercept::start(io, &SYN);
            let late = begin_late(&between, LATE[1], SERVER[1]);
            let (mut asked, _) = server.accept().expect("it is asked");
            let (mut stream, _) =
                between.ask(CLIENT[1], 0, SERVER[1], 8080).expect("it gets through");
            echoes(&mut stream);
            weir.end(signal);
            eventually("nothing is left", || surroundings() == before);
            bounded(&asked);
            assert_eq!(
                asked.read(&mut [0; 4]).expect_err("it is over").kind(),
                ErrorKind::ConnectionReset,
                "{signal}"
            );
            let (mut stream, _) =
                between.ask(CLIENT[0], 0, SERVER[0], 8080).expect("nobody is between");
            echoes(&mut stream);
            drop(late);
        }
    });
}
