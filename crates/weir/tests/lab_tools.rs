//! Proves: `weir origin` and `weir probe` as a user runs them. The origin misbehaves as told, and
//! its last line counts what clients saw. The prober finds a stall, agrees with the origin on
//! failures and with its own lines on percentiles, and ends cleanly on a signal. Wrong usage ends
//! with code 2 before anything is sent.
//!
//! How: the real binary, plain sockets, signals. Every wait is for an event, with a deadline.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use weir_check::waiting::patient;

fn weir(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command
        .args(arguments)
        .env_remove("COLUMNS")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A running origin.
struct Origin {
    child: Child,
    address: SocketAddr,
}

impl Origin {
    fn start(arguments: &[&str]) -> Origin {
        let mut child =
            weir(&["origin", "--listen", "127.0.0.1:0"]).args(arguments).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address =
            line.trim().rsplit(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{line}"));
        Origin { child, address }
    }

    /// Returns its response on a new connection; empty if the connection is reset.
    fn ask(&self) -> String {
        let mut stream = patient(TcpStream::connect(self.address).unwrap());
        let mut reply = Vec::new();
        let _ = write!(stream, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let _ = stream.read_to_end(&mut reply);
        text(&reply)
    }

    fn end(mut self) -> Output {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let mut stdout = Vec::new();
        self.child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        Output { status: self.child.wait().unwrap(), stdout, stderr: Vec::new() }
    }
}

#[test]
fn a_second_origin_does_not_share_the_port_of_the_first() {
    let first = Origin::start(&[]);
    let second = weir(&["origin", "--listen", &first.address.to_string()]).output().unwrap();
    let said = text(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains("another program uses this port") && said.contains("retrying"), "{said}");
    assert!(first.ask().starts_with("HTTP/1.1 200 "));
}

impl Drop for Origin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_last_line_of_an_origin_counts_what_clients_saw() {
    for io in ["epoll", "auto"] {
        let origin =
            Origin::start(&["--json", "--io", io, "--threads", "2", "--misbehave", "reset=50%"]);
        let answered = (0..40).filter(|_| origin.ask().ends_with("\r\n\r\nok\n")).count() as u64;
        let end = origin.end_json();
        assert_eq!(
            (&end["connects"], &end["requests"], &end["end"]),
            (&40.into(), &40.into(), &true.into())
        );
        assert_eq!(end["misbehaved"]["reset"], Value::from(40 - answered));
        assert!((5..=35).contains(&answered), "{answered}");
    }
}

impl Origin {
    fn end_json(self) -> Value {
        let output = self.end();
        assert!(output.status.success());
        serde_json::from_str(text(&output.stdout).lines().last().unwrap()).unwrap()
    }
}

#[test]
fn an_origin_shows_each_second_what_was_done_in_it() {
    let mut origin =
        Origin::start(&["--stats", "--misbehave", "hang-up-after=5,stall=1:every=1000"]);
    assert!(origin.ask().ends_with("ok\n"));
    let mut line = String::new();
    BufReader::new(origin.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("s lately  connects 1  closes "), "{line}");
    assert!(
        line.contains("requests 1 ") && line.ends_with("  stall 0  hang-up-after 0\n"),
        "{line}"
    );
    let end = text(&origin.end().stdout);
    assert!(end.contains(" s in all  connects 1  ") && !end.contains('\x1b'), "{end}");
}

#[test]
fn a_wrong_misbehaviour_is_refused_before_anything_listens() {
    for (what, why) in [
        ("reste=5%", "did you mean `reset`? Known: refuse, reset, hang-up,"),
        ("slow-drip=5", "something is missing; expected slow-drip=BYTES:MS"),
        ("reset,stall=5", "leaves nothing for `stall`"),
    ] {
        let output = weir(&["origin", "--misbehave", what]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
}

/// Lines of JSON.
fn lines(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn probe(origin: &Origin, arguments: &[&str]) -> Output {
    let url = format!("http://{}/?size=9", origin.address);
    weir(&[&["probe", &url, "--pause", "0"], arguments].concat()).output().unwrap()
}

#[test]
fn a_probe_finds_a_stall_and_counts_failures_as_the_origin_does() {
    let origin = Origin::start(&["--json", "--misbehave", "stall=300:every=30,reset=10%"]);
    let output = probe(&origin, &["-n", "100", "--threshold", "299", "--json"]);
    assert_eq!(output.status.code(), Some(1), "requests failed");
    let (found, end) = (lines(&output), origin.end_json());
    let summary = found.last().unwrap();
    let stalled = found
        .iter()
        .filter(|line| line["type"] == "slow" && line["slowest"] == "first_byte")
        .count() as u64;
    assert!(stalled >= end["misbehaved"]["stall"].as_u64().unwrap() && stalled >= 2, "{found:?}");
    let failed =
        found.iter().filter(|line| line["type"] == "failed" && line["kind"] == "reset").count()
            as u64;
    assert_eq!(end["misbehaved"]["reset"], failed);
    assert_eq!(
        (&summary["failures"]["reset"], &summary["failed"]),
        (&failed.into(), &failed.into())
    );
    assert_eq!((&summary["requests"], &summary["answered"]), (&100.into(), &(100 - failed).into()));
    assert_eq!(summary["interrupted"], false);
    let said = format!("weir probe: {failed} of 100 requests failed\n");
    assert_eq!(text(&output.stderr), said);
}

#[test]
fn a_server_that_resets_connections_at_once_is_probed_to_the_end() {
    let origin = Origin::start(&["--json", "--misbehave", "refuse=every=2"]);
    let output = probe(&origin, &["-n", "41", "--json"]);
    let found = lines(&output);
    let summary = found.last().unwrap();
    assert_eq!(
        (&summary["answered"], &summary["failures"]["reset"]),
        (&21.into(), &20.into()),
        "{found:?}"
    );
    assert_eq!(origin.end_json()["misbehaved"]["refuse"], 20);
}

#[test]
fn percentiles_of_a_probe_agree_with_its_lines() {
    let origin = Origin::start(&[]);
    let output = probe(&origin, &["-n", "400", "--threshold", "0", "--close-every", "7", "--json"]);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
    let mut found = lines(&output);
    let summary = found.pop().unwrap();
    assert_eq!(summary["connections"], 58);
    for (phase, connects) in [("total", 400), ("connect", 58), ("first_byte", 400), ("body", 400)] {
        let mut times: Vec<f64> =
            found.iter().filter_map(|line| line[format!("{phase}_us")].as_f64()).collect();
        times.sort_by(f64::total_cmp);
        assert_eq!(times.len(), connects);
        for (name, quantile) in
            [("p50_us", 0.5), ("p90_us", 0.9), ("p99_us", 0.99), ("max_us", 1.0)]
        {
            let exact = times[(quantile * times.len() as f64).ceil() as usize - 1];
            let told = summary["latency"][phase][name].as_f64().unwrap();
            assert!(
                (told - exact).abs() <= exact * 0.002 + 0.002,
                "{phase} {name}: {told} and {exact}"
            );
        }
    }
    let bars =
        summary["histogram"].as_array().unwrap().iter().map(|bar| bar["count"].as_u64().unwrap());
    assert_eq!(bars.sum::<u64>(), 400);
}

#[test]
fn a_signal_ends_a_probe_with_the_results_so_far() {
    let origin = Origin::start(&["--misbehave", "no-answer:every=4"]);
    let url = format!("http://{}/", origin.address);
    let arguments = ["probe", &url, "--pause", "0", "--threshold", "0", "--timeout", "3600s"];
    let mut child = weir(&arguments).spawn().unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut shown = String::new();
    while !shown.contains("  #3  slow: ") {
        assert!(reader.read_line(&mut shown).unwrap() > 0, "{shown}");
    }
    // The fourth never gets a response.
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    reader.read_to_string(&mut shown).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "nothing failed");
    assert!(
        shown.contains("\ninterrupted; results so far:\n3 requests in ")
            && shown.contains(": 3 answered, "),
        "{shown}"
    );
    assert!(
        !shown.contains(['\x1b', '\r']),
        "no control characters outside of a terminal: {shown}"
    );
    drop(origin);
}

#[test]
fn a_probe_reads_answers_from_a_unix_socket() {
    let path = std::env::temp_dir().join(format!("weir-probe-e2e-{}.sock", std::process::id()));
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        for _ in 0..5 {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "GET /v1/status HTTP/1.1\r\n");
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
        }
    });
    let socket = path.to_str().unwrap();
    let output =
        weir(&["probe", "localhost/v1/status", "--unix", socket, "-n", "5", "--pause", "0"])
            .output()
            .unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(
        shown.contains(&format!("at {socket}: 5 requests")) && shown.contains(": 5 answered, "),
        "{shown}"
    );
    server.join().unwrap();
}

#[test]
fn what_a_probe_cannot_ask_is_said_before_it_asks() {
    let gone =
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for (arguments, code, why) in [
        (&[gone.as_str()][..], 1, "Connection refused"),
        (&["localhost", "--unix", "/no/such.sock"], 1, "/no/such.sock: No such file"),
        (&["http://no-such-host.invalid/"], 1, "`no-such-host.invalid` has no address"),
        (&["http://192.0.2.1/"], 2, "if it is yours, add --yes"),
        (&["ftp://127.0.0.1/"], 2, "unknown scheme"),
        (&["http://127.0.0.1:x/"], 2, "expected http://HOST[:PORT][/PATH][?QUERY]"),
        (&["127.0.0.1", "--threshold", "5m"], 2, "expected a time such as"),
        (&["127.0.0.1", "--timeout", "0"], 2, "expected a time greater than zero"),
        (&["127.0.0.1", "--close-every", "0"], 2, "expected a number from 1, or never"),
        (&["127.0.0.1", "--count", "0"], 2, "0 is not in 1.."),
    ] {
        let output = weir(&[&["probe"], arguments].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
}
