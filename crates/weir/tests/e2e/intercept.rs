//! Proves: one command on a router takes the connections that it forwards and continues them, of
//! both families; ends, aborts and ICMP errors arrive. Connections that it should leave alone pass
//! by: earlier ones, those with options that would be lost, other ports. However it ends, nothing
//! is left behind and connections continue without it. It reports obstacles before it changes
//! anything. How: the real binary between two networks of the test. Needs root.
//! docs/intercept.md.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use socket2::SockRef;

use crate::intercept_first::{UNREACHABLE, begin, make_networks};
use crate::kit::{
    Io, Scratch, Waiting, bounded, eventually, in_own_network_as_root, ip, on_both_drivers, run,
};
use crate::transparent::{Between, CLIENT, SERVER};
use crate::transparent_http::{client, serve_http, told};

on_both_drivers!(
    connections_are_taken,
    who_is_not_there_is_a_reset,
    requests_are_read,
    what_is_not_for_it_passes_by,
    without_room_connections_pass_by,
    under_a_flood_connections_pass_by,
    each_side_is_as_asked,
    nothing_is_left,
);

/// A running `weir intercept`.
pub(crate) struct Intercept {
    child: Child,
    scratch: Scratch,
}

impl Intercept {
    pub(crate) fn start(io: Io, more: &[&str]) -> Intercept {
        Intercept::start_by(Command::new(env!("CARGO_BIN_EXE_weir")), io, more)
    }

    pub(crate) fn start_by(mut command: Command, io: Io, more: &[&str]) -> Intercept {
        let scratch = Scratch::new();
        let said = std::fs::File::create(scratch.path("said")).expect("a file");
        command.args([
            "intercept",
            "--client-side",
            "pc",
            "--server-side",
            "ps",
            "--ports",
            "8080,8443",
        ]);
        command
            .args(["--workers", "2", "--io", io.word()])
            .args(more)
            .env("WEIR_ADMIN", scratch.path("admin.sock"));
        let child = command.stdin(Stdio::null()).stderr(said).spawn().expect("it starts");
        let intercept = Intercept { child, scratch };
        eventually("it listens", || intercept.said().contains("listening on"));
        intercept
    }

    /// Returns its process number.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: &str) {
        assert!(run("kill", &[signal, &self.process().to_string()]).status.success());
    }

    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(self.scratch.path("said")).unwrap_or_default()
    }

    pub(crate) fn total(&self, name: &str) -> u64 {
        self.totals()[name].as_u64().unwrap_or(0)
    }

    /// Returns all its counts.
    pub(crate) fn totals(&self) -> serde_json::Value {
        self.status()["totals"].take()
    }

    /// Returns its admin socket.
    pub(crate) fn admin(&self) -> std::path::PathBuf {
        self.scratch.path("admin.sock")
    }

    /// Returns everything in `weir status`.
    pub(crate) fn status(&self) -> serde_json::Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let told =
            crate::kit::finish(command.args(["status", "--json"]).env("WEIR_ADMIN", self.admin()));
        serde_json::from_slice(&told.stdout).expect("JSON")
    }

    /// Ends it by this signal. Returns what it printed.
    pub(crate) fn end(mut self, signal: &str) -> String {
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
    in_network_with_programs("intercept", test, io, body);
}

/// Runs the test of a module in a separate network, if the kernel accepts the programs that lead
/// connections to weir.
pub(crate) fn in_network_with_programs(module: &str, test: &str, io: Io, body: impl FnOnce()) {
    in_own_network_as_root(&format!("{module}::{}::{test}", io.word()), || {
        if takes_programs() {
            body();
        }
    });
}

/// Whether the kernel accepts the programs that lead connections to weir; if not, prints that.
pub(crate) fn takes_programs() -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args([
        "intercept",
        "check",
        "--client-side",
        "lo",
        "--server-side",
        "lo",
        "--ports",
        "80",
    ]);
    let said = crate::kit::finish(command.env("WEIR_ADMIN", "off")).stdout;
    let said = String::from_utf8_lossy(&said);
    let why = said.lines().find(|line| line.contains("the kernel rejects the programs"));
    why.inspect(|why| eprintln!("not tested: {why}")).is_none()
}

/// Returns everything that could be left here: interfaces, and rules and routes besides the
/// kernel's own.
pub(crate) fn surroundings() -> String {
    let shown = |line: &str| {
        String::from_utf8(run("ip", &line.split(' ').collect::<Vec<_>>()).stdout).expect("text")
    };
    let names = shown("-o link");
    let names =
        names.lines().filter_map(|line| line.split(": ").nth(1)).map(|name| format!("{name}\n"));
    let rules =
        ["rule", "-6 rule", "route show table all", "-6 route show table all"].map(shown).concat();
    let rules =
        rules.lines().filter(|line| !line.contains("proto kernel")).map(|line| format!("{line}\n"));
    names.chain(rules).collect()
}

pub(crate) fn echoes(stream: &mut TcpStream) {
    stream.write_all(b"ping").expect("open");
    let mut back = [0; 4];
    stream.read_exact(&mut back).expect("what was said");
    assert_eq!(&back, b"ping");
}

/// A client that is accepted before its server turns out to be unreachable is reset.
fn who_is_not_there_is_a_reset(io: Io) {
    in_network("who_is_not_there_is_a_reset", io, || {
        let between = Between::new();
        SERVER.iter().for_each(|host| between.serve(host, 8080));
        make_networks(&between);
        let weir = Intercept::start(io, &[]);
        for (at, (from, to)) in (1..).zip(CLIENT.into_iter().zip(UNREACHABLE)) {
            let told = between.ask(from, 0, to, 8080).expect_err("nobody is there");
            assert_eq!(told.kind(), ErrorKind::ConnectionReset, "{to}");
            eventually("it was taken", || weir.total("tcp_connections") == at);
        }
        weir.end("-TERM");
    });
}

fn connections_are_taken(io: Io) {
    in_network("connections_are_taken", io, || {
        let between = Between::new();
        SERVER.iter().for_each(|host| between.serve(host, 8080));
        let weir =
            Intercept::start(io, &["--client-congestion", "reno", "--metrics", "127.0.0.1:0"]);
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
        // An abort arrives as an abort.
        let (stream, _) = between.ask(CLIENT[0], 4001, SERVER[0], 8080).expect("it gets through");
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("an option");
        drop(stream);
        eventually("it is gone", || weir.total("client_connections") == 0);
        let told = weir.status();
        let mut scraped = TcpStream::connect(told["metrics"].as_str().expect("an address"))
            .expect("it is out here");
        write!(scraped, "GET /metrics HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n")
            .expect("it reads");
        let mut page = String::new();
        scraped.read_to_string(&mut page).expect("text");
        assert!(page.contains("\nweir_tcp_connections_total 3\n"), "{page}");
        // That port has no listener.
        let refused = between.ask(CLIENT[0], 4002, SERVER[0], 8443).expect_err("nobody is there");
        assert_eq!(refused.kind(), ErrorKind::ConnectionReset);
        let said = weir.end("-TERM");
        assert!(
            said.contains("intercepting: new TCP connections from pc to ps, ports 8080, 8443"),
            "{said}"
        );
        assert!(said.contains(" connections=4 bypassed=0 "), "{said}");
    });
}

fn requests_are_read(io: Io) {
    in_network("requests_are_read", io, || {
        let (between, scratch) = (Between::new(), Scratch::new());
        SERVER.iter().for_each(|host| serve_http(&between, host, 8080));
        between.serve(SERVER[0], 8443);
        for (from, to) in CLIENT.into_iter().zip(SERVER) {
            told(&mut client(&between, from, 3999, to, 8080), "/", "a");
        }
        let log = scratch.path("access.log");
        let path = log.to_str().expect("text");
        let weir = Intercept::start(
            io,
            &["--http", "8080", "--access-log", path, "--server-congestion", "reno"],
        );
        for (at, (from, to)) in CLIENT.into_iter().zip(SERVER).enumerate() {
            let mut one = client(&between, from, 4000, to, 8080);
            for n in 1..=3 {
                let (code, said) = told(&mut one, "/v", "elsewhere.example");
                assert!(
                    code == 200 && said.ends_with(&format!(" for elsewhere.example, {n}")),
                    "{said}"
                );
                assert!(
                    said.contains(from) && said.contains("4000 to ") && said.contains(to),
                    "{said}"
                );
            }
            assert_eq!(weir.total("requests"), (at as u64 + 1) * 3);
        }
        let (mut plain, said) =
            between.ask(CLIENT[0], 4001, SERVER[0], 8443).expect("it gets through");
        assert_eq!(said, "198.18.1.2:4001 to 198.18.2.2:8443");
        echoes(&mut plain);
        assert_eq!((weir.total("tcp_connections"), weir.total("requests")), (1, 6));
        let mut other = client(&between, CLIENT[0], 0, SERVER[0], 8080);
        other.ask("GET", false);
        other.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n");
        assert_eq!(other.reply().status, 400);
        other.end();
        drop(plain);
        let said = weir.end("-TERM");
        assert!(said.contains(" connections=4 "), "{said}");
        let lines = std::fs::read_to_string(&log).expect("a log");
        assert_eq!(lines.matches("\"GET /v HTTP/1.1\" 200").count(), 6, "{lines}");
    });
}

fn what_is_not_for_it_passes_by(io: Io) {
    in_network("what_is_not_for_it_passes_by", io, || {
        let between = Between::new();
        between.serve(SERVER[0], 8080);
        between.serve(SERVER[0], 9000);
        let (mut before, _) =
            between.ask(CLIENT[0], 4000, SERVER[0], 8080).expect("nobody is between");
        let weir = Intercept::start(io, &[]);
        echoes(&mut before);
        let (mut other, _) = between.ask(CLIENT[0], 4001, SERVER[0], 9000).expect("another port");
        echoes(&mut other);
        let mut check = Command::new(env!("CARGO_BIN_EXE_weir"));
        check.args([
            "intercept",
            "check",
            "--client-side",
            "pc",
            "--server-side",
            "ps",
            "--ports",
            "80",
        ]);
        let told = crate::kit::finish(check.env("WEIR_ADMIN", "off")).stdout;
        assert!(
            String::from_utf8_lossy(&told)
                .contains("another `weir intercept` intercepts connections that leave by ps")
        );
        // From one of the ports itself.
        let (mut odd, _) = between.ask(CLIENT[0], 8443, SERVER[0], 8080).expect("it passes by");
        echoes(&mut odd);
        // Options that would be lost.
        between.ask_by_paths(4003);
        // A connection of this machine itself.
        let mut own = TcpStream::connect((SERVER[0], 8080)).expect("nobody is between");
        let mut told = [0; 1];
        while told != *b"\n" {
            own.read_exact(&mut told).expect("a line");
        }
        echoes(&mut own);
        assert_eq!(weir.total("tcp_connections"), 0);
        // Connections that this machine translates, at either end.
        let scratch = Scratch::new();
        let rules = scratch.write(
            "nat.nft",
            b"table ip nat {
                chain in { type nat hook prerouting priority dstnat;
                    ip daddr 198.18.1.1 tcp dport 8080 dnat to 198.18.2.2 }
                chain out { type nat hook postrouting priority srcnat; tcp sport 4010 masquerade }
            }\n",
        );
        if run("nft", &["-f", &rules.display().to_string()]).status.success() {
            for (port, to) in [(4009, "198.18.1.1"), (4010, SERVER[0])] {
                let (mut translated, told) =
                    between.ask(CLIENT[0], port, to, 8080).expect("it passes by");
                echoes(&mut translated);
                assert_eq!(told.starts_with("198.18.2.1:"), port == 4010, "{told}");
            }
        } else {
            eprintln!("not tested: no NAT here");
        }
        assert_eq!(weir.total("tcp_connections"), 0);
        let (mut taken, _) =
            between.ask(CLIENT[0], 4002, SERVER[0], 8080).expect("it gets through");
        echoes(&mut taken);
        assert_eq!(weir.total("tcp_connections"), 1);
        echoes(&mut before);
        drop(taken);
        weir.end("-TERM");
    });
}

fn without_room_connections_pass_by(io: Io) {
    in_network("without_room_connections_pass_by", io, || {
        let between = Between::new();
        between.serve(SERVER[0], 8080);
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -n 400; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_weir")]);
        let weir = Intercept::start_by(shell, io, &[]);
        let mut open = Vec::new();
        eventually("there is no room", || {
            open.push(between.ask(CLIENT[0], 0, SERVER[0], 8080).expect("it gets through"));
            // The last ones one by one: weir checks descriptors from time to time, and a client
            // that comes when there are none has to wait.
            if open.len() > 120 {
                weir.total("tcp_connections");
            }
            weir.said().contains("new connections bypass weir: 400 descriptors are nearly used up")
        });
        let before = weir.total("tcp_connections");
        let (mut stream, _) =
            between.ask(CLIENT[0], 0, SERVER[0], 8080).expect("nobody is between");
        echoes(&mut stream);
        assert_eq!(weir.total("tcp_connections"), before);
        open.clear();
        eventually("there is room", || {
            weir.said().contains("weir intercepts new connections again")
        });
        between.ask(CLIENT[0], 0, SERVER[0], 8080).expect("it gets through");
        assert_eq!(weir.total("tcp_connections"), before + 1);
        weir.end("-INT");
    });
}

/// A client whose replies go astray begins more connections than may wait to be completed: others
/// pass by, and are taken again afterwards.
fn under_a_flood_connections_pass_by(io: Io) {
    in_network("under_a_flood_connections_pass_by", io, || {
        const ASTRAY: &str = "198.18.1.50";
        let between = Between::new();
        SERVER.iter().for_each(|host| between.serve(host, 8080));
        between.clients.ip(&format!("addr add {ASTRAY}/24 dev c"));
        ip(&format!("neigh replace {ASTRAY} lladdr 02:00:00:00:00:50 dev pc nud permanent"));
        let weir = Intercept::start(io, &[]);
        let may_wait = |count: u32| {
            let write = format!("echo {count} > /proc/sys/net/ipv4/tcp_max_syn_backlog");
            let process = weir.process().to_string();
            assert!(run("nsenter", &["-t", &process, "-n", "sh", "-c", &write]).status.success());
        };
        may_wait(64);
        let mut begun = Vec::new();
        let mut more = |count| {
            begun.extend((0..count).map(|_| begin(&between, (ASTRAY, 0), (SERVER[0], 8080))))
        };
        more(200);
        let of = |name: &str| weir.status()["interception"][name].clone();
        eventually("it is a flood", || {
            more(1);
            of("passing") == "more begin than are completed and accepted"
        });
        eventually("others pass by", || {
            more(1);
            let (passed, taken) = (of("passed_by").as_u64(), weir.total("tcp_connections"));
            let (mut stream, _) =
                between.ask(CLIENT[0], 0, SERVER[0], 8080).expect("it gets through");
            echoes(&mut stream);
            of("passed_by").as_u64() > passed && weir.total("tcp_connections") == taken
        });
        drop(begun);
        may_wait(65_535);
        // A minute at most, if the machine was so busy that it restarted each time.
        let is_over = || of("passing").is_null();
        let mut waiting = Waiting::for_program();
        while !is_over() && waiting.goes_on() {
            std::thread::park_timeout(Duration::from_millis(20));
        }
        eventually("others are taken", || {
            between.ask(CLIENT[0], 0, SERVER[0], 8080).expect("it gets through");
            is_over() && weir.total("tcp_connections") > 0
        });
        weir.end("-INT");
    });
}

fn nothing_is_left(io: Io) {
    in_network("nothing_is_left", io, || {
        let between = Between::new();
        SERVER.iter().for_each(|host| between.serve(host, 8080));
        let before = surroundings();
        for signal in ["-INT", "-KILL"] {
            let weir = Intercept::start(io, &[]);
            let (mut stream, _) =
                between.ask(CLIENT[1], 0, SERVER[1], 8080).expect("it gets through");
            echoes(&mut stream);
            assert_ne!(surroundings(), before, "there is an interface");
            weir.end(signal);
            eventually("nothing is left", || {
                let now = surroundings();
                if now != before {
                    eprintln!("{before}\nis now\n{now}");
                }
                now == before
            });
            // Its connections have ended, for both sides or with their next packet.
            bounded(&stream);
            let over = stream.read(&mut [0; 4]).expect_err("it does not look whole");
            assert_eq!(over.kind(), ErrorKind::ConnectionReset, "{signal}");
            let (mut stream, _) =
                between.ask(CLIENT[0], 0, SERVER[0], 8080).expect("nobody is between");
            echoes(&mut stream);
        }
    });
}

fn each_side_is_as_asked(io: Io) {
    in_network("each_side_is_as_asked", io, || {
        let between = Between::new();
        SERVER.iter().for_each(|host| between.serve(host, 8080));
        let clients = [
            "--client-congestion",
            "reno",
            "--client-initcwnd",
            "40",
            "--client-max-rate",
            "20Mbit/s",
        ];
        let servers =
            ["--server-congestion", "reno", "--server-initcwnd", "20", "--server-mss", "1000"];
        let weir = Intercept::start(io, &[&clients[..], &servers].concat());
        let process = weir.process().to_string();
        let inside = |command: &[&str]| {
            let done = run("nsenter", &[&["-t", &process, "-n"], command].concat());
            String::from_utf8(done.stdout).expect("text")
        };
        for (family, (from, to)) in ["-4", "-6"].into_iter().zip(CLIENT.into_iter().zip(SERVER)) {
            for (table, window) in [("101", "initcwnd 40"), ("main", "initcwnd 20")] {
                let routes = inside(&["ip", family, "route", "show", "table", table]);
                assert!(routes.contains(window), "{routes}");
            }
            let (stream, _) = between.ask(from, 4000, to, 8080).expect("it gets through");
            let of =
                |filter: &str| inside(&["ss", family, "-Htin", "state", "established", filter]);
            let (clients, servers) = (of("sport = :8080"), of("dport = :8080"));
            for (shown, wanted) in
                [(&clients, [" cwnd:40 ", "/20000000bps"]), (&servers, [" cwnd:20 ", " mss:988 "])]
            {
                assert!(wanted.iter().all(|word| shown.contains(word)), "{wanted:?}: {shown}");
            }
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("an option");
        }
        weir.end("-TERM");
    });
}

#[test]
fn what_stands_in_the_way_is_said() {
    in_own_network_as_root("intercept::what_stands_in_the_way_is_said", || {
        if !takes_programs() {
            return;
        }
        let weir = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
            let done = crate::kit::finish(
                command.arg("intercept").args(arguments).env("WEIR_ADMIN", "off"),
            );
            let texts =
                [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
            (done.status.code(), texts.concat())
        };
        ip("link add pc type veth peer name ps");
        let sides = ["--client-side", "pc", "--server-side", "ps", "--ports", "80"];
        let with = |more: &[&str]| weir(&[&sides, more].concat());
        let (code, said) =
            weir(&["check", "--client-side", "eth7", "--server-side", "ps", "--ports", "80"]);
        assert!(
            code == Some(1)
                && said.contains("no interface eth7")
                && said.contains("this machine has "),
            "{said}"
        );
        let (code, said) = with(&["check", "--client-congestion", "warp"]);
        assert!(
            code == Some(1)
                && said.contains(
                    "congestion control `warp`: this kernel has no such congestion control"
                ),
            "{said}"
        );
        assert!(said.contains("this machine does not forward packets that arrive on pc"), "{said}");
        let (code, said) = with(&[]);
        assert!(code == Some(1) && said.contains("sysctl net.ipv4.ip_forward=1"), "{said}");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("root may");
        let (code, said) = with(&["check"]);
        assert!(
            code == Some(0)
                && said.contains("note: pc is down")
                && said.contains("no obstacles found"),
            "{said}"
        );
        assert!(said.contains("note: /sys does not show pc"), "{said}");
        let mut command = Command::new("unshare");
        let script = "mount -t sysfs sysfs /sys && exec \"$0\" intercept check \"$@\"";
        command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_weir")]).args(sides);
        let done = crate::kit::finish(command.env("WEIR_ADMIN", "off"));
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(
            said.contains(
                "note: pc is not a card: the core that sends a packet also receives it there"
            ),
            "{said}"
        );
        let (code, said) = weir(&["--client-side", "pc", "--server-side", "pc", "--ports", "80"]);
        assert!(code == Some(1) && said.contains("pc is both sides"), "{said}");
        let (code, said) = weir(&["--client-side", "pc", "--server-side", "lo", "--ports", "80"]);
        assert!(code == Some(1) && said.contains("lo is not Ethernet"), "{said}");
        let (code, said) = with(&["--print", "--server-congestion", "cubic"]);
        assert!(
            code == Some(0)
                && said.contains("# ip link add weirPID type veth")
                && said.contains("congestion \"cubic\""),
            "{said}"
        );
        assert!(!said.contains("tuntap"), "{said}");
        let (code, said) = with(&["--print", "--connect", "first"]);
        assert!(code == Some(0) && said.contains("# ip -n NS tuntap add held mode tun"), "{said}");
        let (code, said) = with(&["--print", "--connect", "syn"]);
        assert!(code == Some(0) && said.contains("# ip -n NS tuntap add held mode tun"), "{said}");
        assert!(
            said.contains("copies of new connections go to held") && !said.contains("iif held"),
            "{said}"
        );
        let (code, said) = with(&["--connect", "last"]);
        assert!(
            code == Some(2) && said.contains("[possible values: accept, syn, first]"),
            "{said}"
        );
        let (code, said) = with(&["--print", "--client-initcwnd", "40", "--server-dscp", "ef"]);
        assert!(
            code == Some(0) && said.contains("route add default dev outside initcwnd 40 table 101"),
            "{said}"
        );
        assert!(
            said.contains("rule add fwmark 1 lookup 101") && said.contains("dscp \"ef\""),
            "{said}"
        );
        let (code, said) = with(&["--client-max-rate", "fast"]);
        assert!(code == Some(2) && said.contains("`fast` is not a rate"), "{said}");
        let (code, said) = with(&["--http", "443"]);
        assert!(
            code == Some(2) && said.contains("--http 443: weir does not intercept that port"),
            "{said}"
        );
        let (code, said) = with(&["--ports", "443,80", "--connect", "first"]);
        assert!(code == Some(2) && said.contains("--ports: port 80 is named twice"), "{said}");
        for connect in ["syn", "first"] {
            let (code, said) = with(&["--http", "80", "--connect", connect]);
            let word = format!(
                "--connect {connect} works only for connections that weir forwards unchanged"
            );
            assert!(code == Some(2) && said.contains(&word), "{said}");
        }
        let (code, said) = with(&["--print", "--http", "80"]);
        assert!(
            code == Some(0)
                && said.contains("route { proxy \"requests\"; }")
                && !said.contains("tcp {"),
            "{said}"
        );
        assert!(
            !run("ip", &["link"]).stdout.windows(5).any(|at| at == b"weir1"),
            "nothing was made"
        );
        let mut command = Command::new("setpriv");
        command.args([
            "--bounding-set=-sys_admin",
            "--inh-caps=-sys_admin",
            env!("CARGO_BIN_EXE_weir"),
            "intercept",
        ]);
        let done = crate::kit::finish(command.args(sides).env("WEIR_ADMIN", "off"));
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(
            done.status.code() == Some(77) && said.contains("cannot create a network namespace"),
            "{said}"
        );
    });
}
