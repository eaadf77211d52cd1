//! What bans cost and how they end.
//!
//! Filled by `run/bans.rs`, shown by `report/bans.rs`.

use serde::{Deserialize, Serialize};

/// Memory with several numbers of bans.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Held {
    /// From none to most.
    pub(crate) taken: Vec<Taken>,
}

/// Memory with this many bans.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Taken {
    /// Number of bans.
    pub(crate) bans: u32,
    /// Resident memory of weir.
    pub(crate) resident_bytes: u64,
    /// Additional kernel memory of the whole machine since before weir was started, whoever uses
    /// it.
    pub(crate) kernel_bytes: i64,
}

/// Clients whose bans end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recovery {
    /// Attempts that were refused, of all clients together.
    pub(crate) refused: u64,
    /// From the end of each ban to the first response, microseconds; less than 0: before the end.
    pub(crate) after_us: Vec<i64>,
}

impl Held {
    /// Returns the memory with this many bans.
    pub(crate) fn of(&self, bans: u32) -> Option<&Taken> {
        self.taken.iter().find(|taken| taken.bans == bans)
    }

    /// Returns the additional memory of weir with this many bans compared with none, bytes; NaN
    /// where one of them was not measured.
    pub(crate) fn more_bytes(&self, bans: u32) -> f64 {
        let resident = |bans| self.of(bans).map_or(f64::NAN, |taken| taken.resident_bytes as f64);
        resident(bans) - resident(0)
    }
}

impl Recovery {
    /// The slowest, ms; NaN without any.
    pub(crate) fn longest_ms(&self) -> f64 {
        self.after_us.iter().max().map_or(f64::NAN, |us| *us as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bans_are_compared_with_none() {
        let taken = |bans, resident_bytes| Taken { bans, resident_bytes, kernel_bytes: 0 };
        let held = Held { taken: vec![taken(0, 5000), taken(10, 7000)] };
        assert_eq!(held.more_bytes(10), 2000.0);
        assert!(held.more_bytes(11).is_nan() && Held::default().more_bytes(0).is_nan());
    }

    #[test]
    fn the_slowest_counts() {
        assert_eq!(
            Recovery { after_us: vec![-5, 2500, 70], ..Recovery::default() }.longest_ms(),
            2.5
        );
        assert!(Recovery::default().longest_ms().is_nan());
    }
}
