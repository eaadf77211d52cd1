//! The time that weir takes to shut down (docs/running.md).

use super::SECOND_US;

/// How weir shuts down on request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShutdownPlan {
    /// How long new clients are still accepted, while `/readyz` says that none should come. Default
    /// 0.
    pub delay_us: u64,
    /// How long pending requests may take to be answered after that. Default 30 s.
    pub drain_us: u64,
}

impl Default for ShutdownPlan {
    fn default() -> ShutdownPlan {
        ShutdownPlan { delay_us: 0, drain_us: 30 * SECOND_US }
    }
}
