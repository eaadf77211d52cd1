//! Requests as a course of events: bodies that come late or never, expectations, pipelines with a
//! bad end, heads in pieces, and hosts that differ on one connection (docs/hostile-requests.md A4,
//! A14 to A18, B10, C5; docs/http1.md).

use crate::kit::{
    Behaviour, Client, Gone, Honest, Io, Link, Server, Weir, app, eventually, nonce,
    on_both_drivers,
};
use weir_check::requests::{SMUGGLED, catalogue};
use weir_check::upstreams::{check_honest, honest_answer};
use weir_check::{Request, Rules, requests::Expect};

on_both_drivers!(
    b12_weir_behind_weir_is_no_loop,
    a4_server_takes_the_body_for_a_request,
    a14_client_closes_inside_a_body,
    a14_client_stalls_inside_a_body,
    a15_body_after_an_early_answer_is_not_a_request,
    a16_continue_then_body,
    a16_final_answer_instead_of_continue,
    a17_body_of_an_unrouted_request,
    a18_thousand_in_one_segment,
    a18_every_byte_a_segment,
    a18_bad_one_behind_good_ones,
    b10_head_of_20_kib_byte_by_byte,
    c5_each_request_is_routed_anew,
    large_bodies_both_ways,
    body_limit_answers_413,
    late_answer_is_504,
    fields_as_configured,
    replies_as_the_client_understands_them,
);

/// Checks that a victim on a separate connection is served.
fn victim(weir: &Weir) {
    let (mut client, nonce) = (Client::connect(weir.address), nonce());
    client.get(&format!("/victim?n={nonce}"));
    check_honest(&nonce, &client.reply()).unwrap();
}

/// Ends everything and checks that no body was taken for a request.
fn nothing_smuggled(weir: Weir, server: Server) -> crate::kit::Log {
    weir.stop();
    let log = server.finish();
    assert!(
        !log.requests.iter().any(|(_, it)| it.target.contains("smuggled")),
        "a body was taken for a request"
    );
    log
}

/// Proxies behind each other have different names, unless an operator gives them the same one; only
/// its own name makes a loop.
fn b12_weir_behind_weir_is_no_loop(io: Io) {
    let server = Server::start(Honest);
    let auto = "via-name \"auto\"\n";
    let inner = Weir::start(io, 1, &format!("{auto}{}", app(&server, 1, "")));
    let before = |name: &str| {
        let address = inner.address;
        format!(
            "via-name \"{name}\"\nupstream \"app\" {{\n server \"{address}\" connections=1\n}}\n\
                route host=\"*\" path=\"/\" {{ proxy \"app\" }}\n"
        )
    };
    for name in ["auto", "weir-outer"] {
        let outer = Weir::start(io, 1, &before(name));
        let (mut client, nonce) = (Client::connect(outer.address), nonce());
        client.get(&format!("/v?n={nonce}"));
        let reply = client.reply();
        check_honest(&nonce, &reply).unwrap();
        let vias: Vec<String> = reply
            .fields
            .all("via")
            .iter()
            .flat_map(|via| via.split(", "))
            .map(str::to_owned)
            .collect();
        assert_eq!(vias.len(), 2, "{vias:?}");
        assert!(
            vias[0] != vias[1] && vias.iter().all(|via| via.starts_with("1.1 weir-")),
            "{vias:?}"
        );
        // The inner proxy's own name, coming back to it, is a loop.
        for (via, status) in [(&vias[0], 508), (&vias[1], 200)] {
            let mut client = Client::connect(inner.address);
            client.request("GET", &format!("/v?n={nonce}"), &format!("Via: {via}\r\n"), b"");
            assert_eq!(client.reply().status, status, "{via}");
        }
        outer.stop();
    }
    inner.stop();
    server.finish();
}

fn a4_server_takes_the_body_for_a_request(io: Io) {
    // It does not read the body, so its next read is the body: it responds to that too.
    let server =
        Server::start(|link: &mut Link, request: &Request| match request.method.as_str() {
            "POST" => {
                let two = [honest_answer(request.nonce()), honest_answer("5500000f")].concat();
                link.answer(&two)?;
                let late = link.until_closed();
                if !late.is_empty() {
                    link.fault("the connection was used again");
                }
                Err(Gone)
            }
            _ => link.honest(request),
        });
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    victim(&weir);
    let (mut client, id) = (Client::connect(weir.address), nonce());
    client.request("POST", &format!("/static?n={id}"), "", SMUGGLED.as_bytes());
    check_honest(&id, &client.reply()).unwrap();
    (0..5).for_each(|_| victim(&weir));
    nothing_smuggled(weir, server);
}

/// Sends the beginning of a POST whose body lacks 10 bytes. A long one has reached the server by
/// then.
fn half_a_post(client: &mut Client, server: &Server, length: usize) {
    client.ask("POST", false);
    let (accepted, id) = (server.log().events.len(), nonce());
    let head = format!("POST /half?n={id} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    client.send(format!("{head}{}", "x".repeat(length - 10)).as_bytes());
    if length > 64 << 10 {
        server.wait("the beginning arrives", |log| log.events.len() > accepted);
    }
}

/// Reports that it has the beginning of a long request.
struct Witness;

impl Behaviour for Witness {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        link.honest(request)
    }

    fn on_head(&self, link: &mut Link, _request: &Request) -> Result<(), Gone> {
        link.tell("beginning");
        Ok(())
    }
}

fn a14_client_closes_inside_a_body(io: Io) {
    let server = Server::start(Witness);
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    for length in [100, 100, 300_000, 300_000] {
        let mut client = Client::connect(weir.address);
        half_a_post(&mut client, &server, length);
        drop(client);
        victim(&weir);
    }
    let log = nothing_smuggled(weir, server);
    assert!(
        !log.requests.iter().any(|(_, it)| it.target.contains("half")),
        "a half request was completed"
    );
}

fn a14_client_stalls_inside_a_body(io: Io) {
    let server = Server::start(Witness);
    let client_limits = "client body-timeout=\"300ms\"\n";
    let weir = Weir::start(io, 1, &format!("{client_limits}{}", app(&server, 1, "")));
    for length in [100, 300_000] {
        let mut client = Client::connect(weir.address);
        half_a_post(&mut client, &server, length);
        let reply = client.reply();
        assert_eq!((reply.status, reply.closes), (408, true));
        client.end();
        victim(&weir);
    }
    let log = nothing_smuggled(weir, server);
    assert!(
        !log.requests.iter().any(|(_, it)| it.target.contains("half")),
        "a half request was completed"
    );
}

/// Responds to POSTs when it has their head, without waiting for the body.
struct Impatient;

impl Behaviour for Impatient {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        link.honest(request)
    }

    fn on_head(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        link.honest(request)?;
        let late = link.until_closed();
        if !late.is_empty() {
            link.fault("the connection was used again after an early answer");
        }
        Err(Gone)
    }
}

fn a15_body_after_an_early_answer_is_not_a_request(io: Io) {
    let server = Server::start(Impatient);
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    let (mut client, id) = (Client::connect(weir.address), nonce());
    client.ask("POST", false);
    // More than weir gathers before it sends the request to the server.
    let (length, beginning) = (100_000 + SMUGGLED.len(), "x".repeat(100_000));
    let head =
        format!("POST /early?n={id} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    client.send(format!("{head}{beginning}").as_bytes());
    check_honest(&id, &client.reply()).unwrap();
    client.try_send(SMUGGLED.as_bytes());
    client.finish();
    client.end();
    (0..3).for_each(|_| victim(&weir));
    nothing_smuggled(weir, server);
}

fn a16_continue_then_body(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    let (mut client, id) = (Client::connect(weir.address), nonce());
    for _ in 0..3 {
        client.ask("POST", false);
        let head = format!(
            "POST /x?n={id} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\
                Content-Length: 5\r\n\r\n"
        );
        client.send(head.as_bytes());
        assert_eq!(client.interim(), [100]);
        client.send(b"hello");
        let reply = client.reply();
        check_honest(&id, &reply).unwrap();
        assert_eq!(reply.interim, [100], "100 once");
        victim(&weir);
    }
    let log = nothing_smuggled(weir, server);
    assert!(
        log.requests
            .iter()
            .filter(|(_, it)| it.method == "POST")
            .all(|(_, it)| it.body.text() == "hello")
    );
}

fn a16_final_answer_instead_of_continue(io: Io) {
    // weir rejects at once; the client's next bytes are the body, or nothing: never a request.
    let server = Server::start(Honest);
    let address = server.address;
    let config = format!(
        "client body-limit=\"30B\"\nupstream \"app\" {{ server \"{address}\" connections=1; }}\n\
            route host=\"a\" {{ proxy \"app\" }}\n"
    );
    let weir = Weir::start(io, 1, &config);
    let length = format!("Content-Length: {}", SMUGGLED.len());
    for (host, framing, status) in [
        ("nobody", length.as_str(), [404, 413]),
        ("nobody", "Transfer-Encoding: chunked", [404, 404]),
        ("a", &length, [413, 413]),
    ] {
        let mut client = Client::connect(weir.address);
        client.ask("POST", false);
        let head = format!(
            "POST /x HTTP/1.1\r\nHost: {host}\r\nExpect: 100-continue\r\n{framing}\r\n\r\n"
        );
        client.send(head.as_bytes());
        let reply = client.reply();
        assert!(status.contains(&reply.status) && reply.interim.is_empty(), "{reply:?}");
        client.try_send(SMUGGLED.as_bytes());
        client.finish();
        // The judge of replies objects to a second one.
        client.end();
        victim(&weir);
    }
    nothing_smuggled(weir, server);
}

fn a17_body_of_an_unrouted_request(io: Io) {
    let server = Server::start(Honest);
    let address = server.address;
    let config = format!(
        "upstream \"app\" {{ server \"{address}\" connections=1; }}\n\
            route host=\"a\" {{ proxy \"app\" }}\n"
    );
    let weir = Weir::start(io, 1, &config);
    for body in
        [format!("Content-Length: {}\r\n\r\n{SMUGGLED}", SMUGGLED.len()), chunked_smuggled()]
    {
        let mut client = Client::connect(weir.address);
        client.ask("POST", false);
        client.send(format!("POST / HTTP/1.1\r\nHost: nobody\r\n{body}").as_bytes());
        let reply = client.reply();
        assert_eq!(reply.status, 404);
        // The connection continues behind the body, or it ends.
        let id = nonce();
        if !reply.closes {
            client.get(&format!("/victim?n={id}"));
            check_honest(&id, &client.reply()).unwrap();
        } else {
            client.end();
        }
    }
    nothing_smuggled(weir, server);
}

fn chunked_smuggled() -> String {
    format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{SMUGGLED}\r\n0\r\n\r\n", SMUGGLED.len())
}

/// Returns requests with their nonces, as one text.
fn many(count: usize) -> (Vec<String>, Vec<u8>) {
    let nonces: Vec<String> = (0..count).map(|_| nonce()).collect();
    let text: String =
        nonces.iter().map(|it| format!("GET /victim?n={it} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    (nonces, text.into_bytes())
}

fn a18_thousand_in_one_segment(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 2, &app(&server, 4, ""));
    let (nonces, text) = many(1000);
    let mut client = Client::connect(weir.address);
    nonces.iter().for_each(|_| client.ask("GET", false));
    client.send(&text);
    nonces.iter().for_each(|nonce| check_honest(nonce, &client.reply()).unwrap());
    drop(client);
    assert_eq!(nothing_smuggled(weir, server).requests.len(), 1000);
}

fn a18_every_byte_a_segment(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 1, &app(&server, 2, ""));
    let (nonces, text) = many(50);
    let mut client = Client::connect(weir.address);
    nonces.iter().for_each(|_| client.ask("GET", false));
    let cuts: Vec<usize> = (1..text.len()).collect();
    assert!(client.try_send_split(&text, &cuts));
    nonces.iter().for_each(|nonce| check_honest(nonce, &client.reply()).unwrap());
    drop(client);
    assert_eq!(nothing_smuggled(weir, server).requests.len(), 50);
}

/// Every refused row of the catalogue behind good requests: these get responses first, then comes
/// the rejection, and the bytes behind it (a body, perhaps) are never a request.
fn a18_bad_one_behind_good_ones(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 1, &app(&server, 2, ""));
    let mut rows = catalogue();
    rows.retain(|row| row.bytes.len() < 4000);
    for row in &rows {
        let (Expect::Refused(statuses) | Expect::Local(statuses)) = row.expect else { continue };
        let (nonces, good) = many(3);
        let mut client = Client::connect(weir.address);
        nonces.iter().for_each(|_| client.ask("GET", false));
        row.asks.iter().for_each(|(method, version_10)| client.ask(method, *version_10));
        client.try_send(&[good, row.bytes.clone()].concat());
        nonces.iter().for_each(|nonce| {
            check_honest(nonce, &client.reply())
                .unwrap_or_else(|error| panic!("before {}: {error}", row.id));
        });
        let reply = client.reply();
        assert!(statuses.contains(&reply.status), "{}: {reply:?}", row.id);
        match row.expect {
            Expect::Local(_) if !reply.closes => client.finish(),
            _ => assert!(reply.closes, "{}: {reply:?}", row.id),
        }
        client.end();
        assert!(client.try_reply().is_none());
    }
    let log = nothing_smuggled(weir, server);
    assert!(
        log.requests.iter().all(|(_, it)| it.target.starts_with("/victim")),
        "a refused request left"
    );
}

fn b10_head_of_20_kib_byte_by_byte(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    let (mut client, id) = (Client::connect(weir.address), nonce());
    client.ask("GET", false);
    let fields: String = (0..80).map(|at| format!("X-{at}: {}\r\n", "y".repeat(245))).collect();
    let text = format!("GET /victim?n={id} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let cuts: Vec<usize> = (1..text.len()).collect();
    assert!(client.try_send_split(text.as_bytes(), &cuts));
    check_honest(&id, &client.reply()).unwrap();
    drop(client);
    let log = nothing_smuggled(weir, server);
    assert_eq!(log.requests[0].1.fields.first("x-79"), Some("y".repeat(245).as_str()));
}

fn c5_each_request_is_routed_anew(io: Io) {
    let (public, internal) = (Server::start(Honest), Server::start(Honest));
    let upstream = |name: &str, server: &Server| {
        format!("upstream \"{name}\" {{ server \"{}\" connections=1; }}\n", server.address)
    };
    let routes = "route host=\"public\" { proxy \"p\" }\n\
        route host=\"internal\" path=\"/open\" { proxy \"i\" }\n";
    let config = format!("{}{}{routes}", upstream("p", &public), upstream("i", &internal));
    let weir = Weir::start(io, 1, &config);
    let mut client = Client::connect(weir.address);
    let mut send = |host: &str, path: &str| {
        let nonce = nonce();
        client.ask("GET", false);
        client.send(format!("GET {path}?n={nonce} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
        (client.reply(), nonce)
    };
    for (host, path, routed) in [
        ("public", "/a", true),
        ("internal", "/closed", false),
        ("internal", "/open/x", true),
        ("nobody", "/a", false),
        ("PUBLIC", "/b", true),
        ("public:80", "/c", true),
        ("internal", "/open", true),
    ] {
        let (reply, nonce) = send(host, path);
        match routed {
            true => check_honest(&nonce, &reply).unwrap(),
            false => assert_eq!(reply.status, 404, "{host}{path}"),
        }
    }
    drop(client);
    weir.stop();
    let hosts = |server: Server| {
        server.finish().requests.iter().map(|(_, it)| it.target.clone()).collect::<Vec<_>>()
    };
    let public_paths: Vec<String> =
        hosts(public).iter().map(|target| target[..2].to_owned()).collect();
    assert_eq!(public_paths, ["/a", "/b", "/c"]);
    assert!(hosts(internal).iter().all(|target| target.starts_with("/open")));
}

/// Sends the body back, chunked or with its length.
struct Echo;

impl Behaviour for Echo {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        let size: usize =
            request.query("size").and_then(|size| size.parse().ok()).unwrap_or_default();
        let sum = request.body.sum;
        let head =
            format!("HTTP/1.1 200 OK\r\nX-Sum: {sum}\r\nX-Length: {}\r\n", request.body.length);
        link.answer(format!("{head}Content-Length: {size}\r\n\r\n").as_bytes())?;
        link.write(&crate::kit::pattern(size))
    }
}

fn large_bodies_both_ways(io: Io) {
    let server = Server::start(Echo);
    let weir = Weir::start(io, 2, &app(&server, 2, ""));
    for (up, down) in [
        (0, 1),
        (1, 0),
        (70_000, 70_000),
        (30_000_000, 10),
        (10, 30_000_000),
        (5_000_000, 5_000_000),
    ] {
        let (sent, expected) =
            (crate::kit::pattern(up), weir_check::Body::of(&crate::kit::pattern(down)));
        let sum = weir_check::Body::of(&sent).sum;
        let mut client = Client::connect(weir.address);
        client.request("POST", &format!("/echo?size={down}"), "", &sent);
        let reply = client.reply();
        assert_eq!(
            (reply.body.length, reply.body.sum),
            (expected.length, expected.sum),
            "{up} up, {down} down"
        );
        assert_eq!(
            reply.fields.first("x-sum"),
            Some(sum.to_string().as_str()),
            "{up} up, {down} down"
        );
    }
    weir.stop();
    server.finish();
}

fn body_limit_answers_413(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 1, &format!("client body-limit=\"1KiB\"\n{}", app(&server, 1, "")));
    let declared = "POST /big HTTP/1.1\r\nHost: a\r\nContent-Length: 1025\r\n\r\n".to_owned();
    let chunked = format!(
        "POST /big HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n401\r\n{}\r\n",
        "x".repeat(1025)
    );
    for text in [declared, chunked] {
        let mut client = Client::connect(weir.address);
        client.ask("POST", false);
        client.send(text.as_bytes());
        let reply = client.reply();
        assert_eq!((reply.status, reply.closes), (413, true));
        client.end();
    }
    let (mut client, id) = (Client::connect(weir.address), nonce());
    client.request("POST", &format!("/fits?n={id}"), "", &[b'x'; 1024]);
    check_honest(&id, &client.reply()).unwrap();
    let log = nothing_smuggled(weir, server);
    assert!(
        !log.requests.iter().any(|(_, it)| it.target.contains("big")),
        "a body over the limit was completed"
    );
}

fn late_answer_is_504(io: Io) {
    let server = Server::start(|link: &mut Link, request: &Request| {
        match request.target.starts_with("/never") {
            true => {
                link.until_closed();
                Err(Gone)
            }
            false => link.honest(request),
        }
    });
    // Victims also have to keep it, on a busy machine.
    let weir = Weir::start(io, 1, &app(&server, 2, "forward-timeout \"3s\""));
    for method in ["GET", "POST"] {
        let mut client = Client::connect(weir.address);
        client.request(method, "/never", "", if method == "POST" { b"x" } else { b"" });
        assert_eq!(client.reply().status, 504, "{method}");
        victim(&weir);
    }
    eventually("both connections are back", || server.log().open == 2);
    nothing_smuggled(weir, server);
}

fn fields_as_configured(io: Io) {
    let rules = Rules { via: false, underscores: true, ..Rules::default() };
    let server = Server::start_at(([127, 0, 0, 1], 0).into(), Honest, rules);
    let options = "client via=#false underscores=#true { trusted-proxies \"127.0.0.0/8\"; }\n";
    let weir = Weir::start(io, 1, &format!("{options}{}", app(&server, 1, "")));
    let (mut client, id) = (Client::connect(weir.address), nonce());
    let fields = "X_A: b\r\nX-Forwarded-For: 10.1.2.3\r\nVia: 1.1 other\r\n";
    client.request("GET", &format!("/victim?n={id}"), fields, b"");
    let reply = client.reply();
    check_honest(&id, &reply).unwrap();
    assert!(!reply.fields.has("via"));
    drop(client);
    let log = nothing_smuggled(weir, server);
    let seen = &log.requests[0].1.fields;
    assert_eq!((seen.first("x_a"), seen.all("via")), (Some("b"), vec!["1.1 other"]));
    assert_eq!(seen.all("x-forwarded-for").join(", "), "10.1.2.3, 127.0.0.1");
}

/// Chunks with a trailer, an interim reply, or an end by close, depending on the target.
fn framed(link: &mut Link, request: &Request) -> Result<(), Gone> {
    let nonce = request.nonce();
    let head = format!("HTTP/1.1 200 OK\r\nX-Nonce: {nonce}\r\n");
    let body = format!("answer {nonce}");
    match request.target.as_bytes()[1] {
        b'c' => link.answer(
            format!(
                "{head}Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nans\r\n0c\r\n{}\r\n0\r\n\
                X-Sum: 1\r\nHost: evil\r\n\r\n",
                &body[3..]
            )
            .as_bytes(),
        ),
        b'h' => {
            link.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")?;
            link.honest(request)
        }
        _ => {
            link.answer(format!("{head}\r\n{body}").as_bytes())?;
            link.fin();
            link.until_closed();
            Err(Gone)
        }
    }
}

fn replies_as_the_client_understands_them(io: Io) {
    // The judge of replies knows what an HTTP/1.0 client understands: neither chunks nor interim
    // replies.
    let server = Server::start(framed);
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    for kind in ["chunked", "hints", "until-close"] {
        for old in [false, true] {
            for te in ["", "TE: trailers\r\nConnection: te\r\n"] {
                let (mut client, id) = (Client::connect(weir.address), nonce());
                client.ask("GET", old);
                let version = if old { "1.0" } else { "1.1" };
                client.send(
                    format!("GET /{kind}?n={id} HTTP/{version}\r\nHost: a\r\n{te}\r\n").as_bytes(),
                );
                let reply = client.reply();
                check_honest(&id, &reply)
                    .unwrap_or_else(|error| panic!("{kind} {version} {te:?}: {error}"));
                let passes = kind == "chunked" && !old && !te.is_empty();
                assert_eq!(
                    reply.trailers.first("x-sum"),
                    passes.then_some("1"),
                    "{kind} {version} {te:?}"
                );
                assert_eq!(reply.interim.len(), usize::from(kind == "hints" && !old));
            }
        }
    }
    nothing_smuggled(weir, server);
}
