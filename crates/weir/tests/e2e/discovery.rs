//! Proves: a name expands to all its addresses; weir starts before its names can be resolved. It
//! follows name servers while it runs, without touching what does not change; vanished addresses
//! remain for `hold`, and failures change nothing; `weir check` reports on names. How: the real
//! binary, a scripted name server, servers on several addresses of loopback. docs/discovery.md.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::kit::names::{Kind, NameServer, Reply};
use crate::kit::tls_servers::{Front, ca, serving, signed};
use crate::kit::{
    Client, Honest, Io, Scratch, Server, Stopping, Weir, eventually, free_port, keep_asking,
    on_both_drivers, request, status,
};
use serde_json::Value;
use weir_check::Rules;

on_both_drivers!(
    a_name_is_all_its_addresses,
    weir_starts_before_its_names,
    answers_are_followed_under_load,
    what_vanishes_is_held,
    name_servers_that_fail_change_nothing,
    a_reload_looks_names_up,
    check_tells_of_names,
    servers_come_from_files,
    a_service_says_ports_and_ranks,
    certificates_are_for_names,
);

/// Starts one server each on this many addresses of loopback, 127.0.0.1 and so on, all at the same
/// port.
fn servers(count: u8) -> Vec<Server> {
    let port = free_port();
    let at = |last| Server::start_at(([127, 0, 0, last], port).into(), Honest, Rules::default());
    (1..=count).map(at).collect()
}

fn finish(servers: Vec<Server>) {
    servers.into_iter().for_each(|server| drop(server.finish()));
}

/// Returns an upstream whose server is the name `app.test` at the port of this server.
fn named(dns: &NameServer, server: &Server, options: &str, more: &str) -> String {
    let (dns, port) = (dns.address, server.address.port());
    format!(
        "discovery {{ resolver \"{dns}\"; {options} }}\n\
            upstream \"app\" {{ server \"app.test:{port}\" connections-min=2 connections=2 \
            connections-max=2; {more} }}\nroute {{ proxy \"app\" }}\n"
    )
}

/// Returns the names of the present servers, sorted.
fn names(weir: &Weir) -> Vec<String> {
    let told = status(weir);
    let servers = told["upstreams"][0]["servers"].as_array().cloned().unwrap_or_default();
    let mut names: Vec<_> = servers
        .iter()
        .map(|server| server["name"].as_str().unwrap_or_default().to_owned())
        .collect();
    names.sort();
    names
}

fn weight(weir: &Weir, name: &str) -> u64 {
    let told = status(weir);
    let servers = told["upstreams"][0]["servers"].as_array().cloned().unwrap_or_default();
    let server = servers.iter().find(|server| server["name"] == name).expect("it is there");
    server["weight"].as_u64().expect("a number")
}

fn name(address: SocketAddr) -> String {
    format!("app.test@{address}")
}

fn a_name_is_all_its_addresses(io: Io) {
    let (dns, servers) = (NameServer::start(), servers(2));
    dns.script("app.test", Kind::A, [Reply::of("127.0.0.1 127.0.0.2", 60)]);
    let weir = Weir::start(io, 1, &named(&dns, &servers[0], "", ""));
    assert_eq!(names(&weir), [name(servers[0].address), name(servers[1].address)]);
    let mut client = Client::connect(weir.address);
    (0..20).for_each(|_| request(&mut client));
    servers.iter().for_each(|server| assert!(server.log().requests.len() >= 5));
    // Each is a server like any other.
    assert_eq!(weir.answer(&["server", "drain", "app", &name(servers[0].address)]), "");
    let before = servers[0].log().requests.len();
    (0..10).for_each(|_| request(&mut client));
    assert_eq!(servers[0].log().requests.len(), before);
    let told = status(&weir);
    assert_eq!(told["names"][0]["name"], format!("app.test:{}", servers[0].address.port()));
    assert_eq!(told["names"][0]["addresses"].as_array().map(Vec::len), Some(2));
    assert_eq!(told["names"][0]["problem"], Value::Null);
    weir.stop();
    finish(servers);
}

fn weir_starts_before_its_names(io: Io) {
    let (dns, servers) = (NameServer::start(), servers(1));
    let weir = Weir::start(io, 2, &named(&dns, &servers[0], "", "required #true"));
    let port = servers[0].address.port();
    let told = status(&weir);
    assert_eq!((&told["ready"], &told["unready"]), (&false.into(), &"no-server app".into()));
    assert_eq!(told["names"][0]["problem"], "there is no such name");
    let line = format!(
        "cannot resolve app.test:{port}: there is no such name; it has no server until the lookup \
            succeeds"
    );
    weir.says(&line);
    assert!(weir.answer(&["status"]).contains(": there is no such name; it has no server"));
    let mut client = Client::connect(weir.address);
    client.get("/early");
    assert_eq!(client.reply().status, 503);
    dns.script("app.test", Kind::A, [Reply::of("127.0.0.1", 60)]);
    eventually("the name is found", || status(&weir)["ready"] == true);
    request(&mut Client::connect(weir.address));
    for line in [
        format!("resolved app.test:{port} again"),
        format!("+ server \"{}\"", name(servers[0].address)),
    ] {
        eventually("it is told of", || weir.said().contains(&line));
    }
    weir.stop();
    finish(servers);
}

/// Servers come and go with results; the server in all of them keeps its connections, and no
/// request is lost.
fn answers_are_followed_under_load(io: Io) {
    let (dns, servers) = (NameServer::start(), servers(3));
    dns.script("app.test", Kind::A, [Reply::of("127.0.0.1", 0)]);
    let weir = Weir::start(io, 2, &named(&dns, &servers[0], "ttl-min \"100ms\"; hold \"0s\"", ""));
    let (over, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let stopping = Stopping(&over);
        for _ in 0..4 {
            scope.spawn(|| keep_asking(weir.address, &over, &done));
        }
        for addresses in [
            "127.0.0.1 127.0.0.2",
            "127.0.0.3 127.0.0.1",
            "127.0.0.1",
            "127.0.0.2 127.0.0.3 127.0.0.1",
        ] {
            dns.script("app.test", Kind::A, [Reply::of(addresses, 0)]);
            let mut wanted: Vec<String> = addresses
                .split(' ')
                .map(|ip| {
                    name(SocketAddr::new(
                        ip.parse().expect("an address"),
                        servers[0].address.port(),
                    ))
                })
                .collect();
            wanted.sort();
            eventually("the answer is in force", || names(&weir) == wanted);
            let so_far = done.load(Ordering::Relaxed);
            eventually("requests are answered", || done.load(Ordering::Relaxed) >= so_far + 50);
        }
        drop(stopping);
    });
    let told = status(&weir);
    assert_eq!(told["clients"]["answers"]["5xx"], 0);
    assert_eq!(told["clients"]["answers"]["2xx"], done.load(Ordering::Relaxed));
    assert_eq!(servers[0].log().accepted, 2, "no connection to the first was made anew");
    weir.stop();
    finish(servers);
}

fn what_vanishes_is_held(io: Io) {
    let (dns, servers) = (NameServer::start(), servers(2));
    dns.script("app.test", Kind::A, [Reply::of("127.0.0.1 127.0.0.2", 0)]);
    let weir = Weir::start(io, 1, &named(&dns, &servers[0], "ttl-min \"100ms\"; hold \"1h\"", ""));
    // On a busy machine weir begins without its servers.
    eventually("both are found", || names(&weir).len() == 2);
    dns.script("app.test", Kind::A, [Reply::of("127.0.0.2", 0)]);
    dns.wait_for("app.test", Kind::A, dns.asked("app.test", Kind::A) + 4);
    assert_eq!(names(&weir).len(), 2);
    weir.rewrite(&named(&dns, &servers[0], "ttl-min \"100ms\"; hold \"0s\"", ""));
    weir.answer(&["reload"]);
    eventually("what is not held goes", || names(&weir) == [name(servers[1].address)]);
    request(&mut Client::connect(weir.address));
    weir.stop();
    finish(servers);
}

fn name_servers_that_fail_change_nothing(io: Io) {
    let (dns, servers) = (NameServer::start(), servers(1));
    dns.script("app.test", Kind::A, [Reply::of("127.0.0.1", 0), Reply::Failure]);
    let weir = Weir::start(
        io,
        1,
        &named(&dns, &servers[0], "ttl-min \"100ms\"; hold \"0s\"; family \"ipv4\"", ""),
    );
    eventually("it has failed", || status(&weir)["names"][0]["problem"].is_string());
    dns.wait_for("app.test", Kind::A, dns.asked("app.test", Kind::A) + 2);
    request(&mut Client::connect(weir.address));
    assert_eq!(names(&weir), [name(servers[0].address)]);
    assert_eq!(weir.said().matches("cannot resolve ").count(), 1, "{}", weir.said());
    assert!(weir.answer(&["status"]).contains("known addresses remain in use"));
    assert_eq!(dns.asked("app.test", Kind::Aaaa), 0);
    weir.stop();
    finish(servers);
}

fn a_reload_looks_names_up(io: Io) {
    let (dns, servers) = (NameServer::start(), servers(2));
    dns.script("app.test", Kind::A, [Reply::of("127.0.0.1", 3600), Reply::of("127.0.0.2", 3600)]);
    let weir = Weir::start(io, 1, &named(&dns, &servers[0], "hold \"0s\"", ""));
    request(&mut Client::connect(weir.address));
    assert_eq!(weir.answer(&["reload", "--dry-run"]), "");
    assert_eq!(names(&weir), [name(servers[0].address)], "that asks nobody");
    weir.answer(&["reload"]);
    assert_eq!(names(&weir), [name(servers[1].address)]);
    weir.says(&format!("upstream \"app\": - server \"{}\"", name(servers[0].address)));
    weir.says("reloaded: the new configuration is in force changes=2");
    request(&mut Client::connect(weir.address));
    // A new name, and an unknown one.
    dns.script("other.test", Kind::A, [Reply::of("127.0.0.1", 3600)]);
    let port = servers[0].address.port();
    let more = format!("server \"other.test:{port}\"; server \"never.test:{port}\"");
    weir.rewrite(&named(&dns, &servers[0], "hold \"0s\"", &more));
    weir.answer(&["reload"]);
    assert_eq!(names(&weir).len(), 2);
    assert_eq!(status(&weir)["names"].as_array().map(Vec::len), Some(3));
    // weir no longer resolves removed names.
    let address = servers[1].address;
    weir.rewrite(&format!(
        "upstream \"app\" {{ server \"{address}\"; }}\nroute {{ proxy \"app\" }}\n"
    ));
    weir.answer(&["reload"]);
    assert_eq!(names(&weir), [address.to_string()]);
    eventually("they are forgotten", || status(&weir)["names"] == Value::Array(Vec::new()));
    request(&mut Client::connect(weir.address));
    weir.stop();
    finish(servers);
}

fn check_tells_of_names(_: Io) {
    let (dns, scratch) = (NameServer::start(), Scratch::new());
    dns.script("app.test", Kind::A, [Reply::of("127.0.0.1", 60)]);
    let text = format!(
        "listen \"127.0.0.1:1\"\ndiscovery {{ resolver \"{}\" }}\n\
            upstream \"app\" {{ server \"app.test:80\"; server \"never.test:80\"; }}\n\
            route {{ proxy \"app\" }}\n",
        dns.address
    );
    let file = scratch.write("weir.kdl", text.as_bytes());
    let check = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_weir"));
        let output = command.arg("check").args(more).arg(&file).output().expect("weir starts");
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = check(&[]);
    assert!(said.contains("cannot resolve `never.test:80`: there is no such name"), "{said}");
    assert!(!said.contains("`app.test:80`"), "{said}");
    let asked = dns.asked("never.test", Kind::A);
    assert_eq!(check(&["--no-resolve"]), "");
    assert_eq!(dns.asked("never.test", Kind::A), asked);
}

fn servers_come_from_files(io: Io) {
    let (dns, servers, scratch) = (NameServer::start(), servers(3), Scratch::new());
    let [a, b, c] = [0, 1, 2].map(|at: usize| servers[at].address);
    let file = scratch.path("servers.json");
    let weir = Weir::start(
        io,
        1,
        &format!(
            "discovery {{ resolver \"{}\" }}\n\
                upstream \"app\" {{ servers-from \"{}\"; required #true; }}\n\
                route {{ proxy \"app\" }}\n",
            dns.address,
            file.display()
        ),
    );
    let said =
        || status(&weir)["server_files"][0]["problem"].as_str().unwrap_or_default().to_owned();
    assert_eq!((&status(&weir)["ready"], said().contains("cannot read")), (&false.into(), true));
    eventually("the log says so", || weir.said().contains("cannot read"));
    // As the author of such files should.
    let write = |text: &str| {
        let new = scratch.write("new.json", text.as_bytes());
        std::fs::rename(new, &file).expect("it can be moved");
    };
    write(&format!("[{{\"address\": \"{a}\"}}]"));
    eventually("it is found by itself", || status(&weir)["ready"] == true);
    let mut client = Client::connect(weir.address);
    request(&mut client);
    let line = format!("upstream \"app\": + server \"{a}\"");
    eventually("the log names the server", || weir.said().contains(&line));
    write(&format!(
        "[{{\"address\": \"{a}\", \"weight\": 5}}, {{\"address\": \"{b}\", \"backup\": true}}]"
    ));
    weir.answer(&["reload"]);
    assert_eq!(names(&weir), [a.to_string(), b.to_string()]);
    assert_eq!(weight(&weir, &a.to_string()), 5);
    (0..10).for_each(|_| request(&mut client));
    assert_eq!(servers[1].log().requests.len(), 0, "a backup");
    for wrong in ["[]", "[{\"address\": ", "{}", "[{\"address\": \"127.0.0.1:80\", \"wait\": 3}]"] {
        write(wrong);
        weir.answer(&["reload"]);
        assert_eq!(names(&weir), [a.to_string(), b.to_string()]);
        assert!(said().contains("servers.json"), "{wrong}: {}", said());
    }
    eventually("the log says so, too", || weir.said().contains("the list has no `server`"));
    assert_eq!(
        weir.said().matches("the servers read before remain").count(),
        2,
        "once, and that there was none"
    );
    assert!(weir.answer(&["status"]).contains("`wait` is not known in `server`"));
    // A name in it is resolved like others.
    dns.script("app.test", Kind::A, [Reply::of("127.0.0.3", 3600)]);
    write(&format!("[{{\"address\": \"app.test:{}\"}}]", c.port()));
    eventually("the name is found", || names(&weir) == [name(c)]);
    request(&mut client);
    assert_eq!((servers[2].log().requests.len(), said()), (1, String::new()));
    weir.stop();
    finish(servers);
}

fn a_service_says_ports_and_ranks(io: Io) {
    let (dns, servers) = (NameServer::start(), servers(3));
    let port = servers[0].address.port();
    for (host, address) in
        [("one.test", "127.0.0.1"), ("two.test", "127.0.0.2"), ("spare.test", "127.0.0.3")]
    {
        dns.script(host, Kind::A, [Reply::of(address, 60)]);
    }
    let service = "_http._tcp.app.test";
    let list =
        vec![(1, 30, port, "one.test"), (1, 10, port, "two.test"), (9, 1, port, "spare.test")];
    dns.script(service, Kind::Srv, [Reply::Services(list, 0), Reply::Failure]);
    let more = format!(
        "discovery {{ resolver \"{}\"; hold \"0s\" }}\n\
            upstream \"app\" {{ server \"{service}\" weight=60; }}\nroute {{ proxy \"app\" }}\n",
        dns.address
    );
    let weir = Weir::start(io, 1, &more);
    let all: Vec<String> =
        servers.iter().map(|server| format!("{service}@{}", server.address)).collect();
    assert_eq!(names(&weir), all);
    assert_eq!([0, 1, 2].map(|at: usize| weight(&weir, &all[at])), [60, 20, 60]);
    let mut client = Client::connect(weir.address);
    (0..40).for_each(|_| request(&mut client));
    assert_eq!([0, 1, 2].map(|at: usize| servers[at].log().requests.len()), [30, 10, 0]);
    eventually("it fails", || status(&weir)["names"][0]["problem"].is_string());
    assert_eq!(names(&weir), all);
    // Another weight, and no server is a backup any more.
    dns.script(service, Kind::Srv, [Reply::Services(vec![(1, 5, port, "two.test")], 60)]);
    weir.answer(&["reload"]);
    assert_eq!(names(&weir), [all[1].as_str()]);
    assert_eq!(weight(&weir, &all[1]), 60);
    weir.says(&format!("upstream \"app\": ~ server \"{}\"", all[1]));
    request(&mut client);
    weir.stop();
    finish(servers);
}

/// Whatever address a name has, its servers are verified by that name; those of a service by the
/// host in it.
fn certificates_are_for_names(io: Io) {
    let (dns, servers, scratch) = (NameServer::start(), servers(1), Scratch::new());
    let ca = ca(&scratch, "weir test");
    let files = signed(&scratch, &ca, "server", "DNS:app.test", 30);
    let front = Front::start(servers[0].address, serving(&files, None));
    let port = front.address.port();
    let trust = ca.certificate.display();
    let of = |server: &str| {
        format!(
            "discovery {{ resolver \"{}\" }}\n\
                upstream \"app\" {{ tls ca=\"{trust}\"; server \"{server}\"; }}\n\
                route {{ proxy \"app\" }}\n",
            dns.address
        )
    };
    let weir = Weir::start(io, 1, &of(&format!("app.test:{port}")));
    dns.script("app.test", Kind::A, [Reply::of("127.0.0.1", 60)]);
    eventually("the name is found", || names(&weir).len() == 1);
    request(&mut Client::connect(weir.address));
    dns.script("host.test", Kind::A, [Reply::of("127.0.0.1", 60)]);
    dns.script(
        "_https._tcp.app.test",
        Kind::Srv,
        [Reply::Services(vec![(0, 0, port, "host.test")], 60)],
    );
    weir.rewrite(&of("_https._tcp.app.test"));
    weir.answer(&["reload"]);
    request(&mut Client::connect(weir.address));
    assert!(
        front.names().iter().all(|name| name.as_deref() == Some("app.test")),
        "{:?}",
        front.names()
    );
    weir.stop();
    finish(servers);
}
