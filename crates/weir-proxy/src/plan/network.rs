//! Addresses of clients and of proxies in front of weir: ranges of them, and where proxies say them.

use std::net::IpAddr;

/// The field in which trusted proxies say who the client is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressField {
    /// X-Forwarded-For.
    XForwardedFor,
    /// Forwarded (RFC 7239).
    Forwarded,
}

/// Bits in front of the IPv4 address in a mapped one (RFC 4291 §2.5.5.2).
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
    /// Whether the address is in the range. An IPv4-mapped IPv6 address counts as IPv4, in the range (whose bits in front of it
    /// then don't count) as in what is looked for.
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
}
