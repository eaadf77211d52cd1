//! Proves: a running weir reports what it does and obeys orders without losing a request, and the
//! parsers of Prometheus read its metrics. The admin socket belongs to its owner, survives dead and
//! living neighbours, and never ends the proxy. How: the real binary with traffic through it,
//! queried with `weir status`, `weir server`, raw HTTP and `prometheus_client`.
//! docs/semantics.md#what-you-can-observe.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::kit::{
    Client, Gone, Honest, Io, Link, Server, Weir, app, bounded, eventually, free_port, keep_asking,
    nonce, on_both_drivers, request,
};
use serde_json::Value;
use weir_check::Request;

on_both_drivers!(
    status_tells_what_happens,
    a_drain_under_load_loses_nothing,
    a_surplus_is_told_and_cleared,
    metrics_are_read_by_prometheus,
    a_socket_has_one_owner,
    an_ending_weir_gives_its_name_away,
    readiness_follows_the_servers,
    rates_are_those_of_now,
    those_who_hang_hinder_nobody,
    those_who_are_silent_keep_nobody_waiting,
    a_strangers_page_reads_nothing,
    a_backup_is_marked,
    it_leaves_in_peace,
);

fn json(weir: &Weir, arguments: &[&str]) -> Value {
    serde_json::from_str(&weir.answer(&[arguments, &["--json"]].concat())).expect("JSON")
}

/// Returns two servers of one upstream.
fn two(servers: [&Server; 2]) -> String {
    let [a, b] = servers.map(|server| server.address);
    format!(
        "upstream \"app\" {{ server \"{a}\" connections-min=2 connections=2; server \"{b}\" \
            connections-min=2 connections=2; }}\nroute {{ proxy \"app\" }}\n"
    )
}

/// Returns head and body of the response to a plain GET.
fn get(
    mut stream: impl std::io::Read + std::io::Write,
    path: &str,
    fields: &str,
) -> (String, String) {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: weir\r\n{fields}\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) =
        answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer}"));
    (head.to_owned(), body.to_owned())
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it accepts");
    bounded(&stream);
    stream
}

fn status_tells_what_happens(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 2, &app(&server, 4, ""));
    weir.answer(&["status", "--wait"]);
    let mut client = Client::connect(weir.address);
    (0..100).for_each(|_| request(&mut client));
    let status = json(&weir, &["status"]);
    assert_eq!(
        (&status["version"], &status["pid"], &status["ready"]),
        (&1.into(), &weir.pid().into(), &true.into())
    );
    assert_eq!(status["clients"]["requests"], 100);
    assert_eq!(status["clients"]["connections"], 1);
    let told = &status["upstreams"][0]["servers"][0];
    assert_eq!(
        (&told["state"], &told["answers"]["2xx"], &told["connections"]["configured"]),
        (&"up".into(), &100.into(), &4.into())
    );
    let latency = &told["window"]["latency"];
    assert_eq!(latency["count"], 100);
    let percentiles: Vec<u64> =
        ["min_us", "p50_us", "p75_us", "p90_us", "p95_us", "p99_us", "p999_us", "max_us"]
            .map(|name| latency[name].as_u64().expect(name))
            .into();
    assert!(percentiles.is_sorted() && percentiles[0] > 0, "{latency}");
    let name = server.address.to_string();
    let detail = json(&weir, &["status", "server", "app", &name]);
    assert_eq!(detail["statuses"]["200"], 100);
    let rows = detail["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 4);
    assert_eq!(rows.iter().map(|row| row["answers"].as_u64().expect("a count")).sum::<u64>(), 100);
    let table = weir.answer(&["status"]);
    let row = table
        .lines()
        .find(|line| line.trim_start().starts_with(&name))
        .unwrap_or_else(|| panic!("{table}"));
    assert_eq!(row.split_whitespace().nth(1), Some("up"), "{table}");
    let page = weir.answer(&["status", "server", "app", &name]);
    assert!(
        page.contains("200 100") && page.contains("p99.9 ") && page.contains("\n     3  "),
        "{page}"
    );
    assert_eq!(
        (weir.answer(&["server", "forgive"]), &status["suspects"]),
        (String::new(), &Value::Array(Vec::new()))
    );
    // An unknown server, and a suggestion.
    let refused = weir.ask(&["server", "drain", "ap", &name]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("did you mean `app`?"), "{said}");
    let stopped = weir.admin();
    weir.stop();
    assert!(!stopped.exists(), "the socket goes with its process");
    server.finish();
}

fn a_drain_under_load_loses_nothing(io: Io) {
    let servers = [Server::start(Honest), Server::start(Honest)];
    let weir = Weir::start(io, 2, &two([&servers[0], &servers[1]]));
    weir.answer(&["status", "--wait"]);
    let (name, other) = (servers[0].address.to_string(), servers[1].address.to_string());
    let (over, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| keep_asking(weir.address, &over, &done));
        }
        let some_more = || {
            let before = done.load(Ordering::Relaxed);
            eventually("requests are answered", || done.load(Ordering::Relaxed) >= before + 200);
        };
        let seen = || servers[0].log().requests.len();
        let state = || json(&weir, &["status", "server", "app", &name])["server"]["state"].clone();
        some_more();
        assert!(seen() > 0);
        weir.answer(&["server", "drain", "app", &name, "--wait"]);
        assert_eq!(state(), "draining");
        let drained = seen();
        some_more();
        assert_eq!(seen(), drained, "a drained server gets nothing");
        weir.answer(&["server", "enable", "app", &name]);
        some_more();
        eventually("an enabled server gets requests", || seen() > drained);
        weir.answer(&["server", "disable", "app", &name]);
        servers[0].wait("a disabled server is left alone", |log| log.open == 0);
        assert_eq!(state(), "disabled");
        assert_eq!(weir.answer(&["status"]).matches("disabled: ordered").count(), 1);
        some_more();
        weir.answer(&["server", "enable", "app", &name]);
        servers[0].wait("it is connected again", |log| log.open == 2);
        over.store(true, Ordering::Relaxed);
    });
    let status = json(&weir, &["status"]);
    let answers = &status["clients"]["answers"];
    assert_eq!(answers["2xx"].as_u64(), Some(done.load(Ordering::Relaxed) as u64));
    assert_eq!((&answers["4xx"], &answers["5xx"]), (&0.into(), &0.into()), "{other}");
    weir.stop();
    servers.into_iter().for_each(|server| drop(server.finish()));
}

/// Sends a surplus response behind each.
fn liar(link: &mut Link, request: &Request) -> Result<(), Gone> {
    link.honest(request)?;
    link.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
}

fn a_surplus_is_told_and_cleared(io: Io) {
    let server = Server::start(liar);
    let weir = Weir::start(io, 2, &app(&server, 2, ""));
    let name = server.address.to_string();
    weir.answer(&["status", "--wait"]);
    request(&mut Client::connect(weir.address));
    let trust = || json(&weir, &["status", "server", "app", &name])["server"]["trust"].clone();
    eventually("the answer too many is found", || trust() == "surplus");
    assert!(weir.answer(&["status"]).contains("weir server clear"));
    weir.answer(&["server", "clear", "app", &name]);
    assert_ne!(trust(), "surplus");
    weir.stop();
    server.finish();
}

/// Reads the text as Prometheus does; prints each sample that has these label texts by name.
const PARSE: &str = "
import sys, json
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus
parse = openmetrics if sys.argv[1] == 'openmetrics' else prometheus
samples = {}
for family in parse(sys.stdin.read()):
    for sample in family.samples:
        labels = ','.join(k + '=' + v for k, v in sorted(sample.labels.items()))
        samples[sample.name + '{' + labels + '}'] = sample.value
print(json.dumps(samples))
";

fn parsed(format: &str, text: &str) -> BTreeMap<String, f64> {
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", PARSE, format]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = python.spawn().expect("python3 (make setup installs it)");
    child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("python reads");
    let output = child.wait_with_output().expect("python ends");
    assert!(
        output.status.success(),
        "python3-prometheus-client (make setup installs it) can't read:\n{text}"
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn metrics_are_read_by_prometheus(io: Io) {
    let server = Server::start(Honest);
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let weir = Weir::start(io, 2, &format!("metrics \"{address}\"\n{}", app(&server, 4, "")));
    weir.answer(&["status", "--wait"]);
    let mut client = Client::connect(weir.address);
    let mut before: BTreeMap<String, f64> = BTreeMap::new();
    for round in 1..=3 {
        (0..50).for_each(|_| request(&mut client));
        let scrape = || {
            let (head, body) =
                get(connect(address), "/metrics", "Accept: application/openmetrics-text\r\n");
            assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
            body
        };
        // Public responses may be a moment old.
        let all = format!("\nweir_requests_total {}\n", round * 50);
        eventually("all requests are counted", || scrape().contains(&all));
        let samples = parsed("openmetrics", &scrape());
        let of_server = format!("server={},upstream=app", server.address);
        for (name, value) in [
            ("weir_requests_total{}".to_owned(), 50.0),
            ("weir_answers_total{class=2xx}".to_owned(), 50.0),
            (format!("weir_server_answers_total{{class=2xx,{of_server}}}"), 50.0),
            (format!("weir_server_response_seconds_count{{{of_server}}}"), 50.0),
            (format!("weir_server_response_seconds_bucket{{le=+Inf,{of_server}}}"), 50.0),
        ] {
            assert_eq!(samples.get(&name), Some(&(value * f64::from(round))), "{name}");
        }
        assert_eq!(samples[&format!("weir_server_up{{{of_server}}}")], 1.0);
        assert_eq!(samples["weir_ready{}"], 1.0);
        assert_eq!(
            samples.keys().filter(|name| name.starts_with("weir_worker_turns_total{")).count(),
            2
        );
        for worker in 0..2 {
            let (listener, cpu) =
                (weir.address, format!("weir_worker_cpu_seconds_total{{worker={worker}}}"));
            assert!(samples[&cpu] > 0.0, "a worker has started");
            let limit =
                format!("weir_worker_accept_queue_limit{{listener={listener},worker={worker}}}");
            assert!(samples[&limit] > 0.0, "backlog");
        }
        for (name, value) in
            samples.iter().filter(|(name, _)| name.contains("_total{") || name.contains("_bucket{"))
        {
            assert!(before.get(name).is_none_or(|before| before <= value), "{name} went down");
        }
        before = samples;
    }
    let (head, body) = get(connect(address), "/metrics", "Accept: text/plain\r\n");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    assert!(parsed("prometheus", &body)["weir_requests_total{}"] >= 150.0);
    // The metrics listener is only for reading.
    for path in ["/v1/status", "/v1/servers/app/x/drain", "/live"] {
        let (head, body) = get(connect(address), path, "");
        assert!(
            head.starts_with("HTTP/1.1 404 ") && body.contains("\"error\":\"not-found\""),
            "{head}\n{body}"
        );
    }
    assert!(get(connect(address), "/healthz", "").0.starts_with("HTTP/1.1 200 "));
    weir.stop();
    server.finish();
}

fn a_socket_has_one_owner(io: Io) {
    let server = Server::start(Honest);
    let mut weir = Weir::start(io, 1, &app(&server, 1, ""));
    let socket = weir.admin();
    assert_eq!(fs::metadata(&socket).expect("it is there").permissions().mode() & 0o777, 0o600);
    // A second weir must not replace the socket of the first, and says what to do.
    let address = format!("127.0.0.1:{}", free_port());
    let second = |socket: &std::path::Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command
            .args(["reverse", "--to", "127.0.0.1:9", "--listen", &address, "--admin"])
            .arg(socket);
        command.stdin(Stdio::null()).output().expect("weir starts")
    };
    let refused = second(&socket);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        refused.status.code() == Some(1) && said.contains(&format!("(pid {})", weir.pid())),
        "{said}"
    );
    assert!(said.contains("--admin PATH"), "{said}");
    assert_eq!(json(&weir, &["status"])["pid"], weir.pid());
    let missing = second(&socket.with_file_name("missing").join("admin.sock"));
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(missing.status.code() == Some(1) && said.contains("create that directory"), "{said}");
    // The rest of a kill -9 is no obstacle.
    weir.signal("KILL");
    weir.wait();
    assert!(socket.exists());
    let refused = weir.ask(&["status"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("its weir has ended"), "{said}");
    let mut successor = Command::new(env!("CARGO_BIN_EXE_weir"));
    successor
        .args(["reverse", "--to", &server.address.to_string(), "--listen", &address, "--admin"])
        .arg(&socket);
    let mut successor =
        successor.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("weir starts");
    eventually("the successor answers", || weir.ask(&["status", "--wait=1"]).status.success());
    assert_eq!(json(&weir, &["status"])["pid"], successor.id());
    successor.kill().expect("it runs");
    successor.wait().expect("it is a child");
}

/// Responds on a signal.
fn held(link: &mut Link, request: &Request) -> Result<(), Gone> {
    link.await_event("go")?;
    link.honest(request)
}

fn an_ending_weir_gives_its_name_away(io: Io) {
    let server = Server::start(held);
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    let socket = weir.admin();
    let mut client = Client::connect(weir.address);
    let nonce = nonce();
    client.get(&format!("/victim?n={nonce}"));
    server.wait("the request is there", |log| log.requests.len() == 1);
    weir.signal("TERM");
    eventually("it is draining", || json(&weir, &["status"])["state"] == "draining");
    assert!(
        get(UnixStream::connect(&socket).expect("it accepts"), "/readyz", "")
            .0
            .starts_with("HTTP/1.1 503 ")
    );
    let address = format!("127.0.0.1:{}", free_port());
    let mut successor = Command::new(env!("CARGO_BIN_EXE_weir"));
    successor
        .args(["reverse", "--to", "127.0.0.1:9", "--listen", &address, "--admin"])
        .arg(&socket);
    let mut successor =
        successor.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("weir starts");
    eventually("the successor answers", || {
        let output = weir.ask(&["status", "--json"]);
        serde_json::from_slice::<Value>(&output.stdout)
            .is_ok_and(|status| status["pid"] == successor.id())
    });
    server.tell("go");
    assert_eq!(client.reply().status, 200);
    let mut weir = weir;
    assert_eq!(weir.wait().code(), Some(0));
    assert_eq!(
        json(&weir, &["status"])["pid"],
        successor.id(),
        "who ended did not take the name along"
    );
    successor.kill().expect("it runs");
    successor.wait().expect("it is a child");
}

/// weir first reports that it is not ready, and clients notice nothing; then it accepts no new
/// clients, and answers the requests it has.
fn it_leaves_in_peace(io: Io) {
    let server = Server::start(held);
    let rest = |delay: &str| {
        format!("shutdown {{ delay \"{delay}\"; drain \"1m\" }}\n{}", app(&server, 1, ""))
    };
    let mut weir = Weir::start(io, 2, &rest("30m"));
    weir.signal("TERM");
    eventually("it is leaving", || json(&weir, &["status"])["state"] == "leaving");
    let ready = get(UnixStream::connect(weir.admin()).expect("it accepts"), "/readyz", "");
    assert!(ready.0.starts_with("HTTP/1.1 503 ") && ready.1 == "leaving\n", "{ready:?}");
    let (mut before, first) = (Client::connect(weir.address), nonce());
    before.get(&format!("/victim?n={first}"));
    server.wait("a client is served that came meanwhile", |log| log.requests.len() == 1);
    weir.signal("TERM");
    assert_eq!(weir.wait().code(), Some(0));
    assert!(before.try_reply().is_none(), "the second signal ends it at once");
    let mut weir = Weir::start(io, 2, &rest("50ms"));
    let (mut client, second) = (Client::connect(weir.address), nonce());
    client.get(&format!("/victim?n={second}"));
    server.wait("the request is there", |log| {
        log.requests.iter().any(|(_, request)| request.target.contains(&second))
    });
    weir.signal("TERM");
    eventually("nobody new is taken", || TcpStream::connect(weir.address).is_err());
    server.tell("go");
    let reply = client.reply();
    assert!(reply.status == 200 && reply.closes);
    assert_eq!(weir.wait().code(), Some(0));
    let said = weir.said();
    // The number of connections is not checked: each try of this test to connect may have been
    // accepted.
    let lines = [
        "shutting-down: not ready from now on",
        "draining: accepting no new clients, waiting for those that are connected seconds=60 \
            clients=",
        "drained: ",
    ];
    let found = lines.map(|line| said.find(&format!(" info weir: {line}")).expect(line));
    assert!(found.is_sorted(), "{said}");
    server.finish();
}

fn readiness_follows_the_servers(io: Io) {
    let port = free_port();
    let other = free_port();
    let rest = |required: &str| {
        format!(
            "upstream \"app\" {{ server \"127.0.0.1:{port}\" connections-min=1 connections=1; \
         {required} }}\nroute {{ proxy \"app\" }}\n\
         upstream \"other\" {{ server \"127.0.0.1:{other}\" connections-min=1 connections=1 }}\n\
         route path=\"/other\" {{ proxy \"other\" }}\n"
        )
    };
    let lenient = Weir::start(io, 1, &rest(""));
    let (head, body) =
        get(UnixStream::connect(lenient.admin()).expect("it accepts"), "/readyz", "");
    assert!(head.starts_with("HTTP/1.1 200 ") && body == "ready\n", "{head}\n{body}");
    assert_eq!(
        lenient.ask(&["status", "--wait=0"]).status.code(),
        Some(1),
        "it waits for servers all the same"
    );
    lenient.stop();
    let weir = Weir::start(io, 1, &rest("required #true"));
    let ready = || get(UnixStream::connect(weir.admin()).expect("it accepts"), "/readyz", "");
    let (head, body) = ready();
    assert!(head.starts_with("HTTP/1.1 503 ") && body == "no-server app\n", "{head}\n{body}");
    let refused = weir.ask(&["status", "--wait=0"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("no-server app"), "{said}");
    assert!(weir.answer(&["status"]).contains("not ready: no server of app is usable"));
    let server =
        Server::start_at(([127, 0, 0, 1], port).into(), Honest, weir_check::Rules::default());
    eventually("nothing is said against it", || ready().0.starts_with("HTTP/1.1 200 "));
    let second =
        Server::start_at(([127, 0, 0, 1], other).into(), Honest, weir_check::Rules::default());
    assert_eq!(weir.answer(&["status", "--wait"]), "");
    let watched = format!("127.0.0.1:{port}");
    weir.answer(&["server", "drain", "app", &watched]);
    assert_eq!(ready().1, "no-server app\n");
    weir.stop();
    server.finish();
    second.finish();
}

/// When requests stop, the present rate shows that within seconds, and the mean continues for
/// minutes.
fn rates_are_those_of_now(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    let mut client = Client::connect(weir.address);
    (0..50).for_each(|_| request(&mut client));
    let windows = || {
        let status = json(&weir, &["status"]);
        [
            status["clients"]["window"].clone(),
            status["upstreams"][0]["servers"][0]["window"].clone(),
        ]
    };
    let rate = |window: &Value, name: &str| window[name].as_f64().expect("a rate");
    eventually("it is quiet now", || {
        windows().iter().all(|window| rate(window, "requests_per_second_now") == 0.0)
    });
    for window in windows() {
        assert!(
            rate(&window, "requests_per_second") > 0.0 && window["answers"]["2xx"] == 50,
            "{window}"
        );
    }
    weir.stop();
    server.finish();
}

fn those_who_hang_hinder_nobody(io: Io) {
    let server = Server::start(Honest);
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let weir = Weir::start(io, 1, &format!("metrics \"{address}\"\n{}", app(&server, 1, "")));
    weir.answer(&["status", "--wait"]);
    // More than are served at once: they send nothing, half a head, or too much.
    let hanging: Vec<TcpStream> = (0..80)
        .map(|at| {
            let mut stream = connect(address);
            let _ = stream.write_all(
                ["", "GET /metrics HTTP/1.1\r\n", &"x".repeat(100_000)][at % 3].as_bytes(),
            );
            stream
        })
        .collect();
    let mut client = Client::connect(weir.address);
    (0..100).for_each(|_| request(&mut client));
    assert_eq!(json(&weir, &["status"])["clients"]["requests"], 100);
    // They are disconnected, and the client behind them is served.
    assert!(get(connect(address), "/healthz", "").0.starts_with("HTTP/1.1 200 "));
    drop(hanging);
    weir.stop();
    server.finish();
}

/// Whether the other side has not closed yet.
fn is_open(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("an option");
    stream.peek(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// A new connection takes the place of an idle one, and does not wait until the first ones time
/// out.
fn those_who_are_silent_keep_nobody_waiting(io: Io) {
    let server = Server::start(Honest);
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let weir = Weir::start(io, 1, &format!("metrics \"{address}\"\n{}", app(&server, 1, "")));
    // If the machine takes longer than their timeout for one response, the test tries again.
    eventually("it answers while most of them are still there", || {
        // As many as the limit.
        let silent: Vec<TcpStream> = (0..64).map(|_| connect(address)).collect();
        let healthy = get(connect(address), "/healthz", "").0.starts_with("HTTP/1.1 200 ");
        healthy && silent.iter().filter(|stream| is_open(stream)).count() >= 32
    });
    weir.stop();
    server.finish();
}

/// Returns the status of the response to these fields.
fn asked(address: SocketAddr, path: &str, fields: &str) -> u16 {
    let mut stream = connect(address);
    write!(stream, "GET {path} HTTP/1.1\r\n{fields}\r\n").expect("it reads");
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).expect("an answer");
    answer
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or_else(|| panic!("{answer}"))
}

/// A browser that a foreign name has led here (DNS rebinding) is rejected; people and programs are
/// not.
fn a_strangers_page_reads_nothing(io: Io) {
    let server = Server::start(Honest);
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let metrics = |hosts: &str| format!("metrics \"{address}\"\n{hosts}\n{}", app(&server, 1, ""));
    let weir = Weir::start(io, 1, &metrics(""));
    let browser = "User-Agent: Mozilla/5.0\r\nAccept-Language: en\r\n";
    let of = |host: &str, more: &str| format!("Host: {host}:{}\r\n{more}", address.port());
    for path in ["/", "/live.json", "/metrics", "/healthz"] {
        assert_eq!(asked(address, path, &of("evil.test", browser)), 421, "{path}");
        assert_eq!(asked(address, path, &of("127.0.0.1", browser)), 200, "{path}");
        assert_eq!(asked(address, path, &of("localhost", browser)), 200, "{path}");
        let scraped =
            asked(address, path, &of("weir.example.org", "User-Agent: Prometheus/3.0.0\r\n"));
        assert_eq!(
            scraped,
            if path.ends_with('/') || path.ends_with("json") { 421 } else { 200 },
            "{path}"
        );
    }
    weir.rewrite(&metrics("metrics-hosts \"weir.example.org\""));
    weir.answer(&["reload"]);
    assert_eq!(asked(address, "/live.json", &of("weir.example.org", browser)), 200);
    assert_eq!(asked(address, "/live.json", &of("evil.test", browser)), 421);
    weir.stop();
    server.finish();
}

/// In JSON, in both texts, in metrics and for the live page.
fn a_backup_is_marked(io: Io) {
    let servers = [Server::start(Honest), Server::start(Honest)];
    let names = [&servers[0], &servers[1]].map(|server| server.address.to_string());
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let upstream = format!(
        "upstream \"app\" {{ server \"{}\"; server \"{}\" backup=#true; }}",
        names[0], names[1]
    );
    let weir = Weir::start(
        io,
        1,
        &format!("metrics \"{address}\"\n{upstream}\nroute {{ proxy \"app\"; }}\n"),
    );
    weir.answer(&["status", "--wait"]);
    let told = json(&weir, &["status"]);
    let live: Value =
        serde_json::from_str(&get(connect(address), "/live.json", "").1).expect("JSON");
    let (table, metrics) = (weir.answer(&["status"]), get(connect(address), "/metrics", "").1);
    for (at, name) in names.iter().enumerate() {
        let is_backup = at == 1;
        assert_eq!(told["upstreams"][0]["servers"][at]["backup"], is_backup);
        let row = table
            .lines()
            .find(|line| line.contains(name.as_str()))
            .unwrap_or_else(|| panic!("{table}"));
        assert_eq!(row.contains("(backup)"), is_backup, "{table}");
        let page = weir.answer(&["status", "server", "app", name]);
        assert_eq!(page.contains(", backup: "), is_backup, "{page}");
        let line = format!(
            "weir_server_backup{{upstream=\"app\",server=\"{name}\"}} {}\n",
            u8::from(is_backup)
        );
        assert!(metrics.contains(&line), "{metrics}");
        let shown = live["servers"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|server| server["name"] == name.as_str());
        assert_eq!(shown.map(|server| &server["backup"]), Some(&Value::Bool(is_backup)), "{live}");
    }
    weir.stop();
    servers.into_iter().for_each(|server| _ = server.finish());
}

/// As an unprivileged user without a place for a socket: one line says so, and the proxy runs.
#[test]
fn no_place_for_the_socket_is_no_reason_to_die() {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let scratch = crate::kit::Scratch::new();
    let program = scratch.path("weir");
    fs::copy(env!("CARGO_BIN_EXE_weir"), &program).expect("a copy that everybody may read");
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--"])
        .arg(program);
    command.args(["reverse", "--to", "127.0.0.1:9", "--listen", &address.to_string()]);
    command.env_remove("WEIR_ADMIN").env_remove("XDG_RUNTIME_DIR").current_dir("/");
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("setpriv");
    let mut errors = child.stderr.take().expect("piped");
    // First that weir runs, then what is missing; nothing more if setpriv is not allowed.
    let said: Vec<String> =
        std::io::BufReader::new(&mut errors).lines().take(2).map_while(Result::ok).collect();
    let said = said.join("\n");
    let accepts = TcpStream::connect(address).is_ok();
    let _ = child.kill();
    let _ = child.wait();
    if said.contains("setpriv:") {
        eprintln!("skipped: {said}");
        return;
    }
    assert!(accepts, "{said}");
    assert!(said.contains("`weir status` won't work") && said.contains("--admin PATH"), "{said}");
}
