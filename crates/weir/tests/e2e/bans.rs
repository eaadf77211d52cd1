//! Proves: a client that exceeds a limit too often is banned: its open connections are reset, and
//! so are new ones from its address, until the ban ends. Other clients are not affected, and exempt
//! ones are never banned. Operators see, add and end bans; bans survive a restart, a reload and an
//! upgrade. How: the real binary; clients of any address come by the PROXY protocol, or are named
//! by a trusted proxy. docs/bans.md.

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::kit::tls::{bridge_behind, certificate};
use crate::kit::{
    Client, Honest, Io, Scratch, Server, Weir, app, eventually, free_port, in_own_network, nonce,
    on_both_drivers, status,
};
use crate::temporary::exchange;

on_both_drivers!(
    who_does_not_stop_is_banned,
    a_ban_ends_and_the_next_one_is_longer,
    a_limit_that_bans_does_so_at_once,
    who_is_allowed_is_never_banned,
    operators_ban_and_see,
    programs_ban_and_see,
    what_operators_may_not_says_why,
    whom_a_proxy_speaks_for_gets_403,
    nobody_shakes_hands_with_the_banned,
    a_restart_keeps_them,
    a_file_that_others_may_have_written_is_not_believed,
    reloads_and_upgrades_keep_them,
);

// Clients have addresses that no machine has (240.0.0.0/4, and 4000::/3, which is unassigned),
// because weir never bans the machine's own addresses.

/// A balancer that weir trusts.
const BALANCER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
/// Bans a client that sends more than two requests and is then rejected more than three times a
/// minute.
const STRICT: &str = "limit \"two\" count=\"requests\" rate=\"1/h\" burst=2; ban after=3 \
    within=\"1m\" for=\"1h\" via=\"user\"";

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

/// Returns a configuration with a listener behind a balancer besides the usual one, and this
/// `shield`.
fn behind(listener: SocketAddr, options: &str, server: &Server, shield: &str) -> String {
    format!(
        "listen \"{listener}\" {{ proxy-protocol #true; {options} }}\n\
            client {{ trusted-proxies \"127.0.0.1\"; }}\nshield {{ {shield}; }}\n{}",
        app(server, 2, "")
    )
}

fn header(who: &str) -> Vec<u8> {
    let to = if who.contains(':') { ("TCP6", "4001:db8::ffff") } else { ("TCP4", "198.51.100.1") };
    format!("PROXY {} {who} {} 4711 443\r\n", to.0, to.1).into_bytes()
}

/// Connects as a client of this address. A banned one may be disconnected at once.
fn client(listener: SocketAddr, who: &str) -> Client {
    let mut client = Client::connect_from(BALANCER, listener);
    client.try_send(&header(who));
    client
}

/// Sends a request. Returns the status, or None if the connection ends.
fn ask(client: &mut Client) -> Option<u16> {
    client.ask("GET", false);
    client.try_send(format!("GET /?n={} HTTP/1.1\r\nHost: a\r\n\r\n", nonce()).as_bytes());
    client.try_reply().map(|reply| reply.status)
}

fn is_banned(listener: SocketAddr, who: &str) -> bool {
    let mut client = client(listener, who);
    let is_banned = ask(&mut client).is_none();
    assert!(!is_banned || client.ended().is_some_and(|ended| ended.reset), "{:?}", client.ended());
    is_banned
}

/// Sends requests until the connection is reset.
fn offend(listener: SocketAddr, who: &str) {
    let mut client = client(listener, who);
    let asked = (0..10_000).take_while(|_| ask(&mut client).is_some()).count();
    assert!(
        asked < 10_000 && client.ended().is_some_and(|ended| ended.reset),
        "{asked} {:?}",
        client.ended()
    );
}

/// Returns the bans, as JSON.
fn list(weir: &Weir) -> Vec<Value> {
    let list: Value = serde_json::from_str(&weir.answer(&["ban", "list", "--json"])).expect("JSON");
    list["bans"].as_array().cloned().expect("a list")
}

fn networks(weir: &Weir) -> Vec<String> {
    let mut all: Vec<String> =
        list(weir).iter().map(|ban| ban["network"].as_str().expect("a text").to_owned()).collect();
    all.sort_unstable();
    all
}

/// Returns what `weir` prints on standard error when it fails with this code.
fn refused(weir: &Weir, arguments: &[&str], code: i32) -> String {
    let output = weir.ask(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

/// Nor does it prevent the start, and it remains unchanged.
fn a_file_that_others_may_have_written_is_not_believed(io: Io) {
    let (server, scratch, listener) = (Server::start(Honest), Scratch::new(), address());
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970")
        .as_secs();
    let planted = format!(
        "{{\"network\":\"198.51.100.0/24\",\"since\":{now},\"until\":{},\"count\":1,\
            \"reason\":\"planted\"}}\n",
        now + 9999
    );
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
            .expect("it is there");
    };
    let file = |name: &str, rights| {
        let path = scratch.write(name, planted.as_bytes());
        mode(&path, rights);
        path
    };
    let (link, pipe, open) = (scratch.path("link"), scratch.path("pipe"), file("open", 0o666));
    std::os::unix::fs::symlink(file("far", 0o600), &link).expect("a writable directory");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .expect("a FIFO");
    let mut all = vec![
        (link, "symbolic link"),
        (pipe, "a pipe"),
        (open, "others may write it"),
        (file("good", 0o600), ""),
    ];
    if rustix::process::geteuid().is_root() {
        let foreign = file("foreign", 0o600);
        std::os::unix::fs::chown(&foreign, Some(65_534), None).expect("root may");
        all.push((foreign, "it belongs to user 65534"));
    }
    for (path, why) in all {
        let before = std::fs::symlink_metadata(&path).expect("it is there");
        let state = format!("{STRICT} state=\"{}\"", path.display());
        let weir = Weir::start(io, 1, &behind(listener, "", &server, &state));
        assert_eq!(ask(&mut client(listener, "247.0.2.7")), Some(200), "{why}");
        assert_eq!(networks(&weir).len(), usize::from(why.is_empty()), "{}", path.display());
        let refused = "bans are neither read nor stored: ";
        if why.is_empty() {
            assert!(!weir.said().contains(refused), "{}", weir.said());
        } else {
            eventually("it says why", || {
                weir.said().contains(refused) && weir.said().contains(why)
            });
        }
        offend(listener, "247.0.2.9");
        weir.stop();
        if !why.is_empty() {
            let after = std::fs::symlink_metadata(&path).expect("it is there");
            assert_eq!(
                (after.ino(), after.mode(), after.mtime()),
                (before.ino(), before.mode(), before.mtime()),
                "{why}"
            );
        }
    }
    server.finish();
}

fn who_does_not_stop_is_banned(io: Io) {
    let (server, listener) = (Server::start(Honest), address());
    let weir = Weir::start(io, 2, &behind(listener, "", &server, STRICT));
    let (mut idle, mut other) = (client(listener, "247.0.2.7"), client(listener, "247.0.2.8"));
    assert_eq!(ask(&mut idle), Some(200));
    assert_eq!(ask(&mut other), Some(200));
    let mut bad = client(listener, "247.0.2.7");
    assert_eq!([(); 4].map(|()| ask(&mut bad)), [Some(200), Some(429), Some(429), Some(429)]);
    assert_eq!(list(&weir), Vec::<Value>::new(), "three are borne");
    // The request over the limit gets a response before the connection ends.
    let last = ask(&mut bad);
    assert!(matches!(last, Some(429) | None), "{last:?}");
    assert!(bad.end().reset && idle.end().reset, "both of his connections");
    let ban = &list(&weir)[0];
    assert_eq!(
        (&ban["network"], &ban["reason"], &ban["count"]),
        (&"247.0.2.7".into(), &"limit two".into(), &1.into())
    );
    assert!(is_banned(listener, "247.0.2.7"));
    assert_eq!(ask(&mut other), Some(200), "another client");
    let told = status(&weir);
    assert_eq!((&told["bans"]["in_force"], &told["bans"]["total"]), (&1.into(), &1.into()));
    assert_eq!(told["totals"]["client_closes"]["banned"], 2);
    assert!(weir.answer(&["status"]).contains("bans     1 in force  1 since the start\n"));
    weir.says("ban-added: limit two network=247.0.2.7 seconds=3600 count=1\n");
    weir.stop();
    server.finish();
}

fn a_ban_ends_and_the_next_one_is_longer(io: Io) {
    let (server, listener) = (Server::start(Honest), address());
    let weir =
        Weir::start(io, 2, &behind(listener, "", &server, &STRICT.replace("1h\" via", "1s\" via")));
    // A connection ends in order after ten rejections, unless the ban is in force before that.
    let asks = || ask(&mut client(listener, "247.0.2.7"));
    eventually("he is banned", || {
        asks().is_none() || status(&weir)["bans"]["total"].as_u64() >= Some(1)
    });
    // At the end of the ban one more request is enough for the next one: the use of the limit is
    // not forgotten so soon.
    eventually("it is over, and he is banned again", || {
        asks();
        status(&weir)["bans"]["total"].as_u64() >= Some(2)
    });
    weir.says("ban-added: limit two network=247.0.2.7 seconds=2 count=2\n");
    weir.stop();
    server.finish();
}

fn a_limit_that_bans_does_so_at_once(io: Io) {
    let (server, listener) = (Server::start(Honest), address());
    let shield = "limit \"once\" count=\"requests\" rate=\"1/h\" over=\"ban\"; ban after=1000000 \
        for=\"1h\" via=\"user\"";
    let weir = Weir::start(io, 1, &behind(listener, "", &server, shield));
    let mut bad = client(listener, "4001:db8:1:2:3::4");
    assert_eq!([ask(&mut bad), ask(&mut bad)], [Some(200), None]);
    assert!(bad.end().reset);
    eventually("his network is banned", || networks(&weir) == ["4001:db8:1:2::/64"]);
    assert!(is_banned(listener, "4001:db8:1:2:ffff::1") && !is_banned(listener, "4001:db8:1:3::1"));
    weir.stop();
    server.finish();
}

fn who_is_allowed_is_never_banned(io: Io) {
    let (server, listener) = (Server::start(Honest), address());
    let limit =
        "limit \"none\" count=\"requests\" rate=\"1/h\" over=\"ban\"; ban for=\"1h\" via=\"user\"";
    let weir = Weir::start(io, 1, &behind(listener, "", &server, limit));
    offend(listener, "247.0.2.7");
    eventually("who is not allowed is banned", || networks(&weir) == ["247.0.2.7"]);
    weir.rewrite(&behind(listener, "", &server, &format!("allow \"247.0.2.0/24\"; {limit}")));
    weir.answer(&["reload"]);
    eventually("who is allowed since is not banned any more", || networks(&weir).is_empty());
    eventually("and served", || !is_banned(listener, "247.0.2.7"));
    // Loopback has the limit like other addresses, but is not banned: without the protocol that is
    // the client.
    weir.rewrite(&format!("shield {{ {limit}; }}\n{}", app(&server, 2, "")));
    weir.answer(&["reload"]);
    let mut own = Client::connect(weir.address);
    while ask(&mut own).is_some() {}
    assert!(own.end().reset, "that one connection");
    let why = weir.answer(&["ban", "why", "127.0.0.1"]);
    assert_eq!(why, "127.0.0.1 is never banned by limits: it is loopback\n");
    assert_eq!((networks(&weir), status(&weir)["bans"]["total"].as_u64()), (Vec::new(), Some(1)));
    weir.stop();
    server.finish();
}

/// In a separate network: without a `ban` that says otherwise weir lets the kernel drop what it
/// can.
fn operators_ban_and_see(io: Io) {
    in_own_network(&format!("bans::{}::operators_ban_and_see", io.word()), || ban_and_see(io));
}

fn ban_and_see(io: Io) {
    let (server, listener) = (Server::start(Honest), address());
    // Even without a `ban` in the configuration.
    let shield = "limit \"many\" count=\"requests\" rate=\"1000/s\"";
    let weir = Weir::start(io, 2, &behind(listener, "", &server, shield));
    assert_eq!(weir.answer(&["ban", "list"]), "no client is banned\n");
    let mut open = client(listener, "247.0.2.7");
    assert_eq!(ask(&mut open), Some(200));
    assert_eq!(
        weir.answer(&["ban", "add", "247.0.2.0/24", "--for", "1h", "--reason", "scraping & more"]),
        ""
    );
    assert!(open.end().reset);
    eventually("he is banned", || is_banned(listener, "247.0.2.9"));
    assert_eq!(weir.answer(&["ban", "add", "4001:db8::1", "--for", "1h"]), "");
    eventually("his network is banned", || is_banned(listener, "4001:db8::2"));
    assert_eq!(weir.answer(&["ban", "add", "4001:db8::1", "--for", "1s"]), "");
    assert!(!is_banned(listener, "247.0.3.1"));
    let shown = weir.answer(&["ban", "list"]);
    assert!(shown.contains("247.0.2.0/24") && shown.contains("scraping & more"), "{shown}");
    assert_eq!(weir.answer(&["ban", "list", "247.0.3.1"]), "no client is banned\n");
    assert!(weir.answer(&["ban", "list", "247.0.2.200"]).contains("247.0.2.0/24"));
    let why = weir.answer(&["ban", "why", "247.0.2.7"]);
    assert!(
        why.starts_with("247.0.2.0/24 is banned for ")
            && why.contains(": scraping & more (ban 1 of it)\n"),
        "{why}"
    );
    eventually("the short one is over", || !is_banned(listener, "4001:db8::2"));
    assert_eq!(
        (networks(&weir), &status(&weir)["bans"]["in_force"]),
        (vec!["247.0.2.0/24".to_owned()], &1.into())
    );
    // An address in it has no separate ban.
    assert!(
        refused(&weir, &["ban", "remove", "247.0.2.7"], 1).contains("no bans within 247.0.2.7")
    );
    assert_eq!(weir.answer(&["ban", "remove", "247.0.2.0/24"]), "");
    eventually("he is let in again", || !is_banned(listener, "247.0.2.7"));
    let why = weir.answer(&["ban", "why", "247.0.2.7"]);
    assert_eq!(why, "247.0.2.7 is not banned, and no past ban of it counts\n");
    weir.answer(&["ban", "add", "247.0.2.1", "--for", "1h"]);
    weir.answer(&["ban", "add", "247.0.2.2", "--for", "1h"]);
    assert_eq!(networks(&weir), ["247.0.2.1", "247.0.2.2"]);
    assert_eq!(weir.answer(&["ban", "remove", "--all"]), "");
    assert_eq!(networks(&weir), [""; 0]);
    weir.stop();
    server.finish();
}

/// The `/` of a range is `%2F` in a path.
fn programs_ban_and_see(io: Io) {
    let (server, listener) = (Server::start(Honest), address());
    let shield = "limit \"a\" count=\"open\" max=9; ban via=\"user\"";
    let weir = Weir::start(io, 1, &behind(listener, "", &server, shield));
    let range = "/v1/bans/247.0.2.0%2F24";
    let (line, told) = exchange(&weir, "POST", &format!("{range}/add?for=600&reason=scanner"));
    assert!(line.contains(" 200 "), "{line}: {told}");
    assert_eq!(told["bans"][0]["left_seconds"], 600, "{told}");
    for path in [range, "/v1/bans/247.0.2.7", "/v1/bans/247.0.2.128%2F25", "/v1/bans/247.0.0.0%2f8"]
    {
        let (line, told) = exchange(&weir, "GET", path);
        assert!(line.contains(" 200 "), "{path}: {line}: {told}");
        assert_eq!(told["bans"][0]["network"], "247.0.2.0/24", "{path}");
    }
    let (_, told) = exchange(&weir, "GET", "/v1/bans/247.0.3.0%2F24");
    assert_eq!(told["bans"].as_array().map(Vec::len), Some(0), "{told}");
    let (line, told) = exchange(&weir, "POST", &format!("{range}/remove"));
    assert!(line.contains(" 200 ") && told["bans"][0]["network"] == "247.0.2.0/24", "{line}");
    for (whom, says) in [
        ("host", "`host` is neither an address nor a range such as "),
        ("host%2F24", "`host/24` is neither an address nor a range such as "),
        ("247.0.2.0%2F33", "`247.0.2.0/33` is not a range: the number behind `/` is 1 to 32"),
        ("247.0.2.0%2F", "`247.0.2.0/` is not a range: the number behind `/` is 1 to 32"),
        ("4001::%2F0", "`4001::/0` is not a range: the number behind `/` is 1 to 128"),
    ] {
        for (method, order) in [("GET", ""), ("POST", "/add?for=60"), ("POST", "/remove")] {
            let (line, told) = exchange(&weir, method, &format!("/v1/bans/{whom}{order}"));
            let message = told["message"].as_str().unwrap_or_default();
            assert!(line.contains(" 400 ") && told["error"] == "bad-address", "{line}: {told}");
            assert!(message.starts_with(says), "{message}");
        }
    }
    weir.stop();
    server.finish();
}

fn what_operators_may_not_says_why(io: Io) {
    let (server, listener) = (Server::start(Honest), address());
    let weir = Weir::start(
        io,
        1,
        &behind(
            listener,
            "",
            &server,
            "allow \"10.0.0.0/8\"; limit \"a\" count=\"open\" max=9; ban via=\"user\"",
        ),
    );
    for (whom, why) in [
        ("127.0.0.1", "loopback"),
        ("10.1.2.3", "in `allow` of `shield`"),
        ("8.0.0.0/6", "in `allow`"),
    ] {
        let said = refused(&weir, &["ban", "add", whom, "--for", "1h"], 1);
        assert!(said.contains(why) && said.contains("--force"), "{whom}: {said}");
    }
    // A program gets its own option.
    let (line, told) = exchange(&weir, "POST", "/v1/bans/10.1.2.3/add?for=60");
    let message = told["message"].as_str().unwrap_or_default();
    assert!(line.contains(" 409 ") && told["error"] == "never-banned", "{line}: {told}");
    assert!(message.contains("; force=on bans it anyway") && !message.contains("--"), "{message}");
    for wrong in [
        &["247.0.2.0/0", "--for", "1h"][..],
        &["host", "--for", "1h"],
        &["247.0.2.1", "--for", "1"],
        &["247.0.2.1"],
    ] {
        let arguments = [&["ban", "add"], wrong].concat();
        refused(&weir, &arguments, 2);
    }
    let ssh = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command
            .args(arguments)
            .env("WEIR_ADMIN", weir.admin())
            .env("SSH_CONNECTION", "247.0.2.7 50000 247.0.2.1 22");
        command.stdin(Stdio::null()).output().expect("weir starts")
    };
    let output = ssh(&["ban", "add", "247.0.2.0/24", "--for", "1h"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr)
            .contains("that is the other end of this ssh session; --force")
    );
    assert_eq!(networks(&weir), [""; 0]);
    assert!(ssh(&["ban", "add", "247.0.2.0/24", "--for", "1h", "--force"]).status.success());
    weir.answer(&["ban", "add", "10.1.2.3", "--for", "1h", "--force"]);
    assert_eq!(networks(&weir), ["10.1.2.3", "247.0.2.0/24"]);
    assert!(weir.answer(&["ban", "list"]).contains("by command, forced"));
    weir.stop();
    server.finish();
}

fn whom_a_proxy_speaks_for_gets_403(io: Io) {
    let (server, listener, scratch) = (Server::start(Honest), address(), Scratch::new());
    let log = scratch.path("access.log");
    let rest = format!(
        "access-log \"{}\" format=\"$status $ended_by $phase $reason\"\n{}",
        log.display(),
        behind(
            listener,
            "",
            &server,
            "limit \"once\" count=\"requests\" rate=\"1/h\" over=\"ban\"; ban for=\"1h\" \
                via=\"user\""
        )
    );
    let weir = Weir::start(io, 1, &rest);
    let mut proxy = Client::connect(weir.address);
    let mut ask = |who: &str| {
        proxy.request(
            "GET",
            &format!("/?n={}", nonce()),
            &format!("X-Forwarded-For: {who}\r\n"),
            b"",
        );
        proxy.reply().status
    };
    assert_eq!((ask("247.0.2.7"), ask("247.0.2.7")), (200, 429));
    eventually("the client is banned, as the proxy says who that is", || ask("247.0.2.7") == 403);
    assert_eq!((ask("247.0.2.8"), networks(&weir)), (200, vec!["247.0.2.7".to_owned()]));
    assert!(is_banned(listener, "247.0.2.7"), "and by himself he is reset");
    weir.stop();
    let lines = std::fs::read_to_string(&log).expect("a log");
    assert!(lines.lines().any(|line| line == "403 weir head banned"), "{lines}");
    server.finish();
}

fn nobody_shakes_hands_with_the_banned(io: Io) {
    let (server, listener, scratch) = (Server::start(Honest), address(), Scratch::new());
    let files = certificate(&scratch, "ec", &["a"], 30);
    let options = format!("tls {{ {} }}", files.row().trim_end());
    let weir = Weir::start(
        io,
        1,
        &behind(listener, &options, &server, "limit \"a\" count=\"open\" max=9; ban via=\"user\""),
    );
    let mut open = Client::connect(bridge_behind(listener, header("247.0.2.7")));
    assert_eq!(ask(&mut open), Some(200));
    weir.answer(&["ban", "add", "247.0.2.7", "--for", "1h"]);
    // Through the bridge a reset looks like an end, and without the bridge there is no connection.
    open.end();
    assert_eq!(status(&weir)["totals"]["client_closes"]["banned"], 1);
    assert_eq!(ask(&mut Client::connect(bridge_behind(listener, header("247.0.2.8")))), Some(200));
    let totals = |weir: &Weir| status(weir)["totals"].clone();
    let before = totals(&weir)["tls_handshakes"].clone();
    let mut banned = Client::connect_from(BALANCER, listener);
    banned.try_send(&header("247.0.2.7"));
    assert!(banned.end().reset);
    let after = totals(&weir);
    assert_eq!((&after["tls_handshakes"], &after["connections_banned"]), (&before, &1.into()));
    weir.stop();
    server.finish();
}

fn kept(path: &Path) -> String {
    format!(
        "limit \"once\" count=\"requests\" rate=\"1/h\" over=\"ban\"; ban for=\"1h\" via=\"user\" \
            state=\"{}\"",
        path.display()
    )
}

fn a_restart_keeps_them(io: Io) {
    let (server, listener, scratch) = (Server::start(Honest), address(), Scratch::new());
    let path = scratch.path("bans");
    let rest = behind(listener, "", &server, &kept(&path));
    let weir = Weir::start(io, 1, &rest);
    offend(listener, "247.0.2.7");
    weir.answer(&["ban", "add", "4001:db8::/48", "--for", "1h", "--reason", "by hand"]);
    eventually("both are banned", || networks(&weir).len() == 2);
    let before = list(&weir);
    weir.stop();
    let mut text = std::fs::read_to_string(&path).expect("it is written at the end");
    text.push_str("{\"network\": \"247.0.2.9\", \"since\n");
    std::fs::write(&path, text).expect("it can be written");
    let weir = Weir::start(io, 1, &rest);
    assert!(
        is_banned(listener, "247.0.2.7") && is_banned(listener, "4001:db8::77"),
        "from the first connection on"
    );
    assert!(!is_banned(listener, "247.0.2.9"));
    let without_time = |mut list: Vec<Value>| {
        list.iter_mut().for_each(|ban| ban["left_seconds"] = Value::Null);
        list
    };
    assert_eq!(without_time(list(&weir)), without_time(before));
    weir.says("1 bans are unreadable and skipped, the first in line 3");
    // Ended bans remain ended.
    weir.answer(&["ban", "remove", "--all"]);
    weir.stop();
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "");
    server.finish();
}

fn reloads_and_upgrades_keep_them(io: Io) {
    let (server, listener, scratch) = (Server::start(Honest), address(), Scratch::new());
    let path = scratch.path("bans");
    let weir = Weir::start(io, 1, &behind(listener, "", &server, &kept(&path)));
    offend(listener, "247.0.2.7");
    eventually("he is banned", || networks(&weir) == ["247.0.2.7"]);
    weir.rewrite(&behind(listener, "", &server, &kept(&path).replace("1/h", "2/h")));
    weir.answer(&["reload"]);
    assert!(is_banned(listener, "247.0.2.7") && networks(&weir) == ["247.0.2.7"]);
    weir.upgrade();
    assert!(
        is_banned(listener, "247.0.2.7") && networks(&weir) == ["247.0.2.7"],
        "{}",
        weir.said()
    );
    weir.answer(&["ban", "remove", "247.0.2.7"]);
    eventually("the new one decides", || !is_banned(listener, "247.0.2.7"));
    weir.stop();
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "");
    server.finish();
}
