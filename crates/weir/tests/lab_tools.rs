//! Proves: `weir origin` as a user runs it: it misbehaves as told, its last line counts what clients saw, and a wrong
//! `--misbehave` ends with code 2 before anything listens. How: the real binary, plain sockets, signals. Every wait is for an
//! event, with a deadline.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long any single event may take.
const DEADLINE: Duration = Duration::from_secs(20);

fn weir(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments).env_remove("COLUMNS").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
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
        let mut child = weir(&["origin", "--listen", "127.0.0.1:0"]).args(arguments).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{line}"));
        Origin { child, address }
    }

    /// What it answers on a connection of its own; empty when the connection is reset.
    fn ask(&self) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
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

impl Drop for Origin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_last_line_of_an_origin_counts_what_clients_saw() {
    for io in ["epoll", "auto"] {
        let origin = Origin::start(&["--json", "--io", io, "--threads", "2", "--misbehave", "reset=50%"]);
        let answered = (0..40).filter(|_| origin.ask().ends_with("\r\n\r\nok\n")).count() as u64;
        let end = origin.end_json();
        assert_eq!((&end["connects"], &end["requests"], &end["end"]), (&40.into(), &40.into(), &true.into()));
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
    let mut origin = Origin::start(&["--stats", "--misbehave", "hang-up-after=5,stall=1:every=1000"]);
    assert!(origin.ask().ends_with("ok\n"));
    let mut line = String::new();
    BufReader::new(origin.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("s lately  connects 1  closes "), "{line}");
    assert!(line.contains("requests 1 ") && line.ends_with("  stall 0  hang-up-after 0\n"), "{line}");
    let end = text(&origin.end().stdout);
    assert!(end.contains(" s in all  connects 1  ") && !end.contains('\x1b'), "{end}");
}

#[test]
fn a_wrong_misbehaviour_is_refused_before_anything_listens() {
    for (what, why) in [
        ("reste=5%", "did you mean `reset`? There are: refuse, reset, hang-up,"),
        ("slow-drip=5", "something is missing; expected slow-drip=BYTES:MS"),
        ("reset,stall=5", "leaves nothing for `stall`"),
    ] {
        let output = weir(&["origin", "--misbehave", what]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
}
