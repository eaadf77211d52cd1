//! Who may have a password compared: so few at once for one client that guessing keeps up nobody else for long, at whatever name he
//! guesses. Names have no lanes: that would lock out whom they belong to, and a full one would tell that the name exists. Pure.
//! Called by `verify`.
//!
//! Bounds: [`LANE_MAX`] comparisons under way or waiting for one client; [`ALL_MAX`] of all.

use std::collections::HashMap;

use weir_proxy::forward::shares::Lane;

/// Comparisons of one client: about a second of one thread with the hashes of `weir passwd`.
pub(crate) const LANE_MAX: u32 = 16;
/// Comparisons of all clients.
pub(crate) const ALL_MAX: u32 = 256;

/// Comparisons under way or waiting.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    counts: HashMap<Lane, u32>,
    all: u32,
}

impl Lanes {
    /// Counts one more, if there is room for it.
    pub(crate) fn enter(&mut self, lane: Lane) -> bool {
        let count = self.counts.get(&lane).copied().unwrap_or_default();
        if count >= LANE_MAX || self.all >= ALL_MAX {
            return false;
        }
        self.counts.insert(lane, count + 1);
        self.all += 1;
        true
    }

    /// One that was counted is done.
    pub(crate) fn leave(&mut self, lane: Lane) {
        let Some(count) = self.counts.get_mut(&lane) else { return };
        *count -= 1;
        self.all -= 1;
        if *count == 0 {
            self.counts.remove(&lane);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: one client takes no more than its share; all have a bound. How: counting.

    use super::*;
    use std::net::IpAddr;

    fn lane(address: &str) -> Lane {
        Lane::of(address.parse().unwrap())
    }

    #[test]
    fn one_client_leaves_room_for_others() {
        let mut lanes = Lanes::default();
        assert_eq!((0..100).filter(|_| lanes.enter(lane("192.0.2.1"))).count(), 16);
        assert!(!lanes.enter(lane("::ffff:192.0.2.1")) && lanes.enter(lane("192.0.2.2")));
        lanes.leave(lane("192.0.2.1"));
        assert!(lanes.enter(lane("192.0.2.1")) && !lanes.enter(lane("192.0.2.1")));
        let many = |n: u32| lane(&format!("2001:db8::{n:x}"));
        assert_eq!((0..100).filter(|n| lanes.enter(many(*n))).count(), 16);
        assert!(lanes.enter(lane("2001:db8:0:1::")));
    }

    #[test]
    fn there_is_room_for_so_many() {
        let mut lanes = Lanes::default();
        let all: Vec<Lane> = (0..1000_u32).map(|n| Lane::of(IpAddr::V4((0x0a00_0000 + n).into()))).collect();
        assert_eq!(all.iter().filter(|lane| lanes.enter(**lane)).count(), 256);
        all.iter().for_each(|lane| lanes.leave(*lane));
        assert!(lanes.counts.is_empty() && lanes.all == 0);
    }
}
