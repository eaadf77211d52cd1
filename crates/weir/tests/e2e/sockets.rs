//! Proves: connections with clients and with servers have the options of sockets that are written, each side its own; after a reload new ones have what is
//! written then; what can't be had is said before weir starts, with the right that is missing. How: the real binary in a network of the test, looked at
//! by ss(8). Needs root. docs/semantics.md §24a.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use crate::kit::{DEADLINE, Io, Scratch, Weir, in_own_network_as_root, ip, on_both_drivers, run, status};

on_both_drivers!(each_side_has_its_own, what_can_not_be_had_is_said);

fn in_network(test: &str, io: Io, body: impl FnOnce()) {
    in_own_network_as_root(&format!("sockets::{}::{test}", io.word()), body);
}

/// A server that greets whoever connects and keeps him.
fn greeter(host: &str) {
    let listener = TcpListener::bind(host).expect("a port of this network");
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.write_all(b"hello");
            kept.push(stream);
        }
    });
}

fn greeted(to: &str) -> TcpStream {
    let mut stream = TcpStream::connect(to).expect("weir listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("an option");
    let mut said = [0; 5];
    stream.read_exact(&mut said).expect("a greeting");
    assert_eq!(&said, b"hello");
    stream
}

/// What ss(8) tells of established connections from or to a port here.
fn shown(filter: &str) -> String {
    let shown = run("ss", &["-Htinme", "--tos", "state", "established", filter]);
    String::from_utf8(shown.stdout).expect("text")
}

fn has(shown: &str, wanted: &[&str]) {
    wanted.iter().for_each(|word| assert!(shown.contains(word), "{word}: {shown}"));
}

fn each_side_has_its_own(io: Io) {
    in_network("each_side_has_its_own", io, || {
        for (listen, server) in [("127.0.0.1:5000", "127.0.0.1:6000"), ("[::1]:5000", "[::1]:6000")] {
            greeter(server);
            let text = |listening: &str, upstream: &str| {
                format!(
                    "tcp {{ listen \"{listen}\" mss=1000 send-buffer=\"64KiB\" user-timeout=\"30s\" {listening}; proxy \"a\"; }}\n\
                     upstream \"a\" {{ server \"{server}\"; dscp \"ef\"; receive-buffer \"80KiB\"; notsent-low-water \"16KiB\"; {upstream}; }}\n\
                     route {{ respond 204; }}\n"
                )
            };
            let first = text("mark=7 max-rate=\"20Mbit/s\" dscp=\"af21\"", "mark 9; max-rate \"1MiB\"; device \"lo\"");
            let weir = Weir::start(io, 2, &first);
            let before = greeted(listen);
            let (clients, servers) = (shown("sport = :5000"), shown("dport = :6000"));
            // What a segment holds is less by the time stamps in it; sizes are doubled by the kernel, and rates are in bits.
            has(&clients, &["fwmark:0x7", "mss:988", "tb131072", "/20000000bps", "tos:0x48"]);
            has(&servers, &["fwmark:0x9", "rb163840", "/8388608bps", "tos:0xb8", "%lo"]);
            assert!(!clients.contains("%lo") && !servers.contains("mss:988"), "{clients}{servers}");

            // Others from now on, and some that are gone; who is there keeps what he has.
            weir.rewrite(&text("device=\"lo\" max-rate=\"30Mbit/s\"", "mark 10"));
            weir.answer(&["reload"]);
            drop(before);
            let _after = greeted(listen);
            let (clients, servers) = (shown("sport = :5000"), shown("dport = :6000"));
            has(&clients, &["%lo", "mss:988", "/30000000bps"]);
            has(&servers, &["fwmark:0xa", "rb163840"]);
            for gone in ["fwmark", "tos:0x48", "/20000000bps"] {
                assert!(!clients.contains(gone), "{clients}");
            }
            assert!(!servers.contains("%lo"), "{servers}");
            let refused = weir_refuses(&weir, &text("device=\"warp0\"", "mark 10"));
            assert!(refused.contains("there is no such interface; this machine has lo"), "{refused}");
            assert_eq!(status(&weir)["reload"]["ok"], false);
            weir.stop();
        }
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
            let text = format!("io \"{}\"\nroute {{ proxy \"a\"; }}\n{text}", io.word());
            let file = scratch.write("weir.kdl", text.as_bytes());
            let mut command = Command::new("setpriv");
            command.args(["--bounding-set=-net_raw,-net_admin", "--inh-caps=-net_raw,-net_admin"]);
            command.args([env!("CARGO_BIN_EXE_weir"), "run", "-c"]).arg(file).env("WEIR_ADMIN", "off");
            let done = crate::kit::finish(&mut command);
            (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
        };
        let server = |option: &str| {
            format!("listen \"127.0.0.1:5000\"\nupstream \"a\" {{ server \"127.0.0.1:6000\"; {option}; }}\n")
        };
        let listener = |option: &str| {
            format!("listen \"127.0.0.1:5000\" {option}\nupstream \"a\" {{ server \"127.0.0.1:6000\"; }}\n")
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
            assert!(said.contains("`device`: there is no such interface; this machine has"), "{said}");
            assert!(said.contains("warp") && said.contains("lo"), "{said}");
        }
        for text in [server("receive-buffer \"1GiB\""), listener("receive-buffer=\"1GiB\"")] {
            let (code, said) = start(&text);
            assert_eq!(code, Some(1), "{said}");
            assert!(said.contains("`sysctl net.core.rmem_max=1073741824`"), "{said}");
        }
    });
}
