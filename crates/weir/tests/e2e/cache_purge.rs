//! Proves: an allowed client purges the responses of a URL by PURGE, with HTTP/1.1, in the middle
//! of a pipeline, and with HTTP/2, and learns their number. Another client gets 403 and changes
//! nothing, even behind a trusted proxy that is allowed. Where no client is allowed, PURGE is a
//! method like any other. How: the real binary, a server that counts, clients on addresses of
//! loopback. docs/cache-rules.md.

use std::net::SocketAddr;

use weir_check::Request;

use crate::kit::{
    Client, Io, Link, Server, Weir, eventually, free_port, on_both_drivers, run, status,
};

on_both_drivers!(whoever_may, whoever_may_not, behind_a_trusted_proxy, by_http2, where_nobody_may);

fn world(io: Io, more: &str, route: &str) -> (Server, Weir) {
    let server = Server::start(|link: &mut Link, request: &Request| {
        let body = format!("{} {}", request.method, request.target);
        let lines = format!(
            "Cache-Control: max-age=600\r\nVary: X-By\r\nContent-Length: {}\r\n",
            body.len()
        );
        link.answer(format!("HTTP/1.1 200 OK\r\n{lines}\r\n{body}").as_bytes())
    });
    let text = format!(
        "{more}upstream \"app\" {{ server \"{}\"; }}\n\
            route {{ proxy \"app\"; cache {{ {route} }} }}\n",
        server.address
    );
    let weir = Weir::start(io, 2, &text);
    (server, weir)
}

fn ask(weir: &Weir, method: &str, target: &str, fields: &str) -> (u16, String) {
    let mut client = Client::connect(weir.address);
    client.request(method, target, fields, b"");
    let reply = client.reply();
    (reply.status, String::from_utf8_lossy(&reply.body.bytes).into_owned())
}

fn is_stored(weir: &Weir, target: &str, fields: &str) -> bool {
    ask(weir, "GET", target, &format!("Cache-Control: only-if-cached\r\n{fields}")).0 == 200
}

fn store(weir: &Weir, target: &str, fields: &str) {
    assert_eq!(ask(weir, "GET", target, fields).0, 200);
    eventually("it is stored", || is_stored(weir, target, fields));
}

fn whoever_may(io: Io) {
    let (server, weir) = world(io, "", "purge-from \"10.0.0.0/8\" \"127.0.0.1\"");
    store(&weir, "/a", "");
    store(&weir, "/a", "X-By: 1\r\n");
    store(&weir, "/b", "");
    assert_eq!(ask(&weir, "PURGE", "/a", ""), (200, "purged 2 responses\n".to_owned()));
    assert!(
        !is_stored(&weir, "/a", "")
            && !is_stored(&weir, "/a", "X-By: 1\r\n")
            && is_stored(&weir, "/b", "")
    );
    assert_eq!(ask(&weir, "PURGE", "/a", ""), (200, "purged 0 responses\n".to_owned()));
    // In order, and the next request goes to the server again.
    let before = server.log().requests.len();
    let mut client = Client::connect(weir.address);
    client.request("GET", "/b", "", b"");
    client.request("PURGE", "/b", "", b"why not");
    client.request("GET", "/b", "", b"");
    let replies: Vec<_> = (0..3).map(|_| client.reply().body.bytes).collect();
    assert_eq!(replies, [&b"GET /b"[..], b"purged 1 response\n", b"GET /b"]);
    assert_eq!(server.log().requests.len(), before + 1);
    // Methods are case-sensitive: this is not weir's method.
    assert_eq!(ask(&weir, "Purge", "/b", ""), (200, "Purge /b".to_owned()));
    assert!(server.log().requests.iter().all(|(_, request)| request.method != "PURGE"));
    weir.stop();
    server.finish();
}

fn whoever_may_not(io: Io) {
    let (server, weir) = world(io, "", "purge-from \"10.0.0.0/8\" \"::1\"");
    store(&weir, "/a", "");
    assert_eq!(ask(&weir, "PURGE", "/a", "").0, 403);
    assert_eq!(
        ask(&weir, "PURGE", "/a", "X-Forwarded-For: 10.0.0.1\r\nX-Real-IP: 10.0.0.1\r\n").0,
        403
    );
    assert!(is_stored(&weir, "/a", ""));
    eventually("it is counted", || status(&weir)["totals"]["refusals"]["purge-denied"] == 2);
    assert!(server.log().requests.iter().all(|(_, request)| request.method != "PURGE"));
    weir.stop();
    server.finish();
}

/// The client counts, not the proxy that speaks for it.
fn behind_a_trusted_proxy(io: Io) {
    let more = "client { trusted-proxies \"127.0.0.1\"; }\n";
    let (server, weir) = world(io, more, "purge-from \"127.0.0.1\" \"192.0.2.7\"");
    store(&weir, "/a", "");
    assert_eq!(ask(&weir, "PURGE", "/a", "X-Forwarded-For: 192.0.2.7, 192.0.2.8\r\n").0, 403);
    assert!(is_stored(&weir, "/a", ""));
    // It may speak for any client.
    assert_eq!(ask(&weir, "PURGE", "/a", "").0, 403);
    assert!(is_stored(&weir, "/a", ""));
    assert_eq!(ask(&weir, "PURGE", "/a", "X-Forwarded-For: 192.0.2.8, 192.0.2.7\r\n").0, 200);
    assert!(!is_stored(&weir, "/a", ""));
    weir.stop();
    server.finish();
}

fn by_http2(io: Io) {
    let both = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let more = format!("listen \"{both}\" {{ protocols \"h2c\" \"http/1.1\" }}\n");
    let (server, weir) = world(io, &more, "purge-from \"127.0.0.0/8\"");
    store(&weir, "/a", "");
    let url = format!("http://{both}/a");
    let output = run(
        "curl",
        &["-sS", "--noproxy", "*", "--http2-prior-knowledge", "-X", "PURGE", "-H", "Host: a", &url],
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), "purged 1 response\n");
    assert!(!is_stored(&weir, "/a", ""));
    weir.stop();
    server.finish();
}

fn where_nobody_may(io: Io) {
    let (server, weir) = world(io, "", "");
    assert_eq!(ask(&weir, "PURGE", "/a", ""), (200, "PURGE /a".to_owned()));
    weir.stop();
    server.finish();
}
