//! The cells of the experiment `failover`. Named by `catalogue.rs`.

use super::cells::{Axes, Cell, Load, Origin};
use super::failover::Fault;

/// Returns all cells.
pub(super) fn cells(_: &Axes) -> Vec<Cell> {
    let cell = |(fault, name, title)| {
        Cell::new(name, title, Load::Failover(fault), &["nginx", "haproxy", "weir"])
            .from(Origin::None)
    };
    let faults = [
        (Fault::Killed, "killed", "one of three servers is killed, and started again later"),
        (Fault::Frozen, "frozen", "one of three servers stands still for a while, without a reset"),
        (Fault::Rolling, "rolling", "three servers are restarted one after the other"),
        (Fault::Failing, "failing", "one of three servers answers 503 for a while"),
        (
            Fault::Resetting,
            "resetting",
            "one of three servers resets the connection upon every second request",
        ),
        (
            Fault::Flapping,
            "flapping",
            "one of three servers is killed four times and started again each time",
        ),
    ];
    faults.map(cell).into()
}
