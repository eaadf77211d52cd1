//! `weir bomb --http2` as a user runs it. Proves: both sides have the same counts, whatever the
//! request, with and without TLS; resets, GOAWAY and servers without HTTP/2 are reported by word; a
//! stalled stream does not burden the others; wrong options are rejected with a remedy. How: the
//! real generator on both drivers, against the real proxy, nginx, and a server written frame by
//! frame.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::thread::JoinHandle;

use crate::kit::http2::{
    DATA, END_STREAM, GOAWAY, HEADERS, RST_STREAM, SETTINGS, frame, header_block,
};
use crate::kit::tls::certificate;
use crate::kit::tls_servers::{Front, serving};
use crate::kit::{
    Behaviour, Gone, Io, Link, Nginx, Scratch, Server, Weir, app, bounded, eventually, finish,
    free_port, on_both_drivers, pattern,
};
use serde_json::{Value, json};
use weir_check::{Body, Request};

on_both_drivers!(
    every_request_is_answered_once,
    bodies_go_both_ways,
    requests_are_due_by_the_clock_and_connections_end_as_told,
    an_nginx_that_leaves_is_left,
    resets_and_goaways_are_told_by_word,
    what_is_late_is_given_up_and_the_connection_goes_on,
    servers_without_http_2_are_told,
    who_stalls_is_no_burden_to_the_others,
);

fn free() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

fn bomb(io: Io, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    finish(command.args(["bomb", "--http2", "--io", io.word()]).args(words))
}

/// Returns its total counts.
fn total(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    let summary: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    summary["total"].clone()
}

/// Returns a listener of HTTP/2 without TLS.
fn h2c(address: SocketAddr) -> String {
    format!("listen \"{address}\" {{ protocols \"h2c\" }}\n")
}

fn status(weir: &Weir, name: &str) -> u64 {
    let status: Value = serde_json::from_str(&weir.answer(&["status", "--json"])).expect("JSON");
    status["totals"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {}", status["totals"]))
}

/// Responds with the sum of the request body; `/large` gives a lot, `/missing` nothing.
struct Bodies;

const LARGE: usize = 300_000;

impl Behaviour for Bodies {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        assert_eq!(request.body.sum, Body::of(&pattern(request.body.length as usize)).sum);
        let (status, body) = match request.target.as_str() {
            "/large" => ("200 OK", pattern(LARGE)),
            "/missing" => ("404 Not Found", Vec::new()),
            _ => ("200 OK", request.body.length.to_string().into_bytes()),
        };
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
        let body = if request.method == "HEAD" { &[][..] } else { &body };
        link.answer(&[head.as_bytes(), body].concat())
    }
}

fn every_request_is_answered_once(io: Io) {
    let (server, scratch) = (Server::start(Bodies), Scratch::new());
    let files = certificate(&scratch, "ec", &["a.test"], 9);
    let (plain, sealed) = (free(), free());
    let tls = format!("listen \"{sealed}\" {{ tls {{\n{} }} }}\n", files.row());
    let weir = Weir::start(io, 2, &format!("{}{tls}{}", h2c(plain), app(&server, 4, "")));
    let trusted = files.certificate.display().to_string();
    let mut asked = 0;
    for (url, more) in [
        (format!("http://{plain}/a?id={{serial}}"), vec!["--streams", "10"]),
        (
            format!("https://{sealed}/a?id={{serial}}"),
            vec!["--streams", "10", "--cacert", &trusted],
        ),
        (
            format!("https://{sealed}/missing"),
            vec!["--cacert", &trusted, "--preset", "browser", "-X", "HEAD"],
        ),
    ] {
        let words = ["-c", "3", "-n", "600", "-t", "2", "--json", "--same-body", &url];
        let told = bomb(io, &[&words[..], &more].concat());
        assert_eq!(told.status.code(), Some(0), "{}", String::from_utf8_lossy(&told.stderr));
        let total = total(&told);
        asked += 600;
        let code = if url.ends_with("/missing") { "404" } else { "200" };
        assert_eq!(total["requests"], json!({ "answered": 600 }), "{total}");
        assert_eq!(total["statuses"], json!({ code: 600 }), "{total}");
        assert_eq!(total["connections"], json!({ "established": 3 }), "{total}");
        assert_eq!((&total["resets"], &total["goaways"]), (&Value::Null, &Value::Null), "{total}");
        let handshakes = if url.starts_with("https") { json!({ "full": 3 }) } else { Value::Null };
        assert_eq!(total["handshakes"], handshakes, "{total}");
        assert_eq!(total["raw"]["count"], 600);
        assert_eq!(status(&weir, "http2_streams"), asked);
    }
    weir.stop();
    let log = server.finish();
    let targets: std::collections::BTreeSet<&str> =
        log.requests.iter().map(|(_, one)| one.target.as_str()).collect();
    assert_eq!(
        (log.requests.len(), targets.len()),
        (1800, 601),
        "each of the first two has a number of its own for each request"
    );
    let browser =
        log.requests.iter().find(|(_, one)| one.target == "/missing").expect("it was asked");
    assert!(browser.1.fields.first("cookie").is_some_and(|cookie| cookie.len() > 1400));
}

fn bodies_go_both_ways(io: Io) {
    let (server, scratch, address) = (Server::start(Bodies), Scratch::new(), free());
    let weir = Weir::start(io, 2, &format!("{}{}", h2c(address), app(&server, 40, "")));
    let file = scratch.write("body", &pattern(200_000));
    let (body, url) = (format!("@{}", file.display()), format!("http://{address}"));
    // More at once than any window allows.
    let words = ["-c", "2", "--streams", "20", "-n", "100", "--json", "--same-body"];
    let sent = total(&bomb(io, &[&words[..], &["--body", &body, &url]].concat()));
    assert_eq!(sent["requests"], json!({ "answered": 100 }), "{sent}");
    assert!(sent["bytes_out"].as_u64().is_some_and(|bytes| bytes > 20_000_000), "{sent}");
    let got = total(&bomb(io, &[&words[..], &[&*format!("{url}/large")]].concat()));
    assert_eq!(
        (&got["requests"], &got["statuses"]),
        (&json!({ "answered": 100 }), &json!({ "200": 100 })),
        "{got}"
    );
    assert!(got["bytes_in"].as_u64().is_some_and(|bytes| bytes > 30_000_000), "{got}");
    weir.stop();
    let log = server.finish();
    let whole = log
        .requests
        .iter()
        .filter(|(_, one)| one.method == "POST" && one.body.length == 200_000)
        .count();
    assert_eq!(whole, 100);
}

fn requests_are_due_by_the_clock_and_connections_end_as_told(io: Io) {
    let (server, address) = (Server::start(Bodies), free());
    let weir = Weir::start(io, 1, &format!("{}{}", h2c(address), app(&server, 4, "")));
    let url = format!("http://{address}/");
    let words = ["-c", "2", "--streams", "4", "-n", "200", "--json", &url];
    let paced = total(&bomb(io, &[&words[..], &["-R", "2000"]].concat()));
    assert_eq!(paced["requests"], json!({ "answered": 200 }), "{paced}");
    assert_eq!(
        (&paced["corrected"]["count"], &paced["due_per_second"]),
        (&200.into(), &Value::Null),
        "{paced}"
    );
    let often = total(&bomb(io, &[&words[..], &["--close-every", "5"]].concat()));
    assert_eq!(often["requests"], json!({ "answered": 200 }), "{often}");
    let made = often["connections"]["established"].as_u64().expect("a number");
    assert!((40..=44).contains(&made), "{often}");
    assert_eq!(often["ends"], json!({ "ours": made }), "{often}");
    weir.stop();
    server.finish();
}

fn an_nginx_that_leaves_is_left(io: Io) {
    let (plain, sealed, scratch) = (free(), free(), Scratch::new());
    let files = certificate(&scratch, "rsa", &["a.test"], 9);
    let (certificate, key) = (files.certificate.display(), files.key.display());
    let more = format!(
        "listen {plain} http2; listen {sealed} ssl http2;
         ssl_certificate {certificate}; ssl_certificate_key {key};
         keepalive_requests 50;"
    );
    let _nginx = Nginx::start(&[("small", b"abc"), ("large", &pattern(LARGE))], &more);
    for url in [format!("http://{plain}/small"), format!("https://{sealed}/large")] {
        let tls: &[&str] = if url.starts_with("https") { &["--insecure"] } else { &[] };
        // One stream at a time: none is under way when the server leaves.
        let one = total(&bomb(
            io,
            &[&["-c", "2", "-n", "400", "--json", "--same-body", &url], tls].concat(),
        ));
        assert_eq!(one["requests"], json!({ "answered": 400 }), "{one}");
        assert_eq!(one["goaways"], json!({ "no-error": 8 }), "{one}");
        assert!(one["ends"]["announced"].as_u64().is_some_and(|ends| ends >= 7), "{one}");
        // Requests under way have no response, and are reported.
        let many = ["-c", "2", "--streams", "10", "-n", "400", "--json", "--same-body", &url];
        let many = total(&bomb(io, &[&many[..], tls].concat()));
        let of = |word: &str| many["requests"][word].as_u64().unwrap_or(0);
        assert_eq!(of("answered") + of("not_taken"), 400, "{many}");
        assert!(of("answered") >= 300 && many["goaways"]["no-error"].as_u64() >= Some(6), "{many}");
    }
}

/// Starts a server of HTTP/2 by hand: `answer` returns what to send for each request, by its number
/// on the connection and its stream. It ends when it has had `connections` of them.
fn by_hand(
    connections: usize,
    answer: impl Fn(usize, u32) -> Vec<u8> + Send + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let serve = move || {
        for _ in 0..connections {
            let (mut far, _) = listener.accept().expect("a client");
            bounded(&far);
            serve_by_hand(&mut far, &answer);
        }
    };
    (address, std::thread::spawn(serve))
}

/// Serves until the client closes.
fn serve_by_hand(far: &mut TcpStream, answer: &impl Fn(usize, u32) -> Vec<u8>) {
    let mut preface = [0; 24];
    far.read_exact(&mut preface).expect("the preface");
    assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    far.write_all(&[frame(SETTINGS, 0, 0, &[]), frame(SETTINGS, 1, 0, &[])].concat())
        .expect("it reads");
    let (mut head, mut requests) = ([0; 9], 0);
    while far.read_exact(&mut head).is_ok() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        far.read_exact(&mut payload).expect("a whole frame");
        if head[3] == HEADERS {
            let said = answer(requests, u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
            requests += 1;
            // A client that has left needs no response.
            let _ = far.write_all(&said);
        }
    }
}

fn ok(stream: u32, length: usize, flags: u8) -> Vec<u8> {
    frame(
        HEADERS,
        4 | flags,
        stream,
        &header_block(&[(":status", "200"), ("content-length", &length.to_string())]),
    )
}

fn resets_and_goaways_are_told_by_word(io: Io) {
    // In turn: refused, calmed, cut off within a body, shorter than announced, complete; then the
    // server leaves with a reason.
    let (address, server) = by_hand(2, |nth, stream| match nth {
        0 => frame(RST_STREAM, 0, stream, &7u32.to_be_bytes()),
        1 => frame(RST_STREAM, 0, stream, &11u32.to_be_bytes()),
        2 => [
            ok(stream, 5, 0),
            frame(DATA, 0, stream, b"abc"),
            frame(RST_STREAM, 0, stream, &2u32.to_be_bytes()),
        ]
        .concat(),
        3 => [ok(stream, 5, 0), frame(DATA, END_STREAM, stream, b"abc")].concat(),
        4 => [ok(stream, 3, 0), frame(DATA, END_STREAM, stream, b"abc")].concat(),
        _ => frame(GOAWAY, 0, 0, &[&(stream - 2).to_be_bytes()[..], &11u32.to_be_bytes()].concat()),
    });
    let url = format!("http://{address}/");
    let told = bomb(io, &["-c", "1", "-n", "12", "--json", &url]);
    let total = total(&told);
    let requests =
        json!({ "answered": 2, "not_http": 2, "reset": 4, "truncated": 2, "not_taken": 2 });
    assert_eq!(total["requests"], requests, "{total}");
    assert_eq!(
        total["resets"],
        json!({ "refused-stream": 2, "enhance-your-calm": 2, "internal-error": 2 }),
        "{total}"
    );
    assert_eq!(total["goaways"], json!({ "enhance-your-calm": 2 }), "{total}");
    assert_eq!(total["connections"]["established"], 2, "{total}");
    server.join().expect("it saw what it had to see");
    let (address, server) =
        by_hand(1, |_, stream| frame(RST_STREAM, 0, stream, &11u32.to_be_bytes()));
    let told = bomb(io, &["-c", "1", "-n", "3", &format!("http://{address}/")]);
    let shown = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(
        shown.contains("3 reset without a response")
            && shown.contains("resets       3 enhance-your-calm"),
        "{shown}"
    );
    server.join().expect("it saw what it had to see");
}

fn what_is_late_is_given_up_and_the_connection_goes_on(io: Io) {
    // Every second request has no response.
    let (address, server) =
        by_hand(1, |nth, stream| if nth % 2 == 0 { ok(stream, 0, END_STREAM) } else { Vec::new() });
    let url = format!("http://{address}/");
    let total = total(&bomb(
        io,
        &["-c", "1", "--streams", "2", "-n", "10", "--timeout", "50ms", "--json", &url],
    ));
    assert_eq!(total["requests"], json!({ "answered": 5, "timed_out": 5 }), "{total}");
    assert_eq!(total["connections"], json!({ "established": 1 }), "{total}");
    server.join().expect("it saw what it had to see");
}

fn servers_without_http_2_are_told(io: Io) {
    let (server, scratch) = (Server::start(Bodies), Scratch::new());
    let files = certificate(&scratch, "ec", &["a.test"], 9);
    let (plain, sealed) = (free(), free());
    let both = "protocols \"http/1.1\"";
    let tls = format!("listen \"{sealed}\" {{ {both}; tls {{\n{} }} }}\n", files.row());
    let weir = Weir::start(
        io,
        1,
        &format!("listen \"{plain}\" {{ {both} }}\n{tls}{}", app(&server, 1, "")),
    );
    let ask = |url: &str| {
        let tls: &[&str] = if url.starts_with("https") { &["-k"] } else { &[] };
        bomb(io, &[&["-c", "1", "-n", "3", "--json", url], tls].concat())
    };
    let refused = total(&ask(&format!("http://{plain}/")));
    assert_eq!(refused["requests"], json!({ "not_http": 3 }), "{refused}");
    let alerted = ask(&format!("https://{sealed}/"));
    assert_eq!(alerted.status.code(), Some(1));
    let alerted = total(&alerted);
    assert_eq!(
        (&alerted["connections"]["no_tls"], &alerted["handshakes"]["alert"]),
        (&3.into(), &3.into()),
        "{alerted}"
    );
    // A server that does not know it stays silent.
    let front = Front::start(server.address, serving(&files, None));
    let ignored = ask(&format!("https://{}/", front.address));
    assert_eq!(ignored.status.code(), Some(1));
    let ignored = total(&ignored);
    assert_eq!(
        (&ignored["connections"], &ignored["requests"]),
        (&json!({ "no_http2": 3 }), &json!({})),
        "{ignored}"
    );
    weir.stop();
    drop(front);
    server.kill();
}

fn who_stalls_is_no_burden_to_the_others(io: Io) {
    let (server, address) = (Server::start(Bodies), free());
    let weir = Weir::start(io, 2, &format!("{}{}", h2c(address), app(&server, 4, "")));
    let url = format!("http://{address}/");
    let classes = [
        "stalled: behave=stalled, connections=5, streams=20, path=/large",
        "honest: connections=4, streams=5",
    ];
    let words = ["-d", "1s", "--json", &url, "--class", classes[0], "--class", classes[1]];
    let told = bomb(io, &words);
    let summary: Value = serde_json::from_slice(&told.stdout).expect("JSON");
    let [stalled, honest] = [0, 1].map(|at| &summary["classes"][at]);
    assert!(honest["requests"]["answered"].as_u64().is_some_and(|count| count > 0), "{honest}");
    let others = ["reset", "closed", "truncated", "timed_out", "not_http"];
    assert!(others.iter().all(|word| honest["requests"][word].is_null()), "{honest}");
    // Heads come, bodies do not: streams that are not reset are unfinished.
    assert!(stalled["requests"]["answered"].is_null(), "{stalled}");
    assert!(stalled["bytes_in"].as_u64().is_some_and(|bytes| bytes < LARGE as u64), "{stalled}");
    eventually("all have left", || status(&weir, "client_connections") == 0);
    weir.stop();
    server.kill();
}

#[test]
fn what_means_nothing_is_refused_with_the_way_out() {
    let nobody = free();
    let (plain, sealed) = (format!("http://{nobody}/"), format!("https://{nobody}/"));
    for (words, way_out) in [
        (vec!["--streams", "3", &plain], "add --http2"),
        (vec!["--http2", "--streams", "3", "--pipeline", "3", &plain], "with --http2 use streams"),
        (vec!["--http2", "--streams", "0", &plain], "from 1 to 1024"),
        (vec!["--http2", "--proxy", "127.0.0.1:1", &plain], "remove --http2 or --proxy"),
        (vec!["--http2", "--pieces", "1/1ms", &plain], "remove --http2"),
        (vec!["--http2", "-H", "Connection: close", &plain], "remove the header, or --http2"),
        (vec!["--http2", "-k", "--class", "a: behave=slow-head", &sealed], "remove --http2"),
        (vec!["--http2", "--class", "a: pipeline=2", &plain], "with --http2 use streams"),
        (vec!["--class", "a: streams=2", &plain], "add --http2"),
        (vec!["--class", "a: behave=stalled", &plain], "add --http2"),
        (
            vec!["--http2", "--class", "a: behave=stalled", "-n", "3", &plain],
            "needs a duration (-d)",
        ),
    ] {
        let told = finish(Command::new(env!("CARGO_BIN_EXE_weir")).arg("bomb").args(&words));
        let said = String::from_utf8_lossy(&told.stderr);
        assert!(told.status.code() == Some(2) && said.contains(way_out), "{words:?}: {said}");
    }
}
