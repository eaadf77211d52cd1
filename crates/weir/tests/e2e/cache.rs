//! Proves: with real sockets and several workers, a cacheable response is fetched once from its
//! server and served by every version of HTTP and with TLS. A herd becomes one request; a client
//! that changes a resource reads its own change; slow readers delay no one else; a server out of
//! step affects only the client of that request. How: servers that count, curl, which parses with
//! an independent library, and clients that check bytes. docs/cache-rules.md.

use std::net::SocketAddr;
use std::process::Command;

use crate::kit::{
    Behaviour, Client, Gone, Io, Link, Scratch, Server, Weir, eventually, free_port,
    on_both_drivers, pattern, run,
};
use weir_check::Request;

on_both_drivers!(
    one_request_for_all,
    a_herd_is_one_request,
    programs_read_it,
    who_changes_reads_what_he_wrote,
    slow_readers_hold_nobody_up,
    a_server_out_of_step,
    stale_while_its_server_is_gone,
);

const LARGE: usize = 3_000_000;

/// Responds by the first letters of the path.
struct Origin;

impl Behaviour for Origin {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        let (control, body) = match request.target.as_str() {
            "/large" => ("max-age=60", pattern(LARGE)),
            "/private" => ("private", b"private".to_vec()),
            "/brief" => ("max-age=1, stale-if-error=600", b"brief".to_vec()),
            "/herd" => {
                link.tell("asked");
                link.await_event("go")?;
                ("max-age=60", b"herd".to_vec())
            }
            target => ("max-age=60", format!("{} {target}", request.method).into_bytes()),
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\nCache-Control: {control}\r\nETag: \"a\"\r\n\
                Content-Length: {}\r\n\r\n",
            body.len()
        );
        if request.target == "/surplus" {
            let own = [head.as_bytes(), &body].concat();
            return link.answer(&[own.clone(), own].concat());
        }
        link.answer(&[head.as_bytes(), if request.method == "HEAD" { b"" } else { &body }].concat())
    }
}

fn text(server: &Server) -> String {
    format!(
        "upstream \"app\" {{ server \"{}\"; }}\n\
            route {{ proxy \"app\"; cache {{ cache-status \"on\"; }} }}\n",
        server.address
    )
}

/// Returns the number of requests to the server with this target.
fn asked(server: &Server, target: &str) -> usize {
    server.log().requests.iter().filter(|(_, request)| request.target == target).count()
}

fn ask(client: &mut Client, method: &str, target: &str, fields: &str) -> (u16, Vec<u8>, String) {
    client.request(method, target, fields, b"");
    let reply = client.reply();
    (reply.status, reply.body.bytes.clone(), reply.fields.all("cache-status").join(", "))
}

/// Waits until a response is stored.
fn await_stored(weir: &Weir, target: &str) {
    eventually("it is stored", || {
        let mut client = Client::connect(weir.address);
        ask(&mut client, "GET", target, "Cache-Control: only-if-cached\r\n").0 == 200
    });
}

fn one_request_for_all(io: Io) {
    let server = Server::start(Origin);
    let weir = Weir::start(io, 4, &text(&server));
    let mut first = Client::connect(weir.address);
    assert_eq!(ask(&mut first, "GET", "/a", "").1, b"GET /a");
    await_stored(&weir, "/a");
    for _ in 0..20 {
        let mut client = Client::connect(weir.address);
        let (status, body, told) = ask(&mut client, "GET", "/a", "");
        assert_eq!((status, body.as_slice()), (200, &b"GET /a"[..]));
        assert!(told.starts_with("weir; hit; ttl="), "{told}");
        assert_eq!(ask(&mut client, "HEAD", "/a", "").0, 200);
        assert_eq!(ask(&mut client, "GET", "/a", "If-None-Match: \"a\"\r\n").0, 304);
        assert_eq!(ask(&mut client, "GET", "/a", "Range: bytes=4-\r\n").1, b"/a");
        assert_eq!(ask(&mut client, "GET", "/private", "").1, b"private");
    }
    assert_eq!((asked(&server, "/a"), asked(&server, "/private")), (1, 20));
    weir.stop();
    server.finish();
}

fn a_herd_is_one_request(io: Io) {
    let server = Server::start(Origin);
    let weir = Weir::start(io, 4, &text(&server));
    let mut clients: Vec<Client> = (0..40).map(|_| Client::connect(weir.address)).collect();
    clients.iter_mut().for_each(|client| client.request("GET", "/herd", "", b""));
    server.wait("it is asked", |log| log.events.iter().any(|event| event == "asked"));
    server.tell("go");
    for client in &mut clients {
        assert_eq!(client.reply().body.bytes, b"herd");
    }
    assert_eq!(asked(&server, "/herd"), 1);
    weir.stop();
    server.finish();
}

fn programs_read_it(io: Io) {
    let (server, scratch) = (Server::start(Origin), Scratch::new());
    let both = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let text = format!("listen \"{both}\" {{ protocols \"h2c\" \"http/1.1\" }}\n{}", text(&server));
    let weir = Weir::start(io, 2, &text);
    let got = scratch.path("got");
    let (to, url) = (got.to_str().expect("text"), format!("http://{both}/large"));
    let expected = pattern(LARGE);
    let versions = ["--http2-prior-knowledge", "--http1.1", "--http1.0"];
    for (round, version) in versions.iter().chain(&versions).enumerate() {
        let curl = |more: &[&str]| {
            run(
                "curl",
                &[&["-sS", "--noproxy", "*", version, "-H", "Host: a", "-o", to], more].concat(),
            )
        };
        let output = curl(&["-w", "%{http_code} %header{age}", &url]);
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        // The first response is fetched for its request, and has no Age.
        assert!(told.starts_with("200 ") && (told.len() > 4) == (round > 0), "{version}: {told}");
        assert!(std::fs::read(&got).expect("a file") == expected, "{version}");
        if round == 0 {
            // Before that a part of it would be fetched from the server.
            await_stored(&weir, "/large");
        }
        let part = curl(&["-r", "1000000-1999999", &url]);
        let is_part = std::fs::read(&got).expect("a file") == expected[1_000_000..2_000_000];
        assert!(part.status.success() && is_part, "{version}");
    }
    assert_eq!(asked(&server, "/large"), 1);
    weir.stop();
    server.finish();
}

fn who_changes_reads_what_he_wrote(io: Io) {
    let server = Server::start(Origin);
    let weir = Weir::start(io, 2, &text(&server));
    let mut client = Client::connect(weir.address);
    for round in 1..=10 {
        assert_eq!(ask(&mut client, "GET", "/a", "").0, 200);
        await_stored(&weir, "/a");
        assert_eq!(ask(&mut client, "DELETE", "/a", "").1, b"DELETE /a");
        let mut other = Client::connect(weir.address);
        assert_eq!(ask(&mut other, "GET", "/a", "Cache-Control: only-if-cached\r\n").0, 504);
        assert_eq!(asked(&server, "/a"), 2 * round);
    }
    weir.stop();
    server.finish();
}

fn slow_readers_hold_nobody_up(io: Io) {
    let server = Server::start(Origin);
    let text = text(&server)
        .replace("\"; }\nroute", "\" connections-min=1 connections=1 connections-max=1; }\nroute");
    let weir = Weir::start(io, 2, &text);
    let mut slow: Vec<Client> = (0..4).map(|_| Client::connect(weir.address)).collect();
    for client in &mut slow {
        client.request("GET", "/large", "", b"");
    }
    await_stored(&weir, "/large");
    let mut client = Client::connect(weir.address);
    assert_eq!(ask(&mut client, "GET", "/b", "").1, b"GET /b");
    for client in &mut slow {
        assert_eq!(client.reply().body.length, LARGE as u64);
    }
    assert_eq!(asked(&server, "/large"), 1);
    weir.stop();
    server.finish();
}

fn a_server_out_of_step(io: Io) {
    let server = Server::start(Origin);
    let weir = Weir::start(io, 1, &text(&server));
    let mut client = Client::connect(weir.address);
    for _ in 0..3 {
        assert_eq!(ask(&mut client, "GET", "/surplus", "").1, b"GET /surplus");
    }
    assert_eq!(asked(&server, "/surplus"), 3);
    weir.stop();
    server.kill();
}

fn stale_while_its_server_is_gone(io: Io) {
    let server = Server::start(Origin);
    let weir = Weir::start(io, 2, &text(&server));
    let mut client = Client::connect(weir.address);
    assert_eq!(ask(&mut client, "GET", "/brief", "").1, b"brief");
    await_stored(&weir, "/brief");
    server.kill();
    eventually("it is stale", || {
        let mut client = Client::connect(weir.address);
        let (status, body, told) = ask(&mut client, "GET", "/brief", "");
        assert_eq!((status, body.as_slice()), (200, &b"brief"[..]));
        told.contains("fwd=stale")
    });
    weir.stop();
}

/// `weir check` accepts what weir runs.
#[test]
fn it_can_be_checked() {
    let scratch = Scratch::new();
    let file = scratch.write(
        "weir.kdl",
        b"listen \"127.0.0.1:1\"\ncache { size \"1GiB\"; }\n\
        upstream \"a\" { server \"127.0.0.1:2\"; }\nroute { proxy \"a\"; cache; }\n",
    );
    let output = crate::kit::finish(
        Command::new(env!("CARGO_BIN_EXE_weir")).args(["check", "-c"]).arg(&file),
    );
    assert!(output.status.success(), "{output:?}");
}
