//! Properties that hold for any bytes in front of a connection. Called by the fuzz target
//! `proxy_header` and by property tests.

use std::net::SocketAddr;

use super::{NoProxyHeader, PROXY_HEADER_BYTES_MAX, ProxyHeader, ProxyVersion, Whose};

/// Cuts that are tried, at most.
const CUTS_MAX: usize = 600;

/// Wherever the bytes are cut, the result is the same: more has to come, until it is a header that
/// ends where it says, or until it is none, and that for good. The maximum length of a header is
/// enough. Each named client can be written in both versions, and is read again.
pub fn read(data: &[u8]) {
    let whole = ProxyHeader::read(data);
    assert!(whole != Ok(None) || data.len() < PROXY_HEADER_BYTES_MAX, "{}", data.escape_ascii());
    let (mut before, mut last) = (Ok(None), 0);
    for cut in (0..data.len().min(CUTS_MAX)).chain([data.len()]) {
        let now = ProxyHeader::read(&data[..cut]);
        let may_follow = match (before, now) {
            (Ok(None), Ok(Some(header))) => header.bytes > last && header.bytes <= cut,
            (Ok(None), _) => true,
            (before, now) => before == now,
        };
        assert!(may_follow, "{before:?}, then with {cut} bytes {now:?}: {}", data.escape_ascii());
        (before, last) = (now, cut);
    }
    if let Ok(Some(header)) = whole {
        assert!(header.bytes <= PROXY_HEADER_BYTES_MAX.min(data.len()), "{header:?}");
        assert!(header.client.is_some() || header.destination.is_none(), "{header:?}");
        header.client.into_iter().for_each(|from| again(from, header.destination));
    }
}

/// Both versions of a header give the same client and destination.
fn again(from: SocketAddr, to: Option<SocketAddr>) {
    let canonical =
        |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let expected = |header: ProxyHeader| {
        let (client, destination) =
            (header.client.map(canonical), header.destination.map(canonical));
        (client, destination.filter(|to| !to.ip().is_unspecified()))
    };
    let whose = Whose::Client { from, to };
    for version in [ProxyVersion::V1, ProxyVersion::V2] {
        let written = ProxyHeader::write(version, whose);
        let read: Result<Option<ProxyHeader>, NoProxyHeader> = ProxyHeader::read(&written);
        let header = read.ok().flatten().unwrap_or_else(|| panic!("{}", written.escape_ascii()));
        assert_eq!(header.bytes, written.len());
        let to = to.map(canonical).filter(|to| !to.ip().is_unspecified());
        assert_eq!(expected(header), (Some(canonical(from)), to), "{}", written.escape_ascii());
    }
}

/// Headers to begin with.
pub fn seeds() -> Vec<Vec<u8>> {
    let client = |from: &str, to: &str| Whose::Client {
        from: from.parse().expect("an address"),
        to: to.parse().ok(),
    };
    let all = [
        Whose::Own,
        Whose::Unknown,
        client("192.0.2.1:4711", "198.51.100.1:443"),
        client("[2001:db8::1]:1", "[::1]:80"),
        client("192.0.2.1:1", ""),
    ];
    let versions = [ProxyVersion::V1, ProxyVersion::V2];
    let headers = all
        .into_iter()
        .flat_map(|whose| versions.map(|version| ProxyHeader::write(version, whose)));
    headers.map(|header| [&header[..], b"GET / HTTP/1.1\r\n"].concat()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn seeds_are_headers() {
        for seed in seeds() {
            assert!(matches!(ProxyHeader::read(&seed), Ok(Some(_))), "{}", seed.escape_ascii());
            read(&seed);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn any_line(text in "PROXY (UNKNOWN|TCP4|TCP6)( [0-9a-f.:]{0,12}){0,5}\r?\n?.{0,9}") {

            read(text.as_bytes());
        }

        #[test]
        fn damaged_headers(
            nth in 0..10usize,
            at: prop::sample::Index,
            byte: u8,
            cut: prop::sample::Index,
        ) {
            let mut header = seeds().swap_remove(nth);
            let place = at.index(header.len());
            header[place] = byte;
            read(&header);
            header.truncate(cut.index(header.len()));
            read(&header);
        }
    }
}
