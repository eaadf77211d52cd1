//! Proves: a running weir puts another configuration in force without losing a request or a
//! connection that is the same in both, even while listeners come and go. An error, or a change
//! that needs a restart, changes nothing and is reported to every caller. Removed servers finish
//! their work; an ordered weight stays in force; the service manager is informed. How: the real
//! binary with traffic through it, and its file rewritten. docs/reload.md.
//!
//! `WEIR_RELOADS` sets how often the first of these reloads: `make chaos`.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::kit::http2::Http2Client;
use crate::kit::tls::{bridge, certificate};
use crate::kit::{
    Client, Honest, Io, Random, Scratch, Server, Weir, app, eventually, free_port, keep_asking,
    nonce, on_both_drivers, patience_now, request, status,
};
use serde_json::Value;
use weir_check::Request;
use weir_check::upstreams::check_honest;

on_both_drivers!(
    reloads_under_load_lose_nothing,
    what_is_wrong_changes_nothing,
    what_needs_a_restart_says_so,
    a_dry_run_says_what_would_be,
    a_server_that_is_removed_finishes,
    a_weight_holds_until_it_is_written,
    routes_and_limits_change,
    the_service_manager_is_told,
    listeners_come_and_go_under_load,
    a_port_that_is_taken_changes_nothing,
    a_listener_changes_what_is_spoken,
    servers_come_and_go_for_ever,
);

/// Returns one upstream of these servers with their weights, and the route to it.
fn of(servers: &[(&Server, u32)]) -> String {
    let line = |(server, weight): &(&Server, u32)| {
        format!(
            "server \"{}\" connections-min=2 connections=2 connections-max=2 weight={weight}; ",
            server.address
        )
    };
    format!(
        "upstream \"app\" {{ {} }}\nroute {{ proxy \"app\" }}\n",
        servers.iter().map(line).collect::<String>()
    )
}

/// Returns what `weir` prints on standard error when it fails with this code.
fn refused(weir: &Weir, arguments: &[&str], code: i32) -> String {
    let output = weir.ask(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

/// Returns how often weir is reloaded under load.
fn reloads() -> usize {
    std::env::var("WEIR_RELOADS").ok().and_then(|text| text.parse().ok()).unwrap_or(150)
}

/// Clients stay connected, and so does weir to the server that is in every configuration.
fn reloads_under_load_lose_nothing(io: Io) {
    let servers = [Server::start(Honest), Server::start(Honest), Server::start(Honest)];
    let [stays, one, other] = &servers;
    let weir = Weir::start(io, 2, &of(&[(stays, 50), (one, 50), (other, 50)]));
    weir.answer(&["status", "--wait"]);
    // One of each worker: a server is up as soon as the first exists.
    stays.wait("its connections", |log| log.accepted == 2);
    let before = stays.log().accepted;
    let (over, done, mut random) = (AtomicBool::new(false), AtomicUsize::new(0), Random::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| keep_asking(weir.address, &over, &done));
        }
        for number in 0..reloads() {
            let mut all = vec![(stays, 50)];
            for server in [one, other] {
                if random.below(2) == 0 {
                    all.push((server, 1 + random.below(100) as u32));
                }
            }
            let limit = if random.below(2) == 0 { "client { body-limit \"1MiB\"; }\n" } else { "" };
            let second = if random.below(2) == 0 {
                format!(
                    "upstream \"second\" {{ server \"{}\"; }}\n\
                        route path=\"/second\" {{ proxy \"second\" }}\n",
                    other.address
                )
            } else {
                String::new()
            };
            weir.rewrite(&format!("{limit}{}{second}", of(&all)));
            let so_far = done.load(Ordering::Relaxed);
            weir.answer(&["reload"]);
            if number % 10 == 0 {
                eventually("requests are answered", || done.load(Ordering::Relaxed) >= so_far + 20);
                // Thousands of reloads mean millions of requests.
                servers.iter().for_each(|server| server.log().requests.clear());
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    let told = status(&weir);
    assert_eq!(
        (&told["reload"]["generation"], &told["reload"]["ok"]),
        (&(reloads() + 1).into(), &true.into())
    );
    assert_eq!(told["clients"]["answers"]["5xx"], 0);
    // A connection whose packets another core receives is replaced, and so is one without traffic
    // for long, as on a busy machine, whatever the configuration. A connection that ends with its
    // server would be `disabled`.
    let closes = told["upstreams"][0]["servers"][0]["totals"]["closes"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    assert!(
        !["disabled", "replaced"].iter().any(|why| closes.contains_key(*why)),
        "no connection to it was closed: {closes:?}"
    );
    let exchanged = closes.values().filter_map(Value::as_u64).sum::<u64>() as usize;
    assert_eq!(stays.log().accepted, before + exchanged, "no connection to it was made anew");
    assert_eq!(told["clients"]["answers"]["2xx"], done.load(Ordering::Relaxed));
    weir.stop();
    servers.into_iter().for_each(|server| drop(server.finish()));
}

fn what_is_wrong_changes_nothing(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 2, &app(&server, 2, ""));
    let mut client = Client::connect(weir.address);
    request(&mut client);
    assert_eq!(status(&weir)["reload"]["ok"], Value::Null);
    weir.rewrite("upstream \"app\" { server \"127.0.0.1:1\" wieght=3; }\nroute { proxy \"ap\" }\n");
    let said = refused(&weir, &["reload"], 78);
    assert!(
        said.contains("did you mean `weight`?")
            && said.contains("wieght=3")
            && said.contains("weir.kdl"),
        "{said}"
    );
    let told = status(&weir);
    assert_eq!((&told["reload"]["generation"], &told["reload"]["ok"]), (&1.into(), &false.into()));
    assert!(
        told["reload"]["error"].as_str().is_some_and(|error| error.contains("wieght")),
        "{told}"
    );
    assert!(weir.answer(&["status"]).contains("the last reload failed"));
    refused(&weir, &["reload", "--dry-run"], 78);
    request(&mut client);
    weir.says("reload-failed: keeping the previous configuration");
    weir.rewrite(&app(&server, 2, "forward-timeout \"7s\""));
    weir.signal("HUP");
    eventually("the signal reloads", || status(&weir)["reload"]["generation"] == 2);
    let told = status(&weir);
    assert_eq!((&told["reload"]["ok"], &told["reload"]["error"]), (&true.into(), &Value::Null));
    weir.says("~ upstream \"app\" forward-timeout");
    request(&mut client);
    assert_eq!(server.log().accepted, 2);
    weir.stop();
    server.finish();
}

fn what_needs_a_restart_says_so(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 2, &app(&server, 2, ""));
    let port = free_port();
    for (more, what) in [
        (format!("metrics \"127.0.0.1:{port}\"\n"), "`metrics` needs a restart".to_owned()),
        (
            "access-log destination=\"stdout\"\n".to_owned(),
            "`access-log destination` needs a restart".to_owned(),
        ),
        (
            format!("forward {{ listen \"127.0.0.1:{port}\"; }}\n"),
            "`forward` needs a restart".to_owned(),
        ),
    ] {
        weir.rewrite(&format!("{more}{}", app(&server, 2, "forward-timeout \"7s\"")));
        let said = refused(&weir, &["reload"], 78);
        assert!(
            said.contains(&what) && said.contains("no part of this configuration is in force"),
            "{said}"
        );
    }
    assert_eq!(status(&weir)["reload"]["generation"], 1);
    request(&mut Client::connect(weir.address));
    // A weir that runs from flags alone has no file.
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let scratch = Scratch::new();
    let socket = scratch.path("admin.sock").to_string_lossy().into_owned();
    let bare = Weir::command_with(
        &["reverse", "--listen", &address.to_string(), "--to", &server.address.to_string()],
        address,
        &[("WEIR_ADMIN", &socket)],
    );
    let said = refused(&bare, &["reload", "--admin", &socket], 1);
    assert!(said.contains("runs without a configuration file"), "{said}");
    bare.stop();
    weir.stop();
    server.finish();
}

fn a_dry_run_says_what_would_be(io: Io) {
    let servers = [Server::start(Honest), Server::start(Honest)];
    let [a, b] = &servers;
    let weir = Weir::start(io, 1, &of(&[(a, 50)]));
    assert_eq!(weir.answer(&["reload", "--dry-run"]), "");
    weir.rewrite(&of(&[(a, 80), (b, 20)]));
    let said = weir.answer(&["reload", "--dry-run"]);
    let lines: Vec<&str> = said.lines().collect();
    let (first, second) = (a.address, b.address);
    assert_eq!(lines[0], format!("upstream \"app\": ~ server \"{first}\" weight 50 -> 80"));
    assert!(
        lines[1].starts_with(&format!("upstream \"app\": + server \"{second}\" "))
            && lines.len() == 2,
        "{said}"
    );
    let told = status(&weir);
    assert_eq!((&told["reload"]["generation"], &told["reload"]["ok"]), (&1.into(), &Value::Null));
    assert_eq!(told["upstreams"][0]["servers"].as_array().map(Vec::len), Some(1));
    weir.stop();
    servers.into_iter().for_each(|server| drop(server.finish()));
}

fn a_server_that_is_removed_finishes(io: Io) {
    let old = Server::start(|link: &mut crate::kit::Link, request: &Request| {
        link.await_event("go")?;
        link.honest(request)
    });
    let new = Server::start(Honest);
    let weir = Weir::start(io, 2, &of(&[(&old, 50)]));
    let mut clients: Vec<(Client, String)> =
        (0..6).map(|_| (Client::connect(weir.address), nonce())).collect();
    clients.iter_mut().for_each(|(client, nonce)| client.get(&format!("/victim?n={nonce}")));
    old.wait("a request is there", |log| !log.requests.is_empty());
    weir.rewrite(&of(&[(&new, 50)]));
    weir.answer(&["reload"]);
    let told = status(&weir);
    assert!(told["reload"]["leaving"].as_u64().is_some_and(|leaving| leaving > 0), "{told}");
    assert_eq!(told["upstreams"][0]["servers"][0]["name"], new.address.to_string());
    let asked = old.log().requests.len();
    let mut late = Client::connect(weir.address);
    (0..20).for_each(|_| request(&mut late));
    assert_eq!(old.log().requests.len(), asked, "it gets nothing new");
    old.tell("go");
    for (client, nonce) in &mut clients {
        let reply = client.reply();
        assert_eq!(reply.status, 200);
        check_honest(nonce, &reply).unwrap();
        request(client);
    }
    old.wait("its connections are closed", |log| log.open == 0);
    assert_eq!(status(&weir)["reload"]["leaving"], 0);
    // It returns with its earlier counts.
    weir.rewrite(&of(&[(&old, 50), (&new, 50)]));
    weir.answer(&["reload"]);
    let name = old.address.to_string();
    let told: Value =
        serde_json::from_str(&weir.answer(&["status", "server", "app", &name, "--json"]))
            .expect("JSON");
    assert!(told["server"]["answers"]["2xx"].as_u64().is_some_and(|count| count >= 1), "{told}");
    weir.stop();
    [old, new].into_iter().for_each(|server| drop(server.finish()));
}

fn a_weight_holds_until_it_is_written(io: Io) {
    let servers = [Server::start(Honest), Server::start(Honest)];
    let [a, b] = &servers;
    let weir = Weir::start(io, 1, &of(&[(a, 50), (b, 50)]));
    weir.answer(&["status", "--wait"]);
    let name = a.address.to_string();
    let weights = || {
        let told = status(&weir);
        let server = &told["upstreams"][0]["servers"][0];
        (server["weight"].as_u64().unwrap_or(0), server["weight_configured"].as_u64().unwrap_or(0))
    };
    assert_eq!(weir.answer(&["server", "weight", "app", &name, "1"]), "");
    assert_eq!(weights(), (1, 50));
    assert!(weir.answer(&["status"]).contains("1 (50)"), "{}", weir.answer(&["status"]));
    let mut client = Client::connect(weir.address);
    (0..51).for_each(|_| request(&mut client));
    assert_eq!(a.log().requests.len(), 1, "one of 51");
    weir.rewrite(&of(&[(a, 50), (b, 51)]));
    weir.answer(&["reload"]);
    assert_eq!(weights(), (1, 50), "an order outlives a reload");
    weir.rewrite(&of(&[(a, 60), (b, 51)]));
    weir.answer(&["reload"]);
    assert_eq!(weights(), (60, 60), "that writes something else");
    weir.answer(&["server", "weight", "app", &name, "2"]);
    weir.answer(&["server", "weight", "app", &name, "configured"]);
    assert_eq!(weights(), (60, 60));
    let said = refused(&weir, &["server", "weight", "app", "nobody:1", "2"], 1);
    assert!(said.contains("nobody:1"), "{said}");
    refused(&weir, &["server", "weight", "app", &name, "101"], 2);
    weir.stop();
    servers.into_iter().for_each(|server| drop(server.finish()));
}

fn routes_and_limits_change(io: Io) {
    let servers = [Server::start(Honest), Server::start(Honest)];
    let [a, b] = &servers;
    let weir = Weir::start(io, 2, &app(a, 2, ""));
    let mut client = Client::connect(weir.address);
    request(&mut client);
    weir.rewrite(&format!(
        "client {{ body-limit \"1KiB\"; }}\nupstream \"b\" {{ server \"{}\"; }}\n\
            route path=\"/b\" {{ proxy \"b\" }}\n",
        b.address
    ));
    weir.answer(&["reload"]);
    client.get("/victim");
    assert_eq!(client.reply().status, 404, "on the same connection");
    let nonce = nonce();
    client.get(&format!("/b?n={nonce}"));
    check_honest(&nonce, &client.reply()).unwrap();
    client.request("POST", "/b", "", &[b'x'; 2000]);
    assert_eq!(client.reply().status, 413);
    assert_eq!((a.log().requests.len(), b.log().requests.len()), (1, 1));
    weir.stop();
    servers.into_iter().for_each(|server| drop(server.finish()));
}

/// `Type=notify-reload`: READY, RELOADING with the time, READY, STOPPING.
fn the_service_manager_is_told(io: Io) {
    let server = Server::start(Honest);
    let scratch = Scratch::new();
    let manager = UnixDatagram::bind(scratch.path("notify")).expect("a socket");
    manager.set_read_timeout(Some(patience_now())).expect("an option");
    let hears = || {
        let mut buffer = [0; 1024];
        let length = manager.recv(&mut buffer).expect("it is told in time");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let text =
        format!("io \"{}\"\nworkers 1\nlisten \"{address}\"\n{}", io.word(), app(&server, 1, ""));
    let file = scratch.write("weir.kdl", text.as_bytes()).to_string_lossy().into_owned();
    let socket = scratch.path("notify").to_string_lossy().into_owned();
    let weir = Weir::command_with(&["run", "-c", &file], address, &[("NOTIFY_SOCKET", &socket)]);
    assert_eq!(hears().trim_end(), "READY=1");
    for good in [true, false] {
        if !good {
            scratch.write("weir.kdl", b"nonsense");
        }
        weir.signal("HUP");
        let told = hears();
        let mut lines = told.lines();
        assert_eq!(lines.next(), Some("RELOADING=1"));
        let at =
            lines.next().and_then(|line| line.strip_prefix("MONOTONIC_USEC=")).expect("the time");
        assert!(at.parse::<u64>().is_ok_and(|us| us > 0), "{told}");
        assert_eq!(hears().trim_end(), "READY=1");
    }
    weir.signal("TERM");
    assert_eq!(hears().trim_end(), "STOPPING=1");
    let mut weir = weir;
    assert_eq!(weir.wait().code(), Some(0));
    server.finish();
}

/// Returns an address for a listener.
fn free() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

/// Connected clients get responses, even at a listener that is removed at this moment. Clients of
/// the remaining listener notice nothing.
fn listeners_come_and_go_under_load(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 2, &app(&server, 2, ""));
    let other = free();
    let more = format!("listen \"{other}\"\n{}", app(&server, 2, ""));
    let (over, done, there) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| keep_asking(weir.address, &over, &done));
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    request(&mut Client::connect(weir.address));
                }
            });
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // Refused, or without a response while the listener is removed: not connected.
                    if let Ok(stream) =
                        TcpStream::connect_timeout(&other, Duration::from_millis(200))
                    {
                        let mut client = Client::of(stream);
                        request(&mut client);
                        there.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        for _ in 0..5 {
            let so_far = there.load(Ordering::Relaxed);
            weir.rewrite(&more);
            weir.answer(&["reload"]);
            assert_eq!(status(&weir)["listeners"].as_array().map(Vec::len), Some(2));
            eventually("it is listened there", || there.load(Ordering::Relaxed) > so_far + 5);
            weir.rewrite(&app(&server, 2, ""));
            weir.answer(&["reload"]);
            eventually("nobody listens there", || {
                TcpStream::connect_timeout(&other, Duration::from_millis(100)).is_err()
            });
        }
        over.store(true, Ordering::Relaxed);
    });
    let told = status(&weir);
    assert_eq!((&told["reload"]["generation"], &told["reload"]["ok"]), (&11.into(), &true.into()));
    assert_eq!(told["clients"]["answers"]["5xx"], 0);
    assert_eq!(told["listeners"], serde_json::json!([weir.address.to_string()]));
    // Its clients are finished: the next response says so.
    weir.rewrite(&more);
    weir.answer(&["reload"]);
    let mut leaves = Client::connect(other);
    request(&mut leaves);
    weir.rewrite(&app(&server, 2, ""));
    weir.answer(&["reload"]);
    leaves.get("/victim?n=00000000");
    assert!(leaves.reply().closes);
    assert!(!leaves.end().reset);
    weir.stop();
    server.finish();
}

/// No part of a configuration is in force if one of its listeners cannot be bound.
fn a_port_that_is_taken_changes_nothing(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 2, &app(&server, 2, ""));
    let mut client = Client::connect(weir.address);
    request(&mut client);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let (taken_by, fine) = (taken.local_addr().expect("an address"), free());
    let rest =
        format!("listen \"{fine}\"\nlisten \"{taken_by}\"\nclient {{ body-limit \"1B\" }}\n");
    weir.rewrite(&format!("{rest}{}", app(&server, 2, "")));
    let said = refused(&weir, &["reload"], 1);
    let why = format!("cannot listen on {taken_by}: another program uses this port");
    assert!(said.contains(&why), "{said}");
    let told = status(&weir);
    assert_eq!((&told["reload"]["generation"], &told["reload"]["ok"]), (&1.into(), &false.into()));
    assert!(told["reload"]["error"].as_str().is_some_and(|error| error.contains(&why)), "{told}");
    assert_eq!(told["listeners"], serde_json::json!([weir.address.to_string()]));
    assert!(TcpStream::connect(fine).is_err());
    request(&mut client);
    drop(taken);
    assert_eq!(weir.answer(&["reload", "--dry-run"]).matches("+ listen ").count(), 2);
    weir.answer(&["reload"]);
    [fine, taken_by, weir.address]
        .into_iter()
        .for_each(|address| request(&mut Client::connect(address)));
    request(&mut client);
    weir.stop();
    server.finish();
}

/// TLS and HTTP/2 are added to a listener and removed: connected clients continue as before, new
/// ones get what is in force.
fn a_listener_changes_what_is_spoken(io: Io) {
    let server = Server::start(Honest);
    let scratch = Scratch::new();
    let files = certificate(&scratch, "ec", &["localhost"], 30);
    let address = free();
    let with =
        |inside: &str| format!("listen \"{address}\" {{ {inside} }}\n{}", app(&server, 2, ""));
    let weir = Weir::start(io, 2, &with(""));
    let mut plain = Client::connect(address);
    request(&mut plain);
    weir.rewrite(&with(&format!("backlog 7\ntls {{ {} }}", files.row())));
    weir.answer(&["reload"]);
    let mut sealed = Client::connect(bridge(address));
    (0..2).for_each(|_| [&mut plain, &mut sealed].into_iter().for_each(request));
    let told = status(&weir);
    assert_eq!(told["certificates"].as_array().map(Vec::len), Some(1), "{told}");
    assert!(weir.answer(&["reload", "--dry-run"]).is_empty());
    weir.rewrite(&with("protocols \"h2c\" \"http/1.1\""));
    weir.answer(&["reload"]);
    let mut streams = Http2Client::connect(address, &[]);
    let stream = streams.get("/");
    assert_eq!(streams.answer(stream).statuses, [200]);
    (0..2).for_each(|_| [&mut plain, &mut sealed].into_iter().for_each(request));
    request(&mut Client::connect(address));
    assert_eq!(status(&weir)["certificates"].as_array().map(Vec::len), Some(0));
    // A missing file changes nothing.
    weir.rewrite(&with("tls { certificate \"/nonexistent.pem\" key=\"/nonexistent.key\" }"));
    assert!(refused(&weir, &["reload"], 78).contains("nonexistent.pem"));
    request(&mut Client::connect(address));
    weir.stop();
    server.finish();
}

/// More servers than a process has room for, one after the other: slots of removed ones are reused.
fn servers_come_and_go_for_ever(io: Io) {
    const AT_ONCE: u32 = 20;
    let server = Server::start(Honest);
    let weir = Weir::start(io, 2, &of(&[(&server, 50)]));
    weir.answer(&["status", "--wait"]);
    let mut client = Client::connect(weir.address);
    for round in 0..70 {
        // Nothing listens there.
        let line = |n: u32| {
            format!(
                "server \"{}:1\" backup=#true\n",
                std::net::Ipv4Addr::from_bits(0x7f80_0000 + n)
            )
        };
        let others: String = (round * AT_ONCE..(round + 1) * AT_ONCE).map(line).collect();
        let address = server.address;
        weir.rewrite(&format!(
            "upstream \"app\" {{\nserver \"{address}\" connections-min=2 connections=2 \
                connections-max=2\n{others}}}\nroute {{ proxy \"app\" }}\n"
        ));
        weir.answer(&["reload"]);
        request(&mut client);
    }
    let told = status(&weir);
    assert_eq!(
        told["upstreams"][0]["servers"].as_array().map(Vec::len),
        Some(1 + AT_ONCE as usize)
    );
    assert_eq!(server.log().accepted, 2, "who stays is not touched");
    weir.stop();
    server.finish();
}
