//! Proves: first packets with TCP options that a second connection could not keep (MD5, AO,
//! Multipath TCP) reach their server as they were sent. This holds even if the option is the last
//! of as many as fit. Other packets are taken.
//!
//! How: packets of the test's own through `weir intercept`, between two networks of the test. Needs
//! root. docs/intercept.md.

use std::io::Read as _;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, Socket, Type};

use crate::intercept::{Intercept, in_network_with_programs};
use crate::intercept_first::between;
use crate::kit::{Io, eventually, on_both_drivers, patience_now};
use crate::transparent::{CLIENT, SERVER};

on_both_drivers!(what_would_be_lost_passes_by);

/// Returns a first packet with these options and an invalid checksum, so no kernel answers it
/// (RFC 9293 section 3.1).
fn first_packet(port: u16, options: &[u8]) -> Vec<u8> {
    assert!(options.len().is_multiple_of(4) && options.len() <= 40);
    let words = u8::try_from(5 + options.len() / 4).expect("at most 15");
    let mut packet = [port.to_be_bytes(), 8080_u16.to_be_bytes()].concat();
    packet.extend([1, 2, 3, 4, 0, 0, 0, 0, words << 4, 2, 0xff, 0xff, 0xba, 0xd0, 0, 0]);
    packet.extend(options);
    packet
}

/// Returns an option of this kind and length behind `before` no-operations, and the end of the
/// list.
fn option(before: usize, kind: u8, length: u8) -> Vec<u8> {
    let mut options = vec![1; before];
    options.extend([kind, length]);
    options.resize(before + usize::from(length), 0);
    options.resize(options.len().next_multiple_of(4), 0);
    options
}

fn what_would_be_lost_passes_by(io: Io) {
    in_network_with_programs("intercept_options", "what_would_be_lost_passes_by", io, || {
        let between = between();
        let weir = Intercept::start(io, &[]);
        let odd = [
            option(0, 19, 18),
            option(0, 29, 16),
            option(0, 30, 12),
            option(22, 19, 18),
            option(24, 29, 16),
        ];
        let last = [option(36, 30, 4), option(38, 29, 2)];
        let odd: Vec<_> = odd.into_iter().chain(last).collect();
        // A maximum segment size, a window scale, and as many no-operations as fit.
        let usual = [option(0, 2, 4), option(1, 3, 3), vec![1; 40]];
        let count = |name: &str| weir.status()["interception"][name].as_u64().expect("a number");
        for (at, (from, to)) in (1..).zip(CLIENT.into_iter().zip(SERVER)) {
            let [own, peer] =
                [from, to].map(|host| SocketAddr::new(host.parse().expect("an address"), 0));
            let raw = |address: SocketAddr| {
                let socket =
                    Socket::new(Domain::for_address(address), Type::RAW, Some(Protocol::TCP))
                        .expect("root may");
                socket.bind(&address.into()).expect("it is there");
                socket
            };
            let client = between.clients.inside(|| raw(own));
            let mut server = between.servers.inside(|| raw(peer));
            server.set_read_timeout(Some(patience_now())).expect("an option");
            for (port, options) in (4000..).zip(&odd) {
                let sent = first_packet(port, options);
                client.send_to(&sent, &peer.into()).expect("it is sent");
                let mut arrived = [0; 256];
                // Behind an IPv4 header.
                loop {
                    let n = server.read(&mut arrived).expect("it arrives");
                    if arrived[..n].ends_with(&sent) {
                        break;
                    }
                }
            }
            eventually("they are counted", || count("with_options") == at * odd.len() as u64);
            for (port, options) in (4100..).zip(&usual) {
                client.send_to(&first_packet(port, options), &peer.into()).expect("it is sent");
            }
            eventually("others are taken", || count("taken") == at * usual.len() as u64);
            assert_eq!(
                (count("with_options"), count("passed_by")),
                (at * odd.len() as u64, 0),
                "to {to}"
            );
        }
        assert_eq!(weir.total("tcp_connections"), 0);
        weir.end("-TERM");
    });
}
