//! Local addresses of a class of clients: one, a network, or a range. Called by `class.rs`, and for
//! each connection.
//!
//! Bound: 2^24 addresses. On loopback any address of 127.0.0.0/8 can be used without being
//! configured.

use std::fmt::{self, Display};
use std::net::IpAddr;

/// Maximum addresses of a class.
const ADDRESSES_MAX: u128 = 1 << 24;

/// A range of addresses of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sources {
    first: IpAddr,
    count: u32,
}

impl Sources {
    /// Reads `ADDRESS`, `ADDRESS/PREFIX` (all addresses of the network but, in IPv4, its first and
    /// last) or `ADDRESS-ADDRESS`.
    ///
    /// # Errors
    /// The text says what is expected.
    pub fn parse(text: &str) -> Result<Sources, String> {
        let wrong = || format!("`{text}` is not ADDRESS, ADDRESS/PREFIX or ADDRESS-ADDRESS");
        let address = |text: &str| text.trim().parse::<IpAddr>().map_err(|_| wrong());
        let (first, last) = if let Some((first, last)) = text.split_once('-') {
            (address(first)?, address(last)?)
        } else if let Some((base, prefix)) = text.split_once('/') {
            network(address(base)?, prefix.parse().map_err(|_| wrong())?).ok_or_else(wrong)?
        } else {
            (address(text)?, address(text)?)
        };
        if first.is_ipv4() != last.is_ipv4() || number(last) < number(first) {
            return Err(wrong());
        }
        let count = (number(last) - number(first)).saturating_add(1);
        if count > ADDRESSES_MAX {
            return Err(format!("`{text}` has more than {ADDRESSES_MAX} addresses"));
        }
        Ok(Sources { first, count: count as u32 })
    }

    /// The first one.
    pub fn first(&self) -> IpAddr {
        self.first
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The `nth`, from the first again after the last.
    pub(crate) fn nth(&self, nth: u32) -> IpAddr {
        address(self.first, number(self.first) + u128::from(nth % self.count))
    }
}

impl Display for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        if self.count > 1 { write!(f, "-{}", self.nth(self.count - 1)) } else { Ok(()) }
    }
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(u32::from(ip)),
        IpAddr::V6(ip) => u128::from(ip),
    }
}

/// The address with that number, of the family of `like`.
fn address(like: IpAddr, number: u128) -> IpAddr {
    if like.is_ipv4() { IpAddr::V4((number as u32).into()) } else { IpAddr::V6(number.into()) }
}

fn network(base: IpAddr, prefix: u32) -> Option<(IpAddr, IpAddr)> {
    let bits: u32 = if base.is_ipv4() { 32 } else { 128 };
    let hosts = bits.checked_sub(prefix)?;
    let size = 1u128.checked_shl(hosts).unwrap_or(0).wrapping_sub(1);
    let (first, last) = (number(base) & !size, number(base) | size);
    // Network and broadcast address, where a network has them (RFC 3021: not in a /31).
    let inner = base.is_ipv4() && hosts >= 2;
    Some((address(base, first + u128::from(inner)), address(base, last - u128::from(inner))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_names_its_addresses() {
        for (text, shown, count) in [
            ("127.0.0.5", "127.0.0.5", 1),
            ("127.0.2.0/24", "127.0.2.1-127.0.2.254", 254),
            ("127.0.2.7/30", "127.0.2.5-127.0.2.6", 2),
            ("127.0.2.7/31", "127.0.2.6-127.0.2.7", 2),
            ("127.0.2.7/32", "127.0.2.7", 1),
            ("127.0.0.250-127.0.1.5", "127.0.0.250-127.0.1.5", 12),
            ("fd00::/126", "fd00::-fd00::3", 4),
        ] {
            let sources = Sources::parse(text).unwrap();
            assert_eq!((sources.to_string().as_str(), sources.count()), (shown, count), "{text}");
        }
        let few = Sources::parse("10.0.0.254-10.0.1.1").unwrap();
        let turn: Vec<String> = (0..5).map(|nth| few.nth(nth).to_string()).collect();
        assert_eq!(turn, ["10.0.0.254", "10.0.0.255", "10.0.1.0", "10.0.1.1", "10.0.0.254"]);
    }

    #[test]
    fn what_is_no_range_is_refused() {
        let bad = [
            "",
            "x",
            "127.0.0.1/33",
            "127.0.0.2-127.0.0.1",
            "127.0.0.1-::1",
            "127.0.0.0/4",
            "::/0",
            "::/64",
        ];
        for text in bad {
            assert!(Sources::parse(text).is_err(), "{text}");
        }
    }
}
