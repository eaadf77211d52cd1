//! Sets of addresses in rules: ranges, sorted and joined, found by binary search. Compiled by
//! [`super::Policy::new`].

use std::net::IpAddr;

use crate::plan::Network;

/// Many ranges. An IPv4-mapped IPv6 address counts as IPv4, in ranges and in lookups: a connection
/// to it uses IPv4.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AddressSet {
    /// First and last address; each first is above the last before it.
    v4: Box<[(u32, u32)]>,
    v6: Box<[(u128, u128)]>,
}

/// Bits in front of the IPv4 address in a mapped one (RFC 4291 §2.5.5.2).
const MAPPED_BITS: u8 = 96;

impl AddressSet {
    pub(super) fn new(networks: &[Network]) -> AddressSet {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for network in networks {
            let bits = u32::from(network.prefix_bits);
            match (network.address, network.address.to_canonical()) {
                (IpAddr::V6(_), IpAddr::V4(address)) if network.prefix_bits >= MAPPED_BITS => {
                    v4.push(range_v4(address.to_bits(), bits - u32::from(MAPPED_BITS)));
                }
                (IpAddr::V4(address), _) => v4.push(range_v4(address.to_bits(), bits)),
                (IpAddr::V6(address), _) => v6.push(range_v6(address.to_bits(), bits)),
            }
        }
        AddressSet { v4: joined(v4), v6: joined(v6) }
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(address) => is_inside(&self.v4, address.to_bits()),
            IpAddr::V6(address) => is_inside(&self.v6, address.to_bits()),
        }
    }
}

fn range_v4(address: u32, bits: u32) -> (u32, u32) {
    let host = u32::MAX.checked_shr(bits).unwrap_or(0);
    (address & !host, address | host)
}

fn range_v6(address: u128, bits: u32) -> (u128, u128) {
    let host = u128::MAX.checked_shr(bits).unwrap_or(0);
    (address & !host, address | host)
}

fn joined<T: Ord + Copy>(mut ranges: Vec<(T, T)>) -> Box<[(T, T)]> {
    ranges.sort_unstable();
    let mut joined: Vec<(T, T)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match joined.last_mut() {
            Some((_, before)) if first <= *before => *before = last.max(*before),
            _ => joined.push((first, last)),
        }
    }
    joined.into()
}

fn is_inside<T: Ord + Copy>(ranges: &[(T, T)], wanted: T) -> bool {
    let behind = ranges.partition_point(|(first, _)| *first <= wanted);
    behind > 0 && wanted <= ranges[behind - 1].1
}

#[cfg(test)]
mod tests {
    //! Proves: sets find what a loop over the ranges finds. How: examples at the edges, and
    //! generated ranges against [`Network::contains`].

    use super::*;
    use proptest::prelude::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn network(text: &str) -> Network {
        let (address, bits) = text.split_once('/').unwrap();
        Network { address: address.parse().unwrap(), prefix_bits: bits.parse().unwrap() }
    }

    #[test]
    fn edges_and_families() {
        for (range, inside, outside) in [
            (
                "10.1.2.3/8",
                &["10.0.0.0", "10.255.255.255", "::ffff:10.1.1.1"][..],
                &["9.255.255.255", "11.0.0.0"][..],
            ),
            ("0.0.0.0/0", &["0.0.0.0", "255.255.255.255", "::ffff:1.2.3.4"], &["::", "::1"]),
            ("::/0", &["::", "ffff::", "2001:db8::1"], &["1.2.3.4", "::ffff:1.2.3.4"]),
            ("fd00::/8", &["fd00::", "fdff::1"], &["fe00::"]),
            ("192.0.2.1/32", &["192.0.2.1"], &["192.0.2.0", "192.0.2.2"]),
            ("::1/128", &["::1"], &["::", "::2"]),
            ("::ffff:10.0.0.0/104", &["10.0.0.0", "::ffff:10.9.9.9"], &["11.0.0.0", "::a00:1"]),
            (
                "::ffff:0.0.0.0/96",
                &["0.0.0.0", "255.1.2.3", "::ffff:1.2.3.4"],
                &["::1", "2001:db8::1"],
            ),
            ("::ffff:192.0.2.7/128", &["192.0.2.7"], &["192.0.2.6"]),
            ("::ffff:192.0.2.7/64", &["::1"], &["192.0.2.7", "1::"]),
        ] {
            let all = inside.iter().chain(outside).map(|text| text.parse().unwrap());
            let found: Vec<bool> = all.map(|address| network(range).contains(address)).collect();
            assert_eq!(
                found.iter().filter(|found| **found).count(),
                inside.len(),
                "{range}: {found:?}"
            );
            assert!(found[..inside.len()].iter().all(|found| *found), "{range}: {found:?}");
            let set = AddressSet::new(&[network(range)]);
            inside
                .iter()
                .for_each(|text| assert!(set.contains(text.parse().unwrap()), "{range} {text}"));
            outside
                .iter()
                .for_each(|text| assert!(!set.contains(text.parse().unwrap()), "{range} {text}"));
        }
        assert!(!AddressSet::new(&[]).contains(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    }

    proptest! {
        #[test]
        fn a_set_is_all_its_ranges(
            v4 in prop::collection::vec((any::<u32>(), 0u8..33), 0..5),
            v6 in prop::collection::vec((any::<u128>(), 0u8..129), 0..5),
            one in any::<u128>(),
            flip in any::<u8>(),
        ) {
            let v4 = v4.into_iter().map(|(bits, prefix_bits)| Network {
                address: Ipv4Addr::from_bits(bits).into(),
                prefix_bits,
            });
            let v6 = v6.into_iter().map(|(bits, prefix_bits)| Network {
                address: Ipv6Addr::from_bits(bits).into(),
                prefix_bits,
            });
            let networks: Vec<Network> = v4.chain(v6).collect();
            let set = AddressSet::new(&networks);
            let mut wanted = vec![
                IpAddr::V6(Ipv6Addr::from_bits(one)),
                IpAddr::V4(Ipv4Addr::from_bits(one as u32)),
            ];
            // Addresses that differ from a range in one bit are near its edge.
            wanted.extend(networks.iter().map(|network| match network.address {
                IpAddr::V4(address) => {
                    IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() ^ 1 << (flip % 32)))
                }
                IpAddr::V6(address) => {
                    IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() ^ 1 << (flip % 128)))
                }
            }));
            for address in wanted {
                prop_assert_eq!(
                    set.contains(address),
                    networks.iter().any(|network| network.contains(address)),
                    "{}",
                    address
                );
            }
        }
    }
}
