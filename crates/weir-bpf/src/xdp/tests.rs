//! Proves: the kernel takes the program, and it drops exactly the packets that a model of it in
//! Rust says, counted and to the byte, however they are cut short. How: the kernel runs it on
//! packets that are made here (BPF_PROG_TEST_RUN), which needs no interface; without the right to
//! it the tests say so and end. How drivers run it is tested end to end.

use std::net::Ipv6Addr;

use aya::programs::{TestRun, TestRunOptions};
use proptest::prelude::*;

use super::*;

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;

/// None: this process may not.
fn open(ports: Ports<'_>, allowed: &[Network]) -> Option<Xdp> {
    match Xdp::open(&[], ports, allowed, 64, None) {
        Ok(xdp) => Some(xdp),
        Err(XdpError::NotPermitted) => {
            eprintln!("not tested: it needs CAP_BPF and CAP_NET_ADMIN");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn run(xdp: &Xdp, packet: &[u8]) -> u32 {
    let mut options = TestRunOptions::new();
    options.data_in = Some(packet);
    let program: &Program = xdp.object.program(PROGRAM).expect("there").try_into().expect("XDP");
    program.test_run(options).expect("it runs").return_value
}

/// The parts of a packet.
#[derive(Debug, Clone)]
struct Packet {
    vlans: Vec<u16>,
    source: IpAddr,
    port: u16,
    protocol: u8,
    /// Words of IPv4 options.
    options: u8,
    fragment: u16,
}

impl Packet {
    fn of(source: IpAddr, port: u16) -> Packet {
        Packet { vlans: Vec::new(), source, port, protocol: 6, options: 0, fragment: 0 }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![2; 12];
        for kind in &self.vlans {
            bytes.extend(kind.to_be_bytes());
            bytes.extend([0, 7]);
        }
        match self.source {
            IpAddr::V4(source) => {
                bytes.extend(0x0800u16.to_be_bytes());
                bytes.extend([0x45 + self.options, 0, 0, 40, 0, 0]);
                bytes.extend(self.fragment.to_be_bytes());
                bytes.extend([64, self.protocol, 0, 0]);
                bytes.extend(source.octets());
                bytes.extend([198, 18, 0, 1]);
                bytes.extend(vec![1; usize::from(self.options) * 4]);
            }
            IpAddr::V6(source) => {
                bytes.extend(0x86ddu16.to_be_bytes());
                bytes.extend([0x60, 0, 0, 0, 0, 20, self.protocol, 64]);
                bytes.extend(source.octets());
                bytes.extend([0x20; 16]);
            }
        }
        bytes.extend(40_000u16.to_be_bytes());
        bytes.extend(self.port.to_be_bytes());
        bytes.extend([0; 16]);
        bytes
    }

    /// Whether this is a packet to a port, with a complete header.
    fn is_to(&self, ports: Ports<'_>) -> bool {
        let is_fragment = self.source.is_ipv4() && self.fragment & 0x1fff != 0;
        let is_ours = match ports {
            Ports::All => true,
            Ports::These(ports) => ports.contains(&self.port),
        };
        self.protocol == 6 && !is_fragment && self.vlans.len() <= 2 && is_ours
    }
}

fn is_in((network, bits): Network, address: IpAddr) -> bool {
    let prefix = |address: IpAddr| match address {
        IpAddr::V4(it) => u128::from(u32::from(it)) << 96,
        IpAddr::V6(it) => u128::from(it),
    };
    network.is_ipv4() == address.is_ipv4()
        && (prefix(network) ^ prefix(address)).checked_shr(128 - u32::from(bits)).unwrap_or(0) == 0
}

fn addresses() -> impl Strategy<Value = IpAddr> {
    let four = (0u8..3, 0u8..3).prop_map(|(a, b)| IpAddr::from([247, 0, a, b]));
    let six = (0u16..3, 0u16..3)
        .prop_map(|(a, b)| IpAddr::from(Ipv6Addr::new(0x4001, 0xdb8, 0, a, 0, 0, 0, b)));
    prop_oneof![four, six]
}

fn networks() -> impl Strategy<Value = Network> {
    (addresses(), 0usize..4).prop_map(|(address, kind)| match address {
        IpAddr::V4(it) => {
            let bits = [32, 32, 24, 31][kind];
            (IpAddr::from((u32::from(it) & u32::MAX << (32 - bits)).to_be_bytes()), bits as u8)
        }
        IpAddr::V6(it) => {
            let bits = [64, 64, 128, 48][kind];
            (IpAddr::from((u128::from(it) & u128::MAX << (128 - bits)).to_be_bytes()), bits as u8)
        }
    })
}

fn packets() -> impl Strategy<Value = Packet> {
    let kinds = prop::collection::vec(prop_oneof![Just(0x8100u16), Just(0x88a8)], 0..4);
    let ports = prop_oneof![
        Just(0u16),
        Just(22),
        Just(80),
        Just(443),
        Just(8063),
        Just(8064),
        Just(u16::MAX)
    ];
    let protocols = prop_oneof![4 => Just(6u8), 1 => Just(17u8)];
    let fragments = prop_oneof![
        4 => Just(0u16),
        1 => Just(0x4000),
        1 => Just(0x2000),
        1 => Just(1),
        1 => Just(0x1fff)
    ];
    (kinds, addresses(), ports, protocols, 0u8..11, fragments).prop_map(
        |(vlans, source, port, protocol, options, fragment)| Packet {
            vlans,
            source,
            port,
            protocol,
            options,
            fragment,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn drops_what_the_model_drops(
        banned in prop::collection::vec((networks(), any::<bool>()), 0..8),
        allowed in prop::collection::vec(networks(), 0..3),
        packets in prop::collection::vec(packets(), 1..32),
        all in any::<bool>(),
    ) {
        let ports = if all { Ports::All } else { Ports::These(&[80, 443, 8064, u16::MAX]) };
        let Some(mut xdp) = open(ports, &allowed) else { return Ok(()) };
        let mut model = Vec::new();
        for (network, is_over) in &banned {
            let time = if *is_over { Duration::ZERO } else { Duration::from_secs(3600) };
            prop_assert!(xdp.add(&[(*network, time)]).is_empty());
            model.retain(|other| other != network);
            if !is_over {
                model.push(*network);
            }
        }
        let mut expected = Dropped::default();
        for packet in &packets {
            let bytes = packet.bytes();
            // A trie answers with the longest network alone, and no network contains another.
            let networks =
                banned.iter().filter(|((at, bits), _)| *bits != if at.is_ipv4() { 32 } else { 64 });
            prop_assume!(
                networks.filter(|(network, _)| is_in(*network, packet.source)).count() <= 1
            );
            let is_banned = model.iter().any(|network| is_in(*network, packet.source));
            let is_allowed = allowed.iter().any(|network| is_in(*network, packet.source));
            let drops = is_banned && !is_allowed && packet.is_to(ports);
            prop_assert_eq!(
                run(&xdp, &bytes),
                if drops { XDP_DROP } else { XDP_PASS },
                "{:?}",
                packet
            );
            if drops {
                expected.packets += 1;
                expected.bytes += bytes.len() as u64;
            }
        }
        prop_assert_eq!(xdp.dropped().expect("counted"), expected);
        for (network, _) in &banned {
            xdp.remove(&[*network]);
        }
        for packet in &packets {
            prop_assert_eq!(run(&xdp, &packet.bytes()), XDP_PASS);
        }
    }
}

#[test]
fn packets_cut_short_pass() {
    let Some(mut xdp) = open(Ports::These(&[80]), &[]) else { return };
    for source in [IpAddr::from([247, 0, 0, 1]), "4001:db8::1".parse().expect("an address")] {
        let network = if source.is_ipv4() {
            (source, 32)
        } else {
            (IpAddr::from([0x40, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), 64)
        };
        assert!(xdp.add(&[(network, Duration::from_secs(60))]).is_empty());
        for vlans in [vec![], vec![0x8100], vec![0x88a8, 0x8100]] {
            let whole = Packet { vlans, ..Packet::of(source, 80) }.bytes();
            // The port is examined last.
            let needed = whole.len() - 16;
            for length in 14..=whole.len() {
                let expected = if length < needed { XDP_PASS } else { XDP_DROP };
                assert_eq!(
                    run(&xdp, &whole[..length]),
                    expected,
                    "{length} of {} bytes",
                    whole.len()
                );
            }
        }
    }
}

#[test]
fn who_finds_no_place_is_named() {
    let Some(mut xdp) = open(Ports::All, &[]) else { return };
    let hosts: Vec<(Network, Duration)> =
        (0..80).map(|at| ((IpAddr::from([247, 0, 0, at]), 32), Duration::from_secs(60))).collect();
    let left_out = xdp.add(&hosts);
    assert_eq!(left_out.len(), 16, "64 have places");
    for (network, _) in &left_out {
        assert_eq!(run(&xdp, &Packet::of(network.0, 80).bytes()), XDP_PASS);
    }
    let there: Vec<Network> = hosts
        .iter()
        .map(|(network, _)| *network)
        .filter(|it| left_out.iter().all(|(out, _)| out != it))
        .collect();
    assert!(xdp.remove(&there).is_empty());
    assert_eq!(xdp.remove(&there[..1])[0].1.kind(), io::ErrorKind::NotFound);
    assert!(xdp.add(&hosts[..64]).is_empty(), "their places are free");
}

/// Even a process that may not load anything sees it: it is found before an interface is touched.
#[test]
fn a_missing_interface_is_named() {
    let interfaces = ["lo", "weir-none0"].map(str::to_owned);
    let error = Xdp::open(&interfaces, Ports::All, &[], 1, None).expect_err("there is none");
    assert_eq!(error.to_string(), "no interface weir-none0");
}
