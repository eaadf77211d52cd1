//! Proves: where a link behind either side's network takes only shorter packets, weir hears of it,
//! because it has the address of the other end. Everything arrives, in each mode of connecting.
//!
//! How: `weir intercept` between two networks of the test, and a third behind one of them. Needs
//! root. docs/intercept.md.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};

use crate::intercept::{Intercept, in_network_with_programs};
use crate::kit::{Io, Neighbour, bounded, ip, on_both_drivers};
use crate::transparent::{Between, CLIENT, SERVER};

on_both_drivers!(behind_the_servers, behind_the_clients);

fn in_network(test: &str, io: Io, body: impl FnOnce()) {
    in_network_with_programs("intercept_narrow", test, io, body);
}

const MODES: [&str; 3] = ["accept", "first", "syn"];

/// More than a connection sends before it hears back.
const MUCH: usize = 300_000;

/// The addresses of a machine behind a link with an MTU of 1,300 bytes.
const FAR: [&str; 2] = ["198.18.3.2", "fd00:3::2"];

/// Sets up that machine behind this one, which has these addresses.
fn behind(side: &Neighbour, addresses: [&str; 2]) -> Neighbour {
    let far = Neighbour::new("narrow", "wide");
    side.take("narrow");
    for (family, near, end, net, to) in [
        ("-4", "198.18.3.1", "198.18.3.2/24", "198.18.3.0/24", addresses[0]),
        ("-6", "fd00:3::1", "fd00:3::2/64", "fd00:3::/64", addresses[1]),
    ] {
        let (length, nodad) = if family == "-6" { (64, " nodad") } else { (24, "") };
        side.ip(&format!("addr add {near}/{length} dev narrow{nodad}"));
        far.ip(&format!("addr add {end} dev wide{nodad}"));
        side.ip("link set narrow up mtu 1300");
        far.ip("link set wide up");
        far.ip(&format!("{family} route add default via {near}"));
        ip(&format!("{family} route add {net} via {to}"));
    }
    side.inside(|| {
        for name in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            std::fs::write(format!("/proc/sys/net/{name}"), "1").expect("root may");
        }
    });
    far
}

fn behind_the_servers(io: Io) {
    in_network("behind_the_servers", io, || {
        let between = Between::new();
        let far = behind(&between.servers, SERVER);
        // Replies with the number of bytes that it received.
        for host in FAR {
            let listener = far.inside(|| TcpListener::bind((host, 8080))).expect("a free port");
            std::thread::spawn(move || {
                for mut stream in listener.incoming().map_while(Result::ok) {
                    let _ = writeln!(stream, "hello");
                    let mut all = Vec::new();
                    let _ =
                        stream.read_to_end(&mut all).and_then(|count| writeln!(stream, "{count}"));
                }
            });
        }
        for mode in MODES {
            let weir = Intercept::start(io, &["--connect", mode]);
            for (from, to) in CLIENT.into_iter().zip(FAR) {
                let (mut stream, _) = between.ask(from, 0, to, 8080).expect("it gets through");
                stream.write_all(&[7; MUCH]).expect("open");
                stream.shutdown(Shutdown::Write).expect("open");
                let mut told = String::new();
                stream.read_to_string(&mut told).expect("an end in order");
                assert_eq!(told, format!("{MUCH}\n"), "{mode}");
            }
            assert_eq!(weir.total("tcp_connections"), 2, "{mode}");
            weir.end("-TERM");
        }
    });
}

fn behind_the_clients(io: Io) {
    in_network("behind_the_clients", io, || {
        let between = Between::new();
        let far = behind(&between.clients, CLIENT);
        // Sends a lot.
        for host in SERVER {
            let listener =
                between.servers.inside(|| TcpListener::bind((host, 8080))).expect("a free port");
            std::thread::spawn(move || {
                for mut stream in listener.incoming().map_while(Result::ok) {
                    let _ = stream.write_all(&[7; MUCH]);
                }
            });
        }
        for mode in MODES {
            let weir = Intercept::start(io, &["--connect", mode]);
            for to in SERVER {
                let mut stream =
                    far.inside(|| TcpStream::connect((to, 8080))).expect("it gets through");
                bounded(&stream);
                let mut told = Vec::new();
                stream.read_to_end(&mut told).expect("an end in order");
                assert!(told == [7; MUCH], "{mode}: {} bytes", told.len());
            }
            assert_eq!(weir.total("tcp_connections"), 2, "{mode}");
            weir.end("-TERM");
        }
    });
}
