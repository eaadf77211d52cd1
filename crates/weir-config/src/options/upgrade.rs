//! The rows of `upgrade`. Part of the option table.

use super::{DAY, HOUR, SECOND, row};
use crate::schema::{BLOCK, Block, Default, Kind};

pub(super) const UPGRADE: Block = Block {
    name: "upgrade",
    help: "How a running weir gives way to a new program (`weir upgrade`, SIGUSR2).",
    positional: &[],
    options: &[
        row(
            "timeout",
            Kind::Time(SECOND, HOUR),
            Default::Is("1m"),
            "How long the new program may take until it is ready. Then it is ended, and the old one goes on.",
        ),
        row(
            "tunnels",
            Kind::Time(0, 30 * DAY),
            Default::Is("15m"),
            "How long tunnels may stay with the old program, whose other clients have `drain` of `shutdown`.",
        ),
    ],
    ..BLOCK
};
