//! The verbs `demo` and `bench` as a user runs them: their output, how they end, and that nothing
//! is left behind.
//!
//! Every wait is for an event, with a deadline. `bench` needs nginx, and one test wrk, which
//! scripts/setup installs; without them a test says so and passes.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use weir_check::waiting::{eventually, patient};

/// A weir that ends with the test.
struct Weir {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Weir {
    fn start(arguments: &[&str]) -> Weir {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let mut child = command
            .args(arguments)
            .env("WEIR_ADMIN", "off")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Weir { child, lines }
    }

    /// Returns the next line that contains this text. The time limit of the test run ends a child
    /// that hangs; a child that ends is noticed here.
    fn line_with(&mut self, text: &str) -> String {
        let found = self.lines.find(|line| line.as_ref().unwrap().contains(text));
        found.unwrap_or_else(|| panic!("weir ended without a line with {text:?}")).unwrap()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the address in `http://ADDRESS/` at the end of a line.
fn address_in(line: &str) -> SocketAddr {
    line.split("http://").nth(1).unwrap().trim_end_matches('/').parse().unwrap()
}

fn get(address: SocketAddr, fields: &str) -> String {
    let mut stream = patient(TcpStream::connect(address).unwrap());
    write!(stream, "GET / HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n{fields}\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

#[test]
fn the_demo_serves_through_the_proxy_shows_figures_and_ends_on_a_signal() {
    for io in ["epoll", "auto"] {
        let mut demo =
            Weir::start(&["demo", "--listen", "127.0.0.1:0", "--clients", "0", "--io", io]);
        let page = address_in(&demo.line_with("look    http://"));
        let shown = get(page, "");
        assert!(shown.starts_with("HTTP/1.1 200 ") && shown.contains("text/html"), "{shown}");
        let address = address_in(&demo.line_with("curl -i http://"));
        let reply = get(address, "");
        assert!(reply.starts_with("HTTP/1.1 200 ") && reply.ends_with("\r\n\r\nok\n"), "{reply}");
        assert!(reply.contains("\r\nVia: 1.1 weir\r\n"), "through the proxy: {reply}");
        assert!(get(address, "Accept: text/html\r\n").contains("<title>weir</title>"));
        assert!(demo.line_with("req/s").contains("upstream"));
        kill_process(demo.pid(), Signal::INT).unwrap();
        assert_eq!(demo.line_with("requests served"), "weir demo: 2 requests served");
        assert!(demo.child.wait().unwrap().success());
    }
}

#[test]
fn the_demo_ends_by_itself() {
    let mut demo =
        Weir::start(&["demo", "--listen", "127.0.0.1:0", "--clients", "8", "--seconds", "2"]);
    assert!(demo.line_with("req/s").starts_with("pipelined "));
    let served = demo.line_with("requests served");
    assert!(!served.starts_with("weir demo: 0 "), "{served}");
    assert!(demo.child.wait().unwrap().success());
}

/// A directory of this test, removed at its end.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
    path.split(':').any(|directory| Path::new(directory).join(program).exists())
}

/// Whether nginx is installed, which serves the files; says so if not.
fn can_bench() -> bool {
    let can = is_installed("nginx");
    if !can {
        eprintln!("skipped: nginx is not installed (scripts/setup installs it)");
    }
    can
}

/// Runs an experiment to its end with these words. Returns what it printed, and the runs of its raw
/// file.
fn run_bench(name: &str, words: &[&str]) -> (String, Vec<serde_json::Value>) {
    let (printed, mut lines) = run_bench_to_lines(name, words);
    lines.retain(|line| line["kind"] == "run");
    (printed, lines)
}

/// The same with all lines of the raw file.
fn run_bench_to_lines(name: &str, words: &[&str]) -> (String, Vec<serde_json::Value>) {
    // Two tests may run the same experiment at the same time.
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let out = Directory(
        std::env::temp_dir().join(format!("weir-lab-{name}-{}-{run}", std::process::id())),
    );
    let directory = out.0.to_str().unwrap();
    let mut bench = Weir::start(&[&["bench", name, "--out", directory], words].concat());
    let scratch = format!("weir-bench-{}-", bench.child.id());
    let printed: Vec<String> = bench.lines.by_ref().map(Result::unwrap).collect();
    let printed = printed.join("\n") + "\n";
    assert!(bench.child.wait().unwrap().success());
    let left = fs::read_dir(std::env::temp_dir()).unwrap().filter_map(Result::ok);
    let left: Vec<_> =
        left.filter(|entry| entry.file_name().to_string_lossy().starts_with(&scratch)).collect();
    assert!(left.is_empty(), "configurations and logs are removed: {left:?}");

    assert_eq!(fs::read_to_string(out.0.join(format!("{name}.md"))).unwrap(), printed);
    let page = fs::read_to_string(out.0.join(format!("{name}.html"))).unwrap();
    assert!(
        page.starts_with("<!doctype html>") && page.ends_with("</html>\n") && page.contains("<svg"),
        "{page}"
    );
    let raw = fs::read_to_string(out.0.join(format!("{name}.jsonl"))).unwrap();
    let lines: Vec<_> =
        raw.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()).collect();
    let machine = &lines[0];
    assert_eq!((&machine["kind"], &machine["experiment"]), (&"machine".into(), &name.into()));
    assert!(machine["cores"].as_u64().unwrap() > 0, "{machine}");
    (printed, lines)
}

#[test]
fn a_short_bench_writes_table_and_raw_data_and_leaves_nothing_behind() {
    if !can_bench() {
        return;
    }
    let words =
        ["--connections=8", "--requests=minimal", "--bodies=3k", "--contender=direct,nginx,weir"];
    let (printed, lines) =
        run_bench_to_lines("sweep", &[&words[..], &["--rounds=1", "--seconds=1"]].concat());
    let of_kind = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).collect::<Vec<_>>();
    let records = of_kind("run");
    assert!(printed.contains("## c8-minimal-3kb: 8 connections, minimal, 3 KB\n"), "{printed}");
    for name in ["direct", "nginx", "weir"] {
        assert!(printed.contains(&format!("\n| {name} | ")), "{printed}");
    }
    assert_eq!(records.len(), 3);
    for record in &records {
        assert_eq!(record["kind"], "run");
        assert!(record["requests"].as_u64().unwrap() > 0, "{record}");
        assert_eq!(record["errors"], serde_json::json!({}), "{record}");
        let bytes = record["bytes"].as_u64().unwrap() / record["requests"].as_u64().unwrap();
        assert!((3072..4096).contains(&bytes), "a body and a head: {record}");
        let proxy_us = record["proxy_us"].as_f64().unwrap();
        assert_eq!(proxy_us > 0.0, record["contender"] != "direct", "{record}");
        assert!(
            record["origin_us"].as_f64().unwrap() > 0.0
                && record["generator_us"].as_f64().unwrap() > 0.0
        );
        let counts =
            record["histogram"].as_array().unwrap().iter().map(|pair| pair[1].as_u64().unwrap());
        assert_eq!(counts.sum::<u64>(), record["requests"].as_u64().unwrap(), "{record}");
        assert!(
            record["generator"].as_str().unwrap().contains(" bomb http://127.0.0.1:"),
            "{record}"
        );
    }
    let machine = &lines[0];
    let version = format!("weir {}, commit ", env!("CARGO_PKG_VERSION"));
    assert!(machine["weir"].as_str().unwrap().starts_with(&version), "{machine}");
    assert!(
        printed.contains("| mitigations | ") && printed.contains("| load before | "),
        "{printed}"
    );
    let settings = of_kind("setting");
    let named: Vec<&str> = settings.iter().map(|setting| setting["of"].as_str().unwrap()).collect();
    assert_eq!(named, ["origin", "nginx", "weir"], "{settings:?}");
    for (setting, expected) in
        settings.iter().zip(["open_file_cache", "proxy_pass http://app;", "queue-size"])
    {
        let text = setting["configurations"][0].as_str().unwrap();
        assert!(text.contains(expected), "{setting}");
        assert!(printed.contains(text.trim_end()), "whole: {printed}");
    }
    let rate = of_kind("median")
        .into_iter()
        .find(|line| line["contender"] == "weir" && line["of"] == "rate")
        .unwrap();
    assert_eq!((&rate["median"], &rate["rounds"]), (&records[2]["rate"], &1.into()), "{rate}");
    // The origin sees the generator's connections, and the few that weir makes when it needs them.
    assert!(records[0]["upstream_connections"].as_u64().unwrap() >= 8, "{}", records[0]);
    assert!(records[2]["upstream_connections"].as_u64().unwrap() <= 32, "{}", records[2]);
}

/// Held by one of these tests at a time: it uses all cores, and another would see late responses.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs an experiment that makes network namespaces. Returns what it printed, and all lines of its
/// raw file. None, with a message: they cannot be made here.
fn run_in_namespaces(name: &str, words: &[&str]) -> Option<(String, Vec<serde_json::Value>)> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root may make network namespaces");
        return None;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let out =
        Directory(std::env::temp_dir().join(format!("weir-lab-{name}-{}", std::process::id())));
    let mut bench =
        Weir::start(&[&["bench", name, "--out", out.0.to_str().unwrap()][..], words].concat());
    let printed = bench.lines.by_ref().map(Result::unwrap).collect::<Vec<_>>().join("\n");
    assert!(bench.child.wait().unwrap().success(), "{printed}");
    if let Some((_, why)) = printed.split_once(" | not run: ") {
        eprintln!("skipped: {}", why.lines().next().unwrap_or_default());
        return None;
    }
    let raw = fs::read_to_string(out.0.join(format!("{name}.jsonl"))).unwrap();
    Some((printed, raw.lines().map(|line| serde_json::from_str(line).unwrap()).collect()))
}

#[test]
fn a_slow_link_that_loses_packets_is_what_its_title_says() {
    // Most kernels have it as a module that is not loaded.
    let allowed =
        fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control").unwrap_or_default();
    if !allowed.split_whitespace().any(|name| name == "bbr") {
        return eprintln!(
            "skipped: bbr is not among the congestion controls that all may use \
                (tcp_allowed_congestion_control)"
        );
    }
    let words = [
        "--only=large-40ms-1,small-40ms-1",
        "--contender=direct-bbr,weir-bbr",
        "--rounds=1",
        "--seconds=2",
    ];
    let Some((printed, lines)) = run_in_namespaces("wan", &words) else { return };
    let records: Vec<_> = lines.iter().filter(|line| line["kind"] == "run").collect();
    assert_eq!(records.len(), 4, "{printed}");
    for record in records {
        let carried = &record["wan"];
        let of = |way: &str, what: &str| carried[way][what].as_u64().unwrap();
        assert!(
            of("to_clients", "packets") > of("to_clients", "lost")
                && of("to_servers", "packets") > 0,
            "{record}"
        );
        assert_eq!(record["errors"], serde_json::json!({}), "{record}");
        assert_eq!(
            record["proxy_us"].as_f64().unwrap() > 0.0,
            record["contender"] == "weir-bbr",
            "{record}"
        );
        if record["cell"] == "large-40ms-1" {
            let rate = record["rate"].as_f64().unwrap();
            assert!(rate > 0.0 && rate <= 20e6 / 8.0, "no more than the link carries: {record}");
            assert!(of("to_clients", "lost") > 0, "hundreds of packets: {record}");
        } else {
            // One round trip for the connection, another for the object.
            assert!(record["latency"]["p50_us"].as_u64().unwrap() >= 80_000, "{record}");
            assert!(record["requests"].as_u64().unwrap() > 0, "{record}");
        }
    }
    let set = |of: &str| {
        lines.iter().find(|line| line["kind"] == "setting" && line["of"] == of).unwrap().to_string()
    };
    assert!(set("weir-bbr").contains(r#"congestion=\"bbr\""#), "{}", set("weir-bbr"));
    assert!(
        printed.contains("| rate / bbr end to end |")
            && printed.contains("| p99 / cubic end to end |"),
        "{printed}"
    );
}

#[test]
fn who_stands_on_a_router_is_compared_with_nobody() {
    let contenders = if is_installed("haproxy") {
        "--contender=weir-through,haproxy-through"
    } else {
        "--contender=weir-through"
    };
    let words = ["--only=closed-8k,half-8k", contenders, "--rounds=1", "--seconds=1"];
    let Some((printed, lines)) = run_in_namespaces("pep", &words) else { return };
    let records: Vec<_> = lines.iter().filter(|line| line["kind"] == "run").collect();
    assert!(records.len() >= 4, "{printed}");
    for record in records {
        assert_eq!(record["errors"], serde_json::json!({}), "{record}");
        let (requests, bytes) =
            (record["requests"].as_u64().unwrap(), record["bytes"].as_u64().unwrap());
        assert!(requests > 0 && bytes / requests >= 8 << 10, "{record}");
        let is_routed = record["contender"] == "routed";
        // A contender that gets no packets does no work.
        let own_us = record["proxy_us"].as_f64().unwrap() / requests as f64;
        assert!(if is_routed { own_us == 0.0 } else { own_us > 5.0 }, "{record}");
        assert!(record["pep"]["busy_us"].as_f64().unwrap() > 0.0, "{record}");
        assert_eq!(record["pep"]["routed"].is_null(), is_routed, "{record}");
    }
    assert!(printed.contains("| added CPU µs a connection | added CPU s/GB |"), "{printed}");
}

#[test]
fn ways_through_a_router_are_what_they_are_called() {
    let words =
        ["--only=tproxy-half-8k,hooks-half-8k,v6-half-8k,far-8k", "--rounds=1", "--seconds=1"];
    let contenders = "--contender=weir-through,weir-intercept,weir-intercept-syn";
    let Some((printed, lines)) = run_in_namespaces("pep", &[&words[..], &[contenders]].concat())
    else {
        return;
    };
    let records: Vec<_> = lines.iter().filter(|line| line["kind"] == "run").collect();
    for cell in ["tproxy-half-8k", "hooks-half-8k", "v6-half-8k", "far-8k"] {
        let of_cell = || records.iter().filter(|record| record["cell"] == cell);
        // nftables, a part of it, or IPv6 may be missing.
        let is_missing = printed.contains("nft") || printed.contains("the kernel has no IPv6");
        assert!(of_cell().count() > 1 || is_missing, "{printed}");
        for record in of_cell() {
            assert!(record["requests"].as_u64().unwrap() > 0, "{record}");
            assert_eq!(record["errors"], serde_json::json!({}), "{record}");
            // A handshake with the accepting side, and a request to the server: two ways of 25 ms,
            // or one with the longer part of the other.
            let least_us = match record["contender"].as_str() {
                _ if cell != "far-8k" => 1,
                Some("weir-intercept-syn") => 45_000,
                _ => 50_000,
            };
            assert!(record["latency"]["p50_us"].as_u64().unwrap() >= least_us, "{record}");
        }
    }
    assert_eq!(records.iter().filter(|record| record["cell"] == "far-8k").count(), 3, "{printed}");
}

#[test]
fn attackers_are_blocked_and_users_are_not() {
    let words = ["--only=requests", "--contender=weir,weir-429", "--rounds=1", "--seconds=1"];
    let Some((printed, mut records)) = run_in_namespaces("block", &words) else { return };
    records.retain(|line| line["kind"] == "run");
    let blocked = |at: usize| &records[at]["blocked"];
    assert_eq!(
        (&blocked(0)["blocked"], &blocked(0)["allowed"]),
        (&serde_json::json!({}), &serde_json::Value::Null)
    );
    // 20 attackers, 20 requests of each at once and 2 a second.
    let served = blocked(1)["served"].as_u64().unwrap();
    assert!((1..=20 * (20 + 2)).contains(&served), "{}", records[1]);
    assert!(blocked(1)["blocked"]["429"].as_u64().unwrap() > served, "{}", records[1]);
    assert_eq!(blocked(1)["users_blocked"], 0, "{}", records[1]);
    assert!(records[1]["requests"].as_u64().unwrap() > 0, "{}", records[1]);
    assert!(
        printed.contains("| 429: users' requests that were turned away | ≤ 0.00 | 0.00 | pass |"),
        "{printed}"
    );
}

#[test]
fn both_generators_are_asked_what_a_stall_did_to_them() {
    if !is_installed("wrk") {
        eprintln!("skipped: wrk is not installed (scripts/setup installs it)");
        return;
    }
    let (printed, records) = run_bench("generator", &["--only=stall", "--rounds=1"]);
    let of = |name: &str| records.iter().find(|record| record["contender"] == name).unwrap();
    let (wrk, bomb) = (of("wrk"), of("bomb"));
    for record in [wrk, bomb] {
        assert!(
            record["latency"]["max_us"].as_u64().unwrap() > 900_000,
            "it stood still: {record}"
        );
    }
    // A hundredth of 10,000 requests that were due within a second of standstill waited for nearly
    // all of it.
    let p99_us = |of: &serde_json::Value| of["p99_us"].as_u64().unwrap();
    assert!(p99_us(&bomb["latency"]) > 850_000, "{bomb}");
    assert!(p99_us(&bomb["sent"]) < p99_us(&bomb["latency"]) / 2, "{bomb}");
    assert!(wrk["sent"].is_null() && printed.contains("p99 from sent"), "{printed}");
}

#[test]
fn servers_die_and_freeze_on_time_and_no_post_comes_twice() {
    let words = ["--only=killed,frozen", "--contender=weir", "--rounds=1", "--seconds=3"];
    let (printed, records) = run_bench("failover", &words);
    assert!(
        printed.contains("## killed: ") && printed.contains("| POSTs answered 2xx |"),
        "{printed}"
    );
    let cells: Vec<&str> = records.iter().map(|record| record["cell"].as_str().unwrap()).collect();
    assert_eq!(cells, ["killed", "frozen"]);
    for record in &records {
        let run = &record["failover"];
        assert_eq!(
            (&run["reads"]["offered"], &run["writes"]["offered"]),
            (&6000.into(), &600.into()),
            "{run}"
        );
        assert!(run["reads"]["good"].as_u64().unwrap() > 3000, "{run}");
        assert_eq!(run["writes_twice"], 0, "{run}");
        assert!(
            run["writes_reached"].as_u64().unwrap() >= run["writes"]["good"].as_u64().unwrap(),
            "{run}"
        );
        let seconds = run["timeline"].as_array().unwrap();
        let good: u64 = seconds.iter().map(|second| second["good"].as_u64().unwrap()).sum();
        assert_eq!(record["requests"], good, "{run}");
        let events = run["events"].as_array().unwrap();
        let words: Vec<&str> = events.iter().map(|event| event["what"].as_str().unwrap()).collect();
        let same = events[0]["process"] == events[1]["process"];
        match record["cell"].as_str() {
            Some("killed") => assert!(words == ["killed", "started"] && !same, "{run}"),
            _ => assert!(words == ["frozen", "thawed"] && same, "{run}"),
        }
        for event in events {
            assert!(
                !Path::new("/proc").join(event["process"].to_string()).exists(),
                "left behind: {event}"
            );
        }
    }
}

#[test]
fn a_contender_with_an_origin_of_its_own_is_seen_with_it() {
    if !can_bench() {
        return;
    }
    let words = ["--only=c64", "--contender=nginx,weir,weir-closing", "--rounds=1", "--seconds=1"];
    let (_, records) = run_bench("targets", &words);
    assert_eq!(records.len(), 3);
    for record in &records {
        assert!(record["origin_us"].as_f64().unwrap() > 0.0, "{record}");
    }
    let made = |name: &str| {
        let record = records.iter().find(|record| record["contender"] == name).unwrap();
        record["upstream_connections"].as_u64().unwrap()
    };
    assert!(made("weir-closing") > made("weir"), "one for each 100 requests: {records:?}");
}

#[test]
fn the_probe_asks_a_server_whose_workers_are_all_busy() {
    let words = ["--only=idle,close-2", "--contender=direct,weir", "--rounds=1", "--seconds=1"];
    let (printed, records) = run_bench("keepalive", &words);
    assert!(printed.contains("| slower than 20 ms, of 10,000 |"), "{printed}");
    assert_eq!(records.len(), 4);
    for record in &records {
        let run = &record["probed"];
        // Fewer than 190 if the machine had no time.
        let (requests, slow) = (run["requests"].as_u64().unwrap(), run["slow"].as_u64().unwrap());
        assert!((2..=190).contains(&requests) && slow <= requests && run["failed"] == 0, "{run}");
        assert!(record["latency"]["p50_us"].as_u64().unwrap() > 0, "{record}");
        let busy: Vec<f64> =
            run["busy"].as_array().unwrap().iter().map(|share| share.as_f64().unwrap()).collect();
        let answered = run["load_answered"].as_u64().unwrap();
        match record["cell"].as_str() {
            Some("idle") => assert!(answered == 0 && busy[1] < 0.1, "{run}"),
            _ => assert!(answered > 2 && busy[0] > 0.01, "each worker has its half: {run}"),
        }
    }
}

#[test]
fn fast_requests_are_told_from_slow_ones_beside_them() {
    let words = ["--only=beside-8,twice,prefork", "--contender=weir", "--rounds=1", "--seconds=1"];
    let (printed, records) = run_bench("mixed", &words);
    assert!(printed.contains("| over 8 ms | executed twice |"), "{printed}");
    let of = |cell: &str| records.iter().find(|record| record["cell"] == cell).unwrap();
    for record in &records {
        let run = &record["mixed"];
        let (answered, late) = (run["answered"].as_u64().unwrap(), run["late"].as_u64().unwrap());
        assert!(answered > 0 && late <= answered, "{run}");
        // Whatever the machine does meanwhile, 25 ms responses are later than 20 ms, and are not
        // those of the row.
        let slow = &run["beside"][0];
        assert!(
            slow["rate"].as_f64().unwrap() > 0.0
                && slow["latency"]["max_us"].as_u64().unwrap() > 20_000,
            "{run}"
        );
        assert!(record["requests"].as_u64().unwrap() > answered, "{record}");
    }
    let twice = &of("twice")["mixed"];
    assert_eq!(
        (twice["twice"].as_u64(), twice["numbered"].as_u64() > Some(1000)),
        (Some(0), true),
        "{twice}"
    );
    assert!(of("beside-8")["mixed"]["twice"].is_null(), "its requests have no numbers");
    assert!(of("prefork")["upstream_connections"].as_u64().unwrap() > 0, "{records:?}");
}

#[test]
fn all_clients_are_counted_at_one_worker_or_another() {
    let contenders =
        if is_installed("nginx") { "--contender=nginx-shared,weir" } else { "--contender=weir" };
    let (printed, records) =
        run_bench("ladder", &["--only=bursts", contenders, "--rounds=1", "--seconds=1"]);
    assert!(printed.contains("| connections: most / least |"), "{printed}");
    assert!(!records.is_empty());
    for record in &records {
        let of = |what: &str| {
            record["ladder"][what].as_array().unwrap().iter().map(|count| count.as_u64().unwrap())
        };
        let cores = std::thread::available_parallelism().unwrap().get();
        assert_eq!((of("connections").count(), of("cpu_us").count()), (cores, cores), "{record}");
        // Late are clients without a response within half a second; on a busy machine some are.
        let gone = |kind: &str| record["errors"][kind].as_u64().unwrap_or(0);
        let connected = 2000 - gone("not_connected") - gone("lost");
        // And some are not accepted yet.
        let accepted = of("connections").sum::<u64>();
        assert!(connected > 1000 && accepted <= connected && accepted * 2 > connected, "{record}");
        assert!(
            of("cpu_us").sum::<u64>() > 0 && record["requests"].as_u64().unwrap() > 0,
            "{record}"
        );
    }
}

#[test]
fn a_core_is_taken_from_workers_and_not_from_clients() {
    let (printed, records) =
        run_bench("taken-core", &["--contender=direct,weir", "--rounds=1", "--seconds=1"]);
    if let Some((_, why)) = printed.split_once(" | not run: ") {
        return eprintln!("skipped: {}", why.lines().next().unwrap_or_default());
    }
    assert_eq!(records.len(), 2, "{printed}");
    for record in &records {
        assert!(
            record["taken"]["times"].as_u64().unwrap() > 0
                && record["taken"]["share"].as_f64().unwrap() > 0.0
        );
        assert!(record["requests"].as_u64().unwrap() > 0, "{record}");
        assert_eq!(record["errors"], serde_json::json!({}), "{record}");
        assert_eq!(
            record["proxy_us"].as_f64().unwrap() > 0.0,
            record["contender"] == "weir",
            "{record}"
        );
    }
}

#[test]
fn nobody_is_lost_while_a_configuration_is_taken_into_force() {
    let contenders: Vec<&str> =
        ["nginx", "haproxy"].into_iter().filter(|name| is_installed(name)).collect();
    let words =
        format!("--contender={}", [&contenders[..], &["weir-hash", "weir"]].concat().join(","));
    let (printed, records) = run_bench("reload", &[&words, "--rounds=1", "--seconds=3"]);
    assert_eq!(records.len(), contenders.len() + 2, "{printed}");
    for record in &records {
        assert_eq!(record["reloads"]["times"], 2, "{record}");
        assert!(record["requests"].as_u64().unwrap() > 0, "{record}");
        if record["contender"].as_str().unwrap().starts_with("weir") {
            assert_eq!(record["errors"], serde_json::json!({}), "{record}");
        }
    }
}

#[test]
fn a_tunnel_is_filled_both_ways_and_idle_ones_are_weighed() {
    let contenders = match is_installed("haproxy") {
        true => "--contender=direct,haproxy-splice,haproxy-copy,weir-forward,weir-forward-epoll",
        false => "--contender=direct,weir-forward,weir-forward-epoll",
    };
    let words = ["--only=tunnel,tunnel-up,tunnel-idle", contenders, "--rounds=1", "--seconds=1"];
    let (printed, records) = run_bench("forward", &words);
    assert!(
        printed.contains("| CPU s/GB: proxy |") && printed.contains("| bytes for each tunnel |"),
        "{printed}"
    );
    assert!(
        printed.contains("| full tunnel: rate against HAProxy with splice | ≥ 1.00 | "),
        "{printed}"
    );
    let of =
        |cell: &str| records.iter().filter(|record| record["cell"] == cell).collect::<Vec<_>>();
    let (down, up, idle) = (of("tunnel"), of("tunnel-up"), of("tunnel-idle"));
    assert!(down.len() >= 3 && up.len() == down.len() && idle.len() >= 2, "{printed}");
    // Bytes lost on the way, or a tunnel that ended early, would be an error.
    assert!(records.iter().all(|record| record["errors"] == serde_json::json!({})), "{printed}");
    for record in down.iter().chain(&up) {
        assert!(
            record["bytes"].as_u64().unwrap() > 0 && record["rate"].as_f64().unwrap() > 0.0,
            "{record}"
        );
        assert!(record["generator_us"].as_f64().unwrap() > 0.0, "{record}");
        let proxy_us = record["proxy_us"].as_f64().unwrap();
        assert_eq!(proxy_us > 0.0, record["contender"] != "direct", "{record}");
    }
    for record in idle {
        assert!(
            (100.0..20_000.0).contains(&record["bytes_per_connection"].as_f64().unwrap()),
            "{record}"
        );
    }
}

#[test]
fn all_are_asked_by_http_2_and_who_stalls_is_seen_beside_honest_clients() {
    if !can_bench() {
        return;
    }
    let contenders = match is_installed("haproxy") {
        true => "--contender=nginx,haproxy,weir,weir-http1,weir-alone",
        false => "--contender=nginx,weir,weir-http1,weir-alone",
    };
    let words = [
        "--only=tls-64x10,h2c-64x10,idle-http2,stalled",
        contenders,
        "--quick",
        "--rounds=1",
        "--seconds=1",
    ];
    let (printed, records) = run_bench("http2", &words);
    assert!(
        printed.contains("| TLS library |") && printed.contains("| CPU / HTTP/1.1 |"),
        "{printed}"
    );
    assert!(
        printed.contains("| p99 / alone |")
            && printed.contains("resident memory at its highest, MB"),
        "{printed}"
    );
    assert!(printed.contains("against HTTP/1.1 on 64 connections | ≤ 1.15 | "), "{printed}");
    // A contender that lacks the protocol, or ends a connection, would have errors.
    assert!(
        records.len() >= 7
            && records.iter().all(|record| record["errors"] == serde_json::json!({})),
        "{records:?}"
    );
    for record in &records {
        let requests = record["requests"].as_u64().unwrap();
        assert!(requests > 0, "{record}");
        match record["cell"].as_str() {
            // Its header table alone has 4 KiB.
            Some("idle-http2") => {
                assert!(record["bytes_per_connection"].as_f64().unwrap() > 4000.0, "{record}")
            }
            Some("stalled") if record["contender"] == "weir-alone" => {
                assert!(record["stalled"].is_null(), "{record}")
            }
            Some("stalled") => assert!(record["stalled"]["open"].as_u64().unwrap() > 0, "{record}"),
            Some("tls-64x10") => assert!(record["handshakes"].is_object(), "{record}"),
            _ => assert!(record["handshakes"].is_null(), "{record}"),
        }
    }
}

#[test]
fn what_cannot_be_measured_is_said_before_anything_starts() {
    let cases: &[(&[&str], &str)] = &[
        (&["proxyng"], "did you mean `proxying`?"),
        (&["targets", "--only=c65"], "no cell called `c65`"),
        (&["targets", "--contender=wrk"], "no contender `wrk` in the selection"),
        (&["targets", "--connections=8"], "--connections: the experiment `targets` has its own"),
        (&["sweep", "--requests=tiny"], "`tiny` is not minimal, browser or close"),
        (&["sweep", "--bodies=1g"], "`1g` is not a length"),
        (&["sweep", "--connections=4096", "--bodies=1m"], "do not fit"),
        (&["late", "--out", "/dev/null/x"], "/dev/null/x: "),
        (&["targets", "--program=nginx"], "`nginx` is not NAME=PATH"),
        (
            &["targets", "--program=envoy=/bin/true", "--contender=nginx"],
            "no program `envoy` in the selection; it has: nginx",
        ),
        (&["targets", "--program=nginx=/no/nginx"], "/no/nginx is not a file"),
    ];
    for (words, expected) in cases {
        let output =
            Command::new(env!("CARGO_BIN_EXE_weir")).arg("bench").args(*words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(expected), "{words:?}: {said}");
        assert!(matches!(output.status.code(), Some(1 | 2)), "{words:?}");
    }
}

#[test]
fn a_bench_keeps_what_it_made_and_takes_the_program_that_it_was_given() {
    if !can_bench() {
        return;
    }
    let out = Directory(std::env::temp_dir().join(format!("weir-lab-keep-{}", std::process::id())));
    fs::create_dir(&out.0).unwrap();
    // A separate nginx, as for a user who built a newer one.
    let installed = ["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx"];
    let installed = installed.into_iter().find(|path| Path::new(path).exists()).expect("nginx");
    let own = out.0.join("own-nginx");
    std::os::unix::fs::symlink(installed, &own).unwrap();
    let (directory, program) =
        (out.0.to_str().unwrap(), format!("--program=nginx={}", own.display()));
    let words = [
        "bench",
        "targets",
        "--out",
        directory,
        "--keep",
        &program,
        "--only=c64",
        "--contender=nginx,weir",
    ];
    let mut bench = Weir::start(&[&words[..], &["--rounds=1", "--seconds=1"]].concat());
    let printed = bench.lines.by_ref().map(Result::unwrap).collect::<Vec<_>>().join("\n");
    assert!(bench.child.wait().unwrap().success(), "{printed}");
    assert!(printed.contains(&format!("({})", own.display())), "{printed}");
    assert!(printed.contains(&format!("\n$ {} -p ", own.display())), "its command line: {printed}");
    let kept = out.0.join("targets.work/c64");
    let read = |name: &str| {
        fs::read_to_string(kept.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    assert!(
        read("nginx.conf").contains("proxy_pass")
            && read("origin.conf").contains("open_file_cache")
    );
    assert!(
        read("weir.0.kdl").contains("upstream \"app\"") && read("weir.0.log").contains("weir: ")
    );
    for name in ["nginx.1.bomb.jsonl", "weir.1.bomb.jsonl"] {
        assert!(read(name).contains("\"kind\":\"second\""), "{name}");
    }
}

/// A rival gets the better of its settings. The table's notes show which, and the time of the
/// other, and all runs are kept.
#[test]
fn a_bench_says_which_settings_a_rival_got() {
    if !can_bench() || !is_installed("haproxy") {
        return;
    }
    let words = ["--quick", "--only=c64", "--contender=haproxy,weir", "--rounds=1", "--seconds=1"];
    let (printed, lines) = run_bench_to_lines("targets", &words);
    let told =
        printed.lines().find(|line| line.starts_with("- haproxy has `tune.pool-low-fd-ratio "));
    let told = told.unwrap_or_else(|| panic!("{printed}"));
    assert!(told.contains(" µs a request in a short sweep (tune.pool-low-fd-ratio "), "{told}");
    let of_kind = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).collect::<Vec<_>>();
    let sweeps = of_kind("sweep");
    assert_eq!(sweeps.len(), 1, "weir has its defaults: {sweeps:?}");
    let (tried, chosen) =
        (sweeps[0]["tried"].as_array().unwrap(), sweeps[0]["chosen"].as_u64().unwrap());
    assert!(tried.len() == 2 && chosen < 2 && sweeps[0]["cells"][0] == "c64", "{sweeps:?}");
    assert!(
        tried.iter().all(|one| one["cpu_us"][0].as_f64().is_some_and(|us| us > 0.0)),
        "{sweeps:?}"
    );
    // The contender runs with the chosen setting.
    let settings = of_kind("setting");
    let of_haproxy = settings
        .iter()
        .find(|setting| setting["of"] == "haproxy")
        .expect("how it is set")
        .to_string();
    assert_eq!(of_haproxy.contains("tune.pool-low-fd-ratio 90"), chosen == 1, "{of_haproxy}");
}

/// Sends a signal to a bench after this was written. Returns standard output, standard error, its
/// exit code, and its page.
fn interrupted(name: &str, words: &[&str], once: &str) -> (String, String, Option<i32>, String) {
    let out =
        Directory(std::env::temp_dir().join(format!("weir-lab-{name}-{}", std::process::id())));
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["bench", "targets", "--out", out.0.to_str().unwrap()]).args(words);
    let mut bench = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut lines = BufReader::new(bench.stderr.take().unwrap()).lines();
    for line in lines.by_ref().map(Result::unwrap) {
        said.push_str(&(line + "\n"));
        if said.contains(once) {
            break;
        }
    }
    kill_process(Pid::from_child(&bench), Signal::INT).unwrap();
    lines.map(Result::unwrap).for_each(|line| said.push_str(&(line + "\n")));
    let output = bench.wait_with_output().unwrap();
    let page = fs::read_to_string(out.0.join("targets.html")).unwrap();
    (String::from_utf8(output.stdout).unwrap(), said, output.status.code(), page)
}

#[test]
fn an_interrupted_bench_shows_whole_rounds_and_decides_nothing() {
    if !can_bench() {
        return;
    }
    let words = ["--rounds=9", "--seconds=1", "--only=c64", "--contender=nginx,weir"];
    // One round is complete, and the second has begun.
    let (printed, said, code, page) = interrupted("partial", &words, "  2 nginx");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.ends_with("weir bench: interrupted: the table has the complete runs\n"), "{said}");
    assert!(printed.contains("Partial: stopped in `c64`"), "{printed}");
    // On a slow machine the second round was also complete before the signal came.
    let whole = said.lines().filter(|line| line.contains(" weir ")).count();
    let expected = if whole == 1 {
        "One round: no".to_owned()
    } else {
        format!("Medians of {whole} rounds; ")
    };
    assert!((1..9).contains(&whole) && printed.contains(&expected), "{whole}: {printed}");
    assert!(printed.contains("in a partial run") && !printed.contains("| pass |"), "{printed}");
    assert!(page.contains("A partial run decides nothing") && !page.contains(" are met"), "{page}");
}

#[test]
fn an_interrupted_bench_ends_its_processes() {
    if !can_bench() {
        return;
    }
    let out = Directory(std::env::temp_dir().join(format!("weir-lab-stop-{}", std::process::id())));
    let directory = out.0.to_str().unwrap();
    let long = [
        "targets",
        "--rounds=9",
        "--seconds=60",
        "--out",
        directory,
        "--only=c64",
        "--contender=weir",
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let mut bench = command.arg("bench").args(long).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(bench.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert!(line.starts_with("c64:"), "{line}");
    let scratch = std::env::temp_dir().join(format!("weir-bench-{}-nginx", bench.id()));
    let mut origin = String::new();
    eventually("the origin starts", || {
        origin = fs::read_to_string(scratch.join("origin.pid")).unwrap_or_default();
        origin.ends_with('\n')
    });
    kill_process(Pid::from_child(&bench), Signal::TERM).unwrap();
    assert_eq!(bench.wait().unwrap().code(), Some(1));
    assert!(!scratch.exists(), "configurations and logs are removed");
    assert!(!Path::new("/proc").join(origin.trim()).exists(), "nginx has ended");
}
