//! `shutdown` -> plan.

use weir_proxy::plan::ShutdownPlan;

use crate::check::Checked;

/// Returns the times of the shutdown.
pub(super) fn plan(block: &Checked) -> ShutdownPlan {
    ShutdownPlan { delay_us: block.number("delay"), drain_us: block.number("drain") }
}
