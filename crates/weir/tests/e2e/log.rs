//! The access log of the real binary: its formats, a line for each response under load, logrotate,
//! destinations that don't accept it (docs/hostile.md H9), and files that can't be opened.
//! docs/access-log.md

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::kit::{
    Client, Honest, Io, Scratch, Server, Weir, app, eventually, free_port, on_both_drivers, passwd,
};
use serde_json::Value;

on_both_drivers!(
    combined_by_default,
    json_has_a_line_for_each_answer,
    json_says_who_asked_and_what_a_request_is_called,
    a_format_of_ones_own_on_standard_output,
    logrotate_loses_nothing,
    h9_a_blocked_log_blocks_nobody,
    a_log_that_can_not_be_opened,
);

fn start(io: Io, workers: u32, server: &Server, log: &str) -> Weir {
    Weir::start(io, workers, &format!("access-log {log}\n{}", app(server, 2, "")))
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn combined_by_default(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let path = scratch.path("a.log");
    let weir = start(io, 1, &server, &format!("\"{}\"", path.display()));
    let mut client = Client::connect(weir.address);
    client.request("GET", "/a?n=1", "Referer: http://r/\"\r\nUser-Agent: curl/8\r\n", b"");
    let reply = client.reply();
    // While weir runs, not only at its end.
    eventually("the line", || text(&path).ends_with('\n'));
    let line = text(&path);
    let (before, rest) = line.split_once(" [").expect("a time");
    let (time, after) = rest.split_once("] ").expect("a time");
    assert_eq!(before, "127.0.0.1 - -");
    assert_eq!(time.len(), "21/Nov/2026:22:40:56 +0100".len(), "{time}");
    let bytes = reply.body.length;
    assert_eq!(
        after,
        format!("\"GET /a?n=1 HTTP/1.1\" 200 {bytes} \"http://r/\\x22\" \"curl/8\"\n")
    );
    weir.stop();
    server.finish();
}

/// Sends this many requests on one connection, some of them at once, and reads all responses. The
/// targets begin with `name`.
fn load(address: std::net::SocketAddr, name: &str, requests: usize) {
    let mut client = Client::connect(address);
    for first in (0..requests).step_by(10) {
        let numbers = first..requests.min(first + 10);
        let target = |number| format!("/{name}/{number}?n={number}");
        numbers.clone().for_each(|number| {
            client.request("GET", &target(number), "User-Agent: é\"\\\t€\r\n", b"")
        });
        numbers.for_each(|_| assert_eq!(client.reply().status, 200));
    }
}

fn json_has_a_line_for_each_answer(io: Io) {
    const CLIENTS: usize = 8;
    const EACH: usize = 300;
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let path = scratch.path("a.log");
    let weir = start(io, 2, &server, &format!("\"{}\" format=json", path.display()));
    let address = weir.address;
    let clients = (0..CLIENTS)
        .map(|client| std::thread::spawn(move || load(address, &client.to_string(), EACH)));
    clients.collect::<Vec<_>>().into_iter().for_each(|client| client.join().expect("served"));
    weir.stop();
    let mut seen = BTreeSet::new();
    for line in text(&path).lines() {
        let value: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let number = |name: &str| value[name].as_f64().unwrap_or_else(|| panic!("{name}: {line}"));
        assert_eq!(
            (number("status"), &value["ended_by"], &value["phase"]),
            (200.0, &"none".into(), &"done".into())
        );
        assert!(number("upstream_response_time") <= number("request_time"), "{line}");
        assert_eq!(value["http_user_agent"], "é\"\\\t€");
        assert_eq!(value["upstream_addr"], server.address.to_string());
        assert_eq!(value["scheme"], "http");
        let absent = ["remote_user", "request_id", "trace_id", "cache"];
        assert!(absent.iter().all(|name| value.get(name).is_some_and(Value::is_null)), "{line}");
        assert!(
            seen.insert(value["request_uri"].as_str().expect("a target").to_owned()),
            "twice: {line}"
        );
    }
    assert_eq!(seen.len(), CLIENTS * EACH);
    server.finish();
}

fn json_says_who_asked_and_what_a_request_is_called(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let (path, users) = (scratch.path("a.log"), scratch.path("users"));
    passwd(&users, "ann", "secret");
    let config = format!(
        "access-log \"{}\" format=json\n\
         client {{ request-id \"X-Request-Id\"; trace-context #true; }}\n\
         cache {{ size \"16MiB\"; }}\nupstream \"app\" {{ server \"{}\"; }}\n\
         route users=\"{}\" {{ cache; proxy \"app\"; }}\n",
        path.display(),
        server.address,
        users.display()
    );
    let weir = Weir::start(io, 1, &config);
    let mut client = Client::connect(weir.address);
    client.request("GET", "/a?n=1", "Authorization: Basic YW5uOnNlY3JldA==\r\n", b"");
    assert_eq!(client.reply().status, 200);
    eventually("the line", || text(&path).ends_with('\n'));
    weir.stop();
    let line = text(&path);
    let value: Value = serde_json::from_str(&line).expect("an object");
    let log = server.finish();
    let sent = &log.requests[0].1.fields;
    assert_eq!(
        (&value["remote_user"], &value["scheme"]),
        (&"ann".into(), &"http".into()),
        "{line}"
    );
    assert_eq!(value["request_id"], sent.first("x-request-id").expect("an identifier"));
    let trace =
        sent.first("traceparent").and_then(|parent| parent.split('-').nth(1)).expect("a trace");
    assert_eq!(value["trace_id"], trace);
    assert!(value["cache"].is_string(), "{line}");
}

fn a_format_of_ones_own_on_standard_output(io: Io) {
    let server = Server::start(Honest);
    let format = "<$host $request_method $request_uri $status $http_x_id $tries $reason>";
    let weir = start(io, 1, &server, &format!("\"-\" format=\"{format}\""));
    let mut client = Client::connect(weir.address);
    client.request("GET", "/x?n=1", "X-Id: a b\\\r\n", b"");
    assert_eq!(client.reply().status, 200);
    client.ask("GET", false);
    client.send(b"GET /y\r\n\r\n");
    assert_eq!(client.reply().status, 400);
    let expected = ["<a GET /x?n=1 200 a b\\x5C 1 ->\n", "<- - - 400 - 0 "];
    eventually("both lines", || expected.iter().all(|line| weir.said().contains(line)));
    weir.stop();
    server.finish();
}

fn logrotate_loses_nothing(io: Io) {
    const EACH: usize = 400;
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let path = scratch.path("a.log");
    let weir = start(io, 2, &server, &format!("\"{}\" format=\"$request_uri\"", path.display()));
    let address = weir.address;
    let clients: Vec<_> = (0..4)
        .map(|client| std::thread::spawn(move || load(address, &client.to_string(), EACH)))
        .collect();
    let mut old = Vec::new();
    for round in 0..4 {
        eventually("lines", || {
            !text(&path).is_empty() || clients.iter().all(std::thread::JoinHandle::is_finished)
        });
        let name = scratch.path(&format!("{round}.log"));
        std::fs::rename(&path, &name).expect("renamed");
        weir.signal("USR1");
        eventually("the new file", || path.exists());
        old.push(name);
    }
    clients.into_iter().for_each(|client| client.join().expect("served"));
    weir.stop();
    old.push(path);
    let all: String = old.iter().map(|name| text(name)).collect();
    let different: BTreeSet<&str> = all.lines().collect();
    assert_eq!((all.lines().count(), different.len()), (4 * EACH, 4 * EACH));
    server.finish();
}

/// No program reads the FIFO: all requests still get responses, and weir says what is missing.
fn h9_a_blocked_log_blocks_nobody(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let path = scratch.path("fifo");
    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo runs").success());
    let weir = start(io, 1, &server, &format!("\"{}\"", path.display()));
    let mut client = Client::connect(weir.address);
    let long = "x".repeat(7000);
    eventually("lines are lost", || {
        for number in 0..100 {
            client.get(&format!("/{long}?n={number}"));
            assert_eq!(client.reply().status, 200);
        }
        weir.said().contains("access-log-lost: ")
    });
    weir.stop();
    server.finish();
}

fn a_log_that_can_not_be_opened(io: Io) {
    let scratch = Scratch::new();
    let config = format!(
        "io \"{}\"\nlisten \"127.0.0.1:{}\"\naccess-log \"{}\"\n\
            upstream \"app\" {{ server \"127.0.0.1:9\"; }}\nroute {{ proxy \"app\"; }}\n",
        io.word(),
        free_port(),
        scratch.path("none/a.log").display()
    );
    let file = scratch.write("weir.kdl", config.as_bytes());
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["run", "-c"])
        .arg(file)
        .output()
        .expect("weir runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("can't open the access log: ") && said.contains("none/a.log: No such file"),
        "{said}"
    );
}
