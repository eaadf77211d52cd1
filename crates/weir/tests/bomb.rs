//! `weir bomb` as a user runs it: its output, how it refuses, how it ends. Runs the real binary
//! against weir's own origin and against an address without a server.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use weir_io::IoChoice;
use weir_lab::origin::{self, OriginHandle, OriginOptions};

fn bomb(arguments: &[&str]) -> Output {
    let binary = env!("CARGO_BIN_EXE_weir");
    Command::new(binary)
        .arg("bomb")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the binary")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn server() -> OriginHandle {
    let listen: SocketAddr = ([127, 0, 0, 1], 0).into();
    origin::spawn(OriginOptions { listen, threads: 1, io: IoChoice::Auto }).expect("an origin")
}

#[test]
fn a_run_is_told_to_people_and_to_programs() {
    let server = server();
    let url = format!("http://{}/?size=10", server.local_addr());
    let told = bomb(&["-c", "3", "-n", "300", "-H", "X-A: b", "--preset", "browser", &url]);
    assert_eq!(told.status.code(), Some(0), "{}", text(&told.stderr));
    let shown = text(&told.stdout);
    for part in ["300 answered", "200: 300", "3 established", "from sent", "generator"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(
        !shown.contains('\u{1b}') && !shown.contains('\r'),
        "no control characters without a terminal"
    );
    let directory = std::env::temp_dir().join(format!("weir-bomb-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    let file = directory.join("raw.jsonl");
    let path = file.to_str().expect("text");
    let told = bomb(&[
        "-n",
        "50",
        "-c",
        "2",
        "-R",
        "1000",
        "--arrivals",
        "poisson",
        "--json",
        "--out",
        path,
        "--class",
        "a: pipeline=2",
        "--class",
        "b",
        &url,
    ]);
    let summary: Value = serde_json::from_slice(&told.stdout).expect("JSON");
    assert_eq!(summary["total"]["requests"]["answered"], 100);
    assert_eq!(
        (&summary["classes"][0]["name"], &summary["classes"][1]["requests"]["answered"]),
        (&"a".into(), &50.into())
    );
    let raw = fs::read_to_string(&file).expect("the raw file");
    assert!(
        raw.lines().all(|line| serde_json::from_str::<Value>(line).is_ok())
            && raw.lines().count() >= 5,
        "{raw}"
    );
    fs::remove_dir_all(&directory).expect("still there");
}

/// The page and the raw file say what was run, when, where and how, without secrets.
#[test]
fn a_report_says_what_was_run_when_and_where() {
    let server = server();
    let url = format!("http://{}/?size=3&token=s3cret", server.local_addr());
    let directory = std::env::temp_dir().join(format!("weir-bomb-said-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    let [raw, page] =
        ["raw.jsonl", "page.html"].map(|name| directory.join(name).display().to_string());
    let secret = ["-H", "Authorization: Bearer s3cret"];
    let words = ["-c", "2", "-n", "20", "--seed", "77", "--out", &raw, "--report", &page];
    let told = bomb(&[&words[..], &secret, &["--class", "a: seed=5", &url]].concat());
    assert_eq!(told.status.code(), Some(0), "{}", text(&told.stderr));
    let [raw, page] = [raw, page].map(|path| fs::read_to_string(path).expect("it was written"));
    fs::remove_dir_all(&directory).expect("still there");
    let run: Value = serde_json::from_str(raw.lines().next().expect("a line")).expect("JSON");
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").expect("every Linux has it");
    assert_eq!((&run["seed"], &run["classes"][0]["seed"]), (&77.into(), &5.into()), "{run}");
    let version = format!("weir {}, commit ", env!("CARGO_PKG_VERSION"));
    assert!(run["weir"].as_str().is_some_and(|weir| weir.starts_with(&version)), "{run}");
    assert!(run["date"].as_str().is_some_and(|date| date.ends_with(" GMT")), "{run}");
    let machine = &run["machine"];
    assert_eq!(machine["kernel"], kernel.trim(), "{run}");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    assert!(
        machine["cores"] == cores && machine["processor"].as_str().is_some_and(|it| !it.is_empty()),
        "{run}"
    );
    let command = run["command"].as_str().expect("text");
    assert!(
        command.contains(" bomb -c 2 -n 20 --seed 77 --out ")
            && command.contains("'Authorization: ***'"),
        "{run}"
    );
    assert!(!raw.contains("s3cret") && !page.contains("s3cret"));
    // All of it is on the page, escaped.
    for part in [&version, kernel.trim(), "<td>77", "GMT", "/?***", "&#39;Authorization: ***"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[test]
fn a_run_in_several_processes_is_one_run() {
    let server = server();
    let url = format!("http://{}/", server.local_addr());
    let arguments =
        format!("ulimit -n 100 && exec \"$WEIR\" bomb -c 200 -n 4000 -t 3 --json {url}");
    let told = Command::new("sh")
        .args(["-c", &arguments])
        .env("WEIR", env!("CARGO_BIN_EXE_weir"))
        .output()
        .expect("sh");
    assert_eq!(told.status.code(), Some(0), "{}", text(&told.stderr));
    let summary: Value = serde_json::from_slice(&told.stdout).expect("JSON");
    let total = &summary["total"];
    assert_eq!(
        (&total["requests"]["answered"], &total["connections"]["established"]),
        (&4000.into(), &200.into())
    );
    assert_eq!(
        (&total["raw"]["count"], &summary["generator"]["threads"]),
        (&4000.into(), &6.into())
    );
}

#[test]
fn a_body_comes_from_the_command_line_or_a_file() {
    let server = server();
    let url = format!("http://{}/echo", server.local_addr());
    let file = std::env::temp_dir().join(format!("weir-bomb-body-{}", std::process::id()));
    fs::write(&file, "x".repeat(1000)).expect("a file");
    for (body, length) in [("X", 1), (&*format!("@{}", file.display()), 1000)] {
        let told = bomb(&["-n", "10", "-c", "1", "--json", "--body", body, &url]);
        assert_eq!(told.status.code(), Some(0), "{}", text(&told.stderr));
        let summary: Value = serde_json::from_slice(&told.stdout).expect("JSON");
        assert_eq!(summary["total"]["statuses"]["200"], 10, "{summary}");
        let sent = summary["total"]["bytes_out"].as_u64().expect("a number");
        assert!((10 * length..10 * (length + 300)).contains(&sent), "{summary}");
    }
    fs::remove_file(&file).expect("still there");
    let missing = bomb(&["--body", "@/nonexistent/body", &url]);
    assert_eq!(missing.status.code(), Some(2), "{}", text(&missing.stderr));
}

#[test]
fn conditions_decide_the_exit_code() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let nobody = format!("http://{address}/");
    let refused = bomb(&["-d", "100ms", "-c", "2", "--fail-if", "blocked>50%", &nobody]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused.stderr).contains("blocked>50%: it is 100.00 %"),
        "{}",
        text(&refused.stderr)
    );
    assert!(text(&refused.stdout).contains("refused"), "the results are shown all the same");
    let served = server();
    let url = format!("http://{}/", served.local_addr());
    // Without any option for that, neither by the clock nor by number.
    for more in [["-d", "100ms", "-c", "2"], ["-n", "10", "-c", "2"], ["-R", "100", "-d", "100ms"]]
    {
        let unreached = bomb(&[&more[..], &["--timeout", "200ms", &nobody][..]].concat());
        assert_eq!(unreached.status.code(), Some(1), "{more:?}");
        assert!(
            text(&unreached.stderr).contains("no connection succeeded"),
            "{}",
            text(&unreached.stderr)
        );
    }
    let judged = bomb(&["-n", "10", "-c", "2", "--fail-if", "blocked<99%", &nobody]);
    assert_eq!(judged.status.code(), Some(0), "as wished: {}", text(&judged.stderr));
    let failing = format!("http://{}/?status=500", served.local_addr());
    let failed = bomb(&["-n", "10", "-c", "1", "--fail-if", "failed>0%", &failing]);
    assert_eq!(failed.status.code(), Some(1), "{}", text(&failed.stdout));
    assert!(text(&failed.stdout).contains("  last failure after "), "{}", text(&failed.stdout));
    // Even without a condition, if nothing at all succeeds; an explicit condition decides instead.
    for (more, code) in
        [(&[][..], 1), (&["--fail-if", "p99>10s"], 1), (&["--fail-if", "5xx<100%"], 0)]
    {
        let failed = bomb(&[&["-n", "10", "-c", "1", &failing], more].concat());
        assert_eq!(failed.status.code(), Some(code), "{more:?}: {}", text(&failed.stderr));
        assert_eq!(
            text(&failed.stderr).contains("no request succeeded"),
            code == 1,
            "{}",
            text(&failed.stderr)
        );
    }
    let some = format!("http://{}/?status=404", served.local_addr());
    assert_eq!(bomb(&["-n", "10", "-c", "1", &some]).status.code(), Some(0), "the server works");
    let fine = bomb(&[
        "-n",
        "10",
        "-c",
        "1",
        "--fail-if",
        "all: 5xx>0%",
        "--fail-if",
        "answered<100%",
        &url,
    ]);
    assert_eq!(fine.status.code(), Some(0), "{}", text(&fine.stderr));
}

#[test]
fn what_cannot_work_is_refused_before_any_load() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a listener");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let cases: [(&[&str], &str); 15] = [
        (&[], "<URL>"),
        (&["http://:80/"], "no host"),
        (&["ftp://x/"], "scheme"),
        (&["http://192.0.2.1/"], "--yes"),
        (&["http://no-such-host.invalid/"], "has no address"),
        (&["-c", "0", &url], "from 1 to"),
        (&["-d", "10", &url], "not a duration"),
        (&["-R", "fast", &url], "not a number"),
        (&["--class", "a: behave=rude", &url], "slow-head"),
        (&["--fail-if", "p98>1ms", &url], "p99.9"),
        (&["--fail-if", "x: p99>1ms", &url], "no class `x`"),
        (&["--out", "/nonexistent/raw", &url], "/nonexistent/raw"),
        (&["--report", "/nonexistent/report", &url], "/nonexistent/report"),
        (&["--requests-file", "/nonexistent/file", &url], "/nonexistent/file"),
        (&["-c", "900000", "--source", "127.0.0.1", &url], "local ports"),
    ];
    for (arguments, hint) in cases {
        let refused = bomb(arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        assert!(text(&refused.stderr).contains(hint), "{arguments:?}: {}", text(&refused.stderr));
        assert_eq!(text(&refused.stdout), "", "{arguments:?}");
    }
    assert!(listener.accept().is_err(), "nobody connected");
}

/// In a separate network namespace, half of the connections get no reply; the filter counts what it
/// drops.
const FILTERED: &str = r#"
set -e
ip link set lo up
nft -f - <<RULES
table inet weir {
    chain input {
        type filter hook input priority 0;
        tcp dport 7301 tcp flags & (syn | ack) == syn numgen random mod 2 == 0 counter drop
    }
}
RULES
"$WEIR" origin --listen 127.0.0.1:7301 2>"$LOG" & origin=$!
trap 'kill $origin' EXIT
until grep -q listening "$LOG"; do kill -0 $origin; done
"$WEIR" bomb -c 100 -d 1500ms --class 'flood: behave=connect-flood' --connect-timeout 400ms \
    --json http://127.0.0.1:7301/
nft list ruleset | grep -o 'packets [0-9]*'
"#;

#[test]
fn silence_is_counted_as_the_filter_counts_it() {
    let log = std::env::temp_dir().join(format!("weir-filtered-{}", std::process::id()));
    let filtered = Command::new("timeout")
        .args(["30", "unshare", "--net", "--map-root-user", "sh", "-c", FILTERED])
        .env("WEIR", env!("CARGO_BIN_EXE_weir"))
        .env("LOG", &log)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .output()
        .expect("coreutils and util-linux");
    let _ = fs::remove_file(&log);
    let told = text(&filtered.stderr);
    if !filtered.status.success()
        && (told.contains("Operation not permitted") || told.contains("not found"))
    {
        return eprintln!("not tested: network namespaces or nft can't be used here: {told}");
    }
    let shown = text(&filtered.stdout);
    let mut lines = shown.lines();
    let summary: Value = serde_json::from_str(lines.next().unwrap_or(&told)).expect("JSON");
    let packets =
        lines.next().and_then(|line| line.strip_prefix("packets ")).expect("what nft counted");
    let by_filter: u64 = packets.parse().expect("a number");
    let count = |what: &str| summary["total"]["connections"][what].as_u64().unwrap_or(0);
    // Each attempt ends before its first packet is sent again, so each dropped packet is an
    // attempt. An attempt under way at the end may be among the others.
    let told = count("dropped") + count("unfinished");
    assert!(told >= by_filter && told - by_filter <= by_filter / 100 + 1, "{by_filter}: {summary}");
    assert!(count("dropped") > 100 && count("established") > 100, "{summary}");
    assert_eq!(summary["total"]["requests"]["connected"], count("established"));
}

#[test]
fn an_interrupt_ends_a_run_with_its_results() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    let binary = env!("CARGO_BIN_EXE_weir");
    let mut child = Command::new(binary)
        .args(["bomb", "-c", "1", "-d", "1h", &url])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary");
    // It runs: one request has a response, and another one has come.
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.read_exact(&mut [0; 10]).expect("a request");
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").expect("it reads");
    let mut text = Vec::new();
    while text.windows(4).all(|four| four != b"GET ") {
        let mut piece = [0; 4096];
        let read = stream.read(&mut piece).expect("the next request");
        text.extend_from_slice(&piece[..read]);
    }
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    let status = child.wait().expect("it ends");
    let mut shown = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut shown).expect("text");
    assert_eq!(status.code(), Some(0));
    assert!(
        shown.contains("1 unfinished at the end") && shown.contains("1 established"),
        "{shown}"
    );
}
