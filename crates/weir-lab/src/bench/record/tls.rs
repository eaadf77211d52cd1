//! What came of handshakes in a run.
//!
//! Filled by `run/load.rs` and `run/flood.rs`, shown by `report/tls.rs`.

use serde::{Deserialize, Serialize};

/// Handshakes of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Handshakes {
    /// With the server's certificate.
    pub(crate) full: u64,
    /// That went on with an earlier session.
    pub(crate) resumed: u64,
    /// Of a flood beside the clients that are measured: complete ones a second.
    pub(crate) flood_per_second: Option<f64>,
}
