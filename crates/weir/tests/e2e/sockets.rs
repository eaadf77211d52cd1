//! Proves: connections with clients and with servers have the configured socket options, each side
//! its own; after a reload new connections have the new options. Impossible options are reported
//! before weir starts, with the missing right. How: the real binary in a network of the test,
//! inspected by ss(8). Needs root. docs/sockets.md.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::kit::{
    Io, Scratch, Weir, bounded, eventually, finish_without_rights, in_own_network_as_root, ip,
    on_both_drivers, run, status,
};

on_both_drivers!(
    each_side_has_its_own,
    each_side_is_asked_as_was_chosen,
    what_can_not_be_had_is_said,
    congestion_controls_are_compared,
);

fn in_network(test: &str, io: Io, body: impl FnOnce()) {
    in_own_network_as_root(&format!("sockets::{}::{test}", io.word()), body);
}

/// Starts a server that greets each client, and closes when the client does.
fn greeter(host: &str) {
    let listener = TcpListener::bind(host).expect("a port of this network");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let _ = stream.write_all(b"hello");
                let _ = stream.read_to_end(&mut Vec::new());
            });
        }
    });
}

fn greeted(to: &str) -> TcpStream {
    let mut stream = TcpStream::connect(to).expect("weir listens");
    bounded(&stream);
    let mut said = [0; 5];
    stream.read_exact(&mut said).expect("a greeting");
    assert_eq!(&said, b"hello");
    stream
}

/// Returns what ss(8) shows of established connections from or to a port here.
fn shown(filter: &str) -> String {
    let shown = run("ss", &["-Htinme", "--tos", "state", "established", filter]);
    String::from_utf8(shown.stdout).expect("text")
}

fn has(shown: &str, wanted: &[&str]) {
    wanted.iter().for_each(|word| assert!(shown.contains(word), "{word}: {shown}"));
}

fn each_side_has_its_own(io: Io) {
    in_network("each_side_has_its_own", io, || {
        for (listen, server) in [("127.0.0.1:5000", "127.0.0.1:6000"), ("[::1]:5000", "[::1]:6000")]
        {
            greeter(server);
            let text = |listening: &str, upstream: &str| {
                format!(
                    "tcp {{ listen \"{listen}\" mss=1000 send-buffer=\"64KiB\" \
                     user-timeout=\"30s\" {listening}; proxy \"a\"; }}\n\
                     upstream \"a\" {{ server \"{server}\"; dscp \"ef\"; receive-buffer \"80KiB\"; \
                     notsent-low-water \"16KiB\"; {upstream}; }}\n\
                     route {{ respond 204; }}\n"
                )
            };
            let first = text(
                "mark=7 max-rate=\"20Mbit/s\" dscp=\"af21\"",
                "mark 9; max-rate \"1MiB\"; device \"lo\"",
            );
            let weir = Weir::start(io, 2, &first);
            let before = greeted(listen);
            let (clients, servers) = (shown("sport = :5000"), shown("dport = :6000"));
            let class = |code: &str| {
                format!("{}:{code}", if listen.starts_with('[') { "tclass" } else { "tos" })
            };
            // The time stamps reduce the payload of a segment; the kernel doubles sizes, and rates
            // are in bits.
            has(&clients, &["fwmark:0x7", "mss:988", "tb131072", "/20000000bps", &class("0x48")]);
            has(&servers, &["fwmark:0x9", "rb163840", "/8388608bps", &class("0xb8"), "%lo"]);
            assert!(!clients.contains("%lo") && !servers.contains("mss:988"), "{clients}{servers}");

            // Other options from now on, and some are gone; present connections keep theirs.
            weir.rewrite(&text("device=\"lo\" max-rate=\"30Mbit/s\"", "mark 10"));
            weir.answer(&["reload"]);
            drop(before);
            eventually("who left is gone", || !shown("sport = :5000").contains("fwmark"));
            let after = greeted(listen);
            let (clients, servers) = (shown("sport = :5000"), shown("dport = :6000"));
            has(&clients, &["%lo", "mss:988", "/30000000bps"]);
            has(&servers, &["fwmark:0xa", "rb163840"]);
            for gone in ["fwmark", &class("0x48"), "/20000000bps"] {
                assert!(!clients.contains(gone), "{clients}");
            }
            assert!(!servers.contains("%lo"), "{servers}");
            let refused = weir_refuses(&weir, &text("device=\"warp0\"", "mark 10"));
            assert!(refused.contains("no such interface; this machine has "), "{refused}");
            assert_eq!(status(&weir)["reload"]["ok"], false);
            drop(after);
            weir.stop();
        }
    });
}

/// Returns the minutes until established connections from or to a port here are checked for a
/// living peer. Connections without such checks have no entry, nor those that only wait for an
/// acknowledgement.
fn minutes(filter: &str) -> Vec<u32> {
    let shown = run("ss", &["-Htno", "state", "established", filter]);
    let shown = String::from_utf8(shown.stdout).expect("text");
    let timers = shown.lines().filter_map(|line| line.split_once("timer:(keepalive,"));
    timers
        .map(|(_, left)| left.split_once("min").map_or(0, |(count, _)| count.parse().unwrap_or(0)))
        .collect()
}

/// Whether one connection is checked this many minutes after its last activity, some of which have
/// passed.
fn is_asked_within(filter: &str, most: u32) -> bool {
    matches!(minutes(filter)[..], [left] if left <= most && most < left + 40)
}

fn each_side_is_asked_as_was_chosen(io: Io) {
    const CLIENTS: &str = "sport = :5000";
    const SERVERS: &str = "dport = :6000";
    const REQUESTS: &str = "sport = :5001";
    in_network("each_side_is_asked_as_was_chosen", io, || {
        for host in ["127.0.0.1", "[::1]"] {
            greeter(&format!("{host}:6000"));
            let text = |client: &str, server: &str| {
                format!(
                    "tcp {{ listen \"{host}:5000\" {client}; proxy \"a\"; }}\n\
                     upstream \"a\" {{ server \"{host}:6000\"; {server}; }}\n\
                     client {{ idle-timeout \"10m\"; }}\n\
                     listen \"{host}:5001\" {client}\nroute {{ respond 204; }}\n"
                )
            };
            let both = |value: &str| {
                text(&format!("tcp-keepalive=\"{value}\""), &format!("tcp-keepalive \"{value}\""))
            };
            let weir =
                Weir::start(io, 1, &text("tcp-keepalive=\"9h:7s:5\"", "tcp-keepalive \"5h\""));
            let connect = || {
                (
                    greeted(&format!("{host}:5000")),
                    TcpStream::connect(format!("{host}:5001")).expect("weir"),
                )
            };
            let all = connect();
            eventually("clients are", || {
                is_asked_within(CLIENTS, 540) && is_asked_within(REQUESTS, 540)
            });
            eventually("servers are", || is_asked_within(SERVERS, 300));
            drop(all);
            let leave = || {
                let is_empty = |filter| shown(filter).is_empty();
                eventually("who left is gone", || {
                    [CLIENTS, SERVERS, REQUESTS].into_iter().all(is_empty)
                });
            };
            leave();
            weir.rewrite(&both("off"));
            weir.answer(&["reload"]);
            let all = connect();
            // No sent data waits any more, for which there is another timer.
            let rests = |filter: &str| {
                let shown = run("ss", &["-Htno", "state", "established", filter]);
                let shown = String::from_utf8(shown.stdout).expect("text");
                shown.lines().count() == 1 && !shown.contains("timer:")
            };
            eventually("nobody is", || [CLIENTS, SERVERS, REQUESTS].into_iter().all(rests));
            drop(all);
            leave();
            // As usual: only clients of `tcp`.
            weir.rewrite(&both("9h"));
            weir.answer(&["reload"]);
            weir.rewrite(&text("", "mss 1000"));
            weir.answer(&["reload"]);
            let all = connect();
            eventually("clients are", || is_asked_within(CLIENTS, 1));
            eventually("nobody else is", || rests(REQUESTS));
            drop(all);
            leave();
            weir.stop();
        }
    });
}

/// Returns two congestion controls that every user may choose.
fn two_allowed() -> Option<[String; 2]> {
    let all = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
        .expect("every Linux has it");
    let mut names = all.split_whitespace().map(str::to_owned);
    Some([names.next()?, names.next()?])
}

fn congestion_controls_are_compared(io: Io) {
    in_network("congestion_controls_are_compared", io, || {
        let Some([one, other]) = two_allowed() else {
            return eprintln!(
                "not tested: there are no two in net.ipv4.tcp_allowed_congestion_control"
            );
        };
        greeter("127.0.0.1:6000");
        let weir = Weir::start(
            io,
            2,
            &format!(
                "tcp {{ listen \"127.0.0.1:5000\" congestion=\"{one},{other}\"; proxy \"a\"; }}\n\
                 upstream \"a\" {{ server \"127.0.0.1:6000\"; congestion \"{one}\" \
                 \"{other}\"; }}\n\
                 route {{ respond 204; }}\n"
            ),
        );
        let rows = || status(&weir)["congestion"].as_array().cloned().unwrap_or_default();
        let of = |side: &str, name: &str, field: &str| {
            let rows = rows();
            let row = rows.iter().find(|row| row["side"] == *side && row["name"] == *name);
            row.map_or(0, |row| row[field].as_u64().expect("a count"))
        };
        // The check whether weir listens was the first client.
        eventually("he is gone", || status(&weir)["totals"]["client_connections"] == 0);
        let fields = ["connections", "bytes_sent", "bytes_sent_again"];
        let measured =
            |side: &str| [&one, &other].map(|name| fields.map(|field| of(side, name, field)));
        let before = ["client", "server"].map(measured);
        let all: Vec<TcpStream> = (0..60).map(|_| greeted("127.0.0.1:5000")).collect();
        let count = |filter: &str, name: &str| {
            shown(filter).split_whitespace().filter(|word| *word == name).count() as u64
        };
        let sides = [("client", "sport = :5000"), ("server", "dport = :6000")];
        let counts = sides.map(|(_, filter)| [&one, &other].map(|name| count(filter, name)));
        for [one, other] in counts {
            assert!(one + other == 60 && one >= 10 && other >= 10, "{counts:?}");
        }
        // The last words of a client reach its server.
        for mut client in all {
            client.write_all(b"bye").expect("open");
            client.shutdown(std::net::Shutdown::Write).expect("open");
        }
        eventually("all have left", || status(&weir)["totals"]["client_connections"] == 0);
        for (((side, _), counts), before) in sides.iter().zip(counts).zip(before) {
            let bytes = if *side == "client" { b"hello".len() } else { b"bye".len() } as u64;
            for ((count, before), after) in counts.into_iter().zip(before).zip(measured(side)) {
                let [connections, sent, again] = [0, 1, 2].map(|at| after[at] - before[at]);
                assert_eq!(
                    (connections, sent - again),
                    (count, count * bytes),
                    "{side}: {before:?}, {after:?}"
                );
            }
        }
        for row in rows() {
            assert!(row["rtt"]["p50_us"].as_u64() > Some(0), "{row}");
            assert_eq!(row["duration"]["count"], row["connections"], "{row}");
        }
        let text = weir.answer(&["status"]);
        assert!(
            text.contains("CONGESTION") && text.contains("one core receives both sides of"),
            "{text}"
        );
        assert!(status(&weir)["totals"]["tcp_cores_compared"].as_u64() >= Some(1));
        weir.stop();
    });
}

fn weir_refuses(weir: &Weir, text: &str) -> String {
    weir.rewrite(text);
    let done = weir.ask(&["reload"]);
    assert!(!done.status.success());
    [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat()
}

fn what_can_not_be_had_is_said(io: Io) {
    in_network("what_can_not_be_had_is_said", io, || {
        let scratch = Scratch::new();
        let start = |text: &str| {
            finish_without_rights(io, &scratch, &format!("route {{ proxy \"a\"; }}\n{text}"))
        };
        let server = |option: &str| {
            format!(
                "listen \"127.0.0.1:5000\"\n\
                    upstream \"a\" {{ server \"127.0.0.1:6000\"; {option}; }}\n"
            )
        };
        let listener = |option: &str| {
            format!(
                "listen \"127.0.0.1:5000\" {option}\n\
                    upstream \"a\" {{ server \"127.0.0.1:6000\"; }}\n"
            )
        };
        for text in [server("mark 7"), listener("mark=7")] {
            let (code, said) = start(&text);
            assert_eq!(code, Some(77), "{said}");
            assert!(said.contains("`mark` needs the capability CAP_NET_RAW"), "{said}");
        }
        ip("link add warp type veth peer name weft");
        for text in [server("device \"warp0\""), listener("device=\"warp0\"")] {
            let (code, said) = start(&text);
            assert_eq!(code, Some(1), "{said}");
            assert!(said.contains("`device`: no such interface; this machine has"), "{said}");
            assert!(said.contains("warp") && said.contains("lo"), "{said}");
        }
        for text in [server("receive-buffer \"1GiB\""), listener("receive-buffer=\"1GiB\"")] {
            let (code, said) = start(&text);
            assert_eq!(code, Some(1), "{said}");
            assert!(said.contains("`sysctl net.core.rmem_max=1073741824`"), "{said}");
        }
    });
}
