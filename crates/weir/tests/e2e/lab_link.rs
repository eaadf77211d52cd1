//! Proves: `weir lab link` carries packets between two network namespaces, not sooner than
//! configured, not faster, and loses the same ones with the same seed. A command runs behind it,
//! and weir has its exit code. Nothing is left, however it ends; impossible options are rejected
//! before anything is changed. How: the real binary in a network namespace of the test, with the
//! other end in a second one. docs/link.md.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Lines};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::kit::{Neighbour, Waiting, eventually, in_own_network, patience_now, run};

fn in_network(test: &str, body: impl FnOnce()) {
    if let Err(error) = File::options().read(true).write(true).open("/dev/net/tun") {
        return eprintln!("not tested: /dev/net/tun: {error}");
    }
    in_own_network(&format!("lab_link::{test}"), body);
}

fn weir(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command
        .args(["lab", "link"])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn finished(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = weir(arguments).output().expect("it starts");
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (status.code().expect("an exit code"), stdout, stderr)
}

/// Returns the interfaces here.
fn interfaces() -> String {
    String::from_utf8_lossy(&run("ip", &["-oneline", "address"]).stdout).into_owned()
}

/// A link from here to a far end.
pub(crate) struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    pub(crate) fn start(far: &Neighbour, arguments: &[&str]) -> Running {
        let more = ["--netns-b", &far.process(), "--json", "--every", "10ms"];
        let mut child = weir(&[&more, arguments].concat()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut running = Running { child, lines };
        running.until(|_| true);
        running
    }

    /// Returns the first line, from the next one on, for which this is true. Lines come by the
    /// clock, and end with the process.
    fn until(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        let mut waiting = Waiting::begin();
        for line in self.lines.by_ref() {
            let line: Value = serde_json::from_str(&line.expect("a pipe")).expect("JSON");
            if is_it(&line) {
                return line;
            }
            assert!(waiting.goes_on(), "{}: {line}", waiting.story());
        }
        panic!("it ended: {:?}", self.child.wait());
    }

    fn signal(&mut self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Ends it in order. Returns its last line.
    pub(crate) fn end(mut self) -> Value {
        self.signal(Signal::INT);
        let last = self.until(|line| line["end"] == true);
        assert!(self.child.wait().expect("a child").success());
        last
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Whether this many packets have come to the first way, and none is on its way.
fn has_carried(line: &Value, packets: u64) -> bool {
    line["ways"][0]["packets_in"] == packets && line["ways"][0]["held"] == 0
}

/// Sends numbered packets from here to the far end. Returns those that arrived, and the time from
/// the first sent to the last received.
fn send(
    running: &mut Running,
    far: &Neighbour,
    packets: u32,
    bytes: usize,
) -> (Vec<u32>, Duration) {
    let receiver = far.inside(|| UdpSocket::bind("198.18.0.2:0").expect("the link is there"));
    let sender = UdpSocket::bind("198.18.0.1:0").expect("the link is there");
    sender.connect(receiver.local_addr().expect("it is bound")).expect("there is a route");
    receiver.set_nonblocking(true).expect("a socket option");
    let mut packet = vec![0; bytes];
    let begin = Instant::now();
    for number in 0..packets {
        packet[..4].copy_from_slice(&number.to_le_bytes());
        sender.send(&packet).expect("there is room");
    }
    running.until(|line| has_carried(line, packets.into()));
    let took = begin.elapsed();
    let mut came = Vec::new();
    while let Ok(read) = receiver.recv(&mut packet) {
        assert_eq!(read, bytes);
        came.push(u32::from_le_bytes(*packet.first_chunk().expect("four bytes")));
    }
    (came, took)
}

#[test]
fn packets_come_no_sooner_than_told() {
    in_network("packets_come_no_sooner_than_told", || {
        let far = Neighbour::apart();
        let both = ["198.18.0.1/30,198.18.0.2/30", "fd00:5::1/64,fd00:5::2/64"];
        let arguments = ["--delay", "30ms,20ms", "--addresses", both[0], "--addresses", both[1]];
        let running = Running::start(&far, &arguments);
        for host in ["198.18.0.1", "fd00:5::1"] {
            let listener =
                TcpListener::bind(SocketAddr::new(address(host), 0)).expect("the link is there");
            let at = listener.local_addr().expect("it is bound");
            let begin = Instant::now();
            far.inside(|| {
                drop(TcpStream::connect_timeout(&at, patience_now()).expect("somebody listens"))
            });
            assert!(begin.elapsed() >= Duration::from_millis(50), "{host}: {:?}", begin.elapsed());
        }
        let last = running.end();
        for way in 0..2 {
            let figure = |name: &str| last["ways"][way][name].as_u64().expect("a number");
            assert!(
                figure("packets_out") >= 2
                    && figure("lost") + figure("dropped") + figure("refused") == 0,
                "{last}"
            );
        }
        assert!(!interfaces().contains("wa"), "{}", interfaces());
    });
}

#[test]
fn a_seed_loses_the_same_packets() {
    in_network("a_seed_loses_the_same_packets", || {
        let mut all = Vec::new();
        for seed in ["7", "7", "8"] {
            let far = Neighbour::apart();
            let mut running = Running::start(&far, &["--loss", "20%,0%", "--seed", seed]);
            let (came, _) = send(&mut running, &far, 200, 100);
            let last = running.end();
            // No other program sends anything.
            assert_eq!(last["ways"][0]["packets_in"], 200);
            assert_eq!(last["ways"][1]["packets_in"], 0);
            assert_eq!(last["ways"][0]["lost"].as_u64(), Some(200 - came.len() as u64));
            assert!(came.is_sorted() && !came.is_empty() && came.len() < 200, "{came:?}");
            all.push(came);
        }
        assert!(all[0] == all[1] && all[1] != all[2], "{all:?}");
    });
}

#[test]
fn the_line_is_no_faster_than_told() {
    in_network("the_line_is_no_faster_than_told", || {
        let far = Neighbour::apart();
        let mut running = Running::start(&far, &["--rate", "1Mbit/s,none", "--queue", "10s"]);
        let (came, took) = send(&mut running, &far, 50, 972);
        // 1,000 bytes with the headers: 8 ms each.
        assert_eq!(came, (0..50).collect::<Vec<_>>());
        assert!(took >= Duration::from_millis(400), "{took:?}");
        drop(running.end());
        // 8 s for each: four have room.
        let mut running = Running::start(&far, &["--rate", "1kbit/s", "--queue", "4KiB"]);
        let sender = UdpSocket::bind("198.18.0.1:0").expect("the link is there");
        (0..10).for_each(|_| {
            assert_eq!(sender.send_to(&[0; 972], "198.18.0.2:9").expect("there is room"), 972)
        });
        let line = running.until(|line| line["ways"][0]["packets_in"] == 10);
        let dropped = line["ways"][0]["dropped"].as_u64().expect("a number");
        assert!((1..=6).contains(&dropped), "{line}");
        assert_eq!(running.end()["ways"][0]["lost"], 0);
    });
}

#[test]
fn nothing_is_left_whatever_ends_it() {
    in_network("nothing_is_left_whatever_ends_it", || {
        let far = Neighbour::apart();
        let before = (interfaces(), far.inside(interfaces));
        for signal in [Signal::KILL, Signal::TERM, Signal::HUP] {
            let mut running = Running::start(&far, &["--names", "left,right"]);
            assert!(interfaces().contains("left") && far.inside(interfaces).contains("right"));
            running.signal(signal);
            let status = running.child.wait().expect("a child");
            assert_eq!(status.success(), signal != Signal::KILL, "{status}");
            eventually("nothing is left", || (interfaces(), far.inside(interfaces)) == before);
        }
        // Removing an end ends the link.
        let mut running = Running::start(&far, &[]);
        far.inside(|| assert!(run("ip", &["link", "delete", "wb"]).status.success()));
        running.until(|line| line["end"] == true);
        let stderr = running.child.stderr.take().expect("a pipe");
        assert_eq!(running.child.wait().expect("a child").code(), Some(1));
        assert!(
            BufReader::new(stderr)
                .lines()
                .map_while(Result::ok)
                .any(|line| line.starts_with("weir lab link: wb: "))
        );
        assert_eq!((interfaces(), far.inside(interfaces)), before);
    });
}

#[test]
fn a_command_runs_behind_the_link() {
    in_network("a_command_runs_behind_the_link", || {
        let before = interfaces();
        let script = "ip -oneline address show dev wb; ip route; cat; echo >&2 told; exit 7";
        let (code, stdout, stderr) = finished(&["--delay", "1ms", "--", "sh", "-c", script]);
        assert_eq!(code, 7, "{stderr}");
        assert!(stdout.contains("198.18.0.2/30") && stdout.contains("default dev wb"), "{stdout}");
        assert!(
            !stdout.contains("weir") && stderr.contains("told\n") && stderr.contains("in all"),
            "{stderr}"
        );
        let (code, _, stderr) = finished(&["--", "sh", "-c", "kill -TERM $$"]);
        assert_eq!(code, 128 + 15, "{stderr}");
        let (code, _, stderr) = finished(&["--", "no-such-program"]);
        assert!(code == 1 && stderr.contains("can't run no-such-program"), "{stderr}");
        // The end of weir also ends the command.
        let mut child =
            weir(&["--", "sh", "-c", "echo ready; exec sleep 600"]).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a pipe");
        assert_eq!(line, "ready\n");
        kill_process(Pid::from_child(&child), Signal::TERM).expect("it runs");
        assert_eq!(child.wait().expect("a child").code(), Some(128 + 15));
        assert_eq!(interfaces(), before);
    });
}

#[test]
fn what_cannot_be_changes_nothing() {
    in_network("what_cannot_be_changes_nothing", || {
        assert!(run("ip", &["address", "add", "10.9.0.1/24", "dev", "lo"]).status.success());
        let before = interfaces();
        let here = std::process::id().to_string();
        for (arguments, code, why) in [
            (&["--names", "lo,wb"][..], 1, "interface lo already exists here"),
            (
                &["--addresses", "10.9.0.5/24,10.9.0.6/24"],
                1,
                "already has an address here, 10.9.0.1",
            ),
            (&["--netns-b", &here], 2, "the same namespace"),
            (&["--netns-b", "4194305"], 1, "no process 4194305"),
            (
                &["--netns-b", "no-such-name"],
                1,
                "no namespace no-such-name (/run/netns/no-such-name)",
            ),
            (&["--netns-a", "/dev/null"], 1, "/dev/null is not a network namespace"),
            (&["--loss", "90%", "--burst", "2"], 2, "at least 9.0 packets"),
            (&["--burst", "2"], 2, "--loss"),
            (&["--names", "x,x"], 2, "both ends have the name `x`"),
            (&["--mtu", "1000", "--addresses", "fd00::1/64,fd00::2/64"], 2, "1280"),
        ] {
            let arguments = [arguments, &["--", "true"]].concat();
            let (ended, stdout, stderr) = finished(&arguments);
            assert!(
                ended == code && stderr.contains(why) && stdout.is_empty(),
                "{arguments:?}: {ended}: {stderr}"
            );
            assert_eq!(interfaces(), before);
        }
        let arguments = [
            "--bounding-set=-net_admin",
            "--inh-caps=-net_admin",
            env!("CARGO_BIN_EXE_weir"),
            "lab",
            "link",
        ];
        let refused = Command::new("setpriv").args(arguments).output().expect("setpriv starts");
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(77), "{stderr}");
        assert!(stderr.contains("needs CAP_NET_ADMIN: run as root"), "{stderr}");
        if let Err(error) = fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1") {
            return eprintln!("not tested: disable_ipv6: {error}");
        }
        let (code, _, stderr) = finished(&["--addresses", "fd00::1/64,fd00::2/64", "--", "true"]);
        assert!(
            code == 1 && stderr.contains("address fd00::1/64: IPv6 is disabled there"),
            "{code}: {stderr}"
        );
    });
}

/// The printed commands work in another shell.
#[test]
fn others_enter_as_it_says() {
    in_network("others_enter_as_it_says", || {
        let program = [env!("CARGO_BIN_EXE_weir"), "lab", "link"];
        let own = ["unshare", "--user", "--map-root-user", "--net"];
        for (words, says) in [
            (&program[..], "Enter by: "),
            (&[&own[..], &program].concat(), "From outside of this user namespace: "),
        ] {
            let mut command = Command::new(words[0]);
            let command = command.args(&words[1..]).stdin(Stdio::null()).stderr(Stdio::piped());
            let mut child = Ended(command.spawn().expect("it starts"));
            let mut lines = BufReader::new(child.0.stderr.take().expect("a pipe"))
                .lines()
                .map_while(Result::ok);
            let line =
                lines.find_map(|line| line.strip_prefix(says).map(str::to_owned)).expect("a line");
            let shown =
                run("sh", &["-c", &line.replace("COMMAND", "ip -oneline address show dev wb")]);
            assert!(
                String::from_utf8_lossy(&shown.stdout).contains("198.18.0.2/30"),
                "{line}: {shown:?}"
            );
        }
    });
}

/// A child that does not outlive the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
