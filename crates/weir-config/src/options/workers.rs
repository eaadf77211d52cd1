//! What the document says of how workers share the load.

use crate::schema::{Default, Kind, Row};

use super::row;

pub(super) const ACCEPT_BY: Row = row(
    "accept-by",
    Kind::Word(&["even", "hash"]),
    Default::Is("even"),
    "Which worker gets a new connection (docs/workers.md). `even`: one that has time for it, as far as the kernel can be told. `hash`: the kernel goes by addresses and ports, whatever the workers are doing.",
);
