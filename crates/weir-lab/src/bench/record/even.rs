//! How evenly workers were loaded, how much of a core was taken, and how often a configuration was
//! reloaded.
//!
//! Filled by `run/ladder.rs`, `run/taken.rs` and `run/reload.rs`, shown by `report/even.rs`.

use serde::{Deserialize, Serialize};

/// The load of each worker while all clients were there, in the order of workers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Laddered {
    /// Client connections.
    pub(crate) connections: Vec<u64>,
    /// Processor time, microseconds.
    pub(crate) cpu_us: Vec<u64>,
}

/// How much of a core another process took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Taken {
    /// No other process could use the core meanwhile (SCHED_FIFO); else the process had a nice
    /// value of -20.
    pub(crate) is_realtime: bool,
    /// How often.
    pub(crate) times: u64,
    /// Share of the time in which the process had the core, from 0 to 1.
    pub(crate) share: f64,
}

/// Reloads while clients connected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reloads {
    /// How many.
    pub(crate) times: u32,
    /// Connections that clients attempted meanwhile.
    pub(crate) connections: u64,
}

/// Returns the highest value as a multiple of the lowest, where 0 counts as 1. NaN without workers.
pub(crate) fn most_to_least(values: &[u64]) -> f64 {
    match (values.iter().max(), values.iter().min()) {
        (Some(most), Some(least)) => *most as f64 / (*least).max(1) as f64,
        _ => f64::NAN,
    }
}

/// Returns the standard deviation as a share of the mean; NaN without a mean.
pub(crate) fn deviation(values: &[u64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<u64>() as f64 / count;
    let variance = values.iter().map(|value| (*value as f64 - mean).powi(2)).sum::<f64>() / count;
    variance.sqrt() / mean
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sixteen workers of the article that the project started from.
    const PUBLISHED: [u64; 16] =
        [2357, 1833, 2180, 1609, 1565, 1519, 1175, 1065, 1056, 1201, 886, 908, 968, 1180, 867, 884];

    #[test]
    fn a_ladder_has_a_top_and_a_bottom() {
        assert!((most_to_least(&PUBLISHED) - 2.7).abs() < 0.05);
        // The mean is 1,328, the standard deviation 456.
        assert!((deviation(&PUBLISHED) - 0.343).abs() < 0.001, "{}", deviation(&PUBLISHED));
        assert_eq!((most_to_least(&[5, 5, 5]), deviation(&[5, 5, 5])), (1.0, 0.0));
        assert_eq!(
            most_to_least(&[2000, 0]),
            2000.0,
            "who has none counts as one: the ratio stays a number"
        );
        assert!(
            most_to_least(&[]).is_nan() && deviation(&[]).is_nan() && deviation(&[0, 0]).is_nan()
        );
    }
}
