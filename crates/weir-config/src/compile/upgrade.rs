//! `upgrade` -> plan.

use weir_proxy::plan::UpgradePlan;

use crate::check::Checked;

/// Returns the times of an upgrade to a new program.
pub(super) fn plan(block: &Checked) -> UpgradePlan {
    UpgradePlan { timeout_us: block.number("timeout"), tunnels_us: block.number("tunnels") }
}
