//! Proves: the rules of routes hold for clients of HTTP/1.1 and HTTP/2, with the real binary, and hostile values change nothing but
//! themselves; another configuration changes them without a restart. How: a configuration with rules of each kind, requests by both
//! protocols, and what the server and the client see of them, judged by the strict grammar. docs/semantics.md §14.

mod kit;

use std::net::SocketAddr;

use kit::http2::Http2Client;
use kit::{Client, Honest, Io, Server, Weir, free_port, nonce, on_both_drivers};
use weir_check::Request;

on_both_drivers!(rules_of_routes, rules_change);

/// Routes by field, cookie and query to two servers, the first with rules of each kind.
fn routes(servers: [&Server; 2], answer: &str) -> String {
    let [app, beta] = servers.map(|server| server.address);
    format!(
        "upstream \"app\" {{ server \"{app}\"; }}\nupstream \"beta\" {{ server \"{beta}\"; }}\n\
         route path=\"/api\" {{\n strip-prefix \"/api\"\n rewrite \"^/item/([0-9]+)$\" \"/i/$1\"\n\
         request {{ host \"app.internal\"; set \"X-Real-IP\" \"$remote_addr\"; set \"X-Asked\" \"$http_x_a|$host|$request_uri\"; remove \"Cookie\"; }}\n\
         answer {{ set \"X-Back\" \"{answer} $http_x_a\"; remove \"X-Nonce\"; }}\n proxy \"app\"\n}}\n\
         route path=\"/api\" {{ cookie \"beta\" eq=\"1\"; query \"plain\" not=#true; proxy \"beta\"; }}\n"
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
    let targets = ["/api/item/12?n=", "/api/%69tem/12?n=", "/x/../api//y?plain&n=", "/api/../secret?n=", "/api;x/y?n="];
    // Tabs, bytes above ASCII, and an encoded line end.
    let value = "a\tb\\%0d%0aX-Evil: 1 \u{e9}";
    for target in targets {
        let target = format!("{target}{}", nonce());
        old.request("GET", &target, &format!("Cookie: beta=0\r\nX-A: {value}\r\nX-Real-IP: forged\r\n"), b"");
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
        assert_eq!((reply.status, answer.statuses.as_slice()), (expected, [expected].as_slice()), "{target}");
        if expected == 200 {
            let back = format!("seen {}", value.replace('\t', " "));
            assert_eq!((reply.fields.all("x-back").len(), answer.field("x-back")), (1, Some(back.as_str())));
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
            !request.fields.has("cookie") && !request.fields.has("x-evil") && request.fields.all("x-asked").len() == 1
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
