//! Who may have a password compared: so few at once for one name that guessing at it delays nobody else for long. Pure. Called by
//! `verify`.
//!
//! Bounds: [`LANE_MAX`] comparisons under way or waiting for one name, and for all names together that nobody has; [`ALL_MAX`]
//! of all.

use std::collections::HashMap;

/// Comparisons of one name.
pub(crate) const LANE_MAX: u32 = 4;
/// Comparisons of all names.
pub(crate) const ALL_MAX: u32 = 256;

/// Whose comparison it is; None: of a name that nobody has.
pub(crate) type Lane = Option<Box<str>>;

/// Comparisons under way or waiting.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    counts: HashMap<Lane, u32>,
    all: u32,
}

impl Lanes {
    /// Counts one more, if there is room for it.
    pub(crate) fn enter(&mut self, lane: &Lane) -> bool {
        let count = self.counts.get(lane).copied().unwrap_or_default();
        if count >= LANE_MAX || self.all >= ALL_MAX {
            return false;
        }
        self.counts.insert(lane.clone(), count + 1);
        self.all += 1;
        true
    }

    /// One that was counted is done.
    pub(crate) fn leave(&mut self, lane: &Lane) {
        let Some(count) = self.counts.get_mut(lane) else { return };
        *count -= 1;
        self.all -= 1;
        if *count == 0 {
            self.counts.remove(lane);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: one name, and all unknown ones together, take no more than their share; all have a bound. How: counting.

    use super::*;

    #[test]
    fn guessing_at_one_name_leaves_room_for_others() {
        let mut lanes = Lanes::default();
        let (ann, bob, nobody): (Lane, Lane, Lane) = (Some("ann".into()), Some("bob".into()), None);
        assert_eq!((0..100).filter(|_| lanes.enter(&ann)).count(), 4);
        assert_eq!((0..100).filter(|_| lanes.enter(&nobody)).count(), 4);
        assert!(lanes.enter(&bob));
        lanes.leave(&ann);
        assert!(lanes.enter(&ann) && !lanes.enter(&ann));
    }

    #[test]
    fn there_is_room_for_so_many() {
        let mut lanes = Lanes::default();
        let all: Vec<Lane> = (0..1000).map(|n| Some(n.to_string().into())).collect();
        assert_eq!(all.iter().filter(|lane| lanes.enter(lane)).count(), 256);
        all.iter().for_each(|lane| lanes.leave(lane));
        assert!(lanes.counts.is_empty() && lanes.all == 0);
    }
}
