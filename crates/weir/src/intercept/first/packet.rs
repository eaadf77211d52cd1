//! First packets of clients, and replies to them when the server is unavailable: pure functions of
//! bytes.
//!
//! RFC 791 and RFC 8200 (headers), RFC 9293 (TCP), RFC 792 and RFC 4443 (errors of ICMP). The
//! kernel programs that led a packet here have parsed it already, but this code checks it all the
//! same.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_io::Report;
use weir_worker::Pair;

const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const TCP_BYTES: usize = 20;
const ICMP_BYTES: usize = 8;
const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// Flags in byte 13 of the header of TCP.
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// Number of routers that a reply may pass.
const HOPS: u8 = 64;
/// Longest ICMP errors, which every network can carry (RFC 1812 §4.3.2.3, RFC 4443 §2.4).
const ERROR_BYTES_MAX: [usize; 2] = [576, 1280];

/// A first packet: of TCP, with SYN and without ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::intercept) struct First<'a> {
    packet: &'a [u8],
    /// Its source and destination.
    pub(in crate::intercept) pair: Pair,
    sequence: u32,
    /// Its length in the sequence space: SYN, and bytes behind its header.
    taken: u32,
}

impl<'a> First<'a> {
    /// Parses a packet with its IP header. None: it is not a first packet, or incomplete.
    pub(in crate::intercept) fn read(packet: &'a [u8]) -> Option<First<'a>> {
        let (from, to, packet, tcp) = match packet.first()? >> 4 {
            4 => {
                let words = usize::from(packet[0] & 15);
                let whole = packet.get(..usize::from(word(packet, 2)?))?;
                let is_fragment = word(whole, 6)? & 0x3fff != 0;
                if words < 5 || is_fragment || *whole.get(9)? != TCP {
                    return None;
                }
                let address = |at| Some(IpAddr::from(*whole.get(at..)?.first_chunk::<4>()?));
                (address(12)?, address(16)?, whole, words * 4)
            }
            6 => {
                let whole = packet.get(..IPV6_BYTES + usize::from(word(packet, 4)?))?;
                if *whole.get(6)? != TCP {
                    return None;
                }
                let address = |at| Some(IpAddr::from(*whole.get(at..)?.first_chunk::<16>()?));
                (address(8)?, address(24)?, whole, IPV6_BYTES)
            }
            _ => return None,
        };
        let segment = packet.get(tcp..)?;
        let header = usize::from(segment.get(12)? >> 4) * 4;
        if header < TCP_BYTES || segment.len() < header || segment[13] & (SYN | ACK | RST) != SYN {
            return None;
        }
        let [client, server] =
            [(from, 0), (to, 2)].map(|(ip, at)| word(segment, at).map(|port| (ip, port).into()));
        let sequence = u32::from_be_bytes(*segment.get(4..)?.first_chunk()?);
        let taken = 1 + (segment.len() - header) as u32;
        Some(First { packet, pair: Pair::new(client?, server?), sequence, taken })
    }

    /// Returns the whole packet, without anything behind it.
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.packet
    }

    /// Returns a reset, as its server would have sent it (RFC 9293 §3.10.7.1).
    pub(super) fn reset(&self) -> Vec<u8> {
        let (client, server) = (self.pair.client(), self.pair.server());
        let mut segment = Vec::with_capacity(TCP_BYTES);
        segment.extend_from_slice(&server.port().to_be_bytes());
        segment.extend_from_slice(&client.port().to_be_bytes());
        segment.extend_from_slice(&[0; 4]);
        segment.extend_from_slice(&self.sequence.wrapping_add(self.taken).to_be_bytes());
        segment.extend_from_slice(&[(TCP_BYTES as u8 / 4) << 4, RST | ACK, 0, 0, 0, 0, 0, 0]);
        seal(server.ip(), client.ip(), TCP, segment, 16)
    }

    /// Returns an error about this packet, equal to one that was reported for weir's own packet to
    /// the server. None: the error is not for clients.
    pub(super) fn unreachable(&self, report: Report) -> Option<Vec<u8>> {
        let client = self.pair.client().ip();
        let (protocol, limit) = match (client, report.from) {
            (IpAddr::V4(_), IpAddr::V4(_)) => (ICMP, ERROR_BYTES_MAX[0] - IPV4_BYTES - ICMP_BYTES),
            (IpAddr::V6(_), IpAddr::V6(_)) => {
                (ICMPV6, ERROR_BYTES_MAX[1] - IPV6_BYTES - ICMP_BYTES)
            }
            _ => return None,
        };
        // Destination unreachable, except for "fragmentation needed"; time exceeded.
        let is_told = match (protocol, report.kind, report.code) {
            (ICMP, 3, code) => code != 4,
            (ICMP, 11, _) | (ICMPV6, 1 | 3, _) => true,
            _ => false,
        };
        let mut message = vec![report.kind, report.code, 0, 0, 0, 0, 0, 0];
        message.extend_from_slice(&self.packet[..self.packet.len().min(limit)]);
        is_told.then(|| seal(report.from, client, protocol, message, 2))
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns a packet of this protocol, with its checksum at `checksum_at`.
fn seal(
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    mut content: Vec<u8>,
    checksum_at: usize,
) -> Vec<u8> {
    let length = content.len() as u32;
    let pseudo = match (from, to) {
        // ICMP in IPv4 has no pseudo header.
        (IpAddr::V4(from), IpAddr::V4(to)) if protocol == TCP => {
            [from.octets(), to.octets()].concat()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => [from.octets(), to.octets()].concat(),
        _ => Vec::new(),
    };
    let pseudo_sum =
        if pseudo.is_empty() { 0 } else { sum(&pseudo) + u64::from(length) + u64::from(protocol) };
    let checksum = fold(pseudo_sum + sum(&content));
    content[checksum_at..checksum_at + 2].copy_from_slice(&checksum.to_be_bytes());
    let mut packet = match (from, to) {
        (IpAddr::V6(from), IpAddr::V6(to)) => header6(from, to, protocol, length),
        (IpAddr::V4(from), IpAddr::V4(to)) => header4(from, to, protocol, length),
        // Callers pass two addresses of the same family.
        _ => Vec::new(),
    };
    packet.append(&mut content);
    packet
}

fn header4(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, length: u32) -> Vec<u8> {
    let total = (IPV4_BYTES as u32 + length) as u16;
    // Five words, and no fragments.
    let mut header = vec![0x45, 0];
    header.extend_from_slice(&total.to_be_bytes());
    header.extend_from_slice(&[0, 0, 0x40, 0, HOPS, protocol, 0, 0]);
    header.extend_from_slice(&from.octets());
    header.extend_from_slice(&to.octets());
    let checksum = fold(sum(&header));
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header
}

fn header6(from: Ipv6Addr, to: Ipv6Addr, protocol: u8, length: u32) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0];
    header.extend_from_slice(&(length as u16).to_be_bytes());
    header.extend_from_slice(&[protocol, HOPS]);
    header.extend_from_slice(&from.octets());
    header.extend_from_slice(&to.octets());
    header
}

/// Sums all words (RFC 1071); the last one may be a single byte.
fn sum(bytes: &[u8]) -> u64 {
    let words =
        bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
    words.sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests;
