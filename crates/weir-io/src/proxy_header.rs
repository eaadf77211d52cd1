//! The header of the PROXY protocol, in which a load balancer says whose connection it passes on: versions 1 and 2.
//!
//! A pure reader, called by [`Announced`](crate::Announced) with what has come so far. One strictness: what is not exactly a header of the
//! specification (HAProxy, `proxy-protocol.txt`) is none. Bound: [`PROXY_HEADER_BYTES_MAX`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Longest header. One of version 1 has at most 107 bytes, one of version 2 up to 65,551, of which nobody uses a tenth: what may follow the
/// addresses is not looked at.
pub const PROXY_HEADER_BYTES_MAX: usize = 4096;

/// Longest one of version 1, with its line end.
const LINE_BYTES_MAX: usize = 107;
/// How one of version 2 begins.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of version 2 in front of the addresses.
const FIXED_BYTES: usize = 16;

/// A complete header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProxyHeader {
    /// Its bytes.
    pub bytes: usize,
    /// Whose connection it is; None: that of the balancer itself (a health check), or of somebody without an address of IP.
    pub client: Option<SocketAddr>,
}

/// It is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoProxyHeader;

impl ProxyHeader {
    /// Reads the header at the start of `input`; None: more of it has to come.
    ///
    /// # Errors
    /// The other side's fault: it is none, or longer than [`PROXY_HEADER_BYTES_MAX`].
    pub fn read(input: &[u8]) -> Result<Option<ProxyHeader>, NoProxyHeader> {
        let start = &input[..input.len().min(SIGNATURE.len())];
        if SIGNATURE.starts_with(start) && !start.is_empty() {
            return if start.len() < SIGNATURE.len() { Ok(None) } else { version_2(input) };
        }
        version_1(input)
    }
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
    let line = seen[..end].strip_suffix(b"\r").and_then(|line| line.strip_prefix(WORD)).ok_or(NoProxyHeader)?;
    let line = std::str::from_utf8(line).map_err(|_| NoProxyHeader)?;
    let bytes = end + 1;
    let parts: Vec<&str> = line.split(' ').collect();
    if parts[0] == "UNKNOWN" {
        return Ok(Some(ProxyHeader { bytes, client: None }));
    }
    let [family, from, to, from_port, to_port] = parts[..] else { return Err(NoProxyHeader) };
    let address = |text: &str| match family {
        "TCP4" => text.parse().ok().map(IpAddr::V4),
        "TCP6" => text.parse().ok().map(IpAddr::V6),
        _ => None,
    };
    let (from, to) = (address(from), address(to));
    match (from, to, port(from_port), port(to_port)) {
        (Some(from), Some(_), Some(port), Some(_)) => {
            Ok(Some(ProxyHeader { bytes, client: Some(SocketAddr::new(from, port)).filter(is_somebody) }))
        }
        _ => Err(NoProxyHeader),
    }
}

/// Nobody has the unspecified address, which stands for clients without one ([`UNIX_PEER`](crate::UNIX_PEER)).
fn is_somebody(client: &SocketAddr) -> bool {
    client.ip() != crate::UNIX_PEER.ip()
}

/// Decimal digits without a zero in front.
fn port(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}

fn version_2(input: &[u8]) -> Result<Option<ProxyHeader>, NoProxyHeader> {
    let Some(&[kind, family, high, low]) = input.get(SIGNATURE.len()..FIXED_BYTES) else { return Ok(None) };
    let bytes = FIXED_BYTES + usize::from(u16::from_be_bytes([high, low]));
    if bytes > PROXY_HEADER_BYTES_MAX || !matches!(kind, 0x20 | 0x21) {
        return Err(NoProxyHeader);
    }
    let Some(addresses) = input.get(FIXED_BYTES..bytes) else { return Ok(None) };
    let client = match (kind, family) {
        // LOCAL: what it says of addresses means nothing.
        (0x20, _) => None,
        (_, 0x11) => Some(tcp4(addresses).ok_or(NoProxyHeader)?),
        (_, 0x21) => Some(tcp6(addresses).ok_or(NoProxyHeader)?).filter(is_somebody),
        // Nothing that is known, or a stream of the unix domain.
        (_, 0x00 | 0x31) => None,
        _ => return Err(NoProxyHeader),
    };
    Ok(Some(ProxyHeader { bytes, client }))
}

/// Addresses of source and destination, then their ports.
fn tcp4(addresses: &[u8]) -> Option<SocketAddr> {
    let from: [u8; 4] = addresses.get(..4)?.try_into().ok()?;
    Some(SocketAddr::new(Ipv4Addr::from(from).into(), source_port(addresses, 8)?))
}

fn tcp6(addresses: &[u8]) -> Option<SocketAddr> {
    let from: [u8; 16] = addresses.get(..16)?.try_into().ok()?;
    Some(SocketAddr::new(Ipv6Addr::from(from).into(), source_port(addresses, 32)?))
}

/// The first of two ports, which stand here.
fn source_port(addresses: &[u8], at: usize) -> Option<u16> {
    let ports: [u8; 4] = addresses.get(at..at + 4)?.try_into().ok()?;
    Some(u16::from_be_bytes([ports[0], ports[1]]))
}

#[cfg(test)]
mod tests {
    //! Proves: what is a header, wherever it is cut, and that nothing else is. How: tables of both versions, each cut at every byte.

    use super::*;

    /// A header of version 2.
    fn binary(kind: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        [&SIGNATURE[..], &[kind, family], &(rest.len() as u16).to_be_bytes(), rest].concat()
    }

    fn is(header: &[u8], client: Option<&str>) {
        let expected = ProxyHeader { bytes: header.len(), client: client.map(|text| text.parse().unwrap()) };
        for cut in 0..header.len() {
            assert_eq!(ProxyHeader::read(&header[..cut]), Ok(None), "{cut} of {}", header.escape_ascii());
        }
        for behind in [&b""[..], b"GET / HTTP/1.1\r\n", b"\0"] {
            assert_eq!(ProxyHeader::read(&[header, behind].concat()), Ok(Some(expected)), "{}", header.escape_ascii());
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
        let v6 = [&[0x20, 1, 13, 184, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1][..], &[0; 16], &[0, 80, 0, 80]].concat();
        is(&binary(0x21, 0x21, &v6), Some("[2001:db8::1]:80"));
        is(&binary(0x20, 0x00, &[]), None);
        is(&binary(0x20, 0x11, &v4), None);
        is(&binary(0x21, 0x00, &[1, 2, 3]), None);
        is(&binary(0x21, 0x31, &[0; 216]), None);
        is(&binary(0x21, 0x11, &[&v4[..], &[0; PROXY_HEADER_BYTES_MAX - 28]].concat()), Some("192.0.2.1:4711"));
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
