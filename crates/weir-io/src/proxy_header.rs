//! The header of the PROXY protocol, in which a load balancer names the client of the connection
//! that it forwards: versions 1 and 2.
//!
//! Pure: a reader, called by [`Announced`](crate::Announced) with the bytes received so far, and a
//! writer for connections to servers. One strictness: anything but exactly a header of the
//! specification (HAProxy, `proxy-protocol.txt`) is rejected. Bound: [`PROXY_HEADER_BYTES_MAX`].

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Longest header. One of version 1 has at most 107 bytes, one of version 2 up to 65,551, but in
/// practice less than a tenth; bytes behind the addresses are ignored.
pub const PROXY_HEADER_BYTES_MAX: usize = 4096;

/// Longest one of version 1, with its line end.
const LINE_BYTES_MAX: usize = 107;
/// How one of version 2 begins.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of version 2 in front of the addresses.
const FIXED_BYTES: usize = 16;
/// Version 2 and its commands.
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
/// Families and transports of version 2: unspecified, TCP over IPv4 and IPv6, streams of the unix
/// domain.
const UNSPECIFIED: u8 = 0x00;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;
const UNIX: u8 = 0x31;

/// A complete header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProxyHeader {
    /// Its bytes.
    pub bytes: usize,
    /// The client; None: the connection is that of the balancer itself (a health check), or of a
    /// client without an IP address.
    pub client: Option<SocketAddr>,
    /// The address that the client has connected to; None without a client, and where it is
    /// unspecified.
    pub destination: Option<SocketAddr>,
}

/// How a header is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProxyVersion {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// The client that a header names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whose {
    /// That of the proxy itself.
    Own,
    /// That of a client without an IP address.
    Unknown,
    /// That of a client.
    Client {
        /// Its address; port 0: not known.
        from: SocketAddr,
        /// The address that it has connected to; None: unknown, or no IP address.
        to: Option<SocketAddr>,
    },
}

/// The bytes are no header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoProxyHeader;

impl ProxyHeader {
    /// Reads the header at the start of `input`; None: it is incomplete.
    ///
    /// # Errors
    /// The other side's fault: it is no header, or longer than [`PROXY_HEADER_BYTES_MAX`].
    pub fn read(input: &[u8]) -> Result<Option<ProxyHeader>, NoProxyHeader> {
        let start = &input[..input.len().min(SIGNATURE.len())];
        if SIGNATURE.starts_with(start) && !start.is_empty() {
            return if start.len() < SIGNATURE.len() { Ok(None) } else { version_2(input) };
        }
        version_1(input)
    }

    /// The bytes of a header. Where one address is IPv4 and the other IPv6, both are written as
    /// IPv6 (RFC 4291 §2.5.5.2); an unknown destination is the unspecified address, port 0.
    pub fn write(version: ProxyVersion, whose: Whose) -> Vec<u8> {
        let pair = match whose {
            Whose::Client { from, to } => Some(pair(from, to)),
            Whose::Own | Whose::Unknown => None,
        };
        match version {
            ProxyVersion::V1 => {
                pair.map_or_else(|| "PROXY UNKNOWN\r\n".to_owned(), text).into_bytes()
            }
            ProxyVersion::V2 => binary(whose == Whose::Own, pair),
        }
    }
}

/// Two addresses of one family.
fn pair(from: SocketAddr, to: Option<SocketAddr>) -> (SocketAddr, SocketAddr) {
    let canonical =
        |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let from = canonical(from);
    let to = to.map_or_else(|| SocketAddr::new(unspecified(from.ip()), 0), canonical);
    if from.is_ipv4() == to.is_ipv4() {
        return (from, to);
    }
    let mapped = |address: SocketAddr| SocketAddr::new(wide(address.ip()).into(), address.port());
    (mapped(from), mapped(to))
}

/// The unspecified address of the same family.
fn unspecified(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// As of IPv6.
fn wide(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

fn text((from, to): (SocketAddr, SocketAddr)) -> String {
    let family = if from.is_ipv4() { "TCP4" } else { "TCP6" };
    // A header writes IPv6 addresses in hexadecimal throughout.
    let written = |address: IpAddr| match address {
        IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => {
            let [.., high, low] = address.segments();
            format!("::ffff:{high:x}:{low:x}")
        }
        address => address.to_string(),
    };
    format!(
        "PROXY {family} {} {} {} {}\r\n",
        written(from.ip()),
        written(to.ip()),
        from.port(),
        to.port()
    )
}

fn binary(own: bool, pair: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    let kind = if own { LOCAL } else { PROXY };
    let mut addresses = Vec::new();
    let family = match pair {
        None => UNSPECIFIED,
        Some((from, to)) => {
            for address in [from.ip(), to.ip()] {
                match address {
                    IpAddr::V4(address) => addresses.extend(address.octets()),
                    IpAddr::V6(address) => addresses.extend(address.octets()),
                }
            }
            for port in [from.port(), to.port()] {
                addresses.extend(port.to_be_bytes());
            }
            if from.is_ipv4() { TCP4 } else { TCP6 }
        }
    };
    let bytes = addresses.len() as u16;
    [&SIGNATURE[..], &[kind, family], &bytes.to_be_bytes(), &addresses].concat()
}

/// `PROXY TCP4 192.0.2.1 198.51.100.1 4711 443` and its line end.
fn version_1(input: &[u8]) -> Result<Option<ProxyHeader>, NoProxyHeader> {
    const WORD: &[u8] = b"PROXY ";
    let start = &input[..input.len().min(WORD.len())];
    if !WORD.starts_with(start) {
        return Err(NoProxyHeader);
    }
    let seen = &input[..input.len().min(LINE_BYTES_MAX)];
    let Some(end) = seen.iter().position(|byte| *byte == b'\n') else {
        return if input.len() < LINE_BYTES_MAX { Ok(None) } else { Err(NoProxyHeader) };
    };
    let line = seen[..end]
        .strip_suffix(b"\r")
        .and_then(|line| line.strip_prefix(WORD))
        .ok_or(NoProxyHeader)?;
    let line = std::str::from_utf8(line).map_err(|_| NoProxyHeader)?;
    let bytes = end + 1;
    let parts: Vec<&str> = line.split(' ').collect();
    if parts[0] == "UNKNOWN" {
        return Ok(Some(ProxyHeader { bytes, client: None, destination: None }));
    }
    let [family, from, to, from_port, to_port] = parts[..] else { return Err(NoProxyHeader) };
    let address = |text: &str| match family {
        "TCP4" => text.parse().ok().map(IpAddr::V4),
        "TCP6" => text.parse().ok().map(IpAddr::V6),
        _ => None,
    };
    let (from, to) = (address(from), address(to));
    match (from, to, port(from_port), port(to_port)) {
        (Some(from), Some(to), Some(from_port), Some(to_port)) => {
            Ok(Some(header(bytes, SocketAddr::new(from, from_port), SocketAddr::new(to, to_port))))
        }
        _ => Err(NoProxyHeader),
    }
}

/// A header that names a client. No client has the unspecified address, which stands for clients
/// without one ([`UNIX_PEER`](crate::UNIX_PEER)), and for an unknown destination.
fn header(bytes: usize, from: SocketAddr, to: SocketAddr) -> ProxyHeader {
    let client = Some(from).filter(|from| from.ip() != crate::UNIX_PEER.ip());
    let destination = Some(to).filter(|to| client.is_some() && !to.ip().is_unspecified());
    ProxyHeader { bytes, client, destination }
}

/// Decimal digits without leading zeros.
fn port(text: &str) -> Option<u16> {
    let is_plain =
        text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}

fn version_2(input: &[u8]) -> Result<Option<ProxyHeader>, NoProxyHeader> {
    let Some(&[kind, family, high, low]) = input.get(SIGNATURE.len()..FIXED_BYTES) else {
        return Ok(None);
    };
    let bytes = FIXED_BYTES + usize::from(u16::from_be_bytes([high, low]));
    if bytes > PROXY_HEADER_BYTES_MAX || !matches!(kind, LOCAL | PROXY) {
        return Err(NoProxyHeader);
    }
    let Some(addresses) = input.get(FIXED_BYTES..bytes) else { return Ok(None) };
    let (from, to) = match (kind, family) {
        // Nothing that is known, or a stream of the unix domain; addresses with LOCAL mean nothing.
        (LOCAL, _) | (_, UNSPECIFIED | UNIX) => {
            return Ok(Some(ProxyHeader { bytes, client: None, destination: None }));
        }
        (_, TCP4) => addresses_of::<4>(addresses),
        (_, TCP6) => addresses_of::<16>(addresses),
        _ => None,
    }
    .ok_or(NoProxyHeader)?;
    Ok(Some(header(bytes, from, to)))
}

/// Addresses of source and destination, of BYTES bytes each, then their ports.
fn addresses_of<const BYTES: usize>(addresses: &[u8]) -> Option<(SocketAddr, SocketAddr)>
where
    IpAddr: From<[u8; BYTES]>,
{
    let address = |at: usize| {
        Some(IpAddr::from(<[u8; BYTES]>::try_from(addresses.get(at..at + BYTES)?).ok()?))
    };
    let port = |at: usize| Some(u16::from_be_bytes(addresses.get(at..at + 2)?.try_into().ok()?));
    let (from, to) = (address(0)?, address(BYTES)?);
    Some((SocketAddr::new(from, port(2 * BYTES)?), SocketAddr::new(to, port(2 * BYTES + 2)?)))
}

#[cfg(test)]
mod tests {
    //! Proves: headers are recognized, wherever they are cut, and nothing else is; the written
    //! header of each client, and that it is read again. How: tables of both versions, each cut at
    //! every byte, and any addresses.

    use proptest::prelude::*;

    use super::*;

    /// A header of version 2.
    fn binary(kind: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        [&SIGNATURE[..], &[kind, family], &(rest.len() as u16).to_be_bytes(), rest].concat()
    }

    fn is(header: &[u8], client: Option<&str>) {
        let client = client.map(|text| text.parse().unwrap());
        let destination =
            ProxyHeader::read(header).ok().flatten().and_then(|header| header.destination);
        let expected = ProxyHeader { bytes: header.len(), client, destination };
        for cut in 0..header.len() {
            assert_eq!(
                ProxyHeader::read(&header[..cut]),
                Ok(None),
                "{cut} of {}",
                header.escape_ascii()
            );
        }
        for behind in [&b""[..], b"GET / HTTP/1.1\r\n", b"\0"] {
            assert_eq!(
                ProxyHeader::read(&[header, behind].concat()),
                Ok(Some(expected)),
                "{}",
                header.escape_ascii()
            );
        }
    }

    #[test]
    fn headers() {
        is(b"PROXY TCP4 192.0.2.1 198.51.100.1 4711 443\r\n", Some("192.0.2.1:4711"));
        is(b"PROXY TCP6 2001:db8::1 ::1 65535 0\r\n", Some("[2001:db8::1]:65535"));
        is(b"PROXY UNKNOWN\r\n", None);
        is(b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", None);
        let v4 = [192, 0, 2, 1, 198, 51, 100, 1, 18, 103, 1, 187];
        is(&binary(0x21, 0x11, &v4), Some("192.0.2.1:4711"));
        is(&binary(0x21, 0x11, &[&v4[..], &[4, 0, 1, 0]].concat()), Some("192.0.2.1:4711"));
        let v6 = [
            &[0x20, 1, 13, 184, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1][..],
            &[0; 16],
            &[0, 80, 0, 80],
        ]
        .concat();
        is(&binary(0x21, 0x21, &v6), Some("[2001:db8::1]:80"));
        is(&binary(0x20, 0x00, &[]), None);
        is(&binary(0x20, 0x11, &v4), None);
        is(&binary(0x21, 0x00, &[1, 2, 3]), None);
        is(&binary(0x21, 0x31, &[0; 216]), None);
        is(
            &binary(0x21, 0x11, &[&v4[..], &[0; PROXY_HEADER_BYTES_MAX - 28]].concat()),
            Some("192.0.2.1:4711"),
        );
    }

    #[test]
    fn destinations() {
        let v4 = [192, 0, 2, 1, 198, 51, 100, 1, 18, 103, 1, 187];
        for (header, expected) in [
            (b"PROXY TCP4 192.0.2.1 198.51.100.1 4711 443\r\n".to_vec(), Some("198.51.100.1:443")),
            (b"PROXY TCP6 2001:db8::1 ::1 65535 0\r\n".to_vec(), Some("[::1]:0")),
            (b"PROXY TCP4 192.0.2.1 0.0.0.0 4711 0\r\n".to_vec(), None),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (binary(0x21, 0x11, &v4), Some("198.51.100.1:443")),
            (binary(0x20, 0x11, &v4), None),
        ] {
            let read = ProxyHeader::read(&header).unwrap().unwrap();
            assert_eq!(
                read.destination,
                expected.map(|text| text.parse().unwrap()),
                "{}",
                header.escape_ascii()
            );
        }
    }

    #[test]
    fn what_is_written_is_what_the_specification_says() {
        let client = |from: &str, to: &str| Whose::Client {
            from: from.parse().unwrap(),
            to: to.parse().ok(),
        };
        let v6 = |address: &str| address.parse::<Ipv6Addr>().unwrap().octets();
        for (whose, text, kind, family, rest) in [
            (Whose::Own, "UNKNOWN", 0x20, 0x00, vec![]),
            (Whose::Unknown, "UNKNOWN", 0x21, 0x00, vec![]),
            (
                client("192.0.2.1:4711", "198.51.100.1:443"),
                "TCP4 192.0.2.1 198.51.100.1 4711 443",
                0x21,
                0x11,
                vec![192, 0, 2, 1, 198, 51, 100, 1, 18, 103, 1, 187],
            ),
            (
                client("[::ffff:192.0.2.1]:1", "nothing"),
                "TCP4 192.0.2.1 0.0.0.0 1 0",
                0x21,
                0x11,
                vec![192, 0, 2, 1, 0, 0, 0, 0, 0, 1, 0, 0],
            ),
            (
                client("[2001:db8::1]:0", "[::1]:80"),
                "TCP6 2001:db8::1 ::1 0 80",
                0x21,
                0x21,
                [&v6("2001:db8::1")[..], &v6("::1"), &[0, 0, 0, 80]].concat(),
            ),
            (
                client("[2001:db8::1]:1", "198.51.100.1:443"),
                "TCP6 2001:db8::1 ::ffff:c633:6401 1 443",
                0x21,
                0x21,
                [&v6("2001:db8::1")[..], &v6("::ffff:c633:6401"), &[0, 1, 1, 187]].concat(),
            ),
        ] {
            let written = ProxyHeader::write(ProxyVersion::V1, whose);
            assert_eq!(String::from_utf8(written).unwrap(), format!("PROXY {text}\r\n"));
            assert_eq!(
                ProxyHeader::write(ProxyVersion::V2, whose),
                binary(kind, family, &rest),
                "{whose:?}"
            );
        }
    }

    proptest! {
        /// Our own listeners understand the headers of our connections to servers.
        #[test]
        fn what_is_written_is_read(
            from: ([u8; 16], u16),
            to: ([u8; 16], u16),
            is_4: (bool, bool),
            is_text: bool,
        ) {
            let address = |(bytes, port): ([u8; 16], u16), is_4: bool| {
                let [a, b, c, d, ..] = bytes;
                let ip = if is_4 { Ipv4Addr::new(a, b, c, d).into() } else { IpAddr::from(bytes) };
                SocketAddr::new(ip, port)
            };
            let (from, to) = (address(from, is_4.0), address(to, is_4.1));
            let version = if is_text { ProxyVersion::V1 } else { ProxyVersion::V2 };
            let header = ProxyHeader::write(version, Whose::Client { from, to: Some(to) });
            prop_assert!(!is_text || header.len() <= LINE_BYTES_MAX);
            let read = ProxyHeader::read(&header).unwrap().unwrap();
            let canonical =
                |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
            prop_assert_eq!(read.bytes, header.len());
            prop_assert_eq!(read.client.map(canonical), Some(canonical(from)));
            prop_assert_eq!(read.destination.map(canonical), Some(canonical(to)));
        }
    }

    #[test]
    fn what_is_none() {
        let long = format!("PROXY UNKNOWN {}", "x".repeat(LINE_BYTES_MAX));
        let texts = [
            "GET / HTTP/1.1\r\n",
            "proxy TCP4 192.0.2.1 198.51.100.1 1 2\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.1 1 2\n",
            "PROXY TCP4 192.0.2.1 198.51.100.1 1\r\n",
            "PROXY TCP4  192.0.2.1 198.51.100.1 1 2\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.1 1 2 3\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.1 01 2\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.1 +1 2\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.1 65536 2\r\n",
            "PROXY TCP4 2001:db8::1 ::1 1 2\r\n",
            "PROXY TCP6 192.0.2.1 198.51.100.1 1 2\r\n",
            "PROXY UDP4 192.0.2.1 198.51.100.1 1 2\r\n",
            "PROXY \r\n",
            "\r\nGET",
            "\x16\x03\x01",
            &long,
        ];
        let v4 = [192, 0, 2, 1, 198, 51, 100, 1, 18, 103, 1, 187];
        let binaries = [
            binary(0x11, 0x11, &v4),
            binary(0x22, 0x11, &v4),
            binary(0x21, 0x12, &v4),
            binary(0x21, 0x11, &v4[..11]),
            binary(0x21, 0x21, &v4),
            binary(0x21, 0x41, &v4),
            binary(0x21, 0x11, &[0; PROXY_HEADER_BYTES_MAX - 15]),
        ];
        let all = texts.iter().map(|text| text.as_bytes().to_vec()).chain(binaries);
        for header in all {
            assert_eq!(ProxyHeader::read(&header), Err(NoProxyHeader), "{}", header.escape_ascii());
        }
    }
}
