//! The upgrade to a new program (docs/upgrade.md).

use super::SECOND_US;

/// The time limits of an upgrade to a new program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpgradePlan {
    /// How long the new program may take until it is ready. Default 1 min.
    pub timeout_us: u64,
    /// How long tunnels may remain with the old program. Default 15 min.
    pub tunnels_us: u64,
}

impl Default for UpgradePlan {
    fn default() -> UpgradePlan {
        UpgradePlan { timeout_us: 60 * SECOND_US, tunnels_us: 15 * 60 * SECOND_US }
    }
}
