//! The clients that are banned at a moment, as workers see them: a set that never changes and is
//! replaced as a whole.
//!
//! A ban ends by comparison: an expired ban is without effect even if no new set is made. Bound:
//! the entries of the set. A lookup costs one search for each length of prefix in the set, which
//! are one or two unless operators ban networks of many sizes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::plan::NO_ADDRESS;

/// Addresses with a common prefix: one client, or its network. An IPv4-mapped address is the IPv4
/// address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// The first address: bits behind the prefix are 0.
    address: IpAddr,
    /// Bits in common, 1-32 or 1-128.
    prefix: u8,
}

impl Block {
    /// No block sorts before it.
    pub const LEAST: Block = Block { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), prefix: 1 };

    /// Returns the block of this length around an address. None: a length of 0, which is every
    /// address, or one that is too long.
    #[inline]
    pub fn of(address: IpAddr, prefix: u8) -> Option<Block> {
        let address = match address.to_canonical() {
            IpAddr::V4(address) if (1..=32).contains(&prefix) => {
                let kept = u32::MAX << (32 - u32::from(prefix));
                IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & kept))
            }
            IpAddr::V6(address) if (1..=128).contains(&prefix) => {
                let kept = u128::MAX << (128 - u32::from(prefix));
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & kept))
            }
            _ => return None,
        };
        Some(Block { address, prefix })
    }

    /// Parses an address with an optional prefix length behind `/`. Without one, the prefix length
    /// is that of its kind, `v4` or `v6`.
    pub fn read(written: &str, v4: u8, v6: u8) -> Option<Block> {
        let (address, prefix) =
            written.split_once('/').map_or((written, None), |(one, other)| (one, Some(other)));
        let address: IpAddr = address.parse().ok()?;
        let usual = if address.to_canonical().is_ipv4() { v4 } else { v6 };
        Block::of(address, prefix.map_or(Some(usual), |prefix| prefix.parse().ok())?)
    }

    /// Returns its first address.
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// Returns how many bits are in common.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// Whether an address is in it.
    pub fn has(self, address: IpAddr) -> bool {
        Block::of(address, self.prefix) == Some(self)
    }

    /// Whether they have an address in common: then one of the two blocks contains the other.
    pub fn meets(self, other: Block) -> bool {
        if self.prefix <= other.prefix { self.has(other.address) } else { other.has(self.address) }
    }
}

impl fmt::Display for Block {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.address, self.prefix) {
            (IpAddr::V4(address), 32) => address.fmt(text),
            (address, prefix) => write!(text, "{address}/{prefix}"),
        }
    }
}

/// A client that a worker proposes to ban; the keeper of the bans decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offence {
    /// The client.
    pub block: Block,
    /// The limit that it went over last.
    pub limit: Box<str>,
    /// A trusted proxy names the client: its packets come from the proxy.
    pub by_proxy: bool,
    /// Its request names another client, by X-Forwarded-For or Forwarded, though it is no trusted
    /// proxy: perhaps it should be one.
    pub forwards: bool,
}

/// See the module. Times are microseconds of the workers' clock.
#[derive(Debug, Default)]
pub struct BanSet {
    /// When each ban ends, in the order of blocks, each block once.
    ends_us: Box<[(Block, u64)]>,
    /// Lengths of prefixes in the set, of IPv4 and of IPv6.
    lengths: [Vec<u8>; 2],
}

impl BanSet {
    /// Builds a set of blocks and the ends of their bans. If a block occurs twice, the later row
    /// counts.
    pub fn new(mut ends_us: Vec<(Block, u64)>) -> BanSet {
        if !ends_us.is_sorted_by(|(block, _), (next, _)| block < next) {
            // Stable: the later row is then the first one and is kept.
            ends_us.reverse();
            ends_us.sort_by_key(|(block, _)| *block);
            ends_us.dedup_by_key(|(block, _)| *block);
        }
        let mut lengths = [Vec::new(), Vec::new()];
        for (block, _) in &ends_us {
            let lengths = &mut lengths[usize::from(block.address.is_ipv6())];
            if !lengths.contains(&block.prefix) {
                lengths.push(block.prefix);
            }
        }
        BanSet { ends_us: ends_us.into(), lengths }
    }

    /// Whether a client with this address is banned. A client over a unix socket is on this machine
    /// and never banned.
    #[inline]
    pub fn bans(&self, client: IpAddr, now_us: u64) -> bool {
        !self.is_empty() && client != NO_ADDRESS && self.until_us(client, now_us).is_some()
    }

    /// Returns when the ban of this address ends.
    fn until_us(&self, address: IpAddr, now_us: u64) -> Option<u64> {
        let address = address.to_canonical();
        let lengths = &self.lengths[usize::from(address.is_ipv6())];
        let ends = lengths.iter().filter_map(|length| self.end_us(Block::of(address, *length)?));
        ends.filter(|end_us| *end_us > now_us).max()
    }

    fn end_us(&self, block: Block) -> Option<u64> {
        let at = self.ends_us.binary_search_by_key(&block, |(block, _)| *block).ok()?;
        Some(self.ends_us.get(at)?.1)
    }

    /// Whether the set has no bans.
    pub fn is_empty(&self) -> bool {
        self.ends_us.is_empty()
    }
}

#[cfg(test)]
mod tests {
    //! Proves: an address is in a set exactly if it is in a block of it that has not expired. How:
    //! comparison with a linear search.

    use proptest::prelude::*;

    use super::*;

    /// Addresses that lie close together.
    fn address() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            (0u32..64, 0u32..4)
                .prop_map(|(low, high)| IpAddr::V4(Ipv4Addr::from_bits(high << 30 | low << 8))),
            (0u128..64, 0u32..4).prop_map(|(low, high)| {
                IpAddr::V6(Ipv6Addr::from_bits(0x2001 << 112 | u128::from(high) << 80 | low << 60))
            }),
        ]
    }

    proptest! {
        #[test]
        fn who_is_banned(
            bans in prop::collection::vec((address(), 1u8..=128, 0u64..100), 0..20),
            asked in prop::collection::vec((address(), 0u64..100), 1..40),
        ) {
            let bans: Vec<(Block, u64)> = bans
                .into_iter()
                .filter_map(|(address, prefix, end)| Some((Block::of(address, prefix)?, end)))
                .collect();
            let last = |block: &Block| {
                bans.iter().rev().find(|(other, _)| other == block).map(|(_, end)| *end)
            };
            let set = BanSet::new(bans.clone());
            for (address, now_us) in asked {
                let in_force = bans
                    .iter()
                    .filter(|(block, _)| block.has(address))
                    .filter_map(|(block, _)| last(block));
                let expected = in_force.filter(|end_us| *end_us > now_us).max();
                prop_assert_eq!(
                    set.until_us(address, now_us),
                    expected,
                    "{} at {}",
                    address,
                    now_us
                );
            }
        }
    }

    #[test]
    fn how_blocks_are_written() {
        for (written, read) in [
            ("192.0.2.1", Some("192.0.2.1")),
            ("192.0.2.1/32", Some("192.0.2.1")),
            ("192.0.2.1/24", Some("192.0.2.0/24")),
            ("::ffff:192.0.2.1", Some("192.0.2.1")),
            ("2001:db8:1:2:3::4", Some("2001:db8:1:2::/64")),
            ("2001:db8::1/128", Some("2001:db8::1/128")),
            ("192.0.2.1/0", None),
            ("192.0.2.1/33", None),
            ("192.0.2.1/", None),
            ("192.0.2", None),
            ("", None),
        ] {
            assert_eq!(
                Block::read(written, 32, 64).map(|block| block.to_string()).as_deref(),
                read,
                "{written}"
            );
        }
    }

    #[test]
    fn which_addresses_are_in_a_block() {
        let block = |text: &str, prefix| Block::of(text.parse().unwrap(), prefix).unwrap();
        for (one, address, is_in) in [
            (block("10.1.2.3", 8), "10.255.0.1", true),
            (block("10.1.2.3", 8), "11.0.0.1", false),
            (block("10.1.2.3", 32), "::ffff:10.1.2.3", true),
            (block("::ffff:10.1.2.3", 32), "10.1.2.3", true),
            (block("::10.1.2.3", 128), "10.1.2.3", false),
            (block("2001:db8:1:2:3::", 64), "2001:db8:1:2:ffff::1", true),
            (block("2001:db8:1:2:3::", 64), "2001:db8:1:3::1", false),
            (block("128.0.0.0", 1), "255.255.255.255", true),
        ] {
            assert_eq!(one.has(address.parse().unwrap()), is_in, "{one:?} {address}");
        }
        for (address, prefix) in [("10.0.0.1", 0), ("10.0.0.1", 33), ("::1", 0), ("::1", 129)] {
            assert_eq!(Block::of(address.parse().unwrap(), prefix), None);
        }
        assert!(
            block("10.0.0.0", 8).meets(block("10.9.0.0", 16))
                && block("10.9.0.0", 16).meets(block("10.0.0.0", 8))
        );
        assert!(
            !block("10.0.0.0", 16).meets(block("10.9.0.0", 16))
                && !block("10.0.0.0", 8).meets(block("::", 8))
        );
    }
}
