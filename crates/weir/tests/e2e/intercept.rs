//! Proves: one command on a router takes the connections that it forwards and continues them, of both families; ends, aborts and errors of ICMP arrive;
//! what it should leave alone passes by: connections from before, options that would be lost, other ports; whatever ends it, nothing is left and
//! connections go on without it; what stands in the way is said before anything is changed. How: the real binary between two networks of the test.
//! Needs root. docs/semantics.md §24.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use socket2::SockRef;

use crate::kit::{DEADLINE, Io, Scratch, eventually, in_own_network_as_root, ip, on_both_drivers, run};
use crate::transparent::{Between, CLIENT, SERVER};

on_both_drivers!(connections_are_taken, what_is_not_for_it_passes_by, nothing_is_left);

/// `weir intercept` here.
struct Intercept {
    child: Child,
    scratch: Scratch,
}

impl Intercept {
    fn start(io: Io, more: &[&str]) -> Intercept {
        let scratch = Scratch::new();
        let said = std::fs::File::create(scratch.path("said")).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(["intercept", "--client-side", "pc", "--server-side", "ps", "--ports", "8080,8443"]);
        command.args(["--workers", "2", "--io", io.word()]).args(more).env("WEIR_ADMIN", scratch.path("admin.sock"));
        let child = command.stdin(Stdio::null()).stderr(said).spawn().expect("it starts");
        let intercept = Intercept { child, scratch };
        eventually("it listens", || intercept.said().contains("listening on"));
        intercept
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.scratch.path("said")).unwrap_or_default()
    }

    fn total(&self, name: &str) -> u64 {
        let admin = self.scratch.path("admin.sock");
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let told = crate::kit::finish(command.args(["status", "--json"]).env("WEIR_ADMIN", admin));
        let status: serde_json::Value = serde_json::from_slice(&told.stdout).expect("JSON");
        status["totals"][name].as_u64().unwrap_or(0)
    }

    /// Ends it by this signal; what it said.
    fn end(mut self, signal: &str) -> String {
        let pid = self.child.id().to_string();
        assert!(run("kill", &[signal, &pid]).status.success());
        self.child.wait().expect("a child");
        self.said()
    }
}

impl Drop for Intercept {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn in_network(test: &str, io: Io, body: impl FnOnce()) {
    in_own_network_as_root(&format!("intercept::{}::{test}", io.word()), body);
}

/// All that could be left here: interfaces, rules and routes, as `ip` shows them.
fn surroundings() -> String {
    let all = ["link", "rule", "-6 rule", "route show table all", "-6 route show table all"];
    let shown = all.map(|line| run("ip", &line.split(' ').collect::<Vec<_>>()).stdout);
    let shown = shown.concat();
    // Counts of time are left out.
    String::from_utf8_lossy(&shown).lines().map(|line| line.split(" expires ").next().unwrap_or(line)).collect()
}

fn echoes(stream: &mut TcpStream) {
    stream.write_all(b"ping").expect("open");
    let mut back = [0; 4];
    stream.read_exact(&mut back).expect("what was said");
    assert_eq!(&back, b"ping");
}

fn connections_are_taken(io: Io) {
    in_network("connections_are_taken", io, || {
        let between = Between::new();
        SERVER.iter().for_each(|host| between.serve(host, 8080));
        let weir = Intercept::start(io, &["--client-congestion", "reno"]);
        for (at, (from, to)) in CLIENT.into_iter().zip(SERVER).enumerate() {
            let (mut stream, told) = between.ask(from, 4000, to, 8080).expect("it gets through");
            assert!(told.contains("4000 to ") && told.contains(from), "{told}");
            assert_eq!(weir.total("tcp_connections"), at as u64 + 1);
            echoes(&mut stream);
            // More than fits anywhere, and the end.
            let bytes = vec![7; 4 << 20];
            let mut other = stream.try_clone().expect("a descriptor");
            let writer = std::thread::spawn(move || {
                other.write_all(&bytes).expect("open");
                other.shutdown(Shutdown::Write).expect("open");
            });
            let mut back = Vec::new();
            stream.read_to_end(&mut back).expect("an end in order");
            writer.join().expect("no panic");
            assert_eq!(back.len(), 4 << 20);
        }
        // An abort is one.
        let (stream, _) = between.ask(CLIENT[0], 4001, SERVER[0], 8080).expect("it gets through");
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("an option");
        drop(stream);
        eventually("it is gone", || weir.total("client_connections") == 0);
        // Nobody listens there.
        let refused = between.ask(CLIENT[0], 4002, SERVER[0], 8443).expect_err("nobody is there");
        assert_eq!(refused.kind(), ErrorKind::ConnectionReset);
        let said = weir.end("-TERM");
        assert!(said.contains("takes new TCP connections from pc to ps, ports 8080, 8443"), "{said}");
        assert!(said.contains("4 connections were taken; 0 passed by"), "{said}");
    });
}

fn what_is_not_for_it_passes_by(io: Io) {
    in_network("what_is_not_for_it_passes_by", io, || {
        let between = Between::new();
        between.serve(SERVER[0], 8080);
        between.serve(SERVER[0], 9000);
        let (mut before, _) = between.ask(CLIENT[0], 4000, SERVER[0], 8080).expect("nobody is between");
        let weir = Intercept::start(io, &[]);
        echoes(&mut before);
        let (mut other, _) = between.ask(CLIENT[0], 4001, SERVER[0], 9000).expect("another port");
        echoes(&mut other);
        // From one of the ports itself.
        let (mut odd, _) = between.ask(CLIENT[0], 8443, SERVER[0], 8080).expect("it passes by");
        echoes(&mut odd);
        assert_eq!(weir.total("tcp_connections"), 0);
        let (mut taken, _) = between.ask(CLIENT[0], 4002, SERVER[0], 8080).expect("it gets through");
        echoes(&mut taken);
        assert_eq!(weir.total("tcp_connections"), 1);
        echoes(&mut before);
        weir.end("-TERM");
    });
}

fn nothing_is_left(io: Io) {
    in_network("nothing_is_left", io, || {
        let between = Between::new();
        SERVER.iter().for_each(|host| between.serve(host, 8080));
        let before = surroundings();
        for signal in ["-TERM", "-KILL"] {
            let weir = Intercept::start(io, &[]);
            let (mut stream, _) = between.ask(CLIENT[1], 0, SERVER[1], 8080).expect("it gets through");
            echoes(&mut stream);
            assert_ne!(surroundings(), before, "there is an interface");
            weir.end(signal);
            eventually("nothing is left", || surroundings() == before);
            // What it had is over, for its ends or what comes to their machines.
            stream.set_read_timeout(Some(DEADLINE)).expect("an option");
            let _ = stream.write_all(b"ping");
            let over = stream.read(&mut [0; 4]);
            assert!(over.as_ref().map_or_else(|error| error.kind() != ErrorKind::WouldBlock, |n| *n == 0), "{over:?}");
            let (mut stream, _) = between.ask(CLIENT[0], 0, SERVER[0], 8080).expect("nobody is between");
            echoes(&mut stream);
        }
    });
}

#[test]
fn what_stands_in_the_way_is_said() {
    in_own_network_as_root("intercept::what_stands_in_the_way_is_said", || {
        let weir = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
            let done = crate::kit::finish(command.arg("intercept").args(arguments).env("WEIR_ADMIN", "off"));
            let texts = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
            (done.status.code(), texts.concat())
        };
        ip("link add pc type veth peer name ps");
        let sides = ["--client-side", "pc", "--server-side", "ps", "--ports", "80"];
        let with = |more: &[&str]| weir(&[&sides, more].concat());
        let (code, said) = weir(&["check", "--client-side", "eth7", "--server-side", "ps", "--ports", "80"]);
        assert!(
            code == Some(1) && said.contains("there is no interface eth7") && said.contains("this machine has "),
            "{said}"
        );
        let (code, said) = with(&["check", "--client-congestion", "warp"]);
        assert!(code == Some(1) && said.contains("congestion control `warp`: this kernel has none"), "{said}");
        assert!(said.contains("this machine does not forward what comes by pc"), "{said}");
        let (code, said) = with(&[]);
        assert!(code == Some(1) && said.contains("sysctl net.ipv4.ip_forward=1"), "{said}");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("root may");
        let (code, said) = with(&["check"]);
        assert!(
            code == Some(0) && said.contains("note: pc is down") && said.contains("nothing stands in the way"),
            "{said}"
        );
        let (code, said) = weir(&["--client-side", "pc", "--server-side", "pc", "--ports", "80"]);
        assert!(code == Some(1) && said.contains("pc is both sides"), "{said}");
        let (code, said) = weir(&["--client-side", "pc", "--server-side", "lo", "--ports", "80"]);
        assert!(code == Some(1) && said.contains("lo is not Ethernet"), "{said}");
        let (code, said) = with(&["--metrics", "127.0.0.1:9"]);
        assert!(code == Some(2) && said.contains("--metrics would listen where nobody can connect"), "{said}");
        let (code, said) = with(&["--print", "--server-congestion", "cubic"]);
        assert!(
            code == Some(0)
                && said.contains("# ip link add weirPID type veth")
                && said.contains("congestion \"cubic\""),
            "{said}"
        );
        assert!(!run("ip", &["link"]).stdout.windows(5).any(|at| at == b"weir1"), "nothing was made");
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin", env!("CARGO_BIN_EXE_weir"), "intercept"]);
        let done = crate::kit::finish(command.args(sides).env("WEIR_ADMIN", "off"));
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code() == Some(77) && said.contains("no network namespace can be made"), "{said}");
    });
}
