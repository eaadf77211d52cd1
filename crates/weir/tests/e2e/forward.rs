//! The forward proxy with real sockets, curl, nginx and a scripted name server: requests in
//! absolute-form, tunnels, users, names.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::kit::forward::{allow, start};
use crate::kit::names::{Kind, NameServer, Reply};
use crate::kit::{
    Client, Honest, Io, Nginx, Scratch, Server, Weir, bounded, eventually, free_port,
    in_own_network_as_root, ip, nonce, on_both_drivers, passwd, pattern, run,
};

on_both_drivers!(
    a_configured_upstream_is_never_chosen_by_host,
    connections_are_as_many_as_clients,
    tunnels_carry_what_they_get,
    users_and_the_log,
    a_bad_file_of_users_changes_nothing,
    a_deleted_user_has_no_further_request,
    status_tells_who_did_what,
    names,
    a_slow_name_keeps_nobody_up,
    silent_names_keep_no_other_client_up,
    pool_modes,
    an_address_of_later_is_weirs_own;
    alone:
    curl_over_the_proxy,
);

/// Returns what curl printed; curl must succeed.
fn curl(arguments: &[&str]) -> String {
    let output = run("curl", &[&["-sS", "--max-time", "20"], arguments].concat());
    assert!(
        output.status.success(),
        "curl {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the status that curl got through the proxy.
fn status(proxy: SocketAddr, arguments: &[&str]) -> String {
    let proxy = format!("http://{proxy}");
    curl(&[&["-x", &proxy, "-o", "/dev/null", "-w", "%{http_code}"], arguments].concat())
}

/// Returns the proxy's response to a request for a tunnel.
fn tunnel(proxy: SocketAddr, to: &str) -> String {
    let mut stream = TcpStream::connect(proxy).expect("it listens");
    bounded(&stream);
    write!(stream, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").expect("it reads");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
    String::from_utf8_lossy(&head).into_owned()
}

/// A listener on all addresses also listens on an address that the machine gets later, whatever
/// rules say, and however it gets it.
fn an_address_of_later_is_weirs_own(io: Io) {
    in_own_network_as_root(
        &format!("forward::{}::an_address_of_later_is_weirs_own", io.word()),
        || {
            let (server, port) = (Server::start(Honest), free_port());
            let listener = format!("listen \"0.0.0.0:{port}\"");
            let (weir, proxy) =
                start(io, &server, &format!("allow address=\"0.0.0.0/0\" port={port}"), &listener);
            let is_own = |address: &str| {
                let to = format!("{address}:{port}");
                let told = tunnel(proxy, &to);
                let asked = status(proxy, &[&format!("http://{to}/")]);
                assert_eq!(told.contains("own-address"), asked == "403", "{asked} {told}");
                asked == "403"
            };
            // The third is a second address of its network, and the last has no interface.
            let later = [
                ("addr add 8.8.4.4/32 dev lo", "8.8.4.4"),
                ("addr add 9.8.7.1/24 dev lo", "9.8.7.1"),
                ("addr add 9.8.7.2/24 dev lo", "9.8.7.2"),
                ("route add local 9.9.9.0/24 dev lo", "9.9.9.9"),
            ];
            assert!(!later.iter().any(|(_, address)| is_own(address)), "they are elsewhere");
            for (line, address) in later {
                ip(line);
                assert!(is_own(address), "{address}");
            }
            ip("addr del 8.8.4.4/32 dev lo");
            assert!(!is_own("8.8.4.4"), "it is elsewhere again");
            weir.stop();
            server.finish();
        },
    );
}

/// Absolute-form and CONNECT, HTTP/1.0, uploads, an unchanged download of 100 MB, IPv6.
fn curl_over_the_proxy(io: Io) {
    let large = pattern(100_000_000);
    let nginx = Nginx::start(&[("small", b"abc"), ("large", &large)], "");
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let (weir, proxy) = start(io, &server, &allow(nginx.address.port()), "");
    let (url, via) =
        (|path: &str| format!("http://{}{path}", nginx.address), format!("http://{proxy}"));
    let file = scratch.path("got");
    for tunnel in [&[][..], &["-p"]] {
        let with = |more: &[&str]| curl(&[&["-x", &via], tunnel, more].concat());
        assert_eq!(with(&[&url("/small")]), "abc");
        assert_eq!(with(&["-0", &url("/small")]), "abc");
        assert_eq!(with(&["-w", "%{num_connects} ", &url("/small"), &url("/small")]), "abc1 abc0 ");
        with(&["-o", file.to_str().expect("a path"), &url("/large")]);
        assert!(std::fs::read(&file).expect("curl wrote it") == large, "a large file, {tunnel:?}");
    }
    assert_eq!(status(proxy, &["-d", "x", &url("/small")]), "405", "what nginx says to a POST");
    assert_eq!(status(proxy, &[&url("/nothing")]), "404");
    assert_eq!(status(proxy, &["http://127.0.0.1:1/"]), "403");
    weir.stop();

    let listener = TcpListener::bind("[::1]:0").expect("IPv6 on loopback");
    let six = listener.local_addr().expect("bound");
    drop(listener);
    let forward = format!("listen \"{six}\"\n{}", allow(nginx.address.port()));
    let (weir, _) = start(io, &server, &forward, "");
    assert_eq!(curl(&["-x", &format!("http://{six}"), &url("/small")]), "abc");
    weir.stop();
    server.finish();
}

/// Whatever Host says: requests at the forward listener go to their target, those at the other
/// listener to the route.
fn a_configured_upstream_is_never_chosen_by_host(io: Io) {
    let (server, target) = (Server::start(Honest), Server::start(Honest));
    let (weir, proxy) = start(io, &server, &allow(target.address.port()), "");
    let nonces = [nonce(), nonce(), nonce()];
    let mut client = Client::connect(proxy);
    for nonce in &nonces[..2] {
        client.ask("GET", false);
        let request = format!(
            "GET http://{}/v?n={nonce} HTTP/1.1\r\nHost: {}\r\n\r\n",
            target.address, weir.address
        );
        client.send(request.as_bytes());
        assert_eq!(client.reply().status, 200);
    }
    client.ask("GET", false);
    client.send(format!("GET /v?n=1 HTTP/1.1\r\nHost: {}\r\n\r\n", weir.address).as_bytes());
    assert_eq!(client.reply().status, 400, "it is no server");
    let mut other = Client::connect(weir.address);
    other.get(&format!("/v?n={}", nonces[2]));
    assert_eq!(other.reply().status, 200);
    weir.stop();
    let (server, target) = (server.finish(), target.finish());
    let seen = |log: &crate::kit::Log| {
        log.requests.iter().map(|(_, request)| request.nonce().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((seen(&server), seen(&target)), (nonces[2..].to_vec(), nonces[..2].to_vec()));
}

/// As many connections to the destination as clients, for any number of requests; and both end
/// together.
fn connections_are_as_many_as_clients(io: Io) {
    let (server, target) = (Server::start(Honest), Server::start(Honest));
    let (weir, proxy) = start(io, &server, &allow(target.address.port()), "");
    let mut clients: Vec<Client> = (0..20).map(|_| Client::connect(proxy)).collect();
    for _ in 0..5 {
        for client in &mut clients {
            client.get(&format!("http://{}/v?n={}", target.address, nonce()));
        }
        for client in &mut clients {
            assert_eq!(client.reply().status, 200);
        }
    }
    assert_eq!(target.log().accepted, 20);
    drop(clients);
    target.wait("all connections end", |log| log.open == 0);
    weir.stop();
    server.finish();
    target.finish();
}

/// Accepts the next connection.
fn accept(listener: &TcpListener) -> std::net::TcpStream {
    listener.set_nonblocking(true).expect("an option");
    let mut accepted = None;
    eventually("weir connects", || {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    let (stream, _) = accepted.expect("it is there");
    stream.set_nonblocking(false).expect("an option");
    stream
}

/// A tunnel's bytes come out as they went in, both ways, each direction ends separately, and
/// neither end outlives the other.
fn tunnels_carry_what_they_get(io: Io) {
    use std::io::{Read, Write};
    let server = Server::start(Honest);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let target = listener.local_addr().expect("bound");
    let (weir, proxy) = start(io, &server, &allow(target.port()), "");
    server.wait("weir has its connection to the server", |log| log.accepted == 1);
    // It responds as soon as everything has started.
    weir.answer(&["status", "--wait"]);
    let before = weir.sockets();
    for client_first in [true, false] {
        let mut client = std::net::TcpStream::connect(proxy).expect("weir listens");
        bounded(&client);
        write!(client, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").expect("sent");
        let far = accept(&listener);
        bounded(&far);
        let mut head = [0; 39];
        client.read_exact(&mut head).expect("an answer");
        assert_eq!(&head, b"HTTP/1.1 200 Connection established\r\n\r\n");
        let bytes = pattern(5_000_000);
        let (up, down) =
            (client.try_clone().expect("a descriptor"), far.try_clone().expect("a descriptor"));
        let sends = [up, down].map(|mut stream| {
            let bytes = bytes.clone();
            std::thread::spawn(move || stream.write_all(&bytes).expect("sent"))
        });
        let reads =
            [client.try_clone().expect("one"), far.try_clone().expect("one")].map(|mut stream| {
                std::thread::spawn(move || {
                    let mut got = vec![0; 5_000_000];
                    stream.read_exact(&mut got).expect("received");
                    got
                })
            });
        sends.into_iter().for_each(|thread| thread.join().expect("no panic"));
        reads.into_iter().for_each(|thread| assert!(thread.join().expect("no panic") == bytes));
        let (mut first, mut second) = if client_first { (client, far) } else { (far, client) };
        first.shutdown(std::net::Shutdown::Write).expect("connected");
        assert_eq!(second.read(&mut [0; 9]).expect("the end"), 0);
        second.write_all(b"late").expect("the other direction goes on");
        let mut late = [0; 4];
        first.read_exact(&mut late).expect("received");
        drop(second);
        assert_eq!(first.read(&mut [0; 9]).expect("the end"), 0);
    }
    // A destination that resets ends its client as well.
    let mut client = std::net::TcpStream::connect(proxy).expect("weir listens");
    bounded(&client);
    write!(client, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").expect("sent");
    let far = accept(&listener);
    client.read_exact(&mut [0; 39]).expect("an answer");
    socket2::SockRef::from(&far).set_linger(Some(std::time::Duration::ZERO)).expect("an option");
    drop(far);
    assert!(matches!(client.read(&mut [0; 9]), Ok(0) | Err(_)));
    drop(client);
    eventually("all sockets are closed", || weir.sockets() <= before);
    weir.stop();
    server.finish();
}

/// Missing or wrong credentials get a challenge; valid ones are in the log; rules by user apply.
fn users_and_the_log(io: Io) {
    let (server, target, scratch) =
        (Server::start(Honest), Nginx::start(&[("small", b"abc")], ""), Scratch::new());
    let (users, log) = (scratch.path("users"), scratch.path("log"));
    passwd(&users, "ann", "a secret");
    passwd(&users, "bob", "pw");
    let forward = format!(
        "users \"{}\"\ndeny user=\"bob\" method=\"CONNECT\"\n{}",
        users.display(),
        allow(target.address.port())
    );
    let format = "$remote_user $request_method $host $status $upstream_addr $reason";
    let access = format!("access-log \"{}\" format=\"{format}\"", log.display());
    let (weir, proxy) = start(io, &server, &forward, &access);
    let url = format!("http://{}/small", target.address);
    assert_eq!(status(proxy, &[&url]), "407");
    assert_eq!(status(proxy, &["-U", "ann:wrong", &url]), "407");
    assert_eq!(status(proxy, &["-U", "ann:a secret", &url]), "200");
    assert_eq!(status(proxy, &["-U", "ann:a secret", "-p", &url]), "200");
    assert_eq!(status(proxy, &["-U", "bob:pw", &url]), "200");
    let refused = run(
        "curl",
        &[
            "-s",
            "-x",
            &format!("http://{proxy}"),
            "-U",
            "bob:pw",
            "-p",
            "-w",
            "%{http_connect}",
            &url,
        ],
    );
    assert_eq!(String::from_utf8_lossy(&refused.stdout), "403");
    weir.stop();
    let to = target.address;
    let mut lines = [
        "- GET 127.0.0.1 407 - credentials-missing".to_owned(),
        "- GET 127.0.0.1 407 - credentials-wrong".to_owned(),
        format!("ann GET 127.0.0.1 200 {to} -"),
        format!("ann CONNECT 127.0.0.1 200 {to} -"),
        format!("bob GET 127.0.0.1 200 {to} -"),
        "bob CONNECT 127.0.0.1 403 - denied-by-rule".to_owned(),
    ];
    let written = std::fs::read_to_string(&log).expect("a log");
    // Each worker writes its lines separately.
    let mut written: Vec<&str> = written.lines().collect();
    written.sort_unstable();
    lines.sort_unstable();
    assert_eq!(written, lines);
    assert!(server.finish().requests.is_empty());
}

/// `weir status` has the busiest destinations and users, added up over the workers.
fn status_tells_who_did_what(io: Io) {
    let large = pattern(100_000);
    let (server, target, scratch) =
        (Server::start(Honest), Nginx::start(&[("large", &large)], ""), Scratch::new());
    let users = scratch.path("users");
    passwd(&users, "ann", "pw");
    let forward = format!("users \"{}\"\n{}", users.display(), allow(target.address.port()));
    let (weir, proxy) = start(io, &server, &forward, "");
    assert_eq!(usage(&weir)["destinations"]["rows"], serde_json::json!([]));
    let url = format!("http://{}/large", target.address);
    for _ in 0..4 {
        assert_eq!(status(proxy, &["-U", "ann:pw", &url]), "200");
        assert_eq!(status(proxy, &["-U", "ann:pw", "-p", &url]), "200");
        assert_eq!(status(proxy, &["-U", "ann:pw", "http://10.0.0.1/"]), "403");
        assert_eq!(status(proxy, &[&url]), "407");
    }
    eventually("all connections have ended", || {
        usage(&weir)["users"]["rows"][0]["connections"] == 0
    });
    let told = usage(&weir);
    let rows = told["destinations"]["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2, "{told}");
    assert_eq!(rows[0]["name"], target.address.to_string());
    assert_eq!((&rows[0]["requests"], &rows[0]["tunnels"]), (&4.into(), &4.into()));
    assert!(rows[0]["bytes_in"].as_u64().expect("a number") > 800_000, "{told}");
    assert_eq!((&rows[1]["name"], &rows[1]["requests"]), (&"10.0.0.1:80".into(), &0.into()));
    assert_eq!(rows[1]["refusals"], serde_json::json!({ "address-not-public": 4 }));
    let ann = &told["users"]["rows"][0];
    assert_eq!(
        (&ann["name"], &ann["requests"], &ann["refusals"]),
        (&"ann".into(), &4.into(), &rows[1]["refusals"])
    );
    assert_eq!(ann["bytes_out"], rows[0]["bytes_out"]);
    let screen = weir.answer(&["status"]);
    for part in [
        "DESTINATION ",
        &target.address.to_string(),
        "refused: address-not-public 4\n",
        "USER ",
        "\n  ann ",
    ] {
        assert!(screen.contains(part), "{part} in {screen}");
    }
    weir.stop();
    server.finish();
}

fn usage(weir: &Weir) -> serde_json::Value {
    let document: serde_json::Value =
        serde_json::from_str(&weir.answer(&["status", "--json"])).expect("JSON");
    document["usage"].clone()
}

/// A running weir keeps its users when the file becomes bad, says why, and reads the file when it
/// is good again.
fn a_bad_file_of_users_changes_nothing(io: Io) {
    let (server, target, scratch) =
        (Server::start(Honest), Nginx::start(&[("small", b"abc")], ""), Scratch::new());
    let users = scratch.path("users");
    passwd(&users, "ann", "a secret");
    let good = std::fs::read(&users).expect("it was written");
    let forward = format!("users \"{}\"\n{}", users.display(), allow(target.address.port()));
    let (weir, proxy) = start(io, &server, &forward, "");
    let url = format!("http://{}/small", target.address);
    let ask = |who: &str| status(proxy, &["-U", who, &url]);
    // Atomically, so that weir sees no intermediate state.
    let replace =
        |text: &[u8]| std::fs::rename(scratch.write("new", text), &users).expect("one directory");
    replace(b"ann:secret\n");
    let told = format!("{}:1: the hash of `ann`", users.display());
    eventually("weir says what is wrong", || {
        ask("ann:a secret") == "200" && weir.said().contains(&told)
    });
    weir.says("previous users remain in force");
    assert_eq!(ask("ann:a secret"), "200");
    replace(&good);
    passwd(&users, "bob", "pw");
    eventually("bob may pass", || ask("bob:pw") == "200");
    assert_eq!(weir.said().matches(&told).count(), 1, "told once");
    weir.stop();
    server.finish();
}

/// A connection of a user that is deleted, or gets another password, gets nothing more, even
/// without requests of others; that of another user continues.
fn a_deleted_user_has_no_further_request(io: Io) {
    let (server, target, scratch) = (Server::start(Honest), Server::start(Honest), Scratch::new());
    let users = scratch.path("users");
    let (ann, bob, cat) = ("YW5uOnB3", "Ym9iOnB3", "Y2F0OnB3"); // each with the password pw
    for name in ["ann", "bob", "cat"] {
        passwd(&users, name, "pw");
    }
    let forward = format!("users \"{}\"\n{}", users.display(), allow(target.address.port()));
    let (weir, proxy) = start(io, &server, &forward, "");
    let ask = |client: &mut Client, who: &str| {
        client.ask("GET", false);
        let (to, nonce) = (target.address, nonce());
        let request = format!(
            "GET http://{to}/v?n={nonce} HTTP/1.1\r\nHost: {to}\r\n\
                Proxy-Authorization: Basic {who}\r\n\r\n"
        );
        client.send(request.as_bytes());
        client.reply().status
    };
    let mut clients = [ann, bob, cat].map(|who| (Client::connect(proxy), who));
    for (client, who) in &mut clients {
        assert_eq!(ask(client, who), 200);
    }
    let kept = std::fs::read_to_string(&users).expect("it was written");
    let kept: String = kept
        .lines()
        .filter(|line| !line.starts_with("ann:"))
        .map(|line| format!("{line}\n"))
        .collect();
    std::fs::rename(scratch.write("new", kept.as_bytes()), &users).expect("one directory");
    passwd(&users, "bob", "another");
    let [(first, _), (second, _), (third, _)] = &mut clients;
    eventually("ann is refused", || ask(first, ann) == 407);
    eventually("bob is refused", || ask(second, bob) == 407);
    assert_eq!(
        (ask(third, cat), ask(second, "Ym9iOmFub3RoZXI=")),
        (200, 200),
        "bob's password is `another` now"
    );
    weir.stop();
    server.finish();
    target.finish();
}

/// Names with several addresses of which some are refused or dead; names that change to a private
/// address; names without addresses.
fn names(io: Io) {
    let (server, target, dns) = (Server::start(Honest), Server::start(Honest), NameServer::start());
    let port = target.address.port();
    let forward = format!("resolver \"{}\"\nconnect-timeout \"2s\"\n{}", dns.address, allow(port));
    let (weir, proxy) = start(io, &server, &forward, "");
    let ask = |name: &str| status(proxy, &[&format!("http://{name}:{port}/v?n={}", nonce())]);
    for name in
        ["many.test", "refused.test", "dead.test", "private.test", "rebound.test", "broken.test"]
    {
        dns.script(name, Kind::Aaaa, [Reply::Nothing(60)]);
    }
    // A private address, one without a listener, and the right one.
    dns.script("many.test", Kind::A, [Reply::of("10.0.0.1 127.0.0.9 127.0.0.1", 60)]);
    assert_eq!(ask("many.test"), "200");
    assert_eq!(ask("MANY.test."), "200");
    assert_eq!(dns.asked("many.test", Kind::A), 1, "the answer is kept for its time");
    dns.script("refused.test", Kind::A, [Reply::of("10.0.0.1 192.168.1.1 169.254.169.254", 60)]);
    assert_eq!(ask("refused.test"), "403");
    dns.script("dead.test", Kind::A, [Reply::of("127.0.0.7 127.0.0.9", 60)]);
    assert_eq!(ask("dead.test"), "502");
    dns.script("rebound.test", Kind::A, [Reply::of("127.0.0.1", 1), Reply::of("10.0.0.1", 60)]);
    assert_eq!(ask("rebound.test"), "200");
    eventually("the name has changed", || ask("rebound.test") == "403");
    assert_eq!(ask("nobody.test"), "502");
    dns.script("broken.test", Kind::A, [Reply::Failure]);
    assert_eq!(ask("broken.test"), "502");
    weir.stop();
    server.finish();
    target.finish();
}

/// While weir looks up a name it serves others, even on the same worker.
fn a_slow_name_keeps_nobody_up(io: Io) {
    let (server, target, dns) = (Server::start(Honest), Server::start(Honest), NameServer::start());
    let port = target.address.port();
    let (weir, proxy) =
        start(io, &server, &format!("resolver \"{}\"\n{}", dns.address, allow(port)), "");
    dns.script("slow.test", Kind::Aaaa, [Reply::Nothing(60)]);
    dns.script("slow.test", Kind::A, [Reply::of("127.0.0.1", 60).held()]);
    let mut waiting: Vec<Client> = (0..8).map(|_| Client::connect(proxy)).collect();
    for client in &mut waiting {
        client.get(&format!("http://slow.test:{port}/v?n={}", nonce()));
    }
    dns.wait_for("slow.test", Kind::A, 1);
    for _ in 0..20 {
        let mut client = Client::connect(proxy);
        client.get(&format!("http://127.0.0.1:{port}/v?n={}", nonce()));
        assert_eq!(client.reply().status, 200);
    }
    dns.release("slow.test");
    for client in &mut waiting {
        assert_eq!(client.reply().status, 200);
    }
    weir.stop();
    server.finish();
    target.finish();
}

/// One client asks for more names that are never answered than weir resolves at once. Others get
/// theirs resolved, even a name that this client also waits for. The client learns that there is no
/// room, and when to retry.
fn silent_names_keep_no_other_client_up(io: Io) {
    const SILENT: usize = 60;
    let (server, target, dns) = (Server::start(Honest), Server::start(Honest), NameServer::start());
    let port = target.address.port();
    let forward = format!("resolver \"{}\"\n{}", dns.address, allow(port));
    // With this many descriptors weir resolves 21 names at once, for one client 11 of them.
    let (weir, proxy) = crate::kit::forward::start_with_descriptors(io, &server, &forward, 1024);
    let names: Vec<String> = (0..SILENT).map(|n| format!("silent{n}.test")).collect();
    for (name, kind) in names.iter().flat_map(|name| [(name, Kind::A), (name, Kind::Aaaa)]) {
        dns.script(name, kind, [Reply::Silence]);
    }
    for name in ["good.test", "both.test"] {
        dns.script(name, Kind::Aaaa, [Reply::Nothing(60)]);
        dns.script(name, Kind::A, [Reply::of("127.0.0.1", 60)]);
    }
    let url = |name: &str| format!("http://{name}:{port}/v?n={}", nonce());
    let mut silent: Vec<Client> = names.iter().map(|_| Client::connect(proxy)).collect();
    for (client, name) in silent.iter_mut().zip(&names) {
        client.get(&url(name));
    }
    let asked = || names.iter().filter(|name| dns.asked(name, Kind::A) > 0).count();
    eventually("weir asks for as many as it asks for one client", || asked() >= 11);
    let mut both = Client::connect(proxy);
    both.get(&url("both.test"));
    let mut other: Vec<Client> =
        (2..4).map(|n| Client::connect_from([127, 0, 0, n].into(), proxy)).collect();
    for (client, name) in other.iter_mut().zip(["good.test", "both.test"]) {
        client.get(&url(name));
        assert_eq!(client.reply().status, 200, "{name}");
    }
    assert_eq!(both.reply().status, 200, "what another has resolved");
    assert_eq!(dns.asked("both.test", Kind::A), 1);
    let mut statuses = [0; 2];
    for client in &mut silent {
        let reply = client.reply();
        assert!([503, 504].contains(&reply.status), "{}", reply.status);
        assert_eq!(reply.fields.first("retry-after").is_some(), reply.status == 503);
        statuses[usize::from(reply.status == 504)] += 1;
    }
    assert!(statuses[0] > 0 && statuses[1] >= 11, "{statuses:?}");
    weir.stop();
    server.finish();
    target.finish();
}

/// A reverse proxy's modes: how many connections reach the server.
fn pool_modes(io: Io) {
    for (mode, connections) in [("pipelined", 2), ("shared", 2), ("pinned", 6), ("per-request", 24)]
    {
        let server = Server::start(Honest);
        let number = if mode == "pipelined" || mode == "shared" {
            "connections-min=2 connections=2"
        } else {
            ""
        };
        let text = format!("server \"{}\" {number}; pool \"{mode}\";", server.address);
        let weir = Weir::start(
            io,
            2,
            &format!("upstream \"app\" {{ {text} }}\nroute {{ proxy \"app\" }}\n"),
        );
        let mut clients: Vec<Client> = (0..6).map(|_| Client::connect(weir.address)).collect();
        for _ in 0..4 {
            for client in &mut clients {
                client.get(&format!("/v?n={}", nonce()));
            }
            for client in &mut clients {
                assert_eq!(client.reply().status, 200);
            }
        }
        // Those of a pool are made one after the other.
        server.wait("all connections", |log| log.accepted >= connections);
        assert_eq!(server.log().accepted, connections, "{mode}");
        weir.stop();
        server.finish();
    }
}
