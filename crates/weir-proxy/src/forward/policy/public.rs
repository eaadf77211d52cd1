//! Which addresses are public: those that a datagram may have as its destination beyond one
//! organisation, "globally reachable" in the registries of special-purpose addresses (RFC 6890,
//! RFC 8190; <https://www.iana.org/assignments/iana-ipv4-special-registry>,
//! <https://www.iana.org/assignments/iana-ipv6-special-registry>). [`super::Policy`] asks for each
//! address that is about to be connected to.
//!
//! Two deviations, both stricter: anycast services inside IETF blocks (192.0.0.9 and the like)
//! count as their block, and of IPv6 only 2000::/3 counts, which is all that is assigned for global
//! unicast.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Blocks of IPv4 that are not public: first address, leading bits.
const NOT_PUBLIC_V4: [(Ipv4Addr, u32); 17] = [
    // This network (RFC 791); Linux treats 0.0.0.0 as loopback.
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    // Private (RFC 1918).
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    // Behind carriers' NAT (RFC 6598).
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    // Loopback (RFC 1122).
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    // Link-local (RFC 3927), with the metadata services of clouds.
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    // The platform of Azure, inside each of its machines.
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    // IETF protocols (RFC 6890).
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    // Documentation (RFC 5737).
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    // Relays of 6to4, deprecated (RFC 7526).
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    // Benchmarks (RFC 2544).
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    // Multicast (RFC 5771).
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    // Reserved (RFC 1112), and broadcast (RFC 919).
    (Ipv4Addr::new(240, 0, 0, 0), 4),
    (Ipv4Addr::BROADCAST, 32),
];

/// Global unicast (RFC 4291 §2.4). All other addresses are loopback, link-local, site-local, unique
/// local (RFC 4193), multicast, discard-only (RFC 6666), for local translation (RFC 8215), segment
/// routing (RFC 9602) or not assigned.
const GLOBAL_V6: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// Blocks of global unicast that are not public.
const NOT_PUBLIC_V6: [(Ipv6Addr, u32); 3] = [
    // IETF protocols (RFC 2928): benchmarks, ORCHID and others; Teredo is checked before.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    // Documentation (RFC 3849, RFC 9637).
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// IPv4 behind a translator under the well-known prefix (RFC 6052 §2.1).
const NAT64: (Ipv6Addr, u32) = (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);
/// IPv6 in IPv4 (RFC 3056).
const SIX_TO_FOUR: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16);
/// IPv6 in UDP (RFC 4380).
const TEREDO: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32);

/// Whether the address is public. An address that carries an IPv4 address is public if that is.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let inside =
        |(block, bits): &(Ipv4Addr, u32)| (address.to_bits() ^ block.to_bits()) >> (32 - bits) == 0;
    !NOT_PUBLIC_V4.iter().any(inside)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    if let Some(inside) = carried(address) {
        return is_public_v4(inside);
    }
    let bits = address.to_bits();
    if is_inside(address, TEREDO) {
        // The server, and the client with all bits inverted (RFC 4380 §4).
        return is_public_v4(low_v4(bits >> 64)) && is_public_v4(low_v4(!bits));
    }
    is_inside(address, GLOBAL_V6) && !NOT_PUBLIC_V6.iter().any(|&block| is_inside(address, block))
}

/// The IPv4 address that a datagram to this address ends at, on its way or behind a translator.
pub(super) fn carried(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let bits = address.to_bits();
    match address.to_ipv4_mapped() {
        None if is_inside(address, NAT64) => Some(low_v4(bits)),
        None if is_inside(address, SIX_TO_FOUR) => Some(low_v4(bits >> 80)),
        mapped => mapped,
    }
}

fn is_inside(address: Ipv6Addr, (block, leading): (Ipv6Addr, u32)) -> bool {
    (address.to_bits() ^ block.to_bits()) >> (128 - leading) == 0
}

/// The lowest 32 bits.
fn low_v4(bits: u128) -> Ipv4Addr {
    Ipv4Addr::from_bits((bits & u128::from(u32::MAX)) as u32)
}

#[cfg(test)]
mod tests {
    //! Proves: no block of the registries that is not globally reachable counts as public, at its
    //! first, last and a middle address, and the neighbours do. How: the registries as text, an
    //! oracle of `std` where it has one.

    use super::*;
    use proptest::prelude::*;

    fn public(text: &str) -> bool {
        is_public(text.parse().unwrap())
    }

    #[test]
    fn special_blocks_of_ipv4_are_not_public() {
        for (first, last) in [
            ("0.0.0.0", "0.255.255.255"),
            ("10.0.0.0", "10.255.255.255"),
            ("100.64.0.0", "100.127.255.255"),
            ("127.0.0.0", "127.255.255.255"),
            ("168.63.129.16", "168.63.129.16"),
            ("169.254.0.0", "169.254.255.255"),
            ("172.16.0.0", "172.31.255.255"),
            ("192.0.0.0", "192.0.0.255"),
            ("192.0.2.0", "192.0.2.255"),
            ("192.88.99.0", "192.88.99.255"),
            ("192.168.0.0", "192.168.255.255"),
            ("198.18.0.0", "198.19.255.255"),
            ("198.51.100.0", "198.51.100.255"),
            ("203.0.113.0", "203.0.113.255"),
            ("224.0.0.0", "239.255.255.255"),
            ("240.0.0.0", "255.255.255.255"),
        ] {
            let [first, last] =
                [first, last].map(|text| text.parse::<Ipv4Addr>().unwrap().to_bits());
            for bits in [first, first + (last - first) / 2, last] {
                let address = Ipv4Addr::from_bits(bits);
                assert!(!is_public(address.into()), "{address}");
            }
            let neighbours = [first.checked_sub(1), last.checked_add(1)];
            for bits in neighbours.into_iter().flatten() {
                let address = Ipv4Addr::from_bits(bits);
                // Multicast and reserved addresses touch each other.
                let expected =
                    !["239.255.255.255", "240.0.0.0"].contains(&address.to_string().as_str());
                assert_eq!(is_public(address.into()), expected, "{address}");
            }
        }
    }

    #[test]
    fn public_addresses_are() {
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "172.15.0.1",
            "192.31.196.1",
            "223.255.255.255",
            "2606:4700::1111",
        ] {
            assert!(public(text), "{text}");
        }
        for text in ["2620:4f:8000::1", "2000::1", "3ffe::1", "2001:200::1", "2001:dba::1"] {
            assert!(public(text), "{text}");
        }
    }

    #[test]
    fn special_blocks_of_ipv6_are_not_public() {
        for text in [
            "::",
            "::1",
            "::7f00:1",
            "::8.8.8.8",
            "::ffff:0:8.8.8.8",
            "64:ff9b:1::8.8.8.8",
            "64:ff9b:1:ffff::1",
            "100::1",
            "100:0:0:1::1",
            "1fff::1",
            "2001:1::1",
            "2001:2::1",
            "2001:10::1",
            "2001:20::1",
            "2001:1ff:ffff::1",
            "2001:db8::1",
            "2001:db8:ffff:ffff::1",
            "3fff::1",
            "3fff:fff:ffff::1",
            "4000::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fe80::a9fe:a9fe",
            "febf:ffff::1",
            "fec0::1",
            "feff::1",
            "ff02::1",
            "ff0e::1",
        ] {
            assert!(!public(text), "{text}");
        }
    }

    #[test]
    fn an_ipv4_address_inside_is_judged() {
        for (inside, expected) in [
            (Ipv4Addr::new(8, 8, 8, 8), true),
            (Ipv4Addr::new(127, 0, 0, 1), false),
            (Ipv4Addr::new(10, 0, 0, 1), false),
            (Ipv4Addr::new(169, 254, 169, 254), false),
            (Ipv4Addr::UNSPECIFIED, false),
        ] {
            let [a, b, c, d] = inside.octets();
            let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            let public_one = [0x0808, 0x0808];
            let addresses = [
                inside.to_ipv6_mapped(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
                Ipv6Addr::new(0x2001, 0, high, low, 0, 0, !public_one[0], !public_one[1]),
                Ipv6Addr::new(0x2001, 0, public_one[0], public_one[1], 0, 0, !high, !low),
            ];
            for address in addresses {
                assert_eq!(is_public(address.into()), expected, "{address}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]

        #[test]
        fn nothing_that_std_calls_special_is_public(bits: u32) {
            let address = Ipv4Addr::from_bits(bits);
            let special = address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || address.is_multicast()
                || address.is_broadcast()
                || address.is_documentation()
                || address.is_unspecified();
            prop_assert!(!(special && is_public(address.into())), "{}", address);
            prop_assert_eq!(is_public(address.to_ipv6_mapped().into()), is_public(address.into()));
        }

        #[test]
        fn nothing_local_of_ipv6_is_public(
            bits: u128,
            prefix in prop::sample::select(vec![0xfc00u128, 0xfe80, 0xfec0, 0xff00]),
        ) {
            let address = Ipv6Addr::from_bits(bits >> 16 | prefix << 112);
            prop_assert!(!is_public(address.into()), "{}", address);
        }
    }
}
