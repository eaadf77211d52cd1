//! Proves: servers that operators add while weir runs take requests at once, and are probed as
//! others. They can be removed without losing a request, and survive reloads and upgrades as long
//! as their upstream does. Servers of the configuration cannot be removed like this, and the error
//! says how. How: the real binary with traffic through it, and `weir server add` and `remove`.
//! docs/temporary-servers.md.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::kit::unix::UnixFront;
use crate::kit::{
    Behaviour, Client, Gone, Honest, Io, Link, SWITCH, Scratch, Server, Stopping, Weir, app,
    eventually, free_port, keep_asking, nonce, on_both_drivers, request, status,
};
use serde_json::Value;
use weir_check::Request;

on_both_drivers!(
    servers_come_and_go_under_load,
    they_are_probed,
    what_is_under_way_is_finished,
    they_stay_over_reloads,
    they_stay_over_upgrades,
    what_is_refused_says_why,
    programs_can_do_it,
    one_that_was_drained_serves_again,
    what_a_file_lists_is_not_temporary,
);

/// Returns what `weir` prints on standard error when it fails with this code.
fn refused(weir: &Weir, arguments: &[&str], code: i32) -> String {
    let output = weir.ask(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

/// Returns the servers of the first upstream, and whether each is temporary.
fn servers(weir: &Weir) -> Vec<(String, bool)> {
    let told = status(weir);
    let servers = told["upstreams"][0]["servers"].as_array().cloned().unwrap_or_default();
    let of = |server: &Value| {
        (server["name"].as_str().unwrap_or_default().to_owned(), server["temporary"] == true)
    };
    servers.iter().map(of).collect()
}

fn requests(server: &Server) -> usize {
    server.log().requests.len()
}

fn servers_come_and_go_under_load(io: Io) {
    let (all, scratch) = ([(); 3].map(|()| Server::start(Honest)), Scratch::new());
    let front = UnixFront::start(&scratch.path("app.sock"), all[2].address);
    let weir = Weir::start(io, 2, &app(&all[0], 2, ""));
    weir.answer(&["status", "--wait"]);
    let [first, second] = [0, 1].map(|at: usize| all[at].address.to_string());
    let (over, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let stopping = Stopping(&over);
        for _ in 0..4 {
            scope.spawn(|| keep_asking(weir.address, &over, &done));
        }
        for (name, server) in [(&second, &all[1]), (&front.name, &all[2])].repeat(10) {
            let before = requests(server);
            assert_eq!(weir.answer(&["server", "add", "app", name, "--weight", "80"]), "");
            assert_eq!(servers(&weir), [(first.clone(), false), (name.clone(), true)]);
            eventually("it gets requests", || requests(server) >= before + 20);
            assert_eq!(weir.answer(&["server", "remove", "app", name, "--wait"]), "");
            let (so_far, there) = (done.load(Ordering::Relaxed), requests(server));
            eventually("requests go on", || done.load(Ordering::Relaxed) >= so_far + 20);
            assert_eq!(requests(server), there, "nothing is sent there when it is gone");
        }
        drop(stopping);
    });
    let told = status(&weir);
    let answers = &told["clients"]["answers"];
    assert_eq!(
        (&answers["2xx"], &answers["5xx"]),
        (&done.load(Ordering::Relaxed).into(), &0.into())
    );
    assert_eq!(servers(&weir), [(first, false)]);
    weir.says(&format!("upstream \"app\": + server \"{second}\""));
    weir.says(&format!("upstream \"app\": - server \"{}\"", front.name));
    weir.stop();
    all.into_iter().for_each(|server| drop(server.finish()));
}

/// Responds to probes as set, and to everything else honestly.
struct Probed(AtomicBool);

impl Behaviour for std::sync::Arc<Probed> {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        if request.target == "/up" && !self.0.load(Ordering::Relaxed) {
            link.tell("probed");
            return link.answer(b"HTTP/1.1 503 Not yet\r\nContent-Length: 0\r\n\r\n");
        }
        link.honest(request)
    }
}

/// A server with failed probes gets nothing until they succeed.
fn they_are_probed(io: Io) {
    let probed = std::sync::Arc::new(Probed(AtomicBool::new(false)));
    let (stays, comes) = (Server::start(Honest), Server::start(std::sync::Arc::clone(&probed)));
    let weir =
        Weir::start(io, 1, &app(&stays, 1, "health path=\"/up\" interval=\"100ms\" fall=1 rise=1"));
    let name = comes.address.to_string();
    weir.answer(&["server", "add", "app", &name]);
    let state = || status(&weir)["upstreams"][0]["servers"][1]["state"].clone();
    eventually("a probe is bad", || state() == "suspended");
    let asked =
        |log: &crate::kit::Log| log.requests.iter().filter(|(_, it)| it.target != "/up").count();
    let before = asked(&comes.log());
    let mut client = Client::connect(weir.address);
    (0..10).for_each(|_| request(&mut client));
    assert_eq!(asked(&comes.log()), before);
    probed.0.store(true, Ordering::Relaxed);
    eventually("a probe is good", || state() == "up");
    eventually("it serves", || {
        request(&mut client);
        asked(&comes.log()) > before
    });
    weir.stop();
    [stays, comes].into_iter().for_each(|server| drop(server.finish()));
}

/// Responds on a signal, and echoes behind an Upgrade.
struct Held;

impl Behaviour for Held {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        if request.fields.has("upgrade") {
            link.upgrade(SWITCH)?;
            link.echo()?;
            return Err(Gone);
        }
        link.await_event("go")?;
        link.honest(request)
    }
}

fn what_is_under_way_is_finished(io: Io) {
    let (other, old) = (Server::start(Honest), Server::start(Held));
    let weir = Weir::start(io, 2, &app(&other, 2, ""));
    let name = old.address.to_string();
    weir.answer(&["server", "drain", "app", &other.address.to_string()]);
    weir.answer(&["server", "add", "app", &name]);
    let (mut waits, first) = (Client::connect(weir.address), nonce());
    waits.get(&format!("/victim?n={first}"));
    let mut tunnel = TcpStream::connect(weir.address).expect("weir accepts");
    tunnel
        .write_all(b"GET /t HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")
        .expect("weir reads");
    let mut echoes = |text: &[u8]| {
        tunnel.write_all(text).expect("weir reads");
        let mut seen = Vec::new();
        while !seen.ends_with(text) {
            let mut byte = [0];
            tunnel.read_exact(&mut byte).expect("it goes on");
            seen.extend(byte);
        }
    };
    echoes(b"hello");
    old.wait("both are there", |log| log.requests.len() == 2);
    weir.answer(&["server", "enable", "app", &other.address.to_string()]);
    weir.answer(&["server", "remove", "app", &name]);
    // New requests go to the remaining server, and weir reports the rest at the removed one.
    let mut client = Client::connect(weir.address);
    (0..10).for_each(|_| request(&mut client));
    assert_eq!(requests(&old), 2);
    assert_eq!(status(&weir)["reload"]["leaving"], 2);
    old.tell("go");
    assert_eq!(waits.reply().status, 200);
    echoes(b"still there");
    // It returns while a tunnel exists, and is removed again; weir waits for the tunnel, but not
    // for ever.
    weir.answer(&["server", "add", "app", &name]);
    let said = refused(&weir, &["server", "remove", "app", &name, "--wait=0"], 1);
    assert_eq!(
        said,
        format!("weir: {name} is removed, but not empty after 0 s: 1 request or tunnel\n")
    );
    echoes(b"and still");
    drop(tunnel);
    eventually("nothing is left", || status(&weir)["reload"]["leaving"] == 0);
    weir.stop();
    [other, old].into_iter().for_each(|server| drop(server.finish()));
}

fn they_stay_over_reloads(io: Io) {
    let all = [(); 2].map(|()| Server::start(Honest));
    let [stays, comes] = [0, 1].map(|at: usize| all[at].address.to_string());
    let weir = Weir::start(io, 2, &app(&all[0], 2, ""));
    let options = ["--connections-min", "2", "--connections", "2", "--connections-max", "2"];
    weir.answer(&[&["server", "add", "app", &comes, "--weight", "7"], &options[..]].concat());
    weir.answer(&["server", "weight", "app", &comes, "9"]);
    all[1].wait("its connections", |log| log.accepted == 2);
    weir.rewrite(&app(&all[0], 2, "forward-timeout \"7s\""));
    assert!(!weir.answer(&["reload", "--dry-run"]).contains(&comes));
    weir.answer(&["reload"]);
    assert_eq!(servers(&weir), [(stays.clone(), false), (comes.clone(), true)]);
    let weights = || {
        let server = &status(&weir)["upstreams"][0]["servers"][1];
        [server["weight"].clone(), server["weight_configured"].clone()]
    };
    assert_eq!(weights(), [Value::from(9), Value::from(7)]);
    // A server with the same options in the configuration is the same server, no longer temporary.
    let line =
        format!("server \"{comes}\" weight=7 connections-min=2 connections=2 connections-max=2");
    weir.rewrite(&app(&all[0], 2, &line));
    let now = format!("upstream \"app\": temporary server \"{comes}\" is in the configuration now");
    assert!(weir.answer(&["reload", "--dry-run"]).lines().any(|line| line == now), "{now}");
    weir.answer(&["reload"]);
    assert_eq!(servers(&weir), [(stays.clone(), false), (comes.clone(), false)]);
    assert_eq!(weights(), [Value::from(9), Value::from(7)]);
    assert!(!weir.said().contains("- server"), "{}", weir.said());
    let mut client = Client::connect(weir.address);
    (0..20).for_each(|_| request(&mut client));
    assert_eq!(all[1].log().accepted, 2, "no connection to it was made anew");
    let said = refused(&weir, &["server", "remove", "app", &comes], 1);
    assert!(said.contains("it is in the configuration"), "{said}");
    weir.rewrite(&app(&all[0], 2, ""));
    weir.answer(&["reload"]);
    assert_eq!(servers(&weir), [(stays.clone(), false)]);
    // Its upstream is removed, and the server with it.
    weir.answer(&["server", "add", "app", &comes]);
    weir.rewrite(&app(&all[0], 2, "").replace("\"app\"", "\"new\""));
    let goes = format!("upstream \"app\": temporary server \"{comes}\" is removed with it");
    assert!(weir.answer(&["reload", "--dry-run"]).lines().any(|line| line == goes), "{goes}");
    weir.answer(&["reload"]);
    weir.says(&goes);
    assert_eq!(servers(&weir), [(stays.clone(), false)]);
    weir.rewrite(&app(&all[0], 2, ""));
    weir.answer(&["reload"]);
    assert_eq!(servers(&weir), [(stays, false)]);
    request(&mut client);
    weir.stop();
    all.into_iter().for_each(|server| drop(server.finish()));
}

fn they_stay_over_upgrades(io: Io) {
    let all = [(); 2].map(|()| Server::start(Honest));
    let [stays, comes] = [0, 1].map(|at: usize| all[at].address.to_string());
    let other = |pool: &str| {
        format!("{}route path=\"/own\" {pool} {{ proxy \"app\" }}\n", app(&all[0], 2, ""))
    };
    let weir = Weir::start(io, 2, &other("pool=\"pinned\""));
    weir.answer(&[
        "server",
        "add",
        "app",
        &comes,
        "--weight",
        "7",
        "--connections",
        "5",
        "--backup",
    ]);
    weir.answer(&["server", "weight", "app", &comes, "9"]);
    weir.answer(&["server", "disable", "app", &comes]);
    let stands = || {
        let server = &status(&weir)["upstreams"][0]["servers"][1];
        let connections = &server["connections"]["configured"];
        [
            &server["name"],
            &server["weight"],
            &server["weight_configured"],
            &server["state"],
            connections,
        ]
        .map(Value::clone)
    };
    let expected: [Value; 5] =
        [comes.clone().into(), 9.into(), 7.into(), "disabled".into(), 5.into()];
    assert_eq!(stands(), expected);
    for pool in ["pool=\"pinned\"", ""] {
        weir.rewrite(&other(pool));
        weir.upgrade();
        assert_eq!(stands(), expected);
        assert_eq!(servers(&weir), [(stays.clone(), false), (comes.clone(), true)]);
    }
    weir.answer(&["server", "enable", "app", &comes]);
    weir.answer(&["server", "disable", "app", &stays]);
    request(&mut Client::connect(weir.address));
    assert_eq!(requests(&all[1]), 1);
    assert!(!weir.said().contains("weir does not add server"), "{}", weir.said());
    weir.rewrite(&app(&all[0], 2, "").replace("\"app\"", "\"new\""));
    weir.upgrade();
    assert_eq!(servers(&weir), [(stays, false)]);
    let line = format!("weir does not add server {comes} again: upstream `app` no longer exists");
    weir.says(&line);
    weir.stop();
    all.into_iter().for_each(|server| drop(server.finish()));
}

fn what_is_refused_says_why(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    let name = server.address.to_string();
    for (arguments, code, says) in [
        (&["add", "app", &name][..], 1, "upstream `app` has server `"),
        (&["add", "ap", "127.0.0.1:9"], 1, "weir: no upstream `ap`; did you mean `app`?\n"),
        (
            &["add", "app", "localhost:9"],
            2,
            "`localhost:9` is a name, whose servers change over time",
        ),
        (&["add", "app", "127.0.0.1"], 2, "the port is missing"),
        (&["add", "app", "127.0.0.1:9", "--weight", "101"], 2, "1..=100"),
        (
            &["add", "app", "127.0.0.1:9", "--connections-min", "40"],
            1,
            "`connections-min` is 40, but `connections` allows at most 32",
        ),
        (
            &["remove", "app", &name],
            1,
            "cannot be removed, because `weir server add` did not add it",
        ),
        (&["remove", "app", "127.0.0.1:9"], 1, "weir: no server `127.0.0.1:9`; "),
        (&["remove", "ap", &name], 1, "weir: no upstream `ap`; did you mean `app`?\n"),
        (&["weight", "ap", &name, "7"], 1, "weir: no upstream `ap`; did you mean `app`?\n"),
    ] {
        let said = refused(&weir, &[&["server"], arguments].concat(), code);
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
    assert_eq!(servers(&weir), [(name, false)]);
    request(&mut Client::connect(weir.address));
    weir.stop();
    server.finish();
}

/// Returns what a program gets that uses HTTP over the socket.
pub(crate) fn exchange(weir: &Weir, method: &str, path: &str) -> (String, Value) {
    let mut socket = UnixStream::connect(weir.admin()).expect("it accepts");
    socket
        .write_all(format!("{method} {path} HTTP/1.1\r\nHost: weir\r\n\r\n").as_bytes())
        .expect("it reads");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.lines().next().unwrap_or_default().to_owned(), serde_json::from_str(body).expect("JSON"))
}

fn programs_can_do_it(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    let port = free_port();
    let name = format!("127.0.0.1:{port}");
    let told = weir.answer(&["server", "add", "app", &name, "--weight", "3", "--json"]);
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(
        (&told["server"]["name"], &told["server"]["temporary"]),
        (&name.clone().into(), &true.into())
    );
    assert!(weir.answer(&["status"]).contains("temporary: not in the configuration"));
    assert!(
        weir.answer(&["status", "server", "app", &name])
            .contains(", temporary: not in the configuration")
    );
    let told = weir.answer(&["server", "remove", "app", &name, "--wait", "--json"]);
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!((&told["server"]["weight"], servers(&weir).len()), (&3.into(), 1));
    let path = format!("/v1/servers/app/{name}");
    let (line, told) = exchange(&weir, "POST", &format!("{path}/add?weight=4&backup=on"));
    assert!(line.contains(" 200 "), "{line}: {told}");
    let job = format!("/v1/jobs/{}", told["number"]);
    eventually("it is done", || exchange(&weir, "GET", &job).1["done"] == true);
    let added = &status(&weir)["upstreams"][0]["servers"][1];
    assert_eq!((&added["name"], &added["weight"]), (&name.clone().into(), &4.into()));
    for (query, says) in [
        ("weight=x", "`weight`: "),
        ("weight=%ff", "cannot parse the query"),
        ("backup", "`backup`: "),
    ] {
        let (line, told) =
            exchange(&weir, "POST", &format!("/v1/servers/app/127.0.0.1:8/add?{query}"));
        let message = told["message"].as_str().unwrap_or_default();
        assert!(
            line.contains(" 400 ") && told["error"] == "bad-server" && message.contains(says),
            "{line}: {told}"
        );
    }
    // Known at once, without a job.
    for order in ["add", "remove", "weight/7", "drain"] {
        let (line, told) = exchange(&weir, "POST", &format!("/v1/servers/ap/{name}/{order}"));
        assert!(line.contains(" 404 ") && told["error"] == "unknown-upstream", "{line}: {told}");
        assert_eq!(told["message"], "no upstream `ap`; did you mean `app`?", "{order}");
    }
    for (path, status, word) in [
        (format!("{path}/left"), " 409 ", "still-there"),
        (format!("/v1/servers/app/{}/left", server.address), " 409 ", "still-there"),
        (format!("/v1/servers/ap/{name}/left"), " 404 ", "unknown-upstream"),
    ] {
        let (line, told) = exchange(&weir, "GET", &path);
        assert!(line.contains(status) && told["error"] == word, "{line}: {told}");
    }
    assert!(exchange(&weir, "GET", &format!("{path}/add")).0.contains(" 405 "));
    assert!(exchange(&weir, "GET", &format!("{path}/remove")).0.contains(" 405 "));
    let (_, told) = exchange(&weir, "POST", &format!("{path}/remove"));
    let job = format!("/v1/jobs/{}", told["number"]);
    eventually("it is done", || exchange(&weir, "GET", &job).1["done"] == true);
    assert_eq!(exchange(&weir, "GET", &format!("{path}/left")).1["left"], 0);
    assert_eq!(servers(&weir).len(), 1);
    weir.stop();
    server.finish();
}

fn one_that_was_drained_serves_again(io: Io) {
    let all = [(); 2].map(|()| Server::start(Honest));
    let [stays, comes] = [0, 1].map(|at: usize| all[at].address.to_string());
    let weir = Weir::start(io, 2, &app(&all[0], 2, ""));
    for round in 1..=3 {
        weir.answer(&["server", "add", "app", &comes]);
        weir.answer(&["server", "disable", "app", &stays]);
        request(&mut Client::connect(weir.address));
        assert_eq!(requests(&all[1]), round);
        weir.answer(&["server", "enable", "app", &stays]);
        weir.answer(&["server", "drain", "app", &comes, "--wait"]);
        weir.answer(&["server", "remove", "app", &comes]);
    }
    weir.stop();
    all.into_iter().for_each(|server| drop(server.finish()));
}

fn what_a_file_lists_is_not_temporary(io: Io) {
    let (all, scratch) = ([(); 2].map(|()| Server::start(Honest)), Scratch::new());
    let [stays, comes] = [0, 1].map(|at: usize| all[at].address.to_string());
    let file = scratch.path("servers.json");
    let write = |names: &[&String]| {
        let servers: Vec<_> =
            names.iter().map(|name| serde_json::json!({ "address": name })).collect();
        let new = scratch.write("new.json", Value::from(servers).to_string().as_bytes());
        std::fs::rename(new, &file).expect("it can be moved");
    };
    write(&[&stays]);
    let from = format!(
        "upstream \"app\" {{ servers-from \"{}\" }}\nroute {{ proxy \"app\" }}\n",
        file.display()
    );
    let weir = Weir::start(io, 2, &from);
    eventually("it is read", || servers(&weir) == [(stays.clone(), false)]);
    weir.answer(&["server", "add", "app", &comes]);
    assert_eq!(servers(&weir), [(stays.clone(), false), (comes.clone(), true)]);
    write(&[&stays, &comes]);
    eventually("it is listed", || {
        servers(&weir) == [(stays.clone(), false), (comes.clone(), false)]
    });
    let line =
        format!("upstream \"app\": temporary server \"{comes}\" is in `{}` now", file.display());
    eventually("the log says so", || weir.said().contains(&line));
    // A server that would still serve there is not removed.
    let said = refused(&weir, &["server", "remove", "app", &comes, "--wait"], 1);
    assert!(said.contains(&format!("it is in `{}`", file.display())), "{said}");
    weir.answer(&["server", "drain", "app", &stays, "--wait"]);
    request(&mut Client::connect(weir.address));
    assert_eq!(requests(&all[1]), 1);
    weir.answer(&["server", "enable", "app", &stays]);
    write(&[&stays]);
    eventually("it goes", || servers(&weir) == [(stays.clone(), false)]);
    weir.stop();
    all.into_iter().for_each(|server| drop(server.finish()));
}
