//! The congestion control of a connection, unless the system chooses it; several share the
//! connections evenly.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::base::stamp::siphash;

/// Most congestion controls that may share the connections of a listener or an upstream.
pub const ARMS_MAX: usize = 4;

/// A side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Towards the client.
    Client,
    /// Towards the server.
    Server,
}

impl Side {
    /// Returns the word for status and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Side::Client => "client",
            Side::Server => "server",
        }
    }

    /// The choices on both sides are independent.
    fn key(self) -> [u64; 2] {
        [0x636f_6e67_6573_7469, self as u64]
    }
}

/// Names of congestion controls (tcp(7), TCP_CONGESTION), at most [`ARMS_MAX`]; the default, none,
/// leaves it to the system.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Congestion(Option<Arc<[Arc<str>]>>);

impl Congestion {
    /// Keeps these; beyond [`ARMS_MAX`] they are left out.
    pub fn new<'a>(names: impl Iterator<Item = &'a str>) -> Congestion {
        let names: Vec<Arc<str>> = names.take(ARMS_MAX).map(Arc::from).collect();
        Congestion((!names.is_empty()).then(|| names.into()))
    }

    /// Returns all names.
    pub fn names(&self) -> &[Arc<str>] {
        self.0.as_deref().unwrap_or_default()
    }

    /// Returns the one for connections without a client.
    pub fn usual(&self) -> Option<&Arc<str>> {
        self.names().first()
    }

    /// Whether connections have several.
    pub fn is_divided(&self) -> bool {
        self.names().len() > 1
    }

    /// Returns the one for a connection of this client on this side: by a hash of the client's
    /// address and port, so that each has an equal share.
    pub fn of(&self, side: Side, client: SocketAddr) -> Option<&Arc<str>> {
        if !self.is_divided() {
            return self.usual();
        }
        let mut bytes = [0; 18];
        let address = match client.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        bytes[..16].copy_from_slice(&address.octets());
        bytes[16..].copy_from_slice(&client.port().to_be_bytes());
        let names = self.names();
        names.get((siphash(side.key(), &bytes) % names.len() as u64) as usize)
    }
}

#[cfg(test)]
mod tests {
    //! Proves: each has an equal share, a client keeps its own, and the sides do not depend on each
    //! other. How: many ports of one client.

    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn each_has_an_equal_part_on_each_side() {
        for names in [&["bbr", "cubic"][..], &["a", "b", "c", "d"]] {
            let congestion = Congestion::new(names.iter().copied());
            let mut pairs: BTreeMap<(&str, &str), usize> = BTreeMap::new();
            for port in 1..=32_000 {
                let client = SocketAddr::from(([198, 51, 100, 7], port));
                let of = |side| congestion.of(side, client).expect("one of them");
                assert_eq!(of(Side::Client), of(Side::Client));
                *pairs.entry((of(Side::Client), of(Side::Server))).or_default() += 1;
            }
            let part = 32_000 / (names.len() * names.len());
            assert_eq!(pairs.len(), names.len() * names.len());
            // Five times the standard deviation of a random choice.
            let near = part - part / 8..=part + part / 8;
            assert!(pairs.values().all(|count| near.contains(count)), "{pairs:?}");
        }
    }

    #[test]
    fn one_is_for_all_and_none_for_nobody() {
        let client = SocketAddr::from(([198, 51, 100, 7], 4000));
        let one = Congestion::new(["bbr"].into_iter());
        assert_eq!(one.of(Side::Client, client).map(AsRef::as_ref), Some("bbr"));
        assert!(!one.is_divided() && one.usual() == one.of(Side::Server, client));
        assert_eq!(Congestion::new([].into_iter()), Congestion::default());
        assert_eq!(Congestion::default().of(Side::Client, client), None);
        assert_eq!(Congestion::new(["a", "b", "c", "d", "e"].into_iter()).names().len(), ARMS_MAX);
    }
}
