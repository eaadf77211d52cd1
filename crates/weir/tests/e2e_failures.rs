//! What goes wrong around weir: servers that aren't there, ports that are taken, files that can't be read. A clear message,
//! the right exit code, and recovery where it is possible (semantics §4, §10).

mod kit;

use std::net::TcpListener;
use std::process::{Command, Output};

use kit::{Client, Honest, Io, Scratch, Server, Weir, app, eventually, free_port, nonce, on_both_drivers};
use weir_check::Rules;
use weir_check::upstreams::check_honest;

on_both_drivers!(
    server_is_down_at_start_and_comes_up,
    server_goes_away_and_comes_back,
    other_server_takes_over,
    port_is_taken,
    second_sigterm_ends_at_once,
    sigterm_lets_answers_finish,
);

/// The status that a request gets now.
fn status(weir: &Weir) -> u16 {
    let (mut client, nonce) = (Client::connect(weir.address), nonce());
    client.get(&format!("/victim?n={nonce}"));
    let reply = client.reply();
    if reply.status == 200 {
        check_honest(&nonce, &reply).unwrap();
    }
    reply.status
}

/// An upstream of servers at these ports.
fn ports(ports: &[u16]) -> String {
    let servers: String = ports.iter().map(|port| format!(" server \"127.0.0.1:{port}\" connections=2\n")).collect();
    format!("upstream \"app\" {{\n{servers} connect-retries 2\n}}\nroute {{ proxy \"app\" }}\n")
}

fn server_is_down_at_start_and_comes_up(io: Io) {
    let port = free_port();
    let weir = Weir::start(io, 2, &ports(&[port]));
    // At first it may hope for a connection; after two failed tries it says that there is none.
    assert_eq!(status(&weir), 502);
    let server = Server::start_at(([127, 0, 0, 1], port).into(), Honest, Rules::default());
    eventually("weir finds the server", || status(&weir) == 200);
    server.wait("all connections are made", |log| log.open == 2);
    weir.stop();
    server.finish();
}

fn server_goes_away_and_comes_back(io: Io) {
    // The server is another weir's origin, because a process that ends takes its port and connections with it.
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let origin = || Weir::command(&["origin", "--listen", &address, "--threads", "1"], address.parse().expect("valid"));
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

#[test]
fn configuration_is_unreadable() {
    let missing = Command::new(env!("CARGO_BIN_EXE_weir")).args(["run", "-c", "/nowhere/weir.kdl"]).output();
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
    let server = Server::start(|link: &mut kit::Link, _: &weir_check::Request| {
        // Never answers.
        link.until_closed();
        Err(kit::Gone)
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
    let server = Server::start(|link: &mut kit::Link, request: &weir_check::Request| {
        link.await_event("open")?;
        link.honest(request)
    });
    // One worker: the second request finds the connection that is free.
    let mut weir = Weir::start(io, 1, &app(&server, 2, ""));
    let mut idle = Client::connect(weir.address);
    let mut asked: Vec<(Client, String)> = Vec::new();
    for _ in 0..2 {
        let (mut client, nonce) = (Client::connect(weir.address), nonce());
        client.get(&format!("/slow?n={nonce}"));
        asked.push((client, nonce));
    }
    server.wait("the requests are there", |log| log.requests.len() == 2);
    weir.signal("TERM");
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
