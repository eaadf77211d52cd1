//! The handshakes of a run.
//!
//! Filled by `run/load.rs` and `run/flood.rs`, shown by `report/tls.rs`.

use serde::{Deserialize, Serialize};

/// Handshakes of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Handshakes {
    /// With the server's certificate.
    pub(crate) full: u64,
    /// Handshakes that resumed an earlier session.
    pub(crate) resumed: u64,
    /// Complete handshakes a second of a flood beside the measured clients.
    pub(crate) flood_per_second: Option<f64>,
}
