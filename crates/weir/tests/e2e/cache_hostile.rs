//! Proves: the requests of one client do not decide what others get from the store, and a private
//! response is not stored (docs/hostile.md I1 to I10). How: the real binary, and a server whose
//! responses report the request; each time one client tries, and another one sends a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_check::Request;

use crate::kit::{Client, Io, Link, Server, Weir, app, eventually, on_both_drivers};

on_both_drivers!(
    i1_forwarding_fields_of_strangers,
    i2_fields_that_stand_for_another_target,
    i3_a_page_that_looks_like_a_file,
    i4_fields_that_shape_an_answer,
    i5_connection_lists_what_caches_go_by,
    i6_two_ways_to_write_a_path,
    i7_two_hosts_in_a_request,
    i8_a_get_with_a_body,
    i9_not_modified_unasked,
    i10_errors_that_somebody_provokes,
    i11_pages_for_others,
);

/// Makes a response cacheable.
const FRESH: &str = "Cache-Control: max-age=3600\r\n";

/// Starts a server that responds with these lines, and with the content that this makes of the
/// request.
fn answers(lines: &'static str, content: fn(&Request) -> String) -> Server {
    Server::start(move |link: &mut Link, request: &Request| {
        link.answer(&reply(200, lines, &content(request)))
    })
}

fn reply(status: u16, lines: &str, content: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} X\r\n{lines}Content-Length: {}\r\n\r\n{content}", content.len())
        .into_bytes()
}

fn target(request: &Request) -> String {
    format!("{} {}", request.fields.first("host").unwrap_or_default(), request.target)
}

/// Starts a weir with a cache in front of it.
fn caching(io: Io, server: &Server, cache: &str) -> Weir {
    Weir::start(
        io,
        2,
        &app(server, 2, "").replace("{ proxy \"app\" }", &format!("{{ proxy \"app\"; {cache} }}")),
    )
}

/// Returns status and content of the response to a GET with these fields, on a separate connection.
fn get(weir: &Weir, target: &str, fields: &str) -> (u16, String) {
    let mut client = Client::connect(weir.address);
    client.request("GET", target, fields, b"");
    let reply = client.reply();
    (reply.status, String::from_utf8_lossy(&reply.body.bytes).into_owned())
}

/// Returns the number of stored responses.
fn stored(weir: &Weir) -> u64 {
    let told: serde_json::Value =
        serde_json::from_str(&weir.answer(&["cache", "stats", "--json"])).expect("JSON");
    told["answers"].as_u64().expect("a count")
}

/// Waits until this many responses are stored, which happens a moment after their end.
fn await_stored(weir: &Weir, count: u64) {
    eventually("answers are stored", || stored(weir) == count);
}

fn i1_forwarding_fields_of_strangers(io: Io) {
    let server = answers(FRESH, |request| format!("{:?}", request.fields.all("x-forwarded-host")));
    let weir = caching(io, &server, "cache;");
    let asked = get(
        &weir,
        "/",
        "X-Forwarded-Host: evil\r\nForwarded: host=evil\r\nX-Forwarded-Scheme: evil\r\n",
    );
    assert!(asked.0 == 200 && !asked.1.contains("evil"), "{asked:?}");
    await_stored(&weir, 1);
    assert_eq!(get(&weir, "/", ""), asked, "the same answer, and nothing of what was said");
    assert_eq!(server.log().requests.len(), 1);
}

fn i2_fields_that_stand_for_another_target(io: Io) {
    let server = answers(FRESH, |request| {
        let names = ["x-original-url", "x-rewrite-url", "x-http-method-override"];
        names.iter().find_map(|name| request.fields.first(name)).unwrap_or("plain").to_owned()
    });
    let weir = caching(io, &server, "cache { cache-status on; }");
    for name in ["X-Original-URL", "X-Rewrite-URL", "X-HTTP-Method-Override"] {
        let mut client = Client::connect(weir.address);
        client.request("GET", "/", &format!("{name}: evil\r\n"), b"");
        let reply = client.reply();
        assert_eq!(reply.body.bytes, b"evil");
        let told = reply.fields.all("cache-status").join(",");
        assert!(told.contains("fwd=bypass") && told.contains("rewritten"), "{told}");
    }
    assert_eq!((get(&weir, "/", "").1.as_str(), server.log().requests.len()), ("plain", 4));
}

fn i3_a_page_that_looks_like_a_file(io: Io) {
    let server = answers("Cache-Control: private\r\nContent-Type: text/css\r\n", |request| {
        request.fields.first("cookie").unwrap_or("nobody").to_owned()
    });
    let weir = caching(io, &server, "cache { ttl \"1h\"; }");
    for path in ["/account/x.css", "/account;.js", "/account%2fx.png"] {
        assert_eq!(get(&weir, path, "Cookie: ann\r\n"), (200, "ann".to_owned()));
        assert_eq!(get(&weir, path, ""), (200, "nobody".to_owned()), "{path}");
    }
    assert_eq!(stored(&weir), 0);
}

fn i4_fields_that_shape_an_answer(io: Io) {
    let shaping = ["range", "if-none-match", "if-modified-since", "if-range", "te", "expect"];
    let server = answers(FRESH, |request| {
        format!("{} {:?}", request.target, request.fields.first("accept-encoding"))
    });
    let weir = caching(io, &server, "cache;");
    let fields = "If-None-Match: \"x\"\r\nIf-Modified-Since: Fri, 27 Nov 2026 00:00:00 GMT\r\n\
        Accept-Encoding: x;q=0, gzip;q=0.3\r\n";
    let asked = get(&weir, "/", fields);
    await_stored(&weir, 1);
    assert_eq!(get(&weir, "/", ""), asked);
    let log = server.log();
    let named = |request: &Request| shaping.iter().any(|name| request.fields.first(name).is_some());
    assert!(
        log.requests.len() == 1 && !log.requests.iter().any(|(_, request)| named(request)),
        "{:?}",
        log.requests
    );
}

fn i5_connection_lists_what_caches_go_by(io: Io) {
    let server = answers(
        "Connection: Cache-Control, Vary, Set-Cookie\r\nCache-Control: private\r\nVary: Cookie\r\n",
        target,
    );
    let weir = caching(io, &server, "cache { ttl \"1h\"; }");
    get(&weir, "/", "Cookie: ann\r\n");
    get(&weir, "/", "");
    assert_eq!((server.log().requests.len(), stored(&weir)), (2, 0));
}

fn i6_two_ways_to_write_a_path(io: Io) {
    let server = answers(FRESH, target);
    let weir = caching(io, &server, "cache;");
    let paths = ["/b", "/a/%2e%2e/b", "/%62", "//b", "/b?", "/B", "/b;x"];
    for round in 0..2 {
        for (at, path) in paths.into_iter().enumerate() {
            assert_eq!(get(&weir, path, ""), (200, format!("a {path}")));
            if round == 0 {
                await_stored(&weir, at as u64 + 1);
            }
        }
    }
    assert_eq!(server.log().requests.len(), paths.len());
}

fn i7_two_hosts_in_a_request(io: Io) {
    let server = answers(FRESH, target);
    let weir = caching(io, &server, "cache;");
    let mut client = Client::connect(weir.address);
    client.ask("GET", false);
    client.send(b"GET http://evil/ HTTP/1.1\r\nHost: a\r\n\r\n");
    let reply = client.reply();
    assert_eq!((reply.status, &reply.body.bytes[..]), (200, &b"evil /"[..]));
    await_stored(&weir, 1);
    assert_eq!(get(&weir, "/", "").1, "a /", "what was said of another host is not for this one");
}

fn i8_a_get_with_a_body(io: Io) {
    let server = answers(FRESH, |request| {
        format!("{} {}", request.target, String::from_utf8_lossy(&request.body.bytes))
    });
    let weir = caching(io, &server, "cache;");
    let mut client = Client::connect(weir.address);
    client.request("GET", "/", "", b"GET /evil HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.reply().body.bytes.starts_with(b"/ GET /evil"));
    assert_eq!(get(&weir, "/", "").1, "/ ");
    await_stored(&weir, 1);
    // Nor is the stored response for it.
    client.request("GET", "/", "", b"again");
    assert_eq!(client.reply().body.bytes, b"/ again");
    assert_eq!(server.log().requests.len(), 3);
}

fn i9_not_modified_unasked(io: Io) {
    let server =
        Server::start(|link: &mut Link, request: &Request| match request.target.as_str() {
            "/unasked" => link.answer(b"HTTP/1.1 304 X\r\nETag: \"x\"\r\n\r\n"),
            _ => link.answer(&reply(200, FRESH, "fine")),
        });
    let weir = caching(io, &server, "cache;");
    let (status, content) = get(&weir, "/unasked", "");
    assert!(status == 502 && !content.contains("304"), "{status} {content}");
    assert_eq!(stored(&weir), 0);
    assert_eq!(get(&weir, "/", ""), (200, "fine".to_owned()));
}

fn i10_errors_that_somebody_provokes(io: Io) {
    let count = Arc::new(AtomicUsize::new(0));
    let asked = Arc::clone(&count);
    let server = Server::start(move |link: &mut Link, request: &Request| {
        asked.fetch_add(1, Ordering::Relaxed);
        match request.fields.first("x-broken") {
            Some(_) => link.answer(&reply(400, "Cache-Control: max-age=3600\r\n", "broken")),
            None => link.answer(&reply(200, FRESH, "fine")),
        }
    });
    let weir = caching(io, &server, "cache { error-ttl \"0s\"; }");
    assert_eq!(get(&weir, "/", "X-Broken: 1\r\n").0, 400);
    assert_eq!(get(&weir, "/", ""), (200, "fine".to_owned()));
    assert_eq!(count.load(Ordering::Relaxed), 2);
    let told = weir.answer(&["cache", "explain", "http://a/"]);
    assert!(!told.contains("status 400"), "{told}");
}

/// If a route informs the server about its clients, in general or beside an identifier of each
/// request, its pages are kept apart from those of other routes.
fn i11_pages_for_others(io: Io) {
    let server = answers(FRESH, |request| {
        let told = ["x-role", "x-ctx"].map(|name| request.fields.first(name).unwrap_or("nobody"));
        let [role, context] = told.map(|text| text.split(';').next().unwrap_or_default());
        format!("for {role} and {context}")
    });
    let route = |condition: &str, set: &str| {
        format!("route {{ {condition} proxy \"app\"; cache; {set} }}\n")
    };
    let routes = [
        route("", ""),
        route("header \"x-office\";", "request { set \"X-Role\" \"staff\"; }"),
        route("header \"x-one\";", "request { set \"X-Ctx\" \"one;$request_id\"; }"),
        route("header \"x-two\";", "request { set \"X-Ctx\" \"two;$request_id\"; }"),
    ];
    let weir = Weir::start(
        io,
        2,
        &format!("upstream \"app\" {{ server \"{}\"; }}\n{}", server.address, routes.concat()),
    );
    let asked = [
        ("X-Office: 1\r\n", "for staff and nobody"),
        ("X-One: 1\r\n", "for nobody and one"),
        ("X-Two: 1\r\n", "for nobody and two"),
        ("", "for nobody and nobody"),
    ];
    for (stored, (fields, page)) in asked.into_iter().enumerate() {
        assert_eq!(get(&weir, "/", fields), (200, page.to_owned()), "{fields}");
        await_stored(&weir, stored as u64 + 1);
    }
    for (fields, page) in asked {
        assert_eq!(get(&weir, "/", fields), (200, page.to_owned()), "{fields}");
    }
    weir.stop();
    assert_eq!(server.finish().requests.len(), asked.len(), "each of them was found again");
}
