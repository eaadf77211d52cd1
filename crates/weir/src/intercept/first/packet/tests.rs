//! Proves: first packets of both families are parsed, and nothing else is; a client takes the reset
//! for one of its server; errors quote the client's packet, with valid checksums. How: packets as
//! Linux sends them, cut and changed at every byte.

use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;

/// Returns a first packet between these addresses, with options and this much data.
fn first(from: &str, to: &str, data: usize) -> Vec<u8> {
    let [from, to]: [SocketAddr; 2] = [from, to].map(|text| text.parse().expect("an address"));
    let mut segment = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    segment.extend_from_slice(&0xffff_fff0u32.to_be_bytes());
    segment.extend_from_slice(&[
        0, 0, 0, 0, 0x70, SYN, 0xfa, 0xf0, 0, 0, 0, 0, 2, 4, 5, 0xb4, 1, 3, 3, 7,
    ]);
    segment.resize(segment.len() + data, b'x');
    seal(from.ip(), to.ip(), TCP, segment, 16)
}

const FOUR: [&str; 2] = ["198.18.1.2:4000", "198.18.2.2:80"];
const SIX: [&str; 2] = ["[fd00:1::2]:4000", "[fd00:2::2]:80"];

/// Checks all checksums of a packet, and returns its content.
fn opened(packet: &[u8]) -> (IpAddr, IpAddr, u8, &[u8]) {
    let (from, to, protocol, content): (IpAddr, IpAddr, _, _) = match packet[0] >> 4 {
        4 => {
            assert_eq!(fold(sum(&packet[..IPV4_BYTES])), 0, "header");
            assert_eq!(usize::from(word(packet, 2).expect("a length")), packet.len());
            let at = |at: usize| IpAddr::from(*packet[at..].first_chunk::<4>().expect("whole"));
            (at(12), at(16), packet[9], &packet[IPV4_BYTES..])
        }
        _ => {
            assert_eq!(usize::from(word(packet, 4).expect("a length")), packet.len() - IPV6_BYTES);
            let at = |at: usize| IpAddr::from(*packet[at..].first_chunk::<16>().expect("whole"));
            (at(8), at(24), packet[6], &packet[IPV6_BYTES..])
        }
    };
    let addresses = if packet[0] >> 4 == 4 { &packet[12..20] } else { &packet[8..40] };
    let pseudo = if protocol == ICMP {
        0
    } else {
        sum(addresses) + content.len() as u64 + u64::from(protocol)
    };
    assert_eq!(fold(pseudo + sum(content)), 0, "content");
    (from, to, protocol, content)
}

#[test]
fn first_packets_are_read_and_refused() {
    for ([from, to], data) in [(FOUR, 0), (SIX, 0), (FOUR, 7), (SIX, 8)] {
        let packet = first(from, to, data);
        let mut longer = packet.clone();
        longer.extend_from_slice(b"padding");
        let read = First::read(&longer).expect("it is one");
        assert_eq!(read.bytes(), packet);
        assert_eq!(
            (read.pair.client().to_string(), read.pair.server().to_string()),
            (from.to_owned(), to.to_owned())
        );
        let reset = read.reset();
        let (source, destination, protocol, segment) = opened(&reset);
        assert_eq!(
            (source, destination, protocol),
            (read.pair.server().ip(), read.pair.client().ip(), TCP)
        );
        assert_eq!((word(segment, 0), word(segment, 2)), (Some(80), Some(4000)));
        assert_eq!(segment[13], RST | ACK);
        let acknowledged = u32::from_be_bytes(*segment[8..].first_chunk().expect("whole"));
        assert_eq!(acknowledged, 0xffff_fff0u32.wrapping_add(1 + data as u32));
    }
}

#[test]
fn an_error_is_told_as_it_was_reported() {
    for ([from, to], reporter, protocol) in [(FOUR, "198.18.2.1", ICMP), (SIX, "fd00:2::1", ICMPV6)]
    {
        let packet = first(from, to, 2000);
        let read = First::read(&packet).expect("it is one");
        let reporter: IpAddr = reporter.parse().expect("an address");
        let kind = if protocol == ICMP { 3 } else { 1 };
        let told = read.unreachable(Report { kind, code: 1, from: reporter }).expect("it is told");
        let (source, destination, is, message) = opened(&told);
        assert_eq!((source, destination, is), (reporter, read.pair.client().ip(), protocol));
        assert_eq!(&message[..2], [kind, 1]);
        assert!(
            packet.starts_with(&message[ICMP_BYTES..])
                && told.len() == ERROR_BYTES_MAX[usize::from(kind == 1)]
        );
        // Of another family; of an unrelated kind.
        let other = if protocol == ICMP { SIX } else { FOUR };
        let other: SocketAddr = other[1].parse().expect("an address");
        assert_eq!(read.unreachable(Report { kind, code: 1, from: other.ip() }), None);
        for (kind, code) in [(0, 0), (5, 0), (2, 0), (if protocol == ICMP { 3 } else { 4 }, 4)] {
            assert_eq!(
                read.unreachable(Report { kind, code, from: reporter }),
                None,
                "{kind} {code}"
            );
        }
    }
}

#[test]
fn nothing_else_is_one() {
    for [from, to] in [FOUR, SIX] {
        let packet = first(from, to, 0);
        for cut in 0..packet.len() {
            assert_eq!(First::read(&packet[..cut]), None, "{cut}");
        }
        let tcp = packet.len() - 28;
        let is_four = packet[0] >> 4 == 4;
        let changes = [
            (tcp + 13, SYN | ACK),
            (tcp + 13, ACK),
            (tcp + 13, SYN | RST),
            (tcp + 12, 0x40),
            (0, 0x55),
        ];
        let of_header =
            if is_four { [(9, 17), (6, 0x20), (0, 0x44)] } else { [(6, 17), (6, 44), (0, 0x40)] };
        for (at, value) in changes.into_iter().chain(of_header) {
            let mut changed = packet.clone();
            changed[at] = value;
            assert_eq!(First::read(&changed), None, "{at} {value}");
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_are_too_odd(
        mut bytes in prop::collection::vec(any::<u8>(), 0..120),
        at in 0usize..60,
        six in any::<bool>(),
    ) {
        let _ = First::read(&bytes);
        let packet = if six { first(SIX[0], SIX[1], 3) } else { first(FOUR[0], FOUR[1], 3) };
        bytes.splice(0..0, packet);
        let at = at % bytes.len();
        bytes[at] ^= 1 << (at % 8);
        if let Some(read) = First::read(&bytes) {
            opened(&read.reset());
            let told = read.unreachable(Report { kind: 3, code: 0, from: read.pair.server().ip() });
            told.iter().for_each(|told| {
                opened(told);
            });
        }
    }
}
