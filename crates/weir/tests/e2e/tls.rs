//! Clients with TLS, with the real binary: curl and openssl with both versions and both kinds of
//! keys, the kit's own clients through a bridge, certificates by name and replaced under load, and
//! bytes that are not TLS at all. docs/tls.md.
//!
//! `WEIR_EXCHANGES` sets how often certificates are replaced, more often than a test may: `make
//! chaos`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::kit::tls::{Files, bridge, certificate, config, connection, handshake};
use crate::kit::tls_servers::{ca, list, response, signed};
use crate::kit::{
    Behaviour, Client, Gone, Honest, Io, Link, SWITCH, Scratch, Server, Stopping, Weir, app,
    bounded, eventually, free_port, nonce, on_both_drivers, pattern, run, status,
};
use weir_check::upstreams::check_honest;
use weir_check::{Body, Request};

on_both_drivers!(
    programs_with_both_versions_and_both_kinds_of_keys,
    a_chain_whose_parts_share_a_line_is_served_whole,
    large_bodies_keep_alive_and_pipelining,
    servers_and_the_log_are_told,
    bytes_both_ways_through_a_tunnel,
    an_answer_that_is_cut_does_not_look_whole,
    who_speaks_no_tls_or_too_slowly_is_closed,
    the_name_chooses_and_may_be_required,
    sessions_resume_on_their_listener_only,
    certificates_are_exchanged_under_load,
    exchanges_at_each_reload_fail_no_handshake,
    a_handshake_that_is_under_way_survives_the_drain,
    who_waits_is_told_in_the_drain_and_who_is_silent_is_not_waited_for,
    clients_show_who_they_are,
    sessions_resume_with_any_weir_that_has_the_keys,
    another_listener_of_the_port_knows_no_tickets,
    clients_get_the_ocsp_response_of_the_file,
);

/// Returns a TLS listener with these certificates.
fn listen(address: SocketAddr, options: &str, files: &[&Files]) -> String {
    let rows: String = files.iter().map(|files| files.row()).collect();
    format!("listen \"{address}\" {{\n tls {options} {{\n{rows}}}\n}}\n")
}

fn free() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

/// Returns a count of the status: a name, or a name and a word.
fn total(weir: &Weir, name: &str, word: &str) -> u64 {
    let totals = &status(weir)["totals"][name];
    let value = if word.is_empty() { totals } else { &totals[word] };
    value.as_u64().unwrap_or(0)
}

/// Returns what curl got: status, version of HTTP, bytes.
fn curl(arguments: &[&str]) -> Result<String, String> {
    let fixed = [
        "-sS",
        "--noproxy",
        "*",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code} %{http_version} %{size_download}",
    ];
    let output = run("curl", &[&fixed, arguments].concat());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(errors)
    }
}

/// Returns what `openssl s_client` prints when it requests `/`.
fn s_client(address: SocketAddr, arguments: &[&str]) -> String {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &address.to_string(), "-ign_eof"]).args(arguments);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl is there");
    let mut stdin = child.stdin.take().expect("piped");
    stdin
        .write_all(b"GET /?n=00000000 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    drop(stdin);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn programs_with_both_versions_and_both_kinds_of_keys(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let kinds = ["ec", "rsa"].map(|kind| (certificate(&scratch, kind, &["a.test"], 9), free()));
    let listeners: String =
        kinds.iter().map(|(files, address)| listen(*address, "", &[files])).collect();
    let weir = Weir::start(io, 2, &format!("{listeners}{}", app(&server, 2, "")));
    let mut handshakes = 0;
    for (files, address) in &kinds {
        let trusted = files.certificate.display().to_string();
        let url = format!("https://{address}/?n=00000000");
        for version in [&["--tlsv1.2", "--tls-max", "1.2"][..], &["--tlsv1.3"]] {
            let arguments = [&["--cacert", &trusted, &url], version].concat();
            assert!(curl(&arguments).expect("an answer").starts_with("200 2 "), "{version:?}");
            handshakes += 1;
        }
        assert!(
            curl(&["--cacert", &trusted, "--http1.1", &url])
                .expect("an answer")
                .starts_with("200 1.1 ")
        );
        let suite = if trusted.contains("rsa-") { "RSA" } else { "ECDSA" };
        for (arguments, expected) in [
            (&["-tls1_2", "-cipher", &format!("ECDHE-{suite}-AES128-GCM-SHA256")][..], "TLSv1.2"),
            (&["-tls1_2", "-cipher", &format!("ECDHE-{suite}-CHACHA20-POLY1305")], "TLSv1.2"),
            (&["-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256"], "TLSv1.3"),
            (
                &["-tls1_3", "-ciphersuites", "TLS_AES_256_GCM_SHA384", "-groups", "P-384"],
                "TLSv1.3",
            ),
            (
                &["-tls1_3", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256", "-alpn", "http/1.1"],
                "TLSv1.3",
            ),
        ] {
            let said = s_client(
                *address,
                &[&["-CAfile", &trusted, "-verify_return_error"], arguments].concat(),
            );
            assert!(
                said.contains("HTTP/1.1 200 OK") && said.contains(expected),
                "{arguments:?}: {said}"
            );
            assert!(
                said.contains("closed") && !said.contains("unexpected eof"),
                "{arguments:?}: {said}"
            );
            handshakes += 1;
        }
        handshakes += 1;
        // A version that is too old, and a protocol that weir does not have.
        for arguments in
            [&["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"][..], &["-tls1_3", "-alpn", "spdy/3"]]
        {
            assert!(!s_client(*address, arguments).contains("HTTP/1.1 200"), "{arguments:?}");
        }
    }
    assert_eq!(total(&weir, "tls_handshakes", ""), handshakes);
    assert!(total(&weir, "tls_failures", "nothing-in-common") >= 2);
    weir.stop();
    server.finish();
}

/// Two files were put together, and the first had no last line end.
fn a_chain_whose_parts_share_a_line_is_served_whole(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let (root, address) = (ca(&scratch, "root"), free());
    let leaf = signed(&scratch, &root, "leaf", "IP:127.0.0.1", 9);
    let texts = [&leaf, &root]
        .map(|files| std::fs::read_to_string(&files.certificate).expect("it was made"));
    let files = |text: String| Files {
        certificate: scratch.write("chain", text.as_bytes()),
        key: leaf.key.clone(),
    };
    let whole = files([texts[0].trim_end(), &texts[1]].concat());
    let config = format!("{}{}", listen(address, "", &[&whole]), app(&server, 1, ""));
    let weir = Weir::start(io, 1, &config);
    let trusted = root.certificate.display().to_string();
    let said = s_client(address, &["-CAfile", &trusted, "-verify_return_error", "-showcerts"]);
    assert_eq!(said.matches("BEGIN CERTIFICATE").count(), 2, "{said}");
    // weir never serves a part of a chain: the previous one remains.
    files([texts[0].trim_end(), &texts[1].replacen("-----END", "-----EN", 1)].concat());
    eventually("it is told", || weir.said().contains("is damaged: line "));
    let said = s_client(address, &["-CAfile", &trusted, "-verify_return_error", "-showcerts"]);
    assert_eq!(said.matches("BEGIN CERTIFICATE").count(), 2, "{said}");
    weir.stop();
    server.finish();
}

/// Starts weir with one TLS listener of both kinds of keys, and a bridge to it.
fn bridged(io: Io, workers: u32, more: &str, server: &Server) -> (Weir, SocketAddr, Scratch) {
    let (scratch, address) = (Scratch::new(), free());
    let files = certificate(&scratch, "ec", &["bridge.test"], 9);
    let weir = Weir::start(
        io,
        workers,
        &format!("{}{more}{}", listen(address, "", &[&files]), app(server, 2, "")),
    );
    (weir, bridge(address), scratch)
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

fn large_bodies_keep_alive_and_pipelining(io: Io) {
    let server = Server::start(Bodies);
    let (weir, address, _scratch) = bridged(io, 2, "", &server);
    let mut client = Client::connect(address);
    for length in [0, 1, 16_384, 16_385, LARGE] {
        client.request("POST", "/large", "", &pattern(length));
        let reply = client.reply();
        assert_eq!((reply.status, reply.body.sum), (200, Body::of(&pattern(LARGE)).sum));
    }
    // Many in one record, and in the order of the requests.
    let nonces: Vec<String> = (0..60).map(|_| nonce()).collect();
    let mut bytes = Vec::new();
    for nonce in &nonces {
        client.ask("GET", false);
        bytes.extend_from_slice(format!("GET /?n={nonce} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
    }
    client.send(&bytes);
    nonces.iter().for_each(|nonce| check_honest(nonce, &client.reply()).unwrap());
    drop(client);
    assert_eq!(total(&weir, "tls_handshakes", ""), 1);
    weir.stop();
    server.finish();
}

fn servers_and_the_log_are_told(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let log = scratch.path("log");
    let format = "$status $scheme $tls_version $tls_cipher $tls_name $tls_resumed";
    let more = format!("access-log \"{}\" format=\"{format}\"\n", log.display());
    let (weir, address, _files) = bridged(io, 1, &more, &server);
    for address in [address, weir.address] {
        let (mut client, nonce) = (Client::connect(address), nonce());
        client.request("GET", &format!("/?n={nonce}"), "X-Forwarded-Proto: gopher\r\n", b"");
        check_honest(&nonce, &client.reply()).unwrap();
    }
    weir.stop();
    let protos: Vec<String> = server
        .finish()
        .requests
        .iter()
        .map(|(_, request)| {
            request.fields.first("x-forwarded-proto").unwrap_or_default().to_owned()
        })
        .collect();
    assert_eq!(protos, ["https", "http"]);
    let text = std::fs::read_to_string(log).expect("a log");
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("200 https TLSv1.3 TLS_") && lines[0].ends_with(" bridge.test ."),
        "{lines:?}"
    );
    assert_eq!(lines[1], "200 http - - - -");
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
    let server = Server::start(Sockets);
    let (weir, address, _scratch) = bridged(io, 2, "", &server);
    let mut client = Client::connect(address);
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

/// Stops in the middle of a response.
struct Cuts;

impl Behaviour for Cuts {
    fn on_request(&self, link: &mut Link, _: &Request) -> Result<(), Gone> {
        link.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\nhalf of it\r\n")?;
        link.until_acknowledged();
        Err(link.rst())
    }
}

fn an_answer_that_is_cut_does_not_look_whole(io: Io) {
    let server = Server::start(Cuts);
    let (weir, address, _scratch) = bridged(io, 1, "", &server);
    let mut client = Client::connect(address);
    // For such a client the end of the connection ends the response. The bridge resets a connection
    // without a close_notify.
    client.ask("GET", true);
    client.send(b"GET / HTTP/1.0\r\n\r\n");
    let _ = client.try_reply();
    assert!(client.end().reset);
    weir.stop();
    server.kill();
}

/// Reads until the other side closes.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    bounded(stream);
    let mut bytes = Vec::new();
    // A reset also counts as the end.
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

fn who_speaks_no_tls_or_too_slowly_is_closed(io: Io) {
    let (server, scratch, address) = (Server::start(Honest), Scratch::new(), free());
    let files = certificate(&scratch, "ec", &["a.test"], 9);
    let weir = Weir::start(
        io,
        1,
        &format!(
            "{}{}",
            listen(address, "handshake-timeout=\"2s\"", &[&files]),
            app(&server, 1, "")
        ),
    );
    let failed =
        |word: &str, count: u64| eventually(word, || total(&weir, "tls_failures", word) == count);
    // The wait for the port connected and left.
    let left = total(&weir, "tls_failures", "left");
    let mut plain = TcpStream::connect(address).expect("weir accepts");
    plain.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("open");
    assert_eq!(rest(&mut plain), b"");
    failed("not-tls", 1);
    // Nothing, and all of a hello but its end.
    let mut hello = Vec::new();
    connection(&config(), "a.test").write_tls(&mut hello).expect("a hello");
    for bytes in [&[][..], &hello[..hello.len() - 1]] {
        let mut slow = TcpStream::connect(address).expect("weir accepts");
        slow.write_all(bytes).expect("open");
        assert_eq!(rest(&mut slow), b"");
    }
    failed("timeout", 2);
    // A malformed hello gets an alert: fatal, decode error or unexpected message.
    let mut wrong = TcpStream::connect(address).expect("weir accepts");
    wrong.write_all(b"\x16\x03\x01\x00\x04\x01\x00\x00\x00").expect("open");
    let alert = rest(&mut wrong);
    assert!(alert.len() == 7 && alert[0] == 0x15 && alert[5] == 2, "{alert:?}");
    failed("misbehaved", 1);
    drop(TcpStream::connect(address).expect("weir accepts"));
    eventually("the one who left", || total(&weir, "tls_failures", "left") > left);
    // Other clients are served all the while.
    handshake(address, &config(), "a.test").expect("a handshake");
    eventually("nothing stays", || weir.answer(&["status"]).contains("clients 0"));
    weir.stop();
    server.finish();
}

fn the_name_chooses_and_may_be_required(io: Io) {
    let (server, scratch, [lax, strict]) =
        (Server::start(Honest), Scratch::new(), [free(), free()]);
    let files = [&["a.test"][..], &["b.test", "*.b.test"]]
        .map(|names| certificate(&scratch, "ec", names, 9));
    let both = [&files[0], &files[1]];
    let listeners =
        [listen(lax, "", &both), listen(strict, "strict-sni=#true min-version=1.3", &both)]
            .concat();
    let weir = Weir::start(io, 1, &format!("{listeners}{}", app(&server, 1, "")));
    let of = |address: SocketAddr, name: &str, certificate: &Files| {
        let resolve = format!("{name}:{}:127.0.0.1", address.port());
        let url = format!("https://{name}:{}/?n=00000000", address.port());
        curl(&[
            "--resolve",
            &resolve,
            "--cacert",
            &certificate.certificate.display().to_string(),
            &url,
        ])
    };
    for address in [lax, strict] {
        for (name, at) in [("a.test", 0), ("b.test", 1), ("x.b.test", 1), ("X.B.test", 1)] {
            assert!(
                of(address, name, &files[at]).expect("an answer").starts_with("200 "),
                "{name}"
            );
            of(address, name, &files[1 - at]).expect_err("the other certificate");
        }
    }
    let shown = |address, name| handshake(address, &config(), name);
    assert_eq!(shown(lax, "c.test").expect("the first"), shown(lax, "a.test").expect("its own"));
    let refusal = of(strict, "c.test", &files[0]).expect_err("a refusal");
    assert!(refusal.contains("unrecognized name"), "{refusal}");
    assert!(shown(strict, "127.0.0.1").is_err(), "no name at all");
    assert_eq!(total(&weir, "tls_failures", "unknown-name"), 2);
    assert!(curl(&["-k", "--tls-max", "1.2", &format!("https://{strict}/")]).is_err());
    weir.stop();
    server.finish();
}

fn sessions_resume_on_their_listener_only(io: Io) {
    let (server, scratch, [one, other]) = (Server::start(Honest), Scratch::new(), [free(), free()]);
    let files = certificate(&scratch, "ec", &["a.test"], 9);
    let listeners = [listen(one, "", &[&files]), listen(other, "", &[&files])].concat();
    let weir = Weir::start(io, 2, &format!("{listeners}{}", app(&server, 1, "")));
    for version in ["-tls1_2", "-tls1_3"] {
        let session = scratch.path(&format!("session{version}")).display().to_string();
        let reused = |address, how: &str| {
            let said = s_client(address, &[version, how, &session]);
            assert!(said.contains("HTTP/1.1 200 OK"), "{said}");
            said.contains("\nReused, ")
        };
        assert!(!reused(one, "-sess_out"));
        // On whichever worker.
        for _ in 0..4 {
            assert!(reused(one, "-sess_in"), "{version}");
        }
        assert!(!reused(other, "-sess_in"), "{version}");
    }
    assert_eq!(total(&weir, "tls_resumed", ""), 8);
    weir.stop();
    server.finish();
}

fn sessions_resume_with_any_weir_that_has_the_keys(io: Io) {
    let (server, scratch, port) = (Server::start(Honest), Scratch::new(), free_port());
    let (files, keys) = (certificate(&scratch, "ec", &["a.test"], 9), scratch.path("keys"));
    let line = |number: &str| "A".repeat(104) + number + "=\n";
    std::fs::write(&keys, [line("AAA"), line("AAE")].concat()).expect("a writable directory");
    let [one, other] = [1, 2].map(|host| SocketAddr::from(([127, 0, 0, host], port)));
    let elsewhere = free();
    let options = format!("ticket-keys=\"{}\"", keys.display());
    let row = |address| listen(address, &options, &[&files]);
    let first =
        Weir::start(io, 1, &format!("{}{}{}", row(one), row(elsewhere), app(&server, 1, "")));
    let second = Weir::start(io, 1, &format!("{}{}", row(other), app(&server, 1, "")));
    for version in ["-tls1_2", "-tls1_3"] {
        let session = scratch.path(&format!("session{version}")).display().to_string();
        let reused = |address, how: &str| {
            let said = s_client(address, &[version, how, &session]);
            assert!(said.contains("HTTP/1.1 200 OK"), "{said}");
            said.contains("\nReused, ")
        };
        assert!(!reused(one, "-sess_out"));
        assert!(reused(one, "-sess_in") && reused(other, "-sess_in"), "{version}");
        assert!(!reused(elsewhere, "-sess_in"), "{version}: another port");
    }
    // A file that becomes bad changes nothing, and is reported; one with other keys ends the old
    // tickets.
    let session = scratch.path("session-tls1_3").display().to_string();
    let reused = || s_client(other, &["-tls1_3", "-sess_in", &session]).contains("\nReused, ");
    std::fs::write(&keys, "nonsense").expect("a writable directory");
    eventually("the problem", || status(&second)["tls_files"][0]["problem"].is_string());
    let text = second.answer(&["status"]);
    assert!(
        text.contains("is not a key: write 80 bytes in base64")
            && text.contains("the previous content remains in force"),
        "{text}"
    );
    assert!(reused() && !second.said().contains("nonsense"));
    std::fs::write(&keys, line("AAI")).expect("a writable directory");
    eventually("the new key", || !reused());
    first.stop();
    second.stop();
    server.finish();
}

/// With keys of a file: a session that began under one name's certificate, or at a listener that
/// accepts fewer clients, continues only there.
fn another_listener_of_the_port_knows_no_tickets(io: Io) {
    let (server, scratch, port) = (Server::start(Honest), Scratch::new(), free_port());
    let [a, b] = ["a.test", "b.test"].map(|name| certificate(&scratch, "ec", &[name], 9));
    let renewed = certificate(&scratch, "ec", &["a.test"], 30);
    let keys = scratch.write("keys", ("A".repeat(107) + "=\n").as_bytes());
    let options = format!("ticket-keys=\"{}\"", keys.display());
    let at = |host: u8| SocketAddr::from(([127, 0, 0, host], port));
    let (strict, newer) =
        (format!("{options} strict-sni=#true"), format!("{options} min-version=\"1.3\""));
    let rows = [
        listen(at(1), &options, &[&a]),
        listen(at(2), &options, &[&b]),
        listen(at(3), &options, &[&a, &b]),
        listen(at(4), &strict, &[&a]),
        listen(at(5), &newer, &[&a]),
        listen(at(6), &options, &[&renewed]),
    ];
    let weir = Weir::start(io, 1, &format!("{}{}", rows.concat(), app(&server, 1, "")));
    for (version, hosts) in [("-tls1_2", &[2, 3, 4][..]), ("-tls1_3", &[2, 3, 4, 5])] {
        let session = scratch.path(&format!("session{version}")).display().to_string();
        let reused = |host, how: &str| {
            let said = s_client(at(host), &[version, "-servername", "a.test", how, &session]);
            assert!(said.contains("HTTP/1.1 200 OK"), "{version} {host}: {said}");
            said.contains("\nReused, ")
        };
        assert!(!reused(1, "-sess_out"));
        assert!(reused(1, "-sess_in"), "{version}");
        assert!(reused(6, "-sess_in"), "{version}: the same site, as on another host");
        for host in hosts {
            assert!(!reused(*host, "-sess_in"), "{version} {host}");
        }
    }
    weir.stop();
    server.finish();
}

/// Returns a listener whose clients get this OCSP response.
fn with_response(address: SocketAddr, files: &Files, response: &std::path::Path) -> String {
    let row = files.row().replace('\n', &format!(" ocsp=\"{}\"\n", response.display()));
    format!("listen \"{address}\" {{\n tls {{\n{row}}}\n}}\n")
}

fn clients_get_the_ocsp_response_of_the_file(io: Io) {
    let (server, scratch, address) = (Server::start(Honest), Scratch::new(), free());
    let ca = ca(&scratch, "ca");
    let [one, other] =
        ["one", "other"].map(|stem| signed(&scratch, &ca, stem, "DNS:a.test,IP:127.0.0.1", 90));
    let [good, others] = [("good", &one), ("others", &other)]
        .map(|(stem, files)| response(&scratch, &ca, files, stem));
    let used = scratch.path("used");
    std::fs::copy(&good, &used).expect("a writable directory");
    let rest = "upstream \"app\" { server \"127.0.0.1:1\"; }\nroute { proxy \"app\"; }\n";
    for (path, code, text) in [
        (&used, 0, ""),
        (&others, 78, "is not for the certificate"),
        (&one.key, 78, "has no OCSP response (DER)"),
    ] {
        let (found, said) =
            checked(&format!("{}{rest}", with_response(address, &one, path)), &scratch);
        assert!(
            found == Some(code) && said.contains(text) && said.is_empty() == text.is_empty(),
            "{said}"
        );
    }
    let weir = Weir::start(
        io,
        1,
        &format!("{}{}", with_response(address, &one, &used), app(&server, 1, "")),
    );
    let trusted = ca.certificate.display().to_string();
    let said = |version: &str| s_client(address, &["-status", "-CAfile", &trusted, version]);
    let is_there = || said("-tls1_3").contains("OCSP Response Status: successful");
    for version in ["-tls1_2", "-tls1_3"] {
        let said = said(version);
        assert!(
            said.contains("OCSP Response Status: successful") && said.contains("Cert Status: good"),
            "{said}"
        );
        assert!(said.contains("HTTP/1.1 200 OK"), "{said}");
    }
    let problem =
        || status(&weir)["tls_files"][0]["problem"].as_str().unwrap_or_default().to_owned();
    assert_eq!(problem(), "");
    // A response that becomes bad changes nothing; one for another certificate is not shown with
    // the one that is in force.
    std::fs::write(&used, "nonsense").expect("a writable directory");
    eventually("the first problem", || problem().contains("no OCSP response"));
    assert!(is_there());
    std::fs::copy(&others, &used).expect("a writable directory");
    eventually("the second problem", || problem().contains("is not for the certificate"));
    eventually("none", || said("-tls1_3").contains("OCSP response: no response sent"));
    assert!(said("-tls1_3").contains("HTTP/1.1 200 OK"));
    std::fs::copy(&good, &used).expect("a writable directory");
    eventually("the right one", || is_there() && problem().is_empty());
    weir.stop();
    server.finish();
}

fn certificates_are_exchanged_under_load(io: Io) {
    let (server, scratch, address) = (Server::start(Honest), Scratch::new(), free());
    let [used, other, third] = [1, 2, 3].map(|days| certificate(&scratch, "ec", &["a.test"], days));
    let weir =
        Weir::start(io, 2, &format!("{}{}", listen(address, "", &[&used]), app(&server, 1, "")));
    let config = config();
    let shown = || handshake(address, &config, "a.test").expect("a handshake");
    let (first, stop, count) = (shown(), AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let _stopping = Stopping(&stop);
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    shown();
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        used.replace_by(&other);
        eventually("the second certificate", || shown() != first);
        let second = shown();
        // A bad file changes nothing, and is reported.
        std::fs::write(&used.key, "nonsense").expect("a writable directory");
        eventually("the problem", || status(&weir)["certificates"][0]["problem"].is_string());
        assert_eq!(shown(), second);
        let text = weir.answer(&["status"]);
        assert!(
            text.contains("has no private key")
                && text.contains("the previous one remains in force"),
            "{text}"
        );
        used.replace_by(&third);
        eventually("the third certificate", || shown() != second);
        eventually("no problem", || status(&weir)["certificates"][0]["problem"].is_null());
    });
    let said = weir.said();
    assert_eq!(
        (
            said.matches(" again; it expires on ").count(),
            said.matches("the previous certificate remains in force").count()
        ),
        (2, 1)
    );
    assert_eq!(failures(&weir), Vec::<String>::new());
    assert!(count.load(Ordering::Relaxed) > 10);
    weir.stop();
    server.finish();
}

/// Returns why handshakes failed, except for clients that left, as the wait for the port does.
fn failures(weir: &Weir) -> Vec<String> {
    let totals = &status(weir)["totals"]["tls_failures"];
    let words = totals.as_object().into_iter().flat_map(|all| all.keys().cloned());
    words.filter(|word| word != "left").collect()
}

/// Returns how often certificates are replaced.
fn exchanges() -> usize {
    std::env::var("WEIR_EXCHANGES").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

fn exchanges_at_each_reload_fail_no_handshake(io: Io) {
    let (server, scratch, address) = (Server::start(Honest), Scratch::new(), free());
    let [used, one, other] = [1, 2, 3].map(|days| certificate(&scratch, "ec", &["a.test"], days));
    let rest = app(&server, 1, "");
    let weir = Weir::start(io, 2, &format!("{}{rest}", listen(address, "", &[&used])));
    let config = config();
    let shown = || handshake(address, &config, "a.test").expect("a handshake");
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut seen = vec![shown()];
    // A reload waits for it: the next client gets it.
    for files in [&one, &other] {
        used.replace_by(files);
        weir.answer(&["reload"]);
        seen.push(shown());
    }
    assert!(seen[0] != seen[1] && seen[1] != seen[2] && seen[0] != seen[2]);
    std::thread::scope(|scope| {
        let _stopping = Stopping(&stop);
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert!(seen.contains(&shown()));
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for number in 0..exchanges() {
            let is_first = number % 2 == 0;
            used.replace_by(if is_first { &one } else { &other });
            weir.signal("HUP");
            eventually("the exchange", || shown() == seen[if is_first { 1 } else { 2 }]);
        }
    });
    assert_eq!(failures(&weir), Vec::<String>::new());
    println!("{} exchanges, {} handshakes beside them", exchanges(), count.load(Ordering::Relaxed));
    weir.stop();
    server.finish();
}

fn a_handshake_that_is_under_way_survives_the_drain(io: Io) {
    let (server, scratch, address) = (Server::start(Honest), Scratch::new(), free());
    let files = certificate(&scratch, "ec", &["a.test"], 9);
    let mut weir =
        Weir::start(io, 1, &format!("{}{}", listen(address, "", &[&files]), app(&server, 1, "")));
    let mut stream = TcpStream::connect(address).expect("weir accepts");
    bounded(&stream);
    let mut tls = connection(&config(), "a.test");
    tls.write_tls(&mut stream).expect("a hello");
    while tls.wants_read() && tls.is_handshaking() && !tls.wants_write() {
        tls.read_tls(&mut stream).expect("the server's flight");
        tls.process_new_packets().expect("a flight");
    }
    weir.signal("TERM");
    tls.writer().write_all(b"GET /?n=00000000 HTTP/1.1\r\nHost: a\r\n\r\n").expect("room");
    let mut both = rustls::Stream::new(&mut tls, &mut stream);
    let mut answer = Vec::new();
    both.read_to_end(&mut answer).expect("an answer, and a close_notify behind it");
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(weir.wait().code(), Some(0));
    server.finish();
}

fn who_waits_is_told_in_the_drain_and_who_is_silent_is_not_waited_for(io: Io) {
    let (server, scratch, address) = (Server::start(Honest), Scratch::new(), free());
    let files = certificate(&scratch, "ec", &["a.test"], 9);
    let mut weir =
        Weir::start(io, 2, &format!("{}{}", listen(address, "", &[&files]), app(&server, 1, "")));
    let mut silent = TcpStream::connect(address).expect("weir accepts");
    let mut waiting: Vec<_> = (0..4)
        .map(|_| {
            let mut stream = TcpStream::connect(address).expect("weir accepts");
            bounded(&stream);
            let mut tls = connection(&config(), "a.test");
            let mut both = rustls::Stream::new(&mut tls, &mut stream);
            both.write_all(b"GET /?n=00000000 HTTP/1.1\r\nHost: a\r\n\r\n").expect("open");
            assert!(both.read(&mut [0; 12]).is_ok_and(|count| count == 12), "an answer");
            (tls, stream)
        })
        .collect();
    weir.signal("TERM");
    for (tls, stream) in &mut waiting {
        // Without a close_notify that is an error.
        rustls::Stream::new(tls, stream).read_to_end(&mut Vec::new()).expect("a close_notify");
    }
    assert_eq!((weir.wait().code(), rest(&mut silent)), (Some(0), Vec::new()));
    server.finish();
}

/// Returns a certificate without its lines of PEM.
fn base64_of(files: &Files) -> String {
    let text = std::fs::read_to_string(&files.certificate).expect("our file");
    text.lines().filter(|line| !line.starts_with("-----")).collect()
}

fn clients_show_who_they_are(io: Io) {
    let (server, scratch, [must, may]) = (Server::start(Honest), Scratch::new(), [free(), free()]);
    let (own, other) = (ca(&scratch, "partners"), ca(&scratch, "others"));
    let of = |stem: &str, ca: &Files, days| signed(&scratch, ca, stem, "DNS:client.test", days);
    let [good, late, bad] =
        [("good", 9), ("late", -1), ("bad", 9)].map(|(stem, days)| of(stem, &own, days));
    let (strange, files) = (of("strange", &other, 9), certificate(&scratch, "ec", &["a.test"], 9));
    let (crl, log) = (list(&scratch, &own, "crl", &[]), scratch.path("log"));
    let by = |how: &str| format!("client-auth={how} client-ca=\"{}\"", own.certificate.display());
    let require =
        format!("{} client-crl=\"{}\" client-cert-field=#true", by("require"), crl.display());
    let listeners =
        [listen(must, &require, &[&files]), listen(may, &by("optional"), &[&files])].concat();
    let log_row =
        format!("access-log \"{}\" format=\"$status $tls_client_subject\"\n", log.display());
    let weir = Weir::start(io, 1, &format!("{listeners}{log_row}{}", app(&server, 1, "")));
    let trusted = files.certificate.display().to_string();
    let ask = |address: SocketAddr, shown: Option<&Files>, version: &str| {
        let url = format!("https://{address}/?n=00000000");
        let fixed = [
            "--cacert",
            &trusted,
            "--tls-max",
            version,
            "-H",
            "client-cert: :AA==:",
            "-H",
            "Client-Cert-Chain: x",
            &url,
        ];
        let shown = shown
            .map(|files| [&files.certificate, &files.key].map(|path| path.display().to_string()));
        match &shown {
            Some([certificate, key]) => {
                curl(&[&fixed[..], &["--cert", certificate, "--key", key]].concat())
            }
            None => curl(&fixed),
        }
    };
    let refused = |word: &str| total(&weir, "tls_failures", &format!("client-certificate-{word}"));
    for version in ["1.2", "1.3"] {
        assert!(ask(must, Some(&good), version).expect("an answer").starts_with("200 "));
        assert!(ask(may, None, version).expect("an answer").starts_with("200 "));
        assert!(ask(may, Some(&good), version).expect("an answer").starts_with("200 "));
        for (address, shown) in
            [(must, None), (must, Some(&late)), (must, Some(&strange)), (may, Some(&strange))]
        {
            ask(address, shown, version).expect_err("a refusal");
        }
    }
    let refusal = ask(must, None, "1.3").expect_err("a refusal");
    assert!(refusal.contains("certificate required"), "{refusal}");
    assert_eq!(["missing", "expired", "unknown-ca", "bad"].map(refused), [3, 2, 4, 0]);
    // A client without TLS has no certificate either.
    let mut plain = Client::connect(weir.address);
    plain.request("GET", "/?n=00000000", "Client-Cert: :AA==:\r\n", b"");
    assert_eq!(plain.reply().status, 200);
    // A good certificate is revoked, and remains so when the file becomes bad.
    assert!(ask(must, Some(&bad), "1.3").is_ok());
    std::fs::rename(list(&scratch, &own, "newer", &[&bad]), &crl).expect("a writable directory");
    eventually("the newer list", || ask(must, Some(&bad), "1.3").is_err());
    assert_eq!(refused("revoked"), 1);
    std::fs::write(&crl, "nonsense").expect("a writable directory");
    eventually("the problem", || status(&weir)["tls_files"][1]["problem"].is_string());
    let text = weir.answer(&["status"]);
    assert!(
        text.contains("has no revocation list in PEM")
            && text.contains("the previous content remains in force"),
        "{text}"
    );
    assert!(ask(must, Some(&bad), "1.3").is_err() && ask(must, Some(&good), "1.3").is_ok());
    assert_eq!(total(&weir, "tls_resumed", ""), 0);
    weir.stop();
    let mut requests = server.finish().requests;
    // A machine that is so slow that 64 are answered meanwhile has weir rehearse its server.
    requests.retain(|(_, request)| request.fields.first("user-agent") != Some("weir-rehearsal"));
    let shown = |field: &str| {
        requests.iter().map(|(_, request)| request.fields.first(field)).collect::<Vec<_>>()
    };
    let [good_field, bad_field] = [&good, &bad].map(|files| format!(":{}:", base64_of(files)));
    let told = shown("client-cert");
    let one = [Some(good_field.as_str()), None, None];
    assert_eq!(told[..7], [&one[..], &one, &[None]].concat());
    let revoked = told[7..].iter().take_while(|value| **value == Some(bad_field.as_str())).count();
    assert!(revoked > 0 && told[7 + revoked..] == [Some(good_field.as_str())], "{told:?}");
    assert!(shown("client-cert-chain").iter().all(Option::is_none));
    let text = std::fs::read_to_string(log).expect("a log");
    assert_eq!(text.lines().take(3).collect::<Vec<_>>(), ["200 CN=leaf", "200 -", "200 CN=leaf"]);
}

/// Returns what `weir check` says of certificates: the code, and the text.
fn checked(text: &str, scratch: &Scratch) -> (Option<i32>, String) {
    let file = scratch.write("weir.kdl", text.as_bytes());
    let output = run(env!("CARGO_BIN_EXE_weir"), &["check", "-c", &file.display().to_string()]);
    let said =
        String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    (output.status.code(), said.replace("│ ", ""))
}

#[test]
fn weir_check_finds_what_is_wrong_with_certificates() {
    use std::os::unix::fs::PermissionsExt as _;
    let (scratch, address) = (Scratch::new(), free());
    let good = certificate(&scratch, "ec", &["a.test"], 90);
    let [soon, over] = [5, -1].map(|days| certificate(&scratch, "ec", &["b.test"], days));
    let rsa = certificate(&scratch, "rsa", &["c.test"], 90);
    let gone = Files { certificate: scratch.path("gone"), key: good.key.clone() };
    let mixed = Files { certificate: good.certificate.clone(), key: rsa.key.clone() };
    let rest = "upstream \"app\" { server \"127.0.0.1:1\"; }\nroute { proxy \"app\"; }\n";
    for (files, code, text) in [
        (&good, 0, ""),
        (&rsa, 0, ""),
        (&soon, 0, "expires on 20"),
        (&over, 78, "expired on 20"),
        (&gone, 78, "cannot read the certificate"),
        (&mixed, 78, "does not match the certificate"),
    ] {
        let (found, said) = checked(&format!("{}{rest}", listen(address, "", &[files])), &scratch);
        assert_eq!(found, Some(code), "{said}");
        assert!(said.contains(text) && said.is_empty() == text.is_empty(), "{said}");
    }
    std::fs::set_permissions(&good.key, std::fs::Permissions::from_mode(0o644)).expect("our file");
    let (found, said) = checked(&format!("{}{rest}", listen(address, "", &[&good])), &scratch);
    assert!(found == Some(0) && said.contains("all users of this host may read the key"), "{said}");
}

#[test]
fn weir_check_looks_into_what_clients_are_judged_by() {
    let (scratch, address) = (Scratch::new(), free());
    let files = certificate(&scratch, "ec", &["a.test"], 90);
    let (own, other) = (ca(&scratch, "own"), ca(&scratch, "other"));
    let [crl, others] = [("a", &own), ("b", &other)]
        .map(|(stem, ca)| list(&scratch, ca, stem, &[]).display().to_string());
    let authorities = format!("client-ca=\"{}\"", own.certificate.display());
    let rest = "upstream \"app\" { server \"127.0.0.1:1\"; }\nroute { proxy \"app\"; }\n";
    for (options, code, text) in [
        (format!("client-auth=require {authorities}"), 0, ""),
        (format!("client-auth=require {authorities} client-crl=\"{crl}\""), 0, ""),
        (
            format!("client-auth=require {authorities} client-crl=\"{others}\""),
            0,
            "of the CA `CN=own`",
        ),
        (
            format!("client-auth=require {authorities} client-crl=\"{}\"", files.key.display()),
            78,
            "has no revocation list",
        ),
        (format!("client-auth=optional client-ca=\"{crl}\""), 78, "has no certificate in PEM"),
        (authorities, 0, "`client-ca` has no effect"),
    ] {
        let (found, said) =
            checked(&format!("{}{rest}", listen(address, &options, &[&files])), &scratch);
        assert_eq!(found, Some(code), "{said}");
        assert!(said.contains(text) && said.is_empty() == text.is_empty(), "{options}: {said}");
    }
}

#[test]
fn one_certificate_that_has_expired_keeps_nobody_from_running() {
    let (server, scratch, address) = (Server::start(Honest), Scratch::new(), free());
    let over = certificate(&scratch, "ec", &["b.test"], -1);
    let weir = Weir::start(
        Io::Epoll,
        1,
        &format!("{}{}", listen(address, "", &[&over]), app(&server, 1, "")),
    );
    eventually("a line about it", || weir.said().contains("expired on 20"));
    assert!(weir.answer(&["status"]).contains(" expired "));
    handshake(address, &config(), "b.test").expect("a client that does not mind");
    weir.stop();
    server.finish();
}

#[test]
fn from_the_command_line() {
    let (server, scratch, address) = (Server::start(Honest), Scratch::new(), free());
    let files = certificate(&scratch, "ec", &["a.test"], 9);
    let [cert, key] = [&files.certificate, &files.key].map(|path| path.display().to_string());
    let (listen, to) = (address.to_string(), server.address.to_string());
    let weir = Weir::command(
        &["reverse", "--listen", &listen, "--cert", &cert, "--key", &key, "--to", &to],
        address,
    );
    assert!(
        curl(&["--cacert", &cert, &format!("https://{address}/?n=00000000")])
            .expect("an answer")
            .starts_with("200 ")
    );
    weir.stop();
    server.finish();
}
