//! Rows of the document about how workers share the load.

use crate::schema::{Default, Kind, Row};

use super::row;

pub(super) const ACCEPT_BY: Row = row(
    "accept-by",
    Kind::Word(&["even", "hash"]),
    Default::Is("even"),
    "Which worker gets a new connection (docs/workers.md). `even`: a worker that has time for it, \
        as far as weir can steer the kernel. `hash`: the kernel chooses by addresses and ports, \
        whatever the workers are doing.",
);
