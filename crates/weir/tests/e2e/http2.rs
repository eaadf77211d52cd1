//! Clients with HTTP/2, with the real binary: curl and h2load with and without TLS, a browser,
//! node, and a client written frame by frame for behaviour that programs do not have.
//! docs/http2.md.

use std::net::SocketAddr;

use crate::kit::http2::{DATA, END_STREAM, Http2Client, PING, RST_STREAM, frame};
use crate::kit::tls::certificate;
use crate::kit::{
    Behaviour, Client, Gone, Honest, Io, Link, Scratch, Server, Weir, app, browse, eventually,
    free_port, on_both_drivers, pattern, run,
};
use weir_check::{Body, Request};

on_both_drivers!(
    programs_with_and_without_tls,
    bodies_both_ways,
    a_browser_and_node,
    a_head_a_tail_and_what_stands_between,
    streams_that_are_given_up_count_until_their_server_is_told,
    who_opens_no_window_keeps_nobody_up,
    a_drain_loses_no_stream,
    what_a_client_may_not_do,
    grpc_is_refused,
    malformed_requests_are_answered,
    resets_have_a_budget,
);

/// Returns a listener of HTTP/2 without TLS that also accepts HTTP/1.1.
fn h2c(address: SocketAddr) -> String {
    format!("listen \"{address}\" {{ protocols \"h2c\" \"http/1.1\" }}\n")
}

fn free() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

/// Returns a count of the status.
fn total(weir: &Weir, name: &str) -> u64 {
    let status: serde_json::Value =
        serde_json::from_str(&weir.answer(&["status", "--json"])).expect("JSON");
    status["totals"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {}", status["totals"]))
}

/// Returns what curl got: status, version of HTTP, bytes.
fn curl(arguments: &[&str]) -> String {
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
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Sends this many requests with h2load. Returns whether all responses were fine.
fn h2load(requests: &str, arguments: &[&str]) -> bool {
    let output =
        run("h2load", &[&["-n", requests, "-c", "5", "-m", "20", "-t", "1"], arguments].concat());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let fine = format!("{requests} succeeded, 0 failed, 0 errored, 0 timeout");
    assert!(said.contains(&fine) && said.contains(&format!("{requests} 2xx")), "{said}");
    output.status.success()
}

fn programs_with_and_without_tls(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let files = certificate(&scratch, "ec", &["a.test"], 9);
    let (plain, sealed, pinned) = (free(), free(), free());
    let pool = "upstream \"own\" { pool \"pinned\"; server \"SERVER\"; }\n\
        route host=\"own.test\" path=\"/\" { proxy \"own\"; }\n";
    let pool = pool.replace("SERVER", &server.address.to_string());
    let tls = format!("listen \"{sealed}\" {{ tls {{\n{} }} }}\n", files.row());
    let old =
        format!("listen \"{pinned}\" {{ protocols \"http/1.1\"; tls {{\n{} }} }}\n", files.row());
    let weir =
        Weir::start(io, 2, &format!("{}{tls}{old}{pool}{}", h2c(plain), app(&server, 2, "")));
    let trusted = files.certificate.display().to_string();
    let url = |scheme: &str, address: SocketAddr| format!("{scheme}://{address}/?n=00000000");
    assert!(curl(&["--http2-prior-knowledge", &url("http", plain)]).starts_with("200 2 "));
    assert!(curl(&["--http1.1", &url("http", plain)]).starts_with("200 1.1 "));
    assert!(curl(&["--http2", "--cacert", &trusted, &url("https", sealed)]).starts_with("200 2 "));
    assert!(
        curl(&["--http1.1", "--cacert", &trusted, &url("https", sealed)]).starts_with("200 1.1 ")
    );
    assert!(
        curl(&["--http2", "--cacert", &trusted, &url("https", pinned)]).starts_with("200 1.1 ")
    );
    // Streams cannot share a connection bound to one client: the client returns with HTTP/1.1.
    let host = format!("own.test:{}:127.0.0.1", sealed.port());
    let own = format!("https://own.test:{}/?n=00000000", sealed.port());
    assert!(curl(&["--http2", "-k", "--resolve", &host, &own]).starts_with("200 1.1 "));
    assert!(h2load("2000", &[&url("http", plain)]));
    assert!(h2load("2000", &[&url("https", sealed)]));
    assert_eq!(total(&weir, "http2_streams"), 4003);
    weir.stop();
    server.finish();
}

/// Checks the body of a request. Responds to `/large` with 3 MB, otherwise with the body's length.
struct Bodies;

const LARGE: usize = 3_000_000;

impl Behaviour for Bodies {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        assert_eq!(request.body.sum, Body::of(&pattern(request.body.length as usize)).sum);
        let body = if request.target.starts_with("/large") {
            pattern(LARGE)
        } else {
            request.body.length.to_string().into()
        };
        link.answer(
            &[
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(),
                &body,
            ]
            .concat(),
        )
    }
}

fn bodies_both_ways(io: Io) {
    let (server, scratch, address) = (Server::start(Bodies), Scratch::new(), free());
    let weir = Weir::start(io, 2, &format!("{}{}", h2c(address), app(&server, 2, "")));
    let (sent, got) = (scratch.write("sent", &pattern(LARGE)), scratch.path("got"));
    let (data, url) = (format!("@{}", sent.display()), format!("http://{address}"));
    let fixed =
        ["-sS", "--noproxy", "*", "--http2-prior-knowledge", "-o", got.to_str().expect("text")];
    let upload = ["-H", "Expect:", "--data-binary", &data, &url];
    assert!(run("curl", &[&fixed, &upload[..]].concat()).status.success());
    assert_eq!(std::fs::read_to_string(&got).expect("a file"), LARGE.to_string());
    assert!(run("curl", &[&fixed, &[&*format!("{url}/large")][..]].concat()).status.success());
    assert_eq!(std::fs::read(&got).expect("a file"), pattern(LARGE));
    // Several at once on one connection, with bodies in pieces of unannounced length.
    let mut client = Http2Client::connect(address, &[]);
    let piece = pattern(30_000);
    let asked: Vec<u32> = (0..8)
        .map(|_| {
            let (head, stream) = client.request("POST", "/", &[], true);
            client.send(&[head, frame(DATA, 0, stream, &piece[..16_000])].concat());
            stream
        })
        .collect();
    for stream in &asked {
        client.send(&frame(DATA, END_STREAM, *stream, &piece[16_000..]));
    }
    for stream in asked {
        assert_eq!(client.answer(stream).body, b"30000");
    }
    let large: Vec<u32> = (0..5).map(|_| client.get("/large")).collect();
    for stream in large {
        assert!(client.answer(stream).body == pattern(LARGE), "{stream}");
    }
    weir.stop();
    server.finish();
}

/// The activity of a page: a large download, an upload, and many small things at once.
const SCRIPT: &str = "
async function work() {
  const large = new Uint8Array(await (await fetch('/large')).arrayBuffer());
  const sent = await (await fetch('/sum', { method: 'POST', body: large.slice(0, 400000) })).text();
  const all = await Promise.all([...Array(80).keys()].map(
    n => fetch('/small?' + n).then(answer => answer.text())));
  const total = large.reduce((sum, byte) => sum + byte, 0);
  return `${total}, ${sent}, ${all.filter(text => text == '0').length}`;
}";

/// The same by node's own client: the address comes behind the script.
const NODE: &str = "
const client = require('http2').connect(process.argv[1], { rejectUnauthorized: false });
const fetch = (path, with_ = {}) => new Promise((done, failed) => {
  const head = { ':path': path, ':method': with_.method || 'GET' };
  const request = client.request(head, { endStream: !with_.body });
  const parts = [];
  request.on('data', part => parts.push(part)).on('error', failed);
  request.on('end', () => { const all = Buffer.concat(parts);
    done({ text: () => all.toString(), arrayBuffer: () => all }); });
  if (with_.body) request.end(Buffer.from(with_.body));
});
work().then(text => { console.log(text); client.close(); });
";

/// A page that does all that, and [`Bodies`].
struct Page;

impl Behaviour for Page {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        if request.target != "/" {
            return Bodies.on_request(link, request);
        }
        let show = "work().then(text => document.getElementById('out').textContent = text)";
        let page = format!("<!doctype html><p id=\"out\"></p><script>{SCRIPT}\n{show}</script>");
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n",
            page.len()
        );
        link.answer(&[head.as_bytes(), page.as_bytes()].concat())
    }
}

fn a_browser_and_node(io: Io) {
    let (server, scratch, address) = (Server::start(Page), Scratch::new(), free());
    let files = certificate(&scratch, "ec", &["a.test"], 9);
    let tls = format!("listen \"{address}\" {{ tls {{\n{} }} }}\n", files.row());
    let weir = Weir::start(io, 2, &format!("{tls}{}", app(&server, 2, "")));
    let sum: u64 = pattern(LARGE).iter().map(|byte| u64::from(*byte)).sum();
    let expected = format!("{sum}, 400000, 80");
    let dom = browse(&scratch, &[], &format!("https://{address}/"));
    assert!(dom.contains(&format!("<p id=\"out\">{expected}</p>")), "{dom}");
    let by_browser = total(&weir, "http2_streams");
    let output = run("node", &["-e", &format!("{SCRIPT}\n{NODE}"), &format!("https://{address}")]);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).trim(),
        expected,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // The page, and perhaps its icon; nothing by HTTP/1.1.
    assert!((83..=84).contains(&by_browser), "{by_browser}");
    assert_eq!(total(&weir, "http2_streams"), by_browser + 82);
    assert_eq!(total(&weir, "requests"), by_browser + 82);
    weir.stop();
    server.finish();
}

fn a_head_a_tail_and_what_stands_between(io: Io) {
    let server = Server::start(|link: &mut Link, request: &Request| -> Result<(), Gone> {
        match request.target.as_str() {
            "/trailers" => link.answer(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\
                Trailer: X-Sum\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 7\r\n\r\n",
            ),
            "/hints" => link.answer(
                b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
                HTTP/1.1 204 No Content\r\nConnection: x-gone\r\nX-Gone: 1\r\n\r\n",
            ),
            _ if request.method == "HEAD" => link.answer(
                b"HTTP/1.1 200 OK\r\n\
                Content-Length: 77\r\n\r\n",
            ),
            _ => link.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
        }
    });
    let address = free();
    let weir = Weir::start(io, 1, &format!("{}{}", h2c(address), app(&server, 2, "")));
    let mut client = Http2Client::connect(address, &[]);
    let (head, trailers) = client.request("GET", "/trailers", &[("te", "trailers")], false);
    client.send(&head);
    let answer = client.answer(trailers);
    assert_eq!((answer.body.as_slice(), answer.field("x-sum")), (&b"abc"[..], Some("7")));
    let hints = client.get("/hints");
    let answer = client.answer(hints);
    assert_eq!((answer.statuses.as_slice(), answer.field("x-gone")), (&[103, 204][..], None));
    let (head, no_body) =
        client.request("HEAD", "/", &[("cookie", "a=1"), ("cookie", "b=2")], false);
    client.send(&head);
    let answer = client.answer(no_body);
    assert_eq!(
        (answer.statuses.as_slice(), answer.field("content-length")),
        (&[200][..], Some("77"))
    );
    let (head, upload) =
        client.request("PUT", "/", &[("expect", "100-continue"), ("content-length", "3")], true);
    client.send(&head);
    client.until("100 Continue", |client| client.answers[&upload].statuses == [100]);
    client.send(&frame(DATA, END_STREAM, upload, b"abc"));
    assert_eq!(client.answer(upload).statuses, [100, 200]);
    client.send(&frame(PING, 0, 0, b"12345678"));
    client.until("the answer to a PING", |client| client.pongs == [b"12345678".to_vec()]);
    weir.stop();
    let log = server.finish();
    let (_, head) =
        log.requests.iter().find(|(_, request)| request.method == "HEAD").expect("it came");
    assert_eq!(head.fields.first("cookie"), Some("a=1; b=2"));
    assert_eq!(head.fields.first("host"), Some("a.test"));
}

/// Responds to requests for `/slow` on a signal.
struct Patient;

impl Behaviour for Patient {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        if request.target.starts_with("/slow") {
            link.tell("slow");
            link.await_event("go")?;
        }
        link.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    }
}

fn streams_that_are_given_up_count_until_their_server_is_told(io: Io) {
    let server = Server::start(Patient);
    let address = free();
    let settings = "client { http2 streams=10 }\n";
    let weir = Weir::start(
        io,
        1,
        &format!("{}{settings}{}", h2c(address), app(&server, 50, "pipeline \"off\"\n")),
    );
    let mut client = Http2Client::connect(address, &[]);
    let ask =
        |client: &mut Http2Client| -> Vec<u32> { (0..10).map(|_| client.get("/slow")).collect() };
    let arrived = |log: &crate::kit::Log| {
        log.requests.iter().filter(|(_, request)| request.target == "/slow").count()
    };
    let given_up = ask(&mut client);
    server.wait("ten requests", |log| arrived(log) == 10);
    for stream in given_up {
        client.send(&frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()));
    }
    let later = ask(&mut client);
    eventually("resets are counted", || total(&weir, "http2_streams_reset") == 10);
    // Another client is served meanwhile.
    let mut other = Client::connect(address);
    other.get("/?n=00000000");
    assert_eq!(other.reply().status, 200);
    // The others get their turn when ten ended connections have informed the server, not before.
    server.wait("twenty requests", |log| arrived(log) == 20);
    let status: serde_json::Value =
        serde_json::from_str(&weir.answer(&["status", "--json"])).expect("JSON");
    assert_eq!(
        status["upstreams"][0]["servers"][0]["totals"]["closes"]["client-gone"], 10,
        "{status}"
    );
    server.tell("go");
    for stream in later {
        assert_eq!(client.answer(stream).statuses, [200]);
    }
    assert_eq!(arrived(&server.log()), 20);
    drop(client);
    drop(other);
    weir.stop();
    server.kill();
}

fn who_opens_no_window_keeps_nobody_up(io: Io) {
    let server = Server::start(Bodies);
    let address = free();
    let weir = Weir::start(io, 1, &format!("{}{}", h2c(address), app(&server, 2, "")));
    // Windows of size zero, for every stream.
    let mut client = Http2Client::connect(address, &[(4, 0)]);
    let stalled: Vec<u32> = (0..20).map(|_| client.get("/large")).collect();
    // One client has this many connections aside; the others wait for it.
    let begun = |client: &Http2Client| {
        stalled.iter().filter(|stream| client.answers[stream].statuses == [200]).count()
    };
    client.until("heads", |client| begun(client) >= 16);
    for _ in 0..20 {
        let mut honest = Client::connect(address);
        honest.get("/");
        assert_eq!(honest.reply().status, 200);
    }
    // One stream gets credit.
    client.send(&frame(8, 0, stalled[7], &(LARGE as u32).to_be_bytes()));
    client.send(&frame(8, 0, 0, &(LARGE as u32).to_be_bytes()));
    client.gives_credit = false;
    assert!(client.answer(stalled[7]).body == pattern(LARGE));
    assert!(
        stalled
            .iter()
            .filter(|stream| **stream != stalled[7])
            .all(|stream| client.answers[stream].body.is_empty())
    );
    drop(client);
    weir.stop();
    server.kill();
}

fn a_drain_loses_no_stream(io: Io) {
    let server = Server::start(Patient);
    let address = free();
    let mut weir = Weir::start(io, 2, &format!("{}{}", h2c(address), app(&server, 2, "")));
    let mut client = Http2Client::connect(address, &[]);
    let slow = client.get("/slow");
    server.wait("the request", |log| log.events.iter().any(|event| event == "slow"));
    weir.signal("TERM");
    client.until("GOAWAY", |client| client.goaways.first() == Some(&(0x7fff_ffff, 0)));
    // A request that was already on its way.
    let late = client.get("/late");
    server.tell("go");
    assert_eq!(client.answer(slow).statuses, [200]);
    assert_eq!(client.answer(late).statuses, [200]);
    while !client.closed {
        client.read_frame();
    }
    assert_eq!(client.goaways.last(), Some(&(late, 0)));
    assert!(weir.wait().success());
    server.finish();
}

fn what_a_client_may_not_do(io: Io) {
    let server = Server::start(Patient);
    let address = free();
    // A connection for each: no request waits behind one that the server works on without end.
    let weir =
        Weir::start(io, 1, &format!("{}{}", h2c(address), app(&server, 50, "pipeline \"off\"\n")));
    // Violations of RFC 9113, and of the limits, with the code of the GOAWAY (RFC 9113 §7).
    let settings = frame(4, 0, 0, &[]);
    for (what, bytes, code) in [
        ("DATA on an idle stream", frame(DATA, 0, 99, b"x"), 1),
        ("a window that overflows", frame(8, 0, 0, &0x7fff_ffffu32.to_be_bytes()), 3),
        ("PUSH_PROMISE", frame(5, 4, 99, &[0, 0, 0, 2]), 1),
        ("a frame that is too long", frame(DATA, 0, 3, &[0; 16_385]), 6),
        ("a header block that can't be read", frame(1, 5, 99, &[0xff, 0xff, 0xff, 0xff, 0xff]), 9),
        ("PINGs without end", frame(PING, 0, 0, b"12345678").repeat(2_000), 11),
        ("SETTINGS without end", settings.repeat(2_000), 11),
    ] {
        let mut client = Http2Client::connect(address, &[]);
        // With requests under way: one that a server works on, and one without its body.
        client.get("/slow");
        let (head, _) = client.request("POST", "/", &[], true);
        client.send(&[head, bytes].concat());
        while !client.closed {
            client.read_frame();
        }
        assert_eq!(client.goaways.last().map(|(_, code)| *code), Some(code), "{what}");
    }
    assert!(total(&weir, "http2_connections") >= 7);
    // Other clients are fine.
    let mut client = Http2Client::connect(address, &[]);
    let fine = client.get("/");
    assert_eq!(client.answer(fine).statuses, [200]);
    server.tell("go");
    drop(client);
    eventually("all have left", || total(&weir, "client_connections") == 0);
    weir.stop();
    server.kill();
}

/// gRPC is impossible over HTTP/1.1: weir says so at once, even while the request has no end.
fn grpc_is_refused(io: Io) {
    let server = Server::start(Honest);
    let address = free();
    let weir = Weir::start(io, 1, &format!("{}{}", h2c(address), app(&server, 2, "")));
    let mut client = Http2Client::connect(address, &[]);
    for (media_type, is_refused) in [
        ("application/grpc", true),
        ("application/grpc+proto", true),
        ("Application/gRPC; charset=utf-8", true),
        ("application/grpc-web+proto", false),
        ("application/json", false),
    ] {
        let fields = [("content-type", media_type), ("te", "trailers")];
        let (head, stream) = client.request("POST", "/a.B/C?n=00000000", &fields, true);
        client.send(&head);
        if !is_refused {
            client.send(&frame(DATA, END_STREAM, stream, b"x"));
        }
        let answer = client.answer(stream);
        assert_eq!(answer.statuses, [200], "{media_type}");
        assert_eq!(answer.field("grpc-status"), is_refused.then_some("12"), "{media_type}");
        if is_refused {
            assert_eq!(
                (answer.field("content-type"), answer.body.len()),
                (Some("application/grpc"), 0)
            );
            let message = answer.field("grpc-message").unwrap_or_default();
            assert!(message.contains("gRPC"), "{:?}", answer.fields);
            // Only a client that continues its body gets a reset.
            client.send(&frame(DATA, 0, stream, b"more"));
            client.until("no body is wanted", |client| client.answers[&stream].reset == Some(0));
        }
    }
    weir.stop();
    server.finish();
}

/// A client that gets nothing but RST_STREAM(PROTOCOL_ERROR) may repeat its request without end, so
/// weir responds with the error.
fn malformed_requests_are_answered(io: Io) {
    let server = Server::start(Honest);
    let address = free();
    let weir = Weir::start(io, 1, &format!("{}{}", h2c(address), app(&server, 2, "")));
    let mut client = Http2Client::connect(address, &[]);
    for (name, value, cause) in [
        ("te", "gzip", "connection-field"),
        ("host", "other.test", "host-differs"),
        ("connection", "close", "connection-field"),
        ("X-Capital", "1", "name-invalid"),
        ("content-length", "7", "length-differs"),
    ] {
        let (head, stream) = client.request("GET", "/bad", &[(name, value)], false);
        client.send(&head);
        let answer = client.answer(stream);
        assert_eq!(
            (&answer.statuses[..], answer.ended, answer.reset),
            (&[400][..], true, None),
            "{name}"
        );
        assert_eq!(String::from_utf8_lossy(&answer.body), format!("400 Bad Request: {cause}\n"));
    }
    // If the client goes on with its body, the stream is closed behind the response, with a code
    // that does not invite a retry.
    let (head, stream) = client.request("POST", "/bad", &[("upgrade", "x")], true);
    client.send(&head);
    assert_eq!(client.answer(stream).statuses, [400]);
    client.send(&frame(DATA, 0, stream, b"more"));
    client.until("no body is wanted", |client| client.answers[&stream].reset == Some(0));
    // A body of another length.
    let (head, stream) = client.request("POST", "/bad", &[("content-length", "3")], true);
    client.send(&[head, frame(DATA, END_STREAM, stream, b"ab")].concat());
    let answer = client.answer(stream);
    assert_eq!((&answer.statuses[..], answer.reset), (&[400][..], None));
    // Blanks around a value are not part of it.
    let (head, stream) = client.request("GET", "/v?n=00000000", &[("x-blank", " b ")], false);
    client.send(&head);
    assert_eq!(client.answer(stream).statuses, [200]);
    // Too many of them end the connection, but no other connection.
    let heads: Vec<Vec<u8>> =
        (0..10).map(|_| client.request("GET", "/bad", &[("te", "gzip")], false).0).collect();
    client.send(&heads.concat());
    client.read_until("it ends", |client| client.closed);
    assert_eq!(client.goaways.last().map(|(_, code)| *code), Some(11));
    let mut other = Http2Client::connect(address, &[]);
    let fine = other.get("/v?n=00000001");
    assert_eq!(other.answer(fine).statuses, [200]);
    drop((client, other));
    weir.stop();
    let log = server.finish();
    assert!(
        log.requests.iter().all(|(_, request)| !request.target.starts_with("/bad")),
        "nothing of them was forwarded"
    );
    let blank = log
        .requests
        .iter()
        .find(|(_, request)| request.nonce() == "00000000")
        .expect("it was asked");
    assert_eq!(blank.1.fields.all("x-blank"), ["b"]);
}

fn resets_have_a_budget(io: Io) {
    let server = Server::start(Patient);
    let address = free();
    let weir = Weir::start(io, 1, &format!("{}{}", h2c(address), app(&server, 2, "")));
    // One request after the other is begun and reset, before its body has arrived (CVE-2023-44487).
    let mut client = Http2Client::connect(address, &[]);
    for number in 1..1000 {
        let (head, stream) = client.request("POST", "/", &[], true);
        client.send(&[head, frame(PING, 0, 0, b"12345678")].concat());
        client.read_until("a PING is answered", |client| {
            client.pongs.len() >= number || client.closed
        });
        if client.closed {
            break;
        }
        client.send(&frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()));
    }
    assert_eq!(client.goaways.last().map(|(_, code)| *code), Some(11));
    drop(client);
    eventually("it has left", || total(&weir, "client_connections") == 0);
    // Other clients are fine.
    let mut client = Http2Client::connect(address, &[]);
    let fine = client.get("/");
    assert_eq!(client.answer(fine).statuses, [200]);
    drop(client);
    weir.stop();
    server.kill();
}
