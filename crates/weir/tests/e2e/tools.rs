//! The programs that users have, through the real binary: curl, wrk, h2load, nginx, and weir's own
//! origin.

use std::process::Output;

use crate::kit::{
    Behaviour, Gone, Honest, Io, Link, Nginx, Scratch, Server, Weir, app, free_port,
    on_both_drivers, pattern, run,
};
use weir_check::{Body, Request};

on_both_drivers!(
    curl_against_nginx,
    curl_bodies_both_ways,
    curl_http_10_keep_alive_and_expect,
    wrk_and_h2load_against_nginx,
    load_against_weir_origin,
    reverse_without_a_file,
);

/// Runs curl against weir and returns what it printed; it must succeed.
fn curl(arguments: &[&str]) -> Vec<u8> {
    let output = run("curl", &[&["-sS", "--max-time", "20"], arguments].concat());
    assert!(
        output.status.success(),
        "curl {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

/// Configures a route to the server at this address.
fn to(address: impl std::fmt::Display, connections: u32) -> String {
    format!(
        "upstream \"app\" {{ server \"{address}\" connections={connections}; }}\n\
            route {{ proxy \"app\" }}\n"
    )
}

fn curl_against_nginx(io: Io) {
    let large = pattern(30_000_000);
    let nginx = Nginx::start(&[("small", b"abc"), ("large", &large)], "gzip off;");
    let weir = Weir::start(io, 2, &to(nginx.address, 4));
    let url = |path: &str| format!("http://{}{path}", weir.address);
    assert_eq!(curl(&[&url("/small")]), b"abc");
    assert!(curl(&[&url("/large")]) == large, "a large file");
    let head = text(&curl(&["-I", &url("/large")]));
    assert!(
        head.contains("200 OK") && head.to_lowercase().contains("content-length: 30000000"),
        "{head}"
    );
    assert_eq!(curl(&["-r", "10-19", &url("/large")]), large[10..20]);
    // Several URLs on one connection.
    let both = text(&curl(&["-w", "%{num_connects} ", &url("/small"), &url("/small")]));
    assert_eq!(both, "abc1 abc0 ");
    let etag = text(&curl(&["-I", &url("/small")]));
    let etag = etag
        .lines()
        .find_map(|line| line.strip_prefix("ETag: "))
        .expect("nginx sends it")
        .trim()
        .to_owned();
    let code = curl(&[
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "-H",
        &format!("If-None-Match: {etag}"),
        &url("/small"),
    ]);
    assert_eq!(text(&code), "304");
    assert_eq!(text(&curl(&["-o", "/dev/null", "-w", "%{http_code}", &url("/nothing")])), "404");
    weir.stop();
}

/// Responds with the method of the request, and with the length and the sum of its body.
struct Sums;

impl Behaviour for Sums {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        let body = format!("{} {} {}", request.method, request.body.length, request.body.sum);
        link.answer(
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes(),
        )
    }
}

fn curl_bodies_both_ways(io: Io) {
    let server = Server::start(Sums);
    let weir = Weir::start(io, 2, &app(&server, 2, ""));
    let scratch = Scratch::new();
    for size in [0, 1, 1000, 70_000, 20_000_000] {
        let bytes = pattern(size);
        let file = format!("@{}", scratch.write("body", &bytes).display());
        let expected = |method: &str| format!("{method} {size} {}", Body::of(&bytes).sum);
        let url = format!("http://{}/sum", weir.address);
        assert_eq!(text(&curl(&["--data-binary", &file, &url])), expected("POST"));
        let chunked =
            ["-H", "Transfer-Encoding: chunked", "-X", "PUT", "--data-binary", &file, &url];
        assert_eq!(text(&curl(&chunked)), expected("PUT"));
        let expecting = ["-H", "Expect: 100-continue", "--data-binary", &file, &url];
        assert_eq!(text(&curl(&expecting)), expected("POST"));
    }
    weir.stop();
    server.finish();
}

fn curl_http_10_keep_alive_and_expect(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    let url = |nonce: &str| format!("http://{}/x?n={nonce}", weir.address);
    assert_eq!(text(&curl(&["--http1.0", &url("0000000a")])), "answer 0000000a");
    let kept = ["--http1.0", "-H", "Connection: keep-alive", "-w", "%{num_connects} "];
    let both = text(&curl(&[&kept[..], &[&url("0000000b"), &url("0000000c")]].concat()));
    assert_eq!(both, "answer 0000000b1 answer 0000000c0 ");
    for method in ["OPTIONS", "DELETE", "PATCH", "PROPFIND"] {
        assert_eq!(text(&curl(&["-X", method, &url("0000000d")])), "answer 0000000d", "{method}");
    }
    let via = text(&curl(&["-i", &url("0000000e")]));
    assert!(via.contains("Via: 1.1 weir"), "{via}");
    weir.stop();
    server.finish();
}

/// Returns the number before a word of a report.
fn number_before(report: &str, word: &str) -> u64 {
    let at = report.find(word).unwrap_or_else(|| panic!("no {word:?} in {report}"));
    let digits: String =
        report[..at].trim_end().chars().rev().take_while(char::is_ascii_digit).collect();
    digits
        .chars()
        .rev()
        .collect::<String>()
        .parse()
        .unwrap_or_else(|_| panic!("no number before {word:?} in {report}"))
}

/// Checks that a load has not a single error.
fn load(weir: &Weir, path: &str) {
    let url = format!("http://{}{path}", weir.address);
    let report = |output: Output| text(&output.stdout) + &text(&output.stderr);
    let wrk = report(run("wrk", &["-t2", "-c50", "-d1s", &url]));
    assert!(number_before(&wrk, "requests in") > 0, "{wrk}");
    assert!(!wrk.contains("Socket errors") && !wrk.contains("Non-2xx"), "{wrk}");
    let h2load = report(run("h2load", &["--h1", "-n5000", "-c20", "-m10", &url]));
    assert_eq!(number_before(&h2load, " succeeded"), 5000, "{h2load}");
    assert!(h2load.contains(", 0 3xx, 0 4xx, 0 5xx"), "{h2load}");
}

fn wrk_and_h2load_against_nginx(io: Io) {
    // It closes each connection after 100 requests, as many servers do.
    let nginx =
        Nginx::start(&[("small", b"abc"), ("page", &[b'x'; 20_000])], "keepalive_requests 100;");
    let weir = Weir::start(io, 2, &to(nginx.address, 8));
    load(&weir, "/small");
    load(&weir, "/page");
    weir.stop();
}

fn load_against_weir_origin(io: Io) {
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let origin = Weir::command(
        &["origin", "--listen", &address, "--io", io.word()],
        address.parse().expect("valid"),
    );
    let weir = Weir::start(io, 2, &to(&address, 3));
    load(&weir, "/?size=16");
    let url = |path: &str| format!("http://{}{path}", weir.address);
    assert_eq!(curl(&[&url("/?size=1000000")]).len(), 1_000_000);
    assert_eq!(curl(&[&url("/?size=300000&chunked=1")]).len(), 300_000);
    assert_eq!(curl(&[&url("/?size=5&close=1")]).len(), 5);
    assert_eq!(
        text(&curl(&["-o", "/dev/null", "-w", "%{http_code}", &url("/?status=503&size=1")])),
        "503"
    );
    let echo = text(&curl(&["-H", "X-Thing: 1", "--data", "hello", &url("/echo")]));
    assert!(
        echo.contains("X-Thing: 1") && echo.contains("hello") && echo.contains("CDN-Loop: weir"),
        "{echo}"
    );
    assert!(text(&curl(&[&url("/page")])).contains("<html"), "the demo's page");
    let stats = text(&curl(&[&format!("http://{address}/__stats")]));
    assert!(stats.trim_start().starts_with('{') && stats.contains("\"requests\""), "{stats}");
    weir.stop();
    origin.stop();
}

fn reverse_without_a_file(io: Io) {
    let server = Server::start(Honest);
    let listen = format!("127.0.0.1:{}", free_port());
    let to = server.address.to_string();
    let arguments = ["reverse", "--listen", &listen, "--to", &to, "--io", io.word()];
    let weir = Weir::command(&arguments, listen.parse().expect("valid"));
    assert_eq!(text(&curl(&[&format!("http://{listen}/x?n=0000000f")])), "answer 0000000f");
    weir.stop();
    server.finish();
}
