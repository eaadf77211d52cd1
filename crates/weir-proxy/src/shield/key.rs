//! The key that tells clients apart: an IPv4 address, the network of an IPv6 address, or the larger
//! network around that.
//!
//! The owner of an IPv6 address has all of its /64, so that is one client. The owner of a /48 has
//! 65,536 of those, so when many networks have offended, weir takes them together
//! (`Table::offend`). Called where a client is judged. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::bans::Block;

/// Bits of an IPv6 address that identify one owner, at the most.
pub const AGGREGATE_BITS: u8 = 48;

/// Bits of addresses that tell clients apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Of IPv4, 8-32. Default 32.
    pub v4: u8,
    /// Of IPv6, 16-128. Default 64.
    pub v6: u8,
}

impl Default for Prefix {
    fn default() -> Prefix {
        Prefix { v4: 32, v6: 64 }
    }
}

/// A client as limits count it. An IPv4-mapped address is the IPv4 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// How many bits of `address` count; for IPv4, 128 more than the bits of the IPv4 address.
    bits: u16,
    /// The remaining bits are 0.
    address: u128,
}

impl Key {
    /// Returns the client with this address.
    #[inline]
    pub fn of(address: IpAddr, prefix: Prefix) -> Key {
        match address.to_canonical() {
            IpAddr::V4(address) => {
                let bits = prefix.v4.min(32);
                let kept = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                Key { bits: 128 + u16::from(bits), address: u128::from(address.to_bits() & kept) }
            }
            IpAddr::V6(address) => Key::of_v6(address.to_bits(), prefix.v6.min(128)),
        }
    }

    fn of_v6(address: u128, bits: u8) -> Key {
        let kept = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
        Key { bits: bits.into(), address: address & kept }
    }

    /// Returns the key as addresses. None: it is every address.
    pub fn block(self) -> Option<Block> {
        match self.bits {
            bits @ 129.. => {
                Block::of(Ipv4Addr::from_bits(self.address as u32).into(), (bits - 128) as u8)
            }
            bits => Block::of(Ipv6Addr::from_bits(self.address).into(), bits as u8),
        }
    }

    /// Returns the client of these addresses.
    pub fn of_block(block: Block) -> Key {
        Key::of(block.address(), Prefix { v4: block.prefix(), v6: block.prefix() })
    }

    /// Returns the larger network around this network, if any.
    #[inline]
    pub fn aggregate(self) -> Option<Key> {
        let is_part = self.bits > u16::from(AGGREGATE_BITS) && self.bits <= 128;
        is_part.then(|| Key::of_v6(self.address, AGGREGATE_BITS))
    }

    /// Returns the client with this label.
    pub(super) fn of_label([high, low]: [u64; 2], prefix: Prefix) -> Key {
        match u32::try_from(low) {
            Ok(low) if high == 0 => Key::of(Ipv4Addr::from_bits(low).into(), prefix),
            _ => Key::of_v6(u128::from(high) << 64 | u128::from(low), prefix.v6.min(128)),
        }
    }

    /// Returns the bytes for the hash, with the group of limits in front. They differ for any two
    /// pairs.
    #[inline]
    pub(super) fn message(self, group: u32) -> [u8; 22] {
        let mut message = [0; 22];
        message[..4].copy_from_slice(&group.to_le_bytes());
        message[4..6].copy_from_slice(&self.bits.to_le_bytes());
        message[6..].copy_from_slice(&self.address.to_le_bytes());
        message
    }

    /// Returns the key as two words for display. The count of bits has no place: more than 64
    /// address bits occur only with IPv6.
    #[inline]
    pub(super) fn label(self) -> [u64; 2] {
        [(self.address >> 64) as u64, self.address as u64]
    }
}

/// Returns the bytes in front of values that are hashed in place of a client: no message of a
/// client begins so, because its bits are fewer.
pub(super) fn values_begin(group: u32) -> [u8; 6] {
    let [a, b, c, d] = group.to_le_bytes();
    [a, b, c, d, 0xff, 0xff]
}

#[cfg(test)]
mod tests {
    //! Proves: which addresses are one client. How: a table.

    use super::*;

    fn key(address: &str) -> Key {
        Key::of(address.parse().unwrap(), Prefix::default())
    }

    #[test]
    fn which_addresses_are_one_client() {
        for (one, other, same) in [
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("192.0.2.1", "::ffff:192.0.2.1", true),
            ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", true),
            ("2001:db8:1:2::1", "2001:db8:1:3::1", false),
            // Equal as a number.
            ("192.0.2.1", "::192.0.2.1", false),
            ("0.0.0.0", "::", false),
        ] {
            assert_eq!(key(one) == key(other), same, "{one} {other}");
            assert_eq!(key(one).message(1) == key(other).message(1), same, "{one} {other}");
        }
        assert_ne!(key("192.0.2.1").message(1), key("192.0.2.1").message(2));
    }

    #[test]
    fn prefixes() {
        let by = |v4, v6, address: &str| Key::of(address.parse().unwrap(), Prefix { v4, v6 });
        assert_eq!(by(24, 64, "192.0.2.1"), by(24, 64, "192.0.2.200"));
        assert_ne!(by(24, 64, "192.0.2.1"), by(24, 64, "192.0.3.1"));
        assert_eq!(by(0, 0, "192.0.2.1"), by(0, 0, "198.51.100.1"));
        assert_ne!(by(32, 128, "2001:db8::1"), by(32, 128, "2001:db8::2"));
        assert_eq!(by(32, 0, "2001:db8::1"), by(32, 0, "::1"));
    }

    #[test]
    fn clients_are_addresses() {
        for (address, block) in [
            ("192.0.2.1", ("192.0.2.1", 32)),
            ("0.0.0.0", ("0.0.0.0", 32)),
            ("::ffff:192.0.2.1", ("192.0.2.1", 32)),
            ("2001:db8:1:2::1", ("2001:db8:1:2::", 64)),
        ] {
            let block = Block::of(block.0.parse().unwrap(), block.1).unwrap();
            assert_eq!(key(address).block(), Some(block), "{address}");
            assert_eq!(Key::of_block(block), key(address));
        }
        let larger = key("2001:db8:1:2::1").aggregate().unwrap();
        assert_eq!(larger.block(), Block::of("2001:db8:1::".parse().unwrap(), 48));
        assert_eq!(Key::of("::1".parse().unwrap(), Prefix { v4: 32, v6: 0 }).block(), None);
    }

    #[test]
    fn networks_lie_in_larger_ones() {
        let larger = key("2001:db8:1:2::1").aggregate().unwrap();
        assert_eq!(Some(larger), key("2001:db8:1:ffff::1").aggregate());
        assert_ne!(Some(larger), key("2001:db8:2:2::1").aggregate());
        assert_eq!((larger.aggregate(), key("192.0.2.1").aggregate()), (None, None));
        let prefix = Prefix { v6: 48, ..Prefix::default() };
        assert_eq!(Key::of("2001:db8::1".parse().unwrap(), prefix).aggregate(), None);
    }
}
