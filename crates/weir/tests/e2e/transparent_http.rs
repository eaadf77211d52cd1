//! Proves: if packets are led to weir, requests go to the destination of their client's connection,
//! whatever Host says, from the client's address, and at first from its port. Each client has
//! separate connections; servers of the configuration see clients in the same way; weir does not
//! connect to itself; a reload changes where requests go. How: the real binary between two networks
//! of the test. Needs root. docs/transparent.md#http-on-transparent-listeners.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use socket2::{Domain, Protocol, Socket, Type};

use crate::kit::{
    Client, Io, Scratch, Weir, eventually, in_own_network_as_root, ip, on_both_drivers,
    patience_now, status,
};
use crate::transparent::{Between, CLIENT, SERVER};

on_both_drivers!(requests_go_where_their_client_went, servers_of_the_configuration_see_clients);

/// A host without a listener.
const NOBODY: &str = "198.18.2.3";

/// Starts a server that reports for each request its source, its destination, its host, and its
/// number on the connection. It ends the connection behind `/close`.
pub(crate) fn serve_http(between: &Between, host: &str, port: u16) {
    let at = SocketAddr::new(host.parse().expect("an address"), port);
    let listener = between.servers.inside(|| TcpListener::bind(at)).expect("a free port");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || answer(stream));
        }
    });
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    for n in 1.. {
        let (mut host, mut ends, mut line) = (String::new(), false, String::new());
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            ends |= line.starts_with("GET /close ");
            if let Some(value) = line.strip_prefix("Host: ") {
                host = value.trim().to_owned();
            }
        }
        let said = format!("{} to {} for {host}, {n}", stream.peer_addr()?, stream.local_addr()?);
        let close = if ends { "Connection: close\r\n" } else { "" };
        write!(stream, "HTTP/1.1 200 OK\r\n{close}Content-Length: {}\r\n\r\n{said}", said.len())?;
        if ends {
            return Ok(());
        }
    }
    Ok(())
}

/// Connects a client there, from a port of its choice.
pub(crate) fn client(between: &Between, from: &str, port: u16, to: &str, to_port: u16) -> Client {
    let [from, to] = [(from, port), (to, to_port)]
        .map(|(host, port)| SocketAddr::new(host.parse().expect("an address"), port));
    Client::of(between.clients.inside(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))
            .expect("a descriptor");
        socket.set_reuse_address(true).expect("an option");
        socket.bind(&from.into()).expect("a free port");
        socket.connect_timeout(&to.into(), patience_now()).expect("weir is there");
        socket.into()
    }))
}

/// Returns the server's report, with the status.
pub(crate) fn told(client: &mut Client, target: &str, host: &str) -> (u16, String) {
    client.ask("GET", false);
    client.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
    let reply = client.reply();
    (reply.status, reply.body.text())
}

fn in_network(test: &str, io: Io, body: impl FnOnce(&Between)) {
    in_own_network_as_root(&format!("transparent_http::{}::{test}", io.word()), || {
        let between = Between::new();
        for family in ["-4", "-6"] {
            ip(&format!("{family} rule add iif pc ipproto tcp dport 8080 lookup 100"));
            ip(&format!("{family} rule add iif ps ipproto tcp sport 8080 lookup 100"));
        }
        between.servers.ip(&format!("addr add {NOBODY}/24 dev s"));
        SERVER.iter().for_each(|host| serve_http(&between, host, 8080));
        body(&between);
    });
}

fn configuration(scratch: &Scratch, upstream: &str) -> String {
    format!(
        "access-log \"{}\" format=\"$remote_port $request_uri $status $upstream_addr $reason\"\n\
         listen \"0.0.0.0:8080\" transparent=#true\nlisten \"[::]:8080\" transparent=#true\n\
         upstream \"app\" {{ {upstream} }}\nroute {{ proxy \"app\"; }}\n",
        scratch.path("access.log").display()
    )
}

const THROUGH: &str = "server \"original-destination\"; source \"client\"; congestion \"reno\";";

fn requests_go_where_their_client_went(io: Io) {
    in_network("requests_go_where_their_client_went", io, |between| {
        let scratch = Scratch::new();
        let weir = Weir::start(io, 2, &configuration(&scratch, THROUGH));
        for (from, to) in CLIENT.into_iter().zip(SERVER) {
            let show = |host: &str, port: u16| {
                SocketAddr::new(host.parse().expect("an address"), port).to_string()
            };
            let expect = |port: u16, host: &str, n: u32| {
                (200, format!("{} to {} for {host}, {n}", show(from, port), show(to, 8080)))
            };
            let mut all: Vec<Client> =
                (0..4).map(|n| client(between, from, 4000 + n, to, 8080)).collect();
            for n in 1..=3 {
                for (port, one) in (4000..).zip(&mut all) {
                    assert_eq!(told(one, "/", "a.example"), expect(port, "a.example", n));
                }
            }
            // Host and the target name another destination.
            assert_eq!(told(&mut all[0], "/", NOBODY), expect(4000, NOBODY, 4));
            let target = format!("http://{NOBODY}:8080/");
            assert_eq!(told(&mut all[0], &target, "x"), expect(4000, &format!("{NOBODY}:8080"), 5));
            // The server has ended its connection: the next one has another port, and the same
            // address.
            assert_eq!(told(&mut all[0], "/close", "a.example"), expect(4000, "a.example", 6));
            let (_, said) = told(&mut all[0], "/", "a.example");
            assert!(said.ends_with(", 1") && said != expect(4000, "a.example", 1).1, "{said}");
            assert!(said.starts_with(show(from, 0).trim_end_matches('0')), "{said}");
        }
        ends_that_are_no_answers(between, &weir);
        let lines = || std::fs::read_to_string(scratch.path("access.log")).unwrap_or_default();
        eventually("lines say where to", || {
            let lines = lines();
            ["4000 /close 200 198.18.2.2:8080 -", "4000 / 200 [fd00:2::2]:8080 -"]
                .iter()
                .all(|line| lines.contains(line))
                && lines.contains("/refused 502 198.18.2.3:8080 connect-failed")
                && lines.contains("/own 421 - own-destination")
        });
        weir.stop();
    });
}

/// The client's port is taken, the server is unreachable, it is this machine, or it does not use
/// HTTP.
fn ends_that_are_no_answers(between: &Between, weir: &Weir) {
    let holder =
        Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).expect("a descriptor");
    holder.set_ip_transparent_v4(true).expect("root may");
    holder.set_reuse_address(true).expect("an option");
    let [from, to] =
        [(CLIENT[0], 4100), (SERVER[0], 8080)].map(|(host, port)| format!("{host}:{port}"));
    holder.bind(&from.parse::<SocketAddr>().expect("an address").into()).expect("root may");
    holder.connect(&to.parse::<SocketAddr>().expect("an address").into()).expect("a server");
    let before = total(weir, "tcp_ports_changed");
    let (_, said) = told(&mut client(between, CLIENT[0], 4100, SERVER[0], 8080), "/", "a");
    assert!(said.starts_with("198.18.1.2:") && !said.starts_with("198.18.1.2:4100 "), "{said}");
    assert_eq!(total(weir, "tcp_ports_changed"), before + 1);
    let (refused, said) = told(&mut client(between, CLIENT[0], 0, NOBODY, 8080), "/refused", "a");
    assert!(refused == 502 && said.contains("connect-failed"), "{said}");
    let (own, said) =
        told(&mut client(between, CLIENT[0], 0, "198.18.2.1", 8080), "/own", SERVER[0]);
    assert!(own == 421 && said.contains("own-destination"), "{said}");
    let mut other = client(between, CLIENT[0], 0, SERVER[0], 8080);
    other.ask("GET", false);
    other.send(b"EHLO client.example\r\n\r\n");
    assert_eq!(other.reply().status, 400);
    other.end();
}

fn total(weir: &Weir, name: &str) -> u64 {
    status(weir)["totals"][name].as_u64().expect("a number")
}

fn servers_of_the_configuration_see_clients(io: Io) {
    in_network("servers_of_the_configuration_see_clients", io, |between| {
        let scratch = Scratch::new();
        let near =
            |more: &str| configuration(&scratch, &format!("server \"198.18.2.2:8080\"; {more}"));
        let weir = Weir::start(io, 2, &near("source \"client\";"));
        let mut both: Vec<Client> =
            (0..2).map(|n| client(between, CLIENT[0], 4000 + n, NOBODY, 8080)).collect();
        for n in 1..=2 {
            for (port, one) in (4000..).zip(&mut both) {
                let said = format!("198.18.1.2:{port} to 198.18.2.2:8080 for a, {n}");
                assert_eq!(told(one, "/", "a"), (200, said));
            }
        }
        // Another address of theirs, and none.
        weir.rewrite(&near(""));
        weir.answer(&["reload"]);
        let (code, said) = told(&mut both[0], "/", "a");
        assert!(code == 200 && said.starts_with("198.18.2.1:"), "{said}");
        weir.rewrite(&configuration(&scratch, THROUGH));
        weir.answer(&["reload"]);
        assert_eq!(told(&mut both[0], "/", "a").0, 502, "nobody is where it has connected to");
        let said = told(&mut client(between, CLIENT[0], 4010, SERVER[0], 8080), "/", "a");
        assert_eq!(said, (200, "198.18.1.2:4010 to 198.18.2.2:8080 for a, 1".to_owned()));
        // A client that connected before the listener was transparent has connected to weir.
        weir.rewrite(&near("").replace(" transparent=#true", ""));
        weir.answer(&["reload"]);
        let mut own = Client::connect("127.0.0.1:8080".parse().expect("an address"));
        assert_eq!(told(&mut own, "/", "a").0, 200);
        weir.rewrite(&configuration(&scratch, THROUGH));
        weir.answer(&["reload"]);
        assert_eq!(told(&mut own, "/", "a").0, 421);
        weir.stop();
    });
}
