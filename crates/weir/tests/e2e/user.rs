//! Proves: a weir with `user` that root starts runs as that user in every thread, for good, and
//! serves, reloads, reopens its log and is upgraded as that user. Everything that only root could
//! open is open, and weir warns at the start of what only root could open again. How: the real
//! binary, started as root with separate users in a mount namespace. docs/privileges.md.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::kit::tls::{certificate, config, handshake};
use crate::kit::{
    Client, Honest, Io, Scratch, Server, Weir, app, eventually, on_both_drivers, request, status,
};
use socket2::{Domain, Socket, Type};

on_both_drivers!(
    every_thread_is_the_user,
    ports_below_1024_need_the_right_or_a_restart,
    the_right_to_ports_can_be_kept,
    the_right_to_ban_in_the_kernel_is_one_threads,
    unix_sockets_are_the_users,
    what_root_alone_can_read_is_told,
    logs_are_the_users,
);

const WEIR: u32 = 990;
const OF_WEIR: u32 = 980;
const TLS: u32 = 70;
/// CAP_NET_BIND_SERVICE.
const NET_BIND: &str = "0000000000000400";
/// CAP_NET_ADMIN.
const NET_ADMIN: &str = "0000000000001000";
const NONE: &str = "0000000000000000";

/// Whether this is root with mount namespaces. If not, it says so.
fn can_be_tested() -> bool {
    let able = || {
        Command::new("unshare")
            .args(["--mount", "true"])
            .status()
            .is_ok_and(|status| status.success())
    };
    let is_able = rustix::process::geteuid().is_root() && able();
    if !is_able {
        eprintln!("not tested: this needs root and mount namespaces");
    }
    is_able
}

/// Starts a weir with separate users: weir is in the groups weir and tls. None, with a message:
/// this is not root, or there are no namespaces.
fn start(io: Io, rest: &str) -> Option<Weir> {
    if !can_be_tested() {
        return None;
    }
    let scratch = Scratch::new();
    scratch.write("passwd", b"root:x:0:0:root:/root:/bin/sh\nweir:x:990:980::/:/bin/false\n");
    scratch.write("group", b"root:x:0:\nweir:x:980:\ntls:x:70:weir\n");
    let [passwd, group] = ["passwd", "group"].map(|name| scratch.path(name).display().to_string());
    // The program that starts weir makes the folders of the admin socket and of the log.
    let script = format!(
        "mount --bind {passwd} /etc/passwd && mount --bind {group} /etc/group && chown {WEIR} \
            \"$(dirname \"$3\")\" && exec \"$0\" \"$@\""
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, env!("CARGO_BIN_EXE_weir")]);
    let weir = Weir::start_by(io, 2, rest, command);
    // It has bound its listeners before it changes its user.
    eventually("it has started", || weir.said().contains("; as user weir "));
    Some(weir)
}

/// Returns a free port below 1024; another one each time.
fn low_port() -> SocketAddr {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let can_be_bound = |port: &u16| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a descriptor");
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], *port)).into()).is_ok()
    };
    let first = (std::process::id() % 300) as u16;
    let next = || 300 + (first + GIVEN.fetch_add(1, Ordering::Relaxed)) % 724;
    let port =
        std::iter::repeat_with(next).take(724).find(can_be_bound).expect("one of them is free");
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Returns each thread with the lines of its status that identify the user.
fn threads(pid: u32) -> Vec<(String, String)> {
    const LINES: [&str; 8] =
        ["Uid:", "Gid:", "Groups:", "CapInh:", "CapPrm:", "CapEff:", "CapAmb:", "NoNewPrivs:"];
    let all = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
    // A thread that ends meanwhile does not count.
    let texts = all.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    let of = |text: String| {
        let value = |name: &str| {
            let line =
                text.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel says it");
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        (value("Name:"), LINES.map(value).join("|"))
    };
    texts.map(of).collect()
}

/// Checks that every thread runs as the user with these capabilities, in these groups.
fn are_all(pid: u32, groups: &str, capabilities: &str) {
    let who = format!(
        "{WEIR} {WEIR} {WEIR} {WEIR}|{OF_WEIR} {OF_WEIR} {OF_WEIR} \
            {OF_WEIR}|{groups}|{capabilities}|{capabilities}|{capabilities}|{capabilities}|1"
    );
    // The last one to start.
    let is_complete = || threads(pid).iter().any(|(name, _)| name == "weir-admin");
    eventually("all threads are there", is_complete);
    for (name, said) in threads(pid) {
        assert_eq!(said, who, "thread {name}");
    }
}

fn both() -> String {
    format!("{TLS} {OF_WEIR}")
}

/// Returns standard error of a command that failed with this code.
fn refused(output: &Output, code: i32) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

fn every_thread_is_the_user(io: Io) {
    if !can_be_tested() {
        return;
    }
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let files = certificate(&scratch, "ec", &["a.test"], 90);
    // Readable by its group only.
    chown(&files.key, Some(0), Some(TLS)).expect("this is root");
    fs::set_permissions(&files.key, fs::Permissions::from_mode(0o640)).expect("this is root");
    let users = scratch.write("users", b"");
    fs::set_permissions(&users, fs::Permissions::from_mode(0o644)).expect("this is root");
    let low = low_port();
    let rest = format!(
        "user \"weir\"\nlisten \"{low}\" {{ tls {{ {} }} }}\naccess-log \"stdout\"\n\
            forward {{ listen \"127.0.0.1:{}\"; users \"{}\"; resolver \"127.0.0.1:9\" }}\n\
            upstream \"named\" {{ server \"localhost:9\" }}\n\
            route path=\"/named\" {{ proxy \"named\" }}\n{}",
        files.row(),
        crate::kit::free_port(),
        users.display(),
        app(&server, 2, "health path=\"/up\"")
    );
    let Some(weir) = start(io, &rest) else { return };
    handshake(low, &config(), "a.test").expect("TLS on a port of root");
    are_all(weir.pid(), &both(), NONE);
    assert!(
        !weir.said().contains("-unreadable: ") && !weir.said().contains("-unwritable: "),
        "nothing to be told: {}",
        weir.said()
    );
    // Other users cannot read its memory.
    assert_eq!(fs::metadata(format!("/proc/{}/mem", weir.pid())).expect("it runs").uid(), 0);
    request(&mut Client::connect(weir.address));
    assert_eq!(weir.answer(&["reload"]), "");
    weir.upgrade();
    are_all(weir.pid(), &both(), NONE);
    assert_eq!(fs::metadata(format!("/proc/{}/mem", weir.pid())).expect("it runs").uid(), 0);
    handshake(low, &config(), "a.test").expect("the listener was handed over");
    request(&mut Client::connect(weir.address));
    are_all(weir.pid(), &both(), NONE);
    let socket = weir.admin();
    weir.stop();
    assert!(!socket.exists(), "it was the user's");
    server.finish();
}

fn ports_below_1024_need_the_right_or_a_restart(io: Io) {
    let server = Server::start(Honest);
    let rest = format!("user \"weir\" group=\"weir\"\n{}", app(&server, 1, ""));
    let Some(weir) = start(io, &rest) else { return };
    let low = low_port();
    weir.rewrite(&format!("listen \"{low}\"\n{rest}"));
    let said = refused(&weir.ask(&["reload"]), 77);
    assert_eq!(
        said,
        format!(
            "weir: cannot listen on {low}: no permission: port {} needs the capability \
                CAP_NET_BIND_SERVICE\n  help: weir dropped this capability to run as user `weir`: \
                restart it with user \"weir\" privileged-ports=#true to keep the capability\n",
            low.port()
        )
    );
    // A port beside its own listener, for which the sockets must belong to one user.
    let port = weir.address.port();
    weir.rewrite(&format!("listen \"0.0.0.0:{port}\"\n{rest}"));
    let text = fs::read_to_string(weir.config_file()).expect("it is there");
    let text = text.replacen(&format!("listen \"{}\"\n", weir.address), "", 1);
    fs::write(weir.config_file(), text).expect("this is root");
    assert_eq!(weir.answer(&["reload"]), "");
    request(&mut Client::connect(weir.address));
    // The user of weir cannot change.
    weir.rewrite(&app(&server, 1, ""));
    let said = refused(&weir.ask(&["reload"]), 78);
    assert!(
        said.starts_with("weir: `user` needs a restart: weir changes its user at the start\n"),
        "{said}"
    );
    weir.stop();
    server.finish();
}

fn the_right_to_ports_can_be_kept(io: Io) {
    let server = Server::start(Honest);
    let rest = format!("user \"weir\" privileged-ports=#true\n{}", app(&server, 1, ""));
    let Some(weir) = start(io, &rest) else { return };
    are_all(weir.pid(), &both(), NET_BIND);
    let low = low_port();
    weir.rewrite(&format!("listen \"{low}\"\n{rest}"));
    assert_eq!(weir.answer(&["reload"]), "");
    request(&mut Client::connect(low));
    weir.upgrade();
    are_all(weir.pid(), &both(), NET_BIND);
    weir.rewrite(&rest);
    assert_eq!(weir.answer(&["reload"]), "");
    eventually("it is closed", || TcpStream::connect(low).is_err());
    weir.rewrite(&format!("listen \"{low}\"\n{rest}"));
    assert_eq!(weir.answer(&["reload"]), "");
    request(&mut Client::connect(low));
    weir.stop();
    server.finish();
}

/// Workers do not have it at all, other threads only to pass it on.
fn the_right_to_ban_in_the_kernel_is_one_threads(io: Io) {
    let server = Server::start(Honest);
    let shield = "shield { limit \"open\" count=\"open\" max=1000; ban for=\"1h\"; }\n";
    let rest = format!("user \"weir\"\n{shield}{}", app(&server, 1, ""));
    let Some(weir) = start(io, &rest) else { return };
    let is_right = |name: &str, said: &str| {
        let said: Vec<&str> = said.split('|').collect();
        let number = name.strip_prefix("weir-").map(|name| name.trim_start_matches("encode-"));
        let is_worker = number.is_some_and(|number| number.parse::<u16>().is_ok());
        let permitted = if is_worker { NONE } else { NET_ADMIN };
        let effective = if name == "weir-bans" { NET_ADMIN } else { NONE };
        (said[4], said[5]) == (permitted, effective)
    };
    // A thread changes its rights itself, as the first thing that it does.
    let are_right = || {
        eventually("all threads are there, each with its rights", || {
            let all = threads(weir.pid());
            let mut wrong = all.iter().filter(|(name, said)| !is_right(name, said));
            let wrong = wrong.next().inspect(|wrong| eprintln!("{wrong:?}"));
            wrong.is_none() && all.iter().any(|(name, _)| name == "weir-admin")
        });
    };
    are_right();
    weir.upgrade();
    are_right();
    weir.rewrite(&rest.replace("ban for", "ban via=\"user\" for"));
    assert_eq!(weir.answer(&["reload"]), "");
    weir.stop();
    server.finish();
}

fn unix_sockets_are_the_users(io: Io) {
    if !can_be_tested() {
        return;
    }
    let scratch = Scratch::new();
    let socket = scratch.path("s");
    chown(scratch.path(""), Some(WEIR), Some(OF_WEIR)).expect("this is root");
    let rest = |rights: &str| {
        format!(
            "user \"weir\"\nlisten \"unix:{}\"{rights}\nroute {{ respond 200 \"hello\"; }}\n",
            socket.display()
        )
    };
    let Some(weir) = start(io, &rest("")) else { return };
    let is = |uid: u32, gid: u32, mode: u32| {
        let found = fs::symlink_metadata(&socket).expect("it is there");
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o777), (uid, gid, mode));
    };
    is(WEIR, OF_WEIR, 0o660);
    // It is in that group, and may take it back.
    for (rights, gid, mode) in [(" mode=\"0666\" group=\"tls\"", TLS, 0o666), ("", OF_WEIR, 0o660)]
    {
        weir.rewrite(&rest(rights));
        assert_eq!(weir.answer(&["reload"]), "");
        is(WEIR, gid, mode);
    }
    weir.upgrade();
    is(WEIR, OF_WEIR, 0o660);
    weir.stop();
    assert!(!socket.exists(), "the user may remove it");
}

fn what_root_alone_can_read_is_told(io: Io) {
    if !can_be_tested() {
        return;
    }
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let files = certificate(&scratch, "ec", &["a.test"], 90);
    fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600)).expect("this is root");
    let sealed = SocketAddr::from(([127, 0, 0, 1], crate::kit::free_port()));
    let rest = format!(
        "user \"weir\"\nlisten \"{sealed}\" {{ tls {{ {} }} }}\n{}",
        files.row(),
        app(&server, 1, "")
    );
    let Some(weir) = start(io, &rest) else { return };
    handshake(sealed, &config(), "a.test").expect("its key was read");
    let key = files.key.display();
    let told = format!(
        "warning weir: file-unreadable: user `weir` cannot read {key}: the content \
            that weir has read remains in force, but reloads fail, and weir does not see changes; \
            `chgrp` and `chmod g+r` the file and its folder for that user, or restart weir \
            instead user=weir file={key}\n"
    );
    weir.says(&told);
    let said = refused(&weir.ask(&["reload"]), 78);
    assert!(said.contains(&*key.to_string()), "{said}");
    let help = "\n  help: weir dropped root to run as user `weir`: let that user read the file and \
        enter its folder (chgrp, chmod), or restart weir, which reads as root first\n";
    assert!(said.ends_with(help), "{said}");
    handshake(sealed, &config(), "a.test").expect("what was in force stays so");
    fs::set_permissions(&files.key, fs::Permissions::from_mode(0o644)).expect("this is root");
    assert_eq!(weir.answer(&["reload"]), "");
    weir.stop();
    server.finish();
}

fn logs_are_the_users(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let log = scratch.path("access.log");
    let rest = format!("user \"weir\"\naccess-log \"{}\"\n{}", log.display(), app(&server, 1, ""));
    let Some(weir) = start(io, &rest) else { return };
    let found = fs::metadata(&log).expect("it is there at once");
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o777), (WEIR, OF_WEIR, 0o640));
    let folder = scratch.path("").display().to_string();
    let folder = folder.trim_end_matches('/');
    let told = format!(
        "warning weir: folder-unwritable: user `weir` cannot create files in {folder}: the \
            program that rotates the access log must create the new file for that user \
            (logrotate: create 0640 weir), or `chown weir {folder}` user=weir folder={folder}\n"
    );
    weir.says(&told);
    let lines = |path: &Path| fs::read_to_string(path).map_or(0, |text| text.lines().count());
    request(&mut Client::connect(weir.address));
    eventually("a line", || lines(&log) == 1);
    // As logrotate does with `create`.
    let old = scratch.path("access.log.1");
    fs::rename(&log, &old).expect("it is there");
    fs::write(&log, b"").expect("this is root");
    chown(&log, Some(WEIR), None).expect("this is root");
    weir.signal("USR1");
    eventually("lines go to the new one", || {
        request(&mut Client::connect(weir.address));
        lines(&log) > 0
    });
    weir.stop();
    server.finish();

    // weir does not take another user's file.
    fs::write(&log, b"").expect("this is root");
    fs::set_permissions(&log, fs::Permissions::from_mode(0o600)).expect("this is root");
    chown(&log, Some(0), Some(0)).expect("this is root");
    let file = scratch.write(
        "weir.kdl",
        format!(
            "listen \"127.0.0.1:0\"\n\
        user \"65534\" group=\"65534\"\naccess-log \"{}\"\nroute {{ respond 200 \"hello\"; }}\n\
        admin \"off\"\n",
            log.display()
        )
        .as_bytes(),
    );
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["run", "-c"])
        .arg(&file)
        .output()
        .expect("it starts");
    let said = refused(&output, 1);
    assert!(
        said.ends_with(&format!(
            "weir: can't open the access log: {}: Permission denied (os \
        error 13)\n  help: weir opens it as user `65534`: chown \
        65534 {}\n",
            log.display(),
            log.display()
        )),
        "{said}"
    );
    assert_eq!(fs::metadata(&log).expect("it is there").uid(), 0);
}

#[test]
fn only_root_becomes_somebody_else() {
    let scratch = Scratch::new();
    let text = b"user \"root\"\nlisten \"127.0.0.1:0\"\nroute { respond 200 \"hello\"; }\n";
    let file = scratch.write("weir.kdl", text);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("it is ours");
    let check = |verb: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args([verb, "-c"]).arg(&file).env_remove("WEIR_CONFIG");
        if rustix::process::geteuid().is_root() {
            command.uid(1234).gid(1234);
        }
        command.output().expect("it starts")
    };
    for verb in ["check", "run"] {
        let said = refused(&check(verb), 78);
        let uid = if rustix::process::geteuid().is_root() {
            1234
        } else {
            rustix::process::geteuid().as_raw()
        };
        for part in [
            &*format!("only root can become `root`, but weir runs as user {uid}"),
            "weir.kdl:1:6",
            "start weir as root, or as `root` (systemd: User=root), or remove `user`",
        ] {
            assert!(said.contains(part), "{said}");
        }
    }
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["check", "-c"])
        .arg(scratch.write(
            "weir.kdl",
            b"user \"weirdly-unknown\"\nlisten \"127.0.0.1:0\"\nroute { respond 200 \"hello\"; }\n",
        ))
        .output()
        .expect("it starts");
    let said = refused(&output, 78);
    assert!(
        said.contains("no user `weirdly-unknown` in /etc/passwd") && said.contains("help: "),
        "{said}"
    );
}

#[test]
fn root_without_user_is_told_once() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not tested: this needs root");
    }
    let told = "warning weir: advice: weir runs as root and remains root: write user \"NAME\" to \
        drop root after binding the listeners; user \"root\" silences this warning\n";
    let weir = Weir::start(Io::Epoll, 1, "route { respond 200 \"hello\"; }\n");
    assert_eq!(weir.answer(&["reload"]), "");
    weir.upgrade();
    eventually("it is told", || weir.said().contains(told));
    assert_eq!(weir.said().matches(told).count(), 1, "{}", weir.said());
    weir.stop();
    let weir = Weir::start(Io::Epoll, 1, "user \"root\"\nroute { respond 200 \"hello\"; }\n");
    assert_eq!(status(&weir)["listeners"].as_array().map(Vec::len), Some(1));
    assert!(!weir.said().contains("runs as root"), "{}", weir.said());
    weir.stop();
}
