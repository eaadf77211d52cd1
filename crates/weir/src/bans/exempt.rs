//! Addresses that are exempt from bans, unless an operator insists: banning them would hurt weir or
//! its operator, not an attacker.
//!
//! Called by the keeper (`bans`) when the plan changes, and regularly, because the addresses of a
//! machine change. Bound: what the configuration and the kernel list.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Once;

use weir_proxy::plan::{Location, Network, Plan};
use weir_proxy::shield::bans::Block;

use crate::log::Event;

/// Flag of a route: it uses a gateway (route.h, RTF_GATEWAY).
const BY_GATEWAY: u32 = 2;

/// An exempt block, and the reason in words.
pub(super) type Exempt = (Block, &'static str);

/// The machine's own addresses and gateways.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Machine {
    own: Vec<IpAddr>,
    gateways: Vec<IpAddr>,
}

impl Machine {
    /// Reads them from the kernel. If reading fails, for example because descriptors are scarce,
    /// the last result remains.
    pub(super) fn look(&mut self) {
        static TOLD: Once = Once::new();
        let told = |error: io::Error| {
            let sentence =
                "cannot read the addresses and gateways of this machine: limits may ban one";
            TOLD.call_once(|| Event::AddressesUnknown.says(sentence).with("error", error).log());
        };
        match weir_io::local_addresses() {
            Ok(own) => {
                self.own = own.into_iter().filter(|address| !address.is_loopback()).collect()
            }
            Err(error) => told(error),
        }
        // A kernel without IPv6 has no such file.
        let v6 = std::fs::read_to_string("/proc/self/net/ipv6_route").unwrap_or_default();
        match std::fs::read_to_string("/proc/self/net/route") {
            Ok(v4) => self.gateways = gateways(&v4, &v6),
            Err(error) => told(error),
        }
    }
}

/// Returns all exempt blocks.
pub(super) fn exempt(plan: &Plan, machine: &Machine) -> Vec<Exempt> {
    let one = |address: IpAddr| {
        Block::of(address, if address.to_canonical().is_ipv4() { 32 } else { 128 })
    };
    let loopback = [Block::of(Ipv4Addr::LOCALHOST.into(), 8), one(Ipv6Addr::LOCALHOST.into())];
    let allow = plan.shield.iter().flat_map(|shield| &shield.allow).flat_map(blocks);
    let trusted = plan.client.trusted_proxies.iter().flat_map(blocks);
    let servers =
        plan.upstreams.iter().flat_map(|upstream| &upstream.servers).filter_map(|server| {
            match server.address {
                Location::Network(address) if !address.ip().is_unspecified() => one(address.ip()),
                _ => None,
            }
        });
    let named =
        |blocks: Vec<Block>, what: &'static str| blocks.into_iter().map(move |block| (block, what));
    named(loopback.into_iter().flatten().collect(), "loopback")
        .chain(named(allow.collect(), "in `allow` of `shield`"))
        .chain(named(trusted.collect(), "in `trusted-proxies`"))
        .chain(named(
            machine.own.iter().copied().filter_map(one).collect(),
            "an address of this machine",
        ))
        .chain(named(
            machine.gateways.iter().copied().filter_map(one).collect(),
            "a gateway of this machine",
        ))
        .chain(named(servers.collect(), "a server of an upstream"))
        .collect()
}

/// Converts a range of the configuration. The range of all addresses becomes two halves, and unix
/// sockets have no blocks.
fn blocks(network: &Network) -> Vec<Block> {
    if *network == Network::LOCAL {
        return Vec::new();
    }
    let (address, bits) = (network.address, network.prefix_bits);
    let (address, bits) = match address.to_canonical() {
        // A mapped address counts as IPv4.
        inner @ IpAddr::V4(_) if address.is_ipv6() && bits >= 96 => (inner, bits - 96),
        _ => (address, bits),
    };
    if bits > 0 {
        return Block::of(address, bits).into_iter().collect();
    }
    let upper: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::from_bits(1 << 31).into(),
        IpAddr::V6(_) => Ipv6Addr::from_bits(1 << 127).into(),
    };
    let lower: IpAddr =
        if upper.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    [lower, upper].into_iter().filter_map(|half| Block::of(half, 1)).collect()
}

/// Returns the gateways of routes, as proc(5) and net/ipv6/route.c list them.
fn gateways(v4: &str, v6: &str) -> Vec<IpAddr> {
    let of_v4 = v4.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let flags = u32::from_str_radix(words.get(3)?, 16).ok()?;
        let gateway = u32::from_str_radix(words.get(2)?, 16).ok()?;
        // In the byte order of the machine.
        (flags & BY_GATEWAY != 0).then(|| IpAddr::from(gateway.to_ne_bytes()))
    });
    let of_v6 = v6.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let flags = u32::from_str_radix(words.get(8)?, 16).ok()?;
        let gateway = u128::from_str_radix(words.get(4)?, 16).ok()?;
        (flags & BY_GATEWAY != 0).then(|| IpAddr::from(Ipv6Addr::from_bits(gateway)))
    });
    // Each once, however many routes use it.
    let all: BTreeSet<IpAddr> =
        of_v4.chain(of_v6).filter(|gateway| !gateway.is_unspecified()).collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    //! Proves: which addresses are exempt from bans. How: a plan, and texts as the kernel has them.

    use super::*;

    #[test]
    fn rules_name_blocks() {
        let text = r#"
listen "127.0.0.1:8080"
client { trusted-proxies "10.1.0.0/16" "::ffff:10.2.0.0/112" "unix:"; }
upstream "app" { server "10.3.0.1:80"; server "unix:/run/app.sock"; }
route { proxy "app"; }
shield { allow "2001:db8::/32"; limit "rate" count="requests" rate="1/s"; }
"#;
        let plan = weir_config::parse(text, "weir.kdl").expect("valid").plan;
        let all = exempt(
            &plan,
            &Machine { own: vec![[10, 4, 0, 1].into()], gateways: vec![[10, 5, 0, 1].into()] },
        );
        let why = |address: &str| {
            let address: IpAddr = address.parse().unwrap();
            all.iter().find(|(block, _)| block.has(address)).map(|(_, why)| *why)
        };
        for (address, expected) in [
            ("127.9.9.9", Some("loopback")),
            ("::1", Some("loopback")),
            ("10.1.2.3", Some("in `trusted-proxies`")),
            ("10.2.2.3", Some("in `trusted-proxies`")),
            ("10.3.0.1", Some("a server of an upstream")),
            ("10.4.0.1", Some("an address of this machine")),
            ("10.5.0.1", Some("a gateway of this machine")),
            ("2001:db8:1::1", Some("in `allow` of `shield`")),
            ("247.0.2.1", None),
        ] {
            assert_eq!(why(address), expected, "{address}");
        }
        let everybody = blocks(&Network { address: Ipv4Addr::UNSPECIFIED.into(), prefix_bits: 0 });
        assert!(
            ["1.2.3.4", "200.2.3.4"]
                .iter()
                .all(|one| everybody.iter().any(|it| it.has(one.parse().unwrap())))
        );
    }

    #[test]
    fn routes_have_gateways() {
        let v4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\n\
                  eth0\t00000000\t010200C0\t0003\t0\neth0\t000200C0\t00000000\t0001\t0\nodd\n";
        let zero = "0".repeat(32);
        let v6 = format!(
            "{zero} 00 {zero} 00 fd000000000000000000000000000001 00000400 00000003 00000000 \
             00000003 eth0\n\
             fe80{} 40 {zero} 00 {zero} 00000100 00000002 00000000 00000001 eth0\n",
            "0".repeat(28)
        );
        let found: Vec<String> = gateways(v4, &v6).iter().map(ToString::to_string).collect();
        let expected = if cfg!(target_endian = "little") { "192.0.2.1" } else { "1.2.0.192" };
        assert_eq!(found, [expected, "fd00::1"]);
    }
}
