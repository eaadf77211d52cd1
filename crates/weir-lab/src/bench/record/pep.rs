//! What connections through a router cost the machine.
//!
//! Filled by `run/pep.rs`, shown by `report/pep.rs`.

use serde::{Deserialize, Serialize};

/// The cost in one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Passed {
    /// Time in which cores of the machine were busy in the window, whatever they ran, microseconds.
    pub(crate) busy_us: f64,
    /// Share of the machine's time used by other programs, shortly before the load: from 0 to 1.
    pub(crate) others: f64,
    /// The cost in the same round where the router only forwarded; None: that was not measured, or
    /// this is it.
    pub(crate) routed: Option<Base>,
}

/// The total cost with no program in the middle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Base {
    /// Of the machine, for each connection, microseconds.
    pub(crate) us_per_connection: f64,
    /// For each byte, microseconds.
    pub(crate) us_per_byte: f64,
}

impl Passed {
    /// Returns the additional cost of each of `connections` connections compared with no program in
    /// the middle, microseconds; NaN where that is not known.
    pub(crate) fn added_us(&self, connections: u64) -> f64 {
        self.routed
            .map_or(f64::NAN, |base| self.busy_us / connections as f64 - base.us_per_connection)
    }

    /// The same for each gigabyte (10^9 bytes), seconds.
    pub(crate) fn added_s_per_gigabyte(&self, bytes: u64) -> f64 {
        self.routed.map_or(f64::NAN, |base| (self.busy_us / bytes as f64 - base.us_per_byte) * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_what_is_more_than_without_anybody() {
        let base = Base { us_per_connection: 100.0, us_per_byte: 0.001 };
        let passed = Passed { busy_us: 150_000.0, routed: Some(base), ..Passed::default() };
        assert_eq!(passed.added_us(1000), 50.0);
        // 150,000 us for 100 MB are 1.5 s a gigabyte, and 1 s of that is the base line's.
        assert!((passed.added_s_per_gigabyte(100_000_000) - 0.5).abs() < 1e-9);
        assert!(Passed { routed: None, ..passed }.added_us(1000).is_nan());
    }
}
