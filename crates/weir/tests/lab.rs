//! The verbs `demo` and `bench` as a user runs them: what they print and write, how they end, and that nothing is left behind.
//!
//! Every wait is for an event, with a deadline. `bench` needs wrk and nginx, which scripts/setup installs; where they are
//! missing its test says so and passes.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// A weir that is ended when the test ends.
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

    /// The next line that contains this. A child that hangs is ended by the time limit of the test run; one that ends is
    /// noticed here.
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

/// The address in `curl -i http://ADDRESS/`.
fn address_in(line: &str) -> SocketAddr {
    line.split("http://").nth(1).unwrap().trim_end_matches('/').parse().unwrap()
}

fn get(address: SocketAddr, fields: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "GET / HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n{fields}\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

#[test]
fn the_demo_serves_through_the_proxy_shows_figures_and_ends_on_a_signal() {
    for io in ["epoll", "auto"] {
        let mut demo = Weir::start(&["demo", "--listen", "127.0.0.1:0", "--io", io]);
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
    let mut demo = Weir::start(&["demo", "--listen", "127.0.0.1:0", "--seconds", "1"]);
    demo.line_with("requests served");
    assert!(demo.child.wait().unwrap().success());
}

/// A directory of this test, gone at its end.
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

#[test]
fn a_short_bench_writes_table_and_raw_data_and_leaves_nothing_behind() {
    if !is_installed("wrk") || !is_installed("nginx") {
        eprintln!("skipped: wrk or nginx is not installed (scripts/setup installs them)");
        return;
    }
    let out = Directory(std::env::temp_dir().join(format!("weir-lab-out-{}", std::process::id())));
    let directory = out.0.to_str().unwrap();
    let short = ["--rounds", "1", "--seconds", "1", "--out", directory, "--only", "c8"];
    let contenders = ["--contender", "direct", "--contender", "nginx", "--contender", "weir"];
    let mut bench = Weir::start(&[&["bench"], &short[..], &contenders[..]].concat());
    let scratch = std::env::temp_dir().join(format!("weir-bench-{}-nginx", bench.child.id()));
    bench.line_with("## c8: 8 connections");
    for name in ["direct", "nginx", "weir"] {
        bench.line_with(&format!("| {name} |"));
    }
    assert!(bench.lines.by_ref().last().is_some());
    assert!(bench.child.wait().unwrap().success());
    assert!(!scratch.exists(), "configurations and logs are removed");

    assert!(fs::read_to_string(out.0.join("latest.md")).unwrap().starts_with("# weir bench\n"));
    let raw = fs::read_to_string(out.0.join("latest.jsonl")).unwrap();
    let records: Vec<serde_json::Value> = raw.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), 3);
    for record in &records {
        assert!(record["requests"].as_u64().unwrap() > 0, "{record}");
        assert_eq!(record["errors"]["status"], 0, "{record}");
        let proxy_us = record["proxy_us"].as_f64().unwrap();
        assert_eq!(proxy_us > 0.0, record["contender"] != "direct", "{record}");
        assert!(record["origin_us"].as_f64().unwrap() > 0.0 && record["generator_us"].as_f64().unwrap() > 0.0);
    }
    // The origin sees the generator's own connections (and wrk's first look); a proxy keeps those it has.
    assert!(records[0]["upstream_connections"].as_u64().unwrap() >= 8, "{raw}");
    assert_eq!(records[2]["upstream_connections"], 0, "{raw}");
}

#[test]
fn an_interrupted_bench_ends_its_processes() {
    if !is_installed("wrk") || !is_installed("nginx") {
        eprintln!("skipped: wrk or nginx is not installed (scripts/setup installs them)");
        return;
    }
    let out = Directory(std::env::temp_dir().join(format!("weir-lab-stop-{}", std::process::id())));
    let directory = out.0.to_str().unwrap();
    let long = ["--rounds", "9", "--seconds", "60", "--out", directory, "--only", "c8", "--contender", "weir"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let mut bench = command.arg("bench").args(long).stderr(Stdio::piped()).spawn().unwrap();
    let mut errors = BufReader::new(bench.stderr.take().unwrap());
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert!(line.starts_with("c8:"), "{line}");
    let scratch = std::env::temp_dir().join(format!("weir-bench-{}-nginx", bench.id()));
    assert!(scratch.exists());
    let origin = fs::read_to_string(scratch.join("origin.pid")).unwrap();
    kill_process(Pid::from_child(&bench), Signal::TERM).unwrap();
    assert_eq!(bench.wait().unwrap().code(), Some(1));
    assert!(!scratch.exists(), "configurations and logs are removed");
    assert!(!Path::new("/proc").join(origin.trim()).exists(), "nginx has ended");
}
