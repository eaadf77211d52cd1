//! The rows of `shutdown`. Part of the option table.

use super::{DAY, HOUR, row};
use crate::schema::{BLOCK, Block, Default, Kind};

pub(super) const SHUTDOWN: Block = Block {
    name: "shutdown",
    help: "How weir ends on SIGTERM or SIGQUIT. A second one, or SIGINT, ends it at once.",
    positional: &[],
    options: &[
        row(
            "delay",
            Kind::Time(0, HOUR),
            Default::Is("0s"),
            "How long weir still accepts clients while `/readyz` answers 503 and the service \
                manager knows: time for load balancers to notice.",
        ),
        row(
            "drain",
            Kind::Time(0, DAY),
            Default::Is("30s"),
            "How long requests may take to be answered after that; tunnels may stay as long.",
        ),
    ],
    ..BLOCK
};
