//! Proves: clients on unix sockets are served like others, in every protocol. They have no address,
//! and a trusted one may speak for others. The socket's file has its rights and replaces only a
//! dead socket. It comes and goes with reloads, upgrades and the end without a refused connection.
//! How: the real binary, with clients on sockets in a folder of the test.
//! docs/unix-sockets.md#clients-on-unix-sockets.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::kit::http2::Http2Client;
use crate::kit::tls::{bridge, certificate};
use crate::kit::unix::to_unix;
use crate::kit::{
    Client, Honest, Io, Scratch, Server, Stopping, Weir, app, bounded, eventually, on_both_drivers,
    request, status,
};

on_both_drivers!(
    every_protocol_is_spoken,
    clients_have_no_address,
    a_proxy_in_front_may_say_whose_request_it_is,
    files_have_their_rights_and_go,
    reloads_lose_nobody,
    upgrades_lose_nobody,
    sockets_of_the_service_manager_are_used,
);

/// Sends a request over a separate connection. Returns whether the response is fine.
fn ask(path: &Path) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(path)?;
        bounded(&stream);
        stream.write_all(b"GET /u HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 "))
}

/// Sends requests over new connections until `over`; counts successes and failures.
fn keep_asking(path: &Path, over: &AtomicBool, (done, lost): (&AtomicUsize, &AtomicUsize)) {
    while !over.load(Ordering::Relaxed) {
        let to = if ask(path) { done } else { lost };
        to.fetch_add(1, Ordering::Relaxed);
    }
}

const HELLO: &str = "route { respond 200 \"hello\"; }\n";

fn every_protocol_is_spoken(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let [plain, prior, sealed] = ["plain", "h2c", "tls"].map(|name| scratch.path(name));
    let files = certificate(&scratch, "ec", &["bridge.test"], 90);
    let rest = format!(
        "listen \"unix:{}\"\nlisten \"unix:{}\" {{ protocols \"h2c\" }}\n\
            listen \"unix:{}\" {{ protocols \"http/1.1\"; tls {{ {} }} }}\n{}",
        plain.display(),
        prior.display(),
        sealed.display(),
        files.row(),
        app(&server, 2, "")
    );
    let weir = Weir::start(io, 2, &rest);
    let mut client = Client::connect(to_unix(&plain, b""));
    (0..50).for_each(|_| request(&mut client));
    client.request("POST", "/upload", "", &vec![b'x'; 200_000]);
    assert_eq!(client.reply().status, 200);
    let mut streams = Http2Client::connect(to_unix(&prior, b""), &[]);
    let stream = streams.get("/h2c");
    assert_eq!(streams.answer(stream).statuses, [200]);
    let mut client = Client::connect(bridge(to_unix(&sealed, b"")));
    (0..10).for_each(|_| request(&mut client));
    request(&mut Client::connect(weir.address));
    let told = status(&weir);
    let listeners = told["listeners"].as_array().expect("a list");
    assert!(listeners.contains(&format!("unix:{}", plain.display()).into()), "{told}");
    drop(client);
    drop(streams);
    weir.stop();
    assert!([plain, prior, sealed].iter().all(|path| !path.exists()), "their names are gone");
    server.finish();
}

fn clients_have_no_address(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let (socket, log) = (scratch.path("s"), scratch.path("access.log"));
    let format =
        "$remote_addr $remote_port $realip_remote_addr $realip_remote_port $status $request_uri";
    let rest = format!(
        "listen \"unix:{}\"\naccess-log \"{}\" format=\"{format}\"\n\
            route path=\"/inside\" {{ allow \"unix:\"; deny \"all\"; respond 200 \
            \"[$remote_addr]\"; }}\nroute path=\"/outside\" {{ deny \"unix:\"; respond 200 \"x\"; \
            }}\nroute path=\"/range\" {{ allow \"::/0\" \"0.0.0.0/0\"; deny \"all\"; respond 200 \
            \"x\"; }}\n{}",
        socket.display(),
        log.display(),
        app(&server, 2, "")
    );
    let weir = Weir::start(io, 1, &rest);
    let mut inside = Client::connect(to_unix(&socket, b""));
    let mut outside = Client::connect(weir.address);
    let code = |client: &mut Client, path: &str| {
        client.get(path);
        client.reply().status
    };
    assert_eq!((code(&mut inside, "/inside"), code(&mut outside, "/inside")), (200, 403));
    assert_eq!((code(&mut inside, "/outside"), code(&mut outside, "/outside")), (403, 200));
    assert_eq!((code(&mut inside, "/range"), code(&mut outside, "/range")), (403, 200));
    // An untrusted client cannot claim an address, not even from there.
    inside.request(
        "GET",
        "/asked",
        "X-Forwarded-For: 198.51.100.1\r\nForwarded: for=198.51.100.1\r\n",
        b"",
    );
    assert_eq!(inside.reply().status, 200);
    drop((inside, outside));
    weir.stop();
    let lines = fs::read_to_string(&log).expect("a log");
    assert!(lines.contains("unix: - unix: - 200 /inside\n"), "{lines}");
    assert!(lines.contains("unix: - unix: - 200 /asked\n"), "{lines}");
    let log = server.finish();
    let (_, asked) =
        log.requests.iter().find(|(_, request)| request.target == "/asked").expect("it was asked");
    assert_eq!(
        (asked.fields.first("x-forwarded-for"), asked.fields.first("forwarded")),
        (Some("unknown"), None)
    );
}

fn a_proxy_in_front_may_say_whose_request_it_is(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let ([socket, announced], log) =
        (["s", "p"].map(|name| scratch.path(name)), scratch.path("access.log"));
    let rest = format!(
        "client {{ trusted-proxies \"unix:\" }}\nlisten \"unix:{}\"\n\
            listen \"unix:{}\" {{ proxy-protocol #true }}\n\
            access-log \"{}\" format=\"$remote_addr $realip_remote_addr $scheme $request_uri\"\n{}",
        socket.display(),
        announced.display(),
        log.display(),
        app(&server, 1, "")
    );
    let weir = Weir::start(io, 1, &rest);
    let ask = |client: &mut Client, path: &str, fields: &str| {
        client.request("GET", path, fields, b"");
        assert_eq!(client.reply().status, 200);
    };
    let mut client = Client::connect(to_unix(&socket, b""));
    ask(
        &mut client,
        "/said",
        "X-Forwarded-For: 203.0.113.9, 198.51.100.1\r\nX-Forwarded-Proto: https\r\n",
    );
    ask(&mut client, "/silent", "");
    // A claim to have come over a unix socket is not believed.
    ask(&mut client, "/nobody", "X-Forwarded-For: 198.51.100.1, ::\r\n");
    let mut stranger = Client::connect(weir.address);
    ask(&mut stranger, "/stranger", "X-Forwarded-For: 198.51.100.1\r\n");
    let mut client =
        Client::connect(to_unix(&announced, b"PROXY TCP4 198.51.100.7 10.0.0.1 4711 80\r\n"));
    ask(&mut client, "/announced", "");
    let mut unspecified = Client::connect(to_unix(&announced, b"PROXY TCP6 :: ::1 4711 80\r\n"));
    ask(&mut unspecified, "/unspecified", "");
    drop((client, unspecified, stranger));
    weir.stop();
    let lines = fs::read_to_string(&log).expect("a log");
    for line in [
        "198.51.100.1 unix: https /said",
        "unix: unix: http /silent",
        "unix: unix: http /nobody",
        "127.0.0.1 127.0.0.1 http /stranger",
        "198.51.100.7 198.51.100.7 http /announced",
        "unix: unix: http /unspecified",
    ] {
        assert!(lines.lines().any(|other| other == line), "{line} is not in\n{lines}");
    }
    let log = server.finish();
    let (_, said) =
        log.requests.iter().find(|(_, request)| request.target == "/said").expect("it was asked");
    assert_eq!(said.fields.first("x-forwarded-for"), Some("203.0.113.9, 198.51.100.1, unknown"));
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("it is there").permissions().mode() & 0o777
}

fn files_have_their_rights_and_go(io: Io) {
    let scratch = Scratch::new();
    let [socket, other] = ["s", "other"].map(|name| scratch.path(name));
    // As after kill -9.
    drop(UnixListener::bind(&socket).expect("a socket"));
    let gid = fs::metadata(scratch.path("")).expect("it is there").gid();
    let rest = |mode: &str| {
        format!("listen \"unix:{}\" mode=\"{mode}\" group=\"{gid}\"\n{HELLO}", socket.display())
    };
    let weir = Weir::start(io, 1, &rest("0666"));
    eventually("it listens", || ask(&socket));
    assert_eq!((mode(&socket), fs::metadata(&socket).expect("it is there").gid()), (0o666, gid));
    weir.rewrite(&rest("0600"));
    assert_eq!(weir.answer(&["reload"]), "");
    assert_eq!(mode(&socket), 0o600);
    assert!(ask(&socket), "it is the same socket");
    // A living socket is not replaced, and a file is not a socket.
    let file = scratch.write(
        "weir.kdl",
        format!("listen \"unix:{}\"\nadmin \"off\"\n{HELLO}", socket.display()).as_bytes(),
    );
    let run = |file: &Path| {
        Command::new(env!("CARGO_BIN_EXE_weir"))
            .args(["run", "-c"])
            .arg(file)
            .output()
            .expect("it starts")
    };
    let output = run(&file);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = format!(
        "weir: cannot listen on unix:{}: another program listens there\n",
        socket.display()
    );
    assert!(output.status.code() == Some(1) && said.ends_with(&line), "{said}");
    fs::write(&other, b"mine").expect("a file");
    weir.rewrite(&format!("listen \"unix:{}\"\n{}", other.display(), rest("0600")));
    let output = weir.ask(&["reload", "--dry-run"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = format!(
        "weir: cannot listen on unix:{}: a file that is not a socket is there; remove it, or \
            choose another path\n",
        other.display()
    );
    assert_eq!((output.status.code(), said), (Some(1), line));
    assert_eq!(fs::read(&other).expect("it is there"), b"mine");
    assert!(ask(&socket));
    // weir does not remove another program's socket.
    fs::remove_file(&socket).expect("it is there");
    let _theirs = UnixListener::bind(&socket).expect("nothing is there");
    weir.stop();
    assert!(socket.exists());
}

/// Runs this under clients that send requests over new connections all the time: none is lost.
fn under_load(path: &Path, run: impl FnOnce(&dyn Fn())) {
    let (over, done, lost) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let stopping = Stopping(&over);
        for _ in 0..4 {
            scope.spawn(|| keep_asking(path, &over, (&done, &lost)));
        }
        let more = || {
            let so_far = done.load(Ordering::Relaxed);
            eventually("requests are answered", || done.load(Ordering::Relaxed) >= so_far + 50);
        };
        more();
        run(&more);
        more();
        drop(stopping);
    });
    assert_eq!(lost.load(Ordering::Relaxed), 0);
}

fn reloads_lose_nobody(io: Io) {
    let scratch = Scratch::new();
    let [stays, comes] = ["stays", "comes"].map(|name| scratch.path(name));
    let listen = |path: &Path| format!("listen \"unix:{}\"\n", path.display());
    let one = listen(&stays) + HELLO;
    let both = listen(&comes) + &one;
    let weir = Weir::start(io, 2, &one);
    eventually("it listens", || ask(&stays));
    under_load(&stays, |more| {
        for _ in 0..5 {
            weir.rewrite(&both);
            assert_eq!(weir.answer(&["reload"]), "");
            assert!(ask(&comes));
            let mut kept = Client::connect(to_unix(&comes, b""));
            kept.get("/kept");
            assert_eq!(kept.reply().status, 200);
            weir.rewrite(&one);
            assert_eq!(weir.answer(&["reload"]), "");
            assert!(!comes.exists() && UnixStream::connect(&comes).is_err());
            // A connected client may send one more request.
            kept.get("/kept");
            assert_eq!(kept.reply().status, 200);
            more();
        }
    });
    weir.stop();
    assert!(!stays.exists());
}

fn upgrades_lose_nobody(io: Io) {
    let scratch = Scratch::new();
    let [socket, goes] = ["s", "goes"].map(|name| scratch.path(name));
    let listen = |path: &Path| format!("listen \"unix:{}\"\n", path.display());
    let one = listen(&socket) + HELLO;
    let weir = Weir::start(io, 2, &(listen(&goes) + &one));
    eventually("it listens", || ask(&socket));
    weir.rewrite(&one);
    let number = fs::metadata(&socket).expect("it is there").ino();
    under_load(&socket, |more| {
        for _ in 0..5 {
            weir.upgrade();
            more();
        }
    });
    assert_eq!(fs::metadata(&socket).expect("it is there").ino(), number, "the same socket");
    eventually("what the new configuration has not is gone", || !goes.exists());
    // The rights are those of the new configuration.
    weir.rewrite(&one.replace("\"\n", "\" mode=\"0600\"\n"));
    weir.upgrade();
    eventually("it has its new mode", || mode(&socket) == 0o600);
    weir.rewrite(&one);
    weir.upgrade();
    eventually("it has the usual mode", || mode(&socket) == 0o660);
    // A new program that fails removes nothing.
    weir.rewrite(&format!("{one}listen \"unix:{}/no/s\"\n", socket.display()));
    assert!(!weir.ask(&["upgrade"]).status.success());
    assert!(ask(&socket), "its name is there still");
    // weir does not mistake another program's socket for its own.
    weir.rewrite(&one.replace("\"\n", "\" mode=\"0600\"\n"));
    fs::remove_file(&socket).expect("it is there");
    let _theirs = UnixListener::bind(&socket).expect("nothing is there");
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o644)).expect("it is ours");
    weir.upgrade();
    weir.stop();
    assert_eq!(mode(&socket), 0o644, "it is there, as it was");
}

fn sockets_of_the_service_manager_are_used(io: Io) {
    let scratch = Scratch::new();
    let socket = scratch.path("s");
    let held = UnixListener::bind(&socket).expect("nothing is there");
    let high = rustix::io::fcntl_dupfd_cloexec(&held, 50).expect("a descriptor");
    rustix::io::fcntl_setfd(&high, rustix::io::FdFlags::empty()).expect("open");
    let script = format!(
        "exec 3<&{0} {0}<&-; export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$0\" \"$@\"",
        high.as_raw_fd()
    );
    let mut command = Command::new("bash");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_weir")]);
    let weir =
        Weir::start_by(io, 2, &format!("listen \"unix:{}\"\n{HELLO}", socket.display()), command);
    drop(high);
    (0..20).for_each(|_| assert!(ask(&socket)));
    weir.upgrade();
    (0..20).for_each(|_| assert!(ask(&socket)));
    weir.stop();
    assert!(socket.exists(), "the service manager keeps it");
}
