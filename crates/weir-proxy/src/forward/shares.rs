//! Fair shares of something that all clients use: the present holders, and how much each may have,
//! so that no client can take everything. Used for names that are being resolved (`dns_cache`, the
//! errands of `weir-worker`, the side thread) and for passwords that are being compared (the
//! errands).
//!
//! Bound: each may have as many as are free ([`Shares::enter`]). A client alone gets half of all,
//! beside `n` others that want much a share of `1 / (n + 2)`, and something is always left for the
//! next client.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Bits of an IPv6 address that the host chooses.
const HOST_BITS: u32 = 64;
/// Bits of addresses that the owner of a usual network chooses: a /24, a /48.
const OWNER_BITS_V4: u32 = 8;
const OWNER_BITS_V6: u32 = 80;

/// The address of a client, as far as the client can't choose it: an IPv4 address, or an IPv6
/// network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(IpAddr);

impl Lane {
    /// The lane of a client: its IPv4 address, or its IPv6 network.
    pub fn of(client: IpAddr) -> Lane {
        match client.to_canonical() {
            IpAddr::V6(six) => {
                Lane(Ipv6Addr::from_bits(six.to_bits() >> HOST_BITS << HOST_BITS).into())
            }
            four => Lane(four),
        }
    }
}

impl Lane {
    /// Its network: the owner of a network has many addresses in it.
    pub fn network(self) -> Lane {
        Lane(match self.0 {
            IpAddr::V4(four) => {
                Ipv4Addr::from_bits(four.to_bits() >> OWNER_BITS_V4 << OWNER_BITS_V4).into()
            }
            IpAddr::V6(six) => {
                Ipv6Addr::from_bits(six.to_bits() >> OWNER_BITS_V6 << OWNER_BITS_V6).into()
            }
        })
    }
}

/// The holder of a share.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Asker {
    /// A client known only by its address.
    Client(Lane),
    /// A user, by name, wherever it connects from.
    User(Arc<str>),
}

impl Asker {
    /// The user, or else the client with this address.
    pub fn of(user: Option<&str>, client: IpAddr) -> Asker {
        user.map_or_else(|| Asker::Client(Lane::of(client)), |name| Asker::User(name.into()))
    }
}

/// The shares of something.
#[derive(Debug)]
pub struct Shares {
    max: usize,
    all: usize,
    /// Holders of none are not in it.
    counts: BTreeMap<Asker, usize>,
}

impl Shares {
    /// Creates shares of `max`, all of which are free.
    pub fn new(max: usize) -> Shares {
        Shares { max, all: 0, counts: BTreeMap::new() }
    }

    /// How many a holder has.
    pub fn count(&self, asker: &Asker) -> usize {
        self.counts.get(asker).copied().unwrap_or_default()
    }

    /// Whether a holder may have one more: it has fewer than are free.
    pub fn has_room(&self, asker: &Asker) -> bool {
        self.count(asker) < self.max.saturating_sub(self.all)
    }

    /// Gives a holder one more, if it may have one.
    pub fn enter(&mut self, asker: &Asker) -> bool {
        let has_room = self.has_room(asker);
        if has_room {
            *self.counts.entry(asker.clone()).or_default() += 1;
            self.all += 1;
        }
        has_room
    }

    /// Takes one back.
    pub fn leave(&mut self, asker: &Asker) {
        let Some(count) = self.counts.get_mut(asker) else { return };
        *count -= 1;
        self.all -= 1;
        if *count == 0 {
            self.counts.remove(asker);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a client that takes as many as it may leaves some for others; nothing is lost. How:
    //! counting.

    use super::*;

    fn client(address: &str) -> Asker {
        Asker::of(None, address.parse().unwrap())
    }

    fn fill(shares: &mut Shares, asker: &Asker) -> usize {
        (0..10_000).filter(|_| shares.enter(asker)).count()
    }

    #[test]
    fn there_is_always_something_left() {
        let mut shares = Shares::new(512);
        let askers: Vec<Asker> = (1..=8).map(|n| client(&format!("192.0.2.{n}"))).collect();
        let had: Vec<usize> = askers.iter().map(|asker| fill(&mut shares, asker)).collect();
        assert_eq!(had, [256, 128, 64, 32, 16, 8, 4, 2]);
        assert!(!shares.has_room(&askers[0]) && shares.enter(&client("192.0.2.99")));
        for (asker, count) in askers.iter().zip(had) {
            (0..count).for_each(|_| shares.leave(asker));
        }
        shares.leave(&client("192.0.2.99"));
        shares.leave(&client("192.0.2.99"));
        assert!(shares.counts.is_empty() && shares.all == 0);
    }

    #[test]
    fn few_are_shared_too() {
        for max in 0..4 {
            let mut shares = Shares::new(max);
            let had = fill(&mut shares, &client("192.0.2.1"));
            assert_eq!(
                (had, shares.enter(&client("192.0.2.2"))),
                (max.div_ceil(2), max > 1),
                "of {max}"
            );
        }
    }

    #[test]
    fn networks() {
        let network = |address: &str| Lane::of(address.parse().unwrap()).network();
        assert_eq!(network("192.0.2.1"), network("192.0.2.255"));
        assert_ne!(network("192.0.2.1"), network("192.0.3.1"));
        assert_eq!(network("2001:db8:1:2::1"), network("2001:db8:1:ffff::1"));
        assert_ne!(network("2001:db8:1::1"), network("2001:db8:2::1"));
    }

    #[test]
    fn who_is_the_same() {
        assert_eq!(client("192.0.2.1"), client("::ffff:192.0.2.1"));
        assert_eq!(client("2001:db8::1"), client("2001:db8::ffff"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
        let ann = |address: &str| Asker::of(Some("ann"), address.parse().unwrap());
        assert_eq!(ann("192.0.2.1"), ann("192.0.2.2"));
        assert_ne!(ann("192.0.2.1"), client("192.0.2.1"));
    }
}
