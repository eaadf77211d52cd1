//! Checks whether a text is a host with an optional port. Called for Host, absolute-form and
//! authority-form.
//!
//! RFC 3986 §3.2.2-3 narrowed: no user information, no comma (a list of two hosts), no
//! percent-encoding (two names for one host), no empty port, no zone. RFC 9110 §4.2.4, §7.2.

use std::net::Ipv6Addr;

/// Whether the port may, or must, be there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Port {
    Optional,
    Required,
}

const HOST: u8 = 1;

static CLASS: [u8; 256] = class_table();

const fn class_table() -> [u8; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let byte = i as u8;
        let sub_delimiter =
            matches!(byte, b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b';' | b'=');
        if byte.is_ascii_alphanumeric()
            || matches!(byte, b'-' | b'.' | b'_' | b'~')
            || sub_delimiter
        {
            table[i] = HOST;
        }
        i += 1;
    }
    table
}

/// A non-empty host, in brackets for IPv6, and a port up to 65535.
#[inline]
pub(crate) fn is_authority(text: &[u8], port: Port) -> bool {
    let host_len = match text.first() {
        None => return false,
        Some(b'[') => match ipv6_len(text) {
            None => return false,
            Some(len) => len,
        },
        Some(_) => {
            text.iter().position(|&byte| CLASS[byte as usize] & HOST == 0).unwrap_or(text.len())
        }
    };
    match &text[host_len..] {
        [] => host_len > 0 && port == Port::Optional,
        [b':', digits @ ..] => host_len > 0 && is_port(digits),
        _ => false,
    }
}

/// Whether this is a host, perhaps with a port, and nothing else, as a URL may contain it.
pub fn is_host(text: &[u8]) -> bool {
    is_authority(text, Port::Optional)
}

fn ipv6_len(text: &[u8]) -> Option<usize> {
    let close = text.iter().position(|&byte| byte == b']')?;
    let address = std::str::from_utf8(&text[1..close]).ok()?;
    address.parse::<Ipv6Addr>().ok()?;
    Some(close + 1)
}

fn is_port(digits: &[u8]) -> bool {
    digits.len() <= 5 && crate::framing::decimal(digits).is_some_and(|port| port <= 65535)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c1_authorities() {
        for good in [
            "a",
            "a.example",
            "a:80",
            "a:65535",
            "127.0.0.1:8080",
            "[::1]",
            "[2001:db8::1]:443",
            "x_y",
            "a.:1",
        ] {
            assert!(is_authority(good.as_bytes(), Port::Optional), "{good}");
        }
        let bad = [
            "",
            ":",
            ":80",
            "a:",
            "a:65536",
            "a:99999",
            "a:100000",
            "a:+1",
            "a:1:2",
            "u@a",
            "u:p@a",
            "a,b",
            "a b",
            "a/b",
            "[::1",
            "::1",
            "[::1]x",
            "[::1]:",
            "[]",
            "[v1.x]",
            "[fe80::1%25eth0]",
            "a%00",
            "a%41",
            "a\"b",
            "a\\b",
            "a#b",
            "a?b",
            "\u{e9}",
            "a\0b",
            "[::1]:65536",
        ];
        for bad in bad {
            assert!(!is_authority(bad.as_bytes(), Port::Optional), "{bad:?}");
        }
        assert!(is_authority(b"a:443", Port::Required));
        assert!(!is_authority(b"a", Port::Required));
        assert!(!is_authority(b"[::1]", Port::Required));
    }
}
