//! The content of the table that drops, as messages. Called by `nft`.
//!
//! ```text
//! table inet NAME { flags owner
//!   set ports  { type inet_service }                                  # none: all ports
//!   set allow4 { type ipv4_addr; flags interval }                     allow6 likewise
//!   set ban4   { type ipv4_addr; flags timeout; size N; gc 10s }      hosts
//!   set ban6   { type ipv6_addr; flags timeout; size N; gc 10s }      networks of 64 bits
//!   set net4   { type ipv4_addr; flags interval, timeout }            net6 too: other networks
//!   chain in { type filter hook prerouting priority -310
//!     meta l4proto != tcp accept; tcp dport != @ports accept
//!     ip saddr @allow4 accept
//!     ip saddr @ban4 counter name dropped drop
//!     ip saddr @net4 counter name dropped drop }                      and the same of IPv6
//! ```
//!
//! The chain is in front of defragmentation and connection tracking (`NF_IP_PRI_CONNTRACK_DEFRAG`
//! is -400, raw -300), so that a dropped packet has cost nothing yet. With the flag `owner` (Linux
//! 5.12) no other program changes the table, and it disappears with its socket.
//! `linux/netfilter/nf_tables.h`; nft(8).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::message::{ACKNOWLEDGE, Attributes, Batch, CREATE, EXCLUSIVE, request};
use super::{Network, Scope};

// Kinds of messages (`NFT_MSG_*`).
const NEW_TABLE: u8 = 0;
const NEW_CHAIN: u8 = 3;
const NEW_RULE: u8 = 6;
const NEW_SET: u8 = 9;
const NEW_ELEMENTS: u8 = 12;
const DELETE_ELEMENTS: u8 = 14;
const NEW_OBJECT: u8 = 18;
const GET_OBJECT: u8 = 19;

/// `NLM_F_APPEND`: a rule is added behind the existing ones.
const APPEND: u16 = 0x800;
/// Of a named counter (`NFT_OBJECT_COUNTER`), and its name.
const COUNTER: u32 = 1;
const DROPPED: &str = "dropped";
const CHAIN: &str = "in";
/// Priority of the hook: in front of connection tracking's defragmentation and of the table `raw`.
const PRIORITY: i32 = -310;
/// How often expired elements are removed: until then they take room.
const SWEEP_MS: u32 = 10_000;
/// `NFPROTO_IPV4`, `NFPROTO_IPV6`.
const FAMILIES: [u8; 2] = [2, 10];
/// The register for all values (`NFT_REG_1`).
const REGISTER: u32 = 1;

/// The sets of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Set {
    Ports,
    Allow4,
    Allow6,
    Ban4,
    Ban6,
    Net4,
    Net6,
}

impl Set {
    const ALL: [Set; 7] =
        [Set::Ports, Set::Allow4, Set::Allow6, Set::Ban4, Set::Ban6, Set::Net4, Set::Net6];

    fn name(self) -> &'static str {
        match self {
            Set::Ports => "ports",
            Set::Allow4 => "allow4",
            Set::Allow6 => "allow6",
            Set::Ban4 => "ban4",
            Set::Ban6 => "ban6",
            Set::Net4 => "net4",
            Set::Net6 => "net6",
        }
    }

    /// Bytes of a key, and its type as nft(8) numbers them, for programs that list the table.
    fn key(self) -> (u32, u32) {
        match self {
            Set::Ports => (2, 13),
            Set::Allow4 | Set::Ban4 | Set::Net4 => (4, 7),
            Set::Allow6 | Set::Ban6 | Set::Net6 => (16, 8),
        }
    }

    pub(super) fn is_of_intervals(self) -> bool {
        matches!(self, Set::Allow4 | Set::Allow6 | Set::Net4 | Set::Net6)
    }

    fn has_times(self) -> bool {
        matches!(self, Set::Ban4 | Set::Ban6 | Set::Net4 | Set::Net6)
    }

    /// The set for a block.
    pub(super) fn of(network: Network) -> Set {
        match network {
            (IpAddr::V4(_), 32) => Set::Ban4,
            (IpAddr::V4(_), _) => Set::Net4,
            (IpAddr::V6(_), 64) => Set::Ban6,
            (IpAddr::V6(_), _) => Set::Net6,
        }
    }

    fn of_allowed(network: Network) -> Set {
        if network.0.is_ipv4() { Set::Allow4 } else { Set::Allow6 }
    }
}

/// Makes all of it. `elements_max`: how many hosts, or networks of 64 bits, can be blocked at a
/// time. Returns the number of the last message.
pub(super) fn create(
    batch: &mut Batch,
    table: &str,
    scope: &Scope,
    allowed: &[Network],
    elements_max: u32,
) -> u32 {
    batch.message(NEW_TABLE, CREATE | EXCLUSIVE, |message| {
        message.text(1, table);
        // `NFT_TABLE_F_OWNER`.
        message.number(2, 2);
    });
    batch.message(NEW_OBJECT, CREATE | EXCLUSIVE, |message| {
        message.text(1, table);
        message.text(2, DROPPED);
        message.number(3, COUNTER);
        message.nest(4, |_| {});
    });
    for (id, set) in (1..).zip(Set::ALL) {
        new_set(batch, table, set, id, elements_max);
    }
    batch.message(NEW_CHAIN, CREATE | EXCLUSIVE, |message| {
        message.text(1, table);
        message.text(3, CHAIN);
        message.nest(4, |hook| {
            // `NF_INET_PRE_ROUTING`.
            hook.number(1, 0);
            hook.number(2, PRIORITY.cast_unsigned());
        });
        // `NF_ACCEPT`.
        message.number(5, 1);
        message.text(7, "filter");
    });
    if let Scope::Ports(ports) = scope {
        let elements: Vec<Element> =
            ports.iter().map(|port| Element::of(&port.to_be_bytes())).collect();
        for part in elements.chunks(super::message::ELEMENTS_MAX) {
            change(batch, table, Set::Ports, part, Change::Add);
        }
    }
    for set in [Set::Allow4, Set::Allow6] {
        let elements: Vec<Element> = allowed
            .iter()
            .filter(|network| Set::of_allowed(**network) == set)
            .flat_map(|network| interval(*network, None))
            .collect();
        for part in elements.chunks(super::message::ELEMENTS_MAX) {
            change(batch, table, set, part, Change::Add);
        }
    }
    rules(batch, table, scope)
}

fn new_set(batch: &mut Batch, table: &str, set: Set, id: u32, elements_max: u32) {
    batch.message(NEW_SET, CREATE | EXCLUSIVE, |message| {
        message.text(1, table);
        message.text(2, set.name());
        // `NFT_SET_INTERVAL`, `NFT_SET_TIMEOUT`.
        message.number(
            3,
            if set.is_of_intervals() { 4 } else { 0 } | if set.has_times() { 16 } else { 0 },
        );
        let (bytes, kind) = set.key();
        message.number(4, kind);
        message.number(5, bytes);
        message.number(10, id);
        if matches!(set, Set::Ban4 | Set::Ban6) {
            // Expired elements count until they are swept.
            message.nest(9, |size| size.number(1, elements_max.saturating_mul(2)));
        }
        if set.has_times() {
            message.number(12, SWEEP_MS);
        }
    });
}

/// The rules of the chain. Returns the number of the last message, which is answered.
fn rules(batch: &mut Batch, table: &str, scope: &Scope) -> u32 {
    let mut rule = |flags: u16, write: &dyn Fn(&mut Rule<'_, '_>)| {
        batch.message(NEW_RULE, CREATE | APPEND | flags, |message| {
            message.text(1, table);
            message.text(2, CHAIN);
            message.nest(4, |list| write(&mut Rule { list }));
        })
    };
    // `NFT_META_L4PROTO`: anything but TCP.
    rule(0, &|rule| {
        rule.meta(16);
        rule.compare(true, &[6]);
        rule.verdict(true);
    });
    if matches!(scope, Scope::Ports(_)) {
        rule(0, &|rule| {
            rule.meta(16);
            rule.compare(false, &[6]);
            rule.load(2, 2, 2);
            rule.look_up(Set::Ports, true);
            rule.verdict(true);
        });
    }
    for (family, offset, bytes, set, accepts) in [
        (FAMILIES[0], 12, 4, Set::Allow4, true),
        (FAMILIES[1], 8, 16, Set::Allow6, true),
        (FAMILIES[0], 12, 4, Set::Ban4, false),
        (FAMILIES[0], 12, 4, Set::Net4, false),
        (FAMILIES[1], 8, 16, Set::Ban6, false),
    ] {
        rule(0, &|rule| rule.source(family, offset, bytes, set, accepts));
    }
    rule(ACKNOWLEDGE, &|rule| rule.source(FAMILIES[1], 8, 16, Set::Net6, false))
}

/// A rule that is being written.
struct Rule<'l, 'b> {
    list: &'l mut Attributes<'b>,
}

impl Rule<'_, '_> {
    fn expression(&mut self, name: &str, write: impl FnOnce(&mut Attributes<'_>)) {
        self.list.nest(1, |expression| {
            expression.text(1, name);
            expression.nest(2, write);
        });
    }

    /// Drops or accepts packets of this family with a source in a set. `offset` and `bytes`: the
    /// position of the source in the header.
    fn source(&mut self, family: u8, offset: u32, bytes: u32, set: Set, accepts: bool) {
        // `NFT_META_NFPROTO`, `NFT_PAYLOAD_NETWORK_HEADER`.
        self.meta(15);
        self.compare(false, &[family]);
        self.load(1, offset, bytes);
        if set == Set::Ban6 {
            let mut mask = [0; 16];
            mask[..8].fill(0xff);
            self.mask(&mask);
        }
        self.look_up(set, false);
        if !accepts {
            self.expression("objref", |counter| {
                counter.number(1, COUNTER);
                counter.text(2, DROPPED);
            });
        }
        self.verdict(accepts);
    }

    fn meta(&mut self, key: u32) {
        self.expression("meta", |meta| {
            meta.number(1, REGISTER);
            meta.number(2, key);
        });
    }

    /// Continues if the register has these bytes, or has not.
    fn compare(&mut self, differs: bool, value: &[u8]) {
        self.expression("cmp", |compare| {
            compare.number(1, REGISTER);
            compare.number(2, u32::from(differs));
            compare.nest(3, |data| data.bytes(1, value));
        });
    }

    /// Bytes of a header: 1 is that of the network, 2 that of the transport.
    fn load(&mut self, header: u32, offset: u32, bytes: u32) {
        self.expression("payload", |payload| {
            payload.number(1, REGISTER);
            payload.number(2, header);
            payload.number(3, offset);
            payload.number(4, bytes);
        });
    }

    fn mask(&mut self, mask: &[u8]) {
        self.expression("bitwise", |bitwise| {
            bitwise.number(1, REGISTER);
            bitwise.number(2, REGISTER);
            bitwise.number(3, mask.len() as u32);
            bitwise.nest(4, |data| data.bytes(1, mask));
            bitwise.nest(5, |data| data.bytes(1, &vec![0; mask.len()]));
        });
    }

    /// Continues if the register is in a set, or is not.
    fn look_up(&mut self, set: Set, inverted: bool) {
        self.expression("lookup", |lookup| {
            lookup.text(1, set.name());
            lookup.number(2, REGISTER);
            if inverted {
                // `NFT_LOOKUP_F_INV`.
                lookup.number(5, 1);
            }
        });
    }

    fn verdict(&mut self, accepts: bool) {
        self.expression("immediate", |immediate| {
            // `NFT_REG_VERDICT`; `NF_DROP` is 0, `NF_ACCEPT` 1.
            immediate.number(1, 0);
            immediate.nest(2, |data| data.nest(2, |verdict| verdict.number(1, u32::from(accepts))));
        });
    }
}

/// A change of elements of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Add,
    Delete,
}

/// A key of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Element {
    key: ([u8; 16], usize),
    /// An interval ends before it.
    ends: bool,
    /// How long it is there. None: for ever.
    time_ms: Option<u64>,
}

impl Element {
    fn of(key: &[u8]) -> Element {
        let mut bytes = [0; 16];
        bytes[..key.len()].copy_from_slice(key);
        Element { key: (bytes, key.len()), ends: false, time_ms: None }
    }
}

/// The elements of a network in its set.
pub(super) fn elements(network: Network, time_ms: Option<u64>) -> Vec<Element> {
    if Set::of(network).is_of_intervals() {
        return interval(network, time_ms);
    }
    let key = match network.0 {
        IpAddr::V4(address) => Element::of(&address.octets()),
        IpAddr::V6(address) => Element::of(&address.octets()),
    };
    vec![Element { time_ms, ..key }]
}

/// Its first address, and the one behind its last if that exists.
fn interval((address, prefix): Network, time_ms: Option<u64>) -> Vec<Element> {
    let (first, behind) = match address {
        IpAddr::V4(address) => {
            let first = u64::from(address.to_bits());
            let behind = u32::try_from(first + (1 << (32 - u32::from(prefix)))).ok();
            let bytes = |bits: u32| Element::of(&Ipv4Addr::from_bits(bits).octets());
            (bytes(address.to_bits()), behind.map(bytes))
        }
        IpAddr::V6(address) => {
            let bytes = |bits: u128| Element::of(&Ipv6Addr::from_bits(bits).octets());
            let addresses = 1_u128.checked_shl(128 - u32::from(prefix));
            let behind = addresses.and_then(|addresses| address.to_bits().checked_add(addresses));
            (bytes(address.to_bits()), behind.map(bytes))
        }
    };
    let first = Element { time_ms, ..first };
    [Some(first), behind.map(|behind| Element { ends: true, ..behind })]
        .into_iter()
        .flatten()
        .collect()
}

/// Adds elements to a set, or removes them. At most [`super::message::ELEMENTS_MAX`]. Returns the
/// number of the message, which is answered.
pub(super) fn change(
    batch: &mut Batch,
    table: &str,
    set: Set,
    elements: &[Element],
    how: Change,
) -> u32 {
    let (kind, flags) = match how {
        Change::Add => (NEW_ELEMENTS, CREATE),
        Change::Delete => (DELETE_ELEMENTS, 0),
    };
    batch.message(kind, flags | ACKNOWLEDGE, |message| {
        message.text(1, table);
        message.text(2, set.name());
        message.nest(3, |list| {
            for element in elements {
                list.nest(1, |written| {
                    written.nest(1, |key| key.bytes(1, &element.key.0[..element.key.1]));
                    if element.ends {
                        // `NFT_SET_ELEM_INTERVAL_END`.
                        written.number(3, 1);
                    }
                    if let (Some(time_ms), Change::Add) = (element.time_ms, how) {
                        written.large(4, time_ms);
                    }
                });
            }
        });
    })
}

/// Asks for the counter of dropped packets.
pub(super) fn ask_dropped(table: &str, number: u32) -> Vec<u8> {
    request(GET_OBJECT, number, |message| {
        message.text(1, table);
        message.text(2, DROPPED);
        message.number(3, COUNTER);
    })
}
