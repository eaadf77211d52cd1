//! The clients that may use a route, by address: `allow` and `deny`.
//!
//! Checked before all other rules (`client/receive.rs`). The first line with the address decides; a
//! client in no line is admitted. Bound: [`NETWORKS_MAX`] comparisons.

use std::net::IpAddr;

use crate::plan::Network;

/// Addresses and ranges of one route.
pub const NETWORKS_MAX: usize = 1000;

/// The lines of a route in their order. The default admits every client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    lines: Vec<Line>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Line {
    allows: bool,
    /// The clients; None: all.
    whom: Option<Network>,
}

impl Access {
    /// Appends a line. `whom`: None is every client.
    pub fn push(&mut self, allows: bool, whom: Option<Network>) {
        self.lines.push(Line { allows, whom });
    }

    /// The number of lines.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether every client is admitted.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Whether this client is admitted.
    pub fn admits(&self, client: IpAddr) -> bool {
        let has = |line: &&Line| line.whom.is_none_or(|network| network.has_client(client));
        self.lines.iter().find(has).is_none_or(|line| line.allows)
    }
}

#[cfg(test)]
mod tests {
    //! Proves: the first line with the address decides. How: a table, and random lists against a
    //! scan from the end.

    use proptest::prelude::*;

    use super::*;

    fn access(lines: &[(bool, &str)]) -> Access {
        let mut access = Access::default();
        for (allows, whom) in lines {
            let network = whom.split_once('/').map(|(address, bits)| Network {
                address: address.parse().unwrap(),
                prefix_bits: bits.parse().unwrap(),
            });
            access.push(*allows, network);
        }
        access
    }

    #[test]
    fn the_first_line_decides() {
        let office =
            [(false, "10.0.0.9/32"), (true, "10.0.0.0/8"), (true, "fd00::/8"), (false, "all")];
        for (lines, client, expected) in [
            (&office[..], "10.0.0.8", true),
            (&office, "10.0.0.9", false),
            (&office, "::ffff:10.0.0.8", true),
            (&office, "::ffff:10.0.0.9", false),
            (&office, "fd01::1", true),
            (&office, "192.0.2.1", false),
            (&office[..1], "192.0.2.1", true),
            (&office[1..3], "192.0.2.1", true),
            (&[], "192.0.2.1", true),
        ] {
            assert_eq!(access(lines).admits(client.parse().unwrap()), expected, "{client}");
        }
    }

    proptest! {
        #[test]
        fn lines_behind_the_one_that_decides_mean_nothing(
            lines in prop::collection::vec((any::<bool>(), 0u8..4, 24u8..=32), 0..8),
            client in 0u8..4,
        ) {
            let mut access = Access::default();
            let client = IpAddr::from([10, 0, 0, client]);
            let mut expected = true;
            let network = |last, prefix_bits| Network {
                address: IpAddr::from([10, 0, 0, last]),
                prefix_bits,
            };
            for (allows, last, bits) in &lines {
                access.push(*allows, Some(network(*last, *bits)));
            }
            for (allows, last, bits) in lines.iter().rev() {
                if network(*last, *bits).contains(client) {
                    expected = *allows;
                }
            }
            prop_assert_eq!(access.admits(client), expected);
        }
    }
}
