//! Proves: a route with `users` takes only requests with a valid name and password; with the real
//! binary, by HTTP/1.1 and HTTP/2, with uploads. A changed file, and a file from another
//! configuration, are in force when `weir reload` returns. How: files by `weir passwd`, raw
//! clients, curl, and what the server and the log see. docs/basic-auth.md.

use std::net::SocketAddr;
use std::path::Path;

use crate::kit::http2::Http2Client;
use crate::kit::{
    Client, Honest, Io, Scratch, Server, Weir, app, eventually, free_port, nonce, on_both_drivers,
    passwd, pattern, run,
};

on_both_drivers!(
    users_of_a_route,
    curl_knows_what_is_asked,
    users_come_and_go,
    a_bad_file_of_users
);

const ANN: &str = "Basic YW5uOmEgc2VjcmV0"; // ann:a secret
const WRONG: &str = "Basic YW5uOndyb25n"; // ann:wrong
const BOB: &str = "Basic Ym9iOnB3"; // bob:pw

/// A server that is open except below `/in`.
fn guarded(server: &Server, users: &Path, more: &str) -> String {
    let users = users.display();
    let set = "request { set \"X-User\" \"$remote_user\"; }";
    let route = format!(
        "route path=\"/in\" users=\"{users}\" realm=\"inside\" {{ {set}\n proxy \"app\"; }}\n{more}"
    );
    app(server, 8, "") + &route
}

/// Returns the status that a client gets with this value in Authorization.
fn ask(client: &mut Client, target: &str, shown: &str) -> u16 {
    let fields =
        if shown.is_empty() { String::new() } else { format!("Authorization: {shown}\r\n") };
    client.request("GET", target, &fields, b"");
    client.reply().status
}

fn users_of_a_route(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let (users, log) = (scratch.path("users"), scratch.path("log"));
    passwd(&users, "ann", "a secret");
    let h2c = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let more = format!(
        "listen \"{h2c}\" {{ protocols \"h2c\"; }}\n\
            access-log \"{}\" format=\"$remote_user $request_method $status $reason\"",
        log.display()
    );
    let weir = Weir::start(io, 2, &guarded(&server, &users, &more));
    let (mut old, mut new) = (Client::connect(weir.address), Http2Client::connect(h2c, &[]));
    // All at once: the responses come in order, whatever has to be verified for each.
    for (target, fields) in
        [("/open", ""), ("/in", ""), ("/in", WRONG), ("/in/a", ANN), ("/open", ANN), ("/in/b", ANN)]
    {
        let fields =
            if fields.is_empty() { String::new() } else { format!("Authorization: {fields}\r\n") };
        old.request("GET", &format!("{target}?n={}", nonce()), &fields, b"");
    }
    let replies = [0; 6].map(|_| old.reply());
    assert_eq!(replies.each_ref().map(|reply| reply.status), [200, 401, 401, 200, 200, 200]);
    assert_eq!(
        replies[1].fields.all("www-authenticate"),
        ["Basic realm=\"inside\", charset=\"UTF-8\""]
    );
    // Uploads, small and large. A client that expects 100 gets none before its user is verified.
    let large = pattern(1_000_000);
    let expect = "Expect: 100-continue\r\n";
    for (body, shown, more, status) in [
        (&large[..1000], ANN, "", 200),
        (&large, ANN, "", 200),
        (&large[..1000], WRONG, "", 401),
        (&large[..10], ANN, expect, 200),
    ] {
        let target = format!("/in/up?n={}", nonce());
        old.request("POST", &target, &format!("{more}Authorization: {shown}\r\n"), body);
        assert_eq!(old.reply().status, status, "{shown} {more}{}", body.len());
    }
    let mut stranger = Client::connect(weir.address);
    stranger.ask("POST", false);
    let head = format!(
        "POST /in HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\
            {expect}Authorization: {WRONG}\r\n\r\n"
    );
    stranger.send(head.as_bytes());
    assert_eq!(stranger.reply().status, 401);
    for (shown, status) in [("", 401), (WRONG, 401), (ANN, 200), (ANN, 200)] {
        let fields: &[(&str, &str)] =
            if shown.is_empty() { &[] } else { &[("authorization", shown)] };
        let (request, stream) = new.request("GET", &format!("/in/c?n={}", nonce()), fields, false);
        new.send(&request);
        let answer = new.answer(stream);
        assert_eq!(answer.statuses, [status]);
        assert_eq!(answer.field("www-authenticate").is_some(), status == 401);
    }
    weir.stop();
    let requests = server.finish().requests;
    let inside = requests.iter().filter(|(_, request)| request.target.starts_with("/in"));
    let names: Vec<_> = inside.map(|(_, request)| request.fields.all("x-user").concat()).collect();
    assert_eq!(names, ["ann"; 7]);
    let shown = requests.iter().flat_map(|(_, request)| request.fields.all("authorization"));
    assert_eq!(shown.collect::<Vec<_>>(), [ANN], "only what was meant for the server");
    let written = std::fs::read_to_string(&log).expect("a log");
    let count = |line: &str| written.lines().filter(|other| *other == line).count();
    assert_eq!(count("ann GET 200 -") + count("ann POST 200 -"), 7, "{written}");
    assert_eq!(count("- GET 401 authorization-missing"), 2, "{written}");
    assert_eq!(
        count("- GET 401 authorization-wrong") + count("- POST 401 authorization-wrong"),
        4,
        "{written}"
    );
}

/// A real client: it waits for the challenge, and then shows the credentials that it was given.
fn curl_knows_what_is_asked(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let users = scratch.path("users");
    passwd(&users, "ann", "a secret");
    let weir = Weir::start(io, 1, &guarded(&server, &users, ""));
    let file = scratch.write("upload", &pattern(100_000));
    let upload = format!("@{}", file.display());
    for (more, expected) in [
        (&["--basic", "-u", "ann:a secret"][..], "200"),
        (&["--anyauth", "-u", "ann:a secret"], "200"),
        (&["--basic", "-u", "ann:wrong"], "401"),
        (&["--basic", "-u", "ann:a secret", "--data-binary", &upload], "200"),
        (&["--basic", "-u", "ann:wrong", "--data-binary", &upload], "401"),
    ] {
        let url = format!("http://{}/in/v?n={}", weir.address, nonce());
        let arguments = ["-sS", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_code}", &url];
        let output = run("curl", &[&arguments, more].concat());
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{more:?}");
    }
    weir.stop();
    assert_eq!(server.finish().requests.len(), 3);
}

/// Users where there were none before, another file, a changed file: all of them are in force when
/// the reload has returned.
fn users_come_and_go(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let [first, second] = ["first", "second"].map(|name| scratch.path(name));
    passwd(&first, "ann", "a secret");
    passwd(&second, "bob", "pw");
    let weir = Weir::start(io, 2, &app(&server, 8, ""));
    let mut client = Client::connect(weir.address);
    let target = || format!("/in?n={}", nonce());
    assert_eq!(ask(&mut client, &target(), ""), 200);
    for (users, ann, bob) in [(&first, 200, 401), (&second, 401, 200), (&first, 200, 401)] {
        weir.rewrite(&guarded(&server, users, ""));
        weir.answer(&["reload"]);
        assert_eq!([ANN, BOB].map(|shown| ask(&mut client, &target(), shown)), [ann, bob]);
    }
    passwd(&first, "bob", "pw");
    passwd(&first, "ann", "another secret");
    weir.answer(&["reload"]);
    assert_eq!([ANN, BOB].map(|shown| ask(&mut client, &target(), shown)), [401, 200]);
    weir.rewrite(&app(&server, 8, ""));
    weir.answer(&["reload"]);
    assert_eq!(ask(&mut client, &target(), ""), 200);
    weir.stop();
    server.finish();
}

/// A running weir keeps the users that it has; a reload says what is wrong with the file.
fn a_bad_file_of_users(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let users = scratch.path("users");
    passwd(&users, "ann", "a secret");
    let weir = Weir::start(io, 1, &guarded(&server, &users, ""));
    let mut client = Client::connect(weir.address);
    let target = || format!("/in?n={}", nonce());
    std::fs::rename(scratch.write("bad", b"ann:secret\n"), &users).expect("one directory");
    let told = format!("{}:1: the hash of `ann`", users.display());
    let reload = weir.ask(&["reload"]);
    assert_eq!(reload.status.code(), Some(78));
    assert!(String::from_utf8_lossy(&reload.stderr).contains(&told));
    assert_eq!(ask(&mut client, &target(), ANN), 200);
    eventually("it is said in the log, too", || {
        weir.said().contains("previous users remain in force")
    });
    weir.stop();
    server.finish();
}
