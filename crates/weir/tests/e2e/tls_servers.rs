//! Servers with TLS, with the real binary: requests, bodies and tunnels both ways, servers that
//! cannot be verified or do not use TLS, client certificates, sessions, replaced files, truncated
//! responses, probes. docs/tls-to-servers.md.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};

use crate::kit::tls::Files;
use crate::kit::tls_servers::{Front, ca, self_signed, serving, signed};
use crate::kit::{
    Behaviour, Client, Gone, Honest, Io, Link, SWITCH, Scratch, Server, Weir, eventually,
    free_port, nonce, on_both_drivers, pattern, status,
};
use weir_check::upstreams::check_honest;
use weir_check::{Body, Request};

on_both_drivers!(
    requests_and_large_bodies_pass,
    sessions_are_resumed,
    who_can_t_be_known_is_told_by_word,
    a_certificate_in_the_file_of_cas_is_trusted_itself,
    a_key_that_can_t_be_used_is_told_by_word,
    who_does_not_speak_tls_is_told_by_word,
    a_handshake_that_hangs_is_a_connect_that_takes_too_long,
    a_certificate_is_shown_to_whoever_asks,
    files_are_read_again,
    an_answer_that_is_cut_does_not_look_whole,
    probes_speak_tls_too,
    bytes_both_ways_through_a_tunnel,
    clients_of_one_connection_and_requests_of_their_own,
    the_short_form_trusts_the_system,
    servers_come_by_a_reload,
);

/// Returns an upstream `app` of these TLS servers, and the route to it.
fn app(tls: &str, servers: &[SocketAddr], more: &str) -> String {
    let servers: String =
        servers.iter().map(|address| format!(" server \"{address}\"\n")).collect();
    format!(
        "upstream \"app\" {{\n tls {tls}\n{servers} {more}\n}}\n\
            route path=\"/\" {{ proxy \"app\"; }}\n"
    )
}

/// Returns `ca` for these files.
fn by(ca: &Files) -> String {
    format!("ca=\"{}\"", ca.certificate.display())
}

/// Returns a count of the status: a name, or a name and a word.
fn total(weir: &Weir, name: &str, word: &str) -> u64 {
    let totals = &status(weir)["totals"][name];
    let value = if word.is_empty() { totals } else { &totals[word] };
    value.as_u64().unwrap_or(0)
}

/// Returns the number of failed TLS handshakes with servers, for whatever reason.
fn failures(weir: &Weir) -> u64 {
    let words = status(weir)["totals"]["upstream_tls_failures"].clone();
    words.as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum()
}

fn is_served(address: SocketAddr) {
    let (mut client, nonce) = (Client::connect(address), nonce());
    client.get(&format!("/?n={nonce}"));
    check_honest(&nonce, &client.reply()).unwrap();
}

/// Returns the status of the response to a request.
fn answered(address: SocketAddr) -> u16 {
    let mut client = Client::connect(address);
    client.get(&format!("/?n={}", nonce()));
    client.reply().status
}

/// Checks the body of a request for `/large`, and responds with 3 MB.
struct Bodies;

const LARGE: usize = 3_000_000;

impl Behaviour for Bodies {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        if !request.target.starts_with("/large") {
            return link.honest(request);
        }
        assert_eq!(request.body.sum, Body::of(&pattern(request.body.length as usize)).sum);
        link.answer(
            &[
                format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n").as_bytes(),
                &pattern(LARGE),
            ]
            .concat(),
        )
    }
}

fn requests_and_large_bodies_pass(io: Io) {
    let (server, scratch) = (Server::start(Bodies), Scratch::new());
    let ca = ca(&scratch, "ca");
    let files = signed(&scratch, &ca, "leaf", "DNS:a.test,IP:127.0.0.1", 9);
    // By name, which weir sends, and by address, which it does not.
    for (name, asked) in [(" name=\"A.test\"", Some("a.test")), ("", None)] {
        let front = Front::start(server.address, serving(&files, None));
        let weir = Weir::start(io, 2, &app(&format!("{}{name}", by(&ca)), &[front.address], ""));
        let mut client = Client::connect(weir.address);
        for length in [0, 1, 16_384, 16_385, LARGE] {
            client.request("POST", "/large", "", &pattern(length));
            let reply = client.reply();
            assert_eq!((reply.status, reply.body.sum), (200, Body::of(&pattern(LARGE)).sum));
        }
        let nonces: Vec<String> = (0..60).map(|_| nonce()).collect();
        let mut bytes = Vec::new();
        for nonce in &nonces {
            client.ask("GET", false);
            bytes.extend_from_slice(
                format!("GET /?n={nonce} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes(),
            );
        }
        client.send(&bytes);
        nonces.iter().for_each(|nonce| check_honest(nonce, &client.reply()).unwrap());
        drop(client);
        assert!(front.names().iter().all(|name| name.as_deref() == asked), "{:?}", front.names());
        assert!(total(&weir, "upstream_tls_handshakes", "") >= 1);
        assert_eq!(failures(&weir), 0);
        weir.stop();
    }
    // Servers are informed of the client's protocol.
    let log = server.finish();
    let proto = |request: &Request| {
        request.fields.first("x-forwarded-proto").unwrap_or_default().to_owned()
    };
    assert!(log.requests.iter().all(|(_, request)| proto(request) == "http"));
}

fn sessions_are_resumed(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let ca = ca(&scratch, "ca");
    let front = Front::start(
        server.address,
        serving(&signed(&scratch, &ca, "leaf", "IP:127.0.0.1", 9), None),
    );
    let weir = Weir::start(io, 1, &app(&by(&ca), &[front.address], "pool \"per-request\""));
    (0..6).for_each(|_| is_served(weir.address));
    assert_eq!(total(&weir, "upstream_tls_handshakes", ""), 6);
    assert_eq!(total(&weir, "upstream_tls_resumed", ""), 5);
    weir.stop();
    server.kill();
}

/// Checks that weir cannot use the only server, for this reason: requests get 5xx, and every report
/// says why.
fn is_refused(weir: &Weir, word: &str) {
    eventually(word, || total(weir, "upstream_tls_failures", word) > 0);
    assert!(matches!(answered(weir.address), 502 | 503));
    eventually("its state", || {
        let server = &status(weir)["upstreams"][0]["servers"][0];
        server["state"] == "down" && server["why"] == word
    });
    eventually("a line", || {
        weir.said().contains("server-unreachable: ") && weir.said().contains(&format!("({word})"))
    });
    assert!(weir.answer(&["status"]).contains(word));
}

const SOON: &str = "connect-retries 1";

fn who_can_t_be_known_is_told_by_word(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let (ours, other) = (ca(&scratch, "ours"), ca(&scratch, "other"));
    let good = signed(&scratch, &ours, "good", "DNS:a.test", 9);
    let expired = signed(&scratch, &ours, "expired", "DNS:a.test", -1);
    let anybody = Weir::start(io, 1, &{
        let front = Front::start(server.address, serving(&expired, None));
        app("verify=#false", &[front.address], "")
    });
    is_served(anybody.address);
    assert!(anybody.said().contains("verify=#false"), "{}", anybody.said());
    anybody.stop();
    for (tls, files, word) in [
        (format!("{} name=\"b.test\"", by(&ours)), &good, "tls-name"),
        // Its address is in no certificate.
        (by(&ours), &good, "tls-name"),
        (format!("{} name=\"a.test\"", by(&ours)), &expired, "tls-expired"),
        (format!("{} name=\"a.test\"", by(&other)), &good, "tls-unknown-ca"),
    ] {
        let front = Front::start(server.address, serving(files, None));
        let weir = Weir::start(io, 1, &app(&tls, &[front.address], SOON));
        is_refused(&weir, word);
        // A repaired server works again automatically.
        if word == "tls-expired" {
            front.set(serving(&good, None));
            eventually("it works", || answered(weir.address) == 200);
            eventually("a line", || weir.said().contains("server-reachable: "));
        }
        weir.stop();
    }
    server.kill();
}

fn a_certificate_in_the_file_of_cas_is_trusted_itself(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    // Self-signed, and by default OpenSSL makes such certificates those of CAs.
    let own = self_signed(&scratch, "own", &["-addext", "subjectAltName=IP:127.0.0.1"]);
    let front = Front::start(server.address, serving(&own, None));
    let weir = Weir::start(io, 1, &app(&by(&own), &[front.address], SOON));
    is_served(weir.address);
    assert_eq!(failures(&weir), 0);
    // Another certificate is not trusted, and its line says what to do.
    weir.stop();
    front.set(serving(
        &self_signed(&scratch, "twin", &["-addext", "subjectAltName=IP:127.0.0.1"]),
        None,
    ));
    let weir = Weir::start(io, 1, &app(&by(&own), &[front.address], SOON));
    is_refused(&weir, "tls-ca-certificate");
    weir.says("put exactly this certificate into the file of `ca`");
    weir.stop();
    let unnamed = self_signed(&scratch, "unnamed", &[]);
    let front = Front::start(server.address, serving(&unnamed, None));
    let weir = Weir::start(io, 1, &app(&by(&unnamed), &[front.address], SOON));
    is_refused(&weir, "tls-no-names");
    weir.stop();
    server.kill();
}

/// rustls rejects a small key, so OpenSSL is the server.
fn a_key_that_can_t_be_used_is_told_by_word(io: Io) {
    let scratch = Scratch::new();
    let files = self_signed(
        &scratch,
        "small",
        &["-newkey", "rsa:1024", "-addext", "subjectAltName=IP:127.0.0.1"],
    );
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = std::process::Command::new("openssl");
    command.args([
        "s_server",
        "-quiet",
        "-www",
        "-cipher",
        "DEFAULT@SECLEVEL=0",
        "-accept",
        &address.to_string(),
    ]);
    command.arg("-cert").arg(&files.certificate).arg("-key").arg(&files.key);
    let quiet = std::process::Stdio::null;
    let mut server =
        command.stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn().expect("openssl is there");
    eventually("it listens", || TcpStream::connect(address).is_ok());
    let weir = Weir::start(io, 1, &app(&by(&files), &[address], SOON));
    is_refused(&weir, "tls-unusable-key");
    weir.stop();
    server.kill().and_then(|()| server.wait()).expect("it ends");
}

/// Starts a server that treats each connection like this.
fn odd_server(deed: impl Fn(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", free_port())).expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || listener.incoming().flatten().for_each(deed));
    address
}

fn who_does_not_speak_tls_is_told_by_word(io: Io) {
    let scratch = Scratch::new();
    let ca = ca(&scratch, "ca");
    let plain = odd_server(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let leaves = odd_server(|mut stream| {
        // Reads first, because unread data would cause a reset.
        let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
    });
    let alert = odd_server(|mut stream| {
        let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
        let _ = stream.write_all(b"\x15\x03\x03\x00\x02\x02\x28");
    });
    for (address, word) in [(plain, "tls-not-spoken"), (leaves, "tls-left"), (alert, "tls-alert")] {
        let weir = Weir::start(io, 1, &app(&by(&ca), &[address], SOON));
        is_refused(&weir, word);
        weir.stop();
    }
}

fn a_handshake_that_hangs_is_a_connect_that_takes_too_long(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let ca = ca(&scratch, "ca");
    let front = Front::start(
        server.address,
        serving(&signed(&scratch, &ca, "leaf", "IP:127.0.0.1", 9), None),
    );
    let (kept, keeps) = std::sync::mpsc::channel();
    let mute = odd_server(move |stream| kept.send(stream).expect("the test waits"));
    let options = "connect-timeout \"2s\"\n connect-retries 1";
    let weir = Weir::start(io, 1, &app(&by(&ca), &[mute, front.address], options));
    eventually("a time-out", || total(&weir, "timeouts", "connect") > 0);
    // The second server is available to all clients.
    (0..10).for_each(|_| is_served(weir.address));
    assert_eq!(failures(&weir), 0);
    weir.stop();
    drop(keeps);
    server.kill();
}

fn a_certificate_is_shown_to_whoever_asks(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let (ours, theirs) = (ca(&scratch, "ours"), ca(&scratch, "theirs"));
    let files = signed(&scratch, &ours, "leaf", "IP:127.0.0.1", 9);
    let shown = |ca: &Files, stem: &str| {
        let files = signed(&scratch, ca, stem, "DNS:weir.test", 9);
        format!(" certificate=\"{}\" key=\"{}\"", files.certificate.display(), files.key.display())
    };
    let front = Front::start(server.address, serving(&files, Some(&theirs)));
    let weir =
        Weir::start(io, 1, &app(&(by(&ours) + &shown(&theirs, "weir")), &[front.address], ""));
    is_served(weir.address);
    let shown_certificates = status(&weir)["certificates"].clone();
    assert_eq!(shown_certificates.as_array().map(Vec::len), Some(1), "{shown_certificates}");
    weir.stop();
    // None, and one that the server does not know: with TLS 1.3 it says so when weir has finished.
    for more in [String::new(), shown(&ours, "stranger")] {
        let weir = Weir::start(io, 1, &app(&(by(&ours) + &more), &[front.address], SOON));
        eventually("an alert", || total(&weir, "upstream_tls_failures", "tls-alert") > 0);
        assert!(matches!(answered(weir.address), 502 | 503));
        let closes =
            |weir: &Weir| status(weir)["upstreams"][0]["servers"][0]["totals"]["closes"].clone();
        eventually("it is shown", || closes(&weir)["tls-alert"].as_u64() > Some(0));
        weir.stop();
    }
    server.kill();
}

fn files_are_read_again(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let (before, after) = (ca(&scratch, "before"), ca(&scratch, "after"));
    let mine = signed(&scratch, &before, "mine", "DNS:weir.test", 9);
    let later = signed(&scratch, &after, "later", "DNS:weir.test", 9);
    let leaf = |ca: &Files, stem: &str| signed(&scratch, ca, stem, "IP:127.0.0.1", 9);
    let front = Front::start(server.address, serving(&leaf(&before, "leaf-1"), Some(&before)));
    let trusted = scratch.path("trusted.pem");
    std::fs::copy(&before.certificate, &trusted).expect("a file");
    let tls = format!(
        "ca=\"{}\" certificate=\"{}\" key=\"{}\"",
        trusted.display(),
        mine.certificate.display(),
        mine.key.display()
    );
    let weir = Weir::start(
        io,
        1,
        &app(&tls, &[front.address], "pool \"per-request\"\n connect-retries 1"),
    );
    is_served(weir.address);
    // The server has a certificate of another CA, and requests one of that.
    front.set(serving(&leaf(&after, "leaf-2"), Some(&after)));
    eventually("it is not trusted", || answered(weir.address) != 200);
    assert!(total(&weir, "upstream_tls_failures", "tls-unknown-ca") > 0);
    // A file without a certificate changes nothing.
    std::fs::write(&trusted, "nonsense").expect("a file");
    eventually("it is told", || weir.said().contains("the previous CAs remain trusted"));
    let new = scratch.path("trusted.new");
    std::fs::copy(&after.certificate, &new).expect("a file");
    std::fs::rename(&new, &trusted).expect("a file");
    mine.replace_by(&later);
    eventually("it is trusted", || answered(weir.address) == 200);
    weir.says("reread the CA certificates in");
    weir.stop();
    server.kill();
}

/// Ends its response with the connection.
struct Closes;

impl Behaviour for Closes {
    fn on_request(&self, link: &mut Link, _: &Request) -> Result<(), Gone> {
        link.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhalf of it, or all of it")?;
        link.fin();
        link.until_closed();
        Err(Gone)
    }
}

fn an_answer_that_is_cut_does_not_look_whole(io: Io) {
    let (server, scratch) = (Server::start(Closes), Scratch::new());
    let ca = ca(&scratch, "ca");
    let config = serving(&signed(&scratch, &ca, "leaf", "IP:127.0.0.1", 9), None);
    let front = Front::start(server.address, config.clone());
    let weir = Weir::start(io, 1, &app(&by(&ca), &[front.address], ""));
    let mut client = Client::connect(weir.address);
    client.get("/");
    assert_eq!(client.reply().body.sum, Body::of(b"half of it, or all of it").sum);
    drop(client);
    weir.stop();
    let mute = Front::start_mute(server.address, config);
    let weir = Weir::start(io, 1, &app(&by(&ca), &[mute.address], ""));
    let mut client = Client::connect(weir.address);
    client.get("/");
    assert!(client.try_reply().is_none(), "nobody says that this is all");
    assert!(total(&weir, "upstream_closes", "cut") > 0);
    weir.stop();
    server.kill();
}

fn probes_speak_tls_too(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let ca = ca(&scratch, "ca");
    let good = serving(&signed(&scratch, &ca, "good", "IP:127.0.0.1", 9), None);
    let expired = serving(&signed(&scratch, &ca, "expired", "IP:127.0.0.1", -1), None);
    let front = Front::start(server.address, good.clone());
    let health = "health path=\"/health\" interval=\"100ms\" fall=1 rise=1";
    let weir = Weir::start(io, 1, &app(&by(&ca), &[front.address], health));
    server.wait("probes", |log| {
        log.requests.iter().filter(|(_, request)| request.target == "/health").count() >= 2
    });
    is_served(weir.address);
    front.set(expired);
    eventually("it is suspended", || {
        let server = &status(&weir)["upstreams"][0]["servers"][0];
        server["state"] == "suspended" && server["why"] == "tls-expired"
    });
    eventually("a line", || {
        weir.said().contains("the last one with: its certificate, or one above it, has expired")
    });
    front.set(good);
    eventually("it is back", || status(&weir)["upstreams"][0]["servers"][0]["state"] == "up");
    is_served(weir.address);
    weir.stop();
    server.kill();
}

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n";
/// Sends the bytes of a tunnel back, with `!` at their end.
struct Sockets;

impl Behaviour for Sockets {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        if !request.fields.has("upgrade") {
            return link.honest(request);
        }
        link.upgrade(&[SWITCH, b"hello"].concat())?;
        link.echo()?;
        link.write(b"!")?;
        Err(Gone)
    }
}

fn bytes_both_ways_through_a_tunnel(io: Io) {
    let (server, scratch) = (Server::start(Sockets), Scratch::new());
    let ca = ca(&scratch, "ca");
    let front = Front::start(
        server.address,
        serving(&signed(&scratch, &ca, "leaf", "IP:127.0.0.1", 9), None),
    );
    let weir = Weir::start(io, 2, &app(&by(&ca), &[front.address], ""));
    let mut client = Client::connect(weir.address);
    client.ask_upgrade();
    client.send(format!("GET /ws HTTP/1.1\r\nHost: a\r\n{UPGRADE}\r\n").as_bytes());
    assert_eq!(client.reply().status, 101);
    assert_eq!(client.tunnel(5), b"hello");
    let sent = pattern(5_000_000);
    let expected = Body::of(&sent);
    let mut writer = client.stream();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            writer.write_all(&sent).expect("the tunnel takes it");
            // One direction ends, the other continues.
            writer.shutdown(std::net::Shutdown::Write).expect("open");
        });
        let back = client.tunnel(5_000_001);
        let (mark, echoed) = back.split_last().expect("bytes");
        assert_eq!((Body::of(echoed).sum, *mark), (expected.sum, b'!'));
    });
    assert!(!client.end().reset);
    drop(client);
    weir.stop();
    server.finish();
}

fn clients_of_one_connection_and_requests_of_their_own(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let ca = ca(&scratch, "ca");
    let expired = serving(&signed(&scratch, &ca, "expired", "IP:127.0.0.1", -1), None);
    let (bad, good) = (
        Front::start(server.address, expired),
        Front::start(
            server.address,
            serving(&signed(&scratch, &ca, "leaf", "IP:127.0.0.1", 9), None),
        ),
    );
    for pool in ["pinned", "per-request", "shared"] {
        // A connection that fails in its handshake has carried nothing, so even requests that must
        // not be sent twice go to another server.
        let weir = Weir::start(
            io,
            1,
            &app(&by(&ca), &[bad.address, good.address], &format!("pool \"{pool}\"")),
        );
        for method in ["GET", "POST"].iter().cycle().take(8) {
            let (mut client, nonce) = (Client::connect(weir.address), nonce());
            client.request(method, &format!("/?n={nonce}"), "", b"");
            check_honest(&nonce, &client.reply())
                .unwrap_or_else(|error| panic!("{pool}, {method}: {error}"));
        }
        eventually("it is told", || total(&weir, "upstream_tls_failures", "tls-expired") > 0);
        weir.stop();
    }
    server.kill();
}

/// A weir that began without any TLS uses it for servers that a reload adds, and for a second
/// server as for the first.
fn servers_come_by_a_reload(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let ca = ca(&scratch, "ca");
    let files = signed(&scratch, &ca, "leaf", "IP:127.0.0.1", 9);
    let fronts = [(); 2].map(|()| Front::start(server.address, serving(&files, None)));
    let [one, other] = [&fronts[0], &fronts[1]].map(|front| front.address);
    let weir = Weir::start(
        io,
        2,
        &format!(
            "upstream \"app\" {{ server \"{}\"; }}\nroute {{ proxy \"app\" }}\n",
            server.address
        ),
    );
    is_served(weir.address);
    assert_eq!(total(&weir, "upstream_tls_handshakes", ""), 0);
    for servers in [&[one][..], &[one, other], &[other]] {
        weir.rewrite(&app(&by(&ca), servers, ""));
        weir.answer(&["reload"]);
        (0..20).for_each(|_| is_served(weir.address));
    }
    fronts.iter().for_each(|front| front.wait(1));
    assert!(total(&weir, "upstream_tls_handshakes", "") >= 2);
    assert_eq!(failures(&weir), 0);
    weir.stop();
    server.kill();
}

fn the_short_form_trusts_the_system(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let ca = ca(&scratch, "ca");
    let front = Front::start(
        server.address,
        serving(&signed(&scratch, &ca, "leaf", "IP:127.0.0.1", 9), None),
    );
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let to = format!("https://{}", front.address);
    let trusted = ca.certificate.display().to_string();
    let arguments = ["reverse", "--io", io.word(), "--listen", &address.to_string(), "--to", &to];
    let weir = Weir::command_with(&arguments, address, &[("SSL_CERT_FILE", &trusted)]);
    is_served(weir.address);
    weir.stop();
    server.kill();
}
