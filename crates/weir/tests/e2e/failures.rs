//! Failures around weir: missing servers, ports in use, unreadable files. A clear message, the
//! right exit code, and recovery where it is possible (docs/retries.md, docs/tls.md).

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::kit::{
    Client, Gone, Honest, Io, Link, Scratch, Server, Stopping, TcpSocket, Weir, app, eventually,
    free_port, nonce, on_both_drivers, tcp_sockets,
};
use socket2::{Domain, Socket, Type};
use weir_check::upstreams::check_honest;
use weir_check::{Request, Rules};

on_both_drivers!(
    server_is_down_at_start_and_comes_up,
    server_goes_away_and_comes_back,
    other_server_takes_over,
    port_is_taken,
    a_port_that_becomes_free_is_waited_for,
    second_sigterm_ends_at_once,
    sigterm_lets_answers_finish,
    sigquit_lets_answers_finish,
    sigterm_answers_those_who_had_connected,
    it_needs_nobody_who_reads_what_it_says,
    e19_a_killer_request_is_refused_and_its_neighbours_are_answered,
    a_revived_server_has_requests,
    e18_a_server_that_cannot_pipeline_is_found,
    what_everybody_refuses_fails_at_once,
    what_accepts_and_closes_is_asked_twice,
);

/// Returns the status that a request gets now.
fn status(weir: &Weir) -> u16 {
    let (mut client, nonce) = (Client::connect(weir.address), nonce());
    client.get(&format!("/victim?n={nonce}"));
    let reply = client.reply();
    if reply.status == 200 {
        check_honest(&nonce, &reply).unwrap();
    }
    reply.status
}

/// Returns an upstream of servers at these ports.
fn ports(ports: &[u16]) -> String {
    let servers: String = ports
        .iter()
        .map(|port| format!(" server \"127.0.0.1:{port}\" connections-min=2 connections=2\n"))
        .collect();
    format!("upstream \"app\" {{\n{servers} connect-retries 2\n}}\nroute {{ proxy \"app\" }}\n")
}

fn server_is_down_at_start_and_comes_up(io: Io) {
    let port = free_port();
    let weir = Weir::start(io, 2, &ports(&[port]));
    // At first it may hope for a connection; after two failed tries it reports that there is none.
    assert_eq!(status(&weir), 502);
    let server = Server::start_at(([127, 0, 0, 1], port).into(), Honest, Rules::default());
    eventually("weir finds the server", || status(&weir) == 200);
    server.wait("all connections are made", |log| log.open == 2);
    weir.stop();
    server.finish();
}

fn server_goes_away_and_comes_back(io: Io) {
    // The server is another weir's origin, because a process that ends takes its port and
    // connections with it.
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let origin = || {
        Weir::command(
            &["origin", "--listen", &address, "--threads", "1"],
            address.parse().expect("valid"),
        )
    };
    let first = origin();
    let weir = Weir::start(io, 1, &ports(&[port]));
    let plain = || {
        let mut client = Client::connect(weir.address);
        client.get("/?size=10");
        client.reply().status
    };
    assert_eq!(plain(), 200);
    first.stop();
    eventually("weir notices", || plain() == 502);
    let second = origin();
    eventually("weir finds it again", || plain() == 200);
    weir.stop();
    second.stop();
}

/// However often a server might be tried: a request fails with the first connect, and the next one
/// discovers that the server is back.
fn what_everybody_refuses_fails_at_once(io: Io) {
    for pool in ["pipelined", "shared", "pinned", "per-request"] {
        let (port, other) = (free_port(), free_port());
        let options = format!("pool \"{pool}\"\n connect-retries 1000\n forward-timeout \"1h\"");
        let servers = format!("server \"127.0.0.1:{port}\"\n server \"127.0.0.1:{other}\"");
        let weir = Weir::start(
            io,
            2,
            &format!("upstream \"app\" {{\n{servers}\n{options}\n}}\nroute {{ proxy \"app\" }}\n"),
        );
        for _ in 0..5 {
            assert_eq!(status(&weir), 502, "{pool}");
        }
        let server = Server::start_at(([127, 0, 0, 1], port).into(), Honest, Rules::default());
        assert_eq!(status(&weir), 200, "{pool}");
        weir.stop();
        server.finish();
    }
}

/// A program that accepts connections and ends them is not a server: weir sends a request there
/// twice.
fn what_accepts_and_closes_is_asked_twice(io: Io) {
    for resets in [false, true] {
        let server = Server::start(move |link: &mut Link, _: &Request| {
            Err(if resets { link.rst() } else { Gone })
        });
        let weir =
            Weir::start(io, 1, &app(&server, 1, "forward-retries 100\n forward-timeout \"1h\""));
        let mut client = Client::connect(weir.address);
        client.get("/victim?n=00000001");
        assert_eq!(client.reply().status, 502);
        weir.stop();
        assert_eq!(server.finish().requests.len(), 2);
    }
}

fn other_server_takes_over(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 1, &ports(&[free_port(), server.address.port()]));
    server.wait("the pool is there", |log| log.open == 2);
    for _ in 0..20 {
        assert_eq!(status(&weir), 200, "a server that is down is not chosen while another is up");
    }
    weir.stop();
    server.finish();
}

/// Runs weir to its end with this configuration.
fn run(text: &str) -> Output {
    let scratch = Scratch::new();
    let file = scratch.write("weir.kdl", text.as_bytes());
    let output = Command::new(env!("CARGO_BIN_EXE_weir")).args(["run", "-c"]).arg(file).output();
    output.expect("weir starts")
}

fn port_is_taken(io: Io) {
    let holder = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = holder.local_addr().expect("bound");
    let route = "upstream \"app\" { server \"127.0.0.1:9\"; }\nroute { proxy \"app\" }";
    let output = run(&format!("io \"{}\"\nworkers 2\nlisten \"{address}\"\n{route}\n", io.word()));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&address.to_string()) && !said.contains("panicked"), "{said}");
}

/// As directly after `kill -9`, when the kernel has not cleaned up.
fn a_port_that_becomes_free_is_waited_for(io: Io) {
    // Bound and not listening, so it is not mistaken for weir.
    let hold = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a descriptor");
        eventually("a free port", || {
            socket.bind(&SocketAddr::from(([127, 0, 0, 1], free_port())).into()).is_ok()
        });
        let port = socket.local_addr().expect("bound").as_socket().expect("of IP").port();
        (socket, port)
    };
    let ((listener, listen), (meter, metrics)) = (hold(), hold());
    let scratch = Scratch::new();
    let more = format!("metrics \"127.0.0.1:{metrics}\"\n{}", ports(&[free_port()]));
    let text = format!("io \"{}\"\nlisten \"127.0.0.1:{listen}\"\n{more}", io.word());
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command
        .args(["run", "-c"])
        .arg(scratch.write("weir.kdl", text.as_bytes()))
        .env("WEIR_ADMIN", "off");
    let mut child = command.stderr(Stdio::piped()).spawn().expect("weir starts");
    let mut said = BufReader::new(child.stderr.take().expect("piped")).lines();
    let mut says =
        |what: &str| assert!(said.next().expect("a line").expect("text").contains(what), "{what}");
    says(&format!("cannot listen on 127.0.0.1:{listen}: another program uses this port; retrying"));
    drop(listener);
    says(&format!(
        "cannot serve metrics on 127.0.0.1:{metrics}: another program uses this port; retrying"
    ));
    drop(meter);
    says("listening on");
    let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
    assert_eq!(child.wait().expect("weir is a child").code(), Some(0));
}

#[test]
fn configuration_is_unreadable() {
    let missing =
        Command::new(env!("CARGO_BIN_EXE_weir")).args(["run", "-c", "/nowhere/weir.kdl"]).output();
    let missing = missing.expect("weir starts");
    let said = String::from_utf8_lossy(&missing.stderr);
    assert_eq!(missing.status.code(), Some(78), "{said}");
    assert!(said.contains("/nowhere/weir.kdl"), "{said}");
    let broken = run("listen \"127.0.0.1:0\" {\n");
    let said = String::from_utf8_lossy(&broken.stderr);
    assert_eq!(broken.status.code(), Some(78), "{said}");
    let unknown = run("listne \"127.0.0.1:1\"\n");
    let said = String::from_utf8_lossy(&unknown.stderr);
    assert_eq!(unknown.status.code(), Some(78), "{said}");
    assert!(said.contains("listen"), "a suggestion: {said}");
}

fn second_sigterm_ends_at_once(io: Io) {
    let server = Server::start(|link: &mut crate::kit::Link, _: &weir_check::Request| {
        // Never responds.
        link.until_closed();
        Err(crate::kit::Gone)
    });
    let mut weir = Weir::start(io, 1, &app(&server, 1, ""));
    let mut client = Client::connect(weir.address);
    client.get("/never");
    server.wait("the request is there", |log| log.requests.len() == 1);
    weir.signal("TERM");
    eventually("it stops accepting", || std::net::TcpStream::connect(weir.address).is_err());
    assert!(weir.is_running(), "it waits for the answer");
    weir.signal("TERM");
    weir.wait();
    assert!(!weir.said().contains("panicked"));
    server.finish();
}

fn sigterm_lets_answers_finish(io: Io) {
    lets_answers_finish(io, "TERM");
}

fn sigquit_lets_answers_finish(io: Io) {
    lets_answers_finish(io, "QUIT");
}

fn lets_answers_finish(io: Io, signal: &str) {
    let server = Server::start(|link: &mut crate::kit::Link, request: &weir_check::Request| {
        link.await_event("open")?;
        link.honest(request)
    });
    // One worker: the second request finds the free connection.
    let mut weir = Weir::start(io, 1, &app(&server, 2, ""));
    let mut idle = Client::connect(weir.address);
    let mut asked: Vec<(Client, String)> = Vec::new();
    for _ in 0..2 {
        let (mut client, nonce) = (Client::connect(weir.address), nonce());
        client.get(&format!("/slow?n={nonce}"));
        asked.push((client, nonce));
    }
    server.wait("the requests are there", |log| log.requests.len() == 2);
    weir.signal(signal);
    // The idle one is closed while the others wait.
    idle.end();
    server.tell("open");
    for (mut client, nonce) in asked {
        let reply = client.reply();
        check_honest(&nonce, &reply).unwrap();
        client.end();
    }
    assert_eq!(weir.wait().code(), Some(0), "{}", weir.said());
    server.finish();
}

/// More than a driver accepts in one turn: they are in the kernel's queue while weir is stopped.
fn sigterm_answers_those_who_had_connected(io: Io) {
    let server = Server::start(Honest);
    let mut weir = Weir::start(io, 1, &app(&server, 4, ""));
    weir.signal("STOP");
    let asked: Vec<(Client, String)> = (0..400)
        .map(|_| {
            let (mut client, nonce) = (Client::connect(weir.address), nonce());
            client.get(&format!("/late?n={nonce}"));
            (client, nonce)
        })
        .collect();
    // A client is connected before the last packet of its handshake has made a connection of
    // weir's, in the queue or accepted.
    let port = format!(":{:04X}", weir.address.port());
    let is_made = |socket: &TcpSocket| socket.state == "01" && socket.local.ends_with(&port);
    eventually("all are connected", || {
        tcp_sockets().into_iter().filter(is_made).count() == asked.len()
    });
    weir.signal("TERM");
    weir.signal("CONT");
    for (mut client, nonce) in asked {
        check_honest(&nonce, &client.reply()).unwrap();
        client.end();
    }
    assert_eq!(weir.wait().code(), Some(0), "{}", weir.said());
    server.finish();
}

/// As in `weir run 2>&1 | head`: later output finds a closed pipe.
fn it_needs_nobody_who_reads_what_it_says(io: Io) {
    let scratch = Scratch::new();
    let listen = free_port();
    let text =
        format!("io \"{}\"\nlisten \"127.0.0.1:{listen}\"\n{}", io.word(), ports(&[free_port()]));
    let file = scratch.write("weir.kdl", text.as_bytes());
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["run", "-c"]).arg(file).env("WEIR_ADMIN", "off").stderr(Stdio::piped());
    let mut child = command.spawn().expect("weir starts");
    let mut first = String::new();
    let mut said = BufReader::new(child.stderr.take().expect("piped"));
    said.read_line(&mut first).expect("a line");
    assert!(first.contains("listening on"), "{first}");
    drop(said);
    // It would print something about this signal before it acts on the next one.
    for signal in ["-HUP", "-TERM"] {
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }
    assert_eq!(child.wait().expect("weir is a child").code(), Some(0));
}

/// Largest number of times that one request may reach servers which it kills: the first time,
/// `forward-retries`, two orderly ends when it is the next one, and once behind another. The
/// simulation has the same bound (`weir-worker/tests/sim/storm/killer.rs`).
const DEATHS_MAX: usize = 1 + 5 + 2 + 1;

/// Sends a killer request on a separate connection. Returns its response, and how many connections
/// of servers it took with it.
fn kill(weir: &Weir, deaths: &AtomicUsize) -> (weir_check::Reply, usize) {
    let before = deaths.load(Ordering::SeqCst);
    let mut killer = Client::connect(weir.address);
    killer.get("/kill?n=00000000");
    (killer.reply(), deaths.load(Ordering::SeqCst) - before)
}

fn e19_a_killer_request_is_refused_and_its_neighbours_are_answered(io: Io) {
    let deaths = Arc::new(AtomicUsize::new(0));
    let mortal = |deaths: &Arc<AtomicUsize>| {
        let deaths = Arc::clone(deaths);
        move |link: &mut crate::kit::Link, request: &weir_check::Request| {
            if request.target.starts_with("/kill") {
                deaths.fetch_add(1, Ordering::SeqCst);
                return Err(link.rst());
            }
            link.honest(request)
        }
    };
    let servers: Vec<Server> = (0..3).map(|_| Server::start(mortal(&deaths))).collect();
    let list: String = servers
        .iter()
        .map(|server| format!(" server \"{}\" connections-min=4 connections=4\n", server.address))
        .collect();
    let weir =
        Weir::start(io, 2, &format!("upstream \"app\" {{\n{list}}}\nroute {{ proxy \"app\" }}\n"));
    servers.iter().for_each(|server| server.wait("all connections are made", |log| log.open == 4));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stopping = Stopping(&stop);
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = Client::connect(weir.address);
                while !stop.load(Ordering::SeqCst) {
                    let nonce = nonce();
                    client.get(&format!("/neighbour?n={nonce}"));
                    check_honest(&nonce, &client.reply()).expect("a neighbour of the killer");
                }
            });
        }
        for again in 0..5 {
            let (reply, died) = kill(&weir, &deaths);
            let refused =
                (reply.status, reply.fields.first("retry-after").is_some()) == (503, true);
            // Its tries may be over before enough deaths count against it, once at each of the two
            // workers.
            assert!(refused || again < 2 && reply.status == 502, "try {again}: {reply:?}");
            assert!(died <= DEATHS_MAX, "{died} deaths of one request");
        }
        // One worker finds it and informs the other, which may have tried in between as well.
        eventually("both workers refuse it", || (0..8).all(|_| kill(&weir, &deaths).1 == 0));
    });
    weir.stop();
    servers.into_iter().for_each(|server| drop(server.finish()));
}

/// Down for long enough that the back-off of its connections is many seconds.
fn a_revived_server_has_requests(io: Io) {
    let port = free_port();
    let server = Server::start(Honest);
    let text = format!(
        "upstream \"app\" {{\n server \"{}\" connections-min=4 connections=4\n server \
            \"127.0.0.1:{port}\" connections-min=4 connections=4\n}}\nroute {{ proxy \"app\" }}\n",
        server.address
    );
    let weir = Weir::start(io, 2, &text);
    server.wait("the other one is up", |log| log.open == 4);
    // Long enough that tries have become rare. How soon it is found all the same is a matter for
    // tests of the machine, whose clock is exact.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(8_200) {
        assert_eq!(status(&weir), 200);
    }
    let revived = Server::start_at(([127, 0, 0, 1], port).into(), Honest, Rules::default());
    eventually("it has requests", || status(&weir) == 200 && !revived.log().requests.is_empty());
    eventually("all its connections are made", || status(&weir) == 200 && revived.log().open == 4);
    weir.stop();
    server.finish();
    revived.finish();
}

/// A server that resets a connection when it finds a second request behind the first.
fn e18_a_server_that_cannot_pipeline_is_found(io: Io) {
    let server = Server::start(|link: &mut crate::kit::Link, request: &weir_check::Request| {
        if link.unanswered() > 1 {
            return Err(link.rst());
        }
        link.honest(request)
    });
    let weir = Weir::start(io, 1, &app(&server, 2, " pipeline depth=8\n"));
    server.wait("all connections are made", |log| log.open == 2);
    let found = || weir.said().contains("cuts-short");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = Client::connect(weir.address);
                for _ in (0..100_000).take_while(|_| !found()) {
                    let nonce = nonce();
                    client.get(&format!("/victim?n={nonce}"));
                    check_honest(&nonce, &client.reply()).expect("nobody is lost");
                }
            });
        }
        eventually("the log says so", found);
    });
    weir.stop();
    server.finish();
}
