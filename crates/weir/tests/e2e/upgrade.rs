//! Proves: a new program takes over from a running weir unnoticed: under load, with other numbers
//! of workers, for idle clients, streams and tunnels, for clients of status and metrics. An upgrade
//! that fails, in whatever way, changes nothing and is reported. Sockets of a service manager are
//! used and survive. How: the real binary upgraded to itself with traffic through it, and programs
//! in its place that are not weir. docs/upgrade.md.
//!
//! `WEIR_UPGRADES` sets how often the first of these upgrades: `make chaos`.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::kit::http2::Http2Client;
use crate::kit::tls::{bridge, certificate, config, connection};
use crate::kit::{
    Behaviour, Client, Gone, Honest, Io, Link, SWITCH, Scratch, Server, Stopping, Weir, app,
    eventually, free_port, nonce, on_both_drivers, patience_now, status,
};
use serde_json::Value;
use weir_check::Request;
use weir_check::upstreams::check_honest;

on_both_drivers!(
    upgrades_under_load_lose_nothing,
    clients_of_before_are_told,
    streams_are_finished,
    tunnels_have_a_time_of_their_own,
    handshakes_that_have_begun_are_finished,
    a_configuration_that_is_wrong_changes_nothing,
    a_program_that_is_none_changes_nothing,
    who_is_not_ready_in_time_is_ended,
    one_thing_at_a_time,
    a_new_program_survives_its_predecessor,
    a_signal_does_it_too,
    orders_hold,
    listeners_come_and_go_with_it,
    status_and_metrics_are_always_there,
    the_service_manager_follows,
    sockets_of_the_service_manager_survive,
);

/// Returns how often weir is upgraded under load.
fn upgrades() -> usize {
    std::env::var("WEIR_UPGRADES").ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}

/// Sends a request, and checks the response. Returns whether the connection continues.
fn request(client: &mut Client) -> bool {
    let nonce = nonce();
    client.get(&format!("/victim?n={nonce}"));
    let reply = client.reply();
    check_honest(&nonce, &reply).unwrap();
    !reply.closes
}

/// Returns what `weir` prints on standard error when it fails with this code.
fn refused(weir: &Weir, arguments: &[&str], code: i32) -> String {
    let output = weir.ask(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

/// Checks that an upgrade failed: the same process has the same client.
fn nothing_has_changed(weir: &Weir, before: u32, client: &mut Client) {
    assert!(request(client), "its connection goes on");
    assert!(request(&mut Client::connect(weir.address)));
    eventually("no other process is left", || weir.processes() == [before]);
    assert_eq!(status(weir)["pid"], before);
}

/// Responds at `/late` on a signal, and echoes behind an Upgrade.
struct Patient(Arc<AtomicBool>);

impl Behaviour for Patient {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        if request.target.starts_with("/late") {
            link.tell("late");
            eventually("it may answer", || self.0.load(Ordering::Relaxed));
        }
        if !request.fields.has("upgrade") {
            return link.honest(request);
        }
        link.upgrade(SWITCH)?;
        link.echo()?;
        Err(Gone)
    }
}

/// Returns such a server, and the signal for it.
fn patient() -> (Server, Arc<AtomicBool>) {
    let may_answer = Arc::new(AtomicBool::new(false));
    (Server::start(Patient(Arc::clone(&may_answer))), may_answer)
}

/// Waits for a request for `/late`.
fn is_asked(server: &Server) {
    server.wait("it is asked", |log| log.events.iter().any(|it| it == "late"));
}

fn upgrades_under_load_lose_nothing(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 2, &app(&server, 2, ""));
    let (over, kept, done) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let stopping = Stopping(&over);
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = Client::connect(weir.address);
                while !over.load(Ordering::Relaxed) {
                    if !request(&mut client) {
                        client = Client::connect(weir.address);
                    }
                    kept.fetch_add(1, Ordering::Relaxed);
                }
            });
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    request(&mut Client::connect(weir.address));
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0..upgrades() {
            // Every connection that waits at a socket is accepted, even with more sockets than
            // workers.
            let text = std::fs::read_to_string(weir.config_file()).expect("it is there");
            let (_, rest) = text.split_once('\n').expect("a line");
            std::fs::write(weir.config_file(), format!("workers {}\n{rest}", [3, 1, 2][round % 3]))
                .expect("written");
            let so_far = [&kept, &done].map(|count| count.load(Ordering::Relaxed));
            weir.upgrade();
            eventually("all go on", || {
                let now = [&kept, &done].map(|count| count.load(Ordering::Relaxed));
                now[0] > so_far[0] + 20 && now[1] > so_far[1] + 20
            });
            server.log().requests.clear();
        }
        drop(stopping);
    });
    assert_eq!(status(&weir)["clients"]["answers"]["5xx"], 0);
    eventually("old programs end with their clients", || weir.processes() == [weir.pid()]);
    weir.stop();
    server.finish();
}

fn clients_of_before_are_told(io: Io) {
    let (server, may_answer) = patient();
    let weir = Weir::start(io, 1, &app(&server, 2, ""));
    let [mut idle, mut silent, mut busy] = [(); 3].map(|()| Client::connect(weir.address));
    assert!(request(&mut idle) && request(&mut silent));
    let late = nonce();
    busy.get(&format!("/late?n={late}"));
    is_asked(&server);
    let before = weir.upgrade();
    // The response says that the connection ends, and the next one goes to the new program.
    assert!(!request(&mut idle));
    assert!(!idle.end().reset);
    assert!(request(&mut Client::connect(weir.address)));
    may_answer.store(true, Ordering::Relaxed);
    let reply = busy.reply();
    check_honest(&late, &reply).unwrap();
    assert!(reply.closes && !busy.end().reset);
    // A client that sends nothing more is disconnected in the end.
    assert!(!silent.end().reset);
    eventually("the old program has ended", || !weir.processes().contains(&before));
    weir.stop();
    server.finish();
}

fn streams_are_finished(io: Io) {
    let (server, may_answer) = patient();
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let rest = format!("listen \"{address}\" {{ protocols \"h2c\" }}\n{}", app(&server, 4, ""));
    let weir = Weir::start(io, 2, &rest);
    let mut client = Http2Client::connect(address, &[]);
    let late = client.get(&format!("/late?n={}", nonce()));
    is_asked(&server);
    weir.upgrade();
    client.until("it is told", |client| !client.goaways.is_empty());
    assert_eq!(client.goaways, [(0x7fff_ffff, 0)], "streams that are on their way are still taken");
    let more = client.get(&format!("/victim?n={}", nonce()));
    assert_eq!(client.answer(more).statuses, [200]);
    client.until("it is told the last one", |client| client.goaways.len() == 2);
    assert_eq!(client.goaways[1], (more, 0));
    may_answer.store(true, Ordering::Relaxed);
    assert_eq!(client.answer(late).statuses, [200]);
    client.read_until("it ends", |client| client.closed);
    let mut next = Http2Client::connect(address, &[]);
    let stream = next.get(&format!("/victim?n={}", nonce()));
    assert_eq!(next.answer(stream).statuses, [200]);
    drop(next);
    weir.stop();
    server.finish();
}

/// Opens a tunnel that echoes.
fn tunnel(weir: &Weir) -> Client {
    let mut client = Client::connect(weir.address);
    client.ask_upgrade();
    client
        .send(b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(client.reply().status, 101);
    client
}

fn echoes(client: &mut Client) {
    client.send(b"hello");
    assert_eq!(client.tunnel(5), b"hello");
}

fn tunnels_have_a_time_of_their_own(io: Io) {
    let (server, may_answer) = patient();
    let times = "shutdown { drain \"1s\" }\nupgrade { tunnels \"6s\" }\n";
    let weir = Weir::start(io, 2, &format!("{times}{}", app(&server, 4, "")));
    let (mut first, mut second) = (tunnel(&weir), tunnel(&weir));
    [&mut first, &mut second].into_iter().for_each(echoes);
    let mut busy = Client::connect(weir.address);
    busy.get(&format!("/late?n={}", nonce()));
    is_asked(&server);
    let before = weir.upgrade();
    [&mut first, &mut second].into_iter().for_each(echoes);
    // The time for requests is over, that for tunnels is not.
    assert!(busy.try_reply().is_none());
    [&mut first, &mut second].into_iter().for_each(echoes);
    assert!(weir.processes().contains(&before));
    drop(second);
    first.end();
    eventually("the old program has ended", || weir.processes() == [weir.pid()]);
    may_answer.store(true, Ordering::Relaxed);
    weir.stop();
    server.finish();
}

/// TLS: a client that is accepted and has not shaken hands yet is served by the process that
/// accepted it. Returns whether a program has the other end of a connection: one that waits to be
/// accepted has no inode (proc_net_tcp(5)).
fn is_accepted(stream: &TcpStream) -> bool {
    let written = |address: std::io::Result<SocketAddr>| match address.expect("connected") {
        SocketAddr::V4(address) => {
            format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port())
        }
        SocketAddr::V6(_) => panic!("an IPv4 address"),
    };
    let ends = [written(stream.peer_addr()), written(stream.local_addr())];
    let table = std::fs::read_to_string("/proc/net/tcp").expect("a table");
    let mut lines = table.lines().map(|line| line.split_ascii_whitespace().skip(1));
    lines.any(|mut words| {
        ends.iter().all(|end| words.next() == Some(end)) && words.nth(6) != Some("0")
    })
}

fn handshakes_that_have_begun_are_finished(io: Io) {
    let server = Server::start(Honest);
    let scratch = Scratch::new();
    let files = certificate(&scratch, "ec", &["localhost"], 30);
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let rest =
        format!("listen \"{address}\" {{ tls {{ {} }} }}\n{}", files.row(), app(&server, 2, ""));
    let weir = Weir::start(io, 2, &rest);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopping = Stopping(&over);
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    request(&mut Client::connect(bridge(address)));
                }
            });
        }
        for _ in 0..3 {
            weir.upgrade();
        }
        drop(stopping);
    });
    eventually("old programs end with their clients", || weir.processes() == [weir.pid()]);
    // Accepted, and silent until the new program is in charge.
    let clients = || status(&weir)["totals"]["client_connections"].clone();
    eventually("those who have left are gone", || clients() == 0);
    // A client counts after its handshake; the kernel knows earlier whether it is accepted.
    let mut stream = TcpStream::connect(address).expect("weir accepts");
    eventually("it is accepted", || is_accepted(&stream));
    weir.upgrade();
    let mut tls = connection(&config(), "localhost");
    let mut both = rustls::Stream::new(&mut tls, &mut stream);
    both.write_all(b"GET /victim?n=00000000 HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect("the old program goes on with it");
    let mut answer = Vec::new();
    both.read_to_end(&mut answer).expect("a whole answer");
    let answer = String::from_utf8_lossy(&answer).to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 200") && answer.contains("connection: close"), "{answer}");
    weir.stop();
    server.finish();
}

fn a_configuration_that_is_wrong_changes_nothing(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 2, &app(&server, 2, ""));
    let (before, mut client) = (weir.pid(), Client::connect(weir.address));
    weir.rewrite("nonsense\n");
    let said = refused(&weir, &["upgrade"], 78);
    assert!(said.contains("nonsense") && said.contains("weir.kdl"), "{said}");
    nothing_has_changed(&weir, before, &mut client);
    // A port that another program has.
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = (taken.local_addr().expect("bound"), taken);
    weir.rewrite(&format!("listen \"{}\"\n{}", taken.0, app(&server, 2, "")));
    let said = refused(&weir, &["upgrade"], 1);
    assert!(said.contains(&format!("cannot listen on {}", taken.0)), "{said}");
    nothing_has_changed(&weir, before, &mut client);
    weir.says("upgrade-failed: this program continues");
    drop(taken);
    weir.upgrade();
    assert!(!request(&mut client));
    weir.stop();
    server.finish();
}

/// The real program under a separate name, which can then name another program.
struct Installed {
    scratch: Scratch,
}

impl Installed {
    fn new() -> Installed {
        let installed = Installed { scratch: Scratch::new() };
        installed.install_weir();
        installed
    }

    fn command(&self) -> Command {
        Command::new(self.scratch.path("weir"))
    }

    fn install_weir(&self) {
        let _ = std::fs::remove_file(self.scratch.path("weir"));
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_weir"), self.scratch.path("weir"))
            .expect("a link");
    }

    /// Installs a script that gets the words `run -c FILE`.
    fn install(&self, script: &str) {
        std::fs::remove_file(self.scratch.path("weir")).expect("it is there");
        let new = self.scratch.write("new", format!("#!/bin/sh\n{script}\n").as_bytes());
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        std::fs::rename(new, self.scratch.path("weir")).expect("a name");
    }
}

/// Gives a new program this long to be ready, in seconds.
fn give(weir: &Weir, seconds: u32, rest: &str) {
    weir.rewrite(&format!("upgrade timeout=\"{seconds}s\"\n{rest}"));
    weir.answer(&["reload"]);
}

/// Enough for any program to start on a busy machine, seconds.
const LONG: u32 = 300;

fn a_program_that_is_none_changes_nothing(io: Io) {
    let (server, installed) = (Server::start(Honest), Installed::new());
    let rest = app(&server, 2, "");
    let weir =
        Weir::start_by(io, 2, &format!("upgrade timeout=\"{LONG}s\"\n{rest}"), installed.command());
    let (before, mut client) = (weir.pid(), Client::connect(weir.address));
    let programs = [
        ("exit 3", "ended before it was ready (exit status: 3)"),
        ("kill -SEGV $$", "ended before it was ready (signal: 11"),
        ("exec tail -f $3", "was not ready within 1s"),
        // It sends something that is not a message.
        ("echo nonsense >&0; exec tail -f $3", "cannot parse the messages"),
    ];
    for (script, why) in programs {
        installed.install(script);
        // A program that ends, or sends something, is noticed at once; only without either the time
        // has to run out.
        give(&weir, if why.contains("within") { 1 } else { LONG }, &rest);
        let said = refused(&weir, &["upgrade"], 1);
        assert!(said.contains(why), "{script}: {said}");
        nothing_has_changed(&weir, before, &mut client);
    }
    std::fs::remove_file(installed.scratch.path("weir")).expect("it is there");
    let said = refused(&weir, &["upgrade"], 1);
    assert!(said.contains("cannot start") && said.contains("weir: No such file"), "{said}");
    nothing_has_changed(&weir, before, &mut client);
    installed.install_weir();
    weir.upgrade();
    weir.stop();
    server.finish();
}

/// A required upstream without a server: not ready, as `/readyz` says.
fn who_is_not_ready_in_time_is_ended(io: Io) {
    let server = Server::start(Honest);
    let rest = app(&server, 2, "");
    let weir = Weir::start(io, 2, &rest);
    let (before, mut client) = (weir.pid(), Client::connect(weir.address));
    let dead =
        format!("upstream \"dead\" {{ server \"127.0.0.1:{}\"; required #true; }}\n", free_port());
    // On a busy machine a new program may not even have reported why it is not ready: then it gets
    // more time.
    for seconds in [1, 5, 25, 120] {
        give(&weir, seconds, &rest);
        weir.rewrite(&format!("{dead}{rest}"));
        let said = refused(&weir, &["upgrade"], 1);
        assert!(said.contains(&format!("was not ready within {seconds}s")), "{said}");
        nothing_has_changed(&weir, before, &mut client);
        if said.contains(&format!("was not ready within {seconds}s: no-server dead")) {
            break;
        }
        assert!(seconds < 120, "{said}");
    }
    weir.stop();
    server.finish();
}

fn one_thing_at_a_time(io: Io) {
    let ((server, may_answer), installed) = (patient(), Installed::new());
    let weir = Weir::start_by(io, 1, &app(&server, 2, ""), installed.command());
    let before = weir.pid();
    installed.install("exec tail -f $3");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| refused(&weir, &["upgrade"], 1));
        eventually("a new program is there", || weir.processes().len() == 2);
        for verb in ["upgrade", "reload"] {
            let said = refused(&weir, &[verb], 1);
            assert!(said.contains("a new program is taking over"), "{verb}: {said}");
        }
        // A signal ends it meanwhile, so the upgrade is abandoned.
        let mut busy = Client::connect(weir.address);
        let late = nonce();
        busy.get(&format!("/late?n={late}"));
        is_asked(&server);
        weir.signal("TERM");
        let said = first.join().expect("no panic");
        assert!(said.contains("upgrade failed: this weir is shutting down"), "{said}");
        installed.install_weir();
        let said = refused(&weir, &["upgrade"], 1);
        assert!(said.contains("upgrade failed: this weir is shutting down"), "{said}");
        eventually("the new program is gone", || weir.processes() == [before]);
        may_answer.store(true, Ordering::Relaxed);
        check_honest(&late, &busy.reply()).unwrap();
    });
    let mut weir = weir;
    assert_eq!(weir.wait().code(), Some(0));
    server.finish();
}

/// The old program is killed while the new one waits: the new one serves alone.
fn a_new_program_survives_its_predecessor(io: Io) {
    let server = Server::start(Honest);
    let port = free_port();
    let late = format!("upstream \"late\" {{ server \"127.0.0.1:{port}\"; required #true; }}\n");
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    let before = weir.pid();
    weir.rewrite(&format!("{late}{}", app(&server, 1, "")));
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| weir.ask(&["upgrade"]));
        eventually("a new program waits", || weir.said().matches("listening on").count() == 2);
        weir.signal("KILL");
        // A question to the old program may be answered by the new one.
        asked.join().expect("no panic");
    });
    eventually("the new one answers", || weir.ask(&["status", "--json"]).status.success());
    assert_ne!(weir.follow(), before);
    assert!(request(&mut Client::connect(weir.address)));
    drop(weir);
    drop(server);
}

fn a_signal_does_it_too(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    let before = weir.pid();
    let mut client = Client::connect(weir.address);
    assert!(request(&mut client));
    weir.signal("USR2");
    eventually("another process is in charge", || weir.follow() != before);
    assert!(!request(&mut client));
    weir.stop();
    server.finish();
}

/// A server that an operator took out does not return because of an upgrade.
fn orders_hold(io: Io) {
    let [first, second] = [(); 2].map(|()| Server::start(Honest));
    let [one, other] = [&first, &second].map(|server| server.address.to_string());
    let of = |weight: u32| {
        format!(
            "upstream \"app\" {{ server \"{one}\"; server \"{other}\" weight={weight}; }}\n\
                route {{ proxy \"app\" }}\n"
        )
    };
    let weir = Weir::start(io, 2, &of(50));
    weir.answer(&["server", "disable", "app", &one]);
    weir.answer(&["server", "weight", "app", &other, "7"]);
    let stands = || {
        let told = status(&weir);
        let servers = &told["upstreams"][0]["servers"];
        [servers[0]["state"].clone(), servers[1]["weight"].clone()]
    };
    assert_eq!(stands(), [Value::from("disabled"), Value::from(7)]);
    (0..2).for_each(|_| {
        weir.upgrade();
        assert_eq!(stands(), [Value::from("disabled"), Value::from(7)]);
    });
    assert!(request(&mut Client::connect(weir.address)));
    weir.rewrite(&of(60));
    weir.upgrade();
    assert_eq!(stands(), [Value::from("disabled"), Value::from(60)]);
    weir.answer(&["server", "enable", "app", &one]);
    weir.upgrade();
    assert_ne!(stands()[0], "disabled");
    weir.stop();
    [first, second].into_iter().for_each(|server| drop(server.finish()));
}

/// Another configuration comes with the new program: it binds new listeners, and removed ones end
/// as in a reload.
fn listeners_come_and_go_with_it(io: Io) {
    let server = Server::start(Honest);
    let [first, second] = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
    let with = |other: SocketAddr| format!("listen \"{other}\"\n{}", app(&server, 2, ""));
    let weir = Weir::start(io, 2, &with(first));
    let mut client = Client::connect(first);
    assert!(request(&mut client));
    weir.rewrite(&with(second));
    weir.upgrade();
    assert!(!request(&mut client));
    [weir.address, second]
        .into_iter()
        .for_each(|address| assert!(request(&mut Client::connect(address))));
    eventually("nobody listens there", || {
        TcpStream::connect_timeout(&first, Duration::from_millis(100)).is_err()
    });
    assert_eq!(
        status(&weir)["listeners"],
        serde_json::json!([weir.address.to_string(), second.to_string()])
    );
    weir.stop();
    server.finish();
}

fn status_and_metrics_are_always_there(io: Io) {
    let server = Server::start(Honest);
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let weir = Weir::start(io, 1, &format!("metrics \"{metrics}\"\n{}", app(&server, 1, "")));
    let (over, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let stopping = Stopping(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                status(&weir);
                asked.fetch_add(1, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let mut client = Client::connect(metrics);
                client.get("/healthz");
                assert_eq!(client.reply().status, 200);
            }
        });
        for _ in 0..3 {
            let so_far = asked.load(Ordering::Relaxed);
            weir.upgrade();
            eventually("it is asked", || asked.load(Ordering::Relaxed) > so_far + 2);
        }
        drop(stopping);
    });
    let (admin, before) = (weir.admin(), weir.pid());
    assert_eq!(status(&weir)["pid"], before);
    weir.stop();
    assert!(!admin.exists(), "the last one takes its socket away");
    server.finish();
}

fn the_service_manager_follows(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let manager = UnixDatagram::bind(scratch.path("notify")).expect("a socket");
    manager.set_read_timeout(Some(patience_now())).expect("a socket option");
    let hears = || {
        let mut text = [0; 512];
        let length = manager.recv(&mut text).expect("weir says something");
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.env("NOTIFY_SOCKET", scratch.path("notify"));
    let weir = Weir::start_by(io, 1, &app(&server, 1, ""), command);
    assert_eq!(hears().trim_end(), "READY=1");
    let before = weir.upgrade();
    assert_eq!(hears().trim_end(), format!("MAINPID={}\nREADY=1", weir.pid()));
    eventually("the old program has ended", || !weir.processes().contains(&before));
    weir.signal("TERM");
    assert_eq!(hears().trim_end(), "STOPPING=1", "the old one has not said so");
    weir.stop();
    server.finish();
}

/// Returns a command that gives weir these sockets as systemd does (sd_listen_fds(3)).
fn with_sockets(sockets: &[&TcpListener]) -> Command {
    // dash knows no descriptors above 9.
    let mut shell = Command::new("bash");
    let mut script =
        format!("export LISTEN_PID=$$ LISTEN_FDS={}; exec \"$0\" \"$@\"", sockets.len());
    for (at, socket) in sockets.iter().enumerate() {
        // They come above their final places.
        let high = rustix::io::fcntl_dupfd_cloexec(socket, 50).expect("a descriptor");
        rustix::io::fcntl_setfd(&high, rustix::io::FdFlags::empty()).expect("open");
        script = format!("exec {}<&{} {1}<&-; {script}", 3 + at, high.as_raw_fd());
        // The shell closes its own, this process keeps one: the test is short.
        std::mem::forget(high);
    }
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_weir")]);
    shell
}

fn sockets_of_the_service_manager_survive(io: Io) {
    let server = Server::start(Honest);
    let [held, strange] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let address = held.local_addr().expect("bound");
    let rest = format!("listen \"{address}\"\n{}", app(&server, 2, ""));
    let weir = Weir::start_by(io, 2, &rest, with_sockets(&[&held, &strange]));
    let unused = format!("no `listen \"{}\"`: the socket", strange.local_addr().expect("bound"));
    eventually("it says so", || weir.said().contains(&unused));
    [address, weir.address]
        .into_iter()
        .for_each(|address| assert!(request(&mut Client::connect(address))));
    // The new program also knows that the socket remains open.
    weir.upgrade();
    (0..20).for_each(|_| assert!(request(&mut Client::connect(address))));
    weir.stop();
    // While no weir runs, new clients are not refused: they wait for the next weir.
    let mut waiting = Client::connect(address);
    let late = nonce();
    waiting.get(&format!("/victim?n={late}"));
    let weir = Weir::start_by(io, 2, &rest, with_sockets(&[&held]));
    check_honest(&late, &waiting.reply()).unwrap();
    drop(waiting);
    weir.stop();
    server.finish();
}
