//! Proves: a running interception has set exactly what `weir intercept --print` says that it would
//! set. Where nothing leads packets to a transparent listener, `weir check` and the start say so. A
//! check that may probe a server says by which interface its answer comes back, or that none does.
//!
//! How: the real binary between two networks of the test, and the settings of its namespace beside
//! those of a new one; routes and rules of another. Needs root. docs/intercept.md.

use std::collections::BTreeMap;
use std::process::Command;

use crate::intercept::{Intercept, echoes, in_network_with_programs};
use crate::intercept_first::make_networks;
use crate::kit::{Io, Scratch, Weir, eventually, in_own_network_as_root, ip, on_both_drivers, run};
use crate::transparent::{Between, CLIENT, SERVER};

on_both_drivers!(what_is_printed_is_what_is_done, four_rights_are_enough);

/// Returns the network settings below `/proc/sys/net` and their values, in the namespace in which a
/// command is started.
fn settings(enter: &str, arguments: &[&str]) -> BTreeMap<String, String> {
    let script = "cd /proc/sys && grep -rs '' net/ipv4/conf net/ipv4/ip_* net/ipv4/tcp_* net/core \
        net/ipv6/conf";
    let done = run(enter, &[arguments, &["sh", "-c", script]].concat());
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let named = text.lines().filter_map(|line| line.split_once(':'));
    named.map(|(name, value)| (name.to_owned(), value.replace('\t', " "))).collect()
}

/// Nothing is set that is not printed, and what is printed is set.
fn what_is_printed_is_what_is_done(io: Io) {
    in_network_with_programs("intercept_check", "what_is_printed_is_what_is_done", io, || {
        let between = Between::new();
        make_networks(&between);
        let weir = Intercept::start(io, &["--connect", "first"]);
        let namespace = format!("--net=/proc/{}/ns/net", weir.process());
        let there = settings("nsenter", &[&namespace]);
        // These are the default values, as far as a new namespace has the same
        // interfaces.
        let new = settings("unshare", &["--net"]);
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args([
            "intercept",
            "--client-side",
            "pc",
            "--server-side",
            "ps",
            "--ports",
            "8080,8443",
        ]);
        let done = crate::kit::finish(
            command.args(["--connect", "first", "--print"]).env("WEIR_ADMIN", "off"),
        );
        let printed = String::from_utf8_lossy(&done.stdout).into_owned();
        let mut lines: BTreeMap<String, String> = printed
            .lines()
            .filter_map(|line| {
                line.strip_prefix("# ip netns exec NS sysctl -w ")?
                    .trim_matches('\'')
                    .split_once('=')
            })
            .map(|(name, value)| (name.replace('.', "/"), value.to_owned()))
            .collect();
        assert!(lines.len() >= 9, "{printed}");
        // They exist where the kernel can have them.
        lines.retain(|name, _| !name.contains("/to") || there.contains_key(name));
        for (name, value) in &lines {
            assert_eq!(there.get(name), Some(value), "{name}");
        }
        let changed = there
            .iter()
            .filter(|(name, value)| new.get(*name).is_some_and(|before| before != *value));
        for (name, value) in changed {
            assert_eq!(lines.get(name), Some(value), "{name} is not printed");
        }
    });
}

/// The same rights as in the unit file of the packages.
fn four_rights_are_enough(io: Io) {
    const RIGHTS: [&str; 2] =
        ["--bounding-set=-all,+sys_admin,+net_admin,+net_raw,+bpf", "--no-new-privs"];
    in_network_with_programs("intercept_check", "four_rights_are_enough", io, || {
        let tried = run("setpriv", &[&RIGHTS[..], &["true"]].concat());
        if !tried.status.success() {
            return eprintln!("not tested: {}", String::from_utf8_lossy(&tried.stderr));
        }
        let between = Between::new();
        SERVER.iter().for_each(|host| between.serve(host, 8080));
        let mut command = Command::new("setpriv");
        command.args(RIGHTS).arg(env!("CARGO_BIN_EXE_weir"));
        let weir = Intercept::start_by(command, io, &["--connect", "first"]);
        for (at, (from, to)) in (1..).zip(CLIENT.into_iter().zip(SERVER)) {
            let (mut stream, told) = between.ask(from, 4000, to, 8080).expect("it gets through");
            assert!(told.contains("4000 to "), "{told}");
            echoes(&mut stream);
            assert_eq!(weir.total("tcp_connections"), at);
        }
        weir.end("-TERM");
    });
}

/// Nothing leads packets to a transparent listener, or only a route without a rule. `weir check`
/// and the start say so, with the commands that mend it. Those commands do mend it.
#[test]
fn what_leads_nowhere_is_said() {
    in_own_network_as_root("intercept_check::what_leads_nowhere_is_said", || {
        let scratch = Scratch::new();
        let text = "tcp { listen \"127.0.0.1:18080\" transparent=#true; proxy \"through\"; }
            upstream \"through\" { server \"original-destination\"; source \"client\"; }";
        let file = scratch.write("weir.kdl", text.as_bytes()).display().to_string();
        let check = || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
            let done = crate::kit::finish(command.args(["check", "-c", &file]));
            assert_eq!(done.status.code(), Some(0), "it is a warning");
            String::from_utf8_lossy(&done.stderr).into_owned()
        };
        let said = check();
        assert!(
            said.contains(
                "no route delivers IPv4 packets for other addresses to sockets of this machine"
            ),
            "{said}"
        );
        assert!(!said.contains("IPv6"), "nobody listens for those: {said}");
        let requests = "upstream \"app\" { server \"127.0.0.1:9\"; }\nroute { proxy \"app\"; }";
        let weir = Weir::start(Io::Epoll, 1, &format!("{text}\n{requests}"));
        eventually("it is said", || weir.said().contains("no route delivers IPv4 packets"));
        weir.stop();
        ip("route add local default dev lo table 100");
        let said = check();
        assert!(said.contains("no rule sends IPv4 packets to table 100"), "{said}");
        ip("rule add fwmark 1 lookup 100");
        let said = check();
        assert!(!said.contains("IPv4 packets"), "{said}");
    });
}

/// By the interface of the servers' side, as it should; by another interface; not at all.
#[test]
fn where_answers_come_back_is_said() {
    in_own_network_as_root("intercept_check::where_answers_come_back_is_said", || {
        let between = Between::new();
        SERVER.iter().for_each(|host| between.serve(host, 8080));
        let with = |words: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
            command.args([
                "intercept",
                "--client-side",
                "pc",
                "--server-side",
                "ps",
                "--ports",
                "8080",
            ]);
            let done = crate::kit::finish(command.args(words).env("WEIR_ADMIN", "off"));
            let said = [done.stdout, done.stderr].concat();
            (done.status.code(), String::from_utf8_lossy(&said).into_owned())
        };
        let probe = |server: &str, client: &str| {
            with(&["check", "--probe", server, "--probe-from", client])
        };
        for (client, server) in CLIENT.into_iter().zip(["198.18.2.2:8080", "[fd00:2::2]:8080"]) {
            let (_, said) = probe(server, client);
            assert!(
                said.contains(&format!(
                    "note: {server} accepts {client}, and its reply came back by ps"
                )),
                "{said}"
            );
        }
        let (_, said) = probe("198.18.2.2:9", CLIENT[0]);
        assert!(
            said.contains("note: 198.18.2.2:9 refuses 198.18.1.2, and its reply came back by ps"),
            "{said}"
        );
        ip(&format!("link add px type veth peer name x netns {}", between.servers.process()));
        ip("link set px up");
        between.servers.ip("addr add 198.18.4.2/24 dev x");
        between.servers.ip("link set x up");
        ip("addr add 198.18.4.1/24 dev px");
        between.servers.ip("route add 198.18.1.0/24 via 198.18.4.1");
        let (code, said) = probe("198.18.2.2:8080", CLIENT[0]);
        assert!(code == Some(1) && said.contains("its reply came back by px, not by ps"), "{said}");
        between.servers.ip("route add blackhole 198.18.1.2");
        let (code, said) = probe("198.18.2.2:8080", CLIENT[0]);
        assert!(
            code == Some(1)
                && said.contains("error: no reply of 198.18.2.2:8080 to 198.18.1.2 arrived here"),
            "{said}"
        );
        let (code, said) = probe("198.18.2.2:8080", "198.18.1.1");
        assert!(
            code == Some(1)
                && said.contains("198.18.1.1 or 198.18.2.2 is this machine's own address"),
            "{said}"
        );
        let (code, said) = probe("198.18.2.2:8080", CLIENT[1]);
        assert!(code == Some(2) && said.contains("one is IPv4, and the other is IPv6"), "{said}");
        let (code, said) = with(&["--probe", "198.18.2.2:8080", "--probe-from", CLIENT[0]]);
        assert!(
            code == Some(2) && said.contains("--probe is for `weir intercept check`"),
            "{said}"
        );
    });
}
