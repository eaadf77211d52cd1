//! The host that a client names: a name or an address, and nothing that resolvers may parse as an
//! address although it does not look like one. The engine calls [`parse`] before the policy is
//! asked and before a name is resolved.
//!
//! `getaddrinfo` takes `2130706433`, `0x7f.1`, `0177.0.0.1` and `127.1` for 127.0.0.1
//! (`inet_aton`). So a host whose last label is a number is an IPv4 address in four decimal parts
//! or refused: the "ends in a number" rule of the URL standard
//! (<https://url.spec.whatwg.org/#ends-in-a-number-checker>), with no other spelling of addresses
//! allowed. Lengths are those of RFC 1035 §2.3.4.

use crate::observe::kinds::worded;
use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest name without a trailing dot: 255 bytes on the wire, RFC 1035 §2.3.4.
pub const NAME_BYTES_MAX: usize = 253;
/// Longest label, RFC 1035 §2.3.4.
const LABEL_BYTES_MAX: usize = 63;

/// The host of a client's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host<'a> {
    /// A name in lower case, without a trailing dot; its last label is not a number.
    Name(Cow<'a, str>),
    /// An address.
    Address(IpAddr),
}

worded! {
    /// Why a text is not a host. The client's fault, 400.
    enum HostError;
    /// It is empty.
    Empty: "host-empty";
    /// The name or a label of it exceeds the limit of names.
    TooLong: "host-too-long";
    /// Nothing between two dots, or before the first.
    EmptyLabel: "host-label-empty";
    /// Another character than letters, digits, `-`, `_` and `.`; a name in other letters has its
    /// A-label form (`xn--`, RFC 5890).
    Character: "host-character";
    /// The last label is a number, and the whole is not an IPv4 address in four decimal parts.
    Numeric: "host-numeric";
    /// No IPv6 address in the brackets, or one with a zone.
    Bracket: "host-bracket";
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HostError::Empty => "a name is missing",
            HostError::TooLong => "a name can have at most 253 characters, and 63 between two dots",
            HostError::EmptyLabel => "a part in front of a dot is empty",
            HostError::Character => {
                "a name can have letters, digits, `-`, `_` and `.`; write other letters as \
                    A-labels (xn--...)"
            }
            HostError::Numeric => {
                "the last part of a name cannot be a number, and an IPv4 address needs four \
                    decimal parts"
            }
            HostError::Bracket => "brackets must contain an IPv6 address, without a zone",
        })
    }
}

/// Parses the host of an authority, without port; an IPv6 address is in brackets (RFC 3986 §3.2.2).
///
/// # Errors
/// The client's fault: the problem with the host.
pub fn parse(host: &[u8]) -> Result<Host<'_>, HostError> {
    if let [b'[', inside @ ..] = host {
        return bracketed(inside).map(Host::Address).ok_or(HostError::Bracket);
    }
    let name = host.strip_suffix(b".").unwrap_or(host);
    let has_capitals = check_name(name)?;
    let Ok(text) = std::str::from_utf8(name) else { return Err(HostError::Character) };
    if ends_in_number(name) {
        // Four decimal parts without leading zeros; with a trailing dot it would be a name.
        let address = text.parse::<Ipv4Addr>().ok().filter(|_| name.len() == host.len());
        return address.map(|address| Host::Address(address.into())).ok_or(HostError::Numeric);
    }
    Ok(Host::Name(if has_capitals { text.to_ascii_lowercase().into() } else { text.into() }))
}

/// The text behind the opening bracket.
fn bracketed(inside: &[u8]) -> Option<IpAddr> {
    let address = inside.strip_suffix(b"]")?;
    std::str::from_utf8(address).ok()?.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
}

/// The class of a byte in a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Wrong,
    Usual,
    Capital,
    Dot,
}

static CLASSES: [Class; 256] = classes();

const fn classes() -> [Class; 256] {
    let mut table = [Class::Wrong; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = match byte as u8 {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => Class::Usual,
            b'A'..=b'Z' => Class::Capital,
            b'.' => Class::Dot,
            _ => Class::Wrong,
        };
        byte += 1;
    }
    table
}

/// Checks a name, without the trailing dot. Returns whether it has capitals.
fn check_name(name: &[u8]) -> Result<bool, HostError> {
    if name.is_empty() {
        return Err(HostError::Empty);
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(HostError::TooLong);
    }
    let mut has_capitals = false;
    let mut start = 0;
    for (at, &byte) in name.iter().enumerate() {
        match CLASSES[usize::from(byte)] {
            Class::Usual => {}
            Class::Capital => has_capitals = true,
            Class::Dot => {
                check_label(at - start)?;
                start = at + 1;
            }
            Class::Wrong => return Err(HostError::Character),
        }
    }
    check_label(name.len() - start).map(|()| has_capitals)
}

fn check_label(bytes: usize) -> Result<(), HostError> {
    match bytes {
        0 => Err(HostError::EmptyLabel),
        1..=LABEL_BYTES_MAX => Ok(()),
        _ => Err(HostError::TooLong),
    }
}

/// Whether the last label consists of digits, or is `0x` with any number of hexadecimal digits.
pub(crate) fn ends_in_number(name: &[u8]) -> bool {
    let last = name.rsplit(|&byte| byte == b'.').next().unwrap_or(name);
    match last {
        [b'0', b'x' | b'X', digits @ ..] => digits.iter().all(u8::is_ascii_hexdigit),
        _ => last.iter().all(u8::is_ascii_digit),
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a text that resolvers take for an address is an address or refused; names are
    //! canonical. How: tables (docs/hostile.md F7), and a separate `inet_aton` as a judge over
    //! generated texts.

    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> Result<Host<'_>, HostError> {
        Ok(Host::Name(text.into()))
    }

    #[test]
    fn names_are_in_lower_case_without_a_final_dot() {
        let label = "a".repeat(63);
        let long = format!("{label}.{label}.{label}.{}", "a".repeat(61));
        for (text, canonical) in [
            ("example.com", "example.com"),
            ("EXAMPLE.Com.", "example.com"),
            ("localhost", "localhost"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("_dmarc.a-b.c", "_dmarc.a-b.c"),
            ("1.2.3.4.example", "1.2.3.4.example"),
            ("0x7f.example", "0x7f.example"),
            ("0xg", "0xg"),
            ("127.0.0.1e", "127.0.0.1e"),
            (&long, &long),
        ] {
            assert_eq!(parse(text.as_bytes()), name(canonical), "{text}");
        }
    }

    #[test]
    fn addresses_have_one_spelling() {
        for text in ["127.0.0.1", "255.255.255.255", "0.0.0.0"] {
            assert_eq!(parse(text.as_bytes()), Ok(Host::Address(text.parse().unwrap())));
        }
        for text in ["::1", "::ffff:127.0.0.1", "2001:DB8::1", "::"] {
            assert_eq!(
                parse(format!("[{text}]").as_bytes()),
                Ok(Host::Address(text.parse().unwrap()))
            );
        }
    }

    #[test]
    fn f7_disguised_addresses_are_refused() {
        for text in [
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "0177.0.0.1",
            "127.1",
            "127.0.1",
            "127.0.0.01",
            "0x7f.0x0.0x0.0x1",
            "0",
            "0x",
            "1.0x",
            "1.2.3.4.5",
            "256.1.1.1",
            "127.0.0.1.",
            "a.1",
            "example.0x1F",
        ] {
            assert_eq!(parse(text.as_bytes()), Err(HostError::Numeric), "{text}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        let label = "a".repeat(64);
        let long = format!("{}a", "a.".repeat(127));
        for (text, error) in [
            ("", HostError::Empty),
            (".", HostError::Empty),
            ("..", HostError::EmptyLabel),
            (".a", HostError::EmptyLabel),
            ("a..b", HostError::EmptyLabel),
            ("a..", HostError::EmptyLabel),
            (&label, HostError::TooLong),
            (&long, HostError::TooLong),
            ("a b", HostError::Character),
            ("a%2eb", HostError::Character),
            ("a\u{3002}b", HostError::Character),
            ("bücher.example", HostError::Character),
            ("127。0。0。1", HostError::Character),
            ("①②⑦.⓪.⓪.①", HostError::Character),
            ("a\0", HostError::Character),
            ("::1", HostError::Character),
            ("a:80", HostError::Character),
            ("user@a", HostError::Character),
            ("[::1", HostError::Bracket),
            ("[fe80::1%eth0]", HostError::Bracket),
            ("[fe80::1%25eth0]", HostError::Bracket),
            ("[127.0.0.1]", HostError::Bracket),
            ("[v1.a]", HostError::Bracket),
            ("[]", HostError::Bracket),
            ("[::1]x", HostError::Bracket),
        ] {
            assert_eq!(parse(text.as_bytes()), Err(error), "{text}");
        }
        assert_eq!(parse(b"a\xff"), Err(HostError::Character));
    }

    /// Whether `inet_aton` takes the text for an address: one to four numbers in C's notation.
    fn is_for_inet_aton(text: &str) -> bool {
        let number = |part: &str| match part.strip_prefix("0x").or_else(|| part.strip_prefix("0X"))
        {
            Some(digits) => {
                u64::from_str_radix(digits, 16).is_ok_and(|number| number <= u64::from(u32::MAX))
            }
            None if part.starts_with('0') => part.bytes().all(|byte| (b'0'..=b'7').contains(&byte)),
            None => part.parse::<u32>().is_ok(),
        };
        let parts: Vec<&str> = text.split('.').collect();
        parts.len() <= 4 && parts.into_iter().all(|part| !part.is_empty() && number(part))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn no_name_is_an_address_to_a_resolver(text in "[0-9a-fxX.]{1,14}|[0-9a-z.]{1,8}") {

            if let Ok(Host::Name(name)) = parse(text.as_bytes()) {
                prop_assert!(!is_for_inet_aton(&name), "{}", name);
                prop_assert!(name.parse::<IpAddr>().is_err());
            }
        }

        #[test]
        fn what_is_accepted_is_canonical(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            if let Ok(Host::Name(name)) = parse(&bytes) {
                prop_assert_eq!(parse(name.as_bytes()), Ok(Host::Name(name.clone())));
                prop_assert!(
                    !name.ends_with('.') && !name.bytes().any(|byte| byte.is_ascii_uppercase())
                );
            }
        }
    }
}
