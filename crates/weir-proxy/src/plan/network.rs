//! Addresses of clients and of proxies in front of weir: ranges, and the fields that name them.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use super::UNIX;

/// The address of a client that comes over a unix socket and has none. No other client has it: no
/// TCP connection can (RFC 4291 §2.5.2), and a stated address is never taken for it.
pub const NO_ADDRESS: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// Displays the address of a client; for a client without address [`UNIX`].
#[derive(Debug, Clone, Copy)]
pub struct Shown(pub IpAddr);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == NO_ADDRESS { f.write_str(UNIX) } else { self.0.to_canonical().fmt(f) }
    }
}

/// The field in which trusted proxies name the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressField {
    /// X-Forwarded-For.
    XForwardedFor,
    /// Forwarded (RFC 7239).
    Forwarded,
}

/// Bits in front of the IPv4 address in a mapped address (RFC 4291 §2.5.5.2).
const MAPPED_BITS: u32 = 96;

/// An address range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// Any address of the range.
    pub address: IpAddr,
    /// Leading bits that count: 0-32 or 0-128.
    pub prefix_bits: u8,
}

impl Network {
    /// All clients that come over unix sockets, and no others; written [`UNIX`].
    pub const LOCAL: Network = Network { address: NO_ADDRESS, prefix_bits: u8::MAX };

    /// Whether a client is in it. A client without address is in [`Network::LOCAL`] and in no
    /// range. As a destination its stand-in is an ordinary address, for [`Network::contains`].
    pub fn has_client(&self, client: IpAddr) -> bool {
        if client == NO_ADDRESS || *self == Network::LOCAL {
            return client == NO_ADDRESS && *self == Network::LOCAL;
        }
        self.contains(client)
    }

    /// Whether the address is in the range. An IPv4-mapped IPv6 address counts as IPv4, both in the
    /// range (whose bits in front of it then do not count) and as `address`.
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = u32::from(self.prefix_bits);
        match (self.address, self.address.to_canonical(), address.to_canonical()) {
            (IpAddr::V6(_), IpAddr::V4(mine), IpAddr::V4(other)) if bits >= MAPPED_BITS => {
                (mine.to_bits() ^ other.to_bits()).leading_zeros() >= bits - MAPPED_BITS
            }
            (IpAddr::V4(mine), _, IpAddr::V4(other)) => {
                (mine.to_bits() ^ other.to_bits()).leading_zeros() >= bits.min(32)
            }
            (IpAddr::V6(mine), _, IpAddr::V6(other)) => {
                (mine.to_bits() ^ other.to_bits()).leading_zeros() >= bits.min(128)
            }
            _ => false,
        }
    }

    /// Whether some client is in both.
    pub fn overlaps(&self, other: &Network) -> bool {
        if *self == Network::LOCAL || *other == Network::LOCAL {
            return self == other;
        }
        self.contains(other.address) || other.contains(self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_have_a_client_in_common() {
        let network = |address: &str, prefix_bits| Network {
            address: address.parse().expect("one"),
            prefix_bits,
        };
        let (all, some, one) =
            (network("10.0.0.0", 8), network("10.1.0.0", 16), network("10.1.2.3", 32));
        for (first, second, overlap) in [
            (all, some, true),
            (some, one, true),
            (one, network("10.1.2.4", 32), false),
            (some, network("10.2.0.0", 16), false),
            (one, network("::ffff:10.1.0.0", 112), true),
            (network("2001:db8::", 32), network("2001:db8:1::", 48), true),
            (network("2001:db8::", 32), all, false),
            (Network::LOCAL, Network::LOCAL, true),
            (Network::LOCAL, network("::", 0), false),
            (Network::LOCAL, network("0.0.0.0", 0), false),
        ] {
            assert_eq!(first.overlaps(&second), overlap, "{first:?} {second:?}");
            assert_eq!(second.overlaps(&first), overlap, "{second:?} {first:?}");
        }
    }
}
