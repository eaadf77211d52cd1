//! How long it takes weir to end (docs/running.md).

use super::SECOND_US;

/// How weir ends when it is told to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShutdownPlan {
    /// How long clients are taken that still come, while `/readyz` says that none should. Default 0.
    pub delay_us: u64,
    /// How long what was asked may take to be answered after that. Default 30 s.
    pub drain_us: u64,
}

impl Default for ShutdownPlan {
    fn default() -> ShutdownPlan {
        ShutdownPlan { delay_us: 0, drain_us: 30 * SECOND_US }
    }
}
