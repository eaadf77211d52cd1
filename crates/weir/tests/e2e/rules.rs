//! Proves: the rules of routes hold for HTTP/1.1 and HTTP/2 clients, with the real binary, and
//! hostile values change nothing but themselves. Another configuration changes the rules without a
//! restart. What a route responds by itself needs no server.
//!
//! How: a configuration with rules of each kind and requests by both protocols. The strict grammar
//! judges what the server and the client see of them. docs/routes.md.

use std::net::SocketAddr;

use crate::kit::http2::{DATA, END_STREAM, Http2Client, frame};
use crate::kit::tls::{bridge, certificate};
use crate::kit::{
    Client, Honest, Io, Scratch, Server, Weir, free_port, nonce, on_both_drivers, status,
};
use weir_check::Request;

on_both_drivers!(
    rules_of_routes,
    rules_change,
    routes_know_their_listeners,
    paths_by_expression,
    own_answers,
    plain_clients_are_led_to_tls,
    some_are_refused,
    requests_are_what_a_route_requires,
    trusted_proxies_say_who_asks,
    trusted_proxies_say_what_is_spoken,
    requests_have_names,
    errors_have_pages,
);

/// Routes by field, cookie and query to two servers, the first with rules of each kind.
fn routes(servers: [&Server; 2], answer: &str) -> String {
    let [app, beta] = servers.map(|server| server.address);
    format!(
        "upstream \"app\" {{ server \"{app}\"; }}\nupstream \"beta\" {{ server \"{beta}\"; }}\n\
         route path=\"/api\" {{\n strip-prefix \"/api\"\n rewrite \"^/item/([0-9]+)$\" \"/i/$1\"\n\
         request {{ host \"app.internal\"; set \"X-Real-IP\" \"$remote_addr\"; set \"X-Asked\" \
         \"$http_x_a|$host|$request_uri\"; remove \"Cookie\"; }}\n\
         answer {{ set \"X-Back\" \"{answer} $http_x_a\"; remove \"X-Nonce\"; }}\n proxy \
         \"app\"\n}}\n\
         route path=\"/api\" {{ cookie \"beta\" eq=\"1\"; query \"plain\" not=#true; proxy \
         \"beta\"; }}\n"
    )
}

fn asked(server: Server) -> Vec<Request> {
    server.finish().requests.into_iter().map(|(_, request)| request).collect()
}

fn rules_of_routes(io: Io) {
    let servers = [Server::start(Honest), Server::start(Honest)];
    let h2c = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let listen = format!("listen \"{h2c}\" {{ protocols \"h2c\" }}\n");
    let weir = Weir::start(io, 2, &(listen + &routes([&servers[0], &servers[1]], "seen")));
    let (mut old, mut new) = (Client::connect(weir.address), Http2Client::connect(h2c, &[]));
    let targets = [
        "/api/item/12?n=",
        "/api/%69tem/12?n=",
        "/x/../api//y?plain&n=",
        "/api/../secret?n=",
        "/api;x/y?n=",
    ];
    // Tabs, non-ASCII bytes, and an encoded line end.
    let value = "a\tb\\%0d%0aX-Evil: 1 \u{e9}";
    for target in targets {
        let target = format!("{target}{}", nonce());
        old.request(
            "GET",
            &target,
            &format!("Cookie: beta=0\r\nX-A: {value}\r\nX-Real-IP: forged\r\n"),
            b"",
        );
        let reply = old.reply();
        let fields = [("cookie", "beta=0"), ("x-a", value), ("x-real-ip", "forged")];
        let (request, stream) = new.request("GET", &target, &fields, false);
        new.send(&request);
        let answer = new.answer(stream);
        let expected = if target.contains("secret") {
            404
        } else if target.contains(';') {
            400
        } else {
            200
        };
        assert_eq!(
            (reply.status, answer.statuses.as_slice()),
            (expected, [expected].as_slice()),
            "{target}"
        );
        if expected == 200 {
            let back = format!("seen {}", value.replace('\t', " "));
            assert_eq!(
                (reply.fields.all("x-back").len(), answer.field("x-back")),
                (1, Some(back.as_str()))
            );
            assert!(!reply.fields.has("x-nonce") && answer.field("x-nonce").is_none());
        }
    }
    old.request("GET", "/api/z?n=00000000", "Cookie: a=0; beta=1\r\n", b"");
    assert_eq!(old.reply().status, 200);
    weir.stop();
    let [app, beta] = servers.map(asked);
    let paths: Vec<_> = app.iter().filter_map(|request| request.target.split('?').next()).collect();
    assert_eq!(paths, ["/i/12", "/i/12", "/i/12", "/i/12", "/y", "/y"]);
    for request in &app {
        assert_eq!(request.fields.all("host"), ["app.internal"]);
        assert_eq!(request.fields.all("x-real-ip"), ["127.0.0.1"]);
        assert!(
            !request.fields.has("cookie")
                && !request.fields.has("x-evil")
                && request.fields.all("x-asked").len() == 1
        );
    }
    let paths: Vec<_> = beta.iter().map(|request| request.target.as_str()).collect();
    assert_eq!(paths, ["/api/z?n=00000000"], "the rules of another route are not its");
}

fn rules_change(io: Io) {
    let servers = [Server::start(Honest), Server::start(Honest)];
    let weir = Weir::start(io, 2, &routes([&servers[0], &servers[1]], "old"));
    let mut client = Client::connect(weir.address);
    for word in ["old", "new", "last"] {
        weir.rewrite(&routes([&servers[0], &servers[1]], word));
        weir.answer(&["reload"]);
        client.request("GET", &format!("/api/?n={}", nonce()), "X-A: a\r\n", b"");
        assert_eq!(client.reply().fields.all("x-back"), [format!("{word} a")]);
    }
    weir.stop();
    servers.into_iter().for_each(|server| drop(asked(server)));
}

/// Each client gets the routes of the listener that it connected to, by both protocols, and also
/// after a reload that changes their order and their names.
fn routes_know_their_listeners(io: Io) {
    let [inside, h2c, more] = [0; 3].map(|_| SocketAddr::from(([127, 0, 0, 1], free_port())));
    let text = |names: [&str; 2], more: &str| {
        let [first, second] = names;
        format!(
            "{more}listen \"{inside}\" name=\"{first}\"\n\
             listen \"{h2c}\" name=\"{second}\" {{ protocols \"h2c\" }}\n\
             route {{ respond 200 \"all\"; }}\nroute host=\"a\" {{ respond 200 \"host\"; }}\n\
             route {{ listen \"inside\" \"both\"; respond 200 \"inside\"; }}\n"
        )
    };
    let weir = Weir::start(io, 2, &text(["inside", "both"], ""));
    let mut clients = [Client::connect(weir.address), Client::connect(inside)];
    let mut framed = Http2Client::connect(h2c, &[]);
    let mut expect = |bytes: [u64; 3]| {
        for (client, bytes) in clients.iter_mut().zip(bytes) {
            client.get("/");
            assert_eq!(client.reply().body.length, bytes);
        }
        let (request, stream) = framed.request("GET", "/", &[], false);
        framed.send(&request);
        assert_eq!(framed.answer(stream).body.len() as u64, bytes[2]);
    };
    // The client of HTTP/2 requests another host.
    let [all, host, inside] = ["all", "host", "inside"].map(|text| text.len() as u64);
    expect([host, inside, inside]);
    let more = format!("listen \"{more}\" name=\"inside\"\n");
    weir.rewrite(&text(["outside", "both"], &more));
    weir.answer(&["reload"]);
    expect([host, host, inside]);
    weir.rewrite(&text(["both", "inside-2"], &more));
    weir.answer(&["reload"]);
    expect([host, inside, all]);
    weir.stop();
}

/// What is forwarded is what the expression has seen.
fn paths_by_expression(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(
        io,
        1,
        &format!(
            "upstream \"app\" {{ server \"{}\"; }}\nroute {{ proxy \"app\"; }}\n\
             route {{ path-regex \"(?i)^/admin|\\\\.php$\"; respond 403; }}\n\
             route path-exact=\"/ping\" {{ respond 204; }}\n",
            server.address
        ),
    );
    let mut client = Client::connect(weir.address);
    for (target, status) in [
        ("/x", 200),
        ("/Admin/x", 403),
        ("/%61dmin", 403),
        ("/x/..//admin", 403),
        ("/x.php", 403),
        ("/x.php?y", 403),
        ("/x.php/y", 200),
        ("/ping", 204),
        ("//ping", 204),
        ("/ping/", 200),
    ] {
        let mark = if target.contains('?') { '&' } else { '?' };
        client.get(&format!("{target}{mark}n={}", nonce()));
        assert_eq!(client.reply().status, status, "{target}");
    }
    weir.stop();
    let asked = asked(server);
    let paths: Vec<_> = asked.iter().filter_map(|one| one.target.split('?').next()).collect();
    assert_eq!(paths, ["/x", "/x.php/y", "/ping/"]);
}

fn own_answers(io: Io) {
    let scratch = Scratch::new();
    let page = |fill: &str| format!("<p>{}</p>", fill.repeat(500_000)).into_bytes();
    let file = scratch.write("sorry.html", &page("a"));
    let h2c = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let text = format!(
        "listen \"{h2c}\" {{ protocols \"h2c\" }}\n\
         route path=\"/sorry\" {{ respond 503 file=\"{}\"; answer {{ set \"Retry-After\" \"60\"; \
         }} }}\n\
         route path=\"/ping\" {{ respond 204; }}\n\
         route path=\"/to\" {{ strip-prefix \"/to\"; redirect \"https://$host:8443$request_uri\" \
         status=301; }}\n",
        file.display()
    );
    let weir = Weir::start(io, 2, &text);
    let mut client = Client::connect(weir.address);
    for (method, target) in
        [("GET", "/sorry"), ("HEAD", "/sorry"), ("GET", "/ping"), ("GET", "/to/a%20b?c")]
    {
        client.request(method, target, "", b"");
    }
    let [get, head, ping, to] = [0; 4].map(|_| client.reply());
    assert_eq!(
        (get.status, get.body.length, get.fields.all("retry-after")),
        (503, 500_007, vec!["60"])
    );
    assert_eq!((head.body.length, head.fields.all("content-length")), (0, vec!["500007"]));
    assert_eq!(get.fields.all("content-type"), ["text/html; charset=utf-8"]);
    assert_eq!((ping.status, ping.fields.has("content-type")), (204, false));
    assert_eq!((to.status, to.fields.all("location")), (301, vec!["https://a:8443/a%20b?c"]));
    // weir reads a small body, and the connection goes on. If the body is larger than it reads, the
    // client still gets the response.
    for (target, status) in [("/to", 301), ("/none", 404), ("/ping", 204)] {
        client.request("POST", target, "", &[b'x'; 50_000]);
        let reply = client.reply();
        assert_eq!((reply.status, reply.closes), (status, false));
    }
    client.ask("POST", false);
    client.send(b"POST /to HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
    client.try_send(&vec![b'x'; 100_000]);
    let reply = client.reply();
    assert_eq!((reply.status, reply.closes), (301, true));
    let mut client = Http2Client::connect(h2c, &[]);
    for (path, status, bytes) in [("/sorry", 503, 500_007), ("/to/x", 301, 0), ("/ping", 204, 0)] {
        let (request, stream) = client.request("GET", path, &[], false);
        client.send(&request);
        let answer = client.answer(stream);
        assert_eq!((answer.statuses.as_slice(), answer.body.len()), ([status].as_slice(), bytes));
    }
    // A reload reads the file again, although the configuration is the same.
    std::fs::write(&file, page("bc")).expect("a writable file");
    weir.answer(&["reload"]);
    let mut client = Client::connect(weir.address);
    client.get("/sorry");
    assert_eq!(client.reply().body.length, 1_000_007);
    weir.stop();
}

/// The usual redirect: all requests without TLS are redirected to TLS, whichever host has routes of
/// its own.
fn plain_clients_are_led_to_tls(io: Io) {
    let scratch = Scratch::new();
    let files = certificate(&scratch, "ec", &["a"], 30);
    let sealed = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let server = Server::start(Honest);
    let text = format!(
        "listen \"{sealed}\" {{ tls {{ {} }} }}\nupstream \"app\" {{ server \"{}\"; }}\n\
         route host=\"a\" {{ proxy \"app\"; }}\n\
         route scheme=\"http\" {{ redirect \"https://$host:{}$request_uri\"; }}\n",
        files.row().trim_end(),
        server.address,
        sealed.port()
    );
    let weir = Weir::start(io, 1, &text);
    let target = format!("/x?n={}", nonce());
    let mut client = Client::connect(weir.address);
    client.get(&target);
    let reply = client.reply();
    assert_eq!(
        (reply.status, reply.fields.all("location")),
        (308, vec![&*format!("https://a:{}{target}", sealed.port())])
    );
    let mut client = Client::connect(bridge(sealed));
    client.get(&target);
    assert_eq!(client.reply().status, 200);
    weir.stop();
    drop(asked(server));
}

fn some_are_refused(io: Io) {
    let server = Server::start(Honest);
    let of = |lines: &str| {
        format!(
            "upstream \"app\" {{ server \"{}\"; }}\nroute {{ {lines}; proxy \"app\"; }}\n",
            server.address
        )
    };
    let weir = Weir::start(io, 2, &of("deny \"127.0.0.2\""));
    let mut clients =
        [1, 2].map(|last| Client::connect_from([127, 0, 0, last].into(), weir.address));
    let mut statuses = || {
        clients.each_mut().map(|client| {
            client.get(&format!("/?n={}", nonce()));
            client.reply().status
        })
    };
    assert_eq!(statuses(), [200, 403]);
    weir.rewrite(&of("allow \"127.0.0.2/31\"; deny \"all\""));
    weir.answer(&["reload"]);
    assert_eq!(statuses(), [403, 200]);
    weir.stop();
    drop(asked(server));
}

fn requests_are_what_a_route_requires(io: Io) {
    let server = Server::start(Honest);
    let h2c = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let of = |lines: &str| {
        let upstream = format!("upstream \"app\" {{ server \"{}\"; }}\n", server.address);
        format!(
            "listen \"{h2c}\" {{ protocols \"h2c\" }}\n\
                {upstream}route {{ {lines}; proxy \"app\"; }}\n"
        )
    };
    let weir = Weir::start(
        io,
        2,
        &of("content-types \"application/json\" \"text/*\"; method-override \"refuse\""),
    );
    let (mut old, mut new) = (Client::connect(weir.address), Http2Client::connect(h2c, &[]));
    let mut statuses = |media_type: &str, name: &str| {
        old.request(
            "POST",
            &format!("/?n={}", nonce()),
            &format!("Content-Type: {media_type}\r\n{name}: a\r\n"),
            b"{}",
        );
        let fields = [("content-type", media_type), (&*name.to_ascii_lowercase(), "a")];
        let (head, stream) = new.request("POST", &format!("/?n={}", nonce()), &fields, true);
        new.send(&[head, frame(DATA, END_STREAM, stream, b"{}")].concat());
        (old.reply().status, new.answer(stream).statuses)
    };
    assert_eq!(statuses("Application/JSON; charset=utf-8", "X-A"), (200, vec![200]));
    assert_eq!(statuses("image/png", "X-A"), (415, vec![415]));
    assert_eq!(statuses("text/csv", "X-HTTP-Method-Override"), (403, vec![403]));
    assert_eq!(status(&weir)["totals"]["refusals"]["content-type"], 2);
    weir.rewrite(&of("content-types \"image/*\""));
    weir.answer(&["reload"]);
    assert_eq!(statuses("image/png", "X-HTTP-Method-Override"), (200, vec![200]));
    // weir sends no 100 to a client that waits for one.
    old.ask("PUT", false);
    old.send(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    let reply = old.reply();
    assert_eq!((reply.status, reply.interim.len(), reply.closes), (415, 0, true));
    weir.rewrite(&of("host-address \"refuse\""));
    weir.answer(&["reload"]);
    let mut client = Client::connect(weir.address);
    for (host, expected) in [(weir.address.to_string(), 421), ("a.example".to_owned(), 200)] {
        client.ask("GET", false);
        client.send(format!("GET /?n={} HTTP/1.1\r\nHost: {host}\r\n\r\n", nonce()).as_bytes());
        assert_eq!(client.reply().status, expected);
    }
    weir.stop();
    drop(asked(server));
}

fn trusted_proxies_say_who_asks(io: Io) {
    let server = Server::start(Honest);
    let scratch = Scratch::new();
    let log = scratch.path("access.log");
    let text = format!(
        "access-log \"{}\" format=\"$remote_addr $realip_remote_addr $status\"\n\
         client {{ trusted-proxies \"127.0.0.1\"; }}\n\
         upstream \"app\" {{ server \"{}\"; }}\n\
         route {{ deny \"192.0.2.7\"; request {{ set \"X-Who\" \"$remote_addr\"; }}; proxy \
         \"app\"; }}\n",
        log.display(),
        server.address
    );
    let weir = Weir::start(io, 1, &text);
    let [mut proxy, mut stranger] =
        [1, 2].map(|last| Client::connect_from([127, 0, 0, last].into(), weir.address));
    let field = "X-Forwarded-For: 203.0.113.9, 192.0.2.7\r\n";
    for (client, expected) in [(&mut proxy, 403), (&mut stranger, 200)] {
        client.request("GET", &format!("/?n={}", nonce()), field, b"");
        assert_eq!(client.reply().status, expected);
    }
    weir.stop();
    assert_eq!(
        std::fs::read_to_string(&log).expect("a log"),
        "192.0.2.7 127.0.0.1 403\n127.0.0.2 127.0.0.2 200\n"
    );
    assert_eq!(asked(server)[0].fields.all("x-who"), ["127.0.0.2"]);
}

/// Behind a load balancer that terminates TLS, the usual redirect applies only to clients without
/// TLS. The scheme is never a stranger's to say.
fn trusted_proxies_say_what_is_spoken(io: Io) {
    for (option, told) in [
        ("x-forwarded-for", "X-Forwarded-Proto: "),
        ("forwarded", "Forwarded: for=192.0.2.7;proto="),
    ] {
        let server = Server::start(Honest);
        let scratch = Scratch::new();
        let log = scratch.path("access.log");
        let h2c = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let text = format!(
            "access-log \"{}\" format=\"$scheme $status\"\n\
             listen \"{h2c}\" {{ protocols \"h2c\" }}\n\
             client {{ trusted-proxies \"127.0.0.1\"; client-address \"{option}\"; }}\n\
             upstream \"app\" {{ server \"{}\"; }}\n\
             route {{ request {{ set \"X-Scheme\" \"$scheme\"; }}; proxy \"app\"; }}\n\
             route scheme=\"http\" {{ redirect \"https://$host$request_uri\"; }}\n",
            log.display(),
            server.address
        );
        let weir = Weir::start(io, 1, &text);
        let mut expected = String::new();
        let clients =
            [1, 2].map(|last| Client::connect_from([127, 0, 0, last].into(), weir.address));
        for (mut client, is_trusted) in clients.into_iter().zip([true, false]) {
            for word in ["https", "HTTPS", "http", "https, http", "", "https\t", "javascript"] {
                client.request(
                    "GET",
                    &format!("/?n={}", nonce()),
                    &format!("{told}{word}\r\n"),
                    b"",
                );
                let is_sealed = is_trusted && word.trim().eq_ignore_ascii_case("https");
                let line = if is_sealed { "https 200" } else { "http 308" };
                assert_eq!(
                    client.reply().status.to_string(),
                    line[line.len() - 3..],
                    "{is_trusted} {told}{word}"
                );
                expected += &format!("{line}\n");
            }
        }
        let mut client = Http2Client::connect(h2c, &[]);
        let (name, value) = told.split_once(": ").expect("a field");
        let name = name.to_ascii_lowercase();
        let (target, value) = (format!("/?n={}", nonce()), format!("{value}https"));
        let (request, stream) = client.request("GET", &target, &[(&name, &value)], false);
        client.send(&request);
        assert_eq!(client.answer(stream).statuses, [200]);
        expected += "https 200\n";
        // In a list in Forwarded, the last element is the trusted proxy's.
        let ignored = if option == "forwarded" { 2 } else { 3 };
        assert_eq!(status(&weir)["totals"]["schemes_ignored"], ignored);
        weir.stop();
        assert_eq!(std::fs::read_to_string(&log).expect("a log"), expected);
        for request in asked(server) {
            assert_eq!(request.fields.all("x-scheme"), ["https"]);
            assert_eq!(request.fields.all("x-forwarded-proto").len(), 1);
            assert!(request.fields.all("x-forwarded-proto")[0].eq_ignore_ascii_case("https"));
        }
    }
}

fn requests_have_names(io: Io) {
    let server = Server::start(Honest);
    let text = format!(
        "client {{ request-id \"X-Request-Id\"; trace-context #true; trusted-proxies \
         \"127.0.0.1\"; }}\n\
         upstream \"app\" {{ server \"{}\"; }}\n\
         route {{ answer {{ set \"X-Request-Id\" \"$request_id\"; }}; proxy \"app\"; }}\n",
        server.address
    );
    let weir = Weir::start(io, 2, &text);
    let clients = [1, 2].map(|last| Client::connect_from([127, 0, 0, last].into(), weir.address));
    let answers = clients.map(|mut client| {
        client.request("GET", &format!("/?n={}", nonce()), "X-Request-Id: mine-1\r\n", b"");
        client.reply().fields.first("x-request-id").expect("an identifier").to_owned()
    });
    weir.stop();
    let asked = asked(server);
    for (answer, request) in answers.iter().zip(&asked) {
        assert_eq!(request.fields.all("x-request-id"), [answer]);
        assert_eq!(request.fields.all("traceparent").len(), 1);
    }
    assert!(answers[0] == "mine-1" && answers[1].len() == 36, "{answers:?}");
    assert_ne!(asked[0].fields.all("traceparent"), asked[1].fields.all("traceparent"));
}

fn errors_have_pages(io: Io) {
    let scratch = Scratch::new();
    let file = scratch.write("sorry.html", b"<p>Back soon.</p>");
    let nobody = free_port();
    let text = format!(
        "upstream \"app\" {{ server \"127.0.0.1:{nobody}\"; connect-retries 1; }}\n\
         route {{ error-page 502 file=\"{}\"; answer {{ set \"Retry-After\" \"5\"; }}; proxy \
         \"app\"; }}\n",
        file.display()
    );
    let weir = Weir::start(io, 1, &text);
    let mut client = Client::connect(weir.address);
    client.get("/");
    let reply = client.reply();
    assert_eq!((reply.status, reply.body.text().as_str()), (502, "<p>Back soon.</p>"));
    assert_eq!(reply.fields.all("content-type"), ["text/html; charset=utf-8"]);
    assert_eq!(reply.fields.all("retry-after"), ["5"]);
    weir.stop();
}
