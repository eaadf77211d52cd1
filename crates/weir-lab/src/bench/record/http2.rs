//! The result of clients that let no response come.
//!
//! Filled by `run/stalled.rs`, shown by `report/http2.rs`.

use serde::{Deserialize, Serialize};

/// Their streams in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stalled {
    /// That were still open at the end.
    pub(crate) open: u64,
    /// That the proxy had reset.
    pub(crate) reset: u64,
}
