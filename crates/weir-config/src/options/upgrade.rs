//! The rows of `upgrade`. Part of the option table.

use super::{DAY, HOUR, SECOND, row};
use crate::schema::{BLOCK, Block, Default, Kind};

pub(super) const UPGRADE: Block = Block {
    name: "upgrade",
    help: "How a running weir hands over to a new program (`weir upgrade`, SIGUSR2).",
    positional: &[],
    options: &[
        row(
            "timeout",
            Kind::Time(SECOND, HOUR),
            Default::Is("1m"),
            "How long the new program may take until it is ready. After that weir ends the new \
                program, and the old one continues.",
        ),
        row(
            "tunnels",
            Kind::Time(0, 30 * DAY),
            Default::Is("15m"),
            "How long tunnels may remain with the old program. Other clients of the old program \
                have `drain` of `shutdown`.",
        ),
    ],
    ..BLOCK
};
