//! Proves: servers that listen on unix sockets are servers like others: requests, pipelining, every
//! pool, tunnels, TLS, probes, orders, reloads; an unreachable one is reported and returns
//! automatically. How: the real binary, servers behind unix sockets.
//! docs/unix-sockets.md#servers-on-unix-sockets.

use std::os::unix::net::{UnixDatagram, UnixListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::kit::tls_servers::{Front, ca, serving, signed};
use crate::kit::unix::UnixFront;
use crate::kit::{
    Behaviour, Client, Gone, Honest, Io, Link, SWITCH, Scratch, Server, Stopping, Weir, eventually,
    keep_asking, nonce, on_both_drivers, pattern, request, status,
};
use weir_check::Request;

on_both_drivers!(
    requests_are_answered,
    every_pool_can_have_them,
    tunnels_pass_through,
    tls_is_spoken_to_them,
    what_is_no_server_is_told_and_comes_back,
    one_without_room_fails_over,
    reloads_under_load_touch_only_what_changes,
);

/// Returns an upstream of these servers, and the route to it.
fn app(servers: &[&str], more: &str) -> String {
    let servers: String = servers
        .iter()
        .map(|server| format!(" server \"{server}\" connections-max=4 connections=4\n"))
        .collect();
    format!("upstream \"app\" {{\n{servers} {more}\n}}\nroute {{ proxy \"app\"; }}\n")
}

fn requests_are_answered(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let front = UnixFront::start(&scratch.path("app.sock"), server.address);
    let log = scratch.path("access.log");
    let access = format!("access-log \"{}\" format=\"$upstream_addr $status\"\n", log.display());
    let weir = Weir::start(
        io,
        2,
        &(access + &app(&[&front.name], "health path=\"/up\" interval=\"100ms\"")),
    );
    let mut client = Client::connect(weir.address);
    (0..100).for_each(|_| request(&mut client));
    // A request without a host means the server.
    let mut old = Client::connect(weir.address);
    let id = nonce();
    old.ask("GET", true);
    old.send(format!("GET /old?n={id} HTTP/1.0\r\n\r\n").as_bytes());
    assert_eq!(old.reply().status, 200);
    server.wait("a probe", |log| log.requests.iter().any(|(_, request)| request.target == "/up"));
    let told = status(&weir);
    let of = &told["upstreams"][0]["servers"][0];
    assert_eq!(
        (&of["name"], &of["address"]),
        (&front.name.clone().into(), &front.name.clone().into())
    );
    let metrics = weir.answer(&["status", "--json"]);
    assert!(metrics.contains(&front.name));
    // It has its name.
    assert_eq!(weir.answer(&["server", "drain", "app", &front.name]), "");
    assert_eq!(status(&weir)["upstreams"][0]["servers"][0]["state"], "draining");
    assert_eq!(weir.answer(&["server", "enable", "app", &front.name]), "");
    request(&mut client);
    weir.stop();
    let lines = std::fs::read_to_string(log).expect("a log");
    assert_eq!(
        lines.lines().filter(|line| *line == format!("{} 200", front.name)).count(),
        102,
        "{lines}"
    );
    let log = server.finish();
    for (_, request) in
        log.requests.iter().filter(|(_, it)| it.target == "/up" || it.target.starts_with("/old"))
    {
        assert_eq!(request.fields.first("host"), Some("localhost"), "{}", request.target);
    }
}

fn every_pool_can_have_them(io: Io) {
    for pool in ["pipelined", "shared", "pinned", "per-request", "fresh"] {
        let (server, scratch) = (Server::start(Honest), Scratch::new());
        let front = UnixFront::start(&scratch.path("app.sock"), server.address);
        let upstream = format!(
            "upstream \"app\" {{ pool \"{pool}\"; server \"{}\"; }}\nroute {{ proxy \"app\"; }}\n",
            front.name
        );
        let weir = Weir::start(io, 1, &upstream);
        let mut clients: Vec<Client> = (0..8).map(|_| Client::connect(weir.address)).collect();
        for _ in 0..5 {
            clients.iter_mut().for_each(request);
        }
        if pool == "per-request" {
            assert!(front.accepted() >= 40, "{}", front.accepted());
        }
        weir.stop();
        server.finish();
    }
}

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n";

/// Accepts an upgrade, and sends back what comes.
struct Echo;

impl Behaviour for Echo {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        if !request.fields.has("upgrade") {
            return link.honest(request);
        }
        link.upgrade(SWITCH)?;
        link.echo()?;
        Err(Gone)
    }
}

fn tunnels_pass_through(io: Io) {
    let (server, scratch) = (Server::start(Echo), Scratch::new());
    let front = UnixFront::start(&scratch.path("app.sock"), server.address);
    let weir = Weir::start(io, 1, &app(&[&front.name], ""));
    let mut client = Client::connect(weir.address);
    client.ask_upgrade();
    client.send(format!("GET /ws HTTP/1.1\r\nHost: a\r\n{UPGRADE}\r\n").as_bytes());
    assert_eq!(client.reply().status, 101);
    let bytes = pattern(256 << 10);
    for piece in bytes.chunks(16 << 10) {
        client.send(piece);
        assert!(client.tunnel(piece.len()) == piece, "the same bytes come back");
    }
    client.finish();
    client.end();
    request(&mut Client::connect(weir.address));
    weir.stop();
    server.finish();
}

fn tls_is_spoken_to_them(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let ca = ca(&scratch, "ca");
    let files = signed(&scratch, &ca, "app", "DNS:localhost", 30);
    let sealed = Front::start(server.address, serving(&files, None));
    let front = UnixFront::start(&scratch.path("app.sock"), sealed.address);
    let tls = |more: &str| {
        app(&[&front.name], &format!("tls {{ ca \"{}\"; {more} }}", ca.certificate.display()))
    };
    let weir = Weir::start(io, 1, &tls(""));
    request(&mut Client::connect(weir.address));
    assert_eq!(sealed.names().first(), Some(&Some("localhost".to_owned())));
    // Another name is another server.
    weir.rewrite(&tls("name \"other.test\""));
    weir.answer(&["reload"]);
    eventually("it is refused", || {
        let mut client = Client::connect(weir.address);
        client.get("/other");
        client.reply().status == 502
    });
    weir.stop();
    server.finish();
}

fn what_is_no_server_is_told_and_comes_back(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let [none, stale, file, folder, packets] =
        ["none", "stale", "file", "folder", "packets"].map(|name| scratch.path(name));
    drop(UnixListener::bind(&stale).expect("a socket"));
    std::fs::write(&file, b"nothing").expect("a file");
    std::fs::create_dir(&folder).expect("a folder");
    let _packets = UnixDatagram::bind(&packets).expect("a socket");
    let names =
        [&none, &stale, &file, &folder, &packets].map(|path| format!("unix:{}", path.display()));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let weir = Weir::start(io, 2, &app(&names, ""));
    for _ in 0..10 {
        let mut client = Client::connect(weir.address);
        client.get("/early");
        let status = client.reply().status;
        assert!(matches!(status, 502 | 503), "{status}");
    }
    let told = status(&weir);
    let servers = told["upstreams"][0]["servers"].as_array().expect("a list");
    assert!(servers.iter().all(|server| server["connections"]["up"] == 0), "{told}");
    // A server that starts later is found without a reload; one replaces the file that it finds.
    let _late = UnixFront::start(&none, server.address);
    std::fs::remove_file(&stale).expect("it is there");
    let _again = UnixFront::start(&stale, server.address);
    eventually("both serve", || {
        let told = status(&weir);
        let up = |at: usize| {
            told["upstreams"][0]["servers"][at]["connections"]["up"].as_u64() >= Some(1)
        };
        up(0) && up(1)
    });
    (0..20).for_each(|_| request(&mut Client::connect(weir.address)));
    weir.stop();
    server.finish();
}

/// A listener that does not accept, and whose queue is full, delays no request.
fn one_without_room_fails_over(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let full =
        socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).expect("a socket");
    full.bind(&socket2::SockAddr::unix(scratch.path("full")).expect("short enough"))
        .expect("nothing is there");
    full.listen(0).expect("it is bound");
    let mut fill = Vec::new();
    while let Some(stream) = connect_at_once(&scratch) {
        fill.push(stream);
    }
    let front = UnixFront::start(&scratch.path("app.sock"), server.address);
    let weir = Weir::start(
        io,
        1,
        &app(&[&format!("unix:{}", scratch.path("full").display()), &front.name], ""),
    );
    (0..30).for_each(|_| request(&mut Client::connect(weir.address)));
    weir.stop();
    server.finish();
}

/// Connects to the full one, if it has room.
fn connect_at_once(scratch: &Scratch) -> Option<socket2::Socket> {
    let socket =
        socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).expect("a socket");
    socket.set_nonblocking(true).expect("an option of every socket");
    socket
        .connect(&socket2::SockAddr::unix(scratch.path("full")).expect("short enough"))
        .ok()
        .map(|()| socket)
}

fn reloads_under_load_touch_only_what_changes(io: Io) {
    let (servers, scratch) = ([(); 3].map(|()| Server::start(Honest)), Scratch::new());
    let front =
        |at: usize| UnixFront::start(&scratch.path(&format!("{at}.sock")), servers[at].address);
    let fronts = [front(0), front(1)];
    let tcp = servers[2].address.to_string();
    let (first, second) = (&*fronts[0].name, &*fronts[1].name);
    let kept = "connections-min=4";
    let line = |name: &str| format!("server \"{name}\" {kept} connections=4 connections-max=4");
    let text = |names: &[&str]| {
        let lines: Vec<String> = names.iter().map(|name| line(name)).collect();
        format!("upstream \"app\" {{\n{}\n}}\nroute {{ proxy \"app\"; }}\n", lines.join("\n"))
    };
    let weir = Weir::start(io, 2, &text(&[first]));
    let (over, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let stopping = Stopping(&over);
        for _ in 0..4 {
            scope.spawn(|| keep_asking(weir.address, &over, &done));
        }
        eventually("all connections are made", || fronts[0].accepted() >= 4);
        let before = fronts[0].accepted();
        for names in [&[first, second][..], &[first, &tcp], &[second, first], &[first]] {
            weir.rewrite(&text(names));
            weir.answer(&["reload"]);
            let so_far = done.load(Ordering::Relaxed);
            eventually("requests are answered", || done.load(Ordering::Relaxed) >= so_far + 100);
        }
        assert_eq!(
            fronts[0].accepted(),
            before,
            "the one that was always there kept its connections"
        );
        assert!(fronts[1].accepted() > 0);
        drop(stopping);
    });
    weir.stop();
    servers.into_iter().for_each(|server| drop(server.finish()));
}
