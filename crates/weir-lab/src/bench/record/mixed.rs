//! What a run with several kinds of requests saw besides the usual figures.
//!
//! Filled by `run/mixed.rs`, shown by `report/mixed.rs`.

use serde::{Deserialize, Serialize};

use super::answers::Latency;

/// The additional results. The usual figures of the record are those of the measured clients,
/// except `requests`, which counts all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Mixed {
    /// Responses to the measured clients.
    pub(crate) answered: u64,
    /// Those over 8 ms.
    pub(crate) late: u64,
    /// Results of the clients beside them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) beside: Vec<Beside>,
    /// Numbered requests that the server got, each counted once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) numbered: Option<u64>,
    /// Requests that it got once more although their number had come before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) twice: Option<u64>,
}

/// One kind of clients beside the measured ones.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Beside {
    /// What they requested.
    pub(crate) path: String,
    /// Responses a second.
    pub(crate) rate: f64,
    /// Latency of their responses.
    pub(crate) latency: Option<Latency>,
}

impl Mixed {
    /// Returns the share of the measured responses that came late, percent.
    pub(crate) fn late_percent(&self) -> f64 {
        if self.answered == 0 { f64::NAN } else { self.late as f64 / self.answered as f64 * 100.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_late_of_those_who_were_not_answered() {
        assert!(Mixed::default().late_percent().is_nan());
        let percent = Mixed { answered: 2000, late: 3, ..Mixed::default() }.late_percent();
        assert!((percent - 0.15).abs() < 1e-9, "{percent}");
    }
}
